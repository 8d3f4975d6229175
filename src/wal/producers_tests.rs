//! Sequences, and the table of producers against every way a log may come about: appends, rolls,
//! runs from a leader, cuts, crashes, restarts.

use super::open::buffer_len;
use super::producers::{Producers, Sequence};
use super::rig::{Disk, EPOCH, Random, Rig, config};
use super::{From, RecoveredMemory, State};
use crate::limits::{PRODUCER_BATCHES, PRODUCERS};
use crate::types::{BlockNo, Epoch, Offset, Tick};
use crate::wire::batch::{self, ClientHalf};
use crate::wire::block::BlockHeader;
use crate::wire::checkpoint::Memory;
use crate::wire::producers::KnownBatch;
use crate::wire::record::{BatchBuilder, Record};
use std::collections::VecDeque;

/// A batch of one producer with so many records.
fn batch_of(id: u64, epoch: u16, base_sequence: u32, records: u32) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.producer(id, epoch, base_sequence);
    for number in 0..records {
        let value = [&id.to_le_bytes()[..], &number.to_le_bytes()].concat();
        builder.push(&Record::new(5, &value));
    }
    builder.finish()
}

fn half_of(id: u64, epoch: u16, base_sequence: u32, record_count: u32) -> ClientHalf {
    ClientHalf {
        record_count,
        producer_id: id,
        producer_epoch: epoch,
        base_sequence,
        ..ClientHalf::default()
    }
}

fn known(half: &ClientHalf, at: u64) -> KnownBatch {
    KnownBatch {
        base_sequence: half.base_sequence,
        record_count: half.record_count,
        client_crc: 7,
        epoch: EPOCH,
        base_offset: Offset(at),
        block: BlockNo(at),
    }
}

#[test]
fn each_sequence_has_its_answer() {
    let mut table = Producers::new(1 << 20);
    let judge = |table: &Producers, id, epoch, base, records| {
        table.judge(&half_of(id, epoch, base, records), 7)
    };
    assert_eq!(judge(&table, 0, 0, 99, 1), Sequence::Next, "no producer");
    assert_eq!(judge(&table, 1, 4, 0, 3), Sequence::Next);
    assert_eq!(judge(&table, 1, 4, 3, 3), Sequence::UnknownProducer);
    let first = half_of(1, 4, 0, 3);
    table.accept(&first, known(&first, 10), Tick(1));
    let second = half_of(1, 4, 3, 2);
    assert_eq!(judge(&table, 1, 4, 3, 2), Sequence::Next);
    table.accept(&second, known(&second, 13), Tick(2));
    let first_copy = Sequence::Known(known(&first, 10));
    assert_eq!(judge(&table, 1, 4, 0, 3), first_copy);
    assert_eq!(judge(&table, 1, 4, 7, 1), Sequence::Gap { expected: 5 });
    let reused = |offset| Sequence::Reused {
        offset: Offset(offset),
    };
    assert_eq!(judge(&table, 1, 4, 3, 1), reused(13), "other records");
    assert_eq!(judge(&table, 1, 4, 1, 1), reused(10), "inside another one");
    assert_eq!(table.judge(&first, 8), reused(10), "another CRC");
    assert_eq!(judge(&table, 1, 3, 5, 1), Sequence::Fenced { epoch: 4 });
    assert_eq!(judge(&table, 1, 5, 5, 1), Sequence::Gap { expected: 0 });
    assert_eq!(judge(&table, 1, 5, 0, 1), Sequence::Next);
    table.drop_open();
    assert_eq!(judge(&table, 1, 4, 0, 3), Sequence::Next, "nowhere now");
}

#[test]
fn what_is_older_than_the_last_batches_is_not_known_and_sequences_wrap() {
    let mut table = Producers::new(1 << 20);
    let mut base = 0_u32.wrapping_sub(6);
    let mut halves = Vec::new();
    for number in 0..=PRODUCER_BATCHES as u64 {
        let half = half_of(1, 0, base, 3);
        table.accept(&half, known(&half, number), Tick(number + 1));
        halves.push(half);
        base = base.wrapping_add(3);
    }
    assert_eq!(table.judge(&halves[0], 7), Sequence::TooOld);
    for (number, half) in halves.iter().enumerate().skip(1) {
        let copy = Sequence::Known(known(half, number as u64));
        assert_eq!(table.judge(half, 7), copy, "{half:?}");
    }
    assert_eq!(table.judge(&half_of(1, 0, base, 1), 7), Sequence::Next);
}

