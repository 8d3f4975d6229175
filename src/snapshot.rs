//! What the cores of a node publish of themselves, and the orders that they take from its operator.
//!
//! The one thing that the cores and the admin thread share. A core writes its part a few times a
//! second and takes orders when it looks; it never waits for a lock that somebody else holds: what
//! could not be published or taken now is next time. So whoever reads here may be slow or dead.
//! Read `admin.rs` for the reader, `runtime/status.rs` for the writer.

pub use crate::shard::status::{Counters, Following, LinkStatus, LinkView, Role, ShardStatus};
use crate::types::{Buckets, LogId, NodeId, ShardId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::oneshot;

/// Orders that wait for one core; more are refused.
const ORDERS: usize = 16;

/// Where the admin thread looks and leaves orders.
pub trait Board: Send + Sync {
    /// The node as its cores last published themselves.
    fn snapshot(&self) -> Snapshot;

    /// The mailbox of each core.
    fn mailboxes(&self) -> &[Mailbox];

    /// Finalizes the cluster, at this node, with all that it can: what came of it, or why not with
    /// the mend. Writes to the disk.
    fn finalize(&self) -> Result<String, String>;

    /// Why no leadership can be handed to this node by its version, with the mend; none if one can.
    fn why_no_hand_over(&self, to: NodeId) -> Option<String>;
}

/// A node as its cores last published themselves.
#[derive(Debug)]
pub struct Snapshot {
    /// The status, as JSON: what `millrace status --json` prints.
    pub status: serde_json::Value,
    /// Every shard with the links that it leads, by log.
    pub shards: Vec<ShardStatus>,
    /// Every core, by index.
    pub cores: Vec<Arc<CoreReport>>,
}

/// What a core says of itself.
#[derive(Clone, Debug, Default)]
pub struct CoreReport {
    /// When it said so; none: it never did yet.
    pub at: Option<Instant>,
    /// Whether it is stopping.
    pub stopping: bool,
    /// CPU time of its thread, nanoseconds.
    pub cpu_ns: u64,
    /// Connections that are open.
    pub connections_open: usize,
    /// Bytes of its buffers.
    pub buffer_bytes: usize,
    /// What its shards and their links took.
    pub usage: BTreeMap<LogId, ShardUsage>,
}

/// What a shard took since the start.
#[derive(Clone, Debug, Default)]
pub struct ShardUsage {
    /// Time in the shard's own code, nanoseconds: everything but the sockets.
    pub cpu_ns: u64,
    /// From handing a write to the disk to its completion.
    pub disk_writes: Buckets,
    /// By the other node: links that this node leads and the one by which it follows.
    pub links: BTreeMap<NodeId, LinkUsage>,
}

/// What the link with one node took since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkUsage {
    /// Time spent on its frames: taking them in, making them and handing them to the socket,
    /// nanoseconds. What the kernel does for arriving bytes is not in it.
    pub cpu_ns: u64,
    /// Bytes of frames about the log that were queued for that node, headers included.
    pub sent_bytes: u64,
    /// Bytes of frames about the log that came from that node, headers included.
    pub received_bytes: u64,
}

/// What an operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Pauses (`true`) or resumes the links with a node.
    Pause {
        /// The other node.
        peer: NodeId,
        /// Whether to pause.
        pause: bool,
    },
    /// Reads every log again from end to end, or asks at once for what is damaged.
    Scrub {
        /// Whether to read.
        read: bool,
    },
    /// Hands the leadership of a shard to another node.
    Promote {
        /// The shard.
        shard: ShardId,
        /// The next leader.
        to: NodeId,
    },
    /// Sets the pace at which this node lets itself be brought up.
    CatchUp {
        /// Bytes a second, shared evenly by its logs; 0 for no bound.
        bytes_per_s: u64,
    },
}

/// An operator's order for the logs of one core.
#[derive(Debug)]
pub struct Order {
    /// What is wanted.
    pub wish: Wish,
    /// Where the core says what came of it: a log of this node with whether anything changed, for
    /// each link with that node, or for each log of the shard that this node leads.
    pub answer: oneshot::Sender<Vec<(LogId, bool)>>,
}

/// Orders that wait for one core.
#[derive(Debug, Default)]
pub struct Mailbox(Mutex<VecDeque<Order>>);

impl Mailbox {
    /// Leaves an order; false if too many wait already.
    pub fn leave(&self, order: Order) -> bool {
        let mut orders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = orders.len() < ORDERS;
        if room {
            orders.push_back(order);
        }
        room
    }

    /// The next order, if there is one and nobody is at the mailbox.
    pub fn take(&self) -> Option<Order> {
        try_lock(&self.0)?.pop_front()
    }
}

/// A slot of which one side writes whole values and others read them.
#[derive(Debug, Default)]
pub struct Slot<T>(Mutex<Arc<T>>);

impl<T> Slot<T> {
    /// Writes, unless somebody is reading at this moment.
    pub fn put(&self, value: T) {
        if let Some(mut slot) = try_lock(&self.0) {
            *slot = Arc::new(value);
        }
    }

    /// What was written last.
    pub fn read(&self) -> Arc<T> {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.clone()
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    use std::sync::TryLockError;
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
