//! Verdicts, and damage by a bad disk.

use super::*;

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

    /// A verdict on an entry in doubt: a careful operator looks at the world first and waits for
    /// the owner's end, one who forces does neither.
    pub(super) fn operate(&mut self) -> Check {
        let entries = self.places();
        let pending: Vec<_> = entries
            .into_iter()
            .filter(|entry| entry.status == Status::Pending)
            .filter(|entry| !self.oracle.spoiled.contains(&(entry.branch, entry.seq)))
            .collect();
        if pending.is_empty() {
            return Ok(());
        }
        let entry = pending[self.random.below(pending.len())].clone();
        let owner = self.store.borrow().owners.get(&entry.session).copied();
        let is_over = owner.is_none_or(|life| {
            let alive = self.store.borrow().lives[life];
            let upstream = self.lives[life].upstream.is_alive;
            !alive.proxy && !alive.group && !upstream
        });
        let forces = self.plan.forced && self.random.chance(500);
        if !is_over && !forces {
            return Ok(());
        }
        let serial = entry
            .call_id
            .as_deref()
            .and_then(Oracle::serial_of_call_id)
            .ok_or("a row without its call")?;
        let place = (entry.branch, entry.seq);
        let happened = self.oracle.has_effect(place);
        if entry.round > 0 && !happened {
            // What came of the rounds before can't be told by "not executed".
            return Ok(());
        }
        let says_done = if is_over {
            happened
        } else {
            self.random.chance(500)
        };
        if !is_over {
            self.oracle.allow(place);
            self.coverage.forced += 1;
        }
        self.coverage.verdicts += 1;
        tell!(
            self,
            "the operator says of {place:?} (c{serial}): done {says_done}, over {is_over}"
        );
        let wall = self.wall;
        let mut shared = self.store.borrow_mut();
        let Some(memory) = shared.memory_mut() else {
            return Ok(());
        };
        let uid = memory.identity().uid;
        let (transition, outcome) = if says_done {
            let token = self.oracle.answers.len();
            let body = format!(
                "{{{}\"content\":[{{\"type\":\"text\",\"text\":\"#{token}#\"}}]}}",
                self.result_type()
            );
            let answer = Answer::new(serial, body.clone(), Kind::Operator);
            self.oracle.answers.push(answer);
            self.oracle.rule(entry.fence, token);
            let digest = outcome_digest(body.as_bytes());
            let settlement = lifecycle::Settlement {
                status: Status::Completed,
                is_error: false,
                provenance: Provenance::Operator,
                digest,
                is_tombstone: false,
                at: Micros(wall),
            };
            let transition =
                lifecycle::settle(&entry, settlement).map_err(|error| error.to_string())?;
            let outcome = Outcome {
                fence: entry.fence,
                status: Status::Completed,
                is_error: false,
                provenance: Provenance::Operator,
                at: Micros(wall),
                digest,
                body: Some(body.into_bytes().into()),
                round: None,
                task: None,
            };
            (transition, Some(outcome))
        } else {
            let transition =
                lifecycle::void(&entry, Micros(wall), None).map_err(|error| error.to_string())?;
            (transition, None)
        };
        let checksum = transition.entry.checksum(&uid);
        let mut tx = memory
            .begin(checkpoint::journal::Durability::Power)
            .map_err(|error| error.to_string())?;
        tx.apply(&Write {
            transition,
            checksum,
            attempt: None,
            outcome,
            event: None,
        })
        .map_err(|error| error.to_string())?;
        tx.commit().map_err(|error| error.to_string())?;
        shared.durable = None;
        drop(shared);
        let shared = Rc::clone(&self.store);
        let shared = shared.borrow();
        self.oracle.compare_rows(&shared, None)
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
        self.coverage.damaged += 1;
        drop(shared);
        tell!(self, "{place:?} is damaged ({kind})");
    }
}
