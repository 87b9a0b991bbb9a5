//! `reconcile` by a command: asked before a doubt is refused, believed only if clear.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused};
use crate::proxy::Proxy;
use crate::world::{DEADLINE, World, cpu_ticks};

/// A command that keeps what it was asked and says this.
fn policy(world: &World, says: &str, more: &str) -> String {
    let script = world.path("did-it");
    let text = format!(
        "#!/bin/sh\ncat >> {}\n{says}\n",
        world.path("asked").display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!(
        "[tools.charge]\nreconcile = {{ command = [{:?}], timeout = \"5s\" }}\n{more}",
        script.display().to_string()
    )
}

fn asked(world: &World) -> Vec<Value> {
    let text = std::fs::read_to_string(world.path("asked")).unwrap_or_default();
    serde_json::Deserializer::from_str(&text)
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

fn lose(world: &World, call: &Call) {
    let mut proxy = world.proxy().start();
    let call = call.clone().script(json!({"die": "after_effect"}));
    assert_refused(&proxy.call(&call), "outcome_unknown", "unknown");
    assert_eq!(proxy.wait_code(), 69);
}

fn start(world: &World, policy: &str) -> Proxy {
    world.proxy().policy(policy).start()
}

fn events(world: &World) -> String {
    world.show_json(1)["events"].to_string()
}

const COMPLETED: &str = r#"echo '{"verdict": "completed", "result": {"content": [{"type": "text", "text": "sent as 4711"}]}}'; echo looked >&2"#;
const NOT_EXECUTED: &str = r#"echo '{"verdict": "not_executed"}'"#;

#[test]
fn a_call_that_was_executed_is_answered_with_what_the_command_found() {
    let world = World::new();
    lose(&world, &Call::charge(1).seq(1));
    let policy = policy(&world, COMPLETED, "");
    let mut proxy = start(&world, &policy);
    for id in 2..4 {
        let answer = proxy.call(&Call::charge(id).seq(1));
        assert_eq!(
            answer["result"]["content"][0]["text"], "sent as 4711",
            "{answer}"
        );
    }
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    let asked = asked(&world);
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0]["tool"], "charge");
    assert_eq!(asked[0]["seq"], 1);
    assert_eq!(asked[0]["arguments"]["order_id"], "A-1");
    let key = asked[0]["idempotency_key"].as_str().unwrap();
    assert!(key.ends_with("/0/1"), "{key}");
    let entry = world.show_json(1);
    assert_eq!(entry["attempts"][0]["provenance"], "prober", "{entry}");
    let events = events(&world);
    assert!(
        events.contains("4711") && events.contains("looked"),
        "{events}"
    );
    assert!(world.operator(&["verify"]).status.success());
}

