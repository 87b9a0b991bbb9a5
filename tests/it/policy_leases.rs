//! Leases: a stalled owner is taken over under at-least-once and fenced, and never under
//! at-most-once.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, result_bytes};
use crate::proxy::Proxy;
use crate::world::{World, contains, run};

fn policy(more: &str) -> String {
    format!(
        "[tools.charge]\ndelivery = \"at-least-once\"\nlease_ttl = \"400ms\"\nheartbeat = \"100ms\"\nwait_poll = \"50ms\"\n{more}"
    )
}

/// Starts a call and stops its proxy in the middle of it.
fn stall(world: &World, policy: &str, script: Value) -> Proxy {
    let mut owner = world.proxy().policy(policy).start();
    owner.send_call(&Call::charge(1).seq(1).script(script));
    world.wait_held("first");
    owner.stall(world);
    owner
}

fn kinds(shown: &Value) -> String {
    shown["events"].to_string()
}

#[test]
fn a_stalled_owner_is_taken_over_and_its_late_outcome_is_stale() {
    let world = World::new();
    let policy = policy("");
    let mut owner = stall(&world, &policy, json!({"hold_after": "first"}));
    let mut second = world.proxy().policy(&policy).start();
    let start = Instant::now();
    let taken = second.call_line(&Call::charge(2).seq(1));
    assert_done(&serde_json::from_slice(&taken).unwrap());
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(world.effects_of("charge"), 2);
    world.release("first");
    owner.signal(Signal::SIGCONT);
    let own = owner.recv_id_line(&json!(1));
    assert_eq!(result_bytes(&own), result_bytes(&taken));
    owner.stop();
    second.stop();
    let shown = world.show_json(1);
    assert!(kinds(&shown).contains("stale_result"), "{shown}");
    assert_eq!(world.entry(1)["attempt"], 2);
    assert_eq!(world.status(1), "COMPLETED");
}

/// The owner comes back before its upstream has answered: it is told by its next heartbeat.
#[test]
fn an_owner_that_lost_its_lease_cancels_its_call_and_its_caller_gets_the_new_outcome() {
    for (more, cancels) in [("", true), ("on_lost_lease = \"finish\"\n", false)] {
        let world = World::new();
        let policy = policy(more);
        let script = json!({"hold_after": "first", "on_cancel": "silent"});
        let mut owner = stall(&world, &policy, script);
        let mut second = world.proxy().policy(&policy).start();
        let taken = second.call_line(&Call::charge(2).seq(1));
        owner.signal(Signal::SIGCONT);
        if cancels {
            // No answer will come from upstream; the outcome is there all the same.
            let own = owner.recv_id_line(&json!(1));
            assert_eq!(result_bytes(&own), result_bytes(&taken));
            world.release("first");
        } else {
            owner.assert_ping();
            world.release("first");
            let own = owner.recv_id_line(&json!(1));
            assert_eq!(result_bytes(&own), result_bytes(&taken));
        }
        owner.stop();
        second.stop();
        let lines = world.upstream_lines();
        let is_cancelled = lines
            .iter()
            .any(|line| contains(line, b"notifications/cancelled"));
        assert_eq!(is_cancelled, cancels);
        assert_eq!(world.effects_of("charge"), 2);
        assert_eq!(world.status(1), "COMPLETED");
    }
}

/// The upstream of the owner that was taken over answers the cancelled call all the same.
#[test]
fn a_late_answer_of_a_call_that_was_taken_over_is_kept_as_stale() {
    let world = World::new();
    let policy = policy("");
    let script = json!({"hold_after": "first", "on_cancel": "answer"});
    let mut owner = stall(&world, &policy, script);
    let mut second = world.proxy().policy(&policy).start();
    let taken = second.call_line(&Call::charge(2).seq(1));
    owner.signal(Signal::SIGCONT);
    let own = owner.recv_id_line(&json!(1));
    assert_eq!(result_bytes(&own), result_bytes(&taken));
    world.release("first");
    owner.await_quiet();
    owner.assert_ping();
    owner.close_stdin();
    assert_eq!(owner.wait_code(), 0);
    // One answer, and nothing of the upstream's late one.
    while let Some(line) = owner.next_line() {
        assert!(!contains(&line, b"\"id\":1}"), "{line:?}");
    }
    second.stop();
    let shown = world.show_json(1);
    assert!(kinds(&shown).contains("stale_result"), "{shown}");
    assert!(kinds(&shown).contains("fenced"), "{shown}");
    // What counts is the upstream's own answer too, and no verdict that could be taken back.
    let adopt = ["resolve", "1", "--completed", "--result-stale"];
    let said = run(&world, 1, &[&adopt[..], &["--reason", "r"]].concat());
    assert!(said.contains("the upstream's own answer"), "{said}");
    let next = shown["next"].to_string();
    assert!(!next.contains("-stale"), "{next}");
    assert_eq!(world.show_json(1)["outcome"], shown["outcome"]);
}

