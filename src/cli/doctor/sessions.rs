//! Which sessions are live, and what that says of the calls that are open.
//!
//! A journal and the locks beside it can't be read at one moment, and proxies start and end in
//! between. So nothing is called wrong by one look at each:
//!
//! - **A live session that has no row.** A session's lock is taken before its row is committed, so
//!   a proxy that makes its first call looks like that for as long as one commit takes. The locks
//!   are asked first and the rows read then; whoever is left is looked for again, lock and row,
//!   until each has one or the other, or longer than any commit is waited for.
//! - **A call in doubt.** It is one only in a snapshot that was taken after its session's lock was
//!   seen free: whoever was gone by then has committed all it ever will. So a snapshot with an open
//!   call of a session that was not asked for is dropped, the lock is asked for, and the next one is
//!   taken. Who was seen live counts as running, also if it ended a moment later.
//!
//! Must not: write, or take a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use super::Check;
use crate::journal::locks::{LockQuery, SESSION_LOCKS_END};
use crate::journal::place::JournalPath;
use crate::journal::walk::{Counts, Walk};
use crate::rules::ids::SessionId;

/// How long a session that takes its lock may need until its row is committed.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait before looking again; nothing tells when another process commits.
const PAUSE: Duration = Duration::from_millis(5);

/// How often new sessions may appear between asking for locks and taking the snapshot.
const ASKING_MAX: usize = 8;

/// Tells which sessions are live, and whether one is not this journal's.
pub(super) fn check(path: &JournalPath) -> Check {
    let start = Instant::now();
    let mut pause = || {
        std::thread::sleep(PAUSE);
        start.elapsed() < PATIENCE
    };
    match look(path, &mut pause) {
        Err(Trouble::Locks(error)) => Check::bad(
            "sessions",
            format!("their locks can't be asked for: {error}"),
            "until they can, every session counts as live",
        ),
        Err(Trouble::Rows(why)) => Check::bad(
            "sessions",
            why,
            "`checkpoint verify` tells more; restore it from a backup",
        ),
        Ok(live) if !live.strangers.is_empty() => Check::bad(
            "sessions",
            "a live session is not in this journal".into(),
            "the journal was replaced under it; end that proxy, and put the newest copy back",
        ),
        Ok(live) if live.known.is_empty() => Check::ok("sessions", "none is live".into()),
        Ok(live) => {
            let ids: Vec<String> = live.known.iter().map(ToString::to_string).collect();
            Check::ok("sessions", format!("live: {}", ids.join(", ")))
        }
    }
}

enum Trouble {
    Locks(io::Error),
    Rows(String),
}

/// The sessions whose locks are held.
#[derive(Debug, PartialEq, Eq)]
struct Live {
    /// They have a row.
    known: BTreeSet<u64>,
    /// They have none, and have had time enough to commit one.
    strangers: BTreeSet<u64>,
}

/// Looks at locks and rows until each session that is live has a row, or `pause` says that it has
/// been long enough.
fn look(path: &JournalPath, pause: &mut dyn FnMut() -> bool) -> Result<Live, Trouble> {
    let query = LockQuery::new(path);
    let mut suspects: Option<BTreeSet<u64>> = None;
    loop {
        let held = query.held().map_err(Trouble::Locks)?;
        let held: BTreeSet<u64> = held
            .into_iter()
            .filter(|id| *id < SESSION_LOCKS_END)
            .collect();
        // After the locks: whoever had both a lock and a row then has a row now.
        let rows = rows(path)?;
        let known: BTreeSet<u64> = held.intersection(&rows).copied().collect();
        let mut strangers: BTreeSet<u64> = held.difference(&rows).copied().collect();
        // Only whoever was one from the first look on: others have only just begun.
        if let Some(suspects) = &suspects {
            strangers.retain(|id| suspects.contains(id));
        }
        if strangers.is_empty() || !pause() {
            return Ok(Live { known, strangers });
        }
        suspects = Some(strangers);
    }
}

fn rows(path: &JournalPath) -> Result<BTreeSet<u64>, Trouble> {
    let walk = Walk::open(path).map_err(|error| Trouble::Rows(error.to_string()))?;
    let sessions = walk
        .sessions()
        .map_err(|error| Trouble::Rows(error.to_string()))?;
    Ok(sessions.into_iter().map(|id| id.0).collect())
}

/// Counts the entries, with the locks of all sessions that have one open.
pub(super) fn counts(path: &JournalPath) -> Result<Counts, String> {
    let mut query = LockQuery::new(path);
    // A lock that can't be asked for counts as held, as it does for the proxy.
    counts_with(path, &mut |id| query.is_live(id).unwrap_or(true))
}

