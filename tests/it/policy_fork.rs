//! `--on-divergence fork`: branches share the past and nothing else.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, result_bytes};
use crate::setup::Setup;
use crate::world::{DEADLINE, World};

fn order(id: u64, order: &str) -> Call {
    Call::new(id, "charge", json!({"order_id": order}))
}

fn forking(world: &World) -> Setup<'_> {
    world.proxy().flags(["--on-divergence", "fork"])
}

fn operator(world: &World, words: &[&str]) -> Value {
    let output = world.operator(words);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words:?} {out}");
    serde_json::from_str(&out).unwrap()
}

/// The (branch, seq) of all entries.
fn places(world: &World) -> Vec<(u64, u64)> {
    let number = |entry: &Value, name: &str| entry[name].as_u64().unwrap();
    world
        .entries()
        .iter()
        .map(|entry| (number(entry, "branch"), number(entry, "seq")))
        .collect()
}

#[test]
fn a_diverging_call_opens_a_branch_and_nothing_of_the_parent_changes() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let mut first = Vec::new();
    for seq in 1..=3u64 {
        let call = order(seq, &format!("o-{seq}")).seq(seq);
        first.push(result_bytes(&proxy.call_line(&call)));
    }
    proxy.stop();
    let before = operator(&world, &["show", "2", "--json"]);

    let mut proxy = forking(&world).start();
    assert_eq!(
        result_bytes(&proxy.call_line(&order(1, "o-1").seq(1))),
        first[0]
    );
    let other = result_bytes(&proxy.call_line(&order(2, "other").seq(2)));
    // The branch is the active one: what was behind the fork is not in it.
    assert_eq!(
        result_bytes(&proxy.call_line(&order(3, "other").seq(2))),
        other
    );
    let third = result_bytes(&proxy.call_line(&order(4, "o-3").seq(3)));
    assert_ne!(third, first[2]);
    // A call without a seq goes to the branch's end.
    assert_done(&proxy.call(&Call::new(5, "refund", json!({}))));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 5);
    let mut listed = places(&world);
    listed.sort_unstable();
    assert_eq!(listed, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (1, 4)]);

    // Over a restart, strict again, the branch stays the active one.
    let mut proxy = world.proxy().start();
    assert_eq!(
        result_bytes(&proxy.call_line(&order(6, "other").seq(2))),
        other
    );
    assert_refused(
        &proxy.call(&order(7, "o-2").seq(2)),
        "divergence",
        "not_started",
    );
    proxy.stop();

    let after = operator(&world, &["show", "2", "--branch", "0", "--json"]);
    assert_eq!(before["entry"], after["entry"]);
    let shown = operator(&world, &["show", "2", "--branch", "1", "--json"]);
    assert!(shown.to_string().contains("forked"), "{shown}");
    let listing = operator(&world, &["ls", "--json", "--branch", "1"]);
    assert_eq!(listing["entries"].as_array().unwrap().len(), 3, "{listing}");
    let forks = &world.ls_json()["forks"];
    assert_eq!(forks[0]["forked_from"]["at"], 2, "{forks}");
    assert!(world.operator(&["verify"]).status.success());
}

#[test]
fn a_branch_of_a_branch_may_fork_before_its_parent_began() {
    let world = World::new();
    let mut proxy = forking(&world).start();
    for seq in 1..=4u64 {
        assert_done(&proxy.call(&order(seq, "a").seq(seq)));
    }
    let c3 = result_bytes(&proxy.call_line(&order(5, "b").seq(3)));
    assert_ne!(c3, "");
    // Before the branch began: in the grandparent's part.
    let d2 = result_bytes(&proxy.call_line(&order(6, "c").seq(2)));
    assert_eq!(result_bytes(&proxy.call_line(&order(7, "c").seq(2))), d2);
    // Seq 1 is shared by all three.
    assert_done(&proxy.call(&order(8, "a").seq(1)));
    // What the first two had at 3 is not here.
    let d3 = result_bytes(&proxy.call_line(&order(9, "b").seq(3)));
    assert_ne!(d3, c3);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 7);
    let mut listed = places(&world);
    listed.sort_unstable();
    assert_eq!(
        listed,
        [(0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (2, 2), (2, 3)]
    );
}

