//! Wall clocks that are years apart or are stepped while calls run: nothing is decided by them but
//! what is about time of day (how long an outcome waits for its caller, how old a row is).
//!
//! Needs `faketime`. Without it these tests say `SKIPPED` on stderr and pass; under CI they fail.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, refusal, result_bytes};
use crate::proxy::Proxy;
use crate::setup::Setup;
use crate::world::{World, run};

const PROXIES: u64 = 8;

fn order(id: u64, order: u64) -> Call {
    Call::new(id, "charge", json!({"order_id": order}))
}

/// A world whose proxies have a wall clock that the test sets; their monotonic one is the
/// machine's.
struct Clock {
    world: World,
    library: String,
}

impl Clock {
    /// `None`, said loudly, where there is no `faketime`.
    fn new() -> Option<Clock> {
        let words = ["-f", "+0", "sh", "-c", "printf %s \"$LD_PRELOAD\""];
        let Ok(output) = Command::new("faketime").args(words).output() else {
            assert!(
                std::env::var_os("CI").is_none(),
                "nothing is skipped in CI: there is no faketime"
            );
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            let _ = writeln!(std::io::stderr(), "SKIPPED {test}: there is no faketime");
            return None;
        };
        let library = String::from_utf8(output.stdout).unwrap();
        assert!(library.contains("faketime"), "{library:?}");
        let clock = Clock {
            world: World::new(),
            library,
        };
        clock.step("+0");
        Some(clock)
    }

    /// Sets the clock of all proxies, as an offset to the machine's; those that run see it at once.
    fn step(&self, offset: &str) {
        let (aside, file) = (self.world.path("clock.new"), self.world.path("clock"));
        fs::write(&aside, offset).unwrap();
        fs::rename(aside, file).unwrap();
    }

    fn proxy(&self) -> Setup<'_> {
        self.world
            .proxy()
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", self.world.path("clock"))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1")
    }
}

/// When an entry was made, as a whole hour from now.
fn hours_from_now(entry: &Value) -> i64 {
    let made: jiff::Timestamp = entry["created_at"].as_str().unwrap().parse().unwrap();
    let seconds = made.duration_since(jiff::Timestamp::now()).as_secs_f64();
    (seconds / 3600.0).round() as i64
}

fn stop_all(proxies: Vec<Proxy>) {
    for proxy in proxies {
        proxy.stop();
    }
}

