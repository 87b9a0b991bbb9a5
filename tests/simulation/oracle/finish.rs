//! Whose answer is an entry's outcome, where an attempt before the current one may finish it.

use super::*;

impl Oracle {
    /// The answer that an attempt stands for.
    pub(super) fn outcome_of(&self, fence: Fence) -> Option<usize> {
        let settled = self.settled.get(&fence).copied();
        settled.or_else(|| self.answered.get(&fence).copied())
    }

    /// The attempt under which an answer stands as its outcome.
    pub(super) fn stands_under(&self, memory: &MemoryJournal, token: usize) -> Option<Fence> {
        let answer = &self.answers[token];
        let told = answer.ends.unwrap_or(token);
        let under = self.settled.iter().rev();
        let under = under.filter(|(_, settled)| **settled == told || **settled == token);
        let holds = |fence: &Fence| {
            let stored = [memory.task_end(*fence), memory.outcome(*fence)];
            let mut stored = stored.into_iter().flatten();
            stored.any(|outcome| match outcome.body.as_deref() {
                Some(body) => body == answer.body.as_bytes(),
                None => !self.promise.stores_results,
            })
        };
        let under: Vec<Fence> = under.map(|(fence, _)| *fence).collect();
        let first = under.iter().copied().find(holds);
        first
            .or(self.answers[told].fence)
            .or(under.first().copied())
    }

    /// The attempt whose answer finishes a PENDING entry in this batch, told by who may: its own,
    /// or with `fence_results = false` one before it of the same call, at its round or later.
    pub(super) fn finisher(
        &self,
        memory: &MemoryJournal,
        batch: &Batch<'_>,
        place: (BranchId, Seq),
        old: &Row,
    ) -> Option<(Fence, usize)> {
        batch.ops.iter().find_map(|op| {
            let Op::Settle(Settlement::Answered { ticket, .. }) = op else {
                return None;
            };
            let is_here = (ticket.branch, ticket.seq) == place;
            if !is_here || !self.may_finish(memory, ticket.fence, old) {
                return None;
            }
            let answer = self.answered.get(&ticket.fence)?;
            Some((ticket.fence, *answer))
        })
    }

    /// Whether the answer to an attempt may finish what a row is at.
    pub(super) fn may_finish(&self, memory: &MemoryJournal, fence: Fence, old: &Row) -> bool {
        if fence == old.fence {
            return true;
        }
        let Some(attempt) = memory.attempt(fence) else {
            return false;
        };
        !self.promise.fences_results
            && fence < old.fence
            && attempt.round >= old.round
            && Self::arguments_of(memory, fence) == Self::arguments_of(memory, old.fence)
    }

    /// Notes which answers have become outcomes in a batch, and which came too late.
    pub(super) fn note_finishers(&mut self, memory: &MemoryJournal, batch: &Batch<'_>) {
        let mut now: BTreeMap<(BranchId, Seq), Fence> = BTreeMap::new();
        for (at, op) in batch.ops.iter().enumerate() {
            let done = batch.done.get(at);
            if let Some(Done::Admitted(admission)) = done
                && let AdmissionVerdict::Run(ticket, _) = &admission.verdict
            {
                now.insert((ticket.branch, ticket.seq), ticket.fence);
            }
            let Op::Settle(Settlement::Answered { ticket, .. }) = op else {
                continue;
            };
            let place = (ticket.branch, ticket.seq);
            let Some(token) = self.answered.get(&ticket.fence).copied() else {
                continue;
            };
            let stands = now.get(&place).copied();
            let stands = stands.or_else(|| self.rows.get(&place).map(|row| row.fence));
            let Some(stands) = stands else { continue };
            match done {
                Some(Done::Settled(_)) if stands != ticket.fence => {
                    self.settled.insert(stands, token);
                    self.seen.first_finishers += 1;
                }
                Some(Done::Stale) => {
                    self.seen.stale_answers += 1;
                    let kept = self.stale.entry(place).or_default();
                    kept.push((ticket.fence, token));
                }
                // Nobody was told what became of it; the row tells.
                None if stands != ticket.fence => {
                    let body = self.answers[token].body.as_bytes();
                    let stored = memory.outcome(stands).and_then(|it| it.body.as_deref());
                    if stored == Some(body) && !self.ruled.contains(&stands) {
                        self.settled.insert(stands, token);
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether an answer came too late for an entry and is kept.
    pub(crate) fn has_stale_answers(&self, place: (BranchId, Seq)) -> bool {
        self.stale.contains_key(&place)
    }

    pub(crate) fn has_stale_answer(&self) -> bool {
        !self.stale.is_empty()
    }

    /// I6: an outcome that could not be written is known not to come, once the journal works again:
    /// whoever has joined its call is told.
    pub(crate) fn unwritten_is_known(&self, shared: &Shared, life: usize) -> Check {
        let Some(memory) = shared.memory() else {
            return Ok(());
        };
        for (serial, request) in self.requests.iter().enumerate() {
            let (true, Some(grant)) = (request.is_unwritten, request.grant) else {
                continue;
            };
            let place = (grant.branch, grant.seq);
            let row = memory
                .entries()
                .map(|stored| &stored.entry)
                .find(|entry| (entry.branch, entry.seq) == place);
            let is_open = row.is_some_and(|entry| {
                entry.fence == grant.fence
                    && entry.status == Status::Pending
                    && entry.unanswered.is_none()
            });
            holds!(
                request.life != life || !is_open || self.spoiled.contains(&place),
                "I6 the outcome of c{serial} was not written, and its place waits for it"
            );
        }
        Ok(())
    }

    /// D3: what was written to a caller that waited counts as delivered.
    pub(super) fn deliveries_are_noted(&self, batch: &Batch<'_>) -> Check {
        for (op, _) in batch.ops.iter().zip(batch.done) {
            let Op::Deliver(ticket) = op else { continue };
            let place = (ticket.branch, ticket.seq);
            let Some(row) = self.rows.get(&place) else {
                continue;
            };
            let has_outcome = !matches!(row.status, Status::Pending | Status::Voided);
            let is_it = self.outcome_of(ticket.fence).is_some()
                && (ticket.fence == row.fence || !self.ruled.contains(&row.fence))
                && self.outcome_of(ticket.fence) == self.outcome_of(row.fence);
            holds!(
                !(has_outcome && is_it) || row.is_delivered || self.spoiled.contains(&place),
                "D3 the outcome of {place:?} was written, and does not count as delivered"
            );
        }
        Ok(())
    }
}
