//! Start-up: the decision table, torn and faulty logs, rolls cut short, memory, crashes at any
//! moment.

use super::op::{DiskOp, FileName};
use super::recovery::{Head, Later, Sight, Verdict, judge};
use super::rig::{Disk, Random, Rig, config};
use super::{From, Output, RecoveredMemory, Refusal, State};
use crate::types::{BlockNo, Epoch, NodeId, ShardId};
use crate::wire::checkpoint::{self, Memory};

fn value(number: usize, len: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(len.max(8), number as u8);
    value
}

/// A log of so many blocks of one unit each, none of them below `scan_from`.
fn log_of(blocks: usize) -> Rig {
    let mut rig = Rig::created(config());
    for number in 0..blocks {
        rig.append_durably(&value(number, 1_000));
    }
    rig
}

fn refusal(rig: &Rig) -> Refusal {
    assert_eq!(rig.log.state(), State::Refused, "{:?}", rig.outputs);
    let mut all = rig.outputs.iter().filter_map(|output| match output {
        Output::Refused(refusal) => Some(refusal.clone()),
        _ => None,
    });
    all.next().expect("a refused log says why")
}

#[test]
fn the_table_is_the_function() {
    use Verdict::{End, Faulty, Good, Torn};
    let heads = [Head::Sound, Head::Unsound, Head::Zero];
    let laters = [Later::None, Later::Within, Later::Beyond];
    for head in heads {
        for (batches, chains) in [(true, true), (true, false), (false, true), (false, false)] {
            for later in laters {
                for existed in [true, false] {
                    let sight = Sight {
                        head,
                        batches,
                        chains,
                        later,
                        existed,
                    };
                    let good = head == Head::Sound && batches && chains;
                    let expected = match (good, existed, later, head) {
                        (true, ..) => Good,
                        (_, true, ..) => Faulty,
                        (_, _, Later::Beyond, _) => Faulty,
                        (_, _, Later::None, Head::Zero) => End,
                        _ => Torn,
                    };
                    assert_eq!(judge(&sight), expected, "{sight:?}");
                }
            }
        }
    }
}

///
///
/// D-S4
#[test]
fn a_torn_tail_is_cut_reported_once_and_appended_after() {
    for blocks_torn in 1..4 {
        let mut rig = log_of(10);
        for number in 10 - blocks_torn..10 {
            // Ten blocks of one unit lie in the first file behind its header.
            let at = 4096 * (1 + number) + if number % 2 == 0 { 200 } else { 700 };
            rig.segment(0)[at..at + 50].fill(0x55);
        }
        let kept = 10 - blocks_torn;
        let mut rig = rig.restart();
        let torn = rig.report().torn.expect("a torn tail was found");
        assert_eq!(torn.from, BlockNo(kept as u64));
        rig.append_durably(b"after");
        let mut rig = rig.restart();
        assert_eq!(rig.report().torn, None, "reported once");
        let values = rig.values();
        assert_eq!(values.len(), kept + 1);
        assert_eq!(values[kept], b"after");
    }
}

#[test]
fn a_hole_near_the_end_is_torn_and_what_lies_behind_it_goes() {
    let mut rig = log_of(10);
    rig.segment(0)[4096 * 5..4096 * 6].fill(0);
    let mut rig = rig.restart();
    let report = rig.report();
    assert_eq!(report.log_end, BlockNo(4));
    assert_eq!(report.torn.expect("torn").blocks, 5);
    let rest = &rig.segment(0)[4096 * 5..];
    assert!(
        rest.chunks(4096)
            .all(|unit| unit[..128].iter().all(|byte| *byte == 0))
    );
    assert_eq!(rig.values().len(), 4);
}

///
#[test]
fn damage_below_what_is_known_to_exist_is_never_cut() {
    for committed in [false, true] {
        let mut rig = log_of(10);
        if committed {
            rig.log.note_committed(BlockNo(10));
        }
        rig.now = rig.now.plus_us(5_000_000);
        rig.log.on_time(rig.now, &mut rig.pool);
        rig.run();
        rig.segment(0)[4096 * 5 + 300] ^= 1;
        let before = rig.disk.clone();
        let mut rig = rig.restart();
        let refusal = refusal(&rig);
        assert_eq!(refusal.block, BlockNo(4));
        assert_eq!(refusal.position, 4096 * 5);
        assert_eq!(refusal.file, "00000000000000000000.seg");
        assert!(!refusal.mend.is_empty());
        assert_eq!(
            rig.segment(0),
            &before.clone().segment(0).clone(),
            "kept as it was"
        );
        assert!(rig.writes.is_empty());
        assert_eq!(rig.pool.out(), 0);
    }
}

