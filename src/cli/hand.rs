//! What the commands share that change an entry: who acts and why, the journal opened to write,
//! the question on the terminal, and the report.
//!
//! Whether something may be done is for `guard::verdict` to say; nothing here decides it.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use super::absent::Absent;
use super::confirm;
use super::error::{CliError, Kind};
use super::exit::Exit;
use super::output::{Column, Form, Look, Output, SCHEMA_VERSION, Tone, table};
use super::progress::ProgressLine;
use super::reading;
use super::targets::Targets;
use super::values;
use super::view::Status;
use crate::guard::story::{self, Story};
use crate::guard::verdict::{self, Act, Deed, Owner, Refused, Ruling};
use crate::journal::reader::Place;
use crate::journal::{JournalError, Session};
use crate::proxy::books;
use crate::proxy::reconcile::{self, Asks, Ledger, NoUpstream, Probe, Settled};
use crate::rules::entry::Entry;
use crate::rules::ids::{BranchId, Seq, SessionId};
use crate::rules::policy::{PolicySet, ReconcileBy};

/// How long a journal that others write to is waited for, for each entry.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most bytes of a payload that is given on the command line or in a file.
const PAYLOAD_BYTES_MAX: u64 = values::MESSAGE_BYTES_MAX as u64;

/// Who acts, and why.
#[derive(Args, Debug)]
pub(super) struct DeedArgs {
    /// Why; kept with the entry for ever
    #[arg(long, value_name = "TEXT", value_parser = values::parse_reason, help_heading = "Record")]
    pub(super) reason: Option<String>,

    /// Who says so [default: the user who runs this]
    #[arg(long, value_name = "NAME", value_parser = values::parse_id, help_heading = "Record")]
    pub(super) by: Option<String>,

    /// File that shows it; its name, size and SHA-256 are kept, not its content
    #[arg(long, value_name = "FILE", help_heading = "Record")]
    pub(super) evidence: Option<PathBuf>,

    /// Where more of it is found: a ticket, an address, a number in another system
    #[arg(long, value_name = "TEXT", value_parser = values::parse_id, help_heading = "Record")]
    pub(super) reference: Option<String>,
}

impl DeedArgs {
    /// Returns the deed, which must have a reason; reads the evidence.
    pub(super) fn deed_with_reason(&self) -> Result<Deed, CliError> {
        if self.reason.is_none() {
            return Err(CliError::usage("no reason was given")
                .hint("add --reason 'WHY'; it is kept with the entry"));
        }
        self.deed()
    }

    /// Returns the deed; reads the evidence.
    pub(super) fn deed(&self) -> Result<Deed, CliError> {
        let evidence = match &self.evidence {
            None => None,
            Some(path) => Some(digest_of(path).map_err(|error| {
                CliError::usage(format!("{} of --evidence can't be read", path.display()))
                    .because(error)
                    .hint("give a file that this user can read, or say more with --reference")
            })?),
        };
        Ok(Deed {
            by: self.by.clone().unwrap_or_else(user),
            reason: self.reason.clone(),
            evidence,
            reference: self.reference.clone(),
            ..Deed::default()
        })
    }
}

fn digest_of(path: &Path) -> io::Result<(String, u64, String)> {
    let mut file = std::fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 16];
    let mut size_bytes = 0;
    loop {
        match file.read(&mut block)? {
            0 => break,
            count => {
                hash.update(&block[..count]);
                size_bytes += count as u64;
            }
        }
    }
    let name = path.to_string_lossy().into_owned();
    let digest: [u8; 32] = hash.finalize().into();
    Ok((name, size_bytes, reading::hex(&digest)))
}

/// Returns the name of the user who runs this process.
pub(super) fn user() -> String {
    let uid = nix::unistd::getuid();
    match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => std::env::var("USER")
            .ok()
            .filter(|name| values::parse_id(name).is_ok())
            .unwrap_or_else(|| format!("uid {uid}")),
    }
}

