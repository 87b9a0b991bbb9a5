//! Tells on what file system a journal stands, before SQLite is asked to do anything there.
//!
//! A write-ahead log needs memory that all processes share and locks that all obey. Network file
//! systems, and those that a program outside the kernel serves, do not promise that; what they
//! give instead loses entries without a word. So the kind is looked up in a table first.
//!
//! Invariant: a file system that is not in the table is taken for one that can't carry a
//! write-ahead log; a rollback journal is slower and right everywhere.
//!
//! It must not open or make files.
//!
//! Source: SQLite "Write-Ahead Logging" ("all processes using a database must be on the same host
//! computer; WAL does not work over a network filesystem"); Linux `statfs(2)` and
//! `linux/magic.h` for the numbers.

use std::borrow::Cow;
use std::path::Path;

use super::cannot_use::CannotUse;

/// A file system, as far as a journal cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// Its name, for people.
    pub name: Cow<'static, str>,
    /// Whether SQLite's write-ahead log is safe there.
    pub wal_safe: bool,
    /// Whether another machine, or a program outside the kernel, may serve it.
    pub network: bool,
}

/// Returns the file system of `path`, or of its nearest folder that exists.
///
/// # Errors
///
/// [`CannotUse::Io`] if the system does not tell.
pub fn kind(path: &Path) -> Result<Filesystem, CannotUse> {
    let stat = at_nearest(path, nix::sys::statfs::statfs)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // The kernel's numbers have 32 bits; the field's width and sign differ by machine.
        let magic = stat.filesystem_type().0 as u32;
        Ok(by_magic(magic))
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    Ok(by_name(stat.filesystem_type_name()))
}

/// Returns how many bytes an ordinary user may still write on the file system of `path`.
///
/// Quotas are not seen.
///
/// # Errors
///
/// [`CannotUse::Io`] if the system does not tell.
pub fn free_bytes(path: &Path) -> Result<u64, CannotUse> {
    let stat = at_nearest(path, nix::sys::statvfs::statvfs)?;
    // The types differ by machine.
    let free = (stat.blocks_available() as u64).saturating_mul(stat.fragment_size() as u64);
    Ok(free)
}

fn at_nearest<T>(path: &Path, ask: impl Fn(&Path) -> nix::Result<T>) -> Result<T, CannotUse> {
    let mut nearest = path;
    loop {
        match ask(nearest) {
            Ok(answer) => return Ok(answer),
            Err(nix::errno::Errno::EINTR) => {}
            Err(nix::errno::Errno::ENOENT) if nearest.parent().is_some() => {
                nearest = nearest.parent().expect("checked in the guard");
            }
            Err(errno) => return Err(CannotUse::io("find the file system of", path, errno.into())),
        }
    }
}

/// How a file system of the table is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// In this kernel alone, with shared memory and locks.
    Local,
    /// Served from elsewhere.
    Served,
}

use Use::{Local, Served};

/// The numbers by which Linux tells its file systems.
#[cfg(any(target_os = "linux", target_os = "android", test))]
const BY_MAGIC: &[(u32, &str, Use)] = &[
    (0x0000_ef53, "ext4", Local),
    (0x5846_5342, "xfs", Local),
    (0x9123_683e, "btrfs", Local),
    (0x2fc1_2fc1, "zfs", Local),
    (0xca45_1a4e, "bcachefs", Local),
    (0xf2f5_2010, "f2fs", Local),
    (0x0102_1994, "tmpfs", Local),
    (0x8584_58f6, "ramfs", Local),
    (0x794c_7630, "overlay", Local),
    (0x6175_6673, "aufs", Local),
    (0x0000_f15f, "ecryptfs", Local),
    (0x5265_4973, "reiserfs", Local),
    (0x3153_464a, "jfs", Local),
    (0x0000_3434, "nilfs2", Local),
    (0x0000_4d44, "vfat", Local),
    (0x2011_bab0, "exfat", Local),
    (0x7366_746e, "ntfs3", Local),
    (0x0000_482b, "hfsplus", Local),
    (0x1501_3346, "udf", Local),
    (0x2405_1905, "ubifs", Local),
    (0x0000_72b6, "jffs2", Local),
    (0x0000_6969, "nfs", Served),
    (0xff53_4d42, "cifs", Served),
    (0xfe53_4d42, "smb2", Served),
    (0x0000_517b, "smb", Served),
    (0x0102_1997, "9p", Served),
    // Also virtiofs, which the kernel reports as FUSE.
    (0x6573_5546, "fuse", Served),
    (0x786f_4256, "vboxsf", Served),
    (0xbacb_acbc, "vmhgfs", Served),
    (0x5346_414f, "afs", Served),
    (0x6b41_4653, "kafs", Served),
    (0x7375_7245, "coda", Served),
    (0x0000_564c, "ncp", Served),
    (0x00c3_6400, "ceph", Served),
    (0x0bd0_0bd0, "lustre", Served),
    (0x4750_4653, "gpfs", Served),
    (0x0116_1970, "gfs2", Served),
    (0x7461_636f, "ocfs2", Served),
    (0x2003_0528, "orangefs", Served),
    (0x013f_cafe, "prl_fs", Served),
    (0xaad7_aaea, "panfs", Served),
    (0x1980_0202, "fhgfs", Served),
];

