//! `checkpoint ls`: which entries there are, and which of them need somebody.

use std::ops::ControlFlow;
use std::path::Path;

use clap::Args;
use serde::Serialize;

use super::JournalArgs;
use super::error::CliError;
use super::escape::escape;
use super::exit::Exit;
use super::filter::{Filter, Since};
use super::output::{Column, Form, Look, Output, Tone, table};
use super::reading::{self, ForkView};
use super::settings::{self, Env};
use super::values;
use super::view::{EntryView, Status, Time, took};
use crate::journal::reader::{Place, Selection};
use crate::rules::entry;
use crate::rules::ids::{Micros, SessionId, WorkflowId};

/// How many entries a table shows by default; programs get all.
const LIMIT_DEFAULT: usize = 100;

/// List entries
///
/// An entry is listed if it meets every condition that is given. Works while a proxy runs and
/// never starts the upstream. Exits with 3 under --fail-if-any if an entry is listed.
#[derive(Args, Debug)]
pub(super) struct LsArgs {
    /// Only calls that were cut off: they may or may not have run
    #[arg(long, help_heading = "Conditions")]
    in_doubt: bool,

    /// Only this status: PENDING, COMPLETED, FAILED, INPUT_REQUIRED, ACCEPTED, VOIDED, DENIED
    ///
    /// May be given several times, or as a list with commas.
    #[arg(
        long,
        value_name = "STATUS",
        value_enum,
        ignore_case = true,
        value_delimiter = ',',
        hide_possible_values = true,
        help_heading = "Conditions"
    )]
    status: Vec<Status>,

    /// Only this tool; * is any text, ? any character
    #[arg(long, value_name = "GLOB", help_heading = "Conditions")]
    tool: Option<String>,

    /// Only outcomes that never reached a caller
    #[arg(long, help_heading = "Conditions")]
    undelivered: bool,

    /// Only entries whose stored bytes don't hold
    #[arg(long, help_heading = "Conditions")]
    quarantined: bool,

    /// Only calls that are running now
    #[arg(long, help_heading = "Conditions")]
    running: bool,

    /// Only the call with this id of the client's
    #[arg(long, value_name = "ID", value_parser = values::parse_id, help_heading = "Conditions")]
    call_id: Option<String>,

    /// Only the entry that holds this idempotency key
    #[arg(long, value_name = "KEY", value_parser = values::parse_id, help_heading = "Conditions")]
    key: Option<String>,

    /// Only entries of this session
    #[arg(long, value_name = "ID", value_parser = values::parse_id, help_heading = "Conditions")]
    session: Option<String>,

    /// Only entries not older than this: a duration, or 2026-11-29T18:00:00Z
    #[arg(long, value_name = "WHEN", help_heading = "Conditions")]
    since: Option<Since>,

    /// Only entries older than this: a duration, or 2026-11-29T18:00:00Z
    #[arg(long, value_name = "WHEN", help_heading = "Conditions")]
    until: Option<Since>,

    /// Only this workflow [default: all, whatever CHECKPOINT_WORKFLOW_ID says]
    #[arg(long, value_name = "ID", value_parser = values::parse_id, help_heading = "Conditions")]
    workflow_id: Option<String>,

    /// Only this branch
    #[arg(long, value_name = "N", help_heading = "Conditions")]
    branch: Option<u64>,

    /// List at most the newest N; 0 for all [default: 100 in a table, else all]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// Exit with code 3 if an entry meets the conditions
    #[arg(long)]
    fail_if_any: bool,

    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &LsArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let path = settings::journal_required(args.journal.journal.clone(), env)?;
    let filter = Filter {
        in_doubt: args.in_doubt,
        undelivered: args.undelivered,
        quarantined: args.quarantined,
        running: args.running,
        statuses: args.status.clone(),
        tool: args.tool.clone(),
        call_id: args.call_id.clone(),
        key: args.key.clone(),
        session: args.session.clone(),
        since: args.since,
        until: args.until,
        workflow_id: args.workflow_id.clone(),
        branch: args.branch,
    };
    let now = Time::now();
    let mut reader = reading::open(&path)?;
    let output = Output::new(args.journal.color);
    let form = args.journal.form.form();
    let mut listing = Listing::new(args.limit.unwrap_or(match form {
        Form::Text => LIMIT_DEFAULT,
        Form::Json | Form::JsonLines => 0,
    }));
    let mut lines = output.lines();
    let mut document = output.long_document("entries");
    // Without a limit an entry can go out at once; else the newest are known only at the end.
    let streams = listing.limit == 0 && form != Form::Text;
    let mut written = Ok(());
    if let Some(selection) = selection(&filter, now) {
        listing.forks = reader
            .forks(&selection)
            .map_err(reading::unusable)?
            .iter()
            .filter_map(Forked::new)
            .collect();
        reader
            .each(&selection, |place, found| {
                let entry = reading::view(place, found);
                if filter.matches(&entry, now) {
                    if streams {
                        listing.counts.add(&entry);
                        listing.counts.shown += 1;
                        written = match form {
                            Form::Json => document.add(&entry),
                            Form::JsonLines | Form::Text => lines.add(&entry),
                        };
                    } else {
                        listing.add(entry);
                    }
                }
                match written {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            })
            .map_err(reading::unusable)?;
    }
    written?;
    listing.finish();
    match form {
        Form::Json => document.end_with(&listing.entries, &listing)?,
        Form::JsonLines => {
            for entry in &listing.entries {
                lines.add(entry)?;
            }
            lines.flush()?;
        }
        Form::Text => {
            output.data(&render(&listing, output.look(), now))?;
            if let Some(note) = next_step(&listing, &path, env) {
                output.note(&note);
            }
        }
    }
    Ok(if args.fail_if_any && listing.counts.matched > 0 {
        Exit::InDoubt
    } else {
        Exit::Ok
    })
}

