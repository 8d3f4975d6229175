//! What a log knows of its blocks without asking the disk. All of it is rebuilt from block headers.
//!
//! The tail (what the next block chains to), the facts of the newest `HELD_BLOCKS` blocks, the
//! first block of each of the last `EPOCHS_HELD` epochs, spots (positions from which a walk over
//! headers finds any block, at most about 1 MiB of file away once the region was walked), cursors
//! (where loads ended, so that the next one walks over nothing), and how late the records of a
//! segment are. Read `loads.rs` next.

use super::output::{Common, Held};
use crate::limits::{EPOCHS_HELD, HELD_BLOCKS};
use crate::types::{BlockNo, Epoch, Offset, Tick};
use crate::wire::block::BlockHeader;
use crate::wire::checkpoint::LogStart;
use crate::wire::segment::SegmentHeader;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a segment file between two spots at least.
const SPOT_BYTES: u64 = 1 << 20;

/// Places where loads ended that are remembered: the next load of each link and of many readers
/// goes on there.
const CURSORS: usize = 64;

/// What the next block of a log continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) next: BlockNo,
    pub(super) end_offset: Offset,
    pub(super) epoch: Epoch,
    pub(super) crc: u32,
    pub(super) tick: Tick,
}

impl Tail {
    pub(super) fn at_start(start: &LogStart) -> Tail {
        Tail {
            next: start.block,
            end_offset: start.offset,
            epoch: start.prev_epoch,
            crc: start.prev_crc,
            tick: Tick(0),
        }
    }

    /// What the first block of a segment continues.
    pub(super) fn before(segment: &SegmentHeader) -> Tail {
        Tail {
            next: segment.base_block,
            end_offset: segment.base_offset,
            epoch: segment.prev_epoch,
            crc: segment.prev_crc,
            tick: Tick(0),
        }
    }

    pub(super) fn behind(header: &BlockHeader) -> Tail {
        Tail {
            next: header.block.next(),
            end_offset: header.end_offset,
            epoch: header.epoch,
            crc: header.header_crc,
            tick: header.last_tick,
        }
    }

    /// Whether `header` is the block that comes next. Header epochs never fall along a chain.
    pub(super) fn continued_by(&self, header: &BlockHeader) -> bool {
        header.block == self.next
            && header.prev_header_crc == self.crc
            && header.base_offset == self.end_offset
            && header.epoch >= self.epoch
    }
}

/// A known block boundary in a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) block: BlockNo,
    pub(super) segment: BlockNo,
    pub(super) position: u64,
    pub(super) base_offset: Offset,
}

/// The index of one log.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    pub(super) start: LogStart,
    pub(super) tail: Tail,
    held: VecDeque<Held>,
    /// Where each epoch begins: its first block that is kept, and the offset there.
    epochs: VecDeque<(Epoch, BlockNo, Offset)>,
    spots: BTreeMap<BlockNo, Spot>,
    /// Where loads ended, newest last, with the CRC of the header before.
    cursors: VecDeque<(Spot, u32)>,
    /// By the first block of a segment: no record in it is later than this. Only where every block
    /// of the segment was seen.
    latest: BTreeMap<BlockNo, u64>,
    blind: Vec<Blind>,
}

/// Damaged blocks among which an epoch begins, nobody knows where.
#[derive(Clone, Copy, Debug)]
struct Blind {
    from: BlockNo,
    end: BlockNo,
    /// Of the first record in them.
    base_offset: Offset,
}

impl Blind {
    fn has(&self, block: BlockNo) -> bool {
        self.from <= block && block < self.end
    }
}

impl Index {
    pub(super) fn new(start: LogStart) -> Index {
        Index {
            start,
            tail: Tail::at_start(&start),
            ..Index::default()
        }
    }

    /// Takes in the next block, which lies at `position` of the segment whose first block is
    /// `segment`.
    pub(super) fn push(&mut self, header: &BlockHeader, segment: BlockNo, position: u64) {
        assert_eq!(header.block, self.tail.next, "blocks come in order");
        self.note_epoch(header);
        if header.block == segment {
            self.latest.insert(segment, header.max_timestamp);
        } else if let Some(latest) = self.latest.get_mut(&segment) {
            *latest = header.max_timestamp.max(*latest);
        }
        self.note_spot(Spot {
            block: header.block,
            segment,
            position,
            base_offset: header.base_offset,
        });
        if self.held.len() == HELD_BLOCKS {
            self.held.pop_front();
        }
        self.held.push_back(Held {
            epoch: header.epoch,
            header_crc: header.header_crc,
            used_len: header.used_len,
            base_offset: header.base_offset,
            end_offset: header.end_offset,
            position,
            last_tick: header.last_tick,
        });
        self.tail = Tail::behind(header);
    }

