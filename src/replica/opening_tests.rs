//! Who may lead, what a leader needs before it does, what a lost memory costs.

use super::Role;
use super::test_kit::{Net, TestLog};
use crate::types::{BlockNo, Epoch, NodeId, Tick};
use crate::wire::body::{Body, Channel, Pong, ReplicaMemory};
use crate::wire::code::Code;

fn blank(net: &mut Net, node: u32) {
    let it = net.node(node);
    it.log = TestLog::default();
    it.promise.epoch = Epoch(0);
    it.promise.memory = ReplicaMemory::Blank;
}

fn lost(net: &mut Net, node: u32) {
    net.node(node).promise.memory = ReplicaMemory::Lost;
}

/// Without a word of the operator a log is new only if every member says so.
///
///
#[test]
fn a_log_is_founded_by_all_members() {
    let mut net = Net::new(3);
    net.start(1, 0);
    net.start(2, 0);
    net.run();
    net.advance(5_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Opening);
    assert!(
        net.node(1)
            .notices
            .iter()
            .any(|text| text.contains("1 of 2 other members"))
    );
    net.start(3, 0);
    net.advance(2_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    net.assert_converged();
}

/// If the operator calls the disks new, a majority is enough.
#[test]
fn new_members_need_a_majority_only() {
    let mut net = Net::new(3);
    for node in 1..=2 {
        net.node(node).config.new_member = true;
    }
    net.rebuild();
    net.start(1, 0);
    net.start(2, 0);
    net.advance(2_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    assert_eq!(net.node(1).promise.memory, ReplicaMemory::Whole);
}

/// More disks are called new than a majority needs, and the preferred member's is one of them: the
/// member that still holds blocks stands before them, and they are kept.
#[test]
fn new_members_stand_after_one_that_holds_blocks() {
    let mut net = Net::new(3);
    for node in 1..=3 {
        net.node(node).config.electing = true;
        net.node(node).config.new_member = node != 2;
    }
    net.rebuild();
    net.holds(2, &[1, 1, 1], 1);
    for node in [1, 3, 2] {
        net.start(node, 0);
    }
    net.advance(4_000_000);
    assert_eq!(net.node(2).replica.role(), Role::Leader);
    assert!(
        net.node(1).log.blocks.len() > 3,
        "brought up from what is left"
    );
}

/// A member whose own end is damaged, and which alone can hold it, gives it up and leads; as long
/// as somebody who was not heard may hold it, too, it waits.
#[test]
fn a_damaged_end_that_nobody_else_can_hold_is_cut() {
    let mut net = Net::new(3);
    for node in 1..=3 {
        net.node(node).config.electing = true;
    }
    net.rebuild();
    net.holds(1, &[1; 8], 1);
    net.holds(2, &[1; 4], 1);
    net.holds(3, &[1; 4], 1);
    net.node(1).log.damaged_from = Some(BlockNo(6));
    net.start(1, 3);
    net.start(2, 3);
    net.advance(4_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Opening);
    assert_eq!(net.node(1).log.list(), [1; 8], "node 3 may hold them");
    net.start(3, 3);
    net.advance(4_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    let list = net.node(1).log.list();
    assert_eq!(&list[..6], [1; 6]);
    assert!(list.len() == 7 && list[6] > 1, "{list:?}");
    net.assert_converged();
}

/// Nobody can give a member that is alone its memory back: it says so with the mend, and takes the
/// operator's word.
#[test]
fn a_member_that_is_alone_and_lost_takes_the_operators_word() {
    let mut net = Net::founded(1);
    net.append(1, &[1, 1]);
    net.run();
    net.kill(1);
    lost(&mut net, 1);
    net.node(1).promise.epoch = Epoch(0);
    let before = net.node(1).log.blocks.len();
    net.restart(1);
    net.advance(5_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Opening);
    let waits_for = net.node(1).replica.waits_for().to_owned();
    assert!(waits_for.contains("mend: ") && waits_for.contains("--new-member"));
    net.kill(1);
    net.node(1).config.new_member = true;
    net.restart(1);
    net.advance(2_000_000);
    let it = net.node(1);
    assert_eq!(it.replica.role(), Role::Leader);
    assert_eq!(it.replica.waits_for(), "");
    assert_eq!(it.promise.memory, ReplicaMemory::Whole);
    assert_eq!(it.log.blocks.len(), before + 1, "nothing is gone");
}

/// A replaced disk neither votes nor counts before the leader has brought it up; then it does.
///
///
#[test]
fn blank_disk_does_not_vote() {
    let mut net = Net::new(3);
    net.holds(1, &[1, 1, 1], 1);
    net.holds(3, &[1, 1, 1, 1], 1);
    net.start(1, 0);
    net.start(2, 0);
    net.advance(5_000_000);
    assert_eq!(
        net.node(1).replica.role(),
        Role::Opening,
        "one whole memory of three"
    );
    net.start(3, 0);
    net.advance(3_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    assert_eq!(
        net.node(1).log.list(),
        [1, 1, 1, 1, 2],
        "and the longest log was copied"
    );
    assert_eq!(net.node(2).promise.memory, ReplicaMemory::Whole);
    net.kill(3);
    net.append(1, &[1]);
    net.run();
    assert_eq!(
        net.node(1).replica.high_watermark(),
        BlockNo(6),
        "now it counts"
    );
}

/// Until it was brought up, its acks commit nothing.
#[test]
fn acks_of_a_lost_memory_do_not_count() {
    let mut net = Net::founded(3);
    net.append(1, &[1, 1]);
    net.run();
    net.kill(2);
    blank(&mut net, 2);
    net.restart(2);
    net.node(2).hold_durable = true;
    net.advance(2_000_000);
    let before = net.node(1).replica.high_watermark();
    net.kill(3);
    net.append(1, &[1]);
    net.run();
    net.make_durable(2, 2);
    net.run();
    assert_eq!(net.node(1).replica.high_watermark(), before);
    let end = net.node(2).log.blocks.len() as u64;
    net.make_durable(2, end);
    net.run();
    assert_eq!(net.node(2).promise.memory, ReplicaMemory::Whole);
    assert_eq!(net.node(1).replica.high_watermark(), BlockNo(end));
}

/// A leader may bring up a replica that lost its memory only while it is leader: the others must
/// say so after they were asked.
#[test]
fn a_lost_memory_waits_for_the_rest_of_the_set() {
    let mut net = Net::founded(3);
    net.append(1, &[1]);
    net.run();
    net.kill(3);
    net.kill(2);
    blank(&mut net, 2);
    net.restart(2);
    net.advance(3_000_000);
    assert_eq!(
        net.node(2).promise.memory,
        ReplicaMemory::Blank,
        "node 3 might know better"
    );
    let cause = net.link(2).cause;
    assert!(cause.contains("majority of the others"), "{cause}");
    net.restart(3);
    net.advance(3_000_000);
    assert_eq!(net.node(2).promise.memory, ReplicaMemory::Whole);
    net.assert_converged();
}

/// In a set of two the leader alone is the rest of the set.
#[test]
fn a_set_of_two_replaces_its_follower() {
    let mut net = Net::founded(2);
    net.append(1, &[1, 1]);
    net.run();
    net.kill(2);
    blank(&mut net, 2);
    net.restart(2);
    net.advance(3_000_000);
    assert_eq!(net.node(2).promise.memory, ReplicaMemory::Whole);
    net.assert_converged();
}

/// A leader that lost its memory hears a majority of the others, copies what they hold, and only
/// then has a memory again.
///
///
#[test]
fn a_leader_without_memory_copies_from_the_others() {
    let mut net = Net::new(3);
    net.holds(1, &[1], 1);
    lost(&mut net, 1);
    net.holds(2, &[1, 1, 2], 2);
    net.holds(3, &[1, 1], 2);
    net.start(1, 0);
    net.start(2, 0);
    net.advance(5_000_000);
    assert_eq!(
        net.node(1).replica.role(),
        Role::Opening,
        "two others are needed"
    );
    net.start(3, 0);
    net.advance(2_000_000);
    assert_eq!(net.node(1).log.list(), [1, 1, 2, 3]);
    assert_eq!(net.node(1).promise.memory, ReplicaMemory::Whole);
    net.assert_converged();
}

/// A placed leader whose log is behind copies before it opens its epoch; its own uncommitted suffix
/// of an older epoch gives way, the longer log of the same epoch is kept.
///
/// S-131 S-132 S-133
#[test]
fn fixed_leader_behind_its_followers_copies_first() {
    for own in [&[][..], &[1], &[1, 1, 1, 1, 1, 1], &[1, 1, 2, 2]] {
        let mut net = Net::new(3);
        net.holds(1, own, 3);
        net.holds(2, &[1, 1, 2, 3, 3], 3);
        net.holds(3, &[1, 1, 2, 3], 3);
        net.start_all();
        net.assert_converged();
        assert_eq!(net.node(1).log.list(), [1, 1, 2, 3, 3, 4], "from {own:?}");
    }
    let mut net = Net::new(3);
    net.holds(1, &[1, 1, 3, 3], 3);
    net.holds(2, &[1, 1, 2, 2, 2, 2], 2);
    net.holds(3, &[1, 1, 3], 3);
    net.start_all();
    net.assert_converged();
    assert_eq!(net.node(1).log.list(), [1, 1, 3, 3, 4]);
}

/// The number is above every one heard of, and on the disk before the first frame that carries it.
#[test]
fn the_epoch_is_new_and_saved_first() {
    let mut net = Net::new(3);
    net.holds(1, &[1], 1);
    net.holds(2, &[1], 7);
    net.holds(3, &[1], 3);
    net.node(1).hold_saves = true;
    net.start_all();
    assert_eq!(net.node(1).saves[0].1.epoch, Epoch(8));
    let asked = |net: &Net| {
        let asks = |body: &Body| matches!(body, Body::Where(body) if body.epoch.0 > 0);
        net.sent.iter().any(|frame| asks(&frame.body))
    };
    assert!(!asked(&net));
    net.release_saves(1);
    net.run();
    assert!(asked(&net));
    assert_eq!(net.node(1).replica.epoch(), Epoch(8));
}

/// At a restart the leader waits for all members, then a majority is enough.
#[test]
fn a_starting_leader_gathers_for_a_while() {
    let mut net = Net::new(3);
    for node in 1..=3 {
        net.holds(node, &[1], 1);
    }
    net.start(1, 0);
    net.start(2, 0);
    net.run();
    net.advance(900_000);
    assert_eq!(net.node(1).replica.role(), Role::Opening);
    net.advance(200_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
}

/// A leader that hears of a higher promise is none any more: it says so once, and opens above it.
///
/// Q-19 Q-31
#[test]
fn a_higher_promise_ends_a_leadership() {
    let mut net = Net::founded(3);
    net.append(1, &[1]);
    net.run();
    let control = net.connect(NodeId(1), NodeId(2), Channel::Control);
    let now = net.now;
    let it = net.node(1);
    let pong = Body::Pong(Pong {
        promised: Epoch(6),
        durable_end: BlockNo(0),
        sent_at_us: 0,
    });
    it.replica.on_body(now, control, &pong, &it.log);
    assert_eq!(it.replica.role(), Role::Opening);
    let header = it.log.next_header(Epoch(1), 1, 0, Tick(0));
    let hwm = it.replica.high_watermark();
    it.log.push(&header);
    it.replica.sealed(now, &header, &it.log);
    it.log.durable_end = BlockNo(3);
    it.replica.durable(now, &it.log);
    assert_eq!(
        it.replica.high_watermark(),
        hwm,
        "a fenced leader commits nothing"
    );
    net.run();
    net.advance(3_000_000);
    assert_eq!(net.node(1).fenced, [Epoch(1)]);
    assert_eq!(net.node(1).replica.epoch(), Epoch(7));
    assert!(net.closed.contains(&(NodeId(1), Code::StaleEpoch)));
    net.assert_converged();
}

/// The most up-to-date member dies while its suffix is copied: the opening begins again, under
/// another epoch, with who is left.
#[test]
fn a_lost_source_begins_the_opening_again() {
    let mut net = Net::new(3);
    net.holds(1, &[1], 1);
    net.holds(2, &[1, 1, 1, 1, 1, 1, 1, 1], 1);
    net.holds(3, &[1, 1], 1);
    net.hold_wire = true;
    for node in 1..=3 {
        net.start(node, 0);
    }
    let fetches = |net: &Net| {
        let fetch = |body: &Body| matches!(body, Body::FetchOk(_));
        net.sent.iter().any(|frame| fetch(&frame.body))
    };
    while !fetches(&net) {
        net.deliver_some(1);
    }
    net.kill(2);
    net.hold_wire = false;
    net.advance(5_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    net.restart(2);
    net.advance(2_000_000);
    net.assert_converged();
}

/// Committed blocks that differ end the opening with a message; nothing is deleted.
///
/// S-139 S-141 S-142
#[test]
fn committed_blocks_are_never_cut_to_lead() {
    let mut net = Net::new(2);
    net.holds(1, &[1, 1, 1], 1);
    net.holds(2, &[1, 2, 2, 2], 2);
    net.start(1, 3);
    net.start(2, 4);
    net.advance(3_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Opening);
    assert_eq!(net.node(1).log.list(), [1, 1, 1]);
    assert_eq!(net.node(2).log.list(), [1, 2, 2, 2]);
    let told = net
        .node(1)
        .notices
        .iter()
        .any(|text| text.contains("other blocks at block 1"));
    assert!(told, "{:?}", net.node(1).notices);
}
