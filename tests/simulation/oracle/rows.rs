//! Each row beside what it was, and each change beside who made it.

use super::*;

impl Oracle {
    /// Compares all rows with what they were, and each change with who made it.
    pub(crate) fn compare_rows(
        &mut self,
        memory: &MemoryJournal,
        batch: Option<&Batch<'_>>,
    ) -> Check {
        let mut count = 0;
        let mut highest = self.fence_max;
        for stored in memory.entries() {
            let entry = &stored.entry;
            let place = (entry.branch, entry.seq);
            let row = Row {
                status: entry.status,
                fence: entry.fence,
                session: entry.session,
                is_delivered: entry.delivered_at.is_some(),
                gave_up: entry.gave_up.is_some(),
                unanswered: entry.unanswered.is_some(),
                completed_at: entry.completed_at.map_or(0, |at| at.0),
                serial: entry.call_id.as_deref().and_then(Self::serial_of_call_id),
            };
            count += 1;
            if !self.spoiled.contains(&place) {
                self.change(memory, place, &row, batch)?;
            }
            highest = highest.max(row.fence.0);
            if let Some(serial) = row.serial {
                self.by_fence.insert(row.fence, serial);
            }
            self.rows.insert(place, row);
        }
        self.fence_max = highest;
        let fences: HashSet<Fence> = self.rows.values().map(|row| row.fence).collect();
        holds!(
            fences.len() == self.rows.len() || !self.spoiled.is_empty(),
            "I7 two entries stand under one fence"
        );
        let lost = self
            .rows
            .keys()
            .filter(|place| self.spoiled.contains(place))
            .count();
        holds!(
            count + lost >= self.rows.len(),
            "an entry is gone from the journal"
        );
        Ok(())
    }

    pub(super) fn change(
        &self,
        memory: &MemoryJournal,
        place: (BranchId, Seq),
        new: &Row,
        batch: Option<&Batch<'_>>,
    ) -> Check {
        let Some(old) = self.rows.get(&place) else {
            holds!(
                new.status == Status::Pending,
                "I7 {place:?} began as {:?}",
                new.status
            );
            holds!(
                new.fence.0 > self.fence_max,
                "I7 fence {} was used before",
                new.fence
            );
            return Ok(());
        };
        if new.is_delivered && !old.is_delivered && new.status != Status::Voided {
            holds!(
                self.written.contains(&new.fence),
                "D1 {place:?} counts as delivered, and nothing was written"
            );
        }
        if old.fence != new.fence {
            holds!(
                new.fence.0 > self.fence_max,
                "I7 fence {} of {place:?} was used before",
                new.fence
            );
            let voided_now = batch.is_some_and(|batch| {
                batch.ops.iter().any(|op| {
                    matches!(op, Op::Settle(Settlement::Void { ticket, .. })
                        if ticket.fence == old.fence)
                })
            });
            if old.status == Status::Pending && voided_now {
                self.void_is_true(old)?;
            } else {
                holds!(
                    old.status == Status::Voided,
                    "I1 {place:?} runs again after {:?}",
                    old.status
                );
            }
            return Ok(());
        }
        if old.status == new.status {
            return Ok(());
        }
        holds!(
            old.status == Status::Pending,
            "I7 {place:?} went from {:?} to {:?}",
            old.status,
            new.status
        );
        let Some(batch) = batch else { return Ok(()) };
        holds!(
            batch.session == Some(old.session),
            "I7 {place:?} of {:?} was settled by {:?}",
            old.session,
            batch.session
        );
        if new.status == Status::Voided {
            return self.void_is_true(old);
        }
        let serial = old.serial.ok_or("a row without its call")?;
        let request = &self.requests[serial];
        let answer = request
            .answer
            .ok_or_else(|| format!("I8 {place:?} has an outcome, and no answer was read"))?;
        let given = &self.answers[answer];
        let stored = memory.outcome(new.fence).and_then(|o| o.body.clone());
        holds!(
            stored.as_deref() == Some(given.body.as_bytes()),
            "I8 {place:?} holds another answer than the first one #{answer}#"
        );
        let fits = match given.kind {
            Kind::Result => new.status == Status::Completed,
            Kind::Error => new.status == Status::Failed && !request.answered_cancelled,
            Kind::Closed => {
                new.status == Status::Failed
                    && !request.answered_closed
                    && !request.answered_cancelled
            }
            Kind::NotExecuted | Kind::Operator => false,
        };
        holds!(
            fits,
            "I8 {place:?} became {:?} by {:?} (cancelled {}, closed {})",
            new.status,
            given.kind,
            request.answered_cancelled,
            request.answered_closed
        );
        Ok(())
    }

    pub(super) fn void_is_true(&self, old: &Row) -> Check {
        let Some(serial) = old.serial else {
            return Ok(());
        };
        let request = &self.requests[serial];
        let granted = request.grant.is_some_and(|grant| grant.fence == old.fence);
        if !granted {
            return Ok(());
        }
        let said = request
            .answer
            .is_some_and(|answer| self.answers[answer].kind == Kind::NotExecuted);
        holds!(
            request.effects == 0,
            "I1 c{serial} is voided, and its effect happened"
        );
        holds!(
            said || !request.reached,
            "I10 c{serial} is voided, and the upstream's pipe had taken bytes of it"
        );
        Ok(())
    }

    /// The rows went back to what was durable (a power cut).
    pub(crate) fn after_power_cut(&mut self, memory: &MemoryJournal) -> Check {
        let highest = memory
            .entries()
            .map(|stored| stored.entry.fence.0)
            .max()
            .unwrap_or(0);
        for (serial, request) in self.requests.iter().enumerate() {
            if let Some(grant) = request.grant
                && request.is_forwarded
            {
                holds!(
                    memory.attempt(grant.fence).is_some(),
                    "I4 the reservation of c{serial} did not survive"
                );
            }
        }
        self.rows.clear();
        self.fence_max = highest;
        for stored in memory.entries() {
            let entry = &stored.entry;
            self.rows.insert(
                (entry.branch, entry.seq),
                Row {
                    status: entry.status,
                    fence: entry.fence,
                    session: entry.session,
                    is_delivered: entry.delivered_at.is_some(),
                    gave_up: entry.gave_up.is_some(),
                    unanswered: entry.unanswered.is_some(),
                    completed_at: entry.completed_at.map_or(0, |at| at.0),
                    serial: entry.call_id.as_deref().and_then(Self::serial_of_call_id),
                },
            );
        }
        Ok(())
    }
}
