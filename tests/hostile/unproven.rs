//! Attacks of somebody who knows all facts of a cluster but not its secret, or who knows it and
//! leaves a step of the exchange out.
//!
//! The table of steps is at the top of `src/wire/trust.rs`. What the test must make with the secret
//! to get as far as it wants, it makes by the node's own formats.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use millrace::limits::{FRAME_HEADER, HANDSHAKE_MS};
use millrace::types::NodeId;
use millrace::wire::body::{Body, Challenge, Channel, Hello, HelloOk, PROTOCOL, ProofOk, Trusted};
use millrace::wire::code::Code;
use millrace::wire::trust::{HAS_SECRET, Meeting, Secret, Secrets};

use crate::frames::{self, Sample, reseal};
use crate::members::{Dialing, LED, ME, outcome, sealed, until_still_there};
use crate::nodes::{Nodes, log};
use crate::tally::Tally;
use crate::wire::{Answer, Wire};

/// The cluster's.
pub const SECRET: &[u8] = b"what only members of the cluster know";
const OTHER: &[u8] = b"what somebody thinks that members know";
const NONCE: [u8; 32] = [0x5a; 32];
/// A machine with much to do may be late.
const LATE: Duration = Duration::from_secs(10);

fn secrets(bytes: &[u8]) -> Secrets {
    Secrets {
        first: Secret::new(bytes).expect("of sound length"),
        second: None,
    }
}

/// Somebody who dials one node.
pub struct Unproven<'a>(pub Dialing<'a>);

