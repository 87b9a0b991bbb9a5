//! Walks a whole journal and says everything that does not hold.
//!
//! Each entry's history is replayed through the rules ([`crate::rules::audit`]); what stands
//! between entries (seqs without an entry, fences that two entries claim, rows that refer to
//! nothing) is checked here.
//!
//! Invariants: memory grows with the number of branches, sessions and findings, and by one bit an
//! attempt, not with entries or payloads. Nothing is written, and nothing found stops the walk
//! unless SQLite itself can't read on.
//!
//! Must not: mend anything, or lay anything out.

mod bits;

use std::collections::{BTreeMap, BTreeSet};

use bits::Bits;

use super::stale::Stale;
use crate::journal::cannot_use::CannotUse;
use crate::journal::key::Key;
use crate::journal::mark;
use crate::journal::place::JournalPath;
use crate::journal::walk::{AttemptRow, GapRow, Torn, Walk};
use crate::journal::{Branch, JournalError, Stored};
use crate::json;
use crate::rules::audit::audit;
use crate::rules::ids::{BranchId, Fence, Seq, WorkflowId};
use crate::rules::signature::Scheme;

/// How many lines of SQLite's own check are told.
const INTEGRITY_LINES_MAX: u32 = 1_000;

/// Something that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its sort: a word that stays the same.
    pub kind: &'static str,
    /// The workflow and the branch's number within it, where it is about one.
    pub branch: Option<(WorkflowId, u32)>,
    /// The entry's place, where it is about one.
    pub seq: Option<u64>,
    /// The attempt's fence, where it is about one.
    pub fence: Option<u64>,
    /// What does not hold, as a sentence without a full stop.
    pub what: String,
}

/// What a walk has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Workflows.
    pub workflows: u64,
    /// Entries.
    pub entries: u64,
    /// Attempts and rounds.
    pub attempts: u64,
    /// Events.
    pub events: u64,
    /// The highest fence.
    pub highest_fence: u64,
    /// What the mark said; `None` if there is none that belongs here.
    pub mark: Option<u64>,
}

/// How far a walk has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it is at.
    pub stage: &'static str,
    /// Rows done.
    pub done: u64,
    /// Rows to do; 0 if that is not known.
    pub total: u64,
}

/// Walks the journal; `found` gets each finding, `tell` how far the walk has come.
///
/// # Errors
///
/// There is no journal, or it is none of ours: nothing could be said about it. Damage is a
/// finding, also where it keeps the journal from being opened.
pub fn verify(
    path: &JournalPath,
    found: &mut dyn FnMut(Finding),
    tell: &mut dyn FnMut(Progress),
) -> Result<Seen, CannotUse> {
    let walk = match Walk::open(path) {
        Ok(walk) => walk,
        Err(error) => match damage_of(&error) {
            Some(kind) => {
                found(about_file(kind, error.to_string()));
                return Ok(Seen::default());
            }
            None => return Err(error),
        },
    };
    let mut inspection = Inspection {
        walk: &walk,
        path,
        found,
        tell,
        seen: Seen::default(),
        names: BTreeMap::new(),
        branches: BTreeMap::new(),
        sessions: Bits::default(),
        fences: Bits::default(),
        has_keyed: false,
    };
    // What SQLite can't read on is damage, too; each part is tried on its own, in this order.
    let results = [
        inspection.file(),
        inspection.tables(),
        inspection.entries(),
        inspection.attempts(),
        inspection.events(),
        inspection.keys(),
        inspection.surroundings(),
    ];
    for error in results.into_iter().filter_map(Result::err) {
        (inspection.found)(about_file("integrity", error.to_string()));
    }
    Ok(inspection.seen)
}

/// Returns the sort of damage that keeps a journal from being opened; `None` if it is no damage.
fn damage_of(error: &CannotUse) -> Option<&'static str> {
    match error {
        CannotUse::Empty { .. } | CannotUse::Truncated { .. } => Some("truncated"),
        CannotUse::Damaged { .. } => Some("integrity"),
        CannotUse::OrphanCompanions { .. } => Some("companion"),
        CannotUse::BackInTime { .. } | CannotUse::OtherMark { .. } => Some("mark"),
        CannotUse::KeyMissing { .. } | CannotUse::KeyMismatch { .. } => Some("key"),
        _ => None,
    }
}

