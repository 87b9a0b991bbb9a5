//! Case C92: a new workflow that shares what another one has done so far.

use serde_json::json;

use crate::call::{Call, assert_done, assert_refused, result_bytes};
use crate::world::{World, run};

fn order(id: u64) -> Call {
    Call::new(id, "charge", json!({"order_id": id})).seq(id)
}

#[test]
fn a_fork_replays_what_is_before_it_and_runs_the_rest_beside_a_running_proxy() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let mut first = Vec::new();
    for seq in 1..=5 {
        first.push(result_bytes(&proxy.call_line(&order(seq))));
    }
    proxy.call(&order(6).script(json!({"die": "after_effect"})));
    assert_eq!(proxy.wait_code(), 69);
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&order(7)));

    let words = ["fork", "--from", "4", "--new-workflow", "w2"];
    run(&world, 0, &[&words[..], &["--dry-run"]].concat());
    run(&world, 1, &["show", "1", "--workflow-id", "w2"]);
    let said = run(&world, 0, &words);
    assert!(said.contains("w2 shares what is before seq 4"), "{said}");
    run(&world, 1, &words);
    run(&world, 0, &["fork", "--from", "8", "--new-workflow", "w3"]);
    run(&world, 1, &["fork", "--from", "9", "--new-workflow", "w4"]);
    run(
        &world,
        1,
        &[
            "fork",
            "--from",
            "2",
            "--new-workflow",
            "w4",
            "--workflow-id",
            "no",
        ],
    );
    run(
        &world,
        1,
        &[
            "fork",
            "--from",
            "2",
            "--new-workflow",
            "w4",
            "--branch",
            "3",
        ],
    );
    run(&world, 2, &["fork", "--from", "0", "--new-workflow", "w4"]);

    let mut fork = world.proxy().flags(["--workflow-id", "w2"]).start();
    for seq in 1..=3 {
        let line = fork.call_line(&order(seq));
        assert_eq!(result_bytes(&line), first[seq as usize - 1]);
    }
    assert_eq!(world.effects_of("charge"), 7);
    // From there on the fork has its own, and a call without a seq goes to its end.
    let other = Call::new(4, "charge", json!({"order_id": "other"}));
    assert_done(&fork.call(&other.clone().seq(4)));
    assert_done(&fork.call(&Call::new(5, "refund", json!({}))));
    fork.stop();
    // What was in doubt is in doubt in both.
    let mut third = world.proxy().flags(["--workflow-id", "w3"]).start();
    assert_refused(&third.call(&order(6)), "in_doubt", "unknown");
    third.stop();
    // The other one is as it was.
    assert_refused(&proxy.call(&other.seq(4)), "divergence", "not_started");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 8);

    let listing = world.ls_json();
    let of_w2: Vec<_> = listing["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["workflow_id"] == "w2")
        .map(|entry| entry["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(of_w2, [4, 5]);
    assert_eq!(
        listing["forks"][0]["forked_from"]["at"], 4,
        "{}",
        listing["forks"]
    );
    let told = run(&world, 0, &["show", "4", "--workflow-id", "w2"]);
    assert!(
        told.contains("forked from") && told.contains("at seq 4"),
        "{told}"
    );
    let shared = run(&world, 0, &["show", "2", "--workflow-id", "w2"]);
    assert!(shared.contains("COMPLETED"), "{shared}");
    run(&world, 0, &["verify"]);
}
