//! Payloads: values of an exact length that prove where they belong.
//!
//! ```text
//! json      {"run":"0badcafe","from":"00000007","seq":"0001e240","text":"...","crc":"89abcdef"}
//! random    run u32 · producer u32 · sequence u32 · crc u32, little-endian; then random bytes
//! constant  the same sixteen bytes; then one byte over and over
//! ```
//!
//! Run, producer, sequence and a CRC over the record's key and all of the value but the CRC. Texts
//! are what services write: names, numbers, places, times. Making a value is patching digits and
//! copying or drawing bytes, so that the generator does not compete with what it measures: no
//! formatting, no allocation. Nothing here knows a batch or a socket. Read `keys.rs` next.

use std::fmt;
use std::rc::Rc;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::random::Random;

const OPEN: &[u8] = b"{\"run\":\"";
const FROM: &[u8] = b"\",\"from\":\"";
const SEQ: &[u8] = b"\",\"seq\":\"";
const TEXT: &[u8] = b"\",\"text\":\"";
const CRC: &[u8] = b"\",\"crc\":\"";
const CLOSE: &[u8] = b"\"}";
const DIGITS: usize = 8;

const RUN_AT: usize = OPEN.len();
const FROM_AT: usize = RUN_AT + DIGITS + FROM.len();
const SEQ_AT: usize = FROM_AT + DIGITS + SEQ.len();
const TEXT_AT: usize = SEQ_AT + DIGITS + TEXT.len();
/// Bytes behind the text: the CRC with its name, and the end.
const TAIL: usize = CRC.len() + DIGITS + CLOSE.len();

/// Bytes of prepared text that payloads are cut from, beyond the length of one.
const TEXT_BYTES: usize = 1 << 20;

/// Run, producer, sequence and CRC of a value that is not JSON.
const STAMP: usize = 16;
const STAMP_CRC: usize = 12;
/// What a constant value consists of, stamp apart.
const CONSTANT: u8 = b'm';

/// What values look like.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Payload {
    /// Records as services write them
    #[default]
    Json,
    /// Bytes that no codec makes smaller
    Random,
    /// One byte over and over
    Constant,
}

impl Payload {
    /// Every kind, in the order of their numbers in a ledger.
    pub const ALL: [Payload; 3] = [Payload::Json, Payload::Random, Payload::Constant];

    /// Shortest value of this kind.
    pub const fn min_bytes(self) -> usize {
        match self {
            Payload::Json => 96,
            Payload::Random | Payload::Constant => STAMP,
        }
    }

    fn crc_at(self, bytes: usize) -> usize {
        match self {
            Payload::Json => bytes - CLOSE.len() - DIGITS,
            Payload::Random | Payload::Constant => STAMP_CRC,
        }
    }

    /// Over the key and all of the value but the CRC.
    fn crc(self, key: &[u8], value: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(key);
        match self {
            Payload::Json => hasher.update(&value[..self.crc_at(value.len())]),
            Payload::Random | Payload::Constant => {
                hasher.update(&value[..STAMP_CRC]);
                hasher.update(&value[STAMP..]);
            }
        }
        hasher.finalize()
    }

    fn crc_of(self, value: &[u8]) -> Result<u32, PayloadError> {
        let at = self.crc_at(value.len());
        match self {
            Payload::Json => digits(value, at),
            Payload::Random | Payload::Constant => Ok(number(value, at)),
        }
    }

    /// Checks the CRC of a value under its key and reads its stamp.
    pub fn read(self, key: &[u8], value: &[u8]) -> Result<Stamp, PayloadError> {
        let json = value.starts_with(OPEN) && value.ends_with(CLOSE);
        if value.len() < self.min_bytes() || (self == Payload::Json && !json) {
            return Err(PayloadError::Shape);
        }
        if self.crc_of(value)? != self.crc(key, value) {
            return Err(PayloadError::Crc);
        }
        self.stamp(value)
    }

    /// The stamp of a value whose CRC may not fit: only good for saying what was there once.
    pub fn stamp(self, value: &[u8]) -> Result<Stamp, PayloadError> {
        if value.len() < self.min_bytes() {
            return Err(PayloadError::Shape);
        }
        match self {
            Payload::Json => Ok(Stamp {
                run: digits(value, RUN_AT)?,
                producer: digits(value, FROM_AT)?,
                sequence: digits(value, SEQ_AT)?,
            }),
            Payload::Random | Payload::Constant => Ok(Stamp {
                run: number(value, 0),
                producer: number(value, 4),
                sequence: number(value, 8),
            }),
        }
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Payload::Json => "json",
            Payload::Random => "random",
            Payload::Constant => "constant",
        })
    }
}

/// What a payload says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The run that made it.
    pub run: u32,
    /// The producer in that run.
    pub producer: u32,
    /// Its number in the producer's own count.
    pub sequence: u32,
}

/// Why bytes are not a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadError {
    /// Too short, or a digit is none.
    Shape,
    /// The CRC does not fit.
    Crc,
}

/// Text that payloads are cut from: made once, shared by all producers of a run.
#[derive(Clone, Debug)]
pub struct Texts(Rc<[u8]>);

