//! What the log must hold, known apart from the log.
//!
//! The model remembers every block that was given to the disk, byte for byte, what was reported
//! durable or saved, and which cut is under way. From that follow the bounds for any crash: what
//! must be there, what may be there. It reads the simulated disk with the wire formats alone, never
//! through the log's code. Read `rig.rs` for who feeds it, `images.rs` for who asks it after a
//! crash.

use crate::sim::content::Pages;
use crate::sim::disk::Disk;
use crate::verdict::verdict;
use millrace::limits::{DISK_ALIGNMENT, SEGMENT_HEADER};
use millrace::types::{BlockNo, Epoch, NodeId};
use millrace::wal::op::{FileEntry, FileName};
use millrace::wal::{CutDone, Recovered, RecoveredMemory, SaveId};
use millrace::wire::block::{self, BlockHeader};
use millrace::wire::checkpoint::{self, Checkpoint};
use millrace::wire::segment;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A block as it was given to the disk.
#[derive(Debug)]
pub struct Block {
    /// Its header.
    pub header: BlockHeader,
    /// All of it, padding included.
    pub bytes: Rc<[u8]>,
    /// First block of its segment file.
    pub base: u64,
    /// Where it lies in that file.
    pub position: u64,
}

/// What a save of the checkpoint promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// Highest epoch promised.
    pub promised: Epoch,
    /// Vote in it.
    pub vote: Option<NodeId>,
    /// First block of the log.
    pub log_start: u64,
}

impl Promise {
    /// What this checkpoint promises.
    pub fn of(checkpoint: &Checkpoint) -> Promise {
        Promise {
            promised: checkpoint.promised,
            vote: checkpoint.vote,
            log_start: checkpoint.log_start.block.0,
        }
    }
}

/// Which side of the disk to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What a reader sees.
    Current,
    /// What a loss of power surely leaves.
    Durable,
}

/// What the log must hold.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Every block of the log from 0 on, trimmed ones too.
    pub blocks: Vec<Rc<Block>>,
    /// Blocks reported durable.
    pub durable_end: u64,
    /// First block of the cut under way.
    pub cutting: Option<u64>,
    /// Blocks that were called committed.
    pub committed: u64,
    /// Highest block that a trim asked for.
    pub trim_to: u64,
    /// Whether the first checkpoint was reported saved.
    pub created: bool,
    /// The last promise reported saved.
    pub saved: Promise,
    /// A block that the test damaged: it is not compared.
    pub damaged: Option<u64>,
    /// The test took the checkpoint away: recovery must say that memory is lost.
    pub expect_lost: bool,
    /// Promises asked for and not yet reported saved, oldest first.
    asked: Vec<(SaveId, Promise)>,
    /// Such promises of the process before: any of them may be found.
    asked_before: Vec<Promise>,
    /// Blocks that were cut: number and CRC of the header.
    gone: BTreeSet<(u64, u32)>,
}

impl Model {
    /// A block was given to the disk.
    pub fn push(&mut self, header: BlockHeader, bytes: &[u8]) {
        let expected = self.blocks.len() as u64;
        if header.block.0 != expected || self.last_crc() != header.prev_header_crc {
            verdict!(bytes_differ, "block {expected} is sealed as {header:?}");
        }
        let read = block::read_header(bytes);
        let sound = read == Ok(header)
            && block::check_batches(bytes, &header).is_ok()
            && block::check_padding(bytes, &header).is_ok();
        if !sound {
            verdict!(
                bytes_differ,
                "block {expected} is sealed unsound: {read:?} {header:?}"
            );
        }
        let (base, position) = match self.blocks.last() {
            Some(last) if !header.first_in_segment => {
                (last.base, last.position + last.bytes.len() as u64)
            }
            _ => (expected, SEGMENT_HEADER as u64),
        };
        self.blocks.push(Rc::new(Block {
            header,
            bytes: bytes[..header.padded_len()].into(),
            base,
            position,
        }));
    }

    /// CRC of the last block's header.
    pub fn last_crc(&self) -> u32 {
        self.blocks
            .last()
            .map_or(0, |block| block.header.header_crc)
    }

