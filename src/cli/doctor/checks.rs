//! The checks of a journal, each a line: as it should be, or what to do.
//!
//! Each part is looked at on its own, so that one that is not as it should be hides no other.
//! Nothing is changed. Must not: lay anything out, or walk all entries (that is `verify`'s).

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use nix::unistd::AccessFlags;

use super::super::verify::counted;
use super::{Check, sessions};
use crate::journal::cannot_use::CannotUse;
use crate::journal::filesystem;
use crate::journal::key::Key;
use crate::journal::mark;
use crate::journal::place::{self, Companion, JournalPath, Present, State, Warning};
use crate::journal::walk::Walk;

/// Free space that a reservation needs, in bytes (contract, section 8).
const ROOM_BYTES: u64 = 64 << 20;

/// A write-ahead log above this many bytes is one that nobody moves into the journal.
const LOG_BYTES_MAX: u64 = 256 << 20;

/// Checks the journal at `path`; `hint` is how further commands name it.
pub(super) fn journal(path: &JournalPath, hint: &str) -> Vec<Check> {
    let mut checks = Vec::new();
    let present = match place::inspect(path) {
        Ok(State::Present(present)) => {
            checks.push(file(path, &present));
            Some(present)
        }
        Ok(State::Absent) => {
            checks.push(Check::bad(
                "journal",
                format!("there is none at {path}"),
                "check the path; the proxy makes it with its first start",
            ));
            None
        }
        Err(error) => {
            checks.push(Check::refused("journal", &error, hint));
            None
        }
    };
    checks.push(file_system(path));
    checks.push(space(path));
    checks.push(folder(path));
    if let Some(present) = present {
        checks.push(modes(&present));
        checks.push(companions(path));
        opened(path, hint, &mut checks);
    }
    checks
}

fn file(path: &JournalPath, present: &Present) -> Check {
    let text = format!(
        "{path}: {} bytes, schema version {}, {}",
        present.size_bytes,
        present.schema_version,
        if present.is_wal {
            "with a write-ahead log"
        } else {
            "with a rollback journal"
        }
    );
    match writable(path.as_path(), AccessFlags::R_OK | AccessFlags::W_OK) {
        Ok(()) => Check::ok("journal", text),
        Err(why) => Check::bad(
            "journal",
            format!("{text}, but it can't be written ({why})"),
            "change its permissions; a proxy could record nothing",
        ),
    }
}

fn writable(path: &Path, access: AccessFlags) -> nix::Result<()> {
    nix::unistd::faccessat(
        nix::fcntl::AT_FDCWD,
        path,
        access,
        nix::fcntl::AtFlags::AT_EACCESS,
    )
}

fn file_system(path: &JournalPath) -> Check {
    match filesystem::kind(path.folder()) {
        Ok(kind) if kind.wal_safe => Check::ok("file system", kind.name.into_owned()),
        Ok(kind) => Check::bad(
            "file system",
            format!("{}: a write-ahead log is not safe there", kind.name),
            "a slower rollback journal is used; put the journal on a local disk if you can",
        ),
        Err(error) => Check::bad("file system", error.to_string(), "check the path"),
    }
}

fn space(path: &JournalPath) -> Check {
    match filesystem::free_bytes(path.folder()) {
        Ok(free) if free >= ROOM_BYTES => {
            Check::ok("disk space", format!("{} free", rounded(free)))
        }
        Ok(free) => Check::bad(
            "disk space",
            format!(
                "{} free, and each reservation needs {}",
                rounded(free),
                rounded(ROOM_BYTES)
            ),
            "make room; until then calls are refused as journal_unavailable",
        ),
        Err(error) => Check::bad("disk space", error.to_string(), "check the path"),
    }
}

/// Returns a size in the largest unit of which there are ten, or in bytes.
fn rounded(bytes: u64) -> String {
    [(30, "GiB"), (20, "MiB"), (10, "KiB")]
        .into_iter()
        .find(|(shift, _)| bytes >> shift >= 10)
        .map_or_else(
            || format!("{bytes} bytes"),
            |(shift, unit)| format!("{} {unit}", bytes >> shift),
        )
}

fn folder(path: &JournalPath) -> Check {
    let folder = path.folder();
    let metadata = match std::fs::metadata(folder) {
        Ok(metadata) => metadata,
        Err(error) => {
            return Check::bad(
                "folder",
                format!("{}: {error}", folder.display()),
                "check the path; the proxy makes the folder with its first start",
            );
        }
    };
    let mode = metadata.permissions().mode() & 0o7777;
    let text = format!("{}, mode {mode:04o}", folder.display());
    // With the sticky bit others can add files but neither move nor remove ours.
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Check::bad(
            "folder",
            format!("{text}: others can replace the journal"),
            &format!("chmod 700 {}", folder.display()),
        );
    }
    match writable(folder, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Check::ok("folder", text),
        Err(why) => Check::bad(
            "folder",
            format!("{text}: it can't be written ({why})"),
            "change its permissions; SQLite makes its log there",
        ),
    }
}

