use crate::guard::AdmissionVerdict;
use crate::guard::fixture::{World, admit, answer, call, deliver, reserve, settle, void};
use crate::guard::{Call, Options};
use crate::rules::decide::Decision;
use crate::rules::entry::{Status, outcome_digest};
use crate::rules::policy::OnDivergence;

use super::Why;

/// Makes this call and gives it a result.
fn world_with(made: Call) -> World {
    let world = World::new();
    let mut guard = world.guard();
    let ticket = reserve(&mut guard, made, 1_000);
    settle(
        &mut guard,
        ticket,
        answer(Status::Completed, "{\"r\":1}"),
        1_001,
    );
    deliver(&mut guard, ticket, 1_002);
    world
}

#[test]
fn a_divergence_says_where_the_arguments_differ() {
    let none = || Call {
        arguments: None,
        ..call(Some(1), "")
    };
    for (made, asked, diff) in [
        (
            call(Some(1), "{\"a\":1,\"b\":2}"),
            call(Some(1), "{\"a\":1,\"b\":3}"),
            &["/b"][..],
        ),
        (none(), call(Some(1), "{\"a\":1}"), &["/a"]),
        (call(Some(1), "{\"a\":1}"), none(), &["/a"]),
        // What is no JSON can't be compared.
        (call(Some(1), "{\"a\":1}"), call(Some(1), "{"), &[]),
        (call(Some(1), "{"), call(Some(1), "{\"a\":1}"), &[]),
    ] {
        let world = world_with(made);
        let verdict = admit(&mut world.guard(), asked, 2_000);
        let AdmissionVerdict::Refuse(refused) = verdict else {
            panic!("it is no divergence: {verdict:?}")
        };
        assert_eq!(refused.why, Why::Table(Decision::Diverge));
        assert_eq!(refused.diff, diff);
    }
}

#[test]
fn arguments_that_are_buried_or_hidden_are_not_compared() {
    for change in [
        "UPDATE attempts SET arguments = NULL",
        "UPDATE attempts SET redacted = 1",
    ] {
        let world = world_with(call(Some(1), "{\"a\":1}"));
        world.sql().execute_batch(change).unwrap();
        let verdict = admit(&mut world.guard(), call(Some(1), "{\"a\":2}"), 2_000);
        let AdmissionVerdict::Refuse(refused) = verdict else {
            panic!("it is no divergence: {verdict:?}")
        };
        assert_eq!(refused.diff, [""; 0], "{change}");
    }
}

/// An outcome in whose place another one was put, sound in itself, is not the entry's.
#[test]
fn only_the_outcome_that_the_entry_knows_is_replayed() {
    let body = b"{\"r\":2}";
    for (digest, stored) in [(Some(outcome_digest(body)), &body[..]), (None, &body[..])] {
        let world = world_with(call(Some(1), "{\"a\":1}"));
        let again = call(Some(1), "{\"a\":1}");
        let verdict = admit(&mut world.guard(), again.clone(), 2_000);
        assert!(matches!(verdict, AdmissionVerdict::Replay(_)));
        let sql = "UPDATE outcomes SET body = ?1, digest = coalesce(?2, digest)";
        world.sql().execute(sql, (stored, digest)).unwrap();
        let verdict = admit(&mut world.guard(), again, 2_001);
        let AdmissionVerdict::Refuse(refused) = verdict else {
            panic!("it is served: {verdict:?}")
        };
        assert_eq!(refused.why, Why::Table(Decision::Quarantine));
    }
}

/// Three ask for one step and wait for its first attempt, which then did not run. A call with
/// other arguments has taken the place meanwhile, so the first of them opens a branch.
#[test]
fn who_waited_on_a_line_that_was_left_starts_nothing_on_it() {
    let world = World::new();
    let mut owner = world.guard_with(Options {
        on_divergence: OnDivergence::Fork,
        ..Options::default()
    });
    for (step, asks) in [(1, Some(1)), (2, Some(2)), (3, None)] {
        let first = reserve(&mut owner, call(asks, "{\"a\":1}"), 1);
        assert_eq!(first.seq.0, step);
        let mut waits = call(asks, "{\"a\":1}");
        waits.joined = Some(first.into());
        void(&mut owner, first, 2);
        let other = reserve(&mut owner, call(Some(step), "{\"a\":2}"), 3);
        assert_eq!((other.branch, other.attempt), (first.branch, 2));
        settle(&mut owner, other, answer(Status::Completed, "{\"r\":2}"), 4);

        let opened = reserve(&mut owner, waits.clone(), 5);
        assert!(opened.branch > first.branch && opened.seq == first.seq);
        match admit(&mut owner, waits, 6) {
            AdmissionVerdict::Join { ticket, .. } => assert_eq!(ticket, opened, "{asks:?}"),
            other => panic!("{asks:?}: the same step twice: {other:?}"),
        }
        settle(
            &mut owner,
            opened,
            answer(Status::Completed, "{\"r\":3}"),
            7,
        );
        deliver(&mut owner, opened, 8);
    }
}

/// What did not run on the line that was left is a step of the one that is walked now.
#[test]
fn what_did_not_run_on_a_line_that_was_left_runs_on_the_one_that_is_walked() {
    let world = World::new();
    let mut owner = world.guard_with(Options {
        on_divergence: OnDivergence::Fork,
        ..Options::default()
    });
    let first = reserve(&mut owner, call(Some(1), "{\"a\":1}"), 1);
    settle(&mut owner, first, answer(Status::Completed, "{\"r\":1}"), 2);
    let second = reserve(&mut owner, call(Some(2), "{\"b\":1}"), 3);
    let mut waits = call(Some(2), "{\"b\":1}");
    waits.joined = Some(second.into());
    void(&mut owner, second, 4);
    let opened = reserve(&mut owner, call(Some(1), "{\"a\":2}"), 5);
    assert!(opened.branch > first.branch);
    let runs = reserve(&mut owner, waits, 6);
    assert_eq!(
        (runs.branch, runs.seq, runs.attempt),
        (opened.branch, second.seq, 1)
    );
    // An outcome of that line is still its waiters'.
    let mut waited = call(Some(1), "{\"a\":1}");
    waited.joined = Some(first.into());
    match admit(&mut owner, waited, 7) {
        AdmissionVerdict::Replay(replay) => assert_eq!(replay.entry.branch, first.branch),
        other => panic!("{other:?}"),
    }
}
