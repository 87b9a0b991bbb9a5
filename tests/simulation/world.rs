//! The world: agents, proxies, upstreams, an operator and clocks, one event at a time.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use checkpoint::guard::{AdmissionVerdict, Done, Guard, Op, Options as GuardOptions};
use checkpoint::journal::memory::MemoryJournal;
use checkpoint::journal::{Journal as _, JournalError, Outcome, Session as SessionRow};
use checkpoint::journal::{Transaction as _, Write};
use checkpoint::proxy::session::{Session, UpstreamEnd};
use checkpoint::rules::entry::{Provenance, Status, outcome_digest};
use checkpoint::rules::ids::{Micros, WorkflowId};
use checkpoint::rules::lifecycle;

use crate::coverage::Coverage;
use crate::life::{Batch, Habit, Life, Pipe, Task, Upstream};
use crate::oracle::{self, Answer, Check, Kind, Oracle, Request, between};
use crate::plan::{Mode, Plan};
use crate::random::Random;
use crate::store::{Alive, Around, Book, Fault, Shared, SimJournal, Store};

/// How many lives an agent may have before it is left alone.
const LIVES_MAX: usize = 6;

pub(crate) struct Agent {
    mode: Mode,
    workflow: usize,
    life: Option<usize>,
    lives: usize,
    /// Calls that are still to be made in this life.
    todo: VecDeque<usize>,
    /// Calls that were answered with an outcome, ever.
    done: Vec<bool>,
    /// Which arguments each call has.
    versions: Vec<usize>,
    open: Vec<usize>,
    next_id: u64,
    pings: u64,
}

pub(crate) struct World<'a> {
    pub(crate) plan: Plan,
    random: Random,
    now: Instant,
    wall: i64,
    step: usize,
    is_calm: bool,
    store: Store,
    lives: Vec<Life>,
    agents: Vec<Agent>,
    oracle: Oracle,
    coverage: &'a mut Coverage,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) digest: u64,
}

macro_rules! tell {
    ($world:expr, $($text:tt)*) => {
        if $world.trace.is_some() {
            let text = format!($($text)*);
            let step = $world.step;
            if let Some(trace) = &mut $world.trace {
                trace.push(format!("{step:5} {text}"));
            }
        }
    };
}

impl<'a> World<'a> {
    pub(crate) fn new(plan: Plan, book: Book, coverage: &'a mut Coverage, traces: bool) -> Self {
        let shared = Shared {
            book: Some(book),
            durable: None,
            fault: Fault::None,
            lives: Vec::new(),
            owners: HashMap::new(),
            has_room: true,
            mark: 0,
        };
        let agents = plan
            .modes
            .iter()
            .enumerate()
            .map(|(number, mode)| Agent {
                mode: *mode,
                workflow: if plan.shares_workflow { 0 } else { number },
                life: None,
                lives: 0,
                todo: VecDeque::new(),
                done: vec![false; plan.calls],
                versions: vec![0; plan.calls],
                open: Vec::new(),
                next_id: 1,
                pings: 0,
            })
            .collect();
        Self {
            random: Random::new(plan.seed ^ 0x5EED),
            now: Instant::now(),
            wall: 1_800_000_000_000_000,
            step: 0,
            is_calm: false,
            store: Rc::new(RefCell::new(shared)),
            lives: Vec::new(),
            agents,
            oracle: Oracle::default(),
            coverage,
            trace: traces.then(Vec::new),
            digest: 0xCBF2_9CE4_8422_2325,
            plan,
        }
    }

    pub(crate) fn memory_book() -> Book {
        Book::Memory(MemoryJournal::new([7; 16], WorkflowId("own".into())))
    }

    /// Runs the whole world.
    pub(crate) fn run(&mut self) -> Check {
        for step in 0..self.plan.steps {
            self.step = step;
            self.pass_time();
            self.something_happens()?;
        }
        self.is_calm = true;
        self.calm_down()?;
        // Everything that was asked for by name is asked for once more.
        for agent in 0..self.agents.len() {
            self.agents[agent].lives = 0;
            if self.agents[agent].mode != Mode::Bare {
                self.agents[agent].todo = (0..self.plan.calls).collect();
            }
        }
        self.calm_down()?;
        self.coverage.effects += self.oracle.effects;
        self.coverage.seeds += 1;
        Ok(())
    }

    fn note(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }

    // ---- time ----

    fn advance(&mut self, by: Duration) {
        self.now += by;
        self.wall += i64::try_from(by.as_micros()).unwrap();
    }

