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
    /// Calls of a workflow that an operator made which meant an entry that it shares.
    pub(crate) splits_shared: u64,
    /// Lines that told the upstream a key, and those of further attempts.
    pub(crate) keys_passed: u64,
    pub(crate) keys_passed_again: u64,
    /// Calls that a key stood for although not all of their arguments were equal.
    pub(crate) covered: u64,
    /// Entries that an attempt before the current one finished, and answers that came too late.
    pub(crate) first_finishers: u64,
    pub(crate) stale_answers: u64,
    /// Verdicts, by what they say and what they were given on.
    pub(crate) ruled_completed: u64,
    pub(crate) ruled_failed: u64,
    pub(crate) ruled_not_executed: u64,
    pub(crate) ruled_unknown: u64,
    pub(crate) ruled_wrongly: u64,
    pub(crate) ruled_rounds: u64,
    pub(crate) taken_running: u64,
    pub(crate) taken_open: u64,
    pub(crate) adopted: u64,
    pub(crate) taken_back: u64,
    pub(crate) reopened: u64,
    pub(crate) hand_delivered: u64,
    pub(crate) announced: u64,
    /// Verdicts that were not given, by why.
    pub(crate) refused_absent: u64,
    pub(crate) refused_damaged: u64,
    pub(crate) refused_owned: u64,
    pub(crate) refused_open: u64,
    pub(crate) refused_settled: u64,
    pub(crate) refused_changed: u64,
    pub(crate) refused_adoption: u64,
    pub(crate) verdicts_rehearsed: u64,
    pub(crate) verdicts_unknown: u64,
    /// Outcomes that were told before they were durable, and those that a power cut took.
    pub(crate) deferred: u64,
    pub(crate) deferred_lost: u64,
}
