//! From the journal to what is shown: opens it, and turns its rows into views.
//!
//! The only place of the reading commands that knows both. Must not: lay anything out.

use std::path::Path;

use serde::Serialize;

use super::error::{CliError, Kind};
use super::output::talk;
use super::view::{EntryView, Status, Time};
use crate::journal::JournalError;
use crate::journal::cannot_use::CannotUse;
use crate::journal::place::{JournalPath, Warning};
use crate::journal::reader::{Found, Parent, Place, Reader};
use crate::rules::entry::{self, Entry};

/// Opens a journal for reading.
pub(super) fn open(path: &Path) -> Result<Reader, CliError> {
    let reader = Reader::open(&journal_path(path)?).map_err(unusable)?;
    say_if_alone(reader.warnings());
    Ok(reader)
}

/// Says on stderr if a journal may be a copy of the file alone: what it shows is not all then.
pub(super) fn say_if_alone(warnings: &[Warning]) {
    let is_alone = |warning: &&Warning| matches!(warning, Warning::Alone { .. });
    for warning in warnings.iter().filter(is_alone) {
        talk(&warning.to_string());
    }
}

/// Returns where a journal stands.
pub(super) fn journal_path(path: &Path) -> Result<JournalPath, CliError> {
    JournalPath::new(path).map_err(unusable)
}

/// Returns the error for a journal that can't be used: code 5.
pub(super) fn unusable(error: CannotUse) -> CliError {
    CliError::new(Kind::Journal, "the journal can't be used").because(error)
}

/// Returns the error for a journal that failed in the middle of something: code 5.
pub(super) fn failed(what: impl Into<String>, error: &JournalError) -> CliError {
    CliError::new(Kind::Journal, what)
        .because(error)
        .hint(match error {
            JournalError::Busy => {
                "run it again; `checkpoint doctor` tells which sessions use the journal"
            }
            JournalError::Full => "free some space where the journal is, then run it again",
            JournalError::ReadOnly(_) => {
                "see whether this user may write to the journal and to its folder"
            }
            JournalError::Moved(_) => "put it back, or give the path where it is now",
            JournalError::Damaged(_) | JournalError::Unreadable(_) => {
                "`checkpoint verify` tells what does not hold"
            }
            JournalError::Failed(_) => {
                "look after the disk, then see with `checkpoint verify` what stands"
            }
        })
}

/// Returns the entry as it is shown.
pub(super) fn view(place: &Place, found: Found) -> EntryView {
    match found {
        Found::Whole {
            entry,
            damage,
            is_live,
        } => whole(place, *entry, damage, is_live),
        Found::Torn(torn) => EntryView {
            workflow_id: place.workflow.0.clone(),
            branch: place.branch.into(),
            seq: torn.seq,
            tool: torn.tool,
            status: status_named(&torn.status),
            in_doubt: false,
            running: false,
            quarantined: true,
            attempt: torn.attempt,
            round: 0,
            fence: torn.fence,
            signature: String::new(),
            scheme: String::new(),
            created_at: Time(torn.created_at),
            completed_at: None,
            delivered_at: None,
            is_error: None,
            provenance: None,
            gave_up: None,
            unanswered: None,
            tombstone: false,
            call_id: torn.call_id,
            key: None,
            window: None,
            session: None,
            note: Some(format!("its row can't be read: {}", torn.why)),
            is_named_by_seq: place.is_default,
        },
    }
}

fn whole(place: &Place, entry: Entry, damage: Option<&'static str>, is_live: bool) -> EntryView {
    let status = status(entry.status);
    let is_pending = entry.status == entry::Status::Pending;
    // What does not hold is not in doubt: nothing is known of it, and no verdict is taken on it.
    let has_owner = is_live && entry.unanswered.is_none();
    let in_doubt = is_pending && !has_owner && damage.is_none();
    let running = is_pending && has_owner && damage.is_none();
    let note = match (damage, entry.unanswered, entry.gave_up) {
        (Some(damage), _, _) => Some(damage.to_owned()),
        (None, Some(reason), _) => Some(reason.name().replace('_', " ")),
        (None, None, _) if in_doubt => Some(format!("session {} gone", entry.session)),
        (None, None, Some(reason)) if running => {
            Some(format!("caller gave up ({})", reason.name()))
        }
        (None, None, _) => None,
    };
    EntryView {
        workflow_id: place.workflow.0.clone(),
        branch: place.branch.into(),
        seq: entry.seq.0,
        status,
        in_doubt,
        running,
        quarantined: damage.is_some(),
        attempt: entry.attempt.into(),
        round: entry.round.into(),
        fence: entry.fence.0,
        signature: hex(&entry.signature.0),
        scheme: entry.scheme.name().to_owned(),
        created_at: Time(entry.created_at.0),
        completed_at: entry.completed_at.map(|at| Time(at.0)),
        // What was not executed has nothing to deliver; the column is set so that it is no part of
        // the index of what is undelivered.
        delivered_at: entry
            .delivered_at
            .filter(|_| entry.status != entry::Status::Voided)
            .map(|at| Time(at.0)),
        is_error: (entry.status == entry::Status::Completed).then_some(entry.is_error),
        provenance: entry.provenance.map(|whose| whose.name().to_owned()),
        gave_up: entry.gave_up.map(|reason| reason.name().to_owned()),
        unanswered: entry.unanswered.map(|reason| reason.name().to_owned()),
        tombstone: entry.is_tombstone,
        call_id: entry.call_id,
        window: entry.key.as_ref().map(|held| held.window.name().to_owned()),
        key: entry.key.map(|held| held.key),
        session: Some(entry.session.to_string()),
        tool: entry.tool,
        note,
        is_named_by_seq: place.is_default,
    }
}

