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

#[test]
fn a_place_that_was_looked_at_in_vain_is_named_and_so_is_where_the_entry_is() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    for seq in [1, 2] {
        assert_done(&proxy.call(&Call::charge(1).seq(seq)));
    }
    proxy.stop();
    doubts(&world, &[3]);
    let mut proxy = world.proxy().flags(["--on-divergence", "fork"]).start();
    assert_done(&proxy.call(&Call::new(2, "refund", json!({})).seq(2)));
    proxy.stop();
    let own = world.journal().display().to_string();
    let nowhere = format!("there is no entry 3 in branch 1 of workflow {own}");
    for words in [
        &["show", "3"][..],
        &["resolve", "3", "--not-executed", "--reason", "r"],
    ] {
        let said = run(&world, 1, words);
        assert!(said.contains(&nowhere), "{said}");
        assert!(
            said.contains("there is an entry 3 with --branch 0"),
            "{said}"
        );
    }
    run(&world, 0, &["show", "3", "--branch", "0"]);
    let said = run(&world, 1, &["show", "3", "--branch", "7"]);
    assert!(said.contains("has no branch 7"), "{said}");
    let said = run(&world, 1, &["show", "1", "--workflow-id", "typo"]);
    assert!(said.contains("there is no workflow typo"), "{said}");
    assert!(
        said.contains(&format!("--workflow-id {own} --branch 0")),
        "{said}"
    );
    let range = ["resolve", "3-5", "--not-executed", "--reason", "r"];
    let said = run(
        &world,
        1,
        &[&range[..], &["--workflow-id", "typo"]].concat(),
    );
    assert!(said.contains("there is no workflow typo"), "{said}");
    let said = run(&world, 1, &["show", "9", "--workflow-id", "typo"]);
    assert!(
        said.contains(&format!("workflows there are: {own}")),
        "{said}"
    );
}

#[test]
fn with_other_workflows_alone_a_seq_leads_to_them() {
    let world = World::new();
    for workflow in ["w1", "w 2"] {
        let mut proxy = world.proxy().flags(["--workflow-id", workflow]).start();
        assert_done(&proxy.call(&Call::charge(1).seq(1)));
        proxy.stop();
    }
    let said = run(&world, 1, &["show", "1"]);
    assert!(
        said.contains("nothing was called in the journal's own workflow"),
        "{said}"
    );
    let ways = "with --workflow-id 'w 2' --branch 0, with --workflow-id w1 --branch 0";
    assert!(said.contains(ways), "{said}");
}

#[test]
fn decide_says_that_there_is_no_such_workflow_yet() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    let words = ["decide", "--tool", "charge", "--seq", "1"];
    let output = world.operator(&[&words[..], &["--workflow-id", "typo", "--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("there is no workflow typo yet"), "{said}");
    let foreseen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(foreseen["would"], "run");
    let output = world.operator(&words);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// `show` is about one entry and goes where a call would; `ls` is about the journal.
#[test]
fn the_variable_names_the_workflow_of_a_seq_and_hides_no_entry_from_a_list() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    let code = |words: &[&str]| {
        let mut command = world.command(crate::world::checkpoint());
        command.args(words).arg("--journal").arg(world.journal());
        command.env("CHECKPOINT_WORKFLOW_ID", "other");
        command.output().unwrap().status.code()
    };
    assert_eq!(code(&["show", "1"]), Some(1));
    assert_eq!(code(&["ls", "--fail-if-any"]), Some(3));
    for name in ["ls", "tail"] {
        let mut command = world.command(crate::world::checkpoint());
        let help = text(&command.args([name, "--help"]).output().unwrap());
        assert!(help.contains("CHECKPOINT_WORKFLOW_ID"), "{help}");
    }
}
