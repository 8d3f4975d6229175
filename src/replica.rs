//! The replica protocol of one log on one node: who leads, what may be admitted, what is committed.
//!
//! It is Raft with a block as the entry and its safety rules. In an electing set every member may
//! lead (`election.rs`); else configuration places one node as the only candidate. It sees headers
//! (`wire::block::BlockHeader`) and a [`LogView`], never payload bytes, a clock, a disk or the WAL.
//! The composition calls an input for what happened, then [`Replica::poll`] until it returns none,
//! and [`Replica::on_time`] when [`Replica::poll_timeout`] is due.
//!
//! `follower.rs` and `promises.rs` are the part of every node, `leader.rs`, `heartbeat.rs`,
//! `sending.rs`, `opening.rs`, `copying.rs` and `handover.rs` that of one that may lead;
//! `pausing.rs` says when a follower asks for a pause; `admit.rs` holds the rule by which a run of
//! blocks enters a log, `credit.rs` the two accounts of a link, `progress.rs` what a leader knows
//! of one follower. Start with `view.rs`, then `output.rs`.

pub mod admit;
pub mod credit;

mod backoff;
mod config;
mod copying;
mod election;
mod facts;
mod follower;
mod following;
mod handover;
mod heartbeat;
mod lag;
mod leader;
mod mending;
mod opening;
mod output;
mod pacing;
mod pausing;
mod pending;
mod progress;
mod promises;
mod sending;
mod state;
mod view;

use election::New;
use follower::Follower;
use leader::Leader;
use mending::Mending;
use state::State;

pub use config::Config;
pub use credit::Account;
pub use mending::{Damaged, Mended};
pub use output::{
    Following, LinkStatus, LinkView, Output, Promise, Refused, Role, SaveToken, SendRun,
    ServeFetch, Verdict, with_run,
};
pub use pending::Pending;
pub use view::LogView;

use crate::types::{BlockNo, ConnectionId, Epoch, NodeId, Time};
use crate::wire::block::BlockHeader;
use crate::wire::body::{Body, Channel, PauseReason, ReplicaMemory};
use crate::wire::code::Code;
use crate::wire::message::Message;

/// One log's part in the protocol on this node.
#[derive(Debug)]
pub struct Replica {
    state: State,
    follower: Follower,
    /// On the placed node, or on every member of an electing set.
    leader: Option<Leader>,
    mending: Mending,
}

impl Replica {
    /// A replica whose log is still being recovered.
    ///
    /// # Panics
    /// If this node or the placed leader is no member: the configuration's checks see to it.
    pub fn new(config: Config) -> Replica {
        let members = &config.members;
        assert!(
            members.contains(&config.node) && members.contains(&config.leader),
            "this node and the placed leader are members"
        );
        let electing = config.electing;
        assert!(
            !electing || !config.mesh && members.len() >= 3,
            "only sets of at least three elect"
        );
        let peers = members.iter().copied().filter(|peer| *peer != config.node);
        let leader = (electing || config.node == config.leader).then(|| Leader::new(peers));
        Replica {
            follower: Follower::new(config.initial_credit, config.catch_up_bytes_per_s),
            leader,
            mending: Mending::default(),
            state: State::new(config),
        }
    }

    /// Recovery has ended: this was promised, and blocks below `high_watermark` are committed as
    /// far as the checkpoint and the blocks themselves tell. A log without a checkpoint is `Blank`.
    pub fn started(
        &mut self,
        now: Time,
        promise: Promise,
        high_watermark: BlockNo,
        view: &dyn LogView,
    ) {
        assert!(!self.state.started, "a replica starts once");
        self.look(now);
        self.state.started = true;
        self.state.promise = promise;
        self.state.high_watermark = high_watermark.min(view.durable_end());
        let new = match promise.memory {
            ReplicaMemory::Blank if self.state.config.new_member => New::Member,
            _ if promise.epoch.0 == 0 => New::Log,
            _ => New::Nothing,
        };
        if new == New::Member {
            self.state.save(Promise {
                memory: ReplicaMemory::Whole,
                ..promise
            });
        }
        if self.state.is_alone_and_lost() && self.state.config.new_member {
            let (log, end) = (self.state.config.log, view.log_end());
            let text = format!("{log}: adopted as it was found, blocks below {end} (--new-member)");
            self.state.notice(Message::LogAdopted, text);
            self.state.save(Promise {
                epoch: promise.epoch.max(view.last_epoch()),
                memory: ReplicaMemory::Whole,
                ..promise
            });
        }
        self.follower.started(now, &self.state);
        if let Some(leader) = &mut self.leader {
            leader.started(now, &self.state);
        }
        let preferred = self.state.config.leader == self.state.config.node;
        self.state.election.started(now, preferred, new);
        self.follower.answer_asked(&mut self.state, view);
    }

