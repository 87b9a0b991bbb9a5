//! `checkpoint doctor`: whether everything around a journal, and an upstream, is as it should be.

use std::ffi::OsString;

use clap::Args;
use serde::Serialize;

use super::JournalArgs;
use super::confirm;
use super::error::{CliError, Kind};
use super::exit::Exit;
use super::hand::{not_typed, user};
use super::output::{Column, Look, Output, SCHEMA_VERSION, Tone, table};
use super::progress::ProgressLine;
use super::reading::{failed, journal_path, unusable};
use super::settings::{self, Env};
use super::target::quote;
use super::values;
use super::verify::counted;
use super::view::{Time, short};
use crate::journal::locks::LockQuery;
use crate::journal::mark::Mark;
use crate::journal::place::JournalPath;
use crate::journal::walk::Walk;
use crate::journal::{Durability, Event, Journal as _, Transaction as _};
use crate::json;
use crate::proxy::books;
use crate::proxy::child::UpstreamCommand;
use crate::rules::ids::Micros;
use probe::{Era, Found, Tool};

mod checks;
mod probe;
mod sessions;

/// Check the journal's surroundings, and an upstream
///
/// Looks at the journal, its file system, disk space, modes, companions, mark, key, live sessions
/// and calls in doubt: each is one line that says ok or what to do, and the code is 1 if one is not
/// ok. Given an upstream's command, starts it once, asks which protocol eras and tools it has,
/// calls nothing, and ends it.
#[derive(Args, Debug)]
#[command(override_usage = "checkpoint doctor [OPTIONS] [-- <PROGRAM> [ARG]...]")]
pub(super) struct DoctorArgs {
    /// Accept a journal that is older than it once was: its lost calls may run again
    ///
    /// For a journal that was restored from a backup, or lost its -wal. Refused while a session is
    /// live; asks on a terminal, and needs --yes elsewhere.
    #[arg(long)]
    accept_older_journal: bool,

    /// Don't ask on a terminal
    #[arg(long)]
    yes: bool,

    /// Upstream to start, as a shell command
    #[arg(long, value_name = "CMD", value_parser = values::parse_shell_command)]
    upstream_cmd: Option<String>,

    /// Upstream to start, as program and arguments
    #[arg(last = true, value_name = "PROGRAM", hide = true)]
    program: Vec<OsString>,

    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &DoctorArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let upstream = upstream(args)?;
    let path = match settings::journal(args.journal.journal.clone(), env)? {
        // An upstream can be looked at alone.
        None if upstream.is_some() && !args.accept_older_journal => None,
        given => Some(settings::journal_required(given, env)?),
    };
    let output = Output::new(args.journal.color);
    let mut checks = Vec::new();
    if let Some(path) = &path {
        let shown = format!("--journal {}", quote(&path.to_string_lossy()));
        let journal = journal_path(path)?;
        if args.accept_older_journal {
            checks.push(accept(&journal, args.yes)?);
        }
        checks.extend(checks::journal(&journal, &shown));
    }
    let mut found = None;
    if let Some(command) = &upstream {
        let mut line = ProgressLine::new();
        line.show("asking the upstream", 0, 0);
        let upstream = probe::probe(command);
        line.clear();
        checks.extend(upstream_checks(&upstream));
        found = Some(upstream);
    }
    let report = Report {
        schema_version: SCHEMA_VERSION,
        ok: checks.iter().all(|check| check.ok),
        checks,
        upstream: found.as_ref().map(UpstreamView::new),
    };
    output.document(args.journal.form.form(), &report, |look| {
        render(&report, look)
    })?;
    Ok(if report.ok { Exit::Ok } else { Exit::Failure })
}

