//! What clients ask of a shard: appends and reads, from the event to the answer.
//!
//! An append is checked once, goes into the log's open block as soon as there is room, and is then
//! pending in `replica` until its level is reached. A read is served from one block: whole batches
//! from the one that holds the offset on; at its bound it waits. Nothing here decides about
//! durability or commit. See `wal/log.rs` for the open block and `replica/pending.rs` for levels.

use super::{Action, Part, Purpose, Request, Role, Shard};
use crate::buffers::Buffers;
use crate::limits::{
    BATCH_HEADER, BLOCK_HEADER, PENDING_APPENDS, READ_ROOM_MS, WAITING_READS, WAITING_READS_EACH,
};
use crate::types::{BlockNo, BufferId, ConnectionId, Epoch, Level, Offset, ReadLevel, Time};
use crate::wal::{AppendRefusal, Appended, From, Load, Loaded};
use crate::wire::batch::{self, BatchError, ClientHalf};
use crate::wire::block;
use crate::wire::body::{AppendOk, Body, Error, ReadOk};
use crate::wire::code::Code;
use std::collections::VecDeque;

/// Appends and reads that wait for something.
#[derive(Debug, Default)]
pub(super) struct Clients {
    appends: VecDeque<WaitingAppend>,
    reads: Vec<WaitingRead>,
}

/// A batch that was checked and found no room in the open block yet.
#[derive(Clone, Copy, Debug)]
struct WaitingAppend {
    request: Request,
    level: Level,
    arrived: Time,
    deadline: Time,
    buffer: BufferId,
    len: usize,
    half: ClientHalf,
}

/// A read with nothing to return yet, or whose blocks are being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRead {
    pub(super) request: Request,
    pub(super) offset: Offset,
    max_bytes: usize,
    level: ReadLevel,
    deadline: Time,
    /// It has got more time to wait for room.
    patient: bool,
}

/// The token under which `replica` keeps a pending append.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingAppend {
    pub(super) request: Request,
    base_offset: Offset,
    block: BlockNo,
    epoch: Epoch,
    arrived: Time,
}

impl Shard {
    pub(super) fn reply_error(&mut self, request: Request, code: Code, detail: [u64; 2]) {
        let body = Error {
            code: code.number(),
            detail: detail[0],
            detail_two: detail[1],
        };
        self.reply(request, body.into(), None);
    }

    pub(super) fn reply(&mut self, request: Request, body: Body, part: Option<Part>) {
        self.actions.push_back(Action::Reply {
            request,
            body,
            part,
        });
    }

    pub(super) fn release(&mut self, buffer: BufferId) {
        self.actions.push_back(Action::Release(buffer));
    }

    /// Why this node takes no appends for the log now, if it does not.
    fn append_refusal(&self) -> Option<(Code, [u64; 2])> {
        if self.stopping {
            return Some((Code::Stopping, [0; 2]));
        }
        match self.role() {
            Role::Failed => Some((Code::LogFailed, [0; 2])),
            Role::Follower => Some((Code::NotLeader, [u64::from(self.replica.leader().0), 0])),
            Role::Recovering | Role::Opening => Some((Code::NotReady, [0; 2])),
            Role::Leader if self.log.is_full() => Some((Code::NoSpace, [0; 2])),
            Role::Leader => {
                let refused = self.log.retention_refuses();
                refused.map(|bytes| (Code::RetentionFull, bytes))
            }
        }
    }

    /// What a leader checks before it accepts a batch, cheapest first.
    fn check_append(&self, bytes: &[u8]) -> Result<ClientHalf, (Code, [u64; 2])> {
        if let Some(refusal) = self.append_refusal() {
            return Err(refusal);
        }
        if self.pending.len() + self.clients.appends.len() >= PENDING_APPENDS {
            return Err((Code::Overloaded, [PENDING_APPENDS as u64, 0]));
        }
        let (max, max_records) = (
            self.config.wal.max_batch_bytes,
            self.config.wal.max_block_records,
        );
        if bytes.len() > max {
            return Err((Code::TooLarge, [bytes.len() as u64, max as u64]));
        }
        let half = batch::check_from_client(bytes).map_err(|error| match error {
            BatchError::ClientCrc | BatchError::HeaderCrc => (Code::BadCrc, [0; 2]),
            BatchError::RecordCount => (Code::EmptyBatch, [0; 2]),
            _ => (Code::BadBatch, [0; 2]),
        })?;
        if half.record_count > max_records {
            let detail = [u64::from(half.record_count), u64::from(max_records)];
            return Err((Code::TooLarge, detail));
        }
        Ok(half)
    }

