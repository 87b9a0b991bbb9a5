//! What may differ from tool to tool: how a lost call is treated, how long one waits, which key
//! names its effect.
//!
//! The values of [`Policy::default`] are those of the contract, section 9. One table of a policy
//! file speaks for a tool: the one of its exact name, else the longest pattern that fits; what
//! that table does not say comes from `[defaults]`, never from another table, so that each table
//! is checked whole when the file is read ([`file`]) and nothing is met at call time but a value
//! that a call lacks (`template`).
//!
//! Must not: read files or look at entries.

use std::time::Duration;

mod fields;
mod file;
mod glob;
mod pointer;
mod reconcile;
mod set;
mod template;
mod values;

pub use fields::{FIELDS, Field};
pub use file::{PolicyError, ThreadId};
pub use glob::Glob;
pub use pointer::Pointer;
pub use reconcile::{
    Condition, RECONCILE_TIMEOUT_DEFAULT, Reconcile, ReconcileBy, ReconcileTool, Shape, ToolVerdict,
};
pub use set::{InForce, PolicySet};
pub use template::{InvalidKey, KeySource, Template, covers_equal, derive_key};

use super::ids::Window;

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

/// What becomes of a client's cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnCancel {
    /// The upstream is told.
    Forward,
    /// The upstream is not told, so that the outcome becomes known.
    Shield,
}

/// What it means that the tool's definition or the upstream's version is another than the entry's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnRevisionChange {
    /// An event says so.
    Note,
    /// Nothing.
    Ignore,
    /// The call diverges.
    Diverge,
}

/// What the owner of a call does that has lost its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnLostLease {
    /// It cancels the call upstream.
    Cancel,
    /// It lets the call end; the outcome is stale either way.
    Finish,
}

/// How far a doubt reaches (contract, section 5, the guard).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InDoubtScope {
    /// An equal call without a seq or a key is refused as well.
    Signature,
    /// Only the call that means that very entry is refused.
    Call,
}

/// Where the upstream is told the call's key, attempt and fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassKey {
    /// In arguments of these names, where the client did not send one. The names differ.
    Arguments {
        /// The argument that gets the key, a string.
        key: String,
        /// The argument that gets the attempt's number, from 1.
        attempt: Option<String>,
        /// The argument that gets the fence, a number.
        fence: Option<String>,
    },
    /// In `_meta.checkpoint`, as `{idempotency_key, attempt, fence}`.
    Meta,
}

/// The rules for the calls of one tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether its calls get an entry; without one they are relayed and nothing else here counts.
    pub is_journaled: bool,
    /// What a call's key is made from, where the client sends none. Only with [`Policy::window`].
    pub key: Option<KeySource>,
    /// How far the key holds, also one that a client sends; see [`Policy::client_key_window`].
    pub window: Option<Window>,
    /// The arguments that must be equal under one key; `None`: all of them.
    pub key_covers: Option<Vec<Pointer>>,
    /// Where the upstream is told the key.
    pub pass_key: Option<PassKey>,
    /// Whether a lost call may be run again; see [`Policy::delivery_for`].
    pub delivery: Delivery,
    /// Attempts that an entry may have under at-least-once or retries, from 1.
    pub attempts_max: u32,
    /// What an equal call gets once the entry is FAILED.
    pub on_failure: OnFailure,
    /// What an equal call gets once the entry is COMPLETED with `isError`.
    pub on_tool_error: OnFailure,
    /// What an equal call gets while the entry's call runs.
    pub on_in_flight: OnInFlight,
    /// What becomes of a client's cancellation.
    pub on_cancel: OnCancel,
    /// What another revision of the tool means.
    pub on_revision_change: OnRevisionChange,
    /// How far a doubt reaches.
    pub in_doubt_scope: InDoubtScope,
    /// For how long an outcome that reached nobody answers an equal new call; may be zero.
    pub redeliver_within: Duration,
    /// After which a call is answered `outcome_unknown`, never zero; `None`: only
    /// `--call-timeout` counts.
    pub timeout: Option<Duration>,
    /// How long an at-least-once owner may be silent before it is taken over; never zero.
    pub lease_ttl: Duration,
    /// How often the owner renews its lease while a call is in flight; below the ttl, never zero.
    pub heartbeat: Duration,
    /// How often a join across processes looks again; never zero.
    pub wait_poll: Duration,
    /// What an owner does that has lost its fence.
    pub on_lost_lease: OnLostLease,
    /// Whether the outcome of an older attempt is stale; else the first finisher wins.
    pub fences_results: bool,
    /// Whether `idempotentHint: true` counts as at-least-once.
    pub trusts_idempotent_hint: bool,
    /// Whether the result is kept; without it a replay is `result_expired`.
    pub store_result: bool,
    /// The largest result that is kept, in bytes; never zero.
    pub result_bytes_max: u64,
    /// Who is asked what became of a call in doubt.
    pub reconcile: Option<Reconcile>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            is_journaled: true,
            key: None,
            window: None,
            key_covers: None,
            pass_key: None,
            delivery: Delivery::AtMostOnce,
            attempts_max: 3,
            on_failure: OnFailure::Replay,
            on_tool_error: OnFailure::Replay,
            on_in_flight: OnInFlight::Join,
            on_cancel: OnCancel::Forward,
            on_revision_change: OnRevisionChange::Note,
            in_doubt_scope: InDoubtScope::Signature,
            redeliver_within: Duration::from_secs(15 * 60),
            timeout: None,
            lease_ttl: Duration::from_secs(15),
            heartbeat: Duration::from_secs(5),
            wait_poll: Duration::from_millis(500),
            on_lost_lease: OnLostLease::Cancel,
            fences_results: true,
            trusts_idempotent_hint: false,
            store_result: true,
            result_bytes_max: 64 << 20,
            reconcile: None,
        }
    }
}

impl Policy {
    /// Returns how far a key holds that the client sent itself: the run, unless the policy says
    /// otherwise (contract, section 5).
    #[must_use]
    pub fn client_key_window(&self) -> Window {
        self.window.unwrap_or(Window::Run)
    }

    /// Returns the delivery of a tool whose listed definition has this `idempotentHint`.
    #[must_use]
    pub fn delivery_for(&self, idempotent_hint: Option<bool>) -> Delivery {
        if self.trusts_idempotent_hint && idempotent_hint == Some(true) {
            Delivery::AtLeastOnce
        } else {
            self.delivery
        }
    }

    /// Returns every field that has a value as lines of TOML, in the order of [`FIELDS`].
    #[must_use]
    pub fn to_toml(&self) -> String {
        self.lines(|_, _| true)
    }

    /// Returns the fields that differ from [`Policy::default`] as lines of TOML, which
    /// [`Policy::from_record`] reads back; `None` if none does. For the journal, so that a later
    /// change of the file does not reinterpret the past. The defaults are the contract's and don't
    /// change; [`InForce::record`] has it ready for each call.
    #[must_use]
    pub fn record(&self) -> Option<String> {
        let default = Self::default();
        if *self == default {
            return None;
        }
        let lines = self.lines(|field, text| {
            (field.show)(&default)
                .map(|value| values::toml_text(&value))
                .as_deref()
                != Some(text)
        });
        (!lines.is_empty()).then_some(lines)
    }

    fn lines(&self, is_wanted: impl Fn(&Field, &str) -> bool) -> String {
        let mut lines = String::new();
        for field in FIELDS {
            let Some(value) = (field.show)(self) else {
                continue;
            };
            let text = values::toml_text(&value);
            if is_wanted(field, &text) {
                lines.push_str(&format!("{} = {text}\n", field.name));
            }
        }
        lines
    }
}
