//! Records inside a batch's body: for clients only, a node never opens one.
//!
//! ```text
//! offset size field
//!      0    4 len           bytes of the record behind this field
//!      4    8 timestamp     microseconds since the Unix epoch
//!     12    2 key_len
//!     14    2 label_count
//!     16    4 value_len
//!     20      key, then per label: name_len u16, value_len u16, name, value; then the value
//! ```
//!
//! Records follow one another without gaps. Each is decodable alone and without allocation. What
//! does not fit these fields is refused by the encoder, never cut short. The encoder counts what it
//! encodes: a node's count stays 0 for ever (H-2, H-64).

use super::batch::{self, ClientHalf};
use super::bytes::{put, u16_at, u32_at, u64_at};
use crate::limits::{BATCH_HEADER, BLOCK_HEADER, WRITE_WINDOW};
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a record before its key.
pub const HEADER: usize = 20;

/// Bytes that a key, a label's name or a label's value may have, and labels that a record may have.
pub const FIELD_MAX: usize = u16::MAX as usize;

/// Bytes that a batch may have, header included: a block has to hold it. A cluster's
/// `max_batch_bytes` is lower.
pub const BATCH_MAX: usize = WRITE_WINDOW as usize - BLOCK_HEADER;

static ENCODED: AtomicU64 = AtomicU64::new(0);

/// Records that this process ever encoded.
pub fn records_encoded() -> u64 {
    ENCODED.load(Ordering::Relaxed)
}

/// One record as a client gives or gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Record time, microseconds since the Unix epoch.
    pub timestamp: u64,
    /// The entry it belongs to; empty in a log without keys.
    pub key: &'a [u8],
    /// Encoded labels: read them with [`Record::labels`].
    labels: Labels<'a>,
    /// The payload, 8-bit clean.
    pub value: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Labels<'a> {
    count: u16,
    bytes: &'a [u8],
}

/// Foreign bytes that are not a record, or a record that no batch can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordError;

impl<'a> Record<'a> {
    /// A record with a value and nothing else.
    pub fn new(timestamp: u64, value: &'a [u8]) -> Record<'a> {
        Record {
            timestamp,
            key: &[],
            labels: Labels {
                count: 0,
                bytes: &[],
            },
            value,
        }
    }

    /// The same record under a key.
    pub fn with_key(self, key: &'a [u8]) -> Record<'a> {
        Record { key, ..self }
    }

    /// Its labels, name and value.
    pub fn labels(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = self.labels.bytes;
        (0..self.labels.count).map_while(move |_| {
            let (head, tail) = take_label(rest)?;
            rest = tail;
            Some(head)
        })
    }
}

type Label<'a> = (&'a [u8], &'a [u8]);

fn take_label(bytes: &[u8]) -> Option<(Label<'_>, &[u8])> {
    if bytes.len() < 4 {
        return None;
    }
    let name_len = usize::from(u16_at(bytes, 0));
    let value_len = usize::from(u16_at(bytes, 2));
    let (name, rest) = bytes[4..].split_at_checked(name_len)?;
    let (value, rest) = rest.split_at_checked(value_len)?;
    Some(((name, value), rest))
}

/// Reads the record at the start of `bytes`; returns it and what follows.
pub fn read(bytes: &[u8]) -> Result<(Record<'_>, &[u8]), RecordError> {
    if bytes.len() < HEADER {
        return Err(RecordError);
    }
    let len = u32_at(bytes, 0) as usize;
    let (body, rest) = bytes[4..].split_at_checked(len).ok_or(RecordError)?;
    if body.len() < HEADER - 4 {
        return Err(RecordError);
    }
    let key_len = usize::from(u16_at(body, 8));
    let count = u16_at(body, 10);
    let value_len = u32_at(body, 12) as usize;
    let (key, tail) = body[HEADER - 4..]
        .split_at_checked(key_len)
        .ok_or(RecordError)?;
    let labels_len = tail.len().checked_sub(value_len).ok_or(RecordError)?;
    let (labels, value) = tail.split_at(labels_len);
    let mut left = labels;
    for _ in 0..count {
        left = take_label(left).ok_or(RecordError)?.1;
    }
    if !left.is_empty() {
        return Err(RecordError);
    }
    let labels = Labels {
        count,
        bytes: labels,
    };
    Ok((
        Record {
            timestamp: u64_at(body, 0),
            key,
            labels,
            value,
        },
        rest,
    ))
}

/// The records of an uncompressed body, in order; ends after the first that does not parse.
pub fn read_all(mut body: &[u8]) -> impl Iterator<Item = Result<Record<'_>, RecordError>> {
    core::iter::from_fn(move || {
        if body.is_empty() {
            return None;
        }
        match read(body) {
            Ok((record, rest)) => {
                body = rest;
                Some(Ok(record))
            }
            Err(error) => {
                body = &[];
                Some(Err(error))
            }
        }
    })
}

/// Makes one batch out of records: the only place where records are ever encoded.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    bytes: Vec<u8>,
    half: ClientHalf,
}

