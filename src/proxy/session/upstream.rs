//! What the upstream sends.
//!
//! Must not: drop an outcome, or hand one on before it is durable.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{part_of, state_digest};
use super::{Fenced, Level, PassingKind, PassingRequest, Place, Session, Settling, Stage};
use crate::guard::{Answer, Note, Op, Settlement, Ticket};
use crate::journal::{RoundKey, TaskKey};
use crate::json;
use crate::mcp::frame::{IdKey, Raw, RawId, UpstreamLine, batch_elements, read_upstream};
use crate::mcp::identity;
use crate::mcp::outcome::{TaskView, read_error, read_result, read_task};
use crate::mcp::reply::{self, Refusal, RefusalKind, SideEffect};
use crate::rules::entry::{Status, Unanswered};
use crate::rules::policy::{Delivery, Policy};
use crate::seeded::{self, Bug};

/// What an answer makes of its entry.
enum Meaning {
    Outcome(Box<Answer>),
    /// The protocol says that the call was not executed: mend and send again.
    NotExecuted(i64),
    /// It ended, and nobody can say how.
    Unknown(Unanswered),
}

/// What becomes of a message of the upstream's: of a line, or of an element of an array.
enum Fate {
    /// It is none.
    Noise,
    /// It is an array of several.
    Batch,
    /// It answers a question of our own, and goes nowhere.
    Own,
    /// It goes to the client as it came.
    Pass,
    /// It goes to the client like this.
    Changed(Vec<u8>),
    /// It goes nowhere: what it is.
    Dropped(&'static str),
    /// It answers a call that the upstream has, with what stands there in it.
    Answers(IdKey, Ticket, Raw<Range<usize>>),
    /// It answers a call that another session has taken over, likewise.
    Stale(IdKey, Fenced, Raw<Range<usize>>),
}

/// An answer that came: a message in a line, and where in the message its payload stands.
struct Came {
    line: Arc<Vec<u8>>,
    range: Range<usize>,
    outcome: Raw<Range<usize>>,
}

impl Came {
    /// Returns the raw payload.
    fn raw(&self) -> Raw<&[u8]> {
        let message = &self.line[self.range.clone()];
        self.outcome.clone().map(|part| &message[part])
    }
}

impl Session {
    /// Takes a whole line of the upstream's, its `\n` included (the last may lack it).
    pub fn upstream_line(&mut self, line: Vec<u8>, now: Instant) {
        match self.fate(&line, now) {
            Fate::Noise => self.noise.push(line),
            Fate::Own => {}
            Fate::Pass => self.down.pass(line),
            Fate::Changed(line) => self.down.pass(line),
            Fate::Dropped(what) => self.note_dropped(what),
            Fate::Batch => self.upstream_array(line, now),
            Fate::Answers(key, ticket, outcome) => {
                let slot = self.waits(&key).then(|| self.down.reserve(now));
                let came = Came {
                    range: 0..line.len(),
                    line: Arc::new(line),
                    outcome,
                };
                self.answered(&key, ticket, came, slot, now);
            }
            Fate::Stale(key, fenced, outcome) => {
                let came = Came {
                    range: 0..line.len(),
                    line: Arc::new(line),
                    outcome,
                };
                self.fenced_answered(key, &fenced, &came);
            }
        }
    }

    /// An array is one line, which only 2025-03-26 knows: it goes out as it came once all that it
    /// answers is durable. What must not go out is taken out of it.
    fn upstream_array(&mut self, line: Vec<u8>, now: Instant) {
        let line = Arc::new(line);
        let array = self.down.reserve_array(Arc::clone(&line), now);
        let mut dropped = None;
        for element in batch_elements(&line) {
            match self.fate(&line[element.clone()], now) {
                Fate::Noise | Fate::Batch | Fate::Pass => {}
                Fate::Own => self.down.edit(array, element, None),
                Fate::Changed(bytes) => self.down.edit(array, element, Some(bytes)),
                Fate::Dropped(what) => {
                    self.down.edit(array, element, None);
                    dropped = Some(what);
                }
                Fate::Answers(key, ticket, outcome) => {
                    let slot = if self.waits(&key) {
                        self.down.reserve_part(array, element.clone())
                    } else {
                        self.down.edit(array, element.clone(), None);
                        None
                    };
                    let came = Came {
                        line: Arc::clone(&line),
                        range: element,
                        outcome,
                    };
                    self.answered(&key, ticket, came, slot, now);
                }
                Fate::Stale(key, fenced, outcome) => {
                    self.down.edit(array, element.clone(), None);
                    let came = Came {
                        line: Arc::clone(&line),
                        range: element,
                        outcome,
                    };
                    self.fenced_answered(key, &fenced, &came);
                }
            }
        }
        drop(line);
        self.down.end_array(array);
        if let Some(what) = dropped {
            self.note_dropped(what);
        }
    }

