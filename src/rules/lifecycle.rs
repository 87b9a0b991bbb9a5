//! Every change to an entry: entry × change → the entry afterwards, or why that can't be.
//!
//! A change is compared before it is made: the journal applies a [`Transition`] only if the
//! stored status, attempt and fence are still those of [`Transition::expect`], in the same
//! statement. So who has lost an entry loses by that comparison.
//!
//! Must not: read a clock or the journal. No arm may let an unexpected status through.

use super::entry::{Entry, GaveUp, OutcomeDigest, Provenance, Status, Unanswered};
use super::ids::{BranchId, Fence, HeldKey, Micros, Seq, SessionId};
use super::signature::{Scheme, Signature};

/// What must still be stored for a change to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No entry is there.
    Absent,
    /// The entry is there with exactly these.
    At {
        /// Where it stands.
        status: Status,
        /// Its current attempt.
        attempt: u32,
        /// Its current fence.
        fence: Fence,
    },
}

/// One change to one entry, ready for the journal's single write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// What must still be stored.
    pub expect: Expect,
    /// The entry afterwards.
    pub entry: Entry,
}

/// Why a change can't be made to an entry as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{change} does not apply to an entry that is {}", status.name())]
pub struct Illegal {
    /// The change's name.
    pub change: &'static str,
    /// Where the entry stands.
    pub status: Status,
}

/// A reservation: everything about a new attempt that the journal stores with the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The branch.
    pub branch: BranchId,
    /// The place.
    pub seq: Seq,
    /// The tool's name.
    pub tool: String,
    /// The signature's scheme.
    pub scheme: Scheme,
    /// The call's signature.
    pub signature: Signature,
    /// The new fence, higher than any before.
    pub fence: Fence,
    /// The session that reserves.
    pub session: SessionId,
    /// When.
    pub at: Micros,
    /// The key that the call holds.
    pub key: Option<HeldKey>,
    /// The provider's tool-call id.
    pub call_id: Option<String>,
}

/// An outcome as it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// What the upstream's answer (or a verdict) makes of the entry: COMPLETED, FAILED,
    /// INPUT_REQUIRED or ACCEPTED.
    pub status: Status,
    /// A result with `isError: true`.
    pub is_error: bool,
    /// Whose outcome it is.
    pub provenance: Provenance,
    /// The digest of its bytes.
    pub digest: OutcomeDigest,
    /// Its bytes are not kept.
    pub is_tombstone: bool,
    /// When.
    pub at: Micros,
}

fn expect(entry: &Entry) -> Expect {
    Expect::At {
        status: entry.status,
        attempt: entry.attempt,
        fence: entry.fence,
    }
}

/// Returns the reservation of an entry that does not exist yet.
#[must_use]
pub fn reserve_new(reservation: Reservation) -> Transition {
    Transition {
        expect: Expect::Absent,
        entry: pending(reservation, 1, 0),
    }
}

fn pending(reservation: Reservation, attempt: u32, round: u32) -> Entry {
    Entry {
        branch: reservation.branch,
        seq: reservation.seq,
        tool: reservation.tool,
        scheme: reservation.scheme,
        signature: reservation.signature,
        status: Status::Pending,
        attempt,
        round,
        fence: reservation.fence,
        session: reservation.session,
        created_at: reservation.at,
        completed_at: None,
        delivered_at: None,
        gave_up: None,
        unanswered: None,
        is_error: false,
        provenance: None,
        digest: None,
        is_tombstone: false,
        key: reservation.key,
        call_id: reservation.call_id,
    }
}

/// Returns the reservation of the next attempt of an entry: one that is VOIDED, one that a
/// policy retries (FAILED, COMPLETED with `isError`, PENDING whose owner is gone), or one that an
/// operator has reopened.
///
/// # Errors
///
/// The entry waits for input, for a task, or was denied: no attempt may start.
pub fn reserve_again(entry: &Entry, reservation: Reservation) -> Result<Transition, Illegal> {
    match entry.status {
        Status::Voided | Status::Failed | Status::Completed | Status::Pending => {}
        Status::InputRequired | Status::Accepted | Status::Denied => {
            return Err(Illegal {
                change: "a new attempt",
                status: entry.status,
            });
        }
    }
    let given = reservation.key.clone();
    // What did not run is nobody's effect: the call that runs now gives the key.
    let held = if entry.status == Status::Voided {
        given.or_else(|| entry.key.clone())
    } else {
        entry.key.clone().or(given)
    };
    let mut next = pending(reservation, entry.attempt + 1, 0);
    next.key = held;
    Ok(Transition {
        expect: expect(entry),
        entry: next,
    })
}

