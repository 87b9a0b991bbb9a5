//! Large journals and long sessions: what must grow in a straight line, or not at all.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Plan;
use crate::client::{Load, Peer};
use crate::groups::{copy_journal, journal, seed, synced};
use crate::stats::{Goal, Spread, Table, p50};

/// How often a command's memory is looked at while it runs.
const GLANCE: Duration = Duration::from_millis(2);

/// How long one command may take.
const COMMAND_MAX: Duration = Duration::from_secs(300);

/// How many steps a long session is told in.
const STEPS: usize = 10;

/// What is measured one at a time after each step of a long session.
const PROBES: usize = 1000;

/// The commands that read the whole of a journal.
const COMMANDS: [(&str, &[&str]); 6] = [
    ("ls", &["ls"]),
    ("ls --json", &["ls", "--json"]),
    ("verify", &["verify"]),
    ("export --format mcp", &["export", "--format", "mcp"]),
    ("export --format jsonl", &["export", "--format", "jsonl"]),
    // Last: it changes its journal.
    ("gc", &["gc", "--older-than", "0s", "--yes"]),
];

/// Runs each command that reads a whole journal on two of them, one ten times as large.
pub(crate) fn commands(plan: &Plan, table: &mut Table) -> io::Result<()> {
    let small = if plan.is_full { 100_000 } else { 10_000 };
    let large = 10 * small;
    let mut journals = Vec::new();
    for entries in [small, large] {
        let start = Instant::now();
        let seeded = seed(plan, entries)?;
        let took = start.elapsed();
        if entries == large && took > Duration::from_millis(500) {
            let what = format!("a journal of {large} entries, made by its proxy");
            table.count(&what, "s", Goal::Shown, took.as_secs_f64());
        }
        // The other groups have use for what was seeded.
        let name = format!("commands{entries}.db");
        copy_journal(&seeded, &plan.folder, &name)?;
        journals.push(plan.folder.join(name));
    }
    for (name, words) in COMMANDS {
        let both = watched(words, &journals[0])
            .and_then(|(few, _)| Ok((few, watched(words, &journals[1])?)));
        let (few, (many, most)) = match both {
            Ok(both) => both,
            // The others may still be quick enough.
            Err(error) => {
                table.not_run(&format!("{name}, {large} entries"), &error.to_string());
                continue;
            }
        };
        let what = format!("{name}, {large} entries");
        table.count(&what, "s", Goal::Shown, many.as_secs_f64());
        let what = format!("{name}, {large} / {small} entries, time");
        let growth = many.as_secs_f64() / few.as_secs_f64();
        table.count(&what, "x", Goal::Shown, growth);
        let what = format!("{name}, {large} entries, most memory");
        table.count(&what, "MiB", Goal::Shown, most);
    }
    Ok(())
}

/// Runs a command on a journal; returns how long it took and the most memory that was seen, in MiB.
fn watched(words: &[&str], journal: &Path) -> io::Result<(Duration, f64)> {
    let start = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_checkpoint"))
        .args(words)
        .arg("--journal")
        .arg(journal)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut most: f64 = 0.0;
    loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let kib = text
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|value| value.split_whitespace().next()?.parse::<f64>().ok());
        most = most.max(kib.unwrap_or(0.0) / 1024.0);
        if let Some(status) = child.try_wait()? {
            let took = start.elapsed();
            return if status.success() {
                Ok((took, most))
            } else {
                Err(io::Error::other(format!("{words:?} ended with {status}")))
            };
        }
        if start.elapsed() > COMMAND_MAX {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("{words:?} took too long")));
        }
        std::thread::sleep(GLANCE);
    }
}

/// Makes 10^6 calls (10^5 without `--full`) in one session, and looks ten times at what it has
/// come to.
pub(crate) fn long_session(plan: &Plan, table: &mut Table) -> io::Result<()> {
    let step = if plan.is_full { 100_000 } else { 10_000 };
    let load = Load::of(100);
    let mut floor = Peer::ready(&synced(plan), None)?;
    let mut ours = Peer::ready(&journal(plan, "long"), None)?;
    let mut first = None;
    for done in 1..=STEPS {
        ours.pipelined(load, step - PROBES, 64)?;
        // Turn by turn, so that both see the same disk.
        let mut ratios = Vec::new();
        let mut all = Vec::new();
        for _ in 0..10 {
            let base = p50(&floor.sequential(load, PROBES / 10)?);
            let times = ours.sequential(load, PROBES / 10)?;
            ratios.push(p50(&times) / base);
            all.extend(times);
        }
        let resident = ours.status_kib("VmRSS")? as f64 / 1024.0;
        let calls = done * step;
        let what = format!("call {calls} of a session, p50 / relay-sync2");
        table.ratio(&what, "x", Goal::Shown, Spread::of(ratios));
        let what = format!("call {calls} of a session, resident");
        table.count(&what, "MiB", Goal::Shown, resident);
        let p50 = p50(&all);
        let (early, small) = *first.get_or_insert((p50, resident));
        if done == STEPS {
            let what = format!("call {calls} / call {step} of a session, p50");
            table.count(&what, "x", Goal::Shown, p50 / early);
            let what = format!("call {calls} / call {step} of a session, resident");
            table.count(&what, "x", Goal::Shown, resident / small);
        }
    }
    ours.end()?;
    floor.end()
}
