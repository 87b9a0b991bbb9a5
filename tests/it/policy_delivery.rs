//! Delivery and its neighbours: which lost or failed calls run again, and how often.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, refusal, result_bytes};
use crate::proxy::Proxy;
use crate::world::{DEADLINE, World};

const AT_LEAST_ONCE: &str = "[tools.charge]\ndelivery = \"at-least-once\"\n";

/// Loses a call: the upstream dies after its effect.
fn lose(world: &World, policy: &str, call: &Call) {
    let mut proxy = world.proxy().policy(policy).start();
    let call = call.clone().script(json!({"die": "after_effect"}));
    assert_refused(&proxy.call(&call), "outcome_unknown", "unknown");
    assert_eq!(proxy.wait_code(), 69);
}

fn attempts(shown: &Value) -> Vec<(u64, u64)> {
    let attempts = shown["attempts"].as_array().unwrap();
    let number = |attempt: &Value, name: &str| attempt[name].as_u64().unwrap();
    attempts
        .iter()
        .map(|attempt| (number(attempt, "attempt"), number(attempt, "fence")))
        .collect()
}

fn start(world: &World, policy: &str) -> Proxy {
    world.proxy().policy(policy).start()
}

#[test]
fn a_lost_call_runs_again_under_at_least_once_until_its_attempts_are_used_up() {
    let world = World::new();
    let call = Call::charge(1).seq(1);
    for _ in 0..3 {
        lose(&world, AT_LEAST_ONCE, &call);
    }
    assert_eq!(world.effects_of("charge"), 3);
    let mut proxy = start(&world, AT_LEAST_ONCE);
    let answer = proxy.call(&Call::charge(2).seq(1));
    assert_refused(&answer, "abandoned", "unknown");
    assert_eq!(answer["error"]["code"], 7705, "{answer}");
    assert_eq!(refusal(&answer)["attempt"], 3, "{answer}");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
    assert_eq!(world.entry(1)["status"], "PENDING");
    assert_eq!(world.entry(1)["in_doubt"], true);
    let shown = world.show_json(1);
    let attempts = attempts(&shown);
    let numbers: Vec<_> = attempts.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 2, 3], "{shown}");
    assert!(attempts.is_sorted_by_key(|(_, fence)| *fence), "{shown}");
}

#[test]
fn a_lost_call_that_comes_back_is_answered_by_its_new_attempt() {
    let world = World::new();
    lose(&world, AT_LEAST_ONCE, &Call::charge(1).seq(1));
    let mut proxy = start(&world, AT_LEAST_ONCE);
    let first = result_bytes(&proxy.call_line(&Call::charge(2).seq(1)));
    let second = result_bytes(&proxy.call_line(&Call::charge(3).seq(1)));
    assert_eq!(first, second);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
    let entry = world.entry(1);
    assert_eq!(entry["attempt"], 2, "{entry}");
}

#[test]
fn without_seq_or_key_a_lost_call_of_equal_arguments_runs_as_its_next_attempt() {
    let world = World::new();
    lose(&world, AT_LEAST_ONCE, &Call::charge(1));
    let mut proxy = start(&world, AT_LEAST_ONCE);
    assert_done(&proxy.call(&Call::charge(2)));
    proxy.stop();
    assert_eq!(world.entries().len(), 1);
    assert_eq!(world.entry(1)["attempt"], 2);
}

