//! Which entries may be buried: their payloads dropped, the rest kept for ever as a tombstone.
//!
//! An entry itself is never deleted, since deleting it would let its effect run again. What is
//! decided here is only whether its arguments and its outcome's bytes are still needed: for the
//! owner who must settle it, for the caller who has not had it, or as evidence of damage.
//!
//! Must not: look entries up or change one; carrying the plan out is the guard's.

use std::time::Duration;

use super::entry::{Entry, Status};
use super::ids::Micros;

/// What is to be buried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Entries settled less than this ago keep their payloads.
    pub older_than: Duration,
    /// Outcomes that never reached a caller are buried, too.
    pub undelivered_too: bool,
    /// Entries whose time is yet to come are buried, too, whatever age was asked for.
    pub future_too: bool,
}

/// What happens to one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its payloads are dropped.
    Bury,
    /// They stay.
    Keep(Reason),
}

/// Why an entry keeps its payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It has no outcome yet, or waits for input or for a task's end.
    Open,
    /// Its checksum or its payload's digest does not hold: what is left is evidence.
    Quarantined,
    /// It was settled too lately.
    Young,
    /// By its time it is yet to be settled: a clock was ahead then, or is behind now. Nobody knows
    /// its age, so it is older than nothing.
    Future,
    /// Its outcome never reached a caller.
    Undelivered,
    /// It has no payload (any more).
    Buried,
}

impl Reason {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 6] = [
        Self::Open,
        Self::Quarantined,
        Self::Young,
        Self::Future,
        Self::Undelivered,
        Self::Buried,
    ];

    /// Returns the name that is shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Quarantined => "quarantined",
            Self::Young => "young",
            Self::Future => "future",
            Self::Undelivered => "undelivered",
            Self::Buried => "buried",
        }
    }
}

