//! What a run as a whole may do: how many calls, who takes over, what a doubt ends.

use serde_json::json;

use crate::call::{Call, assert_done, assert_refused};
use crate::world::World;

fn order(id: u64) -> Call {
    Call::new(id, "charge", json!({"order_id": id}))
}

#[test]
fn a_workflow_makes_no_more_calls_than_it_may() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--max-calls", "2"]).start();
    assert_done(&proxy.call(&order(1).seq(1)));
    assert_done(&proxy.call(&order(2).seq(2)));
    let answer = proxy.call(&order(3).seq(3));
    assert_refused(&answer, "limit_reached", "not_started");
    assert_eq!(answer["error"]["code"], 7713, "{answer}");
    // What is there is still answered, and other workflows count for themselves.
    assert_done(&proxy.call(&order(1).seq(1)));
    assert_done(&proxy.call(&order(4).meta("checkpoint_workflow", "other")));
    proxy.stop();
    // Over a restart as well: it is the workflow's limit.
    let mut proxy = world.proxy().flags(["--max-calls", "2"]).start();
    assert_refused(&proxy.call(&order(5)), "limit_reached", "not_started");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn calls_that_come_at_once_do_not_pass_the_limit_together() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--max-calls", "3"]).start();
    let lines: Vec<_> = (1..=10).map(|id| order(id).line()).collect();
    proxy.send(lines.join("\n"));
    for id in 1..=10u64 {
        proxy.recv_id(id);
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn a_run_that_supersedes_fences_older_ones_and_lets_their_running_calls_settle() {
    let world = World::new();
    let mut older = world.proxy().start();
    assert_done(&older.call(&order(1).seq(1)));
    older.send_call(&order(2).seq(2).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let mut newer = world.proxy().flags(["--supersede"]).start();
    // Only its first call takes over.
    newer.assert_ping();
    assert_done(&older.call(&order(3).seq(3)));
    assert_done(&newer.call(&order(4).seq(4)));
    let answer = older.call(&order(5).seq(5));
    assert_refused(&answer, "stale_generation", "not_started");
    assert_eq!(answer["error"]["code"], 7714, "{answer}");
    // What is stored is still told; another workflow is not taken over.
    assert_done(&older.call(&order(1).seq(1)));
    assert_done(&older.call(&order(6).meta("checkpoint_workflow", "other")));
    world.release("h");
    assert_done(&older.recv_id(2));
    assert_done(&newer.call(&order(2).seq(2)));
    assert_done(&newer.call(&order(5).seq(5)));
    older.stop();
    newer.stop();
    assert_eq!(world.effects_of("charge"), 6);
}

/// Headless runs all have the flag, and each takes over from the one before.
#[test]
fn a_run_that_took_over_is_taken_over_in_turn() {
    let world = World::new();
    let mut runs = Vec::new();
    for id in 1..=3u64 {
        let mut run = world.proxy().flags(["--supersede"]).start();
        assert_done(&run.call(&order(id).seq(id)));
        runs.push(run);
    }
    let mut last = runs.pop().unwrap();
    for (mut run, id) in runs.into_iter().zip(10u64..) {
        let answer = run.call(&order(id).seq(id));
        assert_refused(&answer, "stale_generation", "not_started");
        run.stop();
    }
    assert_done(&last.call(&order(20).seq(20)));
    last.stop();
    assert_eq!(world.effects_of("charge"), 4);
}

/// A session that is older takes no workflow over from a younger one, flag or not.
#[test]
fn an_older_run_does_not_take_over_from_a_newer_one() {
    let world = World::new();
    let mut older = world.proxy().flags(["--supersede"]).start();
    assert_done(&older.call(&order(1).meta("checkpoint_workflow", "other")));
    let mut newer = world.proxy().flags(["--supersede"]).start();
    assert_done(&newer.call(&order(2)));
    let answer = older.call(&order(3));
    assert_refused(&answer, "stale_generation", "not_started");
    assert_done(&newer.call(&order(4)));
    older.stop();
    newer.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn a_superseded_run_retries_nothing() {
    let world = World::new();
    let policy = "[defaults]\ndelivery = \"at-least-once\"\non_failure = \"retry\"\n";
    let mut older = world.proxy().policy(policy).start();
    let fail = json!({"error": {"code": -32603, "message": "no"}});
    older.call(&order(1).seq(1).script(fail));
    let mut newer = world.proxy().policy(policy).flags(["--supersede"]).start();
    assert_done(&newer.call(&order(2).seq(2)));
    let answer = older.call(&order(1).seq(1));
    assert_refused(&answer, "stale_generation", "not_started");
    assert_done(&newer.call(&order(1).seq(1)));
    older.stop();
    newer.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn the_first_doubt_ends_a_headless_run_with_code_3() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.call(&order(1).seq(1).script(json!({"die": "after_effect"})));
    proxy.wait();
    let mut proxy = world.proxy().flags(["--on-in-doubt", "exit"]).start();
    proxy.send_call(&order(2).seq(2).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    assert_refused(&proxy.call(&order(1).seq(1)), "in_doubt", "unknown");
    // What runs is let end, and no more is taken.
    let answer = proxy.call(&order(3).seq(3));
    assert_refused(&answer, "upstream_unavailable", "not_started");
    world.release("h");
    assert_done(&proxy.recv_id(2));
    assert_eq!(proxy.wait_code(), 3);
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn an_abandoned_call_ends_a_headless_run_too() {
    let world = World::new();
    let policy = "[defaults]\ndelivery = \"at-least-once\"\nmax_attempts = 1\n";
    let mut proxy = world.proxy().policy(policy).start();
    proxy.call(&order(1).seq(1).script(json!({"die": "after_effect"})));
    proxy.wait();
    let flags = ["--on-in-doubt", "exit"];
    let mut proxy = world.proxy().policy(policy).flags(flags).start();
    assert_refused(&proxy.call(&order(1).seq(1)), "abandoned", "unknown");
    assert_eq!(proxy.wait_code(), 3);
}
