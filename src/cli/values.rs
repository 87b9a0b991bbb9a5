//! How durations, sizes, ids and other values are spelled on the command line and in the
//! environment. Pure: text in, value or a sentence that says what was expected out.
//!
//! Both sources use these functions, so a value means the same wherever it stands. Nothing is
//! guessed: a duration without a unit, or a size in `MB`, is refused rather than read one way.

use std::path::PathBuf;
use std::time::Duration;

/// Ids (workflow, run, thread, call id, key) have at most this many bytes.
pub const ID_BYTES_MAX: usize = 512;

/// The longest duration: ten years, so that adding one to a clock never overflows.
pub const DURATION_MAX: Duration = Duration::from_secs(3_650 * 86_400);

/// The smallest limit for one line; below it not even a refusal fits.
pub const MESSAGE_BYTES_MIN: usize = 64;

/// The largest limit for one line: arguments and result together must fit one SQLite row, which
/// ends at 1,000,000,000 bytes. Source: <https://sqlite.org/limits.html>, section 1.
pub const MESSAGE_BYTES_MAX: usize = 400 << 20;

/// Parses `250ms`, `30s`, `5m`, `2h` or `7d`: digits and a unit, nothing between.
///
/// # Errors
///
/// What was expected, where `text` is anything else or over [`DURATION_MAX`].
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected digits and a unit: 250ms, 30s, 5m, 2h, 7d";
    let (number, unit) = split_number(text);
    let number: u64 = number.parse().map_err(|_| EXPECTED.to_owned())?;
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(EXPECTED.to_owned()),
    };
    match number.checked_mul(unit_ms).map(Duration::from_millis) {
        Some(duration) if duration <= DURATION_MAX => Ok(duration),
        _ => Err("expected at most 3650d".to_owned()),
    }
}

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

/// Parses `512B`, `64KiB`, `1MiB`, `1GiB`, or bare digits, which are bytes.
///
/// # Errors
///
/// What was expected, where `text` is anything else or too large to count.
pub fn parse_size(text: &str) -> Result<usize, String> {
    const EXPECTED: &str = "expected digits and a unit: 512B, 64KiB, 1MiB";
    let (number, unit) = split_number(text);
    let number: usize = number.parse().map_err(|_| EXPECTED.to_owned())?;
    let unit_bytes: usize = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(EXPECTED.to_owned()),
    };
    number
        .checked_mul(unit_bytes)
        .ok_or_else(|| "expected a size that this machine can address".to_owned())
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

/// Parses an id: not empty, at most [`ID_BYTES_MAX`] bytes.
///
/// # Errors
///
/// What was expected.
pub fn parse_id(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("expected an id that is not empty".to_owned()),
        1..=ID_BYTES_MAX => Ok(text.to_owned()),
        bytes => Err(format!(
            "expected at most {ID_BYTES_MAX} bytes, not {bytes}"
        )),
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

fn split_number(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let ms = |ms| Ok(Duration::from_millis(ms));
        assert_eq!(parse_duration("250ms"), ms(250));
        assert_eq!(parse_duration("30s"), ms(30_000));
        assert_eq!(parse_duration("5m"), ms(300_000));
        assert_eq!(parse_duration("2h"), ms(7_200_000));
        assert_eq!(parse_duration("7d"), ms(604_800_000));
        assert_eq!(parse_duration("0s"), ms(0));
        assert_eq!(parse_duration("3650d"), Ok(DURATION_MAX));
        for bad in [
            "",
            "5",
            "s",
            "-5s",
            "+5s",
            "5 s",
            " 5s",
            "5s ",
            "1.5s",
            "5S",
            "5sec",
            "1m30s",
            "5µs",
            "٣s",
            "3651d",
            "18446744073709551615d",
            "99999999999999999999s",
            "1e3ms",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(parse_timeout("0ms").is_err());
        assert_eq!(parse_timeout("1ms"), ms(1));
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("512B"), Ok(512));
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("1MiB"), Ok(1_048_576));
        assert_eq!(parse_size("1GiB"), Ok(1_073_741_824));
        for bad in [
            "",
            "B",
            "MiB",
            "-1B",
            "1.5MiB",
            "1 MiB",
            "1MB",
            "1mib",
            "1M",
            "1K",
            "1KiBB",
            "18446744073709551615GiB",
        ] {
            assert!(parse_size(bad).is_err(), "{bad:?} was accepted");
        }
        for bad in ["0", "63B", "401MiB", "1GiB"] {
            assert!(parse_message_bytes(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(parse_message_bytes("64MiB"), Ok(64 << 20));
    }

    #[test]
    fn ids() {
        assert_eq!(parse_id("w"), Ok("w".to_owned()));
        assert_eq!(parse_id(&"é".repeat(256)), Ok("é".repeat(256)));
        assert!(parse_id(&"é".repeat(257)).is_err());
        assert!(parse_id("").is_err());
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