    fn waits(&self, key: &IdKey) -> bool {
        self.flights.get(key).is_some_and(|flight| flight.waits())
    }

    /// Tells what becomes of a message, and learns from it what passes by.
    fn fate(&mut self, message: &[u8], now: Instant) -> Fate {
        let (key, outcome) = match read_upstream(message) {
            UpstreamLine::Noise => return Fate::Noise,
            UpstreamLine::Batch => return Fate::Batch,
            UpstreamLine::Other if self.takes_odd_line(message, now) => return Fate::Own,
            UpstreamLine::Other => return Fate::Pass,
            UpstreamLine::Message { method, params, .. } => {
                match &*method {
                    "notifications/tools/list_changed" => self.known.forget_tools(),
                    "notifications/tasks/status" | "notifications/tasks" => {
                        if let Some(task) = params.and_then(read_task) {
                            self.see_task(&task);
                        }
                    }
                    _ => {}
                }
                return Fate::Pass;
            }
            UpstreamLine::Answer(answer) => {
                if self.is_own(answer.id) {
                    self.own_answered(&answer, now);
                    return Fate::Own;
                }
                let key = self.in_flight(answer.id);
                let key = key.unwrap_or_else(|| answer.id.key());
                (key, answer.outcome_range())
            }
        };
        let key = self.seeded_key(key);
        if let Some(flight) = self.flights.get(&key) {
            if seeded::has(Bug::LateAnswerDropped) && !flight.waits() {
                return Fate::Dropped("a late answer");
            }
            if let Stage::Forwarded(forwarded) = &flight.stage {
                let ticket = forwarded.ticket;
                return Fate::Answers(key, ticket, outcome);
            }
        }
        if let Some(fenced) = self.fenced.remove(&key) {
            Fate::Stale(key, fenced, outcome)
        } else if self.settled.has(&key) {
            Fate::Dropped("a second answer to a call")
        } else if self.flights.contains_key(&key) || self.ours.has(&key) {
            Fate::Dropped("an answer to a call that the upstream did not get")
        } else if let Some(request) = self.passing.remove(&key) {
            match self.passing_answered(&request, message) {
                Some(changed) => Fate::Changed(changed),
                None => Fate::Pass,
            }
        } else {
            Fate::Pass
        }
    }

    /// Returns the key of the answer's call, but for the bugs that there are on purpose.
    fn seeded_key(&self, key: IdKey) -> IdKey {
        let wrong = seeded::has(Bug::IdMixUp)
            || (seeded::has(Bug::SecondAnswerSettlesAnother) && self.settled.has(&key));
        if !wrong {
            return key;
        }
        let running = self
            .flights
            .iter()
            .filter(|(_, flight)| matches!(flight.stage, Stage::Forwarded(_)));
        running.map(|(key, _)| key.clone()).min().unwrap_or(key)
    }

    fn note_dropped(&mut self, what: &str) {
        self.say(Level::Warn, format!("dropped {what}"));
        self.lazily(Op::Note(Note {
            kind: "dropped_answer",
            entry: None,
            letter: None,
            detail: Some(format!("{{\"what\":{}}}", json::quote(what))),
            merges: true,
        }));
    }

