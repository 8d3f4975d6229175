//! Cuts, trims, loads from disk and the search by time.

use super::op::{DiskOp, FileName};
use super::rig::{Random, Rig, config};
use super::{CutDone, From, Load, Output, ReadError, State};
use crate::limits::RECENT_BYTES;
use crate::types::{BlockNo, Epoch, Offset};

fn value(number: usize, len: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(len.max(8), number as u8);
    value
}

fn log_of(blocks: usize) -> Rig {
    let mut rig = Rig::created(config());
    for number in 0..blocks {
        rig.append_durably(&value(number, 1_000));
    }
    rig
}

fn cut_done(rig: &Rig) -> CutDone {
    let mut all = rig.outputs.iter().rev().filter_map(|output| match output {
        Output::CutDone(done) => Some(*done),
        _ => None,
    });
    all.next().expect("the cut ended")
}

#[test]
fn a_cut_takes_blocks_and_files_away() {
    for from in [0, 1, 7, 14, 15, 16, 29, 30, 39, 40] {
        let mut rig = log_of(40);
        rig.log.cut(BlockNo(from));
        rig.run();
        let done = cut_done(&rig);
        assert_eq!(done.log_end, BlockNo(from));
        assert_eq!(done.end_offset, Offset(from));
        assert_eq!(done.blocks, 40 - from);
        assert_eq!(rig.log.durable_end(), BlockNo(from));
        let kept: Vec<u64> = [0, 15, 30]
            .into_iter()
            .filter(|base| *base < from)
            .collect();
        assert_eq!(rig.disk.segments(), kept);
        let epoch = rig.log.append_local(rig.now, Epoch(2), &mut rig.pool);
        assert_eq!(epoch, Ok(BlockNo(from)));
        rig.run();
        for number in 0..30 {
            rig.append_durably(&value(1_000 + number, 1_000));
        }
        let expected = rig.values();
        assert_eq!(expected.len() as u64, from + 30);
        let mut rig = rig.restart();
        assert_eq!(
            rig.report().torn,
            None,
            "nothing of the old suffix is found"
        );
        assert_eq!(rig.values(), expected);
        assert_eq!(rig.log.first_of_epoch(Epoch(2)), Some(BlockNo(from)));
    }
}

#[test]
fn cut_waits_for_writes_in_flight() {
    let mut rig = log_of(3);
    rig.append(&value(3, 100)).expect("room");
    assert!(!rig.pending.is_empty());
    rig.log.cut(BlockNo(2));
    rig.drain();
    assert!(
        rig.pending
            .iter()
            .all(|pending| !matches!(pending.op, DiskOp::Read { .. })),
        "nothing is searched while a write is in flight"
    );
    rig.run();
    assert_eq!(cut_done(&rig).log_end, BlockNo(2));
    let mut rig = rig.restart();
    assert_eq!(rig.values().len(), 2);
}

#[test]
fn the_last_block_goes_first_and_the_checkpoint_before_all() {
    let mut rig = log_of(12);
    rig.now = rig.now.plus_us(5_000_000);
    rig.log.on_time(rig.now, &mut rig.pool);
    rig.run();
    assert_eq!(rig.log.checkpoint().scan_from, BlockNo(12));
    rig.writes.clear();
    rig.log.cut(BlockNo(8));
    rig.run();
    let positions: Vec<u64> = rig
        .writes
        .iter()
        .map(|(_, position, _)| *position)
        .collect();
    let expected = [0, 4096, 12 * 4096, 11 * 4096, 10 * 4096, 9 * 4096];
    assert_eq!(positions, expected);
    assert_eq!(rig.log.checkpoint().scan_from, BlockNo(8));
}

#[test]
fn a_crash_during_a_cut_leaves_a_shorter_suffix_of_the_same_blocks() {
    for seed in 0..100 {
        let mut random = Random(seed);
        let mut rig = log_of(40);
        let before = rig.values();
        let from = random.below(40);
        rig.log.cut(BlockNo(from as u64));
        rig.drain();
        for _ in 0..random.below(60) {
            if !rig.pending.is_empty() {
                rig.complete(0);
            }
        }
        let mut rig = rig.crash(&mut random);
        rig.run();
        assert_eq!(
            rig.log.state(),
            State::Open,
            "seed {seed}: {:?}",
            rig.outputs
        );
        let values = rig.values();
        assert!(
            values.len() >= from && before.starts_with(&values),
            "seed {seed}"
        );
        rig.append_durably(b"after");
        let mut rig = rig.restart();
        assert_eq!(rig.values().len(), values.len() + 1, "seed {seed}");
    }
}

