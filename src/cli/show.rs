//! `checkpoint show SEQ`: all that is known about one entry, and what may be done about it.

use clap::Args;
use serde::Serialize;

use super::JournalArgs;
use super::absent::Absent;
use super::detail::{
    AttemptView, Detail, EventView, EvidenceView, Knowledge, Payload, SessionView, StaleView,
};
use super::error::CliError;
use super::exit::Exit;
use super::output::{Output, SCHEMA_VERSION};
use super::reading;
use super::settings::{self, Env};
use super::target::Target;
use super::values;
use super::view::EntryView;
use crate::rules::ids::{SEQ_MAX, Seq, WorkflowId};

pub(super) mod fill;
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

    /// Workflow of the entry [env: CHECKPOINT_WORKFLOW_ID] [default: the journal's own, or its only one]
    #[arg(long, value_name = "ID", value_parser = values::parse_id)]
    workflow_id: Option<String>,

    /// Branch of the entry [default: the active one]
    #[arg(long, value_name = "N")]
    branch: Option<u32>,

    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &ShowArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let path = settings::journal_required(args.journal.journal.clone(), env)?;
    let workflow_id = settings::workflow_id(args.workflow_id.clone(), env)?;
    let workflow_id = workflow_id.map(WorkflowId);
    let mut reader = reading::open(&path)?;
    let whole = reader
        .whole(workflow_id.as_ref(), args.branch, Seq(args.seq))
        .map_err(reading::unusable)?;
    let detail = match whole {
        Some(whole) => fill::detail(whole),
        None => {
            let absent = Absent::find(&mut reader, workflow_id.as_ref(), args.branch, args.seq)?;
            return Err(absent.error());
        }
    };
    let target = Target::new(&path, &detail.entry, env);
    let next = next::legal_commands(&detail, &target, super::is_command_name);
    let output = Output::new(args.journal.color);
    output.document(
        args.journal.form.form(),
        &document(&detail, &next),
        |look| render::render(&detail, &next, look),
    )?;
    Ok(Exit::Ok)
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
    stale_results: &'a [StaleView],
    events: &'a [EventView],
    protocol: Option<&'a str>,
    policy: Option<&'a str>,
    traceparent: Option<&'a str>,
    forked_from: Option<&'a reading::ForkView>,
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
        stale_results: &detail.stale_results,
        events: &detail.events,
        protocol: detail.protocol.as_deref(),
        policy: detail.policy.as_deref(),
        traceparent: detail.traceparent.as_deref(),
        forked_from: detail.forked_from.as_ref(),
        next,
    }
}

#[cfg(test)]
mod tests;
