//! The replica protocol of one log on one node: who leads, what may be admitted, what is committed.
//!
//! It is Raft with a block as the entry and its safety rules, without an election so far:
//! configuration places one node as the only candidate. It sees headers
//! (`wire::block::BlockHeader`) and a [`LogView`], never payload bytes, a clock, a disk or the WAL.
//! The composition calls an input for what happened, then [`Replica::poll`] until it returns none,
//! and [`Replica::on_time`] when [`Replica::poll_timeout`] is due.
//!
//! `follower.rs` and `promises.rs` are the part of every node, `leader.rs`, `sending.rs`,
//! `opening.rs` and `copying.rs` that of the placed one; `pausing.rs` says when a follower asks
//! for a pause; `admit.rs` holds the rule by which a run of blocks enters a log, `credit.rs` the
//! two accounts of a link, `progress.rs` what a leader knows of one follower.
//! Start with `view.rs`, then `output.rs`.

pub mod admit;
pub mod credit;

mod backoff;
mod copying;
mod follower;
mod following;
mod lag;
mod leader;
mod opening;
mod output;
mod pausing;
mod pending;
mod progress;
mod promises;
mod sending;
mod state;
mod view;

use follower::Follower;
use leader::Leader;
use state::State;

pub use credit::Account;
pub use output::{
    Following, LinkStatus, LinkView, Output, Promise, Refused, Role, SaveToken, SendRun,
    ServeFetch, Verdict, with_run,
};
pub use pending::Pending;
pub use view::LogView;

use crate::limits;
use crate::types::{BlockNo, ConnectionId, Epoch, LogId, NodeId, Time};
use crate::wire::block::BlockHeader;
use crate::wire::body::{Body, Channel, CreditLimits, PauseReason, ReplicaMemory};
use crate::wire::code::Code;
use crate::wire::message::Message;

/// Settings of a replica. Times in microseconds.
#[derive(Clone, Debug)]
pub struct Config {
    /// The log.
    pub log: LogId,
    /// This node.
    pub node: NodeId,
    /// The member that configuration places as leader: the only one that opens epochs.
    pub leader: NodeId,
    /// Members of the set, this node among them.
    pub members: Vec<NodeId>,
    /// The operator says that a blank disk here is a new member, not a lost one.
    pub new_member: bool,
    /// Whether the log is one of a mesh: its leader is its origin for ever, so no follower cuts a
    /// suffix, and what followers hold past the leader's end is copied back.
    pub mesh: bool,
    /// Credit that this node grants to its leader.
    pub initial_credit: CreditLimits,
    /// Largest run of blocks in one frame, padded bytes; a larger block goes alone.
    pub run_bytes: u64,
    /// Silence after which a link counts as disconnected.
    pub rpc_timeout_us: u64,
    /// Time between two attempts to connect.
    pub retry_backoff_us: u64,
    /// Time between two heartbeats.
    pub heartbeat_us: u64,
    /// How long a starting leader waits for all members before a majority is enough.
    pub gather_us: u64,
}

impl Config {
    /// A replica of a set with every setting at its default.
    pub fn with_defaults(log: LogId, node: NodeId, leader: NodeId, members: Vec<NodeId>) -> Config {
        Config {
            log,
            node,
            leader,
            members,
            new_member: false,
            mesh: false,
            initial_credit: CreditLimits {
                records: limits::INITIAL_CREDIT,
                bytes: limits::INITIAL_CREDIT_BYTES,
            },
            run_bytes: limits::MAX_BLOCK_BYTES as u64,
            rpc_timeout_us: limits::RPC_TIMEOUT_MS * 1000,
            retry_backoff_us: limits::RETRY_BACKOFF_MS * 1000,
            heartbeat_us: limits::HEARTBEAT_MS * 1000,
            gather_us: limits::GATHER_MS * 1000,
        }
    }
}

