//! What a log no longer keeps, and a log that begins anew.

use super::op::{DiskOp, FileName};
use super::retention::Retention;
use super::rig::{Random, Rig, config};
use super::{Config, From, Output, RecoveredMemory};
use crate::types::{BlockNo, Time};
use crate::wire::checkpoint::LogStart;

const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;
/// Blocks of a segment of these tests.
const BLOCKS: u64 = 3;

fn keeping(retention: Retention) -> Config {
    Config {
        retention,
        ..config()
    }
}

fn value(number: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(15_000, number as u8);
    value
}

/// Appends blocks, one a second, all committed.
fn grow(rig: &mut Rig, blocks: usize) {
    for number in 0..blocks {
        rig.now = rig.now.plus_us(1_000_000);
        rig.append_durably(&value(number));
        rig.log.note_committed(rig.log.log_end());
        trim(rig);
    }
}

/// As a leader does after every event.
fn trim(rig: &mut Rig) {
    if let Some(to) = rig.log.retention_point(rig.now) {
        rig.log.trim(to);
        rig.run();
    }
}

///
#[test]
fn whole_segments_go_by_bytes_and_never_above_what_is_committed() {
    let keep = Retention {
        trim_bytes: Some(3 * config().segment_bytes),
        ..Retention::default()
    };
    let mut rig = Rig::created(keeping(keep));
    for number in 0..15 {
        rig.append_durably(&value(number));
        trim(&mut rig);
    }
    assert_eq!(
        rig.disk.segments(),
        [0, 3, 6, 9, 12],
        "nothing is committed"
    );
    rig.log.note_committed(BlockNo(5));
    trim(&mut rig);
    assert_eq!(
        rig.disk.segments(),
        [3, 6, 9, 12],
        "what is sealed and committed"
    );
    rig.log.note_committed(BlockNo(15));
    trim(&mut rig);
    assert_eq!(rig.disk.segments(), [6, 9, 12]);
    assert_eq!(rig.log.log_start().block, BlockNo(2 * BLOCKS));
    grow(&mut rig, 30);
    assert_eq!(rig.disk.segments().len(), 3);
    assert!(rig.load(From::Block(BlockNo(0)), 1).is_none());
    let mut rig = rig.restart();
    assert_eq!(
        rig.values().len() as u64,
        rig.log.log_end().0 - rig.log.log_start().block.0
    );
}

#[test]
fn a_hard_bound_refuses_and_deletes_nothing() {
    let most = 2 * config().segment_bytes;
    let keep = Retention {
        refuse_bytes: Some(most),
        ..Retention::default()
    };
    let mut rig = Rig::created(keeping(keep));
    let mut blocks = 0;
    let refused = loop {
        if let Some(refused) = rig.log.retention_refuses() {
            break refused;
        }
        grow(&mut rig, 1);
        blocks += 1;
        assert!(blocks < 20, "a bound is reached");
    };
    assert!(refused[0] >= most && refused[1] == most, "{refused:?}");
    assert!(refused[0] < most + config().segment_bytes);
    assert_eq!(rig.log.log_start().block, BlockNo(0));
    assert_eq!(rig.values().len(), blocks);
}

/// Age goes by the leader's tick: what a record says of its time keeps nothing and deletes nothing.
///
///
#[test]
fn segments_go_by_the_age_of_their_ticks() {
    let keep = Retention {
        age_us: Some(HOUR_US),
        ..Retention::default()
    };
    let mut rig = Rig::created(keeping(keep));
    for number in 0..9 {
        rig.now = rig.now.plus_us(60_000_000);
        let time = [0, u64::MAX / 2][number % 2];
        rig.append_at(&value(number), time).expect("room");
        rig.run();
        rig.log.note_committed(rig.log.log_end());
        trim(&mut rig);
    }
    assert_eq!(rig.disk.segments(), [0, 3, 6]);
    let due = rig
        .log
        .retention_timeout()
        .expect("the first segment grows old");
    rig.now = Time(due.0 - 1);
    trim(&mut rig);
    assert_eq!(rig.disk.segments(), [0, 3, 6], "not a microsecond early");
    rig.now = due;
    trim(&mut rig);
    assert_eq!(rig.disk.segments(), [3, 6]);
    rig.now = rig.now.plus_us(DAY_US);
    trim(&mut rig);
    assert_eq!(rig.disk.segments(), [6], "the newest stays");
    assert_eq!(rig.log.retention_timeout(), None);
}