/// Reads `JSON`, `@FILE`, or `@-` for standard input.
pub(super) fn payload(flag: &str, given: &str) -> Result<Vec<u8>, CliError> {
    let Some(file) = given.strip_prefix('@') else {
        return Ok(given.as_bytes().to_vec());
    };
    let read = |from: &mut dyn io::Read| -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        from.take(PAYLOAD_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > PAYLOAD_BYTES_MAX {
            let why = format!("it has more than {} MiB", PAYLOAD_BYTES_MAX >> 20);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        Ok(bytes)
    };
    let bytes = if file == "-" {
        read(&mut io::stdin().lock())
    } else {
        std::fs::File::open(file).and_then(|mut file| read(&mut file))
    };
    bytes.map_err(|error| {
        CliError::usage(format!("'{given}' of {flag} can't be read"))
            .because(error)
            .hint(format!(
                "give {flag} the JSON itself, @FILE, or @- to read it from standard input"
            ))
    })
}

/// Does one thing to each entry, or only tries it; what can't be done stops nothing. `how` says
/// what would get past a reason to refuse.
pub(super) fn carry_out(
    path: &Path,
    targets: &Targets,
    name: &str,
    how: &str,
    deed: &Deed,
    is_trial: bool,
    act: &dyn Fn(&Entry) -> Act,
) -> Result<Reports, CliError> {
    each(path, targets, name, is_trial, |hand, place, entry| {
        let place_of = (entry.branch, entry.seq);
        let ruling = hand.act(place_of, &act(entry), deed, is_trial)?;
        Ok(Report::new(place, entry, &ruling, is_trial, how))
    })
}

/// Reports of each entry, in order: what can't be read or is not there is refused, and `one` deals
/// with the rest.
fn each(
    path: &Path,
    targets: &Targets,
    name: &str,
    is_trial: bool,
    mut one: impl FnMut(&mut Hand, &Place, &Entry) -> Result<Report, CliError>,
) -> Result<Reports, CliError> {
    let mut hand = Hand::open(path)?;
    let mut reports = Reports::new(name, is_trial);
    for entry in &targets.unreadable {
        let why = "it is quarantined: its row can't be read";
        reports.add(Report::refused(entry, why.to_owned()));
    }
    for absent in &targets.absent {
        reports.add(Report::absent(absent));
    }
    let mut progress = ProgressLine::new();
    let total = targets.entries.len() as u64;
    for (done, (place, entry)) in targets.entries.iter().enumerate() {
        progress.show(name, done as u64, total);
        match one(&mut hand, place, entry) {
            Ok(report) => reports.add(report),
            Err(error) => {
                reports.stop(error, done, total);
                break;
            }
        }
    }
    reports.sort();
    Ok(reports)
}

/// Asks the reconcile command of each entry's tool, or tells whether it could be asked.
pub(super) fn ask(
    path: &Path,
    targets: &Targets,
    policies: &PolicySet,
    deed: &Deed,
    is_trial: bool,
) -> Result<Reports, CliError> {
    let name = "resolve --auto";
    let how = "it is asked again later";
    each(path, targets, name, is_trial, |hand, place, entry| {
        let place_of = (entry.branch, entry.seq);
        let policy = policies.for_tool(&entry.tool);
        let reconcile = policy.reconcile.as_ref();
        let (command, timeout) = match reconcile.map(|one| (&one.by, one.timeout)) {
            Some((ReconcileBy::Command(command), timeout)) => (command, timeout),
            other => {
                let mut report = Report::new(place, entry, &UNASKED, is_trial, how);
                report.why = Some(match other {
                    // This command never starts the upstream.
                    Some(_) => "can be reconciled only by a running proxy: the policy names a \
                                tool of the upstream to be asked"
                        .to_owned(),
                    None => "the policy names nobody to ask about this tool".to_owned(),
                });
                return Ok(report);
            }
        };
        let probe = Probe {
            place: place_of,
            fence: entry.fence,
            asks: Asks::Command(command.clone()),
            timeout,
            result_bytes_max: usize::try_from(policy.result_bytes_max).unwrap_or(usize::MAX),
        };
        let ruling = if is_trial {
            let act = Act::Resolve {
                verdict: verdict::Verdict::StillUnknown,
                forces: false,
                seen: None,
            };
            hand.act(place_of, &act, deed, true)?
        } else {
            match reconcile::settle(hand, &mut NoUpstream, &probe, deed).map_err(unwritable)? {
                Settled::Ruled { ruling, .. } | Settled::NotAsked(ruling) => ruling,
            }
        };
        let mut report = Report::new(place, entry, &ruling, is_trial, how);
        // An answer that does not tell is an event of the entry, and settles nothing.
        if report.outcome == "done" && report.status == Some(Status::Pending) {
            report.outcome = "unclear";
        }
        Ok(report)
    })
}

const UNASKED: Ruling = Ruling::Refused(Refused::Changed);

fn unwritable(error: JournalError) -> CliError {
    reading::failed("the journal can't be written to", &error)
}

/// A journal opened for verdicts.
struct Hand {
    desk: books::Desk,
}

impl Hand {
    fn open(path: &Path) -> Result<Self, CliError> {
        let desk =
            books::open_for_verdicts(&reading::journal_path(path)?).map_err(reading::unusable)?;
        Ok(Self { desk })
    }

    /// Does one thing to one entry in one transaction, or only tries what would come of it.
    fn act_once(
        &mut self,
        place: (BranchId, Seq),
        act: &Act,
        deed: &Deed,
        is_trial: bool,
    ) -> Result<Ruling, JournalError> {
        let books::Desk { journal, locks, .. } = &mut self.desk;
        let mut ask = |id: SessionId, session: Option<&Session>| {
            // A lock that can't be asked for counts as held, as it does for the proxy.
            let is_live = locks.is_live(id.0).unwrap_or(true);
            Owner {
                is_live,
                upstream_alive: session.and_then(|session| books::upstream_alive(session, is_live)),
            }
        };
        verdict::rule(journal, place, act, deed, books::now(), &mut ask, is_trial)
    }

    /// Does one thing to one entry, or only tries what would come of it.
    fn act(
        &mut self,
        place: (BranchId, Seq),
        act: &Act,
        deed: &Deed,
        is_trial: bool,
    ) -> Result<Ruling, CliError> {
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            match self.act_once(place, act, deed, is_trial) {
                Err(JournalError::Busy) if start.elapsed() < PATIENCE => {
                    // Nothing tells when the other writer is done.
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(20));
                }
                Err(error) => return Err(unwritable(error)),
                Ok(ruling) => {
                    if let Ruling::Done { before, after, .. } = &ruling
                        && after.fence > before.fence
                        && !is_trial
                        && let Err(error) = self.desk.mark.raise(0, after.fence.0)
                    {
                        return Err(reading::unusable(error));
                    }
                    return Ok(ruling);
                }
            }
        }
    }
}

