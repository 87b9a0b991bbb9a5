//! `--resume`: an agent that starts over from its first call and sends nothing of ours.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, result_bytes};
use crate::proxy::Proxy;
use crate::setup::Setup;
use crate::world::{DEADLINE, World};

fn order(id: u64) -> Call {
    Call::new(id, "charge", json!({"order_id": id}))
}

fn resume(world: &World) -> Setup<'_> {
    world.proxy().flags(["--resume"])
}

/// Runs these orders one after the other in a session of their own; returns the results.
fn run(setup: Setup<'_>, orders: impl IntoIterator<Item = u64>) -> Vec<String> {
    let mut proxy = setup.start();
    let results = orders
        .into_iter()
        .map(|id| result_bytes(&proxy.call_line(&order(id))))
        .collect();
    proxy.stop();
    results
}

#[test]
fn a_run_that_starts_over_is_replayed_in_order_and_goes_on_as_new() {
    let world = World::new();
    let first = run(resume(&world), 1..=4);
    assert_eq!(world.effects_of("charge"), 4);
    let mut proxy = resume(&world).flags(["--log", "info"]).start();
    let second: Vec<_> = (1..=6)
        .map(|id| result_bytes(&proxy.call_line(&order(id))))
        .collect();
    assert_eq!(first[..], second[..4]);
    proxy.stop_and_read(|said| {
        assert!(said.contains("the replay has come to its end"), "{said}");
    });
    assert_eq!(world.effects_of("charge"), 6);
    assert_eq!(run(resume(&world), 1..=6), second);
    assert_eq!(world.effects_of("charge"), 6);
}

