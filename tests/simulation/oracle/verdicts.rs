//! What an operator may do, told from who lives and from what was seen; and what that changes.
//!
//! A verdict counts for what is in doubt: PENDING, and nobody may act on it any more. By force an
//! entry is taken from whoever may, under a new fence; a question or a task only as it was seen.
//! What is settled stays so, but for a verdict that a kept answer takes back. Each act changes its
//! own entry and nothing else, and allows one effect more only where it lets a call run whose
//! effect may have happened, or may yet.

use super::*;
use checkpoint::guard::stale::NotAdopted;
use checkpoint::guard::verdict::{Act, Refused, Ruling, Verdict};
use checkpoint::rules::entry::{Entry, Provenance, outcome_digest};

/// An operator's act, and the world in which it was done.
pub(crate) struct Said<'a> {
    pub(crate) place: (BranchId, Seq),
    pub(crate) act: &'a Act,
    /// The answer that a verdict gives.
    pub(crate) token: Option<usize>,
    /// Somebody may still act on the entry, as far as the operator can tell.
    pub(crate) may_act: bool,
    pub(crate) is_trial: bool,
    /// Lives of which something still runs.
    pub(crate) at_work: &'a [bool],
    /// All entries before, and what of outcomes stood under the entry's fence.
    pub(crate) before: &'a [Entry],
    pub(crate) kept: usize,
    /// The commit's end is not known.
    pub(crate) may_be_kept: bool,
    /// What became of it; nothing where that was an error.
    pub(crate) ruling: Option<&'a Ruling>,
}

/// What an act comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Rules,
    TakesFirst,
    TakesBack,
    Notes,
    Reopens,
    Delivers,
}

/// Why an act is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Against {
    Absent,
    Damaged,
    Owned,
    Open,
    Settled,
    Changed,
    NoAnswer,
    SeveralAnswers,
    Asked,
}

impl Against {
    fn of(refused: &Refused) -> Self {
        match refused {
            Refused::Absent => Self::Absent,
            Refused::Quarantined => Self::Damaged,
            Refused::NotNow { .. } => Self::Settled,
            Refused::Open { .. } => Self::Open,
            Refused::NotAdopted(NotAdopted::Several { .. }) => Self::SeveralAnswers,
            Refused::NotAdopted(_) => Self::NoAnswer,
            Refused::Live { .. } | Refused::UpstreamAlive { .. } => Self::Owned,
            Refused::BeingAsked { .. } | Refused::JustAsked => Self::Asked,
            Refused::Changed => Self::Changed,
        }
    }
}

impl Oracle {
    /// V1 to V4: what an operator's act came to, beside what it may come to.
    pub(crate) fn ruled(&mut self, shared: &Shared, said: &Said<'_>) -> Check {
        let Some(memory) = shared.memory() else {
            return Ok(());
        };
        let place = said.place;
        let old = said
            .before
            .iter()
            .find(|entry| (entry.branch, entry.seq) == place);
        self.others_stay(memory, said)?;
        let mut new = memory.entries().map(|stored| &stored.entry);
        let new = new.find(|entry| (entry.branch, entry.seq) == place);
        let expected = self.may(said);
        let has_changed = old != new;
        match said.ruling {
            Some(Ruling::Refused(refused)) => {
                holds!(!has_changed, "V2 a refused act changed {place:?}");
                return self.is_refused_for(memory, said, expected, Against::of(refused));
            }
            Some(Ruling::Done { after, .. }) if !said.is_trial => {
                holds!(
                    new == Some(&**after),
                    "V2 {place:?} is not what the operator was told"
                );
            }
            Some(Ruling::Done { .. }) => {
                self.seen.verdicts_rehearsed += 1;
                holds!(!has_changed, "V2 a rehearsal changed {place:?}");
            }
            None if !has_changed => return Ok(()),
            None => {
                holds!(said.may_be_kept, "V2 an act that failed changed {place:?}");
                self.seen.verdicts_unknown += 1;
            }
        }
        let way =
            expected.map_err(|why| format!("V1 {:?} of {place:?} is done: {why:?}", said.act))?;
        if said.is_trial {
            return Ok(());
        }
        let (old, new) = old
            .zip(new)
            .ok_or("V1 an act on an entry that is not there")?;
        if way == Way::TakesBack && self.spoiled_outcomes.remove(&place) {
            // Nobody is served the bytes of a verdict that is taken back.
            self.spoiled.remove(&place);
        }
        holds!(
            !self.spoiled.contains(&place) || way == Way::Delivers,
            "I5 the damaged {place:?} is ruled on"
        );
        self.operator_ruled = true;
        self.is_what_was_said(memory, said, way, old, new)?;
        let row = Row::of(new);
        self.fence_max = self.fence_max.max(row.fence.0);
        if let Some(serial) = row.serial {
            self.by_fence.insert(row.fence, serial);
        }
        self.rows.insert(place, row);
        if self.resumes {
            self.flights.look(memory);
        }
        Ok(())
    }

