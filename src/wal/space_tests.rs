//! A full disk: what needs a file waits for it, nothing that was durable is lost, and all of it
//! comes back by itself.

use super::op::{DiskError, DiskOp};
use super::rig::{EPOCH, Rig, config};
use super::{AppendRefusal, From, Output, State};
use crate::types::{BlockNo, Time};

const VALUE: usize = 15_000;

fn value(number: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(VALUE, number as u8);
    value
}

fn place_of(rig: &Rig, wanted: impl Fn(&DiskOp) -> bool) -> Option<usize> {
    rig.pending.iter().position(|pending| wanted(&pending.op))
}

fn is_provide(op: &DiskOp) -> bool {
    matches!(op, DiskOp::Provide { .. })
}

/// Completes everything, with no space for any file.
fn run_full(rig: &mut Rig) {
    rig.drain();
    while !rig.pending.is_empty() {
        match place_of(rig, is_provide) {
            Some(at) => rig.complete_with(at, Err(DiskError::NoSpace)),
            None => rig.complete(0),
        }
    }
}

/// A log whose newest segment has a block and for which there is no next file; it knows.
fn full_log() -> Rig {
    let mut rig = Rig::created(config());
    rig.append(&value(0)).expect("room");
    // The first file is there; the one behind it is not.
    while place_of(&rig, is_provide).is_none() || rig.log.durable_end() == BlockNo(0) {
        rig.complete(0);
    }
    run_full(&mut rig);
    assert_eq!(rig.log.state(), State::Open, "a full disk closes nothing");
    assert!(rig.log.is_full());
    assert!(rig.outputs.contains(&Output::Space { full: true }));
    rig
}

/// Lets time pass until the log asks for its file again.
fn until_asked(rig: &mut Rig) {
    for _ in 0..10 {
        let at = rig.log.poll_timeout().expect("it wants to ask again");
        rig.now = rig.now.max(at);
        rig.log.on_time(rig.now, &mut rig.pool);
        rig.drain();
        if place_of(rig, is_provide).is_some() {
            return;
        }
    }
    panic!("it does not ask for a file again");
}

///
#[test]
fn a_full_disk_refuses_no_block_of_the_nodes_own_and_comes_back() {
    let mut rig = full_log();
    let mut kept = 1;
    while rig.append(&value(kept)).is_ok() {
        kept += 1;
        run_full(&mut rig);
        assert!(kept < 10, "a segment has an end");
    }
    assert_eq!(rig.append(&value(kept)), Err(AppendRefusal::Full));
    // What was accepted and fits no more waits in the open block; an epoch can still be opened.
    rig.log.discard_open();
    rig.drain();
    let durable = rig.log.durable_end();
    for _ in 0..2 {
        let pool = &mut rig.pool;
        let block = rig.log.append_local(rig.now, EPOCH, pool);
        assert!(block.is_ok(), "{block:?}");
        run_full(&mut rig);
    }
    assert_eq!(rig.log.durable_end(), BlockNo(durable.0 + 2));
    let before = rig.values();
    rig.outputs.clear();
    until_asked(&mut rig);
    rig.run();
    assert!(!rig.log.is_full());
    assert_eq!(rig.outputs, [Output::Space { full: false }]);
    rig.append_durably(&value(99));
    assert_eq!(rig.values()[..before.len()], before);
    let count = rig.log.durable_offset();
    let mut rig = rig.restart();
    assert_eq!(rig.values().len() as u64, count.0);
}

#[test]
fn a_full_disk_is_asked_less_and_less_often() {
    let mut rig = full_log();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let before = rig.now;
        until_asked(&mut rig);
        pauses.push(rig.now.since_us(before));
        run_full(&mut rig);
    }
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert_eq!(pauses.last(), Some(&2_000_000));
    let told = rig.outputs.iter();
    let told = told.filter(|output| matches!(output, Output::Space { .. }));
    assert_eq!(told.count(), 1, "told once");
}

#[test]
fn a_name_that_finds_no_space_is_given_later() {
    let mut rig = Rig::created(config());
    rig.append(b"first").expect("room");
    let is_name = |op: &DiskOp| matches!(op, DiskOp::Name { .. });
    while place_of(&rig, is_name).is_none() {
        rig.complete(0);
    }
    let at = place_of(&rig, is_name).expect("just seen");
    rig.complete_with(at, Err(DiskError::NoSpace));
    rig.run();
    assert!(rig.log.is_full());
    assert_eq!(
        rig.log.durable_end(),
        BlockNo(0),
        "without a name it does not count"
    );
    rig.now = Time(rig.now.0 + 1_000_000);
    rig.log.on_time(rig.now, &mut rig.pool);
    rig.run();
    assert_eq!(
        (rig.log.durable_end(), rig.log.is_full()),
        (BlockNo(1), false)
    );
}

