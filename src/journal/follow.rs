//! Tells what happens in a journal as it happens: a reader that looks again and again.
//!
//! An ordinary call writes no event: its reservation and its outcome are the entry itself. So what
//! happened is told from attempts, outcomes and events together, and a call that is cut off from
//! the lock that becomes free.
//!
//! Invariants: each look is one snapshot, and nothing is told twice. Between looks nothing is held,
//! so that a follower that runs for days holds back neither a writer nor a checkpoint.
//!
//! Must not: wait (whoever follows decides when to look), or know how anything is shown.

use std::collections::BTreeMap;

use rusqlite::types::ValueRef;
use rusqlite::{OptionalExtension as _, Row};

use super::cannot_use::CannotUse;
use super::reader::{Place, Reader, lossy, lossy_signed, lossy_text, signed};
use crate::rules::entry::Status;
use crate::rules::ids::{BranchId, Fence, Micros, Seq, SessionId};

/// How many attempts and how many events one look tells at most.
const BATCH: u32 = 1_000;

/// How many of the newest events are looked at again, as their counts may have risen.
const RECENT: u64 = 500;

/// Where a follower begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With what happens from now on.
    Now,
    /// With about this many of the newest things.
    Last(u32),
    /// With the journal's first.
    Beginning,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// When.
    pub at: Micros,
    /// To which entry, if it concerns one.
    pub entry: Option<About>,
    /// What.
    pub what: What,
}

/// An entry, or an attempt of it, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Where it stands.
    pub place: Place,
    /// Its seq.
    pub seq: Seq,
    /// Its tool.
    pub tool: String,
    /// The attempt, where one is meant.
    pub attempt: Option<u64>,
    /// Its fence, where one is meant.
    pub fence: Option<Fence>,
    /// The session, where one is meant.
    pub session: Option<SessionId>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// An attempt, or a further round of it, was reserved.
    Started {
        /// The round, from 0.
        round: u64,
    },
    /// An outcome was written, or the end of a task.
    Settled {
        /// What it made of the entry; `None` if that can't be read.
        status: Option<Status>,
        /// A result with `isError: true`.
        is_error: bool,
        /// Whose it is.
        provenance: String,
        /// When the attempt was reserved.
        started_at: Micros,
    },
    /// Nobody who could still settle it is left, or its session knows that no answer comes.
    InDoubt {
        /// Why the session knows it, where it does.
        reason: Option<String>,
    },
    /// An event.
    Event {
        /// Its kind.
        kind: String,
        /// The decision's letter.
        letter: Option<String>,
        /// What else is known, as a JSON object.
        detail: Option<String>,
        /// How often it has happened.
        count: u64,
    },
}

/// An attempt whose end has not been told.
#[derive(Clone, Debug)]
struct Open {
    about: About,
    started_at: Micros,
    /// Its handle has been told; the task's end may come.
    is_accepted: bool,
    is_doubt_told: bool,
}

/// Follows a journal.
#[derive(Debug)]
pub struct Follower {
    reader: Reader,
    last_fence: u64,
    last_event: u64,
    open: BTreeMap<u64, Open>,
    counts: BTreeMap<u64, u64>,
    version: Option<i64>,
    places: BTreeMap<BranchId, Place>,
    is_behind: bool,
}

