//! The guard stands at the door: it asks the journal, lets the rules decide, and writes.
//!
//! [`Guard::run`] takes what has queued up, runs it inside one transaction (look up, decide,
//! change), commits once and answers all of it, so that one sync serves many calls. It is the only
//! writer of entries while a proxy runs.
//!
//! Invariants: a call is let through only after its reservation has been committed; an outcome is
//! handed back for delivery only after it has been committed; each change compares status,
//! attempt and fence ([`crate::journal::Transaction::apply`]).
//!
//! Must not: know JSON-RPC, move bytes, or wait. A busy journal is an error that the caller
//! answers by trying again.

mod admit;
pub mod closing;
mod cursor;
mod delivery;
mod durability;
#[cfg(test)]
pub(crate) mod fixture;
pub mod fork;
#[cfg(test)]
mod model;
#[cfg(test)]
mod redelivery;
#[cfg(test)]
mod schedules;
mod settle;
pub mod stale;
pub mod story;
pub mod sweep;
#[cfg(test)]
mod tests;
pub mod verdict;
pub mod verify;

pub use admit::{
    Admission, AdmissionVerdict, Call, CallKey, Identified, Joined, Refused, Replay, Round, Ticket,
    Why,
};
pub use settle::{Answer, Settlement};

use std::collections::{BTreeMap, BTreeSet};

use crate::journal::{
    Attempt, Durability, Event, Journal, JournalError, Lease, Session, Transaction, Write,
};
use crate::rules::entry::{Entry, GaveUp, Status, Unanswered};
use crate::rules::ids::{BranchId, Fence, Micros, Seq, SessionId, WorkflowId};
use crate::rules::lifecycle::Transition;
use crate::rules::policy::OnDivergence;
use crate::rules::signature::{Scheme, Signature, SignatureKey, keyed};
use crate::seeded::{self, Bug};

/// What the guard needs of the world around the journal.
pub trait Surroundings {
    /// Takes the lock that makes this process the live owner of the session. Returns whether it
    /// holds it now; `false` if another process does (the id had been used before).
    ///
    /// # Errors
    ///
    /// The lock can't be asked for.
    fn take_session(&mut self, id: SessionId) -> std::io::Result<bool>;

    /// Returns whether the session's lock is held, by whomever.
    ///
    /// # Errors
    ///
    /// The lock can't be asked for.
    fn is_live(&mut self, id: SessionId) -> std::io::Result<bool>;

    /// Returns whether the session's proxy itself still runs: a live session whose proxy was
    /// killed has only its upstream left, and nobody waits for its calls.
    ///
    /// # Errors
    ///
    /// The lock can't be asked for.
    fn is_attended(&mut self, id: SessionId) -> std::io::Result<bool>;

    /// Returns whether there is room for a reservation and its outcome.
    fn has_room(&mut self) -> bool;

    /// Notes the highest fence that has been committed.
    fn raise_mark(&mut self, fence: Fence);

    /// Returns 128 random bits.
    fn random(&mut self) -> [u8; 16];

    /// Returns whether the process group of the session's upstream still lives, `None` if that
    /// can't be told. `is_live`: the session's lock is held.
    fn is_upstream_alive(&mut self, session: &Session, is_live: bool) -> Option<bool>;

    /// Returns the machine's boot and the milliseconds since then: the clock of leases, which no
    /// step of the wall clock moves.
    fn uptime(&mut self) -> (String, u64);
}

/// What holds for all calls of this run.
#[derive(Clone, Debug)]
pub struct Options {
    /// `--workflow-id`; `None`: the journal's own.
    pub workflow: Option<WorkflowId>,
    /// `--redact-args-in-journal`.
    pub redacts: bool,
    /// The signature key, where the journal has one.
    pub key: Option<SignatureKey>,
    /// For how long a caller waits for a call whose own caller gave up, where no timeout is set.
    pub join_max: std::time::Duration,
    /// `--run-id`; `None`: the workflow.
    pub run_id: Option<String>,
    /// `--thread-id`.
    pub thread_id: Option<String>,
    /// `--max-calls`.
    pub calls_max: Option<u64>,
    /// `--supersede`.
    pub supersedes: bool,
    /// `--resume`.
    pub resumes: bool,
    /// `--on-divergence`.
    pub on_divergence: OnDivergence,
    /// `--durability deferred`: a final outcome's sync rides on a later one.
    pub defers: bool,
}

