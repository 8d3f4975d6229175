//! Tests of the batch header: golden bytes, round trips, damage, and what must be carried unread.

use super::*;
use crate::limits::{EPOCH_MAX, POSITION_MAX};
use crate::wire::golden;
use proptest::prelude::*;

pub(crate) const GOLDEN: &str = include_str!("../../tests/data/wire/batch.txt");
const RECORDS: &str = include_str!("../../tests/data/wire/records.txt");

fn golden_leader_half() -> LeaderHalf {
    LeaderHalf {
        kind: Kind::TxnBody,
        log: LogId {
            origin: OriginId(0x6162_6364),
            shard: ShardId(0x7172),
        },
        base_offset: Offset(0x2122_2324_2526_2728),
        tick: Tick(0x3132_3334_3536_3738),
        txn_id: 0x4142_4344_4546_4748,
        origin_epoch: Epoch(0x5152_5354),
    }
}

fn golden_client_half() -> ClientHalf {
    ClientHalf {
        record_count: 2,
        stored_len: 62,
        raw_len: 0x8182_8384,
        base_timestamp: 0x0102_0304_0506_0708,
        max_timestamp: 0x1112_1314_1516_1718,
        producer_id: 0x9192_9394_9596_9798,
        producer_epoch: 0xa1a2,
        flags: 0xb1bc,
        base_sequence: 0xc1c2_c3c4,
    }
}

/// Header and body of the golden batch.
pub(crate) fn golden_batch() -> Vec<u8> {
    let mut bytes = golden::bytes(GOLDEN);
    let body: Vec<&str> = golden::lines(RECORDS).flatten().collect();
    bytes.extend(golden::unhex(&body));
    bytes
}

/// A batch as it leaves a client.
pub(crate) fn from_client(half: ClientHalf, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; BATCH_HEADER];
    bytes.extend_from_slice(body);
    let half = ClientHalf {
        stored_len: body.len() as u32,
        ..half
    };
    write_client_half(&mut bytes, &half);
    bytes
}

/// Makes both CRCs fit whatever the batch holds.
pub(crate) fn reseal(bytes: &mut [u8]) {
    let header_len = usize::from(u16_at(bytes, 6)).clamp(BATCH_HEADER, bytes.len());
    let total = (header_len + u32_at(bytes, 68) as usize).min(bytes.len());
    let crc = crc32fast::hash(&bytes[CLIENT_HALF..total]);
    put(bytes, CLIENT_CRC, &crc.to_le_bytes());
    golden::reseal(&mut bytes[..header_len], HEADER_CRC);
}

/// The golden batch as a later version may make it: a longer header, more flags, another codec.
pub(crate) fn of_later_version() -> Vec<u8> {
    let golden = golden_batch();
    let mut bytes = golden[..BATCH_HEADER].to_vec();
    bytes.extend([0x5a; 64]);
    bytes.extend(&golden[BATCH_HEADER..]);
    bytes[4] = 2;
    put(&mut bytes, 6, &192_u16.to_le_bytes());
    bytes[72..BATCH_HEADER].fill(0xa5);
    reseal(&mut bytes);
    bytes
}

#[test]
fn golden_bytes_are_written_and_read() {
    golden::assert_layout(include_str!("batch.rs"), GOLDEN);
    let golden = golden_batch();
    let mut written = from_client(golden_client_half(), &golden[BATCH_HEADER..]);
    assert_eq!(check_from_client(&written), Ok(golden_client_half()));
    let crc = write_leader_half(&mut written, &golden_leader_half());
    assert_eq!((crc, &written), (0xf016_0ccd, &golden));

    let prefix = check(&golden).expect("a batch");
    let leader = golden_leader_half();
    let expected = BatchPrefix {
        version: 1,
        header_len: 128,
        kind: leader.kind.number(),
        header_crc: 0xf016_0ccd,
        log: leader.log,
        base_offset: leader.base_offset,
        tick: leader.tick,
        origin_epoch: leader.origin_epoch,
        record_count: 2,
        stored_len: 62,
    };
    assert_eq!(prefix, expected);
    assert_eq!(prefix.total_len(), golden.len());
    assert_eq!(prefix.end_offset(), Offset(leader.base_offset.0 + 2));
    assert_eq!(client_half(&golden), golden_client_half());
}

#[test]
fn a_flipped_golden_bit_shows() {
    let golden = golden_batch();
    let value = (check(&golden).expect("a batch"), golden_client_half());
    golden::assert_flips_show(&golden, &value, |bytes| {
        check(bytes).ok().map(|prefix| (prefix, client_half(bytes)))
    });
}

