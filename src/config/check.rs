//! The rules for values, alone and against each other.
//!
//! Turns a document into a [`Config`] or into the first refusal, which names the key (both keys of
//! a contradiction), the value, the rule and the mend. Nothing is rounded or clamped (S-171).

use super::file::{self, Document, Paths, Whole};
use super::{
    Cluster, Config, ConfigError, Cores, Kind, Link, Log, LogFormat, Node, NodeEntry, Retention,
};
use crate::limits;
use crate::types::{NodeId, OriginId, padded};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

type Checked<T> = Result<T, ConfigError>;

pub(super) fn config(document: Document) -> Checked<Config> {
    let cluster = cluster(&document.cluster)?;
    let node = node(&document.node, &cluster)?;
    let cores = cores(&document.cores)?;
    let log = log(&document.log, &document.link)?;
    let link = link(&document.link)?;
    ports(&cluster, cores.count)?;
    admin_port_is_free(&node, cores.count)?;
    block_fits_segment(&log)?;
    credit_carries_blocks(&log, &link)?;
    Ok(Config {
        node,
        cluster,
        cores,
        log,
        link,
        values: Vec::new(),
    })
}

/// A whole number within bounds; both ends belong to it.
fn number(key: &str, value: &Whole, least: u64, most: u64) -> Checked<u64> {
    let fits = match value {
        Whole::Held(value) => u64::try_from(*value).ok(),
        Whole::Beyond(_) => None,
    };
    let fits = fits.filter(|value| (least..=most).contains(value));
    fits.ok_or_else(|| {
        let rule = format!("must be from {least} to {most}");
        ConfigError::new(key, value, rule, "choose a value in that range")
    })
}

fn or(key: &str, value: &Option<Whole>, default: u64, least: u64, most: u64) -> Checked<u64> {
    value
        .as_ref()
        .map_or(Ok(default), |value| number(key, value, least, most))
}

fn missing(key: &str, mend: &str) -> ConfigError {
    ConfigError::new(key, "(not set)", "is needed and has no default", mend)
}

fn cluster(file: &file::Cluster) -> Checked<Cluster> {
    let id = file.id.as_ref().ok_or_else(|| {
        missing(
            "cluster.id",
            "give all nodes of the cluster the same number",
        )
    })?;
    let id = number("cluster.id", id, 1, u64::from(u32::MAX))?;
    let kind = kind(file.kind.as_deref())?;
    let nodes = nodes(&file.nodes)?;
    let default = match kind {
        Kind::Set => nodes.len() as u64,
        Kind::Mesh => 1,
    };
    let most = limits::MAX_SHARDS as u64;
    let shards = or("cluster.shards", &file.shards, default, 1, most)?;
    let election = election(file.election, kind, nodes.len())?;
    let timeout_ms = or(
        "cluster.election_timeout_ms",
        &file.election_timeout_ms,
        limits::ELECTION_TIMEOUT_MS,
        3 * limits::HEARTBEAT_MS,
        600_000,
    )?;
    Ok(Cluster {
        id: OriginId(id as u32),
        kind,
        shards: shards as u16,
        election,
        election_timeout_ms: timeout_ms,
        nodes,
        secret_files: secret_files(file.secret_file.as_ref())?,
    })
}

/// Two nodes have no majority but both, and the leader of a mesh's log is its origin for ever.
fn election(set: Option<bool>, kind: Kind, nodes: usize) -> Checked<bool> {
    let possible = kind == Kind::Set && nodes >= 3;
    if set == Some(true) && !possible {
        let rule = "needs a set of at least three nodes";
        let mend = "remove it, or list three nodes in [[cluster.nodes]] of a set";
        return Err(ConfigError::new("cluster.election", true, rule, mend));
    }
    Ok(set.unwrap_or(possible))
}

