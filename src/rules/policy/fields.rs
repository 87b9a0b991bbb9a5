//! Every field of a policy: its name, what it takes, how it is read and how it is shown.
//!
//! The one list from which a file is read, a policy is printed, recorded and described to editors,
//! so that none of them can forget a field.

use serde_json::{Value, json};
use toml::Spanned;
use toml::de::DeValue;

use super::Policy;
use super::values::{
    DELIVERIES, ON_CANCELS, ON_CHANGES, ON_FAILURES, ON_IN_FLIGHTS, ON_LOST_LEASES, SCOPES,
    WINDOWS, Wrong, attempts, boolean, choice, duration, key, name_of, pass_key, pointers,
    reconcile, set, show_duration, show_pass_key, show_reconcile, size, some_duration,
};
use crate::rules::units;

/// One field of a policy.
#[derive(Debug)]
pub struct Field {
    /// Its name in the file.
    pub name: &'static str,
    /// The words it takes, where it takes one of a few.
    pub words: &'static [&'static str],
    /// Reads a value into the policy.
    pub(super) read: fn(&mut Policy, &Spanned<DeValue<'_>>) -> Result<(), Wrong>,
    /// Returns the value, `None` if there is none and no default.
    pub show: fn(&Policy) -> Option<Value>,
}

/// The fields, in the order in which they are shown.
pub const FIELDS: &[Field] = &[
    Field {
        name: "journal",
        words: &[],
        read: |policy, value| set(&mut policy.is_journaled, boolean(value)),
        show: |policy| Some(json!(policy.is_journaled)),
    },
    Field {
        name: "key",
        words: &[],
        read: |policy, value| set(&mut policy.key, key(value).map(Some)),
        show: |policy| policy.key.as_ref().map(|key| json!(key.to_string())),
    },
    Field {
        name: "window",
        words: &["run", "thread", "journal", "cross-run"],
        read: |policy, value| set(&mut policy.window, choice(value, WINDOWS).map(Some)),
        show: |policy| policy.window.map(|window| json!(window.name())),
    },
    Field {
        name: "key_covers",
        words: &[],
        read: |policy, value| set(&mut policy.key_covers, pointers(value).map(Some)),
        show: |policy| {
            let pointers = policy.key_covers.as_ref()?;
            Some(pointers.iter().map(|one| json!(one.to_string())).collect())
        },
    },
    Field {
        name: "pass_key",
        words: &[],
        read: |policy, value| set(&mut policy.pass_key, pass_key(value).map(Some)),
        show: |policy| policy.pass_key.as_ref().map(show_pass_key),
    },
    Field {
        name: "delivery",
        words: &["at-most-once", "at-least-once"],
        read: |policy, value| set(&mut policy.delivery, choice(value, DELIVERIES)),
        show: |policy| name_of(policy.delivery, DELIVERIES),
    },
    Field {
        name: "max_attempts",
        words: &[],
        read: |policy, value| set(&mut policy.attempts_max, attempts(value)),
        show: |policy| Some(json!(policy.attempts_max)),
    },
    Field {
        name: "on_failure",
        words: &["replay", "retry"],
        read: |policy, value| set(&mut policy.on_failure, choice(value, ON_FAILURES)),
        show: |policy| name_of(policy.on_failure, ON_FAILURES),
    },
    Field {
        name: "on_tool_error",
        words: &["replay", "retry"],
        read: |policy, value| set(&mut policy.on_tool_error, choice(value, ON_FAILURES)),
        show: |policy| name_of(policy.on_tool_error, ON_FAILURES),
    },
    Field {
        name: "on_in_flight",
        words: &["join", "refuse"],
        read: |policy, value| set(&mut policy.on_in_flight, choice(value, ON_IN_FLIGHTS)),
        show: |policy| name_of(policy.on_in_flight, ON_IN_FLIGHTS),
    },
    Field {
        name: "on_cancel",
        words: &["forward", "shield"],
        read: |policy, value| set(&mut policy.on_cancel, choice(value, ON_CANCELS)),
        show: |policy| name_of(policy.on_cancel, ON_CANCELS),
    },
    Field {
        name: "on_revision_change",
        words: &["note", "ignore", "diverge"],
        read: |policy, value| set(&mut policy.on_revision_change, choice(value, ON_CHANGES)),
        show: |policy| name_of(policy.on_revision_change, ON_CHANGES),
    },
    Field {
        name: "in_doubt_scope",
        words: &["signature", "call"],
        read: |policy, value| set(&mut policy.in_doubt_scope, choice(value, SCOPES)),
        show: |policy| name_of(policy.in_doubt_scope, SCOPES),
    },
    Field {
        name: "redeliver_within",
        words: &[],
        read: |policy, value| set(&mut policy.redeliver_within, duration(value)),
        show: |policy| Some(show_duration(policy.redeliver_within)),
    },
    Field {
        name: "timeout",
        words: &[],
        read: |policy, value| set(&mut policy.timeout, some_duration(value).map(Some)),
        show: |policy| policy.timeout.map(show_duration),
    },
    Field {
        name: "lease_ttl",
        words: &[],
        read: |policy, value| set(&mut policy.lease_ttl, some_duration(value)),
        show: |policy| Some(show_duration(policy.lease_ttl)),
    },
    Field {
        name: "heartbeat",
        words: &[],
        read: |policy, value| set(&mut policy.heartbeat, some_duration(value)),
        show: |policy| Some(show_duration(policy.heartbeat)),
    },
    Field {
        name: "wait_poll",
        words: &[],
        read: |policy, value| set(&mut policy.wait_poll, some_duration(value)),
        show: |policy| Some(show_duration(policy.wait_poll)),
    },
    Field {
        name: "on_lost_lease",
        words: &["cancel", "finish"],
        read: |policy, value| set(&mut policy.on_lost_lease, choice(value, ON_LOST_LEASES)),
        show: |policy| name_of(policy.on_lost_lease, ON_LOST_LEASES),
    },
    Field {
        name: "fence_results",
        words: &[],
        read: |policy, value| set(&mut policy.fences_results, boolean(value)),
        show: |policy| Some(json!(policy.fences_results)),
    },
    Field {
        name: "trust_idempotent_hint",
        words: &[],
        read: |policy, value| set(&mut policy.trusts_idempotent_hint, boolean(value)),
        show: |policy| Some(json!(policy.trusts_idempotent_hint)),
    },
    Field {
        name: "store_result",
        words: &[],
        read: |policy, value| set(&mut policy.store_result, boolean(value)),
        show: |policy| Some(json!(policy.store_result)),
    },
    Field {
        name: "max_result",
        words: &[],
        read: |policy, value| set(&mut policy.result_bytes_max, size(value)),
        show: |policy| {
            let size = usize::try_from(policy.result_bytes_max).unwrap_or(usize::MAX);
            Some(json!(units::size_text(size)))
        },
    },
    Field {
        name: "reconcile",
        words: &[],
        read: |policy, value| set(&mut policy.reconcile, reconcile(value).map(Some)),
        show: |policy| policy.reconcile.as_ref().map(show_reconcile),
    },
];
