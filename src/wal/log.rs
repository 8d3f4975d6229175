//! The log: appends and runs of blocks become durable blocks in segment files.
//!
//! Calls in, operations and outputs out; see `wal.rs` for the contract. After any call that took
//! `&mut self` the caller polls outputs and operations until there are none of either. What needs a
//! buffer and gets none waits: the next poll tries again. This file owns the state and hands every
//! completion to the part that asked. Read `append.rs` for the write path, `start.rs` for what
//! follows recovery, `op.rs` for the disk.

use super::config::Config;
use super::cut::Cut;
use super::holes::Holes;
use super::ids::{Ids, Purpose};
use super::index::Index;
use super::loads::{Context, Goal, Loads};
use super::mend::Mend;
use super::op::{DEVICE_MEND, DiskError, DiskOp, DiskResult, FileEntry};
use super::open::{OpenBlock, buffer_len};
use super::output::{From, Load, Output, SaveId, State};
use super::pressure::Watched;
use super::producers::Producers;
use super::recent::Recent;
use super::recovery::Recovery;
use super::retention::Age;
use super::saver::Saver;
use super::scrub::Scrub;
use super::segments::Segments;
use super::start::Starting;
use super::writer::Writer;
use crate::buffers::Buffers;
use crate::faults::{self, Fault};
use crate::limits::{BLOCK_HEADER, SEGMENT_HEADER};
use crate::types::{BlockNo, FileId, Offset, Tick, Ticket, Time};
use crate::wire::checkpoint::{Checkpoint, Memory};
use std::collections::{BTreeMap, VecDeque};

/// Time without appends after which what may lag in the checkpoint is saved.
const IDLE_US: u64 = 1_000_000;

/// One log on one node.
#[derive(Debug)]
pub struct Log {
    pub(super) config: Config,
    pub(super) state: State,
    pub(super) ids: Ids,
    pub(super) waiting: BTreeMap<Ticket, Waiting>,
    pub(super) ops: VecDeque<DiskOp>,
    pub(super) outputs: VecDeque<Output>,
    pub(super) recovery: Option<Box<Recovery>>,
    pub(super) starting: Option<Starting>,
    pub(super) saver: Saver,
    /// The save that makes a blank log a log; none while it is blank.
    pub(super) created: Option<SaveId>,
    pub(super) segments: Segments,
    pub(super) index: Index,
    pub(super) producers: Producers,
    pub(super) writer: Writer,
    pub(super) recent: Recent,
    pub(super) open: Option<OpenBlock>,
    pub(super) loads: Loads,
    pub(super) cut: Option<Box<Cut>>,
    /// Trimmed files that go once the save is durable and no read needs them.
    pub(super) trims: Option<(SaveId, VecDeque<FileId>)>,
    pub(super) trim_in_flight: bool,
    pub(super) holes: Holes,
    /// The save that holds what was found damaged last.
    pub(super) guard: Option<SaveId>,
    pub(super) scrub: Scrub,
    pub(super) mend: Option<Box<Mend>>,
    pub(super) committed: BlockNo,
    pub(super) age: Age,
    /// The save of a clean stop.
    pub(super) clean: Option<SaveId>,
    /// When the durable end moved last, or what may lag was saved last.
    pub(super) quiet_since: Time,
}

/// An operation in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    purpose: Purpose,
    /// Bytes that a write must bring.
    expected: usize,
}

