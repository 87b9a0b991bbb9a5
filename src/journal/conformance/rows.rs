//! The rows that the checks write, each made through the lifecycle like those of the guard.
//!
//! Must not: check anything but that a row could be written.

use super::super::{Applied, Attempt, Durability, Journal, Outcome, Session, Transaction, Write};
use crate::rules::entry::{Entry, Provenance, Status, outcome_digest};
use crate::rules::ids::{BranchId, Fence, Micros, Seq, SessionId, WorkflowId};
use crate::rules::lifecycle::{self, Reservation, Settlement, Transition};
use crate::rules::signature::{Scheme, Signature};

pub(super) const UID: [u8; 16] = [7; 16];

pub(super) fn tx<J: Journal>(journal: &mut J) -> J::Tx<'_> {
    journal
        .begin(Durability::Power)
        .expect("a transaction begins")
}

pub(super) fn workflow<J: Journal>(journal: &mut J) -> BranchId {
    let mut tx = tx(journal);
    let made = tx
        .create_workflow(&WorkflowId("w".into()), [1; 16], Micros(1))
        .expect("a workflow is made");
    tx.put_session(SessionId(1), &Session::default())
        .expect("a session is written");
    tx.commit().expect("it commits");
    made.active.id
}

pub(super) fn reservation(branch: BranchId, seq: u64, fence: Fence) -> Reservation {
    Reservation {
        branch,
        seq: Seq(seq),
        tool: "charge".into(),
        scheme: Scheme::Plain,
        signature: Signature([5; 32]),
        fence,
        session: SessionId(1),
        at: Micros(10),
        key: None,
        call_id: None,
    }
}

pub(super) fn attempt(entry: &Entry) -> Attempt {
    Attempt {
        fence: entry.fence,
        branch: entry.branch,
        seq: entry.seq,
        attempt: entry.attempt,
        round: entry.round,
        previous: None,
        session: entry.session,
        started_at: Micros(10),
        scheme: entry.scheme,
        signature: entry.signature,
        arguments: Some(br#"{"a":1.0}"#.to_vec().into()),
        arguments_bytes: 9,
        is_redacted: false,
        protocol_version: Some("2025-11-25".into()),
        tool_revision: None,
        policy: None,
        traceparent: None,
    }
}

pub(super) fn write(transition: Transition) -> Write {
    let checksum = transition.entry.checksum(&UID);
    Write {
        checksum,
        attempt: None,
        outcome: None,
        event: None,
        transition,
    }
}

pub(super) fn reserve(tx: &mut impl Transaction, branch: BranchId, seq: u64) -> Entry {
    reserve_with(tx, branch, seq, |_| {})
}

pub(super) fn reserve_with(
    tx: &mut impl Transaction,
    branch: BranchId,
    seq: u64,
    change: impl FnOnce(&mut Reservation),
) -> Entry {
    let fence = tx.next_fence().expect("a fence");
    let mut reservation = reservation(branch, seq, fence);
    change(&mut reservation);
    let transition = lifecycle::reserve_new(reservation);
    let entry = transition.entry.clone();
    let mut write = write(transition);
    write.attempt = Some(attempt(&entry));
    assert_eq!(tx.apply(&write).expect("it is written"), Applied::Done);
    entry
}

pub(super) fn settle(tx: &mut impl Transaction, entry: &Entry, outcome: Outcome) -> Entry {
    let transition = lifecycle::settle(
        entry,
        Settlement {
            status: outcome.status,
            is_error: outcome.is_error,
            provenance: outcome.provenance,
            digest: outcome.digest,
            is_tombstone: false,
            at: outcome.at,
        },
    )
    .expect("a pending entry settles");
    let after = transition.entry.clone();
    let mut write = write(transition);
    write.outcome = Some(outcome);
    assert_eq!(tx.apply(&write).expect("it is written"), Applied::Done);
    after
}

pub(super) fn outcome(entry: &Entry, status: Status, body: &[u8]) -> Outcome {
    Outcome {
        fence: entry.fence,
        status,
        is_error: false,
        provenance: Provenance::Upstream,
        at: Micros(20),
        digest: outcome_digest(body),
        body: Some(body.to_vec().into()),
        round: None,
        task: None,
    }
}
