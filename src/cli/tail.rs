//! `checkpoint tail`: what happens, as it happens.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::JournalArgs;
use super::error::CliError;
use super::escape::escape;
use super::exit::Exit;
use super::output::{Form, Look, Output, Times, Tone};
use super::reading;
use super::settings::{self, Env};
use super::values;
use super::view::{Time, took};
use super::words::words;
use crate::guard::stale;
use crate::journal::follow::{Follower, Happening, Start, What};
use crate::proxy::books;
use crate::rules::entry::Status;

/// How often the journal is looked at.
const PAUSE: Duration = Duration::from_millis(200);

/// Follow what happens
///
/// A line for each thing that happens, from whichever proxy: calls that start, end, or are cut
/// off, and every event. Runs until it is interrupted. With --json, too, one object a line.
#[derive(Args, Debug)]
pub(super) struct TailArgs {
    /// Begin with about this many of the newest things
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=10_000))]
    lines: u32,

    /// Begin with the journal's first
    #[arg(long, conflicts_with = "lines")]
    from_start: bool,

    /// End once all that has happened is told
    #[arg(long)]
    no_follow: bool,

    /// Only this workflow [default: all, whatever CHECKPOINT_WORKFLOW_ID says]
    #[arg(long, value_name = "ID", value_parser = values::parse_id)]
    workflow_id: Option<String>,

    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &TailArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let path = settings::journal_required(args.journal.journal.clone(), env)?;
    let start = match (args.from_start, args.lines) {
        (true, _) => Start::Beginning,
        (false, 0) => Start::Now,
        (false, lines) => Start::Last(lines),
    };
    let reader = reading::open(&path)?;
    let own = reader.usual_workflow().map_err(reading::unusable)?.0;
    let output = Output::new(args.journal.color);
    // What follows has no end, so that one document of it could not be read: both are lines.
    let form = args.journal.form.form();
    let mut json = output.lines();
    let mut follower = Follower::new(reader, start).map_err(reading::unusable)?;
    // About as many as were asked for: attempts and events are counted apart.
    let mut first_max = match start {
        Start::Last(lines) => Some(lines as usize),
        Start::Now | Start::Beginning => None,
    };
    loop {
        let mut lines: Vec<Line> = match follower.look(books::now()) {
            Ok(told) => told.iter().map(Line::new).collect(),
            // A writer is in the way just now; nothing was told, so nothing is lost.
            Err(error) if error.is_busy() => Vec::new(),
            Err(error) => return Err(reading::unusable(error)),
        };
        if let Some(wanted) = &args.workflow_id {
            lines.retain(|line| line.is_about(wanted));
        }
        if let Some(max) = first_max.take() {
            lines.drain(..lines.len().saturating_sub(max));
        }
        for line in &lines {
            match form {
                Form::Text => output.data(&line.render(output.look(), &own))?,
                Form::Json | Form::JsonLines => json.add(line)?,
            }
        }
        json.flush()?;
        if follower.is_behind() {
            continue;
        }
        if args.no_follow || output.is_closed_within(PAUSE) {
            return Ok(Exit::Ok);
        }
    }
}

/// One thing that happened; its JSON document.
#[derive(Debug, Serialize)]
struct Line {
    at: Time,
    /// `started`, `completed`, `failed`, `input_required`, `accepted`, `in_doubt`, or an event's
    /// kind.
    what: String,
    workflow_id: Option<String>,
    branch: Option<u64>,
    seq: Option<u64>,
    tool: Option<String>,
    attempt: Option<u64>,
    round: Option<u64>,
    fence: Option<u64>,
    session: Option<String>,
    is_error: Option<bool>,
    provenance: Option<String>,
    /// From the reservation to the outcome, in microseconds.
    took_us: Option<u64>,
    letter: Option<String>,
    count: Option<u64>,
    detail: Option<Value>,
}

