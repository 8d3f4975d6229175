//! Records of several origins, folded into one state: where an application resolves conflicts.
//!
//! In a mesh every node accepts writes and each origin's log has an order of its own. There is no
//! order across origins, and nothing here offers one: a [`Merge`] takes the batches of all origins
//! as they come, gives each record to the application's [`Resolver`] once and in its origin's
//! order, and keeps one position per origin and shard. A resolver whose result does not depend on
//! how the origins interleave converges: every node that has seen the same records has the same
//! state. The engine resolves nothing by itself (S-151); [`Counters`], [`Registers`] and [`Sets`]
//! are three resolvers that converge (S-184).

use super::reading::RecordBatch;
use crate::types::{Offset, OriginId, ShardId};
use crate::wire::record::Record;
use std::collections::BTreeMap;

/// Where a record comes from; names it for ever (S-149).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// Who first accepted it.
    pub origin: OriginId,
    /// Its shard.
    pub shard: ShardId,
    /// Its offset in that origin's log of that shard.
    pub offset: Offset,
}

/// What an application makes of records of several origins.
///
/// To converge, the state after a set of records must depend on the set alone, given that the
/// records of one origin come in order: records of different origins have to commute. What must not
/// happen twice needs no care: a [`Merge`] never gives a record twice.
pub trait Resolver {
    /// Takes in one record.
    fn apply(&mut self, source: Source, record: &Record<'_>);
}

/// A batch that cannot be taken in: records of its origin before it are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The next record that is wanted.
    pub wanted: Source,
    /// The first record of the batch.
    pub found: Offset,
}

/// Feeds a resolver from any number of origins.
#[derive(Clone, Debug, Default)]
pub struct Merge<R> {
    resolver: R,
    next: BTreeMap<(OriginId, ShardId), Offset>,
}

impl<R: Resolver> Merge<R> {
    /// Begins with a state in which nothing was seen.
    pub fn new(resolver: R) -> Merge<R> {
        Merge {
            resolver,
            next: BTreeMap::new(),
        }
    }

    /// The state.
    pub fn state(&self) -> &R {
        &self.resolver
    }

    /// Where to read an origin's log of a shard on from.
    pub fn next(&self, origin: OriginId, shard: ShardId) -> Offset {
        self.next.get(&(origin, shard)).copied().unwrap_or_default()
    }

    /// Everything about one origin and shard that lies below this offset counts as seen: the state
    /// was kept with it, or its log begins there.
    pub fn start_at(&mut self, origin: OriginId, shard: ShardId, next: Offset) {
        self.next.insert((origin, shard), next);
    }

    /// Takes in a batch of an origin. Records seen before are left out.
    pub fn take(&mut self, origin: OriginId, batch: &RecordBatch) -> Result<(), Missing> {
        let records = batch.records().map(|(offset, record)| {
            let shard = batch.shard;
            let source = Source {
                origin,
                shard,
                offset,
            };
            (source, record)
        });
        self.take_records(records)
    }

    /// Takes in records of any origins, those of one origin and shard in order.
    pub fn take_records<'a>(
        &mut self,
        records: impl IntoIterator<Item = (Source, Record<'a>)>,
    ) -> Result<(), Missing> {
        for (source, record) in records {
            let next = self.next.entry((source.origin, source.shard)).or_default();
            if source.offset < *next {
                continue;
            }
            if source.offset > *next {
                let offset = *next;
                return Err(Missing {
                    wanted: Source { offset, ..source },
                    found: source.offset,
                });
            }
            *next = Offset(next.0 + 1);
            self.resolver.apply(source, &record);
        }
        Ok(())
    }
}

/// One counter per key: each record adds a number. Sums commute.
#[derive(Clone, Debug)]
pub struct Counters {
    amount: fn(&Record<'_>) -> Option<i64>,
    sums: BTreeMap<Vec<u8>, i128>,
}

impl Counters {
    /// `amount` reads a record; one of which it makes nothing is left out.
    pub fn new(amount: fn(&Record<'_>) -> Option<i64>) -> Counters {
        Counters {
            amount,
            sums: BTreeMap::new(),
        }
    }

    /// The sum of a key; 0 if it has none.
    pub fn sum(&self, key: &[u8]) -> i128 {
        self.sums.get(key).copied().unwrap_or_default()
    }

    /// Every key that has a sum.
    pub fn sums(&self) -> &BTreeMap<Vec<u8>, i128> {
        &self.sums
    }
}

impl Resolver for Counters {
    fn apply(&mut self, _: Source, record: &Record<'_>) {
        if let Some(amount) = (self.amount)(record) {
            // 2^64 records of the largest amount do not overflow it.
            *self.sums.entry(record.key.to_vec()).or_default() += i128::from(amount);
        }
    }
}

/// What decides between two writes: record time, then the origin, then the place in its log. It is
/// a total order that every node knows, so the winner is the same everywhere.
type Stamp = (u64, OriginId, ShardId, Offset);

fn stamp(source: Source, record: &Record<'_>) -> Stamp {
    (record.timestamp, source.origin, source.shard, source.offset)
}

/// One register per key; the last writer wins, by (record time, origin).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    values: BTreeMap<Vec<u8>, (Stamp, Vec<u8>)>,
}

impl Registers {
    /// The value of a key.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(|(_, value)| &value[..])
    }
}

impl Resolver for Registers {
    fn apply(&mut self, source: Source, record: &Record<'_>) {
        let stamp = stamp(source, record);
        let wins = |(before, _): &(Stamp, Vec<u8>)| *before < stamp;
        if self.values.get(record.key).is_none_or(wins) {
            let value = (stamp, record.value.to_vec());
            self.values.insert(record.key.to_vec(), value);
        }
    }
}

/// What a record does to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its value is a member from now on.
    Add,
    /// Its value is none any more.
    Remove,
}

/// One set per key. For each element the last change wins, by (record time, origin).
#[derive(Clone, Debug)]
pub struct Sets {
    change: fn(&Record<'_>) -> Option<Change>,
    elements: BTreeMap<(Vec<u8>, Vec<u8>), (Stamp, Change)>,
}

impl Sets {
    /// `change` reads a record; one of which it makes nothing is left out.
    pub fn new(change: fn(&Record<'_>) -> Option<Change>) -> Sets {
        Sets {
            change,
            elements: BTreeMap::new(),
        }
    }

    /// The members of the set of a key, in order.
    pub fn members<'a>(&'a self, key: &[u8]) -> impl Iterator<Item = &'a [u8]> {
        let from = (key.to_vec(), Vec::new());
        let of_key = from.0.clone();
        let elements = self.elements.range(from..);
        let elements = elements.take_while(move |((key, _), _)| *key == of_key);
        let elements = elements.filter(|(_, (_, change))| *change == Change::Add);
        elements.map(|((_, element), _)| &element[..])
    }
}

impl Resolver for Sets {
    fn apply(&mut self, source: Source, record: &Record<'_>) {
        let Some(change) = (self.change)(record) else {
            return;
        };
        let stamp = stamp(source, record);
        let element = (record.key.to_vec(), record.value.to_vec());
        let wins = |(before, _): &(Stamp, Change)| *before < stamp;
        if self.elements.get(&element).is_none_or(wins) {
            self.elements.insert(element, (stamp, change));
        }
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
