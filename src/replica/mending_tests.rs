//! A leader that has read its own copy from end to end asks whether the others' are the same.

use super::test_kit::Net;
use super::{LinkStatus, Role};
use crate::types::{BlockNo, Epoch, NodeId};

/// Three nodes, idle, five committed blocks of one epoch each; the second node's block `other` is
/// of the same epoch and has another CRC.
fn idle(other: Option<u64>) -> Net {
    let mut net = Net::founded(3);
    net.append(1, &[1, 2, 3, 4]);
    net.run();
    net.advance(200_000);
    let end = BlockNo(5);
    for node in 1..=3 {
        let it = net.node(node);
        assert_eq!(it.replica.high_watermark(), end, "node {node}");
        let whole = it.log.clone();
        for block in other
            .into_iter()
            .filter(|_| node == 2)
            .flat_map(|from| from..5)
        {
            let header = whole.blocks[block as usize];
            it.log.cut(BlockNo(block));
            let salt = u32::from(Some(block) == other);
            let (epoch, records) = (header.epoch, header.record_count);
            let new = it.log.seal(epoch, records, salt, header.last_tick);
            assert_eq!(new.epoch, Epoch(1));
            assert_ne!(new.header_crc, header.header_crc);
        }
        it.log.durable_end = end;
    }
    net.advance(200_000);
    for node in [2, 3] {
        assert_same(&net, node);
    }
    net
}

fn assert_same(net: &Net, node: u32) {
    let link = net.link(node);
    let shown = (
        link.status,
        link.diverged_at,
        link.matched,
        link.lag_records,
    );
    let all = net.nodes[&NodeId(1)].log.blocks.len() as u64;
    assert_eq!(
        shown,
        (LinkStatus::Replicating, None, BlockNo(all), 0),
        "{link:?}"
    );
}

fn compare(net: &mut Net, end: u64) {
    let now = net.now;
    let it = net.node(1);
    it.replica.compare(now, BlockNo(end), &it.log);
    net.run();
}

fn told(net: &mut Net) -> usize {
    let notices = net.node(1).notices.iter();
    let diverged = "node 2 holds other committed blocks";
    notices.filter(|text| text.contains(diverged)).count()
}

/// nothing is sent that would show it, so the leader has to ask. The link stops, once and for
/// all; nothing is deleted, and the other link goes on.
#[test]
fn an_idle_follower_with_other_bytes_is_named() {
    let mut net = idle(Some(4));
    assert_eq!(told(&mut net), 0, "idle links show nothing");
    let theirs = net.node(2).log.blocks.clone();
    compare(&mut net, 5);
    let link = net.link(2);
    assert_eq!(
        (link.status, link.diverged_at),
        (LinkStatus::Paused, Some(BlockNo(4))),
        "{link:?}"
    );
    assert_eq!(told(&mut net), 1);
    assert_same(&net, 3);
    net.append(1, &[7]);
    net.run();
    net.advance(200_000);
    assert_same(&net, 3);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(6));
    assert_eq!(net.node(2).log.blocks, theirs);
    assert_eq!(
        (net.link(2).status, told(&mut net)),
        (LinkStatus::Paused, 1)
    );
}

/// The place that is compared lies below the end of the log: what follows was not read yet.
#[test]
fn blocks_are_compared_where_they_are_asked_for() {
    let mut net = idle(Some(3));
    compare(&mut net, 3);
    assert_same(&net, 2);
    compare(&mut net, 4);
    assert_eq!(net.link(2).diverged_at, Some(BlockNo(3)));
    assert_eq!(told(&mut net), 1);
}

/// Followers with the same bytes are asked, answer, and go on.
#[test]
fn followers_with_the_same_bytes_go_on() {
    let mut net = idle(None);
    for end in [5, 3, 5] {
        let before = net.sent.len();
        compare(&mut net, end);
        let asked = net.sent[before..]
            .iter()
            .filter(|frame| frame.from == NodeId(1));
        assert_eq!(asked.count(), 2, "both followers are asked");
        assert_same(&net, 2);
        assert_same(&net, 3);
    }
    net.append(1, &[7]);
    net.run();
    net.assert_converged();
    assert_eq!(told(&mut net), 0);
}

/// A follower that was started with damage in its log has no run that waits for the disk: what the
/// repair brings it says at once all the same, for its leader waits for that.
#[test]
fn what_a_repair_brought_is_said_at_once() {
    let mut net = idle(None);
    net.kill(2);
    net.node(2).log.damaged_from = Some(BlockNo(3));
    net.node(2).promise.epoch = Epoch(1);
    net.restart(2);
    net.advance(1_000_000);
    let link = net.link(2);
    assert_eq!(link.status, LinkStatus::Replicating, "{link:?}");
    assert_eq!(link.matched, BlockNo(3), "{link:?}");
    net.node(2).log.damaged_from = None;
    net.sound(2);
    net.run();
    assert_eq!(net.link(2).matched, BlockNo(5));
}
