//! A verdict was given without the answer that then came: an operator makes the answer the outcome.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, result_bytes};
use crate::proxy::Proxy;
use crate::world::{World, run};

const RESULT: &str = r#"{"content":[{"type":"text","text":"believed"}]}"#;
const ERROR: &str = r#"{"code":-32000,"message":"believed"}"#;
const ADOPT: [&str; 6] = [
    "resolve",
    "1",
    "--completed",
    "--result-stale",
    "--reason",
    "the bank's own answer",
];

/// What the upstream says in the end: no two spellings of it are the same bytes.
const LATE: &str = r#"{ "content":[{"type":"text","text":"paid 1.0"}],"n":90071992547409931}"#;

/// A charge of seq 1 that has had its effect, and whose answer is held.
fn held(proxy: &mut Proxy, world: &World, id: u32, script: Value) {
    let mut script = script;
    script["hold_after"] = json!(format!("h{id}"));
    proxy.send_call(&Call::charge(id).seq(1).script(script));
    world.wait_held(&format!("h{id}"));
}

/// A verdict on seq 1 by force.
fn force(world: &World, verdict: &[&str]) {
    let words = [&["resolve", "1", "--reason", "r", "--force"], verdict].concat();
    run(world, 0, &words);
}

/// Lets the answer of a call come, and waits until its proxy is done with it.
fn come(world: &World, mut proxy: Proxy, id: u32) {
    world.release(&format!("h{id}"));
    proxy.recv_id(id);
    proxy.stop();
}

/// A world whose seq 1 has the verdict, and an answer that came after it.
fn ruled(verdict: &[&str], script: Value) -> World {
    let world = World::new();
    let mut proxy = world.proxy().start();
    held(&mut proxy, &world, 1, script);
    force(&world, verdict);
    come(&world, proxy, 1);
    world
}

fn stale(world: &World) -> Vec<Value> {
    let shown = world.show_json(1);
    shown["stale_results"].as_array().unwrap().clone()
}

/// The commands that `show` offers with a stale answer.
fn offered(world: &World) -> Vec<String> {
    let shown = world.show_json(1);
    let next = shown["next"].as_array().unwrap();
    let lines = next.iter().map(|line| line.as_str().unwrap().to_owned());
    lines.filter(|line| line.contains("-stale")).collect()
}

/// What happened to seq 1, but for what its callers were told.
fn kinds(world: &World) -> Vec<String> {
    let shown = world.show_json(1);
    let events = shown["events"].as_array().unwrap();
    let kinds = events.iter().map(|event| event["kind"].as_str().unwrap());
    let changes = kinds.filter(|kind| !["replayed", "refused"].contains(kind));
    changes.map(str::to_owned).collect()
}

