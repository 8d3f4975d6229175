//! Findings: what is wrong, where exactly, in words and as JSON.
//!
//! Counts go on for ever, the list does not: a damaged disk must not fill the memory of whoever
//! looks at it. A finding names all that is known of its place and leaves out what is not. Read
//! `content.rs` for who finds what.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Findings of one kind on one node that are listed; the rest is counted.
const LISTED: u64 = 20;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An acknowledged record is nowhere in its log.
    Missing,
    /// A record is there more than once.
    Duplicated,
    /// Records of one producer stand in another order than they were sent in.
    Reordered,
    /// An acknowledged batch is there, but not at the offset that the ack named.
    Displaced,
    /// A batch is there that was refused, or that was never sent.
    Unexpected,
    /// Bytes that are not what a CRC, a chain or a format says.
    Corrupt,
    /// Replicas that should be equal are not.
    Differing,
}

impl Kind {
    /// The kind's name, as in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Missing => "missing",
            Kind::Duplicated => "duplicated",
            Kind::Reordered => "reordered",
            Kind::Displaced => "displaced",
            Kind::Unexpected => "unexpected",
            Kind::Corrupt => "corrupt",
            Kind::Differing => "differing",
        }
    }
}

/// Where something is, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The file, or the log's directory.
    pub file: String,
    /// Bytes from the file's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Block in the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<u64>,
    /// Offset of the record in the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Producer in the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer: Option<u32>,
    /// Number of the record in the producer's count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u32>,
}

impl Place {
    /// A place in a file of which no more is known.
    pub fn file(path: &Path) -> Place {
        Place {
            file: path.display().to_string(),
            ..Place::default()
        }
    }

    /// The same place, at this position.
    pub fn at(self, position: u64) -> Place {
        Place {
            position: Some(position),
            ..self
        }
    }

    /// The same place, in this block.
    pub fn block(self, block: u64) -> Place {
        Place {
            block: Some(block),
            ..self
        }
    }

    /// The same place, at this offset.
    pub fn offset(self, offset: u64) -> Place {
        Place {
            offset: Some(offset),
            ..self
        }
    }

    /// The same place, of this record of a producer.
    pub fn record(self, producer: u32, sequence: u32) -> Place {
        Place {
            producer: Some(producer),
            sequence: Some(sequence),
            ..self
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// In words.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place {
            file,
            position,
            block,
            offset,
            producer,
            sequence,
        } = &self.place;
        write!(f, "{}: {file}", self.kind.name())?;
        let numbers = [
            ("position", *position),
            ("block", *block),
            ("offset", *offset),
            ("producer", producer.map(u64::from)),
            ("sequence", sequence.map(u64::from)),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                write!(f, " {name} {number}")?;
            }
        }
        write!(f, ": {}", self.text)
    }
}

/// What was found on one node: counts by kind, and a list that is bounded.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The first of each kind.
    pub list: Vec<Finding>,
    counts: BTreeMap<Kind, u64>,
    listed: BTreeMap<Kind, u64>,
}

impl Findings {
    /// Enters a finding that stands for `count` records (or places, for what is corrupt).
    pub fn add(&mut self, kind: Kind, count: u64, place: Place, text: impl Into<String>) {
        *self.counts.entry(kind).or_default() += count;
        let listed = self.listed.entry(kind).or_default();
        *listed += 1;
        if *listed <= LISTED {
            self.list.push(Finding {
                kind,
                place,
                text: text.into(),
            });
        }
    }

    /// Records (or places) found to be wrong in this way.
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Findings that are counted and not listed.
    pub fn unlisted(&self) -> u64 {
        self.listed
            .values()
            .map(|count| count.saturating_sub(LISTED))
            .sum()
    }
}
