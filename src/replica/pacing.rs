//! How fast a follower that is behind is brought up: at the pace that the receiver sets.
//!
//! A follower that lacks more than 64 committed blocks *catches up*, until it lacks 8. Meanwhile it
//! raises its byte limit by `catch_up_bytes_per_s` at most, in steps of 2 ms, so that disk and
//! network stay free for what is live. How many bytes its leader seals meanwhile is told with the
//! heartbeats (`Sealed`); 5/4 of that is the least pace: a follower never falls behind for good
//! because of its own pace. Without that frame, from a leader that lacks the capability, the pace
//! that is set is all there is. Decides nothing about blocks: see `credit.rs` for the account.

use super::Replica;
use super::follower::Follower;
use super::state::State;
use super::view::LogView;
use crate::types::{Epoch, Time};
use crate::wire::body::Sealed;

/// Committed blocks that it lacks when it begins to catch up.
const BEHIND_BLOCKS: u64 = 64;
/// Committed blocks that it lacks when it has caught up.
const CLOSE_BLOCKS: u64 = 8;
/// Time between two raises, microseconds.
const STEP_US: u64 = 2_000;
/// Words of the leader within so much time of one another came together, microseconds.
const TOGETHER_US: u64 = 5_000;
/// What may be granted ahead of what came: the bytes of so much time, microseconds.
const AHEAD_US: u64 = 100_000;
/// Words of its leader, one with each heartbeat, over which that one's rate is averaged.
const WORDS: u64 = 8;

/// A follower's pace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Bytes a second; 0 for no bound.
    bytes_per_s: u64,
    /// When the last step was, while it catches up.
    stepped: Option<Time>,
    /// What the leader said last of what it sealed.
    heard: Option<Heard>,
    /// Bytes a second that the leader seals.
    live_bytes_per_s: u64,
}

/// A word of the leader.
#[derive(Clone, Copy, Debug)]
struct Heard {
    epoch: Epoch,
    /// When it came, and the bytes that it says.
    last: (Time, u64),
    /// The word from which it counted, and the average before it; none if it is the first.
    since: Option<((Time, u64), u64)>,
}

impl Pace {
    pub(super) fn new(bytes_per_s: u64) -> Pace {
        Pace {
            bytes_per_s,
            stepped: None,
            heard: None,
            live_bytes_per_s: 0,
        }
    }

    /// When the next step is due.
    pub(super) fn due(&self) -> Option<Time> {
        self.stepped.map(|at| at.plus_us(STEP_US))
    }

    /// The connection is gone, and all accounts with it.
    pub(super) fn stop(&mut self) {
        self.stepped = None;
    }

    /// The leader said how much it sealed. Words that come together, after a stall, count as one:
    /// the last of them takes the place of the others.
    pub(super) fn hear(&mut self, now: Time, said: &Sealed) {
        let known = self.heard.filter(|heard| heard.epoch == said.epoch);
        let since = known.and_then(|heard| match now.since_us(heard.last.0) < TOGETHER_US {
            true => heard.since,
            false => Some((heard.last, self.live_bytes_per_s)),
        });
        let since = since.filter(|((_, bytes), _)| *bytes <= said.bytes);
        if let Some(((at, bytes), before)) = since {
            let live = per_second(said.bytes - bytes, now.since_us(at));
            self.live_bytes_per_s = before - before / WORDS + live / WORDS;
        }
        self.heard = Some(Heard {
            epoch: said.epoch,
            last: (now, said.bytes),
            since,
        });
    }

    /// Bytes by which the limit may rise after a step of `step_us`.
    fn step(&self, step_us: u64) -> u64 {
        let rate = u128::from(self.rate()) * u128::from(step_us) / 1_000_000;
        rate.min(u128::from(u64::MAX)) as u64
    }

    fn rate(&self) -> u64 {
        let live = self.live_bytes_per_s;
        self.bytes_per_s.max(live.saturating_add(live / 4))
    }
}

fn per_second(count: u64, time_us: u64) -> u64 {
    let rate = u128::from(count) * 1_000_000 / u128::from(time_us.max(1));
    rate.min(u128::from(u64::MAX)) as u64
}

impl Follower {
    /// An operator sets the pace: bytes a second, 0 for no bound.
    pub fn set_catch_up(&mut self, bytes_per_s: u64, state: &mut State) {
        self.pace.bytes_per_s = bytes_per_s;
        if bytes_per_s == 0 && self.catches_up() {
            self.end_pace(state);
        }
    }

    /// The pace that is set, bytes a second; 0 for no bound.
    pub fn catch_up_bytes_per_s(&self) -> u64 {
        self.pace.bytes_per_s
    }

    /// Whether it is being brought up at its own pace.
    pub fn catches_up(&self) -> bool {
        self.pace.stepped.is_some()
    }

    /// What the leader has committed, or what is held here, changed.
    pub(super) fn mind_pace(&mut self, state: &mut State, view: &dyn LogView) {
        let behind = self.leader_committed.0.saturating_sub(view.log_end().0);
        if self.catches_up() {
            if behind <= CLOSE_BLOCKS {
                self.end_pace(state);
            }
        } else if behind > BEHIND_BLOCKS && self.pace.bytes_per_s > 0 && self.credited.is_some() {
            self.pace.stepped = Some(state.clock);
            self.receiver.cap();
        }
    }

    /// Time for a step.
    pub(super) fn step_pace(&mut self, now: Time, state: &mut State) {
        let Some(before) = self.pace.stepped.filter(|_| self.pace.due() <= Some(now)) else {
            return;
        };
        self.pace.stepped = Some(now);
        let more = self.pace.step(now.since_us(before));
        let ahead = self.pace.rate() / (1_000_000 / AHEAD_US);
        if self.receiver.raise_cap(more, ahead) {
            self.grant(state);
        }
    }

    fn end_pace(&mut self, state: &mut State) {
        self.pace.stop();
        self.receiver.uncap();
        self.grant(state);
    }
}

impl Replica {
    /// An operator sets the pace at which this node lets itself be brought up: bytes a second, 0
    /// for no bound. Counts at once.
    pub fn set_catch_up(&mut self, bytes_per_s: u64) {
        self.follower.set_catch_up(bytes_per_s, &mut self.state);
    }

    /// Whether it is being brought up at that pace.
    pub fn catches_up(&self) -> bool {
        self.follower.catches_up()
    }

    /// That pace.
    pub fn catch_up_bytes_per_s(&self) -> u64 {
        self.follower.catch_up_bytes_per_s()
    }
}

#[cfg(test)]
#[path = "pacing_tests.rs"]
mod tests;
