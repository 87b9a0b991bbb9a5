//! The journal as a file among others: its modes, what is refused in its place, who shares it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::call::{Call, assert_done, assert_refused, refusal};
use crate::world::{DEADLINE, World, contains};

/// Something that is done to the journal's place, with its name.
type Trick = (&'static str, fn(&Path));

/// The journal can't be used.
const UNUSABLE: i32 = 5;

/// A world whose journal holds one completed charge at seq 1.
fn used_world() -> World {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    world
}

/// Brings all that is in the `-wal` into the journal itself.
fn fold_wal(world: &World) {
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
}

/// The bytes of every file below a folder.
fn files_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.append(&mut files_below(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap_or_default());
        }
    }
    files
}

/// Asserts that a start is refused with code 5, before the upstream, and changes no byte.
#[track_caller]
fn assert_start_refused(world: &World) -> String {
    let state = world.journal().parent().unwrap().to_owned();
    let before = files_below(&state);
    let upstreams = world.upstream_lines().len();
    let input = Call::charge(9).seq(1).line() + "\n";
    let output = world.proxy().run(input.as_bytes());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(UNUSABLE), "{stderr}");
    assert!(stderr.contains("run.db"), "{stderr}");
    assert_eq!(world.upstream_lines().len(), upstreams);
    assert!(files_below(&state) == before, "a byte was changed");
    stderr
}

#[test]
fn files_and_folders_are_private_whatever_the_umask() {
    let world = World::new();
    let open = ["sh", "-c", "umask 000; exec \"$0\" \"$@\""];
    let path = world.path("state/deep/er/run.db");
    let setup = world.proxy().wrapper(open).journal(&path);
    let mut proxy = setup.flags(["--redact-args-in-journal"]).start();
    assert_done(&proxy.call(&Call::charge(1)));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let look = || {
        for file in files_below(&world.path("state")).keys() {
            assert_eq!(mode(file), 0o600, "{}", file.display());
        }
        for folder in ["state", "state/deep", "state/deep/er"] {
            assert_eq!(mode(&world.path(folder)), 0o700, "{folder}");
        }
    };
    look();
    proxy.stop();
    look();
    assert!(path.exists());
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn wider_modes_are_warned_about() {
    let world = used_world();
    fs::set_permissions(world.journal(), fs::Permissions::from_mode(0o644)).unwrap();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(2).seq(1)));
    proxy.stop_and_read(|stderr| assert!(stderr.contains("run.db"), "{stderr}"));
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn what_stands_in_the_journals_place_is_refused_and_left_as_it_is() {
    let state = |world: &World| {
        fs::create_dir_all(world.journal().parent().unwrap()).unwrap();
        world.journal()
    };
    let put: [Trick; 6] = [
        ("a symlink", |path| {
            let target = path.with_file_name("elsewhere.db");
            symlink(target, path).unwrap();
        }),
        ("an empty file", |path| fs::write(path, "").unwrap()),
        ("text", |path| {
            fs::write(path, "to do: eat\n".repeat(1000)).unwrap()
        }),
        ("a foreign database", |path| {
            let db = rusqlite::Connection::open(path).unwrap();
            db.execute_batch("PRAGMA application_id = 7; CREATE TABLE entries (seq)")
                .unwrap();
        }),
        ("a database without an owner", |path| {
            let db = rusqlite::Connection::open(path).unwrap();
            db.execute_batch("CREATE TABLE t (x)").unwrap();
        }),
        ("a folder", |path| fs::create_dir(path).unwrap()),
    ];
    for (name, put) in put {
        let world = World::new();
        put(&state(&world));
        let before = files_below(&world.path("state"));
        assert_start_refused(&world);
        assert!(files_below(&world.path("state")) == before, "{name}");
        assert!(!world.is_upstream_seen(), "{name}");
        assert_eq!(world.effects().len(), 0, "{name}");
    }
}

