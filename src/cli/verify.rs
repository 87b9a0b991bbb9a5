//! `checkpoint verify`: whether everything in the journal holds.

use clap::Args;
use serde::Serialize;

use super::JournalArgs;
use super::error::CliError;
use super::exit::Exit;
use super::output::{Column, Form, Look, Output, SCHEMA_VERSION, Tone, table};
use super::progress::ProgressLine;
use super::reading::{journal_path, say_if_alone, unusable};
use super::settings::{self, Env};
use crate::guard::verify::{self, Seen};
use crate::journal::place::{self, State};

/// Check the whole journal for damage
///
/// Reads every row once: SQLite's integrity check, the schema's text, each entry's checksum and the
/// digest of its payload, every stored change replayed through the rules, seqs and fences without
/// holes, the mark and the key beside the journal. Lists all it finds and exits with 4 if there is
/// anything. Changes nothing, and works while a proxy runs.
#[derive(Args, Debug)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &VerifyArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let path = settings::journal_required(args.journal.journal.clone(), env)?;
    let journal = journal_path(&path)?;
    if let Ok(State::Present(present)) = place::inspect(&journal) {
        say_if_alone(&present.warnings);
    }
    let output = Output::new(args.journal.color);
    let form = args.journal.form.form();
    let mut findings = Vec::new();
    let mut lines = output.lines();
    let mut written = Ok(());
    let mut is_sound = true;
    let mut line = ProgressLine::new();
    let seen = verify::verify(
        &journal,
        &mut |finding| {
            is_sound = false;
            let finding = Finding::from(finding);
            if form != Form::JsonLines {
                findings.push(finding);
            } else if written.is_ok() {
                written = lines.add(&finding);
            }
        },
        &mut |progress| line.show(progress.stage, progress.done, progress.total),
    )
    .map_err(unusable)?;
    line.clear();
    written?;
    let report = Report {
        schema_version: SCHEMA_VERSION,
        ok: is_sound,
        findings,
        counts: Counts::from(seen),
    };
    match form {
        Form::Json => output.json(&report)?,
        Form::JsonLines => lines.flush()?,
        Form::Text => {
            output.data(&render(&report, output.look()))?;
            if !report.ok {
                output.note(
                    "damaged entries are never replayed and never run; restore the journal from a \
                     backup, or settle by hand what it still tells",
                );
            }
        }
    }
    Ok(if report.ok { Exit::Ok } else { Exit::Damaged })
}

/// What `verify` found; its JSON document.
#[derive(Debug, Serialize)]
struct Report {
    schema_version: u32,
    ok: bool,
    findings: Vec<Finding>,
    counts: Counts,
}

/// One thing that does not hold.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    kind: &'static str,
    workflow_id: Option<String>,
    branch: Option<u32>,
    seq: Option<u64>,
    fence: Option<u64>,
    what: String,
}

impl From<verify::Finding> for Finding {
    fn from(finding: verify::Finding) -> Self {
        let (workflow_id, branch) = finding
            .branch
            .map(|(workflow, branch)| (workflow.0, branch))
            .unzip();
        Self {
            kind: finding.kind,
            workflow_id,
            branch,
            seq: finding.seq,
            fence: finding.fence,
            what: finding.what,
        }
    }
}

/// How much was looked at.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Counts {
    workflows: u64,
    entries: u64,
    attempts: u64,
    events: u64,
    highest_fence: u64,
    mark: Option<u64>,
}

impl From<Seen> for Counts {
    fn from(seen: Seen) -> Self {
        Self {
            workflows: seen.workflows,
            entries: seen.entries,
            attempts: seen.attempts,
            events: seen.events,
            highest_fence: seen.highest_fence,
            mark: seen.mark,
        }
    }
}

const COLUMNS: [Column; 5] = [
    Column::new("KIND"),
    Column::new("WORKFLOW").flexible().spare(),
    Column::new("BRANCH").number().spare(),
    Column::new("SEQ").number(),
    Column::new("WHAT").flexible(),
];

fn render(report: &Report, look: &Look) -> String {
    let counts = &report.counts;
    let mut text = String::new();
    if !report.ok {
        let rows: Vec<Vec<(String, Tone)>> = report.findings.iter().map(row).collect();
        text.push_str(&table(&COLUMNS, &rows, look));
    }
    let seen = format!(
        "{}, {}, {}",
        counted(counts.entries, "entry", "entries"),
        counted(counts.attempts, "attempt", "attempts"),
        counted(counts.events, "event", "events"),
    );
    let verdict = match report.findings.len() {
        0 => look.paint("all of it holds", Tone::Good.style()),
        count => look.paint(
            &counted(count as u64, "finding", "findings"),
            Tone::Bad.style(),
        ),
    };
    text.push_str(&format!("{seen}: {verdict}\n"));
    text
}

fn row(finding: &Finding) -> Vec<(String, Tone)> {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    vec![
        (finding.kind.to_owned(), Tone::Bad),
        (
            finding.workflow_id.clone().unwrap_or_else(|| "-".into()),
            Tone::Plain,
        ),
        (number(finding.branch.map(u64::from)), Tone::Plain),
        (number(finding.seq), Tone::Plain),
        (finding.what.clone(), Tone::Plain),
    ]
}

/// Returns a number and what it counts.
pub(super) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        Report {
            schema_version: SCHEMA_VERSION,
            ok: findings.is_empty(),
            findings,
            counts: Counts::from(Seen {
                entries: 2,
                attempts: 1,
                ..Seen::default()
            }),
        }
    }

    #[test]
    fn a_sound_journal_is_one_line() {
        assert_eq!(
            render(&report(Vec::new()), &Look::PIPE),
            "2 entries, 1 attempt, 0 events: all of it holds\n"
        );
    }

    #[test]
    fn findings_are_listed_and_can_not_drive_the_terminal() {
        let finding = Finding {
            kind: "row",
            workflow_id: Some("w\u{1b}[2J".to_owned()),
            branch: Some(0),
            seq: Some(7),
            fence: None,
            what: "its status is VOIDED, its history leads to COMPLETED".to_owned(),
        };
        let text = render(&report(vec![finding]), &Look::PIPE);
        assert_eq!(
            text,
            "KIND  WORKFLOW    BRANCH  SEQ  WHAT\n\
             row   w\\u{1b}[2J       0    7  its status is VOIDED, its history leads to COMPLETED\n\
             2 entries, 1 attempt, 0 events: 1 finding\n"
        );
    }
}
