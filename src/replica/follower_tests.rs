//! One follower, fed by hand: promises, the order of the checks, the two bounds of `verified_end`.

use super::test_kit::{LOG, TestLog, config, credit};
use super::{Config, LogView, Output, Promise, Replica, SaveToken, Verdict, with_run};
use crate::types::{BlockNo, ConnectionId, Epoch, NodeId, Tick, Time};
use crate::wire::block::BlockHeader;
use crate::wire::body::{
    Body, Channel, CreditLimits, Fetch, Nack, Ping, Position, ReplicaMemory, Replicate,
    ReplicateOk, Where,
};
use crate::wire::code::Code;

#[path = "table_tests.rs"]
mod table;

const DATA: ConnectionId = ConnectionId(1);
const CONTROL: ConnectionId = ConnectionId(2);
const NOW: Time = Time(1_000_000);

/// Node 2 of three; node 1 leads.
struct Lone {
    replica: Replica,
    log: TestLog,
    saves: Vec<(SaveToken, Promise)>,
    sent: Vec<Body>,
    closed: Vec<Code>,
    notices: Vec<String>,
}

impl Lone {
    /// A follower that holds blocks of these epochs, the last one promised, a whole memory.
    fn holding(epochs: &[u32]) -> Lone {
        let promise = Promise {
            epoch: Epoch(epochs.last().copied().unwrap_or_default()),
            leader: Some(NodeId(1)),
            memory: ReplicaMemory::Whole,
        };
        Lone::with(config(2, 3), TestLog::of(epochs), promise)
    }

    fn with(config: Config, log: TestLog, promise: Promise) -> Lone {
        let mut lone = Lone {
            replica: Replica::new(config),
            log,
            saves: Vec::new(),
            sent: Vec::new(),
            closed: Vec::new(),
            notices: Vec::new(),
        };
        lone.replica.started(NOW, promise, BlockNo(0), &lone.log);
        lone.replica
            .peer_up(NOW, NodeId(1), CONTROL, Channel::Control, false);
        lone.replica
            .peer_up(NOW, NodeId(1), DATA, Channel::Data, false);
        lone.act();
        lone
    }

    fn act(&mut self) {
        while let Some(output) = self.replica.poll(NOW, &self.log) {
            match output {
                Output::Send { body, .. } => self.sent.push(body),
                Output::Save { token, promise } => self.saves.push((token, promise)),
                Output::Close { code, .. } => self.closed.push(code),
                Output::Notice { text, .. } => self.notices.push(text),
                Output::Committed { .. } | Output::ServeFetch(_) => {}
                other => panic!("a follower never says {other:?}"),
            }
        }
    }

    fn tell(&mut self, connection: ConnectionId, body: impl Into<Body>) -> Vec<Body> {
        self.replica
            .on_body(NOW, connection, &body.into(), &self.log);
        self.act();
        core::mem::take(&mut self.sent)
    }

    fn ask(&mut self, connection: ConnectionId, epoch: u32) -> Vec<Body> {
        let body = Where {
            epoch: Epoch(epoch),
            log_end: BlockNo(9),
            founding: 0,
            last_epoch: Epoch(0),
            won: 0,
        };
        self.tell(connection, body)
    }

    fn save(&mut self) -> Vec<Body> {
        let (token, _) = self.saves.remove(0);
        self.replica.saved(NOW, token, &self.log);
        self.act();
        core::mem::take(&mut self.sent)
    }

    /// Adopts an epoch as a leader would make it.
    fn adopt(&mut self, epoch: u32) {
        self.ask(DATA, epoch);
        while !self.saves.is_empty() {
            self.save();
        }
    }

    /// Blocks `first..end` of the leader's log, as a frame of `epoch`.
    fn push(&mut self, leader: &TestLog, epoch: u32, first: u64, end: u64) -> (Verdict, Vec<Body>) {
        let headers = leader.range(first, end).to_vec();
        let body = frame(leader, epoch, first, &headers);
        self.push_frame(DATA, body, Some(headers))
    }

    fn push_frame(
        &mut self,
        connection: ConnectionId,
        body: Replicate,
        headers: Option<Vec<BlockHeader>>,
    ) -> (Verdict, Vec<Body>) {
        let body = Body::Replicate(body);
        let verdict = self
            .replica
            .on_run(NOW, connection, &body, headers.as_deref(), &self.log);
        if let Verdict::Write { cut } = verdict {
            if let Some(from) = cut {
                self.log.cut(from);
            }
            headers
                .iter()
                .flatten()
                .for_each(|header| self.log.push(header));
            self.replica.run_written(NOW, &self.log);
        }
        self.act();
        (verdict, core::mem::take(&mut self.sent))
    }

