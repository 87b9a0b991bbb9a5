//! From rows to what `show` tells: attempts, evidence, events.
//!
//! Must not: lay anything out, or trust a detail to be what this version writes.

use serde_json::Value;

use crate::cli::detail::{
    AttemptView, Detail, EventView, EvidenceView, Payload, SessionView, StaleView,
};
use crate::cli::reading;
use crate::cli::view::{EntryView, Status, Time};
use crate::cli::words::words;
use crate::guard::stale::Stale;
use crate::journal::reader::{AttemptRow, Found, Whole};
use crate::journal::{EventRow, Session};
use crate::proxy::books;
use crate::rules::ids::{Fence, SessionId};

/// Returns all that is known of an entry.
pub(in crate::cli) fn detail(whole: Whole) -> Detail {
    let digest = match &whole.found {
        Found::Whole { entry, .. } => entry.digest.map(|digest| reading::hex(&digest)),
        Found::Torn(_) => None,
    };
    let entry = reading::view(&whole.place, whole.found);
    let current = whole
        .attempts
        .iter()
        .find(|attempt| attempt.fence.0 == entry.fence);
    let arguments = current.map_or(Payload::Absent, arguments);
    let outcome = match (entry.status, current) {
        (Status::Pending | Status::Voided, _) | (_, None) => Payload::Absent,
        (_, Some(attempt)) => outcome(attempt, entry.tombstone),
    };
    let mut evidence = evidence(&entry, &whole.events);
    if let Some((_, session, is_live)) = &whole.session
        && entry.status == Status::Pending
    {
        evidence.upstream_group = session.upstream_pgid;
        evidence.upstream_alive = session
            .upstream_pgid
            .and(books::upstream_alive(session, *is_live));
    }
    Detail {
        arguments,
        outcome,
        attempts: whole
            .attempts
            .iter()
            .map(|attempt| attempt_view(attempt, &entry, &whole.events))
            .collect(),
        session: whole
            .session
            .map(|(id, session, is_live)| session_view(id, session, is_live)),
        evidence,
        stale_results: whole
            .events
            .iter()
            .filter_map(|row| stale_view(row, &whole.attempts, current, digest.as_deref()))
            .collect(),
        events: whole
            .events
            .iter()
            .map(|row| event_view(row, &whole.attempts))
            .collect(),
        protocol: current.and_then(|attempt| attempt.protocol_version.clone()),
        policy: current.and_then(|attempt| attempt.policy.clone()),
        traceparent: current.and_then(|attempt| attempt.traceparent.clone()),
        forked_from: whole.place.parent.as_ref().map(reading::fork),
        entry,
    }
}

fn arguments(attempt: &AttemptRow) -> Payload {
    match &attempt.arguments {
        Some(bytes) => Payload::Stored(bytes.clone()),
        None if attempt.is_redacted => Payload::Redacted {
            size_bytes: Some(attempt.arguments_bytes),
        },
        None if attempt.arguments_bytes == 0 => Payload::Absent,
        None => Payload::Gone,
    }
}

/// Returns what an attempt came to: the end of its task where there is one.
fn outcome(attempt: &AttemptRow, is_tombstone: bool) -> Payload {
    match attempt.outcomes.last() {
        None if is_tombstone => Payload::Gone,
        None => Payload::Absent,
        Some(outcome) => match &outcome.body {
            Some(bytes) => Payload::Stored(bytes.clone()),
            None => Payload::Gone,
        },
    }
}

fn attempt_view(attempt: &AttemptRow, entry: &EntryView, events: &[EventRow]) -> AttemptView {
    let is_current = attempt.fence.0 == entry.fence;
    let settled = attempt.outcomes.last();
    let about: Vec<&EventRow> = events
        .iter()
        .filter(|row| row.event.fence == Some(attempt.fence))
        .collect();
    let is_voided = about.iter().any(|row| {
        row.event.kind == "voided"
            || (row.event.kind == "resolved" && said(row, "verdict") == "not_executed")
    });
    let status = match settled.and_then(|outcome| outcome.status) {
        Some(status) => reading::status(status),
        None if is_current => entry.status,
        None if is_voided => Status::Voided,
        None => Status::Pending,
    };
    let lost = lost(&about);
    AttemptView {
        attempt: attempt.attempt,
        round: attempt.round,
        fence: attempt.fence.0,
        session: Some(attempt.session.to_string()),
        started_at: Time(attempt.started_at.0),
        ended_at: settled.map(|outcome| Time(outcome.at.0)),
        status,
        bytes_written: lost.and_then(|row| json(row)["bytes_written"].as_u64()),
        provenance: settled.map(|outcome| outcome.provenance.clone()),
        outcome: outcome(attempt, is_current && entry.tombstone),
        note: attempt_note(&about),
    }
}

/// Returns the last loss among the events about an attempt.
fn lost<'a>(about: &[&'a EventRow]) -> Option<&'a EventRow> {
    let mut newest = about.iter().rev();
    newest
        .find(|row| row.event.kind == "outcome_unknown")
        .copied()
}

