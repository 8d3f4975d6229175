//! Tests of the checkers: a history made by hand for each verdict, which must give just that one.
//!
//! A checker that cannot fail proves nothing. Each test begins with a sound history, shows that it
//! passes, and changes one thing. Verdicts are compared, never printed: scripts look for printed
//! ones.

use crate::sim::checker::{
    Checker, Holders, Marks, ReadAnswer, SentAppend, books_agree, credit_at_rest, done_in_time,
    memory_held,
};
use crate::sim::facts::{Ack, BatchFacts, BatchId, BlockFacts};
use crate::sim::log_checks::NodeLog;
use crate::sim::verdict::{Checked, Name};
use millrace::types::{Level, ReadLevel};
use millrace::wire::body::CreditLimits;
use std::rc::Rc;

const ALL: Holders = Holders {
    leader: true,
    nodes: 3,
    overtaken: false,
};

fn id(sequence: u32) -> BatchId {
    BatchId {
        client: 1,
        sequence,
    }
}

fn batch(sequence: u32, base_offset: u64) -> BatchFacts {
    BatchFacts {
        id: Some(id(sequence)),
        base_offset,
        epoch: 1,
        producer: None,
        record_count: 2,
        digest: 1000 + u64::from(sequence),
        max_timestamp: 1000 + base_offset,
    }
}

/// Block `block` with one batch of two records: append number `sequence`.
fn block(block: u64, sequence: u32) -> Rc<BlockFacts> {
    Rc::new(BlockFacts {
        sound: true,
        block,
        epoch: 1,
        header_crc: 100 + block as u32,
        prev_header_crc: if block == 0 { 0 } else { 99 + block as u32 },
        base_offset: 2 * block,
        end_offset: 2 * block + 2,
        padded_len: 4096,
        digest: 7 * block,
        batches: vec![batch(sequence, 2 * block)],
    })
}

fn changed(facts: &Rc<BlockFacts>, change: impl FnOnce(&mut BlockFacts)) -> Rc<BlockFacts> {
    let mut facts = BlockFacts::clone(facts);
    change(&mut facts);
    Rc::new(facts)
}

fn ack(level: Level, block: u64) -> Ack {
    Ack {
        level,
        base_offset: 2 * block,
        block,
    }
}

/// Three appends were sent, three blocks are committed with one each.
fn history() -> Checker {
    let mut checker = Checker::new(3);
    for sequence in 0..3 {
        let append = SentAppend {
            session: 5,
            digest: 1000 + u64::from(sequence),
            record_count: 2,
            retried: false,
        };
        checker.append_sent(id(sequence), append);
        let facts = block(u64::from(sequence), sequence);
        checker.committed_seen(0, &facts, 3).expect("sound");
    }
    checker
}

fn log(node: usize) -> NodeLog {
    NodeLog {
        node,
        blocks: (0..3).map(|number| block(number, number as u32)).collect(),
        files: vec![("a".to_owned(), 1), ("b".to_owned(), 2)],
    }
}

fn logs() -> Vec<NodeLog> {
    (0..3).map(log).collect()
}

fn expect(name: Name, checked: Checked) {
    match checked {
        Err(verdict) => assert_eq!(verdict.name, name, "{}", verdict.details),
        Ok(()) => panic!("{} was not found", name.text()),
    }
}

///
#[test]
fn lost_acks_are_found() {
    for level in [Level::Leader, Level::Quorum] {
        let mut checker = history();
        let sound = checker.append_acked(id(2), ack(level, 2), ALL);
        sound.expect("sound");
        checker.at_rest(&logs()).expect("sound");

        let mut elsewhere = history();
        let wrong = elsewhere.append_acked(id(2), ack(level, 1), ALL);
        wrong.expect("not known yet");
        expect(Name::AckedLost, elsewhere.at_rest(&logs()).map(drop));
    }
    let mut short = logs();
    short[1].blocks.pop();
    expect(Name::AckedLost, history().at_rest(&short).map(drop));
}