/// One log's part in the protocol on this node.
#[derive(Debug)]
pub struct Replica {
    state: State,
    follower: Follower,
    /// On the placed node.
    leader: Option<Leader>,
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
        let peers = members.iter().copied().filter(|peer| *peer != config.node);
        let leader = (config.node == config.leader).then(|| Leader::new(peers));
        Replica {
            follower: Follower::new(config.initial_credit),
            leader,
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
        self.state.started = true;
        self.state.promise = promise;
        self.state.high_watermark = high_watermark.min(view.durable_end());
        if promise.memory == ReplicaMemory::Blank && self.state.config.new_member {
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
            (Channel::Data, Some(leader)) if dialed => {
                leader.data_up(now, peer, connection, state);
            }
            (Channel::Data, None) if dialed => state.close(connection, Code::NotLeader),
            (Channel::Data, _) => self.follower.data_up(now, peer, connection, state),
        }
    }

    /// A connection is gone.
    pub fn peer_down(&mut self, now: Time, connection: ConnectionId) {
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
        let state = &mut self.state;
        let taken = match &mut self.leader {
            Some(leader) => leader.on_body(now, connection, body, state, view),
            None => false,
        };
        if taken || self.follower.on_body(now, connection, body, state, view) {
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
        self.state.notice(Message::PeerError, text);
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
    pub fn durable(&mut self, _now: Time, view: &dyn LogView) {
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
        let became_whole = !was_whole && self.state.is_whole();
        if let Some(leader) = &mut self.leader {
            leader.saved(now, &self.state);
        }
        self.follower.saved(became_whole, &mut self.state, view);
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
        if let Some(leader) = &mut self.leader {
            leader.pause_link(peer, pause);
        } else if peer == self.state.config.leader {
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
            .chain(self.follower.load.look_at)
            .min()
    }

    /// What this node is for the log.
    pub fn role(&self) -> Role {
        match &self.leader {
            _ if self.state.failed => Role::Failed,
            _ if !self.state.started => Role::Starting,
            Some(leader) if leader.is_open() => Role::Leader,
            Some(_) => Role::Opening,
            None => Role::Follower,
        }
    }

    /// Its leader as configured.
    pub fn leader(&self) -> NodeId {
        self.state.config.leader
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
            Some(leader) => leader.is_open().then(|| leader.epoch()),
            None => self.follower.epoch_known_open(now, &self.state),
        }
    }

    /// What the checkpoint holds for the protocol.
    pub fn promise(&self) -> Promise {
        self.state.promise
    }

    /// Blocks below it are committed.
    pub fn high_watermark(&self) -> BlockNo {
        self.state.high_watermark
    }

    /// A follower's log is known to be that of its leader below this block.
    pub fn verified_end(&self) -> BlockNo {
        self.follower.verified_end()
    }

    /// A follower may trim what lies below: its leader has, and it is committed.
    pub fn leader_start(&self) -> BlockNo {
        self.follower.leader_start(&self.state)
    }

    /// Microseconds since this follower heard of its leader.
    pub fn silence_us(&self, now: Time) -> u64 {
        now.since_us(self.follower.heard())
    }

    /// What this node granted as a follower, and what it holds of it.
    pub fn granted(&self) -> Account {
        self.follower.receiver.account()
    }

    /// What this node waits for before it can lead; empty if it does not wait.
    pub fn waits_for(&self) -> &str {
        match self.role() {
            Role::Opening => &self.state.waits_for,
            _ => "",
        }
    }

    /// The link by which this node follows, if it does not lead the log.
    pub fn following(&self, now: Time) -> Option<Following> {
        if self.leader.is_some() {
            return None;
        }
        let (status, cause) = self.follower.status(&self.state);
        let silence_us = self.state.started.then(|| self.silence_us(now));
        Some(Following {
            status,
            cause,
            silence_us,
        })
    }

    /// Whether an operator has paused the link with `peer`; none if there is no such link.
    pub fn is_paused(&self, peer: NodeId) -> Option<bool> {
        match &self.leader {
            Some(leader) => leader.is_paused(peer),
            None if peer == self.state.config.leader => {
                Some(self.follower.paused == Some(PauseReason::Manual))
            }
            None => None,
        }
    }

    /// The links that this node leads.
    pub fn links(&self, now: Time, view: &dyn LogView) -> Vec<LinkView> {
        let leader = self.leader.as_ref();
        leader.map_or_else(Vec::new, |leader| leader.views(now, view))
    }
}

#[cfg(test)]
mod cause_tests;
#[cfg(test)]
mod commit_tests;
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
