//! Reads of blocks that are not in memory any more, and the search by time.
//!
//! A load starts at the nearest known block boundary (where the last one of its link or reader
//! ended, if it reads on) and walks headers from there, piece by piece,
//! to the blocks it wants. Every block it passes must be the next one of this log, chain to the one
//! before it and, where memory knows it, have the known CRC; the blocks it brings are checked
//! whole. So a read never brings what was not written there. It reads only what is durable. Read
//! `log.rs` next.

use super::holes::Holes;
use super::ids::{Ids, Purpose};
use super::index::{Index, Spot};
use super::op::{DiskError, DiskOp};
use super::output::{Loaded, Output, ReadError};
use super::search::sound_header;
use super::segments::Segments;
use crate::buffers::Buffers;
use crate::limits::{DISK_ALIGNMENT, LOADS_AT_ONCE, SEGMENT_HEADER};
use crate::types::{BlockNo, BufferId, FileId, LogId, Offset, padded};
use crate::wire::batch::client_half;
use crate::wire::block::{self, BlockHeader};
use std::collections::{BTreeMap, VecDeque};

/// Bytes read for a single block whose length is not known.
const UNKNOWN_BLOCK: usize = 64 << 10;

/// What a load wants.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal {
    Block(BlockNo),
    Offset(Offset),
    /// The first batch with a record as late as this.
    Time(u64),
}

#[derive(Debug)]
pub(super) struct Job {
    request: u64,
    goal: Goal,
    end: BlockNo,
    max_bytes: usize,
    /// The next block to look at and where it is; none before the first read.
    at: Option<Spot>,
    prev_crc: Option<u32>,
    /// The latest record of the segment under way, if the walk saw all of it so far.
    latest: Option<u64>,
    buffer: Option<(BufferId, usize)>,
    /// Bytes to read at least.
    need: usize,
    read_from: u64,
    in_flight: bool,
    /// The file of the read in flight.
    file: FileId,
}

/// What a piece of file came to.
enum Walked {
    /// More has to be read.
    More,
    Blocks(Vec<(BlockHeader, usize)>),
    Found(Option<Offset>),
    NotHeld,
    Corrupt,
    /// A block wanted is known to be damaged.
    Damaged(BlockNo),
}

/// What a walk looks things up in.
pub(super) struct Context<'a> {
    pub(super) log: LogId,
    pub(super) index: &'a mut Index,
    pub(super) segments: &'a Segments,
    pub(super) holes: &'a Holes,
    pub(super) outputs: &'a mut VecDeque<Output>,
}

/// The loads of one log.
#[derive(Debug, Default)]
pub(super) struct Loads {
    last: u64,
    jobs: BTreeMap<u64, Job>,
}

impl Loads {
    /// Asks for blocks below `end`, which is durable.
    pub(super) fn push(&mut self, request: u64, goal: Goal, end: BlockNo, max_bytes: usize) {
        self.last += 1;
        let job = Job {
            request,
            goal,
            end,
            max_bytes,
            at: None,
            prev_crc: None,
            latest: None,
            buffer: None,
            need: DISK_ALIGNMENT,
            read_from: 0,
            in_flight: false,
            file: FileId(0),
        };
        self.jobs.insert(self.last, job);
    }

    pub(super) fn is_reading(&self) -> bool {
        self.jobs.values().any(|job| job.in_flight)
    }

    /// Whether a read of this file is in flight.
    pub(super) fn is_reading_of(&self, file: FileId) -> bool {
        let mut jobs = self.jobs.values();
        jobs.any(|job| job.in_flight && job.file == file)
    }

    /// Whether nothing waits or is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The next read, of `piece` bytes at least.
    pub(super) fn poll(
        &mut self,
        piece: usize,
        ids: &mut Ids,
        buffers: &mut dyn Buffers,
        context: &mut Context<'_>,
    ) -> Option<(DiskOp, Purpose)> {
        let mut gone = Vec::new();
        let mut found = None;
        let oldest = self.jobs.iter_mut().take(LOADS_AT_ONCE);
        for (id, job) in oldest.filter(|(_, job)| !job.in_flight) {
            match job.read(piece, ids, buffers, context) {
                Ok(Some(op)) => {
                    found = Some((op, Purpose::Load(*id)));
                    break;
                }
                Ok(None) => {}
                Err(error) => gone.push((*id, error)),
            }
        }
        for (id, error) in gone {
            self.finish_failed(id, error, context.outputs);
        }
        found
    }

