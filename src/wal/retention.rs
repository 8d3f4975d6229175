//! Which segments a log no longer keeps: by bytes, by age, or, where nothing may go, whether it
//! takes no more.
//!
//! The leader alone decides, as a block number never above what is committed; followers trim to its
//! log start. Whole sealed segments go. Age is counted by tick and not by record time, so a record
//! from the future keeps nothing and one from the past deletes nothing; segments that began
//! in this run count by this node's running time, so a clock that is set back holds nothing up.
//! A gap of more than an hour between the last tick and the start may be a step of the clock: it
//! does not count, so what is there stays for that much running time longer. Read `log.rs` for
//! `trim`, which carries it out.

use super::log::Log;
use super::output::State;
use crate::types::{BlockNo, Tick, Time};

/// A gap between two ticks that may be a step of the clock, microseconds.
const GAP_US: u64 = 3_600_000_000;

/// What a log keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Bytes of segment files above which the oldest go.
    pub trim_bytes: Option<u64>,
    /// Bytes of segment files at which appends are refused.
    pub refuse_bytes: Option<u64>,
    /// Age of a segment's last block at which it goes, microseconds.
    pub age_us: Option<u64>,
}

/// How old blocks are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age {
    started: Time,
    /// What the ticks' clock showed then.
    base: u64,
}

impl Age {
    /// `last` is the last tick in the log that was found at the start.
    pub(super) fn new(started: Time, last: Tick) -> Age {
        let gap = started.0.saturating_sub(last.0);
        let base = match last.0 {
            0 => started.0,
            _ if gap > GAP_US => last.0,
            _ => started.0.max(last.0),
        };
        Age { started, base }
    }

    /// When a block of this tick is so old, by this node's clock. `begun` is when this node put it
    /// into the log, if it was in this run.
    fn due(&self, tick: Tick, begun: Option<Time>, age_us: u64) -> Time {
        let found = || {
            let younger = age_us.saturating_sub(self.base.saturating_sub(tick.0));
            self.started.plus_us(younger)
        };
        begun.map_or_else(found, |begun| begun.plus_us(age_us))
    }
}

impl Log {
    /// As leader: where the log should begin now, if not where it does. To be given to `trim`.
    pub fn retention_point(&mut self, now: Time) -> Option<BlockNo> {
        self.segments.note_begun(now);
        let keep = self.config.retention;
        let mut bytes = self.segments.bytes();
        let mut point = None;
        for (one, next) in self.segments.pairs() {
            let done = next.named && next.base() <= self.trim_end();
            let too_many = keep.trim_bytes.is_some_and(|most| bytes > most);
            let due = |age_us| self.age.due(next.first_tick, next.begun, age_us);
            let too_old = keep.age_us.is_some_and(|age_us| due(age_us) <= now);
            if !done || !(too_many || too_old) {
                break;
            }
            bytes -= one.len;
            point = Some(next.base());
        }
        point
    }

    /// As leader: when age will next ask for something.
    pub fn retention_timeout(&self) -> Option<Time> {
        let age_us = self.config.retention.age_us?;
        let busy = self.state != State::Open || self.cut.is_some() || self.trims.is_some();
        let (_, next) = self.segments.pairs().next().filter(|_| !busy)?;
        let done = next.named && next.base() <= self.trim_end();
        done.then(|| self.age.due(next.first_tick, next.begun, age_us))
    }

    /// As leader: bytes held and bytes allowed, if the log takes no more appends until some go.
    pub fn retention_refuses(&self) -> Option<[u64; 2]> {
        let most = self.config.retention.refuse_bytes?;
        let open = self.open.as_ref().map_or(0, |open| open.padded() as u64);
        let held = self.segments.used_bytes() + open;
        (held >= most).then_some([held, most])
    }
}
