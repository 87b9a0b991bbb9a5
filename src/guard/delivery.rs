//! Answers that reached their callers, many at a time.
//!
//! Must not: tell of an attempt that is not among those that were given.

use std::collections::BTreeMap;

use super::{Op, Surroundings, Ticket, Visit};
use crate::journal::{JournalError, Transaction};
use crate::rules::ids::Fence;

/// Outcomes that are remembered for their deliveries at most; most are never asked for.
const FINISHED_MAX: usize = 256;

/// Attempts whose answer became the outcome of a later one (`fence_results = false`). Their session
/// tells of its delivery, or that its caller gave up, under the fence that it knows.
#[derive(Clone, Debug, Default)]
pub(super) struct Finished(BTreeMap<Fence, Fence>);

impl Finished {
    /// Notes under which fence an answer stands.
    pub(super) fn note(&mut self, came_for: Fence, stands: Fence) {
        if came_for == stands {
            return;
        }
        if self.0.len() == FINISHED_MAX {
            self.0.pop_first();
        }
        self.0.insert(came_for, stands);
    }

    /// Returns the fence under which the answer to an attempt stands.
    pub(super) fn take(&mut self, came_for: Fence) -> Fence {
        self.0.remove(&came_for).unwrap_or(came_for)
    }

    /// Returns the deliveries at the front of `ops` that can be noted at once.
    pub(super) fn neighbours(&self, ops: &[Op]) -> Vec<Ticket> {
        if self.0.is_empty() {
            neighbours(ops)
        } else {
            Vec::new()
        }
    }
}

/// Returns the tickets of the deliveries at the front of `ops` that follow one another: each with
/// the seq and the fence after those of the one before, as calls that were in flight together have.
fn neighbours(ops: &[Op]) -> Vec<Ticket> {
    let mut run: Vec<Ticket> = Vec::new();
    for op in ops {
        let Op::Deliver(ticket) = op else { break };
        let follows = run.last().is_none_or(|last| {
            ticket.branch == last.branch
                && ticket.seq.0 == last.seq.0 + 1
                && ticket.fence.0 == last.fence.0 + 1
        });
        if !follows {
            break;
        }
        run.push(*ticket);
    }
    run
}

impl<T: Transaction, S: Surroundings> Visit<'_, T, S> {
    /// Notes that the answers of attempts that are neighbours were delivered.
    pub(super) fn deliver_run(&mut self, run: &[Ticket]) -> Result<(), JournalError> {
        if let Some(first) = run.first() {
            let place = (first.branch, first.seq, first.fence);
            self.tx.deliver_run(place, run.len() as u64, self.now)?;
        }
        self.redelivered
            .extend(run.iter().map(|ticket| ticket.fence));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::{BranchId, Fence, Seq};

    fn ticket(branch: u64, seq: u64, fence: u64) -> Ticket {
        Ticket {
            branch: BranchId(branch),
            seq: Seq(seq),
            attempt: 1,
            fence: Fence(fence),
        }
    }

    fn run(tickets: &[(u64, u64, u64)]) -> usize {
        let deliver =
            |(branch, seq, fence): &(u64, u64, u64)| Op::Deliver(ticket(*branch, *seq, *fence));
        let mut ops: Vec<Op> = tickets.iter().map(deliver).collect();
        ops.push(Op::EndSession);
        ops.extend(tickets.iter().map(deliver));
        neighbours(&ops).len()
    }

    #[test]
    fn neighbours_have_the_next_seq_and_the_next_fence_of_one_branch() {
        assert_eq!(run(&[]), 0);
        assert_eq!(run(&[(1, 5, 9)]), 1);
        assert_eq!(run(&[(1, 5, 9), (1, 6, 10), (1, 7, 11)]), 3);
        assert_eq!(run(&[(1, 5, 9), (1, 6, 10), (2, 7, 11)]), 2);
        assert_eq!(run(&[(1, 5, 9), (1, 6, 11)]), 1);
        assert_eq!(run(&[(1, 5, 9), (1, 7, 10)]), 1);
        assert_eq!(run(&[(1, 5, 9), (1, 5, 9)]), 1);
        assert_eq!(run(&[(1, 6, 10), (1, 5, 9)]), 1);
    }
}
