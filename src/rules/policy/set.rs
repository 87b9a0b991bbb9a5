//! From a tool's name to its policy.
//!
//! Everything that a call needs is made when the file is read, so that a call costs a look-up and
//! copies nothing.
//!
//! Must not: read the file ([`super::file`]) or know what a field means.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Delivery, Glob, Policy};

/// The policies of all tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySet {
    pub(super) defaults: Table,
    pub(super) exact: BTreeMap<String, Table>,
    /// The longest first; of equal length, the one that stands first in the file.
    pub(super) globs: Vec<(Glob, String, Table)>,
}

/// The policy under which a call is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    /// The policy; its `delivery` is final.
    pub policy: Arc<Policy>,
    /// What the journal keeps of it with the call; `None` for the default.
    pub record: Option<Arc<str>>,
    /// What the file says about an entry for the tool's calls; `None`: nothing.
    pub journal: Option<bool>,
}

impl InForce {
    /// Returns whether a call gets an entry. `is_trusted_read_only`: annotations are trusted, and
    /// the tool calls itself read-only. What the file says outweighs that.
    #[must_use]
    pub fn is_journaled(&self, is_trusted_read_only: bool) -> bool {
        self.journal.unwrap_or(!is_trusted_read_only)
    }
}

/// One table of the file: its policy, and the one for a tool that says of itself that it may be
/// called twice, where that word is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    plain: InForce,
    hinted: Option<InForce>,
}

impl Table {
    /// Takes a merged policy. `journal` is what the file says about the journal.
    pub(super) fn new(policy: Policy, journal: Option<bool>) -> Self {
        let in_force = |policy: Policy| InForce {
            record: policy.record().map(Into::into),
            policy: Arc::new(policy),
            journal,
        };
        let hinted = policy.delivery_for(Some(true)) != policy.delivery;
        Self {
            hinted: hinted.then(|| {
                in_force(Policy {
                    delivery: Delivery::AtLeastOnce,
                    ..policy.clone()
                })
            }),
            plain: in_force(policy),
        }
    }

    pub(super) fn policy(&self) -> &Arc<Policy> {
        &self.plain.policy
    }

    pub(super) fn journal(&self) -> Option<bool> {
        self.plain.journal
    }
}

impl PolicySet {
    /// Returns the policy under which a call of the tool is made: of the table of that very name,
    /// else of the longest pattern that fits, else `[defaults]`. `idempotent_hint` is that of the
    /// tool's listed definition; it counts only where the policy trusts it.
    #[must_use]
    pub fn in_force(&self, tool: &str, idempotent_hint: Option<bool>) -> &InForce {
        let table = self.look(tool).map_or(&self.defaults, |(_, table)| table);
        match &table.hinted {
            Some(hinted) if idempotent_hint == Some(true) => hinted,
            _ => &table.plain,
        }
    }

    /// Returns the policy of a tool as the file has it, without regard to hints.
    #[must_use]
    pub fn for_tool(&self, tool: &str) -> &Arc<Policy> {
        &self.in_force(tool, None).policy
    }

    /// Returns whether a table of the file speaks for that tool, by name or by pattern.
    #[must_use]
    pub fn is_explicit(&self, tool: &str) -> bool {
        self.look(tool).is_some()
    }

    /// Returns the name of the table that speaks for a tool; `None`: only `[defaults]` does.
    #[must_use]
    pub fn table_of(&self, tool: &str) -> Option<&str> {
        self.look(tool).map(|(name, _)| name)
    }

    /// Returns the policy of a tool that no table speaks for.
    #[must_use]
    pub fn defaults(&self) -> &Policy {
        self.defaults.policy()
    }

    /// Returns every table's name and policy, exact names first, patterns in the order in which
    /// they are tried.
    pub fn tables(&self) -> impl Iterator<Item = (&str, &Policy)> {
        let exact = self.exact.iter();
        let globs = self.globs.iter().map(|(_, name, table)| (name, table));
        exact
            .chain(globs)
            .map(|(name, table)| (name.as_str(), &**table.policy()))
    }

    fn look(&self, tool: &str) -> Option<(&str, &Table)> {
        if let Some((name, table)) = self.exact.get_key_value(tool) {
            return Some((name, table));
        }
        self.globs
            .iter()
            .find(|(glob, ..)| glob.fits(tool))
            .map(|(_, name, table)| (name.as_str(), table))
    }
}
