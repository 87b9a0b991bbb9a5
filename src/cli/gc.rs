//! `checkpoint gc`: drops payloads that nobody needs any more.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::JournalArgs;
use super::confirm;
use super::error::{CliError, Kind};
use super::exit::Exit;
use super::hand::{not_typed, user};
use super::output::{Column, Form, Look, Output, SCHEMA_VERSION, Tone, table};
use super::progress::ProgressLine;
use super::reading::{journal_path, unusable};
use super::settings::{self, Env};
use super::values;
use super::verify::counted;
use super::view::Time;
use crate::guard::sweep::{Sweep, Swept};
use crate::journal::compact::{self, Compacted};
use crate::journal::place::JournalPath;
use crate::journal::sqlite::SqliteJournal;
use crate::journal::{Durability, Event, Journal as _, JournalError, Transaction as _};
use crate::proxy::books;
use crate::rules::ids::Micros;
use crate::rules::retention::{Reason, Retention};

/// How long a proxy beside the sweep is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Drop payloads of old entries; what ran stays known
///
/// Arguments and results of settled entries become tombstones, which keep seq, signature, keys,
/// status and digest for ever: the same call is then refused as `result_expired`, and never runs
/// again. Entries that are open, in doubt or damaged are never touched, nor is an outcome that has
/// not reached a caller. Ages are by this machine's clock: an entry that was settled later than now,
/// when a clock was ahead, is older than nothing. The bytes leave the files as well: at once where no session is live, else
/// a later run finishes that, and this one says so.
#[derive(Args, Debug)]
pub(super) struct GcArgs {
    /// Only entries that were settled longer ago than this, such as 30d
    #[arg(long, value_name = "DUR", value_parser = values::parse_duration)]
    older_than: Duration,

    /// Say what would be dropped, and drop nothing
    #[arg(long)]
    dry_run: bool,

    /// Also outcomes that never reached a caller
    #[arg(long)]
    undelivered_too: bool,

    /// Also entries that were settled later than now by this machine's clock, whatever their age
    #[arg(long)]
    future_too: bool,

    /// Don't ask on a terminal
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &GcArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let path = settings::journal_required(args.journal.journal.clone(), env)?;
    let path = journal_path(&path)?;
    let output = Output::new(args.journal.color);
    let opened = books::open_for_verdicts(&path).map_err(unusable)?;
    for warning in &opened.warnings {
        output.note(&warning.to_string());
    }
    let mut journal = opened.journal;
    compact::overwrite_dropped(&path, &mut journal).map_err(unusable)?;
    let retention = Retention {
        older_than: args.older_than,
        undelivered_too: args.undelivered_too,
        future_too: args.future_too,
    };
    let now = Micros(Time::now().0);
    if !args.dry_run && !args.yes && confirm::can_ask() {
        let mut rehearsal = Sweep::new(retention, now, user()).dry();
        sweep(&mut journal, &mut rehearsal)?;
        let swept = rehearsal.swept();
        if swept.buried > 0 {
            let question = format!(
                "this drops the payloads of {} ({}) for ever; type yes to go on",
                counted(swept.buried, "entry", "entries"),
                counted(swept.dropped_bytes, "byte", "bytes"),
            );
            if !confirm::is_typed(&question, "yes")? {
                return Err(not_typed("nothing was dropped", "yes"));
            }
        }
    }
    let mut sweeping = Sweep::new(retention, now, user());
    if args.dry_run {
        sweeping = sweeping.dry();
    }
    sweep(&mut journal, &mut sweeping)?;
    let swept = sweeping.swept();
    let compacted = if args.dry_run {
        None
    } else {
        finish(&path, &mut journal, now)?
    };
    let report = Report::new(args, swept, compacted.as_ref());
    let form = args.journal.form.form();
    output.document(form, &report, |look| render(&report, swept, look))?;
    if let Some(left) = compacted.and_then(|compacted| compacted.left)
        && form == Form::Text
    {
        output.note(&left);
    }
    Ok(Exit::Ok)
}

/// Runs a sweep to its end; a batch that meets a proxy's write is tried again.
fn sweep(journal: &mut SqliteJournal, sweep: &mut Sweep) -> Result<(), CliError> {
    const PAUSE: Duration = Duration::from_millis(5);
    let mut line = ProgressLine::new();
    let mut since = Instant::now();
    loop {
        match sweep.step(journal) {
            Ok(true) => {
                since = Instant::now();
                line.show("entries", sweep.swept().looked_at(), 0);
                // A proxy that waits for its turn gets it between two batches.
                std::thread::yield_now();
            }
            Ok(false) => return Ok(()),
            // Nothing tells when the other one is done.
            Err(JournalError::Busy) if since.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Err(error) => {
                line.clear();
                let done = sweep.swept().buried;
                return Err(CliError::new(
                    Kind::Journal,
                    format!("stopped after {}", counted(done, "entry", "entries")),
                )
                .because(error)
                .hint("what was dropped so far is dropped; run it again for the rest"));
            }
        }
    }
}

