//! A small seeded generator of numbers (xorshift64*), for texts and choices, never for secrets.
//!
//! Equal seeds give equal runs; it costs a few cycles a number. It must never be the source of an
//! identity: the run id comes from the clock and the process. Read `payload.rs` next.

/// The generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that starts at `seed`; neighbouring seeds give unrelated numbers.
    pub fn new(seed: u64) -> Random {
        // One step of splitmix64, which also keeps the state from being zero.
        let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((state ^ (state >> 31)) | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a product: no division, and a bias far below anything seen here.
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
