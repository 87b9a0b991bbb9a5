//! Remembers beside the journal how far it once was, so that an older copy is not taken for it.
//!
//! A journal whose `-wal` was removed, or that was restored from a backup, opens cleanly, and
//! every finished call since then would run again. The file `<journal>-mark` holds the highest
//! fence that was committed; it is written after each commit and without a sync, so that it costs
//! a microsecond and never says more than the journal durably holds.
//!
//! Invariants: a fence is written here only after its commit was acknowledged. A slot only rises.
//! A reader takes the highest slot that is whole, and reads it *before* it begins the snapshot
//! that it compares it with: the other way round, a commit in between would look like a loss.
//!
//! It must not read the journal, and must not decide: [`check`] compares, the caller refuses.
//!
//! Format, 1,048 bytes: `CKPTMRK1`, the journal's id (16 bytes), then 64 slots of 16 bytes: a
//! fence (`u64`, little endian) and the first 8 bytes of SHA-256 over journal id, slot index
//! (one byte) and fence. A slot of zeros was never written. The session with row id `n` writes
//! slot `n % 64`. Two sessions that share a slot at one time may set it back by the commits that
//! lie between their two system calls; that makes the check blunter by as much, never wrong.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::cannot_use::CannotUse;
use super::pinned::read_start;
use super::place::{Companion, JournalPath, Warning};
use super::whole_file;

const MAGIC: &[u8; 8] = b"CKPTMRK1";
const UID_BYTES: usize = 16;
const HEADER_BYTES: usize = MAGIC.len() + UID_BYTES;
const SLOT_BYTES: usize = 16;

/// The number of slots; session `n` writes slot `n % SLOTS`.
pub const SLOTS: usize = 64;

const FILE_BYTES: usize = HEADER_BYTES + SLOTS * SLOT_BYTES;

/// How often a slot that is not whole is read again, as its writer may be at it just now.
const READS_MAX: usize = 3;

/// The id by which a journal and its mark know each other.
pub type JournalUid = [u8; UID_BYTES];

/// The high-water mark of a journal, open for writing.
#[derive(Debug)]
pub struct Mark {
    file: File,
    path: PathBuf,
    uid: JournalUid,
}

/// What the mark said when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkRead {
    /// The highest fence that was committed as far as the mark knows; 0 if it knows of none.
    pub highest: u64,
    /// Whether the mark, or a part of it, was missing or torn and began anew (or, where it was
    /// only read, would have to).
    pub rebuilt: bool,
}

impl MarkRead {
    /// Returns the warning that the operator should see, given the highest fence in the journal.
    ///
    /// A journal without fences has nothing to lose, so a mark that was not made yet is none.
    pub fn warning(&self, journal: &JournalPath, highest: u64) -> Option<Warning> {
        (self.rebuilt && highest > 0).then(|| Warning::MarkRebuilt {
            path: journal.companion(Companion::Mark),
        })
    }
}

/// Compares the mark with the highest fence of a snapshot that was begun after it was read.
///
/// # Errors
///
/// [`CannotUse::BackInTime`] if the journal knows less than the mark.
pub fn check(journal: &JournalPath, mark: &MarkRead, highest: u64) -> Result<(), CannotUse> {
    if highest < mark.highest {
        return Err(CannotUse::BackInTime {
            path: journal.as_path().to_owned(),
            mark: mark.highest,
            highest,
        });
    }
    Ok(())
}

impl Mark {
    /// Opens the mark of a journal that stands in its place, and reads it.
    ///
    /// Where the mark is missing or torn it begins anew, with what is whole of it; the caller
    /// then raises it to the journal's highest fence and shows [`MarkRead::warning`]. Call it
    /// before the snapshot is begun whose highest fence it is compared with.
    ///
    /// # Errors
    ///
    /// [`CannotUse::OtherMark`] if it belongs to another journal; [`CannotUse::Symlink`],
    /// [`CannotUse::NotWritable`], [`CannotUse::Io`].
    pub fn open(journal: &JournalPath, uid: &JournalUid) -> Result<(Self, MarkRead), CannotUse> {
        let path = journal.companion(Companion::Mark);
        let mut was_missing = false;
        let file = loop {
            if let Some(file) =
                whole_file::open_existing(&path, true).map_err(|error| refuse(&path, error))?
            {
                break file;
            }
            was_missing = true;
            whole_file::make(&path, &blank(uid))
                .map_err(|error| CannotUse::io("make", &path, error))?;
        };
        let mark = Self {
            file,
            path,
            uid: *uid,
        };
        let found = mark.read(journal)?;
        if found.torn_header {
            // Nothing in it can be told apart from noise; the slots are bound to the header's id.
            mark.write(0, &blank(uid))?;
        }
        for index in found.torn_slots {
            mark.write(slot_offset(index), &[0; SLOT_BYTES])?;
        }
        let rebuilt = was_missing || found.torn_header || found.is_torn;
        Ok((
            mark,
            MarkRead {
                highest: found.highest,
                rebuilt,
            },
        ))
    }

