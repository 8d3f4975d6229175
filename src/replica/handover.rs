//! Planned hand-overs: the leadership goes to another member without an append that fails.
//!
//! The leader takes no more appends (its owner holds them back), waits until the other one has all
//! its blocks and they are committed, and tells it to take over. If nothing has come of it within
//! an election timeout it goes on as before; at once, if the member says that its disk is full. A
//! member of a version that does not know `TakeOver` is never sent one: it leads only by an
//! election. A leader that is not the preferred one hands over by itself once the preferred one has
//! been caught up for a while, and one whose disk is full once another has room. Read `election.rs`
//! first.

use super::Replica;
use super::leader::Leader;
use super::progress::{Link, Stage};
use super::state::State;
use super::view::LogView;
use crate::types::{NodeId, Time};
use crate::wire::body::{ReplicaMemory, TakeOver};
use crate::wire::capability::{Capabilities, Capability};
use crate::wire::code::Code;
use crate::wire::message::Message;

/// Blocks that a member may lack and still count as caught up.
const CAUGHT_UP_BLOCKS: u64 = 64;

/// A hand-over under way.
#[derive(Clone, Copy, Debug)]
pub struct Handing {
    pub(super) to: NodeId,
    pub(super) until: Time,
    told: bool,
}

impl Replica {
    /// What a peer said that it can, at each of its connections before `peer_up`.
    pub fn peer_can(&mut self, peer: NodeId, capabilities: Capabilities) {
        let links = self.leader.iter_mut().flat_map(|leader| &mut leader.links);
        for link in links.filter(|link| link.peer == peer) {
            link.capabilities = capabilities;
        }
    }
}

/// Whether the follower knows the frame that hands a leadership over.
fn takes_over(link: &Link) -> bool {
    link.capabilities.has(Capability::TakeOver)
}

impl Leader {
    /// Begins to hand over to `to`. False if this node does not lead, or that one lags, is none
    /// of the others or does not know the frame.
    pub(super) fn promote(
        &mut self,
        now: Time,
        to: NodeId,
        state: &mut State,
        view: &dyn LogView,
    ) -> bool {
        if !self.can_promote(to, state, view) {
            return false;
        }
        self.handing = Some(Handing {
            to,
            until: now.plus_us(state.config.election_timeout_us),
            told: false,
        });
        let text = format!("{}: hands over to node {to}", state.config.log);
        state.notice(Message::HandOver, text);
        true
    }

    /// Whether a hand-over to `to` could begin now.
    pub(super) fn can_promote(&self, to: NodeId, state: &State, view: &dyn LogView) -> bool {
        let able = state.config.electing && self.is_open() && self.handing.is_none();
        able && self.may_take_over(to, view)
    }

    fn may_take_over(&self, node: NodeId, view: &dyn LogView) -> bool {
        let link = self.links.iter().find(|link| link.peer == node);
        link.is_some_and(|link| {
            takes_over(link)
                && link.stage >= Stage::Probing
                && link.counts(self.epoch)
                && link.stopped.is_none()
                && !link.operator_pause
                && link.peer_pause.is_none()
                && link.peer_full.is_none()
                && link.matched.0 + CAUGHT_UP_BLOCKS >= view.log_end().0
        })
    }

    /// Goes on with a hand-over, or begins one to the preferred member.
    pub(super) fn hand_over(&mut self, now: Time, state: &mut State, view: &dyn LogView) {
        if !state.config.electing || !self.is_open() {
            return;
        }
        let Some(handing) = self.handing else {
            return self.prefer(now, state, view);
        };
        if now >= handing.until {
            self.handing = None;
            self.caught_up_since = None;
            let (log, to) = (state.config.log, handing.to);
            if let Some(link) = self.links.iter_mut().find(|link| link.peer == to) {
                link.declined = Some(now);
            }
            let text = format!("{log}: node {to} did not take over in time: goes on");
            return state.notice(Message::HandOver, text);
        }
        let end = view.log_end();
        let link = self.links.iter().find(|link| link.peer == handing.to);
        let ready = link.filter(|link| {
            let whole = link.memory == ReplicaMemory::Whole;
            takes_over(link) && link.matched == end && whole && !handing.told
        });
        let all_there = view.is_sealed() && state.high_watermark == end;
        if let Some(connection) = ready.and_then(|link| link.data).filter(|_| all_there) {
            self.handing = Some(Handing {
                told: true,
                ..handing
            });
            state.send(connection, TakeOver { epoch: self.epoch });
        }
    }

    /// The log of this leader is closed by an error: the member that holds most of it is told to
    /// take over at once, instead of after an election timeout. Whether it may is for its own
    /// epoch to show.
    pub(super) fn hand_over_failed(&mut self, state: &mut State) {
        if !state.config.electing || !self.is_open() {
            return;
        }
        let able = self.links.iter().filter(|link| {
            takes_over(link)
                && link.counts(self.epoch)
                && link.stopped.is_none()
                && link.memory == ReplicaMemory::Whole
                && link.data.is_some()
        });
        let Some(best) = able.max_by_key(|link| link.matched) else {
            return;
        };
        let connection = best.data.expect("just seen");
        let text = format!("{}: hands over to node {}", state.config.log, best.peer);
        state.send(connection, TakeOver { epoch: self.epoch });
        state.notice(Message::HandOver, text);
    }

    fn prefer(&mut self, now: Time, state: &mut State, view: &dyn LogView) {
        let Some(to) = self.rather(state, view) else {
            self.caught_up_since = None;
            return;
        };
        let since = *self.caught_up_since.get_or_insert(now);
        if now >= since.plus_us(state.config.handover_us) {
            self.promote(now, to, state, view);
        }
    }

    /// Who should lead rather than this node: the preferred member; or, while the disk here is
    /// full, one whose disk is not known to be.
    fn rather(&self, state: &State, view: &dyn LogView) -> Option<NodeId> {
        // Who declined a while ago may have room again. An operator's wish is always asked.
        let again_us = 2 * state.config.handover_us;
        let declined = |at: Time| self.clock.since_us(at) < again_us;
        let willing = self.links.iter().filter(|link| {
            !link.declined.is_some_and(declined) && self.may_take_over(link.peer, view)
        });
        let preferred = state.config.leader;
        let able = willing.filter(|link| view.is_full() || link.peer == preferred);
        let best = able.max_by_key(|link| (link.peer == preferred, link.matched));
        best.map(|link| link.peer)
    }

    /// The member that was told to take over has no room on its disk: this leader goes on at once,
    /// and asks it again two hand-over's times later at the earliest. True if it was that.
    pub(super) fn take_over_refused(
        &mut self,
        now: Time,
        index: usize,
        code: Code,
        state: &mut State,
    ) -> bool {
        let peer = self.links[index].peer;
        let told = self.handing.is_some_and(|it| it.told && it.to == peer);
        if code != Code::NoSpace || !told {
            return false;
        }
        self.handing = None;
        self.caught_up_since = None;
        self.links[index].declined = Some(now);
        let log = state.config.log;
        let text = format!("{log}: node {peer} has no space to lead: goes on");
        state.notice(Message::HandOver, text);
        true
    }
}