///
#[test]
fn sound_blocks_far_behind_a_hole_make_it_faulty() {
    let mut config = config();
    config.segment_bytes = 64 << 20;
    config.max_block_bytes = 2 << 20;
    config.max_batch_bytes = (2 << 20) - 128;
    let mut rig = Rig::created(config);
    for number in 0..10 {
        rig.append_durably(&value(number, (2 << 20) - 8_192));
    }
    let hole = |rig: &mut Rig, block: u64| {
        let position = rig.log.held(BlockNo(block)).expect("recent").position as usize;
        rig.segment(0)[position] ^= 0xFF;
    };
    hole(&mut rig, 5);
    let mut torn = Rig::recovered(rig.config.clone(), rig.disk.clone());
    assert_eq!(torn.report().log_end, BlockNo(5));
    torn.drain();
    hole(&mut rig, 1);
    let rig = rig.restart();
    assert_eq!(refusal(&rig).block, BlockNo(1));
}

///
#[test]
fn zeros_and_ones_are_no_blocks() {
    for byte in [0, 0xFF] {
        let mut rig = log_of(3);
        let len = rig.segment(0).len();
        rig.segment(0)[4096 * 4..len].fill(byte);
        let rig = rig.restart();
        assert_eq!(rig.report().log_end, BlockNo(3));
        assert_eq!(rig.report().torn.is_some(), byte == 0xFF);
    }
}

#[test]
fn in_a_set_of_one_a_later_block_knows_what_was_committed() {
    for alone in [true, false] {
        let mut config = config();
        if alone {
            config.members = vec![NodeId(1)];
        }
        let mut rig = Rig::created(config);
        for number in 0..6 {
            rig.append_durably(&value(number, 100));
            rig.log.note_committed(BlockNo(number as u64 + 1));
        }
        rig.segment(0)[4096 * 3] ^= 1;
        let rig = rig.restart();
        match alone {
            true => assert_eq!(refusal(&rig).block, BlockNo(2)),
            false => assert_eq!(rig.report().log_end, BlockNo(2)),
        }
    }
}

#[test]
fn other_member_list_refused() {
    let rig = log_of(2);
    let mut other = config();
    for members in [vec![1, 2], vec![1, 2, 4], vec![1, 2, 3, 4]] {
        other.members = members.iter().copied().map(NodeId).collect();
        let refused = Rig::recovered(other.clone(), rig.disk.clone());
        let rule = refusal(&refused).rule;
        let both = [format!("{members:?}"), "[1, 2, 3]".to_owned()];
        assert!(both.iter().all(|list| rule.contains(list)), "{rule}");
        assert!(refused.writes.is_empty());
    }
}

#[test]
fn another_log_is_refused_by_name() {
    let rig = log_of(2);
    let mut other = config();
    other.log.shard = ShardId(3);
    let found = refusal(&Rig::recovered(other, rig.disk.clone()));
    assert!(
        found.rule.contains("7-2") && found.rule.contains("7-3"),
        "{found}"
    );
}

#[test]
fn a_format_of_another_version_is_refused_and_not_cut() {
    for (name, at, len) in [
        (FileName::Segment(BlockNo(0)), 0, 4096),
        (FileName::Segment(BlockNo(0)), 4096 * 2, 128),
        (FileName::Checkpoint, 0, 4096),
    ] {
        let mut rig = log_of(3);
        let header = &mut rig.disk.file(name)[at..at + len];
        header[4] = 2;
        let crc = crate::wire::crc_with_zeroed(header, 8);
        header[8..12].copy_from_slice(&crc.to_le_bytes());
        let rig = rig.restart();
        assert!(refusal(&rig).rule.contains("version 2"));
        assert!(rig.writes.is_empty());
    }
}

