//! `checkpoint reopen`: one more attempt of a settled entry.

use clap::Args;

use super::JournalArgs;
use super::error::{CliError, Kind};
use super::exit::Exit;
use super::filter::Filter;
use super::hand::{self, DeedArgs};
use super::output::Output;
use super::reading;
use super::settings::{self, Env};
use super::targets::TargetArgs;
use super::view::Status;
use crate::guard::verdict::Act;
use crate::rules::entry;

/// Allow one more attempt of a call that is settled
///
/// The next call of that entry runs, as a new attempt. The outcome so far stays with its attempt,
/// and is no longer replayed. For a COMPLETED entry the tool's name is asked for on a terminal, as
/// its effect will happen a second time; elsewhere --yes is needed.
#[derive(Args, Debug)]
#[command(override_usage = "checkpoint reopen [OPTIONS] --reason <TEXT> <SEQ>...
       checkpoint reopen [OPTIONS] --reason <TEXT> <CONDITION>... --yes")]
pub(super) struct ReopenArgs {
    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    deed: DeedArgs,

    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Do it without asking
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &ReopenArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let path = settings::journal_required(args.journal.journal.clone(), env)?;
    let deed = args.deed.deed_with_reason()?;
    let settled = Filter {
        statuses: vec![Status::Completed, Status::Failed, Status::Denied],
        ..Filter::default()
    };
    let targets = {
        let mut reader = reading::open(&path)?;
        args.targets.find(&mut reader, settled, env)?
    };
    let needs_yes = targets.is_bulk && !args.yes && !args.dry_run;
    let is_trial = args.dry_run || needs_yes;
    if !is_trial && !args.yes {
        for tool in targets.tools(|entry| entry.status == entry::Status::Completed) {
            let question = format!("{tool} was completed here; its effect will happen again");
            let refused = CliError::new(Kind::Failure, "nothing was done");
            match hand::confirm(&question, tool)? {
                Some(true) => {}
                Some(false) => return Err(refused.because("the tool's name was not typed")),
                None => {
                    return Err(refused
                        .because(format!("{question}, and nobody can be asked"))
                        .hint("add --yes to do it"));
                }
            }
        }
    }
    let reports = hand::carry_out(&path, &targets, "reopen", "", &deed, is_trial, &|_| {
        Act::Reopen
    })?;
    let output = Output::new(args.journal.color);
    let exit = reports.print(&output, args.journal.json, &|report| {
        format!("the next call of seq {} will run", report.seq)
    })?;
    targets.require_yes(needs_yes)?;
    Ok(exit)
}
