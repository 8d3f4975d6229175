//! What a replica says: things to do, verdicts, and views for operators.
//!
//! Everything here is plain data. An output is carried out in the order in which it was polled;
//! those of one connection keep their order on the socket. Read `view.rs` next, then `follower.rs`.

use super::credit;
use crate::types::{BlockNo, Buckets, ConnectionId, Epoch, NodeId};
use crate::wire::block::BlockHeader;
use crate::wire::body::{Body, CreditLimits, FetchOk, ReplicaMemory, Replicate};
use crate::wire::checkpoint::LogStart;
use crate::wire::code::Code;
use crate::wire::message::Message;

/// What the checkpoint must remember for the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Highest epoch promised: lower ones are powerless here.
    pub epoch: Epoch,
    /// Node to which it was promised: nobody else may lead in that epoch.
    pub leader: Option<NodeId>,
    /// Whether the node may speak for this log. `Blank` means that no checkpoint was ever written;
    /// it is never saved.
    pub memory: ReplicaMemory,
}

/// Names one save; rises by one with each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SaveToken(pub u64);

/// Something to be done for the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a frame without payload.
    Send {
        /// On which connection.
        connection: ConnectionId,
        /// Typed body.
        body: Body,
    },
    /// Load a run of blocks and send it; say with `run_sent` what went, even if nothing did.
    SendRun(SendRun),
    /// Load a run of blocks for an opening leader, or for a member's repair, and send it.
    ServeFetch(ServeFetch),
    /// Write the checkpoint with this promise, both copies; then `saved(token)`.
    Save {
        /// Names the save.
        token: SaveToken,
        /// What to remember.
        promise: Promise,
    },
    /// Append the empty block that opens `epoch`, before any other block; then `sealed` as for
    /// every block. All blocks sealed from now on carry this epoch.
    AppendEpoch {
        /// The epoch.
        epoch: Epoch,
    },
    /// Cut the log's own end, from this block on: it is damaged, and was never committed. Then
    /// `tail_cut`.
    CutTail {
        /// The first block that goes.
        from: BlockNo,
    },
    /// The high watermark rose.
    Committed {
        /// One past the last committed block.
        end: BlockNo,
    },
    /// Open a data connection to `peer`; answered by `peer_up` or `dial_failed`.
    Dial {
        /// The peer.
        peer: NodeId,
    },
    /// Say `code` on a connection and close it. It is dead from here on.
    Close {
        /// Which.
        connection: ConnectionId,
        /// Why.
        code: Code,
    },
    /// This node lost its leadership of `epoch`: pending appends end as `Unknown`, none are taken.
    Fenced {
        /// The epoch lost.
        epoch: Epoch,
    },
    /// A follower refused this block for a CRC: check the copy in memory and forget it if it is not
    /// sound; if the disk's is not sound either, latch the log.
    Suspect {
        /// First block of the refused frame.
        block: BlockNo,
    },
    /// Tell operators.
    Notice {
        /// Which entry of the catalogue.
        message: Message,
        /// What changed, with names and numbers.
        text: String,
    },
}

/// A run of blocks to be loaded and sent to a follower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRun {
    /// On which connection.
    pub connection: ConnectionId,
    /// The follower.
    pub peer: NodeId,
    /// First block. Take whole blocks from here on while [`SendRun::takes`] says so.
    pub from: BlockNo,
    /// Blocks at or past this one do not go.
    pub end: BlockNo,
    /// What the follower still allows: a bound on the whole run.
    pub credit: CreditLimits,
    /// Most padded bytes of a run of several blocks.
    pub max_bytes: u64,
    /// Most padded bytes of the first block.
    pub first_max_bytes: u64,
    /// Whether the first block may go alone even if it is above the credit.
    pub oversized: bool,
    /// The frame's body; complete it with [`with_run`].
    pub head: Replicate,
}

impl SendRun {
    /// Whether the next block belongs to the run whose blocks so far are `taken`.
    pub fn takes(&self, taken: &[BlockHeader], next: &BlockHeader) -> bool {
        let cost = credit::weight(next);
        let sum = taken.iter().map(credit::weight).fold(cost, credit::plus);
        if next.block >= self.end {
            return false;
        }
        let allowed = credit::within(sum, self.credit);
        if taken.is_empty() {
            return (allowed || self.oversized) && cost.bytes <= self.first_max_bytes;
        }
        allowed && sum.bytes <= self.max_bytes
    }
}

