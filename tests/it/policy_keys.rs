//! Keys: one key, one effect, as far as its window goes; and never the first result for other
//! arguments.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, refusal, result_bytes};
use crate::proxy::Proxy;
use crate::world::{DEADLINE, World, contains};

const TEMPLATE: &str = r#"
[tools.charge]
key = "charge:{order_id}"
window = "journal"
"#;

fn order(id: i64, order_id: &str, amount: i64) -> Call {
    let arguments = json!({"order_id": order_id, "amount": amount});
    Call::new(id, "charge", arguments)
}

/// Asserts that the second call is answered with the first one's stored result.
#[track_caller]
fn assert_replays(proxy: &mut Proxy, first: &Call, second: &Call) {
    let first = result_bytes(&proxy.call_line(first));
    let second = result_bytes(&proxy.call_line(second));
    assert_eq!(first, second);
}

#[test]
fn a_key_in_meta_names_the_effect_whatever_the_id() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let call = |id: i64| order(id, "A-1", 100).meta("checkpoint_key", "refund-1");
    assert_replays(&mut proxy, &call(1), &call(2));
    proxy.stop();
    // Over a restart, too: the run is the workflow.
    let mut proxy = world.proxy().start();
    assert_replays(&mut proxy, &call(3), &call(4));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.entries().len(), 1);
}

#[test]
fn a_key_of_the_proposed_protocol_field_is_one_and_is_forwarded_untouched() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let call = |id: i64| order(id, "A-1", 100).param("idempotencyKey", "k-1");
    assert_replays(&mut proxy, &call(1), &call(2));
    // Both spellings are one kind of key.
    assert_done(&proxy.call(&order(3, "A-1", 100).meta("checkpoint_key", "k-1")));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    let lines = world.upstream_lines();
    let sent = format!("{}\n", call(1).line());
    assert!(lines.contains(&sent.into_bytes()), "{lines:?}");
}

