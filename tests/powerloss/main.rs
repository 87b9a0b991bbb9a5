//! Power cuts and I/O errors under the journal code that ships.
//!
//! A scenario runs once on a recording VFS; then, for every operation that SQLite did, the disk
//! is put together as a power cut after it could have left it, and the journal is opened again.
//! What had been acknowledged must be there. Weaker settings and a disk that lies are put through
//! the same and must lose something: otherwise the harness sees nothing.
//!
//! `POWER_SEEDS=200 POWER_DOUBLE=1 cargo test --test powerloss -- --nocapture` is the long form.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, what can't be is a failure with a line number"
)]

mod disk;
#[path = "../simulation/random.rs"]
#[expect(dead_code, reason = "the simulation uses more of it")]
mod random;
mod scenario;
mod vfs;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use checkpoint::seeded::{self, Bug};
use disk::{Disk, Files, Survivors};
use scenario::{Ack, Mode, Run, Scenario, fresh, verify};
use vfs::{Failure, Op};

/// Power cuts that must have been made.
const CUTS_MIN: usize = 60_000;

/// Power cuts that must have been made where outcomes are deferred.
const DEFERRED_CUTS_MIN: usize = 10_000;

/// I/O errors that must have been made.
const ERRORS_MIN: usize = 1_800;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A folder in memory where there is one: what is slow about a disk is of no use here.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

fn put(folder: &Path, files: &Files) {
    for entry in std::fs::read_dir(folder).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    for (name, bytes) in files {
        let name = Path::new(name).file_name().unwrap();
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

/// A scenario that was played: the disk before it, all operations, all acknowledgements.
struct Played {
    base: Files,
    ops: Vec<Op>,
    acks: Vec<Ack>,
    failed: usize,
}

fn play(
    folder: &Path,
    scenario: Scenario,
    mode: Mode,
    failure: Option<(usize, Failure, bool)>,
) -> Played {
    for entry in std::fs::read_dir(folder).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let base = fresh(folder);
    vfs::begin(failure);
    let mut acks = Vec::new();
    if let Ok(mut run) = Run::open(folder, mode) {
        // The first error ends the run, as it ends the proxy's use of the journal.
        let _ = run.play(scenario);
        acks = std::mem::take(&mut run.acks);
    }
    let record = vfs::end();
    Played {
        base,
        ops: record.ops,
        acks,
        failed: record.failed,
    }
}

/// Cuts the power after each operation, with each kind of survivors. Returns how often, and what
/// was wrong.
fn cut_everywhere(
    folder: &Path,
    played: &Played,
    promise: Mode,
    lies: bool,
    seeds: u64,
) -> (usize, Vec<String>) {
    let mut disk = Disk::new(&played.base, lies);
    let mut cuts = 0;
    let mut bad = Vec::new();
    for at in 0..=played.ops.len() {
        if at > 0 {
            disk.apply(&played.ops[at - 1]);
        }
        let acks: Vec<&Ack> = played.acks.iter().filter(|ack| ack.at <= at).collect();
        let mut kinds = vec![Survivors::None];
        if disk.has_pending() {
            kinds.push(Survivors::All);
            for seed in 0..seeds {
                kinds.push(Survivors::Random(seed * 1000 + at as u64));
                kinds.push(Survivors::Torn(seed * 1000 + at as u64));
            }
        }
        for kind in kinds {
            cuts += 1;
            put(folder, &disk.after_cut(kind));
            match verify(folder, &acks, promise) {
                Ok(run) => drop(run),
                Err(wrong) => {
                    if bad.len() < 5 {
                        bad.push(format!("op {at} {kind:?}: {wrong}"));
                    } else {
                        bad.push(String::new());
                    }
                }
            }
        }
    }
    (cuts, bad)
}

/// Runs `work` for each item on as many threads as there are cores.
fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&Path, &T) -> R + Sync) -> Vec<R> {
    vfs::install();
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let folder = scratch();
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    let result = work(folder.path(), item);
                    results.lock().unwrap().push(result);
                }
            });
        }
    });
    results.into_inner().unwrap()
}

