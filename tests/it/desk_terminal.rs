//! What differs on a terminal: width, colour, times, progress, questions. On a pseudo-terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Command, Stdio};

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use serde_json::json;

use crate::call::{Call, assert_done};
use crate::world::{World, checkpoint, text};

/// What is connected to the terminal; the rest is a pipe or nothing.
#[derive(Clone, Copy, PartialEq)]
enum On {
    Everything,
    StderrOnly,
}

/// What a command showed on a terminal of this width, and how it ended.
struct Shown {
    text: String,
    code: Option<i32>,
}

/// Runs a command of the operator's on a terminal, on which `typed` was typed ahead.
fn on_terminal(
    world: &World,
    width: u16,
    on: On,
    env: &[(&str, &str)],
    typed: &str,
    words: &[&str],
) -> Shown {
    // Each end is ours alone: a child of another test that had inherited one would hide the end.
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname_r(&master).unwrap();
    let slave = File::options()
        .read(true)
        .write(true)
        .custom_flags(OFlag::O_NOCTTY.bits())
        .open(&path)
        .unwrap();
    let sized = Command::new("stty")
        .args(["-F", &path, "rows", "40", "cols", &width.to_string()])
        .status();
    assert!(sized.unwrap().success());
    let end = |slave: &File| Stdio::from(slave.try_clone().unwrap());
    let mut master = File::from(OwnedFd::from(master));
    master.write_all(typed.as_bytes()).unwrap();
    let mut command = world.command(checkpoint());
    command
        .args(words)
        .arg("--journal")
        .arg(world.journal())
        .env("TERM", "xterm-256color")
        .envs(env.iter().copied())
        .stderr(end(&slave));
    if on == On::Everything {
        command.stdin(end(&slave)).stdout(end(&slave));
    } else {
        command.stdin(Stdio::null()).stdout(Stdio::null());
    }
    let mut process = command.spawn().unwrap();
    // Ours and the command's own must be closed before the end can be read.
    drop((command, slave));
    let mut bytes = Vec::new();
    // A terminal whose last user has gone reads as an error, after all that was written.
    let _ = master.read_to_end(&mut bytes);
    Shown {
        text: String::from_utf8_lossy(&bytes).into_owned(),
        code: process.wait().unwrap().code(),
    }
}

/// A journal with a long name in it, an error and a doubt.
fn world() -> World {
    let world = World::new();
    let mut proxy = world.proxy().start();
    let long = "create_an_event_in_the_calendar_that_the_whole_team_shares";
    let call = Call::new(1, long, json!({})).seq(1);
    assert_done(&proxy.call(&call.meta("checkpoint_call_id", "toolu_01A09q90qw90lq917835lq")));
    proxy.call(&Call::new(2, "fail_error", json!({})).seq(2));
    proxy.call(
        &Call::charge(3)
            .seq(3)
            .script(json!({"die": "after_effect"})),
    );
    assert_eq!(proxy.wait_code(), 69);
    world
}

/// Takes away what only colours.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.split_once('m').expect("only colours").1;
    }
    plain + rest
}

#[test]
fn tables_fit_the_terminal_and_tell_times_as_people_do() {
    let world = world();
    for width in [50, 60, 80, 200] {
        let shown = on_terminal(&world, width, On::Everything, &[], "", &["ls"]);
        let text = plain(&shown.text);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        for line in &lines[..4] {
            assert!(line.chars().count() <= width.into(), "{width}: {line}");
        }
        assert!(lines[3].contains("IN-DOUBT"), "{text}");
        assert!(lines[3].contains("upstream") || width < 80, "{text}");
        assert!(lines[1].contains(" ago"), "{text}");
        assert_eq!(text.contains("CALL-ID"), width >= 80, "{text}");
    }
    let piped = text(&world.operator(&["ls"]));
    assert!(!piped.contains(" ago") && piped.contains("Z "), "{piped}");
    assert!(piped.contains("toolu_01A09q90qw90lq917835lq"), "{piped}");
}

/// Sources: no-color.org; bixense.com/clicolors.
#[test]
fn colour_follows_the_flag_then_the_variables_then_the_terminal() {
    let world = world();
    let (yes, no) = (true, false);
    for (env, on_terminal_auto, piped_auto) in [
        (&[][..], yes, no),
        (&[("NO_COLOR", "1")], no, no),
        (&[("NO_COLOR", "")], yes, no),
        (&[("CLICOLOR", "0")], no, no),
        (&[("CLICOLOR_FORCE", "1")], yes, yes),
        (&[("TERM", "dumb")], no, no),
    ] {
        for (when, is_asked) in [("auto", None), ("always", Some(yes)), ("never", Some(no))] {
            let words = ["ls", "--color", when];
            let shown = on_terminal(&world, 80, On::Everything, env, "", &words);
            let is_coloured = shown.text.contains('\u{1b}');
            assert_eq!(
                is_coloured,
                is_asked.unwrap_or(on_terminal_auto),
                "{env:?} {when}"
            );
            let mut command = world.command(checkpoint());
            command.args(words).arg("--journal").arg(world.journal());
            let piped = text(&command.envs(env.iter().copied()).output().unwrap());
            let is_coloured = piped.contains('\u{1b}');
            assert_eq!(
                is_coloured,
                is_asked.unwrap_or(piped_auto),
                "{env:?} {when}, piped"
            );
        }
    }
}

#[test]
fn long_work_says_how_far_it_has_come_on_a_terminal_only() {
    let world = world();
    for words in [
        &["verify"][..],
        &["gc", "--older-than", "0s", "--dry-run"],
        &["export", "--format", "jsonl"],
        &["export", "--format", "mcp", "--seq", "1,2"],
    ] {
        let shown = on_terminal(&world, 80, On::StderrOnly, &[], "", words);
        assert!(
            shown.text.starts_with("\r\u{1b}[K"),
            "{words:?}: {:?}",
            shown.text
        );
        // It takes itself away.
        assert!(
            shown.text.ends_with("\r\u{1b}[K"),
            "{words:?}: {:?}",
            shown.text
        );
        let dumb = on_terminal(&world, 80, On::StderrOnly, &[("TERM", "dumb")], "", words);
        assert_eq!(dumb.text, "", "{words:?}");
        let piped = world.operator(words);
        assert_eq!(String::from_utf8_lossy(&piped.stderr), "", "{words:?}");
    }
}

#[test]
fn what_runs_an_effect_again_asks_for_the_tools_name() {
    let world = world();
    let long = "create_an_event_in_the_calendar_that_the_whole_team_shares";
    for (words, seq, tool, before, after) in [
        (
            &["resolve", "3", "--not-executed"][..],
            3,
            "charge",
            "PENDING",
            "VOIDED",
        ),
        (&["reopen", "1"], 1, long, "COMPLETED", "VOIDED"),
    ] {
        let words = [words, &["--reason", "looked"]].concat();
        for typed in ["yes\n", "\n", "\u{4}"] {
            let shown = on_terminal(&world, 200, On::Everything, &[], typed, &words);
            assert_eq!(shown.code, Some(1), "{typed:?}: {}", shown.text);
            assert!(shown.text.contains(tool), "{}", shown.text);
            assert!(
                shown.text.contains("was not typed") && shown.text.contains("hint: run it again"),
                "{}",
                shown.text
            );
            assert_eq!(world.status(seq), before, "{typed:?}");
        }
        let typed = format!("{tool}\n");
        let shown = on_terminal(&world, 200, On::Everything, &[], &typed, &words);
        assert_eq!(shown.code, Some(0), "{}", shown.text);
        assert_eq!(world.status(seq), after, "{}", shown.text);
    }
}
