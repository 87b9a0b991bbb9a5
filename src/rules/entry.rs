//! An entry: what the journal holds about one call, and the checksum over what a replay relies on.
//!
//! Must not: know how an entry is stored, or change one (that is [`super::lifecycle`]'s).

use sha2::{Digest, Sha256};

use super::ids::{BranchId, Fence, HeldKey, Micros, Seq, SessionId};
use super::signature::{Scheme, Signature};

/// What is stored about where a call stands. In doubt is no status: it is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Reserved: the upstream may have seen it, no outcome is known.
    Pending,
    /// The upstream answered with a result, or an operator said so.
    Completed,
    /// The upstream answered with an error, which does not prove that nothing happened.
    Failed,
    /// The upstream asked for input; the next round of the same call may follow.
    InputRequired,
    /// The upstream answered with a task handle; the effect is open.
    Accepted,
    /// It is known that the call was not executed.
    Voided,
    /// A policy or a person said no.
    Denied,
}

impl Status {
    /// All of them, in the order of the contract.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Completed,
        Self::Failed,
        Self::InputRequired,
        Self::Accepted,
        Self::Voided,
        Self::Denied,
    ];

    /// Returns the name that is stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::InputRequired => "INPUT_REQUIRED",
            Self::Accepted => "ACCEPTED",
            Self::Voided => "VOIDED",
            Self::Denied => "DENIED",
        }
    }

    /// Returns the status of that name, `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// Whose outcome it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provenance {
    /// The upstream's own answer.
    Upstream,
    /// A verdict with a result, by an operator.
    Operator,
    /// A verdict with a result, by whom a policy names to be asked.
    Prober,
    /// A verdict without a result: the replayed text is ours.
    Synthetic,
}

impl Provenance {
    /// Returns the name that is stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Operator => "operator",
            Self::Prober => "prober",
            Self::Synthetic => "synthetic",
        }
    }

    /// Returns the provenance of that name, `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Upstream,
            Self::Operator,
            Self::Prober,
            Self::Synthetic,
        ]
        .into_iter()
        .find(|provenance| provenance.name() == name)
    }
}

/// Why the caller of a call no longer waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GaveUp {
    /// It was answered `outcome_unknown` after `--call-timeout`.
    TimedOut,
    /// It sent a cancellation.
    Cancelled,
    /// Its end of our output pipe is closed.
    Gone,
}

impl GaveUp {
    /// Returns the name that is stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TimedOut => "timeout",
            Self::Cancelled => "cancelled",
            Self::Gone => "gone",
        }
    }

    /// Returns the reason of that name, `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::TimedOut, Self::Cancelled, Self::Gone]
            .into_iter()
            .find(|reason| reason.name() == name)
    }
}

/// Why the session that ran a call knows that no answer will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unanswered {
    /// The upstream ended, or closed its output.
    UpstreamExited,
    /// The upstream answered a cancelled call with an error: stopped, but not where.
    StoppedByCancel,
    /// The upstream answered with a connection error after we had closed its input.
    ConnectionClosed,
    /// The answer was larger than `--max-message-bytes`.
    AnswerTooLarge,
    /// The outcome came but could not be written.
    NotWritten,
    /// The proxy stopped waiting: the drain time had passed.
    DrainEnded,
    /// The entry was taken from its owner, by an operator or by an attempt that then never ran:
    /// what that owner still hears is stale.
    Fenced,
}

impl Unanswered {
    const ALL: [Self; 7] = [
        Self::UpstreamExited,
        Self::StoppedByCancel,
        Self::ConnectionClosed,
        Self::AnswerTooLarge,
        Self::NotWritten,
        Self::DrainEnded,
        Self::Fenced,
    ];

    /// Returns the name that is stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UpstreamExited => "upstream_exited",
            Self::StoppedByCancel => "cancelled",
            Self::ConnectionClosed => "connection_closed",
            Self::AnswerTooLarge => "message_too_large",
            Self::NotWritten => "not_written",
            Self::DrainEnded => "drain_ended",
            Self::Fenced => "fenced",
        }
    }

    /// Returns the reason of that name, `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

