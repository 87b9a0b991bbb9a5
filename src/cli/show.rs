//! `checkpoint show SEQ`: all that is known about one entry, and what may be done about it.

use std::path::Path;

use clap::Args;
use serde::Serialize;

use super::JournalArgs;
use super::detail::{
    AttemptView, Detail, EventView, EvidenceView, Knowledge, Payload, SessionView,
};
use super::error::{CliError, Kind};
use super::exit::Exit;
use super::output::{Output, SCHEMA_VERSION};
use super::settings::{self, Env};
use super::target::Target;
use super::values;
use super::view::EntryView;

mod next;
mod render;

/// Show all about one entry
///
/// What was asked, what is known, the evidence, every attempt and event, and the commands that are
/// legal now, ready to copy. Works while a proxy runs and never starts the upstream.
#[derive(Args, Debug)]
pub(super) struct ShowArgs {
    /// Place of the call in its workflow, from 1
    #[arg(value_name = "SEQ", value_parser = clap::value_parser!(u64).range(1..=SEQ_MAX))]
    seq: u64,

    /// Workflow of the entry [env: CHECKPOINT_WORKFLOW_ID] [default: the journal's own]
    #[arg(long, value_name = "ID", value_parser = values::parse_id)]
    workflow_id: Option<String>,

    /// Branch of the entry [default: the active one]
    #[arg(long, value_name = "N")]
    branch: Option<u64>,

    #[command(flatten)]
    journal: JournalArgs,
}

/// The highest seq: 2^53-1, the last integer that every JSON reader keeps.
const SEQ_MAX: u64 = (1 << 53) - 1;

pub(super) fn run(args: &ShowArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let path = settings::journal_required(args.journal.journal.clone(), env)?;
    let workflow_id = settings::workflow_id(args.workflow_id.clone(), env)?;
    let detail = read(&path, workflow_id.as_deref(), args.branch, args.seq)?.ok_or_else(|| {
        CliError::new(Kind::Failure, format!("there is no entry {}", args.seq))
            .hint("`checkpoint ls` lists those there are, of every workflow and branch")
    })?;
    let target = Target::new(&path, &detail.entry, env);
    let next = next::legal_commands(&detail, &target, super::is_command_name);
    let output = Output::new(args.journal.color);
    if args.journal.json {
        output.json(&document(&detail, &next))?;
    } else {
        output.data(&render::render(&detail, &next, output.look()))?;
    }
    Ok(Exit::Ok)
}

/// Reads one entry, of the journal's own workflow and the active branch unless told otherwise.
// LEAD: returns an error until the journal has a reader; will be replaced.
fn read(
    _journal: &Path,
    _workflow_id: Option<&str>,
    _branch: Option<u64>,
    _seq: u64,
) -> Result<Option<Detail>, CliError> {
    Err(CliError::new(
        Kind::Failure,
        "reading a journal is not built into this version yet",
    ))
}

/// The JSON document of `show`.
#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    entry: &'a EntryView,
    knowledge: Knowledge,
    arguments: &'a Payload,
    outcome: &'a Payload,
    evidence: &'a EvidenceView,
    session: Option<&'a SessionView>,
    attempts: &'a [AttemptView],
    events: &'a [EventView],
    next: &'a [String],
}

fn document<'a>(detail: &'a Detail, next: &'a [String]) -> Document<'a> {
    Document {
        schema_version: SCHEMA_VERSION,
        entry: &detail.entry,
        knowledge: detail.knowledge(),
        arguments: &detail.arguments,
        outcome: &detail.outcome,
        evidence: &detail.evidence,
        session: detail.session.as_ref(),
        attempts: &detail.attempts,
        events: &detail.events,
        next,
    }
}

#[cfg(test)]
mod tests;
