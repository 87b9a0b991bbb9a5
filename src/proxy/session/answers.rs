//! The lines that we write ourselves: replays and refusals.
//!
//! Must not: change an entry.

use super::{Flight, Level, RefusalShape, Session};
use crate::guard::{Admission, Note, Op, Refused, Replay, Ticket, Why};
use crate::mcp::capability::Capabilities;
use crate::mcp::frame::{Raw, RawId};
use crate::mcp::outcome::read_result;
use crate::mcp::reply::{
    self, Annotation, DataPlace, Journaled, Refusal, RefusalKind, SideEffect, annotate,
    with_result_type,
};
use crate::rules::decide::Decision;
use crate::rules::entry::{Entry, Provenance, Status};
use crate::rules::ids::{Micros, Seq, WorkflowId};
use crate::rules::shell::quote;
use crate::rules::signature::Signature;

impl Session {
    /// Returns a refusal in the shape that its caller can read.
    pub(super) fn refusal_line(
        &self,
        id: Option<RawId<'_>>,
        refusal: &Refusal,
        is_explicit: bool,
        is_stateless: bool,
    ) -> Vec<u8> {
        let as_error = match self.options.refusals {
            RefusalShape::Error => true,
            RefusalShape::Result => false,
            // Code is calling and can read the data; a model is calling and reads results only.
            RefusalShape::Auto => is_explicit,
        };
        if as_error {
            reply::refusal_as_error(id, refusal)
        } else {
            let held_to_schema = refusal
                .called_tool
                .as_deref()
                .or(refusal.tool.as_deref())
                .is_some_and(|tool| self.known.has_output_schema(tool));
            let place = if held_to_schema {
                DataPlace::Meta
            } else {
                DataPlace::StructuredContent
            };
            reply::refusal_as_result(id, refusal, is_stateless, place)
        }
    }

    /// Notes a refusal as an event: equal ones are a count and a last time.
    pub(super) fn note_refusal(&mut self, refusal: &Refusal) {
        if !self.options.is_journaled {
            return;
        }
        let detail = format!("{{\"kind\":\"{}\"}}", refusal.kind.name());
        self.lazily(Op::Note(Note {
            kind: if refusal.kind == RefusalKind::Divergence {
                "diverged"
            } else {
                "refused"
            },
            entry: None,
            letter: None,
            detail: Some(detail),
            merges: true,
        }));
    }

    fn note_on(&mut self, kind: &'static str, entry: &Entry, letter: char, detail: Option<String>) {
        self.lazily(Op::Note(Note {
            kind,
            entry: Some((entry.branch, entry.seq, Some(entry.fence))),
            letter: Some(letter),
            detail,
            merges: true,
        }));
    }

    /// Returns the refusal that a decision leads to, and notes it.
    pub(super) fn refusal_of(
        &mut self,
        flight: &Flight,
        admission: &Admission,
        refused: &Refused,
    ) -> Refusal {
        let kind = match refused.why {
            Why::LimitReached => RefusalKind::LimitReached,
            Why::StaleGeneration => RefusalKind::StaleGeneration,
            Why::Table(decision) => match decision {
                Decision::Diverge | Decision::Fork => RefusalKind::Divergence,
                Decision::InFlight => RefusalKind::InFlight,
                Decision::InDoubt => RefusalKind::InDoubt,
                Decision::Abandon => RefusalKind::Abandoned,
                Decision::Deny => RefusalKind::Denied,
                Decision::Expired => RefusalKind::ResultExpired,
                // Only of a call that was forwarded, and whose fence was taken away.
                Decision::Proceed | Decision::Retry | Decision::NextRound => {
                    RefusalKind::OutcomeUnknown
                }
                Decision::Quarantine | Decision::Replay | Decision::Join => {
                    RefusalKind::Quarantined
                }
            },
        };
        // Whatever the entry is by now, this very call was sent.
        let kind = match kind.side_effect() {
            SideEffect::NotStarted if flight.call.was_forwarded => RefusalKind::OutcomeUnknown,
            _ => kind,
        };
        let mut refusal = self.refusal_about(kind, flight, admission, refused.entry.as_ref());
        refusal.seq = refusal
            .seq
            .or(refused.seq.map(|seq| seq.0).filter(|seq| *seq > 0));
        refusal.letter = Some(refused.letter.to_string());
        refusal.diff.clone_from(&refused.diff);
        refusal.reason.clone_from(&refused.reason);
        if kind == RefusalKind::ResultExpired
            && refused
                .entry
                .as_ref()
                .is_some_and(|entry| entry.status == Status::Failed)
        {
            refusal.side_effect = SideEffect::Unknown;
        }
        if kind == RefusalKind::InDoubt || kind == RefusalKind::Abandoned {
            self.met_doubt = true;
        }
        let event = if kind == RefusalKind::Divergence {
            "diverged"
        } else {
            "refused"
        };
        let detail = format!("{{\"kind\":\"{}\"}}", kind.name());
        match &refused.entry {
            Some(entry) => self.note_on(event, entry, refused.letter.0, Some(detail)),
            None => self.note_refusal(&refusal),
        }
        self.say(Level::Warn, super::client::refusal_said(&refusal));
        refusal
    }

