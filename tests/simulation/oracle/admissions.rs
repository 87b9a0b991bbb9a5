//! What the guard says of each call, beside what is true.

use super::*;

impl Oracle {
    pub(super) fn admitted(
        &mut self,
        shared: &Shared,
        memory: &MemoryJournal,
        batch: &Batch<'_>,
        serial: usize,
        is_joined: bool,
        admission: &Admission,
    ) -> Check {
        let request = self.requests[serial].clone();
        match &admission.verdict {
            AdmissionVerdict::Run(ticket, _) => {
                let place = (ticket.branch, ticket.seq);
                self.outcome_is_replaced(place);
                self.is_on_its_side(&request, place)?;
                holds!(
                    !self.spoiled.contains(&place),
                    "I5 the damaged {place:?} runs"
                );
                let is_new_branch = !self.owners.contains_key(&ticket.branch)
                    && self.owners.values().any(|owner| *owner == request.workflow);
                if let (Some(seq), None) = (request.seq, &request.key) {
                    holds!(ticket.seq.0 == seq, "c{serial} runs at another place");
                    let expected = self.place_of(request.workflow, Seq(seq));
                    let has_forked = self.has_forked(memory, request.workflow);
                    holds!(
                        is_joined
                            || is_new_branch
                            || has_forked
                            || expected.is_none_or(|other| other == place),
                        "F3 c{serial} means {expected:?}, and runs at {place:?}"
                    );
                }
                if is_new_branch {
                    self.may_fork(memory, &request, place)?;
                }
                if self.rows.contains_key(&place) {
                    // Whether it may run again is told by the change of its row.
                } else if request.seq.is_none() && !is_new_branch {
                    let highest = self
                        .rows
                        .keys()
                        .filter(|(branch, _)| *branch == ticket.branch)
                        .map(|(_, seq)| seq.0)
                        .max();
                    holds!(
                        ticket.seq.0 > highest.unwrap_or(0),
                        "c{serial} took the place of another call"
                    );
                    self.is_new(shared, memory, batch, serial, &request)?;
                }
                let grant = Grant {
                    branch: ticket.branch,
                    seq: ticket.seq,
                    fence: ticket.fence,
                };
                let leg = self.leg_of(place, &request);
                let request = &mut self.requests[serial];
                request.grants.push((grant, leg));
                if request.is_forwarded {
                    // What it was sent under was taken from it. It may go out once more only
                    // where several attempts may.
                    request.regrant = self.promise.at_least_once.then_some((grant, leg));
                } else {
                    request.grant = Some(grant);
                    request.leg = leg;
                }
            }
            AdmissionVerdict::Replay(replay) => {
                let entry = &replay.entry;
                let place = (entry.branch, entry.seq);
                holds!(
                    !self.spoiled.contains(&place),
                    "I5 the damaged {place:?} is replayed"
                );
                self.is_same(memory, place, entry.fence, serial, "replayed")?;
                self.is_on_its_side(&request, place)?;
                if let (Some(seq), None) = (request.seq, &request.key) {
                    holds!(entry.seq.0 == seq, "I5 c{serial} gets another entry");
                    let expected = self.place_of(request.workflow, Seq(seq));
                    holds!(
                        is_joined
                            || self.has_forked(memory, request.workflow)
                            || expected.is_none_or(|other| other == place),
                        "F3 c{serial} means {expected:?}, and gets {place:?}"
                    );
                }
                if request.key.is_some()
                    && self
                        .owners
                        .get(&entry.branch)
                        .is_some_and(|owner| *owner != request.workflow)
                {
                    self.seen.keys_shared += 1;
                }
                let given = self.outcome_of(entry.fence);
                let body = replay.outcome.body.as_deref().unwrap_or_default();
                holds!(
                    given.is_some_and(|answer| self.answers[answer].body.as_bytes() == body),
                    "I2 c{serial} is to be answered with what is no outcome of {place:?}"
                );
                let stage = given.map(|answer| self.answers[answer].kind);
                match stage {
                    Some(Kind::Question) => {
                        self.seen.questions_replayed += 1;
                        holds!(
                            request.round.is_none(),
                            "R1 the round c{serial} is answered with a question of before"
                        );
                    }
                    Some(Kind::Handle) => {
                        self.seen.handles_replayed += 1;
                        self.seen.ends_replayed += u64::from(replay.task_end.is_some());
                        // In this batch, the handle may have come before it, or the end after.
                        let is_open = Self::row(memory, place)?.0 == Status::Accepted
                            || batch.ops.iter().any(|op| matches!(op, Op::TaskEnd { .. }));
                        holds!(
                            is_open || replay.task_end.is_some(),
                            "T1 c{serial} gets a handle without the end that {place:?} has"
                        );
                    }
                    _ if entry.round > 0 && request.round.is_none() => {
                        self.seen.finals_replayed += 1;
                    }
                    _ => {}
                }
                if replay.is_marked && !is_joined {
                    holds!(
                        self.redelivered
                            .insert((batch.life, entry.fence), serial)
                            .is_none(),
                        "D2 the outcome of {place:?} answers two new calls"
                    );
                }
            }
            AdmissionVerdict::Join { ticket, .. } => {
                let place = (ticket.branch, ticket.seq);
                self.is_same(memory, place, ticket.fence, serial, "joined")?;
                let row = Self::row(memory, place)?;
                // In one batch, what it joined may have come to its end after it.
                let was_running = self.was_running(place);

                // Or it was reserved in it, and an attempt before it has finished it since.
                let is_finished = !self.promise.fences_results && Self::has_answer(batch, place);
                holds!(
                    is_finished
                        || (was_running || row.0 == Status::Pending && !row.2)
                            && shared.is_live(row.1),
                    "I6 c{serial} waits for {place:?}, whose outcome will not come"
                );
            }
            AdmissionVerdict::Refuse(refused) => {
                let place = refused
                    .entry
                    .as_ref()
                    .map(|entry| (entry.branch, entry.seq));
                let is_spoiled = place.is_some_and(|place| self.spoiled.contains(&place))
                    || refused.entry.is_none() && !self.spoiled.is_empty();
                let is_gap = refused.entry.is_none()
                    && refused.why == Why::Table(Decision::Diverge)
                    && self.is_left_out(&request);
                if is_spoiled || is_gap {
                    return Ok(());
                }
                let entry = refused.entry.as_ref();
                let entry =
                    entry.ok_or_else(|| format!("I5 c{serial} is quarantined for nothing"))?;
                let place = (entry.branch, entry.seq);
                let (status, session, unanswered) = Self::row(memory, place)?;
                let stored = Self::arguments_of(memory, entry.fence);
                let is_same = self.is_equal(serial, place, &stored, false);
                let is_live = shared.is_live(session);
                let promise = self.promise;
                let is_gone = unanswered || !is_live || self.is_overdue(shared, entry.fence);
                // In this batch, another attempt may have begun after it, or an answer have come.
                let was_lost = self.rows.get(&place).is_some_and(|row| {
                    let is_gone = row.unanswered
                        || !shared.is_live(row.session)
                        || self.is_overdue(shared, row.fence);
                    row.status == Status::Pending && is_gone && row.fence == entry.fence
                });
                let is_lost = status == Status::Pending && is_gone || was_lost;
                // In this batch, another attempt may have begun after it, or come to its end before.
                let was_settled = self
                    .rows
                    .get(&place)
                    .is_some_and(|row| row.status != Status::Pending)
                    || Self::has_answer(batch, place);
                // A round may carry the state of another question.
                let differs = !is_same || request.round.is_some();
                let is_true = match refused.why {
                    Why::Table(Decision::InDoubt) => {
                        is_lost && (!is_same || !promise.at_least_once)
                    }
                    Why::Table(Decision::Abandon) => {
                        self.seen.abandons += 1;
                        is_lost
                            && is_same
                            && promise.at_least_once
                            && entry.attempt >= promise.attempts_max
                    }
                    Why::Table(Decision::Expired) => {
                        self.seen.expired += 1;
                        is_same
                            && !promise.stores_results
                            && (was_settled || !matches!(status, Status::Pending | Status::Voided))
                    }
                    Why::Table(Decision::Diverge) => {
                        differs
                            && (was_settled || status != Status::Pending)
                            && (!self.forks || request.key.is_some())
                    }
                    Why::Table(Decision::InFlight) => {
                        self.seen.refused_in_flight += u64::from(is_same);
                        (!is_same || promise.refuses_in_flight)
                            && is_live
                            && (status == Status::Pending || self.was_running(place))
                    }
                    Why::Table(
                        Decision::Proceed | Decision::Retry | Decision::NextRound | Decision::Fork,
                    ) => {
                        // Its line may be on its way still when it is taken away.
                        let is_granted =
                            request.grant.is_some_and(|it| (it.branch, it.seq) == place);
                        request.is_forwarded || is_granted && self.taken_by_force.contains(&place)
                    }
                    _ => false,
                };
                holds!(
                    is_true,
                    "I5 c{serial} is refused {:?}, and {place:?} is {status:?} (same {is_same}, live {is_live}, unanswered {unanswered})",
                    refused.why
                );
            }
        }
        Ok(())
    }