#[test]
fn equal_calls_in_a_row_are_told_by_their_place() {
    let world = World::new();
    let mut results = Vec::new();
    for _ in 0..2 {
        let mut proxy = resume(&world).start();
        for id in 1..=3 {
            results.push(result_bytes(&proxy.call_line(&Call::charge(id))));
        }
        proxy.stop();
    }
    assert_eq!(results[..3], results[3..]);
    assert_ne!(results[0], results[1]);
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn without_the_flag_nothing_is_walked() {
    let world = World::new();
    run(world.proxy(), 1..=2);
    run(world.proxy(), 1..=2);
    assert_eq!(world.effects_of("charge"), 4);
}

#[test]
fn the_first_difference_is_a_divergence_and_stays_one() {
    let world = World::new();
    run(resume(&world), 1..=3);
    let mut proxy = resume(&world).start();
    assert_done(&proxy.call(&order(1)));
    for _ in 0..2 {
        assert_refused(&proxy.call(&order(9)), "divergence", "not_started");
    }
    // A refused call passes nothing: the plan may go on.
    assert_done(&proxy.call(&order(2)));
    // Nor is a call of later any other.
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn a_call_that_was_not_in_flight_with_the_first_one_may_not_overtake_it() {
    let world = World::new();
    run(resume(&world), 1..=3);
    let mut proxy = resume(&world).start();
    assert_refused(&proxy.call(&order(2)), "divergence", "not_started");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 3);
}

#[test]
fn calls_that_were_in_flight_together_may_come_in_any_order() {
    let world = World::new();
    let mut proxy = resume(&world).start();
    for id in 1..=4 {
        proxy.send_call(&order(id).script(json!({"hold_after": "h"})));
    }
    world.wait_held_count("h", 4);
    world.release("h");
    let first: Vec<_> = (1..=4u64)
        .map(|id| result_bytes(&proxy.recv_id_line(&json!(id))))
        .collect();
    let fifth = result_bytes(&proxy.call_line(&order(5)));
    proxy.stop();
    let mut proxy = resume(&world).start();
    for id in [3, 1, 4, 2u64] {
        let again = result_bytes(&proxy.call_line(&order(id)));
        assert_eq!(again, first[usize::try_from(id - 1).unwrap()]);
    }
    assert_eq!(result_bytes(&proxy.call_line(&order(5))), fifth);
    proxy.stop();
    // All at once in the other order, too.
    let mut proxy = resume(&world).start();
    let lines: Vec<_> = [4, 3, 2, 1u64].iter().map(|id| order(*id).line()).collect();
    proxy.send(lines.join("\n"));
    for id in 1..=4u64 {
        let again = result_bytes(&proxy.recv_id_line(&json!(id)));
        assert_eq!(again, first[usize::try_from(id - 1).unwrap()]);
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 5);
}

#[test]
fn a_voided_entry_is_passed_over_where_a_later_one_is_the_call() {
    let world = World::new();
    let mut proxy = resume(&world).start();
    let not_run = json!({"error": {"code": -32020, "message": "mend"}, "no_effect": true});
    proxy.call(&order(1).script(not_run.clone()));
    proxy.call(&Call::new(11, "charge", json!({"order_id": "mended"})).script(not_run));
    let second = result_bytes(&proxy.call_line(&order(2)));
    let third = result_bytes(&proxy.call_line(&order(3)));
    proxy.stop();
    let mut proxy = resume(&world).start();
    assert_eq!(result_bytes(&proxy.call_line(&order(2))), second);
    assert_eq!(result_bytes(&proxy.call_line(&order(3))), third);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
    // One that is met itself runs.
    let mut proxy = resume(&world).start();
    assert_done(&proxy.call(&order(1)));
    assert_eq!(world.effects_of("charge"), 3);
    assert_eq!(result_bytes(&proxy.call_line(&order(2))), second);
    proxy.stop();
}

#[test]
fn explicit_seqs_are_skipped_by_the_walk() {
    let world = World::new();
    let first = run(resume(&world), 1..=4);
    let mut proxy = resume(&world).start();
    assert_eq!(result_bytes(&proxy.call_line(&order(1).seq(1))), first[0]);
    assert_eq!(result_bytes(&proxy.call_line(&order(3).seq(3))), first[2]);
    assert_eq!(result_bytes(&proxy.call_line(&order(2))), first[1]);
    assert_eq!(result_bytes(&proxy.call_line(&order(4))), first[3]);
    assert_done(&proxy.call(&order(5)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 5);
}

#[test]
fn a_doubt_at_the_cursor_refuses_and_stays() {
    let world = World::new();
    run(resume(&world), 1..=1);
    let mut proxy = resume(&world).start();
    assert_done(&proxy.call(&order(1)));
    proxy.call(&order(2).script(json!({"die": "after_effect"})));
    assert_eq!(proxy.wait_code(), 69);
    for _ in 0..2 {
        let mut proxy = resume(&world).start();
        assert_done(&proxy.call(&order(1)));
        for _ in 0..2 {
            assert_refused(&proxy.call(&order(2)), "in_doubt", "unknown");
        }
        // What has not run before does not run past a doubt.
        assert_refused(&proxy.call(&order(3)), "in_doubt", "unknown");
        proxy.stop();
    }
    assert_eq!(world.effects_of("charge"), 2);
    let words = [
        "resolve",
        "2",
        "--not-executed",
        "--reason",
        "looked",
        "--yes",
    ];
    assert!(world.operator(&words).status.success());
    run(resume(&world), 1..=3);
    assert_eq!(world.effects_of("charge"), 4);
}

/// Where a run is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    /// The call is at the upstream, its effect has not happened.
    BeforeEffect,
    /// The effect has happened, the answer has not been sent.
    AfterEffect,
    /// The answer has come, the next call has not been sent.
    AfterAnswer,
}

/// Each run starts over and is killed a little later than the one before it: at every boundary of
/// every call, so also in the middle of a replay. What was told stays told, and the effects are
/// those that the delivery allows: at most once, an operator settles each doubt by what happened.
#[test]
fn a_resume_that_is_killed_at_every_boundary_is_resumed_again() {
    const CALLS: u64 = 4;
    for (delivery, effects) in [("at-most-once", 1), ("at-least-once", 2)] {
        let world = World::new();
        let policy = format!("[defaults]\ndelivery = \"{delivery}\"\nmax_attempts = 9\n");
        let mut known: Vec<String> = Vec::new();
        let mut starts = 0;
        let mut start_over = |known: &[String]| {
            let mut proxy = resume(&world).policy(&policy).start();
            for (id, told) in (1u64..).zip(known) {
                assert_eq!(result_bytes(&proxy.call_line(&order(id))), *told);
            }
            starts += 1;
            (proxy, world.pid_of("upstream", starts))
        };
        let kill = |mut proxy: Proxy, upstream: i32| {
            proxy.kill9();
            world.wait_gone(upstream, DEADLINE);
        };
        for id in 1..=CALLS {
            for cut in [Cut::BeforeEffect, Cut::AfterEffect, Cut::AfterAnswer] {
                let (mut proxy, upstream) = start_over(&known);
                let hold = format!("{cut:?}-{id}");
                match cut {
                    Cut::BeforeEffect => {
                        proxy.send_call(&order(id).script(json!({"hold_before": hold})));
                        world.wait_held(&hold);
                    }
                    Cut::AfterEffect => {
                        proxy.send_call(&order(id).script(json!({"hold_after": hold})));
                        world.wait_held(&hold);
                    }
                    Cut::AfterAnswer => known.push(result_bytes(&proxy.call_line(&order(id)))),
                }
                kill(proxy, upstream);
                if delivery == "at-least-once" || cut == Cut::AfterAnswer {
                    continue;
                }
                // The doubt is told, and told again to the run that comes after the next crash.
                for _ in 0..2 {
                    let (mut proxy, upstream) = start_over(&known);
                    assert_refused(&proxy.call(&order(id)), "in_doubt", "unknown");
                    kill(proxy, upstream);
                }
                let verdict = match cut {
                    Cut::BeforeEffect => "--not-executed",
                    Cut::AfterEffect | Cut::AfterAnswer => "--completed",
                };
                let seq = id.to_string();
                let words = ["resolve", &seq, verdict, "--reason", "looked", "--yes"];
                assert!(world.operator(&words).status.success());
            }
        }
        for reached in 0..known.len() {
            let (proxy, upstream) = start_over(&known[..reached]);
            kill(proxy, upstream);
        }
        let (mut proxy, _) = start_over(&known);
        assert_done(&proxy.call(&order(CALLS + 1)));
        proxy.stop();
        for id in 1..=CALLS + 1 {
            let all = world.effects();
            let of_call = all.iter().filter(|effect| effect["order_id"] == id);
            let expected = if id > CALLS { 1 } else { effects };
            assert_eq!(of_call.count(), expected, "{delivery}: order {id}");
        }
        assert_eq!(world.entries().len() as u64, CALLS + 1);
        assert!(world.operator(&["verify"]).status.success());
    }
}

#[test]
fn each_workflow_of_a_session_has_a_cursor_of_its_own() {
    let world = World::new();
    let call = |proxy: &mut Proxy, workflow: &str, id: u64| {
        let call = order(id).meta("checkpoint_workflow", workflow);
        result_bytes(&proxy.call_line(&call))
    };
    let mut proxy = resume(&world).start();
    let first = [("a", 1), ("b", 1), ("b", 2), ("a", 2)].map(|(w, id)| call(&mut proxy, w, id));
    proxy.stop();
    let mut proxy = resume(&world).start();
    let second = [("b", 1), ("b", 2), ("a", 1), ("a", 2)].map(|(w, id)| call(&mut proxy, w, id));
    proxy.stop();
    assert_eq!(first[0], second[2]);
    assert_eq!(first[1], second[0]);
    assert_eq!(first[2], second[1]);
    assert_eq!(first[3], second[3]);
    assert_eq!(world.effects_of("charge"), 4);
}

/// The entry that the key leads to has a seq, but in its own workflow.
#[test]
fn a_key_that_another_workflow_holds_passes_no_entry_of_this_one() {
    let world = World::new();
    let policy = "[tools.refund]\nkey = \"refund:{order_id}\"\nwindow = \"journal\"\n";
    let refund = |id: u64| Call::new(id, "refund", json!({"order_id": 9}));
    let of = |call: Call, workflow: &str| call.meta("checkpoint_workflow", workflow);
    let mut proxy = resume(&world).policy(policy).start();
    let first = result_bytes(&proxy.call_line(&of(order(1), "a")));
    let refunded = result_bytes(&proxy.call_line(&of(refund(2), "b")));
    proxy.stop();
    let mut proxy = resume(&world).policy(policy).start();
    let again = result_bytes(&proxy.call_line(&of(refund(2), "a")));
    assert_eq!(again, refunded);
    assert_eq!(result_bytes(&proxy.call_line(&of(order(1), "a"))), first);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.effects_of("refund"), 1);
}