    /// A connection with a peer is open. A newer data connection of a peer closes the older one; of
    /// control connections the newest is used.
    pub fn peer_up(
        &mut self,
        now: Time,
        peer: NodeId,
        connection: ConnectionId,
        channel: Channel,
        dialed: bool,
    ) {
        let state = &mut self.state;
        let member = peer != state.config.node && state.config.members.contains(&peer);
        match (channel, &mut self.leader) {
            _ if !member => state.close(connection, Code::WrongNode),
            (Channel::Control, leader) => {
                self.follower.control_up(peer, connection);
                if let Some(leader) = leader {
                    leader.control_up(now, peer, connection, &mut self.state);
                }
            }
            (Channel::Data, Some(leader)) if dialed && leader.is_idle(state) => {
                leader.no_longer_wanted(peer);
                state.close(connection, Code::NotLeader);
            }
            (Channel::Data, Some(leader)) if dialed => {
                leader.data_up(now, peer, connection, state);
            }
            (Channel::Data, None) if dialed => state.close(connection, Code::NotLeader),
            (Channel::Data, _) => self.follower.data_up(now, peer, connection, state),
        }
    }

    /// A connection is gone.
    pub fn peer_down(&mut self, now: Time, connection: ConnectionId) {
        self.mending.down(connection);
        self.follower.down(connection);
        if let Some(leader) = &mut self.leader {
            leader.connection_down(now, connection, &self.state);
        }
    }

    /// The owner of the log found a reason to end a connection.
    pub fn end_connection(&mut self, now: Time, connection: ConnectionId, code: Code) {
        self.state.close(connection, code);
        self.peer_down(now, connection);
    }

    /// A connection asked for with [`Output::Dial`] could not be opened; if the other side refused
    /// it, why.
    pub fn dial_failed(&mut self, now: Time, peer: NodeId, why: Option<Refused>) {
        if let Some(leader) = &mut self.leader {
            leader.dial_failed(now, peer, why, &self.state);
        }
    }

    /// This node and `peer` do not talk: one of the two refused the other's connection.
    pub fn peer_refused(&mut self, peer: NodeId, why: Refused) {
        self.follower.peer_refused(peer, why, &self.state);
    }

    /// A frame without payload came.
    pub fn on_body(
        &mut self,
        now: Time,
        connection: ConnectionId,
        body: &Body,
        view: &dyn LogView,
    ) {
        self.look(now);
        if let Body::Where(body) = body
            && !self.give_way(now, connection, body)
        {
            return self.end_connection(now, connection, Code::StaleEpoch);
        }
        if self.cannot_mend(connection, body) {
            return;
        }
        let state = &mut self.state;
        let taken = match &mut self.leader {
            Some(leader) => leader.on_body(now, connection, body, state, view),
            None => false,
        };
        if taken || self.follower.on_body(now, connection, body, state, view) {
            return self.mind_others(now);
        }
        if self.take_over(now, connection, body, view) {
            return;
        }
        let mine = self
            .leader
            .as_ref()
            .is_some_and(|leader| leader.knows(connection))
            || self.follower.knows(connection);
        match body {
            _ if !mine => {}
            Body::Error(_) => self.peer_down_after_error(now, connection, body),
            _ => {
                self.state.close(connection, Code::WrongDirection);
                self.peer_down(now, connection);
            }
        }
    }

    /// The peer says that something is wrong: its data connection is of no more use. A `Resume` out
    /// of range is answered so too, and says nothing against the link.
    fn peer_down_after_error(&mut self, now: Time, connection: ConnectionId, body: &Body) {
        let Body::Error(error) = body else {
            return;
        };
        let code = Code::from_number(error.code).unwrap_or(Code::Unsupported);
        let text = format!(
            "{}: a peer says {code:?} ({}, {})",
            self.state.config.log, error.detail, error.detail_two
        );
        // A candidate or a leader that steps down takes its leave with this: part of a normal life.
        if code != Code::NotLeader {
            self.state.notice(Message::PeerError, text);
        }
        if code != Code::OutOfRange {
            self.state.close(connection, code);
            self.peer_down(now, connection);
        }
    }

    /// A `Replicate` or `FetchOk` came. `headers` are those of its blocks in order, or none if one
    /// of them is damaged or the payload does not hold the blocks that the body promises.
    pub fn on_run(
        &mut self,
        now: Time,
        connection: ConnectionId,
        body: &Body,
        headers: Option<&[BlockHeader]>,
        view: &dyn LogView,
    ) -> Verdict {
        self.look(now);
        if let Some(verdict) = self.run_for_repair(connection, body, headers) {
            return verdict;
        }
        let state = &mut self.state;
        if let Some(leader) = self
            .leader
            .as_mut()
            .filter(|leader| leader.knows(connection))
        {
            return leader.on_run(now, connection, body, headers, state, view);
        }
        self.follower
            .on_run(now, connection, body, headers, state, view)
    }