    /// A failure that is retried is not served: that its bytes are damaged stands in no way, and
    /// nobody is served them any more.
    fn outcome_is_replaced(&mut self, place: (BranchId, Seq)) {
        let promise = self.promise;
        let is_retried = self.rows.get(&place).is_some_and(|row| match row.status {
            Status::Failed => promise.retries_failures,
            Status::Completed => row.is_error && promise.retries_tool_errors,
            _ => false,
        });
        if is_retried && self.spoiled_outcomes.remove(&place) {
            self.spoiled.remove(&place);
        }
    }

    /// Whether an answer to a call at a place is in the batch.
    fn has_answer(batch: &Batch<'_>, place: (BranchId, Seq)) -> bool {
        batch.ops.iter().any(|op| {
            matches!(op, Op::Settle(Settlement::Answered { ticket, .. })
                if (ticket.branch, ticket.seq) == place)
        })
    }

    /// Which question a call answers that is let through to a place.
    fn leg_of(&self, place: (BranchId, Seq), request: &Request) -> Option<usize> {
        request.round?;
        let row = self.rows.get(&place)?;
        match row.status {
            Status::InputRequired => self.outcome_of(row.fence),
            // The round before it was lost, or voided just now.
            _ => row.serial.and_then(|serial| self.requests[serial].leg),
        }
    }

