//! What applications set and get, the same for both drivers.

use super::ClientError;
use crate::client::{At, Codec, ProducerOptions, ReaderOptions, RecordBatch, Start};
use crate::types::{Epoch, Level, NodeId, Offset, OriginId, ReadLevel, ShardId, Time};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A record is in the log and its level is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The shard.
    pub shard: ShardId,
    /// The record's offset there.
    pub offset: Offset,
    /// The offset of the first record of its batch.
    pub batch: Offset,
}

/// One record as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The shard.
    pub shard: ShardId,
    /// Its offset there.
    pub offset: Offset,
    /// Epoch of the leadership that accepted it.
    pub epoch: Epoch,
    /// Record time, microseconds since the Unix epoch.
    pub timestamp_us: u64,
    /// The entry that it belongs to; may be empty.
    pub key: Vec<u8>,
    /// Names and values.
    pub labels: Vec<(Vec<u8>, Vec<u8>)>,
    /// The payload.
    pub value: Vec<u8>,
}

/// The records of a batch, each on its own.
pub(super) fn messages(batch: &RecordBatch) -> impl Iterator<Item = Message> {
    batch.records().map(|(offset, record)| Message {
        shard: batch.shard,
        offset,
        epoch: batch.epoch,
        timestamp_us: record.timestamp,
        key: record.key.to_vec(),
        labels: record
            .labels()
            .map(|(name, value)| (name.to_vec(), value.to_vec()))
            .collect(),
        value: record.value.to_vec(),
    })
}

/// How a producer works. Every setting has a default; durations are rounded to microseconds.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    options: ProducerOptions,
    pub(super) connect_timeout: Duration,
}

impl Default for ProducerConfig {
    fn default() -> ProducerConfig {
        ProducerConfig::new()
    }
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl ProducerConfig {
    /// The defaults.
    pub fn new() -> ProducerConfig {
        ProducerConfig {
            options: ProducerOptions::new(1),
            connect_timeout: Duration::from_secs(10),
        }
    }

    /// When a record counts as done. Default: as the cluster says (quorum in a set).
    pub fn level(mut self, level: Level) -> ProducerConfig {
        self.options.level = Some(level);
        self
    }

    /// How batches are stored. Default: as they are.
    pub fn codec(mut self, codec: Codec) -> ProducerConfig {
        self.options.codec = codec;
        self
    }

    /// How long a batch that is not full waits for more records. Default: 1 ms.
    pub fn linger(mut self, linger: Duration) -> ProducerConfig {
        self.options.linger_us = us(linger);
        self
    }

    /// How long a record may take until it has failed or its outcome is unknown. Default: 30 s.
    pub fn timeout(mut self, timeout: Duration) -> ProducerConfig {
        self.options.timeout_us = us(timeout);
        self
    }

    /// Records of a batch at most. Default: as many as the cluster takes.
    pub fn max_batch_records(mut self, records: u32) -> ProducerConfig {
        self.options.max_batch_records = records;
        self
    }

    /// Bytes of a batch at most, before its codec. Default: as many as the cluster takes.
    pub fn max_batch_bytes(mut self, bytes: usize) -> ProducerConfig {
        self.options.max_batch_bytes = bytes;
        self
    }

    /// Batches unanswered at most; never more than 5 of one shard. Default: 8.
    pub fn max_in_flight(mut self, batches: usize) -> ProducerConfig {
        self.options.max_in_flight_batches = batches;
        self
    }

    /// Bytes unanswered at most. Default and largest: 16 MiB.
    pub fn max_in_flight_bytes(mut self, bytes: usize) -> ProducerConfig {
        let most = self.options.max_in_flight_bytes;
        self.options.max_in_flight_bytes = bytes.min(most);
        self
    }

    /// Bytes of records without an outcome at most; `send` waits while there is no room. Default:
    /// 32 MiB.
    pub fn max_held_bytes(mut self, bytes: usize) -> ProducerConfig {
        self.options.max_held_bytes = bytes;
        self
    }

    /// After the first record that failed or is unknown, send nothing more: what comes later never
    /// stands where something is missing. Default: each record has its own outcome.
    pub fn stop_at_failure(mut self) -> ProducerConfig {
        self.options.stop_at_failure = true;
        self
    }

    /// How long `connect` waits for a node. Default: 10 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> ProducerConfig {
        self.connect_timeout = timeout;
        self
    }

