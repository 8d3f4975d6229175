//! Scripted cases beside the random runs: each aims at one promise and goes through all of its
//! cases.
//!
//! They use the same rig and model, so everything that holds for the runs is checked here too. Read
//! `workload.rs` for the random runs.

use crate::images::{Examiner, Tally, append_more, read_all};
use crate::model::Model;
use crate::rig::Rig;
use crate::sim::disk::{Disk, DiskFault, DiskOptions};
use crate::sim::disk_crash::Outcome;
use crate::sim::rng::Rng;
use crate::verdict::{self, verdict};
use millrace::limits::{CHECKPOINT_COPY, DISK_ALIGNMENT, SECTOR, WRITE_WINDOW};
use millrace::types::{NodeId, Time};
use millrace::wal::Config;
use millrace::wal::op::{DiskOp, FileName};

const SEGMENT_BYTES: u64 = 64 << 10;
const START: Time = Time(1_700_000_000_000_000);

/// A log that was created and leads epoch 1.
fn leading(config: &Config, seed: u64) -> Rig {
    let disk = Disk::new(DiskOptions::sound(config.segment_bytes), seed);
    let mut rig = Rig::start(config, disk, Model::default(), START, seed);
    rig.boot();
    append_more(&mut rig);
    rig
}

fn small(seed: u64) -> Rig {
    leading(&Rig::small_config(SEGMENT_BYTES), seed)
}

/// Appends one block of one batch and leaves its write in flight.
fn one_block_in_flight(rig: &mut Rig, body_len: usize) -> u64 {
    rig.settle();
    let end = rig.model.end();
    let epoch = rig.log.last_epoch();
    assert!(rig.append(epoch, body_len), "room for one batch");
    rig.log.seal_if_due(rig.now, &mut rig.buffers);
    rig.pump();
    assert_eq!(rig.model.end(), end + 1, "an idle log seals at once");
    end
}

///
#[test]
fn torn_tail_of_every_length_and_every_subset_of_sectors() {
    let mut rig = small(11);
    let end = one_block_in_flight(&mut rig, 3000);
    let block = rig.model.blocks[end as usize].clone();
    assert_eq!(block.bytes.len(), DISK_ALIGNMENT, "one page");
    let mut rng = Rng::new(5);
    let mut check = |disk: Disk, whole: bool, what: &str| {
        verdict::count_image();
        verdict::place(what.to_string());
        let mut after = Rig::start(
            &rig.config,
            disk,
            rig.model.clone(),
            rig.now,
            rng.next_u64(),
        );
        after.boot();
        let found = after.recovered.clone().expect("it booted");
        if found.log_end.0 != end + u64::from(whole) {
            verdict!(
                bytes_differ,
                "log end {} for a block at {end}",
                found.log_end
            );
        }
        append_more(&mut after);
        let disk = after.disk.crash(&mut rng);
        let mut again = Rig::start(&rig.config, disk, after.model, rig.now, rng.next_u64());
        again.boot();
        if again
            .recovered
            .as_ref()
            .is_some_and(|found| found.torn.is_some())
        {
            verdict!(torn_reported_twice, "torn tail of {what}");
        }
        found.torn.is_some()
    };
    let nothing = rig.disk.crash_with(&[Outcome::Not], &mut Rng::new(6));
    let file = FileName::Segment(millrace::types::BlockNo(block.base));
    let used = block.header.used_len as usize;
    for len in 0..=DISK_ALIGNMENT {
        let mut page = [0; DISK_ALIGNMENT];
        page[..len].copy_from_slice(&block.bytes[..len]);
        let mut disk = nothing.clone();
        disk.overwrite(file, block.position, &page);
        let whole = page[..] == block.bytes[..];
        let torn = check(disk, whole, &format!("{len} bytes of {used}"));
        assert_eq!(
            torn,
            len > 0 && !whole,
            "{len} bytes of {used}: reported as torn"
        );
    }
    for mask in 0..1_u32 << (DISK_ALIGNMENT / SECTOR) {
        let which = (0..DISK_ALIGNMENT / SECTOR)
            .map(|sector| mask >> sector & 1 == 1)
            .collect();
        let disk = rig
            .disk
            .crash_with(&[Outcome::Sectors(which)], &mut Rng::new(7));
        let page = disk
            .content(file)
            .expect("named")
            .page(block.position as usize / DISK_ALIGNMENT);
        let whole = page[..] == block.bytes[..];
        check(disk, whole, &format!("sectors {mask:#b}"));
    }
}

