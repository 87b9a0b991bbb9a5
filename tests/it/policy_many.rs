//! Many proxies on one journal: one effect a key, one seq a call, and nobody hears of locks.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::call::{Call, assert_done, result_bytes};
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
    let policy = "[defaults]\nkey = \"args\"\nwindow = \"journal\"\nwait_poll = \"50ms\"\ndelivery = \"at-least-once\"\nlease_ttl = \"1s\"\nheartbeat = \"200ms\"\nmax_attempts = 9\n";
    let start = || world.proxy().policy(policy).start();
    let mut killed = start();
    killed.send_call(&order(1, 1001).script(json!({"hold_after": "killed"})));
    world.wait_held("killed");
    let mut stopped = start();
    stopped.send_call(&order(1, 1002).script(json!({"hold_after": "stopped"})));
    world.wait_held("stopped");
    stopped.signal(Signal::SIGSTOP);
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

/// At most once: nobody takes over, and only the killed one's call is in doubt.
#[test]
fn at_most_once_a_kill_makes_one_doubt_and_no_other() {
    let world = World::new();
    let policy = "[defaults]\nkey = \"args\"\nwindow = \"journal\"\nwait_poll = \"50ms\"\n";
    let start = || world.proxy().policy(policy).start();
    let mut killed = start();
    killed.send_call(&order(1, 1001).script(json!({"hold_after": "killed"})));
    let upstream = world.wait_held("killed");
    let mut proxies: Vec<_> = (0..PROXIES - 1).map(|_| start()).collect();
    for proxy in &mut proxies {
        let lines: Vec<_> = (0..8u64).map(|id| order(id, id).line()).collect();
        proxy.send(lines.join("\n"));
    }
    killed.kill9();
    world.wait_gone(upstream, DEADLINE);
    for proxy in &mut proxies {
        for id in 0..8u64 {
            assert_done(&proxy.recv_id(id));
        }
        let answer = proxy.call(&order(1001, 1001));
        crate::call::assert_refused(&answer, "in_doubt", "unknown");
    }
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
