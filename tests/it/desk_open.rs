//! Verdicts on what is open and will never be ended: questions, tasks, and what is damaged.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, result_bytes};
use crate::proxy::Proxy;
use crate::world::{World, run, text};

const RESULT: &str = r#"{"content":[{"type":"text","text":"seen"}],"n":9007199254740993}"#;

fn task(id: u32, is_modern: bool) -> Call {
    let call = Call::new(id, "task", json!({"polls": 1})).seq(1);
    if is_modern {
        call.modern()
    } else {
        call.param("task", json!({"ttl": 60000}))
    }
}

fn ask(id: u32) -> Call {
    Call::new(id, "ask", json!({"order_id": "A-1"})).modern()
}

fn round(id: u32) -> Call {
    ask(id).param("requestState", "state-1").param(
        "inputResponses",
        json!({"answer": {"action": "accept", "content": {}}}),
    )
}

/// A world in which this call was answered with a handle or a question by an upstream that is gone.
fn open(call: &Call, status: &str) -> World {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.call(call);
    proxy.kill9();
    assert_eq!(world.status(1), status);
    world
}

/// `resolve 1 VERDICT --reason r`.
fn resolve<'a>(verdict: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [&["resolve", "1"], verdict, &["--reason", "r"], more].concat()
}

fn decide(world: &World, call: &Call) -> (Value, Value) {
    let params = &serde_json::from_str::<Value>(&call.line()).unwrap()["params"];
    let arguments = params["arguments"].to_string();
    let tool = params["name"].as_str().unwrap();
    let words = [
        "decide", "--tool", tool, "--seq", "1", "--args", &arguments, "--json",
    ];
    let output = world.operator(&words);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", text(&output));
    });
    (told["would"].clone(), told["letter"].clone())
}

/// The upstream that knew the task is gone for ever: by force alone, and then for good.
#[test]
fn a_task_that_nobody_will_end_is_settled_by_force_beside_a_running_proxy() {
    for is_modern in [true, false] {
        let world = open(&task(1, is_modern), "ACCEPTED");
        let mut proxy = world.proxy().start();
        let handle = proxy.call(&task(2, is_modern));
        let verdict = ["--completed", "--result", RESULT];
        let said = run(&world, 1, &resolve(&verdict, &[]));
        assert!(
            said.contains("ACCEPTED") && said.contains("--force"),
            "{said}"
        );
        assert_eq!(proxy.call(&task(3, is_modern))["result"], handle["result"]);

        let said = run(&world, 0, &resolve(&verdict, &["--force"]));
        assert!(said.contains("ACCEPTED -> COMPLETED"), "{said}");
        let replay = proxy.call_line(&task(4, is_modern));
        let told: Value = serde_json::from_str(&result_bytes(&replay)).unwrap();
        assert_eq!(told["content"][0]["text"], "seen");
        assert!(result_bytes(&replay).contains("9007199254740993"));
        // The stateless revision asks for the member; the other one has no such thing.
        assert_eq!(told.get("resultType").is_some(), is_modern, "{told}");
        proxy.stop();

        let shown = world.show_json(1);
        assert_eq!(shown["entry"]["provenance"], "operator");
        assert_eq!(shown["entry"]["attempt"], 1);
        let resolved = shown["events"].as_array().unwrap().iter();
        let resolved: Vec<&Value> = resolved
            .filter(|event| event["kind"] == "resolved")
            .collect();
        assert_eq!(resolved.len(), 1, "{shown}");
        let detail = resolved[0]["detail"].as_str().unwrap();
        assert!(detail.contains("was ACCEPTED"), "{detail}");
        let attempts = shown["attempts"].as_array().unwrap();
        assert_eq!(attempts[0]["status"], "ACCEPTED", "{shown}");
        assert_eq!(attempts[0]["outcome"]["json"], handle["result"], "{shown}");
        assert_eq!(world.effects_of("task"), 1);
        assert_eq!(world.calls_at_upstream(), 1);
        run(&world, 0, &["verify"]);
        // A second verdict changes nothing.
        run(&world, 1, &resolve(&["--not-executed"], &["--force"]));
        assert_eq!(world.status(1), "COMPLETED");
    }
}

