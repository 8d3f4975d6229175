//! What a shard says of itself: one struct for the frame, the page and HTTP.
//!
//! Plain numbers and closed sets; whoever shows it chooses the words. Positions in blocks are
//! exclusive, times in microseconds, lags as DESIGN defines them: at the leader, per link.

pub use crate::replica::{Account, Following, LinkStatus, LinkView, Refused};
use crate::types::{BlockNo, Buckets, Epoch, LogId, NodeId, Offset};

/// What this node is for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Recovery is reading the log.
    Recovering,
    /// Leader by configuration, its epoch not yet open.
    Opening,
    /// Leader with an open epoch.
    Leader,
    /// Follows.
    Follower,
    /// Closed until restart: see `failed`.
    Failed,
}

/// One log on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardStatus {
    /// Which.
    pub log: LogId,
    /// What this node is for it.
    pub role: Role,
    /// Its leader, as configured or heard of.
    pub leader: Option<NodeId>,
    /// The epoch in force here.
    pub epoch: Epoch,
    /// The epoch in which its leader takes appends, as far as this node knows.
    pub open_epoch: Option<Epoch>,
    /// First block kept.
    pub log_start: BlockNo,
    /// Offset of its first record.
    pub log_start_offset: Offset,
    /// Committed blocks.
    pub high_watermark: BlockNo,
    /// Durable blocks.
    pub durable_end: BlockNo,
    /// Blocks held.
    pub log_end: BlockNo,
    /// Offset behind the last durable record.
    pub durable_offset: Offset,
    /// Offset behind the last committed record.
    pub committed_offset: Offset,
    /// Whether its disk has no space for the next segment file.
    pub is_full: bool,
    /// A follower's log is known to be its leader's below this block.
    pub verified_end: BlockNo,
    /// The link by which this node follows; none where it leads.
    pub following: Option<Following>,
    /// From the arrival of an append to its answer, for all that were acknowledged.
    pub append_latency: Buckets,
    /// What it waits for before it can lead; empty if it does not.
    pub waits_for: String,
    /// Why the log is closed, with the mend; empty if it is not.
    pub failed: String,
    /// Counters since start.
    pub counters: Counters,
    /// Pace at which this node lets itself be brought up, bytes a second; 0 for no bound.
    pub catch_up_bytes_per_s: u64,
    /// Whether it is being brought up at that pace now.
    pub catches_up: bool,
    /// What is damaged on the disk, and what the scrub does.
    pub damage: DamageView,
    /// Credit that this node granted the leader, and what it holds of it.
    pub granted: Account,
    /// Links that this node leads.
    pub links: Vec<LinkView>,
}

/// Damage in the files of a log. Times in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageView {
    /// Ranges of damaged blocks: first, end, for how long that is known.
    pub ranges: Vec<(BlockNo, BlockNo, u64)>,
    /// What their repair waits for, in a few words.
    pub waits_for: String,
    /// Whether the log is scrubbed: others hold it too, and it is open.
    pub is_scrubbed: bool,
    /// The pass under way.
    pub running: Option<ScrubView>,
    /// The last pass that ended since the start.
    pub last: Option<ScrubView>,
    /// Bytes of all files of the log, the newest as far as it is used.
    pub bytes: u64,
}

/// A pass of the scrub. Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubView {
    /// How long ago it ended; of one under way, began.
    pub since_us: u64,
    /// How long it took so far.
    pub lasted_us: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Places found damaged.
    pub found: u64,
}

/// Counts since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches accepted from clients.
    pub appends: u64,
    /// Retries of batches that were in the log already.
    pub retries: u64,
    /// Blocks sealed here as leader.
    pub blocks_sealed: u64,
    /// Blocks admitted here as follower.
    pub blocks_admitted: u64,
    /// Blocks or batches refused for a CRC.
    pub crc_failures: u64,
    /// Blocks cut off by truncation or as a torn tail.
    pub blocks_cut: u64,
    /// Times that the log was given up and begun anew where its leader's begins.
    pub resets: u64,
    /// Bytes handed to the disk, padding included.
    pub bytes_written: u64,
    /// Damage found: ranges of blocks, headers of segments, copies of the checkpoint.
    pub damage_found: u64,
    /// Blocks written again with the right bytes.
    pub blocks_repaired: u64,
    /// Headers and copies written anew from memory.
    pub rewritten: u64,
    /// Passes of the scrub that ended.
    pub scrubs: u64,
    /// Bytes that they read.
    pub scrub_bytes: u64,
}