impl Unproven<'_> {
    fn hello(&self, channel: Channel) -> Hello {
        Hello {
            capabilities: HAS_SECRET,
            ..self.0.hello(channel)
        }
    }

    /// A connection on which the node waits for a proof.
    fn challenged(&self, channel: Channel) -> (Wire, Meeting) {
        let mut wire = Wire::open(&self.0.address);
        let hello = self.hello(channel);
        wire.send_body(hello.clone(), 0, log(LED));
        let answer = wire.next().expect("the Hello is answered");
        let Body::Challenge(challenge) = answer.body else {
            panic!("a node with a secret asks for a proof: {answer:?}");
        };
        let meeting = Meeting {
            hello,
            log: log(LED),
            accepting_nonce: challenge.nonce,
        };
        (wire, meeting)
    }

    /// A connection on which the node has proved itself, and waits to hear that this is believed.
    fn believed(&self, channel: Channel) -> Wire {
        let (mut wire, meeting) = self.challenged(channel);
        let answer = secrets(SECRET).answer(&meeting, NONCE);
        wire.send_body(answer.clone(), 0, log(LED));
        let ok = wire.next().expect("the proof is answered");
        let Body::ProofOk(ok) = ok.body else {
            panic!("a node that was convinced proves itself: {ok:?}");
        };
        let proved = secrets(SECRET).check_ok(&meeting, &answer, &ok);
        assert_eq!(proved, Ok(()), "the node knows the secret");
        let last = wire.next().map(|answer| answer.name());
        assert_eq!(last, Some("HelloOk"));
        wire
    }

    fn count(&mut self, what: &str, attack: &str, answers: &[Answer], owed: Option<Code>) {
        let codes: Vec<Code> = answers
            .iter()
            .filter_map(|a| Some(a.refusal()?.0))
            .collect();
        assert_eq!(codes, Vec::from_iter(owed), "{what}, {attack}: {answers:?}");
        assert_eq!(answers.len(), codes.len(), "{what}, {attack}: {answers:?}");
        let outcome = outcome(answers, false);
        self.0.tally.count(what, attack, &outcome);
    }

    /// Each frame in the place of a proof, and in the place of the word that ends the exchange.
    pub fn frames(&mut self) {
        for channel in [Channel::Data, Channel::Control] {
            let mut wire = Wire::open(&self.0.address);
            wire.send_body(self.0.hello(channel), 0, log(LED));
            let answers = wire.until_closed();
            assert_eq!(answers[0].refusal(), Some((Code::SecretMissing, [1, 0])));
            self.count(
                "Hello",
                "without a secret",
                &answers,
                Some(Code::SecretMissing),
            );
            for sample in frames::samples(log(LED)) {
                let (mut wire, _) = self.challenged(channel);
                wire.send(&sample.bytes);
                let owed = owed_for(&sample, "Proof", Some(Code::WrongSecret));
                let answers = wire.until_closed();
                self.count(sample.name, "instead of a proof", &answers, owed);
                if sample.name == "Trusted" {
                    continue;
                }
                let mut wire = self.believed(channel);
                wire.send(&sample.bytes);
                let owed = owed_for(&sample, "", None);
                let answers = wire.until_closed();
                self.count(sample.name, "before the end", &answers, owed);
            }
            let mut unknown = sealed(Trusted {}, log(LED), &[]);
            unknown.bytes[4] = 0x7e;
            reseal(&mut unknown.bytes, unknown.head);
            let (mut wire, _) = self.challenged(channel);
            wire.send(&unknown.bytes);
            let answers = wire.until_closed();
            self.count(
                "unknown",
                "instead of a proof",
                &answers,
                Some(Code::Unsupported),
            );
            self.0.witness.works();
        }
    }

    /// Proofs that are none.
    pub fn proofs(&mut self) {
        let (mut first, heard) = self.challenged(Channel::Data);
        let heard = secrets(SECRET).answer(&heard, NONCE);
        first.send_body(heard.clone(), 0, log(LED));
        assert!(matches!(
            first.next().expect("answered").body,
            Body::ProofOk(_)
        ));
        let other_channel = |meeting: &Meeting| {
            let mut other = meeting.clone();
            other.hello.channel = Channel::Control;
            secrets(SECRET).answer(&other, NONCE)
        };
        for attack in ["heard before", "by another secret", "for another channel"] {
            let (mut wire, meeting) = self.challenged(Channel::Data);
            let proof = match attack {
                "heard before" => heard.clone(),
                "by another secret" => secrets(OTHER).answer(&meeting, NONCE),
                _ => other_channel(&meeting),
            };
            wire.send_body(proof, 0, log(LED));
            let answers = wire.until_closed();
            self.count("Proof", attack, &answers, Some(Code::WrongSecret));
        }
        for bit in 8 * FRAME_HEADER..8 * (FRAME_HEADER + 64) {
            let (mut wire, meeting) = self.challenged(Channel::Data);
            let mut sample = sealed(secrets(SECRET).answer(&meeting, NONCE), log(LED), &[]);
            sample.bytes[bit / 8] ^= 1 << (bit % 8);
            reseal(&mut sample.bytes, sample.head);
            wire.send(&sample.bytes);
            let answers = wire.until_closed();
            self.count(
                "Proof",
                "bit flipped, CRC fits",
                &answers,
                Some(Code::WrongSecret),
            );
        }
        for len in 0..FRAME_HEADER + 64 {
            let (mut wire, meeting) = self.challenged(Channel::Data);
            let sample = sealed(secrets(SECRET).answer(&meeting, NONCE), log(LED), &[]);
            wire.send(&sample.bytes[..len]);
            wire.end();
            let answers = wire.until_closed();
            self.count("Proof", "cut off", &answers, None);
        }
        // A payload is refused before a byte of it has come.
        let (mut wire, meeting) = self.challenged(Channel::Data);
        let answer = Body::from(secrets(SECRET).answer(&meeting, NONCE));
        wire.send(&answer.encode(0, log(LED), 1 << 20));
        let answers = wire.until_closed();
        self.count("Proof", "with a payload", &answers, Some(Code::BadFrame));
        self.0.witness.works();
    }

    /// Who waits at any step is closed when the time of the exchange is over; who takes all of them
    /// is a member.
    pub fn waits(&mut self) {
        let begun = Instant::now();
        let mut waiting = Vec::new();
        for channel in [Channel::Data, Channel::Control] {
            let mut wire = Wire::open(&self.0.address);
            wire.send(&Body::from(self.hello(channel)).encode(0, log(LED), 1000));
            waiting.push(("for the Hello's payload", wire));
            waiting.push(("for a proof", self.challenged(channel).0));
            waiting.push(("for the end", self.believed(channel)));
        }
        let mut member = self.believed(Channel::Control);
        member.send_body(Trusted {}, 0, log(LED));
        for (what, mut wire) in waiting {
            let answers = wire.until_closed();
            self.count("nothing", what, &answers, None);
        }
        let took = begun.elapsed();
        assert!(
            took < Duration::from_millis(HANDSHAKE_MS) + LATE,
            "{took:?}"
        );
        let (_, open) = until_still_there(&mut member);
        assert!(open, "a member stays");
        self.0.witness.works();
    }
}