    fn others_stay(&self, memory: &MemoryJournal, said: &Said<'_>) -> Check {
        let is_other = |entry: &&Entry| (entry.branch, entry.seq) != said.place;
        let now = memory.entries().map(|stored| &stored.entry);
        holds!(
            now.filter(is_other).eq(said.before.iter().filter(is_other)),
            "V2 {:?} of {:?} changed another entry",
            said.act,
            said.place
        );
        Ok(())
    }

    /// What the act may come to.
    fn may(&self, said: &Said<'_>) -> Result<Way, Against> {
        let is_there = said
            .before
            .iter()
            .any(|entry| (entry.branch, entry.seq) == said.place);
        if !is_there {
            return Err(Against::Absent);
        }
        let Some(row) = self.rows.get(&said.place) else {
            return Err(Against::Absent);
        };
        let is_sound = !self.spoiled.contains(&said.place);
        let is_row_sound = is_sound || self.spoiled_outcomes.contains(&said.place);
        match said.act {
            _ if !is_row_sound => Err(Against::Damaged),
            Act::Resolve {
                verdict,
                forces,
                seen,
            } => self.way(said, row, *verdict != Verdict::StillUnknown, *forces, *seen),
            Act::Adopt { forces, seen, .. } => match row.status {
                Status::Completed | Status::Failed | Status::Voided => {
                    let has_verdict =
                        row.status == Status::Voided || self.ruled.contains(&row.fence);
                    match seen {
                        _ if !has_verdict => Err(Against::Settled),
                        None => Err(Against::Settled),
                        Some(seen) if *seen != row.fence => Err(Against::Changed),
                        Some(_) => Ok(Way::TakesBack),
                    }
                }
                _ => self.way(said, row, true, *forces, *seen),
            },
            Act::Ask(_) => self.way(said, row, true, false, None).map(|_| Way::Notes),
            Act::Reopen => match row.status {
                Status::Completed | Status::Failed if is_sound => Ok(Way::Reopens),
                Status::Completed | Status::Failed => Err(Against::Damaged),
                _ => Err(Against::Settled),
            },
            Act::Deliver => match row.status {
                Status::Pending | Status::Voided => Err(Against::Settled),
                _ if row.is_delivered => Err(Against::Settled),
                _ => Ok(Way::Delivers),
            },
        }
    }

    fn way(
        &self,
        said: &Said<'_>,
        row: &Row,
        settles: bool,
        forces: bool,
        seen: Option<Fence>,
    ) -> Result<Way, Against> {
        match row.status {
            Status::Pending if !said.may_act => Ok(Way::Rules),
            Status::Pending if forces => Ok(Way::TakesFirst),
            Status::Pending => Err(Against::Owned),
            Status::InputRequired | Status::Accepted => match seen {
                None => Err(Against::Settled),
                Some(seen) if seen != row.fence => Err(Against::Changed),
                Some(_) if !settles => Ok(Way::Notes),
                Some(_) if forces => Ok(Way::TakesFirst),
                Some(_) => Err(Against::Open),
            },
            Status::Completed | Status::Failed | Status::Voided | Status::Denied => {
                Err(Against::Settled)
            }
        }
    }

