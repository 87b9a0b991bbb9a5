//! Branches, told from the rows alone: a branch begins with the call that forked it, its parent is
//! the branch that was the active one before it, and the newest is the active one.

use super::*;

impl Oracle {
    fn workflow_of(&self, row: &Row) -> Option<usize> {
        Some(self.requests[row.serial?].workflow)
    }

    /// The branches of a workflow, oldest first, each with where it begins.
    pub(super) fn branches(&self, workflow: usize) -> Vec<(BranchId, Seq)> {
        let mut all: Vec<(BranchId, Seq)> = Vec::new();
        for (branch, seq) in self.rows.keys() {
            let is_new = all.last().is_none_or(|(last, _)| last != branch);
            if is_new && self.owners.get(branch) == Some(&workflow) {
                all.push((*branch, *seq));
            }
        }
        all
    }

    /// Where a seq lies, along the active branch and those it came from.
    pub(super) fn place_of(&self, workflow: usize, seq: Seq) -> Option<(BranchId, Seq)> {
        let branches = self.branches(workflow);
        let (oldest, later) = branches.split_first()?;
        // A later one shadows those before it only from its own beginning on.
        let holder = later.iter().rev().find(|(_, begins)| *begins <= seq);
        Some((holder.map_or(oldest.0, |(branch, _)| *branch), seq))
    }

    /// Whether a call that goes to the active branch can see a row.
    pub(super) fn is_visible(&self, workflow: usize, place: (BranchId, Seq)) -> bool {
        self.place_of(workflow, place.1) == Some(place)
    }

    /// Notes whose the branches are that have just come.
    pub(super) fn one_tree(&mut self) -> Check {
        let new: Vec<(BranchId, Option<usize>)> = self
            .rows
            .iter()
            .filter(|((branch, _), _)| !self.owners.contains_key(branch))
            .map(|((branch, _), row)| (*branch, self.workflow_of(row)))
            .collect();
        for (branch, workflow) in new {
            let Some(workflow) = workflow else { continue };
            let known = self
                .owners
                .values()
                .filter(|owner| **owner == workflow)
                .count();
            if self.owners.insert(branch, workflow).is_none() && known > 0 {
                self.seen.forks += 1;
                holds!(
                    self.forks,
                    "F1 {branch:?} of w{workflow} was forked from nothing"
                );
            }
        }
        Ok(())
    }

    /// F2: a call opens a branch only beside a settled entry at its seq that is another call's.
    pub(super) fn may_fork(
        &self,
        memory: &MemoryJournal,
        request: &Request,
        at: (BranchId, Seq),
    ) -> Check {
        // Only the first one on it has opened it; others of the batch follow.
        let first = memory
            .entries()
            .map(|stored| (stored.entry.branch, stored.entry.seq))
            .find(|(branch, _)| *branch == at.0);
        if first != Some(at) {
            return Ok(());
        }
        let Some(parent) = self.place_of(request.workflow, at.1) else {
            return Ok(());
        };
        let Some(row) = self.rows.get(&parent) else {
            return Ok(());
        };
        let is_same = Self::arguments_of(memory, row.fence) == request.arguments;
        // In the same batch, it may have come to its end before it was asked for.
        let settled = Self::row(memory, parent)?.0;
        let is_foreign = request.round.is_some();
        holds!(
            !is_same || is_foreign,
            "F2 an unchanged call of {parent:?} opened {at:?}"
        );
        holds!(
            settled != Status::Pending || self.forked_beside(parent.0, at.0),
            "F2 {at:?} was opened beside {parent:?}, of which nobody knows what became"
        );
        Ok(())
    }

    /// Another branch came between the two in the same batch.
    fn forked_beside(&self, parent: BranchId, new: BranchId) -> bool {
        new.0 > parent.0 + 1
    }
}
