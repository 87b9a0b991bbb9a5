//! Outcomes that are told before they are durable, where that was asked for.

use super::*;

impl Oracle {
    /// A life's outcomes may be told before they are durable.
    pub(crate) fn defers(&mut self, life: usize) {
        self.deferring.insert(life);
    }

    /// Whether a power cut may take what was told: a final answer to a call that never runs again
    /// by itself, journaled by a life that defers.
    fn may_be_lost(&self, answer: &Answer) -> bool {
        let is_final = matches!(answer.kind, Kind::Result | Kind::Error | Kind::Closed)
            && answer.ends.is_none();
        let life = self.requests[answer.serial].life;
        is_final && !self.promise.at_least_once && self.deferring.contains(&life)
    }

    /// Returns where an answer that is told must stand.
    pub(super) fn book<'a>(
        &mut self,
        shared: &'a Shared,
        token: usize,
    ) -> Option<&'a MemoryJournal> {
        let answer = &self.answers[token];
        if !self.may_be_lost(answer) {
            return shared.durable();
        }
        if let (Some(fence), Some(durable)) = (answer.fence, shared.durable())
            && durable.outcome(fence).is_none()
        {
            self.seen.deferred += 1;
        }
        shared.memory()
    }

    /// The power went: what was told is there, or may be lost.
    pub(super) fn told_is_kept(&mut self, memory: &MemoryJournal) -> Check {
        let is_lost =
            |fence: &Fence| memory.outcome(*fence).is_none() && memory.task_end(*fence).is_none();
        let lost: Vec<Fence> = self.told.iter().copied().filter(is_lost).collect();
        for fence in lost {
            self.told.remove(&fence);
            let answer = self.outcome_of(fence);
            holds!(
                answer.is_some_and(|answer| self.may_be_lost(&self.answers[answer]))
                    || !self.spoiled.is_empty(),
                "I2 the outcome of fence {fence} was told, and did not survive"
            );
            self.seen.deferred_lost += 1;
        }
        Ok(())
    }
}
