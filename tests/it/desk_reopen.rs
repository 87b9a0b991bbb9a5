//! One more attempt of what is settled, and outcomes that were delivered by other means.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused};
use crate::world::{World, run};

/// Case C94: a result that turned out to be false is run again, once, and kept.
#[test]
fn a_completed_entry_is_reopened_beside_a_running_proxy_and_keeps_its_result() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let first = proxy.call(&Call::charge(1).seq(1));
    assert_done(&first);
    run(&world, 2, &["reopen", "1"]);
    let said = run(&world, 1, &["reopen", "1", "--reason", "false 200s"]);
    assert!(said.contains("--yes"), "{said}");
    assert_eq!(world.status(1), "COMPLETED");
    let words = [
        "reopen",
        "1",
        "--reason",
        "false 200s",
        "--by",
        "ann",
        "--yes",
    ];
    run(&world, 0, &words);
    assert_eq!(world.status(1), "VOIDED");
    assert_eq!(world.show_json(1)["knowledge"], "reopened");
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    assert_done(&proxy.call(&Call::charge(3).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
    let shown = world.show_json(1);
    assert_eq!(shown["entry"]["attempt"], 2, "{shown}");
    let attempts = shown["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2, "{shown}");
    assert_eq!(attempts[0]["outcome"]["json"], first["result"], "{shown}");
    let event = shown["events"]
        .as_array()
        .unwrap()
        .iter()
        .find(|event| event["kind"] == "reopened");
    assert_eq!(event.unwrap()["by"], "ann", "{shown}");
    run(&world, 0, &["verify"]);
}

#[test]
fn a_failed_entry_is_reopened_without_being_asked_twice() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.call(&Call::new(1, "fail_error", json!({})).seq(1));
    run(&world, 0, &["reopen", "1", "--reason", "mended"]);
    proxy.call(&Call::new(2, "fail_error", json!({})).seq(1));
    proxy.stop();
    assert_eq!(world.entry(1)["attempt"], 2);
    assert_eq!(world.calls_at_upstream(), 2);
}

#[test]
fn what_is_not_settled_is_not_reopened() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let said = run(&world, 1, &["reopen", "1", "--reason", "r", "--yes"]);
    assert!(
        said.contains("PENDING") && said.contains("resolve"),
        "{said}"
    );
    world.release("h");
    proxy.recv_id(1);
    proxy.stop();
    assert_eq!(world.status(1), "COMPLETED");
    // A result that does not hold is evidence, not something to run over.
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    db.execute("UPDATE entries SET tool = 'x'", ()).unwrap();
    let said = run(&world, 1, &["reopen", "1", "--reason", "r", "--yes"]);
    assert!(said.contains("quarantined"), "{said}");
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn many_are_reopened_by_a_condition() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    for seq in 1..=3 {
        assert_done(&proxy.call(&Call::charge(seq).seq(seq)));
    }
    assert_done(&proxy.call(&Call::new(4, "refund", json!({})).seq(4)));
    let words = ["reopen", "--tool", "charge", "--reason", "r"];
    let said = run(&world, 1, &words);
    assert!(said.contains("3 would be done"), "{said}");
    let yes: Vec<&str> = words.iter().copied().chain(["--yes"]).collect();
    run(&world, 0, &yes);
    let statuses: Vec<String> = (1..=4).map(|seq| world.status(seq)).collect();
    assert_eq!(statuses, ["VOIDED", "VOIDED", "VOIDED", "COMPLETED"]);
    proxy.stop();
    run(&world, 0, &["verify"]);
}

