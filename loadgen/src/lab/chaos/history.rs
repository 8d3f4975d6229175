//! What clients saw: every append with its end, every committed read, every log as read back.
//!
//! Facts only, gathered by `load.rs` and judged by `checker.rs`: nothing here knows a node, a
//! socket or a clock. Times are microseconds since the load began. Read `checker.rs` next.

use std::hash::{DefaultHasher, Hasher as _};
use std::ops::Range;

use millrace::types::Level;

use crate::payload::Payload;

/// What a record says of itself, and a digest of all its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Content {
    /// Who made it; 0 if the value names nobody.
    pub producer: u32,
    /// Its place among all that this producer made.
    pub sequence: u32,
    /// Of the whole value.
    pub digest: u64,
}

impl Content {
    /// Reads a value. One that is no payload of this run has no producer, so nobody sent it.
    pub fn of(run: u32, value: &[u8]) -> Content {
        let mut hasher = DefaultHasher::new();
        hasher.write(value);
        let stamp = Payload::Random.read(&[], value).ok();
        let stamp = stamp.filter(|stamp| stamp.run == run);
        Content {
            producer: stamp.map_or(0, |stamp| stamp.producer),
            sequence: stamp.map_or(0, |stamp| stamp.sequence),
            digest: hasher.finish(),
        }
    }
}

/// How an append ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Acknowledged at its level, at this offset.
    Acked(u64),
    /// It is in no log, says the client.
    Failed,
    /// It is in the log once or not at all, says the client.
    Unknown,
}

/// One append of one record.
#[derive(Clone, Copy, Debug)]
pub struct Append {
    /// The log that it was for.
    pub shard: u16,
    /// Its place among all of its producer.
    pub sequence: u32,
    /// Of its value.
    pub digest: u64,
    /// What an acknowledgement of it promises.
    pub level: Level,
    /// When it was given to the client library.
    pub invoked_us: u64,
    /// When its end was seen.
    pub ended_us: u64,
    /// How it ended.
    pub end: End,
}

/// All appends of one producer, in the order in which they were made.
#[derive(Clone, Debug, Default)]
pub struct Producer {
    /// Its number, from 1 on.
    pub number: u32,
    /// What it appended.
    pub appends: Vec<Append>,
}

/// All that one reader was given as committed, in the order of its offsets.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    /// The log.
    pub shard: u16,
    /// Where it read: `the leader`, or a node.
    pub place: String,
    /// Offset and record.
    pub records: Vec<(u64, Content)>,
    /// What it was told that must not be told of committed records.
    pub refusals: Vec<String>,
}

/// All records of one log at one node, at the end.
#[derive(Clone, Debug, Default)]
pub struct Readback {
    /// The node.
    pub node: u16,
    /// The log.
    pub shard: u16,
    /// The level of the read: `committed` or `local`.
    pub level: &'static str,
    /// Offset and record, as they came.
    pub records: Vec<(u64, Content)>,
}

/// Records that a node says it cut: others stand at their offsets now, or nothing yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The log.
    pub shard: u16,
    /// Their offsets.
    pub offsets: Range<u64>,
}

impl Cut {
    /// Reads a line of a node's log; none if it tells of no cut.
    pub fn of(line: &str) -> Option<Cut> {
        let (_, shard) = line
            .contains("id=\"BlocksCut\"")
            .then(|| line.rsplit_once('-'))??;
        let (_, records) = line.split_once(", records ")?;
        let (records, _) = records.split_once(':')?;
        let (first, end) = match records.strip_prefix("up to ") {
            Some(end) => ("0", end),
            None => records.split_once(" to ")?,
        };
        Some(Cut {
            shard: shard.trim().parse().ok()?,
            offsets: first.parse().ok()?..end.parse().ok()?,
        })
    }
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Of each producer.
    pub producers: Vec<Producer>,
    /// Of each reader.
    pub reads: Vec<Reads>,
    /// Of each log at each node, at both levels.
    pub readbacks: Vec<Readback>,
    /// Of every node.
    pub cuts: Vec<Cut>,
}

impl History {
    /// Every append.
    pub fn appends(&self) -> impl Iterator<Item = &Append> {
        self.producers.iter().flat_map(|producer| &producer.appends)
    }

    /// How many appends were made, acknowledged, refused, and have an unknown end.
    pub fn counts(&self) -> [u64; 4] {
        self.appends().fold([0; 4], |mut counts, append| {
            counts[0] += 1;
            counts[match append.end {
                End::Acked(_) => 1,
                End::Failed => 2,
                End::Unknown => 3,
            }] += 1;
            counts
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_read_from_a_line() {
        let line =
            |text: &str| format!("2026-01-01T00:00:00Z  WARN {text} id=\"BlocksCut\" log=7-2");
        let known = line("cut blocks 3 to 9, records 20 to 41: epoch 5 has others there");
        let cut = |offsets| Some(Cut { shard: 2, offsets });
        assert_eq!(Cut::of(&known), cut(20..41));
        let old = line("cut blocks 3 to 9, records up to 41: epoch 5 has others there");
        assert_eq!(Cut::of(&old), cut(0..41));
        assert_eq!(Cut::of(&line("begins anew at block 3")), None);
        assert_eq!(Cut::of("cut blocks 3 to 9, records 20 to 41: of 7-2"), None);
    }
}
