//! The command line from outside: what is refused, with which words and code, and the help texts.
//!
//! Nothing here starts an upstream. What a value means is tested beside `cli/settings.rs`; these
//! tests prove that the binary is wired to it.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends at the first thing that can't be done"
)]

use std::path::Path;
use std::process::{Command, Stdio};

/// What a run of the binary did.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Returns the binary with an environment of its own and nothing to read.
fn checkpoint(args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("checkpoint"));
    command
        .args(args)
        .env_clear()
        .envs(env.iter().copied())
        .stdin(Stdio::null());
    command
}

fn run(args: &[&str], env: &[(&str, &str)]) -> Ran {
    let output = checkpoint(args, env).output().unwrap();
    Ran {
        code: output.status.code().expect("no signal ended it"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Asserts that the command line is refused with code 2, nothing on stdout, and these words.
#[track_caller]
fn refused(args: &[&str], env: &[(&str, &str)], words: &[&str]) {
    let ran = run(args, env);
    assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
    assert_eq!(ran.stdout, "", "{args:?}");
    assert!(
        ran.stderr.starts_with("checkpoint: error: "),
        "{}",
        ran.stderr
    );
    for word in words {
        assert!(
            ran.stderr.contains(word),
            "{args:?}: no {word:?} in {}",
            ran.stderr
        );
    }
}

/// Compares with `fixtures/help/NAME.txt`; `CHECKPOINT_BLESS=1` writes it instead.
#[track_caller]
fn assert_help(name: &str, args: &[&str]) {
    let ran = run(args, &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/help")
        .join(name)
        .with_extension("txt");
    if std::env::var_os("CHECKPOINT_BLESS").is_some() {
        std::fs::write(&path, &ran.stdout).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        ran.stdout, golden,
        "fixtures/help/{name}.txt differs; CHECKPOINT_BLESS=1 rewrites it"
    );
}

#[test]
fn help_texts() {
    assert_help("checkpoint-short", &["-h"]);
    assert_help("checkpoint", &["--help"]);
    for command in [
        "ls",
        "show",
        "resolve",
        "reopen",
        "delivered",
        "decide",
        "fork",
        "tail",
        "verify",
        "export",
        "gc",
        "demo",
        "policy",
        "doctor",
        "wrap",
        "completions",
        "man",
    ] {
        assert_help(command, &[command, "--help"]);
    }
}

#[test]
fn the_word_help_is_the_flag() {
    for (words, flag) in [
        (&["help"][..], &["--help"][..]),
        (&["help", "help"], &["--help"]),
        (&["help", "resolve"], &["resolve", "--help"]),
        (&["help", "policy", "check"], &["policy", "check", "--help"]),
    ] {
        let (ran, expected) = (run(words, &[]), run(flag, &[]));
        assert_eq!((ran.code, &*ran.stderr), (0, ""), "{words:?}");
        assert_eq!(ran.stdout, expected.stdout, "{words:?}");
    }
    refused(&["help", "resove"], &[], &["resove", "'resolve'"]);
    // It starts nothing, and hides no upstream of that name.
    refused(&["help", "--", "true"], &[], &["help"]);
    refused(&["help", "--journal", "x", "--", "true"], &[], &["help"]);
    let ran = run(&["--journal", "/dev/null/x", "--", "help"], &[]);
    assert_eq!(ran.code, 5, "{}", ran.stderr);
}

/// Fails where a command was added without its help text above.
#[test]
fn every_command_has_a_help_snapshot() {
    let names = commands(&[]);
    for name in &names {
        let path = format!("{}/fixtures/help/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        assert!(Path::new(&path).exists(), "{name}: add it to help_texts()");
    }
    assert!(names.len() >= 4, "{names:?}");
}

/// The commands that the short help below these words lists.
fn commands(words: &[&str]) -> Vec<String> {
    let help = run(&[words, &["-h"]].concat(), &[]).stdout;
    help.lines()
        .skip_while(|line| !line.starts_with("Commands"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect()
}

#[test]
fn the_version_is_printed_whatever_stands_beside_it() {
    let version = concat!("checkpoint ", env!("CARGO_PKG_VERSION"), "\n");
    for args in [
        &["--version"][..],
        &["-V"],
        &["--journal", "never-made.db", "--version"],
        &["--version", "--keep-identity", "--upstream-cmd", "false"],
        &["--version", "--", "npx", "-y", "s"],
        &["-V", "--resume"],
    ] {
        let ran = run(args, &[("CHECKPOINT_LOG", "loud")]);
        assert_eq!(
            (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
            (0, version, ""),
            "{args:?}"
        );
    }
    assert!(!Path::new("never-made.db").exists());
    refused(
        &["--version", "ls"],
        &[],
        &["'ls'", "--version", "a command, not a version"],
    );
    refused(
        &["--version=show", "--", "p"],
        &[],
        &["'show'", "--version"],
    );
}

#[test]
fn an_upstream_is_needed_in_one_of_two_forms() {
    refused(
        &[],
        &[],
        &[
            "--upstream-cmd <CMD>",
            "-- <PROGRAM>",
            "--upstream-cmd \"",
            "-- npx",
        ],
    );
    refused(&["--journal", "j"], &[], &["no upstream"]);
    refused(
        &["--upstream-cmd", "a", "--", "b"],
        &[],
        &["--upstream-cmd", "'-- <PROGRAM>'"],
    );
    refused(
        &["--upstream-cmd", ""],
        &[],
        &["--upstream-cmd", "not empty"],
    );
    refused(
        &["--upstream-cmd"],
        &[],
        &["--upstream-cmd", "value is required"],
    );
    refused(&["--", ""], &[], &["after '--' is empty"]);
    refused(
        &[],
        &[("CHECKPOINT_UPSTREAM_CMD", " ")],
        &["CHECKPOINT_UPSTREAM_CMD", "not empty"],
    );
    refused(&["npx", "-y", "s"], &[], &["'npx'", "comes after '--'"]);
    refused(&["--journal", "j", "ls"], &[], &["'ls'", "checkpoint ls"]);
}

#[test]
fn bad_values_are_named_with_what_was_expected() {
    let rows: &[(&[&str], &[&str])] = &[
        (
            &["--call-timeout", "5"],
            &["'5'", "--call-timeout", "250ms, 30s, 5m"],
        ),
        (
            &["--call-timeout", "0s"],
            &["'0s'", "--call-timeout", "more than zero"],
        ),
        (&["--drain-timeout", "-1s"], &["--drain-timeout"]),
        (
            &["--drain-timeout", "1.5s"],
            &["'1.5s'", "--drain-timeout", "expected"],
        ),
        (
            &["--max-message-bytes", "64MB"],
            &["'64MB'", "--max-message-bytes", "64KiB"],
        ),
        (
            &["--max-message-bytes", "0B"],
            &["'0B'", "--max-message-bytes", "expected"],
        ),
        (
            &["--refusals", "loud"],
            &["'loud'", "--refusals", "auto, error, result"],
        ),
        (
            &["--on-in-doubt", "stop"],
            &["'stop'", "--on-in-doubt", "continue, exit"],
        ),
        (&["--on-divergence", "x"], &["'x'", "--on-divergence"]),
        (&["--log", "loud"], &["'loud'", "--log"]),
        (&["--log-format", "xml"], &["'xml'", "--log-format"]),
        (&["--call-id-from", ""], &["--call-id-from"]),
        (&["--name", ""], &["--name"]),
        (
            &["--journal", ":memory:"],
            &["':memory:'", "--journal", "path of a file"],
        ),
        (&["--journal", "file:x"], &["'file:x'", "--journal"]),
        (&["--workflow-id", ""], &["--workflow-id", "not empty"]),
        (
            &["--redact-args-in-journal"],
            &["--redact-args-in-journal", "needs a journal"],
        ),
        (
            &["--keep-identity", "--name", "n"],
            &["--keep-identity", "--name"],
        ),
        (&["--annotate", "--annotate"], &["--annotate"]),
        (&["--bogus"], &["--bogus"]),
    ];
    for (args, words) in rows {
        refused(&[args, &["--", "p"][..]].concat(), &[], words);
    }
    let long = "x".repeat(513);
    refused(
        &["--workflow-id", &long, "--", "p"],
        &[],
        &["--workflow-id", "512 bytes"],
    );
}

#[test]
fn bad_variables_are_named_too() {
    for (name, value, word) in [
        ("CHECKPOINT_JOURNAL", "", "path of a file"),
        ("CHECKPOINT_WORKFLOW_ID", "", "not empty"),
        ("CHECKPOINT_LOG", "loud", "expected off, error"),
        ("CHECKPOINT_RUN_ID", "", "not empty"),
        ("CHECKPOINT_THREAD_ID", "", "not empty"),
        ("CHECKPOINT_DURABILITY", "maybe", "full or deferred"),
    ] {
        refused(&["--", "p"], &[(name, value)], &[name, word]);
    }
}

#[test]
fn commands_check_their_flags() {
    refused(
        &["ls"],
        &[],
        &["no journal", "--journal", "CHECKPOINT_JOURNAL"],
    );
    refused(&["show", "8"], &[], &["no journal"]);
    refused(
        &["ls"],
        &[("CHECKPOINT_JOURNAL", ":memory:")],
        &["CHECKPOINT_JOURNAL"],
    );
    refused(&["show", "--journal", "j"], &[], &["<SEQ>"]);
    refused(&["show", "0", "--journal", "j"], &[], &["'0'", "<SEQ>"]);
    refused(
        &["show", "9007199254740992", "--journal", "j"],
        &[],
        &["<SEQ>"],
    );
    refused(
        &["ls", "--journal", "j", "--status", "DONE"],
        &[],
        &["'DONE'", "COMPLETED"],
    );
    refused(
        &["ls", "--journal", "j", "--since", "x"],
        &[],
        &["'x'", "--since", "2h"],
    );
    refused(
        &["ls", "--journal", "j", "--branch", "x"],
        &[],
        &["'x'", "--branch"],
    );
    refused(&["completions", "cmd.exe"], &[], &["'cmd.exe'", "bash"]);
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(&["completions", shell], &[]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{shell}");
        for name in ["ls", "show", "upstream-cmd"] {
            assert!(ran.stdout.contains(name), "{shell}: {name}");
        }
    }
}

/// Each command, however deep, has a page that says what its help says, in requests that man knows.
#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("made/man1");
    let ran = run(&["man", folder.to_str().unwrap()], &[]);
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (0, "", ""));
    let mut left: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut wanted = vec![Vec::new()];
    while let Some(words) = wanted.pop() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        for name in commands(&words) {
            let inner = words.iter().map(|word| (*word).to_owned()).chain([name]);
            wanted.push(inner.collect());
        }
        let file = [&["checkpoint"], &words[..]].concat().join("-") + ".1";
        let page = std::fs::read_to_string(folder.join(&file)).unwrap();
        left.retain(|name| *name != file);
        if words.is_empty() {
            assert_eq!(run(&["man"], &[]).stdout, page);
        }
        // What begins with a dot or an apostrophe by accident would be lost.
        for line in page.lines().filter(|line| line.starts_with(['.', '\''])) {
            let request = line[1..].split(' ').next().unwrap();
            let known = ["TH", "SH", "TP", "RS", "RE", "PP", "IP", "br", "ie", "el"];
            assert!(known.contains(&request), "{file}: {line}");
        }
        let mut plain = page.clone();
        for (roff, text) in [("\\-", "-"), ("\\*(Aq", "'"), ("\\fB", ""), ("\\fR", "")] {
            plain = plain.replace(roff, text);
        }
        let help = run(&[&words[..], &["--help"]].concat(), &[]).stdout;
        let first = help.lines().next().unwrap();
        for part in ["\n.SH NAME\n", "\n.SH SYNOPSIS\n", first] {
            assert!(plain.contains(part), "{file}: no {part:?}");
        }
        let flags = help
            .split_whitespace()
            .filter(|word| word.starts_with("--"));
        for flag in flags {
            let name: &str = flag.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
            let name = name.split(['=', '[']).next().unwrap();
            assert!(plain.contains(name), "{file}: no {name}");
        }
    }
    assert!(left.is_empty(), "pages of no command: {left:?}");
}

#[test]
fn manual_pages_that_can_not_be_written_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let ran = run(&["man", file.to_str().unwrap()], &[]);
    assert_eq!((ran.code, &*ran.stdout), (1, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("can't be written to"), "{}", ran.stderr);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for args in [
        &["completions", "bash"][..],
        &["man"],
        &["--help"],
        &["--version"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = checkpoint(args, &[]).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn no_escape_sequences_where_nobody_sees_colour() {
    let ran = run(&["--help"], &[("TERM", "xterm-256color")]);
    assert!(!ran.stdout.contains('\u{1b}'));
    let ran = run(&["--upstream-cmd", "a", "--journal", "\u{1b}[2J://"], &[]);
    assert_eq!(ran.code, 2);
    assert!(!ran.stderr.contains('\u{1b}'), "{:?}", ran.stderr);
}
