//! A simulated client: appends batches, reads, remembers what it was told.
//!
//! It makes real batches with `wire::record`; each value carries the client and the number of the
//! append (see `facts.rs`). Its connection keeps order and ends with the node's process. It knows
//! nothing of virtual time but deadlines, and gives requests to the world to carry. Without a
//! producer an append that has no answer stays *unknown*: nothing is expected of it but that it is
//! in the log at most once. With one it is sent again (see `producer.rs`).

use super::facts::{BatchId, client_digest, value_of};
use super::options::Options;
use super::producer::ProducerSide;
use super::reader::Copy;
use super::rng::Rng;
use millrace::limits::BATCH_HEADER;
use millrace::types::{ConnectionId, Level, ReadLevel};
use millrace::wire::record::{BatchBuilder, Record};
use std::collections::BTreeMap;

/// Bytes that a record takes besides its value.
const RECORD_HEADER: usize = 20;

/// A request on its way to a node.
#[derive(Clone, Debug)]
pub enum ClientRequest {
    /// Append a batch.
    Append {
        /// The batch.
        batch: Vec<u8>,
        /// When to answer.
        level: Level,
        /// Answer `Unknown` after so long.
        timeout_ms: u32,
    },
    /// Find the first batch with a record as late.
    Find {
        /// As this.
        timestamp: u64,
    },
    /// Read.
    Read {
        /// First record wanted.
        offset: u64,
        /// Largest payload.
        max_bytes: u32,
        /// How long to wait.
        wait_ms: u32,
        /// How far.
        level: ReadLevel,
        /// Epoch of the batch before it, as the client knows it; 0 if it does not.
        last_epoch: u32,
    },
}

/// What a client waits for.
#[derive(Clone, Copy, Debug)]
pub enum Waiting {
    /// The answer to an append.
    Append {
        /// Which.
        id: BatchId,
        /// Its level.
        level: Level,
        /// Whether its bytes were changed on the way.
        flipped: bool,
    },
    /// The answer to a search by time.
    Find {
        /// How late.
        timestamp: u64,
        /// Offset behind what the node counted as committed when it was asked.
        committed: u64,
    },
    /// The answer to a read.
    Read {
        /// The offset asked for.
        offset: u64,
        /// How far.
        level: ReadLevel,
        /// The epoch named.
        last_epoch: u32,
    },
}

/// A connection with a node.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Its id, at both ends.
    pub connection: ConnectionId,
    /// The node.
    pub node: usize,
    /// Its process.
    pub run: u64,
    /// When the last request arrives, so that the next does not overtake it.
    pub last_arrival_us: u64,
    /// When the last answer arrives.
    pub last_answer_us: u64,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    /// Its number.
    pub id: u32,
    /// Its chance.
    pub rng: Rng,
    /// Its connection, if it has one.
    pub session: Option<Session>,
    /// Unanswered requests, with the time after which an answer is overdue.
    pub waiting: BTreeMap<u64, (Waiting, u64)>,
    /// Where its next committed read begins, and the epoch of the batch before it.
    pub read_at: (u64, u32),
    /// What it has read of the log as one node or another holds it.
    pub copy: Copy,
    /// Its batches with sequences, if it is a producer.
    pub producer: Option<ProducerSide>,
    next_correlation: u64,
    next_sequence: u32,
}

impl Client {
    /// A client that has sent nothing.
    pub fn new(id: u32, rng: Rng, options: &Options) -> Client {
        let produces = (id as usize) < options.producers;
        Client {
            id,
            rng,
            session: None,
            waiting: BTreeMap::new(),
            read_at: (0, 0),
            copy: Copy::default(),
            producer: produces.then(|| ProducerSide::new(id)),
            next_correlation: 0,
            next_sequence: 0,
        }
    }

    /// Number for the next request.
    pub fn correlation(&mut self) -> u64 {
        self.next_correlation += 1;
        self.next_correlation
    }

    /// Makes the next append: its name, and the batch.
    pub fn batch(&mut self, now_us: u64, options: &Options) -> (BatchId, Vec<u8>) {
        let id = BatchId {
            client: self.id,
            sequence: self.next_sequence,
        };
        self.next_sequence += 1;
        let large = self.rng.happens(options.large_append);
        let mut builder = BatchBuilder::new();
        if let Some(producer) = &self.producer {
            producer.number(&mut builder);
        }
        let records = if large { 1 } else { self.rng.between(1, 6) };
        for index in 0..records {
            let room = options.max_batch_bytes - builder.len();
            let most = room.saturating_sub(RECORD_HEADER);
            let len = if large {
                most
            } else {
                self.rng.between(12, options.value_bytes.max(12) as u64) as usize
            };
            if len > most {
                break;
            }
            let value = value_of(id, index as u32, len);
            // Clients' clocks differ.
            let time = now_us.saturating_sub(self.rng.below(200_000));
            builder.push(&Record::new(time, &value));
        }
        let bytes = builder.finish();
        assert!(bytes.len() > BATCH_HEADER, "a batch holds a record");
        (id, bytes)
    }

    /// Draws the level of an append.
    pub fn level(&mut self) -> Level {
        match self.rng.below(10) {
            0 => Level::Local,
            1..=3 => Level::Leader,
            _ => Level::Quorum,
        }
    }

    /// Draws a read; `end` is where the log ended as far as the client knows.
    pub fn read(&mut self, end: u64) -> ClientRequest {
        let level = if self.rng.below(3) == 0 {
            ReadLevel::Local
        } else {
            ReadLevel::Committed
        };
        let follow = level == ReadLevel::Committed && self.rng.flip();
        let (offset, last_epoch) = if follow {
            self.read_at
        } else {
            (self.rng.below(end + 2), 0)
        };
        ClientRequest::Read {
            offset,
            max_bytes: *self.rng.pick(&[1, 1 << 12, 1 << 16]),
            wait_ms: *self.rng.pick(&[0, 5, 50]),
            level,
            last_epoch,
        }
    }

    /// Inverts a bit of a batch in the part that the client's CRC covers, or of the CRC.
    pub fn flip(&mut self, batch: &mut [u8]) {
        let covered = batch.len() - 64;
        let at = match self.rng.index(covered + 4) {
            at if at < covered => 64 + at,
            at => 12 + at - covered,
        };
        batch[at] ^= 1 << self.rng.below(8);
    }

    /// Digest that the batch has wherever it is found.
    pub fn digest_of(batch: &[u8]) -> u64 {
        client_digest(batch)
    }
}