    /// A call that another session has taken over was answered all the same: what came is kept,
    /// and the caller has, or waits for, the new owner's outcome.
    fn fenced_answered(&mut self, key: IdKey, fenced: &Fenced, came: &Came) {
        let ticket = fenced.ticket;
        let meaning = self.meaning(came, &fenced.policy, fenced.is_cancelled);
        let settlement = match meaning {
            Meaning::Outcome(answer) => Settlement::Answered {
                ticket,
                signature: fenced.signature,
                first_wins: !fenced.policy.fences_results,
                may_rerun: fenced.policy.delivery == Delivery::AtLeastOnce,
                answer: *answer,
            },
            Meaning::NotExecuted(code) => Settlement::Void {
                ticket,
                detail: format!("{{\"error_code\":{code}}}"),
            },
            Meaning::Unknown(reason) => Settlement::Lost {
                ticket,
                reason,
                detail: format!("{{\"reason\":\"{}\"}}", reason.name()),
            },
        };
        self.settled.add(key);
        self.ops
            .push((super::Asked::Nobody, Op::Settle(settlement)));
    }

    /// A call was answered. `slot` is kept for the answer, unless nobody waits.
    fn answered(
        &mut self,
        key: &IdKey,
        ticket: Ticket,
        came: Came,
        mut slot: Option<Place>,
        now: Instant,
    ) {
        let Some(flight) = self.flights.get(key) else {
            return;
        };
        let meaning = self.meaning(&came, &flight.policy, flight.is_cancelled);
        let Came { line, range, .. } = came;
        self.settled.add(key.clone());
        let is_void = matches!(meaning, Meaning::NotExecuted(_));
        let settlement = match meaning {
            Meaning::Outcome(answer) => Settlement::Answered {
                ticket,
                signature: flight.signature,
                first_wins: !flight.policy.fences_results,
                may_rerun: flight.policy.delivery == Delivery::AtLeastOnce,
                answer: *answer,
            },
            Meaning::NotExecuted(code) => Settlement::Void {
                ticket,
                detail: format!("{{\"error_code\":{code}}}"),
            },
            Meaning::Unknown(reason) => {
                if let Some(slot) = slot {
                    self.down.drop_slot(slot);
                }
                self.answered_nothing(key, ticket, reason, now);
                return;
            }
        };
        if seeded::has(Bug::AnswerBeforeDurable)
            && let Some(slot) = slot.take()
        {
            let line = line[range.clone()].to_vec();
            self.down.fill(slot, line, Some(ticket));
        }
        if let Some(flight) = self.flights.get_mut(key) {
            flight.stage = Stage::Settling(Settling {
                ticket,
                line,
                range,
                slot,
                is_void,
            });
        }
        self.settle_op(key, settlement);
    }

    /// An answer tells nothing of what the call did: its caller, if it waits, gets our own word.
    fn answered_nothing(&mut self, key: &IdKey, ticket: Ticket, reason: Unanswered, now: Instant) {
        let Some(flight) = self.flights.remove(key) else {
            return;
        };
        let elapsed = match &flight.stage {
            Stage::Forwarded(forwarded) => now.saturating_duration_since(forwarded.at),
            Stage::Admitting
            | Stage::Confirming { .. }
            | Stage::Joining { .. }
            | Stage::Probing { .. }
            | Stage::Settling(_) => Duration::ZERO,
        };
        let detail = format!(
            "{{\"reason\":\"{}\",\"elapsed_ms\":{}}}",
            reason.name(),
            elapsed.as_millis()
        );
        let kind = RefusalKind::OutcomeUnknown;
        let refusal = self.refusal_on(kind, "connection_closed", &flight, ticket);
        self.lose(&flight, ticket, &refusal, (reason, detail), now);
        self.wake_waiters(ticket.fence, now);
    }

