//! The segment files of a log, and the roll into the next one.
//!
//! A roll happens in this order: the header block is written into `next.seg`; when it is durable
//! the file gets its name; when the name is durable another `next.seg` is asked for. Blocks may be
//! written into the file from the moment the header write was asked for, but none of them counts as
//! durable before the file is named. At rest every segment holds at least one block. Read
//! `writer.rs` next.

use super::ids::{Ids, Purpose};
use super::op::DiskOp;
use super::space::Space;
use crate::buffers::Buffers;
use crate::limits::{CONTROL_ROOM, DISK_ALIGNMENT, SEGMENT_HEADER};
use crate::types::{BlockNo, BufferId, FileId, Tick, Time};
use crate::wire::segment::{self, SegmentHeader};
use std::collections::VecDeque;

/// One segment file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) header: SegmentHeader,
    /// None while it waits for the next file.
    pub(super) file: Option<FileId>,
    /// Where the next block goes; known for the newest segment, else the length of the file.
    pub(super) end: u64,
    /// Length of the file.
    pub(super) len: u64,
    /// Whether its header and its name are durable.
    pub(super) named: bool,
    /// Last tick of its first block.
    pub(super) first_tick: Tick,
    /// When this node began it, if that was in this run.
    pub(super) begun: Option<Time>,
    /// Whether it began in this run.
    pub(super) rolled: bool,
}

impl Segment {
    pub(super) fn base(&self) -> BlockNo {
        self.header.base_block
    }
}

/// The file that the next roll will use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Missing,
    Providing(FileId),
    Ready(FileId),
    WritingHeader(FileId),
    HeaderDurable(FileId),
    Naming(FileId),
}

/// The segments of one log, ascending.
#[derive(Debug)]
pub(super) struct Segments {
    list: VecDeque<Segment>,
    next: Next,
    /// Whether the disk has space for the next file.
    pub(super) space: Space,
    header_buffer: Option<BufferId>,
    /// Bytes of a new file.
    segment_bytes: u64,
}

impl Segments {
    pub(super) fn new(list: VecDeque<Segment>, segment_bytes: u64) -> Segments {
        Segments {
            list,
            next: Next::Missing,
            space: Space::default(),
            header_buffer: None,
            segment_bytes,
        }
    }

    pub(super) fn index_of(&self, block: BlockNo) -> Option<usize> {
        let at = self.list.partition_point(|one| one.base() <= block);
        at.checked_sub(1)
    }

    pub(super) fn of(&self, block: BlockNo) -> Option<&Segment> {
        self.index_of(block).map(|at| &self.list[at])
    }

    /// The segment that begins with this very block.
    pub(super) fn starting_at(&self, block: BlockNo) -> Option<&Segment> {
        self.of(block).filter(|one| one.base() == block)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.list.iter()
    }

    /// Whether a block of so many bytes goes into the newest segment.
    pub(super) fn fits(&self, padded: usize) -> bool {
        let room = |last: &Segment| last.end + padded as u64 <= last.len;
        self.list.back().is_some_and(room)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether a block of records of so many bytes may be given a place. Until the next file is
    /// there, the end of the newest one is kept for blocks of the node's own: an epoch can be
    /// opened on a full disk.
    pub(super) fn takes_records(&self, padded: usize) -> bool {
        let waiting = self.list.iter().any(|one| one.file.is_none());
        let is_next_there = matches!(self.next, Next::Ready(_)) && !waiting;
        let an_eighth = self.segment_bytes / 8 / DISK_ALIGNMENT as u64 * DISK_ALIGNMENT as u64;
        is_next_there || self.fits(padded + an_eighth.min(CONTROL_ROOM) as usize)
    }

    /// Each sealed segment with the one behind it, oldest first.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&Segment, &Segment)> {
        self.list.iter().zip(self.list.iter().skip(1))
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.list.iter().map(|one| one.len).sum()
    }

    /// The same, but of the newest file only what is used.
    pub(super) fn used_bytes(&self) -> u64 {
        let unused = self.list.back().map_or(0, |last| last.len - last.end);
        self.bytes() - unused
    }

    /// Segments that began since the last call began now.
    pub(super) fn note_begun(&mut self, now: Time) {
        let fresh = |one: &&mut Segment| one.begun.is_none() && one.rolled;
        for one in self.list.iter_mut().rev().take_while(fresh) {
            one.begun = Some(now);
        }
    }

    /// The next block, of this tick, opens a new segment.
    pub(super) fn roll(&mut self, header: SegmentHeader, first_tick: Tick) {
        self.list.push_back(Segment {
            header,
            file: None,
            end: SEGMENT_HEADER as u64,
            len: self.segment_bytes,
            named: false,
            first_tick,
            begun: None,
            rolled: true,
        });
    }

