//! The proxy's journal: found or made, checked, opened, with all that the guard needs around it.
//!
//! What is refused here is refused before the upstream runs. Nothing is recorded and no lock is
//! taken: that comes with the first `tools/call`.
//!
//! Must not: decide about a call.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::group::{boot_id, group_alive_at};
use super::guardian::Guardian;
use crate::guard::{Guard, Options, Surroundings};
use crate::journal::cannot_use::CannotUse;
use crate::journal::connection::{self, Access, Watch};
use crate::journal::filesystem::{self, Filesystem};
use crate::journal::key::Key;
use crate::journal::locks::{LockQuery, SESSION_LOCKS_END, SessionLock};
use crate::journal::mark::{self, Mark};
use crate::journal::place::{self, JournalPath, State, Warning};
use crate::journal::sqlite::SqliteJournal;
use crate::journal::{Durability, Journal as _, JournalError, Session, Transaction as _, schema};
use crate::rules::ids::{Fence, Micros, SessionId, WorkflowId};
use crate::rules::signature::SignatureKey;

/// How long a start waits for a journal that others use.
const PATIENCE: Duration = Duration::from_secs(5);

/// Free space that a reservation needs, in bytes, so that a full disk is met before the call and
/// not at its outcome (contract, section 8).
const ROOM_BYTES: u64 = 64 << 20;

/// Free space with which the next look is put off, in bytes, and for how long: far more than a
/// disk takes in that time.
const PLENTY_BYTES: u64 = 4 << 30;
const PLENTY_LASTS: Duration = Duration::from_millis(100);

/// Pages in the write-ahead log at which a commit moves them into the journal: fewer than the
/// log is made long for (`desk`), and rarer than one call in a hundred at 10 KB.
const CHECKPOINT_PAGES: i64 = 4000;

/// The guard over a journal in a file.
pub type FileGuard = Guard<SqliteJournal, Around>;

/// What an opened journal comes with.
pub struct Books {
    /// The guard.
    pub guard: FileGuard,
    /// What the owner should know.
    pub warnings: Vec<Warning>,
}

