//! Calls that wait for another call's outcome: when they look again, and how often.
//!
//! Must not: decide what a call that waits gets; that is asked of the journal each time.

use std::time::Instant;

use super::{Session, Stage};
use crate::mcp::frame::IdKey;
use crate::rules::ids::Fence;
use crate::seeded::{self, Bug};

impl Session {
    /// Returns the calls that wait for an attempt, in the order of their keys. Those that wait no
    /// longer are forgotten: an answer is looked for among the few that wait, not among all that
    /// are in flight.
    fn waiting_for(&mut self, fence: Fence) -> Vec<IdKey> {
        let mut found = Vec::new();
        let flights = &self.flights;
        self.joining.retain(|key| {
            let Some(Stage::Joining { ticket, .. }) = flights.get(key).map(|flight| &flight.stage)
            else {
                return false;
            };
            if ticket.fence == fence {
                found.push(key.clone());
            }
            true
        });
        found
    }

    /// Returns whether somebody who has not cancelled waits for the attempt.
    pub(super) fn has_waiters(&mut self, fence: Fence) -> bool {
        self.waiting_for(fence)
            .iter()
            .any(|key| !self.flights[key].is_cancelled)
    }

    /// Lets those who wait for an attempt look again, now.
    pub(super) fn wake_waiters(&mut self, fence: Fence, now: Instant) {
        for key in self.waiting_for(fence) {
            if !seeded::has(Bug::WaitersForgotten) {
                self.look_again(&key, now);
            }
        }
    }

    /// Lets those who wait for an attempt look again at the next tick: its caller has given up, so
    /// that from now on they wait no longer than the limit says.
    pub(super) fn hurry_waiters(&mut self, fence: Fence, at: Instant) {
        for key in self.waiting_for(fence) {
            if let Some(flight) = self.flights.get_mut(&key)
                && let Stage::Joining { look_at, .. } = &mut flight.stage
            {
                *look_at = at.min(*look_at);
            }
        }
    }

    /// Asks the journal once more about a call that waits for another one.
    pub(super) fn look_again(&mut self, key: &IdKey, now: Instant) {
        if let Some(flight) = self.flights.get_mut(key)
            && let Stage::Joining { look_at, .. } = &mut flight.stage
        {
            *look_at = now + flight.policy.wait_poll;
            // Asked twice, it could be let through by the first answer and join itself by the
            // second.
            if flight.asked.is_some() {
                return;
            }
            self.ops.push(flight.admission(key, &mut self.askings));
        }
    }
}