/// One file, or while the secret is changed two.
fn secret_files(paths: Option<&Paths>) -> Checked<Vec<PathBuf>> {
    let Some(Paths(paths)) = paths else {
        return Ok(Vec::new());
    };
    let apart = paths.iter().collect::<BTreeSet<_>>().len() == paths.len();
    let named = paths.iter().all(|path| !path.is_empty());
    if !(1..=2).contains(&paths.len()) || !apart || !named {
        let rule = "must be the path of a file, or two different ones while the secret is changed";
        let mend = "name the file whose secret this node proves by, and behind it the other one";
        let value = format!("{paths:?}");
        return Err(ConfigError::new("cluster.secret_file", value, rule, mend));
    }
    Ok(paths.iter().map(PathBuf::from).collect())
}

fn kind(text: Option<&str>) -> Checked<Kind> {
    let kinds = [Kind::Set, Kind::Mesh].into_iter();
    match text {
        None => Ok(Kind::Set),
        Some(text) => kinds
            .clone()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| {
                let rule = "is no kind of cluster of this version";
                ConfigError::new("cluster.kind", text, rule, "write \"set\" or \"mesh\"")
            }),
    }
}

fn nodes(list: &[file::NodeEntry]) -> Checked<Vec<NodeEntry>> {
    let count = list.len();
    if count == 0 || count > limits::MAX_NODES {
        let rule = format!("must be 1 to {} tables", limits::MAX_NODES);
        let mend = "list every node with id and address, the same list on every node";
        return Err(ConfigError::new("cluster.nodes", count, rule, mend));
    }
    let mut found = BTreeMap::new();
    for (index, entry) in list.iter().enumerate() {
        let key = format!("cluster.nodes[{index}].id");
        let id = NodeId(number(&key, &entry.id, 1, u64::from(u32::MAX))? as u32);
        let key_address = format!("cluster.nodes[{index}].address");
        split_address(&key_address, &entry.address)?;
        if let Some((other, _)) = found.insert(id, (index, entry.address.clone())) {
            let keys = format!("cluster.nodes[{other}].id and {key}");
            let rule = "two nodes have one number";
            return Err(ConfigError::new(keys, id, rule, "number each node once"));
        }
    }
    let entries = found.into_iter();
    Ok(entries
        .map(|(id, (_, address))| NodeEntry { id, address })
        .collect())
}

/// Host and port of `host:port`.
pub(super) fn split_address<'a>(key: &str, address: &'a str) -> Checked<(&'a str, u16)> {
    let parts = address.rsplit_once(':');
    let parts = parts.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    let parts = parts.filter(|(host, port)| !host.is_empty() && *port > 0);
    parts.ok_or_else(|| {
        let rule = "must be host:port with a port from 1 to 65535";
        ConfigError::new(key, address, rule, "write for example 10.0.0.1:7000")
    })
}

fn node(file: &file::Node, cluster: &Cluster) -> Checked<Node> {
    let id = file.id.as_ref().ok_or_else(|| {
        missing(
            "node.id",
            "set it to this node's id in [[cluster.nodes]], or pass --node-id",
        )
    })?;
    let id = NodeId(number("node.id", id, 1, u64::from(u32::MAX))? as u32);
    let Some(own) = cluster.address(id) else {
        let known: Vec<String> = cluster.nodes.iter().map(|e| e.id.to_string()).collect();
        let keys = "node.id and cluster.nodes";
        let rule = format!("is not among the cluster's nodes: {}", known.join(", "));
        return Err(ConfigError::new(
            keys,
            id,
            rule,
            "use one of them or add the node",
        ));
    };
    let data_dir = file.data_dir.as_deref().filter(|path| !path.is_empty());
    let data_dir =
        data_dir.ok_or_else(|| missing("node.data_dir", "name a directory on the data disk"))?;
    let address = file.address.as_deref().unwrap_or(own);
    split_address("node.address", address)?;
    let admin = file.admin.as_deref().filter(|admin| *admin != "off");
    if let Some(admin) = admin {
        split_address("node.admin", admin)?;
    }
    let admin_control = file.admin_control.unwrap_or(false);
    if admin_control && admin.is_none() {
        let keys = "node.admin_control and node.admin";
        let rule = "there is no port to control the node by";
        let mend = "set node.admin, for example to 127.0.0.1:7900, or remove node.admin_control";
        return Err(ConfigError::new(keys, "true and off", rule, mend));
    }
    let log = match file.log.as_deref() {
        None | Some("text") => LogFormat::Text,
        Some("json") => LogFormat::Json,
        Some(other) => {
            let rule = "must be \"text\" or \"json\"";
            return Err(ConfigError::new("node.log", other, rule, "use one of them"));
        }
    };
    Ok(Node {
        id,
        data_dir: data_dir.into(),
        address: address.to_owned(),
        admin: admin.map(str::to_owned),
        admin_control,
        log,
    })
}

