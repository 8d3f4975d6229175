//! What keeps a link going: the order of steps, reconnects and their books, heartbeats, the pauses
//! that a follower asks for by itself.

use super::LinkStatus;
use super::backoff::Backoff;
use super::test_kit::{Net, credit};
use crate::limits::{
    FIRST_RETRY_MS, INITIAL_CREDIT_BYTES, LINK_QUEUE_BYTES, RETRY_BACKOFF_MS, RPC_TIMEOUT_MS,
};
use crate::types::{BlockNo, NodeId};
use crate::wire::body::{Body, Channel, PauseReason};

const TIMEOUT_US: u64 = RPC_TIMEOUT_MS * 1000;

/// Positions of the frames to and from node 2 that `wanted` picks, in the order of sending.
fn places(net: &Net, wanted: impl Fn(&Body) -> bool) -> Vec<usize> {
    let frames = net.sent.iter().enumerate();
    let found = frames.filter(|(_, frame)| wanted(&frame.body));
    found.map(|(place, _)| place).collect()
}

/// Sent, written, acked: no ack leaves before the follower's disk holds the block.
///
/// S-73
#[test]
fn sent_then_durable_then_acked() {
    let mut net = Net::founded(2);
    net.node(2).hold_durable = true;
    net.append(1, &[1]);
    net.run();
    assert_eq!(net.node(2).log.list(), [1, 1], "it was written");
    let acks = |net: &Net| {
        let is = |body: &Body| matches!(body, Body::ReplicateOk(ok) if ok.durable_end.0 == 2);
        places(net, is)
    };
    assert!(acks(&net).is_empty());
    assert_eq!(net.link(2).matched, BlockNo(1));
    net.make_durable(2, 2);
    net.run();
    let sent = places(
        &net,
        |body| matches!(body, Body::Replicate(run) if run.count > 0 && run.first.0 == 1),
    );
    assert_eq!((sent.len(), acks(&net).len()), (1, 1));
    assert!(sent[0] < acks(&net)[0]);
    assert_eq!(net.link(2).matched, BlockNo(2));
}

/// The first attempt comes soon, each further one after twice the time, up to `retry_backoff_ms`;
/// what led to an ack begins anew.
///
/// S-119
#[test]
fn pauses_between_attempts_double() {
    let mut backoff = Backoff::default();
    let mut pauses = || -> Vec<u64> {
        let longest_us = RETRY_BACKOFF_MS * 1000;
        let six = (0..6).map(|_| backoff.failed(longest_us) / 1000).collect();
        (0..1000).for_each(|_| assert_eq!(backoff.failed(longest_us), longest_us));
        backoff.succeeded();
        six
    };
    assert_eq!(pauses(), [50, 100, 200, 400, 800, 1000]);
    assert_eq!(pauses(), [50, 100, 200, 400, 800, 1000]);
    assert_eq!(Backoff::default().failed(7), 7, "never above the bound");
}

/// Nodes that die in a row cost a short time each.
#[test]
fn a_follower_that_is_back_at_once_is_followed_at_once() {
    let mut net = Net::founded(3);
    for _ in 0..5 {
        for node in [2, 3] {
            net.append(1, &[1]);
            net.run();
            net.restart(node);
            net.advance(2 * FIRST_RETRY_MS * 1000);
            assert_eq!(net.link(node).status, LinkStatus::Replicating);
        }
    }
    net.assert_converged();
}

/// A thousand connections of a link are lost, most with frames under way: after each the books of
/// sender and receiver are the same, and nothing is held that is not there.
///
/// S-122 D-S8
#[test]
fn a_thousand_reconnects_leave_equal_books() {
    let mut net = Net::new(2);
    for it in net.nodes.values_mut() {
        it.config.initial_credit = credit(40, 12 * 4096);
    }
    net.rebuild();
    net.start_all();
    for round in 0..1000_usize {
        net.hold_wire = true;
        net.append(1, &[5, 1, 3]);
        net.deliver_some(round % 11);
        net.disconnect(2, Some(Channel::Data));
        net.hold_wire = false;
        net.advance(2 * FIRST_RETRY_MS * 1000);
        let (sender, link) = (net.link(2).account, net.link(2));
        let receiver = net.node(2).replica.granted();
        assert_eq!((sender.used, sender.limit), (receiver.used, receiver.limit));
        assert_eq!(receiver.held, credit(0, 0), "round {round}");
        let room = (link.credit_records, link.credit_bytes);
        assert_eq!(room, (40, 12 * 4096), "round {round}");
    }
    assert!(net.link(2).connections > 1000);
    net.assert_converged();
}

/// A data connection that died without a word is missed although the control connection lives and
/// nothing is in flight; also while the follower had asked for a pause.
///
/// S-57 S-60
#[test]
fn a_half_open_connection_is_missed() {
    for pause in [false, true] {
        let mut net = Net::founded(2);
        let now = net.now;
        if pause {
            net.node(2).replica.ask_pause(now, PauseReason::Manual);
            net.run();
            assert_eq!(net.link(2).status, LinkStatus::Paused);
        }
        let data = net.data_to(2);
        net.dead.insert(data);
        if pause {
            let it = net.node(2);
            it.replica.ask_resume(now, &it.log);
        }
        net.run();
        net.advance(TIMEOUT_US + 500_000);
        assert_eq!(net.link(2).connections, 2, "pause: {pause}");
        net.append(1, &[1]);
        net.run();
        assert_eq!(net.link(2).status, LinkStatus::Replicating);
        net.assert_converged();
    }
}

