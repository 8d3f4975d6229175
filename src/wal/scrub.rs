//! The scrub: reads every durable, committed block of the log again, at a pace, and what damage it
//! or a load meets becomes a hole with its place.
//!
//! One read is in flight, only while nothing else wants the disk, and after each the scrub rests as
//! long as the pace says. A pass goes through the segments in order and ends with both copies of
//! the checkpoint; a segment in which damage is suspected is looked at before, without a rest. A
//! segment's header and a checkpoint's copy are written anew from memory, which knows them; blocks
//! come from another node (`mend.rs`). A log that no other node holds is never scrubbed. Read
//! `inspect.rs` for what is looked at.

use super::holes::{Hole, Range};
use super::ids::{Ids, Purpose};
use super::inspect::{Anchor, Inspection};
use super::log::Log;
use super::op::{CHECKPOINT_FILE, DiskOp};
use super::output::{Damage, Health, Output, ScrubReport, State};
use super::reader::Reader;
use super::saver::Saver;
use super::search::Place;
use crate::buffers::Buffers;
use crate::limits::{CHECKPOINT_COPY, SEGMENT_HEADER};
use crate::types::{BlockNo, BufferId, FileId, Time};
use crate::wire::checkpoint::{self, MAX_FAULTY};
use crate::wire::segment;
use std::collections::BTreeSet;

/// What the scrub reads at the moment.
#[derive(Debug)]
enum Target {
    None,
    Segment(Box<Inspection>),
    /// Both copies, as long as this is their number.
    Checkpoint(u64),
    /// A segment's header is written anew.
    Header(FileId, Option<BufferId>, BlockNo),
}

/// The scrub of one log.
#[derive(Debug)]
pub(super) struct Scrub {
    target: Target,
    reader: Reader,
    in_flight: bool,
    /// Segments to be looked at before anything else.
    urgent: BTreeSet<BlockNo>,
    /// The pass under way: what it came to so far, and the next block.
    pass: Option<(ScrubReport, BlockNo)>,
    pub(super) last: Option<ScrubReport>,
    clock: Time,
    rest_until: Time,
    /// When the next pass begins by itself.
    next_at: Time,
}

impl Scrub {
    pub(super) fn new(now: Time, interval_us: u64) -> Scrub {
        Scrub {
            target: Target::None,
            reader: Reader::default(),
            in_flight: false,
            urgent: BTreeSet::new(),
            pass: None,
            last: None,
            clock: now,
            rest_until: now,
            next_at: now.plus_us(interval_us),
        }
    }

    /// Whether an operation is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight
    }

    pub(super) fn is_reading_of(&self, file: FileId) -> bool {
        self.in_flight
            && match &self.target {
                Target::None => false,
                Target::Segment(inspection) => inspection.file() == file,
                Target::Checkpoint(_) => file == CHECKPOINT_FILE,
                Target::Header(written, ..) => *written == file,
            }
    }

    pub(super) fn look_at(&mut self, segment: BlockNo) {
        self.urgent.insert(segment);
    }

    pub(super) fn note_time(&mut self, now: Time) {
        self.clock = self.clock.max(now);
    }

    /// What the present pass came to so far.
    pub(super) fn progress(&self) -> Option<ScrubReport> {
        self.pass.map(|(report, _)| report)
    }

    /// Blocks went away: what was being looked at may be another segment now.
    pub(super) fn begin_anew(&mut self) {
        if let Target::Segment(inspection) = &self.target {
            self.urgent.insert(inspection.header.base_block);
        }
        if !matches!(self.target, Target::Header(..)) {
            self.target = Target::None;
        }
    }

    /// Buffers, for a log that closes.
    pub(super) fn release(&mut self) -> Option<BufferId> {
        if let Target::Header(_, buffer, _) = &mut self.target
            && buffer.is_some()
        {
            return buffer.take();
        }
        self.reader.release()
    }

    fn wants(&self) -> bool {
        !matches!(self.target, Target::None) || self.pass.is_some() || !self.urgent.is_empty()
    }

    fn issue(&mut self, ids: &mut Ids, buffers: &mut dyn Buffers) -> Option<DiskOp> {
        let op = self.reader.poll(ids, buffers)?;
        self.in_flight = true;
        Some(op)
    }
}

impl Log {
    /// Begins a pass now, whatever the interval says; nothing if one is under way or nobody else
    /// holds the log. Whether one is under way.
    pub fn scrub(&mut self, now: Time) -> bool {
        if !self.config.repairs || self.state != State::Open || self.created.is_none() {
            return false;
        }
        self.scrub.note_time(now);
        if self.scrub.pass.is_none() {
            let report = ScrubReport {
                began: now,
                ..ScrubReport::default()
            };
            self.scrub.pass = Some((report, self.index.start.block));
            self.scrub.rest_until = now;
        }
        true
    }

