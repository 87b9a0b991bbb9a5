//! What the journal says of the calls that were asked about.
//!
//! Must not: let bytes of a call out before its reservation is durable, or an answer before its
//! outcome is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::unshare;
use super::{Asked, Fenced, Flight, Forwarded, Level, Session, Stage, Standing};
use crate::guard::{Admission, AdmissionVerdict, Done, Note, Op, Settlement, Ticket};
use crate::mcp::frame::IdKey;
use crate::mcp::reply::{Annotation, Refusal, RefusalKind, annotate};
use crate::rules::entry::GaveUp;
use crate::rules::ids::Micros;
use crate::rules::policy::{Delivery, OnCancel, OnLostLease, PassKey, Policy};
use crate::seeded::{self, Bug};

impl Session {
    /// Takes the ops for the next transaction, none while the journal still has a batch. Events
    /// that may wait go along with others, or alone once they have waited long enough.
    pub fn take_ops(&mut self, now: Instant) -> Option<Vec<Op>> {
        if !self.asked.is_empty() {
            return None;
        }
        let lazy_is_due = self
            .lazy_since
            .is_some_and(|since| now.saturating_duration_since(since) >= super::LAZY_MAX);
        if self.ops.is_empty() && !lazy_is_due {
            return None;
        }
        // A batch that only asks may turn out to write nothing (a replay), and then needs no
        // sync: an event that rode on it would make it one.
        let only_asks = !self.ops.is_empty()
            && self
                .ops
                .iter()
                .all(|(_, op)| matches!(op, Op::Admit(_) | Op::Deliver(_) | Op::Keep(_)));
        let mut ops = Vec::with_capacity(self.ops.len() + self.lazy.len());
        for (asked, op) in self.ops.drain(..) {
            self.asked.push(asked);
            ops.push(op);
        }
        if !only_asks || lazy_is_due {
            for op in self.lazy.drain(..) {
                self.asked.push(Asked::Nobody);
                ops.push(op);
            }
            self.lazy_since = None;
        }
        self.asked_at = Some(now);
        Some(ops)
    }

    /// Returns whether all that waits for the journal can wait a little more: it needs no sync,
    /// and nobody waits for it.
    #[must_use]
    pub fn has_only_lazy_ops(&self) -> bool {
        self.asked.is_empty()
            && !self.ops.is_empty()
            && self
                .ops
                .iter()
                .all(|(_, op)| matches!(op, Op::Deliver(_) | Op::Keep(_)))
    }

    /// Lets the next [`Session::take_ops`] take what may wait, too.
    pub fn flush_lazy(&mut self) {
        if !self.lazy.is_empty() {
            self.ops
                .extend(self.lazy.drain(..).map(|op| (Asked::Nobody, op)));
            self.lazy_since = None;
        }
    }

