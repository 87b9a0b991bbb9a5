//! Cancellations: what is forwarded, what is kept, what is never answered.

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused};
use crate::world::{World, contains};

#[test]
fn a_cancellation_follows_its_call_and_the_upstream_lives_on() {
    let world = World::new();
    // No answer will ever come, so the end of input would wait for one.
    let flags = ["--drain-timeout", "200ms"];
    let mut proxy = world.proxy().flags(flags).start();
    let script = json!({"hold_after": "h", "on_cancel": "silent"});
    let both = Call::charge(1).seq(1).script(script).line()
        + "\n"
        + r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#
        + "\n";
    proxy.send_raw(both.as_bytes());
    proxy.assert_ping();
    world.wait_held("h");
    let lines: Vec<u8> = world.upstream_lines().concat();
    let place = |part: &[u8]| lines.windows(part.len()).position(|w| w == part);
    assert!(place(b"tools/call").unwrap() < place(b"notifications/cancelled").unwrap());
    world.release("h");
    proxy.await_quiet();
    assert!(
        proxy.recv_id_within(1, std::time::Duration::ZERO).is_none(),
        "we answered a cancelled call"
    );
    assert_done(&proxy.call(&Call::new(2, "refund", json!({}))));
    assert_eq!(world.status(1), "PENDING");
    proxy.close_stdin();
    proxy.wait();
    assert_eq!(world.entry(1)["in_doubt"], true);
    let mut proxy = world.proxy().start();
    assert_refused(&proxy.call(&Call::charge(3).seq(1)), "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

/// Case C50.
#[test]
fn a_late_answer_to_a_cancelled_call_settles_its_entry() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.cancel(1);
    proxy.assert_ping();
    world.release("h");
    proxy.await_quiet();
    assert_done(&proxy.call(&Call::new(2, "refund", json!({}))));
    let entry = world.entry(1);
    assert_eq!(entry["status"], "COMPLETED", "{entry}");
    assert_eq!(entry["delivered_at"], Value::Null, "{entry}");
    assert_done(&proxy.call(&Call::charge(3).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn an_error_that_answers_a_cancelled_call_is_no_outcome() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let script = json!({"hold_after": "h", "on_cancel": "error"});
    proxy.send_call(&Call::charge(1).seq(1).script(script));
    world.wait_held("h");
    proxy.cancel(1);
    proxy.assert_ping();
    world.release("h");
    proxy.await_quiet();
    assert_done(&proxy.call(&Call::new(2, "refund", json!({}))));
    assert_eq!(world.status(1), "PENDING");
    let answer = proxy.call(&Call::charge(3).seq(1));
    assert_refused(&answer, "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.entry(1)["in_doubt"], true);
    assert_eq!(world.effects_of("charge"), 1);
}

fn cancellations_at_upstream(world: &World) -> usize {
    world
        .upstream_lines()
        .iter()
        .filter(|line| contains(line, b"notifications/cancelled"))
        .count()
}

#[test]
fn a_cancellation_of_what_the_upstream_never_got_is_not_forwarded() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    // Joined.
    proxy.send_call(&Call::charge(2).seq(1));
    proxy.assert_ping();
    proxy.cancel(2);
    proxy.assert_ping();
    assert_eq!(cancellations_at_upstream(&world), 0);
    world.release("h");
    assert_done(&proxy.recv_id(1));
    // Replayed, and refused.
    assert_done(&proxy.call(&Call::charge(3).seq(1)));
    proxy.cancel(3);
    proxy.call(&Call::charge(4).seq(0));
    proxy.cancel(4);
    proxy.assert_ping();
    assert_eq!(cancellations_at_upstream(&world), 0);
    // One for an id that the upstream has answered is the upstream's to ignore.
    proxy.cancel(1);
    // One for an id that nobody knows is no business of ours.
    proxy.cancel("stranger");
    proxy.assert_ping();
    assert_eq!(cancellations_at_upstream(&world), 2);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn an_owners_cancellation_waits_while_another_caller_does() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let script = json!({"hold_after": "h", "on_cancel": "error"});
    proxy.send_call(&Call::charge(1).seq(1).script(script));
    world.wait_held("h");
    proxy.send_call(&Call::charge(2).seq(1));
    proxy.await_decided();
    proxy.cancel(1);
    proxy.assert_ping();
    assert_eq!(cancellations_at_upstream(&world), 0);
    world.release("h");
    assert_done(&proxy.recv_id(2));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.status(1), "COMPLETED");
}
