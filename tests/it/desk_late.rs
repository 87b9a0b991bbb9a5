//! What comes after the verdict: a late answer is evidence, kept beside what counts.

use serde_json::{Value, json};

use crate::call::{Call, assert_refused, result_bytes};
use crate::proxy::Proxy;
use crate::world::{World, run};

const RESULT: &str = r#"{"content":[{"type":"text","text":"paid"}]}"#;
const CANARY: &str = "canary-late-91c4";

const FORCED: [&str; 7] = [
    "resolve",
    "1",
    "--completed",
    "--result",
    RESULT,
    "--reason",
    "r",
];

fn force(world: &World) {
    run(world, 0, &[&FORCED[..], &["--force"]].concat());
}

/// A proxy whose call of seq 1 has had its effect, and whose answer is held; it holds the canary.
fn held(world: &World, flags: &[&str]) -> Proxy {
    let mut proxy = world.proxy().flags(flags.iter().copied()).start();
    let script = json!({"hold_after": "h", "result": late()});
    proxy.send_call(&Call::charge(1).seq(1).script(script));
    world.wait_held("h");
    proxy
}

/// The result that is held.
fn late() -> String {
    json!({"content": [{"type": "text", "text": CANARY}], "n": 1.0}).to_string()
}

/// Lets the answer come; returns what its own caller is told.
fn come(world: &World, proxy: &mut Proxy) -> Vec<u8> {
    world.release("h");
    proxy.recv_id_line(&json!(1))
}

fn stale(world: &World) -> Vec<Value> {
    world.show_json(1)["stale_results"]
        .as_array()
        .unwrap()
        .clone()
}

