//! Which entries a command changes: seqs that were named, or conditions that entries meet.
//!
//! Reads only; what may be done to them is judged again, entry by entry, when it is done.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::str::FromStr;

use clap::Args;

use super::absent::Absent;
use super::error::{CliError, Kind};
use super::filter::{Filter, Since};
use super::ls;
use super::reading;
use super::settings::{self, Env};
use super::values;
use super::view::{EntryView, Status, Time};
use crate::journal::reader::{Found, Place, Reader};
use crate::rules::entry::Entry;
use crate::rules::ids::{SEQ_MAX, Seq, WorkflowId};

/// The most seqs that ranges may name.
const NAMED_MAX: u64 = 1_000_000;

/// One seq, or a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seqs {
    first: u64,
    last: u64,
}

impl FromStr for Seqs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected a seq (7) or a range of them (3-7)";
        let number = |text: &str| -> Result<u64, String> {
            let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            match text.parse() {
                Ok(number @ 1..=SEQ_MAX) if is_plain => Ok(number),
                _ => Err(EXPECTED.to_owned()),
            }
        };
        let (first, last) = match text.split_once('-') {
            None => (number(text)?, number(text)?),
            Some((first, last)) => (number(first)?, number(last)?),
        };
        if last < first || last - first >= NAMED_MAX {
            return Err(EXPECTED.to_owned());
        }
        Ok(Self { first, last })
    }
}

/// Flags that name entries.
#[derive(Args, Debug)]
pub(super) struct TargetArgs {
    /// Places of the calls in their workflow, from 1; 3-7 is a range
    #[arg(value_name = "SEQ", conflicts_with_all = ["tool", "since", "until", "status", "session", "call_id"])]
    seqs: Vec<Seqs>,

    /// Instead of seqs: every entry of this tool to which this can be done; * is any text, ? any
    /// character
    #[arg(long, value_name = "GLOB", help_heading = "Conditions")]
    tool: Option<String>,

    /// Instead of seqs: not older than this: a duration, or 2026-11-29T18:00:00Z
    #[arg(long, value_name = "WHEN", help_heading = "Conditions")]
    since: Option<Since>,

    /// Instead of seqs: older than this, likewise
    #[arg(long, value_name = "WHEN", help_heading = "Conditions")]
    until: Option<Since>,

    /// Instead of seqs: of this status, such as FAILED; may be given several times
    #[arg(
        long,
        value_name = "STATUS",
        value_enum,
        ignore_case = true,
        value_delimiter = ',',
        hide_possible_values = true,
        help_heading = "Conditions"
    )]
    status: Vec<Status>,

    /// Instead of seqs: of this session
    #[arg(long, value_name = "ID", value_parser = values::parse_id, help_heading = "Conditions")]
    session: Option<String>,

    /// Instead of seqs: with this id of the client's
    #[arg(long, value_name = "ID", value_parser = values::parse_id, help_heading = "Conditions")]
    call_id: Option<String>,

    /// Workflow of the entries [env: CHECKPOINT_WORKFLOW_ID] [default: for seqs the journal's own,
    /// or its only one; for conditions all]
    #[arg(long, value_name = "ID", value_parser = values::parse_id)]
    workflow_id: Option<String>,

    /// Branch of the entries [default: for seqs the active one, for conditions all]
    #[arg(long, value_name = "N")]
    branch: Option<u32>,
}

/// The entries that are meant.
pub(super) struct Targets {
    /// Those that can be read, with where they stand.
    pub(super) entries: Vec<(Place, Entry)>,
    /// Those that can't.
    pub(super) unreadable: Vec<EntryView>,
    /// The seqs that were named one by one, and are not there.
    pub(super) absent: Vec<Absent>,
    /// They were not all named one by one.
    pub(super) is_bulk: bool,
}

impl Targets {
    /// Returns the tools of the entries that are `meant`, each once.
    pub(super) fn tools(&self, meant: impl Fn(&Entry) -> bool) -> Vec<&str> {
        let mut tools: Vec<&str> = self
            .entries
            .iter()
            .filter(|(_, entry)| meant(entry))
            .map(|(_, entry)| entry.tool.as_str())
            .collect();
        tools.sort_unstable();
        tools.dedup();
        tools
    }
}

/// Flags that say whether it is really done.
#[derive(Args, Debug)]
pub(super) struct ConsentArgs {
    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Do it: needed where entries are not named one by one, and on a terminal instead of typing
    /// the tool's name where that is asked for
    #[arg(long)]
    yes: bool,
}

impl ConsentArgs {
    /// Tells whether these targets are only shown what would be done to them.
    pub(super) fn is_trial(&self, targets: &Targets) -> bool {
        self.dry_run || self.lacks_yes(targets)
    }

    /// Tells whether it is done, and a person may be asked before.
    pub(super) fn may_ask(&self, targets: &Targets) -> bool {
        !self.yes && !self.is_trial(targets)
    }

