//! What the commands show of the journal: plain values with the names of the schema.
//!
//! They are filled from the journal by each command's `run` and know neither SQL nor layout, so
//! that tables and JSON documents can be tested without a journal. Text in them is as it was
//! stored; escaping is the business of whoever prints.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Serialize, Serializer};

/// A moment: microseconds since 1970-01-01 UTC. Serialised as RFC 3339 with six decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Time {
    /// Returns the moment of the call.
    #[must_use]
    pub fn now() -> Self {
        Self(jiff::Timestamp::now().as_microsecond())
    }

    /// Returns how long before `self` the moment `earlier` was; zero if it was not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// Returns `3m ago`, or `in 3m` where clocks disagree.
    #[must_use]
    pub fn relative_to(self, now: Self) -> String {
        if self.0 <= now.0 {
            format!("{} ago", short(now.since(self)))
        } else {
            format!("in {}", short(self.since(now)))
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(timestamp) => write!(f, "{timestamp:.6}"),
            // A damaged row can hold any number; it is shown, not hidden.
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Returns a duration in its largest whole unit: `12us`, `412ms`, `59s`, `3m`, `2h`, `4d`.
#[must_use]
pub fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.as_millis() == 0 => format!("{}us", duration.as_micros()),
        0 => format!("{}ms", duration.as_millis()),
        1..=59 => format!("{seconds}s"),
        60..=3_599 => format!("{}m", seconds / 60),
        3_600..=86_399 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns how long something took, with three digits where they matter: `412ms`, `1.52s`, `3m12s`.
#[must_use]
pub fn took(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => short(duration),
        1..=9 => format!("{seconds}.{:02}s", duration.subsec_millis() / 10),
        10..=59 => format!("{seconds}.{}s", duration.subsec_millis() / 100),
        60..=3_599 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..=86_399 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// An entry's status, as it is stored. In doubt is none: it is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Reserved, without an outcome.
    #[value(name = "PENDING")]
    Pending,
    /// The upstream answered with a result.
    #[value(name = "COMPLETED")]
    Completed,
    /// The upstream answered with an error.
    #[value(name = "FAILED")]
    Failed,
    /// The upstream asked for more.
    #[value(name = "INPUT_REQUIRED")]
    InputRequired,
    /// The upstream answered with a task handle.
    #[value(name = "ACCEPTED")]
    Accepted,
    /// Known not to have been executed.
    #[value(name = "VOIDED")]
    Voided,
    /// Denied by an approval.
    #[value(name = "DENIED")]
    Denied,
    /// What stands there is none of them; the entry is quarantined.
    #[value(skip)]
    Unreadable,
}

impl Status {
    /// Every status that an entry may have.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Completed,
        Self::Failed,
        Self::InputRequired,
        Self::Accepted,
        Self::Voided,
        Self::Denied,
    ];

    /// Returns the name that is stored.
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
            Self::Unreadable => "UNREADABLE",
        }
    }

    /// Tells whether an outcome is known, so that it can be delivered.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Denied => true,
            Self::Pending
            | Self::InputRequired
            | Self::Accepted
            | Self::Voided
            | Self::Unreadable => false,
        }
    }
}

/// One entry as `ls` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntryView {
    /// The workflow's id.
    pub workflow_id: String,
    /// The branch's number; 0 is the trunk.
    pub branch: u64,
    /// The call's place, from 1.
    pub seq: u64,
    /// The tool's name.
    pub tool: String,
    /// The stored status.
    pub status: Status,
    /// PENDING, and its owner is gone or knows that no answer will come.
    pub in_doubt: bool,
    /// PENDING, and a live session owns it.
    pub running: bool,
    /// What is stored does not hold; it is never replayed and never run.
    pub quarantined: bool,
    /// Number of executions so far, from 1.
    pub attempt: u64,
    /// The round within the attempt, from 0.
    pub round: u64,
    /// The latest attempt's fence.
    pub fence: u64,
    /// The signature, in hexadecimal.
    pub signature: String,
    /// The signature's scheme.
    pub scheme: String,
    /// When it was reserved.
    pub created_at: Time,
    /// When its outcome was written; of a VOIDED one, when that was said.
    pub completed_at: Option<Time>,
    /// When its outcome had been written to a waiting caller.
    pub delivered_at: Option<Time>,
    /// Whether the result said `isError: true`; `None` without a result.
    pub is_error: Option<bool>,
    /// Whose outcome it is: upstream, operator, prober, synthetic.
    pub provenance: Option<String>,
    /// Why its caller no longer waits: timeout, cancelled, gone.
    pub gave_up: Option<String>,
    /// Why no answer will come, where the session knows it.
    pub unanswered: Option<String>,
    /// Its outcome's bytes are gone; it still forbids running again.
    pub tombstone: bool,
    /// The client's own id of the call.
    pub call_id: Option<String>,
    /// The idempotency key.
    pub key: Option<String>,
    /// How far the key holds: run, thread, journal.
    pub window: Option<String>,
    /// The session that owns the latest attempt.
    pub session: Option<String>,
    /// Something a person should know, such as `replayed 2x`.
    pub note: Option<String>,
    /// Whether its seq alone names it: the journal's own workflow, and its active branch.
    #[serde(skip)]
    pub is_named_by_seq: bool,
}