    /// A read ended.
    pub(super) fn on_read(
        &mut self,
        id: u64,
        result: Result<usize, DiskError>,
        buffers: &mut dyn Buffers,
        context: &mut Context<'_>,
    ) {
        let job = self.jobs.get_mut(&id).expect("its read was in flight");
        job.in_flight = false;
        let count = match result {
            Ok(count) => count,
            Err(error) => return self.finish_failed(id, ReadError::Disk(error), context.outputs),
        };
        let (buffer, _) = job.buffer.expect("held while it was read");
        match job.walk(&buffers.bytes(buffer)[..count], context) {
            Walked::More => {}
            Walked::Corrupt => {
                let error = job.corrupt(&buffers.bytes(buffer)[..count], context.index);
                self.finish_failed(id, error, context.outputs);
            }
            Walked::Damaged(block) => {
                self.finish_failed(id, ReadError::Damaged(block), context.outputs);
            }
            Walked::NotHeld => self.finish_failed(id, ReadError::NotHeld, context.outputs),
            Walked::Blocks(blocks) => {
                if let (Some(at), Some(crc)) = (job.at, job.prev_crc) {
                    context.index.note_cursor(at, crc);
                }
                let result = Ok(Loaded { buffer, blocks });
                let request = job.request;
                self.jobs.remove(&id);
                context
                    .outputs
                    .push_back(Output::Loaded { request, result });
            }
            Walked::Found(offset) => {
                let request = job.request;
                self.jobs.remove(&id);
                let result = Ok(offset);
                context.outputs.push_back(Output::Release(buffer));
                context.outputs.push_back(Output::Found { request, result });
            }
        }
    }

    fn finish_failed(&mut self, id: u64, error: ReadError, outputs: &mut VecDeque<Output>) {
        let job = self.jobs.remove(&id).expect("it is there");
        outputs.extend(job.buffer.map(|(buffer, _)| Output::Release(buffer)));
        let request = job.request;
        outputs.push_back(match job.goal {
            Goal::Block(_) | Goal::Offset(_) => Output::Loaded {
                request,
                result: Err(error),
            },
            Goal::Time(_) => Output::Found {
                request,
                result: Err(error),
            },
        });
    }

    /// Blocks went away: walks under way begin anew.
    pub(super) fn begin_anew(&mut self) {
        for job in self.jobs.values_mut() {
            assert!(!job.in_flight, "a cut waits for reads");
            job.at = None;
            job.prev_crc = None;
            job.latest = None;
        }
    }

    /// Ends every load: the log closes.
    pub(super) fn close(&mut self, outputs: &mut VecDeque<Output>) {
        while let Some(id) = self.jobs.keys().next().copied() {
            self.finish_failed(id, ReadError::NotHeld, outputs);
        }
    }
}

impl Job {
    /// The nearest known boundary at or before what is wanted.
    fn start(&mut self, index: &Index, segments: &Segments) -> Option<Spot> {
        let held = match self.goal {
            Goal::Block(block) => Some(block),
            Goal::Offset(offset) => index.held_at(offset),
            Goal::Time(_) => None,
        };
        if let Some((block, held)) = held.and_then(|block| Some((block, index.held(block)?))) {
            return Some(Spot {
                block,
                segment: segments.of(block)?.base(),
                position: held.position,
                base_offset: held.base_offset,
            });
        }
        let spot = match self.goal {
            Goal::Block(block) if block < index.start.block => None,
            Goal::Block(block) => index.spot_of(block),
            Goal::Offset(offset) => index.spot_at(offset),
            Goal::Time(_) => return self.skip_early(index.start.block, index, segments),
        };
        // Where damage stood when the log was recovered no spot is known.
        let base = match self.goal {
            Goal::Block(block) => segments.of(block),
            Goal::Offset(offset) => {
                let mut all = segments.iter();
                let below = all
                    .by_ref()
                    .take_while(|one| one.header.base_offset <= offset);
                below.last()
            }
            Goal::Time(_) => None,
        };
        let spot = match (spot, base) {
            (spot, Some(one)) if spot.is_none_or(|spot| spot.block < one.base()) => Some(Spot {
                block: one.base(),
                segment: one.base(),
                position: SEGMENT_HEADER as u64,
                base_offset: one.header.base_offset,
            }),
            (spot, _) => spot,
        };
        let cursor = index.cursor(|spot| match self.goal {
            Goal::Block(block) => spot.block <= block,
            Goal::Offset(offset) => spot.base_offset <= offset,
            Goal::Time(_) => false,
        });
        match cursor {
            Some((cursor, crc)) if spot.is_none_or(|spot| spot.block < cursor.block) => {
                self.prev_crc = Some(crc);
                Some(cursor)
            }
            _ => spot,
        }
    }

