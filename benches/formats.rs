//! What the formats cost: the one pass that a follower makes over a block, and the client's
//! encoding.
//!
//! Run with `cargo bench --bench formats`. Throughput is in bytes of block or batch, on one core,
//! from memory that is in the cache or not as the sizes say. The check is what stands between a
//! leader's memory and a follower's disk (H-52), so its rate bounds replication on a core.

use criterion::{Criterion, Throughput};
use millrace::limits::{BATCH_HEADER, BLOCK_HEADER};
use millrace::types::{Epoch, LogId, Offset, Tick};
use millrace::wire::batch::{self, Kind, LeaderHalf};
use millrace::wire::block::{self, BatchesCrc, BlockHeader};
use millrace::wire::record::{BatchBuilder, Record};
use std::hint::black_box;

/// A batch of `records` records of `bytes` bytes each.
fn make_batch(records: u32, bytes: usize) -> Vec<u8> {
    let value: Vec<u8> = (0..bytes).map(|i| (i * 131 % 251) as u8).collect();
    let mut builder = BatchBuilder::new();
    for i in 0..records {
        builder.push(&Record::new(u64::from(i), &value));
    }
    builder.finish()
}

/// A sealed block of equal batches, as large as fits `max_bytes`.
fn make_block(batch: &[u8], max_bytes: usize) -> (Vec<u8>, BlockHeader) {
    let records = batch::client_half(batch).record_count;
    let mut bytes = vec![0; BLOCK_HEADER];
    let mut header = BlockHeader {
        epoch: Epoch(1),
        ..BlockHeader::default()
    };
    let mut crc = BatchesCrc::default();
    while bytes.len() + batch.len() <= max_bytes {
        let at = bytes.len();
        bytes.extend_from_slice(batch);
        let half = LeaderHalf {
            kind: Kind::Data,
            log: LogId::default(),
            base_offset: header.end_offset,
            tick: Tick(1),
            txn_id: 0,
            origin_epoch: Epoch(1),
        };
        batch::write_leader_half(&mut bytes[at..at + BATCH_HEADER], &half);
        crc.add(
            batch::read_prefix(&bytes[at..])
                .expect("a sound header")
                .header_crc,
        );
        header.batch_count += 1;
        header.record_count += records;
        header.end_offset = Offset(u64::from(header.record_count));
    }
    header.used_len = bytes.len() as u32;
    header.last_tick = Tick(1);
    header.max_timestamp = batch::client_half(batch).max_timestamp;
    header.batches_crc = crc.finish();
    block::write_header(&mut bytes, &header);
    let header = block::read_header(&bytes).expect("a sound header");
    block::check_batches(&bytes, &header).expect("a sound block");
    (bytes, header)
}

fn check_block(c: &mut Criterion) {
    let mut group = c.benchmark_group("check_block");
    for (name, records, bytes) in [
        ("100B", 100, 100),
        ("1KiB", 100, 1024),
        ("16KiB", 8, 16_384),
    ] {
        let batch = make_batch(records, bytes);
        let (block, header) = make_block(&batch, 1 << 20);
        group.throughput(Throughput::Bytes(block.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| block::check_batches(black_box(&block), &header).is_ok());
        });
    }
    group.finish();
}

fn encode_batch(c: &mut Criterion) {
    let mut group = c.benchmark_group("encode_batch");
    for (name, records, bytes) in [
        ("100B", 100, 100),
        ("1KiB", 100, 1024),
        ("16KiB", 8, 16_384),
    ] {
        let len = make_batch(records, bytes).len();
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(name, |b| b.iter(|| make_batch(black_box(records), bytes)));
    }
    group.finish();
}

/// The macro makes a public function without a document.
#[allow(missing_docs)]
mod group {
    criterion::criterion_group!(formats, super::check_block, super::encode_batch);
}
criterion::criterion_main!(group::formats);
