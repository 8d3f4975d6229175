//! What a log must know of its place and its bounds.

use super::retention::Retention;
use crate::limits;
use crate::types::{LogId, NodeId};

/// Settings of one log's WAL.
#[derive(Clone, Debug)]
pub struct Config {
    /// The log.
    pub log: LogId,
    /// Members of the set, ascending: written into the checkpoint when the log is created.
    pub members: Vec<NodeId>,
    /// Bytes of a segment file, a multiple of 4096, header block included.
    pub segment_bytes: u64,
    /// A block closes before it would grow past this, unless a single batch needs more.
    pub max_block_bytes: usize,
    /// Largest batch, header included.
    pub max_batch_bytes: usize,
    /// A block closes before it would hold more records, unless a single batch does.
    pub max_block_records: u32,
    /// Writes in flight at most.
    pub write_depth: usize,
    /// The oldest append of the open block waits at most so long while others are in flight, µs.
    pub batch_timeout_us: u64,
    /// What the log keeps.
    pub retention: Retention,
    /// Boot id of the running kernel.
    pub boot_id: [u8; 16],
    /// Whether a completed write survives a loss of power (`sync = dsync`, or a drive that keeps
    /// its cache). If not, an unclean stop under another boot id counts as lost memory.
    pub writes_survive: bool,
    /// Whether other nodes hold the log too: damage is noted and repaired from them. If not, a
    /// damaged log is refused, and closed by the read that meets it.
    pub repairs: bool,
    /// Pace of the scrub, bytes per second; 0: only when it is asked for, and then without a rest.
    pub scrub_bytes_per_s: u64,
    /// Time between the beginnings of two passes of the scrub, µs.
    pub scrub_interval_us: u64,
}

impl Config {
    /// A config with every bound at its default.
    pub fn with_defaults(log: LogId, members: Vec<NodeId>) -> Config {
        Config {
            log,
            members,
            segment_bytes: limits::SEGMENT_BYTES,
            max_block_bytes: limits::MAX_BLOCK_BYTES,
            max_batch_bytes: limits::MAX_BATCH_BYTES,
            max_block_records: limits::MAX_BLOCK_RECORDS,
            write_depth: limits::WRITE_DEPTH,
            batch_timeout_us: limits::BATCH_TIMEOUT_MS * 1000,
            retention: Retention::default(),
            boot_id: [0; 16],
            writes_survive: true,
            repairs: false,
            scrub_bytes_per_s: limits::SCRUB_BYTES_PER_S,
            scrub_interval_us: limits::SCRUB_INTERVAL_S * 1_000_000,
        }
    }
}