/// What was received waits too long for the disk: the follower asks for a pause with that reason,
/// stays connected however long it takes, and goes on by itself.
///
/// S-57 S-58 S-59 S-60
#[test]
fn a_slow_disk_asks_for_a_pause() {
    let mut net = Net::founded(2);
    net.node(2).hold_durable = true;
    net.append(1, &[1, 1]);
    net.run();
    net.advance(TIMEOUT_US / 2 - 100_000);
    assert_eq!(net.link(2).status, LinkStatus::Replicating);
    net.advance(500_000);
    let link = net.link(2);
    assert_eq!(link.status, LinkStatus::Paused);
    assert_eq!(link.cause, "follower: slow_disk");
    let sent = net.runs_to(2).len();
    net.append(1, &[1]);
    net.advance(3 * TIMEOUT_US);
    assert_eq!(net.runs_to(2).len(), sent);
    let link = net.link(2);
    assert_eq!((link.status, link.connections), (LinkStatus::Paused, 1));
    net.node(2).hold_durable = false;
    net.make_durable(2, 3);
    net.run();
    assert_eq!(net.link(2).matched, BlockNo(3), "acks count meanwhile");
    net.advance(TIMEOUT_US / 10);
    assert_eq!(net.link(2).status, LinkStatus::Replicating);
    net.assert_converged();
    let told = |text: &&String| text.contains("slow_disk") || text.contains("to go on");
    assert_eq!(net.node(2).notices.iter().filter(told).count(), 2);
}

/// What a follower waits for may become durable without a write, by a repair: the pause is over
/// then, too.
#[test]
fn a_pause_for_a_slow_disk_ends_without_a_write() {
    let mut net = Net::founded(2);
    net.node(2).hold_durable = true;
    net.append(1, &[1, 1]);
    net.run();
    net.advance(TIMEOUT_US);
    assert_eq!(net.link(2).status, LinkStatus::Paused);
    net.node(2).hold_durable = false;
    net.node(2).log.durable_end = BlockNo(3);
    net.sound(2);
    net.run();
    assert_eq!(
        net.link(2).matched,
        BlockNo(3),
        "what was repaired is acked"
    );
    net.advance(TIMEOUT_US / 5);
    let link = net.link(2);
    let same = (LinkStatus::Replicating, 1);
    assert_eq!((link.status, link.connections), same);
    net.assert_converged();
}

/// A process that is late twice in a row asks for a pause; late once (a step of its clock) it does
/// not; in time again it goes on. A pause that an operator asked for stays.
///
/// S-58
#[test]
fn a_high_load_asks_for_a_pause() {
    let late = |net: &mut Net| {
        net.now = net.now.plus_us(TIMEOUT_US / 6);
        let now = net.now;
        let it = net.node(2);
        it.replica.on_time(now, &it.log);
        net.run();
    };
    let mut net = Net::founded(2);
    late(&mut net);
    net.advance(TIMEOUT_US / 10);
    assert_eq!(net.link(2).status, LinkStatus::Replicating);
    late(&mut net);
    late(&mut net);
    let link = net.link(2);
    assert_eq!(link.status, LinkStatus::Paused);
    assert_eq!(link.cause, "follower: high_load");
    net.advance(TIMEOUT_US / 10);
    assert_eq!(net.link(2).status, LinkStatus::Replicating);
    let now = net.now;
    net.node(2).replica.ask_pause(now, PauseReason::Manual);
    late(&mut net);
    late(&mut net);
    net.advance(TIMEOUT_US);
    assert_eq!(net.link(2).cause, "follower: manual");
}

/// A link that was never connected says so since its leader's start, not since 1970.
#[test]
fn a_link_that_never_connected_has_a_sensible_age() {
    let mut net = Net::new(2);
    assert_eq!(net.link(2).since_us, 0, "not started yet");
    net.start(1, 0);
    net.advance(700_000);
    let link = net.link(2);
    assert_eq!(link.status, LinkStatus::Disconnected);
    assert_eq!(link.since_us, 700_000);
}

/// Each small block lies in a buffer of its own size at most, yet may keep a large one: a link
/// counts what is kept. With the source's credit it is 10 MB or less, whatever the blocks are.
///
/// S-158
#[test]
fn what_a_link_keeps_is_bounded_however_little_its_blocks_fill() {
    const MOST: usize = 10_000_000;
    for (records, buffer_bytes) in [
        (1, 0),
        (1, 4096),
        (1, 1 << 20),
        (100, 1 << 20),
        (1 << 18, 0),
    ] {
        let mut net = Net::new(3);
        for it in net.nodes.values_mut() {
            it.config.initial_credit = credit(100, INITIAL_CREDIT_BYTES);
        }
        net.rebuild();
        net.start_all();
        net.stuck.insert(NodeId(2));
        net.buffer_bytes = buffer_bytes;
        for _ in 0..110 {
            net.append(1, &[records]);
            net.run();
            let queued = net.link(2).queued_bytes;
            assert!(
                queued <= MOST,
                "{queued} bytes, {records} records in {buffer_bytes}"
            );
        }
        let queued = net.link(2).queued_bytes;
        assert!(queued > 0 && net.link(3).queued_bytes == 0);
        if (records, buffer_bytes) == (1, 1 << 20) {
            assert_eq!(queued, LINK_QUEUE_BYTES, "credit allowed a hundred buffers");
        }
        net.stuck.clear();
        let data = net.data_to(2);
        net.node(1).replica.payload_left(data, 64 << 20);
        net.run();
        assert_eq!(net.link(2).queued_bytes, 0);
        net.assert_converged();
    }
}
