//! The ends: of the upstream, of the client, of the proxy; what is answered, what is left.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, refusal};
use crate::proxy::Proxy;
use crate::world::{DEADLINE, World, contains, cpu_ticks, is_alive};

/// What may pass until the group of a killed proxy is gone, with a margin for a loaded machine.
pub(crate) const AFTER_KILL: Duration = Duration::from_secs(6);

/// Starts a call that has had its effect and waits for its answer; returns the upstream's id.
pub(crate) fn hold_call(world: &World, proxy: &mut Proxy) -> i32 {
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h")
}

#[test]
fn the_tail_of_its_stderr_goes_to_ours_and_to_no_model() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--refusals", "result"]).start();
    let script = json!({"stderr_flood": 64, "die": "after_effect"});
    let answer = proxy.call(&Call::charge(1).script(script));
    assert!(!answer.to_string().contains("xye"), "{answer}");
    assert_eq!(proxy.wait_code(), 69);
    let stderr = proxy.stderr_to_end();
    assert!(stderr.contains(" xye"), "{stderr}");
    assert!(world.show_json(1).to_string().contains(" xye"));
}

/// A doubt leaves a line in the log, whether or not anybody was told of it.
#[test]
fn a_call_without_an_outcome_is_named_in_the_log() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--call-timeout", "100ms"]).start();
    let hold = json!({"hold_after": "h"});
    let answer = proxy.call(&Call::charge(1).seq(1).script(hold.clone()));
    assert_refused(&answer, "outcome_unknown", "unknown");
    proxy.kill9();
    assert!(
        proxy
            .stderr_to_end()
            .contains("outcome_unknown seq=1 letter=@A: timeout")
    );
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(2).seq(2).script(hold));
    proxy.send_call(
        &Call::charge(3)
            .seq(3)
            .script(json!({"die": "after_effect"})),
    );
    proxy.wait_code();
    let said = proxy.stderr_to_end();
    for seq in 2..=3 {
        let line = format!("outcome_unknown seq={seq} letter=@A: upstream_exited");
        assert!(said.contains(&line), "{said}");
    }
}

#[test]
fn the_code_tells_a_clean_end_from_a_death() {
    for (code, expected) in [(0, 0), (3, 69)] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        assert_done(&proxy.call(&Call::charge(1)));
        let params = json!({"code": code});
        proxy.send(json!({"jsonrpc": "2.0", "method": "x/exit", "params": params}));
        assert_eq!(proxy.wait_code(), expected);
        assert_eq!(proxy.next_line(), None);
        assert_eq!(world.effects_of("charge"), 1);
    }
}

#[test]
fn a_clean_exit_with_a_call_in_flight_is_no_clean_end() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let script = json!({"die": "after_effect", "exit_code": 0});
    let answer = proxy.call(&Call::charge(1).seq(1).script(script));
    assert_refused(&answer, "outcome_unknown", "unknown");
    assert_eq!(proxy.wait_code(), 69);
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn what_an_upstream_wrote_before_it_died_is_delivered() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let notice = r#"{"jsonrpc":"2.0","method":"x/last-words"}"#;
    let script = json!({"lines": [notice], "die": "after_answer"});
    proxy.send_call(&Call::charge(1).seq(1).script(script));
    assert_eq!(proxy.recv()["method"], "x/last-words");
    assert_done(&proxy.recv());
    assert_eq!(proxy.wait_code(), 69);
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn half_a_line_is_never_forwarded() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"die": "mid_line"})));
    let line = proxy.recv_line();
    let answer: Value = serde_json::from_slice(&line).unwrap();
    assert_refused(&answer, "outcome_unknown", "unknown");
    assert_eq!(proxy.next_line(), None);
    assert_eq!(proxy.wait_code(), 69);
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn an_upstream_that_closes_its_stdout_leaves_nobody_waiting() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let script = json!({"close_stdout": true});
    proxy.send_call(&Call::charge(1).seq(1).script(script));
    assert_refused(&proxy.recv_id(1), "outcome_unknown", "unknown");
    proxy.close_stdin();
    proxy.wait();
    assert_eq!(world.status(1), "PENDING");
    assert!(world.effects_of("charge") <= 1);
}

