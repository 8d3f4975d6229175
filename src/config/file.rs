//! The shape of the file, and of what flags and environment add to it.
//!
//! Every field is optional here: whether one is missing, or out of range, is decided in `check.rs`,
//! which can name the key and the mend. Unknown keys of a file are refused in `source.rs`.

use serde::Deserialize;

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
    pub(super) id: Option<i64>,
    pub(super) data_dir: Option<String>,
    pub(super) address: Option<String>,
    pub(super) admin: Option<String>,
    pub(super) admin_control: Option<bool>,
    pub(super) log: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cluster {
    pub(super) id: Option<i64>,
    pub(super) kind: Option<String>,
    pub(super) shards: Option<i64>,
    pub(super) nodes: Vec<NodeEntry>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeEntry {
    pub(super) id: i64,
    pub(super) address: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cores {
    pub(super) count: Option<i64>,
    pub(super) cpus: Option<Vec<i64>>,
    pub(super) spin_us: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    pub(super) segment_bytes: Option<i64>,
    pub(super) max_block_bytes: Option<i64>,
    pub(super) max_block_records: Option<i64>,
    pub(super) write_depth: Option<i64>,
    pub(super) batch_timeout_ms: Option<i64>,
    pub(super) sync: Option<String>,
    pub(super) retention: Option<String>,
    pub(super) retention_bytes: Option<i64>,
    pub(super) retention_age_s: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Link {
    pub(super) preset: Option<String>,
    pub(super) initial_credit: Option<i64>,
    pub(super) initial_credit_bytes: Option<i64>,
    pub(super) max_batch_size: Option<i64>,
    pub(super) max_batch_bytes: Option<i64>,
    pub(super) rpc_timeout_ms: Option<i64>,
    pub(super) retry_backoff_ms: Option<i64>,
}
