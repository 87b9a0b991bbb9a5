//! What may differ from tool to tool: how a lost call is treated, how long one waits.
//!
//! The values of [`Policy::default`] are those of the contract, section 9. Reading a policy file
//! and matching tool names comes with the policies room; until then every tool has the default.
//!
//! Must not: read files or look at entries.

use std::time::Duration;

/// Whether a call that was lost may be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Never: a lost call stays in doubt until somebody settles it.
    AtMostOnce,
    /// Yes, as a new attempt with a new fence, while attempts are left.
    AtLeastOnce,
}

/// What an equal call gets once an earlier one has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// The stored failure, since the effect may have happened.
    Replay,
    /// A new attempt while attempts are left.
    Retry,
}

/// What an equal call gets while the first one runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnInFlight {
    /// It waits for that call's outcome.
    Join,
    /// It is refused at once.
    Refuse,
}

/// What a call with another signature gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnDivergence {
    /// It is refused.
    Strict,
    /// It opens a new branch of the workflow.
    Fork,
}

/// How far a doubt reaches (contract, section 5, the guard).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InDoubtScope {
    /// An equal call without a seq or a key is refused as well.
    Signature,
    /// Only the call that means that very entry is refused.
    Call,
}

/// The rules for the calls of one tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether a lost call may be run again.
    pub delivery: Delivery,
    /// Attempts that an entry may have under at-least-once or retries, from 1.
    pub attempts_max: u32,
    /// What an equal call gets once the entry is FAILED.
    pub on_failure: OnFailure,
    /// What an equal call gets once the entry is COMPLETED with `isError`.
    pub on_tool_error: OnFailure,
    /// What an equal call gets while the entry's call runs.
    pub on_in_flight: OnInFlight,
    /// How far a doubt reaches.
    pub in_doubt_scope: InDoubtScope,
    /// For how long an outcome that reached nobody answers an equal new call.
    pub redeliver_within: Duration,
    /// After which a call is answered `outcome_unknown`; `None`: only `--call-timeout` counts.
    pub timeout: Option<Duration>,
    /// How often a join across processes looks again.
    pub wait_poll: Duration,
    /// Whether the result is kept; without it a replay is `result_expired`.
    pub store_result: bool,
    /// The largest result that is kept, in bytes.
    pub result_bytes_max: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            delivery: Delivery::AtMostOnce,
            attempts_max: 3,
            on_failure: OnFailure::Replay,
            on_tool_error: OnFailure::Replay,
            on_in_flight: OnInFlight::Join,
            in_doubt_scope: InDoubtScope::Signature,
            redeliver_within: Duration::from_secs(15 * 60),
            timeout: None,
            wait_poll: Duration::from_millis(500),
            store_result: true,
            result_bytes_max: 64 << 20,
        }
    }
}
