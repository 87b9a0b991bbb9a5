//! One proxy's life with its two pipes, its upstream, and the batch that the journal has.

use std::collections::VecDeque;
use std::time::Instant;

use checkpoint::guard::{Done, Guard, Op};
use checkpoint::journal::JournalError;
use checkpoint::proxy::session::Session;
use checkpoint::rules::ids::Fence;

use crate::store::{Around, SimJournal};

/// A line in a pipe, and where in the stream it ends.
#[derive(Clone, Debug)]
pub(crate) struct Piped {
    pub(crate) line: Vec<u8>,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The call that it is, or the attempt that it delivers.
    pub(crate) call: Option<usize>,
    pub(crate) delivers: Option<Fence>,
}

/// A stream of lines of which only so many bytes have been taken by the other end's buffer.
#[derive(Default)]
pub(crate) struct Pipe {
    pub(crate) lines: VecDeque<Piped>,
    pub(crate) pushed: u64,
    pub(crate) written: u64,
}

impl Pipe {
    pub(crate) fn push(&mut self, line: Vec<u8>, call: Option<usize>, delivers: Option<Fence>) {
        let start = self.pushed;
        self.pushed += line.len() as u64;
        self.lines.push_back(Piped {
            line,
            start,
            end: self.pushed,
            call,
            delivers,
        });
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.written == self.pushed
    }

    /// Takes the next line that is there as a whole.
    pub(crate) fn take(&mut self) -> Option<Piped> {
        let is_whole = self.lines.front()?.end <= self.written;
        if is_whole {
            self.lines.pop_front()
        } else {
            None
        }
    }
}

/// What the journal has of this life's.
pub(crate) enum Batch {
    None,
    Taken(Vec<Op>, bool),
    Ran(Vec<Op>, Result<Vec<Done>, JournalError>),
    Waiting {
        ops: Vec<Op>,
        next: Instant,
        reconnects: bool,
    },
}

/// What an upstream makes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    Answer,
    ToolError,
    ErrorAfter,
    ErrorBefore,
    NotExecuted,
    Twice,
    Never,
    DieBefore,
    DieAfter,
    /// It asks for input, once it has done its part.
    Ask,
    /// It answers with a task, and does it later.
    Accept,
}

pub(crate) struct Task {
    pub(crate) serial: usize,
    pub(crate) id: String,
    pub(crate) habit: Habit,
    pub(crate) is_done: bool,
    pub(crate) answers: u32,
    pub(crate) is_cancelled: bool,
}

/// A task that a call was answered with.
pub(crate) struct Job {
    /// Counted from 1 by each upstream.
    pub(crate) id: String,
    pub(crate) serial: usize,
    pub(crate) handle: usize,
    pub(crate) is_done: bool,
    pub(crate) end: Option<usize>,
}

#[derive(Default)]
pub(crate) struct Upstream {
    pub(crate) jobs: Vec<Job>,
    /// Requests for the result of a task that has not ended: id and task.
    pub(crate) waiting: Vec<(String, String)>,
    pub(crate) is_alive: bool,
    pub(crate) input_closed: bool,
    pub(crate) tasks: Vec<Task>,
    pub(crate) output: VecDeque<Vec<u8>>,
    pub(crate) notices: u64,
}

pub(crate) struct Life {
    pub(crate) agent: usize,
    pub(crate) session: Session,
    pub(crate) guard: Guard<SimJournal, Around>,
    pub(crate) is_alive: bool,
    pub(crate) is_over: bool,
    pub(crate) stalled_until: usize,
    /// A fault of the journal was met.
    pub(crate) is_faulted: bool,
    pub(crate) inbox: VecDeque<Vec<u8>>,
    pub(crate) client_eof: bool,
    pub(crate) eof_told: bool,
    pub(crate) client_broken: bool,
    pub(crate) to_upstream: Pipe,
    pub(crate) to_client: Pipe,
    pub(crate) upstream: Upstream,
    pub(crate) batch: Batch,
    pub(crate) tries_since: Option<Instant>,
    pub(crate) is_input_closed: bool,
    pub(crate) is_finishing: bool,
    /// Lines that pass, as they were read and not yet seen to come out.
    pub(crate) passing_up: VecDeque<Vec<u8>>,
    pub(crate) passing_down: VecDeque<Vec<u8>>,
    /// Requests about tasks that have no answer yet.
    pub(crate) polls: Vec<String>,
    /// Cancellations that were read since the last batch was taken, and in the batch.
    pub(crate) cancels_new: Vec<usize>,
    pub(crate) cancels_taken: Vec<usize>,
}