/// The HTTP port must not be one of those on which the node's cores listen.
fn admin_port_is_free(node: &Node, cores: usize) -> Checked<()> {
    let Some(admin) = &node.admin else {
        return Ok(());
    };
    let (admin_host, admin_port) = split_address("node.admin", admin)?;
    let (host, port) = split_address("node.address", &node.address)?;
    let taken = usize::from(port)..usize::from(port) + cores;
    if host == admin_host && taken.contains(&usize::from(admin_port)) {
        let value = format!("{admin} and {}", node.address);
        let rule = format!("the node listens on port..port+{cores} (cores.count) itself");
        let mend = "choose another port for node.admin";
        let keys = "node.admin and node.address";
        return Err(ConfigError::new(keys, value, rule, mend));
    }
    Ok(())
}

fn cores(file: &file::Cores) -> Checked<Cores> {
    let mut cpus = Vec::new();
    for cpu in file.cpus.iter().flatten() {
        let cpu = number("cores.cpus", cpu, 0, 4095)? as usize;
        if cpus.contains(&cpu) {
            let rule = "one CPU carries one executor";
            return Err(ConfigError::new(
                "cores.cpus",
                cpu,
                rule,
                "name each CPU once",
            ));
        }
        cpus.push(cpu);
    }
    let default = cpus.len().max(1) as u64;
    let count = or("cores.count", &file.count, default, 1, 256)? as usize;
    if file.cpus.is_some() && cpus.len() != count {
        let keys = "cores.count and cores.cpus";
        let value = format!("{count} and {} CPUs", cpus.len());
        let rule = "every executor needs its CPU";
        return Err(ConfigError::new(
            keys,
            value,
            rule,
            "set one of the two only",
        ));
    }
    Ok(Cores {
        count,
        cpus,
        spin_us: or("cores.spin_us", &file.spin_us, 0, 0, 1_000_000)?,
    })
}

fn retention(file: &file::Log, segment_bytes: u64) -> Checked<Retention> {
    let kind = file.retention.as_deref().unwrap_or("none");
    // The newest segment always stays, and another one must be able to begin.
    let least = 2 * segment_bytes;
    let bytes = file
        .retention_bytes
        .as_ref()
        .map(|bytes| number("log.retention_bytes", bytes, least, 1 << 50));
    let bytes = bytes.transpose()?;
    let age_s = file
        .retention_age_s
        .as_ref()
        .map(|age_s| number("log.retention_age_s", age_s, 1, 100 * 366 * 86_400));
    let age_s = age_s.transpose()?;
    let keys = "log.retention, log.retention_bytes and log.retention_age_s";
    let refuse = |rule: &str, mend: &str| Err(ConfigError::new(keys, kind, rule, mend));
    let age = Retention {
        age_s,
        ..Retention::default()
    };
    match (kind, bytes, age_s) {
        ("none", None, None) => Ok(age),
        ("none", ..) => refuse(
            "keeps everything, and a bound is set",
            "set log.retention to fifo or hard, or leave the bounds out",
        ),
        ("fifo", None, None) => refuse(
            "needs a bound",
            "set log.retention_bytes or log.retention_age_s",
        ),
        ("fifo", trim_bytes, _) => Ok(Retention { trim_bytes, ..age }),
        ("hard", None, _) => refuse("needs a bound in bytes", "set log.retention_bytes"),
        ("hard", refuse_bytes, _) => Ok(Retention {
            refuse_bytes,
            ..age
        }),
        _ => Err(ConfigError::new(
            "log.retention",
            kind,
            "must be \"none\", \"fifo\" or \"hard\"",
            "write one of them",
        )),
    }
}

