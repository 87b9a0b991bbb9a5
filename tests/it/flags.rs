//! The command line: what is refused before anything starts, and whose identity is shown.

use std::process::Output;

use serde_json::{Value, json};

use crate::call::{Call, assert_done, member_bytes, result_bytes};
use crate::world::{World, checkpoint};

/// Usage errors have a code of their own.
const USAGE: i32 = 2;

fn assert_usage_error(world: &World, output: &Output, named: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(USAGE), "{named}: {stderr}");
    assert!(stderr.contains(named), "{named} is not named in: {stderr}");
    assert!(output.stdout.is_empty(), "{named}: {output:?}");
    assert!(
        !world.is_upstream_seen(),
        "{named}: the upstream was started"
    );
    assert!(!world.journal().exists(), "{named}: a journal was made");
}

#[test]
fn a_bad_value_is_refused_with_the_flag_named() {
    let long = "x".repeat(513);
    for (flag, value) in [
        ("--drain-timeout", "soon"),
        ("--drain-timeout", "-1s"),
        ("--call-timeout", "10"),
        ("--call-timeout", ""),
        ("--max-message-bytes", "10 elephants"),
        ("--max-message-bytes", "0"),
        ("--max-message-bytes", "99999999999GiB"),
        ("--on-divergence", "maybe"),
        ("--durability", "none"),
        ("--refusals", "yes"),
        ("--on-in-doubt", "stop"),
        ("--log", "loud"),
        ("--log-format", "xml"),
        ("--workflow-id", ""),
        ("--workflow-id", &long),
        ("--no-such-flag", "x"),
    ] {
        let world = World::new();
        let output = world.proxy().flags([flag, value]).run(b"");
        assert_usage_error(&world, &output, flag);
    }
}

#[test]
fn the_upstream_is_named_in_exactly_one_way() {
    let world = World::new();
    let both = world.proxy().flags(["--upstream-cmd", "true"]).run(b"");
    assert_usage_error(&world, &both, "--upstream-cmd");
    let mut none = world.command(checkpoint());
    let none = none.arg("--journal").arg(world.journal()).output().unwrap();
    assert_usage_error(&world, &none, "--upstream-cmd");
}

#[test]
fn a_flag_that_needs_a_journal_is_refused_without_one() {
    for flags in [
        vec!["--resume"],
        vec!["--redact-args-in-journal"],
        vec!["--max-calls", "3"],
        vec!["--supersede"],
        vec!["--on-divergence", "fork"],
        vec!["--durability", "deferred"],
    ] {
        let world = World::new();
        let named = flags[0];
        let output = world.proxy().without_journal().flags(flags).run(b"");
        assert_usage_error(&world, &output, named);
    }
}

/// A flag that does nothing would be a promise that is not kept.
#[test]
fn a_journal_that_is_no_file_is_refused() {
    for name in [":memory:", "file:run.db", "file:run.db?mode=memory"] {
        let world = World::new();
        let output = world.proxy().journal(name).run(b"");
        let code = output.status.code();
        assert!([Some(USAGE), Some(5)].contains(&code), "{output:?}");
        assert!(!world.is_upstream_seen(), "{name}");
        assert_eq!(files_in(&world), ["bench"], "{name}");
    }
}

fn files_in(world: &World) -> Vec<String> {
    std::fs::read_dir(world.folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn the_version_is_told_also_beside_other_flags() {
    let world = World::new();
    for flags in [
        vec!["--version"],
        vec!["--name", "x", "--version"],
        vec!["--journal", "run.db", "--version"],
        vec!["--version", "--keep-identity"],
    ] {
        let mut command = world.command(checkpoint());
        let output = command.args(&flags).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{flags:?}: {output:?}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(stdout.contains(env!("CARGO_PKG_VERSION")), "{stdout}");
        assert_eq!(stdout.lines().count(), 1, "{stdout}");
    }
    assert!(!world.is_upstream_seen());
    assert_eq!(files_in(&world), ["bench"]);
}

#[test]
fn a_version_that_is_a_commands_name_is_refused() {
    for name in ["ls", "show", "resolve", "verify", "gc", "doctor"] {
        let world = World::new();
        let output = world.proxy().flags(["--version", name]).run(b"");
        assert_usage_error(&world, &output, "--version");
    }
}

/// The answer to `initialize` as the client saw it, and as the upstream sent it.
fn identities(flags: &[&str]) -> (String, String) {
    let world = World::new();
    let mut proxy = world.proxy().flags(flags).start();
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}});
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    proxy.send(request);
    let seen = String::from_utf8(proxy.recv_line()).unwrap();
    let sent = String::from_utf8(world.sent_lines().concat()).unwrap();
    proxy.stop();
    (seen, sent)
}