/// A clock that is wrong by a day at a restart deletes nothing early and holds nothing up.
///
///
#[test]
fn a_step_of_the_clock_deletes_nothing_early_and_holds_nothing_up() {
    let keep = Retention {
        age_us: Some(2 * HOUR_US),
        ..Retention::default()
    };
    for step in [-(DAY_US as i64), DAY_US as i64] {
        let mut rig = Rig::created(keeping(keep));
        rig.now = Time(10 * DAY_US);
        grow(&mut rig, 7);
        let stepped = Time(rig.now.0.wrapping_add_signed(step));
        let mut rig = Rig::start_at(rig.config, rig.disk, stepped);
        rig.run();
        rig.log.note_committed(rig.log.log_end());
        for hours in [0, 1] {
            rig.now = stepped.plus_us(hours * HOUR_US);
            grow(&mut rig, 1);
            assert_eq!(
                rig.log.log_start().block,
                BlockNo(0),
                "{step}: {hours} hours later"
            );
        }
        rig.now = stepped.plus_us(2 * HOUR_US + 60_000_000);
        trim(&mut rig);
        assert_eq!(rig.log.log_start().block, BlockNo(2 * BLOCKS), "{step}");
        // What was written after the step is as old as it is.
        grow(&mut rig, 6);
        rig.now = rig.now.plus_us(HOUR_US);
        trim(&mut rig);
        assert_eq!(rig.log.log_start().block, BlockNo(2 * BLOCKS), "{step}");
        rig.now = rig.now.plus_us(HOUR_US);
        trim(&mut rig);
        assert!(rig.log.log_start().block > BlockNo(2 * BLOCKS), "{step}");
    }
}

/// A file that is used again, with blocks of before behind its new end: of this log, trimmed; of
/// this log, from a history that was cut, with the very numbers that come next; of another log.
#[test]
fn recycled_segment_is_never_read() {
    let mut history = Rig::created(config());
    let mut elsewhere = config();
    elsewhere.log.shard.0 += 1;
    let mut elsewhere = Rig::created(elsewhere);
    for rig in [&mut history, &mut elsewhere] {
        (100..100 + 2 * BLOCKS as usize).for_each(|number| rig.append_durably(&value(number)));
    }
    let trimmed = history.segment(0).clone();
    let cut = history.segment(BLOCKS).clone();
    let foreign = elsewhere.segment(BLOCKS).clone();
    for (what, stale) in [("trimmed", trimmed), ("cut", cut), ("foreign", foreign)] {
        for seed in 0..20 {
            let mut rig = Rig::created(config());
            let mut wanted: Vec<_> = (0..BLOCKS as usize).map(value).collect();
            wanted.iter().for_each(|value| rig.append_durably(value));
            rig.disk.file(FileName::Next).clone_from(&stale);
            for number in BLOCKS as usize..2 * BLOCKS as usize - 1 {
                wanted.push(value(number));
                rig.append_durably(&wanted[number]);
                rig = rig.restart();
                assert!(rig.values() == wanted, "{what}: after block {number}");
            }
            // A block in flight when power goes: it is there or not, and nothing else is.
            wanted.push(value(2 * BLOCKS as usize - 1));
            rig.append(wanted.last().expect("pushed")).expect("room");
            let mut rig = rig.crash(&mut Random(seed));
            rig.run();
            let found = rig.values();
            assert!(found.len() + 1 >= wanted.len(), "{what}, seed {seed}");
            assert!(wanted.starts_with(&found), "{what}, seed {seed}");
        }
    }
}

/// A leader whose log begins behind the end of the follower's.
fn leader() -> Rig {
    let keep = Retention {
        trim_bytes: Some(2 * config().segment_bytes),
        ..Retention::default()
    };
    let mut rig = Rig::created(keeping(keep));
    grow(&mut rig, 20);
    assert_eq!(rig.log.log_start().block, BlockNo(15));
    rig
}

/// A follower that stood still long ago.
fn follower(blocks: u64) -> Rig {
    let mut source = Rig::created(config());
    let mut rig = Rig::created(config());
    for number in 0..blocks {
        source.append_durably(&value(number as usize));
        let blocks = source.load(From::Block(BlockNo(number)), 1).expect("held");
        rig.write_run(&blocks);
        rig.run();
    }
    rig.log.note_committed(BlockNo(blocks.min(3)));
    rig.outputs.clear();
    rig
}

fn catch_up(leader: &mut Rig, follower: &mut Rig) {
    while follower.log.log_end() < leader.log.log_end() {
        let next = follower.log.log_end();
        let blocks = leader.load(From::Block(next), 1).expect("held");
        follower.write_run(&blocks);
        follower.run();
    }
}

