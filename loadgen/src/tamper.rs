//! Damages a copy of a node's directory in three ways, so that the verifier can be seen to notice.
//!
//! `flip` changes one byte of a record in place. `remove` takes one record out and `swap`
//! exchanges two, and both make every length, CRC and chain behind it sound again, so that nothing
//! but the content is wrong. The middle of a log is taken. Only ever for a copy of stopped nodes'
//! files. Read `verify/mod.rs` for the other side.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use millrace::limits::{BATCH_HEADER, BLOCK_HEADER, SEGMENT_HEADER};
use millrace::types::{LogId, Offset, padded};
use millrace::wire::batch::{self, BatchPrefix, Kind, LeaderHalf};
use millrace::wire::block::{self, BatchesCrc, BlockHeader};
use millrace::wire::{record, segment};

use crate::verify::finding::Place;
use crate::verify::reader::Progress;
use crate::verify::walk::{self, Damage, Visitor};

/// What to do to the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Flip one bit of one record's value.
    Flip,
    /// Take one record out, formally sound.
    Remove,
    /// Exchange two neighbouring records, formally sound.
    Swap,
}

/// Why nothing was done.
#[derive(Debug)]
pub enum TamperError {
    /// The files could not be read or written.
    Io(io::Error),
    /// No log has what the change needs.
    Nothing,
}

impl From<io::Error> for TamperError {
    fn from(error: io::Error) -> TamperError {
        TamperError::Io(error)
    }
}

/// Makes the change in a log of `data` (that of `shard`, if one is named); returns where.
pub fn tamper(data: &Path, change: Change, shard: Option<u16>) -> Result<Place, TamperError> {
    for (log, folder) in walk::logs(data)? {
        if shard.is_some_and(|shard| shard != log.shard.0) {
            continue;
        }
        for alone in [false, true] {
            if let Some(target) = choose(&folder, log, change, alone)? {
                match change {
                    Change::Flip => flip(&target)?,
                    Change::Remove | Change::Swap => rewrite(&folder, log, &target, change)?,
                }
                return Ok(target.place());
            }
        }
    }
    Err(TamperError::Nothing)
}

/// A record, by file, block, batch and number in it.
#[derive(Clone, Debug)]
struct Target {
    file: PathBuf,
    position: u64,
    block: u64,
    batch: usize,
    record: usize,
    /// The value's first byte, from the file's start.
    value_at: u64,
    value_len: u64,
    offset: u64,
    producer: u32,
    sequence: u32,
}

impl Target {
    fn place(&self) -> Place {
        Place::file(&self.file)
            .at(self.value_at)
            .block(self.block)
            .offset(self.offset)
            .record(self.producer, self.sequence)
    }
}

/// Counts what could be changed, or takes the one with this number.
struct Candidates {
    change: Change,
    /// Batches of one record, changed as a whole, instead of records inside a batch.
    alone: bool,
    count: u64,
    take: Option<u64>,
    target: Option<Target>,
}

fn choose(
    folder: &Path,
    log: LogId,
    change: Change,
    alone: bool,
) -> Result<Option<Target>, TamperError> {
    let mut candidates = Candidates {
        change,
        alone,
        count: 0,
        take: None,
        target: None,
    };
    let progress = Progress::default();
    walk::walk(folder, log, &progress, &mut candidates)?;
    candidates.take = Some(candidates.count / 2);
    candidates.count = 0;
    walk::walk(folder, log, &progress, &mut candidates)?;
    Ok(candidates.target)
}

impl Visitor for Candidates {
    fn block(&mut self, file: &Path, position: u64, header: &BlockHeader, bytes: &[u8]) {
        if block::check_batches(bytes, header).is_err() {
            return;
        }
        let batches = block::batches(bytes, header);
        for (index, (start, prefix)) in batches.iter().enumerate() {
            let next = batches.get(index + 1).map(|(_, next)| next);
            let packed = |start: usize, prefix: &BatchPrefix| {
                let half = batch::client_half(&bytes[start..start + prefix.total_len()]);
                half.flags & batch::CODEC_MASK != 0
            };
            let behind = batches.get(index + 1);
            if !self.fits(prefix, next)
                || packed(*start, prefix)
                || behind.is_some_and(|(start, next)| self.alone && packed(*start, next))
            {
                continue;
            }
            if self.take == Some(self.count) {
                let batch = &bytes[*start..start + prefix.total_len()];
                let record = prefix.record_count as usize / 2;
                let half = batch::client_half(batch);
                let mut target = Target {
                    file: file.to_owned(),
                    position,
                    block: header.block.0,
                    batch: index,
                    record,
                    value_at: position + (start + BATCH_HEADER) as u64,
                    value_len: 0,
                    offset: prefix.base_offset.0 + record as u64,
                    producer: half.producer_id as u32,
                    sequence: half.base_sequence.wrapping_add(record as u32),
                };
                let (from, len) = value_of(&batch[BATCH_HEADER..], record);
                target.value_at += from as u64;
                target.value_len = len as u64;
                self.target = Some(target);
            }
            self.count += 1;
        }
    }

