//! Why a journal can't be used, in words for the operator.
//!
//! Every reason says what is wrong, with which file, and what to do; nothing has been changed on
//! disk when one is returned. The command line maps each of them to exit code 5. Reasons are
//! told apart by their variant, never by their text.
//!
//! This module must not decide anything: it only names what the others found.

use std::io;
use std::path::{Path, PathBuf};

/// A reason for which a journal is refused or can't be used any further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CannotUse {
    /// What was given is not the path of a file.
    #[error("the journal can't be {given:?}: {why}; give the path of a file")]
    NotAPath {
        /// What was given.
        given: String,
        /// Why it is not taken.
        why: &'static str,
    },

    /// There is no journal, and what was asked needs one.
    #[error("there is no journal at {path}; check the path")]
    Absent {
        /// Where it was looked for.
        path: PathBuf,
    },

    /// The file is not an SQLite database.
    #[error(
        "{path} is not a checkpoint journal: {why}; it was left as it is, choose another path for the journal"
    )]
    NotAJournal {
        /// The file.
        path: PathBuf,
        /// What gives it away.
        why: String,
    },

    /// The file is an SQLite database of another program.
    #[error(
        "{path} is an SQLite database of another program (application id {application_id:#010x}); it was left as it is, choose another path for the journal"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The application id in its header.
        application_id: u32,
    },

    /// The journal was written by a newer release.
    #[error(
        "{path} has schema version {found}, this release knows versions up to {supported}; use the newer release of checkpoint that wrote it"
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: i32,
        /// The newest version that this release can read.
        supported: i32,
    },

    /// The file has no bytes.
    #[error(
        "{path} is empty: a journal never is, so its entries were lost or something else made the file; restore it from a backup, or remove it yourself if it never was a journal"
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },

    /// The file is shorter than it says.
    #[error(
        "{path} is cut off: it has {size_bytes} bytes where at least {expected_bytes} belong; restore it from a backup (going on would run finished calls again)"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// The size that its header states.
        expected_bytes: u64,
    },

    /// The file's content contradicts itself.
    #[error("{path} is damaged: {why}; restore it from a backup, `checkpoint verify` tells more")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not hold.
        why: String,
    },

    /// The journal knows less than it once did.
    #[error(
        "{path} went back in time: its newest fence is {highest}, but {mark} was once committed; its -wal was removed or it was restored from an older copy, so finished calls could run again; put the newest copy back, or accept the loss with `checkpoint doctor --accept-older-journal`"
    )]
    BackInTime {
        /// The journal.
        path: PathBuf,
        /// The high-water mark.
        mark: u64,
        /// The highest fence in the journal.
        highest: u64,
    },

    /// Companion files stand there without their journal.
    #[error(
        "{path} is missing, but {} still there: the journal was moved or deleted without its companions; put it back, or move them away to begin anew",
        name_all(which)
    )]
    OrphanCompanions {
        /// Where the journal should be.
        path: PathBuf,
        /// The companions that were found.
        which: Vec<PathBuf>,
    },

    /// The mark belongs to another journal.
    #[error(
        "{mark} belongs to another journal than {path}; put the right one back, or accept the journal as it is with `checkpoint doctor --accept-older-journal`"
    )]
    OtherMark {
        /// The journal.
        path: PathBuf,
        /// The mark's file.
        mark: PathBuf,
    },

    /// A symbolic link stands in the place of a journal's file.
    #[error(
        "{path} is a symbolic link; a journal is not opened through one, give the path of the file itself"
    )]
    Symlink {
        /// The link.
        path: PathBuf,
    },

    /// Something that is not a regular file stands in the place of a journal's file.
    #[error("{path} is {what}, not a regular file; choose another path for the journal")]
    NotRegular {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },

    /// The file or its folder can't be written.
    #[error(
        "{path} can't be written ({source}); change its permissions or choose another path for the journal"
    )]
    NotWritable {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },

    /// The key of a redacted journal is not there.
    #[error(
        "the key of the journal is missing: there is no {path}; put it back (it is never made anew, as no earlier call would match)"
    )]
    KeyMissing {
        /// Where the key should be.
        path: PathBuf,
    },

    /// The key file is not the one that the journal was written with.
    #[error(
        "{path} is not the key that the journal was written with: {why}; put the right one back"
    )]
    KeyMismatch {
        /// The key's file.
        path: PathBuf,
        /// What does not hold.
        why: &'static str,
    },

    /// A file was deleted, moved or replaced while it was in use.
    #[error(
        "{path} was deleted, moved or replaced while in use; nothing more is recorded, put it back and start again"
    )]
    Moved {
        /// The file.
        path: PathBuf,
    },

    /// Another process holds the journal at this moment; trying again may help.
    #[error("{path} is busy: another process holds it; try again")]
    Busy {
        /// The journal.
        path: PathBuf,
    },

    /// A setting on which safety rests did not take effect.
    #[error("{path} can't be opened safely: {what} is {found} instead of {wanted}")]
    Unsafe {
        /// The journal.
        path: PathBuf,
        /// The setting.
        what: &'static str,
        /// Its value.
        found: String,
        /// The value that is needed.
        wanted: String,
    },

    /// The system refused.
    #[error("can't {doing} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },

    /// SQLite refused.
    #[error("can't {doing} {path}: {source}")]
    Sqlite {
        /// What was tried, as a verb.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
}

impl CannotUse {
    /// Returns the reason for an error of the system, by its kind.
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        if source.raw_os_error() == Some(nix::libc::ELOOP) {
            // All files are opened without following links, so this is the link itself.
            return Self::Symlink { path };
        }
        match source.kind() {
            io::ErrorKind::ReadOnlyFilesystem => Self::NotWritable { path, source },
            _ => Self::Io {
                doing,
                path,
                source,
            },
        }
    }

    /// Returns the reason for an error that SQLite gave while `doing` something with `path`.
    ///
    /// Busy and locked are [`CannotUse::Busy`], corrupt is [`CannotUse::Damaged`], not a database
    /// is [`CannotUse::NotAJournal`], read-only is [`CannotUse::NotWritable`].
    pub fn sqlite(doing: &'static str, path: &Path, source: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode;
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed,
            ) => Self::Busy { path },
            Some(ErrorCode::DatabaseCorrupt) => Self::Damaged {
                path,
                why: source.to_string(),
            },
            Some(ErrorCode::NotADatabase) => Self::NotAJournal {
                path,
                why: source.to_string(),
            },
            Some(ErrorCode::ReadOnly) => Self::NotWritable {
                path,
                source: io::Error::other(source),
            },
            _ => Self::Sqlite {
                doing,
                path,
                source,
            },
        }
    }

    /// Returns whether trying again a little later may succeed.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }
}

fn name_all(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}
