//! When a follower asks its leader to pause, and when it lets it go on.
//!
//! An operator may ask (`manual`). By itself a follower asks by two rules, looked at twenty times
//! within `rpc_timeout` while its leader is connected:
//!
//! * `slow_disk`: the oldest run that it received has waited for the disk for half of
//!   `rpc_timeout`. It goes on once nothing received waits for the disk.
//! * `high_load`: two looks in a row came late by a tenth of `rpc_timeout`: the process gets too
//!   little time. It goes on after a look that came in time.
//!
//! A leader that was told of a pause waits for acks without a time-out, so a slow follower stays
//! connected. A pause is a grant of nothing more: see `credit.rs` for the account.

use super::follower::Follower;
use super::state::State;
use super::view::LogView;
use crate::types::{ConnectionId, NodeId, Time};
use crate::wire::body::{Pause, PauseReason, Resume};
use crate::wire::code::Code;
use crate::wire::message::Message;

/// Looks within `rpc_timeout`.
const LOOKS: u64 = 20;
/// Part of `rpc_timeout` by which a look is late.
const LATE: u64 = 10;
/// Part of `rpc_timeout` after which a disk is slow.
const SLOW: u64 = 2;
/// Late looks in a row that are a high load: one may be a step of the clock.
const LATE_LOOKS: u32 = 2;

/// What the rules remember.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// When the next look is due.
    pub(super) look_at: Option<Time>,
    late_looks: u32,
    /// The pause in force was asked for by a rule.
    by_rule: bool,
}

impl Follower {
    /// When the load or the pace wants to be looked at.
    pub(super) fn look_at(&self) -> Option<Time> {
        self.load.look_at.into_iter().chain(self.pace.due()).min()
    }

    /// Asks the leader to send nothing more.
    pub fn ask_pause(&mut self, reason: PauseReason, state: &mut State) {
        self.paused = Some(reason);
        self.load.by_rule = false;
        self.receiver.hold_back(true);
        if let Some(connection) = self.following {
            state.send(connection, Pause { reason });
        }
    }

    /// Lets it go on.
    pub fn ask_resume(&mut self, state: &mut State, view: &dyn LogView) {
        self.paused = None;
        self.load.by_rule = false;
        self.receiver.hold_back(self.full);
        // A leader that only asked for the position was told of the pause as well.
        if let Some(connection) = self.grant(state) {
            let next = view.log_end();
            state.send(connection, Resume { next });
        }
    }

    /// Begins to look after the load: the leader is connected.
    pub(super) fn watch_load(&mut self, now: Time, state: &State) {
        self.load.look_at = Some(now.plus_us(state.config.rpc_timeout_us / LOOKS));
        self.load.late_looks = 0;
    }

    /// The two rules.
    pub(super) fn look_after_load(&mut self, now: Time, state: &mut State, view: &dyn LogView) {
        let Some(due) = self.load.look_at.filter(|due| *due <= now) else {
            return;
        };
        if self.credited.is_none() || state.failed {
            self.load.look_at = None;
            return;
        }
        let timeout_us = state.config.rpc_timeout_us;
        self.load.look_at = Some(now.plus_us(timeout_us / LOOKS));
        let late = now.since_us(due) > timeout_us / LATE;
        self.load.late_looks = if late { self.load.late_looks + 1 } else { 0 };
        let oldest = self.oldest_waiting();
        let slow = oldest.is_some_and(|at| now.since_us(at) >= timeout_us / SLOW);
        let asked = match self.paused {
            None if slow => Some(PauseReason::SlowDisk),
            None if self.load.late_looks >= LATE_LOOKS => Some(PauseReason::HighLoad),
            _ => None,
        };
        if let Some(reason) = asked {
            self.ask_pause(reason, state);
            self.load.by_rule = true;
            let what = match reason {
                PauseReason::SlowDisk => "slow_disk: what was received waits for the disk too long",
                _ => "high_load: this process gets too little time",
            };
            let text = format!("{}: asks its leader to pause, {what}", state.config.log);
            return state.notice(Message::PauseAsked, text);
        }
        let over = match self.paused {
            Some(PauseReason::SlowDisk) => oldest.is_none(),
            Some(PauseReason::HighLoad) => self.load.late_looks == 0,
            Some(PauseReason::Manual) | None => false,
        };
        if over && self.load.by_rule {
            self.ask_resume(state, view);
            let text = format!("{}: asks its leader to go on", state.config.log);
            state.notice(Message::PauseEnded, text);
        }
    }

    /// Closes the leader's connection after too long a silence (S-128).
    pub fn on_time(&mut self, now: Time, state: &mut State, view: &dyn LogView) {
        self.look_after_load(now, state, view);
        self.step_pace(now, state);
        if self.silent_at(state).is_none_or(|at| now < at) {
            return;
        }
        let electing = state.config.electing;
        let silent = |(id, peer): &&(ConnectionId, NodeId)| match electing {
            true => self.credited == Some(*id),
            false => *peer == state.config.leader,
        };
        let Some((connection, leader)) = self.data.iter().find(silent).copied() else {
            return;
        };
        let (log, silence_ms) = (state.config.log, now.since_us(self.heard) / 1000);
        let text =
            format!("{log}: nothing heard of leader {leader} for {silence_ms} ms: disconnected");
        state.notice(Message::LeaderSilent, text);
        state.close(connection, Code::Timeout);
        self.down(connection);
    }
}
