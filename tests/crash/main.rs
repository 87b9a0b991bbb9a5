//! The real binary, killed at each of its system calls, lied to by each, given a journal that
//! somebody damaged, and put through all kinds of trouble at once. The upstream's log of effects is
//! the judge.
//!
//! `CRASH_STRIDE=1 CRASH_FLIPS=20000 CRASH_SOAK_SECONDS=900 cargo test --test crash -- --nocapture`
//! is the long form.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "in a test, what can't be is a failure with a line number"
)]

mod bench;
#[path = "../simulation/random.rs"]
#[expect(dead_code, reason = "the simulation uses more of it")]
mod random;
mod soak;

use std::time::Instant;

use bench::{Bench, CALLS, on_all_cores, outcome};

/// Points at which the process must have been killed.
const KILLS_MIN: usize = 600;

/// Errors that system calls must have been made to return.
const ERRORS_MIN: usize = 400;

/// Journals that must have been damaged.
const TRUNCATIONS_MIN: usize = 33;
const FLIPS: u64 = 500;

pub(crate) fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns whether a tool is here. Where nothing may be left out, it has to be.
pub(crate) fn has(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join(tool).exists());
    if !is_there {
        assert!(std::env::var_os("CI").is_none(), "this needs {tool}");
        println!("SKIPPED crash: no {tool}");
    }
    is_there
}

fn strace(call: &str, what: &str, when: usize) -> Vec<String> {
    [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        &format!("trace={call}"),
        "-e",
        &format!("inject={call}:{what}:when={when}"),
    ]
    .map(String::from)
    .to_vec()
}

