//! What the oracle has met, counted: what no seed meets proves nothing.

/// What has been met.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) retries_lost: u64,
    pub(crate) takeovers: u64,
    pub(crate) retries_failed: u64,
    pub(crate) retries_tool_error: u64,
    pub(crate) rounds: u64,
    pub(crate) rounds_voided: u64,
    pub(crate) questions_replayed: u64,
    pub(crate) handles_replayed: u64,
    pub(crate) ends_replayed: u64,
    pub(crate) finals_replayed: u64,
    pub(crate) task_ends: u64,
    pub(crate) forks: u64,
    pub(crate) walked: u64,
    pub(crate) walked_out_of_order: u64,
    pub(crate) walks_ended: u64,
    pub(crate) abandons: u64,
    pub(crate) refused_in_flight: u64,
    pub(crate) expired: u64,
    pub(crate) shielded: u64,
    pub(crate) keys_shared: u64,
    /// Outcomes that were told before they were durable, and those that a power cut took.
    pub(crate) deferred: u64,
    pub(crate) deferred_lost: u64,
}
