//! Every end: the client's, the upstream's, a signal, a deadline.
//!
//! The order is one for all: let running calls finish within their time, close the upstream's
//! input, wait, end its group, and be over. Who does the waiting and the signals is the driver.
//!
//! Must not: claim that a call failed because somebody died.

use std::time::{Duration, Instant};

use super::{Asked, Flight, Level, PASSING_DRAIN_MAX, Place, SIGNAL_DRAIN_MAX, Session, Stage};
use crate::guard::{Op, Settlement, Ticket};
use crate::json;
use crate::mcp::frame::{IdKey, RawId};
use crate::mcp::reply::{self, Refusal, RefusalKind};
use crate::rules::entry::{GaveUp, Unanswered};
use crate::rules::policy::Delivery;
use crate::seeded::{self, Bug};

/// How the upstream ended.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UpstreamEnd {
    /// Its exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// It could not be started: why.
    pub not_started: Option<String>,
    /// The last of what it wrote to its stderr: evidence, never shown to a model.
    pub stderr_tail: String,
}

impl UpstreamEnd {
    /// Returns the end in words, without the stderr tail.
    #[must_use]
    pub fn words(&self) -> String {
        match (self.code, self.signal, &self.not_started) {
            (_, _, Some(why)) => format!("the upstream could not be started: {why}"),
            (Some(code), _, None) => format!("the upstream exited with status {code}"),
            (None, Some(signal), None) => format!("the upstream was ended by signal {signal}"),
            (None, None, None) => "the upstream closed its output".into(),
        }
    }
}

/// What is known of a call that will not be answered.
#[derive(Clone, Debug)]
pub struct Evidence<'a> {
    /// Why.
    pub reason: &'a str,
    /// How the upstream ended, if it did.
    pub end: Option<&'a UpstreamEnd>,
    /// How many of its bytes the upstream's pipe took.
    pub bytes_written: u64,
    /// How many it has.
    pub bytes: u64,
    /// For how long it had been running.
    pub elapsed: Duration,
}

impl Evidence<'_> {
    /// Returns it as a JSON object.
    #[must_use]
    pub fn json(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!(
            "{{\"reason\":{},\"bytes_written\":{},\"bytes\":{},\"elapsed_ms\":{}",
            json::quote(self.reason),
            self.bytes_written,
            self.bytes,
            self.elapsed.as_millis()
        );
        if let Some(end) = self.end {
            if let Some(code) = end.code {
                let _ = write!(text, ",\"exit_code\":{code}");
            }
            if let Some(signal) = end.signal {
                let _ = write!(text, ",\"signal\":{signal}");
            }
            if !end.stderr_tail.is_empty() {
                let _ = write!(text, ",\"stderr_tail\":{}", json::quote(&end.stderr_tail));
            }
        }
        text.push('}');
        text
    }
}

/// How far the run has come.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    client_ended: Option<Instant>,
    client_gone: bool,
    stopped: Option<Instant>,
    stops: u32,
    /// Running calls may go on until then.
    drain_until: Option<Instant>,
    /// Requests that are not journaled may go on until then.
    passing_until: Option<Instant>,
    input_closed: bool,
    upstream_end: Option<UpstreamEnd>,
    /// The upstream ended while nobody had asked it to.
    ended_by_itself: bool,
    /// Something was in flight when it did.
    ended_in_flight: bool,
    ends_on_doubt: bool,
}

impl Phase {
    pub(super) fn is_upstream_gone(&self) -> bool {
        self.upstream_end.is_some()
    }

    pub(super) fn is_input_closed(&self) -> bool {
        self.input_closed
    }

    /// Whether no further call is taken.
    pub(super) fn is_ending(&self) -> bool {
        self.stopped.is_some() || self.ends_on_doubt || self.input_closed
    }

