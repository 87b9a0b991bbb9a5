//! What the journal knows of a call in doubt, for a command that is asked what became of it.
//!
//! Must not: change anything, or say what the answer means.

use crate::journal::{Durability, Journal, JournalError, Payload, Transaction};
use crate::rules::entry::{Entry, Status};
use crate::rules::ids::{BranchId, Seq, WorkflowId};

/// What the journal knows of a call in doubt, for whoever is asked about it.
#[derive(Clone, Debug)]
pub struct Story {
    /// The workflow, and its random bits.
    pub workflow: (WorkflowId, [u8; 16]),
    /// The branch's number within it.
    pub branch: u32,
    /// The entry.
    pub entry: Entry,
    /// The arguments' bytes, where the journal has them.
    pub arguments: Option<Payload>,
    /// They were left out on purpose.
    pub is_redacted: bool,
}

/// Returns what is known of the PENDING entry at a place; nothing if there is none or it does not
/// hold.
///
/// # Errors
///
/// As the journal's: [`JournalError::Busy`] may be tried again.
pub fn story<J: Journal>(
    journal: &mut J,
    place: (BranchId, Seq),
) -> Result<Option<Story>, JournalError> {
    let uid = journal.identity().uid;
    let mut tx = journal.begin(Durability::Process)?;
    let stored = match tx.entry(place.0, place.1) {
        Ok(stored) => stored,
        Err(JournalError::Unreadable(_)) => None,
        Err(error) => return Err(error),
    };
    let Some(stored) = stored.filter(|stored| {
        stored.entry.status == Status::Pending && stored.checksum == stored.entry.checksum(&uid)
    }) else {
        return Ok(None);
    };
    let entry = stored.entry;
    let Some(branch) = tx.branch(entry.branch)? else {
        return Ok(None);
    };
    let Some(workflow) = tx.workflow_of(branch.workflow)? else {
        return Ok(None);
    };
    let attempt = match tx.attempt(entry.fence) {
        Ok(attempt) => attempt,
        Err(JournalError::Unreadable(_)) => None,
        Err(error) => return Err(error),
    };
    let is_redacted = attempt.as_ref().is_some_and(|attempt| attempt.is_redacted);
    Ok(Some(Story {
        workflow,
        branch: branch.number,
        entry,
        arguments: attempt.and_then(|attempt| attempt.arguments),
        is_redacted,
    }))
}