/// Case C107.
#[test]
fn a_newer_schema_is_refused_with_both_versions_named() {
    let world = used_world();
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    let version: i64 = db
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .unwrap();
    assert!(version > 0);
    db.pragma_update(None, "user_version", version + 1).unwrap();
    drop(db);
    fold_wal(&world);
    let stderr = assert_start_refused(&world);
    for version in [version, version + 1] {
        assert!(stderr.contains(&version.to_string()), "{stderr}");
    }
    let output = world.operator(&["ls"]);
    assert_eq!(output.status.code(), Some(UNUSABLE), "{output:?}");
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn the_journal_says_whose_it_is() {
    let world = used_world();
    let db = rusqlite::Connection::open(world.journal()).unwrap();
    let number = |pragma: &str| -> i64 {
        db.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0))
            .unwrap()
    };
    assert_ne!(number("application_id"), 0);
    assert_ne!(number("user_version"), 0);
    let mode: String = db
        .query_row("PRAGMA journal_mode", [], |row| row.get(0))
        .unwrap();
    assert!(["wal", "delete"].contains(&mode.as_str()), "{mode}");
    for table in [
        "workflows",
        "branches",
        "sessions",
        "entries",
        "attempts",
        "events",
    ] {
        let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        let count: i64 = db.query_row(sql, [table], |row| row.get(0)).unwrap();
        assert_eq!(count, 1, "{table}");
    }
}

#[test]
fn a_truncated_journal_is_refused() {
    for keep in [100u64, 4096, 5000] {
        let world = used_world();
        fold_wal(&world);
        let file = fs::OpenOptions::new()
            .write(true)
            .open(world.journal())
            .unwrap();
        assert!(file.metadata().unwrap().len() > keep);
        file.set_len(keep).unwrap();
        assert_start_refused(&world);
        assert_eq!(world.effects_of("charge"), 1);
    }
}

#[test]
fn an_older_copy_is_refused() {
    let world = used_world();
    fold_wal(&world);
    let old = fs::read(world.journal()).unwrap();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::new(2, "refund", json!({})).seq(2)));
    proxy.stop();
    fold_wal(&world);
    fs::write(world.journal(), old).unwrap();
    for companion in ["run.db-wal", "run.db-shm"] {
        let _ = fs::remove_file(world.journal().with_file_name(companion));
    }
    assert_start_refused(&world);
    assert_eq!(world.effects_of("refund"), 1);
}

#[test]
fn a_journal_whose_wal_was_removed_is_refused() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.kill9();
    let wal = world.journal().with_file_name("run.db-wal");
    assert!(wal.exists(), "a killed proxy leaves its -wal");
    world.wait_gone(world.pid_of("upstream", 1), crate::world::DEADLINE);
    fs::remove_file(wal).unwrap();
    let _ = fs::remove_file(world.journal().with_file_name("run.db-shm"));
    assert_start_refused(&world);
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn companions_without_their_journal_are_refused() {
    let world = used_world();
    fs::remove_file(world.journal()).unwrap();
    let left = files_below(&world.path("state"));
    assert!(!left.is_empty(), "the high-water mark stays");
    assert_start_refused(&world);
    assert!(!world.journal().exists(), "never made anew");
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn a_journal_that_is_gone_while_in_use_refuses_calls_and_nothing_else() {
    let tricks: [Trick; 3] = [
        ("deleted", |path| fs::remove_file(path).unwrap()),
        ("moved", |path| {
            fs::rename(path, path.with_file_name("moved.db")).unwrap();
        }),
        ("replaced", |path| {
            let copy = path.with_file_name("copy.db");
            fs::copy(path, &copy).unwrap();
            fs::rename(copy, path).unwrap();
        }),
    ];
    for (name, trick) in tricks {
        let world = World::new();
        let mut proxy = world.proxy().start();
        assert_done(&proxy.call(&Call::charge(1).seq(1)));
        trick(&world.journal());
        for id in 2..=3 {
            let answer = proxy.call(&Call::new(id, "refund", json!({})).seq(id));
            assert_refused(&answer, "journal_unavailable", "not_started");
            assert_eq!(answer["error"]["code"], 7707, "{name}: {answer}");
        }
        proxy.assert_ping();
        proxy.kill9();
        assert_eq!(world.effects_of("refund"), 0, "{name}");
        assert_eq!(world.calls_at_upstream(), 1, "{name}");
    }
}

/// A copy of the file alone, taken while the journal is in use, is an empty journal: all of it
/// would run again, and everybody who opens it says so.
#[test]
fn a_copy_without_its_log_is_not_taken_for_a_new_journal_in_silence() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    let copy = world.path("copy.db");
    fs::copy(world.journal(), &copy).unwrap();
    proxy.stop_and_read(|said| assert!(!said.contains("neither its log"), "{said}"));
    for words in [&["ls"][..], &["verify"], &["doctor"]] {
        let mut command = world.command(crate::world::checkpoint());
        let output = command.args(words).arg("--journal").arg(&copy).output();
        let said = crate::world::text(&output.unwrap());
        // doctor's own check of the mark says it.
        let what = if words == ["doctor"] {
            "-wal"
        } else {
            "neither its log"
        };
        assert!(said.contains(what), "{words:?}: {said}");
    }
    let second = world.proxy().journal(&copy).start();
    second.stop_and_read(|said| assert!(said.contains("neither its log"), "{said}"));
}

