//! What a log tells of itself without asking the disk.
//!
//! Plain answers from the state in `log.rs` and the index. Ends are exclusive. Nothing here changes
//! anything. Read `index.rs` for how far back memory reaches.

use super::config::Config;
use super::log::Log;
use super::output::{Common, Held, State};
use super::segments::Segment;
use crate::limits::SEGMENT_HEADER;
use crate::types::{BlockNo, BufferId, Epoch, Offset, Tick, padded};
use crate::wire::block::BlockHeader;
use crate::wire::checkpoint::{Checkpoint, LogStart};
use crate::wire::producers::Producer;

impl Log {
    /// Whether the log has something to say: see [`Log::poll_output`].
    pub fn has_output(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Whether nothing was ever created here.
    pub fn is_blank(&self) -> bool {
        self.created.is_none()
    }

    /// Whether the disk has no space for the next segment file: no append of a client should be
    /// taken. Blocks that need the file wait for it.
    pub fn is_full(&self) -> bool {
        self.segments.space.is_full()
    }

    /// Whether these blocks can be written now, as far as is known: none of them begins a segment
    /// for which there is no file.
    pub fn has_space_for(&self, blocks: &[BlockHeader]) -> bool {
        !self.is_full() || blocks.iter().all(|header| !header.first_in_segment)
    }

    /// Whether these blocks continue the log as it is: their numbers, chain and offsets fit.
    pub fn is_continued_by(&self, blocks: &[BlockHeader]) -> bool {
        let tail = &self.index.tail;
        blocks.first().is_none_or(|first| tail.continued_by(first))
    }

    /// What the log is doing.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether a cut is under way: no append and no run before its `CutDone`.
    pub fn is_cutting(&self) -> bool {
        self.cut.is_some()
    }

    /// First block that the cut under way takes away. The ends of the log show it only when done.
    pub fn cut_from(&self) -> Option<BlockNo> {
        self.cut.as_ref().map(|cut| cut.from)
    }

    /// Blocks durable here and known to be committed.
    pub fn committed_end(&self) -> BlockNo {
        self.known_committed()
    }

    /// Where the log begins anew once the cut under way is done, if it does.
    pub fn begins_anew(&self) -> Option<LogStart> {
        self.cut.as_ref().and_then(|cut| cut.anew)
    }

    /// Where the log begins.
    pub fn log_start(&self) -> LogStart {
        self.index.start
    }

    /// Blocks sealed here or received; the open block does not count.
    pub fn log_end(&self) -> BlockNo {
        self.index.tail.next
    }

    /// Offset behind the last record of the block before `log_end`.
    pub fn end_offset(&self) -> Offset {
        self.index.tail.end_offset
    }

    /// Offset behind the last record accepted, the open block's included.
    pub fn open_end_offset(&self) -> Offset {
        let open = self.open.as_ref().map(|open| open.end_offset);
        open.unwrap_or(self.index.tail.end_offset)
    }

    /// The open block's buffer, and a header by which its batches are walked; it has no CRC yet.
    pub fn open_block(&self) -> Option<(BufferId, BlockHeader)> {
        let open = self.open.as_ref()?;
        let header = BlockHeader {
            used_len: open.used as u32,
            batch_count: open.batches,
            ..BlockHeader::default()
        };
        Some((open.buffer, header))
    }

    /// The producers that the sealed blocks know, ascending by id.
    pub fn producers(&self) -> impl Iterator<Item = &Producer> {
        self.producers.sealed()
    }

    /// Whether a reader's last batch, which is of `epoch` and ends at `offset`, is in this log.
    pub fn common(&self, epoch: Epoch, offset: Offset) -> Common {
        self.index.common(epoch, offset, self.open_end_offset())
    }

    /// Blocks durable.
    pub fn durable_end(&self) -> BlockNo {
        self.writer.durable_end
    }

    /// Offset behind the last durable record.
    pub fn durable_offset(&self) -> Offset {
        self.writer.durable_offset
    }

    /// Epoch of the block before `log_end`, 0 if there is none.
    pub fn last_epoch(&self) -> Epoch {
        self.index.tail.epoch
    }

    /// CRC of the header of the block before `log_end`, 0 if there is none.
    pub fn last_crc(&self) -> u32 {
        self.index.tail.crc
    }

    /// Tick of the last batch accepted, the open block's included.
    pub fn last_tick(&self) -> Tick {
        let open = self.open.as_ref().map(|open| open.last_tick);
        open.unwrap_or(self.index.tail.tick)
    }

    /// Bytes of blocks handed to the disk since the start, padding included.
    pub fn bytes_written(&self) -> u64 {
        self.writer.bytes_written
    }

    /// Bytes of all files, of the newest as far as it is used.
    pub fn bytes(&self) -> u64 {
        self.segments.used_bytes()
    }

    /// The checkpoint as it will be after every save asked for so far.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.saver.checkpoint
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Facts of a block, if it is among the newest `HELD_BLOCKS`.
    pub fn held(&self, block: BlockNo) -> Option<Held> {
        self.index.held(block).copied()
    }

    /// Epoch of a block of the log, or of the block before the log start.
    pub fn epoch_of(&self, block: BlockNo) -> Option<Epoch> {
        self.index.epoch_of(block)
    }

    /// First block of this log that was written under `epoch`.
    pub fn first_of_epoch(&self, epoch: Epoch) -> Option<BlockNo> {
        self.index.first_of_epoch(epoch)
    }

    /// Offset behind the last record below `block_end`: for recent blocks and the log start.
    pub fn end_offset_of(&self, block_end: BlockNo) -> Option<Offset> {
        self.index.end_offset_of(block_end)
    }

    /// Padded bytes of the blocks from `from` on, and the tick of the first of them (0 if there is
    /// none); none if the block is no longer held and does not begin a segment.
    pub fn rest_from(&self, from: BlockNo) -> Option<(u64, Tick)> {
        if from >= self.log_end() {
            return Some((0, Tick(0)));
        }
        let place = |block: BlockNo| {
            let held = self.index.held(block);
            held.map(|held| (held.position, padded(held.used_len as usize) as u64))
        };
        let first = self.segments.index_of(from)?;
        let all: Vec<&Segment> = self.segments.iter().skip(first).collect();
        let one = all.first()?;
        let (position, tick) = match self.index.held(from) {
            Some(held) => (held.position, held.last_tick),
            None if one.base() == from && one.first_tick > Tick(0) => {
                (SEGMENT_HEADER as u64, one.first_tick)
            }
            None => return None,
        };
        // What is left unused at the end of a file that was sealed is no block.
        let nexts = all.iter().skip(1).map(|next| next.base().previous());
        let ends = nexts.map(|last| last.and_then(place).map(|(at, len)| at + len));
        let ends = ends.chain([None]);
        let used = all
            .iter()
            .zip(ends)
            .map(|(one, end)| end.unwrap_or(one.end));
        let headers = (all.len() * SEGMENT_HEADER) as u64;
        Some((
            used.sum::<u64>() + SEGMENT_HEADER as u64 - headers - position,
            tick,
        ))
    }
}