/// No upstream made that result for that client, so what its revision asks for is added.
#[test]
fn what_the_command_found_is_legal_in_the_stateless_revision() {
    let world = World::new();
    lose(&world, &Call::charge(1).seq(1).modern());
    let policy = policy(&world, COMPLETED, "");
    let mut proxy = start(&world, &policy);
    let answer = proxy.call(&Call::charge(2).seq(1).modern());
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_call_that_was_not_executed_runs() {
    let world = World::new();
    lose(&world, &Call::charge(1).seq(1));
    let policy = policy(&world, NOT_EXECUTED, "");
    let mut proxy = start(&world, &policy);
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
    assert_eq!(world.entry(1)["attempt"], 2);
    assert!(world.operator(&["verify"]).status.success());
}

#[test]
fn the_guards_doubt_is_asked_about_too() {
    let world = World::new();
    lose(&world, &Call::charge(1));
    let policy = policy(&world, COMPLETED, "");
    let mut proxy = start(&world, &policy);
    let answer = proxy.call(&Call::charge(2));
    assert_eq!(answer["result"]["content"][0]["text"], "sent as 4711");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn an_abandoned_call_is_asked_about_too() {
    let world = World::new();
    lose(&world, &Call::charge(1).seq(1));
    let more = "delivery = \"at-least-once\"\nmax_attempts = 1\n";
    let policy = policy(&world, COMPLETED, more);
    let mut proxy = start(&world, &policy);
    let answer = proxy.call(&Call::charge(2).seq(1));
    assert_eq!(answer["result"]["content"][0]["text"], "sent as 4711");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn what_is_not_clear_stays_in_doubt_and_is_kept() {
    for says in [
        r#"echo '{"verdict": "unknown"}'"#,
        r#"echo '{"verdict": "not_executed"}'; exit 1"#,
        r#"echo '{"verdict": "completed"}'"#,
        r#"echo '{"verdict": "not_executed"} {"verdict": "not_executed"}'"#,
        "echo maybe",
        "kill -9 $$",
        "",
    ] {
        let world = World::new();
        lose(&world, &Call::charge(1).seq(1));
        let policy = policy(&world, says, "");
        let mut proxy = start(&world, &policy);
        let answer = proxy.call(&Call::charge(2).seq(1));
        assert_refused(&answer, "in_doubt", "unknown");
        proxy.stop();
        assert_eq!(world.effects_of("charge"), 1, "{says}");
        assert_eq!(world.entry(1)["in_doubt"], true);
        let events = events(&world);
        assert!(events.contains("still unknown"), "{says}: {events}");
    }
}

#[test]
fn a_command_that_takes_too_long_is_killed_and_other_traffic_passes_meanwhile() {
    let world = World::new();
    lose(&world, &Call::charge(1).seq(1));
    let says = "sleep 60; echo '{\"verdict\": \"not_executed\"}'";
    let policy = policy(&world, says, "").replace("5s", "1s");
    let mut proxy = start(&world, &policy);
    proxy.send_call(&Call::charge(2).seq(1));
    proxy.assert_ping();
    assert_done(&proxy.call(&Call::new(3, "refund", json!({}))));
    assert_refused(&proxy.recv_id(2), "in_doubt", "unknown");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn calls_of_one_entry_wait_for_one_answer() {
    let world = World::new();
    lose(&world, &Call::charge(1).seq(1));
    let policy = policy(&world, &format!("sleep 0.3; {COMPLETED}"), "");
    let mut proxy = start(&world, &policy);
    let lines: Vec<_> = (2..6).map(|id| Call::charge(id).seq(1).line()).collect();
    proxy.send(lines.join("\n"));
    for id in 2..6 {
        let answer = proxy.recv_id(id);
        assert_eq!(answer["result"]["content"][0]["text"], "sent as 4711");
    }
    proxy.stop();
    assert_eq!(asked(&world).len(), 1);
}

#[test]
fn a_proxy_that_has_its_word_spins_no_core() {
    let world = World::new();
    lose(&world, &Call::charge(1).seq(1));
    let policy = policy(&world, COMPLETED, "");
    let mut proxy = start(&world, &policy);
    // So many that the journal is quick enough to be asked without its thread.
    for id in 10..30 {
        assert_done(&proxy.call(&Call::new(id, "refund", json!({"n": id}))));
    }
    let answer = proxy.call(&Call::charge(2).seq(1));
    assert_eq!(answer["result"]["content"][0]["text"], "sent as 4711");
    let before = cpu_ticks(proxy.pid());
    assert_eq!(proxy.recv_id_within(2, Duration::from_millis(700)), None);
    let ticks = cpu_ticks(proxy.pid()) - before;
    assert!(ticks < 15, "{ticks} ticks while nothing is asked");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

fn auto(world: &World, policy: &str, words: &[&str]) -> (i32, String) {
    let file = world.policy_file(policy).display().to_string();
    let words = [&["resolve", "--auto", "--policy", &file][..], words].concat();
    let output = world.operator(&words);
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
fn the_operator_may_have_the_command_asked() {
    let world = World::new();
    lose(&world, &Call::charge(1).seq(1));
    lose(&world, &Call::new(2, "refund", json!({})).seq(2));
    let policy = policy(&world, COMPLETED, "");
    let (code, text) = auto(&world, &policy, &["1", "--dry-run"]);
    assert_eq!((code, asked(&world).len()), (0, 0), "{text}");
    assert_eq!(world.status(1), "PENDING");
    let (code, text) = auto(&world, &policy, &["1", "2"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("names nobody"), "{text}");
    assert_eq!(world.status(1), "COMPLETED", "{text}");
    assert_eq!(world.status(2), "PENDING");
    assert_eq!(asked(&world).len(), 1);
    // Of what is settled nobody is asked.
    let (code, text) = auto(&world, &policy, &["1"]);
    assert_eq!((code, asked(&world).len()), (1, 1), "{text}");
    let mut proxy = world.proxy().start();
    let answer = proxy.call(&Call::charge(3).seq(1));
    assert_eq!(answer["result"]["content"][0]["text"], "sent as 4711");
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
    assert!(world.operator(&["verify"]).status.success());
    // Without a policy there is nobody to ask.
    assert_eq!(
        world.operator(&["resolve", "--auto", "2"]).status.code(),
        Some(2)
    );
}

/// What was done before the journal was lost is told, in each form, and how far it came.
#[test]
fn what_stops_the_rest_does_not_hide_what_was_done() {
    for form in [&[][..], &["--json"], &["--jsonl"]] {
        let world = World::new();
        for seq in 1..=3 {
            lose(&world, &Call::charge(seq).seq(seq));
        }
        let journal = world.journal().display().to_string();
        let marker = world.path("marker").display().to_string();
        let says = format!("[ -e {marker} ] && mv {journal} {journal}.away; touch {marker}\n");
        let policy = policy(&world, &(says + COMPLETED), "");
        let (code, text) = auto(&world, &policy, &[&["1", "2", "3"][..], form].concat());
        assert_eq!(code, 5, "{text}");
        for words in ["PENDING", "COMPLETED", "stopped after 1 of 3 entries"] {
            assert!(text.contains(words), "no {words:?}: {text}");
        }
        std::fs::rename(world.path("state/run.db.away"), world.journal()).unwrap();
        let statuses = [1, 2, 3].map(|seq| world.status(seq));
        assert_eq!(statuses, ["COMPLETED", "PENDING", "PENDING"]);
    }
}

#[test]
fn an_unclear_word_leaves_the_doubt_to_the_operator() {
    let world = World::new();
    lose(&world, &Call::charge(1).seq(1));
    let policy = policy(&world, "echo maybe", "");
    let (code, text) = auto(&world, &policy, &["1"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("stays in doubt"), "{text}");
    assert!(text.contains("1 entry: 1 still in doubt"), "{text}");
    let (code, text) = auto(&world, &policy, &["1", "--json"]);
    assert_eq!(code, 0, "{text}");
    let reports: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(reports["entries"][0]["outcome"], "unclear", "{reports}");
    let counts = json!({"done": 0, "would": 0, "unclear": 1, "refused": 0});
    assert_eq!(reports["counts"], counts);
    assert_eq!(world.entry(1)["in_doubt"], true);
    assert!(events(&world).contains("maybe"));
}

/// A dead proxy's upstream may still do it: nobody can say that it did not.
#[test]
fn nobody_is_asked_while_the_recorded_upstream_lives() {
    let world = World::new();
    let deaf = ["--on-eof", "ignore", "--ignore-sigterm", "--grandchild"];
    let mut proxy = world.proxy().upstream(&deaf).start();
    let script = json!({"hold_before": "h"});
    proxy.send_call(&Call::charge(1).seq(1).script(script));
    let upstream = world.wait_held("h");
    // Stopped, it can't be ended by the guardian's signals but the last one.
    proxy.kill9();
    let policy = policy(&world, NOT_EXECUTED, "");
    let mut proxy = start(&world, &policy);
    let answer = proxy.call(&Call::charge(2).seq(1));
    let was_gone = !crate::world::is_alive(upstream);
    let is_doubted = answer["error"]["data"]["kind"].is_string();
    // Either it was gone by then and the verdict counts, or nobody was asked.
    assert!(is_doubted || was_gone, "{answer}");
    world.wait_gone(upstream, DEADLINE);
    if is_doubted {
        assert_eq!(asked(&world).len(), 0);
        assert_eq!(world.effects_of("charge"), 0);
    }
    proxy.stop();
}

#[test]
fn a_timed_out_call_of_a_living_session_is_not_asked_about() {
    let world = World::new();
    let policy = policy(&world, NOT_EXECUTED, "timeout = \"200ms\"\n");
    let mut proxy = start(&world, &policy);
    let script = json!({"hold_after": "h"});
    proxy.send_call(&Call::charge(1).seq(1).script(script));
    world.wait_held("h");
    assert_refused(&proxy.recv_id(1), "outcome_unknown", "unknown");
    proxy.send_call(&Call::charge(2).seq(1));
    proxy.await_decided();
    world.release("h");
    assert_done(&proxy.recv_id(2));
    proxy.stop();
    assert_eq!(asked(&world).len(), 0);
    assert_eq!(world.effects_of("charge"), 1);
}

/// A command that keeps what it was asked, says that it has begun, and waits to be let go.
struct Slow {
    begun: std::path::PathBuf,
    go: std::path::PathBuf,
    says: String,
}

impl Slow {
    fn new(world: &World, says: &str) -> Slow {
        let (begun, go) = (world.path("begun"), world.path("go"));
        for pipe in [&begun, &go] {
            nix::unistd::mkfifo(pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
        // Only the first one waits.
        let says = format!(
            "if mkdir {}; then echo > {}; cat {} > /dev/null; fi 2> /dev/null\n{says}",
            world.path("first").display(),
            begun.display(),
            go.display()
        );
        Slow { begun, go, says }
    }

    /// Waits until the first one has begun.
    fn wait_begun(&self) {
        std::fs::read(&self.begun).unwrap();
    }

    fn let_go(&self) {
        std::fs::write(&self.go, "").unwrap();
    }
}

/// Two proxies that meet one doubt: whoever is asked is asked once, and both have the word.
#[test]
fn a_doubt_that_two_proxies_meet_is_asked_about_once() {
    let unknown = r#"echo '{"verdict": "unknown"}'"#;
    for (says, is_clear) in [(COMPLETED, true), (unknown, false)] {
        let world = World::new();
        lose(&world, &Call::charge(1).seq(1));
        let slow = Slow::new(&world, says);
        let policy = policy(&world, &slow.says, "").replace("5s", "60s");
        let mut proxies = [start(&world, &policy), start(&world, &policy)];
        proxies[0].send_call(&Call::charge(2).seq(1));
        slow.wait_begun();
        proxies[1].send_call(&Call::charge(2).seq(1));
        proxies[1].await_decided();
        let early = proxies[1].recv_id_within(2, Duration::from_millis(700));
        assert_eq!((early, asked(&world).len()), (None, 1));
        slow.let_go();
        for proxy in &mut proxies {
            let answer = proxy.recv_id(2);
            if is_clear {
                assert_eq!(answer["result"]["content"][0]["text"], "sent as 4711");
            } else {
                assert_refused(&answer, "in_doubt", "unknown");
            }
        }
        assert_eq!(asked(&world).len(), 1, "{says}");
        // Who asks later is told what is known then.
        let again = proxies[1].call(&Call::charge(3).seq(1));
        assert_eq!(again["result"].is_object(), is_clear, "{again}");
        assert_eq!(asked(&world).len(), if is_clear { 1 } else { 2 });
        proxies.into_iter().for_each(Proxy::stop);
        assert_eq!(world.effects_of("charge"), 1);
        assert!(world.operator(&["verify"]).status.success());
    }
}

/// The other one's word does not come: its proxy is killed, or it is stopped for longer than the
/// policy waits. Then the second one asks, and what the first one says later changes nothing.
#[test]
fn who_waits_for_anothers_word_asks_where_none_comes() {
    for is_killed in [true, false] {
        let world = World::new();
        lose(&world, &Call::charge(1).seq(1));
        let slow = Slow::new(&world, COMPLETED);
        let limit = if is_killed { "60s" } else { "3s" };
        let policy = policy(&world, &slow.says, "").replace("5s", limit);
        let mut first = start(&world, &policy);
        let mut second = start(&world, &policy);
        first.send_call(&Call::charge(2).seq(1));
        slow.wait_begun();
        if !is_killed {
            first.stall(&world);
        }
        second.send_call(&Call::charge(2).seq(1));
        second.await_decided();
        if is_killed {
            first.kill9();
        }
        let answer = second.recv_id(2);
        assert_eq!(answer["result"]["content"][0]["text"], "sent as 4711");
        assert_eq!(asked(&world).len(), 2);
        slow.let_go();
        if !is_killed {
            first.signal(Signal::SIGCONT);
            assert_eq!(first.recv_id(2)["result"], answer["result"]);
            first.stop();
        }
        second.stop();
        assert_eq!(world.effects_of("charge"), 1);
        let resolved = events(&world).matches("\"kind\":\"resolved\"").count();
        assert_eq!(resolved, 1, "{}", events(&world));
        assert!(world.operator(&["verify"]).status.success());
    }
}

#[test]
fn a_client_that_goes_away_meanwhile_does_not_hold_the_end_up() {
    let world = World::new();
    lose(&world, &Call::charge(1).seq(1));
    let policy = policy(&world, "sleep 20", "").replace("5s", "30s");
    let mut proxy = start(&world, &policy);
    proxy.send_call(&Call::charge(2).seq(1));
    proxy.await_decided();
    proxy.drop_client();
    proxy.wait();
    assert_eq!(world.effects_of("charge"), 1);
    assert_eq!(world.entry(1)["in_doubt"], true);
}