    fn damage(&mut self, _: Damage) {}
}

impl Candidates {
    fn fits(&self, prefix: &BatchPrefix, next: Option<&BatchPrefix>) -> bool {
        let single = |prefix: &BatchPrefix| prefix.kind == 0 && prefix.record_count == 1;
        match (self.change, self.alone) {
            (_, false) => prefix.kind == 0 && prefix.record_count >= 2,
            (Change::Flip, true) => single(prefix),
            (Change::Remove, true) => single(prefix) && next.is_some(),
            (Change::Swap, true) => {
                let alike =
                    |next: &BatchPrefix| single(next) && next.stored_len == prefix.stored_len;
                single(prefix) && next.is_some_and(alike)
            }
        }
    }
}

/// Where the value of a record begins in a body, and its length.
fn value_of(body: &[u8], record: usize) -> (usize, usize) {
    let mut rest = body;
    for index in 0.. {
        let Ok((found, after)) = record::read(rest) else {
            break;
        };
        if index == record {
            let end = body.len() - after.len();
            return (end - found.value.len(), found.value.len());
        }
        rest = after;
    }
    (0, 0)
}

fn flip(target: &Target) -> io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&target.file)?;
    let at = target.value_at + target.value_len / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    byte[0] ^= 1;
    file.write_all_at(&byte, at)?;
    file.sync_all()
}

/// Writes the target's segment and all behind it again, with the change and sound around it.
fn rewrite(folder: &Path, log: LogId, target: &Target, change: Change) -> io::Result<()> {
    let shape = walk::walk(folder, log, &Progress::default(), &mut Nobody)?;
    let mut writer = Rewriter {
        target,
        change,
        removed: 0,
        previous: None,
    };
    let from = shape
        .segments
        .iter()
        .skip_while(|segment| segment.path != target.file);
    for segment in from {
        let old = fs::read(&segment.path)?;
        let new = writer.segment(&segment.path, &old, segment.end_position);
        fs::write(&segment.path, new)?;
    }
    Ok(())
}

struct Nobody;

impl Visitor for Nobody {
    fn block(&mut self, _: &Path, _: u64, _: &BlockHeader, _: &[u8]) {}
    fn damage(&mut self, _: Damage) {}
}

struct Rewriter<'a> {
    target: &'a Target,
    change: Change,
    /// Records taken out so far: how far later offsets move down.
    removed: u64,
    /// `header_crc` of the block written last.
    previous: Option<u32>,
}