#[test]
fn a_task_that_was_not_executed_runs_once_more() {
    let world = open(&task(1, true), "ACCEPTED");
    assert_eq!(world.effects_of("task"), 1);
    assert_eq!(
        decide(&world, &task(0, true)),
        (json!("replay"), json!("@S"))
    );
    run(&world, 0, &resolve(&["--not-executed"], &["--force"]));
    assert_eq!(world.status(1), "VOIDED");
    assert_eq!(decide(&world, &task(0, true)), (json!("run"), json!("@V")));
    let mut proxy = world.proxy().start();
    let again = proxy.call(&task(2, true));
    assert_eq!(again["result"]["status"], "working", "{again}");
    assert_eq!(proxy.call(&task(3, true))["result"], again["result"]);
    proxy.stop();
    let entry = world.entry(1);
    assert_eq!(
        (&entry["status"], &entry["attempt"]),
        (&json!("ACCEPTED"), &json!(2))
    );
    assert_eq!(world.effects_of("task"), 2);
    run(&world, 0, &["verify"]);
}

#[test]
fn a_question_that_nobody_will_answer_is_failed_or_asked_anew() {
    let world = open(&ask(1).seq(1), "INPUT_REQUIRED");
    let error = r#"{"code":-32011,"message":"gave up"}"#;
    let verdict = ["--failed", "--error", error];
    let said = run(&world, 1, &resolve(&verdict, &[]));
    assert!(said.contains("INPUT_REQUIRED"), "{said}");
    run(&world, 0, &resolve(&verdict, &["--force"]));
    let mut proxy = world.proxy().start();
    let answer = proxy.call(&ask(2).seq(1));
    assert_eq!(answer["error"]["code"], -32011, "{answer}");
    proxy.stop();
    assert_eq!(world.calls_at_upstream(), 1);
    run(&world, 0, &["verify"]);

    let world = open(&ask(1).seq(1), "INPUT_REQUIRED");
    run(&world, 0, &resolve(&["--not-executed"], &["--force"]));
    assert_eq!(world.status(1), "VOIDED");
    let mut proxy = world.proxy().start();
    let asked = proxy.call(&ask(2).seq(1));
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    assert_done(&proxy.call(&round(3).seq(1)));
    assert_done(&proxy.call(&round(4).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("ask"), 1);
    assert_eq!(world.calls_at_upstream(), 3);
    run(&world, 0, &["verify"]);
}

/// One that asks a second time is no round that did not run: the whole call starts over.
#[test]
fn a_second_question_that_is_given_up_lets_the_call_start_over() {
    let twice = |id, state: Option<&str>| {
        let call = Call::new(id, "ask", json!({"rounds": 2})).modern().seq(1);
        match state {
            None => call,
            Some(state) => call.param("requestState", state).param(
                "inputResponses",
                json!({"answer": {"action": "accept", "content": {}}}),
            ),
        }
    };
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.call(&twice(1, None));
    let second = proxy.call(&twice(2, Some("state-1")));
    assert_eq!(second["result"]["requestState"], "state-2", "{second}");
    run(&world, 0, &resolve(&["--not-executed"], &["--force"]));
    assert_eq!(world.status(1), "VOIDED");
    run(&world, 0, &["verify"]);
    let first = proxy.call(&twice(3, None));
    assert_eq!(first["result"]["requestState"], "state-1", "{first}");
    proxy.call(&twice(4, Some("state-1")));
    assert_done(&proxy.call(&twice(5, Some("state-2"))));
    proxy.stop();
    assert_eq!(world.entry(1)["attempt"], 2);
    assert_eq!(world.effects_of("ask"), 1);
    run(&world, 0, &["verify"]);
}

/// Who answers after the verdict means the entry that it was given on, seq or none: the upstream
/// must not be led on by it.
#[test]
fn an_answer_to_a_question_that_was_settled_does_not_reach_the_upstream() {
    for seq in [Some(1), None] {
        let with_seq = |call: Call| match seq {
            Some(seq) => call.seq(seq),
            None => call,
        };
        let world = open(&with_seq(ask(1)), "INPUT_REQUIRED");
        let verdict = ["--completed", "--result", RESULT];
        run(&world, 0, &resolve(&verdict, &["--force"]));
        // It counts as delivered, so that the guard against repeated calls does not help.
        run(&world, 0, &["delivered", "1"]);
        let mut proxy = world.proxy().start();
        let answer = proxy.call_line(&with_seq(round(2)));
        assert!(
            result_bytes(&answer).contains("9007199254740993"),
            "{seq:?}"
        );
        proxy.stop();
        assert_eq!(world.entries().len(), 1, "{seq:?}");
        assert_eq!(world.calls_at_upstream(), 1, "{seq:?}");
        assert_eq!(world.effects_of("ask"), 0);
    }
}

/// Who means many means what is in doubt; and a note needs no force, as it changes nothing.
#[test]
fn what_is_open_is_not_taken_with_many_and_may_be_noted() {
    let world = open(&task(1, true), "ACCEPTED");
    let verdict = ["--not-executed", "--reason", "r", "--force", "--yes"];
    let said = run(&world, 1, &[&["resolve", "1-5"], &verdict[..]].concat());
    assert!(said.contains("refused") && said.contains("seq"), "{said}");
    let by_tool = ["resolve", "--tool", "task"];
    run(&world, 0, &[&by_tool[..], &verdict[..]].concat());
    run(&world, 1, &["reopen", "1", "--reason", "r", "--yes"]);
    assert_eq!(world.status(1), "ACCEPTED");
    let said = run(&world, 0, &resolve(&["--still-unknown"], &[]));
    assert!(said.contains("stays as it is"), "{said}");
    let shown = world.show_json(1);
    assert_eq!(shown["entry"]["status"], "ACCEPTED");
    assert_eq!(shown["events"][0]["kind"], "resolved", "{shown}");
    let next = shown["next"].to_string();
    assert!(
        next.contains("--not-executed --reason 'WHY' --force"),
        "{next}"
    );
    run(&world, 0, &["verify"]);
}

fn get(proxy: &mut Proxy, id: u32) -> Value {
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    proxy.request(id, "tasks/get", json!({"taskId": "task-1", "_meta": meta}))
}

/// The task was not gone after all: its end passes to whoever asks, and is kept as evidence.
#[test]
fn a_tasks_end_after_the_verdict_is_kept_and_does_not_count() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.call(&task(1, true));
    let verdict = ["--completed", "--result", RESULT];
    run(&world, 0, &resolve(&verdict, &["--force"]));
    for id in 2..=4 {
        assert_eq!(get(&mut proxy, id)["result"]["status"], "completed");
    }
    assert!(result_bytes(&proxy.call_line(&task(5, true))).contains("9007199254740993"));
    proxy.stop();
    let shown = world.show_json(1);
    assert_eq!(shown["entry"]["status"], "COMPLETED");
    assert_eq!(shown["entry"]["provenance"], "operator");
    let stale = shown["stale_results"].as_array().unwrap();
    assert_eq!(stale.len(), 1, "{shown}");
    assert_eq!(stale[0]["status"], "COMPLETED");
    let kept = stale[0]["answer"]["json"]["content"][0]["text"].to_string();
    assert!(kept.contains("the task is done"), "{shown}");
    let events = shown["events"].as_array().unwrap().iter();
    let told: Vec<&Value> = events
        .filter(|event| event["kind"] == "stale_result")
        .map(|event| &event["count"])
        .collect();
    assert_eq!(told, [3], "{shown}");
    run(&world, 0, &["verify"]);
    assert!(world.files_hold("the task is done"));
    run(&world, 0, &["gc", "--older-than", "0s"]);
    assert!(!world.files_hold("the task is done"));
    run(&world, 0, &["verify"]);
    assert_eq!(world.effects_of("task"), 1);
}

