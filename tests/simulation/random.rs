//! Random numbers that a seed reproduces on every machine (SplitMix64).

#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
    /// Nothing is left to chance: each draw is the first of its kind, each chance is missed.
    is_quiet: bool,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03,
            is_quiet: false,
        }
    }

    pub(crate) fn quiet() -> Self {
        Self {
            state: 0,
            is_quiet: true,
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        debug_assert!(limit > 0);
        if self.is_quiet {
            return 0;
        }
        usize::try_from((u128::from(self.next()) * limit as u128) >> 64).unwrap()
    }

    /// True with this many chances in a thousand.
    pub(crate) fn chance(&mut self, per_mille: usize) -> bool {
        !self.is_quiet && self.below(1000) < per_mille
    }

    /// One of them.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
