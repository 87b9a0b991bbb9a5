//! A small world in which nothing is left to chance: at each point it either goes on as usual, or
//! something else is done first (a delay), or something goes wrong (a fault). Each costs one of
//! so many.

use super::*;
use crate::choices::Choices;

/// How often a way may leave the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) faults: usize,
    pub(crate) delays: usize,
}

/// How many steps of nothing but waiting there are at most.
const IDLE_MAX: usize = 12;

#[derive(Clone, Debug, PartialEq)]
enum Act {
    Start(usize),
    Send(usize),
    Close(usize),
    ReadClient(usize),
    Journal(usize),
    Write(usize),
    UpstreamReads(usize),
    TaskGoesOn(usize, usize),
    JobGoesOn(usize),
    ReadUpstream(usize),
    Tick(usize),
    GroupEnds(usize),
    Wait,
    // What goes wrong.
    Kill(usize),
    PowerCut { keeps: bool },
    AgentCrash(usize),
    UpstreamDies(usize),
    JournalFault(usize, Fault),
    Cancel(usize),
    Change(usize),
    Stall,
    Verdict,
}

impl World<'_> {
    /// Runs one way through a small world; the choices say which.
    pub(crate) fn explore(&mut self, choices: &mut Choices, budget: Budget) -> Check {
        self.random = Random::quiet();
        let mut left = budget;
        let mut idle = 0;
        let mut focus = 0;
        for step in 0..self.plan.steps {
            self.step = step;
            self.advance(Duration::from_millis(1));
            let mut acts = self.usual(focus)?;
            if acts.is_empty() {
                let lives = self.lives.iter().any(|life| life.is_alive);
                if !lives || idle == IDLE_MAX {
                    break;
                }
                idle += 1;
                acts.push(Act::Wait);
            }
            if left.delays == 0 {
                acts.truncate(1);
            }
            let usual = acts.len();
            if left.faults > 0 {
                acts.extend(self.faults());
            }
            let at = if acts.len() > 1 {
                choices.pick(acts.len())
            } else {
                0
            };
            if at >= usual {
                left.faults -= 1;
            } else if at > 0 {
                left.delays -= 1;
            }
            let act = acts.swap_remove(at);
            if at > 0 {
                let text = format!("{step}: {act:?}");
                tell!(self, "*** {act:?}");
                self.detours.push(text);
            }
            focus = self.agent_of(&act).unwrap_or(focus);
            self.perform(&act)?;
        }
        self.is_calm = true;
        self.ask_for_all()
    }

    fn agent_of(&self, act: &Act) -> Option<usize> {
        match act {
            Act::Start(agent) | Act::Send(agent) | Act::Close(agent) => Some(*agent),
            Act::ReadClient(life)
            | Act::Journal(life)
            | Act::Write(life)
            | Act::UpstreamReads(life)
            | Act::TaskGoesOn(life, _)
            | Act::JobGoesOn(life)
            | Act::ReadUpstream(life)
            | Act::Tick(life)
            | Act::GroupEnds(life) => Some(self.lives[*life].agent),
            _ => None,
        }
    }

    /// What can be done next, what is usual first: whoever was at work goes on.
    fn usual(&mut self, focus: usize) -> Result<Vec<Act>, String> {
        let mut acts = Vec::new();
        let agents = self.agents.len();
        for offset in 0..agents {
            let agent = (focus + offset) % agents;
            for life in 0..self.lives.len() {
                if self.lives[life].agent == agent {
                    self.of_life(life, &mut acts)?;
                }
            }
            let Agent {
                life, todo, rounds, ..
            } = &self.agents[agent];
            let has_more = !todo.is_empty() || !rounds.is_empty();
            let is_open = self.agents[agent].open.len();
            let is_new = self.agents[agent].lives == 0;
            let is_left = self.agents[agent].lives < LIVES_MAX;
            match life {
                None if is_left && (is_new || has_more) => acts.push(Act::Start(agent)),
                None => {}
                Some(life) if self.lives[*life].client_eof => {}
                Some(_) if has_more && is_open < self.plan.pipeline => acts.push(Act::Send(agent)),
                Some(_) if !has_more && is_open == 0 => acts.push(Act::Close(agent)),
                Some(_) => {}
            }
        }
        Ok(acts)
    }

    fn of_life(&mut self, number: usize, acts: &mut Vec<Act>) -> Check {
        let life = &self.lives[number];
        if life.is_alive {
            if matches!(life.batch, Batch::None) {
                self.journal(number)?;
            }
            self.pump_up(number)?;
            self.pump_down(number)?;
            let now = self.now;
            let life = &self.lives[number];
            if !life.inbox.is_empty() || life.client_eof && !life.eof_told {
                acts.push(Act::ReadClient(number));
            }
            match &life.batch {
                Batch::None => {}
                Batch::Waiting { next, .. } if now < *next => {}
                Batch::Taken(..) | Batch::Ran(..) | Batch::Waiting { .. } => {
                    acts.push(Act::Journal(number));
                }
            }
            let is_up =
                !life.to_upstream.is_flushed() && !life.is_input_closed && life.upstream.is_alive;
            let is_told = life.session.phase().is_client_gone();
            if is_up || !life.to_client.is_flushed() || life.client_broken && !is_told {
                acts.push(Act::Write(number));
            }
            if !life.upstream.output.is_empty() {
                acts.push(Act::ReadUpstream(number));
            }
            let sees_end = !life.upstream.is_alive && !life.session.phase().is_upstream_ended();
            let is_ending = life.session.wants_input_closed(now)
                || life.is_input_closed && life.upstream.is_alive
                || life.session.phase().is_upstream_ended() && life.session.is_idle();
            if sees_end || is_ending {
                acts.push(Act::Tick(number));
            }
        } else if self.store.borrow().lives[number].group {
            acts.push(Act::GroupEnds(number));
        }
        let upstream = &self.lives[number].upstream;
        if upstream.is_alive {
            let pipe = &self.lives[number].to_upstream;
            if pipe
                .lines
                .front()
                .is_some_and(|line| line.end <= pipe.written)
            {
                acts.push(Act::UpstreamReads(number));
            }
            for task in 0..upstream.tasks.len() {
                acts.push(Act::TaskGoesOn(number, task));
            }
            if upstream.jobs.iter().any(|job| job.end.is_none()) {
                acts.push(Act::JobGoesOn(number));
            }
        }
        Ok(())
    }

    /// What can go wrong next.
    fn faults(&self) -> Vec<Act> {
        let mut acts = Vec::new();
        for (number, life) in self.lives.iter().enumerate() {
            if !life.is_alive {
                continue;
            }
            acts.push(Act::Kill(number));
            if life.upstream.is_alive {
                acts.push(Act::UpstreamDies(number));
            }
            if matches!(life.batch, Batch::Taken(..)) {
                let failed = JournalError::Failed("a fault".into());
                acts.extend(
                    [
                        Fault::Unknown { is_kept: true },
                        Fault::Unknown { is_kept: false },
                        Fault::Commit(failed),
                        Fault::Begin(JournalError::ReadOnly("a fault".into())),
                    ]
                    .map(|fault| Act::JournalFault(number, fault)),
                );
            }
        }
        if acts.is_empty() && self.lives.is_empty() {
            return acts;
        }
        acts.push(Act::PowerCut { keeps: false });
        if self.store.borrow().durable.is_some() {
            acts.push(Act::PowerCut { keeps: true });
        }
        for (number, agent) in self.agents.iter().enumerate() {
            let is_there = agent.life.is_some();
            if is_there {
                acts.push(Act::AgentCrash(number));
            }
            if is_there && !agent.open.is_empty() {
                acts.push(Act::Cancel(number));
            }
            if self.plan.changed > 0 {
                acts.push(Act::Change(number));
            }
        }
        if self.plan.promise.at_least_once {
            acts.push(Act::Stall);
        }
        if self.plan.operator > 0 && self.has_ended_doubt() {
            acts.push(Act::Verdict);
        }
        acts
    }

    /// Whether a call is PENDING that nobody works on any more.
    fn has_ended_doubt(&self) -> bool {
        self.places().iter().any(|entry| {
            entry.status == Status::Pending && !self.store.borrow().is_live(entry.session)
        })
    }

    fn perform(&mut self, act: &Act) -> Check {
        match act {
            Act::Start(agent) => self.start(*agent),
            Act::Send(agent) => {
                if let Some(life) = self.agents[*agent].life {
                    self.send(*agent, life);
                }
            }
            Act::Close(agent) => {
                if let Some(life) = self.agents[*agent].life {
                    self.lives[life].client_eof = true;
                }
            }
            Act::ReadClient(life) => self.read_client(*life)?,
            Act::Journal(life) => self.journal(*life)?,
            Act::Write(life) => self.write(*life)?,
            Act::UpstreamReads(life) => self.upstream_reads(*life)?,
            Act::TaskGoesOn(life, task) => self.task_goes_on(*life, *task)?,
            Act::JobGoesOn(life) => self.job_goes_on(*life)?,
            Act::ReadUpstream(life) => self.read_upstream(*life)?,
            Act::Tick(life) => self.tick(*life)?,
            Act::GroupEnds(life) => {
                self.end_upstream(*life, "is ended by the guardian");
                self.store.borrow_mut().lives[*life].group = false;
            }
            Act::Wait => {
                self.advance(Duration::from_millis(600));
                for life in 0..self.lives.len() {
                    if self.lives[life].is_alive {
                        self.tick(life)?;
                    }
                }
            }
            Act::Kill(life) => self.kill(*life)?,
            Act::PowerCut { keeps } => self.power_goes(*keeps)?,
            Act::AgentCrash(agent) => self.agent_crashes(*agent),
            Act::UpstreamDies(life) => self.end_upstream(*life, "dies"),
            Act::JournalFault(life, fault) => {
                self.next_fault = Some(fault.clone());
                self.journal(*life)?;
            }
            Act::Cancel(agent) => {
                if let Some(life) = self.agents[*agent].life {
                    let serial = self.agents[*agent].open[0];
                    let call = self.oracle.requests[serial].call;
                    self.cancel(*agent, life)?;
                    self.agents[*agent].todo.push_front(call);
                }
            }
            Act::Change(agent) => {
                for version in &mut self.agents[*agent].versions {
                    *version = 1 - *version;
                }
            }
            Act::Stall => self.advance(Duration::from_secs(3)),
            Act::Verdict => self.operate()?,
        }
        Ok(())
    }
}
