//! `checkpoint export`: entries in the shape in which something else takes them.
//!
//! Two passes: the first finds out whether every entry has an outcome, and writes nothing to
//! stdout; only then does the second write. So a reader of the output never sees half of it
//! because an entry was in doubt, and a journal of any size is exported in little memory.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use sha2::{Digest as _, Sha256};

use super::error::{CliError, Kind};
use super::exit::Exit;
use super::hand::user;
use super::output::Output;
use super::progress::ProgressLine;
use super::proxy_args;
use super::reading::{self, journal_path, unusable};
use super::settings::{self, Env};
use super::values;
use super::verify::counted;
use super::view::Time;
use crate::guard::closing::{self, Closing};
use crate::journal::JournalError;
use crate::journal::reader::{Found, Reader, Selection, Whole};
use crate::json;
use crate::mcp::outcome::read_error;
use crate::proxy::books;
use crate::rules::entry::{Entry, Status};
use crate::rules::ids::{BranchId, Fence, Micros, SEQ_MAX, Seq, WorkflowId};
use format::{Came, Failure, Item};

mod format;
mod rows;

/// How many troubles are told before the rest is counted.
const TROUBLES_MAX: usize = 10;

/// Output is written in pieces of about this size, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// How long a proxy that writes is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Print entries as tool results for a provider, or as rows
///
/// mcp, openai-chat, openai-responses and anthropic print one JSON array in call order, ready to be
/// put into a conversation. It is all or nothing: while an entry has no outcome nothing is printed
/// and the code is 1, unless --close-pending gives it one that says that nobody knows. That is
/// recorded, so that a later export says the same, and the entry itself stays in doubt. jsonl and
/// csv print whatever there is, one entry a line.
#[derive(Args, Debug)]
pub(super) struct ExportArgs {
    /// mcp, openai-chat, openai-responses, anthropic, jsonl or csv
    #[arg(long, value_name = "FORMAT", value_enum, hide_possible_values = true)]
    format: Format,

    /// Only the entries at these places
    #[arg(
        long,
        value_name = "N",
        num_args = 1..,
        value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=SEQ_MAX),
        help_heading = "Entries"
    )]
    seq: Vec<u64>,

    /// Only the calls with these ids of the client's
    #[arg(
        long,
        value_name = "ID",
        num_args = 1..,
        value_parser = values::parse_id,
        help_heading = "Entries"
    )]
    call_id: Vec<String>,

    /// Only this workflow [env: CHECKPOINT_WORKFLOW_ID]
    #[arg(long, value_name = "ID", value_parser = values::parse_id, help_heading = "Entries")]
    workflow_id: Option<String>,

    /// Only this branch [default: the active one; for jsonl and csv all]
    #[arg(long, value_name = "N", help_heading = "Entries")]
    branch: Option<u32>,

    /// Give calls without an outcome one: cancelled or error
    #[arg(
        long,
        value_name = "HOW",
        value_enum,
        hide_possible_values = true,
        help_heading = "Calls without an outcome"
    )]
    close_pending: Option<Close>,

    /// Code of that outcome [default: 7703]
    #[arg(
        long,
        value_name = "CODE",
        requires = "close_pending",
        allow_hyphen_values = true,
        value_parser = values::parse_id,
        help_heading = "Calls without an outcome"
    )]
    close_code: Option<String>,

    /// Message of that outcome
    #[arg(
        long,
        value_name = "TEXT",
        requires = "close_pending",
        value_parser = parse_message,
        help_heading = "Calls without an outcome"
    )]
    close_message: Option<String>,

    /// Journal to read [env: CHECKPOINT_JOURNAL]
    #[arg(long, value_name = "PATH", value_parser = proxy_args::path())]
    journal: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Mcp,
    OpenaiChat,
    OpenaiResponses,
    Anthropic,
    Jsonl,
    Csv,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Close {
    Cancelled,
    Error,
}

/// The most bytes of a message.
const MESSAGE_BYTES_MAX: usize = 4_096;

fn parse_message(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("expected text that is not empty".to_owned()),
        1..=MESSAGE_BYTES_MAX => Ok(text.to_owned()),
        bytes => Err(format!(
            "expected at most {MESSAGE_BYTES_MAX} bytes, not {bytes}"
        )),
    }
}

