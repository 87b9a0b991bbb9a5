//! Walks a whole journal for `verify`, row by row, and refuses as little as can be.
//!
//! Whoever looks for damage must read what others refuse: tables that are not as expected, a mark
//! that knows more, a row that holds what no version writes. So this opens the journal without
//! those checks and hands everything out as it stands, one row at a time.
//!
//! Invariants: all of it is read in one snapshot, so that a proxy that writes meanwhile does not
//! look like damage. The mark is read before the snapshot. No payload is kept: bytes are compared
//! with their digest where they lie. Nothing is written.
//!
//! Must not: judge (that is [`crate::rules::audit`]'s and the guard's), or be used by a proxy.

use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::cannot_use::CannotUse;
use super::connection::{self, Access, OpenJournal};
use super::mark::{Mark, MarkRead};
use super::place::{JournalPath, Warning};
use super::sqlite::{self, ENTRY_COLUMNS, read_entry, read_event};
use super::{Branch, EventRow, Identity, JournalError, Stored};
use crate::json;
use crate::rules::audit::{Body, Ending, History, STEPS_MAX, Step};
use crate::rules::entry::{Entry, Provenance, Status, outcome_digest};
use crate::rules::ids::{BranchId, Fence, Micros, Seq, SessionId, WorkflowId};
use crate::rules::signature::{Scheme, Signature, signature as signature_of};

/// How long a journal that others use is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// A journal that is open for a walk, in one snapshot.
#[derive(Debug)]
pub struct Walk {
    opened: OpenJournal,
    mark: Option<MarkRead>,
    identity: Result<Identity, JournalError>,
    mark_refused: Option<String>,
}

/// A row that can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Its first key column, where that is a number.
    pub first: Option<u64>,
    /// Its second key column, where that is a number.
    pub second: Option<u64>,
    /// What is wrong with it.
    pub why: String,
}

/// How many entries there are of some sorts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub entries: u64,
    /// A live session waits for their outcome.
    pub running: u64,
    /// They are PENDING, and nobody knows what came of them.
    pub in_doubt: u64,
    /// Their outcome never reached a caller.
    pub undelivered: u64,
}

/// A workflow's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowRow {
    /// The journal's own number of it.
    pub number: u64,
    /// Its name.
    pub id: WorkflowId,
    /// Its active branch.
    pub active: BranchId,
    /// The session that has taken it over.
    pub generation: Option<SessionId>,
}

/// What an attempt's row says of where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptRow {
    /// Its fence.
    pub fence: Fence,
    /// Its branch.
    pub branch: BranchId,
    /// Its place.
    pub seq: Seq,
    /// Who reserved it.
    pub session: SessionId,
}

/// A run of seqs that were left out on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapRow {
    /// Its branch.
    pub branch: BranchId,
    /// The first seq.
    pub first: u64,
    /// The last seq.
    pub last: u64,
}

impl Walk {
    /// Opens the journal and begins the snapshot.
    ///
    /// # Errors
    ///
    /// Those of [`connection::open_patiently`]: the file is not there, is no journal, can't be
    /// read by this release, or is damaged so far that SQLite can't begin.
    pub fn open(path: &JournalPath) -> Result<Self, CannotUse> {
        let filesystem = super::filesystem::kind(path.folder())?;
        let opened =
            connection::open_patiently(path, Access::ReadOnly, &filesystem, PATIENCE, false)?;
        let db = &opened.connection;
        let refuse = |source| CannotUse::sqlite("read", path.as_path(), source);
        db.busy_timeout(PATIENCE).map_err(refuse)?;
        db.set_prepared_statement_cache_capacity(32);
        let identity = sqlite::read_identity(db);
        // Before the snapshot: a commit in between would else look like a loss.
        let (mark, mark_refused) = match &identity {
            Ok(identity) => match Mark::read_only(path, &identity.uid) {
                Ok(read) => (Some(read), None),
                Err(error) => (None, Some(error.to_string())),
            },
            Err(_) => (None, None),
        };
        db.execute_batch("BEGIN").map_err(refuse)?;
        // The snapshot begins with the first read.
        db.query_row("SELECT count(*) FROM sqlite_schema", (), |_| Ok(()))
            .map_err(refuse)?;
        Ok(Self {
            opened,
            mark,
            identity,
            mark_refused,
        })
    }

