//! Tests of the segment header block: golden bytes, round trips, damage, and file names.

use super::*;
use crate::limits::{EPOCH_MAX, POSITION_MAX};
use crate::wire::golden;
use proptest::prelude::*;

const GOLDEN: &str = include_str!("../../tests/data/wire/segment.txt");

fn golden_header() -> SegmentHeader {
    SegmentHeader {
        log: LogId {
            origin: OriginId(0x6162_6364),
            shard: ShardId(0x7172),
        },
        base_block: BlockNo(0x2a2b_2c2d_2e2f_2021),
        base_offset: Offset(0x2122_2324_2526_2728),
        prev_epoch: Epoch(0x5152_5354),
        prev_crc: 0xd1d2_d3d4,
    }
}

#[test]
fn golden_bytes_are_written_and_read() {
    golden::assert_layout(include_str!("segment.rs"), GOLDEN);
    let golden = golden::bytes(GOLDEN);
    assert_eq!(read(&golden), Some(golden_header()));
    let mut written = vec![0xee; SEGMENT_HEADER];
    write(&mut written, &golden_header());
    assert_eq!(written, golden);
}

#[test]
fn damaged_headers_are_refused() {
    let golden = golden::bytes(GOLDEN);
    golden::assert_flips_show(&golden, &golden_header(), read);
    golden::assert_damage_is_refused(&golden, |bytes| read(bytes).is_some());
}

/// all zeros and all ones are no segment header.
#[test]
fn blank_and_erased_space_is_no_header() {
    assert_eq!(read(&[0; SEGMENT_HEADER]), None);
    assert_eq!(read(&[0xff; SEGMENT_HEADER]), None);
}

#[test]
fn sealed_headers_that_cannot_be_are_refused() {
    let beyond = (POSITION_MAX + 1).to_le_bytes();
    let patches: [(&str, usize, &[u8]); 9] = [
        ("magic", 0, b"MRBK"),
        ("version", 4, &[2]),
        ("reserved byte", 5, &[1]),
        ("reserved byte", 19, &[1]),
        ("reserved byte", 44, &[1]),
        ("reserved byte", 4095, &[1]),
        ("base_block", 20, &beyond),
        ("base_offset", 28, &beyond),
        ("prev_epoch", 36, &(EPOCH_MAX + 1).to_le_bytes()),
    ];
    for (what, at, with) in patches {
        let mut bytes = golden::patched(&golden::bytes(GOLDEN), at..at + with.len(), with);
        golden::reseal(&mut bytes, HEADER_CRC);
        assert_eq!(read(&bytes), None, "{what}");
    }
}

#[test]
fn names_sort_by_block() {
    assert_eq!(file_name(BlockNo(7)), "00000000000000000007.seg");
    assert_eq!(base_of("00000000000000000007.seg"), Some(BlockNo(7)));
    for name in [
        "",
        ".seg",
        "next.seg",
        "7.seg",
        "+0000000000000000007.seg",
        "00000000000000000007.seg~",
        "000000000000000000007.seg",
        "99999999999999999999.seg",
    ] {
        assert_eq!(base_of(name), None, "{name}");
    }
}

proptest! {
    #[test]
    fn headers_round_trip(
        log in any::<(u32, u16)>(),
        base in (0..=POSITION_MAX, 0..=POSITION_MAX),
        prev in (0..=EPOCH_MAX, any::<u32>()),
    ) {
        let header = SegmentHeader {
            log: LogId { origin: OriginId(log.0), shard: ShardId(log.1) },
            base_block: BlockNo(base.0),
            base_offset: Offset(base.1),
            prev_epoch: Epoch(prev.0),
            prev_crc: prev.1,
        };
        let mut bytes = vec![0xee; SEGMENT_HEADER + 1];
        write(&mut bytes, &header);
        prop_assert_eq!(read(&bytes), Some(header));
        prop_assert_eq!(bytes[SEGMENT_HEADER], 0xee);
        prop_assert_eq!(base_of(&file_name(header.base_block)), Some(header.base_block));
    }

    #[test]
    fn arbitrary_bytes_are_no_header(seed in prop::collection::vec(any::<u8>(), 1..200)) {
        let bytes: Vec<u8> = seed.iter().copied().cycle().take(SEGMENT_HEADER).collect();
        prop_assert_eq!(read(&bytes), None);
        prop_assert_eq!(read(&seed), None);
    }

    /// Behind a good CRC any header is read or refused; what is read writes the same bytes again.
    #[test]
    fn sealed_arbitrary_headers_do_no_harm(noise in prop::collection::vec(any::<u8>(), 32)) {
        let mut bytes = golden::patched(&golden::bytes(GOLDEN), 12..44, &noise);
        golden::reseal(&mut bytes, HEADER_CRC);
        if let Some(header) = read(&bytes) {
            let mut again = vec![0xee; SEGMENT_HEADER];
            write(&mut again, &header);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn arbitrary_names_do_no_harm(name in "[0-9]{18,21}\\.seg|.{0,30}") {
        if let Some(base) = base_of(&name) {
            prop_assert_eq!(file_name(base), name);
        }
    }
}
