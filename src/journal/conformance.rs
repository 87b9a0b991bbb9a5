//! The suite that each back-end must pass: every promise of [`super::Journal`] and
//! [`super::Transaction`] is a check here, run against every implementation.
//!
//! A bug found in one back-end becomes a check for all. Must not: know which back-end it runs
//! against.

#[cfg(test)]
pub(crate) mod beside;
mod delivery;
mod flights;
mod rows;

use rows::{
    UID, attempt, outcome, reservation, reserve, reserve_with, settle, tx, workflow, write,
};

use super::{
    Applied, Attempt, Durability, Event, Journal, Lease, Outcome, RoundKey, Session, TaskKey,
    Transaction, Write,
};
use crate::rules::entry::{Entry, Provenance, Status};
use crate::rules::ids::{BranchId, Fence, HeldKey, Micros, Seq, SessionId, Window, WorkflowId};
use crate::rules::lifecycle::{self, Settlement};

/// Runs the whole suite; `make` returns an empty journal each time it is called. Returns how many
/// checks were run.
///
/// # Panics
///
/// A check fails.
pub fn run<J: Journal>(mut make: impl FnMut() -> J) -> usize {
    let checks: [fn(&mut J); 20] = [
        a_commit_keeps_and_a_drop_forgets,
        a_workflow_is_made_once_with_its_first_branch,
        a_batch_sees_what_it_has_written,
        a_reservation_is_made_once,
        a_change_loses_against_another_status_attempt_or_fence,
        nothing_of_a_lost_write_is_kept,
        fences_and_sessions_rise,
        seqs_beyond_the_last_leave_gaps_that_fill,
        delivery::what_is_undelivered_is_found_by_signature_until_it_is_delivered,
        delivery::neighbours_are_delivered_together,
        keys_find_their_first_entry,
        outcomes_come_back_as_they_were,
        large_payloads_come_back_as_they_were,
        questions_and_tasks_are_found_again,
        flights::a_flight_ends_with_its_outcome_and_no_clock_tells_when,
        flights::what_is_committed_together_was_in_flight_together,
        a_branch_shares_what_is_before_it,
        generations_and_leases_are_kept,
        events_are_appended_or_counted,
        a_payload_is_dropped_and_what_it_is_told_by_stays,
    ];
    for check in checks {
        check(&mut make());
    }
    checks.len()
}

fn a_commit_keeps_and_a_drop_forgets<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    {
        let mut tx = tx(journal);
        reserve(&mut tx, branch, 1);
    }
    let mut second = tx(journal);
    assert_eq!(second.entry(branch, Seq(1)).expect("read"), None);
    let entry = reserve(&mut second, branch, 1);
    second.commit().expect("it commits");
    let mut third = tx(journal);
    let stored = third
        .entry(branch, Seq(1))
        .expect("read")
        .expect("it is there");
    assert_eq!(stored.entry, entry);
    assert_eq!(stored.checksum, entry.checksum(&UID));
}

fn a_workflow_is_made_once_with_its_first_branch<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    let found = tx
        .workflow(&WorkflowId("w".into()))
        .expect("read")
        .expect("it is there");
    assert_eq!(found.active.id, branch);
    assert_eq!((found.active.number, found.active.highest), (0, 0));
    assert_eq!(found.uid, [1; 16]);
    assert_eq!(tx.workflow(&WorkflowId("v".into())).expect("read"), None);
    let other = tx
        .create_workflow(&WorkflowId("v".into()), [2; 16], Micros(2))
        .expect("another is made");
    assert_ne!(other.active.id, branch);
    assert_ne!(other.number, found.number);
}

