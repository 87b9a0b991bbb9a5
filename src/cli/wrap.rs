//! `checkpoint wrap`: puts checkpoint before the servers of a client's configuration, and takes it
//! away again.
//!
//! `plan.rs` says what is to change, from text to text; here it is shown or written. Values of
//! `env` and whatever else a configuration holds are secrets: only `command` and `args` are shown.

mod command;
mod config;
mod edit;
mod file;
mod flags;
mod place;
mod plan;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use self::config::{JSON_HOLDERS, TOML_HOLDER};
use self::edit::{Hunk, hunks};
use self::file::ConfigFile;
use self::flags::ProxyFlags;
use self::place::Journals;
use self::plan::{Ask, CommandLine, Deed, NoPlan, Plan, State, Step};
use super::error::{CliError, Kind};
use super::escape::escape_block;
use super::exit::Exit;
use super::output::{ColorChoice, Form, Look, Output, SCHEMA_VERSION, Tone};
use super::settings::Env;
use super::{FormArgs, proxy_args};

/// Said whenever `--resume` goes into a configuration (contract, section 5.3).
const RESUME_WARNING: &str = "warning: --resume is only for a client that starts over from its \
    first call; a host that restarts servers at will, or starts one per call, has its first call \
    taken for the journal's first entry";

/// Put checkpoint before the servers of a client's configuration
///
/// Shows the change, or makes it with --write. Only `command` and `args` of servers that are
/// started by a command change; all else stays, comments and formatting too. Remote and disabled
/// servers are skipped, and those that are wrapped already are left alone. The file is JSON with
/// `mcpServers`, `servers` or `context_servers` (comments allowed), or TOML with `mcp_servers`.
/// Clients read it when they start.
///
/// Each server gets a journal of its own, NAME.db in $XDG_STATE_HOME/checkpoint or
/// ~/.local/state/checkpoint. Flags of the proxy may follow `--`: checkpoint wrap files --
/// --policy policy.toml. Do not add --resume for hosts that restart servers at will or start one
/// per call.
#[derive(Args, Debug)]
#[command(override_usage = "checkpoint wrap [OPTIONS] [SERVER]... [-- PROXY-FLAG...]")]
pub(super) struct WrapArgs {
    /// Servers that are meant, by their names in the file [default: all]
    #[arg(value_name = "SERVER")]
    servers: Vec<String>,

    /// Flags of the proxy, for each server
    #[arg(last = true, value_name = "PROXY-FLAG", allow_hyphen_values = true)]
    flags: Vec<OsString>,

    /// Configuration [default: the only one of .mcp.json, .cursor/mcp.json, .vscode/mcp.json,
    /// .codex/config.toml and .gemini/settings.json here]
    #[arg(long, value_name = "FILE", value_parser = proxy_args::path())]
    file: Option<PathBuf>,

    /// Journal of the one server, or the folder for a journal of each
    ///
    /// A folder is one that is there, or ends with a slash. CHECKPOINT_JOURNAL is not looked at.
    #[arg(long, value_name = "PATH", value_parser = proxy_args::path())]
    journal: Option<PathBuf>,

    /// Take checkpoint away again
    ///
    /// What `wrap` changed is then as it was, to the byte. Journals stay.
    #[arg(long, conflicts_with_all = ["journal", "flags"])]
    undo: bool,

