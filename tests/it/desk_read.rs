//! What the operator sees: `ls` and `show`, beside a proxy that runs and without one.

use std::time::Instant;

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused};
use crate::world::{DEADLINE, World, text};

/// `ls --json` with these conditions: the seqs.
fn listed(world: &World, conditions: &[&str]) -> Vec<u64> {
    let words: Vec<&str> = ["ls", "--json"].iter().chain(conditions).copied().collect();
    let output = world.operator(&words);
    assert!(output.status.success(), "{conditions:?}: {}", text(&output));
    let listing: Value = serde_json::from_slice(&output.stdout).unwrap();
    let seqs = listing["entries"].as_array().unwrap().iter();
    seqs.map(|entry| entry["seq"].as_u64().unwrap()).collect()
}

/// One entry of each sort; seq 5 runs until "h" is released.
#[test]
fn each_sort_of_entry_is_told_from_the_others_beside_a_running_proxy() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let call = Call::charge(1).seq(1).meta("checkpoint_call_id", "toolu_1");
    assert_done(&proxy.call(&call));
    proxy.call(&Call::new(2, "fail_error", json!({})).seq(2));
    let keyed = Call::new(3, "refund", json!({})).seq(3);
    assert_done(&proxy.call(&keyed.meta("checkpoint_key", "k")));
    let dies = Call::new(4, "send_mail", json!({})).seq(4);
    proxy.call(&dies.script(json!({"die": "after_effect"})));
    assert_eq!(proxy.wait_code(), 69);
    let mut proxy = world.proxy().start();
    let held = Call::new(5, "deploy", json!({})).seq(5);
    proxy.send_call(&held.script(json!({"hold_before": "h"})));
    world.wait_held("h");

    for (conditions, seqs) in [
        (&[][..], &[1, 2, 3, 4, 5][..]),
        (&["--in-doubt"], &[4]),
        (&["--running"], &[5]),
        (&["--status", "pending"], &[4, 5]),
        (&["--status", "completed,failed"], &[1, 2, 3]),
        (&["--in-doubt", "--status", "completed"], &[]),
        (&["--tool", "refund"], &[3]),
        (&["--tool", "*_*"], &[2, 4]),
        (&["--call-id", "toolu_1"], &[1]),
        (&["--key", "k"], &[3]),
        (&["--session", "1"], &[1, 2, 3, 4]),
        (&["--session", "x"], &[]),
        (&["--since", "1h"], &[1, 2, 3, 4, 5]),
        (&["--since", "2200-01-01T00:00:00Z"], &[]),
        (&["--workflow-id", "other"], &[]),
        (&["--branch", "0"], &[1, 2, 3, 4, 5]),
        (&["--branch", "7"], &[]),
        (&["--limit", "2"], &[4, 5]),
        (&["--quarantined"], &[]),
        (&["--undelivered"], &[]),
    ] {
        let found = listed(&world, conditions);
        assert_eq!(found, seqs, "{conditions:?}");
    }
    let code = |words: &[&str]| world.operator(words).status.code();
    assert_eq!(code(&["ls", "--in-doubt", "--fail-if-any"]), Some(3));
    assert_eq!(code(&["ls", "--tool", "no", "--fail-if-any"]), Some(0));
    let table = text(&world.operator(&["ls"]));
    assert!(
        table.contains("5 entries: 1 in doubt, 1 pending, 2 completed, 1 failed"),
        "{table}"
    );
    assert!(table.contains("checkpoint show 4 --journal"), "{table}");

    world.release("h");
    assert_done(&proxy.recv_id(5));
    proxy.stop();
    assert_eq!(listed(&world, &["--running"]), [0; 0]);
    assert_eq!(listed(&world, &["--in-doubt"]), [4]);
    assert_eq!(world.effects().len(), 5);
}

