//! The replica protocol of one log on one node: who leads, what may be admitted, what is committed.
//!
//! It is Raft with a block as the entry and its safety rules, without an election so far:
//! configuration places one node as the only candidate. It sees headers
//! (`wire::block::BlockHeader`) and a [`LogView`], never payload bytes, a clock, a disk or the WAL.
//! The composition calls an input for what happened, then [`Replica::poll`] until it returns none,
//! and [`Replica::on_time`] when [`Replica::poll_timeout`] is due.
//!
//! `follower.rs` is the part of every node, `leader.rs` and `opening.rs` that of the placed one;
//! `admit.rs` holds the rule by which a run of blocks enters a log, `credit.rs` the two accounts of
//! a link, `progress.rs` what a leader knows of one follower. Start with `view.rs`, then
//! `output.rs`.

mod output;
mod pending;
mod view;

pub use output::{
    LinkStatus, LinkView, Output, Promise, Role, SaveToken, SendRun, ServeFetch, Verdict, with_run,
};
pub use pending::Pending;
pub use view::LogView;

use crate::limits;
use crate::types::{BlockNo, ConnectionId, Epoch, LogId, NodeId, Time};
use crate::wire::block::BlockHeader;
use crate::wire::body::{Body, Channel, CreditLimits, PauseReason};

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
    /// Whether a follower may cut an uncommitted suffix: in a set, not in a mesh.
    pub may_truncate: bool,
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
            may_truncate: true,
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
    config: Config,
}

impl Replica {
    /// A replica whose log is still being recovered.
    pub fn new(config: Config) -> Replica {
        Replica { config }
    }

    /// Recovery has ended: this was promised, and blocks below `high_watermark` are committed as
    /// far as the checkpoint and the blocks themselves tell.
    pub fn started(
        &mut self,
        _now: Time,
        _promise: Promise,
        _high_watermark: BlockNo,
        _view: &dyn LogView,
    ) {
    }

    /// A connection with a peer is open. A newer one of the same channel replaces the older one.
    pub fn peer_up(
        &mut self,
        _now: Time,
        _peer: NodeId,
        _connection: ConnectionId,
        _channel: Channel,
        _dialed: bool,
    ) {
    }

    /// A connection is gone.
    pub fn peer_down(&mut self, _now: Time, _connection: ConnectionId) {}

    /// A connection asked for with [`Output::Dial`] could not be opened.
    pub fn dial_failed(&mut self, _now: Time, _peer: NodeId) {}

    /// A frame without payload came.
    pub fn on_body(
        &mut self,
        _now: Time,
        _connection: ConnectionId,
        _body: &Body,
        _view: &dyn LogView,
    ) {
    }

    /// A `Replicate` or `FetchOk` came. `headers` are those of its blocks in order, or none if one
    /// of them is damaged or the payload does not hold the blocks that the body promises.
    pub fn on_run(
        &mut self,
        _now: Time,
        _connection: ConnectionId,
        _body: &Body,
        _headers: Option<&[BlockHeader]>,
        _view: &dyn LogView,
    ) -> Verdict {
        Verdict::Ignore
    }

    /// The run of the last [`Verdict::Write`] was sound and is in the log.
    pub fn run_written(&mut self, _now: Time, _view: &dyn LogView) {}

    /// A batch of the run of the last [`Verdict::Write`] is not sound: nothing was cut or written.
    pub fn run_refused(&mut self, _now: Time, _view: &dyn LogView) {}

    /// This leader sealed a block; the view holds it.
    pub fn sealed(&mut self, _now: Time, _header: &BlockHeader) {}

    /// `durable_end` of the view moved.
    pub fn durable(&mut self, _now: Time, _view: &dyn LogView) {}

    /// A save has ended well. (If it failed the log latches.)
    pub fn saved(&mut self, _now: Time, _token: SaveToken, _view: &dyn LogView) {}

    /// What an [`Output::SendRun`] handed to its connection; empty if nothing fitted or could be
    /// read.
    pub fn run_sent(&mut self, _now: Time, _connection: ConnectionId, _headers: &[BlockHeader]) {}

    /// So many bytes of payloads left a connection for its socket.
    pub fn payload_left(&mut self, _connection: ConnectionId, _bytes: usize) {}

    /// An operator pauses or resumes the link with `peer`, from either side.
    pub fn pause_link(&mut self, _now: Time, _peer: NodeId, _pause: bool, _view: &dyn LogView) {}

    /// Asks the leader to pause, for a reason of this node.
    pub fn ask_pause(&mut self, _now: Time, _reason: PauseReason) {}

    /// Ends a pause that this node asked for.
    pub fn ask_resume(&mut self, _now: Time, _view: &dyn LogView) {}

    /// The log met a disk error: nothing is admitted, acknowledged or committed any more.
    pub fn latched(&mut self, _now: Time) {}

    /// Looks at the clock.
    pub fn on_time(&mut self, _now: Time, _view: &dyn LogView) {}

    /// The next thing to do, until there is none.
    pub fn poll(&mut self, _now: Time, _view: &dyn LogView) -> Option<Output> {
        None
    }

    /// When [`Replica::on_time`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// What this node is for the log.
    pub fn role(&self) -> Role {
        Role::Starting
    }

    /// Its leader as configured.
    pub fn leader(&self) -> NodeId {
        self.config.leader
    }

    /// The epoch in force here.
    pub fn epoch(&self) -> Epoch {
        Epoch(0)
    }

    /// Blocks below it are committed.
    pub fn high_watermark(&self) -> BlockNo {
        BlockNo(0)
    }

    /// A follower's log is that of its leader below this block.
    pub fn verified_end(&self) -> BlockNo {
        BlockNo(0)
    }

    /// The links that this node leads.
    pub fn links(&self, _now: Time, _view: &dyn LogView) -> Vec<LinkView> {
        Vec::new()
    }
}