impl Follower {
    /// Begins to follow. What happened before `start` is not told, but the ends of calls that are
    /// open then are.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn new(reader: Reader, start: Start) -> Result<Self, CannotUse> {
        let mut follower = Self {
            reader,
            last_fence: 0,
            last_event: 0,
            open: BTreeMap::new(),
            counts: BTreeMap::new(),
            version: None,
            places: BTreeMap::new(),
            is_behind: false,
        };
        follower.begin(start)?;
        Ok(follower)
    }

    /// Returns whether the last look left something out, so that it is worth looking at once.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Returns what happened since the last look, by time. `now` stands beside what has no time of
    /// its own: that a call is in doubt.
    ///
    /// # Errors
    ///
    /// The journal can't be read, or is no longer in its place.
    pub fn look(&mut self, now: Micros) -> Result<Vec<Happening>, CannotUse> {
        self.reader.check_place()?;
        let version = self.reader.data_version()?;
        let is_changed = self.is_behind || self.version != Some(version);
        let is_waiting = self
            .open
            .values()
            .any(|open| !open.is_accepted && !open.is_doubt_told);
        if !is_changed && !is_waiting {
            return Ok(Vec::new());
        }
        self.version = Some(version);
        self.snapshot(|follower| {
            let mut told = Vec::new();
            follower.is_behind = false;
            if is_changed {
                follower.started(&mut told)?;
            }
            follower.settled(&mut told, now)?;
            if is_changed {
                follower.events(&mut told)?;
            }
            told.sort_by_key(|happening| happening.at);
            Ok(told)
        })
    }

    fn begin(&mut self, start: Start) -> Result<(), CannotUse> {
        self.snapshot(|follower| {
            let back = match start {
                Start::Beginning => return Ok(()),
                Start::Now => 0,
                Start::Last(count) => count,
            };
            follower.last_fence = follower.before_last("attempts", "fence", back)?;
            follower.last_event = follower.before_last("events", "id", back)?;
            // One look at every entry, so that no end of a task is missed.
            let sql = format!(
                "{ATTEMPTS} JOIN entries e ON e.branch_id = a.branch_id AND e.seq = a.seq \
                 AND e.fence = a.fence \
                 WHERE e.status IN ('PENDING', 'ACCEPTED') AND a.fence <= {}",
                follower.last_fence
            );
            for Attempt {
                about, started_at, ..
            } in follower.attempts(&sql)?
            {
                follower.put_open(about, started_at);
            }
            // What was in doubt or accepted before is no news.
            follower.settled(&mut Vec::new(), Micros(0))
        })
    }

    fn snapshot<T>(
        &mut self,
        act: impl FnOnce(&mut Self) -> Result<T, CannotUse>,
    ) -> Result<T, CannotUse> {
        self.reader.begin_snapshot()?;
        let result = act(self);
        self.reader.end_snapshot()?;
        result
    }

    /// Returns the number after which the newest `back` rows come.
    fn before_last(&self, table: &str, column: &str, back: u32) -> Result<u64, CannotUse> {
        let sql = format!(
            "SELECT coalesce(max({column}), 0) FROM {table} WHERE {column} NOT IN \
             (SELECT {column} FROM {table} ORDER BY {column} DESC LIMIT {back})"
        );
        self.reader
            .db()
            .query_row(&sql, (), |row| lossy(row, 0))
            .map_err(|error| self.reader.refuse(error))
    }

    fn put_open(&mut self, about: About, started_at: Micros) {
        let Some(fence) = about.fence else {
            return;
        };
        let open = Open {
            about,
            started_at,
            is_accepted: false,
            is_doubt_told: false,
        };
        self.open.insert(fence.0, open);
    }

    fn started(&mut self, told: &mut Vec<Happening>) -> Result<(), CannotUse> {
        let sql = format!(
            "{ATTEMPTS} LEFT JOIN entries e ON e.branch_id = a.branch_id AND e.seq = a.seq \
             WHERE a.fence > {} ORDER BY a.fence LIMIT {BATCH}",
            self.last_fence
        );
        let attempts = self.attempts(&sql)?;
        self.is_behind |= attempts.len() >= BATCH as usize;
        for attempt in attempts {
            let about = attempt.about;
            self.last_fence = self.last_fence.max(about.fence.map_or(0, |fence| fence.0));
            // Nothing starts by an operator's putting it under another fence.
            if !attempt.is_moved {
                told.push(Happening {
                    at: attempt.started_at,
                    entry: Some(about.clone()),
                    what: What::Started {
                        round: attempt.round,
                    },
                });
            }
            self.put_open(about, attempt.started_at);
        }
        Ok(())
    }

    fn attempts(&mut self, sql: &str) -> Result<Vec<Attempt>, CannotUse> {
        let rows = self
            .reader
            .db()
            .prepare(sql)
            .and_then(|mut statement| {
                statement
                    .query_map((), |row| {
                        Ok((
                            Fence(lossy(row, 0)?),
                            BranchId(lossy(row, 1)?),
                            Seq(lossy(row, 2)?),
                            (lossy(row, 3)?, lossy(row, 4)?, lossy(row, 8)? == 1),
                            SessionId(lossy(row, 5)?),
                            Micros(lossy_signed(row, 6)?),
                            lossy_text(row, 7)?.unwrap_or_default(),
                        ))
                    })?
                    .collect::<rusqlite::Result<Vec<_>>>()
            })
            .map_err(|error| self.reader.refuse(error))?;
        let mut attempts = Vec::with_capacity(rows.len());
        for (fence, branch, seq, (attempt, round, is_moved), session, started_at, tool) in rows {
            let about = About {
                place: self.place(branch)?,
                seq,
                tool,
                attempt: Some(attempt),
                fence: Some(fence),
                session: Some(session),
            };
            attempts.push(Attempt {
                about,
                round,
                started_at,
                is_moved,
            });
        }
        Ok(attempts)
    }

    fn place(&mut self, branch: BranchId) -> Result<Place, CannotUse> {
        if let Some(place) = self.places.get(&branch) {
            return Ok(place.clone());
        }
        let place = self.reader.place_or_orphan(branch)?;
        self.places.insert(branch, place.clone());
        Ok(place)
    }

    /// Tells the ends of open attempts, and those that nobody will settle.
    fn settled(&mut self, told: &mut Vec<Happening>, now: Micros) -> Result<(), CannotUse> {
        let fences: Vec<u64> = self.open.keys().copied().collect();
        for fence in fences {
            let Some(open) = self.open.get(&fence) else {
                continue;
            };
            let table = if open.is_accepted {
                "task_ends"
            } else {
                "outcomes"
            };
            if let Some((at, what)) = self.outcome(table, fence, open.started_at)? {
                told.push(Happening {
                    at,
                    entry: Some(open.about.clone()),
                    what: what.clone(),
                });
                match (what, self.open.get_mut(&fence)) {
                    (
                        What::Settled {
                            status: Some(Status::Accepted),
                            ..
                        },
                        Some(open),
                    ) => {
                        open.is_accepted = true;
                        // The task may have ended already.
                        if let Some((at, what)) =
                            self.outcome("task_ends", fence, self.open[&fence].started_at)?
                        {
                            told.push(Happening {
                                at,
                                entry: Some(self.open[&fence].about.clone()),
                                what,
                            });
                            self.open.remove(&fence);
                        }
                    }
                    _ => {
                        self.open.remove(&fence);
                    }
                }
                continue;
            }
            match self.doubt(fence, &open.about)? {
                Standing::Running => {}
                Standing::Over => {
                    self.open.remove(&fence);
                }
                Standing::InDoubt(reason) => {
                    if let Some(open) = self.open.get_mut(&fence)
                        && !open.is_doubt_told
                    {
                        open.is_doubt_told = true;
                        told.push(Happening {
                            at: now,
                            entry: Some(open.about.clone()),
                            what: What::InDoubt { reason },
                        });
                    }
                }
            }
        }
        Ok(())
    }

    fn outcome(
        &self,
        table: &str,
        fence: u64,
        started_at: Micros,
    ) -> Result<Option<(Micros, What)>, CannotUse> {
        self.reader
            .db()
            .prepare_cached(&format!(
                "SELECT status, is_error, provenance, at FROM {table} WHERE fence = ?1"
            ))
            .and_then(|mut statement| {
                statement
                    .query_row([signed(fence)], |row| {
                        let what = What::Settled {
                            status: lossy_text(row, 0)?.as_deref().and_then(Status::from_name),
                            is_error: lossy(row, 1)? == 1,
                            provenance: lossy_text(row, 2)?.unwrap_or_default(),
                            started_at,
                        };
                        Ok((Micros(lossy_signed(row, 3)?), what))
                    })
                    .optional()
            })
            .map_err(|error| self.reader.refuse(error))
    }

    /// Returns how an attempt without an outcome stands.
    fn doubt(&self, fence: u64, about: &About) -> Result<Standing, CannotUse> {
        let row = self
            .reader
            .db()
            .prepare_cached(
                "SELECT status, fence, session_id, unanswered FROM entries \
                 WHERE branch_id = ?1 AND seq = ?2",
            )
            .and_then(|mut statement| {
                statement
                    .query_row((signed(about.place.id.0), signed(about.seq.0)), |row| {
                        Ok((
                            lossy_text(row, 0)?,
                            lossy(row, 1)?,
                            SessionId(lossy(row, 2)?),
                            lossy_text(row, 3)?,
                        ))
                    })
                    .optional()
            })
            .map_err(|error| self.reader.refuse(error))?;
        Ok(match row {
            Some((Some(status), current, session, unanswered)) if current == fence => {
                let is_pending = status == Status::Pending.name();
                match unanswered {
                    _ if !is_pending && status != Status::Accepted.name() => Standing::Over,
                    Some(reason) if is_pending => Standing::InDoubt(Some(reason)),
                    None if is_pending && !self.reader.was_live(session) => Standing::InDoubt(None),
                    Some(_) | None => Standing::Running,
                }
            }
            // Another attempt stands in its place, or its row does not hold.
            Some(_) | None => Standing::Over,
        })
    }

    fn events(&mut self, told: &mut Vec<Happening>) -> Result<(), CannotUse> {
        let recent = self.last_event.saturating_sub(RECENT);
        let rows = self
            .reader
            .db()
            .prepare_cached(
                "SELECT id, at, kind, branch_id, seq, fence, session_id, letter, detail, count, \
                 last_at, (SELECT tool FROM entries e WHERE e.branch_id = v.branch_id \
                 AND e.seq = v.seq), (SELECT attempt FROM attempts a WHERE a.fence = v.fence) \
                 FROM events v WHERE id > ?1 ORDER BY id LIMIT ?2",
            )
            .and_then(|mut statement| {
                let limit = i64::from(BATCH) + i64::try_from(RECENT).unwrap_or(0);
                statement
                    .query_map((signed(recent), limit), read_event)?
                    .collect::<rusqlite::Result<Vec<_>>>()
            })
            .map_err(|error| self.reader.refuse(error))?;
        self.is_behind |= rows.len() >= (u64::from(BATCH) + RECENT) as usize;
        let newest_told = self.last_event;
        for row in rows {
            let known = self.counts.insert(row.id, row.count);
            self.last_event = self.last_event.max(row.id);
            let is_news = match known {
                Some(count) => row.count > count,
                None => row.id > newest_told,
            };
            if !is_news {
                continue;
            }
            let entry = match row.entry {
                None => None,
                Some((branch, seq)) => Some(About {
                    place: self.place(branch)?,
                    seq,
                    tool: row.tool,
                    attempt: row.attempt,
                    fence: row.fence,
                    session: row.session,
                }),
            };
            told.push(Happening {
                at: row.at,
                entry,
                what: What::Event {
                    kind: row.kind,
                    letter: row.letter,
                    detail: row.detail,
                    count: row.count,
                },
            });
        }
        let keep_from = self.last_event.saturating_sub(RECENT);
        self.counts.retain(|id, _| *id > keep_from);
        Ok(())
    }
}

