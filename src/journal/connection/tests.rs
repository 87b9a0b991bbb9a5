use super::super::filesystem;
use super::super::fixture::{World, commit, highest, image, image_of, rerun, role};
use super::super::place::{Created, create};
use super::*;

fn served() -> Filesystem {
    Filesystem {
        name: "nfs".into(),
        wal_safe: false,
        network: true,
    }
}

fn versions(world: &World) -> [u8; 2] {
    let bytes = std::fs::read(world.path()).unwrap();
    [bytes[18], bytes[19]]
}

fn value(connection: &Connection, pragma: &str) -> String {
    step(connection, Path::new("x"), &format!("PRAGMA {pragma}"))
        .unwrap()
        .unwrap_or_default()
}

#[test]
fn a_journal_is_opened_with_every_setting() {
    let world = World::with_journal();
    let opened = world.open();
    assert!(opened.is_wal && opened.warnings.is_empty());
    for (pragma, expected) in [
        ("journal_mode", "wal"),
        ("synchronous", "3"),
        ("trusted_schema", "0"),
        ("temp_store", "2"),
        ("cell_size_check", "1"),
        ("busy_timeout", "0"),
        ("cache_size", "-1024"),
        ("locking_mode", "normal"),
        ("journal_mode=OFF", "wal"),
    ] {
        assert_eq!(value(&opened.connection, pragma), expected, "{pragma}");
    }
    for config in [
        DbConfig::SQLITE_DBCONFIG_DEFENSIVE,
        DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA,
        DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE,
    ] {
        let expected = matches!(config, DbConfig::SQLITE_DBCONFIG_DEFENSIVE);
        assert_eq!(opened.connection.db_config(config).unwrap(), expected);
    }
    set_pragma(&opened.connection, &world.journal, "wal_autocheckpoint", 77).unwrap();
    set_pragma(
        &opened.connection,
        &world.journal,
        "journal_size_limit",
        4096,
    )
    .unwrap();
    set_pragma(&opened.connection, &world.journal, "secure_delete", 1).unwrap();
    set_pragma(&opened.connection, &world.journal, "foreign_keys", 1).unwrap();
    let reason = set_pragma(&opened.connection, &world.journal, "page_size", 512).unwrap_err();
    assert!(matches!(reason, CannotUse::Unsafe { .. }), "{reason:?}");
    commit(&opened.connection, 1);
    drop(opened);
    // The last to close writes the log back.
    assert!(!world.journal.companion(Companion::Wal).exists());
    assert_eq!(versions(&world), [2, 2]);
    assert_eq!(highest(&world.open().connection), 1);
}

#[test]
fn a_journal_in_rollback_mode_is_switched_and_back_again() {
    let world = World::empty();
    assert_eq!(
        create(&world.journal, &image(), &served()).unwrap(),
        Created::Ours
    );
    assert_eq!(versions(&world), [1, 1]);
    let opened = open(&world.journal, Access::ReadWrite, &served()).unwrap();
    assert!(!opened.is_wal);
    assert!(matches!(
        opened.warnings[..],
        [Warning::NoWriteAheadLog { .. }]
    ));
    assert_eq!(value(&opened.connection, "journal_mode"), "delete");
    assert_eq!(value(&opened.connection, "synchronous"), "3");
    commit(&opened.connection, 1);
    drop(opened);
    assert!(!world.journal.companion(Companion::Wal).exists());

    let opened = world.open();
    assert!(opened.is_wal);
    commit(&opened.connection, 2);
    // Somebody else holds the log, so it can't be given up.
    let reason = open(&world.journal, Access::ReadWrite, &served()).unwrap_err();
    assert!(reason.is_busy(), "{reason:?}");
    opened.watch.check().unwrap();
    commit(&opened.connection, 3);
    drop(opened);
    assert_eq!(versions(&world), [2, 2]);

    let opened = open(&world.journal, Access::ReadWrite, &served()).unwrap();
    assert!(!opened.is_wal);
    assert_eq!(highest(&opened.connection), 3);
    commit(&opened.connection, 4);
    // The exclusive lock was let go.
    let second = open(&world.journal, Access::ReadWrite, &served()).unwrap();
    commit(&second.connection, 5);
    drop((opened, second));
    assert_eq!(versions(&world), [1, 1]);
    assert_eq!(world.files().len(), 1);
}