/// Case C96: what one works from.
#[test]
fn a_doubt_is_shown_with_its_evidence_and_what_may_be_done() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.initialize();
    let call = Call::charge(1).seq(1).meta("checkpoint_call_id", "toolu_9");
    proxy.call(&call.script(json!({"stderr_flood": 8, "die": "after_effect"})));
    assert_eq!(proxy.wait_code(), 69);
    let shown = world.show_json(1);
    assert_eq!(shown["knowledge"], "sent_unanswered", "{shown}");
    assert_eq!(shown["arguments"]["json"]["order_id"], "A-1", "{shown}");
    let evidence = &shown["evidence"];
    assert!(evidence["bytes_written"].as_u64().unwrap() > 100, "{shown}");
    assert!(evidence["exit_status"].is_string(), "{shown}");
    assert!(evidence["elapsed_ms"].is_u64(), "{shown}");
    assert!(evidence["upstream_group"].is_u64(), "{shown}");
    assert_eq!(evidence["upstream_alive"], false, "{shown}");
    assert_eq!(shown["session"]["client"], "it 1", "{shown}");
    assert_eq!(shown["session"]["live"], false, "{shown}");
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 1, "{shown}");
    let next = shown["next"].to_string();
    assert!(next.contains("checkpoint resolve 1 --completed"), "{next}");
    let text = text(&world.operator(&["show", "1"]));
    for words in [
        "IN-DOUBT",
        "Reserved and unanswered",
        "toolu_9",
        "stderr tail",
        "--not-executed",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

/// The column is set all the same: it keeps the entry out of the index of what is undelivered.
#[test]
fn a_doubt_that_was_not_executed_is_not_said_to_be_delivered_or_completed() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.call(
        &Call::charge(1)
            .seq(1)
            .script(json!({"die": "after_effect"})),
    );
    assert_eq!(proxy.wait_code(), 69);
    let words = ["resolve", "1", "--not-executed", "--reason", "r"];
    assert!(world.operator(&words).status.success());
    assert_eq!(world.entry(1)["delivered_at"], Value::Null);
    let shown = world.show_json(1);
    assert_eq!(shown["entry"]["delivered_at"], Value::Null, "{shown}");
    assert_eq!(shown["knowledge"], "not_executed", "{shown}");
    let output = world.operator(&["export", "--format", "jsonl"]);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["delivered_at"], Value::Null, "{line}");
    let shown = text(&world.operator(&["show", "1"]));
    let fields = shown.split("Arguments").next().unwrap();
    assert!(fields.contains("  voided "), "{shown}");
    assert!(!fields.contains("delivered"), "{shown}");
    assert!(!fields.contains("completed"), "{shown}");
}

#[test]
fn what_is_not_there_is_said_with_the_codes_of_the_contract() {
    let world = World::new();
    let code = |words: &[&str]| world.operator(words).status.code();
    assert_eq!(code(&["ls"]), Some(5), "no journal");
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1)));
    proxy.stop();
    assert_eq!(code(&["ls"]), Some(0));
    assert_eq!(code(&["show", "2"]), Some(1));
    assert_eq!(code(&["show", "1", "--workflow-id", "no"]), Some(1));
    assert_eq!(code(&["show", "1", "--branch", "1"]), Some(1));
    world.sql("CREATE TABLE stray (x)");
    assert_eq!(code(&["ls"]), Some(5), "a journal with other tables");
}

/// One damaged entry is listed as such, hides no other, and is never said to be in doubt.
#[test]
fn a_damaged_entry_hides_no_other() {
    let damages = [
        (
            "UPDATE entries SET tool = 'refund' WHERE seq = 2",
            "checksum",
        ),
        (
            "UPDATE entries SET status = 'GONE' WHERE seq = 2",
            "can't be read",
        ),
        (
            "UPDATE entries SET signature = x'00' WHERE seq = 2",
            "can't be read: signature has a wrong length",
        ),
        (
            "UPDATE entries SET checksum = x'00' WHERE seq = 2",
            "can't be read: checksum has a wrong length",
        ),
        (
            "UPDATE outcomes SET body = x'7b7d' WHERE fence = 2",
            "bytes",
        ),
        ("UPDATE outcomes SET body = NULL WHERE fence = 2", "missing"),
        ("DELETE FROM outcomes WHERE fence = 2", "missing"),
        (
            "UPDATE outcomes SET digest = x'00' WHERE fence = 2",
            "another",
        ),
    ];
    for (damage, why) in damages {
        let world = World::new();
        let mut proxy = world.proxy().start();
        for seq in 1..=3 {
            assert_done(&proxy.call(&Call::charge(seq).seq(seq)));
        }
        proxy.stop();
        world.sql(damage);
        assert_eq!(listed(&world, &[]), [1, 2, 3], "{damage}");
        assert_eq!(listed(&world, &["--quarantined"]), [2], "{damage}");
        assert_eq!(listed(&world, &["--in-doubt"]), [0; 0], "{damage}");
        let shown = world.show_json(2);
        assert_eq!(shown["knowledge"], "quarantined", "{damage}");
        let note = shown["entry"]["note"].as_str().unwrap();
        assert!(note.contains(why), "{damage}: {note}");
        let table = text(&world.operator(&["ls"]));
        assert!(table.contains("1 quarantined"), "{table}");
        let mut proxy = world.proxy().start();
        assert_refused(
            &proxy.call(&Call::charge(4).seq(2)),
            "quarantined",
            "unknown",
        );
        proxy.stop();
        assert_eq!(world.effects_of("charge"), 3);
    }
}

