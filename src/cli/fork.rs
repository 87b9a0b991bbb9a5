//! `checkpoint fork`: a new workflow that shares what another one has done so far.

use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::JournalArgs;
use super::error::{CliError, Kind};
use super::escape::escape;
use super::exit::Exit;
use super::hand::DeedArgs;
use super::output::{Output, SCHEMA_VERSION};
use super::reading;
use super::settings::{self, Env};
use super::values;
use crate::guard::fork::{self, Fork};
use crate::journal::JournalError;
use crate::proxy::books;
use crate::rules::ids::{SEQ_MAX, Seq, WorkflowId};

/// How long a journal that others write to is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Make a new workflow that shares the entries before a place
///
/// A proxy with `--workflow-id` of the new workflow replays what is before --from, and runs what
/// comes from there on. Nothing of the other workflow changes. What is in doubt stays in doubt in
/// both.
#[derive(Args, Debug)]
pub(super) struct ForkArgs {
    /// First seq that is not shared
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(u64).range(1..=SEQ_MAX))]
    from: u64,

    /// Name of the new workflow
    #[arg(long, value_name = "ID", value_parser = values::parse_id)]
    new_workflow: String,

    /// Workflow to share with [env: CHECKPOINT_WORKFLOW_ID] [default: the journal's own, or its
    /// only one]
    #[arg(long, value_name = "ID", value_parser = values::parse_id)]
    workflow_id: Option<String>,

    /// Branch to share with [default: the active one]
    #[arg(long, value_name = "N")]
    branch: Option<u32>,

    #[command(flatten)]
    deed: DeedArgs,

    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    journal: JournalArgs,
}

/// What was made; the JSON document.
#[derive(Debug, Serialize)]
struct Made {
    schema_version: u32,
    dry_run: bool,
    workflow_id: String,
    branch: u32,
    from: u64,
    new_workflow: String,
}

pub(super) fn run(args: &ForkArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let path = settings::journal_required(args.journal.journal.clone(), env)?;
    let deed = args.deed.deed()?;
    let given = settings::workflow_id(args.workflow_id.clone(), env)?.map(WorkflowId);
    let refused = |why: String| {
        CliError::new(Kind::Failure, "nothing was forked")
            .because(why)
            .hint("`checkpoint ls` lists the entries of every workflow and branch")
    };
    let (workflow, branch) = {
        let mut reader = reading::open(&path)?;
        let workflow = match given {
            Some(workflow) => workflow,
            None => reader.usual_workflow().map_err(reading::unusable)?,
        };
        let branch = match args.branch {
            None => None,
            Some(number) => Some(
                reader
                    .branch(&workflow, number)
                    .map_err(reading::unusable)?
                    .ok_or_else(|| refused(format!("{workflow} has no branch {number}")))?,
            ),
        };
        (workflow, branch)
    };
    let mut desk =
        books::open_for_verdicts(&reading::journal_path(&path)?).map_err(reading::unusable)?;
    let what = Fork {
        from: workflow.clone(),
        branch,
        at: Seq(args.from),
        new: WorkflowId(args.new_workflow.clone()),
        uid: books::random(),
    };
    let start = Instant::now();
    let forked = loop {
        match fork::fork(&mut desk.journal, &what, &deed, books::now(), args.dry_run) {
            Err(JournalError::Busy) if start.elapsed() < PATIENCE => {
                // Nothing tells when the other writer is done.
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => {
                return Err(reading::failed("the journal can't be written to", &error));
            }
            Ok(forked) => break forked,
        }
    };
    forked.map_err(|why| refused(why.to_string()))?;
    let output = Output::new(args.journal.color);
    let made = Made {
        schema_version: SCHEMA_VERSION,
        dry_run: args.dry_run,
        workflow_id: workflow.0,
        branch: 0,
        from: args.from,
        new_workflow: args.new_workflow.clone(),
    };
    output.document(args.journal.form.form(), &made, |_| {
        let would = if args.dry_run {
            "would share"
        } else {
            "shares"
        };
        format!(
            "{} {would} what is before seq {} with {}\n",
            escape(&made.new_workflow),
            made.from,
            escape(&made.workflow_id)
        )
    })?;
    Ok(Exit::Ok)
}