    /// Sets where blocks will continue without having seen those before: a trusted part ends here.
    pub(super) fn skip_to(&mut self, tail: Tail) {
        assert!(self.held.is_empty(), "a log is trusted from its start on");
        self.tail = tail;
    }

    /// Recovery goes on behind damaged blocks, at `tail`: of what lies before, memory knows no
    /// headers, nor how late their records are. If they may hold the beginning of an epoch it is
    /// not known which.
    pub(super) fn skip_damage(&mut self, from: BlockNo, tail: Tail) {
        self.held.clear();
        let base_offset = self.tail.end_offset;
        let segment = self.latest.range(..=from).next_back();
        let segment = segment.map_or(from, |(base, _)| *base);
        self.latest
            .retain(|base, _| *base < segment || *base >= tail.next);
        self.tail = tail;
        self.note_blind((from, base_offset), tail.next, tail.epoch);
    }

    /// The blocks of a range, whose first record is the one at the offset, are damaged; the epoch
    /// of the last of them, or of the block behind, is `behind`. One that was not seen before
    /// begins among them, or among others that are damaged.
    pub(super) fn note_blind(
        &mut self,
        (from, base_offset): (BlockNo, Offset),
        end: BlockNo,
        behind: Epoch,
    ) {
        let blind = Blind {
            from,
            end,
            base_offset,
        };
        let before = self.epochs.back().map(|(epoch, ..)| *epoch);
        let is_known = before.unwrap_or(self.start.prev_epoch) == behind;
        self.blind.extend((!is_known).then_some(blind));
    }

    /// Whether the epoch of a block is not known because of damage.
    pub(super) fn is_hidden(&self, block: BlockNo) -> bool {
        self.blind.iter().any(|blind| blind.has(block)) && self.epoch_of(block).is_none()
    }

    /// A damaged block was repaired, or one that seemed so was read: what it says of epochs is
    /// known now.
    pub(super) fn learn(&mut self, header: &BlockHeader) {
        if let Some(at) = self.blind.iter().position(|blind| blind.has(header.block)) {
            let blind = self.blind.swap_remove(at);
            let before = Blind {
                end: header.block,
                ..blind
            };
            let behind = Blind {
                from: header.block.next(),
                base_offset: header.end_offset,
                ..blind
            };
            let parts = [before, behind].into_iter();
            self.blind.extend(parts.filter(|part| part.from < part.end));
        }
        let at = self
            .epochs
            .partition_point(|(epoch, ..)| *epoch < header.epoch);
        let room = self.epochs.len() < EPOCHS_HELD;
        match self.epochs.get_mut(at) {
            Some((epoch, first, base)) if *epoch == header.epoch => {
                *base = header.base_offset.min(*base);
                *first = header.block.min(*first);
            }
            _ if room => {
                let begin = (header.epoch, header.block, header.base_offset);
                self.epochs.insert(at, begin);
            }
            _ => {}
        }
        let hides = self.blind.iter().filter(|blind| self.begins_in(blind));
        self.blind = hides.copied().collect();
    }

    /// Whether an epoch begins among these blocks, as far as is known.
    fn begins_in(&self, blind: &Blind) -> bool {
        let before = blind.from.previous().and_then(|block| self.epoch_of(block));
        let behind = match blind.end >= self.tail.next {
            true => Some(self.tail.epoch),
            false => self.epoch_of(blind.end),
        };
        before.is_none() || before != behind
    }

    /// A block of the log, in the order of blocks: it may begin an epoch.
    pub(super) fn note_epoch(&mut self, header: &BlockHeader) {
        if self
            .epochs
            .back()
            .is_some_and(|last| last.0 == header.epoch)
        {
            return;
        }
        if self.epochs.len() == EPOCHS_HELD {
            self.epochs.pop_front();
        }
        let begin = (header.epoch, header.block, header.base_offset);
        self.epochs.push_back(begin);
    }

    pub(super) fn note_spot(&mut self, spot: Spot) {
        let before = self.spots.range(..=spot.block).next_back();
        let near = before.is_some_and(|(_, known)| {
            known.segment == spot.segment && spot.position < known.position + SPOT_BYTES
        });
        if !near {
            self.spots.insert(spot.block, spot);
        }
    }