/// Case C42.
#[test]
fn a_command_that_cannot_be_started_is_answered_for() {
    let missing = "/nonexistent/upstream";
    for is_shell in [false, true] {
        let world = World::new();
        let setup = world.proxy();
        let mut proxy = if is_shell {
            setup.shell(missing).start()
        } else {
            setup.program([missing]).start()
        };
        proxy.send(json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
        let answer = proxy.recv_id(1);
        assert!(answer["error"]["code"].is_i64(), "{answer}");
        assert_eq!(proxy.wait_code(), 69);
        let stderr = proxy.stderr_to_end();
        assert!(stderr.contains("upstream"), "{stderr}");
    }
}

#[test]
fn a_call_to_a_command_that_cannot_be_started_was_not_started() {
    let world = World::new();
    let mut proxy = world.proxy().program(["/nonexistent/upstream"]).start();
    proxy.send_call(&Call::charge(1).seq(1));
    let answer = proxy.recv_id(1);
    assert_refused(&answer, "upstream_unavailable", "not_started");
    assert_eq!(answer["error"]["code"], 7708);
    assert_eq!(proxy.wait_code(), 69);
    // So the seq is free.
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn an_upstream_that_exits_at_once_is_answered_for() {
    let world = World::new();
    let mut proxy = world.proxy().upstream(&["--exit-at-start", "1"]).start();
    proxy.send_call(&Call::charge(1).seq(1));
    let answer = proxy.recv_id(1);
    // The pipe may or may not have taken the call before the end.
    let kind = refusal(&answer)["kind"].as_str().unwrap();
    assert!(
        ["upstream_unavailable", "outcome_unknown"].contains(&kind),
        "{answer}"
    );
    assert_eq!(proxy.wait_code(), 69);
    assert_eq!(world.effects().len(), 0);
}

/// Case C36, and the reason for it: this upstream fails running calls once its input closes.
#[test]
fn the_end_of_input_lets_calls_in_flight_finish() {
    let world = World::new();
    let mut proxy = world.proxy().upstream(&["--on-eof", "error"]).start();
    hold_call(&world, &mut proxy);
    proxy.close_stdin();
    world.release("h");
    assert_done(&proxy.recv_id(1));
    assert_eq!(proxy.wait_code(), 0);
    assert_eq!(world.status(1), "COMPLETED");
    assert!(world.entry(1)["delivered_at"].is_string());
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn all_that_was_asked_before_the_end_of_input_is_answered() {
    let world = World::new();
    let setup = world.proxy().upstream(&["--on-eof", "abort"]);
    let input: String = (1..=20).map(|id| Call::charge(id).line() + "\n").collect();
    let output = setup.run(input.as_bytes());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let answers = output.stdout.split(|byte| *byte == b'\n');
    assert_eq!(answers.filter(|line| !line.is_empty()).count(), 20);
    assert_eq!(world.effects_of("charge"), 20);
    let entries = world.entries();
    assert!(entries.iter().all(|entry| entry["status"] == "COMPLETED"));
}

#[test]
fn the_drain_has_its_limit_and_what_did_not_finish_is_in_doubt() {
    for option in ["finish", "error", "ignore"] {
        let world = World::new();
        let proxy = world.proxy().flags(["--drain-timeout", "200ms"]);
        let mut proxy = proxy.upstream(&["--on-eof", option]).start();
        let upstream = hold_call(&world, &mut proxy);
        proxy.close_stdin();
        proxy.wait();
        assert!(!is_alive(upstream), "{option}");
        let entry = world.entry(1);
        assert_eq!(entry["status"], "PENDING", "{option}: {entry}");
        assert_eq!(entry["in_doubt"], true, "{option}: {entry}");
        assert_eq!(world.effects_of("charge"), 1);
    }
}

#[test]
fn an_upstream_deaf_to_the_end_of_input_and_to_sigterm_is_ended() {
    let world = World::new();
    let options = ["--on-eof", "ignore", "--ignore-sigterm", "--grandchild"];
    let mut proxy = world.proxy().upstream(&options).start();
    assert_done(&proxy.call(&Call::charge(1)));
    let (upstream, grandchild) = (world.pid_of("upstream", 1), world.pid_of("grandchild", 1));
    proxy.close_stdin();
    assert_eq!(proxy.wait_code(), 0);
    for pid in [upstream, grandchild] {
        world.wait_gone(pid, AFTER_KILL);
    }
}

#[test]
fn a_signal_still_lets_a_quick_answer_through() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    hold_call(&world, &mut proxy);
    proxy.signal(Signal::SIGTERM);
    world.release("h");
    assert_done(&proxy.recv_id(1));
    proxy.wait();
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.effects_of("charge"), 1);
}

/// Cases C43 and C44: nothing of the group outlives a killed proxy, however deaf it is.
#[test]
fn nothing_outlives_a_killed_proxy() {
    let deaf = "--on-eof ignore --ignore-sigterm --grandchild";
    for command in [
        format!("exec \"$UPSTREAM\" {deaf}"),
        format!("\"$UPSTREAM\" {deaf}"),
        format!("sh -c '\"$UPSTREAM\" {deaf}; true' & wait"),
    ] {
        let world = World::new();
        // A background job's input is /dev/null unless the shell is told otherwise.
        let command = match command.strip_prefix("sh -c ") {
            Some(rest) => format!(
                "exec 3<&0; sh -c {}",
                rest.replace("true' &", "true' <&3 &")
            ),
            None => command,
        };
        let mut proxy = world.proxy().shell(&command).start();
        let grandchild = world.pid_of("grandchild", 1);
        let upstream = hold_call(&world, &mut proxy);
        proxy.kill9();
        for pid in [upstream, grandchild] {
            world.wait_gone(pid, AFTER_KILL);
        }
        assert_eq!(world.effects_of("charge"), 1);
    }
}

#[test]
fn an_upstream_sees_the_end_of_input_when_the_proxy_is_killed() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1)));
    let upstream = world.pid_of("upstream", 1);
    proxy.kill9();
    // This one heeds the end of input, so no guardian's patience is needed.
    world.wait_gone(upstream, AFTER_KILL);
}

