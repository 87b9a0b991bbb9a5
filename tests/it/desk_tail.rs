//! What happens is told as it happens, ordinary calls included.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::call::{Call, assert_done};
use crate::world::{DEADLINE, World, checkpoint};

/// A running `tail --json`.
struct Tail {
    child: Child,
    lines: Receiver<Value>,
}

impl Tail {
    fn start(world: &World, words: &[&str]) -> Self {
        let mut child = world
            .command(checkpoint())
            .args(["tail", "--json"])
            .args(words)
            .arg("--journal")
            .arg(world.journal())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pipe = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in pipe.lines() {
                let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines }
    }

    /// The next thing that is told.
    fn next(&self) -> Value {
        self.lines.recv_timeout(DEADLINE).expect("a line comes")
    }

    /// Asserts what is told next, and about which seq.
    #[track_caller]
    fn expect(&self, what: &str, seq: u64) -> Value {
        let line = self.next();
        assert_eq!(
            (&line["what"], &line["seq"]),
            (&json!(what), &json!(seq)),
            "{line}"
        );
        line
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ordinary_calls_are_told_as_they_start_and_end() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    let tail = Tail::start(&world, &["-n", "2"]);
    tail.expect("started", 1);
    let done = tail.expect("completed", 1);
    assert!(done["took_us"].as_i64().unwrap() > 0, "{done}");
    proxy.send_call(
        &Call::new(2, "refund", json!({}))
            .seq(2)
            .script(json!({"hold_after": "h"})),
    );
    let started = tail.expect("started", 2);
    assert_eq!(
        (&started["tool"], &started["attempt"]),
        (&json!("refund"), &json!(1))
    );
    world.release("h");
    let done = tail.expect("completed", 2);
    assert_eq!(
        (&done["provenance"], &done["is_error"]),
        (&json!("upstream"), &json!(false))
    );
    proxy.recv_id(2);
    proxy.call(&Call::new(3, "fail_error", json!({})).seq(3));
    tail.expect("started", 3);
    tail.expect("failed", 3);
    proxy.call(&Call::charge(4).seq(1));
    assert_eq!(tail.expect("replayed", 1)["letter"], "@B");
    proxy.stop();
}

/// No commit tells that an owner was killed: the lock does.
#[test]
fn a_call_that_is_cut_off_is_told_without_a_commit() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    // What is told of the past shows that the tail has begun.
    let tail = Tail::start(&world, &["-n", "2"]);
    tail.expect("started", 1);
    tail.expect("completed", 1);
    proxy.send_call(&Call::charge(2).seq(2).script(json!({"hold_after": "h"})));
    tail.expect("started", 2);
    world.wait_held("h");
    proxy.kill9();
    let doubt = tail.expect("in_doubt", 2);
    assert_eq!(doubt["detail"], Value::Null, "{doubt}");
    let verdict = [
        "resolve",
        "2",
        "--completed",
        "--reason",
        "seen",
        "--by",
        "ann",
    ];
    assert!(world.operator(&verdict).status.success());
    let told = [tail.next(), tail.next()];
    let whats: Vec<&Value> = told.iter().map(|line| &line["what"]).collect();
    assert!(
        whats.contains(&&json!("resolved")) && whats.contains(&&json!("completed")),
        "{told:?}"
    );
    let resolved = told.iter().find(|line| line["what"] == "resolved").unwrap();
    assert_eq!(resolved["detail"]["by"], "ann", "{resolved}");
}

#[test]
fn all_of_a_journal_is_told_from_its_start_and_a_closed_pipe_ends_it() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    for seq in 1..=1_100 {
        proxy.send_call(&Call::new(seq, "charge", json!({"order_id": seq})).seq(seq));
    }
    for seq in 1..=1_100 {
        proxy.recv_id(seq);
    }
    let output = world.operator(&["tail", "--from-start", "--no-follow", "--json"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for what in ["started", "completed"] {
        let mut seqs: Vec<u64> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|line| line["what"] == what)
            .map(|line| line["seq"].as_u64().unwrap())
            .collect();
        seqs.sort_unstable();
        assert_eq!(seqs, (1..=1_100).collect::<Vec<_>>(), "{what}");
    }
    let mut command = world.command(checkpoint());
    command
        .args(["tail", "-n", "0", "--journal"])
        .arg(world.journal());
    let mut child = command
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    proxy.stop();
    assert_eq!(
        world
            .operator(&["tail", "--no-follow", "--workflow-id", "no"])
            .stdout,
        b""
    );
}

#[test]
fn a_journal_that_goes_away_ends_it() {
    let world = World::new();
    assert_eq!(world.operator(&["tail"]).status.code(), Some(5));
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    let mut tail = Tail::start(&world, &["-n", "1"]);
    tail.expect("completed", 1);
    std::fs::remove_file(world.journal()).unwrap();
    assert_eq!(tail.child.wait().unwrap().code(), Some(5));
}

#[test]
fn a_fork_is_told_to_those_who_follow_either_workflow_and_to_no_other() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    let words = ["fork", "--from", "2", "--new-workflow", "w2"];
    assert!(world.operator(&words).status.success());
    let own = world.journal().display().to_string();
    for (workflow, is_told) in [("w2", true), (&*own, true), ("nope", false)] {
        let words = ["tail", "--no-follow", "--workflow-id", workflow];
        let said = String::from_utf8(world.operator(&words).stdout).unwrap();
        assert_eq!(said.contains("forked"), is_told, "{workflow}: {said}");
        assert_eq!(said.is_empty(), !is_told, "{workflow}: {said}");
    }
}
