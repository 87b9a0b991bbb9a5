//! The operator's hand: verdicts on entries in doubt, reopening, delivery by other means.
//!
//! The only writer of entries besides [`super::Guard`]. Each act is one transaction: look, judge,
//! compare and change, with an event that says who did what, when and why. So it is safe beside
//! proxies that run: whoever comes second loses by comparison, and is told so.
//!
//! Invariants: what does not hold is never ruled on; an entry on which somebody may still act is
//! taken away first, under a new fence, and only where that was asked for
//! ([`crate::rules::ruling`]); an outcome, a question or a handle that was there stays with its
//! attempt.
//!
//! Must not: know where a verdict comes from, or how it is shown.

mod asking;
mod deed;
mod refused;

use asking::RESOLVED;
pub use asking::Turn;
pub use deed::Deed;
pub use refused::Refused;

use super::settle::question;
use super::stale::{self, Kept, Stale, Wanted};
use crate::journal::{
    Applied, Attempt, Durability, Event, Journal, JournalError, Outcome, Payload, Session, Stored,
    Transaction, Write,
};
use crate::json;
use crate::rules::entry::{Entry, Provenance, Status, outcome_digest};
use crate::rules::ids::{BranchId, Fence, Micros, Seq, SessionId};
use crate::rules::lifecycle::{self, Asked, Settlement, Transition};
use crate::rules::ruling::{self, Against, Claim, Standing, Way};
use crate::seeded::{self, Bug};

/// What is known about whoever may still act on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The session holds its lock.
    pub is_live: bool,
    /// Its upstream's process group still lives; `None` if that can't be told.
    pub upstream_alive: Option<bool>,
}

/// How the world outside the journal is asked about a session.
pub type AskOwner<'a> = &'a mut dyn FnMut(SessionId, Option<&Session>) -> Owner;

/// What is said about a call in doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was carried out, with this result.
    Completed {
        /// The result's bytes.
        body: Payload,
        /// The result says `isError: true`.
        is_error: bool,
        /// Whose the result is.
        provenance: Provenance,
    },
    /// It failed, with this error.
    Failed {
        /// The error's bytes.
        body: Payload,
        /// Whose the error is.
        provenance: Provenance,
    },
    /// It was not carried out: the next call runs.
    NotExecuted,
    /// It was looked into, and is still not known.
    StillUnknown,
}

impl Verdict {
    /// Returns the name that is stored with the event.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::NotExecuted => "not_executed",
            Self::StillUnknown => "still_unknown",
        }
    }
}

/// What is to be done to an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// A verdict on a call in doubt, or by force on one that is open.
    Resolve {
        /// The verdict.
        verdict: Verdict,
        /// Whoever may still act is fenced instead of being a reason to refuse.
        forces: bool,
        /// The entry was named by its seq and seen to be a question or a task under this fence.
        seen: Option<Fence>,
    },
    /// The verdict that a stale answer of it gives, also in the place of a verdict before.
    Adopt {
        /// Which answer.
        wanted: Wanted,
        /// Whoever may still act is fenced instead of being a reason to refuse.
        forces: bool,
        /// The entry was named by its seq and seen under this fence.
        seen: Option<Fence>,
    },
    /// Somebody is about to be asked what became of a call in doubt: what is done of it is the
    /// event, durable before the question goes out. Refused while another session that lives is
    /// at it, or where one has had a word while this one waited.
    Ask(Turn),
    /// One more attempt of a settled entry.
    Reopen,
    /// Its outcome reached its caller by other means.
    Deliver,
}

/// What became of an act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// It is done, and durable.
    Done {
        /// The entry before.
        before: Box<Entry>,
        /// The entry as it stands now.
        after: Box<Entry>,
        /// Its owner was fenced.
        was_fenced: bool,
    },
    /// Nothing was done.
    Refused(Refused),
}

