//! The write path: batches into the open block, blocks into the log, a prefix out of it.
//!
//! A block is sealed when it is full, when no earlier block of its log is still on its way to the
//! disk, or when its oldest append has waited `batch_timeout` and the disk has a place. So group
//! commit adapts by itself: an idle log writes a block per append, a busy one fills blocks. Nothing
//! here waits: what finds no room is refused and comes again. Read `writer.rs` for what is in
//! flight.

use super::arrange::DAMAGE_MEND;
use super::log::Log;
use super::open::{OpenBlock, Roll, buffer_len};
use super::output::{AppendRefusal, Appended, Output, State};
use super::producers::Sequence;
use super::writer::Job;
use crate::buffers::Buffers;
use crate::types::{BlockNo, BufferId, Epoch, Time};
use crate::wire::batch::{self, ClientHalf};
use crate::wire::block::BlockHeader;
use crate::wire::checkpoint::LogStart;
use crate::wire::producers::KnownBatch;
use crate::wire::segment::SegmentHeader;

impl Log {
    /// As leader: takes the batch in the first `len` bytes of `from` into the open block. The
    /// caller has checked it (`half` is what it found) and keeps its buffer.
    pub fn append(
        &mut self,
        now: Time,
        epoch: Epoch,
        from: BufferId,
        len: usize,
        half: &ClientHalf,
        buffers: &mut dyn Buffers,
    ) -> Result<Appended, AppendRefusal> {
        self.check_open()?;
        assert!(
            len <= self.config.max_batch_bytes,
            "the caller checks a batch's length"
        );
        let config = &self.config;
        let full = |open: &OpenBlock| !open.takes(len, half.record_count, config);
        if self.open.as_ref().is_some_and(full) && !self.seal_open(buffers) {
            return Err(AppendRefusal::Full);
        }
        let (most, records) = (buffer_len(&self.config), half.record_count);
        let mut open = self.take_open(now, epoch, (most, records), buffers)?;
        if !open.takes(len, records, &self.config) {
            // A new one, and the snapshot in it leaves no room: it goes alone.
            self.open = Some(open);
            if !self.seal_open(buffers) {
                return Err(AppendRefusal::Full);
            }
            open = self.take_open(now, epoch, (most, records), buffers)?;
        }
        let (base_offset, tick) = open.add(now, (from, len), half, &self.config, buffers);
        let batch = KnownBatch {
            base_sequence: half.base_sequence,
            record_count: half.record_count,
            client_crc: batch::client_crc(buffers.bytes(from)),
            epoch,
            base_offset,
            block: self.index.tail.next,
        };
        self.producers.accept(half, batch, tick);
        self.open = Some(open);
        Ok(Appended {
            block: self.index.tail.next,
            base_offset,
            tick,
        })
    }

    /// As leader: appends a block of the node's own (epoch start), sealed at once. An open block is
    /// sealed before it.
    pub fn append_local(
        &mut self,
        now: Time,
        epoch: Epoch,
        buffers: &mut dyn Buffers,
    ) -> Result<BlockNo, AppendRefusal> {
        self.check_open()?;
        let sealed = self.open.is_none() || self.seal_open(buffers);
        if !sealed || !self.writer.may_write(LOCAL_BLOCK) {
            return Err(AppendRefusal::Full);
        }
        let mut open = self.take_open(now, epoch, (LOCAL_BLOCK, 0), buffers)?;
        open.add_local(now, &[], &self.config, buffers);
        let block = self.index.tail.next;
        self.seal(open, buffers);
        Ok(block)
    }

    fn check_open(&self) -> Result<(), AppendRefusal> {
        match self.state {
            State::Open if self.created.is_some() && self.cut.is_none() => Ok(()),
            State::Failed => Err(AppendRefusal::Failed),
            _ => Err(AppendRefusal::Closed),
        }
    }

    /// The open block, or a new one that may take `most` bytes, for a batch of so many records.
    fn take_open(
        &mut self,
        now: Time,
        epoch: Epoch,
        (most, records): (usize, u32),
        buffers: &mut dyn Buffers,
    ) -> Result<OpenBlock, AppendRefusal> {
        let open = match self.open.take() {
            Some(open) => open,
            None => self.new_open(now, epoch, most, buffers)?,
        };
        assert_eq!(open.epoch, epoch, "an epoch begins with a block of its own");
        if open.has_numbers(records) {
            return Ok(open);
        }
        let (tick, offset) = (open.last_tick, open.end_offset);
        self.open = Some(open);
        self.latch(format!(
            "no tick above {tick} or no offset above {offset} is left: a node sent blocks with \
             impossible numbers; mend: {DAMAGE_MEND}"
        ));
        Err(AppendRefusal::Failed)
    }

