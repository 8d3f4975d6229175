//! Looks for blocks behind a point of the log where its chain ends: what a cut has to erase, and
//! recovery's evidence of what was once durable.
//!
//! Every multiple of 4096 is looked at, up to the end of the files. A sound header of this log
//! counts as a block, whatever its body: whoever wrote it had been allowed to write so far. Nothing
//! is judged here; `recovery.rs` judges, `cut.rs` erases.

use super::reader::Reader;
use crate::buffers::Buffers;
use crate::limits::{DISK_ALIGNMENT, SEGMENT_HEADER, WRITE_WINDOW};
use crate::types::{BlockNo, FileId, LogId};
use crate::wire::block::{self, BlockHeader};
use std::collections::VecDeque;

/// A file to search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) file: FileId,
    pub(super) len: u64,
}

/// A block found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) file: FileId,
    pub(super) position: u64,
    pub(super) header: BlockHeader,
    /// Bytes of log from the start of the search to the block's end, at least.
    pub(super) distance: u64,
}

/// A search under way.
#[derive(Debug)]
pub(super) struct Search {
    log: LogId,
    pub(super) from: BlockNo,
    places: VecDeque<Place>,
    position: u64,
    began: u64,
    /// Where distances in this file are counted from, and what the files before it add.
    origin: u64,
    passed: u64,
    /// Blocks at or behind `from`, ascending by place.
    pub(super) marks: Vec<Mark>,
    /// The first file, and where all behind is zero but for the first pages of `marks`.
    pub(super) dirty: Option<(FileId, u64)>,
    /// The block right before `from`, with the position behind it, if the search came by it.
    pub(super) before: Option<(BlockHeader, u64)>,
}

impl Search {
    /// Searches `places` from `position` of the first one on for blocks at or behind `from`.
    pub(super) fn new(log: LogId, from: BlockNo, places: VecDeque<Place>, position: u64) -> Search {
        let dirty = places.front().map(|place| (place.file, position));
        Search {
            log,
            from,
            places,
            position,
            began: position,
            origin: position,
            passed: 0,
            marks: Vec::new(),
            dirty,
            before: None,
        }
    }

    /// Goes on as far as the reader has bytes; whether the search is over.
    pub(super) fn run(&mut self, reader: &mut Reader, buffers: &dyn Buffers) -> bool {
        while let Some(place) = self.places.front().copied() {
            if self.position + DISK_ALIGNMENT as u64 > place.len {
                self.next_file();
                continue;
            }
            if !reader.covers(place.file, self.position, DISK_ALIGNMENT, place.len) {
                return false;
            }
            let bytes = reader.bytes(self.position, buffers);
            let header = sound_header(bytes, self.log);
            let remains = match &header {
                Some(header) => header.padded_len() > DISK_ALIGNMENT,
                None => bytes[..DISK_ALIGNMENT].iter().any(|byte| *byte != 0),
            };
            let step = header.map_or(DISK_ALIGNMENT, |header| header.padded_len());
            if let Some(header) = header {
                self.note(place, header);
            }
            self.position += step as u64;
            if let Some((file, end)) = &mut self.dirty
                && *file == place.file
                && remains
            {
                *end = self.position.min(place.len);
            }
        }
        true
    }

    /// Whether nothing but zeros stands where the search began and behind it in that file, and no
    /// block anywhere.
    pub(super) fn found_nothing(&self) -> bool {
        let clean = self.dirty.is_none_or(|(_, end)| end == self.began);
        clean && self.marks.is_empty()
    }

    fn note(&mut self, place: Place, header: BlockHeader) {
        let end = self.position + header.padded_len() as u64;
        if header.block >= self.from {
            self.marks.push(Mark {
                file: place.file,
                position: self.position,
                header,
                distance: self.passed + end - self.origin,
            });
        } else if header.block.next() == self.from {
            self.before = Some((header, end));
        }
    }

    fn next_file(&mut self) {
        self.places.pop_front();
        self.passed = self.marks.last().map_or(0, |mark| mark.distance);
        self.origin = SEGMENT_HEADER as u64;
        self.position = self.origin;
    }
}

/// The header at the start of `bytes`, if it is a sound one of a block of this log that can be.
pub(super) fn sound_header(bytes: &[u8], log: LogId) -> Option<BlockHeader> {
    let header = block::read_header(bytes).ok()?;
    (header.log == log && header.padded_len() as u64 <= WRITE_WINDOW).then_some(header)
}
