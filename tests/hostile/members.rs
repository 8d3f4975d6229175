//! Attacks of a member: the test is node 3 of the set, and lies.
//!
//! As a *dialing* member it comes with a sound Hello and then sends whatever it likes; it is the
//! placed leader of shard 2, so there its sound frames are obeyed. As a *listening* member it is
//! dialed by the leaders of the other shards, follows shard 3 and answers with whatever it likes.
//! Shards 0 and 1 are the honest nodes' own: there the witnesses work.

use millrace::limits::{BATCH_HEADER, BLOCK_HEADER, FRAME_HEADER};
use millrace::types::{LogId, NodeId, OriginId};
use millrace::wire::body::{Body, Channel, Hello, PROTOCOL};
use millrace::wire::capability::Capabilities;
use millrace::wire::code::Code;
use millrace::wire::frame;

use crate::frames::{self, NUMBER, Sample, reseal};
use crate::led::{Led, seal_batch, seal_block};
use crate::nodes::{CLUSTER, Nodes, Witness, log};
use crate::tally::Tally;
use crate::wire::{Answer, Wire};

/// The member that the test is.
pub const ME: NodeId = NodeId(3);
/// The shard that it leads, and one that it follows.
pub const LED: u16 = 2;
pub const FOLLOWED: u16 = 3;
/// The number of the question that shows whether a connection goes on.
const STILL_THERE: u64 = u64::MAX - 1;

/// Fields of a block's header that say what its batches say, and where they lie: another value
/// under a good CRC contradicts the batches.
const CONTRADICTIONS: [(&str, usize); 7] = [
    ("used_len", 20),
    ("batch_count", 24),
    ("record_count", 28),
    ("base_offset", 44),
    ("end_offset", 52),
    ("max_timestamp", 74),
    ("last_tick", 82),
];

/// A frame of a type that nobody knows: it is answered, whatever the connection is.
fn unknown() -> Vec<u8> {
    let mut bytes = vec![0; FRAME_HEADER];
    frame::write_header(&mut bytes, 0x7e, STILL_THERE, LogId::default(), 0);
    bytes
}

/// What came before the node answered the unknown frame, and whether it did.
pub fn until_still_there(wire: &mut Wire) -> (Vec<Answer>, bool) {
    wire.send(&unknown());
    let mut before = Vec::new();
    while let Some(answer) = wire.next() {
        if answer.correlation == STILL_THERE {
            return (before, true);
        }
        before.push(answer);
    }
    (before, false)
}

/// The first refusal or frame among the answers that is not the node's own business.
pub fn outcome(answers: &[Answer], open: bool) -> String {
    let own = |answer: &&Answer| {
        !matches!(
            answer.body,
            Body::Where(_) | Body::Ping(_) | Body::Sealed(_)
        )
    };
    let name = answers.iter().rfind(own).map_or("nothing", named);
    if open {
        name.to_owned()
    } else {
        format!("{name} + close")
    }
}

/// A Nack by its code, anything else by its name.
fn named(answer: &Answer) -> &'static str {
    match &answer.body {
        Body::Nack(nack) => Code::from_number(nack.code).expect("a known code").name(),
        _ => answer.name(),
    }
}

pub fn sealed(body: impl Into<Body>, log: LogId, payload: &[u8]) -> Sample {
    let body = body.into();
    let mut bytes = body.encode(NUMBER, log, payload.len());
    let head = bytes.len();
    bytes.extend_from_slice(payload);
    Sample {
        name: body.name(),
        bytes,
        head,
    }
}

/// A member that dials one node.
pub struct Dialing<'a> {
    pub address: String,
    pub target: NodeId,
    pub fingerprint: u32,
    pub witness: &'a mut Witness,
    pub tally: Tally,
}