/// Returns the reservation of the next round of an entry whose upstream asked for input.
///
/// # Errors
///
/// The entry does not wait for input.
pub fn reserve_round(entry: &Entry, reservation: Reservation) -> Result<Transition, Illegal> {
    if entry.status != Status::InputRequired {
        return Err(Illegal {
            change: "a further round",
            status: entry.status,
        });
    }
    let held = entry.key.clone();
    let created_at = entry.created_at;
    let mut next = pending(reservation, entry.attempt, entry.round + 1);
    next.key = held;
    next.created_at = created_at;
    Ok(Transition {
        expect: expect(entry),
        entry: next,
    })
}

/// Returns the outcome of a PENDING entry, or the end of an ACCEPTED entry's task.
///
/// # Errors
///
/// The entry is settled already, or `settlement.status` is no outcome.
pub fn settle(entry: &Entry, settlement: Settlement) -> Result<Transition, Illegal> {
    let illegal = Illegal {
        change: "an outcome",
        status: entry.status,
    };
    match (entry.status, settlement.status) {
        (
            Status::Pending,
            Status::Completed | Status::Failed | Status::InputRequired | Status::Accepted,
        )
        | (Status::Accepted, Status::Completed | Status::Failed) => {}
        (
            Status::Pending
            | Status::Accepted
            | Status::Completed
            | Status::Failed
            | Status::InputRequired
            | Status::Voided
            | Status::Denied,
            _,
        ) => return Err(illegal),
    }
    Ok(Transition {
        expect: expect(entry),
        entry: Entry {
            status: settlement.status,
            is_error: settlement.is_error,
            provenance: Some(settlement.provenance),
            digest: Some(settlement.digest),
            is_tombstone: settlement.is_tombstone,
            completed_at: Some(settlement.at),
            // A later end of a task was not what the caller was given.
            delivered_at: None,
            ..entry.clone()
        },
    })
}

/// Returns the entry as known not to have run: never forwarded, a verdict, or an error that the
/// protocol defines as "mend and send again". A later round goes back to the question before it.
///
/// # Errors
///
/// The entry is not PENDING.
pub fn void(entry: &Entry, at: Micros, asked_before: Option<Asked>) -> Result<Transition, Illegal> {
    if entry.status != Status::Pending {
        return Err(Illegal {
            change: "voiding",
            status: entry.status,
        });
    }
    let back = match asked_before {
        // The question that was asked before this round stands again.
        Some(asked) => Entry {
            status: Status::InputRequired,
            round: entry.round.saturating_sub(1),
            fence: asked.fence,
            provenance: Some(Provenance::Upstream),
            digest: Some(asked.digest),
            completed_at: Some(asked.at),
            delivered_at: asked.delivered_at,
            gave_up: None,
            unanswered: None,
            ..entry.clone()
        },
        None => Entry {
            status: Status::Voided,
            completed_at: Some(at),
            // Nothing was left undelivered: there is no outcome.
            delivered_at: Some(at),
            gave_up: None,
            unanswered: None,
            ..entry.clone()
        },
    };
    Ok(Transition {
        expect: expect(entry),
        entry: back,
    })
}

/// The question that an earlier round of the same attempt ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The fence of the round that asked: the entry stands under it again.
    pub fence: Fence,
    /// The digest of the answer that asked.
    pub digest: OutcomeDigest,
    /// When it came.
    pub at: Micros,
    /// When it was delivered.
    pub delivered_at: Option<Micros>,
}

/// Returns the entry with a note that its caller no longer waits: it is PENDING, or its outcome
/// has reached nobody yet.
///
/// # Errors
///
/// The entry is neither.
pub fn give_up(entry: &Entry, reason: GaveUp) -> Result<Transition, Illegal> {
    if entry.status != Status::Pending && !entry.is_undelivered() {
        return Err(Illegal {
            change: "a caller that gave up",
            status: entry.status,
        });
    }
    let mut next = entry.clone();
    next.gave_up = Some(reason);
    Ok(Transition {
        expect: expect(entry),
        entry: next,
    })
}

