//! `checkpoint decide`: what would happen to a call now.
//!
//! Asks the guard itself, in a transaction that is dropped, so that the answer can't differ from
//! what a proxy does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::JournalArgs;
use super::error::{CliError, Kind};
use super::exit::Exit;
use super::hand;
use super::output::{Output, SCHEMA_VERSION, Tone};
use super::proxy_args::{self, OnDivergence};
use super::reading;
use super::settings::{self, Env};
use super::values;
use crate::guard::{Admission, AdmissionVerdict, Call, CallKey, Identified, Options, Why};
use crate::journal::JournalError;
use crate::json;
use crate::proxy::books;
use crate::rules::decide::{Decision, Letter, ROWS};
use crate::rules::entry::Entry;
use crate::rules::ids::{SEQ_MAX, Seq, WorkflowId};
use crate::rules::policy::{self, derive_key};
use crate::rules::signature::{Signature, signature};

/// How long a journal that others write to is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tell what would happen to a call now
///
/// Says whether it would run, be answered from the journal, wait or be refused, and by which row
/// of the decision table. Nothing is changed, and the upstream is not started.
#[derive(Args, Debug)]
pub(super) struct DecideArgs {
    /// Name of the tool
    #[arg(long, value_name = "NAME")]
    tool: String,

    /// Its `checkpoint_seq`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SEQ_MAX))]
    seq: Option<u64>,

    /// Its `checkpoint_key`
    #[arg(long, value_name = "KEY", value_parser = values::parse_id)]
    key: Option<String>,

    /// Its arguments; @FILE reads them, @- from stdin [default: none]
    #[arg(long, value_name = "JSON|@FILE")]
    args: Option<String>,

    /// Its workflow [env: CHECKPOINT_WORKFLOW_ID] [default: the journal's own, or its only one]
    #[arg(long, value_name = "ID", value_parser = values::parse_id)]
    workflow_id: Option<String>,

    /// The proxy's policy file [env: CHECKPOINT_POLICY]
    #[arg(long, value_name = "FILE", value_parser = proxy_args::path(), help_heading = PROXY)]
    policy: Option<PathBuf>,

    /// The proxy's run [env: CHECKPOINT_RUN_ID] [default: the workflow]
    #[arg(long, value_name = "ID", help_heading = PROXY)]
    run_id: Option<String>,

    /// The proxy's conversation [env: CHECKPOINT_THREAD_ID] [default: none]
    #[arg(long, value_name = "ID", help_heading = PROXY)]
    thread_id: Option<String>,

    /// What the proxy does about a divergence
    #[arg(
        long,
        value_name = "strict|fork",
        value_enum,
        default_value = "strict",
        hide_possible_values = true,
        help_heading = PROXY
    )]
    on_divergence: OnDivergence,

    #[command(flatten)]
    journal: JournalArgs,
}

const PROXY: &str = "Flags of the proxy that change decisions";