    /// Whether the run is coming to its end, for whatever reason.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.drain_until.is_some() || self.upstream_end.is_some()
    }

    /// Whether the upstream has ended.
    #[must_use]
    pub fn is_upstream_ended(&self) -> bool {
        self.upstream_end.is_some()
    }

    /// Whether the client has ended, or a signal has.
    #[must_use]
    pub fn is_draining_for_client(&self) -> bool {
        self.client_ended.is_some() || self.stopped.is_some()
    }

    /// Whether hosts are waiting for the end: everything must be over soon.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.stopped.is_some()
    }

    /// Whether nobody reads what goes to the client.
    #[must_use]
    pub fn is_client_gone(&self) -> bool {
        self.client_gone
    }

    pub(super) fn why_unavailable(&self) -> String {
        self.upstream_end
            .as_ref()
            .map_or_else(|| "checkpoint is ending".into(), UpstreamEnd::words)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.input_closed {
            return None;
        }
        [self.drain_until, self.passing_until]
            .into_iter()
            .flatten()
            .min()
    }

    fn drain(&mut self, until: Instant) {
        self.drain_until = Some(self.drain_until.map_or(until, |before| before.min(until)));
    }
}

/// How the run ended, as the exit code has to tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// As it should.
    Well,
    /// The first in-doubt refusal ended it (`--on-in-doubt exit`).
    InDoubt,
    /// The upstream could not be started, or died.
    Upstream,
}

impl Session {
    /// Returns how far the run has come.
    #[must_use]
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The client's input has ended. What runs may finish.
    pub fn client_ended(&mut self, now: Instant) {
        if self.phase.client_ended.is_none() {
            self.phase.client_ended = Some(now);
            self.phase.drain(now + self.options.drain_timeout);
            self.phase.passing_until = Some(now + PASSING_DRAIN_MAX);
            self.say(Level::Debug, "the client's input has ended");
        }
    }

    /// Nobody reads what goes to the client: every caller has given up.
    pub fn client_gone(&mut self, now: Instant) {
        if self.phase.client_gone {
            return;
        }
        self.phase.client_gone = true;
        self.client_ended(now);
        self.phase.passing_until = Some(now);
        let mut gone: Vec<Ticket> = self.down.clear();
        gone.extend(self.undelivered.drain(..).map(|(_, ticket)| ticket));
        let mut over = Vec::new();
        for (key, flight) in &mut self.flights {
            flight.is_answered = true;
            match &mut flight.stage {
                Stage::Forwarded(forwarded) => gone.push(forwarded.ticket),
                Stage::Settling(settling) => {
                    gone.push(settling.ticket);
                    if let Some(slot) = settling.slot.take() {
                        self.down.drop_slot(slot);
                    }
                }
                Stage::Joining { .. } | Stage::Probing { .. } => over.push(key.clone()),
                Stage::Admitting | Stage::Confirming { .. } => {}
            }
        }
        for key in over {
            self.flights.remove(&key);
        }
        for ticket in gone {
            self.ops
                .push((Asked::Nobody, Op::GiveUp(ticket, GaveUp::Gone)));
        }
    }

    /// A signal asks for the end: hosts send SIGKILL soon after. A second one ends the draining.
    pub fn stop(&mut self, now: Instant, count: u32) {
        self.phase.stops += count;
        let until = if self.phase.stops > 1 {
            now
        } else {
            now + SIGNAL_DRAIN_MAX
        };
        self.phase.stopped.get_or_insert(now);
        self.phase.drain(until);
        self.phase.passing_until = Some(now);
        self.say(Level::Info, "a signal asks for the end");
    }

    /// Returns whether the upstream's input is to be closed now.
    #[must_use]
    pub fn wants_input_closed(&self, now: Instant) -> bool {
        if self.phase.input_closed {
            return false;
        }
        let Some(until) = self.phase.drain_until else {
            return false;
        };
        if now >= until {
            return true;
        }
        let passing = self
            .passing
            .values()
            .any(|request| request.kind != super::PassingKind::Listen);
        let passing_wait = passing && self.phase.passing_until.is_some_and(|until| now < until);
        let is_fenced_done = self.fenced.values().all(|fenced| fenced.is_cancelled);
        self.flights.is_empty()
            && is_fenced_done
            && self.ops.is_empty()
            && self.asked.is_empty()
            && !passing_wait
    }