/// Returns the PENDING entry with a note that no answer will come.
///
/// # Errors
///
/// The entry is not PENDING.
pub fn lose(entry: &Entry, reason: Unanswered) -> Result<Transition, Illegal> {
    if entry.status != Status::Pending {
        return Err(Illegal {
            change: "a lost answer",
            status: entry.status,
        });
    }
    let mut next = entry.clone();
    next.unanswered = Some(reason);
    Ok(Transition {
        expect: expect(entry),
        entry: next,
    })
}

/// Returns the open entry taken from whoever may still act on it: it is PENDING under a new fence,
/// so that whatever comes from there loses by comparison, and nobody waits for it any more. A
/// question or a task's handle stays with the fence before.
///
/// # Errors
///
/// The entry is neither PENDING, nor a question, nor a task.
pub fn take_away(entry: &Entry, fence: Fence) -> Result<Transition, Illegal> {
    match entry.status {
        Status::Pending | Status::InputRequired | Status::Accepted => {}
        Status::Completed | Status::Failed | Status::Voided | Status::Denied => {
            return Err(Illegal {
                change: "fencing its owner",
                status: entry.status,
            });
        }
    }
    Ok(Transition {
        expect: expect(entry),
        entry: Entry {
            status: Status::Pending,
            fence,
            unanswered: Some(Unanswered::Fenced),
            gave_up: entry.gave_up.or(Some(GaveUp::Gone)),
            completed_at: None,
            delivered_at: None,
            is_error: false,
            provenance: None,
            digest: None,
            is_tombstone: false,
            ..entry.clone()
        },
    })
}

/// Returns a verdict with an outcome on an entry in doubt. That it is in doubt is the caller's to
/// know; here it must be PENDING.
///
/// # Errors
///
/// The entry is not PENDING, or `settlement.status` is neither COMPLETED nor FAILED.
pub fn rule(entry: &Entry, settlement: Settlement) -> Result<Transition, Illegal> {
    let is_verdict = match settlement.status {
        Status::Completed | Status::Failed => true,
        Status::Pending
        | Status::InputRequired
        | Status::Accepted
        | Status::Voided
        | Status::Denied => false,
    };
    if entry.status != Status::Pending || !is_verdict {
        return Err(Illegal {
            change: "a verdict",
            status: entry.status,
        });
    }
    let mut transition = settle(entry, settlement)?;
    // Whoever asked was told that the outcome is unknown: the next equal call may have it.
    transition.entry.gave_up = entry.gave_up.or(Some(GaveUp::Gone));
    transition.entry.unanswered = None;
    Ok(transition)
}

/// Returns the settled entry as one that runs once more when it is called: as if it had not been
/// executed. Its outcome stays with its attempt.
///
/// # Errors
///
/// The entry is not settled: COMPLETED, FAILED or DENIED.
pub fn reopen(entry: &Entry, at: Micros) -> Result<Transition, Illegal> {
    match entry.status {
        Status::Completed | Status::Failed | Status::Denied => {}
        Status::Pending | Status::InputRequired | Status::Accepted | Status::Voided => {
            return Err(Illegal {
                change: "reopening",
                status: entry.status,
            });
        }
    }
    Ok(Transition {
        expect: expect(entry),
        entry: Entry {
            status: Status::Voided,
            completed_at: Some(at),
            // Nothing is left undelivered: the outcome no longer counts.
            delivered_at: Some(at),
            gave_up: None,
            unanswered: None,
            is_error: false,
            provenance: None,
            digest: None,
            is_tombstone: false,
            ..entry.clone()
        },
    })
}

