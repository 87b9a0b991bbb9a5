//! `checkpoint gc`: payloads leave the files, what ran stays known and never runs again.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, refusal};
use crate::world::World;

const CANARY: &str = "canary-7f3a91";

/// Runs `gc --json` with these flags.
fn gc(world: &World, flags: &[&str]) -> Value {
    let words: Vec<&str> = ["gc", "--json"].iter().chain(flags).copied().collect();
    let output = world.operator(&words);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{flags:?}: {err}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A call with the canary in its arguments and in its result, of about this size.
fn secret(seq: u64, size: usize) -> Call {
    let filler = format!("{CANARY}-{seq}-{}", "x".repeat(size));
    let result = json!({
        "content": [{"type": "text", "text": format!("result {filler}")}],
        "isError": false
    });
    Call::new(seq, "charge", json!({"secret": filler}))
        .seq(seq)
        .script(json!({"result": result.to_string()}))
}

#[test]
fn a_tombstone_is_result_expired_and_never_runs() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.call(&Call::new(2, "fail_error", json!({})).seq(2));
    let dies = Call::new(3, "send_mail", json!({})).seq(3);
    proxy.call(&dies.script(json!({"die": "after_effect"})));
    assert_eq!(proxy.wait_code(), 69);
    let effects = world.effects().len();

    let rehearsed = gc(&world, &["--older-than", "0s", "--dry-run"]);
    assert_eq!(
        (&rehearsed["buried"], &rehearsed["dry_run"]),
        (&json!(2), &json!(true))
    );
    assert_eq!(world.show_json(1)["outcome"]["state"], "stored");
    let young = gc(&world, &["--older-than", "1h"]);
    assert_eq!(
        (&young["buried"], &young["kept"]["young"]),
        (&json!(0), &json!(2))
    );

    let report = gc(&world, &["--older-than", "0s"]);
    assert_eq!(report["buried"], 2);
    assert_eq!(report["dropped_bytes"], rehearsed["dropped_bytes"]);
    assert_eq!(report["kept"]["open"], 1);
    let shown = world.show_json(1);
    assert_eq!(shown["outcome"]["state"], "gone");
    assert_eq!(shown["entry"]["status"], "COMPLETED");
    assert!(
        shown["events"]
            .as_array()
            .unwrap()
            .iter()
            .any(|event| event["kind"] == "purged")
    );

    let mut proxy = world.proxy().start();
    let answer = proxy.call(&Call::charge(1).seq(1));
    assert_refused(&answer, "result_expired", "completed");
    assert_eq!(answer["error"]["code"], 7706);
    let failed = proxy.call(&Call::new(2, "fail_error", json!({})).seq(2));
    assert_refused(&failed, "result_expired", "unknown");
    let other = proxy.call(&Call::new(4, "charge", json!({"order_id": "B"})).seq(1));
    assert_refused(&other, "divergence", "not_started");
    // What was buried can't be compared, so no difference is made up.
    assert_eq!(refusal(&other)["diff"], Value::Null);
    let doubt = proxy.call(&Call::new(5, "send_mail", json!({})).seq(3));
    assert_refused(&doubt, "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.effects().len(), effects);
    assert_eq!(world.operator(&["verify"]).status.code(), Some(0));
}

#[test]
fn what_is_dropped_leaves_every_file() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    for (index, size) in [10, 300, 3_000, 50_000, 400_000]
        .into_iter()
        .cycle()
        .take(40)
        .enumerate()
    {
        proxy.call(&secret(index as u64 + 1, size));
    }
    proxy.stop();
    assert!(world.files_hold(CANARY));
    let report = gc(&world, &["--older-than", "0s"]);
    assert_eq!(report["buried"], 40);
    assert_eq!(report["compacted"]["rebuilt"], true, "{report}");
    assert_eq!(report["compacted"]["left"], Value::Null);
    assert!(!world.files_hold(CANARY));
    // A second run has nothing to do and rebuilds nothing.
    let again = gc(&world, &["--older-than", "0s"]);
    assert_eq!(
        (&again["buried"], &again["compacted"]),
        (&json!(0), &Value::Null)
    );
    let mut proxy = world.proxy().start();
    assert_refused(&proxy.call(&secret(1, 10)), "result_expired", "completed");
    proxy.stop();
    assert_eq!(world.operator(&["verify"]).status.code(), Some(0));
}

#[test]
fn beside_a_live_session_it_says_what_is_left_and_a_later_run_does_it() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    for seq in 1..=8 {
        proxy.call(&secret(seq, 2_000));
    }
    let output = world.operator(&["gc", "--older-than", "0s"]);
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("session 1 is live"), "{said}");
    assert!(said.contains("run `checkpoint gc` again"), "{said}");
    // The proxy goes on, and what was buried under it does not run again.
    assert_refused(
        &proxy.call(&secret(3, 2_000)),
        "result_expired",
        "completed",
    );
    assert_done(&proxy.call(&Call::charge("new")));
    proxy.stop();
    let report = gc(&world, &["--older-than", "1h"]);
    assert_eq!(report["compacted"]["rebuilt"], true, "{report}");
    assert!(!world.files_hold(CANARY));
    assert_eq!(world.effects_of("charge"), 9);
}

#[test]
fn an_outcome_that_reached_nobody_stays_unless_it_is_asked_for() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).script(json!({"hold_before": "h"})));
    world.wait_held("h");
    proxy.drop_output();
    world.release("h");
    proxy.close_stdin();
    proxy.wait();
    assert_eq!(world.entry(1)["delivered_at"], Value::Null);
    let report = gc(&world, &["--older-than", "0s"]);
    assert_eq!(
        (&report["buried"], &report["kept"]["undelivered"]),
        (&json!(0), &json!(1))
    );
    let report = gc(&world, &["--older-than", "0s", "--undelivered-too"]);
    assert_eq!(report["buried"], 1);
    // The caller who asks again without a seq is told that it was done, and nothing runs.
    let mut proxy = world.proxy().start();
    assert_refused(&proxy.call(&Call::charge(2)), "result_expired", "completed");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_duration_is_needed_and_a_damaged_entry_is_left() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    assert_eq!(world.operator(&["gc"]).status.code(), Some(2));
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    db.execute_batch("UPDATE entries SET tool = 'refund'")
        .unwrap();
    drop(db);
    let report = gc(&world, &["--older-than", "0s"]);
    assert_eq!(
        (&report["buried"], &report["kept"]["quarantined"]),
        (&json!(0), &json!(1))
    );
}
