//! What operators see of a link that does not run: the cause on both sides, and one line a change.

use super::LinkStatus;
use super::test_kit::{Net, TestLog, credit};
use crate::limits::RETRY_BACKOFF_MS;
use crate::types::{Epoch, NodeId};
use crate::wire::body::ReplicaMemory;
use crate::wire::code::Code;

const BACKOFF_US: u64 = RETRY_BACKOFF_MS * 1000;

fn told(net: &mut Net, word: &str) -> usize {
    let notices = net.node(1).notices.iter();
    notices.filter(|text| text.contains(word)).count()
}

fn followers_cause(net: &mut Net, node: u32) -> String {
    let now = net.now;
    let following = net.node(node).replica.following(now);
    following.expect("it follows").cause
}

/// A refusal of the connection is the link's cause, and one line, however often it is met.
#[test]
fn a_refused_connection_says_why_on_both_sides() {
    let mut net = Net::founded(3);
    let why = (Code::WrongFingerprint, [1, 2]);
    net.refused.insert((NodeId(1), NodeId(2)), why);
    net.kill(2);
    net.append(1, &[1, 1]);
    net.advance(6 * BACKOFF_US);
    let link = net.link(2);
    assert_eq!(link.status, LinkStatus::Disconnected);
    let words = "refused: WrongFingerprint: shards, limits or node list differ between the nodes \
                 (the refusing side's: 00000001, the refused side's: 00000002); mend: ";
    assert!(link.cause.starts_with(words), "{}", link.cause);
    assert_eq!((link.lag_records, link.lag_bytes), (2, Some(8192)));
    assert_eq!(told(&mut net, "WrongFingerprint"), 1);
    net.refused.clear();
    net.advance(2 * BACKOFF_US);
    net.refused
        .insert((NodeId(1), NodeId(2)), (Code::WrongCluster, [1, 2]));
    net.advance(6 * BACKOFF_US);
    assert_eq!(told(&mut net, "WrongCluster"), 1, "another one is news");

    net.restart(2);
    assert_eq!(
        followers_cause(&mut net, 2),
        "no connection from the leader"
    );
    net.node(2).replica.peer_refused(NodeId(3), why);
    assert_eq!(
        followers_cause(&mut net, 2),
        "no connection from the leader"
    );
    net.node(2).replica.peer_refused(NodeId(1), why);
    let cause = followers_cause(&mut net, 2);
    assert!(cause.starts_with(words), "{cause}");
    let now = net.now;
    let following = net.node(2).replica.following(now).expect("it follows");
    assert_eq!(following.status, LinkStatus::Disconnected);
    net.refused.clear();
    net.restart(2);
    net.advance(3 * BACKOFF_US);
    assert_eq!(followers_cause(&mut net, 2), "");
    net.assert_converged();
}

/// A follower whose memory is gone says so, and so does the link, until it is brought up.
#[test]
fn a_lost_memory_is_a_cause_on_both_sides() {
    let mut net = Net::founded(3);
    net.append(1, &[1, 1]);
    net.run();
    net.kill(2);
    let it = net.node(2);
    it.log = TestLog::default();
    it.promise.epoch = Epoch(0);
    it.promise.memory = ReplicaMemory::Blank;
    net.restart(2);
    net.node(2).hold_durable = true;
    net.advance(2_000_000);
    let cause = followers_cause(&mut net, 2);
    assert_eq!(
        cause,
        "lost its memory; whole again once it holds the blocks below 3"
    );
    let link = net.link(2);
    assert_eq!(link.status, LinkStatus::Replicating);
    assert_eq!(link.cause, "lost its memory; is sent what it lacks");
    net.node(2).hold_durable = false;
    let end = net.node(2).log.blocks.len() as u64;
    net.make_durable(2, end);
    net.run();
    assert_eq!(
        (net.link(2).cause, followers_cause(&mut net, 2)),
        Default::default()
    );
}

/// A link that comes to lack credit right after a line said that it runs must not be left so: once
/// the lack lasts, a line tells of it; while it comes and goes with every ack, none does.
#[test]
fn a_lasting_lack_of_credit_is_told() {
    let mut net = Net::new(2);
    for it in net.nodes.values_mut() {
        it.config.initial_credit = credit(20, 1 << 20);
    }
    net.rebuild();
    net.start_all();
    let words = "replication paused: credit exhausted";
    for round in 0..5 {
        net.node(2).hold_durable = true;
        for _ in 0..10 {
            net.append(1, &[10]);
            net.run();
        }
        assert_eq!(net.link(2).status, LinkStatus::WaitingForCredit);
        assert_eq!(told(&mut net, words), 1, "round {round}");
        if round < 4 {
            net.node(2).hold_durable = false;
            let end = net.node(2).log.blocks.len() as u64;
            net.make_durable(2, end);
            net.run();
            assert_eq!(net.link(2).status, LinkStatus::Replicating);
            assert_eq!(told(&mut net, ": replicating"), 2, "round {round}");
        }
    }
    net.advance(2 * BACKOFF_US);
    assert_eq!(told(&mut net, words), 2, "it lasts");
    net.advance(10 * BACKOFF_US);
    assert_eq!(told(&mut net, words), 2, "and is told once");
}
