//! Entries as rows: `jsonl` (a JSON object a line) and `csv` (RFC 4180, with a heading).
//!
//! Whatever there is is written, decided or not. Must not: choose entries.

use serde::Serialize;
use serde_json::Value;

use super::super::detail::{Detail, Payload};
use super::super::error::CliError;
use super::super::escape::{escape, escape_json};
use super::super::exit::Exit;
use super::super::json::JsonLines;
use super::super::output::Output;
use super::super::show::fill;
use super::super::view::EntryView;
use super::{Chosen, PIECE_BYTES, each};
use crate::journal::reader::Reader;

/// The columns of `csv`, with the names of the schema; a new one is added at the end.
const COLUMNS: [&str; 24] = [
    "workflow_id",
    "branch",
    "seq",
    "tool",
    "status",
    "in_doubt",
    "running",
    "quarantined",
    "attempt",
    "fence",
    "signature",
    "scheme",
    "created_at",
    "completed_at",
    "delivered_at",
    "is_error",
    "provenance",
    "call_id",
    "key",
    "window",
    "session",
    "note",
    "arguments",
    "outcome",
];

/// One line of `jsonl`.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    entry: &'a EntryView,
    arguments: &'a Payload,
    outcome: &'a Payload,
}

pub(super) fn write_csv(
    reader: &mut Reader,
    chosen: &[Chosen],
    output: &Output,
) -> Result<Exit, CliError> {
    let mut piece = format!("{}\r\n", COLUMNS.join(","));
    each(reader, chosen, "entries", |_, whole| {
        if let Some(whole) = whole {
            piece.push_str(&csv(&fill::detail(whole)));
        }
        if piece.len() >= PIECE_BYTES {
            output.bytes(piece.as_bytes())?;
            piece.clear();
        }
        Ok(())
    })?;
    output.bytes(piece.as_bytes())?;
    Ok(Exit::Ok)
}

pub(super) fn write_jsonl(
    reader: &mut Reader,
    chosen: &[Chosen],
    mut lines: JsonLines<'_>,
) -> Result<Exit, CliError> {
    each(reader, chosen, "entries", |_, whole| {
        let Some(detail) = whole.map(fill::detail) else {
            return Ok(());
        };
        lines.add(&Line {
            entry: &detail.entry,
            arguments: &detail.arguments,
            outcome: &detail.outcome,
        })
    })?;
    lines.flush()?;
    Ok(Exit::Ok)
}

fn csv(detail: &Detail) -> String {
    let entry = serde_json::to_value(&detail.entry).expect("views hold nothing but JSON");
    let cells: Vec<String> = COLUMNS
        .into_iter()
        .map(|column| match column {
            "arguments" => cell(&payload(&detail.arguments)),
            "outcome" => cell(&payload(&detail.outcome)),
            name => match &entry[name] {
                Value::Null => String::new(),
                Value::String(text) => cell(&escape(text)),
                other => cell(&other.to_string()),
            },
        })
        .collect();
    format!("{}\r\n", cells.join(","))
}

/// Returns a payload's own text; empty where there is none.
fn payload(payload: &Payload) -> String {
    match payload {
        Payload::Stored(bytes) => escape_json(&String::from_utf8_lossy(bytes)).into_owned(),
        Payload::Absent | Payload::Redacted { .. } | Payload::Gone => String::new(),
    }
}

/// Returns a cell, in quotes where it needs them.
///
/// Source: RFC 4180, section 2.
fn cell(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_need_it() {
        assert_eq!(cell("plain"), "plain");
        assert_eq!(cell("a,b"), "\"a,b\"");
        assert_eq!(cell("{\"a\":1}"), "\"{\"\"a\"\":1}\"");
        assert_eq!(cell("two\nlines"), "\"two\nlines\"");
    }
}