#[test]
fn a_log_left_by_a_kill_is_given_up_without_loss() {
    let world = World::with_journal();
    let opened = world.open();
    for fence in 1..=10 {
        commit(&opened.connection, fence);
    }
    let left = World::empty();
    std::fs::copy(world.path(), left.path()).unwrap();
    std::fs::copy(
        world.journal.companion(Companion::Wal),
        left.journal.companion(Companion::Wal),
    )
    .unwrap();
    let again = open(&left.journal, Access::ReadWrite, &served()).unwrap();
    assert!(!again.is_wal);
    assert_eq!(highest(&again.connection), 10);
    drop(again);
    assert_eq!(versions(&left), [1, 1]);
}

#[test]
fn a_newer_version_that_is_only_in_the_log_is_refused_and_left_there() {
    let world = World::with_journal();
    let opened = world.open();
    opened
        .connection
        .execute_batch("PRAGMA user_version=2")
        .unwrap();
    let left = World::empty();
    std::fs::copy(world.path(), left.path()).unwrap();
    let log = |world: &World| world.journal.companion(Companion::Wal);
    std::fs::copy(log(&world), log(&left)).unwrap();
    let journal_and_log = |world: &World| {
        (
            std::fs::read(world.path()).unwrap(),
            std::fs::read(log(world)).unwrap(),
        )
    };
    let before = journal_and_log(&left);
    for (access, filesystem) in [
        (Access::ReadOnly, left.filesystem()),
        (Access::ReadWrite, left.filesystem()),
        (Access::ReadWrite, served()),
    ] {
        let reason = open(&left.journal, access, &filesystem).unwrap_err();
        assert!(
            matches!(reason, CannotUse::NewerSchema { found: 2, .. }),
            "{reason:?}"
        );
        assert_eq!(journal_and_log(&left), before);
    }
}

#[test]
fn a_reader_writes_nothing_and_sees_the_newest() {
    let world = World::with_journal();
    let writer = world.open();
    commit(&writer.connection, 1);
    let reader = open(&world.journal, Access::ReadOnly, &world.filesystem()).unwrap();
    assert_eq!(highest(&reader.connection), 1);
    commit(&writer.connection, 2);
    assert_eq!(highest(&reader.connection), 2);
    reader
        .connection
        .execute("INSERT INTO fences VALUES (3)", [])
        .unwrap_err();
    reader.watch.check().unwrap();
    drop(writer);
    assert_eq!(highest(&reader.connection), 2);
}

#[test]
fn a_file_that_is_gone_moved_or_replaced_is_noticed() {
    let rename = |world: &World| {
        std::fs::rename(world.path(), world.folder.path().join("other.db")).unwrap();
    };
    type Change<'a> = (&'static str, &'a dyn Fn(&World));
    let changes: [Change<'_>; 6] = [
        ("deleted", &|world| {
            std::fs::remove_file(world.path()).unwrap()
        }),
        ("moved", &rename),
        ("replaced", &|world| {
            let other = world.folder.path().join("other.db");
            std::fs::write(&other, image()).unwrap();
            std::fs::rename(&other, world.path()).unwrap();
        }),
        ("moved, with a link to it", &|world| {
            rename(world);
            std::os::unix::fs::symlink("other.db", world.path()).unwrap();
        }),
        ("log deleted", &|world| {
            std::fs::remove_file(world.journal.companion(Companion::Wal)).unwrap();
        }),
        ("index deleted", &|world| {
            std::fs::remove_file(world.journal.companion(Companion::Shm)).unwrap();
        }),
    ];
    for (name, change) in changes {
        let world = World::with_journal();
        let opened = world.open();
        commit(&opened.connection, 1);
        opened.watch.check().unwrap();
        change(&world);
        let reason = opened.watch.check().unwrap_err();
        assert!(
            matches!(reason, CannotUse::Moved { .. }),
            "{name}: {reason:?}"
        );
    }
}

