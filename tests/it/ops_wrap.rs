//! `wrap`: what it shows, what it writes, and that a client which reads what was written has
//! checkpoint before its upstream.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::call::{Call, assert_done};
use crate::proxy::Proxy;
use crate::world::{UPSTREAM, World, checkpoint, text};

const SECRET: &str = "sk_live_0";

/// A configuration with a server before which checkpoint can stand, and others.
fn config() -> String {
    format!(
        r#"{{
  // Servers of this project.
  "mcpServers": {{
    "pay": {{
      "command": "{UPSTREAM}",
      "env": {{ "STRIPE_KEY": "{SECRET}" }}, // live
    }},
    "docs": {{ "type": "http", "url": "https://example.com/mcp?key={SECRET}" }},
  }},
}}
"#
    )
}

fn wrap(world: &World, words: &[&str]) -> Output {
    let mut command = world.command(checkpoint());
    command.arg("wrap").args(words).stdin(Stdio::null());
    command.output().unwrap()
}

#[track_caller]
fn wrapped(world: &World, code: i32, words: &[&str]) -> (String, String) {
    let output = wrap(world, words);
    assert_eq!(output.status.code(), Some(code), "{}", text(&output));
    assert!(!text(&output).contains(SECRET), "{}", text(&output));
    (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// A world whose folder has a configuration.
fn world(text: &str) -> World {
    let world = World::new();
    fs::write(world.path(".mcp.json"), text).unwrap();
    world
}

fn read(world: &World, name: &str) -> String {
    fs::read_to_string(world.path(name)).unwrap()
}

#[test]
fn a_client_that_reads_what_was_written_calls_through_the_proxy() {
    let text = r#"{"mcpServers": {"pay": {"command": "UPSTREAM"}}}"#.replace("UPSTREAM", UPSTREAM);
    let world = world(&text);
    wrapped(&world, 0, &["pay", "--write", "--", "--annotate"]);
    let config: Value = serde_json::from_str(&read(&world, ".mcp.json")).unwrap();
    let server = &config["mcpServers"]["pay"];
    let words = |value: &Value| -> Vec<String> {
        let words = value.as_array().unwrap().iter();
        words
            .map(|word| word.as_str().unwrap().to_owned())
            .collect()
    };
    let start = || {
        let mut command = world.command(server["command"].as_str().unwrap());
        command.args(words(&server["args"])).current_dir("/");
        let mut proxy = Proxy::start(command);
        proxy.initialize();
        proxy
    };
    for replayed in [false, true] {
        let mut proxy = start();
        let answer = proxy.call(&Call::charge(1).seq(1));
        assert_done(&answer);
        let meta = &answer["result"]["_meta"]["checkpoint"];
        assert_eq!(meta["replayed"], json!(replayed), "{answer}");
        proxy.stop();
    }
    assert_eq!(world.effects_of("charge"), 1);
    assert!(world.path(".local/state/checkpoint/pay.db").exists());
    // Its entries are another server's, for all that is known.
    wrapped(&world, 0, &["--undo", "--write"]);
    let (_, said) = wrapped(&world, 0, &[]);
    assert!(said.contains("pay.db is there already"), "{said}");
}

#[test]
fn the_change_is_shown_and_not_made() {
    let world = world(&config());
    let (diff, said) = wrapped(&world, 0, &["--journal", "/j/"]);
    let program = checkpoint().into_string().unwrap();
    assert_eq!(
        diff,
        format!(
            "--- .mcp.json\n+++ .mcp.json\n@@ -5,1 +5,2 @@ mcpServers.pay\n\
             -      \"command\": \"{UPSTREAM}\",\n\
             +      \"command\": \"{program}\",\n\
             +      \"args\": [ \"--journal\", \"/j/pay.db\", \"--\", \"{UPSTREAM}\" ],\n"
        )
    );
    assert_eq!(
        said,
        "checkpoint: docs: skipped, as it is remote ('type'), and checkpoint stands before what \
         is started by a command\n\
         checkpoint: nothing was written; --write makes this change (pay)\n"
    );
    assert_eq!(read(&world, ".mcp.json"), config());
    assert!(!world.path(".mcp.json.bak").exists());
    let (coloured, _) = wrapped(&world, 0, &["--color", "always"]);
    assert!(coloured.contains("\u{1b}["), "{coloured}");
}

#[test]
fn what_was_written_is_taken_back_to_the_byte() {
    let world = world(&config());
    fs::set_permissions(world.path(".mcp.json"), fs::Permissions::from_mode(0o600)).unwrap();
    let (_, said) = wrapped(&world, 0, &["--write"]);
    assert!(said.contains(".mcp.json was written (pay)"), "{said}");
    let written = read(&world, ".mcp.json");
    assert_ne!(written, config());
    assert_eq!(read(&world, ".mcp.json.bak"), config());
    // Once more: nothing, nor is what is wrapped kept as what was there before.
    let (diff, said) = wrapped(&world, 0, &["--write"]);
    assert_eq!(diff, "");
    assert!(said.contains("pay: already wrapped"), "{said}");
    assert!(said.contains("nothing to do in .mcp.json"), "{said}");
    assert_eq!(read(&world, ".mcp.json"), written);

    let (_, said) = wrapped(&world, 0, &["--undo", "--write"]);
    assert!(said.contains("pay: its journal stays: /"), "{said}");
    assert_eq!(read(&world, ".mcp.json"), config());
    assert_eq!(read(&world, ".mcp.json.bak"), config());
    for name in [".mcp.json", ".mcp.json.bak"] {
        let mode = fs::metadata(world.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let (diff, said) = wrapped(&world, 0, &["--undo", "--write"]);
    assert_eq!(diff, "");
    assert!(said.contains("pay: not wrapped"), "{said}");
}

#[test]
fn the_file_is_found_only_where_it_is_clear() {
    let world = World::new();
    let (_, said) = wrapped(&world, 2, &[]);
    assert!(said.contains("none of .mcp.json, "), "{said}");
    fs::create_dir(world.path(".codex")).unwrap();
    let toml = format!("[mcp_servers.pay]\ncommand = '{UPSTREAM}' # c\n");
    fs::write(world.path(".codex/config.toml"), &toml).unwrap();
    let (diff, _) = wrapped(&world, 0, &[]);
    assert!(diff.contains("\n-command = '"), "{diff}");
    fs::write(world.path(".mcp.json"), config()).unwrap();
    let (_, said) = wrapped(&world, 2, &[]);
    assert!(
        said.contains("here are .mcp.json, .codex/config.toml"),
        "{said}"
    );
    wrapped(&world, 0, &["--file", ".codex/config.toml", "--write"]);
    wrapped(
        &world,
        0,
        &["--file", ".codex/config.toml", "--write", "--undo"],
    );
    assert_eq!(read(&world, ".codex/config.toml"), toml);
}

#[test]
fn what_can_not_be_done_is_refused_and_changes_nothing() {
    let broken = config().replace("\"env\":", "\"env\"");
    let two = config()
        .replace("\"url\"", "\"command\": \"x\", \"n\"")
        .replace("http", "stdio");
    for (text, code, words, expected) in [
        (&broken, 1, &[][..], ".mcp.json:6:"),
        (&"a: 1\n".to_owned(), 1, &[], "forms, such as YAML"),
        (&"{}".to_owned(), 1, &[], ".mcp.json names no servers"),
        (&config(), 1, &["mail"], "its servers are pay, docs"),
        (&config(), 1, &["docs"], "docs: skipped, as it is remote"),
        (&two, 2, &["--journal", "/j.db"], "give a folder"),
        (
            &config(),
            2,
            &["--journal", ":memory:"],
            "invalid value ':memory:'",
        ),
        (&config(), 2, &["--", "--no-such"], "--no-such"),
        (
            &config(),
            2,
            &["--", "--journal", "x"],
            "--journal is a flag of `wrap`",
        ),
        (
            &config(),
            2,
            &["--undo", "--journal", "x"],
            "cannot be used with",
        ),
    ] {
        let world = world(text);
        let (_, said) = wrapped(&world, code, &[&["--write"], words].concat());
        assert!(said.contains(expected), "{words:?}: {said}");
        assert_eq!(&read(&world, ".mcp.json"), text);
    }
}

#[test]
fn resume_is_warned_of() {
    let world = world(&config());
    let (_, said) = wrapped(&world, 0, &["--", "--resume"]);
    assert!(
        said.contains("warning: --resume is only for a client"),
        "{said}"
    );
    wrapped(&world, 0, &["--write"]);
    let (_, said) = wrapped(&world, 0, &["--", "--resume"]);
    assert!(!said.contains("--resume"), "{said}");
}

#[test]
fn the_search_path_s_name_is_kept() {
    let world = world(&config());
    let program = checkpoint();
    let folder = std::path::Path::new(&program).parent().unwrap().to_owned();
    let mut command = world.command("checkpoint");
    command.env("PATH", folder).args(["wrap", "--json"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["written"], json!(false));
    let [pay, docs] = said["servers"].as_array().unwrap().as_slice() else {
        panic!("{said}");
    };
    assert_eq!(pay["before"], json!({"command": UPSTREAM, "args": []}));
    assert_eq!(pay["after"]["command"], json!("checkpoint"));
    assert_eq!(
        (&pay["state"], &docs["state"]),
        (&json!("wrapped"), &json!("skipped"))
    );
}