    /// Reads the mark and changes nothing, also where it is missing or torn.
    ///
    /// # Errors
    ///
    /// [`CannotUse::OtherMark`], [`CannotUse::Symlink`], [`CannotUse::Io`].
    pub fn read_only(journal: &JournalPath, uid: &JournalUid) -> Result<MarkRead, CannotUse> {
        let path = journal.companion(Companion::Mark);
        let Some(file) =
            whole_file::open_existing(&path, false).map_err(|error| refuse(&path, error))?
        else {
            return Ok(MarkRead {
                highest: 0,
                rebuilt: true,
            });
        };
        let mark = Self {
            file,
            path,
            uid: *uid,
        };
        let found = mark.read(journal)?;
        Ok(MarkRead {
            highest: found.highest,
            rebuilt: found.torn_header || found.is_torn,
        })
    }

    /// Raises the slot of the session `session` to `fence`, if it is lower; one read and one
    /// write of 16 bytes, no sync.
    ///
    /// Call it after the commit of that fence was acknowledged, never before. A failure loses
    /// nothing but sharpness; the caller may go on and warn once.
    ///
    /// # Errors
    ///
    /// [`CannotUse::Io`].
    pub fn raise(&self, session: u64, fence: u64) -> Result<(), CannotUse> {
        let index = slot_of(session);
        let mut slot = [0; SLOT_BYTES];
        self.file
            .read_exact_at(&mut slot, slot_offset(index))
            .map_err(|error| CannotUse::io("read", &self.path, error))?;
        match decode(&self.uid, index, &slot) {
            Slot::Whole(written) if written >= fence => Ok(()),
            Slot::Whole(_) | Slot::Unused | Slot::Torn => {
                self.write(slot_offset(index), &encode(&self.uid, index, fence))
            }
        }
    }

    /// Sets the mark to `highest`, durably, whatever it said and whosever it was: the operator
    /// has accepted the journal as it is.
    ///
    /// No session may be live: one that is would still remember what was given up.
    ///
    /// # Errors
    ///
    /// [`CannotUse::Symlink`], [`CannotUse::NotWritable`], [`CannotUse::Io`].
    pub fn accept_lower(
        journal: &JournalPath,
        uid: &JournalUid,
        highest: u64,
    ) -> Result<(), CannotUse> {
        let path = journal.companion(Companion::Mark);
        let mut bytes = blank(uid);
        bytes[HEADER_BYTES..HEADER_BYTES + SLOT_BYTES].copy_from_slice(&encode(uid, 0, highest));
        let file = whole_file::open_or_make_empty(&path).map_err(|error| refuse(&path, error))?;
        // In place, so that whoever has it open sees it. Torn half-way it is begun anew.
        let mark = Self {
            file,
            path,
            uid: *uid,
        };
        mark.write(0, &bytes)?;
        mark.file
            .set_len(FILE_BYTES as u64)
            .and_then(|()| mark.file.sync_all())
            .and_then(|()| whole_file::sync_folder(journal.folder()))
            .map_err(|error| CannotUse::io("write", &mark.path, error))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), CannotUse> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| CannotUse::io("write", &self.path, error))
    }

    fn read(&self, journal: &JournalPath) -> Result<Found, CannotUse> {
        let mut found = Found::default();
        for _ in 0..READS_MAX {
            let mut bytes = [0; FILE_BYTES];
            let count = read_start(&self.file, &mut bytes)
                .map_err(|error| CannotUse::io("read", &self.path, error))?;
            found = parse(&self.uid, &bytes[..count]);
            if found.is_other {
                return Err(CannotUse::OtherMark {
                    path: journal.as_path().to_owned(),
                    mark: self.path.clone(),
                });
            }
            if !found.torn_header && !found.is_torn {
                break;
            }
        }
        Ok(found)
    }
}