///
#[test]
fn leader_acks_may_be_cut_only_after_lost_memory() {
    let gone = Ack {
        level: Level::Leader,
        base_offset: 40,
        block: 20,
    };
    let mut checker = history();
    checker.append_acked(id(2), gone, ALL).expect("sound");
    checker.leader_lost_memory();
    let outcome = checker.at_rest(&logs()).expect("counted, not refused");
    assert_eq!(outcome.leader_acked_cut, 1);

    let mut checker = history();
    checker.leader_lost_memory();
    checker.append_acked(id(2), gone, ALL).expect("sound");
    expect(Name::AckedLost, checker.at_rest(&logs()).map(drop));
}

///
#[test]
fn double_batches_are_found() {
    let mut checker = history();
    let again = changed(&block(3, 0), |facts| facts.batches[0].base_offset = 6);
    checker
        .committed_seen(0, &again, 3)
        .expect("seen at rest only");
    let mut logs = logs();
    logs.iter_mut()
        .for_each(|log| log.blocks.push(Rc::clone(&again)));
    expect(Name::AckedTwice, checker.at_rest(&logs).map(drop));

    let mut checker = history();
    let once = checker.append_acked(id(1), ack(Level::Local, 1), ALL);
    once.expect("sound");
    let twice = checker.append_acked(id(1), ack(Level::Local, 1), ALL);
    expect(Name::AckedTwice, twice);
}

///
#[test]
fn another_order_is_found() {
    let mut checker = history();
    let first = checker.append_acked(id(1), ack(Level::Quorum, 1), ALL);
    first.expect("sound");
    let later = checker.append_acked(id(0), ack(Level::Quorum, 2), ALL);
    expect(Name::Reordered, later);

    let mut checker = Checker::new(1);
    let mut logs = vec![log(0)];
    logs[0].blocks = vec![block(0, 1), block(1, 0)];
    for sequence in 0..2 {
        let append = SentAppend {
            session: 5,
            digest: 1000 + u64::from(sequence),
            record_count: 2,
            retried: false,
        };
        checker.append_sent(id(sequence), append);
        let facts = &logs[0].blocks[sequence as usize];
        checker.committed_seen(0, facts, 1).expect("sound");
    }
    expect(Name::Reordered, checker.at_rest(&logs).map(drop));
}

///
#[test]
fn a_refused_append_in_the_log_is_found() {
    let mut checker = history();
    checker.append_refused(id(2));
    expect(Name::RefusedAppended, checker.at_rest(&logs()).map(drop));
}

///
#[test]
fn other_bytes_are_found() {
    let mut padding = logs();
    padding[2].blocks[1] = changed(&padding[2].blocks[1], |facts| facts.digest += 1);
    expect(Name::BytesDiffer, history().at_rest(&padding).map(drop));

    let mut files = logs();
    files[1].files[1].1 = 3;
    expect(Name::BytesDiffer, history().at_rest(&files).map(drop));

    let mut checker = Checker::new(3);
    checker
        .block_written(0, &block(1, 1))
        .expect("the first one");
    checker.block_written(1, &block(1, 1)).expect("the same");
    let other = changed(&block(1, 1), |facts| facts.digest += 1);
    expect(Name::BytesDiffer, checker.block_written(2, &other));
    let broken = changed(&block(2, 2), |facts| facts.sound = false);
    expect(Name::BytesDiffer, checker.block_written(2, &broken));

    let mut checker = Checker::new(3);
    let foreign = block(0, 0);
    checker
        .committed_seen(0, &foreign, 3)
        .expect("seen at rest only");
    let mut logs = logs();
    logs.iter_mut().for_each(|log| log.blocks.truncate(1));
    expect(Name::BytesDiffer, checker.at_rest(&logs).map(drop));
}