impl Default for Options {
    /// Returns the options of a run without any flag.
    fn default() -> Self {
        Self {
            workflow: None,
            redacts: false,
            key: None,
            join_max: std::time::Duration::from_secs(30),
            run_id: None,
            thread_id: None,
            calls_max: None,
            supersedes: false,
            resumes: false,
            on_divergence: OnDivergence::Strict,
            defers: false,
        }
    }
}

/// One thing to be done in the next transaction.
#[derive(Clone, Debug)]
pub enum Op {
    /// Decide a call, and reserve it where it is to run.
    Admit(Box<Call>),
    /// Write what became of a call.
    Settle(Settlement),
    /// An answer has been written to a caller that waited for it.
    Deliver(Ticket),
    /// An outcome that was to answer a second caller has not: it may answer another one.
    Keep(Ticket),
    /// The caller of a running call no longer waits.
    GiveUp(Ticket, GaveUp),
    /// The owner of an at-least-once call is still at work: renews its lease by that much.
    Renew(Ticket, std::time::Duration),
    /// Asks whether the attempt is still this session's, before its first byte goes out.
    Confirm(Ticket),
    /// Something happened that the entry alone does not tell.
    Note(Note),
    /// A task's end was seen: its id, when it was created, and the final answer.
    TaskEnd {
        /// `taskId`.
        task_id: String,
        /// `createdAt`; `None` where the message did not carry it (`tasks/result`), and then the
        /// session must have seen the handle.
        created_at: Option<String>,
        /// The end.
        answer: Answer,
    },
    /// The session has ended: no call of it runs any more.
    EndSession,
}

/// An event about an entry, or about a call that has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The event's kind.
    pub kind: &'static str,
    /// The entry and attempt it concerns.
    pub entry: Option<(BranchId, Seq, Option<Fence>)>,
    /// The decision's letter.
    pub letter: Option<char>,
    /// A JSON object; never arguments.
    pub detail: Option<String>,
    /// Equal notes of one session are a count and a last time.
    pub merges: bool,
}

/// What became of an [`Op`].
#[derive(Clone, Debug)]
pub enum Done {
    /// What happens to the call.
    Admitted(Box<Admission>),
    /// The outcome is the entry's, as of then.
    Settled(Micros),
    /// Somebody else owns the entry by now: the outcome was kept as an event.
    Stale,
    /// It is written, or there was nothing to write.
    Noted,
}

/// The guard over one journal.
pub struct Guard<J, S> {
    journal: J,
    surroundings: S,
    options: Options,
    session: Option<SessionId>,
    session_row: Session,
    /// Questions asked in this session that gave no state: told by signature and inputs.
    questions: Vec<(Signature, String, BranchId, Seq, Fence)>,
    /// Outcomes on their way to a second caller, so that they answer one only.
    redelivering: BTreeSet<Fence>,
    finished: delivery::Finished,
    /// How far `--resume` has walked each workflow.
    cursors: BTreeMap<u64, cursor::Cursor>,
    /// Workflows that this run has taken over.
    superseded: BTreeSet<u64>,
    /// Outcomes were committed that no sync of this process has reached.
    owes_sync: bool,
}

impl<J: Journal, S: Surroundings> Guard<J, S> {
    /// Stands a guard before a journal. Nothing is written.
    pub fn new(journal: J, surroundings: S, options: Options, session_row: Session) -> Self {
        Self {
            journal,
            surroundings,
            options,
            session: None,
            session_row,
            questions: Vec::new(),
            redelivering: BTreeSet::new(),
            finished: delivery::Finished::default(),
            cursors: BTreeMap::new(),
            superseded: BTreeSet::new(),
            owes_sync: false,
        }
    }

