//! Makes dropped payloads leave the file, and gives their space back.
//!
//! An SQLite row that is shortened leaves its bytes behind in three places: in the page (zeroed
//! where `secure_delete` is on), in copies of the page that the write-ahead log still holds, and
//! in what earlier page splits left over between the cells. The first is a setting for the sweep,
//! the second ends with a checkpoint that truncates the log, the third only with a rebuilt file.
//!
//! Invariants: the file is rebuilt only while no session is live, as whoever writes would wait for
//! all of it. What could not be done is said, and is still due at the next sweep.
//!
//! Must not: know entries.
//!
//! Source: SQLite "PRAGMA secure_delete", "VACUUM", "PRAGMA wal_checkpoint", "Temporary Files".

use std::time::Duration;

use rusqlite::Connection;

use super::cannot_use::CannotUse;
use super::connection;
use super::filesystem;
use super::locks::LockQuery;
use super::place::JournalPath;
use super::sqlite::SqliteJournal;

/// How long others are waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The event that says that payloads were dropped, and the one that says that they have left.
const DROPPED: &str = "purged";
/// See `DROPPED`.
pub const COMPACTED: &str = "compacted";

/// What was done, and what is left to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// The file was rebuilt: no byte of a dropped payload is left in it.
    pub is_rebuilt: bool,
    /// The write-ahead log was emptied, or there is none.
    pub is_log_empty: bool,
    /// Why something is left to do, as a sentence.
    pub left: Option<String>,
    /// The size of the file before and after, in bytes.
    pub size_bytes: (u64, u64),
}

/// Makes SQLite overwrite what is dropped on this connection from now on.
///
/// # Errors
///
/// [`CannotUse::Unsafe`] if it does not take effect.
pub fn overwrite_dropped(path: &JournalPath, journal: &mut SqliteJournal) -> Result<(), CannotUse> {
    connection::set_pragma(journal.connection(), path, "secure_delete", 1)
}

/// Returns whether payloads were dropped since the file was last rebuilt.
///
/// # Errors
///
/// The journal can't be read.
pub fn is_due(path: &JournalPath, journal: &mut SqliteJournal) -> Result<bool, CannotUse> {
    use rusqlite::OptionalExtension as _;
    let last: Option<String> = journal
        .connection()
        .query_row(
            "SELECT kind FROM events WHERE kind IN (?1, ?2) ORDER BY id DESC LIMIT 1",
            (DROPPED, COMPACTED),
            |row| row.get(0),
        )
        .optional()
        .map_err(|source| CannotUse::sqlite("read", path.as_path(), source))?;
    Ok(last.as_deref() == Some(DROPPED))
}

/// Returns the sessions that are live.
///
/// # Errors
///
/// The journal can't be read. A lock that can't be asked for counts as held.
pub fn live_sessions(path: &JournalPath, db: &Connection) -> Result<Vec<u64>, CannotUse> {
    let refuse = |source| CannotUse::sqlite("read", path.as_path(), source);
    let mut query = LockQuery::new(path);
    let mut statement = db
        .prepare("SELECT id FROM sessions WHERE ended_at IS NULL ORDER BY id")
        .map_err(refuse)?;
    let ids = statement
        .query_map((), |row| row.get::<_, i64>(0))
        .and_then(Iterator::collect::<rusqlite::Result<Vec<i64>>>)
        .map_err(refuse)?;
    Ok(ids
        .into_iter()
        .filter_map(|id| u64::try_from(id).ok())
        .filter(|id| query.is_live(*id).unwrap_or(true))
        .collect())
}

/// Rebuilds the file where nobody is in the way, and empties the log.
///
/// # Errors
///
/// The journal can't be read, or its file is not there any more. A file that can't be rebuilt just
/// now is no error but [`Compacted::left`].
pub fn compact(path: &JournalPath, journal: &mut SqliteJournal) -> Result<Compacted, CannotUse> {
    let db = journal.connection();
    let refuse = |source| CannotUse::sqlite("rebuild", path.as_path(), source);
    let mut done = Compacted {
        size_bytes: (size_bytes(path)?, 0),
        ..Compacted::default()
    };
    db.busy_timeout(PATIENCE).map_err(refuse)?;
    let live = live_sessions(path, db)?;
    // The copy and the log hold the whole file once more each.
    let free_bytes = filesystem::free_bytes(path.folder())?;
    if !live.is_empty() || LockQuery::new(path).is_any_live().unwrap_or(true) {
        done.left = Some(format!(
            "{} live, so the file was not rebuilt and may still hold parts of what was dropped; \
             run `checkpoint gc` again once none is",
            match live.as_slice() {
                [] => "a session is".to_owned(),
                [one] => format!("session {one} is"),
                many => format!("{} sessions are", many.len()),
            }
        ));
    } else if free_bytes < done.size_bytes.0.saturating_mul(2) {
        done.left = Some(format!(
            "the file was not rebuilt, as that takes {} bytes of free space and there are \
             {free_bytes}; make room and run `checkpoint gc` again",
            done.size_bytes.0.saturating_mul(2)
        ));
    } else {
        // The copy goes to disk, not into memory.
        connection::set_pragma(db, path, "temp_store", 1)?;
        match db.execute_batch("VACUUM") {
            Ok(()) => done.is_rebuilt = true,
            Err(error) => {
                done.left = Some(format!(
                    "the file was not rebuilt ({error}); run `checkpoint gc` again"
                ));
            }
        }
        connection::set_pragma(db, path, "temp_store", 2)?;
    }
    done.is_log_empty = empty_log(db).map_err(refuse)?;
    if !done.is_log_empty {
        done.left.get_or_insert_with(|| {
            "somebody reads the journal, so its -wal file may still hold what was dropped; run \
             `checkpoint gc` again"
                .to_owned()
        });
    }
    done.size_bytes.1 = size_bytes(path)?;
    Ok(done)
}

/// Moves the log into the file and cuts it to nothing; returns whether that was done.
///
/// # Errors
///
/// SQLite failed.
pub fn empty_log(db: &Connection) -> rusqlite::Result<bool> {
    let mut statement = db.prepare("PRAGMA wal_checkpoint(TRUNCATE)")?;
    let mut rows = statement.query(())?;
    let mut is_busy = false;
    while let Some(row) = rows.next()? {
        is_busy |= row.get::<_, i64>(0)? != 0;
    }
    Ok(!is_busy)
}

fn size_bytes(path: &JournalPath) -> Result<u64, CannotUse> {
    std::fs::metadata(path.as_path())
        .map(|metadata| metadata.len())
        .map_err(|source| CannotUse::Io {
            doing: "look at",
            path: path.as_path().to_owned(),
            source,
        })
}