    /// A new open block; one that begins a segment begins with a snapshot of the producers.
    fn new_open(
        &mut self,
        now: Time,
        epoch: Epoch,
        most: usize,
        buffers: &mut dyn Buffers,
    ) -> Result<OpenBlock, AppendRefusal> {
        assert!(epoch >= self.index.tail.epoch, "epochs never fall in a log");
        let len = buffer_len(&self.config);
        let Some(buffer) = buffers.take(len) else {
            self.relieve(len);
            return Err(AppendRefusal::Full);
        };
        let roll = self.roll_ahead(most);
        let mut open = OpenBlock::new(buffer, epoch, &self.index.tail, now, roll);
        if roll == Roll::Ahead {
            let snapshot = self.producers.snapshot();
            open.add_local(now, &snapshot, &self.config, buffers);
        }
        Ok(open)
    }

    /// Whether the block that opens now, which may take `most` bytes, begins a new segment. A
    /// segment begins with a snapshot of the producers, if there are any, and that comes before the
    /// block's batches: so the block rolls if it may come not to fit. Each segment holds two blocks
    /// at least, one of which may be a snapshot alone.
    fn roll_ahead(&self, most: usize) -> Roll {
        if self.producers.is_empty() || self.segments.fits(most) {
            return Roll::AtNeed;
        }
        let begun = self.segments.iter().last().map(|last| last.base().next());
        if begun == Some(self.index.tail.next) {
            Roll::Never
        } else {
            Roll::Ahead
        }
    }

    /// What is known of a batch by its producer and sequence, the open block's included.
    pub fn sequence_of(&self, half: &ClientHalf, client_crc: u32) -> Sequence {
        self.producers.judge(half, client_crc)
    }

    /// As leader: seals the open block if a rule of the write path says so. To be called after
    /// every round of events. The block's `committed_end` is what `note_committed` said last.
    pub fn seal_if_due(&mut self, now: Time, buffers: &mut dyn Buffers) {
        let Some(open) = &self.open else {
            return;
        };
        let waited = now.since_us(open.since) >= self.config.batch_timeout_us;
        if self.writer.is_idle() || waited || open.is_full(&self.config) {
            self.seal_open(buffers);
        }
    }

    /// Whether the disk has a place for the open block.
    pub(super) fn may_seal(&self, open: &OpenBlock) -> bool {
        let needed = match open.roll {
            // The newest file will not do.
            Roll::Ahead => self.config.segment_bytes as usize,
            Roll::AtNeed | Roll::Never => open.padded(),
        };
        self.writer.may_write(open.padded()) && self.segments.takes_records(needed)
    }

    /// Seals the open block if the disk has a place for it. Whether none is open now.
    pub(super) fn seal_open(&mut self, buffers: &mut dyn Buffers) -> bool {
        let Some(open) = self.open.take() else {
            return true;
        };
        if self.may_seal(&open) {
            self.seal(open, buffers);
        } else {
            self.open = Some(open);
        }
        self.open.is_none()
    }

    fn seal(&mut self, open: OpenBlock, buffers: &mut dyn Buffers) {
        let rolls = match open.roll {
            Roll::Ahead => true,
            Roll::Never => false,
            Roll::AtNeed => !self.segments.fits(open.padded()),
        };
        let committed = self.committed.min(self.writer.durable_end);
        let (tail, full) = (&self.index.tail, open.buffer);
        let (header, buffer) = open.seal(tail, rolls, committed, &self.config, buffers);
        if buffer != full {
            self.outputs.push_back(Output::Release(full));
        }
        self.outputs.push_back(Output::Sealed(header, buffer));
        self.enqueue(buffer, vec![(header, 0)], buffers);
    }

    /// Drops the open block: its batches are nowhere. For a leader that is fenced.
    pub fn discard_open(&mut self) {
        self.producers.drop_open();
        if let Some(open) = self.open.take() {
            self.outputs.push_back(Output::Release(open.buffer));
        }
    }

    /// As follower: writes `blocks` verbatim at the log end. They lie one behind the other in
    /// `buffer`, each padded, from its start on, and are verified and admitted. The buffer is the
    /// log's from now on. Runs beyond the depth or window queue inside; the link's credit bounds
    /// them. A log that failed or stops drops them.
    pub fn write_run(&mut self, buffer: BufferId, blocks: &[BlockHeader], buffers: &dyn Buffers) {
        if self.state != State::Open {
            self.outputs.push_back(Output::Release(buffer));
            return;
        }
        assert!(self.created.is_some(), "a blank log is created first");
        assert!(self.cut.is_none(), "a run waits for the cut");
        assert!(self.open.is_none(), "a follower has no open block");
        let mut start = 0;
        let placed = blocks.iter().map(|header| {
            let at = start;
            start += header.padded_len();
            (*header, at)
        });
        let placed = placed.collect();
        self.enqueue(buffer, placed, buffers);
    }

    /// Whether a write of so many bytes could go to the disk now.
    pub fn may_write(&self, padded: usize) -> bool {
        self.state == State::Open && self.cut.is_none() && self.writer.may_write(padded)
    }

