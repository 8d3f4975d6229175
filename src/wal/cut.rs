//! The one routine that takes a suffix of the log away, be it a torn tail or a truncation.
//!
//! In this order: writes, rolls and reads in flight end; the blocks to go are found on the disk;
//! the table of producers is rebuilt as it stood before them; the checkpoint's `scan_from` (and its
//! hint of the high watermark) is lowered and saved; the first 4096 bytes of every block to go are
//! zeroed, the last one first; what is left of them in the file that stays is zeroed; files that
//! hold nothing else are freed, the last one first. So a crash at any moment leaves a shorter
//! suffix of the same blocks and never a hole before a block that is still sound; and behind the
//! end of a log that was cut there are zeros, so that a torn tail is found, and reported, once. A
//! log that begins anew is cut so at its new start; then the start is saved, and what is left goes
//! like trimmed files. Recovery starts where `scan_from` is lowered. It never decides what goes:
//! see `log.rs` and `recovery.rs`.

use super::ids::{Ids, Purpose};
use super::op::DiskOp;
use super::output::SaveId;
use super::producers::Producers;
use super::reader::Reader;
use super::rebuild::{Rebuild, Rebuilt};
use super::saver::Saver;
use super::search::Search;
use crate::buffers::Buffers;
use crate::faults::{self, Fault};
use crate::limits::DISK_ALIGNMENT;
use crate::types::{BlockNo, BufferId, FileId};
use crate::wire::block::BlockHeader;
use crate::wire::checkpoint::LogStart;
use std::collections::VecDeque;

#[derive(Debug)]
enum Stage {
    Drain,
    Search(Box<Search>),
    Rebuild(Box<Rebuild>),
    Lower(Option<SaveId>),
    Erase,
    Sweep,
    Free,
}

/// Bytes zeroed by one write of a sweep.
const SWEEP_BYTES: u64 = 256 << 10;

/// What a cut leaves in the last file that stays: positions from the new end on, to be zeroed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    file: FileId,
    from: u64,
    to: u64,
}

impl Sweep {
    /// From the `end` of the log to where the file that was searched first holds zeros only. None
    /// if it does so already, or goes as a whole.
    pub(super) fn behind(end: u64, search: &Search, frees: &[FileId]) -> Option<Sweep> {
        let (file, to) = search.dirty?;
        let from = end;
        (!frees.contains(&file) && to > from).then_some(Sweep { file, from, to })
    }

    fn step(&self) -> usize {
        (self.to - self.from).min(SWEEP_BYTES) as usize
    }
}

/// What a cut wants next.
pub(super) enum CutFlow {
    Op(DiskOp, Purpose),
    /// Waits for an operation, a save or a buffer.
    Wait,
    /// The search found what is to go: tell the files to free with [`Cut::found`].
    Found(Box<Search>),
    Done,
    /// A block before the cut is not sound.
    Damaged(BlockNo),
}

/// A cut under way.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) from: BlockNo,
    /// The last block that stays and the position behind it, if the search came by it.
    pub(super) before: Option<(BlockHeader, u64)>,
    /// The table of producers as it will be.
    pub(super) producers: Option<Producers>,
    /// Where the log begins anew once the cut is done, if it does.
    pub(super) anew: Option<LogStart>,
    started_anew: Option<SaveId>,
    stage: Stage,
    reader: Reader,
    marks: VecDeque<(FileId, u64)>,
    frees: Vec<FileId>,
    sweep: Option<Sweep>,
    zeros: Option<BufferId>,
    in_flight: bool,
}

impl Cut {
    /// A cut of everything from `from` on that first waits for what is in flight.
    pub(super) fn new(from: BlockNo) -> Cut {
        Cut {
            from,
            before: None,
            producers: None,
            anew: None,
            started_anew: None,
            stage: Stage::Drain,
            reader: Reader::default(),
            marks: VecDeque::new(),
            frees: Vec::new(),
            sweep: None,
            zeros: None,
            in_flight: false,
        }
    }

    /// A cut of known places and files, both ascending.
    pub(super) fn of(
        from: BlockNo,
        marks: Vec<(FileId, u64)>,
        frees: Vec<FileId>,
        sweep: Option<Sweep>,
    ) -> Cut {
        let mut cut = Cut::new(from);
        cut.found(marks, frees, sweep, None);
        cut
    }

    pub(super) fn is_draining(&self) -> bool {
        matches!(self.stage, Stage::Drain)
    }

    /// Nothing is in flight any more: finds what is to go.
    pub(super) fn search(&mut self, search: Search) {
        self.stage = Stage::Search(Box::new(search));
    }

    pub(super) fn found(
        &mut self,
        marks: Vec<(FileId, u64)>,
        frees: Vec<FileId>,
        sweep: Option<Sweep>,
        rebuild: Option<Rebuild>,
    ) {
        self.marks = marks.into();
        self.frees = frees;
        self.sweep = sweep;
        self.stage = match rebuild {
            Some(rebuild) => Stage::Rebuild(Box::new(rebuild)),
            None => Stage::Lower(None),
        };
    }

    pub(super) fn poll(
        &mut self,
        ids: &mut Ids,
        saver: &mut Saver,
        buffers: &mut dyn Buffers,
    ) -> CutFlow {
        if self.in_flight {
            return CutFlow::Wait;
        }
        match (self.step(ids, saver, buffers), self.anew) {
            (CutFlow::Done, Some(start)) => self.start_anew(start, saver),
            (flow, _) => flow,
        }
    }