fn upstream(args: &DoctorArgs) -> Result<Option<UpstreamCommand>, CliError> {
    match (&args.upstream_cmd, args.program.first()) {
        (Some(_), Some(_)) => Err(CliError::usage(
            "'--upstream-cmd <CMD>' can't be used with '-- <PROGRAM>'",
        )
        .hint("give the upstream in one of the two forms")),
        (Some(command), None) => Ok(Some(UpstreamCommand::Shell(command.clone()))),
        (None, Some(program)) if program.is_empty() => {
            Err(CliError::usage("the program after '--' is empty")
                .hint("checkpoint doctor [OPTIONS] -- PROGRAM [ARG]..."))
        }
        (None, Some(_)) => Ok(Some(UpstreamCommand::Argv(args.program.clone()))),
        (None, None) => Ok(None),
    }
}

/// Makes the journal as it is the newest one.
fn accept(path: &JournalPath, is_sure: bool) -> Result<Check, CliError> {
    let walk = Walk::open(path).map_err(unusable)?;
    let identity = walk
        .identity()
        .map_err(|error| failed("the journal can't be used", error))?
        .clone();
    let highest = walk
        .highest_fence()
        .map_err(|error| failed("the journal can't be used", &error))?;
    let mark = match walk.mark() {
        Ok(Some(read)) if read.highest <= highest => {
            return Ok(Check::ok(
                "older journal",
                "nothing to accept: it is not older than its mark".to_owned(),
            ));
        }
        Ok(Some(read)) => Some(read.highest),
        Ok(None) | Err(_) => None,
    };
    drop(walk);
    // A session that lives still remembers what is given up here.
    if LockQuery::new(path).is_any_live().unwrap_or(true) {
        return Err(CliError::new(
            Kind::Failure,
            "the journal is not accepted while a session is live",
        )
        .hint("end the proxies that use it, then run this again"));
    }
    let loss = match mark {
        Some(mark) => format!(
            "the journal ends at fence {highest}, but {mark} was once committed: up to {} lost, \
             and calls among them may run again",
            counted(mark.saturating_sub(highest), "attempt is", "attempts are"),
        ),
        None => format!(
            "the mark beside the journal is another's; the journal ends at fence {highest}, and \
             whether that is its newest copy can't be told"
        ),
    };
    if !is_sure {
        if !confirm::can_ask() {
            return Err(
                CliError::new(Kind::Failure, format!("{loss}; nothing was accepted"))
                    .hint("add --yes to accept it without a terminal"),
            );
        }
        if !confirm::is_typed(&format!("{loss}; type accept to go on"), "accept")? {
            return Err(not_typed("nothing was accepted", "accept"));
        }
    }
    Mark::accept_lower(path, &identity.uid, highest).map_err(unusable)?;
    let noted = note_acceptance(path, mark, highest, &user());
    Ok(match noted {
        Ok(()) => Check::ok("older journal", format!("accepted: {loss}")),
        Err(error) => Check::bad(
            "older journal",
            format!("accepted, but the journal can't say so: {error}"),
            "see the lines below",
        ),
    })
}

/// Records that somebody accepted the loss, so that a later reader knows.
fn note_acceptance(
    path: &JournalPath,
    mark: Option<u64>,
    highest: u64,
    by: &str,
) -> Result<(), CliError> {
    let mut journal = books::open_for_verdicts(path).map_err(unusable)?.journal;
    let mark = mark.map_or_else(|| "null".to_owned(), |mark| mark.to_string());
    let event = Event {
        kind: "older_accepted".into(),
        at: Micros(Time::now().0),
        entry: None,
        fence: None,
        session: None,
        letter: None,
        detail: Some(format!(
            "{{\"mark\":{mark},\"highest\":{highest},\"by\":{}}}",
            json::quote(by)
        )),
        merge_key: None,
    };
    let mut note = || {
        let mut tx = journal.begin(Durability::Power)?;
        tx.event(&event)?;
        tx.commit()
    };
    note().map_err(|error| {
        failed(
            "that the older journal was accepted can't be recorded",
            &error,
        )
    })
}

/// One line: something is as it should be, or what to do.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    check: &'static str,
    ok: bool,
    what: String,
    hint: Option<String>,
}