fn a_batch_sees_what_it_has_written<J: Journal>(journal: &mut J) {
    let main = workflow(journal);
    let name = WorkflowId("w".into());
    let highest = |tx: &mut J::Tx<'_>, branch| {
        let branch = tx.branch(branch).expect("it is read");
        branch.expect("it is there").highest
    };
    // A batch that is given up leaves nothing behind of what it had seen.
    let mut given_up = tx(journal);
    reserve(&mut given_up, main, 1);
    assert_eq!(highest(&mut given_up, main), 1);
    drop(given_up);

    let mut batch = tx(journal);
    let active = |tx: &mut J::Tx<'_>| {
        let workflow = tx.workflow(&name).expect("it is read");
        workflow.expect("it is there").active
    };
    assert_eq!(active(&mut batch).highest, 0);
    for seq in 1..=3 {
        assert_eq!(batch.next_fence().expect("a fence"), Fence(seq));
        reserve(&mut batch, main, seq);
        assert_eq!(highest(&mut batch, main), seq);
        assert_eq!(active(&mut batch).highest, seq);
    }
    let fork = batch.create_branch(1, (main, Seq(2)), Micros(9));
    let fork = fork.expect("a branch");
    assert_eq!(active(&mut batch), fork);
    assert_eq!((highest(&mut batch, main), fork.highest), (3, 1));
    reserve(&mut batch, fork.id, 4);
    reserve(&mut batch, main, 5);
    let other = batch.fork_workflow(&WorkflowId("v".into()), [2; 16], (main, Seq(5)), Micros(9));
    let other = other.expect("a workflow").active;
    assert_eq!(other.highest, 4);
    batch
        .set_generation(1, SessionId(1))
        .expect("it is written");
    let workflow = batch.workflow(&name).expect("it is read");
    let workflow = workflow.expect("it is there");
    assert_eq!(workflow.generation, Some(SessionId(1)));
    assert_eq!((workflow.active.id, workflow.active.highest), (fork.id, 4));
    reserve(&mut batch, main, 6);
    batch.commit().expect("it commits");

    let mut later = tx(journal);
    assert_eq!(highest(&mut later, main), 6);
    assert_eq!(highest(&mut later, fork.id), 4);
    assert_eq!(highest(&mut later, other.id), 4);
    assert_eq!(active(&mut later).id, fork.id);
    assert!(later.is_gap(main, Seq(4)).expect("it is read"));
    assert!(later.is_gap(fork.id, Seq(2)).expect("it is read"));
    assert_eq!(later.next_fence().expect("a fence"), Fence(7));
}

fn a_reservation_is_made_once<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    let first = reserve(&mut tx, branch, 1);
    let fence = tx.next_fence().expect("a fence");
    let again = write(lifecycle::reserve_new(reservation(branch, 1, fence)));
    assert_eq!(tx.apply(&again).expect("no error"), Applied::Lost);
    let stored = tx
        .entry(branch, Seq(1))
        .expect("read")
        .expect("it is there");
    assert_eq!(stored.entry, first);
}

fn a_change_loses_against_another_status_attempt_or_fence<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    let entry = reserve(&mut tx, branch, 1);
    let wrong = [
        Entry {
            status: Status::Accepted,
            ..entry.clone()
        },
        Entry {
            attempt: 2,
            ..entry.clone()
        },
        Entry {
            fence: Fence(entry.fence.0 + 1),
            ..entry.clone()
        },
    ];
    for wrong in wrong {
        let transition = lifecycle::settle(
            &wrong,
            Settlement {
                status: Status::Completed,
                is_error: false,
                provenance: Provenance::Upstream,
                digest: [0; 32],
                is_tombstone: false,
                at: Micros(2),
            },
        )
        .expect("legal from there");
        assert_eq!(
            tx.apply(&write(transition)).expect("no error"),
            Applied::Lost
        );
    }
    let stored = tx
        .entry(branch, Seq(1))
        .expect("read")
        .expect("it is there");
    assert_eq!(stored.entry, entry);
}

fn nothing_of_a_lost_write_is_kept<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    let entry = reserve(&mut tx, branch, 1);
    settle(&mut tx, &entry, outcome(&entry, Status::Completed, b"{}"));
    let late = lifecycle::settle(
        &entry,
        Settlement {
            status: Status::Failed,
            is_error: false,
            provenance: Provenance::Upstream,
            digest: [1; 32],
            is_tombstone: false,
            at: Micros(3),
        },
    )
    .expect("legal from PENDING");
    let mut lost = write(late);
    lost.event = Some(event("late_result"));
    assert_eq!(tx.apply(&lost).expect("no error"), Applied::Lost);
    assert_eq!(tx.events(branch, Seq(1)).expect("read"), vec![]);
    let kept = tx.outcome(entry.fence).expect("read").expect("it is there");
    assert_eq!(kept.status, Status::Completed);
}

fn fences_and_sessions_rise<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    let first = tx.next_fence().expect("a fence");
    let entry = reserve(&mut tx, branch, 1);
    assert_eq!(entry.fence, first);
    assert!(tx.next_fence().expect("a fence") > first);
    let session = tx.next_session().expect("an id");
    assert_eq!(session, SessionId(2));
    let row = Session {
        host: "h".into(),
        pid: 3,
        upstream_started_at: Some(99),
        ..Session::default()
    };
    tx.put_session(session, &row).expect("written");
    assert_eq!(tx.session(session).expect("read"), Some(row));
    assert!(tx.next_session().expect("an id") > session);
}

