//! The path of a journal and the names of what stands beside it.
//!
//! Invariant: a [`JournalPath`] is absolute and no folder in it is a link, as SQLite refuses to
//! open a path with a link in any part of it; so what is checked is what is opened. It is never
//! made from anything but what the operator gave, and says nothing about what stands there.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::journal::cannot_use::CannotUse;
use crate::journal::whole_file::{folder_of, with_suffix};

/// A file that belongs to a journal and stands beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Companion {
    /// `-wal`: SQLite's write-ahead log. Without it the newest entries are lost.
    Wal,
    /// `-shm`: SQLite's index of that log. Made anew when missing.
    Shm,
    /// `-journal`: SQLite's rollback journal. Without it a half-written journal stays so.
    Rollback,
    /// `-mark`: the high-water mark, see [`crate::journal::mark`].
    Mark,
    /// `-key`: the key of a redacted journal, see [`crate::journal::key`].
    Key,
    /// `-locks`: who is alive, see [`crate::journal::locks`]. Made anew when missing.
    Locks,
}

impl Companion {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Wal,
        Self::Shm,
        Self::Rollback,
        Self::Mark,
        Self::Key,
        Self::Locks,
    ];

    /// Returns what is added to the journal's name.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Wal => "-wal",
            Self::Shm => "-shm",
            Self::Rollback => "-journal",
            Self::Mark => "-mark",
            Self::Key => "-key",
            Self::Locks => "-locks",
        }
    }

    /// Returns whether one that stands alone tells of a journal that was there.
    pub(super) fn tells_of_a_journal(self) -> bool {
        match self {
            Self::Wal | Self::Rollback | Self::Mark | Self::Key => true,
            Self::Shm | Self::Locks => false,
        }
    }
}

/// The path of a journal: absolute, without `.` and `..`, its folder's links resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JournalPath {
    path: PathBuf,
}

impl JournalPath {
    /// Takes a path as it was given on the command line.
    ///
    /// A relative path is taken from the current folder. Links in the folder's path are resolved
    /// as far as it exists, a link in the place of the journal itself is not: [`super::inspect`] refuses
    /// it.
    ///
    /// # Errors
    ///
    /// [`CannotUse::NotAPath`] for the empty string, `:memory:`, `file:` and other URIs, a path
    /// that ends in no name, and one with a NUL; [`CannotUse::Io`] where the current folder or a
    /// part of the path can't be read.
    pub fn new(given: impl AsRef<OsStr>) -> Result<Self, CannotUse> {
        let given = given.as_ref();
        let refuse = |why| {
            Err(CannotUse::NotAPath {
                given: given.to_string_lossy().into_owned(),
                why,
            })
        };
        let bytes = given.as_bytes();
        if bytes.is_empty() {
            return refuse("it is empty");
        }
        if bytes.contains(&0) {
            return refuse("it contains a NUL");
        }
        if bytes.eq_ignore_ascii_case(b":memory:") {
            return refuse("a database in memory remembers nothing");
        }
        if is_uri(bytes) {
            return refuse("it is a URI");
        }
        let last = bytes.rsplit(|byte| *byte == b'/').next().unwrap_or(bytes);
        if matches!(last, b"" | b"." | b"..") {
            return refuse("it names a folder");
        }
        let absolute = std::path::absolute(given)
            .map_err(|error| CannotUse::io("find", Path::new(given), error))?;
        let Some(Component::Normal(name)) = absolute.components().next_back() else {
            return refuse("it names a folder");
        };
        let folder = resolve(folder_of(&absolute))?;
        Ok(Self {
            path: folder.join(name),
        })
    }

    /// Returns the journal's own path.
    pub fn as_path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a companion.
    pub fn companion(&self, companion: Companion) -> PathBuf {
        with_suffix(&self.path, companion.suffix())
    }

    /// Returns the folder that the journal stands in.
    pub fn folder(&self) -> &Path {
        folder_of(&self.path)
    }
}

impl fmt::Display for JournalPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(formatter)
    }
}

/// Returns whether `given` begins as a URI does: `file:`, or a scheme and `://`.
fn is_uri(given: &[u8]) -> bool {
    let Some(colon) = given.iter().position(|byte| *byte == b':') else {
        return false;
    };
    let (scheme, rest) = given.split_at(colon);
    let is_scheme = scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
    scheme.eq_ignore_ascii_case(b"file") || (is_scheme && rest.starts_with(b"://"))
}

/// Resolves the links of `folder` as far as it exists, and `.` and `..` in the rest by name.
fn resolve(folder: &Path) -> Result<PathBuf, CannotUse> {
    let mut resolved = PathBuf::from("/");
    for component in folder.components() {
        match component {
            Component::ParentDir => {
                resolved.pop();
            }
            Component::Normal(name) => {
                let next = resolved.join(name);
                resolved = match std::fs::canonicalize(&next) {
                    Ok(real) => real,
                    // Not there yet: it will be made as a plain folder.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => next,
                    Err(error) => return Err(CannotUse::io("find", &next, error)),
                };
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(resolved)
}
