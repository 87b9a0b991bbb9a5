//! The exit codes, each with its sentence.
//!
//! Scripts and hosts decide by these numbers, so they are named once, here, and nowhere else.
//! This file must not know why a command ends as it does; that is `error.rs`.

use std::process::ExitCode;

/// How a run of the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: what was asked was done.
    Ok,
    /// 1: it was not, for a reason that has no code of its own.
    Failure,
    /// 2: the command line or an environment variable can't be used; nothing was started.
    Usage,
    /// 3: entries are in doubt, and the caller asked to be told so.
    InDoubt,
    /// 4: `verify` found damage.
    Damaged,
    /// 5: the journal can't be used; it was left as it is.
    Journal,
    /// 69: the upstream could not be started, or died.
    Upstream,
}

impl Exit {
    /// Every way to end, in the order of the codes; help and README list them from here.
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::Failure,
        Self::Usage,
        Self::InDoubt,
        Self::Damaged,
        Self::Journal,
        Self::Upstream,
    ];

    /// Returns the number that the parent process sees.
    ///
    /// 69 is `EX_UNAVAILABLE`. Source: sysexits(3).
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::InDoubt => 3,
            Self::Damaged => 4,
            Self::Journal => 5,
            Self::Upstream => 69,
        }
    }

    /// Returns what the code means, as half a sentence that stands in the help.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "done",
            Self::Failure => "failed",
            Self::Usage => "usage: a flag or an environment variable can't be used",
            Self::InDoubt => "entries are in doubt (--fail-if-any, --on-in-doubt exit)",
            Self::Damaged => "verify found damage",
            Self::Journal => "the journal can't be used",
            Self::Upstream => "the upstream could not be started, or died",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_contract() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 69]);
    }

    #[test]
    fn every_code_has_a_meaning_of_its_own() {
        for (index, exit) in Exit::ALL.iter().enumerate() {
            assert!(!exit.meaning().is_empty());
            for other in &Exit::ALL[index + 1..] {
                assert_ne!(exit.meaning(), other.meaning());
            }
        }
    }
}
