//! Settings of one shard: what the shell takes from configuration and hands to the core.

use crate::limits;
use crate::replica;
use crate::types::{LogId, NodeId};
use crate::wal::config::Config as WalConfig;
use crate::wire::body::CreditLimits;

/// Settings of a shard.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// This node.
    pub node: NodeId,
    /// The member that configuration places as leader: the only one that opens epochs, or in an
    /// electing set the preferred one.
    pub leader: NodeId,
    /// Whether every member may lead: a set of at least three.
    pub electing: bool,
    /// What this node's election timeouts are drawn from.
    pub seed: u64,
    /// Whether the log is one of a mesh: its leader is its origin for ever, and no follower cuts.
    pub mesh: bool,
    /// The WAL's settings, with the log and the members.
    pub wal: WalConfig,
    /// Settings of its links.
    pub link: LinkConfig,
    /// The operator says that a blank disk here is a new member, not a lost one.
    pub new_member: bool,
}

/// Settings of the links of a shard. Times in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    /// Credit that a receiver grants, in records.
    pub initial_credit: u64,
    /// Credit that a receiver grants, in bytes.
    pub initial_credit_bytes: u64,
    /// Bytes a second at which a follower that is behind lets itself be brought up; 0 for no bound.
    pub catch_up_bytes_per_s: u64,
    /// Silence after which a link counts as disconnected.
    pub rpc_timeout_us: u64,
    /// Time between two attempts to connect.
    pub retry_backoff_us: u64,
    /// Time between two heartbeats.
    pub heartbeat_us: u64,
    /// How long a starting leader waits for all members before a majority is enough.
    pub gather_us: u64,
    /// Shortest time without a leader after which a member stands; the longest is twice that.
    pub election_timeout_us: u64,
    /// How long the preferred leader must have been caught up before it is handed the leadership.
    pub handover_us: u64,
}

impl Default for LinkConfig {
    fn default() -> LinkConfig {
        LinkConfig {
            initial_credit: limits::INITIAL_CREDIT,
            initial_credit_bytes: limits::INITIAL_CREDIT_BYTES,
            catch_up_bytes_per_s: limits::CATCH_UP_BYTES_PER_S,
            rpc_timeout_us: limits::RPC_TIMEOUT_MS * 1000,
            retry_backoff_us: limits::RETRY_BACKOFF_MS * 1000,
            heartbeat_us: limits::HEARTBEAT_MS * 1000,
            gather_us: limits::GATHER_MS * 1000,
            election_timeout_us: limits::ELECTION_TIMEOUT_MS * 1000,
            handover_us: limits::HANDOVER_MS * 1000,
        }
    }
}

impl ShardConfig {
    /// A set's shard with every setting at its default.
    pub fn with_defaults(
        node: NodeId,
        leader: NodeId,
        log: LogId,
        members: Vec<NodeId>,
    ) -> ShardConfig {
        ShardConfig {
            node,
            leader,
            electing: false,
            seed: u64::from(node.0),
            mesh: false,
            wal: WalConfig::with_defaults(log, members),
            link: LinkConfig::default(),
            new_member: false,
        }
    }

    /// What the replica takes of them.
    pub(super) fn replica(&self) -> replica::Config {
        let link = &self.link;
        replica::Config {
            log: self.wal.log,
            node: self.node,
            leader: self.leader,
            electing: self.electing,
            members: self.wal.members.clone(),
            new_member: self.new_member,
            mesh: self.mesh,
            initial_credit: CreditLimits {
                records: link.initial_credit,
                bytes: link.initial_credit_bytes,
            },
            catch_up_bytes_per_s: link.catch_up_bytes_per_s,
            run_bytes: self.wal.max_block_bytes as u64,
            rpc_timeout_us: link.rpc_timeout_us,
            retry_backoff_us: link.retry_backoff_us,
            heartbeat_us: link.heartbeat_us,
            gather_us: link.gather_us,
            election_timeout_us: link.election_timeout_us,
            handover_us: link.handover_us,
            seed: self.seed,
        }
    }
}