    /// The start of the first segment from the one that begins with `from` on that may hold a
    /// record as late as is wanted, below the end of the search: what lies behind it may have no
    /// file yet.
    fn skip_early(&mut self, from: BlockNo, index: &Index, segments: &Segments) -> Option<Spot> {
        let Goal::Time(time) = self.goal else {
            return None;
        };
        let mut later = segments.iter().skip_while(|one| one.base() < from);
        let found = later
            .find(|one| index.may_be_as_late(one.base(), time))
            .filter(|one| one.base() < self.end)?;
        if found.base() != from {
            self.prev_crc = None;
        }
        self.latest = Some(0);
        Some(Spot {
            block: found.base(),
            segment: found.base(),
            position: SEGMENT_HEADER as u64,
            base_offset: found.header.base_offset,
        })
    }

    fn read(
        &mut self,
        piece: usize,
        ids: &mut Ids,
        buffers: &mut dyn Buffers,
        context: &mut Context<'_>,
    ) -> Result<Option<DiskOp>, ReadError> {
        if self.at.is_none() {
            self.at = self.start(context.index, context.segments);
        }
        let at = self.at.ok_or(ReadError::NotHeld)?;
        let is_held = at.block >= context.index.start.block && at.block < context.index.tail.next;
        let segment = context.segments.starting_at(at.segment);
        let segment = segment.filter(|_| is_held).ok_or(ReadError::NotHeld)?;
        let piece = self.piece(&at, piece, context.index);
        let rest = usize::try_from(segment.len.saturating_sub(at.position)).unwrap_or(usize::MAX);
        let len = padded(self.need.max(piece.min(rest)));
        if let Some((buffer, _)) = self.buffer.filter(|(_, capacity)| *capacity < len) {
            context.outputs.push_back(Output::Release(buffer));
            self.buffer = None;
        }
        if self.buffer.is_none() {
            let Some(buffer) = buffers.take(len) else {
                return Ok(None);
            };
            self.buffer = Some((buffer, buffers.bytes(buffer).len()));
        }
        let (buffer, _) = self.buffer.expect("just taken");
        self.in_flight = true;
        self.read_from = at.position;
        self.file = segment.file.expect("what is durable has a file");
        Ok(Some(DiskOp::Read {
            ticket: ids.ticket(),
            file: self.file,
            position: at.position,
            buffer,
            len,
        }))
    }

    /// Bytes to read from `at` on: no more than is wanted if the first block wanted begins there.
    fn piece(&self, at: &Spot, most: usize, index: &Index) -> usize {
        let begins = match self.goal {
            Goal::Block(block) => at.block == block,
            Goal::Offset(offset) => {
                at.base_offset == offset || index.held_at(offset) == Some(at.block)
            }
            Goal::Time(_) => false,
        };
        if !begins {
            return most;
        }
        let known = index.held(at.block).map(|held| held.padded_len());
        let first = known.unwrap_or(UNKNOWN_BLOCK);
        padded(self.max_bytes.max(first)).min(most.max(first))
    }

