//! The log: appends and runs of blocks become durable blocks in segment files.
//!
//! Calls in, operations and outputs out; see `wal.rs` for the contract. After any call that took
//! `&mut self` the caller polls outputs and operations until there are none. Calls that need a
//! buffer and get none wait: the next poll tries again. Read `recovery.rs` for the start, `op.rs`
//! for the disk.

use super::config::Config;
use super::op::{DiskOp, DiskResult, FileEntry};
use super::output::{AppendRefusal, Appended, From, Held, Load, Output, SaveId, State};
use crate::buffers::Buffers;
use crate::types::{BlockNo, BufferId, Epoch, Offset, Tick, Ticket, Time};
use crate::wire::batch::ClientHalf;
use crate::wire::block::BlockHeader;
use crate::wire::checkpoint::{Checkpoint, LogStart, Memory};
use std::collections::VecDeque;

/// One log on one node.
#[derive(Debug)]
pub struct Log {
    config: Config,
    state: State,
    checkpoint: Checkpoint,
    outputs: VecDeque<Output>,
}

impl Log {
    /// A log whose directory holds `files`. Recovery begins at once.
    pub fn new(config: Config, _files: &[FileEntry], _now: Time) -> Log {
        Log {
            config,
            state: State::Recovering,
            checkpoint: Checkpoint::default(),
            outputs: VecDeque::new(),
        }
    }

    /// A disk operation ended.
    pub fn on_disk(
        &mut self,
        _now: Time,
        _ticket: Ticket,
        _result: DiskResult,
        _buffers: &mut dyn Buffers,
    ) {
    }

    /// The next operation for the disk. None as well while the pool has no buffer for it.
    pub fn poll_op(&mut self, _buffers: &mut dyn Buffers) -> Option<DiskOp> {
        None
    }

    /// The next thing the log has to say.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Log::on_time`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Time has passed: seals what is due and saves what may be saved lazily.
    pub fn on_time(&mut self, _now: Time, _buffers: &mut dyn Buffers) {}

    /// What the log is doing.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether a cut is under way: no append and no run before its `CutDone`.
    pub fn is_cutting(&self) -> bool {
        false
    }

    /// Where the log begins.
    pub fn log_start(&self) -> LogStart {
        self.checkpoint.log_start
    }

    /// Blocks sealed here or received; the open block does not count.
    pub fn log_end(&self) -> BlockNo {
        BlockNo(0)
    }

    /// Offset behind the last record of the block before `log_end`.
    pub fn end_offset(&self) -> Offset {
        Offset(0)
    }

    /// Offset behind the last record accepted, the open block's included.
    pub fn open_end_offset(&self) -> Offset {
        Offset(0)
    }

    /// Blocks durable.
    pub fn durable_end(&self) -> BlockNo {
        BlockNo(0)
    }

    /// Offset behind the last durable record.
    pub fn durable_offset(&self) -> Offset {
        Offset(0)
    }

    /// Epoch of the block before `log_end`, 0 if there is none.
    pub fn last_epoch(&self) -> Epoch {
        Epoch(0)
    }

    /// CRC of the header of the block before `log_end`, 0 if there is none.
    pub fn last_crc(&self) -> u32 {
        0
    }

    /// Tick of the last batch accepted, the open block's included.
    pub fn last_tick(&self) -> Tick {
        Tick(0)
    }

    /// The checkpoint as it will be after every save asked for so far.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Facts of a block, if it is among the newest `HELD_BLOCKS`.
    pub fn held(&self, _block: BlockNo) -> Option<Held> {
        None
    }

    /// Epoch of a block of the log, or of the block before the log start.
    pub fn epoch_of(&self, _block: BlockNo) -> Option<Epoch> {
        None
    }

    /// First block of this log that was written under `epoch`.
    pub fn first_of_epoch(&self, _epoch: Epoch) -> Option<BlockNo> {
        None
    }

