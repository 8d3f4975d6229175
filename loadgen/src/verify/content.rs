//! Holds what stands in one node's blocks against the ledger, batch by batch, record by record.
//!
//! An acknowledged batch must be there once, whole, in its producer's order, at the offset that
//! the ack named; an unknown one once or not at all; a refused one not at all. Batches of other
//! runs are counted and left alone. Memory is one byte for each batch of the ledger. A batch that
//! has been found and is not right is never reported as missing too. Read `records.rs` for the
//! inside of a batch, `compare.rs` for what lies between nodes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use millrace::client::codec;
use millrace::limits::{BATCH_HEADER, BLOCK_HEADER};
use millrace::types::{LogId, Offset};
use millrace::wire::batch::{self, BatchError, BatchPrefix};
use millrace::wire::block::{self, BlockError, BlockHeader};

use super::finding::{Findings, Kind, Place};
use super::records;
use super::walk::{Damage, Shape, Visitor};
use crate::ledger::{Entry, Ledger, State};

/// What is known of a batch of the ledger on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    No,
    Proven,
    /// Found, and reported as wrong.
    Wrong,
}

/// What one node holds.
#[derive(Debug)]
pub struct Content<'a> {
    ledger: &'a Ledger,
    seen: Vec<Seen>,
    /// What is wrong.
    pub findings: Findings,
    /// Acked records proven: there once, whole, in order, at their offset.
    pub checked: u64,
    /// Records of unknown batches that are there.
    pub unknown_present: u64,
    /// Records of other runs, or without a run.
    pub foreign: u64,
    /// Acked records that lie in damaged bytes.
    pub unreadable: u64,
    /// Acked records that were trimmed.
    pub trimmed: u64,
    /// Batches with records.
    pub batches: u64,
    /// Records.
    pub records: u64,
    log: LogId,
    lost: BTreeMap<LogId, Vec<Range<u64>>>,
    /// Acked records between a log's start and its first block.
    gone: BTreeMap<LogId, u64>,
    /// By producer: the number that its next record has at least, in the log being walked.
    next: BTreeMap<u32, u64>,
}

/// Where a batch stands.
struct At<'b> {
    file: &'b Path,
    /// Of the block.
    position: u64,
    header: &'b BlockHeader,
    /// Of the batch in the block.
    start: usize,
}

impl At<'_> {
    fn place(&self) -> Place {
        let position = self.position + self.start as u64;
        Place::file(self.file)
            .at(position)
            .block(self.header.block.0)
    }
}

