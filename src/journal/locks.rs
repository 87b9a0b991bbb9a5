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

    pub(super) fn is_held(file: &File, session: u64) -> io::Result<bool> {
        let mut range = byte_at(session)?;
        loop {
            match fcntl(file, FcntlArg::F_OFD_GETLK(&mut range)) {
                Ok(_) => return Ok(range.l_type != libc::F_UNLCK as libc::c_short),
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