#[test]
fn only_name_and_version_of_the_identity_change() {
    let own = env!("CARGO_PKG_VERSION");
    for (flags, name, version) in [
        (vec![], "checkpoint", own),
        (vec!["--name", "bank \"A\""], "bank \"A\"", own),
        (vec!["--version", "4.5"], "checkpoint", "4.5"),
        (vec!["--name", "n", "--version", "v"], "n", "v"),
    ] {
        let (seen, sent) = identities(&flags);
        let expected = sent
            .replace(
                r#""name":"scripted-upstream""#,
                &format!(r#""name":{}"#, json!(name)),
            )
            .replace(r#""version":"9.9.9""#, &format!(r#""version":"{version}""#));
        assert_ne!(expected, sent);
        assert_eq!(seen, expected, "{flags:?}");
    }
    let (seen, sent) = identities(&["--keep-identity"]);
    assert_eq!(seen, sent);
}

#[test]
fn the_stateless_revisions_identity_changes_in_discover_alone() {
    let world = World::new();
    let mut proxy = world
        .proxy()
        .flags(["--name", "n", "--version", "v"])
        .start();
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    let answer = proxy.request(1, "server/discover", json!({"_meta": meta}));
    let identity = &answer["result"]["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(identity["name"], "n");
    assert_eq!(identity["version"], "v");
    assert_eq!(identity["title"], "The scripted upstream");
    assert_eq!(identity["extra"], json!({"kept": 1.0}));
    // Any other answer is not ours to touch, whatever it looks like.
    let look = json!({"serverInfo": {"name": "scripted-upstream", "version": "9.9.9"}});
    let answer = proxy.request(2, "x/echo", look.clone());
    assert_eq!(answer["result"], look);
    proxy.stop();
}

#[test]
fn the_environment_says_what_the_flags_say_and_the_flags_win() {
    let world = World::new();
    let mut command = world.command(checkpoint());
    let input = Call::charge(1).seq(1).line() + "\n";
    std::fs::write(world.path("input"), input).unwrap();
    let output = command
        .env("CHECKPOINT_UPSTREAM_CMD", crate::world::UPSTREAM)
        .env("CHECKPOINT_JOURNAL", world.journal())
        .env("CHECKPOINT_WORKFLOW_ID", "from-env")
        .stdin(std::fs::File::open(world.path("input")).unwrap())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(world.entry(1)["workflow_id"], "from-env");
    let setup = world.proxy().env("CHECKPOINT_WORKFLOW_ID", "from-env");
    let mut proxy = setup.flags(["--workflow-id", "from-flag"]).start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

/// Case C58, S7: a shell command is a shell's, an argument vector is exact.
#[test]
fn a_shell_command_is_run_by_a_shell_and_words_are_exact() {
    let world = World::new();
    let setup = world.proxy().env("MARK", "a b");
    let command = "test \"$MARK\" = 'a b' && printf '%s' \"it's\" >&2 && exec \"$UPSTREAM\"";
    let mut proxy = setup.shell(command).start();
    assert_done(&proxy.call(&Call::charge(1)));
    proxy.stop_and_read(|stderr| assert!(stderr.contains("it's"), "{stderr}"));

    let program = world.path("a b");
    std::os::unix::fs::symlink(crate::world::UPSTREAM, &program).unwrap();
    let mut words = vec![program.into_os_string()];
    words.extend(["--script", r#"{"result":"{\"$HOME\":\"*\"}"}"#].map(Into::into));
    let mut proxy = world.proxy().program(words).start();
    let line = proxy.call_line(&Call::charge(2));
    assert_eq!(result_bytes(&line), r#"{"$HOME":"*"}"#);
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 2);
}

#[test]
fn without_a_journal_it_is_a_relay_and_says_so_once() {
    let world = World::new();
    let mut proxy = world.proxy().without_journal().start();
    for id in 1..=3 {
        let line = proxy.call_line(&Call::charge(id));
        assert_eq!(member_bytes(&line, "id"), id.to_string());
    }
    proxy.stop_and_read(|stderr| {
        let said = stderr.to_lowercase();
        let lines: Vec<&str> = said
            .lines()
            .filter(|line| line.contains("journal"))
            .collect();
        assert_eq!(lines.len(), 1, "{stderr}");
    });
    assert_eq!(world.effects_of("charge"), 3);
    assert_eq!(files_with(&world, "run.db"), 0);
}

#[test]
fn without_a_journal_each_call_with_a_seq_is_warned_of() {
    let world = World::new();
    let mut proxy = world.proxy().without_journal().start();
    for id in 1..=3 {
        assert_done(&proxy.call(&Call::charge(id).seq(1)));
    }
    proxy.stop_and_read(|stderr| {
        let lines = stderr
            .lines()
            .filter(|line| line.contains("checkpoint_seq"));
        assert_eq!(lines.count(), 3, "{stderr}");
    });
    assert_eq!(world.effects_of("charge"), 3);
}

fn files_with(world: &World, part: &str) -> usize {
    files_in(world)
        .iter()
        .filter(|name| name.contains(part))
        .count()
}

/// Case C83: what stands on the command line stays there.
#[test]
fn secrets_of_the_command_line_are_not_logged() {
    for level in ["warn", "trace"] {
        let world = World::new();
        let setup = world.proxy().flags(["--log", level]);
        let setup = setup.env("TOKEN", "S3CR3T-env");
        let command = r#"exec "$UPSTREAM" --annotations '{"S3CR3T-arg":null}'"#;
        let mut proxy = setup.shell(command).start();
        let arguments = json!({"password": "S3CR3T-argument"});
        let script = json!({"result": r#"{"content":[],"s":"S3CR3T-result"}"#});
        proxy.call(&Call::new(1, "charge", arguments).script(script));
        proxy.stop_and_read(|stderr| {
            assert!(!stderr.contains("S3CR3T"), "{level}: {stderr}");
        });
        assert_eq!(world.effects_of("charge"), 1);
    }
}

#[test]
fn a_run_in_doubt_ends_with_its_code_where_it_is_told_to() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.call(
        &Call::charge(1)
            .seq(1)
            .script(json!({"die": "after_effect"})),
    );
    assert_eq!(proxy.wait_code(), 69);
    let mut proxy = world.proxy().flags(["--on-in-doubt", "exit"]).start();
    proxy.send_call(&Call::new(1, "refund", json!({})).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let answer: Value = proxy.call(&Call::charge(2).seq(1));
    assert_eq!(answer["error"]["code"], 7702);
    world.release("h");
    assert_done(&proxy.recv_id(1));
    assert_eq!(proxy.wait_code(), 3);
    assert_eq!(world.effects_of("refund"), 1);
    assert_eq!(world.effects_of("charge"), 1);
}
