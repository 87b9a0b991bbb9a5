//! Numbers by their exact decimal value, never through a float.

/// Appends the one spelling that all spellings of a number share.
///
/// That is a sign, digits without zeros at either end, and `e` with the power of ten; zero of any
/// sign is `0`. So `1`, `1.0` and `10e-1` are `1e0`. The exponent may itself have any length.
/// A raw value that is no number gives an unspecified text.
pub(super) fn normalise(raw: &[u8], out: &mut Vec<u8>) {
    let (is_negative, raw) = match raw.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, raw),
    };
    let mark = raw.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let (mantissa, exponent) = match mark {
        Some(mark) => (&raw[..mark], &raw[mark + 1..]),
        None => (raw, &b""[..]),
    };
    let (whole, fraction) = match mantissa.iter().position(|&byte| byte == b'.') {
        Some(point) => (&mantissa[..point], &mantissa[point + 1..]),
        None => (mantissa, &b""[..]),
    };
    let fraction = trim_end_zeros(fraction);
    let mut power = -(fraction.len() as i128);
    let whole = trim_start_zeros(whole);
    let (whole, fraction) = if fraction.is_empty() {
        let kept = trim_end_zeros(whole);
        power += (whole.len() - kept.len()) as i128;
        (kept, fraction)
    } else if whole.is_empty() {
        (whole, trim_start_zeros(fraction))
    } else {
        (whole, fraction)
    };
    if whole.is_empty() && fraction.is_empty() {
        out.push(b'0');
        return;
    }
    if is_negative {
        out.push(b'-');
    }
    out.extend_from_slice(whole);
    out.extend_from_slice(fraction);
    out.push(b'e');
    push_sum(exponent, power, out);
}

/// Returns the canonical text of a raw number: equal for equal values, and only for them.
pub fn number_key(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len() + 3);
    normalise(super::trim(raw), &mut out);
    out
}

/// Returns a number that is written as a plain integer: digits without sign, leading zero,
/// fraction or exponent. Nothing if it is written otherwise or does not fit.
pub fn plain_integer(raw: &[u8]) -> Option<u64> {
    let raw = super::trim(raw);
    if raw.is_empty() || !raw.iter().all(u8::is_ascii_digit) || (raw[0] == b'0' && raw.len() > 1) {
        return None;
    }
    std::str::from_utf8(raw).ok()?.parse().ok()
}

/// Appends a number in decimal; formatting would cost more than all else in a short value.
pub(super) fn push_decimal(mut value: u64, out: &mut Vec<u8>) {
    if let Ok(digit @ 0..10) = u8::try_from(value) {
        out.push(b'0' + digit);
        return;
    }
    let mut digits = [0; 20];
    let mut start = digits.len();
    while value > 0 {
        start -= 1;
        digits[start] = b'0' + (value % 10) as u8;
        value /= 10;
    }
    out.extend_from_slice(&digits[start..]);
}

fn trim_start_zeros(digits: &[u8]) -> &[u8] {
    let start = digits
        .iter()
        .position(|&digit| digit != b'0')
        .unwrap_or(digits.len());
    &digits[start..]
}

fn trim_end_zeros(digits: &[u8]) -> &[u8] {
    let end = digits
        .iter()
        .rposition(|&digit| digit != b'0')
        .map_or(0, |last| last + 1);
    &digits[..end]
}