#[test]
fn a_fenced_owners_late_answer_is_kept_as_it_came_until_it_is_buried() {
    let world = World::new();
    let mut proxy = held(&world, &[]);
    force(&world);
    // It counts for nobody, its own caller included: what is said of a call is one thing.
    assert_eq!(result_bytes(&come(&world, &mut proxy)), RESULT);
    let replay = proxy.call_line(&Call::charge(2).seq(1));
    assert_eq!(result_bytes(&replay), RESULT);
    proxy.stop();
    let shown = world.show_json(1);
    assert_eq!(shown["entry"]["provenance"], "operator");
    assert_eq!(shown["outcome"]["json"]["content"][0]["text"], "paid");
    let kept = &stale(&world)[..];
    assert_eq!(kept.len(), 1);
    let raw = world.operator(&["show", "1", "--json"]).stdout;
    let raw = String::from_utf8(raw).unwrap();
    assert!(raw.contains(&late()), "{raw}");
    assert_eq!(kept[0]["size_bytes"], late().len());
    assert_eq!(kept[0]["status"], "COMPLETED");
    assert_eq!(
        (&kept[0]["fence"], &kept[0]["session"]),
        (&json!(1), &json!("1"))
    );
    let said = run(&world, 0, &["show", "1"]);
    assert!(
        said.contains("Stale answer") && said.contains(CANARY),
        "{said}"
    );
    run(&world, 0, &["verify"]);
    // What was answered is told by `show` alone.
    for json in [&[][..], &["--json"]] {
        let words = [&["tail", "--from-start", "--no-follow"], json].concat();
        let told = run(&world, 0, &words);
        assert!(
            told.contains("COMPLETED") && !told.contains(CANARY),
            "{told}"
        );
    }

    assert!(world.files_hold(CANARY));
    run(&world, 0, &["gc", "--older-than", "0s"]);
    assert!(!world.files_hold(CANARY));
    let left = &stale(&world)[..];
    assert_eq!(left[0]["answer"], json!({"state": "gone"}));
    assert_eq!(left[0]["digest"], kept[0]["digest"]);
    run(&world, 0, &["verify"]);
    let mut proxy = world.proxy().start();
    let again = proxy.call(&Call::charge(3).seq(1));
    assert_refused(&again, "result_expired", "completed");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

/// One that comes when its entry is a tombstone already is not forgotten by the next sweep.
#[test]
fn an_answer_that_comes_after_the_burial_is_buried_as_well() {
    let world = World::new();
    let mut proxy = held(&world, &[]);
    force(&world);
    run(&world, 0, &["delivered", "1"]);
    run(&world, 0, &["gc", "--older-than", "0s"]);
    assert_eq!(world.show_json(1)["outcome"]["state"], "gone");
    come(&world, &mut proxy);
    proxy.stop();
    assert_eq!(stale(&world)[0]["answer"]["state"], "stored");
    assert!(world.files_hold(CANARY));
    run(&world, 0, &["gc", "--older-than", "0s"]);
    assert!(!world.files_hold(CANARY));
    assert_eq!(stale(&world)[0]["answer"]["state"], "gone");
    run(&world, 0, &["verify"]);
}

/// A policy that keeps no results keeps no stale ones.
#[test]
fn what_must_not_be_stored_leaves_its_digest_alone() {
    let world = World::new();
    let policy = world.policy_file("[tools.charge]\nstore_result = false\n");
    let mut proxy = held(&world, &["--policy", policy.to_str().unwrap()]);
    force(&world);
    come(&world, &mut proxy);
    proxy.stop();
    let kept = &stale(&world)[0];
    assert_eq!(kept["answer"], json!({"state": "gone"}));
    assert_eq!(kept["size_bytes"], late().len());
    assert_eq!(kept["digest"].as_str().unwrap().len(), 64);
    assert!(!world.files_hold(CANARY));
}

#[test]
fn evidence_that_was_changed_is_found() {
    let world = World::new();
    let mut proxy = held(&world, &[]);
    force(&world);
    come(&world, &mut proxy);
    proxy.stop();
    run(&world, 0, &["verify"]);
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    db.execute(
        "UPDATE events SET detail = replace(detail, 'canary', 'forged') WHERE kind = 'stale_result'",
        (),
    )
    .unwrap();
    drop(db);
    let said = run(&world, 4, &["verify"]);
    assert!(said.contains("stale answer"), "{said}");
    // What does not hold is left for whoever looks into it.
    run(&world, 0, &["gc", "--older-than", "0s"]);
    assert!(world.files_hold("forged-late"));
    assert_eq!(world.show_json(1)["outcome"]["state"], "stored");
}

/// The answer and the verdict come at the same moment: one of them counts, the other one is told
/// so or kept, and the effect was one.
#[test]
fn a_verdict_and_an_outcome_at_once_have_one_winner() {
    let (mut verdicts, mut answers) = (0, 0);
    for turn in 0..12 {
        let world = World::new();
        let mut proxy = held(&world, &[]);
        // Now the one, now the other has a little more time.
        let output = std::thread::scope(|scope| {
            let operator = scope.spawn(|| world.operator(&[&FORCED[..], &["--force"]].concat()));
            if turn % 2 == 0 {
                world.release("h");
            }
            let output = operator.join().unwrap();
            world.release("h");
            output
        });
        let came = result_bytes(&proxy.recv_id_line(&json!(1)));
        let replay = result_bytes(&proxy.call_line(&Call::charge(2).seq(1)));
        proxy.stop();
        if output.status.success() {
            verdicts += 1;
            assert_eq!(replay, RESULT);
            assert_eq!(stale(&world).len(), 1);
        } else {
            answers += 1;
            assert_eq!(output.status.code(), Some(1));
            assert_eq!(replay, came);
            assert_eq!(stale(&world).len(), 0);
        }
        assert_eq!(world.effects_of("charge"), 1);
        run(&world, 0, &["verify"]);
    }
    assert!(verdicts > 0, "{verdicts} verdicts, {answers} answers");
}

/// Where more is found is kept with the verdict, as are who and why.
#[test]
fn a_verdict_carries_its_evidence_and_its_reference() {
    let world = World::new();
    let mut proxy = held(&world, &[]);
    std::fs::write(world.path("proof"), "abc").unwrap();
    let words = ["--force", "--evidence", "proof", "--reference", "INC-4711"];
    run(&world, 0, &[&FORCED[..], &words].concat());
    // Who looks later adds to it; nothing of what was said is changed.
    run(
        &world,
        0,
        &["delivered", "1", "--reference", "mail of 3 May"],
    );
    come(&world, &mut proxy);
    proxy.stop();
    let shown = world.show_json(1);
    let details: Vec<&str> = shown["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|event| event["detail"].as_str())
        .collect();
    for (count, part) in [
        (2, "reference INC-4711"),
        (2, "evidence proof (3 bytes, sha256 ba7816bf8f01cfea"),
        (1, "reference mail of 3 May"),
    ] {
        let told = details.iter().filter(|detail| detail.contains(part));
        assert_eq!(told.count(), count, "{part} in {details:?}");
    }
    for bad in ["", &"x".repeat(513)] {
        run(&world, 2, &["delivered", "1", "--reference", bad]);
    }
}