    /// A load ended before the block at this spot, behind the block with this CRC.
    pub(super) fn note_cursor(&mut self, spot: Spot, prev_crc: u32) {
        self.cursors.retain(|(known, _)| known.block != spot.block);
        if self.cursors.len() == CURSORS {
            self.cursors.pop_front();
        }
        self.cursors.push_back((spot, prev_crc));
    }

    /// The last place where a load ended among those that `fits` says are not too far.
    pub(super) fn cursor(&self, fits: impl Fn(&Spot) -> bool) -> Option<(Spot, u32)> {
        let found = self.cursors.iter().filter(|(spot, _)| fits(spot));
        found.max_by_key(|(spot, _)| spot.block).copied()
    }

    /// Whether a segment may hold a record as late as this.
    pub(super) fn may_be_as_late(&self, segment: BlockNo, timestamp: u64) -> bool {
        let latest = self.latest.get(&segment);
        latest.is_none_or(|latest| *latest >= timestamp)
    }

    /// Every block of a segment was seen: no record in it is later than this.
    pub(super) fn note_latest(&mut self, segment: BlockNo, latest: u64) {
        self.latest.insert(segment, latest);
    }

    fn first_held(&self) -> BlockNo {
        BlockNo(self.tail.next.0 - self.held.len() as u64)
    }

    pub(super) fn held(&self, block: BlockNo) -> Option<&Held> {
        let at = block.0.checked_sub(self.first_held().0)?;
        self.held.get(usize::try_from(at).ok()?)
    }

    /// The held block that has the record at `offset`.
    pub(super) fn held_at(&self, offset: Offset) -> Option<BlockNo> {
        let first = self.held.front()?;
        if offset < first.base_offset || offset >= self.tail.end_offset {
            return None;
        }
        let at = self.held.partition_point(|held| held.end_offset <= offset);
        Some(BlockNo(self.first_held().0 + at as u64))
    }

    /// The nearest known boundary at or below a block.
    pub(super) fn spot_of(&self, block: BlockNo) -> Option<Spot> {
        self.spots
            .range(..=block)
            .next_back()
            .map(|(_, spot)| *spot)
    }

