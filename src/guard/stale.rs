//! An answer that came for an attempt which no longer owns its entry: kept as evidence, never
//! applied.
//!
//! It stands in the detail of a `stale_result` event: what the answer would have made of the
//! entry, its digest, its size, and its bytes, as a JSON string where they are text and in
//! hexadecimal where they are not. Bytes are left out where they are more than
//! [`ANSWER_BYTES_MAX`] or where the tool's policy keeps no results. `gc` empties them, and the
//! digest stays.
//!
//! It counts only where an operator adopts it ([`choose`] says which can be), and then by a verdict.
//!
//! Must not: read the journal, or say which answer is true.

use crate::journal::Event;
use crate::json;
use crate::rules::entry::{OutcomeDigest, Status, outcome_digest};
use crate::rules::ids::Fence;

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

/// Which stale answer is to be an entry's outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// COMPLETED for a tool's result, FAILED for an error.
    pub status: Status,
    /// What its digest begins with, in lower-case hexadecimal; empty where there is only one.
    pub digest: String,
}

/// A stale answer of an entry, and what it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The fence that it answered.
    pub fence: Fence,
    /// It answered the call that the entry stands for now, and not one that had its place before.
    pub is_same_call: bool,
    /// The answer.
    pub stale: Stale,
}

/// Why no stale answer can be the outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdopted {
    /// None is kept.
    #[error("no stale answer is kept of it: `show` would list one")]
    None,
    /// None of those that are kept is meant.
    #[error("no stale answer of it has a SHA-256 that begins with {digest}; `show` lists them")]
    NotThere {
        /// What was given.
        digest: String,
    },
    /// Nobody can tell which is meant.
    #[error("{} stale answers are kept of it; say which by the start of its SHA-256, as \
             =SHA256: {}", .digests.len(), .digests.join(" or "))]
    Several {
        /// The start of each digest.
        digests: Vec<String>,
    },
    /// It is no outcome of that sort.
    #[error("its stale answer {digest} {}", .what.words())]
    Unlike {
        /// The start of its digest.
        digest: String,
        /// What it is.
        what: Sort,
    },
    /// It answered something else.
    #[error(
        "its stale answer {digest} was given to another call, which had this place before: its \
         arguments were others"
    )]
    OtherCall {
        /// The start of its digest.
        digest: String,
    },
    /// Only what it was told by is left.
    #[error("of its stale answer {digest} ({size_bytes} bytes) only the digest is left: {why}")]
    Gone {
        /// The start of its digest.
        digest: String,
        /// The size as it came.
        size_bytes: u64,
        /// Where the bytes are.
        why: &'static str,
    },
    /// Its bytes are not those that came.
    #[error("the bytes of its stale answer {digest} are not those that came: see `verify`")]
    Damaged {
        /// The start of its digest.
        digest: String,
    },
}

/// What a stale answer is that was taken for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A tool's result.
    Result,
    /// A JSON-RPC error.
    Error,
    /// A question.
    Question,
    /// A task's handle.
    Task,
    /// Nothing that is known.
    Unknown,
}

impl Sort {
    fn of(status: Option<Status>) -> Self {
        match status {
            Some(Status::Completed) => Self::Result,
            Some(Status::Failed) => Self::Error,
            Some(Status::InputRequired) => Self::Question,
            Some(Status::Accepted) => Self::Task,
            Some(Status::Pending | Status::Voided | Status::Denied) | None => Self::Unknown,
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Result => "is a result: adopt it with --completed --result-stale",
            Self::Error => "is an error: adopt it with --failed --error-stale",
            Self::Question => "is a question, which is no outcome",
            Self::Task => "is a task's handle, which is no outcome",
            Self::Unknown => "is nothing that this version knows",
        }
    }
}

/// How much of a digest is shown: enough to tell those of one entry apart.
pub const DIGEST_SHOWN: usize = 12;

