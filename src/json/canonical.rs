//! One text for all spellings of a value.
//!
//! The format, version 1 (digests of it are stored, so it never changes):
//!
//! | value | text |
//! | --- | --- |
//! | `null`, `true`, `false` | `n`, `t`, `f` |
//! | number | `#`, the exact decimal of [`super::number_key`], `;` |
//! | string | `"`, its length in bytes of WTF-8 in decimal, `:`, those bytes |
//! | array | `[`, its elements, `]` |
//! | object | `{`, its members by the bytes of their names (a string, then the value), `}` |
//! | not JSON at all | `?`, its length in bytes in decimal, `:`, those bytes |
//!
//! Each text says where it ends, so no two values share one.

use std::borrow::Cow;

use super::members::{skip_scalar, skip_space, skip_string};
use super::number::{normalise, push_decimal};
use super::outline::{Entry, Outline, Place, Pointer};
use super::text::string;

/// Two members of one object have the same name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("two members are called {pointer}")]
pub struct Duplicate {
    /// JSON pointer to the member, at most [`super::POINTER_BYTES_MAX`] bytes.
    pub pointer: String,
}

/// Feeds the canonical text of `raw` to `sink`, piece by piece.
///
/// Equal values give equal texts: the order of members, white space, escapes and the spelling of
/// numbers don't count. Different values give different texts: numbers are compared exactly,
/// strings by code unit without normalisation, lone surrogates apart.
///
/// # Errors
///
/// Two members of one object, at any depth, have the same name. `sink` may have got a part by then.
pub fn canonical(raw: &[u8], sink: &mut dyn FnMut(&[u8])) -> Result<(), Duplicate> {
    let mut out = Writer {
        buffer: Vec::with_capacity(raw.len().min(BUFFER_BYTES)),
        sink,
    };
    if super::check(raw).is_err() {
        out.put_sized(b'?', raw);
        out.flush();
        return Ok(());
    }
    let outline = Outline::new(raw);
    let mut frames: Vec<Frame<'_>> = Vec::new();
    let mut place = outline.start();
    'value: loop {
        match outline.byte(place) {
            Some(b'{') => {
                let members = outline.members(place);
                if let Some(pair) = members.windows(2).find(|pair| pair[0].key == pair[1].key) {
                    return Err(Duplicate {
                        pointer: pointer(&frames, &pair[0].key),
                    });
                }
                out.put(b"{");
                frames.push(Frame::Object {
                    members,
                    visited: 0,
                    end: outline.skip(place),
                });
            }
            Some(b'[') => {
                out.put(b"[");
                frames.push(Frame::Array { visited: 0 });
                place = outline.enter(place);
            }
            _ => {
                let end = outline.skip(place);
                out.put_scalar(outline.slice(place, end));
                place = end;
            }
        }
        loop {
            match frames.last_mut() {
                None => {
                    out.flush();
                    return Ok(());
                }
                Some(Frame::Object {
                    members,
                    visited,
                    end,
                }) => {
                    if let Some(entry) = members.get(*visited) {
                        *visited += 1;
                        out.put_sized(b'"', &entry.key);
                        place = entry.value;
                        continue 'value;
                    }
                    out.put(b"}");
                    place = *end;
                }
                Some(Frame::Array { visited }) => {
                    if let Some(element) = outline.element(place) {
                        *visited += 1;
                        place = element;
                        continue 'value;
                    }
                    out.put(b"]");
                    place = outline.leave(place);
                }
            }
            frames.pop();
        }
    }
}

/// Returns the canonical text of `raw` in one piece, for small values.
///
/// # Errors
///
/// As [`canonical`].
pub fn canonical_text(raw: &[u8]) -> Result<Vec<u8>, Duplicate> {
    let mut text = Vec::with_capacity(raw.len() + 16);
    canonical(raw, &mut |piece| text.extend_from_slice(piece))?;
    Ok(text)
}