impl Texts {
    /// Text for payloads of at most `bytes` bytes.
    pub fn new(seed: u64, bytes: usize) -> Texts {
        let mut random = Random::new(seed);
        let mut text = Vec::with_capacity(TEXT_BYTES + bytes + 64);
        while text.len() < TEXT_BYTES + bytes {
            sentence(&mut random, &mut text);
        }
        Texts(text.into())
    }
}

/// Makes the payloads of one producer.
#[derive(Clone, Debug)]
pub struct PayloadMaker {
    payload: Payload,
    texts: Texts,
    random: Random,
    value: Vec<u8>,
}

impl PayloadMaker {
    /// A maker of payloads of `bytes` bytes, at least [`Payload::min_bytes`].
    pub fn new(payload: Payload, texts: Texts, seed: u64, run: u32, bytes: usize) -> PayloadMaker {
        let least = payload.min_bytes();
        assert!(bytes >= least, "the command line refuses shorter ones");
        let mut maker = PayloadMaker {
            payload,
            texts,
            random: Random::new(seed),
            value: vec![CONSTANT; bytes],
        };
        if payload == Payload::Json {
            for (at, part) in [
                (0, OPEN),
                (RUN_AT + DIGITS, FROM),
                (FROM_AT + DIGITS, SEQ),
                (SEQ_AT + DIGITS, TEXT),
                (bytes - TAIL, CRC),
                (bytes - CLOSE.len(), CLOSE),
            ] {
                maker.value[at..at + part.len()].copy_from_slice(part);
            }
        }
        maker.put([RUN_AT, 0], run);
        maker.producer(0);
        maker
    }

    /// Names the producer of the payloads to come.
    pub fn producer(&mut self, producer: u32) {
        self.put([FROM_AT, 4], producer);
    }

    /// The payload with this number, for a record under `key`.
    pub fn make(&mut self, sequence: u32, key: &[u8]) -> &[u8] {
        self.put([SEQ_AT, 8], sequence);
        match self.payload {
            Payload::Json => {
                let text_len = self.value.len() - TAIL - TEXT_AT;
                let from = self.random.below(TEXT_BYTES as u64) as usize;
                self.value[TEXT_AT..TEXT_AT + text_len]
                    .copy_from_slice(&self.texts.0[from..from + text_len]);
            }
            Payload::Random => {
                for part in self.value[STAMP..].chunks_mut(8) {
                    part.copy_from_slice(&self.random.number().to_le_bytes()[..part.len()]);
                }
            }
            Payload::Constant => {}
        }
        let crc = self.payload.crc(key, &self.value);
        let at = self.payload.crc_at(self.value.len());
        self.put([at, at], crc);
        &self.value
    }

    /// Writes a number: as digits at the first place into JSON, as bytes at the second otherwise.
    fn put(&mut self, [json, other]: [usize; 2], number: u32) {
        match self.payload {
            Payload::Json => put_digits(&mut self.value, json, number),
            Payload::Random | Payload::Constant => {
                self.value[other..other + 4].copy_from_slice(&number.to_le_bytes());
            }
        }
    }
}

fn number(value: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(value[at..at + 4].try_into().expect("four bytes"))
}

fn put_digits(value: &mut [u8], at: usize, number: u32) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for (index, byte) in value[at..at + DIGITS].iter_mut().enumerate() {
        *byte = HEX[(number >> (28 - 4 * index) & 15) as usize];
    }
}

fn digits(value: &[u8], at: usize) -> Result<u32, PayloadError> {
    let mut number = 0;
    for byte in &value[at..at + DIGITS] {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return Err(PayloadError::Shape),
        };
        number = number << 4 | u32::from(digit);
    }
    Ok(number)
}

/// One made-up report, without a character that JSON escapes: any piece of it stands in a string.
fn sentence(random: &mut Random, out: &mut Vec<u8>) {
    const THINGS: &[&str] = &[
        "pump", "valve", "boiler", "conveyor", "turbine", "filter", "mixer", "press", "furnace",
        "chiller", "order", "payment", "session", "basket", "invoice", "shipment", "device",
    ];
    const DOES: &[&str] = &[
        "reads",
        "reports",
        "holds",
        "drops to",
        "rises to",
        "settles at",
        "waits for",
        "rejects",
        "accepts",
        "repeats",
    ];
    const UNITS: &[&str] = &[
        "bar", "kPa", "C", "rpm", "l/min", "kW", "EUR", "ms", "items",
    ];
    const PLACES: &[&str] = &[
        "hall A",
        "hall B",
        "line 3",
        "north yard",
        "gate 12",
        "Bremen",
        "Turin",
        "Gdansk",
        "Lyon",
    ];
    let thing = random.pick(THINGS);
    let (does, unit, place) = (random.pick(DOES), random.pick(UNITS), random.pick(PLACES));
    let number = random.below(900);
    let (whole, part) = (random.below(2_000), random.below(1_000));
    let (hour, minute, second) = (random.below(24), random.below(60), random.below(60));
    let text = format!(
        "{thing} {number} {does} {whole}.{part:03} {unit} in {place} at \
         {hour:02}:{minute:02}:{second:02}; "
    );
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
#[path = "payload_tests.rs"]
mod tests;