    /// The settings of a session, with a producer id of its own.
    pub(super) fn options(&self) -> Result<ProducerOptions, ClientError> {
        let options = ProducerOptions {
            producer_id: random_id(),
            ..self.options.clone()
        };
        let wrong = |key, rule, mend| Err(ClientError::Setting(key, rule, mend));
        if options.max_batch_records == 0 {
            return wrong("max_batch_records", "must not be 0", "name at least 1");
        }
        if options.max_in_flight_batches == 0 {
            return wrong("max_in_flight", "must not be 0", "name at least 1");
        }
        if options.timeout_us == 0 {
            return wrong("timeout", "must not be 0", "name at least a millisecond");
        }
        Ok(options)
    }
}

/// A number that no other producer has, in all likelihood: 64 bits of the system's randomness.
fn random_id() -> u64 {
    let hasher = RandomState::new().build_hasher();
    hasher.finish().max(1)
}

/// How a reader works. Every setting has a default.
#[derive(Clone, Debug)]
pub struct ReaderConfig {
    pub(super) options: ReaderOptions,
    pub(super) connect_timeout: Duration,
}

impl ReaderConfig {
    /// Records of a shard from the first one that is kept on, at its leader, to its end.
    pub fn new(shard: u16) -> ReaderConfig {
        ReaderConfig {
            options: ReaderOptions::new(ShardId(shard)),
            connect_timeout: Duration::from_secs(10),
        }
    }

    /// Begin at this offset.
    pub fn from_offset(mut self, offset: u64) -> ReaderConfig {
        self.options.start = Start::Offset(Offset(offset));
        self
    }

    /// Begin at the first record whose time is not below this, microseconds since the Unix epoch.
    pub fn from_time_us(mut self, time_us: u64) -> ReaderConfig {
        self.options.start = Start::Time(time_us);
        self
    }

    /// Which records may be returned. Default: as the cluster says (committed in a set, local in a
    /// mesh).
    pub fn level(mut self, level: ReadLevel) -> ReaderConfig {
        self.options.level = Some(level);
        self
    }

    /// Wait for more at the end of the log. Default: say that it has ended.
    pub fn follow(mut self) -> ReaderConfig {
        self.options.follow = true;
        self
    }

    /// Read at this node, whether it leads or not. Default: at the leader.
    pub fn at_node(mut self, node: u32) -> ReaderConfig {
        self.options.at = At::Node(NodeId(node));
        self
    }

    /// Read at the node that answers first, which with one address is that one.
    pub fn at_seed(mut self) -> ReaderConfig {
        self.options.at = At::Seed;
        self
    }

    /// Read the records of this origin. Default: those that the cluster's clients append.
    pub fn origin(mut self, origin: u32) -> ReaderConfig {
        self.options.origin = Some(OriginId(origin));
        self
    }

    /// Bytes of one answer at most; one batch may be larger. Default: 1 MiB.
    pub fn max_bytes(mut self, bytes: u32) -> ReaderConfig {
        self.options.max_bytes = bytes;
        self
    }

    /// How long the node may give no useful answer. That a log which is followed has nothing new is
    /// one. Default: 30 s.
    pub fn timeout(mut self, timeout: Duration) -> ReaderConfig {
        self.options.timeout_us = us(timeout);
        self
    }

    /// How long `connect` waits for a node. Default: 10 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> ReaderConfig {
        self.connect_timeout = timeout;
        self
    }
}

/// Addresses that a session is to try.
pub(super) fn seeds<A: Into<String>>(
    seeds: impl IntoIterator<Item = A>,
) -> Result<Vec<String>, ClientError> {
    let seeds: Vec<String> = seeds.into_iter().map(Into::into).collect();
    if seeds.is_empty() {
        let mend = "name at least one host:port";
        return Err(ClientError::Setting("seeds", "there is no address", mend));
    }
    Ok(seeds)
}

/// The wall clock at start carried on by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
    start_us: u64,
}

impl Clock {
    pub(super) fn new() -> Clock {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Clock {
            start: Instant::now(),
            start_us: since.map_or(0, us),
        }
    }

    pub(super) fn now(&self) -> Time {
        Time(self.start_us).plus_us(us(self.start.elapsed()))
    }

    pub(super) fn instant(&self, time: Time) -> Instant {
        self.start + Duration::from_micros(time.since_us(Time(self.start_us)))
    }
}