/// One that was run again later stands between two that were in flight together.
#[test]
fn calls_that_were_in_flight_together_are_found_past_one_that_was_not() {
    let world = World::new();
    let policy = "[defaults]\non_failure = \"retry\"\n";
    let fail = |id: u64| {
        Call::new(id, "charge", json!({"order_id": id})).script(json!({
            "error": {"code": -32603, "message": "broken"}, "hold_after": "h"
        }))
    };
    let mut proxy = resume(&world).policy(policy).start();
    proxy.send_call(&order(1).script(json!({"hold_after": "h"})));
    proxy.send_call(&fail(2));
    proxy.send_call(&order(3).script(json!({"hold_after": "h"})));
    world.wait_held_count("h", 3);
    world.release("h");
    let first = result_bytes(&proxy.recv_id_line(&json!(1)));
    let third = result_bytes(&proxy.recv_id_line(&json!(3)));
    assert_eq!(proxy.recv_id(2)["error"]["code"], -32603);
    // The second runs again, and is later than the others since.
    assert_done(&proxy.call(&order(2).seq(2)));
    proxy.stop();
    let mut proxy = resume(&world).policy(policy).start();
    assert_eq!(result_bytes(&proxy.call_line(&order(3))), third);
    assert_eq!(result_bytes(&proxy.call_line(&order(1))), first);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 4);
}

