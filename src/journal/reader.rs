//! Reads a journal for people: beside a running proxy, without one, and without changing a byte.
//!
//! Invariants: what is read together stands in one snapshot, and rows are handed out one by one,
//! so that a journal of any size is listed in little memory. Whether a session is live is asked
//! before the snapshot is taken: a lock that is free then proves that the session's last commit is
//! in the snapshot, so a call that has just been settled is never shown as in doubt. A row that
//! does not hold is handed out as such and hides no other.
//!
//! Must not: write, decide about a call, or know how anything is shown.

pub mod elsewhere;
pub(super) mod torn;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, Row, params_from_iter};

use super::cannot_use::CannotUse;
use super::connection::{self, Access, OpenJournal};
use super::locks::LockQuery;
use super::mark::{self, Mark};
use super::place::{JournalPath, Warning};
use super::sqlite::{ENTRY_COLUMNS, STATEMENTS_MAX, read_entry, read_event, read_identity};
use super::{EventRow, Identity, Session, Stored};
use crate::rules::entry::{Entry, Status, outcome_digest};
use crate::rules::ids::{BranchId, Fence, Micros, Seq, SessionId, WorkflowId};

/// How long a journal that others use is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often new sessions may appear between asking for locks and taking the snapshot.
const ASKING_MAX: usize = 8;

/// How many attempts of one entry are read.
const ATTEMPTS_MAX: usize = 10_000;

/// A journal that is open for reading.
#[derive(Debug)]
pub struct Reader {
    opened: OpenJournal,
    path: JournalPath,
    identity: Identity,
    locks: LockQuery,
    live: BTreeMap<SessionId, bool>,
}

/// Which entries are wanted; all that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// One of these statuses; empty for any.
    pub statuses: Vec<Status>,
    /// Exactly this tool.
    pub tool: Option<String>,
    /// Nothing of it has reached a caller.
    pub undelivered: bool,
    /// The client's id of the call.
    pub call_id: Option<String>,
    /// The key that it holds.
    pub key: Option<String>,
    /// The session of the current attempt.
    pub session: Option<SessionId>,
    /// Reserved at or after this.
    pub since: Option<Micros>,
    /// The workflow.
    pub workflow: Option<WorkflowId>,
    /// The branch's number within its workflow.
    pub branch: Option<u32>,
    /// The place.
    pub seq: Option<Seq>,
}

/// Where an entry stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The branch.
    pub id: BranchId,
    /// The workflow; empty where its row is missing.
    pub workflow: WorkflowId,
    /// The branch's number within it.
    pub branch: u32,
    /// The branch is the active one of the journal's own workflow.
    pub is_default: bool,
    /// What the branch was forked from.
    pub parent: Option<Parent>,
}

/// What a branch was forked from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The workflow of that branch.
    pub workflow: WorkflowId,
    /// That branch's number within it.
    pub branch: u32,
    /// The first seq that is the new branch's own.
    pub at: Seq,
}

/// An entry as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its row could be read.
    Whole {
        /// Its row.
        entry: Box<Entry>,
        /// Why it is never replayed and never run; `None` if all of it holds.
        damage: Option<&'static str>,
        /// The session of its current attempt holds its lock. Asked for PENDING entries only.
        is_live: bool,
    },
    /// Its row holds what no version of this program writes.
    Torn(Torn),
}

/// What can be made out of a row that can't be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Torn {
    /// The place; 0 if not even that can be told.
    pub seq: u64,
    /// The tool.
    pub tool: String,
    /// The status, as it stands there.
    pub status: String,
    /// The attempt.
    pub attempt: u64,
    /// The fence.
    pub fence: u64,
    /// When it was reserved.
    pub created_at: i64,
    /// The client's id of the call.
    pub call_id: Option<String>,
    /// What is wrong.
    pub why: String,
}

/// An attempt as stored, as far as it can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRow {
    /// Its fence.
    pub fence: Fence,
    /// Its number.
    pub attempt: u64,
    /// The round within it.
    pub round: u64,
    /// Who reserved it.
    pub session: SessionId,
    /// When.
    pub started_at: Micros,
    /// The arguments' bytes.
    pub arguments: Option<Vec<u8>>,
    /// Their size.
    pub arguments_bytes: u64,
    /// They were left out on purpose.
    pub is_redacted: bool,
    /// The call's protocol revision.
    pub protocol_version: Option<String>,
    /// The policy in force, where it is not the default.
    pub policy: Option<String>,
    /// The trace context that the call carried.
    pub traceparent: Option<String>,
    /// Its call's signature, with the scheme before it; `None` if that can't be read.
    pub signature: Option<(String, Vec<u8>)>,
    /// What it came to, and the end of the task that it was accepted as.
    pub outcomes: Vec<OutcomeRow>,
}

