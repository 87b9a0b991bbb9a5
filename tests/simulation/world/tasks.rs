//! Rounds and tasks: what agents and upstreams make of an answer that is no outcome.

use super::*;

const NEVER_GIVEN: usize = 999_999;

impl World<'_> {
    /// What a further round carries: members of the call, and what the oracle knows of it.
    pub(super) fn round(&mut self, follow_up: &FollowUp) -> (String, Option<Option<usize>>) {
        let question = &self.oracle.answers[follow_up.question];
        let mut more = String::new();
        if question.has_inputs {
            more.push_str("\"inputResponses\":{\"q\":{\"action\":\"accept\"}},");
        }
        let mut state = question.has_state.then_some(follow_up.question);
        // Another question's, or one that was never given.
        let mut others: Vec<usize> = (0..self.oracle.answers.len())
            .filter(|token| self.oracle.answers[*token].has_state)
            .collect();
        others.push(NEVER_GIVEN);
        if self.random.chance(self.plan.foreign) {
            let other = others[self.random.below(others.len())];
            if state != Some(other) {
                self.coverage.foreign_states += 1;
            }
            state = Some(other);
        }
        if let Some(token) = state {
            more.push_str(&format!("\"requestState\":\"s{token}\","));
        }
        (more, Some(state))
    }

    /// An agent has an answer: a question is answered, a task is remembered.
    pub(super) fn answered_with(&mut self, agent: usize, serial: usize, token: usize) {
        match self.oracle.answers[token].kind {
            Kind::Question => {
                let request = &self.oracle.requests[serial];
                let follow_up = FollowUp {
                    call: request.call,
                    arguments: request.arguments.clone(),
                    question: token,
                };
                self.coverage.questions += 1;
                self.agents[agent].rounds.push_back(follow_up);
            }
            Kind::Handle => {
                if let Some(id) = &self.oracle.answers[token].task {
                    self.agents[agent].handles.push(id.clone());
                }
            }
            _ => {}
        }
    }

    /// An agent asks for a task. Returns whether it knows of one.
    pub(super) fn poll(&mut self, agent: usize, life: usize) -> bool {
        let handles = self.agents[agent].handles.len();
        if handles == 0 {
            return false;
        }
        let at = self.random.below(handles);
        let task = self.agents[agent].handles[at].clone();
        let number = self.agents[agent].pings;
        self.agents[agent].pings += 1;
        let wants_result = !self.plan.is_stateless && self.random.chance(600);
        let method = if wants_result { "result" } else { "get" };
        let id = format!("\"poll{number}\"");
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tasks/{method}\",\"params\":{{\"taskId\":\"{task}\"}}}}\n"
        );
        self.coverage.polls += 1;
        self.lives[life].polls.push(id);
        self.lives[life].inbox.push_back(line.into_bytes());
        true
    }

    /// An upstream takes a request about a task.
    pub(super) fn poll_taken(&mut self, number: usize, text: &str) {
        let id = between(text, "\"id\":", ",").unwrap_or("").to_owned();
        let task = between(text, "\"taskId\":\"", "\"")
            .unwrap_or("")
            .to_owned();
        if text.contains("tasks/result") {
            self.lives[number].upstream.waiting.push((id, task));
            self.results_go_out(number);
            return;
        }
        let upstream = &self.lives[number].upstream;
        let member = match upstream.jobs.iter().find(|job| job.id == task) {
            Some(job) => format!("\"result\":{}", self.task_state(job)),
            None => "\"error\":{\"code\":-32602,\"message\":\"no such task\"}".to_owned(),
        };
        self.say(
            number,
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{member}}}\n"),
        );
    }

    /// Requests for results are answered when there is one.
    fn results_go_out(&mut self, number: usize) {
        let upstream = &mut self.lives[number].upstream;
        let waiting = std::mem::take(&mut upstream.waiting);
        for (id, task) in waiting {
            let upstream = &self.lives[number].upstream;
            let job = upstream.jobs.iter().find(|job| job.id == task);
            let member = match job.map(|job| job.end) {
                None => "\"error\":{\"code\":-32602,\"message\":\"no such task\"}".to_owned(),
                Some(Some(end)) => {
                    let answer = &self.oracle.answers[end];
                    let member = if answer.kind == Kind::Error {
                        "error"
                    } else {
                        "result"
                    };
                    format!("\"{member}\":{}", answer.body)
                }
                Some(None) => {
                    let waiting = &mut self.lives[number].upstream.waiting;
                    waiting.push((id, task));
                    continue;
                }
            };
            self.say(
                number,
                format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{member}}}\n"),
            );
        }
    }

    /// A task as `tasks/get` or a notice tells it.
    fn task_state(&self, job: &Job) -> String {
        let created = job.handle;
        let end = job.end.map(|end| &self.oracle.answers[end]);
        let status = match end {
            None => "working",
            Some(end) if end.kind == Kind::Error => "failed",
            Some(_) => "completed",
        };
        let mut text = String::from("{");
        if self.plan.is_stateless {
            text.push_str("\"resultType\":\"complete\",");
        }
        text.push_str(&format!(
            "\"taskId\":\"{}\",\"createdAt\":\"t{created}\",\"status\":\"{status}\"",
            job.id
        ));
        // 2025-11-25 has the result in `tasks/result` only.
        if let Some(end) = end.filter(|_| self.plan.is_stateless) {
            let member = if end.kind == Kind::Error {
                "error"
            } else {
                "result"
            };
            text.push_str(&format!(",\"{member}\":{}", end.body));
        }
        text.push('}');
        text
    }

    /// A task begins.
    pub(super) fn job_begins(&mut self, number: usize, serial: usize, id: &str) {
        let handle = self.oracle.answers.len();
        let job = format!("k{}", self.lives[number].upstream.jobs.len() + 1);
        let head =
            format!("\"taskId\":\"{job}\",\"createdAt\":\"t{handle}\",\"status\":\"working\"");
        let body = if self.plan.is_stateless {
            format!("{{\"resultType\":\"task\",{head},\"x\":\"#{handle}#\"}}")
        } else {
            format!("{{\"task\":{{{head}}},\"x\":\"#{handle}#\"}}")
        };
        let mut answer = Answer::new(serial, body, Kind::Handle);
        answer.task = Some(job.clone());
        self.lives[number].upstream.jobs.push(Job {
            id: job,
            serial,
            handle,
            is_done: false,
            end: None,
        });
        self.coverage.tasks += 1;
        self.gives(number, id, answer);
    }

    /// A task goes on: its effect, then its end.
    pub(super) fn job_goes_on(&mut self, number: usize) -> Check {
        let jobs = &mut self.lives[number].upstream.jobs;
        let Some(job) = jobs.iter_mut().find(|job| job.end.is_none()) else {
            return Ok(());
        };
        let (serial, handle) = (job.serial, job.handle);
        if !job.is_done {
            job.is_done = true;
            tell!(
                self,
                "EFFECT of the task of c{serial} in p{number}'s upstream"
            );
            return self.oracle.effect(serial);
        }
        let token = self.oracle.answers.len();
        let fails = self.random.chance(250);
        let answer = if fails {
            Answer::new(
                serial,
                format!("{{\"code\":-32603,\"message\":\"#{token}#\"}}"),
                Kind::Error,
            )
        } else {
            let kind = self.result_type();
            let body =
                format!("{{{kind}\"content\":[{{\"type\":\"text\",\"text\":\"#{token}#\"}}]}}");
            Answer::new(serial, body, Kind::Result)
        };
        self.oracle.answers.push(Answer {
            ends: Some(handle),
            ..answer
        });
        let jobs = &mut self.lives[number].upstream.jobs;
        if let Some(job) = jobs.iter_mut().find(|job| job.handle == handle) {
            job.end = Some(token);
        }
        tell!(self, "the task of c{serial} ends with #{token}#");
        self.results_go_out(number);
        if self.random.chance(400) {
            let upstream = &self.lives[number].upstream;
            let job = upstream.jobs.iter().find(|job| job.handle == handle);
            let state = job.map(|job| self.task_state(job)).unwrap_or_default();
            let name = if self.plan.is_stateless {
                "notifications/tasks"
            } else {
                "notifications/tasks/status"
            };
            self.say(
                number,
                format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{name}\",\"params\":{state}}}\n"),
            );
        }
        Ok(())
    }

    /// The result's own word for what it is, which the stateless revision needs.
    pub(super) fn result_type(&self) -> &'static str {
        if self.plan.is_stateless {
            "\"resultType\":\"complete\","
        } else {
            ""
        }
    }

    fn say(&mut self, number: usize, line: String) {
        if self.lives[number].is_alive {
            let output = &mut self.lives[number].upstream.output;
            output.push_back(line.into_bytes());
        }
    }
}
