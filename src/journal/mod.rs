//! The journal: storage that remembers, compares and swaps, and decides nothing.
//!
//! A back-end implements [`Journal`] and [`Transaction`]; [`conformance`] is the suite that each
//! must pass. All durable change to entries goes through one method, [`Transaction::apply`]: it
//! compares what is stored with what the change expects and changes it, or loses. What several
//! steps make together stands in one transaction: it is durable on return from
//! [`Transaction::commit`], or none of it is.
//!
//! Must not: compare signatures, read policies, or know what a status leads to. A back-end can't
//! get a rule wrong, because it has none.

#[cfg(feature = "test-fakes")]
#[doc(hidden)]
pub mod any_row;
pub mod cannot_use;
pub mod compact;
pub mod conformance;
pub mod connection;
pub mod event;
pub mod filesystem;
#[cfg(test)]
pub(crate) mod fixture;
pub mod follow;
pub(crate) mod header;
pub mod key;
mod known;
pub mod locks;
pub mod mark;
pub mod memory;
pub(crate) mod pinned;
pub mod place;
pub mod reader;
pub mod schema;
pub mod sqlite;
pub mod walk;
pub(crate) mod whole_file;

pub use event::{EVENT_KINDS, Event, EventRow};

use std::ops::Range;
use std::sync::Arc;

use crate::rules::entry::{Checksum, Entry, OutcomeDigest, Provenance, Status};
use crate::rules::flight::Flight;
use crate::rules::ids::{BranchId, Fence, HeldKey, Micros, Seq, SessionId, WorkflowId};
use crate::rules::lifecycle::Transition;
use crate::rules::signature::{Scheme, Signature};

/// Why a journal did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// Another process writes; nothing was done, and it may be tried again.
    #[error("the journal is busy: another process is writing to it")]
    Busy,
    /// The disk or a quota is full; the transaction was rolled back.
    #[error("the disk that holds the journal is full")]
    Full,
    /// The journal can't be written to; the transaction was rolled back.
    #[error("the journal can't be written to: {0}")]
    ReadOnly(String),
    /// The file was deleted, moved or replaced while in use.
    #[error("{0} was deleted, moved or replaced while in use")]
    Moved(String),
    /// The file is damaged.
    #[error("the journal is damaged: {0}")]
    Damaged(String),
    /// One row holds what no version of this program writes. The others are not touched by it.
    #[error("a row of the journal can't be read: {0}")]
    Unreadable(String),
    /// A write or a sync failed and what is stored is unknown: the journal is closed for this
    /// process, since continuing could lose rows that were acknowledged.
    #[error("the journal failed and is closed for this process: {0}")]
    Failed(String),
}

impl JournalError {
    /// Returns the short reason that stands in a refusal.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Full => "full",
            Self::ReadOnly(_) => "read_only",
            Self::Moved(_) => "moved",
            Self::Damaged(_) | Self::Unreadable(_) => "corrupt",
            Self::Failed(_) => "failed",
        }
    }

    /// Returns whether the journal must not be used again by this process.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        match self {
            Self::Busy | Self::Full | Self::ReadOnly(_) | Self::Unreadable(_) => false,
            Self::Moved(_) | Self::Damaged(_) | Self::Failed(_) => true,
        }
    }
}

/// Bytes that are part of a line, shared with whoever holds the line: large payloads are not
/// copied on their way to the disk.
#[derive(Clone)]
pub struct Payload {
    line: Arc<Vec<u8>>,
    part: Range<usize>,
}

impl Payload {
    /// Takes a part of a line; a part beyond its end is cut off.
    #[must_use]
    pub fn part(line: Arc<Vec<u8>>, part: Range<usize>) -> Self {
        let end = part.end.min(line.len());
        Self {
            part: part.start.min(end)..end,
            line,
        }
    }
}

impl std::ops::Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.line[self.part.clone()]
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        let part = 0..bytes.len();
        Self {
            line: Arc::new(bytes),
            part,
        }
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Payload {}

impl std::fmt::Debug for Payload {
    /// Arguments and results never appear in logs, so only the size does.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Payload({} bytes)", self.len())
    }
}

/// What the journal says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// 128 random bits made with the journal.
    pub uid: [u8; 16],
    /// The journal's own workflow id: its absolute path when it was made.
    pub own_workflow: WorkflowId,
    /// The fingerprint of the signature key, once arguments have been redacted.
    pub key_fingerprint: Option<[u8; 32]>,
}

/// A workflow and its active branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workflow {
    /// The journal's own number of it.
    pub number: u64,
    /// Its name.
    pub id: WorkflowId,
    /// 128 random bits made with it: the stable part of the keys handed to an upstream.
    pub uid: [u8; 16],
    /// The branch that calls go to.
    pub active: Branch,
    /// The session that took the workflow over (`--supersede`): earlier ones start no more calls.
    pub generation: Option<SessionId>,
}

