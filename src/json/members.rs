//! Walking containers without building them.
//!
//! The walk is tolerant: it follows quotes and brackets and nothing else, so it reads checked text
//! exactly and finds its way through a line that a strict parser would refuse.

use std::borrow::Cow;
use std::ops::Range;

use super::scan::find_quote_or_escape;
use super::text::string;

/// What a value is, told by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `{…}`
    Object,
    /// `[…]`
    Array,
    /// `"…"`
    String,
    /// A number of any size.
    Number,
    /// `true`
    True,
    /// `false`
    False,
    /// `null`
    Null,
    /// Nothing that JSON knows (`NaN`, an empty text); never so in checked text.
    Odd,
}

/// Returns what a raw value is; white space before it is passed over.
pub fn kind(raw: &[u8]) -> Kind {
    let raw = trim(raw);
    match raw.first() {
        Some(b'{') => Kind::Object,
        Some(b'[') => Kind::Array,
        Some(b'"') => Kind::String,
        Some(b'-' | b'0'..=b'9') => Kind::Number,
        Some(b't') if raw == b"true" => Kind::True,
        Some(b'f') if raw == b"false" => Kind::False,
        Some(b'n') if raw == b"null" => Kind::Null,
        _ => Kind::Odd,
    }
}

/// Returns whether a raw value is an object.
pub fn is_object(raw: &[u8]) -> bool {
    kind(raw) == Kind::Object
}

/// One member of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member<'a> {
    /// The name with its escapes resolved, in WTF-8.
    pub key: Cow<'a, [u8]>,
    /// The value's own bytes, without white space around them.
    pub value: &'a [u8],
    /// Where the value stands in the slice that was walked.
    pub range: Range<usize>,
}

/// The members of a raw object in the order in which they stand, equal names and all.
///
/// A slice that is no object has none.
#[derive(Debug, Clone)]
pub struct Members<'a> {
    text: &'a [u8],
    at: usize,
    is_closed: bool,
}

impl<'a> Members<'a> {
    /// Starts before the first member of `object`.
    pub fn new(object: &'a [u8]) -> Self {
        let at = skip_space(object, 0);
        let at = if object.get(at) == Some(&b'{') {
            at + 1
        } else {
            object.len()
        };
        Self {
            text: object,
            at,
            is_closed: false,
        }
    }

    /// Returns whether the walk has met the object's closing brace.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns where the walk stands: after the closing brace once [`Self::is_closed`].
    pub fn at(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        if self.is_closed {
            return None;
        }
        let (text, mut at) = (self.text, skip_commas(self.text, self.at));
        match text.get(at) {
            Some(b'"') => {}
            Some(b'}') => {
                (self.is_closed, self.at) = (true, at + 1);
                return None;
            }
            _ => {
                self.at = text.len();
                return None;
            }
        }
        let key_at = at;
        at = skip_string(text, at);
        let key = string(&text[key_at..at]);
        at = skip_space(text, at);
        if text.get(at) != Some(&b':') {
            self.at = text.len();
            return None;
        }
        let start = skip_space(text, at + 1);
        let end = skip_value(text, start);
        self.at = end;
        Some(Member {
            key,
            value: &text[start..end],
            range: start..end,
        })
    }
}

/// The elements of a raw array as raw values. A slice that is no array has none.
#[derive(Debug, Clone)]
pub struct Elements<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Elements<'a> {
    /// Starts before the first element of `array`.
    pub fn new(array: &'a [u8]) -> Self {
        let at = skip_space(array, 0);
        let at = if array.get(at) == Some(&b'[') {
            at + 1
        } else {
            array.len()
        };
        Self { text: array, at }
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let start = skip_commas(self.text, self.at);
        if start >= self.text.len() || self.text[start] == b']' {
            self.at = self.text.len();
            return None;
        }
        let end = skip_value(self.text, start);
        if end == start {
            self.at = self.text.len();
            return None;
        }
        self.at = end;
        Some(&self.text[start..end])
    }
}

/// Returns the value of the first member called `name`.
pub fn member<'a>(object: &'a [u8], name: &str) -> Option<&'a [u8]> {
    Members::new(object)
        .find(|member| *member.key == *name.as_bytes())
        .map(|member| member.value)
}

/// Returns the last member called `name`, which is the one that most parsers keep.
pub fn last_member<'a>(object: &'a [u8], name: &str) -> Option<Member<'a>> {
    Members::new(object)
        .filter(|member| *member.key == *name.as_bytes())
        .last()
}

/// Returns the members of a line that may be damaged, if it begins as an object at all.
///
/// A byte order mark and white space before it are passed over. The ranges count from the start of
/// the returned slice.
pub fn tolerant_members(line: &[u8]) -> Option<Members<'_>> {
    let body = super::splice::remove_byte_order_mark(line);
    let body = &body[skip_space(body, 0)..];
    body.starts_with(b"{").then(|| Members::new(body))
}

/// Returns `raw` without the white space around it.
pub fn trim(raw: &[u8]) -> &[u8] {
    let start = skip_space(raw, 0);
    let mut end = raw.len();
    while end > start && is_space(raw[end - 1]) {
        end -= 1;
    }
    &raw[start..end]
}

pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

pub(super) fn skip_space(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(|&byte| is_space(byte)) {
        at += 1;
    }
    at
}

pub(super) fn skip_commas(text: &[u8], mut at: usize) -> usize {
    while text
        .get(at)
        .is_some_and(|&byte| is_space(byte) || byte == b',')
    {
        at += 1;
    }
    at
}

