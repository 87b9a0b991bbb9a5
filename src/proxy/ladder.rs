//! In which order an upstream is asked to end, and when the next step is due.
//!
//! Pure: no I/O, no clock; the loop passes the time and whether the group still lives, and does
//! what it is told. Hosts wait 2 s after closing our input, then send SIGTERM, wait 2 s, then
//! SIGKILL; both profiles end inside those times.
//!
//! Invariants: the steps come in one order and each at most once; the total is bounded; an ended
//! group ends the ladder at whatever step.
//!
//! Source: MCP 2025-11-25 `basic/lifecycle`, 2026-07-28 `basic/transports/stdio`: close the
//! input, wait, SIGTERM, wait, SIGKILL.

use std::time::{Duration, Instant};

/// How patient a [`Ladder`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// After the client's end of input: at most 2 s, so that the host never has to signal us.
    Leisurely,
    /// After a signal to us: at most 0.85 s, which leaves 1 s of 1.9 s for draining before it.
    Urgent,
}

impl Pace {
    /// How long the upstream has after the step before the next one is taken.
    const fn patience(self, stage: Stage) -> Duration {
        match (self, stage) {
            (_, Stage::Start | Stage::Over) => Duration::ZERO,
            (Self::Leisurely, Stage::InputClosed) => Duration::from_millis(1000),
            (Self::Leisurely, Stage::Terminated) => Duration::from_millis(600),
            (Self::Leisurely, Stage::Killed) => Duration::from_millis(350),
            (Self::Urgent, Stage::InputClosed) => Duration::from_millis(150),
            (Self::Urgent, Stage::Terminated) => Duration::from_millis(450),
            (Self::Urgent, Stage::Killed) => Duration::from_millis(250),
        }
    }
}

/// What to do now; where there is a time, call [`Ladder::next`] again then or on a SIGCHLD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Close the upstream's input.
    CloseInput {
        /// When to look again.
        look_again: Instant,
    },
    /// Send SIGTERM to its whole process group.
    Terminate {
        /// When to look again.
        look_again: Instant,
    },
    /// Send SIGKILL to its whole process group.
    Kill {
        /// When to look again.
        look_again: Instant,
    },
    /// Nothing.
    Wait {
        /// When to look again.
        look_again: Instant,
    },
    /// The group is gone. Final.
    Gone,
    /// The kernel holds a killed member back (a stuck disk); it can do nothing more. Final.
    GivenUp,
}

/// The last step that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Start,
    InputClosed,
    Terminated,
    Killed,
    Over,
}

/// The shutdown of one upstream.
#[derive(Debug, Clone)]
pub struct Ladder {
    pace: Pace,
    stage: Stage,
    stage_began: Option<Instant>,
    outcome: Step,
}

/// First and longest pause between two looks: the end of a grandchild announces itself to nobody.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(5);
const LOOK_EVERY_MAX: Duration = Duration::from_millis(25);

