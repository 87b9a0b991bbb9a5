use crate::guard::fixture::{TestGuard, World, answer, call, reserve, settle};
use crate::guard::{Done, Op};
use crate::rules::entry::Status;
use crate::rules::ids::Micros;

/// Makes a task, under the policy of this record.
fn task(guard: &mut TestGuard, seq: u64, record: Option<&str>) {
    let mut made = call(Some(seq), "{}");
    made.policy_record = record.map(Into::into);
    let ticket = reserve(guard, made, 1_000);
    settle(
        guard,
        ticket,
        answer(Status::Accepted, "{\"task\":{}}"),
        1_001,
    );
}

/// Tells the end of the task; returns whether it was taken for one.
fn end(guard: &mut TestGuard, created_at: Option<&str>) -> bool {
    let end = Op::TaskEnd {
        task_id: "t-1".into(),
        created_at: created_at.map(Into::into),
        answer: answer(Status::Completed, "{\"r\":1}"),
    };
    let done = guard.run(&[end], Micros(1_002)).unwrap();
    matches!(done[..], [Done::Settled(_)])
}

#[test]
fn the_end_of_a_task_is_kept_as_its_own_policy_says() {
    for (record, is_kept) in [
        (None, true),
        (Some("max_result = \"7B\"\n"), true),
        (Some("max_result = \"6B\"\n"), false),
        (Some("store_result = false\n"), false),
    ] {
        let world = World::new();
        let mut guard = world.guard();
        task(&mut guard, 1, record);
        assert!(end(&mut guard, Some("then")));
        let sql = "SELECT body NOTNULL, (SELECT body NOTNULL FROM outcomes) FROM task_ends";
        let kept: (bool, bool) = world
            .sql()
            .query_row(sql, (), |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        assert_eq!(kept, (is_kept, true), "{record:?}");
    }
}

#[test]
fn a_task_is_ended_by_its_id_and_time_or_by_who_made_it() {
    let world = World::new();
    let mut maker = world.guard();
    task(&mut maker, 1, None);
    let mut other = world.guard();
    task(&mut other, 2, Some("max_attempts = 1\n"));
    let statuses = || -> Vec<String> {
        let db = world.sql();
        let mut rows = db
            .prepare("SELECT status FROM entries ORDER BY seq")
            .unwrap();
        let read = rows.query_map((), |row| row.get(0)).unwrap();
        read.map(Result::unwrap).collect()
    };
    assert!(!end(&mut maker, Some("another time")));
    assert!(!end(&mut world.guard(), None));
    assert_eq!(statuses(), ["ACCEPTED", "ACCEPTED"]);
    assert!(end(&mut maker, None));
    assert_eq!(statuses(), ["COMPLETED", "ACCEPTED"]);
    assert!(!end(&mut maker, None));
    assert!(end(&mut other, None));
    assert_eq!(statuses(), ["COMPLETED", "COMPLETED"]);
}
