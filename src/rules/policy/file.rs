//! A policy file: TOML text into a [`PolicySet`], checked whole before anything starts.
//!
//! Every error names its line, its field and what was expected, and all of them are reported at
//! once. Nothing that was written is ever dropped in silence: an unknown field is an error, and so
//! is a field that can have no effect where it stands.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fields::FIELDS;
use super::set::Table;
use super::values::Wrong;
use super::{Glob, Policy, PolicySet, ReconcileBy};
use crate::json::quote;
use crate::rules::ids::Window;

/// What is wrong in a policy file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The line, from 1.
    pub line: usize,
    /// The field, like `tools.charge.delivery`; empty where the text is no TOML.
    pub field: String,
    /// What was expected, as half a sentence.
    pub why: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.line)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.why)
    }
}

impl std::error::Error for PolicyError {}

/// Whether a run has a thread id, which `window = "thread"` needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadId {
    /// It has one.
    Given,
    /// It has none.
    Absent,
    /// There is no run: the file is only looked at.
    Unasked,
}

/// Fields that are checked together.
type Check = (
    &'static [&'static str],
    fn(&Policy, ThreadId) -> Option<String>,
);

/// What must hold between fields, with the fields it is about, the first of them to be named.
const CHECKS: &[Check] = &[
    (&["key", "window"], |policy, _| {
        let is_wrong = policy.key.is_some() && policy.window.is_none();
        is_wrong.then(|| {
            "expected window = \"run\", \"thread\" or \"journal\" beside it: how far the key holds"
                .to_owned()
        })
    }),
    (&["window"], |policy, thread| {
        let is_wrong = policy.window == Some(Window::Thread) && thread == ThreadId::Absent;
        is_wrong.then(|| {
            "expected a thread id for \"thread\": --thread-id ID, or CHECKPOINT_THREAD_ID"
                .to_owned()
        })
    }),
    (&["heartbeat", "lease_ttl"], |policy, _| {
        (policy.heartbeat >= policy.lease_ttl).then(|| {
            format!(
                "expected a heartbeat below the lease_ttl, not {} of {}",
                crate::rules::units::duration_text(policy.heartbeat),
                crate::rules::units::duration_text(policy.lease_ttl)
            )
        })
    }),
];

impl PolicySet {
    /// Reads the text of a policy file. An empty one gives every tool the default.
    ///
    /// # Errors
    ///
    /// All that is wrong, in the order of the lines; at least one.
    pub fn parse(text: &str, thread: ThreadId) -> Result<Self, Vec<PolicyError>> {
        let mut reader = Reader {
            text,
            thread,
            errors: Vec::new(),
        };
        let set = match DeTable::parse(text) {
            Ok(root) => reader.root(root.get_ref()),
            Err(error) => {
                let at = error.span().unwrap_or(text.len()..text.len());
                reader.wrong(at, String::new(), format!("not TOML: {}", error.message()));
                Self::default()
            }
        };
        if reader.errors.is_empty() {
            Ok(set)
        } else {
            reader.errors.sort_by_key(|error| error.line);
            Err(reader.errors)
        }
    }
}

impl Policy {
    /// Reads back what [`Policy::record`] wrote.
    ///
    /// # Errors
    ///
    /// All that is wrong: the text is damaged, or from a version with other fields.
    pub fn from_record(text: &str) -> Result<Self, Vec<PolicyError>> {
        let set = PolicySet::parse(&format!("[defaults]\n{text}"), ThreadId::Unasked)?;
        Ok(set.defaults().clone())
    }
}

struct Reader<'t> {
    text: &'t str,
    thread: ThreadId,
    errors: Vec<PolicyError>,
}

/// The fields that a table sets, with where they stand.
type Set = BTreeMap<&'static str, Range<usize>>;

