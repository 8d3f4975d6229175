//! The producers of a log: which batches it holds of each, so that a retry is never appended twice.
//!
//! Of each producer the last batches are known, by sequence (DESIGN, "Idempotence"). The table of
//! the sealed blocks is a pure function of the log up to its end: each batch with a producer is
//! noted, one producer more than there is room for makes the one with the oldest tick leave. So
//! every replica has the same table, and a snapshot of it in the first block of a segment is a
//! cache. What the open block adds lies over it, because an open block may be dropped. Nothing here
//! answers anybody: `shard/appends.rs` does. Read `rebuild.rs` for a table after a cut.

use crate::limits::{BATCH_HEADER, BLOCK_HEADER, PRODUCER_BATCHES, PRODUCERS};
use crate::types::{Offset, Tick};
use crate::wire::batch::{self, ClientHalf, Kind};
use crate::wire::block::{self, BlockHeader};
use crate::wire::producers::{self, KnownBatch, Producer};
use std::collections::{BTreeMap, VecDeque};

/// What a log knows of a batch by its producer and sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// It is the next one of its producer, or has no producer: append it.
    Next,
    /// It is in the log, the open block included: here.
    Known(KnownBatch),
    /// It does not follow the producer's last batch, which ends before `expected`.
    Gap {
        /// The sequence that comes next.
        expected: u32,
    },
    /// Another batch has its sequence, and begins at this offset.
    Reused {
        /// First offset of that batch.
        offset: Offset,
    },
    /// It is older than what is known of its producer: it may be in the log.
    TooOld,
    /// The producer is not known and the batch is not its first one.
    UnknownProducer,
    /// The producer has a newer epoch.
    Fenced {
        /// The newer one.
        epoch: u16,
    },
}

/// The producers of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Producers {
    /// As of the last block of the log.
    sealed: BTreeMap<u64, Producer>,
    /// Those that the open block has batches of, as of its end.
    open: BTreeMap<u64, Producer>,
    most: usize,
}

impl Producers {
    /// No producers. `block_bytes` bounds a block: a snapshot of all must fit into one.
    pub(super) fn new(block_bytes: usize) -> Producers {
        let room = block_bytes.saturating_sub(BLOCK_HEADER + BATCH_HEADER);
        let each = producers::max_len(1);
        Producers {
            sealed: BTreeMap::new(),
            open: BTreeMap::new(),
            most: (room / each).clamp(1, PRODUCERS),
        }
    }

    /// Whether no block of the log has a batch with a producer.
    pub(super) fn is_empty(&self) -> bool {
        self.sealed.is_empty()
    }

    /// Those of the sealed blocks, ascending by id.
    pub(super) fn sealed(&self) -> impl Iterator<Item = &Producer> {
        self.sealed.values()
    }

    /// The snapshot of the sealed blocks' table.
    pub(super) fn snapshot(&self) -> Vec<u8> {
        producers::encode(self.sealed.values())
    }

    /// What is known of a batch with this client's half and CRC.
    pub(super) fn judge(&self, half: &ClientHalf, client_crc: u32) -> Sequence {
        let base = half.base_sequence;
        if half.producer_id == 0 {
            return Sequence::Next;
        }
        let sealed = || self.sealed.get(&half.producer_id);
        let Some(producer) = self.open.get(&half.producer_id).or_else(sealed) else {
            return match base {
                0 => Sequence::Next,
                _ => Sequence::UnknownProducer,
            };
        };
        if half.producer_epoch < producer.epoch {
            let epoch = producer.epoch;
            return Sequence::Fenced { epoch };
        }
        if half.producer_epoch > producer.epoch {
            return match base {
                0 => Sequence::Next,
                _ => Sequence::Gap { expected: 0 },
            };
        }
        among(&producer.batches, half, client_crc)
    }