    /// Offset behind the last record below `block_end`: for recent blocks and the log start.
    pub fn end_offset_of(&self, _block_end: BlockNo) -> Option<Offset> {
        None
    }

    /// Writes the first checkpoint of a blank log: members from the configuration, and what is to
    /// be believed of its past. Appends and runs may follow at once; none is written before it is
    /// saved.
    pub fn create(&mut self, _memory: Memory) -> SaveId {
        SaveId(0)
    }

    /// As leader: takes the batch in the first `len` bytes of `from` into the open block. The
    /// caller has checked it (`half` is what it found) and keeps its buffer.
    pub fn append(
        &mut self,
        _now: Time,
        _epoch: Epoch,
        _from: BufferId,
        _len: usize,
        _half: &ClientHalf,
        _buffers: &mut dyn Buffers,
    ) -> Result<Appended, AppendRefusal> {
        Err(AppendRefusal::Closed)
    }

    /// As leader: appends a block of the node's own (epoch start), sealed at once. An open block is
    /// sealed before it.
    pub fn append_local(
        &mut self,
        _now: Time,
        _epoch: Epoch,
        _buffers: &mut dyn Buffers,
    ) -> Result<BlockNo, AppendRefusal> {
        Err(AppendRefusal::Closed)
    }

    /// As leader: seals the open block if a rule of the write path says so. To be called after
    /// every round of events. The block's `committed_end` is what `note_committed` said last.
    pub fn seal_if_due(&mut self, _now: Time, _buffers: &mut dyn Buffers) {}

    /// Drops the open block: its batches are nowhere. For a leader that is fenced.
    pub fn discard_open(&mut self) {}

    /// As follower: writes `blocks` verbatim at the log end. They lie one behind the other in
    /// `buffer`, each padded, from its start on, and are verified and admitted. The buffer is the
    /// log's from now on. Runs beyond the depth or window queue inside; the link's credit bounds
    /// them.
    pub fn write_run(&mut self, _buffer: BufferId, _blocks: &[BlockHeader], _b: &dyn Buffers) {}

    /// Whether a write of so many bytes could go to the disk now.
    pub fn may_write(&self, _padded: usize) -> bool {
        false
    }

    /// Takes away every block from `from` on; an open block as well. `CutDone` follows.
    pub fn cut(&mut self, _from: BlockNo) {}

    /// Takes away whole segments below `to`, as far as they are durable and committed.
    pub fn trim(&mut self, _to: BlockNo) {}

    /// Changes the checkpoint: both copies, one after the other. Changes made meanwhile share a
    /// write.
    pub fn save(&mut self, change: impl FnOnce(&mut Checkpoint)) -> SaveId {
        change(&mut self.checkpoint);
        SaveId(0)
    }

    /// Blocks below `end` are committed: never cut from now on, and a hint for recovery.
    pub fn note_committed(&mut self, _end: BlockNo) {}

    /// Finds consecutive blocks below `end`, at least one and, beyond that, no more than
    /// `max_bytes` as they lie on the disk.
    pub fn load(&mut self, _request: u64, _from: From, _end: BlockNo, _max_bytes: usize) -> Load {
        Load::NotHeld
    }

    /// Finds the first batch below `end` that holds a record as late as `timestamp`;
    /// `Output::Found` follows.
    pub fn find(&mut self, _request: u64, _timestamp: u64, _end: BlockNo) {}

    /// Stops cleanly: `Stopped` follows. Appends are refused from now on.
    pub fn stop(&mut self, _now: Time, _buffers: &mut dyn Buffers) {}
}

impl Log {
    /// Whether nothing was ever created here.
    pub fn is_blank(&self) -> bool {
        true
    }

    /// Closes the log for a reason found outside of it.
    pub fn latch(&mut self, _reason: String) {}

    /// Forgets the copies in memory of durable blocks from `block` on: they are read from disk.
    pub fn forget_recent(&mut self, _block: BlockNo) {}
}
