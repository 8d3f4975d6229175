//! Holds the records of one batch against what was sent: each there once, in order, unharmed.
//!
//! The common case is one pass without a table. Only a batch with something wrong in it is looked
//! at again, record by record, to say what: a record that stands elsewhere in the batch is
//! reordered, one of another batch is reordered too (and hides one missing place), one that is
//! nowhere is missing. Read `content.rs` for what lies around a batch.

use std::collections::BTreeSet;

use millrace::types::ShardId;
use millrace::wire::record::{self, Record};

use super::finding::{Findings, Kind, Place};
use crate::keys;
use crate::ledger::{Entry, Ledger};
use crate::payload::{Payload, Stamp};

/// A record that does not fit its own CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad {
    /// Which one of the body.
    pub index: usize,
    /// Where its bytes begin in the body.
    pub start: usize,
}

/// The first record of a body that does not parse or whose payload does not fit its CRC.
pub fn first_bad(payload: Payload, body: &[u8]) -> Option<Bad> {
    let mut rest = body;
    let mut index = 0;
    while !rest.is_empty() {
        let start = body.len() - rest.len();
        match record::read(rest) {
            Ok((record, after)) if payload.read(record.key, record.value).is_ok() => rest = after,
            _ => return Some(Bad { index, start }),
        }
        index += 1;
    }
    None
}

/// Whether the body holds exactly the records of `entry`, in order; what is wrong is entered.
/// `place` is that of the batch, with its first offset.
pub fn check(
    ledger: &Ledger,
    entry: &Entry,
    findings: &mut Findings,
    place: Place,
    body: &[u8],
) -> bool {
    if all_right(ledger, entry, body) {
        return true;
    }
    let mut sight = Sight {
        ledger,
        entry,
        findings,
        place,
        present: BTreeSet::new(),
        behind: 0,
        strangers: 0,
    };
    for (index, record) in record::read_all(body).enumerate() {
        sight.record(index as u64, record.ok());
    }
    sight.missing();
    false
}

fn all_right(ledger: &Ledger, entry: &Entry, body: &[u8]) -> bool {
    let mut sequence = entry.first;
    for record in record::read_all(body) {
        let expected = Stamp {
            run: ledger.run,
            producer: entry.producer,
            sequence,
        };
        let right = record.is_ok_and(|record| {
            record.value.len() == ledger.record_bytes as usize
                && ledger.payload.read(record.key, record.value) == Ok(expected)
                && key_fits(ledger, entry.log.shard, record.key)
        });
        if !right {
            return false;
        }
        sequence = sequence.wrapping_add(1);
    }
    sequence.wrapping_sub(entry.first) == entry.count
}

/// Whether a record of the run may have this key on that shard.
fn key_fits(ledger: &Ledger, shard: ShardId, key: &[u8]) -> bool {
    if ledger.key_count == 0 {
        return key.is_empty();
    }
    keys::number(key).is_some_and(|number| number < ledger.key_count)
        && keys::shard_of(key, ledger.shards) == shard
}

/// The closer look.
struct Sight<'a> {
    ledger: &'a Ledger,
    entry: &'a Entry,
    findings: &'a mut Findings,
    place: Place,
    /// Numbers of the batch's own records that are in it.
    present: BTreeSet<u32>,
    /// One past the highest number so far.
    behind: u64,
    /// Records that do not belong here, or whose own is not readable: each fills a place.
    strangers: u64,
}

impl Sight<'_> {
    fn record(&mut self, index: u64, record: Option<Record<'_>>) {
        let offset = self.place.offset.unwrap_or(0) + index;
        let place = Place {
            offset: Some(offset),
            ..self.place.clone()
        };
        let Some(record) = record else {
            self.strangers += 1;
            self.findings
                .add(Kind::Corrupt, 1, place, "bytes that are no record");
            return;
        };
        let (payload, value) = (self.ledger.payload, record.value);
        let stamp = match payload.read(record.key, value) {
            Ok(stamp) => stamp,
            Err(error) => {
                self.strangers += 1;
                let sequence = payload.stamp(value).map_or(0, |stamp| stamp.sequence);
                let place = place.record(self.entry.producer, sequence);
                let text = format!("the payload is damaged ({error:?}) under sound CRCs");
                self.findings.add(Kind::Corrupt, 1, place, text);
                return;
            }
        };
        let place = place.record(stamp.producer, stamp.sequence);
        if value.len() != self.ledger.record_bytes as usize {
            let text = format!("a payload of {} bytes", value.len());
            self.findings.add(Kind::Corrupt, 1, place.clone(), text);
        }
        if !key_fits(self.ledger, self.entry.log.shard, record.key) {
            let key = String::from_utf8_lossy(record.key).into_owned();
            let text = format!("a record whose key {key:?} does not belong here");
            self.findings.add(Kind::Displaced, 1, place.clone(), text);
        }
        let own = stamp.run == self.ledger.run
            && stamp.producer == self.entry.producer
            && stamp.sequence >= self.entry.first
            && stamp.sequence - self.entry.first < self.entry.count;
        if !own {
            self.strangers += 1;
            let text = "a record of another batch";
            self.findings.add(Kind::Reordered, 1, place, text);
        } else if !self.present.insert(stamp.sequence) {
            let text = "a record that is in the batch already";
            self.findings.add(Kind::Duplicated, 1, place, text);
        } else if u64::from(stamp.sequence) < self.behind {
            let text = format!("the record stands behind record {}", self.behind - 1);
            self.findings.add(Kind::Reordered, 1, place, text);
        }
        self.behind = self.behind.max(u64::from(stamp.sequence) + 1);
    }

    fn missing(self) {
        let absent = (0..self.entry.count)
            .map(|index| self.entry.first.wrapping_add(index))
            .filter(|sequence| !self.present.contains(sequence));
        for sequence in absent.skip(self.strangers as usize) {
            // Only what was acknowledged is promised, but a batch is there whole or not at all.
            let place = Place {
                offset: None,
                ..self.place.clone()
            };
            let place = place.record(self.entry.producer, sequence);
            let text = "the record is not in its batch";
            self.findings.add(Kind::Missing, 1, place, text);
        }
    }
}