    /// The open block takes in a batch.
    pub(super) fn accept(&mut self, half: &ClientHalf, batch: KnownBatch, tick: Tick) {
        if half.producer_id == 0 {
            return;
        }
        let before = self.sealed.get(&half.producer_id);
        let open = self.open.entry(half.producer_id);
        open.or_insert_with(|| before.cloned().unwrap_or_else(|| unknown(half)))
            .note(half, batch, tick);
    }

    /// The open block is dropped: its batches are nowhere.
    pub(super) fn drop_open(&mut self) {
        self.open.clear();
    }

    /// The log takes in a block: the open one, sealed now, or one that was received or read.
    /// `bytes` begins with its header; its batches were checked.
    pub(super) fn take_in(&mut self, bytes: &[u8], header: &BlockHeader) {
        self.open.clear();
        self.walk(bytes, header, false);
    }

    /// Takes over the snapshot in the first batch of a block, if there is one.
    pub(super) fn take_snapshot(&mut self, bytes: &[u8], header: &BlockHeader) {
        self.walk(bytes, header, true);
    }

    fn walk(&mut self, bytes: &[u8], header: &BlockHeader, only_snapshot: bool) {
        for (at, (batch, prefix)) in block::walk(bytes, header).enumerate() {
            if at == 0 && header.first_in_segment && prefix.kind == Kind::Local.number() {
                let body = usize::from(prefix.header_len)..prefix.total_len();
                if let Some(producers) = producers::decode(&batch[body]) {
                    self.sealed = producers.into_iter().map(|one| (one.id, one)).collect();
                }
                continue;
            }
            if only_snapshot {
                break;
            }
            if prefix.version != batch::VERSION || prefix.record_count == 0 {
                continue;
            }
            let half = batch::client_half(batch);
            let known = KnownBatch {
                base_sequence: half.base_sequence,
                record_count: half.record_count,
                client_crc: batch::client_crc(batch),
                epoch: prefix.origin_epoch,
                base_offset: prefix.base_offset,
                block: header.block,
            };
            self.note(&half, known, prefix.tick);
        }
    }

    fn note(&mut self, half: &ClientHalf, batch: KnownBatch, tick: Tick) {
        if half.producer_id == 0 {
            return;
        }
        if let Some(producer) = self.sealed.get_mut(&half.producer_id) {
            return producer.note(half, batch, tick);
        }
        if self.sealed.len() >= self.most {
            let ticks = self.sealed.values().map(|one| (one.last_tick, one.id));
            let (_, oldest) = ticks.min().expect("there is room for one at least");
            self.sealed.remove(&oldest);
        }
        let mut producer = unknown(half);
        producer.note(half, batch, tick);
        self.sealed.insert(half.producer_id, producer);
    }
}

fn unknown(half: &ClientHalf) -> Producer {
    Producer {
        id: half.producer_id,
        epoch: half.producer_epoch,
        last_tick: Tick(0),
        batches: VecDeque::with_capacity(PRODUCER_BATCHES),
    }
}

/// What is known of a batch of a producer whose last batches are these.
fn among(known: &VecDeque<KnownBatch>, half: &ClientHalf, client_crc: u32) -> Sequence {
    let base = half.base_sequence;
    let last = known.back().expect("a producer is known by a batch");
    let expected = last.end();
    if base == expected {
        return Sequence::Next;
    }
    // Sequences wrap: what is less than half of all numbers ahead lies ahead.
    if base.wrapping_sub(expected) < 1 << 31 {
        return Sequence::Gap { expected };
    }
    let holds = |batch: &&KnownBatch| base.wrapping_sub(batch.base_sequence) < batch.record_count;
    let Some(batch) = known.iter().find(holds) else {
        return Sequence::TooOld;
    };
    let same = batch.base_sequence == base
        && batch.record_count == half.record_count
        && batch.client_crc == client_crc;
    if same {
        Sequence::Known(*batch)
    } else {
        let offset = batch.base_offset;
        Sequence::Reused { offset }
    }
}