impl Reader<'_> {
    fn wrong(&mut self, at: Range<usize>, field: String, why: String) {
        let before = &self.text.as_bytes()[..at.start.min(self.text.len())];
        self.errors.push(PolicyError {
            line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
            field,
            why,
        });
    }

    fn root(&mut self, root: &DeTable<'_>) -> PolicySet {
        let mut set = PolicySet::default();
        for (name, value) in root {
            match &**name.get_ref() {
                "defaults" | "tools" => {}
                other => self.wrong(
                    name.span(),
                    key_text(other),
                    "unknown; expected [defaults] or [tools.NAME]".to_owned(),
                ),
            }
            if !matches!(value.get_ref(), DeValue::Table(_)) {
                self.wrong(
                    value.span(),
                    key_text(name.get_ref()),
                    "expected a table".to_owned(),
                );
            }
        }
        if let Some(DeValue::Table(table)) = root.get("defaults").map(Spanned::get_ref) {
            let mut policy = Policy::default();
            let fields = self.fields("defaults", table, &mut policy);
            self.check("defaults", &policy, &fields, None);
            let journal = fields
                .contains_key("journal")
                .then_some(policy.is_journaled);
            set.defaults = Table::new(policy, journal);
        }
        if let Some(DeValue::Table(tools)) = root.get("tools").map(Spanned::get_ref) {
            let mut globs = Vec::new();
            for (name, value) in tools {
                self.tool(name, value, &mut set, &mut globs);
            }
            // The longest first; of equal length, the one that stands first.
            globs.sort_by_key(|(at, glob, ..)| (std::cmp::Reverse(Glob::length(glob)), *at));
            set.globs = globs
                .into_iter()
                .map(|(_, glob, name, table)| (glob, name, table))
                .collect();
        }
        set
    }

    fn tool(
        &mut self,
        name: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        set: &mut PolicySet,
        globs: &mut Vec<(usize, Glob, String, Table)>,
    ) {
        let tool = &**name.get_ref();
        let place = format!("tools.{}", key_text(tool));
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong(value.span(), place, "expected a table".to_owned());
            return;
        };
        let mut policy = set.defaults().clone();
        let fields = self.fields(&place, table, &mut policy);
        // A word for this very tool outweighs what the upstream says of it and what the defaults
        // say of hints.
        if fields.contains_key("delivery") && !fields.contains_key("trust_idempotent_hint") {
            policy.trusts_idempotent_hint = false;
        }
        self.check(&place, &policy, &fields, Some(name.span()));
        // Asking the tool itself would do again what is in doubt.
        if let Some(at) = fields.get("reconcile")
            && let Some(ReconcileBy::Tool(asked)) = policy.reconcile.as_ref().map(|one| &one.by)
            && asked.tool == tool
        {
            self.wrong(
                at.clone(),
                format!("{place}.reconcile.tool"),
                "expected another tool, one that only reads; asking this one could do it again"
                    .to_owned(),
            );
        }
        let journal = fields
            .contains_key("journal")
            .then_some(policy.is_journaled);
        let table = Table::new(policy, journal.or(set.defaults.journal()));
        if tool.is_empty() {
            self.wrong(name.span(), place, "expected a tool's name".to_owned());
        } else if Glob::is_one(tool) {
            match Glob::parse(tool) {
                Ok(glob) => globs.push((name.span().start, glob, tool.to_owned(), table)),
                Err(why) => self.wrong(name.span(), place, why.to_owned()),
            }
        } else {
            set.exact.insert(tool.to_owned(), table);
        }
    }

    fn fields(&mut self, place: &str, table: &DeTable<'_>, policy: &mut Policy) -> Set {
        let mut set = Set::new();
        for (name, value) in table {
            let written = &**name.get_ref();
            let path = format!("{place}.{}", key_text(written));
            let Some(field) = FIELDS.iter().find(|field| field.name == written) else {
                self.wrong(name.span(), path, unknown(place, written, value.get_ref()));
                continue;
            };
            set.insert(field.name, value.span());
            if let Err(Wrong { within, span, why }) = (field.read)(policy, value) {
                self.wrong(span.unwrap_or_else(|| value.span()), path + &within, why);
            }
        }
        set
    }

    /// Checks what must hold between fields. `table` is where a tool's table stands; what is wrong
    /// in `[defaults]` alone is reported there and nowhere else.
    fn check(&mut self, place: &str, policy: &Policy, set: &Set, table: Option<Range<usize>>) {
        for (fields, check) in CHECKS {
            let Some(why) = check(policy, self.thread) else {
                continue;
            };
            if let Some(field) = fields.iter().find(|field| set.contains_key(*field)) {
                self.wrong(set[field].clone(), format!("{place}.{field}"), why);
            }
        }
        if table.is_some() && !policy.is_journaled && set.contains_key("journal") {
            for (field, at) in set.iter().filter(|(field, _)| **field != "journal") {
                self.wrong(
                    at.clone(),
                    format!("{place}.{field}"),
                    "expected no other field beside journal = false: nothing else has an effect"
                        .to_owned(),
                );
            }
        }
    }
}

/// Returns what to say about a field that is none.
fn unknown(place: &str, written: &str, value: &DeValue<'_>) -> String {
    let close = written.replace('-', "_").to_lowercase();
    if let Some(field) = FIELDS.iter().find(|field| field.name == close) {
        return format!("unknown field; did you mean {}?", field.name);
    }
    let names: Vec<_> = FIELDS.iter().map(|field| field.name).collect();
    let mut why = format!("unknown field; the fields are {}", names.join(", "));
    if matches!(value, DeValue::Table(_)) && place.starts_with("tools.") {
        let tool = format!("{}.{written}", &place["tools.".len()..]);
        why = format!(
            "{why} (a tool's name with a dot in it is quoted: [tools.{}])",
            quote(&tool)
        );
    }
    why
}

/// Returns a key as TOML spells it.
fn key_text(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if !name.is_empty() && name.chars().all(is_plain) {
        name.to_owned()
    } else {
        quote(name)
    }
}

#[cfg(test)]
mod tests;
