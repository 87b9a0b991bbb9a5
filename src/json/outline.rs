//! Where each container of a checked text ends, found in one pass.
//!
//! Members are visited in the order of their names, not in the order in which they stand, so a
//! walk must jump over values. Finding each end anew would make deep nesting quadratic.

use std::borrow::Cow;

use super::members::{skip_commas, skip_scalar, skip_space, skip_string};
use super::text::string;

/// Longest pointer that is reported, in bytes; what is deeper ends in `…`.
pub const POINTER_BYTES_MAX: usize = 1024;

/// A place in a text: an offset, and the number of containers that begin before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) at: usize,
    ordinal: usize,
}

/// A member of an object: its decoded name and the place of its value.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) key: Cow<'a, [u8]>,
    pub(super) value: Place,
}

/// A checked text and the ends of its containers.
pub(super) struct Outline<'a> {
    text: &'a [u8],
    /// For each container, in the order in which they begin, the place after it.
    ends: Vec<Place>,
}

impl<'a> Outline<'a> {
    /// Reads the outline of a text, which must be checked: other text may send a walk in circles.
    pub(super) fn new(text: &'a [u8]) -> Self {
        let mut ends = Vec::new();
        let mut open = Vec::new();
        let mut at = 0;
        while let Some(&byte) = text.get(at) {
            match byte {
                b'"' => {
                    at = skip_string(text, at);
                    continue;
                }
                b'{' | b'[' => {
                    open.push(ends.len());
                    ends.push(Place {
                        at: text.len(),
                        ordinal: usize::MAX,
                    });
                }
                b'}' | b']' => {
                    if let Some(ordinal) = open.pop() {
                        ends[ordinal] = Place {
                            at: at + 1,
                            ordinal: ends.len(),
                        };
                    }
                }
                _ => {}
            }
            at += 1;
        }
        Self { text, ends }
    }

    /// Returns the place of the whole value.
    pub(super) fn start(&self) -> Place {
        Place {
            at: skip_space(self.text, 0),
            ordinal: 0,
        }
    }

    /// Returns the byte at a place.
    pub(super) fn byte(&self, place: Place) -> Option<u8> {
        self.text.get(place.at).copied()
    }

    /// Returns the raw value between two places.
    pub(super) fn slice(&self, from: Place, to: Place) -> &'a [u8] {
        &self.text[from.at..to.at]
    }

    /// Returns the place after the value at `place`.
    pub(super) fn skip(&self, place: Place) -> Place {
        let at = match self.byte(place) {
            Some(b'{' | b'[') => return self.ends[place.ordinal],
            Some(b'"') => skip_string(self.text, place.at),
            _ => skip_scalar(self.text, place.at),
        };
        Place { at, ..place }
    }

    /// Returns the place inside the container that begins at `place`.
    pub(super) fn enter(&self, place: Place) -> Place {
        Place {
            at: place.at + 1,
            ordinal: place.ordinal + 1,
        }
    }

    /// Returns the place of the next element from inside an array, or nothing at its end.
    pub(super) fn element(&self, place: Place) -> Option<Place> {
        let place = Place {
            at: skip_commas(self.text, place.at),
            ..place
        };
        (!matches!(self.byte(place), Some(b']') | None)).then_some(place)
    }

    /// Returns the place after the array's end, which is the next thing at `place`.
    pub(super) fn leave(&self, place: Place) -> Place {
        Place {
            at: skip_commas(self.text, place.at) + 1,
            ..place
        }
    }

    /// Returns the members of the object at `place`, sorted by their names.
    pub(super) fn members(&self, place: Place) -> Vec<Entry<'a>> {
        let mut entries = Vec::new();
        let mut place = self.enter(place);
        loop {
            place.at = skip_commas(self.text, place.at);
            if self.byte(place) != Some(b'"') {
                break;
            }
            let end = skip_string(self.text, place.at);
            let key = string(&self.text[place.at..end]);
            let colon = skip_space(self.text, end);
            place.at = skip_space(self.text, colon + 1);
            entries.push(Entry { key, value: place });
            place = self.skip(place);
        }
        entries.sort_by(|left, right| left.key.cmp(&right.key));
        entries
    }
}

/// A JSON pointer that is built from the outside in, and stops growing at its limit.
///
/// Source: RFC 6901, section 3.
#[derive(Default)]
pub(super) struct Pointer {
    text: String,
    is_full: bool,
}

impl Pointer {
    pub(super) fn push_key(&mut self, key: &[u8]) {
        let room = POINTER_BYTES_MAX.saturating_sub(self.text.len());
        let key = &key[..key.len().min(room + 4)];
        self.push(
            &String::from_utf8_lossy(key)
                .replace('~', "~0")
                .replace('/', "~1"),
        );
    }

    pub(super) fn push_index(&mut self, index: usize) {
        self.push(&index.to_string());
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    fn push(&mut self, token: &str) {
        if self.is_full {
            return;
        }
        self.text.push('/');
        self.text.push_str(token);
        if self.text.len() > POINTER_BYTES_MAX {
            let mut end = POINTER_BYTES_MAX - '…'.len_utf8();
            while !self.text.is_char_boundary(end) {
                end -= 1;
            }
            self.text.truncate(end);
            self.text.push('…');
            self.is_full = true;
        }
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}
