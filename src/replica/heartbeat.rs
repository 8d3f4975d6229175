//! Heartbeats of a leader: what it says, what the answers mean, when silence ends a connection.
//!
//! A `Ping` goes out on the control connection, and on a data connection on which nothing else
//! would be missed. A `Pong` confirms the epoch as of the time when its `Ping` was sent: a lost
//! memory counts again only after that (`opening.rs`), and the lease of an elected leader rests on
//! it (`election.rs`). Read `leader.rs` first.

use super::leader::Leader;
use super::opening::Phase;
use super::progress::{Cause, Link, Stage};
use super::state::State;
use super::view::LogView;
use crate::types::{Epoch, Time};
use crate::wire::body::{Ping, Pong, Sealed};
use crate::wire::capability::Capability;
use crate::wire::code::Code;

impl Leader {
    pub(super) fn on_pong(&mut self, now: Time, index: usize, body: &Pong, state: &mut State) {
        let leads = self.phase == Phase::Open || state.config.electing && self.has_won();
        let link = &mut self.links[index];
        if leads && body.promised <= self.epoch {
            if body.promised == self.epoch {
                // Nobody confirms what was not asked yet.
                let asked_at = Time(body.sent_at_us).min(now);
                link.confirmed_at = link.confirmed_at.max(asked_at);
            }
            // It does not know what it is taken to have promised or verified: it was restarted.
            // With nothing to send, a data connection that died without a word would never be
            // missed; an empty frame tells. While a pause forbids even that, a new connection does.
            let forgot = body.promised < self.epoch || body.durable_end < link.matched;
            if forgot && link.stage == Stage::Streaming {
                if link.peer_pause.is_some() {
                    self.drop_link(now, index, Code::Replaced, Cause::Lost, state);
                } else if link.in_flight() == 0 {
                    link.probe(link.next);
                }
            }
        }
        self.heard_epoch(now, body.promised, state);
    }

    pub(super) fn ping(&mut self, now: Time, state: &mut State, view: &dyn LogView) {
        if state.config.electing {
            // A candidate is no leader, and must not be heard as one.
            if !self.has_won() {
                return;
            }
            state.hear(state.config.node, self.epoch);
        }
        let ping = Ping {
            epoch: if self.is_open() { self.epoch } else { Epoch(0) },
            committed_end: state.high_watermark,
            log_start: view.log_start(),
            log_end: view.log_end(),
            sent_at_us: now.0,
        };
        let sealed = Sealed {
            epoch: ping.epoch,
            bytes: self.sealed_bytes,
        };
        for link in &self.links {
            // Without a control connection the data connection must do; and one that nothing is
            // awaited on might have died without a word.
            let data = link
                .data
                .filter(|_| link.control.is_none() || link.needs_heartbeats());
            for connection in [link.control, data].into_iter().flatten() {
                state.send(connection, ping.clone());
            }
            let told = link.control.or(link.data);
            if let Some(connection) = told.filter(|_| self.is_open() && takes_sealed(link)) {
                state.send(connection, sealed.clone());
            }
        }
    }

    /// Ends connections that answer nothing (S-116, S-117).
    pub fn on_time(&mut self, now: Time, state: &mut State) {
        for index in 0..self.links.len() {
            let link = &mut self.links[index];
            link.blocked = false;
            if link.data.is_some() && silent_at(link, state) <= now {
                self.drop_link(now, index, Code::Timeout, Cause::Timeout, state);
            }
        }
    }
}

fn takes_sealed(link: &Link) -> bool {
    link.capabilities.has(Capability::SealedBytes)
}

/// When silence of its peer ends a link's connection.
pub(super) fn silent_at(link: &Link, state: &State) -> Time {
    // A follower that asked for a pause may take its time with acks; it still answers heartbeats.
    let waiting = link.waiting_since.filter(|_| link.peer_pause.is_none());
    let heard = match link.needs_heartbeats() {
        true => link.heard.min(link.data_heard),
        false => link.heard,
    };
    let since = waiting.map_or(heard, |waiting| waiting.min(heard));
    since.plus_us(state.config.rpc_timeout_us)
}