fn modes(present: &Present) -> Check {
    // That the mark is missing is the mark's check.
    let warnings = present.warnings.iter();
    let warnings = warnings.filter(|warning| !matches!(warning, Warning::Alone { .. }));
    let what: Vec<String> = warnings.map(ToString::to_string).collect();
    if what.is_empty() {
        return Check::ok("modes", "only the owner can read and write it".to_owned());
    }
    Check::bad(
        "modes",
        what.join("; "),
        "the journal and its companions belong to one user, with mode 600",
    )
}

fn companions(path: &JournalPath) -> Check {
    let mut there = Vec::new();
    let mut log_bytes = 0;
    for companion in Companion::ALL {
        if let Ok(metadata) = std::fs::symlink_metadata(path.companion(companion)) {
            if companion == Companion::Wal {
                log_bytes = metadata.size();
            }
            there.push(format!(
                "{} ({} bytes)",
                companion.suffix(),
                metadata.size()
            ));
        }
    }
    let text = if there.is_empty() {
        "none".to_owned()
    } else {
        there.join(", ")
    };
    if log_bytes > LOG_BYTES_MAX {
        return Check::bad(
            "companions",
            text,
            "the log is large: somebody has held a read transaction open for long; end it",
        );
    }
    Check::ok("companions", text)
}

/// What only SQLite can tell.
fn opened(path: &JournalPath, hint: &str, checks: &mut Vec<Check>) {
    let walk = match Walk::open(path) {
        Ok(walk) => walk,
        Err(error) => {
            checks.push(Check::refused("schema", &error, hint));
            return;
        }
    };
    let verify = format!("`checkpoint verify {hint}` tells more; restore it from a backup");
    let failed = |name, error: &dyn std::fmt::Display| Check::bad(name, error.to_string(), &verify);
    checks.push(match walk.shape_faults() {
        Ok(faults) if faults.is_empty() => Check::ok("schema", "as this release makes it".into()),
        Ok(faults) => Check::bad("schema", faults.join("; "), &verify),
        Err(error) => failed("schema", &error),
    });
    checks.push(mark_check(path, &walk, hint));
    checks.push(
        match walk.identity().map(|identity| identity.key_fingerprint) {
            Ok(None) => Check::ok("key", "none is needed: no arguments were redacted".into()),
            Ok(Some(fingerprint)) => match Key::load(path, &fingerprint) {
                Ok(_) => Check::ok("key", "it is the journal's".into()),
                Err(error) => Check::refused("key", &error, hint),
            },
            Err(error) => failed("key", error),
        },
    );
    drop(walk);
    checks.push(sessions::check(path));
    match sessions::counts(path) {
        Ok(counts) => {
            checks.push(Check::ok(
                "entries",
                format!(
                    "{}, {} running, {} never delivered",
                    counted(counts.entries, "entry", "entries"),
                    counts.running,
                    counts.undelivered
                ),
            ));
            checks.push(match counts.in_doubt {
                0 => Check::ok("in doubt", "none".into()),
                count => Check::bad(
                    "in doubt",
                    counted(count, "entry", "entries"),
                    &format!("`checkpoint ls --in-doubt {hint}`, then `checkpoint resolve`"),
                ),
            });
        }
        Err(error) => checks.push(failed("entries", &error)),
    }
}

fn mark_check(path: &JournalPath, walk: &Walk, hint: &str) -> Check {
    let accept = format!(
        "put the newest copy back, or accept the loss with `checkpoint doctor \
         --accept-older-journal {hint}`"
    );
    let highest = match walk.highest_fence() {
        Ok(highest) => highest,
        Err(error) => return Check::bad("mark", error.to_string(), &accept),
    };
    match walk.mark() {
        Ok(Some(read)) => match mark::check(path, &read, highest) {
            Ok(()) if read.rebuilt && highest > 0 => Check::bad(
                "mark",
                format!("missing or torn, while the journal holds fence {highest}"),
                "the next start makes it anew; make sure that this is the newest copy",
            ),
            // Each start makes one before the first call, so an empty journal has one, too.
            Ok(()) if read.rebuilt => Check::bad(
                "mark",
                "missing or torn, while the journal holds no call: it may be a copy that was made \
                 without its -wal, and what was called since would run again"
                    .to_owned(),
                "if calls were made, put a copy with all its companions in its place; if none \
                 was, the next start makes the mark",
            ),
            Ok(()) => Check::ok(
                "mark",
                format!("fence {} (the journal holds {highest})", read.highest),
            ),
            Err(error) => Check::refused("mark", &error, hint),
        },
        Ok(None) => Check::bad("mark", "it can't be told whose it is".into(), &accept),
        Err(why) => Check::bad("mark", why.to_owned(), &accept),
    }
}

impl Check {
    /// Returns the line for a reason that says itself what to do, after its last semicolon.
    fn refused(name: &'static str, error: &CannotUse, hint: &str) -> Self {
        let text = error.to_string();
        match error {
            CannotUse::BackInTime { .. } | CannotUse::OtherMark { .. } => Self::bad(
                name,
                text,
                &format!(
                    "put the newest copy back, or accept the loss with `checkpoint doctor \
                     --accept-older-journal {hint}`"
                ),
            ),
            _ => match text.rsplit_once("; ") {
                Some((what, act)) => Self::bad(name, what.to_owned(), act),
                None => Self::bad(name, text, "see the message"),
            },
        }
    }
}
