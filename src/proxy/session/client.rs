//! What the client sends.
//!
//! Must not: answer for the upstream, except to refuse.

use std::sync::Arc;

use super::{Asked, Flight, Level, PassingKind, PassingRequest, Session, Stage};
use crate::guard::{Call, CallKey, Op, Round};
use crate::journal::Payload;
use crate::json;
use crate::mcp::call::{self, Malformed};
use crate::mcp::capability::Capabilities;
use crate::mcp::frame::{ClientLine, IdKey, LineRefusal, Passing, read_client};
use crate::mcp::outcome;
use crate::mcp::reply::{Refusal, RefusalKind};
use crate::rules::entry::GaveUp;
use crate::rules::ids::{Seq, WorkflowId};
use crate::rules::policy::{OnCancel, derive_key};
use crate::rules::signature::signature;
use crate::seeded::{self, Bug};

/// A short note on a call, before its line may be moved.
enum Step {
    /// Nothing more.
    Done,
    /// The line passes.
    Pass,
    /// The line is a journaled call.
    Admit(Box<Flight>, IdKey),
}

impl Session {
    /// Takes a whole line of the client's, its `\n` included.
    pub fn client_line(&mut self, line: Vec<u8>) {
        let line = Arc::new(line);
        let mut is_header = false;
        let step = match read_client(&line) {
            ClientLine::Blank if self.after_header => Step::Done,
            ClientLine::Blank => Step::Pass,
            ClientLine::Header => {
                is_header = true;
                if !std::mem::replace(&mut self.met_header, true) {
                    self.say(
                        Level::Warn,
                        "the client sends Content-Length headers: that framing is not MCP stdio, \
                         which is one JSON message a line; headers are not forwarded",
                    );
                }
                Step::Done
            }
            ClientLine::Refused(refused) => {
                self.refuse_line(&refused);
                Step::Done
            }
            ClientLine::Pass(passing) => self.passing(&passing, &line),
            ClientLine::Call(call) => self.call(&call, &line),
        };
        self.after_header = is_header;
        match step {
            Step::Done => {}
            Step::Pass => self.up.push(unshare(line)),
            Step::Admit(mut flight, key) => {
                flight.line = Some(line);
                if seeded::has(Bug::ForwardBeforeDurable)
                    && let Some(line) = &flight.line
                {
                    self.up.push_call(line.to_vec(), key.clone());
                }
                self.met_call = true;
                self.ops.push(flight.admission(&key, &mut self.askings));
                self.flights.insert(key, flight);
            }
        }
    }

    /// Takes note of a line that was longer than `--max-message-bytes`. It is not forwarded.
    pub fn client_line_too_long(&mut self, prefix: &[u8], tail: &[u8], bytes: u64) {
        let mut refusal = Refusal::new(RefusalKind::MessageTooLarge);
        refusal.reason = Some(format!("a line of {bytes} bytes"));
        // The id may stand in what was kept; where it does not, nobody can be told. An answer's id
        // is the upstream's, and the client may wait for one of its own that is the same.
        let told = super::upstream::read_long_line(prefix, tail);
        let id = told.id.filter(|_| !told.is_answer);
        self.say(
            Level::Warn,
            format!("a line of {bytes} bytes from the client is over --max-message-bytes"),
        );
        if self.met_call {
            self.note_refusal(&refusal);
        }
        let line = crate::mcp::reply::refusal_as_error(id, &refusal);
        self.down.push(line, None);
    }

    /// Takes note of what was left at the client's end without a line end: no message.
    pub fn client_rest(&mut self, bytes: usize) {
        self.say(
            Level::Warn,
            format!("the client ended in the middle of a line: {bytes} bytes are not forwarded"),
        );
    }

    fn refuse_line(&mut self, refused: &LineRefusal<'_>) {
        let refusal = Refusal::of_line(refused);
        self.say(Level::Warn, refusal_said(&refusal));
        // A line that is no call does not make a journal where there is none.
        if refused.is_call || self.met_call {
            self.note_refusal(&refusal);
        }
        let line = crate::mcp::reply::refusal_as_error(refused.id, &refusal);
        self.down.push(line, None);
    }

