//! A log of a mesh: its leader needs nobody to lead it, and nobody ever cuts it.

use super::test_kit::{Net, TestLog};
use super::{LinkStatus, Role};
use crate::types::{BlockNo, Epoch, NodeId};
use crate::wire::body::ReplicaMemory;
use crate::wire::code::Code;

fn mesh(members: u32) -> Net {
    let mut net = Net::new(members);
    for it in net.nodes.values_mut() {
        it.config.mesh = true;
    }
    net.rebuild();
    net
}

fn founded(members: u32) -> Net {
    let mut net = mesh(members);
    net.start_all();
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    net
}

/// The node comes back with an empty disk.
fn lose_disk(net: &mut Net, node: u32) {
    let it = net.node(node);
    it.log = TestLog::default();
    it.promise.epoch = Epoch(0);
    it.promise.memory = ReplicaMemory::Blank;
}

/// S-1, S-138: with no follower reachable the leader opens after a restart and takes appends.
#[test]
fn a_leader_opens_alone() {
    for members in [2, 3] {
        let mut net = founded(members);
        net.append(1, &[1, 2]);
        net.run();
        for follower in 2..=members {
            net.kill(follower);
        }
        net.append(1, &[3]);
        net.restart(1);
        net.advance(3_000_000);
        assert_eq!(net.node(1).replica.role(), Role::Leader);
        net.append(1, &[4]);
        let lists = net.node(1).log.list();
        assert_eq!(lists, [1, 1, 1, 1, 2, 2], "{members} members");
        assert!(net.node(1).replica.high_watermark() < BlockNo(6));
        for follower in 2..=members {
            net.restart(follower);
        }
        net.advance(3_000_000);
        net.assert_converged();
        assert!(net.nodes.values().all(|it| it.fenced.is_empty()));
    }
}

