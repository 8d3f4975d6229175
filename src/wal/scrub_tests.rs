//! Damage in a log that other nodes hold: found, noted, repaired to the byte; what is beyond that.

use super::index::{Index, Tail};
use super::output::{Health, ReadError, RecoveredMemory};
use super::rig::{Disk, Random, Rig, batch_of, config, values_of};
use super::{Config, From, Load, Output, RepairRefusal, ScrubReport, State};
use crate::buffers::Buffers;
use crate::limits::SEGMENT_HEADER;
use crate::types::{BlockNo, Epoch, Offset};
use crate::wire::block::{self, BlockHeader};
use crate::wire::checkpoint::{self, LogStart, Memory};
use std::collections::BTreeMap;

fn shared() -> Config {
    Config {
        repairs: true,
        ..config()
    }
}

fn value(number: usize) -> Vec<u8> {
    vec![(number % 251) as u8 + 1; 3000 + 1700 * (number % 5)]
}

/// A log of so many blocks, committed, in several segments.
fn log_of(blocks: usize) -> Rig {
    let mut rig = Rig::created(shared());
    for number in 0..blocks {
        rig.append_durably(&value(number));
    }
    rig.log.note_committed(rig.log.log_end());
    rig.outputs.clear();
    rig
}

/// Every block on a disk, with its segment and position.
fn blocks_of(disk: &Disk) -> BTreeMap<u64, (u64, usize, BlockHeader, Vec<u8>)> {
    let mut disk = disk.clone();
    let mut found = BTreeMap::new();
    for base in disk.segments() {
        let bytes = disk.segment(base).clone();
        let mut at = SEGMENT_HEADER;
        while at < bytes.len() {
            let next = found.keys().next_back().map_or(base, |last: &u64| last + 1);
            let header = block::read_header(&bytes[at..]).ok();
            let Some(header) = header.filter(|header| header.block.0 == next) else {
                break;
            };
            let end = at + header.padded_len();
            found.insert(header.block.0, (base, at, header, bytes[at..end].to_vec()));
            at = end;
        }
    }
    found
}

/// Gives the log what it wants from a sound copy, until it wants no more.
fn mend(rig: &mut Rig, sound: &Disk) -> usize {
    let all = blocks_of(sound);
    let mut repairs = 0;
    loop {
        let wanted = rig.log.wanted().next();
        let Some(wanted) = wanted else {
            return repairs;
        };
        let range = wanted.from.0..wanted.end.0;
        let blocks: Vec<_> = range.map(|number| all[&number].clone()).collect();
        let bytes: Vec<u8> = blocks.iter().flat_map(|one| one.3.clone()).collect();
        let headers: Vec<BlockHeader> = blocks.iter().map(|one| one.2).collect();
        let buffer = rig.pool.take(bytes.len()).expect("no limit");
        rig.pool.bytes_mut(buffer)[..bytes.len()].copy_from_slice(&bytes);
        rig.log.repair(buffer, &headers).expect("they chain");
        rig.run();
        repairs += 1;
        assert!(repairs < 100, "no end");
    }
}

/// A pass of the scrub, as fast as may be.
fn scrub(rig: &mut Rig) -> ScrubReport {
    rig.outputs.clear();
    assert!(rig.log.scrub(rig.now));
    for _ in 0..10_000 {
        rig.run();
        let mut all = rig.outputs.iter().filter_map(|output| match output {
            Output::Health(Health::Scrubbed(report)) => Some(*report),
            _ => None,
        });
        if let Some(report) = all.next() {
            return report;
        }
        rig.now = rig.log.poll_timeout().unwrap_or(rig.now).max(rig.now);
        rig.log.on_time(rig.now, &mut rig.pool);
    }
    panic!("the scrub does not end");
}

fn same_blocks(rig: &Rig, sound: &Disk) {
    let (mine, theirs) = (blocks_of(&rig.disk), blocks_of(sound));
    assert!(mine == theirs, "the copies differ");
}

fn values(rig: &mut Rig) -> Vec<Vec<u8>> {
    rig.log.forget_recent(BlockNo(0));
    rig.values()
}

