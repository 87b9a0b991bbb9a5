//! Asks the person at the terminal before something that can't be undone.
//!
//! Must not: ask where nobody is there to answer; each command says what that means for it.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use super::error::{CliError, Kind};
use super::escape::escape;

/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 4_096;

/// Tells whether there is somebody to ask: both the question and the answer are on a terminal.
pub(super) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks `question` and returns whether the answer was exactly `expected`.
///
/// # Errors
///
/// Standard input can't be read.
pub(super) fn is_typed(question: &str, expected: &str) -> Result<bool, CliError> {
    let _ = write!(io::stderr().lock(), "checkpoint: {}: ", escape(question));
    let mut answer = String::new();
    io::Read::take(io::stdin().lock(), ANSWER_BYTES_MAX)
        .read_line(&mut answer)
        .map_err(|error| {
            CliError::new(
                Kind::Failure,
                "the answer can't be read from standard input",
            )
            .because(error)
            .hint("add --yes to do it without being asked")
        })?;
    Ok(answer.trim() == expected)
}