fn seqs_beyond_the_last_leave_gaps_that_fill<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    reserve(&mut tx, branch, 5);
    let highest = |tx: &mut J::Tx<'_>| tx.branch(branch).expect("read").expect("there").highest;
    assert_eq!(highest(&mut tx), 5);
    let gaps = |tx: &mut J::Tx<'_>| -> Vec<u64> {
        (1..=7)
            .filter(|seq| tx.is_gap(branch, Seq(*seq)).expect("read"))
            .collect()
    };
    assert_eq!(gaps(&mut tx), [1, 2, 3, 4]);
    reserve(&mut tx, branch, 2);
    assert_eq!(gaps(&mut tx), [1, 3, 4]);
    reserve(&mut tx, branch, 4);
    reserve(&mut tx, branch, 1);
    assert_eq!(gaps(&mut tx), [3]);
    assert_eq!(highest(&mut tx), 5);
    reserve(&mut tx, branch, 6);
    assert_eq!(gaps(&mut tx), [3]);
}

fn keys_find_their_first_entry<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    let held = |window, id: &str| HeldKey {
        key: "k".into(),
        window,
        window_id: id.into(),
    };
    let run = held(Window::Run, "w");
    reserve_with(&mut tx, branch, 1, |reservation| {
        reservation.key = Some(run.clone());
    });
    reserve_with(&mut tx, branch, 2, |reservation| {
        reservation.key = Some(run.clone());
    });
    let found = tx.by_key(&run).expect("read").expect("there");
    assert_eq!(found.entry.seq, Seq(1));
    assert_eq!(tx.by_key(&held(Window::Journal, "w")).expect("read"), None);
    assert_eq!(tx.by_key(&held(Window::Run, "v")).expect("read"), None);
}

fn outcomes_come_back_as_they_were<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    let entry = reserve(&mut tx, branch, 1);
    assert_eq!(tx.outcome(entry.fence).expect("read"), None);
    let body = b"{\"n\":1.0,\"big\":12345678901234567890123,\"z\":\"\\ud800\"}";
    let given = outcome(&entry, Status::Completed, body);
    settle(&mut tx, &entry, given.clone());
    assert_eq!(tx.outcome(entry.fence).expect("read"), Some(given));
    let stored = tx.attempt(entry.fence).expect("read").expect("there");
    assert_eq!(stored, attempt(&entry));
}

fn large_payloads_come_back_as_they_were<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let fence = tx.next_fence().expect("a fence");
    let transition = lifecycle::reserve_new(reservation(branch, 1, fence));
    let entry = transition.entry.clone();
    let mut reserve = write(transition);
    let mut first = attempt(&entry);
    first.arguments = Some(large.clone().into());
    reserve.attempt = Some(first.clone());
    assert_eq!(tx.apply(&reserve).expect("written"), Applied::Done);
    let given = outcome(&entry, Status::Accepted, &large);
    let accepted = settle(&mut tx, &entry, given.clone());
    let end = outcome(&accepted, Status::Completed, &large[1..]);
    settle(&mut tx, &accepted, end.clone());
    tx.commit().expect("it commits");
    let mut tx = journal.begin(Durability::Power).expect("it begins");
    assert_eq!(tx.outcome(entry.fence).expect("read"), Some(given));
    assert_eq!(tx.task_end(entry.fence).expect("read"), Some(end));
    assert_eq!(tx.attempt(entry.fence).expect("read"), Some(first));
}