/// Appends the sum of an exponent of any length and a `power` no larger than a text's length.
fn push_sum(exponent: &[u8], power: i128, out: &mut Vec<u8>) {
    let (is_negative, digits) = match exponent.first() {
        Some(b'-') => (true, &exponent[1..]),
        Some(b'+') => (false, &exponent[1..]),
        _ => (false, exponent),
    };
    let digits = trim_start_zeros(digits);
    if digits.len() <= 30 {
        let value = digits.iter().fold(0_i128, |sum, &digit| {
            sum * 10 + i128::from(digit.wrapping_sub(b'0') & 15)
        });
        let sum = if is_negative {
            power - value
        } else {
            power + value
        };
        if sum < 0 {
            out.push(b'-');
        }
        match u64::try_from(sum.unsigned_abs()) {
            Ok(sum) => push_decimal(sum, out),
            Err(_) => out.extend_from_slice(sum.unsigned_abs().to_string().as_bytes()),
        }
        return;
    }
    // The exponent is above 10^30 and the power below 2^64, so the sign stays the exponent's and
    // a borrow always finds a digit to take from.
    if is_negative {
        out.push(b'-');
    }
    let grows = is_negative == (power < 0);
    let mut rest = power.unsigned_abs();
    let mut carry = 0_u8;
    let mut sum = digits.to_vec();
    for place in sum.iter_mut().rev() {
        if rest == 0 && carry == 0 {
            break;
        }
        let step = (rest % 10) as u8 + carry;
        rest /= 10;
        let digit = place.wrapping_sub(b'0') & 15;
        let (digit, over) = if grows {
            ((digit + step) % 10, (digit + step) / 10)
        } else {
            ((digit + 20 - step) % 10, u8::from(step > digit))
        };
        *place = b'0' + digit;
        carry = over;
    }
    if carry > 0 {
        out.push(b'0' + carry);
        out.extend_from_slice(&sum);
    } else {
        out.extend_from_slice(trim_start_zeros(&sum));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(raw: &str) -> String {
        String::from_utf8(number_key(raw.as_bytes())).expect("ASCII")
    }

    #[test]
    fn equal_values_have_one_text() {
        for (expected, spellings) in [
            (
                "1e0",
                &[
                    "1", "1.0", "1.000", "10e-1", "0.1e1", "1e0", "1E+0", "1e-0", "0.01E2",
                ][..],
            ),
            (
                "0",
                &[
                    "0",
                    "-0",
                    "0.0",
                    "-0.000",
                    "0e5",
                    "0e999999999999999999999999999999999999",
                ],
            ),
            ("-15e-1", &["-1.5", "-15e-1", "-0.15e1", "-1.50"]),
            ("1e400", &["1e400", "10e399", "1.0e+0400", "0.001e403"]),
            (
                "9007199254740993e0",
                &["9007199254740993", "9007199254740993.0"],
            ),
            ("9007199254740992e0", &["9007199254740992"]),
            ("1e3", &["1000", "1e3", "1.0e3"]),
            ("105e-1", &["10.5", "1.05e1"]),
            ("1e-3", &["0.001", "1e-3", "0.0010"]),
            ("12e2", &["1200", "1.2e3", "00012e2"]),
        ] {
            for spelling in spellings {
                assert_eq!(key(spelling), expected, "{spelling}");
            }
        }
    }

    #[test]
    fn exponents_of_any_length_are_exact() {
        let nines = "9".repeat(40);
        assert_eq!(
            key(&format!("10e{nines}")),
            format!("1e1{}", "0".repeat(40))
        );
        assert_eq!(
            key(&format!("0.1e1{}", "0".repeat(40))),
            format!("1e{nines}")
        );
        assert_eq!(
            key(&format!("1.5e-{nines}")),
            format!("15e-1{}", "0".repeat(40))
        );
        assert_eq!(
            key(&format!("100e-1{}", "0".repeat(40))),
            format!("1e-{}8", "9".repeat(39))
        );
        assert_eq!(key(&format!("1e{nines}")), format!("1e{nines}"));
        assert_eq!(key(&format!("1e000{nines}")), format!("1e{nines}"));
    }

    #[test]
    fn a_million_digits_are_exact_and_quick() {
        let ones = "1".repeat(1_000_000);
        assert_eq!(key(&ones), format!("{ones}e0"));
        assert_eq!(key(&format!("1{}", "0".repeat(1_000_000))), "1e1000000");
        assert_eq!(key(&format!("0.{}1", "0".repeat(1_000_000))), "1e-1000001");
        assert_eq!(key(&format!("1e{ones}")), format!("1e{ones}"));
    }

    #[test]
    fn decimals_are_written_whole() {
        for value in [0, 9, 10, 99, 255, 256, 1_000, 18_446_744_073_709_551_615] {
            let mut out = Vec::new();
            push_decimal(value, &mut out);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }

    #[test]
    fn plain_integers_are_digits_only() {
        assert_eq!(plain_integer(b"7"), Some(7));
        assert_eq!(plain_integer(b"0"), Some(0));
        for raw in [
            "7.0",
            "7e0",
            "+7",
            "-7",
            "07",
            "\"7\"",
            "",
            "18446744073709551616",
            "true",
        ] {
            assert_eq!(plain_integer(raw.as_bytes()), None, "{raw}");
        }
    }

    proptest! {
        #[test]
        fn shifting_the_point_changes_nothing(digits in "[1-9][0-9]{0,30}", shift in 0_usize..40,
            exponent in -1_000_000_000_i64..1_000_000_000) {
            let plain = format!("{digits}e{exponent}");
            let padded = format!("{digits}{}e{}", "0".repeat(shift), exponent - shift as i64);
            prop_assert_eq!(key(&plain), key(&padded));
            let small = format!("0.{}{digits}e{}", "0".repeat(shift),
                exponent + shift as i64 + digits.len() as i64);
            prop_assert_eq!(key(&plain), key(&small));
        }

        #[test]
        fn long_and_short_exponents_agree(value in any::<u64>(), power in -1_000_000_i64..1_000_000,
            is_negative: bool) {
            // The long way is taken for more than 30 digits; add 10^35 to both sides.
            let sign = if is_negative { "-" } else { "" };
            let big = 10_i128.pow(35) + i128::from(value);
            let mut long = Vec::new();
            push_sum(format!("{sign}{big}").as_bytes(), i128::from(power), &mut long);
            let expected = if is_negative { -big + i128::from(power) } else { big + i128::from(power) };
            prop_assert_eq!(String::from_utf8(long).expect("ASCII"), expected.to_string());
        }
    }
}
