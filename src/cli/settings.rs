//! What the flags and the environment mean, checked whole before anything is started.
//!
//! Arguments win over variables; a variable that loses is not looked at. A value that can't be
//! used is a usage error which names where it stands, what it is, and what was expected, so that
//! nothing the user asked for is ever dropped in silence. Pure but for the environment, which
//! comes in as a function, and the policy file, which `policy_file.rs` reads: nothing is started.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::error::CliError;
use super::logging::{LogLevel, LogSettings};
use super::policy_file;
use super::proxy_args::ProxyArgs;
pub use super::proxy_args::{Durability, OnDivergence, OnInDoubt, Refusals};
use super::values;
use crate::rules::policy::{PolicySet, ThreadId};

/// What the default command is told to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// How the upstream is started.
    pub upstream: UpstreamCommand,
    /// The journal's path as it was given; without one the proxy is a plain relay.
    pub journal: Option<PathBuf>,
    /// The workflow of calls that name none; without it the journal's own.
    pub workflow_id: Option<String>,
    /// The run of the workflow, for the `run` window; without it the workflow's id.
    pub run_id: Option<String>,
    /// The conversation, for the `thread` window.
    pub thread_id: Option<String>,
    /// The policies of all tools; without a file the defaults.
    pub policies: PolicySet,
    /// What a call meets that diverges; anything but `strict` has a journal.
    pub on_divergence: OnDivergence,
    /// Whether calls without a seq walk the journal from its start; it has a journal.
    pub resume: bool,
    /// How many calls of the workflow may be reserved, from 1; with a journal.
    pub max_calls: Option<u64>,
    /// Whether sessions started earlier are fenced for new calls; with a journal.
    pub supersede: bool,
    /// Whether tools that call themselves read-only are relayed without an entry.
    pub trust_annotations: bool,
    /// When outcomes are durable.
    pub durability: Durability,
    /// Whether arguments are kept off the disk.
    pub redact_args: bool,
    /// The name and version shown to the client; `None` keeps the upstream's own.
    pub identity: Option<Identity>,
    /// The form of refusals.
    pub refusals: Refusals,
    /// Whether answers of journaled calls say which entry they come from.
    pub annotate: bool,
    /// After it a call is answered `outcome_unknown`; never zero.
    pub call_timeout: Option<Duration>,
    /// How long calls in flight may go on after the client is gone; may be zero.
    pub drain_timeout: Duration,
    /// The longest line either way, in bytes, without its line end.
    pub max_message_bytes: usize,
    /// Where the client's tool-call id stands.
    pub call_id_from: CallIdFrom,
    /// What follows the first refusal as in doubt.
    pub on_in_doubt: OnInDoubt,
    /// Which log lines are written, and how.
    pub log: LogSettings,
}

/// How the upstream is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamCommand {
    /// Text for the shell; not empty.
    Shell(String),
    /// The exact argument vector; it has a program, whose name is not empty.
    Argv(Vec<OsString>),
}

/// The name and version shown to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `--name`, by default `checkpoint`.
    pub name: String,
    /// `--version`, by default our own.
    pub version: String,
}

/// Where the client's tool-call id stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallIdFrom {
    /// Under one of the `_meta` keys that hosts are known to use.
    Auto,
    /// It is not recorded.
    None,
    /// Under this `_meta` key.
    Key(String),
}

/// The default of `--drain-timeout`.
pub const DRAIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// The default of `--max-message-bytes`.
pub const MESSAGE_BYTES_DEFAULT: usize = 64 << 20;

/// The environment: a variable's value, where it is set.
pub type Env<'env> = &'env dyn Fn(&str) -> Option<OsString>;

