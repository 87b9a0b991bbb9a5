//! The one shape of refusals: kinds, codes, what they say of the effect, and to whom.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, refusal};
use crate::world::{World, run};

/// A world with seq 1 in doubt (a charge) and seq 2 completed (a refund).
fn world_with_doubt() -> World {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::new(1, "refund", json!({"amount": 5})).seq(2)));
    let answer = proxy.call(
        &Call::charge(2)
            .seq(1)
            .script(json!({"die": "after_effect"})),
    );
    assert_refused(&answer, "outcome_unknown", "unknown");
    assert_eq!(proxy.wait_code(), 69);
    world
}

#[test]
fn code_gets_an_error_and_a_model_gets_a_result() {
    let world = world_with_doubt();
    for (mode, for_seq, for_model) in [
        (None, "error", "result"),
        (Some("auto"), "error", "result"),
        (Some("error"), "error", "error"),
        (Some("result"), "result", "result"),
    ] {
        let flags = mode.map(|mode| ["--refusals", mode]);
        let mut proxy = world.proxy().flags(flags.into_iter().flatten()).start();
        let to_seq = proxy.call(&Call::charge(1).seq(1));
        assert!(to_seq[for_seq].is_object(), "{mode:?}: {to_seq}");
        let to_model = proxy.call(&Call::charge(2));
        assert!(to_model[for_model].is_object(), "{mode:?}: {to_model}");
        for answer in [&to_seq, &to_model] {
            assert_refused(answer, "in_doubt", "unknown");
        }
        let diverging = proxy.call(&Call::charge(3).seq(2));
        assert!(diverging[for_seq].is_object(), "{mode:?}: {diverging}");
        assert_refused(&diverging, "divergence", "not_started");
        let key = Call::charge(4).meta("checkpoint_key", 7);
        let keyed = proxy.call(&key);
        assert!(keyed[for_seq].is_object(), "{mode:?}: {keyed}");
        proxy.stop();
    }
    assert_eq!(world.effects().len(), 2);
}

#[test]
fn the_data_of_a_refusal_is_the_same_in_both_shapes() {
    let world = world_with_doubt();
    let mut seen: Vec<Value> = Vec::new();
    for mode in ["error", "result"] {
        let mut proxy = world.proxy().flags(["--refusals", mode]).start();
        let answer = proxy.call(&Call::charge(1).seq(1));
        let mut data = refusal(&answer).clone();
        if mode == "result" {
            // Beside the text, as some frameworks show a model the structured content alone.
            let message = data.as_object_mut().unwrap().remove("message");
            assert_eq!(
                message.as_ref(),
                Some(&answer["result"]["content"][0]["text"])
            );
        }
        seen.push(data);
        proxy.stop();
    }
    assert_eq!(seen[0], seen[1]);
    let data = &seen[0];
    for (name, value) in [
        ("kind", json!("in_doubt")),
        ("side_effect", json!("unknown")),
        ("retryable", json!(false)),
        ("branch", json!(0)),
        ("seq", json!(1)),
        ("tool", json!("charge")),
        ("attempt", json!(1)),
    ] {
        assert_eq!(data[name], value, "{name} in {data}");
    }
    assert!(data["workflow_id"].is_string(), "{data}");
    assert!(
        data["letter"]
            .as_str()
            .is_some_and(|letter| letter.starts_with('@')),
        "{data}"
    );
    assert_eq!(data["journaled"]["status"], "PENDING", "{data}");
    assert_eq!(
        data["journaled"]["signature"], data["incoming"]["signature"],
        "{data}"
    );
    assert!(data["journaled"]["created_at"].is_string(), "{data}");
    let hint = data["hint"].as_str().unwrap();
    assert!(hint.starts_with("checkpoint resolve 1 --journal"), "{hint}");
}

#[test]
fn a_message_stands_alone() {
    let world = world_with_doubt();
    let mut proxy = world.proxy().flags(["--refusals", "error"]).start();
    let in_doubt = proxy.call(&Call::charge(1).seq(1));
    let diverging = proxy.call(&Call::new(2, "refund", json!({"amount": 6})).seq(2));
    proxy.stop();
    for (answer, opening, words) in [
        (
            &in_doubt,
            "checkpoint: in-doubt",
            ["1", "charge", "checkpoint resolve 1"],
        ),
        (
            &diverging,
            "checkpoint: divergence",
            ["2", "refund", "checkpoint"],
        ),
    ] {
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(opening), "{message}");
        assert!(
            !message.contains('\n') && message.len() <= 4096,
            "{message}"
        );
        for word in words {
            assert!(message.contains(word), "{word} in {message}");
        }
    }
    // The result shape says the same to a model, which reads only the text.
    let mut proxy = world.proxy().flags(["--refusals", "result"]).start();
    let answer = proxy.call(&Call::charge(3).seq(1));
    proxy.stop();
    assert_eq!(answer["result"]["isError"], true);
    assert_eq!(
        answer["result"]["content"][0]["text"], in_doubt["error"]["message"],
        "{answer}"
    );
    assert_eq!(answer["result"]["content"][0]["type"], "text");
    assert_eq!(answer["result"].get("resultType"), None, "{answer}");
}

