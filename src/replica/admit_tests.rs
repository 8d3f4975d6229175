//! The table of `admit.rs`, row by row, and the steps back that follow from it.

use super::super::test_kit::{LOG, TestLog};
use super::super::view::LogView;
use super::{Hints, Place, Run, agree, check_chain, hints_at, place, place_at_start, step_back};
use crate::types::{BlockNo, Epoch, LogId, Offset, Tick};
use crate::wire::block::BlockHeader;
use crate::wire::checkpoint::LogStart;
use crate::wire::code::Code;

/// A log whose blocks have these epochs and (as the tens) other bytes: 3 is epoch 3, 13 is epoch 3
/// with other bytes.
fn log(blocks: &[u32]) -> TestLog {
    let mut log = TestLog::default();
    for block in blocks {
        log.seal(Epoch(block % 10), 1, block / 10, Tick(0));
    }
    log.durable_end = log.log_end();
    log
}

/// The run `first..end` of a sender's log, as the sender would describe it.
fn run_of(sender: &TestLog, first: u64, end: u64) -> (Run, Vec<BlockHeader>) {
    let headers = sender.range(first, end).to_vec();
    let previous = first.checked_sub(1).map(BlockNo);
    let (prev_epoch, prev_crc) = previous.and_then(|at| sender.held(at)).unwrap_or_default();
    let run = Run {
        epoch: Epoch(9),
        first: BlockNo(first),
        prev_epoch,
        prev_crc,
        count: headers.len() as u32,
        records: Some(headers.iter().map(|header| header.record_count).sum()),
        padded_len: headers
            .iter()
            .map(|header| header.padded_len() as u32)
            .sum(),
    };
    (run, headers)
}

fn out_of_sync(next: u64, epoch: u32, first: u64) -> Place {
    Place::OutOfSync(Hints {
        next: BlockNo(next),
        epoch: Epoch(epoch),
        first: BlockNo(first),
    })
}

struct Case {
    row: &'static str,
    held: &'static [u32],
    sender: &'static [u32],
    run: (u64, u64),
    high_watermark: u64,
    place: Place,
}

fn case(
    row: &'static str,
    held: &'static [u32],
    sender: &'static [u32],
    run: (u64, u64),
    high_watermark: u64,
    place: Place,
) -> Case {
    Case {
        row,
        held,
        sender,
        run,
        high_watermark,
        place,
    }
}

fn cases() -> Vec<Case> {
    let mut cases = cases_by_position();
    cases.extend(cases_by_previous());
    cases.extend(cases_of_conflicts());
    cases
}

fn cases_by_position() -> Vec<Case> {
    const HELD: &[u32] = &[1, 1, 1, 1, 1];
    const MORE: &[u32] = &[1, 1, 1, 1, 1, 1, 1, 1];
    vec![
        case("continues", HELD, MORE, (5, 7), 0, Place::Next),
        case("continues an empty log", &[], MORE, (0, 3), 0, Place::Next),
        case("asks at the end", HELD, MORE, (5, 5), 0, Place::Next),
        case("gap", HELD, MORE, (6, 8), 0, out_of_sync(5, 1, 0)),
        case(
            "gap before an empty log",
            &[],
            MORE,
            (2, 3),
            0,
            out_of_sync(0, 0, 0),
        ),
        case(
            "whole run held, ends at next",
            HELD,
            MORE,
            (3, 5),
            5,
            Place::Held,
        ),
        case("whole run held inside", HELD, MORE, (1, 3), 5, Place::Held),
        case("asks inside", HELD, MORE, (2, 2), 5, Place::Held),
        case(
            "next inside the run",
            HELD,
            MORE,
            (3, 7),
            0,
            out_of_sync(5, 1, 0),
        ),
        case(
            "starts at the last block",
            HELD,
            MORE,
            (4, 7),
            0,
            out_of_sync(5, 1, 0),
        ),
        case(
            "whole log again and more",
            HELD,
            MORE,
            (0, 8),
            0,
            out_of_sync(5, 1, 0),
        ),
    ]
}

