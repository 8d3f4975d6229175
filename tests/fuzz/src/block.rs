//! Blocks and what is in them: header, batches, padding, records, packed bodies, producers.

use super::mend::{self, Place};
use millrace::client::codec::{self, Codec};
use millrace::limits::{BATCH_HEADER, BLOCK_HEADER, PRODUCERS, WRITE_WINDOW};
use millrace::types::{LogId, OriginId, ShardId};
use millrace::wire::batch::{self, ClientHalf};
use millrace::wire::block::{self, BlockHeader};
use millrace::wire::producers;
use millrace::wire::record::{self, BATCH_MAX, BatchBuilder};

/// A block, a client's batch, a body and a snapshot of producers, each made of the same bytes.
pub fn play(bytes: &[u8]) {
    take(bytes);
    take(&mend::block(bytes));
    let log = LogId {
        origin: OriginId(7),
        shard: ShardId(3),
    };
    let place = Place {
        log,
        epoch: 2,
        block: 5,
        prev_crc: 1,
        base_offset: 40,
        last_tick: 9,
    };
    let whole = mend::sums(bytes, &place);
    assert!(take(&whole), "a mended block is whole: {whole:?}");
    client_batch(bytes);
    client_batch(&mend::client_batch(bytes));
    records(bytes);
    unpack(bytes);
    producers(bytes);
    let mut snapshot = bytes.to_vec();
    snapshot.splice(..snapshot.len().min(8), *b"MRPS\x01\0\0\0");
    producers(&snapshot);
}

/// Whether every check of a block passes.
fn take(bytes: &[u8]) -> bool {
    let Ok(header) = block::read_header(bytes) else {
        return false;
    };
    let mut again = [0; BLOCK_HEADER];
    let crc = block::write_header(&mut again, &header);
    assert_eq!(crc, header.header_crc);
    assert_eq!(again, bytes[..BLOCK_HEADER], "{header:?}");
    assert!(u64::from(header.used_len) <= WRITE_WINDOW);
    let sound = block::check_batches(bytes, &header).is_ok();
    // Neither may trust a block that was not checked.
    let walked: Vec<_> = block::walk(bytes, &header).collect();
    let listed = block::batches(bytes, &header);
    if sound {
        whole(bytes, &header, &walked, &listed);
    }
    let used = header.used_len as usize;
    if let Some(block) = bytes.get(..used) {
        let mut padded = block.to_vec();
        padded.resize(header.padded_len(), 0);
        assert_eq!(block::check_padding(&padded, &header), Ok(()));
        if let Some(last) = padded[used..].last_mut() {
            *last = 1;
            assert!(block::check_padding(&padded, &header).is_err());
        }
    }
    sound
}

fn whole(
    bytes: &[u8],
    header: &BlockHeader,
    walked: &[(&[u8], batch::BatchPrefix)],
    listed: &[(usize, batch::BatchPrefix)],
) {
    assert_eq!(walked.len(), header.batch_count as usize);
    assert_eq!(walked.len(), listed.len());
    let mut next = header.base_offset;
    for ((part, prefix), (at, same)) in walked.iter().zip(listed) {
        assert_eq!(prefix, same);
        assert_eq!(*part, &bytes[*at..*at + prefix.total_len()]);
        assert_eq!(batch::check(part), Ok(*prefix));
        assert_eq!((prefix.base_offset, prefix.log), (next, header.log));
        next = prefix.end_offset();
        if prefix.version == batch::VERSION {
            let half = batch::client_half(part);
            body(&half, &part[BATCH_HEADER..]);
        }
    }
    assert_eq!(next, header.end_offset);
    let mut rotten = bytes[..header.used_len as usize].to_vec();
    let at = header.header_crc as usize % rotten.len();
    rotten[at] ^= 0x10;
    let broken = block::read_header(&rotten)
        .and_then(|header| block::check_batches(&rotten, &header))
        .is_err();
    assert!(broken, "a flip at {at} is seen");
}

/// A batch as a client sends it.
fn client_batch(bytes: &[u8]) {
    let Ok(half) = batch::check_from_client(bytes) else {
        return;
    };
    let mut again = bytes.to_vec();
    batch::write_client_half(&mut again, &half);
    let mine = &again[batch::CLIENT_HALF..];
    assert_eq!(mine, &bytes[batch::CLIENT_HALF..], "{half:?}");
    assert_eq!(batch::client_crc(&again), batch::client_crc(bytes));
    body(&half, &bytes[BATCH_HEADER..]);
}

/// A stored body with what its header says of it.
fn body(half: &ClientHalf, stored: &[u8]) {
    if let Ok(raw) = codec::unpack(half, stored) {
        let packed = half.flags & batch::CODEC_MASK != 0;
        assert!(!packed || raw.len() == half.raw_len as usize);
        assert!(!packed || raw.len() <= BATCH_MAX, "{} bytes", raw.len());
        records(&raw);
    }
}

/// A body that is packed: with the length that its first bytes name, and with ones that lie.
fn unpack(bytes: &[u8]) {
    let Some((named, stored)) = bytes.split_first_chunk() else {
        return;
    };
    let named = u32::from_le_bytes(*named);
    for raw_len in [named, named % 4096, stored.len() as u32, u32::MAX] {
        let half = ClientHalf {
            raw_len,
            flags: batch::FLAG_ZSTD,
            ..ClientHalf::default()
        };
        body(&half, stored);
    }
}

/// Records that parse are written as they were read, packed or not.
fn records(bytes: &[u8]) {
    let all: Result<Vec<_>, _> = record::read_all(bytes).collect();
    let Ok(all) = all else {
        return;
    };
    let mut builder = BatchBuilder::new();
    for record in &all {
        let labels: Vec<_> = record.labels().collect();
        if builder.try_push(record, &labels).is_err() {
            assert!(bytes.len() + BATCH_HEADER > BATCH_MAX, "{record:?} fits");
            return;
        }
    }
    let built = builder.finish();
    assert_eq!(&built[BATCH_HEADER..], bytes);
    let packed = codec::pack(built, Codec::Zstd);
    let half = batch::client_half(&packed);
    assert!(half.record_count as usize == all.len());
    let raw = codec::unpack(&half, &packed[BATCH_HEADER..]);
    assert_eq!(raw.as_deref(), Ok(bytes));
}

fn producers(bytes: &[u8]) {
    let Some(found) = producers::decode(bytes) else {
        return;
    };
    assert!(found.len() <= PRODUCERS);
    assert_eq!(producers::encode(found.iter()), bytes);
}