///
#[test]
fn early_answers_are_found() {
    let few = Holders {
        leader: true,
        nodes: 1,
        overtaken: false,
    };
    let not_leader = Holders {
        leader: false,
        nodes: 0,
        overtaken: false,
    };
    let mut checker = history();
    let leader = checker.append_acked(id(0), ack(Level::Leader, 0), few);
    leader.expect("the leader has it");
    let local = checker.append_acked(id(1), ack(Level::Local, 1), not_leader);
    local.expect("nothing was promised");
    let quorum = checker.append_acked(id(2), ack(Level::Quorum, 2), few);
    expect(Name::AckedBeforeDurable, quorum);
    let leader = history().append_acked(id(2), ack(Level::Leader, 2), not_leader);
    expect(Name::AckedBeforeDurable, leader);

    checker.matched(1, &block(0, 0), true).expect("sound");
    let matched = checker.matched(1, &block(0, 0), false);
    expect(Name::AckedBeforeDurable, matched);
    checker.position_said(1, 3, 3).expect("sound");
    expect(Name::AckedBeforeDurable, checker.position_said(1, 4, 3));
}

///
#[test]
fn watermarks_that_go_back_are_found() {
    let sound = Marks {
        run: 1,
        epoch: 3,
        high_watermark: 2,
        durable_end: 4,
        log_end: 5,
        blocks_cut: 0,
    };
    let seen = |second: Marks, disk_end: u64| {
        let mut checker = Checker::new(3);
        checker.marks_seen(0, sound, 4).expect("sound");
        checker.marks_seen(0, second, disk_end)
    };
    seen(sound, 4).expect("the same again");
    let cut = Marks {
        durable_end: 3,
        log_end: 3,
        blocks_cut: 2,
        ..sound
    };
    seen(cut, 3).expect("counted");
    let name = Name::WatermarkWentBack;
    let mut silent = Checker::new(3);
    silent.marks_seen(0, sound, 4).expect("sound");
    let under_way = Marks {
        blocks_cut: 0,
        ..cut
    };
    silent.marks_seen(0, under_way, 4).expect("perhaps a cut");
    expect(name, silent.marks_seen(0, sound, 4));
    let lower = Marks {
        high_watermark: 1,
        ..sound
    };
    expect(name, seen(lower, 4));
    let mut promised = Checker::new(3);
    promised.marks_seen(0, sound, 4).expect("sound");
    promised.epoch_said(0, 3).expect("sound");
    expect(name, promised.epoch_said(0, 2));
    let unfenced = Marks { epoch: 2, ..sound };
    expect(name, seen(unfenced, 4));
    let above = Marks {
        high_watermark: 5,
        ..sound
    };
    expect(name, seen(above, 5));
    let recovered_less = Marks {
        run: 2,
        epoch: 3,
        high_watermark: 0,
        durable_end: 3,
        log_end: 3,
        blocks_cut: 0,
    };
    seen(recovered_less, 3).expect("its disk has no more");
    expect(name, seen(recovered_less, 4));
    expect(Name::AckedBeforeDurable, seen(sound, 3));

    let mut checker = Checker::new(3);
    expect(name, checker.committed_seen(0, &block(0, 0), 1));
    expect(name, checker.committed_seen(0, &block(1, 1), 3));
}

///
#[test]
fn another_committed_block_is_found() {
    let mut checker = history();
    checker
        .committed_seen(1, &block(1, 1), 2)
        .expect("the same");
    let other = changed(&block(1, 1), |facts| facts.header_crc = 9);
    let name = Name::CommittedChanged;
    expect(name, checker.committed_seen(1, &other, 3));
    let unchained = changed(&block(3, 0), |facts| facts.prev_header_crc = 9);
    expect(name, checker.committed_seen(1, &unchained, 3));
    let mut logs = logs();
    logs[1].blocks[1] = other;
    expect(name, history().at_rest(&logs).map(drop));
}

