//! What a log does around a cut: what goes at once, when the cut may begin, what is left after it.
//!
//! A cut waits for what is in flight, and so for the roll of a block that stays. On a full disk
//! that may take long, so trims go on meanwhile and a stop does not wait; for blocks that go no
//! roll is waited for. Read `cut.rs` for the cut itself.

use super::cut::{Cut, CutFlow, Sweep};
use super::ids::Purpose;
use super::index::{Index, Tail};
use super::log::Log;
use super::op::DiskOp;
use super::open::buffer_len;
use super::output::{CutDone, Output, State};
use super::producers::Producers;
use super::rebuild::Rebuild;
use super::search::{Place, Search};
use crate::buffers::Buffers;
use crate::faults::{self, Fault};
use crate::limits::SEGMENT_HEADER;
use crate::types::{BlockNo, FileId};
use crate::wire::checkpoint::LogStart;
use std::collections::VecDeque;

impl Log {
    /// Takes away every block from `from` on; an open block as well. `CutDone` follows, at once if
    /// there is nothing to take, never if the log is closed.
    pub fn cut(&mut self, from: BlockNo) {
        if !matches!(self.state, State::Open | State::Stopping) {
            return;
        }
        assert!(self.cut.is_none(), "one cut at a time");
        assert!(
            from >= self.index.start.block && from <= self.index.tail.next,
            "a cut at {from} of a log that holds {} to {}",
            self.index.start.block,
            self.index.tail.next
        );
        assert!(
            from >= self.committed || faults::active(Fault::TruncateBelowCommit),
            "a cut at {from}, below the committed end {}",
            self.committed
        );
        self.discard_open();
        if from == self.index.tail.next {
            self.say_cut(0);
        } else {
            self.drop_unwritten(from);
            self.cut = Some(Box::new(self.cut_at(from)));
        }
    }

    /// A cut of all that has a file, which may be nothing.
    fn cut_at(&self, from: BlockNo) -> Cut {
        match self.segments.is_empty() {
            true => Cut::of(from, Vec::new(), Vec::new(), None),
            false => Cut::new(from),
        }
    }

    /// Blocks that go and that the disk was not asked to write need no place any more: no roll is
    /// waited for on their account, for which there may be no space.
    fn drop_unwritten(&mut self, from: BlockNo) {
        self.writer.drop_from(from);
        self.segments.drop_waiting(from);
    }

    /// Whether a cut has not begun to take anything away.
    pub(super) fn cut_waits(&self) -> bool {
        self.cut.as_ref().is_some_and(|cut| cut.is_draining())
    }

    /// A log that stops does not wait for a cut that waits for space or for a repair: it has taken
    /// nothing away, and will be asked for again. Until the stop is done it counts as under way:
    /// blocks that came for the place of those that it takes count on it.
    pub(super) fn gives_up_cut(&self) -> bool {
        let waits = self.is_full() || self.waits_for_repair() || self.clean.is_some();
        let stops = self.state == State::Stopping && self.cut_waits();
        stops && waits && self.writer.in_flight() == 0
    }

    fn say_cut(&mut self, blocks: u64) {
        self.outputs.push_back(Output::CutDone(CutDone {
            log_end: self.index.tail.next,
            end_offset: self.index.tail.end_offset,
            blocks,
        }));
    }

    pub(super) fn cut_op(&mut self, buffers: &mut dyn Buffers) -> Option<(DiskOp, Purpose)> {
        loop {
            let waits = self.cut_waits() && self.waits_for_repair();
            let cut = self.cut.as_mut()?;
            self.outputs.extend(cut.release(false).map(Output::Release));
            let quiet = self.writer.is_idle()
                && self.segments.is_quiet()
                && !self.loads.is_reading()
                && !self.scrub.is_busy()
                && self.mend.is_none()
                && !waits
                && !self.trim_in_flight;
            if cut.is_draining() && quiet {
                let from = cut.from;
                let search = self.search_from(from);
                self.cut.as_mut()?.search(search);
                continue;
            }
            match cut.poll(&mut self.ids, &mut self.saver, buffers) {
                CutFlow::Op(op, purpose) => return Some((op, purpose)),
                CutFlow::Wait => return self.save_op(buffers),
                CutFlow::Found(search) => self.found_cut(&search),
                CutFlow::Damaged(block) if self.config.repairs => {
                    self.begin_cut_again(block);
                    return None;
                }
                CutFlow::Damaged(block) => {
                    let text = format!("block {block} before the cut is damaged");
                    self.fail(Purpose::Cut, &text);
                    return None;
                }
                CutFlow::Done => {
                    self.finish_cut();
                    return None;
                }
            }
        }
    }

    /// Whether damage lies before the cut in its segment: the table of producers as it stood at the
    /// cut, or what the log ends with, is not known before that is repaired.
    pub(super) fn waits_for_repair(&self) -> bool {
        let Some(cut) = self.cut.as_ref().filter(|cut| cut.anew.is_none()) else {
            return false;
        };
        if self.index.tail_before(cut.from).is_none() {
            let last = cut.from.previous();
            let ranges = self.holes.ranges();
            let mut ranges = ranges.iter().map(|(range, _)| range);
            let damaged = |last| ranges.any(|(first, end)| *first <= last && last < *end);
            if last.is_some_and(damaged) {
                return true;
            }
        }
        let base = self.segments.of(cut.from).map(|one| one.base());
        let Some(base) = base.filter(|_| !self.producers.is_empty()) else {
            return false;
        };
        let ranges = self.holes.ranges();
        let mut before = ranges.iter().map(|(range, _)| range);
        before.any(|(first, end)| *first < cut.from && *end > base)
    }

