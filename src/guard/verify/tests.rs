use super::*;
use crate::guard::fixture::{World, call, calls_of_every_sort, reserve};
use crate::journal::mark::Mark;
use crate::journal::place::Companion;
use crate::rules::signature::signature;

fn kinds(world: &World) -> Vec<(&'static str, Option<u64>)> {
    let (findings, _) = all(world);
    let mut kinds: Vec<_> = findings
        .into_iter()
        .map(|finding| (finding.kind, finding.seq))
        .collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

fn all(world: &World) -> (Vec<Finding>, Seen) {
    let mut findings = Vec::new();
    let seen = verify(
        &world.path,
        &mut |finding| findings.push(finding),
        &mut |_| {},
    )
    .unwrap();
    (findings, seen)
}

#[test]
fn what_the_guard_writes_holds_also_while_it_runs() {
    let world = World::new();
    let guard = calls_of_every_sort(&world);
    let (findings, seen) = all(&world);
    assert_eq!(findings, []);
    assert_eq!((seen.entries, seen.workflows), (10, 1));
    assert_eq!((seen.attempts, seen.highest_fence), (12, 12));
    drop(guard);
    assert_eq!(all(&world).0, []);
    assert_eq!(all(&World::new()).0, []);
}

/// Damages a journal of every sort of call with SQL; returns what is found then.
#[track_caller]
fn after(sql: &str) -> Vec<(&'static str, Option<u64>)> {
    let world = World::new();
    drop(calls_of_every_sort(&world));
    let db = world.sql();
    db.execute_batch(sql).unwrap();
    drop(db);
    kinds(&world)
}

#[test]
fn each_sort_of_damage_is_found_where_it_is() {
    let at = |seq| Some(seq);
    for (sql, expected) in [
        (
            "UPDATE entries SET tool = 'refund' WHERE seq = 1",
            vec![("checksum", at(1))],
        ),
        (
            "UPDATE entries SET status = 'VOIDED' WHERE seq = 3",
            vec![("checksum", at(3)), ("row", at(3))],
        ),
        (
            "UPDATE entries SET status = 'DONE' WHERE seq = 3",
            // The rest of its history is then no part of a row that can be read.
            vec![("attempt", at(3)), ("unreadable", at(3))],
        ),
        (
            "UPDATE outcomes SET body = x'7b7d' WHERE fence = 1",
            vec![("digest", at(1))],
        ),
        (
            "UPDATE task_ends SET body = x'7b7d'",
            vec![("digest", at(6))],
        ),
        (
            "UPDATE outcomes SET body = NULL WHERE fence = 1",
            vec![("payload", at(1))],
        ),
        ("DELETE FROM outcomes WHERE fence = 1", vec![("row", at(1))]),
        (
            "UPDATE outcomes SET next_fence = fence WHERE fence = 1",
            vec![("fence", None)],
        ),
        (
            "UPDATE outcomes SET next_fence = 2 + (SELECT max(fence) FROM attempts) \
             WHERE fence = 1",
            vec![("fence", None)],
        ),
        (
            "DELETE FROM entries WHERE seq = 2",
            vec![("attempt", at(2)), ("missing", at(2))],
        ),
        (
            "DELETE FROM entries WHERE seq = 12",
            vec![("attempt", at(12)), ("event", at(12)), ("missing", at(12))],
        ),
        ("DELETE FROM gaps", vec![("missing", at(8))]),
        ("UPDATE gaps SET last_seq = 8", vec![("missing", at(8))]),
        ("UPDATE gaps SET last_seq = 99", vec![("gap", at(8))]),
        ("UPDATE gaps SET first_seq = 0", vec![("gap", at(0))]),
        (
            "INSERT INTO gaps SELECT branch_id, 9, 9 FROM gaps",
            vec![("gap", at(9))],
        ),
        (
            "INSERT INTO gaps SELECT branch_id, 11, 10 FROM gaps",
            vec![("gap", at(11))],
        ),
        (
            "UPDATE workflows SET generation = 9",
            vec![("session", None)],
        ),
        (
            "UPDATE branches SET highest_seq = 11",
            vec![("branch", at(12))],
        ),
        (
            "UPDATE branches SET highest_seq = 14",
            vec![("missing", at(13))],
        ),
        (
            "DELETE FROM attempts WHERE fence = 1",
            vec![("attempt", None), ("attempt", at(1))],
        ),
        (
            "DELETE FROM attempts WHERE fence = 4",
            vec![("attempt", at(4))],
        ),
        (
            "UPDATE attempts SET attempt = 7 WHERE fence = 5",
            vec![("attempt", at(4)), ("row", at(4))],
        ),
        (
            "INSERT INTO attempts SELECT 99, branch_id, seq, attempt, round, previous, session_id, \
             started_at, scheme, signature, arguments_bytes, redacted, protocol_version, \
             tool_revision, policy, traceparent, arguments FROM attempts WHERE fence = 1",
            vec![("attempt", at(1))],
        ),
        (
            "DELETE FROM events WHERE id = 1",
            vec![("event", None), ("transition", at(4))],
        ),
        (
            "DELETE FROM sessions",
            (1..=12)
                .filter(|seq| !matches!(seq, 8 | 9))
                .map(|seq| ("session", at(seq)))
                .collect(),
        ),
        (
            "UPDATE workflows SET active_branch = 77",
            vec![("workflow", None)],
        ),
        (
            "UPDATE entries SET key = 'k', window = 'run', window_id = 'w' WHERE seq IN (1, 2)",
            vec![
                ("checksum", at(1)),
                ("checksum", at(2)),
                ("held_key", at(2)),
            ],
        ),
        (
            "CREATE TRIGGER run_again AFTER UPDATE ON entries BEGIN SELECT 1; END",
            vec![("schema", None)],
        ),
        (
            "DROP INDEX entries_key",
            vec![("integrity", None), ("schema", None)],
        ),
        ("DELETE FROM meta WHERE name = 'own_workflow'", vec![]),
    ] {
        let found = after(sql);
        if expected.is_empty() {
            assert!(found.contains(&("meta", None)), "{sql}: {found:?}");
        } else {
            assert_eq!(found, expected, "{sql}");
        }
    }
}

/// Adds a branch 50, without entries, to a journal of every sort of call.
#[track_caller]
fn with_branch(parent: i64, forked_at: i64, highest: i64) -> Vec<(&'static str, Option<u64>)> {
    after(&format!(
        "INSERT INTO branches SELECT 50, workflow, 50, {parent}, {forked_at}, {highest}, created_at \
         FROM branches LIMIT 1; UPDATE workflows SET active_branch = 50"
    ))
}

#[test]
fn a_branch_begins_where_it_was_forked_from_one_that_is_older() {
    let own: i64 = {
        let world = World::new();
        drop(calls_of_every_sort(&world));
        let sql = "SELECT min(id) FROM branches";
        world.sql().query_row(sql, (), |row| row.get(0)).unwrap()
    };
    assert_eq!(with_branch(own, 3, 2), []);
    assert_eq!(with_branch(own, 1, 0), []);
    // From 3 on an entry should be there, or have been left out.
    assert_eq!(with_branch(own, 3, 4), [("missing", Some(3))]);
    // The journal's own branch ends at 12.
    assert_eq!(with_branch(own, 13, 12), []);
    assert_eq!(with_branch(own, 14, 13), [("branch", None)]);
    assert_eq!(with_branch(own, 3, 1), [("branch", None)]);
    for (parent, forked_at) in [(50, 3), (51, 3), (own, 0), (own + 1, 3)] {
        let found = with_branch(parent, forked_at, 0);
        assert!(found.contains(&("branch", None)), "{parent}, {forked_at}");
    }
}

#[test]
fn the_newest_branch_is_the_active_one() {
    let found = after(
        "INSERT INTO branches SELECT 50, workflow, 50, id, 3, 2, created_at FROM branches LIMIT 1",
    );
    assert_eq!(found, [("workflow", None)]);
}

/// Nothing but the signature covers what an operator is shown of a call.
#[test]
fn arguments_that_are_not_those_of_the_call_are_found() {
    let at = |seq| Some(seq);
    for (sql, expected) in [
        (
            "UPDATE attempts SET arguments = CAST('{\"n\":100}' AS BLOB), arguments_bytes = 9 \
             WHERE fence = 1",
            vec![("arguments", at(1))],
        ),
        (
            "UPDATE attempts SET arguments = CAST('{\"n\":9}' AS BLOB) WHERE fence = 1",
            vec![("arguments", at(1))],
        ),
        (
            "UPDATE attempts SET arguments = x'7b' WHERE fence = 1",
            vec![("arguments", at(1))],
        ),
        (
            "UPDATE attempts SET arguments = CAST('[[[[[[[' AS BLOB) WHERE fence = 1",
            vec![("arguments", at(1))],
        ),
        (
            "UPDATE attempts SET arguments = NULL, arguments_bytes = 0 WHERE fence = 1",
            vec![("arguments", at(1))],
        ),
        (
            "UPDATE attempts SET arguments_bytes = 8 WHERE fence = 1",
            vec![("arguments", at(1))],
        ),
        // The same call for every reader, and arguments that were buried or redacted.
        (
            "UPDATE attempts SET arguments = CAST(' {\"n\":1.0}' AS BLOB), arguments_bytes = 10 \
             WHERE fence = 1",
            vec![],
        ),
        ("UPDATE attempts SET arguments = NULL", vec![]),
        (
            "UPDATE attempts SET arguments = NULL, arguments_bytes = 0, redacted = 1",
            vec![],
        ),
        // An attempt of another call before it can't be compared: only the row has the tool.
        (
            "UPDATE attempts SET arguments = x'7b7d', arguments_bytes = 2 WHERE fence = 4",
            vec![],
        ),
        // Its own checksum tells of another tool already.
        (
            "UPDATE entries SET tool = 'refund' WHERE seq = 1",
            vec![("checksum", at(1))],
        ),
    ] {
        assert_eq!(after(sql), expected, "{sql}");
    }
}

#[test]
fn a_call_without_arguments_and_one_for_a_task_are_what_their_signatures_say() {
    let world = World::new();
    let mut guard = world.guard();
    for (seq, arguments, has_task) in [
        (1, None, false),
        (2, None, true),
        (3, Some("{\"n\":3}"), true),
        (4, Some("null"), false),
        (5, Some("{}"), false),
    ] {
        let bytes = arguments.map(str::as_bytes);
        let call = crate::guard::Call {
            signature: signature("charge", bytes, has_task).unwrap(),
            arguments: bytes.map(|bytes| bytes.to_vec().into()),
            ..call(Some(seq), "{}")
        };
        reserve(&mut guard, call, 10);
    }
    drop(guard);
    assert_eq!(kinds(&world), []);
}

#[test]
fn what_a_question_is_told_by_is_that_of_its_bytes() {
    for sql in [
        "UPDATE outcomes SET state = NULL WHERE fence = 6",
        "UPDATE outcomes SET state = zeroblob(32) WHERE fence = 6",
        "UPDATE outcomes SET state = x'00' WHERE fence = 6",
        "UPDATE outcomes SET inputs = 'other' WHERE fence = 6",
        "UPDATE outcomes SET inputs = NULL WHERE fence = 6",
        "UPDATE outcomes SET state = zeroblob(32) WHERE fence = 1",
        "UPDATE outcomes SET inputs = '' WHERE fence = 1",
    ] {
        assert_eq!(after(sql), [("round", None)], "{sql}");
    }
    // Bytes that are gone tell nothing of it.
    let found = after("UPDATE outcomes SET body = NULL, state = zeroblob(32) WHERE fence = 6");
    assert_eq!(found, [("payload", Some(5))]);
}

#[test]
fn a_detail_that_is_no_json_is_found() {
    let found = after("UPDATE events SET detail = '{\"reason\":' WHERE id = 1");
    assert_eq!(found, [("event", Some(4))]);
}

#[test]
fn how_many_are_missing_is_said() {
    let whats = |sql: &str| -> Vec<String> {
        let world = World::new();
        drop(calls_of_every_sort(&world));
        world.sql().execute_batch(sql).unwrap();
        all(&world)
            .0
            .into_iter()
            .filter(|finding| matches!(finding.kind, "missing" | "event"))
            .map(|finding| finding.what)
            .collect()
    };
    for (sql, told) in [
        (
            "UPDATE branches SET highest_seq = 13",
            "entry 13 is missing: it is neither there nor was it left out",
        ),
        (
            "UPDATE branches SET highest_seq = 15",
            "entries 13 to 15 are missing: not all were left out on purpose",
        ),
        ("DELETE FROM events WHERE id = 1", "event 1 is missing"),
        (
            "DELETE FROM events WHERE id IN (1, 2)",
            "events 1 to 2 are missing",
        ),
    ] {
        assert_eq!(whats(sql), [told], "{sql}");
    }
}

#[test]
fn a_keyed_signature_needs_a_key() {
    for table in ["entries", "attempts"] {
        let found = after(&format!("UPDATE {table} SET scheme = 'h1' WHERE seq = 1"));
        assert!(found.contains(&("key", None)), "{table}: {found:?}");
    }
}

#[test]
fn an_event_without_its_voiding_is_not_replayed() {
    // The guard's own events are 1 (entry 4), 2 (entry 11), 3 (entry 12).
    let found = after("UPDATE events SET kind = 'noted' WHERE id = 3");
    assert_eq!(found, [("row", Some(12))]);
    let found = after("UPDATE events SET kind = 'noted' WHERE id = 2");
    assert_eq!(found, [("attempt", Some(11))]);
}

#[test]
fn a_mark_that_knows_more_and_one_of_another_journal_are_found() {
    let world = World::new();
    drop(calls_of_every_sort(&world));
    let (mark, _) = Mark::open(&world.path, &[9; 16]).unwrap();
    mark.raise(1, 12).unwrap();
    assert_eq!(kinds(&world), []);
    mark.raise(1, 13).unwrap();
    assert_eq!(kinds(&world), [("mark", None)]);
    drop(mark);
    Mark::accept_lower(&world.path, &[1; 16], 0).unwrap();
    assert_eq!(kinds(&world), [("mark", None)]);
}

#[test]
fn a_key_that_is_not_there_is_found() {
    let world = World::new();
    drop(calls_of_every_sort(&world));
    let key = Key::make_or_adopt(&world.path).unwrap();
    let db = world.sql();
    db.execute(
        "INSERT INTO meta (name, value) VALUES ('key_fingerprint', ?1)",
        [&key.fingerprint()[..]],
    )
    .unwrap();
    drop(db);
    assert_eq!(kinds(&world), []);
    std::fs::remove_file(world.path.companion(Companion::Key)).unwrap();
    assert_eq!(kinds(&world), [("key", None)]);
}

#[test]
fn a_file_that_is_cut_off_or_flipped_is_damage_and_no_failure() {
    let world = World::new();
    drop(calls_of_every_sort(&world));
    let bytes = std::fs::read(world.path.as_path()).unwrap();
    for length in (0..bytes.len()).step_by(4_096) {
        std::fs::write(world.path.as_path(), &bytes[..length]).unwrap();
        let found = kinds(&world);
        assert!(!found.is_empty(), "{length} bytes");
    }
    // Any damage to a page of rows is found by SQLite, a checksum or a digest; the first page
    // holds the header and the schema's text.
    for at in (4_096..bytes.len()).step_by(4_096) {
        let mut damaged = bytes.clone();
        for byte in &mut damaged[at..at + 16] {
            *byte ^= 0x55;
        }
        std::fs::write(world.path.as_path(), &damaged).unwrap();
        assert!(!kinds(&world).is_empty(), "page at {at}");
    }
}

#[test]
fn what_is_no_journal_is_refused() {
    let world = World::new();
    std::fs::write(world.path.as_path(), "no journal at all, but text").unwrap();
    let refused = verify(&world.path, &mut |_| {}, &mut |_| {});
    assert!(matches!(refused, Err(CannotUse::NotAJournal { .. })));
    std::fs::remove_file(world.path.as_path()).unwrap();
    let refused = verify(&world.path, &mut |_| {}, &mut |_| {});
    assert!(matches!(refused, Err(CannotUse::Absent { .. })));
}
