//! Payloads: JSON of an exact length that proves where it belongs.
//!
//! ```text
//! {"run":"0badcafe","from":"00000007","seq":"0001e240","text":"pump 17 ...","crc":"89abcdef"}
//! ```
//!
//! Run, producer, sequence and a CRC over all that stands before the CRC; the text between them is
//! never the same twice. Making one is patching digits and copying text that was written once, so
//! that the generator does not compete with what it measures: no formatting, no allocation. Nothing
//! here knows a batch or a socket. Read `ledger.rs` next.

use std::rc::Rc;

use crate::random::Random;

/// Shortest payload: everything but the text, and some text.
pub const MIN_BYTES: usize = 96;

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
    texts: Texts,
    random: Random,
    value: Vec<u8>,
}

impl PayloadMaker {
    /// A maker of payloads of `bytes` bytes, at least [`MIN_BYTES`].
    pub fn new(texts: Texts, seed: u64, run: u32, bytes: usize) -> PayloadMaker {
        assert!(bytes >= MIN_BYTES, "the command line refuses shorter ones");
        let mut value = vec![b' '; bytes];
        for (at, part) in [
            (0, OPEN),
            (RUN_AT + DIGITS, FROM),
            (FROM_AT + DIGITS, SEQ),
            (SEQ_AT + DIGITS, TEXT),
            (bytes - TAIL, CRC),
            (bytes - CLOSE.len(), CLOSE),
        ] {
            value[at..at + part.len()].copy_from_slice(part);
        }
        put_digits(&mut value, RUN_AT, run);
        put_digits(&mut value, FROM_AT, 0);
        PayloadMaker {
            texts,
            random: Random::new(seed),
            value,
        }
    }

    /// Names the producer of the payloads to come.
    pub fn producer(&mut self, producer: u32) {
        put_digits(&mut self.value, FROM_AT, producer);
    }

    /// The payload with this number.
    pub fn make(&mut self, sequence: u32) -> &[u8] {
        let bytes = self.value.len();
        let text_len = bytes - TAIL - TEXT_AT;
        let from = self.random.below(TEXT_BYTES as u64) as usize;
        put_digits(&mut self.value, SEQ_AT, sequence);
        self.value[TEXT_AT..TEXT_AT + text_len]
            .copy_from_slice(&self.texts.0[from..from + text_len]);
        let crc_at = bytes - CLOSE.len() - DIGITS;
        let crc = crc32fast::hash(&self.value[..crc_at]);
        put_digits(&mut self.value, crc_at, crc);
        &self.value
    }
}

/// Checks a payload's CRC and reads its stamp.
pub fn read(value: &[u8]) -> Result<Stamp, PayloadError> {
    if value.len() < MIN_BYTES || !value.starts_with(OPEN) || !value.ends_with(CLOSE) {
        return Err(PayloadError::Shape);
    }
    let crc_at = value.len() - CLOSE.len() - DIGITS;
    if digits(value, crc_at)? != crc32fast::hash(&value[..crc_at]) {
        return Err(PayloadError::Crc);
    }
    stamp(value)
}

/// The stamp of a payload whose CRC may not fit: only good for saying what was there once.
pub fn stamp(value: &[u8]) -> Result<Stamp, PayloadError> {
    if value.len() < MIN_BYTES {
        return Err(PayloadError::Shape);
    }
    Ok(Stamp {
        run: digits(value, RUN_AT)?,
        producer: digits(value, FROM_AT)?,
        sequence: digits(value, SEQ_AT)?,
    })
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