impl Ledger for Hand {
    fn story(&mut self, place: (BranchId, Seq)) -> Result<Option<Story>, JournalError> {
        story::story(&mut self.desk.journal, place)
    }

    // Nobody is fenced by a prober, so the mark need not be raised.
    fn rule(
        &mut self,
        place: (BranchId, Seq),
        act: &Act,
        deed: &Deed,
        is_trial: bool,
    ) -> Result<Ruling, JournalError> {
        self.act_once(place, act, deed, is_trial)
    }
}

/// Asks on the terminal for the tool's name; `None` where nobody can be asked.
pub(super) fn confirm(question: &str, tool: &str) -> Result<Option<bool>, CliError> {
    if !confirm::can_ask() {
        return Ok(None);
    }
    let question = format!("{question}; type the tool's name ({tool}) to go on");
    confirm::is_typed(&question, tool).map(Some)
}

/// Returns the error of a command that did nothing, since its question was answered otherwise.
pub(super) fn not_typed(nothing: &str, expected: &str) -> CliError {
    CliError::new(Kind::Failure, nothing)
        .because(format!("{expected} was not typed"))
        .hint("run it again and type it, or add --yes to do it without being asked")
}

/// What became of one entry.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) workflow_id: String,
    pub(super) branch: u64,
    pub(super) seq: u64,
    pub(super) tool: String,
    /// `done`, `would` (nothing was written), `unclear` (asked, and still in doubt) or `refused`.
    pub(super) outcome: &'static str,
    /// The status before; `None` where there is no such entry.
    #[serde(serialize_with = "status_or_absent")]
    pub(super) was: Option<Status>,
    /// The status now, or what it would be.
    #[serde(serialize_with = "status_or_absent")]
    pub(super) status: Option<Status>,
    pub(super) attempt: u64,
    pub(super) fence: u64,
    /// The owner was fenced.
    pub(super) fenced: bool,
    /// Why it was refused.
    pub(super) why: Option<String>,
}

