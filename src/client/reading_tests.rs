//! Readers against a small cluster: every record once, in order, never back.

use super::*;
use crate::client::test_kit::{Faults, World};
use crate::limits::BATCH_HEADER;
use crate::wire::record::BatchBuilder;
use proptest::prelude::*;

fn batch(records: &[(u64, &str)]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for (timestamp, value) in records {
        builder.push(&Record::new(*timestamp, value.as_bytes()));
    }
    builder.finish().into()
}

struct Run {
    world: World,
    session: Reading,
    seen: Vec<(u64, String)>,
}

impl Run {
    fn new(options: ReaderOptions) -> Run {
        Run {
            world: World::new(1, 1),
            session: Reading::new(vec!["host:100".to_owned()], options),
            seen: Vec::new(),
        }
    }

    fn add(&mut self, records: &[(u64, &str)]) {
        let bytes = batch(records);
        let log = &mut self.world.logs[0];
        log.push(ShardId(0), &bytes);
        log.committed = log.end;
    }

    fn step(&mut self) {
        if !self.world.step(&mut self.session) {
            let now = self.world.now;
            let at = self.session.poll_timeout().unwrap_or(now.plus_us(1000));
            self.world.now = now.max(at);
            self.session.handle(self.world.now, Event::Tick);
        }
    }

    fn next(&mut self) -> Next {
        self.session.want(self.world.now);
        for _ in 0..100_000 {
            if let Some(next) = self.session.take(self.world.now) {
                if let Next::Batch(batch) = &next {
                    for (offset, record) in batch.records() {
                        let value = String::from_utf8_lossy(record.value).into_owned();
                        self.seen.push((offset.0, value));
                    }
                }
                return next;
            }
            self.step();
        }
        panic!("nothing comes: {:?}", self.session);
    }

    fn offsets(&self) -> Vec<u64> {
        self.seen.iter().map(|(offset, _)| *offset).collect()
    }
}

fn committed() -> ReaderOptions {
    ReaderOptions::new(ShardId(0))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Through broken connections, repeated frames and nodes that are not ready.
    #[test]
    fn every_record_comes_once_and_in_order(seed in any::<u64>(), from in 0..40_u64) {
        let mut run = Run::new(ReaderOptions {
            start: Start::Offset(Offset(from)),
            max_bytes: 300,
            timeout_us: u64::MAX / 4,
            ..committed()
        });
        run.world.dice.0 = seed;
        run.world.faults = Faults { network: true, ..Faults::default() };
        let mut count = 0;
        while count < 40 {
            let size = run.world.dice.below(5) + 1;
            run.add(&vec![(count, "v"); size]);
            count += size as u64;
        }
        loop {
            match run.next() {
                Next::Batch(_) => {}
                Next::End => break,
                Next::Failed(failure) => panic!("{failure}"),
            }
        }
        prop_assert_eq!(run.offsets(), (from..count).collect::<Vec<u64>>());
    }
}

/// That the log ended is never said by an answer from before the application asked.
///
/// S-146
#[test]
fn a_record_acked_before_the_read_is_seen() {
    let mut run = Run::new(committed());
    run.add(&[(1, "a")]);
    assert!(matches!(run.next(), Next::Batch(_)));
    // The question for what comes next is under way, and is answered: nothing.
    for _ in 0..20 {
        run.world.step(&mut run.session);
    }
    run.add(&[(2, "b")]);
    assert!(matches!(run.next(), Next::Batch(_)));
    assert_eq!(run.next(), Next::End);
    let end = Offset(2);
    let ends = Ends {
        readable: end,
        held: end,
    };
    assert_eq!(run.session.ends(), Some(ends));
    run.add(&[(3, "c")]);
    assert!(matches!(run.next(), Next::Batch(_)));
    assert_eq!(run.offsets(), [0, 1, 2]);
}

#[test]
fn a_reader_that_follows_waits() {
    let mut run = Run::new(ReaderOptions {
        follow: true,
        timeout_us: 5_000_000,
        ..committed()
    });
    run.session.want(run.world.now);
    let start = run.world.now;
    while run.world.now < start.plus_us(20_000_000) {
        // The world answers at once that there is nothing; time passes all the same.
        run.world.now = run.world.now.plus_us(100_000);
        run.step();
        assert_eq!(run.session.take(run.world.now), None);
    }
    run.add(&[(1, "a")]);
    assert!(matches!(run.next(), Next::Batch(_)));
}

#[test]
fn a_reader_begins_at_a_time() {
    for (time, first) in [(0, 0), (5, 0), (6, 1), (7, 2), (8, 3), (11, 5), (12, 6)] {
        let start = Start::Time(time);
        let mut run = Run::new(ReaderOptions {
            start,
            ..committed()
        });
        run.add(&[(5, "a"), (6, "b")]);
        run.add(&[(7, "c"), (10, "d"), (9, "e")]);
        run.add(&[(11, "f")]);
        while run.next() != Next::End {}
        let expected: Vec<u64> = (first..6).collect();
        assert_eq!(run.offsets(), expected, "from time {time}");
    }
}

/// A node that lost the reader's last batch says so; the reader does not go on by itself.
///
/// S-147
#[test]
fn a_reader_stands_still_where_its_records_were_cut() {
    let mut run = Run::new(committed());
    run.add(&[(1, "a")]);
    run.add(&[(2, "b")]);
    while run.next() != Next::End {}
    // The node holds another batch there, of another epoch.
    let log = &mut run.world.logs[0];
    log.batches.pop();
    log.end = 1;
    let bytes = batch(&[(3, "other")]);
    log.push_of_epoch(ShardId(0), &bytes, Epoch(2));
    log.committed = log.end;
    for _ in 0..2 {
        let last_common = 1;
        assert_eq!(run.next(), Next::Failed(Failure::Truncated { last_common }));
    }
    run.session.seek(Start::Offset(Offset(1)));
    assert!(matches!(run.next(), Next::Batch(_)));
    assert_eq!(run.seen.last(), Some(&(1, "other".to_owned())));
}

