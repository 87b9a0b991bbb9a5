//! What `tail` and `show` say of events is for people: it was read as a person would, and is fixed
//! here in their words.

use serde_json::{Value, json};

use crate::call::Call;
use crate::proxy::Proxy;
use crate::world::{World, run};

/// Fourteen bytes.
const RESULT: &str = r#"{"content":[]}"#;

const POLICY: &str = "[tools.retry]\non_failure = \"retry\"\n\n[tools.slow]\ntimeout = \"20ms\"\n";

/// An answer that is held.
fn late(name: &str) -> Value {
    json!({"hold_after": name, "result": RESULT})
}

/// A journal in which something of nearly every kind has happened.
fn eventful(world: &World) {
    let operator = |words: &[&str]| run(world, 0, words);
    let mut proxy = world.proxy().policy(POLICY).start();
    for id in 1..=3 {
        proxy.call(&Call::charge(id).seq(1));
    }
    proxy.call(&Call::new(4, "charge", json!({})).seq(1));
    proxy.call(&Call::charge(5).seq("x"));
    verdicts(world, &mut proxy);
    proxy.call(&Call::charge(7).seq(2));
    let error = json!({"error": {"code": -32603, "message": "x"}});
    proxy.call(&Call::new(8, "retry", json!({})).seq(3).script(error));
    proxy.call(&Call::new(9, "retry", json!({})).seq(3));
    let mend = json!({"error": {"code": -32042, "message": "x"}, "no_effect": true});
    proxy.call(&Call::new(10, "open", json!({})).seq(4).script(mend));
    proxy.send_call(&Call::new(11, "slow", json!({})).seq(5).script(late("s")));
    proxy.recv_id(11);
    world.wait_held("s");
    world.release("s");
    proxy.send_call(&Call::new(12, "mail", json!({})).seq(16).script(late("c")));
    world.wait_held("c");
    proxy.cancel(12);
    proxy.await_decided();
    world.release("c");
    proxy.call(&Call::new(13, "mail", json!({})).seq(16));
    proxy.call(
        &Call::charge(14)
            .seq(27)
            .script(json!({"die": "after_effect"})),
    );
    assert_eq!(proxy.wait_code(), 69);
    std::fs::write(world.path("proof"), "abc").unwrap();
    let reason = ["--reason", "asked about order_4711", "--by", "ann"];
    operator(&[&["resolve", "27", "--still-unknown"], &reason[..]].concat());
    let failed = [
        "resolve",
        "27",
        "--failed",
        "--error",
        r#"{"code":1,"message":"no"}"#,
    ];
    operator(&[&failed[..], &reason, &["--evidence", "proof"]].concat());
    operator(&["delivered", "27", "--by", "ann"]);
    operator(&["gc", "--older-than", "0s", "--undelivered-too", "--yes"]);
    operator(&[
        "fork",
        "--from",
        "3",
        "--new-workflow",
        "new",
        "--reason",
        "start over",
    ]);
}

/// A verdict by force on seq 2, and the answer that came after it.
fn verdicts(world: &World, proxy: &mut Proxy) {
    proxy.send_call(&Call::charge(6).seq(2).script(late("h")));
    world.wait_held("h");
    let force = ["resolve", "2", "--not-executed", "--force", "--by", "ann"];
    let why = ["--reason", "not at the bank", "--reference", "INC-4711"];
    run(world, 0, &[&force[..], &why].concat());
    world.release("h");
    proxy.recv_id(6);
    let adopt = [
        "resolve",
        "2",
        "--completed",
        "--result-stale",
        "--by",
        "bob",
    ];
    run(
        world,
        0,
        &[&adopt[..], &["--reason", "it was late"]].concat(),
    );
    run(
        world,
        0,
        &["reopen", "2", "--reason", "again", "--by", "ann", "--yes"],
    );
}

