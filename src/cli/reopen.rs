//! `checkpoint reopen`: one more attempt of a settled entry.

use clap::Args;

use super::JournalArgs;
use super::error::{CliError, Kind};
use super::exit::Exit;
use super::filter::Filter;
use super::hand::{self, DeedArgs};
use super::output::Output;
use super::settings::{self, Env};
use super::targets::{ConsentArgs, TargetArgs};
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

    #[command(flatten)]
    consent: ConsentArgs,

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
    let targets = args.targets.find(&path, settled, env)?;
    let is_trial = args.consent.is_trial(&targets);
    if args.consent.may_ask(&targets) {
        for tool in targets.tools(|entry| entry.status == entry::Status::Completed) {
            let question = format!("{tool} was completed here; its effect will happen again");
            match hand::confirm(&question, tool)? {
                Some(true) => {}
                Some(false) => {
                    return Err(hand::not_typed("nothing was done", "the tool's name"));
                }
                None => {
                    return Err(CliError::new(Kind::Failure, "nothing was done")
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
    let exit = reports.print(&output, args.journal.form.form(), &|report| {
        format!("the next call of seq {} will run", report.seq)
    })?;
    args.consent.require(&targets)?;
    Ok(exit)
}
