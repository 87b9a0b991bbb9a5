//! Replays an entry's history through the lifecycle and says what does not hold.
//!
//! An entry's row says where the call stands; its attempts, their outcomes and a few events say
//! how it came there. Whatever the product writes goes through [`super::lifecycle`], so a history
//! that can't be replayed through it was not written by the product, or was damaged since.
//!
//! Not judged: times (clocks step back), delivery (written without a sync), the tool's name and
//! the call id of earlier attempts (only the row has them).
//!
//! Must not: read the journal, or mend anything.

use super::entry::{Checksum, Entry, OutcomeDigest, Provenance, Status};
use super::ids::{BranchId, Fence, Micros, Seq, SessionId};
use super::lifecycle::{self, Reservation, Settlement};
use super::signature::{Scheme, Signature};

/// The most attempts and rounds that an entry's chain may have before it counts as endless.
pub const STEPS_MAX: usize = 1_000_000;

/// One attempt or round, as it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its fence.
    pub fence: Fence,
    /// The branch that it says it belongs to.
    pub branch: BranchId,
    /// The place that it says it belongs to.
    pub seq: Seq,
    /// Its number, from 1.
    pub attempt: u32,
    /// The round within it, from 0.
    pub round: u32,
    /// The attempt or round before it.
    pub previous: Option<Fence>,
    /// Who reserved it.
    pub session: SessionId,
    /// When.
    pub started_at: Micros,
    /// The signature's scheme.
    pub scheme: Scheme,
    /// The call's signature.
    pub signature: Signature,
    /// What became of its arguments: whether they are those that the signature is of, where they
    /// are kept and can be told from it.
    pub arguments: Body,
    /// Its outcome.
    pub outcome: Option<Ending>,
    /// The end of the task that it was accepted as.
    pub task_end: Option<Ending>,
    /// An event says that it is known not to have run.
    pub is_voided: bool,
    /// An event says that an operator allowed one more attempt after it.
    pub is_reopened: bool,
    /// An event says that a policy made it a further attempt.
    pub is_retried: bool,
    /// An event says that an operator took it away from its owner, under another fence.
    pub is_fenced: bool,
    /// An event says that an operator took back what was said of it, under another fence.
    pub is_retracted: bool,
}

/// An outcome, as it was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// What it made of the entry.
    pub status: Status,
    /// A result with `isError: true`.
    pub is_error: bool,
    /// Whose it is.
    pub provenance: Provenance,
    /// When it was written.
    pub at: Micros,
    /// The digest that was stored.
    pub digest: OutcomeDigest,
    /// What became of its bytes.
    pub body: Body,
}

/// What became of an outcome's bytes, or of a call's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// They are there and have the digest that is stored beside them.
    Holds,
    /// They are there and have another digest.
    Differs,
    /// They were buried, or never kept; or nothing is stored that would tell whether they hold.
    Gone,
}

/// An entry with all that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The row.
    pub entry: Entry,
    /// The checksum stored in the row.
    pub checksum: Checksum,
    /// The chain that ends with the row's fence, the oldest first.
    pub steps: Vec<Step>,
    /// The fence at which the chain breaks off, if one is not there.
    pub missing: Option<Fence>,
}

/// What sort of thing does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The row's checksum is not that of the row.
    Checksum,
    /// An outcome's bytes are not those that were recorded.
    Digest,
    /// An attempt's arguments are not those of the call that was made.
    Arguments,
    /// An attempt is missing, belongs elsewhere, or is wrongly numbered.
    Attempt,
    /// A fence does not rise.
    Fence,
    /// A change was made that the lifecycle does not allow.
    Transition,
    /// The row is not what its history leads to.
    Row,
    /// An outcome's bytes are gone without a tombstone, or there beside one.
    Payload,
}

impl FaultKind {
    /// Returns the name that is shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checksum => "checksum",
            Self::Digest => "digest",
            Self::Arguments => "arguments",
            Self::Attempt => "attempt",
            Self::Fence => "fence",
            Self::Transition => "transition",
            Self::Row => "row",
            Self::Payload => "payload",
        }
    }
}

/// One thing that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its sort.
    pub kind: FaultKind,
    /// The attempt or round that it is about, where it is about one.
    pub fence: Option<Fence>,
    /// What does not hold, as a sentence without a full stop.
    pub what: String,
}

