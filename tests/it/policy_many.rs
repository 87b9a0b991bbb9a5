//! Many proxies on one journal: one effect a key, one seq a call, and nobody hears of locks.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, result_bytes};
use crate::proxy::Proxy;
use crate::world::{DEADLINE, World};

const PROXIES: u64 = 8;

fn order(id: u64, order: u64) -> Call {
    Call::new(id, "charge", json!({"order_id": order}))
}

/// The orders with how many effects each had.
fn effects_by_order(world: &World) -> std::collections::BTreeMap<u64, usize> {
    let mut counts = std::collections::BTreeMap::new();
    for effect in world.effects() {
        *counts
            .entry(effect["order_id"].as_u64().unwrap())
            .or_default() += 1;
    }
    counts
}

fn seqs(world: &World) -> Vec<u64> {
    let entries = world.entries();
    entries
        .iter()
        .map(|entry| entry["seq"].as_u64().unwrap())
        .collect()
}

#[test]
fn eight_proxies_make_one_effect_a_key() {
    let world = World::new();
    let policy = "[defaults]\nkey = \"args\"\nwindow = \"journal\"\nwait_poll = \"20ms\"\n";
    let orders = 20u64;
    let mut proxies: Vec<_> = (0..PROXIES)
        .map(|_| world.proxy().policy(policy).start())
        .collect();
    for (place, proxy) in (0u64..).zip(&mut proxies) {
        // Each in another order.
        let lines: Vec<_> = (0..orders)
            .map(|step| {
                let number = (step * 7 + place * 3) % orders;
                order(number, number).line()
            })
            .collect();
        proxy.send(lines.join("\n"));
    }
    let mut results: Vec<BTreeSet<String>> =
        vec![BTreeSet::new(); usize::try_from(orders).unwrap()];
    for mut proxy in proxies {
        for id in 0..orders {
            let line = proxy.recv_id_line(&json!(id));
            assert_done(&serde_json::from_slice(&line).unwrap());
            results[usize::try_from(id).unwrap()].insert(result_bytes(&line));
        }
        proxy.stop();
    }
    assert!(results.iter().all(|results| results.len() == 1));
    let counts = effects_by_order(&world);
    assert_eq!(counts.len(), 20);
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    assert!(world.operator(&["verify"]).status.success());
}

#[test]
fn new_calls_of_eight_proxies_never_share_a_seq() {
    let world = World::new();
    let calls = 15u64;
    let mut proxies: Vec<_> = (0..PROXIES).map(|_| world.proxy().start()).collect();
    for (place, proxy) in (0u64..).zip(&mut proxies) {
        let lines: Vec<_> = (0..calls)
            .map(|id| order(id, place * 100 + id).line())
            .collect();
        proxy.send(lines.join("\n"));
    }
    for mut proxy in proxies {
        for id in 0..calls {
            assert_done(&proxy.recv_id(id));
        }
        proxy.stop();
    }
    let mut seqs = seqs(&world);
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=PROXIES * calls).collect::<Vec<_>>());
    assert_eq!(world.effects_of("charge"), 120);
}

#[test]
fn one_seq_that_all_race_for_runs_once() {
    let world = World::new();
    let policy = "[defaults]\nwait_poll = \"20ms\"\n";
    let mut proxies: Vec<_> = (0..PROXIES)
        .map(|_| world.proxy().policy(policy).start())
        .collect();
    for proxy in &mut proxies {
        proxy.send_call(&order(1, 1).seq(1));
    }
    let results: BTreeSet<String> = proxies
        .iter_mut()
        .map(|proxy| result_bytes(&proxy.recv_id_line(&json!(1))))
        .collect();
    assert_eq!(results.len(), 1);
    for proxy in proxies {
        proxy.stop();
    }
    assert_eq!(world.effects_of("charge"), 1);
}

/// Some frameworks start a proxy for each call.
#[test]
fn one_proxy_a_call_many_at_once() {
    let world = World::new();
    let policy = "[defaults]\nkey = \"args\"\nwindow = \"run\"\nwait_poll = \"20ms\"\n";
    for _ in 0..2 {
        let mut proxies: Vec<_> = (0..PROXIES)
            .map(|number| {
                let mut proxy = world.proxy().policy(policy).start();
                proxy.send_call(&order(1, number / 2));
                proxy
            })
            .collect();
        for proxy in &mut proxies {
            assert_done(&proxy.recv_id(1));
        }
        for proxy in proxies {
            proxy.stop();
        }
    }
    assert_eq!(effects_by_order(&world).values().sum::<usize>(), 4);
}

