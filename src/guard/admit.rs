//! From a call to its admission: which entry it means, what the table says, and the reservation.
//!
//! The order in which an entry is found is the contract's, section 5: a seq, a key, a round of a
//! call that asked for input, else new, and then the guard against callers that gave up.
//!
//! Must not: know JSON-RPC, or hand back a ticket for a call whose reservation is not part of the
//! transaction.

use std::sync::Arc;
use std::time::Duration;

use super::cursor::Walked;
use super::{Note, Surroundings, Visit};
use crate::journal::{
    Applied, Attempt, Branch, JournalError, Outcome, Payload, Stored, Transaction, Workflow,
};
use crate::json;
use crate::rules::decide::{
    Decision, EntryFacts, Letter, Owner, PolicyFacts, RevisionFact, RoundFact, SignatureFact,
    decide,
};
use crate::rules::entry::{Entry, GaveUp, Status, outcome_digest};
use crate::rules::ids::{BranchId, Fence, HeldKey, Micros, Seq, Window, WorkflowId};
use crate::rules::lifecycle::{self, Reservation};
use crate::rules::policy::{
    Delivery, InDoubtScope, OnDivergence, OnRevisionChange, Policy, covers_equal,
};
use crate::rules::signature::Signature;
use crate::seeded::{self, Bug};

/// JSON pointers that a divergence lists at most (contract, section 8).
const DIFF_MAX: usize = 100;

/// A `tools/call` as the guard needs it.
#[derive(Clone, Debug)]
pub struct Call {
    /// The tool's name.
    pub tool: String,
    /// The plain signature.
    pub signature: Signature,
    /// The arguments' bytes as they came; `None` if the call had none.
    pub arguments: Option<Payload>,
    /// `_meta.checkpoint_workflow`.
    pub workflow: Option<WorkflowId>,
    /// `_meta.checkpoint_seq`.
    pub seq: Option<Seq>,
    /// A key from the client, or one that the tool's policy made.
    pub key: Option<CallKey>,
    /// The provider's tool-call id.
    pub call_id: Option<String>,
    /// What a further round carries.
    pub round: Option<Round>,
    /// The protocol revision of the call, where known.
    pub protocol_version: Option<String>,
    /// A hash of the tool's listed definition and the upstream's version, where seen.
    pub tool_revision: Option<String>,
    /// The W3C trace context that the call carried.
    pub traceparent: Option<String>,
    /// The tool's policy.
    pub policy: Arc<Policy>,
    /// The policy as it is recorded with the attempt, where it is not the default.
    pub policy_record: Option<Arc<str>>,
    /// The call has been joined to this attempt before and asks again.
    pub joined: Option<Joined>,
    /// The upstream has had this very request, and its fence was taken away since: it is answered
    /// by what is stored, and runs again only where its policy lets it.
    pub was_forwarded: bool,
    /// Its caller gave up before it was reserved.
    pub gave_up: Option<GaveUp>,
}

/// A call's idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallKey {
    /// Its text.
    pub text: String,
    /// The policy made it; it may hold values of the arguments.
    pub is_derived: bool,
}

/// What a further round of a call carries (MCP 2026-07-28, `mrtr`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The digest of its `requestState`, if it has one.
    pub state: Option<[u8; 32]>,
    /// The names under which it answers, sorted, one a line.
    pub inputs: String,
}

/// The attempt that a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Its entry's branch.
    pub branch: BranchId,
    /// Its entry's place.
    pub seq: Seq,
    /// Its fence.
    pub fence: Fence,
}

impl From<Ticket> for Joined {
    fn from(ticket: Ticket) -> Self {
        Self {
            branch: ticket.branch,
            seq: ticket.seq,
            fence: ticket.fence,
        }
    }
}

/// A reserved attempt: what its outcome is settled under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The entry's branch.
    pub branch: BranchId,
    /// The entry's place.
    pub seq: Seq,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The fence.
    pub fence: Fence,
}

impl Ticket {
    /// Returns the ticket of an entry's current attempt.
    #[must_use]
    pub fn of(entry: &Entry) -> Self {
        Self {
            branch: entry.branch,
            seq: entry.seq,
            attempt: entry.attempt,
            fence: entry.fence,
        }
    }
}

/// How an entry was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identified {
    /// By `checkpoint_seq`.
    Seq,
    /// By a key.
    Key,
    /// As a further round.
    Round,
    /// By the cursor of `--resume`.
    Cursor,
    /// By the guard, since its outcome reached nobody.
    Guard,
    /// It was not: the call is new.
    New,
}

/// A stored outcome that answers a call.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The entry.
    pub entry: Entry,
    /// The outcome, its bytes checked against the digest.
    pub outcome: Outcome,
    /// The end of the task, if the outcome is a task's handle and it has ended.
    pub task_end: Option<Outcome>,
    /// The protocol revision under which the outcome came, where known.
    pub protocol_version: Option<String>,
    /// The call said neither seq nor key: the answer is marked as a replay.
    pub is_marked: bool,
    /// The row.
    pub letter: Letter,
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The table says so.
    Table(Decision),
    /// The workflow has made all the calls that it may make.
    LimitReached,
    /// A newer session has taken the workflow over.
    StaleGeneration,
}

/// A refusal, as data.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Why.
    pub why: Why,
    /// The row.
    pub letter: Letter,
    /// The entry, if it could be read.
    pub entry: Option<Entry>,
    /// The place, if the call has one.
    pub seq: Option<Seq>,
    /// JSON pointers at which the arguments differ; empty where they are redacted or equal.
    pub diff: Vec<String>,
    /// What else is known, in a few words.
    pub reason: Option<String>,
}

