//! `checkpoint resolve`: a verdict on calls that were cut off.

use std::path::{Path, PathBuf};

use clap::Args;

use super::JournalArgs;
use super::error::CliError;
use super::exit::Exit;
use super::filter::Filter;
use super::hand::{self, DeedArgs, Report};
use super::output::Output;
use super::policy_file;
use super::settings::{self, Env};
use super::targets::{ConsentArgs, TargetArgs};
use super::values;
use super::verdict_json;
use crate::guard::stale::Wanted;
use crate::guard::verdict::{Act, Verdict};
use crate::mcp::reply;
use crate::rules::entry::{Entry, Provenance, Status};
use crate::rules::ids::Fence;
use crate::rules::policy::ThreadId;

/// Say what became of calls that were cut off
///
/// A call in doubt was sent, and nobody knows what came of it. Find out by other means (the
/// system that the tool acts on), then say it here: the verdict, who gave it and why are kept with
/// the entry for ever. Works while a proxy runs, and never starts the upstream.
///
/// With --auto the policy's reconcile command of each tool is asked, and believed only if it is
/// clear; an upstream that may still act is waited for first. Where the policy names a tool of the
/// upstream, only a running proxy can ask.
///
/// A call that waits for its client's answer (INPUT_REQUIRED) or runs as a task (ACCEPTED) is not
/// in doubt, as it may yet go on. Where it can't, name its seq and add --force.
///
/// An answer that came after a verdict, or after another attempt had taken the entry over, is kept
/// as stale (`show` has it) and does not count. --completed --result-stale (or --failed
/// --error-stale) makes it the outcome. Where a verdict was given, name the seq: that verdict is
/// taken back and stays in the history. The upstream's own outcome is never taken back.
///
/// A range of seqs or a condition takes only what is in doubt: it prints what would be done, and
/// does it with --yes. What can't be done is reported, and does not stop the rest; the exit code is
/// then 1.
#[derive(Args, Debug)]
#[command(
    override_usage = "checkpoint resolve [OPTIONS] <VERDICT> --reason <TEXT> <SEQ>...
       checkpoint resolve [OPTIONS] <VERDICT> --reason <TEXT> <CONDITION>... --yes
       checkpoint resolve [OPTIONS] --auto --policy <FILE> <SEQ>..."
)]
pub(super) struct ResolveArgs {
    #[command(flatten)]
    targets: TargetArgs,

    /// It was carried out; a call is answered with --result, or with a text that says so
    #[arg(long, group = "verdict", help_heading = "Verdict (one of them)")]
    completed: bool,