/// Whether a blank disk is a new one is known only if all answer, or if the operator says so.
#[test]
fn a_mesh_is_founded_by_all_or_by_the_operator() {
    let mut net = mesh(3);
    net.start(1, 0);
    net.start(2, 0);
    net.advance(5_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Opening);
    let told = |text: &String| text.contains("1 of 2 other members") && text.contains("new-member");
    assert!(net.node(1).notices.iter().any(told));
    net.start(3, 0);
    net.advance(2_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    net.assert_converged();

    let mut net = mesh(3);
    net.node(1).config.new_member = true;
    net.rebuild();
    net.start(1, 0);
    net.advance(2_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
}

/// A leader that lost its disk copies back what any follower holds, and waits until all answered.
#[test]
fn a_lost_disk_is_copied_back_from_whoever_holds_most() {
    let mut net = founded(3);
    net.append(1, &[1, 1]);
    net.run();
    net.kill(3);
    net.append(1, &[1, 1]);
    net.run();
    let held = net.node(2).log.blocks.clone();
    net.kill(1);
    lose_disk(&mut net, 1);
    net.restart(1);
    net.advance(5_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Opening, "node 3 is away");
    net.restart(3);
    net.advance(3_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    assert_eq!(net.node(1).log.blocks[..held.len()], held[..]);
    assert_eq!(net.node(1).promise.memory, ReplicaMemory::Whole);
    net.append(1, &[1]);
    net.assert_converged();
}

/// Epochs that a leader opened alone before it lost its disk are never used again.
#[test]
fn an_epoch_that_nobody_heard_of_is_not_used_twice() {
    let mut net = founded(2);
    net.kill(2);
    for _ in 0..3 {
        net.restart(1);
        net.advance(2_000_000);
        net.append(1, &[1]);
    }
    let alone = net.node(1).replica.epoch();
    assert_eq!(alone, Epoch(4));
    net.kill(1);
    lose_disk(&mut net, 1);
    net.restart(1);
    net.restart(2);
    net.advance(3_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    assert!(net.node(1).replica.epoch() > alone);
    net.assert_converged();
}

/// A follower that lost its disk is brought up by its leader and counts again, with nobody else
/// there to confirm that leader.
#[test]
fn a_blank_follower_is_brought_up_by_the_leader_alone() {
    let mut net = founded(2);
    net.append(1, &[1, 1]);
    net.run();
    net.kill(2);
    lose_disk(&mut net, 2);
    net.restart(2);
    net.advance(3_000_000);
    assert_eq!(net.node(2).promise.memory, ReplicaMemory::Whole);
    net.append(1, &[1]);
    net.assert_converged();
}

/// Blocks of the leader's past that it no longer has are a conflict: nothing is deleted on either
/// side, the link says `diverged`, and the leader and its other followers go on.
#[test]
fn a_conflict_is_diverged_and_deletes_nothing() {
    let mut net = mesh(3);
    net.holds(1, &[1, 1], 1);
    net.holds(2, &[1, 1, 1], 1);
    net.holds(3, &[1, 1], 1);
    net.start(1, 0);
    net.start(3, 0);
    net.advance(3_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    net.append(1, &[1]);
    net.start(2, 0);
    net.advance(3_000_000);
    assert_eq!(net.node(1).log.list(), [1, 1, 2, 2]);
    assert_eq!(net.node(3).log.list(), [1, 1, 2, 2]);
    assert_eq!(net.node(2).log.list(), [1, 1, 1], "nothing was cut");
    assert!(net.nacks_of(2).contains(&Code::Diverged));
    let link = net.link(2);
    assert_eq!(link.status, LinkStatus::Paused);
    assert!(link.cause.contains("diverged"), "{}", link.cause);
    assert_eq!(net.link(3).status, LinkStatus::Replicating);
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(4), "2 of 3");
}

/// A conflict met while copying back does not keep the leader from leading.
#[test]
fn a_conflict_at_the_opening_is_diverged_too() {
    let mut net = mesh(2);
    net.holds(1, &[1, 2], 2);
    net.holds(2, &[1, 1, 3], 3);
    net.start(1, 0);
    net.start(2, 0);
    net.advance(3_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    assert_eq!(net.node(1).log.list(), [1, 2, 4]);
    assert_eq!(net.node(2).log.list(), [1, 1, 3]);
    let told = |text: &String| text.contains("holds other blocks of this node's log");
    assert!(net.node(1).notices.iter().any(told));
    net.advance(3_000_000);
    assert!(
        net.link(2).cause.contains("diverged"),
        "{}",
        net.link(2).cause
    );
}

/// A crash of the leader never leaves a follower ahead of it: what is sent is durable here.
#[test]
fn only_what_is_durable_is_sent() {
    let mut net = founded(2);
    net.node(1).hold_durable = true;
    net.append(1, &[1, 1]);
    net.advance(1_000_000);
    assert_eq!(net.node(2).log.list(), [1]);
    net.make_durable(1, 2);
    net.run();
    assert_eq!(net.node(2).log.list(), [1, 1]);
    net.restart(1);
    net.node(1).hold_durable = false;
    net.advance(3_000_000);
    assert_eq!(net.node(1).log.list(), [1, 1, 2]);
    net.assert_converged();
}

/// S-18: a quorum counts in a mesh as in a set.
#[test]
fn a_quorum_is_a_majority_of_the_mesh() {
    let mut net = founded(3);
    net.kill(3);
    net.append(1, &[1]);
    net.run();
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(2));
    net.kill(2);
    net.append(1, &[1]);
    net.run();
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(2));
    assert_eq!(net.node(1).replica.role(), Role::Leader);
}

/// A node tells clients of an epoch that is open, and of none that was not heard of lately.
#[test]
fn an_epoch_counts_as_open_while_its_leader_is_heard() {
    let mut net = mesh(2);
    net.start(2, 0);
    let now = net.now;
    assert_eq!(net.node(2).replica.epoch_known_open(now), None);
    net.start(1, 0);
    assert_eq!(net.node(1).replica.epoch_known_open(now), None);
    net.advance(1_000_000);
    let now = net.now;
    assert_eq!(net.node(1).replica.epoch_known_open(now), Some(Epoch(1)));
    assert_eq!(net.node(2).replica.epoch_known_open(now), Some(Epoch(1)));
    net.kill(1);
    net.advance(6_000_000);
    let now = net.now;
    assert_eq!(net.node(2).replica.epoch_known_open(now), None);
    assert_eq!(net.node(2).replica.leader(), Some(NodeId(1)));
}