/// Nothing is known of what is damaged, so no verdict is given on it: a new workflow leaves it
/// behind, and the other entries go on.
#[test]
fn a_damaged_entry_is_left_behind_by_a_fork() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let order = |seq: u64| Call::new(seq, "charge", json!({"order_id": seq})).seq(seq);
    let first = result_bytes(&proxy.call_line(&order(1)));
    assert_done(&proxy.call(&order(2)));
    proxy.stop();
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    db.execute(
        "UPDATE entries SET checksum = zeroblob(16) WHERE seq = 2",
        (),
    )
    .unwrap();
    drop(db);
    for words in [
        &["resolve", "2", "--completed", "--reason", "r", "--force"][..],
        &["reopen", "2", "--reason", "r", "--yes"],
    ] {
        let said = run(&world, 1, words);
        assert!(said.contains("quarantined"), "{said}");
    }
    let next = world.show_json(2)["next"].clone();
    let line = next
        .as_array()
        .unwrap()
        .iter()
        .find_map(|line| line.as_str().filter(|line| line.contains(" fork ")))
        .unwrap_or_else(|| panic!("no fork in {next}"));
    let line = line.replacen("checkpoint", "\"$0\"", 1);
    let output = world
        .command("sh")
        .args(["-c", &line])
        .arg(crate::world::checkpoint())
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {}", text(&output));
    let mut proxy = world.proxy().flags(["--workflow-id", "NEW"]).start();
    assert_eq!(result_bytes(&proxy.call_line(&order(1))), first);
    assert_done(&proxy.call(&order(2)));
    assert_done(&proxy.call(&order(2)));
    proxy.stop();
    // Its own workflow still refuses it.
    let mut proxy = world.proxy().start();
    assert_refused(&proxy.call(&order(2)), "quarantined", "unknown");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
}
