//! One sound frame of every type, and how to spoil it.
//!
//! The frames are the golden ones of `tests/data/wire/frames.txt`, so a type without one is caught
//! here; what each is answered with is an exhaustive match, so a new type does not compile without
//! its line.

use millrace::limits::FRAME_HEADER;
use millrace::types::LogId;
use millrace::wire::body::{Body, TYPES};
use millrace::wire::code::Code;
use millrace::wire::frame;
use millrace::wire::record::{BatchBuilder, Record};

use crate::wire::Answer;

const GOLDEN: &str = include_str!("../data/wire/frames.txt");
const CRC: usize = 8;
/// The number of the frame under attack.
pub const NUMBER: u64 = 0x1122_3344_5566_7700;

/// A sound frame: header, typed body, payload.
#[derive(Clone, Debug)]
pub struct Sample {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    /// Bytes of header and typed body.
    pub head: usize,
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.trim_start_matches('-');
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex");
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Body of the golden frame of each type, in the order of `TYPES`.
fn golden_bodies() -> Vec<Body> {
    let lines = GOLDEN.lines().filter(|line| !line.starts_with('#'));
    let bodies: Vec<Body> = lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let number = words.next().expect("a number").trim_start_matches("0x");
            let number = u8::from_str_radix(number, 16).expect("a number");
            let body: Vec<u8> = words.skip(2).flat_map(unhex).collect();
            let body = Body::decode(number, &body).expect("a known type");
            body.expect("a sound body")
        })
        .collect();
    let found: Vec<(u8, &str)> = bodies.iter().map(|b| (b.kind(), b.name())).collect();
    assert_eq!(found, TYPES, "every type has its sample");
    bodies
}

/// Body of the golden frame of this name.
pub fn golden(name: &str) -> Body {
    let mut bodies = golden_bodies().into_iter();
    bodies.find(|body| body.name() == name).expect("a type")
}

/// A batch as it leaves a client.
pub fn batch(records: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    for number in 0..records {
        builder.push(&Record::new(number as u64, b"what a client wants to keep"));
    }
    builder.finish()
}

/// A frame about `log`, with a batch behind it where a batch belongs.
pub fn frame_of(body: &Body, log: LogId) -> Sample {
    let payload = match body {
        Body::Append(_) => batch(1),
        _ => Vec::new(),
    };
    let mut bytes = body.encode(NUMBER, log, payload.len());
    let head = bytes.len();
    bytes.extend(payload);
    Sample {
        name: body.name(),
        bytes,
        head,
    }
}

/// One frame of every type.
pub fn samples(log: LogId) -> Vec<Sample> {
    let bodies = golden_bodies();
    bodies.iter().map(|body| frame_of(body, log)).collect()
}

/// Makes the frame's CRC fit whatever its header and body hold.
pub fn reseal(bytes: &mut [u8], head: usize) {
    bytes[CRC..CRC + 4].fill(0);
    let crc = crc32fast::hash(&bytes[..head]);
    bytes[CRC..CRC + 4].copy_from_slice(&crc.to_le_bytes());
}

/// What a node makes of bytes behind which nothing follows.
#[derive(Clone, Debug)]
pub enum Fate {
    /// They end within a frame: nothing is owed.
    Short,
    /// They are no frame: `BadFrame`, then the end.
    NoFrame,
    /// A frame of a type that nobody knows.
    Unknown,
    /// A body that its type does not have: `BadFrame`, then the end.
    BadBody,
    /// A frame, whole with its payload.
    Frame(Body),
}

pub fn fate(bytes: &[u8]) -> Fate {
    let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() else {
        return Fate::Short;
    };
    let Ok(header) = frame::read_header(head) else {
        return Fate::NoFrame;
    };
    let Some(body) = rest.get(..header.body_len) else {
        return Fate::Short;
    };
    if frame::check(&header, head, body).is_err() {
        return Fate::NoFrame;
    }
    if rest.len() < header.body_len + header.payload_len {
        return Fate::Short;
    }
    match Body::decode(header.kind, body) {
        None => Fate::Unknown,
        Some(Err(_)) => Fate::BadBody,
        Some(Ok(body)) => Fate::Frame(body),
    }
}

/// What a client's frame is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owed {
    /// This answer, or a refusal about the request; the connection stays.
    Answer(&'static str),
    /// Nothing; the connection stays.
    Nothing,
    /// This refusal; the connection stays.
    Refusal(Code),
    /// A refusal that ends the connection.
    End(Code),
    /// A refusal of a peer, whichever; the connection ends.
    EndOfPeer,
}

/// What a node owes a client for these bytes, as the first ones of a connection or as later ones.
pub fn owed(fate: &Fate, first: bool) -> Option<Owed> {
    let body = match fate {
        Fate::Short => return None,
        Fate::NoFrame | Fate::BadBody => return Some(Owed::End(Code::BadFrame)),
        Fate::Unknown => return Some(Owed::Refusal(Code::Unsupported)),
        Fate::Frame(body) => body,
    };
    Some(match body {
        Body::Hello(_) if first => Owed::EndOfPeer,
        Body::Metadata(_) => Owed::Answer("MetadataOk"),
        Body::Append(_) => Owed::Answer("AppendOk"),
        Body::Read(_) => Owed::Answer("ReadOk"),
        Body::Find(_) => Owed::Answer("FindOk"),
        Body::Status(_) => Owed::Answer("StatusOk"),
        Body::Error(_) => Owed::Nothing,
        Body::Hello(_)
        | Body::HelloOk(_)
        | Body::Where(_)
        | Body::Position(_)
        | Body::Replicate(_)
        | Body::ReplicateOk(_)
        | Body::Nack(_)
        | Body::Limits(_)
        | Body::Pause(_)
        | Body::Resume(_)
        | Body::Fetch(_)
        | Body::FetchOk(_)
        | Body::Ping(_)
        | Body::Pong(_)
        | Body::Sealed(_)
        | Body::MetadataOk(_)
        | Body::AppendOk(_)
        | Body::ReadOk(_)
        | Body::FindOk(_)
        | Body::StatusOk(_)
        | Body::TakeOver(_)
        | Body::Challenge(_)
        | Body::Proof(_)
        | Body::ProofOk(_)
        | Body::Trusted(_) => Owed::End(Code::WrongDirection),
    })
}

/// Codes that say something of a connection or a peer, never of a client's request.
pub fn is_about_a_request(code: Code) -> bool {
    !matches!(
        code,
        Code::Unsupported
            | Code::WrongDirection
            | Code::BadFrame
            | Code::WrongCluster
            | Code::WrongNode
            | Code::WrongFingerprint
            | Code::WrongMembers
            | Code::StaleEpoch
            | Code::OutOfSync
            | Code::Diverged
            | Code::OverCredit
            | Code::MemoryLost
            | Code::LogFailed
            | Code::LogBehind
    )
}

/// Whether the answers are what was owed.
pub fn is_paid(owed: Owed, answers: &[Answer]) -> bool {
    let refusal = |code: &Code| {
        answers
            .first()
            .is_some_and(|a| a.refusal().is_some_and(|r| r.0 == *code))
    };
    match owed {
        Owed::Nothing => answers.is_empty(),
        Owed::Refusal(code) | Owed::End(code) => answers.len() == 1 && refusal(&code),
        Owed::EndOfPeer => answers.len() == 1 && answers[0].refusal().is_some(),
        Owed::Answer(name) => {
            let about = |answer: &Answer| match answer.refusal() {
                Some((code, _)) => is_about_a_request(code),
                None => answer.body.name() == name,
            };
            answers.len() == 1 && about(&answers[0])
        }
    }
}