pub(super) fn run(args: &ExportArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let path = settings::journal_required(args.journal.clone(), env)?;
    let workflow = settings::workflow_id(args.workflow_id.clone(), env)?.map(WorkflowId);
    let mut reader = reading::open(&path)?;
    let output = Output::plain();
    let shape: fn(&Item) -> String = match args.format {
        Format::Mcp => format::mcp,
        Format::OpenaiChat => format::openai_chat,
        Format::OpenaiResponses => format::openai_responses,
        Format::Anthropic => format::anthropic,
        Format::Jsonl => {
            let chosen = choose_rows(&mut reader, args, workflow.as_ref())?;
            return rows::write_jsonl(&mut reader, &chosen, output.lines());
        }
        Format::Csv => {
            let chosen = choose_rows(&mut reader, args, workflow.as_ref())?;
            return rows::write_csv(&mut reader, &chosen, &output);
        }
    };
    let chosen = choose(&mut reader, args, workflow.as_ref())?;
    let open = survey(&mut reader, &chosen, args)?;
    if !open.is_empty() {
        let closing = closing(args);
        close_all(&path, &open, &closing, &user(), &output)?;
    }
    write(&mut reader, &chosen, shape, &output)?;
    Ok(Exit::Ok)
}

/// An entry that is to be exported: its workflow, the branch to look from, its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chosen {
    workflow: std::rc::Rc<WorkflowId>,
    branch: Option<u32>,
    seq: Seq,
}