/// Resolves the flags of the proxy.
///
/// # Errors
///
/// A usage error for the first value that can't be used, or flag that needs a journal where there
/// is none.
pub fn resolve(args: ProxyArgs, log: LogSettings, env: Env<'_>) -> Result<ProxySettings, CliError> {
    // First, as a command's name taken for a version explains whatever else is missing.
    let identity = identity(args.name.clone(), args.version.clone(), args.keep_identity)?;
    refuse_without_journal(&args, env)?;
    let thread_id = id(
        "--thread-id <ID>",
        args.thread_id,
        "CHECKPOINT_THREAD_ID",
        env,
    )?;
    Ok(ProxySettings {
        upstream: upstream(args.upstream_cmd, args.program, env)?,
        journal: journal(args.journal, env)?,
        workflow_id: workflow_id(args.workflow_id, env)?,
        run_id: id("--run-id <ID>", args.run_id, "CHECKPOINT_RUN_ID", env)?,
        policies: policies(args.policy, thread_id.is_some(), env)?,
        thread_id,
        on_divergence: args.on_divergence.unwrap_or_default(),
        resume: args.resume,
        max_calls: args.max_calls,
        supersede: args.supersede,
        trust_annotations: args.trust_annotations,
        durability: durability(args.durability, env)?,
        redact_args: args.redact_args_in_journal,
        identity,
        refusals: args.refusals,
        annotate: args.annotate,
        call_timeout: args.call_timeout,
        drain_timeout: args.drain_timeout.unwrap_or(DRAIN_TIMEOUT_DEFAULT),
        max_message_bytes: args.max_message_bytes.unwrap_or(MESSAGE_BYTES_DEFAULT),
        call_id_from: match args.call_id_from.as_deref() {
            None | Some("auto") => CallIdFrom::Auto,
            Some("none") => CallIdFrom::None,
            Some(key) => CallIdFrom::Key(key.to_owned()),
        },
        on_in_doubt: args.on_in_doubt,
        log,
    })
}

/// Refuses the flags that mean nothing without a journal.
fn refuse_without_journal(args: &ProxyArgs, env: Env<'_>) -> Result<(), CliError> {
    if args.journal.is_some() || env("CHECKPOINT_JOURNAL").is_some() {
        return Ok(());
    }
    let is_fork = args.on_divergence == Some(OnDivergence::Fork);
    let is_deferred = args.durability == Some(Durability::Deferred);
    let flags = [
        ("--durability deferred", is_deferred),
        ("--redact-args-in-journal", args.redact_args_in_journal),
        ("--resume", args.resume),
        ("--on-divergence fork", is_fork),
        ("--max-calls", args.max_calls.is_some()),
        ("--supersede", args.supersede),
    ];
    match flags.into_iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((flag, _)) => Err(CliError::usage(format!("{flag} needs a journal"))
            .hint("add --journal PATH, or set CHECKPOINT_JOURNAL")),
    }
}

/// Reads and checks the policy file, where there is one.
pub(super) fn policies(
    flag: Option<PathBuf>,
    has_thread: bool,
    env: Env<'_>,
) -> Result<PolicySet, CliError> {
    let thread = if has_thread {
        ThreadId::Given
    } else {
        ThreadId::Absent
    };
    match flag.or_else(|| env("CHECKPOINT_POLICY").map(PathBuf::from)) {
        Some(path) => policy_file::read(&path, thread),
        None => Ok(PolicySet::default()),
    }
}

/// Resolves `--journal`, which every command takes.
///
/// # Errors
///
/// A usage error where the path can't name a file.
pub fn journal(flag: Option<PathBuf>, env: Env<'_>) -> Result<Option<PathBuf>, CliError> {
    let (source, path) = match (flag, env("CHECKPOINT_JOURNAL")) {
        (Some(path), _) => (Source::Flag("--journal <PATH>"), path),
        (None, Some(path)) => (Source::Variable("CHECKPOINT_JOURNAL"), path.into()),
        (None, None) => return Ok(None),
    };
    let shown = path.to_string_lossy().into_owned();
    values::parse_journal(path)
        .map(Some)
        .map_err(|why| source.invalid(&shown, &why))
}

/// Resolves `--journal` for a command that can't do without.
///
/// # Errors
///
/// As [`journal`], and where there is none.
pub fn journal_required(flag: Option<PathBuf>, env: Env<'_>) -> Result<PathBuf, CliError> {
    journal(flag, env)?.ok_or_else(|| {
        CliError::usage("no journal was given")
            .hint("add --journal PATH, or set CHECKPOINT_JOURNAL")
    })
}

/// Resolves `--workflow-id`.
///
/// # Errors
///
/// A usage error for an empty id or one that is too long.
pub fn workflow_id(flag: Option<String>, env: Env<'_>) -> Result<Option<String>, CliError> {
    id("--workflow-id <ID>", flag, "CHECKPOINT_WORKFLOW_ID", env)
}

pub(super) fn id(
    flag: &'static str,
    value: Option<String>,
    variable: &'static str,
    env: Env<'_>,
) -> Result<Option<String>, CliError> {
    text(flag, value, variable, env, values::parse_id)
}

/// Resolves `--durability`.
fn durability(flag: Option<Durability>, env: Env<'_>) -> Result<Durability, CliError> {
    if let Some(durability) = flag {
        return Ok(durability);
    }
    let parse = |text: &str| {
        <Durability as clap::ValueEnum>::from_str(text, false)
            .map_err(|_| "expected full or deferred".to_owned())
    };
    let variable = "CHECKPOINT_DURABILITY";
    let durability = text("--durability <full|deferred>", None, variable, env, parse)?;
    Ok(durability.unwrap_or_default())
}