/// What happens to a call.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The workflow's name.
    pub workflow: WorkflowId,
    /// The number, within the workflow, of the branch that calls go to.
    pub branch: u32,
    /// The workflow's random bits and the number of the entry's own branch: the stable part of a
    /// key that is handed to the upstream.
    pub place: ([u8; 16], u32),
    /// Workflow and branch of the entry that this is about, where the seq alone would lead an
    /// operator to another one: they are not the first branch of the journal's own workflow.
    pub elsewhere: Option<(WorkflowId, u32)>,
    /// When it was decided.
    pub at: Micros,
    /// What is to be noted when there is time.
    pub notes: Vec<Note>,
    /// How the entry was found.
    pub identified: Identified,
    /// What happens.
    pub verdict: AdmissionVerdict,
}

/// What happens to a call.
#[derive(Clone, Debug)]
pub enum AdmissionVerdict {
    /// It is reserved: forward it once the transaction is committed.
    Run(Ticket, Letter),
    /// Answer it with this.
    Replay(Box<Replay>),
    /// It waits for a running call.
    Join {
        /// The running attempt.
        ticket: Ticket,
        /// It is this session's own.
        is_ours: bool,
        /// How long it waits at most; `None`: as long as that call runs.
        limit: Option<Duration>,
        /// The row.
        letter: Letter,
    },
    /// Answer it with a refusal.
    Refuse(Box<Refused>),
}

enum Found {
    /// No entry: it may be made at this place (`None`: the next free one of the active branch).
    None(Option<(Branch, Seq)>),
    Entry(Box<Stored>),
    /// It should be there, or can't be read.
    Damaged(Seq),
}

