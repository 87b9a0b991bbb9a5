//! Changing one value in a text without touching another byte.

use std::ops::Range;

use super::members::{Kind, Members, kind, skip_space};

/// Returns `line` without a byte order mark at its start.
pub fn remove_byte_order_mark(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
}

/// Returns `line` with the value at `path` set, and no other byte changed.
///
/// Objects that are missing on the way (or `null`) are made; a new member becomes the last one. Of
/// equal members the last is meant. `value` must be JSON.
///
/// Returns nothing if the line is no object, or something on the way is no object.
pub fn set(line: &[u8], path: &[&str], value: &[u8]) -> Option<Vec<u8>> {
    let mut object = whole(line)?;
    for (depth, name) in path.iter().enumerate() {
        let rest = &path[depth + 1..];
        match look(&line[object.clone()], name)? {
            Found::Value(range) => {
                let range = range.start + object.start..range.end + object.start;
                match kind(&line[range.clone()]) {
                    _ if rest.is_empty() => return Some(put(line, range, value)),
                    Kind::Null => return Some(put(line, range, &nest(rest, value))),
                    Kind::Object => object = range,
                    _ => return None,
                }
            }
            Found::Nothing { at, is_first } => {
                let at = at + object.start;
                let mut text = if is_first { Vec::new() } else { vec![b','] };
                text.extend(super::quote(name).bytes());
                text.push(b':');
                text.extend(nest(rest, value));
                return Some(put(line, at..at, &text));
            }
        }
    }
    None
}

/// Returns `line` with the value at `path` replaced if there is one, and nothing otherwise.
pub fn replace(line: &[u8], path: &[&str], value: &[u8]) -> Option<Vec<u8>> {
    let mut range = whole(line)?;
    for name in path {
        match look(&line[range.clone()], name)? {
            Found::Value(inner) => range = inner.start + range.start..inner.end + range.start,
            Found::Nothing { .. } => return None,
        }
    }
    Some(put(line, range, value))
}

enum Found {
    Value(Range<usize>),
    /// Where a member can be added, and whether it will be the first.
    Nothing {
        at: usize,
        is_first: bool,
    },
}

/// Looks for a member; nothing if this is no whole object.
fn look(object: &[u8], name: &str) -> Option<Found> {
    let start = skip_space(object, 0);
    let mut members = Members::new(object);
    let (mut found, mut last_end) = (None, None);
    for member in members.by_ref() {
        last_end = Some(member.range.end);
        if *member.key == *name.as_bytes() {
            found = Some(member.range);
        }
    }
    if !members.is_closed() {
        return None;
    }
    Some(match found {
        Some(range) => Found::Value(range),
        None => Found::Nothing {
            at: last_end.unwrap_or(start + 1),
            is_first: last_end.is_none(),
        },
    })
}

fn whole(line: &[u8]) -> Option<Range<usize>> {
    let mark = line.len() - remove_byte_order_mark(line).len();
    let start = skip_space(line, mark);
    (line.get(start) == Some(&b'{')).then_some(start..line.len())
}

fn put(line: &[u8], range: Range<usize>, value: &[u8]) -> Vec<u8> {
    [&line[..range.start], value, &line[range.end..]].concat()
}

/// Wraps `value` in an object for each name of `path`, the outermost first.
fn nest(path: &[&str], value: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for name in path {
        text.push(b'{');
        text.extend(super::quote(name).bytes());
        text.push(b':');
    }
    text.extend_from_slice(value);
    text.extend(std::iter::repeat_n(b'}', path.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_text(line: &str, path: &[&str]) -> Option<String> {
        set(line.as_bytes(), path, b"7").map(|line| String::from_utf8(line).expect("UTF-8"))
    }

    #[test]
    fn only_the_value_changes() {
        let path = &["r", "_meta", "c"][..];
        for (line, expected) in [
            (
                " { \"id\":1 , \"r\" : { } }\r\n",
                " { \"id\":1 , \"r\" : {\"_meta\":{\"c\":7} } }\r\n",
            ),
            (
                r#"{"r":{"x":[1] },"id":2}"#,
                r#"{"r":{"x":[1],"_meta":{"c":7} },"id":2}"#,
            ),
            (
                r#"{"r":{"_meta":{"a":1}}}"#,
                r#"{"r":{"_meta":{"a":1,"c":7}}}"#,
            ),
            (
                r#"{"r":{"_meta":{"c": {"old":1} ,"a":1}}}"#,
                r#"{"r":{"_meta":{"c": 7 ,"a":1}}}"#,
            ),
            (r#"{"r":{"_meta":null}}"#, r#"{"r":{"_meta":{"c":7}}}"#),
            (
                r#"{"r":{"\u005fmeta":{}}}"#,
                r#"{"r":{"\u005fmeta":{"c":7}}}"#,
            ),
            (
                "{\"r\":{\"t\":\"\u{2028}\\ud800\"}}",
                "{\"r\":{\"t\":\"\u{2028}\\ud800\",\"_meta\":{\"c\":7}}}",
            ),
            ("{}", r#"{"r":{"_meta":{"c":7}}}"#),
        ] {
            assert_eq!(set_text(line, path).as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn what_is_no_object_stays() {
        for line in [
            "[]",
            r#"{"r":[]}"#,
            r#"{"r":{"_meta":1}}"#,
            r#"{"r":{"_meta":"#,
            "",
            "x",
        ] {
            assert_eq!(set_text(line, &["r", "_meta", "c"]), None, "{line}");
        }
    }

    #[test]
    fn replacing_makes_nothing() {
        assert_eq!(
            replace(br#"{"a":{"b":1}}"#, &["a", "b"], b"2"),
            Some(br#"{"a":{"b":2}}"#.to_vec())
        );
        assert_eq!(replace(br#"{"a":{}}"#, &["a", "b"], b"2"), None);
        assert_eq!(replace(br#"{"a":1}"#, &["a", "b"], b"2"), None);
    }
}