/// Returns whether a raw value is there to its end: its last quote, or the bracket that closes it.
/// Of a number or a word nobody can tell.
pub fn is_whole(raw: &[u8]) -> bool {
    match raw.first() {
        None => false,
        Some(b'"') => string_end(raw, 0).is_some(),
        Some(b'{' | b'[') => container_end(raw, 0).is_some(),
        Some(_) => true,
    }
}

/// Returns the end of the string that begins at `at`: after its quote, or the end of the text.
pub(super) fn skip_string(text: &[u8], at: usize) -> usize {
    string_end(text, at).unwrap_or(text.len())
}

fn string_end(text: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        at = find_quote_or_escape(text, at)?;
        if text[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// Returns the end of a value that is neither a string nor a container.
pub(super) fn skip_scalar(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(|&byte| {
        !is_space(byte) && !matches!(byte, b',' | b'}' | b']' | b':' | b'"' | b'{' | b'[')
    }) {
        at += 1;
    }
    at
}

/// Returns the end of the value that begins at `at`, following quotes and brackets only.
pub(super) fn skip_value(text: &[u8], at: usize) -> usize {
    match text.get(at) {
        Some(b'"') => skip_string(text, at),
        Some(b'{' | b'[') => container_end(text, at).unwrap_or(text.len()),
        _ => skip_scalar(text, at),
    }
}

fn container_end(text: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => {
                at = skip_string(text, at);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cut_value_is_not_whole() {
        for whole in [
            "{}",
            "[[]]",
            r#""a\"b""#,
            r#"{"a":"}"}"#,
            "7",
            "tru",
            r#"["]"]"#,
        ] {
            assert!(is_whole(whole.as_bytes()), "{whole}");
        }
        for cut in ["", "{", "[[]", r#""a"#, r#""a\""#, r#"{"a":"}"#, r#"["]"#] {
            assert!(!is_whole(cut.as_bytes()), "{cut}");
        }
    }

    fn walk(text: &[u8]) -> Vec<(String, String)> {
        Members::new(text)
            .map(|member| {
                assert_eq!(&text[member.range.clone()], member.value);
                (
                    String::from_utf8_lossy(&member.key).into_owned(),
                    String::from_utf8_lossy(member.value).into_owned(),
                )
            })
            .collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect()
    }

    #[test]
    fn members_are_slices_of_the_line() {
        assert_eq!(
            walk(br#" { "a" : 1 ,"b":{"c":["}"]} , "\u0063":"x\"}", "d": -1.5e3}"#),
            pairs(&[
                ("a", "1"),
                ("b", r#"{"c":["}"]}"#),
                ("c", r#""x\"}""#),
                ("d", "-1.5e3")
            ])
        );
        assert_eq!(walk(b"{}"), []);
        assert_eq!(walk(b"[1]"), []);
        assert_eq!(walk(b"7"), []);
    }

    #[test]
    fn a_damaged_line_is_walked_as_far_as_it_goes() {
        assert_eq!(
            walk(b"{\"a\":NaN,\"b\":\"\xff\",\"b\":2,\"c\":{\"x\":"),
            pairs(&[
                ("a", "NaN"),
                ("b", "\"\u{fffd}\""),
                ("b", "2"),
                ("c", "{\"x\":")
            ])
        );
        let mut members = Members::new(br#"{"a":1"#);
        assert_eq!(members.by_ref().count(), 1);
        assert!(!members.is_closed());
        let mut members = Members::new(br#"{"a":1} tail"#);
        assert_eq!(members.by_ref().count(), 1);
        assert!(members.is_closed());
        assert_eq!(members.at(), 7);
        assert_eq!(walk(b"{\"a\""), []);
        assert_eq!(walk(b"{\"a\":"), pairs(&[("a", "")]));
        assert_eq!(walk(b"{\"a\\"), []);
    }

    #[test]
    fn a_byte_order_mark_is_passed_over_by_the_tolerant_walk() {
        let line = b"\xef\xbb\xbf \t{\"id\":1}";
        assert_eq!(tolerant_members(line).expect("an object").count(), 1);
        assert!(tolerant_members(b"[1]").is_none());
        assert!(tolerant_members(b"hello {").is_none());
    }

    #[test]
    fn the_last_of_equal_members_is_found() {
        let object = br#"{"a":1,"a":2}"#;
        assert_eq!(member(object, "a"), Some(&b"1"[..]));
        assert_eq!(last_member(object, "a").expect("a member").value, b"2");
        assert_eq!(member(object, "b"), None);
    }

    #[test]
    fn elements_of_arrays() {
        let found: Vec<_> = Elements::new(br#" [1, "a,b" ,{"x":[2]},[]] "#).collect();
        assert_eq!(found, [&b"1"[..], br#""a,b""#, br#"{"x":[2]}"#, b"[]"]);
        assert_eq!(Elements::new(b"[]").count(), 0);
        assert_eq!(Elements::new(b"{}").count(), 0);
    }

    #[test]
    fn kinds() {
        for (raw, expected) in [
            ("{}", Kind::Object),
            ("[]", Kind::Array),
            ("\"\"", Kind::String),
            ("-1", Kind::Number),
            ("true", Kind::True),
            ("false", Kind::False),
            (" null ", Kind::Null),
            ("NaN", Kind::Odd),
            ("nulls", Kind::Odd),
            ("", Kind::Odd),
        ] {
            assert_eq!(kind(raw.as_bytes()), expected, "{raw}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_always_ends(text in r#"\{?[\[\]{}:,"0-9a\\ ]{0,40}"#) {
            let count = Members::new(text.as_bytes()).count();
            prop_assert!(count <= text.len());
            prop_assert!(Elements::new(text.as_bytes()).count() <= text.len());
        }
    }
}
