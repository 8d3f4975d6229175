//! What a block, a batch and an answer are to the checkers: plain facts, read from bytes apart from
//! the code under test.
//!
//! A value the clients make carries who made it and its number, so a batch found anywhere (a disk,
//! a frame, a read) says which append it came from. Digests are FNV-1a over the very bytes; a
//! block's covers its padding. Read `checker.rs` next.

use millrace::limits::{BATCH_HEADER, BLOCK_HEADER};
use millrace::types::Level;
use millrace::wire::{batch, block, record};

/// Names one append of the run: who made it, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchId {
    /// The client.
    pub client: u32,
    /// Its appends are numbered from 0 on.
    pub sequence: u32,
}

/// A batch as found in a block or a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchFacts {
    /// Which append it is; none for a node's own batches.
    pub id: Option<BatchId>,
    /// Offset of its first record.
    pub base_offset: u64,
    /// Epoch that accepted it.
    pub epoch: u32,
    /// Its producer, the producer's epoch and the sequence of its first record; none without one.
    pub producer: Option<(u64, u16, u32)>,
    /// Records in it.
    pub record_count: u32,
    /// Over the client's half of the header and the body.
    pub digest: u64,
    /// Time of its latest record.
    pub max_timestamp: u64,
}

impl BatchFacts {
    /// One past the offset of its last record.
    pub fn end_offset(&self) -> u64 {
        self.base_offset + u64::from(self.record_count)
    }
}

/// A block as found in a segment file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFacts {
    /// Whether every CRC and sum fits and the padding is zero.
    pub sound: bool,
    /// Its number.
    pub block: u64,
    /// The epoch that wrote it.
    pub epoch: u32,
    /// CRC of its header: what the chain is made of.
    pub header_crc: u32,
    /// CRC of the header before it.
    pub prev_header_crc: u32,
    /// Offset of its first record.
    pub base_offset: u64,
    /// One past the offset of its last record.
    pub end_offset: u64,
    /// Bytes it takes on the disk.
    pub padded_len: usize,
    /// Over all its bytes, the padding too.
    pub digest: u64,
    /// Its batches, in order.
    pub batches: Vec<BatchFacts>,
}

/// What a client was told of an append that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The level it asked for.
    pub level: Level,
    /// Offset of its first record.
    pub base_offset: u64,
    /// The block it is in.
    pub block: u64,
}

/// FNV-1a, 64 bits.
pub fn fnv(bytes: &[u8]) -> u64 {
    fnv_on(0xcbf2_9ce4_8422_2325, bytes)
}

/// FNV-1a carried on from `hash`.
pub fn fnv_on(mut hash: u64, bytes: &[u8]) -> u64 {
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

/// A digest of many bytes: eight at a time, so that checking costs less than what is checked.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        hash = (hash ^ word)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(23);
    }
    fnv_on(hash, words.remainder())
}

/// The batch in exactly these bytes, header and body, if they are one.
pub fn batch_facts(bytes: &[u8]) -> Option<BatchFacts> {
    let prefix = batch::check(bytes).ok()?;
    let bytes = &bytes[..prefix.total_len()];
    let id = match record::read_all(&bytes[BATCH_HEADER..]).next() {
        Some(Ok(first)) if prefix.record_count > 0 => Some(id_of_value(first.value)?),
        _ => None,
    };
    let half = batch::client_half(bytes);
    let producer = (half.producer_id, half.producer_epoch, half.base_sequence);
    Some(BatchFacts {
        id,
        base_offset: prefix.base_offset.0,
        epoch: prefix.origin_epoch.0,
        producer: (half.producer_id > 0).then_some(producer),
        record_count: prefix.record_count,
        digest: client_digest(bytes),
        max_timestamp: batch::client_half(bytes).max_timestamp,
    })
}

/// Digest of the client's part of a batch: the same before and after the leader filled in its half.
pub fn client_digest(batch_bytes: &[u8]) -> u64 {
    digest(&batch_bytes[batch::CLIENT_HALF..])
}

/// The block whose header stands at the start of `bytes`, if it is a sound header and the whole
/// block is there. Its batches and padding may be anything: `sound` tells.
pub fn block_facts(bytes: &[u8]) -> Option<BlockFacts> {
    let header = block::read_header(bytes).ok()?;
    let whole = bytes.get(..header.padded_len())?;
    let sound = block::check_batches(bytes, &header).is_ok()
        && block::check_padding(bytes, &header).is_ok();
    let mut batches = Vec::new();
    let mut at = BLOCK_HEADER;
    while sound && at < header.used_len as usize {
        let found = batch_facts(&bytes[at..header.used_len as usize])?;
        let prefix = batch::read_prefix(&bytes[at..]).ok()?;
        at += prefix.total_len();
        batches.push(found);
    }
    Some(BlockFacts {
        sound,
        block: header.block.0,
        epoch: header.epoch.0,
        header_crc: header.header_crc,
        prev_header_crc: header.prev_header_crc,
        base_offset: header.base_offset.0,
        end_offset: header.end_offset.0,
        padded_len: header.padded_len(),
        digest: digest(whole),
        batches,
    })
}

/// Bytes that a record's value begins with: who made it, which append, which record of it.
pub const VALUE_HEADER: usize = 12;

/// The value of record `index` of append `id`, `len` bytes long or a little more: its name, then
/// bytes that follow from it.
pub fn value_of(id: BatchId, index: u32, len: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(len.max(VALUE_HEADER));
    value.extend_from_slice(&id.client.to_le_bytes());
    value.extend_from_slice(&id.sequence.to_le_bytes());
    value.extend_from_slice(&index.to_le_bytes());
    let mut word = fnv(&value);
    while value.len() < len {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        value.push((word >> 56) as u8);
    }
    value
}

/// Which append a value came from; none if it is too short to say.
pub fn id_of_value(value: &[u8]) -> Option<BatchId> {
    let (client, rest) = value.split_first_chunk()?;
    let (sequence, _) = rest.split_first_chunk()?;
    Some(BatchId {
        client: u32::from_le_bytes(*client),
        sequence: u32::from_le_bytes(*sequence),
    })
}