/// An outcome as stored, as far as it can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutcomeRow {
    /// What it made of the entry; `None` if the row says nothing that is known.
    pub status: Option<Status>,
    /// A result with `isError: true`.
    pub is_error: bool,
    /// Whose it is.
    pub provenance: String,
    /// When it was written.
    pub at: Micros,
    /// The bytes; `None` if they are gone.
    pub body: Option<Vec<u8>>,
}

/// All about one entry.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Where it stands.
    pub place: Place,
    /// The entry.
    pub found: Found,
    /// Its attempts and rounds, the oldest first.
    pub attempts: Vec<AttemptRow>,
    /// Its events, the oldest first.
    pub events: Vec<EventRow>,
    /// The session of its current attempt, and whether that is live.
    pub session: Option<(SessionId, Session, bool)>,
}

impl Reader {
    /// Opens the journal, and refuses what the proxy would refuse.
    ///
    /// # Errors
    ///
    /// Those of [`connection::open_patiently`]; [`CannotUse::Damaged`] if its tables are not
    /// those of its version; [`CannotUse::BackInTime`] if it knows less than it once did.
    pub fn open(path: &JournalPath) -> Result<Self, CannotUse> {
        let filesystem = super::filesystem::kind(path.folder())?;
        let opened =
            connection::open_patiently(path, Access::ReadOnly, &filesystem, PATIENCE, false)?;
        let sqlite = |source| CannotUse::sqlite("read", path.as_path(), source);
        opened.connection.busy_timeout(PATIENCE).map_err(sqlite)?;
        opened
            .connection
            .set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        let shape = super::schema::shape(&opened.connection).map_err(sqlite)?;
        if shape != super::schema::expected_shape() {
            return Err(damaged(
                path,
                "its tables are not those of this schema version",
            ));
        }
        let identity =
            read_identity(&opened.connection).map_err(|error| damaged(path, &error.to_string()))?;
        // The mark is read before the snapshot whose highest fence it is compared with.
        let read = Mark::read_only(path, &identity.uid)?;
        let highest: i64 = opened
            .connection
            .query_row("SELECT coalesce(max(fence), 0) FROM attempts", (), |row| {
                row.get(0)
            })
            .map_err(sqlite)?;
        mark::check(path, &read, u64::try_from(highest).unwrap_or(0))?;
        Ok(Self {
            opened,
            path: path.clone(),
            identity,
            locks: LockQuery::new(path),
            live: BTreeMap::new(),
        })
    }

