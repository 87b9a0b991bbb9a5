//! Where a journal stands on disk, and whether what stands there may be opened.
//!
//! A journal that is taken for new although it is not makes finished effects run again. So
//! everything that can be told without SQLite is told here first, from plain bytes: what is no
//! journal, what is cut off or damaged, what another release wrote, and companions that lost
//! their journal.
//!
//! Invariants: [`inspect`] changes no byte, whatever it finds. [`create`] makes a journal that is
//! whole, durable and private from its first moment, and never overwrites one. A companion is
//! never the reason to make a journal anew.
//!
//! It must not open a database: that is `connection`'s, after this.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::AccessFlags;

use super::cannot_use::CannotUse;
use super::connection::{APPLICATION_ID, SCHEMA_VERSION};
use super::filesystem::Filesystem;
use super::header::{HEADER_BYTES, Header, NoHeader, WAL_HEADER_BYTES};
use super::pinned::Pinned;
use super::whole_file::{self, sync_folder};

mod path;
mod warning;

pub use path::{Companion, JournalPath};
pub use warning::Warning;

/// How often a look at a journal that changes meanwhile is repeated before it counts as busy.
const LOOKS_MAX: u32 = 100;

/// The mode of a folder that is made for a journal.
const FOLDER_MODE: u32 = 0o700;

/// What [`inspect`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// There is nothing, and nothing tells that there was.
    Absent,
    /// There is a journal that this release can open.
    Present(Present),
}

/// A journal as its plain bytes show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// The schema's version in the main file. A migration that is still in the write-ahead log is
    /// not seen here; [`super::connection::open`] looks again through SQLite.
    pub schema_version: i32,
    /// The size of a page in bytes.
    pub page_bytes: u32,
    /// The size of the main file in bytes.
    pub size_bytes: u64,
    /// Whether the file is in WAL mode.
    pub is_wal: bool,
    /// Whether the `-wal` holds frames, so that the newest pages may be there only.
    pub wal_has_frames: bool,
    /// Whether a rollback journal holds bytes: a transaction is running or was left.
    pub has_rollback_journal: bool,
    /// What the owner should know.
    pub warnings: Vec<Warning>,
}

/// Looks at what stands in a journal's place, by plain bytes and without changing one.
///
/// Of the size only as much is asked as must be true: where a `-wal` holds frames, or a rollback
/// journal holds bytes, the main file may rightly be shorter than its header says.
///
/// # Errors
///
/// Whatever can't be used: [`CannotUse::Empty`], [`CannotUse::Truncated`],
/// [`CannotUse::Damaged`], [`CannotUse::NotAJournal`], [`CannotUse::Foreign`],
/// [`CannotUse::NewerSchema`], [`CannotUse::OrphanCompanions`], [`CannotUse::Symlink`],
/// [`CannotUse::NotRegular`]; [`CannotUse::Busy`] if the files never stood still, and
/// [`CannotUse::Io`].
pub fn inspect(journal: &JournalPath) -> Result<State, CannotUse> {
    let path = journal.as_path();
    let Some(metadata) = lstat(path)? else {
        let which = orphans(journal)?;
        // Another process may have made the journal, and then its companions, meanwhile.
        return if which.is_empty() || lstat(path)?.is_none() {
            if which.is_empty() {
                Ok(State::Absent)
            } else {
                Err(CannotUse::OrphanCompanions {
                    path: path.to_owned(),
                    which,
                })
            }
        } else {
            inspect(journal)
        };
    };
    require_regular(path, &metadata)?;
    let mut warnings = warnings_of(path, &metadata);
    if metadata.nlink() > 1 {
        warnings.push(Warning::SecondName {
            path: path.to_owned(),
        });
    }
    for companion in Companion::ALL {
        let path = journal.companion(companion);
        if let Some(metadata) = lstat(&path)? {
            require_regular(&path, &metadata)?;
            warnings.extend(warnings_of(&path, &metadata));
        }
    }
    let pinned = match Pinned::open(path) {
        Ok(pinned) => pinned,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return inspect(journal),
        Err(error) => return Err(CannotUse::io("read", path, error)),
    };
    let (look, header) = look_twice(journal, &pinned)?;
    if header.is_wal() && is_alone(journal)? {
        warnings.push(Warning::Alone {
            path: path.to_owned(),
        });
    }
    Ok(State::Present(Present {
        schema_version: header.user_version,
        page_bytes: header.page_bytes,
        size_bytes: look.size_bytes,
        is_wal: header.is_wal(),
        wal_has_frames: look.wal_bytes > WAL_HEADER_BYTES,
        has_rollback_journal: look.rollback_bytes > 0,
        warnings,
    }))
}

