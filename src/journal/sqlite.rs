//! The SQLite back-end: rows in, rows out.
//!
//! How the file is found, made, opened and watched is [`super::place`]'s and
//! [`super::connection`]'s; this module holds the SQL. One prepared statement a look-up, all
//! parameters bound.
//!
//! Must not: judge a row. A value that no version of this program writes is
//! [`JournalError::Damaged`].

use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};

use super::connection::SPILL_PAGES;
use super::known::{Known, PutOff, Signed, is_settled_only};
use super::{
    Applied, Attempt, Branch, Durability, Event, EventRow, Identity, Journal, JournalError, Lease,
    Outcome, Payload, RoundKey, Session, Stored, TaskKey, Transaction, Workflow, Write,
};
use crate::rules::entry::{Entry, GaveUp, Provenance, Status, Unanswered};
use crate::rules::flight::Flight;
use crate::rules::ids::{BranchId, Fence, HeldKey, Micros, Seq, SessionId, Window, WorkflowId};
use crate::rules::lifecycle::Expect;
use crate::rules::signature::{Scheme, Signature};

/// [`ENTRY_COLUMNS`] as a literal, for [`entries!`].
macro_rules! entry_columns {
    () => {
        "branch_id, seq, tool, status, attempt, round, fence, session_id, scheme, signature, \
         created_at, completed_at, delivered_at, gave_up, unanswered, is_error, provenance, \
         digest, tombstone, key, window, window_id, call_id, checksum"
    };
}

/// A query for entries: what follows `FROM entries`.
macro_rules! entries {
    ($rest:literal) => {
        concat!("SELECT ", entry_columns!(), " FROM entries ", $rest)
    };
}

/// The columns that [`read_entry`] reads, in its order.
pub(crate) const ENTRY_COLUMNS: &str = entry_columns!();

/// Prepared statements kept ready; there are fewer kinds than that.
pub(crate) const STATEMENTS_MAX: usize = 64;

/// Kinds of statements that most batches run.
const STATEMENTS_OF_A_BATCH: usize = 12;

/// Payloads up to this size, in bytes, are bound and read like any value; larger ones are streamed.
const BOUND_BYTES_MAX: usize = 256 << 10;
const BOUND_MAX: i64 = BOUND_BYTES_MAX as i64;

/// A page's size in bytes, with its head in the write-ahead log rounded away.
const PAGE_BYTES: u64 = 4096;

/// What SQLite's cache holds of a transaction before its pages go to the log, in bytes, and more.
const CACHE_BYTES: u64 = 2 << 20;

/// How a journal makes a new connection to itself, with every check that opening one takes.
pub type Connect = Box<dyn FnMut() -> Result<Connection, JournalError> + Send>;

/// How a journal makes sure that its file is still the one in its place.
pub type StillThere = Box<dyn FnMut() -> Result<(), JournalError> + Send>;

/// A journal in an SQLite file.
pub struct SqliteJournal {
    db: Connection,
    identity: Identity,
    connect: Connect,
    still_there: StillThere,
    durability: Durability,
    /// Set by the first failure after which what is stored is unknown.
    failed: Option<JournalError>,
    known: Known,
}

impl SqliteJournal {
    /// Opens the journal that `connect` connects to.
    ///
    /// # Errors
    ///
    /// It can't be connected to, or its `meta` rows can't be read.
    pub fn open(mut connect: Connect, still_there: StillThere) -> Result<Self, JournalError> {
        let db = connect()?;
        db.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        let identity = read_identity(&db)?;
        Ok(Self {
            db,
            identity,
            connect,
            still_there,
            durability: Durability::Power,
            failed: None,
            known: Known::default(),
        })
    }

    /// Returns the connection, for what is not a call: pragmas, checkpoints, integrity checks.
    #[must_use]
    pub fn connection(&mut self) -> &Connection {
        // Nobody tells what it is used for.
        self.known = Known::default();
        &self.db
    }

    /// Does now what the first transaction would do first: checks that the journal is in its place
    /// and makes its name durable.
    ///
    /// # Errors
    ///
    /// The journal is not in its place any more, or the system does not tell.
    pub fn check_place(&mut self) -> Result<(), JournalError> {
        (self.still_there)()
    }

    /// Makes the write-ahead log at least `pages` long, so that commits write over what is there.
    ///
    /// A log that grows has to have its new size made durable by each commit as well, which takes
    /// about half as long again as the bytes. What makes it long is a transaction that is rolled
    /// back: its pages are in the log without a commit, and whoever reads the log stops before
    /// them. Returns whether it has made it longer; a journal that is busy, or has no log, is left
    /// alone.
    ///
    /// # Errors
    ///
    /// What SQLite says. Nothing that is stored has changed, and the journal goes on if
    /// [`JournalError::is_final`] is false.
    pub fn grow_log(&mut self, pages: u32) -> Result<bool, JournalError> {
        if self.failed.is_some() {
            return Ok(false);
        }
        (self.still_there)()?;
        let Some(log) = self.log()? else {
            return Ok(false);
        };
        let db = &self.db;
        let wanted = u64::from(pages) * PAGE_BYTES;
        if std::fs::symlink_metadata(&log).map_or(true, |found| found.len() >= wanted) {
            return Ok(false);
        }
        match db.execute_batch("BEGIN IMMEDIATE") {
            Ok(()) => {}
            Err(error) if classify(&error) == JournalError::Busy => return Ok(false),
            Err(error) => return Err(classify(&error)),
        }
        let spill_at = |pages: i64| db.pragma_update(None, "cache_spill", pages);
        // What does not fit into SQLite's cache goes to the log; the rest is for the cache.
        let bytes = wanted + CACHE_BYTES;
        let spills_early = spill_at(1);
        let filled = db.execute(
            "INSERT INTO outcomes (fence, status, is_error, provenance, at, next_fence, digest, body) \
             VALUES (-1, '', 0, '', 0, 0, x'', ?1)",
            [rusqlite::blob::ZeroBlob(bytes)],
        );
        let spills_late = spill_at(SPILL_PAGES);
        // A full disk has rolled it back already.
        if !db.is_autocommit()
            && let Err(error) = db.execute_batch("ROLLBACK")
        {
            let error = JournalError::Failed(error.to_string());
            self.failed = Some(error.clone());
            return Err(error);
        }
        spills_early
            .and(filled)
            .and(spills_late)
            .map_err(|error| classify(&error))?;
        // Here, where nobody waits, and not within the next commit. The log's own descriptors are
        // SQLite's, and hold no locks.
        if let Ok(log) = std::fs::File::open(&log) {
            let _ = log.sync_data();
        }
        Ok(true)
    }

    /// Returns where the write-ahead log is, if there is one.
    fn log(&self) -> Result<Option<std::path::PathBuf>, JournalError> {
        let mode: String = self
            .db
            .pragma_query_value(None, "journal_mode", |row| row.get(0))
            .map_err(|error| classify(&error))?;
        let path = self.db.path().filter(|_| mode == "wal");
        Ok(path.map(|path| format!("{path}-wal").into()))
    }

    /// Makes durable what was committed without a sync, by whomever: it is all in the log. A
    /// journal without one is left alone.
    ///
    /// # Errors
    ///
    /// The log can't be synced. As after a failed commit, what is durable is unknown then, and
    /// nothing more is written by this process.
    pub fn sync_log(&mut self) -> Result<(), JournalError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        (self.still_there)()?;
        let Some(log) = self.log()? else {
            return Ok(());
        };
        // The log's own descriptors are SQLite's, and hold no locks.
        let synced = std::fs::File::open(log).and_then(|log| log.sync_data());
        synced.map_err(|error| {
            let error = JournalError::Failed(format!("the log can't be synced: {error}"));
            self.failed = Some(error.clone());
            error
        })
    }

    /// Moves the log into the journal, as far as no reader still needs it, and waits for nobody
    /// (SQLite, "PRAGMA wal_checkpoint", PASSIVE). For a moment in which no call is waiting: a log
    /// that has become long is moved by a commit, and that call waits for it.
    ///
    /// # Errors
    ///
    /// What SQLite says. Where it is neither busy nor full, what is durable is unknown then, as
    /// after a failed commit, and nothing more is written by this process.
    pub fn move_log(&mut self) -> Result<(), JournalError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        (self.still_there)()?;
        self.db
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |_| Ok(()))
            .map_err(|error| match classify(&error) {
                // The log has all of it still, and what was not written was not synced.
                kind @ (JournalError::Busy | JournalError::Full) => kind,
                kind => {
                    let kind = JournalError::Failed(kind.to_string());
                    self.failed = Some(kind.clone());
                    kind
                }
            })
    }

    fn set_durability(&mut self, durability: Durability) -> Result<(), JournalError> {
        if self.durability != durability {
            // Twice a call where outcomes are deferred: no text is put together for it.
            let pragma = match durability {
                Durability::Process => "PRAGMA synchronous=NORMAL",
                Durability::Power => "PRAGMA synchronous=EXTRA",
            };
            self.db
                .execute_batch(pragma)
                .map_err(|error| classify(&error))?;
            self.durability = durability;
        }
        Ok(())
    }
}

