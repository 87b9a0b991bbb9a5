//! What went over the wire, as the oracle saw it.

use super::*;

/// One `tools/call` that an agent wrote.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) life: usize,
    pub(crate) id: String,
    pub(crate) workflow: usize,
    /// Which of its agent's calls it is.
    pub(crate) call: usize,
    pub(crate) arguments: String,
    pub(crate) seq: Option<u64>,
    pub(crate) key: Option<String>,
    /// How far its key holds.
    pub(crate) scope: String,
    /// It is a further round, with the state of this question or none.
    pub(crate) round: Option<Option<usize>>,
    /// The question that it was let through to answer.
    pub(crate) leg: Option<usize>,
    pub(crate) line: Vec<u8>,
    /// The session has read it.
    pub(crate) is_read: bool,
    /// The session has read its cancellation, before an answer.
    pub(crate) is_cancelled: bool,
    /// That was before the upstream's answer was read.
    pub(crate) cancelled_running: bool,
    /// The session has read its cancellation, ever.
    pub(crate) cancel_seen: bool,
    /// A batch that was taken after that has been committed.
    pub(crate) cancel_is_committed: bool,
    pub(crate) replies: u32,
    /// What it got was an outcome and no refusal.
    pub(crate) got_outcome: bool,
    pub(crate) is_forwarded: bool,
    pub(crate) said_not_started: bool,
    /// The pipe took a byte of it, under the reservation that it has and under any.
    pub(crate) reached: bool,
    pub(crate) ever_reached: bool,
    pub(crate) effects: u32,
    /// Its outcome was given to it and could not be written.
    pub(crate) is_unwritten: bool,
    /// It went out more than once: which time an effect belongs to can't be told from it.
    pub(crate) is_again: bool,
    pub(crate) grant: Option<Grant>,
    /// Another one, after that was taken from it, and what it is for.
    pub(crate) regrant: Option<(Grant, Option<usize>)>,
    /// All that it has had, each with what it was for.
    pub(crate) grants: Vec<(Grant, Option<usize>)>,
    /// The first answer that the session read.
    pub(crate) answer: Option<usize>,
    /// The answer came when the call's cancellation, or the input's end, was known.
    pub(crate) answered_cancelled: bool,
    pub(crate) answered_closed: bool,
}

/// A reservation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) branch: BranchId,
    pub(crate) seq: Seq,
    pub(crate) fence: Fence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Result,
    Error,
    NotExecuted,
    Closed,
    Operator,
    /// It asks for input.
    Question,
    /// It is a task.
    Handle,
}

/// An answer that the upstream (or an operator) gave.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) serial: usize,
    pub(crate) body: String,
    pub(crate) kind: Kind,
    /// A result with `isError: true`.
    pub(crate) is_error: bool,
    /// A question's state, and whether it asks for something.
    pub(crate) has_state: bool,
    pub(crate) has_inputs: bool,
    /// A handle's `taskId`.
    pub(crate) task: Option<String>,
    /// The handle of the task whose end it is.
    pub(crate) ends: Option<usize>,
    /// The attempt that it was read for.
    pub(crate) fence: Option<Fence>,
}

impl Answer {
    pub(crate) fn new(serial: usize, body: String, kind: Kind) -> Self {
        Self {
            serial,
            body,
            kind,
            is_error: false,
            has_state: false,
            has_inputs: false,
            task: None,
            ends: None,
            fence: None,
        }
    }
}
