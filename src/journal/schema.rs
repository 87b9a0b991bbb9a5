//! The schema, as SQL text and as a ready image of an empty journal.
//!
//! The tables are public: `docs/journal-format.md` describes each column, and operators query
//! them with `sqlite3`. A change to the schema is one more step in [`STEPS`] and one more dump in
//! `fixtures/journals/`.
//!
//! Must not: hold SQL that reads or writes rows (that is [`super::sqlite`]'s).

use rusqlite::Connection;

use crate::rules::ids::{Micros, WorkflowId};

pub use super::connection::{APPLICATION_ID, SCHEMA_VERSION};

/// The steps from an empty file to [`SCHEMA_VERSION`]; step n leads to version n.
pub const STEPS: [&str; 1] = [STEP_1];

// A payload is the last column of its table: only there does SQLite make room for it without
// building the whole row in memory first.
const STEP_1: &str = "
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE workflows (
    id            INTEGER PRIMARY KEY,
    workflow_id   TEXT NOT NULL UNIQUE,
    uid           BLOB NOT NULL,
    active_branch INTEGER NOT NULL,
    generation    INTEGER,
    created_at    INTEGER NOT NULL
) STRICT;

CREATE TABLE branches (
    id          INTEGER PRIMARY KEY,
    workflow    INTEGER NOT NULL,
    branch      INTEGER NOT NULL,
    parent      INTEGER,
    forked_at   INTEGER,
    highest_seq INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    UNIQUE (workflow, branch)
) STRICT;

