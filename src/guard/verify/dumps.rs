//! A journal of every schema version, as SQL: this version opens each and finds nothing wrong.
//!
//! `CHECKPOINT_BLESS=1` writes the newest version's dump anew. That is for a version that was not
//! released; a released one's dump never changes, and a change to the schema is a new version.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::*;
use crate::guard::closing::{self, Closing};
use crate::guard::fixture::{World, answer, call, calls_of_every_sort, deliver, reserve, settle};
use crate::guard::sweep::Sweep;
use crate::guard::verdict::{Act, Deed, Owner, Ruling, Verdict, rule};
use crate::journal::connection::SCHEMA_VERSION;
use crate::journal::reader::{Reader, Selection};
use crate::rules::entry::{Provenance, Status};
use crate::rules::ids::Micros;
use crate::rules::retention::Retention;

fn dump_of(version: i32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/journals/v{version}.sql"))
}

/// A journal with entries of every sort, verdicts, a closing and a tombstone among them.
fn filled() -> World {
    let world = World::new();
    let mut guard = world.guard();
    let old = reserve(&mut guard, call(Some(40), "{\"old\":true}"), 1);
    settle(&mut guard, old, answer(Status::Completed, "{\"r\":40}"), 2);
    deliver(&mut guard, old, 3);
    drop(guard);
    let retention = Retention {
        older_than: Duration::from_secs(1),
        undelivered_too: false,
        future_too: false,
    };
    let mut sweep = Sweep::new(retention, Micros(2_000_000), "ada".into());
    let mut journal = world.journal();
    while sweep.step(&mut journal).unwrap() {}
    drop(journal);
    let mut guard = calls_of_every_sort(&world);
    for seq in [20, 21, 22] {
        reserve(&mut guard, call(Some(seq), "{\"lost\":true}"), 5_000);
    }
    drop(guard);
    let mut journal = world.journal();
    let verdicts = [
        (
            20,
            Verdict::Completed {
                body: b"{\"by\":\"hand\"}".to_vec().into(),
                is_error: false,
                provenance: Provenance::Operator,
            },
        ),
        (21, Verdict::NotExecuted),
    ];
    let deed = Deed {
        by: "ada".into(),
        reason: Some("looked into it".into()),
        evidence: None,
        ..Deed::default()
    };
    for (seq, verdict) in verdicts {
        let act = Act::Resolve {
            verdict,
            forces: true,
            seen: None,
        };
        let ruling = rule(
            &mut journal,
            (BranchId(1), Seq(seq)),
            &act,
            &deed,
            Micros(6_000),
            &mut |_, _| Owner {
                is_live: true,
                upstream_alive: None,
            },
            false,
        );
        assert!(matches!(ruling, Ok(Ruling::Done { .. })), "{ruling:?}");
    }
    let told = Closing {
        close: "cancelled".into(),
        code: "7703".into(),
        message: "cut off".into(),
    };
    let fence: i64 = world
        .sql()
        .query_row("SELECT fence FROM entries WHERE seq = 22", (), |row| {
            row.get(0)
        })
        .unwrap();
    let place = (BranchId(1), Seq(22));
    let fence = Fence(fence.unsigned_abs());
    closing::close(&mut journal, place, fence, &told, "ada", Micros(7_000)).unwrap();
    drop(journal);
    world
}

/// Returns the journal as SQL that makes it again.
fn dump(db: &Connection) -> String {
    let number = |pragma: &str| -> i64 {
        db.query_row(&format!("PRAGMA {pragma}"), (), |row| row.get(0))
            .unwrap()
    };
    let mut text = format!(
        "PRAGMA application_id = {};\nPRAGMA user_version = {};\n",
        number("application_id"),
        number("user_version")
    );
    let shape = |kind: &str| -> Vec<(String, String)> {
        db.prepare(
            "SELECT name, sql FROM sqlite_schema WHERE type = ?1 AND sql NOT NULL ORDER BY rowid",
        )
        .unwrap()
        .query_map([kind], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap()
    };
    for (table, sql) in shape("table") {
        let _ = writeln!(text, "\n{sql};");
        let mut statement = db.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = statement.column_count();
        let mut rows = statement.query(()).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let values: Vec<String> = (0..columns)
                .map(|index| literal(row.get_ref(index).unwrap()))
                .collect();
            let _ = writeln!(text, "INSERT INTO {table} VALUES ({});", values.join(", "));
        }
    }
    text.push('\n');
    for (_, sql) in shape("index") {
        let _ = writeln!(text, "{sql};");
    }
    text
}

