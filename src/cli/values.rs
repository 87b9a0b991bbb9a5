//! How durations, sizes, ids and other values are spelled on the command line and in the
//! environment. Pure: text in, value or a sentence that says what was expected out.
//!
//! Both sources use these functions, so a value means the same wherever it stands. What a policy
//! file spells the same way is parsed by [`crate::rules::units`], for both.

use std::path::PathBuf;
use std::time::Duration;

pub use crate::rules::units::{DURATION_MAX, ID_BYTES_MAX, parse_duration, parse_id, parse_size};

/// The smallest limit for one line; below it not even a refusal fits.
pub const MESSAGE_BYTES_MIN: usize = 64;

/// The largest limit for one line: arguments and result together must fit one SQLite row, which
/// ends at 1,000,000,000 bytes. Source: <https://sqlite.org/limits.html>, section 1.
pub const MESSAGE_BYTES_MAX: usize = 400 << 20;

/// Parses a duration that is longer than nothing.
///
/// # Errors
///
/// As [`parse_duration`], and for zero.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("expected more than zero; leave the flag out for no limit".into()),
        timeout => Ok(timeout),
    }
}

/// Parses the limit for one line.
///
/// # Errors
///
/// As [`parse_size`], and outside [`MESSAGE_BYTES_MIN`]..=[`MESSAGE_BYTES_MAX`].
pub fn parse_message_bytes(text: &str) -> Result<usize, String> {
    let size_bytes = parse_size(text)?;
    if (MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX).contains(&size_bytes) {
        Ok(size_bytes)
    } else {
        Err("expected 64B to 400MiB".to_owned())
    }
}

/// Parses a number of calls, from 1.
///
/// # Errors
///
/// What was expected.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(count @ 1..) if is_plain => Ok(count),
        _ => Err("expected a number from 1, in digits".to_owned()),
    }
}

/// Reasons and messages have at most this many bytes.
pub const REASON_BYTES_MAX: usize = 4096;

/// Parses a reason: with a visible character, at most [`REASON_BYTES_MAX`] bytes.
///
/// # Errors
///
/// What was expected.
pub fn parse_reason(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("expected a reason that is not empty".to_owned());
    }
    if text.len() > REASON_BYTES_MAX {
        return Err(format!(
            "expected at most {REASON_BYTES_MAX} bytes, not {}",
            text.len()
        ));
    }
    Ok(text.to_owned())
}

/// Parses the start of a SHA-256, or nothing: then it need not be told from others.
///
/// # Errors
///
/// What was expected.
pub fn parse_digest(text: &str) -> Result<String, String> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if text.is_empty() || (is_hex && (4..=64).contains(&text.len())) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("expected the first 4 to 64 digits of a SHA-256, as `show` tells it".to_owned())
    }
}

/// Parses the name or the version that is shown to the client.
///
/// # Errors
///
/// What was expected: it is no id, but has the same limits, and no control characters.
pub fn parse_identity(text: &str) -> Result<String, String> {
    if text.contains(char::is_control) {
        return Err("expected text without control characters".to_owned());
    }
    parse_id(text).map_err(|why| why.replace("an id", "text"))
}

/// Parses the path of a journal.
///
/// # Errors
///
/// For an empty path, and for what SQLite or a driver would read as something other than a file's
/// name: `:memory:`, `file:` URIs, URLs.
pub fn parse_journal(path: PathBuf) -> Result<PathBuf, String> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.is_empty() {
        return Err("expected the path of a file".to_owned());
    }
    if bytes.starts_with(b":") || bytes.starts_with(b"file:") {
        return Err("expected the path of a file, not an SQLite name or URI".to_owned());
    }
    if bytes.windows(3).any(|window| window == b"://") {
        return Err("expected the path of a file, not a URL".to_owned());
    }
    Ok(path)
}

/// Parses a shell command.
///
/// # Errors
///
/// For one without a visible character, which a shell would run with success.
pub fn parse_shell_command(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        Err("expected a command that is not empty".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        assert!(parse_timeout("0ms").is_err());
        assert_eq!(parse_timeout("1ms"), Ok(Duration::from_millis(1)));
    }

    #[test]
    fn limits() {
        for bad in ["0", "63B", "401MiB", "1GiB"] {
            assert!(parse_message_bytes(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(parse_message_bytes("64MiB"), Ok(64 << 20));
        for bad in ["", "0", "-1", "+1", "1.0", "1e3", "18446744073709551616"] {
            assert!(parse_count(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(parse_count("1"), Ok(1));
    }

    #[test]
    fn digests() {
        for bad in ["abc", "wxyz", "0x12", &"a".repeat(65)] {
            assert!(parse_digest(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(parse_digest("3FA9"), Ok("3fa9".to_owned()));
        assert_eq!(parse_digest(""), Ok(String::new()));
    }

    #[test]
    fn identities() {
        assert!(parse_identity("a\nb").is_err());
        assert_eq!(parse_identity("my proxy"), Ok("my proxy".to_owned()));
    }

    #[test]
    fn journals() {
        for bad in [
            "",
            ":memory:",
            "file:x.db",
            "file:///x.db",
            "postgres://h/d",
        ] {
            assert!(parse_journal(bad.into()).is_err(), "{bad:?} was accepted");
        }
        for good in ["run.db", "a/b:c.db", "/x/file:y.db"] {
            assert_eq!(parse_journal(good.into()), Ok(good.into()));
        }
    }

    #[test]
    fn commands() {
        assert!(parse_shell_command(" \t\n").is_err());
        assert_eq!(parse_shell_command("a && b"), Ok("a && b".to_owned()));
    }
}
