//! Closes a call without an outcome for an export: its conversation needs an answer, whatever it is.
//!
//! A closing says what was told to whoever reads the export, and nothing about the effect. So the
//! entry is not touched and stays in doubt; the closing is an event, and the first one for an
//! attempt stands, so that each later export says the same.
//!
//! Must not: settle an entry.

use crate::journal::{Durability, Event, EventRow, Journal, JournalError, Transaction};
use crate::json;
use crate::rules::entry::Status;
use crate::rules::ids::{BranchId, Fence, Micros, Seq};

/// The kind of the event.
pub const KIND: &str = "export_closed";

/// What stands in the place of an outcome that nobody knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closing {
    /// `cancelled` or `error`.
    pub close: String,
    /// The code that is told, as JSON: a number or a string.
    pub code: String,
    /// The message that is told.
    pub message: String,
}

impl Closing {
    /// Returns the closing of an attempt among an entry's events.
    #[must_use]
    pub fn among(events: &[EventRow], fence: Fence) -> Option<Self> {
        events
            .iter()
            .find(|row| row.event.kind == KIND && row.event.fence == Some(fence))
            .and_then(|row| Self::read(row.event.detail.as_deref()?))
    }

    fn read(detail: &str) -> Option<Self> {
        let detail = detail.as_bytes();
        let text = |name| json::member(detail, name).and_then(json::text);
        Some(Self {
            close: text("close")?.into_owned(),
            code: String::from_utf8(json::member(detail, "code")?.to_vec()).ok()?,
            message: text("message")?.into_owned(),
        })
    }

    fn detail(&self, by: &str) -> String {
        format!(
            "{{\"close\":{},\"code\":{},\"message\":{},\"side_effect_state\":\"unknown\",\
             \"provenance\":\"synthetic\",\"by\":{}}}",
            json::quote(&self.close),
            self.code,
            json::quote(&self.message),
            json::quote(by)
        )
    }
}

/// Records the closing of the attempt that an entry stands at, unless it has one or has an
/// outcome by now. Returns the closing that stands; `None` if none is needed any more. Durable on
/// return.
///
/// # Errors
///
/// As the journal's.
pub fn close(
    journal: &mut impl Journal,
    place: (BranchId, Seq),
    fence: Fence,
    closing: &Closing,
    by: &str,
    now: Micros,
) -> Result<Option<Closing>, JournalError> {
    let mut tx = journal.begin(Durability::Power)?;
    let Some(stored) = tx.entry(place.0, place.1)? else {
        return Ok(None);
    };
    let is_open = match stored.entry.status {
        Status::Pending | Status::InputRequired | Status::Accepted => true,
        Status::Completed | Status::Failed | Status::Voided | Status::Denied => false,
    };
    if stored.entry.fence != fence || !is_open {
        return Ok(None);
    }
    if let Some(stands) = Closing::among(&tx.events(place.0, place.1)?, fence) {
        return Ok(Some(stands));
    }
    tx.event(&Event {
        kind: KIND.into(),
        at: now,
        entry: Some(place),
        fence: Some(fence),
        session: None,
        letter: None,
        detail: Some(closing.detail(by)),
        merge_key: None,
    })?;
    tx.commit()?;
    Ok(Some(closing.clone()))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{World, calls_of_every_sort};
    use super::*;

    fn closing(message: &str) -> Closing {
        Closing {
            close: "cancelled".into(),
            code: "7703".into(),
            message: message.into(),
        }
    }

    #[test]
    fn the_first_closing_of_an_attempt_stands_and_the_entry_is_not_touched() {
        let world = World::new();
        drop(calls_of_every_sort(&world));
        let mut journal = world.journal();
        let mut tx = journal.begin(Durability::Process).unwrap();
        let before = tx.entry(BranchId(1), Seq(3)).unwrap().unwrap();
        drop(tx);
        let place = (BranchId(1), Seq(3));
        let fence = before.entry.fence;
        let mut at = |closing: &Closing| {
            close(&mut journal, place, fence, closing, "ada", Micros(5)).unwrap()
        };
        assert_eq!(at(&closing("a \"b\"")), Some(closing("a \"b\"")));
        assert_eq!(at(&closing("other")), Some(closing("a \"b\"")));
        let mut tx = journal.begin(Durability::Process).unwrap();
        assert_eq!(tx.entry(place.0, place.1).unwrap().unwrap(), before);
        drop(tx);
        // What is settled, and what has another attempt by now, needs none.
        let other = Fence(99);
        let none = close(&mut journal, place, other, &closing("x"), "ada", Micros(5));
        assert_eq!(none.unwrap(), None);
        let settled = (BranchId(1), Seq(1));
        let none = close(
            &mut journal,
            settled,
            Fence(1),
            &closing("x"),
            "ada",
            Micros(5),
        );
        assert_eq!(none.unwrap(), None);
    }
}