#[test]
fn torn_after_truncation_is_torn() {
    let mut rig = log_of(30);
    rig.log.cut(BlockNo(10));
    rig.run();
    rig.log
        .append_local(rig.now, Epoch(2), &mut rig.pool)
        .expect("room");
    rig.drain();
    rig.complete_with(0, Ok(4096));
    let mut rig = Rig::recovered(rig.config, rig.disk);
    assert_eq!(rig.report().log_end, BlockNo(10));
    assert_eq!(rig.values().len(), 10);
}

#[test]
#[should_panic(expected = "below the committed end")]
fn what_is_committed_is_never_cut() {
    let mut rig = log_of(5);
    rig.log.note_committed(BlockNo(4));
    rig.log.cut(BlockNo(3));
}

#[test]
fn the_open_block_goes_with_a_cut() {
    let mut rig = log_of(3);
    rig.append(b"written").expect("room");
    rig.append(b"open").expect("room");
    assert_eq!(rig.log.open_end_offset(), Offset(5));
    rig.log.cut(BlockNo(4));
    rig.run();
    assert_eq!(cut_done(&rig).blocks, 0);
    assert_eq!(rig.log.open_end_offset(), Offset(4));
}

/// A log that was opened again: nothing of it is in memory.
fn cold(blocks: usize, len: usize) -> Rig {
    let mut rig = Rig::created(config());
    for number in 0..blocks {
        rig.append_durably(&value(number, len));
    }
    rig.stop();
    rig.restart()
}

#[test]
fn blocks_come_from_disk_when_memory_has_none() {
    let mut rig = cold(100, 1_000);
    for block in [0, 1, 14, 15, 16, 50, 99] {
        let blocks = rig
            .load(From::Block(BlockNo(block)), 3 * 4096)
            .expect("held");
        assert_eq!(blocks[0].0.block, BlockNo(block));
        let offset = rig.load(From::Offset(Offset(block)), 1).expect("held");
        assert_eq!(offset.len(), 1, "one block even if it is larger");
        assert_eq!(offset[0].0.block, BlockNo(block));
    }
    assert_eq!(rig.load(From::Block(BlockNo(100)), 1), None);
    assert_eq!(rig.load(From::Offset(Offset(100)), 1), None);
    assert_eq!(rig.pool.out(), 0, "every buffer was given back");
    assert_eq!(rig.values().len(), 100);
}

/// Nothing where a block should be is another damage than a block that was changed.
#[test]
fn what_is_blank_is_said_to_be() {
    let mut rig = cold(40, 1_000);
    rig.segment(0)[4096 * 3..4096 * 4].fill(0);
    let load = rig.log.load(5, From::Block(BlockNo(2)), BlockNo(40), 1);
    assert_eq!(load, Load::Later);
    rig.run();
    let result = Err(ReadError::Corrupt {
        file: BlockNo(0),
        position: 4096 * 3,
        block: BlockNo(2),
        blank: true,
    });
    let output = rig.outputs.pop().expect("it ended");
    assert_eq!(output, Output::Loaded { request: 5, result });
}

/// S-178
#[test]
fn damage_is_never_served() {
    let mut rig = cold(40, 1_000);
    for at in [4096 * 3, 4096 * 3 + 130, 4096 * 3 + 4000] {
        let byte = rig.segment(0)[at];
        rig.segment(0)[at] = byte ^ 0x10;
        assert_eq!(
            rig.log.load(5, From::Block(BlockNo(2)), BlockNo(40), 1),
            Load::Later
        );
        rig.run();
        let expected = ReadError::Corrupt {
            file: BlockNo(0),
            position: 4096 * 3,
            block: BlockNo(2),
            blank: false,
        };
        let output = rig.outputs.pop().expect("it ended");
        let result = Err(expected);
        assert_eq!(output, Output::Loaded { request: 5, result });
        rig.segment(0)[at] = byte;
    }
    assert_eq!(
        rig.log.state(),
        State::Open,
        "a read's damage closes nothing"
    );
    assert_eq!(rig.pool.out(), 0);
}

#[test]
fn memory_holds_no_more_than_its_share() {
    let mut rig = Rig::created(config());
    for number in 0..1_500 {
        rig.append_durably(&value(number, 10_000));
    }
    let most = RECENT_BYTES / (4 * 4096) + 1;
    assert!(rig.pool.out() <= most, "{} buffers are out", rig.pool.out());
    assert_eq!(rig.values().len(), 1_500);
}

#[test]
fn a_trim_takes_whole_files_once_the_start_is_saved() {
    let mut rig = log_of(50);
    rig.log.trim(BlockNo(40));
    rig.run();
    assert_eq!(
        rig.log.log_start().block,
        BlockNo(0),
        "nothing is committed"
    );
    rig.log.note_committed(BlockNo(50));
    rig.log.trim(BlockNo(40));
    rig.run();
    assert_eq!(rig.log.log_start().block, BlockNo(30));
    assert_eq!(rig.disk.segments(), [30, 45]);
    assert_eq!(rig.load(From::Block(BlockNo(29)), 1), None);
    assert_eq!(rig.log.epoch_of(BlockNo(29)), Some(Epoch(1)));
    let mut rig = rig.restart();
    assert_eq!(rig.log.log_start().offset, Offset(30));
    assert_eq!(rig.values().len(), 20);
}