fn about_file(kind: &'static str, what: String) -> Finding {
    Finding {
        kind,
        branch: None,
        seq: None,
        fence: None,
        what,
    }
}

struct Inspection<'a> {
    walk: &'a Walk,
    path: &'a JournalPath,
    found: &'a mut dyn FnMut(Finding),
    tell: &'a mut dyn FnMut(Progress),
    seen: Seen,
    /// The names of the workflows, by number.
    names: BTreeMap<u64, WorkflowId>,
    branches: BTreeMap<BranchId, Branch>,
    sessions: Bits,
    /// The fences that belong to an entry's chain.
    fences: Bits,
    has_keyed: bool,
}

impl Inspection<'_> {
    fn add(
        &mut self,
        kind: &'static str,
        place: Option<(BranchId, Option<u64>)>,
        fence: Option<Fence>,
        what: impl Into<String>,
    ) {
        let branch = place.map(|(id, _)| self.place(id));
        (self.found)(Finding {
            kind,
            branch,
            seq: place.and_then(|(_, seq)| seq),
            fence: fence.map(|fence| fence.0),
            what: what.into(),
        });
    }

    fn place(&self, id: BranchId) -> (WorkflowId, u32) {
        place_of(&self.names, &self.branches, id)
    }

    /// The file: SQLite's own check and the schema's text.
    fn file(&mut self) -> Result<(), JournalError> {
        (self.tell)(Progress {
            stage: "integrity check",
            done: 0,
            total: 0,
        });
        for line in self.walk.integrity_faults(INTEGRITY_LINES_MAX)? {
            (self.found)(about_file("integrity", line));
        }
        for line in self.walk.shape_faults()? {
            (self.found)(about_file("schema", line));
        }
        if let Err(error) = self.walk.identity() {
            let what = error.to_string();
            (self.found)(about_file("meta", what));
        }
        Ok(())
    }

    /// Workflows, branches, sessions and gaps.
    fn tables(&mut self) -> Result<(), JournalError> {
        for session in self.walk.sessions()? {
            self.sessions.set(session.0);
        }
        let workflows = self.walk.workflows()?;
        self.seen.workflows = workflows.len() as u64;
        for workflow in &workflows {
            self.names.insert(workflow.number, workflow.id.clone());
        }
        let branches = self.walk.branches()?;
        for branch in &branches {
            self.branches.insert(branch.id, *branch);
        }
        // A new branch of a workflow becomes its active one, and none ever becomes that again.
        let mut newest: BTreeMap<u64, u32> = BTreeMap::new();
        for branch in &branches {
            let number = newest.entry(branch.workflow).or_default();
            *number = branch.number.max(*number);
        }
        for workflow in workflows {
            let owner = self.branches.get(&workflow.active).copied();
            if owner.is_none_or(|branch| branch.workflow != workflow.number) {
                let what = format!(
                    "the active branch of workflow {} is not one of its own",
                    workflow.id
                );
                self.add("workflow", None, None, what);
            }
            let latest = newest.get(&workflow.number).copied().unwrap_or_default();
            if let Some(active) = owner.map(|branch| branch.number).filter(|it| *it < latest) {
                let what = format!(
                    "branch {active} of workflow {} is the active one, but {latest} is its newest",
                    workflow.id
                );
                self.add("workflow", None, None, what);
            }
            if let Some(session) = workflow.generation.filter(|id| !self.sessions.has(id.0)) {
                let what = format!(
                    "session {session} has taken over {}, and is not there",
                    workflow.id
                );
                self.add("session", None, None, what);
            }
        }
        for branch in branches {
            if !self.names.contains_key(&branch.workflow) {
                let what = "the branch belongs to no workflow";
                self.add("branch", Some((branch.id, None)), None, what);
            }
            // A branch is made after the one it comes from, so its number is higher.
            let parent_holds = branch.parent.is_none_or(|(parent, forked_at)| {
                parent < branch.id && self.branches.contains_key(&parent) && forked_at.0 >= 1
            });
            if !parent_holds {
                let what = "the branch that it came from is not there";
                self.add("branch", Some((branch.id, None)), None, what);
            }
        }
        self.forks();
        let (walk, mut faults) = (self.walk, Vec::new());
        let mut before: Option<GapRow> = None;
        walk.each_gap(|gap| match gap {
            Ok(gap) => {
                let highest = self.branches.get(&gap.branch).map(|branch| branch.highest);
                let overlaps = before
                    .is_some_and(|before| before.branch == gap.branch && before.last >= gap.first);
                if gap.first == 0
                    || gap.first > gap.last
                    || highest.is_none_or(|highest| gap.last > highest)
                    || overlaps
                {
                    faults.push((gap.branch, gap.first, gap.last));
                }
                before = Some(gap);
            }
            Err(torn) => faults.push((
                BranchId(torn.first.unwrap_or(0)),
                torn.second.unwrap_or(0),
                0,
            )),
        })?;
        for (branch, first, last) in faults {
            let what = format!("the gap from seq {first} to {last} can't be one of its branch");
            self.add("gap", Some((branch, Some(first))), None, what);
        }
        Ok(())
    }

    /// Where branches begin: right after something that the one before held then, and none is
    /// shorter than what it shares.
    fn forks(&mut self) {
        let forks: Vec<(Branch, u64)> = self
            .branches
            .values()
            .filter_map(|branch| Some((*branch, branch.parent?.1.0)))
            .collect();
        for (branch, forked_at) in forks {
            let parent = branch.parent.and_then(|(id, _)| self.branches.get(&id));
            if let Some(highest) = parent.map(|parent| parent.highest)
                && forked_at > highest + 1
            {
                let what = format!(
                    "the branch begins at seq {forked_at}, but the one that it came from ends at \
                     {highest}"
                );
                self.add("branch", Some((branch.id, None)), None, what);
            }
            if branch.highest + 1 < forked_at {
                let what = format!(
                    "the branch begins at seq {forked_at}, but its highest is {}",
                    branch.highest
                );
                self.add("branch", Some((branch.id, None)), None, what);
            }
        }
    }

    /// Entries, each with its history, and the seqs between them.
    fn entries(&mut self) -> Result<(), JournalError> {
        let total = self.walk.count("entries")?;
        let uid = self
            .walk
            .identity()
            .map_or([0; 16], |identity| identity.uid);
        let walk = self.walk;
        let mut begun: BTreeSet<BranchId> = BTreeSet::new();
        let mut at: Option<(BranchId, u64)> = None;
        let mut failed = None;
        walk.each_entry(|row| {
            self.seen.entries += 1;
            if self.seen.entries.is_multiple_of(1_024) {
                (self.tell)(Progress {
                    stage: "entries",
                    done: self.seen.entries,
                    total,
                });
            }
            let place = match &row {
                Ok(stored) => Some((stored.entry.branch, stored.entry.seq.0)),
                Err(Torn { first, second, .. }) => first.map(BranchId).zip(*second),
            };
            if let Some((branch, seq)) = place {
                if let Some((before, last)) = at.filter(|(before, _)| *before != branch) {
                    self.end_of_branch(before, last);
                }
                let expected = match at {
                    Some((before, last)) if before == branch => last + 1,
                    _ => self.first_seq(branch),
                };
                begun.insert(branch);
                if seq > expected {
                    self.expect_gap(branch, expected, seq - 1);
                }
                at = Some((branch, seq));
            }
            let checked = match row {
                Ok(stored) => self.entry(&stored, &uid),
                Err(torn) => {
                    let place = place.map(|(branch, seq)| (branch, Some(seq)));
                    let what = format!("the row can't be read: {}", torn.why);
                    self.add("unreadable", place, None, what);
                    Ok(())
                }
            };
            if let Err(error) = checked {
                failed.get_or_insert(error);
            }
        })?;
        if let Some((branch, last)) = at {
            self.end_of_branch(branch, last);
        }
        let empty: Vec<BranchId> = self
            .branches
            .keys()
            .copied()
            .filter(|branch| !begun.contains(branch))
            .collect();
        for branch in empty {
            let before = self.first_seq(branch) - 1;
            self.end_of_branch(branch, before);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Returns the first seq that the branch itself holds.
    fn first_seq(&self, branch: BranchId) -> u64 {
        self.branches
            .get(&branch)
            .and_then(|branch| branch.parent)
            .map_or(1, |(_, forked_at)| forked_at.0.max(1))
    }

    fn end_of_branch(&mut self, id: BranchId, last: u64) {
        let Some(branch) = self.branches.get(&id) else {
            return;
        };
        let highest = branch.highest;
        if last > highest && last >= self.first_seq(id) {
            let what =
                format!("the branch's highest seq is {highest}, but it holds an entry {last}");
            self.add("branch", Some((id, Some(last))), None, what);
        } else if last < highest {
            self.expect_gap(id, last + 1, highest);
        }
    }

    /// Seqs without an entry are a gap that was recorded, or entries that are lost.
    fn expect_gap(&mut self, branch: BranchId, first: u64, last: u64) {
        match self.walk.is_gap(branch, first, last) {
            Ok(true) => {}
            Ok(false) => {
                let what = if first == last {
                    format!("entry {first} is missing: it is neither there nor was it left out")
                } else {
                    format!(
                        "entries {first} to {last} are missing: not all were left out on purpose"
                    )
                };
                self.add("missing", Some((branch, Some(first))), None, what);
            }
            Err(error) => {
                self.add(
                    "integrity",
                    Some((branch, Some(first))),
                    None,
                    error.to_string(),
                );
            }
        }
    }

    fn entry(&mut self, stored: &Stored, uid: &[u8; 16]) -> Result<(), JournalError> {
        let entry = &stored.entry;
        let place = Some((entry.branch, Some(entry.seq.0)));
        if !self.branches.contains_key(&entry.branch) {
            self.add("branch", place, None, "its branch is not there");
        }
        if !self.sessions.has(entry.session.0) {
            let what = format!("its session {} is not there", entry.session);
            self.add("session", place, Some(entry.fence), what);
        }
        self.has_keyed |= entry.scheme == Scheme::Keyed;
        let history = match self.walk.history(stored) {
            Ok(history) => history,
            Err(JournalError::Unreadable(why)) => {
                let what = format!("its history can't be read: {why}");
                self.add("unreadable", place, Some(entry.fence), what);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for fault in audit(&history, uid) {
            self.add(fault.kind.name(), place, fault.fence, fault.what);
        }
        for step in &history.steps {
            self.has_keyed |= step.scheme == Scheme::Keyed;
            if !self.fences.set(step.fence.0) {
                let what = format!("fence {} belongs to two entries", step.fence);
                self.add("fence", place, Some(step.fence), what);
            }
        }
        Ok(())
    }

    /// Attempts that no entry's chain leads to, and outcomes of no attempt.
    fn attempts(&mut self) -> Result<(), JournalError> {
        let walk = self.walk;
        self.seen.highest_fence = walk.highest_fence()?;
        let mut failed = None;
        walk.each_attempt(|row| {
            self.seen.attempts += 1;
            let attempt = match row {
                Ok(attempt) => attempt,
                Err(torn) => {
                    let fence = torn.first.map(Fence);
                    let what = format!("an attempt's row can't be read: {}", torn.why);
                    self.add("unreadable", None, fence, what);
                    return;
                }
            };
            if let Err(error) = self.attempt(attempt) {
                failed.get_or_insert(error);
            }
        })?;
        walk.each_orphan(|table, fence| {
            let what = format!("a row of {table} belongs to no attempt");
            self.add("attempt", None, Some(fence), what);
        })?;
        walk.each_untimely(|fence| {
            let what = "an outcome has no place among the fences that can be its own";
            self.add("fence", None, Some(fence), what);
        })?;
        walk.each_odd_question(|fence, what| {
            self.add("round", None, Some(fence), what);
        })?;
        failed.map_or(Ok(()), Err)
    }

    fn attempt(&mut self, attempt: AttemptRow) -> Result<(), JournalError> {
        let place = Some((attempt.branch, Some(attempt.seq.0)));
        let fence = Some(attempt.fence);
        if !self.sessions.has(attempt.session.0) {
            let what = format!("its session {} is not there", attempt.session);
            self.add("session", place, fence, what);
        }
        if self.fences.has(attempt.fence.0) {
            return Ok(());
        }
        if !self.walk.has_entry(attempt.branch, attempt.seq)? {
            self.add("attempt", place, fence, "an attempt belongs to no entry");
        } else if !self.walk.has_left(&attempt)? {
            // A later round that is known not to have run leaves the chain; nothing else does.
            let what = "an attempt is no part of its entry's history";
            self.add("attempt", place, fence, what);
        }
        Ok(())
    }

    /// Events: none is missing, and each refers to something.
    fn events(&mut self) -> Result<(), JournalError> {
        let total = self.walk.count("events")?;
        let walk = self.walk;
        let mut before = 0;
        let mut failed = None;
        walk.each_event(|row| {
            self.seen.events += 1;
            if self.seen.events.is_multiple_of(1_024) {
                (self.tell)(Progress {
                    stage: "events",
                    done: self.seen.events,
                    total,
                });
            }
            let row = match row {
                Ok(row) => row,
                Err(torn) => {
                    before = torn.first.unwrap_or(before);
                    let what = format!("the row of an event can't be read: {}", torn.why);
                    self.add("unreadable", None, None, what);
                    return;
                }
            };
            if row.id > before + 1 {
                let what = match row.id - before - 1 {
                    1 => format!("event {} is missing", before + 1),
                    _ => format!("events {} to {} are missing", before + 1, row.id - 1),
                };
                self.add("event", None, None, what);
            }
            before = row.id;
            if let Err(error) = self.event(&row) {
                failed.get_or_insert(error);
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    fn event(&mut self, row: &crate::journal::EventRow) -> Result<(), JournalError> {
        let event = &row.event;
        let place = event.entry.map(|(branch, seq)| (branch, Some(seq.0)));
        if let Some((branch, seq)) = event.entry
            && !self.walk.has_entry(branch, seq)?
        {
            let what = format!(
                "event {} ({}) is about an entry that is not there",
                row.id, event.kind
            );
            self.add("event", place, event.fence, what);
        }
        if let Some(fence) = event.fence
            && fence.0 > self.seen.highest_fence
        {
            let what = format!(
                "event {} ({}) is about an attempt that is not there",
                row.id, event.kind
            );
            self.add("event", place, Some(fence), what);
        }
        let is_json = |text: &String| json::check(text.as_bytes()).is_ok();
        if !event.detail.as_ref().is_none_or(is_json) {
            let what = format!("the detail of event {} ({}) is no JSON", row.id, event.kind);
            self.add("event", place, event.fence, what);
        }
        if Stale::of(event).is_some_and(|stale| !stale.holds()) {
            let what = format!(
                "the bytes of the stale answer in event {} are not those that were recorded",
                row.id
            );
            self.add("digest", place, event.fence, what);
        }
        if let Some(session) = event.session
            && !self.sessions.has(session.0)
        {
            let what = format!("session {session} of event {} is not there", row.id);
            self.add("session", place, event.fence, what);
        }
        Ok(())
    }

    fn keys(&mut self) -> Result<(), JournalError> {
        let walk = self.walk;
        walk.each_second_holder(|branch, seq: Seq| {
            let what = "it holds a key that an earlier entry holds";
            self.add("held_key", Some((branch, Some(seq.0))), None, what);
        })
    }

    /// What stands beside the journal: the mark and the key.
    fn surroundings(&mut self) -> Result<(), JournalError> {
        match self.walk.mark() {
            Ok(Some(read)) => {
                self.seen.mark = Some(read.highest);
                if let Err(error) = mark::check(self.path, &read, self.seen.highest_fence) {
                    (self.found)(about_file("mark", error.to_string()));
                }
            }
            Ok(None) => {}
            Err(why) => {
                let what = why.to_owned();
                (self.found)(about_file("mark", what));
            }
        }
        let fingerprint = self
            .walk
            .identity()
            .ok()
            .and_then(|identity| identity.key_fingerprint);
        match fingerprint {
            Some(fingerprint) => {
                if let Err(error) = Key::load(self.path, &fingerprint) {
                    (self.found)(about_file("key", error.to_string()));
                }
            }
            None if self.has_keyed => {
                let what = "there are keyed signatures, but the journal knows of no key";
                (self.found)(about_file("key", what.to_owned()));
            }
            None => {}
        }
        Ok(())
    }
}

fn place_of(
    names: &BTreeMap<u64, WorkflowId>,
    branches: &BTreeMap<BranchId, Branch>,
    id: BranchId,
) -> (WorkflowId, u32) {
    match branches.get(&id) {
        Some(branch) => (
            names
                .get(&branch.workflow)
                .cloned()
                .unwrap_or_else(|| WorkflowId(String::new())),
            branch.number,
        ),
        None => (WorkflowId(String::new()), 0),
    }
}

#[cfg(test)]
mod dumps;
#[cfg(test)]
mod tests;