/// Places in a block: header, batch header, body, padding.
fn places(header: &BlockHeader) -> Vec<usize> {
    let used = header.used_len as usize;
    let padding = (header.padded_len() - used > 0).then_some(used);
    let last = (header.padded_len() - used > 0).then_some(header.padded_len() - 1);
    let parts = [0, 9, 13, 21, 37, 127, 128, 150, 255, 256, 300, used - 1];
    parts.into_iter().chain(padding).chain(last).collect()
}

/// H-21, H-49, H-50, Q-8: a flipped bit anywhere in a committed block is found by the scrub of a
/// running log, named with its place, repaired to the byte, and the next pass finds nothing.
#[test]
fn a_flipped_bit_anywhere_is_found_and_repaired() {
    let rig = log_of(14);
    let sound = rig.disk.clone();
    let all = blocks_of(&sound);
    assert!(sound.segments().len() >= 3, "several segments");
    let expected: Vec<Vec<u8>> = (0..14).map(value).collect();
    let mut rig = rig;
    for number in [0, 1, 5, 12, 13] {
        let (base, at, header, _) = &all[&number];
        for place in places(header) {
            rig.segment(*base)[at + place] ^= 0x10;
            let report = scrub(&mut rig);
            assert_eq!(report.found, 1, "block {number} at {place}");
            let damaged = rig.outputs.iter().find_map(|output| match output {
                Output::Health(Health::Damaged(damage)) => Some(damage.clone()),
                _ => None,
            });
            let damage = damaged.expect("it is named");
            assert_eq!((damage.from.0, damage.end.0), (number, number + 1));
            assert_eq!(damage.position, *at as u64);
            assert_eq!(rig.log.checkpoint().faulty.len(), 1, "noted");
            assert_eq!(mend(&mut rig, &sound), 1);
            assert!(rig.log.checkpoint().faulty.is_empty());
            same_blocks(&rig, &sound);
            assert_eq!(scrub(&mut rig).found, 0, "block {number} at {place}");
        }
    }
    assert_eq!(values(&mut rig), expected);
    rig.append_durably(b"and on");
}

/// H-2, H-10, H-31, H-48, H-49, Q-8: the same while the log is down: found at the start or by the
/// pass behind it, whichever part.
#[test]
fn damage_of_a_stopped_log_is_passed_by_and_repaired() {
    let mut rig = log_of(14);
    rig.stop();
    let sound = rig.disk.clone();
    let all = blocks_of(&sound);
    let last = *sound.segments().last().expect("several");
    for (number, (base, at, header, _)) in &all {
        for place in places(header) {
            let mut disk = sound.clone();
            disk.segment(*base)[at + place] ^= 1;
            let mut rig = Rig::recovered(shared(), disk);
            assert_eq!(rig.log.state(), State::Open, "block {number} at {place}");
            let what = rig.report();
            if *base == last {
                // The end of the log is damaged: it comes again from the leader.
                assert_eq!(
                    what.memory,
                    RecoveredMemory::Lost,
                    "block {number} at {place}"
                );
                assert_eq!(what.log_end, BlockNo(*number));
                let faulty = &rig.log.checkpoint().faulty;
                assert_eq!(faulty[..], [(BlockNo(*number), BlockNo(14))]);
                for number in *number..14 {
                    let (.., header, bytes) = &all[&number];
                    rig.write_run(&[(*header, bytes.clone())]);
                    rig.run();
                    // What is back is vouched for at once.
                    assert_eq!(rig.log.sound_end(BlockNo(0)), BlockNo(number + 1));
                }
            } else {
                assert_eq!(
                    what.memory,
                    RecoveredMemory::Whole,
                    "block {number} at {place}"
                );
                assert_eq!(what.log_end, BlockNo(14));
                rig.log.note_committed(BlockNo(14));
                scrub(&mut rig);
                assert_eq!(mend(&mut rig, &sound), 1, "block {number} at {place}");
            }
            assert!(rig.log.faulty().is_empty(), "block {number} at {place}");
            same_blocks(&rig, &sound);
            rig.log.note_committed(BlockNo(14));
            assert_eq!(scrub(&mut rig).found, 0);
            rig.stop();
            let again = Rig::recovered(shared(), rig.disk);
            assert!(again.report().damage.is_empty());
        }
    }
}

