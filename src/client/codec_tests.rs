//! Bodies compressed and opened; bombs and lies refused.

use super::*;
use crate::types::{Epoch, LogId, Offset, Tick};
use crate::wire::batch::{Kind, LeaderHalf};
use crate::wire::record::{self, BatchBuilder, Record};

fn batch(count: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.producer(7, 1, 3);
    for number in 0..count {
        let value = format!("{{\"sensor\": \"temperature\", \"value\": {number}}}");
        builder.push(&Record::new(number as u64, value.as_bytes()).with_key(b"k"));
    }
    builder.finish()
}

fn accepted(mut batch: Vec<u8>) -> Bytes {
    let half = LeaderHalf {
        kind: Kind::Data,
        log: LogId::default(),
        base_offset: Offset(0),
        tick: Tick(1),
        txn_id: 0,
        origin_epoch: Epoch(1),
    };
    batch::write_leader_half(&mut batch, &half);
    assert!(batch::check(&batch).is_ok());
    batch.into()
}

fn with_raw_len(mut batch: Vec<u8>, raw_len: u32) -> Bytes {
    let mut half = batch::client_half(&batch);
    half.raw_len = raw_len;
    batch::write_client_half(&mut batch, &half);
    accepted(batch)
}

#[test]
fn a_body_comes_back_as_it_was() {
    let plain = batch(500);
    let stored = store(Codec::Zstd(3), plain.clone());
    assert!(stored.len() * 3 < plain.len(), "{} bytes", stored.len());
    let (before, after) = (batch::client_half(&plain), batch::client_half(&stored));
    assert_eq!(after.flags, before.flags | FLAG_ZSTD);
    assert_eq!(after.raw_len, before.raw_len);
    assert_eq!(
        (after.producer_id, after.producer_epoch, after.base_sequence),
        (7, 1, 3)
    );
    let body = open(&accepted(stored), BATCH_HEADER, 0).unwrap();
    assert_eq!(body, plain[BATCH_HEADER..]);
    assert_eq!(record::read_all(&body).filter(Result::is_ok).count(), 500);
}

#[test]
fn a_body_that_does_not_shrink_stays_as_it_is() {
    let plain = batch(1);
    assert_eq!(store(Codec::Zstd(3), plain.clone()), plain);
    assert_eq!(store(Codec::None, plain.clone()), plain);
}

/// A few kilobytes that would become 64 MiB: refused by what the header says, and by what comes out
/// when the header lies.
#[test]
fn a_decompression_bomb_is_refused() {
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
    assert!(bomb.len() < 16 << 10);
    let mut whole = vec![0; BATCH_HEADER];
    whole.extend_from_slice(&bomb);
    let half = batch::ClientHalf {
        record_count: 1,
        stored_len: bomb.len() as u32,
        raw_len: 64 << 20,
        flags: FLAG_ZSTD,
        ..batch::ClientHalf::default()
    };
    batch::write_client_half(&mut whole, &half);
    for raw_len in [64 << 20, u32::MAX, 1000, 16 << 20, 0] {
        let opened = open(&with_raw_len(whole.clone(), raw_len), BATCH_HEADER, 5);
        assert!(
            matches!(opened, Err(Failure::Damaged { offset: 5, .. })),
            "{raw_len}: {opened:?}"
        );
    }
}

#[test]
fn a_wrong_length_and_an_unknown_codec_are_refused() {
    let stored = store(Codec::Zstd(3), batch(500));
    let raw = batch::client_half(&stored).raw_len;
    for wrong in [raw - 1, raw + 1] {
        assert!(open(&with_raw_len(stored.clone(), wrong), BATCH_HEADER, 0).is_err());
    }
    let plain = batch(2);
    let raw = batch::client_half(&plain).raw_len;
    assert!(open(&with_raw_len(plain.clone(), raw + 1), BATCH_HEADER, 0).is_err());
    let mut unknown = plain;
    let mut half = batch::client_half(&unknown);
    half.flags |= 2;
    batch::write_client_half(&mut unknown, &half);
    assert!(open(&accepted(unknown), BATCH_HEADER, 0).is_err());
}
