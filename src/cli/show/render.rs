//! Lays an entry out for people: a head, what is known, then sections.
//!
//! Each line of foreign text is escaped and indented, so that none can pass for a line of ours.

use std::fmt::Write as _;

use crate::cli::detail::{Detail, EventView, EvidenceView, Payload, SessionView, StaleView};
use crate::cli::escape::{escape, escape_block};
use crate::cli::ls::tone;
use crate::cli::output::{Column, Look, Tone, table};
use crate::cli::pretty::pretty;
use crate::cli::reading::ForkView;
use crate::cli::view::took;

/// How much of a payload people are shown; `--json` has all of it.
const SHOWN_BYTES_MAX: usize = 64 << 10;

/// Returns the whole text.
pub(super) fn render(detail: &Detail, next: &[String], look: &Look) -> String {
    let entry = &detail.entry;
    let mut text = format!(
        "{}  {}  {}\n",
        look.paint(&format!("seq {}", entry.seq), anstyle::Style::new().bold()),
        escape(&entry.tool),
        look.paint(entry.status_word(), tone(entry).style()),
    );
    let knowledge = detail.knowledge();
    let known = if entry.in_doubt || entry.quarantined {
        Tone::Alarm
    } else {
        Tone::Plain
    };
    let _ = writeln!(text, "{}", look.paint(knowledge.sentence(), known.style()));
    if detail.evidence.upstream_alive == Some(true) && entry.in_doubt {
        text.push_str("Its upstream is still alive: it may yet take effect.\n");
    }

    section(&mut text, "Entry", look);
    fields(&mut text, &entry_fields(detail, look));
    section(&mut text, "Arguments", look);
    payload(&mut text, &detail.arguments);
    section(&mut text, "Outcome", look);
    payload(&mut text, &detail.outcome);

    let evidence = evidence_fields(&detail.evidence);
    if !evidence.is_empty() || detail.evidence.stderr_tail.is_some() {
        section(&mut text, "Evidence", look);
        fields(&mut text, &evidence);
        if let Some(tail) = &detail.evidence.stderr_tail {
            text.push_str("  stderr tail\n");
            block(&mut text, tail, "    | ");
        }
    }
    for stale in &detail.stale_results {
        let name = if stale.counts {
            "Stale answer, adopted as the outcome"
        } else {
            "Stale answer, which does not count"
        };
        section(&mut text, name, look);
        fields(&mut text, &stale_fields(stale, look));
        payload(&mut text, &stale.answer);
    }
    if let Some(session) = &detail.session {
        section(&mut text, "Session", look);
        fields(&mut text, &session_fields(session, look));
    }
    if !detail.attempts.is_empty() {
        section(&mut text, "Attempts", look);
        block(&mut text, &attempts(detail, look), "  ");
    }
    if !detail.events.is_empty() {
        section(&mut text, "Events", look);
        block(&mut text, &events(&detail.events, look), "  ");
    }
    if !next.is_empty() {
        section(&mut text, "Next", look);
        for line in next {
            let _ = writeln!(text, "  {}", escape(line));
        }
    }
    text
}

fn section(text: &mut String, name: &str, look: &Look) {
    let _ = writeln!(text, "\n{}", look.paint(name, anstyle::Style::new().bold()));
}

