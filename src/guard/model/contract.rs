//! What a call gets, by the contract alone.

use std::collections::BTreeMap;

use super::{Asked, Expected, HeldBy, Model, Row, State, name};
use crate::rules::decide::Decision;
use crate::rules::ids::{BranchId, Window};
use crate::rules::policy::{Delivery, InDoubtScope, OnFailure, OnInFlight};

impl Row {
    /// Whether an attempt of one was reserved while one of the other had no outcome yet.
    fn was_in_flight_with(&self, other: &Row) -> bool {
        self.flights.iter().any(|(from, until)| {
            other.flights.iter().any(|(other_from, other_until)| {
                until.is_none_or(|until| *other_from < until)
                    && other_until.is_none_or(|until| *from < until)
            })
        })
    }
}

impl Model {
    /// The workflow's entries as its active branch has them: its own, and what came before each
    /// fork of those that it came from.
    pub(super) fn line(&self, workflow: usize) -> BTreeMap<u64, usize> {
        let mut line = BTreeMap::new();
        let mut below = u64::MAX;
        let mut branch = self.active[workflow];
        while let Some(here) = branch {
            for (place, row) in self.rows.iter().enumerate() {
                if row.branch == here && row.seq < below {
                    line.insert(row.seq, place);
                }
            }
            branch = self.parents[&here].map(|(parent, forked_at)| {
                below = below.min(forked_at);
                parent
            });
        }
        line
    }

    /// The branch on which a seq stands: the one that it is shared from.
    fn branch_of(&self, workflow: usize, seq: u64) -> Option<BranchId> {
        let mut branch = self.active[workflow]?;
        while let Some((parent, forked_at)) = self.parents[&branch]
            && seq < forked_at
        {
            branch = parent;
        }
        Some(branch)
    }

    pub(super) fn held_by(&self, process: usize, asked: Asked) -> Option<HeldBy> {
        let options = &self.processes[process].options;
        let window = self.setting.windows[usize::from(asked.what.tool)];
        let (window, id) = match window.unwrap_or(Window::Run) {
            Window::Run => {
                let own = name(asked.workflow).0;
                ("run", options.run_id.clone().unwrap_or(own))
            }
            Window::Thread => ("thread", options.thread_id.clone().unwrap()),
            Window::Journal => ("journal", String::new()),
        };
        Some((window, id, asked.key?))
    }

    pub(super) fn holder(&self, key: Option<&HeldBy>) -> Option<usize> {
        let holds = |row: &Row| key.is_some() && row.key.as_ref() == key;
        self.rows.iter().position(holds)
    }

    pub(super) fn lives(&self, row: &Row) -> bool {
        self.machine.borrow().live.contains(&row.session)
    }

    /// Section 5: all that a call may get; where it is one thing only, that.
    pub(super) fn expected(&mut self, process: usize, asked: Asked) -> Vec<Expected> {
        let key = self.held_by(process, asked);
        let holder = self.holder(key.as_ref());
        let line = self.line(asked.workflow);
        if let Some(seq) = asked.seq {
            if let Some(place) = line.get(&seq) {
                return vec![self.decided(process, asked, *place, false)];
            }
            if let Some(holder) = holder {
                return vec![self.decided(process, asked, holder, true)];
            }
            let at = self.branch_of(asked.workflow, seq);
            return vec![Expected::New {
                at: at.map(|branch| (branch, seq)),
            }];
        }
        if key.is_some() {
            return vec![match holder {
                Some(holder) => self.decided(process, asked, holder, true),
                None => Expected::New { at: None },
            }];
        }
        if self.setting.resumes
            && let Some(place) = self.walked(process, asked, &line)
        {
            return vec![self.decided(process, asked, place, false)];
        }
        let guarded: Vec<Expected> = line
            .values()
            .filter_map(|place| self.guarded(process, asked, *place))
            .collect();
        if guarded.is_empty() {
            return vec![Expected::New { at: None }];
        }
        guarded
    }