    /// When the scrub wants to go on.
    pub(super) fn scrub_timeout(&self) -> Option<Time> {
        let paced = self.config.scrub_bytes_per_s > 0;
        if !self.config.repairs || self.scrub.in_flight {
            return None;
        }
        match self.scrub.wants() {
            true => Some(self.scrub.rest_until).filter(|at| *at > self.scrub.clock),
            false => paced.then_some(self.scrub.next_at),
        }
    }

    pub(super) fn scrub_on_time(&mut self, now: Time) {
        self.scrub.note_time(now);
        let paced = self.config.scrub_bytes_per_s > 0;
        if paced && now >= self.scrub.next_at && self.scrub.pass.is_none() {
            self.scrub.next_at = now.plus_us(self.config.scrub_interval_us);
            self.scrub(now);
        }
    }

    /// The next read, or a write of what memory knows.
    pub(super) fn scrub_op(&mut self, buffers: &mut dyn Buffers) -> Option<(DiskOp, Purpose)> {
        if self.scrub.in_flight || self.state != State::Open {
            return None;
        }
        loop {
            if let Some(buffer) = self.scrub.reader.outgrown() {
                self.outputs.push_back(Output::Release(buffer));
            }
            if matches!(self.scrub.target, Target::None) && !self.next_target() {
                let left = core::iter::from_fn(|| self.scrub.reader.release());
                self.outputs.extend(left.map(Output::Release));
                return None;
            }
            match &mut self.scrub.target {
                Target::None => {}
                Target::Segment(inspection) => {
                    let base = inspection.header.base_block;
                    let file = self.segments.starting_at(base).and_then(|one| one.file);
                    if file != Some(inspection.file()) {
                        // Trimmed meanwhile.
                        self.scrub.target = Target::None;
                        continue;
                    }
                    let rests = self.scrub.rest_until > self.scrub.clock;
                    if rests && !self.scrub.urgent.contains(&base) {
                        return None;
                    }
                    let reader = &mut self.scrub.reader;
                    if inspection.run(reader, buffers, &self.index) {
                        self.inspected();
                        continue;
                    }
                    let op = self.scrub.issue(&mut self.ids, buffers)?;
                    return Some((op, Purpose::Scrub));
                }
                Target::Checkpoint(sequence) => {
                    if self.saver.sequence_at_rest() != Some(*sequence) {
                        // Both copies were written anew, or are being written.
                        self.end_pass();
                        continue;
                    }
                    let len = 2 * CHECKPOINT_COPY;
                    if self.scrub.reader.covers_just(CHECKPOINT_FILE, 0, len) {
                        self.compare_checkpoint(buffers);
                        continue;
                    }
                    let op = self.scrub.issue(&mut self.ids, buffers)?;
                    return Some((op, Purpose::Scrub));
                }
                Target::Header(..) => return self.header_op(buffers),
            }
        }
    }

    /// A cut that waits for a repair waits for what is known of the damage too.
    pub(super) fn scrub_for_cut(&mut self, buffers: &mut dyn Buffers) -> Option<(DiskOp, Purpose)> {
        match self.waits_for_repair() {
            true => self.scrub_op(buffers),
            false => None,
        }
    }

    /// Chooses what to look at next; false if there is nothing.
    fn next_target(&mut self) -> bool {
        // What was read before may have changed.
        self.scrub.reader.forget();
        while let Some(base) = self.scrub.urgent.first().copied() {
            if self.begin_inspection(base) {
                return true;
            }
            self.scrub.urgent.remove(&base);
        }
        let Some((_, next)) = self.scrub.pass else {
            return false;
        };
        let found = self.segments.iter().find(|one| one.base() >= next);
        if let Some(base) = found.map(|one| one.base())
            && self.begin_inspection(base)
        {
            return true;
        }
        match self.saver.sequence_at_rest() {
            Some(sequence) => self.scrub.target = Target::Checkpoint(sequence),
            None => self.end_pass(),
        }
        true
    }

    /// Begins to look at a segment, as far as its blocks are committed or it is suspected.
    fn begin_inspection(&mut self, base: BlockNo) -> bool {
        let Some(at) = self.segments.index_of(base) else {
            return false;
        };
        let mut all = self.segments.iter().skip(at);
        let (Some(one), behind) = (all.next(), all.next()) else {
            return false;
        };
        let (Some(file), true) = (one.file, one.named && one.base() == base) else {
            return false;
        };
        let urgent = self.scrub.urgent.contains(&base);
        let most = match urgent {
            true => self.writer.durable_end,
            false => self.known_committed(),
        };
        let tail = &self.index.tail;
        let anchor = match behind {
            Some(next) if next.base() <= most => Some(Anchor {
                end: next.base(),
                crc: next.header.prev_crc,
                offset: next.header.base_offset,
            }),
            _ if most == tail.next => Some(Anchor {
                end: most,
                crc: tail.crc,
                offset: tail.end_offset,
            }),
            _ => self.index.tail_before(most).map(|tail| Anchor {
                end: most,
                crc: tail.crc,
                offset: tail.end_offset,
            }),
        };
        let Some(anchor) = anchor.filter(|anchor| anchor.end > base) else {
            return false;
        };
        let place = Place { file, len: one.len };
        let (log, now) = (self.config.log, self.scrub.clock);
        let inspection = Inspection::new(log, one.header, place, anchor, now);
        self.scrub.target = Target::Segment(Box::new(inspection));
        true
    }