/// Chooses the stale answer that is to be the outcome. Equal ones are one, whatever they answered.
///
/// # Errors
///
/// None can be, or nobody can tell which is meant.
pub fn choose(kept: &[Kept], wanted: &Wanted) -> Result<Kept, NotAdopted> {
    let start = |one: &Kept| one.stale.digest.chars().take(DIGEST_SHOWN).collect();
    let named = || {
        kept.iter()
            .filter(|one| one.stale.digest.starts_with(&wanted.digest))
    };
    let Some(first) = named().next() else {
        return Err(match &*wanted.digest {
            _ if kept.is_empty() => NotAdopted::None,
            "" => NotAdopted::None,
            digest => NotAdopted::NotThere {
                digest: digest.to_owned(),
            },
        });
    };
    let mut fitting: Vec<&Kept> = named()
        .filter(|one| one.stale.status == Some(wanted.status) && one.is_same_call)
        .collect();
    // Of equal ones the one whose bytes are there.
    fitting.sort_by_key(|one| (&one.stale.digest, one.stale.answer.is_none()));
    fitting.dedup_by_key(|one| &one.stale.digest);
    let one = match &fitting[..] {
        [one] => *one,
        [] if first.stale.status == Some(wanted.status) => {
            return Err(NotAdopted::OtherCall {
                digest: start(first),
            });
        }
        [] => {
            return Err(NotAdopted::Unlike {
                digest: start(first),
                what: Sort::of(first.stale.status),
            });
        }
        several => {
            return Err(NotAdopted::Several {
                digests: several.iter().map(|one| start(one)).collect(),
            });
        }
    };
    if one.stale.answer.is_none() {
        return Err(NotAdopted::Gone {
            digest: start(one),
            size_bytes: one.stale.size_bytes,
            why: if one.stale.size_bytes > ANSWER_BYTES_MAX as u64 {
                "it was over 256 KiB, of which no bytes are kept"
            } else {
                "`gc` has dropped its bytes, or its policy keeps no results"
            },
        });
    }
    if !one.stale.holds() {
        return Err(NotAdopted::Damaged { digest: start(one) });
    }
    Ok(one.clone())
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

    fn kept(status: Status, answer: &str) -> Kept {
        Kept {
            fence: Fence(1),
            is_same_call: true,
            stale: Stale::read(&detail(status, answer.as_bytes(), true)).unwrap(),
        }
    }

    fn wanted(status: Status, digest: &str) -> Wanted {
        Wanted {
            status,
            digest: digest.to_owned(),
        }
    }

    #[test]
    fn the_one_that_fits_is_chosen_by_itself_and_of_several_the_one_that_is_named() {
        let [a, b] = ["{\"a\":1}", "{\"b\":1}"].map(|body| kept(Status::Completed, body));
        let error = kept(Status::Failed, "{\"code\":1}");
        let all = [a.clone(), error.clone(), b.clone()];
        let result = wanted(Status::Completed, "");
        assert_eq!(choose(&all[..2], &result), Ok(a.clone()));
        assert_eq!(choose(&all, &wanted(Status::Failed, "")), Ok(error));
        let several = choose(&all, &result).unwrap_err();
        for one in [&a, &b] {
            assert!(
                several
                    .to_string()
                    .contains(&one.stale.digest[..DIGEST_SHOWN])
            );
            for digits in [4, 12, 64] {
                let named = wanted(Status::Completed, &one.stale.digest[..digits]);
                assert_eq!(choose(&all, &named).as_ref(), Ok(one));
            }
        }
        // The same bytes, which came twice and were dropped once, are one answer.
        let gone = Kept {
            fence: Fence(2),
            stale: Stale {
                answer: None,
                ..a.stale.clone()
            },
            ..a.clone()
        };
        for pair in [[a.clone(), gone.clone()], [gone, a.clone()]] {
            assert_eq!(choose(&pair, &result), Ok(a.clone()));
        }
    }

    #[test]
    fn what_can_not_be_the_outcome_says_why() {
        let result = kept(Status::Completed, "{}");
        let digest: String = result.stale.digest.chars().take(DIGEST_SHOWN).collect();
        let of = |status| kept(status, "{}");
        let with = |answer: Option<Vec<u8>>, size_bytes| Kept {
            stale: Stale {
                answer,
                size_bytes,
                ..result.stale.clone()
            },
            ..result.clone()
        };
        let other = Kept {
            is_same_call: false,
            ..result.clone()
        };
        for (all, status, named, part) in [
            (vec![], Status::Completed, "", "no stale answer is kept"),
            (vec![], Status::Completed, "ab", "no stale answer is kept"),
            (
                vec![result.clone()],
                Status::Completed,
                "0000",
                "begins with 0000",
            ),
            (
                vec![result.clone()],
                Status::Failed,
                "",
                "--completed --result-stale",
            ),
            (
                vec![of(Status::Failed)],
                Status::Completed,
                "",
                "--failed --error-stale",
            ),
            (
                vec![of(Status::InputRequired)],
                Status::Completed,
                "",
                "a question",
            ),
            (
                vec![of(Status::Accepted)],
                Status::Failed,
                "",
                "a task's handle",
            ),
            (vec![other], Status::Completed, "", "another call"),
            (
                vec![with(None, 2)],
                Status::Completed,
                "",
                "`gc` has dropped",
            ),
            (
                vec![with(None, ANSWER_BYTES_MAX as u64 + 1)],
                Status::Completed,
                "",
                "over 256 KiB",
            ),
            (
                vec![with(Some(b"[]".to_vec()), 2)],
                Status::Completed,
                "",
                "`verify`",
            ),
        ] {
            let why = choose(&all, &wanted(status, named)).unwrap_err();
            assert!(why.to_string().contains(part), "{why}");
            if let NotAdopted::Gone { digest: shown, .. }
            | NotAdopted::OtherCall { digest: shown } = why
            {
                assert_eq!(shown, digest);
            }
        }
    }
}