#[test]
fn a_result_for_the_stateless_revision_says_its_type() {
    let world = world_with_doubt();
    let mut proxy = world.proxy().flags(["--refusals", "result"]).start();
    let answer = proxy.call(&Call::charge(1).seq(1).modern());
    proxy.stop();
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    assert_refused(&answer, "in_doubt", "unknown");
    assert_eq!(world.effects().len(), 2);
}

/// Case C87: three situations, three kinds, three texts.
#[test]
fn in_flight_in_doubt_and_divergence_do_not_sound_alike() {
    let world = world_with_doubt();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(9).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let answers = [
        proxy.call(&Call::new(2, "charge", json!({})).seq(9)),
        proxy.call(&Call::charge(3).seq(1)),
        proxy.call(&Call::charge(4).seq(2)),
    ];
    let codes: Vec<&Value> = answers.iter().map(|a| &a["error"]["code"]).collect();
    assert_eq!(codes, [7704, 7702, 7701]);
    let mut texts: Vec<&str> = answers
        .iter()
        .map(|answer| answer["error"]["message"].as_str().unwrap())
        .map(|text| text.split_whitespace().nth(1).unwrap())
        .collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), 3, "{texts:?}");
    world.release("h");
    assert_done(&proxy.recv_id(1));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn a_call_over_the_size_limit_is_not_started() {
    let world = World::new();
    let flags = ["--max-message-bytes", "4KiB"];
    let mut proxy = world.proxy().flags(flags).start();
    let long = json!({"payload": "x".repeat(5000)});
    let answer = proxy.call(&Call::new(1, "echo", long).seq(1));
    assert_refused(&answer, "message_too_large", "not_started");
    assert_eq!(answer["error"]["code"], 7710);
    assert_eq!(world.upstream_lines().len(), 0);
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    assert_eq!(world.effects().len(), 1);
}

#[test]
fn an_answer_over_the_size_limit_leaves_the_effect_unknown() {
    let world = World::new();
    let flags = ["--max-message-bytes", "4KiB"];
    let mut proxy = world.proxy().flags(flags).start();
    let answer = proxy.call(&Call::new(1, "big", json!({"bytes": 10_000})).seq(1));
    assert_refused(&answer, "message_too_large", "unknown");
    assert_eq!(answer["error"]["code"], 7710);
    proxy.assert_ping();
    let again = proxy.call(&Call::new(2, "big", json!({"bytes": 10_000})).seq(1));
    assert!(refusal(&again)["kind"].is_string(), "{again}");
    proxy.stop();
    assert_eq!(world.effects_of("big"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
}

/// Cases C88 and C89: a doubt blocks its own call and nothing else, says each time that to repeat
/// it is of no use, and is settled from another process while the proxy runs.
#[test]
fn a_doubt_blocks_only_its_own_call_and_is_settled_beside_the_proxy() {
    let world = world_with_doubt();
    let mut proxy = world.proxy().start();
    for id in 3..=22 {
        let answer = proxy.call(&Call::charge(id).seq(1));
        assert_refused(&answer, "in_doubt", "unknown");
        assert_eq!(refusal(&answer)["retryable"], false, "{answer}");
        let other = Call::new(100 + id, "charge", json!({"order_id": id})).seq(id);
        assert_done(&proxy.call(&other));
    }
    // An upstream's refusal of bad arguments makes no doubt and no work for the operator.
    let error = json!({"error": {"code": -32602, "message": "no such order"}});
    proxy.call(&Call::new(23, "refund", json!({})).seq(23).script(error));
    let open = world.operator(&["ls", "--in-doubt", "--jsonl"]);
    let open = String::from_utf8(open.stdout).unwrap();
    assert!(
        open.lines().count() == 1 && open.contains("\"seq\":1,"),
        "{open}"
    );
    run(
        &world,
        0,
        &["resolve", "1", "--completed", "--reason", "seen"],
    );
    assert_done(&proxy.call(&Call::charge(24).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 21);
}

/// Case C102: a refused call does not vanish from the story.
#[test]
fn refusals_are_told_by_the_journal_with_a_count() {
    let world = world_with_doubt();
    let mut proxy = world.proxy().start();
    for id in 1..=20 {
        assert_refused(&proxy.call(&Call::charge(id).seq(1)), "in_doubt", "unknown");
    }
    proxy.stop();
    let shown = world.show_json(1);
    let events = shown["events"]
        .as_array()
        .unwrap_or_else(|| panic!("{shown}"));
    let refused: Vec<&Value> = events
        .iter()
        .filter(|event| event["kind"] == "refused")
        .collect();
    assert!(!refused.is_empty() && refused.len() < 20, "{shown}");
    assert!(
        refused.iter().any(|event| event["count"] == 20),
        "{refused:?}"
    );
}