    /// Returns what the owner should know.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.opened.warnings
    }

    /// Returns whether the journal has a write-ahead log; without one a walk holds up writers.
    #[must_use]
    pub fn is_wal(&self) -> bool {
        self.opened.is_wal
    }

    /// Returns what the journal says of itself, or why it can't.
    ///
    /// # Errors
    ///
    /// Its `meta` rows can't be read.
    pub fn identity(&self) -> Result<&Identity, &JournalError> {
        self.identity.as_ref()
    }

    /// Returns the connection, for what is not a row of ours.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.opened.connection
    }

    /// Returns how many entries there are, given the sessions that are live.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn counts(&self, live: &[u64]) -> Result<Counts, JournalError> {
        let mut counts = Counts {
            entries: self.count("entries")?,
            undelivered: self.number(
                "SELECT count(*) FROM entries WHERE delivered_at IS NULL \
                 AND completed_at IS NOT NULL",
            )?,
            ..Counts::default()
        };
        self.each(
            "SELECT session_id, unanswered IS NOT NULL FROM entries \
             WHERE delivered_at IS NULL AND status = 'PENDING'",
            |row| Ok((unsigned(row, 0)?, row.get::<_, bool>(1)?)),
            |row| match row {
                Ok((session, false)) if live.contains(&session) => counts.running += 1,
                Ok(_) | Err(_) => counts.in_doubt += 1,
            },
        )?;
        Ok(counts)
    }

    /// Returns what the mark said before the snapshot, or why it does not belong here.
    ///
    /// # Errors
    ///
    /// The reason, as a sentence.
    pub fn mark(&self) -> Result<Option<MarkRead>, &str> {
        match &self.mark_refused {
            Some(why) => Err(why),
            None => Ok(self.mark),
        }
    }

    /// Returns what of the schema is missing, not ours, or other than expected.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn shape_faults(&self) -> Result<Vec<String>, JournalError> {
        let found = super::schema::shape(self.db()).map_err(|error| sqlite::classify(&error))?;
        let expected = super::schema::expected_shape();
        let mut faults = Vec::new();
        for (name, sql) in &expected {
            match found.iter().find(|(other, _)| other == name) {
                None => faults.push(format!("{name} is missing")),
                Some((_, other)) if other != sql => {
                    faults.push(format!("{name} is not as this schema version makes it"));
                }
                Some(_) => {}
            }
        }
        for (name, _) in &found {
            if !expected.iter().any(|(other, _)| other == name) {
                faults.push(format!("{name} is none of ours"));
            }
        }
        Ok(faults)
    }

    /// Returns what SQLite's own check finds, at most `max` lines; it reads every page.
    ///
    /// # Errors
    ///
    /// The check itself can't be made.
    pub fn integrity_faults(&self, max: u32) -> Result<Vec<String>, JournalError> {
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut statement = self
                .db()
                .prepare(&format!("PRAGMA integrity_check({max})"))?;
            statement.query_map((), |row| row.get(0))?.collect()
        };
        let mut lines = read().map_err(|error| sqlite::classify(&error))?;
        lines.retain(|line| line != "ok");
        Ok(lines)
    }

    /// Returns how many rows a table has.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn count(&self, table: &'static str) -> Result<u64, JournalError> {
        self.number(&format!("SELECT count(*) FROM {table}"))
    }

    /// Returns the highest fence; 0 if there is none.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn highest_fence(&self) -> Result<u64, JournalError> {
        self.number("SELECT coalesce(max(fence), 0) FROM attempts")
    }

    /// Returns the workflows.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn workflows(&self) -> Result<Vec<WorkflowRow>, JournalError> {
        self.all(
            "SELECT id, workflow_id, active_branch, generation FROM workflows ORDER BY id",
            |row| {
                Ok(WorkflowRow {
                    number: unsigned(row, 0)?,
                    id: WorkflowId(row.get(1)?),
                    active: BranchId(unsigned(row, 2)?),
                    generation: match row.get_ref(3)? {
                        ValueRef::Null => None,
                        _ => Some(SessionId(unsigned(row, 3)?)),
                    },
                })
            },
        )
    }

    /// Returns the branches, by id.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn branches(&self) -> Result<Vec<Branch>, JournalError> {
        self.all(
            "SELECT id, workflow, branch, parent, forked_at, highest_seq FROM branches ORDER BY id",
            |row| sqlite::read_branch(row, 0),
        )
    }

    /// Returns the ids of the sessions, by id.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn sessions(&self) -> Result<Vec<SessionId>, JournalError> {
        self.all("SELECT id FROM sessions ORDER BY id", |row| {
            Ok(SessionId(unsigned(row, 0)?))
        })
    }

    /// Returns the ids of the sessions that have a PENDING entry, also where such a row is missing.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn open_sessions(&self) -> Result<Vec<SessionId>, JournalError> {
        self.all(
            "SELECT DISTINCT session_id FROM entries \
             WHERE delivered_at IS NULL AND status = 'PENDING' AND session_id >= 0",
            |row| Ok(SessionId(unsigned(row, 0)?)),
        )
    }

    /// Hands out the gaps, by branch and first seq.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn each_gap(&self, take: impl FnMut(Result<GapRow, Torn>)) -> Result<(), JournalError> {
        self.each(
            "SELECT branch_id, first_seq, last_seq FROM gaps ORDER BY branch_id, first_seq",
            |row| {
                Ok(GapRow {
                    branch: BranchId(unsigned(row, 0)?),
                    first: unsigned(row, 1)?,
                    last: unsigned(row, 2)?,
                })
            },
            take,
        )
    }

    /// Returns whether the branch has a gap that covers all of these seqs.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn is_gap(&self, branch: BranchId, first: u64, last: u64) -> Result<bool, JournalError> {
        self.db()
            .prepare_cached(
                "SELECT last_seq FROM gaps WHERE branch_id = ?1 AND first_seq <= ?2 \
                 ORDER BY first_seq DESC LIMIT 1",
            )
            .and_then(|mut statement| {
                statement
                    .query_row((signed(branch.0), signed(first)), |row| unsigned(row, 0))
                    .optional()
            })
            .map(|found| found.is_some_and(|end| end >= last))
            .map_err(|error| sqlite::classify(&error))
    }

    /// Hands out every entry, by branch and seq.
    ///
    /// # Errors
    ///
    /// The journal can't be read any further.
    pub fn each_entry(&self, take: impl FnMut(Result<Stored, Torn>)) -> Result<(), JournalError> {
        self.each(
            &format!("SELECT {ENTRY_COLUMNS} FROM entries ORDER BY branch_id, seq"),
            read_entry,
            take,
        )
    }

    /// Hands out every attempt, by fence.
    ///
    /// # Errors
    ///
    /// The journal can't be read any further.
    pub fn each_attempt(
        &self,
        take: impl FnMut(Result<AttemptRow, Torn>),
    ) -> Result<(), JournalError> {
        self.each(
            "SELECT fence, branch_id, seq, session_id FROM attempts ORDER BY fence",
            |row| {
                Ok(AttemptRow {
                    fence: Fence(unsigned(row, 0)?),
                    branch: BranchId(unsigned(row, 1)?),
                    seq: Seq(unsigned(row, 2)?),
                    session: SessionId(unsigned(row, 3)?),
                })
            },
            take,
        )
    }

    /// Hands out every event, in the order of writing.
    ///
    /// # Errors
    ///
    /// The journal can't be read any further.
    pub fn each_event(&self, take: impl FnMut(Result<EventRow, Torn>)) -> Result<(), JournalError> {
        self.each(
            "SELECT id, at, kind, branch_id, seq, fence, session_id, letter, detail, merge_key, \
             count, last_at FROM events ORDER BY id",
            read_event,
            take,
        )
    }

    /// Hands out the fences of outcomes, ends of tasks and leases that belong to no attempt.
    ///
    /// # Errors
    ///
    /// The journal can't be read any further.
    pub fn each_orphan(
        &self,
        mut take: impl FnMut(&'static str, Fence),
    ) -> Result<(), JournalError> {
        for table in ["outcomes", "task_ends", "leases"] {
            self.each(
                &format!(
                    "SELECT fence FROM {table} o \
                     WHERE NOT EXISTS (SELECT 1 FROM attempts a WHERE a.fence = o.fence)"
                ),
                |row| unsigned(row, 0),
                |fence| {
                    if let Ok(fence) = fence {
                        take(table, Fence(fence));
                    }
                },
            )?;
        }
        Ok(())
    }

    /// Hands out the fences of outcomes that say to have been written before their own attempt was
    /// reserved, or after one that is yet to come.
    ///
    /// # Errors
    ///
    /// The journal can't be read any further.
    pub fn each_untimely(&self, mut take: impl FnMut(Fence)) -> Result<(), JournalError> {
        self.each(
            "SELECT fence FROM outcomes WHERE next_fence <= fence \
             OR next_fence > (SELECT coalesce(max(fence), 0) + 1 FROM attempts)",
            |row| unsigned(row, 0),
            |fence| {
                if let Ok(fence) = fence {
                    take(Fence(fence));
                }
            },
        )
    }

    /// Hands out the fences of outcomes by which a further round could not be told, or could be
    /// told wrongly, each with what does not hold.
    ///
    /// # Errors
    ///
    /// The journal can't be read any further.
    pub fn each_odd_question(
        &self,
        mut take: impl FnMut(Fence, &'static str),
    ) -> Result<(), JournalError> {
        self.each(
            "SELECT fence, status, state, inputs, digest, body FROM outcomes \
             WHERE status = 'INPUT_REQUIRED' OR state IS NOT NULL OR inputs IS NOT NULL",
            |row| Ok((Fence(unsigned(row, 0)?), odd_question(row)?)),
            |row| {
                if let Ok((fence, Some(what))) = row {
                    take(fence, what);
                }
            },
        )
    }

    /// Hands out the places of entries that hold a key which an earlier one holds, too.
    ///
    /// # Errors
    ///
    /// The journal can't be read any further.
    pub fn each_second_holder(
        &self,
        mut take: impl FnMut(BranchId, Seq),
    ) -> Result<(), JournalError> {
        let mut before: Option<Held> = None;
        self.each(
            "SELECT branch_id, seq, key, window, window_id FROM entries INDEXED BY entries_key \
             WHERE key IS NOT NULL ORDER BY key, window, window_id, fence",
            |row| {
                Ok((
                    BranchId(unsigned(row, 0)?),
                    Seq(unsigned(row, 1)?),
                    (row.get(2)?, row.get(3)?, row.get(4)?),
                ))
            },
            |holder: Result<(BranchId, Seq, Held), Torn>| {
                if let Ok((branch, seq, held)) = holder {
                    if before.as_ref() == Some(&held) {
                        take(branch, seq);
                    }
                    before = Some(held);
                }
            },
        )
    }

    /// Returns whether an entry stands at that place.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn has_entry(&self, branch: BranchId, seq: Seq) -> Result<bool, JournalError> {
        self.db()
            .prepare_cached("SELECT 1 FROM entries WHERE branch_id = ?1 AND seq = ?2")
            .and_then(|mut statement| statement.exists((signed(branch.0), signed(seq.0))))
            .map_err(|error| sqlite::classify(&error))
    }

    /// Returns the entry with the chain of attempts that led to it.
    ///
    /// # Errors
    ///
    /// The journal can't be read, or one of the rows can't ([`JournalError::Unreadable`]).
    pub fn history(&self, stored: &Stored) -> Result<History, JournalError> {
        let entry = &stored.entry;
        let mut steps = Vec::new();
        let mut missing = None;
        let mut next = Some(entry.fence);
        while let Some(fence) = next {
            match self.step(fence, entry)? {
                Some(step) if steps.len() < STEPS_MAX => {
                    // A chain that does not fall would never end.
                    next = step.previous.filter(|previous| *previous < fence);
                    if step.previous.is_some() && next.is_none() {
                        missing = step.previous;
                    }
                    steps.push(step);
                }
                Some(_) | None => {
                    missing = Some(fence);
                    next = None;
                }
            }
        }
        steps.reverse();
        // Most calls have one attempt with an outcome, and then no event tells more.
        let is_plain = steps.len() == 1
            && entry.status != Status::Voided
            && (steps[0].outcome.is_some() || entry.status == Status::Pending);
        if !is_plain {
            let notes = self.notes(entry.branch, entry.seq)?;
            for step in &mut steps {
                let says = |note| notes.contains(&(step.fence, note));
                step.is_voided = says(Note::Voided);
                step.is_reopened = says(Note::Reopened);
                step.is_retried = says(Note::Retried);
                step.is_fenced = says(Note::Fenced);
                step.is_retracted = says(Note::Retracted);
            }
        }
        Ok(History {
            entry: entry.clone(),
            checksum: stored.checksum,
            steps,
            missing,
        })
    }

    /// Returns whether an event says why this attempt is no part of its entry's chain any more: it
    /// is known not to have run, or an operator took it away before that was known.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn has_left(&self, attempt: &AttemptRow) -> Result<bool, JournalError> {
        let notes = self.notes(attempt.branch, attempt.seq)?;
        let says = |note| notes.contains(&(attempt.fence, note));
        Ok(says(Note::Voided) || says(Note::Fenced))
    }

    fn step(&self, fence: Fence, entry: &Entry) -> Result<Option<Step>, JournalError> {
        let step = self
            .db()
            .prepare_cached(
                "SELECT fence, branch_id, seq, attempt, round, previous, session_id, started_at, \
                 scheme, signature, redacted, arguments_bytes, arguments \
                 FROM attempts WHERE fence = ?1",
            )
            .and_then(|mut statement| {
                statement
                    .query_row([signed(fence.0)], |row| {
                        Ok(Step {
                            arguments: arguments(row, entry)?,
                            fence: Fence(unsigned(row, 0)?),
                            branch: BranchId(unsigned(row, 1)?),
                            seq: Seq(unsigned(row, 2)?),
                            attempt: row.get(3)?,
                            round: row.get(4)?,
                            previous: match row.get_ref(5)? {
                                ValueRef::Null => None,
                                _ => Some(Fence(unsigned(row, 5)?)),
                            },
                            session: SessionId(unsigned(row, 6)?),
                            started_at: Micros(row.get(7)?),
                            scheme: sqlite::named(row, 8, |name| name.parse().ok())?,
                            signature: Signature(sqlite::bytes(row, 9)?),
                            outcome: None,
                            task_end: None,
                            is_voided: false,
                            is_reopened: false,
                            is_retried: false,
                            is_fenced: false,
                            is_retracted: false,
                        })
                    })
                    .optional()
            })
            .map_err(|error| sqlite::classify(&error))?;
        let Some(mut step) = step else {
            return Ok(None);
        };
        step.outcome = self.ending(
            "SELECT status, is_error, provenance, at, digest, body FROM outcomes WHERE fence = ?1",
            fence,
        )?;
        if step
            .outcome
            .is_some_and(|outcome| outcome.status == Status::Accepted)
        {
            step.task_end = self.ending(
                "SELECT status, is_error, provenance, at, digest, body FROM task_ends \
                 WHERE fence = ?1",
                fence,
            )?;
        }
        Ok(Some(step))
    }

    fn ending(&self, sql: &str, fence: Fence) -> Result<Option<Ending>, JournalError> {
        self.db()
            .prepare_cached(sql)
            .and_then(|mut statement| {
                statement
                    .query_row([signed(fence.0)], |row| {
                        let digest = sqlite::bytes(row, 4)?;
                        Ok(Ending {
                            status: sqlite::named(row, 0, Status::from_name)?,
                            is_error: row.get(1)?,
                            provenance: sqlite::named(row, 2, Provenance::from_name)?,
                            at: Micros(row.get(3)?),
                            digest,
                            body: match row.get_ref(5)? {
                                ValueRef::Null => Body::Gone,
                                ValueRef::Blob(bytes) if outcome_digest(bytes) == digest => {
                                    Body::Holds
                                }
                                _ => Body::Differs,
                            },
                        })
                    })
                    .optional()
            })
            .map_err(|error| sqlite::classify(&error))
    }

    /// Returns what events say of an entry's attempts beyond their rows.
    fn notes(&self, branch: BranchId, seq: Seq) -> Result<Vec<(Fence, Note)>, JournalError> {
        let rows = || -> rusqlite::Result<Vec<(Fence, Note)>> {
            let mut statement = self.db().prepare_cached(
                "SELECT kind, fence, detail FROM events WHERE branch_id = ?1 AND seq = ?2 \
                 AND fence IS NOT NULL \
                 AND kind IN ('voided', 'resolved', 'reopened', 'retried', 'fenced', \
                 'retracted') ORDER BY id",
            )?;
            let mut rows = statement.query((signed(branch.0), signed(seq.0)))?;
            let mut notes = Vec::new();
            while let Some(row) = rows.next()? {
                let kind: String = row.get(0)?;
                let detail: Option<String> = row.get(2)?;
                if let Some(note) = Note::of(&kind, detail.as_deref()) {
                    notes.push((Fence(unsigned(row, 1)?), note));
                }
            }
            Ok(notes)
        };
        rows().map_err(|error| sqlite::classify(&error))
    }

    fn db(&self) -> &Connection {
        &self.opened.connection
    }

    fn number(&self, sql: &str) -> Result<u64, JournalError> {
        self.db()
            .query_row(sql, (), |row| unsigned(row, 0))
            .map_err(|error| sqlite::classify(&error))
    }

    fn all<T>(
        &self,
        sql: &str,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, JournalError> {
        self.db()
            .prepare(sql)
            .and_then(|mut statement| statement.query_map((), read)?.collect())
            .map_err(|error| sqlite::classify(&error))
    }

    /// Hands out rows one by one; one that can't be read hides no other.
    fn each<T>(
        &self,
        sql: &str,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
        mut take: impl FnMut(Result<T, Torn>),
    ) -> Result<(), JournalError> {
        let mut walk = || -> rusqlite::Result<()> {
            let mut statement = self.db().prepare(sql)?;
            let columns = statement.column_count();
            let mut rows = statement.query(())?;
            while let Some(row) = rows.next()? {
                take(read(row).map_err(|error| Torn {
                    first: unsigned(row, 0).ok(),
                    second: (columns > 1).then(|| unsigned(row, 1).ok()).flatten(),
                    why: super::reader::torn::words(row, &error),
                }));
            }
            Ok(())
        };
        walk().map_err(|error| sqlite::classify(&error))
    }
}