#[test]
fn a_place_outside_the_log_is_told_with_its_bounds() {
    let mut run = Run::new(ReaderOptions {
        start: Start::Offset(Offset(7)),
        ..committed()
    });
    run.add(&[(1, "a")]);
    let (offset, start, end) = (7, 0, 1);
    let failure = Failure::OutOfRange { offset, start, end };
    assert_eq!(run.next(), Next::Failed(failure.clone()));
    assert_eq!(run.next(), Next::Failed(failure));
}

#[test]
fn the_first_record_is_the_first_one_kept() {
    let mut run = Run::new(committed());
    for time in 0..9 {
        run.add(&[(time, "a"), (time, "b")]);
    }
    run.world.logs[0].start = 6;
    assert!(matches!(run.next(), Next::Batch(_)));
    assert_eq!(run.seen.first(), Some(&(6, "a".to_owned())));
    // From here on a trim that overtakes the reader is told.
    run.world.logs[0].start = 18;
    while let Next::Batch(_) = run.next() {}
    run.session.seek(Start::Offset(Offset(6)));
    assert!(matches!(
        run.next(),
        Next::Failed(Failure::OutOfRange { start: 18, .. })
    ));
}

#[test]
fn a_log_where_nothing_happens_is_followed_beyond_the_time_out() {
    let mut run = Run::new(ReaderOptions {
        follow: true,
        timeout_us: 100_000,
        ..committed()
    });
    run.add(&[(1, "a")]);
    assert!(matches!(run.next(), Next::Batch(_)));
    run.session.want(run.world.now);
    for _ in 0..10 {
        // The node answers when the question has waited there, well after the time-out.
        run.world.hung = vec![0, 1, 2];
        run.world.now = run.world.now.plus_us(1_000_000);
        run.session.handle(run.world.now, Event::Tick);
        run.world.hung.clear();
        for _ in 0..20 {
            run.step();
            assert_eq!(run.session.take(run.world.now), None);
        }
    }
    run.add(&[(2, "b")]);
    assert!(matches!(run.next(), Next::Batch(_)));
}

/// Bytes that went bad between the node and here.
#[test]
fn a_damaged_batch_is_told_and_read_again() {
    let mut run = Run::new(committed());
    run.add(&[(1, "a")]);
    let whole = run.world.logs[0].batches[0].clone();
    let mut bad = whole.to_vec();
    bad[BATCH_HEADER + 3] ^= 1;
    run.world.logs[0].batches[0] = bad.into();
    let Next::Failed(Failure::Damaged { offset: 0, .. }) = run.next() else {
        panic!("bad bytes were taken");
    };
    run.world.logs[0].batches[0] = whole;
    assert!(matches!(run.next(), Next::Batch(_)));
}

/// What comes before the time stays left out, whatever became of the first answer.
#[test]
fn a_damaged_answer_does_not_forget_the_time() {
    let mut run = Run::new(ReaderOptions {
        start: Start::Time(6),
        ..committed()
    });
    run.add(&[(5, "a"), (6, "b")]);
    run.add(&[(7, "c")]);
    let whole = run.world.logs[0].batches[1].clone();
    let mut bad = whole.to_vec();
    bad[BATCH_HEADER + 3] ^= 1;
    run.world.logs[0].batches[1] = bad.into();
    let next = run.next();
    let damaged = matches!(next, Next::Failed(Failure::Damaged { offset: 2, .. }));
    assert!(damaged, "{next:?}");
    run.world.logs[0].batches[1] = whole;
    while run.next() != Next::End {}
    assert_eq!(run.offsets(), [1, 2]);
}

/// A node that answers what nobody asked neither moves the reader nor ends the log for it.
#[test]
fn an_answer_to_another_question_moves_nobody() {
    let mut run = Run::new(committed());
    run.add(&[(1, "a"), (2, "b")]);
    while run.next() != Next::End {}
    run.add(&[(3, "c")]);
    for body in [
        crate::wire::body::FindOk { offset: Offset(0) }.into(),
        Body::StatusOk(crate::wire::body::StatusOk {}),
    ] {
        let now = run.world.now;
        run.session.want(now);
        let action = run.session.poll_action();
        let Some(Action::Send {
            connection, head, ..
        }) = action
        else {
            panic!("it asks: {action:?}");
        };
        let head = head.first_chunk().expect("a header");
        let correlation = crate::wire::frame::read_header(head)
            .expect("a frame")
            .correlation;
        let payload = Bytes::new();
        run.session.handle(
            now,
            Event::Frame {
                connection,
                correlation,
                body,
                payload,
            },
        );
        let next = run.session.take(now);
        let told = matches!(next, Some(Next::Failed(Failure::Damaged { offset: 2, .. })));
        assert!(told, "{next:?}");
    }
    while run.next() != Next::End {}
    assert_eq!(run.offsets(), [0, 1, 2]);
}

#[test]
fn a_node_that_never_answers_is_told_in_time() {
    let mut run = Run::new(committed());
    run.add(&[(1, "a")]);
    assert!(matches!(run.next(), Next::Batch(_)));
    run.world.hung = vec![0, 1, 2];
    let start = run.world.now;
    let next = run.next();
    assert!(
        matches!(next, Next::Failed(Failure::NotTaken { .. })),
        "{next:?}"
    );
    let took_us = run.world.now.since_us(start);
    assert!((30_000_000..40_000_000).contains(&took_us), "{took_us} us");
}
