//! The write path: sealing, rolls, order of durability, failures, clean stops.

use super::op::{DiskError, DiskOp, FileName};
use super::rig::{EPOCH, Random, Rig, config, values_of};
use super::{AppendRefusal, From, Load, Output, RecoveredMemory, State};
use crate::buffers::Buffers;
use crate::limits::DISK_ALIGNMENT;
use crate::types::{BlockNo, Epoch, Offset, Time};
use proptest::prelude::*;

fn value(number: usize, len: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(len.max(8), number as u8);
    value
}

#[test]
fn a_blank_log_writes_nothing_before_it_is_created() {
    let disk = super::rig::Disk::new(config().segment_bytes);
    let mut rig = Rig::recovered(config(), disk);
    assert_eq!(rig.report().memory, RecoveredMemory::Blank);
    assert_eq!(rig.append(b"x"), Err(AppendRefusal::Closed));
    assert!(rig.writes.is_empty());
}

#[test]
fn an_idle_log_writes_a_block_per_append() {
    let mut rig = Rig::created(config());
    for number in 0..5 {
        rig.append_durably(&value(number, 10));
    }
    assert_eq!(rig.log.log_end(), BlockNo(5));
    assert_eq!(rig.log.durable_offset(), Offset(5));
    let expected: Vec<_> = (0..5).map(|number| value(number, 10)).collect();
    assert_eq!(rig.values(), expected);
}

#[test]
fn a_busy_log_fills_blocks() {
    let mut rig = Rig::created(config());
    rig.append(&value(0, 10)).expect("room");
    for number in 1..50 {
        rig.append(&value(number, 100)).expect("room");
    }
    assert_eq!(
        rig.log.log_end(),
        BlockNo(1),
        "the rest waits in the open block"
    );
    rig.run();
    rig.seal();
    rig.run();
    assert_eq!(rig.log.log_end(), BlockNo(2));
    assert_eq!(rig.values().len(), 50);
}

/// S-166
#[test]
fn the_oldest_append_waits_no_longer_than_its_time() {
    let mut rig = Rig::created(config());
    rig.append(&value(0, 10)).expect("room");
    rig.append(&value(1, 10)).expect("room");
    assert_eq!(rig.log.log_end(), BlockNo(1));
    let due = rig.log.poll_timeout().expect("an append waits");
    assert_eq!(due, Time(1_000).plus_us(config().batch_timeout_us));
    rig.now = due;
    rig.log.on_time(due, &mut rig.pool);
    rig.drain();
    assert_eq!(rig.log.log_end(), BlockNo(2));
}

/// S-166
#[test]
fn full_means_keep_it_and_come_again() {
    let mut rig = Rig::created(config());
    let mut taken = 0;
    while rig.append(&value(taken, 15_000)).is_ok() {
        taken += 1;
        assert!(taken < 100, "depth and the open block bound what is taken");
    }
    let refused = rig.append(&value(taken, 15_000));
    assert_eq!(refused, Err(AppendRefusal::Full));
    assert!(
        rig.log.log_end() > BlockNo(1),
        "a full block waits for no time to pass"
    );
    rig.run();
    rig.append(&value(taken, 15_000)).expect("room again");
    rig.run();
    rig.seal();
    rig.run();
    let expected: Vec<_> = (0..=taken).map(|number| value(number, 15_000)).collect();
    assert_eq!(rig.values(), expected);
}

#[test]
fn an_empty_pool_loses_nothing() {
    let mut rig = Rig::created(config());
    for number in 0..30 {
        rig.pool.limit = Some(rig.pool.out());
        let mut tries = 0;
        while rig.append(&value(number, 3_000)).is_err() {
            rig.run();
            tries += 1;
            if tries > 2 {
                rig.pool.limit = None;
            }
        }
        rig.run();
    }
    rig.pool.limit = None;
    rig.run();
    rig.seal();
    rig.run();
    assert_eq!(rig.values().len(), 30);
}