    /// Returns the error of a command that only showed what it would do, since it was not told to
    /// do it.
    pub(super) fn require(&self, targets: &Targets) -> Result<(), CliError> {
        if self.lacks_yes(targets) && !targets.entries.is_empty() {
            return Err(CliError::new(Kind::Failure, "nothing was done")
                .because("these entries were not named one by one")
                .hint("add --yes to do it"));
        }
        Ok(())
    }

    fn lacks_yes(&self, targets: &Targets) -> bool {
        targets.is_bulk && !self.yes && !self.dry_run
    }
}

impl TargetArgs {
    /// Finds the entries in the journal at `path`, which is closed again. Conditions find only
    /// those that meet `sort` as well.
    pub(super) fn find(
        &self,
        path: &Path,
        sort: Filter,
        env: Env<'_>,
    ) -> Result<Targets, CliError> {
        let mut reader = reading::open(path)?;
        let workflow = settings::workflow_id(self.workflow_id.clone(), env)?;
        if self.seqs.is_empty() {
            return self.find_by_conditions(&mut reader, sort, workflow);
        }
        let workflow = workflow.map(WorkflowId);
        let (named, ranges): (Vec<&Seqs>, Vec<&Seqs>) =
            self.seqs.iter().partition(|seqs| seqs.first == seqs.last);
        let mut targets = Targets {
            entries: Vec::new(),
            unreadable: Vec::new(),
            absent: Vec::new(),
            is_bulk: !ranges.is_empty(),
        };
        let numbers: BTreeSet<u64> = self
            .seqs
            .iter()
            .flat_map(|seqs| seqs.first..=seqs.last)
            .collect();
        for number in numbers {
            let found = reader
                .find(workflow.as_ref(), self.branch, Seq(number))
                .map_err(reading::unusable)?;
            match found {
                Some((place, Found::Whole { entry, .. })) => targets.entries.push((place, *entry)),
                Some((place, torn @ Found::Torn(_))) => {
                    targets.unreadable.push(reading::view(&place, torn));
                }
                None if named.iter().any(|seqs| seqs.first == number) => {
                    let absent = Absent::find(&mut reader, workflow.as_ref(), self.branch, number)?;
                    targets.absent.push(absent);
                }
                // Within a range a seq may be a gap.
                None => {}
            }
        }
        let is_none = targets.entries.is_empty() && targets.unreadable.is_empty();
        if let (true, [range, ..]) = (is_none, &*ranges) {
            let absent = Absent::find(&mut reader, workflow.as_ref(), self.branch, range.first)?;
            if !absent.has_branch {
                return Err(absent.error());
            }
        }
        Ok(targets)
    }

    fn find_by_conditions(
        &self,
        reader: &mut Reader,
        sort: Filter,
        workflow_id: Option<String>,
    ) -> Result<Targets, CliError> {
        let has_condition = self.tool.is_some()
            || self.since.is_some()
            || self.until.is_some()
            || !self.status.is_empty()
            || self.session.is_some()
            || self.call_id.is_some()
            // Given here it is meant; the variable may be set for other reasons.
            || self.workflow_id.is_some();
        if !has_condition {
            return Err(CliError::usage("no entry was named")
                .hint("give a SEQ, or a condition such as --tool or --since"));
        }
        let now = Time::now();
        // Within those to which it can be done at all.
        let statuses: Vec<Status> = match (&*self.status, &*sort.statuses) {
            ([], all) | (all, []) => all.to_vec(),
            (wanted, able) => wanted
                .iter()
                .filter(|one| able.contains(one))
                .copied()
                .collect(),
        };
        let is_none = statuses.is_empty() && !self.status.is_empty();
        let filter = Filter {
            statuses,
            tool: self.tool.clone(),
            since: self.since,
            until: self.until,
            session: self.session.clone(),
            call_id: self.call_id.clone(),
            workflow_id,
            branch: self.branch.map(u64::from),
            ..sort
        };
        let mut entries = Vec::new();
        if let Some(selection) = ls::selection(&filter, now).filter(|_| !is_none) {
            reader
                .each(&selection, |place, found| {
                    let view = reading::view(place, found.clone());
                    if let Found::Whole { entry, .. } = found
                        && filter.matches(&view, now)
                    {
                        entries.push((place.clone(), *entry));
                    }
                    ControlFlow::Continue(())
                })
                .map_err(reading::unusable)?;
        }
        Ok(Targets {
            entries,
            unreadable: Vec::new(),
            absent: Vec::new(),
            is_bulk: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seqs_and_ranges() {
        let seqs = |first, last| Ok(Seqs { first, last });
        assert_eq!("7".parse(), seqs(7, 7));
        assert_eq!("3-7".parse(), seqs(3, 7));
        for bad in [
            "",
            "0",
            "-1",
            "7-3",
            "1-",
            "a",
            "+1",
            "1-2-3",
            "9007199254740992",
            "1-9999999",
        ] {
            assert!(bad.parse::<Seqs>().is_err(), "{bad:?} was accepted");
        }
    }
}
