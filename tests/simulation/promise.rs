//! What a policy promises, in the oracle's own words, and the file that asks for it.

use std::fmt::Write as _;

use crate::random::Random;

/// How far a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Workflow,
    Group,
    Thread,
    Journal,
}

/// How long an owner may be silent, and how often it says that it lives, ms.
pub(crate) const LEASE_MS: u64 = 2000;
const HEARTBEAT_MS: u64 = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) at_least_once: bool,
    pub(crate) attempts_max: u32,
    pub(crate) retries_failures: bool,
    pub(crate) retries_tool_errors: bool,
    pub(crate) refuses_in_flight: bool,
    pub(crate) shields: bool,
    pub(crate) reach: Reach,
    /// The key is made from the arguments, of those that bring none.
    pub(crate) derives_key: bool,
    pub(crate) stores_results: bool,
    /// A doubt stands in the way of equal calls, too.
    pub(crate) doubts_spread: bool,
    pub(crate) redelivers: bool,
    /// An owner that was fenced lets its call end.
    pub(crate) finishes_lost: bool,
    /// Of the arguments, only `v` must be equal under one key.
    pub(crate) covers: bool,
}

impl Promise {
    /// What a policy file without a line promises.
    pub(crate) const USUAL: Self = Self {
        at_least_once: false,
        attempts_max: 3,
        retries_failures: false,
        retries_tool_errors: false,
        refuses_in_flight: false,
        shields: false,
        reach: Reach::Workflow,
        derives_key: false,
        stores_results: true,
        doubts_spread: true,
        redelivers: true,
        finishes_lost: false,
        covers: false,
    };
}

impl Default for Promise {
    fn default() -> Self {
        Self::USUAL
    }
}

impl Promise {
    pub(crate) fn of(random: &mut Random) -> Self {
        let reaches = [Reach::Workflow, Reach::Group, Reach::Thread, Reach::Journal];
        let reach = random.pick(&reaches);
        Self {
            at_least_once: random.chance(400),
            attempts_max: random.pick(&[1, 2, 3]),
            retries_failures: random.chance(300),
            retries_tool_errors: random.chance(300),
            refuses_in_flight: random.chance(200),
            shields: random.chance(300),
            reach,
            derives_key: reach != Reach::Workflow && random.chance(300),
            stores_results: !random.chance(100),
            doubts_spread: !random.chance(150),
            redelivers: !random.chance(150),
            finishes_lost: random.chance(400),
            covers: false,
        }
    }

    /// How many effects the attempts of one call may have.
    pub(crate) fn effects_max(&self) -> u32 {
        if self.at_least_once || self.retries_failures || self.retries_tool_errors {
            self.attempts_max
        } else {
            1
        }
    }

    pub(crate) fn policy_file(&self) -> String {
        if *self == Self::default() {
            return String::new();
        }
        let mut text = String::from("[defaults]\n");
        let mut line = |is_wanted: bool, line: &str| {
            if is_wanted {
                let _ = writeln!(text, "{line}");
            }
        };
        line(self.at_least_once, "delivery = \"at-least-once\"");
        line(true, &format!("max_attempts = {}", self.attempts_max));
        line(true, &format!("lease_ttl = \"{LEASE_MS}ms\""));
        line(true, &format!("heartbeat = \"{HEARTBEAT_MS}ms\""));
        line(self.retries_failures, "on_failure = \"retry\"");
        line(self.retries_tool_errors, "on_tool_error = \"retry\"");
        line(self.refuses_in_flight, "on_in_flight = \"refuse\"");
        line(self.shields, "on_cancel = \"shield\"");
        match self.reach {
            Reach::Workflow => {}
            Reach::Group => line(true, "window = \"run\""),
            Reach::Thread => line(true, "window = \"thread\""),
            Reach::Journal => line(true, "window = \"journal\""),
        }
        line(self.derives_key, "key = \"k{n}\"");
        line(!self.stores_results, "store_result = false");
        line(!self.doubts_spread, "in_doubt_scope = \"call\"");
        line(!self.redelivers, "redeliver_within = \"0s\"");
        line(self.finishes_lost, "on_lost_lease = \"finish\"");
        line(self.covers, "key_covers = [\"/v\"]");
        text
    }
}