#[test]
fn a_late_answer_takes_the_place_of_what_was_believed_before_it_came() {
    for (verdict, status, is_taken_back) in [
        (&["--completed", "--result", RESULT][..], "COMPLETED", true),
        (&["--completed"], "COMPLETED", true),
        (&["--failed", "--error", ERROR], "FAILED", true),
        // The worst of them: the next call would run.
        (&["--not-executed"], "VOIDED", true),
        (&["--still-unknown"], "PENDING", false),
    ] {
        let world = ruled(verdict, json!({"result": LATE}));
        assert_eq!(world.status(1), status, "{verdict:?}");
        let before = world.show_json(1);
        let line = &offered(&world)[..];
        assert_eq!(line.len(), 1, "{line:?}");
        let journal = world.journal();
        assert_eq!(
            line[0],
            format!(
                "checkpoint resolve 1 --completed --result-stale --reason 'WHY' --journal {}",
                journal.display()
            )
        );
        // Told, and not done.
        let said = run(&world, 0, &[&ADOPT[..], &["--dry-run"]].concat());
        assert!(said.contains("stale answer"), "{said}");
        assert_eq!(world.show_json(1), before);

        run(&world, 0, &[&ADOPT[..], &["--by", "ann"]].concat());
        let after = world.show_json(1);
        assert_eq!(after["entry"]["status"], "COMPLETED", "{after}");
        assert_eq!(after["entry"]["provenance"], "operator");
        assert_eq!(after["entry"]["attempt"], 1);
        let kept = &stale(&world)[0];
        assert_eq!(kept["counts"], true);
        assert_eq!(before["stale_results"][0]["counts"], false);
        assert_eq!(offered(&world), [""; 0]);
        let mut expected = vec!["fenced", "resolved", "stale_result"];
        expected.extend(is_taken_back.then_some("retracted"));
        expected.push("resolved");
        assert_eq!(kinds(&world), expected, "{verdict:?}");
        let events = after["events"].as_array().unwrap();
        let mut newest = events.iter().rev();
        let event = newest.find(|event| event["kind"] == "resolved").unwrap();
        assert_eq!(event["by"], "ann", "{event}");
        assert_eq!(event["reason"], "the bank's own answer", "{event}");
        let digest = kept["digest"].as_str().unwrap();
        let told = event["detail"].as_str().unwrap();
        let named = format!("stale answer {} of fence 1", &digest[..12]);
        assert!(told.contains(&named), "{told}");
        assert!(told.contains(&format!("was {status}")), "{told}");
        // What was said before stays where it was.
        let seen = before["attempts"].as_array().unwrap();
        let now = after["attempts"].as_array().unwrap();
        assert_eq!(now.len(), seen.len() + usize::from(is_taken_back));
        for (before, after) in seen.iter().zip(now).filter(|_| is_taken_back) {
            assert_eq!(before["outcome"], after["outcome"], "{verdict:?}");
            assert_eq!(before["status"], after["status"], "{verdict:?}");
        }
        assert!(run(&world, 0, &["show", "1"]).contains("Stale answer, adopted as the outcome"));

        let said = run(&world, 1, &ADOPT);
        assert!(said.contains("is its outcome already"), "{said}");
        assert_eq!(kinds(&world).len(), expected.len());
        let mut proxy = world.proxy().start();
        for id in 2..=3 {
            let replay = proxy.call_line(&Call::charge(id).seq(1));
            assert_eq!(result_bytes(&replay), LATE, "{verdict:?}");
        }
        proxy.stop();
        run(&world, 0, &["verify"]);
        run(&world, 0, &["gc", "--older-than", "0s"]);
        run(&world, 0, &["verify"]);
        assert_eq!(stale(&world)[0]["counts"], true);
        let mut proxy = world.proxy().start();
        let again = proxy.call(&Call::charge(4).seq(1));
        assert_refused(&again, "result_expired", "completed");
        proxy.stop();
        assert_eq!(world.effects_of("charge"), 1, "{verdict:?}");
        assert_eq!(world.calls_at_upstream(), 1, "{verdict:?}");
    }
}

/// A call without seq or key that asks again is the one whose answer was found.
#[test]
fn what_was_found_is_given_to_who_asks_again_without_a_seq() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let script = json!({"hold_after": "h1", "result": LATE});
    proxy.send_call(&Call::charge(1).script(script));
    world.wait_held("h1");
    force(&world, &["--not-executed"]);
    proxy.drop_client();
    world.release("h1");
    assert_eq!(proxy.wait_code(), 0);
    run(&world, 0, &ADOPT);
    let mut proxy = world.proxy().start();
    let found = proxy.call(&Call::charge(2));
    assert_eq!(found["result"]["content"][0]["text"], "paid 1.0", "{found}");
    assert_eq!(found["result"]["_meta"]["checkpoint"]["seq"], 1, "{found}");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
}

