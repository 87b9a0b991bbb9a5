//! `checkpoint demo`: the whole point of the program, as a story that happens before one's eyes.
//!
//! Nothing is staged but the moments at which somebody is killed: the agent, the proxy and the
//! upstream are processes of this very binary, the journal is a real one, and each sentence that
//! claims something was checked on disk first ([`story`]). A claim that does not hold ends the
//! demo with code 1.
//!
//! Must not: sleep (what is awaited are events, told by [`stage`]), or touch anything outside its
//! own folder.

mod agent;
mod scene;
mod stage;
mod story;
mod upstream;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::error::CliError;
use super::exit::Exit;
use super::settings::Env;

/// Run a whole crash, resume and reconcile on a sample upstream, and tell the story
///
/// An agent pays four orders through checkpoint; it is killed, its upstream is killed, it comes
/// back, and an operator settles what nobody could know. Each of them is a real process. Everything
/// happens in a new temporary folder, which is named at the end. Exits with 0 only if all that is
/// told was found to be so.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(super) struct DemoArgs {
    #[command(subcommand)]
    role: Option<Role>,
}

/// The parts that the demo plays in processes of their own.
#[derive(Subcommand, Debug)]
enum Role {
    Upstream(upstream::UpstreamArgs),
    #[command(hide = true)]
    Agent(agent::AgentArgs),
}

/// The file of the sample upstream that says what really happened, one charge a line.
const LEDGER: &str = "ledger.txt";

/// The journal's file.
const JOURNAL: &str = "run.db";

pub(super) fn run(args: &DemoArgs, _env: Env<'_>) -> Result<Exit, CliError> {
    match &args.role {
        None => story::tell(),
        Some(Role::Upstream(args)) => upstream::run(args),
        Some(Role::Agent(args)) => agent::run(args),
    }
}

/// Returns the path of this program, to run a part of the demo with.
fn program() -> Result<PathBuf, CliError> {
    std::env::current_exe().map_err(broken("this program can't find itself"))
}

/// Returns what makes an error of the system one of the demo's.
fn broken(what: &'static str) -> impl Fn(std::io::Error) -> CliError {
    move |error| CliError::new(super::error::Kind::Failure, what).because(error)
}