    fn meaning(&self, came: &Came, policy: &Policy, is_cancelled: bool) -> Meaning {
        let line = &came.line;
        let keeps = |raw: &[u8]| policy.store_result && raw.len() as u64 <= policy.result_bytes_max;
        match came.raw() {
            Raw::Result(raw) => {
                let view = read_result(raw);
                let (status, round, task) = if view.is_input_required() {
                    let round = RoundKey {
                        state: view.request_state.map(state_digest),
                        inputs: view.input_request_keys.join("\n"),
                    };
                    (Status::InputRequired, Some(round), None)
                } else if let Some(task) = view.task.filter(|_| !seeded::has(Bug::HandleIsResult)) {
                    let task = TaskKey {
                        id: task.task_id,
                        created_at: task.created_at.unwrap_or_default(),
                    };
                    (Status::Accepted, None, Some(task))
                } else {
                    (Status::Completed, None, None)
                };
                Meaning::Outcome(Box::new(Answer {
                    status,
                    is_error: view.is_error,
                    body: part_of(line, raw),
                    is_kept: keeps(raw),
                    round,
                    task,
                }))
            }
            Raw::Error(raw) => {
                let view = read_error(raw);
                if view.is_not_executed() {
                    return Meaning::NotExecuted(view.code.unwrap_or_default());
                }
                // It was stopped; what it had done by then, it does not say.
                if is_cancelled && !seeded::has(Bug::CancelErrorIsOutcome) {
                    return Meaning::Unknown(Unanswered::StoppedByCancel);
                }
                // Many upstreams abort running calls when their input closes, with this error.
                if view.is_connection_closed()
                    && self.phase.is_input_closed()
                    && !seeded::has(Bug::ClosedConnectionIsOutcome)
                {
                    return Meaning::Unknown(Unanswered::ConnectionClosed);
                }
                Meaning::Outcome(Box::new(Answer {
                    status: Status::Failed,
                    is_error: false,
                    body: part_of(line, raw),
                    is_kept: keeps(raw),
                    round: None,
                    task: None,
                }))
            }
        }
    }

    /// Learns from the answer to a request that is not journaled. Returns it as it is to go on, if
    /// that is not as it came.
    fn passing_answered(&mut self, request: &PassingRequest, message: &[u8]) -> Option<Vec<u8>> {
        if matches!(
            request.kind,
            PassingKind::Listen | PassingKind::Call | PassingKind::Other
        ) {
            return None;
        }
        let UpstreamLine::Answer(answer) = read_upstream(message) else {
            return None;
        };
        match (&request.kind, answer.outcome) {
            (PassingKind::Identity { is_handshake: true }, Raw::Error(_)) => {
                self.handshake = super::probes::Handshake::default();
            }
            (PassingKind::Identity { is_handshake }, Raw::Result(result)) => {
                if *is_handshake {
                    self.handshake.answer();
                }
                self.known.read_identity(result);
                let (name, version) = self.options.identity.as_ref()?;
                return identity::rewrite(message, name, version);
            }
            (PassingKind::ToolsList { is_first }, Raw::Result(result)) => {
                if answer.is_strict() {
                    self.known.read_tools(result, *is_first);
                } else {
                    self.known.forget_tools();
                }
            }
            (PassingKind::TaskGet, Raw::Result(result)) => {
                if let Some(task) = read_task(result) {
                    self.known.note_task(&task.handle);
                    self.see_task(&task);
                }
            }
            (PassingKind::TaskResult { task_id }, outcome) => {
                let (status, raw, is_error) = match outcome {
                    Raw::Result(raw) => (Status::Completed, raw, read_result(raw).is_error),
                    // An unknown or expired task tells nothing of how it ended.
                    Raw::Error(raw) if read_error(raw).code == Some(-32602) => return None,
                    Raw::Error(raw) => (Status::Failed, raw, false),
                };
                let op = Op::TaskEnd {
                    task_id: task_id.clone(),
                    created_at: self.known.task_created_at(task_id),
                    answer: task_answer(status, is_error, raw),
                };
                self.ops.push((super::Asked::Nobody, op));
            }
            (_, Raw::Result(_) | Raw::Error(_)) => {}
        }
        None
    }