fn counts_with(path: &JournalPath, is_live: &mut dyn FnMut(u64) -> bool) -> Result<Counts, String> {
    let mut asked: BTreeMap<u64, bool> = BTreeMap::new();
    for last in (0..ASKING_MAX).rev() {
        let walk = Walk::open(path).map_err(|error| error.to_string())?;
        let open = walk.open_sessions().map_err(|error| error.to_string())?;
        let unasked: Vec<u64> = open
            .into_iter()
            .map(|SessionId(id)| id)
            .filter(|id| !asked.contains_key(id))
            .collect();
        if unasked.is_empty() || last == 0 {
            // Sessions keep coming: those not asked yet have only just begun, so they are live.
            asked.extend(unasked.into_iter().map(|id| (id, true)));
            let live: Vec<u64> = asked
                .into_iter()
                .filter_map(|(id, is_live)| is_live.then_some(id))
                .collect();
            return walk.counts(&live).map_err(|error| error.to_string());
        }
        for id in unasked {
            asked.insert(id, is_live(id));
        }
    }
    unreachable!("the last round returns")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::fixture::World;
    use crate::journal::locks::SessionLock;

    fn add_session(world: &World, id: u64) {
        let sql = format!(
            "INSERT INTO sessions (id, host, boot_id, pid, lock_offset, started_at) \
             VALUES ({id}, 'h', 'b', 1, {id}, 1)"
        );
        world.sql().execute_batch(&sql).unwrap();
    }

    fn add_open_call(world: &World, seq: u64, session: u64) {
        let sql = format!(
            "INSERT INTO entries (branch_id, seq, tool, status, attempt, round, fence, session_id, \
             scheme, signature, created_at, is_error, tombstone, checksum) VALUES (1, {seq}, 't', \
             'PENDING', 1, 0, {seq}, {session}, 's1', zeroblob(32), 1, 0, 0, zeroblob(16))"
        );
        world.sql().execute_batch(&sql).unwrap();
    }

    /// Looks `max` times at most; `meanwhile` happens between one look and the next.
    fn looked(world: &World, max: usize, mut meanwhile: impl FnMut(usize)) -> Live {
        let mut looks = 0;
        let found = look(&world.path, &mut || {
            looks += 1;
            meanwhile(looks);
            looks < max
        });
        found.unwrap_or_else(|_| panic!("locks and rows can be read"))
    }

    #[test]
    fn a_session_that_has_its_lock_and_not_yet_its_row_is_waited_for() {
        let world = World::new();
        let empty = BTreeSet::new();
        let lock = SessionLock::acquire(&world.path, 1).unwrap().unwrap();
        let own = SessionLock::acquire(&world.path, 1 | SESSION_LOCKS_END)
            .unwrap()
            .unwrap();
        let found = looked(&world, 9, |look| {
            if look == 2 {
                add_session(&world, 1);
            }
        });
        assert_eq!((found.known, found.strangers), ([1].into(), empty.clone()));
        // One that gives its lock up was none of this journal's either, and none is left.
        let other = SessionLock::acquire(&world.path, 2).unwrap().unwrap();
        let mut other = Some(other);
        let found = looked(&world, 1_000_000, |_| drop(other.take()));
        assert_eq!(found.strangers, empty);
        // One that neither ends nor commits is no session of this journal.
        let stays = SessionLock::acquire(&world.path, 3).unwrap().unwrap();
        let mut late = None;
        let found = looked(&world, 3, |_| {
            late = SessionLock::acquire(&world.path, 4)
                .unwrap()
                .or(late.take());
        });
        assert_eq!((found.known, found.strangers), ([1].into(), [3].into()));
        drop((lock, own, stays));
    }

    #[test]
    fn an_ended_session_whose_upstream_lives_on_is_no_stranger() {
        let world = World::new();
        add_session(&world, 1);
        world
            .sql()
            .execute_batch("UPDATE sessions SET ended_at = 2")
            .unwrap();
        let _lock = SessionLock::acquire(&world.path, 1).unwrap().unwrap();
        let found = looked(&world, 1, |_| ());
        assert_eq!(found.strangers, BTreeSet::new());
    }

    #[test]
    fn a_call_that_begins_between_two_reads_is_not_in_doubt() {
        let world = World::new();
        add_session(&world, 1);
        add_open_call(&world, 1, 1);
        let mut asked = Vec::new();
        let counts = counts_with(&world.path, &mut |id| {
            if asked.is_empty() {
                add_session(&world, 2);
                add_open_call(&world, 2, 2);
            }
            asked.push(id);
            id == 2
        })
        .unwrap();
        assert_eq!((counts.running, counts.in_doubt), (1, 1));
        assert_eq!(asked, [1, 2]);
    }

    #[test]
    fn a_call_that_ends_between_two_reads_is_not_in_doubt() {
        let world = World::new();
        add_session(&world, 1);
        add_open_call(&world, 1, 1);
        let counts = counts_with(&world.path, &mut |_| {
            // It settles, and only then is its lock free.
            world
                .sql()
                .execute_batch("UPDATE entries SET status = 'FAILED', delivered_at = 2")
                .unwrap();
            false
        })
        .unwrap();
        assert_eq!((counts.running, counts.in_doubt), (0, 0));
    }

    #[test]
    fn sessions_that_keep_coming_are_not_asked_for_without_end() {
        let world = World::new();
        add_open_call(&world, 1, 1);
        let counts = counts_with(&world.path, &mut |id| {
            add_open_call(&world, id + 1, id + 1);
            true
        })
        .unwrap();
        assert_eq!((counts.running, counts.in_doubt), (ASKING_MAX as u64, 0));
    }
}
