//! `checkpoint delivered`: an outcome that reached its caller by other means.

use clap::Args;

use super::JournalArgs;
use super::error::CliError;
use super::exit::Exit;
use super::filter::Filter;
use super::hand::{self, DeedArgs};
use super::output::Output;
use super::settings::{self, Env};
use super::targets::{ConsentArgs, TargetArgs};
use crate::guard::verdict::Act;

/// Mark an outcome as delivered by other means
///
/// An outcome that reached nobody is handed to the next equal call. Once somebody was told it by
/// other means, mark it here, so that the next equal call counts as a new one.
#[derive(Args, Debug)]
#[command(override_usage = "checkpoint delivered [OPTIONS] <SEQ>...
       checkpoint delivered [OPTIONS] <CONDITION>... --yes")]
pub(super) struct DeliveredArgs {
    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    deed: DeedArgs,

    #[command(flatten)]
    consent: ConsentArgs,

    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &DeliveredArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let path = settings::journal_required(args.journal.journal.clone(), env)?;
    let deed = args.deed.deed()?;
    let undelivered = Filter {
        undelivered: true,
        ..Filter::default()
    };
    let targets = args.targets.find(&path, undelivered, env)?;
    let is_trial = args.consent.is_trial(&targets);
    let reports = hand::carry_out(&path, &targets, "delivered", "", &deed, is_trial, &|_| {
        Act::Deliver
    })?;
    let output = Output::new(args.journal.color);
    let exit = reports.print(&output, args.journal.form.form(), &|_| {
        "its outcome counts as delivered".to_owned()
    })?;
    args.consent.require(&targets)?;
    Ok(exit)
}
