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
    use super::*;

    /// Every character that must not reach a terminal, and how it is shown: the golden of the rule.
    #[test]
    fn golden() {
        let golden = include_str!("../../fixtures/cli/escape.golden");
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
        assert_eq!(seen, golden, "fixtures/cli/escape.golden differs");
    }

    #[test]
    fn plain_text_is_borrowed() {
        assert!(matches!(
            escape("charge_card ✓ é 漢字 \\n"),
            Cow::Borrowed(_)
        ));
    }

    #[test]
    fn a_block_keeps_its_lines() {
        assert_eq!(escape_block("a\n\tb\r\u{9b}2J"), "a\n\tb\\r\\u{9b}2J");
        assert_eq!(escape("a\nb"), "a\\nb");
    }
}