    fn walk(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Walked {
        let mut blocks: Vec<(BlockHeader, usize)> = Vec::new();
        let mut taken = 0;
        loop {
            let spot = self.at.expect("set by the read");
            if spot.block >= self.end {
                return self.at_end(blocks);
            }
            let rolled = context.segments.starting_at(spot.block);
            if let Some(next) = rolled.filter(|next| next.base() != spot.segment) {
                if !blocks.is_empty() {
                    return Walked::Blocks(blocks);
                }
                return self.roll(&spot, next.base(), context);
            }
            if context.holes.at(spot.block).is_some() {
                if !blocks.is_empty() {
                    return Walked::Blocks(blocks);
                }
                return self.pass_damage(&spot, context);
            }
            let at = (spot.position - self.read_from) as usize;
            let rest = bytes.get(at..).unwrap_or_default();
            if rest.len() < DISK_ALIGNMENT {
                return self.run_out(blocks, at, DISK_ALIGNMENT);
            }
            let Some(header) = self.expected(rest, spot.block, context) else {
                return Walked::Corrupt;
            };
            let padded = header.padded_len();
            if self.wants(&header) {
                if !blocks.is_empty() && taken + padded > self.max_bytes {
                    return Walked::Blocks(blocks);
                }
                if rest.len() < padded {
                    return self.run_out(blocks, at, padded);
                }
                if block::check_batches(rest, &header).is_err()
                    || block::check_padding(rest, &header).is_err()
                {
                    return Walked::Corrupt;
                }
                match self.goal {
                    Goal::Time(time) => {
                        if let Some(offset) = first_as_late(rest, &header, time) {
                            return Walked::Found(Some(offset));
                        }
                    }
                    Goal::Block(_) | Goal::Offset(_) => {
                        taken += padded;
                        blocks.push((header, at));
                    }
                }
            }
            context.index.note_spot(Spot {
                base_offset: header.base_offset,
                ..spot
            });
            self.latest = self.latest.map(|latest| latest.max(header.max_timestamp));
            self.prev_crc = Some(header.header_crc);
            self.at = Some(Spot {
                block: header.block.next(),
                segment: spot.segment,
                position: spot.position + padded as u64,
                base_offset: header.end_offset,
            });
        }
    }

    /// Damage begins at `spot`: what is not wanted of it is passed by.
    fn pass_damage(&mut self, spot: &Spot, context: &Context<'_>) -> Walked {
        let hole = context.holes.at(spot.block).expect("just seen");
        let wants = match self.goal {
            Goal::Block(block) => block < hole.end,
            Goal::Offset(offset) => offset < hole.end_offset,
            // What is in there may be as late as is wanted.
            Goal::Time(_) => true,
        };
        if wants {
            return Walked::Damaged(spot.block);
        }
        self.prev_crc = Some(hole.behind);
        self.at = Some(Spot {
            block: hole.end,
            segment: spot.segment,
            position: hole.limit,
            base_offset: hole.end_offset,
        });
        if let Some(next) = context.segments.starting_at(hole.end) {
            self.at = Some(Spot {
                block: hole.end,
                segment: next.base(),
                position: SEGMENT_HEADER as u64,
                base_offset: hole.end_offset,
            });
        }
        Walked::More
    }

    /// The walk leaves the segment at `spot` for the one that begins with `next`.
    fn roll(&mut self, spot: &Spot, next: BlockNo, context: &mut Context<'_>) -> Walked {
        let Goal::Time(_) = self.goal else {
            self.at = Some(Spot {
                segment: next,
                position: SEGMENT_HEADER as u64,
                ..*spot
            });
            return Walked::More;
        };
        if let Some(latest) = self.latest.take() {
            context.index.note_latest(spot.segment, latest);
        }
        match self.skip_early(next, context.index, context.segments) {
            None => Walked::Found(None),
            found => {
                self.at = found;
                Walked::More
            }
        }
    }

    fn at_end(&self, blocks: Vec<(BlockHeader, usize)>) -> Walked {
        match self.goal {
            Goal::Time(_) => Walked::Found(None),
            Goal::Block(_) | Goal::Offset(_) if blocks.is_empty() => Walked::NotHeld,
            Goal::Block(_) | Goal::Offset(_) => Walked::Blocks(blocks),
        }
    }

    /// The piece ends before `need` bytes from `at` on. A whole piece that is too short is no
    /// block.
    fn run_out(&mut self, blocks: Vec<(BlockHeader, usize)>, at: usize, need: usize) -> Walked {
        if !blocks.is_empty() {
            return Walked::Blocks(blocks);
        }
        if at == 0 && self.need >= need {
            return Walked::Corrupt;
        }
        self.need = need;
        Walked::More
    }

    fn expected(&self, bytes: &[u8], block: BlockNo, context: &Context<'_>) -> Option<BlockHeader> {
        let header = sound_header(bytes, context.log)?;
        let known = context.index.held(block).map(|held| held.header_crc);
        let same = header.block == block
            && known.is_none_or(|crc| crc == header.header_crc)
            && self
                .prev_crc
                .is_none_or(|crc| crc == header.prev_header_crc);
        same.then_some(header)
    }

    fn wants(&self, header: &BlockHeader) -> bool {
        match self.goal {
            Goal::Block(block) => header.block >= block,
            Goal::Offset(offset) => header.end_offset > offset,
            Goal::Time(time) => header.record_count > 0 && header.max_timestamp >= time,
        }
    }

    fn corrupt(&self, bytes: &[u8], index: &Index) -> ReadError {
        let at = self.at.expect("set by the read");
        let rest = bytes.get((at.position - self.read_from) as usize..);
        let page = rest.unwrap_or_default().iter().take(DISK_ALIGNMENT);
        if at.block < index.start.block || at.block >= index.tail.next {
            return ReadError::NotHeld;
        }
        ReadError::Corrupt {
            file: at.segment,
            position: at.position,
            block: at.block,
            blank: page.copied().all(|byte| byte == 0),
        }
    }
}

/// Offset of the first batch that has a record as late as `time`. Before it no batch has one, so
/// its largest time is the running maximum.
fn first_as_late(bytes: &[u8], header: &BlockHeader, time: u64) -> Option<Offset> {
    block::batches(bytes, header)
        .into_iter()
        .find(|(at, prefix)| {
            prefix.record_count > 0 && client_half(&bytes[*at..]).max_timestamp >= time
        })
        .map(|(_, prefix)| prefix.base_offset)
}
