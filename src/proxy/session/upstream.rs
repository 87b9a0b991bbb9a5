//! What the upstream sends.
//!
//! Must not: drop an outcome, or hand one on before it is durable.

use std::sync::Arc;
use std::time::Instant;

use super::client::{part_of, state_digest};
use super::{Fenced, Level, PassingKind, PassingRequest, Session, Settling, Stage};
use crate::guard::{Answer, Note, Op, Settlement, Ticket};
use crate::journal::{RoundKey, TaskKey};
use crate::json;
use crate::mcp::frame::{self, IdKey, Raw, RawId, UpstreamLine, read_upstream};
use crate::mcp::identity;
use crate::mcp::outcome::{TaskView, read_error, read_result, read_task};
use crate::mcp::reply::{self, Refusal, RefusalKind, SideEffect};
use crate::rules::entry::{Status, Unanswered};
use crate::rules::policy::Policy;
use crate::seeded::{self, Bug};

/// What an answer makes of its entry.
enum Meaning {
    Outcome(Box<Answer>),
    /// The protocol says that the call was not executed: mend and send again.
    NotExecuted(i64),
    /// It ended, and nobody can say how.
    Unknown(Unanswered),
}

impl Session {
    /// Takes a whole line of the upstream's, its `\n` included (the last may lack it).
    pub fn upstream_line(&mut self, line: Vec<u8>, now: Instant) {
        let key = match read_upstream(&line) {
            UpstreamLine::Noise => {
                self.noise.push(line);
                return;
            }
            UpstreamLine::Other => {
                if !self.takes_odd_line(&line, now) {
                    self.down.pass(line);
                }
                return;
            }
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
                self.down.pass(line);
                return;
            }
            UpstreamLine::Answer(answer) => {
                if self.is_own(answer.id) {
                    self.own_answered(&answer, now);
                    return;
                }
                self.in_flight(answer.id).unwrap_or_else(|| answer.id.key())
            }
        };
        let key = self.seeded_key(key);
        let is_dropped = seeded::has(Bug::LateAnswerDropped)
            && self.flights.get(&key).is_some_and(|flight| !flight.waits());
        if is_dropped {
            return;
        }
        let forwarded = self
            .flights
            .get(&key)
            .and_then(|flight| match &flight.stage {
                Stage::Forwarded(forwarded) => Some(forwarded.ticket),
                Stage::Admitting
                | Stage::Confirming { .. }
                | Stage::Joining { .. }
                | Stage::Probing { .. }
                | Stage::Settling(_) => None,
            });
        if let Some(ticket) = forwarded {
            self.answered(&key, ticket, line, now);
        } else if let Some(fenced) = self.fenced.remove(&key) {
            self.fenced_answered(key, &fenced, line);
        } else if self.flights.contains_key(&key) {
            self.drop_answer(&key, "an answer to a call that the upstream did not get");
        } else if let Some(request) = self.passing.remove(&key) {
            let line = self.passing_answered(&request, line);
            self.down.pass(line);
        } else if self.settled.has(&key) {
            self.drop_answer(&key, "a second answer to a call");
        } else {
            self.down.pass(line);
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

    fn drop_answer(&mut self, _key: &IdKey, what: &str) {
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
    fn fenced_answered(&mut self, key: IdKey, fenced: &Fenced, line: Vec<u8>) {
        let line = Arc::new(line);
        let UpstreamLine::Answer(answer) = read_upstream(&line) else {
            return;
        };
        let ticket = fenced.ticket;
        let meaning = self.meaning(&line, answer, &fenced.policy, fenced.is_cancelled);
        let settlement = match meaning {
            Meaning::Outcome(answer) => Settlement::Answered {
                ticket,
                signature: fenced.signature,
                first_wins: !fenced.policy.fences_results,
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

    fn answered(&mut self, key: &IdKey, ticket: Ticket, line: Vec<u8>, now: Instant) {
        let line = Arc::new(line);
        let Some(flight) = self.flights.get(key) else {
            return;
        };
        let meaning = match read_upstream(&line) {
            UpstreamLine::Answer(answer) => {
                self.meaning(&line, answer, &flight.policy, flight.is_cancelled)
            }
            UpstreamLine::Noise | UpstreamLine::Message { .. } | UpstreamLine::Other => return,
        };
        let Some(flight) = self.flights.get_mut(key) else {
            return;
        };
        let signature = flight.signature;
        let first_wins = !flight.policy.fences_results;
        let mut slot = flight.waits().then(|| self.down.reserve(now));
        if seeded::has(Bug::AnswerBeforeDurable)
            && let Some(slot) = slot.take()
        {
            self.down.fill(slot, line.to_vec(), Some(ticket));
        }
        let is_void = matches!(meaning, Meaning::NotExecuted(_));
        let elapsed = match &flight.stage {
            Stage::Forwarded(forwarded) => now.saturating_duration_since(forwarded.at),
            Stage::Admitting
            | Stage::Confirming { .. }
            | Stage::Joining { .. }
            | Stage::Probing { .. }
            | Stage::Settling(_) => std::time::Duration::ZERO,
        };
        flight.stage = Stage::Settling(Settling {
            ticket,
            line,
            slot,
            is_void,
        });
        self.settled.add(key.clone());
        let settlement = match meaning {
            Meaning::Outcome(answer) => Settlement::Answered {
                ticket,
                signature,
                first_wins,
                answer: *answer,
            },
            Meaning::NotExecuted(code) => Settlement::Void {
                ticket,
                detail: format!("{{\"error_code\":{code}}}"),
            },
            Meaning::Unknown(reason) => Settlement::Lost {
                ticket,
                reason,
                detail: format!(
                    "{{\"reason\":\"{}\",\"elapsed_ms\":{}}}",
                    reason.name(),
                    elapsed.as_millis()
                ),
            },
        };
        if let Settlement::Lost { .. } = &settlement {
            self.answer_unknown(key, "connection_closed");
        }
        self.settle_op(key, settlement);
    }

    /// The caller of a call whose answer tells nothing gets our own word for it.
    fn answer_unknown(&mut self, key: &IdKey, reason: &str) {
        let Some(flight) = self.flights.get_mut(key) else {
            return;
        };
        let Stage::Settling(settling) = &mut flight.stage else {
            return;
        };
        let Some(slot) = settling.slot.take() else {
            return;
        };
        let ticket = settling.ticket;
        flight.is_answered = true;
        let (id, explicit, stateless) =
            (flight.id.clone(), flight.is_explicit, flight.is_stateless);
        let Some(flight) = self.flights.get(key) else {
            return;
        };
        let refusal = self.refusal_on(RefusalKind::OutcomeUnknown, reason, flight, ticket);
        let line = self.refusal_line(RawId::new(&id), &refusal, explicit, stateless);
        self.down.fill(slot, line, None);
    }

    fn meaning(
        &self,
        line: &Arc<Vec<u8>>,
        answer: frame::Answer<'_>,
        policy: &Policy,
        is_cancelled: bool,
    ) -> Meaning {
        let keeps = |raw: &[u8]| policy.store_result && raw.len() as u64 <= policy.result_bytes_max;
        match answer.outcome {
            Raw::Result(raw) => {
                let view = read_result(raw);
                let (status, round, task) = if view.is_input_required() {
                    let round = RoundKey {
                        state: view.request_state.map(state_digest),
                        inputs: view.input_request_keys.join("\n"),
                    };
                    (Status::InputRequired, Some(round), None)
                } else if let Some(task) = view.task {
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

    fn passing_answered(&mut self, request: &PassingRequest, line: Vec<u8>) -> Vec<u8> {
        if matches!(
            request.kind,
            PassingKind::Listen | PassingKind::Call | PassingKind::Other
        ) {
            return line;
        }
        let UpstreamLine::Answer(answer) = read_upstream(&line) else {
            return line;
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
                let rewritten = self
                    .options
                    .identity
                    .as_ref()
                    .and_then(|(name, version)| identity::rewrite(&line, name, version));
                return rewritten.unwrap_or(line);
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
                    Raw::Error(raw) if read_error(raw).code == Some(-32602) => return line,
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
        line
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
        let told = read_long_line(prefix, tail);
        let Some(id) = told.id.filter(|_| !told.is_request) else {
            return;
        };
        if self.is_own(id) {
            self.own_answer_too_long(id, bytes, now);
            return;
        }
        let key = self.in_flight(id).unwrap_or_else(|| id.key());
        let mut refusal = Refusal::new(RefusalKind::MessageTooLarge);
        refusal.side_effect = SideEffect::Unknown;
        refusal.reason = Some(format!("an answer of {bytes} bytes"));
        if let Some(flight) = self.flights.get_mut(&key)
            && let Stage::Forwarded(forwarded) = &flight.stage
        {
            let ticket = forwarded.ticket;
            refusal.seq = Some(ticket.seq.0);
            refusal.tool = Some(flight.call.tool.clone());
            let waits = flight.waits();
            flight.is_answered = true;
            flight.stage = Stage::Settling(Settling {
                ticket,
                line: Arc::new(Vec::new()),
                slot: None,
                is_void: false,
            });
            let (raw, explicit, stateless) =
                (flight.id.clone(), flight.is_explicit, flight.is_stateless);
            if waits {
                let line = self.refusal_line(RawId::new(&raw), &refusal, explicit, stateless);
                self.down.pass(line);
            }
            self.settled.add(key.clone());
            self.settle_op(
                &key,
                Settlement::Lost {
                    ticket,
                    reason: Unanswered::AnswerTooLarge,
                    detail: format!("{{\"reason\":\"message_too_large\",\"bytes\":{bytes}}}"),
                },
            );
        } else if let Some(request) = self.passing.remove(&key) {
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
