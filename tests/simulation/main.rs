//! Deterministic simulation: the real session and the real guard, with everything around them
//! made up from a seed, and one oracle that counts effects.
//!
//! `SIM_SEED=7 cargo test --test simulation one -- --nocapture` shows what a seed expands to and
//! all that happens. `SIM_SEEDS=10000000 cargo test --test simulation many -- --nocapture` is
//! the long form; `SIM_FROM` is its first seed. `SIM_STEPS=400` gives each world as many steps.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "in a test, what can't be is a failure with a line number"
)]

mod choices;
mod coverage;
mod fixed;
mod life;
mod oracle;
mod plan;
mod promise;
mod random;
mod small;
mod store;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use checkpoint::seeded::{self, Bug};
use coverage::Coverage;
use plan::Plan;
use store::Book;
use world::World;

/// Seeds of the run that must hold on each change.
const SEEDS: u64 = 80_000;

/// Seeds in which each of the bugs that are there on purpose must show.
const BUG_SEEDS: u64 = 20_000;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What a seed expands to.
fn plan_of(seed: u64) -> Plan {
    let mut plan = Plan::of(seed);
    if let Some(steps) = from_env("SIM_STEPS") {
        plan.steps = usize::try_from(steps).unwrap();
    }
    plan
}

/// Runs one world. Returns a digest of all that came out at both ends, or what was violated.
fn run(plan: Plan, book: Book, coverage: &mut Coverage, traces: bool) -> Result<u64, String> {
    let mut world = World::new(plan, book, coverage, traces);
    let result =
        catch_unwind(AssertUnwindSafe(|| world.run())).unwrap_or_else(|_| Err("a panic".into()));
    for line in world.trace.iter().flatten() {
        println!("{line}");
    }
    result.map(|()| world.digest)
}

fn run_seed(seed: u64, coverage: &mut Coverage) -> Result<u64, String> {
    run(plan_of(seed), World::memory_book(), coverage, false)
}

/// Runs seeds on all cores; the first violation of each thread ends it.
fn run_many(from: u64, seeds: u64) -> (Coverage, Vec<(u64, String)>) {
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get() as u64);
    let mut all = Coverage::default();
    let mut bad = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                scope.spawn(move || {
                    let mut coverage = Coverage::default();
                    let mut bad = Vec::new();
                    for seed in (from + worker..from + seeds).step_by(threads as usize) {
                        if let Err(violation) = run_seed(seed, &mut coverage) {
                            bad.push((seed, violation));
                            if bad.len() >= 10 {
                                break;
                            }
                        }
                    }
                    (coverage, bad)
                })
            })
            .collect();
        for worker in workers {
            let (coverage, more) = worker.join().unwrap();
            all.add(&coverage);
            bad.extend(more);
        }
    });
    bad.sort();
    (all, bad)
}

#[test]
fn many_seeds_hold() {
    let seeds = from_env("SIM_SEEDS").unwrap_or(SEEDS);
    let start = Instant::now();
    let (coverage, bad) = run_many(from_env("SIM_FROM").unwrap_or(1), seeds);
    println!(
        "simulation: {} seeds in {:.1} s: {}",
        coverage.seeds,
        start.elapsed().as_secs_f64(),
        coverage.shown()
    );
    for (seed, violation) in &bad {
        println!("seed {seed}: {violation}");
    }
    assert!(
        bad.is_empty(),
        "the oracle objects; SIM_SEED={} cargo test --test simulation one -- --nocapture",
        bad[0].0
    );
    assert_eq!(coverage.seeds, seeds);
    // The rarest come up some eight times in so many.
    if seeds >= SEEDS {
        for (name, count) in coverage.all() {
            assert!(count > 0, "{name} was never met");
        }
    }
}

#[test]
fn one() {
    let Some(seed) = from_env("SIM_SEED") else {
        return;
    };
    if let Some(bug) = bug_from_env() {
        seeded::choose(Some(bug));
    }
    let plan = plan_of(seed);
    println!("{plan:#?}");
    let result = run(plan, World::memory_book(), &mut Coverage::default(), true);
    seeded::choose(None);
    result.unwrap();
}