    /// Whether the batch has opened a branch of a workflow.
    fn has_forked(&self, memory: &MemoryJournal, workflow: usize) -> bool {
        self.forks
            && memory.entries().any(|stored| {
                let serial = stored
                    .entry
                    .call_id
                    .as_deref()
                    .and_then(Self::serial_of_call_id);
                !self.owners.contains_key(&stored.entry.branch)
                    && serial.is_some_and(|serial| self.requests[serial].workflow == workflow)
            })
    }

    /// Before the batch it ran, and an answer could come.
    pub(super) fn was_running(&self, place: (BranchId, Seq)) -> bool {
        self.rows
            .get(&place)
            .is_some_and(|row| row.status == Status::Pending && !row.unanswered)
    }

    pub(super) fn row(
        memory: &MemoryJournal,
        place: (BranchId, Seq),
    ) -> Result<(Status, SessionId, bool), String> {
        memory
            .entries()
            .find(|stored| (stored.entry.branch, stored.entry.seq) == place)
            .map(|stored| {
                let entry = &stored.entry;
                (entry.status, entry.session, entry.unanswered.is_some())
            })
            .ok_or_else(|| format!("no entry at {place:?}"))
    }

    pub(super) fn is_same(
        &mut self,
        memory: &MemoryJournal,
        place: (BranchId, Seq),
        fence: Fence,
        serial: usize,
        how: &str,
    ) -> Check {
        let stored = Self::arguments_of(memory, fence);
        holds!(
            self.is_equal(serial, place, &stored, true),
            "I5 c{serial} with {} is {how} by {stored}",
            self.requests[serial].arguments
        );
        Ok(())
    }

