//! Makes text from a journal, a command line or the wire harmless to a terminal.
//!
//! A tool's name or a result may hold escape sequences that move the cursor, retitle the window or
//! reorder what is read, and would so let an upstream forge what an operator sees. Pure; it must
//! not know what is printed nor where.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns `text` on one line: controls, line ends and direction marks become visible escapes.
///
/// `\n`, `\r` and `\t` are spelled so, the rest as `\u{1b}`. Other characters, `\` included, stay,
/// so what is shown is made to be read, not to be parsed: programs take `--json`.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_where(text, is_dangerous)
}

/// Returns `text` with its line ends and tabs kept and all else escaped as by [`escape`].
///
/// Only for text whose lines are ours, or are indented by the caller, since a line of it could
/// else pass for one of ours.
#[must_use]
pub fn escape_block(text: &str) -> Cow<'_, str> {
    escape_where(text, |c| c != '\n' && c != '\t' && is_dangerous(c))
}

/// Returns a JSON document in which no character can drive a terminal: what JSON allows unescaped
/// in a string, such as DEL, C1 and direction marks, becomes `\u009b`, which means the same.
///
/// Line ends and tabs between the tokens stay.
#[must_use]
pub fn escape_json(document: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| !c.is_ascii_whitespace() && is_dangerous(c);
    if !document.contains(is_escaped) {
        return Cow::Borrowed(document);
    }
    let mut escaped = String::with_capacity(document.len() + 16);
    for c in document.chars() {
        if is_escaped(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

fn escape_where(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    let Some(first) = text.find(&is_escaped) else {
        return Cow::Borrowed(text);
    };
    let mut escaped = String::with_capacity(text.len() + 16);
    escaped.push_str(&text[..first]);
    for c in text[first..].chars() {
        match c {
            c if !is_escaped(c) => escaped.push(c),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            c => {
                let _ = write!(escaped, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    Cow::Owned(escaped)
}

/// C0, DEL, C1, and what changes lines or the direction of reading.
///
/// Source: Unicode Technical Report 36 (bidirectional text), ECMA-48 (control functions).
fn is_dangerous(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'
                | '\u{2029}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
        )
}

#[cfg(test)]
mod tests {
    use super::super::golden::assert_golden;
    use super::*;

    /// Every character that must not reach a terminal, and how it is shown: the golden of the rule.
    #[test]
    fn golden() {
        let mut seen = String::new();
        for code in (0..=0xa0)
            .chain(0x61b..=0x61d)
            .chain(0x200d..=0x2010)
            .chain(0x2027..=0x2030)
            .chain(0x2065..=0x206a)
            .chain([0xfeff, 0x1f600])
        {
            let c = char::from_u32(code).expect("no surrogate is in these ranges");
            let _ = writeln!(seen, "U+{code:04X} {}", escape(&c.to_string()));
        }
        assert_golden("cli/escape.golden", &seen);
    }

    #[test]
    fn plain_text_is_borrowed() {
        assert!(matches!(
            escape("charge_card ✓ é 漢字 \\n"),
            Cow::Borrowed(_)
        ));
    }

    #[test]
    fn a_document_means_the_same() {
        let value = serde_json::json!({"a": "\u{9b}2J\u{202e}\u{7f}\u{2028}é\n\u{1b}"});
        let document = serde_json::to_string_pretty(&value).unwrap();
        let escaped = escape_json(&document);
        assert_eq!(
            escaped,
            "{\n  \"a\": \"\\u009b2J\\u202e\\u007f\\u2028é\\n\\u001b\"\n}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&escaped).unwrap(),
            value
        );
        assert!(matches!(escape_json("{\n}"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_block_keeps_its_lines() {
        assert_eq!(escape_block("a\n\tb\r\u{9b}2J"), "a\n\tb\\r\\u{9b}2J");
        assert_eq!(escape("a\nb"), "a\\nb");
    }
}
