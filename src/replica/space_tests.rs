//! A follower without space: it refuses with a zero grant, keeps its link, and goes on by itself.

use super::output::LinkStatus;
use super::test_kit::Net;
use crate::types::BlockNo;
use crate::wire::code::Code;

///
#[test]
fn a_follower_without_space_keeps_its_link_and_goes_on_by_itself() {
    let mut net = Net::founded(3);
    net.append(1, &[1]);
    net.run();
    net.node(3).full = true;
    let connection = net.data_to(3);
    for _ in 0..5 {
        net.append(1, &[1]);
        net.run();
    }
    assert_eq!(
        net.nacks_of(3),
        [Code::NoSpace],
        "refused once, then nothing is sent"
    );
    let link = net.link(3);
    assert_eq!(link.status, LinkStatus::WaitingForCredit);
    assert_eq!(link.cause, "the follower's disk is full");
    // The others are a majority; the follower knows what is committed of what it has.
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(7));
    assert_eq!(net.node(3).log.blocks.len(), 2);
    net.advance(12_000_000);
    // Tried again after each rpc_timeout, in case that the follower forgot what it refused.
    assert_eq!(net.nacks_of(3), [Code::NoSpace; 3]);
    assert_eq!(net.link(3).status, LinkStatus::WaitingForCredit);
    assert_eq!(net.data_to(3), connection, "the link was kept");
    let it = net.node(3);
    it.full = false;
    it.replica.has_space();
    net.run();
    assert_eq!(net.link(3).status, LinkStatus::Replicating);
    net.assert_converged();
}

/// Nothing is granted on a new connection either while the disk is full.
#[test]
fn a_full_follower_grants_nothing_on_a_new_connection() {
    let mut net = Net::founded(2);
    net.node(2).full = true;
    net.append(1, &[1]);
    net.run();
    net.disconnect(2, None);
    net.advance(3_000_000);
    let link = net.link(2);
    assert_eq!((link.credit_records, link.credit_bytes), (0, 0));
    assert_eq!(link.status, LinkStatus::WaitingForCredit);
    let it = net.node(2);
    it.full = false;
    it.replica.has_space();
    net.run();
    net.assert_converged();
}

/// A pause that was asked for meanwhile stays one.
#[test]
fn space_does_not_end_a_pause() {
    let mut net = Net::founded(2);
    net.node(2).full = true;
    net.append(1, &[1]);
    net.run();
    let now = net.now;
    let it = net.node(2);
    it.replica
        .ask_pause(now, crate::wire::body::PauseReason::Manual);
    it.full = false;
    it.replica.has_space();
    net.run();
    assert_eq!(net.link(2).status, LinkStatus::Paused);
    let it = net.node(2);
    it.replica.ask_resume(now, &it.log);
    net.run();
    net.assert_converged();
}

/// A run that was admitted with its cut turns out, once the cut has read the block before it, not
/// to continue the log: it is refused as a contradiction, and its credit comes back.
#[test]
fn a_run_that_does_not_continue_the_cut_log_is_a_contradiction() {
    let mut net = Net::founded(2);
    net.append(1, &[1]);
    net.run();
    let credit = net.link(2).credit_bytes;
    net.node(2).hold_durable = true;
    net.append(1, &[1]);
    net.run();
    let it = net.node(2);
    let header = it.log.blocks.pop().expect("the run just written");
    let now = crate::types::Time(0);
    it.replica.run_dropped(now, &[header], &it.log);
    net.run();
    assert_eq!(net.nacks_of(2), [Code::Diverged]);
    let link = net.link(2);
    assert_eq!(link.status, LinkStatus::Paused);
    assert!(link.cause.contains("diverged"), "{}", link.cause);
    assert_eq!(link.credit_bytes, credit, "nothing of it is held any more");
}