    /// Returns whether running calls have had all the time that they may have.
    #[must_use]
    pub fn is_past_drain(&self, now: Instant) -> bool {
        self.phase.drain_until.is_some_and(|until| now >= until)
    }

    /// The upstream's input has been closed.
    pub fn input_closed(&mut self) {
        self.phase.input_closed = true;
    }

    /// The upstream has ended, or will not answer any more. What it wrote before has been taken.
    /// `written` is how far the stream to it had been accepted by its pipe.
    pub fn upstream_ended(&mut self, end: UpstreamEnd, written: u64, now: Instant) {
        if self.phase.upstream_end.is_some() {
            return;
        }
        // Its end is its own as long as we have not closed its input.
        self.phase.ended_by_itself = !self.phase.input_closed;
        self.phase.ended_in_flight = !self.flights.is_empty() || !self.passing.is_empty();
        if self.phase.ended_by_itself {
            self.say(Level::Warn, end.words());
        }
        let drained = self.phase.input_closed;
        self.phase.upstream_end = Some(end.clone());
        while self.up.pop().is_some() {}
        let keys: Vec<IdKey> = self.flights.keys().cloned().collect();
        let mut fences = Vec::new();
        for key in keys {
            let Some(flight) = self.flights.get(&key) else {
                continue;
            };
            let Stage::Forwarded(forwarded) = &flight.stage else {
                // Others are in the journal's hands, or wait for one of those.
                continue;
            };
            let ticket = forwarded.ticket;
            let bytes = forwarded.bytes.end.saturating_sub(forwarded.bytes.start);
            let taken = written.saturating_sub(forwarded.bytes.start).min(bytes);
            let elapsed = now.saturating_duration_since(forwarded.at);
            let Some(flight) = self.flights.remove(&key) else {
                continue;
            };
            fences.push(ticket.fence);
            if taken == 0 || seeded::has(Bug::VoidAfterBytes) {
                // Not forwarded means that the pipe accepted no byte of it.
                let mut refusal = Refusal::new(flight.not_sent());
                refusal.reason = Some(end.words());
                refusal.seq = Some(ticket.seq.0);
                refusal.tool = Some(flight.call.tool.clone());
                self.owners.remove(&ticket.fence);
                let asked = self.tell_later(&flight, &refusal, now);
                self.ops
                    .push((asked, Self::void_op(ticket, "never forwarded")));
                continue;
            }
            let reason = if drained {
                Unanswered::DrainEnded
            } else {
                Unanswered::UpstreamExited
            };
            let evidence = Evidence {
                reason: reason.name(),
                end: Some(&end),
                bytes_written: taken,
                bytes,
                elapsed,
            };
            let mut refusal = self.refusal_on(
                RefusalKind::OutcomeUnknown,
                "upstream_exited",
                &flight,
                ticket,
            );
            refusal.more.push(("upstream", json::quote(&end.words())));
            let lost = (reason, evidence.json());
            self.lose(&flight, ticket, &refusal, lost, now);
        }
        for request in std::mem::take(&mut self.passing).into_values() {
            if let Some(id) = RawId::new(&request.id) {
                self.answer_without_upstream(id);
            }
        }
        for fence in fences {
            self.wake_waiters(fence, now);
        }
        self.tick_probes(now);
    }

    /// Answers a request that is not journaled with how the upstream ended.
    pub(super) fn answer_without_upstream(&mut self, id: RawId<'_>) {
        // JSON-RPC's own "internal error": no code of ours, since nothing is claimed of an effect.
        let message = format!("checkpoint: {}", self.phase.why_unavailable());
        let line = reply::plain_error(Some(id), -32603, &message);
        self.down.push(line, None);
    }

