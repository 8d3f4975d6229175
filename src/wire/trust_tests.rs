//! Proofs: their bytes, and all that must not pass for one.

use super::*;
use crate::types::{NodeId, OriginId, ShardId};
use crate::wire::body::Channel;
use crate::wire::golden;

const SECRET: &[u8] = b"of thirty-two bytes, not one less";
const NONCE: Bytes = [0xd1; 32];

fn meeting() -> Meeting {
    Meeting {
        hello: Hello {
            protocol: 3,
            cluster: OriginId(7),
            node: NodeId(1),
            target: NodeId(2),
            channel: Channel::Data,
            cores: 4,
            core: 3,
            fingerprint: 0x0102_0304,
            capabilities: HAS_SECRET,
        },
        log: LogId {
            origin: OriginId(7),
            shard: ShardId(5),
        },
        accepting_nonce: [0xa2; 32],
    }
}

fn secrets(first: &[u8], second: Option<&[u8]>) -> Secrets {
    let secret = |bytes: &[u8]| Secret::new(bytes).expect("of sound length");
    Secrets {
        first: secret(first),
        second: second.map(secret),
    }
}

fn ours() -> Secrets {
    secrets(SECRET, None)
}

/// What each side says of the other one's proof.
fn meet(dialing: &Secrets, accepting: &Secrets) -> [Result<(), Code>; 2] {
    let meeting = meeting();
    let answer = dialing.answer(&meeting, NONCE);
    match accepting.check_answer(&meeting, &answer) {
        Ok(ok) => [Ok(()), dialing.check_ok(&meeting, &answer, &ok)],
        Err(code) => [Err(code), Ok(())],
    }
}

/// The bytes of both proofs, as another program made them (Python's `hmac`) from the description at
/// the top of `trust.rs`.
///
/// S-172
#[test]
fn golden_proofs() {
    let bytes: Vec<u8> = (0..32).collect();
    let secrets = secrets(&bytes, None);
    let answer = secrets.answer(&meeting(), NONCE);
    let ok = secrets.check_answer(&meeting(), &answer).expect("its own");
    let golden = [
        "384be7214a7e8b586cd9f81db79fb3ba8c449104efbc43af0c6d716ed94749e8",
        "15d1fee960e3525df758724fdd236c37edcd35c05e7fb2d1e79e9e9dac473f37",
    ];
    assert_eq!(answer.proof.to_vec(), golden::unhex(&golden[..1]));
    assert_eq!(ok.proof.to_vec(), golden::unhex(&golden[1..]));
    assert_eq!(secrets.check_ok(&meeting(), &answer, &ok), Ok(()));
}

/// A proof of another connection proves nothing, whichever side's nonce is the one that is new.
///
/// S-172
#[test]
fn a_replayed_proof_is_none() {
    let then = meeting();
    let heard = ours().answer(&then, NONCE);
    let ok = ours().check_answer(&then, &heard).expect("it was one");
    let now = Meeting {
        accepting_nonce: [0xa3; 32],
        ..meeting()
    };
    assert_eq!(
        ours().check_answer(&now, &heard),
        Err(Code::WrongSecret),
        "to an accepting node"
    );
    let asked = ours().answer(&then, [0xd2; 32]);
    let said = ours().check_ok(&then, &asked, &ok);
    assert_eq!(said, Err(Code::WrongSecret), "to a dialing node");
    let other_nonce = Proof {
        nonce: [0xd2; 32],
        ..heard
    };
    let said = ours().check_answer(&then, &other_nonce);
    assert_eq!(said, Err(Code::WrongSecret), "under another nonce");
}

/// What a node made does not convince itself, neither on the connection that it is from nor on one
/// that goes the other way with the same nonces.
///
/// S-172
#[test]
fn a_reflected_proof_is_none() {
    let meeting = meeting();
    let answer = ours().answer(&meeting, NONCE);
    let back = ProofOk {
        proof: answer.proof,
    };
    let said = ours().check_ok(&meeting, &answer, &back);
    assert_eq!(said, Err(Code::WrongSecret), "to the node that dialed");
    let ok = ours().check_answer(&meeting, &answer).expect("its own");
    let mut other_way = meeting.clone();
    let hello = &mut other_way.hello;
    std::mem::swap(&mut hello.node, &mut hello.target);
    for (accepting, dialing) in [(meeting.accepting_nonce, NONCE), (NONCE, [0xa2; 32])] {
        other_way.accepting_nonce = accepting;
        for proof in [answer.proof, ok.proof] {
            let forged = Proof {
                nonce: dialing,
                proof,
            };
            let said = ours().check_answer(&other_way, &forged);
            assert_eq!(said, Err(Code::WrongSecret), "to the node that accepted");
        }
    }
}