#[test]
fn a_log_on_a_full_disk_stops_cleanly() {
    let mut rig = full_log();
    let mut kept = 1;
    while rig.append(&value(kept)).is_ok() {
        kept += 1;
        run_full(&mut rig);
    }
    let durable = rig.log.durable_offset();
    rig.log.stop(rig.now, &mut rig.pool);
    run_full(&mut rig);
    assert_eq!(rig.log.state(), State::Stopped);
    assert_eq!(rig.pool.out(), 0, "every buffer was given back");
    assert!(rig.log.checkpoint().clean);
    let mut rig = Rig::start(rig.config, rig.disk);
    run_full(&mut rig);
    assert_eq!(rig.log.state(), State::Open, "and starts on one");
    assert_eq!(rig.values().len() as u64, durable.0);
}

#[test]
fn a_follower_keeps_what_needs_a_file_until_there_is_one() {
    let mut leader = Rig::created(config());
    for number in 0..9 {
        leader.append_durably(&value(number));
    }
    let mut follower = Rig::created(config());
    for block in 0..9 {
        let blocks = leader.load(From::Block(BlockNo(block)), 1).expect("held");
        follower.write_run(&blocks);
        run_full_but_first(&mut follower);
    }
    assert!(follower.log.is_full());
    let durable = follower.log.durable_end();
    assert!(durable < follower.log.log_end(), "the second segment waits");
    let next = leader.load(From::Block(durable), 1).expect("held");
    assert!(
        !follower.log.has_space_for(&[next[0].0]),
        "it begins a segment"
    );
    until_asked(&mut follower);
    follower.run();
    assert_eq!(follower.log.durable_end(), BlockNo(9));
    assert_eq!(follower.values(), leader.values());
}

/// Completes everything, with no space for any file but so many.
fn run_with_files(rig: &mut Rig, files: usize) {
    rig.drain();
    while !rig.pending.is_empty() {
        let full = rig.disk.segments().len() >= files;
        match place_of(rig, is_provide).filter(|_| full) {
            Some(at) => rig.complete_with(at, Err(DiskError::NoSpace)),
            None => rig.complete(0),
        }
    }
}

fn run_full_but_first(rig: &mut Rig) {
    run_with_files(rig, 1);
}

/// A follower with nine blocks, three to a segment, and two files: the last segment waits for one.
fn waiting_follower() -> Rig {
    let mut leader = Rig::created(config());
    for number in 0..9 {
        leader.append_durably(&value(number));
    }
    let mut follower = Rig::created(config());
    for block in 0..9 {
        let blocks = leader.load(From::Block(BlockNo(block)), 1).expect("held");
        follower.write_run(&blocks);
        run_with_files(&mut follower, 2);
    }
    assert!(follower.log.is_full());
    assert_eq!(follower.log.durable_end(), BlockNo(6));
    follower.outputs.clear();
    follower
}

fn cut_done(rig: &Rig) -> bool {
    let done = |output: &Output| matches!(output, Output::CutDone(_));
    rig.outputs.iter().any(done)
}

#[test]
fn a_cut_needs_no_file_for_blocks_that_go() {
    for from in [5, 6] {
        let mut rig = waiting_follower();
        rig.log.cut(BlockNo(from));
        run_with_files(&mut rig, 2);
        assert!(cut_done(&rig), "{:?}", rig.outputs);
        let ends = (rig.log.log_end(), rig.log.durable_end());
        assert_eq!(ends, (BlockNo(from), BlockNo(from)));
        assert_eq!(rig.values().len() as u64, from);
        let mut rig = rig.restart();
        assert_eq!(rig.values().len() as u64, from);
    }
}

/// One block that stays waits for the file: a trim makes room for it, and then the cut goes on.
#[test]
fn a_cut_that_waits_for_a_file_lets_trims_go_first() {
    let mut rig = waiting_follower();
    rig.log.cut(BlockNo(7));
    run_with_files(&mut rig, 2);
    assert!(!cut_done(&rig) && rig.log.is_cutting());
    rig.log.note_committed(BlockNo(6));
    rig.log.trim(BlockNo(3));
    run_with_files(&mut rig, 2);
    assert!(cut_done(&rig), "{:?}", rig.outputs);
    assert_eq!(rig.log.log_start().block, BlockNo(3));
    assert_eq!(rig.log.durable_end(), BlockNo(7));
    assert_eq!(rig.disk.segments(), [3, 6]);
    let mut rig = rig.restart();
    assert_eq!(rig.values().len(), 4);
}

#[test]
fn a_log_stops_on_a_full_disk_though_a_cut_waits() {
    let mut rig = waiting_follower();
    rig.log.cut(BlockNo(7));
    rig.log.stop(rig.now, &mut rig.pool);
    run_with_files(&mut rig, 2);
    assert_eq!(rig.log.state(), State::Stopped);
    assert_eq!(rig.pool.out(), 0, "every buffer was given back");
    let mut rig = Rig::start(rig.config, rig.disk);
    run_with_files(&mut rig, 2);
    assert_eq!(rig.log.state(), State::Open);
    assert_eq!(rig.values().len(), 6, "what was durable");
}