    /// Returns this run's session, once it has one.
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// Returns the journal.
    pub fn journal(&mut self) -> &mut J {
        &mut self.journal
    }

    /// Changes what is known of this run: written with the session's row, at once if there is one
    /// and something else is written, else with it.
    pub fn describe(&mut self, change: impl FnOnce(&mut Session)) {
        change(&mut self.session_row);
    }

    /// Begins a transaction with what its steps know and what they are going to change of the
    /// guard once it is committed.
    fn visit(
        &mut self,
        durability: Durability,
        now: Micros,
    ) -> Result<Visit<'_, J::Tx<'_>, S>, JournalError> {
        let uid = self.journal.identity().uid;
        let own_workflow = self.journal.identity().own_workflow.clone();
        let tx = self.journal.begin(durability)?;
        Ok(Visit {
            tx,
            surroundings: &mut self.surroundings,
            options: &self.options,
            session_row: &self.session_row,
            questions: &self.questions,
            redelivering: &self.redelivering,
            finished: self.finished.clone(),
            uid,
            own_workflow,
            now,
            session: self.session,
            highest: None,
            new_questions: Vec::new(),
            new_redelivering: Vec::new(),
            redelivered: Vec::new(),
            live: BTreeMap::new(),
            cursors: self.cursors.clone(),
            superseded: self.superseded.clone(),
            notes: Vec::new(),
        })
    }

    /// Does all of it in one transaction and answers in the same order. On return everything is
    /// durable, but for what [`Guard::owes_sync`] tells; on an error nothing of it was kept, or what
    /// was kept is unknown ([`JournalError::is_final`]).
    ///
    /// # Errors
    ///
    /// As the journal's. Nothing in this process has changed then, and the same batch may be
    /// tried again unless the error is final.
    pub fn run(&mut self, ops: &[Op], now: Micros) -> Result<Vec<Done>, JournalError> {
        let durability = self.durability(ops);
        let wants_room = ops.iter().any(|op| matches!(op, Op::Admit(_)));
        if wants_room && !self.surroundings.has_room() {
            return Err(JournalError::Full);
        }
        let mut visit = self.visit(durability, now)?;
        let mut done = Vec::with_capacity(ops.len());
        let mut left = ops;
        while let Some((op, rest)) = left.split_first() {
            let run = visit.finished.neighbours(left);
            if run.len() > 1 {
                visit.deliver_run(&run)?;
                done.extend(run.iter().map(|_| Done::Noted));
                left = &left[run.len()..];
            } else {
                done.push(visit.one(op)?);
                left = rest;
            }
        }
        let changes = visit.commit()?;
        // Only now has anything happened.
        self.committed(ops, durability, changes.highest.is_some());
        self.session = changes.session;
        self.cursors = changes.cursors;
        self.superseded = changes.superseded;
        self.questions.extend(changes.new_questions);
        // What is given back may have been taken again in the same transaction.
        for fence in changes.redelivered {
            self.redelivering.remove(&fence);
        }
        self.redelivering.extend(changes.new_redelivering);
        self.finished = changes.finished;
        if let Some(fence) = changes.highest {
            self.surroundings.raise_mark(fence);
        }
        Ok(done)
    }
}

impl<J: Journal, S: Surroundings> Guard<J, S> {
    /// Returns what would happen to a call now, by the very steps of [`Guard::run`]. Nothing is
    /// written: the transaction is dropped.
    ///
    /// # Errors
    ///
    /// As the journal's.
    pub fn foresee(&mut self, call: &Call, now: Micros) -> Result<Admission, JournalError> {
        self.visit(Durability::Power, now)?.admit(call)
    }
}