    /// The run of the last [`Verdict::Write`] was sound and is in the log.
    pub fn run_written(&mut self, _now: Time, view: &dyn LogView) {
        match self.leader.as_mut().filter(|leader| leader.is_writing()) {
            Some(leader) => leader.run_written(),
            None => self.follower.run_written(&mut self.state, view),
        }
    }

    /// The run of the last [`Verdict::Write`] was neither cut for nor written: a batch of it is not
    /// sound (`BadCrc`), or the disk has no space for it (`NoSpace`).
    pub fn run_refused(&mut self, now: Time, code: Code, view: &dyn LogView) {
        match self.leader.as_mut().filter(|leader| leader.is_writing()) {
            Some(leader) => leader.run_refused(now, code, &mut self.state),
            None => self.follower.run_refused(code, &mut self.state, view),
        }
    }

    /// A run of a [`Verdict::Write`] that waited for its cut does not continue the log: the block
    /// before it, which nobody had read, is another one. It is not in the log, nor is what came
    /// behind it.
    pub fn run_dropped(&mut self, now: Time, headers: &[BlockHeader], view: &dyn LogView) {
        let first = headers
            .first()
            .map_or(view.log_end(), |header| header.block);
        match self.leader.as_mut().filter(|leader| leader.is_copying()) {
            Some(leader) => leader.run_dropped(now, first, &mut self.state),
            None => self.follower.run_dropped(first, &mut self.state, view),
        }
    }

    /// The disk has space again after a run was refused with `NoSpace`.
    pub fn has_space(&mut self) {
        self.follower.has_space(&mut self.state);
    }

    /// This leader sealed a block; the view holds it.
    pub fn sealed(&mut self, _now: Time, header: &BlockHeader, view: &dyn LogView) {
        if let Some(leader) = &mut self.leader {
            leader.sealed(header, &mut self.state, view);
        }
    }

    /// `durable_end` of the view moved.
    pub fn durable(&mut self, now: Time, view: &dyn LogView) {
        self.look(now);
        self.follower.durable(&mut self.state, view);
        if let Some(leader) = &mut self.leader {
            leader.commit(&mut self.state, view);
        }
    }

    /// A save has ended well. (If it failed the log latches.)
    pub fn saved(&mut self, now: Time, token: SaveToken, view: &dyn LogView) {
        let was_whole = self.state.is_whole();
        if !self.state.saved(token) {
            return;
        }
        self.look(now);
        let became_whole = !was_whole && self.state.is_whole();
        if let Some(leader) = &mut self.leader {
            leader.saved(now, &self.state);
        }
        let own = self.state.promise.leader == Some(self.state.config.node);
        if own && self.state.config.electing {
            // Whoever was followed leads an epoch below this one.
            self.follower.let_go(&mut self.state);
        }
        self.follower.saved(became_whole, &mut self.state, view);
        self.mind_others(now);
    }

    /// What an [`Output::SendRun`] handed to its connection, and the bytes of the buffer that this
    /// keeps until it has left; no headers if nothing fitted or could be read.
    pub fn run_sent(
        &mut self,
        now: Time,
        connection: ConnectionId,
        (headers, buffer_bytes): (&[BlockHeader], usize),
    ) {
        if let Some(leader) = &mut self.leader {
            leader.run_sent(now, connection, (headers, buffer_bytes));
        }
    }

    /// So many bytes of payloads left a connection for its socket.
    pub fn payload_left(&mut self, connection: ConnectionId, bytes: usize) {
        if let Some(leader) = &mut self.leader {
            leader.payload_left(connection, bytes);
        }
    }

    /// An operator pauses or resumes the link with `peer`, from either side.
    pub fn pause_link(&mut self, _now: Time, peer: NodeId, pause: bool, view: &dyn LogView) {
        let leads = self.leads();
        if let Some(leader) = self.leader.as_mut().filter(|_| leads || !pause) {
            leader.pause_link(peer, pause);
        }
        // A pause that this node asked for lasts over changes of the leader; so its end is heard
        // whoever leads now.
        let asked = self.follower.paused == Some(PauseReason::Manual);
        let ends = self.state.config.electing && asked && !pause;
        if ends || !leads && Some(peer) == self.leader() {
            if pause {
                self.follower
                    .ask_pause(PauseReason::Manual, &mut self.state);
            } else {
                self.follower.ask_resume(&mut self.state, view);
            }
        }
    }

