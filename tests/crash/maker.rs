//! Batches and blocks made by hand, as a client and as another node would make them.
//!
//! A follower gets blocks that it did not make; the tests make them here, with the functions of the
//! wire formats and without the log's code. Read `workload.rs` for who asks for them.

use crate::sim::rng::Rng;
use millrace::limits::{BATCH_HEADER, BLOCK_HEADER};
use millrace::types::{BlockNo, Epoch, LogId, Offset, OriginId, ShardId, Tick, padded};
use millrace::wire::batch::{self, ClientHalf, Kind, LeaderHalf};
use millrace::wire::block::{self, BatchesCrc, BlockHeader};

/// The log of all tests here.
pub const LOG: LogId = LogId {
    origin: OriginId(7),
    shard: ShardId(3),
};

/// What a block is chained to.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Number of the block to make.
    pub block: BlockNo,
    /// Offset of its first record.
    pub offset: Offset,
    /// CRC of the header before it.
    pub prev_crc: u32,
    /// Tick of the last batch before it.
    pub tick: Tick,
}

/// A client's batch of `body_len` bytes: what a leader is given.
pub fn client_batch(rng: &mut Rng, body_len: usize) -> (Vec<u8>, ClientHalf) {
    let half = ClientHalf {
        record_count: rng.between(1, 9) as u32,
        stored_len: body_len as u32,
        raw_len: body_len as u32,
        base_timestamp: rng.between(1, 1 << 40),
        max_timestamp: 1 << 41,
        ..ClientHalf::default()
    };
    let mut bytes = vec![0; BATCH_HEADER + body_len];
    for chunk in bytes[BATCH_HEADER..].chunks_mut(8) {
        let drawn = rng.next_u64().to_le_bytes();
        chunk.copy_from_slice(&drawn[..chunk.len()]);
    }
    batch::write_client_half(&mut bytes, &half);
    (bytes, half)
}

/// A block of one leader's batch, padded, and its header.
pub fn block_of(
    rng: &mut Rng,
    link: Link,
    epoch: Epoch,
    committed_end: BlockNo,
    body_len: usize,
    first_in_segment: bool,
) -> (Vec<u8>, BlockHeader) {
    let (mut batch_bytes, half) = client_batch(rng, body_len);
    let tick = Tick(link.tick.0 + 1);
    let leader = LeaderHalf {
        kind: Kind::Data,
        log: LOG,
        base_offset: link.offset,
        tick,
        txn_id: 0,
        origin_epoch: epoch,
    };
    batch::write_leader_half(&mut batch_bytes, &leader);
    let prefix = batch::read_prefix(&batch_bytes).expect("just made");
    let mut crc = BatchesCrc::default();
    crc.add(prefix.header_crc);
    let used_len = BLOCK_HEADER + batch_bytes.len();
    let mut bytes = vec![0; padded(used_len)];
    bytes[BLOCK_HEADER..used_len].copy_from_slice(&batch_bytes);
    let mut header = BlockHeader {
        log: LOG,
        epoch,
        block: link.block,
        header_crc: 0,
        prev_header_crc: link.prev_crc,
        batches_crc: crc.finish(),
        used_len: used_len as u32,
        batch_count: 1,
        record_count: half.record_count,
        base_offset: link.offset,
        end_offset: prefix.end_offset(),
        committed_end,
        max_timestamp: half.max_timestamp,
        last_tick: tick,
        first_in_segment,
    };
    header.header_crc = block::write_header(&mut bytes, &header);
    (bytes, header)
}
