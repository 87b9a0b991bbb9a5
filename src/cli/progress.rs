//! One line on stderr that says how far long work has come, on a terminal only.
//!
//! Must not: be used by the proxy, or write where nobody watches.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How often the line changes.
const PAUSE: Duration = Duration::from_millis(100);

/// The line. Dropping it takes it away.
pub(super) struct ProgressLine {
    is_shown: bool,
    is_written: bool,
    changed: Option<Instant>,
}

impl ProgressLine {
    /// Returns a line that is shown if stderr is a terminal.
    pub(super) fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            is_shown: io::stderr().is_terminal() && !dumb,
            is_written: false,
            changed: None,
        }
    }

    /// Shows how far the work has come; `total` 0: nobody knows how much there is.
    pub(super) fn show(&mut self, stage: &str, done: u64, total: u64) {
        let is_due = self.changed.is_none_or(|at| at.elapsed() >= PAUSE);
        if !self.is_shown || !is_due {
            return;
        }
        self.changed = Some(Instant::now());
        self.is_written = true;
        // A stderr that is closed loses a line of talk.
        let _ = write!(
            io::stderr().lock(),
            "\r\u{1b}[K{}",
            line(stage, done, total)
        );
    }

    /// Takes the line away, before anything else is written.
    pub(super) fn clear(&mut self) {
        if self.is_written {
            self.is_written = false;
            let _ = write!(io::stderr().lock(), "\r\u{1b}[K");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

fn line(stage: &str, done: u64, total: u64) -> String {
    match (done, total) {
        (0, 0) => format!("{stage} …"),
        (_, 0) => format!("{stage} {done}"),
        _ => {
            let percent = u128::from(done) * 100 / u128::from(total);
            format!("{stage} {done} of {total} ({percent}%)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        assert_eq!(line("integrity check", 0, 0), "integrity check …");
        assert_eq!(line("events", 7, 0), "events 7");
        assert_eq!(line("entries", 250, 1000), "entries 250 of 1000 (25%)");
    }
}