impl Dialing<'_> {
    pub fn new<'a>(nodes: &Nodes, node: usize, witness: &'a mut Witness) -> Dialing<'a> {
        let mut dialing = Dialing {
            address: nodes.ports_of(node)[usize::from(LED % crate::nodes::CORES)].clone(),
            target: NodeId(node as u32 + 1),
            fingerprint: 0,
            witness,
            tally: Tally::default(),
        };
        // A refusal names both values.
        let mut wire = Wire::open(&dialing.address);
        wire.send_body(dialing.hello(Channel::Data), 0, log(LED));
        let answers = wire.until_closed();
        let refusal = answers.first().and_then(Answer::refusal);
        let Some((Code::WrongFingerprint, [here, 0])) = refusal else {
            panic!("another fingerprint is refused with both values: {answers:?}");
        };
        dialing.fingerprint = here as u32;
        dialing
    }

    /// A sound Hello is accepted.
    pub fn is_welcome(&mut self) {
        let mut wire = Wire::open(&self.address);
        wire.send_body(self.hello(Channel::Control), 0, log(LED));
        let first = wire.next().map(|answer| answer.name());
        assert_eq!(first, Some("HelloOk"));
    }

    pub fn hello(&self, channel: Channel) -> Hello {
        Hello {
            protocol: PROTOCOL,
            cluster: OriginId(CLUSTER),
            node: ME,
            target: self.target,
            channel,
            cores: 1,
            core: 0,
            fingerprint: self.fingerprint,
            capabilities: 0,
        }
    }

    /// A connection whose Hello was accepted.
    pub fn open(&self, channel: Channel, log: LogId) -> Wire {
        let mut wire = Wire::open(&self.address);
        wire.send_body(self.hello(channel), 0, log);
        let answer = wire.next().expect("the Hello is answered");
        assert!(matches!(answer.body, Body::HelloOk(_)), "{answer:?}");
        wire
    }

    /// Whatever a node says that it can, it is let in: what this version has no name for is newer.
    pub fn capabilities(&mut self) {
        for bits in [0, 1 << 1, 1 << 63, u64::MAX - 1] {
            let mut wire = Wire::open(&self.address);
            let capabilities = bits;
            let hello = Hello {
                capabilities,
                ..self.hello(Channel::Control)
            };
            wire.send_body(hello, 0, log(LED));
            let answer = wire.next().expect("the Hello is answered");
            let Body::HelloOk(ok) = &answer.body else {
                panic!("{bits:x}: {answer:?}");
            };
            assert_eq!(ok.capabilities, Capabilities::HERE.bits());
            self.tally.count("Hello", "capabilities", answer.name());
        }
        self.witness.works_soon();
    }

    /// A frame that nobody knows is skipped, answered and counted; the connection goes on (H-33).
    pub fn unknown(&mut self) -> u64 {
        let mut sent = 0;
        for channel in [Channel::Data, Channel::Control] {
            let mut wire = self.open(channel, log(LED));
            for payload in [0, 1, 100_000] {
                let mut bytes = vec![0; FRAME_HEADER + 5];
                frame::write_header(&mut bytes, 0x7d, NUMBER, log(LED), payload);
                bytes.resize(bytes.len() + payload, 7);
                wire.send(&bytes);
                let own = |answer: &Answer| answer.correlation != NUMBER;
                let answer = std::iter::from_fn(|| wire.next()).find(|answer| !own(answer));
                let answer = answer.expect("it is answered");
                assert_eq!(answer.refusal(), Some((Code::Unsupported, [0, 0])));
                sent += 1;
            }
            assert!(until_still_there(&mut wire).1);
            sent += 1;
            self.tally.count("unknown", "skipped", "Unsupported");
        }
        self.witness.works_soon();
        sent
    }

    /// What a Hello may get wrong: each is refused with its code and both values.
    pub fn hellos(&mut self) {
        for (attack, hello, log, code, values) in self.wrong_hellos() {
            let mut wire = Wire::open(&self.address);
            wire.send_body(hello, 0, log);
            let answers = wire.until_closed();
            assert_eq!(answers.len(), 1, "{attack}");
            assert_eq!(answers[0].refusal(), Some((code, values)), "{attack}");
            self.tally.count("Hello", attack, &outcome(&answers, false));
        }
        let wrong_core = log(LED + 1);
        let mut wire = Wire::open(&self.address);
        wire.send_body(self.hello(Channel::Data), 0, wrong_core);
        let answers = wire.until_closed();
        assert!(matches!(answers[0].refusal(), Some((Code::WrongCore, [port, 0])) if port > 0));
        self.tally
            .count("Hello", "wrong core", &outcome(&answers, false));
        self.witness.works_soon();
    }

    fn wrong_hellos(&self) -> Vec<(&'static str, Hello, LogId, Code, [u64; 2])> {
        let sound = self.hello(Channel::Data);
        let here = log(LED);
        let other_log = LogId {
            origin: OriginId(8),
            ..here
        };
        let version = u64::from(PROTOCOL);
        let me = u64::from(self.target.0);
        let print = u64::from(self.fingerprint);
        let with = |change: &dyn Fn(&mut Hello)| {
            let mut hello = sound.clone();
            change(&mut hello);
            hello
        };
        let newer = with(&|hello| hello.protocol += 1);
        let oldest = with(&|hello| hello.protocol = 0);
        let cluster = with(&|hello| hello.cluster = OriginId(8));
        let itself = with(&|hello| hello.node = hello.target);
        let stranger = with(&|hello| hello.node = NodeId(9));
        let another = with(&|hello| hello.target = NodeId(9));
        let facts = with(&|hello| hello.fingerprint ^= 1);
        vec![
            (
                "version",
                newer,
                here,
                Code::WrongVersion,
                [version, version + 1],
            ),
            ("version 0", oldest, here, Code::WrongVersion, [version, 0]),
            (
                "cluster",
                cluster,
                here,
                Code::WrongCluster,
                [u64::from(CLUSTER), 8],
            ),
            ("node of itself", itself, here, Code::WrongNode, [me; 2]),
            ("unknown node", stranger, here, Code::WrongNode, [me; 2]),
            ("for another node", another, here, Code::WrongNode, [me, 9]),
            (
                "fingerprint",
                facts,
                here,
                Code::WrongFingerprint,
                [print, print ^ 1],
            ),
            (
                "unknown shard",
                sound.clone(),
                log(99),
                Code::UnknownLog,
                [0; 2],
            ),
            ("unknown origin", sound, other_log, Code::UnknownLog, [0; 2]),
        ]
    }

    /// Every frame on both kinds of connection: cut off, flipped, for a log that it is not for.
    pub fn frames(&mut self) {
        for channel in [Channel::Data, Channel::Control] {
            for sample in frames::samples(log(LED)) {
                self.cut_off(channel, &sample);
                self.flipped(channel, &sample);
                self.lying(channel, &sample);
                self.witness.works_soon();
            }
        }
    }

    fn alone(&self, channel: Channel, bytes: &[u8]) -> Vec<Answer> {
        let mut wire = self.open(channel, log(LED));
        wire.send(bytes);
        wire.end();
        wire.until_closed()
    }

    fn cut_off(&mut self, channel: Channel, sample: &Sample) {
        let attack = format!("{channel:?}: cut off");
        for len in 0..sample.bytes.len() {
            let answers = self.alone(channel, &sample.bytes[..len]);
            self.tally
                .count(sample.name, &attack, &outcome(&answers, false));
        }
    }

    fn flipped(&mut self, channel: Channel, sample: &Sample) {
        let attack = format!("{channel:?}: bit flipped");
        let mut bytes = sample.bytes.clone();
        for bit in 0..8 * sample.head {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let answers = self.alone(channel, &bytes);
            let refusals: Vec<Code> = answers
                .iter()
                .filter_map(|a| Some(a.refusal()?.0))
                .collect();
            let short = matches!(frames::fate(&bytes), frames::Fate::Short);
            let owed: &[Code] = if short { &[] } else { &[Code::BadFrame] };
            assert_eq!(refusals, owed, "{} bit {bit}", sample.name);
            self.tally
                .count(sample.name, &attack, &outcome(&answers, false));
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    fn lying(&mut self, channel: Channel, sample: &Sample) {
        let attack = format!("{channel:?}: bit flipped, CRC fits");
        let mut wire = None;
        for bit in (0..8 * sample.head).filter(|bit| !(64..96).contains(bit)) {
            let mut bytes = sample.bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            reseal(&mut bytes, sample.head);
            if bit < 32 || (208..224).contains(&bit) {
                // The lengths do not fit what is sent.
                let answers = self.alone(channel, &bytes);
                self.tally
                    .count(sample.name, &attack, &outcome(&answers, false));
                continue;
            }
            let on = wire.get_or_insert_with(|| self.open(channel, log(LED)));
            on.send(&bytes);
            let (answers, open) = until_still_there(on);
            if !open {
                wire = None;
            }
            self.tally
                .count(sample.name, &attack, &outcome(&answers, open));
        }
    }

    /// As the leader of its shard: sound blocks are taken, lying ones refused.
    pub fn leads(&mut self) {
        let mut led = Led::adopt(self);
        let taken = led.push(self, |_| {});
        assert_eq!(taken, "ReplicateOk", "a sound block of the placed leader");
        for at in 0..BATCH_HEADER {
            for bit in 0..8 {
                let outcome = led.push(self, |block| {
                    block[BLOCK_HEADER + at] ^= 1 << bit;
                    seal_batch(block, at);
                });
                self.tally
                    .count("Replicate", "batch lies, CRCs fit", &outcome);
            }
        }
        self.witness.works_soon();
        for at in 0..BLOCK_HEADER {
            for bit in 0..8 {
                let outcome = led.push(self, |block| {
                    block[at] ^= 1 << bit;
                    seal_block(block);
                });
                self.tally
                    .count("Replicate", "block lies, CRC fits", &outcome);
            }
        }
        self.witness.works_soon();
        for (field, at) in CONTRADICTIONS {
            let outcome = led.push(self, |block| {
                block[at] ^= 1;
                seal_block(block);
            });
            let refused = ["BadCrc", "BadFrame", "BadCrc + close", "BadFrame + close"];
            assert!(refused.contains(&outcome.as_str()), "{field}: {outcome}");
        }
        for bit in 0..8 * (BLOCK_HEADER + BATCH_HEADER + 40) {
            let outcome = led.push(self, |block| block[bit / 8] ^= 1 << (bit % 8));
            assert_eq!(outcome, "BadCrc", "byte {} of the run", bit / 8);
            self.tally
                .count("Replicate", "bit of payload flipped", &outcome);
        }
        self.witness.works_soon();
        self.leads_lying(&mut led);
        assert_eq!(
            led.push(self, |_| {}),
            "ReplicateOk",
            "and then it is sound again"
        );
    }

    /// Each field of the frames of a leader whose frames are obeyed.
    fn leads_lying(&mut self, led: &mut Led) {
        for which in 0..3 {
            let bits = 8 * led.frame(which).head;
            for bit in (0..bits).filter(|bit| *bit >= 8 * FRAME_HEADER) {
                let mut sample = led.frame(which);
                sample.bytes[bit / 8] ^= 1 << (bit % 8);
                reseal(&mut sample.bytes, sample.head);
                let outcome = led.say(self, &sample.bytes);
                self.tally
                    .count(sample.name, "leader lies, CRC fits", &outcome);
            }
            self.witness.works_soon();
        }
    }
}
