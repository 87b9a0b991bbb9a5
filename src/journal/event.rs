//! Events: what happened that the entries alone would not tell.

use crate::rules::ids::{BranchId, Fence, Micros, Seq, SessionId};

/// Every kind of event that is written; `docs/troubleshooting.md` explains each.
///
/// A test build refuses any other, so that none comes into journals without its explanation. A
/// reader must not: a later release may know more.
pub const EVENT_KINDS: [&str; 23] = [
    "replayed",
    "joined",
    "refused",
    "diverged",
    "outcome_unknown",
    "late_result",
    "stale_result",
    "voided",
    "retried",
    "fenced",
    "forked",
    "resume_ended",
    "revision_changed",
    "dropped_answer",
    "reconciling",
    "resolved",
    "retracted",
    "reopened",
    "delivered",
    "export_closed",
    "purged",
    "compacted",
    "older_accepted",
];

/// What happened that the entry alone would not tell. Append-only; equal ones with a merge key
/// are a count and a last time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// One of [`EVENT_KINDS`].
    pub kind: String,
    /// When it first happened.
    pub at: Micros,
    /// Where, if it concerns an entry.
    pub entry: Option<(BranchId, Seq)>,
    /// Which attempt, where it concerns one.
    pub fence: Option<Fence>,
    /// Who saw it, if a session did.
    pub session: Option<SessionId>,
    /// The decision's letter, where there was one.
    pub letter: Option<char>,
    /// A JSON object with what else is known. Never arguments.
    pub detail: Option<String>,
    /// Events of equal key are one row.
    pub merge_key: Option<String>,
}

impl Event {
    /// Holds the kind to the list, in test builds; both back-ends ask.
    pub(super) fn assert_known(&self) {
        debug_assert!(
            EVENT_KINDS.contains(&&*self.kind),
            "add {} to EVENT_KINDS",
            self.kind
        );
    }
}

/// An event as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRow {
    /// Its number, in the order of writing.
    pub id: u64,
    /// What was written.
    pub event: Event,
    /// How often it happened.
    pub count: u64,
    /// When it last happened.
    pub last_at: Micros,
}