pub(crate) fn read_identity(db: &Connection) -> Result<Identity, JournalError> {
    let meta = |name: &str| -> Result<Option<rusqlite::types::Value>, JournalError> {
        db.query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| {
            row.get(0)
        })
        .optional()
        .map_err(|error| classify(&error))
    };
    let blob = |value: Option<rusqlite::types::Value>| match value {
        Some(rusqlite::types::Value::Blob(bytes)) => Some(bytes),
        _ => None,
    };
    let uid = blob(meta("uid")?)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| JournalError::Damaged("meta has no uid".into()))?;
    let own_workflow = match meta("own_workflow")? {
        Some(rusqlite::types::Value::Text(text)) => WorkflowId(text),
        _ => return Err(JournalError::Damaged("meta has no own_workflow".into())),
    };
    let check = blob(meta("check")?);
    if check.is_some_and(|check| check != super::schema::identity_check(&uid, &own_workflow)) {
        return Err(JournalError::Damaged(
            "the journal's uid or its own workflow's name does not hold".into(),
        ));
    }
    let key_fingerprint = blob(meta("key_fingerprint")?).and_then(|bytes| bytes.try_into().ok());
    Ok(Identity {
        uid,
        own_workflow,
        key_fingerprint,
    })
}

/// Returns what an SQLite error means for whoever wanted to write.
///
/// Source: SQLite, "Result and Extended Result Codes". A failed sync leaves pages that the kernel
/// may have dropped, so it is final; a full disk or a file that may not be written to is not.
#[must_use]
pub fn classify(error: &rusqlite::Error) -> JournalError {
    use rusqlite::ErrorCode as Code;
    let text = error.to_string();
    match error.sqlite_error() {
        Some(code) => match code.code {
            Code::DatabaseBusy | Code::DatabaseLocked => JournalError::Busy,
            Code::DiskFull | Code::TooBig => JournalError::Full,
            Code::ReadOnly | Code::PermissionDenied | Code::CannotOpen => {
                JournalError::ReadOnly(text)
            }
            Code::DatabaseCorrupt | Code::NotADatabase => JournalError::Damaged(text),
            _ => JournalError::Failed(text),
        },
        None => JournalError::Unreadable(text),
    }
}

impl Journal for SqliteJournal {
    type Tx<'a> = SqliteTransaction<'a>;

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn begin(&mut self, durability: Durability) -> Result<SqliteTransaction<'_>, JournalError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        if let Err(error) = (self.still_there)() {
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.set_durability(durability)?;
        let began = self
            .db
            .prepare_cached("BEGIN IMMEDIATE")
            .and_then(|mut begin| begin.execute(()));
        if let Err(error) = began {
            let error = classify(&error);
            if error.is_final() {
                self.failed = Some(error.clone());
            }
            return Err(error);
        }
        let mut tx = SqliteTransaction {
            statements: Vec::with_capacity(STATEMENTS_OF_A_BATCH),
            db: &self.db,
            identity: &mut self.identity,
            failed: &mut self.failed,
            is_open: true,
            known: &mut self.known,
            put_off: PutOff::default(),
        };
        tx.know()?;
        Ok(tx)
    }

    fn reconnect(&mut self) -> Result<(), JournalError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        self.known = Known::default();
        self.db = (self.connect)()?;
        self.db
            .set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        self.durability = Durability::Power;
        self.set_durability(Durability::Power)
    }
}

/// A transaction of a [`SqliteJournal`]. Dropping it rolls back.
pub struct SqliteTransaction<'a> {
    /// Those that it has run. A batch finds them by where their text is, without reading it; there
    /// are too few for more than a walk.
    statements: Vec<(&'static str, CachedStatement<'a>)>,
    db: &'a Connection,
    identity: &'a mut Identity,
    failed: &'a mut Option<JournalError>,
    is_open: bool,
    known: &'a mut Known,
    put_off: PutOff,
}

impl Drop for SqliteTransaction<'_> {
    fn drop(&mut self) {
        if self.is_open {
            *self.known = Known::default();
        }
        if self.is_open && !self.db.is_autocommit() {
            // A rollback that fails leaves the transaction open, and then what is stored is
            // unknown: nothing more may be written on this connection.
            if let Err(error) = self.db.execute_batch("ROLLBACK") {
                *self.failed = Some(JournalError::Failed(error.to_string()));
            }
        }
    }
}

impl<'a> SqliteTransaction<'a> {
    fn fail(&mut self, error: &rusqlite::Error) -> JournalError {
        let error = classify(error);
        if error.is_final() {
            *self.failed = Some(error.clone());
        }
        error
    }