fn cases_by_previous() -> Vec<Case> {
    const HELD: &[u32] = &[1, 1, 1, 1, 1];
    vec![
        case(
            "previous of another epoch",
            &[1, 1, 2, 2, 2],
            &[1, 1, 3, 3, 3, 3],
            (5, 6),
            0,
            out_of_sync(5, 2, 2),
        ),
        case(
            "previous of the same epoch, other bytes",
            HELD,
            &[1, 1, 1, 1, 11, 1],
            (5, 6),
            0,
            Place::Diverged(BlockNo(4)),
        ),
    ]
}

fn cases_of_conflicts() -> Vec<Case> {
    const HELD: &[u32] = &[1, 1, 1, 1, 1];
    vec![
        case(
            "first of another epoch, uncommitted",
            &[1, 1, 2, 2, 2],
            &[1, 1, 3, 3],
            (2, 4),
            2,
            Place::Cut(BlockNo(2)),
        ),
        case(
            "first of another epoch, uncommitted, run ends past the log",
            &[1, 1, 2],
            &[1, 1, 3, 3, 3],
            (2, 5),
            2,
            Place::Cut(BlockNo(2)),
        ),
        case(
            "first of another epoch, committed",
            &[1, 1, 2, 2, 2],
            &[1, 1, 3, 3],
            (2, 4),
            3,
            Place::Diverged(BlockNo(2)),
        ),
        case(
            "first of the same epoch, other bytes",
            HELD,
            &[1, 1, 1, 11, 1],
            (3, 5),
            0,
            Place::Diverged(BlockNo(3)),
        ),
        case(
            "a later one of the same epoch, other bytes",
            HELD,
            &[1, 1, 1, 11, 1],
            (1, 5),
            0,
            Place::Diverged(BlockNo(3)),
        ),
        case(
            "a later one of another epoch, uncommitted",
            &[1, 1, 2, 2, 2],
            &[1, 1, 3, 3],
            (1, 4),
            2,
            out_of_sync(3, 2, 2),
        ),
        case(
            "a later one of another epoch, committed",
            &[1, 1, 2, 2, 2],
            &[1, 1, 3, 3],
            (1, 4),
            3,
            Place::Diverged(BlockNo(2)),
        ),
    ]
}

/// Every row, partial overlaps of both forms among them: 15-25 and 15-19 against a held 10-19 are
/// runs that end past the log, or whose blocks are held one by one. Blocks, not offsets, are
/// compared, so no run can begin inside a block that is held.
///
/// H-41 H-42 H-44 H-45 H-46 H-69
#[test]
fn every_row_of_the_table() {
    for case in cases() {
        let (held, sender) = (log(case.held), log(case.sender));
        let (run, headers) = run_of(&sender, case.run.0, case.run.1);
        let hwm = BlockNo(case.high_watermark);
        let found = place(&run, Ok(&headers), &held, hwm, true);
        assert_eq!(found, case.place, "{}", case.row);
    }
}

/// In a mesh a log has one leader for ever: a conflict is never mended by a cut.
#[test]
fn mesh_follower_never_truncates() {
    for case in cases() {
        let (held, sender) = (log(case.held), log(case.sender));
        let (run, headers) = run_of(&sender, case.run.0, case.run.1);
        let found = place(
            &run,
            Ok(&headers),
            &held,
            BlockNo(case.high_watermark),
            false,
        );
        assert!(!matches!(found, Place::Cut(_)), "{}", case.row);
        if let Place::Cut(at) = case.place {
            assert_eq!(found, Place::Diverged(at), "{}", case.row);
        }
    }
}

