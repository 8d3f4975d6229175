//! Reads: from the event to the answer.
//!
//! A read is served from one block: whole batches from the one that holds the offset on. A
//! `committed` read ends at the high watermark, a `local` one sees all that this node holds, the
//! open block included, so on one node whoever has an answer to an append reads it. At its bound a
//! read waits; out of range is only what lies below the log start or past the log end. A reader
//! that names the epoch of its last batch is never given records that do not follow it: if that
//! batch is no longer in the log the answer is `Truncated`. Read `wal/loads.rs` for the disk.

use super::links::make_headers_anew;
use super::{Part, Purpose, Request, Role, Shard};
use crate::buffers::Buffers;
use crate::faults::{self, Fault};
use crate::limits::{BATCH_HEADER, BLOCK_HEADER, WAITING_READS, WAITING_READS_EACH};
use crate::types::{BufferId, ConnectionId, Epoch, Offset, ReadLevel, Time};
use crate::wal::{Common, DAMAGE_MEND, From, Load, Loaded, ReadError};
use crate::wire::batch::BatchPrefix;
use crate::wire::block;
use crate::wire::body::ReadOk;
use crate::wire::code::Code;

/// A read with nothing to return yet, or whose blocks are being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRead {
    pub(super) request: Request,
    pub(super) deadline: Time,
    /// It has got more time to wait for room.
    pub(super) patient: bool,
    pub(super) read: Read,
}

/// What a client asks to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) offset: Offset,
    pub(super) last_epoch: Epoch,
    pub(super) max_bytes: u32,
    pub(super) level: ReadLevel,
}

/// Consecutive batches from the one that holds an offset on.
#[derive(Clone, Copy, Debug)]
struct Picked {
    start: usize,
    len: usize,
    next: Offset,
    last_epoch: Epoch,
}

impl Shard {
    pub(super) fn on_read(
        &mut self,
        now: Time,
        request: Request,
        wait_ms: u32,
        read: Read,
        buffers: &mut dyn Buffers,
    ) {
        let deadline = now.plus_us(u64::from(wait_ms) * 1000);
        let waiting = WaitingRead {
            request,
            deadline,
            patient: false,
            read,
        };
        if self.loads.len() >= WAITING_READS {
            return self.reply_error(request, Code::Overloaded, [WAITING_READS as u64, 0]);
        }
        // What can be answered at once is, however many others wait.
        if self.try_read(waiting, buffers) {
            return;
        }
        let reads = &self.clients.reads;
        let same = |read: &&WaitingRead| read.request.connection == request.connection;
        if reads.len() >= WAITING_READS || reads.iter().filter(same).count() >= WAITING_READS_EACH {
            return self.reply_error(request, Code::Overloaded, [WAITING_READS as u64, 0]);
        }
        self.clients.reads.push(waiting);
        if self.stopping {
            self.end_waiting_reads();
        }
    }

    /// The log is stopping: nothing more will come.
    pub(super) fn end_waiting_reads(&mut self) {
        for read in std::mem::take(&mut self.clients.reads) {
            self.reply_error(read.request, Code::Stopping, [0; 2]);
        }
    }

    /// Why the read cannot be served, whatever it waits for.
    fn read_refusal(&self, read: &Read) -> Option<(Code, [u64; 2])> {
        match self.role() {
            Role::Failed => return Some((Code::LogFailed, [0; 2])),
            Role::Recovering => return Some((Code::NotReady, [0; 2])),
            Role::Opening | Role::Leader | Role::Follower => {}
        }
        let (start, end) = (self.log.log_start().offset, self.log.open_end_offset());
        if read.offset < start {
            return Some((Code::OutOfRange, [start.0, end.0]));
        }
        match self.log.common(read.last_epoch, read.offset) {
            Common::Parted(offset, epoch) => {
                Some((Code::Truncated, [offset.0, u64::from(epoch.0)]))
            }
            _ if read.offset > end => Some((Code::OutOfRange, [start.0, end.0])),
            // Other records may stand here, and will go: this log has yet to catch up.
            Common::Behind => Some((Code::NotReady, [0; 2])),
            Common::Same => None,
        }
    }

