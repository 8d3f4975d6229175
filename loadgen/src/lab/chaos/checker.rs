//! The checker: what clients were told, held against what is in the logs at the end.
//!
//! It is given a [`History`] and nothing else: it knows no node, no protocol and no fault, so it
//! can be fed histories made by hand, and one that lies must be found out ([`red`] and the tests).
//! What it holds: an append acknowledged at `quorum` is there once, whole, at its offset; one at
//! `leader` may be cut by a change of leader, if a node says that it cut that record, but is
//! nowhere else and never twice; an unknown one is there once at most; a refused one is not there;
//! the records of one producer stand in their order; what was once read as committed stays; all
//! nodes hold the same. Read `history.rs` first.

use std::collections::BTreeMap;
use std::fmt;

use millrace::types::Level;

use super::history::{Append, Content, Cut, End, History, Readback};

/// Findings that are spelled out, of each kind.
const TOLD: usize = 3;

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An acknowledged record is nowhere.
    Missing,
    /// A record is there more than once.
    Doubled,
    /// A record is at another offset than acknowledged.
    Displaced,
    /// Two records of one producer are in the wrong order.
    Reordered,
    /// A refused record is there.
    Refused,
    /// A record that nobody sent, or with other bytes than were sent.
    Stranger,
    /// Something else stands now where a record was read as committed.
    Contradicted,
    /// Two nodes, or the two levels of one, do not hold the same.
    Differing,
}

impl Kind {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Missing => "missing",
            Kind::Doubled => "doubled",
            Kind::Displaced => "displaced",
            Kind::Reordered => "reordered",
            Kind::Refused => "refused and there",
            Kind::Stranger => "strange",
            Kind::Contradicted => "contradicted",
            Kind::Differing => "differing",
        }
    }
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    counts: BTreeMap<Kind, u64>,
    told: BTreeMap<Kind, Vec<String>>,
    /// Acknowledged appends that are proven: there once, whole, at their offset.
    pub proven: u64,
    /// Appends acknowledged at `leader` that a change of leader has cut, as it may.
    pub cut: u64,
    /// Appends with an unknown end that are there.
    pub unknown_there: u64,
    /// Records in the logs, counted once for all nodes.
    pub records: u64,
}

impl Verdict {
    /// Whether nothing is wrong.
    pub fn holds(&self) -> bool {
        self.counts.is_empty()
    }

    /// How many of this kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    fn add(&mut self, kind: Kind, text: impl FnOnce() -> String) {
        *self.counts.entry(kind).or_default() += 1;
        let told = self.told.entry(kind).or_default();
        if told.len() < TOLD {
            told.push(text());
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, count) in &self.counts {
            writeln!(f, "WRONG       {count} {}", kind.name())?;
            for text in &self.told[kind] {
                writeln!(f, "            {text}")?;
            }
        }
        Ok(())
    }
}

/// A log that all nodes agree on: the record of each offset.
type Log = Vec<Content>;

/// Judges a history.
pub fn check(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    let logs = agreed(&history.readbacks, &mut verdict);
    verdict.records = logs.values().map(|log| log.len() as u64).sum();
    let mut places = places(&logs);
    for producer in &history.producers {
        let mut last = BTreeMap::new();
        for append in &producer.appends {
            let key = (producer.number, append.sequence);
            let found = places.remove(&key).unwrap_or_default();
            let name = format!("record {} of producer {}", append.sequence, producer.number);
            one(append, &name, &found, (&logs, &history.cuts), &mut verdict);
            let Some(&(shard, offset)) = found.first() else {
                continue;
            };
            let before = last.insert(shard, offset);
            if let Some(before) = before.filter(|before| *before > offset) {
                verdict.add(Kind::Reordered, || {
                    format!("{name}: offset {offset} of shard {shard}, an earlier one at {before}")
                });
            }
        }
    }
    for ((producer, sequence), found) in places {
        let (shard, offset) = found[0];
        verdict.add(Kind::Stranger, || {
            format!(
                "offset {offset} of shard {shard}: record {sequence} of producer {producer} was \
                 never sent"
            )
        });
    }
    reads(history, &logs, &mut verdict);
    verdict
}

/// One log of each shard, as the first node holds it; every other readback must say the same.
fn agreed(readbacks: &[Readback], verdict: &mut Verdict) -> BTreeMap<u16, Log> {
    let mut logs: BTreeMap<u16, Log> = BTreeMap::new();
    for readback in readbacks {
        let place = format!(
            "shard {} at node {}, read {}",
            readback.shard, readback.node, readback.level
        );
        let gap = readback.records.iter().zip(0..);
        if let Some(((offset, _), expected)) = { gap }.find(|((offset, _), at)| offset != at) {
            verdict.add(Kind::Differing, || {
                format!("{place}: offset {offset} came where {expected} was due")
            });
            continue;
        }
        let log: Log = readback
            .records
            .iter()
            .map(|(_, content)| *content)
            .collect();
        match logs.get(&readback.shard) {
            None => drop(logs.insert(readback.shard, log)),
            Some(first) if *first == log => {}
            Some(first) => {
                let pairs = first.iter().zip(&log);
                let same = pairs.take_while(|(one, other)| one == other).count();
                verdict.add(Kind::Differing, || {
                    format!(
                        "{place}: {} records, the first node has {}; equal up to offset {same}",
                        log.len(),
                        first.len()
                    )
                });
            }
        }
    }
    logs
}

