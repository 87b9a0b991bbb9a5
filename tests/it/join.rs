//! Calls for an entry that is in flight, in this session or another.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::call::{Call, assert_done, assert_refused, refusal, result_bytes};
use crate::world::{DEADLINE, World};

#[test]
fn equal_calls_for_one_seq_in_flight_are_one_call() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    for id in 2..=5 {
        proxy.send_call(&Call::charge(id).seq(1));
    }
    proxy.assert_ping();
    world.release("h");
    let first = proxy.recv_id_line(&json!(1));
    for id in 2..=5 {
        let joined = proxy.recv_id_line(&json!(id));
        assert_eq!(result_bytes(&joined), result_bytes(&first));
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
    assert_eq!(world.entries().len(), 1);
}

#[test]
fn equal_calls_for_one_seq_in_one_write_are_one_call() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let both: String = (1..=8)
        .map(|id| Call::charge(id).seq(1).line() + "\n")
        .collect();
    proxy.send_raw(both.as_bytes());
    let results: Vec<String> = (1..=8)
        .map(|id| result_bytes(&proxy.recv_id_line(&json!(id))))
        .collect();
    assert!(results.iter().all(|result| *result == results[0]));
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
}

#[test]
fn those_who_joined_a_call_share_its_doubt() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    let upstream = world.wait_held("h");
    proxy.send_call(&Call::charge(2).seq(1));
    proxy.await_decided();
    kill(Pid::from_raw(upstream), Signal::SIGKILL).unwrap();
    for id in 1..=2 {
        let answer = proxy.recv_id(id);
        assert_eq!(refusal(&answer)["side_effect"], "unknown", "{answer}");
        assert_ne!(refusal(&answer)["kind"], "in_flight", "{answer}");
    }
    assert_eq!(proxy.wait_code(), 69);
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn another_call_for_a_seq_in_flight_is_refused_with_a_diff() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let other = Call::new(2, "charge", json!({"order_id": "A-1", "amount": 7})).seq(1);
    let answer = proxy.call(&other);
    assert_refused(&answer, "in_flight", "unknown");
    assert_eq!(answer["error"]["code"], 7704);
    assert!(
        refusal(&answer)["diff"].to_string().contains("/amount"),
        "{answer}"
    );
    world.release("h");
    assert_done(&proxy.recv_id(1));
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn two_proxies_that_share_a_seq_make_one_call() {
    let world = World::new();
    let mut owner = world.proxy().start();
    owner.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let mut other = world.proxy().start();
    other.send_call(&Call::charge(2).seq(1));
    other.assert_ping();
    world.release("h");
    let first = owner.recv_id_line(&json!(1));
    let joined = other.recv_id_line(&json!(2));
    assert_eq!(result_bytes(&joined), result_bytes(&first));
    owner.stop();
    other.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
}

#[test]
fn the_doubt_of_a_killed_owner_is_told_to_who_joined_it() {
    let world = World::new();
    let mut owner = world.proxy().start();
    owner.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    let upstream = world.wait_held("h");
    let mut other = world.proxy().start();
    other.send_call(&Call::charge(2).seq(1));
    other.await_decided();
    owner.kill9();
    assert_refused(&other.recv_id(2), "in_doubt", "unknown");
    world.wait_gone(upstream, DEADLINE);
    other.stop();
    assert_eq!(world.effects_of("charge"), 1);
    // The owner's call, and the barrier's.
    assert_eq!(world.calls_at_upstream(), 2);
}
