//! All about one entry, as `show` tells it: plain values, and what follows from them.
//!
//! Filled from the journal by `show`; knows neither SQL nor layout. Nothing here decides about a
//! call: [`Knowledge`] puts into words what the stored facts say, and no more.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::reading::ForkView;
use super::view::{EntryView, Status, Time};

/// One entry and what belongs to it.
#[derive(Clone, Debug)]
pub struct Detail {
    /// The entry.
    pub entry: EntryView,
    /// The arguments of the call.
    pub arguments: Payload,
    /// The result or the error, as the upstream's bytes.
    pub outcome: Payload,
    /// Every attempt, the oldest first.
    pub attempts: Vec<AttemptView>,
    /// The session of the latest attempt.
    pub session: Option<SessionView>,
    /// What is known about how the latest attempt ended.
    pub evidence: EvidenceView,
    /// Answers that came too late to count, the oldest first.
    pub stale_results: Vec<StaleView>,
    /// What happened to the entry, the oldest first.
    pub events: Vec<EventView>,
    /// The protocol revision of the call.
    pub protocol: Option<String>,
    /// The policy in force, where it is not the default.
    pub policy: Option<String>,
    /// The W3C trace context that the call carried.
    pub traceparent: Option<String>,
    /// What this entry's branch was forked from.
    pub forked_from: Option<ForkView>,
}

/// Arguments or an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// There is none: the call had no arguments, or has no outcome yet.
    Absent,
    /// These bytes; they may be no strict JSON, as the upstream's are kept as they came.
    Stored(Vec<u8>),
    /// Kept off the disk.
    Redacted {
        /// How many bytes it had.
        size_bytes: Option<u64>,
    },
    /// Dropped or never kept; the entry still forbids running again.
    Gone,
}

impl Payload {
    /// Returns the state that programs see.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Stored(_) => "stored",
            Self::Redacted { .. } => "redacted",
            Self::Gone => "gone",
        }
    }
}

/// As `{"state", "json"}`, or `{"state", "text"}` where the bytes are no strict JSON.
impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Document<'a> {
            state: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            json: Option<&'a RawValue>,
            #[serde(skip_serializing_if = "Option::is_none")]
            text: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            size_bytes: Option<u64>,
        }
        let mut document = Document {
            state: self.state(),
            json: None,
            text: None,
            size_bytes: None,
        };
        match self {
            Self::Stored(bytes) => {
                document.size_bytes = u64::try_from(bytes.len()).ok();
                match serde_json::from_slice(bytes) {
                    Ok(json) => document.json = Some(json),
                    Err(_) => document.text = Some(String::from_utf8_lossy(bytes).into_owned()),
                }
            }
            Self::Redacted { size_bytes } => document.size_bytes = *size_bytes,
            Self::Absent | Self::Gone => {}
        }
        document.serialize(serializer)
    }
}

/// One execution of the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttemptView {
    /// Its number, from 1.
    pub attempt: u64,
    /// The round within it, from 0.
    pub round: u64,
    /// Its fence.
    pub fence: u64,
    /// The session that ran it.
    pub session: Option<String>,
    /// When it was reserved.
    pub started_at: Time,
    /// When its outcome was written.
    pub ended_at: Option<Time>,
    /// The status that it ended with.
    pub status: Status,
    /// Bytes of the call that the upstream's pipe accepted; `None` if that is not known.
    pub bytes_written: Option<u64>,
    /// Whose outcome it has: upstream, operator, prober, synthetic.
    pub provenance: Option<String>,
    /// What it came to, also where a later attempt has taken its place.
    pub outcome: Payload,
    /// Anything else that a person should know.
    pub note: Option<String>,
}

/// One run of the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionView {
    /// Its id.
    pub id: String,
    /// Whether its lock is held.
    pub live: bool,
    /// The machine.
    pub host: String,
    /// The proxy's process id.
    pub pid: u32,
    /// When it started.
    pub started_at: Time,
    /// When it ended in an orderly way.
    pub ended_at: Option<Time>,
    /// The upstream's own name and version.
    pub upstream: Option<String>,
    /// The client's own name and version.
    pub client: Option<String>,
    /// The protocol's revision.
    pub protocol: Option<String>,
}

/// What is known about how an attempt ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EvidenceView {
    /// Bytes of the call that the upstream's pipe accepted; `None` if that is not known.
    pub bytes_written: Option<u64>,
    /// How the upstream ended, such as `exit status 1` or `signal 9`.
    pub exit_status: Option<String>,
    /// From the reservation to the end of what was seen, in milliseconds.
    pub elapsed_ms: Option<u64>,
    /// The upstream's process group.
    pub upstream_group: Option<u32>,
    /// Whether that very group still runs; `None` if that can't be told.
    pub upstream_alive: Option<bool>,
    /// The last of what the upstream wrote to stderr.
    pub stderr_tail: Option<String>,
    /// Why no answer came, such as `timed out`, `cancelled`, or the error that answered a
    /// cancelled call.
    pub note: Option<String>,
}

