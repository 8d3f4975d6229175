//! Writes of blocks, in the order of the log: what waits, what is in flight, what is durable.
//!
//! At most `write_depth` writes are in flight and none lies further than `WRITE_WINDOW` bytes past
//! the durable end; recovery depends on the second. Completions come in any order, the durable end
//! moves in the order of the log. Nothing here knows what a block says. Read `log.rs` next.

use super::ids::{Ids, Purpose};
use super::op::DiskOp;
use super::segments::Segments;
use crate::faults::{self, Fault};
use crate::limits::WRITE_WINDOW;
use crate::types::{BlockNo, BufferId, Offset};
use std::collections::VecDeque;

/// One write: consecutive blocks of one segment, lying in one buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) buffer: BufferId,
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) segment: BlockNo,
    pub(super) position: u64,
    /// Block and offset behind its last block.
    pub(super) end: BlockNo,
    pub(super) end_offset: Offset,
}

#[derive(Debug)]
struct Tracked {
    job: Job,
    done: bool,
}

/// The writes of one log.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: VecDeque<Tracked>,
    /// Number of the first job in `jobs`.
    first: u64,
    /// How many of `jobs` were handed to the disk.
    issued: usize,
    in_flight: usize,
    /// Bytes of the jobs handed to the disk and not yet counted as durable.
    window: u64,
    depth: usize,
    /// Whether the durable end moved since it was last asked.
    moved: bool,
    pub(super) durable_end: BlockNo,
    pub(super) durable_offset: Offset,
    /// Bytes handed to the disk since the start.
    pub(super) bytes_written: u64,
}

impl Writer {
    pub(super) fn new(depth: usize, durable_end: BlockNo, durable_offset: Offset) -> Writer {
        Writer {
            jobs: VecDeque::new(),
            first: 0,
            issued: 0,
            in_flight: 0,
            window: 0,
            depth,
            moved: false,
            durable_end,
            durable_offset,
            bytes_written: 0,
        }
    }

    /// Whether a write of so many bytes would go to the disk at once.
    pub(super) fn may_write(&self, len: usize) -> bool {
        self.issued == self.jobs.len() && self.has_room(len)
    }

    fn has_room(&self, len: usize) -> bool {
        self.in_flight < self.depth && self.window + len as u64 <= WRITE_WINDOW
    }

    /// Whether nothing waits, is in flight or waits to count as durable.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Writes that the disk has and has not answered.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Forgets what the disk was not asked to write, and what waits behind it: for a log that
    /// closes.
    pub(super) fn drop_waiting(&mut self) {
        self.jobs.clear();
        self.issued = 0;
    }

    /// Forgets the blocks from `from` on that the disk was not asked to write. A write that has
    /// older blocks too stays.
    pub(super) fn drop_from(&mut self, from: BlockNo) {
        while self.jobs.len() > self.issued {
            let before = self
                .jobs
                .len()
                .checked_sub(2)
                .map(|at| self.jobs[at].job.end);
            if before.unwrap_or(self.durable_end) < from {
                return;
            }
            self.jobs.pop_back();
        }
    }

    pub(super) fn push(&mut self, job: Job) {
        assert!(
            job.len as u64 <= WRITE_WINDOW,
            "a write of {} bytes never fits the window",
            job.len
        );
        self.jobs.push_back(Tracked { job, done: false });
    }

    /// The next write. It waits for a place, and for the file of its segment.
    pub(super) fn poll(&mut self, ids: &mut Ids, segments: &Segments) -> Option<(DiskOp, Purpose)> {
        let job = self.jobs.get(self.issued)?.job;
        let file = segments.starting_at(job.segment)?.file?;
        if !self.has_room(job.len) {
            return None;
        }
        self.jobs[self.issued].done = faults::active(Fault::AckEarly);
        let number = self.first + self.issued as u64;
        self.issued += 1;
        self.in_flight += 1;
        self.window += job.len as u64;
        self.bytes_written += job.len as u64;
        let op = DiskOp::Write {
            ticket: ids.ticket(),
            file,
            position: job.position,
            buffer: job.buffer,
            start: job.start,
            len: job.len,
        };
        Some((op, Purpose::Write(number)))
    }

    pub(super) fn on_written(&mut self, number: u64) {
        self.in_flight -= 1;
        // A job that counted as durable before its time may be gone already (`Fault::AckEarly`,
        // `Fault::AckOutOfOrder`).
        if let Some(at) = number.checked_sub(self.first) {
            self.jobs[at as usize].done = true;
            if faults::active(Fault::AckOutOfOrder) {
                let before = self.jobs.iter_mut().take(at as usize);
                before.for_each(|tracked| tracked.done = true);
            }
        }
    }

    /// Moves the durable end over what is done, in order, up to the first block of a file that is
    /// not yet named.
    pub(super) fn advance(&mut self, segments: &Segments) {
        while let Some(tracked) = self.jobs.front().filter(|tracked| tracked.done) {
            let job = tracked.job;
            let segment = segments.starting_at(job.segment);
            if !segment.expect("cuts wait for writes").named {
                break;
            }
            self.jobs.pop_front();
            self.first += 1;
            self.issued -= 1;
            self.window -= job.len as u64;
            self.durable_end = job.end;
            self.durable_offset = job.end_offset;
            self.moved = true;
        }
    }

    /// Whether the durable end moved since the last call.
    pub(super) fn take_moved(&mut self) -> bool {
        core::mem::take(&mut self.moved)
    }

    /// The log ends here now, all of it durable.
    pub(super) fn cut(&mut self, end: BlockNo, offset: Offset) {
        assert!(self.is_idle(), "a cut waits for writes in flight");
        self.durable_end = end;
        self.durable_offset = offset;
    }
}
