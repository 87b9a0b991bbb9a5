//! `checkpoint completions SHELL`.

use clap::Args;
use clap_complete::Shell;

use super::error::CliError;
use super::exit::Exit;
use super::output::Output;

/// Print a completion script for a shell
///
/// For bash: checkpoint completions bash > ~/.local/share/bash-completion/completions/checkpoint
#[derive(Args, Debug)]
pub(super) struct CompletionsArgs {
    /// Shell to complete for
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "checkpoint", &mut script);
    Output::plain().bytes(&script)?;
    Ok(Exit::Ok)
}
