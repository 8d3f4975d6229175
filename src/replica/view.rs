//! What the protocol may know of a log: facts of headers, never a payload byte.
//!
//! The WAL's owner implements [`LogView`]; `replica` and `wal` do not know each other. A view shows
//! the log as it will be once everything asked of it so far has happened: after `Verdict::Write`
//! the cut and the blocks of the run are in it before the next call. Only `durable_end` waits for
//! the disk, and it falls at once when a cut goes below it. Read `admit.rs` next.

use crate::types::{BlockNo, Epoch, Offset, Tick};

/// A log as the replica protocol sees it.
pub trait LogView {
    /// First block kept.
    fn log_start(&self) -> BlockNo;

    /// One past the last block: sealed by this leader, or handed to the disk by this follower.
    fn log_end(&self) -> BlockNo;

    /// One past the last block up to which all are durable and whole; at most `log_end`.
    fn durable_end(&self) -> BlockNo;

    /// Epoch and `header_crc` of a block held; none if it is not held or no longer remembered (at
    /// least the newest `limits::HELD_BLOCKS` are). The block before the log start counts as held.
    fn held(&self, block: BlockNo) -> Option<(Epoch, u32)>;

    /// Epoch of a block held, however old, or of the block before the log start.
    fn epoch_of(&self, block: BlockNo) -> Option<Epoch>;

    /// First block that was written in `epoch` and is kept; none if there is none.
    fn first_of_epoch(&self, epoch: Epoch) -> Option<BlockNo>;

    /// Offset behind the last record of the blocks below `end`, which lies within the log; none if
    /// the block before it is no longer remembered. Always known for the log end.
    fn end_offset_of(&self, end: BlockNo) -> Option<Offset>;

    /// Padded bytes of the blocks from `from` on, which is kept or the log end, and the tick of the
    /// first of them (the clock's start if there is none); none if that is no longer remembered.
    fn rest_from(&self, from: BlockNo) -> Option<(u64, Tick)>;

    /// The first damaged block that is not known to be committed, if there is one: `durable_end`
    /// does not pass it until it is repaired or cut.
    fn damaged_from(&self) -> Option<BlockNo> {
        None
    }

    /// Whether all that was accepted is in sealed blocks.
    fn is_sealed(&self) -> bool {
        true
    }

    /// Whether the disk has no room for the next segment file: nothing of clients' is taken.
    fn is_full(&self) -> bool {
        false
    }

    /// Epoch of the last block; 0 if there never was one.
    fn last_epoch(&self) -> Epoch {
        let last = self.log_end().previous();
        last.and_then(|block| self.epoch_of(block))
            .unwrap_or_default()
    }
}
