//! The walk where the wall clock is stepped, where attempts were made again, and where what it is
//! told by is damaged. Times here are only what a clock said.

use crate::guard::fixture::{World, admit, answer, call, reserve, settle};
use crate::guard::{AdmissionVerdict, Call, Done, Guard, Op, Options, Settlement, Ticket, Why};
use crate::journal::Journal;
use crate::rules::decide::Decision;
use crate::rules::entry::Status;
use crate::rules::ids::Micros;
use crate::rules::policy::{OnFailure, Policy};
use crate::rules::signature::Signature;

const A: &str = "{\"order\":\"a\"}";
const B: &str = "{\"order\":\"b\"}";

fn done() -> super::super::Answer {
    answer(Status::Completed, "{\"r\":1}")
}

/// Returns what a run that starts over gets for these calls, in their order: the seq of the entry
/// that is replayed, or `None` for a divergence.
fn walked(world: &World, calls: &[&str]) -> Vec<Option<u64>> {
    let mut guard = world.guard_with(Options {
        resumes: true,
        ..Options::default()
    });
    let one = |arguments: &&str| match admit(&mut guard, call(None, arguments), 0) {
        AdmissionVerdict::Replay(replay) => Some(replay.entry.seq.0),
        AdmissionVerdict::Refuse(refused) => {
            assert_eq!(refused.why, Why::Table(Decision::Diverge));
            None
        }
        other => panic!("neither: {other:?}"),
    };
    calls.iter().map(one).collect()
}

#[test]
fn a_clock_set_back_while_two_are_in_flight_parts_them_not() {
    let world = World::new();
    let mut guard = world.guard();
    let first = reserve(&mut guard, call(None, A), 100);
    let second = reserve(&mut guard, call(None, B), 200);
    // By the clock the first one had its outcome before either was made.
    settle(&mut guard, first, done(), 10);
    settle(&mut guard, second, done(), 11);
    assert_eq!(walked(&world, &[B, A]), [Some(2), Some(1)]);
    assert_eq!(walked(&world, &[A, B]), [Some(1), Some(2)]);
}

#[test]
fn a_clock_set_back_between_two_does_not_put_them_together() {
    let world = World::new();
    let mut guard = world.guard();
    let first = reserve(&mut guard, call(None, A), 100);
    settle(&mut guard, first, done(), 110);
    // By the clock the second one was made, and had ended, before the first one was made.
    let second = reserve(&mut guard, call(None, B), 50);
    settle(&mut guard, second, done(), 60);
    assert_eq!(walked(&world, &[B]), [None]);
    assert_eq!(walked(&world, &[A, B]), [Some(1), Some(2)]);
}

#[test]
fn a_clock_that_stands_still_tells_nothing_and_is_not_asked() {
    let world = World::new();
    let mut guard = world.guard();
    let first = reserve(&mut guard, call(None, A), 100);
    let second = reserve(&mut guard, call(None, B), 100);
    settle(&mut guard, first, done(), 100);
    let third = reserve(&mut guard, call(None, "{\"order\":\"c\"}"), 100);
    settle(&mut guard, second, done(), 100);
    settle(&mut guard, third, done(), 100);
    assert_eq!(walked(&world, &[B, A]), [Some(2), Some(1)]);
    assert_eq!(walked(&world, &["{\"order\":\"c\"}"]), [None]);
}

/// What is read before an answer could be written belongs to the time before the answer.
#[test]
fn what_is_reserved_in_the_commit_of_an_outcome_was_sent_before_anybody_saw_it() {
    let world = World::new();
    let mut guard = world.guard();
    let first = reserve(&mut guard, call(None, A), 1);
    let settled = Op::Settle(Settlement::Answered {
        first_wins: false,
        may_rerun: false,
        ticket: first,
        signature: Signature([0; 32]),
        answer: done(),
    });
    let next = Op::Admit(Box::new(call(None, B)));
    let both = guard.run(&[settled, next], Micros(2)).unwrap();
    let Done::Admitted(admission) = &both[1] else {
        panic!("{both:?}");
    };
    let AdmissionVerdict::Run(second, _) = admission.verdict else {
        panic!("{admission:?}");
    };
    settle(&mut guard, second, done(), 3);
    let third = reserve(&mut guard, call(None, "{\"order\":\"c\"}"), 4);
    settle(&mut guard, third, done(), 5);
    assert_eq!(walked(&world, &[B, A]), [Some(2), Some(1)]);
    assert_eq!(walked(&world, &["{\"order\":\"c\"}"]), [None]);
}