    fn durable(&mut self, end: u64) -> Vec<Body> {
        self.log.durable_end = BlockNo(end);
        self.replica.durable(NOW, &self.log);
        self.act();
        core::mem::take(&mut self.sent)
    }
}

fn frame(leader: &TestLog, epoch: u32, first: u64, headers: &[BlockHeader]) -> Replicate {
    let previous = first.checked_sub(1).and_then(|at| leader.held(BlockNo(at)));
    let (prev_epoch, prev_crc) = previous.unwrap_or_default();
    let head = Replicate {
        epoch: Epoch(epoch),
        first: BlockNo(first),
        prev_epoch,
        prev_crc,
        committed_end: leader.log_end(),
        log_start: BlockNo(0),
        count: 0,
        records: 0,
        padded_len: 0,
    };
    with_run(head, headers)
}

fn acks(bodies: &[Body]) -> Vec<u64> {
    let ack = |body: &Body| match body {
        Body::ReplicateOk(ReplicateOk { durable_end, .. }) => Some(durable_end.0),
        _ => None,
    };
    bodies.iter().filter_map(ack).collect()
}

fn nack(bodies: &[Body]) -> (Code, Nack) {
    match bodies {
        [Body::Nack(nack)] => (Code::from_number(nack.code).expect("known"), nack.clone()),
        other => panic!("one refusal expected: {other:?}"),
    }
}

fn position(bodies: &[Body]) -> Position {
    match bodies {
        [Body::Position(position)] => position.clone(),
        other => panic!("a position expected: {other:?}"),
    }
}

/// The promise is on the disk before anything is answered in its epoch.
#[test]
fn a_promise_is_saved_before_it_is_said() {
    let mut lone = Lone::holding(&[1, 1]);
    assert_eq!(lone.ask(DATA, 5), []);
    assert_eq!(lone.saves[0].1.epoch, Epoch(5));
    assert_eq!(lone.saves[0].1.leader, Some(NodeId(1)));
    let said = position(&lone.save());
    assert_eq!(
        (said.promised, said.last_epoch, said.next),
        (Epoch(5), Epoch(1), BlockNo(2))
    );
    let again = position(&lone.ask(DATA, 5));
    assert_eq!(
        again.promised,
        Epoch(5),
        "the same promise needs no second save"
    );
}

/// `Where{0}` asks without a promise.
///
/// S-131
#[test]
fn asking_for_the_position_promises_nothing() {
    let mut lone = Lone::holding(&[1, 1]);
    let said = position(&lone.ask(DATA, 0));
    assert_eq!(
        (said.promised, said.next, said.durable_end),
        (Epoch(1), BlockNo(2), BlockNo(2))
    );
    assert!(lone.saves.is_empty());
}

/// A `Where` that came while another one's promise was being saved is judged by what is then true.
#[test]
fn an_epoch_is_promised_to_one_leader() {
    let mut lone = Lone::holding(&[1]);
    lone.adopt(5);
    lone.replica = {
        let mut other = config(2, 3);
        other.leader = NodeId(3);
        let mut replica = Replica::new(other);
        let promise = Promise {
            epoch: Epoch(5),
            leader: Some(NodeId(1)),
            memory: ReplicaMemory::Whole,
        };
        replica.started(NOW, promise, BlockNo(0), &lone.log);
        replica.peer_up(NOW, NodeId(3), DATA, Channel::Data, false);
        replica
    };
    let (code, refusal) = nack(&lone.ask(DATA, 5));
    assert_eq!((code, refusal.promised), (Code::StaleEpoch, Epoch(5)));
    assert_eq!(lone.ask(DATA, 6), []);
    assert_eq!(lone.saves[0].1.leader, Some(NodeId(3)));
}

/// Lower epochs are powerless, and are told the higher one; what was not asked for by a `Where` is
/// not yet in force.
///
/// H-70
#[test]
fn lower_epochs_are_refused() {
    let mut lone = Lone::holding(&[1, 1]);
    lone.adopt(5);
    let (code, refusal) = nack(&lone.ask(DATA, 4));
    assert_eq!((code, refusal.promised), (Code::StaleEpoch, Epoch(5)));
    let leader = TestLog::of(&[1, 1, 4]);
    let (verdict, said) = lone.push(&leader, 4, 2, 3);
    assert_eq!(verdict, Verdict::Refuse(Code::StaleEpoch));
    assert_eq!(nack(&said).1.promised, Epoch(5));
    let leader = TestLog::of(&[1, 1, 6]);
    let (verdict, _) = lone.push(&leader, 6, 2, 3);
    assert_eq!(verdict, Verdict::Refuse(Code::NotReady));
    assert_eq!(lone.log.list(), [1, 1]);
    let ping = Ping {
        epoch: Epoch(4),
        committed_end: BlockNo(2),
        log_start: BlockNo(0),
        log_end: BlockNo(2),
        sent_at_us: 77,
    };
    let said = lone.tell(CONTROL, ping);
    assert!(matches!(&said[..], [Body::Pong(pong)] if pong.promised == Epoch(5)));
    assert_eq!(lone.replica.high_watermark(), BlockNo(0));
}

