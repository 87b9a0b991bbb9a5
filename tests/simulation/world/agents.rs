//! What agents do.

use super::*;

impl World<'_> {
    pub(super) fn agent_acts(&mut self, agent: usize) -> Check {
        let Some(life) = self.agents[agent].life else {
            if self.agents[agent].lives < LIVES_MAX {
                self.start(agent);
            }
            return Ok(());
        };
        if self.random.chance(self.plan.agent_crash) {
            self.agent_crashes(agent);
            return Ok(());
        }
        if self.random.chance(self.plan.end_of_input) {
            self.coverage.ends_of_input += 1;
            tell!(self, "a{agent} closes the input of p{life}");
            self.lives[life].client_eof = true;
            return Ok(());
        }
        if self.lives[life].client_eof {
            return Ok(());
        }
        if self.random.chance(self.plan.cancel * 3) && !self.agents[agent].open.is_empty() {
            return self.cancel(agent, life);
        }
        if self.random.chance(self.plan.tasks) && self.poll(agent, life) {
            return Ok(());
        }
        if self.random.chance(200) {
            let number = self.agents[agent].pings;
            self.agents[agent].pings += 1;
            let line = format!(
                "{{\"method\":\"notifications/x\",\"jsonrpc\":\"2.0\",\"params\":{{\"p\":\"a{agent}.{number}\"}}}}\n"
            );
            self.lives[life].inbox.push_back(line.into_bytes());
            return Ok(());
        }
        self.send(agent, life);
        Ok(())
    }

    pub(super) fn agent_crashes(&mut self, agent: usize) {
        let Some(life) = self.agents[agent].life else {
            return;
        };
        self.coverage.agent_crashes += 1;
        tell!(self, "a{agent} crashes");
        self.lives[life].client_broken = true;
        self.lives[life].client_eof = true;
        self.detach(agent);
    }

    pub(super) fn start(&mut self, agent: usize) {
        let life = self.lives.len();
        self.store.borrow_mut().lives.push(Alive {
            proxy: true,
            group: true,
        });
        let around = Around {
            store: Rc::clone(&self.store),
            life,
            drawn: 0,
        };
        let options = self.plan.guard_options(agent);
        if options.defers {
            self.oracle.defers(life);
        }
        let guard = Guard::new(
            SimJournal::new(&self.store),
            around,
            options,
            SessionRow {
                // Whoever asks whether its upstream lives has something to ask for.
                upstream_pgid: u32::try_from(life + 1).ok(),
                ..SessionRow::default()
            },
        );
        self.lives.push(Life {
            agent,
            session: Session::new(self.plan.options()),
            guard,
            is_alive: true,
            is_over: false,
            stalled_until: 0,
            is_faulted: false,
            inbox: VecDeque::new(),
            client_eof: false,
            eof_told: false,
            client_broken: false,
            to_upstream: Pipe::default(),
            to_client: Pipe::default(),
            upstream: Upstream {
                is_alive: true,
                ..Upstream::default()
            },
            batch: Batch::None,
            tries_since: None,
            is_input_closed: false,
            is_finishing: false,
            passing_up: VecDeque::new(),
            passing_down: VecDeque::new(),
            polls: Vec::new(),
            cancels_new: Vec::new(),
            cancels_taken: Vec::new(),
        });
        self.coverage.lives += 1;
        tell!(self, "a{agent} starts p{life}");
        let forgets = self.random.chance(500);
        let resumes = self.plan.resumes;
        let agent = &mut self.agents[agent];
        if forgets {
            agent.rounds.clear();
        }
        agent.life = Some(life);
        agent.lives += 1;
        agent.open.clear();
        agent.todo = (0..self.plan.calls)
            .filter(|call| agent.mode != Mode::Bare || resumes || !agent.done[*call])
            .collect();
    }

    pub(super) fn detach(&mut self, agent: usize) {
        self.agents[agent].life = None;
        self.agents[agent].open.clear();
    }

    pub(super) fn send(&mut self, agent: usize, life: usize) {
        if self.agents[agent].open.len() >= self.plan.pipeline {
            return;
        }
        if let Some(follow_up) = self.agents[agent].rounds.pop_front() {
            self.send_call(agent, life, follow_up.call, Some(follow_up));
            return;
        }
        // Some ask twice while the first still runs.
        let again = (!self.is_calm && self.random.chance(60))
            .then(|| self.agents[agent].open.first().copied())
            .flatten();
        let next = match again {
            Some(open) => Some(self.oracle.requests[open].call),
            None => self.agents[agent].todo.pop_front(),
        };
        let Some(call) = next else { return };
        if self.random.chance(self.plan.changed) && !self.is_calm {
            self.coverage.changed_calls += 1;
            let versions = if self.plan.promise.covers { 4 } else { 2 };
            let version = self.random.below(versions);
            self.agents[agent].versions[call] = version;
        }
        self.send_call(agent, life, call, None);
    }

    fn send_call(&mut self, agent: usize, life: usize, call: usize, follow_up: Option<FollowUp>) {
        let names_a_place = self.agents[agent].mode != Mode::Bare;
        let duplicate =
            (!self.is_calm && names_a_place && self.random.chance(self.plan.duplicate_id))
                .then(|| self.agents[agent].open.first().copied())
                .flatten()
                .filter(|open| {
                    let id = self.oracle.requests[*open].id.clone();
                    self.oracle.by_id[&(life, id)].len() == 1
                });
        let id = match duplicate {
            Some(open) => self.oracle.requests[open].id.clone(),
            None => {
                let next = self.agents[agent].next_id;
                self.agents[agent].next_id += 1;
                if next.is_multiple_of(3) {
                    format!("\"x{next}\"")
                } else {
                    next.to_string()
                }
            }
        };
        let serial = self.oracle.requests.len();
        let Agent {
            mode,
            workflow,
            versions,
            ..
        } = &self.agents[agent];
        let (mode, workflow) = (*mode, *workflow);
        // Two of the calls of an agent that names none are equal.
        let shown = if mode == Mode::Bare { call / 2 } else { call };
        let version = versions[call];
        // What a key covers, and what it does not.
        let first = if self.plan.promise.covers {
            let (v, w) = (version % 2, version / 2);
            format!("{{\"n\":{shown},\"v\":{v},\"w\":{w}}}")
        } else {
            format!("{{\"n\":{shown},\"v\":{version}}}")
        };
        let arguments = follow_up
            .as_ref()
            .map_or(first, |round| round.arguments.clone());
        let seq = matches!(mode, Mode::Seq | Mode::Both).then_some(call as u64 + 1);
        let key = matches!(mode, Mode::Key | Mode::Both).then(|| format!("k{call}"));
        let mut meta =
            format!("\"checkpoint_call_id\":\"c{serial}\",\"checkpoint_workflow\":\"w{workflow}\"");
        if let Some(seq) = seq {
            meta.push_str(&format!(",\"checkpoint_seq\":{seq}"));
        }
        if let Some(key) = &key {
            meta.push_str(&format!(",\"checkpoint_key\":\"{key}\""));
        }
        if self.plan.is_stateless {
            meta.push_str(",\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\"");
            // What the upstream's questions ask for; no other client is asked them again.
            meta.push_str(",\"io.modelcontextprotocol/clientCapabilities\":{\"roots\":{}}");
        }
        // The policy makes one of those that bring none.
        let key = key.or_else(|| {
            self.plan
                .promise
                .derives_key
                .then(|| format!("k{{{shown}}}"))
        });
        let (more, round) = follow_up.map_or_else(Default::default, |round| self.round(&round));
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"t\",\"arguments\":{arguments},{more}\"_meta\":{{{meta}}}}}}}\n"
        );
        let scope = self.plan.scope(agent, workflow);
        tell!(
            self,
            "a{agent} calls c{serial} id {id} {mode:?} {arguments} in p{life}"
        );
        self.oracle.requests.push(Request {
            life,
            id: id.clone(),
            workflow,
            call,
            arguments,
            seq,
            key,
            scope,
            round,
            leg: None,
            line: line.clone().into_bytes(),
            is_read: false,
            is_cancelled: false,
            cancelled_running: false,
            cancel_seen: false,
            cancel_is_committed: false,
            replies: 0,
            got_outcome: false,
            is_forwarded: false,
            said_not_started: false,
            reached: false,
            ever_reached: false,
            effects: 0,
            is_unwritten: false,
            is_again: false,
            grant: None,
            regrant: None,
            grants: Vec::new(),
            answer: None,
            answered_cancelled: false,
            answered_closed: false,
        });
        self.oracle
            .by_id
            .entry((life, id))
            .or_default()
            .push(serial);
        self.agents[agent].open.push(serial);
        if duplicate.is_some() {
            self.coverage.duplicate_ids += 1;
        }
        self.lives[life].inbox.push_back(line.into_bytes());
    }

    pub(super) fn cancel(&mut self, agent: usize, life: usize) -> Check {
        let at = self.random.below(self.agents[agent].open.len());
        let serial = self.agents[agent].open[at];
        let id = self.oracle.requests[serial].id.clone();
        if self.oracle.by_id[&(life, id.clone())].len() > 1 {
            // Whom a cancellation of an id that stands for two calls means, nobody can say.
            return Ok(());
        }
        self.agents[agent].open.remove(at);
        tell!(self, "a{agent} cancels c{serial}");
        self.coverage.cancels += 1;
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{{\"requestId\":{id},\"c\":\"c{serial}\"}}}}\n"
        );
        self.lives[life].inbox.push_back(line.into_bytes());
        if self.random.chance(600) {
            // It gave up, and asks again.
            let call = self.oracle.requests[serial].call;
            self.agents[agent].todo.push_front(call);
        }
        Ok(())
    }

    /// A line arrives at the agent.
    pub(super) fn agent_reads(&mut self, life: usize, line: &str, serial: Option<usize>) {
        let agent = self.lives[life].agent;
        if self.agents[agent].life != Some(life) {
            return;
        }
        let Some(serial) = serial else { return };
        let Some(at) = self.agents[agent]
            .open
            .iter()
            .position(|open| *open == serial)
        else {
            return;
        };
        self.agents[agent].open.remove(at);
        let is_outcome = line.contains('#');
        let call = self.oracle.requests[serial].call;
        if let Some(token) = token_of(line) {
            self.answered_with(agent, serial, token);
        }
        if is_outcome {
            self.agents[agent].done[call] = true;
        } else {
            self.coverage.refusals += 1;
        }
        let asks_again = if is_outcome { 60 } else { 120 };
        if !self.is_calm && self.random.chance(asks_again) {
            self.agents[agent].todo.push_back(call);
        }
    }
}