/// Does one thing to one entry, or tells what it would do.
///
/// On [`Ruling::Done`] it is durable, unless `is_trial`: then nothing was written.
///
/// # Errors
///
/// As the journal's: [`JournalError::Busy`] may be tried again.
pub fn rule<J: Journal>(
    journal: &mut J,
    place: (BranchId, Seq),
    act: &Act,
    deed: &Deed,
    now: Micros,
    ask: AskOwner<'_>,
    is_trial: bool,
) -> Result<Ruling, JournalError> {
    let uid = journal.identity().uid;
    let tx = journal.begin(Durability::Power)?;
    let mut desk = Desk {
        tx,
        uid,
        deed,
        now,
        was_fenced: false,
        adopted: None,
    };
    let stored = match desk.tx.entry(place.0, place.1) {
        Ok(Some(stored)) => stored,
        Ok(None) => return Ok(Ruling::Refused(Refused::Absent)),
        Err(JournalError::Unreadable(_)) => return Ok(Ruling::Refused(Refused::Quarantined)),
        Err(error) => return Err(error),
    };
    let before = stored.entry.clone();
    let after = match act {
        Act::Resolve {
            verdict,
            forces,
            seen,
        } => {
            let claim = Claim {
                settles: *verdict != Verdict::StillUnknown,
                adopts: false,
                forces: *forces,
                seen: *seen,
            };
            desk.resolve(&stored, verdict, claim, ask)?
        }
        Act::Adopt {
            wanted,
            forces,
            seen,
        } => {
            let claim = Claim {
                settles: true,
                adopts: true,
                forces: *forces,
                seen: *seen,
            };
            desk.adopt(&stored, wanted, claim, ask)?
        }
        Act::Ask(turn) => desk.announce(&stored, *turn, ask)?,
        Act::Reopen => desk.reopen(&stored)?,
        Act::Deliver => desk.deliver(&stored)?,
    };
    match after {
        Ok(after) => {
            let was_fenced = desk.was_fenced;
            if !is_trial || seeded::has(Bug::RehearsalCommitted) {
                desk.tx.commit()?;
            }
            Ok(Ruling::Done {
                before: Box::new(before),
                after: Box::new(after),
                was_fenced,
            })
        }
        Err(refused) => Ok(Ruling::Refused(refused)),
    }
}

/// One transaction.
struct Desk<'a, T> {
    tx: T,
    uid: [u8; 16],
    deed: &'a Deed,
    now: Micros,
    was_fenced: bool,
    /// The stale answer that is made the outcome.
    adopted: Option<Kept>,
}

/// The entry afterwards, or why nothing is done.
type Judged = Result<Entry, Refused>;