    /// Returns the statement of this text, ready to be run.
    fn statement(&mut self, sql: &'static str) -> rusqlite::Result<&mut CachedStatement<'a>> {
        let is_it = |(known, _): &(&'static str, _)| std::ptr::eq(*known, sql);
        let found = self.statements.iter().position(is_it);
        let place = match found {
            Some(place) => place,
            None => {
                self.statements.push((sql, self.db.prepare_cached(sql)?));
                self.statements.len() - 1
            }
        };
        Ok(&mut self.statements[place].1)
    }

    fn one<T>(
        &mut self,
        sql: &'static str,
        parameters: impl rusqlite::Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, JournalError> {
        self.statement(sql)
            .and_then(|statement| statement.query_row(parameters, read).optional())
            .map_err(|error| self.fail(&error))
    }

    fn all<T>(
        &mut self,
        sql: &'static str,
        parameters: impl rusqlite::Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, JournalError> {
        self.statement(sql)
            .and_then(|statement| {
                statement
                    .query_map(parameters, read)?
                    .collect::<rusqlite::Result<Vec<T>>>()
            })
            .map_err(|error| self.fail(&error))
    }

    fn run(
        &mut self,
        sql: &'static str,
        parameters: impl rusqlite::Params,
    ) -> Result<usize, JournalError> {
        self.statement(sql)
            .and_then(|statement| statement.execute(parameters))
            .map_err(|error| self.fail(&error))
    }

    /// Begins with what the last transaction knew, unless somebody else has written since.
    fn know(&mut self) -> Result<(), JournalError> {
        let version = self.one("PRAGMA data_version", (), |row| row.get(0))?;
        if version.is_none() || self.known.version != version {
            *self.known = Known::at(version);
        }
        Ok(())
    }

    /// Writes what was put off: each raised branch's highest seq.
    fn write_raised(&mut self) -> Result<(), JournalError> {
        for id in std::mem::take(&mut self.put_off.raised) {
            if let Some(branch) = self.known.branch(id) {
                self.run(
                    "UPDATE branches SET highest_seq = ?2 WHERE id = ?1",
                    params![db_int(id.0), db_int(branch.highest)],
                )?;
            }
        }
        Ok(())
    }

    /// Writes what was put off: the fence that comes after all reservations of this transaction,
    /// with the outcomes that were written before one of them.
    fn write_overtaken(&mut self) -> Result<(), JournalError> {
        let Some(next) = self.put_off.after_reserved else {
            return Ok(());
        };
        for fence in std::mem::take(&mut self.put_off.overtaken) {
            self.run(
                "UPDATE outcomes SET next_fence = ?2 WHERE fence = ?1",
                [db_int(fence.0), db_int(next.0)],
            )?;
        }
        Ok(())
    }

    /// Returns whether the branch may hold an undelivered entry with this signature: most calls are
    /// new, and nobody need look for them.
    fn may_be_undelivered(
        &mut self,
        branch: BranchId,
        signature: Signature,
    ) -> Result<bool, JournalError> {
        if self.known.signed(branch).is_none() {
            let limit = i64::try_from(Signed::READ_MAX + 1).unwrap_or(i64::MAX);
            let found = self.all(
                "SELECT signature FROM entries INDEXED BY entries_undelivered \
                 WHERE delivered_at IS NULL AND branch_id = ?1 LIMIT ?2",
                [db_int(branch.0), limit],
                |row| Ok(Signature(bytes(row, 0)?)),
            )?;
            self.known.read_signed(branch, found);
        }
        let signed = self.known.signed(branch);
        Ok(signed.is_none_or(|signed| signed.may_hold(signature)))
    }

    /// Before workflows or branches are written otherwise than by [`Self::raise`]: from then on
    /// they are read again.
    fn forget(&mut self) -> Result<(), JournalError> {
        self.write_raised()?;
        self.known.workflow = None;
        self.known.branches.clear();
        Ok(())
    }

    /// Writes the entry's row, if what is stored still is what the transition expects.
    fn put_entry(&mut self, write: &Write) -> Result<Applied, JournalError> {
        let entry = &write.transition.entry;
        let place = (entry.branch, entry.seq);
        let applied = match self.known.take_pending(place) {
            Some(was) if is_settled_only(&was.entry, entry) => self.settle_entry(write)?,
            _ => self.write_entry(write)?,
        };
        if applied == Applied::Done {
            self.known.wrote(entry, write.checksum);
        }
        Ok(applied)
    }

    /// Writes what an outcome changes of a running call's row, the rest of which is as it must be.
    fn settle_entry(&mut self, write: &Write) -> Result<Applied, JournalError> {
        let entry = &write.transition.entry;
        let Expect::At {
            status,
            attempt,
            fence,
        } = write.transition.expect
        else {
            return self.write_entry(write);
        };
        let changed = self.run(
            "UPDATE entries SET status = ?3, completed_at = ?4, gave_up = ?5, unanswered = ?6, \
             is_error = ?7, provenance = ?8, digest = ?9, tombstone = ?10, checksum = ?11 \
             WHERE branch_id = ?1 AND seq = ?2 AND status = ?12 AND attempt = ?13 AND fence = ?14",
            params![
                db_int(entry.branch.0),
                db_int(entry.seq.0),
                entry.status.name(),
                entry.completed_at.map(|at| at.0),
                entry.gave_up.map(GaveUp::name),
                entry.unanswered.map(Unanswered::name),
                entry.is_error,
                entry.provenance.map(Provenance::name),
                entry.digest.as_ref().map(|digest| &digest[..]),
                entry.is_tombstone,
                &write.checksum[..],
                status.name(),
                attempt,
                db_int(fence.0),
            ],
        )?;
        Ok(applied(changed))
    }

    fn write_entry(&mut self, write: &Write) -> Result<Applied, JournalError> {
        let entry = &write.transition.entry;
        let (key, window, window_id) = held(entry.key.as_ref());
        let was = match write.transition.expect {
            Expect::Absent => None,
            Expect::At {
                status,
                attempt,
                fence,
            } => Some((status.name(), attempt, db_int(fence.0))),
        };
        // One list for all three statements: ?1 to ?24 are the row's columns, in the order of the
        // INSERT, and the last three what must still be stored.
        let parameters = params![
            db_int(entry.branch.0),
            db_int(entry.seq.0),
            entry.tool,
            entry.status.name(),
            entry.attempt,
            entry.round,
            db_int(entry.fence.0),
            db_int(entry.session.0),
            entry.scheme.name(),
            &entry.signature.0[..],
            entry.created_at.0,
            entry.completed_at.map(|at| at.0),
            entry.delivered_at.map(|at| at.0),
            entry.gave_up.map(GaveUp::name),
            entry.unanswered.map(Unanswered::name),
            entry.is_error,
            entry.provenance.map(Provenance::name),
            entry.digest.as_ref().map(|digest| &digest[..]),
            entry.is_tombstone,
            key,
            window,
            window_id,
            entry.call_id,
            &write.checksum[..],
            was.map(|(status, _, _)| status),
            was.map(|(_, attempt, _)| attempt),
            was.map(|(_, _, fence)| fence),
        ];
        if was.is_none() {
            let inserted = self.run(
                "INSERT INTO entries (branch_id, seq, tool, status, attempt, round, fence, \
                 session_id, scheme, signature, created_at, completed_at, delivered_at, gave_up, \
                 unanswered, is_error, provenance, digest, tombstone, key, window, window_id, \
                 call_id, checksum) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, \
                 ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24) ON CONFLICT DO NOTHING",
                &parameters[..24],
            )?;
            if inserted == 0 {
                return Ok(Applied::Lost);
            }
            self.raise(entry.branch, entry.seq)?;
            return Ok(Applied::Done);
        }
        // Most changes leave all alone that an index holds. Naming those columns would write the
        // index's page anew with the same bytes, and each page is a part of the commit.
        if entry.delivered_at.is_none() {
            let changed = self.run(
                "UPDATE entries SET tool = ?3, status = ?4, attempt = ?5, round = ?6, fence = ?7, \
                 session_id = ?8, scheme = ?9, created_at = ?11, completed_at = ?12, \
                 gave_up = ?14, unanswered = ?15, is_error = ?16, provenance = ?17, digest = ?18, \
                 tombstone = ?19, checksum = ?24 \
                 WHERE branch_id = ?1 AND seq = ?2 AND status = ?25 AND attempt = ?26 \
                 AND fence = ?27 AND delivered_at IS NULL AND signature = ?10 AND key IS ?20 \
                 AND window IS ?21 AND window_id IS ?22 AND call_id IS ?23",
                parameters,
            )?;
            if changed == 1 {
                return Ok(Applied::Done);
            }
        }
        // The comparison is the fence: whoever has lost the entry changes no row here.
        let changed = self.run(
            "UPDATE entries SET tool = ?3, status = ?4, attempt = ?5, round = ?6, fence = ?7, \
             session_id = ?8, scheme = ?9, signature = ?10, created_at = ?11, completed_at = ?12, \
             delivered_at = ?13, gave_up = ?14, unanswered = ?15, is_error = ?16, \
             provenance = ?17, digest = ?18, tombstone = ?19, key = ?20, window = ?21, \
             window_id = ?22, call_id = ?23, checksum = ?24 \
             WHERE branch_id = ?1 AND seq = ?2 AND status = ?25 AND attempt = ?26 AND fence = ?27",
            parameters,
        )?;
        Ok(applied(changed))
    }

    /// Raises the branch's highest seq, or fills the gap that held the seq.
    fn raise(&mut self, branch: BranchId, seq: Seq) -> Result<(), JournalError> {
        let highest = self.branch(branch)?.map_or(0, |branch| branch.highest);
        if seq.0 > highest {
            self.known.raise(branch, seq.0);
            if !self.put_off.raised.contains(&branch) {
                self.put_off.raised.push(branch);
            }
            if seq.0 > highest + 1 {
                self.put_gap(branch, highest + 1, seq.0 - 1)?;
            }
            return Ok(());
        }
        let gap = self.gap_of(branch, seq)?;
        if let Some((first, last)) = gap {
            self.run(
                "DELETE FROM gaps WHERE branch_id = ?1 AND first_seq = ?2",
                params![db_int(branch.0), db_int(first)],
            )?;
            if first < seq.0 {
                self.put_gap(branch, first, seq.0 - 1)?;
            }
            if seq.0 < last {
                self.put_gap(branch, seq.0 + 1, last)?;
            }
        }
        Ok(())
    }

    fn put_gap(&mut self, branch: BranchId, first: u64, last: u64) -> Result<(), JournalError> {
        self.run(
            "INSERT INTO gaps (branch_id, first_seq, last_seq) VALUES (?1, ?2, ?3)",
            params![db_int(branch.0), db_int(first), db_int(last)],
        )?;
        Ok(())
    }

    fn gap_of(&mut self, branch: BranchId, seq: Seq) -> Result<Option<(u64, u64)>, JournalError> {
        let gap = self.one(
            "SELECT first_seq, last_seq FROM gaps WHERE branch_id = ?1 AND first_seq <= ?2 \
             ORDER BY first_seq DESC LIMIT 1",
            params![db_int(branch.0), db_int(seq.0)],
            |row| Ok((number(row, 0)?, number(row, 1)?)),
        )?;
        Ok(gap.filter(|(_, last)| seq.0 <= *last))
    }

    fn put_attempt(&mut self, attempt: &Attempt) -> Result<(), JournalError> {
        self.run(
            "INSERT INTO attempts (fence, branch_id, seq, attempt, round, previous, session_id, \
             started_at, scheme, signature, arguments, arguments_bytes, redacted, \
             protocol_version, tool_revision, policy, traceparent) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
            params![
                db_int(attempt.fence.0),
                db_int(attempt.branch.0),
                db_int(attempt.seq.0),
                attempt.attempt,
                attempt.round,
                attempt.previous.map(|fence| db_int(fence.0)),
                db_int(attempt.session.0),
                attempt.started_at.0,
                attempt.scheme.name(),
                &attempt.signature.0[..],
                small(attempt.arguments.as_deref()),
                db_int(attempt.arguments_bytes),
                attempt.is_redacted,
                attempt.protocol_version,
                attempt.tool_revision,
                attempt.policy,
                attempt.traceparent,
            ],
        )?;
        self.known.highest_fence = self
            .known
            .highest_fence
            .map(|highest| highest.max(attempt.fence.0));
        self.put_off.overtaken.append(&mut self.put_off.settled);
        self.put_off.after_reserved = Some(Fence(attempt.fence.0 + 1));
        self.put_large(
            "attempts",
            "arguments",
            attempt.fence,
            attempt.arguments.as_deref(),
        )
    }

    /// Writes a payload that is too large to be bound: bound, it would be copied twice.
    fn put_large(
        &mut self,
        table: &'static str,
        column: &'static str,
        fence: Fence,
        payload: Option<&[u8]>,
    ) -> Result<(), JournalError> {
        let Some(payload) = payload.filter(|payload| payload.len() > BOUND_BYTES_MAX) else {
            return Ok(());
        };
        let db = self.db;
        let written = (|| {
            db.execute(
                &format!("UPDATE {table} SET {column} = ?2 WHERE fence = ?1"),
                params![
                    db_int(fence.0),
                    rusqlite::blob::ZeroBlob(payload.len() as u64)
                ],
            )?;
            let mut blob = db.blob_open("main", table, column, db_int(fence.0), false)?;
            blob.write_at(payload, 0)?;
            blob.close()
        })();
        written.map_err(|error| self.fail(&error))
    }

    fn with_body(
        &mut self,
        table: &'static str,
        found: Option<(Outcome, bool)>,
    ) -> Result<Option<Outcome>, JournalError> {
        match found {
            Some((mut outcome, true)) => {
                outcome.body = self.payload(table, "body", outcome.fence)?;
                Ok(Some(outcome))
            }
            Some((outcome, false)) => Ok(Some(outcome)),
            None => Ok(None),
        }
    }

    /// Reads a payload; large ones past SQLite's own copy of the row.
    fn payload(
        &mut self,
        table: &'static str,
        column: &'static str,
        fence: Fence,
    ) -> Result<Option<Payload>, JournalError> {
        let db = self.db;
        let bytes = db
            .query_row(
                &format!("SELECT length({column}) FROM {table} WHERE fence = ?1"),
                [db_int(fence.0)],
                |row| row.get::<_, Option<i64>>(0),
            )
            .optional()
            .map_err(|error| self.fail(&error))?;
        let Some(bytes) = bytes.flatten() else {
            return Ok(None);
        };
        let read = (|| {
            let blob = db.blob_open("main", table, column, db_int(fence.0), true)?;
            let mut payload = vec![0; usize::try_from(bytes).unwrap_or(0)];
            blob.read_at_exact(&mut payload, 0)?;
            blob.close()?;
            Ok(payload)
        })();
        read.map(|payload| Some(Payload::from(payload)))
            .map_err(|error: rusqlite::Error| self.fail(&error))
    }

    fn put_outcome(&mut self, was: Status, outcome: &Outcome) -> Result<(), JournalError> {
        if was == Status::Accepted {
            // The handle's own row stays: the final result is kept beside it.
            self.run(
                "INSERT INTO task_ends (fence, status, is_error, provenance, at, digest, body) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    db_int(outcome.fence.0),
                    outcome.status.name(),
                    outcome.is_error,
                    outcome.provenance.name(),
                    outcome.at.0,
                    &outcome.digest[..],
                    small(outcome.body.as_deref()),
                ],
            )?;
            return self.put_large("task_ends", "body", outcome.fence, outcome.body.as_deref());
        }
        let next = self.next_fence()?;
        let round = outcome.round.as_ref();
        let task = outcome.task.as_ref();
        self.run(
            "INSERT INTO outcomes (fence, status, is_error, provenance, at, next_fence, digest, \
             body, state, inputs, task_id, task_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            params![
                db_int(outcome.fence.0),
                outcome.status.name(),
                outcome.is_error,
                outcome.provenance.name(),
                outcome.at.0,
                db_int(next.0),
                &outcome.digest[..],
                small(outcome.body.as_deref()),
                round.and_then(|round| round.state.as_ref().map(|state| &state[..])),
                round.map(|round| &round.inputs),
                task.map(|task| &task.id),
                task.map(|task| &task.created_at),
            ],
        )?;
        self.put_off.settled.push(outcome.fence);
        self.put_large("outcomes", "body", outcome.fence, outcome.body.as_deref())
    }
}

impl Transaction for SqliteTransaction<'_> {
    fn workflow(&mut self, id: &WorkflowId) -> Result<Option<Workflow>, JournalError> {
        if let Some(known) = self.known.workflow.as_ref().filter(|known| known.id == *id) {
            let active = self.known.branch(known.active.id).unwrap_or(known.active);
            return Ok(Some(Workflow {
                active,
                ..known.clone()
            }));
        }
        let found = self.one(
            "SELECT w.id, w.uid, b.id, b.workflow, b.branch, b.parent, b.forked_at, b.highest_seq, \
             w.generation FROM workflows w JOIN branches b ON b.id = w.active_branch WHERE w.workflow_id = ?1",
            [&id.0],
            |row| {
                Ok(Workflow {
                    number: number(row, 0)?,
                    id: id.clone(),
                    uid: bytes(row, 1)?,
                    active: read_branch(row, 2)?,
                    generation: match row.get::<_, Option<i64>>(8)? {
                        Some(_) => Some(SessionId(number(row, 8)?)),
                        None => None,
                    },
                })
            },
        )?;
        Ok(found.map(|mut found| {
            // A branch that is known may have been raised since.
            match self.known.branch(found.active.id) {
                Some(active) => found.active = active,
                None => self.known.branches.push(found.active),
            }
            self.known.workflow = Some(found.clone());
            found
        }))
    }

    fn workflow_of(&mut self, number: u64) -> Result<Option<(WorkflowId, [u8; 16])>, JournalError> {
        self.one(
            "SELECT workflow_id, uid FROM workflows WHERE id = ?1",
            [db_int(number)],
            |row| Ok((WorkflowId(row.get(0)?), bytes(row, 1)?)),
        )
    }

    fn create_workflow(
        &mut self,
        id: &WorkflowId,
        uid: [u8; 16],
        at: Micros,
    ) -> Result<Workflow, JournalError> {
        // The look-up that came before trusted the index. A bad bit in there must not make a known
        // workflow new, with all its calls; there are few rows, and this is rare.
        self.forget()?;
        let known = self.one(
            "SELECT 1 FROM workflows NOT INDEXED WHERE workflow_id = ?1",
            [&id.0],
            |_| Ok(()),
        )?;
        if known.is_some() {
            return Err(JournalError::Damaged(
                "a workflow's row is missing from its index".into(),
            ));
        }
        self.run(
            "INSERT INTO branches (workflow, branch, highest_seq, created_at) \
             VALUES ((SELECT coalesce(max(id), 0) + 1 FROM workflows), 0, 0, ?1)",
            [at.0],
        )?;
        let branch = self.db.last_insert_rowid();
        self.run(
            "INSERT INTO workflows (id, workflow_id, uid, active_branch, created_at) \
             SELECT workflow, ?2, ?3, id, ?4 FROM branches WHERE id = ?1",
            params![branch, id.0, &uid[..], at.0],
        )?;
        self.workflow(id)?
            .ok_or_else(|| JournalError::Damaged("a new workflow is not there".into()))
    }

    fn branch(&mut self, id: BranchId) -> Result<Option<Branch>, JournalError> {
        if let Some(branch) = self.known.branch(id) {
            return Ok(Some(branch));
        }
        let found = self.one(
            "SELECT id, workflow, branch, parent, forked_at, highest_seq FROM branches WHERE id = ?1",
            [db_int(id.0)],
            |row| read_branch(row, 0),
        )?;
        self.known.branches.extend(found);
        Ok(found)
    }

    fn create_branch(
        &mut self,
        workflow: u64,
        parent: (BranchId, Seq),
        at: Micros,
    ) -> Result<Branch, JournalError> {
        self.forget()?;
        self.run(
            "INSERT INTO branches (workflow, branch, parent, forked_at, highest_seq, created_at) \
             SELECT ?1, max(branch) + 1, ?2, ?3, ?3 - 1, ?4 FROM branches WHERE workflow = ?1",
            params![
                db_int(workflow),
                db_int(parent.0.0),
                db_int(parent.1.0),
                at.0
            ],
        )?;
        let branch = BranchId(u64::try_from(self.db.last_insert_rowid()).unwrap_or(0));
        self.run(
            "UPDATE workflows SET active_branch = ?2 WHERE id = ?1",
            params![db_int(workflow), db_int(branch.0)],
        )?;
        self.branch(branch)?
            .ok_or_else(|| JournalError::Damaged("a new branch is not there".into()))
    }

    fn fork_workflow(
        &mut self,
        id: &WorkflowId,
        uid: [u8; 16],
        parent: (BranchId, Seq),
        at: Micros,
    ) -> Result<Workflow, JournalError> {
        let made = self.create_workflow(id, uid, at)?;
        self.forget()?;
        self.run(
            "UPDATE branches SET parent = ?2, forked_at = ?3, highest_seq = ?3 - 1 WHERE id = ?1",
            params![
                db_int(made.active.id.0),
                db_int(parent.0.0),
                db_int(parent.1.0)
            ],
        )?;
        self.workflow(id)?
            .ok_or_else(|| JournalError::Damaged("a new workflow is not there".into()))
    }

    fn set_generation(&mut self, workflow: u64, session: SessionId) -> Result<(), JournalError> {
        self.forget()?;
        self.run(
            "UPDATE workflows SET generation = ?2 WHERE id = ?1",
            [db_int(workflow), db_int(session.0)],
        )?;
        Ok(())
    }

    fn count_entries(&mut self, workflow: u64) -> Result<u64, JournalError> {
        let count = self.one(
            "SELECT count(*) FROM branches b JOIN entries e ON e.branch_id = b.id \
             WHERE b.workflow = ?1",
            [db_int(workflow)],
            |row| number(row, 0),
        )?;
        Ok(count.unwrap_or(0))
    }

    fn next_entry(&mut self, branch: BranchId, after: Seq) -> Result<Option<Stored>, JournalError> {
        self.one(
            entries!("WHERE branch_id = ?1 AND seq > ?2 ORDER BY seq LIMIT 1"),
            [db_int(branch.0), db_int(after.0)],
            read_entry,
        )
    }

    fn lease(&mut self, fence: Fence) -> Result<Option<Lease>, JournalError> {
        self.one(
            "SELECT boot_id, until_ms FROM leases WHERE fence = ?1",
            [db_int(fence.0)],
            |row| {
                Ok(Lease {
                    boot_id: row.get(0)?,
                    until_ms: number(row, 1)?,
                })
            },
        )
    }

    fn put_lease(&mut self, fence: Fence, lease: &Lease) -> Result<(), JournalError> {
        self.run(
            "INSERT OR REPLACE INTO leases (fence, boot_id, until_ms) VALUES (?1, ?2, ?3)",
            params![db_int(fence.0), lease.boot_id, db_int(lease.until_ms)],
        )?;
        Ok(())
    }

    fn entry(&mut self, branch: BranchId, seq: Seq) -> Result<Option<Stored>, JournalError> {
        if let Some(stored) = self.known.pending(branch, seq) {
            return Ok(Some(stored.clone()));
        }
        self.one(
            entries!("WHERE branch_id = ?1 AND seq = ?2"),
            [db_int(branch.0), db_int(seq.0)],
            read_entry,
        )
    }

    fn is_gap(&mut self, branch: BranchId, seq: Seq) -> Result<bool, JournalError> {
        Ok(self.gap_of(branch, seq)?.is_some())
    }

    fn undelivered(
        &mut self,
        branch: BranchId,
        signatures: &[(Scheme, Signature)],
    ) -> Result<Vec<Stored>, JournalError> {
        let mut found = Vec::new();
        for (scheme, signature) in signatures {
            if !self.may_be_undelivered(branch, *signature)? {
                continue;
            }
            found.extend(self.all(
                entries!(
                    "INDEXED BY entries_undelivered \
                     WHERE delivered_at IS NULL AND branch_id = ?1 AND signature = ?2 \
                     AND scheme = ?3 ORDER BY seq"
                ),
                params![db_int(branch.0), &signature.0[..], scheme.name()],
                read_entry,
            )?);
        }
        found.sort_by_key(|stored| stored.entry.seq);
        Ok(found)
    }

    fn by_key(&mut self, key: &HeldKey) -> Result<Option<Stored>, JournalError> {
        self.one(
            entries!(
                "INDEXED BY entries_key \
                 WHERE key IS NOT NULL AND key = ?1 AND window = ?2 AND window_id = ?3 \
                 ORDER BY fence LIMIT 1"
            ),
            params![key.key, key.window.name(), key.window_id],
            read_entry,
        )
    }

    fn by_state(&mut self, state: &[u8; 32]) -> Result<Vec<(BranchId, Seq, Fence)>, JournalError> {
        self.all(
            "SELECT a.branch_id, a.seq, a.fence FROM outcomes o INDEXED BY outcomes_state \
             JOIN attempts a ON a.fence = o.fence \
             WHERE o.state IS NOT NULL AND o.state = ?1 ORDER BY a.fence",
            [&state[..]],
            |row| {
                Ok((
                    BranchId(number(row, 0)?),
                    Seq(number(row, 1)?),
                    Fence(number(row, 2)?),
                ))
            },
        )
    }

    fn by_task(&mut self, task_id: &str) -> Result<Vec<(Stored, Fence, TaskKey)>, JournalError> {
        let tasks: Vec<(u64, TaskKey)> = self.all(
            "SELECT fence, task_id, task_at FROM outcomes INDEXED BY outcomes_task \
             WHERE task_id IS NOT NULL AND task_id = ?1 ORDER BY fence",
            [task_id],
            |row| {
                Ok((
                    number(row, 0)?,
                    TaskKey {
                        id: row.get(1)?,
                        created_at: row.get::<_, Option<String>>(2)?.unwrap_or_default(),
                    },
                ))
            },
        )?;
        let mut found = Vec::new();
        for (fence, task) in tasks {
            let stored = self.one(
                entries!(
                    "WHERE (branch_id, seq) = \
                     (SELECT branch_id, seq FROM attempts WHERE fence = ?1)"
                ),
                [db_int(fence)],
                read_entry,
            )?;
            if let Some(stored) = stored {
                found.push((stored, Fence(fence), task));
            }
        }
        Ok(found)
    }

    fn outcome(&mut self, fence: Fence) -> Result<Option<Outcome>, JournalError> {
        let found = self.one(
            "SELECT fence, status, is_error, provenance, at, digest, length(body), \
             CASE WHEN length(body) <= ?2 THEN body END, state, inputs, task_id, task_at \
             FROM outcomes WHERE fence = ?1",
            params![db_int(fence.0), BOUND_MAX],
            |row| {
                let state: Option<Vec<u8>> = row.get(8)?;
                let inputs: Option<String> = row.get(9)?;
                let task_id: Option<String> = row.get(10)?;
                let (outcome, is_large) = read_outcome(row)?;
                Ok((
                    Outcome {
                        round: inputs.map(|inputs| RoundKey {
                            state: state.and_then(|state| state.try_into().ok()),
                            inputs,
                        }),
                        task: match task_id {
                            Some(id) => Some(TaskKey {
                                id,
                                created_at: row.get::<_, Option<String>>(11)?.unwrap_or_default(),
                            }),
                            None => None,
                        },
                        ..outcome
                    },
                    is_large,
                ))
            },
        )?;
        self.with_body("outcomes", found)
    }

    fn task_end(&mut self, fence: Fence) -> Result<Option<Outcome>, JournalError> {
        let found = self.one(
            "SELECT fence, status, is_error, provenance, at, digest, length(body), \
             CASE WHEN length(body) <= ?2 THEN body END FROM task_ends WHERE fence = ?1",
            params![db_int(fence.0), BOUND_MAX],
            read_outcome,
        )?;
        self.with_body("task_ends", found)
    }

    fn flights(&mut self, fence: Fence) -> Result<Vec<Flight>, JournalError> {
        // A chain leads to older fences only; where it does not, it is damage, and ends.
        let mut flights = self.all(
            "WITH RECURSIVE chain (fence, previous) AS ( \
             SELECT fence, previous FROM attempts WHERE fence = ?1 UNION ALL \
             SELECT a.fence, a.previous FROM chain c JOIN attempts a ON a.fence = c.previous \
             WHERE c.previous < c.fence) \
             SELECT c.fence, o.next_fence FROM chain c LEFT JOIN outcomes o ON o.fence = c.fence \
             ORDER BY c.fence DESC",
            [db_int(fence.0)],
            |row| {
                let next: Option<i64> = row.get(1)?;
                Ok(Flight {
                    fence: Fence(number(row, 0)?),
                    next: match next {
                        Some(_) => Some(Fence(number(row, 1)?)),
                        None => None,
                    },
                })
            },
        )?;
        for flight in &mut flights {
            if self.put_off.overtaken.contains(&flight.fence) {
                flight.next = self.put_off.after_reserved;
            }
        }
        Ok(flights)
    }

    fn attempt(&mut self, fence: Fence) -> Result<Option<Attempt>, JournalError> {
        let found = self.one(
            "SELECT fence, branch_id, seq, attempt, round, previous, session_id, started_at, \
             scheme, signature, CASE WHEN length(arguments) <= ?2 THEN arguments END, \
             arguments_bytes, redacted, protocol_version, tool_revision, policy, traceparent, \
             length(arguments) FROM attempts WHERE fence = ?1",
            params![db_int(fence.0), BOUND_MAX],
            |row| {
                let is_large = row
                    .get::<_, Option<i64>>(17)?
                    .is_some_and(|bytes| bytes > BOUND_MAX);
                let attempt = Attempt {
                    fence: Fence(number(row, 0)?),
                    branch: BranchId(number(row, 1)?),
                    seq: Seq(number(row, 2)?),
                    attempt: row.get(3)?,
                    round: row.get(4)?,
                    previous: match row.get::<_, Option<i64>>(5)? {
                        Some(_) => Some(Fence(number(row, 5)?)),
                        None => None,
                    },
                    session: SessionId(number(row, 6)?),
                    started_at: Micros(row.get(7)?),
                    scheme: named(row, 8, scheme_named)?,
                    signature: Signature(bytes(row, 9)?),
                    arguments: row.get::<_, Option<Vec<u8>>>(10)?.map(Payload::from),
                    arguments_bytes: number(row, 11)?,
                    is_redacted: row.get(12)?,
                    protocol_version: row.get(13)?,
                    tool_revision: row.get(14)?,
                    policy: row.get(15)?,
                    traceparent: row.get(16)?,
                };
                Ok((attempt, is_large))
            },
        )?;
        match found {
            Some((mut attempt, true)) => {
                attempt.arguments = self.payload("attempts", "arguments", fence)?;
                Ok(Some(attempt))
            }
            Some((attempt, false)) => Ok(Some(attempt)),
            None => Ok(None),
        }
    }

    fn has_scheme(&mut self, scheme: Scheme) -> Result<bool, JournalError> {
        // The keyed scheme is there from the moment its key is; the plain one always may be.
        Ok(match scheme {
            Scheme::Plain => true,
            Scheme::Keyed => self.identity.key_fingerprint.is_some(),
        })
    }

    fn next_fence(&mut self) -> Result<Fence, JournalError> {
        if let Some(highest) = self.known.highest_fence {
            return Ok(Fence(highest + 1));
        }
        // Without max(), which would be one step through an aggregate.
        let highest = self.one(
            "SELECT fence FROM attempts ORDER BY fence DESC LIMIT 1",
            (),
            |row| row.get::<_, i64>(0),
        )?;
        let highest = u64::try_from(highest.unwrap_or(0))
            .map_err(|_| JournalError::Damaged("a negative fence".into()))?;
        self.known.highest_fence = Some(highest);
        Ok(Fence(highest + 1))
    }

    fn apply(&mut self, write: &Write) -> Result<Applied, JournalError> {
        let applied = self.put_entry(write)?;
        if applied == Applied::Lost {
            return Ok(Applied::Lost);
        }
        if let Some(attempt) = &write.attempt {
            self.put_attempt(attempt)?;
        }
        if let Some(outcome) = &write.outcome {
            let was = match write.transition.expect {
                Expect::At { status, .. } => status,
                Expect::Absent => Status::Pending,
            };
            self.put_outcome(was, outcome)?;
        }
        if let Some(event) = &write.event {
            self.event(event)?;
        }
        Ok(Applied::Done)
    }

    fn deliver(
        &mut self,
        branch: BranchId,
        seq: Seq,
        fence: Fence,
        at: Micros,
    ) -> Result<bool, JournalError> {
        let changed = self.run(
            "UPDATE entries SET delivered_at = ?4 WHERE branch_id = ?1 AND seq = ?2 AND fence = ?3 \
             AND delivered_at IS NULL AND completed_at IS NOT NULL",
            params![db_int(branch.0), db_int(seq.0), db_int(fence.0), at.0],
        )?;
        Ok(changed == 1)
    }

    fn deliver_run(
        &mut self,
        first: (BranchId, Seq, Fence),
        count: u64,
        at: Micros,
    ) -> Result<u64, JournalError> {
        let (branch, seq, fence) = first;
        // One walk over neighbours takes half as long as finding each by itself.
        let changed = self.run(
            "UPDATE entries SET delivered_at = ?5 WHERE branch_id = ?1 AND seq BETWEEN ?2 AND ?3 \
             AND fence - seq = ?4 AND delivered_at IS NULL AND completed_at IS NOT NULL",
            [
                db_int(branch.0),
                db_int(seq.0),
                db_int(seq.0 + count.saturating_sub(1)),
                db_int(fence.0) - db_int(seq.0),
                at.0,
            ],
        )?;
        Ok(changed as u64)
    }

    fn event(&mut self, event: &Event) -> Result<(), JournalError> {
        event.assert_known();
        self.run(
            "INSERT INTO events (at, kind, branch_id, seq, fence, session_id, letter, detail, \
             merge_key, count, last_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 1, ?1) \
             ON CONFLICT (merge_key) WHERE merge_key IS NOT NULL \
             DO UPDATE SET count = count + 1, last_at = max(last_at, excluded.at)",
            params![
                event.at.0,
                event.kind,
                event.entry.map(|(branch, _)| db_int(branch.0)),
                event.entry.map(|(_, seq)| db_int(seq.0)),
                event.fence.map(|fence| db_int(fence.0)),
                event.session.map(|session| db_int(session.0)),
                event.letter.map(String::from),
                event.detail,
                event.merge_key,
            ],
        )?;
        Ok(())
    }

    fn events(&mut self, branch: BranchId, seq: Seq) -> Result<Vec<EventRow>, JournalError> {
        self.all(
            "SELECT id, at, kind, branch_id, seq, fence, session_id, letter, detail, merge_key, \
             count, last_at FROM events WHERE branch_id = ?1 AND seq = ?2 ORDER BY id",
            [db_int(branch.0), db_int(seq.0)],
            read_event,
        )
    }

    fn next_session(&mut self) -> Result<SessionId, JournalError> {
        let highest = self.one("SELECT coalesce(max(id), 0) FROM sessions", (), |row| {
            number(row, 0)
        })?;
        Ok(SessionId(highest.unwrap_or(0) + 1))
    }

    fn put_session(&mut self, id: SessionId, session: &Session) -> Result<(), JournalError> {
        self.run(
            "INSERT OR REPLACE INTO sessions (id, host, boot_id, pid, lock_offset, started_at, \
             ended_at, upstream_pgid, upstream_started_at, upstream_name, upstream_version, \
             protocol_version, client_name, client_version) \
             VALUES (?1, ?2, ?3, ?4, ?1, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            params![
                db_int(id.0),
                session.host,
                session.boot_id,
                session.pid,
                session.started_at,
                session.ended_at,
                session.upstream_pgid,
                session.upstream_started_at.map(db_int),
                session.upstream_name,
                session.upstream_version,
                session.protocol_version,
                session.client_name,
                session.client_version,
            ],
        )?;
        Ok(())
    }

