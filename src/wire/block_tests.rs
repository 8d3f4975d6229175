//! Tests of the block: golden bytes, damage anywhere, and every way in which header and batches can
//! disagree.

use super::*;
use crate::limits::{EPOCH_MAX, POSITION_MAX};
use crate::wire::batch::tests as batches_of;
use crate::wire::batch::{ClientHalf, Kind, LeaderHalf};
use crate::wire::golden;
use proptest::prelude::*;

const GOLDEN: &str = include_str!("../../tests/data/wire/block.txt");
const LOCAL: &str = include_str!("../../tests/data/wire/local.txt");

fn golden_header() -> BlockHeader {
    BlockHeader {
        log: LogId {
            origin: OriginId(0x6162_6364),
            shard: ShardId(0x7172),
        },
        epoch: Epoch(0x5152_5354),
        block: BlockNo(0x2a2b_2c2d_2e2f_2021),
        header_crc: u32_at(&golden::bytes(GOLDEN), 8),
        prev_header_crc: 0xd1d2_d3d4,
        batches_crc: u32_at(&golden::bytes(GOLDEN), 12),
        used_len: 446,
        batch_count: 2,
        record_count: 2,
        base_offset: Offset(0x2122_2324_2526_2728),
        end_offset: Offset(0x2122_2324_2526_272a),
        committed_end: BlockNo(0x1a1b_1c1d_1e1f_1011),
        max_timestamp: 0x1112_1314_1516_1718,
        last_tick: Tick(0x3132_3334_3536_3738),
        first_in_segment: true,
    }
}

/// The golden block as it lies on the disk, padding included.
fn golden_block() -> Vec<u8> {
    let mut bytes = golden::bytes(GOLDEN);
    bytes.extend(golden::bytes(LOCAL));
    bytes.extend(batches_of::golden_batch());
    bytes.resize(padded(bytes.len()), 0);
    bytes
}

/// All checks of a block; its header if it passes.
fn check(bytes: &[u8]) -> Result<BlockHeader, BlockError> {
    let header = read_header(bytes)?;
    check_batches(bytes, &header)?;
    check_padding(bytes, &header)?;
    Ok(header)
}

/// A sealed block of whole batches that begin at `first.base_offset`; the rest is taken from them.
fn sealed(first: BlockHeader, content: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_HEADER];
    let mut header = BlockHeader {
        end_offset: first.base_offset,
        max_timestamp: 0,
        ..first
    };
    let mut crc = BatchesCrc::default();
    for one in content {
        let prefix = batch::check(one).expect("a batch");
        if prefix.version == batch::VERSION {
            let latest = batch::client_half(one).max_timestamp;
            header.max_timestamp = header.max_timestamp.max(latest);
        }
        header.end_offset = prefix.end_offset();
        header.last_tick = prefix.tick;
        crc.add(prefix.header_crc);
        bytes.extend_from_slice(one);
    }
    header.record_count = (header.end_offset.0 - header.base_offset.0) as u32;
    header.batch_count = content.len() as u32;
    header.used_len = bytes.len() as u32;
    header.batches_crc = crc.finish();
    bytes.resize(padded(bytes.len()), 0);
    write_header(&mut bytes, &header);
    bytes
}

fn data_batch(half: ClientHalf, body: &[u8], base_offset: u64, tick: u64) -> Vec<u8> {
    let mut bytes = batches_of::from_client(half, body);
    let leader = LeaderHalf {
        kind: Kind::Data,
        log: golden_header().log,
        base_offset: Offset(base_offset),
        tick: Tick(tick),
        txn_id: 0,
        origin_epoch: Epoch(3),
    };
    batch::write_leader_half(&mut bytes, &leader);
    bytes
}

/// Three batches of 3, 1 and 2 records; the second one has the latest record.
fn three_batches() -> Vec<Vec<u8>> {
    let half = |record_count, max_timestamp| ClientHalf {
        record_count,
        max_timestamp,
        ..ClientHalf::default()
    };
    vec![
        data_batch(half(3, 50), b"first body", 100, 7),
        data_batch(half(1, 90), &[0xff; 99], 103, 8),
        data_batch(half(2, 60), &[0; 99], 104, 9),
    ]
}

fn first_header() -> BlockHeader {
    BlockHeader {
        base_offset: Offset(100),
        first_in_segment: false,
        ..golden_header()
    }
}