    /// With --completed: the tool's result, an object with `content`; @FILE reads it, @- from stdin
    #[arg(
        long,
        value_name = "JSON|@FILE",
        requires = "completed",
        conflicts_with_all = ["failed", "not_executed", "still_unknown"],
        help_heading = "Verdict (one of them)"
    )]
    result: Option<String>,

    /// With --completed: the result is the stale answer that is kept of the entry; =SHA256, its
    /// first digits, says which of several
    #[arg(
        long,
        value_name = "SHA256",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        value_parser = values::parse_digest,
        requires = "completed",
        conflicts_with_all = ["result", "failed", "not_executed", "still_unknown"],
        help_heading = "Verdict (one of them)"
    )]
    result_stale: Option<String>,

    /// It failed, with --error or --error-stale; a call is answered with that error
    #[arg(
        long,
        group = "verdict",
        requires = "failure",
        help_heading = "Verdict (one of them)"
    )]
    failed: bool,

    /// With --failed: the JSON-RPC error, an object with `code` and `message`
    #[arg(
        long,
        value_name = "JSON|@FILE",
        group = "failure",
        requires = "failed",
        conflicts_with_all = ["completed", "not_executed", "still_unknown"],
        help_heading = "Verdict (one of them)"
    )]
    error: Option<String>,

    /// With --failed: the error is the stale answer that is kept of the entry; =SHA256 as above
    #[arg(
        long,
        value_name = "SHA256",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        value_parser = values::parse_digest,
        group = "failure",
        requires = "failed",
        conflicts_with_all = ["completed", "not_executed", "still_unknown"],
        help_heading = "Verdict (one of them)"
    )]
    error_stale: Option<String>,

    /// It was not carried out: the next call will run
    #[arg(long, group = "verdict", help_heading = "Verdict (one of them)")]
    not_executed: bool,

    /// It was looked into and is still not known: it stays in doubt
    #[arg(long, group = "verdict", help_heading = "Verdict (one of them)")]
    still_unknown: bool,

    /// Ask the policy's reconcile command of the tool; what is unclear stays in doubt
    #[arg(
        long,
        group = "verdict",
        conflicts_with = "force",
        help_heading = "Verdict (one of them)"
    )]
    auto: bool,

    /// With --auto: the policies [env: CHECKPOINT_POLICY]
    #[arg(long, value_name = "FILE", requires = "auto")]
    policy: Option<PathBuf>,

    #[command(flatten)]
    deed: DeedArgs,

    /// Take an entry from an owner that may still act, or one named by its seq from a question or a
    /// task that nobody will end; what still comes of it is kept as stale
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    consent: ConsentArgs,

    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &ResolveArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let path = settings::journal_required(args.journal.journal.clone(), env)?;
    if args.auto {
        return auto(args, &path, env);
    }
    let said = said(args)?;
    let deed = args.deed.deed_with_reason()?;
    let in_doubt = Filter {
        in_doubt: true,
        ..Filter::default()
    };
    let targets = args.targets.find(&path, in_doubt, env)?;
    let is_trial = args.consent.is_trial(&targets);
    let output = Output::new(args.journal.color);
    if matches!(said, Said::NotExecuted) && args.consent.may_ask(&targets) {
        for tool in targets.tools(|_| true) {
            let question = format!("the next call of {tool} at these entries will run");
            if hand::confirm(&question, tool)? == Some(false) {
                return Err(hand::not_typed("nothing was done", "the tool's name"));
            }
        }
    }
    let name = format!("resolve {}", said.name());
    let how = "--force fences it";
    let reports = hand::carry_out(&path, &targets, &name, how, &deed, is_trial, &|entry| {
        let named = (!targets.is_bulk).then_some(entry.fence);
        said.act(entry, args.force, named)
    })?;
    let exit = reports.print(&output, args.journal.form.form(), &|report| {
        said.words(report)
    })?;
    args.consent.require(&targets)?;
    Ok(exit)
}

/// Asks the reconcile command of each entry's tool.
fn auto(args: &ResolveArgs, path: &Path, env: Env<'_>) -> Result<Exit, CliError> {
    let file = args
        .policy
        .clone()
        .or_else(|| {
            env("CHECKPOINT_POLICY")
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        })
        .ok_or_else(|| {
            CliError::usage("--auto asks the command of a policy, and no policy was given")
                .hint("add --policy FILE, or set CHECKPOINT_POLICY")
        })?;
    let policies = policy_file::read(&file, ThreadId::Unasked)?;
    let deed = args.deed.deed()?;
    let in_doubt = Filter {
        in_doubt: true,
        ..Filter::default()
    };
    let targets = args.targets.find(path, in_doubt, env)?;
    let is_trial = args.consent.is_trial(&targets);
    let output = Output::new(args.journal.color);
    let reports = hand::ask(path, &targets, &policies, &deed, is_trial)?;
    let exit = reports.print(&output, args.journal.form.form(), &|report| {
        use super::view::Status;
        match report.status {
            Some(Status::Completed) => "a call is answered with what the command found".to_owned(),
            Some(Status::Voided | Status::InputRequired) => "the next call will run".to_owned(),
            _ if report.outcome == "would" => "the command would be asked".to_owned(),
            _ => "the command does not know: it stays in doubt".to_owned(),
        }
    })?;
    args.consent.require(&targets)?;
    Ok(exit)
}