    /// A segment was looked at.
    fn inspected(&mut self) {
        let Target::Segment(inspection) = core::mem::replace(&mut self.scrub.target, Target::None)
        else {
            unreachable!("only a segment is inspected");
        };
        let base = inspection.header.base_block;
        self.scrub.urgent.remove(&base);
        let end = inspection.anchor.end;
        if let Some((_, next)) = &mut self.scrub.pass {
            let due = self.segments.iter().find(|one| one.base() >= *next);
            if due.is_some_and(|one| one.base() == base) {
                *next = end;
            }
        }
        if inspection.is_head_damaged {
            self.scrub.target = Target::Header(inspection.file(), None, base);
        }
        let learned = inspection.learned.iter();
        learned.for_each(|header| self.index.learn(header));
        let news = self.holes.inspected(base, end, inspection.holes);
        for hole in &news {
            self.say_damage(hole);
        }
        let found = news.len() as u64 + u64::from(inspection.is_head_damaged);
        if let Some((report, _)) = &mut self.scrub.pass {
            report.found += found;
        }
        self.note_holes();
    }

    fn say_damage(&mut self, hole: &Hole) {
        self.outputs
            .push_back(Output::Health(Health::Damaged(Damage {
                file: segment::file_name(hole.segment),
                position: hole.position,
                from: hole.from(),
                end: hole.end,
            })));
    }

    /// A read or write of the scrub ended.
    pub(super) fn on_scrubbed(&mut self, count: usize, buffers: &mut dyn Buffers) {
        self.scrub.in_flight = false;
        if let Target::Header(_, buffer, base) = &mut self.scrub.target {
            let (buffer, base) = (buffer.take(), *base);
            self.outputs.extend(buffer.map(Output::Release));
            let what = format!("the header of {}", segment::file_name(base));
            self.outputs
                .push_back(Output::Health(Health::Rewritten(what)));
            // It is read back.
            self.scrub.target = Target::None;
            self.scrub.urgent.insert(base);
            return;
        }
        self.scrub.reader.on_read(count, buffers);
        let rate = self.config.scrub_bytes_per_s;
        if let Some((report, _)) = &mut self.scrub.pass {
            report.bytes += count as u64;
        }
        if let Some(us) = (count as u64 * 1_000_000).checked_div(rate) {
            self.scrub.rest_until = self.scrub.clock.plus_us(us);
        }
    }

    fn header_op(&mut self, buffers: &mut dyn Buffers) -> Option<(DiskOp, Purpose)> {
        let Target::Header(file, held, base) = &mut self.scrub.target else {
            unreachable!("just seen");
        };
        let one = self.segments.starting_at(*base);
        let Some(one) = one.filter(|one| one.file == Some(*file)) else {
            self.scrub.target = Target::None;
            return None;
        };
        let buffer = buffers.take(SEGMENT_HEADER)?;
        segment::write(buffers.bytes_mut(buffer), &one.header);
        *held = Some(buffer);
        let op = DiskOp::Write {
            ticket: self.ids.ticket(),
            file: *file,
            position: 0,
            buffer,
            start: 0,
            len: SEGMENT_HEADER,
        };
        self.scrub.in_flight = true;
        Some((op, Purpose::Rewrite))
    }

    /// Both copies of the checkpoint against each other and the number of the last save.
    fn compare_checkpoint(&mut self, buffers: &dyn Buffers) {
        let bytes = self.scrub.reader.bytes(0, buffers);
        let copies = [0, CHECKPOINT_COPY].map(|at| checkpoint::read(&bytes[at..]));
        let sequence = self.saver.checkpoint.sequence;
        let rotten = copies.iter().position(|copy| {
            let copy = copy.as_ref();
            copy.is_none_or(|copy| copy.sequence != sequence || copy.log != self.config.log)
        });
        if let Some(at) = rotten {
            self.saver.want();
            let what = format!(
                "both copies of the checkpoint: the one at {} was damaged",
                at * CHECKPOINT_COPY
            );
            self.outputs
                .push_back(Output::Health(Health::Rewritten(what)));
            if let Some((report, _)) = &mut self.scrub.pass {
                report.found += 1;
            }
        }
        self.end_pass();
    }