impl<T: Transaction, S: Surroundings> Visit<'_, T, S> {
    pub(super) fn admit(&mut self, call: &Call) -> Result<Admission, JournalError> {
        let name = call
            .workflow
            .clone()
            .or_else(|| self.options.workflow.clone())
            .unwrap_or_else(|| self.own_workflow.clone());
        let workflow = match self.tx.workflow(&name)? {
            Some(workflow) => workflow,
            None => {
                let uid = self.surroundings.random();
                self.tx.create_workflow(&name, uid, self.now)?
            }
        };
        let mut workflow = workflow;
        if self.options.supersedes && self.superseded.insert(workflow.number) {
            let session = self.ensure_session()?;
            // Nobody takes over from a session that started later.
            if workflow.generation.is_none_or(|newer| newer < session) {
                self.tx.set_generation(workflow.number, session)?;
                workflow.generation = Some(session);
            }
        }
        let (identified, verdict) = self.decide_call(call, &workflow)?;
        self.move_cursor(&name, &verdict)?;
        let branch = match &verdict {
            AdmissionVerdict::Run(ticket, _) => self.tx.branch(ticket.branch)?,
            AdmissionVerdict::Replay(_)
            | AdmissionVerdict::Join { .. }
            | AdmissionVerdict::Refuse(_) => None,
        };
        let number = branch.map_or(workflow.active.number, |branch| branch.number);
        // A key may have led to another workflow's entry: what its upstream was told stays the same.
        let uid = match branch {
            Some(branch) if branch.workflow != workflow.number => self
                .tx
                .workflow_of(branch.workflow)?
                .map_or(workflow.uid, |(_, uid)| uid),
            Some(_) | None => workflow.uid,
        };
        let elsewhere = self.elsewhere(&workflow, &verdict)?;
        Ok(Admission {
            workflow: name,
            branch: number,
            place: (uid, number),
            elsewhere,
            at: self.now,
            notes: std::mem::take(&mut self.notes),
            identified,
            verdict,
        })
    }

    /// Returns workflow and branch of the entry that a verdict is about, unless its seq says enough.
    /// A key may have led to another workflow's entry, and a fork shares those of older branches.
    fn elsewhere(
        &mut self,
        workflow: &Workflow,
        verdict: &AdmissionVerdict,
    ) -> Result<Option<(WorkflowId, u32)>, JournalError> {
        let about = match verdict {
            AdmissionVerdict::Run(ticket, _) | AdmissionVerdict::Join { ticket, .. } => {
                ticket.branch
            }
            AdmissionVerdict::Replay(replay) => replay.entry.branch,
            AdmissionVerdict::Refuse(refused) => refused
                .entry
                .as_ref()
                .map_or(workflow.active.id, |entry| entry.branch),
        };
        if about == workflow.active.id {
            let is_usual = workflow.id == self.own_workflow && workflow.active.number == 0;
            return Ok((!is_usual).then(|| (workflow.id.clone(), workflow.active.number)));
        }
        let Some(branch) = self.tx.branch(about)? else {
            return Ok(None);
        };
        let owner = self.tx.workflow_of(branch.workflow)?;
        Ok(owner.map(|(name, _)| (name, branch.number)))
    }

    /// An entry is passed once its call was admitted; a refused call may come again. A key may
    /// have led to an entry of another workflow or to one that a fork has left: that is on no walk
    /// of this workflow's, though its seq may be.
    fn move_cursor(
        &mut self,
        name: &WorkflowId,
        verdict: &AdmissionVerdict,
    ) -> Result<(), JournalError> {
        if !self.options.resumes {
            return Ok(());
        }
        // The entry's branch; `None`: it is taken for one of the line.
        let (branch, seq) = match verdict {
            AdmissionVerdict::Run(ticket, _) | AdmissionVerdict::Join { ticket, .. } => {
                (Some(ticket.branch), ticket.seq)
            }
            AdmissionVerdict::Replay(replay) => (Some(replay.entry.branch), replay.entry.seq),
            AdmissionVerdict::Refuse(refused) => match refused.seq {
                Some(seq) if seeded::has(Bug::CursorPassesRefused) => (None, seq),
                Some(_) | None => return Ok(()),
            },
        };
        // Asked for anew, since the call may have forked it.
        let Some(workflow) = self.tx.workflow(name)? else {
            return Ok(());
        };
        let holder = self.branch_of(workflow.active, seq)?.id;
        let is_on_line = branch.is_none_or(|branch| branch == holder);
        if (is_on_line && !seeded::has(Bug::CursorStands)) || seeded::has(Bug::CursorOfAnother) {
            // What is found or made otherwise is behind the cursor, too.
            self.cursors.entry(workflow.number).or_default().take(seq);
        }
        Ok(())
    }

    fn decide_call(
        &mut self,
        call: &Call,
        workflow: &Workflow,
    ) -> Result<(Identified, AdmissionVerdict), JournalError> {
        if let Some(joined) = call.joined {
            return self.ask_again(call, workflow, joined);
        }
        let (identified, found) = self.identify(call, workflow)?;
        match found {
            Found::Damaged(seq) => Ok((identified, quarantine(None, Some(seq)))),
            Found::Entry(stored) => {
                let verdict = self.by_table(call, workflow, identified, &stored)?;
                Ok((identified, verdict))
            }
            Found::None(place) => {
                if identified == Identified::New
                    && let Some(verdict) = self.guard(call, workflow)?
                {
                    return Ok((Identified::Guard, verdict));
                }
                let verdict = self.reserve_new(call, workflow, place)?;
                Ok((identified, verdict))
            }
        }
    }

    /// A call that waits for an attempt looks again. It must be answered with that attempt's
    /// outcome, whoever else was in the meantime, and never count as new because of it.
    fn ask_again(
        &mut self,
        call: &Call,
        workflow: &Workflow,
        joined: Joined,
    ) -> Result<(Identified, AdmissionVerdict), JournalError> {
        let identified = match call.seq {
            // Beside a seq that led to no entry, the key may have led to this one.
            Some(seq) if call.key.is_none() || self.is_at(workflow, seq, joined)? => {
                Identified::Seq
            }
            _ if call.key.is_some() => Identified::Key,
            _ => Identified::Guard,
        };
        let stored = match self.tx.entry(joined.branch, joined.seq) {
            Ok(Some(stored)) => stored,
            Ok(None) | Err(JournalError::Unreadable(_)) => {
                return Ok((identified, quarantine(None, Some(joined.seq))));
            }
            Err(error) => return Err(error),
        };
        if self.is_left(workflow, joined)? && !call.was_forwarded {
            let (_, decision, _) = self.decided(call, workflow, identified, &stored)?;
            let starts = match decision {
                Decision::Proceed | Decision::Retry | Decision::Fork => true,
                Decision::NextRound
                | Decision::Replay
                | Decision::Join
                | Decision::Diverge
                | Decision::InFlight
                | Decision::InDoubt
                | Decision::Abandon
                | Decision::Deny
                | Decision::Quarantine
                | Decision::Expired => false,
            };
            // Nothing starts on a line that was left: an equal call may run on the one that is
            // walked now, and a branch beside what was left would hide it.
            if starts {
                let verdict = match self.at_seq(workflow.active, joined.seq)? {
                    Found::Entry(there) => self.by_table(call, workflow, identified, &there)?,
                    Found::Damaged(seq) => quarantine(None, Some(seq)),
                    Found::None(place) => {
                        let place = place.filter(|_| call.seq.is_some());
                        self.reserve_new(call, workflow, place)?
                    }
                };
                return Ok((identified, verdict));
            }
        }
        let verdict = self.by_table(call, workflow, identified, &stored)?;
        Ok((identified, verdict))
    }

    /// Returns whether a branch that was opened since holds the place that a call waited at.
    fn is_left(&mut self, workflow: &Workflow, joined: Joined) -> Result<bool, JournalError> {
        if self.branch_of(workflow.active, joined.seq)?.id == joined.branch {
            return Ok(false);
        }
        // A key may have led to another workflow's entry, which is on no line of this one's.
        let branch = self.tx.branch(joined.branch)?;
        Ok(branch.is_some_and(|branch| branch.workflow == workflow.number))
    }

    /// Returns whether a seq of the workflow means the entry.
    fn is_at(
        &mut self,
        workflow: &Workflow,
        seq: Seq,
        joined: Joined,
    ) -> Result<bool, JournalError> {
        let branch = self.branch_of(workflow.active, seq)?.id;
        Ok((branch, seq) == (joined.branch, joined.seq))
    }

    fn identify(
        &mut self,
        call: &Call,
        workflow: &Workflow,
    ) -> Result<(Identified, Found), JournalError> {
        let mut keys = self.held_keys(call, workflow);
        keys.retain(|_| !seeded::has(Bug::KeyIgnored));
        if let Some(seq) = call.seq {
            let found = self.at_seq(workflow.active, seq)?;
            // Where no entry is there, the key's entry decides.
            if matches!(found, Found::None(_))
                && !seeded::has(Bug::KeyBesideSeqIgnored)
                && let holder @ (Found::Entry(_) | Found::Damaged(_)) = self.holder(&keys)?
            {
                return Ok((Identified::Key, holder));
            }
            return Ok((Identified::Seq, found));
        }
        if !keys.is_empty() {
            return Ok((Identified::Key, self.holder(&keys)?));
        }
        if let Some(round) = &call.round
            && let Some(stored) = self.open_question(call, workflow, round)?
        {
            return Ok((Identified::Round, Found::Entry(Box::new(stored))));
        }
        if self.options.resumes {
            match self.walk(call, workflow)? {
                Walked::Entry(stored) => return Ok((Identified::Cursor, Found::Entry(stored))),
                Walked::Damaged(seq) => return Ok((Identified::Cursor, Found::Damaged(seq))),
                Walked::End { is_first } => {
                    if is_first {
                        self.notes.push(Note {
                            kind: "resume_ended",
                            entry: None,
                            letter: None,
                            detail: None,
                            merges: true,
                        });
                    }
                }
            }
        }
        Ok((Identified::New, Found::None(None)))
    }

    /// Returns the entry that holds the key, under whichever of its spellings.
    fn holder(&mut self, keys: &[HeldKey]) -> Result<Found, JournalError> {
        for key in keys {
            match self.tx.by_key(key) {
                Ok(Some(stored)) => return Ok(Found::Entry(Box::new(stored))),
                Ok(None) => {}
                Err(JournalError::Unreadable(_)) => return Ok(Found::Damaged(Seq(0))),
                Err(error) => return Err(error),
            }
        }
        Ok(Found::None(None))
    }

    /// Returns whether an entry holds the call's key.
    fn is_held(&mut self, call: &Call, workflow: &Workflow) -> Result<bool, JournalError> {
        let keys = self.held_keys(call, workflow);
        Ok(!matches!(self.holder(&keys)?, Found::None(_)))
    }

    /// Returns the branch that holds a place: a branch holds what is from its fork on, before that
    /// its parent does.
    fn branch_of(&mut self, active: Branch, seq: Seq) -> Result<Branch, JournalError> {
        let mut branch = active;
        while let Some((parent, forked_at)) = branch.parent
            && (seq < forked_at || seq == forked_at && seeded::has(Bug::ForkSharesTooMuch))
            && !seeded::has(Bug::ForkForgetsPast)
        {
            branch = self
                .tx
                .branch(parent)?
                .ok_or_else(|| JournalError::Damaged("a branch without its parent".into()))?;
        }
        Ok(branch)
    }

    /// Looks a seq up along the branch and those it came from. An entry that should be there and
    /// is not is damage, not "new".
    fn at_seq(&mut self, active: Branch, seq: Seq) -> Result<Found, JournalError> {
        let branch = self.branch_of(active, seq)?;
        match self.tx.entry(branch.id, seq) {
            Ok(Some(stored)) => Ok(Found::Entry(Box::new(stored))),
            Ok(None)
                if seq.0 > branch.highest
                    || self.tx.is_gap(branch.id, seq)?
                    || seeded::has(Bug::MissingIsNew) =>
            {
                Ok(Found::None(Some((branch, seq))))
            }
            Ok(None) | Err(JournalError::Unreadable(_)) => Ok(Found::Damaged(seq)),
            Err(error) => Err(error),
        }
    }

    /// Returns the call's key in each spelling that may be stored: the one for new entries first.
    /// A key that was made from arguments is kept keyed where arguments are kept off the disk.
    fn held_keys(&self, call: &Call, workflow: &Workflow) -> Vec<HeldKey> {
        let Some(key) = &call.key else {
            return Vec::new();
        };
        let window = call.policy.client_key_window();
        let window_id = match window {
            Window::Run => self
                .options
                .run_id
                .clone()
                .unwrap_or_else(|| workflow.id.0.clone()),
            Window::Thread => self.options.thread_id.clone().unwrap_or_default(),
            Window::Journal if seeded::has(Bug::KeyWindowIgnored) => workflow.id.0.clone(),
            Window::Journal => String::new(),
        };
        let window_id = if seeded::has(Bug::WindowIgnored) {
            String::new()
        } else {
            window_id
        };
        let mut texts = vec![key.text.clone()];
        if key.is_derived
            && let Some(secret) = &self.options.key
        {
            let tag = Signature(secret.tag(key.text.as_bytes()));
            texts.push(format!("keyed:{tag}"));
            if self.options.redacts {
                texts.reverse();
            }
        }
        texts
            .into_iter()
            .map(|key| HeldKey {
                key,
                window,
                window_id: window_id.clone(),
            })
            .collect()
    }

    /// Finds the question that a further round without seq or key answers: by `requestState` in
    /// the whole journal, where none was given by the names asked for in this session, the oldest
    /// of several.
    fn open_question(
        &mut self,
        call: &Call,
        workflow: &Workflow,
        round: &Round,
    ) -> Result<Option<Stored>, JournalError> {
        let candidates: Vec<(BranchId, Seq, Fence)> = match &round.state {
            Some(state) => self.tx.by_state(state)?,
            None => self
                .questions
                .iter()
                .chain(&self.new_questions)
                .filter(|(signature, inputs, ..)| {
                    *signature == call.signature && *inputs == round.inputs
                })
                .map(|(_, _, branch, seq, fence)| (*branch, *seq, *fence))
                .collect(),
        };
        for (branch, seq, fence) in candidates {
            let Some(stored) = self.tx.entry(branch, seq)? else {
                continue;
            };
            let entry = &stored.entry;
            let in_workflow = self
                .tx
                .branch(branch)?
                .is_some_and(|branch| branch.workflow == workflow.number);
            if !in_workflow || !self.is_same(entry, call.signature) {
                continue;
            }
            let is_open = entry.fence == fence && entry.status == Status::InputRequired;
            if is_open || self.is_taken_from(entry, fence)? {
                return Ok(Some(stored));
            }
        }
        Ok(None)
    }

    /// Tells whether an operator's verdict stands in the place of the question that was asked
    /// under this fence: its answer comes too late, and means that entry all the same.
    fn is_taken_from(&mut self, entry: &Entry, asked: Fence) -> Result<bool, JournalError> {
        if entry.fence <= asked {
            return Ok(false);
        }
        let mut attempt = |fence| match self.tx.attempt(fence) {
            Ok(attempt) => Ok(attempt),
            Err(JournalError::Unreadable(_)) => Ok(None),
            Err(error) => Err(error),
        };
        let (Some(now), Some(then)) = (attempt(entry.fence)?, attempt(asked)?) else {
            return Ok(false);
        };
        Ok(now.previous == Some(asked) && (now.attempt, now.round) == (then.attempt, then.round))
    }

    /// The guard: most duplicates come from a caller that gave up and asks again (contract,
    /// section 5). Returns what happens to the call if it is such a one.
    fn guard(
        &mut self,
        call: &Call,
        workflow: &Workflow,
    ) -> Result<Option<AdmissionVerdict>, JournalError> {
        let signatures = self.all_signatures(call.signature);
        let mut branch = workflow.active;
        let mut candidates = Vec::new();
        // Of a branch that was forked from, what came before the fork and those after it.
        let mut below: Option<Seq> = None;
        loop {
            let found = match self.tx.undelivered(branch.id, &signatures) {
                Ok(found) => found,
                // A row that can't be read may be the very one that is asked for again.
                Err(JournalError::Unreadable(_)) => return Ok(Some(quarantine(None, None))),
                Err(error) => return Err(error),
            };
            candidates.extend(
                found
                    .into_iter()
                    .filter(|stored| below.is_none_or(|below| stored.entry.seq < below)),
            );
            let Some((parent, forked_at)) = branch.parent else {
                break;
            };
            below = Some(below.map_or(forked_at, |below| below.min(forked_at)));
            if seeded::has(Bug::ForkSharesMore) {
                below = None;
            }
            branch = self
                .tx
                .branch(parent)?
                .ok_or_else(|| JournalError::Damaged("a branch without its parent".into()))?;
        }
        for stored in candidates {
            if let Some(verdict) = self.guard_one(call, workflow, &stored)? {
                return Ok(Some(verdict));
            }
        }
        Ok(None)
    }

    fn guard_one(
        &mut self,
        call: &Call,
        workflow: &Workflow,
        stored: &Stored,
    ) -> Result<Option<AdmissionVerdict>, JournalError> {
        let entry = &stored.entry;
        if stored.checksum != entry.checksum(&self.uid) {
            return Ok(Some(quarantine(Some(entry.clone()), Some(entry.seq))));
        }
        let is_live = self.is_live(entry.session);
        // The caller of a killed proxy went with it, while its upstream may still be at work.
        let waits = entry.gave_up.is_none() && self.is_attended(entry.session);
        match entry.status {
            Status::Pending if entry.unanswered.is_some() || !is_live => {
                if call.policy.in_doubt_scope == InDoubtScope::Call
                    || seeded::has(Bug::GuardSkipsDoubt)
                {
                    return Ok(None);
                }
                self.by_table(call, workflow, Identified::Guard, stored)
                    .map(Some)
            }
            Status::Pending if waits || seeded::has(Bug::GuardSkipsRunning) => Ok(None),
            Status::Pending => self
                .by_table(call, workflow, Identified::Guard, stored)
                .map(Some),
            // Who brings answers has had a question; which one, only a state can tell.
            Status::InputRequired if call.round.is_some() => Ok(None),
            Status::Completed | Status::Failed | Status::Accepted | Status::InputRequired => {
                let age = entry.completed_at.map_or(0, |at| self.now.since(at));
                let within = u128::from(age) < call.policy.redeliver_within.as_micros()
                    || seeded::has(Bug::RedeliveryUnlimited);
                let is_free = self.redelivered.contains(&entry.fence);
                let taken = (self.redelivering.contains(&entry.fence) && !is_free)
                    || self.new_redelivering.contains(&entry.fence);
                // A caller that still waits will have it; nobody else may take it away.
                let taken = taken && !seeded::has(Bug::RedeliveryTwice);
                if waits
                    || !within
                    || taken
                    || call.policy.redeliver_within.is_zero()
                    || seeded::has(Bug::GuardSkipsUndelivered)
                {
                    return Ok(None);
                }
                // The bytes that this caller should have are gone; what they told was done.
                if entry.is_tombstone {
                    return Ok(Some(AdmissionVerdict::Refuse(Box::new(Refused {
                        why: Why::Table(Decision::Expired),
                        letter: Letter('Z'),
                        entry: Some(entry.clone()),
                        seq: Some(entry.seq),
                        diff: Vec::new(),
                        reason: None,
                    }))));
                }
                let verdict = self.replay(entry, Identified::Guard, Letter('B'))?;
                if matches!(verdict, AdmissionVerdict::Replay(_)) {
                    self.new_redelivering.push(entry.fence);
                }
                Ok(Some(verdict))
            }
            Status::Voided | Status::Denied => Ok(None),
        }
    }

    fn facts(
        &mut self,
        call: &Call,
        identified: Identified,
        stored: &Stored,
    ) -> Result<EntryFacts, JournalError> {
        let entry = &stored.entry;
        let is_damaged =
            stored.checksum != entry.checksum(&self.uid) && !seeded::has(Bug::ChecksumIgnored);
        let unanswered = entry.unanswered.is_some() && !seeded::has(Bug::UnansweredIgnored);
        let mut gone = unanswered || !self.is_live(entry.session);
        // Only at-least-once lets time speak: a stalled owner may be taken over.
        if !gone && entry.status == Status::Pending && call.policy.delivery == Delivery::AtLeastOnce
        {
            gone = self.session != Some(entry.session) && self.is_overdue(entry.fence)?;
        }
        let round = match (entry.status, &call.round) {
            (Status::InputRequired, Some(round)) if !is_damaged => {
                let asked = self
                    .tx
                    .outcome(entry.fence)?
                    .and_then(|outcome| outcome.round);
                match asked {
                    Some(asked) if asked.state.is_some() => {
                        if round.state == asked.state || seeded::has(Bug::RoundWithAnyState) {
                            RoundFact::Continues
                        } else {
                            RoundFact::Foreign
                        }
                    }
                    // No state was given: none may come, and the answers are the round.
                    Some(_) if round.state.is_none() => RoundFact::Continues,
                    Some(_) => RoundFact::Foreign,
                    None => RoundFact::Foreign,
                }
            }
            _ => RoundFact::First,
        };
        let attempt = if is_damaged {
            None
        } else {
            self.tx.attempt(entry.fence)?
        };
        let same = self.is_same(entry, call.signature)
            || (identified == Identified::Key && is_covered(call, entry, attempt.as_ref()));
        let revisions = attempt
            .as_ref()
            .and_then(|attempt| attempt.tool_revision.as_ref())
            .zip(call.tool_revision.as_ref());
        let is_other_revision = revisions.is_some_and(|(before, now)| before != now);
        if is_other_revision && call.policy.on_revision_change == OnRevisionChange::Note {
            self.notes.push(Note {
                kind: "revision_changed",
                entry: Some((entry.branch, entry.seq, Some(entry.fence))),
                letter: None,
                detail: None,
                merges: true,
            });
        }
        Ok(EntryFacts {
            status: entry.status,
            is_damaged,
            is_tombstone: entry.is_tombstone,
            is_error: entry.is_error,
            owner: if gone { Owner::Gone } else { Owner::Live },
            signature: if same {
                SignatureFact::Same
            } else {
                SignatureFact::Other
            },
            round,
            revision: if is_other_revision
                && call.policy.on_revision_change == OnRevisionChange::Diverge
            {
                RevisionFact::Refused
            } else {
                RevisionFact::Accepted
            },
            attempts_left: entry.attempt < call.policy.attempts_max
                || seeded::has(Bug::AttemptsNotCounted),
        })
    }

    /// Returns what the table has happen to the call because of this entry.
    fn decided(
        &mut self,
        call: &Call,
        workflow: &Workflow,
        identified: Identified,
        stored: &Stored,
    ) -> Result<(EntryFacts, Decision, Letter), JournalError> {
        let facts = self.facts(call, identified, stored)?;
        let policy = PolicyFacts {
            delivery: call.policy.delivery,
            on_failure: call.policy.on_failure,
            on_tool_error: call.policy.on_tool_error,
            on_in_flight: call.policy.on_in_flight,
            // A key conflict is refused, never forked: keys hold across branches.
            on_divergence: if identified == Identified::Key {
                OnDivergence::Strict
            } else {
                self.options.on_divergence
            },
        };
        let (mut decision, letter) = decide(Some(facts), policy);
        if decision == Decision::Diverge && seeded::has(Bug::ForkUnasked) {
            decision = Decision::Fork;
        }
        // On a branch a held key would be held twice: that conflict is refused, too.
        if decision == Decision::Fork
            && self.is_held(call, workflow)?
            && !seeded::has(Bug::KeyForked)
        {
            decision = Decision::Diverge;
        }
        Ok((facts, decision, letter))
    }

    fn by_table(
        &mut self,
        call: &Call,
        workflow: &Workflow,
        identified: Identified,
        stored: &Stored,
    ) -> Result<AdmissionVerdict, JournalError> {
        let entry = &stored.entry;
        let (facts, decision, letter) = self.decided(call, workflow, identified, stored)?;
        match decision {
            Decision::Proceed | Decision::Retry | Decision::NextRound | Decision::Fork
                if call.was_forwarded && call.policy.delivery == Delivery::AtMostOnce =>
            {
                Ok(AdmissionVerdict::Refuse(Box::new(Refused {
                    why: Why::Table(decision),
                    letter,
                    entry: Some(entry.clone()),
                    seq: Some(entry.seq),
                    diff: Vec::new(),
                    reason: Some("fenced".into()),
                })))
            }
            Decision::Proceed | Decision::Retry | Decision::NextRound => {
                self.reserve_on(call, workflow, entry, decision, letter)
            }
            Decision::Replay => self.replay(entry, identified, letter),
            Decision::Join => Ok(AdmissionVerdict::Join {
                ticket: Ticket::of(entry),
                is_ours: self.session == Some(entry.session),
                limit: (entry.gave_up.is_some() || !self.is_attended(entry.session))
                    .then(|| call.policy.timeout.unwrap_or(self.options.join_max)),
                letter,
            }),
            Decision::Fork => self.fork(call, workflow, entry, letter),
            Decision::Diverge | Decision::InFlight => {
                let diff = if facts.signature == SignatureFact::Other {
                    self.diff(entry, call)?
                } else {
                    Vec::new()
                };
                Ok(AdmissionVerdict::Refuse(Box::new(Refused {
                    why: Why::Table(decision),
                    letter,
                    entry: Some(entry.clone()),
                    seq: Some(entry.seq),
                    diff,
                    reason: None,
                })))
            }
            Decision::InDoubt
            | Decision::Abandon
            | Decision::Deny
            | Decision::Quarantine
            | Decision::Expired => Ok(AdmissionVerdict::Refuse(Box::new(Refused {
                why: Why::Table(decision),
                letter,
                entry: Some(entry.clone()),
                seq: Some(entry.seq),
                diff: Vec::new(),
                reason: entry.unanswered.map(|reason| reason.name().to_owned()),
            }))),
        }
    }

    /// Opens a branch at the entry's place and reserves the call there. Nothing of the parent
    /// changes.
    fn fork(
        &mut self,
        call: &Call,
        workflow: &Workflow,
        entry: &Entry,
        letter: Letter,
    ) -> Result<AdmissionVerdict, JournalError> {
        if let Some(refused) = self.may_not_start(workflow, true)? {
            return Ok(refused);
        }
        let parent = (workflow.active.id, entry.seq);
        let branch = self.tx.create_branch(workflow.number, parent, self.now)?;
        let reservation = self.reservation(call, workflow, branch.id, entry.seq)?;
        let note = Note {
            kind: "forked",
            entry: Some((branch.id, entry.seq, Some(reservation.fence))),
            letter: Some(letter.0),
            detail: Some(format!(
                "{{\"branch\":{},\"parent\":{}}}",
                branch.number, workflow.active.number
            )),
            merges: false,
        };
        let transition = lifecycle::reserve_new(reservation);
        self.finish(call, transition, None, letter, Some(note))
    }

    /// Returns the refusal of a call that may not start, whatever its entry.
    fn may_not_start(
        &mut self,
        workflow: &Workflow,
        is_new: bool,
    ) -> Result<Option<AdmissionVerdict>, JournalError> {
        let session = self.ensure_session()?;
        let is_superseded = workflow.generation.is_some_and(|newer| newer > session);
        let why = if is_superseded {
            Why::StaleGeneration
        } else if let Some(max) = self.options.calls_max.filter(|_| is_new)
            && self.tx.count_entries(workflow.number)? >= max
        {
            Why::LimitReached
        } else {
            return Ok(None);
        };
        Ok(Some(AdmissionVerdict::Refuse(Box::new(Refused {
            why,
            letter: Letter('A'),
            entry: None,
            seq: None,
            diff: Vec::new(),
            reason: None,
        }))))
    }

    fn diff(&mut self, entry: &Entry, call: &Call) -> Result<Vec<String>, JournalError> {
        // A call that has gone out has left its arguments with its line.
        if call.was_forwarded && call.arguments.is_none() {
            return Ok(Vec::new());
        }
        let Some(attempt) = self.tx.attempt(entry.fence)? else {
            return Ok(Vec::new());
        };
        // Arguments that were buried can't be compared; those that never were have no bytes.
        let is_buried = attempt.arguments.is_none() && attempt.arguments_bytes > 0;
        if attempt.is_redacted || is_buried || self.options.redacts {
            return Ok(Vec::new());
        }
        let stored = attempt.arguments.as_deref().unwrap_or(b"{}");
        let incoming = call.arguments.as_deref().unwrap_or(b"{}");
        if json::check(stored).is_err() || json::check(incoming).is_err() {
            return Ok(Vec::new());
        }
        Ok(json::diff(stored, incoming, DIFF_MAX))
    }

    fn replay(
        &mut self,
        entry: &Entry,
        identified: Identified,
        letter: Letter,
    ) -> Result<AdmissionVerdict, JournalError> {
        let fence = if seeded::has(Bug::WrongEntryReplayed) {
            Fence(entry.fence.0.saturating_sub(1).max(1))
        } else {
            entry.fence
        };
        let outcome = match self.tx.outcome(fence) {
            Ok(outcome) => outcome,
            Err(JournalError::Unreadable(_)) => None,
            Err(error) => return Err(error),
        };
        let task_end = match self.tx.task_end(entry.fence) {
            Ok(end) => end,
            Err(JournalError::Unreadable(_)) => {
                return Ok(quarantine(Some(entry.clone()), Some(entry.seq)));
            }
            Err(error) => return Err(error),
        };
        let Some(outcome) = outcome else {
            return Ok(quarantine(Some(entry.clone()), Some(entry.seq)));
        };
        // The entry's checksum covers the digest of its current outcome: the task's end where
        // there is one. What is served must be those very bytes.
        let current = task_end.as_ref().unwrap_or(&outcome);
        let holds = Some(current.digest) == entry.digest
            && [Some(&outcome), task_end.as_ref()]
                .into_iter()
                .flatten()
                .all(|outcome| {
                    outcome
                        .body
                        .as_ref()
                        .is_some_and(|body| outcome_digest(body) == outcome.digest)
                });
        let trusts = seeded::has(Bug::DigestIgnored) || seeded::has(Bug::WrongEntryReplayed);
        if !holds && !trusts {
            return Ok(quarantine(Some(entry.clone()), Some(entry.seq)));
        }
        let protocol_version = self
            .tx
            .attempt(entry.fence)?
            .and_then(|attempt| attempt.protocol_version);
        Ok(AdmissionVerdict::Replay(Box::new(Replay {
            entry: entry.clone(),
            outcome,
            task_end,
            protocol_version,
            is_marked: identified == Identified::Guard,
            letter,
        })))
    }

    fn reservation(
        &mut self,
        call: &Call,
        workflow: &Workflow,
        branch: BranchId,
        seq: Seq,
    ) -> Result<Reservation, JournalError> {
        let (scheme, signature) = self.own_signature(call.signature);
        let session = self.ensure_session()?;
        Ok(Reservation {
            branch,
            seq,
            tool: call.tool.clone(),
            scheme,
            signature,
            fence: self.next_fence()?,
            session,
            at: self.now,
            key: self.held_keys(call, workflow).into_iter().next(),
            call_id: call.call_id.clone(),
        })
    }

    fn next_fence(&mut self) -> Result<Fence, JournalError> {
        let next = self.tx.next_fence()?;
        Ok(if seeded::has(Bug::FenceReused) {
            Fence((next.0 - 1).max(1))
        } else {
            next
        })
    }

    fn attempt(&self, call: &Call, entry: &Entry, previous: Option<Fence>) -> Attempt {
        let redacts = self.options.redacts && call.arguments.is_some();
        Attempt {
            fence: entry.fence,
            branch: entry.branch,
            seq: entry.seq,
            attempt: entry.attempt,
            round: entry.round,
            previous,
            session: entry.session,
            started_at: self.now,
            scheme: entry.scheme,
            signature: entry.signature,
            arguments: if redacts {
                None
            } else {
                call.arguments.clone()
            },
            arguments_bytes: call
                .arguments
                .as_ref()
                .map_or(0, |arguments| arguments.len() as u64),
            is_redacted: redacts,
            protocol_version: call.protocol_version.clone(),
            tool_revision: call.tool_revision.clone(),
            policy: call.policy_record.as_deref().map(str::to_owned),
            traceparent: call.traceparent.clone(),
        }
    }

    fn reserve_new(
        &mut self,
        call: &Call,
        workflow: &Workflow,
        place: Option<(Branch, Seq)>,
    ) -> Result<AdmissionVerdict, JournalError> {
        if let Some(refused) = self.may_not_start(workflow, true)? {
            return Ok(refused);
        }
        let (branch, seq) = match place {
            // A seq that was left out before the fork is filled in the past that is shared, which
            // is where it is looked for. What another workflow left out is not ours to fill.
            Some((branch, seq)) if branch.workflow != workflow.number => {
                return Ok(AdmissionVerdict::Refuse(Box::new(Refused {
                    why: Why::Table(Decision::Diverge),
                    letter: Letter('A'),
                    entry: None,
                    seq: Some(seq),
                    diff: Vec::new(),
                    reason: Some("the workflow that this one was forked from left it out".into()),
                })));
            }
            Some(place) => place,
            None => {
                let branch = self
                    .tx
                    .branch(workflow.active.id)?
                    .ok_or_else(|| JournalError::Damaged("a workflow without its branch".into()))?;
                (branch, Seq(branch.highest + 1))
            }
        };
        let reservation = self.reservation(call, workflow, branch.id, seq)?;
        let transition = lifecycle::reserve_new(reservation);
        self.finish(call, transition, None, Letter('A'), None)
    }

    fn reserve_on(
        &mut self,
        call: &Call,
        workflow: &Workflow,
        entry: &Entry,
        decision: Decision,
        letter: Letter,
    ) -> Result<AdmissionVerdict, JournalError> {
        if let Some(refused) = self.may_not_start(workflow, false)? {
            return Ok(refused);
        }
        let mut reservation = self.reservation(call, workflow, entry.branch, entry.seq)?;
        // The seq says which entry is meant; a key that another one holds stays that one's.
        if reservation.key != entry.key && self.is_held(call, workflow)? {
            reservation.key = None;
        }
        let transition = match decision {
            Decision::NextRound => lifecycle::reserve_round(entry, reservation),
            _ => lifecycle::reserve_again(entry, reservation),
        };
        let transition = transition
            // The table and the lifecycle agree on what may run; if they ever do not, nothing runs.
            .map_err(|illegal| JournalError::Unreadable(illegal.to_string()))?;
        let event = (decision == Decision::Retry).then_some(Note {
            kind: "retried",
            entry: Some((entry.branch, entry.seq, Some(transition.entry.fence))),
            letter: Some(letter.0),
            detail: None,
            merges: false,
        });
        self.finish(call, transition, Some(entry.fence), letter, event)
    }

    fn finish(
        &mut self,
        call: &Call,
        mut transition: lifecycle::Transition,
        previous: Option<Fence>,
        letter: Letter,
        note: Option<Note>,
    ) -> Result<AdmissionVerdict, JournalError> {
        transition.entry.gave_up = call.gave_up;
        let ticket = Ticket::of(&transition.entry);
        let attempt = self.attempt(call, &transition.entry, previous);
        let event = note.as_ref().map(|note| self.event(note));
        let entry = transition.entry.clone();
        match self.write(transition, Some(attempt), None, event)? {
            Applied::Done => {
                if call.policy.delivery == Delivery::AtLeastOnce {
                    self.lease(ticket.fence, call.policy.lease_ttl)?;
                }
                self.highest = self.highest.max(Some(ticket.fence));
                Ok(AdmissionVerdict::Run(ticket, letter))
            }
            // No other writer is in this transaction, so what was read a moment ago is still so.
            Applied::Lost => Ok(quarantine(Some(entry), Some(ticket.seq))),
        }
    }
}

/// Whether the call has the key's arguments, as far as the policy's `key_covers` goes. Arguments
/// that are not on the disk can't be compared, so then the whole signature counts.
fn is_covered(call: &Call, entry: &Entry, attempt: Option<&Attempt>) -> bool {
    if seeded::has(Bug::KeyCoversAll) {
        return true;
    }
    let Some(attempt) = attempt.filter(|attempt| !attempt.is_redacted) else {
        return false;
    };
    call.policy.key_covers.is_some()
        && !seeded::has(Bug::KeyCoversNothing)
        && entry.tool == call.tool
        && covers_equal(
            &call.policy,
            attempt.arguments.as_deref(),
            call.arguments.as_deref(),
        )
}

fn quarantine(entry: Option<Entry>, seq: Option<Seq>) -> AdmissionVerdict {
    AdmissionVerdict::Refuse(Box::new(Refused {
        why: Why::Table(Decision::Quarantine),
        letter: Letter('Q'),
        entry,
        seq,
        diff: Vec::new(),
        reason: None,
    }))
}

#[cfg(test)]
mod tests;
