//! Which entry a call means: its workflow, its seq, its key, its signature.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, result_bytes};
use crate::world::World;

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
fn a_key_holds_over_a_restart_and_a_seq_goes_before_it() {
    let world = World::new();
    let keyed = |id: u32| Call::charge(id).meta("checkpoint_key", "k");
    let mut proxy = world.proxy().start();
    let first = proxy.call_line(&keyed(1));
    proxy.kill9();
    let mut proxy = world.proxy().start();
    let again = proxy.call_line(&keyed(2));
    assert_eq!(result_bytes(&again), result_bytes(&first));
    // A seq without an entry, a key that another entry holds: that entry decides.
    let again = proxy.call_line(&keyed(3).seq(9));
    assert_eq!(result_bytes(&again), result_bytes(&first));
    assert_eq!(world.effects_of("charge"), 1);
    // A seq with an entry decides, whatever the key.
    assert_done(&proxy.call(&Call::new(4, "refund", json!({})).seq(5)));
    let answer = proxy.call(&keyed(5).seq(5));
    assert_refused(&answer, "divergence", "not_started");
    proxy.stop();
    assert_eq!(world.effects().len(), 2);
}

#[test]
fn a_call_id_is_recorded_and_decides_nothing() {
    for (flags, name, recorded) in [
        (vec![], "checkpoint_call_id", json!("toolu_1")),
        (vec![], "claudecode/toolUseId", json!("toolu_1")),
        (vec![], "vendor/id", json!(null)),
        (
            vec!["--call-id-from", "vendor/id"],
            "vendor/id",
            json!("toolu_1"),
        ),
        (
            vec!["--call-id-from", "none"],
            "claudecode/toolUseId",
            json!(null),
        ),
    ] {
        let world = World::new();
        let mut proxy = world.proxy().flags(flags).start();
        for id in 1..=2 {
            assert_done(&proxy.call(&Call::charge(id).meta(name, "toolu_1")));
        }
        proxy.stop();
        assert_eq!(world.entry(1)["call_id"], recorded, "{name}");
        assert_eq!(world.effects_of("charge"), 2, "{name}");
    }
}

#[test]
fn a_running_call_is_pending_and_not_in_doubt() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let entry = world.entry(1);
    assert_eq!(entry["status"], "PENDING", "{entry}");
    assert_eq!(entry["in_doubt"], false, "{entry}");
    assert_eq!(entry["completed_at"], json!(null), "{entry}");
    let shown = world.operator(&["ls", "--in-doubt", "--fail-if-any"]);
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    world.release("h");
    assert_done(&proxy.recv_id(1));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}