#[test]
fn a_failure_is_replayed_on_the_way() {
    let world = World::new();
    let fail = |id: u64| Call::new(id, "fail_error", json!({"order_id": id}));
    for _ in 0..2 {
        let mut proxy = resume(&world).start();
        assert_done(&proxy.call(&order(1)));
        assert_eq!(proxy.call(&fail(2))["error"]["code"], -32603);
        assert_done(&proxy.call(&order(3)));
        proxy.stop();
    }
    assert_eq!(world.effects().len(), 3);
}

#[test]
fn with_fork_the_first_difference_opens_a_branch() {
    let world = World::new();
    let first = run(resume(&world), 1..=4);
    let forks = || resume(&world).flags(["--on-divergence", "fork"]);
    let mut proxy = forks().start();
    assert_eq!(result_bytes(&proxy.call_line(&order(1))), first[0]);
    assert_done(&proxy.call(&order(12)));
    // What the parent had behind the fork is not the branch's.
    assert_done(&proxy.call(&order(3)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 6);
    let again = run(forks(), [1, 12, 3]);
    assert_eq!(again[0], first[0]);
    assert_ne!(again[2], first[2]);
    assert_eq!(world.effects_of("charge"), 6);
    let listed = world.ls_json();
    let rows: Vec<&Value> = listed["entries"].as_array().unwrap().iter().collect();
    assert!(rows.len() >= 3, "{listed}");
}

#[test]
fn a_long_run_is_walked_in_time() {
    let world = World::new();
    let count = 1000u64;
    for _ in 0..2 {
        let mut proxy = resume(&world).start();
        let lines: Vec<_> = (1..=count).map(|id| order(id).line()).collect();
        for chunk in lines.chunks(100) {
            proxy.send(chunk.join("\n"));
            for _ in chunk {
                assert_done(&proxy.recv());
            }
        }
        proxy.stop();
    }
    assert_eq!(world.effects_of("charge"), 1000);
}
