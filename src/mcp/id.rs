//! JSON-RPC ids: kept by their bytes, compared by their value.
//!
//! An id goes back exactly as it came, since clients and the notices between them quote it; but an
//! upstream may spell it otherwise, so answers are matched by what it means.

use std::fmt;

use smallvec::SmallVec;

use crate::json::{self, Kind};

/// An id as it was sent: a JSON string or number, never changed.
///
/// Source: MCP 2025-11-25, base protocol, requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawId<'a>(&'a [u8]);

impl<'a> RawId<'a> {
    /// Takes a raw value for an id, if it is a JSON string or number.
    pub fn new(raw: &'a [u8]) -> Option<Self> {
        let raw = json::trim(raw);
        let is_id = matches!(json::kind(raw), Kind::String | Kind::Number);
        (is_id && json::check(raw).is_ok()).then_some(Self(raw))
    }

    /// Returns the bytes that came.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns what this id equals: `"a"` and `"\u0061"` are one, `1`, `1.0` and `1e0` are one,
    /// `"1"` and `1` are two.
    pub fn key(self) -> IdKey {
        match json::kind(self.0) {
            Kind::String => IdKey {
                is_string: true,
                text: SmallVec::from_slice(&json::string(self.0)),
            },
            _ => IdKey {
                is_string: false,
                text: SmallVec::from_slice(&json::number_key(self.0)),
            },
        }
    }
}

impl RawId<'_> {
    /// Returns a key for this very spelling, equal to no [`RawId::key`]: for two ids in flight
    /// that are one number in two spellings.
    pub fn spelling(self) -> IdKey {
        let mut text = SmallVec::with_capacity(self.0.len() + 1);
        text.push(b'=');
        text.extend_from_slice(self.0);
        IdKey {
            is_string: json::kind(self.0) == Kind::String,
            text,
        }
    }
}

impl RawId<'_> {
    /// Returns whether this is a string that begins with `start`, however it is spelled.
    pub fn starts_with(self, start: &str) -> bool {
        json::kind(self.0) == Kind::String && json::string(self.0).starts_with(start.as_bytes())
    }
}

impl fmt::Debug for RawId<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RawId({})", String::from_utf8_lossy(self.0))
    }
}

/// The identity of an id: equal for equal ids, however they are spelled.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdKey {
    is_string: bool,
    /// In place if it is short, as most are: keys are kept, compared and dropped for each call.
    text: SmallVec<[u8; 24]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_string_begins_with_something() {
        let starts = |raw: &'static str| RawId::new(raw.as_bytes()).unwrap().starts_with("1a");
        assert!(starts(r#""1ab""#) && starts(r#""\u0031a""#));
        assert!(!starts(r#""ab""#) && !starts("1"));
        let one = RawId::new(b"1").unwrap();
        assert!(!one.starts_with("") && !one.starts_with("1"));
        assert_eq!(format!("{one:?}"), "RawId(1)");
    }

    #[test]
    fn ids_are_equal_by_value_and_kept_by_bytes() {
        let id = |raw: &'static str| RawId::new(raw.as_bytes()).expect("an id");
        for (left, right) in [
            (r#""a""#, r#""\u0061""#),
            ("1", "1.0"),
            ("1", "1e0"),
            ("0", "-0"),
            (r#""\ud83d\ude00""#, "\"😀\""),
        ] {
            assert_eq!(id(left).key(), id(right).key());
            assert_eq!(id(left).as_bytes(), left.as_bytes());
        }
        for (left, right) in [
            ("1", r#""1""#),
            (r#""1e0""#, "1"),
            ("9007199254740993", "9007199254740992"),
            ("18446744073709551616", "18446744073709551617"),
            (r#""a""#, r#""A""#),
            (r#""\ud800""#, r#""\ud801""#),
        ] {
            assert_ne!(id(left).key(), id(right).key());
        }
        // A spelling is no other id, nor another id's spelling.
        assert_eq!(id("1").spelling(), id("1").spelling());
        for (left, right) in [
            (id("1").spelling(), id("1").key()),
            (id("1").spelling(), id("1.0").spelling()),
            (id("1").spelling(), id("\"=1\"").key()),
            (id("\"a\"").spelling(), id("\"=\\\"a\\\"\"").spelling()),
        ] {
            assert_ne!(left, right);
        }
        for raw in ["null", "true", "[]", "{}", "NaN", "01", "\"a", "", "1 2"] {
            assert!(RawId::new(raw.as_bytes()).is_none(), "{raw}");
        }
    }
}