#[test]
fn the_files_stay_in_place_through_what_sqlite_does_to_them() {
    let world = World::with_journal();
    let opened = world.open();
    for fence in 1..=50 {
        commit(&opened.connection, fence);
        drop(world.open());
        opened.watch.check().unwrap();
    }
    for sql in [
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "VACUUM",
        "PRAGMA wal_checkpoint(RESTART)",
    ] {
        step(&opened.connection, world.path(), sql).unwrap();
        opened.watch.check().unwrap();
        commit(&opened.connection, 50 + sql.len() as u64);
        opened.watch.check().unwrap();
    }
}

const LOCK_TEST: &str = "journal::connection::tests::looking_at_an_open_journal_keeps_its_locks";

/// Says from another process whether SQLite's shared lock on the journal is held.
fn is_locked(world: &World) -> bool {
    let output = rerun(LOCK_TEST, "ask", &world.journal).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("locked: "));
    text.contains("locked: true")
}

#[test]
fn looking_at_an_open_journal_keeps_its_locks() {
    use nix::libc;
    if let Some((_, journal)) = role() {
        let file = std::fs::File::open(journal.as_path()).unwrap();
        // SQLite's shared lock: 510 bytes from 0x40000002 on.
        let mut range = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 0x4000_0002,
            l_len: 510,
            l_pid: 0,
        };
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_GETLK(&mut range)).unwrap();
        println!("locked: {}", range.l_type != libc::F_UNLCK as libc::c_short);
        return;
    }
    let world = World::with_journal();
    let opened = world.open();
    commit(&opened.connection, 1);
    assert!(is_locked(&world));
    for _ in 0..3 {
        inspect(&world.journal).unwrap();
        world.create();
        drop(world.open());
        open(&world.journal, Access::ReadOnly, &world.filesystem()).unwrap();
        open(&world.journal, Access::ReadWrite, &served()).unwrap_err();
    }
    assert!(is_locked(&world), "nothing of ours took the lock away");
    // That the question can tell: a plain open and close does take it away.
    drop(std::fs::File::open(world.path()).unwrap());
    assert!(!is_locked(&world));
}

#[test]
fn a_maker_keeps_the_locks_of_whoever_opens_what_it_made() {
    // The image's own descriptor is of the same file, so it must not be closed under a connection.
    let world = World::empty();
    let filesystem = filesystem::kind(world.path()).unwrap();
    create(&world.journal, &image(), &filesystem).unwrap();
    let opened = world.open();
    commit(&opened.connection, 1);
    assert_eq!(world.create(), Created::Theirs);
    assert!(is_locked(&world));
}

#[test]
fn a_journal_that_may_only_be_read_is_not_opened_to_write() {
    use std::os::unix::fs::PermissionsExt;
    if nix::unistd::geteuid().is_root() {
        // Modes don't bind root; the case is run where the tests run as a user.
        return;
    }
    let world = World::with_journal();
    let mode = std::fs::Permissions::from_mode(0o400);
    std::fs::set_permissions(world.path(), mode).unwrap();
    let reason = open(&world.journal, Access::ReadWrite, &world.filesystem()).unwrap_err();
    assert!(
        matches!(reason, CannotUse::NotWritable { .. }),
        "{reason:?}"
    );
    let reason = super::super::place::prepare_parent(&world.journal).unwrap_err();
    assert!(
        matches!(reason, CannotUse::NotWritable { .. }),
        "{reason:?}"
    );
}

#[test]
fn a_damaged_page_is_told_as_damage() {
    let world = World::with_journal();
    let mut bytes = image_of(APPLICATION_ID, SCHEMA_VERSION);
    bytes[100] = 0x77; // The type of the first page.
    std::fs::write(world.path(), &bytes).unwrap();
    let reason = open(&world.journal, Access::ReadWrite, &world.filesystem()).unwrap_err();
    assert!(matches!(reason, CannotUse::Damaged { .. }), "{reason:?}");
    assert_eq!(std::fs::read(world.path()).unwrap(), bytes);
}