impl<J: Journal, S: Surroundings> Guard<J, S> {
    /// Returns what is known of the call in doubt at a place.
    ///
    /// # Errors
    ///
    /// As the journal's.
    pub fn story(&mut self, place: (BranchId, Seq)) -> Result<Option<story::Story>, JournalError> {
        story::story(&mut self.journal, place)
    }

    /// Gives a verdict on the call in doubt at a place, or tries what would come of it.
    ///
    /// # Errors
    ///
    /// As the journal's.
    pub fn rule(
        &mut self,
        place: (BranchId, Seq),
        act: &verdict::Act,
        deed: &verdict::Deed,
        now: Micros,
        is_trial: bool,
    ) -> Result<verdict::Ruling, JournalError> {
        let surroundings = &mut self.surroundings;
        let own = self.session;
        let deed = &verdict::Deed {
            session: own,
            ..deed.clone()
        };
        let mut ask = |id: SessionId, session: Option<&Session>| {
            let is_live = own == Some(id) || surroundings.is_live(id).unwrap_or(true);
            verdict::Owner {
                is_live,
                upstream_alive: session
                    .and_then(|session| surroundings.is_upstream_alive(session, is_live)),
            }
        };
        verdict::rule(&mut self.journal, place, act, deed, now, &mut ask, is_trial)
    }
}

/// One transaction and what is gathered while it is open.
struct Visit<'a, T, S> {
    tx: T,
    surroundings: &'a mut S,
    options: &'a Options,
    session_row: &'a Session,
    questions: &'a [(Signature, String, BranchId, Seq, Fence)],
    redelivering: &'a BTreeSet<Fence>,
    finished: delivery::Finished,
    uid: [u8; 16],
    own_workflow: WorkflowId,
    now: Micros,
    session: Option<SessionId>,
    highest: Option<Fence>,
    new_questions: Vec<(Signature, String, BranchId, Seq, Fence)>,
    new_redelivering: Vec<Fence>,
    /// Outcomes that are on their way no longer.
    redelivered: Vec<Fence>,
    /// Each session is asked for once a transaction.
    live: BTreeMap<SessionId, bool>,
    cursors: BTreeMap<u64, cursor::Cursor>,
    superseded: BTreeSet<u64>,
    /// What the admission at hand gives its session to note when there is time.
    notes: Vec<Note>,
}

/// What a visit changes of the guard, once it is committed.
struct Changes {
    session: Option<SessionId>,
    highest: Option<Fence>,
    new_questions: Vec<(Signature, String, BranchId, Seq, Fence)>,
    new_redelivering: Vec<Fence>,
    finished: delivery::Finished,
    /// Outcomes that are on their way no longer.
    redelivered: Vec<Fence>,
    cursors: BTreeMap<u64, cursor::Cursor>,
    superseded: BTreeSet<u64>,
}

