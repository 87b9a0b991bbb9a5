//! Where a string's plain stretch ends.
//!
//! Real strings are text: a line end or a quote, as an escape, every few dozen bytes. So the next
//! few dozen are looked at eight at a time, right here; only what is plain for longer is worth
//! vector instructions and what it takes to begin with them.
//!
//! Must not: know what stands where it stops.

/// How far the search goes by words, in words: about a line of text.
const NEAR_WORDS: usize = 8;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Marks the bytes of `word` that are `byte` in their highest bits. A borrow can only mark bytes
/// above the first true one, so the lowest mark is always exact.
fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ (ONES * u64::from(byte)), 1)
}

/// Marks the bytes of `word` that are below `limit`, at most 128, in their highest bits; as exact
/// as [`equal`].
fn below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(ONES * u64::from(limit)) & !word & HIGH
}

/// Returns the place, counted from the start of `text`, of the first byte that `marks` marks among
/// the next words, or how far it has looked.
fn near(text: &[u8], marks: impl Fn(u64) -> u64) -> Result<usize, usize> {
    let (words, _) = text.as_chunks::<8>();
    let words = &words[..words.len().min(NEAR_WORDS)];
    for (index, word) in words.iter().enumerate() {
        let marks = marks(u64::from_le_bytes(*word));
        if marks != 0 {
            return Ok(index * 8 + (marks.trailing_zeros() / 8) as usize);
        }
    }
    Err(words.len() * 8)
}

/// Returns the first place from `at` on that holds a quote or a backslash.
pub(super) fn find_quote_or_escape(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    let far = match near(rest, |word| equal(word, b'"') | equal(word, b'\\')) {
        Ok(step) => return Some(at + step),
        Err(far) => far,
    };
    memchr::memchr2(b'"', b'\\', &rest[far..]).map(|step| at + far + step)
}

/// Returns the first place from `at` on that holds a quote, a backslash or a control character, or
/// the text's end.
pub(super) fn skip_plain(text: &[u8], mut at: usize) -> usize {
    let is_special = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\');
    loop {
        let Some(rest) = text.get(at..) else {
            return text.len();
        };
        match near(rest, |word| {
            equal(word, b'"') | equal(word, b'\\') | below(word, 0x20)
        }) {
            Ok(step) => return at + step,
            Err(far) => at += far,
        }
        // Without a way out inside, the fold becomes vector instructions.
        let (chunks, _) = text[at..].as_chunks::<64>();
        let plain = chunks.iter().take_while(|chunk| {
            !chunk
                .iter()
                .fold(false, |any, byte| any | is_special(*byte))
        });
        at += plain.count() * 64;
        if text.len() - at < 8 {
            let rest = text[at..].iter().position(|byte| is_special(*byte));
            return rest.map_or(text.len(), |step| at + step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = Vec<u8>> {
        // Long plain stretches, and all that looks like something special but for one bit.
        let piece = prop_oneof![
            (0_usize..150).prop_map(|count| vec![b'a'; count]),
            proptest::sample::select(vec![
                b'"', b'\\', 0x1f, 0x20, 0, 0xa2, 0xdc, 0x80, 0x9f, 0xff, b'#', b'!', b'['
            ])
            .prop_map(|byte| vec![byte]),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn finds_what_a_look_at_each_byte_finds(text in text(), at in 0_usize..200) {
            let first = |is: fn(u8) -> bool| {
                let rest = text.get(at..)?;
                rest.iter().position(|byte| is(*byte)).map(|step| at + step)
            };
            let quote = first(|byte| byte == b'"' || byte == b'\\');
            prop_assert_eq!(find_quote_or_escape(&text, at), quote);
            let special = first(|byte| byte < 0x20 || byte == b'"' || byte == b'\\');
            prop_assert_eq!(skip_plain(&text, at), special.unwrap_or(text.len()));
        }
    }
}