    fn passing(&mut self, passing: &Passing<'_>, line: &Arc<Vec<u8>>) -> Step {
        if passing.is_response || passing.is_batch {
            return Step::Pass;
        }
        let Some(method) = passing.method.as_deref() else {
            return Step::Pass;
        };
        if method == "notifications/cancelled"
            && let Some(id) = passing
                .params
                .and_then(crate::mcp::frame::cancelled_request_id)
        {
            let key = self.in_flight(id).unwrap_or_else(|| id.key());
            return self.cancel(&key, line);
        }
        if method == "notifications/initialized" {
            self.handshake.confirm();
        }
        let Some(id) = passing.id else {
            return Step::Pass;
        };
        if self.phase.is_upstream_gone() {
            self.answer_without_upstream(id);
            return Step::Done;
        }
        let params = passing.params.filter(|params| json::is_object(params));
        let kind = match method {
            "initialize" => {
                if let Some(info) =
                    params.and_then(|params| json::last_member(params, "clientInfo"))
                {
                    self.known.read_client_info(info.value);
                }
                self.known.client_capabilities = params
                    .and_then(|params| json::last_member(params, "capabilities"))
                    .map_or_else(Capabilities::default, |declared| {
                        Capabilities::declared(declared.value)
                    });
                self.handshake.begin();
                PassingKind::Identity { is_handshake: true }
            }
            "server/discover" => PassingKind::Identity {
                is_handshake: false,
            },
            "tools/list" => PassingKind::ToolsList {
                is_first: params
                    .and_then(|params| json::last_member(params, "cursor"))
                    .is_none(),
            },
            "tasks/get" | "tasks/cancel" => PassingKind::TaskGet,
            "tasks/result" => match params.and_then(outcome::task_id) {
                Some(task_id) => PassingKind::TaskResult { task_id },
                None => PassingKind::Other,
            },
            "subscriptions/listen" => PassingKind::Listen,
            _ => PassingKind::Other,
        };
        // One that reuses an id in flight passes, too: whose answer comes is the client's to judge.
        if let Some(key) = self.free_key(id) {
            self.settled.forget(&key);
            self.ours.forget(&key);
            self.passing.insert(
                key,
                PassingRequest {
                    id: id.as_bytes().to_vec(),
                    kind,
                },
            );
        }
        Step::Pass
    }