#[test]
fn at_most_once_never_takes_a_stalled_owner_over() {
    let world = World::new();
    let policy =
        "[tools.charge]\nlease_ttl = \"20ms\"\nheartbeat = \"5ms\"\nwait_poll = \"20ms\"\n";
    let mut owner = stall(&world, policy, json!({"hold_after": "first"}));
    let mut second = world.proxy().policy(policy).start();
    second.send_call(&Call::charge(2).seq(1));
    let early = second.recv_id_within(2, Duration::from_millis(700));
    assert_eq!(early, None);
    world.release("first");
    owner.signal(Signal::SIGCONT);
    let own = result_bytes(&owner.recv_id_line(&json!(1)));
    let joined = result_bytes(&second.recv_id_line(&json!(2)));
    assert_eq!(own, joined);
    owner.stop();
    second.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn an_owner_at_work_keeps_its_lease() {
    let world = World::new();
    // A heartbeat may be late by more than a second on a busy machine.
    let policy = policy("").replace("400ms", "2s");
    let mut owner = world.proxy().policy(&policy).start();
    owner.send_call(
        &Call::charge(1)
            .seq(1)
            .script(json!({"hold_after": "first"})),
    );
    world.wait_held("first");
    let mut second = world.proxy().policy(&policy).start();
    second.send_call(&Call::charge(2).seq(1));
    let early = second.recv_id_within(2, Duration::from_millis(4500));
    assert_eq!(early, None);
    world.release("first");
    let own = result_bytes(&owner.recv_id_line(&json!(1)));
    assert_eq!(own, result_bytes(&second.recv_id_line(&json!(2))));
    owner.stop();
    second.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.entry(1)["attempt"], 1);
}

#[test]
fn without_fenced_results_the_first_finisher_wins() {
    let world = World::new();
    let policy = policy("fence_results = false\non_lost_lease = \"finish\"\n");
    let mut owner = stall(&world, &policy, json!({"hold_after": "first"}));
    let mut second = world.proxy().policy(&policy).start();
    second.send_call(
        &Call::charge(2)
            .seq(1)
            .script(json!({"hold_after": "second"})),
    );
    world.wait_held("second");
    world.release("first");
    owner.signal(Signal::SIGCONT);
    let own = result_bytes(&owner.recv_id_line(&json!(1)));
    world.release("second");
    let taken = result_bytes(&second.recv_id_line(&json!(2)));
    assert_eq!(own, taken);
    owner.stop();
    second.stop();
    assert_eq!(world.status(1), "COMPLETED");
    let shown = world.show_json(1);
    assert!(kinds(&shown).contains("stale_result"), "{shown}");
    assert!(world.operator(&["verify"]).status.success());
}

/// Both in turn: who took over is stopped and taken over by the first owner again.
#[test]
fn an_owner_that_was_fenced_may_take_over_again() {
    let world = World::new();
    let policy = policy("");
    let mut owner = stall(&world, &policy, json!({"hold_after": "first"}));
    let mut second = world.proxy().policy(&policy).start();
    second.send_call(
        &Call::charge(2)
            .seq(1)
            .script(json!({"hold_after": "second"})),
    );
    world.wait_held("second");
    second.stall(&world);
    world.release("first");
    owner.signal(Signal::SIGCONT);
    let own = owner.recv_id_line(&json!(1));
    let answer: Value = serde_json::from_slice(&own).unwrap();
    assert!(
        answer["result"].is_object() || answer["error"].is_object(),
        "{answer}"
    );
    world.release("second");
    second.signal(Signal::SIGCONT);
    let taken = second.recv_id_line(&json!(2));
    assert_eq!(result_bytes(&own), result_bytes(&taken));
    owner.stop();
    second.stop();
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.entry(1)["attempt"], 3);
}

/// Under at-most-once nobody but an operator takes a call from its owner, by force: of one whose
/// answer does not come, mostly. The owner's caller and who joined it get what the operator says,
/// and the upstream is told to give the call up.
#[test]
fn an_operators_force_ends_a_call_that_hangs() {
    let result = r#"{"content":[{"type":"text","text":"by hand"}]}"#;
    for (more, cancels) in [("", true), ("on_lost_lease = \"finish\"\n", false)] {
        let completed: &[&str] = &["--completed", "--result", result];
        for verdict in [completed, &["--not-executed"]] {
            let world = World::new();
            let policy = format!("[tools.charge]\nheartbeat = \"50ms\"\n{more}");
            let mut proxy = world.proxy().policy(&policy).start();
            let call = |id: u64| Call::charge(id).seq(1);
            let script = json!({"hold_after": "h", "on_cancel": "silent"});
            proxy.send_call(&call(1).script(script));
            world.wait_held("h");
            proxy.send_call(&call(2));
            proxy.await_decided();
            let words = [&["resolve", "1"], verdict, &["--force", "--reason", "r"]].concat();
            run(&world, 0, &words);
            let own = proxy.recv_id(1);
            if verdict == completed {
                for answer in [own, proxy.recv_id(2)] {
                    assert_eq!(answer["result"]["content"][0]["text"], "by hand");
                }
                assert_eq!(world.effects_of("charge"), 1);
            } else {
                // Its own call was sent, whatever the operator says; the other one runs now.
                assert_refused(&own, "outcome_unknown", "unknown");
                assert_done(&proxy.recv_id(2));
                assert_eq!(world.effects_of("charge"), 2);
            }
            world.release("h");
            proxy.stop();
            let lines = world.upstream_lines();
            let mut cancelled = lines.iter().filter(|line| contains(line, b"cancelled"));
            assert_eq!(cancelled.next().is_some(), cancels, "{verdict:?}");
            assert!(world.operator(&["verify"]).status.success());
        }
    }
}