    /// Returns a refusal with all that is known of the entry.
    pub(super) fn refusal_about(
        &self,
        kind: RefusalKind,
        flight: &Flight,
        admission: &Admission,
        entry: Option<&Entry>,
    ) -> Refusal {
        let mut refusal = Refusal::new(kind);
        refusal.workflow_id = Some(admission.workflow.0.clone());
        refusal.branch = Some(u64::from(admission.branch));
        refusal.tool = Some(flight.call.tool.clone());
        refusal.incoming_signature = Some(shown_signature(flight.signature, entry));
        if let Some(entry) = entry {
            if entry.tool != flight.call.tool {
                refusal.called_tool = Some(flight.call.tool.clone());
            }
            refusal.tool = Some(entry.tool.clone());
            refusal.seq = Some(entry.seq.0);
            refusal.attempt = Some(u64::from(entry.attempt));
            refusal.journaled = Some(Journaled {
                signature: Some(entry.signature.to_string()),
                status: entry.status.name().into(),
                created_at: rfc3339(entry.created_at),
            });
            refusal.hint = Some(match kind {
                RefusalKind::InDoubt | RefusalKind::Abandoned | RefusalKind::OutcomeUnknown => {
                    self.command("resolve", entry.seq, admission.elsewhere.as_ref())
                }
                _ => self.command("show", entry.seq, admission.elsewhere.as_ref()),
            });
        }
        refusal
    }

    /// Returns a refusal about an attempt of this session's, with all that is known of it.
    pub(super) fn refusal_on(
        &self,
        kind: RefusalKind,
        reason: &str,
        flight: &Flight,
        ticket: Ticket,
    ) -> Refusal {
        let mut refusal = Refusal::new(kind);
        refusal.reason = Some(reason.into());
        refusal.seq = Some(ticket.seq.0);
        refusal.attempt = Some(u64::from(ticket.attempt));
        refusal.tool = Some(flight.call.tool.clone());
        refusal.incoming_signature = Some(flight.signature.to_string());
        if let Some(standing) = &flight.standing {
            refusal.workflow_id = Some(standing.workflow.clone());
            refusal.branch = Some(u64::from(standing.branch));
            refusal.letter = Some(standing.letter.clone());
            refusal.journaled = Some(Journaled {
                signature: None,
                status: Status::Pending.name().into(),
                created_at: rfc3339(standing.created_at),
            });
        }
        // While an answer may still come there is nothing to be settled yet.
        let command = if reason == "timeout" {
            "show"
        } else {
            "resolve"
        };
        let elsewhere = flight
            .standing
            .as_ref()
            .and_then(|it| it.elsewhere.as_ref());
        refusal.hint = Some(self.command(command, ticket.seq, elsewhere));
        refusal
    }

    /// Returns an operator's command on an entry, ready to be copied: it means this entry and no
    /// other of the same seq.
    pub(super) fn command(
        &self,
        command: &str,
        seq: Seq,
        elsewhere: Option<&(WorkflowId, u32)>,
    ) -> String {
        let journal = &self.options.journal_shown;
        let mut line = format!("checkpoint {command} {seq} --journal {journal}");
        if let Some((workflow, branch)) = elsewhere {
            let workflow = quote(&workflow.0);
            line.push_str(&format!(" --workflow-id {workflow} --branch {branch}"));
        }
        line
    }