impl EntryView {
    /// Tells whether it has an outcome that never reached a caller.
    #[must_use]
    pub fn is_undelivered(&self) -> bool {
        self.status.is_settled() && self.delivered_at.is_none()
    }

    /// Returns the word for its state that people see: the status, or `IN-DOUBT`.
    #[must_use]
    pub fn status_word(&self) -> &'static str {
        if self.in_doubt {
            "IN-DOUBT"
        } else {
            self.status.name()
        }
    }

    /// Returns what the status alone does not say, the most urgent first.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.quarantined {
            remarks.push("quarantined".to_owned());
        }
        if self.running {
            remarks.push("running".to_owned());
        }
        if self.is_error == Some(true) {
            remarks.push("isError".to_owned());
        }
        if self.is_undelivered() {
            remarks.push("undelivered".to_owned());
        }
        match self.provenance.as_deref() {
            None | Some("upstream") => {}
            Some(other) => remarks.push(format!("by {other}")),
        }
        if self.tombstone {
            remarks.push("result expired".to_owned());
        }
        remarks.extend(self.note.clone());
        remarks
    }

    /// Returns how long it took, or, while it runs, has taken until `now`; `None` for what was not
    /// executed.
    #[must_use]
    pub fn took(&self, now: Time) -> Option<Duration> {
        match self.completed_at {
            Some(_) if self.status == Status::Voided => None,
            Some(end) => Some(end.since(self.created_at)),
            None if self.running => Some(now.since(self.created_at)),
            None => None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// 2026-11-29T18:01:12.304511Z.
    pub(in crate::cli) const MOMENT: Time = Time(1_795_975_272_304_511);

    /// Returns a completed and delivered entry, for tests to change.
    pub(in crate::cli) fn entry(seq: u64) -> EntryView {
        EntryView {
            workflow_id: "/w/run.db".to_owned(),
            branch: 0,
            seq,
            tool: "charge_card".to_owned(),
            status: Status::Completed,
            in_doubt: false,
            running: false,
            quarantined: false,
            attempt: 1,
            round: 0,
            fence: seq,
            signature: "5c1e".repeat(16),
            scheme: "v1".to_owned(),
            created_at: MOMENT,
            completed_at: Some(Time(MOMENT.0 + 412_000)),
            delivered_at: Some(Time(MOMENT.0 + 413_000)),
            is_error: Some(false),
            provenance: Some("upstream".to_owned()),
            gave_up: None,
            unanswered: None,
            tombstone: false,
            call_id: Some(format!("toolu_{seq:02}")),
            key: None,
            window: None,
            session: Some("1".to_owned()),
            note: None,
            is_named_by_seq: true,
        }
    }

    #[test]
    fn times() {
        assert_eq!(MOMENT.to_string(), "2026-11-29T18:01:12.304511Z");
        assert_eq!(Time(0).to_string(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(Time(i64::MAX).to_string(), "9223372036854775807us");
        let ago = |micros: i64| Time(MOMENT.0 - micros).relative_to(MOMENT);
        assert_eq!(ago(0), "0us ago");
        assert_eq!(ago(412_000), "412ms ago");
        assert_eq!(ago(59_999_999), "59s ago");
        assert_eq!(ago(200_000_000), "3m ago");
        assert_eq!(ago(7_300_000_000), "2h ago");
        assert_eq!(ago(400_000_000_000), "4d ago");
        assert_eq!(ago(-60_000_000), "in 1m");
        assert_eq!(Time(i64::MIN).relative_to(Time(i64::MAX)), "106751991d ago");
    }

    #[test]
    fn what_it_took() {
        let took = |ms| took(Duration::from_millis(ms));
        assert_eq!(took(412), "412ms");
        assert_eq!(took(1_529), "1.52s");
        assert_eq!(took(31_290), "31.2s");
        assert_eq!(took(192_000), "3m12s");
        assert_eq!(took(7_260_000), "2h01m");
        assert_eq!(took(90_000_000), "1d01h");
    }

    #[test]
    fn a_status_is_stored_shown_and_typed_alike() {
        for status in Status::ALL {
            let json = serde_json::to_value(status).unwrap();
            assert_eq!(json, status.name());
            assert_eq!(Status::from_str(status.name(), false), Ok(status));
        }
    }
}
