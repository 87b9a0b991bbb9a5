//! Where two values differ.

use super::canonical::scalar_text;
use super::outline::{Entry, Outline, Place, Pointer};

/// Returns the JSON pointers of at most `max` places where two values differ, as
/// [`super::canonical`] takes them to differ.
///
/// A member or element that only one side has is named itself; the empty pointer is the whole
/// value. Text that is not JSON differs as a whole from any other bytes.
///
/// Source: RFC 6901.
pub fn diff(left: &[u8], right: &[u8], max: usize) -> Vec<String> {
    if super::check(left).is_err() || super::check(right).is_err() {
        return if left == right {
            Vec::new()
        } else {
            vec![String::new()]
        };
    }
    let sides = [Outline::new(left), Outline::new(right)];
    let mut places = [sides[0].start(), sides[1].start()];
    let mut frames: Vec<Frame<'_>> = Vec::new();
    let mut found = Vec::new();
    'value: loop {
        let bytes = [sides[0].byte(places[0]), sides[1].byte(places[1])];
        let ends = [sides[0].skip(places[0]), sides[1].skip(places[1])];
        match bytes {
            [Some(b'{'), Some(b'{')] => {
                let members = [sides[0].members(places[0]), sides[1].members(places[1])];
                frames.push(Frame {
                    ends,
                    step: Step::Members {
                        members,
                        next: [0, 0],
                    },
                });
            }
            [Some(b'['), Some(b'[')] => {
                frames.push(Frame {
                    ends,
                    step: Step::Elements { index: 0 },
                });
                places = [sides[0].enter(places[0]), sides[1].enter(places[1])];
            }
            [left, right] => {
                let is_container = |byte| matches!(byte, Some(b'{' | b'['));
                let raw = [0, 1].map(|side| sides[side].slice(places[side], ends[side]));
                if is_container(left)
                    || is_container(right)
                    || (raw[0] != raw[1] && scalar_text(raw[0]) != scalar_text(raw[1]))
                {
                    found.push(pointer(&frames, None));
                }
                places = ends;
            }
        }
        loop {
            if found.len() >= max {
                found.truncate(max);
                return found;
            }
            let Some(frame) = frames.last_mut() else {
                return found;
            };
            let name = match &mut frame.step {
                Step::Members { members, next } => {
                    let order = match [members[0].get(next[0]), members[1].get(next[1])] {
                        [None, None] => None,
                        [Some(_), None] => Some(std::cmp::Ordering::Less),
                        [None, Some(_)] => Some(std::cmp::Ordering::Greater),
                        [Some(left), Some(right)] => Some(left.key.cmp(&right.key)),
                    };
                    match order {
                        None => None,
                        Some(std::cmp::Ordering::Equal) => {
                            places = [members[0][next[0]].value, members[1][next[1]].value];
                            *next = [next[0] + 1, next[1] + 1];
                            continue 'value;
                        }
                        Some(order) => {
                            let side = usize::from(order == std::cmp::Ordering::Greater);
                            next[side] += 1;
                            Some(Name::Key(members[side][next[side] - 1].key.to_vec()))
                        }
                    }
                }
                Step::Elements { index } => {
                    let elements = [sides[0].element(places[0]), sides[1].element(places[1])];
                    *index += 1;
                    match elements {
                        [None, None] => None,
                        [Some(left), Some(right)] => {
                            places = [left, right];
                            continue 'value;
                        }
                        [Some(left), None] => {
                            places[0] = sides[0].skip(left);
                            Some(Name::Index(*index - 1))
                        }
                        [None, Some(right)] => {
                            places[1] = sides[1].skip(right);
                            Some(Name::Index(*index - 1))
                        }
                    }
                }
            };
            match name {
                Some(name) => found.push(pointer(&frames, Some(&name))),
                None => {
                    places = frame.ends;
                    frames.pop();
                }
            }
        }
    }
}

/// Two containers that are being compared, and the places after them.
struct Frame<'a> {
    ends: [Place; 2],
    step: Step<'a>,
}

enum Step<'a> {
    Members {
        members: [Vec<Entry<'a>>; 2],
        next: [usize; 2],
    },
    Elements {
        index: usize,
    },
}

/// The last token of a pointer to something that one side lacks.
enum Name {
    Key(Vec<u8>),
    Index(usize),
}

/// Returns the pointer to what is being compared, or to `name` in the innermost container.
fn pointer(frames: &[Frame<'_>], name: Option<&Name>) -> String {
    let mut pointer = Pointer::default();
    let outer = frames.len() - usize::from(name.is_some());
    for frame in &frames[..outer] {
        match &frame.step {
            Step::Members { members, next } => pointer.push_key(&members[0][next[0] - 1].key),
            Step::Elements { index } => pointer.push_index(index - 1),
        }
        if pointer.is_full() {
            break;
        }
    }
    match name {
        Some(Name::Key(key)) => pointer.push_key(key),
        Some(Name::Index(index)) => pointer.push_index(*index),
        None => {}
    }
    pointer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_is_named_once() {
        for (left, right, expected) in [
            ("{}", "{}", &[][..]),
            ("1", "1.0", &[]),
            ("1", "2", &[""]),
            ("1", "\"1\"", &[""]),
            ("{}", "[]", &[""]),
            ("{}", "null", &[""]),
            (r#"{"amount":100}"#, r#"{"amount":101}"#, &["/amount"]),
            (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1.0}"#, &[]),
            (r#"{"a":1,"b":2}"#, r#"{"b":3,"c":1}"#, &["/a", "/b", "/c"]),
            (r#"{"a":[1,2,3]}"#, r#"{"a":[1,9]}"#, &["/a/1", "/a/2"]),
            ("[1]", "[1,2,[3]]", &["/1", "/2"]),
            (
                r#"{"x":{"y":[{"z":1},{"z":2}]},"w":0}"#,
                r#"{"w":0,"x":{"y":[{"z":1},{"z":3}]}}"#,
                &["/x/y/1/z"],
            ),
            (r#"{"a/b":{"~":1}}"#, r#"{"a/b":{"~":2}}"#, &["/a~1b/~0"]),
            (r#"["\ud800"]"#, r#"["\ud801"]"#, &["/0"]),
            (
                r#"{"a":{"b":1},"c":2}"#,
                r#"{"a":[1],"c":3}"#,
                &["/a", "/c"],
            ),
            ("9007199254740993", "9007199254740992", &[""]),
        ] {
            assert_eq!(
                diff(left.as_bytes(), right.as_bytes(), 100),
                expected,
                "{left} {right}"
            );
        }
    }

    #[test]
    fn it_stops_at_the_limit() {
        assert_eq!(diff(b"[1,2,3]", b"[]", 2), ["/0", "/1"]);
        assert!(diff(b"[1]", b"[2]", 0).is_empty());
    }

    #[test]
    fn deep_values_take_linear_time_and_short_pointers() {
        let deep = |end: &str| {
            let depth = 200_000;
            [
                r#"{"b":1,"a":"#.repeat(depth),
                end.into(),
                "}".repeat(depth),
            ]
            .concat()
        };
        let found = diff(deep("1").as_bytes(), deep("2").as_bytes(), 100);
        assert_eq!(found.len(), 1);
        assert!(found[0].len() <= super::super::POINTER_BYTES_MAX && found[0].ends_with('…'));
    }

    #[test]
    fn what_is_not_json_differs_as_a_whole() {
        assert_eq!(diff(b"NaN", b"1", 9), [""]);
        assert!(diff(b"NaN", b"NaN", 9).is_empty());
    }
}
