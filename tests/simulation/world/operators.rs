//! What operators do, by the functions that the commands use, and damage by a bad disk.

use super::*;
use checkpoint::guard::stale::Wanted;
use checkpoint::guard::verdict::{self, Act, Deed, Owner, Turn, Verdict};
use checkpoint::rules::entry::Entry;
use checkpoint::rules::ids::{BranchId, Fence, Seq, SessionId};

/// An act, where it is done, and the answer that it gives.
pub(crate) type Drawn = ((BranchId, Seq), Act, Option<usize>);

/// Whether a call may run once more by an act; to say so twice without a look is careless.
fn allows_a_run(act: &Act) -> bool {
    matches!(
        act,
        Act::Reopen
            | Act::Resolve {
                verdict: Verdict::NotExecuted,
                ..
            }
    )
}

impl World<'_> {
    pub(super) fn places(&self) -> Vec<checkpoint::rules::entry::Entry> {
        let shared = self.store.borrow();
        shared
            .memory()
            .map(|memory| {
                memory
                    .entries()
                    .map(|stored| stored.entry.clone())
                    .collect()
            })
            .unwrap_or_default()
    }

    /// An operator does something to an entry, by the product's own hand: a careful one looks at
    /// the world first and waits for the owner's end, one who forces does neither.
    pub(super) fn operate(&mut self) -> Check {
        let Some((place, act, token)) = self.draws_an_act()? else {
            return Ok(());
        };
        self.coverage.verdicts += 1;
        let is_trial = self.random.chance(80);
        let is_blind = self.random.chance(40);
        let before = self.places();
        let entry = before
            .iter()
            .find(|entry| (entry.branch, entry.seq) == place);
        let may_act = entry.is_some_and(|entry| {
            let shared = self.store.borrow();
            // Whether the upstream of one that is gone lives can't be told by everybody.
            shared.is_live(entry.session) || is_blind
        });
        let is_forced = matches!(
            &act,
            Act::Resolve { forces: true, .. } | Act::Adopt { forces: true, .. }
        );
        self.coverage.forced += u64::from(is_forced && may_act);
        let at_work = self.at_work();
        let kept = entry.map_or(0, |entry| self.outcomes_under(entry.fence));
        tell!(
            self,
            "the operator does {act:?} to {place:?} (trial {is_trial}, blind {is_blind})"
        );
        let fault = self.fault();
        let is_unknown = fault == Fault::Unknown { is_kept: true };
        self.store.borrow_mut().fault = fault;
        let store = Rc::clone(&self.store);
        let mut ask = |session: SessionId, _row: Option<&SessionRow>| {
            let is_live = store.borrow().is_live(session);
            Owner {
                is_live,
                upstream_alive: if is_blind { None } else { Some(is_live) },
            }
        };
        let mut journal = SimJournal::new(&self.store);
        let deed = Deed {
            by: "the operator".into(),
            ..Deed::default()
        };
        let wall = Micros(self.wall);
        let ruling = verdict::rule(&mut journal, place, &act, &deed, wall, &mut ask, is_trial);
        journal.give_back();
        tell!(self, "-> {ruling:?}");
        let ruling = ruling.as_ref().ok();
        self.last_act = Some((place, act.clone(), token));
        let shared = Rc::clone(&self.store);
        let shared = shared.borrow();
        let said = Said {
            place,
            act: &act,
            token,
            may_act,
            is_trial,
            at_work: &at_work,
            before: &before,
            kept,
            may_be_kept: is_unknown,
            ruling,
        };
        self.oracle.ruled(&shared, &said)
    }

    /// Which lives still run, or what they started does.
    fn at_work(&self) -> Vec<bool> {
        let lives = self.lives.iter();
        lives
            .map(|life| life.is_alive || life.upstream.is_alive)
            .collect()
    }

    fn outcomes_under(&self, fence: Fence) -> usize {
        let shared = self.store.borrow();
        let Some(memory) = shared.memory() else {
            return 0;
        };
        let stored = [memory.outcome(fence), memory.task_end(fence)];
        stored.into_iter().flatten().count()
    }

    /// What an operator does next, and the answer that is given.
    fn draws_an_act(&mut self) -> Result<Option<Drawn>, String> {
        if self.random.chance(60)
            && let Some(last) = &self.last_act
            && (self.plan.forced || !allows_a_run(&last.1))
        {
            return Ok(Some(last.clone()));
        }
        let entries = self.places();
        let Some(entry) = self.draws_an_entry(&entries) else {
            return Ok(None);
        };
        let mut place = (entry.branch, entry.seq);
        let is_pending = entry.status == Status::Pending;
        let is_stale = self.oracle.has_stale_answers(place);
        let kind = self.random.below(100);
        let act = match kind {
            0..70 if is_stale && self.random.chance(850) => self.adopts(&entry),
            0..65 => return self.resolves(&entry),
            65..68 => self.adopts(&entry),
            68..88 => Act::Reopen,
            88..94 => Act::Deliver,
            _ => Act::Ask(self.random.pick(&[Turn::First, Turn::Waiting, Turn::Over])),
        };
        if self.random.chance(20) {
            place.1 = Seq(place.1.0 + 1000);
        }
        // To allow what may run a second time is forced, too.
        let reopens = act == Act::Reopen && !is_pending;
        if reopens && !self.plan.forced && self.oracle.may_have_run(place, &self.at_work()) {
            return Ok(None);
        }
        Ok(Some((place, act, None)))
    }

    fn draws_an_entry(&mut self, entries: &[Entry]) -> Option<Entry> {
        let kind = self.random.below(10);
        let is_wanted = |entry: &&Entry| match kind {
            0..3 => {
                let is_live = self.store.borrow().is_live(entry.session);
                entry.status == Status::Pending && !is_live
            }
            3 | 4 if self.plan.rounds > 0 => entry.status == Status::Pending && entry.round > 0,
            3 | 4 => entry.status == Status::Pending,
            5 => matches!(entry.status, Status::InputRequired | Status::Accepted),
            6..9 => self.oracle.has_stale_answers((entry.branch, entry.seq)),
            _ => true,
        };
        let of: Vec<&Entry> = entries.iter().filter(is_wanted).collect();
        if of.is_empty() {
            return None;
        }
        Some(of[self.random.below(of.len())].clone())
    }

    /// As an operator saw an entry, or did not.
    fn sees(&mut self, entry: &Entry) -> Option<Fence> {
        match self.random.below(10) {
            0..8 => Some(entry.fence),
            8 => None,
            _ => Some(Fence(entry.fence.0.saturating_sub(1))),
        }
    }

    fn adopts(&mut self, entry: &Entry) -> Act {
        let status = self
            .random
            .pick(&[Status::Completed, Status::Completed, Status::Failed]);
        let digest = if self.random.chance(100) { "0" } else { "" };
        Act::Adopt {
            wanted: Wanted {
                status,
                digest: digest.into(),
            },
            forces: self.plan.forced && self.random.chance(400),
            seen: self.sees(entry),
        }
    }

    /// A verdict: the truth, where that is known and the operator looks.
    fn resolves(&mut self, entry: &Entry) -> Result<Option<Drawn>, String> {
        let place = (entry.branch, entry.seq);
        let is_over = !self.store.borrow().is_live(entry.session);
        let is_pending = entry.status == Status::Pending;
        let forces = self.plan.forced && self.random.chance(700);
        let is_refused = !(is_pending && is_over);
        if is_refused && !forces && !self.random.chance(300) {
            return Ok(None);
        }
        let is_careless = self.plan.forced && self.random.chance(250);
        let happened = self.oracle.has_effect_of_part(place);
        let says = if is_careless || !is_over || !is_pending {
            // A round that did not run leads somewhere else than the rest.
            let is_round = entry.round > 0 && self.random.chance(400);
            if is_round { 2 } else { self.random.below(4) }
        } else if self.random.chance(100) {
            3
        } else if happened {
            usize::from(self.random.chance(200))
        } else {
            2
        };
        let serial = entry
            .call_id
            .as_deref()
            .and_then(Oracle::serial_of_call_id)
            .ok_or("a row without its call")?;
        let token = self.oracle.answers.len();
        let provenance = self
            .random
            .pick(&[Provenance::Operator, Provenance::Synthetic]);
        let mut answer = Answer::new(serial, String::new(), Kind::Operator);
        let verdict = match says {
            0 => {
                answer.is_error = self.random.chance(200);
                answer.body = format!(
                    "{{{}\"content\":[{{\"type\":\"text\",\"text\":\"#{token}#\"}}],\"isError\":{}}}",
                    self.result_type(),
                    answer.is_error
                );
                Verdict::Completed {
                    body: answer.body.clone().into_bytes().into(),
                    is_error: answer.is_error,
                    provenance,
                }
            }
            1 => {
                answer.body = format!("{{\"code\":-32603,\"message\":\"#{token}#\"}}");
                Verdict::Failed {
                    body: answer.body.clone().into_bytes().into(),
                    provenance,
                }
            }
            2 => Verdict::NotExecuted,
            _ => Verdict::StillUnknown,
        };
        let token = (says < 2).then_some(token);
        if token.is_some() {
            self.oracle.answers.push(answer);
        }
        let act = Act::Resolve {
            verdict,
            forces,
            seen: self.sees(entry),
        };
        Ok(Some((place, act, token)))
    }

    /// A bad disk changes an entry, its outcome, or takes it away.
    pub(super) fn damage(&mut self) {
        let entries = self.places();
        if entries.is_empty() {
            return;
        }
        let entry = entries[self.random.below(entries.len())].clone();
        let place = (entry.branch, entry.seq);
        if self.oracle.spoiled.contains(&place) {
            return;
        }
        let kind = match (self.random.below(5), entry.status) {
            // What would change nothing is no damage.
            (1, Status::Voided) | (2, Status::Completed) => 0,
            (kind, _) => kind,
        };
        let mut shared = self.store.borrow_mut();
        shared.durable = None;
        let Some(memory) = shared.memory_mut() else {
            return;
        };
        let settled = matches!(entry.status, Status::Completed | Status::Failed);
        match kind {
            0 => memory.spoil_entry(place.0, place.1, None),
            1 => memory.spoil_entry(
                place.0,
                place.1,
                Some(&mut |entry| entry.status = Status::Voided),
            ),
            2 => memory.spoil_entry(
                place.0,
                place.1,
                Some(&mut |entry| entry.status = Status::Completed),
            ),
            3 if settled => memory.spoil_outcome(
                entry.fence,
                b"{\"content\":[{\"type\":\"text\",\"text\":\"#0#\"}],\"forged\":1}".to_vec(),
            ),
            _ => memory.spoil_entry(
                place.0,
                place.1,
                Some(&mut |entry| entry.signature.0[3] ^= 0x10),
            ),
        }
        self.oracle.spoiled.insert(place);
        if kind == 3 && settled {
            self.oracle.spoiled_outcomes.insert(place);
        }
        self.coverage.damaged += 1;
        drop(shared);
        tell!(self, "{place:?} is damaged ({kind})");
    }
}
