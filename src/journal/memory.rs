//! A journal in memory: the second back-end of the conformance suite, and the simulation's.
//!
//! A transaction works on a copy and swaps it in at commit, so that dropping one rolls back.
//!
//! Must not: be used where anything must survive the process.

use std::collections::BTreeMap;

use super::{
    Applied, Attempt, Branch, Durability, Event, EventRow, Identity, Journal, JournalError,
    Outcome, Session, Stored, TaskKey, Transaction, Workflow, Write,
};
use crate::rules::entry::Status;
use crate::rules::ids::{BranchId, Fence, HeldKey, Micros, Seq, SessionId, WorkflowId};
use crate::rules::lifecycle::Expect;
use crate::rules::signature::{Scheme, Signature};

#[derive(Clone, Debug, Default)]
struct State {
    workflows: BTreeMap<WorkflowId, (u64, [u8; 16], BranchId)>,
    branches: BTreeMap<BranchId, Branch>,
    gaps: BTreeMap<(BranchId, Seq), ()>,
    entries: BTreeMap<(BranchId, Seq), Stored>,
    attempts: BTreeMap<Fence, Attempt>,
    outcomes: BTreeMap<Fence, Outcome>,
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
}

impl Transaction for MemoryTransaction<'_> {
    fn workflow(&mut self, id: &WorkflowId) -> Result<Option<Workflow>, JournalError> {
        let Some((number, uid, active)) = self.work.workflows.get(id) else {
            return Ok(None);
        };
        let active = self
            .work
            .branches
            .get(active)
            .copied()
            .ok_or_else(|| JournalError::Damaged("no active branch".into()))?;
        Ok(Some(Workflow {
            number: *number,
            id: id.clone(),
            uid: *uid,
            active,
        }))
    }

    fn create_workflow(
        &mut self,
        id: &WorkflowId,
        uid: [u8; 16],
        _at: Micros,
    ) -> Result<Workflow, JournalError> {
        let number = self.work.workflows.len() as u64 + 1;
        let branch = BranchId(self.work.branches.len() as u64 + 1);
        self.work.branches.insert(
            branch,
            Branch {
                id: branch,
                workflow: number,
                number: 0,
                parent: None,
                highest: 0,
            },
        );
        self.work
            .workflows
            .insert(id.clone(), (number, uid, branch));
        self.workflow(id)?
            .ok_or_else(|| JournalError::Damaged("a new workflow is not there".into()))
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

    fn by_task(&mut self, task_id: &str) -> Result<Vec<(Stored, TaskKey)>, JournalError> {
        Ok(self
            .work
            .entries
            .values()
            .filter_map(|stored| {
                let outcome = self.work.outcomes.get(&stored.entry.fence)?;
                let task = outcome.task.clone()?;
                (task.id == task_id).then(|| (stored.clone(), task))
            })
            .collect())
    }

    fn outcome(&mut self, fence: Fence) -> Result<Option<Outcome>, JournalError> {
        Ok(self.work.outcomes.get(&fence).cloned())
    }

    fn task_end(&mut self, fence: Fence) -> Result<Option<Outcome>, JournalError> {
        Ok(self.work.task_ends.get(&fence).cloned())
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
        let highest = self.work.attempts.keys().next_back();
        Ok(Fence(highest.map_or(0, |fence| fence.0) + 1))
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

    fn commit(self) -> Result<(), JournalError> {
        self.journal.identity.key_fingerprint = self.work.key_fingerprint;
        self.journal.state = self.work;
        Ok(())
    }
}