CREATE TABLE gaps (
    branch_id INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL,
    PRIMARY KEY (branch_id, first_seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
    id                  INTEGER PRIMARY KEY,
    host                TEXT NOT NULL,
    boot_id             TEXT NOT NULL,
    pid                 INTEGER NOT NULL,
    lock_offset         INTEGER NOT NULL,
    started_at          INTEGER NOT NULL,
    ended_at            INTEGER,
    upstream_pgid       INTEGER,
    upstream_started_at INTEGER,
    upstream_name       TEXT,
    upstream_version    TEXT,
    protocol_version    TEXT,
    client_name         TEXT,
    client_version      TEXT
) STRICT;

CREATE TABLE entries (
    branch_id    INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    tool         TEXT NOT NULL,
    status       TEXT NOT NULL,
    attempt      INTEGER NOT NULL,
    round        INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    session_id   INTEGER NOT NULL,
    scheme       TEXT NOT NULL,
    signature    BLOB NOT NULL,
    created_at   INTEGER NOT NULL,
    completed_at INTEGER,
    delivered_at INTEGER,
    gave_up      TEXT,
    unanswered   TEXT,
    is_error     INTEGER NOT NULL,
    provenance   TEXT,
    digest       BLOB,
    tombstone    INTEGER NOT NULL,
    key          TEXT,
    window       TEXT,
    window_id    TEXT,
    call_id      TEXT,
    checksum     BLOB NOT NULL,
    PRIMARY KEY (branch_id, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX entries_undelivered ON entries (branch_id, signature) WHERE delivered_at IS NULL;
CREATE INDEX entries_key ON entries (key, window, window_id) WHERE key IS NOT NULL;
CREATE INDEX entries_call_id ON entries (call_id) WHERE call_id IS NOT NULL;

CREATE TABLE attempts (
    fence            INTEGER PRIMARY KEY,
    branch_id        INTEGER NOT NULL,
    seq              INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    round            INTEGER NOT NULL,
    previous         INTEGER,
    session_id       INTEGER NOT NULL,
    started_at       INTEGER NOT NULL,
    scheme           TEXT NOT NULL,
    signature        BLOB NOT NULL,
    arguments_bytes  INTEGER NOT NULL,
    redacted         INTEGER NOT NULL,
    protocol_version TEXT,
    tool_revision    TEXT,
    policy           TEXT,
    traceparent      TEXT,
    arguments        BLOB
) STRICT;

CREATE TABLE outcomes (
    fence      INTEGER PRIMARY KEY,
    status     TEXT NOT NULL,
    is_error   INTEGER NOT NULL,
    provenance TEXT NOT NULL,
    at         INTEGER NOT NULL,
    next_fence INTEGER NOT NULL,
    digest     BLOB NOT NULL,
    state      BLOB,
    inputs     TEXT,
    task_id    TEXT,
    task_at    TEXT,
    body       BLOB
) STRICT;

CREATE INDEX outcomes_state ON outcomes (state) WHERE state IS NOT NULL;
CREATE INDEX outcomes_task ON outcomes (task_id) WHERE task_id IS NOT NULL;

CREATE TABLE task_ends (
    fence      INTEGER PRIMARY KEY,
    status     TEXT NOT NULL,
    is_error   INTEGER NOT NULL,
    provenance TEXT NOT NULL,
    at         INTEGER NOT NULL,
    digest     BLOB NOT NULL,
    body       BLOB
) STRICT;

CREATE TABLE leases (
    fence    INTEGER PRIMARY KEY,
    boot_id  TEXT NOT NULL,
    until_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE events (
    id         INTEGER PRIMARY KEY,
    at         INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    branch_id  INTEGER,
    seq        INTEGER,
    fence      INTEGER,
    session_id INTEGER,
    letter     TEXT,
    detail     TEXT,
    merge_key  TEXT,
    count      INTEGER NOT NULL,
    last_at    INTEGER NOT NULL
) STRICT;

CREATE INDEX events_entry ON events (branch_id, seq);
CREATE UNIQUE INDEX events_merge ON events (merge_key) WHERE merge_key IS NOT NULL;
";

/// Returns what stands in `meta` as `check`: the first 16 bytes of a SHA-256 over the journal's uid
/// and its own workflow's name. A bad bit in that name would make every call of it new.
#[must_use]
pub fn identity_check(uid: &[u8; 16], own_workflow: &WorkflowId) -> [u8; 16] {
    let mut text = b"meta-1".to_vec();
    text.extend_from_slice(uid);
    text.extend_from_slice(own_workflow.0.as_bytes());
    let digest = crate::rules::entry::outcome_digest(&text);
    let mut short = [0; 16];
    short.copy_from_slice(&digest[..16]);
    short
}

/// Returns the bytes of an empty journal, made in memory.
///
/// # Errors
///
/// SQLite could not make it (out of memory).
pub fn empty_image(
    uid: [u8; 16],
    own_workflow: &WorkflowId,
    at: Micros,
) -> rusqlite::Result<Vec<u8>> {
    let mut db = Connection::open_in_memory()?;
    db.execute_batch(&format!(
        "PRAGMA application_id = {APPLICATION_ID}; BEGIN; {STEP_1} PRAGMA user_version = {SCHEMA_VERSION};"
    ))?;
    let mut put = db.prepare("INSERT INTO meta (name, value) VALUES (?1, ?2)")?;
    put.execute(("uid", &uid[..]))?;
    put.execute(("own_workflow", &own_workflow.0))?;
    put.execute(("created_at", at.0))?;
    put.execute(("check", &identity_check(&uid, own_workflow)[..]))?;
    drop(put);
    db.execute_batch("COMMIT")?;
    Ok(db.serialize("main")?.to_vec())
}

/// Returns the schema's text as SQLite keeps it: one row per table and index, sorted by name.
///
/// # Errors
///
/// The database can't be read.
pub fn shape(db: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
    let mut rows = db.prepare(
        "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
    )?;
    rows.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Returns [`shape`] of a journal that this program makes.
///
/// SQLite keeps the text of a statement as it was given, so nothing has to be made to know it: a
/// start would pay a database in memory for it.
#[must_use]
pub fn expected_shape() -> Vec<(String, String)> {
    let mut shape: Vec<(String, String)> = STEPS
        .iter()
        .flat_map(|step| step.split(';'))
        .map(str::trim)
        .filter_map(|sql| {
            let (_, named) = sql
                .split_once("TABLE ")
                .or_else(|| sql.split_once("INDEX "))?;
            let name = named.split_whitespace().next()?;
            Some((name.to_owned(), sql.to_owned()))
        })
        .collect();
    shape.sort();
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_shape_is_what_sqlite_keeps() {
        let db = Connection::open_in_memory().unwrap();
        for step in STEPS {
            db.execute_batch(step).unwrap();
        }
        assert_eq!(expected_shape(), shape(&db).unwrap());
        assert!(expected_shape().len() > 10);
    }
}