#[test]
fn a_log_begins_anew_where_its_leaders_begins() {
    // One that ends before, one that is empty, two that hold other blocks behind it, the last one
    // whole files of them.
    for blocks in [7, 0, 17, 40] {
        let (mut leader, mut follower) = (leader(), follower(blocks));
        let start = leader.log.log_start();
        follower.log.reset(start);
        assert_eq!(follower.log.begins_anew(), Some(start));
        follower.run();
        assert_eq!(follower.log.begins_anew(), None);
        assert_eq!(follower.log.log_start(), start);
        assert_eq!(follower.log.durable_end(), start.block);
        assert_eq!(follower.log.durable_offset(), start.offset);
        let told = |output: &Output| matches!(output, Output::CutDone(_));
        assert_eq!(
            follower
                .outputs
                .iter()
                .filter(|output| told(output))
                .count(),
            1
        );
        assert!(
            follower.disk.segments().is_empty(),
            "{:?}",
            follower.disk.segments()
        );
        catch_up(&mut leader, &mut follower);
        assert_eq!(follower.values(), leader.values());
        assert_eq!(follower.disk.segments(), leader.disk.segments());
        for base in leader.disk.segments() {
            assert!(
                follower.segment(base) == leader.segment(base),
                "segment {base}"
            );
        }
        let mut follower = follower.restart();
        assert_eq!(follower.report().memory, RecoveredMemory::Whole);
        assert_eq!(follower.values(), leader.values());
    }
}

/// The new start is saved before the first file goes; whatever a crash leaves boots, as the old log
/// (or a shorter one) or as the new one.
///
///
#[test]
fn a_crash_while_a_log_begins_anew_boots() {
    for blocks in [7_u64, 17] {
        for seed in 0..150 {
            let mut random = Random(seed);
            let mut rig = follower(blocks);
            let start = LogStart {
                block: BlockNo(15),
                offset: crate::types::Offset(15),
                prev_epoch: crate::types::Epoch(9),
                prev_crc: 77,
            };
            rig.log.reset(start);
            rig.drain();
            for _ in 0..random.below(30) {
                if rig.pending.is_empty() {
                    break;
                }
                let at = random.below(rig.pending.len());
                rig.complete(at);
                let kept = rig.disk.segments();
                let gone = (0..blocks.min(15))
                    .step_by(3)
                    .any(|base| !kept.contains(&base));
                assert!(
                    !gone || rig.log.log_start() == start,
                    "saved before a file goes"
                );
            }
            let mut rig = rig.crash(&mut random);
            rig.run();
            let found = rig.report();
            let anew = found.log_start == start && found.log_end == start.block;
            let before = found.log_start.block == BlockNo(0)
                && found.log_end.0 >= blocks.min(15)
                && found.log_end.0 <= blocks;
            assert!(anew || before, "seed {seed}: {found:?}");
            let count = found.log_end.0 - found.log_start.block.0;
            assert_eq!(rig.values().len() as u64, count);
        }
    }
}

/// A read holds back its own file and no other.
///
///
#[test]
fn a_file_goes_once_no_read_uses_it() {
    let mut rig = Rig::created(config());
    grow(&mut rig, 12);
    rig.log.forget_recent(BlockNo(0));
    rig.drain();
    assert_eq!(
        rig.log.load(1, From::Block(BlockNo(0)), BlockNo(12), 1),
        super::Load::Later
    );
    rig.drain();
    rig.log.trim(BlockNo(9));
    rig.drain();
    let is_read = |op: &DiskOp| matches!(op, DiskOp::Read { .. });
    while let Some(at) = rig.pending.iter().position(|pending| !is_read(&pending.op)) {
        rig.complete(at);
    }
    assert_eq!(
        rig.disk.segments(),
        [0, 9],
        "the file that is being read stays"
    );
    rig.run();
    assert_eq!(rig.disk.segments(), [9]);
    assert!(!rig.disk.names.contains_key(&FileName::Segment(BlockNo(0))));
}

/// What a follower lacks is told in bytes and by the tick of its first block, also of blocks that
/// memory knows no more but for where their segment begins; where it cannot know, not at all.
#[test]
fn the_rest_of_a_log_is_measured_or_not_known() {
    let mut rig = Rig::created(config());
    for number in 0..8 {
        rig.append_durably(&value(number));
    }
    let block = rig.log.rest_from(BlockNo(7)).expect("held").0;
    let first_tick = rig.log.held(BlockNo(0)).expect("held").last_tick;
    let whole = Some((8 * block, first_tick));
    assert_eq!(rig.log.rest_from(BlockNo(0)), whole);
    assert_eq!(rig.log.rest_from(BlockNo(4)).expect("held").0, 4 * block);
    assert_eq!(rig.log.rest_from(BlockNo(8)).expect("the end").0, 0);
    let log = &mut rig.log;
    log.note_committed(BlockNo(8));
    rig.stop();
    let rig = rig.restart();
    assert!(
        rig.log.held(BlockNo(1)).is_none(),
        "recovery trusts what lies far below"
    );
    assert_eq!(rig.log.rest_from(BlockNo(1)), None);
    let (bytes, tick) = rig
        .log
        .rest_from(BlockNo(0))
        .expect("a segment begins there");
    assert_eq!(tick, first_tick);
    // Of a file that was sealed the unused end may count, less than a block's worth.
    assert!((8 * block..10 * block).contains(&bytes), "{bytes}");
}