impl Default for BatchBuilder {
    fn default() -> BatchBuilder {
        BatchBuilder::new()
    }
}

impl BatchBuilder {
    /// An empty batch.
    pub fn new() -> BatchBuilder {
        BatchBuilder {
            bytes: vec![0; BATCH_HEADER],
            half: ClientHalf::default(),
        }
    }

    /// An empty batch with room for `bytes` bytes, header included: it is never moved up to there.
    pub fn with_capacity(bytes: usize) -> BatchBuilder {
        let mut builder = BatchBuilder::new();
        builder
            .bytes
            .reserve_exact(bytes.saturating_sub(BATCH_HEADER));
        builder
    }

    /// Names the producer and the number of the batch's first record in the producer's own count.
    pub fn producer(&mut self, id: u64, epoch: u16, base_sequence: u32) -> &mut BatchBuilder {
        self.half.producer_id = id;
        self.half.producer_epoch = epoch;
        self.half.base_sequence = base_sequence;
        self
    }

    /// Adds a record. Panics on one that [`BatchBuilder::try_push`] refuses.
    pub fn push(&mut self, record: &Record<'_>) {
        self.push_labelled(record, &[]);
    }

    /// Adds a record with labels (its own labels are left out). Panics on one that
    /// [`BatchBuilder::try_push`] refuses.
    pub fn push_labelled(&mut self, record: &Record<'_>, labels: &[(&[u8], &[u8])]) {
        let pushed = self.try_push(record, labels);
        assert_eq!(pushed, Ok(()), "above FIELD_MAX or BATCH_MAX");
    }

    /// Adds a record with labels (its own labels are left out). Refused, with nothing added, if
    /// key, labels or their number are above [`FIELD_MAX`] or the batch would be above
    /// [`BATCH_MAX`].
    pub fn try_push(
        &mut self,
        record: &Record<'_>,
        labels: &[(&[u8], &[u8])],
    ) -> Result<(), RecordError> {
        let short = |bytes: &[u8]| bytes.len() <= FIELD_MAX;
        let labels_fit = labels
            .iter()
            .all(|(name, value)| short(name) && short(value));
        if !short(record.key) || labels.len() > FIELD_MAX || !labels_fit {
            return Err(RecordError);
        }
        let labels_len: usize = labels.iter().map(|(n, v)| 4 + n.len() + v.len()).sum();
        let len = HEADER - 4 + record.key.len() + labels_len + record.value.len();
        if self.bytes.len() + 4 + len > BATCH_MAX {
            return Err(RecordError);
        }
        self.encode(record, labels, len);
        self.count(record, !labels.is_empty());
        Ok(())
    }

    /// The casts are safe: `try_push` has tested every length.
    fn encode(&mut self, record: &Record<'_>, labels: &[(&[u8], &[u8])], len: usize) {
        let start = self.bytes.len();
        self.bytes.resize(start + HEADER, 0);
        let header = &mut self.bytes[start..];
        put(header, 0, &(len as u32).to_le_bytes());
        put(header, 4, &record.timestamp.to_le_bytes());
        put(header, 12, &(record.key.len() as u16).to_le_bytes());
        put(header, 14, &(labels.len() as u16).to_le_bytes());
        put(header, 16, &(record.value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(record.key);
        for (name, value) in labels {
            self.bytes
                .extend_from_slice(&(name.len() as u16).to_le_bytes());
            self.bytes
                .extend_from_slice(&(value.len() as u16).to_le_bytes());
            self.bytes.extend_from_slice(name);
            self.bytes.extend_from_slice(value);
        }
        self.bytes.extend_from_slice(record.value);
    }

    fn count(&mut self, record: &Record<'_>, labelled: bool) {
        if self.half.record_count == 0 {
            self.half.base_timestamp = record.timestamp;
        }
        self.half.max_timestamp = self.half.max_timestamp.max(record.timestamp);
        self.half.record_count += 1;
        if !record.key.is_empty() {
            self.half.flags |= batch::FLAG_KEYED;
        }
        if labelled {
            self.half.flags |= batch::FLAG_LABELS;
        }
        ENCODED.fetch_add(1, Ordering::Relaxed);
    }

    /// Records so far.
    pub fn record_count(&self) -> u32 {
        self.half.record_count
    }

    /// Bytes of the batch so far, header included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no record was added.
    pub fn is_empty(&self) -> bool {
        self.half.record_count == 0
    }

    /// The finished batch: the client's half of the header, its CRC and the body.
    pub fn finish(mut self) -> Vec<u8> {
        let stored = self.bytes.len() - BATCH_HEADER;
        self.half.stored_len = stored as u32;
        self.half.raw_len = stored as u32;
        batch::write_client_half(&mut self.bytes, &self.half);
        self.bytes
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