/// Returns the settled entry without its payloads: a tombstone, which still forbids running again.
/// One that is known not to have run, or was denied, has no outcome to replay and keeps its row.
///
/// # Errors
///
/// The entry is open: its payloads are needed.
pub fn bury(entry: &Entry) -> Result<Transition, Illegal> {
    let is_tombstone = match entry.status {
        Status::Completed | Status::Failed => true,
        Status::Voided | Status::Denied => entry.is_tombstone,
        Status::Pending | Status::InputRequired | Status::Accepted => {
            return Err(Illegal {
                change: "burying",
                status: entry.status,
            });
        }
    };
    Ok(Transition {
        expect: expect(entry),
        entry: Entry {
            is_tombstone,
            ..entry.clone()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(status: Status) -> Entry {
        let mut entry = pending(reservation(1), 1, 0);
        entry.status = status;
        entry
    }

    fn reservation(fence: u64) -> Reservation {
        Reservation {
            branch: BranchId(1),
            seq: Seq(7),
            tool: "charge".into(),
            scheme: Scheme::Plain,
            signature: Signature([1; 32]),
            fence: Fence(fence),
            session: SessionId(1),
            at: Micros(10),
            key: None,
            call_id: None,
        }
    }

    fn settlement(status: Status) -> Settlement {
        Settlement {
            status,
            is_error: false,
            provenance: Provenance::Upstream,
            digest: [2; 32],
            is_tombstone: false,
            at: Micros(20),
        }
    }

    #[test]
    fn only_a_pending_or_accepted_entry_is_settled() {
        for from in Status::ALL {
            for to in Status::ALL {
                let legal = match from {
                    Status::Pending => matches!(
                        to,
                        Status::Completed
                            | Status::Failed
                            | Status::InputRequired
                            | Status::Accepted
                    ),
                    Status::Accepted => matches!(to, Status::Completed | Status::Failed),
                    _ => false,
                };
                assert_eq!(
                    settle(&entry(from), settlement(to)).is_ok(),
                    legal,
                    "{from:?} to {to:?}"
                );
            }
        }
    }

    #[test]
    fn an_outcome_is_all_that_a_settled_entry_tells() {
        let mut task = entry(Status::Accepted);
        task.provenance = Some(Provenance::Operator);
        task.delivered_at = Some(Micros(4));
        let end = Settlement {
            is_error: true,
            is_tombstone: true,
            ..settlement(Status::Failed)
        };
        let mut told = entry(Status::Failed);
        told.is_error = true;
        told.provenance = Some(Provenance::Upstream);
        told.digest = Some([2; 32]);
        told.is_tombstone = true;
        told.completed_at = Some(Micros(20));
        assert_eq!(settle(&task, end).unwrap().entry, told);
    }

    #[test]
    fn what_did_not_run_was_given_up_by_nobody() {
        let mut open = entry(Status::Pending);
        open.gave_up = Some(GaveUp::Gone);
        open.unanswered = Some(Unanswered::UpstreamExited);
        let told = void(&open, Micros(9), None).unwrap().entry;
        assert_eq!((told.gave_up, told.unanswered), (None, None));
        assert_eq!(told.status, Status::Voided);
    }

    #[test]
    fn notes_and_voiding_apply_to_pending_entries_only() {
        for status in Status::ALL {
            let pending = status == Status::Pending;
            let entry = entry(status);
            assert_eq!(give_up(&entry, GaveUp::Gone).is_ok(), pending);
            assert_eq!(lose(&entry, Unanswered::UpstreamExited).is_ok(), pending);
            assert_eq!(void(&entry, Micros(1), None).is_ok(), pending);
        }
    }

    #[test]
    fn only_a_pending_entry_is_ruled_on_and_only_a_settled_one_reopened() {
        for status in Status::ALL {
            let is_pending = status == Status::Pending;
            let entry = entry(status);
            let is_open = is_pending || matches!(status, Status::InputRequired | Status::Accepted);
            assert_eq!(take_away(&entry, Fence(9)).is_ok(), is_open, "{status:?}");
            for to in Status::ALL {
                let legal = is_pending && matches!(to, Status::Completed | Status::Failed);
                assert_eq!(rule(&entry, settlement(to)).is_ok(), legal, "{to:?}");
            }
            let settled = matches!(status, Status::Completed | Status::Failed | Status::Denied);
            assert_eq!(reopen(&entry, Micros(9)).is_ok(), settled, "{status:?}");
        }
    }

    #[test]
    fn only_what_is_settled_is_buried() {
        for status in Status::ALL {
            let buried = bury(&entry(status)).map(|transition| transition.entry);
            match status {
                Status::Completed | Status::Failed => assert!(buried.unwrap().is_tombstone),
                Status::Voided | Status::Denied => assert_eq!(buried.unwrap(), entry(status)),
                Status::Pending | Status::InputRequired | Status::Accepted => {
                    assert!(buried.is_err());
                }
            }
        }
    }

    #[test]
    fn an_owner_that_was_fenced_loses_by_comparison() {
        let owned = entry(Status::Pending);
        let late = settle(&owned, settlement(Status::Completed)).unwrap();
        let taken = take_away(&owned, Fence(9)).unwrap().entry;
        let Expect::At { fence, .. } = late.expect else {
            panic!("an outcome expects an entry");
        };
        assert_ne!(fence, taken.fence);
        assert_eq!(taken.unanswered, Some(Unanswered::Fenced));
        let ruled = rule(&taken, settlement(Status::Completed)).unwrap().entry;
        assert_eq!((ruled.fence, ruled.unanswered), (Fence(9), None));
        assert_eq!(ruled.gave_up, Some(GaveUp::Gone));
    }

    /// What is left in the row is that of a call without an outcome, whose next answer is its
    /// first: the question or the handle stays where it was given.
    #[test]
    fn a_question_or_a_task_that_is_taken_away_is_pending_and_clean() {
        for status in [Status::InputRequired, Status::Accepted] {
            let mut open = entry(status);
            open.digest = Some([7; 32]);
            open.provenance = Some(Provenance::Upstream);
            open.completed_at = Some(Micros(3));
            open.delivered_at = Some(Micros(4));
            open.is_error = true;
            open.is_tombstone = true;
            let end = settle(&entry(Status::Accepted), settlement(Status::Completed)).unwrap();
            let taken = take_away(&open, Fence(9)).unwrap();
            assert_eq!(taken.expect, expect(&open));
            let mut clean = entry(Status::Pending);
            clean.fence = Fence(9);
            clean.unanswered = Some(Unanswered::Fenced);
            clean.gave_up = Some(GaveUp::Gone);
            assert_eq!(taken.entry, clean);
            assert_ne!(end.expect, expect(&clean));
            let voided = void(&clean, Micros(9), None).unwrap().entry;
            assert_eq!(voided.status, Status::Voided);
        }
    }

    #[test]
    fn a_reopened_entry_starts_its_next_attempt_clean() {
        let mut done = entry(Status::Completed);
        done.digest = Some([7; 32]);
        done.provenance = Some(Provenance::Upstream);
        done.is_tombstone = true;
        done.is_error = true;
        done.gave_up = Some(GaveUp::Gone);
        done.unanswered = Some(Unanswered::UpstreamExited);
        let open = reopen(&done, Micros(9)).unwrap().entry;
        let mut clean = entry(Status::Voided);
        clean.completed_at = Some(Micros(9));
        clean.delivered_at = Some(Micros(9));
        assert_eq!(open, clean);
        assert!(!open.is_undelivered());
        let next = reserve_again(&open, reservation(2)).unwrap().entry;
        assert_eq!((next.attempt, next.status), (2, Status::Pending));
    }

    #[test]
    fn a_new_attempt_expects_the_old_one_and_starts_clean() {
        let mut old = entry(Status::Failed);
        old.attempt = 2;
        old.digest = Some([9; 32]);
        old.delivered_at = Some(Micros(3));
        let next = reserve_again(&old, reservation(9)).unwrap();
        assert_eq!(
            next.expect,
            Expect::At {
                status: Status::Failed,
                attempt: 2,
                fence: Fence(1)
            }
        );
        assert_eq!(next.entry.attempt, 3);
        assert_eq!(next.entry.fence, Fence(9));
        assert_eq!(next.entry.digest, None);
        assert_eq!(next.entry.delivered_at, None);
    }

    #[test]
    fn no_attempt_starts_beside_a_question_a_task_or_a_denial() {
        for status in [Status::InputRequired, Status::Accepted, Status::Denied] {
            assert!(reserve_again(&entry(status), reservation(2)).is_err());
        }
        assert!(reserve_round(&entry(Status::InputRequired), reservation(2)).is_ok());
        assert!(reserve_round(&entry(Status::Completed), reservation(2)).is_err());
    }

    #[test]
    fn a_voided_later_round_goes_back_to_its_question() {
        let mut second = entry(Status::Pending);
        second.round = 1;
        second.fence = Fence(2);
        second.gave_up = Some(GaveUp::Gone);
        second.unanswered = Some(Unanswered::UpstreamExited);
        let asked = Asked {
            fence: Fence(1),
            digest: [4; 32],
            at: Micros(5),
            delivered_at: Some(Micros(6)),
        };
        let back = void(&second, Micros(9), Some(asked)).unwrap().entry;
        let mut question = entry(Status::InputRequired);
        question.provenance = Some(Provenance::Upstream);
        question.digest = Some([4; 32]);
        question.completed_at = Some(Micros(5));
        question.delivered_at = Some(Micros(6));
        assert_eq!(back, question);
    }
}