/// H-41
#[test]
fn same_epoch_other_bytes_is_diverged() {
    let held = log(&[1, 2, 2]);
    let sender = log(&[1, 2, 12, 2]);
    let (run, headers) = run_of(&sender, 2, 4);
    let found = place(&run, Ok(&headers), &held, BlockNo(0), true);
    assert_eq!(found, Place::Diverged(BlockNo(2)));
    // If the body does not name the CRC of the block before, the chain of the headers does.
    let (mut run, headers) = run_of(&sender, 3, 4);
    run.prev_crc = 0;
    assert_eq!(
        place(&run, Ok(&headers), &held, BlockNo(0), true),
        Place::Next
    );
    assert_eq!(check_chain(&run, &headers, &held), Err(Code::Diverged));
}

/// A committed block below the log start cannot be compared and cannot be cut.
#[test]
fn trimmed_blocks_count_as_held() {
    let sender = log(&[1, 1, 1, 1, 1]);
    let mut held = Trimmed(log(&[1, 1, 1, 1]));
    let (run, headers) = run_of(&sender, 0, 2);
    assert_eq!(
        place(&run, Ok(&headers), &held, BlockNo(4), true),
        Place::Held
    );
    let (run, headers) = run_of(&sender, 1, 4);
    assert_eq!(
        place(&run, Ok(&headers), &held, BlockNo(4), true),
        Place::Held
    );
    let (mut run, headers) = run_of(&sender, 2, 4);
    assert_eq!(
        place(&run, Ok(&headers), &held, BlockNo(4), true),
        Place::Held
    );
    run.prev_epoch = Epoch(2);
    let found = place(&run, Ok(&headers), &held, BlockNo(4), true);
    assert_eq!(found, Place::Diverged(BlockNo(1)));
    held.0.cut(BlockNo(3));
    let (run, headers) = run_of(&sender, 1, 5);
    let found = place(&run, Ok(&headers), &held, BlockNo(3), true);
    assert_eq!(found, out_of_sync(3, 1, 2));
}

/// A log of which blocks 0 and 1 are trimmed.
struct Trimmed(TestLog);

impl LogView for Trimmed {
    fn log_start(&self) -> BlockNo {
        BlockNo(2)
    }
    fn log_end(&self) -> BlockNo {
        self.0.log_end()
    }
    fn durable_end(&self) -> BlockNo {
        self.0.durable_end()
    }
    fn held(&self, block: BlockNo) -> Option<(Epoch, u32)> {
        self.0.held(block).filter(|_| block.0 >= 1)
    }
    fn epoch_of(&self, block: BlockNo) -> Option<Epoch> {
        self.0.epoch_of(block).filter(|_| block.0 >= 1)
    }
    fn first_of_epoch(&self, epoch: Epoch) -> Option<BlockNo> {
        self.0
            .first_of_epoch(epoch)
            .map(|first| first.max(BlockNo(2)))
    }
    fn end_offset_of(&self, end: BlockNo) -> Option<Offset> {
        self.0.end_offset_of(end)
    }
    fn rest_from(&self, from: BlockNo) -> Option<(u64, Tick)> {
        self.0.rest_from(from)
    }
}

/// The position is judged before the headers: damage matters only where headers are needed.
///
/// H-41 H-68
#[test]
fn damaged_headers_are_refused_after_the_position() {
    let held = log(&[1, 1, 1]);
    let sender = log(&[1, 1, 1, 1, 1]);
    let damaged = Err(Code::BadCrc);
    let place_of = |first, end| {
        let (run, _) = run_of(&sender, first, end);
        place(&run, damaged, &held, BlockNo(0), true)
    };
    assert_eq!(place_of(4, 5), out_of_sync(3, 1, 0));
    assert_eq!(place_of(3, 5), Place::Next);
    assert_eq!(place_of(1, 2), Place::Refuse(Code::BadCrc));
    assert_eq!(place_of(1, 5), Place::Refuse(Code::BadCrc));
}