    /// Saves where the log begins anew.
    fn start_anew(&mut self, start: LogStart, saver: &mut Saver) -> CutFlow {
        let id = *self.started_anew.get_or_insert_with(|| {
            let checkpoint = &mut saver.checkpoint;
            checkpoint.log_start = start;
            checkpoint.scan_from = start.block;
            checkpoint.high_watermark = start.block;
            saver.want()
        });
        match saver.is_saved(id) {
            true => CutFlow::Done,
            false => CutFlow::Wait,
        }
    }

    fn step(&mut self, ids: &mut Ids, saver: &mut Saver, buffers: &mut dyn Buffers) -> CutFlow {
        match &mut self.stage {
            Stage::Drain => CutFlow::Wait,
            Stage::Search(search) => {
                if search.run(&mut self.reader, buffers) {
                    let done = core::mem::replace(&mut self.stage, Stage::Drain);
                    let Stage::Search(search) = done else {
                        unreachable!("just matched");
                    };
                    return CutFlow::Found(search);
                }
                match self.reader.poll(ids, buffers) {
                    Some(op) => self.issue(op),
                    None => CutFlow::Wait,
                }
            }
            Stage::Rebuild(rebuild) => {
                match rebuild.run(&mut self.reader, buffers) {
                    Rebuilt::Wait => {}
                    Rebuilt::Damaged(block) => return CutFlow::Damaged(block),
                    Rebuilt::Done(producers) => {
                        self.producers = Some(producers);
                        self.stage = Stage::Lower(None);
                        return self.poll(ids, saver, buffers);
                    }
                }
                match self.reader.poll(ids, buffers) {
                    Some(op) => self.issue(op),
                    None => CutFlow::Wait,
                }
            }
            Stage::Lower(asked) => {
                let id = *asked.get_or_insert_with(|| lower(saver, self.from));
                if !saver.is_saved(id) {
                    return CutFlow::Wait;
                }
                self.stage = Stage::Erase;
                self.erase(ids, buffers)
            }
            Stage::Erase => self.erase(ids, buffers),
            Stage::Sweep => self.sweep(ids, buffers),
            Stage::Free => self.free(ids),
        }
    }

    fn issue(&mut self, op: DiskOp) -> CutFlow {
        self.in_flight = true;
        CutFlow::Op(op, Purpose::Cut)
    }

    fn erase(&mut self, ids: &mut Ids, buffers: &mut dyn Buffers) -> CutFlow {
        if self.marks.is_empty() {
            self.stage = Stage::Sweep;
            return self.sweep(ids, buffers);
        }
        let Some(zeros) = self.zeros(buffers) else {
            return CutFlow::Wait;
        };
        let mark = if faults::active(Fault::EraseFirstFirst) {
            self.marks.pop_front()
        } else {
            self.marks.pop_back()
        };
        let (file, position) = mark.expect("there is one");
        self.issue(DiskOp::Write {
            ticket: ids.ticket(),
            file,
            position,
            buffer: zeros,
            start: 0,
            len: DISK_ALIGNMENT,
        })
    }

    fn sweep(&mut self, ids: &mut Ids, buffers: &mut dyn Buffers) -> CutFlow {
        let Some(mut sweep) = self.sweep.filter(|sweep| sweep.step() > 0) else {
            self.stage = Stage::Free;
            return self.free(ids);
        };
        let Some(zeros) = self.zeros(buffers) else {
            return CutFlow::Wait;
        };
        let op = DiskOp::Write {
            ticket: ids.ticket(),
            file: sweep.file,
            position: sweep.from,
            buffer: zeros,
            start: 0,
            len: sweep.step(),
        };
        sweep.from += sweep.step() as u64;
        self.sweep = Some(sweep);
        self.issue(op)
    }

    /// A buffer of zeros for the longest write of this cut.
    fn zeros(&mut self, buffers: &mut dyn Buffers) -> Option<BufferId> {
        if self.zeros.is_none() {
            let len = self.sweep.map_or(DISK_ALIGNMENT, |sweep| sweep.step());
            let zeros = buffers.take(len)?;
            buffers.bytes_mut(zeros).fill(0);
            self.zeros = Some(zeros);
        }
        self.zeros
    }

    fn free(&mut self, ids: &mut Ids) -> CutFlow {
        match self.frees.pop() {
            Some(file) => {
                let ticket = ids.ticket();
                self.issue(DiskOp::Free { ticket, file })
            }
            None => CutFlow::Done,
        }
    }

    /// An operation ended.
    pub(super) fn on_disk(&mut self, count: usize, buffers: &mut dyn Buffers) {
        self.in_flight = false;
        if let Stage::Search(_) | Stage::Rebuild(_) = self.stage {
            self.reader.on_read(count, buffers);
        }
    }

    /// Buffers that are not needed any more; all of them once it is over.
    pub(super) fn release(&mut self, all: bool) -> Option<BufferId> {
        if all {
            self.zeros.take().or_else(|| self.reader.release())
        } else {
            self.reader.outgrown()
        }
    }
}

/// Lowers what the checkpoint says of blocks that will be gone. What is saved already needs no
/// save.
fn lower(saver: &mut Saver, from: BlockNo) -> SaveId {
    let checkpoint = &mut saver.checkpoint;
    let says_more = checkpoint.scan_from > from || checkpoint.high_watermark > from;
    checkpoint.scan_from = checkpoint.scan_from.min(from);
    checkpoint.high_watermark = checkpoint.high_watermark.min(from);
    let faulty = &mut checkpoint.faulty;
    let says_more = says_more || faulty.last().is_some_and(|(_, end)| *end > from);
    faulty.retain(|(first, _)| *first < from);
    faulty.iter_mut().for_each(|(_, end)| *end = from.min(*end));
    if says_more {
        saver.want()
    } else {
        saver.last_wanted()
    }
}
