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
use crate::seeded::{self, Bug};

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
            is_tombstone: asked.is_tombstone,
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
    /// The bytes of that answer are not kept, or no longer.
    pub is_tombstone: bool,
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
    Ok(anew(entry, fence))
}

/// Returns the settled entry taken back from the verdict that settled it, so that another one can
/// be given: it is PENDING under a new fence, and what was said of it stays with the fence before.
///
/// # Errors
///
/// No verdict settled it: it is open, was denied, or its outcome is the upstream's own answer.
pub fn take_back(entry: &Entry, fence: Fence) -> Result<Transition, Illegal> {
    let is_ruled = match entry.status {
        Status::Voided => true,
        Status::Completed | Status::Failed => !entry.is_answered(),
        Status::Pending | Status::InputRequired | Status::Accepted | Status::Denied => false,
    };
    if !is_ruled {
        return Err(Illegal {
            change: "taking a verdict back",
            status: entry.status,
        });
    }
    Ok(anew(entry, fence))
}

/// Returns the entry as PENDING under a new fence, with nobody who waits for it.
fn anew(entry: &Entry, fence: Fence) -> Transition {
    Transition {
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
    }
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
    if seeded::has(Bug::VerdictCountsAsDelivered) {
        transition.entry.delivered_at = Some(settlement.at);
    }
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
        Status::InputRequired if seeded::has(Bug::QuestionReopened) => {}
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
mod tests;