impl Check {
    fn ok(check: &'static str, what: String) -> Self {
        Self {
            check,
            ok: true,
            what,
            hint: None,
        }
    }

    fn bad(check: &'static str, what: String, hint: &str) -> Self {
        Self {
            check,
            ok: false,
            what,
            hint: Some(hint.to_owned()),
        }
    }
}

fn upstream_checks(found: &Found) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(failure) = &found.failure {
        let tail = found.stderr_tail.trim();
        let what = if tail.is_empty() {
            failure.clone()
        } else {
            format!("{failure}; it said: {tail}")
        };
        checks.push(Check::bad(
            "upstream",
            what,
            "run the command by hand in a shell, and mend what it says",
        ));
        return checks;
    }
    let eras = [
        ("server/discover", &found.discover),
        ("initialize", &found.initialize),
    ];
    let mut serves = false;
    for (name, era) in eras {
        match era {
            Some(Era::Serves {
                versions,
                name: own,
            }) => {
                serves = true;
                let own = own.as_deref().unwrap_or("without a name");
                let parts: Vec<&str> = std::iter::once(own)
                    .chain(versions.iter().map(String::as_str))
                    .collect();
                checks.push(Check::ok(name, parts.join(", ")));
            }
            Some(Era::Refuses(why)) => checks.push(Check::ok(
                name,
                // Many serve one era on one connection, and this was asked second or is older.
                format!("not served here ({why})"),
            )),
            None => {}
        }
    }
    if !serves {
        checks.push(Check::bad(
            "upstream",
            "it serves no protocol era".to_owned(),
            "check that the command starts an MCP server on standard input and output",
        ));
        return checks;
    }
    checks.push(match &found.tools_trouble {
        Some(why) => Check::bad(
            "tools",
            format!("the list is not whole: {why}"),
            "a policy that names tools can't be checked against it",
        ),
        None => Check::ok("tools", counted(found.tools.len() as u64, "tool", "tools")),
    });
    if found.noise > 0 {
        checks.push(Check::bad(
            "output",
            format!("{} no JSON", counted(found.noise, "line is", "lines are")),
            "such lines go to stderr and no client sees them; make it log to stderr itself",
        ));
    }
    let is_gone = found.end != "still alive";
    checks.push(if is_gone {
        Check::ok("end", found.end.to_owned())
    } else {
        Check::bad(
            "end",
            "a process of its group is still alive".to_owned(),
            "end it by hand; it does not even obey SIGKILL",
        )
    });
    checks
}

/// What `doctor` found; its JSON document.
#[derive(Debug, Serialize)]
struct Report {
    schema_version: u32,
    ok: bool,
    checks: Vec<Check>,
    upstream: Option<UpstreamView>,
}

#[derive(Debug, Serialize)]
struct UpstreamView {
    modern_versions: Vec<String>,
    legacy_version: Option<String>,
    first_answer_ms: Option<u128>,
    #[serde(skip)]
    first_answer: Option<std::time::Duration>,
    end: &'static str,
    tools: Vec<ToolView>,
}

#[derive(Debug, Serialize)]
struct ToolView {
    name: String,
    read_only_hint: Option<bool>,
    idempotent_hint: Option<bool>,
    destructive_hint: Option<bool>,
}

impl UpstreamView {
    fn new(found: &Found) -> Self {
        let versions = |era: &Option<Era>| match era {
            Some(Era::Serves { versions, .. }) => versions.clone(),
            Some(Era::Refuses(_)) | None => Vec::new(),
        };
        Self {
            modern_versions: versions(&found.discover),
            legacy_version: versions(&found.initialize).into_iter().next(),
            first_answer: found.first_answer,
            first_answer_ms: found.first_answer.map(|after| after.as_millis()),
            end: found.end,
            tools: found
                .tools
                .iter()
                .map(|tool: &Tool| ToolView {
                    name: tool.name.clone(),
                    read_only_hint: tool.read_only_hint,
                    idempotent_hint: tool.idempotent_hint,
                    destructive_hint: tool.destructive_hint,
                })
                .collect(),
        }
    }
}

