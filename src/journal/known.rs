//! What a connection remembers of a journal: that which it has read or written, and would read again
//! for the next step.
//!
//! A transaction holds the write lock from its beginning, so nobody else can change any of it
//! meanwhile; and the next one takes it over if no other connection has committed since. What was
//! not committed is forgotten.
//!
//! Must not: read or write, or tell of a row anything that was not stored when it was remembered.

use std::collections::{BTreeMap, BTreeSet};

use super::{Branch, Stored, Workflow};
use crate::rules::entry::{Checksum, Entry, Status};
use crate::rules::ids::{BranchId, Fence, Seq};
use crate::rules::signature::Signature;

/// Running calls that are remembered: more than any client has in flight.
const PENDING_MAX: usize = 4096;

/// Branches whose undelivered entries are remembered.
const SIGNED_BRANCHES_MAX: usize = 64;

/// What is known without asking.
#[derive(Default)]
pub(super) struct Known {
    /// What `PRAGMA data_version` said: another number once another connection has committed
    /// (SQLite, "PRAGMA data_version").
    pub(super) version: Option<i64>,
    /// Running calls that this connection has written, as they stand, so that an outcome finds
    /// its own. At most [`PENDING_MAX`].
    pending: BTreeMap<(BranchId, Seq), Box<Stored>>,
    /// Which signatures undelivered entries have, by branch.
    signed: BTreeMap<BranchId, Signed>,
    /// The workflow asked for last. Its active branch is as it was read: [`Known::branches`] has
    /// it as it is.
    pub(super) workflow: Option<Workflow>,
    pub(super) branches: Vec<Branch>,
    pub(super) highest_fence: Option<u64>,
}

/// The signatures of a branch's undelivered entries, and of some that were delivered since.
pub(super) enum Signed {
    /// None is missing.
    All(BTreeSet<Signature>),
    /// They are too many to be remembered; how many may be written before they are counted again.
    TooMany(usize),
}

impl Signed {
    /// So many undelivered entries of a branch are read at once, at most.
    pub(super) const READ_MAX: usize = 256;

    /// After so many, most are delivered: they are read again.
    const KEPT_MAX: usize = 1024;

    /// Takes note of one more. Returns whether they are to be read again.
    fn add(&mut self, signature: Signature) -> bool {
        match self {
            Self::All(signatures) => {
                signatures.insert(signature);
                signatures.len() > Self::KEPT_MAX
            }
            Self::TooMany(left) => {
                *left = left.saturating_sub(1);
                *left == 0
            }
        }
    }

    /// Returns whether an undelivered entry may have this signature. If not, none has.
    pub(super) fn may_hold(&self, signature: Signature) -> bool {
        match self {
            Self::All(signatures) => signatures.contains(&signature),
            Self::TooMany(_) => true,
        }
    }
}

impl Known {
    /// Knows nothing but which version of the journal it is of.
    pub(super) fn at(version: Option<i64>) -> Self {
        Self {
            version,
            ..Self::default()
        }
    }

    pub(super) fn branch(&self, id: BranchId) -> Option<Branch> {
        self.branches.iter().find(|branch| branch.id == id).copied()
    }

    pub(super) fn raise(&mut self, id: BranchId, highest: u64) {
        for branch in self.branches.iter_mut().filter(|branch| branch.id == id) {
            branch.highest = highest;
        }
    }

    /// Returns the running call at a place, if this connection has written it.
    pub(super) fn pending(&self, branch: BranchId, seq: Seq) -> Option<&Stored> {
        self.pending.get(&(branch, seq)).map(|stored| &**stored)
    }

    /// Returns it and forgets it: its row is about to change.
    pub(super) fn take_pending(&mut self, place: (BranchId, Seq)) -> Option<Stored> {
        self.pending.remove(&place).map(|stored| *stored)
    }

    /// The row is stored now.
    pub(super) fn wrote(&mut self, entry: &Entry, checksum: Checksum) {
        if entry.delivered_at.is_none()
            && let Some(signed) = self.signed.get_mut(&entry.branch)
            && signed.add(entry.signature)
        {
            self.signed.remove(&entry.branch);
        }
        if entry.status == Status::Pending {
            if self.pending.len() >= PENDING_MAX {
                self.pending.clear();
            }
            let stored = Box::new(Stored {
                entry: entry.clone(),
                checksum,
            });
            self.pending.insert((entry.branch, entry.seq), stored);
        }
    }

    /// Returns which signatures a branch's undelivered entries have; `None`: it must be read.
    pub(super) fn signed(&self, branch: BranchId) -> Option<&Signed> {
        self.signed.get(&branch)
    }

    /// These are the signatures of the branch's undelivered entries, or the first of too many.
    pub(super) fn read_signed(&mut self, branch: BranchId, found: Vec<Signature>) {
        if self.signed.len() >= SIGNED_BRANCHES_MAX {
            self.signed.clear();
        }
        let signed = if found.len() > Signed::READ_MAX {
            Signed::TooMany(Signed::KEPT_MAX)
        } else {
            Signed::All(found.into_iter().collect())
        };
        self.signed.insert(branch, signed);
    }
}

/// What a transaction writes once, before its commit.
#[derive(Default)]
pub(super) struct PutOff {
    /// Branches whose highest seq was raised.
    pub(super) raised: Vec<BranchId>,
    /// Outcomes that were written since the last reservation.
    pub(super) settled: Vec<Fence>,
    /// Outcomes that were written before the last reservation: nobody had seen them then, so each
    /// gets the fence after it.
    pub(super) overtaken: Vec<Fence>,
    /// The fence after that of the last reservation.
    pub(super) after_reserved: Option<Fence>,
}

/// Returns whether `after` differs from `before` in nothing but what an outcome changes.
pub(super) fn is_settled_only(before: &Entry, after: &Entry) -> bool {
    // Whole, so that a new column is asked about here.
    let Entry {
        status: _,
        completed_at: _,
        gave_up: _,
        unanswered: _,
        is_error: _,
        provenance: _,
        digest: _,
        is_tombstone: _,
        branch,
        seq,
        tool,
        attempt,
        round,
        fence,
        session,
        scheme,
        signature,
        created_at,
        delivered_at,
        key,
        call_id,
    } = after;
    *branch == before.branch
        && *seq == before.seq
        && *tool == before.tool
        && *attempt == before.attempt
        && *round == before.round
        && *fence == before.fence
        && *session == before.session
        && *scheme == before.scheme
        && *signature == before.signature
        && *created_at == before.created_at
        && *delivered_at == before.delivered_at
        && *key == before.key
        && *call_id == before.call_id
}
