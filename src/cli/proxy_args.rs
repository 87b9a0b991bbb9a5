//! The flags of the proxy as clap sees them; the doc comments are the help.
//!
//! Values that also have an environment variable stay text here and are read by `settings.rs`,
//! which knows the variables: clap would count a variable as if it had been typed, so that
//! `CHECKPOINT_UPSTREAM_CMD` would conflict with `--`, and would show its value in the help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};

use super::values;

/// The value that stands for a `--version` without one. No argument can hold a NUL.
pub(super) const PRINT_VERSION: &str = "\0";

const UPSTREAM: &str = "Upstream";
const JOURNAL: &str = "Journal and workflow";
const DECISIONS: &str = "Decisions and answers";
const IDENTITY: &str = "Identity shown to the client";
const LIMITS: &str = "Limits";

/// What a call meets that diverges from the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnDivergence {
    /// Refuse it.
    #[default]
    Strict,
    /// Open a new branch.
    Fork,
}

/// When an outcome is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// Before it is told.
    #[default]
    Full,
    /// Soon after.
    Deferred,
}

/// The form of a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Refusals {
    /// An error for a call with checkpoint_seq or a key, a result for one without
    #[default]
    Auto,
    /// A JSON-RPC error
    Error,
    /// A tool result with isError: true
    Result,
}

/// What the proxy does after it refused a call as in doubt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnInDoubt {
    /// Go on
    #[default]
    Continue,
    /// Drain, then end with code 3
    Exit,
}

/// Returns a parser that takes any path, the empty one too: `settings.rs` refuses it, with the
/// words that it has for the variable.
pub(super) fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// The flags of the proxy.
#[derive(Args, Debug, Default)]
pub struct ProxyArgs {
    /// Shell command that starts the upstream [env: CHECKPOINT_UPSTREAM_CMD]
    ///
    /// Run by /bin/sh -c (cmd /C on Windows), so quotes, $VAR and && work. Not together with
    /// `-- PROGRAM`.
    #[arg(long, value_name = "CMD", help_heading = UPSTREAM)]
    pub upstream_cmd: Option<String>,

    /// Program that is the upstream, and its arguments, without a shell
    #[arg(last = true, value_name = "PROGRAM", help_heading = UPSTREAM, num_args = 1..)]
    pub program: Vec<OsString>,

    /// SQLite journal, made with its parent folders [env: CHECKPOINT_JOURNAL]
    ///
    /// Without it the proxy is a plain relay, and says so once on stderr.
    #[arg(long, value_name = "PATH", value_parser = path(), help_heading = JOURNAL)]
    pub journal: Option<PathBuf>,

    /// Workflow that the calls belong to [env: CHECKPOINT_WORKFLOW_ID] [default: the journal's own]
    ///
    /// At most 512 bytes. The journal's own id is its absolute path when it was made, kept inside,
    /// so that moving the file keeps the workflow.
    #[arg(long, value_name = "ID", help_heading = JOURNAL)]
    pub workflow_id: Option<String>,

    /// Relay tools that call themselves read-only without an entry
    ///
    /// A tool whose readOnlyHint is true in the upstream's own tools/list is then not journaled,
    /// so a repeated call runs again. WARNING: the hint is the upstream's word and nobody checks
    /// it; upstreams exist whose "read-only" tools write, send or delete. Use this only with an
    /// upstream whose hints you have read and believe. Tools that were not listed are journaled.
    #[arg(long, help_heading = JOURNAL)]
    pub trust_annotations: bool,

