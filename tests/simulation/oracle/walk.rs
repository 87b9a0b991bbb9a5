//! The walk of `--resume`, told from the rows and from what each life was let through to.

use super::*;

/// How far a life has walked.
#[derive(Clone, Debug, Default)]
pub(super) struct Walk {
    taken: BTreeSet<Seq>,
    is_over: bool,
}

/// When attempts were reserved and when their outcomes came: in commits, which no clock moves.
#[derive(Debug, Default)]
pub(super) struct Flights {
    commits: u64,
    began: BTreeMap<Fence, u64>,
    ended: BTreeMap<Fence, u64>,
}

/// A commit, and a place among the reservations in it.
type Moment = (u64, u64);

impl Flights {
    /// Something was committed.
    pub(super) fn look(&mut self, memory: &MemoryJournal) {
        self.commits += 1;
        for stored in memory.entries() {
            for fence in history(memory, stored.entry.fence) {
                self.began.entry(fence).or_insert(self.commits);
                if memory.outcome(fence).is_some() {
                    self.ended.entry(fence).or_insert(self.commits);
                }
            }
        }
    }

    /// Forgets what a power cut took.
    pub(super) fn forget(&mut self, memory: &MemoryJournal) {
        self.began
            .retain(|fence, _| memory.attempt(*fence).is_some());
        self.ended
            .retain(|fence, _| memory.outcome(*fence).is_some());
    }

    /// From when to when each attempt of an entry was in flight. Nobody sees an outcome before its
    /// commit, so what is reserved in the same one counts as reserved before.
    fn of(&self, memory: &MemoryJournal, fence: Fence) -> Vec<(Moment, Option<Moment>)> {
        let mut newer = None;
        let fences = history(memory, fence).into_iter();
        let moments = fences.map(|fence| {
            let began = (self.began.get(&fence).copied().unwrap_or(0), fence.0);
            let ended = self.ended.get(&fence).map(|commit| (*commit, u64::MAX));
            (began, ended.or(newer.replace(began)))
        });
        moments.collect()
    }

    fn were_together(&self, memory: &MemoryJournal, one: &Row, other: &Row) -> bool {
        let is_before =
            |from: Moment, until: Option<Moment>| until.is_none_or(|until| from < until);
        let others = self.of(memory, other.fence);
        self.of(memory, one.fence).iter().any(|(from, until)| {
            let mut others = others.iter();
            others.any(|(began, ended)| is_before(*from, *ended) && is_before(*began, *until))
        })
    }
}

/// The fences of an entry's attempts, the newest first.
fn history(memory: &MemoryJournal, fence: Fence) -> Vec<Fence> {
    let before = |fence: &Fence| memory.attempt(*fence).and_then(|attempt| attempt.previous);
    std::iter::successors(Some(fence), before).collect()
}

