//! What a majority is, seen from the leader and from those who wait for it.

use super::test_kit::Net;
use super::{Pending, Role};
use crate::types::{BlockNo, ConnectionId, Level, NodeId, Time};
use crate::wire::code::Code;

/// An append starts on its way to every follower by itself, at once, and moves the published end.
///
/// S-21 S-27 S-31 S-76 S-181
#[test]
fn an_append_wakes_every_link() {
    let mut net = Net::founded(3);
    net.hold_wire = true;
    net.append(1, &[1]);
    net.run();
    for node in 2..=3 {
        assert_eq!(net.runs_to(node).last(), Some(&(1, 1)));
        assert_eq!(net.link(node).lag_records, 1);
        assert_eq!(net.link(node).sent, BlockNo(2));
    }
}

/// What went over the network is told for each link, as it travels: without padding.
///
/// S-160
#[test]
fn bytes_sent_are_counted_for_each_link() {
    let mut net = Net::founded(3);
    net.run();
    let before = [2, 3].map(|node| net.link(node).sent_bytes);
    net.append(1, &[1]);
    net.run();
    let sent = [2, 3].map(|node| net.link(node).sent_bytes);
    for (before, sent) in before.into_iter().zip(sent) {
        assert!((1..4096).contains(&(sent - before)), "{before} {sent}");
    }
    net.kill(3);
    net.append(1, &[1]);
    net.run();
    assert_eq!(
        net.link(3).sent_bytes,
        sent[1],
        "nothing goes to who is not there"
    );
    assert!(net.link(2).sent_bytes > sent[0]);
}

/// A set of three answers `quorum` with two durable copies, `leader` with its own, and `Unknown` if
/// the time is up before; the batch may be committed all the same later.
///
/// S-14 S-16 S-17
#[test]
fn a_quorum_is_two_durable_copies() {
    let mut net = Net::founded(3);
    for node in 1..=3 {
        net.node(node).hold_durable = true;
    }
    let mut pending = Pending::new();
    let client = ConnectionId(50);
    net.append(1, &[1]);
    net.run();
    for (token, level, until) in [
        (1, Level::Leader, 9_000_000),
        (2, Level::Quorum, 9_000_000),
        (3, Level::Quorum, 2_000_000),
    ] {
        pending.accept(token, client, BlockNo(1), level, Time(until));
    }
    let answers = |net: &Net, pending: &mut Pending<u32>| {
        let leader = &net.nodes[&NodeId(1)];
        pending.durable(leader.log.durable_end);
        pending.committed(leader.replica.high_watermark());
        core::iter::from_fn(|| pending.poll()).collect::<Vec<_>>()
    };
    assert_eq!(answers(&net, &mut pending), []);
    net.make_durable(1, 2);
    net.run();
    assert_eq!(answers(&net, &mut pending), [(1, Ok(()))]);
    pending.on_time(Time(2_000_000));
    assert_eq!(answers(&net, &mut pending), [(3, Err(Code::Unknown))]);
    net.make_durable(3, 2);
    net.run();
    assert_eq!(answers(&net, &mut pending), [(2, Ok(()))]);
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(2));
}

/// Blocks of earlier epochs are committed by a block of the own one only (Raft, figure 8).
#[test]
fn older_epochs_commit_with_the_own_first_block() {
    let mut net = Net::new(3);
    for node in 1..=3 {
        net.holds(node, &[1, 1], 1);
        net.node(node).hold_durable = true;
    }
    net.start_all();
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    assert_eq!(
        net.node(1).replica.high_watermark(),
        BlockNo(0),
        "both blocks are everywhere"
    );
    net.make_durable(2, 3);
    net.run();
    assert_eq!(
        net.node(1).replica.high_watermark(),
        BlockNo(0),
        "the leader's own disk counts"
    );
    net.make_durable(1, 3);
    net.run();
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(3));
}

/// The leader never commits past its own durable end, even if all followers hold more.
///
///
#[test]
fn the_leader_clamps_to_its_own_disk() {
    let mut net = Net::founded(3);
    net.node(1).hold_durable = true;
    net.append(1, &[1, 1]);
    net.run();
    assert_eq!(net.node(2).log.durable_end, BlockNo(3));
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(1));
    net.make_durable(1, 2);
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(2));
}