/// Returns the first object to end, at any depth of a checked text, in which two members have the
/// same name. One pass; no canonical text is made.
pub fn find_duplicate(raw: &[u8]) -> Option<Duplicate> {
    /// A container that is open: where its names begin in `keys` if it is an object.
    struct Level {
        first_key: Option<usize>,
        index: usize,
    }
    let mut keys: Vec<Cow<'_, [u8]>> = Vec::new();
    let mut levels: Vec<Level> = Vec::new();
    let mut at = 0;
    let mut is_key_next = false;
    while let Some(&byte) = raw.get(at) {
        match byte {
            b'"' => {
                let end = skip_string(raw, at);
                if is_key_next {
                    keys.push(string(&raw[at..end]));
                    is_key_next = false;
                }
                at = end;
                continue;
            }
            b'{' => {
                levels.push(Level {
                    first_key: Some(keys.len()),
                    index: 0,
                });
                is_key_next = true;
            }
            b'[' => {
                levels.push(Level {
                    first_key: None,
                    index: 0,
                });
                is_key_next = false;
            }
            b',' => {
                if let Some(level) = levels.last_mut() {
                    level.index += 1;
                    is_key_next = level.first_key.is_some();
                }
            }
            b'}' | b']' => {
                is_key_next = false;
                if let Some(Level {
                    first_key: Some(first),
                    ..
                }) = levels.pop()
                {
                    let (outer, names) = keys.split_at_mut(first);
                    names.sort_unstable();
                    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                        let mut pointer = Pointer::default();
                        // The names of an open object stand in order, and its last is the one
                        // whose value is open. Nothing above this object has been sorted.
                        let mut bounds = levels.iter().filter_map(|level| level.first_key).skip(1);
                        for level in &levels {
                            match level.first_key {
                                Some(_) => {
                                    let next = bounds.next().unwrap_or(first);
                                    let key = outer.get(next.wrapping_sub(1));
                                    pointer.push_key(key.map_or(b"", |key| key));
                                }
                                None => pointer.push_index(level.index),
                            }
                        }
                        pointer.push_key(&pair[0]);
                        return Some(Duplicate {
                            pointer: pointer.finish(),
                        });
                    }
                    keys.truncate(first);
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// A container that is being written.
enum Frame<'a> {
    Object {
        members: Vec<Entry<'a>>,
        visited: usize,
        end: Place,
    },
    Array {
        visited: usize,
    },
}

fn pointer(frames: &[Frame<'_>], last: &[u8]) -> String {
    let mut pointer = Pointer::default();
    for frame in frames {
        match frame {
            Frame::Object {
                members, visited, ..
            } => pointer.push_key(&members[visited - 1].key),
            Frame::Array { visited } => pointer.push_index(visited - 1),
        }
        if pointer.is_full() {
            break;
        }
    }
    pointer.push_key(last);
    pointer.finish()
}

/// How much is gathered before the sink is called, in bytes.
const BUFFER_BYTES: usize = 4096;

/// Gathers small pieces, as a digest is slow to take them one by one.
struct Writer<'s> {
    buffer: Vec<u8>,
    sink: &'s mut dyn FnMut(&[u8]),
}

impl Writer<'_> {
    fn put(&mut self, piece: &[u8]) {
        if self.buffer.len() + piece.len() > BUFFER_BYTES {
            self.flush();
            if piece.len() >= BUFFER_BYTES {
                (self.sink)(piece);
                return;
            }
        }
        self.buffer.extend_from_slice(piece);
    }

    fn put_sized(&mut self, tag: u8, bytes: &[u8]) {
        self.buffer.push(tag);
        push_decimal(bytes.len() as u64, &mut self.buffer);
        self.buffer.push(b':');
        self.put(bytes);
    }

    fn put_scalar(&mut self, raw: &[u8]) {
        match raw.first() {
            Some(b'"') => self.put_sized(b'"', &string(raw)),
            Some(b'-' | b'0'..=b'9') => {
                self.buffer.push(b'#');
                normalise(raw, &mut self.buffer);
                self.put(b";");
            }
            _ => self.put(&raw[..raw.len().min(1)]),
        }
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            (self.sink)(&self.buffer);
            self.buffer.clear();
        }
    }
}

/// Returns the canonical text of one scalar that stands at the start of `raw`.
pub(super) fn scalar_text(raw: &[u8]) -> Vec<u8> {
    let at = skip_space(raw, 0);
    let end = match raw.get(at) {
        Some(b'"') => skip_string(raw, at),
        _ => skip_scalar(raw, at),
    };
    let mut text = Vec::new();
    let mut sink = |piece: &[u8]| text.extend_from_slice(piece);
    let mut out = Writer {
        buffer: Vec::new(),
        sink: &mut sink,
    };
    out.put_scalar(&raw[at..end]);
    out.flush();
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::check;
    use proptest::prelude::*;

    fn text(raw: &str) -> String {
        let text = canonical_text(raw.as_bytes()).expect("no duplicates");
        String::from_utf8_lossy(&text).into_owned()
    }

    fn duplicate(raw: &str) -> String {
        let by_text = canonical_text(raw.as_bytes())
            .expect_err("a duplicate")
            .pointer;
        let by_search = find_duplicate(raw.as_bytes()).expect("a duplicate").pointer;
        assert_eq!(by_text, by_search);
        by_text
    }

    #[test]
    fn the_text_is_pinned() {
        for (raw, expected) in [
            ("null", "n"),
            (" true ", "t"),
            ("false", "f"),
            ("10e-1", "#1e0;"),
            ("-0", "#0;"),
            (r#""a\u0062""#, "\"2:ab"),
            ("[1,[],{}]", "[#1e0;[]{}]"),
            (
                r#"{"b":1,"a":{"y":[true],"x":null}}"#,
                "{\"1:a{\"1:xn\"1:y[t]}\"1:b#1e0;}",
            ),
            ("[", "?1:["),
        ] {
            assert_eq!(text(raw), expected, "{raw}");
        }
    }

    #[test]
    fn spelling_does_not_count() {
        for (left, right) in [
            (r#"{"a":1,"b":2}"#, r#" { "b" : 2.0 , "\u0061" : 10e-1 } "#),
            (r#"["\/","é"]"#, r#"["/","\u00e9"]"#),
            (r#""\ud83d\ude00""#, r#""😀""#),
            ("[-0.0]", "[0]"),
        ] {
            assert_eq!(text(left), text(right));
        }
    }

    #[test]
    fn different_values_differ() {
        let values = [
            "1",
            "\"1\"",
            "[1]",
            "{\"1\":1}",
            "null",
            "\"null\"",
            "true",
            "9007199254740993",
            "9007199254740992",
            "1e400",
            "1e-400",
            "0",
            "[]",
            "{}",
            "[[]]",
            "[[],[]]",
            "[[[]]]",
            "\"é\"",
            "\"e\u{301}\"",
            r#""\ud800""#,
            r#""\ud801""#,
            "\"\u{fffd}\"",
            r#"["a","b"]"#,
            r#"["a\",\"b"]"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":{},"b":1}"#,
            r#"{"a":null}"#,
            r#"["\ud800","\udc00"]"#,
            r#"["\ud800\udc00",""]"#,
            "12",
            "[1,2]",
            "[12]",
        ];
        for (place, left) in values.iter().enumerate() {
            assert_eq!(check(left.as_bytes()), Ok(()));
            for right in &values[place + 1..] {
                let texts = [left, right].map(|raw| canonical_text(raw.as_bytes()));
                assert_ne!(texts[0], texts[1], "{left} {right}");
            }
        }
    }

    #[test]
    fn equal_members_are_found_at_any_depth() {
        assert_eq!(duplicate(r#"{"a":1,"a":1}"#), "/a");
        assert_eq!(duplicate(r#"{"a":1,"\u0061":2}"#), "/a");
        assert_eq!(
            duplicate(r#"{"x":[0,{"y":{"k":1,"j":{},"k":2}}],"z":1}"#),
            "/x/1/y/k"
        );
        assert_eq!(duplicate(r#"[[],[{"a/b~":1,"a/b~":2}]]"#), "/1/0/a~1b~0");
        assert_eq!(
            duplicate(r#"{"q":{"a":1,"b":2},"x":{"a":[{"":1,"":1}]}}"#),
            "/x/a/0/"
        );
        for fine in [
            r#"{"a":{"a":{"a":1}}}"#,
            r#"[{"a":1},{"a":1}]"#,
            r#"["a","a"]"#,
            "{}",
        ] {
            assert_eq!(find_duplicate(fine.as_bytes()), None);
        }
    }

    #[test]
    fn deep_nesting_takes_linear_time() {
        let depth = 200_000;
        let deep = [
            r#"{"b":1,"a":"#.repeat(depth),
            "1".into(),
            "}".repeat(depth),
        ]
        .concat();
        assert!(text(&deep).starts_with("{\"1:a{\"1:a{"));
        let deep = [
            r#"[{"b":1,"a":"#.repeat(depth),
            "1".into(),
            "}]".repeat(depth),
        ]
        .concat();
        assert!(text(&deep).starts_with("[{\"1:a[{\"1:a"));
        let twice = deep.replacen('1', r#"{"c":1,"c":1}"#, depth + 1);
        let pointer = find_duplicate(twice.as_bytes())
            .expect("a duplicate")
            .pointer;
        assert!(pointer.len() <= crate::json::POINTER_BYTES_MAX);
    }

    /// Any value, written in one of its many spellings.
    fn spelled(value: &serde_json::Value, choice: &mut impl FnMut(usize) -> usize) -> String {
        let space = [" ", "", "\t", "", "\r"][choice(5)];
        let text = match value {
            serde_json::Value::String(text) => {
                let mut out = String::from("\"");
                for unit in text.chars() {
                    let mut units = [0; 2];
                    if choice(3) == 0 || (unit as u32) < 0x20 || unit == '"' || unit == '\\' {
                        for unit in unit.encode_utf16(&mut units) {
                            out.push_str(&format!("\\u{unit:04X}"));
                        }
                    } else {
                        out.push(unit);
                    }
                }
                out + "\""
            }
            serde_json::Value::Array(values) => {
                let inner: Vec<_> = values.iter().map(|value| spelled(value, choice)).collect();
                format!("[{}]", inner.join(","))
            }
            serde_json::Value::Object(members) => {
                let mut inner: Vec<_> = members
                    .iter()
                    .map(|(key, value)| {
                        let key = spelled(&serde_json::Value::String(key.clone()), choice);
                        format!("{key}:{}", spelled(value, choice))
                    })
                    .collect();
                for place in (1..inner.len()).rev() {
                    inner.swap(place, choice(place + 1));
                }
                format!("{{{}}}", inner.join(","))
            }
            serde_json::Value::Number(number) if number.is_i64() => match choice(3) {
                0 => format!("{number}.0"),
                1 => format!("{number}0E-1"),
                _ => number.to_string(),
            },
            other => other.to_string(),
        };
        format!("{space}{text}{space}")
    }

    fn values() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".{0,6}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                proptest::collection::btree_map("[a-c\"é😀]{0,2}", inner, 0..5)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn all_spellings_of_a_value_have_one_text(value in values(), seed: u64) {
            let mut state = seed | 1;
            let mut choice = |count: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % count as u64) as usize
            };
            let (left, right) = (spelled(&value, &mut choice), value.to_string());
            prop_assert_eq!(check(left.as_bytes()), Ok(()));
            prop_assert_eq!(text(&left), text(&right));
            prop_assert!(crate::json::diff(left.as_bytes(), right.as_bytes(), 5).is_empty());
        }

        #[test]
        fn two_values_share_a_text_only_if_equal(left in values(), right in values()) {
            let (one, two) = (left.to_string(), right.to_string());
            prop_assert_eq!(left == right, text(&one) == text(&two));
            let differs = !crate::json::diff(one.as_bytes(), two.as_bytes(), 5).is_empty();
            prop_assert_eq!(left != right, differs);
        }

        #[test]
        fn never_panics(raw in r#"[\[\]{}:,"0-9a\\ e.-]{0,40}"#) {
            let _ = canonical_text(raw.as_bytes());
            let _ = find_duplicate(raw.as_bytes());
        }

        #[test]
        fn both_searches_for_duplicates_agree(raw in r#"[\[{]("[ab]":|[\[{}\],]|1){0,30}"#) {
            if check(raw.as_bytes()).is_ok() {
                prop_assert_eq!(canonical_text(raw.as_bytes()).is_err(),
                    find_duplicate(raw.as_bytes()).is_some());
            }
        }
    }
}
