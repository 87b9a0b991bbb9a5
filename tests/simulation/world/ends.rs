//! Kills, ends and power cuts.

use super::*;

impl World<'_> {
    pub(super) fn kill(&mut self, number: usize) -> Check {
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
    pub(super) fn group_ends(&mut self, number: usize) -> Check {
        let is_left = self.store.borrow().lives[number].group;
        if is_left && (self.is_calm || self.random.chance(60)) {
            self.end_upstream(number, "is ended by the guardian");
            self.store.borrow_mut().lives[number].group = false;
        }
        Ok(())
    }

    pub(super) fn end_upstream(&mut self, number: usize, how: &str) {
        let life = &mut self.lives[number];
        if life.upstream.is_alive {
            life.upstream.is_alive = false;
            life.upstream.tasks.clear();
            life.upstream.jobs.clear();
            life.upstream.waiting.clear();
            tell!(self, "p{number}'s upstream {how}");
        }
        let life = &mut self.lives[number];
        if !life.is_alive {
            self.store.borrow_mut().lives[number].group = false;
        }
    }

    pub(super) fn power_cut(&mut self) -> Check {
        let keeps = self.random.chance(400);
        self.power_goes(keeps)
    }

    /// The power goes; what was not synced is lost, or happens to be kept.
    pub(super) fn power_goes(&mut self, keeps: bool) -> Check {
        self.coverage.power_cuts += 1;
        tell!(self, "the power goes");
        for number in 0..self.lives.len() {
            let life = &mut self.lives[number];
            life.is_alive = false;
            life.upstream.is_alive = false;
            life.upstream.tasks.clear();
            life.upstream.jobs.clear();
            life.upstream.waiting.clear();
            life.batch = Batch::None;
            self.store.borrow_mut().lives[number] = Alive::default();
        }
        for agent in 0..self.agents.len() {
            self.detach(agent);
        }
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
        shared.boot += 1;
        shared.uptime = Duration::ZERO;
        Ok(())
    }
}
