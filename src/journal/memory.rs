//! A journal in memory: the second back-end of the conformance suite, and the simulation's.
//!
//! A transaction works on a copy and swaps it in at commit, so that dropping one rolls back.
//!
//! Must not: be used where anything must survive the process.

use std::collections::BTreeMap;

use super::{
    Applied, Attempt, Branch, Durability, Event, EventRow, Identity, Journal, JournalError, Lease,
    Outcome, Payload, Session, Stored, TaskKey, Transaction, Workflow, Write,
};
use crate::rules::entry::Status;
use crate::rules::flight::Flight;
use crate::rules::ids::{BranchId, Fence, HeldKey, Micros, Seq, SessionId, WorkflowId};
use crate::rules::lifecycle::Expect;
use crate::rules::signature::{Scheme, Signature};

#[derive(Clone, Debug, Default)]
struct State {
    workflows: BTreeMap<WorkflowId, Workflow>,
    leases: BTreeMap<Fence, Lease>,
    branches: BTreeMap<BranchId, Branch>,
    gaps: BTreeMap<(BranchId, Seq), ()>,
    entries: BTreeMap<(BranchId, Seq), Stored>,
    attempts: BTreeMap<Fence, Attempt>,
    outcomes: BTreeMap<Fence, Outcome>,
    /// The fence that was next when an outcome was committed.
    next_fences: BTreeMap<Fence, Fence>,
    task_ends: BTreeMap<Fence, Outcome>,
    events: Vec<EventRow>,
    sessions: BTreeMap<SessionId, Session>,
    key_fingerprint: Option<[u8; 32]>,
}

/// A journal that ends with the process.
#[derive(Clone, Debug)]
pub struct MemoryJournal {
    identity: Identity,
    state: State,
}

impl MemoryJournal {
    /// Makes an empty journal.
    #[must_use]
    pub fn new(uid: [u8; 16], own_workflow: WorkflowId) -> Self {
        Self {
            identity: Identity {
                uid,
                own_workflow,
                key_fingerprint: None,
            },
            state: State::default(),
        }
    }

    /// Returns the entries, by branch and seq.
    pub fn entries(&self) -> impl Iterator<Item = &Stored> {
        self.state.entries.values()
    }

    /// Returns an attempt.
    #[must_use]
    pub fn attempt(&self, fence: Fence) -> Option<&Attempt> {
        self.state.attempts.get(&fence)
    }

    /// Returns the outcome of an attempt.
    #[must_use]
    pub fn outcome(&self, fence: Fence) -> Option<&Outcome> {
        self.state.outcomes.get(&fence)
    }

    /// Returns the end of an attempt's task.
    #[must_use]
    pub fn task_end(&self, fence: Fence) -> Option<&Outcome> {
        self.state.task_ends.get(&fence)
    }

    /// Damages an entry, or takes it away (`None`), as a bad disk would.
    #[cfg(feature = "test-fakes")]
    pub fn spoil_entry(
        &mut self,
        branch: BranchId,
        seq: Seq,
        change: Option<&mut dyn FnMut(&mut crate::rules::entry::Entry)>,
    ) {
        match change {
            Some(change) => {
                if let Some(stored) = self.state.entries.get_mut(&(branch, seq)) {
                    change(&mut stored.entry);
                }
            }
            None => {
                self.state.entries.remove(&(branch, seq));
            }
        }
    }

    /// Damages the bytes of an outcome, as a bad disk would.
    #[cfg(feature = "test-fakes")]
    pub fn spoil_outcome(&mut self, fence: Fence, body: Vec<u8>) {
        if let Some(outcome) = self.state.outcomes.get_mut(&fence) {
            outcome.body = Some(body.into());
        }
    }
}

impl Journal for MemoryJournal {
    type Tx<'a> = MemoryTransaction<'a>;

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn begin(&mut self, _durability: Durability) -> Result<MemoryTransaction<'_>, JournalError> {
        let work = self.state.clone();
        Ok(MemoryTransaction {
            journal: self,
            work,
            settled: Vec::new(),
        })
    }

    fn reconnect(&mut self) -> Result<(), JournalError> {
        Ok(())
    }
}

/// A transaction of a [`MemoryJournal`].
#[derive(Debug)]
pub struct MemoryTransaction<'a> {
    journal: &'a mut MemoryJournal,
    work: State,
    /// Outcomes of this transaction, which nobody has seen before it is committed.
    settled: Vec<Fence>,
}

impl MemoryTransaction<'_> {
    fn next(&self) -> Fence {
        let highest = self.work.attempts.keys().next_back();
        Fence(highest.map_or(0, |fence| fence.0) + 1)
    }
}