/// The numbers beside the blocks must be those of the blocks.
///
/// D-H2
#[test]
fn body_and_headers_must_agree() {
    let sender = log(&[1, 1, 1, 1]);
    let (run, headers) = run_of(&sender, 1, 3);
    assert!(agree(&run, Some(&headers), LOG).is_ok());
    assert_eq!(agree(&run, None, LOG), Err(Code::BadCrc));
    let bad = |change: fn(&mut Run)| {
        let mut run = run;
        change(&mut run);
        agree(&run, Some(&headers), LOG).err()
    };
    assert_eq!(bad(|run| run.first = BlockNo(0)), Some(Code::BadFrame));
    assert_eq!(bad(|run| run.count = 1), Some(Code::BadFrame));
    assert_eq!(bad(|run| run.records = Some(9)), Some(Code::BadFrame));
    assert_eq!(bad(|run| run.padded_len += 1), Some(Code::BadFrame));
    assert_eq!(bad(|run| run.epoch = Epoch(0)), Some(Code::BadFrame));
    let other = LogId::default();
    assert_eq!(agree(&run, Some(&headers), other), Err(Code::BadFrame));
}

/// H-41
#[test]
fn headers_must_chain() {
    let held = log(&[1, 2]);
    let sender = log(&[1, 2, 2, 3, 3]);
    let (run, headers) = run_of(&sender, 2, 5);
    assert_eq!(check_chain(&run, &headers, &held), Ok(()));
    let bad = |change: fn(&mut [BlockHeader])| {
        let mut headers = headers.clone();
        change(&mut headers);
        check_chain(&run, &headers, &held).err()
    };
    assert_eq!(bad(|h| h[1].prev_header_crc ^= 1), Some(Code::BadCrc));
    assert_eq!(bad(|h| h[2].epoch = Epoch(2)), Some(Code::BadCrc));
    assert_eq!(bad(|h| h[0].epoch = Epoch(1)), Some(Code::BadCrc));
    assert_eq!(bad(|h| h[0].base_offset = Offset(9)), Some(Code::BadCrc));
    assert_eq!(bad(|h| h[2].base_offset = Offset(9)), Some(Code::BadCrc));
    assert_eq!(bad(|h| h[0].prev_header_crc ^= 1), Some(Code::Diverged));
}

/// From every refusal the pair gets to the same log in a bounded number of frames, whatever two
/// histories it begins with; only blocks above the high watermark are ever cut.
///
/// H-43 H-47 H-59 H-60 D-H1
#[test]
fn any_two_histories_converge() {
    let histories = histories();
    for leader in &histories {
        for follower in &histories {
            for start in 0..=leader.len() as u64 {
                converge(leader, follower, start);
            }
        }
    }
}

/// All rising lists of epochs 1 to 3 with up to five blocks. Epoch e is written by one leader, so
/// two logs that share a block of an epoch share everything below it.
fn histories() -> Vec<Vec<u32>> {
    let mut all = vec![Vec::new()];
    let mut at = 0;
    while at < all.len() {
        let list: Vec<u32> = all[at].clone();
        at += 1;
        if list.len() == 5 {
            continue;
        }
        for epoch in list.last().copied().unwrap_or(1)..=3 {
            let mut longer = list.clone();
            longer.push(epoch);
            all.push(longer);
        }
    }
    all
}

fn converge(leader: &[u32], follower: &[u32], start: u64) {
    let mut sender = log(leader);
    sender.seal(Epoch(4), 1, 0, Tick(0));
    let mut held = log(follower);
    // Skip pairs that no single leader of an epoch could have written.
    let forked = (0..leader.len().min(follower.len())).any(|at| {
        let same_epoch = leader[at] == follower[at];
        same_epoch && sender.blocks[at].header_crc != held.blocks[at].header_crc
    });
    if forked {
        return;
    }
    let mut next = BlockNo(start);
    for _ in 0..24 {
        if held.log_end() == sender.log_end() && held.blocks == sender.blocks {
            return;
        }
        let end = (next.0 + 2).min(sender.log_end().0);
        let (run, headers) = run_of(&sender, next.0, end);
        match place(&run, Ok(&headers), &held, BlockNo(0), true) {
            found @ (Place::Next | Place::Cut(_)) => {
                if let Place::Cut(from) = found {
                    held.cut(from);
                }
                assert_eq!(check_chain(&run, &headers, &held), Ok(()));
                headers.iter().for_each(|header| held.push(header));
                next = run.end();
            }
            Place::Held => next = run.end(),
            Place::OutOfSync(hints) => next = step_back(&sender, hints),
            other => panic!("{leader:?} {follower:?}: {other:?}"),
        }
    }
    panic!("{leader:?} {follower:?} from {start}: no end");
}

