//! Blocks that are damaged here: where they lie, and what proves the bytes that belong there.
//!
//! A *hole* is a run of blocks of one segment whose bytes are not what was written. It is known by
//! an inspection (`inspect.rs`) with its place and with the CRCs of what stands before and behind,
//! so whoever brings blocks that chain to both brings the very bytes. A range of which no more is
//! known than its numbers (from the checkpoint, from recovery, from a load that met damage) waits
//! for that inspection. *Missing* is the end of a log that recovery found damaged with nothing
//! provable behind it: it comes back as any blocks come to a log that is behind. All of them stand
//! in the checkpoint, so that no start takes them for a torn tail.

use super::index::Tail;
use crate::types::{BlockNo, Offset, Time};
use std::collections::BTreeMap;

/// A run of damaged blocks of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) end: BlockNo,
    /// First block of its segment.
    pub(super) segment: BlockNo,
    /// Where its first block begins.
    pub(super) position: u64,
    /// Where the block behind it begins; the end of the file if that is in another one.
    pub(super) limit: u64,
    /// Whether the run ends at `limit`.
    pub(super) is_exact: bool,
    /// What its first block continues.
    pub(super) before: Tail,
    /// CRC of the header of its last block.
    pub(super) behind: u32,
    /// Offset behind its last record.
    pub(super) end_offset: Offset,
    /// When it was found.
    pub(super) since: Time,
}

impl Hole {
    pub(super) fn from(&self) -> BlockNo {
        self.before.next
    }

    /// Whether blocks of so many bytes up to its end, behind which comes what `tail` says, are
    /// those that stood there.
    pub(super) fn ends_with(&self, tail: &Tail, len: usize) -> bool {
        let limit = self.position + len as u64;
        let fits = match self.is_exact {
            true => limit == self.limit,
            false => limit <= self.limit,
        };
        fits && (tail.crc, tail.end_offset) == (self.behind, self.end_offset)
    }
}

/// A range of blocks: first, end.
pub(super) type Range = (BlockNo, BlockNo);

/// All damage that is known of one log.
#[derive(Debug, Default)]
pub(super) struct Holes {
    /// By first block.
    located: BTreeMap<BlockNo, Hole>,
    unlocated: Vec<(Range, Time)>,
    /// What is still missing of the end.
    missing: Option<(Range, Time)>,
    /// Where that began.
    missing_from: BlockNo,
}

impl Holes {
    /// What recovery found. Blocks of `missing` lie at and behind the log end.
    pub(super) fn new(unlocated: Vec<Range>, missing: Option<Range>, now: Time) -> Holes {
        Holes {
            located: BTreeMap::new(),
            unlocated: unlocated.into_iter().map(|range| (range, now)).collect(),
            missing: missing.map(|range| (range, now)),
            missing_from: missing.map_or(BlockNo(0), |(from, _)| from),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.located.is_empty() && self.unlocated.is_empty() && self.missing.is_none()
    }

    /// The hole that has this block.
    pub(super) fn at(&self, block: BlockNo) -> Option<&Hole> {
        let (_, hole) = self.located.range(..=block).next_back()?;
        (block < hole.end).then_some(hole)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Hole> {
        self.located.values()
    }

    pub(super) fn unlocated(&self) -> impl Iterator<Item = Range> {
        self.unlocated.iter().map(|(range, _)| *range)
    }

    /// All ranges, sorted, those that touch made one, with the time when the first was found.
    pub(super) fn ranges(&self) -> Vec<(Range, Time)> {
        let located = self.located.values();
        let located = located.map(|hole| ((hole.from(), hole.end), hole.since));
        let all = located.chain(self.unlocated.iter().copied());
        let mut all: Vec<_> = all.chain(self.missing).collect();
        all.sort_unstable();
        let mut merged: Vec<(Range, Time)> = Vec::with_capacity(all.len());
        for ((from, end), since) in all {
            match merged.last_mut() {
                Some((last, oldest)) if from <= last.1 => {
                    last.1 = last.1.max(end);
                    *oldest = since.min(*oldest);
                }
                _ => merged.push(((from, end), since)),
            }
        }
        merged
    }

    /// A block is damaged, or so it seems. Whether that is news.
    pub(super) fn suspect(&mut self, block: BlockNo, now: Time) -> bool {
        let known = |((from, end), _): &(Range, Time)| *from <= block && block < *end;
        if self.at(block).is_some() || self.unlocated.iter().any(known) {
            return false;
        }
        self.unlocated.push(((block, block.next()), now));
        true
    }

    /// A segment was looked at from its first block up to `end`: these are all holes in there. The
    /// holes of them that are news.
    pub(super) fn inspected(
        &mut self,
        base: BlockNo,
        end: BlockNo,
        mut found: Vec<Hole>,
    ) -> Vec<Hole> {
        let mut news = Vec::new();
        let before = self.ranges();
        for hole in &mut found {
            let overlaps = |range: &Range| range.0 < hole.end && hole.from() < range.1;
            match before.iter().find(|(range, _)| overlaps(range)) {
                Some((_, since)) => hole.since = *since,
                None => news.push(*hole),
            }
        }
        self.located.retain(|from, _| *from < base || *from >= end);
        let ranges = core::mem::take(&mut self.unlocated);
        for ((from, to), since) in ranges {
            let parts = [(from, to.min(base)), (from.max(end), to)];
            let left = parts.into_iter().filter(|(from, to)| from < to);
            self.unlocated.extend(left.map(|range| (range, since)));
        }
        self.located
            .extend(found.into_iter().map(|hole| (hole.from(), hole)));
        news
    }

    /// The first blocks of a hole are sound again: `rest` of it is left, or is to be looked at
    /// `again`.
    pub(super) fn repaired(&mut self, from: BlockNo, rest: Option<Hole>, again: Option<Hole>) {
        self.located.remove(&from);
        self.located.extend(rest.map(|hole| (hole.from(), hole)));
        let again = again.map(|hole| ((hole.from(), hole.end), hole.since));
        self.unlocated.extend(again);
    }

    /// The durable end moved: what of the missing end came back; all of it once it is complete.
    pub(super) fn came_back(&mut self, durable_end: BlockNo) -> Option<Range> {
        let ((from, end), _) = self.missing.as_mut()?;
        *from = durable_end.max(*from);
        let end = *end;
        if durable_end < end {
            return None;
        }
        self.missing = None;
        Some((self.missing_from, end))
    }

    /// Blocks from `from` on are no part of the log any more.
    pub(super) fn cut(&mut self, from: BlockNo, last: Option<(u32, Offset)>) {
        self.missing = None;
        self.located.retain(|first, _| *first < from);
        if let Some(hole) = self.located.values_mut().next_back()
            && hole.end > from
        {
            hole.end = from;
            hole.is_exact = false;
            if let Some((crc, offset)) = last {
                (hole.behind, hole.end_offset) = (crc, offset);
            }
        }
        self.unlocated.retain(|((first, _), _)| *first < from);
        for ((_, end), _) in &mut self.unlocated {
            *end = from.min(*end);
        }
    }

    /// The missing end is not missed any more: the log is as its leader's.
    pub(super) fn forget_missing(&mut self) -> bool {
        self.missing.take().is_some()
    }

    /// Blocks below `start` are gone.
    pub(super) fn trim(&mut self, start: BlockNo) {
        self.located.retain(|first, _| *first >= start);
        self.unlocated.retain(|((_, end), _)| *end > start);
        for ((from, _), _) in &mut self.unlocated {
            *from = start.max(*from);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Holes::default();
    }
}
