//! Tests of the snapshot of producers: golden bytes, round trips, foreign bytes.

use super::*;
use crate::limits::POSITION_MAX;
use crate::wire::golden;
use proptest::prelude::*;

const GOLDEN: &str = include_str!("../../tests/data/wire/producers.txt");

fn batch(base_sequence: u32, record_count: u32, client_crc: u32, place: (u64, u64)) -> KnownBatch {
    KnownBatch {
        base_sequence,
        record_count,
        client_crc,
        epoch: Epoch(0x5152_5354),
        base_offset: Offset(place.0),
        block: BlockNo(place.1),
    }
}

fn producers() -> Vec<Producer> {
    let (offset, block) = (0x3132_3334_3536_3738, 0x2a2b_2c2d_2e2f_2021);
    let first = batch(u32::MAX - 1, 2, 0xd1d2_d3d4, (offset, block));
    let second = batch(0, 7, 0xc1c2_c3c4, (offset + 2, block + 1));
    let last = KnownBatch {
        epoch: Epoch(1),
        ..batch(9, 1, 0, (0, 0))
    };
    vec![
        Producer {
            id: 1,
            epoch: 0x0304,
            last_tick: Tick(0x2122_2324_2526_2728),
            batches: [first, second].into(),
        },
        Producer {
            id: 0xe1e2_e3e4_e5e6_e7e8,
            epoch: 0,
            last_tick: Tick(1),
            batches: [last].into(),
        },
    ]
}

fn encoded(producers: &[Producer]) -> Vec<u8> {
    encode(producers.iter())
}

#[test]
fn golden_bytes_are_written_and_read() {
    let bytes = golden::bytes(GOLDEN);
    assert_eq!(encoded(&producers()), bytes);
    assert_eq!(decode(&bytes), Some(producers()));
    assert_eq!(decode(&encoded(&[])), Some(Vec::new()));
}

#[test]
fn a_flipped_bit_shows_and_other_lengths_are_refused() {
    let bytes = golden::bytes(GOLDEN);
    golden::assert_flips_show(&bytes, &producers(), decode);
    for len in 0..bytes.len() {
        assert_eq!(decode(&bytes[..len]), None, "{len} bytes");
    }
    assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
}

#[test]
fn the_largest_snapshot_has_the_length_that_was_set_aside() {
    let batches: VecDeque<KnownBatch> = (0..PRODUCER_BATCHES as u32)
        .map(|number| batch(number, 1, 0, (1, 1)))
        .collect();
    let producer = |id| Producer {
        id,
        epoch: 1,
        last_tick: Tick(id),
        batches: batches.clone(),
    };
    let most: Vec<Producer> = (1..=PRODUCERS as u64).map(producer).collect();
    let bytes = encoded(&most);
    assert_eq!(bytes.len(), max_len(PRODUCERS));
    assert_eq!(decode(&bytes).as_ref(), Some(&most));
    let more: Vec<Producer> = (1..=PRODUCERS as u64 + 1).map(producer).collect();
    assert_eq!(decode(&encoded(&more)), None, "one more than a log has");
}

/// Numbers that would harm whoever counts on with them, and producers that no log has.
#[test]
fn numbers_out_of_bounds_are_refused() {
    let refused = |change: fn(&mut Vec<Producer>)| {
        let mut changed = producers();
        change(&mut changed);
        assert_eq!(decode(&encoded(&changed)), None, "{changed:?}");
    };
    refused(|all| all[0].id = 0);
    refused(|all| all[1].id = 1);
    refused(|all| all.swap(0, 1));
    refused(|all| all[0].last_tick = Tick(POSITION_MAX + 1));
    refused(|all| all[0].batches.clear());
    refused(|all| all[0].batches[0].record_count = 0);
    refused(|all| all[0].batches[0].base_offset = Offset(POSITION_MAX + 1));
    refused(|all| all[0].batches[0].block = BlockNo(POSITION_MAX + 1));
    refused(|all| all[0].batches[0].epoch = Epoch(u32::MAX));
    refused(|all| {
        let one = all[0].batches[0];
        all[0].batches.extend([one; PRODUCER_BATCHES]);
    });
}

/// Only the last batches are known; one that does not follow begins anew.
#[test]
fn a_producer_knows_its_last_batches() {
    let half = ClientHalf {
        producer_id: 1,
        producer_epoch: 3,
        ..ClientHalf::default()
    };
    let mut producer = Producer {
        id: 1,
        epoch: 3,
        last_tick: Tick(0),
        batches: VecDeque::new(),
    };
    let mut next = u32::MAX - 9;
    for number in 0..8 {
        producer.note(
            &half,
            batch(next, 3, number, (1, 1)),
            Tick(u64::from(number)),
        );
        next = next.wrapping_add(3);
    }
    let known: Vec<u32> = producer.batches.iter().map(|one| one.client_crc).collect();
    assert_eq!((known, producer.last_tick), (vec![3, 4, 5, 6, 7], Tick(7)));
    producer.note(&half, batch(next.wrapping_add(1), 1, 8, (1, 1)), Tick(8));
    assert_eq!(producer.batches.len(), 1);
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(
        at in 0..160_usize,
        noise in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut bytes = golden::bytes(GOLDEN);
        for (byte, with) in bytes.iter_mut().skip(at).zip(noise) {
            *byte = with;
        }
        if let Some(producers) = decode(&bytes) {
            prop_assert_eq!(encoded(&producers), bytes);
        }
    }
}
