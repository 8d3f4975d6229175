//! From recovery's findings to a log in service.
//!
//! The order: a save of the checkpoint as it was read; the cut of a torn tail and of files that
//! go; a sync of every file that was scanned; the name of an adopted `next.seg`; a sync of the
//! directory; the first save, which clears the mark of a clean stop and raises `scan_from` to the
//! end. Only then the end counts as durable and the log is open. A blank log is open at once and
//! waits for `create`.

use super::cut::Cut;
use super::holes::Holes;
use super::ids::Purpose;
use super::log::Log;
use super::op::DiskOp;
use super::output::{Output, Recovered, RecoveredMemory, SaveId, State};
use super::recovery::{Flow, Outcome, Ready, Skipped};
use super::retention::Age;
use super::saver::Saver;
use super::segments::{Segment, Segments};
use super::writer::Writer;
use crate::buffers::Buffers;
use crate::faults::{self, Fault};
use crate::limits::SEGMENT_HEADER;
use crate::types::{BlockNo, BufferId, FileId};
use crate::wire::segment::{self, SegmentHeader};
use std::collections::VecDeque;

/// What is still to be done before the log is in service.
#[derive(Debug)]
pub(super) struct Starting {
    recovered: Recovered,
    steps: VecDeque<Step>,
    in_flight: bool,
    save: Option<SaveId>,
    /// The header that is being written.
    header: Option<BufferId>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Header(FileId, SegmentHeader),
    Name(FileId, BlockNo),
    Sync(FileId),
    SyncDirectory,
}

impl Log {
    pub(super) fn start_op(&mut self, buffers: &mut dyn Buffers) -> Option<(DiskOp, Purpose)> {
        if let Some(recovery) = &mut self.recovery {
            let flow = recovery.poll(&mut self.ids, buffers);
            self.outputs
                .extend(recovery.release(false).map(Output::Release));
            match flow {
                Flow::Op(op) => return Some((op, Purpose::Recover)),
                Flow::Wait => return None,
                Flow::Done(outcome) => self.install(outcome),
            }
        }
        if self.state != State::Recovering {
            return None;
        }
        if self.cut.is_some() {
            let op = self.cut_op(buffers);
            if op.is_some() || self.cut.is_some() {
                return op;
            }
        }
        if let Some(op) = self.save_op(buffers) {
            return Some(op);
        }
        let starting = self.starting.as_mut().expect("recovery is over");
        if starting.in_flight {
            return None;
        }
        if let Some(step) = starting.steps.pop_front() {
            if let Step::Header(file, header) = step {
                return self.header_step(file, &header, buffers);
            }
            starting.in_flight = true;
            let ticket = self.ids.ticket();
            let op = match step {
                Step::Header(..) => unreachable!("just taken"),
                Step::Name(file, base) => DiskOp::Name { ticket, file, base },
                Step::Sync(file) => DiskOp::Sync { ticket, file },
                Step::SyncDirectory => DiskOp::SyncDirectory { ticket },
            };
            return Some((op, Purpose::Settle));
        }
        self.first_save(buffers)
    }

    /// Writes a segment's header that was damaged; the step comes again while there is no buffer.
    fn header_step(
        &mut self,
        file: FileId,
        header: &SegmentHeader,
        buffers: &mut dyn Buffers,
    ) -> Option<(DiskOp, Purpose)> {
        let starting = self.starting.as_mut().expect("recovery is over");
        let Some(buffer) = buffers.take(SEGMENT_HEADER) else {
            starting.steps.push_front(Step::Header(file, *header));
            return None;
        };
        segment::write(buffers.bytes_mut(buffer), header);
        starting.in_flight = true;
        starting.header = Some(buffer);
        let op = DiskOp::Write {
            ticket: self.ids.ticket(),
            file,
            position: 0,
            buffer,
            start: 0,
            len: SEGMENT_HEADER,
        };
        Some((op, Purpose::Settle))
    }

    fn first_save(&mut self, buffers: &mut dyn Buffers) -> Option<(DiskOp, Purpose)> {
        let starting = self.starting.as_mut().expect("recovery is over");
        if starting.recovered.memory != RecoveredMemory::Blank {
            let Some(id) = starting.save else {
                let checkpoint = &mut self.saver.checkpoint;
                checkpoint.clean = false;
                checkpoint.boot_id = self.config.boot_id;
                checkpoint.scan_from = starting.recovered.log_end;
                checkpoint.high_watermark = starting.recovered.high_watermark;
                let faulty = self.holes.ranges();
                checkpoint.faulty = faulty.iter().map(|(range, _)| *range).collect();
                let id = self.saver.want();
                starting.save = Some(id);
                self.created = Some(id);
                return self.save_op(buffers);
            };
            if !self.saver.is_saved(id) {
                return None;
            }
        }
        self.state = State::Open;
        let starting = self.starting.take().expect("just seen");
        self.outputs
            .push_back(Output::Recovered(starting.recovered));
        self.serve_op(buffers)
    }

