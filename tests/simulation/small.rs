//! Small worlds, exhaustively: every way in which so many faults and delays can meet so few calls.
//!
//! `SMALL_FAULTS=2 SMALL_DELAYS=2 cargo test --test simulation every_way -- --nocapture` is the
//! long form.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use checkpoint::seeded::{self, Bug};

use crate::choices::Choices;
use crate::coverage::Coverage;
use crate::from_env;
use crate::life::Habit;
use crate::oracle::Check;
use crate::plan::{Mode, Plan};
use crate::promise::{Promise, Reach};
use crate::world::World;
use crate::world::small::Budget;

/// A small world.
struct Small {
    name: &'static str,
    plan: Plan,
    /// How often a way may leave the usual one on each change.
    budget: Budget,
}

const fn budget(faults: usize, delays: usize) -> Budget {
    Budget { faults, delays }
}

fn world(
    name: &'static str,
    modes: &[Mode],
    calls: usize,
    budget: Budget,
    change: impl FnOnce(&mut Plan),
) -> Small {
    let mut plan = Plan::quiet(modes, calls);
    change(&mut plan);
    Small { name, plan, budget }
}

fn worlds() -> Vec<Small> {
    use Mode::{Bare, Key, Seq};
    let again = Promise {
        at_least_once: true,
        attempts_max: 2,
        ..Promise::default()
    };
    let retries = Promise {
        attempts_max: 2,
        retries_failures: true,
        retries_tool_errors: true,
        ..Promise::default()
    };
    let one_key = Promise {
        reach: Reach::Journal,
        ..Promise::default()
    };
    let shields = Promise {
        shields: true,
        ..Promise::default()
    };
    vec![
        world("a seq", &[Seq], 1, budget(2, 0), |_| {}),
        world("no name", &[Bare], 1, budget(1, 1), |_| {}),
        world("a deferred outcome", &[Seq], 2, budget(1, 1), |plan| {
            plan.deferring = 1
        }),
        world("a lost attempt", &[Seq], 1, budget(2, 0), |plan| {
            plan.promise = again
        }),
        world("a question", &[Seq], 1, budget(1, 1), |plan| {
            plan.habit = Habit::Ask
        }),
        world("a task", &[Seq], 1, budget(1, 1), |plan| {
            plan.habit = Habit::Accept
        }),
        world("a retry", &[Seq], 1, budget(1, 1), |plan| {
            plan.promise = retries;
            plan.habit = Habit::ToolError;
        }),
        world("an error", &[Seq], 1, budget(1, 1), |plan| {
            plan.habit = Habit::ErrorAfter
        }),
        world("not executed", &[Seq], 1, budget(1, 1), |plan| {
            plan.habit = Habit::NotExecuted
        }),
        world("two answers", &[Seq], 2, budget(1, 1), |plan| {
            plan.habit = Habit::Twice
        }),
        world("an upstream that dies", &[Seq], 1, budget(1, 1), |plan| {
            plan.habit = Habit::DieAfter;
        }),
        world("a shield", &[Seq], 1, budget(1, 1), |plan| {
            plan.promise = shields
        }),
        world("two for one seq", &[Seq, Seq], 1, budget(1, 1), |_| {}),
        world("two for one key", &[Key, Key], 1, budget(1, 1), |plan| {
            plan.promise = one_key;
            plan.shares_workflow = false;
        }),
        world("two without a name", &[Bare, Bare], 1, budget(1, 1), |_| {}),
        world("two, at least once", &[Seq, Seq], 1, budget(1, 1), |plan| {
            plan.promise = again
        }),
        world("a walk", &[Bare], 3, budget(1, 1), |plan| {
            plan.resumes = true
        }),
        world("a walk of two at once", &[Bare], 3, budget(1, 1), |plan| {
            plan.resumes = true;
            plan.pipeline = 2;
        }),
        world("a fork", &[Seq], 2, budget(1, 1), |plan| {
            plan.forks = true;
            plan.changed = 1;
        }),
        world("a changed call", &[Seq], 1, budget(1, 1), |plan| {
            plan.changed = 1
        }),
    ]
}

/// A way that led to a violation.
struct Bad {
    detours: Vec<String>,
    steps: usize,
    violation: String,
}

/// Goes every way through a world. Returns how many there are, and the first that was bad.
fn all_ways(small: &Small, budget: Budget) -> (u64, Option<Bad>) {
    let mut choices = Choices::default();
    let mut ways = 0;
    loop {
        ways += 1;
        if let Err(bad) = one_way(small, &mut choices, budget, false) {
            return (ways, Some(bad));
        }
        if !choices.next_way() {
            return (ways, None);
        }
    }
}