    /// Gives blocks that lie in one buffer their places: one write for each segment they reach
    /// into.
    fn enqueue(
        &mut self,
        buffer: BufferId,
        blocks: Vec<(BlockHeader, usize)>,
        buffers: &dyn Buffers,
    ) {
        let mut job: Option<Job> = None;
        for (header, start) in &blocks {
            let tail = self.index.tail;
            assert!(
                tail.continued_by(header),
                "block {} does not continue the log at {}",
                header.block,
                tail.next
            );
            if header.first_in_segment || self.segments.is_empty() {
                job.take().into_iter().for_each(|job| self.writer.push(job));
                let segment = SegmentHeader {
                    log: self.config.log,
                    base_block: header.block,
                    base_offset: header.base_offset,
                    prev_epoch: tail.epoch,
                    prev_crc: tail.crc,
                };
                self.segments.roll(segment, header.last_tick);
            }
            let padded = header.padded_len();
            let (segment, position) = self.segments.place(padded);
            self.index.push(header, segment, position);
            self.producers
                .take_in(&buffers.bytes(buffer)[*start..], header);
            let job = job.get_or_insert(Job {
                buffer,
                start: *start,
                len: 0,
                segment,
                position,
                end: header.block,
                end_offset: header.end_offset,
            });
            job.len += padded;
            job.end = header.block.next();
            job.end_offset = header.end_offset;
        }
        job.into_iter().for_each(|job| self.writer.push(job));
        let capacity = buffers.bytes(buffer).len();
        self.recent.push(buffer, capacity, blocks);
        self.evict();
    }

    /// Segments that lie below this block may be trimmed. A log that knows producers keeps its last
    /// committed block, so that no cut takes its last segment, and with it what was known.
    pub(super) fn trim_end(&self) -> BlockNo {
        let committed = self.known_committed();
        match committed.previous() {
            Some(last) if !self.producers.is_empty() => last,
            _ => committed,
        }
    }

    /// Takes away whole segments below `to`, as far as they are durable and committed. The log
    /// start is saved before the first file goes. While files of an earlier trim still go, or a cut
    /// takes blocks away, it does nothing.
    pub fn trim(&mut self, to: BlockNo) {
        let to = to.min(self.trim_end());
        let cutting = self.cut.is_some() && !self.cut_waits();
        if self.state != State::Open || self.trims.is_some() || cutting {
            return;
        }
        let Some(header) = self.segments.trim_point(to).map(|one| one.header) else {
            return;
        };
        if header.base_block <= self.index.start.block {
            return;
        }
        let start = LogStart {
            block: header.base_block,
            offset: header.base_offset,
            prev_epoch: header.prev_epoch,
            prev_crc: header.prev_crc,
        };
        self.index.trim(start);
        self.holes.trim(start.block);
        let ranges = self.holes.ranges();
        self.saver.checkpoint.faulty = ranges.iter().map(|(range, _)| *range).collect();
        let files = self.segments.trim(start.block);
        self.saver.checkpoint.log_start = start;
        self.set_hints();
        self.trims = Some((self.saver.want(), files.into()));
    }

    /// Stops cleanly: what was accepted is written, then the checkpoint; `Stopped` follows. Appends
    /// are refused from now on. A log that is not in service stops at once.
    pub fn stop(&mut self, _now: Time, buffers: &mut dyn Buffers) {
        match self.state {
            State::Open => {
                self.state = State::Stopping;
                self.pump(buffers);
            }
            State::Stopping => {}
            State::Recovering | State::Refused | State::Failed | State::Stopped => {
                self.close();
                self.state = State::Stopped;
                self.outputs.push_back(Output::Stopped);
            }
        }
    }

    /// Ends a clean stop once nothing is under way any more.
    pub(super) fn finish_stop(&mut self) {
        if self.state == State::Stopping && self.is_full() && self.writer.in_flight() == 0 {
            // What waits for space was promised to nobody; it goes with the stop.
            self.discard_open();
            self.writer.drop_waiting();
        }
        let reads = !self.loads.is_idle() || self.scrub.is_busy() || self.mend.is_some();
        let busy = !self.writer.is_idle() || self.open.is_some() || reads;
        let cuts = self.cut.is_some() && !self.gives_up_cut();
        if self.state != State::Stopping || busy || cuts || self.trims.is_some() {
            return;
        }
        let Some(clean) = self.clean else {
            if self.created.is_none() {
                return self.stopped();
            }
            self.set_hints();
            self.saver.checkpoint.clean = true;
            self.clean = Some(self.saver.want());
            return;
        };
        if self.saver.is_saved(clean.max(self.saver.last_wanted())) {
            self.stopped();
        }
    }

    fn stopped(&mut self) {
        self.close();
        self.state = State::Stopped;
        self.outputs.push_back(Output::Stopped);
    }
}

/// Bytes of a block with a single batch without records.
const LOCAL_BLOCK: usize = crate::limits::DISK_ALIGNMENT;