/// A seq that was left out before the fork belongs to the past that is shared.
#[test]
fn a_gap_before_the_fork_is_filled_once() {
    let world = World::new();
    let mut proxy = forking(&world).start();
    assert_done(&proxy.call(&order(1, "a").seq(2)));
    assert_done(&proxy.call(&order(2, "b").seq(2)));
    let first = result_bytes(&proxy.call_line(&order(3, "c").seq(1)));
    assert_eq!(result_bytes(&proxy.call_line(&order(4, "c").seq(1))), first);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
    assert_eq!(
        operator(&world, &["show", "1", "--json"])["entry"]["status"],
        "COMPLETED"
    );
    assert!(world.operator(&["verify"]).status.success());
    // Of another workflow's past nothing is filled.
    let fork = ["fork", "--from", "2", "--new-workflow", "w2"];
    let mut proxy = world.proxy().flags(["--workflow-id", "w1"]).start();
    assert_done(&proxy.call(&order(1, "a").seq(2)));
    let from = [&fork[..], &["--workflow-id", "w1"]].concat();
    assert!(world.operator(&from).status.success());
    proxy.stop();
    let mut proxy = world.proxy().flags(["--workflow-id", "w2"]).start();
    assert_refused(
        &proxy.call(&order(2, "c").seq(1)),
        "divergence",
        "not_started",
    );
    assert_done(&proxy.call(&order(3, "c").seq(2)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 5);
}

#[test]
fn a_key_conflict_is_refused_and_never_forked_and_keys_hold_across_branches() {
    let world = World::new();
    let mut proxy = forking(&world).start();
    let keyed = |id: u64, order_id: &str| order(id, order_id).meta("checkpoint_key", "k");
    let first = result_bytes(&proxy.call_line(&keyed(1, "a")));
    assert_done(&proxy.call(&order(2, "x").seq(2)));
    assert_done(&proxy.call(&order(3, "y").seq(1)));
    assert_eq!(result_bytes(&proxy.call_line(&keyed(4, "a"))), first);
    assert_refused(&proxy.call(&keyed(5, "b")), "divergence", "not_started");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

/// The seq says which entry, so it diverges; on a branch the key would be held twice.
#[test]
fn a_seq_with_a_held_key_is_not_forked_either() {
    let world = World::new();
    let mut proxy = forking(&world).start();
    let keyed =
        |id: u64, order_id: &str, key: &str| order(id, order_id).seq(1).meta("checkpoint_key", key);
    let first = result_bytes(&proxy.call_line(&keyed(1, "a", "k")));
    assert_refused(
        &proxy.call(&keyed(2, "b", "k")),
        "divergence",
        "not_started",
    );
    assert_done(&proxy.call(&keyed(3, "b", "other")));
    assert_eq!(
        result_bytes(&proxy.call_line(&order(4, "a").meta("checkpoint_key", "k"))),
        first
    );
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn what_is_in_doubt_is_not_forked_away() {
    let world = World::new();
    let mut proxy = forking(&world).start();
    assert_done(&proxy.call(&order(1, "a").seq(1)));
    proxy.send_call(&order(2, "b").seq(2).script(json!({"hold_after": "h"})));
    let upstream = world.wait_held("h");
    proxy.kill9();
    world.wait_gone(upstream, DEADLINE);
    let mut proxy = forking(&world).start();
    // This one waits until the killed one's session is known to be over.
    assert_refused(&proxy.call(&order(2, "b").seq(2)), "in_doubt", "unknown");
    assert_refused(&proxy.call(&order(3, "c").seq(2)), "in_doubt", "unknown");
    // A fork before it leaves it where it is.
    assert_done(&proxy.call(&order(4, "d").seq(1)));
    assert_done(&proxy.call(&order(5, "b").seq(2)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 4);
    let shown = operator(&world, &["show", "2", "--branch", "0", "--json"]);
    assert_eq!(shown["entry"]["in_doubt"], true, "{shown}");
}

/// The guard looks along the branch: a doubt in the shared past forbids an equal new call.
#[test]
fn a_doubt_in_the_shared_past_still_guards() {
    let world = World::new();
    let mut proxy = forking(&world).start();
    proxy.call(&order(1, "lost").script(json!({"die": "after_effect"})));
    proxy.wait();
    let mut proxy = forking(&world).start();
    assert_done(&proxy.call(&order(2, "a").seq(2)));
    assert_done(&proxy.call(&order(3, "b").seq(2)));
    assert_refused(&proxy.call(&order(4, "lost")), "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn two_diverging_calls_at_once_open_branches_one_after_the_other() {
    let world = World::new();
    let mut proxy = forking(&world).start();
    assert_done(&proxy.call(&order(1, "a").seq(1)));
    proxy.send([order(2, "b").seq(1).line(), order(3, "b").seq(1).line()].join("\n"));
    let two = result_bytes(&proxy.recv_id_line(&json!(2)));
    let three = result_bytes(&proxy.recv_id_line(&json!(3)));
    assert_eq!(two, three);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

/// A branch of a branch that left it earlier: what stands between the two forks is on neither.
#[test]
fn the_guard_does_not_look_behind_the_earlier_of_two_forks() {
    let world = World::new();
    let mut proxy = forking(&world).start();
    for seq in [1, 2] {
        assert_done(&proxy.call(&order(seq, "kept").seq(seq)));
    }
    // Its caller gives up, so an equal call would be given its outcome.
    let given_up = order(3, "given up").seq(3);
    proxy.send_call(&given_up.script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.cancel(3);
    proxy.assert_ping();
    world.release("h");
    proxy.await_quiet();
    assert_done(&proxy.call(&order(4, "kept").seq(4)));
    for seq in [4, 2] {
        assert_done(&proxy.call(&order(10 + seq, "other").seq(seq)));
    }
    let answer = proxy.call(&order(20, "given up"));
    assert_done(&answer);
    let mark = &answer["result"]["_meta"]["checkpoint"];
    assert_eq!(*mark, Value::Null, "{answer}");
    proxy.stop();
    let effects = world.effects();
    let again = effects
        .iter()
        .filter(|effect| effect["order_id"] == "given up");
    assert_eq!(again.count(), 2);
    assert_eq!(places(&world).last(), Some(&(2, 3)));
}