/// A follower holds a durable suffix of an old leader. Frames of the new one that match below it
/// are acked up to where they matched, never up to `durable_end`.
///
/// S-28
#[test]
fn ack_never_passes_verified_end() {
    let mut lone = Lone::holding(&[1, 1, 1, 2, 2]);
    lone.adopt(3);
    let leader = TestLog::of(&[1, 1, 1, 3]);
    let (verdict, said) = lone.push(&leader, 3, 1, 1);
    assert_eq!((verdict, acks(&said)), (Verdict::AckAgain, vec![1]));
    let (verdict, said) = lone.push(&leader, 3, 1, 3);
    assert_eq!((verdict, acks(&said)), (Verdict::AckAgain, vec![3]));
    assert_eq!(lone.replica.verified_end(), BlockNo(3));
    assert!(acks(&lone.durable(5)).is_empty());
    let (verdict, said) = lone.push(&leader, 3, 3, 4);
    assert_eq!(
        verdict,
        Verdict::Write {
            cut: Some(BlockNo(3))
        }
    );
    assert!(acks(&said).is_empty(), "nothing new is durable");
    assert_eq!(acks(&lone.durable(4)), [4]);
}

/// The leader's high watermark is believed up to there only, however it is told.
///
/// H-61
#[test]
fn commit_never_passes_verified_end() {
    let mut lone = Lone::holding(&[1, 1, 1, 2, 2]);
    lone.adopt(3);
    let leader = TestLog::of(&[1, 1, 1, 3, 3, 3]);
    let ping = Ping {
        epoch: Epoch(3),
        committed_end: BlockNo(6),
        log_start: BlockNo(0),
        log_end: BlockNo(6),
        sent_at_us: 0,
    };
    lone.tell(CONTROL, ping.clone());
    assert_eq!(lone.replica.high_watermark(), BlockNo(0));
    lone.push(&leader, 3, 1, 3);
    assert_eq!(lone.replica.high_watermark(), BlockNo(3));
    lone.tell(CONTROL, ping);
    assert_eq!(lone.replica.high_watermark(), BlockNo(3));
    lone.push(&leader, 3, 3, 6);
    assert_eq!(lone.replica.high_watermark(), BlockNo(3), "not durable yet");
    lone.durable(5);
    assert_eq!(lone.replica.high_watermark(), BlockNo(5));
}

/// Nothing is acked before it is durable, in whatever order the disk ends; a duplicate is acked
/// with what is durable then.
///
/// S-52 S-53 S-88 S-91 S-136 S-137
#[test]
fn acks_follow_the_disk() {
    let mut lone = Lone::holding(&[1]);
    lone.adopt(1);
    let leader = TestLog::of(&[1, 1, 1, 1]);
    assert_eq!(
        acks(&lone.push(&leader, 1, 1, 3).1),
        [1],
        "the block before the run"
    );
    let (verdict, said) = lone.push(&leader, 1, 1, 3);
    assert_eq!((verdict, acks(&said)), (Verdict::AckAgain, vec![1]));
    let said = lone.durable(2);
    assert_eq!(acks(&said), [2]);
    assert!(matches!(&said[..], [Body::ReplicateOk(ok)] if ok.durable_offset.0 == 2));
    assert_eq!(acks(&lone.durable(3)), [3]);
    let (_, said) = lone.push(&leader, 1, 0, 2);
    assert_eq!(acks(&said), [3], "cumulative");
}

