//! What is said of an entry that is not where it was looked for: where that was, and where it is.
//!
//! Must not: look for it anywhere else on its own; a verdict on another workflow's entry is worse
//! than none.

use super::error::{CliError, Kind};
use super::reading;
use super::target::quote;
use crate::journal::reader::elsewhere::{Elsewhere, Looked};
use crate::journal::reader::{Place, Reader};
use crate::rules::ids::{Seq, WorkflowId};

/// A seq without an entry, where it was looked for.
pub(super) struct Absent {
    pub(super) workflow_id: String,
    /// 0 where there is no such workflow.
    pub(super) branch: u64,
    pub(super) seq: u64,
    /// There is the branch, or the workflow's active one.
    pub(super) has_branch: bool,
    /// That it is not there, as a sentence without a full stop.
    what: String,
    /// Where it is, with the flags that lead there.
    elsewhere: Option<String>,
}

impl Absent {
    /// Tells of a seq that was not found, given the same.
    pub(super) fn find(
        reader: &mut Reader,
        workflow: Option<&WorkflowId>,
        branch: Option<u32>,
        seq: u64,
    ) -> Result<Self, CliError> {
        let found = reader
            .elsewhere(workflow, branch, Seq(seq))
            .map_err(reading::unusable)?;
        Ok(Self {
            branch: match found.looked {
                Looked::NoWorkflow => 0,
                Looked::NoBranch(number) | Looked::Branch(number) => number.into(),
            },
            seq,
            has_branch: matches!(found.looked, Looked::Branch(_)),
            what: what(&found, workflow.is_some(), seq),
            elsewhere: elsewhere(&found, seq),
            workflow_id: found.workflow.0,
        })
    }

    /// Returns it as the reason why nothing was done to one of several.
    pub(super) fn why(&self) -> String {
        match &self.elsewhere {
            Some(elsewhere) => format!("{}; {elsewhere}", self.what),
            None => self.what.clone(),
        }
    }

    /// Returns it as the error of a command that is about this entry alone.
    pub(super) fn error(&self) -> CliError {
        const LIST: &str = "`checkpoint ls` lists those there are, of every workflow and branch";
        CliError::new(Kind::Failure, &*self.what).hint(match &self.elsewhere {
            Some(elsewhere) => format!("{elsewhere}\n{LIST}"),
            None => LIST.to_owned(),
        })
    }
}

fn what(found: &Elsewhere, is_named: bool, seq: u64) -> String {
    let workflow = &found.workflow;
    match found.looked {
        Looked::NoWorkflow if is_named => format!("there is no workflow {workflow}"),
        Looked::NoWorkflow => format!(
            "there is no entry {seq}: nothing was called in the journal's own workflow, {workflow}"
        ),
        Looked::NoBranch(number) => format!("workflow {workflow} has no branch {number}"),
        Looked::Branch(number) => {
            format!("there is no entry {seq} in branch {number} of workflow {workflow}")
        }
    }
}

fn elsewhere(found: &Elsewhere, seq: u64) -> Option<String> {
    if found.others.is_empty() {
        let names: Vec<&str> = found.workflows.iter().map(|id| &*id.0).collect();
        return (!names.is_empty()).then(|| format!("workflows there are: {}", names.join(", ")));
    }
    let flags = |place: &Place| {
        let workflow = quote(&place.workflow.0);
        match place.workflow == found.workflow {
            true => format!("--branch {}", place.branch),
            false => format!("--workflow-id {workflow} --branch {}", place.branch),
        }
    };
    let mut ways: Vec<String> = found.others.iter().map(flags).collect();
    if found.has_more {
        ways.push("others".to_owned());
    }
    Some(format!(
        "there is an entry {seq} with {}",
        ways.join(", with ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(workflow: &str, branch: u32) -> Place {
        Place {
            id: crate::rules::ids::BranchId(1),
            workflow: WorkflowId(workflow.into()),
            branch,
            is_default: false,
            parent: None,
        }
    }

    fn found(looked: Looked, others: Vec<Place>) -> Elsewhere {
        Elsewhere {
            workflow: WorkflowId("w".into()),
            looked,
            others,
            has_more: false,
            workflows: Vec::new(),
        }
    }

    #[test]
    fn where_it_was_looked_for_is_named() {
        for (looked, is_named, expected) in [
            (
                Looked::Branch(1),
                true,
                "there is no entry 3 in branch 1 of workflow w",
            ),
            (Looked::NoBranch(7), true, "workflow w has no branch 7"),
            (Looked::NoWorkflow, true, "there is no workflow w"),
            (
                Looked::NoWorkflow,
                false,
                "there is no entry 3: nothing was called in the journal's own workflow, w",
            ),
        ] {
            assert_eq!(what(&found(looked, Vec::new()), is_named, 3), expected);
        }
    }

    #[test]
    fn the_flags_that_lead_to_it_are_given() {
        let there = vec![place("w", 0), place("it's", 2)];
        let mut found = found(Looked::Branch(1), there);
        let said = "there is an entry 3 with --branch 0, with --workflow-id 'it'\\''s' --branch 2";
        assert_eq!(elsewhere(&found, 3).as_deref(), Some(said));
        found.has_more = true;
        let said = format!("{said}, with others");
        assert_eq!(elsewhere(&found, 3), Some(said));
        found.others.clear();
        assert_eq!(elsewhere(&found, 3), None);
        found.workflows = vec![WorkflowId("a".into()), WorkflowId("b".into())];
        assert_eq!(
            elsewhere(&found, 3).as_deref(),
            Some("workflows there are: a, b")
        );
    }
}