    fn session(&mut self, id: SessionId) -> Result<Option<Session>, JournalError> {
        self.one(
            "SELECT host, boot_id, pid, started_at, ended_at, upstream_pgid, upstream_started_at, \
             upstream_name, upstream_version, protocol_version, client_name, client_version \
             FROM sessions WHERE id = ?1",
            [db_int(id.0)],
            |row| {
                Ok(Session {
                    host: row.get(0)?,
                    boot_id: row.get(1)?,
                    pid: row.get(2)?,
                    started_at: row.get(3)?,
                    ended_at: row.get(4)?,
                    upstream_pgid: row.get(5)?,
                    upstream_started_at: row
                        .get::<_, Option<i64>>(6)?
                        .and_then(|ticks| u64::try_from(ticks).ok()),
                    upstream_name: row.get(7)?,
                    upstream_version: row.get(8)?,
                    protocol_version: row.get(9)?,
                    client_name: row.get(10)?,
                    client_version: row.get(11)?,
                })
            },
        )
    }

    fn set_key_fingerprint(&mut self, fingerprint: [u8; 32]) -> Result<(), JournalError> {
        self.run(
            "INSERT OR REPLACE INTO meta (name, value) VALUES ('key_fingerprint', ?1)",
            [&fingerprint[..]],
        )?;
        self.identity.key_fingerprint = Some(fingerprint);
        Ok(())
    }

