//! What a log says: outputs, answers and refusals.
//!
//! Everything here is plain data. Outputs come in the order in which things happened; an output
//! never asks for an answer. Positions in blocks are exclusive where they end with `end`. Buffers
//! named here stay the log's unless the text says otherwise. Read `log.rs` next.

use super::op::DiskError;
use crate::types::{BlockNo, BufferId, Epoch, NodeId, Offset, Tick, Time, padded};
use crate::wire::block::BlockHeader;
use crate::wire::checkpoint::LogStart;
use core::fmt;

/// Names one request to save the checkpoint; they grow by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SaveId(pub u64);

/// What a log is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Reading what is on the disk.
    Recovering,
    /// In service. A blank log takes blocks only after `create`.
    Open,
    /// A clean stop was asked for and its last writes are under way.
    Stopping,
    /// Recovery found it damaged or not this log: closed until someone mended it. Nothing was
    /// changed.
    Refused,
    /// A disk operation failed: closed until restart.
    Failed,
    /// Stopped cleanly.
    Stopped,
}

/// What recovery may believe of the log's past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveredMemory {
    /// All it ever promised or held durably is here.
    Whole,
    /// It may have promised or held more. The checkpoint says so too.
    Lost,
    /// Nothing is here: a new disk, or a creation that never completed. `create` comes next.
    Blank,
}

/// A torn tail that recovery cut off. Reported once: the next start does not find it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// First block that was torn.
    pub from: BlockNo,
    /// Blocks, whole or torn, that were erased.
    pub blocks: u64,
}

/// A log in service after a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// What may be believed of its past.
    pub memory: RecoveredMemory,
    /// The torn tail that was cut off, if there was one.
    pub torn: Option<Torn>,
    /// Where it begins.
    pub log_start: LogStart,
    /// Blocks held, all of them durable.
    pub log_end: BlockNo,
    /// Offset behind the last record.
    pub end_offset: Offset,
    /// Epoch of the last block, 0 if there is none.
    pub last_epoch: Epoch,
    /// Tick of the last batch, 0 if there is none.
    pub last_tick: Tick,
    /// Highest epoch promised.
    pub promised: Epoch,
    /// Node voted for in it.
    pub vote: Option<NodeId>,
    /// Blocks known to be committed; the truth may be further.
    pub high_watermark: BlockNo,
    /// Damage found on the way, which other nodes can repair.
    pub damage: Vec<Damage>,
    /// What was written anew from what is known of it.
    pub rewritten: Vec<String>,
}

/// Blocks whose bytes are not those that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file, by its name in the log's directory.
    pub file: String,
    /// Position in it, bytes.
    pub position: u64,
    /// First block.
    pub from: BlockNo,
    /// One past the last.
    pub end: BlockNo,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage {
            file,
            position,
            from,
            end,
        } = self;
        write!(
            f,
            "{file} at {position}, blocks {from} up to {end}, is damaged"
        )
    }
}

/// What one pass of the scrub came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// When it began.
    pub began: Time,
    /// When it ended; 0 while it goes on.
    pub ended: Time,
    /// Bytes read.
    pub bytes: u64,
    /// Places found damaged: ranges of blocks, headers of segments, copies of the checkpoint.
    pub found: u64,
}

/// News of what the log's files hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Damage was found.
    Damaged(Damage),
    /// Blocks are sound again: the right bytes were written and read back.
    Repaired {
        /// First block.
        from: BlockNo,
        /// One past the last.
        end: BlockNo,
    },
    /// Something that memory knows was damaged and was written anew.
    Rewritten(String),
    /// A pass of the scrub ended.
    Scrubbed(ScrubReport),
}

/// Why blocks for a repair were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairRefusal {
    /// Nothing is damaged there, or the log is busy or closed.
    NotWanted,
    /// They do not chain to the sound block before: the sender's log is another one.
    Differs,
    /// They chain to it, and their last one is not the one that stood here: the logs part among
    /// the damaged blocks.
    Parts,
}

/// Why recovery refuses a log. Its files are as they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The file, by its name in the log's directory.
    pub file: String,
    /// Position in it, bytes.
    pub position: u64,
    /// The block that should be there.
    pub block: BlockNo,
    /// The rule that is broken, with both values where two disagree.
    pub rule: String,
    /// What mends it.
    pub mend: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal {
            file,
            position,
            block,
            rule,
            mend,
        } = self;
        write!(
            f,
            "{file} at {position}, block {block}: {rule}; mend: {mend}"
        )
    }
}

