//! From an answer, or the knowledge that none will come, to the entry's outcome.
//!
//! Must not: read an answer (the session does, and says what it makes of the entry), or apply an
//! outcome for somebody who no longer owns the entry: that is kept as a `stale_result`.

use super::admit::Ticket;
use super::{Done, Note, Surroundings, Visit, stale};
use crate::journal::{
    Applied, JournalError, Outcome, Payload, RoundKey, Stored, TaskKey, Transaction,
};
use crate::rules::entry::{Entry, Provenance, Status, Unanswered, outcome_digest};
use crate::rules::ids::{Fence, Micros, SessionId};
use crate::rules::lifecycle::{self, Asked, Illegal, Transition};
use crate::rules::policy::Policy;
use crate::rules::signature::Signature;
use crate::seeded::{self, Bug};

/// An answer, as far as it was read.
#[derive(Clone, Debug)]
pub struct Answer {
    /// COMPLETED, FAILED, INPUT_REQUIRED or ACCEPTED.
    pub status: Status,
    /// A result with `isError: true`.
    pub is_error: bool,
    /// The bytes of the `result` or `error` member.
    pub body: Payload,
    /// The bytes are kept; without them a replay is `result_expired`.
    pub is_kept: bool,
    /// What the next round is told by.
    pub round: Option<RoundKey>,
    /// The task's handle.
    pub task: Option<TaskKey>,
}

impl Answer {
    /// Returns what is kept of it where it came too late to count.
    fn stale(&self) -> String {
        stale::detail(self.status, &self.body, self.is_kept)
    }

    /// Returns the entry as this answer settles it, and what is stored of the answer.
    fn settle(&self, entry: &Entry, at: Micros) -> Result<(Transition, Outcome), Illegal> {
        let digest = outcome_digest(&self.body);
        let settlement = lifecycle::Settlement {
            status: self.status,
            is_error: self.is_error,
            provenance: Provenance::Upstream,
            digest,
            is_tombstone: !self.is_kept,
            at,
        };
        let transition = lifecycle::settle(entry, settlement)?;
        let outcome = Outcome {
            fence: entry.fence,
            status: self.status,
            is_error: self.is_error,
            provenance: Provenance::Upstream,
            at,
            digest,
            body: self.is_kept.then(|| self.body.clone()),
            round: self.round.clone(),
            task: self.task.clone(),
        };
        Ok((transition, outcome))
    }
}

/// What became of a forwarded call.
#[derive(Clone, Debug)]
pub enum Settlement {
    /// It was answered.
    Answered {
        /// Which one.
        ticket: Ticket,
        /// The plain signature, by which a further round may find it.
        signature: Signature,
        /// Whoever finishes first settles the entry, also from an attempt that was taken over.
        first_wins: bool,
        /// Its policy lets it run again where its outcome is not known (at-least-once).
        may_rerun: bool,
        /// How.
        answer: Answer,
    },
    /// It is known not to have run: never forwarded, or an error that means "mend and send again".
    Void {
        /// Which one.
        ticket: Ticket,
        /// Why, as a JSON object.
        detail: String,
    },
    /// No answer will come.
    Lost {
        /// Which one.
        ticket: Ticket,
        /// Why.
        reason: Unanswered,
        /// The evidence, as a JSON object.
        detail: String,
    },
    /// The caller was answered `outcome_unknown`, while an answer may still come.
    Overdue {
        /// Which one.
        ticket: Ticket,
        /// The evidence, as a JSON object.
        detail: String,
    },
}

impl Settlement {
    /// Returns which attempt it settles.
    #[must_use]
    pub const fn ticket(&self) -> Ticket {
        match self {
            Self::Answered { ticket, .. }
            | Self::Void { ticket, .. }
            | Self::Lost { ticket, .. }
            | Self::Overdue { ticket, .. } => *ticket,
        }
    }
}