/// Decides about one entry. `holds`: its checksum and the digests of its payloads are right;
/// `payload_bytes`: what would be dropped.
///
/// The order is the order of safety: what is open or damaged stays whatever else is true.
#[must_use]
pub fn fate(
    entry: &Entry,
    holds: bool,
    payload_bytes: u64,
    retention: Retention,
    now: Micros,
) -> Fate {
    if !holds {
        return Fate::Keep(Reason::Quarantined);
    }
    match entry.status {
        Status::Pending | Status::InputRequired | Status::Accepted => {
            return Fate::Keep(Reason::Open);
        }
        Status::Completed | Status::Failed | Status::Voided | Status::Denied => {}
    }
    match entry.completed_at {
        Some(at) if at > now => {
            if !retention.future_too {
                return Fate::Keep(Reason::Future);
            }
        }
        Some(at) if u128::from(now.since(at)) >= retention.older_than.as_micros() => {}
        // An entry without a time is older than nothing.
        Some(_) | None => return Fate::Keep(Reason::Young),
    }
    if entry.is_undelivered() && !retention.undelivered_too {
        return Fate::Keep(Reason::Undelivered);
    }
    if payload_bytes == 0 && (entry.is_tombstone || entry.digest.is_none()) {
        return Fate::Keep(Reason::Buried);
    }
    Fate::Bury
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::{BranchId, Fence, Seq, SessionId};
    use crate::rules::lifecycle::{self, Reservation};
    use crate::rules::signature::{Scheme, Signature};

    const DAY: Duration = Duration::from_secs(86_400);
    const NOW: Micros = Micros(10 * 86_400_000_000);

    fn entry(status: Status) -> Entry {
        let mut entry = lifecycle::reserve_new(Reservation {
            branch: BranchId(1),
            seq: Seq(1),
            tool: "t".into(),
            scheme: Scheme::Plain,
            signature: Signature([1; 32]),
            fence: Fence(1),
            session: SessionId(1),
            at: Micros(0),
            key: None,
            call_id: None,
        })
        .entry;
        entry.status = status;
        entry.completed_at = (status != Status::Pending).then_some(Micros(1));
        entry.delivered_at = entry.completed_at;
        entry.digest = entry.completed_at.map(|_| [1; 32]);
        entry
    }

    fn rule(undelivered_too: bool) -> Retention {
        Retention {
            older_than: DAY,
            undelivered_too,
            future_too: false,
        }
    }

    #[test]
    fn only_what_is_settled_sound_old_and_delivered_is_buried() {
        for status in Status::ALL {
            for holds in [true, false] {
                for age in [Micros(1), Micros(NOW.0 - 1)] {
                    for delivered in [true, false] {
                        for undelivered_too in [true, false] {
                            let mut entry = entry(status);
                            entry.completed_at = entry.completed_at.map(|_| age);
                            entry.delivered_at = entry.completed_at.filter(|_| delivered);
                            let fate = fate(&entry, holds, 5, rule(undelivered_too), NOW);
                            let settled = !matches!(
                                status,
                                Status::Pending | Status::InputRequired | Status::Accepted
                            );
                            let buried = settled
                                && holds
                                && age == Micros(1)
                                && (delivered || undelivered_too);
                            assert_eq!(fate == Fate::Bury, buried, "{entry:?}: {fate:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_age_that_is_asked_for_is_old_enough() {
        let fate_at = |age_us: i64| {
            let mut entry = entry(Status::Completed);
            entry.completed_at = Some(Micros(NOW.0 - age_us));
            entry.delivered_at = entry.completed_at;
            fate(&entry, true, 5, rule(false), NOW)
        };
        let limit = i64::try_from(rule(false).older_than.as_micros()).unwrap();
        assert_eq!(fate_at(limit - 1), Fate::Keep(Reason::Young));
        assert_eq!(fate_at(limit), Fate::Bury);
    }

    #[test]
    fn what_is_buried_is_not_buried_again() {
        let mut entry = entry(Status::Completed);
        entry.is_tombstone = true;
        let again = fate(&entry, true, 0, rule(false), NOW);
        assert_eq!(again, Fate::Keep(Reason::Buried));
        // A result that was never kept still leaves arguments behind.
        assert_eq!(fate(&entry, true, 9, rule(false), NOW), Fate::Bury);
    }

    #[test]
    fn a_clock_that_stepped_back_buries_nothing() {
        let entry = entry(Status::Completed);
        let fate = fate(&entry, true, 5, rule(false), Micros(-5));
        assert_eq!(fate, Fate::Keep(Reason::Future));
    }

    #[test]
    fn what_is_yet_to_come_is_older_than_nothing_unless_that_is_asked_for() {
        for older_than in [Duration::ZERO, DAY, Duration::MAX] {
            for future_too in [false, true] {
                let retention = Retention {
                    older_than,
                    future_too,
                    ..rule(false)
                };
                let mut entry = entry(Status::Completed);
                let mut fate_at = |ahead_us: i64| {
                    entry.completed_at = Some(Micros(NOW.0 + ahead_us));
                    entry.delivered_at = entry.completed_at;
                    fate(&entry, true, 5, retention, NOW)
                };
                let ahead = if future_too {
                    Fate::Bury
                } else {
                    Fate::Keep(Reason::Future)
                };
                assert_eq!(fate_at(1), ahead);
                assert_eq!(fate_at(i64::MAX - NOW.0), ahead);
                // This very moment is no future.
                let is_old = older_than.is_zero();
                assert_eq!(fate_at(0) == Fate::Bury, is_old, "{older_than:?}");
                // The flag makes nothing old that is young.
                let is_old = older_than < 2 * DAY;
                assert_eq!(fate_at(-2 * 86_400_000_000) == Fate::Bury, is_old);
            }
        }
    }

    #[test]
    fn what_is_open_damaged_or_undelivered_stays_in_the_future_too() {
        let retention = Retention {
            older_than: Duration::ZERO,
            future_too: true,
            ..rule(false)
        };
        let ahead = Some(Micros(NOW.0 + 1));
        for (status, holds, delivered, reason) in [
            (Status::Accepted, true, true, Reason::Open),
            (Status::Completed, false, true, Reason::Quarantined),
            (Status::Completed, true, false, Reason::Undelivered),
        ] {
            let mut entry = entry(status);
            entry.completed_at = ahead;
            entry.delivered_at = ahead.filter(|_| delivered);
            let fate = fate(&entry, holds, 5, retention, NOW);
            assert_eq!(fate, Fate::Keep(reason));
        }
    }
}
