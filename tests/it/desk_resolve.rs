//! Verdicts: an operator settles what is in doubt, beside proxies that run and without one.

use std::fs;

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, refusal, result_bytes};
use crate::world::{DEADLINE, World, run, text};

/// A world with a charge in doubt at each of these seqs; its effect is done.
fn doubts(seqs: &[u64]) -> World {
    let world = World::new();
    for seq in seqs {
        let mut proxy = world.proxy().start();
        let call = Call::charge(1).seq(*seq);
        proxy.call(&call.script(json!({"die": "after_effect"})));
        assert_eq!(proxy.wait_code(), 69);
    }
    world
}

#[track_caller]
fn run_json(world: &World, code: i32, words: &[&str]) -> Value {
    let words: Vec<&str> = words.iter().chain(&["--json"]).copied().collect();
    let output = world.operator(&words);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{words:?}: {}",
        text(&output)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn kinds(shown: &Value) -> Vec<&str> {
    let events = shown["events"].as_array().unwrap().iter();
    events
        .map(|event| event["kind"].as_str().unwrap())
        .collect()
}

const RESULT: &str = r#"{"content":[{"type":"text","text":"paid 1.0"}],"n":9007199254740993}"#;

/// Case C90: with a result, that very result is replayed.
#[test]
fn a_completed_verdict_with_a_result_is_replayed_beside_a_running_proxy() {
    let world = doubts(&[1]);
    let mut proxy = world.proxy().start();
    assert_refused(&proxy.call(&Call::charge(1).seq(1)), "in_doubt", "unknown");
    let words = [
        "resolve",
        "1",
        "--completed",
        "--result",
        RESULT,
        "--reason",
        "seen",
        "--by",
        "ann",
    ];
    let said = run(&world, 0, &words);
    assert!(said.contains("PENDING -> COMPLETED"), "{said}");
    let line = proxy.call_line(&Call::charge(2).seq(1));
    assert_eq!(result_bytes(&line), RESULT);
    proxy.stop();
    let entry = world.entry(1);
    for (name, value) in [
        ("status", json!("COMPLETED")),
        ("provenance", json!("operator")),
        ("in_doubt", json!(false)),
        ("attempt", json!(1)),
    ] {
        assert_eq!(entry[name], value, "{name} in {entry}");
    }
    let shown = world.show_json(1);
    let event = &shown["events"]
        .as_array()
        .unwrap()
        .iter()
        .find(|event| event["kind"] == "resolved")
        .unwrap();
    assert_eq!(
        (&event["by"], &event["reason"]),
        (&json!("ann"), &json!("seen"))
    );
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.calls_at_upstream(), 1);
    // A second verdict changes nothing.
    let said = run(&world, 1, &words);
    assert!(
        said.contains("COMPLETED") && said.contains("reopen"),
        "{said}"
    );
    assert_eq!(
        kinds(&world.show_json(1))
            .iter()
            .filter(|kind| **kind == "resolved")
            .count(),
        1
    );
}

/// Case C90: without a result, the replay is marked; the guard hands it to an equal call as well.
#[test]
fn a_completed_verdict_without_a_result_is_replayed_as_synthetic() {
    for seq in [Some(1), None] {
        let world = doubts(&[1]);
        let words = [
            "resolve",
            "1",
            "--completed",
            "--reason",
            "seen",
            "--evidence",
            "proof",
        ];
        fs::write(world.path("proof"), "abc").unwrap();
        run(&world, 0, &words);
        let mut proxy = world.proxy().start();
        let mut call = Call::charge(1);
        if let Some(seq) = seq {
            call = call.seq(seq);
        }
        let answer = proxy.call(&call);
        assert_done(&answer);
        assert_eq!(
            answer["result"]["_meta"]["checkpoint"]["seq"], 1,
            "{answer}"
        );
        let told = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert!(told.contains("operator"), "{told}");
        proxy.stop();
        assert_eq!(world.entry(1)["provenance"], "synthetic");
        let shown = world.show_json(1).to_string();
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(shown.contains(sha256), "{shown}");
        assert_eq!(world.effects_of("charge"), 1);
    }
}

