//! Tells whether the session that reserved an entry is still alive.
//!
//! A pid says little: it is reused, and the upstream's group may outlive the proxy. So a session
//! holds a lock of the operating system that ends with the last process that holds its
//! descriptor: the proxy, and the guardian it is handed to, which ends once the upstream's group
//! has ended. The lock's file is `<journal>-locks`; session `n` locks the byte at offset `n`.
//!
//! Invariants: a session's lock is taken before its row is committed, so a row without a lock is
//! a session that is gone. Others only ask, they never take the byte, not even for a moment, so
//! asking can't make a live session look gone or a new one fail. The descriptor is close-on-exec,
//! so the upstream does not inherit it. The file is never written and may be empty.
//!
//! It must not use the file's content, a pid, or a time-out.
//!
//! Source: Linux `fcntl(2)`, "Open file description locks": they belong to the open file, are
//! shared by its duplicates, also those passed over a socket, and end with the last of them.
//! Elsewhere `flock(2)` on one file a session (`<journal>-locks.<n>`) stands in; there the
//! question has to take the lock for a moment, shared, which [`SessionLock::acquire`] waits out.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use super::cannot_use::CannotUse;
use super::pinned::FileId;
use super::place::{Companion, JournalPath};

/// The locks below this number are those of sessions, which their guardians share; from it on they
/// are the proxies' own, each of a proxy that holds its session's lock as well.
pub const SESSION_LOCKS_END: u64 = 1 << 62;

#[cfg(any(target_os = "linux", target_os = "android"))]
use byte_ranges as platform;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
use whole_files as platform;

/// The proof that a session is live, for as long as a duplicate of its descriptor is open.
#[derive(Debug)]
pub struct SessionLock {
    file: File,
    path: PathBuf,
    id: FileId,
}

impl SessionLock {
    /// Takes the lock of session `session`; `None` if somebody holds it, so the number is in use.
    ///
    /// Makes the lock file where there is none, with mode 0600.
    ///
    /// # Errors
    ///
    /// [`CannotUse::Symlink`], [`CannotUse::Io`], the latter also for a number above 2^63 - 2.
    pub fn acquire(journal: &JournalPath, session: u64) -> Result<Option<Self>, CannotUse> {
        let path = platform::path(journal, session);
        let take = || -> io::Result<Option<(File, FileId)>> {
            let Some(file) = platform::acquire(&path, session)? else {
                return Ok(None);
            };
            let id = FileId::of(&file.metadata()?);
            Ok(Some((file, id)))
        };
        let taken = take().map_err(|error| CannotUse::io("lock", &path, error))?;
        let Some((file, id)) = taken else {
            return Ok(None);
        };
        let lock = Self { file, path, id };
        // A lock on a file that was replaced meanwhile is one that nobody would find.
        lock.check()?;
        Ok(Some(lock))
    }

    /// Returns the descriptor that carries the lock, to be handed to the guardian. A duplicate
    /// carries it as well; the lock ends when the last one is closed.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Checks that the lock is still where others look for it; one `lstat`.
    ///
    /// # Errors
    ///
    /// [`CannotUse::Moved`] if the lock file was deleted or replaced: this session looks gone to
    /// others, so it must not go on. [`CannotUse::Io`] if the system does not tell.
    pub fn check(&self) -> Result<(), CannotUse> {
        let found =
            FileId::at(&self.path).map_err(|error| CannotUse::io("look at", &self.path, error))?;
        if found != Some(self.id) {
            return Err(CannotUse::Moved {
                path: self.path.clone(),
            });
        }
        Ok(())
    }
}

/// Returns whether session `session` is live. It takes no lock and makes no file; where there is
/// no lock file, nobody is live.
///
/// # Errors
///
/// Those of the system. Whoever can't ask must take the session for live.
pub fn is_live(journal: &JournalPath, session: u64) -> io::Result<bool> {
    LockQuery::new(journal).is_live(session)
}

/// Asks for many sessions, or again and again, with one descriptor.
#[derive(Debug)]
pub struct LockQuery {
    journal: JournalPath,
    open: Option<(File, FileId)>,
}

impl LockQuery {
    /// Returns a query for the sessions of `journal`; opens nothing yet.
    pub fn new(journal: &JournalPath) -> Self {
        Self {
            journal: journal.clone(),
            open: None,
        }
    }

