//! The pauses between attempts: the first soon, each twice as long, up to a bound (S-119).
//!
//! A node that died is often back at once, and one that stays away must not be dialed all the time.
//! There is no jitter: attempts of different links fall apart by themselves, and a run of the
//! simulator stays a function of its seed. `progress.rs` has one for each link.

use crate::limits::FIRST_RETRY_MS;

/// Doublings after which the bound is reached whatever it is.
const DOUBLINGS: u32 = 32;

/// Attempts that failed since one succeeded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// An attempt failed: microseconds until the next one, at most `longest_us`.
    pub fn failed(&mut self, longest_us: u64) -> u64 {
        let pause = (FIRST_RETRY_MS * 1000) << self.failures;
        self.failures = (self.failures + 1).min(DOUBLINGS);
        pause.min(longest_us)
    }

    /// An attempt led somewhere: the next pause is the shortest again.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}
