//! What all threads of a node share: configuration, spares, snapshots for status.
//!
//! Read-only after the start but for counters and for the snapshots, which each core publishes
//! about itself and others read. No core ever waits for another one here.

use super::members::Members;
use super::metronome::Metronome;
use super::preflight::Connections;
use super::spares::Spares;
use crate::config::Config;
use crate::shard::ShardStatus;
use crate::snapshot::{Board, CoreReport, Mailbox, Slot, Snapshot};
use crate::types::NodeId;
use crate::wire::trust::Secrets;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Instant;

/// One node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) config: Config,
    pub(super) fingerprint: u32,
    /// What members prove to each other, if the cluster has a secret.
    pub(super) secrets: Option<Secrets>,
    /// What the other nodes can, and what the cluster is finalized with.
    pub(super) members: Members,
    /// The lock of the data directory, held until the process ends.
    pub(super) lock: File,
    pub(super) spares: Arc<Spares>,
    /// One for each core.
    pub(super) metronomes: Vec<Arc<Metronome>>,
    /// What each core last said of its shards.
    pub(super) published: Vec<Slot<Vec<ShardStatus>>>,
    /// What each core last said of itself.
    pub(super) reports: Vec<Slot<CoreReport>>,
    /// Orders for each core.
    pub(super) mailboxes: Vec<Mailbox>,
    pub(super) started: Instant,
    pub(super) counters: Counters,
    /// Requests that each core has handed to another one since the start: clients on a wrong port.
    pub(super) handoffs: Vec<AtomicU64>,
    /// Cores whose shards have all stopped.
    pub(super) cores_stopped: AtomicUsize,
    /// Boot id of the running kernel.
    pub(super) boot_id: [u8; 16],
    /// The operator says that this node's blank disk is a new one.
    pub(super) new_member: bool,
    /// Every CPU that the process may use.
    pub(super) cpus: Vec<usize>,
    /// Connections that each core lets in.
    pub(super) connections: Connections,
}

/// Counts of the process since its start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Frames refused for their CRC or lengths.
    pub(super) bad_frames: AtomicU64,
    /// Frames of an unknown type.
    pub(super) unknown_frames: AtomicU64,
    /// Hellos refused.
    pub(super) refused_peers: AtomicU64,
    /// Connections accepted.
    pub(super) accepted: AtomicU64,
    /// Connections closed because a core had enough, or not taken for want of a descriptor.
    pub(super) refused: AtomicU64,
}

impl Node {
    /// What one log gets of a pace that is set for the whole node; 0 for no bound.
    pub(super) fn share_of_pace(&self, bytes_per_s: u64) -> u64 {
        let logs = self.config.cluster.logs().count() as u64;
        bytes_per_s.div_ceil(logs.max(1))
    }
}

impl Board for Node {
    fn snapshot(&self) -> Snapshot {
        super::status::snapshot(self)
    }

    fn mailboxes(&self) -> &[Mailbox] {
        &self.mailboxes
    }

    fn finalize(&self) -> Result<String, String> {
        self.members.finalize(&self.config)
    }

    fn why_no_hand_over(&self, to: NodeId) -> Option<String> {
        self.members.why_no_hand_over(to)
    }
}
