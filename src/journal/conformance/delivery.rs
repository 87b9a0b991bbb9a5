//! What has reached its caller, and what has not.
//!
//! Must not: know which back-end it runs against.

use super::super::{Applied, Journal, Transaction};
use super::rows::{self, outcome, reservation, reserve, reserve_with, settle, tx, workflow, write};
use crate::rules::entry::{Entry, GaveUp, Status};
use crate::rules::ids::{BranchId, Fence, Micros, Seq};
use crate::rules::lifecycle;
use crate::rules::signature::{Scheme, Signature};

pub(super) fn what_is_undelivered_is_found_by_signature_until_it_is_delivered<J: Journal>(
    journal: &mut J,
) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    let entry = reserve(&mut tx, branch, 1);
    let ours = [(Scheme::Plain, Signature([5; 32]))];
    let found = |tx: &mut J::Tx<'_>, signatures: &[(Scheme, Signature)]| -> Vec<u64> {
        tx.undelivered(branch, signatures)
            .expect("read")
            .iter()
            .map(|stored| stored.entry.seq.0)
            .collect()
    };
    assert_eq!(found(&mut tx, &ours), [1]);
    assert_eq!(
        found(&mut tx, &[(Scheme::Keyed, Signature([5; 32]))]),
        [0; 0]
    );
    assert_eq!(
        found(&mut tx, &[(Scheme::Plain, Signature([6; 32]))]),
        [0; 0]
    );
    // What has no outcome yet can't be delivered.
    assert!(
        !tx.deliver(branch, Seq(1), entry.fence, Micros(30))
            .expect("no error")
    );
    let given_up = lifecycle::give_up(&entry, GaveUp::Cancelled).expect("pending");
    assert_eq!(tx.apply(&write(given_up)).expect("written"), Applied::Done);
    let settled = settle(&mut tx, &entry, outcome(&entry, Status::Completed, b"{}"));
    assert_eq!(found(&mut tx, &ours), [1]);
    assert!(
        !tx.deliver(branch, Seq(1), Fence(entry.fence.0 + 9), Micros(30))
            .expect("no error")
    );
    assert!(
        tx.deliver(branch, Seq(1), entry.fence, Micros(30))
            .expect("no error")
    );
    assert!(
        !tx.deliver(branch, Seq(1), entry.fence, Micros(31))
            .expect("no error")
    );
    assert_eq!(found(&mut tx, &ours), [0; 0]);
    let stored = tx.entry(branch, Seq(1)).expect("read").expect("there");
    assert_eq!(stored.entry.delivered_at, Some(Micros(30)));
    assert_eq!(stored.entry.digest, settled.digest);
    // One that comes after others were asked for is found, too, and one that may run again.
    reserve_with(&mut tx, branch, 2, |reservation| {
        reservation.signature = Signature([6; 32]);
    });
    assert_eq!(found(&mut tx, &[(Scheme::Plain, Signature([6; 32]))]), [2]);
    tx.commit().expect("it commits");
    let mut tx = rows::tx(journal);
    let reopened = lifecycle::reopen(&stored.entry, Micros(40)).expect("it is settled");
    assert_eq!(found(&mut tx, &ours), [0; 0]);
    let fence = tx.next_fence().expect("a fence");
    let again = lifecycle::reserve_again(&reopened.entry, reservation(branch, 1, fence));
    assert_eq!(tx.apply(&write(reopened)).expect("written"), Applied::Done);
    let again = write(again.expect("it may run again"));
    assert_eq!(tx.apply(&again).expect("written"), Applied::Done);
    assert_eq!(found(&mut tx, &ours), [1]);
}

pub(super) fn neighbours_are_delivered_together<J: Journal>(journal: &mut J) {
    let branch = workflow(journal);
    let mut tx = tx(journal);
    let entries: Vec<Entry> = (1..=6).map(|seq| reserve(&mut tx, branch, seq)).collect();
    for entry in &entries[..5] {
        settle(&mut tx, entry, outcome(entry, Status::Completed, b"{}"));
    }
    let first = entries[0].fence;
    assert!(
        tx.deliver(branch, Seq(2), entries[1].fence, Micros(30))
            .expect("no error")
    );
    // Of the last nothing is known; the second was delivered before.
    let news = tx.deliver_run((branch, Seq(1), first), 6, Micros(40));
    assert_eq!(news.expect("written"), 4);
    let news = tx.deliver_run((branch, Seq(1), first), 6, Micros(50));
    assert_eq!(news.expect("written"), 0);
    tx.commit().expect("it commits");
    let mut tx = rows::tx(journal);
    let delivered: Vec<_> = (1..=6)
        .map(|seq| tx.entry(branch, Seq(seq)).expect("read").expect("there"))
        .map(|stored| stored.entry.delivered_at.map(|at| at.0))
        .collect();
    assert_eq!(
        delivered,
        [Some(40), Some(30), Some(40), Some(40), Some(40), None]
    );
    drop(tx);

    // Whose fence is another, and whose branch is another, is somebody else's.
    let mut tx = rows::tx(journal);
    let entries: Vec<Entry> = (7..=9).map(|seq| reserve(&mut tx, branch, seq)).collect();
    for entry in &entries {
        settle(&mut tx, entry, outcome(entry, Status::Completed, b"{}"));
    }
    let later = Fence(entries[0].fence.0 + 1);
    let other = BranchId(branch.0 + 1);
    for first in [
        (branch, Seq(7), later),
        (other, Seq(7), entries[0].fence),
        (branch, Seq(10), Fence(entries[0].fence.0 + 3)),
    ] {
        assert_eq!(tx.deliver_run(first, 2, Micros(60)).expect("written"), 0);
    }
    let news = tx.deliver_run((branch, Seq(8), later), 1, Micros(60));
    assert_eq!(news.expect("written"), 1);
}
