//! What a disk holds after a power cut: what was synced, and of the rest nothing, all, or some.
//!
//! The strictest reading of POSIX: what was not synced may be there or not, each write for
//! itself, whole or torn at a sector; a new name is there once the new file was synced (as
//! SQLite's own VFS syncs the folder with it), a removed one is gone for sure only where the
//! folder was synced.

use std::collections::BTreeMap;

use crate::random::Random;
use crate::vfs::Op;

pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// What survives of that which was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Survivors {
    None,
    All,
    Random(u64),
    Torn(u64),
}

const SECTOR_BYTES: usize = 512;

#[derive(Clone, Default)]
struct OneFile {
    /// What is on the platter; `None`: no such name.
    durable: Option<Vec<u8>>,
    pending: Vec<Op>,
}

#[derive(Clone)]
pub(crate) struct Disk {
    files: BTreeMap<String, OneFile>,
    /// A disk that says that it has synced and has not.
    lies: bool,
}

impl Disk {
    pub(crate) fn new(files: &Files, lies: bool) -> Self {
        let files = files
            .iter()
            .map(|(name, bytes)| {
                let file = OneFile {
                    durable: Some(bytes.clone()),
                    pending: Vec::new(),
                };
                (name.clone(), file)
            })
            .collect();
        Self { files, lies }
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        let name = match op {
            Op::Create(name)
            | Op::Write(name, ..)
            | Op::Truncate(name, _)
            | Op::Sync(name)
            | Op::SyncFailed(name)
            | Op::Delete(name, _) => name,
            Op::Other => return,
        };
        let file = self.files.entry(name.clone()).or_default();
        match op {
            Op::Sync(_) if self.lies => {}
            Op::Delete(_, true) if !self.lies => *file = OneFile::default(),
            Op::Sync(_) => {
                for op in std::mem::take(&mut file.pending) {
                    put(&mut file.durable, &op, usize::MAX);
                }
            }
            // The pages are marked clean and never written; names and sizes stay as they were.
            Op::SyncFailed(_) => file.pending.clear(),
            op => file.pending.push(op.clone()),
        }
    }

    /// Whether there is anything that may or may not survive.
    pub(crate) fn has_pending(&self) -> bool {
        self.files.values().any(|file| !file.pending.is_empty())
    }

    pub(crate) fn after_cut(&self, survivors: Survivors) -> Files {
        let mut random = match survivors {
            Survivors::Random(seed) | Survivors::Torn(seed) => Random::new(seed),
            Survivors::None | Survivors::All => Random::new(0),
        };
        let mut files = Files::new();
        for (name, file) in &self.files {
            let mut content = file.durable.clone();
            for op in &file.pending {
                match survivors {
                    Survivors::None => {}
                    Survivors::All => put(&mut content, op, usize::MAX),
                    Survivors::Random(_) => {
                        if random.chance(500) {
                            put(&mut content, op, usize::MAX);
                        }
                    }
                    Survivors::Torn(_) => match random.below(3) {
                        0 => {}
                        1 => put(&mut content, op, usize::MAX),
                        _ => {
                            let bytes = match op {
                                Op::Write(_, _, data) => data.len(),
                                _ => 0,
                            };
                            let sectors = bytes.div_ceil(SECTOR_BYTES);
                            put(&mut content, op, random.below(sectors + 1) * SECTOR_BYTES);
                        }
                    },
                }
            }
            if let Some(content) = content {
                files.insert(name.clone(), content);
            }
        }
        files
    }
}

/// Lets one operation reach the platter, of a write only so many bytes.
fn put(content: &mut Option<Vec<u8>>, op: &Op, bytes_max: usize) {
    match op {
        Op::Create(_) => {
            content.get_or_insert_default();
        }
        Op::Write(_, at, data) => {
            let data = &data[..data.len().min(bytes_max)];
            let at = usize::try_from(*at).unwrap();
            let content = content.get_or_insert_default();
            if content.len() < at + data.len() {
                content.resize(at + data.len(), 0);
            }
            content[at..at + data.len()].copy_from_slice(data);
        }
        Op::Truncate(_, size) => {
            if let Some(content) = content {
                content.truncate(usize::try_from(*size).unwrap());
            }
        }
        Op::Delete(..) => *content = None,
        Op::Sync(_) | Op::SyncFailed(_) | Op::Other => {}
    }
}