#[test]
fn a_rotten_checkpoint_copy_keeps_the_vote() {
    for copy in 0..2 {
        let mut rig = log_of(1);
        rig.log.save(|checkpoint| {
            checkpoint.promised = Epoch(9);
            checkpoint.vote = Some(NodeId(3));
        });
        rig.run();
        rig.disk.file(FileName::Checkpoint)[copy * 4096 + 30] ^= 1;
        let mut rig = rig.restart();
        assert_eq!(rig.report().promised, Epoch(9));
        assert_eq!(rig.report().vote, Some(NodeId(3)));
        assert_eq!(rig.report().memory, RecoveredMemory::Whole);
        let bytes = rig.disk.file(FileName::Checkpoint);
        let copies = [&bytes[..4096], &bytes[4096..]].map(checkpoint::read);
        assert_eq!(copies[0], copies[1], "both copies are sound again");
    }
}

#[test]
fn without_a_checkpoint_blocks_are_kept_and_memory_is_lost() {
    let mut rig = log_of(20);
    rig.disk.file(FileName::Checkpoint).fill(0xEE);
    let mut rig = rig.restart();
    assert_eq!(rig.report().memory, RecoveredMemory::Lost);
    assert_eq!(rig.values().len(), 20);
    let rig = rig.restart();
    assert_eq!(
        rig.report().memory,
        RecoveredMemory::Lost,
        "until somebody says otherwise"
    );
}

#[test]
fn a_blank_disk_is_blank_and_a_lost_one_is_not() {
    let rig = Rig::recovered(config(), Disk::new(config().segment_bytes));
    assert_eq!(rig.report().memory, RecoveredMemory::Blank);
    let mut disk = Disk::new(config().segment_bytes);
    disk.file(FileName::Checkpoint).fill(0xEE);
    let rig = Rig::recovered(config(), disk);
    assert_eq!(rig.report().memory, RecoveredMemory::Lost);
    // The first copy of a creation was torn: nothing was promised yet.
    let mut disk = Disk::new(config().segment_bytes);
    disk.file(FileName::Checkpoint)[..512].fill(0xEE);
    let rig = Rig::recovered(config(), disk);
    assert_eq!(rig.report().memory, RecoveredMemory::Blank);
}

#[test]
fn writes_that_need_not_survive_lose_memory_with_the_power_only() {
    for (other_boot, clean) in [(true, false), (false, false), (true, true)] {
        let mut config = config();
        config.writes_survive = false;
        let mut rig = Rig::created(config.clone());
        rig.append_durably(b"x");
        rig.append_durably(b"y");
        if clean {
            rig.stop();
        } else {
            rig.now = rig.now.plus_us(5_000_000);
            rig.log.on_time(rig.now, &mut rig.pool);
            rig.run();
            rig.segment(0)[4096 * 2..4096 * 3].fill(0);
        }
        if other_boot {
            config.boot_id = [2; 16];
        }
        let rig = Rig::recovered(config, rig.disk);
        match (other_boot, clean) {
            (true, false) => {
                assert_eq!(rig.report().memory, RecoveredMemory::Lost);
                assert_eq!(rig.report().log_end, BlockNo(1), "what was lost is cut");
                assert_eq!(rig.log.checkpoint().memory, Memory::Lost);
            }
            (_, true) => assert_eq!(rig.report().memory, RecoveredMemory::Whole),
            (false, false) => assert_eq!(refusal(&rig).block, BlockNo(1)),
        }
    }
}

#[test]
fn a_missing_or_damaged_segment_is_refused() {
    let mut rig = log_of(40);
    rig.stop();
    assert_eq!(rig.disk.segments(), [0, 15, 30]);
    for base in [0, 15, 30] {
        let mut disk = rig.disk.clone();
        disk.segment(base)[20] ^= 1;
        let found = refusal(&Rig::recovered(config(), disk));
        assert!(found.file.starts_with(&format!("{base:020}")), "{found}");
        let mut disk = rig.disk.clone();
        disk.names.remove(&FileName::Segment(BlockNo(base)));
        refusal(&Rig::recovered(config(), disk));
    }
    let mut disk = rig.disk.clone();
    let file = disk
        .names
        .remove(&FileName::Segment(BlockNo(15)))
        .expect("it is there");
    disk.names.insert(FileName::Segment(BlockNo(16)), file);
    assert!(refusal(&Rig::recovered(config(), disk)).rule.contains("15"));
}