/// Returns why an attempt has no outcome, and why it goes on under another fence.
fn attempt_note(about: &[&EventRow]) -> Option<String> {
    let mut notes: Vec<String> = Vec::new();
    notes.extend(lost(about).map(|row| said(row, "reason").replace('_', " ")));
    for (kind, words) in [("fenced", "fenced"), ("retracted", "taken back")] {
        if about.iter().any(|row| row.event.kind == kind) {
            notes.push(words.to_owned());
        }
    }
    (!notes.is_empty()).then(|| notes.join(", "))
}

/// Returns what the last loss of the current attempt left behind.
fn evidence(entry: &EntryView, events: &[EventRow]) -> EvidenceView {
    let mut evidence = EvidenceView::default();
    for row in events
        .iter()
        .filter(|row| row.event.fence == Some(Fence(entry.fence)))
    {
        let detail = json(row);
        match row.event.kind.as_str() {
            "outcome_unknown" => {
                evidence.bytes_written =
                    detail["bytes_written"].as_u64().or(evidence.bytes_written);
                evidence.elapsed_ms = detail["elapsed_ms"].as_u64().or(evidence.elapsed_ms);
                let exit = (&detail["exit_code"], &detail["signal"]);
                evidence.exit_status = match exit {
                    (Value::Number(code), _) => Some(format!("exit status {code}")),
                    (_, Value::Number(signal)) => Some(format!("signal {signal}")),
                    _ => evidence.exit_status,
                };
                if let Some(tail) = detail["stderr_tail"].as_str() {
                    evidence.stderr_tail = Some(tail.to_owned());
                }
                let why = serde_json::json!({
                    "reason": detail["reason"],
                    "error": detail["error"],
                    "error_code": detail["error_code"],
                });
                evidence.note = Some(words(&why, &[]).join(", "));
            }
            "voided" if detail["reason"] == "never forwarded" => {
                evidence.bytes_written = Some(0);
            }
            _ => {}
        }
    }
    evidence
}

/// Returns the stale answer that an event is about; `current` is the attempt that counts, and
/// `outcome` the digest of what it came to.
fn stale_view(
    row: &EventRow,
    attempts: &[AttemptRow],
    current: Option<&AttemptRow>,
    outcome: Option<&str>,
) -> Option<StaleView> {
    let event = &row.event;
    let stale = Stale::of(event)?;
    let answered = attempts
        .iter()
        .find(|attempt| Some(attempt.fence) == event.fence);
    Some(StaleView {
        counts: outcome == Some(&*stale.digest),
        is_same_call: answered.zip(current).is_some_and(|(answered, current)| {
            answered.signature.is_some() && answered.signature == current.signature
        }),
        at: Time(event.at.0),
        attempt: attempt_of(event.fence, attempts),
        fence: event.fence.map(|fence| fence.0),
        session: event.session.map(|session| session.to_string()),
        status: stale.status.map(reading::status),
        digest: stale.digest,
        size_bytes: stale.size_bytes,
        answer: stale.answer.map_or(Payload::Gone, Payload::Stored),
    })
}

/// Returns the number of the attempt with that fence.
fn attempt_of(fence: Option<Fence>, attempts: &[AttemptRow]) -> Option<u64> {
    let attempt = attempts
        .iter()
        .find(|attempt| Some(attempt.fence) == fence)?;
    Some(attempt.attempt)
}

fn event_view(row: &EventRow, attempts: &[AttemptRow]) -> EventView {
    let event = &row.event;
    let detail = json(row);
    let by = detail["by"].as_str().map(str::to_owned);
    // Only where a person is named is the reason that person's.
    let reason = by
        .as_ref()
        .and_then(|_| detail["reason"].as_str())
        .map(str::to_owned);
    let told: &[&str] = match &reason {
        Some(_) => &["by", "reason"],
        None => &["by"],
    };
    let rest = match &detail {
        // What is no JSON is told as it is.
        Value::Null => event.detail.clone().unwrap_or_default(),
        detail => words(detail, told).join(", "),
    };
    EventView {
        at: Time(event.at.0),
        last_at: (row.count > 1).then_some(Time(row.last_at.0)),
        count: row.count,
        kind: event.kind.clone(),
        attempt: attempt_of(event.fence, attempts),
        session: event.session.map(|session| session.to_string()),
        letter: event.letter.map(|letter| format!("@{letter}")),
        by,
        reason,
        detail: (!rest.is_empty()).then_some(rest),
    }
}

fn json(row: &EventRow) -> Value {
    row.event
        .detail
        .as_deref()
        .and_then(|detail| serde_json::from_str(detail).ok())
        .unwrap_or(Value::Null)
}

fn said(row: &EventRow, name: &str) -> String {
    json(row)[name].as_str().unwrap_or_default().to_owned()
}

fn session_view(id: SessionId, session: Session, live: bool) -> SessionView {
    let named = |name: Option<String>, version: Option<String>| match (name, version) {
        (Some(name), Some(version)) => Some(format!("{name} {version}")),
        (name, version) => name.or(version),
    };
    SessionView {
        id: id.to_string(),
        live,
        host: session.host,
        pid: session.pid,
        started_at: Time(session.started_at),
        ended_at: session.ended_at.map(Time),
        upstream: named(session.upstream_name, session.upstream_version),
        client: named(session.client_name, session.client_version),
        protocol: session.protocol_version,
    }
}
