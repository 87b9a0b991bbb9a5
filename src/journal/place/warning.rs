//! What an operator should know about a journal that can be used all the same.
//!
//! It must not hold a reason to refuse: those are [`crate::journal::cannot_use::CannotUse`].

use std::fmt;
use std::path::PathBuf;

/// Something about a journal that its owner should know and that does not keep it from use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// Others than the owner may read or write a file of the journal.
    WideMode {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file of the journal belongs to someone else.
    OtherOwner {
        /// The file.
        path: PathBuf,
        /// The user id of its owner.
        owner: u32,
    },
    /// The journal has a second name, whose companions would be others.
    SecondName {
        /// The journal.
        path: PathBuf,
    },
    /// The file system can't carry a write-ahead log; a rollback journal is used.
    NoWriteAheadLog {
        /// The journal.
        path: PathBuf,
        /// The file system's name.
        filesystem: String,
    },
    /// Neither log nor high-water mark is there: it may be a copy of the file alone.
    Alone {
        /// The journal.
        path: PathBuf,
    },
    /// The high-water mark was missing or torn and begins anew.
    MarkRebuilt {
        /// The mark's file.
        path: PathBuf,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WideMode { path, mode } => write!(
                formatter,
                "{} can be read or written by others (mode {mode:04o}); `chmod 600` it",
                path.display()
            ),
            Self::OtherOwner { path, owner } => write!(
                formatter,
                "{} belongs to user {owner}, who can change it",
                path.display()
            ),
            Self::SecondName { path } => write!(
                formatter,
                "{} has a second name (a hard link); never use the journal by both",
                path.display()
            ),
            Self::NoWriteAheadLog { path, filesystem } => write!(
                formatter,
                "{} is on {filesystem}, where a write-ahead log is not safe; a slower rollback journal is used",
                path.display()
            ),
            Self::Alone { path } => write!(
                formatter,
                "{} has neither its log (-wal) nor its high-water mark (-mark) beside it; a copy of this file alone, taken while it was in use, lacks the newest entries, and what they hold would run again",
                path.display()
            ),
            Self::MarkRebuilt { path } => write!(
                formatter,
                "{} was missing or torn and begins anew; that the journal is its newest copy was not checked this time",
                path.display()
            ),
        }
    }
}
