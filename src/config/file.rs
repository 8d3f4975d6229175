//! The shape of the file, and of what flags and environment add to it.
//!
//! Every field is optional here: whether one is missing, or out of range, is decided in `check.rs`,
//! which can name the key and the mend. Unknown keys of a file are refused in `source.rs`.

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use std::fmt;

/// A whole number as it was written, however large: whether it is in range is for `check.rs` to
/// say, by the name of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// One that TOML can hold.
    Held(i64),
    /// The digits of one that it cannot.
    Beyond(String),
}

/// Whether a text is a whole number that TOML cannot hold.
pub(super) fn is_beyond(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    number && text.parse::<i64>().is_err()
}

impl fmt::Display for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whole::Held(number) => number.fmt(f),
            Whole::Beyond(digits) => f.write_str(digits),
        }
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Whole, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Whole, E> {
                Ok(Whole::Held(number))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Whole, E> {
                if is_beyond(text) {
                    return Ok(Whole::Beyond(text.to_owned()));
                }
                Err(E::invalid_type(Unexpected::Str(text), &self))
            }
        }
        from.deserialize_any(Number)
    }
}

/// One path, or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Paths(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Paths, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Paths;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, or a list of two")
            }

            fn visit_str<E: Error>(self, path: &str) -> Result<Paths, E> {
                Ok(Paths(vec![path.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Paths, A::Error> {
                let mut paths = Vec::new();
                while let Some(path) = list.next_element()? {
                    paths.push(path);
                }
                Ok(Paths(paths))
            }
        }
        from.deserialize_any(List)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Document {
    pub(super) node: Node,
    pub(super) cluster: Cluster,
    pub(super) cores: Cores,
    pub(super) log: Log,
    pub(super) link: Link,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Node {
    pub(super) id: Option<Whole>,
    pub(super) data_dir: Option<String>,
    pub(super) address: Option<String>,
    pub(super) admin: Option<String>,
    pub(super) admin_control: Option<bool>,
    pub(super) log: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cluster {
    pub(super) id: Option<Whole>,
    pub(super) kind: Option<String>,
    pub(super) shards: Option<Whole>,
    pub(super) election: Option<bool>,
    pub(super) election_timeout_ms: Option<Whole>,
    pub(super) secret_file: Option<Paths>,
    pub(super) nodes: Vec<NodeEntry>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeEntry {
    pub(super) id: Whole,
    pub(super) address: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cores {
    pub(super) count: Option<Whole>,
    pub(super) cpus: Option<Vec<Whole>>,
    pub(super) spin_us: Option<Whole>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    pub(super) segment_bytes: Option<Whole>,
    pub(super) max_block_bytes: Option<Whole>,
    pub(super) max_block_records: Option<Whole>,
    pub(super) write_depth: Option<Whole>,
    pub(super) batch_timeout_ms: Option<Whole>,
    pub(super) sync: Option<String>,
    pub(super) retention: Option<String>,
    pub(super) retention_bytes: Option<Whole>,
    pub(super) retention_age_s: Option<Whole>,
    pub(super) scrub_bytes_per_s: Option<Whole>,
    pub(super) scrub_interval_s: Option<Whole>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Link {
    pub(super) preset: Option<String>,
    pub(super) initial_credit: Option<Whole>,
    pub(super) initial_credit_bytes: Option<Whole>,
    pub(super) max_batch_size: Option<Whole>,
    pub(super) max_batch_bytes: Option<Whole>,
    pub(super) catch_up_bytes_per_s: Option<Whole>,
    pub(super) rpc_timeout_ms: Option<Whole>,
    pub(super) retry_backoff_ms: Option<Whole>,
}