/// Returns the part of `filter` that the journal itself can ask for; one entry too many does no
/// harm, as they are asked again. `None` if nothing can meet it.
pub(super) fn selection(filter: &Filter, now: Time) -> Option<Selection> {
    let mut selection = Selection {
        statuses: filter
            .statuses
            .iter()
            .filter_map(|status| reading::stored_status(*status))
            .collect(),
        tool: filter
            .tool
            .clone()
            .filter(|tool| !tool.contains(['*', '?'])),
        undelivered: filter.undelivered,
        call_id: filter.call_id.clone(),
        key: filter.key.clone(),
        session: None,
        since: filter.since.map(|since| Micros(since.moment(now).0)),
        workflow: filter.workflow_id.clone().map(WorkflowId),
        branch: None,
        seq: None,
    };
    if filter.in_doubt || filter.running {
        let has_pending = filter.statuses.is_empty() || filter.statuses.contains(&Status::Pending);
        selection.statuses = has_pending
            .then_some(entry::Status::Pending)
            .into_iter()
            .collect();
        if !has_pending {
            return None;
        }
    }
    if let Some(session) = &filter.session {
        selection.session = Some(SessionId(session.parse().ok()?));
    }
    if let Some(branch) = filter.branch {
        selection.branch = Some(u32::try_from(branch).ok()?);
    }
    Some(selection)
}

/// How many forks are told of below the table; `--json` has all.
const FORKS_SHOWN_MAX: usize = 10;

/// What `ls` found; what follows the entries in its JSON document.
#[derive(Debug, Serialize)]
struct Listing {
    /// The newest that were asked for, by workflow, branch and seq.
    #[serde(skip)]
    entries: Vec<EntryView>,
    counts: Counts,
    /// The branches that share what is before a place with another one, which lists it.
    forks: Vec<Forked>,
    #[serde(skip)]
    limit: usize,
}

/// A branch that was forked from another one.
#[derive(Debug, Serialize)]
struct Forked {
    workflow_id: String,
    branch: u64,
    forked_from: ForkView,
}

impl Forked {
    fn new(place: &Place) -> Option<Self> {
        place.parent.as_ref().map(|parent| Self {
            workflow_id: place.workflow.0.clone(),
            branch: place.branch.into(),
            forked_from: reading::fork(parent),
        })
    }
}

/// How many entries met the conditions, shown or not.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    matched: usize,
    shown: usize,
    in_doubt: usize,
    running: usize,
    undelivered: usize,
    quarantined: usize,
    status: StatusCounts,
}

/// Entries by stored status; the PENDING ones include those in doubt.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
struct StatusCounts {
    pending: usize,
    completed: usize,
    failed: usize,
    input_required: usize,
    accepted: usize,
    voided: usize,
    denied: usize,
    unreadable: usize,
}

impl Counts {
    fn add(&mut self, entry: &EntryView) {
        self.matched += 1;
        self.in_doubt += usize::from(entry.in_doubt);
        self.running += usize::from(entry.running);
        self.undelivered += usize::from(entry.is_undelivered());
        self.quarantined += usize::from(entry.quarantined);
        let status = &mut self.status;
        *match entry.status {
            Status::Pending => &mut status.pending,
            Status::Completed => &mut status.completed,
            Status::Failed => &mut status.failed,
            Status::InputRequired => &mut status.input_required,
            Status::Accepted => &mut status.accepted,
            Status::Voided => &mut status.voided,
            Status::Denied => &mut status.denied,
            Status::Unreadable => &mut status.unreadable,
        } += 1;
    }