    /// A block before the cut is damaged, and nothing was taken away yet: the cut waits for the
    /// repair.
    fn begin_cut_again(&mut self, block: BlockNo) {
        let mut cut = self.cut.take().expect("it read the block");
        let buffers: Vec<_> = core::iter::from_fn(|| cut.release(true)).collect();
        self.outputs
            .extend(buffers.into_iter().map(Output::Release));
        self.cut = Some(Box::new(Cut::new(cut.from)));
        self.suspect(block);
    }

    /// Searches from a block boundary at or before the last block that stays.
    fn search_from(&self, from: BlockNo) -> Search {
        let before = from.previous().filter(|_| from > self.index.start.block);
        let block = before.unwrap_or(from);
        let first = self.segments.index_of(block).expect("the log holds it");
        let held = self.index.held(block).map(|held| held.position);
        let spot = self.index.spot_of(block).map(|spot| spot.position);
        let position = held.or(spot).unwrap_or(SEGMENT_HEADER as u64);
        let places = self.segments.iter().skip(first).map(|one| Place {
            file: one.file.expect("no roll is under way"),
            len: one.end,
        });
        Search::new(self.config.log, from, places.collect(), position)
    }

    fn found_cut(&mut self, search: &Search) {
        let cut = self.cut.as_mut().expect("it searched");
        let marks = search.marks.iter().map(|mark| (mark.file, mark.position));
        let gone = self.segments.iter().filter(|one| one.base() >= cut.from);
        let files: Vec<FileId> = gone.filter_map(|one| one.file).collect();
        let end = search.before.map(|(_, end)| end);
        let sweep = end.and_then(|end| Sweep::behind(end, search, &files));
        let goes_on = cut.anew.is_none() && !self.producers.is_empty();
        let rebuild = goes_on.then(|| {
            let segment = self.segments.of(cut.from).expect("the log holds it");
            let place = Place {
                file: segment.file.expect("no roll is under way"),
                len: segment.end,
            };
            let none = Producers::new(buffer_len(&self.config));
            Rebuild::new(self.config.log, place, segment.base(), cut.from, none)
        });
        cut.found(marks.collect(), files, sweep, rebuild);
        cut.before = search.before;
    }

    fn finish_cut(&mut self) {
        let mut cut = self.cut.take().expect("it is done");
        let buffers: Vec<_> = core::iter::from_fn(|| cut.release(true)).collect();
        self.outputs
            .extend(buffers.into_iter().map(Output::Release));
        if self.state == State::Recovering {
            return;
        }
        if let Some(start) = cut.anew {
            // Files that held nothing but what was cut are gone already.
            self.segments.cut(cut.from, SEGMENT_HEADER as u64);
            return self.begin_anew(start);
        }
        let from = cut.from;
        let held = self.index.tail_before(from);
        let tail = held.or_else(|| cut.before.map(|(header, _)| Tail::behind(&header)));
        let held = from.previous().and_then(|block| self.index.held(block));
        let end = held.map(|held| held.position + held.padded_len() as u64);
        let end = end.or_else(|| cut.before.map(|(_, end)| end));
        let (Some(tail), end) = (tail, end.unwrap_or(SEGMENT_HEADER as u64)) else {
            let text = format!("the block before {from} cannot be read");
            return self.fail(Purpose::Cut, &text);
        };
        let blocks = self.index.tail.next.0 - from.0;
        if let Some(producers) = cut.producers.take()
            && !faults::active(Fault::KeepCutProducers)
        {
            self.producers = producers;
        }
        self.index.cut(tail);
        self.holes.cut(from, Some((tail.crc, tail.end_offset)));
        self.scrub.begin_anew();
        self.segments.cut(from, end);
        self.writer.cut(from, tail.end_offset);
        self.committed = self.committed.min(from);
        self.loads.begin_anew();
        let released = self.recent.cut(from);
        self.outputs
            .extend(released.into_iter().map(Output::Release));
        self.note_holes();
        self.say_cut(blocks);
    }

    /// As follower: everything held goes, and the log begins anew, empty, at `start`, which its
    /// leader's log begins with. The start is saved before the first file goes. `CutDone` follows,
    /// never if the log is closed.
    pub fn reset(&mut self, start: LogStart) {
        if !matches!(self.state, State::Open | State::Stopping) {
            return;
        }
        assert!(self.cut.is_none(), "one cut at a time");
        assert!(
            start.block > self.committed,
            "a log with {} blocks committed does not begin anew at {}",
            self.committed,
            start.block
        );
        self.discard_open();
        // What lies behind the new start would contradict it: it goes first.
        let from = start.block.min(self.index.tail.next);
        self.drop_unwritten(from);
        let mut cut = self.cut_at(from);
        cut.anew = Some(start);
        self.cut = Some(Box::new(cut));
    }

    fn begin_anew(&mut self, start: LogStart) {
        let blocks = self.index.tail.next.0 - self.index.start.block.0;
        let files = self.segments.clear();
        let save = self.saver.last_wanted();
        let (_, going) = self.trims.get_or_insert_with(|| (save, VecDeque::new()));
        going.extend(files);
        self.index = Index::new(start);
        self.producers = Producers::new(buffer_len(&self.config));
        self.writer.cut(start.block, start.offset);
        self.committed = start.block;
        self.loads.begin_anew();
        self.holes.clear();
        self.scrub.begin_anew();
        let released = self.recent.cut(BlockNo(0));
        self.outputs
            .extend(released.into_iter().map(Output::Release));
        self.outputs.push_back(Output::Durable {
            end: start.block,
            offset: start.offset,
        });
        self.note_holes();
        self.say_cut(blocks);
    }
}