    pub(super) fn on_append(
        &mut self,
        now: Time,
        append: (Request, Level, u32),
        batch: (BufferId, usize),
        buffers: &mut dyn Buffers,
    ) {
        let (request, level, timeout_ms) = append;
        let (buffer, len) = batch;
        match self.check_append(&buffers.bytes(buffer)[..len]) {
            Err((code, detail)) => {
                self.counters.crc_failures += u64::from(code == Code::BadCrc);
                self.reply_error(request, code, detail);
                self.release(buffer);
            }
            Ok(half) => {
                let deadline = now.plus_us(u64::from(timeout_ms) * 1000);
                let append = WaitingAppend {
                    request,
                    level,
                    arrived: now,
                    deadline,
                    buffer,
                    len,
                    half,
                };
                if !self.clients.appends.is_empty() || !self.try_append(now, append, buffers) {
                    self.clients.appends.push_back(append);
                }
            }
        }
    }

    /// Puts the batch into the open block, or answers why never; false if there is no room yet.
    fn try_append(&mut self, now: Time, a: WaitingAppend, buffers: &mut dyn Buffers) -> bool {
        let epoch = self.replica.epoch();
        match self
            .log
            .append(now, epoch, a.buffer, a.len, &a.half, buffers)
        {
            Ok(appended) => {
                self.counters.appends += 1;
                let Appended {
                    block, base_offset, ..
                } = appended;
                let client = PendingAppend {
                    request: a.request,
                    base_offset,
                    block,
                    epoch,
                    arrived: a.arrived,
                };
                let connection = a.request.connection;
                self.pending
                    .accept(client, connection, block, a.level, a.deadline);
            }
            Err(AppendRefusal::Full) => return false,
            Err(_) => self.reply_error(a.request, Code::LogFailed, [0; 2]),
        }
        self.release(a.buffer);
        true
    }

    pub(super) fn answer_append(&mut self, now: Time, client: PendingAppend) {
        let PendingAppend {
            request,
            base_offset,
            block,
            epoch,
            arrived,
        } = client;
        self.append_latency.record(now.since_us(arrived));
        self.reply(
            request,
            AppendOk {
                base_offset,
                block,
                epoch,
            }
            .into(),
            None,
        );
    }

    /// Takes waiting batches into the log as far as there is room, oldest first.
    pub(super) fn retry_appends(&mut self, now: Time, buffers: &mut dyn Buffers) {
        while let Some(first) = self.clients.appends.front().copied() {
            if let Some((code, detail)) = self.append_refusal() {
                self.reply_error(first.request, code, detail);
                self.release(first.buffer);
            } else if !self.try_append(now, first, buffers) {
                return;
            }
            self.clients.appends.pop_front();
        }
    }