/// A digest of an outcome's bytes (SHA-256). A tombstone keeps it.
pub type OutcomeDigest = [u8; 32];

/// Returns the digest of an outcome's bytes as they are stored.
#[must_use]
pub fn outcome_digest(body: &[u8]) -> OutcomeDigest {
    Sha256::digest(body).into()
}

/// What the journal holds about one call, without its payloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The branch that holds it.
    pub branch: BranchId,
    /// Its place in the workflow.
    pub seq: Seq,
    /// The tool's name as the client sent it.
    pub tool: String,
    /// How [`Entry::signature`] was made.
    pub scheme: Scheme,
    /// The signature of the current attempt's call.
    pub signature: Signature,
    /// Where it stands.
    pub status: Status,
    /// The number of the current attempt, from 1.
    pub attempt: u32,
    /// The round within the attempt, from 0.
    pub round: u32,
    /// The fence of the current attempt and round.
    pub fence: Fence,
    /// The session that reserved the current attempt.
    pub session: SessionId,
    /// When the current attempt was reserved.
    pub created_at: Micros,
    /// When the current outcome was written.
    pub completed_at: Option<Micros>,
    /// When an answer has been written to a caller that was waiting for it.
    pub delivered_at: Option<Micros>,
    /// Whether the caller of the running call has given up.
    pub gave_up: Option<GaveUp>,
    /// Whether the owner knows that no answer will come.
    pub unanswered: Option<Unanswered>,
    /// The outcome is a result with `isError: true`.
    pub is_error: bool,
    /// Whose outcome it is; `None` while there is none.
    pub provenance: Option<Provenance>,
    /// The digest of the outcome's bytes; `None` while there is none.
    pub digest: Option<OutcomeDigest>,
    /// The outcome's bytes are gone: buried by `gc`, or never kept.
    pub is_tombstone: bool,
    /// The key that the entry holds.
    pub key: Option<HeldKey>,
    /// The provider's tool-call id, as the client sent it.
    pub call_id: Option<String>,
}

/// A checksum over what a replay relies on: the first 16 bytes of a SHA-256.
pub type Checksum = [u8; 16];

impl Entry {
    /// Returns the checksum over what a replay relies on.
    ///
    /// Covered: the journal's uid, the entry's place, tool, scheme, signature, status, attempt,
    /// round, fence, session, `is_error`, provenance, the outcome's digest, whether it is a
    /// tombstone, and the key with its window. Not covered: times, delivery, call id and the
    /// notes on a running call, on which no replay relies.
    #[must_use]
    pub fn checksum(&self, journal_uid: &[u8; 16]) -> Checksum {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(b"entry-1");
        part(journal_uid);
        for number in [
            self.branch.0,
            self.seq.0,
            u64::from(self.attempt),
            u64::from(self.round),
            self.fence.0,
            self.session.0,
        ] {
            part(&number.to_le_bytes());
        }
        part(self.tool.as_bytes());
        part(self.scheme.name().as_bytes());
        part(&self.signature.0);
        part(self.status.name().as_bytes());
        part(&[u8::from(self.is_error), u8::from(self.is_tombstone)]);
        part(self.provenance.map_or("", Provenance::name).as_bytes());
        part(self.digest.as_ref().map_or(&[][..], |digest| &digest[..]));
        if let Some(held) = &self.key {
            part(held.key.as_bytes());
            part(held.window.name().as_bytes());
            part(held.window_id.as_bytes());
        }
        let digest: [u8; 32] = hash.finalize().into();
        let mut short = [0; 16];
        short.copy_from_slice(&digest[..16]);
        short
    }

    /// Returns whether the outcome is the upstream's own answer, and no verdict.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.provenance == Some(Provenance::Upstream)
    }

    /// Returns whether the outcome reached nobody.
    #[must_use]
    pub fn is_undelivered(&self) -> bool {
        self.completed_at.is_some() && self.delivered_at.is_none()
    }
}