#[test]
fn the_upstream_inherits_none_of_our_files() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1)));
    let mut restarted = world.proxy().start();
    assert_done(&restarted.call(&Call::charge(2)));
    let state = world.journal().parent().unwrap().to_owned();
    for number in 1..=2 {
        let upstream = world.pid_of("upstream", number);
        for fd in std::fs::read_dir(format!("/proc/{upstream}/fd")).unwrap() {
            let target = std::fs::read_link(fd.unwrap().path()).unwrap_or_default();
            assert!(!target.starts_with(&state), "{}", target.display());
        }
    }
    proxy.stop();
    restarted.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn the_upstream_runs_in_a_group_of_its_own() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.assert_ping();
    let upstream = world.pid_of("upstream", 1);
    let group = |pid: i32| nix::unistd::getpgid(Some(Pid::from_raw(pid))).unwrap();
    assert_ne!(group(upstream), group(proxy.pid()));
    proxy.stop();
}

#[test]
fn a_broken_output_is_the_clients_end() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    hold_call(&world, &mut proxy);
    // Its input stays open; only writing to it can tell that nobody reads.
    proxy.drop_output();
    world.release("h");
    proxy.wait_within(DEADLINE);
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.entry(1)["delivered_at"], Value::Null);
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_client_that_is_gone_ends_an_idle_proxy() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1)));
    proxy.drop_client();
    assert_eq!(proxy.wait_code(), 0);
    assert_eq!(world.effects_of("charge"), 1);
}

/// Case C61: no lock and no delay is left behind.
#[test]
fn many_short_sessions_follow_each_other() {
    let world = World::new();
    for session in 1..=20u64 {
        let mut proxy = world.proxy().start();
        proxy.initialize();
        assert_done(&proxy.call(&Call::charge(session).seq(session)));
        proxy.stop();
    }
    assert_eq!(world.effects_of("charge"), 20);
    assert_eq!(world.entries().len(), 20);
}

