//! The open block: batches that were accepted and not yet closed into a block.
//!
//! It owns one buffer of the full size of a block and fills it from behind the header on. Batches
//! are copied in, never changed but for the leader's half of their headers. Not durable, not in the
//! log. When it is sealed its buffer becomes the block; a block that fills less than half of it
//! moves into a smaller one. Read `log.rs` for the rules of sealing.

use super::config::Config;
use super::index::Tail;
use crate::buffers::Buffers;
use crate::limits::{BATCH_HEADER, BLOCK_HEADER, POSITION_MAX};
use crate::types::{BlockNo, BufferId, Epoch, Offset, Tick, Time, padded};
use crate::wire::batch::{self, ClientHalf, Kind, LeaderHalf};
use crate::wire::block::{self, BatchesCrc, BlockHeader};

/// The open block.
#[derive(Debug)]
pub(super) struct OpenBlock {
    pub(super) buffer: BufferId,
    pub(super) epoch: Epoch,
    /// When its first batch came.
    pub(super) since: Time,
    pub(super) used: usize,
    pub(super) end_offset: Offset,
    pub(super) last_tick: Tick,
    base_offset: Offset,
    pub(super) batches: u32,
    records: u32,
    max_timestamp: u64,
    crc: BatchesCrc,
    pub(super) roll: Roll,
}

/// Whether the block begins a new segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Roll {
    /// If it does not fit into the newest one when it is sealed.
    AtNeed,
    /// It does: that was known when it was opened, and its first batch says what came before.
    Ahead,
    /// It does not, even if the file has to grow.
    Never,
}

/// Bytes of the buffer for an open block.
pub(super) fn buffer_len(config: &Config) -> usize {
    padded(
        config
            .max_block_bytes
            .max(BLOCK_HEADER + config.max_batch_bytes),
    )
}

impl OpenBlock {
    pub(super) fn new(
        buffer: BufferId,
        epoch: Epoch,
        tail: &Tail,
        now: Time,
        roll: Roll,
    ) -> OpenBlock {
        OpenBlock {
            buffer,
            epoch,
            since: now,
            used: BLOCK_HEADER,
            end_offset: tail.end_offset,
            last_tick: tail.tick,
            base_offset: tail.end_offset,
            batches: 0,
            records: 0,
            max_timestamp: 0,
            crc: BatchesCrc::default(),
            roll,
        }
    }

    /// Whether a batch of `len` bytes and so many records may be added. The first one always may.
    pub(super) fn takes(&self, len: usize, records: u32, config: &Config) -> bool {
        self.batches == 0
            || (self.used + len <= config.max_block_bytes
                && self.records.saturating_add(records) <= config.max_block_records)
    }

    /// Bytes it would take on the disk.
    pub(super) fn padded(&self) -> usize {
        padded(self.used)
    }

    /// Whether not even a small batch may be added.
    pub(super) fn is_full(&self, config: &Config) -> bool {
        !self.takes(BATCH_HEADER + 1, 1, config)
    }

    /// Whether a batch of so many records still gets a tick and offsets. Only a log that took
    /// blocks with absurd numbers from another node ever comes to their end.
    pub(super) fn has_numbers(&self, records: u32) -> bool {
        let fits = |number: u64| number <= POSITION_MAX;
        fits(self.last_tick.0 + 1) && fits(self.end_offset.0 + u64::from(records))
    }

    /// Adds the batch in the first `len` bytes of `from`; returns its offset and tick.
    pub(super) fn add(
        &mut self,
        now: Time,
        (from, len): (BufferId, usize),
        half: &ClientHalf,
        config: &Config,
        buffers: &mut dyn Buffers,
    ) -> (Offset, Tick) {
        buffers.copy(from, 0..len, self.buffer, self.used);
        self.finish_batch(now, Kind::Data, len, half, config, buffers)
    }

    /// Adds the node's own batch without records, with this body.
    pub(super) fn add_local(
        &mut self,
        now: Time,
        body: &[u8],
        config: &Config,
        buffers: &mut dyn Buffers,
    ) {
        let half = ClientHalf {
            stored_len: body.len() as u32,
            raw_len: body.len() as u32,
            ..ClientHalf::default()
        };
        let len = BATCH_HEADER + body.len();
        let bytes = &mut buffers.bytes_mut(self.buffer)[self.used..self.used + len];
        bytes[BATCH_HEADER..].copy_from_slice(body);
        batch::write_client_half(bytes, &half);
        self.finish_batch(now, Kind::Local, len, &half, config, buffers);
    }

    fn finish_batch(
        &mut self,
        now: Time,
        kind: Kind,
        len: usize,
        half: &ClientHalf,
        config: &Config,
        buffers: &mut dyn Buffers,
    ) -> (Offset, Tick) {
        let base_offset = self.end_offset;
        let tick = Tick((self.last_tick.0 + 1).max(now.0));
        let leader = LeaderHalf {
            kind,
            log: config.log,
            base_offset,
            tick,
            txn_id: 0,
            origin_epoch: self.epoch,
        };
        let header = &mut buffers.bytes_mut(self.buffer)[self.used..self.used + BATCH_HEADER];
        self.crc.add(batch::write_leader_half(header, &leader));
        self.used += len;
        self.batches += 1;
        self.records += half.record_count;
        self.end_offset = Offset(base_offset.0 + u64::from(half.record_count));
        self.last_tick = tick;
        self.max_timestamp = self.max_timestamp.max(half.max_timestamp);
        (base_offset, tick)
    }

    /// The buffer that the sealed block lies in. It is kept until the block is durable, not recent
    /// any more and sent to everybody: half-empty ones would keep many times what they hold. If the
    /// pool has no smaller one, this one does.
    fn fitting(&self, buffers: &mut dyn Buffers) -> BufferId {
        let len = self.padded();
        if 2 * len > buffers.bytes(self.buffer).len() {
            return self.buffer;
        }
        let Some(smaller) = buffers.take(len) else {
            return self.buffer;
        };
        buffers.copy(self.buffer, 0..self.used, smaller, 0);
        smaller
    }

    /// Completes the block: its header and its padding. If it moved into another buffer than the
    /// open block's, that one is the caller's to give back.
    pub(super) fn seal(
        self,
        tail: &Tail,
        first_in_segment: bool,
        committed_end: BlockNo,
        config: &Config,
        buffers: &mut dyn Buffers,
    ) -> (BlockHeader, BufferId) {
        assert!(self.batches > 0, "a block holds at least one batch");
        let mut header = BlockHeader {
            log: config.log,
            epoch: self.epoch,
            block: tail.next,
            header_crc: 0,
            prev_header_crc: tail.crc,
            batches_crc: self.crc.finish(),
            used_len: self.used as u32,
            batch_count: self.batches,
            record_count: self.records,
            base_offset: self.base_offset,
            end_offset: self.end_offset,
            committed_end,
            max_timestamp: self.max_timestamp,
            last_tick: self.last_tick,
            first_in_segment,
        };
        let buffer = self.fitting(buffers);
        let bytes = buffers.bytes_mut(buffer);
        bytes[self.used..padded(self.used)].fill(0);
        header.header_crc = block::write_header(bytes, &header);
        (header, buffer)
    }
}