    /// V1: what may be done is not refused, and what may not for the reason that there is.
    fn is_refused_for(
        &mut self,
        memory: &MemoryJournal,
        said: &Said<'_>,
        expected: Result<Way, Against>,
        why: Against,
    ) -> Check {
        let seen = &mut self.seen;
        *match why {
            Against::Absent => &mut seen.refused_absent,
            Against::Damaged => &mut seen.refused_damaged,
            Against::Owned => &mut seen.refused_owned,
            Against::Open => &mut seen.refused_open,
            Against::Settled | Against::Asked => &mut seen.refused_settled,
            Against::Changed => &mut seen.refused_changed,
            Against::NoAnswer | Against::SeveralAnswers => &mut seen.refused_adoption,
        } += 1;
        let is_right = match (said.act, why) {
            (Act::Adopt { wanted, .. }, Against::NoAnswer) => {
                !wanted.digest.is_empty() || !self.has_stale(memory, said.place, wanted.status)
            }
            // A power cut leaves more than is sure to be there.
            (Act::Adopt { .. }, Against::SeveralAnswers) => true,
            // That answer is its outcome already.
            (Act::Adopt { .. }, Against::Settled) => self
                .rows
                .get(&said.place)
                .is_some_and(|row| row.status != Status::Pending),
            // Somebody asked, and then did not know.
            (Act::Ask(turn), Against::Asked) => {
                *turn == checkpoint::guard::verdict::Turn::Waiting && expected.is_ok()
            }
            // Of what is settled and does not hold it is said that it does not hold.
            (_, Against::Damaged) if expected == Err(Against::Settled) => {
                let place = &said.place;
                self.spoiled.contains(place) || self.spoiled_outcomes.contains(place)
            }
            _ => expected == Err(why),
        };
        holds!(
            is_right,
            "V1 {:?} of {:?} is refused: {why:?}, and may come to {expected:?}",
            said.act,
            said.place
        );
        Ok(())
    }

    /// Whether an answer to the very call of an entry is sure to be kept.
    fn has_stale(&self, memory: &MemoryJournal, place: (BranchId, Seq), wanted: Status) -> bool {
        let Some(row) = self.rows.get(&place) else {
            return false;
        };
        let kept = self.stale.get(&place).map_or(&[][..], |kept| &kept[..]);
        // Of several nobody can tell which is meant.
        let [(fence, token)] = kept else { return false };
        let answer = &self.answers[*token];
        let is_it = match answer.kind {
            Kind::Result => wanted == Status::Completed,
            Kind::Error | Kind::Closed => wanted == Status::Failed,
            Kind::Question | Kind::Handle | Kind::NotExecuted | Kind::Operator => false,
        };
        is_it
            && self.promise.stores_results
            && Self::arguments_of(memory, *fence) == Self::arguments_of(memory, row.fence)
    }

    /// Whether the effect of a call may have happened, or may yet.
    pub(crate) fn may_have_run(&self, place: (BranchId, Seq), at_work: &[bool]) -> bool {
        self.has_effect(place) || self.may_yet_run(place, at_work)
    }

    /// Whether somebody still has a call of an entry.
    fn may_yet_run(&self, place: (BranchId, Seq), at_work: &[bool]) -> bool {
        self.requests.iter().any(|request| {
            let is_granted = request
                .grants
                .iter()
                .any(|(grant, _)| (grant.branch, grant.seq) == place);
            let is_over = request
                .answer
                .is_some_and(|answer| self.answers[answer].kind != Kind::Handle);
            is_granted && at_work[request.life] && !is_over
        })
    }