/// Returns the journal's clock: microseconds since the epoch.
#[must_use]
pub fn now() -> Micros {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Checks, before the upstream is started, that a journal that is not there can be made.
///
/// # Errors
///
/// As it says; no file was made.
pub fn prepare(path: &JournalPath) -> Result<(), CannotUse> {
    place::prepare_parent(path)
}

/// Makes the journal if there is none, and opens it like [`open_present`].
///
/// # Errors
///
/// Whatever could make a finished effect run again is refused.
pub fn open(
    path: &JournalPath,
    options: Options,
    guardian: Arc<Mutex<Guardian>>,
    session: Session,
) -> Result<Books, CannotUse> {
    let filesystem = filesystem::kind(path.folder())?;
    let is_made = place::inspect(path)? == State::Absent;
    if is_made {
        let own = WorkflowId(path.as_path().to_string_lossy().into_owned());
        let image = schema::empty_image(random(), &own, now())
            .map_err(|source| CannotUse::sqlite("make", path.as_path(), source))?;
        place::create(path, &image, &filesystem)?;
    }
    keep(path, &filesystem, is_made, options, guardian, session)
}

/// Opens a journal that is there, and compares what is cheap to compare.
///
/// # Errors
///
/// As [`open`], and [`CannotUse::Absent`].
pub fn open_present(
    path: &JournalPath,
    options: Options,
    guardian: Arc<Mutex<Guardian>>,
    session: Session,
) -> Result<Books, CannotUse> {
    let filesystem = filesystem::kind(path.folder())?;
    keep(path, &filesystem, false, options, guardian, session)
}

fn keep(
    path: &JournalPath,
    filesystem: &Filesystem,
    is_durable: bool,
    options: Options,
    guardian: Arc<Mutex<Guardian>>,
    session: Session,
) -> Result<Books, CannotUse> {
    let (mut journal, mut warnings) = connect(path, filesystem, is_durable)?;
    let mark = compared_mark(path, &mut journal, &mut warnings)?;
    let key = signature_key(path, &mut journal, options.redacts)?;
    // What makes a commit without a log durable is more than a sync of its file.
    let defers = options.defers && filesystem.wal_safe;
    if options.defers && !defers {
        tracing::warn!("--durability deferred has no effect on {}", filesystem.name);
    }
    let around = Around {
        path: path.clone(),
        mark,
        query: LockQuery::new(path),
        lock: None,
        guardian,
        boot_id: boot_id().unwrap_or_default(),
        has_warned: false,
        roomy_until: None,
    };
    let options = Options {
        key,
        defers,
        ..options
    };
    Ok(Books {
        guard: Guard::new(journal, around, options, session),
        warnings,
    })
}

/// Opens the journal's high-water mark and refuses a journal that is older than it.
fn compared_mark(
    path: &JournalPath,
    journal: &mut SqliteJournal,
    warnings: &mut Vec<Warning>,
) -> Result<Mark, CannotUse> {
    let uid = journal.identity().uid;
    // The mark is read before the snapshot whose highest fence it is compared with.
    let (mark, read) = Mark::open(path, &uid)?;
    let highest = highest_fence(path, journal)?;
    mark::check(path, &read, highest)?;
    if read.rebuilt {
        mark.raise(0, highest)?;
        // That it stands alone says so already.
        let is_alone = |warning: &Warning| matches!(warning, Warning::Alone { .. });
        if !warnings.iter().any(is_alone) {
            warnings.extend(read.warning(path, highest));
        }
    }
    Ok(mark)
}

/// A journal opened for an operator's verdicts.
pub struct Desk {
    /// The journal.
    pub journal: SqliteJournal,
    /// Its high-water mark, to be raised after a fence was committed.
    pub mark: Mark,
    /// Who is live.
    pub locks: LockQuery,
    /// What the owner should know.
    pub warnings: Vec<Warning>,
}

/// Opens a journal that is there, to be written to without being a session.
///
/// # Errors
///
/// As [`open`], and [`CannotUse::Absent`]: a verdict never makes a journal.
pub fn open_for_verdicts(path: &JournalPath) -> Result<Desk, CannotUse> {
    let filesystem = filesystem::kind(path.folder())?;
    if place::inspect(path)? == State::Absent {
        return Err(CannotUse::Absent {
            path: path.as_path().to_owned(),
        });
    }
    let (mut journal, mut warnings) = open_sqlite(path, &filesystem)?;
    let mark = compared_mark(path, &mut journal, &mut warnings)?;
    Ok(Desk {
        journal,
        mark,
        locks: LockQuery::new(path),
        warnings,
    })
}

/// Opens a journal that is there to ask what would happen to a call. Nothing is written through
/// [`Guard::foresee`].
///
/// # Errors
///
/// As [`open_for_verdicts`]; also without the key of a redacted journal, as then no call could be
/// compared.
pub fn open_to_foresee(
    path: &JournalPath,
    options: Options,
) -> Result<Guard<SqliteJournal, Onlooker>, CannotUse> {
    let Desk {
        mut journal, locks, ..
    } = open_for_verdicts(path)?;
    let key = signature_key(path, &mut journal, false)?;
    let options = Options { key, ..options };
    Ok(Guard::new(
        journal,
        Onlooker(locks),
        options,
        Session::default(),
    ))
}

/// The world around a journal for somebody who only asks: takes no lock and notes nothing.
pub struct Onlooker(LockQuery);

impl Surroundings for Onlooker {
    fn take_session(&mut self, _id: SessionId) -> std::io::Result<bool> {
        // The session is part of a transaction that is dropped.
        Ok(true)
    }

    fn is_live(&mut self, id: SessionId) -> std::io::Result<bool> {
        self.0.is_live(id.0)
    }

    fn is_attended(&mut self, id: SessionId) -> std::io::Result<bool> {
        self.0.is_live(attended(id))
    }

    fn has_room(&mut self) -> bool {
        true
    }

    fn raise_mark(&mut self, _fence: Fence) {}

    fn random(&mut self) -> [u8; 16] {
        [0; 16]
    }

    fn is_upstream_alive(&mut self, session: &Session, is_live: bool) -> Option<bool> {
        upstream_alive(session, is_live)
    }

    fn uptime(&mut self) -> (String, u64) {
        (boot_id().unwrap_or_default(), uptime_ms())
    }
}

/// Returns whether the recorded upstream still lives; `None` if that can't be told from here.
#[must_use]
pub fn upstream_alive(session: &Session, is_live: bool) -> Option<bool> {
    let pgid = i32::try_from(session.upstream_pgid?).ok()?;
    match boot_id() {
        // A reboot ends every process, if it was this machine's.
        Some(boot_id) if boot_id == session.boot_id => Some(group_alive_at(
            pgid,
            session.upstream_started_at.unwrap_or(0),
        )),
        Some(_) | None if is_live => None,
        Some(_) if hostname().is_some_and(|host| host == session.host) => Some(false),
        Some(_) | None => None,
    }
}

fn hostname() -> Option<String> {
    nix::unistd::gethostname().ok()?.into_string().ok()
}

/// Returns the milliseconds since the machine's boot.
fn uptime_ms() -> u64 {
    // The clock that goes on while the machine sleeps: a lease must not outlive a suspension.
    #[cfg(target_os = "linux")]
    let clock = nix::time::ClockId::CLOCK_BOOTTIME;
    #[cfg(not(target_os = "linux"))]
    let clock = nix::time::ClockId::CLOCK_MONOTONIC;
    clock.now().map_or(0, |now| {
        let since = Duration::from(now).as_millis();
        since.try_into().unwrap_or(u64::MAX)
    })
}

/// Opens the journal at `path` for writing, checked and watched: all that stands between a file and
/// the guard. On return its name is durable.
///
/// # Errors
///
/// The file is no journal of this schema, is damaged, or can't be used as it must be.
pub fn open_sqlite(
    path: &JournalPath,
    filesystem: &Filesystem,
) -> Result<(SqliteJournal, Vec<Warning>), CannotUse> {
    let (mut journal, warnings) = connect(path, filesystem, false)?;
    journal
        .check_place()
        .map_err(|error| damaged(path, &error))?;
    Ok((journal, warnings))
}

/// Like [`open_sqlite`], but the name is durable only if the caller has made it so (`is_durable`);
/// if not, that comes before the first transaction.
fn connect(
    path: &JournalPath,
    filesystem: &Filesystem,
    is_durable: bool,
) -> Result<(SqliteJournal, Vec<Warning>), CannotUse> {
    let access = Access::ReadWrite;
    let mut opened = connection::open_patiently(path, access, filesystem, PATIENCE, is_durable)?;
    if is_durable {
        opened.watch.is_durable_already();
    }
    let shape = schema::shape(&opened.connection)
        .map_err(|source| CannotUse::sqlite("read", path.as_path(), source))?;
    if shape != schema::expected_shape() {
        return Err(CannotUse::Damaged {
            path: path.as_path().to_owned(),
            why: "its tables are not those of this schema version".into(),
        });
    }
    let warnings = opened.warnings.clone();
    // A watch is never dropped while the process uses the journal: closing its descriptor would
    // take SQLite's locks away.
    let watches: Arc<Mutex<Vec<Watch>>> = Arc::default();
    let first = Arc::new(Mutex::new(Some(opened)));
    let connect = {
        let watches = Arc::clone(&watches);
        let path = path.clone();
        let filesystem = filesystem.clone();
        move || {
            let ready = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            let opened = match ready {
                Some(opened) => opened,
                None => connection::open(&path, Access::ReadWrite, &filesystem)
                    .map_err(|error| unusable(&error))?,
            };
            connection::set_pragma(
                &opened.connection,
                &path,
                "wal_autocheckpoint",
                CHECKPOINT_PAGES,
            )
            .map_err(|error| unusable(&error))?;
            watches
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(opened.watch);
            Ok(opened.connection)
        }
    };
    let still_there = move || {
        let mut watches = watches.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(watch) = watches.last_mut() else {
            return Ok(());
        };
        let checked = watch.make_durable().and_then(|()| watch.check());
        checked.map_err(|error| unusable(&error))
    };
    let journal = SqliteJournal::open(Box::new(connect), Box::new(still_there))
        .map_err(|error| damaged(path, &error))?;
    Ok((journal, warnings))
}

/// Returns what it means for a call that a journal can't be used.
#[must_use]
pub fn unusable(error: &CannotUse) -> JournalError {
    if error.is_busy() {
        JournalError::Busy
    } else if let CannotUse::Moved { path } | CannotUse::Absent { path } = error {
        JournalError::Moved(path.display().to_string())
    } else {
        JournalError::ReadOnly(error.to_string())
    }
}

fn damaged(path: &JournalPath, error: &JournalError) -> CannotUse {
    CannotUse::Damaged {
        path: path.as_path().to_owned(),
        why: error.to_string(),
    }
}

fn highest_fence(path: &JournalPath, journal: &mut SqliteJournal) -> Result<u64, CannotUse> {
    journal
        .connection()
        .query_row("SELECT coalesce(max(fence), 0) FROM attempts", (), |row| {
            row.get::<_, i64>(0)
        })
        .map(|fence| u64::try_from(fence).unwrap_or(0))
        .map_err(|source| CannotUse::sqlite("read", path.as_path(), source))
}

/// Loads the key whose fingerprint the journal holds; makes one where redaction is first wanted.
fn signature_key(
    path: &JournalPath,
    journal: &mut SqliteJournal,
    redacts: bool,
) -> Result<Option<SignatureKey>, CannotUse> {
    let key = match (journal.identity().key_fingerprint, redacts) {
        (Some(fingerprint), _) => Key::load(path, &fingerprint)?,
        (None, false) => return Ok(None),
        (None, true) => {
            let key = Key::make_or_adopt(path)?;
            let record = |journal: &mut SqliteJournal| {
                let mut tx = journal.begin(Durability::Power)?;
                tx.set_key_fingerprint(key.fingerprint())?;
                tx.commit()
            };
            let start = Instant::now();
            loop {
                match record(journal) {
                    Ok(()) => break,
                    // Nothing tells when the other process is done.
                    Err(JournalError::Busy) if start.elapsed() < PATIENCE => {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Err(error) => return Err(damaged(path, &error)),
                }
            }
            key
        }
    };
    Ok(Some(SignatureKey(*key.as_bytes())))
}

/// Returns 128 random bits; the system's source does not fail on what we run on.
#[must_use]
pub fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has random bytes");
    bytes
}

/// Returns the number under which a proxy holds the lock that is its own alone.
fn attended(id: SessionId) -> u64 {
    id.0 | SESSION_LOCKS_END
}

/// The world around a journal in a file.
pub struct Around {
    path: JournalPath,
    mark: Mark,
    query: LockQuery,
    /// The session's lock, which the guardian shares, and the proxy's own, which it does not.
    lock: Option<(SessionId, SessionLock, SessionLock)>,
    guardian: Arc<Mutex<Guardian>>,
    boot_id: String,
    has_warned: bool,
    /// Until when there is room for certain.
    roomy_until: Option<Instant>,
}

impl Surroundings for Around {
    fn take_session(&mut self, id: SessionId) -> std::io::Result<bool> {
        if self.lock.as_ref().is_some_and(|(held, ..)| *held == id) {
            return Ok(true);
        }
        let Some(lock) = SessionLock::acquire(&self.path, id.0).map_err(std::io::Error::other)?
        else {
            return Ok(false);
        };
        let Some(own) =
            SessionLock::acquire(&self.path, attended(id)).map_err(std::io::Error::other)?
        else {
            return Ok(false);
        };
        let mut guardian = self.guardian.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a guardian the lock ends with this process, and the upstream may outlive it.
        if let Err(error) = guardian.hold(lock.as_fd())
            && !self.has_warned
        {
            self.has_warned = true;
            tracing::warn!("the guardian can't share the session's lock: {error}");
        }
        self.lock = Some((id, lock, own));
        Ok(true)
    }

    fn is_live(&mut self, id: SessionId) -> std::io::Result<bool> {
        self.query.is_live(id.0)
    }

    fn is_attended(&mut self, id: SessionId) -> std::io::Result<bool> {
        self.query.is_live(attended(id))
    }

    fn has_room(&mut self) -> bool {
        if self.roomy_until.is_some_and(|until| Instant::now() < until) {
            return true;
        }
        // Best effort: what can't be told does not refuse a call.
        let Ok(free) = filesystem::free_bytes(self.path.folder()) else {
            return true;
        };
        self.roomy_until = (free >= PLENTY_BYTES).then(|| Instant::now() + PLENTY_LASTS);
        free >= ROOM_BYTES
    }

    fn raise_mark(&mut self, fence: Fence) {
        let session = self.lock.as_ref().map_or(0, |(id, ..)| id.0);
        if let Err(error) = self.mark.raise(session, fence.0)
            && !self.has_warned
        {
            self.has_warned = true;
            tracing::warn!("the journal's high-water mark can't be written: {error}");
        }
    }

    fn random(&mut self) -> [u8; 16] {
        random()
    }

    fn uptime(&mut self) -> (String, u64) {
        (self.boot_id.clone(), uptime_ms())
    }

    fn is_upstream_alive(&mut self, session: &Session, is_live: bool) -> Option<bool> {
        upstream_alive(session, is_live)
    }
}
