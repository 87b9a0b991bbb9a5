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
            5 if !self.lives[number].upstream.jobs.is_empty() => self.job_goes_on(number),
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
            // A proxy that was fenced cancels by the id alone.
            let id = between(text, "\"requestId\":", ",");
            let tasks = &mut self.lives[number].upstream.tasks;
            if let Some(task) = tasks.iter_mut().find(|task| {
                let is_it = serial.map_or(Some(&*task.id) == id, |serial| task.serial == serial);
                is_it && task.answers == 0
            }) {
                task.is_cancelled = true;
            }
            return;
        }
        if text.contains("\"method\":\"tasks/") {
            self.poll_taken(number, text);
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
        } else if self.random.chance(self.plan.rounds)
            && (!(text.contains("\"requestState\"") || text.contains("\"inputResponses\""))
                || !self.is_calm && self.random.chance(300))
        {
            Habit::Ask
        } else if self.random.chance(self.plan.tasks) {
            Habit::Accept
        } else {
            self.plan.habit
        };
        let habit = match habit {
            Habit::Twice if self.plan.answers_once => Habit::Answer,
            Habit::Ask if self.random.is_quiet() && text.contains("\"requestState\"") => {
                Habit::Answer
            }
            habit => habit,
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
        let skips = matches!(
            habit,
            Habit::ErrorBefore | Habit::NotExecuted | Habit::Accept
        );
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
        if habit == Habit::Accept {
            self.lives[number].upstream.tasks.remove(at);
            self.job_begins(number, serial, &id);
            return Ok(());
        }
        let kind = match habit {
            Habit::Ask => Kind::Question,
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
        let mut answer = Answer::new(serial, String::new(), kind);
        answer.body = match kind {
            Kind::Result | Kind::Operator => {
                answer.is_error = self.plan.habit == Habit::ToolError || self.random.chance(200);
                format!(
                    "{{{}\"content\":[{{\"type\":\"text\",\"text\":\"#{token}#\"}}],\"isError\":{}}}",
                    self.result_type(),
                    answer.is_error
                )
            }
            Kind::Question => {
                answer.has_state = !self.random.chance(300);
                answer.has_inputs = !answer.has_state || self.random.chance(700);
                let mut body = format!("{{\"resultType\":\"input_required\",\"x\":\"#{token}#\"");
                if answer.has_inputs {
                    body.push_str(",\"inputRequests\":{\"q\":{\"method\":\"roots/list\"}}");
                }
                if answer.has_state {
                    body.push_str(&format!(",\"requestState\":\"s{token}\""));
                }
                body + "}"
            }
            Kind::Error => format!("{{\"code\":-32603,\"message\":\"#{token}#\"}}"),
            Kind::NotExecuted => format!("{{\"code\":-32042,\"message\":\"#{token}#\"}}"),
            Kind::Closed => format!("{{\"code\":-32000,\"message\":\"#{token}#\"}}"),
            Kind::Handle => return,
        };
        self.gives(number, id, answer);
    }

    pub(super) fn gives(&mut self, number: usize, id: &str, answer: Answer) {
        let member = match answer.kind {
            Kind::Result | Kind::Operator | Kind::Question | Kind::Handle => "result",
            Kind::Error | Kind::NotExecuted | Kind::Closed => "error",
        };
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"{member}\":{}}}\n",
            answer.body
        );
        self.coverage.answered(answer.kind);
        self.oracle.answers.push(answer);
        if self.lives[number].is_alive {
            self.lives[number]
                .upstream
                .output
                .push_back(line.into_bytes());
        }
    }
}
