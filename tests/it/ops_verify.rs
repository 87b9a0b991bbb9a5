//! `checkpoint verify`: what holds is one line, what does not is listed and ends with code 4.

use serde_json::{Value, json};

use crate::call::{Call, assert_done};
use crate::world::World;

fn verify(world: &World) -> (Option<i32>, Value) {
    let output = world.operator(&["verify", "--json"]);
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), report)
}

/// Calls of several sorts, all settled but the last, which is in doubt.
fn filled() -> World {
    let world = World::new();
    let mut proxy = world.proxy().start();
    for seq in 1..=4 {
        assert_done(&proxy.call(&Call::charge(seq).seq(seq)));
    }
    proxy.call(&Call::new(5, "fail_error", json!({})).seq(5));
    assert_done(&proxy.call(&Call::charge("again").seq(1)));
    let dies = Call::new(9, "send_mail", json!({})).seq(9);
    proxy.call(&dies.script(json!({"die": "after_effect"})));
    assert_eq!(proxy.wait_code(), 69);
    world
}

#[test]
fn a_sound_journal_holds_with_and_without_a_proxy() {
    let world = filled();
    let (code, report) = verify(&world);
    assert_eq!((code, &report["findings"]), (Some(0), &json!([])));
    assert_eq!(report["ok"], true);
    assert_eq!(report["counts"]["entries"], 6);
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(20).script(json!({"hold_before": "h"})));
    world.wait_held("h");
    let (code, report) = verify(&world);
    assert_eq!((code, &report["findings"]), (Some(0), &json!([])));
    world.release("h");
    assert_done(&proxy.recv_id(1));
    proxy.stop();
    let output = world.operator(&["verify"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("7 entries, 7 attempts"), "{text}");
    assert!(text.ends_with(": all of it holds\n"), "{text}");
}

#[test]
fn every_damage_is_listed_at_once_with_code_4() {
    let world = filled();
    world.sql(
        "UPDATE entries SET tool = 'refund' WHERE seq = 2;
         UPDATE outcomes SET body = x'7b7d' WHERE fence = 3;
         DELETE FROM entries WHERE seq = 4;
         DELETE FROM gaps;",
    );
    let (code, report) = verify(&world);
    assert_eq!(code, Some(4));
    assert_eq!(report["ok"], false);
    let found: Vec<(String, Option<u64>)> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| {
            assert!(finding["what"].is_string());
            let kind = finding["kind"].as_str().unwrap().to_owned();
            (kind, finding["seq"].as_u64())
        })
        .collect();
    for expected in [
        ("checksum", Some(2)),
        ("digest", Some(3)),
        ("missing", Some(4)),
        ("attempt", Some(4)),
        ("missing", Some(6)),
    ] {
        let expected = (expected.0.to_owned(), expected.1);
        assert!(found.contains(&expected), "no {expected:?} in {found:?}");
    }
    // As a table: one line each, and talk on stderr.
    let output = world.operator(&["verify"]);
    assert_eq!(output.status.code(), Some(4));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), found.len() + 2, "{text}");
    assert!(text.starts_with("KIND"), "{text}");
}

#[test]
fn damage_that_keeps_the_journal_shut_is_a_finding_and_no_journal_is_code_5() {
    let world = filled();
    let bytes = std::fs::read(world.journal()).unwrap();
    std::fs::write(world.journal(), &bytes[..bytes.len() / 2]).unwrap();
    let (code, report) = verify(&world);
    assert_eq!(code, Some(4));
    assert_eq!(report["findings"][0]["kind"], "truncated");
    std::fs::write(world.journal(), "").unwrap();
    assert_eq!(verify(&world).0, Some(4));
    // The companions still tell that there was one.
    std::fs::remove_file(world.journal()).unwrap();
    assert_eq!(verify(&world).0, Some(4));
    let nothing = World::new();
    let output = nothing.operator(&["verify"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(output.stdout.is_empty());
    assert!(!nothing.journal().exists());
}

#[test]
fn a_journal_that_went_back_in_time_is_a_finding() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    let older = std::fs::read(world.journal()).unwrap();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(2).seq(2)));
    proxy.stop();
    std::fs::write(world.journal(), older).unwrap();
    let (code, report) = verify(&world);
    assert_eq!(code, Some(4));
    assert_eq!(report["findings"][0]["kind"], "mark");
}