impl Rewriter<'_> {
    fn segment(&mut self, path: &Path, old: &[u8], end: u64) -> Vec<u8> {
        let mut new = vec![0; SEGMENT_HEADER];
        if let Some(mut header) = segment::read(old) {
            header.base_offset.0 -= self.removed;
            header.prev_crc = self.previous.unwrap_or(header.prev_crc);
            segment::write(&mut new, &header);
        }
        let mut at = SEGMENT_HEADER;
        while (at as u64) < end {
            let Ok(header) = block::read_header(&old[at..]) else {
                break;
            };
            let here = path == self.target.file && at as u64 == self.target.position;
            self.block(
                &header,
                &old[at..at + header.used_len as usize],
                here,
                &mut new,
            );
            at += header.padded_len();
        }
        new.resize(old.len().max(new.len()), 0);
        new
    }

    fn block(&mut self, old: &BlockHeader, bytes: &[u8], here: bool, out: &mut Vec<u8>) {
        let mut header = *old;
        header.prev_header_crc = self.previous.unwrap_or(old.prev_header_crc);
        header.base_offset.0 -= self.removed;
        let mut batches: Vec<Vec<u8>> = block::batches(bytes, old)
            .iter()
            .map(|(start, prefix)| bytes[*start..start + prefix.total_len()].to_vec())
            .collect();
        if here {
            self.make_change(&mut batches);
        }
        let start = out.len();
        out.resize(start + BLOCK_HEADER, 0);
        let mut crc = BatchesCrc::default();
        let mut next = header.base_offset;
        header.batch_count = batches.len() as u32;
        header.max_timestamp = 0;
        for mut bytes in batches {
            let prefix = place_batch(&mut bytes, next);
            next = prefix.end_offset();
            header.last_tick = prefix.tick;
            let latest = batch::client_half(&bytes).max_timestamp;
            header.max_timestamp = header.max_timestamp.max(latest);
            crc.add(prefix.header_crc);
            out.extend_from_slice(&bytes);
        }
        header.record_count = (next.0 - header.base_offset.0) as u32;
        header.end_offset = next;
        header.used_len = (out.len() - start) as u32;
        header.batches_crc = crc.finish();
        self.previous = Some(block::write_header(&mut out[start..], &header));
        out.resize(start + padded(header.used_len as usize), 0);
    }

    fn make_change(&mut self, batches: &mut Vec<Vec<u8>>) {
        let (index, record) = (self.target.batch, self.target.record);
        let single = batch::client_half(&batches[index]).record_count == 1;
        match (self.change, single) {
            (Change::Flip, _) => {}
            (Change::Remove, true) => {
                batches.remove(index);
                self.removed = 1;
            }
            (Change::Swap, true) => {
                let (one, two) = batches.split_at_mut(index + 1);
                let (one, two) = (&mut one[index], &mut two[0]);
                one[BATCH_HEADER..].swap_with_slice(&mut two[BATCH_HEADER..]);
                close_batch(one, 1);
                close_batch(two, 1);
            }
            (Change::Remove | Change::Swap, false) => {
                let mut records = split(&batches[index][BATCH_HEADER..]);
                if self.change == Change::Remove {
                    records.remove(record);
                    self.removed = 1;
                } else {
                    records.swap(record - 1, record);
                }
                let batch = &mut batches[index];
                batch.truncate(BATCH_HEADER);
                records
                    .iter()
                    .for_each(|record| batch.extend_from_slice(record));
                close_batch(batch, records.len());
            }
        }
    }
}

/// The records of a body, each as encoded.
fn split(body: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut records) = (body, Vec::new());
    while let Ok((_, after)) = record::read(rest) {
        records.push(rest[..rest.len() - after.len()].to_vec());
        rest = after;
    }
    records
}

/// Makes the client's half of a batch fit its changed body; the leader's half stays as it was.
fn close_batch(batch: &mut [u8], records: usize) {
    let leader: [u8; batch::CLIENT_HALF] = batch[..batch::CLIENT_HALF]
        .try_into()
        .expect("a header is longer");
    let mut half = batch::client_half(batch);
    half.record_count = records as u32;
    half.stored_len = (batch.len() - BATCH_HEADER) as u32;
    half.raw_len = half.stored_len;
    batch::write_client_half(batch, &half);
    // All of the leader's fields, but not the CRC that covers the client's.
    batch[..12].copy_from_slice(&leader[..12]);
    batch[16..batch::CLIENT_HALF].copy_from_slice(&leader[16..]);
}

/// Writes the leader's half again, with this offset.
fn place_batch(bytes: &mut [u8], offset: Offset) -> BatchPrefix {
    const KINDS: [Kind; 6] = [
        Kind::Data,
        Kind::TxnBegin,
        Kind::TxnBody,
        Kind::TxnCommit,
        Kind::Local,
        Kind::Config,
    ];
    let field = |from: usize, to: usize| {
        let mut number = [0; 8];
        number[..to - from].copy_from_slice(&bytes[from..to]);
        u64::from_le_bytes(number)
    };
    let kind = KINDS.into_iter().find(|kind| kind.number() == bytes[5]);
    let half = LeaderHalf {
        kind: kind.unwrap_or(Kind::Data),
        log: LogId {
            origin: millrace::types::OriginId(field(44, 48) as u32),
            shard: millrace::types::ShardId(field(48, 50) as u16),
        },
        base_offset: offset,
        tick: millrace::types::Tick(field(24, 32)),
        txn_id: field(32, 40),
        origin_epoch: millrace::types::Epoch(field(40, 44) as u32),
    };
    batch::write_leader_half(bytes, &half);
    batch::read_prefix(bytes).expect("written just now")
}