/// How many sessions and entries a journal holds; a journal that is not there holds none.
fn rows_in(world: &World) -> i64 {
    if !world.journal().exists() {
        return 0;
    }
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    let sql = "SELECT (SELECT count(*) FROM sessions) + (SELECT count(*) FROM entries)";
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// A sibling that is started only to probe, and killed at once, leaves no trace.
#[test]
fn a_probe_that_is_killed_at_once_leaves_no_trace() {
    let world = World::new();
    for _ in 0..5 {
        let mut probe = world.proxy().start();
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
        let answer = probe.request(1, "server/discover", json!({"_meta": meta}));
        assert!(answer["result"].is_object(), "{answer}");
        probe.signal(Signal::SIGTERM);
        let mut proxy = world.proxy().start();
        proxy.initialize();
        probe.wait();
        proxy.stop();
    }
    assert_eq!(rows_in(&world), 0);
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1)));
    proxy.stop();
    assert_eq!(world.entries().len(), 1);
    assert!(!contains(&world.upstream_lines().concat(), b"checkpoint"));
}

#[test]
fn a_drain_spins_no_core() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    hold_call(&world, &mut proxy);
    proxy.close_stdin();
    let limit = Duration::from_millis(700);
    let before = cpu_ticks(proxy.pid());
    assert_eq!(proxy.recv_id_within(1, limit), None);
    let ticks = cpu_ticks(proxy.pid()) - before;
    assert!(ticks < 15, "{ticks} ticks at the end of input");
    world.release("h");
    assert_done(&proxy.recv_id(1));
    assert_eq!(proxy.wait_code(), 0);
    assert_eq!(world.effects_of("charge"), 1);
}

/// Case C42, the handshake's side of it.
#[test]
fn an_upstream_that_dies_before_the_handshake_is_answered_for() {
    for command in [
        "exit 3",
        r#"read -r line; printf '{"jsonrpc":"2.0","id":1,'; exit 3"#,
    ] {
        let world = World::new();
        let mut proxy = world.proxy().shell(command).start();
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
        let answer = proxy.request(1, "initialize", params);
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("status 3"), "{message}");
        assert_eq!(proxy.wait_code(), 69);
        assert_eq!(proxy.next_line(), None, "half a line was forwarded");
    }
}

/// Forwarded means that the pipe took a byte of it; what waited behind was never started.
#[test]
fn a_call_of_which_no_byte_was_taken_was_not_started() {
    let world = World::new();
    let mut proxy = world.proxy().upstream(&["--read-nothing"]).start();
    let upstream = world.pid_of("upstream", 1);
    let padding = "p".repeat(1 << 20);
    proxy.send_call(&Call::new(1, "charge", json!({"padding": padding})).seq(1));
    proxy.send_call(&Call::new(2, "refund", json!({})).seq(2));
    while !world.journal().exists() || world.entries().len() < 2 {
        std::thread::yield_now();
    }
    kill(Pid::from_raw(upstream), Signal::SIGKILL).unwrap();
    assert_refused(&proxy.recv_id(1), "outcome_unknown", "unknown");
    assert_refused(&proxy.recv_id(2), "upstream_unavailable", "not_started");
    assert_eq!(proxy.wait_code(), 69);
    assert_eq!(world.status(1), "PENDING");
    assert_eq!(world.status(2), "VOIDED");
    let evidence = world.show_json(1)["evidence"].clone();
    let written = evidence["bytes_written"].as_u64().unwrap();
    assert!((1..1 << 20).contains(&written), "{evidence}");
}

#[test]
fn half_a_line_at_the_end_of_input_takes_nothing_from_a_running_call() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    hold_call(&world, &mut proxy);
    let next = Call::new(2, "refund", json!({})).line();
    proxy.send_raw(&next.as_bytes()[..next.len() - 1]);
    proxy.close_stdin();
    world.release("h");
    assert_done(&proxy.recv_id(1));
    assert_eq!(proxy.wait_code(), 0);
    assert_eq!(world.effects().len(), 1);
    assert_eq!(world.entries().len(), 1);
}

