//! What a policy promises, in the oracle's own words, and the file that asks for it.

use std::fmt::Write as _;

use checkpoint::rules::ids::Fence;

use crate::oracle::between;
use crate::random::Random;

/// How far a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Workflow,
    Group,
    Thread,
    Journal,
}

/// How long an owner may be silent, and how often it says that it lives, ms.
pub(crate) const LEASE_MS: u64 = 2000;
const HEARTBEAT_MS: u64 = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) at_least_once: bool,
    pub(crate) attempts_max: u32,
    pub(crate) retries_failures: bool,
    pub(crate) retries_tool_errors: bool,
    pub(crate) refuses_in_flight: bool,
    pub(crate) shields: bool,
    pub(crate) reach: Reach,
    /// The key is made from the arguments, of those that bring none.
    pub(crate) derives_key: bool,
    pub(crate) stores_results: bool,
    /// A doubt stands in the way of equal calls, too.
    pub(crate) doubts_spread: bool,
    pub(crate) redelivers: bool,
    /// An owner that was fenced lets its call end.
    pub(crate) finishes_lost: bool,
    /// Only the newest attempt's outcome counts; else the first finisher wins.
    pub(crate) fences_results: bool,
    /// Of the arguments, only `v` must be equal under one key.
    pub(crate) covers: bool,
    pub(crate) passes: Passes,
}

/// What the upstream is told of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passes {
    Nothing,
    /// The key, as an argument.
    Key,
    /// Key, attempt and fence, as arguments.
    All,
    /// Key, attempt and fence, in `_meta`.
    Meta,
}

/// What a call's line tells of itself.
#[derive(Clone, Debug)]
pub(crate) struct Passed {
    pub(crate) key: String,
    pub(crate) attempt: Option<u64>,
    pub(crate) fence: Option<Fence>,
}

impl Passes {
    /// Reads what a line tells beside what was asked; nothing where any other byte differs.
    pub(crate) fn read(self, asked: &[u8], line: &[u8]) -> Option<Option<Passed>> {
        if self == Self::Nothing {
            return (asked == line).then_some(None);
        }
        let text = std::str::from_utf8(line).ok()?;
        let asked = std::str::from_utf8(asked).ok()?;
        let key = between(text, "\"idempotency_key\":\"", "\"")?.to_owned();
        let number = |name: &str| {
            let digits = text.split_once(&format!("\"{name}\":"))?.1;
            let end = digits.find(|c: char| !c.is_ascii_digit())?;
            digits[..end].parse::<u64>().ok()
        };
        let passed = Passed {
            attempt: number("attempt").filter(|_| self != Self::Key),
            fence: number("fence").map(Fence).filter(|_| self != Self::Key),
            key,
        };
        let mut told = format!("\"idempotency_key\":\"{}\"", passed.key);
        if self != Self::Key {
            let (attempt, fence) = (passed.attempt?, passed.fence?);
            let _ = write!(told, ",\"attempt\":{attempt},\"fence\":{fence}");
        }
        let expected = if self == Self::Meta {
            let head = asked.strip_suffix("}}}\n")?;
            format!("{head},\"checkpoint\":{{{told}}}}}}}}}\n")
        } else {
            // The arguments have no object in them.
            let at = asked.find("\"arguments\":{")?;
            let end = at + asked[at..].find('}')?;
            format!("{},{told}{}", &asked[..end], &asked[end..])
        };
        (expected == text).then_some(Some(passed))
    }
}

/// The arguments that must be equal under one key, where not all of them must.
pub(crate) fn covered(arguments: &str) -> Option<&str> {
    let (_, rest) = arguments.split_once("\"v\":")?;
    rest.split([',', '}']).next()
}

impl Promise {
    /// What a policy file without a line promises.
    pub(crate) const USUAL: Self = Self {
        at_least_once: false,
        attempts_max: 3,
        retries_failures: false,
        retries_tool_errors: false,
        refuses_in_flight: false,
        shields: false,
        reach: Reach::Workflow,
        derives_key: false,
        stores_results: true,
        doubts_spread: true,
        redelivers: true,
        finishes_lost: false,
        fences_results: true,
        covers: false,
        passes: Passes::Nothing,
    };
}

impl Default for Promise {
    fn default() -> Self {
        Self::USUAL
    }
}

impl Promise {
    pub(crate) fn of(random: &mut Random) -> Self {
        let reaches = [Reach::Workflow, Reach::Group, Reach::Thread, Reach::Journal];
        let reach = random.pick(&reaches);
        Self {
            at_least_once: random.chance(400),
            attempts_max: random.pick(&[1, 2, 3]),
            retries_failures: random.chance(300),
            retries_tool_errors: random.chance(300),
            refuses_in_flight: random.chance(200),
            shields: random.chance(300),
            reach,
            derives_key: reach != Reach::Workflow && random.chance(300),
            stores_results: !random.chance(100),
            doubts_spread: !random.chance(150),
            redelivers: !random.chance(150),
            finishes_lost: random.chance(400),
            fences_results: !random.chance(300),
            covers: random.chance(300),
            passes: random.pick(&[
                Passes::Nothing,
                Passes::Nothing,
                Passes::Nothing,
                Passes::Key,
                Passes::All,
                Passes::Meta,
            ]),
        }
    }

    /// How many effects the attempts of one call may have.
    pub(crate) fn effects_max(&self) -> u32 {
        if self.at_least_once || self.retries_failures || self.retries_tool_errors {
            self.attempts_max
        } else {
            1
        }
    }

    pub(crate) fn policy_file(&self) -> String {
        if *self == Self::default() {
            return String::new();
        }
        let mut text = String::from("[defaults]\n");
        let mut line = |is_wanted: bool, line: &str| {
            if is_wanted {
                let _ = writeln!(text, "{line}");
            }
        };
        line(self.at_least_once, "delivery = \"at-least-once\"");
        line(true, &format!("max_attempts = {}", self.attempts_max));
        line(true, &format!("lease_ttl = \"{LEASE_MS}ms\""));
        line(true, &format!("heartbeat = \"{HEARTBEAT_MS}ms\""));
        line(self.retries_failures, "on_failure = \"retry\"");
        line(self.retries_tool_errors, "on_tool_error = \"retry\"");
        line(self.refuses_in_flight, "on_in_flight = \"refuse\"");
        line(self.shields, "on_cancel = \"shield\"");
        match self.reach {
            Reach::Workflow => {}
            Reach::Group => line(true, "window = \"run\""),
            Reach::Thread => line(true, "window = \"thread\""),
            Reach::Journal => line(true, "window = \"journal\""),
        }
        line(self.derives_key, "key = \"k{n}\"");
        line(!self.stores_results, "store_result = false");
        line(!self.doubts_spread, "in_doubt_scope = \"call\"");
        line(!self.redelivers, "redeliver_within = \"0s\"");
        line(self.finishes_lost, "on_lost_lease = \"finish\"");
        line(!self.fences_results, "fence_results = false");
        line(self.covers, "key_covers = [\"/v\"]");
        let all = "argument = \"idempotency_key\", attempt_argument = \"attempt\", fence_argument = \"fence\"";
        match self.passes {
            Passes::Nothing => {}
            Passes::Key => line(true, "pass_key = { argument = \"idempotency_key\" }"),
            Passes::All => line(true, &format!("pass_key = {{ {all} }}")),
            Passes::Meta => line(true, "pass_key = { meta = true }"),
        }
        text
    }
}