    /// Section 5.3: the entry at the cursor, another that was in flight together with it, or none
    /// past the end.
    fn walked(
        &mut self,
        process: usize,
        asked: Asked,
        line: &BTreeMap<u64, usize>,
    ) -> Option<usize> {
        let walk = &mut self.processes[process].walks[asked.workflow];
        let is_passed = |seq: &&u64| walk.passed.contains(seq);
        let behind = line.range(walk.at + 1..).map(|(seq, _)| seq);
        walk.at = behind
            .take_while(is_passed)
            .last()
            .map_or(walk.at, |seq| *seq);
        let ahead: Vec<usize> = line
            .range(walk.at + 1..)
            .filter(|(seq, _)| !walk.is_over && !is_passed(seq))
            .map(|(_, place)| *place)
            .collect();
        let Some(first) = ahead.first() else {
            walk.is_over = true;
            return None;
        };
        let cursor = &self.rows[*first];
        if cursor.what == asked.what {
            return Some(*first);
        }
        let is_void = cursor.state == State::Void;
        let together = ahead[1..]
            .iter()
            .filter(|place| is_void || cursor.was_in_flight_with(&self.rows[**place]))
            .find(|place| self.rows[**place].what == asked.what);
        if is_void && together.is_some() {
            walk.passed.insert(cursor.seq);
        }
        Some(*together.unwrap_or(first))
    }

    /// Section 5, the guard: what an equal call gets because of this entry, whose outcome may not
    /// have reached its caller.
    fn guarded(&self, process: usize, asked: Asked, place: usize) -> Option<Expected> {
        let row = &self.rows[place];
        if row.what != asked.what || row.is_delivered {
            return None;
        }
        let waits = row.has_caller && self.lives(row);
        match row.state {
            State::Void => None,
            State::Running if self.lives(row) => {
                (!waits).then(|| self.decided(process, asked, place, false))
            }
            State::Running | State::Lost => {
                let reaches = self.setting.policy.in_doubt_scope == InDoubtScope::Signature;
                reaches.then(|| self.decided(process, asked, place, false))
            }
            State::Completed | State::ToolError | State::Failed => {
                let within = self.setting.policy.redeliver_within.as_micros();
                let age = (self.now + 1 - row.completed_at?).max(0);
                (!waits && (age as u128) < within).then_some(Expected::Replay(place))
            }
        }
    }

    /// Section 7, the table, and section 9.
    fn decided(&self, process: usize, asked: Asked, place: usize, is_by_key: bool) -> Expected {
        let row = &self.rows[place];
        let policy = &self.setting.policy;
        let covers = is_by_key && policy.key_covers.is_some();
        let is_same = row.what == asked.what
            || (covers && (row.what.tool, row.what.a) == (asked.what.tool, asked.what.a));
        let has_left = row.ticket.attempt < policy.attempts_max;
        let at_least_once = policy.delivery == Delivery::AtLeastOnce;
        let retries = |on: OnFailure| on == OnFailure::Retry && has_left;
        let is_own = self.processes[process].guard.session() == Some(row.session);
        let is_stalled =
            at_least_once && !is_own && row.lease_until_ms <= self.machine.borrow().uptime_ms;
        match row.state {
            State::Void => Expected::Again(place),
            State::Running if self.lives(row) && !is_stalled => {
                match (is_same, policy.on_in_flight) {
                    (true, OnInFlight::Join) => Expected::Join(place),
                    _ => Expected::Refuse(Decision::InFlight, place),
                }
            }
            State::Running | State::Lost => match (at_least_once && is_same, has_left) {
                (false, _) => Expected::Refuse(Decision::InDoubt, place),
                (true, true) => Expected::Again(place),
                (true, false) => Expected::Refuse(Decision::Abandon, place),
            },
            _ if !is_same => {
                let holds = self.holder(self.held_by(process, asked).as_ref()).is_some();
                if self.setting.forks && !is_by_key && !holds {
                    Expected::Fork { seq: row.seq }
                } else {
                    Expected::Refuse(Decision::Diverge, place)
                }
            }
            State::ToolError if retries(policy.on_tool_error) => Expected::Again(place),
            State::Failed if retries(policy.on_failure) => Expected::Again(place),
            State::Completed | State::ToolError | State::Failed => Expected::Replay(place),
        }
    }
}
