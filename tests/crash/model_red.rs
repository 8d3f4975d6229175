//! The checker, checked: for each verdict a state that must bring it about.
//!
//! The log under test is sound here; the disk, or what the model was told, is tampered with. What
//! the deliberate faults of the engine bring about is left to `scripts/mutants`. Read `model.rs`
//! for the checks themselves.

use crate::images::append_more;
use crate::maker;
use crate::model::Model;
use crate::rig::Rig;
use crate::sim::disk::{Disk, DiskOptions};
use crate::sim::disk_crash::Outcome;
use crate::sim::rng::Rng;
use millrace::types::{BlockNo, NodeId, Time};
use millrace::wal::CutDone;
use millrace::wal::op::FileName;

const SEGMENT_BYTES: u64 = 64 << 10;

/// A log with some durable blocks.
fn some_log() -> Rig {
    let config = Rig::small_config(SEGMENT_BYTES);
    let disk = Disk::new(DiskOptions::sound(SEGMENT_BYTES), 1);
    let mut rig = Rig::start(&config, disk, Model::default(), Time(1 << 50), 1);
    rig.boot();
    for _ in 0..3 {
        append_more(&mut rig);
    }
    rig
}

fn boot(rig: &Rig, disk: Disk, model: Model) {
    Rig::start(&rig.config, disk, model, rig.now, 2).boot();
}

/// Cuts two blocks away and writes others in their place.
fn rewrite_the_end(rig: &mut Rig) {
    let epoch = rig.new_epoch();
    rig.promise(epoch, NodeId(1));
    rig.drain();
    rig.cut(rig.model.end() - 2);
    rig.drain();
    rig.write_run(epoch, &[300, 300]);
    rig.drain();
}

///
#[test]
#[should_panic(expected = "verdict: acked_lost")]
fn red_a_block_called_durable_too_early() {
    let mut rig = some_log();
    let epoch = rig.log.last_epoch();
    rig.append(epoch, 100);
    rig.log.seal_if_due(rig.now, &mut rig.buffers);
    rig.pump();
    rig.model.durable_end = rig.model.end();
    let outcomes = vec![Outcome::Not; rig.disk.in_flight().len()];
    let disk = rig.disk.crash_with(&outcomes, &mut Rng::new(3));
    boot(&rig, disk, rig.model.clone());
}

///
#[test]
#[should_panic(expected = "verdict: acked_before_durable")]
fn red_the_durable_end_is_said_before_the_write_ends() {
    let mut rig = some_log();
    let epoch = rig.log.last_epoch();
    rig.append(epoch, 100);
    rig.log.seal_if_due(rig.now, &mut rig.buffers);
    rig.pump();
    let last = rig.model.blocks.last().expect("just sealed").header;
    rig.model
        .durable(last.block.next().0, last.end_offset.0, &rig.disk);
}

///
#[test]
#[should_panic(expected = "verdict: acked_before_durable")]
fn red_a_killed_process_and_an_end_that_was_never_synced() {
    let mut rig = some_log();
    let epoch = rig.log.last_epoch();
    rig.append(epoch, 100);
    rig.log.seal_if_due(rig.now, &mut rig.buffers);
    rig.pump();
    let end = rig.model.end();
    let killed = (0..).map(|seed| rig.disk.kill(&mut Rng::new(seed)));
    let differs = |disk: &Disk| disk.segments().any(|(_, pages)| pages != &durable_of(disk));
    let disk = killed.take(100).find(differs).expect("some write is seen");
    let model = &rig.model;
    model.check_held(&disk, crate::model::Side::Durable, 0, end);
}

fn durable_of(disk: &Disk) -> crate::sim::content::Pages {
    let name = FileName::Segment(BlockNo(0));
    disk.durable_content(name)
        .expect("the first segment")
        .clone()
}

///
#[test]
#[should_panic(expected = "verdict: bytes_differ")]
fn red_a_byte_of_a_trusted_block_differs() {
    let mut rig = some_log();
    rig.stop();
    let block = rig.model.blocks[1].clone();
    let mut disk = rig.disk.crash(&mut Rng::new(3));
    let position = block.position + u64::from(block.header.used_len) - 1;
    assert!(disk.flip_bit(FileName::Segment(BlockNo(block.base)), position, 0));
    let mut after = Rig::start(&rig.config, disk, rig.model, rig.now, 2);
    after.recover(u32::MAX);
    after.model.check_held(
        &after.disk,
        crate::model::Side::Current,
        0,
        block.header.block.0 + 1,
    );
}

///
#[test]
#[should_panic(expected = "verdict: stale_block_read")]
fn red_blocks_that_were_cut_are_back() {
    let mut rig = some_log();
    let before = rig.disk.crash(&mut Rng::new(3));
    rewrite_the_end(&mut rig);
    rig.model
        .check_held(&before, crate::model::Side::Current, 0, rig.model.end());
}

///
#[test]
#[should_panic(expected = "verdict: stale_block_left")]
fn red_a_cut_leaves_a_block() {
    let mut rig = some_log();
    let end = rig.model.end() - 2;
    rig.model.cutting = Some(end);
    let done = CutDone {
        log_end: BlockNo(end),
        end_offset: rig.model.blocks[end as usize].header.base_offset,
        blocks: 2,
    };
    rig.model.cut_done(done, &rig.disk);
}

///
#[test]
#[should_panic(expected = "verdict: checkpoint_went_back")]
fn red_an_older_checkpoint_is_back() {
    let mut rig = some_log();
    let older = rig
        .disk
        .content(FileName::Checkpoint)
        .expect("always there")
        .read(0, 8192);
    append_more(&mut rig);
    let mut disk = rig.disk.crash(&mut Rng::new(3));
    disk.overwrite(FileName::Checkpoint, 0, &older);
    boot(&rig, disk, rig.model.clone());
}

///
#[test]
#[should_panic(expected = "verdict: boot_failed")]
fn red_a_segment_is_gone() {
    let mut rig = some_log();
    rig.commit(rig.model.durable_end);
    append_more(&mut rig);
    rig.stop();
    let mut disk = rig.disk.crash(&mut Rng::new(3));
    let bytes = vec![0; SEGMENT_BYTES as usize];
    disk.overwrite(FileName::Segment(BlockNo(0)), 0, &bytes);
    boot(&rig, disk, rig.model.clone());
}

///
#[test]
#[should_panic(expected = "verdict: bytes_differ")]
fn red_a_sealed_block_does_not_chain() {
    let mut rig = some_log();
    let link = maker::Link {
        block: BlockNo(rig.model.end()),
        offset: rig.log.end_offset(),
        prev_crc: rig.model.last_crc() ^ 1,
        tick: rig.log.last_tick(),
    };
    let epoch = rig.log.last_epoch();
    let (bytes, header) = maker::block_of(&mut rig.rng, link, epoch, BlockNo(0), 10, false);
    rig.model.push(header, &bytes);
}