impl<T: Transaction> Desk<'_, T> {
    /// Gives the verdict that a stale answer gives.
    fn adopt(
        &mut self,
        stored: &Stored,
        wanted: &Wanted,
        claim: Claim,
        ask: AskOwner<'_>,
    ) -> Result<Judged, JournalError> {
        let entry = &stored.entry;
        if !self.holds(stored) {
            return Ok(Err(Refused::Quarantined));
        }
        let kept = self.stale_answers(entry)?;
        let one = match stale::choose(&kept, wanted) {
            Ok(one) => one,
            Err(why) => return Ok(Err(Refused::NotAdopted(why))),
        };
        let body = one.stale.answer.clone().unwrap_or_default();
        if entry.status == wanted.status && entry.digest == Some(outcome_digest(&body)) {
            return Ok(Err(Refused::NotNow {
                was: entry.status,
                why: "and that answer is its outcome already",
            }));
        }
        let provenance = Provenance::Operator;
        let verdict = if wanted.status == Status::Failed {
            Verdict::Failed {
                body: body.into(),
                provenance,
            }
        } else {
            Verdict::Completed {
                // As it was read when it came: MCP, `CallToolResult`, of equal members the last.
                is_error: json::last_member(&body, "isError")
                    .is_some_and(|member| json::kind(member.value) == json::Kind::True),
                body: body.into(),
                provenance,
            }
        };
        self.adopted = Some(one);
        self.resolve(stored, &verdict, claim, ask)
    }

    /// Returns the stale answers of an entry, each with what it answered.
    fn stale_answers(&mut self, entry: &Entry) -> Result<Vec<Kept>, JournalError> {
        let mut kept = Vec::new();
        for row in self.tx.events(entry.branch, entry.seq)? {
            let Some((stale, fence)) = Stale::of(&row.event).zip(row.event.fence) else {
                continue;
            };
            let answered = match self.tx.attempt(fence) {
                Ok(attempt) => attempt,
                Err(JournalError::Unreadable(_)) => None,
                Err(error) => return Err(error),
            };
            kept.push(Kept {
                fence,
                is_same_call: answered.is_some_and(|attempt| {
                    (attempt.scheme, attempt.signature) == (entry.scheme, entry.signature)
                        || seeded::has(Bug::AnotherCallAdopted)
                }),
                stale,
            });
        }
        Ok(kept)
    }

    fn resolve(
        &mut self,
        stored: &Stored,
        verdict: &Verdict,
        claim: Claim,
        ask: AskOwner<'_>,
    ) -> Result<Judged, JournalError> {
        let entry = &stored.entry;
        let was = entry.status;
        match self.way(stored, claim, ask)? {
            Err(refused) => Ok(Err(refused)),
            Ok(Way::Rule) => self.rule_on(entry, was, verdict),
            Ok(Way::FenceFirst) => match self.take_away(entry)? {
                Ok(taken) => self.rule_on(&taken, was, verdict),
                Err(refused) => Ok(Err(refused)),
            },
            Ok(Way::TakeBack) => match self.take_back(entry)? {
                Ok(taken) => self.rule_on(&taken, was, verdict),
                Err(refused) => Ok(Err(refused)),
            },
            Ok(Way::Note) => {
                let event = self.resolved(entry, was, verdict);
                self.tx.event(&event)?;
                Ok(Ok(entry.clone()))
            }
        }
    }

    /// Returns how a verdict on the entry is given, or why it is not.
    fn way(
        &mut self,
        stored: &Stored,
        claim: Claim,
        ask: AskOwner<'_>,
    ) -> Result<Result<Way, Refused>, JournalError> {
        let entry = &stored.entry;
        if !self.holds(stored) {
            return Ok(Err(Refused::Quarantined));
        }
        let was = entry.status;
        let owner = match was {
            Status::Pending => self.owner(entry, ask)?,
            Status::Completed
            | Status::Failed
            | Status::InputRequired
            | Status::Accepted
            | Status::Voided
            | Status::Denied => None,
        };
        let standing = Standing {
            status: was,
            fence: entry.fence,
            owner_may_act: owner.is_some(),
            is_answered: entry.is_answered(),
        };
        let is_open = matches!(was, Status::InputRequired | Status::Accepted);
        let way = ruling::way(standing, claim);
        // What can be done to a settled entry can't be done to one whose outcome does not hold.
        if matches!(way, Err(Against::Settled | Against::Answered)) && !self.outcome_holds(entry)? {
            return Ok(Err(Refused::Quarantined));
        }
        Ok(way.map_err(|against| match against {
            Against::Owned => owner.unwrap_or(Refused::Changed),
            Against::Open => Refused::Open { was },
            Against::Changed => Refused::Changed,
            Against::Answered => Refused::NotNow {
                was,
                why: "and its outcome is the upstream's own answer: there is no verdict to take \
                      back",
            },
            Against::NotNamed if claim.adopts && !is_open => Refused::NotNow {
                was,
                why: "so there is a verdict to take back; name its seq alone to do that",
            },
            Against::NotNamed | Against::Settled => Refused::NotNow {
                was,
                why: match was {
                    Status::Completed | Status::Failed | Status::Denied => {
                        "so nothing is in doubt; `reopen` allows one more attempt"
                    }
                    Status::Voided => "so the next call runs anyway",
                    Status::InputRequired => {
                        "so its upstream waits for the client; name its seq to end that by force"
                    }
                    Status::Accepted => {
                        "so its upstream runs it as a task; name its seq to end that by force"
                    }
                    Status::Pending => "which is in doubt",
                },
            },
        }))
    }

    /// Returns who may still act on the entry, as a reason to refuse.
    fn owner(&mut self, entry: &Entry, ask: AskOwner<'_>) -> Result<Option<Refused>, JournalError> {
        let session = match self.tx.session(entry.session) {
            Ok(session) => session,
            Err(JournalError::Unreadable(_)) => None,
            Err(error) => return Err(error),
        };
        // No other process writes while this transaction is open. So a lock that is free now
        // proves that whatever its session has written is seen here.
        let owner = ask(entry.session, session.as_ref());
        if owner.is_live {
            return Ok(Some(Refused::Live {
                session: entry.session,
            }));
        }
        let pgid = session.and_then(|session| session.upstream_pgid);
        Ok(match (pgid, owner.upstream_alive) {
            (None, _) | (Some(_), Some(false)) => None,
            (Some(pgid), known) => Some(Refused::UpstreamAlive {
                session: entry.session,
                pgid,
                is_known: known.is_some(),
            }),
        })
    }

    fn take_away(&mut self, entry: &Entry) -> Result<Judged, JournalError> {
        self.was_fenced = true;
        let detail = self.deed.detail(None, entry.status, true, None);
        self.anew(entry, lifecycle::take_away, "fenced", detail)
    }

    fn take_back(&mut self, entry: &Entry) -> Result<Judged, JournalError> {
        let detail = self.deed.detail(None, entry.status, false, None);
        self.anew(entry, lifecycle::take_back, "retracted", detail)
    }

    /// Puts the entry under a new fence, where it is PENDING and nobody's.
    fn anew(
        &mut self,
        entry: &Entry,
        change: impl FnOnce(&Entry, Fence) -> Result<Transition, lifecycle::Illegal>,
        kind: &str,
        detail: String,
    ) -> Result<Judged, JournalError> {
        let Some(attempt) = self.attempt(entry)? else {
            return Ok(Err(Refused::Quarantined));
        };
        let fence = self.tx.next_fence()?;
        let Ok(transition) = change(entry, fence) else {
            return Ok(Err(Refused::Quarantined));
        };
        // The same attempt under another fence: fences are counted by their rows, and a replay
        // reads the call's arguments and revision from the one that it stands under.
        let attempt = Attempt {
            fence,
            previous: Some(entry.fence),
            ..attempt
        };
        let event = self.event(kind, entry, entry.fence, detail);
        self.write(transition, Some(attempt), None, event)
    }

    fn resolved(&self, entry: &Entry, was: Status, verdict: &Verdict) -> Event {
        let adopted = self.adopted.as_ref();
        let detail = self
            .deed
            .detail(Some(verdict.name()), was, self.was_fenced, adopted);
        self.event(RESOLVED, entry, entry.fence, detail)
    }

    /// Gives the verdict on a PENDING entry; `was`: where it stood before it was taken away.
    fn rule_on(
        &mut self,
        entry: &Entry,
        was: Status,
        verdict: &Verdict,
    ) -> Result<Judged, JournalError> {
        let event = self.resolved(entry, was, verdict);
        let (status, body, is_error, provenance) = match verdict {
            Verdict::StillUnknown => {
                self.tx.event(&event)?;
                return Ok(Ok(entry.clone()));
            }
            Verdict::NotExecuted => {
                // A round that did not run leads back to its question. A question that is given up
                // leads nowhere: the call starts over.
                let asked = match was {
                    Status::Pending if seeded::has(Bug::VerdictVoidsCall) => None,
                    Status::Pending => self.asked_before(entry)?,
                    Status::InputRequired
                    | Status::Accepted
                    | Status::Completed
                    | Status::Failed
                    | Status::Voided
                    | Status::Denied => None,
                };
                return match lifecycle::void(entry, self.now, asked) {
                    Ok(transition) => self.write(transition, None, None, event),
                    Err(_) => Ok(Err(Refused::Quarantined)),
                };
            }
            Verdict::Completed {
                body,
                is_error,
                provenance,
            } => (Status::Completed, body, *is_error, *provenance),
            Verdict::Failed { body, provenance } => (Status::Failed, body, false, *provenance),
        };
        // An outcome that is there already, under this very fence, is damage.
        match self.tx.outcome(entry.fence) {
            Ok(None) => {}
            Ok(Some(_)) | Err(JournalError::Unreadable(_)) => {
                return Ok(Err(Refused::Quarantined));
            }
            Err(error) => return Err(error),
        }
        let digest = outcome_digest(body);
        let settlement = Settlement {
            status,
            is_error,
            provenance,
            digest,
            is_tombstone: false,
            at: self.now,
        };
        let Ok(transition) = lifecycle::rule(entry, settlement) else {
            return Ok(Err(Refused::Quarantined));
        };
        let outcome = Outcome {
            fence: entry.fence,
            status,
            is_error,
            provenance,
            at: self.now,
            digest,
            body: Some(body.clone()),
            round: None,
            task: None,
        };
        self.write(transition, None, Some(outcome), event)
    }

    fn reopen(&mut self, stored: &Stored) -> Result<Judged, JournalError> {
        let entry = &stored.entry;
        if !self.holds(stored) || !self.outcome_holds(entry)? {
            return Ok(Err(Refused::Quarantined));
        }
        let Ok(transition) = lifecycle::reopen(entry, self.now) else {
            let why = match entry.status {
                Status::Pending => "so there is nothing to reopen; `resolve` gives a verdict",
                Status::Voided => "so the next call runs anyway",
                Status::InputRequired => {
                    "so its upstream waits for the client; `resolve --force` ends that"
                }
                Status::Accepted => {
                    "so its upstream runs it as a task; `resolve --force` ends that"
                }
                Status::Completed | Status::Failed | Status::Denied => "which is settled",
            };
            return Ok(Err(Refused::NotNow {
                was: entry.status,
                why,
            }));
        };
        let detail = self.deed.detail(None, entry.status, false, None);
        let event = self.event("reopened", entry, entry.fence, detail);
        self.write(transition, None, None, event)
    }

    fn deliver(&mut self, stored: &Stored) -> Result<Judged, JournalError> {
        let entry = &stored.entry;
        if !self.holds(stored) {
            return Ok(Err(Refused::Quarantined));
        }
        match entry.status {
            Status::Completed
            | Status::Failed
            | Status::Denied
            | Status::Accepted
            | Status::InputRequired => {}
            Status::Pending | Status::Voided => {
                return Ok(Err(Refused::NotNow {
                    was: entry.status,
                    why: "so it has no outcome that could be delivered",
                }));
            }
        }
        if entry.delivered_at.is_some() {
            return Ok(Err(Refused::NotNow {
                was: entry.status,
                why: "and its outcome was delivered before",
            }));
        }
        if !self
            .tx
            .deliver(entry.branch, entry.seq, entry.fence, self.now)?
        {
            return Ok(Err(Refused::Changed));
        }
        let detail = self.deed.detail(None, entry.status, false, None);
        let event = self.event("delivered", entry, entry.fence, detail);
        self.tx.event(&event)?;
        Ok(Ok(Entry {
            delivered_at: Some(self.now),
            ..entry.clone()
        }))
    }

    fn holds(&self, stored: &Stored) -> bool {
        stored.checksum == stored.entry.checksum(&self.uid)
    }

    /// Tells whether the entry's outcome is the one that its digest names.
    fn outcome_holds(&mut self, entry: &Entry) -> Result<bool, JournalError> {
        let Some(digest) = entry.digest else {
            return Ok(true);
        };
        let end = match self.tx.task_end(entry.fence) {
            Ok(None) => self.tx.outcome(entry.fence),
            end => end,
        };
        match end {
            Ok(Some(outcome)) => Ok(outcome.digest == digest
                && outcome
                    .body
                    .map_or(entry.is_tombstone, |body| outcome_digest(&body) == digest)),
            Ok(None) | Err(JournalError::Unreadable(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn attempt(&mut self, entry: &Entry) -> Result<Option<Attempt>, JournalError> {
        match self.tx.attempt(entry.fence) {
            Ok(attempt) => Ok(attempt),
            Err(JournalError::Unreadable(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the question that the entry's round answered, if it is a further one.
    fn asked_before(&mut self, entry: &Entry) -> Result<Option<Asked>, JournalError> {
        if entry.round == 0 {
            return Ok(None);
        }
        let mut fence = self.attempt(entry)?.and_then(|attempt| attempt.previous);
        // Where the owner was fenced, the round's own first fence comes before the question's.
        while let Some(previous) = fence {
            if let Some(outcome) = self.tx.outcome(previous)? {
                let is_question = outcome.status == Status::InputRequired;
                return Ok(is_question.then(|| question(&outcome)));
            }
            fence = self
                .tx
                .attempt(previous)?
                .and_then(|attempt| attempt.previous)
                // A chain leads to older fences only; else it is damage.
                .filter(|older| *older < previous);
        }
        Ok(None)
    }

    fn event(&self, kind: &str, entry: &Entry, fence: Fence, detail: String) -> Event {
        Event {
            kind: kind.to_owned(),
            at: self.now,
            entry: Some((entry.branch, entry.seq)),
            fence: Some(fence),
            session: self.deed.session,
            letter: None,
            detail: Some(detail),
            merge_key: None,
        }
    }

    fn write(
        &mut self,
        transition: Transition,
        attempt: Option<Attempt>,
        outcome: Option<Outcome>,
        event: Event,
    ) -> Result<Judged, JournalError> {
        let after = transition.entry.clone();
        let write = Write {
            checksum: after.checksum(&self.uid),
            transition,
            attempt,
            outcome,
            event: Some(event),
        };
        Ok(match self.tx.apply(&write)? {
            Applied::Done => Ok(after),
            Applied::Lost => Err(Refused::Changed),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
