//! A new workflow that shares what another one has done so far.
//!
//! Nothing of the other workflow changes; an entry in doubt is shared as one in doubt, and a
//! damaged one as damaged.
//!
//! Must not: write an entry.

use super::verdict::Deed;
use crate::journal::{Durability, Event, Journal, JournalError, Transaction};
use crate::json;
use crate::rules::ids::{BranchId, Micros, Seq, WorkflowId};

/// What a fork starts from, and what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The workflow whose entries are shared.
    pub from: WorkflowId,
    /// Its branch; `None`: the active one.
    pub branch: Option<BranchId>,
    /// The first seq that is not shared.
    pub at: Seq,
    /// The new workflow's name.
    pub new: WorkflowId,
    /// 128 random bits for it.
    pub uid: [u8; 16],
}

/// Why nothing was forked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotForked {
    /// There is no such workflow or branch.
    #[error("there is no such workflow or branch")]
    Absent,
    /// The new name is taken.
    #[error("there is a workflow of that name already")]
    Taken,
    /// The branch does not reach that far.
    #[error("its highest seq is {highest}, so a fork can begin at {} at most", highest + 1)]
    TooFar {
        /// The branch's highest seq.
        highest: u64,
    },
}

/// Makes a workflow that shares the entries before a place, or tells whether it could. Nothing of
/// the other workflow changes; an entry in doubt is shared as one in doubt.
///
/// # Errors
///
/// As the journal's: [`JournalError::Busy`] may be tried again.
pub fn fork<J: Journal>(
    journal: &mut J,
    fork: &Fork,
    deed: &Deed,
    now: Micros,
    is_trial: bool,
) -> Result<Result<(), NotForked>, JournalError> {
    let mut tx = journal.begin(Durability::Power)?;
    let Some(from) = tx.workflow(&fork.from)? else {
        return Ok(Err(NotForked::Absent));
    };
    let parent = match fork.branch {
        None => Some(from.active),
        Some(id) => tx
            .branch(id)?
            .filter(|branch| branch.workflow == from.number),
    };
    let Some(parent) = parent else {
        return Ok(Err(NotForked::Absent));
    };
    if tx.workflow(&fork.new)?.is_some() {
        return Ok(Err(NotForked::Taken));
    }
    // What is shared must be there: a seq beyond it would belong to neither.
    if fork.at.0 > parent.highest + 1 {
        return Ok(Err(NotForked::TooFar {
            highest: parent.highest,
        }));
    }
    tx.fork_workflow(&fork.new, fork.uid, (parent.id, fork.at), now)?;
    let mut members = vec![
        format!("\"by\":{}", json::quote(&deed.by)),
        format!("\"from_workflow\":{}", json::quote(&fork.from.0)),
        format!("\"from_branch\":{}", parent.number),
        format!("\"at\":{}", fork.at),
        format!("\"new_workflow\":{}", json::quote(&fork.new.0)),
    ];
    if let Some(reason) = &deed.reason {
        members.push(format!("\"reason\":{}", json::quote(reason)));
    }
    tx.event(&Event {
        kind: "forked".to_owned(),
        at: now,
        // The place may have no entry yet; the branch's own row says where it begins.
        entry: None,
        fence: None,
        session: None,
        letter: None,
        detail: Some(format!("{{{}}}", members.join(","))),
        merge_key: None,
    })?;
    if !is_trial {
        tx.commit()?;
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{World, call, reserve};
    use super::*;

    #[test]
    fn a_fork_shares_what_is_before_it_and_takes_no_name_twice() {
        let world = World::new();
        let mut guard = world.guard();
        reserve(&mut guard, call(Some(1), "{}"), 10);
        drop(guard);
        let mut journal = world.journal();
        let from = |at, new: &str| Fork {
            from: WorkflowId("own".into()),
            branch: None,
            at: Seq(at),
            new: WorkflowId(new.into()),
            uid: [9; 16],
        };
        let place = (BranchId(1), Seq(1));
        let before = {
            let mut tx = journal.begin(Durability::Power).unwrap();
            tx.entry(place.0, place.1).unwrap()
        };
        let deed = Deed::default();
        let mut make =
            |what: &Fork, is_trial| fork(&mut journal, what, &deed, Micros(50), is_trial);
        assert_eq!(make(&from(2, "w2"), true), Ok(Ok(())));
        assert_eq!(make(&from(2, "w2"), false), Ok(Ok(())));
        assert_eq!(make(&from(2, "w2"), false), Ok(Err(NotForked::Taken)));
        assert_eq!(make(&from(2, "own"), false), Ok(Err(NotForked::Taken)));
        let too_far = NotForked::TooFar { highest: 1 };
        assert_eq!(make(&from(3, "w3"), false), Ok(Err(too_far)));
        let mut tx = journal.begin(Durability::Power).unwrap();
        let made = tx.workflow(&WorkflowId("w2".into())).unwrap().unwrap();
        assert_eq!(made.active.parent, Some((place.0, Seq(2))));
        assert!(before.is_some());
        assert_eq!(tx.entry(place.0, place.1).unwrap(), before);
    }
}