/// Resolves `--log`.
///
/// # Errors
///
/// A usage error for a variable that names no level.
pub fn log_level(flag: Option<LogLevel>, env: Env<'_>) -> Result<LogLevel, CliError> {
    if let Some(level) = flag {
        return Ok(level);
    }
    let parse = |text: &str| {
        <LogLevel as clap::ValueEnum>::from_str(text, false)
            .map_err(|_| "expected off, error, warn, info, debug or trace".to_owned())
    };
    let level = text("--log <LEVEL>", None, "CHECKPOINT_LOG", env, parse)?;
    Ok(level.unwrap_or_default())
}

/// Where a value stands.
#[derive(Clone, Copy)]
enum Source {
    Flag(&'static str),
    Variable(&'static str),
}

impl Source {
    fn invalid(self, value: &str, why: &str) -> CliError {
        CliError::usage(match self {
            Self::Flag(flag) => format!("invalid value '{value}' for '{flag}'"),
            Self::Variable(name) => {
                format!("invalid value '{value}' of the environment variable {name}")
            }
        })
        .because(why)
    }
}

fn text<T>(
    flag: &'static str,
    value: Option<String>,
    variable: &'static str,
    env: Env<'_>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, CliError> {
    let (source, value) = match (value, env(variable)) {
        (Some(value), _) => (Source::Flag(flag), value),
        (None, None) => return Ok(None),
        (None, Some(value)) => {
            let source = Source::Variable(variable);
            let value = value
                .into_string()
                .map_err(|raw| source.invalid(&raw.to_string_lossy(), "expected UTF-8"))?;
            (source, value)
        }
    };
    parse(&value)
        .map(Some)
        .map_err(|why| source.invalid(&value, &why))
}

fn upstream(
    shell: Option<String>,
    program: Vec<OsString>,
    env: Env<'_>,
) -> Result<UpstreamCommand, CliError> {
    if let Some(first) = program.first() {
        if shell.is_some() {
            return Err(CliError::usage(
                "'--upstream-cmd <CMD>' can't be used with '-- <PROGRAM>'",
            )
            .hint("give the upstream in one of the two forms"));
        }
        if first.is_empty() {
            return Err(CliError::usage("the program after '--' is empty")
                .hint("checkpoint [OPTIONS] -- PROGRAM [ARG]..."));
        }
        return Ok(UpstreamCommand::Argv(program));
    }
    let (flag, variable) = ("--upstream-cmd <CMD>", "CHECKPOINT_UPSTREAM_CMD");
    let shell = text(flag, shell, variable, env, |text| {
        // The command may hold secrets, so a bad one is not repeated; only an empty one is bad.
        values::parse_shell_command(text)
    })?;
    shell.map(UpstreamCommand::Shell).ok_or_else(|| {
        CliError::usage("no upstream was given: neither '--upstream-cmd <CMD>' nor '-- <PROGRAM>'")
            .hint(
                "say how the upstream is started, in one of two forms:\n\
                 checkpoint --journal run.db --upstream-cmd \"npx -y SOME-SERVER\"\n\
                 checkpoint --journal run.db -- npx -y SOME-SERVER\n\
                 `checkpoint --help` lists the other commands",
            )
    })
}

fn identity(
    name: Option<String>,
    version: Option<String>,
    keep: bool,
) -> Result<Option<Identity>, CliError> {
    if let Some(version) = &version {
        let flag = Source::Flag("--version <VERSION>");
        if super::is_command_name(version) {
            return Err(flag
                .invalid(version, "that is a command, not a version")
                .hint(format!(
                    "`checkpoint --version` alone prints the program's version; \
                     `checkpoint {version}` runs the command"
                )));
        }
        values::parse_identity(version).map_err(|why| flag.invalid(version, &why))?;
    }
    if keep {
        let with = match (name, version) {
            (Some(_), _) => "--name",
            (None, Some(_)) => "--version",
            (None, None) => return Ok(None),
        };
        return Err(
            CliError::usage(format!("--keep-identity can't be used with {with}")).hint(format!(
                "leave {with} out to show the upstream's own, or leave --keep-identity out"
            )),
        );
    }
    Ok(Some(Identity {
        name: name.unwrap_or_else(|| env!("CARGO_PKG_NAME").to_owned()),
        version: version.unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned()),
    }))
}

#[cfg(test)]
mod tests;
