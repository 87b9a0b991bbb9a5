//! Strings: resolving escapes, writing them.

use std::borrow::Cow;

/// Returns the text of a raw string in WTF-8: UTF-8, with each lone surrogate as three bytes.
///
/// A pair of surrogate escapes is the one character it means, so it equals that character's own
/// bytes. A raw value that is no string comes back as it is.
///
/// Source: RFC 8259, section 7; WTF-8, section 3.
pub fn string(raw: &[u8]) -> Cow<'_, [u8]> {
    let raw = super::trim(raw);
    let Some(inner) = raw.strip_prefix(b"\"") else {
        return Cow::Borrowed(raw);
    };
    let inner = inner.strip_suffix(b"\"").unwrap_or(inner);
    match memchr::memchr(b'\\', inner) {
        None => Cow::Borrowed(inner),
        Some(first) => Cow::Owned(unescape(inner, first)),
    }
}

/// Returns the text of a raw string, or nothing if it is no string or holds lone surrogates.
pub fn text(raw: &[u8]) -> Option<Cow<'_, str>> {
    if super::kind(raw) != super::Kind::String {
        return None;
    }
    match string(raw) {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}

/// Returns `text` as a JSON string, quotes included, always on one line of any reader's.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // The last two are line ends to some readers, and the others move a terminal.
            '\0'..'\x20' | '\x7f'..='\u{9f}' | '\u{2028}' | '\u{2029}' => {
                let code = u32::from(character);
                out.push_str("\\u");
                for shift in [12, 8, 4, 0] {
                    out.push(char::from(
                        b"0123456789abcdef"[(code >> shift & 15) as usize],
                    ));
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}

/// Returns WTF-8 `bytes` as a JSON string; what is not UTF-8 becomes U+FFFD.
pub fn quote_bytes(bytes: &[u8]) -> String {
    quote(&String::from_utf8_lossy(bytes))
}

/// Resolves the escapes of a string's inside, the first of which stands at `first`.
///
/// An escape that JSON does not know stays as it is.
fn unescape(inner: &[u8], first: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(inner.len());
    out.extend_from_slice(&inner[..first]);
    let mut at = first;
    while at < inner.len() {
        // `at` stands on a backslash here.
        let byte = match inner.get(at + 1) {
            Some(b'b') => 0x08,
            Some(b'f') => 0x0c,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => {
                at = unescape_unit(inner, at, &mut out);
                at = copy_plain(inner, at, &mut out);
                continue;
            }
            Some(&byte @ (b'"' | b'\\' | b'/')) => byte,
            Some(&byte) => {
                out.push(b'\\');
                byte
            }
            None => b'\\',
        };
        out.push(byte);
        at = copy_plain(inner, (at + 2).min(inner.len()), &mut out);
    }
    out
}

fn copy_plain(inner: &[u8], at: usize, out: &mut Vec<u8>) -> usize {
    let end = memchr::memchr(b'\\', &inner[at..]).map_or(inner.len(), |step| at + step);
    out.extend_from_slice(&inner[at..end]);
    end
}

/// Resolves the `\u` escape at `at`, together with its other half if it is one of a pair.
fn unescape_unit(inner: &[u8], at: usize, out: &mut Vec<u8>) -> usize {
    let Some(unit) = unit_at(inner, at) else {
        out.extend_from_slice(b"\\u");
        return at + 2;
    };
    if let 0xd800..=0xdbff = unit
        && let Some(low @ 0xdc00..=0xdfff) = unit_at(inner, at + 6)
    {
        push_code(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00), out);
        return at + 12;
    }
    push_code(unit, out);
    at + 6
}

fn unit_at(inner: &[u8], at: usize) -> Option<u32> {
    let digits = inner.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let mut unit = 0;
    for &digit in digits {
        unit = unit << 4 | char::from(digit).to_digit(16)?;
    }
    Some(unit)
}

/// Appends one code point, surrogates included, in the generalised UTF-8 of WTF-8.
fn push_code(code: u32, out: &mut Vec<u8>) {
    let low = |shift: u32| 0x80 | (code >> shift & 0x3f) as u8;
    match code {
        0..0x80 => out.push(code as u8),
        0x80..0x800 => out.extend([0xc0 | (code >> 6) as u8, low(0)]),
        0x800..0x10000 => out.extend([0xe0 | (code >> 12) as u8, low(6), low(0)]),
        _ => out.extend([0xf0 | (code >> 18) as u8, low(12), low(6), low(0)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escapes_are_resolved() {
        for (raw, expected) in [
            (r#""tools\u002fcall""#, &b"tools/call"[..]),
            (r#""tools\/call""#, b"tools/call"),
            (r#""\"\\\b\f\n\r\t""#, b"\"\\\x08\x0c\n\r\t"),
            (r#""\u00e9""#, "é".as_bytes()),
            (r#""\ud83d\ude00""#, "😀".as_bytes()),
            (r#""\uD83D\uDE00x""#, "😀x".as_bytes()),
            (r#""\u0000""#, b"\0"),
            (r#""\ud800""#, b"\xed\xa0\x80"),
            (r#""\udc00\ud800""#, b"\xed\xb0\x80\xed\xa0\x80"),
            (r#""\ud800\ud83d\ude00""#, b"\xed\xa0\x80\xf0\x9f\x98\x80"),
            (r#""\ud800\u0041""#, b"\xed\xa0\x80A"),
            (r#""\ufffd""#, "\u{fffd}".as_bytes()),
            ("\"plain\"", b"plain"),
            ("\"\"", b""),
        ] {
            assert_eq!(*string(raw.as_bytes()), *expected, "{raw}");
        }
    }

    #[test]
    fn a_damaged_string_does_not_panic() {
        for raw in [
            "\"\\",
            "\"\\u12",
            "\"\\q\"",
            "\"",
            "\"\\\"",
            "\"\\ud800\\u",
            "abc",
        ] {
            let _ = string(raw.as_bytes());
        }
    }

    #[test]
    fn text_is_utf_8_or_nothing() {
        assert_eq!(text(br#""a\u0062""#).as_deref(), Some("ab"));
        assert_eq!(text(br#""\ud800""#), None);
        assert_eq!(text(b"1"), None);
        assert_eq!(text(b"\"\xff\""), None);
    }

    #[test]
    fn control_characters_and_line_ends_are_escaped() {
        assert_eq!(
            quote("a\"\\\n\u{1}\u{85}\u{2028}é"),
            r#""a\"\\\n\u0001\u0085\u2028é""#
        );
    }

    proptest! {
        #[test]
        fn what_is_quoted_reads_back(original in any::<String>()) {
            let quoted = quote(&original);
            prop_assert!(crate::json::check(quoted.as_bytes()).is_ok());
            let read = text(quoted.as_bytes());
            prop_assert_eq!(read.as_deref(), Some(original.as_str()));
        }
    }
}