#[test]
fn with_other_arguments_a_lost_call_stays_in_doubt() {
    let world = World::new();
    lose(&world, AT_LEAST_ONCE, &Call::charge(1).seq(1));
    let mut proxy = start(&world, AT_LEAST_ONCE);
    let other = Call::new(2, "charge", json!({"order_id": "A-1", "amount": 101}));
    assert_refused(&proxy.call(&other.seq(1)), "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_lost_call_never_runs_again_under_at_most_once() {
    let world = World::new();
    let policy = "[tools.charge]\ndelivery = \"at-most-once\"\nlease_ttl = \"2ms\"\nheartbeat = \"1ms\"\nmax_attempts = 9\non_failure = \"retry\"\n";
    lose(&world, policy, &Call::charge(1).seq(1));
    for id in 2..4 {
        let mut proxy = start(&world, policy);
        assert_refused(&proxy.call(&Call::charge(id).seq(1)), "in_doubt", "unknown");
        proxy.stop();
    }
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_call_that_was_never_forwarded_does_not_count_as_lost_but_as_an_attempt() {
    let world = World::new();
    let error = json!({"error": {"code": -32020, "message": "mend"}, "no_effect": true});
    let mut proxy = start(&world, AT_LEAST_ONCE);
    proxy.call(&Call::charge(1).seq(1).script(error));
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

/// The second attempt is known not to have run. The first may have all the same.
#[test]
fn an_attempt_that_did_not_run_makes_no_certainty_of_the_lost_one_before_it() {
    let world = World::new();
    lose(&world, AT_LEAST_ONCE, &Call::charge(1).seq(1));
    let mut proxy = start(&world, AT_LEAST_ONCE);
    let error = json!({"error": {"code": -32020, "message": "mend"}, "no_effect": true});
    proxy.call(&Call::charge(2).seq(1).script(error));
    assert_eq!(world.entry(1)["in_doubt"], true);
    let other = Call::new(3, "charge", json!({"order_id": "A-1", "amount": 101}));
    assert_refused(&proxy.call(&other.seq(1)), "in_doubt", "unknown");
    proxy.stop();
    let mut proxy = world.proxy().start();
    assert_refused(&proxy.call(&Call::charge(4).seq(1)), "in_doubt", "unknown");
    proxy.stop();
    let mut proxy = start(&world, AT_LEAST_ONCE);
    assert_done(&proxy.call(&Call::charge(5).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
    assert_eq!(world.entry(1)["attempt"], 3);
    assert!(world.operator(&["verify"]).status.success());
}

#[test]
fn a_failure_is_retried_as_often_as_the_policy_says_and_then_replayed() {
    let world = World::new();
    let policy = "[tools.charge]\non_failure = \"retry\"\nmax_attempts = 2\n";
    let error = json!({"error": {"code": -32603, "message": "no"}});
    let mut proxy = start(&world, policy);
    for id in 1..=4 {
        let call = Call::charge(id).seq(1).script(error.clone());
        let answer = proxy.call(&call);
        assert_eq!(answer["error"]["message"], "no", "{answer}");
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
    let mut proxy = world.proxy().start();
    proxy.call(&Call::charge(5).seq(1));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2, "the default replays");
}

#[test]
fn a_tools_own_error_is_retried_where_the_policy_says_so() {
    let world = World::new();
    let policy = "[tools.charge]\non_tool_error = \"retry\"\n";
    let mut proxy = start(&world, policy);
    let failing = Call::charge(1).seq(1).script(json!({"is_error": true}));
    assert_eq!(proxy.call(&failing)["result"]["isError"], true);
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    assert_done(&proxy.call(&Call::charge(3).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn an_idempotent_hint_counts_only_where_it_is_trusted() {
    let hinted = ["--annotations", r#"{"charge":{"idempotentHint":true}}"#];
    for (policy, expected) in [
        ("[defaults]\ntrust_idempotent_hint = true\n", 2),
        ("[defaults]\ntrust_idempotent_hint = false\n", 1),
        (
            "[defaults]\ntrust_idempotent_hint = true\n[tools.charge]\ndelivery = \"at-most-once\"\n",
            1,
        ),
    ] {
        let world = World::new();
        for (id, script) in [(1, json!({"die": "after_effect"})), (2, json!({}))] {
            let mut proxy = world.proxy().upstream(&hinted).policy(policy).start();
            let listed = proxy.request("l", "tools/list", json!({})).to_string();
            assert!(listed.contains("idempotentHint"), "{listed}");
            proxy.call(&Call::charge(id).seq(1).script(script));
            proxy.close_stdin();
            proxy.wait();
        }
        assert_eq!(world.effects_of("charge"), expected, "{policy}");
    }
}

#[test]
fn a_result_that_is_not_stored_expires_and_is_never_run_again() {
    for policy in [
        "[tools.charge]\nstore_result = false\n",
        "[tools.charge]\nmax_result = \"16B\"\n",
        "[tools.charge]\nstore_result = false\ndelivery = \"at-least-once\"\n",
    ] {
        let world = World::new();
        let mut proxy = start(&world, policy);
        let answer = proxy.call(&Call::charge(1).seq(1));
        assert_done(&answer);
        let again = proxy.call(&Call::charge(2).seq(1));
        assert_refused(&again, "result_expired", "completed");
        proxy.stop();
        assert_eq!(world.effects_of("charge"), 1, "{policy}");
        assert_eq!(world.status(1), "COMPLETED");
        let shown = world.show_json(1).to_string();
        assert!(!shown.contains("receipt"), "{shown}");
    }
}

#[test]
fn a_tools_timeout_beats_the_flag() {
    let world = World::new();
    let policy = "[tools.charge]\ntimeout = \"200ms\"\n";
    let mut proxy = world
        .proxy()
        .policy(policy)
        .flags(["--call-timeout", "1h"])
        .start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    assert_refused(&proxy.recv_id(1), "outcome_unknown", "unknown");
    world.release("h");
    proxy.await_quiet();
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_shielded_cancellation_reaches_no_upstream_and_the_outcome_becomes_known() {
    let world = World::new();
    let policy = "[tools.charge]\non_cancel = \"shield\"\n";
    let mut proxy = start(&world, policy);
    let script = json!({"hold_after": "h", "on_cancel": "silent"});
    proxy.send_call(&Call::charge(1).seq(1).script(script));
    world.wait_held("h");
    proxy.cancel(1);
    proxy.assert_ping();
    world.release("h");
    proxy.await_quiet();
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert!(!is_cancellation_at_upstream(&world));
}

/// The cancellation comes on the heels of its call, while the reservation is being made.
#[test]
fn a_cancellation_that_comes_before_its_call_went_out_is_shielded_too() {
    let world = World::new();
    let policy = "[tools.charge]\non_cancel = \"shield\"\n";
    let mut proxy = start(&world, policy);
    let script = json!({"on_cancel": "silent"});
    let call = Call::charge(1).seq(1).script(script);
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    proxy.send(format!("{}\n{cancel}", call.line()));
    proxy.await_decided();
    proxy.await_quiet();
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert!(!is_cancellation_at_upstream(&world));
}

fn is_cancellation_at_upstream(world: &World) -> bool {
    let lines = world.upstream_lines();
    lines
        .iter()
        .any(|line| crate::world::contains(line, b"notifications/cancelled"))
}

#[test]
fn a_running_call_is_not_joined_where_the_policy_refuses() {
    let world = World::new();
    let policy = "[tools.charge]\non_in_flight = \"refuse\"\n";
    let mut proxy = start(&world, policy);
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    assert_refused(&proxy.call(&Call::charge(2).seq(1)), "in_flight", "unknown");
    world.release("h");
    assert_done(&proxy.recv_id(1));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_doubt_of_one_call_only_lets_equal_ones_run() {
    let world = World::new();
    let policy = "[tools.charge]\nin_doubt_scope = \"call\"\n";
    lose(&world, policy, &Call::charge(1));
    let mut proxy = start(&world, policy);
    assert_done(&proxy.call(&Call::charge(2)));
    assert_refused(&proxy.call(&Call::charge(3).seq(1)), "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn an_undelivered_outcome_answers_nobody_where_the_time_is_zero() {
    for (policy, effects) in [
        ("[tools.charge]\nredeliver_within = \"0s\"\n", 2),
        ("[tools.charge]\nredeliver_within = \"15m\"\n", 1),
    ] {
        let world = World::new();
        let mut proxy = start(&world, policy);
        proxy.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
        world.wait_held("h");
        proxy.cancel(1);
        proxy.assert_ping();
        world.release("h");
        proxy.await_quiet();
        assert_done(&proxy.call(&Call::charge(2)));
        proxy.stop();
        assert_eq!(world.effects_of("charge"), effects, "{policy}");
    }
}

#[test]
fn another_revision_of_the_upstream_diverges_is_noted_or_ignored() {
    for (policy, diverges, notes) in [
        (
            "[tools.charge]\non_revision_change = \"diverge\"\n",
            true,
            false,
        ),
        (
            "[tools.charge]\non_revision_change = \"note\"\n",
            false,
            true,
        ),
        (
            "[tools.charge]\non_revision_change = \"ignore\"\n",
            false,
            false,
        ),
    ] {
        let world = World::new();
        let run = |title: &str, id: i64| {
            let annotations = json!({"charge": {"title": title}}).to_string();
            let options = ["--annotations", &annotations];
            let mut proxy = world.proxy().upstream(&options).policy(policy).start();
            proxy.initialize();
            proxy.request("l", "tools/list", json!({}));
            let answer = proxy.call(&Call::charge(id).seq(1));
            proxy.stop();
            answer
        };
        assert_done(&run("1.0", 1));
        assert_done(&run("1.0", 2));
        let answer = run("2.0", 3);
        if diverges {
            assert_refused(&answer, "divergence", "not_started");
        } else {
            assert_done(&answer);
        }
        assert_eq!(world.effects_of("charge"), 1, "{policy}");
        let shown = world.show_json(1).to_string();
        assert_eq!(
            shown.contains("revision_changed"),
            notes,
            "{policy} {shown}"
        );
    }
}

#[test]
fn tools_without_a_journal_are_relayed_and_named_ones_are_not() {
    let world = World::new();
    let policy = "[tools.\"read_*\"]\njournal = false\n[tools.\"re*\"]\njournal = false\n[tools.refund]\njournal = true\n";
    let mut proxy = world
        .proxy()
        .policy(policy)
        .flags(["--trust-annotations"])
        .start();
    proxy.request("l", "tools/list", json!({}));
    for id in 1..3 {
        assert_done(&proxy.call(&Call::new(id, "read_balance", json!({})).seq(1)));
    }
    assert_done(&proxy.call(&Call::new(3, "refund", json!({"order_id": "A-1"})).seq(1)));
    assert_done(&proxy.call(&Call::new(4, "refund", json!({"order_id": "A-1"})).seq(1)));
    proxy.stop();
    assert_eq!(world.calls_at_upstream(), 3);
    assert_eq!(world.effects_of("refund"), 1);
    assert_eq!(world.entries().len(), 1);
}

#[test]
fn the_policy_in_force_is_recorded_with_the_attempt() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    let mut proxy = start(&world, AT_LEAST_ONCE);
    assert_done(&proxy.call(&Call::charge(2).seq(2)));
    assert_done(&proxy.call(&Call::new(3, "refund", json!({})).seq(3)));
    proxy.stop();
    let recorded = |seq: u64| world.show_json(seq)["policy"].clone();
    assert_eq!(recorded(1), Value::Null);
    let policy = recorded(2).to_string();
    assert!(policy.contains("at-least-once"), "{}", world.show_json(2));
    assert_eq!(recorded(3), Value::Null);
}

/// A drain that ran out, at-least-once: the next run tries again, once.
#[test]
fn a_killed_proxys_call_runs_again_once_its_upstream_is_gone() {
    let world = World::new();
    let mut proxy = start(&world, AT_LEAST_ONCE);
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_before": "h"})));
    let upstream = world.wait_held("h");
    proxy.kill9();
    world.wait_gone(upstream, DEADLINE);
    let mut proxy = start(&world, AT_LEAST_ONCE);
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.entry(1)["attempt"], 2);
}
