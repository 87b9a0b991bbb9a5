//! An outcome that reached nobody: whom it answers, and how often.
//!
//! A caller that is not answered with it would count as new and run, so each of these is about an
//! effect.

use std::time::Duration;

use super::fixture::{World, admit, answer, call, deliver, reserve, settle};
use super::{AdmissionVerdict, Op, Ticket};
use crate::rules::entry::{GaveUp, Status};
use crate::rules::ids::Micros;
use crate::rules::policy::Policy;

/// A journal in which a call has settled, and its caller had given up.
fn undelivered(guard: &mut super::fixture::TestGuard) -> Ticket {
    let ticket = reserve(guard, call(None, "{}"), 1_000);
    let gave_up = Op::GiveUp(ticket, GaveUp::Cancelled);
    guard.run(&[gave_up], Micros(1_001)).unwrap();
    settle(guard, ticket, answer(Status::Completed, "{}"), 1_002);
    ticket
}

fn is_answered(verdict: &AdmissionVerdict) -> bool {
    match verdict {
        AdmissionVerdict::Replay(replay) => replay.is_marked,
        AdmissionVerdict::Run(..) => false,
        AdmissionVerdict::Join { .. } | AdmissionVerdict::Refuse(_) => panic!("{verdict:?}"),
    }
}

#[test]
fn it_answers_one_caller_also_while_it_is_on_its_way() {
    let world = World::new();
    let mut guard = world.guard();
    let ticket = undelivered(&mut guard);
    assert!(is_answered(&admit(&mut guard, call(None, "{}"), 2_000)));
    // The first has not been written yet, and the second is a caller of its own.
    assert!(!is_answered(&admit(&mut guard, call(None, "{}"), 2_001)));
    deliver(&mut guard, ticket, 2_002);
}

#[test]
fn of_two_in_one_batch_it_answers_the_first() {
    let world = World::new();
    let mut guard = world.guard();
    undelivered(&mut guard);
    let both = [(); 2].map(|()| Op::Admit(Box::new(call(None, "{}"))));
    let done = guard.run(&both, Micros(2_000)).unwrap();
    let answered: Vec<bool> = done
        .iter()
        .map(|done| match done {
            super::Done::Admitted(admission) => is_answered(&admission.verdict),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(answered, [true, false]);
}

#[test]
fn what_its_caller_did_not_get_answers_the_next() {
    let world = World::new();
    let mut guard = world.guard();
    let ticket = undelivered(&mut guard);
    for at in [2_000, 2_010, 2_020] {
        assert!(is_answered(&admit(&mut guard, call(None, "{}"), at)));
        guard.run(&[Op::Keep(ticket)], Micros(at + 1)).unwrap();
    }
    // Given back and taken again in one transaction, it is taken.
    assert!(is_answered(&admit(&mut guard, call(None, "{}"), 2_030)));
    let both = [Op::Keep(ticket), Op::Admit(Box::new(call(None, "{}")))];
    guard.run(&both, Micros(2_031)).unwrap();
    assert!(!is_answered(&admit(&mut guard, call(None, "{}"), 2_032)));
}

#[test]
fn it_answers_for_as_long_as_the_policy_says_and_no_longer() {
    for (age, is_its) in [(14_999, true), (15_000, false), (15_001, false)] {
        let world = World::new();
        let mut guard = world.guard();
        undelivered(&mut guard);
        let mut again = call(None, "{}");
        again.policy = Policy {
            redeliver_within: Duration::from_millis(15),
            ..Policy::default()
        }
        .into();
        let verdict = admit(&mut guard, again, 1_002 + age);
        assert_eq!(is_answered(&verdict), is_its, "{age} us");
    }
}