    fn places_after(
        &mut self,
        after: Option<(BranchId, Seq)>,
        limit: usize,
    ) -> Result<Vec<(BranchId, Seq)>, JournalError> {
        let (branch, seq) = after.unwrap_or((BranchId(0), Seq(0)));
        self.all(
            "SELECT branch_id, seq FROM entries WHERE (branch_id, seq) > (?1, ?2) \
             ORDER BY branch_id, seq LIMIT ?3",
            params![
                db_int(branch.0),
                db_int(seq.0),
                i64::try_from(limit).unwrap_or(i64::MAX)
            ],
            |row| Ok((BranchId(number(row, 0)?), Seq(number(row, 1)?))),
        )
    }

    fn payload_bytes(&mut self, fence: Fence) -> Result<u64, JournalError> {
        let bytes = self.one(
            "SELECT coalesce((SELECT length(arguments) FROM attempts WHERE fence = ?1), 0) \
             + coalesce((SELECT length(body) FROM outcomes WHERE fence = ?1), 0) \
             + coalesce((SELECT length(body) FROM task_ends WHERE fence = ?1), 0)",
            [db_int(fence.0)],
            |row| number(row, 0),
        )?;
        Ok(bytes.unwrap_or(0))
    }

    fn drop_payload(&mut self, fence: Fence) -> Result<(), JournalError> {
        for sql in [
            "UPDATE attempts SET arguments = NULL WHERE fence = ?1 AND arguments IS NOT NULL",
            "UPDATE outcomes SET body = NULL WHERE fence = ?1 AND body IS NOT NULL",
            "UPDATE task_ends SET body = NULL WHERE fence = ?1 AND body IS NOT NULL",
        ] {
            self.run(sql, [db_int(fence.0)])?;
        }
        Ok(())
    }

