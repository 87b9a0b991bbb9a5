//! Opens a journal to write entries: for the proxy, and for the operator's commands beside it.
//!
//! Invariants: the tables are those of the schema version; each new connection is opened with every
//! check that the first one had; the file is still in its place whenever a transaction begins.
//!
//! Must not: take a session's lock or make a journal.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::cannot_use::CannotUse;
use super::connection::{self, Access, Watch};
use super::filesystem::{self, Filesystem};
use super::mark::{self, Mark};
use super::place::{JournalPath, Warning};
use super::sqlite::SqliteJournal;
use super::{Journal as _, JournalError, schema};

/// How long an operator's command waits for a journal that others use.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pages in the write-ahead log at which a commit moves them into the journal.
const CHECKPOINT_PAGES: i64 = 4096;

/// Opens a journal for an operator's command, and refuses what the proxy would refuse.
///
/// # Errors
///
/// Those of [`open`]; [`CannotUse::BackInTime`] and [`CannotUse::OtherMark`] if the journal is not
/// the newest one.
pub fn for_operator(path: &JournalPath) -> Result<(SqliteJournal, Vec<Warning>), CannotUse> {
    let filesystem = filesystem::kind(path.folder())?;
    let (journal, warnings) = open(path, &filesystem, PATIENCE)?;
    // The mark is read before the snapshot whose highest fence it is compared with.
    let read = Mark::read_only(path, &journal.identity().uid)?;
    let highest = highest_fence(path, &journal)?;
    mark::check(path, &read, highest)?;
    Ok((journal, warnings))
}

/// Returns the highest fence; 0 if there is none.
///
/// # Errors
///
/// The journal can't be read.
pub fn highest_fence(path: &JournalPath, journal: &SqliteJournal) -> Result<u64, CannotUse> {
    journal
        .connection()
        .query_row("SELECT coalesce(max(fence), 0) FROM attempts", (), |row| {
            row.get::<_, i64>(0)
        })
        .map(|fence| u64::try_from(fence).unwrap_or(0))
        .map_err(|source| CannotUse::sqlite("read", path.as_path(), source))
}

/// Opens the journal that stands at `path`, and waits for others for at most `patience`.
///
/// Neither the mark nor the key is looked at: a proxy does that with more at hand, an operator's
/// command with [`for_operator`].
///
/// # Errors
///
/// Those of [`connection::open_patiently`]; [`CannotUse::Damaged`] if its tables are not those of
/// its schema version.
pub fn open(
    path: &JournalPath,
    filesystem: &Filesystem,
    patience: Duration,
) -> Result<(SqliteJournal, Vec<Warning>), CannotUse> {
    let opened = connection::open_patiently(path, Access::ReadWrite, filesystem, patience)?;
    let shape = schema::shape(&opened.connection)
        .map_err(|source| CannotUse::sqlite("read", path.as_path(), source))?;
    let expected = schema::expected_shape()
        .map_err(|source| CannotUse::sqlite("read", path.as_path(), source))?;
    if shape != expected {
        return Err(CannotUse::Damaged {
            path: path.as_path().to_owned(),
            why: "its tables are not those of this schema version".into(),
        });
    }
    let warnings = opened.warnings.clone();
    // A watch is never dropped while the process uses the journal: closing its descriptor would
    // take SQLite's locks away.
    let watches: Arc<Mutex<Vec<Watch>>> = Arc::default();
    let first = Arc::new(Mutex::new(Some(opened)));
    let connect = {
        let watches = Arc::clone(&watches);
        let path = path.clone();
        let filesystem = filesystem.clone();
        move || {
            let ready = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            let opened = match ready {
                Some(opened) => opened,
                None => connection::open(&path, Access::ReadWrite, &filesystem)
                    .map_err(|error| unusable(&error))?,
            };
            connection::set_pragma(
                &opened.connection,
                &path,
                "wal_autocheckpoint",
                CHECKPOINT_PAGES,
            )
            .map_err(|error| unusable(&error))?;
            watches
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(opened.watch);
            Ok(opened.connection)
        }
    };
    let still_there = move || {
        let watches = watches.lock().unwrap_or_else(PoisonError::into_inner);
        match watches.last().map(Watch::check) {
            Some(Err(CannotUse::Moved { .. })) => Err(JournalError::Moved),
            Some(Err(error)) => Err(unusable(&error)),
            Some(Ok(())) | None => Ok(()),
        }
    };
    let journal = SqliteJournal::open(Box::new(connect), Box::new(still_there))
        .map_err(|error| damaged(path, &error))?;
    Ok((journal, warnings))
}

/// Returns what it means for a call that a journal can't be used.
#[must_use]
pub fn unusable(error: &CannotUse) -> JournalError {
    if error.is_busy() {
        JournalError::Busy
    } else if matches!(error, CannotUse::Moved { .. } | CannotUse::Absent { .. }) {
        JournalError::Moved
    } else {
        JournalError::ReadOnly(error.to_string())
    }
}

fn damaged(path: &JournalPath, error: &JournalError) -> CannotUse {
    CannotUse::Damaged {
        path: path.as_path().to_owned(),
        why: error.to_string(),
    }
}
