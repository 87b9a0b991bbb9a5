//! `checkpoint show SEQ`.

use clap::Args;

use super::JournalArgs;
use super::error::{CliError, Kind};
use super::exit::Exit;
use super::settings::{self, Env};

/// Show all about one entry
#[derive(Args, Debug)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &ShowArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let _ = settings::journal_required(args.journal.journal.clone(), env)?;
    Err(CliError::new(Kind::Failure, "not built yet"))
}
