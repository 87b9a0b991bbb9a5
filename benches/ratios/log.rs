//! What a relay writes down before it passes lines on: blocks of a file, or rows of SQLite.
//!
//! The second is the floor of everything that keeps its journal in SQLite: one table, one row a
//! line, nothing read, nothing indexed, nobody else asked. What a journaled call costs over it is
//! our own work; what it costs over the blocks of a file is SQLite's.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::blob::ZeroBlob;

use crate::rows::Rows;

/// What a synced log writes at once, in bytes: a block of the file system.
const BLOCK_BYTES: usize = 4096;

/// The size of a synced log, in bytes; it is written over from its start when it is full.
const LOG_BYTES: usize = 32 << 20;

/// The pages that a commit moves from the write-ahead log at once, as the product does.
const CHECKPOINT_PAGES: i64 = 4000;

/// Where lines are written down.
pub(crate) enum Log {
    /// A preallocated file that is written over block by block, a bare sync after each write.
    Blocks {
        file: File,
        at: usize,
        blocks: Vec<u8>,
    },
    /// A table of SQLite, one transaction for each [`Log::put`].
    Table(Connection),
    /// The product's own rows.
    Rows(Box<Rows>),
}

impl Log {
    /// Opens the log at `path`: a database if its name ends in `.db`, the product's own if it ends
    /// in `.journal`, else a file that [`prepare`] has made.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if path.extension().is_some_and(|end| end == "db") {
            return table(path).map(Self::Table).map_err(io::Error::other);
        }
        if path.extension().is_some_and(|end| end == "journal") {
            return Ok(Self::Rows(Box::new(Rows::make(path)?)));
        }
        Ok(Self::Blocks {
            file: File::options().write(true).open(path)?,
            at: 0,
            blocks: Vec::new(),
        })
    }

    /// Writes whole lines down, of the client's or the upstream's answers; on return they are
    /// durable.
    pub(crate) fn put(&mut self, lines: &[u8], is_answer: bool) -> io::Result<()> {
        match self {
            Self::Blocks { file, at, blocks } => {
                let padded = lines.len().next_multiple_of(BLOCK_BYTES);
                blocks.clear();
                blocks.extend_from_slice(lines);
                blocks.resize(padded, 0);
                if *at + padded > LOG_BYTES {
                    *at = 0;
                }
                file.write_all_at(blocks, *at as u64)?;
                *at += padded;
                file.sync_data()
            }
            Self::Table(db) => commit(db, lines).map_err(io::Error::other),
            Self::Rows(rows) => rows.put(lines, is_answer),
        }
    }
}

/// Makes the file of a [`Log::Blocks`]. A database makes itself.
pub(crate) fn prepare(path: &Path) -> io::Result<()> {
    let makes_itself = |end| end == "db" || end == "journal";
    if path.exists() || path.extension().is_some_and(makes_itself) {
        return Ok(());
    }
    let file = File::create(path)?;
    let zeros = vec![0; 1 << 20];
    for place in 0..LOG_BYTES / zeros.len() {
        file.write_all_at(&zeros, (place * zeros.len()) as u64)?;
    }
    file.sync_all()
}

fn table(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open(path)?;
    db.pragma_update(None, "journal_mode", "wal")?;
    // In this mode as good as the product's EXTRA: one sync a commit.
    db.pragma_update(None, "synchronous", "full")?;
    db.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    db.execute_batch(
        "CREATE TABLE IF NOT EXISTS lines (id INTEGER PRIMARY KEY, line BLOB) STRICT",
    )?;
    // The log is made long before it counts: a commit that lengthens its file costs two syncs.
    db.execute_batch("PRAGMA cache_spill = 1; BEGIN")?;
    db.execute(
        "INSERT INTO lines (line) VALUES (?1)",
        [ZeroBlob((CHECKPOINT_PAGES * 4096) as u64 + (4 << 20))],
    )?;
    db.execute_batch("ROLLBACK; PRAGMA cache_spill = 4096")?;
    Ok(db)
}

fn commit(db: &Connection, lines: &[u8]) -> rusqlite::Result<()> {
    db.prepare_cached("BEGIN IMMEDIATE")?.execute(())?;
    {
        let mut insert = db.prepare_cached("INSERT INTO lines (line) VALUES (?1)")?;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            insert.execute([line])?;
        }
    }
    db.prepare_cached("COMMIT")?.execute(())?;
    Ok(())
}