/// An operator need not know which revision the caller speaks: the stateless one asks for a member.
#[test]
fn a_result_that_was_given_is_legal_in_the_stateless_revision() {
    for result in [Some(RESULT), None] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        let call = Call::charge(1).seq(1).modern();
        proxy.call(&call.script(json!({"die": "after_effect"})));
        assert_eq!(proxy.wait_code(), 69);
        let mut words = vec!["resolve", "1", "--completed", "--reason", "seen"];
        words.extend(result.iter().flat_map(|result| ["--result", *result]));
        run(&world, 0, &words);
        let mut proxy = world.proxy().start();
        let answer = proxy.call_line(&Call::charge(2).seq(1).modern());
        let given: Value = serde_json::from_str(&result_bytes(&answer)).unwrap();
        assert_eq!(given["resultType"], "complete", "{given}");
        proxy.stop();
        assert_eq!(world.effects_of("charge"), 1);
    }
}

#[test]
fn a_failed_verdict_is_replayed_as_that_error() {
    let world = doubts(&[1]);
    fs::write(
        world.path("e.json"),
        "{\n \"code\": -32011,\n \"message\": \"no card\"\n}\n",
    )
    .unwrap();
    run(
        &world,
        0,
        &[
            "resolve", "1", "--failed", "--error", "@e.json", "--reason", "r",
        ],
    );
    let mut proxy = world.proxy().start();
    let answer = proxy.call(&Call::charge(1).seq(1));
    assert_eq!(
        answer["error"],
        json!({"code": -32011, "message": "no card"})
    );
    proxy.stop();
    assert_eq!(world.status(1), "FAILED");
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_call_that_was_not_executed_runs_once_more() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let call = Call::charge(1).seq(1);
    proxy.call(&call.script(json!({"die": "before_effect"})));
    assert_eq!(proxy.wait_code(), 69);
    let said = run(
        &world,
        0,
        &["resolve", "1", "--not-executed", "--reason", "r"],
    );
    assert!(said.contains("next call of seq 1 will run"), "{said}");
    assert_eq!(world.status(1), "VOIDED");
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    assert_done(&proxy.call(&Call::charge(3).seq(1)));
    proxy.stop();
    let entry = world.entry(1);
    assert_eq!(
        (&entry["attempt"], &entry["status"]),
        (&json!(2), &json!("COMPLETED"))
    );
    assert_eq!(world.effects_of("charge"), 1);
    let shown = world.show_json(1);
    let statuses: Vec<&Value> = shown["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| &attempt["status"])
        .collect();
    assert_eq!(statuses, ["VOIDED", "COMPLETED"], "{shown}");
    run(&world, 0, &["verify"]);
}

#[test]
fn what_is_still_unknown_stays_in_doubt_and_is_recorded() {
    let world = doubts(&[1]);
    for reason in ["asked the bank", "asked again"] {
        run(
            &world,
            0,
            &["resolve", "1", "--still-unknown", "--reason", reason],
        );
    }
    assert_eq!(world.entry(1)["in_doubt"], true);
    let shown = world.show_json(1);
    assert_eq!(
        kinds(&shown)
            .iter()
            .filter(|kind| **kind == "resolved")
            .count(),
        2
    );
    let mut proxy = world.proxy().start();
    assert_refused(&proxy.call(&Call::charge(1).seq(1)), "in_doubt", "unknown");
    proxy.stop();
}

/// Case C91: a call that still runs is not ruled on, unless its owner is fenced.
#[test]
fn a_running_call_is_refused_unless_it_is_forced_and_its_late_answer_is_stale() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let words = [
        "resolve",
        "1",
        "--completed",
        "--result",
        RESULT,
        "--reason",
        "r",
    ];
    let said = run(&world, 1, &words);
    assert!(said.contains("live") && said.contains("--force"), "{said}");
    assert_eq!(world.status(1), "PENDING");
    assert_eq!(kinds(&world.show_json(1)), [""; 0]);

    let words: Vec<&str> = words.iter().chain(&["--force"]).copied().collect();
    let report = run_json(&world, 0, &words);
    assert_eq!(report["entries"][0]["fenced"], true, "{report}");
    let mut other = world.proxy().start();
    assert_eq!(
        result_bytes(&other.call_line(&Call::charge(1).seq(1))),
        RESULT
    );
    world.release("h");
    // The late answer is its own caller's to see; the entry keeps the verdict.
    proxy.recv_id(1);
    proxy.stop();
    other.stop();
    let shown = world.show_json(1);
    assert_eq!(
        shown["outcome"]["json"]["n"].to_string(),
        "9007199254740993"
    );
    let kinds = kinds(&shown);
    for kind in ["fenced", "resolved", "stale_result"] {
        assert!(kinds.contains(&kind), "no {kind} in {kinds:?}");
    }
    run(&world, 0, &["verify"]);
    assert_eq!(world.effects_of("charge"), 1);
}

