//! The demo is run as a user runs it, and what it tells is looked up on disk.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends at the first thing that can't be done"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use rusqlite::{Connection, OpenFlags};

/// What one run of the demo told, and where it left its files.
struct Demo {
    _outer: tempfile::TempDir,
    folder: PathBuf,
    text: String,
}

impl Demo {
    fn run() -> Self {
        let outer = tempfile::tempdir().unwrap();
        let ran = Command::new(assert_cmd::cargo::cargo_bin!("checkpoint"))
            .arg("demo")
            .env("TMPDIR", outer.path())
            // The user's own settings must not reach the demo's processes.
            .env("CHECKPOINT_JOURNAL", outer.path().join("mine.db"))
            .env("CHECKPOINT_WORKFLOW_ID", "mine")
            .output()
            .unwrap();
        let text = String::from_utf8(ran.stdout).unwrap();
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{text}\n{errors}");
        assert_eq!(errors, "");
        assert!(!outer.path().join("mine.db").exists());
        let mut folders = std::fs::read_dir(outer.path()).unwrap();
        let folder = folders.next().unwrap().unwrap().path();
        assert!(folders.next().is_none());
        assert!(text.contains(&*folder.to_string_lossy()), "{text}");
        Self {
            _outer: outer,
            folder,
            text,
        }
    }

    /// The text without the one thing in it that differs from run to run.
    fn comparable(&self) -> String {
        self.text.replace(&*self.folder.to_string_lossy(), "FOLDER")
    }
}

fn rows(journal: &Path, sql: &str) -> Vec<String> {
    let db = Connection::open_with_flags(journal, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut query = db.prepare(sql).unwrap();
    let rows = query.query_map((), |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn the_demo_tells_what_is_so() {
    let demo = Demo::run();
    let ledger = std::fs::read_to_string(demo.folder.join("ledger.txt")).unwrap();
    assert_eq!(
        ledger,
        "ch_1 A-100 2500\nch_2 A-101 1250\nch_3 A-102 900\nch_4 A-103 4200\n"
    );
    let journal = demo.folder.join("run.db");
    // The upstream never saw a second attempt, and the third outcome was kept for an agent that
    // was dead by then.
    assert_eq!(
        rows(
            &journal,
            "SELECT seq || ' ' || attempt FROM attempts ORDER BY fence"
        ),
        ["1 1", "2 1", "3 1", "4 1"]
    );
    let settled = demo.text.contains("6. The agent");
    let fourth = if settled {
        "4 COMPLETED operator"
    } else {
        "4 PENDING -"
    };
    assert_eq!(
        rows(
            &journal,
            "SELECT seq || ' ' || status || ' ' || coalesce(provenance, '-')
             FROM entries ORDER BY seq"
        ),
        [
            "1 COMPLETED upstream",
            "2 COMPLETED upstream",
            "3 COMPLETED upstream",
            fourth
        ]
    );
    assert!(!demo.text.contains("WRONG"), "{}", demo.text);
    // Each act has its facts, and each was checked.
    assert!(
        demo.text.matches("  checked: ").count() >= 9,
        "{}",
        demo.text
    );
    for told in [
        "outcome-unknown",
        "in-doubt",
        "IN-DOUBT",
        "from the journal",
    ] {
        assert!(demo.text.contains(told), "{told}: {}", demo.text);
    }
}

#[test]
fn two_runs_tell_the_same() {
    assert_eq!(Demo::run().comparable(), Demo::run().comparable());
}
