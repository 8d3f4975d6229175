//! A cut beside damage: what is given up was looked at, what stays is known, and a stop waits for
//! nobody.

use super::rig::{Disk, Rig, config};
use super::{Config, RepairRefusal, State};
use crate::buffers::Buffers;
use crate::limits::SEGMENT_HEADER;
use crate::types::BlockNo;
use crate::wire::block::{self, BlockHeader};
use std::ops::Range;

const BLOCKS: u64 = 40;
const COMMITTED: BlockNo = BlockNo(2);

fn shared() -> Config {
    Config {
        repairs: true,
        ..config()
    }
}

/// A log whose first two blocks are committed, cleanly stopped.
fn stopped() -> Disk {
    let mut rig = Rig::created(shared());
    for number in 0..BLOCKS {
        rig.append_durably(&[number as u8 + 1; 3000]);
    }
    rig.log.note_committed(COMMITTED);
    rig.stop();
    rig.disk
}

/// Position and header of each block of the first segment.
fn first_segment(disk: &Disk) -> Vec<(usize, BlockHeader)> {
    let mut disk = disk.clone();
    let bytes = disk.segment(0).clone();
    let mut at = SEGMENT_HEADER;
    let mut found = Vec::new();
    while let Some(header) = bytes
        .get(at..)
        .and_then(|rest| block::read_header(rest).ok())
    {
        found.push((at, header));
        at += header.padded_len();
    }
    found
}

/// The same log with these blocks of its first segment damaged, started again.
fn damaged(sound: &Disk, blocks: &[u64]) -> Rig {
    let mut disk = sound.clone();
    for block in blocks {
        let (at, _) = first_segment(sound)[*block as usize];
        disk.segment(0)[at + 8] ^= 1;
    }
    let rig = Rig::recovered(shared(), disk);
    assert_eq!(rig.log.log_end(), BlockNo(BLOCKS));
    assert_eq!(rig.log.committed_end(), COMMITTED);
    rig
}

/// What only seems to be damaged, or lies somewhere in a range, is no reason to give anything up:
/// the segment is read first.
#[test]
fn what_was_not_looked_at_is_not_given_up() {
    let sound = stopped();
    for blocks in [&[][..], &[4], &[1], &[1, 4]] {
        let mut rig = damaged(&sound, blocks);
        rig.log.suspect(BlockNo(1));
        rig.log.suspect(BlockNo(3));
        assert_eq!(rig.log.sound_end(COMMITTED), BlockNo(3));
        assert_eq!(rig.log.damaged_from(COMMITTED), None);
        rig.run();
        if blocks == [1, 4] {
            // What lies between the two is proven by the first of them alone, which others have.
            assert_eq!(rig.log.damaged_from(COMMITTED), None);
            repair(&mut rig, &sound, 1..2);
        }
        let first = blocks.iter().find(|block| **block >= COMMITTED.0);
        let first = first.map(|block| BlockNo(*block));
        assert_eq!(rig.log.damaged_from(COMMITTED), first, "{blocks:?}");
    }
}

/// Gives the log the blocks that it wants first.
fn repair(rig: &mut Rig, sound: &Disk, blocks: Range<usize>) {
    let wanted = rig.log.wanted().next().expect("it asks for them");
    assert_eq!(wanted.from, BlockNo(blocks.start as u64));
    let all = first_segment(sound);
    let mut disk = sound.clone();
    let bytes = disk.segment(0)[all[blocks.start].0..all[blocks.end].0].to_vec();
    let headers: Vec<BlockHeader> = all[blocks].iter().map(|(_, header)| *header).collect();
    let buffer = rig.pool.take(bytes.len()).expect("no limit");
    rig.pool.bytes_mut(buffer)[..bytes.len()].copy_from_slice(&bytes);
    rig.log.repair(buffer, &headers).expect("they chain");
    rig.run();
}