/// Returns what stands where an entry's status would.
fn status_name(status: Option<Status>) -> &'static str {
    status.map_or("ABSENT", Status::name)
}

fn status_or_absent<S: Serializer>(
    status: &Option<Status>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(status_name(*status))
}

impl Report {
    /// Tells of a ruling; `entry` is what was seen before.
    fn new(place: &Place, entry: &Entry, ruling: &Ruling, is_trial: bool, how: &str) -> Self {
        let (before, after, why, fenced) = match ruling {
            Ruling::Done {
                before,
                after,
                was_fenced,
            } => (&**before, &**after, None, *was_fenced),
            Ruling::Refused(refused) => (entry, entry, Some(reason(refused, how)), false),
        };
        Self {
            workflow_id: place.workflow.0.clone(),
            branch: place.branch.into(),
            seq: entry.seq.0,
            tool: before.tool.clone(),
            outcome: match (why.is_some(), is_trial) {
                (true, _) => "refused",
                (false, true) => "would",
                (false, false) => "done",
            },
            was: Some(reading::status(before.status)),
            status: Some(reading::status(after.status)),
            attempt: after.attempt.into(),
            fence: after.fence.0,
            fenced,
            why,
        }
    }

    /// Tells of an entry on which nothing can be ruled.
    fn refused(entry: &super::view::EntryView, why: String) -> Self {
        Self {
            workflow_id: entry.workflow_id.clone(),
            branch: entry.branch,
            seq: entry.seq,
            tool: entry.tool.clone(),
            outcome: "refused",
            was: Some(entry.status),
            status: Some(entry.status),
            attempt: entry.attempt,
            fence: entry.fence,
            fenced: false,
            why: Some(why),
        }
    }

    /// Tells of a seq without an entry.
    fn absent(absent: &Absent) -> Self {
        Self {
            workflow_id: absent.workflow_id.clone(),
            branch: absent.branch,
            seq: absent.seq,
            tool: String::new(),
            outcome: "refused",
            was: None,
            status: None,
            attempt: 0,
            fence: 0,
            fenced: false,
            why: Some(absent.why()),
        }
    }

    fn words(&self, what: &str) -> String {
        match &self.why {
            Some(why) => why.clone(),
            None if self.fenced => format!("{what}; its owner is fenced (fence {})", self.fence),
            None => what.to_owned(),
        }
    }
}

fn reason(refused: &Refused, how: &str) -> String {
    if refused.is_forcible() {
        format!("{refused}; {how}")
    } else {
        refused.to_string()
    }
}

/// All that was done; the JSON document of the commands that change entries.
#[derive(Debug, Serialize)]
pub(super) struct Reports {
    schema_version: u32,
    /// The command and, for `resolve`, the verdict.
    pub(super) act: String,
    /// Nothing was written.
    pub(super) dry_run: bool,
    pub(super) entries: Vec<Report>,
    counts: Counts,
    /// Why the rest was not tried; what was done before is told all the same.
    #[serde(skip)]
    stopped: Option<CliError>,
}

#[derive(Debug, Default, Serialize)]
struct Counts {
    done: usize,
    would: usize,
    unclear: usize,
    refused: usize,
}