/// A file that ends before the blocks that existed closes the log, whichever it is and wherever it
/// ends, though nobody reads that far at the start.
///
///
#[test]
fn a_file_that_was_cut_off_is_refused() {
    let mut rig = log_of(40);
    rig.stop();
    let len = rig.disk.segment(0).len();
    // Fifteen blocks of one unit lie behind the header; the newest file holds ten.
    for (base, last) in [(0, 15), (15, 15), (30, 10)] {
        for units in [0, 1, 2, 7, last] {
            for more in [0, 1, 4095] {
                let mut disk = rig.disk.clone();
                let left = (4096 * units + more).min(len);
                disk.segment(base).truncate(left);
                let found = refusal(&Rig::recovered(config(), disk));
                assert!(found.file.starts_with(&format!("{base:020}")), "{found}");
                let gone = BlockNo(base + (units as u64).max(1) - 1);
                assert_eq!(found.block, gone, "{units}: {found}");
                assert!(found.mend.contains("every other member"), "{found}");
            }
        }
        let mut disk = rig.disk.clone();
        disk.segment(base).truncate(4096 * (last + 1));
        let mut whole = Rig::recovered(config(), disk);
        assert_eq!(whole.values().len(), 40, "no block is gone");
    }
}

/// Which file is gone, not the sound one before it: among those that are trusted, and among those
/// that are scanned.
#[test]
fn a_file_that_is_gone_from_the_middle_is_named() {
    for clean in [true, false] {
        let mut rig = log_of(100);
        if clean {
            rig.stop();
        }
        for gone in [15, 30, 45, 60, 75] {
            let mut disk = rig.disk.clone();
            disk.names.remove(&FileName::Segment(BlockNo(gone)));
            let found = refusal(&Rig::recovered(config(), disk));
            let said = found.to_string();
            assert!(found.file.starts_with(&format!("{gone:020}")), "{said}");
            assert_eq!(found.block, BlockNo(gone), "{said}");
            assert!(said.contains("missing"), "{said}");
            assert!(
                said.contains(&format!("{:020}.seg ends", gone - 15)),
                "{said}"
            );
        }
        // The last block of a file that is there is damaged: that file is named.
        let mut disk = rig.disk.clone();
        disk.names.remove(&FileName::Segment(BlockNo(45)));
        disk.segment(30)[4096 * 15] ^= 1;
        let found = refusal(&Rig::recovered(config(), disk));
        assert!(found.file.starts_with(&format!("{:020}", 30)), "{found}");
    }
}

#[test]
fn epochs_are_known_again_after_a_restart() {
    let mut rig = Rig::created(config());
    for epoch in 1..8 {
        rig.log
            .append_local(rig.now, Epoch(epoch), &mut rig.pool)
            .expect("room");
        rig.run();
        for number in 0..9 {
            rig.append_durably(&value(number, 100));
        }
    }
    rig.stop();
    let mut again = Rig::recovered(config(), rig.disk.clone());
    for epoch in 1..8 {
        let first = BlockNo((u64::from(epoch) - 1) * 10);
        assert_eq!(again.log.first_of_epoch(Epoch(epoch)), Some(first));
        assert_eq!(again.log.epoch_of(BlockNo(first.0 + 9)), Some(Epoch(epoch)));
    }
    assert_eq!(again.log.last_tick(), rig.log.last_tick());
    assert_eq!(again.values().len(), 63);
}

#[test]
fn a_next_file_that_continues_the_log_is_taken_and_a_stale_one_never() {
    // A crash before the name of the second file was durable.
    let mut rig = log_of(15);
    rig.append(&value(15, 1_000)).expect("room");
    let not_name = |pending: &super::rig::Pending| !matches!(pending.op, DiskOp::Name { .. });
    while let Some(at) = rig.pending.iter().position(not_name) {
        rig.complete(at);
    }
    assert_eq!(rig.log.durable_end(), BlockNo(15));
    let mut taken = Rig::recovered(config(), rig.disk.clone());
    assert_eq!(taken.values().len(), 16);
    assert_eq!(taken.disk.segments(), [0, 15]);
    // The block before the roll is gone: what lies in the next file does not continue the log.
    let mut disk = rig.disk.clone();
    disk.segment(0)[4096 * 15] ^= 1;
    let mut stale = Rig::recovered(config(), disk);
    assert_eq!(stale.report().log_end, BlockNo(14));
    assert_eq!(stale.disk.segments(), [0]);
    assert!(
        stale
            .disk
            .file(FileName::Next)
            .iter()
            .all(|byte| *byte == 0),
        "a new one"
    );
    stale.append_durably(b"after");
    let mut stale = stale.restart();
    assert_eq!(stale.values().len(), 15);
}

