//! Tests of the payloads: exact length, JSON, stamp and CRC, variety.

use super::*;

fn maker(bytes: usize) -> PayloadMaker {
    let mut maker = PayloadMaker::new(Texts::new(1, bytes), 2, 0xdead_beef, bytes);
    maker.producer(7);
    maker
}

#[test]
fn a_payload_has_the_length_asked_for_and_is_json() {
    for bytes in [MIN_BYTES, 100, 1024, 16_384, 2 << 20] {
        let mut maker = maker(bytes);
        let value = maker.make(123_456).to_vec();
        assert_eq!(value.len(), bytes);
        let json: serde_json::Value = serde_json::from_slice(&value).expect("JSON");
        assert_eq!(json["run"], "deadbeef");
        assert_eq!(json["from"], "00000007");
        assert_eq!(json["seq"], "0001e240");
    }
}

#[test]
fn a_payload_reads_back_as_it_was_stamped() {
    let mut maker = maker(100);
    for sequence in [0, 1, 99, u32::MAX] {
        let expected = Stamp {
            run: 0xdead_beef,
            producer: 7,
            sequence,
        };
        assert_eq!(read(maker.make(sequence)), Ok(expected));
    }
}

#[test]
fn any_flipped_bit_is_seen() {
    let value = maker(MIN_BYTES).make(5).to_vec();
    for at in 0..value.len() {
        for bit in 0..8 {
            let mut flipped = value.clone();
            flipped[at] ^= 1 << bit;
            assert!(read(&flipped).is_err(), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn payloads_vary() {
    let mut maker = maker(1024);
    let text = |value: &[u8]| value[TEXT_AT..value.len() - TAIL].to_vec();
    let texts: std::collections::BTreeSet<_> = (0..1000).map(|n| text(maker.make(n))).collect();
    assert!(texts.len() > 990, "{} texts of 1000", texts.len());
}

#[test]
fn equal_seeds_make_equal_payloads() {
    let (mut one, mut two) = (maker(200), maker(200));
    for sequence in 0..100 {
        assert_eq!(one.make(sequence), two.make(sequence));
    }
}