impl Oracle {
    /// W1 to W3: a call that names nothing means the first entry that is left; an equal one beyond
    /// it only where both ran together, or where that first one never ran; past the end it is new.
    pub(super) fn walked(
        &mut self,
        memory: &MemoryJournal,
        batch: &Batch<'_>,
        serial: usize,
        admission: &Admission,
        is_first: bool,
    ) -> Check {
        let request = &self.requests[serial];
        let workflow = request.workflow;
        let met = match &admission.verdict {
            AdmissionVerdict::Run(ticket, _) => Some((ticket.branch, ticket.seq)),
            AdmissionVerdict::Join { ticket, .. } => Some((ticket.branch, ticket.seq)),
            AdmissionVerdict::Replay(replay) => Some((replay.entry.branch, replay.entry.seq)),
            AdmissionVerdict::Refuse(refused) => refused
                .entry
                .as_ref()
                .map(|entry| (entry.branch, entry.seq)),
        };
        let is_refused = matches!(admission.verdict, AdmissionVerdict::Refuse(_));
        let is_run = matches!(admission.verdict, AdmissionVerdict::Run(..));
        let mut walk = self.walks.get(&batch.life).cloned().unwrap_or_default();
        let mut left: Vec<((BranchId, Seq), Row)> = self
            .rows
            .iter()
            .filter(|(place, _)| {
                self.is_visible(workflow, **place) && !walk.taken.contains(&place.1)
            })
            .map(|(place, row)| (*place, row.clone()))
            .collect();
        left.sort_by_key(|(place, _)| place.1);
        let is_answer = self.open_question(memory, batch.life, request);
        let is_told = is_first
            && batch
                .ops
                .iter()
                .filter(|op| matches!(op, Op::Admit(_)))
                .count()
                == 1;
        let is_same = |row: &Row| {
            Self::arguments_of(memory, row.fence) == request.arguments
                || self.arguments_before(row) == Some(&request.arguments)
        };
        if is_answer {
            // A round says itself which question it answers.
        } else if walk.is_over || left.is_empty() {
            if !walk.is_over {
                self.seen.walks_ended += 1;
            }
            walk.is_over = true;
            if is_told && is_run {
                holds!(
                    self.promise.at_least_once
                        || met.is_some_and(|place| !self.rows.contains_key(&place)),
                    "W3 c{serial} came after the end and runs at {met:?}"
                );
            }
        } else if !is_told {
            // Others in the batch may have changed what it met; what never ran is passed over.
            let (first, row) = &left[0];
            if row.status == Status::Voided
                && left[1..].iter().any(|(place, _)| met == Some(*place))
            {
                walk.taken.insert(first.1);
            }
            // On a branch that was opened in it, nothing is left past the call that did; and what
            // was passed is found again only by the guard.
            let is_end = |met: (BranchId, Seq)| {
                is_run && self.is_past_fork(memory, met) || walk.taken.contains(&met.1)
            };
            walk.is_over |= met.is_some_and(is_end);
        } else {
            let (first, row) = &left[0];
            let mut expected = *first;
            if !is_same(row) {
                let is_voided = row.status == Status::Voided;
                let other = left[1..]
                    .iter()
                    .filter(|(_, next)| is_voided || self.flights.were_together(memory, row, next))
                    .find(|(_, next)| is_same(next));
                if let Some((place, _)) = other {
                    self.seen.walked_out_of_order += 1;
                    expected = *place;
                    if is_voided {
                        walk.taken.insert(first.1);
                    }
                }
            }
            self.seen.walked += 1;
            let is_branch = met.is_some_and(|met| !self.owners.contains_key(&met.0));
            let is_it = met == Some(expected)
                || (is_run && is_branch && met.is_some_and(|met| met.1 == expected.1));
            holds!(
                is_it,
                "W1 c{serial} means {expected:?} by its turn, and was taken for {met:?}"
            );
        }
        if let Some(place) = met.filter(|_| !is_refused) {
            walk.taken.insert(place.1);
        }
        self.walks.insert(batch.life, walk);
        Ok(())
    }

    /// Whether a place is on a branch that is new, and not its first.
    fn is_past_fork(&self, memory: &MemoryJournal, place: (BranchId, Seq)) -> bool {
        let mut others = memory.entries().map(|stored| &stored.entry);
        !self.owners.contains_key(&place.0)
            && others.any(|other| other.branch == place.0 && other.seq < place.1)
    }

    fn arguments_before(&self, row: &Row) -> Option<&String> {
        row.serial.map(|serial| &self.requests[serial].arguments)
    }

    /// Whether a round answers a question that stands, or one that an operator's verdict has taken
    /// the place of.
    fn open_question(&self, memory: &MemoryJournal, life: usize, request: &Request) -> bool {
        let Some(state) = request.round else {
            return false;
        };
        self.rows.iter().any(|(place, row)| {
            let is_its = self.owners.get(&place.0) == Some(&request.workflow)
                && self.arguments_before(row) == Some(&request.arguments);
            let under = match row.status {
                Status::InputRequired => Some(row.fence),
                _ => Self::taken_from(memory, row.fence),
            };
            let asked = under.and_then(|fence| self.outcome_of(fence));
            let is_it = match state {
                Some(token) => asked == Some(token),
                None => self.asked.get(&life).is_some_and(|fences| {
                    let mut answers = fences.iter().map(|fence| self.answered.get(fence));
                    asked.is_some() && answers.any(|answer| answer.copied() == asked)
                }),
            };
            is_its && is_it
        })
    }

    /// The fence from which an operator took what an attempt stands for.
    fn taken_from(memory: &MemoryJournal, fence: Fence) -> Option<Fence> {
        let now = memory.attempt(fence)?;
        let then = memory.attempt(now.previous?)?;
        let is_same = (now.attempt, now.round) == (then.attempt, then.round);
        is_same.then_some(then.fence)
    }
}
