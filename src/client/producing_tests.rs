//! Producers against a small cluster: nothing lost, doubled or out of order.

use super::*;
use crate::client::test_kit::{Faults, World};
use crate::wire::code::Code;
use proptest::prelude::*;

fn options() -> ProducerOptions {
    ProducerOptions::new(77)
}

fn producing(options: ProducerOptions) -> Producing<u64> {
    Producing::new(vec!["host:100".to_owned(), "host:300".to_owned()], options)
}

/// How each record ended: its offset, or why not.
type Outcomes = BTreeMap<u64, Result<(ShardId, u64), Failure>>;

struct Run {
    world: World,
    session: Producing<u64>,
    outcomes: Outcomes,
    /// The shard of each record and its place among all.
    pushed: Vec<ShardId>,
}

impl Run {
    fn new(shards: usize, seed: u64, options: ProducerOptions) -> Run {
        let mut run = Run {
            world: World::new(shards, seed),
            session: producing(options),
            outcomes: Outcomes::new(),
            pushed: Vec::new(),
        };
        run.session.handle(run.world.now, Event::Tick);
        run.until(|run| run.session.cluster().is_some());
        run
    }

    fn push(&mut self, shard: u16) {
        let id = self.pushed.len() as u64;
        let record = NewRecord::new(id.to_string()).shard(shard);
        self.pushed.push(ShardId(shard));
        let pushed = self.session.push(self.world.now, &record, id);
        if let Err(failure) = pushed {
            self.outcomes.insert(id, Err(failure));
        }
        self.settle();
    }

    fn settle(&mut self) {
        self.world.act(&mut self.session);
        while let Some(done) = self.session.poll_done() {
            for (id, number) in done.tokens.into_iter().zip(0..) {
                let outcome = done.outcome.clone();
                let outcome = outcome.map(|first| (done.shard, first.0 + number));
                let before = self.outcomes.insert(id, outcome);
                assert_eq!(before, None, "record {id} ended twice");
            }
        }
    }

    /// One thing happens, or time passes until the session wants to be called.
    fn step(&mut self) {
        if !self.world.step(&mut self.session) {
            match self.session.poll_timeout() {
                Some(at) => self.world.now = self.world.now.max(at),
                None => assert_eq!(self.outcomes.len(), self.pushed.len(), "it waits for ever"),
            }
            self.session.handle(self.world.now, Event::Tick);
        }
        self.settle();
    }

    fn until(&mut self, done: impl Fn(&Run) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("it does not end: {:?}", self.session);
    }

    fn finish(&mut self) {
        self.until(|run| run.outcomes.len() == run.pushed.len());
        // Late frames change nothing.
        while self.world.step(&mut self.session) {}
        self.settle();
        assert_eq!(self.session.held_bytes(), 0);
        assert_eq!(self.session.under_way(), (0, 0));
    }

    /// Acked: once, where it was said. Failed: nowhere. Unknown: at most once. And in order.
    fn check(&self) {
        for (shard, log) in self.world.logs.iter().enumerate() {
            let values = log.values();
            let ids: Vec<u64> = values
                .iter()
                .map(|value| String::from_utf8_lossy(value).parse().unwrap())
                .collect();
            let mut last_acked = None;
            for (id, of) in (0..).zip(&self.pushed) {
                if usize::from(of.0) != shard {
                    continue;
                }
                let places: Vec<usize> = (0..ids.len()).filter(|at| ids[*at] == id).collect();
                match &self.outcomes[&id] {
                    Ok((_, at)) => {
                        assert_eq!(places, [*at as usize], "record {id}");
                        assert!(last_acked < Some(*at), "record {id} at {at} overtook");
                        last_acked = Some(*at);
                    }
                    Err(Failure::Unknown) => assert!(places.len() <= 1, "record {id} twice"),
                    Err(failure) => {
                        assert!(places.is_empty(), "record {id} is there: {failure}");
                    }
                }
            }
        }
    }

    fn acked(&self) -> usize {
        self.outcomes
            .values()
            .filter(|outcome| outcome.is_ok())
            .count()
    }
}

fn chaos(seed: u64, faults: Faults, timeout_us: u64) -> Run {
    let most = ProducerOptions {
        max_batch_records: 3,
        timeout_us,
        ..options()
    };
    let mut run = Run::new(2, seed, most);
    run.world.faults = faults;
    for _ in 0..60 {
        let shard = run.world.dice.below(2) as u16;
        run.push(shard);
        for _ in 0..run.world.dice.below(6) {
            run.step();
        }
    }
    run.finish();
    run.check();
    run
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// With time enough every record is acked, once and in order, through broken connections,
    /// repeated and late frames, refusals, unknown outcomes and changes of the leader.
    #[test]
    fn every_record_is_there_once_and_in_order(seed in any::<u64>(), stale in any::<bool>()) {
        let faults = Faults { network: true, leaders: true, stale, forget: false };
        let run = chaos(seed, faults, u64::MAX / 4);
        prop_assert_eq!(run.acked(), run.pushed.len());
    }

    /// With little time, outcomes are unknown at worst; what failed is nowhere, and nothing is
    /// there twice.
    #[test]
    fn an_outcome_is_never_more_than_is_known(seed in any::<u64>(), stale in any::<bool>()) {
        let faults = Faults { network: true, leaders: true, stale, forget: false };
        chaos(seed, faults, 300_000);
    }

    /// A node that has forgotten the producer makes outcomes unknown, never records double.
    #[test]
    fn a_forgotten_producer_doubles_nothing(seed in any::<u64>()) {
        let faults = Faults { network: true, leaders: true, stale: false, forget: true };
        chaos(seed, faults, u64::MAX / 4);
    }
}

