//! Names and numbers that must not be mixed up, each a type of its own.
//!
//! Must not: allocate ids or check what only the journal can know (uniqueness, order).

use std::fmt;

/// The most bytes that an id from outside may have: workflow, run, thread, call id, key
/// (contract, section 3).
pub const ID_BYTES_MAX: usize = 512;

/// The highest `checkpoint_seq`: 2^53-1, the largest integer that every JSON reader keeps exact.
pub const SEQ_MAX: u64 = (1 << 53) - 1;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// The place of a call in its workflow, from 1 to [`SEQ_MAX`].
    Seq(u64)
);
number!(
    /// The journal's own number of a branch, unique in the journal. People see the branch's
    /// number within its workflow instead (0 is the first).
    BranchId(u64)
);
number!(
    /// A number that rises with every attempt in the journal and is never reused.
    Fence(u64)
);
number!(
    /// One run of the proxy, numbered in the journal from 1.
    SessionId(u64)
);
number!(
    /// Microseconds since the Unix epoch, UTC, by the journal's clock.
    Micros(i64)
);

impl Micros {
    /// Returns how many microseconds have passed since `earlier`, zero if the clock stepped back.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }
}

/// The name of a workflow: non-empty, at most [`ID_BYTES_MAX`] bytes where it comes from outside
/// (the journal's own id is its absolute path and may be longer).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkflowId(pub String);

impl fmt::Display for WorkflowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How far an idempotency key holds (contract, section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// The run id, by default the workflow.
    Run,
    /// The thread id.
    Thread,
    /// Everything in the journal, until purged.
    Journal,
}

impl Window {
    /// Returns the name that is stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Thread => "thread",
            Self::Journal => "journal",
        }
    }

    /// Returns the window of that name, `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "run" => Some(Self::Run),
            "thread" => Some(Self::Thread),
            "journal" => Some(Self::Journal),
            _ => None,
        }
    }
}

/// A key with the window in which it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeldKey {
    /// The key as it is compared and stored.
    pub key: String,
    /// How far it holds.
    pub window: Window,
    /// The window's own name: a run id, a thread id, or empty for the journal.
    pub window_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for window in [Window::Run, Window::Thread, Window::Journal] {
            assert_eq!(Window::from_name(window.name()), Some(window));
        }
        assert_eq!(Window::from_name("run "), None);
        assert_eq!(WorkflowId("order 7".into()).to_string(), "order 7");
    }
}