#[test]
fn damaged_batches_are_refused() {
    golden::assert_damage_is_refused(&golden_batch(), |bytes| check(bytes).is_ok());
    golden::assert_damage_is_refused(&of_later_version(), |bytes| check(bytes).is_ok());
}

/// The leader finds damage to what the client sealed: bytes 64.. of the header, body, and the CRC.
#[test]
fn damaged_batches_of_clients_are_refused() {
    let sound = from_client(golden_client_half(), b"body");
    for len in 0..sound.len() {
        assert!(check_from_client(&sound[..len]).is_err());
    }
    golden::each_flip(&sound, |at, damaged| {
        let sealed = (12..16).contains(&at) || at >= CLIENT_HALF;
        assert_eq!(check_from_client(damaged).is_err(), sealed, "byte {at}");
    });
    let longer = [&sound[..], &[0]].concat();
    assert_eq!(check_from_client(&longer), Err(BatchError::Short));
}

/// H-53: a bit that flips in the leader's memory between the client's CRC and the leader's own is
/// under a good header CRC, and refused by whoever checks the batch.
#[test]
fn memory_flip_before_the_leaders_crc_is_refused() {
    let half = ClientHalf {
        record_count: 3,
        ..golden_client_half()
    };
    let sound = from_client(half, b"some body");
    golden::each_flip(&sound, |at, damaged| {
        if (12..16).contains(&at) || at >= CLIENT_HALF {
            let mut stored = damaged.to_vec();
            write_leader_half(&mut stored, &golden_leader_half());
            assert!(read_prefix(&stored).is_ok(), "byte {at}");
            assert!(check(&stored).is_err(), "byte {at}");
        }
    });
}

/// H-23: version, header length behind the prefix, codec and flags may all be unknown.
#[test]
fn a_batch_of_a_later_version_is_carried() {
    let bytes = of_later_version();
    let prefix = check(&bytes).expect("the prefix is intact");
    assert_eq!((prefix.version, prefix.header_len), (2, 192));
    assert_eq!(prefix.total_len(), bytes.len());
    assert_eq!(prefix.end_offset(), Offset(0x2122_2324_2526_272a));

    let mut bytes = golden_batch();
    put(&mut bytes, 102, &u16::MAX.to_le_bytes());
    bytes[108..BATCH_HEADER].fill(0xff);
    reseal(&mut bytes);
    assert!(check(&bytes).is_ok(), "unknown codec, flags and fields");
}

#[test]
fn what_no_version_can_be_is_refused() {
    let refused = |at: usize, with: &[u8]| {
        let mut bytes = golden::patched(&golden_batch(), at..at + with.len(), with);
        reseal(&mut bytes);
        check(&bytes).expect_err("no batch")
    };
    let (zero, later) = ([0, 2, 128, 0], [2, 2, 127, 0]);
    assert_eq!(refused(4, &zero), BatchError::NotABatch);
    assert_eq!(refused(4, &later), BatchError::NotABatch);
    assert_eq!(refused(6, &192_u16.to_le_bytes()), BatchError::NotABatch);
    assert_eq!(refused(5, &[7]), BatchError::Kind);
    let beyond = POSITION_MAX.to_le_bytes();
    assert_eq!(refused(16, &beyond), BatchError::RecordCount);
    assert_eq!(refused(16, &[0xff; 8]), BatchError::RecordCount);
    assert_eq!(refused(24, &[0xff; 8]), BatchError::RecordCount);
    assert_eq!(refused(68, &[0xff; 4]), BatchError::Short);
}

/// D-S5: a client's batch holds a record, and zeros where this version has no field.
#[test]
fn batches_of_clients_hold_records_and_zeros() {
    let empty = from_client(ClientHalf::default(), b"");
    assert_eq!(check_from_client(&empty), Err(BatchError::RecordCount));
    for at in CLIENT_ZEROS..BATCH_HEADER {
        let mut bytes = from_client(golden_client_half(), b"body");
        bytes[at] = 1;
        reseal(&mut bytes);
        assert_eq!(check_from_client(&bytes), Err(BatchError::NotABatch));
    }
}

#[test]
fn kinds_bind_the_record_count() {
    for (kind, none, some) in [
        (0, false, true),
        (1, true, true),
        (2, false, true),
        (3, true, true),
        (4, true, true),
        (5, true, false),
        (6, true, false),
    ] {
        for (count, taken) in [(0_u32, none), (1, some)] {
            let mut bytes = golden_batch();
            bytes[5] = kind;
            put(&mut bytes, 64, &count.to_le_bytes());
            reseal(&mut bytes);
            let expected = if taken {
                None
            } else {
                Some(BatchError::RecordCount)
            };
            assert_eq!(
                check(&bytes).err(),
                expected,
                "kind {kind}, {count} records"
            );
        }
    }
}