/// Whether a journal has neither a log nor a high-water mark beside it. Who makes a journal makes
/// its mark right after it; an empty log is what somebody leaves who has only looked.
fn is_alone(journal: &JournalPath) -> Result<bool, CannotUse> {
    let log = lstat(&journal.companion(Companion::Wal))?;
    let has_log = log.is_some_and(|log| log.size() > 0);
    Ok(!has_log && lstat(&journal.companion(Companion::Mark))?.is_none())
}

/// One look at the bytes that tell whether a journal is whole.
#[derive(Clone, PartialEq, Eq)]
struct Look {
    start: [u8; HEADER_BYTES],
    start_bytes: usize,
    size_bytes: u64,
    wal_bytes: u64,
    rollback_bytes: u64,
}

/// Looks until the journal is whole, or until two looks in a row found the same fault.
///
/// A live writer changes header, size and log one after the other, so a single look may see a
/// fault that is none.
fn look_twice(journal: &JournalPath, pinned: &Pinned) -> Result<(Look, Header), CannotUse> {
    let mut before: Option<Look> = None;
    for _ in 0..LOOKS_MAX {
        let look = look(journal, pinned)?;
        match judge(journal.as_path(), &look) {
            Ok(header) => return Ok((look, header)),
            Err(reason) if before.as_ref() == Some(&look) => return Err(reason),
            Err(_) => before = Some(look),
        }
        std::thread::yield_now();
    }
    Err(CannotUse::Busy {
        path: journal.as_path().to_owned(),
    })
}

fn look(journal: &JournalPath, pinned: &Pinned) -> Result<Look, CannotUse> {
    let path = journal.as_path();
    let size_of = |companion| -> Result<u64, CannotUse> {
        Ok(lstat(&journal.companion(companion))?.map_or(0, |metadata| metadata.len()))
    };
    let mut start = [0; HEADER_BYTES];
    let start_bytes = pinned
        .read_start(&mut start)
        .map_err(|error| CannotUse::io("read", path, error))?;
    Ok(Look {
        start,
        start_bytes,
        size_bytes: pinned
            .size_bytes()
            .map_err(|error| CannotUse::io("read", path, error))?,
        wal_bytes: size_of(Companion::Wal)?,
        rollback_bytes: size_of(Companion::Rollback)?,
    })
}

/// Decides from one look; pure.
fn judge(path: &Path, look: &Look) -> Result<Header, CannotUse> {
    let path = path.to_owned();
    let header = match Header::parse(&look.start[..look.start_bytes]) {
        Ok(header) => header,
        Err(NoHeader::Empty) => return Err(CannotUse::Empty { path }),
        Err(NoHeader::Short) => {
            return Err(CannotUse::Truncated {
                path,
                size_bytes: look.size_bytes,
                expected_bytes: HEADER_BYTES as u64,
            });
        }
        Err(NoHeader::Foreign) => {
            return Err(CannotUse::NotAJournal {
                path,
                why: "it does not begin as an SQLite database does".into(),
            });
        }
        Err(NoHeader::Damaged(why)) => return Err(CannotUse::Damaged { path, why }),
    };
    let application_id = header.application_id;
    if application_id.cast_signed() != APPLICATION_ID {
        return Err(CannotUse::Foreign {
            path,
            application_id,
        });
    }
    require_known_version(&path, header.user_version)?;
    let may_be_short = look.wal_bytes > WAL_HEADER_BYTES || look.rollback_bytes > 0;
    let expected_bytes = header.size_min_bytes(look.size_bytes);
    if !may_be_short && look.size_bytes < expected_bytes {
        return Err(CannotUse::Truncated {
            path,
            size_bytes: look.size_bytes,
            expected_bytes,
        });
    }
    Ok(header)
}

/// Checks a schema version against those that this release can read, 1 to the newest.
pub(crate) fn require_known_version(path: &Path, found: i32) -> Result<(), CannotUse> {
    if found < 1 {
        return Err(CannotUse::Damaged {
            path: path.to_owned(),
            why: format!("its schema version is {found}"),
        });
    }
    if found > SCHEMA_VERSION {
        return Err(CannotUse::NewerSchema {
            path: path.to_owned(),
            found,
            supported: SCHEMA_VERSION,
        });
    }
    Ok(())
}

