//! What a verdict may do to an entry, and what must come first.
//!
//! A verdict is for what is in doubt: PENDING, and nobody may act on it any more. Beyond that an
//! operator may only go by force, and then the entry is taken from whoever may still act, so that
//! what comes from there later is stale by comparison. A question and a task are open, not in
//! doubt: whether the client still answers, or the upstream still works, is nothing that a lock
//! could tell. So they are taken by force alone, named one by one, and only as they were seen.
//!
//! Must not: look anything up, or change an entry (that is [`super::lifecycle`]'s).

use super::entry::Status;
use super::ids::Fence;

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The verdict says what became of the call; else it is only recorded that nobody knows.
    pub settles: bool,
    /// Whoever may still act is fenced instead of being a reason to refuse.
    pub forces: bool,
    /// The entry was named by its seq and seen to be a question or a task under this fence.
    pub open: Option<Fence>,
}

/// How a verdict is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// On the entry as it stands.
    Rule,
    /// After the entry was taken away, under a new fence.
    FenceFirst,
    /// As a note: the entry stays as it is.
    Note,
}

/// Why a verdict is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Against {
    /// It is settled: nothing is in doubt.
    Settled,
    /// Its owner may still act, and nothing was forced.
    Owned,
    /// It is open, and nothing was forced.
    Open,
    /// It is open, and was not named by its seq.
    NotNamed,
    /// It is no longer what was seen.
    Changed,
}

/// Decides how a verdict is given. `owner_may_act` counts for PENDING only.
///
/// # Errors
///
/// Why it is not given.
pub const fn way(
    status: Status,
    fence: Fence,
    owner_may_act: bool,
    claim: Claim,
) -> Result<Way, Against> {
    match status {
        Status::Pending if !owner_may_act => Ok(Way::Rule),
        Status::Pending if claim.forces => Ok(Way::FenceFirst),
        Status::Pending => Err(Against::Owned),
        Status::InputRequired | Status::Accepted => match claim.open {
            // Who chose it among many, or when it was not open yet, did not mean this.
            None => Err(Against::NotNamed),
            Some(seen) if seen.0 != fence.0 => Err(Against::Changed),
            Some(_) if !claim.settles => Ok(Way::Note),
            Some(_) if claim.forces => Ok(Way::FenceFirst),
            Some(_) => Err(Against::Open),
        },
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
    fn product() -> Vec<(Status, bool, Claim)> {
        let mut all = Vec::new();
        for status in Status::ALL {
            for owner_may_act in BOOLS {
                for settles in BOOLS {
                    for forces in BOOLS {
                        for open in [None, Some(Fence(7)), Some(Fence(6))] {
                            let claim = Claim {
                                settles,
                                forces,
                                open,
                            };
                            all.push((status, owner_may_act, claim));
                        }
                    }
                }
            }
        }
        all
    }

    #[test]
    fn what_somebody_may_still_act_on_is_ruled_on_by_force_alone_and_fenced() {
        for (status, owner_may_act, claim) in product() {
            let way = way(status, Fence(7), owner_may_act, claim);
            let is_open = matches!(status, Status::InputRequired | Status::Accepted);
            let may_act = is_open || (status == Status::Pending && owner_may_act);
            if may_act {
                assert_ne!(way, Ok(Way::Rule), "{status:?} {claim:?}");
                if !claim.forces {
                    assert_ne!(way, Ok(Way::FenceFirst), "{status:?} {claim:?}");
                }
            }
            if way == Ok(Way::FenceFirst) {
                assert!(may_act && claim.forces, "{status:?} {claim:?}");
            }
        }
    }

    #[test]
    fn what_is_open_is_taken_only_by_name_and_as_it_was_seen() {
        for (status, owner_may_act, claim) in product() {
            let way = way(status, Fence(7), owner_may_act, claim);
            match status {
                Status::InputRequired | Status::Accepted => {
                    let expected = match (claim.open, claim.settles, claim.forces) {
                        (None, _, _) => Err(Against::NotNamed),
                        (Some(Fence(6)), _, _) => Err(Against::Changed),
                        (Some(_), false, _) => Ok(Way::Note),
                        (Some(_), true, true) => Ok(Way::FenceFirst),
                        (Some(_), true, false) => Err(Against::Open),
                    };
                    assert_eq!(way, expected, "{status:?} {claim:?}");
                }
                Status::Pending => assert_eq!(way.is_ok(), !owner_may_act || claim.forces),
                Status::Completed | Status::Failed | Status::Voided | Status::Denied => {
                    assert_eq!(way, Err(Against::Settled));
                }
            }
        }
    }
}