/// The fixed order of checks: each case is wrong in all that comes behind it as well.
///
/// H-70 H-7 H-8 H-9 H-88 S-44
#[test]
fn checks_come_in_a_fixed_order() {
    let leader = TestLog::of(&[1, 1, 2, 2, 2]);
    let damaged = |lone: &mut Lone, epoch, first, connection| {
        let headers = leader.range(first, first + 1);
        let body = frame(&leader, epoch, first, headers);
        lone.push_frame(connection, body, None).0
    };
    let fresh = || {
        let mut lone = Lone::holding(&[1, 1]);
        lone.adopt(2);
        lone
    };
    let mut lone = fresh();
    lone.replica
        .peer_up(NOW, NodeId(3), ConnectionId(9), Channel::Data, false);
    lone.replica.latched(NOW);
    assert_eq!(
        damaged(&mut lone, 1, 4, ConnectionId(9)),
        Verdict::Refuse(Code::LogFailed)
    );
    let mut lone = fresh();
    lone.replica
        .peer_up(NOW, NodeId(3), ConnectionId(9), Channel::Data, false);
    assert_eq!(
        damaged(&mut lone, 1, 4, ConnectionId(9)),
        Verdict::Refuse(Code::WrongNode)
    );
    assert_eq!(
        damaged(&mut lone, 1, 4, DATA),
        Verdict::Refuse(Code::StaleEpoch)
    );
    assert_eq!(
        damaged(&mut lone, 2, 4, DATA),
        Verdict::Refuse(Code::OutOfSync)
    );
    assert_eq!(
        damaged(&mut lone, 2, 2, DATA),
        Verdict::Refuse(Code::BadCrc)
    );
    assert_eq!(damaged(&mut lone, 2, 2, ConnectionId(77)), Verdict::Ignore);
    assert_eq!(lone.log.list(), [1, 1], "nothing was written");
    let (verdict, _) = lone.push(&leader, 2, 2, 5);
    assert_eq!(verdict, Verdict::Write { cut: None });
}

/// A batch that fails its CRC behind an admitted header: nothing is cut or written, the refusal is
/// explicit, and the same blocks may come again.
///
/// H-54 H-68 S-90 S-89 D-S3 H-28
#[test]
fn a_bad_batch_leaves_no_trace() {
    let mut lone = Lone::holding(&[1, 1, 1]);
    lone.adopt(2);
    let leader = TestLog::of(&[1, 2, 2]);
    let headers = leader.range(1, 3).to_vec();
    let body = Body::Replicate(frame(&leader, 2, 1, &headers));
    let verdict = lone
        .replica
        .on_run(NOW, DATA, &body, Some(&headers), &lone.log);
    assert_eq!(
        verdict,
        Verdict::Write {
            cut: Some(BlockNo(1))
        }
    );
    lone.replica.run_refused(NOW, Code::BadCrc, &lone.log);
    lone.act();
    let said = core::mem::take(&mut lone.sent);
    assert_eq!(nack(&said).0, Code::BadCrc);
    assert_eq!(
        (lone.log.list(), lone.replica.verified_end()),
        (vec![1, 1, 1], BlockNo(0))
    );
    assert!(lone.notices.is_empty());
    let (verdict, _) = lone.push(&leader, 2, 1, 3);
    assert_eq!(
        verdict,
        Verdict::Write {
            cut: Some(BlockNo(1))
        }
    );
    assert_eq!(lone.log.list(), [1, 2, 2]);
}

/// Refused frames take no credit away for good: by CRC, by position, by fence.
///
/// Q-18 S-92
#[test]
fn refused_frames_do_not_leak_credit() {
    let mut small = config(2, 3);
    small.initial_credit = credit(4, 3 * 4096);
    let promise = Promise {
        epoch: Epoch(1),
        leader: Some(NodeId(1)),
        memory: ReplicaMemory::Whole,
    };
    let mut lone = Lone::with(small, TestLog::of(&[1]), promise);
    lone.adopt(2);
    let leader = TestLog::of(&[1, 2, 2, 2]);
    let mut sent = CreditLimits::default();
    for round in 0..30u64 {
        let first = 1 + round % 3;
        let headers = leader.range(first, first + 1).to_vec();
        let epoch = if round % 5 == 0 { 1 } else { 2 };
        let body = frame(&leader, epoch, first, &headers);
        let (verdict, said) = lone.push_frame(DATA, body, None);
        assert!(matches!(verdict, Verdict::Refuse(_)));
        sent.records += 1;
        sent.bytes += 4096;
        let limits = nack(&said).1.limits;
        assert_eq!(limits, credit(sent.records + 4, sent.bytes + 3 * 4096));
    }
    assert!(lone.closed.is_empty());
}

