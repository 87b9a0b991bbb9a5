//! Opens a journal through SQLite, in the one way in which an acknowledged commit is durable.
//!
//! SQLite's defaults lose acknowledged commits at a power cut, and an error while it switches to
//! WAL mode is easily swallowed: the first row says `wal`, the failure comes at the statement's
//! end. So each setting that safety rests on is made in the right order, stepped to its end, and
//! then read back, the journal mode from the file's own header.
//!
//! Invariants: no byte is changed before the file is known to be a journal that this release can
//! write; `synchronous=EXTRA` holds before the switch to WAL; whoever writes makes the folder's
//! entry durable first ([`Watch::make_durable`]). Nothing is followed, interpreted as a URI, or
//! made: [`open`] never makes a journal.
//!
//! It must not know tables: the schema is the caller's.
//!
//! Source: SQLite "PRAGMA synchronous", "PRAGMA journal_mode", "Write-Ahead Logging",
//! "Defense Against The Dark Arts".

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::cannot_use::CannotUse;
use super::filesystem::Filesystem;
use super::header::{HEADER_BYTES, Header};
use super::pinned::{FileId, Pinned};
use super::place::{
    Companion, JournalPath, Present, State, Warning, inspect, require_known_version,
};
use super::whole_file::Folder;

/// The `application_id` of every journal: the letters `CPJL`.
pub const APPLICATION_ID: i32 = 0x4350_4A4C;

/// The newest `user_version` that this release reads and writes; the oldest is 1.
pub const SCHEMA_VERSION: i32 = 1;

/// How much of the journal SQLite may keep in memory, in KiB.
const CACHE_KIB: i64 = 1024;

/// How long a journal's first proxy may take from the journal's name to its mark's: some
/// milliseconds, more where others load the machine.
const MARK_WAIT: Duration = Duration::from_millis(200);

/// How much of one transaction SQLite keeps in memory before it goes to the log, in pages. What
/// goes there early is read back and written again: a result of 1 MB cost its size three times.
pub(crate) const SPILL_PAGES: i64 = 4096;

/// The value of `PRAGMA synchronous` that stands for `EXTRA`.
const SYNCHRONOUS_EXTRA: i64 = 3;

/// The value of `PRAGMA temp_store` that stands for `MEMORY`.
const TEMP_STORE_MEMORY: i64 = 2;

/// What a journal is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To look only. The journal's file is not changed; SQLite may make an empty `-wal` and a
    /// `-shm` beside it.
    ReadOnly,
    /// To look and to write.
    ReadWrite,
}

/// A journal that is open.
///
/// Keep it whole, or at least keep `watch` until after `connection` is closed: it holds a
/// descriptor of the file, and closing that early would take SQLite's locks away.
#[derive(Debug)]
pub struct OpenJournal {
    // The order matters: fields are dropped from first to last.
    /// SQLite's connection, with `busy_timeout` 0: the caller decides how long to wait.
    pub connection: Connection,
    /// Tells whether the files are still in their places.
    pub watch: Watch,
    /// Whether the journal has a write-ahead log.
    pub is_wal: bool,
    /// What the owner should know.
    pub warnings: Vec<Warning>,
}

