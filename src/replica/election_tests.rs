//! Elections by hand: who gets a vote, who stands, who steps down.

use super::election::Election;
use super::test_kit::{Net, TestLog, config};
use super::{Config, LogView, Output, Promise, Replica, Role, SaveToken};
use crate::limits::HANDOVER_MS;
use crate::types::{BlockNo, ConnectionId, Epoch, NodeId, Time};
use crate::wire::body::{
    Body, Channel, CreditLimits, Nack, Ping, Position, ReplicaMemory, TakeOver, Where,
};
use crate::wire::capability::Capabilities;
use crate::wire::code::Code;

const NOW: Time = Time(1_000_000);
const TIMEOUT_US: u64 = 1_000_000;

fn electing(node: u32, members: u32) -> Config {
    Config {
        electing: true,
        ..config(node, members)
    }
}

/// A connection of each kind with node 1 and node 3.
const CONTROL: [ConnectionId; 2] = [ConnectionId(1), ConnectionId(3)];
const DATA: [ConnectionId; 2] = [ConnectionId(11), ConnectionId(13)];

/// Node 2 of three, fed by hand.
struct Voter {
    now: Time,
    replica: Replica,
    log: TestLog,
    saves: Vec<(SaveToken, Promise)>,
    sent: Vec<(ConnectionId, Body)>,
    closed: Vec<ConnectionId>,
    dials: Vec<NodeId>,
}

impl Voter {
    /// It holds blocks of epochs 1, 1 and 2, and has promised epoch 2 to node 1.
    fn new(memory: ReplicaMemory) -> Voter {
        let promise = Promise {
            epoch: Epoch(2),
            leader: Some(NodeId(1)),
            memory,
        };
        let mut voter = Voter {
            now: NOW,
            replica: Replica::new(electing(2, 3)),
            log: TestLog::of(&[1, 1, 2]),
            saves: Vec::new(),
            sent: Vec::new(),
            closed: Vec::new(),
            dials: Vec::new(),
        };
        let (replica, log) = (&mut voter.replica, &voter.log);
        replica.started(NOW, promise, BlockNo(0), log);
        for (index, peer) in [NodeId(1), NodeId(3)].into_iter().enumerate() {
            replica.peer_up(NOW, peer, CONTROL[index], Channel::Control, false);
            replica.peer_up(NOW, peer, DATA[index], Channel::Data, false);
        }
        voter.act();
        voter
    }

    fn act(&mut self) {
        while let Some(output) = self.replica.poll(self.now, &self.log) {
            match output {
                Output::Send { connection, body } => self.sent.push((connection, body)),
                Output::Save { token, promise } => self.saves.push((token, promise)),
                Output::Close { connection, .. } => self.closed.push(connection),
                Output::Dial { peer } => self.dials.push(peer),
                _ => {}
            }
        }
    }

    /// What a frame is answered with.
    fn tell(&mut self, connection: ConnectionId, body: impl Into<Body>) -> Vec<Body> {
        let body = body.into();
        self.replica.on_body(self.now, connection, &body, &self.log);
        self.answers()
    }

    fn answers(&mut self) -> Vec<Body> {
        self.act();
        let sent = core::mem::take(&mut self.sent);
        sent.into_iter().map(|(_, body)| body).collect()
    }

    /// The save that is out ends. What it was, and what is said then.
    fn save(&mut self) -> (Promise, Vec<Body>) {
        let (token, promise) = self.saves.remove(0);
        self.replica.saved(self.now, token, &self.log);
        (promise, self.answers())
    }

    fn wait(&mut self, us: u64) {
        let until = self.now.plus_us(us);
        while self.now < until {
            self.now = self.now.plus_us(10_000);
            self.replica.on_time(self.now, &self.log);
            self.act();
        }
    }

    fn ping(&mut self, from: ConnectionId, epoch: u32) {
        let ping = Ping {
            epoch: Epoch(epoch),
            committed_end: BlockNo(0),
            log_start: BlockNo(0),
            log_end: BlockNo(3),
            sent_at_us: 0,
        };
        self.tell(from, ping);
    }