impl Log {
    /// A log whose directory holds `files`. Recovery begins at once.
    pub fn new(config: Config, files: &[FileEntry], now: Time) -> Log {
        let block = buffer_len(&config);
        assert!(
            config.segment_bytes >= (SEGMENT_HEADER + block) as u64,
            "a segment of {} bytes holds no block of {block}",
            config.segment_bytes
        );
        assert!(
            config.max_block_bytes > BLOCK_HEADER && config.write_depth > 0,
            "bounds are checked with the configuration"
        );
        Log {
            state: State::Recovering,
            ids: Ids::new(),
            waiting: BTreeMap::new(),
            ops: VecDeque::new(),
            outputs: VecDeque::new(),
            recovery: Some(Box::new(Recovery::new(&config, files))),
            starting: None,
            saver: Saver::default(),
            created: None,
            segments: Segments::new(VecDeque::new(), config.segment_bytes),
            index: Index::default(),
            producers: Producers::new(block),
            writer: Writer::new(config.write_depth, BlockNo(0), Offset(0)),
            recent: Recent::default(),
            open: None,
            loads: Loads::default(),
            cut: None,
            trims: None,
            trim_in_flight: false,
            holes: Holes::default(),
            guard: None,
            scrub: Scrub::new(now, config.scrub_interval_us),
            mend: None,
            committed: BlockNo(0),
            age: Age::new(now, Tick(0)),
            clean: None,
            quiet_since: now,
            config,
        }
    }

    /// A disk operation ended.
    pub fn on_disk(
        &mut self,
        now: Time,
        ticket: Ticket,
        result: DiskResult,
        buffers: &mut dyn Buffers,
    ) {
        let Some(waiting) = self.waiting.remove(&ticket) else {
            let closed = matches!(self.state, State::Failed | State::Refused | State::Stopped);
            assert!(
                closed,
                "a completion for ticket {ticket}, which is not in flight"
            );
            return;
        };
        self.scrub.note_time(now);
        match (waiting.purpose, result) {
            (Purpose::Load(id), result) => self.on_load(id, result, buffers),
            // Nothing was written: it can be asked for again, and nothing that counts is lost.
            (Purpose::Provide | Purpose::Name, Err(DiskError::NoSpace)) => {
                self.segments.on_full(now);
            }
            (purpose, Err(error)) => return self.fail(purpose, &error.text()),
            (purpose, Ok(count)) => {
                let short = count < waiting.expected && !faults::active(Fault::IgnoreShortWrite);
                if short {
                    let text = format!(
                        "{count} of {} bytes written; mend: {DEVICE_MEND}",
                        waiting.expected
                    );
                    return self.fail(purpose, &text);
                }
                self.on_done(purpose, count, buffers);
            }
        }
        self.settle_durable(now);
        self.say_space();
        self.pump(buffers);
    }

    /// Says that the disk is full, or is no longer.
    fn say_space(&mut self) {
        let change = self.segments.space.take_change();
        self.outputs
            .extend(change.map(|full| Output::Space { full }));
    }

    fn on_done(&mut self, purpose: Purpose, count: usize, buffers: &mut dyn Buffers) {
        match purpose {
            Purpose::Recover => {
                let recovery = self.recovery.as_mut().expect("it asked for it");
                recovery.on_disk(count, buffers);
            }
            Purpose::Settle => self.on_settled(),
            Purpose::Save => {
                if let Some((id, buffer)) = self.saver.on_written() {
                    self.outputs.push_back(Output::Release(buffer));
                    self.outputs.push_back(Output::Saved(id));
                }
            }
            Purpose::SegmentHeader => {
                let buffer = self.segments.on_header_written();
                self.outputs.push_back(Output::Release(buffer));
            }
            Purpose::Provide => self.segments.on_provided(),
            Purpose::Name => {
                self.segments.on_named();
                self.advance();
                self.raise_hints();
            }
            Purpose::Write(number) => self.writer.on_written(number),
            Purpose::Cut => {
                let cut = self.cut.as_mut().expect("it asked for it");
                cut.on_disk(count, buffers);
            }
            Purpose::Trim => {
                self.trim_in_flight = false;
                self.segments.space.ask_again();
            }
            Purpose::Scrub | Purpose::Rewrite => self.on_scrubbed(count, buffers),
            Purpose::Mend => self.on_mended(count, buffers),
            Purpose::Load(_) => unreachable!("loads take errors too"),
        }
    }

    fn on_load(&mut self, id: u64, result: DiskResult, buffers: &mut dyn Buffers) {
        let mut context = Context {
            log: self.config.log,
            index: &mut self.index,
            segments: &self.segments,
            holes: &self.holes,
            outputs: &mut self.outputs,
        };
        self.loads.on_read(id, result, buffers, &mut context);
    }

