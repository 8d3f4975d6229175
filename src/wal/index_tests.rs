//! How much of the disk a load or a search reads, and memory given back when it is short.

use super::index::{Index, Tail};
use super::rig::{Rig, config};
use super::{AppendRefusal, Common, Config, From, Output};
use crate::types::{BlockNo, Epoch, Offset, Tick};
use crate::wire::block::BlockHeader;
use crate::wire::checkpoint::LogStart;

const BLOCKS: usize = 600;

/// A log of many small blocks whose first segments were not read again after a clean stop. Record
/// `n` is of time `1000 + n`.
fn cold() -> Rig {
    let config = Config {
        segment_bytes: 128 * 4096,
        ..config()
    };
    let mut rig = Rig::created(config);
    for number in 0..BLOCKS {
        let time = 1000 + number as u64;
        rig.append_at(&number.to_le_bytes(), time).expect("room");
        rig.run();
    }
    rig.log.note_committed(rig.log.log_end());
    rig.stop();
    rig.restart()
}

/// Link and reader go on where their last load ended, however small the blocks are.
#[test]
fn catching_up_walks_over_nothing_twice() {
    for by_offset in [false, true] {
        let mut rig = cold();
        let before = rig.read_bytes;
        let most = 300;
        for number in 0..most {
            let from = match by_offset {
                false => From::Block(BlockNo(number)),
                true => From::Offset(Offset(number)),
            };
            let blocks = rig.load(from, 1).expect("held");
            assert_eq!(blocks[0].0.block, BlockNo(number));
        }
        let read = rig.read_bytes - before;
        // A single block of unknown length costs one read of 64 KiB.
        let bound = most as usize * 64 * 1024 + (1 << 20);
        assert!(read <= bound, "{read} bytes for {most} blocks of 4096");
    }
}

#[test]
fn a_cursor_that_a_cut_made_stale_is_forgotten() {
    let mut rig = Rig::created(config());
    for number in 0..20_u64 {
        rig.append_durably(&number.to_le_bytes());
    }
    rig.log.forget_recent(BlockNo(0));
    rig.drain();
    rig.load(From::Block(BlockNo(9)), 1).expect("held");
    rig.log.cut(BlockNo(8));
    rig.run();
    for number in 100..120_u64 {
        rig.append_durably(&[number as u8; 9000]);
    }
    rig.log.forget_recent(BlockNo(0));
    rig.drain();
    for block in 0..28 {
        let blocks = rig.load(From::Block(BlockNo(block)), 1).expect("held");
        assert_eq!(blocks[0].0.block, BlockNo(block));
    }
}

fn find(rig: &mut Rig, timestamp: u64) -> Option<Offset> {
    rig.log.find(5, timestamp, rig.log.log_end());
    rig.run();
    let at = rig
        .outputs
        .iter()
        .position(|output| matches!(output, Output::Found { .. }));
    match rig.outputs.remove(at.expect("it ended")) {
        Output::Found { result, .. } => result.expect("the blocks are sound"),
        _ => unreachable!("just matched"),
    }
}

/// A segment whose records are known to be early is not read; what is not known is learned once.
///
///
#[test]
fn a_search_by_time_reads_one_segment_once_all_are_known() {
    let mut rig = cold();
    let last = 1000 + BLOCKS as u64 - 1;
    let before = rig.read_bytes;
    assert_eq!(find(&mut rig, last), Some(Offset(last - 1000)));
    let all = rig.read_bytes - before;
    let before = rig.read_bytes;
    assert_eq!(find(&mut rig, last), Some(Offset(last - 1000)));
    let again = rig.read_bytes - before;
    assert!(
        again <= 2 * 128 * 4096 && again < all,
        "{again} bytes after {all}"
    );
    for number in [0_u64, 1, 126, 127, 128, 300, 599] {
        assert_eq!(
            find(&mut rig, 1000 + number),
            Some(Offset(number)),
            "{number}"
        );
    }
    assert_eq!(find(&mut rig, 0), Some(Offset(0)));
    let before = rig.read_bytes;
    assert_eq!(find(&mut rig, last + 1), None);
    assert_eq!(rig.read_bytes, before, "nothing is that late");
    // A record that is late by itself hides nothing behind it.
    rig.append_at(b"late", 1_000_000).expect("room");
    rig.run();
    rig.append_at(b"early", 1).expect("room");
    rig.run();
    assert_eq!(find(&mut rig, 2000), Some(Offset(BLOCKS as u64)));
}