/// A key, its window, and the window's name.
type Held = (String, String, String);

/// What an event says of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Note {
    /// It is known not to have run.
    Voided,
    /// One more attempt was allowed after it.
    Reopened,
    /// A policy made it.
    Retried,
    /// It goes on under another fence.
    Fenced,
    /// What was said of it was taken back; it goes on under another fence.
    Retracted,
}

impl Note {
    fn of(kind: &str, detail: Option<&str>) -> Option<Self> {
        match kind {
            "voided" => Some(Self::Voided),
            "reopened" => Some(Self::Reopened),
            "retried" => Some(Self::Retried),
            "fenced" => Some(Self::Fenced),
            "retracted" => Some(Self::Retracted),
            "resolved" => {
                let verdict = json::member(detail?.as_bytes(), "verdict")?;
                (json::text(verdict)? == "not_executed").then_some(Self::Voided)
            }
            _ => None,
        }
    }
}

/// Returns what is wrong with what a question is told by.
fn odd_question(row: &Row<'_>) -> rusqlite::Result<Option<&'static str>> {
    let (state, inputs) = (row.get_ref(2)?, row.get_ref(3)?);
    if row.get_ref(1)? != ValueRef::Text(Status::InputRequired.name().as_bytes()) {
        return Ok(Some(
            "an outcome that is no question has what a question is told by",
        ));
    }
    let (ValueRef::Blob(digest), ValueRef::Blob(body)) = (row.get_ref(4)?, row.get_ref(5)?) else {
        return Ok(None);
    };
    // Of bytes that are not those that were recorded nothing can be told.
    if outcome_digest(body) != *digest {
        return Ok(None);
    }
    let given = |name| {
        let member = json::last_member(body, name)?;
        (json::kind(member.value) != json::Kind::Null).then_some(member.value)
    };
    let expected = given("requestState").map(|raw| outcome_digest(&json::string(raw)));
    let is_state = match (&expected, state) {
        (Some(expected), ValueRef::Blob(found)) => found == expected,
        (None, ValueRef::Null) => true,
        _ => false,
    };
    if !is_state {
        return Ok(Some("the state of a question is not that of its bytes"));
    }
    let mut names: Vec<String> = given("inputRequests")
        .into_iter()
        .flat_map(json::Members::new)
        .map(|request| String::from_utf8_lossy(&request.key).into_owned())
        .collect();
    names.sort_unstable();
    let is_inputs = matches!(inputs, ValueRef::Text(found) if found == names.join("\n").as_bytes());
    Ok((!is_inputs).then_some("the inputs of a question are not those of its bytes"))
}

/// Tells whether the arguments of an attempt's row are those that its signature is of. Nothing else
/// covers them, and they are what an operator is shown.
fn arguments(row: &Row<'_>, entry: &Entry) -> rusqlite::Result<Body> {
    let scheme: Option<Scheme> = sqlite::named(row, 8, |name| name.parse().ok()).ok();
    let signature = Signature(sqlite::bytes(row, 9)?);
    // An earlier attempt may be another tool's call, and a key may not be at hand.
    if scheme != Some(Scheme::Plain) || signature != entry.signature {
        return Ok(Body::Gone);
    }
    let size_bytes = unsigned(row, 11)?;
    let given = match row.get_ref(12)? {
        ValueRef::Null if size_bytes == 0 && !row.get::<_, bool>(10)? => None,
        ValueRef::Null => return Ok(Body::Gone),
        ValueRef::Blob(bytes) if bytes.len() as u64 == size_bytes => Some(bytes),
        _ => return Ok(Body::Differs),
    };
    // Whether a task was asked for is part of a signature, and not kept. Bytes that are no JSON have
    // a signature that is no call's.
    let is_signed = |has_task| signature_of(&entry.tool, given, has_task) == Ok(signature);
    Ok(match is_signed(false) || is_signed(true) {
        true => Body::Holds,
        false => Body::Differs,
    })
}

fn unsigned(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(index)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, value))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