/// How often each system call is made by the thread that makes most of them.
fn counts(calls: &[&'static str]) -> Vec<(&'static str, usize)> {
    let bench = Bench::new();
    let log = bench.path("trace");
    let wrapper = [
        "strace",
        "-f",
        "-qq",
        "-o",
        &log.to_string_lossy(),
        "-e",
        &format!("trace={}", calls.join(",")),
    ]
    .map(String::from);
    let (answers, code) = bench.run(&wrapper);
    assert_eq!((answers.len() as u64, code), (CALLS, Some(0)));
    let text = std::fs::read_to_string(&log).unwrap();
    let mut by_thread = std::collections::BTreeMap::<(String, &str), usize>::new();
    for line in text.lines() {
        let (thread, rest) = line.split_once(' ').unwrap();
        for call in calls {
            if rest.trim_start().starts_with(&format!("{call}(")) {
                *by_thread.entry((thread.to_owned(), call)).or_default() += 1;
            }
        }
    }
    calls
        .iter()
        .map(|call| {
            let most = by_thread
                .iter()
                .filter(|((_, other), _)| other == call)
                .map(|(_, count)| *count)
                .max();
            (*call, most.unwrap_or(0))
        })
        .collect()
}

fn sweep(points: &[(&'static str, String, usize)]) -> (usize, Vec<String>) {
    let results = on_all_cores(points, |bench, (call, what, when)| {
        bench.clear();
        let (first, code) = bench.run(&strace(call, what, *when));
        let (second, _) = bench.run(&[]);
        let judged = if second.len() as u64 == CALLS {
            bench.judge(&first, &second)
        } else {
            Err(format!("the second run gave {} answers", second.len()))
        };
        let bad = judged
            .err()
            .map(|bad| format!("{call} {what} {when}: {bad}"));
        (code != Some(0) || (first.len() as u64) < CALLS, bad)
    });
    let hurt = results.iter().filter(|(hurt, _)| *hurt).count();
    (
        hurt,
        results.into_iter().filter_map(|(_, bad)| bad).collect(),
    )
}

#[test]
fn a_kill_at_any_system_call_runs_nothing_twice_and_loses_nothing() {
    if !has("strace") {
        return;
    }
    let start = Instant::now();
    let calls = [
        "pwrite64",
        "write",
        "writev",
        "fdatasync",
        "fsync",
        "pread64",
        "read",
        "fcntl",
        "openat",
        "close",
        "poll",
        "ftruncate",
        "unlink",
        "linkat",
        "newfstatat",
        "clock_nanosleep",
        "mmap",
        "sendto",
        "sendmsg",
        "lseek",
        "fstat",
        "futex",
        "rt_sigaction",
    ];
    let counts = counts(&calls);
    let all: usize = counts.iter().map(|(_, count)| count).sum();
    // Each point if there are few; the long form takes them all.
    // Long runs of one call's writes are sampled on their own.
    let few: usize = counts
        .iter()
        .filter(|(call, _)| *call != "pwrite64")
        .map(|(_, count)| count)
        .sum();
    let stride = from_env("CRASH_STRIDE").map_or(few.div_ceil(600).max(1), |given| given as usize);
    let mut points = Vec::new();
    for (call, count) in &counts {
        // The few calls that change the disk are never passed over.
        let is_write = [
            "pwrite64",
            "fdatasync",
            "fsync",
            "ftruncate",
            "unlink",
            "linkat",
        ]
        .contains(call);
        for when in places(*count, if is_write { KILL_WRITES } else { (0, stride) }) {
            points.push((*call, "signal=KILL".to_owned(), when));
        }
    }
    let (hurt, bad) = sweep(&points);
    for bad in bad.iter().take(10) {
        println!("  {bad}");
    }
    println!(
        "crash: {} of {all} points killed ({hurt} cut the run short) in {:.1} s, {} bad",
        points.len(),
        start.elapsed().as_secs_f64(),
        bad.len()
    );
    assert!(bad.is_empty());
    assert!(points.len() >= KILLS_MIN, "only {} points", points.len());
    assert!(hurt > points.len() / 2, "few kills had any effect");
}

/// Of the calls that change the disk the first so many are all taken, and of the rest each so
/// manieth: most of them write one page after the other to make the log long.
const KILL_WRITES: (usize, usize) = (160, 40);
const ERROR_WRITES: (usize, usize) = (100, 60);

/// Returns the occasions of a call at which something is done to it.
fn places(count: usize, (dense, step): (usize, usize)) -> impl Iterator<Item = usize> {
    let step = if from_env("CRASH_STRIDE") == Some(1) {
        1
    } else {
        step.max(1)
    };
    let sparse = (dense + 1..=count).step_by(step);
    (1..=dense.min(count)).chain(sparse)
}

#[test]
fn an_error_of_any_system_call_runs_nothing_twice_and_loses_nothing() {
    if !has("strace") {
        return;
    }
    let start = Instant::now();
    let errors = [
        ("pwrite64", &["EIO", "ENOSPC", "EDQUOT"][..]),
        ("fdatasync", &["EIO", "ENOSPC"]),
        ("fsync", &["EIO"]),
        ("pread64", &["EIO"]),
        ("fcntl", &["ENOLCK", "EINTR"]),
        ("openat", &["EMFILE", "EACCES"]),
        ("ftruncate", &["EIO"]),
        ("unlink", &["EIO"]),
        ("linkat", &["EIO"]),
        ("newfstatat", &["EIO"]),
        ("read", &["EIO", "EINTR"]),
        ("write", &["EIO", "ENOSPC", "EINTR"]),
        ("poll", &["EINTR", "ENOMEM"]),
        ("mmap", &["ENOMEM"]),
    ];
    let calls: Vec<&'static str> = errors.iter().map(|(call, _)| *call).collect();
    let counts = counts(&calls);
    let all: usize = counts
        .iter()
        .zip(&errors)
        .map(|((_, count), (_, errors))| count * errors.len())
        .sum();
    let stride = from_env("CRASH_STRIDE").map_or(all.div_ceil(1000).max(1), |given| given as usize);
    let mut points = Vec::new();
    for ((call, count), (_, errors)) in counts.iter().zip(&errors) {
        let is_write = ["pwrite64", "fdatasync", "fsync", "ftruncate", "linkat"].contains(call);
        for error in *errors {
            // After an unlock that failed, outcomes are tried for half a minute: a few will do.
            let step = match *call {
                "fcntl" => (0, stride * 16),
                _ if is_write => ERROR_WRITES,
                _ => (0, stride),
            };
            for when in places(*count, step) {
                points.push((*call, format!("error={error}"), when));
            }
        }
    }
    println!("crash: {} errors to return", points.len());
    let (hurt, bad) = sweep(&points);
    for bad in bad.iter().take(10) {
        println!("  {bad}");
    }
    println!(
        "crash: {} of {all} errors returned ({hurt} cut the run short) in {:.1} s, {} bad",
        points.len(),
        start.elapsed().as_secs_f64(),
        bad.len()
    );
    assert!(bad.is_empty());
    assert!(points.len() >= ERRORS_MIN, "only {} points", points.len());
}

/// A journal that was made by one whole run, as its files.
fn finished(bench: &Bench) -> (bench::Answers, Vec<(String, Vec<u8>)>) {
    bench.clear();
    let (answers, code) = bench.run(&[]);
    assert_eq!((answers.len() as u64, code), (CALLS, Some(0)));
    let folder = bench.path("");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        files.push((name, std::fs::read(entry.path()).unwrap()));
    }
    (answers, files)
}

fn restore(bench: &Bench, files: &[(String, Vec<u8>)]) {
    bench.clear();
    for (name, bytes) in files {
        std::fs::write(bench.path(name), bytes).unwrap();
    }
}

/// After damage: the same bytes again, or a refusal; never a second effect.
fn judge_damaged(bench: &Bench, before: &bench::Answers) -> Result<bool, String> {
    let (after, _) = bench.run(&[]);
    for (seq, count) in bench.effects() {
        if count > 1 {
            return Err(format!("seq {seq} ran again"));
        }
    }
    for (seq, line) in &after {
        if outcome(line) != outcome(&before[seq]) && !line.contains("\"error\"") {
            return Err(format!("seq {seq} is replayed as {line}"));
        }
    }
    let is_same = after
        .iter()
        .all(|(seq, line)| outcome(line) == outcome(&before[seq]));
    Ok(is_same && after.len() == before.len())
}

#[derive(Clone, Debug)]
enum Damage {
    Truncate(String, usize),
    Flip(String, usize, u8),
    Remove(String),
}

fn hurt(
    bench: &Bench,
    before: &bench::Answers,
    files: &[(String, Vec<u8>)],
    damage: &Damage,
) -> Result<bool, String> {
    restore(bench, files);
    match damage {
        Damage::Truncate(name, bytes) => {
            let path = bench.path(name);
            std::fs::OpenOptions::new()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(*bytes as u64)
                .unwrap();
        }
        Damage::Flip(name, at, bit) => {
            let path = bench.path(name);
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[*at] ^= 1 << bit;
            std::fs::write(path, bytes).unwrap();
        }
        Damage::Remove(name) => std::fs::remove_file(bench.path(name)).unwrap(),
    }
    judge_damaged(bench, before).map_err(|bad| format!("{damage:?}: {bad}"))
}

#[test]
fn a_damaged_journal_runs_nothing_again_and_replays_nothing_else() {
    let start = Instant::now();
    let flips = from_env("CRASH_FLIPS").unwrap_or(FLIPS);
    let bench = Bench::new();
    let (before, files) = finished(&bench);
    let size = |name: &str| {
        files
            .iter()
            .find(|(other, _)| other == name)
            .map_or(0, |(_, bytes)| bytes.len())
    };
    let mut damages = Vec::new();
    let db = size("run.db");
    for part in 0..40 {
        damages.push(Damage::Truncate("run.db".into(), db * part / 40));
    }
    for (name, bytes) in &files {
        if name == "run.db" || name == "effects" || name == "trace" || bytes.is_empty() {
            continue;
        }
        for part in 0..8 {
            damages.push(Damage::Truncate(name.clone(), bytes.len() * part / 8));
        }
        damages.push(Damage::Remove(name.clone()));
    }
    damages.push(Damage::Remove("run.db".into()));
    // The name of the workflow, wherever it stands: in its row, in an index, among the journal's
    // own facts.
    let name = bench
        .path("run.db")
        .to_string_lossy()
        .into_owned()
        .into_bytes();
    let image = &files.iter().find(|(name, _)| name == "run.db").unwrap().1;
    let places: Vec<usize> = (0..image.len().saturating_sub(name.len()))
        .filter(|at| image[*at..].starts_with(&name))
        .collect();
    assert!(places.len() >= 3, "the workflow's name is not there");
    for at in places {
        damages.push(Damage::Flip("run.db".into(), at + 5, 1));
    }
    let truncations = damages.len();
    let mut state = 0x1234_5678_9ABC_DEF1_u64;
    let mut below = |limit: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((u128::from(state) * limit as u128) >> 64).unwrap()
    };
    let names: Vec<&str> = files
        .iter()
        .filter(|(name, bytes)| name != "effects" && !bytes.is_empty())
        .map(|(name, _)| name.as_str())
        .collect();
    for number in 0..flips {
        // Nine of ten in the journal itself.
        let name = if number % 10 == 0 {
            names[below(names.len())]
        } else {
            "run.db"
        };
        let at = below(size(name));
        damages.push(Damage::Flip(
            name.into(),
            at,
            u8::try_from(below(8)).unwrap(),
        ));
    }
    let results = on_all_cores(&damages, |bench, damage| {
        hurt(bench, &before, &files, damage)
    });
    let bad: Vec<&String> = results
        .iter()
        .filter_map(|result| result.as_ref().err())
        .collect();
    let same = results
        .iter()
        .filter(|result| matches!(result, Ok(true)))
        .count();
    for bad in bad.iter().take(10) {
        println!("  {bad}");
    }
    println!(
        "crash: {truncations} truncations and removals, {flips} bit flips in {:.1} s: {same} did no harm, {} were met, {} bad",
        start.elapsed().as_secs_f64(),
        results.len() - same - bad.len(),
        bad.len()
    );
    assert!(bad.is_empty());
    assert!(truncations >= TRUNCATIONS_MIN);
}
