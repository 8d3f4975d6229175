//! Frames: header, CRC, every typed body, codes, and proofs of a secret.

use super::input::Input;
use super::mend;
use millrace::limits::{FRAME_BODY, FRAME_HEADER, FRAME_PAYLOAD};
use millrace::wire::body::{Body, TYPES};
use millrace::wire::code::Code;
use millrace::wire::frame::{self, UNKNOWN_KIND};

/// One frame: as it is, and with its lengths and its CRC mended.
pub fn play(bytes: &[u8]) {
    take(bytes);
    let mended = mend::frame(bytes);
    assert!(take(&mended), "a mended frame gets through: {mended:?}");
    codes(bytes);
}

/// Whether header and CRC let the frame through.
fn take(bytes: &[u8]) -> bool {
    let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() else {
        return false;
    };
    let Ok(header) = frame::read_header(head) else {
        return false;
    };
    assert!(header.body_len <= FRAME_BODY && header.payload_len <= FRAME_PAYLOAD);
    let Some(body) = rest.get(..header.body_len) else {
        return false;
    };
    if frame::check(&header, head, body).is_err() {
        return false;
    }
    let known = TYPES.iter().any(|(number, _)| *number == header.kind);
    let decoded = Body::decode(header.kind, body);
    assert_eq!(decoded.is_some(), known, "type {}", header.kind);
    assert!(!known || header.kind != UNKNOWN_KIND);
    if let Some(Ok(decoded)) = decoded {
        let again = decoded.encode(header.correlation, header.log, header.payload_len);
        let frame = &bytes[..FRAME_HEADER + header.body_len];
        assert_eq!(again, frame, "{decoded:?} is written as it was read");
        assert_eq!(decoded.kind(), header.kind);
        #[cfg(feature = "node")]
        prove(&decoded);
    }
    true
}

/// Numbers of codes, with any numbers beside them.
fn codes(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let number = input.u16();
    let Some(code) = Code::from_number(number) else {
        return;
    };
    assert_eq!(code.number(), number);
    let line = code.explain([input.u64(), input.u64()]);
    assert!(line.starts_with(code.name()) && line.contains("; mend: "));
    assert!(!line.contains('\n'), "one line: {line:?}");
}

/// No proof that somebody makes up is taken, on whatever Hello.
#[cfg(feature = "node")]
fn prove(body: &Body) {
    use millrace::types::LogId;
    use millrace::wire::body::{Channel, Hello, Proof};
    use millrace::wire::trust::{Meeting, Secret, Secrets};

    let first = Secret::new(&[7; 32]).expect("32 bytes are enough");
    let secrets = Secrets {
        first,
        second: Secret::new(&[9; 40]),
    };
    let mut meeting = Meeting {
        hello: Hello {
            protocol: 4,
            cluster: Default::default(),
            node: Default::default(),
            target: Default::default(),
            channel: Channel::Data,
            cores: 1,
            core: 0,
            fingerprint: 0,
            capabilities: 1,
        },
        log: LogId::default(),
        accepting_nonce: [3; 32],
    };
    match body {
        Body::Hello(hello) => {
            let known = secrets.answer(&meeting, [1; 32]);
            let taken = secrets.check_answer(&meeting, &known);
            assert!(taken.is_ok(), "the secret's own proof is taken");
            let other = *hello != meeting.hello;
            meeting.hello = hello.clone();
            let taken = secrets.check_answer(&meeting, &known);
            assert_eq!(taken.is_err(), other, "a proof is for one Hello");
        }
        Body::Proof(proof) => {
            assert!(secrets.check_answer(&meeting, proof).is_err());
        }
        Body::ProofOk(ok) => {
            let asked = Proof {
                nonce: [1; 32],
                proof: [0; 32],
            };
            assert!(secrets.check_ok(&meeting, &asked, ok).is_err());
        }
        Body::Challenge(challenge) => {
            meeting.accepting_nonce = challenge.nonce;
            assert_eq!(meeting.challenge(), *challenge);
        }
        _ => {}
    }
}
