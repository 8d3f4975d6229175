//! Looks at every byte of one segment that belongs to the log: its header block, each block's
//! header and chain, batches and padding.
//!
//! Where a block is not sound the walk finds out how far the damage reaches: up to the next block
//! if the header tells its length, or memory knows it; else up to the first of the blocks that
//! chain without a gap to a CRC known from elsewhere (the header of the segment behind, or memory).
//! Bytes that merely look like a block, as a client may put into a record, chain to nothing known:
//! they never end a hole. It reads and judges; `scrub.rs` says when, `holes.rs` keeps what it
//! found.

use super::holes::Hole;
use super::index::{Index, Tail};
use super::reader::Reader;
use super::search::{Mark, Place, Search, sound_header};
use crate::buffers::Buffers;
use crate::limits::{DISK_ALIGNMENT, SEGMENT_HEADER};
use crate::types::{BlockNo, FileId, LogId, Offset, Time};
use crate::wire::block::{self, BlockHeader};
use crate::wire::segment::{self, SegmentHeader};

/// What is known of the end of the blocks to look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Anchor {
    /// One past the last block.
    pub(super) end: BlockNo,
    /// CRC of its header.
    pub(super) crc: u32,
    /// Offset behind its last record.
    pub(super) offset: Offset,
}

/// An inspection under way.
#[derive(Debug)]
pub(super) struct Inspection {
    log: LogId,
    pub(super) header: SegmentHeader,
    pub(super) place: Place,
    pub(super) anchor: Anchor,
    now: Time,
    tail: Tail,
    position: u64,
    seek: Option<Box<Search>>,
    seen_head: bool,
    pub(super) is_head_damaged: bool,
    pub(super) holes: Vec<Hole>,
    /// Headers that are sound, of blocks whose epoch was not known because of damage.
    pub(super) learned: Vec<BlockHeader>,
}

impl Inspection {
    /// Of the segment with this header, which lies at `place`, up to the anchor.
    pub(super) fn new(
        log: LogId,
        header: SegmentHeader,
        place: Place,
        anchor: Anchor,
        now: Time,
    ) -> Inspection {
        Inspection {
            log,
            header,
            place,
            anchor,
            now,
            tail: Tail::before(&header),
            position: SEGMENT_HEADER as u64,
            seek: None,
            seen_head: false,
            is_head_damaged: false,
            holes: Vec::new(),
            learned: Vec::new(),
        }
    }

    pub(super) fn file(&self) -> FileId {
        self.place.file
    }

    /// Goes on as far as the reader has bytes; whether the inspection is over.
    pub(super) fn run(
        &mut self,
        reader: &mut Reader,
        buffers: &dyn Buffers,
        index: &Index,
    ) -> bool {
        let Place { file, len } = self.place;
        if !self.seen_head {
            if len < SEGMENT_HEADER as u64 {
                self.is_head_damaged = true;
            } else if !reader.covers(file, 0, SEGMENT_HEADER, len) {
                return false;
            } else {
                let bytes = &reader.bytes(0, buffers)[..SEGMENT_HEADER];
                let mut expected = vec![0; SEGMENT_HEADER];
                segment::write(&mut expected, &self.header);
                self.is_head_damaged = bytes != expected;
            }
            self.seen_head = true;
        }
        while self.tail.next < self.anchor.end {
            let done = match &mut self.seek {
                Some(search) => {
                    let found = search.run(reader, buffers);
                    if found {
                        self.end_of_damage();
                    }
                    found
                }
                None => self.look(reader, buffers, index),
            };
            if !done {
                return false;
            }
        }
        true
    }

