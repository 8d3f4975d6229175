//! A histogram of replication lag: constant memory, relative error below 1/16.
//!
//! Values are microseconds. Each power of two is cut into 16 equal buckets, values below 32 are
//! exact. Only counts and percentiles; who measures what is `leader.rs`'s business.

use crate::types::Buckets;

const PER_POWER: u64 = 16;
const BUCKETS: usize = 61 * PER_POWER as usize;

/// Counts of values by size.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u32>,
    total: u64,
    buckets: Buckets,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            counts: vec![0; BUCKETS],
            total: 0,
            buckets: Buckets::default(),
        }
    }
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, value_us: u64) {
        let count = &mut self.counts[bucket(value_us)];
        *count = count.saturating_add(1);
        self.total += 1;
        self.buckets.record(value_us);
    }

    /// The same counts in the few buckets of a metrics page.
    pub fn buckets(&self) -> Buckets {
        self.buckets
    }

    /// Values counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The value below or at which `percent` of all values lie, rounded up to its bucket's upper
    /// end; 0 if nothing was counted.
    pub fn percentile(&self, percent: u64) -> u64 {
        let wanted = (self.total * percent).div_ceil(100);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted && seen > 0 {
                return upper_end(index);
            }
        }
        0
    }
}

fn bucket(value: u64) -> usize {
    if value < 2 * PER_POWER {
        return value as usize;
    }
    let shift = value.ilog2() - PER_POWER.ilog2();
    (u64::from(shift) * PER_POWER + (value >> shift)) as usize
}

fn upper_end(index: usize) -> u64 {
    let index = index as u64;
    if index < 2 * PER_POWER {
        return index;
    }
    let shift = index / PER_POWER - 1;
    let top = index - shift * PER_POWER;
    (((u128::from(top) + 1) << shift) - 1).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
#[path = "lag_tests.rs"]
mod tests;
