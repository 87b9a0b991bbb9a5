//! Why nothing was done to an entry, as a person reads it.
//!
//! Must not: decide it (that is [`crate::rules::ruling`]'s, and the desk's).

use crate::guard::stale::NotAdopted;
use crate::rules::entry::Status;
use crate::rules::ids::SessionId;

/// Why nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such entry.
    #[error("there is no such entry")]
    Absent,
    /// Its row, its checksum, its attempt or its outcome does not hold.
    #[error(
        "it is quarantined: what is stored does not hold, so nothing is known of it; `verify` \
         tells what, and `fork` leaves it behind"
    )]
    Quarantined,
    /// It is not in a state to which this can be done.
    #[error("it is {}, {why}", was.name())]
    NotNow {
        /// Where it stands.
        was: Status,
        /// Why that matters.
        why: &'static str,
    },
    /// It is a question or a task, and nothing was forced.
    #[error("it is {}, {}", was.name(), open_words(*was))]
    Open {
        /// Where it stands.
        was: Status,
    },
    /// No stale answer of it can be its outcome.
    #[error(transparent)]
    NotAdopted(NotAdopted),
    /// Its session holds its lock.
    #[error("session {session} is live and may still settle it")]
    Live {
        /// The session.
        session: SessionId,
    },
    /// Its session is gone, but the upstream that it started may not be.
    #[error("the upstream of session {session} (process group {pgid}) {}", alive_words(*is_known))]
    UpstreamAlive {
        /// The session.
        session: SessionId,
        /// The group.
        pgid: u32,
        /// It is known to live; else it can't be told.
        is_known: bool,
    },
    /// Another session asks about it.
    #[error("session {session} is asking about it")]
    BeingAsked {
        /// The session.
        session: SessionId,
    },
    /// Somebody was asked about it a moment ago, and it is in doubt still.
    #[error("somebody was asked about it just now, and did not know")]
    JustAsked,
    /// Somebody else changed it at the same moment.
    #[error("somebody else changed it just now; look again")]
    Changed,
}

const fn alive_words(is_known: bool) -> &'static str {
    if is_known {
        "is still alive, so it may yet take effect"
    } else {
        "can't be told to be gone, so it may yet take effect"
    }
}

const fn open_words(was: Status) -> &'static str {
    match was {
        Status::InputRequired => "so its client may yet answer the question",
        Status::Accepted
        | Status::Pending
        | Status::Completed
        | Status::Failed
        | Status::Voided
        | Status::Denied => "so its upstream may yet end the task",
    }
}

impl Refused {
    /// Tells whether forcing would have done it.
    #[must_use]
    pub const fn is_forcible(&self) -> bool {
        match self {
            Self::Live { .. } | Self::UpstreamAlive { .. } | Self::Open { .. } => true,
            Self::Absent
            | Self::Quarantined
            | Self::NotNow { .. }
            | Self::BeingAsked { .. }
            | Self::JustAsked
            | Self::NotAdopted(_)
            | Self::Changed => false,
        }
    }
}