/// Where each record is, by producer and sequence.
fn places(logs: &BTreeMap<u16, Log>) -> BTreeMap<(u32, u32), Vec<(u16, u64)>> {
    let mut places: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (shard, log) in logs {
        for (content, offset) in log.iter().zip(0..) {
            let key = (content.producer, content.sequence);
            places.entry(key).or_default().push((*shard, offset));
        }
    }
    places
}

/// Holds one append against the places where its record is.
fn one(
    append: &Append,
    name: &str,
    found: &[(u16, u64)],
    (logs, cuts): (&BTreeMap<u16, Log>, &[Cut]),
    verdict: &mut Verdict,
) {
    if found.len() > 1 {
        verdict.add(Kind::Doubled, || {
            format!("{name}: at (shard, offset) {found:?}")
        });
    }
    for (shard, offset) in found {
        let digest = logs[shard][*offset as usize].digest;
        if digest != append.digest || *shard != append.shard {
            verdict.add(Kind::Stranger, || {
                format!("{name}: other bytes at offset {offset} of shard {shard} than were sent")
            });
        }
    }
    match (append.end, found.first()) {
        (End::Acked(offset), None) => {
            let told = |cut: &Cut| cut.shard == append.shard && cut.offsets.contains(&offset);
            if append.level != Level::Quorum && cuts.iter().any(told) {
                verdict.cut += 1;
                return;
            }
            verdict.add(Kind::Missing, || {
                let (shard, ended_us, level) = (append.shard, append.ended_us, append.level.name());
                format!(
                    "{name}: acknowledged ({level}) at offset {offset} of shard {shard}, \
                     {ended_us} us"
                )
            });
        }
        (End::Acked(offset), Some(_)) if !found.contains(&(append.shard, offset)) => {
            verdict.add(Kind::Displaced, || {
                format!("{name}: acknowledged at offset {offset}, is at {found:?}")
            });
        }
        (End::Acked(_), Some(_)) => verdict.proven += 1,
        (End::Failed, Some(at)) => {
            verdict.add(Kind::Refused, || {
                format!("{name}: at (shard, offset) {at:?}")
            });
        }
        (End::Unknown, Some(_)) => verdict.unknown_there += 1,
        (End::Failed | End::Unknown, None) => {}
    }
}

/// Holds what was read as committed against the logs.
fn reads(history: &History, logs: &BTreeMap<u16, Log>, verdict: &mut Verdict) {
    for reads in &history.reads {
        let log = logs.get(&reads.shard).map_or(&[][..], Vec::as_slice);
        for refusal in &reads.refusals {
            verdict.add(Kind::Contradicted, || {
                format!("shard {} at {}: {refusal}", reads.shard, reads.place)
            });
        }
        for (offset, content) in &reads.records {
            if log.get(*offset as usize) != Some(content) {
                verdict.add(Kind::Contradicted, || {
                    let (shard, place) = (reads.shard, &reads.place);
                    format!("offset {offset} of shard {shard}, read as committed at {place}")
                });
            }
        }
    }
}

/// Whether the checker finds out the same history with one acknowledgement invented, and with one
/// acknowledged record taken out of every log.
pub fn red(history: &History) -> [(&'static str, bool); 2] {
    let mut invented = history.clone();
    let mut end = 0;
    if let Some(producer) = invented.producers.first_mut() {
        let shard = producer.appends.first().map_or(0, |append| append.shard);
        for readback in history.readbacks.iter().filter(|one| one.shard == shard) {
            end = end.max(readback.records.len() as u64);
        }
        let sequence = producer
            .appends
            .last()
            .map_or(0, |append| append.sequence + 1);
        producer.appends.push(Append {
            shard,
            sequence,
            digest: 0,
            level: Level::Quorum,
            invoked_us: 0,
            ended_us: 0,
            end: End::Acked(end),
        });
    }
    let before = check(history);
    let more = |changed: &History, kind| check(changed).count(kind) > before.count(kind);
    let invented = more(&invented, Kind::Missing);
    let mut removed = history.clone();
    let victims = removed
        .producers
        .iter()
        .flat_map(|producer| &producer.appends);
    let victim = { victims }.find_map(|append| match append.end {
        End::Acked(offset) if append.level == Level::Quorum => Some((append.shard, offset)),
        _ => None,
    });
    if let Some((shard, offset)) = victim {
        for readback in removed
            .readbacks
            .iter_mut()
            .filter(|one| one.shard == shard)
        {
            readback.records.retain(|(at, _)| *at != offset);
            // What came behind it moves up, as if it had never been there.
            for (at, (place, _)) in readback.records.iter_mut().enumerate() {
                *place = at as u64;
            }
        }
    }
    let removed = more(&removed, Kind::Missing);
    [("an invented ack", invented), ("a removed record", removed)]
}

#[cfg(test)]
#[path = "checker_tests.rs"]
mod tests;
