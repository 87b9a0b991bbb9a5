//! Calls that wait for another call's outcome: when they look again, and how often.
//!
//! Must not: decide what a call that waits gets; that is asked of the journal each time.

use std::time::Instant;

use super::{Session, Stage};
use crate::mcp::frame::IdKey;
use crate::rules::ids::Fence;
use crate::seeded::{self, Bug};

impl Session {
    pub(super) fn has_waiters(&self, fence: &Fence) -> bool {
        self.flights.values().any(|flight| match &flight.stage {
            Stage::Joining { ticket, .. } => ticket.fence == *fence && !flight.is_cancelled,
            Stage::Admitting
            | Stage::Confirming { .. }
            | Stage::Probing { .. }
            | Stage::Forwarded(_)
            | Stage::Settling(_) => false,
        })
    }

    /// Lets those who wait for an attempt look again, now.
    pub(super) fn wake_waiters(&mut self, fence: Fence, now: Instant) {
        let mut waiting: Vec<IdKey> = self
            .flights
            .iter()
            .filter(|(_, flight)| match &flight.stage {
                Stage::Joining { ticket, .. } => ticket.fence == fence,
                Stage::Admitting
                | Stage::Confirming { .. }
                | Stage::Probing { .. }
                | Stage::Forwarded(_)
                | Stage::Settling(_) => false,
            })
            .filter(|_| !seeded::has(Bug::WaitersForgotten))
            .map(|(key, _)| key.clone())
            .collect();
        waiting.sort();
        for key in waiting {
            self.look_again(&key, now);
        }
    }

    /// Lets those who wait for an attempt look again at the next tick: its caller has given up, so
    /// that from now on they wait no longer than the limit says.
    pub(super) fn hurry_waiters(&mut self, fence: Fence, at: Instant) {
        for flight in self.flights.values_mut() {
            if let Stage::Joining {
                ticket, look_at, ..
            } = &mut flight.stage
                && ticket.fence == fence
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