/// H-24: first and last offset, record count and largest timestamp stand beside the bytes.
#[test]
fn golden_bytes_are_written_and_read() {
    golden::assert_layout(include_str!("block.rs"), GOLDEN);
    let golden = golden_block();
    assert_eq!(check(&golden), Ok(golden_header()));
    assert_eq!(golden_header().padded_len(), golden.len());

    let mut written = vec![0xee; BLOCK_HEADER];
    let crc = write_header(&mut written, &golden_header());
    assert_eq!(written, golden[..BLOCK_HEADER]);
    assert_eq!(crc, golden_header().header_crc);

    let content: Vec<_> = batches(&golden, &golden_header());
    let at_and_kind: Vec<_> = content.iter().map(|(at, one)| (*at, one.kind)).collect();
    assert_eq!(at_and_kind, [(128, 5), (256, 2)]);
}

#[test]
fn a_flipped_golden_bit_shows() {
    golden::assert_flips_show(&golden_block(), &golden_header(), |bytes| check(bytes).ok());
}

/// H-53: whatever byte of a sealed block changes (header, a batch's header, a client's half,
/// a body, the padding), and wherever it is cut off, it is refused.
#[test]
fn damaged_blocks_are_refused() {
    let block = sealed(first_header(), &three_batches());
    golden::assert_damage_is_refused(&block, |bytes| check(bytes).is_ok());
}

/// H-26: a header that is sound and contradicts sound batches in any one number is refused.
///
/// D-H4
#[test]
fn headers_that_contradict_the_batches_are_refused() {
    type Change = fn(&mut BlockHeader);
    let changes: [(&str, Change); 13] = [
        ("origin", |header| header.log.origin.0 += 1),
        ("shard", |header| header.log.shard.0 += 1),
        ("batches_crc", |header| header.batches_crc ^= 1),
        ("fewer batches", |header| header.batch_count -= 1),
        ("more batches", |header| header.batch_count += 1),
        ("more records", |header| {
            header.record_count += 1;
            header.end_offset.0 += 1;
        }),
        ("fewer records", |header| {
            header.record_count -= 1;
            header.end_offset.0 -= 1;
        }),
        ("starts earlier", |header| {
            header.record_count += 1;
            header.base_offset.0 -= 1;
        }),
        ("other offsets", |header| {
            header.base_offset.0 += 1;
            header.end_offset.0 += 1;
        }),
        ("earlier max_timestamp", |header| header.max_timestamp -= 1),
        ("later max_timestamp", |header| header.max_timestamp += 1),
        ("earlier last_tick", |header| header.last_tick.0 -= 1),
        ("later last_tick", |header| header.last_tick.0 += 1),
    ];
    let sound = sealed(first_header(), &three_batches());
    let header = check(&sound).expect("a block");
    for (what, change) in changes {
        let mut changed = header;
        change(&mut changed);
        let mut bytes = sound.clone();
        write_header(&mut bytes, &changed);
        assert!(read_header(&bytes).is_ok(), "{what}");
        assert_eq!(check(&bytes), Err(BlockError::Sums), "{what}");
    }
}

#[test]
fn a_used_len_that_the_batches_do_not_have_is_refused() {
    let mut bytes = sealed(first_header(), &three_batches());
    let header = check(&bytes).expect("a block");
    let with = |used_len| BlockHeader { used_len, ..header };
    write_header(&mut bytes, &with(header.used_len - 1));
    assert_eq!(check(&bytes), Err(BlockError::Batch(BatchError::Short)));
    write_header(&mut bytes, &with(header.used_len + 1));
    assert_eq!(check(&bytes), Err(BlockError::Batch(BatchError::Short)));
    write_header(&mut bytes, &with(header.used_len + 128));
    assert_eq!(check(&bytes), Err(BlockError::Batch(BatchError::NotABatch)));
    write_header(&mut bytes, &with(5000));
    assert_eq!(check(&bytes), Err(BlockError::Short));
}

