//! Configuration: what an operator writes, checked, with the place each value came from.
//!
//! A value comes from a flag, else the environment (`MILLRACE_LOG_SYNC` style), else the file, else
//! the preset (`link.preset`), else its default. Nothing is silently corrected: an unknown key, a
//! value out of range or two values that contradict each other end the start with one
//! [`ConfigError`] that names key, value, rule and mend. Whoever runs a node hands the finished
//! [`Config`] on; nobody else reads keys. Read `config/keys.rs` for the list of keys,
//! `config/presets.rs` for the presets, `config/check.rs` for the rules between values.

mod check;
mod file;
mod keys;
mod layers;
pub mod presets;
mod source;

use crate::types::{LogId, NodeId, OriginId, ShardId};
use std::fmt;
use std::path::PathBuf;

pub use keys::KEYS;
pub use layers::{Overrides, list, load};

/// A finished configuration: every value checked, alone and against the others.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub node: Node,
    /// The cluster: the same on all its nodes.
    pub cluster: Cluster,
    /// The cores of this node.
    pub cores: Cores,
    /// The logs.
    pub log: Log,
    /// The links between nodes.
    pub link: Link,
    /// Every key with its value as text and where it came from, in the order of the list of keys;
    /// behind them one value for each of the cluster's nodes.
    pub values: Vec<Value>,
}

/// `[node]`.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its number, one of the cluster's nodes.
    pub id: NodeId,
    /// Where its data lies.
    pub data_dir: PathBuf,
    /// Where it listens: host and base port; core `k` listens on `port + k`.
    pub address: String,
    /// Where its HTTP port listens, host and port; none: there is none.
    pub admin: Option<String>,
    /// Whether the HTTP port may pause and resume links.
    pub admin_control: bool,
    /// How its log lines look.
    pub log: LogFormat,
}

/// `node.log`: how the lines that a node prints look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `[cluster]`.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its number; in a set also the origin of its logs.
    pub id: OriginId,
    /// How its nodes replicate.
    pub kind: Kind,
    /// Shards, fixed for the life of the cluster.
    pub shards: u16,
    /// Whether any of its nodes may lead, by election: only in a set of at least three.
    pub election: bool,
    /// Shortest silence of a leader before an election, milliseconds; the longest is twice that.
    pub election_timeout_ms: u64,
    /// Its nodes, by ascending id.
    pub nodes: Vec<NodeEntry>,
    /// The files of its secret: none, one, or two while it is changed. What they hold is no part of
    /// a configuration: see `runtime/secret.rs`.
    pub secret_files: Vec<PathBuf>,
}

/// `cluster.kind`: how the nodes replicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One log in each shard, of the cluster's origin; one node leads it, the others follow.
    Set,
    /// In each shard one log of every node's own origin: each node leads its own and follows all
    /// others (S-3, S-36).
    Mesh,
}

impl Kind {
    /// As the key is written.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Set => "set",
            Kind::Mesh => "mesh",
        }
    }
}

/// One `[[cluster.nodes]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// The node.
    pub id: NodeId,
    /// Host and base port.
    pub address: String,
}

/// `[cores]`.
#[derive(Clone, Debug)]
pub struct Cores {
    /// Executors.
    pub count: usize,
    /// The CPU of each executor; empty: the first ones that the process may use.
    pub cpus: Vec<usize>,
    /// How long an idle executor spins before it sleeps, microseconds.
    pub spin_us: u64,
}

/// `[log]`.
#[derive(Clone, Debug)]
pub struct Log {
    /// Bytes of a segment file.
    pub segment_bytes: u64,
    /// A block closes before it grows past this, unless a single batch needs more.
    pub max_block_bytes: usize,
    /// Largest batch, header included.
    pub max_batch_bytes: usize,
    /// A block closes before it holds more records, unless a single batch does.
    pub max_block_records: u32,
    /// Writes of one log in flight.
    pub write_depth: usize,
    /// How long an append may wait in the open block while others are in flight, milliseconds.
    pub batch_timeout_ms: u64,
    /// Whether every write waits for the medium (`sync = "dsync"`).
    pub dsync: bool,
    /// What the logs keep.
    pub retention: Retention,
    /// Pace at which logs are read again to find damage, bytes a second; 0: only when asked.
    pub scrub_bytes_per_s: u64,
    /// Time between the beginnings of two passes of that, seconds.
    pub scrub_interval_s: u64,
}

/// `log.retention` with its bounds. Whole segments go; the leader decides for all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Bytes of a log's segment files above which the oldest go (`fifo`).
    pub trim_bytes: Option<u64>,
    /// Bytes of a log's segment files at which appends are refused (`hard`).
    pub refuse_bytes: Option<u64>,
    /// Age at which a segment goes, by the tick of its last block, seconds.
    pub age_s: Option<u64>,
}

