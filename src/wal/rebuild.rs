//! The table of producers as it stood at a block: what a cut rolls it back to.
//!
//! Walks the segment that holds the block, from the snapshot in its first block on, up to the
//! block. It runs before anything is erased, so the snapshot is there even if the first block of
//! the segment is itself the first one to go. Recovery needs none of this: its scan passes by all
//! blocks of the last segment. Read `producers.rs` first, `cut.rs` next.

use super::producers::Producers;
use super::reader::Reader;
use super::search::{Place, sound_header};
use crate::buffers::Buffers;
use crate::limits::{DISK_ALIGNMENT, SEGMENT_HEADER};
use crate::types::{BlockNo, LogId};
use crate::wire::block::{self, BlockHeader};

/// A walk under way.
#[derive(Debug)]
pub(super) struct Rebuild {
    log: LogId,
    place: Place,
    position: u64,
    next: BlockNo,
    prev: Option<BlockHeader>,
    from: BlockNo,
    /// The table of all blocks passed.
    producers: Producers,
}

/// What a walk came to.
#[derive(Debug)]
pub(super) enum Rebuilt {
    /// Something has to be read.
    Wait,
    Done(Producers),
    /// This block of the log is not sound.
    Damaged(BlockNo),
}

impl Rebuild {
    /// A walk through a segment that begins with `base` and lies at `place`, up to `from`, which is
    /// in it. `producers` has none.
    pub(super) fn new(
        log: LogId,
        place: Place,
        base: BlockNo,
        from: BlockNo,
        producers: Producers,
    ) -> Rebuild {
        Rebuild {
            log,
            place,
            position: SEGMENT_HEADER as u64,
            next: base,
            prev: None,
            from,
            producers,
        }
    }

    /// Goes on as far as the reader has bytes.
    pub(super) fn run(&mut self, reader: &mut Reader, buffers: &dyn Buffers) -> Rebuilt {
        loop {
            // The first block of the segment is looked at in any case: for its snapshot.
            if self.next >= self.from && self.prev.is_some() {
                let none = Producers::new(0);
                return Rebuilt::Done(core::mem::replace(&mut self.producers, none));
            }
            let Place { file, len } = self.place;
            if self.position + DISK_ALIGNMENT as u64 > len {
                return Rebuilt::Damaged(self.next);
            }
            if !reader.covers(file, self.position, DISK_ALIGNMENT, len) {
                return Rebuilt::Wait;
            }
            let header = sound_header(reader.bytes(self.position, buffers), self.log);
            let Some(header) = header.filter(|header| self.is_next(header)) else {
                return Rebuilt::Damaged(self.next);
            };
            let padded = header.padded_len();
            if !reader.covers(file, self.position, padded, len) {
                return Rebuilt::Wait;
            }
            let bytes = reader.bytes(self.position, buffers);
            if block::check_batches(bytes, &header).is_err() {
                return Rebuilt::Damaged(self.next);
            }
            if header.block < self.from {
                self.producers.take_in(bytes, &header);
            } else {
                self.producers.take_snapshot(bytes, &header);
            }
            self.position += padded as u64;
            self.next = header.block.next();
            self.prev = Some(header);
        }
    }

    fn is_next(&self, header: &BlockHeader) -> bool {
        let chains = self
            .prev
            .is_none_or(|prev| prev.header_crc == header.prev_header_crc);
        let whole = self.position + header.padded_len() as u64 <= self.place.len;
        header.block == self.next && chains && whole
    }
}
