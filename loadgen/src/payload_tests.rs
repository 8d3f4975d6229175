//! Tests of the payloads: exact length, JSON, stamp and CRC, variety, how far they pack.

use millrace::client::codec::{self, Codec};
use millrace::wire::record::{BatchBuilder, Record};

use super::*;

fn maker(payload: Payload, bytes: usize) -> PayloadMaker {
    let texts = Texts::new(1, bytes);
    let mut maker = PayloadMaker::new(payload, texts, 2, 0xdead_beef, bytes);
    maker.producer(7);
    maker
}

#[test]
fn a_payload_of_json_has_the_length_asked_for_and_parses() {
    for bytes in [96, 100, 1024, 16_384, 2 << 20] {
        let mut maker = maker(Payload::Json, bytes);
        let value = maker.make(123_456, b"").to_vec();
        assert_eq!(value.len(), bytes);
        let json: serde_json::Value = serde_json::from_slice(&value).expect("JSON");
        assert_eq!(json["run"], "deadbeef");
        assert_eq!(json["from"], "00000007");
        assert_eq!(json["seq"], "0001e240");
    }
}

#[test]
fn a_payload_reads_back_as_it_was_stamped() {
    for payload in Payload::ALL {
        for bytes in [payload.min_bytes(), 100, 1021] {
            let mut maker = maker(payload, bytes);
            for sequence in [0, 1, 99, u32::MAX] {
                let expected = Stamp {
                    run: 0xdead_beef,
                    producer: 7,
                    sequence,
                };
                let value = maker.make(sequence, b"00000017").to_vec();
                assert_eq!(value.len(), bytes);
                assert_eq!(payload.read(b"00000017", &value), Ok(expected));
                let other = payload.read(b"00000018", &value);
                assert_eq!(other, Err(PayloadError::Crc), "the key counts");
            }
        }
    }
}

#[test]
fn any_flipped_bit_is_seen() {
    for payload in Payload::ALL {
        let value = maker(payload, 100).make(5, b"").to_vec();
        for at in 0..value.len() {
            for bit in 0..8 {
                let mut flipped = value.clone();
                flipped[at] ^= 1 << bit;
                let read = payload.read(b"", &flipped);
                assert!(read.is_err(), "{payload}: byte {at}, bit {bit}");
            }
        }
        assert!(
            payload
                .read(b"", &value[..payload.min_bytes() - 1])
                .is_err()
        );
    }
}

#[test]
fn texts_vary() {
    let mut maker = maker(Payload::Json, 1024);
    let text = |value: &[u8]| value[TEXT_AT..value.len() - TAIL].to_vec();
    let make = |sequence| text(maker.make(sequence, b""));
    let texts: std::collections::BTreeSet<_> = (0..1000).map(make).collect();
    assert!(texts.len() > 990, "{} texts of 1000", texts.len());
}

#[test]
fn equal_seeds_make_equal_payloads() {
    for payload in Payload::ALL {
        let (mut one, mut two) = (maker(payload, 200), maker(payload, 200));
        for sequence in 0..100 {
            assert_eq!(one.make(sequence, b""), two.make(sequence, b""));
        }
    }
}

/// How much smaller zstd makes a batch of this payload.
fn ratio(payload: Payload) -> f64 {
    let mut maker = maker(payload, 1024);
    let mut builder = BatchBuilder::new();
    for sequence in 0..100 {
        builder.push(&Record::new(1, maker.make(sequence, b"")));
    }
    let raw = builder.finish();
    let packed = codec::pack(raw.clone(), Codec::Zstd);
    raw.len() as f64 / packed.len() as f64
}

/// H-82
#[test]
fn each_kind_packs_as_its_name_says() {
    let (json, random) = (ratio(Payload::Json), ratio(Payload::Random));
    assert!((2.0..8.0).contains(&json), "json {json}");
    assert!((1.0..1.05).contains(&random), "random {random}");
    assert!(ratio(Payload::Constant) > 20.0);
}
