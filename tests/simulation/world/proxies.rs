//! What a proxy's driver does, one thing at a time.

use super::*;

impl World<'_> {
    pub(super) fn read_client(&mut self, number: usize) -> Check {
        let now = self.now;
        let life = &mut self.lives[number];
        if life.is_finishing || life.session.phase().is_client_gone() {
            return Ok(());
        }
        let Some(line) = life.inbox.pop_front() else {
            if life.client_eof && !life.eof_told {
                life.eof_told = true;
                life.session.client_ended(now);
            }
            return Ok(());
        };
        let text = String::from_utf8_lossy(&line).into_owned();
        if text.contains("\"tools/call\"") {
            let serial = call_serial(&text).ok_or("no call id")?;
            self.oracle.requests[serial].is_read = true;
        } else if text.contains("notifications/cancelled") {
            let serial = between(&text, "\"c\":\"c", "\"").and_then(|text| text.parse().ok());
            let serial: usize = serial.ok_or("no call id")?;
            self.oracle.cancel_read(serial);
            life.cancels_new.push(serial);
        } else if !(text.contains("\"id\":\"poll") && life.session.phase().is_upstream_ended()) {
            life.passing_up.push_back(line.clone());
        }
        life.session.client_line(line);
        Ok(())
    }

    pub(super) fn read_upstream(&mut self, number: usize) -> Check {
        let now = self.now;
        let life = &mut self.lives[number];
        let Some(line) = life.upstream.output.pop_front() else {
            return Ok(());
        };
        let text = String::from_utf8_lossy(&line).into_owned();
        let is_about_task =
            text.starts_with("{\"jsonrpc\":\"2.0\",\"method\"") || text.contains("\"id\":\"poll");
        if is_about_task {
            life.passing_down.push_back(line.clone());
            if let Some(token) = token_of(&text) {
                self.oracle.ends_read.insert(token);
            } else if text.contains("\"status\":\"failed\"") {
                self.oracle.failures_read.extend(
                    between(&text, "\"createdAt\":\"t", "\"")
                        .and_then(|handle| handle.parse::<usize>().ok()),
                );
            }
        } else if let Some(token) = token_of(&text) {
            let id = between(&text, "\"id\":", ",").ok_or("no id")?;
            let closed = life.is_input_closed;
            self.oracle.answer_read(number, id, token, closed);
        }
        tell!(self, "p{number} reads {}", text.trim_end());
        self.lives[number].session.upstream_line(line, now);
        Ok(())
    }

    pub(super) fn journal(&mut self, number: usize) -> Check {
        let now = self.now;
        let batch = std::mem::replace(&mut self.lives[number].batch, Batch::None);
        match batch {
            Batch::None => {
                let life = &mut self.lives[number];
                if let Some(ops) = life.session.take_ops(now) {
                    life.batch = Batch::Taken(ops, false);
                    life.cancels_taken = std::mem::take(&mut life.cancels_new);
                }
            }
            Batch::Taken(ops, reconnects) => self.run_batch(number, ops, reconnects)?,
            Batch::Ran(ops, result) => self.take_answer(number, ops, result),
            Batch::Waiting {
                ops,
                next,
                reconnects,
            } => {
                self.lives[number].batch = if now >= next {
                    Batch::Taken(ops, reconnects)
                } else {
                    Batch::Waiting {
                        ops,
                        next,
                        reconnects,
                    }
                };
            }
        }
        Ok(())
    }

    pub(super) fn fault(&mut self) -> Fault {
        if let Some(fault) = self.next_fault.take() {
            return fault;
        }
        let full = JournalError::Full;
        if self.is_calm {
            return Fault::None;
        }
        if self.full_until.is_some_and(|until| self.now < until) {
            return Fault::Begin(full);
        }
        if !self.random.chance(self.plan.journal_fault) {
            return Fault::None;
        }
        self.coverage.journal_faults += 1;
        let busy = JournalError::Busy;
        let failed = JournalError::Failed("a fault".into());
        match self.random.below(12) {
            0..=2 => Fault::Begin(busy),
            3 => {
                // A disk that is full stays so for a while.
                if self.random.chance(600) {
                    self.coverage.full_disks += 1;
                    let for_ms = 2500 + self.random.below(4000) as u64;
                    self.full_until = Some(self.now + Duration::from_millis(for_ms));
                }
                Fault::Begin(full)
            }
            4 => Fault::Begin(JournalError::ReadOnly("a fault".into())),
            5 => Fault::At(self.random.below(3), full),
            6 => Fault::At(self.random.below(3), failed),
            7 => Fault::Commit(busy),
            8 => Fault::Commit(full),
            9 => Fault::Commit(failed),
            10 => Fault::Unknown { is_kept: false },
            _ => Fault::Unknown { is_kept: true },
        }
    }

    pub(super) fn run_batch(&mut self, number: usize, ops: Vec<Op>, reconnects: bool) -> Check {
        let fault = self.fault();
        if fault != Fault::None {
            tell!(self, "p{number}'s journal: {fault:?}");
            self.lives[number].is_faulted = true;
        }
        let unknown_kept = fault == Fault::Unknown { is_kept: true };
        let foreseen = self.foresees(number, &ops);
        self.store.borrow_mut().fault = fault;
        let wall = self.wall;
        let life = &mut self.lives[number];
        let had_failed = life.guard.journal().has_failed();
        let result = if reconnects {
            life.guard.journal().reconnect()
        } else {
            Ok(())
        };
        let result = result.and_then(|()| life.guard.run(&ops, Micros(wall)));
        life.guard.journal().give_back();
        self.coverage.batches += 1;
        if self.trace.is_some() {
            let shown: Vec<String> = ops.iter().map(shown_op).collect();
            let done = match &result {
                Ok(done) => done.iter().map(shown_done).collect::<Vec<_>>().join(", "),
                Err(error) => format!("{error:?}"),
            };
            tell!(self, "p{number} journal [{}] -> [{done}]", shown.join(", "));
        }
        for done in result.iter().flatten() {
            if let Done::Admitted(admission) = done {
                self.coverage.admitted(&admission.verdict);
                let letter = verdict_name(&admission.verdict);
                self.note(letter.as_bytes());
            }
        }
        if let (Ok([first, ..]), Some(foreseen)) = (result.as_deref(), &foreseen) {
            self.was_foreseen(number, foreseen, first)?;
        }
        let session = self.lives[number].guard.session();
        let shared = Rc::clone(&self.store);
        let shared = shared.borrow();
        if let Ok(done) = &result {
            let batch = oracle::Batch {
                life: number,
                session,
                ops: &ops,
                done,
                wall,
            };
            self.oracle.committed(&shared, &batch)?;
            for serial in std::mem::take(&mut self.lives[number].cancels_taken) {
                self.oracle.requests[serial].cancel_is_committed = true;
            }
        } else if unknown_kept && !had_failed {
            // The rows are there, and nobody was told: what they say must be true all the same.
            let owner = session.or_else(|| {
                shared
                    .owners
                    .iter()
                    .find(|(_, life)| **life == number)
                    .map(|(id, _)| *id)
            });
            let batch = oracle::Batch {
                life: number,
                session: owner,
                ops: &ops,
                done: &[],
                wall,
            };
            self.oracle.committed(&shared, &batch)?;
        }
        self.lives[number].batch = Batch::Ran(ops, result);
        Ok(())
    }

    /// What the driver makes of a batch's result.
    pub(super) fn take_answer(
        &mut self,
        number: usize,
        mut ops: Vec<Op>,
        result: Result<Vec<Done>, JournalError>,
    ) {
        let now = self.now;
        let life = &mut self.lives[number];
        let error = match result {
            Ok(done) => {
                life.tries_since = None;
                life.session.journal_done(done, now);
                return;
            }
            Err(error) => error,
        };
        let since = *life.tries_since.get_or_insert(now);
        let waited = now.saturating_duration_since(since);
        let patience = match &error {
            JournalError::Busy => {
                if waited >= Duration::from_secs(5) {
                    ops = life.session.give_up_reservations(ops, &error, now);
                }
                Duration::from_secs(30)
            }
            JournalError::Full | JournalError::ReadOnly(_) => {
                ops = life.session.give_up_reservations(ops, &error, now);
                Duration::from_secs(2)
            }
            JournalError::Unreadable(_)
            | JournalError::Moved(_)
            | JournalError::Damaged(_)
            | JournalError::Failed(_) => Duration::ZERO,
        };
        if ops.is_empty() {
            life.tries_since = None;
            return;
        }
        if waited >= patience {
            life.tries_since = None;
            life.session.journal_failed(ops, &error, now);
            return;
        }
        life.batch = Batch::Waiting {
            ops,
            next: now + Duration::from_millis(4),
            reconnects: error != JournalError::Busy,
        };
    }

    pub(super) fn write(&mut self, number: usize) -> Check {
        self.pump_up(number)?;
        self.pump_down(number)?;
        let life = &mut self.lives[number];
        if !life.to_upstream.is_flushed() && !life.is_input_closed && life.upstream.is_alive {
            let left = usize::try_from(life.to_upstream.pushed - life.to_upstream.written).unwrap();
            let bytes = match self.random.below(10) {
                0..7 => left,
                7 => 0,
                _ => self.random.below(left + 1),
            };
            let bytes = if self.is_calm { left } else { bytes };
            life.to_upstream.written += bytes as u64;
            let written = life.to_upstream.written;
            for piped in &life.to_upstream.lines {
                if let Some(serial) = piped.call
                    && piped.start < written
                {
                    self.oracle.requests[serial].reached = true;
                    self.oracle.requests[serial].ever_reached = true;
                }
            }
        }
        let now = self.now;
        if life.client_broken {
            if !life.session.phase().is_client_gone() {
                let written = life.to_client.written;
                life.session.wrote_down(written);
                life.session.client_gone(now);
                life.to_client.lines.clear();
                life.passing_down.clear();
                life.to_client.written = life.to_client.pushed;
            }
            return Ok(());
        }
        let left = usize::try_from(life.to_client.pushed - life.to_client.written).unwrap();
        let bytes = if !self.is_calm && self.random.chance(200) {
            self.random.below(left + 1)
        } else {
            left
        };
        life.to_client.written += bytes as u64;
        let written = life.to_client.written;
        while let Some(piped) = self.lives[number].to_client.take() {
            if let Some(fence) = piped.delivers {
                self.oracle.written.insert(fence);
            }
            let text = String::from_utf8_lossy(&piped.line).into_owned();
            self.agent_reads(number, &text, piped.call);
        }
        self.lives[number].session.wrote_down(written);
        Ok(())
    }

    pub(super) fn pump_up(&mut self, number: usize) -> Check {
        while let Some((line, key)) = self.lives[number].session.to_upstream() {
            let text = String::from_utf8_lossy(&line).into_owned();
            tell!(self, "p{number} -> upstream {}", text.trim_end());
            self.note(&line);
            let mut call = None;
            if text.contains("\"tools/call\"") {
                let serial = call_serial(&text).ok_or("no call id")?;
                call = Some(serial);
                let shared = Rc::clone(&self.store);
                let shared = shared.borrow();
                let session = self.lives[number].guard.session();
                self.oracle
                    .forwarded(&shared, number, session, serial, &line)?;
                self.coverage.forwards += 1;
            } else if text.contains("notifications/cancelled") {
                // To one that has ended, nothing goes.
                if !self.lives[number].session.phase().is_upstream_ended() {
                    self.oracle.cancel_passes(number, &text)?;
                }
            } else {
                let expected = self.lives[number].passing_up.pop_front();
                if expected.as_ref() != Some(&line) {
                    return Err(format!("I9 {text} passes out of order or changed"));
                }
            }
            let life = &mut self.lives[number];
            let start = life.to_upstream.pushed;
            life.to_upstream.push(line, call, None);
            if let Some(key) = key {
                let end = life.to_upstream.pushed;
                life.session.pushed_up(&key, start..end);
            }
        }
        Ok(())
    }

    pub(super) fn pump_down(&mut self, number: usize) -> Check {
        let now = self.now;
        while let Some(outgoing) = self.lives[number].session.to_client(now) {
            let (line, tickets) = (outgoing.line, outgoing.tickets);
            let text = String::from_utf8_lossy(&line).into_owned();
            tell!(self, "p{number} -> client {}", text.trim_end());
            self.note(&line);
            let mut delivers = None;
            let id = between(&text, "\"id\":", ",");
            let mut serial = id.and_then(|id| self.oracle.answered_call(number, id, &text));
            if text.contains("its id is still in flight") {
                self.coverage.duplicates_refused += 1;
                let id = id.ok_or("no id")?;
                serial = Some(self.oracle.duplicate_refused(number, id)?);
            } else if let Some(serial) = serial {
                let is_faulted = self.lives[number].is_faulted;
                let shared = Rc::clone(&self.store);
                let shared = shared.borrow();
                delivers = self.oracle.replied(&shared, serial, &text, is_faulted)?;
                self.coverage.replies += 1;
            } else if let Some(at) = self.poll_without_upstream(number, &text) {
                self.lives[number].polls.remove(at);
            } else {
                let passing = &mut self.lives[number].passing_down;
                let expected = passing.pop_front();
                if expected.as_ref() != Some(&line) {
                    return Err(format!("I9 {text} passes out of order or changed"));
                }
            }
            let life = &mut self.lives[number];
            life.to_client.push(line, serial, delivers);
            for ticket in tickets {
                let end = life.to_client.pushed;
                life.session.pushed_down(ticket, end);
            }
        }
        Ok(())
    }

    /// Which request about a task it is that the proxy answers, since its upstream is gone.
    fn poll_without_upstream(&self, number: usize, text: &str) -> Option<usize> {
        let life = &self.lives[number];
        if !text.contains("\"message\":\"checkpoint: ") || !life.session.phase().is_upstream_ended()
        {
            return None;
        }
        let id = between(text, "\"id\":", ",")?;
        life.polls.iter().position(|poll| poll == id)
    }

    pub(super) fn tick(&mut self, number: usize) -> Check {
        let now = self.now;
        let life = &mut self.lives[number];
        let upstream_seen_ended = life.session.phase().is_upstream_ended();
        if !life.upstream.is_alive && life.upstream.output.is_empty() && !upstream_seen_ended {
            let end = UpstreamEnd {
                code: Some(1),
                ..UpstreamEnd::default()
            };
            let written = life.to_upstream.written;
            life.session.upstream_ended(end, written, now);
            life.passing_up.clear();
            life.session.input_closed();
            life.is_input_closed = true;
            tell!(self, "p{number} sees its upstream's end");
        }
        let life = &mut self.lives[number];
        life.session.tick(now);
        if life.session.wants_input_closed(now)
            && (life.to_upstream.is_flushed()
                || life.session.phase().is_urgent()
                || life.session.is_past_drain(now))
        {
            life.session.input_closed();
            life.is_input_closed = true;
            life.upstream.input_closed = true;
            tell!(self, "p{number} closes its upstream's input");
        }
        if self.lives[number].is_input_closed
            && self.lives[number].upstream.is_alive
            && (self.is_calm || self.random.is_quiet() || self.random.chance(150))
        {
            // The ladder's last step.
            self.end_upstream(number, "is killed");
        }
        self.finish(number)
    }

    pub(super) fn finish(&mut self, number: usize) -> Check {
        let life = &mut self.lives[number];
        let is_ready = life.session.phase().is_upstream_ended()
            && !life.upstream.is_alive
            && life.session.is_idle()
            && (life.to_client.is_flushed() || life.client_broken);
        if is_ready && !life.is_finishing {
            life.is_finishing = true;
            if !life.session.phase().is_client_gone() {
                self.lives[number].is_finishing = false;
                while !self.lives[number].inbox.is_empty() {
                    self.read_client(number)?;
                }
            }
            let life = &mut self.lives[number];
            life.is_finishing = true;
            life.session.end_waits();
            life.session.close_session();
            return Ok(());
        }
        let life = &mut self.lives[number];
        if life.is_finishing && !life.session.has_calls() && matches!(life.batch, Batch::None) {
            self.pump_down(number)?;
            let life = &mut self.lives[number];
            if !(life.to_client.is_flushed() || life.client_broken) {
                return Ok(());
            }
            life.is_alive = false;
            life.is_over = true;
            let (faulted, gone) = (life.is_faulted, life.client_broken);
            self.store.borrow_mut().lives[number] = Alive::default();
            self.coverage.ends += 1;
            tell!(self, "p{number} is over");
            let shared = Rc::clone(&self.store);
            let shared = shared.borrow();
            self.oracle.ended(&shared, number, faulted, gone)?;
            if self.is_calm && !self.lives[number].guard.journal().has_failed() {
                self.oracle.unwritten_is_known(&shared, number)?;
            }
            let agent = self.lives[number].agent;
            if self.agents[agent].life == Some(number) {
                self.detach(agent);
            }
        }
        Ok(())
    }
}
