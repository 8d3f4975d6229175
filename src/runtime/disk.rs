//! The disk of one core: carries out what its logs ask for and says how it ended.
//!
//! Writes, reads and syncs go to the ring; opening, naming and freeing go to blocking threads, one
//! queue for all logs of the core. Each operation keeps its file open and its buffer held until its
//! completion was taken, whatever happens to either in between. Nothing is retried and nothing is
//! decided here; a short count is reported as it is. Read `ring.rs` and `files.rs` for the work
//! itself.

use super::buffers::Pool;
use super::files::{Job, Place, file_name};
use super::local::Signal;
use super::ring::{Ring, Transfer};
use super::spares::Spares;
use crate::buffers::Buffers;
use crate::shard::{CHECKPOINT_FILE, DiskError, DiskOp, DiskResult, FileName};
use crate::types::{Buckets, BufferId, FileId, Ticket};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::future::poll_fn;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Instant;

/// An operation that has ended, and the log that it belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) log: usize,
    pub(super) ticket: Ticket,
    pub(super) result: DiskResult,
}

/// A job for a blocking thread.
#[derive(Debug)]
pub(super) struct Request {
    log: usize,
    ticket: Ticket,
    file: FileId,
    place: Place,
    job: Job,
    spares: Arc<Spares>,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Outcome {
    log: usize,
    ticket: Ticket,
    file: FileId,
    job: Job,
    opened: Result<Option<File>, DiskError>,
}

impl Request {
    /// Blocks.
    pub(super) fn carry_out(self) -> Outcome {
        Outcome {
            opened: self.place.carry_out(self.job, &self.spares),
            log: self.log,
            ticket: self.ticket,
            file: self.file,
            job: self.job,
        }
    }
}

/// Where the blocking threads of a core take their work from.
#[derive(Debug, Default)]
pub(super) struct Requests {
    queue: RefCell<VecDeque<Request>>,
    signal: Signal,
}

impl Requests {
    /// The next request, in order.
    pub(super) async fn next(&self) -> Request {
        poll_fn(|context| {
            let request = self.queue.borrow_mut().pop_front();
            request.map_or_else(
                || {
                    self.signal.register(context.waker());
                    Poll::Pending
                },
                Poll::Ready,
            )
        })
        .await
    }
}

pub(super) struct Disk {
    ring: Ring,
    operations: Vec<Option<Operation>>,
    unused: Vec<usize>,
    logs: Vec<Log>,
    requests: Rc<Requests>,
    spares: Arc<Spares>,
}

struct Log {
    place: Place,
    writes: Buckets,
    files: BTreeMap<FileId, OpenFile>,
}

#[derive(Clone)]
struct OpenFile {
    file: Rc<File>,
    name: FileName,
}

struct Operation {
    log: usize,
    ticket: Ticket,
    buffer: Option<BufferId>,
    /// When a write was handed over.
    write_began: Option<Instant>,
    /// Open until the kernel is done with it.
    _file: Rc<File>,
}

impl Disk {
    pub(super) fn new(ring: Ring, spares: Arc<Spares>) -> Disk {
        Disk {
            ring,
            operations: Vec::new(),
            unused: Vec::new(),
            logs: Vec::new(),
            requests: Rc::default(),
            spares,
        }
    }

    /// Adds a log whose checkpoint is open.
    pub(super) fn add_log(&mut self, place: Place, checkpoint: File) {
        let open = OpenFile {
            file: Rc::new(checkpoint),
            name: FileName::Checkpoint,
        };
        self.logs.push(Log {
            place,
            writes: Buckets::default(),
            files: BTreeMap::from([(CHECKPOINT_FILE, open)]),
        });
    }

    /// How long the writes of a log took.
    pub(super) fn writes(&self, log: usize) -> Buckets {
        self.logs[log].writes
    }

    pub(super) fn requests(&self) -> Rc<Requests> {
        self.requests.clone()
    }