/// A proof holds for one protocol, cluster, pair of nodes, channel and log.
///
/// S-172
#[test]
fn every_field_is_proved() {
    let with = |change: &dyn Fn(&mut Meeting)| {
        let mut other = meeting();
        change(&mut other);
        other
    };
    let changed = [
        with(&|other| other.hello.protocol += 1),
        with(&|other| other.hello.cluster = OriginId(8)),
        with(&|other| other.hello.node = NodeId(3)),
        with(&|other| other.hello.target = NodeId(3)),
        with(&|other| other.hello.channel = Channel::Control),
        with(&|other| other.hello.cores += 1),
        with(&|other| other.hello.core += 1),
        with(&|other| other.hello.fingerprint ^= 1),
        with(&|other| other.hello.capabilities ^= 2),
        with(&|other| other.log.origin = OriginId(8)),
        with(&|other| other.log.shard = ShardId(6)),
        with(&|other| other.accepting_nonce[31] ^= 1),
    ];
    let answer = ours().answer(&meeting(), NONCE);
    let ok = ours().check_answer(&meeting(), &answer).expect("its own");
    for other in changed {
        let said = [
            ours().check_answer(&other, &answer).map(|_| ()),
            ours().check_ok(&other, &answer, &ok),
        ];
        assert_eq!(said, [Err(Code::WrongSecret); 2], "{other:?}");
    }
    for bit in 0..256 {
        let (mut answer, mut ok) = (answer.clone(), ok.clone());
        answer.proof[bit / 8] ^= 1 << (bit % 8);
        ok.proof[bit / 8] ^= 1 << (bit % 8);
        let said = [
            ours().check_answer(&meeting(), &answer).map(|_| ()),
            ours().check_ok(&meeting(), &answer, &ok),
        ];
        assert_eq!(said, [Err(Code::WrongSecret); 2], "bit {bit}");
    }
}

/// A secret of another length than it may have is none; nor is a body of another length a proof.
///
/// S-174
#[test]
fn lengths_are_what_they_must_be() {
    let of = |len: usize| Secret::new(&vec![7; len]);
    for len in [0, 1, SECRET_BYTES_MIN - 1, SECRET_BYTES_MAX + 1] {
        assert!(of(len).is_none(), "{len} bytes");
    }
    for len in [SECRET_BYTES_MIN, 64, 65, SECRET_BYTES_MAX] {
        assert!(of(len).is_some(), "{len} bytes");
    }
    let longer = secrets(&[SECRET, b"\n"].concat(), None);
    assert_eq!(meet(&longer, &ours())[0], Err(Code::WrongSecret));
    let answer = Body::from(ours().answer(&meeting(), NONCE));
    let bytes = &answer.encode(0, LogId::default(), 0)[crate::limits::FRAME_HEADER..];
    assert_eq!(Body::decode(0x21, bytes), Some(Ok(answer)));
    for wrong in [&bytes[..63], &bytes[..32], &[bytes, &[0]].concat()] {
        assert!(matches!(Body::decode(0x21, wrong), Some(Err(_))));
    }
}

/// Each step of a change of the secret, node by node: whoever has made it and whoever has not take
/// one another's proofs. A step left out is a refusal.
///
/// S-174
#[test]
fn a_secret_is_changed_node_by_node() {
    let (old, new) = (SECRET, &b"another secret, of thirty-two bytes"[..]);
    let steps = [
        secrets(old, None),
        secrets(old, Some(new)),
        secrets(new, Some(old)),
        secrets(new, None),
    ];
    let both = [Ok(()); 2];
    for pair in steps.windows(2) {
        assert_eq!(meet(&pair[0], &pair[1]), both);
        assert_eq!(meet(&pair[1], &pair[0]), both);
    }
    let refused = Err(Code::WrongSecret);
    assert_eq!(meet(&steps[0], &steps[3]), [refused, Ok(())]);
    assert_eq!(meet(&steps[3], &steps[0]), [refused, Ok(())]);
    // One that takes the proof of a node which does not take its own: the other side says so.
    assert_eq!(meet(&steps[0], &steps[2]), [Ok(()), refused]);
    assert_eq!(meet(&steps[2], &steps[0]), [refused, Ok(())]);
}

/// S-173
#[test]
fn a_secret_is_not_shown() {
    let shown = format!("{:?}", secrets(SECRET, Some(&[0x41; 32])));
    assert_eq!(
        shown, "Secrets { first: Secret, second: Some(Secret) }",
        "nothing of what they are"
    );
}