    /// Looks at the clock: deadlines of calls, waits and drains.
    pub fn tick(&mut self, now: Instant) {
        self.tell_kept(Some(now));
        self.tick_probes(now);
        let mut beats = Vec::new();
        let mut overdue = Vec::new();
        let mut due = Vec::new();
        for (key, flight) in &self.flights {
            match &flight.stage {
                Stage::Forwarded(forwarded) => {
                    if now >= forwarded.beat_at {
                        beats.push(key.clone());
                    }
                    if flight.waits() && forwarded.overdue_at.is_some_and(|at| now >= at) {
                        overdue.push(key.clone());
                    }
                }
                Stage::Joining { look_at, until, .. } => {
                    if now >= *look_at || until.is_some_and(|until| now >= until) {
                        due.push(key.clone());
                    }
                }
                Stage::Admitting
                | Stage::Confirming { .. }
                | Stage::Probing { .. }
                | Stage::Settling(_) => {}
            }
        }
        for key in beats {
            self.beat(&key, now);
        }
        for key in overdue {
            self.overdue(&key, now);
        }
        for key in due {
            self.look_again(&key, now);
        }
        // A time that has passed is none to wait for.
        self.phase.passing_until = self.phase.passing_until.filter(|until| now < *until);
        if self.options.ends_on_doubt && self.met_doubt && !self.phase.ends_on_doubt {
            self.phase.ends_on_doubt = true;
            self.phase.drain(now + self.options.drain_timeout);
            self.phase.passing_until = Some(now + PASSING_DRAIN_MAX);
            self.say(Level::Warn, "an in-doubt refusal ends the run");
        }
        self.mark_lazy(now);
    }

    /// Looks whether a running call is still ours, and renews its lease if it has one: only an
    /// at-least-once call may be taken over by who waits long enough, any by an operator's force.
    fn beat(&mut self, key: &IdKey, now: Instant) {
        let Some(flight) = self.flights.get_mut(key) else {
            return;
        };
        if let Stage::Forwarded(forwarded) = &mut flight.stage {
            forwarded.beat_at = now + flight.policy.heartbeat;
            if self.latched.is_some() {
                // A closed journal has no answer to that.
                return;
            }
            let op = match flight.policy.delivery {
                Delivery::AtLeastOnce => Op::Renew(forwarded.ticket, flight.policy.lease_ttl),
                Delivery::AtMostOnce => Op::Confirm(forwarded.ticket),
            };
            self.ops.push((Asked::Renewal(key.clone()), op));
        }
    }

    fn overdue(&mut self, key: &IdKey, now: Instant) {
        let Some(flight) = self.flights.get_mut(key) else {
            return;
        };
        let Stage::Forwarded(forwarded) = &flight.stage else {
            return;
        };
        let ticket = forwarded.ticket;
        let bytes = forwarded.bytes.end.saturating_sub(forwarded.bytes.start);
        let evidence = Evidence {
            reason: "timeout",
            end: None,
            bytes_written: self
                .up_written
                .saturating_sub(forwarded.bytes.start)
                .min(bytes),
            bytes,
            elapsed: now.saturating_duration_since(forwarded.at),
        };
        let detail = evidence.json();
        let (id, explicit, stateless) =
            (flight.id.clone(), flight.is_explicit, flight.is_stateless);
        let Some(flight) = self.flights.get(key) else {
            return;
        };
        let refusal = self.refusal_on(RefusalKind::OutcomeUnknown, "timeout", flight, ticket);
        if let Some(flight) = self.flights.get_mut(key) {
            flight.is_answered = true;
        }
        self.say(Level::Warn, super::client::refusal_said(&refusal));
        let line = self.refusal_line(RawId::new(&id), &refusal, explicit, stateless);
        let asked = self.tell_line_later(line, now);
        self.ops
            .push((asked, Op::Settle(Settlement::Overdue { ticket, detail })));
        self.hurry_waiters(ticket.fence, now);
    }