/// A suffix longer than the write window: what is left of it in the middle of the cut must still
/// read as a cut, not as damage.
#[test]
fn a_cut_longer_than_the_write_window_survives_a_crash_anywhere() {
    let config = Config {
        segment_bytes: 4 << 20,
        max_block_bytes: 1 << 20,
        max_batch_bytes: (1 << 20) - 128,
        ..Rig::small_config(SEGMENT_BYTES)
    };
    let mut rig = leading(&config, 12);
    let epoch = rig.new_epoch();
    rig.promise(epoch, NodeId(1));
    rig.drain();
    let from = rig.model.end();
    rig.commit(from);
    let mut bytes = 0;
    while bytes < WRITE_WINDOW + (3 << 20) {
        rig.write_run(epoch, &[1_000_000]);
        bytes += 1 << 20;
        rig.drain();
    }
    let mut examiner = Examiner {
        tally: Tally::default(),
        torn_per_point: 1,
        run: "long cut".to_string(),
    };
    rig.cut(from);
    while rig.disk.in_flight().len() > 0 {
        examiner.freeze(&mut rig);
        rig.complete_one();
    }
    assert!(rig.model.cutting.is_none(), "the cut ends");
    println!(
        "long cut: {} points, {} images",
        examiner.tally.points,
        examiner.tally.images()
    );
}

///
#[test]
fn the_first_failed_write_is_the_last() {
    let faults = [DiskFault::Short, DiskFault::Error, DiskFault::NoSpace];
    for (index, fault) in faults.into_iter().enumerate() {
        for writes in 0..24 {
            verdict::count_image();
            verdict::place(format!("{fault:?} after {writes} writes"));
            let mut rig = small(100 * index as u64 + writes);
            rig.disk.inject(writes, fault);
            let epoch = rig.log.last_epoch();
            for _ in 0..200 {
                let body_len = rig.rng.between(1, 5000) as usize;
                rig.append(epoch, body_len);
                if rig.rng.below(3) == 0 {
                    rig.complete_one();
                    rig.tick();
                }
            }
            rig.settle();
            assert!(
                rig.failed.is_some(),
                "{fault:?} after {writes} writes goes unnoticed"
            );
            let touched = rig.disk.counts().changes();
            for _ in 0..4 {
                assert!(!rig.append(epoch, 100), "an append after the failure");
                rig.tick();
                rig.drain();
            }
            assert_eq!(
                rig.disk.counts().changes(),
                touched,
                "a failed log touches its disk"
            );
            let mut rng = Rng::new(writes);
            let disk = rig.disk.kill(&mut rng);
            let mut after = Rig::start(&rig.config, disk, rig.model, rig.now, writes);
            after.boot();
            append_more(&mut after);
            read_all(&mut after);
        }
    }
}

#[test]
fn rotten_checkpoint_copy_keeps_the_vote() {
    for seed in 0..32 {
        let mut rig = small(seed);
        for vote in 1..=3 {
            let epoch = rig.new_epoch();
            rig.promise(epoch, NodeId(vote));
            rig.drain();
        }
        let mut rng = Rng::new(seed);
        for copy in 0..2 {
            verdict::count_image();
            verdict::place(format!("seed {seed}, copy {copy} rotten"));
            let mut disk = rig.disk.crash(&mut rng);
            let at = copy * CHECKPOINT_COPY as u64;
            disk.flip_bit(
                FileName::Checkpoint,
                at + rng.below(4096),
                rng.below(8) as u8,
            );
            let mut after = Rig::start(&rig.config, disk, rig.model.clone(), rig.now, seed);
            after.boot();
            append_more(&mut after);
        }
    }
}

///
#[test]
fn a_log_whose_checkpoint_is_gone_says_so() {
    for (seed, byte) in [(21, 0), (22, 0xFF), (23, 0x5A)] {
        let mut rig = small(seed);
        rig.stop();
        verdict::count_image();
        verdict::place(format!("checkpoint full of {byte:#x}"));
        let mut disk = rig.disk.crash(&mut Rng::new(seed));
        disk.overwrite(FileName::Checkpoint, 0, &[byte; 2 * CHECKPOINT_COPY]);
        rig.model.expect_lost = true;
        let mut after = Rig::start(&rig.config, disk, rig.model, rig.now, seed);
        after.boot();
    }
}

///
#[test]
fn damage_below_the_committed_end_is_never_cut() {
    let mut rig = small(13);
    let epoch = rig.log.last_epoch();
    for round in 0..30 {
        for _ in 0..4 {
            rig.append(epoch, 700);
        }
        rig.settle();
        if round == 25 {
            rig.commit(rig.model.durable_end);
        }
    }
    let committed = rig.model.committed;
    let (mut refused, mut hidden) = (0, 0);
    let mut rng = Rng::new(14);
    for number in 0..committed {
        let block = rig.model.blocks[number as usize].clone();
        let file = FileName::Segment(millrace::types::BlockNo(block.base));
        for damage in 0..3 {
            verdict::count_image();
            verdict::place(format!("block {number}, damage {damage}"));
            let mut disk = rig.disk.crash(&mut rng);
            match damage {
                0 => {
                    let position = block.position + rng.below(block.bytes.len() as u64);
                    disk.flip_bit(file, position, rng.below(8) as u8);
                }
                1 => disk.overwrite(file, block.position, &[0; DISK_ALIGNMENT]),
                _ => disk.overwrite(file, block.position, &[0xFF; DISK_ALIGNMENT]),
            }
            let before = contents(&disk);
            let mut after = Rig::start(&rig.config, disk, rig.model.clone(), rig.now, number);
            after.model.damaged = Some(number);
            after.recover(u32::MAX);
            let unchanged = contents(&after.disk) == before;
            match &after.recovered {
                Some(found) if found.log_end.0 < rig.model.durable_end || !unchanged => {
                    verdict!(
                        damage_cut,
                        "log end {}, durable was {committed}",
                        found.log_end
                    );
                }
                Some(_) => hidden += 1,
                None if !unchanged => verdict!(damage_cut, "a refused log was changed"),
                None => refused += 1,
            }
        }
    }
    println!("damage: {refused} refused, {hidden} below the scan");
    assert!(refused > 0, "some damage lies where the scan looks");
}