    /// Returns the line that replays a stored outcome, or the refusal where it has no legal form
    /// for this caller's revision of the protocol (contract, section 7).
    pub(super) fn replay_line(
        &mut self,
        flight: &Flight,
        admission: &Admission,
        replay: &Replay,
    ) -> Result<Vec<u8>, Box<Refusal>> {
        let entry = &replay.entry;
        // An ended task: its result where no handle can be polled for it, else the handle.
        let ended = replay.task_end.as_ref().filter(|_| flight.is_stateless);
        let outcome = ended.unwrap_or(&replay.outcome);
        let body: &[u8] = outcome.body.as_deref().unwrap_or_default();
        let is_error = outcome.status == Status::Failed;
        let adapted;
        // What was legal for its caller is so for another of the same era, whatever it is; the
        // result of an ended task was no answer to a call yet, nor was what an operator gave.
        let is_same_era = ended.is_none()
            && outcome.provenance == Provenance::Upstream
            && is_stateless_version(replay.protocol_version.as_deref()) == flight.is_stateless;
        let lacking = Lacking::of(outcome.status, body, flight);
        let payload = if is_error {
            Raw::Error(body)
        } else {
            let form = if lacking.is_some() {
                Form::None
            } else if is_same_era {
                Form::AsItIs
            } else {
                legal_form(body, flight.is_stateless)
            };
            match form {
                Form::AsItIs => Raw::Result(body),
                Form::WithResultType => {
                    adapted = with_result_type(body);
                    Raw::Result(&*adapted)
                }
                Form::None => {
                    let mut refusal = self.refusal_about(
                        RefusalKind::NotReplayable,
                        flight,
                        admission,
                        Some(entry),
                    );
                    refusal.letter = Some(replay.letter.to_string());
                    if entry.status != Status::Completed {
                        refusal.side_effect = SideEffect::Unknown;
                    }
                    refusal.reason = lacking.map(|lacking| lacking.reason(flight.is_stateless));
                    self.note_on(
                        "refused",
                        entry,
                        replay.letter.0,
                        Some("{\"kind\":\"not_replayable\"}".into()),
                    );
                    return Err(Box::new(refusal));
                }
            }
        };
        let line = reply::answer(flight.raw_id(), payload);
        self.note_on("replayed", entry, replay.letter.0, None);
        self.say(
            Level::Info,
            format!("replayed seq={} letter={}", entry.seq, replay.letter),
        );
        Ok(if self.options.annotates {
            annotate(&line, &annotation(entry, true)).into_owned()
        } else if replay.is_marked {
            annotate(&line, &Annotation::redelivered(entry.seq.0)).into_owned()
        } else {
            line
        })
    }
}

/// What `--annotate` says of an answer.
pub(super) fn annotation(entry: &Entry, replayed: bool) -> Annotation {
    Annotation {
        seq: Some(entry.seq.0),
        attempt: Some(u64::from(entry.attempt)),
        replayed: Some(replayed),
        completed_at: entry.completed_at.map(rfc3339),
        journaled: None,
    }
}

/// The signature of the incoming call, unless the entry keeps its own keyed: a plain one beside
/// it would tell what the key hides.
fn shown_signature(plain: Signature, entry: Option<&Entry>) -> String {
    match entry {
        Some(entry) if entry.scheme != crate::rules::signature::Scheme::Plain => {
            String::from("redacted")
        }
        Some(_) | None => plain.to_string(),
    }
}

/// Whether calls of this protocol revision carry it themselves, in `_meta`. Revisions are dates.
fn is_stateless_version(version: Option<&str>) -> bool {
    version.is_some_and(|version| version >= "2026-07-28")
}

/// What an answer asks of a client that has not declared it.
enum Lacking {
    /// To follow a task.
    Tasks,
    /// To answer a question.
    Answers(Capabilities),
}

impl Lacking {
    /// Returns what the caller has not declared; nothing where the answer may go to it.
    fn of(status: Status, body: &[u8], flight: &Flight) -> Option<Self> {
        match status {
            // In the stateless revision each request says whether a task may answer it.
            Status::Accepted => (flight.is_stateless && !flight.takes_tasks).then_some(Self::Tasks),
            Status::InputRequired => {
                let lacking = Capabilities::asked_for(body).beyond(flight.can_answer);
                (!lacking.is_empty()).then_some(Self::Answers(lacking))
            }
            Status::Pending
            | Status::Completed
            | Status::Failed
            | Status::Voided
            | Status::Denied => None,
        }
    }

    fn reason(&self, is_stateless: bool) -> String {
        match self {
            Self::Tasks => "a task, and the request does not declare that extension".into(),
            Self::Answers(lacking) => {
                let who = if is_stateless {
                    "the request does not declare"
                } else {
                    "the client did not declare in initialize"
                };
                let names: Vec<&str> = lacking.names().collect();
                format!("a question that needs what {who}: {}", names.join(", "))
            }
        }
    }
}

enum Form {
    AsItIs,
    WithResultType,
    None,
}

/// Tells in which form a stored result is legal for a caller of the stateless revision, or of one
/// before it.
///
/// Source: MCP 2026-07-28, `basic/index` (`resultType`), `server/tools` (`structuredContent`);
/// MCP 2025-11-25, `basic/utilities/tasks`.
fn legal_form(body: &[u8], is_stateless: bool) -> Form {
    let view = read_result(body);
    let kind = view.result_type.as_deref();
    if is_stateless {
        return match (kind, &view.task) {
            // A handle of 2025-11-25 can't be polled in the stateless revision.
            (None, Some(_)) => Form::None,
            (None, None) => Form::WithResultType,
            (Some(_), _) => Form::AsItIs,
        };
    }
    match kind {
        Some("input_required" | "task") => Form::None,
        Some(_) | None => match view.structured_content {
            None | Some(crate::json::Kind::Object) => Form::AsItIs,
            Some(_) => Form::None,
        },
    }
}

/// Returns a time as RFC 3339 in UTC with microseconds.
#[must_use]
pub(super) fn rfc3339(at: Micros) -> String {
    jiff::Timestamp::from_microsecond(at.0)
        .map_or_else(|_| String::from("?"), |at| format!("{at:.6}"))
}