    fn position(&mut self, from: ConnectionId) -> Position {
        match &self.tell(from, asks(0, 2, 3))[..] {
            [Body::Position(position)] => position.clone(),
            other => panic!("no position: {other:?}"),
        }
    }
}

fn asks(epoch: u32, last_epoch: u32, log_end: u64) -> Where {
    Where {
        epoch: Epoch(epoch),
        log_end: BlockNo(log_end),
        founding: 0,
        last_epoch: Epoch(last_epoch),
        won: 0,
    }
}

fn refusal(bodies: &[Body]) -> Code {
    match bodies {
        [Body::Nack(Nack { code, .. })] => Code::from_number(*code).expect("a code"),
        other => panic!("no refusal: {other:?}"),
    }
}

#[test]
fn a_vote_is_given_to_a_log_at_least_as_up_to_date() {
    for (last_epoch, log_end) in [(1, 9), (2, 2), (0, 0)] {
        let mut voter = Voter::new(ReplicaMemory::Whole);
        let said = voter.tell(DATA[1], asks(3, last_epoch, log_end));
        assert_eq!(refusal(&said), Code::LogBehind, "{last_epoch} {log_end}");
        assert!(voter.saves.is_empty(), "nothing is promised");
    }
    for (last_epoch, log_end) in [(2, 3), (2, 4), (3, 1)] {
        let mut voter = Voter::new(ReplicaMemory::Whole);
        assert_eq!(voter.tell(DATA[1], asks(3, last_epoch, log_end)), []);
        let (promise, said) = voter.save();
        assert_eq!((promise.epoch, promise.leader), (Epoch(3), Some(NodeId(3))));
        assert!(matches!(&said[..], [Body::Position(_)]), "{said:?}");
    }
}

/// One promise an epoch, before it is on the disk and after; a leader that has won is followed all
/// the same.
#[test]
fn an_epoch_is_promised_once() {
    let mut voter = Voter::new(ReplicaMemory::Whole);
    assert_eq!(voter.tell(DATA[1], asks(3, 2, 3)), []);
    assert_eq!(
        voter.tell(DATA[0], asks(3, 2, 9)),
        [],
        "it waits for the save"
    );
    let (_, said) = voter.save();
    assert!(
        matches!(&said[..], [Body::Position(_), Body::Nack(_)]),
        "{said:?}"
    );
    assert_eq!(refusal(&said[1..]), Code::StaleEpoch);
    assert_eq!(
        refusal(&voter.tell(DATA[0], asks(3, 2, 9))),
        Code::StaleEpoch
    );
    let won = Where {
        won: 1,
        ..asks(3, 0, 0)
    };
    assert_eq!(voter.tell(DATA[0], won), []);
    assert_eq!(voter.save().0.leader, Some(NodeId(1)));
}

/// Who hears a leader says so to everybody but that leader.
#[test]
fn a_position_tells_whether_a_leader_is_heard() {
    let mut voter = Voter::new(ReplicaMemory::Whole);
    assert_eq!(
        voter.position(DATA[1]).hears_leader,
        0,
        "none since the start"
    );
    voter.ping(CONTROL[1], 1);
    assert_eq!(
        voter.position(DATA[0]).hears_leader,
        0,
        "a leader of the past"
    );
    voter.ping(CONTROL[0], 2);
    assert_eq!(voter.position(DATA[1]).hears_leader, 1);
    assert_eq!(voter.position(DATA[0]).hears_leader, 0);
    voter.now = voter.now.plus_us(TIMEOUT_US - 1);
    assert_eq!(voter.position(DATA[1]).hears_leader, 1);
    voter.now = voter.now.plus_us(1);
    assert_eq!(voter.position(DATA[1]).hears_leader, 0);
}