/// Opens the journal that stands at `journal`.
///
/// On return with [`Access::ReadWrite`] a commit is durable once it is acknowledged, if the
/// journal's name is: call [`Watch::make_durable`] before the first one. On a file system that can't
/// carry a write-ahead log the journal is put into rollback mode, with a warning, for which nobody
/// else may have it open.
///
/// # Errors
///
/// Whatever [`inspect`] refuses, and [`CannotUse::Absent`]; [`CannotUse::NewerSchema`] and
/// [`CannotUse::Foreign`] also for what only the write-ahead log says;
/// [`CannotUse::NotWritable`]; [`CannotUse::Busy`] if another process is in the way just now (see
/// [`open_patiently`]); [`CannotUse::Unsafe`] if a setting does not take effect;
/// [`CannotUse::Moved`] if the file is replaced meanwhile; [`CannotUse::Sqlite`],
/// [`CannotUse::Io`].
pub fn open(
    journal: &JournalPath,
    access: Access,
    filesystem: &Filesystem,
) -> Result<OpenJournal, CannotUse> {
    let path = journal.as_path();
    let Present {
        is_wal, warnings, ..
    } = match inspect(journal)? {
        State::Present(present) => present,
        State::Absent => {
            return Err(CannotUse::Absent {
                path: path.to_owned(),
            });
        }
    };
    let mut warnings = warnings;
    let folder = journal.folder();
    let unsynced = (access == Access::ReadWrite)
        .then(|| Folder::open(folder).map_err(|error| CannotUse::io("sync", folder, error)))
        .transpose()?;

    // Declared before the connection, so that on every way out it is closed after it.
    let pinned;
    let connection = connect(path, access)?;
    // Only now, as on an overlay the file may become another when it is first opened to write.
    pinned = Pinned::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => CannotUse::Moved {
            path: path.to_owned(),
        },
        _ => CannotUse::io("read", path, error),
    })?;
    let settings = Settings {
        path,
        connection: &connection,
        pinned: &pinned,
    };

    settings.defend()?;
    let unsafe_log = is_wal && !filesystem.wal_safe && access == Access::ReadWrite;
    if unsafe_log {
        // Keeps the log's index in this process instead of in shared memory.
        settings.step("PRAGMA locking_mode=EXCLUSIVE")?;
    }
    settings.require_ours()?;
    settings.tune()?;
    if !filesystem.wal_safe {
        warnings.push(Warning::NoWriteAheadLog {
            path: path.to_owned(),
            filesystem: filesystem.name.clone().into_owned(),
        });
    }
    if access == Access::ReadWrite {
        settings.require_journal_mode(if filesystem.wal_safe { "wal" } else { "delete" })?;
        if unsafe_log {
            settings.step("PRAGMA locking_mode=NORMAL")?;
        }
        settings.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    }
    // A read, so that the log and its index are open, and an exclusive lock is let go.
    settings.number("PRAGMA user_version")?;
    let is_wal = settings.header()?.is_wal();
    let watch = Watch::begin(journal, pinned, unsynced, is_wal)?;
    Ok(OpenJournal {
        connection,
        watch,
        is_wal,
        warnings,
    })
}

/// Opens the journal like [`open`], and tries again while it is busy, for at most `patience`.
/// Whoever has made it a moment ago (`is_new`) is not told that it stands alone, nor is who comes
/// while somebody else makes it.
///
/// # Errors
///
/// Those of [`open`]; [`CannotUse::Busy`] once the time is over.
pub fn open_patiently(
    journal: &JournalPath,
    access: Access,
    filesystem: &Filesystem,
    patience: Duration,
    is_new: bool,
) -> Result<OpenJournal, CannotUse> {
    const PAUSE_MAX: Duration = Duration::from_millis(20);
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match open(journal, access, filesystem) {
            Err(reason) if reason.is_busy() && start.elapsed() + pause < patience => {
                // There is no event to wait for: SQLite's locks can only be tried.
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Ok(mut opened) => {
                let is_alone = |warning: &Warning| matches!(warning, Warning::Alone { .. });
                if opened.warnings.iter().any(is_alone) && (is_new || gets_its_mark(journal)) {
                    opened.warnings.retain(|warning| !is_alone(warning));
                }
                return Ok(opened);
            }
            Err(reason) => return Err(reason),
        }
    }
}