/// What is owed for a sample in a place where only `wanted` may stand, itself answered by `answer`.
fn owed_for(sample: &Sample, wanted: &str, answer: Option<Code>) -> Option<Code> {
    match sample.name {
        name if name == wanted => answer,
        "Error" => None,
        _ if sample.bytes.len() > sample.head => Some(Code::BadFrame),
        _ => Some(Code::WrongDirection),
    }
}

/// How somebody who is dialed lets a node in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// At once, without a proof.
    AtOnce,
    /// With a proof that is none.
    Invented,
    /// With the dialing node's own one.
    Reflected,
    /// With none after the dialing node's.
    Omitted,
    /// As a member, but not as the one that was dialed.
    AnotherNode,
    /// As the member that was dialed.
    Sound,
}

/// Somebody at the address of a member whom the others dial: what each of them makes of it.
pub fn dialed(nodes: &Nodes, tally: &mut Tally) {
    let listener = TcpListener::bind(nodes.address(2)).expect("the member's own port");
    let next = || loop {
        let (stream, _) = listener.accept().expect("a node dials");
        let mut wire = Wire::over(stream);
        let Some(first) = wire.next() else { continue };
        let Body::Hello(hello) = first.body else {
            panic!("a node begins with a Hello");
        };
        assert_eq!(hello.capabilities & HAS_SECRET, HAS_SECRET);
        let meeting = Meeting {
            hello,
            log: first.log,
            accepting_nonce: NONCE,
        };
        return (wire, meeting);
    };
    let cases = [
        (Manner::AtOnce, Some(Code::SecretMissing)),
        (Manner::Invented, Some(Code::WrongSecret)),
        (Manner::Reflected, Some(Code::WrongSecret)),
        (Manner::Omitted, Some(Code::WrongDirection)),
        (Manner::AnotherNode, Some(Code::WrongNode)),
        (Manner::Sound, None),
    ];
    for (manner, code) in cases {
        for _ in 0..20 {
            let (mut wire, meeting) = next();
            let said = let_in(&mut wire, &meeting, manner);
            let outcome = said.as_ref().map_or("nothing", Answer::name);
            let refused = said.as_ref().and_then(Answer::refusal);
            assert_eq!(refused.map(|(code, _)| code), code, "{manner:?}: {said:?}");
            if code.is_none() {
                assert_eq!(outcome, "Trusted", "{said:?}");
            }
            tally.count("Hello", &format!("dialed: {manner:?}"), outcome);
        }
    }
    for sample in frames::samples(log(LED)) {
        let (mut wire, _) = next();
        wire.send(&sample.bytes);
        let owed = match sample.name {
            "HelloOk" => Some(Code::SecretMissing),
            "Challenge" => None,
            _ => owed_for(&sample, "", None),
        };
        let said = wire.next();
        let refused = said.as_ref().and_then(Answer::refusal);
        assert_eq!(
            refused.map(|(code, _)| code),
            owed,
            "{}: {said:?}",
            sample.name
        );
        let outcome = said.as_ref().map_or("nothing", Answer::name);
        tally.count(sample.name, "dialed: answers Hello", outcome);
    }
}

/// Answers a Hello in this manner; what the node says at the end.
fn let_in(wire: &mut Wire, meeting: &Meeting, manner: Manner) -> Option<Answer> {
    let log = meeting.log;
    let ok = |node| HelloOk {
        protocol: PROTOCOL,
        node,
        cores: 1,
        capabilities: 0,
    };
    if manner == Manner::AtOnce {
        wire.send_body(ok(ME), 0, log);
        return wire.next();
    }
    wire.send_body(Challenge { nonce: NONCE }, 0, log);
    let answer = wire.next().expect("the challenge is answered");
    let Body::Proof(answer) = answer.body else {
        panic!("a node that is asked proves itself: {answer:?}");
    };
    let sound = secrets(SECRET).check_answer(meeting, &answer);
    let sound = sound.expect("the node knows the secret");
    let proof = match manner {
        Manner::Invented => [7; 32],
        Manner::Reflected => answer.proof,
        _ => sound.proof,
    };
    if manner != Manner::Omitted {
        wire.send_body(ProofOk { proof }, 0, log);
    }
    let node = match manner {
        Manner::AnotherNode => NodeId(2 * ME.0),
        _ => ME,
    };
    wire.send_body(ok(node), 0, log);
    wire.next()
}