    fn call(&mut self, call: &call::Call<'_>, line: &Arc<Vec<u8>>) -> Step {
        let is_stateless = call.protocol_version.is_some();
        if let Some(info) = call
            .meta
            .and_then(|meta| json::last_member(meta, "io.modelcontextprotocol/clientInfo"))
        {
            self.known.read_client_info(info.value);
        }
        let Some(key) = self.free_key(call.id) else {
            let mut refused = Refusal::new(RefusalKind::InvalidRequest);
            refused.reason = Some("its id is still in flight".into());
            refused.tool = Some(call.name.clone().into_owned());
            self.refuse_early(call, is_stateless, refused);
            return Step::Done;
        };
        self.settled.forget(&key);
        self.ours.forget(&key);
        let policies = Arc::clone(&self.options.policies);
        let in_force = policies.in_force(&call.name, self.known.idempotent_hint(&call.name));
        let policy = &in_force.policy;
        let is_trusted = self.options.trusts_annotations && self.known.is_read_only(&call.name);
        if !self.options.is_journaled || !in_force.is_journaled(is_trusted) {
            return self.pass_call(call, key);
        }
        let fields = (|| -> Result<_, Malformed> {
            Ok((
                call.seq.clone()?,
                call.key.clone()?.map(std::borrow::Cow::into_owned),
                call.workflow.clone()?.map(std::borrow::Cow::into_owned),
            ))
        })();
        let (seq, given_key, workflow) = match fields {
            Ok(fields) => fields,
            Err(malformed) => {
                let mut refused = Refusal::new(malformed.kind);
                refused.reason = Some(malformed.reason.into());
                refused.tool = Some(call.name.clone().into_owned());
                self.refuse_early(call, is_stateless, refused);
                return Step::Done;
            }
        };
        if let Some(reason) = self.latched {
            let mut refused = Refusal::new(RefusalKind::JournalUnavailable);
            refused.reason = Some(reason.into());
            refused.seq = seq;
            refused.tool = Some(call.name.clone().into_owned());
            self.refuse_early(call, is_stateless, refused);
            return Step::Done;
        }
        let is_ended_by_doubt = self.options.ends_on_doubt && self.met_doubt;
        if self.phase.is_upstream_gone() || self.phase.is_ending() || is_ended_by_doubt {
            let mut refused = Refusal::new(RefusalKind::UpstreamUnavailable);
            refused.reason = Some(self.phase.why_unavailable());
            refused.seq = seq;
            refused.tool = Some(call.name.clone().into_owned());
            self.refuse_early(call, is_stateless, refused);
            return Step::Done;
        }
        let signature = match signature(&call.name, call.arguments, call.has_task) {
            Ok(signature) => signature,
            Err(duplicate) => {
                let mut refused = Refusal::new(RefusalKind::DuplicateMember);
                refused.tool = Some(call.name.clone().into_owned());
                refused
                    .more
                    .push(("pointer", json::quote(&duplicate.pointer)));
                self.refuse_early(call, is_stateless, refused);
                return Step::Done;
            }
        };
        let call_id = call.call_id(&self.options.call_id_from);
        let given_key = given_key.map(|text| CallKey {
            text,
            is_derived: false,
        });
        let derived = if given_key.is_some() {
            Ok(None)
        } else {
            derive_key(policy, call.arguments, &signature, call_id.as_deref())
        };
        let key_of_call = match derived {
            Ok(derived) => given_key.or(derived.map(|text| CallKey {
                text,
                is_derived: true,
            })),
            Err(invalid) => {
                let mut refused = Refusal::new(RefusalKind::InvalidKey);
                refused.reason = Some(invalid.to_string());
                refused.seq = seq;
                refused.tool = Some(call.name.clone().into_owned());
                self.refuse_early(call, is_stateless, refused);
                return Step::Done;
            }
        };
        let policy = Arc::clone(policy);
        let is_explicit = call.is_explicit();
        let asked = Call {
            tool: call.name.clone().into_owned(),
            signature,
            arguments: call.arguments.map(|raw| part_of(line, raw)),
            workflow: workflow.map(WorkflowId),
            seq: seq.map(Seq),
            key: key_of_call,
            call_id: call_id.map(std::borrow::Cow::into_owned),
            round: call.is_further_round().then(|| round_of(call)),
            protocol_version: call
                .protocol_version
                .clone()
                .map(std::borrow::Cow::into_owned)
                .or_else(|| self.known.protocol_version.clone()),
            tool_revision: self.known.tool_revision(&call.name),
            traceparent: call.traceparent.clone().map(std::borrow::Cow::into_owned),
            policy: Arc::clone(&policy),
            policy_record: in_force.record.clone(),
            joined: None,
            was_forwarded: false,
            gave_up: None,
        };
        let flight = Flight {
            id: call.id.as_bytes().to_vec(),
            line: None,
            call: Box::new(asked),
            signature,
            policy,
            standing: None,
            is_explicit,
            is_stateless,
            takes_tasks: call.declares_tasks(),
            can_answer: if is_stateless {
                Capabilities::declared(call.client_capabilities.unwrap_or(b"{}"))
            } else {
                self.known.client_capabilities
            },
            stage: Stage::Admitting,
            asked: None,
            is_cancelled: false,
            is_answered: false,
            was_probed: false,
            held_back: Vec::new(),
        };
        Step::Admit(Box::new(flight), key)
    }

    fn pass_call(&mut self, call: &call::Call<'_>, key: IdKey) -> Step {
        if !self.options.is_journaled && !matches!(call.seq, Ok(None)) {
            self.say(
                Level::Warn,
                "a call carries checkpoint_seq, but there is no --journal: it is relayed and not \
                 recorded",
            );
        }
        if self.phase.is_upstream_gone() {
            self.answer_without_upstream(call.id);
            return Step::Done;
        }
        self.passing.insert(
            key,
            PassingRequest {
                id: call.id.as_bytes().to_vec(),
                kind: PassingKind::Call,
            },
        );
        Step::Pass
    }

    /// Refuses a call that has no flight.
    fn refuse_early(&mut self, call: &call::Call<'_>, is_stateless: bool, refusal: Refusal) {
        self.say(Level::Warn, refusal_said(&refusal));
        self.note_refusal(&refusal);
        // A request that is not valid as such is the client program's fault, not a model's.
        let is_explicit = call.is_explicit() || refusal.kind == RefusalKind::InvalidRequest;
        let line = self.refusal_line(Some(call.id), &refusal, is_explicit, is_stateless);
        self.down.push(line, None);
        if self.in_flight(call.id).is_none() {
            self.ours.add(call.id.key());
        }
    }