impl<T: Transaction, S: Surroundings> Visit<'_, T, S> {
    pub(super) fn settle(&mut self, settlement: &Settlement) -> Result<Done, JournalError> {
        let ticket = settlement.ticket();
        let found = match self.tx.entry(ticket.branch, ticket.seq) {
            Ok(found) => found,
            Err(JournalError::Unreadable(_)) => None,
            Err(error) => return Err(error),
        };
        let first_wins = matches!(
            settlement,
            Settlement::Answered {
                first_wins: true,
                ..
            }
        );
        let wins = match &found {
            Some(stored) if first_wins && stored.entry.fence != ticket.fence => {
                self.may_finish(&stored.entry, ticket.fence)?
            }
            Some(_) | None => false,
        };
        let owned = found.filter(|stored| {
            let is_ours =
                stored.entry.fence == ticket.fence || wins || seeded::has(Bug::FenceNotCompared);
            is_ours
                && stored.entry.status == Status::Pending
                // A change would give what a bad disk made of the row a checksum that holds.
                && self.holds(stored)
        });
        let Some(stored) = owned else {
            self.stale(settlement)?;
            return Ok(Done::Stale);
        };
        match settlement {
            Settlement::Answered {
                signature, answer, ..
            } => self.answered(&stored, ticket.fence, *signature, answer),
            Settlement::Void { detail, .. } => {
                let asked = self.asked_before(&stored)?;
                let event = self.event(&about(ticket, "voided", detail.clone()));
                // This attempt did not run; the one before it, which was lost, may have.
                if asked.is_none() && self.follows_a_lost_one(&stored)? {
                    return self.lose(&stored.entry, Unanswered::Fenced, Some(event));
                }
                match lifecycle::void(&stored.entry, self.now, asked) {
                    Ok(transition) => {
                        self.write(transition, None, None, Some(event))?;
                        Ok(Done::Settled(self.now))
                    }
                    Err(_) => Ok(Done::Stale),
                }
            }
            Settlement::Lost { reason, detail, .. } => {
                let event = self.event(&about(ticket, "outcome_unknown", detail.clone()));
                self.lose(&stored.entry, *reason, Some(event))
            }
            Settlement::Overdue { detail, .. } => {
                let event = self.event(&about(ticket, "outcome_unknown", detail.clone()));
                let gave_up = crate::rules::entry::GaveUp::TimedOut;
                if let Ok(transition) = lifecycle::give_up(&stored.entry, gave_up) {
                    self.write(transition, None, None, Some(event))?;
                }
                Ok(Done::Settled(self.now))
            }
        }
    }

    /// Returns whether the answer to an older attempt finishes what the entry is at. A round that
    /// has asked and was answered is finished: the answers of others to it come too late, and are
    /// none to the round that runs now.
    fn may_finish(&mut self, entry: &Entry, fence: Fence) -> Result<bool, JournalError> {
        match self.tx.attempt(fence) {
            Ok(attempt) => Ok(attempt.is_some_and(|attempt| {
                // What was voided may run with other arguments: it is another call's answer.
                let made_for = (attempt.scheme, attempt.signature);
                attempt.round >= entry.round && made_for == (entry.scheme, entry.signature)
            })),
            Err(JournalError::Unreadable(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn answered(
        &mut self,
        stored: &Stored,
        came_for: Fence,
        signature: Signature,
        answer: &Answer,
    ) -> Result<Done, JournalError> {
        let entry = &stored.entry;
        let Ok((transition, outcome)) = answer.settle(entry, self.now) else {
            return Ok(Done::Stale);
        };
        let event = entry.gave_up.map(|reason| {
            self.event(&Note {
                kind: "late_result",
                entry: Some((entry.branch, entry.seq, Some(entry.fence))),
                letter: None,
                detail: Some(format!("{{\"after\":\"{}\"}}", reason.name())),
                merges: false,
            })
        });
        let applied = self.write(transition, None, Some(outcome), event)?;
        if applied == Applied::Lost {
            return Ok(Done::Stale);
        }
        self.finished.note(came_for, entry.fence);
        if let (Status::InputRequired, Some(round)) = (answer.status, &answer.round)
            && round.state.is_none()
        {
            self.new_questions.push((
                signature,
                round.inputs.clone(),
                entry.branch,
                entry.seq,
                entry.fence,
            ));
        }
        Ok(Done::Settled(self.now))
    }

    /// Returns whether the current attempt was made because the one before it was lost.
    fn follows_a_lost_one(&mut self, stored: &Stored) -> Result<bool, JournalError> {
        let entry = &stored.entry;
        if entry.attempt == 1 || seeded::has(Bug::VoidForgetsLostAttempt) {
            return Ok(false);
        }
        let events = self.tx.events(entry.branch, entry.seq)?;
        Ok(events.iter().any(|row| {
            let event = &row.event;
            event.kind == "retried" && event.fence == Some(entry.fence) && event.letter == Some('L')
        }))
    }

    /// Returns the question that this round answered, if it is a further one.
    fn asked_before(&mut self, stored: &Stored) -> Result<Option<Asked>, JournalError> {
        if stored.entry.round == 0 || seeded::has(Bug::VoidedRoundVoidsCall) {
            return Ok(None);
        }
        let previous = self
            .tx
            .attempt(stored.entry.fence)?
            .and_then(|attempt| attempt.previous);
        let Some(previous) = previous else {
            return Ok(None);
        };
        let outcome = self.tx.outcome(previous)?;
        Ok(outcome.as_ref().map(question))
    }

    fn stale(&mut self, settlement: &Settlement) -> Result<(), JournalError> {
        let ticket = settlement.ticket();
        let detail = match settlement {
            Settlement::Answered { answer, .. } => answer.stale(),
            Settlement::Void { detail, .. }
            | Settlement::Lost { detail, .. }
            | Settlement::Overdue { detail, .. } => detail.clone(),
        };
        self.note(&about(ticket, stale::KIND, detail))
    }

    pub(super) fn task_end(
        &mut self,
        task_id: &str,
        created_at: Option<&str>,
        answer: &Answer,
    ) -> Result<Done, JournalError> {
        let mut taken = None;
        for (stored, fence, task) in self.tx.by_task(task_id)? {
            let entry = &stored.entry;
            let is_it = match created_at {
                Some(created_at) => {
                    task.created_at == created_at || seeded::has(Bug::TaskByIdAlone)
                }
                None => {
                    let maker = self.session_of(entry, fence)?;
                    maker.is_some() && maker == self.session
                }
            };
            if !is_it || stored.checksum != entry.checksum(&self.uid) {
                continue;
            }
            if entry.fence != fence && self.is_unended(fence)? {
                taken = Some((entry.branch, entry.seq, fence));
            }
            if entry.fence != fence || entry.status != Status::Accepted {
                continue;
            }
            let kept = Answer {
                is_kept: answer.is_kept && self.keeps(entry, answer.body.len())?,
                ..answer.clone()
            };
            let Ok((mut transition, outcome)) = kept.settle(entry, self.now) else {
                continue;
            };
            // The end passes by on its own way to the client; the handle had been delivered.
            transition.entry.delivered_at = entry.delivered_at;
            let outcome = Outcome {
                round: None,
                task: None,
                ..outcome
            };
            self.write(transition, None, Some(outcome), None)?;
            return Ok(Done::Settled(self.now));
        }
        if let Some((branch, seq, fence)) = taken {
            // A client asks after a task many times, and is told the same each time.
            let place = format!("{branch}/{seq}/{fence}");
            let mut event = self.event(&Note {
                kind: stale::KIND,
                entry: Some((branch, seq, Some(fence))),
                letter: None,
                detail: Some(answer.stale()),
                merges: false,
            });
            event.merge_key = Some(stale::merge_key(&place, &outcome_digest(&answer.body)));
            self.tx.event(&event)?;
        }
        Ok(Done::Noted)
    }

    /// Returns the session that reserved an attempt of the entry.
    fn session_of(
        &mut self,
        entry: &Entry,
        fence: Fence,
    ) -> Result<Option<SessionId>, JournalError> {
        if entry.fence == fence {
            return Ok(Some(entry.session));
        }
        match self.tx.attempt(fence) {
            Ok(attempt) => Ok(attempt.map(|attempt| attempt.session)),
            Err(JournalError::Unreadable(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells whether the task of an attempt was taken from it before its end was seen.
    fn is_unended(&mut self, fence: Fence) -> Result<bool, JournalError> {
        match self.tx.task_end(fence) {
            Ok(end) => Ok(end.is_none()),
            Err(JournalError::Unreadable(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl<T: Transaction, S: Surroundings> Visit<'_, T, S> {
    /// Returns whether a result of so many bytes is kept, by the policy that the entry's call was
    /// made under: who sees the task's end need not know the tool.
    fn keeps(&mut self, entry: &Entry, bytes: usize) -> Result<bool, JournalError> {
        let attempt = self.tx.attempt(entry.fence)?;
        let record = attempt.and_then(|attempt| attempt.policy);
        let policy = record.and_then(|record| Policy::from_record(&record).ok());
        let policy = policy.unwrap_or_default();
        Ok(policy.store_result && bytes as u64 <= policy.result_bytes_max)
    }
}

/// Returns the question that a round's outcome is, for an entry that goes back to it.
pub(super) fn question(outcome: &Outcome) -> Asked {
    Asked {
        fence: outcome.fence,
        digest: outcome.digest,
        is_tombstone: outcome.body.is_none(),
        at: outcome.at,
        // The client has answered it, so it had it.
        delivered_at: Some(outcome.at),
    }
}

fn about(ticket: Ticket, kind: &'static str, detail: String) -> Note {
    Note {
        kind,
        entry: Some((ticket.branch, ticket.seq, Some(ticket.fence))),
        letter: None,
        detail: Some(detail),
        merges: false,
    }
}

#[cfg(test)]
mod tests;
