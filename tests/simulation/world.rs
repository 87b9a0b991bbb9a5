//! The world: agents, proxies, upstreams, an operator and clocks, one event at a time.

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

mod agents;
mod calm;
mod ends;
mod foresight;
mod operators;
mod proxies;
pub(crate) mod small;
mod splits;
mod tasks;
mod upstreams;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use checkpoint::guard::{AdmissionVerdict, Done, Guard, Op};
use checkpoint::journal::memory::MemoryJournal;
use checkpoint::journal::{Journal as _, JournalError, Session as SessionRow};
use checkpoint::proxy::session::{Session, UpstreamEnd};
use checkpoint::rules::entry::{Provenance, Status};
use checkpoint::rules::ids::{Micros, WorkflowId};

use crate::coverage::Coverage;
use crate::life::{Batch, Habit, Job, Life, Pipe, Task, Upstream};
use crate::oracle::{self, Answer, Check, Kind, Oracle, Request, Said, between};
use crate::plan::{Mode, Plan};
use crate::random::Random;
use crate::store::{Alive, Around, Book, Fault, Shared, SimJournal, Store};

/// How long a deferred outcome waits for its sync.
const SYNC_WAIT: Duration = Duration::from_millis(20);

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
    /// Questions that it will answer.
    rounds: VecDeque<FollowUp>,
    /// Tasks that it knows of.
    handles: Vec<String>,
}

/// A further round of a call.
#[derive(Clone, Debug)]
pub(crate) struct FollowUp {
    call: usize,
    arguments: String,
    /// The question.
    question: usize,
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
    /// What goes wrong in the next transaction, where that is not drawn.
    next_fault: Option<Fault>,
    /// Since when outcomes may be told that are not durable.
    unsynced_since: Option<Instant>,
    /// Until when the disk is full.
    full_until: Option<Instant>,
    /// What an operator did last.
    last_act: Option<operators::Drawn>,
    /// How many workflows operators have made.
    forked: usize,
    /// Where a way through a small world left the usual one.
    pub(crate) detours: Vec<String>,
}

impl<'a> World<'a> {
    pub(crate) fn new(plan: Plan, book: Book, coverage: &'a mut Coverage, traces: bool) -> Self {
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
                rounds: VecDeque::new(),
                handles: Vec::new(),
            })
            .collect();
        Self {
            random: Random::new(plan.seed ^ 0x5EED),
            now: Instant::now(),
            wall: 1_800_000_000_000_000,
            step: 0,
            is_calm: false,
            store: Rc::new(RefCell::new(Shared::new(book))),
            lives: Vec::new(),
            agents,
            oracle: Oracle::new(&plan),
            coverage,
            trace: traces.then(Vec::new),
            digest: 0xCBF2_9CE4_8422_2325,
            next_fault: None,
            unsynced_since: None,
            full_until: None,
            last_act: None,
            forked: 0,
            detours: Vec::new(),
            plan,
        }
    }

    pub(crate) fn steps_gone(&self) -> usize {
        self.step
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
        self.ask_for_all()
    }

    /// The end: what is left is asked for, and then everything once more.
    fn ask_for_all(&mut self) -> Check {
        self.calm_down()?;
        // Everything that was asked for by name is asked for once more, and where that may have
        // opened a branch, once more in it.
        for _ in 0..1 + usize::from(self.plan.forks) {
            for agent in 0..self.agents.len() {
                self.agents[agent].lives = 0;
                if self.agents[agent].mode != Mode::Bare {
                    self.agents[agent].todo = (0..self.plan.calls).collect();
                }
            }
            self.calm_down()?;
        }
        self.coverage.effects += self.oracle.effects;
        self.coverage.seen(&self.oracle.seen);
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
        self.store.borrow_mut().uptime += by;
        self.wall += i64::try_from(by.as_micros()).unwrap();
    }

    fn pass_time(&mut self) {
        let by = match self.random.below(100) {
            0..90 => Duration::from_micros(self.random.below(3000) as u64),
            90..97 => Duration::from_millis(self.random.below(200) as u64),
            _ => Duration::from_millis(self.random.below(3000) as u64),
        };
        self.advance(by);
        self.sync_if_due();
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

    /// A proxy that defers syncs what has waited for that as long as it may, and that takes a
    /// while.
    fn sync_if_due(&mut self) {
        if self.plan.deferring == 0 {
            return;
        }
        // Drawn in any case: a journal in SQLite does not tell what is durable.
        let is_done = self.random.chance(100);
        let mut shared = self.store.borrow_mut();
        if shared.durable.is_none() {
            self.unsynced_since = None;
            return;
        }
        let since = *self.unsynced_since.get_or_insert(self.now);
        let step = self.step;
        let plan = &self.plan;
        let syncs = self.lives.iter_mut().any(|life| {
            let works = life.is_alive && !life.is_over && life.stalled_until <= step;
            works && plan.defers(life.agent) && !life.guard.journal().has_failed()
        });
        let is_due = self.now.saturating_duration_since(since) >= SYNC_WAIT;
        if syncs && is_due && is_done {
            shared.durable = None;
            self.unsynced_since = None;
            self.coverage.idle_syncs += 1;
            drop(shared);
            tell!(self, "the log is synced");
        }
    }

    // ---- what may happen ----

    fn something_happens(&mut self) -> Check {
        let agents = self.agents.len();
        let is_moment = self.plan.power_cut_unsynced > 0 && self.store.borrow().durable.is_some();
        let power_cut = if is_moment {
            self.plan.power_cut_unsynced
        } else {
            self.plan.power_cut
        };
        if self.random.chance(power_cut) {
            return self.power_cut();
        }
        // An answer that came too late calls for somebody.
        let operator = self.plan.operator * if self.oracle.has_stale_answer() { 3 } else { 1 };
        if self.random.chance(operator) {
            if self.plan.splits && self.random.chance(150) {
                return self.operator_forks();
            }
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
}

pub(super) fn call_serial(text: &str) -> Option<usize> {
    between(text, "\"checkpoint_call_id\":\"c", "\"")?
        .parse()
        .ok()
}

pub(super) fn token_of(text: &str) -> Option<usize> {
    between(text, "#", "#")?.parse().ok()
}

pub(super) fn verdict_name(verdict: &AdmissionVerdict) -> &'static str {
    match verdict {
        AdmissionVerdict::Run(..) => "run",
        AdmissionVerdict::Replay(_) => "replay",
        AdmissionVerdict::Join { .. } => "join",
        AdmissionVerdict::Refuse(_) => "refuse",
    }
}

pub(super) fn shown_op(op: &Op) -> String {
    match op {
        Op::Admit(call) => format!("admit {}", call.call_id.as_deref().unwrap_or("?")),
        Op::Settle(settlement) => {
            let ticket = settlement.ticket();
            let text = format!("{settlement:?}");
            let name = text.split([' ', '{']).next().unwrap_or("");
            format!("settle {name} seq {} fence {}", ticket.seq, ticket.fence)
        }
        Op::Deliver(ticket) => format!("deliver seq {} fence {}", ticket.seq, ticket.fence),
        Op::Keep(ticket) => format!("keep seq {} fence {}", ticket.seq, ticket.fence),
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

pub(super) fn shown_done(done: &Done) -> String {
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