/// The proxy is gone, but not what it started: a verdict would be a guess.
#[test]
fn an_upstream_that_outlives_its_proxy_is_a_reason_to_refuse() {
    let world = doubts(&[1]);
    // A group that lives, recorded as the upstream's.
    let mut sleeper = world
        .command("sleep")
        .arg("60")
        .stdin(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    let pgid = nix::unistd::getpgid(None).unwrap().as_raw();
    db.execute(
        "UPDATE sessions SET upstream_pgid = ?1, upstream_started_at = 0",
        [pgid],
    )
    .unwrap();
    drop(db);
    let words = ["resolve", "1", "--not-executed", "--reason", "r"];
    let said = run(&world, 1, &words);
    assert!(
        said.contains("still alive") && said.contains("--force"),
        "{said}"
    );
    let forced: Vec<&str> = words.iter().chain(&["--force"]).copied().collect();
    run(&world, 0, &forced);
    assert_eq!(world.status(1), "VOIDED");
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    run(&world, 0, &["verify"]);
    let _ = sleeper.kill();
    let _ = sleeper.wait();
}

/// Case C93: many at once, after a look; what can't be done is reported and stops nothing.
#[test]
fn many_are_settled_at_once_after_a_look() {
    let world = doubts(&[1, 2, 3]);
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::new(1, "refund", json!({})).seq(4)));
    let words = [
        "resolve",
        "--tool",
        "charge",
        "--since",
        "1h",
        "--not-executed",
        "--reason",
        "r",
    ];
    let with = |more: &'static str| -> Vec<&str> { words.iter().copied().chain([more]).collect() };
    let dry = run_json(&world, 0, &with("--dry-run"));
    assert_eq!(dry["counts"]["would"], 3, "{dry}");
    let said = run(&world, 1, &words);
    assert!(
        said.contains("3 would be done") && said.contains("--yes"),
        "{said}"
    );
    for seq in 1..=3 {
        assert_eq!(world.status(seq), "PENDING");
    }
    // One of them is damaged meanwhile.
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    db.execute(
        "UPDATE entries SET checksum = zeroblob(16) WHERE seq = 2",
        (),
    )
    .unwrap();
    drop(db);
    let done = run_json(
        &world,
        1,
        &["resolve", "1-9", "--not-executed", "--reason", "r", "--yes"],
    );
    assert_eq!(
        done["counts"],
        json!({"done": 2, "would": 0, "unclear": 0, "refused": 2}),
        "{done}"
    );
    assert_eq!(world.status(1), "VOIDED");
    assert_eq!(world.status(3), "VOIDED");
    assert_eq!(world.status(4), "COMPLETED");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn a_verdict_that_can_not_be_used_is_refused_before_anything_is_written() {
    let world = doubts(&[1]);
    for (code, words) in [
        (2, &["resolve", "1", "--completed"][..]),
        (2, &["resolve", "1", "--reason", "r"]),
        (2, &["resolve", "--completed", "--reason", "r"]),
        (
            2,
            &[
                "resolve",
                "1",
                "--completed",
                "--failed",
                "--error",
                "{}",
                "--reason",
                "r",
            ],
        ),
        (2, &["resolve", "1", "--failed", "--reason", "r"]),
        (
            2,
            &["resolve", "1", "--failed", "--error", "{}", "--reason", "r"],
        ),
        (
            2,
            &[
                "resolve",
                "1",
                "--completed",
                "--result",
                "[]",
                "--reason",
                "r",
            ],
        ),
        (
            2,
            &[
                "resolve",
                "1",
                "--completed",
                "--result",
                "@no",
                "--reason",
                "r",
            ],
        ),
        (
            2,
            &[
                "resolve",
                "1",
                "--not-executed",
                "--result",
                "{}",
                "--reason",
                "r",
            ],
        ),
        (2, &["resolve", "1", "--completed", "--reason", " "]),
        (
            2,
            &[
                "resolve",
                "1",
                "--completed",
                "--reason",
                "r",
                "--evidence",
                "no",
            ],
        ),
        (2, &["resolve", "0", "--completed", "--reason", "r"]),
        (1, &["resolve", "7", "--completed", "--reason", "r"]),
        (
            1,
            &[
                "resolve",
                "1",
                "--completed",
                "--reason",
                "r",
                "--workflow-id",
                "no",
            ],
        ),
    ] {
        run(&world, code, words);
    }
    assert_eq!(world.entry(1)["in_doubt"], true);
    assert!(!kinds(&world.show_json(1)).contains(&"resolved"));
    let nowhere = World::new();
    run(
        &nowhere,
        5,
        &["resolve", "1", "--completed", "--reason", "r"],
    );
    assert!(!nowhere.journal().exists());
}