#[test]
fn proxies_whose_clocks_differ_by_years_take_nothing_over() {
    let Some(clock) = Clock::new() else { return };
    let world = &clock.world;
    let policy = "[defaults]\ndelivery = \"at-least-once\"\nlease_ttl = \"10s\"\nheartbeat = \"200ms\"\nwait_poll = \"50ms\"\n";
    // A clock of its own comes before the one that all share.
    let at = |offset: &str| clock.proxy().policy(policy).env("FAKETIME", offset).start();
    let mut owner = at("-25y");
    owner.send_call(&order(1, 1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let mut others = [at("+15y"), at("-35y")];
    for other in &mut others {
        other.send_call(&order(2, 1).seq(1));
        let early = other.recv_id_within(2, Duration::from_millis(800));
        assert_eq!(early, None);
        assert_done(&other.call(&order(3, 3).seq(3)));
    }
    world.release("h");
    let own = result_bytes(&owner.recv_id_line(&json!(1)));
    for other in &mut others {
        assert_eq!(own, result_bytes(&other.recv_id_line(&json!(2))));
    }
    owner.stop();
    stop_all(others.into());
    assert_eq!(world.effects_of("charge"), 2);
    let years = |seq| hours_from_now(&world.entry(seq)) / (365 * 24);
    assert_eq!([years(1), years(3)], [-25, 15]);
}

/// Eight proxies, all of one clock, which is stepped in each round while a call runs that all of
/// them wait for.
#[test]
fn eight_proxies_keep_their_calls_while_the_clock_steps() {
    let Some(clock) = Clock::new() else { return };
    let world = &clock.world;
    // A heartbeat has all of its lease's time to come on a busy machine.
    let policy = "[defaults]\ndelivery = \"at-least-once\"\nkey = \"args\"\nwindow = \"journal\"\n\
                  lease_ttl = \"10s\"\nheartbeat = \"200ms\"\nwait_poll = \"20ms\"\n";
    let mut proxies: Vec<_> = (0..PROXIES)
        .map(|_| clock.proxy().policy(policy).start())
        .collect();
    let steps = [("+3h", "-5h"), ("-26h", "+26h"), ("+9000h", "+0")];
    for (round, (during, after)) in (1u64..).zip(steps) {
        let hold = format!("round-{round}");
        let first = usize::try_from(round).unwrap();
        let held = order(1000 * round, round).script(json!({"hold_after": hold}));
        proxies[first].send_call(&held);
        world.wait_held(&hold);
        clock.step(during);
        for (place, proxy) in (1u64..).zip(&mut proxies) {
            if place != round + 1 {
                proxy.send_call(&held);
            }
            // One that all make, and one that is its own.
            proxy.send_call(&order(1000 * round + 1, 100 + round));
            proxy.send_call(&order(1000 * round + 2, 1000 * round + place));
        }
        for proxy in &mut proxies {
            assert_done(&proxy.recv_id(1000 * round + 1));
            assert_done(&proxy.recv_id(1000 * round + 2));
        }
        clock.step(after);
        for proxy in &mut proxies {
            // The owner lives, so nobody takes its call over and nobody doubts it.
            let early = proxy.recv_id_within(
                i64::try_from(1000 * round).unwrap(),
                Duration::from_millis(50),
            );
            assert_eq!(early, None);
        }
        world.release(&hold);
        let results: BTreeSet<_> = proxies
            .iter_mut()
            .map(|proxy| result_bytes(&proxy.recv_id_line(&json!(1000 * round))))
            .collect();
        assert_eq!(results.len(), 1);
    }
    stop_all(proxies);
    let orders: Vec<u64> = world
        .effects()
        .iter()
        .map(|effect| effect["order_id"].as_u64().unwrap())
        .collect();
    let unique: BTreeSet<_> = orders.iter().collect();
    assert_eq!(orders.len(), unique.len(), "an effect twice: {orders:?}");
    assert_eq!(orders.len(), 3 * (2 + 8));
    let entries = world.entries();
    let seqs: BTreeSet<_> = entries.iter().map(|entry| entry["seq"].as_u64()).collect();
    assert_eq!(seqs.len(), entries.len());
    assert_eq!(entries.len(), orders.len());
    for entry in &entries {
        assert_eq!(entry["attempt"], 1, "{entry}");
        assert_eq!(entry["status"], "COMPLETED", "{entry}");
        assert_eq!(entry["in_doubt"], false, "{entry}");
    }
    // The clock had its way with the times, or this has shown nothing.
    let hours: BTreeSet<i64> = entries.iter().map(hours_from_now).collect();
    assert_eq!(hours, BTreeSet::from([-26, -5, 0, 3, 9000, 26]));
    run(world, 0, &["verify"]);
}

/// An outcome from the future is as young as one can be; one from before the window is too old.
#[test]
fn an_undelivered_outcome_is_delivered_within_its_window_whatever_the_clock_did() {
    let Some(clock) = Clock::new() else { return };
    let world = &clock.world;
    let cases = [
        ("+3h", "+0", true),
        ("+0", "+14m", true),
        ("+0", "+16m", false),
        ("-26h", "+0", false),
        ("+9000h", "-9000h", true),
    ];
    for (number, (made, asked, is_delivered)) in (1u64..).zip(cases) {
        let hold = format!("h-{number}");
        clock.step(made);
        let mut proxy = clock.proxy().start();
        proxy.send_call(&order(1, number).script(json!({"hold_after": hold})));
        world.wait_held(&hold);
        proxy.drop_client();
        world.release(&hold);
        proxy.wait();
        clock.step(asked);
        let mut proxy = clock.proxy().start();
        let answer = proxy.call(&order(1, number));
        assert_done(&answer);
        let mark = &answer["result"]["_meta"]["checkpoint"]["replayed"];
        assert_eq!(*mark == true, is_delivered, "{made} {asked}: {answer}");
        proxy.stop();
        let effects = world.effects();
        let effects = effects.iter().filter(|effect| effect["order_id"] == number);
        let expected = if is_delivered { 1 } else { 2 };
        assert_eq!(effects.count(), expected, "{made} {asked}");
    }
}

/// A doubt is settled by no clock.
#[test]
fn a_doubt_stays_one_whatever_the_clock_does() {
    let Some(clock) = Clock::new() else { return };
    let world = &clock.world;
    let mut proxy = clock.proxy().start();
    proxy.send_call(&order(1, 1).script(json!({"hold_after": "h"})));
    let upstream = world.wait_held("h");
    proxy.kill9();
    world.wait_gone(upstream, crate::world::DEADLINE);
    for offset in ["+9000h", "-9000h", "+0"] {
        clock.step(offset);
        let mut proxy = clock.proxy().start();
        let answer = proxy.call(&order(1, 1));
        assert_eq!(refusal(&answer)["kind"], "in_doubt", "{offset}: {answer}");
        proxy.stop();
    }
    assert_eq!(world.effects_of("charge"), 1);
}

/// A run whose agent starts over, in a workflow of its own.
fn resume<'a>(clock: &'a Clock, workflow: &str) -> Setup<'a> {
    clock.proxy().flags(["--resume", "--workflow-id", workflow])
}