    fn end_pass(&mut self) {
        self.scrub.target = Target::None;
        if let Some((mut report, _)) = self.scrub.pass.take() {
            report.ended = self.scrub.clock;
            self.scrub.last = Some(report);
            self.outputs
                .push_back(Output::Health(Health::Scrubbed(report)));
        }
    }

    /// A load met damage at this block: it is noted at once, and looked into.
    pub fn suspect(&mut self, block: BlockNo) {
        let here = block >= self.index.start.block && block < self.writer.durable_end;
        if self.state != State::Open || !here {
            return;
        }
        let Some(segment) = self.segments.of(block).map(|one| one.base()) else {
            return;
        };
        self.scrub.look_at(segment);
        if self.holes.suspect(block, self.scrub.clock) {
            self.note_holes();
        }
    }

    /// The damage of which no more is known than its blocks is looked into.
    pub(super) fn look_at_unlocated(&mut self) {
        for (from, end) in self.holes.unlocated() {
            let first = self.segments.index_of(from).unwrap_or_default();
            let all = self.segments.iter().skip(first);
            for one in all.take_while(|one| one.base() < end) {
                self.scrub.look_at(one.base());
            }
        }
    }

    /// The durable end moved: what recovery found missing at the end may be back.
    pub(super) fn note_came_back(&mut self) {
        if let Some((from, end)) = self.holes.came_back(self.writer.durable_end) {
            self.outputs
                .push_back(Output::Health(Health::Repaired { from, end }));
            self.note_holes();
        }
    }

    /// The checkpoint takes up what is known to be damaged. What is newly found is in both copies
    /// before anything else counts as durable.
    pub(super) fn note_holes(&mut self) {
        let ranges: Vec<Range> = self
            .holes
            .ranges()
            .iter()
            .map(|(range, _)| *range)
            .collect();
        if ranges == self.saver.checkpoint.faulty {
            return;
        }
        if ranges.len() > MAX_FAULTY {
            let text = format!(
                "more than {MAX_FAULTY} ranges of blocks are damaged: the device cannot be \
                 trusted; mend: {}",
                super::op::DEVICE_MEND
            );
            return self.latch(text);
        }
        let known = &self.saver.checkpoint.faulty;
        let covered = |range: &Range| {
            known
                .iter()
                .any(|(from, end)| *from <= range.0 && range.1 <= *end)
        };
        let is_news = !ranges.iter().all(covered);
        self.saver.checkpoint.faulty = ranges;
        if self.cut.is_none() {
            self.set_hints();
        }
        let id = self.saver.want();
        if is_news {
            self.guard = Some(id);
        }
    }

    /// Whether damage was found that is not in the checkpoint yet: nothing becomes durable before.
    pub(super) fn is_guarded(&self) -> bool {
        self.guard.is_some_and(|id| !self.saver.is_saved(id))
    }

    /// Blocks that this node holds durably and sound as far as it knows: what it may vouch for.
    /// Damage below `committed` does not count against it: others vouch for those blocks.
    pub fn sound_end(&self, committed: BlockNo) -> BlockNo {
        if self.holes.is_empty() {
            return self.writer.durable_end;
        }
        let ranges = self.holes.ranges();
        let mut above = ranges.iter().filter(|((_, end), _)| *end > committed);
        let first = above.next().map(|((from, _), _)| (*from).max(committed));
        let end = self.writer.durable_end;
        first.map_or(end, |first| end.min(first))
    }

    /// The first block behind `committed` that is damaged, once that is certain: a range that was
    /// not looked at may hold sound blocks, and so may one that begins with committed ones, as
    /// blocks between two damaged ones are proven by the first of them alone.
    pub fn damaged_from(&self, committed: BlockNo) -> Option<BlockNo> {
        let mut holes = self.holes.iter();
        let spans = holes.any(|hole| hole.from() < committed && committed < hole.end);
        let is_news = spans || self.holes.unlocated().any(|(_, end)| end > committed);
        let from = self.sound_end(committed);
        (!is_news && from < self.writer.durable_end).then_some(from)
    }

    /// Ranges of damaged blocks, first and end, with the time when each was found.
    pub fn faulty(&self) -> Vec<(Range, Time)> {
        self.holes.ranges()
    }

    /// The pass under way, and the last one that ended.
    pub fn scrubs(&self) -> [Option<ScrubReport>; 2] {
        [self.scrub.progress(), self.scrub.last]
    }
}

impl Saver {
    /// The number of the last save, if none is wanted or under way.
    pub(super) fn sequence_at_rest(&self) -> Option<u64> {
        self.is_at_rest().then_some(self.checkpoint.sequence)
    }
}
