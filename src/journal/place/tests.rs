use std::os::unix::fs::symlink;
use std::time::Duration;

use nix::sys::stat::Mode;

use super::super::connection::{Access, open};
use super::super::fixture::{World, commit, highest, image, image_of, rerun, role};
use super::*;

fn refused(world: &World) -> CannotUse {
    let before = world.files();
    let reason = inspect(&world.journal).unwrap_err();
    let filesystem = world.filesystem();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        open(&world.journal, access, &filesystem).unwrap_err();
    }
    assert_eq!(before, world.files(), "a refusal changes no byte");
    reason
}

fn present(world: &World) -> Present {
    match inspect(&world.journal).unwrap() {
        State::Present(present) => present,
        State::Absent => panic!("there is a journal"),
    }
}

fn mode_of(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

macro_rules! assert_reason {
    ($reason:expr, $pattern:pat) => {{
        let reason = $reason;
        assert!(matches!(reason, $pattern), "{reason:?}");
        assert!(reason.to_string().len() > 20);
    }};
}

#[test]
fn what_is_no_path_is_refused() {
    for given in [
        "",
        ":memory:",
        ":MEMORY:",
        "file:run.db",
        "FILE:run.db?mode=memory",
        "file::memory:",
        "sqlite://run.db",
        "postgres://host/db",
        "folder/",
        "folder/.",
        "/",
        ".",
        "..",
        "a\0b",
    ] {
        assert_reason!(
            JournalPath::new(given).unwrap_err(),
            CannotUse::NotAPath { .. }
        );
    }
}

#[test]
fn a_path_is_absolute_and_without_links() {
    let folder = tempfile::tempdir().unwrap();
    let real = std::fs::canonicalize(folder.path()).unwrap();
    std::fs::create_dir(real.join("there")).unwrap();
    symlink(real.join("there"), real.join("link")).unwrap();
    for (given, expected) in [
        ("run.db", "run.db"),
        ("./there/../run.db", "run.db"),
        ("link/run.db", "there/run.db"),
        ("link/../run.db", "run.db"),
        ("not/yet/../run.db", "not/run.db"),
        ("a:b c?d#é.db", "a:b c?d#é.db"),
        ("-journal", "-journal"),
    ] {
        let journal = JournalPath::new(real.join(given)).unwrap();
        assert_eq!(journal.as_path(), real.join(expected));
    }
    let here = JournalPath::new("run.db").unwrap();
    let current = std::fs::canonicalize(std::env::current_dir().unwrap()).unwrap();
    assert_eq!(here.as_path(), current.join("run.db"));
    assert_eq!(here.folder(), current);
    let wal = here.companion(Companion::Wal);
    assert_eq!(wal, current.join("run.db-wal"));
}

#[test]
fn nothing_is_absent_also_beside_what_tells_nothing() {
    let world = World::empty();
    assert_eq!(inspect(&world.journal).unwrap(), State::Absent);
    for companion in [Companion::Shm, Companion::Locks] {
        std::fs::write(world.journal.companion(companion), "x").unwrap();
    }
    assert_eq!(inspect(&world.journal).unwrap(), State::Absent);
    let deep = JournalPath::new(world.folder.path().join("not/there/run.db")).unwrap();
    assert_eq!(inspect(&deep).unwrap(), State::Absent);
    assert_reason!(
        open(&deep, Access::ReadWrite, &world.filesystem()).unwrap_err(),
        CannotUse::Absent { .. }
    );
}

#[test]
fn companions_without_their_journal_are_refused() {
    for companion in [
        Companion::Wal,
        Companion::Rollback,
        Companion::Mark,
        Companion::Key,
    ] {
        let world = World::empty();
        let path = world.journal.companion(companion);
        std::fs::write(&path, "x").unwrap();
        match refused(&world) {
            CannotUse::OrphanCompanions { which, .. } => assert_eq!(which, [path]),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_new_journal_is_seen_as_it_is() {
    let world = World::with_journal();
    let found = present(&world);
    assert_eq!(found.schema_version, SCHEMA_VERSION);
    assert_eq!(found.size_bytes, image().len() as u64);
    assert_eq!(found.page_bytes, 4096);
    assert!(found.is_wal && !found.wal_has_frames && !found.has_rollback_journal);
    // Its mark and its log are made when it is opened.
    assert!(matches!(found.warnings[..], [Warning::Alone { .. }]));
    assert_eq!(world.files().len(), 1, "no litter");
    assert_eq!(world.create(), Created::Theirs);
    assert_eq!(world.files().len(), 1, "no litter");
}

#[test]
fn thirty_three_truncations_are_refused() {
    let whole = image();
    assert_eq!(whole.len(), 8192);
    for cut in 0..32 {
        let world = World::with_journal();
        let size = cut * 256;
        std::fs::File::options()
            .write(true)
            .open(world.path())
            .unwrap()
            .set_len(size)
            .unwrap();
        match refused(&world) {
            CannotUse::Empty { .. } => assert_eq!(size, 0),
            CannotUse::Truncated { size_bytes, .. } => assert_eq!(size_bytes, size),
            other => panic!("{size}: {other:?}"),
        }
    }
    for size in [1, 15, 16, 17, 99, 100] {
        let world = World::empty();
        std::fs::write(world.path(), &whole[..size]).unwrap();
        assert_reason!(refused(&world), CannotUse::Truncated { .. });
    }
    let world = World::empty();
    std::fs::write(world.path(), &whole).unwrap();
    present(&world);
}

#[test]
fn foreign_files_are_refused() {
    let newer = image_of(APPLICATION_ID, SCHEMA_VERSION + 1);
    let world = World::empty();
    std::fs::write(world.path(), newer).unwrap();
    assert_reason!(
        refused(&world),
        CannotUse::NewerSchema {
            found: 2,
            supported: 1,
            ..
        }
    );
    std::fs::write(world.path(), image_of(0, 1)).unwrap();
    assert_reason!(refused(&world), CannotUse::Foreign { .. });
    std::fs::write(world.path(), image_of(-7, 1)).unwrap();
    assert_reason!(refused(&world), CannotUse::Foreign { .. });
    for version in [0, -1] {
        std::fs::write(world.path(), image_of(APPLICATION_ID, version)).unwrap();
        assert_reason!(refused(&world), CannotUse::Damaged { .. });
    }
    for text in ["hello", "SQLite format 4\0", "{}\n", "SQLite\n"] {
        std::fs::write(world.path(), text.repeat(100)).unwrap();
        assert_reason!(refused(&world), CannotUse::NotAJournal { .. });
    }
    for (at, byte) in [
        (16, 3),
        (17, 1),
        (18, 3),
        (19, 9),
        (21, 0),
        (22, 0),
        (23, 0),
    ] {
        let mut bytes = image();
        bytes[at] = byte;
        std::fs::write(world.path(), bytes).unwrap();
        assert_reason!(refused(&world), CannotUse::Damaged { .. });
    }
}

#[test]
fn links_and_special_files_are_refused() {
    let world = World::empty();
    let elsewhere = world.folder.path().join("elsewhere.db");
    std::fs::write(&elsewhere, image()).unwrap();
    symlink(&elsewhere, world.path()).unwrap();
    assert_reason!(refused(&world), CannotUse::Symlink { .. });
    assert_eq!(
        world.create(),
        Created::Theirs,
        "a link is not written through"
    );
    std::fs::remove_file(world.path()).unwrap();
    symlink("nowhere", world.path()).unwrap();
    assert_reason!(refused(&world), CannotUse::Symlink { .. });
    std::fs::remove_file(world.path()).unwrap();

    std::fs::create_dir(world.path()).unwrap();
    assert_reason!(
        refused(&world),
        CannotUse::NotRegular {
            what: "a folder",
            ..
        }
    );
    std::fs::remove_dir(world.path()).unwrap();

    nix::unistd::mkfifo(world.path(), Mode::S_IRWXU).unwrap();
    assert_reason!(
        refused(&world),
        CannotUse::NotRegular { what: "a FIFO", .. }
    );
    std::fs::remove_file(world.path()).unwrap();

    let socket = std::os::unix::net::UnixListener::bind(world.path()).unwrap();
    assert_reason!(
        refused(&world),
        CannotUse::NotRegular {
            what: "a socket",
            ..
        }
    );
    drop(socket);

    for device in ["/dev/null", "/dev/full", "/dev/zero"] {
        let journal = JournalPath::new(device).unwrap();
        assert_reason!(
            inspect(&journal).unwrap_err(),
            CannotUse::NotRegular {
                what: "a device",
                ..
            }
        );
    }
}

#[test]
fn a_companion_that_is_a_link_is_refused() {
    for companion in Companion::ALL {
        let world = World::with_journal();
        let elsewhere = world.folder.path().join("elsewhere");
        std::fs::write(&elsewhere, "x").unwrap();
        symlink(elsewhere, world.journal.companion(companion)).unwrap();
        assert_reason!(refused(&world), CannotUse::Symlink { .. });
    }
}

#[test]
fn a_short_file_is_right_where_the_log_holds_frames() {
    let world = World::with_journal();
    let opened = world.open();
    for fence in 1..2000 {
        commit(&opened.connection, fence);
    }
    let found = present(&world);
    assert!(found.wal_has_frames);
    // Another process killed now leaves just these files.
    let copy = World::empty();
    for (from, to) in [
        (world.path().to_owned(), copy.path().to_owned()),
        (
            world.journal.companion(Companion::Wal),
            copy.journal.companion(Companion::Wal),
        ),
    ] {
        std::fs::copy(from, to).unwrap();
    }
    assert!(present(&copy).wal_has_frames);
    assert_eq!(highest(&copy.open().connection), 1999);
}

#[test]
fn wide_modes_and_second_names_are_warned_of() {
    let world = World::with_journal();
    let wal = world.journal.companion(Companion::Wal);
    std::fs::write(&wal, "").unwrap();
    for (path, mode) in [(world.path(), 0o644), (&wal, 0o660)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    std::fs::hard_link(world.path(), world.folder.path().join("other.db")).unwrap();
    let warnings = present(&world).warnings;
    assert_eq!(
        warnings,
        [
            Warning::WideMode {
                path: world.path().to_owned(),
                mode: 0o644
            },
            Warning::SecondName {
                path: world.path().to_owned()
            },
            Warning::WideMode {
                path: wal,
                mode: 0o660
            },
            // An empty log is none, and there is no mark.
            Warning::Alone {
                path: world.path().to_owned()
            },
        ]
    );
    assert!(
        warnings
            .iter()
            .all(|warning| !warning.to_string().is_empty())
    );
}

const UMASK_TEST: &str = "journal::place::tests::modes_are_private_whatever_the_umask";

#[test]
fn modes_are_private_whatever_the_umask() {
    if let Some((role, journal)) = role() {
        let umask = u32::from_str_radix(&role, 8).unwrap();
        nix::sys::stat::umask(Mode::from_bits_truncate(umask as nix::libc::mode_t));
        let uid = [1; 16];
        prepare_parent(&journal).unwrap();
        let filesystem = super::super::filesystem::kind(journal.as_path()).unwrap();
        create(&journal, &image(), &filesystem).unwrap();
        let (mark, _) = super::super::mark::Mark::open(&journal, &uid).unwrap();
        super::super::key::Key::make_or_adopt(&journal).unwrap();
        let _lock = super::super::locks::SessionLock::acquire(&journal, 1).unwrap();
        let opened = super::super::fixture::open(&journal);
        commit(&opened.connection, 1);
        mark.raise(1, 1).unwrap();
        for path in std::iter::once(journal.as_path().to_owned()).chain(
            Companion::ALL
                .iter()
                .filter(|companion| **companion != Companion::Rollback)
                .map(|companion| journal.companion(*companion)),
        ) {
            assert_eq!(mode_of(&path), 0o600, "{}", path.display());
        }
        assert_eq!(mode_of(journal.folder()), 0o700);
        assert_eq!(mode_of(journal.folder().parent().unwrap()), 0o700);
        return;
    }
    for umask in ["000", "022", "077", "777"] {
        let world = World::empty();
        let journal = JournalPath::new(world.folder.path().join("made/here/run.db")).unwrap();
        let status = rerun(UMASK_TEST, umask, &journal).output().unwrap().status;
        assert!(status.success(), "umask {umask}");
    }
}

#[test]
fn folders_that_exist_keep_their_modes_and_files_in_the_way_are_told() {
    let world = World::empty();
    let there = world.folder.path().join("there");
    std::fs::create_dir(&there).unwrap();
    std::fs::set_permissions(&there, std::fs::Permissions::from_mode(0o755)).unwrap();
    prepare_parent(&JournalPath::new(there.join("run.db")).unwrap()).unwrap();
    assert_eq!(mode_of(&there), 0o755);
    let file = world.folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    match JournalPath::new(file.join("run.db")) {
        Ok(journal) => {
            assert_reason!(
                prepare_parent(&journal).unwrap_err(),
                CannotUse::NotRegular { .. }
            );
            inspect(&journal).unwrap_err();
        }
        Err(reason) => assert_reason!(reason, CannotUse::Io { .. }),
    }
}

#[test]
fn a_bad_image_is_not_made_a_journal() {
    let world = World::empty();
    let whole = image();
    for bytes in [&[][..], &whole[..100], &whole[..4096], b"hello"] {
        create(&world.journal, bytes, &world.filesystem()).unwrap_err();
    }
    assert!(world.files().is_empty());
}

#[test]
fn eight_threads_make_one_journal_and_all_open_it() {
    let world = World::empty();
    let filesystem = world.filesystem();
    let barrier = std::sync::Barrier::new(8);
    let made = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=8)
            .map(|fence| {
                let (world, filesystem, barrier) = (&world, &filesystem, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    inspect(&world.journal).unwrap();
                    let created = create(&world.journal, &image(), filesystem).unwrap();
                    super::super::mark::Mark::open(&world.journal, &[1; 16]).unwrap();
                    let opened = world.open();
                    opened
                        .connection
                        .busy_timeout(Duration::from_secs(20))
                        .unwrap();
                    commit(&opened.connection, fence);
                    opened.watch.check().unwrap();
                    created == Created::Ours
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .filter(|ours| *ours)
            .count()
    });
    assert_eq!(made, 1);
    assert_eq!(highest(&world.open().connection), 8);
}

const RACE_TEST: &str = "journal::place::tests::eight_processes_make_one_journal_and_all_open_it";

#[test]
fn eight_processes_make_one_journal_and_all_open_it() {
    if let Some((role, journal)) = role() {
        prepare_parent(&journal).unwrap();
        inspect(&journal).unwrap();
        let filesystem = super::super::filesystem::kind(journal.as_path()).unwrap();
        let created = create(&journal, &image(), &filesystem).unwrap();
        super::super::mark::Mark::open(&journal, &[1; 16]).unwrap();
        let opened = super::super::fixture::open(&journal);
        opened
            .connection
            .busy_timeout(Duration::from_secs(20))
            .unwrap();
        commit(&opened.connection, role.parse().unwrap());
        opened.watch.check().unwrap();
        println!("made: {}", created == Created::Ours);
        return;
    }
    let world = World::empty();
    let journal = JournalPath::new(world.folder.path().join("a/b/run.db")).unwrap();
    let children: Vec<_> = (1..=8)
        .map(|number| {
            rerun(RACE_TEST, &number.to_string(), &journal)
                .spawn()
                .unwrap()
        })
        .collect();
    let mut made = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        made += usize::from(
            String::from_utf8(output.stdout)
                .unwrap()
                .contains("made: true"),
        );
    }
    assert_eq!(made, 1);
    let opened = super::super::fixture::open(&journal);
    let count: i64 = opened
        .connection
        .query_row("SELECT count(*) FROM fences", [], |row| row.get(0))
        .unwrap();
    assert_eq!(count, 8);
}

#[test]
fn the_way_with_a_name_is_as_good() {
    let world = World::empty();
    assert!(whole_file::make_by_name(world.path(), b"one").unwrap());
    assert!(!whole_file::make_by_name(world.path(), b"two").unwrap());
    assert_eq!(std::fs::read(world.path()).unwrap(), b"one");
    assert_eq!(mode_of(world.path()), 0o600);
    assert_eq!(world.files().len(), 1, "no litter");
}