/// A producer that only idled until its log forgot it goes on under a new epoch.
#[test]
fn an_idle_producer_goes_on_after_it_was_forgotten() {
    let mut run = Run::new(1, 1, options());
    (0..3).for_each(|_| run.push(0));
    run.finish();
    run.world.logs[0].forget_all();
    (0..3).for_each(|_| run.push(0));
    run.finish();
    run.check();
    assert_eq!(run.acked(), 6);
}

#[test]
fn a_batch_waits_for_its_linger_time_and_then_goes_whole() {
    let mut run = Run::new(1, 1, options());
    let start = run.world.now;
    (0..10).for_each(|_| run.push(0));
    while run.world.step(&mut run.session) {}
    assert_eq!(run.world.logs[0].batches.len(), 0);
    assert_eq!(run.session.poll_timeout(), Some(start.plus_us(1000)));
    run.finish();
    assert_eq!(run.world.logs[0].batches.len(), 1);
    run.check();
}

#[test]
fn a_full_batch_goes_at_once_and_flush_sends_the_rest() {
    let few = ProducerOptions {
        max_batch_records: 4,
        linger_us: 1 << 40,
        ..options()
    };
    let mut run = Run::new(1, 1, few);
    (0..6).for_each(|_| run.push(0));
    while run.world.step(&mut run.session) {}
    run.settle();
    assert_eq!(run.acked(), 4);
    let flush = run.session.flush(run.world.now);
    assert!(!run.session.is_flushed(flush));
    run.push(0);
    run.until(|run| run.session.is_flushed(flush));
    assert_eq!(run.acked(), 6);
    run.session.flush(run.world.now);
    run.finish();
    run.check();
}

/// Never more than five batches of one shard and eight of all are unanswered.
#[test]
fn the_window_holds() {
    let one = ProducerOptions {
        max_batch_records: 1,
        ..options()
    };
    let mut run = Run::new(3, 1, one);
    (0..10).for_each(|_| run.push(0));
    run.until(|run| run.session.under_way().0 >= 5);
    assert_eq!(run.session.under_way().0, 5);
    for shard in [1, 2] {
        (0..10).for_each(|_| run.push(shard));
    }
    for _ in 0..1000 {
        assert!(run.session.under_way().0 <= 8);
        let lanes = run.session.lanes.iter();
        assert!(lanes.map(|lane| lane.under_way().0).all(|count| count <= 5));
        run.step();
        if run.outcomes.len() == 30 {
            break;
        }
    }
    run.finish();
    run.check();
}

#[test]
fn records_go_where_their_key_or_their_turn_says() {
    let mut run = Run::new(3, 1, options());
    let send = |run: &mut Run, record: NewRecord| {
        let id = run.pushed.len() as u64;
        run.pushed.push(ShardId(0));
        run.session.push(run.world.now, &record, id).unwrap();
    };
    for _ in 0..2 {
        send(&mut run, NewRecord::new("a").key("some key"));
        run.finish();
    }
    let here = usize::from(shard_of_key(b"some key", 3).0);
    assert_eq!(here, crc32fast::hash(b"some key") as usize % 3);
    assert_eq!(run.world.logs[here].values().len(), 2);
    for _ in 0..6 {
        send(&mut run, NewRecord::new("b"));
        run.finish();
    }
    let ends: Vec<u64> = run.world.logs.iter().map(|log| log.end).collect();
    assert_eq!(ends.iter().sum::<u64>(), 8);
    assert!(
        (0..3).all(|shard| ends[shard] == 2 + 2 * u64::from(shard == here)),
        "{ends:?}"
    );
}

/// Each shard is asked for on the port of its core, and nowhere else.
#[test]
fn batches_go_to_the_core_that_owns_the_shard() {
    let mut run = Run::new(3, 1, options());
    run.world.leaders = vec![1, 1, 1];
    run.world.cores = 2;
    run.world.links_break(&mut run.session);
    for shard in 0..3 {
        run.push(shard);
    }
    run.finish();
    run.check();
    assert_eq!(run.acked(), 3);
    assert_eq!(run.world.dialed.get("host:201"), Some(&1));
    assert_eq!(run.world.handoffs, 0);
    // What a node said of its cores goes with any connection to it; it is asked again before it is
    // sent anything.
    for core in [1, 0, 1] {
        run.world.core_breaks(&mut run.session, 1, core);
        for shard in 0..3 {
            run.push(shard);
        }
        run.finish();
    }
    run.check();
    assert_eq!((run.acked(), run.world.handoffs), (12, 0));
}