/// One branch of a workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The journal's own number of it.
    pub id: BranchId,
    /// The workflow's number.
    pub workflow: u64,
    /// Its number within the workflow; 0 is the first.
    pub number: u32,
    /// The branch it came from, and the first seq that is its own.
    pub parent: Option<(BranchId, Seq)>,
    /// The highest seq it has held; 0 if none.
    pub highest: u64,
}

/// An entry as stored, with the checksum that was stored beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The entry.
    pub entry: Entry,
    /// To be compared with [`Entry::checksum`] by whoever relies on the entry.
    pub checksum: Checksum,
}

/// What is stored with a new attempt or round, never changed afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Its fence.
    pub fence: Fence,
    /// Whose it is.
    pub branch: BranchId,
    /// Whose it is.
    pub seq: Seq,
    /// Its number, from 1.
    pub attempt: u32,
    /// The round within it, from 0.
    pub round: u32,
    /// The attempt or round before it, if any: an entry's history is this chain.
    pub previous: Option<Fence>,
    /// Who reserved it.
    pub session: SessionId,
    /// When.
    pub started_at: Micros,
    /// The scheme of [`Attempt::signature`].
    pub scheme: Scheme,
    /// The call's signature.
    pub signature: Signature,
    /// The arguments' bytes as they came; `None` if the call had none or they are redacted.
    pub arguments: Option<Payload>,
    /// Their size in bytes.
    pub arguments_bytes: u64,
    /// They were left out on purpose.
    pub is_redacted: bool,
    /// The protocol revision of the call, where known.
    pub protocol_version: Option<String>,
    /// A hash of the tool's listed definition and the upstream's version, where seen.
    pub tool_revision: Option<String>,
    /// The policy in force, where it is not the default.
    pub policy: Option<String>,
    /// The W3C trace context that the call carried.
    pub traceparent: Option<String>,
}

/// What tells the next round of a call that was asked for input (MCP 2026-07-28, `mrtr`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundKey {
    /// The digest of the `requestState` that was given, if one was.
    pub state: Option<[u8; 32]>,
    /// The names of the inputs that were asked for, sorted, one a line.
    pub inputs: String,
}

/// A task handle (MCP 2025-11-25 and the tasks extension).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskKey {
    /// `taskId` as the upstream sent it.
    pub id: String,
    /// `createdAt` as the upstream sent it: servers count ids from 1 again after a restart.
    pub created_at: String,
}

/// An outcome: the answer's bytes and what was read from them. Never changed, but for the bytes,
/// which `gc` drops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The fence of the attempt and round that it settles.
    pub fence: Fence,
    /// What it made of the entry.
    pub status: Status,
    /// A result with `isError: true`.
    pub is_error: bool,
    /// Whose it is.
    pub provenance: Provenance,
    /// When it was written.
    pub at: Micros,
    /// The digest of the bytes.
    pub digest: OutcomeDigest,
    /// The bytes of the `result` or `error` member; `None` in a tombstone.
    pub body: Option<Payload>,
    /// For INPUT_REQUIRED: what the next round is told by.
    pub round: Option<RoundKey>,
    /// For ACCEPTED: the task.
    pub task: Option<TaskKey>,
}

/// One run of the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Session {
    /// The host's name.
    pub host: String,
    /// The kernel's boot id, where there is one.
    pub boot_id: String,
    /// The proxy's process id.
    pub pid: u32,
    /// When it started, µs.
    pub started_at: i64,
    /// When it ended, where that was written.
    pub ended_at: Option<i64>,
    /// The upstream's process group.
    pub upstream_pgid: Option<u32>,
    /// When the upstream's leader started, in the kernel's clock ticks since boot.
    pub upstream_started_at: Option<u64>,
    /// The upstream's own name, where seen.
    pub upstream_name: Option<String>,
    /// The upstream's own version, where seen.
    pub upstream_version: Option<String>,
    /// The protocol revision, where seen.
    pub protocol_version: Option<String>,
    /// The client's name, where seen.
    pub client_name: Option<String>,
    /// The client's version, where seen.
    pub client_version: Option<String>,
}

/// Until when the owner of an at-least-once call is taken for at work, by the clock that ticks
/// since the machine's boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The boot that the time counts from; in another one the lease is over.
    pub boot_id: String,
    /// Milliseconds since that boot.
    pub until_ms: u64,
}

/// Everything that one change writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The entry's change.
    pub transition: Transition,
    /// The checksum of the entry afterwards.
    pub checksum: Checksum,
    /// A new attempt or round.
    pub attempt: Option<Attempt>,
    /// An outcome.
    pub outcome: Option<Outcome>,
    /// An event, where the row alone would not tell.
    pub event: Option<Event>,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It is part of the transaction.
    Done,
    /// What is stored is not what was expected; nothing was written.
    Lost,
}