/// A run of blocks to be loaded and sent to an opening leader, outside of any credit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeFetch {
    /// On which connection.
    pub connection: ConnectionId,
    /// First block. Take whole blocks from here on, at least one.
    pub from: BlockNo,
    /// Blocks at or past this one do not go.
    pub end: BlockNo,
    /// Most padded bytes; a first block that is larger goes alone.
    pub max_bytes: u64,
    /// The frame's body; set its `count` and `padded_len`.
    pub head: FetchOk,
}

/// Completes the body of a frame whose payload is the run of blocks with these headers.
pub fn with_run(mut head: Replicate, headers: &[BlockHeader]) -> Replicate {
    head.count = headers.len() as u32;
    head.records = headers.iter().map(|header| header.record_count).sum();
    head.padded_len = headers.iter().map(|h| h.padded_len() as u32).sum();
    head
}

/// What becomes of a run of blocks that a peer sent. All that was to be said is in the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Check its batches; if they are sound cut the log (nothing at or past `cut` stays), append
    /// the run, and call `run_written`, else `run_refused`: in this very call, before anything
    /// else.
    Write {
        /// Where to cut first.
        cut: Option<BlockNo>,
    },
    /// As `Write`, but the whole log is given up first and begins anew at `start`, where the
    /// sender's log begins: what it held ends before that, or is another log's.
    Reset {
        /// Where the log begins from now on.
        start: LogStart,
    },
    /// Asked for to repair blocks: check its batches, give it to the log if they are sound, and say
    /// with `mended` what came of it.
    Repair,
    /// Held already, or holds nothing: the payload is not needed.
    AckAgain,
    /// Refused: the payload is not needed.
    Refuse(Code),
    /// From a connection that no longer counts, or not asked for.
    Ignore,
}

/// What this node is for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `started` has not been called.
    Starting,
    /// The placed leader, its epoch not yet open.
    Opening,
    /// Leader with an open epoch: appends may be taken.
    Leader,
    /// Follows.
    Follower,
    /// The log met a disk error.
    Failed,
}

/// Public status of a link (S-34).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkStatus {
    /// Blocks flow, or none are left to send.
    Replicating,
    /// The next block does not fit the credit granted.
    WaitingForCredit,
    /// Nothing is sent until the receiver or an operator says so.
    Paused,
    /// No connection, or no position known yet.
    Disconnected,
}

/// Why a connection was refused: the code and the numbers that belong to it.
pub type Refused = (Code, [u64; 2]);

/// A follower's side of the link that brings it its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Following {
    /// `Disconnected` until this node has answered its leader on the connection there is.
    pub status: LinkStatus,
    /// Why, in a few words; empty if nothing is wrong.
    pub cause: String,
    /// Microseconds since anything was heard of the leader; none if recovery has not ended yet.
    pub silence_us: Option<u64>,
}

/// One link of the log that this node leads. Times in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkView {
    /// The follower.
    pub peer: NodeId,
    /// Its status.
    pub status: LinkStatus,
    /// Why, in a few words.
    pub cause: String,
    /// The block at which the logs differ, if they do; they may part before it.
    pub diverged_at: Option<BlockNo>,
    /// For how long.
    pub since_us: u64,
    /// The last error, even if it is over; empty if there was none.
    pub last_error: String,
    /// Records that it lacks.
    pub lag_records: u64,
    /// Padded bytes of blocks that it lacks; none if memory does not know.
    pub lag_bytes: Option<u64>,
    /// Age of the oldest block that it lacks, by its tick; 0 if it lacks none, none if memory does
    /// not know.
    pub lag_us: Option<u64>,
    /// Records that may still be sent.
    pub credit_records: u64,
    /// Bytes that may still be sent.
    pub credit_bytes: u64,
    /// What that is the rest of.
    pub account: credit::Account,
    /// First block not sent.
    pub sent: BlockNo,
    /// First block not acknowledged.
    pub matched: BlockNo,
    /// Replication lag seen: p50, p95, p99 since the process started.
    pub lag_percentiles_us: [u64; 3],
    /// The same lags, counted by size.
    pub lag_buckets: Buckets,
    /// Blocks whose lag that is.
    pub lag_blocks: u64,
    /// Data connections since the process started.
    pub connections: u64,
    /// Bytes of blocks handed to them, unpadded as they travel, resends included.
    pub sent_bytes: u64,
    /// Memory that waits for the socket of the present one, in whole buffers.
    pub queued_bytes: usize,
}
