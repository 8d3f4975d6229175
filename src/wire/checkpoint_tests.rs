//! Tests of the checkpoint copy: golden bytes, round trips, damage, and facts that cannot be.

use super::*;
use crate::limits::{EPOCH_MAX, POSITION_MAX};
use crate::wire::golden;
use proptest::prelude::*;

const GOLDEN: &str = include_str!("../../tests/data/wire/checkpoint.txt");

fn golden_checkpoint() -> Checkpoint {
    Checkpoint {
        log: LogId {
            origin: OriginId(0x6162_6364),
            shard: ShardId(0x7172),
        },
        sequence: 0xe1e2_e3e4_e5e6_e7e8,
        promised: Epoch(0x5152_5354),
        vote: Some(NodeId(0x0203_0405)),
        config_epoch: 0xf1f2_f3f4_f5f6_f7f8,
        members: vec![NodeId(1), NodeId(0x0203_0405), NodeId(0xf2f3_f4f5)],
        log_start: LogStart {
            block: BlockNo(0x2122_2324_2526_2728),
            offset: Offset(0x2a2b_2c2d_2e2f_2021),
            prev_epoch: Epoch(0x4142_4344),
            prev_crc: 0xd1d2_d3d4,
        },
        scan_from: BlockNo(0x3132_3334_3536_3738),
        high_watermark: BlockNo(0x3a3b_3c3d_3e3f_3031),
        memory: Memory::Lost,
        clean: true,
        boot_id: core::array::from_fn(|index| 0xa0 + index as u8),
        faulty: vec![
            (BlockNo(10), BlockNo(11)),
            (
                BlockNo(0x2a2b_2c2d_2e2f_2021),
                BlockNo(0x3a3b_3c3d_3e3f_3031),
            ),
        ],
    }
}

#[test]
fn golden_bytes_are_written_and_read() {
    golden::assert_layout(include_str!("checkpoint.rs"), GOLDEN);
    let golden = golden::bytes(GOLDEN);
    assert_eq!(read(&golden), Some(golden_checkpoint()));
    let mut written = vec![0xee; CHECKPOINT_COPY];
    write(&mut written, &golden_checkpoint());
    assert_eq!(written, golden);
}

#[test]
fn damaged_copies_are_refused() {
    let golden = golden::bytes(GOLDEN);
    golden::assert_flips_show(&golden, &golden_checkpoint(), read);
    golden::assert_damage_is_refused(&golden, |bytes| read(bytes).is_some());
}

/// all zeros and all ones are no checkpoint.
#[test]
fn blank_and_erased_space_is_no_checkpoint() {
    assert_eq!(read(&[0; CHECKPOINT_COPY]), None);
    assert_eq!(read(&[0xff; CHECKPOINT_COPY]), None);
}

#[test]
fn sealed_copies_that_cannot_be_are_refused() {
    let beyond = (POSITION_MAX + 1).to_le_bytes();
    let patches: [(&str, usize, &[u8]); 21] = [
        ("magic", 0, b"MRSG"),
        ("version", 4, &[2]),
        ("memory", 5, &[2]),
        ("clean", 6, &[2]),
        ("reserved byte", 7, &[1]),
        ("members above the limit", 18, &[17, 0]),
        ("most members", 18, &[0xff; 2]),
        ("members not ascending", 104, &[6, 4, 3, 2]),
        ("members twice", 104, &[5, 4, 3, 2]),
        ("a member behind the last", 116, &[1]),
        ("promised", 28, &(EPOCH_MAX + 1).to_le_bytes()),
        ("start_block", 44, &beyond),
        ("start_offset", 52, &beyond),
        ("start_epoch", 60, &[0xff; 4]),
        ("scan_from", 68, &beyond),
        ("high_watermark", 76, &beyond),
        ("ranges above the limit", 100, &[65]),
        ("most ranges", 100, &[0xff; 4]),
        ("empty range", 176, &[10]),
        ("a range behind the last", 200, &[1]),
        ("reserved byte", 4095, &[1]),
    ];
    for (what, at, with) in patches {
        let mut bytes = golden::patched(&golden::bytes(GOLDEN), at..at + with.len(), with);
        golden::reseal(&mut bytes, HEADER_CRC);
        assert_eq!(read(&bytes), None, "{what}");
    }
}

/// A vote for node 0 would read as none, so that a second one could be given.
#[test]
#[should_panic(expected = "no reader takes")]
fn a_vote_for_node_0_is_not_written() {
    let checkpoint = Checkpoint {
        vote: Some(NodeId(0)),
        ..Checkpoint::default()
    };
    write(&mut [0; CHECKPOINT_COPY], &checkpoint);
}

prop_compose! {
    fn checkpoints()(
        log in any::<(u32, u16)>(),
        numbers in any::<(u64, u64, u32)>(),
        epochs in (0..=EPOCH_MAX, 0..=EPOCH_MAX),
        vote in prop::option::of(1..=u32::MAX),
        members in prop::collection::btree_set(any::<u32>(), 0..=MAX_NODES),
        positions in prop::collection::vec(0..=POSITION_MAX, 4),
        flags in any::<(bool, bool)>(),
        boot_id: [u8; 16],
        faulty in prop::collection::vec((0..POSITION_MAX - 9, 1..9_u64), 0..=MAX_FAULTY),
    ) -> Checkpoint {
        Checkpoint {
            log: LogId { origin: OriginId(log.0), shard: ShardId(log.1) },
            sequence: numbers.0,
            promised: Epoch(epochs.0),
            vote: vote.map(NodeId),
            config_epoch: numbers.1,
            members: members.into_iter().map(NodeId).collect(),
            log_start: LogStart {
                block: BlockNo(positions[0]),
                offset: Offset(positions[1]),
                prev_epoch: Epoch(epochs.1),
                prev_crc: numbers.2,
            },
            scan_from: BlockNo(positions[2]),
            high_watermark: BlockNo(positions[3]),
            memory: if flags.0 { Memory::Lost } else { Memory::Whole },
            clean: flags.1,
            boot_id,
            faulty: faulty
                .into_iter()
                .map(|(from, len)| (BlockNo(from), BlockNo(from + len)))
                .collect(),
        }
    }
}

proptest! {
    #[test]
    fn checkpoints_round_trip(checkpoint in checkpoints()) {
        let mut bytes = vec![0xee; CHECKPOINT_COPY + 1];
        write(&mut bytes, &checkpoint);
        prop_assert_eq!(read(&bytes), Some(checkpoint));
        prop_assert_eq!(bytes[CHECKPOINT_COPY], 0xee);
    }

    #[test]
    fn arbitrary_bytes_are_no_checkpoint(seed in prop::collection::vec(any::<u8>(), 1..200)) {
        let bytes: Vec<u8> = seed.iter().copied().cycle().take(CHECKPOINT_COPY).collect();
        prop_assert_eq!(read(&bytes), None);
        prop_assert_eq!(read(&seed), None);
    }

    /// Behind a good CRC any copy is read or refused; what is read writes the same bytes again.
    #[test]
    fn sealed_arbitrary_copies_do_no_harm(
        noise in prop::collection::vec(any::<u8>(), 1..200),
        at in 5..1192_usize,
    ) {
        let mut bytes = golden::bytes(GOLDEN);
        bytes[at..at + noise.len()].copy_from_slice(&noise);
        golden::reseal(&mut bytes, HEADER_CRC);
        if let Some(checkpoint) = read(&bytes) {
            let mut again = vec![0xee; CHECKPOINT_COPY];
            write(&mut again, &checkpoint);
            prop_assert_eq!(again, bytes);
        }
    }
}
