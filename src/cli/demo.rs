//! `checkpoint demo`.

use clap::Args;

use super::error::{CliError, Kind};
use super::exit::Exit;
use super::settings::Env;

/// Run a whole crash, resume and reconcile on a sample upstream, and tell the story
///
/// Everything happens in a new temporary folder, which is named at the end.
#[derive(Args, Debug)]
pub(super) struct DemoArgs {}

// LEAD: a placeholder until the proxy and the journal can carry a demo; will be replaced.
pub(super) fn run(_args: &DemoArgs, _env: Env<'_>) -> Result<Exit, CliError> {
    Err(CliError::new(
        Kind::Failure,
        "the demo is not built into this version yet",
    ))
}