impl Rig {
    /// Appends a producer's batch if its sequence is the next one; what was said of it if not.
    fn append_of(&mut self, bytes: &[u8]) -> Option<Sequence> {
        let half = batch::check_from_client(bytes).expect("just made");
        let found = self.log.sequence_of(&half, batch::client_crc(bytes));
        if found == Sequence::Next {
            self.append_bytes(bytes).ok()?;
        }
        Some(found)
    }

    fn blocks(&mut self) -> Vec<(BlockHeader, Vec<u8>)> {
        let mut blocks = Vec::new();
        let mut next = self.log.log_start().block;
        while next < self.log.log_end() {
            let loaded = self.load(From::Block(next), 1).expect("held");
            next = loaded[0].0.block.next();
            blocks.extend(loaded);
        }
        blocks
    }

    /// The table as the batches of the log say, from its first block to its last, without any
    /// snapshot but the one before the log start.
    fn table_of_log(&mut self) -> Producers {
        let mut table = Producers::new(buffer_len(&self.config));
        for (header, bytes) in self.blocks() {
            let begins = header.block == self.log.log_start().block;
            let first_in_segment = header.first_in_segment && begins;
            let plain = BlockHeader {
                first_in_segment,
                ..header
            };
            table.take_in(&bytes, &plain);
        }
        table
    }

    fn check_table(&mut self, what: &str) {
        self.run();
        self.seal();
        self.run();
        let expected = self.table_of_log();
        assert_eq!(self.log.producers, expected, "{what}");
    }
}

/// Small segments, and a producer whose batches are appended in order.
#[test]
fn each_segment_begins_with_a_snapshot() {
    let mut rig = Rig::created(config());
    for number in 0..60 {
        let found = rig.append_of(&batch_of(9, 1, number * 2, 2));
        assert_eq!(found, Some(Sequence::Next));
        rig.run();
    }
    let blocks = rig.blocks();
    let first: Vec<_> = blocks.iter().filter(|one| one.0.first_in_segment).collect();
    assert!(first.len() > 3, "{} segments", first.len());
    for (header, _) in &first[1..] {
        assert_eq!(header.batch_count, 2, "a snapshot and a batch: {header:?}");
    }
    let second = half_of(9, 1, 59 * 2, 2);
    let crc = batch::client_crc(&batch_of(9, 1, 59 * 2, 2));
    let mut rig = rig.restart();
    let found = rig.log.sequence_of(&second, crc);
    assert!(matches!(found, Sequence::Known(first) if first.base_offset == Offset(118)));
    rig.check_table("after a restart");
}

/// The producer that wrote longest ago leaves, and its next batch is refused, not appended.
#[test]
fn one_producer_more_makes_the_oldest_leave() {
    let mut config = config();
    config.max_block_bytes = 256 << 10;
    config.max_batch_bytes = (256 << 10) - 128;
    config.segment_bytes = 1 << 20;
    let mut rig = Rig::created(config);
    for id in 1..=PRODUCERS as u64 {
        assert_eq!(rig.append_of(&batch_of(id, 0, 0, 1)), Some(Sequence::Next));
        rig.run();
    }
    assert_eq!(rig.append_of(&batch_of(1, 0, 1, 1)), Some(Sequence::Next));
    rig.run();
    assert_eq!(
        rig.append_of(&batch_of(5000, 0, 0, 1)),
        Some(Sequence::Next)
    );
    rig.run();
    let gone = rig.append_of(&batch_of(2, 0, 1, 1));
    assert_eq!(gone, Some(Sequence::UnknownProducer));
    let stayed = rig.append_of(&batch_of(1, 0, 1, 1));
    assert!(matches!(stayed, Some(Sequence::Known(_))), "{stayed:?}");
    rig.check_table("with as many producers as there may be");
}

/// A snapshot that leaves no room for a batch goes alone, and the batch behind it.
#[test]
fn the_largest_snapshot_and_the_largest_batch_share_a_segment() {
    let mut config = config();
    config.segment_bytes = 6 * 4096;
    let mut rig = Rig::created(config);
    for id in 1..200 {
        let found = rig.append_of(&batch_of(id, 0, 0, 500));
        assert_eq!(found, Some(Sequence::Next), "producer {id}");
        rig.run();
        rig.seal();
        rig.run();
    }
    let alone = rig
        .blocks()
        .iter()
        .filter(|(h, _)| h.record_count == 0)
        .count();
    assert!(alone > 10, "{alone} snapshots went alone");
    rig.check_table("with a segment for each batch");
    let mut rig = rig.restart();
    rig.check_table("after a restart");
}