/// Whether a high-water mark comes within what it takes to make a journal and its mark.
fn gets_its_mark(journal: &JournalPath) -> bool {
    let mark = journal.companion(Companion::Mark);
    let start = Instant::now();
    while start.elapsed() < MARK_WAIT {
        if mark.symlink_metadata().is_ok() {
            return true;
        }
        // Its maker tells nobody, and this is asked for a lone file alone.
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Sets a pragma to a number, steps it to its end and reads it back.
///
/// For what is the caller's choice: `wal_autocheckpoint` (pages), `journal_size_limit` (bytes),
/// `secure_delete`, `foreign_keys`.
///
/// # Errors
///
/// [`CannotUse::Unsafe`] if another value is read back; [`CannotUse::Busy`],
/// [`CannotUse::Sqlite`].
pub fn set_pragma(
    connection: &Connection,
    journal: &JournalPath,
    name: &'static str,
    value: i64,
) -> Result<(), CannotUse> {
    set_number(connection, journal.as_path(), name, value)
}

fn connect(path: &Path, access: Access) -> Result<Connection, CannotUse> {
    let access_flag = match access {
        Access::ReadOnly => OpenFlags::SQLITE_OPEN_READ_ONLY,
        Access::ReadWrite => OpenFlags::SQLITE_OPEN_READ_WRITE,
    };
    // Neither CREATE nor URI: a path is a path, and a journal is never made by opening it.
    let flags = access_flag | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let sqlite = |error| CannotUse::sqlite("open", path, error);
    let connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    connection.busy_timeout(Duration::ZERO).map_err(sqlite)?;
    // SQLite falls back to reading where it may not write.
    if access == Access::ReadWrite && connection.is_readonly("main").map_err(sqlite)? {
        return Err(CannotUse::NotWritable {
            path: path.to_owned(),
            source: std::io::ErrorKind::PermissionDenied.into(),
        });
    }
    Ok(connection)
}

/// Makes and checks the settings of one new connection.
struct Settings<'a> {
    path: &'a Path,
    connection: &'a Connection,
    pinned: &'a Pinned,
}

impl Settings<'_> {
    /// Makes the settings that need no look at the file.
    fn defend(&self) -> Result<(), CannotUse> {
        // Until the journal is known to be ours, closing must not write its log back either.
        self.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        self.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        self.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        self.set_db_config(DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, false)?;
        // Without it a statement whose plan could be better for other values is prepared anew
        // each time that values are bound, which was half of our own work for a call.
        self.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        // A quoted name that is no column is an error, not a text.
        self.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
        self.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)
    }

    /// Checks through SQLite what [`inspect`] checked in the main file, as a migration may still
    /// be in the write-ahead log only.
    fn require_ours(&self) -> Result<(), CannotUse> {
        let application_id = self.number("PRAGMA application_id")?;
        if application_id != i64::from(APPLICATION_ID) {
            return Err(CannotUse::Foreign {
                path: self.path.to_owned(),
                application_id: i32::try_from(application_id)
                    .expect("an application id has 32 bits")
                    .cast_unsigned(),
            });
        }
        let version = self.number("PRAGMA user_version")?;
        let version = i32::try_from(version).expect("a user version has 32 bits");
        require_known_version(self.path, version)
    }

    /// Makes the settings that durability, memory and safety rest on.
    fn tune(&self) -> Result<(), CannotUse> {
        self.set_number("synchronous", SYNCHRONOUS_EXTRA)?;
        if cfg!(target_os = "macos") {
            // There an ordinary sync leaves the bytes in the drive's cache.
            self.set_number("fullfsync", 1)?;
            self.set_number("checkpoint_fullfsync", 1)?;
        }
        self.set_number("temp_store", TEMP_STORE_MEMORY)?;
        self.set_number("mmap_size", 0)?;
        self.set_number("cache_size", -CACHE_KIB)?;
        self.set_number("cache_spill", SPILL_PAGES)?;
        self.set_number("cell_size_check", 1)
    }

    /// Puts the journal into `mode` and proves it from the file's own header.
    ///
    /// The header is read through [`Pinned`], whose descriptor outlives the connection: opening
    /// and closing the file here would take away the locks that SQLite holds on it. What is read
    /// is what SQLite wrote: the switch is a transaction of rollback mode either way, so the two
    /// bytes are in the main file once the statement has ended.
    fn require_journal_mode(&self, mode: &'static str) -> Result<(), CannotUse> {
        self.step(&format!("PRAGMA journal_mode={mode}"))?;
        let wanted = if mode == "wal" { [2, 2] } else { [1, 1] };
        let found = self.header()?.versions;
        if found != wanted {
            return Err(self.unsafe_setting(
                "the header's journal mode",
                format!("{found:?}"),
                format!("{wanted:?}"),
            ));
        }
        let found = self.step("PRAGMA journal_mode")?.unwrap_or_default();
        if found != mode {
            return Err(self.unsafe_setting("the journal mode", found, mode.into()));
        }
        Ok(())
    }

    fn header(&self) -> Result<Header, CannotUse> {
        let mut bytes = [0; HEADER_BYTES];
        let count = self
            .pinned
            .read_start(&mut bytes)
            .map_err(|error| CannotUse::io("read", self.path, error))?;
        Header::parse(&bytes[..count]).map_err(|_| CannotUse::Moved {
            path: self.path.to_owned(),
        })
    }

    fn set_db_config(&self, config: DbConfig, value: bool) -> Result<(), CannotUse> {
        let found = self
            .connection
            .set_db_config(config, value)
            .map_err(|error| CannotUse::sqlite("open", self.path, error))?;
        if found != value {
            return Err(self.unsafe_setting(
                "a setting of the connection",
                format!("{config:?} {found}"),
                value.to_string(),
            ));
        }
        Ok(())
    }

    fn set_number(&self, name: &'static str, value: i64) -> Result<(), CannotUse> {
        set_number(self.connection, self.path, name, value)
    }

    fn number(&self, sql: &str) -> Result<i64, CannotUse> {
        number(self.connection, self.path, sql)
    }

    fn step(&self, sql: &str) -> Result<Option<String>, CannotUse> {
        step(self.connection, self.path, sql)
    }

    fn unsafe_setting(&self, what: &'static str, found: String, wanted: String) -> CannotUse {
        CannotUse::Unsafe {
            path: self.path.to_owned(),
            what,
            found,
            wanted,
        }
    }
}

