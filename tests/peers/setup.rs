//! Which peers a test gets, and what is said where there are none.
//!
//! Where a runtime is missing the test is skipped, loudly; under `CI=true` it fails.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

pub(crate) use crate::install::{Node, Python, fixture, text};
use crate::install::{install_node, install_providers, install_python};

/// Returns the npm peers, installed; `None` (said loudly) where there is no Node.
pub(crate) fn node() -> Option<&'static Node> {
    static NODE: OnceLock<Result<Node, String>> = OnceLock::new();
    or_skip(NODE.get_or_init(install_node))
}

/// Returns the Python peers, installed; `None` (said loudly) where there is no Python.
pub(crate) fn python() -> Option<&'static Python> {
    static PYTHON: OnceLock<Result<Python, String>> = OnceLock::new();
    or_skip(PYTHON.get_or_init(install_python))
}

/// Returns an interpreter with the providers' packages, installed; `None` (said loudly) where
/// there is no Python.
pub(crate) fn providers() -> Option<&'static PathBuf> {
    static PROVIDERS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    or_skip(PROVIDERS.get_or_init(install_providers))
}

/// Says that a test is skipped and why; fails instead where nothing may be skipped.
///
/// It writes to the real stderr: the test runner hides what passing tests print.
pub(crate) fn skip(reason: &str) {
    assert!(
        std::env::var_os("CI").is_none(),
        "nothing is skipped in CI: {reason}"
    );
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {reason}");
}

fn or_skip<T>(found: &Result<T, String>) -> Option<&T> {
    match found {
        Ok(peers) => Some(peers),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}