/// A pool that is smaller than what may be kept in memory stops nobody.
#[test]
fn recent_blocks_are_given_back_when_memory_is_short() {
    let mut rig = Rig::created(config());
    rig.pool.limit = Some(8);
    for number in 0..60_usize {
        let mut value = number.to_le_bytes().to_vec();
        value.resize(15_000, 1);
        let mut tries = 0;
        while let Err(refusal) = rig.append(&value) {
            assert_eq!(refusal, AppendRefusal::Full);
            tries += 1;
            assert!(tries < 4, "appends go on");
            rig.run();
        }
        rig.run();
    }
    assert_eq!(rig.log.durable_end(), BlockNo(60));
    assert_eq!(rig.values().len(), 60, "and loads find memory too");
    let out = rig.pool.out();
    rig.log.relieve(usize::MAX);
    rig.drain();
    assert!(
        rig.pool.out() < out,
        "what others need is given back on demand"
    );
}

/// After a cut below what recovery read, what comes next is held against the block that stays.
#[test]
fn a_run_that_does_not_continue_a_cut_log_is_told_apart() {
    let mut rig = cold();
    let own = rig.load(From::Block(BlockNo(40)), 1).expect("held");
    let mut rig = Rig::start(rig.config, rig.disk);
    rig.run();
    // The hint in the checkpoint counts as committed; a follower may know less.
    rig.log.saver.checkpoint.high_watermark = BlockNo(0);
    rig.log.committed = BlockNo(0);
    rig.log.cut(BlockNo(40));
    rig.run();
    assert_eq!(rig.log.log_end(), BlockNo(40));
    let mut other = own[0].0;
    assert!(rig.log.is_continued_by(&[other]));
    other.prev_header_crc ^= 1;
    assert!(!rig.log.is_continued_by(&[other]));
    assert!(rig.log.is_continued_by(&[]));
}

/// A reader whose last record lies among damaged blocks in which an epoch begins is told to wait,
/// not that its record is gone: which epoch it is of shows once they are repaired.
#[test]
fn a_reader_within_damage_is_not_told_that_it_parted() {
    let mut index = Index::new(LogStart::default());
    let header = |epoch, block, base_offset| BlockHeader {
        epoch: Epoch(epoch),
        block: BlockNo(block),
        base_offset: Offset(base_offset),
        end_offset: Offset(base_offset + 10),
        ..BlockHeader::default()
    };
    index.note_epoch(&header(1, 0, 0));
    index.note_blind((BlockNo(4), Offset(40)), BlockNo(9), Epoch(3));
    index.skip_to(Tail {
        next: BlockNo(9),
        end_offset: Offset(90),
        epoch: Epoch(3),
        crc: 0,
        tick: Tick(0),
    });
    index.note_epoch(&header(3, 9, 90));
    let common = |index: &Index, epoch, offset| {
        let end = Offset(90);
        index.common(Epoch(epoch), Offset(offset), end)
    };
    for epoch in 1..=3 {
        assert_eq!(common(&index, epoch, 60), Common::Behind, "{epoch}");
    }
    assert_eq!(common(&index, 4, 60), Common::Behind, "of a later epoch");
    // What lies below the damage is known as ever.
    for offset in [1, 20, 40] {
        assert_eq!(common(&index, 1, offset), Common::Same, "{offset}");
    }
    assert_eq!(common(&index, 1, 41), Common::Behind);
    index.learn(&header(1, 4, 40));
    index.learn(&header(2, 5, 50));
    for block in 6..9 {
        index.learn(&header(2, block, 10 * block));
    }
    assert_eq!(common(&index, 2, 60), Common::Same);
    let parted = Common::Parted(Offset(50), Epoch(1));
    assert_eq!(common(&index, 1, 60), parted);
    assert_eq!(common(&index, 1, 50), Common::Same);
}

