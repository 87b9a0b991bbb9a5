//! The oracle: what it knows comes from the two ends of the wire, the rows and who lives, never
//! from the code under test. `docs/reliability.md` names the invariants.

macro_rules! holds {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err(format!($($text)*));
        }
    };
}

mod admissions;
mod branches;
mod deferred;
mod finish;
mod passed;
mod rows;
mod seen;
mod verdicts;
mod walk;
mod wire;

use std::collections::{BTreeMap, BTreeSet};

use checkpoint::guard::{Admission, AdmissionVerdict, Done, Op, Settlement, Why};
use checkpoint::journal::memory::MemoryJournal;
use checkpoint::rules::decide::Decision;
use checkpoint::rules::entry::Status;
use checkpoint::rules::ids::{BranchId, Fence, Seq, SessionId};

use crate::plan::Plan;
use crate::promise::{Promise, Reach};
use crate::store::Shared;
pub(crate) use seen::Seen;
pub(crate) use verdicts::Said;
pub(crate) use wire::{Answer, Grant, Kind, Request};

pub(crate) type Check = Result<(), String>;

/// How long an outcome that reached nobody answers an equal call, µs.
const REDELIVER_WITHIN: i64 = 15 * 60 * 1_000_000;

#[derive(Clone, Debug)]
struct Row {
    place: (BranchId, Seq),
    status: Status,
    attempt: u32,
    round: u32,
    is_error: bool,
    fence: Fence,
    session: SessionId,
    is_delivered: bool,
    gave_up: bool,
    unanswered: bool,
    completed_at: i64,
    serial: Option<usize>,
}

#[derive(Default)]
pub(crate) struct Oracle {
    pub(crate) requests: Vec<Request>,
    pub(crate) answers: Vec<Answer>,
    /// The calls that had an id in a life, in the order of writing.
    pub(crate) by_id: BTreeMap<(usize, String), Vec<usize>>,
    rows: BTreeMap<(BranchId, Seq), Row>,
    by_fence: BTreeMap<Fence, usize>,
    fence_max: u64,
    pub(crate) spoiled: BTreeSet<(BranchId, Seq)>,
    /// Those of them of which only the outcome's bytes are.
    pub(crate) spoiled_outcomes: BTreeSet<(BranchId, Seq)>,
    /// Effects that an operator allowed beyond the first.
    pub(crate) authorised: BTreeMap<(BranchId, Seq), u32>,
    /// Entries that an operator took from an owner who may still have been at work.
    taken_by_force: BTreeSet<(BranchId, Seq)>,
    authorised_all: u32,
    /// An operator has done something to an entry.
    operator_ruled: bool,
    effects_by_place: BTreeMap<(usize, u64, Option<usize>), u32>,
    effects_by_key: BTreeMap<(String, String, Option<usize>), u32>,
    effects_by_row: BTreeMap<((BranchId, Seq), Option<usize>), u32>,
    /// The first answer that was read for an attempt.
    answered: BTreeMap<Fence, usize>,
    /// Ends of tasks that a proxy has read, and tasks that it has read to have failed.
    pub(crate) ends_read: BTreeSet<usize>,
    pub(crate) failures_read: BTreeSet<usize>,
    /// Attempts that were made since the one before was lost.
    after_lost: BTreeSet<Fence>,
    /// Until when an attempt's owner may be silent, ms since the boot.
    leases: BTreeMap<Fence, u64>,
    /// Whose a branch is.
    owners: BTreeMap<BranchId, usize>,
    /// Workflows that an operator made: of which, and from which seq on they have their own.
    splits: BTreeMap<usize, (usize, Seq)>,
    walks: BTreeMap<usize, walk::Walk>,
    flights: walk::Flights,
    promise: Promise,
    forks: bool,
    resumes: bool,
    /// Questions without a state that a life was given, oldest first.
    asked: BTreeMap<usize, Vec<Fence>>,
    pub(crate) seen: Seen,
    /// Attempts whose answer was written to a caller that waited.
    pub(crate) written: BTreeSet<Fence>,
    redelivered: BTreeMap<(usize, Fence), usize>,
    /// Lives that defer outcomes, and attempts whose outcome was told.
    deferring: BTreeSet<usize>,
    told: BTreeSet<Fence>,
    /// The answer that stands as the outcome of an attempt, where that is not the one that was
    /// read for it: an operator's, or one of an attempt before it.
    settled: BTreeMap<Fence, usize>,
    /// Attempts whose outcome is an operator's verdict.
    ruled: BTreeSet<Fence>,
    /// Answers that came too late to count and are sure to have been kept.
    stale: BTreeMap<(BranchId, Seq), Vec<(Fence, usize)>>,
    /// What each entry's upstream was told to tell it by.
    passed: BTreeMap<String, (BranchId, Seq)>,
    pub(crate) effects: u64,
}