/// What the bytes of a mark say.
#[derive(Debug, Default)]
struct Found {
    highest: u64,
    is_other: bool,
    torn_header: bool,
    is_torn: bool,
    torn_slots: Vec<usize>,
}

enum Slot {
    Unused,
    Whole(u64),
    Torn,
}

fn parse(uid: &JournalUid, bytes: &[u8]) -> Found {
    let mut found = Found::default();
    if bytes.len() < HEADER_BYTES || bytes[..MAGIC.len()] != MAGIC[..] {
        found.torn_header = true;
        return found;
    }
    if bytes[MAGIC.len()..HEADER_BYTES] != uid[..] {
        found.is_other = true;
        return found;
    }
    let (slots, _) = bytes[HEADER_BYTES..].as_chunks::<SLOT_BYTES>();
    for index in 0..SLOTS {
        match slots
            .get(index)
            .map_or(Slot::Torn, |slot| decode(uid, index, slot))
        {
            Slot::Unused => {}
            Slot::Whole(fence) => found.highest = found.highest.max(fence),
            Slot::Torn => {
                found.is_torn = true;
                found.torn_slots.push(index);
            }
        }
    }
    found
}

fn decode(uid: &JournalUid, index: usize, slot: &[u8; SLOT_BYTES]) -> Slot {
    if *slot == [0; SLOT_BYTES] {
        return Slot::Unused;
    }
    let fence = u64::from_le_bytes(*slot.first_chunk().expect("a slot has 16 bytes"));
    if *slot == encode(uid, index, fence) {
        Slot::Whole(fence)
    } else {
        Slot::Torn
    }
}

fn encode(uid: &JournalUid, index: usize, fence: u64) -> [u8; SLOT_BYTES] {
    let index = u8::try_from(index).expect("there are 64 slots");
    let digest = Sha256::new()
        .chain_update(uid)
        .chain_update([index])
        .chain_update(fence.to_le_bytes())
        .finalize();
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(&fence.to_le_bytes());
    slot[8..].copy_from_slice(&digest[..8]);
    slot
}