///
#[test]
fn a_crash_during_a_trim_boots() {
    for steps in 0..8 {
        for seed in 0..8 {
            let mut rig = log_of(50);
            rig.log.note_committed(BlockNo(50));
            rig.log.trim(BlockNo(50));
            rig.drain();
            for _ in 0..steps {
                if !rig.pending.is_empty() {
                    rig.complete(0);
                }
            }
            let mut rig = rig.crash(&mut Random(seed));
            rig.run();
            assert_eq!(rig.log.state(), State::Open, "{:?}", rig.outputs);
            let start = rig.log.log_start().block.0;
            assert_eq!(
                rig.disk.segments()[0],
                start,
                "files below the start are gone"
            );
            assert_eq!(rig.values().len() as u64, 50 - start);
        }
    }
}

#[test]
fn the_first_batch_as_late_as_a_time_is_found() {
    let mut rig = Rig::created(config());
    for number in 0..60_u64 {
        // Record times jump about; the running maximum counts.
        let time = 1_000 + 10 * number - if number % 7 == 3 { 500 } else { 0 };
        rig.append_at(&value(number as usize, 700), time)
            .expect("room");
        rig.run();
    }
    for (time, expected) in [
        (0, Some(0)),
        (1_000, Some(0)),
        (1_001, Some(1)),
        (1_030, Some(4)),
        (1_580, Some(58)),
        (1_581, None),
    ] {
        rig.log.find(9, time, BlockNo(60));
        rig.run();
        let result = Ok(expected.map(Offset));
        assert_eq!(
            rig.outputs.pop(),
            Some(Output::Found { request: 9, result }),
            "{time}"
        );
    }
}

#[test]
fn a_spare_is_there_again_after_a_cut() {
    let mut rig = log_of(20);
    rig.log.cut(BlockNo(3));
    rig.run();
    assert!(rig.disk.names.contains_key(&FileName::Next));
    for number in 0..40 {
        rig.append_durably(&value(number, 1_000));
    }
    assert_eq!(rig.values().len(), 43);
}

/// The mutant `erase_first_first` leaves blocks far behind a hole.
#[test]
fn a_crash_during_a_long_cut_is_no_damage() {
    let mut config = config();
    config.segment_bytes = 8 << 20;
    config.max_block_bytes = 2 << 20;
    config.max_batch_bytes = (2 << 20) - 128;
    let mut rig = Rig::created(config);
    for number in 0..14 {
        rig.append_durably(&value(number, (2 << 20) - 8_192));
    }
    rig.log.cut(BlockNo(1));
    rig.drain();
    let erasing = |rig: &Rig| rig.writes.last().is_some_and(|(_, _, len)| *len == 4096);
    rig.writes.clear();
    while !erasing(&rig) || rig.writes.len() < 4 {
        rig.complete(0);
    }
    let rig = rig.restart();
    assert_eq!(rig.log.state(), State::Open, "{:?}", rig.outputs);
    assert!(rig.log.log_end() > BlockNo(8));
}

#[test]
fn forgotten_blocks_come_from_disk() {
    let mut rig = log_of(10);
    rig.append(&value(10, 100)).expect("room");
    rig.log.forget_recent(BlockNo(4));
    rig.drain();
    for (block, from_disk) in [(3, false), (4, true), (9, true), (10, false)] {
        let answer = rig.log.load(1, From::Block(BlockNo(block)), BlockNo(11), 1);
        assert_eq!(answer == Load::Later, from_disk, "block {block}");
    }
    rig.run();
    rig.log.latch("outside".to_owned());
    rig.drain();
    assert_eq!(
        rig.outputs.last(),
        Some(&Output::Failed("outside".to_owned()))
    );
}

///
#[test]
fn a_log_cut_to_its_start_during_a_trim_boots() {
    let mut rig = log_of(40);
    rig.log.note_committed(BlockNo(30));
    rig.log.trim(BlockNo(30));
    rig.log.cut(BlockNo(30));
    rig.drain();
    let cut = |rig: &Rig| rig.disk.segments().last() < Some(&30);
    while !cut(&rig) {
        rig.complete(0);
    }
    let mut rig = rig.restart();
    assert_eq!(rig.report().log_start.block, BlockNo(30));
    assert_eq!(rig.report().log_end, BlockNo(30));
    assert!(rig.disk.segments().is_empty());
    rig.append_durably(b"after");
    let mut rig = rig.restart();
    assert_eq!(rig.values(), [b"after"]);
}
