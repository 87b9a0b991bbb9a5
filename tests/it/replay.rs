//! Which entry a call means and what is answered from it: the table of decisions, seen from outside.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::world::{
    Call, DEADLINE, World, assert_done, assert_refused, contains, member_bytes, refusal,
    result_bytes,
};

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
    assert_eq!(world.entry(1), before);
}

#[test]
fn what_a_reader_must_take_for_the_same_call_is_the_same() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let line = |id: u32, arguments: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"charge","arguments":{arguments},"_meta":{{"checkpoint_seq":1,"progressToken":{id},"traceparent":"00-{id}"}}}}}}"#
        )
    };
    proxy.send(line(1, r#"{"a":1,"b":[{"c":"/","d":10}],"e":"a"}"#));
    assert_done(&proxy.recv_id(1));
    for (id, same) in (2..).zip([
        r#"{"e":"a","b":[{"d":10,"c":"/"}],"a":1}"#,
        r#"{ "a" : 1.0, "b":[{"c":"\/","d":1e1}], "e":"\u0061" }"#,
        r#"{"\u0061":10e-1,"b":[{"c":"\u002f","d":10.0}],"e":"a"}"#,
    ]) {
        proxy.send(line(id, same));
        assert_done(&proxy.recv_id(id));
    }
    for (id, other) in (100..).zip([
        r#"{"a":"1","b":[{"c":"/","d":10}],"e":"a"}"#,
        r#"{"a":1,"b":[{"c":"/","d":10}],"e":"A"}"#,
        r#"{"a":1,"b":[{"c":"/","d":10}],"e":"a","f":null}"#,
        "null",
        "{}",
    ]) {
        proxy.send(line(id, other));
        assert_refused(&proxy.recv_id(id), "divergence", "not_started");
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

/// Case C72: what a reader with 64-bit floats cannot tell apart is told apart.
#[test]
fn neighbours_beyond_2_to_the_53_diverge() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let line = |id: u32, order: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"charge","arguments":{{"order_id":{order}}},"_meta":{{"checkpoint_seq":1}}}}}}"#
        )
    };
    proxy.send(line(1, "9007199254740993"));
    assert_done(&proxy.recv_id(1));
    proxy.send(line(2, "9007199254740992"));
    assert_refused(&proxy.recv_id(2), "divergence", "not_started");
    proxy.send(line(3, "9007199254740993.0"));
    assert_done(&proxy.recv_id(3));
    assert_eq!(world.effects_of("charge"), 1);
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
fn a_killed_upstream_is_answered_for_within_a_second() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    let upstream = world.wait_held("h");
    kill(Pid::from_raw(upstream), Signal::SIGKILL).unwrap();
    let killed = Instant::now();
    let answer = proxy.recv_id(1);
    assert!(killed.elapsed() < Duration::from_secs(1));
    assert_refused(&answer, "outcome_unknown", "unknown");
    assert_eq!(proxy.wait_code(), 69);
    assert_eq!(world.effects_of("charge"), 1);
}

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
    proxy.assert_ping();
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

/// Case S1: what is no positive integer, written as one, is never read as absent.
#[test]
fn a_seq_that_is_no_positive_integer_is_refused_and_never_read_as_absent() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let with_seq = |id: u32, seq: &str| Call::charge(id).seq("SEQ").line().replace(r#""SEQ""#, seq);
    let bad = [
        r#""7""#,
        r#""7 ""#,
        "-1",
        "0",
        "-0",
        "true",
        "false",
        "1.9",
        "7.0",
        "7e0",
        "1e2",
        "9007199254740992",
        "9223372036854775808",
        "100000000000000000000000000",
        "null",
        "{}",
        "[1]",
    ];
    for (id, seq) in (1..).zip(bad) {
        proxy.send(with_seq(id, seq));
        let answer = proxy.recv_id(id);
        assert_refused(&answer, "invalid_seq", "not_started");
        assert_eq!(answer["error"]["code"], -32602, "{seq}: {answer}");
    }
    assert_eq!(world.effects().len(), 0);
    assert_eq!(world.calls_at_upstream(), 0);
    proxy.send(with_seq(100, "9007199254740991"));
    assert_done(&proxy.recv_id(100));
    proxy.stop();
    assert_eq!(world.entries().len(), 1);
}