    /// Blocks given to the disk.
    pub fn end(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// A new process begins: its saves are numbered anew.
    pub fn new_process(&mut self) {
        let asked = self.asked.drain(..).map(|(_, promise)| promise);
        self.asked_before.extend(asked);
    }

    /// A save was asked for.
    pub fn asked(&mut self, id: SaveId, promise: Promise) {
        self.asked.push((id, promise));
    }

    /// Every save up to `id` was reported durable.
    pub fn saved(&mut self, id: SaveId, disk: &Disk) {
        let done = self.asked.partition_point(|(other, _)| *other <= id);
        for (_, promise) in self.asked.drain(..done) {
            self.saved = promise;
        }
        self.created = true;
        let pages = disk
            .durable_content(FileName::Checkpoint)
            .expect("always there");
        let copies = [0, 1].map(|copy| checkpoint::read(pages.page(copy)));
        let newest = copies
            .into_iter()
            .flatten()
            .max_by_key(|copy| copy.sequence);
        let promise = newest.as_ref().map(Promise::of);
        if !promise.is_some_and(|promise| self.may_promise(&promise)) {
            let want = self.saved;
            verdict!(
                acked_before_durable,
                "saved {want:?}, the disk holds {promise:?}"
            );
        }
    }

    /// The durable end moved to `end`.
    pub fn durable(&mut self, end: u64, offset: u64, disk: &Disk) {
        let known = end
            .checked_sub(1)
            .and_then(|last| self.blocks.get(last as usize));
        let known_offset = known.map_or(0, |block| block.header.end_offset.0);
        if end > self.end() || end < self.durable_end || known_offset != offset {
            let (from, sealed) = (self.durable_end, self.end());
            verdict!(
                acked_before_durable,
                "durable end {end} at offset {offset}: before {from}, sealed {sealed}, offset \
                 {known_offset}"
            );
        }
        self.check_held(disk, Side::Durable, self.durable_end, end);
        self.durable_end = end;
    }

    /// The cut under way is done.
    pub fn cut_done(&mut self, done: CutDone, disk: &Disk) {
        let log_end = done.log_end.0;
        let from = self.cutting.take();
        let expected = from.map(|from| from.min(self.end()));
        let gone = self.end().saturating_sub(log_end);
        if expected != Some(log_end) || done.blocks != gone {
            verdict!(
                bytes_differ,
                "a cut at {from:?} ends as {done:?}, sealed {}",
                self.end()
            );
        }
        if gone == 0 {
            return;
        }
        self.check_held(disk, Side::Durable, self.durable_end, log_end);
        self.truncate(log_end);
        self.check_nothing_left(disk, Side::Durable);
    }

    /// Every block from `end` on is gone.
    fn truncate(&mut self, end: u64) {
        for block in self.blocks.drain(end as usize..) {
            self.gone
                .insert((block.header.block.0, block.header.header_crc));
        }
        self.durable_end = end;
    }

    /// Fewest blocks that a crash now may leave.
    pub fn least_end(&self) -> u64 {
        self.cutting
            .map_or(self.durable_end, |from| from.min(self.durable_end))
    }

    /// What was found after a crash: is it legal? The model goes on from it.
    pub fn recovered(&mut self, found: &Recovered, disk: &Disk) {
        self.check_memory(found);
        let end = found.log_end.0;
        if end < self.least_end() {
            let (least, cutting) = (self.least_end(), self.cutting);
            verdict!(
                acked_lost,
                "log end {end}, durable was {least}, cut {cutting:?}"
            );
        }
        if end > self.end() {
            verdict!(
                stale_block_read,
                "log end {end}, written were only {}",
                self.end()
            );
        }
        let start = found.log_start.block.0;
        if start > end {
            verdict!(acked_lost, "log start {start} past the log end {end}");
        }
        self.check_held(disk, Side::Current, start, end);
        self.check_held(disk, Side::Durable, start, end);
        self.truncate(end);
        self.check_facts(found);
        self.check_nothing_left(disk, Side::Current);
        self.cutting = None;
        self.asked_before.clear();
        self.saved = Promise {
            promised: found.promised,
            vote: found.vote,
            log_start: start,
        };
        self.created = found.memory == RecoveredMemory::Whole;
    }

    fn check_memory(&self, found: &Recovered) {
        let whole = match found.memory {
            RecoveredMemory::Whole => true,
            RecoveredMemory::Blank => !self.created && found.log_end == BlockNo(0),
            RecoveredMemory::Lost => false,
        };
        if self.expect_lost {
            if found.memory != RecoveredMemory::Lost {
                verdict!(
                    checkpoint_went_back,
                    "without a checkpoint: {:?}",
                    found.memory
                );
            }
            return;
        }
        let promise = Promise {
            promised: found.promised,
            vote: found.vote,
            log_start: found.log_start.block.0,
        };
        if !whole || !self.may_promise(&promise) {
            let want = self.saved;
            let asked = &self.asked_before;
            verdict!(
                checkpoint_went_back,
                "found {:?} {promise:?}, saved was {want:?}, asked since {asked:?}",
                found.memory
            );
        }
    }

    /// Whether the checkpoint may say this: what was saved last, or anything asked for since.
    fn may_promise(&self, found: &Promise) -> bool {
        let same =
            |promise: &Promise| promise.promised == found.promised && promise.vote == found.vote;
        let known = same(&self.saved)
            || self.asked.iter().any(|(_, promise)| same(promise))
            || self.asked_before.iter().any(same);
        known && (self.saved.log_start..=self.trim_to).contains(&found.log_start)
    }

    fn check_facts(&self, found: &Recovered) {
        let last = self.blocks.last().map(|block| block.header);
        let last = last.unwrap_or_default();
        let start = found.log_start;
        let first = self
            .blocks
            .get(start.block.0 as usize)
            .map(|block| block.header);
        let start_fits = first.is_none_or(|first| {
            (first.base_offset, first.prev_header_crc) == (start.offset, start.prev_crc)
                && first.first_in_segment
        });
        let fits = start_fits
            && found.end_offset == last.end_offset
            && found.last_epoch == last.epoch
            && found.last_tick == last.last_tick
            && found.high_watermark.0 <= self.committed
            && found.high_watermark <= found.log_end;
        if !fits {
            let committed = self.committed;
            verdict!(bytes_differ, "{found:?} of {last:?}, committed {committed}");
        }
    }

    /// The blocks `from..end` are on the disk as they were sealed.
    pub fn check_held(&self, disk: &Disk, side: Side, from: u64, end: u64) {
        if from >= end {
            return;
        }
        let files = segment_files(disk, side);
        for block in &self.blocks[from as usize..end as usize] {
            let number = block.header.block.0;
            if self.damaged == Some(number) {
                continue;
            }
            let differs = match files.get(&block.base) {
                None => Some("its file is not there".to_string()),
                Some(pages) => difference(pages, block),
            };
            let Some(what) = differs else {
                continue;
            };
            let stale = files
                .get(&block.base)
                .is_some_and(|pages| self.is_stale(pages, block));
            match side {
                Side::Current if stale => verdict!(stale_block_read, "block {number}: {what}"),
                Side::Current => verdict!(bytes_differ, "block {number}: {what}"),
                Side::Durable => verdict!(acked_before_durable, "block {number}: {what}"),
            }
        }
    }

    /// Whether a block that was cut lies where `block` should be.
    fn is_stale(&self, pages: &Pages, block: &Block) -> bool {
        let page = pages.page(block.position as usize / DISK_ALIGNMENT);
        let found = block::read_header(page);
        found.is_ok_and(|found| self.gone.contains(&(found.block.0, found.header_crc)))
    }

    /// No whole block from the log end on is left anywhere: it could be taken for one of the log.
    fn check_nothing_left(&self, disk: &Disk, side: Side) {
        for (base, pages) in segment_files(disk, side) {
            for index in 1..pages.len() as usize / DISK_ALIGNMENT {
                let Ok(header) = block::read_header(pages.page(index)) else {
                    continue;
                };
                if header.block.0 < self.end() {
                    continue;
                }
                let bytes = pages.read((index * DISK_ALIGNMENT) as u64, header.padded_len());
                if block::check_batches(&bytes, &header).is_ok() {
                    let (number, end) = (header.block, self.end());
                    verdict!(
                        stale_block_left,
                        "block {number} in file {base} at page {index}, log end {end}"
                    );
                }
            }
        }
    }
}

/// How a block on the disk differs from what was sealed.
fn difference(pages: &Pages, block: &Block) -> Option<String> {
    let first = block.position as usize / DISK_ALIGNMENT;
    let parts = block.bytes.chunks_exact(DISK_ALIGNMENT).enumerate();
    for (index, part) in parts {
        if (first + index) as u64 * DISK_ALIGNMENT as u64 >= pages.len() {
            return Some("its file ends before it".to_string());
        }
        let page = pages.page(first + index);
        if page[..] != *part {
            let at = page.iter().zip(part).position(|(is, should)| is != should);
            let at = at.expect("they differ") + index * DISK_ALIGNMENT;
            return Some(format!("file {}: byte {at} of it differs", block.base));
        }
    }
    None
}

/// The segment files by the first block that their header names; the name is but a help.
fn segment_files(disk: &Disk, side: Side) -> BTreeMap<u64, &Pages> {
    let mut found = BTreeMap::new();
    let files = match side {
        Side::Current => disk.files(),
        Side::Durable => disk.durable_files(),
    };
    for FileEntry { name, .. } in files {
        let pages = match side {
            Side::Current => disk.content(name),
            Side::Durable => disk.durable_content(name),
        };
        let pages = pages.expect("the name is there");
        if name != FileName::Checkpoint
            && let Some(header) = segment::read(pages.page(0))
        {
            found.insert(header.base_block.0, pages);
        }
    }
    found
}
