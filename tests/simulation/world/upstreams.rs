//! What upstreams do, well or badly.

use super::*;

impl World<'_> {
    pub(super) fn upstream_acts(&mut self, number: usize) -> Check {
        if !self.lives[number].upstream.is_alive {
            return Ok(());
        }
        if !self.is_calm && self.random.chance(self.plan.upstream_death) {
            self.coverage.upstream_deaths += 1;
            self.end_upstream(number, "dies");
            return Ok(());
        }
        let tasks = self.lives[number].upstream.tasks.len();
        match self.random.below(10) {
            0..=3 => self.upstream_reads(number),
            4 if !self.is_calm => {
                let upstream = &mut self.lives[number].upstream;
                let line = format!(
                    "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{{\"data\":\"u{number}.{}\"}}}}\n",
                    upstream.notices
                );
                upstream.notices += 1;
                upstream.output.push_back(line.into_bytes());
                Ok(())
            }
            _ if tasks > 0 => {
                let task = self.random.below(tasks);
                self.task_goes_on(number, task)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn upstream_reads(&mut self, number: usize) -> Check {
        let life = &mut self.lives[number];
        if let Some(piped) = life.to_upstream.take() {
            let text = String::from_utf8_lossy(&piped.line).into_owned();
            self.upstream_takes(number, &text);
            return Ok(());
        }
        if !life.upstream.input_closed {
            return Ok(());
        }
        // An unterminated line is run by some.
        if let Some(rest) = life.to_upstream.lines.pop_front()
            && rest.end == life.to_upstream.written + 1
            && self.random.chance(500)
        {
            self.coverage.unterminated += 1;
            let text = String::from_utf8_lossy(&rest.line).into_owned();
            self.upstream_takes(number, &text);
            return Ok(());
        }
        // End of input: many abort what runs, with an error, and end.
        if self.random.chance(300) {
            let tasks = std::mem::take(&mut self.lives[number].upstream.tasks);
            for task in tasks {
                if task.answers == 0 && self.random.chance(500) {
                    self.answer(number, task.serial, &task.id, Kind::Closed);
                }
            }
            self.end_upstream(number, "ends at its end of input");
        }
        Ok(())
    }

    pub(super) fn upstream_takes(&mut self, number: usize, text: &str) {
        if text.contains("notifications/cancelled") {
            let serial: Option<usize> =
                between(text, "\"c\":\"c", "\"").and_then(|text| text.parse().ok());
            let tasks = &mut self.lives[number].upstream.tasks;
            if let Some(task) = tasks
                .iter_mut()
                .find(|task| Some(task.serial) == serial && task.answers == 0)
            {
                task.is_cancelled = true;
            }
            return;
        }
        if !text.contains("\"tools/call\"") {
            return;
        }
        let Some(serial) = call_serial(text) else {
            return;
        };
        let id = between(text, "\"id\":", ",").unwrap_or("").to_owned();
        let habit = if !self.is_calm && self.random.chance(self.plan.misbehaviour) {
            self.random.pick(&[
                Habit::ToolError,
                Habit::ErrorAfter,
                Habit::ErrorBefore,
                Habit::NotExecuted,
                Habit::Twice,
                Habit::Twice,
                Habit::Never,
                Habit::DieBefore,
                Habit::DieAfter,
            ])
        } else {
            Habit::Answer
        };
        tell!(self, "p{number}'s upstream takes c{serial} ({habit:?})");
        self.lives[number].upstream.tasks.push(Task {
            serial,
            id,
            habit,
            is_done: false,
            answers: 0,
            is_cancelled: false,
        });
    }

    pub(super) fn task_goes_on(&mut self, number: usize, at: usize) -> Check {
        let task = &mut self.lives[number].upstream.tasks[at];
        let (serial, id, habit) = (task.serial, task.id.clone(), task.habit);
        if task.is_cancelled && task.answers == 0 && self.random.chance(400) {
            // Stopped, and nobody says where.
            let is_silent = self.random.chance(300);
            self.lives[number].upstream.tasks.remove(at);
            if !is_silent {
                self.coverage.stopped_by_cancel += 1;
                self.answer(number, serial, &id, Kind::Error);
            }
            return Ok(());
        }
        let skips = matches!(habit, Habit::ErrorBefore | Habit::NotExecuted);
        if !task.is_done && !skips {
            if habit == Habit::DieBefore {
                self.end_upstream(number, "dies before the effect");
                return Ok(());
            }
            task.is_done = true;
            tell!(self, "EFFECT of c{serial} in p{number}'s upstream");
            self.oracle.effect(serial)?;
            if !self.lives[number].is_alive {
                self.coverage.orphan_effects += 1;
            }
            return Ok(());
        }
        match habit {
            Habit::DieAfter => {
                self.end_upstream(number, "dies after the effect");
                return Ok(());
            }
            Habit::Never => {
                if self.is_calm && self.random.chance(30) {
                    self.end_upstream(number, "gives up");
                }
                return Ok(());
            }
            _ => {}
        }
        let kind = match habit {
            Habit::ErrorAfter | Habit::ErrorBefore => Kind::Error,
            Habit::NotExecuted => Kind::NotExecuted,
            _ => Kind::Result,
        };
        let task = &mut self.lives[number].upstream.tasks[at];
        task.answers += 1;
        let is_over = habit != Habit::Twice || task.answers > 1;
        if task.answers > 1 {
            self.coverage.second_answers += 1;
        }
        if is_over {
            self.lives[number].upstream.tasks.remove(at);
        }
        self.answer(number, serial, &id, kind);
        Ok(())
    }

    pub(super) fn answer(&mut self, number: usize, serial: usize, id: &str, kind: Kind) {
        let token = self.oracle.answers.len();
        let (member, body) = match kind {
            Kind::Result | Kind::Operator => {
                let is_error = self.random.chance(200);
                let body = format!(
                    "{{\"content\":[{{\"type\":\"text\",\"text\":\"#{token}#\"}}],\"isError\":{is_error}}}"
                );
                ("result", body)
            }
            Kind::Error => (
                "error",
                format!("{{\"code\":-32603,\"message\":\"#{token}#\"}}"),
            ),
            Kind::NotExecuted => (
                "error",
                format!("{{\"code\":-32042,\"message\":\"#{token}#\"}}"),
            ),
            Kind::Closed => (
                "error",
                format!("{{\"code\":-32000,\"message\":\"#{token}#\"}}"),
            ),
        };
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"{member}\":{body}}}\n");
        self.oracle.answers.push(Answer { serial, body, kind });
        self.coverage.answered(kind);
        if self.lives[number].is_alive {
            self.lives[number]
                .upstream
                .output
                .push_back(line.into_bytes());
        }
    }
}