/// Credit is the followed leader's: who only asks gets none, and a former leader's connection ends.
#[test]
fn credit_goes_to_the_leader_that_is_followed() {
    let mut voter = Voter::new(ReplicaMemory::Whole);
    assert_eq!(voter.position(DATA[0]).limits, CreditLimits::default());
    voter.tell(DATA[0], asks(3, 2, 3));
    voter.save();
    assert!(voter.position(DATA[0]).limits.bytes > 0);
    assert_eq!(voter.position(DATA[1]).limits, CreditLimits::default());
    voter.tell(DATA[1], asks(4, 2, 3));
    voter.save();
    assert_eq!(voter.closed, [DATA[0]]);
    assert!(voter.position(DATA[1]).limits.bytes > 0);
}

#[test]
fn a_member_stands_after_a_silence_of_its_timeout() {
    let mut voter = Voter::new(ReplicaMemory::Whole);
    for _ in 0..50 {
        voter.ping(CONTROL[0], 2);
        voter.wait(100_000);
    }
    assert!(voter.dials.is_empty(), "a leader is heard");
    voter.wait(TIMEOUT_US - 110_000);
    assert!(voter.dials.is_empty(), "not so soon");
    voter.wait(TIMEOUT_US + 20_000);
    assert_eq!(voter.dials, [NodeId(1), NodeId(3)]);
    assert!(
        voter.saves.is_empty(),
        "nothing is promised by asking alone"
    );
    assert_eq!(voter.replica.role(), Role::Follower);
    voter.ping(CONTROL[0], 2);
    voter.dials.clear();
    voter.wait(100_000);
    assert!(voter.dials.is_empty(), "it hears a leader again");
}

/// A log that lost its memory, or is closed, neither stands nor votes.
#[test]
fn who_lost_its_memory_does_not_stand() {
    let mut voter = Voter::new(ReplicaMemory::Lost);
    voter.wait(10 * TIMEOUT_US);
    assert!(voter.dials.is_empty());
    let mut voter = Voter::new(ReplicaMemory::Whole);
    voter.replica.latched(voter.now);
    voter.wait(10 * TIMEOUT_US);
    assert!(voter.dials.is_empty());
    assert_eq!(
        refusal(&voter.tell(DATA[1], asks(3, 2, 3))),
        Code::LogFailed
    );
}

#[test]
fn who_is_told_to_take_over_asks_nobody_for_a_leader() {
    let mut voter = Voter::new(ReplicaMemory::Whole);
    voter.tell(DATA[0], asks(3, 2, 3));
    voter.save();
    voter.tell(DATA[0], TakeOver { epoch: Epoch(2) });
    assert!(voter.dials.is_empty(), "an epoch of the past");
    voter.tell(DATA[0], TakeOver { epoch: Epoch(3) });
    assert_eq!(voter.dials, [NodeId(1), NodeId(3)]);
    voter.tell(DATA[1], TakeOver { epoch: Epoch(3) });
    assert_eq!(voter.closed, [DATA[1]], "from who does not lead");
}

#[test]
fn timeouts_are_drawn_between_the_shortest_and_twice_that() {
    let draws = |node| {
        let mut election = Election::new(&electing(node, 3));
        (0..100).map(|_| election.draw()).collect::<Vec<u64>>()
    };
    for node in [1, 2, 3] {
        let within = |us: &u64| (TIMEOUT_US..2 * TIMEOUT_US).contains(us);
        assert!(draws(node).iter().all(within));
        assert_eq!(draws(node), draws(node), "a function of the seed");
    }
    assert_ne!(draws(1), draws(2));
    let spread = draws(1).iter().max().expect("some") - draws(1).iter().min().expect("some");
    assert!(spread > TIMEOUT_US / 2, "{spread}");
}

/// An electing set of three with its first epoch open.
fn founded() -> Net {
    let mut net = Net::new(3);
    for it in net.nodes.values_mut() {
        it.config.electing = true;
    }
    net.rebuild();
    net.start_all();
    net.advance(100_000);
    assert_eq!(
        net.node(1).replica.role(),
        Role::Leader,
        "the placed one goes first"
    );
    net
}