const CHECK_COLUMNS: [Column; 3] = [Column::new("CHECK"), Column::new(""), Column::new("WHAT")];

const TOOL_COLUMNS: [Column; 4] = [
    Column::new("TOOL").flexible(),
    Column::new("READ-ONLY"),
    Column::new("IDEMPOTENT"),
    Column::new("DESTRUCTIVE"),
];

fn render(report: &Report, look: &Look) -> String {
    // What to do is read as a whole, so nothing here is cut to a terminal's width.
    let uncut = Look {
        width: None,
        ..*look
    };
    let rows: Vec<Vec<(String, Tone)>> = report
        .checks
        .iter()
        .flat_map(|check| {
            let (word, tone) = if check.ok {
                ("ok", Tone::Good)
            } else {
                ("NOT OK", Tone::Bad)
            };
            let line = vec![
                (check.check.to_owned(), Tone::Plain),
                (word.to_owned(), tone),
                (check.what.clone(), Tone::Plain),
            ];
            let hint = check.hint.as_ref().map(|hint| {
                vec![
                    (String::new(), Tone::Plain),
                    (String::new(), Tone::Plain),
                    (format!("-> {hint}"), Tone::Plain),
                ]
            });
            std::iter::once(line).chain(hint)
        })
        .collect();
    let mut text = table(&CHECK_COLUMNS, &rows, &uncut);
    if let Some(upstream) = report
        .upstream
        .as_ref()
        .filter(|view| !view.tools.is_empty())
    {
        let word = |hint: Option<bool>| {
            let word = match hint {
                Some(true) => "yes",
                Some(false) => "no",
                None => "-",
            };
            (word.to_owned(), Tone::Plain)
        };
        let rows: Vec<Vec<(String, Tone)>> = upstream
            .tools
            .iter()
            .map(|tool| {
                vec![
                    (tool.name.clone(), Tone::Plain),
                    word(tool.read_only_hint),
                    word(tool.idempotent_hint),
                    word(tool.destructive_hint),
                ]
            })
            .collect();
        text.push('\n');
        text.push_str(&table(&TOOL_COLUMNS, &rows, look));
        if let Some(after) = upstream.first_answer {
            text.push_str(&format!(
                "its first answer came after {}; hints are the upstream's own word\n",
                short(after)
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_says_ok_or_what_to_do() {
        let report = Report {
            schema_version: SCHEMA_VERSION,
            ok: false,
            checks: vec![
                Check::ok("disk space", "5 bytes free".to_owned()),
                Check::bad("modes", "wide \u{1b}[2J".to_owned(), "chmod 600 it"),
            ],
            upstream: None,
        };
        assert_eq!(
            render(&report, &Look::PIPE),
            "CHECK               WHAT\n\
             disk space  ok      5 bytes free\n\
             modes       NOT OK  wide \\u{1b}[2J\n\
             \x20                   -> chmod 600 it\n"
        );
    }

    #[test]
    fn an_upstream_that_serves_nothing_is_not_ok() {
        let mut found = Found {
            discover: Some(Era::Refuses("error -32601: no".into())),
            initialize: Some(Era::Refuses("error -32022: no".into())),
            end: "ended when its input was closed",
            ..Found::default()
        };
        assert!(upstream_checks(&found).iter().any(|check| !check.ok));
        found.initialize = Some(Era::Serves {
            versions: vec!["2025-11-25".into()],
            name: None,
        });
        assert!(upstream_checks(&found).iter().all(|check| check.ok));
        found.discover = Some(Era::Serves {
            versions: Vec::new(),
            name: None,
        });
        let whats: Vec<String> = upstream_checks(&found)
            .into_iter()
            .map(|check| check.what)
            .collect();
        assert_eq!(whats[..2], ["without a name", "without a name, 2025-11-25"]);
        found.noise = 1;
        assert!(upstream_checks(&found).iter().any(|check| !check.ok));
    }
}