fn log(file: &file::Log, link: &file::Link) -> Checked<Log> {
    let alignment = limits::DISK_ALIGNMENT as u64;
    let segment_bytes = or(
        "log.segment_bytes",
        &file.segment_bytes,
        limits::SEGMENT_BYTES,
        1 << 20,
        1 << 34,
    )?;
    let block = or(
        "log.max_block_bytes",
        &file.max_block_bytes,
        limits::MAX_BLOCK_BYTES as u64,
        alignment,
        limits::MAX_BUFFER_BYTES as u64,
    )?;
    for (key, bytes) in [
        ("log.segment_bytes", segment_bytes),
        ("log.max_block_bytes", block),
    ] {
        if bytes % alignment != 0 {
            let rule = format!("must be a multiple of {alignment}");
            return Err(ConfigError::new(key, bytes, rule, "round it"));
        }
    }
    let batch = or(
        "link.max_batch_bytes",
        &link.max_batch_bytes,
        block - limits::BLOCK_HEADER as u64,
        limits::BATCH_HEADER as u64 + 1,
        (limits::MAX_BUFFER_BYTES - limits::BLOCK_HEADER) as u64,
    )?;
    let dsync = match file.sync.as_deref() {
        None | Some("dsync") => true,
        Some("none") => false,
        Some(other) => {
            let rule = "must be \"dsync\" or \"none\"";
            let mend = "use none only on drives with power-loss protection";
            return Err(ConfigError::new("log.sync", other, rule, mend));
        }
    };
    let retention = retention(file, segment_bytes)?;
    let (scrub_bytes_per_s, scrub_interval_s) = scrub(file)?;
    Ok(Log {
        retention,
        segment_bytes,
        max_block_bytes: block as usize,
        max_batch_bytes: batch as usize,
        max_block_records: records(file, link)?,
        write_depth: or(
            "log.write_depth",
            &file.write_depth,
            limits::WRITE_DEPTH as u64,
            1,
            64,
        )? as usize,
        batch_timeout_ms: or(
            "log.batch_timeout_ms",
            &file.batch_timeout_ms,
            limits::BATCH_TIMEOUT_MS,
            1,
            60_000,
        )?,
        dsync,
        scrub_bytes_per_s,
        scrub_interval_s,
    })
}

/// Pace and interval of the scrub.
fn scrub(file: &file::Log) -> Checked<(u64, u64)> {
    let (pace, pause) = (limits::SCRUB_BYTES_PER_S, limits::SCRUB_INTERVAL_S);
    let bytes = &file.scrub_bytes_per_s;
    let interval = &file.scrub_interval_s;
    Ok((
        or("log.scrub_bytes_per_s", bytes, pace, 0, 1 << 40)?,
        or("log.scrub_interval_s", interval, pause, 1, 366 * 86_400)?,
    ))
}

/// One number with two names: refused if they say different things.
fn records(file: &file::Log, link: &file::Link) -> Checked<u32> {
    let most = u64::from(u32::MAX);
    let default = u64::from(limits::MAX_BLOCK_RECORDS);
    let one = or(
        "log.max_block_records",
        &file.max_block_records,
        default,
        1,
        most,
    )?;
    let other = or("link.max_batch_size", &link.max_batch_size, one, 1, most)?;
    if file.max_block_records.is_some() && one != other {
        let keys = "log.max_block_records and link.max_batch_size";
        let value = format!("{one} and {other}");
        let rule = "are two names of one number";
        return Err(ConfigError::new(
            keys,
            value,
            rule,
            "set one of the two only",
        ));
    }
    Ok(other as u32)
}

