//! The strict reading: is this text exactly one JSON value?

use super::members::skip_space;
use super::scan::skip_plain;

/// Why a text is not JSON, and where that shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{reason} at byte {at}")]
pub struct Invalid {
    /// Offset into the text, in bytes from 0.
    pub at: usize,
    /// What is wrong, as the middle of a sentence; never quotes the text.
    pub reason: &'static str,
}

/// Returns whether `text` is exactly one JSON value in UTF-8, with white space around it allowed.
///
/// Any depth, any size of number and lone surrogate escapes are legal. A byte order mark is not.
///
/// # Errors
///
/// The first thing that is wrong, and where.
///
/// Source: RFC 8259, sections 2 to 8.
pub fn check(text: &[u8]) -> Result<(), Invalid> {
    if let Err(error) = std::str::from_utf8(text) {
        return Err(invalid(error.valid_up_to(), "a byte that is not UTF-8"));
    }
    if text.starts_with(b"\xef\xbb\xbf") {
        return Err(invalid(0, "a byte order mark"));
    }
    let mut open = Nesting::default();
    let mut at = skip_space(text, 0);
    'value: loop {
        at = match text.get(at) {
            Some(b'{') => {
                let inner = skip_space(text, at + 1);
                if text.get(inner) == Some(&b'}') {
                    inner + 1
                } else {
                    open.push(true);
                    at = check_key(text, inner)?;
                    continue 'value;
                }
            }
            Some(b'[') => {
                let inner = skip_space(text, at + 1);
                if text.get(inner) == Some(&b']') {
                    inner + 1
                } else {
                    open.push(false);
                    at = inner;
                    continue 'value;
                }
            }
            Some(b'"') => check_string(text, at)?,
            Some(b'-' | b'0'..=b'9') => check_number(text, at)?,
            Some(b't') => check_word(text, at, b"true")?,
            Some(b'f') => check_word(text, at, b"false")?,
            Some(b'n') => check_word(text, at, b"null")?,
            Some(_) => return Err(invalid(at, "no value where one must stand")),
            None => return Err(invalid(at, "an end before the value's end")),
        };
        loop {
            at = skip_space(text, at);
            match (open.top(), text.get(at)) {
                (None, None) => return Ok(()),
                (None, Some(_)) => return Err(invalid(at, "more after the value's end")),
                (Some(true), Some(b',')) => {
                    at = check_key(text, skip_space(text, at + 1))?;
                    continue 'value;
                }
                (Some(false), Some(b',')) => {
                    at = skip_space(text, at + 1);
                    continue 'value;
                }
                (Some(true), Some(b'}')) | (Some(false), Some(b']')) => {
                    open.pop();
                    at += 1;
                }
                (Some(_), Some(_)) => return Err(invalid(at, "neither a comma nor an end")),
                (Some(_), None) => return Err(invalid(at, "an end before the value's end")),
            }
        }
    }
}

fn invalid(at: usize, reason: &'static str) -> Invalid {
    Invalid { at, reason }
}

/// Checks a member's name and colon; returns where its value begins.
fn check_key(text: &[u8], at: usize) -> Result<usize, Invalid> {
    if text.get(at) != Some(&b'"') {
        return Err(invalid(at, "no member name where one must stand"));
    }
    let colon = skip_space(text, check_string(text, at)?);
    if text.get(colon) != Some(&b':') {
        return Err(invalid(colon, "no colon after a member name"));
    }
    Ok(skip_space(text, colon + 1))
}

fn check_string(text: &[u8], at: usize) -> Result<usize, Invalid> {
    let mut at = at + 1;
    loop {
        at = skip_plain(text, at);
        match text.get(at) {
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => match text.get(at + 1) {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => at += 2,
                Some(b'u') => {
                    let digits = text.get(at + 2..at + 6);
                    if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                        return Err(invalid(at, "an escape without four digits"));
                    }
                    at += 6;
                }
                _ => return Err(invalid(at, "an unknown escape")),
            },
            Some(_) => return Err(invalid(at, "a control character in a string")),
            None => return Err(invalid(at, "an end inside a string")),
        }
    }
}

fn check_number(text: &[u8], at: usize) -> Result<usize, Invalid> {
    let mut end = at + usize::from(text[at] == b'-');
    end = match text.get(end) {
        Some(b'0') => end + 1,
        Some(b'1'..=b'9') => skip_digits(text, end),
        _ => return Err(invalid(end, "no digit where a number needs one")),
    };
    if text.get(end) == Some(&b'.') {
        end = some_digits(text, end + 1)?;
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        end += 1;
        if matches!(text.get(end), Some(b'+' | b'-')) {
            end += 1;
        }
        end = some_digits(text, end)?;
    }
    Ok(end)
}

fn some_digits(text: &[u8], at: usize) -> Result<usize, Invalid> {
    let end = skip_digits(text, at);
    if end == at {
        return Err(invalid(at, "no digit where a number needs one"));
    }
    Ok(end)
}

fn skip_digits(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    at
}

fn check_word(text: &[u8], at: usize, word: &[u8]) -> Result<usize, Invalid> {
    if text[at..].starts_with(word) {
        Ok(at + word.len())
    } else {
        Err(invalid(at, "an unknown word"))
    }
}

/// The containers that are open, one bit each: a line of nothing but brackets must stay small.
#[derive(Default)]
struct Nesting {
    bits: Vec<u64>,
    depth: usize,
}

