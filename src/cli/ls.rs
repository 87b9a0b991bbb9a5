//! `checkpoint ls`.

use clap::Args;

use super::JournalArgs;
use super::error::{CliError, Kind};
use super::exit::Exit;
use super::settings::{self, Env};

/// List entries
#[derive(Args, Debug)]
pub(super) struct LsArgs {
    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &LsArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let _ = settings::journal_required(args.journal.journal.clone(), env)?;
    Err(CliError::new(Kind::Failure, "not built yet"))
}