/// A sender that ignores its credit is refused and loses the connection; what it sent is forgotten.
///
/// Q-17 S-26
#[test]
fn more_than_granted_closes_the_connection() {
    let mut small = config(2, 3);
    small.initial_credit = credit(2, 8192);
    let promise = Promise {
        epoch: Epoch(1),
        leader: Some(NodeId(1)),
        memory: ReplicaMemory::Whole,
    };
    let mut lone = Lone::with(small, TestLog::of(&[1]), promise);
    lone.adopt(1);
    let leader = TestLog::of(&[1, 1, 1, 1, 1]);
    assert_eq!(lone.push(&leader, 1, 1, 3).0, Verdict::Write { cut: None });
    let (verdict, said) = lone.push(&leader, 1, 3, 4);
    assert_eq!(verdict, Verdict::Refuse(Code::OverCredit));
    assert_eq!(nack(&said).0, Code::OverCredit);
    assert_eq!(lone.closed, [Code::OverCredit]);
    assert_eq!(lone.push(&leader, 1, 3, 4).0, Verdict::Ignore);
    lone.replica
        .peer_up(NOW, NodeId(1), ConnectionId(5), Channel::Data, false);
    let said = position(&lone.ask(ConnectionId(5), 1));
    assert_eq!(
        said.limits,
        credit(0, 0),
        "the older connection still holds the window"
    );
    lone.log.durable_end = BlockNo(3);
    lone.replica.durable(NOW, &lone.log);
    lone.act();
    let granted = lone
        .sent
        .iter()
        .any(|body| matches!(body, Body::ReplicateOk(ok) if ok.limits == credit(2, 8192)));
    assert!(granted, "{:?}", lone.sent);
}

/// A newer connection of the leader replaces the older one.
#[test]
fn a_newer_connection_replaces_the_older() {
    let mut lone = Lone::holding(&[1]);
    lone.adopt(1);
    lone.replica
        .peer_up(NOW, NodeId(1), ConnectionId(5), Channel::Data, false);
    lone.act();
    assert_eq!(lone.closed, [Code::Replaced]);
    let leader = TestLog::of(&[1, 1]);
    assert_eq!(lone.push(&leader, 1, 1, 2).0, Verdict::Ignore);
    lone.ask(ConnectionId(5), 1);
    let headers = leader.range(1, 2).to_vec();
    let body = frame(&leader, 1, 1, &headers);
    let (verdict, _) = lone.push_frame(ConnectionId(5), body, Some(headers));
    assert_eq!(verdict, Verdict::Write { cut: None });
}

/// Only the placed leader may ask for anything.
///
/// S-45 S-64
#[test]
fn other_nodes_are_refused() {
    let mut lone = Lone::holding(&[1, 1]);
    let other = ConnectionId(9);
    lone.replica
        .peer_up(NOW, NodeId(3), other, Channel::Data, false);
    assert_eq!(nack(&lone.ask(other, 0)).0, Code::WrongNode);
    assert_eq!(nack(&lone.ask(other, 9)).0, Code::WrongNode);
    let fetch = Fetch {
        epoch: Epoch(1),
        first: BlockNo(0),
        prev_epoch: Epoch(0),
        max_bytes: 1,
    };
    assert_eq!(nack(&lone.tell(other, fetch)).0, Code::WrongNode);
    lone.replica
        .peer_up(NOW, NodeId(8), ConnectionId(10), Channel::Data, false);
    lone.act();
    assert_eq!(lone.closed, [Code::WrongNode], "no member at all");
    assert!(lone.saves.is_empty());
}

/// A follower whose log lost its memory promises, but says so, until its leader brought it up.
///
///
#[test]
fn a_lost_memory_comes_back_at_the_leaders_end() {
    let promise = Promise {
        epoch: Epoch(0),
        leader: None,
        memory: ReplicaMemory::Blank,
    };
    let mut lone = Lone::with(config(2, 3), TestLog::default(), promise);
    assert_eq!(position(&lone.ask(DATA, 0)).memory, ReplicaMemory::Blank);
    let body = Where {
        epoch: Epoch(4),
        log_end: BlockNo(3),
        founding: 0,
        last_epoch: Epoch(0),
        won: 0,
    };
    lone.tell(DATA, body);
    assert_eq!(position(&lone.save()).memory, ReplicaMemory::Lost);
    let mut leader = TestLog::of(&[1, 1]);
    leader.seal(Epoch(4), 1, 0, Tick(0));
    lone.push(&leader, 4, 0, 2);
    assert!(
        lone.durable(2).iter().all(|body| {
            matches!(body, Body::ReplicateOk(ok) if ok.memory == ReplicaMemory::Lost)
        })
    );
    assert!(lone.saves.is_empty());
    lone.push(&leader, 4, 2, 3);
    lone.durable(3);
    assert_eq!(lone.saves[0].1.memory, ReplicaMemory::Whole);
    let said = lone.save();
    assert!(matches!(&said[..], [Body::ReplicateOk(ok)] if ok.memory == ReplicaMemory::Whole));
    assert_eq!(LOG, leader.blocks[0].log);
}
