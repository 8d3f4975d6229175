//! The list of keys: name, default, meaning.
//!
//! One row per scalar key, in the order in which `millrace config` prints them. The environment
//! variable of a key is its name in capitals with `_` for `.` behind `MILLRACE_`.
//! `[[cluster.nodes]]` is the one key that is a list of tables; it comes from the file or from
//! `--nodes`. Read `layers.rs` next.

use crate::limits;

/// One scalar key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Section and key.
    pub name: &'static str,
    /// What it sets, with its unit.
    pub meaning: &'static str,
    /// The default, as text.
    pub default: fn() -> String,
}

macro_rules! keys {
    ($($name:literal, $default:expr, $meaning:literal;)*) => {
        /// Every scalar key.
        pub const KEYS: &[Key] = &[$(Key {
            name: $name,
            meaning: $meaning,
            default: || $default.to_string(),
        },)*];
    };
}

keys! {
    "node.id", "none", "this node, one of [[cluster.nodes]]";
    "node.data_dir", "none", "where the node's data lies";
    "node.address", "its address in [[cluster.nodes]]", "host and base port to listen on";
    "node.admin", "\"off\"", "host and port of status and metrics over HTTP, or off";
    "node.admin_control", false, "whether that port may pause and resume links";
    "node.log", "\"text\"", "how log lines look: text or json";
    "cluster.id", "none", "number of the cluster";
    "cluster.kind", "\"set\"", "set: one leader a log; mesh: every node leads logs of its own";
    "cluster.shards", "set: number of nodes; mesh: 1", "shards, fixed for the life of the cluster";
    "cluster.election", "sets of three nodes or more", "whether any node of a set may lead";
    "cluster.election_timeout_ms", limits::ELECTION_TIMEOUT_MS,
        "shortest silence of a leader before an election; the longest is twice that";
    "cluster.secret_file", "none", "the secret that nodes prove to each other; two: a change";
    "cores.count", 1, "executors, one per CPU";
    "cores.cpus", "the first ones allowed", "the CPU of each executor";
    "cores.spin_us", 0, "spinning before sleep, microseconds";
    "log.segment_bytes", limits::SEGMENT_BYTES, "bytes of a segment file";
    "log.max_block_bytes", limits::MAX_BLOCK_BYTES, "bytes at which a block closes";
    "log.max_block_records", limits::MAX_BLOCK_RECORDS, "records at which a block closes";
    "log.write_depth", limits::WRITE_DEPTH, "writes of one log in flight";
    "log.batch_timeout_ms", limits::BATCH_TIMEOUT_MS, "longest wait in the open block";
    "log.sync", "\"dsync\"", "dsync: a write waits for the medium; none: for the drive's cache";
    "log.retention", "\"none\"", "none; fifo: the oldest segments go; hard: appends are refused";
    "log.retention_bytes", "no bound", "bytes of a log's segments that are kept";
    "log.retention_age_s", "no bound", "age at which segments go, by append time, seconds";
    "log.scrub_bytes_per_s", limits::SCRUB_BYTES_PER_S,
        "pace at which a log that other nodes hold too is read again, bytes a second; 0: never";
    "log.scrub_interval_s", limits::SCRUB_INTERVAL_S,
        "time between the beginnings of two such passes, seconds";
    "link.preset", "none", "values for a way of use: shanghai, throughput, latency, wan or edge";
    "link.initial_credit", limits::INITIAL_CREDIT, "credit of a link, records";
    "link.initial_credit_bytes", limits::INITIAL_CREDIT_BYTES, "credit of a link, bytes";
    "link.max_batch_size", "log.max_block_records", "another name for log.max_block_records";
    "link.max_batch_bytes", limits::MAX_BATCH_BYTES, "largest batch, header included, bytes";
    "link.catch_up_bytes_per_s", limits::CATCH_UP_BYTES_PER_S,
        "pace at which this node is brought up, bytes a second of all logs; 0: no bound";
    "link.rpc_timeout_ms", limits::RPC_TIMEOUT_MS, "silence that disconnects a link";
    "link.retry_backoff_ms", limits::RETRY_BACKOFF_MS, "longest pause between two attempts";
}

/// The one key that is a list of tables.
pub const NODES: &str = "cluster.nodes";

/// Variables of the environment that are no keys, and what reads them: the log's level, the tests'
/// faults, and the program that `scripts/cluster` starts. Any other name behind `MILLRACE_` is
/// taken for a key that is mistyped.
pub const OTHER_VARIABLES: &[&str] = &[
    "MILLRACE_LOG",
    "MILLRACE_BIN",
    #[cfg(feature = "faults")]
    "MILLRACE_FAULT",
    #[cfg(feature = "faults")]
    "MILLRACE_CLOCK_OFFSET_MS",
];

/// The name among all keys, or variables, that differs from this one in the fewest letters.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known.min_by_key(|known| distance(name.as_bytes(), known.as_bytes()))
}

/// How many letters must be put in, taken out or changed to make one word of the other.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.iter().enumerate() {
        let mut before = row[0];
        row[0] = line + 1;
        for (column, against) in other.iter().enumerate() {
            let changed = before + usize::from(letter != against);
            before = row[column + 1];
            row[column + 1] = changed.min(before + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

/// The environment variable of a key.
pub fn variable(name: &str) -> String {
    format!("MILLRACE_{}", name.to_uppercase().replace('.', "_"))
}
