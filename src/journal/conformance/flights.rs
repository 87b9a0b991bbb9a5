//! What the journal tells of who was in flight together.
//!
//! Must not: decide who was (that is [`crate::rules::flight`]'s).

use super::super::{Applied, Attempt, Journal, Outcome, Transaction};
use super::rows::{attempt, outcome, reservation, reserve, settle, tx, workflow, write};
use crate::rules::entry::{Entry, Status};
use crate::rules::flight::Flight;
use crate::rules::ids::{Fence, Micros, Seq};
use crate::rules::lifecycle;

pub(super) fn a_flight_ends_with_its_outcome_and_no_clock_tells_when<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let step = |journal: &mut J, step: &mut dyn FnMut(&mut J::Tx<'_>)| {
        let mut tx = tx(journal);
        step(&mut tx);
        tx.commit().expect("it commits");
    };
    let (mut first, mut second) = (None, None);
    step(journal, &mut |tx| first = Some(reserve(tx, branch, 1)));
    step(journal, &mut |tx| second = Some(reserve(tx, branch, 2)));
    let (first, second) = first.zip(second).expect("both are reserved");
    // The time of both outcomes is one, and was before: it is not asked for.
    let past = |entry: &Entry, status| Outcome {
        at: Micros(-7),
        ..outcome(entry, status, b"{}")
    };
    step(journal, &mut |tx| {
        settle(tx, &first, past(&first, Status::Failed));
    });
    step(journal, &mut |tx| {
        reserve(tx, branch, 3);
    });
    step(journal, &mut |tx| {
        settle(tx, &second, past(&second, Status::Accepted));
    });
    // A second attempt of the first, which gets no outcome.
    step(journal, &mut |tx| {
        let failed = tx
            .entry(branch, Seq(1))
            .expect("read")
            .expect("there")
            .entry;
        let reservation = reservation(branch, 1, tx.next_fence().expect("a fence"));
        let again = lifecycle::reserve_again(&failed, reservation).expect("it failed");
        let mut write = write(again);
        write.attempt = Some(Attempt {
            previous: Some(first.fence),
            ..attempt(&write.transition.entry)
        });
        assert_eq!(tx.apply(&write).expect("written"), Applied::Done);
    });
    // A task's end is no end of the flight: the call was answered with the handle.
    step(journal, &mut |tx| {
        let accepted = tx
            .entry(branch, Seq(2))
            .expect("read")
            .expect("there")
            .entry;
        settle(tx, &accepted, past(&accepted, Status::Completed));
    });
    let flight = |fence, next: Option<u64>| Flight {
        fence: Fence(fence),
        next: next.map(Fence),
    };
    let mut tx = tx(journal);
    let mut of = |fence| tx.flights(Fence(fence)).expect("read");
    assert_eq!(of(1), [flight(1, Some(3))]);
    assert_eq!(of(2), [flight(2, Some(4))]);
    assert_eq!(of(3), [flight(3, None)]);
    assert_eq!(of(4), [flight(4, None), flight(1, Some(3))]);
    assert_eq!(of(5), []);
}

pub(super) fn what_is_committed_together_was_in_flight_together<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let next_of = |tx: &mut J::Tx<'_>, fence| {
        let flights = tx.flights(fence).expect("read");
        flights[0].next.map(|next| next.0)
    };
    let mut batch = tx(journal);
    let first = reserve(&mut batch, branch, 1);
    settle(&mut batch, &first, outcome(&first, Status::Completed, b"1"));
    assert_eq!(next_of(&mut batch, first.fence), Some(2));
    let second = reserve(&mut batch, branch, 2);
    assert_eq!(next_of(&mut batch, first.fence), Some(3));
    settle(&mut batch, &second, outcome(&second, Status::Failed, b"2"));
    let third = reserve(&mut batch, branch, 3);
    settle(&mut batch, &third, outcome(&third, Status::Completed, b"3"));
    batch.commit().expect("it commits");
    let mut later = tx(journal);
    reserve(&mut later, branch, 4);
    later.commit().expect("it commits");
    let mut tx = tx(journal);
    let found = [first, second, third].map(|entry| next_of(&mut tx, entry.fence));
    assert_eq!(found, [Some(4); 3]);
}