/// `[link]`.
#[derive(Clone, Debug)]
pub struct Link {
    /// The preset whose values lie under the others'.
    pub preset: Option<String>,
    /// Credit granted per link, records.
    pub initial_credit: u64,
    /// Credit granted per link, bytes of blocks as padded.
    pub initial_credit_bytes: u64,
    /// Pace at which this node lets itself be brought up when it is behind, bytes a second, shared
    /// evenly by its logs; 0 for no bound.
    pub catch_up_bytes_per_s: u64,
    /// Silence after which a link counts as disconnected, milliseconds.
    pub rpc_timeout_ms: u64,
    /// Time between two attempts to connect, milliseconds.
    pub retry_backoff_ms: u64,
}

/// Where a value came from: one of the layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// The preset of this name.
    Preset(&'static str),
    /// The file.
    File {
        /// Its path as given.
        file: String,
        /// The line of the key, counted from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag,
}

impl Source {
    /// Which layer: a higher one wins.
    fn layer(&self) -> u8 {
        match self {
            Source::Default => 0,
            Source::Preset(_) => 1,
            Source::File { .. } => 2,
            Source::Environment(_) => 3,
            Source::Flag => 4,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::Preset(name) => write!(f, "preset {name}"),
            Source::File { file, line } => write!(f, "{file}:{line}"),
            Source::Environment(name) => write!(f, "variable {name}"),
            Source::Flag => f.write_str("flag"),
        }
    }
}

/// One key as it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Section and key.
    pub key: &'static str,
    /// The value, as TOML.
    pub text: String,
    /// Where it came from.
    pub source: Source,
}

/// Why a node does not start: the operator's input is refused. Exit code 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Key or keys, or the thing that was looked at.
    pub key: String,
    /// The value found.
    pub value: String,
    /// The rule that it breaks.
    pub rule: String,
    /// What mends it.
    pub mend: String,
}

impl ConfigError {
    /// A refusal.
    pub fn new(
        key: impl Into<String>,
        value: impl fmt::Display,
        rule: impl Into<String>,
        mend: impl Into<String>,
    ) -> ConfigError {
        let key = key.into();
        // Whoever wrote no name must see where it should stand.
        let nameless = key.trim().is_empty();
        ConfigError {
            key: if nameless { format!("{key:?}") } else { key },
            value: value.to_string(),
            rule: rule.into(),
            mend: mend.into(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfigError {
            key,
            value,
            rule,
            mend,
        } = self;
        let line = format!("{key} = {value}: {rule}; mend: {mend}");
        // One line, whatever a parser or a system call had to say.
        f.write_str(&line.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

impl std::error::Error for ConfigError {}

impl Cluster {
    /// The node that configuration places as leader of a log (where leaders are elected it is only
    /// the preferred one): in a set by ascending id, round
    /// robin over the shards; in a mesh the node whose origin it is.
    pub fn leader(&self, log: LogId) -> NodeId {
        match self.kind {
            Kind::Set => self.nodes[usize::from(log.shard.0) % self.nodes.len()].id,
            Kind::Mesh => NodeId(log.origin.0),
        }
    }

    /// The origins of the logs of every shard, ascending.
    pub fn origins(&self) -> Vec<OriginId> {
        match self.kind {
            Kind::Set => vec![self.id],
            Kind::Mesh => self.nodes.iter().map(|node| OriginId(node.id.0)).collect(),
        }
    }

    /// The origin of the logs to which clients of `node` append.
    pub fn origin_of(&self, node: NodeId) -> OriginId {
        match self.kind {
            Kind::Set => self.id,
            Kind::Mesh => OriginId(node.0),
        }
    }

    /// Every log of the cluster: in each shard one of each origin.
    pub fn logs(&self) -> impl Iterator<Item = LogId> {
        let origins = self.origins();
        (0..self.shards).map(ShardId).flat_map(move |shard| {
            let logs = origins.clone().into_iter();
            logs.map(move |origin| LogId { origin, shard })
        })
    }

    /// Whether the cluster has this log.
    pub fn has(&self, log: LogId) -> bool {
        log.shard.0 < self.shards && self.origins().contains(&log.origin)
    }

    /// The address of a node of the cluster.
    pub fn address(&self, node: NodeId) -> Option<&str> {
        let found = self.nodes.iter().find(|entry| entry.id == node);
        found.map(|entry| entry.address.as_str())
    }

    /// The ids of all nodes, ascending.
    pub fn members(&self) -> Vec<NodeId> {
        self.nodes.iter().map(|entry| entry.id).collect()
    }
}

impl Config {
    /// CRC over the facts that all nodes of a cluster must share: id, kind, shards, limits, whether
    /// leaders are elected, ids of the nodes. Addresses are left out: two nodes may reach a third
    /// one by different ways.
    pub fn fingerprint(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.cluster.id.0.to_le_bytes());
        hasher.update(self.cluster.kind.name().as_bytes());
        hasher.update(&self.cluster.shards.to_le_bytes());
        hasher.update(&(self.log.max_block_bytes as u64).to_le_bytes());
        hasher.update(&(self.log.max_batch_bytes as u64).to_le_bytes());
        hasher.update(&self.log.max_block_records.to_le_bytes());
        hasher.update(&[u8::from(self.cluster.election)]);
        for entry in &self.cluster.nodes {
            hasher.update(&entry.id.0.to_le_bytes());
        }
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests;