/// `SIM_BUG`: the one bug that is meant.
fn bug_from_env() -> Option<Bug> {
    let name = std::env::var("SIM_BUG").ok()?;
    let bug = Bug::ALL.iter().find(|bug| format!("{bug:?}") == name);
    Some(*bug.expect("SIM_BUG names a bug"))
}

/// How many seeds it took, and what was violated.
type Caught = Option<(u64, String)>;

fn hunt(bug: Bug) -> Caught {
    seeded::choose(Some(bug));
    let mut coverage = Coverage::default();
    let caught = (1..=BUG_SEEDS).find_map(|seed| {
        let violation = run_seed(seed, &mut coverage).err()?;
        Some((seed, violation))
    });
    seeded::choose(None);
    caught
}

#[test]
fn every_seeded_bug_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let only = bug_from_env();
    let bugs = only.as_ref().map_or(Bug::ALL, std::slice::from_ref);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let found = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(bug) = bugs.get(at) else { return };
                    let caught = hunt(*bug);
                    match &caught {
                        Some((seed, violation)) => {
                            let violation: String = violation.chars().take(90).collect();
                            println!("{bug:?}: seed {seed}: {violation}");
                        }
                        None => println!("{bug:?}: NOT CAUGHT in {BUG_SEEDS} seeds"),
                    }
                    found.lock().unwrap().push(caught.is_some());
                }
            });
        }
    });
    let _ = std::panic::take_hook();
    let found = found.into_inner().unwrap();
    let missed = found.iter().filter(|is_caught| !**is_caught).count();
    println!(
        "seeded bugs: {} of {} caught",
        found.len() - missed,
        found.len()
    );
    assert!(missed == 0 && (only.is_some() || found.len() >= 50));
}

/// The same worlds over SQLite: both journals must lead to the same bytes at both ends.
#[test]
fn both_journals_lead_to_the_same_bytes() {
    let seeds = from_env("SIM_SQLITE_SEEDS").unwrap_or(400);
    let folder = tempfile::tempdir().unwrap();
    for seed in 1..=seeds {
        let mut coverage = Coverage::default();
        let plan = Plan::of(seed).comparable();
        let path = folder.path().join(format!("{seed}.db"));
        let memory = run(plan.clone(), World::memory_book(), &mut coverage, false);
        let sqlite = run(plan, sqlite_book(&path), &mut coverage, false);
        assert_eq!(memory, sqlite, "seed {seed}");
        let _ = std::fs::remove_file(path);
    }
    println!("simulation: {seeds} seeds over SQLite, all as in memory");
}

fn sqlite_book(path: &std::path::Path) -> Book {
    use checkpoint::journal::{schema, sqlite::SqliteJournal};
    use checkpoint::rules::ids::{Micros, WorkflowId};
    let own = WorkflowId("own".into());
    std::fs::write(path, schema::empty_image([7; 16], &own, Micros(1)).unwrap()).unwrap();
    let path = path.to_owned();
    // How a file is opened is proven elsewhere; here no power goes.
    let connect = move || {
        let db = rusqlite::Connection::open(&path).unwrap();
        db.execute_batch("PRAGMA journal_mode=MEMORY").unwrap();
        Ok(db)
    };
    let journal = SqliteJournal::open(Box::new(connect), Box::new(|| Ok(()))).unwrap();
    Book::Sqlite(Box::new(journal))
}

/// Each run has hash maps of its own order, so what follows such an order shows here: by half if
/// it is the order of two.
#[test]
fn a_seed_is_a_reproduction() {
    for seed in 1..=from_env("SIM_TWICE").unwrap_or(2_000) {
        let first = run_seed(seed, &mut Coverage::default());
        let second = run_seed(seed, &mut Coverage::default());
        assert_eq!(first, second, "seed {seed}");
    }
}
