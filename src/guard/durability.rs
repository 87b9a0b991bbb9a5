//! Which commits are synced, and what is owed a sync.
//!
//! A reservation is synced in each mode: nothing runs that a power cut could make undone. With
//! `--durability deferred` the commit of final outcomes alone is not: the log has them after the
//! reservations that they belong to, in the order of the commits, so that what the next sync makes
//! durable is all of it, and what a power cut takes is an outcome whose reservation is there. Such
//! a call is PENDING without an owner: a doubt.
//!
//! Must not: defer what somebody goes on from (a question's state, a task's handle, that a call is
//! lost or was not executed), or the outcome of a call that may run again where it is in doubt.

use super::{Guard, Op, Settlement, Surroundings};
use crate::journal::{Durability, Journal};
use crate::rules::entry::Status;
use crate::seeded::{self, Bug};

impl<J: Journal, S: Surroundings> Guard<J, S> {
    /// Returns whether the next [`Guard::run`] of these needs a sync.
    pub(super) fn durability(&self, ops: &[Op]) -> Durability {
        let lazy = ops.iter().all(|op| match op {
            // A lease that a power cut takes back is over with the boot anyway.
            Op::Deliver(_) | Op::Keep(_) | Op::Renew(..) | Op::Confirm(_) => true,
            Op::Note(note) => note.merges,
            Op::Settle(settlement) => self.defers(settlement),
            Op::Admit(_) => self.options.defers && seeded::has(Bug::ReservationDeferred),
            Op::GiveUp(..) | Op::TaskEnd { .. } | Op::EndSession => false,
        });
        if lazy || seeded::has(Bug::NoSync) {
            Durability::Process
        } else {
            Durability::Power
        }
    }

    /// Returns whether the commit of this outcome may do without a sync of its own.
    fn defers(&self, settlement: &Settlement) -> bool {
        let Settlement::Answered {
            answer, may_rerun, ..
        } = settlement
        else {
            return false;
        };
        let is_final = match answer.status {
            Status::Completed | Status::Failed => true,
            Status::InputRequired | Status::Accepted => seeded::has(Bug::QuestionDeferred),
            Status::Pending | Status::Voided | Status::Denied => false,
        };
        self.options.defers && is_final && (!may_rerun || seeded::has(Bug::RerunDeferred))
    }

    /// A batch was committed: notes what it leaves to be synced. Only a commit that has written is
    /// synced, and of all batches a reservation's is sure to have.
    pub(super) fn committed(&mut self, ops: &[Op], durability: Durability, has_reserved: bool) {
        match durability {
            Durability::Power => self.owes_sync &= !has_reserved,
            Durability::Process => {
                self.owes_sync |= ops.iter().any(|op| matches!(op, Op::Settle(_)));
            }
        }
    }

    /// Returns whether outcomes were handed back for delivery that may not be durable yet.
    #[must_use]
    pub fn owes_sync(&self) -> bool {
        self.owes_sync
    }

    /// What was owed has been synced.
    pub fn synced(&mut self) {
        self.owes_sync = false;
    }
}
