//! Which entries a command is about. Pure: the present moment comes in as an argument.

use std::str::FromStr;
use std::time::Duration;

use super::values;
use super::view::{EntryView, Status, Time};

/// The conditions of `ls`; an entry must meet all that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only entries in doubt.
    pub in_doubt: bool,
    /// Only entries with an outcome that never reached a caller.
    pub undelivered: bool,
    /// Only entries that don't hold what was stored.
    pub quarantined: bool,
    /// Only entries that a live session is running.
    pub running: bool,
    /// One of these statuses; empty for any.
    pub statuses: Vec<Status>,
    /// The tool's name, with `*` and `?`.
    pub tool: Option<String>,
    /// The client's id of the call.
    pub call_id: Option<String>,
    /// The idempotency key.
    pub key: Option<String>,
    /// The session of the latest attempt.
    pub session: Option<String>,
    /// Reserved at or after this.
    pub since: Option<Since>,
    /// Reserved before this.
    pub until: Option<Since>,
    /// The workflow.
    pub workflow_id: Option<String>,
    /// The branch.
    pub branch: Option<u64>,
}

impl Filter {
    /// Tells whether `entry` meets every condition at the moment `now`.
    #[must_use]
    pub fn matches(&self, entry: &EntryView, now: Time) -> bool {
        fn is(wanted: Option<&String>, found: Option<&String>) -> bool {
            wanted.is_none() || wanted == found
        }
        (!self.in_doubt || entry.in_doubt)
            && (!self.undelivered || entry.is_undelivered())
            && (!self.quarantined || entry.quarantined)
            && (!self.running || entry.running)
            && (self.statuses.is_empty() || self.statuses.contains(&entry.status))
            && self
                .tool
                .as_ref()
                .is_none_or(|glob| glob_matches(glob, &entry.tool))
            && is(self.call_id.as_ref(), entry.call_id.as_ref())
            && is(self.key.as_ref(), entry.key.as_ref())
            && is(self.session.as_ref(), entry.session.as_ref())
            && self
                .since
                .is_none_or(|since| entry.created_at >= since.moment(now))
            && self
                .until
                .is_none_or(|until| entry.created_at < until.moment(now))
            && is(self.workflow_id.as_ref(), Some(&entry.workflow_id))
            && self.branch.is_none_or(|branch| branch == entry.branch)
    }
}

/// A moment, or so long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// So long before now.
    Ago(Duration),
    /// This moment.
    At(Time),
}

impl Since {
    /// Returns the moment that is meant, seen from `now`.
    #[must_use]
    pub fn moment(self, now: Time) -> Time {
        match self {
            Self::Ago(duration) => {
                let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
                Time(now.0.saturating_sub(micros))
            }
            Self::At(time) => time,
        }
    }
}

impl FromStr for Since {
    type Err = String;

    /// Parses a duration or a moment with its offset from UTC. Source: RFC 3339.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(duration) = values::parse_duration(text) {
            return Ok(Self::Ago(duration));
        }
        text.parse::<jiff::Timestamp>()
            .map(|timestamp| Self::At(Time(timestamp.as_microsecond())))
            .map_err(|_| "expected a duration (2h, 7d) or 2026-11-29T18:00:00Z".to_owned())
    }
}

/// Tells whether `text` is matched whole by `glob`, in which `*` is any text and `?` any character.
///
/// Takes at most the product of both lengths, whatever the stars.
#[must_use]
pub fn glob_matches(glob: &str, text: &str) -> bool {
    let glob: Vec<char> = glob.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut g, mut t) = (0, 0);
    // Where to go on if what follows the last star does not match from here.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if glob.get(g) == Some(&'*') {
            retry = Some((g + 1, t));
            g += 1;
        } else if glob.get(g).is_some_and(|c| *c == '?' || *c == text[t]) {
            g += 1;
            t += 1;
        } else if let Some((after_star, from)) = retry {
            retry = Some((after_star, from + 1));
            g = after_star;
            t = from + 1;
        } else {
            return false;
        }
    }
    glob[g..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{MOMENT, entry};
    use super::*;

    #[test]
    fn globs() {
        for (glob, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("read_*", "read_file", true),
            ("read_*", "write_file", false),
            ("*_file", "read_file_file", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?é", "xé", true),
            ("?", "", false),
            ("charge_card", "charge_card", true),
            ("charge", "charge_card", false),
        ] {
            assert_eq!(glob_matches(glob, text), expected, "{glob:?} on {text:?}");
        }
        assert!(!glob_matches(&"*a".repeat(200), &"a".repeat(199)));
    }

    #[test]
    fn since() {
        assert_eq!("2h".parse(), Ok(Since::Ago(Duration::from_secs(7_200))));
        assert_eq!("2026-11-29T18:01:12.304511Z".parse(), Ok(Since::At(MOMENT)));
        assert_eq!(
            "2026-11-29T19:01:12.304511+01:00".parse(),
            Ok(Since::At(MOMENT))
        );
        for bad in [
            "",
            "yesterday",
            "2026-11-29",
            "18:00",
            "2026-11-29T18:01:12",
        ] {
            assert!(bad.parse::<Since>().is_err(), "{bad:?} was accepted");
        }
        let since = Since::Ago(Duration::from_micros(5));
        assert_eq!(since.moment(MOMENT), Time(MOMENT.0 - 5));
    }

    #[test]
    fn each_condition_counts() {
        let now = Time(MOMENT.0 + 1_000_000);
        let plain = entry(8);
        let mut odd = entry(9);
        odd.status = Status::Pending;
        odd.in_doubt = true;
        odd.quarantined = true;
        odd.tool = "send_mail".to_owned();
        odd.key = Some("k".to_owned());
        odd.session = Some("2".to_owned());
        odd.created_at = now;
        odd.workflow_id = "other".to_owned();
        odd.branch = 1;
        let only = |change: fn(&mut Filter)| {
            let mut filter = Filter::default();
            change(&mut filter);
            filter
        };
        let odd_only = [
            only(|f| f.in_doubt = true),
            only(|f| f.quarantined = true),
            only(|f| f.statuses = vec![Status::Pending, Status::Failed]),
            only(|f| f.tool = Some("send_*".to_owned())),
            only(|f| f.call_id = Some("toolu_09".to_owned())),
            only(|f| f.key = Some("k".to_owned())),
            only(|f| f.session = Some("2".to_owned())),
            only(|f| f.since = Some(Since::Ago(Duration::from_millis(1)))),
            only(|f| f.workflow_id = Some("other".to_owned())),
            only(|f| f.branch = Some(1)),
        ];
        for filter in odd_only {
            assert!(filter.matches(&odd, now), "{filter:?}");
            assert!(!filter.matches(&plain, now), "{filter:?}");
        }
        assert!(Filter::default().matches(&plain, now));
        let mut lost = entry(10);
        lost.delivered_at = None;
        let undelivered = only(|f| f.undelivered = true);
        assert!(undelivered.matches(&lost, now));
        assert!(!undelivered.matches(&odd, now) && !undelivered.matches(&plain, now));
        let mut busy = entry(11);
        busy.running = true;
        let running = only(|f| f.running = true);
        assert!(running.matches(&busy, now) && !running.matches(&odd, now));
    }
}