fn leaders(net: &Net) -> Vec<u32> {
    let alive = net.nodes.iter().filter(|(_, it)| it.alive);
    let leads = alive.filter(|(_, it)| it.replica.role() == Role::Leader);
    leads.map(|(node, _)| node.0).collect()
}

#[test]
fn another_member_leads_when_the_leader_is_gone() {
    let mut net = founded();
    net.append(1, &[1, 2, 3]);
    net.run();
    let held = net.node(2).replica.high_watermark();
    net.kill(1);
    net.advance(3 * TIMEOUT_US);
    let led = leaders(&net);
    assert_eq!(led.len(), 1, "{led:?}");
    net.append(led[0], &[4]);
    net.run();
    let next = &net.nodes[&NodeId(led[0])];
    assert!(next.replica.epoch() > Epoch(1));
    assert_eq!(next.replica.high_watermark(), next.log.log_end());
    assert!(next.log.log_end().0 >= held.0 + 2);
    net.restart(1);
    net.advance(TIMEOUT_US);
    assert_eq!(leaders(&net), led, "who comes back follows");
    assert_eq!(net.node(1).replica.leader(), Some(NodeId(led[0])));
}

/// A leader whose lease is over leads no more, also if it is asked before it looks at the clock.
#[test]
fn a_leader_without_a_majority_steps_down() {
    let mut net = founded();
    for other in [2, 3] {
        net.cut.insert((NodeId(1), NodeId(other)));
    }
    net.advance(TIMEOUT_US / 2);
    assert_eq!(leaders(&net), [1]);
    net.advance(TIMEOUT_US / 2 + 200_000);
    assert_eq!(net.node(1).replica.role(), Role::Follower);
    assert_eq!(net.node(1).fenced, [Epoch(1)]);

    let mut net = founded();
    net.append(1, &[1]);
    let late = net.now.plus_us(2 * TIMEOUT_US);
    let it = net.node(1);
    it.replica.durable(late, &it.log);
    assert_ne!(it.replica.role(), Role::Leader);
}

/// Nobody has won the epoch that this node leads.
#[test]
fn a_leader_does_not_believe_that_another_one_won_its_epoch() {
    let mut net = founded();
    let data = net.connect(NodeId(2), NodeId(1), Channel::Data);
    let (now, it) = (net.now, net.node(1));
    let claim = Where {
        won: 1,
        ..asks(1, 1, 9)
    };
    it.replica.on_body(now, data, &claim.into(), &it.log);
    assert_eq!(it.replica.role(), Role::Leader);
    net.run();
    assert!(net.closed.contains(&(NodeId(1), Code::StaleEpoch)));
}

#[test]
fn a_hand_over_waits_until_all_is_committed() {
    let mut net = founded();
    net.append(1, &[1]);
    net.run();
    net.node(2).hold_durable = true;
    net.append(1, &[2]);
    net.run();
    let (now, it) = (net.now, net.node(1));
    assert!(!it.replica.promote(now, NodeId(1), &it.log), "to itself");
    assert!(it.replica.promote(now, NodeId(2), &it.log));
    assert!(it.replica.hands_over());
    net.advance(100_000);
    assert_eq!(leaders(&net), [1], "node 2 lacks a block");
    net.node(2).hold_durable = false;
    let end = net.node(2).log.log_end();
    net.make_durable(2, end.0);
    net.advance(100_000);
    assert_eq!(leaders(&net), [2]);
    assert!(!net.node(1).replica.hands_over());
}

