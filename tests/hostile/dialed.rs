//! Attacks of a member that is dialed: it follows a shard and answers with whatever it likes.

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::spawn;

use millrace::limits::FRAME_HEADER;
use millrace::types::{BlockNo, Epoch};
use millrace::wire::body::{
    Body, Channel, CreditLimits, HelloOk, PROTOCOL, Position, ReplicaMemory,
};

use crate::frames::{self, Sample, reseal};
use crate::members::{FOLLOWED, ME, outcome, until_still_there};
use crate::nodes::{Nodes, Witness, log};
use crate::tally::Tally;
use crate::wire::{Answer, Wire};

/// A member that is dialed: hands on the connections of the shard that it follows.
pub struct Listening {
    followed: Receiver<Wire>,
}

impl Listening {
    pub fn start(nodes: &Nodes) -> Listening {
        let listener = TcpListener::bind(nodes.address(2)).expect("the member's own port");
        let (sender, followed) = channel();
        spawn(move || {
            for stream in listener.incoming().flatten() {
                let sender = sender.clone();
                spawn(move || welcome(Wire::over(stream), &sender));
            }
        });
        Listening { followed }
    }

    /// The next connection on which the leader of the followed shard waits for an answer.
    fn next(&self) -> Wire {
        self.followed
            .recv_timeout(crate::node::PATIENCE)
            .expect("the leader dials")
    }

    /// A connection on which it has asked for the position.
    fn asked(&self) -> Wire {
        loop {
            let mut wire = self.next();
            accept(&mut wire, 1);
            let asks = |answer: Answer| matches!(answer.body, Body::Where(_));
            if wire.next().is_some_and(asks) {
                return wire;
            }
        }
    }

    /// Everything that a follower may answer, and what it may not.
    pub fn run(&self, witness: &mut Witness, tally: &mut Tally) {
        for sample in frames::samples(log(FOLLOWED)) {
            for at in 0..sample.bytes.len() {
                let mut wire = self.asked();
                wire.send(&sample.bytes[..at]);
                wire.end();
                let answers = wire.until_closed();
                tally.count(sample.name, "dialed: cut off", &outcome(&answers, false));
            }
            for at in 0..sample.head {
                let mut bytes = sample.bytes.clone();
                bytes[at] ^= 1 << (at % 8);
                let mut wire = self.asked();
                wire.send(&bytes);
                wire.end();
                let answers = wire.until_closed();
                tally.count(
                    sample.name,
                    "dialed: bit flipped",
                    &outcome(&answers, false),
                );
            }
            self.lies(&sample, tally);
            witness.works_soon();
        }
        self.positions(tally);
        witness.works_soon();
    }

    fn lies(&self, sample: &Sample, tally: &mut Tally) {
        let mut wire = None;
        for bit in 8 * FRAME_HEADER..8 * sample.head {
            let mut bytes = sample.bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            reseal(&mut bytes, sample.head);
            let on = wire.get_or_insert_with(|| self.asked());
            on.send(&bytes);
            let (answers, open) = until_still_there(on);
            if !open {
                wire = None;
            }
            let attack = "dialed: bit flipped, CRC fits";
            tally.count(sample.name, attack, &outcome(&answers, open));
        }
    }

    /// Positions that cannot be, as answers to each question of an opening leader.
    fn positions(&self, tally: &mut Tally) {
        let nothing = BlockNo(0);
        let position = |promised, last_epoch, next: u64| Position {
            promised,
            last_epoch,
            last_crc: 0,
            next: BlockNo(next),
            durable_end: BlockNo(next),
            committed_end: nothing,
            log_start: nothing,
            memory: ReplicaMemory::Whole,
            hears_leader: 0,
            limits: CreditLimits::default(),
        };
        for last_epoch in [0, 1, 1 << 30, 1 << 31] {
            for next in [0, 1, 1 << 62] {
                let mut wire = self.asked();
                let mut said = position(Epoch(0), Epoch(last_epoch), next);
                // The leader asks again with its epoch, and hears the same.
                for _ in 0..3 {
                    wire.send_body(said.clone(), 0, log(FOLLOWED));
                    let (answers, open) = until_still_there(&mut wire);
                    tally.count("Position", "cannot be", &outcome(&answers, open));
                    let mut asks = answers.iter().filter_map(|answer| match &answer.body {
                        Body::Where(body) => Some(body.epoch),
                        _ => None,
                    });
                    said.promised = asks.next_back().unwrap_or_default();
                    if !open {
                        break;
                    }
                }
            }
        }
    }
}

fn accept(wire: &mut Wire, cores: u16) {
    let ok = HelloOk {
        protocol: PROTOCOL,
        node: ME,
        cores,
        capabilities: 0,
    };
    wire.send_body(ok, 0, log(FOLLOWED));
}

/// Takes a dialed connection: those of the followed shard are handed on; control connections are
/// answered by a node that claims more cores than there are ports; the others get no answer.
fn welcome(mut wire: Wire, followed: &Sender<Wire>) {
    let Some(first) = wire.next() else {
        return;
    };
    let Body::Hello(hello) = &first.body else {
        panic!("a node begins with a Hello: {first:?}");
    };
    match hello.channel {
        Channel::Data if first.log == log(FOLLOWED) => {
            let _ = followed.send(wire);
        }
        Channel::Data => wire.hold(),
        Channel::Control => {
            accept(&mut wire, u16::MAX);
            wire.hold();
        }
    }
}
