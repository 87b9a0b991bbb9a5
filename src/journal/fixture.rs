//! What the tests of this room's files share: a folder, a small journal, another process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rusqlite::Connection;

use super::connection::{APPLICATION_ID, Access, OpenJournal, SCHEMA_VERSION, open_patiently};
use super::filesystem::{self, Filesystem};
use super::place::{Created, JournalPath, create};

/// Tells a test that runs again in a process of its own which part it plays, and where.
const ROLE: &str = "CHECKPOINT_TEST_ROLE";
const PLACE: &str = "CHECKPOINT_TEST_PLACE";

/// A folder of its own, with a place for a journal.
pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) journal: JournalPath,
}

impl World {
    /// Returns a world without a journal.
    pub(crate) fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let journal = JournalPath::new(folder.path().join("run.db")).unwrap();
        Self { folder, journal }
    }

    /// Returns a world with a journal, which is closed.
    pub(crate) fn with_journal() -> Self {
        let world = Self::empty();
        assert_eq!(world.create(), Created::Ours);
        world
    }

    pub(crate) fn path(&self) -> &Path {
        self.journal.as_path()
    }

    pub(crate) fn filesystem(&self) -> Filesystem {
        filesystem::kind(self.path()).unwrap()
    }

    pub(crate) fn create(&self) -> Created {
        create(&self.journal, &image(), &self.filesystem()).unwrap()
    }

    pub(crate) fn open(&self) -> OpenJournal {
        open(&self.journal)
    }

    /// Returns every file of the folder with its bytes.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| std::fs::symlink_metadata(path).unwrap().is_file())
            .map(|path| (path.clone(), std::fs::read(path).unwrap()))
            .collect()
    }
}

pub(crate) fn open(journal: &JournalPath) -> OpenJournal {
    let filesystem = filesystem::kind(journal.as_path()).unwrap();
    let patience = std::time::Duration::from_secs(20);
    open_patiently(journal, Access::ReadWrite, &filesystem, patience, true).unwrap()
}

/// Returns a complete small journal: one table, with a row.
pub(crate) fn image() -> Vec<u8> {
    image_of(APPLICATION_ID, SCHEMA_VERSION)
}

/// Returns a complete database with this application id and version.
pub(crate) fn image_of(application_id: i32, version: i32) -> Vec<u8> {
    let mut connection = Connection::open_in_memory().unwrap();
    connection
        .execute_batch(&format!(
            "PRAGMA page_size=4096; PRAGMA application_id={application_id};
             PRAGMA user_version={version};
             CREATE TABLE fences(fence INTEGER PRIMARY KEY) STRICT;"
        ))
        .unwrap();
    connection.serialize("main").unwrap().to_vec()
}

/// Commits a fence.
pub(crate) fn commit(connection: &Connection, fence: u64) {
    connection
        .execute("INSERT INTO fences VALUES (?1)", [fence.cast_signed()])
        .unwrap();
}

/// Returns the highest fence.
pub(crate) fn highest(connection: &Connection) -> u64 {
    connection
        .query_row("SELECT coalesce(max(fence), 0) FROM fences", [], |row| {
            row.get::<_, i64>(0)
        })
        .unwrap()
        .cast_unsigned()
}

/// Returns the command that runs the test `name` of this binary again as `role`.
pub(crate) fn rerun(name: &str, role: &str, journal: &JournalPath) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(PLACE, journal.as_path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    command
}

/// Returns the role of a test that runs again, and the journal.
pub(crate) fn role() -> Option<(String, JournalPath)> {
    let role = std::env::var(ROLE).ok()?;
    let journal = JournalPath::new(std::env::var_os(PLACE)?).unwrap();
    Some((role, journal))
}