/// Every segment file's bytes.
fn contents(disk: &Disk) -> Vec<(u64, Vec<u8>)> {
    let bytes = disk
        .segments()
        .map(|(base, pages)| (base.0, pages.read(0, pages.len() as usize)));
    bytes.collect()
}

///
#[test]
fn roll_survives_power_loss_before_dir_sync() {
    let mut rolls = 0;
    for seed in 0..64 {
        let mut rig = small(seed);
        let epoch = rig.log.last_epoch();
        let mut rng = Rng::new(seed);
        while rig.disk.counts().name < 4 {
            rig.append(epoch, 5000);
            rig.log.seal_if_due(rig.now, &mut rig.buffers);
            rig.pump();
            // Names are given late, blocks become durable early, as far as the log lets them.
            let blocks: Vec<_> = rig
                .disk
                .in_flight()
                .filter(|op| is_write(op))
                .copied()
                .collect();
            match blocks.first() {
                Some(op) if rng.below(8) > 0 => rig.complete(op.ticket()),
                _ => {
                    rig.complete_one();
                }
            }
            let named = rig.disk.in_flight().any(|op| !is_write(op));
            if named {
                rolls += 1;
                verdict::count_image();
                verdict::place(format!("seed {seed}, a name in flight"));
                let disk = rig.disk.crash(&mut rng);
                let mut after = Rig::start(&rig.config, disk, rig.model.clone(), rig.now, seed);
                after.boot();
                append_more(&mut after);
            }
        }
    }
    assert!(rolls > 100, "{rolls} images with a name in flight");
}

fn is_write(op: &DiskOp) -> bool {
    matches!(op, DiskOp::Write { .. })
}

/// A cut begins to erase only once the log's own writes have ended.
#[test]
fn cut_waits_for_writes_in_flight() {
    for seed in 0..32 {
        let mut rig = small(seed);
        let epoch = rig.new_epoch();
        rig.promise(epoch, NodeId(1));
        rig.drain();
        let from = rig.model.end();
        rig.commit(from);
        for _ in 0..6 {
            rig.write_run(epoch, &[2000, 3000]);
        }
        let writing: Vec<_> = rig
            .disk
            .in_flight()
            .filter(|op| is_write(op))
            .copied()
            .collect();
        assert!(writing.len() > 1, "several writes in flight");
        let at = from + rig.rng.below(4);
        rig.cut(at);
        while writing
            .iter()
            .any(|op| rig.disk.in_flight().any(|other| other == op))
        {
            let strangers = rig.disk.in_flight().filter(|op| {
                matches!(op, DiskOp::Write { file, .. } if file.0 != 0) && !writing.contains(op)
            });
            assert_eq!(
                strangers.count(),
                0,
                "seed {seed}: erasing while blocks are written"
            );
            rig.complete_one();
        }
        rig.drain();
        assert!(rig.model.cutting.is_none(), "the cut ends");
        append_more(&mut rig);
    }
}

/// Torn writes over the place of a suffix that was cut: nothing of it comes back, nothing is
/// damage.
#[test]
fn torn_after_truncation_is_torn() {
    for seed in 0..64 {
        let mut rig = small(seed);
        let epoch = rig.new_epoch();
        rig.promise(epoch, NodeId(1));
        rig.drain();
        let from = rig.model.end();
        rig.commit(from);
        for _ in 0..8 {
            rig.write_run(epoch, &[3000, 1500, 6000]);
            rig.drain();
        }
        rig.cut(from);
        rig.drain();
        let epoch = rig.new_epoch();
        rig.promise(epoch, NodeId(2));
        rig.drain();
        for _ in 0..6 {
            rig.write_run(epoch, &[3000, 1500, 6000]);
        }
        let mut rng = Rng::new(seed);
        for _ in 0..8 {
            verdict::count_image();
            verdict::place(format!("seed {seed}, torn after truncation"));
            let disk = rig.disk.crash(&mut rng);
            let mut after = Rig::start(&rig.config, disk, rig.model.clone(), rig.now, seed);
            after.boot();
            append_more(&mut after);
            read_all(&mut after);
        }
    }
}