    /// Gives the next block its place in the newest segment: first block of the segment, position.
    /// A leader's segments may be longer than ours: the file then grows.
    pub(super) fn place(&mut self, padded: usize) -> (BlockNo, u64) {
        let last = self.list.back_mut().expect("a roll came first");
        let position = last.end;
        last.end += padded as u64;
        last.len = last.len.max(last.end);
        (last.base(), position)
    }

    /// The next operation of a roll, or for the next file.
    pub(super) fn poll(
        &mut self,
        ids: &mut Ids,
        buffers: &mut dyn Buffers,
    ) -> Option<(DiskOp, Purpose)> {
        if self.space.is_waiting() {
            return None;
        }
        match self.next {
            Next::Missing => {
                let file = ids.file();
                self.next = Next::Providing(file);
                let ticket = ids.ticket();
                Some((DiskOp::Provide { ticket, file }, Purpose::Provide))
            }
            Next::Ready(file) => {
                let waiting = self.list.iter_mut().find(|one| one.file.is_none())?;
                let buffer = buffers.take(SEGMENT_HEADER)?;
                segment::write(buffers.bytes_mut(buffer), &waiting.header);
                waiting.file = Some(file);
                self.next = Next::WritingHeader(file);
                self.header_buffer = Some(buffer);
                let op = DiskOp::Write {
                    ticket: ids.ticket(),
                    file,
                    position: 0,
                    buffer,
                    start: 0,
                    len: SEGMENT_HEADER,
                };
                Some((op, Purpose::SegmentHeader))
            }
            Next::HeaderDurable(file) => {
                let mut all = self.list.iter();
                let named = all.find(|one| one.file == Some(file));
                let base = named.expect("cuts wait for rolls").base();
                self.next = Next::Naming(file);
                let ticket = ids.ticket();
                Some((DiskOp::Name { ticket, file, base }, Purpose::Name))
            }
            Next::Providing(_) | Next::WritingHeader(_) | Next::Naming(_) => None,
        }
    }

    pub(super) fn on_provided(&mut self) {
        let Next::Providing(file) = self.next else {
            panic!("a file was provided that nobody asked for");
        };
        self.next = Next::Ready(file);
        self.space.found();
    }

    /// There is no space for the next file, or for its name: it is asked for again later.
    pub(super) fn on_full(&mut self, now: Time) {
        self.next = match self.next {
            Next::Providing(_) => Next::Missing,
            Next::Naming(file) => Next::HeaderDurable(file),
            _ => panic!("the disk was full for something that nobody asked for"),
        };
        self.space.missed(now);
    }

    /// The header is durable. Returns its buffer.
    pub(super) fn on_header_written(&mut self) -> BufferId {
        let Next::WritingHeader(file) = self.next else {
            panic!("a header was written that nobody asked for");
        };
        self.next = Next::HeaderDurable(file);
        self.header_buffer
            .take()
            .expect("held while it was written")
    }

    pub(super) fn on_named(&mut self) {
        let Next::Naming(file) = self.next else {
            panic!("a file was named that nobody asked for");
        };
        let mut all = self.list.iter_mut();
        let named = all.find(|one| one.file == Some(file));
        named.expect("cuts wait for rolls").named = true;
        self.next = Next::Missing;
        self.space.found();
    }

    /// Whether no roll is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.list.iter().all(|one| one.named)
    }

    /// Drops the segments that hold blocks from `from` on alone and have no file yet.
    pub(super) fn drop_waiting(&mut self, from: BlockNo) {
        let waits = |one: &Segment| one.file.is_none() && one.base() >= from;
        while self.list.back().is_some_and(waits) {
            self.list.pop_back();
        }
    }

    /// Drops every segment that holds blocks from `from` on alone, and says where the log now ends:
    /// `end` is the position behind the last block kept.
    pub(super) fn cut(&mut self, from: BlockNo, end: u64) {
        while self.list.back().is_some_and(|last| last.base() >= from) {
            self.list.pop_back();
        }
        if let Some(last) = self.list.back_mut() {
            last.end = end;
        }
    }

    /// The segment that a log trimmed below `to` would begin with.
    pub(super) fn trim_point(&self, to: BlockNo) -> Option<&Segment> {
        self.of(to).filter(|one| one.named)
    }

    /// Drops all segments and returns their files, the oldest first. No roll is under way.
    pub(super) fn clear(&mut self) -> Vec<FileId> {
        let files = self.list.drain(..).map(|one| one.file);
        files
            .map(|file| file.expect("no roll is under way"))
            .collect()
    }

    /// Drops the segments below `start` and returns their files, the oldest first.
    pub(super) fn trim(&mut self, start: BlockNo) -> Vec<FileId> {
        let mut files = Vec::new();
        while self.list.front().is_some_and(|one| one.base() < start) {
            let one = self.list.pop_front().expect("just seen");
            files.push(one.file.expect("named segments have files"));
        }
        files
    }

    pub(super) fn release(&mut self) -> Option<BufferId> {
        self.header_buffer.take()
    }
}
