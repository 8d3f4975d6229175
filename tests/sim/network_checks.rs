//! Tests of the simulated network itself: what it promises is what the runs build on.
//!
//! Order within a connection, a cut that stalls and a heal that lets go, a reset that both ends
//! hear of, a socket that fills, a process that dies and a machine that does. The framing is
//! tested here too: no bit of a header or typed body may change unseen. Read `network.rs` beside
//! it.

use crate::sim::framing;
use crate::sim::network::{NetEvent, NetOptions, Network, Outgoing};
use crate::sim::node::LOG;
use crate::sim::options::Options;
use crate::sim::rng::{Chance, Rng};
use millrace::types::ConnectionId;
use millrace::wire::body::{Body, Channel, Resume};

struct Bench {
    net: Network,
    now_us: u64,
}

impl Bench {
    fn new(change: impl FnOnce(&mut NetOptions)) -> Bench {
        let mut options = Options::quiet(3).network;
        change(&mut options);
        let mut net = Network::new(3, options, Rng::new(9));
        (0..3).for_each(|node| net.started(0, node));
        Bench { net, now_us: 0 }
    }

    /// All that happens in the next `us`.
    fn pass(&mut self, us: u64) -> Vec<NetEvent> {
        let until = self.now_us + us;
        let mut events = Vec::new();
        while let Some(at) = self.net.next_at().filter(|at| *at <= until) {
            self.now_us = at;
            events.extend(self.net.pop(at));
        }
        self.now_us = until;
        events
    }

    /// Dials from node 0 to node 1: the ids of both ends.
    fn connect(&mut self) -> [ConnectionId; 2] {
        self.net.dial(self.now_us, 0, 1, Channel::Data);
        let mut ids = [ConnectionId(0); 2];
        for event in self.pass(10_000) {
            if let NetEvent::Up {
                node, connection, ..
            } = event
            {
                ids[node] = connection;
            }
        }
        assert!(ids.iter().all(|id| id.0 > 0), "both ends are up: {ids:?}");
        ids
    }

    fn send(&mut self, connection: ConnectionId, bytes: Vec<u8>) {
        let outgoing = Outgoing {
            head_len: bytes.len(),
            parts_len: bytes.len(),
            bytes,
            holds: Vec::new(),
            node: 0,
            run: 1,
        };
        self.net.send(self.now_us, connection, outgoing);
    }
}

fn frames(events: &[NetEvent]) -> Vec<u8> {
    let frames = events.iter().filter_map(|event| match event {
        NetEvent::Frame { bytes, .. } => Some(bytes[0]),
        _ => None,
    });
    frames.collect()
}

fn downs(events: &[NetEvent]) -> Vec<usize> {
    let downs = events.iter().filter_map(|event| match event {
        NetEvent::Down { node, .. } => Some(*node),
        _ => None,
    });
    downs.collect()
}

fn sents(events: &[NetEvent]) -> usize {
    let sent = events.iter();
    sent.filter(|event| matches!(event, NetEvent::Sent { .. }))
        .count()
}

#[test]
fn a_connection_keeps_its_order_whatever_the_delays() {
    let mut bench = Bench::new(|options| options.spike = Chance::percent(50));
    let [one, _] = bench.connect();
    for number in 0..50 {
        bench.send(one, vec![number; 100]);
        bench.pass(10);
    }
    let arrived = frames(&bench.pass(10_000_000));
    assert_eq!(arrived, (0..50).collect::<Vec<u8>>());
    assert!(bench.net.counts.delays > 0);
}

#[test]
fn a_cut_stalls_one_way_and_a_heal_lets_go() {
    let mut bench = Bench::new(|_| {});
    let [one, two] = bench.connect();
    bench.net.set_blocked(bench.now_us, 0, 1, true);
    bench.send(one, vec![1; 10]);
    bench.send(two, vec![2; 10]);
    assert_eq!(frames(&bench.pass(1_000_000)), [2]);
    bench.net.heal(bench.now_us);
    assert_eq!(frames(&bench.pass(10_000)), [1]);
}

#[test]
fn a_reset_is_told_to_both_ends_and_drops_what_was_sent() {
    let mut bench = Bench::new(|options| options.latency_us = (5_000, 5_000));
    let [one, _] = bench.connect();
    bench.pass(10_000);
    bench.send(one, vec![1; 10]);
    assert!(bench.net.reset_any(bench.now_us));
    bench.send(one, vec![2; 10]);
    let events = bench.pass(1_000_000);
    let mut told = downs(&events);
    told.sort_unstable();
    assert_eq!(told, [0, 1]);
    assert!(frames(&events).is_empty());
    assert_eq!(sents(&events), 2, "buffers come back all the same");
    assert!(bench.net.end(one).is_none());
}

#[test]
fn a_full_socket_keeps_the_sender_waiting() {
    let mut bench = Bench::new(|options| options.socket_bytes = 1000);
    let [one, _] = bench.connect();
    bench.net.set_paused(bench.now_us, 1, true);
    (0..3).for_each(|number| bench.send(one, vec![number; 600]));
    assert_eq!(sents(&bench.pass(1_000_000)), 1);
    bench.net.set_paused(bench.now_us, 1, false);
    let events = bench.pass(1_000_000);
    assert_eq!((sents(&events), frames(&events).len()), (2, 3));
}

#[test]
fn a_dead_process_says_goodbye_and_a_dead_machine_does_not() {
    let mut bench = Bench::new(|_| {});
    let [one, two] = bench.connect();
    bench.send(two, vec![7; 10]);
    bench.net.stopped(bench.now_us, 1, false);
    let events = bench.pass(1_000_000);
    assert_eq!((frames(&events), downs(&events)), (vec![7], vec![0]));
    assert!(bench.net.end(one).is_none());

    bench.net.started(bench.now_us, 1);
    let [one, _] = bench.connect();
    bench.net.stopped(bench.now_us, 1, true);
    bench.send(one, vec![8; 10]);
    assert!(downs(&bench.pass(10_000_000)).is_empty());
    bench.net.started(bench.now_us, 1);
    let events = bench.pass(1_000_000);
    assert_eq!((frames(&events), downs(&events)), (vec![], vec![0]));
}

#[test]
fn a_dial_without_an_answer_fails() {
    let failed = |events: &[NetEvent]| {
        let failed = events
            .iter()
            .filter(|event| matches!(event, NetEvent::DialFailed { node: 0, peer: 1 }));
        failed.count()
    };
    let mut bench = Bench::new(|_| {});
    bench.net.set_blocked(0, 1, 0, true);
    bench.net.dial(0, 0, 1, Channel::Data);
    assert_eq!(failed(&bench.pass(5_000_000)), 1);
    bench.net.heal(bench.now_us);
    bench.net.stopped(bench.now_us, 1, true);
    bench.net.dial(bench.now_us, 0, 1, Channel::Data);
    assert_eq!(failed(&bench.pass(5_000_000)), 1);
}

#[test]
fn no_bit_of_a_header_or_typed_body_changes_unseen() {
    let body = Body::from(Resume {
        next: millrace::types::BlockNo(77),
    });
    let bytes = framing::encode(&body, LOG, &[]);
    assert_eq!(framing::decode(&bytes, LOG).expect("sound").body, body);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            assert!(framing::decode(&changed, LOG).is_none(), "{at} {bit}");
        }
    }
}