    /// V3: the entry is what the act makes of it, and what was there stays with its attempt.
    fn is_what_was_said(
        &mut self,
        memory: &MemoryJournal,
        said: &Said<'_>,
        way: Way,
        old: &Entry,
        new: &Entry,
    ) -> Check {
        let place = said.place;
        let is_kept = [memory.outcome(old.fence), memory.task_end(old.fence)];
        let is_kept = is_kept.into_iter().flatten().count();
        holds!(
            way == Way::Rules || is_kept == said.kept,
            "V3 what stood under fence {} of {place:?} is gone",
            old.fence
        );
        let expected = match way {
            Way::Notes => {
                let (_, settles) = Self::verdict_of(said.act);
                self.seen.announced += u64::from(settles);
                self.seen.ruled_unknown += u64::from(!settles);
                old.clone()
            }
            Way::Delivers => {
                self.seen.hand_delivered += 1;
                Entry {
                    delivered_at: new.delivered_at.or(Some(old.created_at)),
                    ..old.clone()
                }
            }
            Way::Reopens => {
                self.seen.reopened += 1;
                self.allow_if_it_may_have_run(said);
                Entry {
                    status: Status::Voided,
                    completed_at: new.completed_at,
                    delivered_at: new.completed_at,
                    gave_up: None,
                    unanswered: None,
                    is_error: false,
                    provenance: None,
                    digest: None,
                    is_tombstone: false,
                    ..old.clone()
                }
            }
            Way::Rules | Way::TakesFirst | Way::TakesBack => {
                if way == Way::TakesFirst {
                    self.taken_by_force.insert(said.place);
                }
                let taken = self.taken(memory, way, old, new)?;
                self.seen.taken_running +=
                    u64::from(way == Way::TakesFirst && old.status == Status::Pending);
                self.seen.taken_open +=
                    u64::from(way == Way::TakesFirst && old.status != Status::Pending);
                self.seen.taken_back += u64::from(way == Way::TakesBack);
                self.settled_as(memory, said, old, new, taken)?
            }
        };
        holds!(
            *new == expected,
            "V3 {:?} made {new:?} of {place:?}, and not {expected:?}",
            said.act
        );
        Ok(())
    }

    fn verdict_of(act: &Act) -> (Option<&Verdict>, bool) {
        match act {
            Act::Resolve { verdict, .. } => (Some(verdict), *verdict != Verdict::StillUnknown),
            _ => (None, true),
        }
    }

    /// The entry once nobody else may act on it.
    fn taken(
        &self,
        memory: &MemoryJournal,
        way: Way,
        old: &Entry,
        new: &Entry,
    ) -> Result<Entry, String> {
        use checkpoint::rules::entry::{GaveUp, Unanswered};
        if way == Way::Rules {
            return Ok(old.clone());
        }
        // A round that did not run leads back to its question, under that one's fence.
        let newest = (self.fence_max + 1..).take_while(|at| memory.attempt(Fence(*at)).is_some());
        let newest = Fence(newest.last().unwrap_or(0));
        let is_back = new.fence < old.fence;
        let fence = Some(if is_back { newest } else { new.fence });
        let fence = fence.filter(|fence| fence.0 > self.fence_max);
        let fence = fence.ok_or_else(|| {
            format!(
                "V3 {:?} was taken without a new fence (as {:?})",
                (old.branch, old.seq),
                new.fence
            )
        })?;
        let (before, now) = (memory.attempt(old.fence), memory.attempt(fence));
        let is_the_same = before.zip(now).is_some_and(|(before, now)| {
            now.previous == Some(old.fence)
                && (now.attempt, now.round) == (before.attempt, before.round)
                && (&now.arguments, &now.policy) == (&before.arguments, &before.policy)
        });
        if !is_the_same {
            return Err(format!("V3 fence {fence} is of another attempt"));
        }
        Ok(Entry {
            status: Status::Pending,
            fence,
            unanswered: Some(Unanswered::Fenced),
            gave_up: old.gave_up.or(Some(GaveUp::Gone)),
            completed_at: None,
            delivered_at: None,
            is_error: false,
            provenance: None,
            digest: None,
            is_tombstone: false,
            ..old.clone()
        })
    }