/// What a recovery passed by was not seen: a search by time must not take a segment for earlier
/// than what is repaired in it.
///
///
#[test]
fn a_search_by_time_passes_no_segment_with_damage() {
    let config = Config {
        segment_bytes: 128 * 4096,
        ..shared()
    };
    let mut rig = Rig::created(config);
    for time in [1000, 5000, 1001, 1002] {
        rig.append_at(b"value", time).expect("there is room");
        rig.run();
    }
    let blocks = blocks_of(&rig.disk);
    let headers: Vec<BlockHeader> = blocks.values().map(|block| block.2).collect();
    let mut index = Index::new(LogStart::default());
    for (header, position) in headers.iter().zip((SEGMENT_HEADER as u64..).step_by(4096)) {
        match header.block {
            BlockNo(1) => index.skip_damage(BlockNo(1), Tail::behind(header)),
            _ => index.push(header, BlockNo(0), position),
        }
    }
    assert!(index.may_be_as_late(BlockNo(0), 3000));
}

/// a log whose only segment is damaged from its first block on, and that stops again before
/// anything came back, starts again and misses the same blocks.
#[test]
fn a_damaged_end_is_missed_over_restarts() {
    let mut rig = log_of(2);
    rig.stop();
    let sound = rig.disk.clone();
    let all = blocks_of(&sound);
    rig.segment(0)[SEGMENT_HEADER + 20] ^= 1;
    let mut rig = Rig::recovered(shared(), rig.disk);
    for _ in 0..3 {
        assert_eq!(rig.log.state(), State::Open);
        assert_eq!(rig.report().memory, RecoveredMemory::Lost);
        assert_eq!(rig.log.checkpoint().faulty, [(BlockNo(0), BlockNo(2))]);
        rig = rig.restart();
    }
    for (.., header, bytes) in all.values() {
        rig.write_run(&[(*header, bytes.clone())]);
        rig.run();
    }
    assert!(rig.log.faulty().is_empty());
    same_blocks(&rig, &sound);
}

/// A load passes over damage that it does not want, and fails alone if it wants it.
#[test]
fn a_load_that_meets_damage_fails_alone() {
    let mut rig = log_of(14);
    let sound = rig.disk.clone();
    let (base, at, ..) = blocks_of(&sound)[&2].clone();
    rig.segment(base)[at + 140] ^= 2;
    rig.log.forget_recent(BlockNo(0));
    let read = |rig: &mut Rig, block: u64| {
        let loaded = rig.log.load(5, From::Block(BlockNo(block)), BlockNo(14), 1);
        assert!(matches!(loaded, Load::Later));
        rig.run();
        let at = rig
            .outputs
            .iter()
            .position(|output| matches!(output, Output::Loaded { request: 5, .. }));
        let Output::Loaded { result, .. } = rig.outputs.remove(at.expect("it ended")) else {
            unreachable!("just matched");
        };
        if let Ok(loaded) = &result {
            let header = loaded.blocks[0].0;
            assert_eq!(header.block, BlockNo(block));
            let bytes = rig.pool.bytes(loaded.buffer);
            assert_eq!(values_of(&header, bytes), [value(block as usize)]);
        }
        result.map(|_| ())
    };
    assert!(matches!(read(&mut rig, 2), Err(ReadError::Corrupt { .. })));
    rig.log.suspect(BlockNo(2));
    // Nothing counts as durable before the damage is in both copies of the checkpoint.
    let before = rig.log.durable_end();
    rig.append(b"new").expect("there is room");
    let saves = |rig: &Rig| {
        rig.pending.iter().position(
            |pending| matches!(pending.op, super::op::DiskOp::Write { file, .. } if file.0 == 0),
        )
    };
    assert!(saves(&rig).is_some());
    while let Some(other) = (0..rig.pending.len()).find(|at| Some(*at) != saves(&rig)) {
        rig.complete(other);
        if rig.pending.len() == 1 {
            break;
        }
    }
    assert_eq!(rig.log.durable_end(), before);
    rig.run();
    assert_eq!(rig.log.durable_end(), BlockNo(15));
    assert_eq!(rig.log.checkpoint().faulty, [(BlockNo(2), BlockNo(3))]);
    assert!(matches!(
        read(&mut rig, 2),
        Err(ReadError::Damaged(BlockNo(2)))
    ));
    for block in [0, 1, 3, 4, 13] {
        read(&mut rig, block).expect("others are read");
    }
    assert_eq!(rig.log.state(), State::Open);
    assert_eq!(rig.log.sound_end(BlockNo(1)), BlockNo(2));
    assert_eq!(rig.log.sound_end(BlockNo(14)), BlockNo(15));
    mend(&mut rig, &sound);
    read(&mut rig, 2).expect("repaired");
}

