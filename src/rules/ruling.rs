//! What a verdict may do to an entry, and what must come first.
//!
//! A verdict is for what is in doubt: PENDING, and nobody may act on it any more. Beyond that an
//! operator may only go by force, and then the entry is taken from whoever may still act, so that
//! what comes from there later is stale by comparison. A question and a task are open, not in
//! doubt: whether the client still answers, or the upstream still works, is nothing that a lock
//! could tell. So they are taken by force alone, named one by one, and only as they were seen.
//!
//! What is settled stays settled, with one exception: a verdict was given without knowing an answer
//! that came after it. An operator may adopt that answer, and the verdict is taken back. Nothing
//! runs by this; an entry that was said not to have been executed no longer runs. The upstream's
//! own outcome is no verdict and is never taken back so.
//!
//! Must not: look anything up, or change an entry (that is [`super::lifecycle`]'s).

use super::entry::Status;
use super::ids::Fence;
use crate::seeded::{self, Bug};

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The verdict says what became of the call; else it is only recorded that nobody knows.
    pub settles: bool,
    /// It says so by an answer that came too late to count, and is kept.
    pub adopts: bool,
    /// Whoever may still act is fenced instead of being a reason to refuse.
    pub forces: bool,
    /// The entry was named by its seq, and seen under this fence as a question, as a task, or as
    /// settled and about to be taken back from its verdict.
    pub seen: Option<Fence>,
}

/// Where the entry stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its status.
    pub status: Status,
    /// Its fence.
    pub fence: Fence,
    /// Somebody may still act on it; counts for PENDING only.
    pub owner_may_act: bool,
    /// Its outcome is the upstream's own; counts for COMPLETED and FAILED only.
    pub is_answered: bool,
}

/// How a verdict is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// On the entry as it stands.
    Rule,
    /// After the entry was taken away, under a new fence.
    FenceFirst,
    /// After the verdict before it was taken back, under a new fence.
    TakeBack,
    /// As a note: the entry stays as it is.
    Note,
}

/// Why a verdict is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Against {
    /// It is settled: nothing is in doubt.
    Settled,
    /// It is settled by the upstream's own answer: there is no verdict to take back.
    Answered,
    /// Its owner may still act, and nothing was forced.
    Owned,
    /// It is open, and nothing was forced.
    Open,
    /// It is open, or settled by a verdict, and was not named by its seq.
    NotNamed,
    /// It is no longer what was seen.
    Changed,
}

/// Decides how a verdict is given.
///
/// # Errors
///
/// Why it is not given.
pub fn way(standing: Standing, claim: Claim) -> Result<Way, Against> {
    let is_seen = claim
        .seen
        .map(|seen| seen == standing.fence || seeded::has(Bug::OpenTakenUnseen));
    match standing.status {
        Status::Pending if !standing.owner_may_act || seeded::has(Bug::VerdictOnOwned) => {
            Ok(Way::Rule)
        }
        Status::Pending if claim.forces && seeded::has(Bug::ForceWithoutFence) => Ok(Way::Rule),
        Status::Pending if claim.forces => Ok(Way::FenceFirst),
        Status::Pending => Err(Against::Owned),
        Status::InputRequired | Status::Accepted => match is_seen {
            // Who chose it among many, or when it was not open yet, did not mean this.
            None => Err(Against::NotNamed),
            Some(false) => Err(Against::Changed),
            Some(true) if !claim.settles => Ok(Way::Note),
            Some(true) if claim.forces => Ok(Way::FenceFirst),
            Some(true) => Err(Against::Open),
        },
        Status::Completed | Status::Failed | Status::Voided if claim.adopts => {
            let has_outcome = !matches!(standing.status, Status::Voided);
            match is_seen {
                _ if has_outcome && standing.is_answered => Err(Against::Answered),
                None => Err(Against::NotNamed),
                Some(false) => Err(Against::Changed),
                Some(true) => Ok(Way::TakeBack),
            }
        }
        Status::Completed | Status::Failed | Status::Voided | Status::Denied => {
            Err(Against::Settled)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOLS: [bool; 2] = [false, true];

    /// Every combination of facts, none left out.
    fn product() -> Vec<(Standing, Claim)> {
        let mut all = Vec::new();
        for status in Status::ALL {
            for owner_may_act in BOOLS {
                for is_answered in BOOLS {
                    let standing = Standing {
                        status,
                        fence: Fence(7),
                        owner_may_act,
                        is_answered,
                    };
                    for settles in BOOLS {
                        for adopts in BOOLS {
                            for forces in BOOLS {
                                for seen in [None, Some(Fence(7)), Some(Fence(6))] {
                                    let claim = Claim {
                                        settles,
                                        adopts,
                                        forces,
                                        seen,
                                    };
                                    all.push((standing, claim));
                                }
                            }
                        }
                    }
                }
            }
        }
        all
    }

    #[test]
    fn what_somebody_may_still_act_on_is_ruled_on_by_force_alone_and_fenced() {
        for (standing, claim) in product() {
            let way = way(standing, claim);
            let is_open = matches!(standing.status, Status::InputRequired | Status::Accepted);
            let is_owned = standing.status == Status::Pending && standing.owner_may_act;
            let may_act = is_open || is_owned;
            if may_act {
                assert_ne!(way, Ok(Way::Rule), "{standing:?} {claim:?}");
                if !claim.forces {
                    assert_ne!(way, Ok(Way::FenceFirst), "{standing:?} {claim:?}");
                }
            }
            if way == Ok(Way::FenceFirst) {
                assert!(may_act && claim.forces, "{standing:?} {claim:?}");
            }
        }
    }

    #[test]
    fn what_is_open_is_taken_only_by_name_and_as_it_was_seen() {
        for (standing, claim) in product() {
            let way = way(standing, claim);
            match standing.status {
                Status::InputRequired | Status::Accepted => {
                    let expected = match (claim.seen, claim.settles, claim.forces) {
                        (None, _, _) => Err(Against::NotNamed),
                        (Some(Fence(6)), _, _) => Err(Against::Changed),
                        (Some(_), false, _) => Ok(Way::Note),
                        (Some(_), true, true) => Ok(Way::FenceFirst),
                        (Some(_), true, false) => Err(Against::Open),
                    };
                    assert_eq!(way, expected, "{standing:?} {claim:?}");
                }
                Status::Pending => {
                    assert_eq!(way.is_ok(), !standing.owner_may_act || claim.forces);
                }
                Status::Completed | Status::Failed | Status::Voided | Status::Denied => {}
            }
        }
    }

    #[test]
    fn what_is_settled_is_taken_back_only_for_an_answer_and_never_from_the_upstream() {
        for (standing, claim) in product() {
            let expected = match standing.status {
                Status::Pending | Status::InputRequired | Status::Accepted => continue,
                Status::Denied => Err(Against::Settled),
                _ if !claim.adopts => Err(Against::Settled),
                Status::Completed | Status::Failed if standing.is_answered => {
                    Err(Against::Answered)
                }
                Status::Completed | Status::Failed | Status::Voided => match claim.seen {
                    None => Err(Against::NotNamed),
                    Some(Fence(6)) => Err(Against::Changed),
                    Some(_) => Ok(Way::TakeBack),
                },
            };
            assert_eq!(way(standing, claim), expected, "{standing:?} {claim:?}");
        }
    }
}