    /// The next operation for the disk. None as well while the pool has no buffer for it.
    pub fn poll_op(&mut self, buffers: &mut dyn Buffers) -> Option<DiskOp> {
        if self.ops.is_empty() {
            self.pump(buffers);
        }
        self.ops.pop_front()
    }

    /// The next thing the log has to say.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub(super) fn pump(&mut self, buffers: &mut dyn Buffers) {
        let mut watched = Watched {
            inner: buffers,
            refused: 0,
        };
        while let Some((op, purpose)) = self.next_op(&mut watched) {
            let expected = match op {
                DiskOp::Write { len, .. } => len,
                _ => 0,
            };
            self.waiting
                .insert(op.ticket(), Waiting { purpose, expected });
            self.ops.push_back(op);
        }
        if watched.refused > 0 {
            self.relieve(watched.refused);
        }
        if faults::active(Fault::AckEarly) {
            self.settle_durable(self.quiet_since);
        }
    }

    fn next_op(&mut self, buffers: &mut dyn Buffers) -> Option<(DiskOp, Purpose)> {
        match self.state {
            State::Recovering => self.start_op(buffers),
            State::Open | State::Stopping => self.serve_op(buffers),
            State::Refused | State::Failed | State::Stopped => None,
        }
    }

    pub(super) fn serve_op(&mut self, buffers: &mut dyn Buffers) -> Option<(DiskOp, Purpose)> {
        if let Some(op) = self.save_op(buffers) {
            return Some(op);
        }
        if !self.created.is_some_and(|id| self.saver.is_saved(id)) {
            self.finish_stop();
            return None;
        }
        if self.state == State::Stopping {
            self.seal_open(buffers);
        }
        if let Some(op) = self.segments.poll(&mut self.ids, buffers) {
            return Some(op);
        }
        if let Some(op) = self.writer.poll(&mut self.ids, &self.segments) {
            return Some(op);
        }
        if let Some(op) = self.mend_op(buffers) {
            return Some(op);
        }
        if self.cut_waits() {
            // What it waits for may need the space of a trimmed file.
            if let Some(op) = self.trim_op() {
                return Some(op);
            }
            if let Some(op) = self.scrub_for_cut(buffers) {
                return Some(op);
            }
        }
        if self.cut.is_some() && !self.gives_up_cut() {
            let op = self.cut_op(buffers);
            if op.is_some() || self.cut.is_some() {
                return op;
            }
        }
        if let Some(op) = self.load_op(buffers) {
            return Some(op);
        }
        if let Some(op) = self.trim_op() {
            return Some(op);
        }
        if let Some(op) = self.scrub_op(buffers) {
            return Some(op);
        }
        self.finish_stop();
        self.save_op(buffers)
    }

    pub(super) fn save_op(&mut self, buffers: &mut dyn Buffers) -> Option<(DiskOp, Purpose)> {
        let op = self.saver.poll(&mut self.ids, buffers)?;
        Some((op, Purpose::Save))
    }

    fn load_op(&mut self, buffers: &mut dyn Buffers) -> Option<(DiskOp, Purpose)> {
        let mut context = Context {
            log: self.config.log,
            index: &mut self.index,
            segments: &self.segments,
            holes: &self.holes,
            outputs: &mut self.outputs,
        };
        let piece = buffer_len(&self.config);
        self.loads.poll(piece, &mut self.ids, buffers, &mut context)
    }

    fn trim_op(&mut self) -> Option<(DiskOp, Purpose)> {
        let (id, files) = self.trims.as_mut()?;
        if self.trim_in_flight || !self.saver.is_saved(*id) {
            return None;
        }
        if files.is_empty() {
            self.trims = None;
            return None;
        }
        // One that a read still uses waits for it; no new read begins in any of them.
        let mends = |file| self.mend.as_ref().is_some_and(|mend| mend.is_using(file));
        let in_use = |file: FileId| {
            self.loads.is_reading_of(file) || self.scrub.is_reading_of(file) || mends(file)
        };
        let at = files.iter().position(|file| !in_use(*file));
        let file = files.remove(at?).expect("just found");
        self.trim_in_flight = true;
        let ticket = self.ids.ticket();
        Some((DiskOp::Free { ticket, file }, Purpose::Trim))
    }

    /// Says how far the log is durable now, and gives back what need not be in memory any more.
    fn settle_durable(&mut self, now: Time) {
        self.advance();
        if self.writer.take_moved() {
            self.quiet_since = now;
            self.note_came_back();
            self.outputs.push_back(Output::Durable {
                end: self.writer.durable_end,
                offset: self.writer.durable_offset,
            });
        }
        self.evict();
    }

    fn advance(&mut self) {
        if !self.is_guarded() {
            self.writer.advance(&self.segments);
        }
    }

    pub(super) fn evict(&mut self) {
        while let Some(buffer) = self.recent.evict(self.writer.durable_end) {
            self.outputs.push_back(Output::Release(buffer));
        }
    }

    /// Closes the log for good.
    pub(super) fn fail(&mut self, purpose: Purpose, text: &str) {
        self.close_failed(format!("{}: {text}", purpose.text()));
    }

    fn close_failed(&mut self, reason: String) {
        self.state = State::Failed;
        self.outputs.push_back(Output::Failed(reason));
        self.close();
    }

    /// Gives everything back; no operation follows.
    pub(super) fn close(&mut self) {
        self.ops.clear();
        self.waiting.clear();
        self.loads.close(&mut self.outputs);
        self.discard_open();
        let mut held: Vec<_> = self.saver.release().into_iter().collect();
        held.extend(self.segments.release());
        held.extend(core::iter::from_fn(|| self.recent.release()));
        held.extend(core::iter::from_fn(|| self.scrub.release()));
        held.extend(self.mend.take().into_iter().flat_map(|mend| mend.buffers()));
        if let Some(recovery) = &mut self.recovery {
            held.extend(core::iter::from_fn(|| recovery.release(true)));
        }
        if let Some(cut) = &mut self.cut {
            held.extend(core::iter::from_fn(|| cut.release(true)));
        }
        self.outputs.extend(held.into_iter().map(Output::Release));
        self.recovery = None;
        self.cut = None;
    }

    /// When [`Log::on_time`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        if !matches!(self.state, State::Open | State::Stopping) {
            return None;
        }
        let retry = self.segments.space.retry_at();
        if self.state != State::Open || self.cut.is_some() {
            return retry;
        }
        let open = self.open.as_ref().filter(|open| self.may_seal(open));
        let open = open.map(|open| open.since.plus_us(self.config.batch_timeout_us));
        let idle = self.quiet_since.plus_us(IDLE_US);
        let idle = self.hints_lag().then_some(idle);
        let scrub = self.scrub_timeout();
        open.into_iter().chain(idle).chain(retry).chain(scrub).min()
    }

    /// Time has passed: seals what is due and saves what may be saved lazily.
    pub fn on_time(&mut self, now: Time, buffers: &mut dyn Buffers) {
        self.segments.space.on_time(now);
        if self.state != State::Open || self.cut.is_some() {
            return;
        }
        self.seal_if_due(now, buffers);
        self.scrub_on_time(now);
        if self.hints_lag() && now >= self.quiet_since.plus_us(IDLE_US) {
            self.quiet_since = now;
            self.raise_hints();
        }
    }

    pub(super) fn known_committed(&self) -> BlockNo {
        self.committed.min(self.writer.durable_end)
    }

    fn hints_lag(&self) -> bool {
        let saved = &self.saver.checkpoint;
        let is_log = self.created.is_some();
        is_log
            && (saved.scan_from < self.writer.durable_end
                || saved.high_watermark < self.known_committed())
    }

    /// Saves what may lag: where recovery's scan begins, and how far blocks are known committed.
    fn raise_hints(&mut self) {
        if self.cut.is_some() || !self.hints_lag() {
            return;
        }
        self.set_hints();
        self.saver.want();
    }

    pub(super) fn set_hints(&mut self) {
        let committed = self.known_committed();
        let checkpoint = &mut self.saver.checkpoint;
        checkpoint.scan_from = checkpoint.scan_from.max(self.writer.durable_end);
        checkpoint.high_watermark = checkpoint.high_watermark.max(committed);
    }

    /// Changes the checkpoint: both copies, one after the other. Changes made meanwhile share a
    /// write. Not while recovery runs, and on a blank log not before `create`. A closed log saves
    /// nothing.
    pub fn save(&mut self, change: impl FnOnce(&mut Checkpoint)) -> SaveId {
        let serves = matches!(self.state, State::Open | State::Stopping);
        assert!(
            self.state != State::Recovering && (!serves || self.created.is_some()),
            "there is no checkpoint to change"
        );
        change(&mut self.saver.checkpoint);
        if self.saver.checkpoint.memory == Memory::Whole && self.holes.forget_missing() {
            self.note_holes();
        }
        self.saver.want()
    }

    /// Writes the first checkpoint of a blank log: members from the configuration, and what is to
    /// be believed of its past. Appends and runs may follow at once; none is written before it is
    /// saved.
    pub fn create(&mut self, memory: Memory) -> SaveId {
        assert!(
            self.state == State::Open && self.created.is_none(),
            "the log is blank"
        );
        self.saver.checkpoint = Checkpoint {
            log: self.config.log,
            members: self.config.members.clone(),
            memory,
            boot_id: self.config.boot_id,
            ..Checkpoint::default()
        };
        let id = self.saver.want();
        self.created = Some(id);
        id
    }

    /// Closes the log for a reason found outside of it.
    pub fn latch(&mut self, reason: String) {
        if matches!(self.state, State::Open | State::Stopping) {
            self.close_failed(reason);
        }
    }

    /// Forgets the copies in memory of durable blocks from `block` on: they are read from disk.
    pub fn forget_recent(&mut self, block: BlockNo) {
        let forgotten = self.recent.forget(block, self.writer.durable_end);
        self.outputs
            .extend(forgotten.into_iter().map(Output::Release));
    }

    /// Blocks below `end` are committed: never cut from now on, and a hint for recovery.
    pub fn note_committed(&mut self, end: BlockNo) {
        self.committed = self.committed.max(end);
    }

    /// Finds consecutive blocks below `end`, at least one and, beyond that, no more than
    /// `max_bytes` as they lie on the disk.
    pub fn load(&mut self, request: u64, from: From, end: BlockNo, max_bytes: usize) -> Load {
        let end = end.min(self.index.tail.next);
        let block = match from {
            From::Block(block) if block < self.index.start.block || block >= end => {
                return Load::NotHeld;
            }
            From::Block(block) => Some(block),
            From::Offset(offset) => {
                if offset < self.index.start.offset || offset >= self.index.tail.end_offset {
                    return Load::NotHeld;
                }
                self.index.held_at(offset)
            }
        };
        if !matches!(self.state, State::Open | State::Stopping) || block >= Some(end) {
            return Load::NotHeld;
        }
        if let Some(loaded) = block.and_then(|block| self.recent.load(block, end, max_bytes)) {
            return Load::Now(loaded);
        }
        let goal = match from {
            From::Block(block) => Goal::Block(block),
            From::Offset(offset) => Goal::Offset(offset),
        };
        // What is not durable is in memory, so the disk is asked only for what is.
        let end = end.min(self.writer.durable_end);
        self.loads.push(request, goal, end, max_bytes);
        Load::Later
    }

    /// Finds the first batch below `end` that holds a record as late as `timestamp`;
    /// `Output::Found` follows. It reads the headers of the first segment that may hold one, and of
    /// those of which nobody knows yet how late their records are.
    pub fn find(&mut self, request: u64, timestamp: u64, end: BlockNo) {
        let end = end.min(self.writer.durable_end);
        let may = self
            .segments
            .iter()
            .take_while(|one| one.base() < end)
            .any(|one| self.index.may_be_as_late(one.base(), timestamp));
        let serves = matches!(self.state, State::Open | State::Stopping);
        if end <= self.index.start.block || !may || !serves {
            let result = Ok(None);
            self.outputs.push_back(Output::Found { request, result });
            return;
        }
        self.loads.push(request, Goal::Time(timestamp), end, 0);
    }
}