    /// The nearest known boundary from which the record at `offset` is found.
    pub(super) fn spot_at(&self, offset: Offset) -> Option<Spot> {
        // Offsets never fall along blocks, so the last spot that does not pass the offset is it.
        let (mut low, mut high) = (self.start.block.0, self.tail.next.0);
        let mut best = None;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.spot_of(BlockNo(middle)) {
                Some(spot) if spot.base_offset > offset => high = spot.block.0.max(low),
                found => {
                    best = found.or(best);
                    low = middle + 1;
                }
            }
        }
        best
    }

    pub(super) fn epoch_of(&self, block: BlockNo) -> Option<Epoch> {
        if block >= self.tail.next {
            return None;
        }
        if let Some(held) = self.held(block) {
            return Some(held.epoch);
        }
        if block.next() == self.tail.next {
            return Some(self.tail.epoch);
        }
        if self.blind.iter().any(|blind| blind.has(block)) {
            return None;
        }
        if block < self.start.block {
            let before = block.next() == self.start.block;
            return before.then_some(self.start.prev_epoch);
        }
        let at = self.epochs.partition_point(|(_, first, _)| *first <= block);
        at.checked_sub(1).map(|at| self.epochs[at].0)
    }

    pub(super) fn first_of_epoch(&self, epoch: Epoch) -> Option<BlockNo> {
        let at = self
            .epochs
            .binary_search_by_key(&epoch, |(known, ..)| *known);
        at.ok().map(|at| self.epochs[at].1)
    }

    /// Epoch of the record at an offset below the log end; none if it is older than the epochs
    /// remembered.
    fn epoch_at(&self, offset: Offset) -> Option<Epoch> {
        let at = self.epochs.partition_point(|(.., base)| *base <= offset);
        at.checked_sub(1).map(|at| self.epochs[at].0)
    }

    /// The lowest and the highest epoch that the record at an offset below the log end can be of:
    /// they are one, but for records among damaged blocks in which an epoch begins.
    fn epochs_at(&self, offset: Offset) -> Option<(Epoch, Epoch)> {
        let hidden = self.blind.iter().find_map(|blind| {
            let &Blind { from, end, .. } = blind;
            let at = self.epochs.partition_point(|(_, first, _)| *first <= end);
            // The first block behind them that is known begins an epoch, as far as is known.
            let (most, ends) = match at.checked_sub(1).map(|at| self.epochs[at]) {
                Some((epoch, first, base)) if first > from => (epoch, base),
                _ if end >= self.tail.next => (self.tail.epoch, self.tail.end_offset),
                _ => return None,
            };
            let least = from.previous().and_then(|before| self.epoch_of(before));
            let least = least.unwrap_or_default().max(Epoch(1));
            let hides = blind.base_offset <= offset && offset < ends;
            hides.then_some((least, most.max(least)))
        });
        hidden.or_else(|| self.epoch_at(offset).map(|epoch| (epoch, epoch)))
    }

    /// See `Log::common`; `end` is the offset behind the open block.
    pub(super) fn common(&self, epoch: Epoch, offset: Offset, end: Offset) -> Common {
        let start = self.start.offset;
        if epoch == Epoch(0) || offset <= start {
            // Nothing is kept below the start: there is nothing to compare.
            return Common::Same;
        }
        let last = Offset(offset.0 - 1);
        if last < end {
            match self.epochs_at(last) {
                Some((least, most)) if least == epoch && most == epoch => return Common::Same,
                Some((least, most)) if (least..=most).contains(&epoch) => return Common::Behind,
                _ => {}
            }
        }
        let newest = self.tail.epoch;
        if epoch > newest || epoch == newest && offset > end {
            return Common::Behind;
        }
        // Up to the end of the newest epoch that both can have written.
        let both = self.epochs.partition_point(|(known, ..)| *known <= epoch);
        let behind = self.epochs.get(both).map_or(end, |(.., base)| *base);
        let known = if both == 0 { start } else { behind };
        let common = known.min(last).max(start);
        let before = common.0.checked_sub(1).filter(|_| common > start);
        match before.and_then(|last| self.epochs_at(Offset(last))) {
            Some((least, most)) if least < most => Common::Behind,
            epoch => Common::Parted(common, epoch.map_or(Epoch(0), |(epoch, _)| epoch)),
        }
    }

    pub(super) fn end_offset_of(&self, block_end: BlockNo) -> Option<Offset> {
        if block_end == self.tail.next {
            return Some(self.tail.end_offset);
        }
        if block_end == self.start.block {
            return Some(self.start.offset);
        }
        // The block behind it tells as well: recovery holds nothing below where its scan began.
        if let Some(behind) = self.held(block_end) {
            return Some(behind.base_offset);
        }
        Some(self.held(block_end.previous()?)?.end_offset)
    }

    /// What a block at `from` would continue, as far as memory knows.
    pub(super) fn tail_before(&self, from: BlockNo) -> Option<Tail> {
        if from == self.start.block {
            return Some(Tail::at_start(&self.start));
        }
        let held = self.held(from.previous()?)?;
        Some(Tail {
            next: from,
            end_offset: held.end_offset,
            epoch: held.epoch,
            crc: held.header_crc,
            tick: held.last_tick,
        })
    }

    /// Forgets every block from `tail.next` on.
    pub(super) fn cut(&mut self, tail: Tail) {
        let kept = tail.next.0.saturating_sub(self.first_held().0);
        self.held
            .truncate(usize::try_from(kept).unwrap_or(usize::MAX));
        self.spots.split_off(&tail.next);
        self.blind.retain(|blind| blind.from < tail.next);
        for blind in &mut self.blind {
            blind.end = blind.end.min(tail.next);
        }
        // What is known of a segment that was cut is still a bound.
        self.latest.split_off(&tail.next);
        self.cursors.retain(|(spot, _)| spot.block < tail.next);
        while self.epochs.back().is_some_and(|last| last.1 >= tail.next) {
            self.epochs.pop_back();
        }
        self.tail = tail;
    }

    /// Forgets every block below a new start.
    pub(super) fn trim(&mut self, start: LogStart) {
        while self.first_held() < start.block && !self.held.is_empty() {
            self.held.pop_front();
        }
        self.spots = self.spots.split_off(&start.block);
        self.blind.retain(|blind| blind.end > start.block);
        self.latest = self.latest.split_off(&start.block);
        self.cursors.retain(|(spot, _)| spot.block >= start.block);
        while self.epochs.len() > 1 && self.epochs[1].1 <= start.block {
            self.epochs.pop_front();
        }
        if let Some(first) = self.epochs.front_mut() {
            first.1 = first.1.max(start.block);
            first.2 = first.2.max(start.offset);
        }
        self.start = start;
    }
}