/// Starts over with these calls, one after the other; returns what they are answered.
fn start_over(clock: &Clock, workflow: &str, calls: &[&Call]) -> Vec<String> {
    let mut proxy = resume(clock, workflow).start();
    let answers = calls.iter().map(|call| proxy.call_line(call));
    let results = answers.map(|line| result_bytes(&line)).collect();
    proxy.stop();
    results
}

/// What the clock says while calls run: before the first one, between the two, while both are in
/// flight, and when the first one has ended.
const STEPS: [[&str; 4]; 5] = [
    ["+0", "+0", "-5h", "+0"],
    ["+0", "+3h", "+0", "+0"],
    ["+3h", "-5h", "-26h", "+9000h"],
    ["-26h", "+26h", "+0", "-9000h"],
    ["+0", "-5h", "+3h", "-5h"],
];

/// The journal's order of commits says who was in flight with whom: an agent that starts over may
/// have those two in any order, also if by the clock one had ended before the other was made.
#[test]
fn calls_that_were_in_flight_together_stay_so_whatever_the_clock_does() {
    let Some(clock) = Clock::new() else { return };
    let world = &clock.world;
    for (number, [before, between, during, after]) in (1u64..).zip(STEPS) {
        let workflow = format!("together-{number}");
        let calls = [1, 2].map(|id| {
            let hold = format!("{workflow}-{id}");
            order(id, 10 * number + id).script(json!({"hold_after": hold}))
        });
        clock.step(before);
        let mut proxy = resume(&clock, &workflow).start();
        let mut results = Vec::new();
        for (id, next) in [(1, between), (2, during)] {
            proxy.send_call(&calls[id - 1]);
            world.wait_held(&format!("{workflow}-{id}"));
            clock.step(next);
        }
        for id in [1, 2] {
            world.release(&format!("{workflow}-{id}"));
            results.push(result_bytes(&proxy.recv_id_line(&json!(id))));
            clock.step(after);
        }
        proxy.stop();
        let [first, second] = &calls;
        results.reverse();
        let again = start_over(&clock, &workflow, &[second, first]);
        assert_eq!(again, results, "{workflow}: the other order");
        results.reverse();
        let again = start_over(&clock, &workflow, &[first, second]);
        assert_eq!(again, results, "{workflow}: the same order");
        assert_eq!(world.effects_of("charge") as u64, 2 * number);
    }
    run(world, 0, &["verify"]);
}

