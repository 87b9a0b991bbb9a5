//! Everything at once, by a seed: up to eight proxies on one journal, whose agents ask for numbered,
//! keyed and bare calls while proxies are killed and stopped, upstreams killed at chosen points, the
//! disk is full for a while and an operator works; then the same calls again, in peace.
//!
//! The seed gives the plan, not what the scheduler makes of it: `CRASH_SOAK_SEED=7` lives through
//! that world again, and `CRASH_SOAK_SECONDS=900` is the long form.

mod agent;
mod gate;
mod operator;
mod oracle;
mod plan;
mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plan::Plan;
use world::World;

use crate::{from_env, has};

const SECONDS: u64 = 30;

/// Worlds that must have been lived through, however long it takes.
const WORLDS_MIN: u64 = 24;

/// What must have happened in so many worlds: about half of what usually does.
const COUNTS_MIN: [(&str, usize); 11] = [
    ("kills", 90),
    ("stops", 14),
    ("upstreams killed", 18),
    ("upstreams that died", 25),
    ("full disks", 14),
    ("unjournaled", 6),
    ("effects", 250),
    ("replays", 800),
    ("in_doubt", 150),
    ("verdicts", 80),
    ("operator's deeds", 40),
];

#[derive(Default)]
struct Sum {
    worlds: u64,
    counts: BTreeMap<String, usize>,
    bad: Vec<String>,
}

#[test]
fn nothing_runs_twice_and_nothing_is_lost_whatever_happens_at_once() {
    if !has("prlimit") {
        return;
    }
    let start = Instant::now();
    let only = from_env("CRASH_SOAK_SEED");
    let limit = Duration::from_secs(from_env("CRASH_SOAK_SECONDS").unwrap_or(SECONDS));
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let next = AtomicU64::new(from_env("CRASH_SOAK_FROM").unwrap_or(1));
    let first = next.load(Ordering::Relaxed);
    let has_failed = AtomicBool::new(false);
    let sum = Mutex::new(Sum::default());
    let live = |seed| {
        let (counts, bad) = World::new(Plan::new(seed)).run();
        let mut sum = sum.lock().unwrap();
        sum.worlds += 1;
        for (what, count) in counts {
            *sum.counts.entry(what).or_default() += count;
        }
        let told = |bad| format!("CRASH_SOAK_SEED={seed}: {bad}");
        sum.bad.extend(bad.into_iter().map(told));
        !sum.bad.is_empty()
    };
    if let Some(seed) = only {
        println!("{:#?}", Plan::new(seed));
        live(seed);
    } else {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while !has_failed.load(Ordering::Relaxed) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= first + WORLDS_MIN && start.elapsed() >= limit {
                            return;
                        }
                        has_failed.fetch_or(live(seed), Ordering::Relaxed);
                    }
                });
            }
        });
    }
    let sum = sum.into_inner().unwrap();
    for bad in sum.bad.iter().take(10) {
        println!("  {bad}");
    }
    let counts: Vec<String> = sum
        .counts
        .iter()
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    println!(
        "crash: {} worlds in {:.1} s: {}; {} bad",
        sum.worlds,
        start.elapsed().as_secs_f64(),
        counts.join(", "),
        sum.bad.len()
    );
    assert!(sum.bad.is_empty());
    if only.is_none() {
        assert!(sum.worlds >= WORLDS_MIN);
        for (what, least) in COUNTS_MIN {
            let count = sum.counts.get(what).copied().unwrap_or(0);
            assert!(count >= least, "only {count} {what}");
        }
    }
}