fn retried(arguments: &str, seq: u64) -> Call {
    let mut made = call(Some(seq), arguments);
    made.policy = Policy {
        on_failure: OnFailure::Retry,
        ..Policy::default()
    }
    .into();
    made
}

fn failed<J: Journal, S: super::Surroundings>(guard: &mut Guard<J, S>, ticket: Ticket, at: i64) {
    let settlement = Settlement::Answered {
        first_wins: false,
        may_rerun: false,
        ticket,
        signature: Signature([0; 32]),
        answer: answer(Status::Failed, "{\"code\":1}"),
    };
    guard.run(&[Op::Settle(settlement)], Micros(at)).unwrap();
}

#[test]
fn two_that_were_in_flight_together_once_stay_so_when_both_ran_again() {
    let world = World::new();
    let mut guard = world.guard();
    let first = reserve(&mut guard, retried(A, 1), 1);
    let second = reserve(&mut guard, retried(B, 2), 2);
    failed(&mut guard, first, 3);
    failed(&mut guard, second, 4);
    for (arguments, seq, at) in [(A, 1, 5), (B, 2, 7)] {
        let again = reserve(&mut guard, retried(arguments, seq), at);
        assert_eq!(again.attempt, 2);
        settle(&mut guard, again, done(), at + 1);
    }
    assert_eq!(walked(&world, &[B, A]), [Some(2), Some(1)]);
}

#[test]
fn one_that_ran_while_another_was_between_two_attempts_was_not_in_flight_with_it() {
    let world = World::new();
    let mut guard = world.guard();
    let first = reserve(&mut guard, retried(A, 1), 1);
    failed(&mut guard, first, 2);
    let second = reserve(&mut guard, call(None, B), 3);
    settle(&mut guard, second, done(), 4);
    let again = reserve(&mut guard, retried(A, 1), 5);
    settle(&mut guard, again, done(), 6);
    assert_eq!(walked(&world, &[B]), [None]);
    assert_eq!(walked(&world, &[A, B]), [Some(1), Some(2)]);
}

#[test]
fn a_task_was_in_flight_until_its_handle_came() {
    let world = World::new();
    let mut guard = world.guard();
    let task = reserve(&mut guard, call(None, A), 1);
    let beside = reserve(&mut guard, call(None, B), 2);
    settle(&mut guard, beside, done(), 3);
    settle(
        &mut guard,
        task,
        answer(Status::Accepted, "{\"task\":{}}"),
        4,
    );
    let after = reserve(&mut guard, call(None, "{\"order\":\"c\"}"), 5);
    settle(&mut guard, after, done(), 6);
    let end = Op::TaskEnd {
        task_id: "t-1".into(),
        created_at: Some("then".into()),
        answer: done(),
    };
    guard.run(&[end], Micros(7)).unwrap();
    assert_eq!(walked(&world, &["{\"order\":\"c\"}"]), [None]);
    assert_eq!(walked(&world, &[B]), [Some(2)]);
}

#[test]
fn a_history_that_cannot_be_read_puts_nothing_together() {
    for damage in [
        "UPDATE outcomes SET next_fence = -5 WHERE fence = 1",
        "UPDATE outcomes SET next_fence = -5 WHERE fence = 2",
        "DELETE FROM attempts WHERE fence = 2",
    ] {
        let world = World::new();
        let mut guard = world.guard();
        let first = reserve(&mut guard, call(None, A), 1);
        let second = reserve(&mut guard, call(None, B), 2);
        settle(&mut guard, first, done(), 3);
        settle(&mut guard, second, done(), 4);
        assert_eq!(walked(&world, &[B]), [Some(2)]);
        world.sql().execute_batch(damage).unwrap();
        assert_eq!(walked(&world, &[B]), [None], "{damage}");
    }
}