/// The names by which other systems tell theirs.
#[cfg(any(not(any(target_os = "linux", target_os = "android")), test))]
const BY_NAME: &[(&str, Use)] = &[
    ("apfs", Local),
    ("hfs", Local),
    ("ufs", Local),
    ("ffs", Local),
    ("zfs", Local),
    ("tmpfs", Local),
    ("msdos", Local),
    ("exfat", Local),
    ("nfs", Served),
    ("smbfs", Served),
    ("afpfs", Served),
    ("webdav", Served),
    ("macfuse", Served),
    ("osxfuse", Served),
    ("fusefs", Served),
    ("virtiofs", Served),
];

#[cfg(any(target_os = "linux", target_os = "android", test))]
fn by_magic(magic: u32) -> Filesystem {
    match BY_MAGIC.iter().find(|row| row.0 == magic) {
        Some((_, name, how)) => known(name, *how),
        None => unknown(format!("an unknown file system ({magic:#010x})")),
    }
}

#[cfg(any(not(any(target_os = "linux", target_os = "android")), test))]
fn by_name(name: &str) -> Filesystem {
    match BY_NAME.iter().find(|row| row.0 == name) {
        Some((name, how)) => known(name, *how),
        None => unknown(format!("an unknown file system ({name})")),
    }
}

fn known(name: &'static str, how: Use) -> Filesystem {
    Filesystem {
        name: name.into(),
        wal_safe: how == Local,
        network: how == Served,
    }
}

fn unknown(name: String) -> Filesystem {
    Filesystem {
        name: name.into(),
        wal_safe: false,
        network: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_and_no_name_stands_twice_in_the_tables() {
        for (index, row) in BY_MAGIC.iter().enumerate() {
            assert!(
                BY_MAGIC[..index].iter().all(|other| other.0 != row.0),
                "{row:?}"
            );
        }
        for (index, row) in BY_NAME.iter().enumerate() {
            assert!(
                BY_NAME[..index].iter().all(|other| other.0 != row.0),
                "{row:?}"
            );
        }
    }

    #[test]
    fn what_is_served_from_elsewhere_gets_no_write_ahead_log() {
        for magic in [
            0x6969,
            0xff53_4d42,
            0xfe53_4d42,
            0x0102_1997,
            0x6573_5546,
            0x786f_4256,
        ] {
            let found = by_magic(magic);
            assert!(!found.wal_safe && found.network, "{found:?}");
        }
        for name in ["nfs", "smbfs", "macfuse"] {
            let found = by_name(name);
            assert!(!found.wal_safe && found.network, "{found:?}");
        }
    }

    #[test]
    fn what_is_local_gets_one_and_what_is_unknown_does_not() {
        for magic in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630] {
            let found = by_magic(magic);
            assert!(found.wal_safe && !found.network, "{found:?}");
        }
        assert!(by_name("apfs").wal_safe);
        assert!(!by_magic(0x1234_5678).wal_safe);
        assert!(!by_name("hologram").wal_safe);
    }

    #[test]
    fn the_folder_that_exists_is_asked_for_a_path_that_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let there = kind(folder.path()).unwrap();
        let not_there = kind(&folder.path().join("a/b/c.db")).unwrap();
        assert_eq!(there, not_there);
        assert!(free_bytes(&folder.path().join("a/b/c.db")).unwrap() > 0);
    }
}