impl Nesting {
    fn push(&mut self, is_object: bool) {
        let (word, bit) = (self.depth / 64, self.depth % 64);
        if word == self.bits.len() {
            self.bits.push(0);
        }
        self.bits[word] = self.bits[word] & !(1 << bit) | u64::from(is_object) << bit;
        self.depth += 1;
    }

    fn pop(&mut self) {
        self.depth -= 1;
    }

    fn top(&self) -> Option<bool> {
        let last = self.depth.checked_sub(1)?;
        Some(self.bits[last / 64] >> (last % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reason(text: &[u8]) -> &'static str {
        check(text).expect_err("the text is invalid").reason
    }

    #[test]
    fn legal_texts_pass_whatever_other_parsers_do() {
        for text in [
            r#"{"a":"\ud800"}"#,
            r#"["\udfff\ud800"]"#,
            "1e400",
            "-0",
            "12345678901234567890123",
            r#" {"a" : [ 1 , true , null ] } "#,
            "{}\r",
            "\"\u{2028}\u{2029}\u{85}\"",
            r#""\u0000""#,
            "0.0e-0",
            "\"\u{7f}\"",
        ] {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        }
    }

    #[test]
    fn depth_is_bounded_by_the_length_only() {
        for depth in [200, 300, 100_000, 1_000_000] {
            let text = ["[".repeat(depth), "]".repeat(depth)].concat();
            assert_eq!(check(text.as_bytes()), Ok(()));
            let text = [r#"{"a":"#.repeat(depth), "1".into(), "}".repeat(depth)].concat();
            assert_eq!(check(text.as_bytes()), Ok(()));
        }
        assert_eq!(
            reason("[".repeat(100_000).as_bytes()),
            "an end before the value's end"
        );
    }

    #[test]
    fn a_megabyte_of_digits_is_a_number() {
        assert_eq!(check("7".repeat(1 << 20).as_bytes()), Ok(()));
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for (text, expected) in [
            (&b""[..], "an end before the value's end"),
            (b"  ", "an end before the value's end"),
            (b"\xef\xbb\xbf{}", "a byte order mark"),
            (b"NaN", "no value where one must stand"),
            (b"[Infinity]", "no value where one must stand"),
            (b"{} {}", "more after the value's end"),
            (b"{}x", "more after the value's end"),
            (b"[1,]", "no value where one must stand"),
            (b"[,1]", "no value where one must stand"),
            (b"[1 2]", "neither a comma nor an end"),
            (b"{\"a\":1,}", "no member name where one must stand"),
            (b"{a:1}", "no member name where one must stand"),
            (b"{'a':1}", "no member name where one must stand"),
            (b"{\"a\" 1}", "no colon after a member name"),
            (b"{\"a\":1", "an end before the value's end"),
            (b"[1}", "neither a comma nor an end"),
            (b"{\"a\":1]", "neither a comma nor an end"),
            (b"\"a", "an end inside a string"),
            (b"\"a\\", "an unknown escape"),
            (b"\"\\x41\"", "an unknown escape"),
            (b"\"\\u12g4\"", "an escape without four digits"),
            (b"\"\\u12\"", "an escape without four digits"),
            (b"\"a\0\"", "a control character in a string"),
            (b"\"a\tb\"", "a control character in a string"),
            (b"01", "more after the value's end"),
            (b"+1", "no value where one must stand"),
            (b".5", "no value where one must stand"),
            (b"1.", "no digit where a number needs one"),
            (b"1e", "no digit where a number needs one"),
            (b"1e+", "no digit where a number needs one"),
            (b"-", "no digit where a number needs one"),
            (b"-a", "no digit where a number needs one"),
            (b"tru", "an unknown word"),
            (b"nul", "an unknown word"),
            (b"truex", "more after the value's end"),
            (b"\"\xff\"", "a byte that is not UTF-8"),
            (b"\"\xc0\xaf\"", "a byte that is not UTF-8"),
            (b"\"\xed\xa0\x80\"", "a byte that is not UTF-8"),
            (b"\x0b1", "no value where one must stand"),
            (b"// c\n1", "no value where one must stand"),
            (b"\xc2\xa01", "no value where one must stand"),
        ] {
            assert_eq!(
                reason(text),
                expected,
                "{:?}",
                String::from_utf8_lossy(text)
            );
        }
    }

    #[test]
    fn every_byte_in_every_place_of_a_word_is_seen() {
        for bad in [0x00, 0x09, 0x1f] {
            for place in 0..20 {
                let mut text = vec![b'x'; 22];
                (text[0], text[21]) = (b'"', b'"');
                text[place + 1] = bad;
                assert_eq!(check(&text).map_err(|error| error.at), Err(place + 1));
            }
        }
        for high in ["é", "\u{2028}", "\u{10ffff}", "\u{80}", "\u{a2}"] {
            let text = format!("\"{}\"", high.repeat(40));
            assert_eq!(check(text.as_bytes()), Ok(()));
        }
    }

    proptest! {
        #[test]
        fn agrees_with_serde_json(text in r#"[ \[\]{}:,"0-9eE.+\-\\utrfalsn]{0,24}"#) {
            let ours = check(text.as_bytes()).is_ok();
            // A `RawValue` is skipped, not decoded, so neither huge numbers nor lone surrogates
            // are a difference there.
            let theirs = serde_json::from_str::<Box<serde_json::value::RawValue>>(&text).is_ok();
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = check(&bytes);
        }
    }
}