/// Returns everything about an entry that does not hold; empty if it is as the product wrote it.
#[must_use]
pub fn audit(history: &History, journal_uid: &[u8; 16]) -> Vec<Fault> {
    let mut faults = Faults(Vec::new());
    let entry = &history.entry;
    let is_whole = history.checksum == entry.checksum(journal_uid);
    if !is_whole {
        faults.add(
            FaultKind::Checksum,
            None,
            "the row's checksum is not that of the row",
        );
    }
    if let Some(missing) = history.missing {
        let what = if missing == entry.fence {
            format!("its attempt with fence {missing} is not there")
        } else {
            format!("an earlier attempt of it, with fence {missing}, is not there")
        };
        faults.add(FaultKind::Attempt, Some(missing), what);
    }
    if history.steps.is_empty() {
        return faults.0;
    }
    for step in &history.steps {
        if (step.branch, step.seq) != (entry.branch, entry.seq) {
            faults.add(
                FaultKind::Attempt,
                Some(step.fence),
                format!(
                    "its attempt with fence {} says that it belongs to another entry",
                    step.fence
                ),
            );
        }
        // A signature covers the tool's name, too, which is the row's.
        if is_whole && step.arguments == Body::Differs {
            faults.add(
                FaultKind::Arguments,
                Some(step.fence),
                "the arguments of an attempt are not those that its signature is of",
            );
        }
        for ending in [&step.outcome, &step.task_end].into_iter().flatten() {
            if ending.body == Body::Differs {
                faults.add(
                    FaultKind::Digest,
                    Some(step.fence),
                    "the bytes of an outcome are not those that were recorded",
                );
            }
        }
    }
    for pair in history.steps.windows(2) {
        if pair[1].fence <= pair[0].fence {
            faults.add(
                FaultKind::Fence,
                Some(pair[1].fence),
                format!("fence {} follows fence {}", pair[1].fence, pair[0].fence),
            );
        }
    }
    // With a part of the chain missing the rest can't be replayed.
    if history.missing.is_none() {
        let told = replay(history, &mut faults);
        compare(entry, &told, &mut faults);
        payload(history, &mut faults);
    }
    faults.0
}

struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, kind: FaultKind, fence: Option<Fence>, what: impl Into<String>) {
        self.0.push(Fault {
            kind,
            fence,
            what: what.into(),
        });
    }
}

/// Replays the steps and returns the row that they lead to.
fn replay(history: &History, faults: &mut Faults) -> Entry {
    let mut now: Option<(Entry, &Step)> = None;
    for step in &history.steps {
        let mut entry = begin(&history.entry, now.as_ref(), step, faults);
        for ending in [&step.outcome, &step.task_end].into_iter().flatten() {
            match lifecycle::settle(&entry, settlement(ending, &history.entry)) {
                Ok(transition) => entry = transition.entry,
                Err(illegal) => {
                    faults.add(FaultKind::Transition, Some(step.fence), illegal.to_string());
                }
            }
        }
        if step.is_voided && step.outcome.is_none() {
            match lifecycle::void(&entry, step.started_at, None) {
                Ok(transition) => entry = transition.entry,
                Err(illegal) => {
                    faults.add(FaultKind::Transition, Some(step.fence), illegal.to_string());
                }
            }
        }
        if step.is_reopened {
            entry.status = Status::Voided;
        }
        now = Some((entry, step));
    }
    now.expect("the caller has seen a step").0
}

/// Returns the row right after a step was reserved.
fn begin(row: &Entry, before: Option<&(Entry, &Step)>, step: &Step, faults: &mut Faults) -> Entry {
    let reservation = Reservation {
        branch: row.branch,
        seq: row.seq,
        tool: row.tool.clone(),
        scheme: step.scheme,
        signature: step.signature,
        fence: step.fence,
        session: step.session,
        at: step.started_at,
        key: row.key.clone(),
        call_id: row.call_id.clone(),
    };
    let made = match before {
        None => Ok(lifecycle::reserve_new(reservation.clone())),
        // The same attempt under a new fence: an operator has taken it from its owner. A policy
        // that takes an entry over starts a new attempt.
        Some((entry, last))
            if last.is_fenced && (step.attempt, step.round) == (entry.attempt, entry.round) =>
        {
            lifecycle::take_away(entry, step.fence)
        }
        Some((entry, last))
            if last.is_retracted && (step.attempt, step.round) == (entry.attempt, entry.round) =>
        {
            lifecycle::take_back(entry, step.fence)
        }
        Some((entry, _)) if step.round > 0 => lifecycle::reserve_round(entry, reservation.clone()),
        Some((entry, last)) => {
            // The one change that the product never makes: a finished effect that runs again.
            let is_finished = entry.status == Status::Completed && !entry.is_error;
            if is_finished && !last.is_reopened {
                faults.add(
                    FaultKind::Transition,
                    Some(step.fence),
                    "a completed call was run again without having been reopened",
                );
            }
            if entry.status == Status::Pending && !step.is_retried {
                faults.add(
                    FaultKind::Transition,
                    Some(step.fence),
                    "a call in doubt was run again, and no policy is recorded that says so",
                );
            }
            lifecycle::reserve_again(entry, reservation.clone())
        }
    };
    let mut entry = match made {
        Ok(transition) => transition.entry,
        Err(illegal) => {
            faults.add(FaultKind::Transition, Some(step.fence), illegal.to_string());
            lifecycle::reserve_new(reservation).entry
        }
    };
    if (entry.attempt, entry.round) != (step.attempt, step.round) {
        faults.add(
            FaultKind::Attempt,
            Some(step.fence),
            format!(
                "attempt {}, round {} is recorded where attempt {}, round {} belongs",
                step.attempt, step.round, entry.attempt, entry.round
            ),
        );
        // What follows is counted from here, so that one wrong number is one fault.
        (entry.attempt, entry.round) = (step.attempt, step.round);
    }
    entry
}