    /// Starts an operation of a log. Its buffer is held from now on.
    pub(super) fn start(&mut self, log: usize, operation: DiskOp, pool: &mut Pool) {
        let ticket = operation.ticket();
        match operation {
            DiskOp::Open { file, name, .. } => self.ask(log, ticket, file, Job::Open(name)),
            DiskOp::Provide { file, .. } => self.ask(log, ticket, file, Job::Provide),
            DiskOp::Name { file, base, .. } => self.ask(log, ticket, file, Job::Name(base)),
            DiskOp::Free { file, .. } => {
                // Operations that still use it keep it open.
                let open = self.logs[log]
                    .files
                    .remove(&file)
                    .expect("the file is open");
                self.ask(log, ticket, file, Job::Free(open.name));
            }
            DiskOp::SyncDirectory { .. } => {
                self.ask(log, ticket, CHECKPOINT_FILE, Job::SyncDirectory);
            }
            DiskOp::Write {
                file,
                position,
                buffer,
                start,
                len,
                ..
            } => {
                pool.hold(buffer);
                let from = pool.address(buffer, start..start + len);
                let file = self.file(log, file);
                let transfer = Transfer::Write {
                    fd: file.as_raw_fd(),
                    from,
                    len: len as u32,
                    position,
                };
                self.spares
                    .log_bytes
                    .fetch_add(len as u64, Ordering::Relaxed);
                self.transfer(log, ticket, Some(buffer), file, transfer);
            }
            DiskOp::Read {
                file,
                position,
                buffer,
                len,
                ..
            } => {
                let to = pool.bytes_mut(buffer)[..len].as_mut_ptr();
                pool.hold(buffer);
                let file = self.file(log, file);
                let transfer = Transfer::Read {
                    fd: file.as_raw_fd(),
                    to,
                    len: len as u32,
                    position,
                };
                self.transfer(log, ticket, Some(buffer), file, transfer);
            }
            DiskOp::Sync { file, .. } => {
                let file = self.file(log, file);
                let fd = file.as_raw_fd();
                self.transfer(log, ticket, None, file, Transfer::Sync { fd });
            }
        }
    }

    fn file(&self, log: usize, file: FileId) -> Rc<File> {
        let open = self.logs[log].files.get(&file);
        open.expect("the file is open").file.clone()
    }

    fn ask(&mut self, log: usize, ticket: Ticket, file: FileId, job: Job) {
        let request = Request {
            log,
            ticket,
            file,
            place: self.logs[log].place.clone(),
            job,
            spares: self.spares.clone(),
        };
        self.requests.queue.borrow_mut().push_back(request);
        self.requests.signal.notify();
    }

    fn transfer(
        &mut self,
        log: usize,
        ticket: Ticket,
        buffer: Option<BufferId>,
        file: Rc<File>,
        transfer: Transfer,
    ) {
        let write = matches!(transfer, Transfer::Write { .. });
        let operation = Some(Operation {
            log,
            ticket,
            buffer,
            write_began: write.then(Instant::now),
            _file: file,
        });
        let name = self.unused.pop().unwrap_or(self.operations.len());
        if name == self.operations.len() {
            self.operations.push(operation);
        } else {
            self.operations[name] = operation;
        }
        self.ring.push(transfer, name as u64);
    }

    /// Hands what was started to the kernel.
    pub(super) fn submit(&mut self) {
        self.ring.submit();
    }

    /// Whether the kernel refused something for the moment.
    pub(super) fn must_ask_again(&mut self) -> bool {
        self.ring.must_ask_again()
    }

    /// The next transfer that has ended; its buffer is no longer held.
    pub(super) fn completed(&mut self, pool: &mut Pool) -> Option<Done> {
        let (name, count) = self.ring.completion()?;
        let operation = self.operations[name as usize].take();
        let operation = operation.expect("an operation ends once");
        self.unused.push(name as usize);
        if let Some(buffer) = operation.buffer {
            pool.unhold(buffer);
        }
        if let Some(began) = operation.write_began {
            let took_us = began.elapsed().as_micros() as u64;
            self.logs[operation.log].writes.record(took_us);
        }
        let result = match count {
            count if count >= 0 => Ok(count as usize),
            errno if -errno == libc::ENOSPC || -errno == libc::EDQUOT => Err(DiskError::NoSpace),
            errno => Err(DiskError::Errno(-errno)),
        };
        Some(Done {
            log: operation.log,
            ticket: operation.ticket,
            result,
        })
    }

    /// Takes in what a blocking thread has done.
    pub(super) fn finished(&mut self, outcome: Outcome) -> Done {
        let log = &mut self.logs[outcome.log];
        let result = outcome.opened.map(|opened| {
            let name = match outcome.job {
                Job::Open(name) => name,
                Job::Provide => FileName::Next,
                Job::Name(base) => {
                    let open = log.files.get_mut(&outcome.file);
                    open.expect("a named file is open").name = FileName::Segment(base);
                    return 0;
                }
                Job::Free(_) | Job::SyncDirectory => return 0,
            };
            let file = Rc::new(opened.expect("these jobs open a file"));
            let before = log.files.insert(outcome.file, OpenFile { file, name });
            assert!(before.is_none(), "{} opened twice", file_name(name));
            0
        });
        Done {
            log: outcome.log,
            ticket: outcome.ticket,
            result,
        }
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