    /// Serves or refuses the read; false if it has to wait for more records, or for a buffer.
    pub(super) fn try_read(&mut self, waiting: WaitingRead, buffers: &mut dyn Buffers) -> bool {
        let WaitingRead { request, read, .. } = waiting;
        if let Some((code, detail)) = self.read_refusal(&read) {
            self.reply_error(request, code, detail);
            return true;
        }
        let sealed = self.log.end_offset();
        let (bound, bound_offset) = match read.level {
            ReadLevel::Committed if faults::active(Fault::ReadUncommitted) => {
                (self.log.durable_end(), self.log.durable_offset())
            }
            ReadLevel::Committed => (self.replica.high_watermark(), self.committed_offset),
            ReadLevel::Local => (self.log.log_end(), self.log.open_end_offset()),
        };
        // What an opening leader holds above its high watermark was acknowledged before it was
        // restarted, as a rule: to say that there is nothing more would be wrong.
        if read.offset >= bound_offset && self.role() == Role::Opening && read.offset < sealed {
            self.reply_error(request, Code::NotReady, [0; 2]);
            return true;
        }
        if read.offset >= bound_offset || !self.may_answer(request.connection) {
            return false;
        }
        if read.offset >= sealed {
            return self.read_open(request, &read, buffers);
        }
        let id = self.next_request();
        match self.log.load(id, From::Offset(read.offset), bound, 1) {
            Load::Now(loaded) => self.answer_read(waiting, &loaded, buffers),
            Load::Later => {
                self.loads.begin(id, Purpose::Read(waiting));
            }
            Load::NotHeld => self.reply_error(request, Code::NotReady, [0; 2]),
        }
        true
    }

    /// Answers from the open block, with a copy: its buffer is still written to. False while there
    /// is no buffer for it.
    fn read_open(&mut self, request: Request, read: &Read, buffers: &mut dyn Buffers) -> bool {
        let Some((open, header)) = self.log.open_block() else {
            return false;
        };
        let batches = block::batches(buffers.bytes(open), &header);
        let picked = pick(batches.into_iter(), read);
        let Some(copy) = buffers.take(picked.len) else {
            return false;
        };
        buffers.copy(open, picked.start..picked.start + picked.len, copy, 0);
        self.reply_batches(request, copy, Picked { start: 0, ..picked }, buffers);
        self.release(copy);
        true
    }

    /// Answers with whole batches of the first block that was loaded.
    pub(super) fn answer_read(
        &mut self,
        waiting: WaitingRead,
        loaded: &Loaded,
        buffers: &dyn Buffers,
    ) {
        let WaitingRead { request, read, .. } = waiting;
        let Some((header, start)) = loaded.blocks.first() else {
            self.room_came = true;
            return self.reply_error(request, Code::NotReady, [0; 2]);
        };
        let bytes = &buffers.bytes(loaded.buffer)[*start..];
        let mut picked = pick(block::batches(bytes, header).into_iter(), &read);
        picked.start += start;
        self.reply_batches(request, loaded.buffer, picked, buffers);
    }

    fn reply_batches(
        &mut self,
        request: Request,
        buffer: BufferId,
        picked: Picked,
        buffers: &dyn Buffers,
    ) {
        let held = buffers.bytes(buffer).len();
        self.answers.made(request.connection, picked.len, held);
        self.room_came = true;
        let body = ReadOk {
            next: picked.next,
            high_watermark: self.committed_offset,
            log_start: self.log.log_start().offset,
            last_epoch: picked.last_epoch,
        };
        let part = Part {
            buffer,
            start: picked.start,
            len: picked.len,
        };
        self.reply(request, body.into(), Some(part));
    }

    /// A load from disk ended.
    pub(super) fn on_loaded(
        &mut self,
        now: Time,
        request: u64,
        mut result: Result<Loaded, ReadError>,
        buffers: &mut dyn Buffers,
    ) {
        let purpose = self.loads.end(request).expect("every load has its purpose");
        if let (Ok(loaded), Purpose::Run(_)) = (&mut result, &purpose)
            && faults::active(Fault::ReEncodeOnCatchUp)
        {
            make_headers_anew(loaded, buffers);
        }
        match (&result, purpose) {
            // Trimmed meanwhile, or cut: looked at again.
            (Err(ReadError::NotHeld), Purpose::Read(read))
                if read.read.offset < self.log.log_start().offset =>
            {
                self.room_came = true;
                self.try_read(read, buffers);
            }
            (Ok(loaded), Purpose::Read(read)) => self.answer_read(read, loaded, buffers),
            (Err(error), Purpose::Read(read)) => {
                self.on_read_error(Some(read.request), *error);
            }
            (Ok(loaded), Purpose::Run(run)) => self.send_run(now, &run, loaded, buffers),
            (Err(error), Purpose::Run(run)) => {
                match is_damage(error) && self.config.wal.repairs {
                    true => self.replica.run_damaged(now, run.connection),
                    false => self.replica.run_sent(now, run.connection, (&[], 0)),
                }
                self.on_read_error(None, *error);
            }
            (Ok(loaded), Purpose::Fetch(fetch)) => self.send_fetch(&fetch, Some(loaded)),
            (Err(error), Purpose::Fetch(fetch)) => {
                match is_damage(error) && self.config.wal.repairs {
                    true => self.refuse_fetch(&fetch),
                    false => self.send_fetch(&fetch, None),
                }
                self.on_read_error(None, *error);
            }
            (_, Purpose::Find(_)) => panic!("a search is answered by Found"),
        }
        if let Ok(loaded) = result {
            self.release(loaded.buffer);
        }
    }