    fn pass_time(&mut self) {
        let by = match self.random.below(100) {
            0..90 => Duration::from_micros(self.random.below(3000) as u64),
            90..97 => Duration::from_millis(self.random.below(200) as u64),
            _ => Duration::from_millis(self.random.below(3000) as u64),
        };
        self.advance(by);
        if self.random.chance(self.plan.long_wait) {
            self.coverage.long_waits += 1;
            let by = self.random.pick(&[6, 31, 1000]);
            self.advance(Duration::from_secs(by));
        }
        if self.random.chance(self.plan.clock_jump) {
            self.coverage.clock_jumps += 1;
            let hours = self.random.pick(&[-24 * 365, -1, 1, 24 * 365]);
            self.wall += hours * 3_600_000_000;
        }
    }

    // ---- what may happen ----

    fn something_happens(&mut self) -> Check {
        let agents = self.agents.len();
        if self.random.chance(self.plan.power_cut) {
            return self.power_cut();
        }
        if self.random.chance(self.plan.operator) {
            return self.operate();
        }
        if self.plan.damage && self.random.chance(25) {
            self.damage();
            return Ok(());
        }
        if self.random.chance(280) {
            let agent = self.random.below(agents);
            return self.agent_acts(agent);
        }
        if self.lives.is_empty() {
            return Ok(());
        }
        // Mostly the lives that agents are attached to, sometimes one that lingers.
        let life = match self.agents[self.random.below(agents)].life {
            Some(life) if !self.random.chance(250) => life,
            _ => self.random.below(self.lives.len()),
        };
        if self.random.chance(330) {
            return self.upstream_acts(life);
        }
        if !self.lives[life].is_alive {
            return self.group_ends(life);
        }
        if self.random.chance(self.plan.kill) {
            return self.kill(life);
        }
        if self.lives[life].stalled_until > self.step {
            return Ok(());
        }
        if self.random.chance(self.plan.stall) {
            self.coverage.stalls += 1;
            let until = self.step + 10 + self.random.below(80);
            self.lives[life].stalled_until = until;
            return Ok(());
        }
        if self.random.chance(self.plan.stop) && !self.lives[life].is_over {
            self.coverage.stops += 1;
            tell!(self, "p{life} gets SIGTERM");
            let now = self.now;
            self.lives[life].session.stop(now, 1);
        }
        match self.random.below(10) {
            0 | 1 => self.read_client(life),
            2 | 3 => self.read_upstream(life),
            4..=6 => self.journal(life),
            7 | 8 => self.write(life),
            _ => self.tick(life),
        }
    }

    // ---- agents ----