fn settlement(ending: &Ending, row: &Entry) -> Settlement {
    Settlement {
        status: ending.status,
        is_error: ending.is_error,
        provenance: ending.provenance,
        digest: ending.digest,
        is_tombstone: row.is_tombstone,
        at: ending.at,
    }
}

/// Compares the row with what its history leads to.
fn compare(row: &Entry, told: &Entry, faults: &mut Faults) {
    let mut differs = |name: &str, stored: &dyn std::fmt::Display, led: &dyn std::fmt::Display| {
        faults.add(
            FaultKind::Row,
            Some(row.fence),
            format!("its {name} is {stored}, its history leads to {led}"),
        );
    };
    // A denial is nothing that an attempt leads to.
    if row.status != Status::Denied && row.status != told.status {
        differs("status", &row.status.name(), &told.status.name());
        return;
    }
    if row.attempt != told.attempt {
        differs("attempt", &row.attempt, &told.attempt);
    }
    if row.round != told.round {
        differs("round", &row.round, &told.round);
    }
    match row.status {
        // Its question came in an earlier session than the round that was voided since.
        Status::InputRequired => {}
        Status::Pending
        | Status::Completed
        | Status::Failed
        | Status::Accepted
        | Status::Voided
        | Status::Denied => {
            if row.session != told.session {
                differs("session", &row.session, &told.session);
            }
            if (row.scheme, row.signature) != (told.scheme, told.signature) {
                differs("signature", &"another", &"that of its attempt");
            }
        }
    }
    match row.status {
        Status::Completed | Status::Failed | Status::InputRequired | Status::Accepted => {
            if row.digest != told.digest {
                differs("digest", &"another", &"that of its outcome");
            }
            if row.is_error != told.is_error {
                differs("is_error", &row.is_error, &told.is_error);
            }
            if row.provenance != told.provenance {
                let name =
                    |provenance: Option<Provenance>| provenance.map_or("none", Provenance::name);
                differs("provenance", &name(row.provenance), &name(told.provenance));
            }
            if row.completed_at.is_none() {
                differs("completed_at", &"empty", &"the time of its outcome");
            }
        }
        Status::Pending => {
            if row.digest.is_some() || row.completed_at.is_some() {
                differs("outcome", &"recorded", &"none");
            }
        }
        Status::Voided | Status::Denied => {}
    }
    if row.delivered_at.is_some() && row.completed_at.is_none() {
        differs("delivery", &"recorded", &"nothing that could be delivered");
    }
}

/// Compares what is left of the current outcome's bytes with what the row says.
fn payload(history: &History, faults: &mut Faults) {
    let row = &history.entry;
    let Some(last) = history.steps.last() else {
        return;
    };
    match row.status {
        Status::Completed | Status::Failed | Status::InputRequired | Status::Accepted => {}
        Status::Pending | Status::Voided | Status::Denied => return,
    }
    let Some(current) = last.task_end.as_ref().or(last.outcome.as_ref()) else {
        return;
    };
    let is_gone = current.body == Body::Gone;
    if is_gone != row.is_tombstone {
        faults.add(
            FaultKind::Payload,
            Some(last.fence),
            if is_gone {
                "the bytes of its outcome are gone, and it is no tombstone"
            } else {
                "it is a tombstone, and the bytes of its outcome are there"
            },
        );
    }
}

#[cfg(test)]
mod tests;