pub(crate) struct Batch<'a> {
    pub(crate) life: usize,
    pub(crate) session: Option<SessionId>,
    pub(crate) ops: &'a [Op],
    /// Empty where the commit's end is not known.
    pub(crate) done: &'a [Done],
    pub(crate) wall: i64,
}

impl Oracle {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            promise: plan.promise,
            forks: plan.forks,
            resumes: plan.resumes,
            ..Self::default()
        }
    }

    pub(crate) fn serial_of_call_id(call_id: &str) -> Option<usize> {
        call_id.strip_prefix('c')?.parse().ok()
    }

    pub(crate) fn allow(&mut self, place: (BranchId, Seq)) {
        *self.authorised.entry(place).or_default() += 1;
        self.authorised_all += 1;
    }

    fn arguments_of(memory: &MemoryJournal, fence: Fence) -> String {
        memory
            .attempt(fence)
            .and_then(|attempt| attempt.arguments.as_ref())
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .unwrap_or_default()
    }

    /// A batch was committed, or may have been: rows against what was asked and what is true.
    pub(crate) fn committed(&mut self, shared: &Shared, batch: &Batch<'_>) -> Check {
        let Some(memory) = shared.memory() else {
            return Ok(());
        };
        self.note_finishers(memory, batch);
        let mut admitted = 0;
        for (op, done) in batch.ops.iter().zip(batch.done) {
            if let Op::Keep(ticket) = op {
                let taker = self.redelivered.remove(&(batch.life, ticket.fence));
                let taker = taker.ok_or("D2 what nobody took is kept")?;
                holds!(
                    !self.requests[taker].got_outcome,
                    "D2 c{taker} was answered with what is kept for another one"
                );
            }
            if let (Op::Admit(call), Done::Admitted(admission)) = (op, done) {
                let serial = call.call_id.as_deref().and_then(Self::serial_of_call_id);
                let serial = serial.ok_or("a call lost its id")?;
                let is_joined = call.joined.is_some();
                if self.resumes && !is_joined {
                    self.walked(memory, batch, serial, admission, admitted == 0)?;
                }
                admitted += 1;
                self.admitted(shared, memory, batch, serial, is_joined, admission)?;
            }
            if let (Op::Renew(ticket, _), Done::Noted) = (op, done) {
                self.renewed(shared, ticket.fence);
            }
        }
        self.compare_rows(shared, Some(batch))?;
        self.deliveries_are_noted(batch)
    }

    fn renewed(&mut self, shared: &Shared, fence: Fence) {
        let now = u64::try_from(shared.uptime.as_millis()).unwrap();
        self.leases.insert(fence, now + crate::promise::LEASE_MS);
    }

    /// A cancellation comes out for the upstream.
    pub(crate) fn cancel_passes(&mut self, life: usize, line: &str) -> Check {
        let serial = between(line, "\"c\":\"c", "\"").and_then(|text| text.parse::<usize>().ok());
        let Some(serial) = serial else {
            // Our own, of a call that was fenced.
            let id = between(line, "\"requestId\":", ",").unwrap_or("");
            let calls = self.by_id.get(&(life, id.to_owned()));
            let is_of_a_call = calls.is_some_and(|calls| {
                calls.iter().any(|call| {
                    self.requests[*call].ever_reached || self.requests[*call].is_forwarded
                })
            });
            // By time only where it may run again; by force, or by what a bad disk says, in any case.
            let is_forced = calls.into_iter().flatten().any(|call| {
                let place = self.requests[*call].grant.map(|it| (it.branch, it.seq));
                place.is_some_and(|at| {
                    self.taken_by_force.contains(&at) || self.spoiled.contains(&at)
                })
            });
            let may_be_taken = self.promise.at_least_once || is_forced;
            holds!(
                may_be_taken && !self.promise.finishes_lost && is_of_a_call,
                "P4 a cancellation of our own that nobody asked for: {line}"
            );
            return Ok(());
        };
        let request = &self.requests[serial];
        holds!(
            request.is_forwarded || request.ever_reached,
            "I11 the cancellation of c{serial} is forwarded, which the upstream never got"
        );
        holds!(
            !(self.promise.shields && request.cancelled_running),
            "P4 the cancellation of the shielded c{serial} is forwarded"
        );
        Ok(())
    }

    /// Whether anything of a call has happened.
    pub(crate) fn has_effect(&self, place: (BranchId, Seq)) -> bool {
        self.effects_by_row
            .iter()
            .any(|((other, _), count)| *other == place && *count > 0)
    }

    /// Whether the part of the work has happened that an entry is at.
    pub(crate) fn has_effect_of_part(&self, place: (BranchId, Seq)) -> bool {
        let serial = self.rows.get(&place).and_then(|row| row.serial);
        let leg = serial.and_then(|serial| self.requests[serial].leg);
        let count = self.effects_by_row.get(&(place, leg));
        count.is_some_and(|count| *count > 0)
    }

    /// Returns which call a line for the client answers: the first of its id that waits.
    pub(crate) fn answered_call(&self, life: usize, id: &str, line: &str) -> Option<usize> {
        let calls = self.by_id.get(&(life, id.to_owned()))?;
        let waits = |serial: &&usize| {
            let request = &self.requests[**serial];
            request.is_read && request.replies == 0 && !request.is_cancelled
        };
        // Of two, one may be refused at once and the other when that is durable: each says its seq.
        let seq = between(line, "\"seq\":", ",").and_then(|seq| seq.parse::<u64>().ok());
        // What never started is none of which bytes went out.
        let is_not_started = line.contains("\"side_effect\":\"not_started\"");
        let may_be = |serial: &&usize| !is_not_started || !self.requests[**serial].ever_reached;
        let named = calls
            .iter()
            .filter(waits)
            .filter(may_be)
            .find(|serial| seq.is_some() && self.requests[**serial].seq == seq);
        let unsent = calls
            .iter()
            .filter(waits)
            .find(|serial| is_not_started && may_be(serial));
        named
            .or(unsent)
            .or(calls.iter().find(waits))
            .or(calls.last())
            .copied()
    }

    /// A session reads a cancellation.
    pub(crate) fn cancel_read(&mut self, serial: usize) {
        let request = &mut self.requests[serial];
        request.cancel_seen |= request.is_read;
        if request.is_read && request.replies == 0 {
            request.is_cancelled = true;
            request.cancelled_running = request.answer.is_none();
            if self.promise.shields && request.is_forwarded {
                self.seen.shielded += 1;
            }
        }
    }

    /// A call was refused since its id is in flight. Returns which.
    pub(crate) fn duplicate_refused(&mut self, life: usize, id: &str) -> Result<usize, String> {
        let calls = self.by_id.get(&(life, id.to_owned())).into_iter().flatten();
        let serial = calls
            .skip(1)
            .find(|serial| {
                let request = &self.requests[**serial];
                request.is_read && request.replies == 0 && !request.is_forwarded
            })
            .copied()
            .ok_or("a refusal of a duplicate that nobody sent")?;
        let request = &mut self.requests[serial];
        request.replies = 1;
        request.said_not_started = true;
        Ok(serial)
    }

    /// A call's bytes come out of the session.
    pub(crate) fn forwarded(
        &mut self,
        shared: &Shared,
        life: usize,
        session: Option<SessionId>,
        serial: usize,
        line: &[u8],
    ) -> Check {
        let request = &mut self.requests[serial];
        holds!(request.life == life, "c{serial} came out of another proxy");
        let passed = self.promise.passes.read(&request.line, line);
        let passed = passed.ok_or_else(|| format!("I9 c{serial} went out as other bytes"))?;
        if let Some(fence) = passed.as_ref().and_then(|passed| passed.fence)
            && let Some(at) = request.grants.iter().position(|(g, _)| g.fence == fence)
            && request.grants.len() > 1
            && !request.is_forwarded
        {
            // A line of an earlier one may come out after a later one was given back.
            let (grant, leg) = request.grants[at];
            request.grant = Some(grant);
            request.leg = leg;
        } else if let Some((grant, leg)) = request.regrant.take() {
            request.grant = Some(grant);
            request.leg = leg;
            request.is_again = true;
            request.is_forwarded = false;
            request.reached = false;
            request.effects = 0;
            request.answer = None;
            request.answered_cancelled = false;
            request.answered_closed = false;
        }
        holds!(!request.is_forwarded, "I1 c{serial} went out twice");
        holds!(
            !request.said_not_started,
            "I10 c{serial} went out after it was refused as not started"
        );
        request.is_forwarded = true;
        let id = request.id.clone();
        let others = self.by_id.get(&(life, id)).into_iter().flatten();
        for other in others.filter(|other| **other < serial) {
            let other = &self.requests[*other];
            let is_running = other.is_forwarded
                && other.answer.is_none()
                && other.replies == 0
                && !other.is_cancelled;
            holds!(!is_running, "I10 c{serial} went out under an id in flight");
        }
        let request = &self.requests[serial];
        let Some(durable) = shared.durable() else {
            return Ok(());
        };
        let Some(grant) = request.grant else {
            return Err(format!("I4 c{serial} went out without a reservation"));
        };
        let arguments = request.arguments.clone();
        let row = durable
            .entries()
            .find(|stored| (stored.entry.branch, stored.entry.seq) == (grant.branch, grant.seq));
        let is_spoiled = self.spoiled.contains(&(grant.branch, grant.seq));
        let holds_it = row.is_some_and(|stored| {
            let entry = &stored.entry;
            let attempt = durable.attempt(grant.fence);
            // A round that an operator says was not executed is gone from its row.
            let is_back = entry.status == Status::InputRequired && self.operator_ruled;
            (entry.fence > grant.fence || is_back)
                && attempt.is_some_and(|attempt| Some(attempt.session) == session)
                || entry.fence == grant.fence && Some(entry.session) == session
        });
        holds!(
            holds_it || is_spoiled,
            "I4 c{serial} went out before its reservation was durable"
        );
        holds!(
            Self::arguments_of(durable, grant.fence) == arguments,
            "I4 c{serial} went out under a reservation of another call"
        );
        match passed {
            Some(passed) => self.passed_on(durable, serial, grant, &passed),
            None => Ok(()),
        }
    }

    /// The upstream performs an effect.
    pub(crate) fn effect(&mut self, serial: usize) -> Check {
        self.effects += 1;
        let request = &mut self.requests[serial];
        request.effects += 1;
        let (workflow, seq, key) = (request.workflow, request.seq, request.key.clone());
        let grant = request.grant;
        holds!(
            request.effects == 1 || request.is_again,
            "I1 the effect of c{serial} happened twice"
        );
        let allowed = |place: Option<(BranchId, Seq)>| {
            place
                .and_then(|place| self.authorised.get(&place))
                .copied()
                .unwrap_or(0)
        };
        let place = grant.map(|grant| (grant.branch, grant.seq));
        let extra = allowed(place);
        // Each round is a part of the work; a policy may allow several attempts.
        let leg = self.requests[serial].leg;
        let max = self.promise.effects_max();
        if let Some(place) = place {
            let count = self.effects_by_row.entry((place, leg)).or_default();
            *count += 1;
            holds!(
                *count <= max + extra,
                "I1 {count} effects of {place:?}, {max} by its policy and {extra} allowed beyond"
            );
        }
        if place.is_none() && self.requests[serial].round.is_some() {
            // Which part of the work it is, only the rows tell.
            return Ok(());
        }
        // A key beside a seq may send a call to another place; what counts is the explicit name.
        if let (Some(seq), None, false) = (seq, &key, self.forks) {
            let count = self
                .effects_by_place
                .entry((workflow, seq, leg))
                .or_default();
            *count += 1;
            holds!(
                *count <= max + extra,
                "I1 {count} effects at seq {seq} of w{workflow}, {max} by its policy and {extra} allowed beyond"
            );
        }
        // Where a seq leads to an entry, it decides, and not the key.
        let is_told_by_key =
            seq.is_none() || (self.promise.reach == Reach::Workflow && !self.forks);
        if let Some(key) = key.filter(|_| self.spoiled.is_empty() && is_told_by_key) {
            let scope = self.requests[serial].scope.clone();
            let count = self.effects_by_key.entry((scope, key, leg)).or_default();
            *count += 1;
            holds!(
                *count <= max + self.authorised_all,
                "I1 {count} effects under a key of c{serial}"
            );
        }
        Ok(())
    }

    /// An answer of the upstream's is read by a session.
    pub(crate) fn answer_read(&mut self, life: usize, id: &str, answer: usize, closed: bool) {
        let calls = self.by_id.get(&(life, id.to_owned())).into_iter().flatten();
        let Some(serial) = calls
            .rev()
            .find(|serial| self.requests[**serial].is_forwarded)
            .copied()
        else {
            return;
        };
        let request = &mut self.requests[serial];
        if request.is_forwarded && request.answer.is_none() {
            request.answer = Some(answer);
            request.answered_cancelled = request.cancel_seen;
            request.answered_closed = closed;
            if let Some(grant) = request.grant {
                self.answered.entry(grant.fence).or_insert(answer);
                self.answers[answer].fence = Some(grant.fence);
                let given = &self.answers[answer];
                if given.kind == Kind::Question && !given.has_state {
                    self.asked.entry(life).or_default().push(grant.fence);
                }
            }
        }
    }

    /// A line with the answer to a call comes out for the client. Returns the attempt that it
    /// delivers.
    pub(crate) fn replied(
        &mut self,
        shared: &Shared,
        serial: usize,
        line: &str,
        is_faulted: bool,
    ) -> Result<Option<Fence>, String> {
        let request = &mut self.requests[serial];
        request.replies += 1;
        holds!(
            request.replies == 1,
            "I6 c{serial} is answered {} times",
            request.replies
        );
        let token = line
            .split_once('#')
            .and_then(|(_, rest)| rest.split_once('#'))
            .and_then(|(token, _)| token.parse::<usize>().ok());
        let Some(token) = token else {
            let kind = between(line, "\"kind\":\"", "\"").unwrap_or("");
            holds!(
                !kind.is_empty(),
                "c{serial} got what is neither an outcome nor a refusal: {line}"
            );
            let side_effect = between(line, "\"side_effect\":\"", "\"").unwrap_or("");
            match side_effect {
                "not_started" => {
                    holds!(
                        !request.ever_reached,
                        "I10 c{serial} is told that it was not started"
                    );
                    request.said_not_started = true;
                }
                "unknown" => {}
                // What is kept of it is that it was done.
                "completed" if kind == "result_expired" && !self.promise.stores_results => {}
                other => return Err(format!("c{serial} is told side_effect {other:?}")),
            }
            return Ok(None);
        };
        request.got_outcome = true;
        let answer = &self.answers[token];
        let given = &self.requests[answer.serial];
        let request = &self.requests[serial];
        holds!(
            given.arguments == request.arguments || self.may_be_covered(request, &given.arguments),
            "I5 c{serial} with {} is answered for {}",
            request.arguments,
            given.arguments
        );
        // A mark is spliced in as the first or the last member, and no other byte changes.
        let (first, last) = (&answer.body[1..], &answer.body[..answer.body.len() - 1]);
        let is_marked =
            line.contains("\"checkpoint\":{") && (line.contains(first) || line.contains(last));
        holds!(
            line.contains(&answer.body) || is_marked,
            "I2 c{serial} gets other bytes than the upstream's #{token}#"
        );
        holds!(
            !(request.is_cancelled
                && given.answered_cancelled
                && answer.serial == serial
                && answer.kind != Kind::Operator),
            "I6 the cancelled c{serial} is answered"
        );
        if line.contains("\"journaled\":false") {
            holds!(
                is_faulted && answer.serial == serial,
                "I2 c{serial} is marked as not journaled, and the journal had no fault"
            );
            self.requests[serial].is_unwritten = true;
            return Ok(None);
        }
        let Some(durable) = self.book(shared, token) else {
            return Ok(None);
        };
        let answer = &self.answers[token];
        if answer.kind == Kind::NotExecuted {
            return Ok(None);
        }
        let fence = self.stands_under(durable, token);
        let fence = fence.ok_or_else(|| format!("I2 #{token}# was never reserved"))?;
        let stored = if answer.ends.is_some() {
            durable.task_end(fence).or_else(|| durable.outcome(fence))
        } else {
            durable.outcome(fence)
        };
        let is_kept = self.promise.stores_results || answer.kind == Kind::Operator;
        let is_there = stored.is_some();
        let stored = stored.and_then(|outcome| outcome.body.as_deref());
        let place = durable.attempt(fence).map(|it| (it.branch, it.seq));
        let is_spoiled = place.is_some_and(|place| self.spoiled.contains(&place));
        holds!(
            is_spoiled
                || stored == Some(answer.body.as_bytes())
                || (!is_kept && is_there && stored.is_none()),
            "I2 c{serial} is answered with #{token}#, which is not durable"
        );
        self.told.insert(fence);
        Ok(Some(fence))
    }

    /// A proxy has ended in order: nothing that it read is lost, nobody is left without an answer.
    pub(crate) fn ended(
        &self,
        shared: &Shared,
        life: usize,
        is_faulted: bool,
        client_gone: bool,
    ) -> Check {
        let memory = shared.memory();
        for (serial, request) in self.requests.iter().enumerate() {
            if request.life != life || !request.is_read {
                continue;
            }
            holds!(
                request.replies == 1 || request.cancel_seen || client_gone,
                "I6 c{serial} has no answer"
            );
            let (Some(answer), Some(grant), Some(memory)) = (request.answer, request.grant, memory)
            else {
                continue;
            };
            let kind = self.answers[answer].kind;
            let is_outcome = match kind {
                Kind::Result | Kind::Question | Kind::Handle => true,
                Kind::Error => !request.answered_cancelled,
                Kind::Closed => !request.answered_cancelled && !request.answered_closed,
                // The attempt before it may have run.
                Kind::NotExecuted => !self.promise.at_least_once,
                Kind::Operator => false,
            };
            let place = (grant.branch, grant.seq);
            if !is_outcome || is_faulted || self.spoiled.contains(&place) {
                continue;
            }
            let row = memory
                .entries()
                .find(|stored| (stored.entry.branch, stored.entry.seq) == place);
            holds!(
                row.is_some_and(|stored| stored.entry.fence != grant.fence
                    || stored.entry.status != Status::Pending),
                "I8 the answer to c{serial} was read, and {place:?} is still in doubt"
            );
        }
        Ok(())
    }

    pub(crate) fn fence_max(&self) -> u64 {
        self.fence_max
    }
}

pub(crate) fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let at = text.find(start)? + start.len();
    let rest = &text[at..];
    Some(&rest[..rest.find(end)?])
}
