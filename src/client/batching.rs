//! Records on their way into batches: which shard, which batch, and when the batch is full.
//!
//! The shard is the one that the record names, else `crc32(key) % shards`, else each batch goes to
//! the next shard in turn. What a batch is called (producer, epoch, sequence) is given when it is
//! sealed, see `lane.rs`; records are encoded here, once.

use super::event::Failure;
use crate::limits::BATCH_HEADER;
use crate::types::{ShardId, Time};
use crate::wire::record::{BatchBuilder, FIELD_MAX, HEADER, Record};

/// A record to be appended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewRecord {
    /// Where it goes; none: by its key, and without one to each shard in turn.
    pub shard: Option<ShardId>,
    /// Record time, microseconds since the Unix epoch; none: when it is given to the producer.
    pub timestamp_us: Option<u64>,
    /// The entry that it belongs to; at most 65,535 bytes. Records of one key stay in order.
    pub key: Vec<u8>,
    /// Names and values; at most 65,535 bytes each.
    pub labels: Vec<(Vec<u8>, Vec<u8>)>,
    /// The payload.
    pub value: Vec<u8>,
}

impl NewRecord {
    /// A record with a value and nothing else.
    pub fn new(value: impl Into<Vec<u8>>) -> NewRecord {
        NewRecord {
            value: value.into(),
            ..NewRecord::default()
        }
    }

    /// The same record under a key.
    pub fn key(self, key: impl Into<Vec<u8>>) -> NewRecord {
        NewRecord {
            key: key.into(),
            ..self
        }
    }

    /// The same record for this shard, whatever its key.
    pub fn shard(self, shard: u16) -> NewRecord {
        NewRecord {
            shard: Some(ShardId(shard)),
            ..self
        }
    }

    /// The same record at this time, microseconds since the Unix epoch.
    pub fn timestamp_us(self, timestamp_us: u64) -> NewRecord {
        NewRecord {
            timestamp_us: Some(timestamp_us),
            ..self
        }
    }

    /// The same record with one more label.
    pub fn label(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> NewRecord {
        self.labels.push((name.into(), value.into()));
        self
    }

    /// Bytes that it takes in a batch.
    pub fn encoded_len(&self) -> usize {
        let labels = self.labels.iter();
        let labels: usize = labels
            .map(|(name, value)| 4 + name.len() + value.len())
            .sum();
        HEADER + self.key.len() + labels + self.value.len()
    }

    /// Whether a batch of at most `most` bytes can hold it.
    pub(super) fn check(&self, most: Most) -> Result<(), Failure> {
        let short = |bytes: &Vec<u8>| bytes.len() <= FIELD_MAX;
        let labels = self.labels.iter();
        let mut labels = labels.map(|(name, value)| short(name) && short(value));
        if !short(&self.key) || self.labels.len() > FIELD_MAX || !labels.all(|fits| fits) {
            return Err(Failure::FieldTooLong);
        }
        let (bytes, is_own) = (self.encoded_len(), most.is_own);
        let most = most.bytes.saturating_sub(BATCH_HEADER);
        if bytes > most {
            return Err(Failure::TooLarge {
                bytes,
                most,
                is_own,
            });
        }
        Ok(())
    }
}

/// What a batch may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    /// Bytes of a batch, header included.
    pub(super) bytes: usize,
    /// Whether the producer's own setting says so, and not the cluster.
    pub(super) is_own: bool,
}

/// The shard of a key.
pub fn shard_of_key(key: &[u8], shards: usize) -> ShardId {
    // A cluster has at most 1,024 shards.
    ShardId((crc32fast::hash(key) as usize % shards) as u16)
}

/// A batch that still takes records; `T` is what the driver wants back with the outcome of each.
#[derive(Debug)]
pub(super) struct Open<T> {
    pub(super) builder: BatchBuilder,
    pub(super) tokens: Vec<T>,
    pub(super) since: Time,
    /// The latest flush that had been asked for when it was opened.
    pub(super) generation: u64,
}

impl<T> Open<T> {
    pub(super) fn new(now: Time, generation: u64) -> Open<T> {
        Open {
            builder: BatchBuilder::new(),
            tokens: Vec::new(),
            since: now,
            generation,
        }
    }

    /// Whether one more record fits.
    pub(super) fn fits(&self, record: &NewRecord, most_records: u32, most_bytes: usize) -> bool {
        self.builder.record_count() < most_records
            && self.builder.len() + record.encoded_len() <= most_bytes
    }

    /// Adds a record that fits.
    pub(super) fn push(&mut self, now: Time, record: &NewRecord, token: T) {
        let timestamp = record.timestamp_us.unwrap_or(now.0);
        let labels = record.labels.iter();
        let labels: Vec<(&[u8], &[u8])> = labels.map(|(n, v)| (&n[..], &v[..])).collect();
        let encoded = Record::new(timestamp, &record.value).with_key(&record.key);
        self.builder.push_labelled(&encoded, &labels);
        self.tokens.push(token);
    }
}