    /// Returns the last line of the table.
    fn line(&self) -> String {
        let status = &self.status;
        let parts: Vec<String> = [
            (self.in_doubt, "in doubt"),
            (status.pending.saturating_sub(self.in_doubt), "pending"),
            (status.completed, "completed"),
            (status.failed, "failed"),
            (status.input_required, "waiting for input"),
            (status.accepted, "accepted as a task"),
            (status.voided, "voided"),
            (status.denied, "denied"),
            (status.unreadable, "unreadable"),
            (self.undelivered, "undelivered"),
            (self.quarantined, "quarantined"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        let noun = if self.matched == 1 {
            "entry"
        } else {
            "entries"
        };
        let mut line = format!("{} {noun}", self.matched);
        if !parts.is_empty() {
            line = format!("{line}: {}", parts.join(", "));
        }
        if self.shown < self.matched {
            line = format!(
                "{line} (the newest {} are shown; --limit 0 shows all)",
                self.shown
            );
        }
        line
    }
}

impl Listing {
    /// Returns an empty listing that keeps the newest `limit` (0 for all) of what it is given.
    fn new(limit: usize) -> Self {
        Self {
            entries: Vec::new(),
            counts: Counts::default(),
            forks: Vec::new(),
            limit,
        }
    }

    /// Counts an entry, and keeps it while it is among the newest.
    fn add(&mut self, entry: EntryView) {
        self.counts.add(&entry);
        self.entries.push(entry);
        // Cut down only now and then, so that it costs little and holds at most twice as many.
        if self.limit > 0 && self.entries.len() >= self.limit.saturating_mul(2) {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.limit > 0 && self.entries.len() > self.limit {
            // By the order of reservations: a clock that was ahead must hide nothing.
            self.entries
                .sort_by_key(|entry| std::cmp::Reverse((entry.fence, entry.seq)));
            self.entries.truncate(self.limit);
        }
    }

    /// Leaves the newest, by workflow, branch and seq.
    fn finish(&mut self) {
        self.cut();
        self.entries.sort_by(|a, b| {
            (&a.workflow_id, a.branch, a.seq).cmp(&(&b.workflow_id, b.branch, b.seq))
        });
        self.counts.shown += self.entries.len();
    }
}

/// Returns the table and the line of counts.
fn render(listing: &Listing, look: &Look, now: Time) -> String {
    let entries = &listing.entries;
    let differs = |of: fn(&EntryView, &EntryView) -> bool| {
        entries.windows(2).any(|pair| of(&pair[0], &pair[1]))
    };
    // Columns that say the same in each row only take room.
    let has_workflows = differs(|a, b| a.workflow_id != b.workflow_id);
    let has_branches = entries.iter().any(|entry| entry.branch != 0);
    let mut columns = Vec::new();
    if has_workflows {
        columns.push(Column::new("WORKFLOW").flexible());
    }
    if has_branches {
        columns.push(Column::new("BRANCH").number());
    }
    columns.extend([
        Column::new("SEQ").number(),
        Column::new("STATUS"),
        Column::new("TOOL").flexible(),
        Column::new("ATTEMPT").number().spare(),
        Column::new("STARTED"),
        Column::new("TOOK").number().spare(),
        Column::new("CALL-ID").flexible().spare(),
        Column::new("NOTE").flexible(),
    ]);
    let rows: Vec<Vec<(String, Tone)>> = entries
        .iter()
        .map(|entry| {
            let mut row = Vec::with_capacity(columns.len());
            if has_workflows {
                row.push((entry.workflow_id.clone(), Tone::Plain));
            }
            if has_branches {
                row.push((entry.branch.to_string(), Tone::Plain));
            }
            let took = entry.took(now).map_or_else(|| "-".to_owned(), took);
            row.extend([
                (entry.seq.to_string(), Tone::Plain),
                (entry.status_word().to_owned(), tone(entry)),
                (entry.tool.clone(), Tone::Plain),
                (entry.attempt.to_string(), Tone::Plain),
                (look.time(entry.created_at), Tone::Plain),
                (took, Tone::Plain),
                (
                    entry.call_id.clone().unwrap_or_else(|| "-".to_owned()),
                    Tone::Faint,
                ),
                (entry.remarks().join("; "), Tone::Plain),
            ]);
            row
        })
        .collect();
    let mut text = String::new();
    if !rows.is_empty() {
        text = table(&columns, &rows, look);
    }
    text.push_str(&listing.counts.line());
    text.push('\n');
    for fork in listing.forks.iter().take(FORKS_SHOWN_MAX) {
        text.push_str(&escape(&format!(
            "{} branch {} was forked from {}, and shares what is before that",
            fork.workflow_id,
            fork.branch,
            fork.forked_from.words()
        )));
        text.push('\n');
    }
    text
}

/// Returns the tone of an entry's status.
pub(super) fn tone(entry: &EntryView) -> Tone {
    if entry.in_doubt || entry.quarantined {
        return Tone::Alarm;
    }
    match entry.status {
        Status::Completed if entry.is_error == Some(true) => Tone::Bad,
        Status::Completed => Tone::Good,
        Status::Failed | Status::Denied | Status::Unreadable => Tone::Bad,
        Status::Pending | Status::InputRequired | Status::Accepted => Tone::Plain,
        Status::Voided => Tone::Faint,
    }
}

/// Returns what to do about the first entry in doubt, if there is one.
fn next_step(listing: &Listing, journal: &Path, env: Env<'_>) -> Option<String> {
    let first = listing.entries.iter().find(|entry| entry.in_doubt)?;
    let calls = match listing.counts.in_doubt {
        1 => "1 call is in doubt".to_owned(),
        many => format!("{many} calls are in doubt"),
    };
    let target = super::target::Target::new(journal, first, env);
    Some(format!("{calls}; see `{}`", target.command("show", "")))
}

#[cfg(test)]
mod tests;
