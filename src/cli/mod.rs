//! The command line: what the user asked for, in types, and what the user is told.
//!
//! `checkpoint` without a command runs the proxy; each other command is one file here (its `Args`
//! with the help as doc comments, and `run`) and one variant of `Command`. Output goes through
//! `output.rs`, errors through `error.rs`, endings through `exit.rs`.
//!
//! Invariants: whatever can't be used is refused with code 2 before anything starts; data goes to
//! stdout and talk to stderr. This room must not decide about calls, nor write an entry: it asks
//! `guard` and shows what it says.

mod absent;
mod completions;
mod confirm;
mod decide;
mod delivered;
mod demo;
pub mod detail;
mod doctor;
pub mod error;
pub mod escape;
pub mod exit;
mod export;
pub mod filter;
mod fork;
mod gc;
#[cfg(test)]
mod golden;
mod hand;
mod json;
pub mod logging;
mod ls;
mod man;
pub mod output;
mod policy;
mod policy_file;
mod pretty;
mod progress;
mod proxy_args;
pub mod reading;
mod reopen;
mod resolve;
mod run;
pub mod settings;
mod show;
mod tail;
mod target;
mod targets;
pub mod values;
mod verdict_json;
mod verify;
pub mod view;
mod words;
mod wrap;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use error::CliError;
use exit::Exit;
use logging::{LogFormat, LogLevel, LogSettings};
use output::{ColorChoice, Form, Output};
use proxy_args::{PRINT_VERSION, ProxyArgs};
use settings::Env;

/// A stdio proxy that makes MCP tool calls safe to resume
///
/// It stands between an MCP client and an upstream MCP server and journals every tools/call before
/// the upstream may see it and again before the client may see the answer. After a crash, a call
/// that was finished is answered from the journal and does not run again; one that was cut off is
/// in doubt, is refused, and is shown, until somebody who knows settles it.
#[derive(Parser, Debug)]
#[command(
    name = "checkpoint",
    bin_name = "checkpoint",
    override_usage = USAGE,
    after_help = "`checkpoint --help` says more, with examples and the exit codes.",
    disable_version_flag = true,
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = true,
    subcommand_help_heading = "Commands (each has its own --help)",
    max_term_width = 100,
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    run: RunArgs,
}

/// Flags of a run of the proxy.
#[derive(Args, Debug)]
struct RunArgs {
    #[command(flatten)]
    proxy: ProxyArgs,

    #[command(flatten)]
    log: LogArgs,
}

const USAGE: &str = "checkpoint [OPTIONS] --upstream-cmd <CMD>
       checkpoint [OPTIONS] -- <PROGRAM> [ARG]...
       checkpoint <COMMAND>";

/// One variant a command; its file holds the rest.
#[derive(Subcommand, Debug)]
enum Command {
    Ls(ls::LsArgs),
    Show(show::ShowArgs),
    Resolve(resolve::ResolveArgs),
    Reopen(reopen::ReopenArgs),
    Delivered(delivered::DeliveredArgs),
    Decide(decide::DecideArgs),
    Fork(fork::ForkArgs),
    Tail(tail::TailArgs),
    Verify(verify::VerifyArgs),
    Export(export::ExportArgs),
    Gc(gc::GcArgs),
    Doctor(doctor::DoctorArgs),
    Wrap(wrap::WrapArgs),
    Demo(demo::DemoArgs),
    Policy(policy::PolicyArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// Flags about log lines.
#[derive(Args, Debug)]
struct LogArgs {
    /// Least urgent log lines, written to stderr [env: CHECKPOINT_LOG] [default: warn]
    #[arg(
        long,
        value_name = "LEVEL",
        value_enum,
        hide_possible_values = true,
        help_heading = "Log",
        long_help = "Least urgent log lines, written to stderr: off, error, \
        warn, info, debug or trace [env: CHECKPOINT_LOG] [default: warn]"
    )]
    log: Option<LogLevel>,

    /// Form of log lines: text or json
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        default_value = "text",
        hide_possible_values = true,
        help_heading = "Log"
    )]
    log_format: LogFormat,
}

/// Flags that every command about a journal takes.
#[derive(Args, Debug)]
struct JournalArgs {
    /// Journal [env: CHECKPOINT_JOURNAL]
    #[arg(long, value_name = "PATH", value_parser = proxy_args::path())]
    journal: Option<PathBuf>,

    #[command(flatten)]
    form: FormArgs,

    /// When to use colour: auto, always or never
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value = "auto",
        hide_possible_values = true
    )]
    color: ColorChoice,
}

/// Flags that ask for output that programs read.
#[derive(Args, Debug)]
struct FormArgs {
    /// Print JSON for programs instead of a table
    #[arg(long)]
    json: bool,

    /// Print JSON Lines for programs: one object a line
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,
}

impl FormArgs {
    fn form(&self) -> Form {
        match (self.json, self.jsonl) {
            (true, _) => Form::Json,
            (false, true) => Form::JsonLines,
            (false, false) => Form::Text,
        }
    }
}

