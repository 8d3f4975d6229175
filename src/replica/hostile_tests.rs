//! A member that says what no member can: the others refuse it, and nobody's process ends.

use super::Role;
use super::test_kit::{Frame, Net};
use crate::limits::{EPOCH_MAX, POSITION_MAX};
use crate::types::{BlockNo, Epoch, NodeId, Offset};
use crate::wire::body::{
    Body, Channel, CreditLimits, Fetch, FetchOk, Limits, Nack, Pause, PauseReason, Ping, Pong,
    Position, ReplicaMemory, Replicate, ReplicateOk, Resume, Sealed, Where,
};
use crate::wire::code::Code;

/// What node 3 says to node 1 on a connection of the two.
fn say(net: &mut Net, channel: Channel, body: impl Into<Body>) {
    let connection = match channel {
        Channel::Data => net.data_to(3),
        Channel::Control => net.connect(NodeId(3), NodeId(1), Channel::Control),
    };
    net.deliver(Frame {
        from: NodeId(3),
        to: NodeId(1),
        connection,
        body: body.into(),
        headers: Vec::new(),
        damaged: false,
    });
    net.run();
}

fn position(epoch: u32, last_epoch: u32, next: u64, durable_end: u64) -> Position {
    Position {
        promised: Epoch(epoch),
        last_epoch: Epoch(last_epoch),
        last_crc: 0,
        next: BlockNo(next),
        durable_end: BlockNo(durable_end),
        committed_end: BlockNo(0),
        log_start: BlockNo(0),
        memory: ReplicaMemory::Whole,
        hears_leader: 0,
        limits: CreditLimits {
            records: u64::MAX,
            bytes: u64::MAX,
        },
    }
}

/// An empty log with a last epoch would be the most up-to-date one, with nothing to copy from it.
#[test]
fn a_position_that_cannot_be_one_ends_the_link() {
    for said in [
        position(1, 5, 0, 0),
        position(1, 1, 3, 4),
        Position {
            log_start: BlockNo(4),
            ..position(1, 1, 3, 3)
        },
        Position {
            committed_end: BlockNo(4),
            ..position(1, 1, 3, 3)
        },
    ] {
        let mut net = Net::founded(3);
        let before = net.closed.len();
        say(&mut net, Channel::Data, said.clone());
        assert_eq!(
            net.closed[before..],
            [(NodeId(1), Code::BadFrame)],
            "{said:?}"
        );
        net.advance(3_000_000);
        net.append(1, &[1]);
        net.assert_converged();
    }
}

/// Once somebody promised the last epoch there is none to lead in; the leader says so and lives.
#[test]
fn there_is_no_epoch_above_the_last() {
    let mut net = Net::founded(3);
    let pong = Pong {
        promised: Epoch(EPOCH_MAX - 1),
        durable_end: BlockNo(0),
        sent_at_us: 0,
    };
    say(&mut net, Channel::Control, pong.clone());
    net.advance(3_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Leader);
    assert_eq!(net.node(1).replica.epoch(), Epoch(EPOCH_MAX));
    net.append(1, &[1]);
    net.assert_converged();

    let mut net = Net::founded(3);
    let last = Pong {
        promised: Epoch(EPOCH_MAX),
        ..pong
    };
    say(&mut net, Channel::Control, last);
    net.advance(10_000_000);
    assert_eq!(net.node(1).replica.role(), Role::Opening);
    let told = net.node(1).notices.iter();
    let told = told.filter(|text| text.contains("none is above it") && text.contains("mend"));
    assert_eq!(told.count(), 1);
}

/// Logs are compared by the blocks of a frame: a refusal of none stops no link.
#[test]
fn a_divergence_of_nothing_stops_no_link() {
    let mut net = Net::founded(3);
    let nack = Nack {
        code: Code::Diverged.number(),
        first: BlockNo(POSITION_MAX),
        next: BlockNo(POSITION_MAX),
        promised: Epoch(1),
        hint_epoch: Epoch(0),
        hint_first: BlockNo(0),
        limits: CreditLimits::default(),
    };
    say(&mut net, Channel::Data, nack);
    net.append(1, &[1, 1]);
    net.assert_converged();
}

/// Numbers that a frame may carry, near those that matter.
fn numbers(net: &Net) -> Vec<u64> {
    let end = net.nodes[&NodeId(1)].log.blocks.len() as u64;
    vec![
        0,
        1,
        2,
        end.saturating_sub(1),
        end,
        end + 1,
        1 << 40,
        POSITION_MAX,
    ]
}

struct Draw(u64);