    /// Returns what the journal says of itself.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns what the owner should know.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.opened.warnings
    }

    /// Hands out every entry that is wanted, by workflow, branch and seq.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn each(
        &mut self,
        selection: &Selection,
        mut take: impl FnMut(&Place, Found) -> ControlFlow<()>,
    ) -> Result<(), CannotUse> {
        self.in_snapshot(|reader| {
            for (branch, place) in reader.branches(selection)? {
                let went = reader.each_of_branch(branch, selection, |found| take(&place, found))?;
                if went.is_break() {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Returns the name of every tool that was ever called.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn tools(&self) -> Result<BTreeSet<String>, CannotUse> {
        self.db()
            .prepare_cached("SELECT DISTINCT tool FROM entries")
            .and_then(|mut statement| {
                statement
                    .query_map((), |row| lossy_text(row, 0))?
                    .filter_map(Result::transpose)
                    .collect()
            })
            .map_err(|error| self.refuse(error))
    }

    /// Returns the workflow that a seq alone means: the journal's own, or the only one where that
    /// has never been used.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn usual_workflow(&self) -> Result<WorkflowId, CannotUse> {
        let own = self.identity.own_workflow.clone();
        let names = self
            .db()
            .prepare_cached("SELECT workflow_id FROM workflows LIMIT 2")
            .and_then(|mut statement| {
                statement
                    .query_map((), |row| lossy_text(row, 0))?
                    .collect::<rusqlite::Result<Vec<_>>>()
            })
            .map_err(|error| self.refuse(error))?;
        Ok(match names.as_slice() {
            [Some(only)] => WorkflowId(only.clone()),
            _ => own,
        })
    }

    /// Returns the branches that are wanted and were forked from another one.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn forks(&mut self, selection: &Selection) -> Result<Vec<Place>, CannotUse> {
        let branches = self.branches(selection)?;
        Ok(branches
            .into_iter()
            .map(|(_, place)| place)
            .filter(|place| place.parent.is_some())
            .collect())
    }

    /// Returns the branch of that number.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn branch(
        &mut self,
        workflow: &WorkflowId,
        branch: u32,
    ) -> Result<Option<BranchId>, CannotUse> {
        let only = Selection {
            workflow: Some(workflow.clone()),
            branch: Some(branch),
            ..Selection::default()
        };
        Ok(self.branches(&only)?.first().map(|(id, _)| *id))
    }

    /// Returns all about the entry at that place: of [`Reader::usual_workflow`] and its active
    /// branch unless told otherwise. An entry that a branch shares with the one it came from is
    /// found there.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn whole(
        &mut self,
        workflow: Option<&WorkflowId>,
        branch: Option<u32>,
        seq: Seq,
    ) -> Result<Option<Whole>, CannotUse> {
        self.in_snapshot(|reader| reader.whole_here(workflow, branch, seq))
    }

    /// Hands out all about each of these entries, as [`Reader::whole`] returns it, in one snapshot
    /// and in their order, until `take` says that it is enough.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn each_whole<'a>(
        &mut self,
        places: impl IntoIterator<Item = (&'a WorkflowId, Option<u32>, Seq)>,
        mut take: impl FnMut(Option<Whole>) -> ControlFlow<()>,
    ) -> Result<(), CannotUse> {
        self.in_snapshot(|reader| {
            for (workflow, branch, seq) in places {
                let whole = reader.whole_here(Some(workflow), branch, seq)?;
                if take(whole).is_break() {
                    break;
                }
            }
            Ok(())
        })
    }

    fn whole_here(
        &mut self,
        workflow: Option<&WorkflowId>,
        branch: Option<u32>,
        seq: Seq,
    ) -> Result<Option<Whole>, CannotUse> {
        let Some((place, found)) = self.look(workflow, branch, seq)? else {
            return Ok(None);
        };
        let id = place.id;
        let events = self.events(id, seq)?;
        let (fence, session) = match &found {
            Found::Whole { entry, .. } => (entry.fence, Some(entry.session)),
            Found::Torn(torn) => (Fence(torn.fence), None),
        };
        let attempts = self.attempts(id, seq, fence, &events)?;
        let session = match session.or(attempts.last().map(|attempt| attempt.session)) {
            Some(number) => self.session(number)?,
            None => None,
        };
        Ok(Some(Whole {
            place,
            found,
            attempts,
            events,
            session,
        }))
    }

    /// Returns the entry at that place, as [`Reader::whole`] finds it, with where it stands.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn find(
        &mut self,
        workflow: Option<&WorkflowId>,
        branch: Option<u32>,
        seq: Seq,
    ) -> Result<Option<(Place, Found)>, CannotUse> {
        self.in_snapshot(|reader| reader.look(workflow, branch, seq))
    }

    fn look(
        &self,
        workflow: Option<&WorkflowId>,
        branch: Option<u32>,
        seq: Seq,
    ) -> Result<Option<(Place, Found)>, CannotUse> {
        let name = match workflow {
            Some(workflow) => workflow.clone(),
            None => self.usual_workflow()?,
        };
        let Some(id) = self.holder(&name, branch, seq)? else {
            return Ok(None);
        };
        let Some(place) = self.place_of(id)? else {
            return Ok(None);
        };
        let only = Selection {
            seq: Some(seq),
            ..Selection::default()
        };
        let mut found = None;
        let _ = self.each_of_branch(id, &only, |one| {
            found = Some(one);
            ControlFlow::Continue(())
        })?;
        Ok(found.map(|found| (place, found)))
    }

    /// Returns how often something of this kind happened to an entry.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn count_of(&mut self, branch: BranchId, seq: Seq, kind: &str) -> Result<u64, CannotUse> {
        let count: i64 = self
            .db()
            .prepare_cached(
                "SELECT coalesce(sum(count), 0) FROM events \
                 WHERE branch_id = ?1 AND seq = ?2 AND kind = ?3",
            )
            .and_then(|mut statement| {
                statement.query_row((signed(branch.0), signed(seq.0), kind), |row| row.get(0))
            })
            .map_err(|error| self.refuse(error))?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Returns the names of all workflows, sorted.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn workflow_ids(&self) -> Result<Vec<WorkflowId>, CannotUse> {
        self.db()
            .prepare_cached("SELECT workflow_id FROM workflows ORDER BY workflow_id")
            .and_then(|mut statement| {
                statement
                    .query_map((), |row| {
                        Ok(WorkflowId(lossy_text(row, 0)?.unwrap_or_default()))
                    })?
                    .collect::<rusqlite::Result<Vec<_>>>()
            })
            .map_err(|error| self.refuse(error))
    }

    /// Hands out the entries that a branch of a workflow (the active one unless told otherwise)
    /// leads through, by seq: those it shares with the branches that it came from, and its own.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn each_of_line(
        &mut self,
        workflow: &WorkflowId,
        branch: Option<u32>,
        mut take: impl FnMut(Found),
    ) -> Result<(), CannotUse> {
        self.in_snapshot(|reader| {
            let Some(highest) = reader.holder(workflow, branch, Seq(u64::MAX))? else {
                return Ok(());
            };
            let mut line = vec![(highest, u64::MAX)];
            while let Some((id, end)) = line.last().copied() {
                let parent = reader
                    .db()
                    .query_row(
                        "SELECT id, parent, forked_at FROM branches WHERE id = ?1",
                        [signed(id.0)],
                        read_line,
                    )
                    .optional()
                    .map_err(|error| reader.refuse(error))?
                    .and_then(|(_, parent)| parent);
                match parent {
                    // A circle would be damage.
                    Some((parent, forked_at)) if line.len() < ATTEMPTS_MAX => {
                        line.push((BranchId(parent), forked_at.min(end)));
                    }
                    Some(_) | None => break,
                }
            }
            let all = Selection::default();
            for (id, end) in line.into_iter().rev() {
                let _ = reader.each_of_branch(id, &all, |found| {
                    let seq = match &found {
                        Found::Whole { entry, .. } => entry.seq.0,
                        Found::Torn(torn) => torn.seq,
                    };
                    if seq < end {
                        take(found);
                    }
                    ControlFlow::Continue(())
                })?;
            }
            Ok(())
        })
    }

    pub(super) fn db(&self) -> &Connection {
        &self.opened.connection
    }

    pub(super) fn refuse(&self, error: rusqlite::Error) -> CannotUse {
        CannotUse::sqlite("read", self.path.as_path(), error)
    }

    /// Asks which of the sessions that have calls open are live, and then reads in one snapshot.
    fn in_snapshot<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, CannotUse>,
    ) -> Result<T, CannotUse> {
        self.begin_snapshot()?;
        let result = read(self);
        self.end_snapshot()?;
        result
    }

    /// Asks which of the sessions that have calls open are live, and begins a snapshot.
    pub(super) fn begin_snapshot(&mut self) -> Result<(), CannotUse> {
        // Who was live may have ended since; who was gone stays gone.
        self.live.retain(|_, is_live| !*is_live);
        self.begin()
    }

    pub(super) fn end_snapshot(&self) -> Result<(), CannotUse> {
        self.execute("ROLLBACK")
    }

    /// Returns whether a session with a PENDING entry was live when the snapshot was begun.
    pub(super) fn was_live(&self, session: SessionId) -> bool {
        self.live.get(&session).copied().unwrap_or(true)
    }

    /// Checks that the journal is still the file in its place.
    pub(super) fn check_place(&self) -> Result<(), CannotUse> {
        self.opened.watch.check()
    }

    /// Returns a number that changes whenever another process commits.
    pub(super) fn data_version(&self) -> Result<i64, CannotUse> {
        self.db()
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut statement| statement.query_row((), |row| row.get(0)))
            .map_err(|error| self.refuse(error))
    }

    fn begin(&mut self) -> Result<(), CannotUse> {
        for _ in 0..ASKING_MAX {
            self.execute("BEGIN")?;
            let unasked = match self.unasked() {
                Ok(unasked) => unasked,
                Err(error) => {
                    self.execute("ROLLBACK")?;
                    return Err(error);
                }
            };
            if unasked.is_empty() {
                return Ok(());
            }
            self.execute("ROLLBACK")?;
            for session in unasked {
                // A lock that can't be asked for counts as held, as it does for the proxy.
                let is_live = self.locks.is_live(session.0).unwrap_or(true);
                self.live.insert(session, is_live);
            }
        }
        // Sessions keep coming: those not asked yet have only just begun, so they are live.
        self.execute("BEGIN")
    }

    fn execute(&self, sql: &str) -> Result<(), CannotUse> {
        self.db()
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute(()))
            .map(|_| ())
            .map_err(|error| self.refuse(error))
    }

    /// Returns the sessions with a PENDING entry whose lock has not been asked for.
    fn unasked(&self) -> Result<Vec<SessionId>, CannotUse> {
        let sql = "SELECT DISTINCT session_id FROM entries \
                   WHERE delivered_at IS NULL AND status = 'PENDING'";
        let numbers = self
            .db()
            .prepare_cached(sql)
            .and_then(|mut statement| {
                statement
                    .query_map((), |row| Ok(row.get_ref(0)?.as_i64().unwrap_or(0)))?
                    .collect::<rusqlite::Result<Vec<i64>>>()
            })
            .map_err(|error| self.refuse(error))?;
        Ok(numbers
            .into_iter()
            .filter_map(|number| u64::try_from(number).ok().map(SessionId))
            .filter(|session| !self.live.contains_key(session))
            .collect())
    }

    fn branches(&self, selection: &Selection) -> Result<Vec<(BranchId, Place)>, CannotUse> {
        let mut sql = format!("{PLACES} WHERE 1");
        let mut values = Vec::new();
        if let Some(workflow) = &selection.workflow {
            sql.push_str(" AND w.workflow_id = ?");
            values.push(Value::Text(workflow.0.clone()));
        }
        if let Some(branch) = selection.branch {
            sql.push_str(" AND b.branch = ?");
            values.push(Value::Integer(branch.into()));
        }
        sql.push_str(" ORDER BY w.workflow_id, b.branch");
        let mut branches = self.places(&sql, values)?;
        if selection.workflow.is_none() && selection.branch.is_none() {
            // Entries whose branch has no row are damage; they are listed all the same.
            let orphans = self
                .db()
                .prepare(
                    "SELECT DISTINCT branch_id FROM entries \
                     WHERE branch_id NOT IN (SELECT id FROM branches)",
                )
                .and_then(|mut statement| {
                    statement
                        .query_map((), |row| lossy(row, 0))?
                        .collect::<rusqlite::Result<Vec<u64>>>()
                })
                .map_err(|error| self.refuse(error))?;
            branches.extend(
                orphans
                    .into_iter()
                    .map(|id| (BranchId(id), orphan(BranchId(id)))),
            );
        }
        Ok(branches)
    }

    fn places(&self, sql: &str, values: Vec<Value>) -> Result<Vec<(BranchId, Place)>, CannotUse> {
        let own = self.identity.own_workflow.clone();
        self.db()
            .prepare_cached(sql)
            .and_then(|mut statement| {
                statement
                    .query_map(params_from_iter(values), |row| {
                        let workflow = WorkflowId(lossy_text(row, 1)?.unwrap_or_default());
                        let parent = match lossy_text(row, 4)? {
                            Some(workflow) => Some(Parent {
                                workflow: WorkflowId(workflow),
                                branch: u32::try_from(lossy(row, 5)?).unwrap_or(u32::MAX),
                                at: Seq(lossy(row, 6)?),
                            }),
                            None => None,
                        };
                        let id = BranchId(lossy(row, 0)?);
                        Ok((
                            id,
                            Place {
                                id,
                                is_default: workflow == own && lossy(row, 3)? == 1,
                                parent,
                                workflow,
                                branch: u32::try_from(lossy(row, 2)?).unwrap_or(u32::MAX),
                            },
                        ))
                    })?
                    .collect::<rusqlite::Result<Vec<_>>>()
            })
            .map_err(|error| self.refuse(error))
    }

    /// Returns where a branch stands, also where its row is missing.
    pub(super) fn place_or_orphan(&self, branch: BranchId) -> Result<Place, CannotUse> {
        Ok(self.place_of(branch)?.unwrap_or_else(|| orphan(branch)))
    }

    fn place_of(&self, branch: BranchId) -> Result<Option<Place>, CannotUse> {
        let sql = format!("{PLACES} WHERE b.id = ?");
        let found = self.places(&sql, vec![Value::Integer(signed(branch.0))])?;
        Ok(found.into_iter().next().map(|(_, place)| place))
    }

    /// Returns the branch that holds the seq for that branch of the workflow: itself, or one that
    /// it came from.
    fn holder(
        &self,
        workflow: &WorkflowId,
        branch: Option<u32>,
        seq: Seq,
    ) -> Result<Option<BranchId>, CannotUse> {
        let start = self
            .db()
            .prepare_cached(
                "SELECT b.id, b.parent, b.forked_at FROM branches b \
                 JOIN workflows w ON w.id = b.workflow WHERE w.workflow_id = ?1 \
                 AND CASE WHEN ?2 IS NULL THEN b.id = w.active_branch ELSE b.branch = ?2 END",
            )
            .and_then(|mut statement| statement.query_row((&workflow.0, branch), read_line))
            .optional()
            .map_err(|error| self.refuse(error))?;
        let mut at = start;
        // Each step leads to an older branch; a circle would be damage.
        for _ in 0..ATTEMPTS_MAX {
            match at {
                Some((_, Some((parent, forked_at)))) if seq.0 < forked_at => {
                    at = self
                        .db()
                        .query_row(
                            "SELECT id, parent, forked_at FROM branches WHERE id = ?1",
                            [signed(parent)],
                            read_line,
                        )
                        .optional()
                        .map_err(|error| self.refuse(error))?;
                }
                Some((id, _)) => return Ok(Some(BranchId(id))),
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    fn each_of_branch(
        &self,
        branch: BranchId,
        selection: &Selection,
        mut take: impl FnMut(Found) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, CannotUse> {
        let (sql, values) = entries_sql(branch, selection);
        let mut statement = self
            .db()
            .prepare_cached(&sql)
            .map_err(|error| self.refuse(error))?;
        let mut rows = statement
            .query(params_from_iter(values))
            .map_err(|error| self.refuse(error))?;
        while let Some(row) = rows.next().map_err(|error| self.refuse(error))? {
            if take(self.found(row)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn found(&self, row: &Row<'_>) -> Found {
        let stored = match read_entry(row) {
            Ok(stored) => stored,
            Err(error) => return Found::Torn(torn(row, &error)),
        };
        let damage = self.damage(row, &stored);
        let is_live = stored.entry.status == Status::Pending && self.was_live(stored.entry.session);
        Found::Whole {
            entry: Box::new(stored.entry),
            damage,
            is_live,
        }
    }

    /// Returns what does not hold, as the guard would find it before it served the entry.
    fn damage(&self, row: &Row<'_>, stored: &Stored) -> Option<&'static str> {
        let entry = &stored.entry;
        if stored.checksum != entry.checksum(&self.identity.uid) {
            return Some("its checksum does not hold");
        }
        let digest = entry.digest?;
        let digests = (row.get_ref(FIRST_OUTCOME), row.get_ref(FIRST_OUTCOME + 2));
        let current = match digests {
            (_, Ok(ValueRef::Blob(end))) => end,
            (Ok(ValueRef::Blob(outcome)), _) => outcome,
            _ => return Some("its outcome is missing"),
        };
        if current != digest {
            return Some("its outcome is another one");
        }
        for first in [FIRST_OUTCOME, FIRST_OUTCOME + 2] {
            match (row.get_ref(first), row.get_ref(first + 1)) {
                (Ok(ValueRef::Blob(digest)), Ok(ValueRef::Blob(body))) => {
                    if outcome_digest(body) != *digest {
                        return Some("its outcome's bytes are not those that were written");
                    }
                }
                (Ok(ValueRef::Blob(_)), Ok(ValueRef::Null)) if !entry.is_tombstone => {
                    return Some("its outcome's bytes are missing");
                }
                (Ok(ValueRef::Blob(_)), Ok(ValueRef::Null))
                | (Ok(ValueRef::Null), Ok(ValueRef::Null)) => {}
                _ => return Some("its outcome can't be read"),
            }
        }
        None
    }

    fn events(&self, branch: BranchId, seq: Seq) -> Result<Vec<EventRow>, CannotUse> {
        let rows = self
            .db()
            .prepare_cached(
                "SELECT id, at, kind, branch_id, seq, fence, session_id, letter, detail, \
                 merge_key, count, last_at FROM events WHERE branch_id = ?1 AND seq = ?2 \
                 ORDER BY id",
            )
            .and_then(|mut statement| {
                statement
                    .query_map((signed(branch.0), signed(seq.0)), |row| {
                        Ok(read_event(row).ok())
                    })?
                    .collect::<rusqlite::Result<Vec<_>>>()
            })
            .map_err(|error| self.refuse(error))?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// Returns the chain of attempts that leads to `fence`, and those that an event names.
    fn attempts(
        &self,
        branch: BranchId,
        seq: Seq,
        fence: Fence,
        events: &[EventRow],
    ) -> Result<Vec<AttemptRow>, CannotUse> {
        let mut attempts: Vec<AttemptRow> = Vec::new();
        let mut wanted: Vec<Fence> = events.iter().filter_map(|row| row.event.fence).collect();
        wanted.push(fence);
        while let Some(fence) = wanted.pop() {
            let is_known = attempts.iter().any(|attempt| attempt.fence == fence);
            if is_known || attempts.len() >= ATTEMPTS_MAX {
                continue;
            }
            let found = self
                .db()
                .prepare_cached(
                    "SELECT fence, attempt, round, session_id, started_at, arguments, \
                     arguments_bytes, redacted, protocol_version, policy, traceparent, previous, \
                     scheme, signature FROM attempts WHERE fence = ?1 AND branch_id = ?2 AND seq = ?3",
                )
                .and_then(|mut statement| {
                    statement
                        .query_row(
                            (signed(fence.0), signed(branch.0), signed(seq.0)),
                            read_attempt,
                        )
                        .optional()
                })
                .map_err(|error| self.refuse(error))?;
            let Some((mut attempt, previous)) = found else {
                continue;
            };
            for table in ["outcomes", "task_ends"] {
                attempt.outcomes.extend(self.outcome(table, fence)?);
            }
            attempts.push(attempt);
            wanted.extend(previous);
        }
        attempts.sort_by_key(|attempt| attempt.fence);
        Ok(attempts)
    }

    fn outcome(&self, table: &str, fence: Fence) -> Result<Option<OutcomeRow>, CannotUse> {
        self.db()
            .prepare_cached(&format!(
                "SELECT status, is_error, provenance, at, body FROM {table} WHERE fence = ?1"
            ))
            .and_then(|mut statement| {
                statement
                    .query_row([signed(fence.0)], |row| {
                        Ok(OutcomeRow {
                            status: lossy_text(row, 0)?.as_deref().and_then(Status::from_name),
                            is_error: lossy(row, 1)? == 1,
                            provenance: lossy_text(row, 2)?.unwrap_or_default(),
                            at: Micros(lossy_signed(row, 3)?),
                            body: match row.get_ref(4)? {
                                ValueRef::Blob(bytes) => Some(bytes.to_vec()),
                                _ => None,
                            },
                        })
                    })
                    .optional()
            })
            .map_err(|error| self.refuse(error))
    }

    fn session(
        &mut self,
        number: SessionId,
    ) -> Result<Option<(SessionId, Session, bool)>, CannotUse> {
        let found = self
            .db()
            .prepare_cached(
                "SELECT host, boot_id, pid, started_at, ended_at, upstream_pgid, \
                 upstream_started_at, upstream_name, upstream_version, protocol_version, \
                 client_name, client_version FROM sessions WHERE id = ?1",
            )
            .and_then(|mut statement| {
                statement.query_row([signed(number.0)], |row| {
                    let maybe = |index| match row.get_ref(index)? {
                        ValueRef::Integer(number) => Ok::<_, rusqlite::Error>(Some(number)),
                        _ => Ok(None),
                    };
                    Ok(Session {
                        host: lossy_text(row, 0)?.unwrap_or_default(),
                        boot_id: lossy_text(row, 1)?.unwrap_or_default(),
                        pid: u32::try_from(lossy(row, 2)?).unwrap_or(0),
                        started_at: lossy_signed(row, 3)?,
                        ended_at: maybe(4)?,
                        upstream_pgid: maybe(5)?.and_then(|pgid| u32::try_from(pgid).ok()),
                        upstream_started_at: maybe(6)?.and_then(|at| u64::try_from(at).ok()),
                        upstream_name: lossy_text(row, 7)?,
                        upstream_version: lossy_text(row, 8)?,
                        protocol_version: lossy_text(row, 9)?,
                        client_name: lossy_text(row, 10)?,
                        client_version: lossy_text(row, 11)?,
                    })
                })
            })
            .optional()
            .map_err(|error| self.refuse(error))?;
        let is_live = match self.live.get(&number) {
            Some(is_live) => *is_live,
            None => self.locks.is_live(number.0).unwrap_or(true),
        };
        Ok(found.map(|session| (number, session, is_live)))
    }
}

/// A branch with its workflow's name, its number, whether it is the active one, and what it was
/// forked from.
const PLACES: &str = "SELECT b.id, w.workflow_id, b.branch, b.id = w.active_branch, \
     pw.workflow_id, p.branch, b.forked_at \
     FROM branches b LEFT JOIN workflows w ON w.id = b.workflow \
     LEFT JOIN branches p ON p.id = b.parent LEFT JOIN workflows pw ON pw.id = p.workflow";

/// The column after those of the entry: digest and body of the outcome, then of the task's end.
const FIRST_OUTCOME: usize = 24;

/// Returns the statement for a branch's entries, by seq, and its parameters.
fn entries_sql(branch: BranchId, selection: &Selection) -> (String, Vec<Value>) {
    let columns: Vec<String> = ENTRY_COLUMNS
        .split(", ")
        .map(|column| format!("e.{}", column.trim()))
        .collect();
    let mut sql = format!(
        "SELECT {}, o.digest, o.body, t.digest, t.body FROM entries e \
         LEFT JOIN outcomes o ON o.fence = e.fence LEFT JOIN task_ends t ON t.fence = e.fence \
         WHERE e.branch_id = ?",
        columns.join(", ")
    );
    let mut values = vec![Value::Integer(signed(branch.0))];
    let text = |text: &String| Value::Text(text.clone());
    let conditions = [
        ("tool", "=", selection.tool.as_ref().map(text)),
        ("call_id", "=", selection.call_id.as_ref().map(text)),
        ("key", "=", selection.key.as_ref().map(text)),
        (
            "session_id",
            "=",
            selection.session.map(|id| Value::Integer(signed(id.0))),
        ),
        (
            "created_at",
            ">=",
            selection.since.map(|at| Value::Integer(at.0)),
        ),
        (
            "seq",
            "=",
            selection.seq.map(|seq| Value::Integer(signed(seq.0))),
        ),
    ];
    for (column, comparison, value) in conditions {
        if let Some(value) = value {
            sql.push_str(&format!(" AND e.{column} {comparison} ?"));
            values.push(value);
        }
    }
    if selection.undelivered {
        sql.push_str(" AND e.delivered_at IS NULL");
    }
    if !selection.statuses.is_empty() {
        let marks = vec!["?"; selection.statuses.len()].join(", ");
        sql.push_str(&format!(" AND e.status IN ({marks})"));
        values.extend(
            selection
                .statuses
                .iter()
                .map(|status| Value::Text(status.name().to_owned())),
        );
    }
    sql.push_str(" ORDER BY e.seq");
    (sql, values)
}

/// A branch and what it came from, with the first seq that is its own.
pub(super) type Line = (u64, Option<(u64, u64)>);

pub(super) fn read_line(row: &Row<'_>) -> rusqlite::Result<Line> {
    let parent = match row.get_ref(1)? {
        ValueRef::Integer(_) => Some((lossy(row, 1)?, lossy(row, 2)?)),
        _ => None,
    };
    Ok((lossy(row, 0)?, parent))
}

/// Returns where a branch stands whose row is missing.
fn orphan(branch: BranchId) -> Place {
    Place {
        id: branch,
        workflow: WorkflowId(String::new()),
        branch: u32::try_from(branch.0).unwrap_or(u32::MAX),
        is_default: false,
        parent: None,
    }
}

pub(super) fn read_attempt(row: &Row<'_>) -> rusqlite::Result<(AttemptRow, Option<Fence>)> {
    let attempt = AttemptRow {
        fence: Fence(lossy(row, 0)?),
        attempt: lossy(row, 1)?,
        round: lossy(row, 2)?,
        session: SessionId(lossy(row, 3)?),
        started_at: Micros(lossy_signed(row, 4)?),
        arguments: match row.get_ref(5)? {
            ValueRef::Blob(bytes) => Some(bytes.to_vec()),
            _ => None,
        },
        arguments_bytes: lossy(row, 6)?,
        is_redacted: lossy(row, 7)? == 1,
        protocol_version: lossy_text(row, 8)?,
        policy: lossy_text(row, 9)?,
        traceparent: lossy_text(row, 10)?,
        signature: match (lossy_text(row, 12)?, row.get_ref(13)?) {
            (Some(scheme), ValueRef::Blob(digest)) => Some((scheme, digest.to_vec())),
            _ => None,
        },
        outcomes: Vec::new(),
    };
    let previous = match row.get_ref(11)? {
        ValueRef::Integer(_) => Some(Fence(lossy(row, 11)?)),
        _ => None,
    };
    Ok((attempt, previous))
}

/// Reads an entry from any row, and what can be made out of one that holds none.
#[cfg(feature = "test-fakes")]
pub(super) fn read_any_entry(row: &Row<'_>) {
    match read_entry(row) {
        Ok(stored) => drop(stored.entry.checksum(&[0; 16])),
        Err(error) => drop(torn(row, &error)),
    }
}

fn torn(row: &Row<'_>, error: &rusqlite::Error) -> Torn {
    let number = |index| lossy(row, index).unwrap_or(0);
    let text = |index| lossy_text(row, index).ok().flatten();
    Torn {
        seq: number(1),
        tool: text(2).unwrap_or_default(),
        status: text(3).unwrap_or_default(),
        attempt: number(4),
        fence: number(6),
        created_at: lossy_signed(row, 10).unwrap_or(0),
        call_id: text(22),
        why: torn::words(row, error),
    }
}

/// Returns a number, or 0 where something else stands.
pub(super) fn lossy(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(lossy_signed(row, index)?).unwrap_or(0))
}

pub(super) fn lossy_signed(row: &Row<'_>, index: usize) -> rusqlite::Result<i64> {
    Ok(match row.get_ref(index)? {
        ValueRef::Integer(number) => number,
        ValueRef::Null | ValueRef::Real(_) | ValueRef::Text(_) | ValueRef::Blob(_) => 0,
    })
}

pub(super) fn lossy_text(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<String>> {
    Ok(match row.get_ref(index)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => None,
    })
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn damaged(path: &JournalPath, why: &str) -> CannotUse {
    CannotUse::Damaged {
        path: path.as_path().to_owned(),
        why: why.to_owned(),
    }
}