    fn put_detail(&mut self, event: u64, detail: &str) -> Result<(), JournalError> {
        self.run(
            "UPDATE events SET detail = ?2 WHERE id = ?1",
            params![db_int(event), detail],
        )?;
        Ok(())
    }

    fn commit(mut self) -> Result<(), JournalError> {
        // Where this fails, dropping the transaction rolls it back.
        self.write_raised()?;
        self.write_overtaken()?;
        let committed = self
            .db
            .prepare_cached("COMMIT")
            .and_then(|mut commit| commit.execute(()));
        self.is_open = false;
        let Err(error) = committed else {
            return Ok(());
        };
        *self.known = Known::default();
        let kind = classify(&error);
        // A commit that failed may or may not be on disk. Only where SQLite says that it rolled
        // back, or lets us do so, for a reason that has nothing to do with a sync, is it known.
        let rolled_back = self.db.is_autocommit() || self.db.execute_batch("ROLLBACK").is_ok();
        match kind {
            JournalError::Busy | JournalError::Full if rolled_back => Err(kind),
            kind => {
                let kind = match kind {
                    JournalError::Damaged(_) | JournalError::Moved(_) => kind,
                    other => JournalError::Failed(other.to_string()),
                };
                *self.failed = Some(kind.clone());
                Err(kind)
            }
        }
    }
}