impl<'a> Content<'a> {
    /// Nothing seen yet.
    pub fn new(ledger: &'a Ledger) -> Content<'a> {
        Content {
            ledger,
            seen: vec![Seen::No; ledger.entries.len()],
            findings: Findings::default(),
            checked: 0,
            unknown_present: 0,
            foreign: 0,
            unreadable: 0,
            trimmed: 0,
            batches: 0,
            records: 0,
            log: LogId::default(),
            lost: BTreeMap::new(),
            gone: BTreeMap::new(),
            next: BTreeMap::new(),
        }
    }

    /// The walk of a log begins.
    pub fn begin(&mut self, log: LogId) {
        self.log = log;
        self.next.clear();
    }

    /// All logs were walked: what was acknowledged and not seen is missing.
    pub fn finish(&mut self, data: &Path, shapes: &BTreeMap<LogId, Shape>) {
        let ledger = self.ledger;
        for (index, entry) in ledger.entries.iter().enumerate() {
            let State::Acked(offset) = entry.state else {
                continue;
            };
            if self.seen[index] == Seen::No {
                self.not_seen(data, shapes, entry, offset);
            }
        }
        for (log, shape) in shapes {
            self.first_blocks_gone(&data.join(log.to_string()), *log, shape);
        }
    }

    /// A log that begins above its log start has lost its first blocks, whoever wrote them.
    fn first_blocks_gone(&mut self, folder: &Path, log: LogId, shape: &Shape) {
        let start = shape.log_start;
        if shape.blocks == 0 || shape.first_block <= start.block {
            return;
        }
        let count = self.gone.get(&log).copied().unwrap_or(0);
        let place = Place::file(folder)
            .block(shape.first_block.0)
            .offset(shape.first_offset.0);
        let text = format!(
            "the log begins here, and no retention removed what was before: by its checkpoint it \
             is kept from block {} and offset {} on; {count} acknowledged records lay there",
            start.block, start.offset
        );
        self.findings.add(Kind::Missing, count, place, text);
    }

    fn not_seen(
        &mut self,
        data: &Path,
        shapes: &BTreeMap<LogId, Shape>,
        entry: &Entry,
        offset: Offset,
    ) {
        let count = u64::from(entry.count);
        let log = entry.log;
        let lost = self.lost.get(&log).into_iter().flatten();
        let batch = offset.0..offset.0 + count;
        if lost
            .into_iter()
            .any(|lost| lost.start < batch.end && batch.start < lost.end)
        {
            self.unreadable += count;
            return;
        }
        let place = Place::file(&data.join(log.to_string()))
            .offset(offset.0)
            .record(entry.producer, entry.first);
        let text = match shapes.get(&log) {
            Some(shape) if offset < shape.log_start.offset => {
                self.trimmed += count;
                return;
            }
            Some(shape) if offset < shape.first_offset => {
                *self.gone.entry(log).or_default() += count;
                return;
            }
            None => "acknowledged, and there is no such log".to_owned(),
            Some(shape) if offset >= shape.end_offset => {
                format!(
                    "{count} acknowledged records; the log ends at {}",
                    shape.end_offset
                )
            }
            Some(_) => format!("{count} acknowledged records are nowhere in the log"),
        };
        self.findings.add(Kind::Missing, count, place, text);
    }

    fn lose(&mut self, offsets: Range<u64>) {
        if !offsets.is_empty() {
            self.lost.entry(self.log).or_default().push(offsets);
        }
    }

    /// Walks the batches of a block of which something is not sound, names it, and takes the rest.
    fn diagnose(&mut self, file: &Path, position: u64, header: &BlockHeader, bytes: &[u8]) {
        let used = &bytes[..header.used_len as usize];
        let mut start = BLOCK_HEADER;
        let mut next = header.base_offset;
        let mut named = false;
        while start < used.len() {
            let at = At {
                file,
                position,
                header,
                start,
            };
            match (
                batch::check(&used[start..]),
                batch::read_prefix(&used[start..]),
            ) {
                (Ok(prefix), _) if prefix.log == header.log && prefix.base_offset == next => {
                    self.batch(&at, &prefix, &used[start..start + prefix.total_len()]);
                    start += prefix.total_len();
                    next = prefix.end_offset();
                }
                (Err(BatchError::ClientCrc), Ok(prefix)) => {
                    named = true;
                    self.damaged(&at, &prefix, &used[start..start + prefix.total_len()]);
                    start += prefix.total_len();
                    next = prefix.end_offset();
                }
                (result, _) => {
                    let what = match result {
                        Ok(_) => "another log or offset".to_owned(),
                        Err(error) => format!("{error:?}"),
                    };
                    let text = format!("the batch's header is damaged ({what})");
                    let place = at.place().offset(next.0);
                    self.findings.add(Kind::Corrupt, 1, place, text);
                    self.lose(next.0..header.end_offset.0);
                    return;
                }
            }
        }
        if !named {
            let place = Place::file(file).at(position).block(header.block.0);
            let text = "the batches are sound and contradict the block's header";
            self.findings.add(Kind::Corrupt, 1, place, text);
        }
    }

    /// A batch whose body does not fit its CRC: names the record, if one can be found.
    fn damaged(&mut self, at: &At<'_>, prefix: &BatchPrefix, bytes: &[u8]) {
        self.lose(prefix.base_offset.0..prefix.end_offset().0);
        let half = batch::client_half(bytes);
        let run = (half.producer_id >> 32) as u32;
        let producer = half.producer_id as u32;
        let body = &bytes[BATCH_HEADER..];
        let mut place = at.place().offset(prefix.base_offset.0);
        let mut text = "the batch does not fit its client's CRC".to_owned();
        let packed = half.flags & batch::CODEC_MASK != 0;
        let bad = records::first_bad(self.ledger.payload, body);
        if let Some(bad) = bad.filter(|_| !packed) {
            let index = bad.index as u32;
            let offset = prefix.base_offset.0 + u64::from(index);
            let within = (BATCH_HEADER + bad.start) as u64;
            place = at.place().offset(offset);
            place.position = place.position.map(|position| position + within);
            if run == self.ledger.run {
                place = place.record(producer, half.base_sequence.wrapping_add(index));
            }
            text.push_str(", and this is the record that is damaged");
        }
        self.findings.add(Kind::Corrupt, 1, place, text);
    }

    fn mark_wrong(&mut self, index: usize) {
        if self.seen[index] == Seen::Proven && self.ledger.entries[index].is_acked() {
            self.checked -= u64::from(self.ledger.entries[index].count);
        }
        self.seen[index] = Seen::Wrong;
    }

    /// A sound batch.
    fn batch(&mut self, at: &At<'_>, prefix: &BatchPrefix, bytes: &[u8]) {
        if prefix.record_count == 0 {
            return;
        }
        let count = u64::from(prefix.record_count);
        self.batches += 1;
        self.records += count;
        let half = batch::client_half(bytes);
        let producer = half.producer_id as u32;
        let known = prefix.version == batch::VERSION;
        if !known || (half.producer_id >> 32) as u32 != self.ledger.run {
            self.foreign += count;
            return;
        }
        let place = || {
            let place = at.place().offset(prefix.base_offset.0);
            place.record(producer, half.base_sequence)
        };
        let ledger = self.ledger;
        let Some(index) = ledger.find(producer, half.base_sequence) else {
            let text = format!("a batch of {count} records that this run never sent");
            self.findings.add(Kind::Unexpected, count, place(), text);
            return;
        };
        let entry = &ledger.entries[index];
        if self.seen[index] != Seen::No {
            let text = format!("a batch of {count} records that is there already");
            self.findings.add(Kind::Duplicated, count, place(), text);
            self.mark_wrong(index);
            return;
        }
        let in_order = self.in_order(entry, place);
        let whole = match codec::unpack(&half, &bytes[BATCH_HEADER..]) {
            Ok(body) => records::check(ledger, entry, &mut self.findings, place(), &body),
            Err(error) => {
                let text = format!("the batch does not unpack: {error}");
                self.findings.add(Kind::Corrupt, 1, place(), text);
                false
            }
        };
        let placed = self.placed(entry, prefix, place);
        let right = in_order && whole && placed;
        self.seen[index] = if right { Seen::Proven } else { Seen::Wrong };
        match entry.state {
            State::Acked(_) if right => self.checked += u64::from(entry.count),
            State::Unknown(_) => self.unknown_present += count,
            _ => {}
        }
    }

    /// Whether the batch stands behind those that its producer sent before it.
    fn in_order(&mut self, entry: &Entry, place: impl Fn() -> Place) -> bool {
        let next = self.next.entry(entry.producer).or_default();
        let first = u64::from(entry.first);
        let in_order = first >= *next;
        if !in_order {
            let text = format!(
                "the batch stands behind record {} of its producer",
                *next - 1
            );
            let count = u64::from(entry.count);
            self.findings.add(Kind::Reordered, count, place(), text);
        }
        *next = (*next).max(first + u64::from(entry.count));
        in_order
    }

    /// Whether the batch stands where its end says.
    fn placed(&mut self, entry: &Entry, prefix: &BatchPrefix, place: impl Fn() -> Place) -> bool {
        let count = u64::from(prefix.record_count);
        let (kind, text) = match entry.state {
            _ if prefix.log != entry.log => {
                let text = format!("a batch that was sent to log {}", entry.log);
                (Kind::Displaced, text)
            }
            State::Acked(offset) if offset != prefix.base_offset => {
                let text = format!("a batch that was acknowledged at offset {offset}");
                (Kind::Displaced, text)
            }
            State::Failed(code) => {
                let code = millrace::wire::code::Code::from_number(code);
                let name = code.map_or("an error", |code| code.name());
                (
                    Kind::Unexpected,
                    format!("a batch that was refused with {name}"),
                )
            }
            State::Acked(_) | State::Unknown(_) => return true,
        };
        self.findings.add(kind, count, place(), text);
        false
    }
}

impl Visitor for Content<'_> {
    fn block(&mut self, file: &Path, position: u64, header: &BlockHeader, bytes: &[u8]) {
        match block::check_batches(bytes, header) {
            Ok(()) => {
                for (start, prefix) in block::batches(bytes, header) {
                    let at = At {
                        file,
                        position,
                        header,
                        start,
                    };
                    self.batch(&at, &prefix, &bytes[start..start + prefix.total_len()]);
                }
            }
            Err(_) => self.diagnose(file, position, header, bytes),
        }
        if block::check_padding(bytes, header) == Err(BlockError::Padding) {
            let place = Place::file(file).at(position).block(header.block.0);
            let text = "a byte of the padding is not zero";
            self.findings.add(Kind::Corrupt, 1, place, text);
        }
    }

    fn damage(&mut self, damage: Damage) {
        let place = Place::file(&damage.file).at(damage.position);
        let place = place.block(damage.block.0).offset(damage.lost.start);
        self.findings.add(Kind::Corrupt, 1, place, damage.text);
        self.lose(damage.lost);
    }
}
