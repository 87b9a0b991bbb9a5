//! `checkpoint policy`: looks at policy files, without a proxy.

use clap::{Args, Subcommand};

use super::error::CliError;
use super::exit::Exit;

mod check;
mod schema;

/// Check a policy file, or describe its fields to an editor
#[derive(Args, Debug)]
#[command(
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = false
)]
pub(super) struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Subcommand, Debug)]
enum PolicyCommand {
    Check(check::CheckArgs),
    Schema(schema::SchemaArgs),
}

pub(super) fn run(args: &PolicyArgs) -> Result<Exit, CliError> {
    match &args.command {
        PolicyCommand::Check(args) => check::run(args),
        PolicyCommand::Schema(args) => schema::run(args),
    }
}