    /// Returns whether session `session` is live, like [`is_live`]. A lock file that was replaced
    /// since the last question is opened anew.
    ///
    /// # Errors
    ///
    /// Those of the system. Whoever can't ask must take the session for live.
    pub fn is_live(&mut self, session: u64) -> io::Result<bool> {
        let path = platform::path(&self.journal, session);
        let there = FileId::at(&path)?;
        if self.open.as_ref().map(|(_, id)| *id) != there || there.is_none() {
            self.open = match super::whole_file::open_existing(&path, false)? {
                Some(file) => {
                    let id = FileId::of(&file.metadata()?);
                    Some((file, id))
                }
                None => None,
            };
        }
        match &self.open {
            Some((file, _)) => platform::is_held(file, session),
            None => Ok(false),
        }
    }

    /// Returns whether any session at all is live, also one whose row this journal does not hold.
    ///
    /// # Errors
    ///
    /// Those of the system. Whoever can't ask must take it for yes.
    pub fn is_any_live(&self) -> io::Result<bool> {
        platform::is_any_held(&self.journal)
    }

    /// Returns the number of every session that is live, also of one whose row this journal does
    /// not hold, in no order. Locks that come or go meanwhile may be among them or not.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn held(&self) -> io::Result<Vec<u64>> {
        platform::held(&self.journal)
    }

    /// Returns the path of the lock file as a whole, for messages.
    pub fn path(&self) -> PathBuf {
        self.journal.companion(Companion::Locks)
    }
}

