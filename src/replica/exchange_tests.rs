//! Which frame says what between a leader and its follower, and in which order.

use super::test_kit::{Frame, Net};
use crate::types::{BlockNo, NodeId};
use crate::wire::body::{Body, PauseReason, Ping, Position, ReplicateOk, Resume};

/// What a node sent since the frame with this number.
fn said(net: &Net, node: u32, since: usize) -> Vec<Frame> {
    let frames = net.sent[since..].iter();
    let of = frames.filter(|frame| frame.from == NodeId(node));
    of.cloned().collect()
}

fn acks(frames: &[Frame]) -> Vec<ReplicateOk> {
    let ack = |frame: &Frame| match &frame.body {
        Body::ReplicateOk(ok) => Some(ok.clone()),
        _ => None,
    };
    frames.iter().filter_map(ack).collect()
}

/// Blocks go in a `Replicate`; what is written is acked by a `ReplicateOk` once it is durable, and
/// the same frame grants the credit that the blocks had taken.
///
/// S-38 S-39 S-54 S-73 H-5
#[test]
fn a_block_is_sent_written_and_then_acked() {
    let mut net = Net::founded(2);
    net.node(2).hold_durable = true;
    let before = acks(&said(&net, 2, 0))
        .pop()
        .expect("the first block's ack");
    let since = net.sent.len();
    net.append(1, &[10, 20]);
    net.run();
    let runs: Vec<Frame> = said(&net, 1, since);
    let sent: Vec<(BlockNo, u32)> = runs
        .iter()
        .filter_map(|frame| match &frame.body {
            Body::Replicate(run) => Some((run.first, run.records)),
            _ => None,
        })
        .collect();
    assert_eq!(sent, [(BlockNo(1), 30)], "one run of two blocks");
    assert_eq!(net.node(2).log.blocks.len(), 3, "written");
    let early = acks(&said(&net, 2, since));
    assert!(
        early.iter().all(|ok| ok.durable_end == BlockNo(1)),
        "{early:?}"
    );

    net.make_durable(2, 3);
    net.run();
    let ok = acks(&said(&net, 2, since)).pop().expect("an ack");
    assert_eq!((ok.durable_end, ok.durable_offset.0), (BlockNo(3), 30));
    assert_eq!(ok.limits.records, before.limits.records + 30);
    assert_eq!(ok.limits.bytes, before.limits.bytes + 2 * 4096);
}

/// A follower with too much to do says `Pause`, and `Resume` with the first block that it wants.
///
/// S-40 S-41 D-S16
#[test]
fn a_follower_says_pause_and_resume() {
    let mut net = Net::founded(2);
    let (now, since) = (net.now, net.sent.len());
    net.node(2).replica.ask_pause(now, PauseReason::HighLoad);
    net.run();
    net.append(1, &[1, 1]);
    net.run();
    let asked = said(&net, 2, since);
    let pauses = asked.iter().filter(
        |frame| matches!(&frame.body, Body::Pause(pause) if pause.reason == PauseReason::HighLoad),
    );
    assert_eq!(pauses.count(), 1);
    assert_eq!(net.node(2).log.blocks.len(), 1, "nothing came");

    let since = net.sent.len();
    let it = net.node(2);
    it.replica.ask_resume(now, &it.log);
    net.run();
    let resume = said(&net, 2, since)
        .into_iter()
        .find_map(|frame| match frame.body {
            Body::Resume(Resume { next }) => Some(next),
            _ => None,
        });
    assert_eq!(
        resume,
        Some(BlockNo(1)),
        "it holds block 0 and wants block 1"
    );
    net.assert_converged();
}

/// Before a leader sends anything it asks where the follower stands.
///
/// D-S9 D-S16
#[test]
fn where_asks_and_position_answers() {
    let mut net = Net::founded(2);
    net.append(1, &[1, 1]);
    net.run();
    let since = net.sent.len();
    net.restart(2);
    net.advance(3_000_000);
    let kinds: Vec<&str> = net.sent[since..].iter().map(|f| f.body.name()).collect();
    let first = |name| kinds.iter().position(|kind| *kind == name).expect(name);
    assert!(first("Where") < first("Position"));
    assert!(first("Position") < first("Replicate"));
    let position = said(&net, 2, since)
        .into_iter()
        .find_map(|frame| match frame.body {
            Body::Position(position) => Some(position),
            _ => None,
        });
    let Position {
        next, durable_end, ..
    } = position.expect("a position");
    assert_eq!(
        (next, durable_end),
        (BlockNo(3), BlockNo(3)),
        "blocks 0 to 2 are held"
    );
}

/// The leader's heartbeat says where its log ends, however much of it has been sent: what a
/// follower lacks is the difference to its own end.
///
/// S-47
#[test]
fn a_follower_can_tell_its_own_lag() {
    let mut net = Net::founded(2);
    let now = net.now;
    net.node(2).replica.ask_pause(now, PauseReason::SlowDisk);
    net.run();
    net.append(1, &[1, 1, 1]);
    let since = net.sent.len();
    net.advance(300_000);
    let ping = said(&net, 1, since)
        .into_iter()
        .find_map(|frame| match frame.body {
            Body::Ping(ping) => Some(ping),
            _ => None,
        });
    let Ping { log_end, .. } = ping.expect("a heartbeat");
    let own = net.node(2).log.durable_end;
    assert_eq!(
        (log_end, own),
        (BlockNo(4), BlockNo(1)),
        "three blocks behind"
    );
}