/// Blocks that are not known to be committed are taken only with what proves them; those of a log
/// that parts from this one in there are told from other bytes of the same epoch.
#[test]
fn what_is_not_committed_is_proven_from_both_sides() {
    let sound = stopped();
    let all = first_segment(&sound);
    const SAME: (u64, u32) = (0, 0);
    const OTHER_BYTES: (u64, u32) = (1, 0);
    const NEXT_EPOCH: (u64, u32) = (0, 1);
    let refused = |rig: &mut Rig, blocks: &[(usize, (u64, u32))]| {
        let mut bytes = Vec::new();
        let mut headers: Vec<BlockHeader> = Vec::new();
        for (block, (later, epochs)) in blocks {
            let (at, mut header) = all[*block];
            let mut one = sound.clone().segment(0)[at..at + header.padded_len()].to_vec();
            header.max_timestamp += later;
            header.epoch.0 += epochs;
            if let Some(last) = headers.last() {
                header.prev_header_crc = last.header_crc;
            }
            header.header_crc = block::write_header(&mut one, &header);
            bytes.extend(one);
            headers.push(header);
        }
        let buffer = rig.pool.take(bytes.len()).expect("no limit");
        rig.pool.bytes_mut(buffer)[..bytes.len()].copy_from_slice(&bytes);
        let result = rig.log.repair(buffer, &headers);
        rig.run();
        result.err()
    };
    let mut rig = damaged(&sound, &[1, 2, 3, 4]);
    rig.log.suspect(BlockNo(1));
    rig.run();
    // Block 1 is committed: it is taken, whatever comes behind it.
    let others = [(1, SAME), (2, NEXT_EPOCH), (3, NEXT_EPOCH), (4, NEXT_EPOCH)];
    assert_eq!(refused(&mut rig, &others), None);
    assert_eq!(rig.log.wanted().next().expect("more").from, BlockNo(2));
    let not_wanted = Some(RepairRefusal::NotWanted);
    assert_eq!(refused(&mut rig, &others[1..3]), not_wanted);
    assert_eq!(refused(&mut rig, &others[1..]), Some(RepairRefusal::Parts));
    let bytes = [(2, OTHER_BYTES), (3, SAME), (4, SAME)];
    assert_eq!(refused(&mut rig, &bytes), Some(RepairRefusal::Differs));
    // One leader made it and what stands behind the damage.
    assert_eq!(refused(&mut rig, &[(2, SAME)]), None);
    assert_eq!(rig.log.wanted().next().expect("more").from, BlockNo(3));
    assert_eq!(refused(&mut rig, &[(3, SAME), (4, SAME)]), None);
    assert!(rig.log.faulty().is_empty());
    rig.log.note_committed(BlockNo(BLOCKS));
    assert_eq!(rig.log.sound_end(COMMITTED), BlockNo(BLOCKS));
}

/// A log with damage at 3 and 4 that is to be cut at 4: the block that would be its last is none
/// that can be read.
fn cut_within_damage(sound: &Disk) -> Rig {
    let mut rig = damaged(sound, &[3, 4]);
    rig.log.suspect(BlockNo(3));
    rig.run();
    assert_eq!(rig.log.damaged_from(COMMITTED), Some(BlockNo(3)));
    rig.log.cut(BlockNo(4));
    rig.run();
    assert_eq!(rig.log.state(), State::Open);
    assert!(rig.log.is_cutting(), "it waits for the repair");
    rig
}

#[test]
fn a_cut_within_damage_waits_for_the_block_before_it() {
    let sound = stopped();
    let mut rig = cut_within_damage(&sound);
    repair(&mut rig, &sound, 3..5);
    assert!(!rig.log.is_cutting());
    assert_eq!(rig.log.log_end(), BlockNo(4));
    assert!(rig.log.faulty().is_empty());
    rig.stop();
    let again = Rig::recovered(shared(), rig.disk);
    assert_eq!(again.log.log_end(), BlockNo(4));
}

/// The repair cannot come any more once the log stops: the cut, which has taken nothing away, is
/// given up.
#[test]
fn a_stop_does_not_wait_for_a_cut_that_waits_for_a_repair() {
    let sound = stopped();
    let mut rig = cut_within_damage(&sound);
    rig.stop();
    assert_eq!(rig.log.state(), State::Stopped);
    let again = Rig::recovered(shared(), rig.disk);
    assert_eq!(again.log.log_end(), BlockNo(BLOCKS), "nothing went");
}
