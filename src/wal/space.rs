//! Whether the disk has space for the next segment file of a log, and when to ask again.
//!
//! Running out shows when the next file cannot be brought in, or not be named. Nothing that was
//! accepted is lost by it: blocks that need the file wait in memory. The log asks again after a
//! while, less and less often, until there is space. Read `segments.rs` for who asks.

use crate::types::Time;

/// Time before the next file is asked for again the first time, and at most.
const RETRY_US: (u64, u64) = (100_000, 2_000_000);

/// What a log knows of the space on its disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Space {
    full: bool,
    retry_at: Option<Time>,
    backoff_us: u64,
    /// Whether `full` changed since that was asked last.
    changed: bool,
}

impl Space {
    /// Whether the last attempt found none.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// Whether it is too early for the next attempt.
    pub(super) fn is_waiting(&self) -> bool {
        self.retry_at.is_some()
    }

    /// When the next attempt is due.
    pub(super) fn retry_at(&self) -> Option<Time> {
        self.retry_at
    }

    /// An attempt found no space.
    pub(super) fn missed(&mut self, now: Time) {
        let (least, most) = RETRY_US;
        self.backoff_us = (2 * self.backoff_us).clamp(least, most);
        self.retry_at = Some(now.plus_us(self.backoff_us));
        self.changed |= !self.full;
        self.full = true;
    }

    /// An attempt found space.
    pub(super) fn found(&mut self) {
        let changed = self.changed || self.full;
        *self = Space {
            changed,
            ..Space::default()
        };
    }

    /// Makes the next attempt due now: the log has given a file back itself.
    pub(super) fn ask_again(&mut self) {
        self.retry_at = None;
    }

    /// Time has passed.
    pub(super) fn on_time(&mut self, now: Time) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
    }

    /// Whether it is full now, if that changed since the last call.
    pub(super) fn take_change(&mut self) -> Option<bool> {
        core::mem::take(&mut self.changed).then_some(self.full)
    }
}