/// What does not chain to the sound blocks beside the damage is refused, and nothing is touched.
#[test]
fn blocks_of_another_log_are_refused() {
    let mut rig = log_of(14);
    let all = blocks_of(&rig.disk);
    let (base, at, header, bytes) = all[&3].clone();
    rig.segment(base)[at + 300] ^= 1;
    scrub(&mut rig);
    let damaged = rig.disk.clone();
    let mut other = bytes.clone();
    let forged = BlockHeader {
        last_tick: crate::types::Tick(header.last_tick.0 + 1),
        ..header
    };
    let crc = block::write_header(&mut other, &forged);
    let forged = BlockHeader {
        header_crc: crc,
        ..forged
    };
    let buffer = rig.pool.take(other.len()).expect("no limit");
    rig.pool.bytes_mut(buffer)[..other.len()].copy_from_slice(&other);
    assert_eq!(
        rig.log.repair(buffer, &[forged]),
        Err(RepairRefusal::Differs)
    );
    assert_eq!(
        rig.log.repair(buffer, &[all[&4].2]),
        Err(RepairRefusal::NotWanted)
    );
    rig.run();
    assert!(rig.disk.files == damaged.files, "nothing was written");
}

/// A client can put anything into a record, the bytes of a block of this log too: they are never
/// taken for one, whatever is damaged around them.
#[test]
fn a_block_inside_of_a_record_is_none() {
    let mut rig = log_of(3);
    let first = rig.log.log_end();
    // A block that would continue this one, at a multiple of 4096 in the file.
    let mut crafted = vec![0; 4096];
    let inner = batch_of(b"crafted", 0);
    let header = BlockHeader {
        log: rig.config.log,
        epoch: Epoch(1),
        block: first.next(),
        prev_header_crc: 7,
        used_len: 128 + inner.len() as u32,
        batch_count: 1,
        record_count: 1,
        base_offset: Offset(4),
        end_offset: Offset(5),
        ..BlockHeader::default()
    };
    block::write_header(&mut crafted, &header);
    let builder = |pad: usize| {
        let mut value = vec![0xEE; pad];
        value.extend_from_slice(&crafted);
        value.extend_from_slice(&[0xEE; 500]);
        value
    };
    let start = batch_of(&builder(0), 0)
        .windows(4)
        .position(|at| at == b"MRBK");
    let pad = 4096 - 128 - start.expect("it is there");
    rig.append_durably(&builder(pad));
    let (base, at, ..) = blocks_of(&rig.disk)[&first.0].clone();
    for number in 0..12 {
        rig.append_durably(&value(number));
    }
    rig.log.note_committed(rig.log.log_end());
    let end = rig.log.log_end();
    assert_eq!(&rig.segment(base)[at + 4096..at + 4100], b"MRBK", "aligned");
    rig.stop();
    let sound = rig.disk.clone();
    let mut disk = sound.clone();
    disk.segment(base)[at + 40] ^= 1;
    let mut rig = Rig::recovered(shared(), disk);
    assert_eq!(rig.report().log_end, end);
    rig.log.note_committed(end);
    scrub(&mut rig);
    let wanted: Vec<_> = rig.log.wanted().collect();
    assert_eq!((wanted[0].from, wanted[0].end), (first, first.next()));
    mend(&mut rig, &sound);
    same_blocks(&rig, &sound);
}

