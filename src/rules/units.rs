//! How durations, sizes and ids are spelled, wherever a person writes one: on the command line, in
//! the environment, in a policy file.
//!
//! One spelling for all of them, so that a value means the same wherever it stands. Nothing is
//! guessed: a duration without a unit, or a size in `MB`, is refused rather than read one way.
//!
//! Must not: know which flag or field a value belongs to.

use std::time::Duration;

pub use super::ids::ID_BYTES_MAX;

/// The longest duration: ten years, so that adding one to a clock never overflows.
pub const DURATION_MAX: Duration = Duration::from_secs(3_650 * 86_400);

/// The units of durations in milliseconds, the largest first.
const DURATION_UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// The units of sizes in bytes, the largest first.
const SIZE_UNITS: [(&str, usize); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// Parses `250ms`, `30s`, `5m`, `2h` or `7d`: digits and a unit, nothing between.
///
/// # Errors
///
/// What was expected, where `text` is anything else or over [`DURATION_MAX`].
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected digits and a unit: 250ms, 30s, 5m, 2h, 7d";
    let (number, unit) = split_number(text);
    let number: u64 = number.parse().map_err(|_| EXPECTED.to_owned())?;
    let (_, unit_ms) = DURATION_UNITS
        .into_iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| EXPECTED.to_owned())?;
    match number.checked_mul(unit_ms).map(Duration::from_millis) {
        Some(duration) if duration <= DURATION_MAX => Ok(duration),
        _ => Err("expected at most 3650d".to_owned()),
    }
}

/// Returns the spelling of a duration of whole milliseconds that [`parse_duration`] reads back.
#[must_use]
pub fn duration_text(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".to_owned();
    }
    let fits = |(_, unit_ms): &(&str, u64)| ms.is_multiple_of(*unit_ms);
    let (unit, unit_ms) = DURATION_UNITS
        .into_iter()
        .find(fits)
        .expect("a millisecond divides every number of them");
    format!("{}{unit}", ms / unit_ms)
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
    let unit = if unit.is_empty() { "B" } else { unit };
    let (_, unit_bytes) = SIZE_UNITS
        .into_iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| EXPECTED.to_owned())?;
    number
        .checked_mul(unit_bytes)
        .ok_or_else(|| "expected a size that this machine can address".to_owned())
}

/// Returns the spelling of a size that [`parse_size`] reads back.
#[must_use]
pub fn size_text(size_bytes: usize) -> String {
    let fits = |(_, unit_bytes): &(&str, usize)| size_bytes.is_multiple_of(*unit_bytes);
    let (unit, unit_bytes) = SIZE_UNITS
        .into_iter()
        .filter(|_| size_bytes > 0)
        .find(fits)
        .unwrap_or(("B", 1));
    format!("{}{unit}", size_bytes / unit_bytes)
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

fn split_number(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    }

    #[test]
    fn ids() {
        assert_eq!(parse_id("w"), Ok("w".to_owned()));
        assert_eq!(parse_id(&"é".repeat(256)), Ok("é".repeat(256)));
        assert!(parse_id(&"é".repeat(257)).is_err());
        assert!(parse_id("").is_err());
    }

    #[test]
    fn texts_are_the_shortest() {
        for text in ["0s", "250ms", "90s", "15m", "25h", "7d"] {
            assert_eq!(duration_text(parse_duration(text).unwrap()), text);
        }
        for text in ["0B", "1B", "64KiB", "64MiB", "1GiB", "1025B"] {
            assert_eq!(size_text(parse_size(text).unwrap()), text);
        }
    }

    proptest! {
        #[test]
        fn texts_read_back(ms in 0_u64..=315_360_000_000, size in any::<usize>()) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&duration_text(duration)), Ok(duration));
            prop_assert_eq!(parse_size(&size_text(size)), Ok(size));
        }
    }
}
