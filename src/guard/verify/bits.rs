//! Which fences and sessions there are, in little memory.

use std::collections::BTreeMap;

/// A set of numbers, one bit each where they lie close together.
#[derive(Debug, Default)]
pub(super) struct Bits(BTreeMap<u64, Box<[u64; Bits::WORDS]>>);

impl Bits {
    const WORDS: usize = 64;

    /// Adds a number; returns whether it was not there.
    pub(super) fn set(&mut self, number: u64) -> bool {
        let (page, word, bit) = Self::at(number);
        let words = self
            .0
            .entry(page)
            .or_insert_with(|| Box::new([0; Self::WORDS]));
        let was = words[word] & bit != 0;
        words[word] |= bit;
        !was
    }

    /// Returns whether a number was added.
    pub(super) fn has(&self, number: u64) -> bool {
        let (page, word, bit) = Self::at(number);
        self.0
            .get(&page)
            .is_some_and(|words| words[word] & bit != 0)
    }

    fn at(number: u64) -> (u64, usize, u64) {
        let per_page = 64 * Self::WORDS as u64;
        let within = number % per_page;
        let word = usize::try_from(within / 64).expect("it is below the page's words");
        (number / per_page, word, 1 << (within % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits() {
        let mut bits = Bits::default();
        for number in [0, 1, 63, 64, 4_095, 4_096, u64::MAX] {
            assert!(!bits.has(number));
            assert!(bits.set(number));
            assert!(!bits.set(number));
            assert!(bits.has(number));
        }
        assert!(!bits.has(2));
    }
}
