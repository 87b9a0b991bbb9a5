//! What becomes of calls and outcomes that the journal could not write (contract, section 8).
//!
//! Must not: say of a call that was forwarded that it was not started, or forget that an outcome
//! was given away unwritten.

use std::time::Instant;

use super::{Asked, Level, Session, Stage};
use crate::guard::{Op, Settlement};
use crate::journal::JournalError;
use crate::mcp::frame::IdKey;
use crate::mcp::reply::{Annotation, Refusal, RefusalKind, annotate};
use crate::rules::entry::Unanswered;
use crate::seeded::{self, Bug};

impl Session {
    /// The journal refused the batch for good: nothing of it was kept. Calls that were to be
    /// reserved are refused; outcomes reach their callers all the same, marked.
    ///
    /// `ops` are those of the batch, in order.
    pub fn journal_failed(&mut self, ops: Vec<Op>, error: &JournalError, now: Instant) {
        let asked = std::mem::take(&mut self.asked);
        self.say(Level::Warn, format!("{error}"));
        if error.is_final() {
            self.latched = Some(error.reason());
        }
        for (asked, op) in asked.into_iter().zip(ops) {
            match (asked, op) {
                (Asked::Admission(key, asking), _) => {
                    self.refuse_unjournaled(&key, Some(asking), error);
                }
                (Asked::Confirmation(key), _) => {
                    self.refuse_unjournaled(&key, None, error);
                }
                (Asked::Settlement(key), Op::Settle(settlement)) => {
                    // Whatever was written before is not known to be complete any more.
                    self.latched.get_or_insert(error.reason());
                    self.deliver_unjournaled(&key, &settlement, now);
                    // Whoever joined the call, here or in another session, shall not wait for ever.
                    if !error.is_final() && !seeded::has(Bug::UnwrittenOutcomeForgotten) {
                        self.lazily(Op::Settle(unwritten(settlement)));
                    }
                }
                (asked, op) => {
                    if let Asked::Telling(slot) = asked {
                        self.tell(slot);
                    }
                    let is_end = matches!(
                        op,
                        Op::Settle(Settlement::Void { .. } | Settlement::Lost { .. })
                            | Op::GiveUp(..)
                    );
                    // Others may wait for that call: its end is tried again, later.
                    if is_end && !error.is_final() {
                        self.lazily(op);
                    }
                }
            }
        }
        self.mark_lazy(now);
    }

    fn refuse_unjournaled(&mut self, key: &IdKey, asking: Option<u64>, error: &JournalError) {
        let flight = self.flights.get(key);
        if flight.is_none_or(|flight| flight.asked != asking) {
            return;
        }
        let Some(mut flight) = self.flights.remove(key) else {
            return;
        };
        if !flight.call.was_forwarded {
            // The upstream never got it, and its cancellation is not its business.
            self.ours.add(key.clone());
        }
        if seeded::has(Bug::JournalErrorIgnored) || seeded::has(Bug::RefusedCallForwarded) {
            let line = flight.line.take().map(|line| line.to_vec());
            self.up.push_call(line.unwrap_or_default(), key.clone());
            if seeded::has(Bug::JournalErrorIgnored) {
                return;
            }
        }
        if let Stage::Confirming { ticket, .. } = &flight.stage
            && !error.is_final()
        {
            // Its reservation stands, and nobody shall wait for what was never sent.
            self.void(None, *ticket, "never forwarded");
        }
        let mut refusal = Refusal::new(RefusalKind::JournalUnavailable);
        if matches!(flight.stage, Stage::Joining { .. }) {
            // It waits for a call that runs: only that it was not started again is known.
            refusal = Refusal::new(RefusalKind::InFlight);
        }
        if flight.call.was_forwarded {
            refusal = Refusal::new(RefusalKind::OutcomeUnknown);
        }
        refusal.reason = Some(error.reason().into());
        refusal.seq = flight.call.seq.map(|seq| seq.0);
        refusal.tool = Some(flight.call.tool.clone());
        self.refuse_flight(&flight, &refusal);
    }

    fn deliver_unjournaled(&mut self, key: &IdKey, settlement: &Settlement, now: Instant) {
        let ticket = settlement.ticket();
        self.owners.remove(&ticket.fence);
        if let Some(flight) = self.flights.remove(key) {
            let waits = flight.waits();
            if let Stage::Settling(settling) = flight.stage
                && let Some(slot) = settling.slot
            {
                if waits {
                    let mark = Annotation::not_journaled(ticket.seq.0);
                    let mut line = annotate(settling.answer(), &mark).into_owned();
                    if seeded::has(Bug::UnwrittenOutcomeUnmarked) {
                        line = settling.answer().to_vec();
                    }
                    self.down.fill(slot, line, None);
                } else {
                    self.down.drop_slot(slot);
                }
            }
        }
        self.wake_waiters(ticket.fence, now);
    }

    /// Splits a batch that can't be written: what asks for a reservation is given up, the rest
    /// stays and is tried again.
    pub fn give_up_reservations(
        &mut self,
        ops: Vec<Op>,
        error: &JournalError,
        now: Instant,
    ) -> Vec<Op> {
        let asked = std::mem::take(&mut self.asked);
        let mut kept = Vec::new();
        for (asked, op) in asked.into_iter().zip(ops) {
            match asked {
                Asked::Admission(key, asking) => {
                    self.refuse_unjournaled(&key, Some(asking), error);
                }
                Asked::Confirmation(key) => self.refuse_unjournaled(&key, None, error),
                asked => {
                    self.asked.push(asked);
                    kept.push(op);
                }
            }
        }
        self.mark_lazy(now);
        kept
    }
}

/// Returns what is to be written in the place of a settlement that was not: an outcome that was
/// given away unwritten stays unknown (contract, section 8), the rest is as true as before.
fn unwritten(settlement: Settlement) -> Settlement {
    match settlement {
        Settlement::Answered { ticket, .. } => {
            let reason = Unanswered::NotWritten;
            Settlement::Lost {
                ticket,
                reason,
                detail: format!("{{\"reason\":\"{}\"}}", reason.name()),
            }
        }
        Settlement::Void { .. } | Settlement::Lost { .. } | Settlement::Overdue { .. } => {
            settlement
        }
    }
}
