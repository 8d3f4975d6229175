//! Random runs of three replicas: whatever happens, what was committed stays, and all end the same.
//!
//! The simulator of `tests/` does this with disks, delays and payloads; here it costs milliseconds
//! and knows nothing but the protocol.

use super::test_kit::{Net, Node, TestLog, credit};
use super::{LogView, Promise, Role};
use crate::types::{Epoch, NodeId};
use crate::wire::block::BlockHeader;
use crate::wire::body::ReplicaMemory;

struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What was ever known to be committed must be in every log that claims to have committed as far.
fn check_committed(net: &Net, committed: &mut Vec<BlockHeader>, seed: u64) {
    for (id, it) in &net.nodes {
        if !it.alive || it.replica.role() == Role::Starting {
            continue;
        }
        let hwm = it.replica.high_watermark().0 as usize;
        assert!(
            hwm as u64 <= it.log.durable_end().0,
            "seed {seed}: node {id}"
        );
        for (at, header) in it.log.blocks.iter().take(hwm).enumerate() {
            match committed.get(at) {
                Some(known) => assert_eq!(known, header, "seed {seed}: node {id}, block {at}"),
                None => committed.push(*header),
            }
        }
    }
}

fn step(net: &mut Net, draw: &mut Draw) {
    let node = 1 + draw.below(3) as u32;
    match draw.below(29) {
        0..=7 => append_everywhere(net, draw),
        8..=13 => net.advance(10_000 + draw.below(400_000)),
        14 => net.disconnect(node, None),
        15 => {
            if net.node(node).alive {
                net.kill(node);
            }
        }
        16 | 17 => {
            if !net.node(node).alive {
                net.restart(node);
            }
        }
        18 => net.node(node).hold_durable ^= true,
        19 => {
            let end = net.node(node).log.log_end().0;
            let durable = net.node(node).log.durable_end().0;
            if net.node(node).alive && end > durable {
                net.make_durable(node, durable + 1 + draw.below(end - durable));
            }
        }
        20 => net.node(node).damage_next = true,
        21 => {
            let to = 1 + draw.below(3) as u32;
            if !net.cut.remove(&(NodeId(node), NodeId(to))) {
                net.cut.insert((NodeId(node), NodeId(to)));
            }
        }
        22 => net.deliver_some(draw.below(6) as usize),
        23 => net.restart_with_leader(node, 1 + draw.below(3) as u32),
        24 => place(net, node),
        25 | 26 => {
            // A leader goes on alone for a while, then another one is placed.
            let old = net.placed;
            for other in (1..=3).filter(|other| *other != old) {
                net.cut.insert((NodeId(old), NodeId(other)));
            }
            append_everywhere(net, draw);
            net.run();
            place(net, node);
            net.cut.clear();
        }
        27 => wipe(net, node),
        _ => net.hold_wire ^= true,
    }
}

fn append_everywhere(net: &mut Net, draw: &mut Draw) {
    for node in 1..=3 {
        if net.node(node).alive && net.node(node).replica.role() == Role::Leader {
            let count = 1 + draw.below(5);
            let blocks: Vec<u32> = (0..count).map(|_| draw.below(9) as u32).collect();
            net.append(node, &blocks);
        }
    }
}

/// Replaces a disk, unless another one is not whole again yet.
fn wipe(net: &mut Net, node: u32) {
    let whole = |it: &Node| it.promise.memory == ReplicaMemory::Whole;
    if net.nodes.values().all(whole) {
        net.kill(node);
        let it = net.node(node);
        it.log = TestLog::default();
        it.promise = Promise {
            epoch: Epoch(0),
            leader: None,
            memory: ReplicaMemory::Blank,
        };
        net.restart(node);
    }
}

/// All nodes are configured anew.
fn place(net: &mut Net, leader: u32) {
    net.placed = leader;
    for node in 1..=3 {
        net.restart_with_leader(node, leader);
    }
}

fn soak(seed: u64) {
    let mut draw = Draw(seed);
    let mut net = Net::new(3);
    for node in net.nodes.values_mut() {
        node.config.initial_credit = credit(1 + draw.below(30), 4096 * (1 + draw.below(8)));
        node.config.run_bytes = 4096 * (1 + draw.below(4));
    }
    net.rebuild();
    net.start_all();
    let mut committed = Vec::new();
    for _ in 0..150 {
        step(&mut net, &mut draw);
        check_committed(&net, &mut committed, seed);
    }
    net.cut.clear();
    net.hold_wire = false;
    for node in 1..=3 {
        net.node(node).hold_durable = false;
        net.node(node).damage_next = false;
    }
    for node in 1..=3 {
        if !net.node(node).alive || net.node(node).config.leader.0 != net.placed {
            net.restart_with_leader(node, net.placed);
        }
    }
    net.advance(15_000_000);
    for node in 1..=3 {
        let end = net.node(node).log.log_end().0;
        net.make_durable(node, end);
    }
    net.advance(2_000_000);
    check_committed(&net, &mut committed, seed);
    let leader = net.placed;
    assert_eq!(net.node(leader).replica.role(), Role::Leader, "seed {seed}");
    net.append(leader, &[1]);
    net.assert_converged();
    check_committed(&net, &mut committed, seed);
}

/// D-S8 S-121 S-127
#[test]
fn whatever_happens_all_end_the_same() {
    for seed in 0..200 {
        soak(seed);
    }
}