/// A text's lines without what differs from run to run: times, how long it took, digests, paths.
fn steady(world: &World, text: &str) -> Vec<String> {
    let folder = world.folder().display().to_string();
    let steady = |line: &str| {
        let words = line.split_whitespace().map(|word| {
            let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
            let is_time = bare.len() == 27 && bare.ends_with('Z');
            let is_long = bare.starts_with(|c: char| c.is_ascii_digit()) && bare.ends_with('s');
            let is_digest = bare.len() == 12 && bare.bytes().all(|byte| byte.is_ascii_hexdigit());
            let placeholder = match () {
                () if is_time => "AT",
                () if is_long => "TIME",
                () if is_digest => "DIGEST",
                () => bare,
            };
            word.replace(bare, placeholder)
        });
        let line = words.collect::<Vec<_>>().join(" ");
        line.replace("less than TIME", "TIME")
            .replace(&folder, "FOLDER")
    };
    text.lines().map(steady).collect()
}

#[track_caller]
fn assert_told(told: &[String], expected: &[&str]) {
    for line in expected {
        assert!(
            told.iter().any(|told| told == line),
            "no {line:?} in\n{}",
            told.join("\n")
        );
    }
}

#[test]
fn events_are_told_in_words_that_a_person_would_use() {
    let world = World::new();
    eventful(&world);
    let told = steady(
        &world,
        &run(&world, 0, &["tail", "--from-start", "--no-follow"]),
    );
    let user = run(
        &world,
        0,
        &["tail", "--from-start", "--no-follow", "--json"],
    );
    let user = user
        .lines()
        .find(|line| line.contains("\"purged\""))
        .unwrap();
    let user: Value = serde_json::from_str(user).unwrap();
    let user = user["detail"]["by"].as_str().unwrap();
    assert_told(
        &told,
        &[
            "AT started seq 2 charge",
            "AT fenced seq 2 charge by force, by ann: not at the bank, reference INC-4711, \
             was PENDING",
            "AT resolved seq 2 charge not executed, by force, by ann: not at the bank, \
             reference INC-4711, was PENDING",
            "AT stale result seq 2 charge COMPLETED, 14 bytes, sha256 DIGEST",
            "AT retracted seq 2 charge by bob: it was late, was VOIDED",
            "AT resolved seq 2 charge completed, by bob: it was late, stale answer DIGEST of \
             fence 2, was VOIDED",
            "AT reopened seq 2 charge by ann: again, was COMPLETED",
            "AT replayed seq 1 charge @B, 2x",
            "AT diverged seq 1 charge @C",
            "AT refused invalid seq",
            "AT retried seq 3 retry attempt 2, @G",
            "AT voided seq 4 open error code -32042",
            "AT outcome unknown seq 5 slow timeout, 173 of 173 bytes sent, after TIME",
            "AT late result seq 5 slow after a timeout",
            "AT late result seq 16 mail after its cancellation",
            "AT outcome unknown seq 27 charge upstream exited, 181 of 181 bytes sent, after TIME, \
             signal 9",
            "AT resolved seq 27 charge still unknown, by ann: asked about order_4711, was PENDING",
            "AT resolved seq 27 charge failed, by ann: asked about order_4711, evidence proof \
             (3 bytes, sha256 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad), \
             was PENDING",
            "AT delivered seq 27 charge by ann, was FAILED",
            &format!("AT purged seq 5 slow by {user}, 16 bytes"),
            &format!(
                "AT forked by {user}: start over, workflow new from seq 3 of branch 0 of \
                 FOLDER/state/run.db"
            ),
        ],
    );
    // An operator who puts a call under another fence starts nothing.
    let starts = told
        .iter()
        .filter(|line| line.starts_with("AT started seq 2 "));
    assert_eq!(
        starts.collect::<Vec<_>>(),
        [
            "AT started seq 2 charge",
            "AT started seq 2 charge attempt 2"
        ]
    );
    let shown = steady(&world, &run(&world, 0, &["show", "2"]));
    assert_told(
        &shown,
        &[
            "1 2 PENDING AT - - fenced",
            "1 3 VOIDED AT - - taken back",
            "1 4 COMPLETED AT TIME -",
            "AT stale_result 1 - COMPLETED, 14 bytes, sha256 DIGEST",
            "AT resolved 1 ann not at the bank; not executed, by force, reference INC-4711, was \
             PENDING",
            "gone: dropped since, or never kept",
        ],
    );
    let shown = steady(&world, &run(&world, 0, &["show", "5"]));
    assert_told(
        &shown,
        &[
            "policy timeout = \"TIME\"",
            "note timeout",
            "AT outcome_unknown 1 - timeout, 173 of 173 bytes sent, after TIME",
        ],
    );
}