    /// Nobody will say what became of a forwarded call. Why, and the evidence as a JSON object, are
    /// made durable, and then its caller is told.
    pub(super) fn lose(
        &mut self,
        flight: &Flight,
        ticket: Ticket,
        refusal: &Refusal,
        (reason, detail): (Unanswered, String),
        now: Instant,
    ) {
        self.owners.remove(&ticket.fence);
        self.say(Level::Warn, super::client::refusal_said(refusal));
        let asked = self.tell_later(flight, refusal, now);
        let lost = Settlement::Lost {
            ticket,
            reason,
            detail,
        };
        self.ops.push((asked, Op::Settle(lost)));
    }

    /// Keeps a refusal until it is durable that its call will not be answered: its caller may ask
    /// again at once, in another session, which must not take the call for one that is waited for.
    fn tell_later(&mut self, flight: &Flight, refusal: &Refusal, now: Instant) -> Asked {
        if !flight.waits() {
            return Asked::Nobody;
        }
        let line = self.refusal_line(
            flight.raw_id(),
            refusal,
            flight.is_explicit,
            flight.is_stateless,
        );
        self.tell_line_later(line, now)
    }

    fn tell_line_later(&mut self, line: Vec<u8>, now: Instant) -> Asked {
        let slot = self.down.reserve(now);
        self.telling.insert(slot, (now + super::TELL_MAX, line));
        Asked::Telling(slot)
    }

    /// Tells a refusal that was kept, unless it has been told.
    pub(super) fn tell(&mut self, slot: Place) {
        if let Some((_, line)) = self.telling.remove(&slot) {
            self.down.fill(slot, line, None);
        }
    }

    /// Tells the refusals that were kept, all of them or those that can't be kept any longer.
    pub fn tell_kept(&mut self, due: Option<Instant>) {
        let slots: Vec<Place> = self
            .telling
            .iter()
            .filter(|(_, (until, _))| due.is_none_or(|now| now >= *until))
            .map(|(slot, _)| *slot)
            .collect();
        for slot in slots {
            self.tell(slot);
        }
    }

    /// Returns whether nothing is left to be done for anybody but the upstream.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.flights
            .values()
            .all(|flight| matches!(flight.stage, Stage::Joining { .. } | Stage::Probing { .. }))
            && !self.is_hearing()
            && self.ops.is_empty()
            && self.asked.is_empty()
    }

    /// Ends what still waits for another session's call, since this run is over.
    pub fn end_waits(&mut self) {
        for flight in std::mem::take(&mut self.flights).into_values() {
            if let Stage::Joining { ticket, .. } = &flight.stage {
                let mut refusal = Refusal::new(RefusalKind::InFlight);
                refusal.seq = Some(ticket.seq.0);
                refusal.attempt = Some(u64::from(ticket.attempt));
                refusal.tool = Some(flight.call.tool.clone());
                refusal.reason = Some("checkpoint is ending".into());
                self.refuse_flight(&flight, &refusal);
            } else if let Stage::Probing { place } = &flight.stage {
                let mut refusal = Refusal::new(RefusalKind::InDoubt);
                refusal.seq = Some(place.1.0);
                refusal.tool = Some(flight.call.tool.clone());
                refusal.reason = Some("checkpoint is ending".into());
                self.refuse_flight(&flight, &refusal);
            }
        }
    }

    /// Asks for the session's end to be written, with whatever else still waits.
    pub fn close_session(&mut self) {
        self.flush_lazy();
        if self.met_call {
            self.ops.push((Asked::Nobody, Op::EndSession));
        }
    }

    /// Returns how the run ended.
    #[must_use]
    pub fn run_end(&self) -> RunEnd {
        if self.phase.ends_on_doubt {
            return RunEnd::InDoubt;
        }
        let clean = self
            .phase
            .upstream_end
            .as_ref()
            .is_none_or(|end| end.code == Some(0) && !self.phase.ended_in_flight);
        if self.phase.ended_by_itself && !clean {
            RunEnd::Upstream
        } else {
            RunEnd::Well
        }
    }
}
