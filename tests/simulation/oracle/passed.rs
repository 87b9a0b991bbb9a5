//! What an upstream is told of a call beside the call itself, and which arguments a key covers.

use super::*;
use crate::promise::{Passed, covered};

impl Oracle {
    /// K1: the key is the entry's in all of its attempts and nobody else's; attempt and fence are
    /// those of the reservation.
    pub(super) fn passed_on(
        &mut self,
        durable: &MemoryJournal,
        serial: usize,
        grant: Grant,
        passed: &Passed,
    ) -> Check {
        self.seen.keys_passed += 1;
        let place = (grant.branch, grant.seq);
        let holder = *self.passed.entry(passed.key.clone()).or_insert(place);
        holds!(
            holder == place,
            "K1 c{serial} at {place:?} tells the key of {holder:?}"
        );
        let others = self.passed.iter().filter(|(_, held)| **held == place);
        holds!(
            others.count() == 1,
            "K1 c{serial} tells another key than the attempts of {place:?} before it"
        );
        holds!(
            passed.key.ends_with(&format!("/{}", grant.seq)),
            "K1 the key of c{serial} does not end with its seq"
        );
        holds!(
            passed.fence.is_none_or(|fence| fence == grant.fence),
            "K1 c{serial} under fence {} tells another one",
            grant.fence
        );
        let attempt = durable
            .attempt(grant.fence)
            .map(|row| u64::from(row.attempt));
        holds!(
            passed.attempt.is_none_or(|told| Some(told) == attempt),
            "K1 c{serial} is attempt {attempt:?} and tells another one"
        );
        if attempt > Some(1) {
            self.seen.keys_passed_again += 1;
        }
        Ok(())
    }

    /// Whether a key lets a call stand for one with these arguments.
    pub(super) fn may_be_covered(&self, request: &Request, arguments: &str) -> bool {
        self.promise.covers
            && request.key.is_some()
            && covered(&request.arguments) == covered(arguments)
    }

    /// Whether a call is the same as the one whose entry it means: in all of its arguments where
    /// its seq leads there, as far as its policy says where its key does. `if_new`: what counts
    /// where the batch has made its workflow, so that nobody can tell which of the two it was.
    pub(super) fn is_equal(
        &mut self,
        serial: usize,
        place: (BranchId, Seq),
        arguments: &str,
        if_new: bool,
    ) -> bool {
        let request = &self.requests[serial];
        if request.arguments == arguments {
            return true;
        }
        let is_its_seq = request.seq == Some(place.1.0);
        let by_seq = is_its_seq
            && match self.place_of(request.workflow, place.1) {
                Some(expected) => expected == place,
                // What was there before was its key's to find.
                None => !if_new && !self.owners.contains_key(&place.0),
            };
        let is_covered = !by_seq && self.may_be_covered(request, arguments);
        self.seen.covered += u64::from(is_covered);
        is_covered
    }
}
