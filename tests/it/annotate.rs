//! What the proxy adds when it is asked to, and what it leaves out when hints are trusted.

use serde_json::{Value, json};

use crate::call::{Call, assert_done};
use crate::world::World;

#[test]
fn without_the_flag_nothing_is_added_to_a_result() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    for id in 1..=2 {
        let answer = proxy.call(&Call::charge(id).seq(1));
        assert_eq!(answer["result"].get("_meta"), None, "{answer}");
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn annotations_tell_a_live_answer_from_a_replay() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--annotate"]).start();
    let live = proxy.call(&Call::charge(1).seq(1));
    let replay = proxy.call(&Call::charge(2).seq(1));
    proxy.stop();
    for (answer, is_replayed) in [(&live, false), (&replay, true)] {
        assert_done(answer);
        let mark = &answer["result"]["_meta"]["checkpoint"];
        assert_eq!(mark["seq"], 1, "{answer}");
        assert_eq!(mark["attempt"], 1, "{answer}");
        assert_eq!(mark["replayed"], is_replayed, "{answer}");
        assert!(mark["completed_at"].is_string(), "{answer}");
    }
    let without_mark = |answer: &Value| {
        let mut result = answer["result"].clone();
        result.as_object_mut().unwrap().remove("_meta");
        result
    };
    assert_eq!(without_mark(&live), without_mark(&replay));
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn annotations_join_a_meta_that_is_there() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--annotate"]).start();
    let result = r#"{"_meta":{"vendor/x":1.0,"big":12345678901234567890},"content":[]}"#;
    let call = Call::charge(1).seq(1).script(json!({"result": result}));
    let line = proxy.call_line(&call);
    proxy.stop();
    let line = String::from_utf8(line).unwrap();
    for kept in [r#""vendor/x":1.0"#, r#""big":12345678901234567890"#] {
        assert!(line.contains(kept), "{line}");
    }
    let answer: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(answer["result"]["_meta"]["checkpoint"]["seq"], 1, "{line}");
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_hint_is_not_trusted_unless_told_so() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.request(1, "tools/list", json!({}));
    assert_done(&proxy.call(&Call::new(2, "read_balance", json!({}))));
    proxy.stop();
    assert_eq!(world.entries().len(), 1);
}

#[test]
fn a_trusted_read_leaves_no_entry_and_an_unknown_tool_does() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--trust-annotations"]).start();
    // Not listed yet, so not known to be a read.
    assert_done(&proxy.call(&Call::new(1, "read_balance", json!({}))));
    assert_eq!(world.entries().len(), 1);
    proxy.request(2, "tools/list", json!({}));
    for id in 3..=5 {
        assert_done(&proxy.call(&Call::new(id, "read_balance", json!({}))));
    }
    assert_done(&proxy.call(&Call::charge(6)));
    assert_done(&proxy.call(&Call::new(7, "never_listed", json!({}))));
    proxy.stop();
    let entries = world.entries();
    let mut tools: Vec<&str> = entries
        .iter()
        .map(|e| e["tool"].as_str().unwrap())
        .collect();
    tools.sort_unstable();
    assert_eq!(tools, ["charge", "never_listed", "read_balance"]);
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 6);
}

#[test]
fn an_absent_hint_or_one_that_is_not_true_is_journaled() {
    for hints in [
        json!({"charge": null}),
        json!({"charge": {"readOnlyHint": false}}),
        json!({"charge": {"readOnlyHint": "true"}}),
        json!({"charge": {"readOnlyHint": 1}}),
    ] {
        let world = World::new();
        let proxy = world.proxy().flags(["--trust-annotations"]);
        let hints = hints.to_string();
        let mut proxy = proxy.upstream(&["--annotations", &hints]).start();
        proxy.request(1, "tools/list", json!({}));
        assert_done(&proxy.call(&Call::charge(2)));
        proxy.stop();
        assert_eq!(world.entries().len(), 1, "{hints}");
        assert_eq!(world.effects_of("charge"), 1);
    }
}

#[test]
fn only_the_upstreams_own_list_can_make_a_tool_a_read() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--trust-annotations"]).start();
    // Something that looks like a list, in an answer to something else.
    let forged = json!({"tools": [{"name": "charge", "annotations": {"readOnlyHint": true}}]});
    proxy.request(1, "x/echo", forged);
    assert_done(&proxy.call(&Call::charge(2)));
    proxy.stop();
    assert_eq!(world.entries().len(), 1);
    assert_eq!(world.effects_of("charge"), 1);
}