    /// The entry as a verdict settles it.
    fn settled_as(
        &mut self,
        memory: &MemoryJournal,
        said: &Said<'_>,
        old: &Entry,
        new: &Entry,
        taken: Entry,
    ) -> Result<Entry, String> {
        use checkpoint::rules::entry::GaveUp;
        let place = said.place;
        let (status, token, is_error, provenance) = match said.act {
            Act::Resolve { verdict, .. } => match verdict {
                Verdict::StillUnknown => {
                    self.seen.ruled_unknown += 1;
                    return Ok(taken);
                }
                Verdict::NotExecuted => {
                    self.seen.ruled_not_executed += 1;
                    return self.not_executed(said, old, new, taken);
                }
                Verdict::Completed {
                    is_error,
                    provenance,
                    ..
                } => {
                    self.seen.ruled_completed += 1;
                    (Status::Completed, said.token, *is_error, *provenance)
                }
                Verdict::Failed { provenance, .. } => {
                    self.seen.ruled_failed += 1;
                    (Status::Failed, said.token, false, *provenance)
                }
            },
            Act::Adopt { wanted, .. } => {
                self.seen.adopted += 1;
                let token = self.adoptable(memory, place, wanted.status, new);
                let is_error = token.is_some_and(|token| self.answers[token].is_error);
                (wanted.status, token, is_error, Provenance::Operator)
            }
            Act::Ask(_) | Act::Reopen | Act::Deliver => return Err("no verdict".into()),
        };
        let token = token.ok_or_else(|| {
            format!("V4 {place:?} has an outcome that nobody gave to that very call")
        })?;
        if let (Act::Resolve { .. }, Some(call_id)) = (said.act, &new.call_id) {
            // Said once more, it is said of whoever has the place now.
            self.answers[token].serial =
                Self::serial_of_call_id(call_id).ok_or("a row without its call")?;
        }
        let body = self.answers[token].body.as_bytes();
        let stored = memory.outcome(new.fence).and_then(|it| it.body.as_deref());
        if stored != Some(body) {
            return Err(format!("V3 {place:?} holds other bytes than #{token}#"));
        }
        let digest = Some(outcome_digest(body));
        self.settled.insert(new.fence, token);
        self.ruled.insert(new.fence);
        Ok(Entry {
            status,
            is_error,
            provenance: Some(provenance),
            digest,
            completed_at: new.completed_at,
            delivered_at: None,
            gave_up: taken.gave_up.or(Some(GaveUp::Gone)),
            unanswered: None,
            is_tombstone: false,
            ..taken
        })
    }

    /// V4: what is adopted is an answer that was read for an attempt of this very call.
    fn adoptable(
        &self,
        memory: &MemoryJournal,
        place: (BranchId, Seq),
        wanted: Status,
        new: &Entry,
    ) -> Option<usize> {
        let stored = memory.outcome(new.fence)?.body.as_deref()?;
        let asked = Self::arguments_of(memory, new.fence);
        self.answers.iter().position(|answer| {
            let request = &self.requests[answer.serial];
            let is_read = match answer.ends {
                Some(_) => true,
                None => answer.fence.is_some(),
            };
            let was_here = request
                .grants
                .iter()
                .any(|(grant, _)| (grant.branch, grant.seq) == place);
            let fits = match answer.kind {
                Kind::Result => wanted == Status::Completed,
                Kind::Error | Kind::Closed => wanted == Status::Failed,
                Kind::Question | Kind::Handle | Kind::NotExecuted | Kind::Operator => false,
            };
            answer.body.as_bytes() == stored
                && is_read
                && was_here
                && fits
                && request.arguments == asked
        })
    }

    /// The entry as one that was not executed: a round leads back to its question.
    fn not_executed(
        &mut self,
        said: &Said<'_>,
        old: &Entry,
        new: &Entry,
        taken: Entry,
    ) -> Result<Entry, String> {
        if old.status != Status::Pending || old.round == 0 {
            self.allow_if_it_may_have_run(said);
            return Ok(Entry {
                status: Status::Voided,
                completed_at: new.completed_at,
                delivered_at: new.completed_at,
                gave_up: None,
                unanswered: None,
                ..taken
            });
        }
        self.seen.ruled_rounds += 1;
        if self.has_effect_of_part(said.place) || self.may_yet_run(said.place, said.at_work) {
            self.seen.ruled_wrongly += 1;
            self.allow(said.place);
        }
        let asked = self.outcome_of(new.fence);
        let asked = asked.filter(|asked| self.answers[*asked].kind == Kind::Question);
        let asked =
            asked.ok_or_else(|| format!("R2 {:?} went back to what is no question", said.place))?;
        Ok(Entry {
            status: Status::InputRequired,
            round: old.round - 1,
            fence: new.fence,
            provenance: Some(Provenance::Upstream),
            digest: Some(outcome_digest(self.answers[asked].body.as_bytes())),
            is_tombstone: !self.promise.stores_results,
            completed_at: new.completed_at,
            delivered_at: new.completed_at,
            gave_up: None,
            unanswered: None,
            ..taken
        })
    }

    fn allow_if_it_may_have_run(&mut self, said: &Said<'_>) {
        if self.may_have_run(said.place, said.at_work) {
            self.seen.ruled_wrongly += 1;
            self.allow(said.place);
        }
    }
}
