//! What a command says when it can't do what was asked: what, why, and what to do.

use serde_json::json;

use crate::call::{Call, assert_done};
use crate::world::{World, run};

/// Asserts that a command ends so, and says these things: an error, and a hint after it.
#[track_caller]
fn assert_said(world: &World, code: i32, words: &[&str], what: &str, hint: &str) {
    let said = run(world, code, words);
    let (error, rest) = said.split_once("\nhint: ").unwrap_or_else(|| {
        panic!("{words:?}: no hint in {said}");
    });
    let error = error.lines().last().unwrap();
    assert!(
        error.starts_with("checkpoint: error: "),
        "{words:?}: {said}"
    );
    assert!(error.contains(what), "{words:?}: no {what:?} in {said}");
    assert!(rest.contains(hint), "{words:?}: no {hint:?} in {said}");
}

#[test]
fn what_is_given_as_json_is_told_what_it_should_be() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.send_call(
        &Call::new(2, "mail", json!({}))
            .seq(2)
            .script(json!({"hold_after": "h"})),
    );
    world.wait_held("h");
    proxy.kill9();
    let decide = ["decide", "--tool", "charge", "--args"];
    let result = ["resolve", "2", "--reason", "r", "--completed", "--result"];
    let error = ["resolve", "2", "--reason", "r", "--failed", "--error"];
    for (start, given, what, hint) in [
        (&decide[..], "{", "it is not JSON", "--args @FILE"),
        (&decide, "[1]", "it is no JSON object", "one JSON object"),
        (&decide, "\"x\"", "it is no JSON object", "one JSON object"),
        (
            &decide,
            r#"{"a":{"b":1,"b":2}}"#,
            "/a/b",
            "keep one of the two",
        ),
        (&decide, "@none", "'@none' of --args can't be read", "@-"),
        (&result, "{", "it is not JSON", r#"{"content": ["#),
        (&result, "[]", "it is no JSON object", r#"{"content": ["#),
        (
            &result,
            "@none",
            "'@none' of --result can't be read",
            "@FILE",
        ),
        (
            &result,
            r#"{"content":[],"content":[]}"#,
            "--result can't be used",
            "keep one",
        ),
        (
            &result,
            "{}",
            "it has no array `content`",
            r#"{"content": ["#,
        ),
        (
            &result,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            "it is a whole answer",
            "its member `result`",
        ),
        (
            &result,
            r#"{"content":[],"isError":1}"#,
            "`isError` is neither",
            "write true",
        ),
        (&error, "{", "it is not JSON", r#"{"code": -32000"#),
        (
            &error,
            "{}",
            "its `code` is no integer",
            r#"{"code": -32000"#,
        ),
    ] {
        assert_said(&world, 2, &[start, &[given]].concat(), what, hint);
    }
    // As the call would be: without arguments, and with `null`.
    for args in [
        &["decide", "--tool", "t"][..],
        &["decide", "--tool", "t", "--args", "null"],
    ] {
        run(&world, 0, args);
    }
    assert_eq!(world.status(2), "PENDING");
}

#[test]
fn files_and_flags_that_can_not_be_used_say_what_would_do() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    let policy = world.policy_file("[tools.charge]\ndelivry = \"x\"\n");
    let policy = policy.to_str().unwrap();
    let keyed = world.policy_file("[tools.charge]\nkey = \"{order_id}\"\nwindow = \"journal\"\n");
    let keyed = keyed.to_str().unwrap();
    for (code, words, what, hint) in [
        (
            2,
            &["delivered", "1", "--evidence", "none"][..],
            "none of --evidence can't be read",
            "--reference",
        ),
        (
            2,
            &["decide", "--tool", "charge", "--policy", "none.toml"],
            "the policy file none.toml can't be read",
            "check the path",
        ),
        (
            2,
            &["decide", "--tool", "charge", "--policy", policy],
            "delivry",
            "checkpoint policy schema",
        ),
        (
            1,
            &[
                "decide", "--tool", "charge", "--policy", keyed, "--args", "{}",
            ],
            "invalid_key",
            "--key",
        ),
        (
            2,
            &["doctor", "--", ""],
            "the program after '--' is empty",
            "PROGRAM",
        ),
        (
            1,
            &["reopen", "1", "--reason", "r"],
            "nobody can be asked",
            "--yes",
        ),
        (1, &["show", "9"], "there is no entry 9", "checkpoint ls"),
    ] {
        // The journal's flag goes before what is another program's.
        match words {
            ["doctor", rest @ ..] => {
                let journal = world.journal();
                let journal = journal.to_str().unwrap();
                let mut command = world.command(crate::world::checkpoint());
                command.args(["doctor", "--journal", journal]).args(rest);
                let output = command.output().unwrap();
                assert_eq!(output.status.code(), Some(code));
                let said = crate::world::text(&output);
                assert!(said.contains(what) && said.contains(hint), "{said}");
            }
            words => assert_said(&world, code, words, what, hint),
        }
    }
    let mut command = world.command(crate::world::checkpoint());
    command.args(["--keep-identity", "--name", "n", "--", "true"]);
    let said = crate::world::text(&command.output().unwrap());
    assert!(said.contains("hint: leave --name out"), "{said}");
}