/// Where an accepted batch lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The block that it is or will be in.
    pub block: BlockNo,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Its append time.
    pub tick: Tick,
}

/// Why an append was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendRefusal {
    /// No room now: the open block is full and the disk or the buffers have no place for another
    /// one. The caller keeps the batch and tries again after the next disk completion or release.
    Full,
    /// The log is not open, or is cutting.
    Closed,
    /// The log failed.
    Failed,
}

/// Facts of a recent block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Leadership that wrote it.
    pub epoch: Epoch,
    /// CRC of its header.
    pub header_crc: u32,
    /// Bytes of header and batches.
    pub used_len: u32,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// One past the offset of its last record.
    pub end_offset: Offset,
    /// Position in its segment file.
    pub position: u64,
    /// Tick of its last batch.
    pub last_tick: Tick,
}

impl Held {
    /// Bytes it takes on the disk.
    pub fn padded_len(&self) -> usize {
        padded(self.used_len as usize)
    }
}

/// What a log and a reader's copy of it have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Common {
    /// The reader's last batch is here, as far as is known.
    Same,
    /// The reader has seen more than this log holds yet.
    Behind,
    /// They part at this offset, below the reader's: what the reader holds from there on is not in
    /// this log. With it comes the epoch of the record before it, 0 if there is none here. The
    /// reader's copy may have parted before.
    Parted(Offset, Epoch),
}

/// Where a load begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// At this block.
    Block(BlockNo),
    /// At the block that holds this offset.
    Offset(Offset),
}

/// Consecutive blocks in one buffer, each verified, with the position of its header in the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Where they are.
    pub buffer: BufferId,
    /// At least one block, ascending.
    pub blocks: Vec<(BlockHeader, usize)>,
}

/// The first answer to a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Load {
    /// From memory. The buffer stays the log's and may be released by it at its next call: hand it
    /// to an action at once, or copy.
    Now(Loaded),
    /// From disk: an [`Output::Loaded`] with the request's number will come.
    Later,
    /// Below the log start, or at or past the given end or the log end.
    NotHeld,
}

/// Why a load from disk brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The block is not what was written there: damaged.
    Corrupt {
        /// First block of its segment file.
        file: BlockNo,
        /// Position in the file, bytes.
        position: u64,
        /// The block.
        block: BlockNo,
        /// Nothing stands there: zeros, or the end of the file.
        blank: bool,
    },
    /// The block is known to be damaged and not repaired yet.
    Damaged(BlockNo),
    /// The disk could not read.
    Disk(DiskError),
    /// The block was trimmed or truncated meanwhile, or the log closed.
    NotHeld,
}

/// A cut is done: blocks may be appended and written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutDone {
    /// Blocks held now; all of them durable if any went away.
    pub log_end: BlockNo,
    /// Offset behind the last record.
    pub end_offset: Offset,
    /// Blocks that went away.
    pub blocks: u64,
}

/// Something a log has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Recovery is over and the log in service.
    Recovered(Recovered),
    /// Recovery is over and the log stays closed.
    Refused(Refusal),
    /// A block was closed and given to the disk: header and buffer (from its start on). The buffer
    /// stays the log's at least until the block is durable.
    Sealed(BlockHeader, BufferId),
    /// The durable end moved.
    Durable {
        /// Blocks durable.
        end: BlockNo,
        /// Offset behind the last durable record.
        offset: Offset,
    },
    /// The disk has no space for the next segment file, or has space again. What needs the file
    /// waits for it; nothing is lost.
    Space {
        /// Whether there is none.
        full: bool,
    },
    /// News of what the log's files hold.
    Health(Health),
    /// Every save up to this one is durable, in both copies.
    Saved(SaveId),
    /// A cut is done.
    CutDone(CutDone),
    /// A load from disk ended. The buffer belongs to the caller.
    Loaded {
        /// The caller's number.
        request: u64,
        /// The blocks.
        result: Result<Loaded, ReadError>,
    },
    /// A search by time ended.
    Found {
        /// The caller's number.
        request: u64,
        /// Offset of the first record of the batch; none if no record is that late.
        result: Result<Option<Offset>, ReadError>,
    },
    /// A disk operation failed: the log is closed until restart. What failed, with the error.
    Failed(String),
    /// Give a buffer back.
    Release(BufferId),
    /// The clean stop is complete.
    Stopped,
}
