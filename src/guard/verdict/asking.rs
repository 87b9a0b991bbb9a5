//! Whose turn it is to ask about a doubt, told by the entry's events.
//!
//! Several proxies may meet one doubt at the same time, and whoever is asked may be slow or dear.
//! Who is about to ask says so in the journal first; another one who meets the doubt sees that,
//! waits for the word, and asks only if none comes. Nothing depends on it but the number of
//! questions: each verdict is compared with the attempt that it is about.
//!
//! Must not: wait, or know who is asked.

use super::{AskOwner, Desk, Judged, Refused};
use crate::journal::{EventRow, JournalError, Stored, Transaction};
use crate::rules::ids::{Fence, SessionId};
use crate::rules::ruling::Claim;

/// What is written before somebody is asked.
const BEGUN: &str = "reconciling";

/// What is written once there is a word, also if that is that nothing is known.
pub(super) const RESOLVED: &str = "resolved";

/// How long whoever is about to ask has waited for somebody else's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Not at all.
    First,
    /// Somebody else was at it a moment ago, and that word may be there now.
    Waiting,
    /// As long as it may: it is asked whoever else is at it.
    Over,
}

/// How the asking about an attempt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// Nobody has begun.
    Nobody,
    /// That session has begun, and said nothing since. An operator's command has no session.
    Begun(Option<SessionId>),
    /// Whoever began last has had a word.
    Ended,
}

/// Tells how the asking about an attempt stands; `events` are its entry's, in the order of writing.
pub(super) fn asking(events: &[EventRow], fence: Fence) -> Asking {
    let mut stands = Asking::Nobody;
    for row in events {
        let event = &row.event;
        if event.fence != Some(fence) {
            continue;
        }
        match (event.kind.as_str(), stands) {
            (BEGUN, _) => stands = Asking::Begun(event.session),
            (RESOLVED, Asking::Begun(_)) => stands = Asking::Ended,
            _ => {}
        }
    }
    stands
}

impl<T: Transaction> Desk<'_, T> {
    /// Notes that somebody is about to be asked about the entry, if a verdict that nobody forces
    /// could count and it is this one's turn.
    pub(super) fn announce(
        &mut self,
        stored: &Stored,
        turn: Turn,
        ask: AskOwner<'_>,
    ) -> Result<Judged, JournalError> {
        let claim = Claim {
            settles: true,
            adopts: false,
            forces: false,
            seen: None,
        };
        if let Err(refused) = self.way(stored, claim, ask)? {
            return Ok(Err(refused));
        }
        let entry = &stored.entry;
        let events = self.tx.events(entry.branch, entry.seq)?;
        match (asking(&events, entry.fence), turn) {
            (Asking::Ended, Turn::Waiting) => return Ok(Err(Refused::JustAsked)),
            // The end of a session ends its asking. Its own calls wait for one word anyway.
            (Asking::Begun(Some(session)), Turn::First | Turn::Waiting)
                if self.deed.session != Some(session) && ask(session, None).is_live =>
            {
                return Ok(Err(Refused::BeingAsked { session }));
            }
            (Asking::Nobody | Asking::Begun(_) | Asking::Ended, _) => {}
        }
        let detail = self.deed.detail(None, entry.status, false, None);
        let event = self.event(BEGUN, entry, entry.fence, detail);
        self.tx.event(&event)?;
        Ok(Ok(entry.clone()))
    }
}