/// An attempt's row.
struct Attempt {
    about: About,
    round: u64,
    started_at: Micros,
    /// It is the attempt and round before it, under another fence.
    is_moved: bool,
}

/// How an attempt without an outcome stands.
enum Standing {
    Running,
    InDoubt(Option<String>),
    Over,
}

const ATTEMPTS: &str = "SELECT a.fence, a.branch_id, a.seq, a.attempt, a.round, a.session_id, \
     a.started_at, e.tool, EXISTS (SELECT 1 FROM attempts p WHERE p.fence = a.previous \
     AND p.attempt = a.attempt AND p.round = a.round) FROM attempts a";

pub(super) struct EventRow {
    id: u64,
    at: Micros,
    kind: String,
    entry: Option<(BranchId, Seq)>,
    fence: Option<Fence>,
    session: Option<SessionId>,
    letter: Option<String>,
    detail: Option<String>,
    count: u64,
    tool: String,
    attempt: Option<u64>,
}

pub(super) fn read_event(row: &Row<'_>) -> rusqlite::Result<EventRow> {
    let maybe = |index| match row.get_ref(index)? {
        ValueRef::Integer(_) => Ok::<_, rusqlite::Error>(Some(lossy(row, index)?)),
        ValueRef::Null | ValueRef::Real(_) | ValueRef::Text(_) | ValueRef::Blob(_) => Ok(None),
    };
    let count = lossy(row, 9)?;
    let at = if count > 1 { 10 } else { 1 };
    Ok(EventRow {
        id: lossy(row, 0)?,
        at: Micros(lossy_signed(row, at)?),
        kind: lossy_text(row, 2)?.unwrap_or_default(),
        entry: maybe(3)?.map(BranchId).zip(maybe(4)?.map(Seq)),
        fence: maybe(5)?.map(Fence),
        session: maybe(6)?.map(SessionId),
        letter: lossy_text(row, 7)?,
        detail: lossy_text(row, 8)?,
        count,
        tool: lossy_text(row, 11)?.unwrap_or_default(),
        attempt: maybe(12)?,
    })
}