/// Contract 4: an operator must be able to see how it ended.
#[test]
fn the_evidence_of_each_end_is_kept_with_the_entry() {
    for (name, code) in [("signal 9", None), ("3", Some(3))] {
        let world = World::new();
        let mut proxy = world.proxy().start();
        let mut script = json!({"stderr_flood": 64, "die": "after_effect"});
        if let Some(code) = code {
            script["exit_code"] = json!(code);
        }
        let call = Call::charge(1).seq(1).script(script);
        assert_refused(&proxy.call(&call), "outcome_unknown", "unknown");
        let told = world.entry(1);
        assert_eq!(told["unanswered"], "upstream_exited", "{told}");
        assert_eq!(proxy.wait_code(), 69);
        let shown = world.show_json(1);
        let evidence = &shown["evidence"];
        let bytes = call.line().len() + 1;
        assert_eq!(evidence["bytes_written"], bytes, "{evidence}");
        let status = evidence["exit_status"].to_string();
        assert!(status.contains(name), "{evidence}");
        assert!(evidence["elapsed_ms"].is_u64(), "{evidence}");
        assert!(evidence["upstream_group"].as_i64() > Some(1), "{evidence}");
        assert_eq!(evidence["upstream_alive"], false, "{evidence}");
        let tail = evidence["stderr_tail"].as_str().unwrap();
        assert!(tail.contains("xye"), "{evidence}");
        assert_eq!(shown["entry"]["unanswered"], "upstream_exited", "{shown}");
    }
}

#[test]
fn a_timeout_is_kept_as_evidence_and_a_late_answer_still_settles() {
    let world = World::new();
    let mut proxy = world.proxy().flags(["--call-timeout", "150ms"]).start();
    let call = Call::charge(1).seq(1).script(json!({"hold_after": "h"}));
    let answer = proxy.call(&call);
    assert_refused(&answer, "outcome_unknown", "unknown");
    assert_eq!(refusal(&answer)["reason"], "timeout", "{answer}");
    // What a caller has been told is durable: it may ask again at once, in another session.
    let shown = world.show_json(1);
    assert_eq!(shown["entry"]["status"], "PENDING", "{shown}");
    assert_eq!(shown["entry"]["gave_up"], "timeout", "{shown}");
    assert_eq!(shown["entry"]["in_doubt"], false, "{shown}");
    assert!(
        shown["evidence"]["elapsed_ms"].as_u64() >= Some(150),
        "{shown}"
    );
    world.release("h");
    proxy.await_quiet();
    // A later call's answer proves that the late one was taken, and not forwarded.
    assert_done(&proxy.call(&Call::new(3, "refund", json!({}))));
    let entry = world.entry(1);
    assert_eq!(entry["status"], "COMPLETED", "{entry}");
    assert_eq!(entry["delivered_at"], Value::Null, "{entry}");
    proxy.close_stdin();
    assert_eq!(proxy.wait_code(), 0);
    assert_eq!(proxy.next_line(), None, "the late answer was forwarded");
    assert_eq!(world.effects_of("charge"), 1);
}

/// A call that was never read is known not to be: the evidence tells how much was.
#[test]
fn a_timeout_tells_how_much_the_upstream_can_have_read() {
    let world = World::new();
    let flags = ["--call-timeout", "150ms", "--drain-timeout", "100ms"];
    let mut proxy = world
        .proxy()
        .flags(flags)
        .upstream(&["--read-nothing"])
        .start();
    let padding = "p".repeat(1 << 20);
    let call = Call::new(1, "charge", json!({"padding": padding})).seq(1);
    assert_refused(&proxy.call(&call), "outcome_unknown", "unknown");
    let evidence = world.show_json(1)["evidence"].clone();
    let written = evidence["bytes_written"].as_u64().unwrap();
    assert!((1..1 << 20).contains(&written), "{evidence}");
    proxy.close_stdin();
    proxy.wait();
}
