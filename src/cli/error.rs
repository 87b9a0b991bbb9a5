//! What a command says when it can't do what was asked: what, why, and what to do next.
//!
//! Errors of the rooms below become a [`CliError`] at the edge, which gives them an exit code and
//! a hint. The text may hold bytes from a journal or a command line, so it is escaped on its way
//! to the terminal. A refusal (diverge, in doubt, busy) is a value, not one of these.

use std::fmt::{self, Write as _};
use std::io;

use super::escape::{escape, escape_block};
use super::exit::Exit;

/// The sort of trouble; each has one exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The command line or an environment variable can't be used.
    Usage,
    /// Anything that has no kind of its own.
    Failure,
    /// Entries are in doubt and the caller asked to be told by the exit code.
    InDoubt,
    /// `verify` found damage.
    Damaged,
    /// The journal can't be used.
    Journal,
    /// The upstream could not be started, or died.
    Upstream,
    /// Whoever reads our standard output has closed it (`| head`): the end, but no error.
    OutputClosed,
}

/// An error as a person meets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliError {
    kind: Kind,
    what: String,
    why: Option<String>,
    hint: Option<String>,
}

impl CliError {
    /// Makes an error of `kind`; `what` is one sentence without a full stop.
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            why: None,
            hint: None,
        }
    }

    /// Makes a usage error.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Kind::Usage, what)
    }

    /// Adds the cause, which is shown after a colon.
    #[must_use]
    pub fn because(mut self, why: impl fmt::Display) -> Self {
        self.why = Some(why.to_string());
        self
    }

    /// Adds what the reader can do about it; it may have several lines.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the code with which the program ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self.kind {
            Kind::Usage => Exit::Usage,
            Kind::Failure => Exit::Failure,
            Kind::InDoubt => Exit::InDoubt,
            Kind::Damaged => Exit::Damaged,
            Kind::Journal => Exit::Journal,
            Kind::Upstream => Exit::Upstream,
            Kind::OutputClosed => Exit::Ok,
        }
    }

    /// Returns the lines for stderr, each ended by `\n`; empty where nothing is to be said.
    #[must_use]
    pub fn render(&self) -> String {
        if self.kind == Kind::OutputClosed {
            return String::new();
        }
        let mut text = format!("checkpoint: error: {}", escape(&self.what));
        if let Some(why) = &self.why {
            let _ = write!(text, ": {}", escape(why));
        }
        text.push('\n');
        if let Some(hint) = &self.hint {
            for (index, line) in escape_block(hint).lines().enumerate() {
                let lead = if index == 0 { "hint: " } else { "      " };
                let _ = writeln!(text, "{lead}{line}");
            }
        }
        text
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.why {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CliError {}

/// Standard output could not be written.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::new(Kind::OutputClosed, "standard output was closed")
        } else {
            Self::new(Kind::Failure, "standard output can't be written")
                .because(error)
                .hint("see where it goes, and whether there is space")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_what_why_and_hint() {
        let error = CliError::new(Kind::Journal, "run.db can't be used")
            .because("it is empty")
            .hint("move it away\nor restore it");
        assert_eq!(
            error.render(),
            "checkpoint: error: run.db can't be used: it is empty\n\
             hint: move it away\n      or restore it\n"
        );
        assert_eq!(error.exit(), Exit::Journal);
        assert_eq!(error.to_string(), "run.db can't be used: it is empty");
    }

    #[test]
    fn text_can_not_drive_the_terminal() {
        let error = CliError::usage("a\u{1b}[31mb").because("c\nd");
        assert_eq!(error.render(), "checkpoint: error: a\\u{1b}[31mb: c\\nd\n");
    }

    #[test]
    fn a_closed_output_is_no_error() {
        let error = CliError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((error.exit(), error.render()), (Exit::Ok, String::new()));
        let error = CliError::from(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(error.exit(), Exit::Failure);
    }
}
