//! The end: faults stop, and everything must come to one.

use super::*;

impl World<'_> {
    pub(super) fn calm_down(&mut self) -> Check {
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
                            && self.agents[agent].rounds.is_empty()
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
    pub(super) fn start_again(&mut self, agent: usize) {
        if self.agents[agent].lives >= LIVES_MAX {
            self.agents[agent].todo.clear();
            return;
        }
        let todo = self.agents[agent].todo.clone();
        self.start(agent);
        self.agents[agent].todo = todo;
    }

    pub(super) fn calm_life(&mut self, number: usize) -> Check {
        for _ in 0..3 {
            if self.lives[number].upstream.is_alive {
                self.upstream_reads(number)?;
                self.job_goes_on(number)?;
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