#[test]
fn a_template_makes_the_key_and_its_values_are_typed() {
    let world = World::new();
    let mut proxy = world.proxy().policy(TEMPLATE).start();
    assert_replays(&mut proxy, &order(1, "A-1", 1), &order(2, "A-1", 1));
    let number = |id: i64| Call::new(id, "charge", json!({"order_id": 7, "amount": 1}));
    assert_replays(&mut proxy, &number(3), &number(4));
    assert_done(&proxy.call(&order(5, "7", 1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
    let found = world.operator(&["ls", "--json", "--key", r#"charge:{"A-1"}"#]);
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(found["entries"].as_array().unwrap().len(), 1, "{found}");
}

#[test]
fn a_separator_inside_a_value_is_none() {
    let world = World::new();
    let policy = "[tools.charge]\nkey = \"{a}:{b}\"\nwindow = \"journal\"\n";
    let mut proxy = world.proxy().policy(policy).start();
    for (id, a, b) in [(1, "x:y", "z"), (2, "x", "y:z"), (3, "x\":\"y", "z")] {
        assert_done(&proxy.call(&Call::new(id, "charge", json!({"a": a, "b": b}))));
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn equal_arguments_are_one_call_under_the_key_args() {
    let world = World::new();
    let policy = "[defaults]\nkey = \"args\"\nwindow = \"run\"\n";
    let mut proxy = world.proxy().policy(policy).start();
    assert_replays(&mut proxy, &order(1, "A-1", 1), &order(2, "A-1", 1));
    let spelled = r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"charge","arguments":{"amount" : 1,"order_id":"\u0041-1"},"_meta":{"progressToken":9}}}"#;
    proxy.send(spelled);
    assert_done(&proxy.recv_id(3));
    assert_done(&proxy.call(&order(4, "A-1", 2)));
    assert_done(&proxy.call(&Call::new(
        5,
        "refund",
        json!({"order_id": "A-1", "amount": 1}),
    )));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
    assert_eq!(world.effects_of("refund"), 1);
}

#[test]
fn parallel_calls_are_told_by_their_arguments_whatever_their_order() {
    let world = World::new();
    let policy = "[defaults]\nkey = \"args\"\nwindow = \"run\"\n";
    let mut first = Vec::new();
    for order_of_ids in [[0, 1, 2, 3, 4, 5, 6, 7], [5, 2, 7, 0, 3, 6, 1, 4]] {
        let mut proxy = world.proxy().policy(policy).start();
        for place in order_of_ids {
            proxy.send_call(&order(place, &format!("o-{place}"), 1));
        }
        let answers: Vec<_> = (0..8)
            .map(|place| result_bytes(&proxy.recv_id_line(&json!(place))))
            .collect();
        proxy.stop();
        if first.is_empty() {
            first = answers;
        } else {
            assert_eq!(first, answers);
        }
    }
    assert_eq!(world.effects_of("charge"), 8);
}

#[test]
fn the_hosts_call_id_is_a_key_only_where_the_policy_says_so() {
    let world = World::new();
    let policy = "[tools.charge]\nkey = \"call_id\"\nwindow = \"run\"\n";
    let call = |id: i64, call_id: &str| order(id, "A-1", 1).meta("checkpoint_call_id", call_id);
    let mut proxy = world.proxy().policy(policy).start();
    assert_replays(&mut proxy, &call(1, "toolu_1"), &call(2, "toolu_1"));
    assert_done(&proxy.call(&call(3, "toolu_2")));
    // Without the member nobody would know it again.
    let answer = proxy.call(&order(4, "A-1", 1));
    assert_refused(&answer, "invalid_key", "not_started");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&call(5, "toolu_1")));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn a_member_that_is_missing_makes_no_key_and_no_call() {
    let world = World::new();
    let mut proxy = world
        .proxy()
        .policy(TEMPLATE)
        .flags(["--refusals", "error"])
        .start();
    for (id, arguments) in [(1, json!({"amount": 1})), (3, json!({}))] {
        let answer = proxy.call(&Call::new(id, "charge", arguments));
        assert_refused(&answer, "invalid_key", "not_started");
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    // Null is a value, and what the client sends itself needs no member.
    assert_done(&proxy.call(&Call::new(4, "charge", json!({"order_id": null}))));
    assert_done(&proxy.call(&Call::new(5, "charge", json!({})).meta("checkpoint_key", "k")));
    proxy.stop();
    assert_eq!(world.calls_at_upstream(), 2);
    assert_eq!(world.entries().len(), 2);
}

#[test]
fn a_reused_key_with_other_arguments_is_refused_and_never_answered() {
    let world = World::new();
    let mut proxy = world.proxy().policy(TEMPLATE).start();
    assert_done(&proxy.call(&order(1, "A-1", 100)));
    let answer = proxy.call(&order(2, "A-1", 101));
    assert_refused(&answer, "divergence", "not_started");
    assert_eq!(refusal(&answer)["diff"], json!(["/amount"]), "{answer}");
    // Another tool under the same key of the client's is no better.
    assert_done(&proxy.call(&order(3, "B-1", 1).meta("checkpoint_key", "mine")));
    let other = Call::new(4, "refund", json!({"order_id": "B-1", "amount": 1}));
    let answer = proxy.call(&other.meta("checkpoint_key", "mine"));
    // Without a policy for it, that key holds in the run, and the tool's table says journal.
    assert_done(&answer);
    let other = Call::new(5, "refund", json!({"order_id": "B-1", "amount": 2}));
    let answer = proxy.call(&other.meta("checkpoint_key", "mine"));
    assert_refused(&answer, "divergence", "not_started");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
    assert_eq!(world.effects_of("refund"), 1);
}

#[test]
fn key_covers_narrows_what_must_be_equal() {
    let world = World::new();
    let policy = format!("{TEMPLATE}key_covers = [\"/order_id\", \"/amount\"]\n");
    let call = |id: i64, amount: i64, note: &str| {
        let arguments = json!({"order_id": "A-1", "amount": amount, "note": note});
        Call::new(id, "charge", arguments)
    };
    let mut proxy = world.proxy().policy(&policy).start();
    assert_replays(&mut proxy, &call(1, 5, "please"), &call(2, 5, "hurry"));
    let answer = proxy.call(&call(3, 6, "please"));
    assert_refused(&answer, "divergence", "not_started");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_window_ends_where_it_says() {
    let world = World::new();
    let windows = ["run", "thread", "journal"];
    // Run id, thread id, workflow; which windows know the first call again.
    let others: [(&str, &str, &str, [bool; 3]); 5] = [
        ("r1", "t1", "w1", [true, true, true]),
        ("r1", "t1", "w2", [true, true, true]),
        ("r2", "t1", "w1", [false, true, true]),
        ("r1", "t2", "w1", [true, false, true]),
        ("r2", "t2", "w3", [false, false, true]),
    ];
    let mut effects = 0;
    for (place, window) in windows.into_iter().enumerate() {
        let policy =
            format!("[tools.charge]\nkey = \"{window}:{{order_id}}\"\nwindow = \"{window}\"\n");
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for (run, thread, workflow, knows) in others {
            let ids = [
                "--run-id",
                run,
                "--thread-id",
                thread,
                "--workflow-id",
                workflow,
            ];
            let mut proxy = world.proxy().policy(&policy).flags(ids).start();
            assert_done(&proxy.call(&order(1, "A-1", 1)));
            proxy.stop();
            let held = match window {
                "run" => (run, ""),
                "thread" => (thread, ""),
                _ => ("", ""),
            };
            let is_new = !seen.contains(&held);
            seen.push(held);
            // The table above says so for the second and later starts.
            assert!(is_new || knows[place] || window != "journal");
            effects += usize::from(is_new);
            assert_eq!(
                world.effects_of("charge"),
                effects,
                "{window} {run} {thread}"
            );
        }
    }
    assert_eq!(effects, 2 + 2 + 1);
}

#[test]
fn without_a_run_id_the_run_is_the_workflow() {
    let world = World::new();
    let call = |id: i64| order(id, "A-1", 1).meta("checkpoint_key", "k");
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&call(1)));
    assert_done(&proxy.call(&call(2).meta("checkpoint_workflow", "other")));
    assert_done(&proxy.call(&call(3).meta("checkpoint_workflow", "other")));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn of_two_calls_that_race_for_a_new_key_one_runs_and_the_other_joins() {
    let world = World::new();
    let mut proxy = world.proxy().policy(TEMPLATE).start();
    let held = json!({"hold_after": "h"});
    let lines = [1, 2].map(|id| order(id, "A-1", 1).script(held.clone()).line());
    proxy.send(lines.join("\n"));
    world.wait_held("h");
    proxy.await_decided();
    world.release("h");
    let [one, two] = [1, 2].map(|id| result_bytes(&proxy.recv_id_line(&json!(id))));
    assert_eq!(one, two);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.entries().len(), 2, "with the barrier's");
}

#[test]
fn in_two_processes_too() {
    let world = World::new();
    let policy = format!("{TEMPLATE}wait_poll = \"20ms\"\n");
    let mut first = world.proxy().policy(&policy).start();
    let mut second = world.proxy().policy(&policy).start();
    first.send_call(&order(1, "A-1", 1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    second.send_call(&order(2, "A-1", 1));
    second.await_decided();
    world.release("h");
    let one = result_bytes(&first.recv_id_line(&json!(1)));
    let two = result_bytes(&second.recv_id_line(&json!(2)));
    assert_eq!(one, two);
    first.stop();
    second.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn two_equal_parallel_calls_without_a_key_stay_two() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send([order(1, "A-1", 1).line(), order(2, "A-1", 1).line()].join("\n"));
    assert_done(&proxy.recv_id(1));
    assert_done(&proxy.recv_id(2));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn with_a_seq_and_a_key_the_seqs_entry_decides_and_else_the_keys() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let keyed = |id: i64, key: &str| order(id, "A-1", 1).meta("checkpoint_key", key);
    let first = result_bytes(&proxy.call_line(&keyed(1, "k1").seq(1)));
    let second = result_bytes(&proxy.call_line(&keyed(2, "k2").seq(2)));
    assert_ne!(first, second);
    // The seq's entry decides.
    assert_eq!(
        result_bytes(&proxy.call_line(&keyed(3, "k2").seq(1))),
        first
    );
    // There is none: the key's.
    assert_eq!(
        result_bytes(&proxy.call_line(&keyed(4, "k2").seq(9))),
        second
    );
    // There is neither: new at that seq, with that key.
    assert_done(&proxy.call(&keyed(5, "k3").seq(9)));
    assert_done(&proxy.call(&keyed(6, "k3")));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
    assert_eq!(world.entry(9)["key"], "k3");
}

/// A voided entry runs again, also if its call now comes with a key that another entry holds.
#[test]
fn a_voided_entry_does_not_take_a_key_from_another() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let keyed = |id: i64, key: &str| order(id, "A-1", 1).meta("checkpoint_key", key);
    let error = json!({"error": {"code": -32020, "message": "mend it"}, "no_effect": true});
    proxy.call(&order(1, "A-1", 1).seq(1).script(error));
    assert_eq!(world.status(1), "VOIDED");
    let second = result_bytes(&proxy.call_line(&keyed(2, "k").seq(2)));
    let third = proxy.call_line(&keyed(3, "k").seq(1));
    assert_done(&serde_json::from_slice(&third).unwrap());
    // The key means what it meant.
    assert_eq!(result_bytes(&proxy.call_line(&keyed(4, "k"))), second);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn keys_made_from_arguments_are_stored_keyed_where_arguments_are() {
    let world = World::new();
    let policy = "[tools.charge]\nkey = \"{order_id}\"\nwindow = \"journal\"\n";
    // One from before.
    let mut proxy = world.proxy().policy(policy).start();
    let first = result_bytes(&proxy.call_line(&order(1, "secret-1", 1)));
    proxy.stop();
    let redacts = ["--redact-args-in-journal"];
    let mut proxy = world.proxy().policy(policy).flags(redacts).start();
    assert_eq!(
        result_bytes(&proxy.call_line(&order(2, "secret-1", 1))),
        first
    );
    let second = result_bytes(&proxy.call_line(&order(3, "secret-2", 1)));
    assert_eq!(
        result_bytes(&proxy.call_line(&order(4, "secret-2", 1))),
        second
    );
    let answer = proxy.call(&order(5, "secret-2", 2));
    assert_refused(&answer, "divergence", "not_started");
    assert_eq!(refusal(&answer)["diff"].as_array().map_or(0, Vec::len), 0);
    proxy.stop();
    // And back: what was stored keyed is still found.
    let mut proxy = world.proxy().policy(policy).start();
    assert_eq!(
        result_bytes(&proxy.call_line(&order(6, "secret-2", 1))),
        second
    );
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
    let key = world.entry(2)["key"].as_str().unwrap().to_owned();
    assert!(key.starts_with("keyed:"), "{key}");
    for file in std::fs::read_dir(world.path("state")).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!contains(&bytes, b"secret-2"));
    }
}

#[test]
fn a_held_key_of_a_lost_call_is_in_doubt_like_its_entry() {
    let world = World::new();
    let mut proxy = world.proxy().policy(TEMPLATE).start();
    proxy.send_call(&order(1, "A-1", 1).script(json!({"hold_after": "h"})));
    let upstream = world.wait_held("h");
    proxy.kill9();
    world.wait_gone(upstream, DEADLINE);
    for id in 2..4 {
        let mut proxy = world.proxy().policy(TEMPLATE).start();
        let answer = proxy.call(&order(id, "A-1", 1));
        assert_refused(&answer, "in_doubt", "unknown");
        proxy.stop();
    }
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.entries().len(), 1);
}