/// Case C94: an upstream lied for a while; what it answered then is reopened, and no more.
#[test]
fn a_window_of_time_and_a_status_are_conditions() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    for seq in 1..=3 {
        assert_done(&proxy.call(&Call::charge(seq).seq(seq)));
    }
    proxy.call(&Call::new(4, "fail_error", json!({})).seq(4));
    proxy.stop();
    let began = |seq: u64| world.entry(seq)["created_at"].as_str().unwrap().to_owned();
    let (since, until) = (began(2), began(3));
    let window = ["--since", &since, "--until", &until];
    let listed = run(&world, 0, &[&["ls", "--jsonl"][..], &window].concat());
    assert!(
        listed.contains("\"seq\":2,") && listed.lines().count() == 1,
        "{listed}"
    );
    let reopen = ["reopen", "--reason", "it lied", "--yes"];
    let count = |conditions: &[&str]| {
        let words = [&reopen[..], conditions, &["--dry-run"]].concat();
        run(&world, 0, &words)
    };
    for (conditions, said) in [
        (&["--status", "failed"][..], "1 entry:"),
        (&["--status", "completed,failed"], "4 entries:"),
        (&["--status", "pending"], "0 entries"),
        (&["--until", &since], "1 entry:"),
        (&["--until", "1h"], "0 entries"),
        (&["--workflow-id", "other"], "0 entries"),
        (&["--tool", "fail_*", "--status", "completed"], "0 entries"),
    ] {
        let told = count(conditions);
        assert!(told.contains(said), "{conditions:?}: {told}");
    }
    run(&world, 0, &[&reopen[..], &window].concat());
    let statuses: Vec<String> = (1..=4).map(|seq| world.status(seq)).collect();
    assert_eq!(statuses, ["COMPLETED", "VOIDED", "COMPLETED", "FAILED"]);
    let mut proxy = world.proxy().start();
    for seq in 1..=3 {
        assert_done(&proxy.call(&Call::charge(seq).seq(seq)));
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 4);
    assert_eq!(world.show_json(2)["attempts"].as_array().unwrap().len(), 2);
}

/// An outcome that reached nobody answers the next equal call, unless it was told by other means.
#[test]
fn an_outcome_that_was_told_by_other_means_answers_no_further_call() {
    for is_told in [false, true] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        proxy.send_call(&Call::charge(1).script(json!({"hold_after": "h"})));
        world.wait_held("h");
        proxy.drop_output();
        world.release("h");
        proxy.close_stdin();
        proxy.wait();
        assert_eq!(world.entry(1)["delivered_at"], Value::Null);
        if is_told {
            run(&world, 0, &["delivered", "1", "--reason", "by mail"]);
            assert!(world.entry(1)["delivered_at"].is_string());
            let again = run(&world, 1, &["delivered", "1"]);
            assert!(again.contains("before"), "{again}");
        }
        let mut proxy = world.proxy().start();
        assert_done(&proxy.call(&Call::charge(2)));
        proxy.stop();
        assert_eq!(world.effects_of("charge"), 1 + usize::from(is_told));
        assert_eq!(world.entries().len(), 1 + usize::from(is_told));
    }
}

#[test]
fn a_doubt_has_nothing_to_deliver() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.call(
        &Call::charge(1)
            .seq(1)
            .script(json!({"die": "after_effect"})),
    );
    assert_eq!(proxy.wait_code(), 69);
    run(&world, 1, &["delivered", "1"]);
    let mut proxy = world.proxy().start();
    assert_refused(&proxy.call(&Call::charge(2).seq(1)), "in_doubt", "unknown");
    proxy.stop();
}

/// What a damaged outcome is refused with names a way on that works.
#[test]
fn a_settled_entry_that_is_quarantined_is_not_said_to_be_one_to_reopen() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    world.sql("UPDATE outcomes SET body = x'7b7d'");
    let words = ["resolve", "1", "--completed", "--force", "--reason", "r"];
    let said = run(&world, 1, &words);
    assert!(!said.contains("reopen"), "{said}");
    assert!(
        said.contains("quarantined") && said.contains("`fork`"),
        "{said}"
    );
    run(&world, 1, &["reopen", "1", "--yes", "--reason", "r"]);
    run(&world, 0, &["fork", "--from", "1", "--new-workflow", "w2"]);
}
