//! Somebody who asks what would happen to a call, just before it happens.

use super::*;
use crate::store::Onlooker;
use checkpoint::guard::Admission;
use checkpoint::rules::decide::Letter;
use checkpoint::rules::ids::{BranchId, Fence, Seq};

/// What happens to a call, as far as it can be foreseen.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Run(BranchId, Seq, Fence, u32),
    Replay(BranchId, Seq, Fence),
    Join(BranchId, Seq, Fence),
    Refuse(checkpoint::guard::Why, Option<Seq>),
}

fn fate(admission: &Admission) -> (Letter, Fate) {
    match &admission.verdict {
        AdmissionVerdict::Run(ticket, letter) => (
            *letter,
            Fate::Run(ticket.branch, ticket.seq, ticket.fence, ticket.attempt),
        ),
        AdmissionVerdict::Replay(replay) => {
            let entry = &replay.entry;
            (
                replay.letter,
                Fate::Replay(entry.branch, entry.seq, entry.fence),
            )
        }
        AdmissionVerdict::Join { ticket, letter, .. } => {
            (*letter, Fate::Join(ticket.branch, ticket.seq, ticket.fence))
        }
        AdmissionVerdict::Refuse(refused) => {
            (refused.letter, Fate::Refuse(refused.why, refused.seq))
        }
    }
}

impl World<'_> {
    /// Asks what would happen to the first call of a batch that says which entry it means.
    pub(super) fn foresees(&mut self, number: usize, ops: &[Op]) -> Option<Admission> {
        // A walk is the session's own.
        let Some(Op::Admit(call)) = ops.first() else {
            return None;
        };
        let is_named = call.seq.is_some() || call.key.is_some();
        if !is_named || call.joined.is_some() || self.plan.resumes || !self.random.chance(200) {
            return None;
        }
        let mut guard = Guard::new(
            SimJournal::new(&self.store),
            Onlooker(Rc::clone(&self.store)),
            self.plan.guard_options(self.lives[number].agent),
            SessionRow::default(),
        );
        let before = self.places();
        let foreseen = guard.foresee(call, Micros(self.wall));
        guard.journal().give_back();
        assert_eq!(before, self.places(), "who asks changes nothing");
        foreseen.ok()
    }

    /// What was foreseen is what happens.
    pub(super) fn was_foreseen(
        &mut self,
        number: usize,
        foreseen: &Admission,
        done: &Done,
    ) -> Check {
        let Done::Admitted(admission) = done else {
            return Ok(());
        };
        let own = self.lives[number].guard.session();
        let is_own = match &admission.verdict {
            AdmissionVerdict::Join { is_ours, .. } => *is_ours,
            AdmissionVerdict::Refuse(refused) => refused
                .entry
                .as_ref()
                .is_some_and(|entry| Some(entry.session) == own),
            AdmissionVerdict::Run(..) | AdmissionVerdict::Replay(_) => false,
        };
        // Nobody takes a call over from himself, and who asks is somebody else.
        if is_own && self.plan.promise.at_least_once {
            return Ok(());
        }
        self.coverage.foreseen += 1;
        let (foreseen, happens) = (fate(foreseen), fate(admission));
        if foreseen == happens {
            Ok(())
        } else {
            Err(format!(
                "V5 {foreseen:?} was foreseen, and {happens:?} happens"
            ))
        }
    }
}