/// What it means that so many rows were changed by a write that compares.
fn applied(changed: usize) -> Applied {
    if changed == 1 {
        Applied::Done
    } else {
        Applied::Lost
    }
}

/// SQLite's integers are signed; no number of ours reaches 2^63.
fn db_int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn number(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(index)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, value))
}

pub(crate) fn bytes<const N: usize>(row: &Row<'_>, index: usize) -> rusqlite::Result<[u8; N]> {
    let value = row.get_ref(index)?.as_blob()?;
    value
        .try_into()
        .map_err(|_| rusqlite::Error::InvalidColumnIndex(index))
}

pub(crate) fn named<T>(
    row: &Row<'_>,
    index: usize,
    from_name: impl FnOnce(&str) -> Option<T>,
) -> rusqlite::Result<T> {
    let text = row.get_ref(index)?.as_str()?;
    from_name(text).ok_or_else(|| rusqlite::Error::InvalidColumnName(text.to_owned()))
}

fn maybe_named<T>(
    row: &Row<'_>,
    index: usize,
    from_name: impl FnOnce(&str) -> Option<T>,
) -> rusqlite::Result<Option<T>> {
    match row.get_ref(index)? {
        rusqlite::types::ValueRef::Null => Ok(None),
        _ => named(row, index, from_name).map(Some),
    }
}

fn scheme_named(name: &str) -> Option<Scheme> {
    name.parse().ok()
}

fn held(key: Option<&HeldKey>) -> (Option<&str>, Option<&'static str>, Option<&str>) {
    (
        key.map(|held| held.key.as_str()),
        key.map(|held| held.window.name()),
        key.map(|held| held.window_id.as_str()),
    )
}

pub(crate) fn read_branch(row: &Row<'_>, first: usize) -> rusqlite::Result<Branch> {
    let parent: Option<i64> = row.get(first + 3)?;
    Ok(Branch {
        id: BranchId(number(row, first)?),
        workflow: number(row, first + 1)?,
        number: row.get(first + 2)?,
        parent: match parent {
            Some(_) => Some((
                BranchId(number(row, first + 3)?),
                Seq(number(row, first + 4)?),
            )),
            None => None,
        },
        highest: number(row, first + 5)?,
    })
}

/// Reads one entry from a row that selects [`ENTRY_COLUMNS`]'s columns.
pub(crate) fn read_entry(row: &Row<'_>) -> rusqlite::Result<Stored> {
    let key: Option<String> = row.get(19)?;
    Ok(Stored {
        entry: Entry {
            branch: BranchId(number(row, 0)?),
            seq: Seq(number(row, 1)?),
            tool: row.get(2)?,
            status: named(row, 3, Status::from_name)?,
            attempt: row.get(4)?,
            round: row.get(5)?,
            fence: Fence(number(row, 6)?),
            session: SessionId(number(row, 7)?),
            scheme: named(row, 8, scheme_named)?,
            signature: Signature(bytes(row, 9)?),
            created_at: Micros(row.get(10)?),
            completed_at: row.get::<_, Option<i64>>(11)?.map(Micros),
            delivered_at: row.get::<_, Option<i64>>(12)?.map(Micros),
            gave_up: maybe_named(row, 13, GaveUp::from_name)?,
            unanswered: maybe_named(row, 14, Unanswered::from_name)?,
            is_error: row.get(15)?,
            provenance: maybe_named(row, 16, Provenance::from_name)?,
            digest: match row.get_ref(17)? {
                rusqlite::types::ValueRef::Null => None,
                _ => Some(bytes(row, 17)?),
            },
            is_tombstone: row.get(18)?,
            key: match key {
                Some(key) => Some(HeldKey {
                    key,
                    window: named(row, 20, Window::from_name)?,
                    window_id: row.get(21)?,
                }),
                None => None,
            },
            call_id: row.get(22)?,
        },
        checksum: bytes(row, 23)?,
    })
}