/// A segment's header is made anew from what is known of it, at the start and by the scrub.
#[test]
fn a_damaged_segment_header_is_made_anew() {
    let mut rig = log_of(14);
    let bases = rig.disk.segments();
    let sound = rig.disk.clone();
    for base in &bases {
        for place in [0, 20, 41, 4095] {
            rig.segment(*base)[place] ^= 4;
            assert_eq!(scrub(&mut rig).found, 1);
            rig.run();
            assert!(
                rig.disk.files[&rig.disk.names[&super::op::FileName::Segment(BlockNo(*base))]]
                    == sound.files[&sound.names[&super::op::FileName::Segment(BlockNo(*base))]]
            );
            assert_eq!(scrub(&mut rig).found, 0);
        }
    }
    rig.stop();
    let sound = rig.disk.clone();
    for base in &bases {
        let mut disk = sound.clone();
        disk.segment(*base)[37] ^= 4;
        let mut rig = Rig::recovered(shared(), disk);
        assert_eq!(rig.report().log_end, BlockNo(14), "segment {base}");
        assert_eq!(rig.report().rewritten.len(), 1);
        assert_eq!(rig.report().memory, RecoveredMemory::Whole);
        let mut sound = sound.clone();
        assert!(rig.segment(*base) == sound.segment(*base));
    }
}

/// A rotten copy of the checkpoint is written anew, at the start and by the scrub.
#[test]
fn a_rotten_copy_of_the_checkpoint_is_written_anew() {
    let mut rig = log_of(3);
    rig.log.save(|checkpoint| {
        checkpoint.promised = Epoch(9);
        checkpoint.memory = Memory::Whole;
    });
    rig.run();
    let sound = |disk: &mut Disk| {
        let bytes = disk.file(super::op::FileName::Checkpoint).clone();
        [0, 4096].map(|at| checkpoint::read(&bytes[at..]).map(|copy| copy.promised))
    };
    for at in [5000, 20] {
        rig.disk.file(super::op::FileName::Checkpoint)[at] ^= 1;
        assert_eq!(scrub(&mut rig).found, 1);
        rig.run();
        assert_eq!(sound(&mut rig.disk), [Some(Epoch(9)); 2]);
        assert_eq!(scrub(&mut rig).found, 0);
    }
    rig.disk.file(super::op::FileName::Checkpoint)[20] ^= 1;
    let mut rig = rig.restart();
    assert_eq!(rig.report().promised, Epoch(9));
    assert_eq!(rig.report().rewritten.len(), 1);
    assert_eq!(sound(&mut rig.disk), [Some(Epoch(9)); 2]);
}

/// Whole pages go wrong, in any number of places at once: what is provable is repaired where it
/// stands, and a log whose end is not provable says that its memory is lost.
#[test]
fn pages_that_went_wrong_are_repaired_or_told() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut rig = log_of(14);
        if random.below(2) == 0 {
            rig.stop();
        }
        let sound = rig.disk.clone();
        let all = blocks_of(&sound);
        let bases = sound.segments();
        for _ in 0..1 + random.below(3) {
            let base = bases[random.below(bases.len())];
            let pages = rig.segment(base).len() / 4096;
            let (from, to) = (random.below(pages), 1 + random.below(pages - 1));
            let page = rig.segment(base)[from * 4096..(from + 1) * 4096].to_vec();
            rig.segment(base)[to * 4096..(to + 1) * 4096].copy_from_slice(&page);
        }
        let mut rig = match rig.log.state() {
            State::Stopped => Rig::recovered(shared(), rig.disk),
            _ => rig,
        };
        if rig.log.state() == State::Refused {
            // A file of which nothing but zeros is left counts as missing.
            continue;
        }
        let end = rig.log.log_end();
        for number in end.0..14 {
            let (.., header, bytes) = &all[&number];
            rig.write_run(&[(*header, bytes.clone())]);
            rig.run();
        }
        rig.log.note_committed(BlockNo(14));
        scrub(&mut rig);
        mend(&mut rig, &sound);
        assert!(rig.log.faulty().is_empty(), "seed {seed}");
        let mine = blocks_of(&rig.disk);
        assert!(
            all.iter()
                .all(|(number, one)| mine.get(number) == Some(one)),
            "seed {seed}"
        );
        assert_eq!(scrub(&mut rig).found, 0, "seed {seed}");
        assert_eq!(values(&mut rig), (0..14).map(value).collect::<Vec<_>>());
    }
}