/// Case C64: a busy journal is waited for, then the call is refused before it is sent.
#[test]
fn a_journal_that_another_writer_holds_refuses_calls_and_passes_the_rest() {
    let world = used_world();
    let writer = rusqlite::Connection::open(world.journal()).unwrap();
    writer.busy_timeout(Duration::ZERO).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::new(1, "refund", json!({})).seq(2));
    let sent = Instant::now();
    for _ in 0..10 {
        proxy.assert_ping();
    }
    assert!(
        sent.elapsed() < Duration::from_secs(4),
        "the call held all back"
    );
    let answer = proxy.recv_id(1);
    assert!(
        sent.elapsed() > Duration::from_secs(3),
        "it was not waited for"
    );
    assert_refused(&answer, "journal_unavailable", "not_started");
    assert!(refusal(&answer)["reason"].is_string(), "{answer}");
    assert!(!answer.to_string().contains("locked"), "{answer}");
    assert_eq!(world.effects_of("refund"), 0);
    writer.execute_batch("COMMIT").unwrap();
    drop(writer);
    assert_done(&proxy.call(&Call::new(2, "refund", json!({})).seq(2)));
    proxy.stop();
    assert_eq!(world.effects_of("refund"), 1);
}

/// What is noted of a refusal or a delivery waits for the journal, too, and no call waits for it.
#[test]
fn a_busy_journal_keeps_each_call_waiting_for_no_longer_than_the_first() {
    let world = used_world();
    let mut proxy = world.proxy().start();
    let writer = rusqlite::Connection::open(world.journal()).unwrap();
    writer.busy_timeout(DEADLINE).unwrap();
    // That its answer was delivered is noted with the next commit.
    assert_done(&proxy.call(&Call::new(1, "refund", json!({})).seq(2)));
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    for id in 3..5u64 {
        // By then the event of the last refusal has been tried by itself.
        assert_eq!(proxy.recv_id_within(0, Duration::from_millis(700)), None);
        let sent = Instant::now();
        let answer = proxy.call(&Call::new(id, "refund", json!({})).seq(id));
        assert_refused(&answer, "journal_unavailable", "not_started");
        assert!(sent.elapsed() < Duration::from_secs(15), "{sent:?}");
    }
    writer.execute_batch("COMMIT").unwrap();
    proxy.stop();
    assert_eq!(world.effects_of("refund"), 1);
}

#[test]
fn an_outcome_waits_for_a_busy_journal() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    proxy.send_call(&Call::charge(1).seq(1).script(json!({"hold_after": "h"})));
    world.wait_held("h");
    let writer = rusqlite::Connection::open(world.journal()).unwrap();
    writer.busy_timeout(Duration::from_secs(5)).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    world.release("h");
    let early = proxy.recv_id_within(1, Duration::from_millis(500));
    assert_eq!(early, None, "answered before it was durable");
    writer.execute_batch("ROLLBACK").unwrap();
    assert_done(&proxy.recv_id(1));
    proxy.stop();
    assert_eq!(world.status(1), "COMPLETED");
    assert_eq!(world.effects_of("charge"), 1);
}