/// Makes what was dropped leave the files, now or by saying what is left to do.
fn finish(
    path: &JournalPath,
    journal: &mut SqliteJournal,
    now: Micros,
) -> Result<Option<Compacted>, CliError> {
    if !compact::is_due(path, journal).map_err(unusable)? {
        return Ok(None);
    }
    let mut line = ProgressLine::new();
    line.show("rebuilding the file", 0, 0);
    let compacted = compact::compact(path, journal).map_err(unusable)?;
    if compacted.left.is_none() {
        let event = Event {
            kind: compact::COMPACTED.into(),
            at: now,
            entry: None,
            fence: None,
            session: None,
            letter: None,
            detail: None,
            merge_key: None,
        };
        let mut note = || {
            let mut tx = journal.begin(Durability::Power)?;
            tx.event(&event)?;
            tx.commit()
        };
        // Without it the next sweep only rebuilds the file once more.
        if note().is_ok() {
            let _ = compact::empty_log(journal.connection());
        }
    }
    Ok(Some(compacted))
}

/// What `gc` did; its JSON document.
#[derive(Debug, Serialize)]
struct Report {
    schema_version: u32,
    dry_run: bool,
    older_than_ms: u128,
    undelivered_too: bool,
    future_too: bool,
    buried: u64,
    dropped_bytes: u64,
    kept: BTreeMap<&'static str, u64>,
    compacted: Option<CompactedView>,
}

#[derive(Debug, Serialize)]
struct CompactedView {
    rebuilt: bool,
    log_empty: bool,
    before_bytes: u64,
    after_bytes: u64,
    left: Option<String>,
}

impl Report {
    fn new(args: &GcArgs, swept: &Swept, compacted: Option<&Compacted>) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            dry_run: args.dry_run,
            older_than_ms: args.older_than.as_millis(),
            undelivered_too: args.undelivered_too,
            future_too: args.future_too,
            buried: swept.buried,
            dropped_bytes: swept.dropped_bytes,
            kept: Reason::ALL
                .into_iter()
                .map(|reason| {
                    let count = swept.kept.get(&reason).copied().unwrap_or(0);
                    (reason.name(), count)
                })
                .collect(),
            compacted: compacted.map(|compacted| CompactedView {
                rebuilt: compacted.is_rebuilt,
                log_empty: compacted.is_log_empty,
                before_bytes: compacted.size_bytes.0,
                after_bytes: compacted.size_bytes.1,
                left: compacted.left.clone(),
            }),
        }
    }
}

const COLUMNS: [Column; 3] = [
    Column::new("TOOL").flexible(),
    Column::new("ENTRIES").number(),
    Column::new("BYTES").number(),
];

fn render(report: &Report, swept: &Swept, look: &Look) -> String {
    let mut text = String::new();
    if !swept.tools.is_empty() {
        let rows: Vec<Vec<(String, Tone)>> = swept
            .tools
            .iter()
            .map(|(tool, (entries, bytes))| {
                [tool.clone(), entries.to_string(), bytes.to_string()]
                    .map(|cell| (cell, Tone::Plain))
                    .to_vec()
            })
            .collect();
        text.push_str(&table(&COLUMNS, &rows, look));
    }
    let entries = counted(report.buried, "entry", "entries");
    let bytes = counted(report.dropped_bytes, "byte", "bytes");
    text.push_str(&if report.dry_run {
        format!("would bury {entries} and drop {bytes}")
    } else {
        format!("buried {entries} and dropped {bytes}")
    });
    let kept: Vec<String> = Reason::ALL
        .into_iter()
        .filter_map(|reason| {
            let count = swept.kept.get(&reason).filter(|count| **count > 0)?;
            let word = match reason {
                Reason::Buried => "buried before",
                Reason::Future => "from the future",
                Reason::Open | Reason::Quarantined | Reason::Young | Reason::Undelivered => {
                    reason.name()
                }
            };
            Some(format!("{count} {word}"))
        })
        .collect();
    if !kept.is_empty() {
        text.push_str(&format!("; left as they are: {}", kept.join(", ")));
    }
    text.push('\n');
    if let Some(compacted) = report.compacted.as_ref().filter(|view| view.rebuilt) {
        text.push_str(&format!(
            "the file was rebuilt: {} before, {} after\n",
            counted(compacted.before_bytes, "byte", "bytes"),
            compacted.after_bytes
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_told_in_words() {
        let args = GcArgs {
            older_than: Duration::from_secs(60),
            dry_run: false,
            undelivered_too: false,
            future_too: false,
            yes: true,
            journal: JournalArgs {
                journal: None,
                form: super::super::FormArgs {
                    json: false,
                    jsonl: false,
                },
                color: super::super::output::ColorChoice::Never,
            },
        };
        let swept = Swept {
            buried: 1,
            dropped_bytes: 2_048,
            kept: [(Reason::Open, 3), (Reason::Future, 2), (Reason::Buried, 1)].into(),
            tools: [("charge".to_owned(), (1, 2_048))].into(),
        };
        let compacted = Compacted {
            is_rebuilt: true,
            is_log_empty: true,
            left: None,
            size_bytes: (8_192, 4_096),
        };
        let report = Report::new(&args, &swept, Some(&compacted));
        assert_eq!(
            render(&report, &swept, &Look::PIPE),
            "TOOL    ENTRIES  BYTES\n\
             charge        1   2048\n\
             buried 1 entry and dropped 2048 bytes; left as they are: 3 open, \
             2 from the future, 1 buried before\n\
             the file was rebuilt: 8192 bytes before, 4096 after\n"
        );
    }
}