/// The last call begins when the first one has ended. What the clock does while the one in the
/// middle is in flight with both, and with it the times of all three, does not put them together.
#[test]
fn a_step_of_the_clock_puts_no_calls_together() {
    let Some(clock) = Clock::new() else { return };
    let world = &clock.world;
    for (number, [before, between, during, after]) in (1u64..).zip(STEPS) {
        let workflow = format!("apart-{number}");
        let held = |id: u64| format!("{workflow}-{id}");
        let calls =
            [1, 2, 3].map(|id| order(id, 10 * number + id).script(json!({"hold_after": held(id)})));
        clock.step(before);
        let mut proxy = resume(&clock, &workflow).start();
        for id in [1, 2] {
            proxy.send_call(&calls[usize::try_from(id - 1).unwrap()]);
            world.wait_held(&held(id));
            clock.step(between);
        }
        world.release(&held(1));
        let first = result_bytes(&proxy.recv_id_line(&json!(1)));
        clock.step(during);
        proxy.send_call(&calls[2]);
        world.wait_held(&held(3));
        clock.step(after);
        world.release(&held(2));
        let second = result_bytes(&proxy.recv_id_line(&json!(2)));
        world.release(&held(3));
        let third = result_bytes(&proxy.recv_id_line(&json!(3)));
        proxy.stop();

        let mut proxy = resume(&clock, &workflow).start();
        let early = proxy.call(&calls[2]);
        assert_refused(&early, "divergence", "not_started");
        // The second one may come before the first, and the third before the second.
        for (id, result) in [(2, &second), (1, &first), (3, &third)] {
            let again = proxy.call_line(&calls[id - 1]);
            assert_eq!(result_bytes(&again), *result, "{workflow}: {id}");
        }
        proxy.stop();
        let orders = [&calls[0], &calls[2], &calls[1]];
        let again = start_over(&clock, &workflow, &orders);
        assert_eq!(again, [first, third, second], "{workflow}");
        assert_eq!(world.effects_of("charge") as u64, 3 * number);
    }
    run(world, 0, &["verify"]);
}

#[test]
fn ls_and_gc_take_entries_from_the_future_for_new_ones() {
    let Some(clock) = Clock::new() else { return };
    let world = &clock.world;
    for (seq, offset) in [(1, "-50h"), (2, "-2h"), (3, "+0"), (4, "+50h")] {
        clock.step(offset);
        let mut proxy = clock.proxy().start();
        assert_done(&proxy.call(&order(seq, seq).seq(seq)));
        proxy.stop();
    }
    let listed = |words: &[&str]| -> Vec<u64> {
        let words = [&["ls", "--json"], words].concat();
        let output = world.operator(&words);
        let listing: Value = serde_json::from_slice(&output.stdout).unwrap();
        let entries = listing["entries"].as_array().unwrap().iter();
        entries
            .map(|entry| entry["seq"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(listed(&["--since", "1h"]), [3, 4]);
    assert_eq!(listed(&["--since", "24h"]), [2, 3, 4]);
    assert_eq!(listed(&["--since", "100h"]), [1, 2, 3, 4]);
    assert_eq!(listed(&["--until", "0s"]), [1, 2, 3]);
    assert_eq!(listed(&["--until", "1h"]), [1, 2]);
    // The newest are the last that were reserved.
    clock.step("-9000h");
    let mut proxy = clock.proxy().start();
    assert_done(&proxy.call(&order(5, 5).seq(5)));
    proxy.stop();
    assert_eq!(listed(&["--limit", "1"]), [5]);
    assert_eq!(listed(&["--limit", "2"]), [4, 5]);
    let buried = |seqs: &[u64]| -> Vec<bool> {
        let entries = world.entries();
        entries
            .iter()
            .filter(|entry| seqs.contains(&entry["seq"].as_u64().unwrap()))
            .map(|entry| entry["tombstone"] == true)
            .collect()
    };
    for (older_than, expected) in [
        ("9999h", [false, false, false, false]),
        ("24h", [true, false, false, false]),
        ("1h", [true, true, false, false]),
        ("0s", [true, true, true, false]),
    ] {
        let words = ["gc", "--older-than", older_than, "--yes", "--json"];
        let report: Value = serde_json::from_str(&run(world, 0, &words)).unwrap();
        assert_eq!(report["kept"]["future"], 1, "{older_than}: {report}");
        assert_eq!(buried(&[1, 2, 3, 4]), expected, "{older_than}");
    }
    // Buried or not, none runs again.
    clock.step("+0");
    let again = |expired: &[u64], kept: &[u64]| {
        let mut proxy = clock.proxy().start();
        for seq in expired {
            let answer = proxy.call(&order(*seq, *seq).seq(*seq));
            assert_eq!(refusal(&answer)["kind"], "result_expired", "{answer}");
        }
        for seq in kept {
            assert_done(&proxy.call(&order(*seq, *seq).seq(*seq)));
        }
        proxy.stop();
    };
    again(&[1, 2, 3, 5], &[4]);
    let words = ["gc", "--older-than", "0s", "--future-too", "--yes"];
    run(world, 0, &words);
    assert_eq!(buried(&[1, 2, 3, 4, 5]), [true; 5]);
    again(&[1, 2, 3, 4, 5], &[]);
    assert_eq!(world.effects_of("charge"), 5);
    run(world, 0, &["verify"]);
}