impl Transaction for MemoryTransaction<'_> {
    fn workflow(&mut self, id: &WorkflowId) -> Result<Option<Workflow>, JournalError> {
        let Some(mut workflow) = self.work.workflows.get(id).cloned() else {
            return Ok(None);
        };
        workflow.active = self
            .work
            .branches
            .get(&workflow.active.id)
            .copied()
            .ok_or_else(|| JournalError::Damaged("no active branch".into()))?;
        Ok(Some(workflow))
    }

    fn workflow_of(&mut self, number: u64) -> Result<Option<(WorkflowId, [u8; 16])>, JournalError> {
        let mut workflows = self.work.workflows.values();
        let found = workflows.find(|workflow| workflow.number == number);
        Ok(found.map(|workflow| (workflow.id.clone(), workflow.uid)))
    }

    fn create_workflow(
        &mut self,
        id: &WorkflowId,
        uid: [u8; 16],
        _at: Micros,
    ) -> Result<Workflow, JournalError> {
        let number = self.work.workflows.len() as u64 + 1;
        let active = Branch {
            id: BranchId(self.work.branches.len() as u64 + 1),
            workflow: number,
            number: 0,
            parent: None,
            highest: 0,
        };
        self.work.branches.insert(active.id, active);
        let workflow = Workflow {
            number,
            id: id.clone(),
            uid,
            active,
            generation: None,
        };
        self.work.workflows.insert(id.clone(), workflow.clone());
        Ok(workflow)
    }

    fn create_branch(
        &mut self,
        workflow: u64,
        parent: (BranchId, Seq),
        _at: Micros,
    ) -> Result<Branch, JournalError> {
        let of_workflow = self.work.branches.values();
        let highest = of_workflow
            .filter(|branch| branch.workflow == workflow)
            .map(|branch| branch.number)
            .max();
        let branch = Branch {
            id: BranchId(self.work.branches.len() as u64 + 1),
            workflow,
            number: highest.map_or(0, |number| number + 1),
            parent: Some(parent),
            highest: parent.1.0 - 1,
        };
        self.work.branches.insert(branch.id, branch);
        for held in self.work.workflows.values_mut() {
            if held.number == workflow {
                held.active = branch;
            }
        }
        Ok(branch)
    }

    fn fork_workflow(
        &mut self,
        id: &WorkflowId,
        uid: [u8; 16],
        parent: (BranchId, Seq),
        at: Micros,
    ) -> Result<Workflow, JournalError> {
        let mut made = self.create_workflow(id, uid, at)?;
        made.active.parent = Some(parent);
        made.active.highest = parent.1.0.saturating_sub(1);
        self.work.branches.insert(made.active.id, made.active);
        self.work.workflows.insert(id.clone(), made.clone());
        Ok(made)
    }

    fn set_generation(&mut self, workflow: u64, session: SessionId) -> Result<(), JournalError> {
        for held in self.work.workflows.values_mut() {
            if held.number == workflow {
                held.generation = Some(session);
            }
        }
        Ok(())
    }

    fn count_entries(&mut self, workflow: u64) -> Result<u64, JournalError> {
        let branches = &self.work.branches;
        Ok(self
            .work
            .entries
            .keys()
            .filter(|(branch, _)| {
                branches
                    .get(branch)
                    .is_some_and(|branch| branch.workflow == workflow)
            })
            .count() as u64)
    }

    fn next_entry(&mut self, branch: BranchId, after: Seq) -> Result<Option<Stored>, JournalError> {
        Ok(self
            .work
            .entries
            .range((branch, Seq(after.0 + 1))..=(branch, Seq(u64::MAX)))
            .next()
            .map(|(_, stored)| stored.clone()))
    }

    fn lease(&mut self, fence: Fence) -> Result<Option<Lease>, JournalError> {
        Ok(self.work.leases.get(&fence).cloned())
    }

    fn put_lease(&mut self, fence: Fence, lease: &Lease) -> Result<(), JournalError> {
        self.work.leases.insert(fence, lease.clone());
        Ok(())
    }

    fn branch(&mut self, id: BranchId) -> Result<Option<Branch>, JournalError> {
        Ok(self.work.branches.get(&id).copied())
    }

    fn entry(&mut self, branch: BranchId, seq: Seq) -> Result<Option<Stored>, JournalError> {
        Ok(self.work.entries.get(&(branch, seq)).cloned())
    }

    fn is_gap(&mut self, branch: BranchId, seq: Seq) -> Result<bool, JournalError> {
        Ok(self.work.gaps.contains_key(&(branch, seq)))
    }

    fn undelivered(
        &mut self,
        branch: BranchId,
        signatures: &[(Scheme, Signature)],
    ) -> Result<Vec<Stored>, JournalError> {
        Ok(self
            .work
            .entries
            .values()
            .filter(|stored| {
                let entry = &stored.entry;
                entry.branch == branch
                    && entry.delivered_at.is_none()
                    && signatures.contains(&(entry.scheme, entry.signature))
            })
            .cloned()
            .collect())
    }

    fn by_key(&mut self, key: &HeldKey) -> Result<Option<Stored>, JournalError> {
        Ok(self
            .work
            .entries
            .values()
            .filter(|stored| stored.entry.key.as_ref() == Some(key))
            .min_by_key(|stored| stored.entry.fence)
            .cloned())
    }

    fn by_state(&mut self, state: &[u8; 32]) -> Result<Vec<(BranchId, Seq, Fence)>, JournalError> {
        Ok(self
            .work
            .outcomes
            .values()
            .filter(|outcome| {
                outcome
                    .round
                    .as_ref()
                    .is_some_and(|round| round.state.as_ref() == Some(state))
            })
            .filter_map(|outcome| self.work.attempts.get(&outcome.fence))
            .map(|attempt| (attempt.branch, attempt.seq, attempt.fence))
            .collect())
    }

    fn by_task(&mut self, task_id: &str) -> Result<Vec<(Stored, Fence, TaskKey)>, JournalError> {
        Ok(self
            .work
            .outcomes
            .values()
            .filter_map(|outcome| {
                let task = outcome.task.clone().filter(|task| task.id == task_id)?;
                let attempt = self.work.attempts.get(&outcome.fence)?;
                let stored = self.work.entries.get(&(attempt.branch, attempt.seq))?;
                Some((stored.clone(), outcome.fence, task))
            })
            .collect())
    }

    fn outcome(&mut self, fence: Fence) -> Result<Option<Outcome>, JournalError> {
        Ok(self.work.outcomes.get(&fence).cloned())
    }

    fn task_end(&mut self, fence: Fence) -> Result<Option<Outcome>, JournalError> {
        Ok(self.work.task_ends.get(&fence).cloned())
    }

    fn flights(&mut self, fence: Fence) -> Result<Vec<Flight>, JournalError> {
        let mut flights = Vec::new();
        let mut next = self.work.attempts.get(&fence);
        while let Some(attempt) = next {
            let fence = attempt.fence;
            flights.push(Flight {
                fence,
                next: if self.settled.contains(&fence) {
                    Some(self.next())
                } else {
                    self.work.next_fences.get(&fence).copied()
                },
            });
            let previous = attempt.previous.filter(|older| *older < fence);
            next = previous.and_then(|previous| self.work.attempts.get(&previous));
        }
        Ok(flights)
    }

    fn attempt(&mut self, fence: Fence) -> Result<Option<Attempt>, JournalError> {
        Ok(self.work.attempts.get(&fence).cloned())
    }

    fn has_scheme(&mut self, scheme: Scheme) -> Result<bool, JournalError> {
        Ok(match scheme {
            Scheme::Plain => true,
            Scheme::Keyed => self.work.key_fingerprint.is_some(),
        })
    }

    fn next_fence(&mut self) -> Result<Fence, JournalError> {
        Ok(self.next())
    }

    fn apply(&mut self, write: &Write) -> Result<Applied, JournalError> {
        let entry = &write.transition.entry;
        let place = (entry.branch, entry.seq);
        let found = self.work.entries.get(&place);
        let was = match (write.transition.expect, found) {
            (Expect::Absent, None) => Status::Pending,
            (
                Expect::At {
                    status,
                    attempt,
                    fence,
                },
                Some(stored),
            ) if (
                stored.entry.status,
                stored.entry.attempt,
                stored.entry.fence,
            ) == (status, attempt, fence) =>
            {
                status
            }
            (Expect::Absent, Some(_)) | (Expect::At { .. }, _) => return Ok(Applied::Lost),
        };
        if found.is_none() {
            self.work.gaps.remove(&place);
            if let Some(branch) = self.work.branches.get_mut(&entry.branch) {
                for seq in branch.highest + 1..entry.seq.0 {
                    self.work.gaps.insert((entry.branch, Seq(seq)), ());
                }
                branch.highest = branch.highest.max(entry.seq.0);
            }
        }
        self.work.entries.insert(
            place,
            Stored {
                entry: entry.clone(),
                checksum: write.checksum,
            },
        );
        if let Some(attempt) = &write.attempt {
            self.work.attempts.insert(attempt.fence, attempt.clone());
        }
        if let Some(outcome) = &write.outcome {
            let table = if was == Status::Accepted {
                &mut self.work.task_ends
            } else {
                self.settled.push(outcome.fence);
                &mut self.work.outcomes
            };
            table.insert(outcome.fence, outcome.clone());
        }
        if let Some(event) = &write.event {
            self.event(event)?;
        }
        Ok(Applied::Done)
    }

    fn deliver(
        &mut self,
        branch: BranchId,
        seq: Seq,
        fence: Fence,
        at: Micros,
    ) -> Result<bool, JournalError> {
        let Some(stored) = self.work.entries.get_mut(&(branch, seq)) else {
            return Ok(false);
        };
        let entry = &mut stored.entry;
        if entry.fence != fence || !entry.is_undelivered() {
            return Ok(false);
        }
        entry.delivered_at = Some(at);
        Ok(true)
    }

    fn event(&mut self, event: &Event) -> Result<(), JournalError> {
        event.assert_known();
        if let Some(key) = &event.merge_key {
            let same = self
                .work
                .events
                .iter_mut()
                .find(|row| row.event.merge_key.as_ref() == Some(key));
            if let Some(row) = same {
                row.count += 1;
                row.last_at = row.last_at.max(event.at);
                return Ok(());
            }
        }
        self.work.events.push(EventRow {
            id: self.work.events.len() as u64 + 1,
            event: event.clone(),
            count: 1,
            last_at: event.at,
        });
        Ok(())
    }

    fn events(&mut self, branch: BranchId, seq: Seq) -> Result<Vec<EventRow>, JournalError> {
        Ok(self
            .work
            .events
            .iter()
            .filter(|row| row.event.entry == Some((branch, seq)))
            .cloned()
            .collect())
    }

    fn next_session(&mut self) -> Result<SessionId, JournalError> {
        let highest = self.work.sessions.keys().next_back();
        Ok(SessionId(highest.map_or(0, |id| id.0) + 1))
    }

    fn put_session(&mut self, id: SessionId, session: &Session) -> Result<(), JournalError> {
        self.work.sessions.insert(id, session.clone());
        Ok(())
    }

    fn session(&mut self, id: SessionId) -> Result<Option<Session>, JournalError> {
        Ok(self.work.sessions.get(&id).cloned())
    }

    fn set_key_fingerprint(&mut self, fingerprint: [u8; 32]) -> Result<(), JournalError> {
        self.work.key_fingerprint = Some(fingerprint);
        Ok(())
    }

    fn places_after(
        &mut self,
        after: Option<(BranchId, Seq)>,
        limit: usize,
    ) -> Result<Vec<(BranchId, Seq)>, JournalError> {
        let after = after.unwrap_or((BranchId(0), Seq(0)));
        let places = self.work.entries.keys().copied();
        Ok(places.filter(|place| *place > after).take(limit).collect())
    }

    fn payload_bytes(&mut self, fence: Fence) -> Result<u64, JournalError> {
        let length = |payload: Option<&Payload>| payload.map_or(0, |bytes| bytes.len() as u64);
        let body = |outcome: Option<&Outcome>| length(outcome.and_then(|o| o.body.as_ref()));
        let attempt = self.work.attempts.get(&fence);
        Ok(
            length(attempt.and_then(|attempt| attempt.arguments.as_ref()))
                + body(self.work.outcomes.get(&fence))
                + body(self.work.task_ends.get(&fence)),
        )
    }

    fn drop_payload(&mut self, fence: Fence) -> Result<(), JournalError> {
        if let Some(attempt) = self.work.attempts.get_mut(&fence) {
            attempt.arguments = None;
        }
        for table in [&mut self.work.outcomes, &mut self.work.task_ends] {
            if let Some(outcome) = table.get_mut(&fence) {
                outcome.body = None;
            }
        }
        Ok(())
    }

    fn put_detail(&mut self, event: u64, detail: &str) -> Result<(), JournalError> {
        if let Some(row) = self.work.events.iter_mut().find(|row| row.id == event) {
            row.event.detail = Some(detail.to_owned());
        }
        Ok(())
    }

    fn commit(mut self) -> Result<(), JournalError> {
        let next = self.next();
        let settled = self.settled.iter().map(|fence| (*fence, next));
        self.work.next_fences.extend(settled);
        self.journal.identity.key_fingerprint = self.work.key_fingerprint;
        self.journal.state = self.work;
        Ok(())
    }
}