fn questions_and_tasks_are_found_again<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    let asked = reserve(&mut tx, branch, 1);
    let question = Outcome {
        round: Some(RoundKey {
            state: Some([3; 32]),
            inputs: "a\nb".into(),
        }),
        ..outcome(&asked, Status::InputRequired, b"{}")
    };
    settle(&mut tx, &asked, question.clone());
    assert_eq!(
        tx.by_state(&[3; 32]).expect("read"),
        vec![(branch, Seq(1), asked.fence)]
    );
    assert_eq!(tx.by_state(&[4; 32]).expect("read"), vec![]);
    assert_eq!(tx.outcome(asked.fence).expect("read"), Some(question));

    let accepted = reserve(&mut tx, branch, 2);
    let task = TaskKey {
        id: "t-1".into(),
        created_at: "2026-01-01T00:00:00Z".into(),
    };
    let handle = Outcome {
        task: Some(task.clone()),
        ..outcome(&accepted, Status::Accepted, b"{\"task\":{}}")
    };
    let accepted = settle(&mut tx, &accepted, handle.clone());
    let found = tx.by_task("t-1").expect("read");
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].0.entry.seq, &found[0].2), (Seq(2), &task));
    assert_eq!(found[0].1, accepted.fence);
    let end = outcome(&accepted, Status::Completed, b"{\"content\":[]}");
    settle(&mut tx, &accepted, end.clone());
    assert_eq!(tx.outcome(accepted.fence).expect("read"), Some(handle));
    assert_eq!(tx.task_end(accepted.fence).expect("read"), Some(end));
    assert_eq!(tx.task_end(asked.fence).expect("read"), None);

    // Whoever takes the entry away leaves the handle with the fence that gave it.
    let given = reserve(&mut tx, branch, 3);
    let handle = Outcome {
        task: Some(TaskKey {
            id: "t-2".into(),
            ..task
        }),
        ..outcome(&given, Status::Accepted, b"{\"task\":{}}")
    };
    let given = settle(&mut tx, &given, handle);
    let fence = tx.next_fence().expect("a fence");
    let taken = lifecycle::take_away(&given, fence).expect("it is open");
    let moved = Attempt {
        previous: Some(given.fence),
        ..attempt(&taken.entry)
    };
    let taken = Write {
        attempt: Some(moved),
        ..write(taken)
    };
    assert_eq!(tx.apply(&taken).expect("written"), Applied::Done);
    let found = tx.by_task("t-2").expect("read");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].1, given.fence);
    assert_eq!(found[0].0.entry, taken.transition.entry);
}

fn event(kind: &str) -> Event {
    Event {
        kind: kind.into(),
        at: Micros(40),
        entry: Some((BranchId(1), Seq(1))),
        fence: None,
        session: Some(SessionId(1)),
        letter: Some('B'),
        detail: Some("{}".into()),
        merge_key: None,
    }
}

fn a_branch_shares_what_is_before_it<J: Journal>(journal: &mut J) {
    let first = workflow(journal);
    let mut tx = tx(journal);
    for seq in 1..=3 {
        reserve(&mut tx, first, seq);
    }
    let number = tx.branch(first).expect("read").expect("there").workflow;
    let fork = tx
        .create_branch(number, (first, Seq(2)), Micros(5))
        .expect("a branch is made");
    assert_eq!((fork.number, fork.highest), (1, 1));
    assert_eq!(fork.parent, Some((first, Seq(2))));
    let found = tx
        .workflow(&WorkflowId("w".into()))
        .expect("read")
        .expect("there");
    assert_eq!(found.active, fork);
    reserve(&mut tx, fork.id, 2);
    assert_eq!(tx.count_entries(number).expect("read"), 4);
    let next = |tx: &mut J::Tx<'_>, branch, after| {
        tx.next_entry(branch, Seq(after))
            .expect("read")
            .map(|stored| stored.entry.seq.0)
    };
    assert_eq!(next(&mut tx, first, 0), Some(1));
    assert_eq!(next(&mut tx, first, 3), None);
    assert_eq!(next(&mut tx, fork.id, 0), Some(2));
    assert!(!tx.is_gap(fork.id, Seq(1)).expect("read"));
    let other = WorkflowId("w2".into());
    let made = tx
        .fork_workflow(&other, [2; 16], (first, Seq(3)), Micros(6))
        .expect("a workflow is made");
    assert_ne!(made.number, number);
    assert_eq!((made.active.number, made.active.highest), (0, 2));
    assert_eq!(made.active.parent, Some((first, Seq(3))));
    assert_eq!(tx.workflow(&other).expect("read"), Some(made.clone()));
    reserve(&mut tx, made.active.id, 3);
    assert_eq!(tx.count_entries(made.number).expect("read"), 1);
}

fn generations_and_leases_are_kept<J: Journal>(journal: &mut J) {
    workflow(journal);
    let mut tx = tx(journal);
    let id = WorkflowId("w".into());
    let found = tx.workflow(&id).expect("read").expect("there");
    assert_eq!(found.generation, None);
    tx.set_generation(found.number, SessionId(7))
        .expect("written");
    let found = tx.workflow(&id).expect("read").expect("there");
    assert_eq!(found.generation, Some(SessionId(7)));
    assert_eq!(tx.lease(Fence(1)).expect("read"), None);
    for until_ms in [10, 20] {
        let lease = Lease {
            boot_id: "b".into(),
            until_ms,
        };
        tx.put_lease(Fence(1), &lease).expect("written");
        assert_eq!(tx.lease(Fence(1)).expect("read"), Some(lease));
    }
}