    pub(super) fn on_settled(&mut self) {
        let starting = self.starting.as_mut().expect("it asked for it");
        starting.in_flight = false;
        let written = starting.header.take();
        self.outputs.extend(written.map(Output::Release));
    }

    fn install(&mut self, outcome: Outcome) {
        if let Some(mut recovery) = self.recovery.take() {
            let held: Vec<_> = core::iter::from_fn(|| recovery.release(true)).collect();
            self.outputs.extend(held.into_iter().map(Output::Release));
        }
        let ready = match outcome {
            Outcome::Ready(ready) => *ready,
            Outcome::Refused(refusal) => {
                self.state = State::Refused;
                self.outputs.push_back(Output::Refused(refusal));
                return;
            }
        };
        self.install_ready(ready);
    }

    fn install_ready(&mut self, ready: Ready) {
        let tail = ready.index.tail;
        let from = tail.next;
        let mut steps = VecDeque::new();
        let skipped = ready.skipped;
        let rewritten = rewritten(&skipped);
        let headers = skipped.headers.into_iter();
        steps.extend(headers.map(|(file, header)| Step::Header(file, header)));
        let known = ready.checkpoint.faulty.iter().copied();
        let known = known.filter(|(first, _)| self.config.repairs && *first < from);
        let known = known.map(|(first, end)| (first, end.min(from)));
        let known: Vec<_> = known.collect();
        // A repair may have been under way when the process died: what a reader sees of it counts
        // once it is durable.
        for (one, next) in pairs_of(&ready.segments) {
            let end = next.unwrap_or(from);
            let overlaps = |range: &(BlockNo, BlockNo)| range.0 < end && one.base() < range.1;
            if known.iter().any(overlaps) {
                steps.extend(one.file.map(Step::Sync));
            }
        }
        let faulty = known.into_iter().chain(skipped.faulty);
        let faulty = faulty.filter(|(_, end)| *end > ready.index.start.block);
        self.holes = Holes::new(faulty.collect(), skipped.missing, self.quiet_since);
        // Sync before name: a file whose header may still be lost must not get its name.
        let syncs = ready.syncs.into_iter();
        let syncs = syncs.filter(|_| !faults::active(Fault::SkipSync));
        steps.extend(syncs.map(Step::Sync));
        steps.extend(ready.name.map(|(file, base)| Step::Name(file, base)));
        if ready.memory != RecoveredMemory::Blank {
            steps.push_back(Step::SyncDirectory);
        }
        self.starting = Some(Starting {
            recovered: Recovered {
                memory: ready.memory,
                torn: ready.torn,
                log_start: ready.index.start,
                log_end: from,
                end_offset: tail.end_offset,
                last_epoch: tail.epoch,
                last_tick: tail.tick,
                promised: ready.checkpoint.promised,
                vote: ready.checkpoint.vote,
                high_watermark: ready.checkpoint.high_watermark.min(from),
                damage: skipped.damage,
                rewritten,
            },
            steps,
            in_flight: false,
            save: None,
            header: None,
        });
        if !ready.marks.is_empty() || !ready.frees.is_empty() || ready.sweep.is_some() {
            let cut = Cut::of(from, ready.marks, ready.frees, ready.sweep);
            self.cut = Some(Box::new(cut));
        }
        self.committed = ready.checkpoint.high_watermark.min(from);
        self.saver = Saver::new(ready.checkpoint, ready.first_copy);
        if self.cut.is_some() && ready.memory != RecoveredMemory::Blank {
            // What was read may be in one copy only, or in the device's cache. What it authorises
            // is done once both copies hold it.
            self.saver.want();
        }
        self.segments = Segments::new(ready.segments, self.config.segment_bytes);
        self.look_at_unlocated();
        self.writer = Writer::new(self.config.write_depth, from, tail.end_offset);
        self.age = Age::new(self.quiet_since, tail.tick);
        self.index = ready.index;
        if !faults::active(Fault::ForgetProducers) {
            self.producers = ready.producers;
        }
    }
}

/// Each segment with the first block of the one behind it.
fn pairs_of(segments: &VecDeque<Segment>) -> impl Iterator<Item = (&Segment, Option<BlockNo>)> {
    let nexts = segments.iter().skip(1).map(|next| Some(next.base()));
    segments.iter().zip(nexts.chain([None]))
}

/// What is written anew, for operators. Both copies of the checkpoint are by the first save.
fn rewritten(skipped: &Skipped) -> Vec<String> {
    let headers = skipped.headers.iter();
    let headers =
        headers.map(|(_, one)| format!("the header of {}", segment::file_name(one.base_block)));
    let copy = skipped.copy.map(|at| {
        format!("both copies of the checkpoint: the one at {at} was damaged, or cut off by a crash")
    });
    headers.chain(copy).collect()
}