/// Runs the program: parses `args` (the program's own name first), does what they ask, and says on
/// stderr what went wrong.
pub fn main(args: impl IntoIterator<Item = OsString>) -> Exit {
    let env = |name: &str| std::env::var_os(name);
    match dispatch(args, &env) {
        Ok(exit) => exit,
        Err(error) => {
            // A closed stderr must change neither the ending nor its code.
            let _ = io::stderr().lock().write_all(error.render().as_bytes());
            error.exit()
        }
    }
}

fn dispatch(args: impl IntoIterator<Item = OsString>, env: Env<'_>) -> Result<Exit, CliError> {
    let args: Vec<OsString> = args.into_iter().collect();
    if let Some(args) = run_alone(&args) {
        return run_proxy(args, env);
    }
    let matches = match command().try_get_matches_from(without_help_word(args)) {
        Ok(matches) => matches,
        Err(error) => return explain(&error),
    };
    let cli = Cli::from_arg_matches(&matches).expect("clap has checked the matches");
    match cli.command {
        Some(Command::Ls(args)) => ls::run(&args, env),
        Some(Command::Show(args)) => show::run(&args, env),
        Some(Command::Resolve(args)) => resolve::run(&args, env),
        Some(Command::Reopen(args)) => reopen::run(&args, env),
        Some(Command::Delivered(args)) => delivered::run(&args, env),
        Some(Command::Decide(args)) => decide::run(&args, env),
        Some(Command::Fork(args)) => fork::run(&args, env),
        Some(Command::Tail(args)) => tail::run(&args, env),
        Some(Command::Verify(args)) => verify::run(&args, env),
        Some(Command::Export(args)) => export::run(&args, env),
        Some(Command::Gc(args)) => gc::run(&args, env),
        Some(Command::Doctor(args)) => doctor::run(&args, env),
        Some(Command::Wrap(args)) => wrap::run(&args, env),
        Some(Command::Demo(args)) => demo::run(&args, env),
        Some(Command::Policy(args)) => policy::run(&args),
        Some(Command::Completions(args)) => completions::run(&args),
        Some(Command::Man(args)) => man::run(&args),
        None => run_proxy(cli.run, env),
    }
}

/// Returns the command line with `--help` in the place of the word `help`.
///
/// An upstream of that name comes after `--`, so no command line that means anything else has the
/// word there. With a flag behind it the line is left as it is, and refused: one that was read as
/// another command's must never start anything.
fn without_help_word(mut args: Vec<OsString>) -> Vec<OsString> {
    let is_word = |arg: &OsString| !arg.as_encoded_bytes().starts_with(b"-");
    if args.get(1).is_some_and(|arg| arg == "help") && args[2..].iter().all(is_word) {
        let words: Vec<OsString> = args.drain(1..).filter(|arg| arg != "help").collect();
        args.extend(words);
        args.push("--help".into());
    }
    args
}

/// Reads a command line that can only start the proxy, and is right: `None` for all others.
///
/// A parser that knows each command takes a third of a millisecond to make and 0.3 MiB that stay
/// with the process. What this one does not take, the whole parser reads again and explains.
fn run_alone(args: &[OsString]) -> Option<RunArgs> {
    // A command comes first, so after a flag nothing is taken for one.
    let is_flag = |arg: &OsString| arg.as_encoded_bytes().starts_with(b"-");
    if !args.get(1).is_some_and(is_flag) {
        return None;
    }
    parse_proxy(args).ok()
}

/// Reads a command line of the proxy, the program's name first.
fn parse_proxy(
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<RunArgs, clap::Error> {
    let parser = clap::Command::new("checkpoint")
        .disable_help_flag(true)
        .disable_version_flag(true);
    let mut matches = RunArgs::augment_args(parser).try_get_matches_from(args)?;
    RunArgs::from_arg_matches_mut(&mut matches)
}

fn run_proxy(args: RunArgs, env: Env<'_>) -> Result<Exit, CliError> {
    if args.proxy.version.as_deref() == Some(PRINT_VERSION) {
        let version = concat!("checkpoint ", env!("CARGO_PKG_VERSION"), "\n");
        Output::plain().data(version)?;
        return Ok(Exit::Ok);
    }
    let log = LogSettings {
        level: settings::log_level(args.log.log, env)?,
        format: args.log.log_format,
    };
    run::run(settings::resolve(args.proxy, log, env)?)
}

/// Returns the parser, with what the derive can't say.
fn command() -> clap::Command {
    Cli::command().after_long_help(after_help())
}

/// Tells whether `text` is the name of a command of this version.
fn is_command_name(text: &str) -> bool {
    Cli::command().find_subcommand(text).is_some()
}

fn after_help() -> String {
    let mut text = String::from(
        "Examples:\n\
         \x20 checkpoint --journal run.db -- npx -y @modelcontextprotocol/server-everything\n\
         \x20 checkpoint --journal run.db --upstream-cmd 'cd srv && exec ./server --token \"$TOKEN\"'\n\
         \x20 checkpoint ls --journal run.db --in-doubt\n\
         \x20 checkpoint show 8 --journal run.db\n\
         \n\
         Durations are 250ms, 30s, 5m, 2h or 7d; sizes 512B, 64KiB or 1MiB. A flag wins over its\n\
         environment variable.\n\
         \n\
         Exit codes:\n",
    );
    for exit in Exit::ALL {
        text.push_str(&format!("  {:>2}  {}\n", exit.code(), exit.meaning()));
    }
    text
}

/// Prints what clap has to say: help to stdout with code 0, the rest to stderr with code 2.
fn explain(error: &clap::Error) -> Result<Exit, CliError> {
    let rendered = error.render();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Clap sets empty lines off with blanks.
            let help = rendered.ansi().to_string();
            let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
            Output::auto().data(&(lines.join("\n") + "\n"))?;
            Ok(Exit::Ok)
        }
        _ => {
            let mut text = format!("checkpoint: {}", rendered.ansi());
            if let Some(hint) = stray_word_hint(error) {
                text.push_str(&hint);
            }
            let _ = anstream::stderr().write_all(text.as_bytes());
            Ok(Exit::Usage)
        }
    }
}