#[test]
fn hints_name_the_epoch_and_its_first_block() {
    let held = log(&[1, 1, 2, 4, 4]);
    let hints = |next| {
        let hints = hints_at(&held, BlockNo(next));
        (hints.epoch.0, hints.first.0)
    };
    assert_eq!(hints(5), (4, 3));
    assert_eq!(hints(3), (2, 2));
    assert_eq!(hints(1), (1, 0));
    assert_eq!(hints(0), (0, 0));
}

/// A run that begins where its sender's log does, against logs that end before it or part before
/// it.
///
/// H-6
#[test]
fn a_run_at_the_senders_start_begins_a_log_anew() {
    let sender = TestLog::of(&[1, 1, 2, 2]);
    let mut headers = sender.range(2, 4).to_vec();
    headers[0].first_in_segment = true;
    let run = Run {
        epoch: Epoch(2),
        first: BlockNo(2),
        prev_epoch: Epoch(1),
        prev_crc: headers[0].prev_header_crc,
        count: 2,
        records: None,
        padded_len: 0,
    };
    let start = LogStart {
        block: BlockNo(2),
        offset: headers[0].base_offset,
        prev_epoch: Epoch(1),
        prev_crc: headers[0].prev_header_crc,
    };
    let at = |log: &TestLog, committed: u64| {
        place_at_start(&run, Ok(&headers), log, BlockNo(committed), true)
    };
    let shorter = TestLog::of(&[1]);
    assert_eq!(at(&shorter, 1), Some(Place::Anew(start)));
    assert_eq!(at(&TestLog::default(), 0), Some(Place::Anew(start)));
    let same = TestLog::of(&[1, 1]);
    assert_eq!(at(&same, 2), None, "it goes on as usual");
    // Another epoch right before the run: an uncommitted suffix, or a contradiction.
    let mut other = TestLog::of(&[1]);
    other.seal(Epoch(3), 1, 0, Tick(0));
    assert_eq!(at(&other, 1), Some(Place::Anew(start)));
    assert_eq!(at(&other, 2), Some(Place::Diverged(BlockNo(1))));
    let kept = place_at_start(&run, Ok(&headers), &other, BlockNo(1), false);
    assert_eq!(
        kept,
        Some(Place::Diverged(BlockNo(1))),
        "a mesh cuts nothing"
    );
    headers[0].first_in_segment = false;
    let place = place_at_start(&run, Ok(&headers), &shorter, BlockNo(1), true);
    assert_eq!(place, None, "a log begins with a segment");
}

/// What is damaged and not committed may be another block than the sender's: it does not count as
/// held, nor is what follows it taken to continue the same log. Committed ones are the same.
#[test]
fn damaged_blocks_of_an_unknown_epoch_are_not_held() {
    let mut held = log(&[1, 1, 3, 4, 4, 4]);
    held.hidden = Some((2, 4));
    let sender = log(&[1, 1, 3, 5, 5]);
    let place = |first, end, high_watermark| {
        let (run, headers) = run_of(&sender, first, end);
        place(&run, Ok(&headers), &held, BlockNo(high_watermark), true)
    };
    let refused = Place::Refuse(Code::BlocksDamaged);
    for run in [(2, 3), (2, 4), (3, 4), (4, 5), (1, 3), (4, 4)] {
        assert_eq!(place(run.0, run.1, 2), refused, "{run:?}");
    }
    assert_eq!(place(2, 3, 3), Place::Held);
    assert_eq!(place(3, 4, 3), refused);
    assert_eq!(place(4, 5, 4), Place::Cut(BlockNo(4)));
    assert_eq!(place(1, 2, 2), Place::Held, "before the damage");
}