    /// Make the change; what stood there is kept in FILE.bak
    #[arg(long)]
    write: bool,

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

/// The JSON document.
#[derive(Debug, Serialize)]
struct Document {
    schema_version: u32,
    file: String,
    servers: Vec<ServerReport>,
    written: bool,
}

#[derive(Debug, Serialize)]
struct ServerReport {
    name: String,
    state: State,
    reason: Option<String>,
    before: Option<CommandLine>,
    after: Option<CommandLine>,
}

pub(super) fn run(args: &WrapArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let flags = flags::check(&args.flags)?;
    let path = match &args.file {
        Some(path) if path.as_os_str().is_empty() => {
            return Err(CliError::usage("invalid value '' for '--file <FILE>'")
                .because("expected the path of a file"));
        }
        Some(path) => path.clone(),
        None => place::project_file()?,
    };
    let file = ConfigFile::read(&path)?;
    let plan = planned(args, &path, &file, &flags, env)?;
    let output = Output::new(args.color);
    let is_change = plan.text != file.text();
    let is_written = is_change && args.write;
    let is_kept = is_written && file.replace(&plan.text, !plan.is_wrapped_before)?;
    let shown = path.to_string_lossy().into_owned();
    let document = Document {
        schema_version: SCHEMA_VERSION,
        file: shown.clone(),
        servers: plan.steps.iter().map(Step::report).collect(),
        written: is_written,
    };
    let form = args.form.form();
    output.document(form, &document, |look| {
        diff(&shown, &hunks(file.text(), &plan.changes()), look)
    })?;
    tell_steps(&output, &plan, form);
    if flags.resumes && plan.steps.iter().any(|step| step.state == State::Wrapped) {
        output.note(RESUME_WARNING);
    }
    let kept = is_kept.then(|| file.backup());
    output.note(&ending(&shown, &plan, is_written, kept.as_deref()));
    let is_missed = |step: &Step| step.state == State::Skipped && !args.servers.is_empty();
    Ok(if plan.steps.iter().any(is_missed) {
        Exit::Failure
    } else {
        Exit::Ok
    })
}

fn planned(
    args: &WrapArgs,
    path: &Path,
    file: &ConfigFile,
    flags: &ProxyFlags,
    env: Env<'_>,
) -> Result<Plan, CliError> {
    let argv0 = std::env::args_os().next();
    let program = place::own_program(argv0.as_deref(), env)?;
    let shown = path.to_string_lossy();
    let planned = |deed| {
        let ask = Ask {
            names: &args.servers,
            program: &program,
            deed,
        };
        plan::plan(file.text(), &ask).map_err(|why| explained(&shown, why, args))
    };
    if args.undo {
        return planned(Deed::Undo);
    }
    let journals = Journals::new(args.journal.as_deref(), env)?;
    planned(Deed::Wrap {
        flags: &flags.words,
        journal: &|name| journals.of(name),
    })
}

/// Puts into words why there is no plan.
fn explained(file: &str, why: NoPlan, args: &WrapArgs) -> CliError {
    let failed = |what: String| CliError::new(Kind::Failure, what);
    match why {
        NoPlan::Unreadable(fault) => failed(format!(
            "{file}:{}:{} can't be read",
            fault.line, fault.column
        ))
        .because(fault.why)
        .hint(
            "nothing was changed; it is to be JSON, with comments or without, or TOML; other \
             forms, such as YAML, are changed by hand",
        ),
        NoPlan::NoServers => failed(format!("{file} names no servers"))
            .because(format!(
                "it has none of {} and {TOML_HOLDER}",
                JSON_HOLDERS.join(", ")
            ))
            .hint("give the file in which the client keeps its MCP servers: --file FILE"),
        NoPlan::Unknown { name, known } => {
            let error = failed(format!("{file} has no server '{name}'"));
            if known.is_empty() {
                error.hint("it has no servers at all")
            } else {
                error.hint(format!("its servers are {}", known.join(", ")))
            }
        }
        NoPlan::SharedJournal {
            one,
            other,
            journal,
        } => {
            let what = format!("'{one}' and '{other}' can't share a journal");
            let why = format!("equal seqs would mean equal entries in {journal}");
            if args.journal.is_some() {
                CliError::usage(what)
                    .because(why)
                    .hint("give a folder: --journal FOLDER/; or one server and its journal")
            } else {
                failed(what)
                    .because(why)
                    .hint("wrap one by itself: checkpoint wrap SERVER --journal PATH")
            }
        }
        NoPlan::Unsafe => failed(format!("{file} can't be changed safely"))
            .because("the change would touch more than it should")
            .hint("nothing was changed; put checkpoint in or out by hand, as README shows"),
    }
}

impl Step {
    fn report(&self) -> ServerReport {
        ServerReport {
            name: self.name.clone(),
            state: self.state,
            reason: self.reason.clone(),
            before: self.before.clone(),
            after: self.after.clone(),
        }
    }
}

/// Returns the change in the form of a unified diff without context, which may hold secrets.
fn diff(file: &str, hunks: &[Hunk], look: &Look) -> String {
    let mut text = String::new();
    let mut line = |lead: &str, line: &str, tone: Tone| {
        let line = format!("{lead}{}", escape_block(line));
        let _ = writeln!(text, "{}", look.paint(&line, tone.style()));
    };
    if !hunks.is_empty() {
        line("--- ", &file.replace('\n', "\\n"), Tone::Faint);
        line("+++ ", &file.replace('\n', "\\n"), Tone::Faint);
    }
    for hunk in hunks {
        line("", &hunk.heading.replace('\n', "\\n"), Tone::Faint);
        hunk.removed
            .iter()
            .for_each(|old| line("-", old, Tone::Bad));
        hunk.added.iter().for_each(|new| line("+", new, Tone::Good));
    }
    text
}

/// Says of each server what is not in the diff.
fn tell_steps(output: &Output, plan: &Plan, form: Form) {
    for step in &plan.steps {
        let name = &step.name;
        let journal = step.journal.as_deref();
        match (step.state, journal, &step.reason) {
            (State::Already | State::Skipped, _, Some(why)) if form == Form::Text => {
                let skipped = if step.state == State::Skipped {
                    "skipped, as "
                } else {
                    ""
                };
                output.note(&format!("{name}: {skipped}{why}"));
            }
            (State::Wrapped, Some(journal), _) if Path::new(journal).exists() => {
                output.note(&format!(
                    "warning: {name}: {journal} is there already, and its entries count; if \
                     it is another server's, give this one its own: --journal PATH"
                ));
            }
            (State::Unwrapped, Some(journal), _) if form == Form::Text => {
                output.note(&format!("{name}: its journal stays: {journal}"));
            }
            _ => {}
        }
    }
}

/// Returns what is said last: what was done, or how to do it.
fn ending(file: &str, plan: &Plan, is_written: bool, kept: Option<&Path>) -> String {
    let changed: Vec<&str> = plan
        .steps
        .iter()
        .filter(|step| !step.edits.is_empty())
        .map(|step| &*step.name)
        .collect();
    if changed.is_empty() {
        return format!("nothing to do in {file}");
    }
    let changed = changed.join(", ");
    if !is_written {
        return format!("nothing was written; --write makes this change ({changed})");
    }
    let kept = kept.map_or_else(String::new, |kept| {
        format!(", what stood there is in {}", kept.to_string_lossy())
    });
    format!("{file} was written ({changed}){kept}; restart the client")
}