/// Epochs count from 1, so nothing is hidden where the first one known is that.
#[test]
fn the_first_epoch_hides_no_other() {
    let mut index = Index::new(LogStart::default());
    index.note_blind((BlockNo(0), Offset(0)), BlockNo(9), Epoch(1));
    index.skip_to(Tail {
        next: BlockNo(9),
        end_offset: Offset(90),
        epoch: Epoch(1),
        crc: 0,
        tick: Tick(0),
    });
    let header = BlockHeader {
        epoch: Epoch(1),
        block: BlockNo(9),
        base_offset: Offset(90),
        ..BlockHeader::default()
    };
    index.note_epoch(&header);
    let common = index.common(Epoch(1), Offset(61), Offset(90));
    assert_eq!(common, Common::Same);
}

/// What is read within damage says what it knows of epochs; what is cut hides no later block.
#[test]
fn what_is_read_within_damage_is_known() {
    let mut index = Index::new(LogStart::default());
    index.note_epoch(&header(1, 0));
    index.note_blind((BlockNo(4), Offset(40)), BlockNo(9), Epoch(3));
    index.skip_to(tail(3, 12));
    index.note_epoch(&header(3, 9));
    let epochs = |index: &Index| -> Vec<u32> {
        let blocks = (3..10).map(|block| index.epoch_of(BlockNo(block)));
        blocks
            .map(|epoch| epoch.map_or(0, |epoch| epoch.0))
            .collect()
    };
    assert_eq!(epochs(&index), [1, 0, 0, 0, 0, 0, 3]);
    assert!(index.is_hidden(BlockNo(4)) && !index.is_hidden(BlockNo(3)));
    index.learn(&header(1, 6));
    assert_eq!(epochs(&index), [1, 1, 1, 1, 0, 0, 3]);
    index.cut(tail(1, 8));
    index.skip_to(tail(4, 12));
    index.note_epoch(&header(4, 8));
    assert_eq!(epochs(&index), [1, 1, 1, 1, 0, 4, 4]);
    index.learn(&header(1, 7));
    assert!(!index.is_hidden(BlockNo(7)));
}

/// An epoch that begins in one damaged range hides the blocks of the next one too, as nothing of it
/// was seen: no block counts as one of an older epoch.
#[test]
fn damage_next_to_damage_is_no_older_epoch() {
    let mut index = Index::new(LogStart::default());
    index.note_epoch(&header(1, 0));
    index.skip_to(tail(1, 5));
    index.skip_damage(BlockNo(5), tail(2, 9));
    index.skip_damage(BlockNo(9), tail(2, 11));
    index.note_epoch(&header(2, 11));
    index.skip_to(tail(2, 14));
    for block in 5..11 {
        assert_eq!(index.epoch_of(BlockNo(block)), None, "{block}");
    }
    assert_eq!(index.epoch_of(BlockNo(4)), Some(Epoch(1)));
    index.learn(&header(2, 8));
    index.learn(&header(2, 9));
    assert_eq!(index.epoch_of(BlockNo(10)), Some(Epoch(2)));
    assert_eq!(index.epoch_of(BlockNo(7)), None);
}

/// A block of ten records.
fn header(epoch: u32, block: u64) -> BlockHeader {
    BlockHeader {
        epoch: Epoch(epoch),
        block: BlockNo(block),
        base_offset: Offset(10 * block),
        end_offset: Offset(10 * block + 10),
        ..BlockHeader::default()
    }
}

/// What comes behind such blocks.
fn tail(epoch: u32, next: u64) -> Tail {
    Tail {
        next: BlockNo(next),
        end_offset: Offset(10 * next),
        epoch: Epoch(epoch),
        crc: 0,
        tick: Tick(0),
    }
}
