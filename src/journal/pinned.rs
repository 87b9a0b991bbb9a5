//! Reads a journal's file beside SQLite without taking SQLite's locks away.
//!
//! POSIX drops every record lock that a process holds on a file as soon as the process closes
//! *any* descriptor of that file, also one that never took a lock. SQLite guards the journal with
//! such locks, so a plain open-read-close of the journal while a connection of this process is
//! open would unlock it for the other processes. Hence the rule of this module: a descriptor of a
//! journal is kept in one table of the process, shared by all who read the same file, and closed
//! only when the last of them is gone; a connection keeps its [`Pinned`] until it is closed.
//!
//! Invariant: a descriptor that is in the table is closed under the table's lock and with no
//! user left, so nobody can begin to use the file between the decision to close and the close.
//!
//! It must not write: the journal's bytes are SQLite's.
//!
//! Source: POSIX.1-2024 `fcntl` ("all locks … removed when a file descriptor for that file is
//! closed"); SQLite "How To Corrupt An SQLite Database File", section 2.2.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::libc;

/// Which file it is: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity in `metadata`.
    pub(crate) fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }

    /// Returns the identity of what is at `path` itself, links not followed; `None` if nothing is.
    ///
    /// Asks for nothing else: once a file's times have been asked for, the next write gives it a
    /// time of its own (Linux 6.13, multigrain timestamps), and the sync after that write has the
    /// inode to write, too. Before each commit this was a third of a sync's cost.
    #[cfg(target_os = "linux")]
    pub(crate) fn at(path: &Path) -> io::Result<Option<Self>> {
        use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
        use rustix::io::Errno;

        match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::INO) {
            Ok(found) => Ok(Some(Self {
                device: makedev(found.stx_dev_major, found.stx_dev_minor),
                inode: found.stx_ino,
            })),
            Err(Errno::NOENT) => Ok(None),
            // A kernel or a sandbox without this call has the older one.
            Err(Errno::NOSYS | Errno::PERM) => Self::at_by_metadata(path),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the identity of what is at `path` itself, links not followed; `None` if nothing is.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn at(path: &Path) -> io::Result<Option<Self>> {
        Self::at_by_metadata(path)
    }

    fn at_by_metadata(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::symlink_metadata(path) {
            Ok(metadata) => Ok(Some(Self::of(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

struct Slot {
    users: usize,
    // More than one only where a path changed its file between `stat` and `open`.
    files: Vec<File>,
}

static TABLE: Mutex<BTreeMap<FileId, Slot>> = Mutex::new(BTreeMap::new());

fn table() -> MutexGuard<'static, BTreeMap<FileId, Slot>> {
    // The table is never left half changed, so a panic elsewhere does not spoil it.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A journal's file, open for reading for as long as anyone in this process needs it.
#[derive(Debug)]
pub(crate) struct Pinned {
    id: FileId,
}

impl Pinned {
    /// Opens the regular file at `path` for reading, or joins those who have it open already.
    ///
    /// Links are not followed and a FIFO does not block; what is not a regular file must be told
    /// by the caller beforehand, here it is an error of kind `InvalidInput`.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut table = table();
        if let Some(id) = FileId::at(path)?
            && let Some(slot) = table.get_mut(&id)
        {
            slot.users += 1;
            return Ok(Self { id });
        }
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        Ok(Self::join(&mut table, FileId::of(&metadata), file))
    }

    /// Puts a file that this process has just made into the table, before it gets its name.
    pub(crate) fn adopt(file: File) -> io::Result<Self> {
        let id = FileId::of(&file.metadata()?);
        Ok(Self::join(&mut table(), id, file))
    }

    fn join(table: &mut BTreeMap<FileId, Slot>, id: FileId, file: File) -> Self {
        let slot = table.entry(id).or_insert(Slot {
            users: 0,
            files: Vec::new(),
        });
        slot.users += 1;
        slot.files.push(file);
        Self { id }
    }

    /// Returns which file it is.
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Runs `read` on the open file.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        let table = table();
        let slot = table
            .get(&self.id)
            .expect("a pinned file is in the table until its last user is gone");
        read(&slot.files[0])
    }

    /// Fills the front of `buffer` from the file's first bytes and returns how many there were.
    pub(crate) fn read_start(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.with(|file| read_start(file, buffer))
    }

    /// Returns the file's size in bytes.
    pub(crate) fn size_bytes(&self) -> io::Result<u64> {
        self.with(|file| Ok(file.metadata()?.len()))
    }
}

/// Fills the front of `buffer` from the first bytes of `file` and returns how many there were.
pub(crate) fn read_start(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut table = table();
        if let Some(slot) = table.get_mut(&self.id) {
            slot.users -= 1;
            if slot.users == 0 {
                // Closed here, under the lock, see the module's invariant.
                table.remove(&self.id);
            }
        }
    }
}