fn one_way(small: &Small, choices: &mut Choices, budget: Budget, traces: bool) -> Result<(), Bad> {
    let mut coverage = Coverage::default();
    let mut world = World::new(
        small.plan.clone(),
        World::memory_book(),
        &mut coverage,
        traces,
    );
    let run = std::panic::AssertUnwindSafe(|| world.explore(choices, budget));
    let result: Check = std::panic::catch_unwind(run).unwrap_or_else(|_| Err("a panic".into()));
    for line in world.trace.iter().flatten() {
        println!("{line}");
    }
    result.map_err(|violation| Bad {
        detours: world.detours.clone(),
        steps: world.steps_gone(),
        violation,
    })
}

/// Does something with each world, on two threads.
fn each<T: Send>(worlds: &[Small], work: impl Fn(&Small) -> T + Sync) -> Vec<(&'static str, T)> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(small) = worlds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let done = work(small);
                    found.lock().unwrap().push((small.name, done));
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// Ways that must be gone on each change.
const WAYS_MIN: u64 = 60_000;

#[test]
fn every_way_through_the_small_worlds_holds() {
    let start = Instant::now();
    let worlds = worlds();
    let asked = |small: &Small| Budget {
        faults: from_env("SMALL_FAULTS").map_or(small.budget.faults, |count| count as usize),
        delays: from_env("SMALL_DELAYS").map_or(small.budget.delays, |count| count as usize),
    };
    let all = each(&worlds, |small| {
        let start = Instant::now();
        let (ways, bad) = all_ways(small, asked(small));
        (ways, bad, start.elapsed())
    });
    let mut total = 0;
    let mut is_bad = false;
    for (name, (ways, bad, took)) in &all {
        total += ways;
        println!("{name}: {ways} ways in {:.1} s", took.as_secs_f64());
        if let Some(bad) = bad {
            is_bad = true;
            println!("  {} after {}", bad.violation, bad.detours.join(", "));
        }
    }
    println!(
        "small worlds: {total} ways in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    assert!(!is_bad, "the oracle objects");
    assert!(total >= WAYS_MIN, "only {total} ways");
}

/// Bugs that no detour, one fault or one delay shows.
const SHOWN: &[Bug] = &[
    Bug::ForwardBeforeDurable,
    Bug::AnswerBeforeDurable,
    Bug::LateAnswerDropped,
    Bug::NoSync,
    Bug::PendingRunsAgain,
    Bug::CompletedRunsAgain,
    Bug::RetryAfterSettled,
    Bug::QuestionAskedAnew,
    Bug::HandleIsResult,
    Bug::KeyWindowIgnored,
    Bug::ShieldForwardsCancellation,
    Bug::LeaseIgnored,
    Bug::CursorSkipsEntry,
    Bug::CursorPassesRefused,
    Bug::ForkSharesTooMuch,
    Bug::VoidedRoundVoidsCall,
    Bug::UnansweredIgnored,
    Bug::GuardSkipsDoubt,
    Bug::ChangedCallReplayed,
    Bug::AttemptsNotCounted,
];

/// The shortest way to a bug: with the fewest detours, and of those the one with the fewest steps.
fn shortest(worlds: &[Small], bug: Bug) -> Option<(&'static str, Bad)> {
    seeded::choose(Some(bug));
    let found = [budget(0, 0), budget(1, 0), budget(0, 1)]
        .into_iter()
        .find_map(|budget| {
            let bad = worlds.iter().filter_map(|small| {
                let (_, bad) = all_ways(small, budget);
                Some((small.name, bad?))
            });
            bad.min_by_key(|(_, bad)| bad.steps)
        });
    seeded::choose(None);
    found
}

#[test]
fn small_worlds_show_bugs_by_the_shortest_way() {
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicUsize::new(0);
    let missed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let worlds = worlds();
                while let Some(bug) = SHOWN.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some((name, bad)) = shortest(&worlds, *bug) else {
                        missed.fetch_add(1, Ordering::Relaxed);
                        println!("{bug:?}: NOT SHOWN");
                        continue;
                    };
                    let how = match &bad.detours[..] {
                        [] => "as usual".to_owned(),
                        detours => detours.join(", "),
                    };
                    let violation: String = bad.violation.chars().take(80).collect();
                    println!("{bug:?}: {name}, {how}, {} steps: {violation}", bad.steps);
                }
            });
        }
    });
    let _ = std::panic::take_hook();
    let missed = missed.into_inner();
    println!(
        "small worlds: {} of {} bugs shown",
        SHOWN.len() - missed,
        SHOWN.len()
    );
    assert_eq!(missed, 0);
}
