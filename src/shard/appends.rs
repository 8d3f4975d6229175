//! Appends: from the event to the answer.
//!
//! A batch is checked once, goes into the log's open block as soon as there is room, and is then
//! pending until its level is reached. A batch that its producer sent before joins the first copy:
//! it is pending for the same block, at the retry's own level. What a sequence means the log knows;
//! here it becomes an answer. Read `wal/append.rs` for the open block, `wal/producers.rs` for
//! sequences and `replica/pending.rs` for levels.

use super::{Request, Role, Shard};
use crate::buffers::Buffers;
use crate::faults::{self, Fault};
use crate::limits::PENDING_APPENDS;
use crate::types::{BlockNo, BufferId, Epoch, Level, Offset, Time};
use crate::wal::{AppendRefusal, Sequence};
use crate::wire::batch::{self, BatchError, ClientHalf};
use crate::wire::body::AppendOk;
use crate::wire::code::Code;
use crate::wire::producers::KnownBatch;

/// A batch that was checked and found no room in the open block yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingAppend {
    pub(super) request: Request,
    level: Level,
    arrived: Time,
    pub(super) deadline: Time,
    pub(super) buffer: BufferId,
    len: usize,
    half: ClientHalf,
    client_crc: u32,
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
    /// Why this node takes no appends for the log now, if it does not.
    fn append_refusal(&self) -> Option<(Code, [u64; 2])> {
        if self.stopping {
            return Some((Code::Stopping, [0; 2]));
        }
        match self.role() {
            Role::Failed => Some((Code::LogFailed, [0; 2])),
            Role::Follower => match self.replica.leader() {
                Some(leader) => Some((Code::NotLeader, [u64::from(leader.0), 0])),
                None => Some((Code::NotReady, [0; 2])),
            },
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
                let client_crc = batch::client_crc(buffers.bytes(buffer));
                let append = WaitingAppend {
                    request,
                    level,
                    arrived: now,
                    deadline,
                    buffer,
                    len,
                    half,
                    client_crc,
                };
                if !self.clients.appends.is_empty() || !self.try_append(now, append, buffers) {
                    self.clients.appends.push_back(append);
                }
            }
        }
    }

    /// Puts the batch into the open block, or answers why never; false if there is no room yet.
    fn try_append(&mut self, now: Time, a: WaitingAppend, buffers: &mut dyn Buffers) -> bool {
        if self.replica.hands_over() {
            return false;
        }
        let epoch = self.replica.epoch();
        match self.log.sequence_of(&a.half, a.client_crc) {
            Sequence::Next => {
                match self
                    .log
                    .append(now, epoch, a.buffer, a.len, &a.half, buffers)
                {
                    Ok(appended) => {
                        self.counters.appends += 1;
                        self.await_level(&a, (appended.base_offset, appended.block), epoch);
                    }
                    Err(AppendRefusal::Full) => return false,
                    Err(_) => self.reply_error(a.request, Code::LogFailed, [0; 2]),
                }
            }
            Sequence::Known(first) => self.join(&a, &first),
            refused => {
                let (code, detail) = refusal_of(refused);
                self.reply_error(a.request, code, detail);
            }
        }
        self.release(a.buffer);
        true
    }

    /// A retry: the batch is in the log already. It is answered as the first copy would be, at the
    /// retry's level.
    fn join(&mut self, a: &WaitingAppend, first: &KnownBatch) {
        self.counters.retries += 1;
        let at_once = faults::active(Fault::AnswerDuplicateAtOnce);
        let level = if at_once { Level::Local } else { a.level };
        let place = (first.base_offset, first.block);
        self.await_level(&WaitingAppend { level, ..*a }, place, first.epoch);
    }

    /// The batch is at `place`, accepted in `epoch`: it is answered once that reaches its level.
    fn await_level(&mut self, a: &WaitingAppend, place: (Offset, BlockNo), epoch: Epoch) {
        let (base_offset, block) = place;
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
}

/// What a client is told of a batch whose sequence does not fit.
fn refusal_of(sequence: Sequence) -> (Code, [u64; 2]) {
    match sequence {
        Sequence::Gap { expected } => (Code::SequenceGap, [u64::from(expected), 0]),
        Sequence::Reused { offset } => (Code::SequenceReused, [offset.0, 0]),
        Sequence::TooOld => (Code::Unknown, [0; 2]),
        Sequence::UnknownProducer => (Code::UnknownProducer, [0; 2]),
        Sequence::Fenced { epoch } => (Code::ProducerFenced, [u64::from(epoch), 0]),
        Sequence::Next | Sequence::Known(_) => unreachable!("no refusal"),
    }
}