/// S-46: batches that leave a gap, overlap or are swapped are refused, each sound by itself.
#[test]
fn offsets_are_contiguous_and_ascending() {
    let sound = three_batches();
    let second_at = |base_offset| {
        let half = batch::client_half(&sound[1]);
        data_batch(half, &sound[1][BATCH_HEADER..], base_offset, 8)
    };
    for (what, content) in [
        (
            "gap",
            vec![sound[0].clone(), second_at(104), sound[2].clone()],
        ),
        (
            "overlap",
            vec![sound[0].clone(), second_at(102), sound[2].clone()],
        ),
        (
            "swapped",
            vec![sound[1].clone(), sound[0].clone(), sound[2].clone()],
        ),
    ] {
        let bytes = sealed(first_header(), &content);
        assert_eq!(check(&bytes), Err(BlockError::Sums), "{what}");
    }
}

/// H-26: a header whose own numbers cannot be together, or could harm its reader.
#[test]
fn headers_that_contradict_themselves_are_refused() {
    let beyond = (POSITION_MAX + 1).to_le_bytes();
    let patches: [(&str, usize, &[u8]); 15] = [
        ("flags", 5, &[3]),
        ("used_len below the batches", 20, &383_u32.to_le_bytes()),
        (
            "used_len above the window",
            20,
            &((16 << 20) + 1_u32).to_le_bytes(),
        ),
        ("largest used_len", 20, &[0xff; 4]),
        ("no batch", 24, &[0; 4]),
        ("most batches", 24, &[0xff; 4]),
        ("last - first + 1 is not the count", 28, &[3, 0, 0, 0]),
        ("epoch 0", 32, &[0; 4]),
        ("epoch", 32, &(EPOCH_MAX + 1).to_le_bytes()),
        ("block", 36, &beyond),
        ("end before base", 52, &[0; 8]),
        ("end_offset", 52, &beyond),
        ("committed_end above block", 60, &beyond),
        ("last_tick", 82, &beyond),
        ("reserved byte", 127, &[1]),
    ];
    for (what, at, with) in patches {
        let mut bytes = golden::patched(&golden_block(), at..at + with.len(), with);
        golden::reseal(&mut bytes[..BLOCK_HEADER], HEADER_CRC);
        assert_eq!(read_header(&bytes), Err(BlockError::Header), "{what}");
    }
    for (what, at, with) in [("version", 4, 2), ("header_len", 6, 127), ("magic", 0, 0)] {
        let mut bytes = golden::patched(&golden_block(), at..at + 1, &[with]);
        golden::reseal(&mut bytes[..BLOCK_HEADER], HEADER_CRC);
        assert_eq!(read_header(&bytes), Err(BlockError::NotABlock), "{what}");
    }
}

#[test]
#[should_panic(expected = "no reader takes")]
fn a_header_that_no_reader_takes_is_not_written() {
    let header = BlockHeader {
        epoch: Epoch(0),
        ..golden_header()
    };
    write_header(&mut [0; BLOCK_HEADER], &header);
}

/// H-23: a block is taken whole with a batch of a later version in it; its largest timestamp is
/// then checked from below, by the batches that are known.
#[test]
fn a_batch_of_a_later_version_is_carried() {
    let later = batches_of::of_later_version();
    let first = BlockHeader {
        base_offset: batch::check(&later).expect("a batch").base_offset,
        ..golden_header()
    };
    let half = ClientHalf {
        record_count: 1,
        max_timestamp: 50,
        ..ClientHalf::default()
    };
    let known = data_batch(half, b"", first.base_offset.0 + 2, 8);
    let mut bytes = sealed(first, &[later, known]);
    let header = check(&bytes).expect("a block");
    for (max_timestamp, expected) in [(49, Err(BlockError::Sums)), (70, Ok(()))] {
        let changed = BlockHeader {
            max_timestamp,
            ..header
        };
        write_header(&mut bytes, &changed);
        assert_eq!(check_batches(&bytes, &changed), expected);
    }
    golden::assert_damage_is_refused(&bytes, |bytes| check(bytes).is_ok());
}

/// all zeros and all ones are never a block, whatever their length.
#[test]
fn blank_and_erased_space_is_no_block() {
    for fill in [0, 0xff] {
        for len in [0, 127, 128, 512, 4096, 1 << 20] {
            assert!(read_header(&vec![fill; len]).is_err(), "{len} of {fill}");
        }
    }
}