#[test]
fn a_block_of_its_own_takes_no_offset() {
    let mut rig = Rig::created(config());
    rig.append_durably(b"a");
    rig.append(b"b").expect("room");
    let block = rig.log.append_local(rig.now, Epoch(5), &mut rig.pool);
    assert_eq!(block, Ok(BlockNo(2)));
    rig.run();
    assert_eq!(rig.log.end_offset(), Offset(2));
    assert_eq!(rig.log.last_epoch(), Epoch(5));
    assert_eq!(rig.log.epoch_of(BlockNo(1)), Some(EPOCH));
    assert_eq!(rig.log.first_of_epoch(Epoch(5)), Some(BlockNo(2)));
    assert!(
        rig.log.last_tick().0 >= rig.now.0 + 2,
        "ticks rise within one microsecond"
    );
}

#[test]
fn a_log_rolls_when_the_next_block_does_not_fit() {
    let mut rig = Rig::created(config());
    for number in 0..12 {
        rig.append_durably(&value(number, 8_000));
    }
    // 8,000 bytes take two units behind the header, and a file holds fifteen beside its own header.
    assert_eq!(rig.disk.segments(), [0, 5, 10]);
    assert!(
        rig.disk.names.contains_key(&FileName::Next),
        "a spare is asked for ahead"
    );
    let blocks = rig.load(From::Block(BlockNo(5)), 1).expect("held");
    assert!(blocks[0].0.first_in_segment);
    assert_eq!(rig.values().len(), 12);
}

///
#[test]
fn nothing_in_a_new_file_is_durable_before_its_header_and_name() {
    let mut rig = Rig::created(config());
    rig.append(b"first").expect("room");
    let name_last = |rig: &mut Rig| {
        while let Some(at) = rig
            .pending
            .iter()
            .position(|pending| !matches!(pending.op, DiskOp::Name { .. }))
        {
            rig.complete(at);
        }
    };
    name_last(&mut rig);
    assert_eq!(rig.log.log_end(), BlockNo(1));
    assert_eq!(rig.log.durable_end(), BlockNo(0), "the name is not durable");
    rig.run();
    assert_eq!(rig.log.durable_end(), BlockNo(1));
}