/// A disk that is full after the effect, as the limit of a file's size.
#[test]
fn an_outcome_that_cannot_be_written_is_delivered_marked_and_stays_pending() {
    let world = World::new();
    let limited = ["sh", "-c", "ulimit -f 2048; exec \"$0\" \"$@\""];
    let setup = world.proxy().wrapper(limited);
    let mut proxy = setup.upstream(&["--sent", "/dev/null"]).start();
    let arguments = json!({"bytes": 8 << 20, "noise": true});
    let answer = proxy.call(&Call::new(1, "big", arguments).seq(1));
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert_eq!(text.len(), 8 << 20);
    let mark = &answer["result"]["_meta"]["checkpoint"];
    assert_eq!(mark, &json!({"seq": 1, "journaled": false}));
    let next = proxy.call(&Call::charge(2).seq(2));
    assert_refused(&next, "journal_unavailable", "not_started");
    proxy.assert_ping();
    proxy.close_stdin();
    proxy.wait();
    assert_eq!(world.status(1), "PENDING");
    assert_eq!(world.effects_of("big"), 1);
    assert_eq!(world.effects_of("charge"), 0);
}

#[test]
fn a_reservation_that_cannot_be_written_is_not_started() {
    let world = World::new();
    let limited = ["sh", "-c", "ulimit -f 2048; exec \"$0\" \"$@\""];
    let mut proxy = world.proxy().wrapper(limited).start();
    assert_done(&proxy.call(&Call::new(1, "refund", json!({})).seq(1)));
    let mut state = 7u64;
    let padding: String = (0..8 << 20)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            char::from(b'a' + (state >> 33) as u8 % 26)
        })
        .collect();
    let answer = proxy.call(&Call::new(2, "charge", json!({"padding": padding})).seq(2));
    assert_refused(&answer, "journal_unavailable", "not_started");
    assert!(refusal(&answer)["reason"].is_string(), "{answer}");
    proxy.assert_ping();
    proxy.kill9();
    assert_eq!(world.effects_of("charge"), 0);
    assert_eq!(world.calls_at_upstream(), 1);
}

/// No file at all.
const NOWHERE: [PathBuf; 0] = [];

const CANARY: &str = "canary-4111-1111";

fn canary_call(id: u32) -> Call {
    let arguments = json!({"order_id": CANARY, "nested": [{"x": CANARY}], CANARY: 1});
    Call::new(id, "charge", arguments).seq(1)
}

/// The files of the journal in which the canary sits.
fn canary_sits_in(world: &World) -> Vec<PathBuf> {
    let mut files = files_below(&world.path("state"));
    files.retain(|_, bytes| contains(bytes, CANARY.as_bytes()));
    files.into_keys().collect()
}

#[test]
fn redacted_arguments_are_in_no_file_and_still_replay() {
    let world = World::new();
    let redacting = || {
        world
            .proxy()
            .flags(["--redact-args-in-journal", "--log", "trace"])
    };
    let mut proxy = redacting().start();
    assert_done(&proxy.call(&canary_call(1)));
    assert_eq!(canary_sits_in(&world), NOWHERE);
    proxy.stop_and_read(|stderr| assert!(!stderr.contains(CANARY), "{stderr}"));
    let mut proxy = redacting().start();
    assert_done(&proxy.call(&canary_call(2)));
    let other = Call::new(3, "charge", json!({"order_id": CANARY})).seq(1);
    let answer = proxy.call(&other);
    assert_refused(&answer, "divergence", "not_started");
    assert_eq!(refusal(&answer).get("diff"), None, "{answer}");
    assert!(!answer.to_string().contains(CANARY), "{answer}");
    proxy.stop();
    assert_eq!(canary_sits_in(&world), NOWHERE);
    // Case C101: what was asked is told, or that it was redacted.
    let shown = world.show_json(1);
    assert!(!shown.to_string().contains(CANARY), "{shown}");
    assert_eq!(shown["arguments"]["state"], "redacted", "{shown}");
    assert_eq!(shown["entry"]["signature"].as_str().unwrap().len(), 64);
    let text = crate::world::run(&world, 0, &["show", "1"]);
    assert!(text.contains("Arguments\n  redacted"), "{text}");
    assert_eq!(world.effects_of("charge"), 1);
    // Switched off again, the old entry is still found by its keyed signature.
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&canary_call(4)));
    proxy.stop();
    assert_eq!(world.effects_of("charge"), 1);
}