    /// Looks at the next block; false if bytes are missing.
    fn look(&mut self, reader: &mut Reader, buffers: &dyn Buffers, index: &Index) -> bool {
        let Place { file, len } = self.place;
        let position = self.position;
        let mut header = None;
        if position + DISK_ALIGNMENT as u64 <= len {
            if !reader.covers(file, position, DISK_ALIGNMENT, len) {
                return false;
            }
            header = sound_header(reader.bytes(position, buffers), self.log);
        }
        let held = index.held(self.tail.next);
        let header = header.filter(|header| {
            let known = held.is_none_or(|held| held.header_crc == header.header_crc);
            let whole = position + header.padded_len() as u64 <= len;
            known && whole && self.tail.continued_by(header)
        });
        if let Some(header) = header {
            let padded = header.padded_len();
            if !reader.covers(file, position, padded, len) {
                return false;
            }
            self.learned
                .extend(index.is_hidden(header.block).then_some(header));
            if is_sound(reader.bytes(position, buffers), &header) {
                self.position += padded as u64;
                self.tail = Tail::behind(&header);
            } else {
                self.damaged_up_to(position + padded as u64, Tail::behind(&header));
            }
            return true;
        }
        match held {
            Some(held) => {
                let tail = Tail {
                    next: self.tail.next.next(),
                    end_offset: held.end_offset,
                    epoch: held.epoch,
                    crc: held.header_crc,
                    tick: held.last_tick,
                };
                self.damaged_up_to(position + held.padded_len() as u64, tail);
            }
            None => {
                let places = [self.place].into_iter().collect();
                let search = Search::new(self.log, self.tail.next, places, position);
                self.seek = Some(Box::new(search));
            }
        }
        true
    }

    /// The blocks up to this place are damaged; `tail` is what the one behind them continues.
    /// Damage
    /// that touches what was found before is one with it.
    fn damaged_up_to(&mut self, limit: u64, tail: Tail) {
        let mut hole = Hole {
            end: tail.next,
            segment: self.header.base_block,
            position: self.position,
            limit,
            is_exact: true,
            before: self.tail,
            behind: tail.crc,
            end_offset: tail.end_offset,
            since: self.now,
        };
        if let Some(last) = self.holes.pop_if(|last| last.end == hole.from()) {
            (hole.position, hole.before) = (last.position, last.before);
        }
        self.holes.push(hole);
        self.position = limit;
        self.tail = tail;
    }

    /// The search for what lies behind the damage is over.
    fn end_of_damage(&mut self) {
        let search = self.seek.take().expect("it is over");
        let Anchor { end, crc, offset } = self.anchor;
        let found = first_anchored(&search.marks, (self.tail.next, self.position), (end, crc));
        let (limit, tail) = match found {
            Some(mark) => (
                mark.position,
                Tail {
                    next: mark.header.block,
                    end_offset: mark.header.base_offset,
                    crc: mark.header.prev_header_crc,
                    ..self.tail
                },
            ),
            None => (
                self.place.len,
                Tail {
                    next: end,
                    end_offset: offset,
                    crc,
                    ..self.tail
                },
            ),
        };
        self.damaged_up_to(limit, tail);
        if found.is_none()
            && let Some(last) = self.holes.last_mut()
        {
            last.is_exact = false;
        }
    }
}

/// Whether a block's batches and padding are sound, whose header is.
pub(super) fn is_sound(bytes: &[u8], header: &BlockHeader) -> bool {
    block::check_batches(bytes, header).is_ok() && block::check_padding(bytes, header).is_ok()
}

/// Of blocks found behind damage at `from` (and its position), the first one from which on they
/// chain without a gap to the last one before `end`, whose CRC is `crc`.
pub(super) fn first_anchored(
    marks: &[Mark],
    (from, position): (BlockNo, u64),
    (end, crc): (BlockNo, u32),
) -> Option<Mark> {
    let (mut next, mut next_crc, mut at) = (end, crc, None);
    let mut first = None;
    for mark in marks.iter().rev() {
        let header = &mark.header;
        let behind = mark.position + header.padded_len() as u64;
        let touches = at.is_none_or(|at| behind == at);
        if header.block.next() != next || header.header_crc != next_crc || !touches {
            continue;
        }
        // Each block of the damage takes a page at least.
        let least = header.block.0.saturating_sub(from.0) * DISK_ALIGNMENT as u64;
        if header.block <= from || mark.position < position + least {
            break;
        }
        (next, next_crc, at) = (header.block, header.prev_header_crc, Some(mark.position));
        first = Some(*mark);
    }
    first
}