impl Ladder {
    /// Begins at the top; nothing happens before the first [`Ladder::next`].
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            stage: Stage::Start,
            stage_began: None,
            outcome: Step::Gone,
        }
    }

    /// Begins below the first step, for an upstream whose input has been closed at `since`.
    #[must_use]
    pub fn after_input_closed(pace: Pace, since: Instant) -> Self {
        Self {
            stage: Stage::InputClosed,
            stage_began: Some(since),
            ..Self::new(pace)
        }
    }

    /// Goes on in the urgent pace, counted from the last step; never slower than before.
    pub fn hurry(&mut self) {
        self.pace = Pace::Urgent;
    }

    /// Returns what to do now. `group_alive` is to be asked just before, after reaping.
    pub fn next(&mut self, now: Instant, group_alive: bool) -> Step {
        if self.stage == Stage::Over {
            return self.outcome;
        }
        if !group_alive {
            return self.end(Step::Gone);
        }
        let began = *self.stage_began.get_or_insert(now);
        let due = began + self.pace.patience(self.stage);
        if now < due {
            // Short looks first, since most upstreams end at once, then rarer ones.
            let waited = now.saturating_duration_since(began);
            let pause = (waited / 2).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX);
            return Step::Wait {
                look_again: due.min(now + pause),
            };
        }
        let look_again = now + LOOK_EVERY_MIN;
        self.stage_began = Some(now);
        match self.stage {
            Stage::Start => {
                self.stage = Stage::InputClosed;
                Step::CloseInput { look_again }
            }
            Stage::InputClosed => {
                self.stage = Stage::Terminated;
                Step::Terminate { look_again }
            }
            Stage::Terminated => {
                self.stage = Stage::Killed;
                Step::Kill { look_again }
            }
            Stage::Killed => self.end(Step::GivenUp),
            Stage::Over => self.outcome,
        }
    }

    fn end(&mut self, outcome: Step) -> Step {
        self.stage = Stage::Over;
        self.outcome = outcome;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a ladder on a group that dies right after the given step; returns steps and the total.
    fn run(
        mut ladder: Ladder,
        start: Instant,
        dies_at: Option<&str>,
    ) -> (Vec<&'static str>, Duration) {
        let mut now = start;
        let mut alive = true;
        let mut steps = Vec::new();
        for _ in 0..1000 {
            let (name, look_again) = match ladder.next(now, alive) {
                Step::CloseInput { look_again } => ("close", look_again),
                Step::Terminate { look_again } => ("term", look_again),
                Step::Kill { look_again } => ("kill", look_again),
                Step::Wait { look_again } => ("wait", look_again),
                Step::Gone => return ([steps, vec!["gone"]].concat(), now - start),
                Step::GivenUp => return ([steps, vec!["given up"]].concat(), now - start),
            };
            assert!(look_again > now, "no spinning");
            assert!(look_again <= now + LOOK_EVERY_MAX);
            if name != "wait" {
                steps.push(name);
                alive &= dies_at != Some(name);
            }
            now = look_again;
        }
        panic!("unbounded");
    }

    #[test]
    fn each_step_comes_once_and_in_order() {
        let start = Instant::now();
        let cases: [(Option<&str>, &[&str]); 4] = [
            (Some("close"), &["close", "gone"]),
            (Some("term"), &["close", "term", "gone"]),
            (Some("kill"), &["close", "term", "kill", "gone"]),
            (None, &["close", "term", "kill", "given up"]),
        ];
        for pace in [Pace::Leisurely, Pace::Urgent] {
            for (dies_at, expected) in cases {
                let (steps, _) = run(Ladder::new(pace), start, dies_at);
                assert_eq!(steps, expected);
            }
        }
    }

    #[test]
    fn the_totals_fit_into_what_hosts_allow() {
        let start = Instant::now();
        let total = |pace, dies_at| run(Ladder::new(pace), start, dies_at).1;
        assert!(total(Pace::Leisurely, Some("close")) <= Duration::from_millis(5));
        assert!(total(Pace::Leisurely, Some("kill")) < Duration::from_millis(1700));
        assert!(total(Pace::Leisurely, None) < Duration::from_secs(2));
        assert!(total(Pace::Urgent, None) <= Duration::from_millis(850));
    }

    #[test]
    fn hurrying_shortens_the_step_that_runs() {
        let start = Instant::now();
        let mut ladder = Ladder::new(Pace::Leisurely);
        assert!(matches!(ladder.next(start, true), Step::CloseInput { .. }));
        let later = start + Duration::from_millis(200);
        assert!(matches!(ladder.next(later, true), Step::Wait { .. }));
        ladder.hurry();
        assert!(matches!(ladder.next(later, true), Step::Terminate { .. }));
    }

    #[test]
    fn an_ended_group_ends_it_for_good() {
        let start = Instant::now();
        let mut ladder = Ladder::new(Pace::Urgent);
        assert_eq!(ladder.next(start, false), Step::Gone);
        assert_eq!(
            ladder.next(start, true),
            Step::Gone,
            "a reused number is not ours"
        );
    }

    #[test]
    fn an_input_closed_before_is_not_closed_again() {
        let start = Instant::now();
        let mut ladder = Ladder::after_input_closed(Pace::Urgent, start);
        assert!(matches!(ladder.next(start, true), Step::Wait { .. }));
        let due = start + Duration::from_millis(150);
        assert!(matches!(ladder.next(due, true), Step::Terminate { .. }));
    }
}
