//! The guarantee, in the terms of README and of the contract:
//!
//! > a completed side effect is never run again on replay, provided the replayed calls are those
//! > that were journaled; a call that was cut off mid-flight is not claimed to have failed or
//! > succeeded: it is in doubt, it is shown, and only an operator, a policy or the upstream's own
//! > evidence settles it. Nothing that was journaled is lost by a crash of any of the parties.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, refusal, result_bytes};
use crate::proxy::Proxy;
use crate::world::{DEADLINE, World};

/// How a session ends. Each way is met by the same assertion.
#[derive(Clone, Copy, Debug)]
enum End {
    ClientCloses,
    ClientIsGone,
    ProxyIsKilled,
    UpstreamIsKilled,
    UpstreamExits,
}

fn end(world: &World, proxy: &mut Proxy, how: End) {
    let upstream = world.pid_of("upstream", 1);
    match how {
        End::ClientCloses => proxy.close_stdin(),
        End::ClientIsGone => proxy.drop_client(),
        End::ProxyIsKilled => return proxy.kill9(),
        End::UpstreamIsKilled => kill(Pid::from_raw(upstream), Signal::SIGKILL).unwrap(),
        End::UpstreamExits => {
            proxy.send(json!({"jsonrpc": "2.0", "method": "x/exit", "params": {"code": 3}}));
        }
    }
    proxy.wait();
}

#[test]
fn a_completed_side_effect_is_never_run_again_on_replay() {
    for how in [
        End::ClientCloses,
        End::ClientIsGone,
        End::ProxyIsKilled,
        End::UpstreamIsKilled,
        End::UpstreamExits,
    ] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        let first = proxy.call_line(&Call::charge(1).seq(1));
        end(&world, &mut proxy, how);
        assert_eq!(world.effects_of("charge"), 1, "{how:?}");

        for id in [2, 3] {
            let mut proxy = world.proxy().start();
            let again = proxy.call_line(&Call::charge(id).seq(1));
            assert_eq!(result_bytes(&again), result_bytes(&first), "{how:?}");
            proxy.stop();
        }
        assert_eq!(world.effects_of("charge"), 1, "{how:?}");
        assert_eq!(world.calls_at_upstream(), 1, "{how:?}");
        assert_eq!(world.status(1), "COMPLETED", "{how:?}");
    }
}

#[test]
fn an_outcome_that_its_client_never_read_is_not_lost() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    proxy.drop_client();
    world.release("h");
    proxy.wait();
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.entry(1)["delivered_at"], Value::Null);

    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert!(world.entry(1)["delivered_at"].is_string());
}

#[test]
fn a_call_cut_off_mid_flight_is_in_doubt_and_shown_and_never_settled_by_time() {
    for hold in ["hold_before", "hold_after"] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        proxy.send_call(&Call::charge(1).seq(1).script(json!({hold: "h"})));
        world.wait_held("h");
        let effects = world.effects_of("charge");
        proxy.kill9();
        // Its upstream ends with it; only then may anybody call the entry in doubt.
        world.wait_gone(world.pid_of("upstream", 1), DEADLINE);

        let mut proxy = world.proxy().start();
        for id in 2..5 {
            let answer = proxy.call(&Call::charge(id).seq(1));
            assert_refused(&answer, "in_doubt", "unknown");
            assert_eq!(answer["error"]["code"], 7702);
        }
        proxy.stop();
        let entry = world.entry(1);
        assert_eq!(entry["status"], "PENDING", "{entry}");
        assert_eq!(entry["in_doubt"], true, "{entry}");
        assert_eq!(entry["attempt"], 1, "{entry}");
        let shown = world.operator(&["ls", "--in-doubt", "--fail-if-any"]);
        assert_eq!(shown.status.code(), Some(3), "{shown:?}");
        assert_eq!(world.effects_of("charge"), effects);
        assert_eq!(world.calls_at_upstream(), 1);
    }
}