#[test]
fn an_error_that_came_late_is_adopted_as_the_error_that_it_is() {
    let error = json!({"code": -32603, "message": "no funds", "data": {"exact": 1.0}});
    let world = ruled(&["--completed"], json!({"error": error}));
    let said = run(&world, 1, &ADOPT);
    assert!(said.contains("--failed --error-stale"), "{said}");
    assert_eq!(world.entry(1)["provenance"], "synthetic");
    let line = &offered(&world)[0];
    assert!(line.contains("--failed --error-stale"), "{line}");
    run(
        &world,
        0,
        &["resolve", "1", "--failed", "--error-stale", "--reason", "r"],
    );
    assert_eq!(world.status(1), "FAILED");
    let mut proxy = world.proxy().start();
    let replay = proxy.call(&Call::charge(2).seq(1));
    assert_eq!(replay["error"], error);
    proxy.stop();
    run(&world, 0, &["verify"]);
    assert_eq!(world.effects_of("charge"), 1);
}

/// A result that says `isError` is one, also where it came late.
#[test]
fn a_tool_error_that_came_late_is_a_tool_error() {
    let result = r#"{"content":[],"isError":true}"#;
    let world = ruled(&["--not-executed"], json!({"result": result}));
    run(&world, 0, &ADOPT);
    assert_eq!(world.entry(1)["is_error"], true);
    run(&world, 0, &["verify"]);
}

#[test]
fn of_several_answers_one_is_named() {
    let world = ruled(&["--not-executed"], json!({"result": LATE}));
    let mut proxy = world.proxy().start();
    let other = r#"{"content":[],"second":true}"#;
    held(&mut proxy, &world, 2, json!({"result": other}));
    force(&world, &["--completed"]);
    come(&world, proxy, 2);
    let kept = stale(&world);
    let digests: Vec<&str> = kept
        .iter()
        .map(|one| &one["digest"].as_str().unwrap()[..12])
        .collect();
    let said = run(&world, 1, &ADOPT);
    for digest in &digests {
        assert!(said.contains(digest), "{said}");
    }
    let said = run(
        &world,
        1,
        &[
            "resolve",
            "1",
            "--completed",
            "--result-stale=00000000",
            "--reason",
            "r",
        ],
    );
    assert!(said.contains("begins with 00000000"), "{said}");
    assert_eq!(world.entry(1)["provenance"], "synthetic");
    // Each is offered under its name, and one may take the other's place.
    for (digest, bytes) in [(digests[1], other), (digests[0], LATE)] {
        let named = format!("--result-stale={digest}");
        let lines = offered(&world);
        assert!(lines.iter().any(|line| line.contains(&named)), "{lines:?}");
        run(
            &world,
            0,
            &["resolve", "1", "--completed", &named, "--reason", "r"],
        );
        let mut proxy = world.proxy().start();
        let replay = proxy.call_line(&Call::charge(9).seq(1));
        assert_eq!(result_bytes(&replay), bytes);
        proxy.stop();
        run(&world, 0, &["verify"]);
    }
    assert_eq!(world.effects_of("charge"), 2);
    assert_eq!(world.calls_at_upstream(), 2);
}

#[test]
fn what_can_not_be_adopted_says_why_and_changes_nothing() {
    // None is kept: in doubt, and answered.
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(7).seq(7)));
    held(&mut proxy, &world, 1, json!({}));
    proxy.kill9();
    for seq in ["1", "7"] {
        let words = ["resolve", seq, "--completed", "--result-stale"];
        let said = run(&world, 1, &[&words[..], &["--reason", "r"]].concat());
        assert!(said.contains("no stale answer is kept of it"), "{said}");
    }
    assert_eq!(
        (&*world.status(1), &*world.status(7)),
        ("PENDING", "COMPLETED")
    );

    // Its bytes are not there: too many of them, or dropped since.
    let large = json!({"content": [], "x": "y".repeat(256 << 10)}).to_string();
    let world = ruled(&["--completed"], json!({"result": large}));
    assert_eq!(offered(&world), [""; 0]);
    let said = run(&world, 1, &ADOPT);
    assert!(
        said.contains("only the digest is left") && said.contains("256 KiB"),
        "{said}"
    );
    let world = ruled(&["--completed"], json!({"result": LATE}));
    run(
        &world,
        0,
        &["gc", "--older-than", "0s", "--undelivered-too"],
    );
    let said = run(&world, 1, &ADOPT);
    assert!(
        said.contains("only the digest is left") && said.contains("`gc`"),
        "{said}"
    );

    // A range did not name it.
    let world = ruled(&["--completed"], json!({"result": LATE}));
    let mut words = ADOPT.to_vec();
    words[1] = "1-2";
    let said = run(&world, 1, &[&words[..], &["--yes"]].concat());
    assert!(said.contains("name its seq alone"), "{said}");
    assert_eq!(world.entry(1)["provenance"], "synthetic");
    // Bytes that are not those that came are nobody's answer.
    world.sql(
        "UPDATE events SET detail = replace(detail, 'paid', 'free') WHERE kind = 'stale_result'",
    );
    let said = run(&world, 1, &ADOPT);
    assert!(said.contains("not those that came"), "{said}");
    assert_eq!(world.effects_of("charge"), 1);
}