    /// Asks the leader to pause, for a reason of this node.
    pub fn ask_pause(&mut self, _now: Time, reason: PauseReason) {
        self.follower.ask_pause(reason, &mut self.state);
    }

    /// Ends a pause that this node asked for.
    pub fn ask_resume(&mut self, _now: Time, view: &dyn LogView) {
        self.follower.ask_resume(&mut self.state, view);
    }

    /// The log met a disk error: nothing is admitted, acknowledged or committed any more. Who waits
    /// for an append is answered by the caller.
    pub fn latched(&mut self, now: Time) {
        self.state.failed = true;
        if let Some(leader) = &mut self.leader {
            leader.latched(now, &mut self.state);
        }
    }

    /// Looks at the clock.
    pub fn on_time(&mut self, now: Time, view: &dyn LogView) {
        self.look(now);
        self.look_for_leader(now, view);
        self.follower.on_time(now, &mut self.state, view);
        if let Some(leader) = &mut self.leader {
            leader.on_time(now, &mut self.state);
        }
    }

    /// The next thing to do, until there is none.
    pub fn poll(&mut self, now: Time, view: &dyn LogView) -> Option<Output> {
        if self.state.out.is_empty()
            && let Some(leader) = &mut self.leader
        {
            leader.pump(now, &mut self.state, view);
        }
        self.state.out.pop_front()
    }

    /// When [`Replica::on_time`] (and then [`Replica::poll`]) wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        let leader = self.leader.as_ref();
        let leader = leader.and_then(|leader| leader.poll_timeout(&self.state));
        leader
            .into_iter()
            .chain(self.follower.silent_at(&self.state))
            .chain(self.follower.look_at())
            .chain(self.election_due())
            .chain(self.mending.due())
            .min()
    }

    /// What this node is for the log.
    pub fn role(&self) -> Role {
        match &self.leader {
            _ if self.state.failed => Role::Failed,
            _ if !self.state.started => Role::Starting,
            Some(leader) if leader.is_open() => Role::Leader,
            Some(leader) if leader.is_following(&self.state) => Role::Follower,
            Some(_) => Role::Opening,
            None => Role::Follower,
        }
    }

    /// Its leader: as configured, or in an electing set the one that is heard.
    pub fn leader(&self) -> Option<NodeId> {
        let state = &self.state;
        match state.config.electing {
            false => Some(state.config.leader),
            true if self.leads() => Some(state.config.node),
            true => {
                let heard = state.heard().map(|heard| heard.node);
                heard.filter(|node| *node != state.config.node)
            }
        }
    }

    /// The epoch in force here: led, or promised last.
    pub fn epoch(&self) -> Epoch {
        match &self.leader {
            Some(leader) if leader.is_open() => leader.epoch(),
            _ => self.state.promise.epoch,
        }
    }

    /// The epoch in which the leader takes appends, as far as this node knows: its own, or the
    /// one in which its leader was heard within `rpc_timeout`.
    pub fn epoch_known_open(&self, now: Time) -> Option<Epoch> {
        match &self.leader {
            Some(leader) if leader.is_open() => Some(leader.epoch()),
            Some(_) if !self.state.config.electing => None,
            _ => self.follower.epoch_known_open(now, &self.state),
        }
    }

    /// Whether this leader is handing over: it takes no appends meanwhile.
    pub fn hands_over(&self) -> bool {
        let leader = self.leader.as_ref();
        leader.is_some_and(|leader| leader.handing.is_some())
    }

    /// Whether a hand-over to `to` could begin now; none if this node does not lead.
    pub fn can_promote(&self, to: NodeId, view: &dyn LogView) -> Option<bool> {
        let leader = self.leader.as_ref().filter(|leader| leader.is_open());
        leader.map(|leader| leader.can_promote(to, &self.state, view))
    }

    /// An operator wants `to` to lead. False if it cannot now.
    pub fn promote(&mut self, now: Time, to: NodeId, view: &dyn LogView) -> bool {
        let leader = self.leader.as_mut();
        leader.is_some_and(|leader| leader.promote(now, to, &mut self.state, view))
    }
}

#[cfg(test)]
mod cause_tests;
#[cfg(test)]
mod commit_tests;
#[cfg(test)]
mod election_tests;
#[cfg(test)]
mod exchange_tests;
#[cfg(test)]
mod flow_tests;
#[cfg(test)]
mod follower_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod link_tests;
#[cfg(test)]
mod mending_tests;
#[cfg(test)]
mod mesh_tests;
#[cfg(test)]
mod opening_tests;
#[cfg(test)]
mod soak_tests;
#[cfg(test)]
mod space_tests;
#[cfg(test)]
mod test_kit;
#[cfg(test)]
mod test_log;