    /// Damage met by a read of a log that nobody else holds closes it: what it holds can no longer
    /// be trusted to be served. Else it is noted, looked into and repaired.
    pub(super) fn on_read_error(&mut self, client: Option<Request>, error: ReadError) {
        self.room_came = true;
        if let Some(request) = client {
            let code = match error {
                ReadError::NotHeld => Code::NotReady,
                ReadError::Damaged(_) => Code::BlocksDamaged,
                ReadError::Corrupt { .. } if self.config.wal.repairs => Code::BlocksDamaged,
                ReadError::Corrupt { .. } | ReadError::Disk(_) => Code::LogFailed,
            };
            self.reply_error(request, code, [0; 2]);
        }
        if let ReadError::Corrupt {
            file,
            position,
            block,
            blank,
        } = error
        {
            self.counters.crc_failures += 1;
            if self.config.wal.repairs {
                return self.log.suspect(block);
            }
            let name = crate::wire::segment::file_name(file);
            let what = match blank {
                false => format!("{name} at {position}: block {block} is damaged"),
                true => format!(
                    "{}: block {block} is in no file: this one, which would begin with it, is \
                     missing, or {name} has lost what it held from {position} on",
                    crate::wire::segment::file_name(block)
                ),
            };
            self.log.latch(format!("{what}; mend: {DAMAGE_MEND}"));
        }
    }

    /// Whether a client's last answers leave room for one more.
    fn may_answer(&mut self, connection: ConnectionId) -> bool {
        let wal = &self.config.wal;
        let block = wal.max_block_bytes.max(wal.max_batch_bytes + BLOCK_HEADER);
        let most = block.next_power_of_two();
        let (all, own) = self.loads.reads(connection);
        let loading = (all * most, own * most);
        self.answers.have_room(connection, most, loading)
    }

    /// Serves the reads that wait for records which may be there now; only what waits for the open
    /// block if nothing else has grown.
    pub(super) fn retry_reads(&mut self, only_local: bool, buffers: &mut dyn Buffers) {
        for read in std::mem::take(&mut self.clients.reads) {
            let waits = only_local && read.read.level != ReadLevel::Local;
            if waits || !self.try_read(read, buffers) {
                self.clients.reads.push(read);
            }
        }
    }

    pub(super) fn on_find(&mut self, request: Request, timestamp: u64) {
        if matches!(self.role(), Role::Failed | Role::Recovering) {
            return self.reply_error(request, Code::NotReady, [0; 2]);
        }
        if self.clients.reads.len() + self.loads.len() >= WAITING_READS {
            let most = [WAITING_READS as u64, 0];
            return self.reply_error(request, Code::Overloaded, most);
        }
        let id = self.next_request();
        self.loads.begin(id, Purpose::Find(request));
        self.log.find(id, timestamp, self.replica.high_watermark());
    }
}

fn is_damage(error: &ReadError) -> bool {
    matches!(error, ReadError::Corrupt { .. } | ReadError::Damaged(_))
}

/// The batches of a block from the one that holds the offset asked for on, as many as fit.
fn pick(batches: impl Iterator<Item = (usize, BatchPrefix)>, read: &Read) -> Picked {
    let mut picked = Picked {
        start: 0,
        len: 0,
        next: read.offset,
        last_epoch: Epoch(0),
    };
    for (at, prefix) in batches {
        let total = prefix.total_len();
        if prefix.end_offset() <= read.offset {
            continue;
        }
        if picked.len > 0 && picked.len + total > read.max_bytes as usize {
            break;
        }
        if picked.len == 0 {
            picked.start = at;
        }
        picked.len += total;
        picked.next = prefix.end_offset();
        picked.last_epoch = prefix.origin_epoch;
    }
    assert!(
        picked.len >= BATCH_HEADER,
        "a block that was found holds the offset asked for"
    );
    picked
}