#[test]
fn a_seq_beyond_the_end_leaves_a_gap_that_may_be_filled() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(7)));
    assert_done(&proxy.call(&Call::new(2, "refund", json!({}))));
    assert_done(&proxy.call(&Call::new(3, "send_mail", json!({})).seq(3)));
    assert_done(&proxy.call(&Call::charge(4).seq(7)));
    proxy.stop();
    assert_eq!(world.entry(7)["tool"], "charge");
    assert_eq!(world.entry(8)["tool"], "refund");
    assert_eq!(world.entry(3)["tool"], "send_mail");
    assert_eq!(world.effects().len(), 3);
}

#[test]
fn calls_without_seq_or_key_are_new_and_count_on_over_restarts() {
    let world = World::new();
    for session in 0..3u64 {
        let mut proxy = world.proxy().start();
        for call in 1..=2u64 {
            assert_done(&proxy.call(&Call::charge(call)));
            let count = session * 2 + call;
            assert_eq!(world.effects_of("charge") as u64, count);
        }
        proxy.stop();
    }
    let seqs: Vec<Value> = world.entries().iter().map(|e| e["seq"].clone()).collect();
    let mut sorted: Vec<u64> = seqs.iter().map(|seq| seq.as_u64().unwrap()).collect();
    sorted.sort_unstable();
    assert_eq!(sorted, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_key_names_its_entry() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let first = proxy.call_line(&Call::charge(1).meta("checkpoint_key", "k"));
    let again = proxy.call_line(&Call::charge(2).meta("checkpoint_key", "k"));
    assert_eq!(result_bytes(&again), result_bytes(&first));
    let again = proxy.call_line(&Call::charge(3).param("idempotencyKey", "k"));
    assert_eq!(result_bytes(&again), result_bytes(&first));
    let other = Call::new(4, "charge", json!({"amount": 2})).meta("checkpoint_key", "k");
    assert_refused(&proxy.call(&other), "divergence", "not_started");
    assert_done(&proxy.call(&Call::charge(5).meta("checkpoint_key", "another")));
    for (id, key) in (6..).zip([json!(""), json!(7), json!(null), json!("x".repeat(513))]) {
        let answer = proxy.call(&Call::charge(id).meta("checkpoint_key", key));
        assert_refused(&answer, "invalid_key", "not_started");
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn a_workflow_of_its_own_has_seqs_of_its_own() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let in_workflow =
        |id: u32, name: &str| Call::charge(id).seq(1).meta("checkpoint_workflow", name);
    assert_done(&proxy.call(&in_workflow(1, "a")));
    assert_done(&proxy.call(&in_workflow(2, "b")));
    assert_done(&proxy.call(&Call::charge(3).seq(1)));
    assert_eq!(world.effects_of("charge"), 3);
    for (id, name) in [(4, "a"), (5, "b")] {
        assert_done(&proxy.call(&in_workflow(id, name)));
    }
    assert_eq!(world.effects_of("charge"), 3);
    for (id, name) in (6..).zip([json!(""), json!(1), json!(null), json!("x".repeat(513))]) {
        let answer = proxy.call(&Call::charge(id).seq(1).meta("checkpoint_workflow", name));
        assert_refused(&answer, "invalid_workflow", "not_started");
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn the_journals_own_workflow_survives_a_move_of_the_file() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    let moved = world.path("moved");
    std::fs::rename(world.journal().parent().unwrap(), &moved).unwrap();
    let mut proxy = world.proxy().journal(moved.join("run.db")).start();
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
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
    other.assert_ping();
    owner.kill9();
    assert_refused(&other.recv_id(2), "in_doubt", "unknown");
    world.wait_gone(upstream, DEADLINE);
    other.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
}