/// Leaders move and connections break: every request goes to the core that owns its shard.
#[test]
fn no_request_is_handed_from_core_to_core() {
    for seed in 0..20 {
        let mut run = Run::new(4, seed, options());
        run.world.cores = 3;
        run.world.links_break(&mut run.session);
        run.world.faults = Faults {
            network: true,
            leaders: true,
            ..Faults::default()
        };
        for number in 0..40 {
            run.push(number % 4);
        }
        run.finish();
        run.check();
        assert_eq!(run.world.handoffs, 0, "seed {seed}");
    }
}

/// A node that hangs is found out and left within seconds, long before the batch is out of time.
#[test]
fn a_hung_node_is_left() {
    let mut run = Run::new(1, 1, options());
    run.push(0);
    run.finish();
    let start = run.world.now;
    run.world.hung = vec![0];
    run.push(0);
    run.until(|run| run.world.now > start.plus_us(3_000_000));
    (run.world.leaders, run.world.epoch) = (vec![1], 2);
    run.finish();
    run.check();
    assert_eq!(run.acked(), 2);
    // As soon as another node says that it leads: not after the time of a probe.
    let took_us = run.world.now.since_us(start);
    assert!(took_us < 4_000_000, "{took_us} us");
}

/// A leader that hangs while nobody else leads is waited for until its probe is over, and is found
/// again.
#[test]
fn a_hung_leader_that_nobody_replaces_is_asked_again() {
    let mut run = Run::new(1, 1, options());
    run.push(0);
    run.finish();
    let start = run.world.now;
    run.world.hung = vec![0];
    run.push(0);
    run.until(|run| run.world.now > start.plus_us(6_500_000));
    assert_eq!(run.acked(), 1);
    assert_eq!(run.world.dialed["host:100"], 1, "it is still waited for");
    run.until(|run| run.world.now > start.plus_us(9_000_000));
    run.world.hung.clear();
    run.finish();
    run.check();
    assert_eq!(run.acked(), 2);
}

/// What no node took has failed; what may be there is unknown.
#[test]
fn at_the_end_of_its_time_a_record_has_failed_or_is_unknown() {
    let mut run = Run::new(1, 1, options());
    run.world.hung = vec![0, 1, 2];
    run.push(0);
    run.until(|run| run.session.under_way().0 == 1);
    run.finish();
    assert_eq!(run.outcomes[&0], Err(Failure::Unknown));
    let start = run.world.now;
    run.push(0);
    run.until(|run| run.outcomes.len() == 2);
    assert!(run.world.now.since_us(start) >= options().timeout_us);
    let failed = run.outcomes[&1].clone();
    assert!(failed.is_err(), "{failed:?}");
    run.check();
}

/// With `stop_at_failure` nothing stands behind what failed.
#[test]
fn nothing_follows_a_failure_if_told_so() {
    let stop = ProducerOptions {
        max_batch_records: 1,
        stop_at_failure: true,
        ..options()
    };
    let mut run = Run::new(1, 1, stop);
    run.world.refuse_next = Some(Code::TooLarge);
    (0..20).for_each(|_| run.push(0));
    run.finish();
    run.check();
    let refused = Failure::Refused {
        code: Some(Code::TooLarge),
        details: [0, 0],
    };
    assert_eq!(run.outcomes[&0], Err(refused));
    assert!(
        (1..20).all(|id| run.outcomes[&id] == Err(Failure::Stopped)),
        "{:?}",
        run.outcomes
    );
    assert_eq!(run.world.logs[0].end, 0);
}

/// Without it the others go on, under names that follow.
#[test]
fn others_go_on_after_a_failure() {
    let one = ProducerOptions {
        max_batch_records: 1,
        ..options()
    };
    let mut run = Run::new(1, 1, one);
    run.world.refuse_next = Some(Code::TooLarge);
    (0..20).for_each(|_| run.push(0));
    run.finish();
    run.check();
    assert_eq!(run.acked(), 19);
}

#[test]
fn what_fits_nowhere_is_refused_at_once() {
    let mut run = Run::new(2, 1, options());
    let now = run.world.now;
    let mut push = |record: NewRecord| run.session.push(now, &record, 0);
    let large = push(NewRecord::new(vec![0; 1 << 20]));
    assert!(matches!(large, Err(Failure::TooLarge { .. })), "{large:?}");
    let long = push(NewRecord::new("v").key(vec![0; 1 << 16]));
    assert_eq!(long, Err(Failure::FieldTooLong));
    let (shard, shards) = (2, 2);
    let nowhere = push(NewRecord::new("v").shard(2));
    assert_eq!(nowhere, Err(Failure::NoSuchShard { shard, shards }));
    for failure in [large, long, nowhere] {
        let text = failure.unwrap_err().to_string();
        assert!(text.contains("mend: "), "{text}");
    }
}