/// Reads all of the entries in one snapshot, in their order.
fn each(
    reader: &mut Reader,
    chosen: &[Chosen],
    stage: &str,
    mut take: impl FnMut(&Chosen, Option<Whole>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    // What is printed to the same terminal says enough.
    let mut line = (!std::io::stdout().is_terminal()).then(ProgressLine::new);
    let mut index = 0;
    let mut result = Ok(());
    let places = chosen
        .iter()
        .map(|one| (&*one.workflow, one.branch, one.seq));
    let read = reader.each_whole(places, |whole| {
        if let Some(line) = &mut line {
            line.show(stage, index as u64, chosen.len() as u64);
        }
        result = take(&chosen[index], whole);
        index += 1;
        match result {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    drop(line);
    read.map_err(unusable)?;
    result
}

/// Returns the entries that are asked for, in call order.
fn choose(
    reader: &mut Reader,
    args: &ExportArgs,
    workflow: Option<&WorkflowId>,
) -> Result<Vec<Chosen>, CliError> {
    let by_name = !args.seq.is_empty();
    let workflows = match workflow {
        Some(workflow) => vec![workflow.clone()],
        None if by_name => vec![reader.usual_workflow().map_err(unusable)?],
        None => reader.workflow_ids().map_err(unusable)?,
    };
    let is_wanted = |entry: &Entry| {
        let by_seq = args.seq.contains(&entry.seq.0);
        let by_id = entry
            .call_id
            .as_ref()
            .is_some_and(|id| args.call_id.contains(id));
        (args.seq.is_empty() && args.call_id.is_empty()) || by_seq || by_id
    };
    let mut chosen = Vec::new();
    let mut seen: Vec<String> = Vec::new();
    for workflow in workflows {
        let workflow = std::rc::Rc::new(workflow);
        reader
            .each_of_line(&workflow, args.branch, |found| {
                let (seq, is_in, call_id) = match &found {
                    Found::Whole { entry, .. } => {
                        (entry.seq, is_wanted(entry), entry.call_id.clone())
                    }
                    Found::Torn(torn) => {
                        let all = args.seq.is_empty() && args.call_id.is_empty();
                        (Seq(torn.seq), all || args.seq.contains(&torn.seq), None)
                    }
                };
                if is_in {
                    chosen.push(Chosen {
                        workflow: std::rc::Rc::clone(&workflow),
                        branch: args.branch,
                        seq,
                    });
                    if !args.call_id.is_empty() {
                        seen.extend(call_id);
                    }
                }
            })
            .map_err(unusable)?;
    }
    missing(args, &chosen, &seen)?;
    Ok(chosen)
}

/// Returns the entries of every branch, unless one is asked for.
fn choose_rows(
    reader: &mut Reader,
    args: &ExportArgs,
    workflow: Option<&WorkflowId>,
) -> Result<Vec<Chosen>, CliError> {
    let workflow = match workflow {
        None if !args.seq.is_empty() => Some(reader.usual_workflow().map_err(unusable)?),
        other => other.cloned(),
    };
    let selection = Selection {
        workflow,
        branch: args.branch,
        ..Selection::default()
    };
    let mut chosen: Vec<Chosen> = Vec::new();
    let mut seen = Vec::new();
    reader
        .each(&selection, |place, found| {
            let (seq, call_id) = match &found {
                Found::Whole { entry, .. } => (entry.seq, entry.call_id.clone()),
                Found::Torn(torn) => (Seq(torn.seq), torn.call_id.clone()),
            };
            let by_id = call_id.as_ref().is_some_and(|id| args.call_id.contains(id));
            let all = args.seq.is_empty() && args.call_id.is_empty();
            if all || by_id || args.seq.contains(&seq.0) {
                let workflow = match chosen.last() {
                    Some(last) if *last.workflow == place.workflow => {
                        std::rc::Rc::clone(&last.workflow)
                    }
                    _ => std::rc::Rc::new(place.workflow.clone()),
                };
                chosen.push(Chosen {
                    workflow,
                    branch: Some(place.branch),
                    seq,
                });
                if by_id {
                    seen.extend(call_id);
                }
            }
            ControlFlow::Continue(())
        })
        .map_err(unusable)?;
    missing(args, &chosen, &seen)?;
    Ok(chosen)
}

/// Says which of the entries that were named are not there.
fn missing(args: &ExportArgs, chosen: &[Chosen], seen: &[String]) -> Result<(), CliError> {
    let seqs = args
        .seq
        .iter()
        .filter(|seq| !chosen.iter().any(|one| one.seq.0 == **seq))
        .map(|seq| format!("no entry {seq}"));
    let ids = args
        .call_id
        .iter()
        .filter(|id| !seen.contains(id))
        .map(|id| format!("no call with the id {id}"));
    let missing: Vec<String> = seqs.chain(ids).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(
        CliError::new(Kind::Failure, format!("there is {}", listed(&missing)))
            .hint("`checkpoint ls` lists those there are, of every workflow and branch"),
    )
}

/// A call without an outcome.
struct Open {
    place: (BranchId, Seq),
    fence: Fence,
    seq: u64,
    recorded: Option<Closing>,
}

/// Looks at every entry; returns those that must be closed, or says why nothing is exported.
fn survey(
    reader: &mut Reader,
    chosen: &[Chosen],
    args: &ExportArgs,
) -> Result<Vec<Open>, CliError> {
    let mut undecided = Troubles::default();
    let mut others = Troubles::default();
    let mut open = Vec::new();
    let mut ids: BTreeMap<[u8; 16], u64> = BTreeMap::new();
    each(reader, chosen, "looking at entries", |one, whole| {
        let Some(whole) = whole else {
            others.add(format!("entry {} is not there any more", one.seq));
            return Ok(());
        };
        let (seq, told) = (one.seq, outcome_of(&whole));
        if args.format != Format::Mcp {
            match &told.call_id {
                None => others.add(format!("entry {seq} has no call id")),
                Some(id) => {
                    let digest: [u8; 32] = Sha256::digest(id.as_bytes()).into();
                    let mut short = [0; 16];
                    short.copy_from_slice(&digest[..16]);
                    if let Some(first) = ids.insert(short, seq.0) {
                        others.add(format!("entries {first} and {seq} have the same call id"));
                    }
                }
            }
        }
        match told.outcome {
            Told::Came(_) => {}
            Told::Damaged(why) => others.add(format!("entry {seq} is damaged: {why}")),
            Told::Open {
                words,
                place,
                fence,
                recorded,
            } => {
                if recorded.is_none() && args.close_pending.is_none() {
                    undecided.add(format!("entry {seq} ({words})"));
                }
                if recorded.is_none() || args.close_pending.is_some() {
                    open.push(Open {
                        place,
                        fence,
                        seq: seq.0,
                        recorded,
                    });
                }
            }
        }
        Ok(())
    })?;
    if !others.is_empty() {
        return Err(
            CliError::new(Kind::Failure, format!("nothing is exported: {others}")).hint(
                "choose the entries with --seq or --call-id; mcp, jsonl and csv need no call ids",
            ),
        );
    }
    if !undecided.is_empty() {
        return Err(CliError::new(
            Kind::Failure,
            format!("nothing is exported, as no outcome is known of {undecided}"),
        )
        .hint(
            "settle them with `checkpoint resolve`, or add --close-pending cancelled to say in \
             the export that nobody knows",
        ));
    }
    Ok(open)
}

/// Troubles, of which the first few are told.
#[derive(Default)]
struct Troubles {
    told: Vec<String>,
    count: usize,
}

impl Troubles {
    fn add(&mut self, what: String) {
        self.count += 1;
        if self.told.len() < TROUBLES_MAX {
            self.told.push(what);
        }
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl std::fmt::Display for Troubles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&listed(&self.told))?;
        match self.count - self.told.len() {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}

fn listed(what: &[String]) -> String {
    what.join(", ")
}

/// What an entry has to tell.
struct Outcome {
    call_id: Option<String>,
    tool: String,
    provenance: String,
    outcome: Told,
}

enum Told {
    Came(Came),
    Open {
        words: &'static str,
        place: (BranchId, Seq),
        fence: Fence,
        recorded: Option<Closing>,
    },
    Damaged(String),
}

/// Returns what came of an entry. Never an undecided one as a success.
fn outcome_of(whole: &Whole) -> Outcome {
    let (entry, damage, is_live) = match &whole.found {
        Found::Torn(torn) => {
            return Outcome {
                call_id: torn.call_id.clone(),
                tool: torn.tool.clone(),
                provenance: String::new(),
                outcome: Told::Damaged(torn.why.clone()),
            };
        }
        Found::Whole {
            entry,
            damage,
            is_live,
        } => (entry, damage, *is_live),
    };
    let outcome = match damage {
        Some(damage) => Told::Damaged((*damage).to_owned()),
        None => told(whole, entry, is_live),
    };
    let provenance = match (&outcome, entry.provenance) {
        (Told::Open { .. }, _) => "synthetic".to_owned(),
        (_, Some(provenance)) => provenance.name().to_owned(),
        (_, None) => "synthetic".to_owned(),
    };
    Outcome {
        call_id: entry.call_id.clone(),
        tool: entry.tool.clone(),
        provenance,
        outcome,
    }
}

fn told(whole: &Whole, entry: &Entry, is_live: bool) -> Told {
    let current = whole
        .attempts
        .iter()
        .find(|attempt| attempt.fence == entry.fence);
    let last = current.and_then(|attempt| attempt.outcomes.last());
    let body = last.and_then(|outcome| outcome.body.clone());
    let open = |words| Told::Open {
        words,
        place: (entry.branch, entry.seq),
        fence: entry.fence,
        recorded: Closing::among(&whole.events, entry.fence),
    };
    let ours = |code: &str, message: &str, side_effect_state| {
        Told::Came(Came::Failure(Failure {
            code: code.to_owned(),
            message: json::quote(message),
            side_effect_state,
            provenance: Some("synthetic"),
        }))
    };
    match (entry.status, body) {
        (Status::Completed, Some(body)) => Told::Came(Came::Result(body)),
        (Status::Completed, None) => ours(
            "7706",
            "checkpoint: result-expired: the call was completed and its result is no longer kept; \
             it must not be repeated",
            "completed",
        ),
        (Status::Failed, Some(body)) => {
            let error = read_error(&body);
            let member = |name| {
                json::last_member(&body, name)
                    .and_then(|member| String::from_utf8(member.value.to_vec()).ok())
            };
            Told::Came(Came::Failure(Failure {
                code: member("code").unwrap_or_else(|| "null".to_owned()),
                message: if error.message.is_empty() {
                    json::quote_bytes(&body)
                } else {
                    json::quote(&error.message)
                },
                side_effect_state: "unknown",
                provenance: None,
            }))
        }
        (Status::Failed, None) => ours(
            "7706",
            "checkpoint: result-expired: the call failed and its error is no longer kept; what it \
             had done by then is not known",
            "unknown",
        ),
        // It was reopened: its old outcome no longer stands, and there is no new one.
        (Status::Voided, _) if last.is_some() => open("reopened"),
        (Status::Voided, _) => ours(
            "7708",
            "checkpoint: not executed: this call is known not to have run",
            "not_started",
        ),
        (Status::Denied, _) => ours(
            "7709",
            "checkpoint: denied: this call was not allowed and did not run",
            "not_started",
        ),
        (Status::Pending, _) if is_live && entry.unanswered.is_none() => open("running"),
        (Status::Pending, _) => open("in doubt"),
        (Status::InputRequired, _) => open("waiting for input"),
        (Status::Accepted, _) => open("a task whose end was not seen"),
    }
}

/// Returns the outcome that calls without one are given.
fn closing(args: &ExportArgs) -> Closing {
    let (close, default) = match args.close_pending {
        Some(Close::Error) => (
            "error",
            "checkpoint: the call ended without an outcome; it may or may not have taken effect, \
             so verify before it is made again",
        ),
        Some(Close::Cancelled) | None => (
            "cancelled",
            "checkpoint: the call was cut off; it may or may not have taken effect, so verify \
             before it is made again",
        ),
    };
    let code = args.close_code.as_deref().unwrap_or("7703");
    let is_number = code
        .parse::<i64>()
        .is_ok_and(|number| number.to_string() == code);
    Closing {
        close: close.to_owned(),
        code: if is_number {
            code.to_owned()
        } else {
            json::quote(code)
        },
        message: args
            .close_message
            .clone()
            .unwrap_or_else(|| default.to_owned()),
    }
}

/// Records a closing for each call that has none.
fn close_all(
    path: &std::path::Path,
    open: &[Open],
    closing: &Closing,
    by: &str,
    output: &Output,
) -> Result<(), CliError> {
    let mut journal = books::open_for_verdicts(&journal_path(path)?)
        .map_err(unusable)?
        .journal;
    let mut closed = 0;
    for one in open {
        if let Some(recorded) = &one.recorded {
            if recorded != closing {
                output.note(&format!(
                    "entry {} was closed by an earlier export and stays so: {} ({})",
                    one.seq, recorded.message, recorded.close
                ));
            }
            continue;
        }
        let since = Instant::now();
        loop {
            let now = Micros(Time::now().0);
            match closing::close(&mut journal, one.place, one.fence, closing, by, now) {
                Ok(_) => break,
                // Nothing tells when the other one is done.
                Err(JournalError::Busy) if since.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => {
                    return Err(reading::failed(
                        format!("nothing is exported: entry {} can't be closed", one.seq),
                        &error,
                    ));
                }
            }
        }
        closed += 1;
    }
    if closed > 0 {
        output.note(&format!(
            "{} closed in the export only; the journal still has no outcome of {}",
            counted(closed, "call was", "calls were"),
            if closed == 1 { "it" } else { "them" }
        ));
    }
    Ok(())
}

/// Writes all of it.
fn write(
    reader: &mut Reader,
    chosen: &[Chosen],
    shape: fn(&Item) -> String,
    output: &Output,
) -> Result<(), CliError> {
    let mut piece = String::from("[");
    let mut is_first = true;
    each(reader, chosen, "entries", |one, whole| {
        let Some(item) = whole.and_then(|whole| item(one, &whole)) else {
            return Err(CliError::new(
                Kind::Failure,
                format!("entry {} changed while it was exported", one.seq),
            )
            .hint("what was printed is not whole: run it again"));
        };
        piece.push_str(if is_first { "\n" } else { ",\n" });
        is_first = false;
        piece.push_str(&super::escape::escape_json(&shape(&item)));
        if piece.len() >= PIECE_BYTES {
            output.bytes(piece.as_bytes())?;
            piece.clear();
        }
        Ok(())
    })?;
    piece.push_str(if chosen.is_empty() { "]\n" } else { "\n]\n" });
    output.bytes(piece.as_bytes())
}

/// Returns an entry ready to be written; `None` if it has nothing to tell (any more).
fn item(one: &Chosen, whole: &Whole) -> Option<Item> {
    let told = outcome_of(whole);
    let came = match told.outcome {
        Told::Came(came) => came,
        Told::Open { recorded, .. } => {
            let closing = recorded?;
            Came::Failure(Failure {
                code: closing.code,
                message: json::quote(&closing.message),
                side_effect_state: "unknown",
                provenance: Some("synthetic"),
            })
        }
        Told::Damaged(_) => return None,
    };
    Some(Item {
        seq: one.seq.0,
        workflow_id: one.workflow.0.clone(),
        tool: told.tool,
        call_id: told.call_id,
        provenance: told.provenance,
        came,
    })
}