fn link(file: &file::Link) -> Checked<Link> {
    let most = 1 << 40;
    Ok(Link {
        preset: file.preset.clone(),
        initial_credit: or(
            "link.initial_credit",
            &file.initial_credit,
            limits::INITIAL_CREDIT,
            1,
            most,
        )?,
        initial_credit_bytes: or(
            "link.initial_credit_bytes",
            &file.initial_credit_bytes,
            limits::INITIAL_CREDIT_BYTES,
            limits::DISK_ALIGNMENT as u64,
            1 << 30,
        )?,
        catch_up_bytes_per_s: or(
            "link.catch_up_bytes_per_s",
            &file.catch_up_bytes_per_s,
            limits::CATCH_UP_BYTES_PER_S,
            0,
            1 << 40,
        )?,
        rpc_timeout_ms: or(
            "link.rpc_timeout_ms",
            &file.rpc_timeout_ms,
            limits::RPC_TIMEOUT_MS,
            10,
            3_600_000,
        )?,
        retry_backoff_ms: or(
            "link.retry_backoff_ms",
            &file.retry_backoff_ms,
            limits::RETRY_BACKOFF_MS,
            1,
            3_600_000,
        )?,
    })
}

/// Core `k` listens on `port + k`: the ranges of two nodes on one host must not meet. How many
/// cores another node has is its own affair; as many as here is assumed.
fn ports(cluster: &Cluster, cores: usize) -> Checked<()> {
    let address = |index: usize| {
        let key = format!("cluster.nodes[{index}].address");
        split_address(&key, &cluster.nodes[index].address)
    };
    for first in 0..cluster.nodes.len() {
        let (host, port) = address(first)?;
        if usize::from(port) + cores - 1 > usize::from(u16::MAX) {
            let keys = format!("cores.count and cluster.nodes[{first}].address");
            let value = format!("{cores} and {host}:{port}");
            let rule = "core k listens on port + k, at most 65535";
            return Err(ConfigError::new(keys, value, rule, "choose a lower port"));
        }
        for second in first + 1..cluster.nodes.len() {
            let (other_host, other) = address(second)?;
            if host == other_host && usize::from(port.abs_diff(other)) < cores {
                let keys =
                    format!("cluster.nodes[{first}].address and cluster.nodes[{second}].address");
                let value = format!("{host}:{port} and {other_host}:{other}");
                let rule = format!("the ranges port..port+{cores} (cores.count) overlap");
                let mend = "leave as many ports between two nodes of a host as they have cores";
                return Err(ConfigError::new(keys, value, rule, mend));
            }
        }
    }
    Ok(())
}

fn block_fits_segment(log: &Log) -> Checked<()> {
    let header = limits::SEGMENT_HEADER as u64;
    let largest = [
        ("log.max_block_bytes", log.max_block_bytes),
        (
            "link.max_batch_bytes",
            log.max_batch_bytes + limits::BLOCK_HEADER,
        ),
    ];
    for (key, bytes) in largest {
        if padded(bytes) as u64 + header > log.segment_bytes {
            let keys = format!("{key} and log.segment_bytes");
            let value = format!("{bytes} and {}", log.segment_bytes);
            let rule = format!("a segment holds its header ({header} bytes) and a whole block");
            return Err(ConfigError::new(
                keys,
                value,
                rule,
                "raise log.segment_bytes",
            ));
        }
    }
    Ok(())
}

fn credit_carries_blocks(log: &Log, link: &Link) -> Checked<()> {
    if (link.initial_credit_bytes as usize) < padded(log.max_block_bytes) {
        let keys = "link.initial_credit_bytes and log.max_block_bytes";
        let value = format!("{} and {}", link.initial_credit_bytes, log.max_block_bytes);
        let rule = "the credit must carry one whole block";
        let mend = format!(
            "raise link.initial_credit_bytes to {} or lower the block size",
            padded(log.max_block_bytes)
        );
        return Err(ConfigError::new(keys, value, rule, mend));
    }
    if link.initial_credit < u64::from(log.max_block_records) {
        let keys = "link.initial_credit and log.max_block_records (link.max_batch_size)";
        let value = format!("{} and {}", link.initial_credit, log.max_block_records);
        let rule = "the credit must carry the records of one whole block";
        let mend = format!(
            "raise link.initial_credit to {}, better to twice that, or lower link.max_batch_size",
            log.max_block_records
        );
        return Err(ConfigError::new(keys, value, rule, mend));
    }
    Ok(())
}