fn set_number(
    connection: &Connection,
    path: &Path,
    name: &'static str,
    value: i64,
) -> Result<(), CannotUse> {
    step(connection, path, &format!("PRAGMA {name}={value}"))?;
    let found = number(connection, path, &format!("PRAGMA {name}"))?;
    if found != value {
        return Err(CannotUse::Unsafe {
            path: path.to_owned(),
            what: name,
            found: found.to_string(),
            wanted: value.to_string(),
        });
    }
    Ok(())
}

/// Returns the first value of a pragma as a number.
fn number(connection: &Connection, path: &Path, sql: &str) -> Result<i64, CannotUse> {
    let text = step(connection, path, sql)?.unwrap_or_default();
    text.parse().map_err(|_| CannotUse::Damaged {
        path: path.to_owned(),
        why: format!("{sql} gives {text:?}"),
    })
}

/// Steps a statement to its end, where the errors are that its first row does not show, and
/// returns the first value of its first row as a text.
fn step(connection: &Connection, path: &Path, sql: &str) -> Result<Option<String>, CannotUse> {
    let run = || -> rusqlite::Result<Option<String>> {
        use rusqlite::types::ValueRef;
        let mut statement = connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        let mut first = None;
        while let Some(row) = rows.next()? {
            if first.is_none() {
                first = Some(match row.get_ref(0)? {
                    ValueRef::Integer(number) => number.to_string(),
                    ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_) => String::new(),
                });
            }
        }
        Ok(first)
    };
    run().map_err(|error| CannotUse::sqlite("open", path, error))
}

/// Tells whether the files of an open journal are still the ones in their places.
///
/// SQLite goes on writing into a file that was deleted or moved away, and acknowledges commits
/// that nobody will ever read. The log and its index count too: they are neither removed nor made
/// anew by SQLite while a connection is open, so a change is somebody else's doing.
#[derive(Debug)]
pub struct Watch {
    files: Vec<(PathBuf, FileId)>,
    // Kept so that the inode can't be given to another file, and for the reason in `OpenJournal`.
    _pinned: Pinned,
    /// The journal's folder, until the journal's name in it is durable; `None` for readers.
    unsynced: Option<Folder>,
}

impl Watch {
    fn begin(
        journal: &JournalPath,
        pinned: Pinned,
        unsynced: Option<Folder>,
        is_wal: bool,
    ) -> Result<Self, CannotUse> {
        let mut files = vec![(journal.as_path().to_owned(), pinned.id())];
        if is_wal {
            for companion in [Companion::Wal, Companion::Shm] {
                let path = journal.companion(companion);
                // A reader where nothing may be made has neither.
                if let Some(id) =
                    FileId::at(&path).map_err(|error| CannotUse::io("look at", &path, error))?
                {
                    files.push((path, id));
                }
            }
        }
        let watch = Self {
            files,
            _pinned: pinned,
            unsynced,
        };
        watch.check()?;
        Ok(watch)
    }

    /// Makes the journal's name durable, the first time that it is called.
    ///
    /// Call it before the first commit: whoever made the journal may have been killed before it
    /// came to this. It is apart from [`open`], as a start does not need it and has to wait for
    /// the disk's own cache with it.
    ///
    /// # Errors
    ///
    /// [`CannotUse::Io`]; the next call tries again.
    pub fn make_durable(&mut self) -> Result<(), CannotUse> {
        if let Some(folder) = &self.unsynced {
            let path = self.files[0].0.parent().unwrap_or(Path::new("/"));
            folder
                .sync()
                .map_err(|error| CannotUse::io("sync", path, error))?;
            self.unsynced = None;
        }
        Ok(())
    }

    /// Notes that the journal's name is durable: the caller has just made it so.
    pub fn is_durable_already(&mut self) {
        self.unsynced = None;
    }

    /// Checks that each file is still there and the same; one `lstat` a file, about a microsecond.
    ///
    /// Call it before each reservation and each outcome, and stop for good if it fails. What
    /// happens between the check and the commit is not seen until the next one.
    ///
    /// # Errors
    ///
    /// [`CannotUse::Moved`] if one is gone or another stands in its place, [`CannotUse::Io`] if
    /// the system does not tell.
    pub fn check(&self) -> Result<(), CannotUse> {
        for (path, id) in &self.files {
            let found = FileId::at(path).map_err(|error| CannotUse::io("look at", path, error))?;
            if found != Some(*id) {
                return Err(CannotUse::Moved { path: path.clone() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