    /// A task's state passes by; if it is the end, the entry gets it.
    fn see_task(&mut self, task: &TaskView<'_>) {
        let (status, raw) = match task.status.as_deref() {
            Some("completed") => (Status::Completed, task.result),
            Some("failed" | "cancelled") => (Status::Failed, task.error.or(task.result)),
            Some(_) | None => return,
        };
        // 2025-11-25 tells the end here and the result in `tasks/result` only: wait for that,
        // unless there will be none.
        let Some(raw) = raw.or((status == Status::Failed)
            .then_some(&b"{\"code\":-32603,\"message\":\"the task ended without a result\"}"[..]))
        else {
            return;
        };
        let status = match status {
            Status::Failed if task.error.is_none() && task.result.is_some() => Status::Completed,
            status => status,
        };
        let is_error = status == Status::Completed && read_result(raw).is_error;
        let op = Op::TaskEnd {
            task_id: task.handle.task_id.clone(),
            created_at: task.handle.created_at.clone(),
            answer: task_answer(status, is_error, raw),
        };
        self.ops.push((super::Asked::Nobody, op));
    }

    /// Takes note of a line of the upstream's that was longer than `--max-message-bytes`: `kept`
    /// are its first and last bytes. Whoever waits for it is told.
    pub fn upstream_line_too_long(&mut self, prefix: &[u8], tail: &[u8], bytes: u64, now: Instant) {
        self.say(
            Level::Warn,
            format!("a line of {bytes} bytes from the upstream is over --max-message-bytes"),
        );
        for id in answered_by_long_line(prefix, tail) {
            if self.is_own(id) {
                self.own_answer_too_long(id, bytes, now);
            } else {
                self.answer_too_long(id, bytes, now);
            }
        }
    }

    fn answer_too_long(&mut self, id: RawId<'_>, bytes: u64, now: Instant) {
        let key = self.in_flight(id).unwrap_or_else(|| id.key());
        let kind = RefusalKind::MessageTooLarge;
        let said = format!("an answer of {bytes} bytes");
        let forwarded = match self.flights.get(&key).map(|flight| &flight.stage) {
            Some(Stage::Forwarded(forwarded)) => Some(forwarded.ticket),
            Some(
                Stage::Admitting
                | Stage::Confirming { .. }
                | Stage::Joining { .. }
                | Stage::Probing { .. }
                | Stage::Settling(_),
            )
            | None => None,
        };
        if let Some(ticket) = forwarded {
            let Some(flight) = self.flights.remove(&key) else {
                return;
            };
            let mut refusal = self.refusal_on(kind, &said, &flight, ticket);
            refusal.side_effect = SideEffect::Unknown;
            self.settled.add(key);
            let reason = Unanswered::AnswerTooLarge;
            let detail = format!("{{\"reason\":\"message_too_large\",\"bytes\":{bytes}}}");
            self.lose(&flight, ticket, &refusal, (reason, detail), now);
            self.wake_waiters(ticket.fence, now);
        } else if let Some(request) = self.passing.remove(&key) {
            let mut refusal = Refusal::new(kind);
            refusal.side_effect = SideEffect::Unknown;
            refusal.reason = Some(said);
            let line = reply::refusal_as_error(RawId::new(&request.id), &refusal);
            self.down.pass(line);
        }
    }
}

fn task_answer(status: Status, is_error: bool, raw: &[u8]) -> Answer {
    Answer {
        status,
        is_error,
        body: raw.to_vec().into(),
        is_kept: true,
        round: None,
        task: None,
    }
}

/// What can be told of a line that was too long to be kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LongLine<'a> {
    /// Its id, if that stands in what was kept.
    pub(super) id: Option<RawId<'a>>,
    /// It is a request or a notification, as far as can be told.
    pub(super) is_request: bool,
    /// It is an answer, as far as can be told.
    pub(super) is_answer: bool,
}

/// Returns which requests a line that was too long answers, as far as can be told. Of an array only
/// its beginning tells: what stands at its end may be of any depth.
fn answered_by_long_line<'a>(prefix: &'a [u8], tail: &'a [u8]) -> Vec<RawId<'a>> {
    let answered = |prefix: &'a [u8], tail: &'a [u8]| {
        let told = read_long_line(prefix, tail);
        told.id.filter(|_| !told.is_request)
    };
    if json::tolerant_members(prefix).is_some() {
        return answered(prefix, tail).into_iter().collect();
    }
    batch_elements(prefix)
        .filter_map(|element| answered(&prefix[element], b""))
        .collect()
}