pub(super) fn run(args: &DecideArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let path = settings::journal_required(args.journal.journal.clone(), env)?;
    let arguments = match &args.args {
        None => None,
        Some(given) => Some(arguments(&hand::payload("--args", given)?)?),
    };
    let signature = signature(&args.tool, arguments.as_deref(), false)
        .map_err(|duplicate| bad_args(&duplicate.to_string(), KEEP_ONE))?;
    let thread_id = settings::id(
        "--thread-id <ID>",
        args.thread_id.clone(),
        "CHECKPOINT_THREAD_ID",
        env,
    )?;
    let policies = settings::policies(args.policy.clone(), thread_id.is_some(), env)?;
    let policy = policies.for_tool(&args.tool);
    let output = Output::new(args.journal.color);
    if !policy.is_journaled {
        // The journal is not asked, whatever it holds.
        return show(&Foreseen::relayed(&args.tool, signature), &output, args);
    }
    let named = settings::workflow_id(args.workflow_id.clone(), env)?.map(WorkflowId);
    let reader = reading::open(&path)?;
    let workflow = match named {
        Some(workflow) => workflow,
        None => reader.usual_workflow().map_err(reading::unusable)?,
    };
    let workflows = reader.workflow_ids().map_err(reading::unusable)?;
    drop(reader);
    if !workflows.is_empty() && !workflows.contains(&workflow) {
        // A proxy would make it, so this is no error; but a name that was mistyped looks the same.
        output.note(&format!(
            "there is no workflow {workflow} yet; `checkpoint ls` lists the entries of all there are"
        ));
    }
    let given = args.key.clone().map(|text| CallKey {
        text,
        is_derived: false,
    });
    let key = match given {
        Some(key) => Some(key),
        None => derive_key(policy, arguments.as_deref(), &signature, None)
            .map_err(|invalid| {
                CliError::new(Kind::Failure, "the call would be refused: invalid_key")
                    .because(invalid)
                    .hint(
                        "its policy makes a key of the arguments: give them all with --args, or \
                         the key itself with --key",
                    )
            })?
            .map(|text| CallKey {
                text,
                is_derived: true,
            }),
    };
    let call = Call {
        tool: args.tool.clone(),
        signature,
        arguments: arguments.map(Into::into),
        workflow: None,
        seq: args.seq.map(Seq),
        key,
        call_id: None,
        round: None,
        protocol_version: None,
        tool_revision: None,
        traceparent: None,
        policy: Arc::clone(policy),
        policy_record: None,
        joined: None,
        was_forwarded: false,
        gave_up: None,
    };
    let journal = reading::journal_path(&path)?;
    let options = Options {
        workflow: Some(workflow),
        run_id: settings::id(
            "--run-id <ID>",
            args.run_id.clone(),
            "CHECKPOINT_RUN_ID",
            env,
        )?,
        thread_id,
        on_divergence: match args.on_divergence {
            OnDivergence::Strict => policy::OnDivergence::Strict,
            OnDivergence::Fork => policy::OnDivergence::Fork,
        },
        ..Options::default()
    };
    let mut guard = books::open_to_foresee(&journal, options).map_err(reading::unusable)?;
    let start = Instant::now();
    let admission = loop {
        match guard.foresee(&call, books::now()) {
            Err(JournalError::Busy) if start.elapsed() < PATIENCE => {
                // Nothing tells when the other writer is done.
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => {
                return Err(reading::failed("the journal can't be used", &error));
            }
            Ok(admission) => break admission,
        }
    };
    show(
        &Foreseen::new(&args.tool, signature, &admission),
        &output,
        args,
    )
}

fn show(foreseen: &Foreseen, output: &Output, args: &DecideArgs) -> Result<Exit, CliError> {
    output.document(args.journal.form.form(), foreseen, |look| {
        let head = look.paint(&foreseen.would.to_uppercase(), foreseen.tone().style());
        format!("{head}  {}", foreseen.render())
    })?;
    Ok(Exit::Ok)
}

/// What to do about a member that is there twice.
const KEEP_ONE: &str = "keep one of the two: a call with both would be refused";

/// What arguments look like.
const EXAMPLE: &str = "give the arguments of the call as one JSON object, for example \
                       --args '{\"order_id\": \"A-1\"}', or --args @FILE";

/// Returns the arguments' bytes, checked as those of a call are.
fn arguments(given: &[u8]) -> Result<Vec<u8>, CliError> {
    let body = json::trim(json::remove_byte_order_mark(given));
    if let Err(invalid) = json::check(body) {
        return Err(bad_args(&format!("it is not JSON ({invalid})"), EXAMPLE));
    }
    if !matches!(json::kind(body), json::Kind::Object | json::Kind::Null) {
        return Err(bad_args("it is no JSON object", EXAMPLE));
    }
    Ok(body.to_vec())
}

fn bad_args(why: &str, hint: &str) -> CliError {
    CliError::usage("--args can't be used")
        .because(why)
        .hint(hint)
}

/// What would happen; the JSON document.
#[derive(Debug, Serialize)]
struct Foreseen {
    schema_version: u32,
    /// `run`, `replay`, `join`, `refuse`, or `relay`: without an entry, as its policy says.
    would: &'static str,
    /// The kind of the refusal; `null` where there is none.
    refusal: Option<&'static str>,
    /// The row of the decision table, such as `@E`.
    letter: String,
    /// What that row says.
    row: &'static str,
    workflow_id: String,
    branch: u32,
    /// Where the call stands or would stand.
    seq: Option<u64>,
    tool: String,
    /// How the entry was found: seq, key, round, guard, new.
    identified: &'static str,
    /// The number of the attempt that would run.
    attempt: Option<u32>,
    /// The status of the entry as it is.
    status: Option<&'static str>,
    /// JSON pointers at which the arguments differ.
    diff: Vec<String>,
    /// What else is known.
    reason: Option<String>,
    /// The call's signature under the plain scheme.
    signature: String,
}

impl Foreseen {
    /// A call whose policy says that it is not journaled.
    fn relayed(tool: &str, signature: Signature) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            would: "relay",
            refusal: None,
            letter: String::new(),
            row: "",
            workflow_id: String::new(),
            branch: 0,
            seq: None,
            tool: tool.to_owned(),
            identified: "policy",
            attempt: None,
            status: None,
            diff: Vec::new(),
            reason: None,
            signature: signature.to_string(),
        }
    }

    fn new(tool: &str, signature: Signature, admission: &Admission) -> Self {
        let of_entry = |entry: Option<&Entry>| entry.map(|entry| entry.status.name());
        let mut foreseen = Self {
            would: "run",
            workflow_id: admission.workflow.0.clone(),
            branch: admission.branch,
            identified: match admission.identified {
                Identified::Seq => "seq",
                Identified::Key => "key",
                Identified::Round => "round",
                Identified::Cursor => "cursor",
                Identified::Guard => "guard",
                Identified::New => "new",
            },
            ..Self::relayed(tool, signature)
        };
        let letter = match &admission.verdict {
            AdmissionVerdict::Run(ticket, letter) => {
                foreseen.seq = Some(ticket.seq.0);
                foreseen.attempt = Some(ticket.attempt);
                *letter
            }
            AdmissionVerdict::Replay(replay) => {
                foreseen.would = "replay";
                foreseen.seq = Some(replay.entry.seq.0);
                foreseen.status = of_entry(Some(&replay.entry));
                replay.letter
            }
            AdmissionVerdict::Join { ticket, letter, .. } => {
                foreseen.would = "join";
                foreseen.seq = Some(ticket.seq.0);
                foreseen.status = Some("PENDING");
                *letter
            }
            AdmissionVerdict::Refuse(refused) => {
                foreseen.would = "refuse";
                foreseen.refusal = Some(refusal(refused.why));
                foreseen.seq = refused.seq.map(|seq| seq.0);
                foreseen.status = of_entry(refused.entry.as_ref());
                foreseen.diff = refused.diff.clone();
                foreseen.reason = refused.reason.clone();
                refused.letter
            }
        };
        foreseen.letter = letter.to_string();
        foreseen.row = row(letter);
        foreseen
    }

    fn tone(&self) -> Tone {
        match self.would {
            "refuse" => Tone::Alarm,
            "run" => Tone::Good,
            _ => Tone::Plain,
        }
    }

    fn render(&self) -> String {
        use super::escape::escape;
        if self.would == "relay" {
            return "it would be relayed without an entry, as its policy says\n".to_owned();
        }
        let what = match (self.would, self.refusal) {
            ("run", _) => match self.attempt {
                Some(attempt @ 2..) => format!("it would run, as attempt {attempt}"),
                Some(_) | None => "it would run, as a new call".to_owned(),
            },
            ("replay", _) => "it would be answered from the journal".to_owned(),
            ("join", _) => "it would wait for the call that runs".to_owned(),
            (_, Some(kind)) => format!("it would be refused: {kind}"),
            (_, None) => "it would be refused".to_owned(),
        };
        let mut text = format!("{what}\n  row        {} {}\n", self.letter, self.row);
        let mut field = |name: &str, value: &str| {
            text.push_str(&format!("  {name:9}  {}\n", escape(value)));
        };
        if let Some(seq) = self.seq {
            field("seq", &format!("{seq} (found by {})", self.identified));
        }
        field(
            "workflow",
            &format!("{} branch {}", self.workflow_id, self.branch),
        );
        if let Some(status) = self.status {
            field("status", status);
        }
        if let Some(reason) = &self.reason {
            field("reason", reason);
        }
        if !self.diff.is_empty() {
            field("differs", &self.diff.join(" "));
        }
        text
    }
}

/// Returns the kind with which a call is refused (contract, section 8).
const fn refusal(why: Why) -> &'static str {
    match why {
        Why::LimitReached => "limit_reached",
        Why::StaleGeneration => "stale_generation",
        Why::Table(decision) => match decision {
            Decision::Diverge | Decision::Fork => "divergence",
            Decision::InFlight => "in_flight",
            Decision::InDoubt => "in_doubt",
            Decision::Abandon => "abandoned",
            Decision::Deny => "denied",
            Decision::Expired => "result_expired",
            Decision::Quarantine
            | Decision::Proceed
            | Decision::Replay
            | Decision::Join
            | Decision::Retry
            | Decision::NextRound => "quarantined",
        },
    }
}

fn row(letter: Letter) -> &'static str {
    ROWS.iter()
        .find(|(name, _)| *name == letter.0)
        .map_or("", |(_, says)| says)
}
