//! Makes a file appear whole or not at all, and never over another one.
//!
//! A journal, its key and its mark must not be seen half written, by another process or after a
//! crash. So the bytes go to a file without a name (or under another name, where the file system
//! knows no nameless ones), are synced, and only then get the name, by an operation that fails
//! if the name is taken. The folder is synced last.
//!
//! Invariants: mode 0600 whatever the umask; a name, once there, is never overwritten; on return
//! both bytes and name are durable. A kill leaves no litter where nameless files exist, else at
//! most one file `<name>-new-<random>`, which nobody reads.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::AT_FDCWD;
use nix::libc;
use nix::unistd::linkat;

use super::pinned::Pinned;

/// The mode of every file that belongs to a journal.
pub(crate) const FILE_MODE: u32 = 0o600;

/// Makes the file `path` with `bytes` and returns whether it was made: `false` means that the
/// name was taken already, by a file that was left as it is.
///
/// In both cases the folder's entry is durable on return.
pub(crate) fn make(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let folder = folder_of(path);
    let made = match nameless(folder, bytes) {
        Ok(file) => {
            // The file will be the journal, so it may only be closed by the rule of `pinned`.
            let pinned = Pinned::adopt(file)?;
            let from = pinned.with(|file| Ok(format!("/proc/self/fd/{}", file.as_raw_fd())))?;
            match linkat(
                AT_FDCWD,
                from.as_str(),
                AT_FDCWD,
                path,
                nix::fcntl::AtFlags::AT_SYMLINK_FOLLOW,
            ) {
                Ok(()) => Some(true),
                Err(nix::errno::Errno::EEXIST) => Some(false),
                // No /proc, or no links here: the way with a name will tell what is wrong.
                Err(_) => None,
            }
        }
        Err(_) => None,
    };
    let made = match made {
        Some(made) => made,
        None => make_by_name(path, bytes)?,
    };
    // Also where another process made it: that process may have been killed before it came to
    // this, and what is committed to the file from now on rests on its name.
    sync_folder(folder)?;
    Ok(made)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn nameless(folder: &Path, bytes: &[u8]) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(FILE_MODE)
        .custom_flags(libc::O_TMPFILE)
        .open(folder)?;
    fill(&file, bytes)?;
    Ok(file)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn nameless(_folder: &Path, _bytes: &[u8]) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

fn fill(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    file.set_permissions(std::fs::Permissions::from_mode(FILE_MODE))?;
    file.write_all(bytes)?;
    file.sync_all()
}

pub(crate) fn make_by_name(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let mut random = [0_u8; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let other = with_suffix(path, &format!("-new-{:016x}", u64::from_le_bytes(random)));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&other)?;
    let result = (|| {
        fill(&file, bytes)?;
        let pinned = Pinned::adopt(file)?;
        let made = move_without_overwriting(&other, path);
        drop(pinned);
        made
    })();
    if !matches!(result, Ok(true)) {
        // The other name is ours alone; if it can't be removed it is litter and no danger.
        let _ = std::fs::remove_file(&other);
    }
    result
}

fn move_without_overwriting(from: &Path, to: &Path) -> io::Result<bool> {
    #[cfg(all(target_os = "linux", any(target_env = "gnu", target_env = "musl")))]
    match rename_no_replace(from, to) {
        Ok(()) => return Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        // Not known to this kernel or file system; a link does the same in two steps.
        Err(_) => {}
    }
    match std::fs::hard_link(from, to) {
        Ok(()) => {
            std::fs::remove_file(from)?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn rename_no_replace(from: &Path, to: &Path) -> io::Result<()> {
    use nix::fcntl::{RenameFlags, renameat2};
    renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE)?;
    Ok(())
}

#[cfg(all(target_os = "linux", target_env = "musl"))]
fn rename_no_replace(_from: &Path, _to: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Opens the companion `path` for reading and writing, makes it if need be, and never follows a
/// link or waits at a FIFO.
pub(crate) fn open_or_make_empty(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .mode(FILE_MODE)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = loop {
        match options.clone().create_new(true).open(path) {
            Ok(file) => {
                file.set_permissions(std::fs::Permissions::from_mode(FILE_MODE))?;
                break file;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        match options.open(path) {
            Ok(file) => break file,
            // Removed since; make it again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    };
    regular(file)
}

/// Opens the companion `path` as it is; `None` if there is none.
pub(crate) fn open_existing(path: &Path, write: bool) -> io::Result<Option<File>> {
    let opened = OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    match opened {
        Ok(file) => regular(file).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ))
    }
}

/// Makes the entries of `folder` durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    Folder::open(folder)?.sync()
}

/// A folder whose entries are to be made durable later.
#[derive(Debug)]
pub(crate) struct Folder(File);

impl Folder {
    /// Opens the folder, so that one that can't be synced is known at once.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        File::open(folder).map(Self)
    }

    /// Makes the entries durable that the folder has now.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self.0.sync_all() {
            // Some network file systems can't sync a folder; they write entries through.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINVAL | libc::ENOTSUP | libc::EBADF)
                ) =>
            {
                Ok(())
            }
            result => result,
        }
    }
}

/// Returns the folder that holds `path`.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent()
        .expect("an absolute path of a file has a parent")
}

/// Returns `path` with `suffix` after its last character.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