/// The verdict as it was given, the same for each entry.
enum Said {
    Completed(Option<(Vec<u8>, bool)>),
    Failed(Vec<u8>),
    /// What a stale answer of each says.
    Adopted(Wanted),
    NotExecuted,
    StillUnknown,
}

fn said(args: &ResolveArgs) -> Result<Said, CliError> {
    for (digest, status) in [
        (&args.result_stale, Status::Completed),
        (&args.error_stale, Status::Failed),
    ] {
        if let Some(digest) = digest.clone() {
            return Ok(Said::Adopted(Wanted { status, digest }));
        }
    }
    if args.completed {
        let result = match &args.result {
            None => None,
            Some(given) => Some(verdict_json::result(&hand::payload("--result", given)?)?),
        };
        return Ok(Said::Completed(result));
    }
    if let (true, Some(given)) = (args.failed, &args.error) {
        return Ok(Said::Failed(verdict_json::error(&hand::payload(
            "--error", given,
        )?)?));
    }
    if args.not_executed {
        return Ok(Said::NotExecuted);
    }
    if args.still_unknown {
        return Ok(Said::StillUnknown);
    }
    Err(CliError::usage("no verdict was given")
        .hint("add --completed, --failed --error JSON, --not-executed or --still-unknown"))
}

impl Said {
    fn name(&self) -> &'static str {
        match self {
            Self::Completed(_) => "--completed",
            Self::Failed(_) => "--failed",
            Self::Adopted(wanted) if wanted.status == Status::Failed => "--failed --error-stale",
            Self::Adopted(_) => "--completed --result-stale",
            Self::NotExecuted => "--not-executed",
            Self::StillUnknown => "--still-unknown",
        }
    }

    /// Returns what is done to an entry; `named`: its fence, where its seq was given by itself.
    fn act(&self, entry: &Entry, forces: bool, named: Option<Fence>) -> Act {
        let is_open = matches!(entry.status, Status::InputRequired | Status::Accepted);
        let verdict = match self {
            Self::Adopted(wanted) => {
                return Act::Adopt {
                    wanted: wanted.clone(),
                    forces,
                    seen: named,
                };
            }
            Self::Completed(Some((body, is_error))) => Verdict::Completed {
                body: body.clone().into(),
                is_error: *is_error,
                provenance: Provenance::Operator,
            },
            Self::Completed(None) => Verdict::Completed {
                body: reply::synthetic_result(
                    &entry.tool,
                    entry.seq.0,
                    "an operator has confirmed",
                )
                .into(),
                is_error: false,
                provenance: Provenance::Synthetic,
            },
            Self::Failed(body) => Verdict::Failed {
                body: body.clone().into(),
                provenance: Provenance::Operator,
            },
            Self::NotExecuted => Verdict::NotExecuted,
            Self::StillUnknown => Verdict::StillUnknown,
        };
        Act::Resolve {
            verdict,
            forces,
            seen: named.filter(|_| is_open),
        }
    }

    fn words(&self, report: &Report) -> String {
        match self {
            Self::Completed(Some(_)) => "a call is answered with that result".to_owned(),
            Self::Completed(None) => {
                "a call is answered with a synthetic result, marked so".to_owned()
            }
            Self::Failed(_) => "a call is answered with that error".to_owned(),
            Self::Adopted(_) => {
                let back = match report.was {
                    Some(super::view::Status::Voided) => "; it no longer runs",
                    Some(super::view::Status::Completed | super::view::Status::Failed) => {
                        "; the verdict before is taken back"
                    }
                    _ => "",
                };
                format!("a call is answered with its stale answer{back}")
            }
            Self::NotExecuted if report.status == Some(super::view::Status::InputRequired) => {
                "the next round of the call will run".to_owned()
            }
            Self::NotExecuted => format!("the next call of seq {} will run", report.seq),
            Self::StillUnknown if report.status == Some(super::view::Status::Pending) => {
                "it stays in doubt; recorded".to_owned()
            }
            Self::StillUnknown => "it stays as it is; recorded".to_owned(),
        }
    }
}