#[test]
fn no_acknowledged_row_is_lost_at_any_operation() {
    let start = Instant::now();
    let seeds = from_env("POWER_SEEDS").unwrap_or(52);
    let results = on_all_cores(&Scenario::ALL, |folder, scenario| {
        let played = play(folder, *scenario, Mode::Ships, None);
        assert!(!played.acks.is_empty(), "{scenario:?} did nothing");
        let (cuts, bad) = cut_everywhere(folder, &played, Mode::Ships, false, seeds);
        (*scenario, played.ops.len(), cuts, bad)
    });
    let mut cuts = 0;
    let mut wrong = 0;
    for (scenario, ops, count, bad) in &results {
        println!(
            "power: {scenario:?}: {ops} operations, {count} cuts, {} bad",
            bad.len()
        );
        for bad in bad.iter().filter(|bad| !bad.is_empty()) {
            println!("  {bad}");
        }
        cuts += count;
        wrong += bad.len();
    }
    println!(
        "power: {cuts} cuts in {:.1} s, {wrong} bad",
        start.elapsed().as_secs_f64()
    );
    assert_eq!(wrong, 0);
    assert!(cuts >= CUTS_MIN, "only {cuts} cuts");
}

/// With `--durability deferred` a cut may take outcomes that no later sync has reached, and nothing
/// else: each of them is a doubt, and runs no second time.
#[test]
fn a_cut_takes_deferred_outcomes_alone_and_leaves_doubts() {
    let start = Instant::now();
    let seeds = from_env("POWER_SEEDS").unwrap_or(9);
    let bugs = [None, Some(Bug::ReservationDeferred)];
    let runs: Vec<(Scenario, Option<Bug>)> = bugs
        .into_iter()
        .flat_map(|bug| Scenario::ALL.map(|scenario| (scenario, bug)))
        .collect();
    let results = on_all_cores(&runs, |folder, (scenario, bug)| {
        seeded::choose(*bug);
        let played = play(folder, *scenario, Mode::Deferred, None);
        seeded::choose(None);
        let seeds = if bug.is_some() { 1 } else { seeds };
        let (cuts, bad) = cut_everywhere(folder, &played, Mode::Deferred, false, seeds);
        (*scenario, *bug, cuts, bad)
    });
    let mut cuts = 0;
    for (scenario, bug, count, bad) in &results {
        let name = bug.map_or(String::new(), |bug| format!(" with {bug:?}"));
        println!(
            "power: deferred, {scenario:?}{name}: {count} cuts, {} bad",
            bad.len()
        );
        assert_eq!(bad.is_empty(), bug.is_none(), "{:?}", bad.first());
        cuts += count;
    }
    println!(
        "power: deferred, {cuts} cuts in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    assert!(cuts >= DEFERRED_CUTS_MIN, "only {cuts} cuts");
}

#[test]
fn weaker_settings_and_lying_disks_do_lose_rows() {
    let controls = [
        ("synchronous NORMAL", Mode::Normal, false),
        ("synchronous OFF", Mode::Off, false),
        ("a lying disk", Mode::Ships, true),
        ("deferred outcomes", Mode::Deferred, false),
    ];
    let results = on_all_cores(&controls, |folder, (name, mode, lies)| {
        let played = play(folder, Scenario::Settle, *mode, None);
        let (cuts, bad) = cut_everywhere(folder, &played, Mode::Ships, *lies, 2);
        (*name, cuts, bad.len())
    });
    for (name, cuts, bad) in &results {
        println!("power: control, {name}: {bad} of {cuts} cuts are bad");
        assert!(
            *bad > 0,
            "{name} loses nothing, so the harness sees nothing"
        );
    }
    assert_eq!(results.len(), controls.len());
}

#[test]
fn no_acknowledged_row_is_lost_by_an_error_at_any_operation() {
    let start = Instant::now();
    let mut points = Vec::new();
    let folder = scratch();
    vfs::install();
    let scenarios = [
        Scenario::FirstOpen,
        Scenario::Settle,
        Scenario::Fail,
        Scenario::Checkpoint,
    ];
    for scenario in scenarios {
        for failure in [Failure::Io, Failure::Full, Failure::Read] {
            // How many there are is told by a run in which the last of very many would fail.
            let mut last = 0;
            for at in (0..).step_by(16) {
                let played = play(
                    folder.path(),
                    scenario,
                    Mode::Ships,
                    Some((at, failure, false)),
                );
                if played.failed == 0 {
                    last = at;
                    break;
                }
            }
            for at in 0..last {
                points.push((scenario, failure, at, false));
                points.push((scenario, failure, at, true));
            }
        }
    }
    let results = on_all_cores(&points, |folder, (scenario, failure, at, is_sticky)| {
        let failure = Some((*at, *failure, *is_sticky));
        let played = play(folder, *scenario, Mode::Ships, failure);
        let mut disk = Disk::new(&played.base, false);
        for op in &played.ops {
            disk.apply(op);
        }
        let acks: Vec<&Ack> = played.acks.iter().collect();
        let mut bad = Vec::new();
        for survivors in [
            Survivors::None,
            Survivors::All,
            Survivors::Random(*at as u64),
        ] {
            put(folder, &disk.after_cut(survivors));
            if let Err(wrong) = verify(folder, &acks, Mode::Ships) {
                bad.push(format!("{scenario:?} {failure:?} {survivors:?}: {wrong}"));
            }
        }
        (usize::from(played.failed > 0), bad)
    });
    let met: usize = results.iter().map(|(met, _)| met).sum();
    let bad: Vec<&String> = results.iter().flat_map(|(_, bad)| bad).collect();
    for bad in bad.iter().take(10) {
        println!("  {bad}");
    }
    println!(
        "power: {met} I/O errors x 3 cuts in {:.1} s, {} bad",
        start.elapsed().as_secs_f64(),
        bad.len()
    );
    assert!(bad.is_empty());
    assert!(met >= ERRORS_MIN, "only {met} errors");
}

/// The power goes again while the journal is opened after a cut: at each operation of that.
#[test]
fn no_acknowledged_row_is_lost_by_a_second_cut() {
    let start = Instant::now();
    let is_long = from_env("POWER_DOUBLE").is_some();
    let mut firsts: Vec<(Scenario, usize)> = Vec::new();
    vfs::install();
    let folder: tempfile::TempDir = scratch();
    for scenario in [Scenario::Settle, Scenario::Checkpoint] {
        let ops = play(folder.path(), scenario, Mode::Ships, None).ops.len();
        let step = if is_long { 1 } else { 9 };
        firsts.extend((0..=ops).step_by(step).map(|at| (scenario, at)));
    }
    let results = on_all_cores(&firsts, |folder, (scenario, at)| {
        let played = play(folder, *scenario, Mode::Ships, None);
        let mut disk = Disk::new(&played.base, false);
        for op in &played.ops[..*at] {
            disk.apply(op);
        }
        let acks: Vec<&Ack> = played.acks.iter().filter(|ack| ack.at <= *at).collect();
        let mut cuts = 0;
        let mut bad = Vec::new();
        for first in [
            Survivors::None,
            Survivors::Random(*at as u64),
            Survivors::All,
        ] {
            let left = disk.after_cut(first);
            put(folder, &left);
            let base: Files = left
                .iter()
                .map(|(name, bytes)| {
                    let name = Path::new(name).file_name().unwrap();
                    let name: PathBuf = folder.join(name);
                    (name.to_string_lossy().into_owned(), bytes.clone())
                })
                .collect();
            vfs::begin(None);
            let opened = verify(folder, &acks, Mode::Ships);
            if let Err(wrong) = &opened {
                bad.push(format!("{scenario:?} op {at}: {wrong}"));
            }
            drop(opened);
            let ops = vfs::end().ops;
            let mut second = Disk::new(&base, false);
            for (number, op) in ops.iter().enumerate() {
                second.apply(op);
                if matches!(op, Op::Other) {
                    continue;
                }
                for survivors in [Survivors::None, Survivors::Torn(number as u64)] {
                    cuts += 1;
                    put(folder, &second.after_cut(survivors));
                    if let Err(wrong) = verify(folder, &acks, Mode::Ships) {
                        bad.push(format!(
                            "{scenario:?} ops {at}, {number} {survivors:?}: {wrong}"
                        ));
                    }
                }
            }
        }
        (cuts, bad)
    });
    let cuts: usize = results.iter().map(|(cuts, _)| cuts).sum();
    let bad: Vec<&String> = results.iter().flat_map(|(_, bad)| bad).collect();
    for bad in bad.iter().take(10) {
        println!("  {bad}");
    }
    println!(
        "power: {cuts} second cuts in {:.1} s, {} bad",
        start.elapsed().as_secs_f64(),
        bad.len()
    );
    assert!(bad.is_empty());
    assert!(cuts >= 2000, "only {cuts} second cuts");
}