/// A kind that changed is refused, though kinds exist that may hold as many records; and so is one
/// that no version knows, whatever its CRC.
#[test]
fn kind_flip_refused() {
    let golden = golden_batch();
    for kind in (0..=u8::MAX).filter(|kind| *kind != golden[5]) {
        let mut bytes = golden.clone();
        bytes[5] = kind;
        assert_eq!(check(&bytes).err(), Some(BatchError::HeaderCrc), "{kind}");
        reseal(&mut bytes);
        if kind > 6 {
            assert_eq!(check(&bytes).err(), Some(BatchError::Kind), "{kind}");
        }
    }
}

#[test]
#[should_panic(expected = "a batch that no reader takes")]
fn an_offset_that_no_reader_takes_is_not_written() {
    let mut bytes = from_client(golden_client_half(), b"");
    let half = LeaderHalf {
        base_offset: Offset(POSITION_MAX),
        ..golden_leader_half()
    };
    write_leader_half(&mut bytes, &half);
}

prop_compose! {
    pub(crate) fn client_halves()(
        record_count in 1..1000_u32,
        raw_len: u32,
        times in any::<(u64, u64)>(),
        producer in any::<(u64, u16)>(),
        flags: u16,
        base_sequence: u32,
    ) -> ClientHalf {
        ClientHalf {
            record_count,
            stored_len: 0,
            raw_len,
            base_timestamp: times.0,
            max_timestamp: times.1,
            producer_id: producer.0,
            producer_epoch: producer.1,
            flags,
            base_sequence,
        }
    }
}

prop_compose! {
    fn leader_halves()(
        kind in prop::sample::select(vec![Kind::Data, Kind::TxnBody, Kind::TxnCommit]),
        log in any::<(u32, u16)>(),
        base_offset in 0..POSITION_MAX - 1000,
        tick in 0..=POSITION_MAX,
        txn_id: u64,
        origin_epoch in 0..=EPOCH_MAX,
    ) -> LeaderHalf {
        LeaderHalf {
            kind,
            log: LogId { origin: OriginId(log.0), shard: ShardId(log.1) },
            base_offset: Offset(base_offset),
            tick: Tick(tick),
            txn_id,
            origin_epoch: Epoch(origin_epoch),
        }
    }
}

proptest! {
    #[test]
    fn batches_round_trip(
        half in client_halves(),
        leader in leader_halves(),
        body in prop::collection::vec(any::<u8>(), 0..300),
        behind in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut bytes = from_client(half, &body);
        let half = ClientHalf { stored_len: body.len() as u32, ..half };
        prop_assert_eq!(check_from_client(&bytes), Ok(half));
        let sent = bytes.clone();
        write_leader_half(&mut bytes, &leader);
        prop_assert_eq!(&bytes[CLIENT_HALF..], &sent[CLIENT_HALF..], "the leader leaves it alone");
        prop_assert_eq!(&bytes[12..16], &sent[12..16]);
        bytes.extend(behind);
        let prefix = check(&bytes).expect("a batch");
        prop_assert_eq!(prefix.kind, leader.kind.number());
        prop_assert_eq!(prefix.log, leader.log);
        prop_assert_eq!(prefix.base_offset, leader.base_offset);
        prop_assert_eq!(prefix.tick, leader.tick);
        prop_assert_eq!(prefix.origin_epoch, leader.origin_epoch);
        prop_assert_eq!(u64_at(&bytes, 32), leader.txn_id);
        prop_assert_eq!(client_half(&bytes), half);
        prop_assert_eq!(&bytes[BATCH_HEADER..prefix.total_len()], &body[..]);
    }

    #[test]
    fn arbitrary_bytes_are_no_batch(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(check(&bytes).is_err());
        prop_assert!(check_from_client(&bytes).is_err());
    }

    /// Behind good CRCs, too, any bytes are read or refused, and sums hold.
    #[test]
    fn sealed_arbitrary_bytes_do_no_harm(
        mut bytes in prop::collection::vec(any::<u8>(), 128..400),
        version in 0..4_u8,
        header_len in prop::sample::select(vec![0_u16, 127, 128, 129, 192, 300, u16::MAX]),
        stored_len in 0..300_u32,
    ) {
        put(&mut bytes, 0, &MAGIC);
        bytes[4] = version;
        bytes[5] %= 9;
        put(&mut bytes, 6, &header_len.to_le_bytes());
        put(&mut bytes, 68, &stored_len.to_le_bytes());
        reseal(&mut bytes);
        if let Ok(prefix) = check(&bytes) {
            prop_assert!(prefix.total_len() <= bytes.len());
            prop_assert!(prefix.end_offset() >= prefix.base_offset);
        }
        let _ = check_from_client(&bytes);
    }
}