/// A header that is not of these bytes costs no memory and no panic.
#[test]
fn batches_of_a_foreign_header_end_early() {
    let header = BlockHeader {
        batch_count: u32::MAX,
        used_len: u32::MAX,
        ..golden_header()
    };
    let block = golden_block();
    assert_eq!(batches(&block, &header).len(), 2, "the padding ends it");
    assert_eq!(batches(&block[..300], &header).len(), 1);
    assert_eq!(batches(&block[..100], &header).len(), 0);
    assert_eq!(check_batches(&block, &header), Err(BlockError::Short));
    assert_eq!(check_padding(&block, &header), Err(BlockError::Short));
}

prop_compose! {
    /// A block of up to five batches, by its parts.
    fn blocks()(
        parts in prop::collection::vec(
            (batches_of::client_halves(), prop::collection::vec(any::<u8>(), 0..200)),
            1..6,
        ),
        base_offset in 0..1_u64 << 40,
        block in 1..=POSITION_MAX,
        committed in 0..1000_u64,
        epoch in 1..=EPOCH_MAX,
        tick in 0..1_u64 << 60,
        crc: u32,
        first_in_segment: bool,
    ) -> (BlockHeader, Vec<Vec<u8>>) {
        let first = BlockHeader {
            epoch: Epoch(epoch),
            block: BlockNo(block),
            committed_end: BlockNo(block.saturating_sub(committed)),
            prev_header_crc: crc,
            base_offset: Offset(base_offset),
            first_in_segment,
            ..golden_header()
        };
        let mut offset = base_offset;
        let mut content = Vec::new();
        for (index, (half, body)) in parts.iter().enumerate() {
            content.push(data_batch(*half, body, offset, tick + index as u64));
            offset += u64::from(half.record_count);
        }
        (first, content)
    }
}

proptest! {
    #[test]
    fn blocks_round_trip((first, content) in blocks()) {
        let bytes = sealed(first, &content);
        let header = check(&bytes).expect("a block");
        let latest = content.iter().map(|one| batch::client_half(one).max_timestamp).max();
        prop_assert_eq!(Some(header.max_timestamp), latest);
        let expected = BlockHeader {
            header_crc: header.header_crc,
            batches_crc: header.batches_crc,
            used_len: (BLOCK_HEADER + content.concat().len()) as u32,
            batch_count: content.len() as u32,
            record_count: (header.end_offset.0 - first.base_offset.0) as u32,
            end_offset: header.end_offset,
            max_timestamp: header.max_timestamp,
            last_tick: header.last_tick,
            ..first
        };
        prop_assert_eq!(header, expected);
        let found: Vec<_> = batches(&bytes, &header)
            .into_iter()
            .map(|(at, prefix)| bytes[at..at + prefix.total_len()].to_vec())
            .collect();
        prop_assert_eq!(found, content);
    }

    #[test]
    fn arbitrary_bytes_are_no_block(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(read_header(&bytes).is_err());
        let _ = check_batches(&bytes, &golden_header());
        let _ = check_padding(&bytes, &golden_header());
        prop_assert!(batches(&bytes, &golden_header()).is_empty());
    }

    /// Behind a good CRC any header is read or refused; what is read writes the same bytes again.
    #[test]
    fn sealed_arbitrary_headers_do_no_harm(
        noise in prop::collection::vec(any::<u8>(), 8..90),
        at in 8..90_usize,
    ) {
        let mut bytes = golden_block();
        let end = (at + noise.len()).min(90);
        bytes[at..end].copy_from_slice(&noise[..end - at]);
        golden::reseal(&mut bytes[..BLOCK_HEADER], HEADER_CRC);
        if let Ok(header) = read_header(&bytes) {
            let mut again = vec![0xee; BLOCK_HEADER];
            write_header(&mut again, &header);
            prop_assert_eq!(&again[..], &bytes[..BLOCK_HEADER]);
            prop_assert!(header.padded_len() as u64 <= WRITE_WINDOW);
            let _ = check_batches(&bytes, &header);
            let _ = check_padding(&bytes, &header);
            let _ = batches(&bytes, &header);
        }
    }

    /// A good header over arbitrary batches: they are refused, whatever they are.
    #[test]
    fn arbitrary_batches_do_no_harm(
        at in BLOCK_HEADER..446_usize,
        noise in prop::collection::vec(any::<u8>(), 1..300),
    ) {
        let mut bytes = golden_block();
        let end = (at + noise.len()).min(446);
        bytes[at..end].copy_from_slice(&noise[..end - at]);
        let same = bytes == golden_block();
        prop_assert_eq!(check(&bytes).is_ok(), same);
    }
}
