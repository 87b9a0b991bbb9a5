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
        if let Some((parent, at)) = self.splits.get(&workflow)
            && seq < *at
        {
            return self.place_of(*parent, seq);
        }
        let branches = self.branches(workflow);
        let (oldest, later) = branches.split_first()?;
        // A later one shadows those before it only from its own beginning on.
        let holder = later.iter().rev().find(|(_, begins)| *begins <= seq);
        Some((holder.map_or(oldest.0, |(branch, _)| *branch), seq))
    }

    /// An operator made a workflow that shares what another one has before a seq.
    pub(crate) fn splits(&mut self, new: usize, from: usize, at: Seq) {
        self.splits.insert(new, (from, at));
    }

    /// The last workflow that an operator made.
    pub(crate) fn made(&self) -> Option<usize> {
        self.splits.keys().next_back().copied()
    }

    /// Whether a workflow has an entry, and its highest seq.
    pub(crate) fn knows(&self, workflow: usize) -> bool {
        self.owners.values().any(|owner| *owner == workflow)
    }

    pub(crate) fn highest(&self, workflow: usize) -> u64 {
        let is_its = |branch: &BranchId| self.owners.get(branch) == Some(&workflow);
        let places = self.rows.keys().filter(|(branch, _)| is_its(branch));
        places.map(|(_, seq)| seq.0).max().unwrap_or(0)
    }

    /// F4: a call of a workflow that an operator made means the shared entry before the fork, and
    /// from there on never one of the workflow that it came from.
    pub(super) fn is_on_its_side(&mut self, request: &Request, place: (BranchId, Seq)) -> Check {
        let Some((parent, at)) = self.splits.get(&request.workflow) else {
            return Ok(());
        };
        if request.key.is_some() {
            // A key may lead anywhere in its window.
            return Ok(());
        }
        let is_parents = self.owners.get(&place.0) == Some(parent);
        holds!(
            is_parents == (place.1 < *at),
            "F4 a call of w{} means {place:?}, and it has its own from {at} on",
            request.workflow
        );
        self.seen.splits_shared += u64::from(is_parents);
        Ok(())
    }

    /// Whether a seq is one that a workflow left out, and another one that shares it can't fill.
    pub(super) fn is_left_out(&self, request: &Request) -> bool {
        let split = self.splits.get(&request.workflow);
        let seq = request.seq.map(Seq);
        split.zip(seq).is_some_and(|((_, at), seq)| {
            let place = self.place_of(request.workflow, seq);
            seq < *at && place.is_none_or(|place| !self.rows.contains_key(&place))
        })
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