fn blank(uid: &JournalUid) -> [u8; FILE_BYTES] {
    let mut bytes = [0; FILE_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[MAGIC.len()..HEADER_BYTES].copy_from_slice(uid);
    bytes
}

fn slot_of(session: u64) -> usize {
    usize::try_from(session % SLOTS as u64).expect("there are 64 slots")
}

fn slot_offset(index: usize) -> u64 {
    (HEADER_BYTES + index * SLOT_BYTES) as u64
}

fn refuse(path: &Path, error: io::Error) -> CannotUse {
    match error.kind() {
        io::ErrorKind::PermissionDenied => CannotUse::NotWritable {
            path: path.to_owned(),
            source: error,
        },
        _ => CannotUse::io("open", path, error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{World, commit, highest};
    use super::*;

    const UID: JournalUid = [7; UID_BYTES];

    fn file_of(world: &World) -> PathBuf {
        world.journal.companion(Companion::Mark)
    }

    fn read(world: &World) -> MarkRead {
        Mark::read_only(&world.journal, &UID).unwrap()
    }

    #[test]
    fn a_mark_is_made_once_and_rises_only() {
        let world = World::with_journal();
        assert_eq!(
            read(&world),
            MarkRead {
                highest: 0,
                rebuilt: true
            }
        );
        assert!(!file_of(&world).exists(), "reading makes no file");
        let (mark, first) = Mark::open(&world.journal, &UID).unwrap();
        assert!(first.rebuilt && first.highest == 0);
        assert_eq!(first.warning(&world.journal, 0), None);
        assert!(first.warning(&world.journal, 1).is_some());
        for (session, fence, expected) in [(1, 5, 5), (2, 3, 5), (1, 4, 5), (65, 9, 9), (1, 8, 9)] {
            mark.raise(session, fence).unwrap();
            assert_eq!(read(&world).highest, expected);
        }
        let (_, again) = Mark::open(&world.journal, &UID).unwrap();
        assert_eq!(
            again,
            MarkRead {
                highest: 9,
                rebuilt: false
            }
        );
        assert_eq!(std::fs::read(file_of(&world)).unwrap().len(), FILE_BYTES);
        mark.raise(u64::MAX, u64::MAX).unwrap();
        assert_eq!(read(&world).highest, u64::MAX);
    }

    #[test]
    fn a_torn_slot_is_left_out_and_told_once() {
        let world = World::with_journal();
        let (mark, _) = Mark::open(&world.journal, &UID).unwrap();
        mark.raise(1, 5).unwrap();
        mark.raise(2, 9).unwrap();
        let whole = std::fs::read(file_of(&world)).unwrap();
        for at in HEADER_BYTES..FILE_BYTES {
            for bit in [0, 7] {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                std::fs::write(file_of(&world), &bytes).unwrap();
                let found = read(&world);
                assert!(found.rebuilt, "byte {at}");
                let torn = (at - HEADER_BYTES) / SLOT_BYTES;
                assert_eq!(found.highest, if torn == 2 { 5 } else { 9 });
                let (_, opened) = Mark::open(&world.journal, &UID).unwrap();
                assert_eq!(opened, found);
                assert!(!read(&world).rebuilt, "it is whole again");
            }
        }
    }

    #[test]
    fn a_cut_off_or_foreign_mark_begins_anew() {
        let world = World::with_journal();
        let (mark, _) = Mark::open(&world.journal, &UID).unwrap();
        mark.raise(1, 5).unwrap();
        let whole = std::fs::read(file_of(&world)).unwrap();
        for size in 0..FILE_BYTES {
            std::fs::write(file_of(&world), &whole[..size]).unwrap();
            let (again, found) = Mark::open(&world.journal, &UID).unwrap();
            assert!(found.rebuilt, "{size}");
            assert!(found.highest == 0 || found.highest == 5);
            again.raise(1, 6).unwrap();
            assert_eq!(
                read(&world),
                MarkRead {
                    highest: 6,
                    rebuilt: false
                }
            );
        }
        std::fs::write(file_of(&world), "something else ".repeat(100)).unwrap();
        let (_, found) = Mark::open(&world.journal, &UID).unwrap();
        assert!(found.rebuilt && found.highest == 0);
    }

    #[test]
    fn the_mark_of_another_journal_is_refused_until_it_is_accepted() {
        let world = World::with_journal();
        let (mark, _) = Mark::open(&world.journal, &[8; UID_BYTES]).unwrap();
        mark.raise(1, 100).unwrap();
        let before = std::fs::read(file_of(&world)).unwrap();
        for reason in [
            Mark::open(&world.journal, &UID).unwrap_err(),
            Mark::read_only(&world.journal, &UID).unwrap_err(),
        ] {
            assert!(matches!(reason, CannotUse::OtherMark { .. }), "{reason:?}");
        }
        assert_eq!(std::fs::read(file_of(&world)).unwrap(), before);
        Mark::accept_lower(&world.journal, &UID, 3).unwrap();
        assert_eq!(
            read(&world),
            MarkRead {
                highest: 3,
                rebuilt: false
            }
        );
    }

    #[test]
    fn a_journal_without_its_newest_log_went_back_in_time() {
        let world = World::with_journal();
        let opened = world.open();
        let (mark, found) = Mark::open(&world.journal, &UID).unwrap();
        check(&world.journal, &found, highest(&opened.connection)).unwrap();
        for fence in 1..=40 {
            commit(&opened.connection, fence);
            mark.raise(fence % 3, fence).unwrap();
        }
        // What is left of it after a kill, and somebody who removes the log.
        let left = World::empty();
        std::fs::copy(world.path(), left.path()).unwrap();
        std::fs::copy(file_of(&world), file_of(&left)).unwrap();
        let (_, found) = Mark::open(&left.journal, &UID).unwrap();
        let again = left.open();
        let reason = check(&left.journal, &found, highest(&again.connection)).unwrap_err();
        assert!(
            matches!(
                reason,
                CannotUse::BackInTime {
                    mark: 40,
                    highest: 0,
                    ..
                }
            ),
            "{reason:?}"
        );
        // With its log it is the newest.
        drop(again);
        std::fs::copy(
            world.journal.companion(Companion::Wal),
            left.journal.companion(Companion::Wal),
        )
        .unwrap();
        let again = left.open();
        check(&left.journal, &found, highest(&again.connection)).unwrap();
    }

    #[test]
    fn a_link_is_not_followed() {
        let world = World::with_journal();
        std::os::unix::fs::symlink("elsewhere", file_of(&world)).unwrap();
        for reason in [
            Mark::open(&world.journal, &UID).unwrap_err(),
            Mark::read_only(&world.journal, &UID).unwrap_err(),
            Mark::accept_lower(&world.journal, &UID, 1).unwrap_err(),
        ] {
            assert!(matches!(reason, CannotUse::Symlink { .. }), "{reason:?}");
        }
    }
}