/// A back-end.
pub trait Journal {
    /// Its transaction.
    type Tx<'a>: Transaction
    where
        Self: 'a;

    /// Returns what the journal says of itself.
    fn identity(&self) -> &Identity;

    /// Begins a transaction that may write, and whose commit survives what `durability` says. No
    /// other process writes until it ends.
    ///
    /// # Errors
    ///
    /// [`JournalError::Busy`] at once if another process writes; the others as they say.
    fn begin(&mut self, durability: Durability) -> Result<Self::Tx<'_>, JournalError>;

    /// Drops what a failed write has left behind, so that the next transaction starts on a new
    /// connection.
    ///
    /// # Errors
    ///
    /// The journal can't be used any more.
    fn reconnect(&mut self) -> Result<(), JournalError>;
}

/// Look-ups and the one write, all in one transaction. Dropping it rolls back.
pub trait Transaction {
    /// Returns the workflow of that name.
    ///
    /// # Errors
    ///
    /// As for all look-ups: the journal can't be read.
    fn workflow(&mut self, id: &WorkflowId) -> Result<Option<Workflow>, JournalError>;

    /// Returns the name and the random bits of the workflow with that number.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn workflow_of(&mut self, number: u64) -> Result<Option<(WorkflowId, [u8; 16])>, JournalError>;

    /// Makes a workflow with its first branch.
    ///
    /// # Errors
    ///
    /// The journal can't be written to.
    fn create_workflow(
        &mut self,
        id: &WorkflowId,
        uid: [u8; 16],
        at: Micros,
    ) -> Result<Workflow, JournalError>;

    /// Returns a branch.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn branch(&mut self, id: BranchId) -> Result<Option<Branch>, JournalError>;

    /// Makes a branch of the workflow that shares what is before `at` in `parent`, and makes it the
    /// active one.
    ///
    /// # Errors
    ///
    /// The journal can't be written to.
    fn create_branch(
        &mut self,
        workflow: u64,
        parent: (BranchId, Seq),
        at: Micros,
    ) -> Result<Branch, JournalError>;

    /// Makes a workflow whose first branch shares what is before a place in another one's branch.
    ///
    /// # Errors
    ///
    /// The journal can't be written to.
    fn fork_workflow(
        &mut self,
        id: &WorkflowId,
        uid: [u8; 16],
        parent: (BranchId, Seq),
        at: Micros,
    ) -> Result<Workflow, JournalError>;

    /// Notes that a session has taken the workflow over.
    ///
    /// # Errors
    ///
    /// The journal can't be written to.
    fn set_generation(&mut self, workflow: u64, session: SessionId) -> Result<(), JournalError>;

    /// Returns how many entries the workflow has, in all its branches.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn count_entries(&mut self, workflow: u64) -> Result<u64, JournalError>;

    /// Returns the first entry of that very branch after a place.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn next_entry(&mut self, branch: BranchId, after: Seq) -> Result<Option<Stored>, JournalError>;

    /// Returns an attempt's lease.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn lease(&mut self, fence: Fence) -> Result<Option<Lease>, JournalError>;

    /// Writes an attempt's lease, new or renewed.
    ///
    /// # Errors
    ///
    /// The journal can't be written to.
    fn put_lease(&mut self, fence: Fence, lease: &Lease) -> Result<(), JournalError>;

    /// Returns the entry at that place of that very branch.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn entry(&mut self, branch: BranchId, seq: Seq) -> Result<Option<Stored>, JournalError>;

    /// Returns whether a seq at or below the branch's highest was left out on purpose.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn is_gap(&mut self, branch: BranchId, seq: Seq) -> Result<bool, JournalError>;