/// Reads an outcome, and whether its body is to be read by itself. The first eight columns are
/// fence, status, is_error, provenance, at, digest, the body's length, and the body if it is small.
pub(super) fn read_outcome(row: &Row<'_>) -> rusqlite::Result<(Outcome, bool)> {
    let length: Option<i64> = row.get(6)?;
    let outcome = Outcome {
        fence: Fence(number(row, 0)?),
        status: named(row, 1, Status::from_name)?,
        is_error: row.get(2)?,
        provenance: named(row, 3, Provenance::from_name)?,
        at: Micros(row.get(4)?),
        digest: bytes(row, 5)?,
        body: row.get::<_, Option<Vec<u8>>>(7)?.map(Payload::from),
        round: None,
        task: None,
    };
    Ok((outcome, length.is_some_and(|length| length > BOUND_MAX)))
}

/// Returns a payload that may be bound as it is.
fn small(payload: Option<&[u8]>) -> Option<&[u8]> {
    payload.filter(|payload| payload.len() <= BOUND_BYTES_MAX)
}

pub(crate) fn read_event(row: &Row<'_>) -> rusqlite::Result<EventRow> {
    let entry: Option<i64> = row.get(4)?;
    Ok(EventRow {
        id: number(row, 0)?,
        event: Event {
            at: Micros(row.get(1)?),
            kind: row.get(2)?,
            entry: match entry {
                Some(_) => Some((BranchId(number(row, 3)?), Seq(number(row, 4)?))),
                None => None,
            },
            fence: match row.get::<_, Option<i64>>(5)? {
                Some(_) => Some(Fence(number(row, 5)?)),
                None => None,
            },
            session: match row.get::<_, Option<i64>>(6)? {
                Some(_) => Some(SessionId(number(row, 6)?)),
                None => None,
            },
            letter: row
                .get::<_, Option<String>>(7)?
                .and_then(|letter| letter.chars().next()),
            detail: row.get(8)?,
            merge_key: row.get(9)?,
        },
        count: number(row, 10)?,
        last_at: Micros(row.get(11)?),
    })
}

#[cfg(test)]
mod tests {
    use super::super::connection::Watch;
    use super::super::fixture::World;
    use super::super::place::Companion;
    use super::super::{conformance, place, schema};
    use super::*;

    fn journal(world: &World) -> SqliteJournal {
        let path = world.journal.clone();
        let mut watches: Vec<Watch> = Vec::new();
        let connect = move || {
            let opened = super::super::fixture::open(&path);
            watches.push(opened.watch);
            Ok(opened.connection)
        };
        SqliteJournal::open(Box::new(connect), Box::new(|| Ok(()))).unwrap()
    }

    fn workflows(journal: &mut SqliteJournal) -> Vec<bool> {
        let mut tx = journal.begin(Durability::Power).unwrap();
        ["a", "b", "c"]
            .map(|name| tx.workflow(&WorkflowId(name.into())).unwrap().is_some())
            .to_vec()
    }

    fn make(journal: &mut SqliteJournal, name: &str) {
        let mut tx = journal.begin(Durability::Power).unwrap();
        tx.create_workflow(&WorkflowId(name.into()), [1; 16], Micros(1))
            .unwrap();
        tx.commit().unwrap();
    }

    /// What is done for speed alone never closes a journal that the next outcome may fit into.
    #[test]
    fn a_log_that_finds_no_room_to_be_long_leaves_the_journal_open() {
        let world = World::empty();
        let image = schema::empty_image([7; 16], &WorkflowId("own".into()), Micros(0)).unwrap();
        place::create(&world.journal, &image, &world.filesystem()).unwrap();
        let mut journal = journal(&world);
        make(&mut journal, "a");
        let pages: i64 = journal
            .connection()
            .pragma_query_value(None, "page_count", |row| row.get(0))
            .unwrap();
        journal
            .connection()
            .pragma_update(None, "max_page_count", pages + 4)
            .unwrap();
        assert_eq!(journal.grow_log(600).unwrap_err(), JournalError::Full);
        make(&mut journal, "b");
        assert_eq!(workflows(&mut journal), [true, true, false]);
    }

    #[test]
    fn a_log_made_long_holds_what_it_held_and_nothing_else() {
        let world = World::empty();
        let image = schema::empty_image([7; 16], &WorkflowId("own".into()), Micros(0)).unwrap();
        place::create(&world.journal, &image, &world.filesystem()).unwrap();
        let mut first = journal(&world);
        let mut other = journal(&world);
        make(&mut first, "a");
        assert!(first.grow_log(600).unwrap());
        let log = world.journal.companion(Companion::Wal);
        let size = |log: &std::path::Path| std::fs::metadata(log).unwrap().len();
        let grown = size(&log);
        assert!(grown >= 600 * PAGE_BYTES, "{grown}");
        assert!(!first.grow_log(600).unwrap(), "it is long enough");
        assert_eq!(workflows(&mut first), [true, false, false]);
        assert_eq!(workflows(&mut other), [true, false, false]);
        make(&mut other, "b");
        make(&mut first, "c");
        assert_eq!(size(&log), grown, "commits write over what is there");

        // A crash leaves the log with pages of no transaction behind its last commit.
        let crashed = World::empty();
        std::fs::copy(world.path(), crashed.path()).unwrap();
        std::fs::copy(&log, crashed.journal.companion(Companion::Wal)).unwrap();
        let mut crashed_journal = journal(&crashed);
        assert_eq!(workflows(&mut crashed_journal), [true, true, true]);
        let verdict: String = crashed_journal
            .connection()
            .query_row("PRAGMA integrity_check", (), |row| row.get(0))
            .unwrap();
        assert_eq!(verdict, "ok");
        let rows: i64 = crashed_journal
            .connection()
            .query_row("SELECT count(*) FROM outcomes", (), |row| row.get(0))
            .unwrap();
        assert_eq!(rows, 0);
    }

    #[test]
    fn a_moved_log_is_in_the_journal_itself_and_a_reader_is_not_waited_for() {
        let world = World::empty();
        let image = schema::empty_image([7; 16], &WorkflowId("own".into()), Micros(0)).unwrap();
        place::create(&world.journal, &image, &world.filesystem()).unwrap();
        let mut first = journal(&world);
        make(&mut first, "a");
        let without_its_log = || {
            let copy = World::empty();
            std::fs::copy(world.path(), copy.path()).unwrap();
            workflows(&mut journal(&copy))
        };
        assert_eq!(without_its_log(), [false, false, false]);
        first.move_log().unwrap();
        assert_eq!(without_its_log(), [true, false, false]);

        // A snapshot from before keeps what came after it in the log.
        let mut reader = journal(&world);
        reader.connection().execute_batch("BEGIN").unwrap();
        let rows: i64 = reader
            .connection()
            .query_row("SELECT count(*) FROM workflows", (), |row| row.get(0))
            .unwrap();
        assert_eq!(rows, 1);
        make(&mut first, "b");
        first.move_log().unwrap();
        assert_eq!(without_its_log(), [true, false, false]);
        reader.connection().execute_batch("COMMIT").unwrap();
        first.move_log().unwrap();
        assert_eq!(without_its_log(), [true, true, false]);
    }

    /// What was remembered from the last transaction is not believed once somebody else has written.
    #[test]
    fn what_another_connection_wrote_is_seen() {
        let world = World::empty();
        let image = schema::empty_image([7; 16], &WorkflowId("own".into()), Micros(0)).unwrap();
        place::create(&world.journal, &image, &world.filesystem()).unwrap();
        conformance::beside::beside(&mut journal(&world), &mut journal(&world));
    }

    #[test]
    fn a_busy_journal_is_left_as_it_is() {
        let world = World::empty();
        let image = schema::empty_image([7; 16], &WorkflowId("own".into()), Micros(0)).unwrap();
        place::create(&world.journal, &image, &world.filesystem()).unwrap();
        let mut first = journal(&world);
        let mut other = journal(&world);
        let held = other.begin(Durability::Power).unwrap();
        assert!(!first.grow_log(600).unwrap());
        drop(held);
        assert!(first.grow_log(600).unwrap());
    }
}
