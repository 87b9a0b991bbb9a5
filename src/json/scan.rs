//! Finding the next byte of a string that matters.
//!
//! Must not: know what stands around a string.

/// What a scan stops at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stops {
    /// A quote and a backslash: all that decides where a string ends.
    QuoteSlash,
    /// Control characters, too: all that decides whether a string is one.
    QuoteSlashControl,
}

/// Returns the first place from `at` on that holds a byte that `stops` names, or the text's end.
#[inline]
pub(super) fn scan(text: &[u8], at: usize, stops: Stops) -> usize {
    match stops {
        Stops::QuoteSlash => scan_for::<false>(text, at),
        Stops::QuoteSlashControl => scan_for::<true>(text, at),
    }
}

fn scan_for<const CONTROL: bool>(text: &[u8], mut at: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let is_stop = |byte: u8| (CONTROL & (byte < 0x20)) | (byte == b'"') | (byte == b'\\');
    // Eight bytes at a time, as most strings are short. A borrow can only mark bytes above the
    // first true one, so the lowest mark is always exact.
    let mut words = 0;
    while let Some(chunk) = text.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ (ONES * 0x22);
        let slash = word ^ (ONES * 0x5c);
        let mut marks = (quote.wrapping_sub(ONES) & !quote) | (slash.wrapping_sub(ONES) & !slash);
        if CONTROL {
            marks |= word.wrapping_sub(ONES * 0x20) & !word;
        }
        let marks = marks & HIGH;
        if marks != 0 {
            return at + (marks.trailing_zeros() / 8) as usize;
        }
        at += 8;
        words += 1;
        if words % 8 == 0 {
            // What has been plain for long is plain for longer.
            if !CONTROL {
                let rest = &text[at..];
                let found = memchr::memchr2(b'"', b'\\', rest);
                return at + found.unwrap_or(rest.len());
            }
            // Without a way out inside, this becomes vector instructions.
            while let Some(chunk) = text.get(at..).and_then(<[u8]>::first_chunk::<64>) {
                if chunk.iter().fold(false, |any, byte| any | is_stop(*byte)) {
                    break;
                }
                at += 64;
            }
        }
    }
    while text.get(at).is_some_and(|&byte| !is_stop(byte)) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slow(text: &[u8], at: usize, stops: Stops) -> usize {
        let mut at = at;
        while at < text.len() {
            let byte = text[at];
            let is_control = stops == Stops::QuoteSlashControl && byte < 0x20;
            if byte == b'"' || byte == b'\\' || is_control {
                break;
            }
            at += 1;
        }
        at
    }

    proptest! {
        #[test]
        fn each_byte_in_each_place_is_seen(
            plain in proptest::collection::vec(prop_oneof![Just(b'x'), any::<u8>()], 0..20),
            length in 0_usize..400,
            places in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            start in any::<prop::sample::Index>(),
        ) {
            let mut text = plain;
            text.resize(text.len() + length, b'a');
            text.push(b'z');
            for (place, byte) in places {
                let place = place.index(text.len());
                text[place] = byte;
            }
            let at = start.index(text.len() + 1);
            for stops in [Stops::QuoteSlash, Stops::QuoteSlashControl] {
                prop_assert_eq!(scan(&text, at, stops), slow(&text, at, stops));
            }
        }
    }
}