/// Looks at both ends of a line that was too long. The two directions' ids are two spaces, so an
/// id tells nothing without what it is an id of.
pub(super) fn read_long_line<'a>(prefix: &'a [u8], tail: &'a [u8]) -> LongLine<'a> {
    let mut found = LongLine {
        id: None,
        is_request: false,
        is_answer: false,
    };
    let Some(members) = json::tolerant_members(prefix) else {
        return found;
    };
    for member in members {
        match &*member.key {
            b"id" => found.id = found.id.or_else(|| RawId::new(member.value)),
            b"method" if json::kind(member.value) == json::Kind::Null => {}
            b"method" | b"params" => found.is_request = true,
            b"result" | b"error" => found.is_answer = true,
            _ => {}
        }
    }
    if found.id.is_none() {
        // Several SDKs write the id last.
        found.id = memchr::memmem::rfind_iter(tail, b"\"id\"").find_map(|at| id_at(tail, at));
    }
    found
}

/// Returns the id whose member begins at `at`, if the line's own object is what ends after it.
fn id_at(tail: &[u8], at: usize) -> Option<RawId<'_>> {
    if !json::trim(&tail[..at]).ends_with(b",") {
        return None;
    }
    let rest = json::trim(&tail[at..]);
    let object = [b"{", rest].concat();
    let mut members = json::Members::new(&object);
    let range = members.next()?.range;
    members.by_ref().for_each(drop);
    if !members.is_closed() || members.at() != object.len() {
        return None;
    }
    RawId::new(&rest[range.start - 1..range.end - 1])
}

#[cfg(test)]
mod tests {
    use super::read_long_line;

    #[test]
    fn the_id_of_a_long_line_is_found_at_either_end() {
        let cases: [(&str, &str, Option<&str>); 11] = [
            (
                r#"{"jsonrpc":"2.0","id":7,"result":{"x":"aaa"#,
                "aaa\"}}",
                Some("7"),
            ),
            (
                r#"{"result":{"x":"aaa"#,
                r#"aaa"},"jsonrpc":"2.0","id":12}"#,
                Some("12"),
            ),
            (
                r#"{"result":{"x":"aaa"#,
                r#"aaa"},"id":"a\"b","jsonrpc":"2.0"}"#,
                Some(r#""a\"b""#),
            ),
            (
                r#"{"result":{"x":"aaa"#,
                r#"aaa"},"id": "q" }"#,
                Some(r#""q""#),
            ),
            (
                r#"{"result":{"x":"aaa"#,
                r#"aaa"},"id":3,"trace":{"id":4},"n":[{"id":5}]}"#,
                Some("3"),
            ),
            (r#"{"result":{"x":"aaa"#, r#"aaa","id":9}}"#, None),
            (r#"{"result":[{"x":"aaa"#, r#"aaa","id":9}]}"#, None),
            (r#"{"result":{"x":"aaa"#, r#"aaa","id":9"#, None),
            (r#"[{"result":{"x":"aaa"#, r#"aaa"},"id":9}"#, None),
            (r#"{"result":{"x":"aaa"#, r#"aaa"}}"#, None),
            (r#"{"result":{"x":"aaa"#, r#"aaa"},"id":null}"#, None),
        ];
        for (prefix, tail, expected) in cases {
            let found = read_long_line(prefix.as_bytes(), tail.as_bytes()).id;
            let found = found.map(|id| std::str::from_utf8(id.as_bytes()).unwrap());
            assert_eq!(found, expected, "{prefix} … {tail}");
        }
    }

    #[test]
    fn a_long_line_is_told_by_its_beginning() {
        for (prefix, is_request, is_answer) in [
            (r#"{"id":1,"method":"x","params":{"a"#, true, false),
            (r#"{"params":{"a":"aaa"#, true, false),
            (r#"{"id":1,"result":{"a":"aaa"#, false, true),
            (r#"{"error":{"message":"aaa"#, false, true),
            (r#"{"method":null,"result":{"a"#, false, true),
            (r#"{"x":"aaa"#, false, false),
        ] {
            let found = read_long_line(prefix.as_bytes(), b"aaa\"}}");
            assert_eq!(
                (found.is_request, found.is_answer),
                (is_request, is_answer),
                "{prefix}"
            );
        }
    }
}
