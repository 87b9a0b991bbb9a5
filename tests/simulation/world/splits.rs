//! An operator's fork: a new workflow that shares what another one has done so far.

use super::*;
use checkpoint::guard::fork::{Fork, NotForked, fork};
use checkpoint::guard::verdict::Deed;
use checkpoint::rules::ids::Seq;

/// Numbers of workflows that operators have made begin here.
const MADE_FROM: usize = 100;

impl World<'_> {
    /// An operator forks a workflow, and some of its agents go on in the new one.
    pub(super) fn operator_forks(&mut self) -> Check {
        let agent = self.random.below(self.agents.len());
        let from = self.agents[agent].workflow;
        if from >= MADE_FROM {
            return Ok(());
        }
        let highest = self.oracle.highest(from);
        let at = 1 + self.random.below(usize::try_from(highest).unwrap() + 2) as u64;
        // Some take a name that is there.
        let taken = self.oracle.made().filter(|_| self.random.chance(100));
        let number = taken.unwrap_or(MADE_FROM + self.forked);
        let is_trial = self.random.chance(100);
        let what = Fork {
            from: WorkflowId(format!("w{from}")),
            branch: None,
            at: Seq(at),
            new: WorkflowId(format!("w{number}")),
            uid: [u8::try_from(number).unwrap(); 16],
        };
        let before = self.places();
        let fault = self.fault();
        self.store.borrow_mut().fault = fault;
        let mut journal = SimJournal::new(&self.store);
        let wall = Micros(self.wall);
        let made = fork(&mut journal, &what, &Deed::default(), wall, is_trial);
        journal.give_back();
        tell!(
            self,
            "the operator forks {what:?} (trial {is_trial}): {made:?}"
        );
        if before != self.places() {
            return Err("F4 a fork changed an entry".into());
        }
        let Ok(made) = made else {
            // It may be there all the same: nobody uses the name again.
            self.forked += 1;
            return Ok(());
        };
        let expected = if taken.is_some() {
            Err(NotForked::Taken)
        } else if at > highest + 1 {
            Err(NotForked::TooFar { highest })
        } else {
            Ok(())
        };
        // Of a workflow without an entry, only the journal knows whether it is there.
        if made != expected && (self.oracle.knows(from) || made != Err(NotForked::Absent)) {
            return Err(format!(
                "F4 a fork comes to {made:?}, and not to {expected:?}"
            ));
        }
        if made.is_err() {
            self.coverage.splits_refused += 1;
            return Ok(());
        }
        if is_trial {
            return Ok(());
        }
        self.coverage.splits += 1;
        self.forked += 1;
        self.oracle.splits(number, from, Seq(at));
        for agent in &mut self.agents {
            if agent.workflow == from && self.random.chance(600) {
                agent.workflow = number;
            }
        }
        Ok(())
    }
}