    /// When outcomes are synced: full or deferred [env: CHECKPOINT_DURABILITY] [default: full]
    ///
    /// `full`: before they are told. `deferred`: a final result or error is told first and synced
    /// with the next call's reservation, after 20 ms, or at the run's end, whichever comes first.
    /// LIMIT: until then a power cut, or a crash of the whole machine, turns the answered call into
    /// one in doubt: it is refused, and never runs again by itself. kill -9 of the proxy loses
    /// nothing. Reservations, questions, task handles and outcomes of at-least-once calls are always
    /// synced first. Needs --journal.
    #[arg(
        long,
        value_name = "full|deferred",
        hide_possible_values = true,
        help_heading = JOURNAL
    )]
    pub durability: Option<Durability>,

    /// Keep no arguments on disk, only their keyed signature and size
    ///
    /// Keys made from arguments are stored keyed too. Needs --journal.
    #[arg(long, help_heading = JOURNAL)]
    pub redact_args_in_journal: bool,

    /// What a call meets that differs from the journaled one at its place [default: strict]
    ///
    /// `strict` refuses it. `fork` opens a branch of the workflow there: entries before are shared,
    /// nothing of the parent changes. Needs --journal.
    #[arg(long, value_name = "strict|fork", hide_possible_values = true, help_heading = DECISIONS)]
    pub on_divergence: Option<OnDivergence>,

    /// Form of a refusal
    #[arg(
        long,
        value_name = "FORM",
        value_enum,
        default_value = "auto",
        help_heading = DECISIONS
    )]
    pub refusals: Refusals,

    /// What to do after the first refusal as in doubt
    #[arg(
        long,
        value_name = "ACTION",
        value_enum,
        default_value = "continue",
        help_heading = DECISIONS
    )]
    pub on_in_doubt: OnInDoubt,

    /// Add _meta.checkpoint (seq, attempt, replayed, completed_at) to answers of journaled calls
    ///
    /// Without it a live answer is the upstream's bytes and a replay is the stored result's bytes.
    #[arg(long, help_heading = DECISIONS)]
    pub annotate: bool,

    /// _meta key that holds the client's tool-call id: auto, none, or a key [default: auto]
    ///
    /// Recorded and searchable, never used to decide. `auto` knows those that hosts send.
    #[arg(long, value_name = "KEY", value_parser = values::parse_id, help_heading = DECISIONS)]
    pub call_id_from: Option<String>,

    /// Name shown to the client [default: checkpoint]
    #[arg(long, value_name = "NAME", value_parser = values::parse_identity, help_heading = IDENTITY)]
    pub name: Option<String>,

    /// Version shown to the client; without VERSION, print checkpoint's version and exit
    #[arg(
        long,
        short = 'V',
        value_name = "VERSION",
        num_args = 0..=1,
        default_missing_value = PRINT_VERSION,
        help_heading = IDENTITY
    )]
    pub version: Option<String>,

    /// Show the upstream's own name and version
    #[arg(long, help_heading = IDENTITY)]
    pub keep_identity: bool,

    /// Answer a call outcome_unknown after this long [default: none]
    ///
    /// The upstream may still finish it; a later answer is journaled.
    #[arg(long, value_name = "DUR", value_parser = values::parse_timeout, allow_hyphen_values = true, help_heading = LIMITS)]
    pub call_timeout: Option<Duration>,

    /// How long calls in flight may go on after the client is gone [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = values::parse_duration, allow_hyphen_values = true, help_heading = LIMITS)]
    pub drain_timeout: Option<Duration>,

    /// Longest line, either way [default: 64MiB]
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = values::parse_message_bytes,
 allow_hyphen_values = true,
        help_heading = LIMITS
    )]
    pub max_message_bytes: Option<usize>,

    /// Per-tool policies, in TOML [env: CHECKPOINT_POLICY]
    ///
    /// Checked whole before anything starts; see `checkpoint policy check`.
    #[arg(long, value_name = "FILE", value_parser = path(), help_heading = DECISIONS)]
    pub policy: Option<PathBuf>,

    /// Calls without checkpoint_seq walk the journal from its first entry
    ///
    /// Only for a client that starts over from its first call: not for hosts that restart servers
    /// at will or start one per call, whose first call would be taken for the journal's first
    /// entry. Needs --journal.
    #[arg(long, help_heading = DECISIONS)]
    pub resume: bool,

    /// Run that keys hold in [env: CHECKPOINT_RUN_ID] [default: the workflow]
    #[arg(long, value_name = "ID", help_heading = JOURNAL)]
    pub run_id: Option<String>,

    /// Conversation that keys hold in [env: CHECKPOINT_THREAD_ID] [default: none]
    #[arg(long, value_name = "ID", help_heading = JOURNAL)]
    pub thread_id: Option<String>,

    /// Calls of this workflow that may be reserved; one more is refused
    ///
    /// Needs --journal.
    #[arg(
        long,
        value_name = "N",
        value_parser = values::parse_count,
        allow_hyphen_values = true,
        help_heading = LIMITS
    )]
    pub max_calls: Option<u64>,

    /// A new run of the workflow takes over: runs started earlier start no more calls
    ///
    /// From this run's first tools/call on; their running calls still settle. Needs --journal.
    #[arg(long, help_heading = DECISIONS)]
    pub supersede: bool,
}