///
#[test]
fn a_crash_at_any_moment_loses_nothing_that_was_durable() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut config = config();
        if random.below(2) == 0 {
            config.segment_bytes = 6 * 4096;
        }
        let mut rig = Rig::created(config);
        let mut accepted: Vec<Vec<u8>> = Vec::new();
        for _ in 0..4 {
            for _ in 0..random.below(60) {
                let next = value(accepted.len(), 1 + random.below(6_000));
                if rig.append(&next).is_ok() {
                    accepted.push(next);
                }
                for _ in 0..random.below(3) {
                    if !rig.pending.is_empty() {
                        let at = random.below(rig.pending.len());
                        rig.complete(at);
                    }
                }
            }
            let durable = rig.log.durable_offset().0 as usize;
            rig = crash_until_open(rig, &mut random, seed);
            let values = rig.values();
            assert!(
                values.len() >= durable,
                "seed {seed}: durable records are gone"
            );
            assert!(accepted.starts_with(&values), "seed {seed}: other records");
            accepted.truncate(values.len());
        }
    }
}

/// Crashes, and crashes again during recovery, until a recovery comes through.
fn crash_until_open(rig: Rig, random: &mut Random, seed: u64) -> Rig {
    let mut rig = rig.crash(random);
    for _ in 0..random.below(4) {
        rig.drain();
        for _ in 0..random.below(40) {
            if rig.pending.is_empty() {
                break;
            }
            let at = random.below(rig.pending.len());
            rig.complete(at);
        }
        assert_ne!(
            rig.log.state(),
            State::Refused,
            "seed {seed}: {:?}",
            rig.outputs
        );
        rig = rig.crash(random);
    }
    rig.run();
    assert_eq!(
        rig.log.state(),
        State::Open,
        "seed {seed}: {:?}",
        rig.outputs
    );
    if rig.report().memory == RecoveredMemory::Blank {
        rig.log.create(Memory::Whole);
    }
    rig.run();
    rig
}

///
#[test]
fn every_crash_point_of_a_creation_boots() {
    for seed in 0..100 {
        let mut random = Random(seed);
        let mut rig = Rig::recovered(config(), Disk::new(config().segment_bytes));
        rig.log.create(Memory::Whole);
        rig.drain();
        for _ in 0..random.below(6) {
            if !rig.pending.is_empty() {
                rig.complete(0);
            }
        }
        let mut rig = crash_until_open(rig, &mut random, seed);
        rig.append_durably(b"x");
        let mut rig = rig.restart();
        assert_eq!(rig.values(), [b"x"]);
    }
}

///
#[test]
fn a_crash_of_a_follower_with_runs_in_flight_is_torn() {
    let mut leader = Rig::created(config());
    for number in 0..80 {
        leader.append_durably(&value(number, 100 + 97 * (number % 60)));
        leader.log.note_committed(BlockNo(number as u64 + 1));
    }
    let blocks: Vec<_> = (0..80)
        .map(|block| {
            let from = From::Block(BlockNo(block));
            leader.load(from, 1).expect("held").remove(0)
        })
        .collect();
    let expected = leader.values();
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut rig = Rig::created(config());
        for _ in 0..6 {
            while rig.log.log_end() < BlockNo(80) && random.below(6) > 0 {
                let next = rig.log.log_end().0 as usize;
                let end = 80.min(next + 1 + random.below(6));
                rig.write_run(&blocks[next..end]);
                for _ in 0..random.below(4) {
                    if !rig.pending.is_empty() {
                        let at = random.below(rig.pending.len());
                        rig.complete(at);
                    }
                }
            }
            rig.log.note_committed(rig.log.durable_end());
            let durable = rig.log.durable_end();
            rig = crash_until_open(rig, &mut random, seed);
            assert!(rig.log.log_end() >= durable, "seed {seed}");
            assert!(expected.starts_with(&rig.values()), "seed {seed}");
        }
    }
}