/// What a branch was forked from, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ForkView {
    /// The workflow of that branch.
    pub workflow_id: String,
    /// That branch's number within it.
    pub branch: u64,
    /// The first seq that is the new branch's own; what is before it is shared.
    pub at: u64,
}

impl ForkView {
    /// Returns it in words.
    pub(super) fn words(&self) -> String {
        format!(
            "{} branch {}, at seq {}",
            self.workflow_id, self.branch, self.at
        )
    }
}

/// Returns what a branch was forked from.
pub(super) fn fork(parent: &Parent) -> ForkView {
    ForkView {
        workflow_id: parent.workflow.0.clone(),
        branch: parent.branch.into(),
        at: parent.at.0,
    }
}

/// Returns a stored status as it is shown.
pub(super) const fn status(status: entry::Status) -> Status {
    match status {
        entry::Status::Pending => Status::Pending,
        entry::Status::Completed => Status::Completed,
        entry::Status::Failed => Status::Failed,
        entry::Status::InputRequired => Status::InputRequired,
        entry::Status::Accepted => Status::Accepted,
        entry::Status::Voided => Status::Voided,
        entry::Status::Denied => Status::Denied,
    }
}

/// Returns the status of that name; [`Status::Unreadable`] if there is none.
pub(super) fn status_named(name: &str) -> Status {
    entry::Status::from_name(name).map_or(Status::Unreadable, status)
}

/// Returns the stored status of one that is shown or typed.
pub(super) fn stored_status(status: Status) -> Option<entry::Status> {
    entry::Status::from_name(status.name())
}

/// Returns bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::{BranchId, Fence, Micros, Seq, SessionId, WorkflowId};
    use crate::rules::lifecycle::{self, Reservation};
    use crate::rules::signature::{Scheme, Signature};

    #[test]
    fn what_was_not_executed_was_never_delivered() {
        let entry = lifecycle::reserve_new(Reservation {
            branch: BranchId(1),
            seq: Seq(1),
            tool: "charge".into(),
            scheme: Scheme::Plain,
            signature: Signature([0; 32]),
            fence: Fence(1),
            session: SessionId(1),
            at: Micros(1),
            key: None,
            call_id: None,
        })
        .entry;
        let voided = lifecycle::void(&entry, Micros(5), None).unwrap().entry;
        assert_eq!(voided.delivered_at, Some(Micros(5)));
        let place = Place {
            id: BranchId(1),
            workflow: WorkflowId("w".into()),
            branch: 0,
            is_default: true,
            parent: None,
        };
        let found = Found::Whole {
            entry: Box::new(voided),
            damage: None,
            is_live: false,
        };
        let shown = view(&place, found);
        assert_eq!(shown.delivered_at, None);
        assert_eq!(shown.completed_at, Some(Time(5)));
        assert_eq!(shown.took(Time(9)), None);
    }

    #[test]
    fn each_failure_of_a_journal_says_what_to_do() {
        let why = || String::from("why");
        for (error, hint) in [
            (JournalError::Busy, "`checkpoint doctor`"),
            (JournalError::Full, "free some space"),
            (JournalError::ReadOnly(why()), "may write"),
            (JournalError::Moved(why()), "put it back"),
            (JournalError::Damaged(why()), "`checkpoint verify`"),
            (JournalError::Unreadable(why()), "`checkpoint verify`"),
            (JournalError::Failed(why()), "the disk"),
        ] {
            let told = failed("it can't be done", &error).render();
            let (what, to_do) = told.split_once("\nhint: ").unwrap();
            assert!(
                what.starts_with("checkpoint: error: it can't be done: "),
                "{told}"
            );
            assert!(to_do.contains(hint), "{told}");
        }
    }
}
