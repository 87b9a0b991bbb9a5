//! Two connections to one journal.
//!
//! Must not: know which back-end it runs against.

use super::super::{Applied, Journal, Transaction};
use super::rows::{outcome, reserve, reserve_with, settle, tx, workflow, write};
use crate::rules::entry::{Provenance, Status};
use crate::rules::ids::{Micros, Seq, WorkflowId};
use crate::rules::lifecycle::{self, Settlement};
use crate::rules::signature::{Scheme, Signature};

/// Two of a back-end's connections to one empty journal: each sees what the other has committed,
/// whatever it remembers of its own, and nothing that was dropped.
///
/// # Panics
///
/// A check fails.
pub(crate) fn beside<J: Journal>(first: &mut J, second: &mut J) {
    let branch = workflow(first);
    let mut dropped = tx(first);
    let never = reserve(&mut dropped, branch, 1);
    drop(dropped);
    let mut one = tx(first);
    assert_eq!(one.entry(branch, Seq(1)).expect("read"), None);
    let signed = |tx: &mut J::Tx<'_>, byte| -> Vec<u64> {
        let signatures = [(Scheme::Plain, Signature([byte; 32]))];
        let found = tx.undelivered(branch, &signatures).expect("read");
        found.iter().map(|stored| stored.entry.seq.0).collect()
    };
    assert_eq!(signed(&mut one, 5), [0; 0]);
    assert_eq!(signed(&mut one, 6), [0; 0]);
    let running = reserve(&mut one, branch, 1);
    assert_eq!(signed(&mut one, 5), [1]);
    assert_eq!(running.fence, never.fence);
    let lost = reserve(&mut one, branch, 2);
    one.commit().expect("it commits");

    let mut other = tx(second);
    let settled = settle(&mut other, &lost, outcome(&lost, Status::Failed, b"{}"));
    let third = reserve_with(&mut other, branch, 3, |reservation| {
        reservation.signature = Signature([6; 32]);
    });
    assert!(third.fence > lost.fence);
    let name = WorkflowId("other".into());
    let made = other.create_workflow(&name, [2; 16], Micros(2));
    made.expect("another workflow is made");
    other.commit().expect("it commits");

    let mut one = tx(first);
    let at = |tx: &mut J::Tx<'_>, seq| {
        let stored = tx.entry(branch, Seq(seq)).expect("read");
        stored.expect("it is there").entry
    };
    assert_eq!(at(&mut one, 1), running);
    assert_eq!(at(&mut one, 2), settled);
    assert_eq!(at(&mut one, 3), third);
    assert_eq!(signed(&mut one, 5), [1, 2]);
    assert_eq!(signed(&mut one, 6), [3]);
    assert!(one.workflow(&name).expect("read").is_some());
    let own = one.workflow(&WorkflowId("w".into())).expect("read");
    assert_eq!(own.expect("it is there").active.highest, 3);
    let fourth = reserve(&mut one, branch, 4);
    assert!(fourth.fence > third.fence);
    // The other's change is what a settlement of the old state loses against.
    let late = lifecycle::settle(
        &lost,
        Settlement {
            status: Status::Completed,
            is_error: false,
            provenance: Provenance::Upstream,
            digest: [0; 32],
            is_tombstone: false,
            at: Micros(30),
        },
    );
    let late = write(late.expect("it was running"));
    assert_eq!(one.apply(&late).expect("tried"), Applied::Lost);
    assert_eq!(at(&mut one, 2), settled);
    settle(
        &mut one,
        &running,
        outcome(&running, Status::Completed, b"{}"),
    );
    one.commit().expect("it commits");

    let mut other = tx(second);
    assert_eq!(at(&mut other, 1).status, Status::Completed);
    assert_eq!(at(&mut other, 4), fourth);
    drop(other);

    // So many that nobody remembers which they are.
    let mut one = tx(first);
    for seq in 5..305 {
        reserve_with(&mut one, branch, seq, |reservation| {
            reservation.signature = Signature([100 + (seq % 150) as u8; 32]);
        });
    }
    one.commit().expect("it commits");
    let mut other = tx(second);
    assert_eq!(signed(&mut other, 107), [7, 157]);
    assert_eq!(signed(&mut other, 104), [154, 304]);
    assert_eq!(signed(&mut other, 99), [0; 0]);
}