    /// A call that says neither seq nor key, or a key that nobody holds, is new: nothing before it
    /// may be what it asks for again.
    pub(super) fn is_new(
        &self,
        shared: &Shared,
        memory: &MemoryJournal,
        batch: &Batch<'_>,
        serial: usize,
        request: &Request,
    ) -> Check {
        if !self.spoiled.is_empty() {
            // A row that is found by a key or a signature only is missed if it is damaged.
            return Ok(());
        }
        for (place, row) in &self.rows {
            if self.spoiled.contains(place) {
                continue;
            }
            let Some(other) = row.serial else { continue };
            let before = &self.requests[other];
            if let Some(key) = &request.key {
                let holder = memory
                    .entries()
                    .find(|stored| (stored.entry.branch, stored.entry.seq) == *place)
                    .and_then(|stored| stored.entry.key.as_ref());
                holds!(
                    holder.is_none_or(|held| held.key != *key || held.window_id != request.scope),
                    "I1 c{serial} is new, and {place:?} holds its key"
                );
                continue;
            }
            if !self.is_visible(request.workflow, *place) {
                continue;
            }
            if before.arguments != request.arguments {
                continue;
            }
            let is_begun_anew = memory.entries().any(|stored| {
                (stored.entry.branch, stored.entry.seq) == *place && stored.entry.fence != row.fence
            });
            if is_begun_anew {
                // It was asked for again in this very batch.
                continue;
            }
            let is_live = shared.is_live(row.session);
            let is_waiting = !row.gave_up && shared.is_attended(row.session);
            let is_known_cancelled = before.is_cancelled
                && before.is_forwarded
                && before.answer.is_none()
                && before.cancel_is_committed;
            // In this batch it may have come to an end, or have been begun anew.
            let still_pending = memory.entries().any(|stored| {
                (stored.entry.branch, stored.entry.seq) == *place
                    && stored.entry.status == Status::Pending
                    && stored.entry.fence == row.fence
            });
            match row.status {
                Status::Pending if !still_pending => {}
                Status::Pending => {
                    holds!(
                        is_live && !row.unanswered || !self.promise.doubts_spread,
                        "G1 c{serial} is new beside the doubt at {place:?}"
                    );
                    let is_doubt = !is_live || row.unanswered || Self::row(memory, *place)?.2;
                    holds!(
                        is_doubt || is_waiting && !is_known_cancelled,
                        "G2 c{serial} is new beside {place:?}, whose caller gave up"
                    );
                }
                // Who brings answers has had its question.
                Status::InputRequired if request.round.is_some() => {}
                Status::Completed | Status::Failed | Status::Accepted | Status::InputRequired => {
                    // In this batch, its delivery may have been noted before it was asked for.
                    let delivered_now = memory.entries().any(|stored| {
                        (stored.entry.branch, stored.entry.seq) == *place
                            && stored.entry.delivered_at.is_some()
                    });
                    if delivered_now {
                        continue;
                    }
                    let age = batch.wall - row.completed_at;
                    let taken = self.redelivered.contains_key(&(batch.life, row.fence));
                    holds!(
                        row.is_delivered
                            || is_waiting
                            || taken
                            || age >= REDELIVER_WITHIN
                            || !self.promise.redelivers,
                        "G3 c{serial} is new beside the undelivered outcome of {place:?}"
                    );
                }
                Status::Voided | Status::Denied => {}
            }
        }
        Ok(())
    }
}