#[test]
fn no_write_goes_further_than_depth_and_window() {
    let mut rig = Rig::created(config());
    for number in 0..40 {
        let _ = rig.append(&value(number, 15_000));
        let writes = rig.pending.iter().filter(
            |pending| matches!(pending.op, DiskOp::Write { len, .. } if len > DISK_ALIGNMENT),
        );
        assert!(writes.count() <= config().write_depth);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    ///
    #[test]
    fn durable_moves_in_order_whatever_completes_first(seed: u64) {
        let mut random = Random(seed);
        let mut rig = Rig::created(config());
        let mut written = 0;
        for _ in 0..60 {
            if rig.append(&value(written, 1 + random.below(9_000))).is_ok() {
                written += 1;
            }
            for _ in 0..random.below(3) {
                let before = rig.log.durable_end();
                if !rig.pending.is_empty() {
                    let at = random.below(rig.pending.len());
                    rig.complete(at);
                }
                prop_assert!(rig.log.durable_end() >= before);
                // Every block below the durable end is on the disk, in a file that has its name.
                let mut copy = Rig::recovered(rig.config.clone(), rig.disk.clone());
                prop_assert!(copy.log.log_end() >= rig.log.durable_end(), "{:?}", copy.outputs);
                prop_assert_eq!(copy.log.state(), State::Open);
                copy.drain();
            }
        }
        rig.run_shuffled(&mut random);
        rig.seal();
        rig.run_shuffled(&mut random);
        prop_assert_eq!(rig.values().len(), written);
    }
}

///
#[test]
fn the_first_error_is_final() {
    let errors = [
        (
            Err(DiskError::Errno(5)),
            "input/output error (errno 5); mend: see the kernel's log",
        ),
        (
            Err(DiskError::Errno(30)),
            "read-only (errno 30); mend: see the kernel's log",
        ),
        (Err(DiskError::NoSpace), "no space left; mend: free space"),
        (
            Ok(512),
            "512 of 4096 bytes written; mend: see the kernel's log",
        ),
    ];
    for (error, words) in errors {
        let mut rig = Rig::created(config());
        rig.append_durably(b"durable");
        rig.append(b"fails").expect("room");
        rig.append(b"waits").expect("room");
        rig.complete_with(0, error);
        assert_eq!(rig.log.state(), State::Failed);
        let Some(Output::Failed(said)) = rig.outputs.last() else {
            panic!("{:?}", rig.outputs);
        };
        assert!(said.contains(words), "{said}");
        assert_eq!(rig.append(b"later"), Err(AppendRefusal::Failed));
        rig.drain();
        assert!(rig.pending.is_empty(), "the disk is not touched again");
        assert_eq!(rig.log.durable_end(), BlockNo(1));
        assert_eq!(rig.pool.out(), 0, "every buffer was given back");
    }
}

#[test]
fn a_late_completion_after_a_failure_is_nothing() {
    let mut rig = Rig::created(config());
    for number in 0..20 {
        let _ = rig.append(&value(number, 15_000));
    }
    rig.complete_with(0, Err(DiskError::Errno(5)));
    rig.run();
    assert_eq!(rig.log.state(), State::Failed);
    assert_eq!(rig.pool.out(), 0);
}

#[test]
fn a_clean_stop_writes_what_was_accepted() {
    let mut rig = Rig::created(config());
    for number in 0..7 {
        rig.append(&value(number, 100)).expect("room");
    }
    rig.stop();
    assert_eq!(rig.pool.out(), 0, "every buffer was given back");
    let saved = rig.log.checkpoint().clone();
    assert!(saved.clean);
    assert_eq!(saved.scan_from, rig.log.log_end());
    let mut rig = rig.restart();
    assert_eq!(rig.report().torn, None);
    assert_eq!(rig.values().len(), 7);
    assert!(
        !rig.log.checkpoint().clean,
        "an open log is not cleanly stopped"
    );
}

#[test]
fn what_may_lag_is_saved_after_a_quiet_second() {
    let mut rig = Rig::created(config());
    rig.append_durably(b"x");
    rig.log.note_committed(BlockNo(1));
    let due = rig.log.poll_timeout().expect("the checkpoint lags");
    assert_eq!(due, rig.now.plus_us(1_000_000));
    rig.now = due;
    rig.log.on_time(due, &mut rig.pool);
    rig.run();
    assert_eq!(rig.log.checkpoint().scan_from, BlockNo(1));
    assert_eq!(rig.log.poll_timeout(), None);
    let rig = rig.restart();
    assert_eq!(rig.report().high_watermark, BlockNo(1));
}

/// H-22
#[test]
fn a_follower_writes_the_same_bytes() {
    let mut leader = Rig::created(config());
    let mut follower = Rig::created(config());
    let mut next = BlockNo(0);
    for number in 0..40 {
        leader.append_durably(&value(number, 300 + 400 * (number % 9)));
        let wanted = 1 + number % 3;
        if (leader.log.log_end().0 - next.0) as usize >= wanted {
            next = replicate(&mut leader, &mut follower, next);
        }
    }
    while next < leader.log.log_end() {
        next = replicate(&mut leader, &mut follower, next);
    }
    follower.run();
    assert_eq!(follower.log.durable_end(), leader.log.durable_end());
    assert_eq!(follower.log.last_crc(), leader.log.last_crc());
    let segments = leader.disk.segments();
    assert!(segments.len() > 2);
    assert_eq!(follower.disk.segments(), segments);
    for base in segments {
        assert!(
            leader.segment(base) == follower.segment(base),
            "segment {base} differs"
        );
    }
}

fn replicate(leader: &mut Rig, follower: &mut Rig, from: BlockNo) -> BlockNo {
    let mut run = Vec::new();
    let mut next = from;
    // Several loads make one run, so that runs span rolls.
    while next < leader.log.log_end() && run.len() < 4 {
        let blocks = leader.load(From::Block(next), 1).expect("held");
        next = blocks[0].0.block.next();
        run.extend(blocks);
    }
    assert!(
        run.iter()
            .all(|(header, bytes)| !values_of(header, bytes).is_empty())
    );
    follower.write_run(&run);
    next
}

/// A full block is written at once, while others are in flight and before its time.
///
/// S-166
#[test]
fn a_full_block_is_written_at_once() {
    let mut rig = Rig::created(config());
    rig.append(&value(0, 10)).expect("room");
    rig.run();
    rig.append(&value(1, 10)).expect("room");
    assert_eq!(rig.log.log_end(), BlockNo(2), "in flight");
    rig.append(&value(2, 10)).expect("room");
    assert_eq!(rig.log.log_end(), BlockNo(2), "it waits");
    rig.append(&value(3, 16_000)).expect("room");
    assert_eq!(
        rig.log.log_end(),
        BlockNo(3),
        "the one that is full does not"
    );
    assert_eq!(rig.log.durable_end(), BlockNo(1));
}

/// Blocks keep their two bounds, offsets are dense from 0, and bytes come out as they went in.
///
/// S-24 S-46 S-49 S-50
#[test]
fn blocks_keep_their_bounds_and_offsets_are_dense() {
    let mut config = config();
    config.max_block_records = 7;
    let (most_bytes, most_records) = (config.max_block_bytes, config.max_block_records);
    let mut rig = Rig::created(config);
    let mut random = Random(4);
    let mut expected = Vec::new();
    while expected.len() < 300 {
        let len = [8, 40, 3_000, 14_000][random.below(4)];
        let value = value(expected.len(), len);
        match rig.append(&value) {
            Ok(appended) => {
                assert_eq!(appended.base_offset, Offset(expected.len() as u64));
                expected.push(value);
            }
            Err(refusal) => {
                assert_eq!(refusal, AppendRefusal::Full);
                rig.complete(0);
            }
        }
    }
    rig.run();
    rig.seal();
    rig.run();
    assert_eq!(rig.values(), expected);
    let (mut offset, mut fullest) = (Offset(0), 0);
    for block in 0..rig.log.log_end().0 {
        let blocks = rig.load(From::Block(BlockNo(block)), 1).expect("held");
        let header = blocks[0].0;
        assert!(header.used_len as usize <= most_bytes, "block {block}");
        assert!(header.record_count <= most_records, "block {block}");
        assert_eq!(header.base_offset, offset);
        let records = u64::from(header.record_count);
        assert_eq!(header.end_offset, Offset(offset.0 + records));
        offset = header.end_offset;
        fullest = fullest.max(header.record_count);
    }
    assert_eq!(offset, Offset(expected.len() as u64));
    assert_eq!(
        fullest, most_records,
        "a busy log fills blocks to the bound"
    );
}

/// A block keeps no more memory than it fills, but for the half that it may leave empty.
#[test]
fn a_block_that_fills_little_keeps_little() {
    let mut rig = Rig::created(config());
    let full = crate::wal::open::buffer_len(&config());
    let mut sizes = Vec::new();
    for (number, len) in [10, full / 2 - 8000, full / 2, full - 8000]
        .iter()
        .enumerate()
    {
        rig.append_durably(&value(number, *len));
        let block = BlockNo(number as u64);
        let loaded = rig.log.load(0, From::Block(block), block.next(), 1);
        let Load::Now(loaded) = loaded else {
            panic!("block {block} is recent: {loaded:?}")
        };
        let (header, start) = loaded.blocks[0];
        assert_eq!((start, header.block), (0, block));
        let kept = rig.pool.bytes(loaded.buffer).len();
        sizes.push((kept, header.padded_len()));
    }
    for (kept, used) in &sizes {
        assert!(
            *kept == *used || (*kept == full && 2 * used > full),
            "{sizes:?}"
        );
    }
    assert_eq!(sizes[0], (DISK_ALIGNMENT, DISK_ALIGNMENT));
    assert_eq!(sizes[3].0, full);
    assert_eq!(rig.pool.out(), sizes.len(), "the others were given back");
    assert_eq!(rig.values().len(), sizes.len());
}

/// Without a smaller buffer a block stays where it is.
#[test]
fn a_block_that_finds_no_smaller_buffer_keeps_its_own() {
    let mut rig = Rig::created(config());
    rig.append(&value(0, 10)).expect("room");
    rig.pool.limit = Some(rig.pool.out());
    rig.seal();
    rig.run();
    assert_eq!(rig.log.durable_end(), BlockNo(1));
    assert_eq!(rig.values(), [value(0, 10)]);
}