/// Text from the journal can't drive the terminal.
#[test]
fn hostile_text_is_escaped() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let tool = "x\u{1b}[2J\u{202e}\nSEQ";
    proxy.call(&Call::new(1, tool, json!({"a\u{1b}]0;b\u{7}": "\u{9b}2J"})).seq(1));
    proxy.stop();
    for words in [
        &["ls"][..],
        &["show", "1"],
        &["ls", "--json"],
        &["show", "1", "--json"],
    ] {
        let words: Vec<&str> = words.iter().chain(&["--color", "never"]).copied().collect();
        let text = text(&world.operator(&words));
        let is_hostile = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(is_hostile), "{words:?}: {text:?}");
    }
}

/// 100,000 entries, half of them with a payload that alone would be 100 MB.
#[test]
fn a_large_journal_is_listed_in_little_memory() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1)));
    proxy.stop();
    // The checksums don't hold, which costs as much to find out.
    world.sql(
        "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
         INSERT INTO entries SELECT e.branch_id, n.i, 'bulk', e.status, 1, 0, n.i, 1, e.scheme,
         e.signature, e.created_at + n.i, e.completed_at, e.delivered_at, NULL, NULL, 0,
         e.provenance, e.digest, 0, NULL, NULL, NULL, NULL, e.checksum
         FROM n, entries e WHERE e.seq = 1;
         INSERT INTO outcomes SELECT e.fence, e.status, 0, e.provenance, e.completed_at,
         e.fence + 1, e.digest, zeroblob(2000), NULL, NULL, NULL, NULL FROM entries e WHERE e.seq % 2 = 0;",
    );
    let start = Instant::now();
    let limited = world
        .command("sh")
        .args(["-c", "ulimit -v 300000; exec \"$0\" \"$@\""])
        .arg(crate::world::checkpoint())
        .args(["ls", "--limit", "3", "--json", "--journal"])
        .arg(world.journal())
        .output()
        .unwrap();
    assert!(start.elapsed() < DEADLINE, "{:?}", start.elapsed());
    assert!(limited.status.success(), "{}", text(&limited));
    let listing: Value = serde_json::from_slice(&limited.stdout).unwrap();
    assert_eq!(
        listing["counts"]["matched"], 100_000,
        "{}",
        listing["counts"]
    );
    assert_eq!(listing["counts"]["shown"], 3);
    assert_eq!(listed(&world, &["--tool", "charge"]), [1]);

    // What is printed whole is not collected: all of them take no more than a few.
    let printed = |form: &str| {
        let output = world
            .command("sh")
            .args(["-c", "ulimit -v 60000; exec \"$0\" \"$@\""])
            .arg(crate::world::checkpoint())
            .args(["ls", form, "--journal"])
            .arg(world.journal())
            .output()
            .unwrap();
        assert!(output.status.success(), "{form}: {}", text(&output));
        output.stdout
    };
    let lines = printed("--jsonl");
    let seqs = lines.split(|byte| *byte == b'\n').filter_map(|line| {
        let entry: Value = serde_json::from_slice(line).ok()?;
        entry["seq"].as_u64()
    });
    assert!(seqs.eq(1..=100_000), "{} bytes", lines.len());
    let whole: Value = serde_json::from_slice(&printed("--json")).unwrap();
    let entries = whole["entries"].as_array().unwrap();
    let seqs = entries.iter().filter_map(|entry| entry["seq"].as_u64());
    assert!(seqs.eq(1..=100_000), "{}", entries.len());
    assert_eq!(whole["counts"]["shown"], 100_000);
}