fn literal(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "NULL".into(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) => {
            format!("'{}'", String::from_utf8_lossy(text).replace('\'', "''"))
        }
        ValueRef::Blob(bytes) => {
            let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            });
            format!("x'{hex}'")
        }
    }
}

#[test]
fn every_version_has_a_dump_that_this_one_opens_and_finds_sound() {
    if std::env::var_os("CHECKPOINT_BLESS").is_some() {
        std::fs::write(dump_of(SCHEMA_VERSION), dump(&filled().sql())).unwrap();
    }
    for version in 1..=SCHEMA_VERSION {
        let path = dump_of(version);
        let sql = std::fs::read_to_string(&path).unwrap_or_else(|error| {
            panic!(
                "{}: {error}; a schema version needs a dump, CHECKPOINT_BLESS=1 writes the newest",
                path.display()
            )
        });
        let folder = tempfile::tempdir().unwrap();
        let path = JournalPath::new(folder.path().join("run.db")).unwrap();
        let db = Connection::open(path.as_path()).unwrap();
        db.execute_batch(&format!("BEGIN; {sql} COMMIT;")).unwrap();
        drop(db);
        let mut findings = Vec::new();
        let seen = verify(&path, &mut |finding| findings.push(finding), &mut |_| {}).unwrap();
        assert_eq!(findings, [], "version {version}");
        assert!(seen.entries >= 14 && seen.events >= 8, "{seen:?}");
        let mut reader = Reader::open(&path).unwrap();
        let mut read = 0;
        reader
            .each(&Selection::default(), |_, found| {
                let is_whole = matches!(
                    found,
                    crate::journal::reader::Found::Whole { damage: None, .. }
                );
                assert!(is_whole, "{found:?}");
                read += 1;
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(read, seen.entries);
    }
}

#[test]
fn the_newest_dump_is_of_the_schema_as_it_is() {
    let sql = std::fs::read_to_string(dump_of(SCHEMA_VERSION)).unwrap_or_default();
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch(&sql).unwrap();
    let expected = crate::journal::schema::expected_shape();
    assert!(
        crate::journal::schema::shape(&db).unwrap() == expected,
        "the schema has changed: it is a new version once one was released, and a new dump either way"
    );
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/journal-format.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_page_names_every_table_column_and_index() {
    let page = page();
    let db = Connection::open_in_memory().unwrap();
    for step in crate::journal::schema::STEPS {
        db.execute_batch(step).unwrap();
    }
    for (name, sql) in crate::journal::schema::shape(&db).unwrap() {
        assert!(page.contains(&format!("`{name}`")), "no {name} in the page");
        if !sql.starts_with("CREATE TABLE") {
            continue;
        }
        // A table's section ends where the next one begins.
        let section = page
            .split("\n## ")
            .find(|section| {
                let heading = section.lines().next().unwrap_or_default();
                heading.contains(&format!("`{name}`"))
            })
            .unwrap_or_else(|| panic!("no section on {name}"));
        let columns: Vec<String> = db
            .prepare("SELECT name FROM pragma_table_info(?1)")
            .unwrap()
            .query_map([&name], |row| row.get(0))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        for column in columns {
            assert!(
                section.contains(&format!("`{column}`")),
                "no column {column} in the section on {name}"
            );
        }
    }
}

#[test]
fn the_page_names_every_row_of_meta() {
    let section = page();
    let section = section.split("\n## ").find(|one| one.starts_with("`meta`"));
    let world = World::new();
    let db = world.sql();
    let mut names: Vec<String> = db
        .prepare("SELECT name FROM meta")
        .unwrap()
        .query_map((), |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    names.push("key_fingerprint".into());
    for name in names {
        assert!(section.unwrap().contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn the_pages_questions_can_be_asked() {
    let page = page();
    let sql = page
        .split("```sql\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("the page has questions");
    let world = filled();
    let db = world.sql();
    let mut asked = 0;
    for question in sql.split(";\n").filter(|text| !text.trim().is_empty()) {
        let mut statement = db.prepare(question).unwrap_or_else(|error| {
            panic!("{error}: {question}");
        });
        let mut rows = statement.query(()).unwrap();
        while rows.next().unwrap().is_some() {}
        asked += 1;
    }
    assert_eq!(asked, 5);
}