/// A killed proxy's call is ruled on as soon as its upstream is gone.
#[test]
fn a_killed_proxys_call_is_settled_without_a_proxy() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.kill9();
    world.wait_gone(world.pid_of("upstream", 1), DEADLINE);
    // The guardian ends with the group; until its lock is free the verdict is refused.
    let words = ["resolve", "1", "--completed", "--reason", "r"];
    let end = std::time::Instant::now() + DEADLINE;
    while world.operator(&words).status.code() != Some(0) {
        assert!(std::time::Instant::now() < end);
    }
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

/// Gives the verdict that a refusal's hint leads to, as it stands, in a shell.
fn follow(world: &World, answer: &Value) -> String {
    let hint = refusal(answer)["hint"].as_str().unwrap().to_owned();
    let line = format!("{hint} --not-executed --reason r").replacen("checkpoint", "\"$0\"", 1);
    let output = world
        .command("sh")
        .args(["-c", &line])
        .arg(crate::world::checkpoint())
        .output()
        .unwrap();
    assert!(output.status.success(), "{hint}: {}", text(&output));
    hint
}

/// Four entries of seq 1, in three workflows and on two branches: each refusal's hint leads to its
/// own and to no other, also the hint of the call that was lost.
#[test]
fn a_refusals_hint_leads_to_its_verdict() {
    let world = World::new();
    let journal = world.journal();
    let journal = journal.to_str().unwrap();
    let place = |entry: &Value| {
        let workflow = entry["workflow_id"].as_str().unwrap();
        format!("{workflow} {} {}", entry["branch"], entry["status"])
    };
    let lose = |call: Call, flags: &[&str]| {
        let mut proxy = world.proxy().flags(flags).start();
        let answer = proxy.call(&call.script(json!({"die": "after_effect"})));
        assert_eq!(proxy.wait_code(), 69);
        answer
    };
    let call = || Call::charge(1).seq(1);
    let named = |name: &str| call().meta("checkpoint_workflow", name);
    let odd = "it's B";
    lose(call(), &[]);
    lose(call(), &["--workflow-id", odd]);
    let by_meta = lose(named("C"), &[]);
    // The first of D has an answer, and its fork has none.
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&named("D")));
    proxy.stop();
    let other = Call::new(1, "refund", json!({})).seq(1);
    let forked = lose(
        other.meta("checkpoint_workflow", "D"),
        &["--on-divergence", "fork"],
    );
    let mut proxy = world.proxy().start();
    let own = proxy.call(&call());
    let by_flag = proxy.call(&named(odd));
    proxy.stop();
    let mut ruled = Vec::new();
    for (answer, end) in [
        (&by_flag, " --workflow-id 'it'\\''s B' --branch 0"),
        (&by_meta, " --workflow-id C --branch 0"),
        (&forked, " --workflow-id D --branch 1"),
        (&own, ""),
    ] {
        let hint = follow(&world, answer);
        assert_eq!(
            hint,
            format!("checkpoint resolve 1 --journal {journal}{end}")
        );
        let workflow = refusal(answer)["workflow_id"].as_str().unwrap();
        let branch = &refusal(answer)["branch"];
        ruled.push(format!("{workflow} {branch} \"VOIDED\""));
        let voided = world.entries();
        let voided = voided.iter().filter(|entry| entry["status"] == "VOIDED");
        let voided: std::collections::BTreeSet<_> = voided.map(place).collect();
        assert_eq!(voided, ruled.iter().cloned().collect());
    }
}