impl Reports {
    fn new(act: &str, dry_run: bool) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            act: act.to_owned(),
            dry_run,
            entries: Vec::new(),
            counts: Counts::default(),
            stopped: None,
        }
    }

    /// Puts those that were refused unseen among the others.
    fn sort(&mut self) {
        self.entries.sort_by(|one, other| {
            let place = |report: &Report| (report.branch, report.seq);
            (&one.workflow_id, place(one)).cmp(&(&other.workflow_id, place(other)))
        });
    }

    /// Notes why no more of the `total` entries are tried, `done` of which were.
    fn stop(&mut self, error: CliError, done: usize, total: u64) {
        self.stopped = Some(if done == 0 {
            error
        } else {
            CliError::new(
                error.kind(),
                format!("stopped after {done} of {total} entries"),
            )
            .because(&error)
            .hint("what was done is done; run it again for the rest")
        });
    }

    fn add(&mut self, report: Report) {
        match report.outcome {
            "done" => self.counts.done += 1,
            "would" => self.counts.would += 1,
            "unclear" => self.counts.unclear += 1,
            _ => self.counts.refused += 1,
        }
        self.entries.push(report);
    }

    /// Prints them: a line for each and one that counts; `what` says what a success means.
    pub(super) fn print(
        &self,
        output: &Output,
        form: Form,
        what: &dyn Fn(&Report) -> String,
    ) -> Result<Exit, CliError> {
        match form {
            Form::Text => output.data(&self.render(output.look(), what))?,
            Form::Json => output.json(self)?,
            Form::JsonLines => {
                let mut lines = output.lines();
                for report in &self.entries {
                    lines.add(report)?;
                }
                lines.flush()?;
            }
        }
        match &self.stopped {
            Some(error) => Err(error.clone()),
            None if self.counts.refused > 0 => Ok(Exit::Failure),
            None => Ok(Exit::Ok),
        }
    }

    fn render(&self, look: &Look, what: &dyn Fn(&Report) -> String) -> String {
        let has_workflows = self
            .entries
            .windows(2)
            .any(|pair| pair[0].workflow_id != pair[1].workflow_id);
        let mut columns = vec![
            Column::new("SEQ").number(),
            Column::new("TOOL"),
            Column::new(""),
            Column::new("STATUS"),
            Column::new("WHAT"),
        ];
        if has_workflows {
            columns.insert(0, Column::new("WORKFLOW"));
        }
        let rows: Vec<Vec<(String, Tone)>> = self
            .entries
            .iter()
            .map(|report| {
                let tone = match report.outcome {
                    "done" => Tone::Good,
                    "refused" => Tone::Bad,
                    _ => Tone::Plain,
                };
                let (was, status) = (status_name(report.was), status_name(report.status));
                let status = if was == status {
                    status.to_owned()
                } else {
                    format!("{was} -> {status}")
                };
                let tool = match report.tool.as_str() {
                    "" => "-".to_owned(),
                    tool => tool.to_owned(),
                };
                let mut row = vec![
                    (report.seq.to_string(), Tone::Plain),
                    (tool, Tone::Plain),
                    (report.outcome.to_owned(), tone),
                    (status, Tone::Plain),
                    (report.words(&what(report)), Tone::Plain),
                ];
                if has_workflows {
                    row.insert(0, (report.workflow_id.clone(), Tone::Plain));
                }
                row
            })
            .collect();
        let mut text = String::new();
        if !rows.is_empty() {
            // Why something was refused must not be cut, however narrow the terminal is.
            let uncut = Look {
                width: None,
                ..*look
            };
            text = table(&columns, &rows, &uncut);
        }
        let counts = &self.counts;
        let parts: Vec<String> = [
            (counts.done, "done"),
            (counts.would, "would be done"),
            (counts.unclear, "still in doubt"),
            (counts.refused, "refused"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        let noun = if self.entries.len() == 1 {
            "entry"
        } else {
            "entries"
        };
        text.push_str(&format!("{} {noun}", self.entries.len()));
        if !parts.is_empty() {
            text.push_str(&format!(": {}", parts.join(", ")));
        }
        text.push('\n');
        text
    }
}
