//! The composition of one log: its WAL, its part in replication, its clients.
//!
//! Production and the simulator run this very code up to the last system call. The shell calls
//! [`Shard::handle`] with what happened, then [`Shard::poll_action`] until it returns none, and
//! calls again with [`Event::Timer`] when [`Shard::poll_timeout`] is due. No callbacks, no clock,
//! no I/O: time is a parameter, payload bytes stay in the shell's buffers (see `buffers.rs`). Every
//! decision belongs to a leaf: how bytes become durable to `wal`, who may lead and what may be
//! admitted to `replica`.

pub mod config;
pub mod event;
pub mod status;

use crate::buffers::Buffers;
use crate::types::Time;
pub use crate::wal::config::Config as WalConfig;
pub use crate::wal::op::{CHECKPOINT_FILE, DiskError, DiskOp, DiskResult, FileEntry, FileName};
pub use config::{LinkConfig, ShardConfig};
pub use event::{Action, Event, Notice, Part, Request};
pub use status::ShardStatus;

/// One log on this node.
#[derive(Debug)]
pub struct Shard {
    config: ShardConfig,
}

impl Shard {
    /// Starts recovery of a log whose directory holds `files`.
    pub fn new(config: ShardConfig, _files: Vec<FileEntry>, _now: Time) -> Shard {
        Shard { config }
    }

    /// Something happened.
    pub fn handle(&mut self, _now: Time, _event: Event, _buffers: &mut dyn Buffers) {}

    /// The next thing to do, until there is none.
    pub fn poll_action(&mut self, _now: Time, _buffers: &mut dyn Buffers) -> Option<Action> {
        None
    }

    /// When the shard wants to look at the clock again.
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// What the shard says of itself.
    pub fn status(&self, _now: Time) -> ShardStatus {
        panic!("{:?}", self.config)
    }
}