    /// Returns the entries of the branch with one of these signatures whose outcome (or doubt)
    /// has not reached its caller, by seq.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn undelivered(
        &mut self,
        branch: BranchId,
        signatures: &[(Scheme, Signature)],
    ) -> Result<Vec<Stored>, JournalError>;

    /// Returns the entry that holds the key, in whatever workflow and branch.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn by_key(&mut self, key: &HeldKey) -> Result<Option<Stored>, JournalError>;

    /// Returns the places and fences of the answers that gave this `requestState`, by fence.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn by_state(&mut self, state: &[u8; 32]) -> Result<Vec<(BranchId, Seq, Fence)>, JournalError>;

    /// Returns the entries that have answered with the handle of that task, each with the fence
    /// under which it did, which it may have left since; by fence.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn by_task(&mut self, task_id: &str) -> Result<Vec<(Stored, Fence, TaskKey)>, JournalError>;

    /// Returns the outcome of an attempt's round.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn outcome(&mut self, fence: Fence) -> Result<Option<Outcome>, JournalError>;

    /// Returns the end of the task that an attempt was accepted as.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn task_end(&mut self, fence: Fence) -> Result<Option<Outcome>, JournalError>;

    /// Returns when the attempt with that fence, and those of its entry before it, were in flight;
    /// the newest first. Empty if there is none. Of an outcome that this very transaction has
    /// written, every reservation of the transaction counts as made before it: nobody can have
    /// seen the outcome by then.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn flights(&mut self, fence: Fence) -> Result<Vec<Flight>, JournalError>;

    /// Returns an attempt.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn attempt(&mut self, fence: Fence) -> Result<Option<Attempt>, JournalError>;

    /// Returns the schemes in which signatures are stored.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn has_scheme(&mut self, scheme: Scheme) -> Result<bool, JournalError>;

    /// Returns a fence higher than any in the journal.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn next_fence(&mut self) -> Result<Fence, JournalError>;

    /// Compares and changes one entry, with all that belongs to the change. A new entry beyond
    /// the branch's highest seq raises it and records the gap.
    ///
    /// # Errors
    ///
    /// The journal can't be written to. Losing the comparison is no error.
    fn apply(&mut self, write: &Write) -> Result<Applied, JournalError>;

    /// Notes that an answer of this attempt has been written to a caller that waited for it.
    /// Returns whether that was news.
    ///
    /// # Errors
    ///
    /// The journal can't be written to.
    fn deliver(
        &mut self,
        branch: BranchId,
        seq: Seq,
        fence: Fence,
        at: Micros,
    ) -> Result<bool, JournalError>;

    /// Does what [`Transaction::deliver`] does for `count` places, of which each has the seq and
    /// the fence after those of the one before, and `first` is the first. Returns of how many it
    /// was news.
    ///
    /// # Errors
    ///
    /// The journal can't be written to.
    fn deliver_run(
        &mut self,
        first: (BranchId, Seq, Fence),
        count: u64,
        at: Micros,
    ) -> Result<u64, JournalError> {
        let (branch, seq, fence) = first;
        let mut news = 0;
        for step in 0..count {
            let (seq, fence) = (Seq(seq.0 + step), Fence(fence.0 + step));
            news += u64::from(self.deliver(branch, seq, fence, at)?);
        }
        Ok(news)
    }

    /// Appends an event, or counts it.
    ///
    /// # Errors
    ///
    /// The journal can't be written to.
    fn event(&mut self, event: &Event) -> Result<(), JournalError>;

    /// Returns the events of an entry, in the order of writing.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn events(&mut self, branch: BranchId, seq: Seq) -> Result<Vec<EventRow>, JournalError>;

    /// Returns a session id that has not been used.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn next_session(&mut self) -> Result<SessionId, JournalError>;

    /// Writes a session's row, new or changed.
    ///
    /// # Errors
    ///
    /// The journal can't be written to.
    fn put_session(&mut self, id: SessionId, session: &Session) -> Result<(), JournalError>;

    /// Returns a session.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn session(&mut self, id: SessionId) -> Result<Option<Session>, JournalError>;

    /// Records the fingerprint of the signature key.
    ///
    /// # Errors
    ///
    /// The journal can't be written to.
    fn set_key_fingerprint(&mut self, fingerprint: [u8; 32]) -> Result<(), JournalError>;

    /// Returns places of entries, by branch and seq, that come after `after`; at most `limit`.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn places_after(
        &mut self,
        after: Option<(BranchId, Seq)>,
        limit: usize,
    ) -> Result<Vec<(BranchId, Seq)>, JournalError>;

    /// Returns how many bytes of payload an attempt holds: its arguments, its outcome's bytes and
    /// those of its task's end.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    fn payload_bytes(&mut self, fence: Fence) -> Result<u64, JournalError>;

    /// Drops the payload of an attempt: its arguments, its outcome's bytes and those of its task's
    /// end. What they were told by (signature, size, digest) stays. For burying alone.
    ///
    /// # Errors
    ///
    /// The journal can't be written to.
    fn drop_payload(&mut self, fence: Fence) -> Result<(), JournalError>;

    /// Puts `detail` in the place of what an event held. For burying alone: what an upstream wrote
    /// to stderr may hold what the payload held. Nothing else of an event ever changes.
    ///
    /// # Errors
    ///
    /// The journal can't be written to.
    fn put_detail(&mut self, event: u64, detail: &str) -> Result<(), JournalError>;

    /// Makes the transaction as durable as [`Journal::begin`] was asked to.
    ///
    /// # Errors
    ///
    /// Nothing of it was kept ([`JournalError::Busy`], [`JournalError::Full`],
    /// [`JournalError::ReadOnly`]), or what was kept is unknown ([`JournalError::Failed`]).
    fn commit(self) -> Result<(), JournalError>;
}

/// What a commit must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The end of this process. No sync.
    Process,
    /// A power cut.
    Power,
}