    /// A cancellation goes to the upstream only where the upstream has that call under that id,
    /// and nobody else waits for it (contract, section 4.12).
    fn cancel(&mut self, key: &IdKey, line: &Arc<Vec<u8>>) -> Step {
        let Some(flight) = self.flights.get_mut(key) else {
            if self.ours.has(key) {
                // The upstream never got that call under that id.
                return Step::Done;
            }
            let taken_over = self.fenced.get(key);
            if taken_over.is_some_and(|call| call.policy.on_cancel == OnCancel::Shield) {
                // It still has the call, and its answer is kept.
                return Step::Done;
            }
            return Step::Pass;
        };
        if flight.is_cancelled {
            return Step::Done;
        }
        match &flight.stage {
            Stage::Confirming { ticket, .. } => {
                let op = Op::GiveUp(*ticket, GaveUp::Cancelled);
                flight.is_cancelled = true;
                flight.held_back.push(line.as_ref().clone());
                self.ops.push((Asked::Nobody, op));
                Step::Done
            }
            Stage::Admitting => {
                // It follows its call, if that goes out at all.
                flight.is_cancelled = true;
                flight.held_back.push(line.as_ref().clone());
                // An equal call may be asked about in the same batch.
                for (asked, op) in &mut self.ops {
                    if let (Asked::Admission(asked, _), Op::Admit(call)) = (asked, op)
                        && asked == key
                    {
                        call.gave_up = Some(GaveUp::Cancelled);
                    }
                }
                Step::Done
            }
            Stage::Joining { .. } | Stage::Probing { .. } => {
                self.flights.remove(key);
                self.ours.add(key.clone());
                Step::Done
            }
            Stage::Forwarded(forwarded) => {
                let (ticket, sent_at) = (forwarded.ticket, forwarded.at);
                flight.is_cancelled = true;
                let is_shielded = flight.policy.on_cancel == OnCancel::Shield
                    && !seeded::has(Bug::ShieldForwardsCancellation);
                if !seeded::has(Bug::GivingUpUnrecorded) {
                    self.ops
                        .push((Asked::Nobody, Op::GiveUp(ticket, GaveUp::Cancelled)));
                }
                // Shielded: the call goes on, so that its outcome becomes known.
                if is_shielded {
                    return Step::Done;
                }
                if self.has_waiters(ticket.fence) {
                    self.hurry_waiters(ticket.fence, sent_at);
                    self.say(
                        Level::Info,
                        "a cancellation is not forwarded: another caller waits for the same call",
                    );
                    return Step::Done;
                }
                Step::Pass
            }
            Stage::Settling(settling) => {
                // The answer is there already, but a cancelled call is not answered.
                let (ticket, slot) = (settling.ticket, settling.slot);
                flight.is_cancelled = true;
                if let Stage::Settling(settling) = &mut flight.stage {
                    settling.slot = None;
                }
                if let Some(slot) = slot {
                    self.down.drop_slot(slot);
                }
                let is_shielded = flight.policy.on_cancel == OnCancel::Shield;
                self.ops
                    .push((Asked::Nobody, Op::GiveUp(ticket, GaveUp::Cancelled)));
                if is_shielded { Step::Done } else { Step::Pass }
            }
        }
    }
}

/// Returns what a refusal says in the log.
pub(super) fn refusal_said(refusal: &Refusal) -> String {
    use std::fmt::Write as _;
    let mut text = format!("refused {}", refusal.kind.name());
    if let Some(seq) = refusal.seq {
        let _ = write!(text, " seq={seq}");
    }
    if let Some(letter) = &refusal.letter {
        let _ = write!(text, " letter={letter}");
    }
    if let Some(reason) = &refusal.reason {
        let _ = write!(text, ": {reason}");
    }
    text
}

fn round_of(call: &call::Call<'_>) -> Round {
    let mut inputs: Vec<String> = call
        .input_responses
        .filter(|raw| json::is_object(raw))
        .map(|raw| {
            json::Members::new(raw)
                .map(|member| String::from_utf8_lossy(&member.key).into_owned())
                .collect()
        })
        .unwrap_or_default();
    inputs.sort_unstable();
    Round {
        state: call.request_state.map(state_digest),
        inputs: inputs.join("\n"),
    }
}

/// Returns the digest of a `requestState`: of its text, so that escapes do not count.
pub(super) fn state_digest(raw: &[u8]) -> [u8; 32] {
    crate::rules::entry::outcome_digest(&json::string(raw))
}

/// Returns the part of a line that a slice into it stands for.
pub(super) fn part_of(line: &Arc<Vec<u8>>, raw: &[u8]) -> Payload {
    let start = (raw.as_ptr() as usize).wrapping_sub(line.as_ptr() as usize);
    if start > line.len() || start + raw.len() > line.len() {
        return Payload::from(raw.to_vec());
    }
    Payload::part(Arc::clone(line), start..start + raw.len())
}

/// Returns the line's bytes, without a copy where nobody else holds them.
pub(super) fn unshare(line: Arc<Vec<u8>>) -> Vec<u8> {
    Arc::try_unwrap(line).unwrap_or_else(|shared| shared.as_ref().clone())
}