impl<T: Transaction, S: Surroundings> Visit<'_, T, S> {
    /// Commits, and only then tells what the guard is to take over.
    fn commit(self) -> Result<Changes, JournalError> {
        self.tx.commit()?;
        Ok(Changes {
            session: self.session,
            highest: self.highest,
            new_questions: self.new_questions,
            new_redelivering: self.new_redelivering,
            finished: self.finished,
            redelivered: self.redelivered,
            cursors: self.cursors,
            superseded: self.superseded,
        })
    }

    fn one(&mut self, op: &Op) -> Result<Done, JournalError> {
        match op {
            Op::Admit(call) => {
                self.ensure_session()?;
                let admission = self.admit(call)?;
                Ok(Done::Admitted(Box::new(admission)))
            }
            Op::Settle(settlement) => self.settle(settlement),
            Op::Deliver(ticket) => {
                let fence = self.finished.take(ticket.fence);
                self.tx
                    .deliver(ticket.branch, ticket.seq, fence, self.now)?;
                self.redelivered.push(fence);
                Ok(Done::Noted)
            }
            Op::Keep(ticket) => {
                self.redelivered.push(ticket.fence);
                Ok(Done::Noted)
            }
            Op::GiveUp(ticket, reason) => self.give_up(*ticket, *reason),
            Op::Renew(ticket, ttl) => {
                if !self.still_owns(*ticket)? {
                    return Ok(Done::Stale);
                }
                self.lease(ticket.fence, *ttl)?;
                Ok(Done::Noted)
            }
            Op::Confirm(ticket) => Ok(if self.still_owns(*ticket)? {
                Done::Noted
            } else {
                Done::Stale
            }),
            Op::Note(note) => {
                self.note(note)?;
                Ok(Done::Noted)
            }
            Op::TaskEnd {
                task_id,
                created_at,
                answer,
            } => self.task_end(task_id, created_at.as_deref(), answer),
            Op::EndSession => {
                if let Some(session) = self.session {
                    let row = Session {
                        ended_at: Some(self.now.0),
                        ..self.session_row.clone()
                    };
                    self.tx.put_session(session, &row)?;
                }
                Ok(Done::Noted)
            }
        }
    }

    /// Makes this run a session: the lock is taken before its row is committed, so that whoever
    /// sees the row can ask for the lock.
    fn ensure_session(&mut self) -> Result<SessionId, JournalError> {
        if let Some(session) = self.session {
            return Ok(session);
        }
        let mut id = self.tx.next_session()?;
        loop {
            match self.surroundings.take_session(id) {
                Ok(true) => break,
                // A journal restored from an older copy may count from here again.
                Ok(false) => id = SessionId(id.0 + 1),
                Err(error) => {
                    return Err(JournalError::ReadOnly(format!(
                        "the session's lock can't be taken: {error}"
                    )));
                }
            }
        }
        self.tx.put_session(id, self.session_row)?;
        self.session = Some(id);
        Ok(id)
    }

    fn is_live(&mut self, session: SessionId) -> bool {
        if self.session == Some(session) {
            return true;
        }
        if let Some(live) = self.live.get(&session) {
            return *live;
        }
        // A lock that can't be asked for is taken as held: that refuses, and never runs twice.
        let mut live = self.surroundings.is_live(session).unwrap_or(true);
        if seeded::has(Bug::OrphanIgnored) {
            live = self.surroundings.is_attended(session).unwrap_or(true);
        }
        live |= seeded::has(Bug::GoneOwnerIsLive);
        live &= !seeded::has(Bug::LiveOwnerIsGone);
        self.live.insert(session, live);
        live
    }

    /// Returns whether somebody may still wait for the session's calls.
    fn is_attended(&mut self, session: SessionId) -> bool {
        if self.session == Some(session) {
            return true;
        }
        self.is_live(session) && self.surroundings.is_attended(session).unwrap_or(true)
    }

    /// Returns whether the row is as it was written.
    fn holds(&self, stored: &crate::journal::Stored) -> bool {
        stored.checksum == stored.entry.checksum(&self.uid) || seeded::has(Bug::ChecksumIgnored)
    }

    fn still_owns(&mut self, ticket: Ticket) -> Result<bool, JournalError> {
        let stored = self.tx.entry(ticket.branch, ticket.seq)?;
        Ok(stored.is_some_and(|stored| {
            stored.entry.fence == ticket.fence && stored.entry.status == Status::Pending
        }))
    }

    fn lease(&mut self, fence: Fence, ttl: std::time::Duration) -> Result<(), JournalError> {
        let (boot_id, now_ms) = self.surroundings.uptime();
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.tx.put_lease(
            fence,
            &Lease {
                boot_id,
                until_ms: now_ms.saturating_add(ttl_ms),
            },
        )
    }

    /// Whether an owner has been silent for longer than its lease. Without a lease nothing is
    /// known of that, so it has not.
    fn is_overdue(&mut self, fence: Fence) -> Result<bool, JournalError> {
        let Some(lease) = self.tx.lease(fence)? else {
            return Ok(false);
        };
        let (boot_id, now_ms) = self.surroundings.uptime();
        let is_over = lease.boot_id != boot_id || lease.until_ms <= now_ms;
        Ok(is_over || seeded::has(Bug::LeaseIgnored))
    }

    /// Returns the signature under the scheme that new entries get.
    fn own_signature(&self, plain: Signature) -> (Scheme, Signature) {
        match (&self.options.key, self.options.redacts) {
            (Some(key), true) => (Scheme::Keyed, keyed(&plain, key)),
            (Some(_) | None, _) => (Scheme::Plain, plain),
        }
    }

    /// Returns the signature under every scheme that the journal may hold.
    fn all_signatures(&self, plain: Signature) -> Vec<(Scheme, Signature)> {
        let mut all = vec![(Scheme::Plain, plain)];
        if let Some(key) = &self.options.key {
            all.push((Scheme::Keyed, keyed(&plain, key)));
        }
        all
    }

    /// Returns whether the entry was made for a call with this signature. A scheme whose key is
    /// not here matches nothing.
    fn is_same(&self, entry: &Entry, plain: Signature) -> bool {
        match (entry.scheme, &self.options.key) {
            (Scheme::Plain, _) => entry.signature == plain,
            (Scheme::Keyed, Some(key)) => entry.signature == keyed(&plain, key),
            (Scheme::Keyed, None) => false,
        }
    }

    fn write(
        &mut self,
        transition: Transition,
        attempt: Option<Attempt>,
        outcome: Option<crate::journal::Outcome>,
        event: Option<Event>,
    ) -> Result<crate::journal::Applied, JournalError> {
        let checksum = transition.entry.checksum(&self.uid);
        self.tx.apply(&Write {
            transition,
            checksum,
            attempt,
            outcome,
            event,
        })
    }

    fn event(&self, note: &Note) -> Event {
        let merge_key = note.merges.then(|| {
            let entry = note.entry.map_or_else(String::new, |(branch, seq, fence)| {
                format!("{branch}/{seq}/{}", fence.map_or(0, |fence| fence.0))
            });
            format!(
                "{}|{}|{}|{}|{}",
                note.kind,
                self.session.map_or(0, |session| session.0),
                entry,
                note.letter.unwrap_or(' '),
                note.detail.as_deref().unwrap_or("")
            )
        });
        Event {
            kind: note.kind.into(),
            at: self.now,
            entry: note.entry.map(|(branch, seq, _)| (branch, seq)),
            fence: note.entry.and_then(|(_, _, fence)| fence),
            session: self.session,
            letter: note.letter,
            detail: note.detail.clone(),
            merge_key,
        }
    }

    fn note(&mut self, note: &Note) -> Result<(), JournalError> {
        let event = self.event(note);
        self.tx.event(&event)
    }

    fn give_up(&mut self, ticket: Ticket, reason: GaveUp) -> Result<Done, JournalError> {
        let fence = self.finished.take(ticket.fence);
        let Some(stored) = self.tx.entry(ticket.branch, ticket.seq)? else {
            return Ok(Done::Stale);
        };
        if stored.entry.fence != fence || !self.holds(&stored) {
            return Ok(Done::Stale);
        }
        match crate::rules::lifecycle::give_up(&stored.entry, reason) {
            Ok(transition) => {
                self.write(transition, None, None, None)?;
                Ok(Done::Noted)
            }
            // It was delivered in the meantime: nobody gave up.
            Err(_) => Ok(Done::Noted),
        }
    }

    fn lose(
        &mut self,
        entry: &Entry,
        reason: Unanswered,
        event: Option<Event>,
    ) -> Result<Done, JournalError> {
        match crate::rules::lifecycle::lose(entry, reason) {
            Ok(transition) => {
                self.write(transition, None, None, event)?;
                Ok(Done::Settled(self.now))
            }
            Err(_) => Ok(Done::Stale),
        }
    }
}
