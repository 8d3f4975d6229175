//! Tests of the codec: what was packed comes back, nothing grows, damage is refused.

use super::*;
use crate::wire::record::{self, BatchBuilder, Record};

fn batch(values: &[Vec<u8>]) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.producer(7, 1, 40);
    for value in values {
        builder.push(&Record::new(5, value).with_key(b"pump"));
    }
    builder.finish()
}

fn texts() -> Vec<Vec<u8>> {
    let text = |n: u32| format!("pump {n} reads {} bar in hall A; ", n * 37 % 991).repeat(4);
    (0..50).map(|n| text(n).into_bytes()).collect()
}

fn noise() -> Vec<Vec<u8>> {
    let mut state = 1_u64;
    let mut byte = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    vec![(0..4096).map(|_| byte()).collect()]
}

#[test]
fn a_packed_batch_is_smaller_sound_and_unpacks_to_the_same_records() {
    let plain = batch(&texts());
    let packed = pack(plain.clone(), Codec::Zstd);
    assert!(packed.len() * 3 < plain.len(), "{} bytes", packed.len());
    let half = batch::check_from_client(&packed).expect("sound");
    let before = batch::client_half(&plain);
    assert_eq!(half.raw_len, before.stored_len);
    assert_eq!(half.flags, before.flags | batch::FLAG_ZSTD);
    let same = ClientHalf {
        stored_len: before.stored_len,
        flags: before.flags,
        ..half
    };
    assert_eq!(same, before);
    let body = unpack(&half, &packed[BATCH_HEADER..]).expect("unpacks");
    let values: Vec<_> = record::read_all(&body)
        .map(|record| record.expect("a record").value.to_vec())
        .collect();
    assert_eq!(values, texts());
    assert_eq!(pack(packed.clone(), Codec::Zstd), packed, "never twice");
}

#[test]
fn what_does_not_get_smaller_stays_as_it_is() {
    let plain = batch(&noise());
    assert_eq!(pack(plain.clone(), Codec::Zstd), plain);
    let small = batch(&[b"x".to_vec()]);
    assert_eq!(pack(small.clone(), Codec::Zstd), small);
    assert_eq!(pack(batch(&texts()), Codec::None), batch(&texts()));
    let half = batch::client_half(&plain);
    let body = unpack(&half, &plain[BATCH_HEADER..]).expect("not packed");
    assert_eq!(&*body, &plain[BATCH_HEADER..]);
}

#[test]
fn a_header_that_lies_is_refused() {
    let packed = pack(batch(&texts()), Codec::Zstd);
    let half = batch::client_half(&packed);
    let body = &packed[BATCH_HEADER..];
    for raw_len in [0, half.raw_len - 1, half.raw_len + 1] {
        let lie = ClientHalf { raw_len, ..half };
        assert_eq!(unpack(&lie, body), Err(CodecError::Damaged), "{raw_len}");
    }
    let raw_len = BATCH_MAX as u32 + 1;
    let lie = ClientHalf { raw_len, ..half };
    assert_eq!(unpack(&lie, body), Err(CodecError::TooLarge(raw_len)));
    for number in [2, 3] {
        let flags = half.flags & !batch::CODEC_MASK | number;
        let lie = ClientHalf { flags, ..half };
        assert_eq!(unpack(&lie, body), Err(CodecError::Unknown(number)));
    }
    for cut in [0, 1, body.len() / 2, body.len() - 1] {
        assert_eq!(
            unpack(&half, &body[..cut]),
            Err(CodecError::Damaged),
            "{cut}"
        );
    }
}

/// A few kilobytes that would become 64 MiB: refused by what the header says, and by what comes out
/// when the header lies.
#[test]
fn a_decompression_bomb_is_refused() {
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
    assert!(bomb.len() < 16 << 10);
    for raw_len in [64 << 20, u32::MAX, 1000, 16 << 20, 0] {
        let half = ClientHalf {
            record_count: 1,
            stored_len: bomb.len() as u32,
            raw_len,
            flags: batch::FLAG_ZSTD,
            ..ClientHalf::default()
        };
        assert!(unpack(&half, &bomb).is_err(), "{raw_len}");
    }
}