    /// Returns whether the journal has a batch.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        !self.asked.is_empty()
    }

    pub(super) fn lazily(&mut self, op: Op) {
        self.lazy.push(op);
    }

    /// Takes a batch back that a busy journal kept waiting, if it holds nothing but events that
    /// nobody waits for: no reservation shall wait behind them. Returns the batch otherwise.
    pub fn put_off(&mut self, ops: Vec<Op>, now: Instant) -> Vec<Op> {
        let can_wait = |op: &Op| matches!(op, Op::Note(_) | Op::Deliver(_) | Op::Keep(_));
        if self.phase.is_draining() || !ops.iter().all(can_wait) {
            return ops;
        }
        self.asked.clear();
        self.lazy.extend(ops);
        self.mark_lazy(now);
        Vec::new()
    }

    /// Starts the time that lazy events may wait.
    pub(super) fn mark_lazy(&mut self, now: Instant) {
        if !self.lazy.is_empty() && self.lazy_since.is_none() {
            self.lazy_since = Some(now);
        }
    }

    /// Takes what the journal did with the batch: all of it is durable.
    pub fn journal_done(&mut self, done: Vec<Done>, now: Instant) {
        let asked = std::mem::take(&mut self.asked);
        for (asked, done) in asked.into_iter().zip(done) {
            match (asked, done) {
                (Asked::Admission(key, asking), Done::Admitted(admission)) => {
                    self.admitted(&key, asking, &admission, now);
                }
                (Asked::Settlement(key), Done::Settled(at)) => self.settled(&key, at, now),
                (Asked::Settlement(key), Done::Stale) => self.went_stale(&key, now),
                (Asked::Confirmation(key), Done::Noted) => self.confirmed(&key, now),
                (Asked::Confirmation(key), Done::Stale) => self.ask_anew(&key),
                (Asked::Renewal(key), Done::Stale) => self.lost_lease(&key, now),
                (Asked::Telling(slot), _) => self.tell(slot),
                (
                    Asked::Nobody
                    | Asked::Admission(..)
                    | Asked::Settlement(_)
                    | Asked::Confirmation(_)
                    | Asked::Renewal(_),
                    Done::Settled(_) | Done::Stale | Done::Noted | Done::Admitted(_),
                ) => {}
            }
        }
        self.mark_lazy(now);
    }

    fn admitted(&mut self, key: &IdKey, asking: u64, admission: &Admission, now: Instant) {
        for note in &admission.notes {
            if note.kind == "resume_ended" {
                self.say(
                    Level::Info,
                    "the replay has come to its end: calls are new from here on",
                );
            }
            self.lazily(Op::Note(note.clone()));
        }
        let owner_waits = match &admission.verdict {
            AdmissionVerdict::Join { ticket, .. } => self
                .owners
                .get(&ticket.fence)
                .and_then(|owner| self.flights.get(owner))
                .is_some_and(|flight| flight.waits()),
            AdmissionVerdict::Run(..)
            | AdmissionVerdict::Replay(_)
            | AdmissionVerdict::Refuse(_) => false,
        };
        let flight = self.flights.get_mut(key);
        let asked = flight.filter(|flight| flight.asked == Some(asking));
        let Some(flight) = asked else {
            // A joined caller that cancelled in the meantime. Nothing of it was forwarded.
            if let AdmissionVerdict::Run(ticket, _) = admission.verdict {
                self.void(None, ticket, "the caller is gone");
            }
            return;
        };
        flight.asked = None;
        match &admission.verdict {
            AdmissionVerdict::Run(ticket, letter) => {
                flight.standing = Some(Standing {
                    workflow: admission.workflow.0.clone(),
                    branch: admission.branch,
                    elsewhere: admission.elsewhere.clone(),
                    letter: letter.to_string(),
                    created_at: admission.at,
                });
                let said = format!(
                    "proceed seq={} attempt={} letter={letter}",
                    ticket.seq, ticket.attempt
                );
                self.say(Level::Debug, said);
                let waited = self
                    .asked_at
                    .map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
                if waited > self.third_of_lease(key) {
                    // It waited so long that somebody may have taken the entry over.
                    self.confirm(key, *ticket, admission.place);
                } else {
                    self.forward(key, *ticket, admission.place, now);
                }
            }
            AdmissionVerdict::Replay(replay) => {
                let Some(flight) = self.flights.remove(key) else {
                    return;
                };
                let ticket = Ticket::of(&replay.entry);
                // The guard took it for this caller, and gives it to another one if it gets it not.
                let keep = (replay.is_marked && flight.call.joined.is_none())
                    .then_some((Asked::Nobody, Op::Keep(ticket)));
                if !flight.waits() {
                    self.ops.extend(keep);
                    return;
                }
                self.ours.add(key.clone());
                let undelivered = replay.entry.is_undelivered();
                match self.replay_line(&flight, admission, replay) {
                    Ok(line) => self.down.push(line, undelivered.then_some(ticket)),
                    Err(refusal) => {
                        self.ops.extend(keep);
                        self.refuse_flight(&flight, &refusal);
                    }
                }
            }
            AdmissionVerdict::Join {
                ticket,
                is_ours,
                limit,
                letter,
            } => {
                let (ticket, is_ours) = (*ticket, *is_ours);
                if flight.is_cancelled {
                    self.flights.remove(key);
                    return;
                }
                // The end of our own call wakes its waiters; another session's must be looked for,
                // and so must the limit for one whose caller gave up while this was asked.
                let poll = if is_ours && owner_waits {
                    Duration::from_secs(3600)
                } else {
                    flight.policy.wait_poll
                };
                // The limit begins when it is first known that the other caller gave up.
                let until = match &flight.stage {
                    Stage::Joining {
                        until: Some(until), ..
                    } => Some(*until),
                    _ => limit.map(|limit| now + limit),
                };
                let was_joining = matches!(flight.stage, Stage::Joining { .. });
                let is_over = until.is_some_and(|until| now >= until);
                flight.call.joined = Some(ticket.into());
                flight.stage = Stage::Joining {
                    ticket,
                    look_at: now + poll,
                    until,
                };
                self.joining.insert(key.clone());
                if !was_joining {
                    let said = format!("joined seq={} letter={letter}", ticket.seq);
                    self.say(Level::Info, said);
                    self.lazily(Op::Note(Note {
                        kind: "joined",
                        entry: Some((ticket.branch, ticket.seq, Some(ticket.fence))),
                        letter: Some(letter.0),
                        detail: None,
                        merges: true,
                    }));
                }
                if is_over && let Some(flight) = self.flights.remove(key) {
                    self.ours.add(key.clone());
                    let mut refusal = Refusal::new(RefusalKind::InFlight);
                    refusal.workflow_id = Some(admission.workflow.0.clone());
                    refusal.branch = Some(u64::from(admission.branch));
                    refusal.seq = Some(ticket.seq.0);
                    refusal.attempt = Some(u64::from(ticket.attempt));
                    refusal.tool = Some(flight.call.tool.clone());
                    refusal.reason = Some("the wait for its outcome is over".into());
                    refusal.incoming_signature = Some(flight.signature.to_string());
                    let elsewhere = admission.elsewhere.as_ref();
                    refusal.hint = Some(self.command("show", ticket.seq, elsewhere));
                    refusal.letter = Some(letter.to_string());
                    self.refuse_flight(&flight, &refusal);
                }
            }
            AdmissionVerdict::Refuse(refused) => {
                if self.probe(key, refused, now) {
                    return;
                }
                let Some(flight) = self.flights.remove(key) else {
                    return;
                };
                self.ours.add(key.clone());
                let refusal = self.refusal_of(&flight, admission, refused);
                self.refuse_flight(&flight, &refusal);
            }
        }
    }

    /// The reservation is durable: the call may go out.
    fn forward(&mut self, key: &IdKey, ticket: Ticket, place: ([u8; 16], u32), now: Instant) {
        if self.phase.is_upstream_gone() {
            self.void(Some(key), ticket, "the upstream is gone");
            if let Some(flight) = self.flights.remove(key) {
                let mut refusal = Refusal::new(flight.not_sent());
                refusal.reason = Some(self.phase.why_unavailable());
                refusal.seq = Some(ticket.seq.0);
                refusal.tool = Some(flight.call.tool.clone());
                self.refuse_flight(&flight, &refusal);
            }
            return;
        }
        let Some(flight) = self.flights.get_mut(key) else {
            return;
        };
        // The upstream may have it still: it answers by the id, so one id can't stand for two.
        let is_free = !self.fenced.contains_key(key);
        let may_run_again = flight.policy.delivery == Delivery::AtLeastOnce;
        let line = match flight.line.take() {
            Some(line) if is_free => line,
            _ => {
                self.not_again(key, ticket);
                return;
            }
        };
        if may_run_again {
            // Somebody may take it over, and its caller it back.
            flight.line = Some(Arc::clone(&line));
        } else if flight.policy.key_covers.is_none() {
            // They share the line, which now goes on its way without a copy. What a key covers is
            // told by them, should the call be taken away and asked about again.
            flight.call.arguments = None;
        }
        let line = unshare(line);
        let line = match pass_key(&line, &flight.policy, ticket, place) {
            Some(line) => line,
            None => line,
        };
        let policy = &flight.policy;
        let beat_at = now + policy.heartbeat;
        let limit = policy.timeout.or(self.options.call_timeout);
        let is_gone = self.phase.is_client_gone();
        flight.stage = Stage::Forwarded(Forwarded {
            ticket,
            bytes: u64::MAX..u64::MAX,
            at: now,
            overdue_at: limit.map(|limit| now + limit),
            beat_at,
        });
        self.owners.insert(ticket.fence, key.clone());
        self.up.push_call(line, key.clone());
        let held_back = std::mem::take(&mut flight.held_back);
        let is_shielded = flight.policy.on_cancel == OnCancel::Shield;
        if !held_back.is_empty() {
            // Before what was asked since: an equal call after the cancellation joins this one.
            let op = Op::GiveUp(ticket, GaveUp::Cancelled);
            self.ops.insert(0, (Asked::Nobody, op));
            // Shielded: the call goes on, so that its outcome becomes known.
            for line in held_back.into_iter().filter(|_| !is_shielded) {
                self.up.push(line);
            }
        } else if is_gone {
            self.ops
                .push((Asked::Nobody, Op::GiveUp(ticket, GaveUp::Gone)));
        }
    }

    /// A call that our upstream has had once was to run again, and can't: its reservation is given
    /// back, and the caller is told that nobody knows.
    fn not_again(&mut self, key: &IdKey, ticket: Ticket) {
        self.void(Some(key), ticket, "it has been forwarded before");
        if let Some(flight) = self.flights.remove(key) {
            self.ours.add(key.clone());
            let mut refusal = Refusal::new(RefusalKind::OutcomeUnknown);
            refusal.reason = Some("another session took the call over".into());
            refusal.seq = Some(ticket.seq.0);
            refusal.attempt = Some(u64::from(ticket.attempt));
            refusal.tool = Some(flight.call.tool.clone());
            self.refuse_flight(&flight, &refusal);
        }
    }

    fn third_of_lease(&self, key: &IdKey) -> Duration {
        self.flights
            .get(key)
            .map_or(Duration::MAX, |flight| flight.policy.lease_ttl / 3)
    }

    /// Asks whether the attempt is still ours, immediately before its first byte goes out.
    fn confirm(&mut self, key: &IdKey, ticket: Ticket, place: ([u8; 16], u32)) {
        if let Some(flight) = self.flights.get_mut(key) {
            flight.stage = Stage::Confirming { ticket, place };
            if flight.is_cancelled {
                // Before what was asked since: an equal call after the cancellation joins this one.
                let op = Op::GiveUp(ticket, GaveUp::Cancelled);
                self.ops.insert(0, (Asked::Nobody, op));
            }
            self.ops
                .push((Asked::Confirmation(key.clone()), Op::Confirm(ticket)));
        }
    }

    fn confirmed(&mut self, key: &IdKey, now: Instant) {
        if let Some(flight) = self.flights.get(key)
            && let Stage::Confirming { ticket, place } = flight.stage
        {
            self.forward(key, ticket, place, now);
        }
    }

    /// Another session has taken the entry over before anything went out: its outcome is ours.
    fn ask_anew(&mut self, key: &IdKey) {
        let Some(flight) = self.flights.get_mut(key) else {
            return;
        };
        if let Stage::Confirming { ticket, .. } = flight.stage {
            flight.call.joined = Some(ticket.into());
            flight.stage = Stage::Admitting;
            self.ops.push(flight.admission(key, &mut self.askings));
        }
    }

    /// Another session has taken a running call over. Its outcome counts; ours would be stale.
    fn lost_lease(&mut self, key: &IdKey, now: Instant) {
        let Some(flight) = self.flights.get_mut(key) else {
            return;
        };
        let Stage::Forwarded(forwarded) = &flight.stage else {
            return;
        };
        let ticket = forwarded.ticket;
        let cancels = flight.policy.on_lost_lease == OnLostLease::Cancel;
        let id = flight.id.clone();
        let fenced = Fenced {
            ticket,
            signature: flight.signature,
            policy: Arc::clone(&flight.policy),
            is_cancelled: flight.is_cancelled || cancels,
        };
        // Our upstream may never answer a call that was cancelled; the caller's answer is there,
        // or on its way to the new owner.
        if flight.waits() {
            flight.call.joined = Some(ticket.into());
            flight.call.was_forwarded = !seeded::has(Bug::TakenOverIsNotStarted);
            flight.stage = Stage::Admitting;
            self.ops.push(flight.admission(key, &mut self.askings));
        } else {
            self.flights.remove(key);
        }
        self.owners.remove(&ticket.fence);
        self.fenced.insert(key.clone(), fenced);
        self.say(
            Level::Warn,
            format!(
                "fenced at seq={}: another session has taken the call over",
                ticket.seq
            ),
        );
        self.lazily(Op::Note(Note {
            kind: "fenced",
            entry: Some((ticket.branch, ticket.seq, Some(ticket.fence))),
            letter: None,
            detail: None,
            merges: true,
        }));
        if cancels {
            self.up.push(crate::mcp::reply::cancellation(&id));
        }
        self.wake_waiters(ticket.fence, now);
    }

    /// Notes that a reserved call was never forwarded.
    pub(super) fn void(&mut self, _key: Option<&IdKey>, ticket: Ticket, why: &str) {
        self.ops.push((Asked::Nobody, Self::void_op(ticket, why)));
    }

    pub(super) fn void_op(ticket: Ticket, why: &str) -> Op {
        Op::Settle(Settlement::Void {
            ticket,
            detail: format!("{{\"reason\":{}}}", crate::json::quote(why)),
        })
    }

    /// Answers a flight that is over with a refusal, if anybody waits for it.
    pub(super) fn refuse_flight(&mut self, flight: &Flight, refusal: &Refusal) {
        if flight.waits() {
            let line = self.refusal_line(
                flight.raw_id(),
                refusal,
                flight.is_explicit,
                flight.is_stateless,
            );
            self.down.push(line, None);
        }
    }

    /// The outcome is durable: the answer may go out.
    fn settled(&mut self, key: &IdKey, at: Micros, now: Instant) {
        let Some(flight) = self.flights.get(key) else {
            return;
        };
        let Stage::Settling(_) = &flight.stage else {
            return;
        };
        let Some(flight) = self.flights.remove(key) else {
            return;
        };
        let waits = flight.waits();
        let Stage::Settling(settling) = flight.stage else {
            return;
        };
        self.owners.remove(&settling.ticket.fence);
        if let Some(slot) = settling.slot {
            if waits {
                // What is no outcome is no delivery of one.
                let ticket = (!settling.is_void).then_some(settling.ticket);
                if self.options.annotates {
                    let note = Annotation {
                        seq: Some(settling.ticket.seq.0),
                        attempt: Some(u64::from(settling.ticket.attempt)),
                        replayed: Some(false),
                        completed_at: Some(super::answers::rfc3339(at)),
                        journaled: None,
                    };
                    let line = annotate(settling.answer(), &note).into_owned();
                    self.down.fill(slot, line, ticket);
                } else {
                    self.down.keep(slot, settling.line, ticket);
                }
            } else {
                self.down.drop_slot(slot);
            }
        }
        self.wake_waiters(settling.ticket.fence, now);
    }

    /// Somebody else settled the entry in the meantime: the caller gets what is stored.
    fn went_stale(&mut self, key: &IdKey, now: Instant) {
        let Some(flight) = self.flights.get_mut(key) else {
            return;
        };
        let Stage::Settling(settling) = &flight.stage else {
            return;
        };
        if seeded::has(Bug::StaleOutcomeDelivered) {
            self.settled(key, Micros(0), now);
            return;
        }
        let (ticket, slot) = (settling.ticket, settling.slot);
        self.owners.remove(&ticket.fence);
        if let Some(slot) = slot {
            self.down.drop_slot(slot);
        }
        if flight.waits() {
            flight.call.joined = Some(ticket.into());
            // It ran: whatever the entry is by now, this request does not run again, unless its
            // policy lets it, and is never called not started.
            let is_forgotten = flight.policy.delivery == Delivery::AtLeastOnce
                && seeded::has(Bug::TakenOverIsNotStarted);
            flight.call.was_forwarded = !is_forgotten;
            flight.stage = Stage::Admitting;
            self.ops.push(flight.admission(key, &mut self.askings));
        } else {
            self.flights.remove(key);
        }
        self.wake_waiters(ticket.fence, now);
    }
}

/// Returns the line with the key, attempt and fence that the tool's policy hands on to the upstream;
/// nothing where it does not.
fn pass_key(
    line: &[u8],
    policy: &Policy,
    ticket: Ticket,
    (uid, branch): ([u8; 16], u32),
) -> Option<Vec<u8>> {
    use crate::mcp::pass_key::{KeyPlace, PassedKey, pass_key};
    use std::fmt::Write as _;
    let place = match policy.pass_key.as_ref()? {
        PassKey::Arguments {
            key,
            attempt,
            fence,
        } => KeyPlace::Arguments {
            key,
            attempt: attempt.as_deref(),
            fence: fence.as_deref(),
        },
        PassKey::Meta => KeyPlace::Meta,
    };
    let mut key = String::new();
    for byte in uid {
        let _ = write!(key, "{byte:02x}");
    }
    if seeded::has(Bug::PassedKeyOfAttempt) {
        let _ = write!(key, "/{}", ticket.attempt);
    }
    let _ = write!(key, "/{branch}/{}", ticket.seq);
    let passed = PassedKey {
        idempotency_key: &key,
        attempt: u64::from(ticket.attempt),
        fence: ticket.fence.0,
    };
    Some(pass_key(line, &place, &passed)?.into_owned())
}