/// An answer that came for an attempt which no longer owned the entry: evidence, never replayed.
#[derive(Clone, Debug, Serialize)]
pub struct StaleView {
    /// When it came, or when for the first time.
    pub at: Time,
    /// The attempt that it answered.
    pub attempt: Option<u64>,
    /// The fence that it answered.
    pub fence: Option<u64>,
    /// The session that heard it.
    pub session: Option<String>,
    /// What it would have made of the entry.
    pub status: Option<Status>,
    /// The SHA-256 of its bytes, in hexadecimal.
    pub digest: String,
    /// The size of its bytes as they came.
    pub size_bytes: u64,
    /// Its bytes.
    pub answer: Payload,
    /// It was adopted: it is the entry's outcome.
    pub counts: bool,
    /// It answered the call that the entry stands for now.
    #[serde(skip)]
    pub is_same_call: bool,
}

/// Something that happened to an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EventView {
    /// When, or when for the first time.
    pub at: Time,
    /// When for the last time, where it happened several times.
    pub last_at: Option<Time>,
    /// How often.
    pub count: u64,
    /// What: `replayed`, `resolved`, `late_result` and so on.
    pub kind: String,
    /// The attempt that it is about.
    pub attempt: Option<u64>,
    /// The session that saw it.
    pub session: Option<String>,
    /// The decision's letter, such as `@E`.
    pub letter: Option<String>,
    /// Who did it, where a person did.
    pub by: Option<String>,
    /// That person's reason.
    pub reason: Option<String>,
    /// Anything else.
    pub detail: Option<String>,
}

/// What the stored facts say about the call's effect and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Knowledge {
    /// What is stored does not hold, so nothing is known.
    Quarantined,
    /// The upstream never saw a byte of it.
    NeverSent,
    /// A live session waits for its outcome.
    Running,
    /// The upstream saw it, or may have, and nobody knows what came of it.
    SentUnanswered,
    /// The upstream asked for more.
    InputRequired,
    /// The upstream took it as a task, whose end has not been seen.
    Accepted,
    /// It is known not to have been executed.
    NotExecuted,
    /// It was settled, and an operator allowed one more attempt.
    Reopened,
    /// There is an outcome that no caller was seen to get.
    AnsweredUndelivered,
    /// There is an outcome, and a caller got it.
    Delivered,
}

impl Knowledge {
    /// Returns the sentence that people read.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Quarantined => {
                "Quarantined: what is stored does not hold. It is never replayed and never run."
            }
            Self::NeverSent => "Never sent: the upstream did not see a byte of this call.",
            Self::Running => "Running: a live session waits for the upstream's answer.",
            Self::SentUnanswered => {
                "Reserved and unanswered: it may have been sent, and no outcome was recorded. It may or may not have taken effect."
            }
            Self::InputRequired => "Asked back: the upstream wants more before it goes on.",
            Self::Accepted => "Accepted: the upstream runs it as a task whose end was not seen.",
            Self::NotExecuted => "Not executed: the call may be made again.",
            Self::Reopened => "Reopened: it has had an outcome, and the next call runs once more.",
            Self::AnsweredUndelivered => {
                "Answered and undelivered: the outcome is recorded, but no caller was seen to get it."
            }
            Self::Delivered => "Delivered: the outcome is recorded and a caller got it.",
        }
    }
}

impl Detail {
    /// Tells whether the current attempt has an outcome that no longer counts.
    fn has_had_outcome(&self) -> bool {
        self.attempts
            .iter()
            .any(|attempt| attempt.fence == self.entry.fence && attempt.ended_at.is_some())
    }

    /// Returns what is known.
    #[must_use]
    pub fn knowledge(&self) -> Knowledge {
        let entry = &self.entry;
        if entry.quarantined {
            return Knowledge::Quarantined;
        }
        let unsent = self.evidence.bytes_written == Some(0);
        match entry.status {
            Status::Pending if entry.running => Knowledge::Running,
            // A later round was not sent, but the first was: only a first attempt proves it.
            Status::Pending if unsent && entry.attempt == 1 => Knowledge::NeverSent,
            Status::Pending => Knowledge::SentUnanswered,
            Status::InputRequired => Knowledge::InputRequired,
            Status::Accepted => Knowledge::Accepted,
            Status::Voided if unsent => Knowledge::NeverSent,
            Status::Voided if self.has_had_outcome() => Knowledge::Reopened,
            Status::Voided => Knowledge::NotExecuted,
            Status::Unreadable => Knowledge::Quarantined,
            Status::Completed | Status::Failed | Status::Denied if entry.delivered_at.is_none() => {
                Knowledge::AnsweredUndelivered
            }
            Status::Completed | Status::Failed | Status::Denied => Knowledge::Delivered,
        }
    }
}
