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
                holds!(
                    !self.spoiled.contains(&place),
                    "I5 the damaged {place:?} runs"
                );
                if let (Some(seq), None) = (request.seq, &request.key) {
                    holds!(ticket.seq.0 == seq, "c{serial} runs at another place");
                }
                if self.rows.contains_key(&place) {
                    // Whether it may run again is told by the change of its row.
                } else if request.seq.is_none() {
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
                if request.is_forwarded {
                    // What it was sent under was taken from it; it is not sent again.
                    return Ok(());
                }
                self.requests[serial].grant = Some(Grant {
                    branch: ticket.branch,
                    seq: ticket.seq,
                    fence: ticket.fence,
                });
            }
            AdmissionVerdict::Replay(replay) => {
                let entry = &replay.entry;
                let place = (entry.branch, entry.seq);
                holds!(
                    !self.spoiled.contains(&place),
                    "I5 the damaged {place:?} is replayed"
                );
                self.is_same(memory, entry.fence, serial, "replayed")?;
                if let (Some(seq), None) = (request.seq, &request.key) {
                    holds!(entry.seq.0 == seq, "I5 c{serial} gets another entry");
                }
                let given = self.outcome_of(entry.fence);
                let body = replay.outcome.body.as_deref().unwrap_or_default();
                holds!(
                    given.is_some_and(|answer| self.answers[answer].body.as_bytes() == body),
                    "I2 c{serial} is to be answered with what is no outcome of {place:?}"
                );
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
                self.is_same(memory, ticket.fence, serial, "joined")?;
                let row = Self::row(memory, place)?;
                // In one batch, what it joined may have come to its end after it.
                let was_running = self.was_running(place);

                holds!(
                    (was_running || row.0 == Status::Pending && !row.2) && shared.is_live(row.1),
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
                if is_spoiled {
                    return Ok(());
                }
                let entry = refused.entry.as_ref();
                let entry =
                    entry.ok_or_else(|| format!("I5 c{serial} is quarantined for nothing"))?;
                let place = (entry.branch, entry.seq);
                let (status, session, unanswered) = Self::row(memory, place)?;
                let is_same = Self::arguments_of(memory, entry.fence) == request.arguments;
                let is_live = shared.is_live(session);
                let is_true = match refused.why {
                    Why::Table(Decision::InDoubt) => {
                        status == Status::Pending && (unanswered || !is_live)
                    }
                    Why::Table(Decision::Diverge) => !is_same && status != Status::Pending,
                    Why::Table(Decision::InFlight) => {
                        !is_same
                            && is_live
                            && (status == Status::Pending || self.was_running(place))
                    }
                    Why::Table(Decision::Proceed) => request.is_forwarded,
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
        &self,
        memory: &MemoryJournal,
        fence: Fence,
        serial: usize,
        how: &str,
    ) -> Check {
        let stored = Self::arguments_of(memory, fence);
        let asked = &self.requests[serial].arguments;
        holds!(
            stored == *asked,
            "I5 c{serial} with {asked} is {how} by {stored}"
        );
        Ok(())
    }

    /// The answer that an attempt stands for.
    pub(super) fn outcome_of(&self, fence: Fence) -> Option<usize> {
        let ruled = self.ruled.get(&fence).copied();
        ruled.or_else(|| {
            let serial = self.by_fence.get(&fence)?;
            self.requests[*serial].answer
        })
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
            if before.workflow != request.workflow {
                continue;
            }
            if let Some(key) = &request.key {
                let holder = memory
                    .entries()
                    .find(|stored| (stored.entry.branch, stored.entry.seq) == *place)
                    .and_then(|stored| stored.entry.key.as_ref());
                holds!(
                    holder.is_none_or(|held| held.key != *key),
                    "I1 c{serial} is new, and {place:?} holds its key"
                );
                continue;
            }
            if before.arguments != request.arguments {
                continue;
            }
            let is_live = shared.is_live(row.session);
            let is_waiting = !row.gave_up && shared.is_attended(row.session);
            let is_known_cancelled = before.is_cancelled
                && before.is_forwarded
                && before.answer.is_none()
                && before.cancel_is_committed;
            let still_pending = Self::row(memory, *place)?.0 == Status::Pending;
            match row.status {
                Status::Pending if !still_pending => {}
                Status::Pending => {
                    holds!(
                        is_live && !row.unanswered,
                        "G1 c{serial} is new beside the doubt at {place:?}"
                    );
                    holds!(
                        is_waiting && !is_known_cancelled,
                        "G2 c{serial} is new beside {place:?}, whose caller gave up"
                    );
                }
                Status::Completed | Status::Failed => {
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
                        row.is_delivered || is_waiting || taken || age >= REDELIVER_WITHIN,
                        "G3 c{serial} is new beside the undelivered outcome of {place:?}"
                    );
                }
                Status::InputRequired | Status::Accepted | Status::Voided | Status::Denied => {}
            }
        }
        Ok(())
    }
}