/// One file for all sessions, a byte for each.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod byte_ranges {
    use std::fs::File;
    use std::io;
    use std::path::{Path, PathBuf};

    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc;

    use crate::journal::place::{Companion, JournalPath};
    use crate::journal::whole_file;

    pub(super) fn path(journal: &JournalPath, _session: u64) -> PathBuf {
        journal.companion(Companion::Locks)
    }

    pub(super) fn acquire(path: &Path, session: u64) -> io::Result<Option<File>> {
        let range = byte_at(session)?;
        let file = whole_file::open_or_make_empty(path)?;
        loop {
            match fcntl(&file, FcntlArg::F_OFD_SETLK(&range)) {
                Ok(_) => return Ok(Some(file)),
                Err(Errno::EAGAIN | Errno::EACCES) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    pub(super) fn is_any_held(journal: &JournalPath) -> io::Result<bool> {
        let Some(file) = whole_file::open_existing(&path(journal, 0), false)? else {
            return Ok(false);
        };
        let mut range = byte_at(0)?;
        // No length: up to the end of all offsets.
        range.l_len = 0;
        is_range_held(&file, range)
    }

    /// The system names one lock of a range, whichever it likes, so the rest of the range on both
    /// sides of it is asked for again.
    pub(super) fn held(journal: &JournalPath) -> io::Result<Vec<u64>> {
        let Some(file) = whole_file::open_existing(&path(journal, 0), false)? else {
            return Ok(Vec::new());
        };
        let mut held = Vec::new();
        let mut ranges = vec![(0, libc::off_t::MAX - 1)];
        while let Some((first, last)) = ranges.pop() {
            if first > last {
                continue;
            }
            let mut range = byte_at(0)?;
            range.l_start = first;
            range.l_len = last - first + 1;
            let Some(lock) = lock_in(&file, range)? else {
                continue;
            };
            // A session's lock is one byte long; of any other one only the first counts.
            let at = lock.l_start.clamp(first, last);
            held.extend(u64::try_from(at));
            ranges.push((first, at - 1));
            ranges.push((at + 1, last));
        }
        Ok(held)
    }

    pub(super) fn is_held(file: &File, session: u64) -> io::Result<bool> {
        is_range_held(file, byte_at(session)?)
    }

    fn is_range_held(file: &File, range: libc::flock) -> io::Result<bool> {
        Ok(lock_in(file, range)?.is_some())
    }

    /// Returns a lock in the range that somebody else holds.
    fn lock_in(file: &File, mut range: libc::flock) -> io::Result<Option<libc::flock>> {
        loop {
            match fcntl(file, FcntlArg::F_OFD_GETLK(&mut range)) {
                Ok(_) => {
                    let is_held = range.l_type != libc::F_UNLCK as libc::c_short;
                    return Ok(is_held.then_some(range));
                }
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn byte_at(session: u64) -> io::Result<libc::flock> {
        let start = libc::off_t::try_from(session)
            .ok()
            // The lock's end is one further and must be an offset, too.
            .filter(|start| *start < libc::off_t::MAX)
            .ok_or(io::ErrorKind::InvalidInput)?;
        Ok(libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: start,
            l_len: 1,
            l_pid: 0,
        })
    }
}

/// One file for each session. Built for the tests on every system, so that it can't rot.
#[cfg(any(not(any(target_os = "linux", target_os = "android")), test))]
mod whole_files {
    use std::fs::{File, TryLockError};
    use std::io;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use crate::journal::place::{Companion, JournalPath};
    use crate::journal::whole_file;

    /// How long a lock that is held is tried again: a question holds it for microseconds.
    const TRIES_MAX: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(1);

    pub(super) fn path(journal: &JournalPath, session: u64) -> PathBuf {
        whole_file::with_suffix(&journal.companion(Companion::Locks), &format!(".{session}"))
    }

    pub(super) fn acquire(path: &Path, _session: u64) -> io::Result<Option<File>> {
        let file = whole_file::open_or_make_empty(path)?;
        for _ in 0..TRIES_MAX {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    pub(super) fn is_any_held(journal: &JournalPath) -> io::Result<bool> {
        let prefix = path(journal, 0);
        let name = prefix.file_name().unwrap_or_default().as_encoded_bytes();
        let prefix = name.strip_suffix(b"0").unwrap_or(name);
        for entry in std::fs::read_dir(journal.folder())? {
            let entry = entry?;
            if !entry.file_name().as_encoded_bytes().starts_with(prefix) {
                continue;
            }
            if let Some(file) = whole_file::open_existing(&entry.path(), false)?
                && is_held(&file, 0)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn held(journal: &JournalPath) -> io::Result<Vec<u64>> {
        let mut held = Vec::new();
        for entry in std::fs::read_dir(journal.folder())? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.rsplit_once('.')?.1.parse().ok());
            let Some(session) = number.filter(|number| path(journal, *number) == entry.path())
            else {
                continue;
            };
            if let Some(file) = whole_file::open_existing(&entry.path(), false)?
                && is_held(&file, session)?
            {
                held.push(session);
            }
        }
        Ok(held)
    }

    pub(super) fn is_held(file: &File, _session: u64) -> io::Result<bool> {
        match file.try_lock_shared() {
            Ok(()) => {
                file.unlock()?;
                Ok(false)
            }
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;

    use super::super::fixture::{World, rerun, role};
    use super::*;

    /// Waits until a question is answered with no.
    ///
    /// A program that another test starts carries all our descriptors, and so our locks, from
    /// its fork until its exec closes them; for so long a lock outlives its owner.
    fn wait_until_not(mut is_held: impl FnMut() -> io::Result<bool>) {
        let start = std::time::Instant::now();
        while is_held().unwrap() {
            assert!(start.elapsed().as_secs() < 20, "the lock never ended");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_session_is_live_while_its_lock_is_held() {
        let world = World::empty();
        assert!(!is_live(&world.journal, 7).unwrap());
        assert!(world.files().is_empty(), "a question makes no file");
        let lock = SessionLock::acquire(&world.journal, 7).unwrap().unwrap();
        let mut query = LockQuery::new(&world.journal);
        for _ in 0..3 {
            assert!(query.is_live(7).unwrap());
            assert!(is_live(&world.journal, 7).unwrap());
            assert!(!query.is_live(6).unwrap() && !query.is_live(8).unwrap());
        }
        assert!(query.is_any_live().unwrap());
        assert_eq!(query.held().unwrap(), [7]);
        assert!(SessionLock::acquire(&world.journal, 7).unwrap().is_none());
        let other = SessionLock::acquire(&world.journal, 8).unwrap().unwrap();
        drop(lock);
        wait_until_not(|| query.is_live(7));
        assert!(query.is_live(8).unwrap());
        drop(other);
        wait_until_not(|| query.is_any_live());
        let again = SessionLock::acquire(&world.journal, 7).unwrap();
        assert!(again.is_some());
    }

    #[test]
    fn a_duplicate_keeps_a_session_live_and_a_program_started_meanwhile_does_not() {
        let world = World::empty();
        let lock = SessionLock::acquire(&world.journal, 1).unwrap().unwrap();
        let duplicate = lock.as_fd().try_clone_to_owned().unwrap();
        let mut program = std::process::Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        drop(lock);
        assert!(is_live(&world.journal, 1).unwrap());
        drop(duplicate);
        wait_until_not(|| is_live(&world.journal, 1));
        assert!(program.try_wait().unwrap().is_none());
        drop(program.stdin.take());
        program.wait().unwrap();
    }

    const KILL_TEST: &str = "journal::locks::tests::a_killed_session_is_gone";

    #[test]
    fn a_killed_session_is_gone() {
        if let Some((_, journal)) = role() {
            let _lock = SessionLock::acquire(&journal, 3).unwrap().unwrap();
            println!("\nready");
            std::io::stdout().flush().unwrap();
            loop {
                std::thread::park();
            }
        }
        let world = World::empty();
        let mut query = LockQuery::new(&world.journal);
        let mut child = rerun(KILL_TEST, "hold", &world.journal).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        assert!(query.is_live(3).unwrap());
        assert!(SessionLock::acquire(&world.journal, 3).unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!query.is_live(3).unwrap());
    }

    #[test]
    fn a_lock_file_that_is_replaced_is_noticed_by_both_sides() {
        let world = World::empty();
        let lock = SessionLock::acquire(&world.journal, 1).unwrap().unwrap();
        let mut query = LockQuery::new(&world.journal);
        assert!(query.is_live(1).unwrap());
        std::fs::remove_file(query.path()).unwrap();
        assert!(matches!(lock.check(), Err(CannotUse::Moved { .. })));
        assert!(!query.is_live(1).unwrap());
        let new = SessionLock::acquire(&world.journal, 1).unwrap().unwrap();
        assert!(query.is_live(1).unwrap());
        new.check().unwrap();
        assert!(matches!(lock.check(), Err(CannotUse::Moved { .. })));
    }

    #[test]
    fn links_and_numbers_that_are_no_offset_are_refused() {
        let world = World::empty();
        let reason = SessionLock::acquire(&world.journal, u64::MAX).unwrap_err();
        assert!(matches!(reason, CannotUse::Io { .. }));
        std::fs::remove_file(world.journal.companion(Companion::Locks)).ok();
        let highest = SessionLock::acquire(&world.journal, (1 << 63) - 2).unwrap();
        assert!(highest.is_some());
        assert!(is_live(&world.journal, (1 << 63) - 2).unwrap());
        let world = World::empty();
        std::os::unix::fs::symlink("elsewhere", world.journal.companion(Companion::Locks)).unwrap();
        let reason = SessionLock::acquire(&world.journal, 1).unwrap_err();
        assert!(matches!(reason, CannotUse::Symlink { .. }), "{reason:?}");
        is_live(&world.journal, 1).unwrap_err();
    }

    #[test]
    fn every_session_that_is_live_is_named() {
        let world = World::empty();
        let query = LockQuery::new(&world.journal);
        assert_eq!(query.held().unwrap(), [0; 0]);
        let numbers = [0, 1, 2, 7, 8, 1 << 40, (1 << 62) | 7, (1 << 63) - 2];
        let locks: Vec<_> = numbers
            .iter()
            .map(|number| SessionLock::acquire(&world.journal, *number).unwrap())
            .collect();
        let mut held = query.held().unwrap();
        held.sort_unstable();
        assert_eq!(held, numbers);
        drop(locks);
        wait_until_not(|| query.held().map(|held| !held.is_empty()));
    }

    #[test]
    fn the_way_of_other_systems_gives_the_same_answers() {
        let world = World::empty();
        let path = whole_files::path(&world.journal, 5);
        let lock = whole_files::acquire(&path, 5).unwrap().unwrap();
        let query = super::super::whole_file::open_existing(&path, false)
            .unwrap()
            .unwrap();
        assert!(whole_files::is_held(&query, 5).unwrap());
        assert!(whole_files::acquire(&path, 5).unwrap().is_none());
        let duplicate = lock.try_clone().unwrap();
        drop(lock);
        assert!(whole_files::is_held(&query, 5).unwrap());
        assert!(whole_files::is_any_held(&world.journal).unwrap());
        assert_eq!(whole_files::held(&world.journal).unwrap(), [5]);
        drop(duplicate);
        wait_until_not(|| whole_files::is_held(&query, 5));
        assert!(!whole_files::is_any_held(&world.journal).unwrap());
        assert!(whole_files::acquire(&path, 5).unwrap().is_some());
    }
}
