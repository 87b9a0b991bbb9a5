//! An answer that came for an attempt which no longer owns its entry: kept as evidence, never
//! applied.
//!
//! It stands in the detail of a `stale_result` event: what the answer would have made of the
//! entry, its digest, its size, and its bytes, as a JSON string where they are text and in
//! hexadecimal where they are not. Bytes are left out where they are more than
//! [`ANSWER_BYTES_MAX`] or where the tool's policy keeps no results. `gc` empties them, and the
//! digest stays.
//!
//! Must not: read the journal, or say which answer is true.

use crate::journal::Event;
use crate::json;
use crate::rules::entry::{OutcomeDigest, Status, outcome_digest};

/// The kind of the event.
pub const KIND: &str = "stale_result";

/// The most bytes of a stale answer that are kept; of a larger one only digest and size are.
pub const ANSWER_BYTES_MAX: usize = 256 << 10;

/// The members of the detail that hold the bytes.
pub const MEMBERS: [&str; 2] = ["answer", "answer_hex"];

/// A stale answer as it was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// What it would have made of the entry.
    pub status: Option<Status>,
    /// The digest of its bytes, in hexadecimal.
    pub digest: String,
    /// The size that was recorded.
    pub size_bytes: u64,
    /// The bytes; `None` if they were never kept or are buried.
    pub answer: Option<Vec<u8>>,
}

/// Returns the detail of the event for an answer; `keeps`: the policy keeps results.
pub(super) fn detail(status: Status, answer: &[u8], keeps: bool) -> String {
    let mut detail = format!(
        "{{\"status\":\"{}\",\"digest\":\"{}\",\"bytes\":{}",
        status.name(),
        hex(&outcome_digest(answer)),
        answer.len()
    );
    if keeps && answer.len() <= ANSWER_BYTES_MAX {
        let [text, bytes] = MEMBERS;
        match std::str::from_utf8(answer) {
            Ok(answer) => detail.push_str(&format!(",\"{text}\":{}", json::quote(answer))),
            Err(_) => detail.push_str(&format!(",\"{bytes}\":\"{}\"", hex(answer))),
        }
    }
    detail.push('}');
    detail
}

impl Stale {
    /// Returns the stale answer that an event is about; `None` if it is about none.
    #[must_use]
    pub fn of(event: &Event) -> Option<Self> {
        if event.kind != KIND {
            return None;
        }
        Self::read(event.detail.as_deref()?)
    }

    fn read(detail: &str) -> Option<Self> {
        let detail = detail.as_bytes();
        let text = |name| json::member(detail, name).and_then(json::text);
        let [as_text, as_hex] = MEMBERS;
        Some(Self {
            status: text("status").and_then(|name| Status::from_name(&name)),
            digest: text("digest")?.into_owned(),
            size_bytes: std::str::from_utf8(json::member(detail, "bytes")?)
                .ok()?
                .parse()
                .ok()?,
            answer: match text(as_text) {
                Some(answer) => Some(answer.into_owned().into_bytes()),
                None => text(as_hex).and_then(|digits| unhex(&digits)),
            },
        })
    }

    /// Tells whether the bytes, where they are there, are those that were recorded.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.answer.as_ref().is_none_or(|answer| {
            answer.len() as u64 == self.size_bytes && hex(&outcome_digest(answer)) == self.digest
        })
    }
}

/// Returns by what equal stale ends of one task are told: never by the bytes, which `gc` must be
/// able to empty.
pub(super) fn merge_key(place: &str, digest: &OutcomeDigest) -> String {
    format!("{KIND}|{place}|{}", hex(digest))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs
        .iter()
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_back_as_the_same_bytes() {
        for answer in [
            &b"{\"a\":1.0,\"b\":\"\\ud800 \\u0000\"}"[..],
            b"",
            b"{\"nan\": NaN,\t\"x\":\"\xe2\x80\xa8\"}",
            b"{\"bad\":\"\xff\xfe\"}",
        ] {
            let detail = detail(Status::Failed, answer, true);
            json::check(detail.as_bytes()).unwrap();
            let stale = Stale::read(&detail).unwrap();
            assert_eq!(stale.answer.as_deref(), Some(answer));
            assert_eq!(stale.status, Some(Status::Failed));
            assert_eq!(stale.size_bytes, answer.len() as u64);
            assert!(stale.holds());
            let other = Stale {
                answer: Some(b"{}".to_vec()),
                ..stale
            };
            assert!(!other.holds());
        }
    }

    #[test]
    fn what_is_too_large_or_not_to_be_kept_leaves_its_digest() {
        let large = vec![b'x'; ANSWER_BYTES_MAX + 1];
        for (answer, keeps) in [(&large[..], true), (b"{}", false)] {
            let detail = detail(Status::Completed, answer, keeps);
            let stale = Stale::read(&detail).unwrap();
            assert_eq!((stale.answer.as_ref(), stale.holds()), (None, true));
            assert_eq!(stale.digest, hex(&outcome_digest(answer)));
            assert_eq!(stale.size_bytes, answer.len() as u64);
        }
        let most = &large[1..];
        let detail = detail(Status::Completed, most, true);
        assert_eq!(Stale::read(&detail).unwrap().answer.as_deref(), Some(most));
    }

    #[test]
    fn a_stale_loss_is_no_answer() {
        assert_eq!(Stale::read("{\"reason\":\"upstream_exited\"}"), None);
        assert_eq!(Stale::read("no json"), None);
    }
}
