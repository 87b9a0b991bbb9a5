//! What is answered from an entry that has an outcome, or never will: the table of decisions.

use std::time::Duration;

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, member_bytes, refusal, result_bytes};
use crate::world::{World, contains};

#[test]
fn a_live_answer_is_the_upstreams_bytes_and_a_replay_the_results() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let live = proxy.call_line(&Call::charge("live").seq(1));
    assert_eq!(world.sent_lines(), std::slice::from_ref(&live));
    let stored = result_bytes(&live);
    assert!(stored.contains(r#""amount":1.0,"serial":12345678901234567890123"#));
    // In the same session, and in another.
    let replay = proxy.call_line(&Call::charge("again").seq(1));
    assert_eq!(result_bytes(&replay), stored);
    proxy.stop();
    let mut proxy = world.proxy().start();
    let replay = proxy.call_line(&Call::charge("later").seq(1));
    assert_eq!(result_bytes(&replay), stored);
    assert_eq!(member_bytes(&replay, "id"), r#""later""#);
    assert_eq!(member_bytes(&replay, "jsonrpc"), r#""2.0""#);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
}

#[test]
fn a_replay_keeps_the_spelling_of_the_callers_id() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    for id in [
        "9007199254740993",
        "18446744073709551616",
        "1.0",
        "1e3",
        r#""\u0061""#,
        r#""""#,
        "-1",
    ] {
        let line = Call::charge("ID").seq(1).line().replace(r#""ID""#, id);
        proxy.send(&line);
        let answer = proxy.recv_line();
        assert_eq!(member_bytes(&answer, "id"), id);
        assert!(contains(&answer, b"charge done"));
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn an_entry_says_what_the_schema_promises() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--workflow-id", "w"]).start();
    let call = Call::charge(1).meta("checkpoint_call_id", "toolu_1");
    assert_done(&proxy.call(&call.meta("checkpoint_key", "k-1")));
    proxy.stop();
    let listing = world.ls_json();
    assert_eq!(listing["schema_version"], 1);
    assert!(listing["counts"].is_object(), "{listing}");
    let entry = world.entry(1);
    for (name, value) in [
        ("status", json!("COMPLETED")),
        ("tool", json!("charge")),
        ("attempt", json!(1)),
        ("workflow_id", json!("w")),
        ("branch", json!(0)),
        ("in_doubt", json!(false)),
        ("provenance", json!("upstream")),
        ("call_id", json!("toolu_1")),
        ("key", json!("k-1")),
    ] {
        assert_eq!(entry[name], value, "{name} in {entry}");
    }
    assert!(entry["fence"].as_u64().unwrap() >= 1, "{entry}");
    assert!(!entry["session"].is_null(), "{entry}");
    for name in ["signature", "created_at", "completed_at", "delivered_at"] {
        assert!(entry[name].is_string(), "{name} in {entry}");
    }
    let shown = world.show_json(1);
    assert!(shown.to_string().contains("A-1"), "{shown}");
}

#[test]
fn other_arguments_at_a_seq_diverge_with_both_signatures_and_a_diff() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    let before = world.entry(1);
    let other = json!({"order_id": "A-1", "amount": 101, "note": "x"});
    let answer = proxy.call(&Call::new(2, "charge", other).seq(1));
    assert_refused(&answer, "divergence", "not_started");
    assert_eq!(answer["error"]["code"], 7701);
    let data = refusal(&answer);
    assert_eq!(data["journaled"]["signature"], before["signature"]);
    assert_ne!(data["incoming"]["signature"], before["signature"]);
    let diff = data["diff"].to_string();
    assert!(diff.contains("/amount") && diff.contains("/note"), "{diff}");
    assert!(!diff.contains("/order_id"), "{diff}");
    // Another tool with the same arguments is another call too.
    let arguments = json!({"order_id": "A-1", "amount": 100});
    let answer = proxy.call(&Call::new(3, "refund", arguments).seq(1));
    assert_refused(&answer, "divergence", "not_started");
    proxy.stop();
    assert_eq!(world.effects().len(), 1);
    // That the first answer was delivered is written a moment after it.
    let but_delivery = |entry: &Value| {
        let mut entry = entry.clone();
        entry.as_object_mut().unwrap().remove("delivered_at");
        entry
    };
    assert_eq!(but_delivery(&world.entry(1)), but_delivery(&before));
}

#[test]
fn a_failed_call_replays_its_error_and_does_not_run_again() {
    for code in [-32603, -32602, -32001, 504] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        let arguments = json!({"code": code, "effect": true});
        let first = proxy.call_line(&Call::new(1, "fail_error", arguments.clone()).seq(1));
        let error = member_bytes(&first, "error");
        assert!(error.contains(r#""exact":1.0"#), "{error}");
        let again = proxy.call_line(&Call::new(2, "fail_error", arguments.clone()).seq(1));
        assert_eq!(member_bytes(&again, "error"), error);
        proxy.stop();
        let mut proxy = world.proxy().start();
        let again = proxy.call_line(&Call::new(3, "fail_error", arguments).seq(1));
        assert_eq!(member_bytes(&again, "error"), error);
        let other = Call::new(4, "fail_error", json!({"code": 1})).seq(1);
        assert_refused(&proxy.call(&other), "divergence", "not_started");
        proxy.stop();
        assert_eq!(world.status(1), "FAILED");
        assert_eq!(world.effects_of("fail_error"), 1);
        assert_eq!(world.calls_at_upstream(), 1);
    }
}

#[test]
fn a_tools_own_failure_is_completed_and_replayed_as_such() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let first = proxy.call_line(&Call::new(1, "fail_result", json!({})).seq(1));
    assert!(result_bytes(&first).contains(r#""isError":true"#));
    let again = proxy.call_line(&Call::new(2, "fail_result", json!({})).seq(1));
    assert_eq!(result_bytes(&again), result_bytes(&first));
    proxy.stop();
    let entry = world.entry(1);
    assert_eq!(entry["status"], "COMPLETED", "{entry}");
    assert_eq!(world.effects_of("fail_result"), 1);
}

/// The errors that the protocol defines as "mend and send again" use up no seq.
#[test]
fn a_mendable_error_voids_the_entry_and_the_mended_call_runs() {
    for code in [-32020, -32021, -32022, -32042] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        let script = json!({"no_effect": true, "error": {"code": code, "message": "mend"}});
        let answer = proxy.call(&Call::charge(1).seq(1).script(script));
        assert_eq!(answer["error"]["code"], code);
        assert_eq!(world.status(1), "VOIDED");
        let mended = Call::new(2, "charge", json!({"order_id": "A-1", "amount": 7})).seq(1);
        assert_done(&proxy.call(&mended));
        proxy.stop();
        let entry = world.entry(1);
        assert_eq!(entry["status"], "COMPLETED", "{entry}");
        assert_eq!(entry["attempt"], 2, "{entry}");
        assert_eq!(world.effects_of("charge"), 1);
    }
}

#[test]
fn an_upstream_that_dies_leaves_its_call_in_doubt_whatever_it_had_done() {
    for (place, effects) in [("before_effect", 0), ("after_effect", 1), ("mid_line", 1)] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        let answer = proxy.call(&Call::charge(1).seq(1).script(json!({"die": place})));
        assert_refused(&answer, "outcome_unknown", "unknown");
        assert_eq!(answer["error"]["code"], 7703);
        assert_eq!(
            refusal(&answer)["reason"],
            "upstream_exited",
            "{place}: {answer}"
        );
        assert_eq!(proxy.wait_code(), 69);
        assert_eq!(world.status(1), "PENDING");

        let mut proxy = world.proxy().start();
        let answer = proxy.call(&Call::charge(2).seq(1));
        assert_refused(&answer, "in_doubt", "unknown");
        let other = Call::new(3, "charge", json!({"amount": 2})).seq(1);
        assert_refused(&proxy.call(&other), "in_doubt", "unknown");
        proxy.stop();
        assert_eq!(world.entry(1)["in_doubt"], true);
        assert_eq!(world.effects_of("charge"), effects, "{place}");
        assert_eq!(world.calls_at_upstream(), 1);
    }
}

#[test]
fn many_calls_in_flight_each_get_their_own_answer_and_entry() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let calls = 64;
    for id in 1..=calls {
        let arguments = json!({"payload": format!("p{id}")});
        let call = Call::new(id, "echo", arguments).script(json!({"hold_before": "all"}));
        proxy.send_call(&call.seq(1000 + id));
    }
    world.wait_held_count("all", calls as usize);
    world.release("all");
    for _ in 0..calls {
        let answer = proxy.recv();
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert_eq!(text, format!("p{}", answer["id"]));
    }
    proxy.stop();
    assert_eq!(world.effects_of("echo"), calls as usize);
    assert_eq!(world.entries().len(), calls as usize);
}

/// Case C9: a call that took too long is unknown, not failed, and its late answer is kept.
#[test]
fn a_timeout_is_no_outcome_and_the_late_answer_is_one() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--call-timeout", "250ms"]).start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let answer = proxy.recv_id(1);
    assert_refused(&answer, "outcome_unknown", "unknown");
    assert_eq!(refusal(&answer)["reason"], "timeout", "{answer}");
    assert_eq!(world.status(1), "PENDING");
    world.release("h");
    proxy.await_quiet();
    assert!(
        proxy.recv_id_within(1, Duration::ZERO).is_none(),
        "a second answer to one id"
    );
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
}
