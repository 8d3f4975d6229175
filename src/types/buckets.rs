//! Counts of durations in fixed buckets: what a histogram on a metrics page is made of.
//!
//! Bounds are powers of two of a microsecond, from 64 us to 67 s, so that a bucket is found with
//! one instruction and counts below a bound are exact. Constant memory, no allocation.

/// Bounded buckets; behind them one without a bound.
const BOUNDED: usize = 21;
/// The lowest bound is two to this, microseconds.
const LOWEST: u32 = 6;

/// Durations counted by size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    counts: [u64; BOUNDED + 1],
    sum_us: u64,
}

impl Buckets {
    /// Counts one duration, microseconds.
    pub fn record(&mut self, value_us: u64) {
        let power = value_us.checked_ilog2().map_or(0, |power| power + 1);
        let index = (power.saturating_sub(LOWEST) as usize).min(BOUNDED);
        self.counts[index] += 1;
        self.sum_us = self.sum_us.saturating_add(value_us);
    }

    /// Durations counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum, microseconds.
    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// Each bucket's upper bound in microseconds, none for the last one, with its own count:
    /// durations below the bound and not below the one before.
    pub fn each(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        let bound = |index: usize| (index < BOUNDED).then(|| 1 << (LOWEST as usize + index));
        let counts = self.counts.iter().enumerate();
        counts.map(move |(index, count)| (bound(index), *count))
    }
}

#[cfg(test)]
#[path = "buckets_tests.rs"]
mod tests;
