//! The producing half of a client that retries: what it has numbered and not seen acknowledged.
//!
//! It sends a batch again, the very bytes, until a node says that it is in the log, whatever else
//! it is told and however often the connection ends. Its batches are in the log once then, or the
//! checkers say so. If what was acknowledged at `local` is gone the log expects numbers that
//! cannot be sent any more: it goes on under its next epoch. Pure; `world_producer.rs` carries its
//! batches.

use super::facts::BatchId;
use millrace::limits::PRODUCER_BATCHES;
use millrace::types::{ConnectionId, Level};
use millrace::wire::body::Body;
use millrace::wire::code::Code;
use millrace::wire::record::BatchBuilder;
use std::collections::VecDeque;

/// A batch that is not known to be in the log.
#[derive(Clone, Debug)]
pub struct Unacked {
    /// Which.
    pub id: BatchId,
    /// Its bytes.
    pub batch: Vec<u8>,
    /// When to answer.
    pub level: Level,
    /// Number of its first record.
    pub base_sequence: u32,
    /// How many of this epoch were made before it.
    pub ordinal: u64,
    /// The connection on which it waits for an answer.
    pub on: Option<ConnectionId>,
}

/// A producer.
#[derive(Debug)]
pub struct ProducerSide {
    id: u64,
    epoch: u16,
    next_sequence: u32,
    made: u64,
    /// In order, the oldest first.
    pub unacked: VecDeque<Unacked>,
    /// Batches to be made anew under a new epoch, by level.
    pub owed: VecDeque<Level>,
    /// Told that another node leads, or none.
    pub misled: bool,
}

impl ProducerSide {
    /// The producer of client `client`.
    pub fn new(client: u32) -> ProducerSide {
        ProducerSide {
            id: u64::from(client) + 1,
            epoch: 0,
            next_sequence: 0,
            made: 0,
            unacked: VecDeque::new(),
            owed: VecDeque::new(),
            misled: false,
        }
    }

    /// Names the producer and the next sequence in a batch.
    pub fn number(&self, builder: &mut BatchBuilder) {
        builder.producer(self.id, self.epoch, self.next_sequence);
    }

    /// What keeps its order: all batches of one epoch, whatever the connection.
    pub fn session(&self) -> u64 {
        1 << 63 | self.id << 16 | u64::from(self.epoch)
    }

    /// A batch that was just numbered.
    pub fn made(&mut self, id: BatchId, batch: &[u8], level: Level, records: u32) {
        self.unacked.push_back(Unacked {
            id,
            batch: batch.to_vec(),
            level,
            base_sequence: self.next_sequence,
            ordinal: self.made,
            on: None,
        });
        self.made += 1;
        self.next_sequence = self.next_sequence.wrapping_add(records);
    }

    /// The connection ended: nothing has an answer coming.
    pub fn disconnected(&mut self) {
        self.misled = false;
        for one in &mut self.unacked {
            one.on = None;
        }
    }

    /// Hears what became of a batch.
    pub fn heard(&mut self, id: BatchId, body: &Body) {
        let Some(at) = self.unacked.iter().position(|one| one.id == id) else {
            return;
        };
        let error = match body {
            Body::Error(error) => error,
            _ => {
                self.unacked.remove(at);
                return;
            }
        };
        self.unacked[at].on = None;
        let first = self.unacked[0].base_sequence;
        let gone = match Code::from_number(error.code) {
            Some(Code::SequenceGap) => {
                u64::from(first) != error.detail && {
                    let expected = error.detail as u32;
                    first.wrapping_sub(expected) < 1 << 31
                }
            }
            Some(Code::UnknownProducer) => first != 0,
            Some(Code::NotLeader | Code::NotReady | Code::LogFailed | Code::Stopping) => {
                self.misled = true;
                false
            }
            _ => false,
        };
        if gone {
            self.begin_anew();
        }
    }

    /// Batches before the unacknowledged ones are gone from the log, and these never came into it:
    /// others take their place.
    fn begin_anew(&mut self) {
        let levels = self.unacked.drain(..).map(|one| one.level);
        self.owed.extend(levels);
        self.epoch += 1;
        self.next_sequence = 0;
        self.made = 0;
    }

    /// Whether one batch more leaves all that may be sent again within what a log remembers.
    pub fn has_room(&self) -> bool {
        let oldest = self.unacked.front().map_or(self.made, |one| one.ordinal);
        self.made - oldest < PRODUCER_BATCHES as u64
    }

    /// Whether everything it made is acknowledged.
    pub fn is_done(&self) -> bool {
        self.unacked.is_empty() && self.owed.is_empty()
    }
}