///
#[test]
fn lost_credit_is_found() {
    credit_at_rest("link", (10, 10), (4096, 4096)).expect("sound");
    let name = Name::CreditLeak;
    expect(name, credit_at_rest("link", (9, 10), (4096, 4096)));
    expect(name, credit_at_rest("link", (10, 10), (0, 4096)));
    expect(name, credit_at_rest("link", (11, 10), (4096, 4096)));
}

///
#[test]
fn books_that_differ_are_found() {
    let book = |records, bytes| CreditLimits { records, bytes };
    let sound = (book(5, 4096), book(15, 8192));
    books_agree("link", sound, sound).expect("sound");
    for other in [
        (book(6, 4096), sound.1),
        (book(5, 0), sound.1),
        (sound.0, book(14, 8192)),
    ] {
        expect(Name::CreditLeak, books_agree("link", sound, other));
    }
}

///
#[test]
fn unbounded_memory_is_found() {
    memory_held(0, 4096, 4096, "now").expect("sound");
    expect(Name::MemoryUnbounded, memory_held(0, 8192, 4096, "now"));
}

///
#[test]
fn what_never_happens_is_found() {
    done_in_time(true, String::new).expect("sound");
    expect(Name::Stuck, done_in_time(false, || "never".to_owned()));
}

///
#[test]
fn wrong_reads_are_found() {
    let sound = ReadAnswer {
        node: 1,
        level: ReadLevel::Committed,
        asked: 1,
        batches: Some(vec![batch(0, 0), batch(1, 2)]),
        next: 4,
        high_watermark: 6,
    };
    let check = |change: fn(&mut ReadAnswer)| {
        let mut answer = sound.clone();
        change(&mut answer);
        history().read_answered(&answer, 6)
    };
    check(|_| {}).expect("sound");
    check(|answer| answer.high_watermark = 4).expect("a follower may know less");
    let wrong: [fn(&mut ReadAnswer); 8] = [
        |answer| answer.batches = None,
        |answer| answer.high_watermark = 7,
        |answer| answer.next = 5,
        |answer| answer.asked = 2,
        |answer| answer.batches = Some(vec![batch(0, 0), batch(2, 4)]),
        |answer| answer.batches = Some(vec![batch(0, 0), batch(2, 2)]),
        |answer| answer.batches.as_mut().expect("some")[0].digest += 1,
        |answer| {
            answer.next = 8;
            let batches = answer.batches.as_mut().expect("some");
            batches.extend([batch(2, 4), batch(2, 6)]);
        },
    ];
    for change in wrong {
        expect(Name::ReadWrong, check(change));
    }
    // What is committed now may be another batch than the one an old leader has there.
    expect(Name::ReadWrong, history().read_answered(&sound, 2));
}

/// A search by time: the first batch as late, or the end of what was committed when it began.
#[test]
fn a_search_that_passes_a_batch_is_seen() {
    let mut checker = Checker::new(1);
    let batches: Vec<BatchFacts> = (0..3)
        .map(|number| batch(number, 10 * u64::from(number)))
        .collect();
    for (number, one) in batches.iter().enumerate() {
        let block = Rc::new(BlockFacts {
            sound: true,
            block: number as u64,
            epoch: 1,
            header_crc: number as u32 + 1,
            prev_header_crc: number as u32,
            base_offset: one.base_offset,
            end_offset: one.end_offset(),
            padded_len: 4096,
            digest: 0,
            batches: vec![one.clone()],
        });
        assert!(checker.committed_seen(0, &block, 1).is_ok());
    }
    let end = checker.committed_offset();
    let found = |timestamp, offset| checker.found(timestamp, offset, (0, end));
    assert!(found(1005, 10).is_ok());
    assert!(found(1005, 20).is_err(), "an earlier one is as late");
    assert!(found(1005, 0).is_err(), "it is not as late");
    assert!(found(5000, end).is_ok());
    assert!(found(1005, end).is_err(), "there is one");
    assert!(
        checker.found(1005, 20, (15, end)).is_ok(),
        "what was trimmed does not count"
    );
}