/// Once another call has the place, the answer to the one before is none of its own.
#[test]
fn an_answer_to_other_arguments_is_not_adopted() {
    let world = ruled(&["--not-executed"], json!({"result": LATE}));
    let mut proxy = world.proxy().start();
    let other = Call::new(2, "charge", json!({"order_id": "B-2"})).seq(1);
    proxy.send_call(&other.script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.kill9();
    assert_eq!(offered(&world), [""; 0]);
    let said = run(&world, 1, &ADOPT);
    assert!(said.contains("another call"), "{said}");
    assert_eq!(world.status(1), "PENDING");
}

/// Who runs now is asked to be fenced first, as for any verdict.
#[test]
fn a_running_attempt_is_fenced_only_by_force() {
    let world = ruled(&["--not-executed"], json!({"result": LATE}));
    let mut proxy = world.proxy().start();
    held(&mut proxy, &world, 2, json!({}));
    let said = run(&world, 1, &ADOPT);
    assert!(said.contains("--force fences it"), "{said}");
    run(&world, 0, &[&ADOPT[..], &["--force"]].concat());
    come(&world, proxy, 2);
    let mut proxy = world.proxy().start();
    let replay = proxy.call_line(&Call::charge(3).seq(1));
    assert_eq!(result_bytes(&replay), LATE);
    proxy.stop();
    run(&world, 0, &["verify"]);
    assert_eq!(world.effects_of("charge"), 2);
}

/// Two operators at once: one of them does it, the other is told so.
#[test]
fn two_who_adopt_at_once_are_one_change() {
    let world = ruled(&["--not-executed"], json!({"result": LATE}));
    let codes = std::thread::scope(|scope| {
        let hands: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| world.operator(&ADOPT).status.code().unwrap()))
            .collect();
        let codes = hands.into_iter().map(|hand| hand.join().unwrap());
        codes.collect::<Vec<i32>>()
    });
    assert_eq!(
        codes.iter().filter(|code| **code == 0).count(),
        1,
        "{codes:?}"
    );
    let told = kinds(&world);
    let taken_back = told.iter().filter(|kind| *kind == "retracted");
    assert_eq!(taken_back.count(), 1, "{told:?}");
    run(&world, 0, &["verify"]);
}

/// What can't be meant is refused before the journal is looked at.
#[test]
fn flags_that_contradict_each_other_are_refused() {
    let world = World::new();
    for words in [
        &["--result-stale"][..],
        &["--error-stale"],
        &["--failed"],
        &["--failed", "--result-stale"],
        &["--completed", "--error-stale"],
        &["--completed", "--result-stale", "--result", RESULT],
        &["--failed", "--error-stale", "--error", ERROR],
        &["--not-executed", "--result-stale"],
        &["--completed", "--result-stale=abc"],
        &["--completed", "--result-stale=nothex"],
    ] {
        let start = ["resolve", "1", "--reason", "r"];
        run(&world, 2, &[&start[..], words].concat());
    }
    assert!(!world.journal().exists());
}
