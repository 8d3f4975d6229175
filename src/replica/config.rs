//! Settings of one log's part in the protocol, with their defaults.
//!
//! Plain data: who the members are, who of them may lead, and how long things take. What a shell
//! reads from a file comes here through `shard/config.rs`. Read `replica.rs` next.

use crate::limits;
use crate::types::{LogId, NodeId};
use crate::wire::body::CreditLimits;

/// Settings of a replica. Times in microseconds.
#[derive(Clone, Debug)]
pub struct Config {
    /// The log.
    pub log: LogId,
    /// This node.
    pub node: NodeId,
    /// The member that configuration places as leader: the only one that opens epochs, or in an
    /// electing set the preferred one.
    pub leader: NodeId,
    /// Whether every member may lead: a set of at least three.
    pub electing: bool,
    /// Members of the set, this node among them.
    pub members: Vec<NodeId>,
    /// The operator says that a blank disk here is a new member, not a lost one.
    pub new_member: bool,
    /// Whether the log is one of a mesh: its leader is its origin for ever, so no follower cuts a
    /// suffix, and what followers hold past the leader's end is copied back.
    pub mesh: bool,
    /// Credit that this node grants to its leader.
    pub initial_credit: CreditLimits,
    /// Bytes a second by which grants to a leader rise while this node is behind; 0 for no bound.
    pub catch_up_bytes_per_s: u64,
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
    /// Shortest election timeout; the longest is twice that.
    pub election_timeout_us: u64,
    /// How long the preferred leader must have been caught up before it is handed the leadership.
    pub handover_us: u64,
    /// What election timeouts are drawn from, besides the log and the node.
    pub seed: u64,
}

impl Config {
    /// A replica of a set with every setting at its default.
    pub fn with_defaults(log: LogId, node: NodeId, leader: NodeId, members: Vec<NodeId>) -> Config {
        Config {
            log,
            node,
            leader,
            electing: false,
            members,
            new_member: false,
            mesh: false,
            initial_credit: CreditLimits {
                records: limits::INITIAL_CREDIT,
                bytes: limits::INITIAL_CREDIT_BYTES,
            },
            catch_up_bytes_per_s: limits::CATCH_UP_BYTES_PER_S,
            run_bytes: limits::MAX_BLOCK_BYTES as u64,
            rpc_timeout_us: limits::RPC_TIMEOUT_MS * 1000,
            retry_backoff_us: limits::RETRY_BACKOFF_MS * 1000,
            heartbeat_us: limits::HEARTBEAT_MS * 1000,
            gather_us: limits::GATHER_MS * 1000,
            election_timeout_us: limits::ELECTION_TIMEOUT_MS * 1000,
            handover_us: limits::HANDOVER_MS * 1000,
            seed: u64::from(node.0),
        }
    }
}