    pub(super) fn on_read(
        &mut self,
        now: Time,
        request: Request,
        read: (Offset, u32, u32, ReadLevel),
        buffers: &mut dyn Buffers,
    ) {
        let (offset, max_bytes, wait_ms, level) = read;
        let deadline = now.plus_us(u64::from(wait_ms) * 1000);
        let max_bytes = max_bytes as usize;
        let waiting = WaitingRead {
            request,
            offset,
            max_bytes,
            level,
            deadline,
            patient: false,
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

    /// Serves or refuses the read; false if it has to wait for more records.
    pub(super) fn try_read(&mut self, read: WaitingRead, buffers: &mut dyn Buffers) -> bool {
        match self.role() {
            Role::Failed => {
                self.reply_error(read.request, Code::LogFailed, [0; 2]);
                return true;
            }
            Role::Recovering => {
                self.reply_error(read.request, Code::NotReady, [0; 2]);
                return true;
            }
            _ => {}
        }
        let (start, end) = (self.log.log_start().offset, self.log.end_offset());
        if read.offset < start || read.offset > end {
            self.reply_error(read.request, Code::OutOfRange, [start.0, end.0]);
            return true;
        }
        let (bound, bound_offset) = match read.level {
            ReadLevel::Committed => (self.replica.high_watermark(), self.committed_offset),
            ReadLevel::Local => (self.log.log_end(), end),
        };
        if read.offset >= bound_offset {
            // What an opening leader holds above its high watermark was acknowledged before it was
            // restarted, as a rule: to say that there is nothing more would be wrong.
            if self.role() == Role::Opening && read.offset < end {
                self.reply_error(read.request, Code::NotReady, [0; 2]);
                return true;
            }
            return false;
        }
        if !self.may_answer(read.request.connection) {
            return false;
        }
        let id = self.next_request();
        match self.log.load(id, From::Offset(read.offset), bound, 1) {
            Load::Now(loaded) => self.answer_read(read, &loaded, buffers),
            Load::Later => {
                self.loads.insert(id, Purpose::Read(read));
            }
            Load::NotHeld => {
                self.reply_error(read.request, Code::OutOfRange, [start.0, end.0]);
            }
        }
        true
    }

    /// Answers with the whole batches from the one that holds the offset on, as many as fit.
    pub(super) fn answer_read(
        &mut self,
        read: WaitingRead,
        loaded: &Loaded,
        buffers: &dyn Buffers,
    ) {
        let Some((header, start)) = loaded.blocks.first() else {
            self.room_came = true;
            return self.reply_error(read.request, Code::NotReady, [0; 2]);
        };
        let bytes = &buffers.bytes(loaded.buffer)[*start..];
        let (mut from, mut len, mut next) = (0, 0, read.offset);
        let mut last_epoch = Epoch(0);
        for (at, prefix) in block::batches(bytes, header) {
            let total = prefix.total_len();
            if prefix.end_offset() <= read.offset {
                continue;
            }
            if len > 0 && len + total > read.max_bytes {
                break;
            }
            if len == 0 {
                from = at;
            }
            len += total;
            next = prefix.end_offset();
            last_epoch = prefix.origin_epoch;
        }
        assert!(
            len >= BATCH_HEADER,
            "a loaded block holds the offset asked for"
        );
        let high_watermark = self.committed_offset;
        let log_start = self.log.log_start().offset;
        let part = Part {
            buffer: loaded.buffer,
            start: start + from,
            len,
        };
        let buffer = buffers.bytes(loaded.buffer).len();
        let connection = read.request.connection;
        self.answers.made(connection, len, buffer);
        self.room_came = true;
        self.reply(
            read.request,
            ReadOk {
                next,
                high_watermark,
                log_start,
                last_epoch,
            }
            .into(),
            Some(part),
        );
    }

    /// Whether a client's last answers leave room for one more.
    fn may_answer(&mut self, connection: ConnectionId) -> bool {
        let wal = &self.config.wal;
        let block = wal.max_block_bytes.max(wal.max_batch_bytes + BLOCK_HEADER);
        let most = block.next_power_of_two();
        let (mut all, mut own) = (0, 0);
        for purpose in self.loads.values() {
            let Purpose::Read(read) = purpose else {
                continue;
            };
            all += most;
            own += if read.request.connection == connection {
                most
            } else {
                0
            };
        }
        self.answers.have_room(connection, most, (all, own))
    }

    /// Serves the reads that wait for records which may be there now.
    pub(super) fn retry_reads(&mut self, buffers: &mut dyn Buffers) {
        for read in std::mem::take(&mut self.clients.reads) {
            if !self.try_read(read, buffers) {
                self.clients.reads.push(read);
            }
        }
    }

    pub(super) fn on_find(&mut self, request: Request, timestamp: u64) {
        if matches!(self.role(), Role::Failed | Role::Recovering) {
            return self.reply_error(request, Code::NotReady, [0; 2]);
        }
        if self.loads.len() >= WAITING_READS {
            let most = [WAITING_READS as u64, 0];
            return self.reply_error(request, Code::Overloaded, most);
        }
        let id = self.next_request();
        self.loads.insert(id, Purpose::Find(request));
        self.log.find(id, timestamp, self.replica.high_watermark());
    }

    /// Answers what has waited too long.
    pub(super) fn expire_clients(&mut self, now: Time) {
        let expired = |deadline: Time| deadline <= now;
        for _ in 0..self.clients.appends.len() {
            let Some(append) = self.clients.appends.pop_front() else {
                break;
            };
            if expired(append.deadline) {
                self.reply_error(append.request, Code::Overloaded, [0; 2]);
                self.release(append.buffer);
            } else {
                self.clients.appends.push_back(append);
            }
        }
        for mut read in std::mem::take(&mut self.clients.reads) {
            let bound = match read.level {
                ReadLevel::Committed => self.committed_offset,
                ReadLevel::Local => self.log.end_offset(),
            };
            if !expired(read.deadline) {
                self.clients.reads.push(read);
            } else if read.offset >= bound {
                self.reply_error(read.request, Code::Timeout, [0; 2]);
            } else if read.patient {
                self.reply_error(read.request, Code::Overloaded, [0; 2]);
            } else {
                // There is something to return and only room for it is missing.
                read.patient = true;
                read.deadline = now.plus_us(READ_ROOM_MS * 1000);
                self.clients.reads.push(read);
            }
        }
    }

    pub(super) fn forget_client(&mut self, connection: ConnectionId) {
        self.clients
            .reads
            .retain(|read| read.request.connection != connection);
        let gone = |append: &WaitingAppend| append.request.connection == connection;
        let buffers: Vec<BufferId> = self
            .clients
            .appends
            .iter()
            .filter(|a| gone(a))
            .map(|a| a.buffer)
            .collect();
        self.clients.appends.retain(|append| !gone(append));
        buffers.into_iter().for_each(|buffer| self.release(buffer));
    }

    pub(super) fn clients_deadline(&self) -> Option<Time> {
        let appends = self.clients.appends.iter().map(|append| append.deadline);
        appends
            .chain(self.clients.reads.iter().map(|read| read.deadline))
            .min()
    }
}
