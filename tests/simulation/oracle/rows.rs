//! Each row beside what it was, and each change beside who made it.

use super::*;

impl Row {
    pub(super) fn of(entry: &checkpoint::rules::entry::Entry) -> Self {
        Self {
            place: (entry.branch, entry.seq),
            status: entry.status,
            attempt: entry.attempt,
            round: entry.round,
            is_error: entry.is_error,
            fence: entry.fence,
            session: entry.session,
            is_delivered: entry.delivered_at.is_some(),
            gave_up: entry.gave_up.is_some(),
            unanswered: entry.unanswered.is_some(),
            completed_at: entry.completed_at.map_or(0, |at| at.0),
            serial: entry.call_id.as_deref().and_then(Oracle::serial_of_call_id),
        }
    }
}

impl Oracle {
    /// Compares all rows with what they were, and each change with who made it.
    pub(crate) fn compare_rows(&mut self, shared: &Shared, batch: Option<&Batch<'_>>) -> Check {
        let Some(memory) = shared.memory() else {
            return Ok(());
        };
        let mut count = 0;
        let mut highest = self.fence_max;
        for stored in memory.entries() {
            let entry = &stored.entry;
            let place = (entry.branch, entry.seq);
            let row = Row::of(entry);
            count += 1;
            if !self.spoiled.contains(&place) {
                self.change(shared, memory, place, &row, batch)?;
            }
            if self.promise.at_least_once
                && row.status == Status::Pending
                && self
                    .rows
                    .get(&place)
                    .is_none_or(|old| old.fence != row.fence)
            {
                self.renewed(shared, row.fence);
            }
            highest = highest.max(row.fence.0);
            if let Some(serial) = row.serial {
                self.by_fence.insert(row.fence, serial);
            }
            self.rows.insert(place, row);
        }
        self.fence_max = highest;
        if self.resumes {
            self.flights.look(memory);
        }
        self.one_tree()?;
        let fences: BTreeSet<Fence> = self.rows.values().map(|row| row.fence).collect();
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
        &mut self,
        shared: &Shared,
        memory: &MemoryJournal,
        place: (BranchId, Seq),
        new: &Row,
        batch: Option<&Batch<'_>>,
    ) -> Check {
        let Some(old) = self.rows.get(&place).cloned() else {
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
        let old = &old;
        if old.fence > new.fence && new.status == Status::InputRequired {
            return self.question_stands_again(memory, place, old, new, batch);
        }
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
            return self.runs_again(shared, memory, place, old, new, batch);
        }
        if old.status == new.status {
            return Ok(());
        }
        if old.status == Status::Accepted {
            return self.task_ended(memory, place, old, new);
        }
        holds!(
            old.status == Status::Pending,
            "I7 {place:?} went from {:?} to {:?}",
            old.status,
            new.status
        );
        let Some(batch) = batch else { return Ok(()) };
        let finisher = self.finisher(memory, batch, place, old);
        let is_first = finisher.is_some_and(|(fence, _)| fence != old.fence);
        holds!(
            batch.session == Some(old.session) || is_first,
            "I7 {place:?} of {:?} was settled by {:?}",
            old.session,
            batch.session
        );
        if new.status == Status::Voided {
            holds!(
                old.round == 0,
                "R2 {place:?} is voided, and an earlier round of it ran"
            );
            holds!(
                !self.after_lost.contains(&old.fence),
                "P1 {place:?} is voided, and the attempt before may have run"
            );
            return self.void_is_true(old);
        }
        let (_, answer) = finisher
            .ok_or_else(|| format!("I8 {place:?} has an outcome, and no answer was read"))?;
        // Who was asked: the current attempt's caller, or that of one before it.
        let request = &self.requests[self.answers[answer].serial];
        let given = &self.answers[answer];
        let stored = memory.outcome(new.fence).and_then(|o| o.body.clone());
        holds!(
            stored.as_deref() == Some(given.body.as_bytes())
                || (!self.promise.stores_results && stored.is_none()),
            "I8 {place:?} holds another answer than the first one #{answer}#"
        );
        if given.kind == Kind::Handle && new.status != Status::Accepted {
            // Its end came in the same batch.
            return self.task_ended(memory, place, old, new);
        }
        let fits = match given.kind {
            Kind::Result => new.status == Status::Completed,
            Kind::Error => new.status == Status::Failed && !request.answered_cancelled,
            Kind::Closed => {
                new.status == Status::Failed
                    && !request.answered_closed
                    && !request.answered_cancelled
            }
            Kind::Question => new.status == Status::InputRequired,
            Kind::Handle => new.status == Status::Accepted,
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

    /// What a row had become in the batch before it was reserved again.
    fn in_between(
        &self,
        memory: &MemoryJournal,
        old: &Row,
        until: Fence,
        batch: Option<&Batch<'_>>,
    ) -> Result<Row, String> {
        let mut row = old.clone();
        let ops = batch.map_or(&[][..], |batch| {
            let is_it = |done: &Done| {
                matches!(done, Done::Admitted(admission)
                    if matches!(&admission.verdict, AdmissionVerdict::Run(ticket, _)
                        if ticket.fence == until))
            };
            let end = batch.done.iter().position(is_it);
            &batch.ops[..end.unwrap_or(batch.ops.len())]
        });
        for op in ops {
            match op {
                // Who lost it to an operator settles nothing.
                Op::Settle(_) if old.status != Status::Pending => {}
                Op::Settle(Settlement::Void { ticket, .. }) if ticket.fence == old.fence => {
                    self.void_is_true(old)?;
                    if old.round > 0 {
                        row.status = Status::InputRequired;
                        row.round -= 1;
                    } else if self.after_lost.contains(&old.fence) {
                        // The attempt before may have run: it stays a doubt.
                        row.unanswered = true;
                    } else {
                        row.status = Status::Voided;
                    }
                }
                Op::Settle(Settlement::Lost { ticket, .. }) if ticket.fence == old.fence => {
                    row.unanswered = true;
                }
                Op::Settle(Settlement::Answered { ticket, .. })
                    if row.status == Status::Pending
                        && (ticket.branch, ticket.seq) == old.place
                        && self.may_finish(memory, ticket.fence, old) =>
                {
                    let answer = self.answered.get(&ticket.fence);
                    let answer = &self.answers[*answer.ok_or("I8 no answer was read")?];
                    row.is_error = answer.is_error;
                    row.status = match answer.kind {
                        Kind::Result | Kind::Operator => Status::Completed,
                        Kind::Error | Kind::Closed => Status::Failed,
                        Kind::Question => Status::InputRequired,
                        Kind::Handle => Status::Accepted,
                        Kind::NotExecuted => Status::Voided,
                    };
                }
                Op::TaskEnd { answer, .. } if old.status == Status::Accepted => {
                    row.status = answer.status;
                    row.is_error = answer.is_error;
                }
                _ => {}
            }
        }
        Ok(row)
    }

    /// P1 to P3: what ran runs again only where its policy says so, or as the next round.
    fn runs_again(
        &mut self,
        shared: &Shared,
        memory: &MemoryJournal,
        place: (BranchId, Seq),
        old: &Row,
        new: &Row,
        batch: Option<&Batch<'_>>,
    ) -> Check {
        let before = self.in_between(memory, old, new.fence, batch)?;
        let promise = self.promise;
        let is_next = new.attempt == old.attempt + 1 && new.round == 0;
        let is_left = new.attempt <= promise.attempts_max;
        let is_right = match before.status {
            Status::Voided => is_next,
            Status::Pending => {
                let is_lost = before.unanswered || !shared.is_live(old.session);
                let is_overdue = self.is_overdue(shared, old.fence);
                self.after_lost.insert(new.fence);
                self.seen.retries_lost += 1;
                self.seen.takeovers += u64::from(!is_lost);
                promise.at_least_once && is_next && is_left && (is_lost || is_overdue)
            }
            Status::Failed => {
                self.seen.retries_failed += 1;
                promise.retries_failures && is_next && is_left
            }
            Status::Completed => {
                self.seen.retries_tool_error += 1;
                promise.retries_tool_errors && before.is_error && is_next && is_left
            }
            Status::InputRequired => {
                self.seen.rounds += 1;
                let fence = if before.fence == old.fence && old.round > before.round {
                    None
                } else {
                    Some(old.fence)
                };
                let question = fence.and_then(|fence| self.outcome_of(fence));
                let round = new.serial.and_then(|serial| self.requests[serial].round);
                let fits = match (question, round) {
                    // The round before it was voided in this very batch.
                    (None, Some(_)) => true,
                    (Some(question), Some(state)) => {
                        state == self.answers[question].has_state.then_some(question)
                    }
                    (_, None) => false,
                };
                new.attempt == old.attempt && new.round == before.round + 1 && fits
            }
            Status::Accepted | Status::Denied => false,
        };
        holds!(
            is_right,
            "I1 {place:?} runs again (attempt {}, round {}) after {:?} (attempt {}, round {}, lost {})",
            new.attempt,
            new.round,
            before.status,
            old.attempt,
            old.round,
            before.unanswered
        );
        Ok(())
    }

    /// Whether an owner has been silent for longer than it may be.
    pub(super) fn is_overdue(&self, shared: &Shared, fence: Fence) -> bool {
        let now = u64::try_from(shared.uptime.as_millis()).unwrap();
        self.promise.at_least_once && self.leases.get(&fence).is_none_or(|until| *until <= now)
    }

    /// R2: a round that did not run leaves the question before it.
    fn question_stands_again(
        &mut self,
        memory: &MemoryJournal,
        place: (BranchId, Seq),
        old: &Row,
        new: &Row,
        batch: Option<&Batch<'_>>,
    ) -> Check {
        self.seen.rounds_voided += 1;
        let before = self.in_between(memory, old, new.fence, batch)?;
        let asked = self.outcome_of(new.fence);
        let is_question = asked.is_some_and(|asked| self.answers[asked].kind == Kind::Question);
        let is_kept = memory.outcome(new.fence).is_some();
        holds!(
            old.status == Status::Pending
                && old.round == new.round + 1
                && before.status == Status::InputRequired
                && is_question
                && is_kept,
            "R2 {place:?} went back to a question that was not asked"
        );
        Ok(())
    }

    /// T2: a task's end is that very task's.
    fn task_ended(
        &mut self,
        memory: &MemoryJournal,
        place: (BranchId, Seq),
        old: &Row,
        new: &Row,
    ) -> Check {
        self.seen.task_ends += 1;
        let handle = self.outcome_of(old.fence);
        let handle = handle.ok_or_else(|| format!("T2 {place:?} has no handle"))?;
        let body = memory.task_end(new.fence).and_then(|end| end.body.as_ref());
        let text = body.map(|body| String::from_utf8_lossy(body).into_owned());
        let fits = |end: &Answer| match end.kind {
            Kind::Error => new.status == Status::Failed,
            _ => new.status == Status::Completed,
        };
        // 2025-11-25 tells of a failure without its error.
        let has_failed = new.status == Status::Failed && self.failures_read.contains(&handle);
        let is_told = match &text {
            Some(text) => {
                match between(text, "#", "#").and_then(|token| token.parse::<usize>().ok()) {
                    Some(token) => {
                        let end = &self.answers[token];
                        end.ends == Some(handle)
                            && end.body == *text
                            && fits(end)
                            && self.ends_read.contains(&token)
                    }
                    None => has_failed && text.contains("the task ended without a result"),
                }
            }
            None => {
                let is_read = self.ends_read.iter().any(|token| {
                    self.answers[*token].ends == Some(handle) && fits(&self.answers[*token])
                });
                !self.promise.stores_results && (is_read || has_failed)
            }
        };
        holds!(
            is_told,
            "T2 the task of {place:?} is said to have ended as {:?} with {text:?}",
            new.status
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
            request.effects == 0 || request.is_again,
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
        self.told_is_kept(memory)?;
        self.rows.clear();
        self.leases.clear();
        self.fence_max = highest;
        self.flights.forget(memory);
        self.answered.retain(|fence, _| fence.0 <= highest);
        self.settled
            .retain(|fence, _| memory.outcome(*fence).is_some());
        self.ruled.retain(|fence| memory.outcome(*fence).is_some());
        // What came too late may be gone with the event that kept it.
        self.stale.clear();
        let branches: BTreeSet<BranchId> =
            memory.entries().map(|stored| stored.entry.branch).collect();
        self.owners.retain(|branch, _| branches.contains(branch));
        for stored in memory.entries() {
            let entry = &stored.entry;
            self.rows.insert((entry.branch, entry.seq), Row::of(entry));
        }
        let forks = self.seen.forks;
        self.one_tree()?;
        self.seen.forks = forks;
        Ok(())
    }
}