/// One is killed and one is stopped in the middle of their calls. Under at-least-once the others
/// take those calls over; everything else has run once.
#[test]
fn with_one_killed_and_one_stopped_nothing_is_lost_and_nothing_else_repeats() {
    let world = World::new();
    let policy = "[defaults]\nkey = \"args\"\nwindow = \"journal\"\nwait_poll = \"50ms\"\ndelivery = \"at-least-once\"\nlease_ttl = \"6s\"\nheartbeat = \"200ms\"\nmax_attempts = 9\n";
    let start = || world.proxy().policy(policy).start();
    let mut killed = start();
    killed.send_call(&order(1, 1001).script(json!({"hold_after": "killed"})));
    world.wait_held("killed");
    let mut stopped = start();
    stopped.send_call(&order(1, 1002).script(json!({"hold_after": "stopped"})));
    world.wait_held("stopped");
    stopped.stall(&world);
    let orders = 12u64;
    let mut proxies: Vec<_> = (0..PROXIES - 2).map(|_| start()).collect();
    for proxy in &mut proxies {
        let lines: Vec<_> = (0..orders).map(|id| order(id, id).line()).collect();
        proxy.send(lines.join("\n"));
        proxy.send_call(&order(1001, 1001));
        proxy.send_call(&order(1002, 1002));
    }
    killed.kill9();
    let mut results: std::collections::BTreeMap<u64, BTreeSet<String>> = Default::default();
    for proxy in &mut proxies {
        for id in (0..orders).chain([1001, 1002]) {
            let line = proxy.recv_id_line(&json!(id));
            assert_done(&serde_json::from_slice(&line).unwrap());
            results.entry(id).or_default().insert(result_bytes(&line));
        }
    }
    world.release("stopped");
    stopped.signal(Signal::SIGCONT);
    let late = result_bytes(&stopped.recv_id_line(&json!(1)));
    results.entry(1002).or_default().insert(late);
    assert!(
        results.values().all(|results| results.len() == 1),
        "{results:?}"
    );
    stopped.stop();
    for proxy in proxies {
        proxy.stop();
    }
    let counts = effects_by_order(&world);
    for (order, count) in counts {
        let expected = if order > 1000 { 2 } else { 1 };
        assert_eq!(count, expected, "order {order}");
    }
    let seqs = seqs(&world);
    let unique: BTreeSet<_> = seqs.iter().collect();
    assert_eq!(unique.len(), seqs.len());
    assert_eq!(unique.len(), 14);
    assert!(world.operator(&["verify"]).status.success());
}

/// At most once: nobody takes over. The killed one's call is in doubt, the stopped one's is waited
/// for, and nothing else is either.
#[test]
fn at_most_once_a_kill_makes_one_doubt_and_a_stop_makes_none() {
    let world = World::new();
    let policy = "[defaults]\nkey = \"args\"\nwindow = \"journal\"\nwait_poll = \"50ms\"\n";
    let start = || world.proxy().policy(policy).start();
    let mut killed = start();
    killed.send_call(&order(1, 1001).script(json!({"hold_after": "killed"})));
    let upstream = world.wait_held("killed");
    let mut stopped = start();
    stopped.send_call(&order(1, 1002).script(json!({"hold_after": "stopped"})));
    world.wait_held("stopped");
    stopped.stall(&world);
    let mut proxies: Vec<_> = (0..PROXIES - 2).map(|_| start()).collect();
    for proxy in &mut proxies {
        let lines: Vec<_> = (0..8u64).map(|id| order(id, id).line()).collect();
        proxy.send(lines.join("\n"));
        proxy.send_call(&order(1002, 1002));
    }
    killed.kill9();
    world.wait_gone(upstream, DEADLINE);
    for proxy in &mut proxies {
        for id in 0..8u64 {
            assert_done(&proxy.recv_id(id));
        }
        let answer = proxy.call(&order(1001, 1001));
        assert_refused(&answer, "in_doubt", "unknown");
        assert_eq!(proxy.recv_id_within(1002, Duration::from_millis(50)), None);
    }
    world.release("stopped");
    stopped.signal(Signal::SIGCONT);
    let own = result_bytes(&stopped.recv_id_line(&json!(1)));
    for proxy in &mut proxies {
        assert_eq!(result_bytes(&proxy.recv_id_line(&json!(1002))), own);
    }
    stopped.stop();
    for proxy in proxies {
        proxy.stop();
    }
    assert!(effects_by_order(&world).values().all(|count| *count == 1));
    let doubts: Vec<Value> = world
        .entries()
        .into_iter()
        .filter(|entry| entry["in_doubt"] == true)
        .collect();
    assert_eq!(doubts.len(), 1);
}

/// One seq that eight ask for: one owns it and is in the middle of its call, with the effect done
/// and the answer to come; the others wait for it.
struct Race {
    owner: Proxy,
    /// The owner's upstream.
    upstream: i32,
    others: Vec<Proxy>,
}