/// A member of a version that does not know the frame is never sent it: not by an order, and not
/// when it would be given its shard back. Once it knows it, it is.
///
/// H-73
#[test]
fn a_member_that_does_not_know_the_frame_is_not_told_to_take_over() {
    let mut net = founded();
    net.append(1, &[1]);
    net.run();
    let (now, it) = (net.now, net.node(1));
    it.replica.peer_can(NodeId(3), Capabilities::NONE);
    assert_eq!(it.replica.can_promote(NodeId(3), &it.log), Some(false));
    assert!(!it.replica.promote(now, NodeId(3), &it.log));
    assert!(it.replica.promote(now, NodeId(2), &it.log), "who knows it");
    net.advance(100_000);
    assert_eq!(leaders(&net), [2]);
    let none = Capabilities::NONE;
    net.node(2).replica.peer_can(NodeId(1), none);
    net.advance(2 * HANDOVER_MS * 1000);
    assert_eq!(leaders(&net), [2], "the preferred one is an older one");
    let here = Capabilities::HERE;
    net.node(2).replica.peer_can(NodeId(1), here);
    net.advance(2 * HANDOVER_MS * 1000);
    assert_eq!(leaders(&net), [1]);
}

/// Who does not take over in time leaves the leader in its place.
#[test]
fn a_hand_over_that_fails_is_over_after_a_timeout() {
    let mut net = founded();
    net.append(1, &[1]);
    net.run();
    net.node(2).hold_durable = true;
    net.append(1, &[2]);
    net.run();
    let (now, it) = (net.now, net.node(1));
    assert!(it.replica.promote(now, NodeId(2), &it.log));
    net.advance(TIMEOUT_US + 100_000);
    assert!(!net.node(1).replica.hands_over());
    assert_eq!(leaders(&net), [1]);
}

/// A member without room on its disk is not given its shard: it says so, and the leader goes on at
/// once. A leader without room hands over to one that has some, and is not asked for it back.
#[test]
fn a_full_disk_leads_nothing_that_another_could() {
    let mut net = founded();
    net.append(1, &[1]);
    net.run();
    net.node(2).log.full = true;
    let (now, it) = (net.now, net.node(1));
    assert!(it.replica.promote(now, NodeId(2), &it.log));
    net.advance(TIMEOUT_US / 4);
    assert!(!net.node(1).replica.hands_over(), "it was refused");
    assert_eq!(leaders(&net), [1]);
    net.node(1).log.full = true;
    net.advance(2 * HANDOVER_MS * 1000);
    assert_eq!(leaders(&net), [3], "the one with room");
    net.advance(4 * HANDOVER_MS * 1000);
    assert_eq!(leaders(&net), [3]);
    net.node(1).log.full = false;
    net.advance(5 * HANDOVER_MS * 1000);
    assert_eq!(leaders(&net), [1], "the preferred one has room again");
}

/// A member that was told to take over and does not, though it never said no, is passed over for a
/// while: another one with room is asked.
#[test]
fn a_member_that_does_not_take_over_is_not_asked_at_once() {
    let mut net = founded();
    net.append(1, &[1]);
    net.run();
    net.node(1).log.full = true;
    net.node(3).hold_saves = true;
    net.advance(3 * HANDOVER_MS * 1000);
    assert_eq!(leaders(&net), [2]);
    let notices = &net.node(1).notices;
    let told = notices.iter().any(|text| text.contains("node 3 did not"));
    assert!(told, "{notices:?}");
}

/// A new log is left to the placed member for one timeout more.
#[test]
fn others_wait_longer_at_the_first_start() {
    for (new, least) in [(true, 2 * TIMEOUT_US), (false, TIMEOUT_US)] {
        let mut replica = Replica::new(electing(2, 3));
        let log = TestLog::default();
        let promise = Promise {
            epoch: Epoch(u32::from(!new)),
            leader: None,
            memory: match new {
                true => ReplicaMemory::Blank,
                false => ReplicaMemory::Whole,
            },
        };
        replica.started(NOW, promise, BlockNo(0), &log);
        let due = replica.poll_timeout().expect("it will stand");
        let after = due.since_us(NOW);
        assert!(
            (least..least + TIMEOUT_US).contains(&after),
            "{new}: {after}"
        );
    }
}
