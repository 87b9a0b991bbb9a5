//! `checkpoint doctor`: each line is ok or says what to do, and an older journal is accepted.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused};
use crate::world::{UPSTREAM, World};

fn doctor(world: &World, words: &[&str]) -> (Option<i32>, Value) {
    let words: Vec<&str> = ["doctor", "--json"].iter().chain(words).copied().collect();
    let output = world.operator(&words);
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), report)
}

/// The checks that are not ok.
fn not_ok(report: &Value) -> Vec<String> {
    report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["ok"] == false)
        .map(|check| {
            assert!(check["hint"].is_string(), "{check}");
            check["check"].as_str().unwrap().to_owned()
        })
        .collect()
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks
        .iter()
        .find(|check| check["check"] == name)
        .unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn a_sound_journal_is_ok_with_and_without_a_proxy() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    let (code, report) = doctor(&world, &[]);
    assert_eq!((code, not_ok(&report)), (Some(0), vec![]), "{report}");
    assert_eq!(check(&report, "sessions")["what"], "live: 1");
    proxy.stop();
    let (code, report) = doctor(&world, &[]);
    assert_eq!((code, not_ok(&report)), (Some(0), vec![]), "{report}");
    assert_eq!(check(&report, "sessions")["what"], "none is live");
    assert!(!world.upstream_lines().is_empty());
    let output = world.operator(&["doctor"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for name in [
        "journal",
        "file system",
        "disk space",
        "modes",
        "mark",
        "key",
        "in doubt",
    ] {
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn what_is_not_ok_has_code_1_and_says_what_to_do() {
    let world = World::new();
    let (code, report) = doctor(&world, &[]);
    assert_eq!(code, Some(1));
    assert_eq!(not_ok(&report), ["journal", "folder"]);
    assert!(!world.journal().exists());
    let mut proxy = world.proxy().start();
    let dies = Call::new(1, "send_mail", json!({})).seq(1);
    proxy.call(&dies.script(json!({"die": "after_effect"})));
    assert_eq!(proxy.wait_code(), 69);
    let (code, report) = doctor(&world, &[]);
    assert_eq!(
        (code, not_ok(&report)),
        (Some(1), vec!["in doubt".to_owned()])
    );
    assert_eq!(check(&report, "in doubt")["what"], "1 entry");
    std::fs::set_permissions(world.journal(), PermissionsExt::from_mode(0o644)).unwrap();
    let (_, report) = doctor(&world, &[]);
    assert_eq!(not_ok(&report), ["modes", "in doubt"]);
    std::fs::write(world.journal(), "").unwrap();
    let (code, report) = doctor(&world, &[]);
    assert_eq!(
        (code, not_ok(&report)),
        (Some(1), vec!["journal".to_owned()])
    );
    assert_eq!(std::fs::read(world.journal()).unwrap(), b"");
    let output = world
        .command(crate::world::checkpoint())
        .arg("doctor")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_missing_mark_is_told_also_of_a_journal_that_holds_no_call() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    // What a copy of the file alone gets: the call is in the -wal still.
    let copy = std::fs::read(world.journal()).unwrap();
    proxy.stop();
    std::fs::remove_dir_all(world.journal().parent().unwrap()).unwrap();
    std::fs::create_dir(world.journal().parent().unwrap()).unwrap();
    let private = PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(world.journal().parent().unwrap(), private).unwrap();
    std::fs::write(world.journal(), copy).unwrap();
    std::fs::set_permissions(world.journal(), PermissionsExt::from_mode(0o600)).unwrap();
    let (code, report) = doctor(&world, &[]);
    assert_eq!((code, not_ok(&report)), (Some(1), vec!["mark".to_owned()]));
    let what = check(&report, "mark")["what"].as_str().unwrap();
    assert!(what.contains("missing") && what.contains("-wal"), "{what}");
    assert!(!world.journal().with_file_name("run.db-mark").exists());
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(2).seq(2)));
    proxy.stop();
    let (code, report) = doctor(&world, &[]);
    assert_eq!((code, not_ok(&report)), (Some(0), vec![]), "{report}");
}

#[test]
fn an_older_journal_is_accepted_only_on_the_operators_word() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    let older = std::fs::read(world.journal()).unwrap();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(2).seq(2)));
    proxy.stop();
    std::fs::write(world.journal(), older).unwrap();
    let refused = world.proxy().run(b"");
    assert_eq!(refused.status.code(), Some(5));
    let (code, report) = doctor(&world, &[]);
    assert_eq!(
        (code, not_ok(&report)),
        (Some(1), vec!["mark".to_owned()]),
        "{report}"
    );
    let hint = check(&report, "mark")["hint"].as_str().unwrap();
    assert!(hint.contains("--accept-older-journal"), "{hint}");

    let output = world.operator(&["doctor", "--accept-older-journal"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("1 attempt is lost") && said.contains("--yes"),
        "{said}"
    );
    assert_eq!(world.proxy().run(b"").status.code(), Some(5));

    let (code, report) = doctor(&world, &["--accept-older-journal", "--yes"]);
    assert_eq!((code, not_ok(&report)), (Some(0), vec![]), "{report}");
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    assert_done(&proxy.call(&Call::charge(3).seq(3)));
    proxy.stop();
    assert_eq!(world.operator(&["verify"]).status.code(), Some(0));
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    let detail: String = db
        .query_row(
            "SELECT detail FROM events WHERE kind = 'older_accepted'",
            (),
            |row| row.get(0),
        )
        .unwrap();
    assert!(
        detail.starts_with(r#"{"mark":2,"highest":1,"by":""#),
        "{detail}"
    );
    let (_, report) = doctor(&world, &["--accept-older-journal"]);
    let said = check(&report, "older journal")["what"].as_str().unwrap();
    assert!(said.contains("nothing to accept"), "{said}");
}

#[test]
fn an_older_journal_is_not_accepted_under_a_live_session() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    let mark = world.journal().with_file_name("run.db-mark");
    let ours = std::fs::read(&mark).unwrap();
    let mut others = ours.clone();
    others[8] ^= 1;
    std::fs::write(&mark, others).unwrap();
    let output = world.operator(&["doctor", "--accept-older-journal", "--yes"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("while a session is live"), "{said}");
    std::fs::write(&mark, ours).unwrap();
    proxy.stop();
}

#[test]
fn an_upstream_is_started_once_asked_and_ended() {
    let world = World::new();
    let mut command = world.command(crate::world::checkpoint());
    command.args(["doctor", "--json", "--journal"]);
    let output = command
        .arg(world.journal())
        .args(["--", UPSTREAM])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let code = output.status.code();
    // The journal that is named is not there.
    assert_eq!(
        (code, not_ok(&report)),
        (Some(1), vec!["journal".into(), "folder".into()])
    );
    let upstream = &report["upstream"];
    assert_eq!(upstream["modern_versions"], json!(["2026-07-28"]));
    assert_eq!(upstream["legacy_version"], "2025-11-25");
    let tools = upstream["tools"].as_array().unwrap();
    let read = tools
        .iter()
        .find(|tool| tool["name"] == "read_balance")
        .unwrap();
    assert_eq!(read["read_only_hint"], true);
    assert!(tools.iter().any(|tool| tool["name"] == "charge"));
    world.wait_gone(world.pid_of("upstream", 1), crate::world::DEADLINE);
    assert_eq!((world.effects().len(), world.calls_at_upstream()), (0, 0));

    // Without a journal at all.
    let mut command = world.command(crate::world::checkpoint());
    let output = command.args(["doctor", "--", UPSTREAM]).output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("READ-ONLY") && text.contains("read_balance"),
        "{text}"
    );
}

