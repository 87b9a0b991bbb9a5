//! The guard: a caller that gave up and asks again, without seq or key, is no new call.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused};
use crate::world::{DEADLINE, World};

#[test]
fn an_equal_call_of_unknown_outcome_forbids_a_new_one() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let answer = proxy.call(&Call::charge(1).script(json!({"die": "after_effect"})));
    assert_refused(&answer, "outcome_unknown", "unknown");
    assert_eq!(proxy.wait_code(), 69);

    let mut proxy = world.proxy().start();
    for id in 2..=3 {
        let answer = proxy.call(&Call::charge(id));
        assert_refused(&answer, "in_doubt", "unknown");
        assert!(answer["result"].is_object(), "a model is calling: {answer}");
    }
    assert_eq!(world.effects_of("charge"), 1);
    // Another call is no such call, and neither is one that says which entry it means.
    assert_done(&proxy.call(&Call::new(4, "charge", json!({"order_id": "B-2"}))));
    assert_done(&proxy.call(&Call::new(
        5,
        "refund",
        json!({"order_id": "A-1", "amount": 100}),
    )));
    assert_done(&proxy.call(&Call::charge(6).seq(50)));
    assert_done(&proxy.call(&Call::charge(7).meta("checkpoint_key", "mine")));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 4);
    assert_eq!(world.effects_of("refund"), 1);
}

#[test]
fn a_killed_proxys_call_forbids_a_new_one_too() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
    let upstream = world.wait_held("h");
    proxy.kill9();
    world.wait_gone(upstream, DEADLINE);
    let mut proxy = world.proxy().start();
    assert_refused(&proxy.call(&Call::charge(2)), "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
}

/// The proxy is dead, its upstream is not yet: the caller is gone all the same, so this is no
/// call "at the same time".
#[test]
fn a_killed_proxys_call_forbids_a_new_one_while_its_upstream_still_runs() {
    let world = World::new();
    let deaf = ["--on-eof", "ignore", "--ignore-sigterm", "--grandchild"];
    let mut proxy = world.proxy().upstream(&deaf).start();
    proxy.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.kill9();
    let mut proxy = world.proxy().start();
    let answer = proxy.call(&Call::charge(2));
    assert_eq!(world.effects_of("charge"), 1, "{answer}");
    assert_refused(&answer, "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.calls_at_upstream(), 1);
}

#[test]
fn an_equal_call_whose_caller_cancelled_is_joined() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.cancel(1);
    proxy.send_call(&Call::charge(2));
    proxy.assert_ping();
    world.release("h");
    assert_done(&proxy.recv_id(2));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
    assert_eq!(world.entries().len(), 1);
}

#[test]
fn an_equal_call_whose_caller_timed_out_is_joined_for_as_long_again() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--call-timeout", "250ms"]).start();
    proxy.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    assert_refused(&proxy.recv_id(1), "outcome_unknown", "unknown");
    assert_refused(&proxy.call(&Call::charge(2)), "in_flight", "unknown");
    world.release("h");
    proxy.await_quiet();
    assert_done(&proxy.call(&Call::charge(3)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
}

#[test]
fn an_outcome_that_was_never_delivered_answers_the_next_equal_call_once() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.cancel(1);
    proxy.assert_ping();
    world.release("h");
    proxy.await_quiet();
    let answer = proxy.call(&Call::charge(2));
    assert_done(&answer);
    let mark = &answer["result"]["_meta"]["checkpoint"];
    assert_eq!(mark["seq"], 1, "{answer}");
    assert_eq!(mark["replayed"], true, "{answer}");
    assert_eq!(world.effects_of("charge"), 1);
    // That delivered it, so the third is a call of its own.
    let answer = proxy.call(&Call::charge(3));
    assert_eq!(answer["result"]["_meta"]["checkpoint"], Value::Null);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
    assert!(world.entry(1)["delivered_at"].is_string());
}

#[test]
fn an_outcome_whose_client_was_gone_answers_the_next_session() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.drop_client();
    world.release("h");
    proxy.wait();
    let mut proxy = world.proxy().start();
    let answer = proxy.call(&Call::charge(2));
    assert_eq!(answer["result"]["_meta"]["checkpoint"]["replayed"], true);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn an_answer_that_was_delivered_before_the_crash_is_not_delivered_again() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1)));
    // The delivery's mark needs no sync, but it must be there before the next session looks.
    proxy.stop();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(2)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn equal_calls_whose_callers_both_wait_stay_two() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    assert_done(&proxy.call(&Call::charge(2)));
    assert_eq!(world.effects_of("charge"), 2);
    world.release("h");
    assert_done(&proxy.recv_id(1));
    proxy.stop();
    assert_eq!(world.entries().len(), 2);
}

#[test]
fn an_equal_call_in_another_session_of_a_dead_upstream_is_in_doubt_while_we_run() {
    let world = World::new();
    let mut running = world.proxy().start();
    assert_done(&running.call(&Call::new(1, "refund", json!({}))));
    let mut dying = world.proxy().start();
    dying.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
    let upstream = world.wait_held("h");
    kill(Pid::from_raw(upstream), Signal::SIGKILL).unwrap();
    assert_refused(&dying.recv_id(1), "outcome_unknown", "unknown");
    assert_eq!(dying.wait_code(), 69);
    assert_refused(&running.call(&Call::charge(2)), "in_doubt", "unknown");
    running.stop();
    assert_eq!(world.effects_of("charge"), 1);
}