#[test]
fn without_redaction_the_canary_is_found() {
    let world = World::new();
    let mut proxy = world.proxy().start();
    assert_done(&proxy.call(&canary_call(1)));
    assert!(!canary_sits_in(&world).is_empty());
    proxy.stop();
}

#[test]
fn a_lost_key_is_refused_and_never_made_anew() {
    let world = World::new();
    let state = world.path("state");
    let plain = used_world();
    let plain: Vec<_> = file_names(&plain.path("state"));
    let redacting = || world.proxy().flags(["--redact-args-in-journal"]);
    let mut proxy = redacting().start();
    assert_done(&proxy.call(&Call::charge(1).seq(1)));
    proxy.stop();
    let mut extra = file_names(&state);
    extra.retain(|name| !plain.contains(name));
    assert_eq!(extra.len(), 1, "the key's file: {extra:?}");
    fs::remove_file(state.join(&extra[0])).unwrap();
    let output = redacting().run(b"");
    assert_eq!(output.status.code(), Some(UNUSABLE), "{output:?}");
    assert!(!state.join(&extra[0]).exists());
    assert_eq!(world.effects_of("charge"), 1);
}

fn file_names(folder: &Path) -> Vec<String> {
    files_below(folder)
        .keys()
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect()
}

const PROXIES: u64 = 8;
const CALLS: u64 = 20;

#[test]
fn many_proxies_on_one_journal_never_share_a_seq() {
    let world = World::new();
    std::thread::scope(|scope| {
        for number in 0..PROXIES {
            let world = &world;
            scope.spawn(move || {
                let mut proxy = world.proxy().start();
                for call in 0..CALLS {
                    let order = json!({"order_id": format!("{number}-{call}")});
                    assert_done(&proxy.call(&Call::new(call, "charge", order)));
                }
                proxy.stop();
            });
        }
    });
    let mut seqs: Vec<u64> = world
        .entries()
        .iter()
        .map(|entry| entry["seq"].as_u64().unwrap())
        .collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=PROXIES * CALLS).collect::<Vec<_>>());
    assert_eq!(world.effects_of("charge") as u64, PROXIES * CALLS);
    assert!(world.operator(&["verify"]).status.success());
}

#[test]
fn many_proxies_that_race_for_the_same_seqs_run_each_once() {
    let world = World::new();
    let results: Vec<Vec<Value>> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..PROXIES)
            .map(|_| {
                scope.spawn(|| {
                    let mut proxy = world.proxy().start();
                    let results = (1..=CALLS)
                        .map(|seq| {
                            let order = json!({"order_id": seq});
                            let call = Call::new(seq, "charge", order).seq(seq);
                            let mut answer = proxy.call(&call);
                            assert_done(&answer);
                            answer["result"].take()
                        })
                        .collect();
                    proxy.stop();
                    results
                })
            })
            .collect();
        racers
            .into_iter()
            .map(|racer| racer.join().unwrap())
            .collect()
    });
    assert!(results.iter().all(|seen| *seen == results[0]));
    assert_eq!(world.effects_of("charge") as u64, CALLS);
    assert_eq!(world.calls_at_upstream() as u64, CALLS);
    assert_eq!(world.entries().len() as u64, CALLS);
    assert!(world.operator(&["verify"]).status.success());
}