impl Draw {
    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        all[(self.0 >> 33) as usize % all.len()]
    }

    fn block(&mut self, numbers: &[u64]) -> BlockNo {
        BlockNo(self.of(numbers))
    }

    fn epoch(&mut self) -> Epoch {
        Epoch(self.of(&[0, 1, 1, 1, 2, 3, 1 << 20, EPOCH_MAX]))
    }

    fn limits(&mut self) -> CreditLimits {
        CreditLimits {
            records: self.of(&[0, 1, 1000, u64::MAX]),
            bytes: self.of(&[0, 4096, 1 << 20, u64::MAX]),
        }
    }

    fn memory(&mut self) -> ReplicaMemory {
        self.of(&[
            ReplicaMemory::Whole,
            ReplicaMemory::Lost,
            ReplicaMemory::Blank,
        ])
    }

    /// Any frame that nodes send to one another once they are connected.
    fn body(&mut self, at: &[u64]) -> Body {
        match self.of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]) {
            0 => self.of_leader(at),
            1 | 2 => Position {
                promised: self.epoch(),
                last_epoch: self.epoch(),
                last_crc: self.of(&[0, 7]),
                next: self.block(at),
                durable_end: self.block(at),
                committed_end: self.block(at),
                log_start: self.block(at),
                memory: self.memory(),
                hears_leader: 0,
                limits: self.limits(),
            }
            .into(),
            3 | 4 => ReplicateOk {
                epoch: self.epoch(),
                durable_end: self.block(at),
                durable_offset: Offset(self.of(at)),
                memory: self.memory(),
                limits: self.limits(),
            }
            .into(),
            5 | 6 => Nack {
                code: self.of(Code::ALL).number(),
                first: self.block(at),
                next: self.block(at),
                promised: self.epoch(),
                hint_epoch: self.epoch(),
                hint_first: self.block(at),
                limits: self.limits(),
            }
            .into(),
            7 => Limits {
                limits: self.limits(),
            }
            .into(),
            8 => Pause {
                reason: self.of(&[PauseReason::SlowDisk, PauseReason::Manual]),
            }
            .into(),
            9 => Resume {
                next: self.block(at),
            }
            .into(),
            10 => Pong {
                promised: self.epoch(),
                durable_end: self.block(at),
                sent_at_us: self.of(&[0, 1, u64::MAX]),
            }
            .into(),
            _ => FetchOk {
                epoch: self.epoch(),
                first: self.block(at),
                prev_epoch: self.epoch(),
                committed_end: self.block(at),
                count: self.of(&[0, 1, u32::MAX]),
                padded_len: self.of(&[0, 4096, u32::MAX]),
            }
            .into(),
        }
    }

    fn of_leader(&mut self, at: &[u64]) -> Body {
        match self.of(&[0, 1, 2, 3, 4]) {
            0 => Where {
                epoch: self.epoch(),
                log_end: self.block(at),
                founding: self.of(&[0, 1, 255]),
                last_epoch: Epoch(0),
                won: 0,
            }
            .into(),
            1 => Replicate {
                epoch: self.epoch(),
                first: self.block(at),
                prev_epoch: self.epoch(),
                prev_crc: self.of(&[0, 7]),
                committed_end: self.block(at),
                log_start: self.block(at),
                count: self.of(&[0, 0, 1, u32::MAX]),
                records: self.of(&[0, 1, u32::MAX]),
                padded_len: self.of(&[0, 4096, u32::MAX]),
            }
            .into(),
            2 => Fetch {
                epoch: self.epoch(),
                first: self.block(at),
                prev_epoch: self.epoch(),
                max_bytes: self.of(&[0, 4096, u32::MAX]),
            }
            .into(),
            3 => Sealed {
                epoch: self.epoch(),
                bytes: self.of(&[0, 4096, u64::MAX]),
            }
            .into(),
            _ => Ping {
                epoch: self.epoch(),
                committed_end: self.block(at),
                log_start: self.block(at),
                log_end: self.block(at),
                sent_at_us: self.of(&[0, u64::MAX]),
            }
            .into(),
        }
    }
}

/// One member says anything at any time, to the leader and to the other follower, which takes it
/// for its leader. Nothing panics.
#[test]
fn whatever_a_member_says_the_others_live() {
    for seed in 0..300 {
        let mut draw = Draw(seed);
        let mut net = Net::founded(3);
        for _ in 0..40 {
            if net.node(1).replica.role() == Role::Leader {
                net.append(1, &[1]);
            }
            net.run();
            let at = numbers(&net);
            let (from, to, body) = match draw.of(&[0, 1, 2]) {
                0 => (NodeId(1), NodeId(2), draw.of_leader(&at)),
                _ => (NodeId(3), NodeId(1), draw.body(&at)),
            };
            let connected = net.link(to.0.max(from.0)).status != super::LinkStatus::Disconnected;
            if connected {
                let connection = net.data_to(if to == NodeId(2) { 2 } else { 3 });
                net.deliver(Frame {
                    from,
                    to,
                    connection,
                    body,
                    headers: Vec::new(),
                    damaged: false,
                });
            }
            net.run();
            net.advance(draw.of(&[0, 20_000, 1_200_000]));
        }
    }
}