fn events_are_appended_or_counted<J: Journal>(journal: &mut J) {
    workflow(journal);
    let mut tx = tx(journal);
    let merged = Event {
        merge_key: Some("m".into()),
        ..event("replayed")
    };
    for at in [40, 50, 45] {
        tx.event(&Event {
            at: Micros(at),
            ..merged.clone()
        })
        .expect("written");
    }
    tx.event(&event("diverged")).expect("written");
    tx.event(&event("diverged")).expect("written");
    let rows = tx.events(BranchId(1), Seq(1)).expect("read");
    let seen: Vec<(&str, u64, i64)> = rows
        .iter()
        .map(|row| (row.event.kind.as_str(), row.count, row.last_at.0))
        .collect();
    assert_eq!(
        seen,
        [
            ("replayed", 3, 50),
            ("diverged", 1, 40),
            ("diverged", 1, 40)
        ]
    );
    assert_eq!(tx.events(BranchId(1), Seq(2)).expect("read"), vec![]);
}

fn a_payload_is_dropped_and_what_it_is_told_by_stays<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    let mut entries = Vec::new();
    for seq in [1, 2, 5] {
        let entry = reserve(&mut tx, branch, seq);
        let outcome = outcome(&entry, Status::Completed, b"{\"r\":1}");
        entries.push(settle(&mut tx, &entry, outcome));
    }
    assert_eq!(
        tx.places_after(None, 2).expect("places"),
        [(branch, Seq(1)), (branch, Seq(2))]
    );
    assert_eq!(
        tx.places_after(Some((branch, Seq(2))), 9).expect("places"),
        [(branch, Seq(5))]
    );
    let kept = format!("{{\"answer\":\"{}\"}}", "\\u2028 \\\\ x".repeat(30_000));
    let note = Event {
        entry: Some((branch, Seq(1))),
        detail: Some(kept.clone()),
        merge_key: Some("m".into()),
        ..event("stale_result")
    };
    tx.event(&note).expect("an event is written");
    let row = tx.events(branch, Seq(1)).expect("events").remove(0);
    assert_eq!(row.event.detail, Some(kept));
    let fence = entries[0].fence;
    assert_eq!(tx.payload_bytes(fence).expect("a size"), 9 + 7);
    let buried = lifecycle::bury(&entries[0]).expect("it is settled");
    assert_eq!(tx.apply(&write(buried)).expect("written"), Applied::Done);
    tx.drop_payload(fence).expect("it is dropped");
    let row = tx.events(branch, Seq(1)).expect("events").remove(0);
    tx.put_detail(row.id, "{}").expect("it is written");
    // What is counted later brings nothing of it back.
    tx.event(&note).expect("it is counted");
    assert_eq!(tx.payload_bytes(fence).expect("a size"), 0);
    let attempt = tx.attempt(fence).expect("read").expect("it is there");
    assert_eq!((attempt.arguments, attempt.arguments_bytes), (None, 9));
    let outcome = tx.outcome(fence).expect("read").expect("it is there");
    assert_eq!(outcome.body, None);
    assert_eq!(Some(outcome.digest), entries[0].digest);
    let stored = tx
        .entry(branch, Seq(1))
        .expect("read")
        .expect("it is there");
    assert!(stored.entry.is_tombstone);
    assert_eq!(stored.checksum, stored.entry.checksum(&UID));
    let row = tx.events(branch, Seq(1)).expect("events").remove(0);
    assert_eq!((row.event.detail.as_deref(), row.count), (Some("{}"), 2));
    // The others keep theirs.
    assert_eq!(tx.payload_bytes(entries[1].fence).expect("a size"), 16);
    tx.commit().expect("it commits");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::memory::MemoryJournal;
    use crate::journal::schema;
    use crate::journal::sqlite::SqliteJournal;

    #[test]
    fn the_memory_journal_conforms() {
        assert_eq!(
            run(|| MemoryJournal::new(UID, WorkflowId("own".into()))),
            20
        );
    }

    #[test]
    fn the_sqlite_journal_conforms() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut made = 0;
        let checks = run(|| {
            made += 1;
            let path = folder.path().join(format!("{made}.db"));
            let image =
                schema::empty_image(UID, &WorkflowId("own".into()), Micros(1)).expect("an image");
            std::fs::write(&path, image).expect("a file");
            SqliteJournal::open(
                Box::new(move || {
                    rusqlite::Connection::open(&path)
                        .map_err(|error| crate::journal::sqlite::classify(&error))
                }),
                Box::new(|| Ok(())),
            )
            .expect("it opens")
        });
        assert_eq!(checks, 20);
    }
}