impl Line {
    fn new(happening: &Happening) -> Self {
        let entry = happening.entry.as_ref();
        let mut line = Self {
            at: Time(happening.at.0),
            what: String::new(),
            workflow_id: entry.map(|about| about.place.workflow.0.clone()),
            branch: entry.map(|about| about.place.branch.into()),
            seq: entry.map(|about| about.seq.0),
            tool: entry.map(|about| about.tool.clone()),
            attempt: entry.and_then(|about| about.attempt),
            round: None,
            fence: entry.and_then(|about| about.fence).map(|fence| fence.0),
            session: entry
                .and_then(|about| about.session)
                .map(|session| session.to_string()),
            is_error: None,
            provenance: None,
            took_us: None,
            letter: None,
            count: None,
            detail: None,
        };
        match &happening.what {
            What::Started { round } => {
                line.what = "started".to_owned();
                line.round = Some(*round);
            }
            What::Settled {
                status,
                is_error,
                provenance,
                started_at,
            } => {
                line.what = status.map_or_else(
                    || "unreadable".to_owned(),
                    |status| status.name().to_lowercase(),
                );
                line.is_error = (*status == Some(Status::Completed)).then_some(*is_error);
                line.provenance = Some(provenance.clone());
                line.took_us = Some(happening.at.since(*started_at));
            }
            What::InDoubt { reason } => {
                line.what = "in_doubt".to_owned();
                line.detail = reason
                    .as_ref()
                    .map(|why| serde_json::json!({"reason": why}));
            }
            What::Event {
                kind,
                letter,
                detail,
                count,
            } => {
                line.what.clone_from(kind);
                line.letter = letter.as_ref().map(|letter| format!("@{letter}"));
                line.count = Some(*count);
                line.detail = detail
                    .as_ref()
                    .map(|text| serde_json::from_str(text).unwrap_or_else(|_| text.clone().into()));
                // What was answered is `show`'s to tell.
                if let Some(Value::Object(members)) = &mut line.detail {
                    members.retain(|name, _| !stale::MEMBERS.contains(&name.as_str()));
                }
            }
        }
        line
    }

    /// Tells whether it is about a workflow, or about the journal as a whole.
    fn is_about(&self, workflow: &str) -> bool {
        // What is about no entry may name workflows in its detail all the same: a fork does.
        let in_detail = |name: &str| self.detail.as_ref()?.get(name)?.as_str();
        let named: Vec<&str> = [
            self.workflow_id.as_deref(),
            in_detail("from_workflow"),
            in_detail("new_workflow"),
        ]
        .into_iter()
        .flatten()
        .collect();
        named.is_empty() || named.contains(&workflow)
    }

    fn tone(&self) -> Tone {
        match self.what.as_str() {
            "completed" if self.is_error == Some(true) => Tone::Bad,
            "completed" => Tone::Good,
            "failed" | "unreadable" => Tone::Bad,
            "in_doubt" | "refused" | "diverged" | "outcome_unknown" => Tone::Alarm,
            "started" => Tone::Plain,
            _ => Tone::Faint,
        }
    }

    fn render(&self, look: &Look, own: &str) -> String {
        let at = self.at.to_string();
        // Who watches knows the day; `3m ago` would be wrong a minute later.
        let at = match look.times {
            Times::Since(_) => at.get(11..23).unwrap_or(&at).to_owned(),
            Times::Iso => at,
        };
        let what = self.what.replace('_', " ");
        let what = look.paint(&format!("{:15}", escape(&what)), self.tone().style());
        let place = self
            .seq
            .map_or_else(String::new, |seq| format!("seq {seq}"));
        let tool = self.tool.as_deref().unwrap_or_default();
        let line = format!(
            "{at}  {what}  {place:8}  {:16}  {}",
            escape(tool),
            escape(&self.notes(own).join(", "))
        );
        format!("{}\n", line.trim_end())
    }

    fn notes(&self, own: &str) -> Vec<String> {
        let mut notes = Vec::new();
        if self.attempt.is_some_and(|attempt| attempt > 1) {
            notes.push(format!("attempt {}", self.attempt.unwrap_or(1)));
        }
        if let Some(round @ 1..) = self.round {
            notes.push(format!("round {}", round + 1));
        }
        if self.is_error == Some(true) {
            notes.push("isError".to_owned());
        }
        if let Some(took_us) = self.took_us {
            notes.push(format!("took {}", took(Duration::from_micros(took_us))));
        }
        match self.provenance.as_deref() {
            None | Some("upstream") => {}
            Some(other) => notes.push(format!("by {other}")),
        }
        notes.extend(self.letter.clone());
        if let Some(count @ 2..) = self.count {
            notes.push(format!("{count}x"));
        }
        notes.extend(self.detail.iter().flat_map(|detail| words(detail, &[])));
        if let Some(workflow) = self.workflow_id.as_ref().filter(|id| *id != own) {
            notes.push(format!("workflow {workflow}"));
        }
        if let Some(branch @ 1..) = self.branch {
            notes.push(format!("branch {branch}"));
        }
        notes.retain(|note| !note.is_empty());
        notes
    }
}
