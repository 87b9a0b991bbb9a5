//! What would happen to a call: the same as what then does, and asking changes nothing.

use std::fs;

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, refusal};
use crate::world::World;

const CHARGE: &str = r#"{ "amount": 100.0, "order_id": "A\u002d1" }"#;

#[track_caller]
fn foresee(world: &World, words: &[&str]) -> Value {
    let words: Vec<&str> = ["decide", "--json"].iter().chain(words).copied().collect();
    let output = world.operator(&words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn assert_foreseen(world: &World, words: &[&str], would: &str, kind: Option<&str>, seq: u64) {
    let foreseen = foresee(world, words);
    assert_eq!(foreseen["would"], would, "{words:?}: {foreseen}");
    assert_eq!(foreseen["refusal"], json!(kind), "{words:?}: {foreseen}");
    assert_eq!(foreseen["seq"], seq, "{words:?}: {foreseen}");
    assert!(
        foreseen["letter"].as_str().unwrap().starts_with('@'),
        "{foreseen}"
    );
}

#[test]
fn each_sort_of_decision_is_foreseen_beside_a_running_proxy_and_then_comes_true() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    let keyed = Call::new(2, "refund", json!({})).seq(2);
    assert_done(&proxy.call(&keyed.meta("checkpoint_key", "k")));
    proxy.call(
        &Call::new(3, "send_mail", json!({}))
            .seq(3)
            .script(json!({"die": "after_effect"})),
    );
    assert_eq!(proxy.wait_code(), 69);
    let mut proxy = world.proxy().start();
    let held = Call::new(4, "deploy", json!({})).seq(4);
    proxy.send_call(&held.script(json!({"hold_before": "h"})));
    world.wait_held("h");
    let before = (world.ls_json(), world.show_json(1), world.show_json(3));

    fs::write(world.path("charge.json"), CHARGE).unwrap();
    for arguments in [CHARGE, "@charge.json"] {
        assert_foreseen(
            &world,
            &["--tool", "charge", "--seq", "1", "--args", arguments],
            "replay",
            None,
            1,
        );
    }
    let other = foresee(
        &world,
        &["--tool", "charge", "--seq", "1", "--args", "{\"amount\":1}"],
    );
    assert_eq!(other["refusal"], "divergence", "{other}");
    assert_eq!(other["diff"], json!(["/amount", "/order_id"]), "{other}");
    assert_foreseen(
        &world,
        &["--tool", "refund", "--key", "k"],
        "replay",
        None,
        2,
    );
    assert_foreseen(
        &world,
        &["--tool", "send_mail", "--seq", "3"],
        "refuse",
        Some("in_doubt"),
        3,
    );
    // The guard: an equal call without a seq.
    assert_foreseen(
        &world,
        &["--tool", "send_mail"],
        "refuse",
        Some("in_doubt"),
        3,
    );
    assert_foreseen(&world, &["--tool", "deploy", "--seq", "4"], "join", None, 4);
    assert_foreseen(
        &world,
        &["--tool", "x", "--seq", "4"],
        "refuse",
        Some("in_flight"),
        4,
    );
    assert_foreseen(
        &world,
        &["--tool", "charge", "--args", CHARGE],
        "run",
        None,
        5,
    );
    assert_foreseen(&world, &["--tool", "x", "--seq", "9"], "run", None, 9);
    assert_foreseen(
        &world,
        &["--tool", "x", "--workflow-id", "new"],
        "run",
        None,
        1,
    );
    assert_eq!(
        before,
        (world.ls_json(), world.show_json(1), world.show_json(3))
    );

    // It comes true.
    let answer = proxy.call(&Call::new(5, "charge", json!({"amount": 1})).seq(1));
    assert_refused(&answer, "divergence", "not_started");
    assert_eq!(refusal(&answer)["letter"], other["letter"], "{answer}");
    assert_eq!(
        refusal(&answer)["incoming"]["signature"],
        other["signature"],
        "{answer}"
    );
    world.release("h");
    assert_done(&proxy.recv_id(4));
    proxy.stop();
    assert_eq!(world.effects().len(), 4);
    assert_eq!(world.entries().len(), 4);
}

#[test]
fn a_redacted_journal_is_compared_with_its_key() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--redact-args-in-journal"]).start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    assert_foreseen(
        &world,
        &["--tool", "charge", "--seq", "1", "--args", CHARGE],
        "replay",
        None,
        1,
    );
    let other = foresee(&world, &["--tool", "charge", "--seq", "1", "--args", "{}"]);
    assert_eq!(
        (&other["refusal"], &other["diff"]),
        (&json!("divergence"), &json!([]))
    );
}

/// The flags of the proxy that change decisions change what is foreseen.
#[test]
fn a_proxys_flags_count() {
    let world = World::new();
    let policy = "[tools.charge]\nkey = \"charge:{order_id}\"\nwindow = \"journal\"\n\
                  [tools.\"read_*\"]\njournal = false\n\
                  [tools.send_mail]\ndelivery = \"at-least-once\"\n";
    fs::write(world.path("p.toml"), policy).unwrap();
    let mut proxy = world.proxy().flags(["--policy", "p.toml"]).start();
    assert_done(&proxy.call(&Call::charge(1)));
    let mail = Call::new(2, "send_mail", json!({})).seq(2);
    proxy.call(&mail.script(json!({"die": "after_effect"})));
    assert_eq!(proxy.wait_code(), 69);
    let charge = ["--tool", "charge", "--args", CHARGE];
    assert_foreseen(&world, &charge, "run", None, 3);
    let with = |words: &[&'static str]| [&charge[..], words].concat();
    assert_foreseen(&world, &with(&["--policy", "p.toml"]), "replay", None, 1);
    let relayed = foresee(&world, &["--tool", "read_x", "--policy", "p.toml"]);
    assert_eq!(relayed["would"], "relay", "{relayed}");
    let mail = ["--tool", "send_mail", "--seq", "2", "--policy", "p.toml"];
    assert_foreseen(&world, &mail, "run", None, 2);
    assert_eq!(foresee(&world, &mail)["attempt"], 2);
    let other = ["--tool", "x", "--seq", "1"];
    assert_foreseen(&world, &other, "refuse", Some("divergence"), 1);
    let fork = [&other[..], &["--on-divergence", "fork"]].concat();
    assert_foreseen(&world, &fork, "run", None, 1);
    assert_eq!(world.effects().len(), 2);
}

#[test]
fn what_can_not_be_asked_is_said() {
    let world = World::new();
    let code = |words: &[&str]| world.operator(words).status.code();
    assert_eq!(code(&["decide", "--tool", "charge"]), Some(5));
    assert!(!world.journal().exists());
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    for words in [
        &["decide"][..],
        &["decide", "--tool", "x", "--seq", "0"],
        &["decide", "--tool", "x", "--args", "{"],
        &["decide", "--tool", "x", "--args", "{\"a\":1,\"a\":2}"],
        &["decide", "--tool", "x", "--args", "@none"],
    ] {
        assert_eq!(code(words), Some(2), "{words:?}");
    }
}