/// A follower that takes the blocks in has the leader's table.
#[test]
fn a_follower_has_the_table_of_its_leader() {
    let mut leader = Rig::created(config());
    for number in 0..80 {
        leader.append_of(&batch_of(1 + u64::from(number % 3), 0, number / 3, 1));
        leader.run();
    }
    let mut follower = Rig::created(config());
    let blocks = leader.blocks();
    for run in blocks.chunks(7) {
        follower.write_run(run);
        follower.run();
    }
    assert_eq!(follower.log.producers, leader.log.producers);
    let cut = BlockNo(blocks.len() as u64 / 2);
    follower.log.cut(cut);
    follower.check_table("a follower that has cut");
    follower.write_run(&blocks[cut.0 as usize..]);
    follower.run();
    assert_eq!(follower.log.producers, leader.log.producers);
}

/// A client that makes batches of several producers and sends them again now and then.
struct Clients {
    random: Random,
    next: [(u16, u32); 6],
    sent: VecDeque<Vec<u8>>,
}

impl Clients {
    fn step(&mut self, rig: &mut Rig) {
        let fresh = self.sent.is_empty() || self.random.below(3) > 0;
        let bytes = if fresh {
            let id = self.random.below(self.next.len());
            let (epoch, base) = self.next[id];
            let records = 1 + self.random.below(4) as u32;
            batch_of(id as u64, epoch, base, records)
        } else {
            self.sent[self.random.below(self.sent.len())].clone()
        };
        let half = batch::client_half(&bytes);
        let Some(found) = rig.append_of(&bytes) else {
            return;
        };
        let next = &mut self.next[half.producer_id as usize];
        match found {
            Sequence::Next if (half.producer_epoch, half.base_sequence) == *next => {
                next.1 += half.record_count;
                self.sent.push_back(bytes);
            }
            // What was lost with a crash or a cut: the producer begins anew.
            Sequence::Gap { .. } | Sequence::UnknownProducer if fresh => {
                *next = (half.producer_epoch + 1, 0);
            }
            _ => {}
        }
        if self.sent.len() > 12 {
            self.sent.pop_front();
        }
    }
}

/// whatever happens to a log, its table is that of its batches, and no batch of a producer is
/// in it twice.
#[test]
fn the_table_is_a_function_of_the_log() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let mut config = config();
        config.segment_bytes = [6, 9, 16][random.below(3)] * 4096;
        config.write_depth = 1 + random.below(8);
        let disk = Disk::new(config.segment_bytes);
        let mut rig = Rig::recovered(config.clone(), disk);
        let mut clients = Clients {
            random: Random(seed + 1_000_000),
            next: [(0, 0); 6],
            sent: VecDeque::new(),
        };
        rig.log.create(Memory::Whole);
        rig.run();
        for _ in 0..150 {
            match random.below(40) {
                0 => {
                    rig.check_table(&format!("seed {seed}"));
                    let lowest = rig.log.checkpoint().high_watermark;
                    let choices = (rig.log.log_end().0 - lowest.0 + 1) as usize;
                    rig.log
                        .cut(BlockNo(lowest.0 + random.below(choices) as u64));
                    rig.check_table(&format!("seed {seed}, after a cut"));
                }
                1 => {
                    rig = rig.crash(&mut random);
                    rig.run_shuffled(&mut random);
                    assert_eq!(rig.log.state(), State::Open, "seed {seed}");
                    if rig.report().memory == RecoveredMemory::Blank {
                        rig.log.create(Memory::Whole);
                    }
                    rig.check_table(&format!("seed {seed}, after a crash"));
                    let epoch = Epoch(rig.log.last_epoch().0.max(1) + 1);
                    let _ = rig.log.append_local(rig.now, epoch, &mut rig.pool);
                }
                2 => rig.log.discard_open(),
                3 => {
                    rig.run();
                    let end = BlockNo(random.below(rig.log.durable_end().0 as usize + 1) as u64);
                    rig.log.note_committed(end);
                    rig.log.trim(end);
                    rig.now = rig.now.plus_us(2_000_000);
                    rig.log.on_time(rig.now, &mut rig.pool);
                    rig.run();
                }
                4..30 => clients.step(&mut rig),
                _ if !rig.pending.is_empty() => rig.complete(random.below(rig.pending.len())),
                _ => {}
            }
            rig.drain();
        }
        rig.check_table(&format!("seed {seed}, at the end"));
        let mut seen = std::collections::BTreeSet::new();
        for (header, bytes) in rig.blocks() {
            for (at, prefix) in crate::wire::block::batches(&bytes, &header) {
                let half = batch::client_half(&bytes[at..]);
                let id = (half.producer_id, half.producer_epoch, half.base_sequence);
                let once = half.producer_id == 0 || prefix.record_count == 0 || seen.insert(id);
                assert!(once, "seed {seed}: {half:?} twice");
            }
        }
    }
}