#[test]
fn a_workflow_that_starts_over_runs_only_what_it_had_not_run() {
    let world = World::new();
    let order = |seq: u64| json!({"order_id": format!("A-{seq}"), "amount": seq});
    let mut proxy = world.proxy().start();
    for seq in 1..=4u64 {
        assert_done(&proxy.call(&Call::new(seq, "charge", order(seq)).seq(seq)));
    }
    proxy.kill9();
    let mut proxy = world.proxy().start();
    for seq in 1..=6u64 {
        let call = Call::new(100 + seq, "charge", order(seq)).seq(seq);
        assert_done(&proxy.call(&call));
        let done = usize::try_from(seq.max(4)).unwrap();
        assert_eq!(world.effects_of("charge"), done);
    }
    proxy.stop();
    assert_eq!(world.calls_at_upstream(), 6);
    let shown = world.operator(&["ls", "--in-doubt", "--fail-if-any"]);
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
}

#[test]
fn the_readme_states_the_guarantee_in_these_terms() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    let plain: String = readme.replace(['*', '>', '_'], " ").to_lowercase();
    let words: Vec<&str> = plain.split_whitespace().collect();
    let plain = words.join(" ");
    for term in [
        "a completed side effect is never run again on replay",
        "provided the replayed calls are those that were journaled",
        "a call that was cut off mid-flight is not claimed to have failed or succeeded",
    ] {
        assert!(plain.contains(term), "README does not say: {term}");
    }
}

/// A small generator, so that a failure is run again by its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn number_from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Case C13: 200 kills at random points of one growing journal, each followed by a resume.
#[test]
fn no_kill_at_any_point_makes_an_effect_run_twice() {
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let seed = number_from_env("CHECKPOINT_IT_SEED", clock.as_micros() as u64 | 1);
    eprintln!("CHECKPOINT_IT_SEED={seed}");
    let mut dice = Dice(seed);
    let world = World::new();
    let mut seen = [0u32; 2];
    for seq in 1..=number_from_env("CHECKPOINT_IT_KILLS", 200) {
        let was_done = kill_and_resume(&world, &mut dice, seq);
        seen[usize::from(was_done)] += 1;
    }
    eprintln!("in doubt {}, done {}", seen[0], seen[1]);
    let verified = world.operator(&["verify"]);
    assert!(verified.status.success(), "{verified:?}");
}

/// One session that is killed, one that asks again. Returns whether the second had a result.
fn kill_and_resume(world: &World, dice: &mut Dice, seq: u64) -> bool {
    let order = format!("A-{seq}");
    let call = |id: u64| {
        Call::new(
            id,
            "charge",
            json!({"order_id": order.clone(), "amount": seq}),
        )
        .seq(seq)
    };
    let hold = format!("h{seq}");
    let (point, victim) = (dice.roll(6), dice.roll(3));
    let story = format!("seq {seq}, point {point}, victim {victim}");

    let mut proxy = world.proxy().start();
    let mut seen = None;
    let mut upstream = None;
    match point {
        0 => proxy.assert_ping(),
        1 => proxy.send_call(&call(1)),
        2 | 3 => {
            let place = ["hold_before", "hold_after"][usize::from(point == 3)];
            proxy.send_call(&call(1).script(json!({place: hold})));
            upstream = Some(world.wait_held(&hold));
        }
        4 => {
            proxy.send_call(&call(1));
            seen = proxy.recv_id_within(1, Duration::from_micros(dice.roll(6000)));
        }
        _ => seen = Some(proxy.call(&call(1))),
    }
    match (victim, upstream) {
        (0, _) => {
            proxy.drop_client();
            world.release(&hold);
            proxy.wait();
        }
        (1, Some(upstream)) => {
            kill(Pid::from_raw(upstream), Signal::SIGKILL).unwrap();
            proxy.wait();
        }
        _ => {
            proxy.kill9();
            world.release(&hold);
        }
    }

    let mut proxy = world.proxy().start();
    let answer = proxy.call(&call(2));
    proxy.stop();
    let mut effects = world.effects();
    effects.retain(|effect| effect["order_id"] == order);
    assert!(effects.len() <= 1, "{story}: ran twice: {effects:?}");
    if let Some(seen) = seen {
        assert_eq!(answer["result"], seen["result"], "{story}");
    }
    if answer["result"]["isError"] == false {
        assert_eq!(effects.len(), 1, "{story}: {answer}");
        return true;
    }
    assert_eq!(refusal(&answer)["kind"], "in_doubt", "{story}: {answer}");
    assert_ne!(point, 0, "{story}: never sent, so never in doubt: {answer}");
    false
}