/// Makes the folder for a journal, with mode 0700 and durable, and checks that it can be written.
///
/// Call it before anything is started that relies on the journal. Folders that exist keep their
/// modes.
///
/// # Errors
///
/// [`CannotUse::NotWritable`] if the folder, or a journal or companion that exists, can't be
/// written by this process; [`CannotUse::NotRegular`] if a part of the path is a file;
/// [`CannotUse::Io`].
pub fn prepare_parent(journal: &JournalPath) -> Result<(), CannotUse> {
    make_folders(journal.folder())?;
    require_access(journal.folder(), AccessFlags::W_OK | AccessFlags::X_OK)?;
    let companions = Companion::ALL.map(|companion| journal.companion(companion));
    for path in std::iter::once(journal.as_path()).chain(companions.iter().map(PathBuf::as_path)) {
        if lstat(path)?.is_some_and(|metadata| metadata.is_file()) {
            match require_access(path, AccessFlags::R_OK | AccessFlags::W_OK) {
                // The last process that had the journal open took its log away just now.
                Err(CannotUse::NotWritable { source, .. })
                    if source.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
    }
    Ok(())
}

fn make_folders(folder: &Path) -> Result<(), CannotUse> {
    match std::fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => {
            return Err(CannotUse::NotRegular {
                path: folder.to_owned(),
                what: "a file where a folder is needed",
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(CannotUse::io("read", folder, error)),
    }
    let Some(parent) = folder.parent() else {
        return Ok(());
    };
    make_folders(parent)?;
    let refuse = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => CannotUse::NotWritable {
            path: parent.to_owned(),
            source: error,
        },
        _ => CannotUse::io("make the folder", folder, error),
    };
    match std::fs::DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        Ok(()) => {
            // The umask may have taken away what the owner needs.
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(FOLDER_MODE))
                .map_err(refuse)?;
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(refuse(error)),
    }
    sync_folder(parent).map_err(|error| CannotUse::io("sync", parent, error))
}

/// Says whether [`create`] made the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// This call did.
    Ours,
    /// Another process was first; its journal stands there, whole.
    Theirs,
}

/// Makes a journal from `image`, the bytes of a complete SQLite database.
///
/// The image must hold a committed database with our application id and schema version, as
/// `sqlite3_serialize` gives it. It gets its name only once it is synced, and never takes that of
/// another file; on return the name is durable, too. On a file system that can carry a
/// write-ahead log the file begins in WAL mode, so that no switch is needed that could fail
/// half-way.
///
/// Make the mark after this, never before: a journal without a mark is usable, a mark without a
/// journal is refused.
///
/// # Errors
///
/// [`CannotUse::NotWritable`] where the folder or its file system is read-only,
/// [`CannotUse::Damaged`] if `image` is no such image, [`CannotUse::Io`].
pub fn create(
    journal: &JournalPath,
    image: &[u8],
    filesystem: &Filesystem,
) -> Result<Created, CannotUse> {
    let path = journal.as_path();
    let look = Look {
        start: *image.first_chunk().unwrap_or(&[0; HEADER_BYTES]),
        start_bytes: image.len().min(HEADER_BYTES),
        size_bytes: image.len() as u64,
        wal_bytes: 0,
        rollback_bytes: 0,
    };
    judge(path, &look)?;
    let mut image = image.to_vec();
    let version = if filesystem.wal_safe { 2 } else { 1 };
    image[18..20].fill(version);
    match whole_file::make(path, &image) {
        Ok(true) => Ok(Created::Ours),
        Ok(false) => Ok(Created::Theirs),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(CannotUse::NotWritable {
                path: journal.folder().to_owned(),
                source: error,
            })
        }
        Err(error) => Err(CannotUse::io("make", path, error)),
    }
}

/// Returns what is at `path` itself; `None` if nothing is, or not even its folder.
pub(crate) fn lstat(path: &Path) -> Result<Option<std::fs::Metadata>, CannotUse> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CannotUse::io("look at", path, error)),
    }
}

fn orphans(journal: &JournalPath) -> Result<Vec<PathBuf>, CannotUse> {
    let mut which = Vec::new();
    for companion in Companion::ALL {
        let path = journal.companion(companion);
        if companion.tells_of_a_journal() && lstat(&path)?.is_some() {
            which.push(path);
        }
    }
    Ok(which)
}

fn require_regular(path: &Path, metadata: &std::fs::Metadata) -> Result<(), CannotUse> {
    let kind = metadata.file_type();
    let path = path.to_owned();
    if kind.is_file() {
        return Ok(());
    }
    if kind.is_symlink() {
        return Err(CannotUse::Symlink { path });
    }
    let what = if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(CannotUse::NotRegular { path, what })
}

fn warnings_of(path: &Path, metadata: &std::fs::Metadata) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        warnings.push(Warning::WideMode {
            path: path.to_owned(),
            mode,
        });
    }
    if metadata.uid() != nix::unistd::geteuid().as_raw() {
        warnings.push(Warning::OtherOwner {
            path: path.to_owned(),
            owner: metadata.uid(),
        });
    }
    warnings
}

fn require_access(path: &Path, access: AccessFlags) -> Result<(), CannotUse> {
    // With the effective ids, as these are what an open is checked by.
    nix::unistd::faccessat(
        nix::fcntl::AT_FDCWD,
        path,
        access,
        nix::fcntl::AtFlags::AT_EACCESS,
    )
    .map_err(|errno| CannotUse::NotWritable {
        path: path.to_owned(),
        source: errno.into(),
    })
}

#[cfg(test)]
mod tests;
