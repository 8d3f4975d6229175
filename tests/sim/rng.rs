//! Chance, reproducible: splitmix64, a few lines of our own so that a seed means the same for ever.
//!
//! Every draw of a run comes from one of these; no other source of chance is allowed in simulated
//! tests. `fork` gives a part of the run its own stream, so that a change in one part does not
//! shift the draws of the others. Read `disk.rs` next.

/// A stream of draws.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// How often something happens, in draws of a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chance(pub u32);

impl Chance {
    /// Not at all.
    pub const NEVER: Chance = Chance(0);

    /// So many times in a hundred.
    pub fn percent(percent: u32) -> Chance {
        Chance(percent * 10_000)
    }
}

impl Rng {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// An index into `len` things, of which there is at least one.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number of `first..=last`.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        assert!(first <= last, "an empty range has no number");
        first + self.below(last - first + 1)
    }

    /// Heads or tails.
    pub fn flip(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }

    /// Whether the thing of this chance happens now.
    pub fn happens(&mut self, chance: Chance) -> bool {
        chance.0 > 0 && self.below(1_000_000) < u64::from(chance.0)
    }

    /// One of the things given.
    pub fn pick<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.index(things.len())]
    }

    /// A stream of its own for a part of the run.
    pub fn fork(&mut self) -> Rng {
        Rng(self.next_u64())
    }
}