#[test]
fn an_upstream_that_does_not_start_is_told() {
    let world = World::new();
    for (words, said) in [
        (&["--", "/nonexistent/program"][..], "can't be started"),
        (
            &["--upstream-cmd", "echo oops >&2; exit 3"],
            "exit status: 3",
        ),
    ] {
        let mut command = world.command(crate::world::checkpoint());
        let output = command
            .args(["doctor", "--json"])
            .args(words)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let what = check(&report, "upstream")["what"].as_str().unwrap();
        assert!(what.contains(said), "{what}");
    }
    let both = ["doctor", "--upstream-cmd", "cat", "--", "cat"];
    let output = world
        .command(crate::world::checkpoint())
        .args(both)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_journal_replaced_under_a_live_session_is_told() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    let older = std::fs::read(world.journal()).unwrap();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(2).seq(2)));
    // A copy is moved into the place of the file that the proxy writes to.
    let copy = world.path("copy");
    std::fs::write(&copy, older).unwrap();
    std::fs::rename(&copy, world.journal()).unwrap();
    for companion in ["run.db-wal", "run.db-shm"] {
        let _ = std::fs::remove_file(world.journal().with_file_name(companion));
    }
    let (code, report) = doctor(&world, &[]);
    assert_eq!(code, Some(1));
    let bad = not_ok(&report);
    assert!(
        bad.contains(&"sessions".to_owned()) && bad.contains(&"mark".to_owned()),
        "{bad:?}"
    );
    assert_refused(
        &proxy.call(&Call::charge(3).seq(3)),
        "journal_unavailable",
        "not_started",
    );
    proxy.close_stdin();
    proxy.wait();
}
