//! A snapshot of a log's producers: what a retry is recognised by, as it stood before a segment.
//!
//! ```text
//! offset size field
//!      0    4 magic "MRPS"
//!      4    1 version
//!      5    3 zero
//!      8    4 producers        how many follow, ascending by id
//! each producer
//!      0    8 producer_id      not 0
//!      8    8 last_tick        tick of its last batch
//!     16    2 producer_epoch
//!     18    2 batches          1 to 5 follow, oldest first
//!     20    4 zero
//! each batch
//!      0    4 base_sequence
//!      4    4 record_count
//!      8    4 client_crc
//!     12    4 epoch            of the leadership that accepted it
//!     16    8 base_offset
//!     24    8 block
//! ```
//!
//! It is the body of a batch of kind `local`, whose CRCs cover it, so it has none of its own. The
//! same producers are always the same bytes. What the numbers mean, `wal/producers.rs` knows.

use super::batch::ClientHalf;
use super::bytes::{all_zero, epoch_fits, position_fits, u16_at, u32_at, u64_at};
use crate::limits::{PRODUCER_BATCHES, PRODUCERS};
use crate::types::{BlockNo, Epoch, Offset, Tick};
use std::collections::VecDeque;

const MAGIC: [u8; 4] = *b"MRPS";
const VERSION: u8 = 1;
const HEADER: usize = 12;
const PRODUCER: usize = 24;
const BATCH: usize = 32;

/// Bytes of a snapshot of so many producers, at most.
pub const fn max_len(producers: usize) -> usize {
    HEADER + producers * (PRODUCER + PRODUCER_BATCHES * BATCH)
}

/// A batch as its producer numbered it, and where it is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownBatch {
    /// Number of its first record in the producer's count.
    pub base_sequence: u32,
    /// Its records.
    pub record_count: u32,
    /// CRC that the client made: tells another batch of the same number.
    pub client_crc: u32,
    /// Leadership that accepted it.
    pub epoch: Epoch,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Block it is in.
    pub block: BlockNo,
}

impl KnownBatch {
    /// The sequence of the batch that follows; sequences wrap.
    pub fn end(&self) -> u32 {
        self.base_sequence.wrapping_add(self.record_count)
    }
}

/// A producer of a log with its last batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producer {
    /// Who; not 0.
    pub id: u64,
    /// Its incarnation.
    pub epoch: u16,
    /// Tick of its last batch.
    pub last_tick: Tick,
    /// Its last batches, oldest first; at least one, at most `PRODUCER_BATCHES`.
    pub batches: VecDeque<KnownBatch>,
}

impl Producer {
    /// One batch more of this producer. One that does not follow begins anew, so that what is known
    /// is defined for every log.
    pub fn note(&mut self, half: &ClientHalf, batch: KnownBatch, tick: Tick) {
        let follows = self.batches.back().map(KnownBatch::end) == Some(batch.base_sequence);
        if half.producer_epoch != self.epoch || !follows {
            self.batches.clear();
        }
        if self.batches.len() == PRODUCER_BATCHES {
            self.batches.pop_front();
        }
        self.batches.push_back(batch);
        self.epoch = half.producer_epoch;
        self.last_tick = tick;
    }
}

/// The snapshot of these producers, which come ascending by id.
pub fn encode<'a>(producers: impl ExactSizeIterator<Item = &'a Producer>) -> Vec<u8> {
    let mut out = Vec::with_capacity(max_len(producers.len()));
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, 0, 0, 0]);
    out.extend_from_slice(&(producers.len() as u32).to_le_bytes());
    for producer in producers {
        out.extend_from_slice(&producer.id.to_le_bytes());
        out.extend_from_slice(&producer.last_tick.0.to_le_bytes());
        out.extend_from_slice(&producer.epoch.to_le_bytes());
        out.extend_from_slice(&(producer.batches.len() as u16).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for batch in &producer.batches {
            out.extend_from_slice(&batch.base_sequence.to_le_bytes());
            out.extend_from_slice(&batch.record_count.to_le_bytes());
            out.extend_from_slice(&batch.client_crc.to_le_bytes());
            out.extend_from_slice(&batch.epoch.0.to_le_bytes());
            out.extend_from_slice(&batch.base_offset.0.to_le_bytes());
            out.extend_from_slice(&batch.block.0.to_le_bytes());
        }
    }
    out
}

/// The producers of a snapshot; none if the bytes are no snapshot of this version.
pub fn decode(bytes: &[u8]) -> Option<Vec<Producer>> {
    let (header, mut rest) = bytes.split_at_checked(HEADER)?;
    if header[..4] != MAGIC || header[4] != VERSION || !all_zero(&header[5..8]) {
        return None;
    }
    let count = u32_at(header, 8) as usize;
    if count > PRODUCERS {
        return None;
    }
    let mut producers: Vec<Producer> = Vec::with_capacity(count);
    for _ in 0..count {
        let producer = take_producer(&mut rest)?;
        if producers.last().map_or(0, |last| last.id) >= producer.id {
            return None;
        }
        producers.push(producer);
    }
    rest.is_empty().then_some(producers)
}

fn take_producer(from: &mut &[u8]) -> Option<Producer> {
    let (head, rest) = from.split_at_checked(PRODUCER)?;
    let batches = usize::from(u16_at(head, 18));
    let last_tick = u64_at(head, 8);
    let sound = (1..=PRODUCER_BATCHES).contains(&batches)
        && position_fits(last_tick)
        && all_zero(&head[20..PRODUCER]);
    let (bodies, rest) = rest.split_at_checked(batches * BATCH).filter(|_| sound)?;
    *from = rest;
    Some(Producer {
        id: u64_at(head, 0),
        epoch: u16_at(head, 16),
        last_tick: Tick(last_tick),
        batches: bodies.chunks(BATCH).map(batch_of).collect::<Option<_>>()?,
    })
}

fn batch_of(bytes: &[u8]) -> Option<KnownBatch> {
    let batch = KnownBatch {
        base_sequence: u32_at(bytes, 0),
        record_count: u32_at(bytes, 4),
        client_crc: u32_at(bytes, 8),
        epoch: Epoch(u32_at(bytes, 12)),
        base_offset: Offset(u64_at(bytes, 16)),
        block: BlockNo(u64_at(bytes, 24)),
    };
    let fits = position_fits(batch.base_offset.0) && position_fits(batch.block.0);
    (fits && batch.record_count > 0 && epoch_fits(batch.epoch)).then_some(batch)
}

#[cfg(test)]
#[path = "producers_tests.rs"]
mod tests;