type Field = (&'static str, String);

fn fields(text: &mut String, fields: &[Field]) {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in fields {
        let _ = writeln!(text, "  {name:width$}  {}", escape(value));
    }
}

fn entry_fields(detail: &Detail, look: &Look) -> Vec<Field> {
    let entry = &detail.entry;
    let time = |time| look.time_in_full(time);
    let mut fields = vec![
        ("workflow", entry.workflow_id.clone()),
        ("branch", entry.branch.to_string()),
        ("status", entry.status.name().to_owned()),
        (
            "attempt",
            format!("{} (fence {})", entry.attempt, entry.fence),
        ),
        ("started", time(entry.created_at)),
    ];
    if let Some(end) = entry.completed_at {
        fields.push(match entry.took(end) {
            Some(after) => ("completed", format!("{}, took {}", time(end), took(after))),
            None => ("voided", time(end)),
        });
    }
    if let Some(delivered) = entry.delivered_at {
        fields.push(("delivered", time(delivered)));
    }
    if let Some(provenance) = &entry.provenance {
        fields.push(("outcome of", provenance.clone()));
    }
    if let Some(call_id) = &entry.call_id {
        fields.push(("call id", call_id.clone()));
    }
    if let Some(key) = &entry.key {
        let window = entry.window.as_deref().unwrap_or("unknown");
        fields.push(("key", format!("{key} (window {window})")));
    }
    fields.push((
        "signature",
        format!("{} ({})", entry.signature, entry.scheme),
    ));
    for (name, value) in [
        ("protocol", &detail.protocol),
        ("policy", &detail.policy),
        ("trace", &detail.traceparent),
        (
            "forked from",
            &detail.forked_from.as_ref().map(ForkView::words),
        ),
    ] {
        if let Some(value) = value {
            // A policy is a file's lines.
            fields.push((name, value.trim_end().replace('\n', "; ")));
        }
    }
    let remarks = entry.remarks();
    if !remarks.is_empty() {
        fields.push(("note", remarks.join("; ")));
    }
    fields
}

fn evidence_fields(evidence: &EvidenceView) -> Vec<Field> {
    let mut fields = Vec::new();
    if let Some(bytes) = evidence.bytes_written {
        fields.push(("bytes written", bytes.to_string()));
    }
    if let Some(elapsed_ms) = evidence.elapsed_ms {
        let elapsed = match elapsed_ms {
            0 => "less than 1ms".to_owned(),
            _ => took(std::time::Duration::from_millis(elapsed_ms)),
        };
        fields.push(("elapsed", elapsed));
    }
    if let Some(status) = &evidence.exit_status {
        fields.push(("upstream ended", status.clone()));
    }
    if let Some(group) = evidence.upstream_group {
        let state = match evidence.upstream_alive {
            Some(true) => "still alive",
            Some(false) => "gone",
            None => "not known to be gone",
        };
        fields.push(("process group", format!("{group} ({state})")));
    }
    if let Some(note) = &evidence.note {
        fields.push(("note", note.clone()));
    }
    fields
}

fn stale_fields(stale: &StaleView, look: &Look) -> Vec<Field> {
    let mut fields = vec![("came", look.time_in_full(stale.at))];
    if let Some(fence) = stale.fence {
        fields.push(("fence", fence.to_string()));
    }
    if let Some(session) = &stale.session {
        fields.push(("session", session.clone()));
    }
    if let Some(status) = stale.status {
        fields.push(("said", status.name().to_owned()));
    }
    fields.push(("bytes", stale.size_bytes.to_string()));
    fields.push(("sha256", stale.digest.clone()));
    fields
}

fn session_fields(session: &SessionView, look: &Look) -> Vec<Field> {
    let state = if session.live { "live" } else { "gone" };
    let mut fields = vec![
        ("id", format!("{} ({state})", session.id)),
        ("process", format!("{} on {}", session.pid, session.host)),
        ("started", look.time_in_full(session.started_at)),
    ];
    if let Some(ended) = session.ended_at {
        fields.push(("ended", look.time_in_full(ended)));
    }
    for (name, value) in [
        ("upstream", &session.upstream),
        ("client", &session.client),
        ("protocol", &session.protocol),
    ] {
        if let Some(value) = value {
            fields.push((name, value.clone()));
        }
    }
    fields
}

fn payload(text: &mut String, payload: &Payload) {
    match payload {
        Payload::Absent => text.push_str("  none\n"),
        Payload::Gone => text.push_str("  gone: dropped since, or never kept\n"),
        Payload::Redacted { size_bytes: None } => text.push_str("  redacted\n"),
        Payload::Redacted {
            size_bytes: Some(size),
        } => {
            let _ = writeln!(text, "  redacted ({size} bytes)");
        }
        Payload::Stored(bytes) => {
            let shown = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
            block(text, &pretty(&String::from_utf8_lossy(shown)), "  ");
            let hidden = bytes.len() - shown.len();
            if hidden > 0 {
                let _ = writeln!(text, "  … {hidden} bytes more; --json has them");
            }
        }
    }
}

/// Adds foreign lines, each escaped and behind `lead`.
fn block(text: &mut String, lines: &str, lead: &str) {
    for line in lines.lines().map(escape_block) {
        text.push_str(format!("{lead}{line}").trim_end());
        text.push('\n');
    }
}

fn attempts(detail: &Detail, look: &Look) -> String {
    let columns = columns(&[
        "ATTEMPT", "FENCE", "STATUS", "STARTED", "TOOK", "SENT", "NOTE",
    ]);
    let rows: Vec<Vec<(String, Tone)>> = detail
        .attempts
        .iter()
        .map(|attempt| {
            let took = attempt
                .ended_at
                .map_or_else(dash, |end| took(end.since(attempt.started_at)));
            plain([
                attempt.attempt.to_string(),
                attempt.fence.to_string(),
                attempt.status.name().to_owned(),
                look.time(attempt.started_at),
                took,
                attempt
                    .bytes_written
                    .map_or_else(dash, |bytes| format!("{bytes} B")),
                attempt.note.clone().unwrap_or_default(),
            ])
        })
        .collect();
    table(&columns, &rows, &inner(look))
}

fn events(events: &[EventView], look: &Look) -> String {
    let columns = columns(&["AT", "EVENT", "ATTEMPT", "BY", "NOTE"]);
    let rows: Vec<Vec<(String, Tone)>> = events
        .iter()
        .map(|event| {
            let mut notes: Vec<String> = Vec::new();
            notes.extend(event.letter.clone());
            notes.extend(event.reason.clone());
            notes.extend(event.detail.clone());
            if let Some(last) = event.last_at.filter(|_| event.count > 1) {
                notes.push(format!("last {}", look.time(last)));
            }
            let kind = match event.count {
                0 | 1 => event.kind.clone(),
                count => format!("{} {count}x", event.kind),
            };
            plain([
                look.time(event.at),
                kind,
                event
                    .attempt
                    .map_or_else(dash, |attempt| attempt.to_string()),
                event.by.clone().unwrap_or_else(dash),
                notes.join("; "),
            ])
        })
        .collect();
    table(&columns, &rows, &inner(look))
}

/// Returns the look of a table that is indented by two and has no colour of its own.
fn inner(look: &Look) -> Look {
    Look {
        colour: false,
        width: look.width.map(|width| width.saturating_sub(2)),
        times: look.times,
    }
}

fn columns(names: &[&'static str]) -> Vec<Column> {
    names
        .iter()
        .map(|name| Column {
            name,
            is_number: ["ATTEMPT", "FENCE", "TOOK", "SENT"].contains(name),
            is_flexible: *name == "NOTE",
            is_spare: false,
        })
        .collect()
}

fn plain<const N: usize>(cells: [String; N]) -> Vec<(String, Tone)> {
    cells.map(|cell| (cell, Tone::Plain)).to_vec()
}

fn dash() -> String {
    "-".to_owned()
}