    fn agent_acts(&mut self, agent: usize) -> Check {
        let Some(life) = self.agents[agent].life else {
            if self.agents[agent].lives < LIVES_MAX {
                self.start(agent);
            }
            return Ok(());
        };
        if self.random.chance(self.plan.agent_crash) {
            self.coverage.agent_crashes += 1;
            tell!(self, "a{agent} crashes");
            self.lives[life].client_broken = true;
            self.lives[life].client_eof = true;
            self.detach(agent);
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

    fn start(&mut self, agent: usize) {
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
        let options = GuardOptions::default();
        let guard = Guard::new(
            SimJournal::new(&self.store),
            around,
            options,
            SessionRow::default(),
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
            cancels_new: Vec::new(),
            cancels_taken: Vec::new(),
        });
        self.coverage.lives += 1;
        tell!(self, "a{agent} starts p{life}");
        let agent = &mut self.agents[agent];
        agent.life = Some(life);
        agent.lives += 1;
        agent.open.clear();
        agent.todo = (0..self.plan.calls)
            .filter(|call| agent.mode != Mode::Bare || !agent.done[*call])
            .collect();
    }

    fn detach(&mut self, agent: usize) {
        self.agents[agent].life = None;
        self.agents[agent].open.clear();
    }

    fn send(&mut self, agent: usize, life: usize) {
        if self.agents[agent].open.len() >= self.plan.pipeline {
            return;
        }
        // Some ask twice while the first still runs.
        let again = (!self.is_calm && self.random.chance(60))
            .then(|| self.agents[agent].open.first().copied())
            .flatten();
        let next = match again {
            Some(open) => Some(self.call_of(open)),
            None => self.agents[agent].todo.pop_front(),
        };
        let Some(call) = next else { return };
        if self.random.chance(self.plan.changed) && !self.is_calm {
            self.coverage.changed_calls += 1;
            let version = self.random.below(2);
            self.agents[agent].versions[call] = version;
        }
        let duplicate = (!self.is_calm && self.random.chance(self.plan.duplicate_id))
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
        let arguments = format!("{{\"n\":{shown},\"v\":{}}}", versions[call]);
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
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"t\",\"arguments\":{arguments},\"_meta\":{{{meta}}}}}}}\n"
        );
        tell!(
            self,
            "a{agent} calls c{serial} id {id} {mode:?} {arguments} in p{life}"
        );
        self.oracle.requests.push(Request {
            life,
            id: id.clone(),
            workflow,
            arguments,
            seq,
            key,
            line: line.clone().into_bytes(),
            is_read: false,
            is_cancelled: false,
            cancel_seen: false,
            cancel_is_committed: false,
            replies: 0,
            is_forwarded: false,
            said_not_started: false,
            reached: false,
            effects: 0,
            grant: None,
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

    fn cancel(&mut self, agent: usize, life: usize) -> Check {
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
            let call = self.call_of(serial);
            self.agents[agent].todo.push_front(call);
        }
        Ok(())
    }

    fn call_of(&self, serial: usize) -> usize {
        let request = &self.oracle.requests[serial];
        match (request.seq, &request.key) {
            (Some(seq), _) => usize::try_from(seq).unwrap() - 1,
            (None, Some(key)) => key[1..].parse().unwrap(),
            (None, None) => {
                let shown: usize = between(&request.arguments, "\"n\":", ",")
                    .unwrap()
                    .parse()
                    .unwrap();
                (shown * 2).min(self.plan.calls - 1)
            }
        }
    }

    /// A line arrives at the agent.
    fn agent_reads(&mut self, life: usize, line: &str, serial: Option<usize>) {
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
        let call = self.call_of(serial);
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

    // ---- the proxy: what its driver does, one thing at a time ----

    fn read_client(&mut self, number: usize) -> Check {
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
        } else {
            life.passing_up.push_back(line.clone());
        }
        life.session.client_line(line);
        Ok(())
    }

    fn read_upstream(&mut self, number: usize) -> Check {
        let now = self.now;
        let life = &mut self.lives[number];
        let Some(line) = life.upstream.output.pop_front() else {
            return Ok(());
        };
        let text = String::from_utf8_lossy(&line).into_owned();
        if let Some(token) = token_of(&text) {
            let id = between(&text, "\"id\":", ",").ok_or("no id")?;
            let closed = life.is_input_closed;
            self.oracle.answer_read(number, id, token, closed);
        } else {
            life.passing_down.push_back(line.clone());
        }
        tell!(self, "p{number} reads {}", text.trim_end());
        self.lives[number].session.upstream_line(line, now);
        Ok(())
    }

    fn journal(&mut self, number: usize) -> Check {
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

    fn fault(&mut self) -> Fault {
        if self.is_calm || !self.random.chance(self.plan.journal_fault) {
            return Fault::None;
        }
        self.coverage.journal_faults += 1;
        let busy = JournalError::Busy;
        let full = JournalError::Full;
        let failed = JournalError::Failed("a fault".into());
        match self.random.below(12) {
            0..=2 => Fault::Begin(busy),
            3 => Fault::Begin(full),
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

    fn run_batch(&mut self, number: usize, ops: Vec<Op>, reconnects: bool) -> Check {
        let fault = self.fault();
        if fault != Fault::None {
            tell!(self, "p{number}'s journal: {fault:?}");
            self.lives[number].is_faulted = true;
        }
        let unknown_kept = fault == Fault::Unknown { is_kept: true };
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
    fn take_answer(
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

    fn write(&mut self, number: usize) -> Check {
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
        let bytes = if self.is_calm || self.random.chance(800) {
            left
        } else {
            self.random.below(left + 1)
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

    fn pump_up(&mut self, number: usize) -> Check {
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
            } else if !text.contains("notifications/cancelled") {
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

    fn pump_down(&mut self, number: usize) -> Check {
        let now = self.now;
        while let Some(outgoing) = self.lives[number].session.to_client(now) {
            let (line, ticket) = (outgoing.line, outgoing.ticket);
            let text = String::from_utf8_lossy(&line).into_owned();
            tell!(self, "p{number} -> client {}", text.trim_end());
            self.note(&line);
            let mut delivers = None;
            let id = between(&text, "\"id\":", ",");
            let mut serial = id.and_then(|id| self.oracle.answered_call(number, id));
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
            } else {
                let passing = &mut self.lives[number].passing_down;
                let expected = passing.pop_front();
                if expected.as_ref() != Some(&line) {
                    return Err(format!("I9 {text} passes out of order or changed"));
                }
            }
            let life = &mut self.lives[number];
            life.to_client.push(line, serial, delivers);
            if let Some(ticket) = ticket {
                let end = life.to_client.pushed;
                life.session.pushed_down(ticket, end);
            }
        }
        Ok(())
    }

    fn tick(&mut self, number: usize) -> Check {
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
            && (self.is_calm || self.random.chance(150))
        {
            // The ladder's last step.
            self.end_upstream(number, "is killed");
        }
        self.finish(number)
    }

    fn finish(&mut self, number: usize) -> Check {
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
            let agent = self.lives[number].agent;
            if self.agents[agent].life == Some(number) {
                self.detach(agent);
            }
        }
        Ok(())
    }

    // ---- ends ----

    fn kill(&mut self, number: usize) -> Check {
        self.coverage.kills += 1;
        tell!(self, "p{number} is killed");
        let life = &mut self.lives[number];
        life.is_alive = false;
        life.batch = Batch::None;
        life.upstream.input_closed = true;
        // What the kernel had taken is still to be read.
        let written = life.to_upstream.written;
        life.to_upstream.lines.retain(|piped| piped.start < written);
        life.to_upstream.pushed = written;
        let agent = life.agent;
        self.store.borrow_mut().lives[number].proxy = false;
        // What had been written to the agent reaches it.
        if self.agents[agent].life == Some(number) {
            self.detach(agent);
        }
        Ok(())
    }

    /// The guardian ends what is left of a killed proxy's upstream.
    fn group_ends(&mut self, number: usize) -> Check {
        let is_left = self.store.borrow().lives[number].group;
        if is_left && (self.is_calm || self.random.chance(60)) {
            self.end_upstream(number, "is ended by the guardian");
            self.store.borrow_mut().lives[number].group = false;
        }
        Ok(())
    }

    fn end_upstream(&mut self, number: usize, how: &str) {
        let life = &mut self.lives[number];
        if life.upstream.is_alive {
            life.upstream.is_alive = false;
            life.upstream.tasks.clear();
            tell!(self, "p{number}'s upstream {how}");
        }
        let life = &mut self.lives[number];
        if !life.is_alive {
            self.store.borrow_mut().lives[number].group = false;
        }
    }

    fn power_cut(&mut self) -> Check {
        self.coverage.power_cuts += 1;
        tell!(self, "the power goes");
        for number in 0..self.lives.len() {
            let life = &mut self.lives[number];
            life.is_alive = false;
            life.upstream.is_alive = false;
            life.upstream.tasks.clear();
            life.batch = Batch::None;
            self.store.borrow_mut().lives[number] = Alive::default();
        }
        for agent in 0..self.agents.len() {
            self.detach(agent);
        }
        let keeps = self.random.chance(400);
        let mut shared = self.store.borrow_mut();
        if let Some(durable) = shared.durable.take()
            && !keeps
        {
            self.coverage.rollbacks += 1;
            shared.book = Some(Book::Memory(durable));
        }
        let highest = self.oracle.fence_max();
        if let Some(memory) = shared.memory() {
            self.oracle.after_power_cut(memory)?;
        }
        // An attempt that a proxy was told of is there; one of an unknown commit may be gone.
        let _ = highest;
        shared.owners.clear();
        shared.mark = 0;
        Ok(())
    }

    // ---- upstreams ----

    fn upstream_acts(&mut self, number: usize) -> Check {
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

    fn upstream_reads(&mut self, number: usize) -> Check {
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

    fn upstream_takes(&mut self, number: usize, text: &str) {
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

    fn task_goes_on(&mut self, number: usize, at: usize) -> Check {
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

    fn answer(&mut self, number: usize, serial: usize, id: &str, kind: Kind) {
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

    // ---- operators and damage ----

    fn places(&self) -> Vec<checkpoint::rules::entry::Entry> {
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
    fn operate(&mut self) -> Check {
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
        let happened = self.oracle.requests[serial].effects > 0;
        let place = (entry.branch, entry.seq);
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
            let body = format!("{{\"content\":[{{\"type\":\"text\",\"text\":\"#{token}#\"}}]}}");
            self.oracle.answers.push(Answer {
                serial,
                body: body.clone(),
                kind: Kind::Operator,
            });
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
        let memory = shared.memory().ok_or("no memory")?;
        self.oracle.compare_rows(memory, None)
    }

    /// A bad disk changes an entry, its outcome, or takes it away.
    fn damage(&mut self) {
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

    // ---- the end: faults stop, and everything must come to one ----

    fn calm_down(&mut self) -> Check {
        for life in &mut self.lives {
            life.stalled_until = 0;
        }
        for round in 0..600 {
            self.step += 1;
            let pause = if round % 8 == 7 { 4000 } else { 15 };
            self.advance(Duration::from_millis(pause));
            for agent in 0..self.agents.len() {
                match self.agents[agent].life {
                    None if !self.agents[agent].todo.is_empty() => self.start_again(agent),
                    None => {}
                    Some(life) => {
                        if self.lives[life].client_eof {
                            // It will not be heard again: it waits for what it gets.
                        } else if self.agents[agent].todo.is_empty()
                            && self.agents[agent].open.is_empty()
                        {
                            self.lives[life].client_eof = true;
                        } else {
                            self.send(agent, life);
                        }
                    }
                }
            }
            for number in 0..self.lives.len() {
                self.calm_life(number)?;
            }
            let is_over = self.lives.iter().all(|life| !life.is_alive)
                && self.store.borrow().lives.iter().all(|alive| !alive.group)
                && self
                    .agents
                    .iter()
                    .all(|agent| agent.todo.is_empty() && agent.life.is_none());
            if is_over {
                return Ok(());
            }
        }
        let left: Vec<String> = self
            .lives
            .iter()
            .enumerate()
            .filter(|(_, life)| life.is_alive)
            .map(|(number, life)| format!("p{number}: {:?}", life.session))
            .collect();
        let left: String = left.join("; ").chars().take(1500).collect();
        Err(format!("I6 it does not come to an end: {left}"))
    }

    /// A calm agent starts over, with what it has left to do.
    fn start_again(&mut self, agent: usize) {
        if self.agents[agent].lives >= LIVES_MAX {
            self.agents[agent].todo.clear();
            return;
        }
        let todo = self.agents[agent].todo.clone();
        self.start(agent);
        self.agents[agent].todo = todo;
    }

    fn calm_life(&mut self, number: usize) -> Check {
        for _ in 0..3 {
            if self.lives[number].upstream.is_alive {
                self.upstream_reads(number)?;
                let tasks = self.lives[number].upstream.tasks.len();
                for at in (0..tasks).rev() {
                    if at < self.lives[number].upstream.tasks.len() {
                        self.task_goes_on(number, at)?;
                    }
                }
            }
            if !self.lives[number].is_alive {
                return self.group_ends(number);
            }
            self.read_client(number)?;
            self.read_upstream(number)?;
            self.write(number)?;
            for _ in 0..3 {
                self.journal(number)?;
            }
            self.write(number)?;
            self.tick(number)?;
            if !self.lives[number].is_alive {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn call_serial(text: &str) -> Option<usize> {
    between(text, "\"checkpoint_call_id\":\"c", "\"")?
        .parse()
        .ok()
}

fn token_of(text: &str) -> Option<usize> {
    between(text, "#", "#")?.parse().ok()
}

fn verdict_name(verdict: &AdmissionVerdict) -> &'static str {
    match verdict {
        AdmissionVerdict::Run(..) => "run",
        AdmissionVerdict::Replay(_) => "replay",
        AdmissionVerdict::Join { .. } => "join",
        AdmissionVerdict::Refuse(_) => "refuse",
    }
}

fn shown_op(op: &Op) -> String {
    match op {
        Op::Admit(call) => format!("admit {}", call.call_id.as_deref().unwrap_or("?")),
        Op::Settle(settlement) => {
            let ticket = settlement.ticket();
            let text = format!("{settlement:?}");
            let name = text.split([' ', '{']).next().unwrap_or("");
            format!("settle {name} seq {} fence {}", ticket.seq, ticket.fence)
        }
        Op::Deliver(ticket) => format!("deliver seq {} fence {}", ticket.seq, ticket.fence),
        Op::GiveUp(ticket, why) => {
            format!("give up seq {} fence {} {why:?}", ticket.seq, ticket.fence)
        }
        Op::Note(note) => format!("note {}", note.kind),
        Op::TaskEnd { .. } => "task end".into(),
        Op::Renew(..) => "renew".into(),
        Op::Confirm(_) => "confirm".into(),
        Op::EndSession => "end session".into(),
    }
}

fn shown_done(done: &Done) -> String {
    match done {
        Done::Admitted(admission) => match &admission.verdict {
            AdmissionVerdict::Run(ticket, letter) => {
                format!("run seq {} fence {} {letter}", ticket.seq, ticket.fence)
            }
            AdmissionVerdict::Refuse(refused) => format!("refuse {:?}", refused.why),
            AdmissionVerdict::Join { ticket, .. } => format!("join fence {}", ticket.fence),
            AdmissionVerdict::Replay(replay) => format!("replay fence {}", replay.entry.fence),
        },
        Done::Settled(_) => "settled".into(),
        Done::Stale => "stale".into(),
        Done::Noted => "noted".into(),
    }
}