impl Race {
    fn start(world: &World, delivery: &str, lease_ttl: &str) -> Race {
        let policy = format!(
            "[defaults]\ndelivery = \"{delivery}\"\nlease_ttl = \"{lease_ttl}\"\nheartbeat = \"100ms\"\n\
             wait_poll = \"20ms\"\n"
        );
        let start = || world.proxy().policy(&policy).start();
        let mut owner = start();
        let call = order(1, 1).seq(1);
        owner.send_call(&call.clone().script(json!({"hold_after": "owner"})));
        let upstream = world.wait_held("owner");
        let others = (1..PROXIES)
            .map(|_| {
                let mut other = start();
                other.send_call(&call);
                other.await_decided();
                other
            })
            .collect();
        assert_eq!(world.effects_of("charge"), 1, "taken from an owner at work");
        Race {
            owner,
            upstream,
            others,
        }
    }

    /// What the others are given, which must be one result.
    fn result(&mut self) -> String {
        let results: BTreeSet<String> = self
            .others
            .iter_mut()
            .map(|other| result_bytes(&other.recv_id_line(&json!(1))))
            .collect();
        assert_eq!(results.len(), 1, "{results:?}");
        results.into_iter().next().unwrap()
    }

    /// Lets a stopped owner and its call go on to the answer.
    fn go_on(&mut self, world: &World) -> String {
        world.release("owner");
        self.owner.signal(Signal::SIGCONT);
        result_bytes(&self.owner.recv_id_line(&json!(1)))
    }

    /// Ends all that live, and checks what the seq has cost.
    fn end(self, world: &World, owner_lives: bool, effects: usize, attempts: u64) {
        if owner_lives {
            self.owner.stop();
        }
        for other in self.others {
            other.stop();
        }
        assert_eq!(world.effects_of("charge"), effects);
        assert_eq!(world.entry(1)["attempt"], attempts);
        assert!(world.operator(&["verify"]).status.success());
    }
}

#[test]
fn a_raced_seq_whose_owner_is_killed_is_in_doubt_for_all_at_most_once() {
    let world = World::new();
    let mut race = Race::start(&world, "at-most-once", "500ms");
    race.owner.kill9();
    world.wait_gone(race.upstream, DEADLINE);
    for other in &mut race.others {
        assert_refused(&other.recv_id(1), "in_doubt", "unknown");
    }
    race.end(&world, false, 1, 1);
}

#[test]
fn a_raced_seq_whose_owner_is_killed_is_run_again_by_one_at_least_once() {
    let world = World::new();
    let mut race = Race::start(&world, "at-least-once", "6s");
    race.owner.kill9();
    race.result();
    race.end(&world, false, 2, 2);
}

#[test]
fn a_raced_seq_whose_owner_is_stopped_is_waited_for_at_most_once() {
    let world = World::new();
    let mut race = Race::start(&world, "at-most-once", "500ms");
    race.owner.stall(&world);
    // Longer than a lease would last.
    let early = race.others[0].recv_id_within(1, Duration::from_millis(900));
    assert_eq!(early, None);
    let own = race.go_on(&world);
    assert_eq!(race.result(), own);
    race.end(&world, true, 1, 1);
}

#[test]
fn a_raced_seq_whose_owner_is_stopped_is_taken_over_by_one_at_least_once() {
    let world = World::new();
    let mut race = Race::start(&world, "at-least-once", "6s");
    race.owner.stall(&world);
    let taken = race.result();
    assert_eq!(race.go_on(&world), taken);
    race.end(&world, true, 2, 2);
}

/// Another writer (a stopped proxy in the middle of a commit, an operator's `sqlite3`) holds the
/// journal for a while: all wait for it, and no client hears of locks.
#[test]
fn eight_proxies_wait_for_a_journal_that_another_holds() {
    let world = World::new();
    let mut proxies: Vec<_> = (0..PROXIES).map(|_| world.proxy().start()).collect();
    for proxy in &mut proxies {
        proxy.await_decided();
    }
    let writer = rusqlite::Connection::open(world.journal()).unwrap();
    writer.busy_timeout(DEADLINE).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    for (place, proxy) in (1u64..).zip(&mut proxies) {
        proxy.send_call(&order(1, place));
        // It has been read, and other traffic passes it.
        proxy.assert_ping();
    }
    assert_eq!(world.effects_of("charge"), 0);
    writer.execute_batch("COMMIT").unwrap();
    for mut proxy in proxies {
        assert_done(&proxy.recv_id(1));
        proxy.stop_and_read(|said| assert!(!said.contains("locked"), "{said}"));
    }
    let counts = effects_by_order(&world);
    assert_eq!(counts.len(), 8);
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    let unique: BTreeSet<_> = seqs(&world).into_iter().collect();
    assert_eq!(unique.len(), 16);
}
