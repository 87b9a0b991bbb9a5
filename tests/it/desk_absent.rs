//! What is said of an entry that is not where it was looked for.

use serde_json::{Value, json};

use crate::call::{Call, assert_done};
use crate::world::{World, run, text};

/// A charge in doubt at each of these seqs.
fn doubts(world: &World, seqs: &[u64]) {
    for seq in seqs {
        let mut proxy = world.proxy().start();
        proxy.call(
            &Call::charge(1)
                .seq(*seq)
                .script(json!({"die": "after_effect"})),
        );
        assert_eq!(proxy.wait_code(), 69);
    }
}

/// Runs a command with `--json`; what it printed, and its code.
fn told(world: &World, words: &[&str]) -> (Option<i32>, Value) {
    let output = world.operator(&[words, &["--json"]].concat());
    let printed = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output)));
    (output.status.code(), printed)
}

#[test]
fn a_seq_that_is_not_there_is_a_row_and_stops_no_other() {
    let world = World::new();
    doubts(&world, &[1, 2]);
    let words = ["resolve", "1", "99", "2", "--not-executed", "--reason", "r"];
    let said = run(&world, 1, &[&words[..], &["--dry-run"]].concat());
    assert!(
        said.contains("3 entries: 2 would be done, 1 refused"),
        "{said}"
    );
    let (code, reports) = told(&world, &words);
    assert_eq!(code, Some(1), "{reports}");
    let rows: Vec<_> = reports["entries"].as_array().unwrap().iter().collect();
    let facts: Vec<_> = rows
        .iter()
        .map(|row| (row["seq"].as_u64().unwrap(), &row["outcome"], &row["was"]))
        .collect();
    assert_eq!(
        facts,
        [
            (1, &json!("done"), &json!("PENDING")),
            (2, &json!("done"), &json!("PENDING")),
            (99, &json!("refused"), &json!("ABSENT")),
        ]
    );
    let why = rows[2]["why"].as_str().unwrap();
    assert!(why.starts_with("there is no entry 99"), "{why}");
    assert_eq!(reports["counts"]["refused"], 1, "{reports}");
    assert_eq!(
        (world.status(1), world.status(2)),
        ("VOIDED".into(), "VOIDED".into())
    );

    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    for words in [
        &["reopen", "98", "1", "--reason", "r", "--yes"][..],
        &["delivered", "98", "1"],
    ] {
        let said = run(&world, 1, words);
        assert!(said.contains("there is no entry 98"), "{said}");
        assert!(said.contains("2 entries: "), "{said}");
    }
    assert_eq!(world.status(1), "VOIDED");
    // Within a range a seq may be a gap; one that is named beside it is not.
    let said = run(
        &world,
        1,
        &["reopen", "1-5", "98", "--reason", "r", "--dry-run"],
    );
    assert!(said.contains("3 entries: 3 refused"), "{said}");
}