/// Returns what was probably meant by a word that is no flag: a command that came too late, or an
/// upstream without its `--`.
fn stray_word_hint(error: &clap::Error) -> Option<String> {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        _ => return None,
    };
    match error.get(kind) {
        Some(ContextValue::String(word)) if is_command_name(word) => Some(format!(
            "hint: a command comes first: checkpoint {word} [OPTIONS]\n"
        )),
        Some(ContextValue::String(word)) if !word.starts_with('-') => {
            let meant = similar_command(word).map_or_else(String::new, |command| {
                format!("hint: did you mean '{command}'?\n")
            });
            Some(
                meant
                    + "hint: an upstream's program comes after '--': checkpoint [OPTIONS] -- <PROGRAM>\n",
            )
        }
        _ => None,
    }
}

/// Returns the command whose name is most like a word, if one is much like it.
fn similar_command(word: &str) -> Option<String> {
    let command = command();
    let names = command.get_subcommands().map(clap::Command::get_name);
    let likeness = |name: &str| strsim::jaro(word, name);
    names
        .filter(|name| likeness(name) > 0.8)
        .max_by(|one, other| likeness(one).total_cmp(&likeness(other)))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_command_is_told_from_a_program() {
        for (word, meant) in [
            ("lss", Some("ls")),
            ("resove", Some("resolve")),
            ("Show", Some("show")),
            ("exprot", Some("export")),
            ("npx", None),
            ("node", None),
            ("python3", None),
            ("uvx", None),
        ] {
            assert_eq!(similar_command(word).as_deref(), meant, "{word}");
        }
    }

    #[test]
    fn the_parser_holds_together() {
        command().debug_assert();
    }

    #[test]
    fn the_proxy_s_own_parser_reads_what_the_whole_parser_reads() {
        let lines: &[&[&str]] = &[
            &["--", "upstream", "--journal", "x"],
            &["--", "ls"],
            &["--journal", "ls", "--", "ls", "-h"],
            &["--journal=j.db", "--upstream-cmd", "show 8"],
            &["--journal", "j.db", "--log", "debug", "--", "--", "u"],
            &["--log-format=json", "--on-divergence", "fork", "--", "u"],
            &["--version"],
            &["--version=9.9"],
            &["--journal"],
            &["--journal", "a", "--journal", "b", "--", "u"],
            &["--journal", "j.db", "ls"],
            &["--journal", "j.db", "upstream"],
            &["--journal", "j.db", "--", "u", "--help"],
            &["--help"],
            &["-h"],
            &["-V"],
            &["--log", "loud", "--", "u"],
            &["--no-such-flag", "--", "u"],
            &["-"],
            &["--"],
            &["ls", "--journal", "j.db"],
            &[],
        ];
        let mut read = 0;
        for line in lines {
            let args: Vec<OsString> = ["checkpoint"]
                .iter()
                .chain(*line)
                .map(OsString::from)
                .collect();
            let whole = command()
                .try_get_matches_from(&args)
                .and_then(|matches| Cli::from_arg_matches(&matches));
            if let Some(alone) = run_alone(&args) {
                let whole = whole.unwrap();
                assert!(whole.command.is_none(), "{line:?}");
                assert_eq!(format!("{alone:?}"), format!("{:?}", whole.run), "{line:?}");
                read += 1;
            } else {
                let is_proxy = whole.is_ok_and(|cli| cli.command.is_none());
                assert!(!is_proxy || line.is_empty(), "{line:?}");
            }
        }
        assert!(read > 7, "{read}");
    }

    #[test]
    fn command_names() {
        assert!(is_command_name("ls"));
        assert!(!is_command_name("9.9"));
    }
}
