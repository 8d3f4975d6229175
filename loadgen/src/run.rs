//! `loadgen run`: from flags to a ledger and a report.
//!
//! Before the load it asks the cluster who is there and refuses what cannot work; after it, it asks
//! each node how it is, waits until the followers hold everything, and writes the ledger durably.
//! The load itself is `driver/mod.rs`, which is to be read next; what it prints is `report.rs`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use millrace::client::codec::Codec;
use millrace::limits::{BATCH_HEADER, CLIENT_IN_FLIGHT, MAX_BUFFER_BYTES};
use millrace::types::{Level, LogId, OriginId, ShardId, whole};
use millrace::wire::body::MetadataOk;
use millrace::wire::record;

use crate::Failure;
use crate::driver::{self, INTERRUPTED, Plan};
use crate::exchange;
use crate::keys::{KEY_BYTES, KEYS_MAX, KeyChoice, Keys};
use crate::ledger::Ledger;
use crate::nodes::{self, NodeStatus, Process};
use crate::payload::Payload;
use crate::report::{Lag, LinkReport, NodeReport, Report, SECONDS_LEAST};
use crate::schedule::Rate;

/// Flags of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Base addresses of nodes, host:port, separated by commas: any of a set; of a mesh all those
    /// that are to take the load, each to logs of its own
    #[arg(long, required = true, value_delimiter = ',')]
    pub nodes: Vec<String>,
    /// Seconds to measure
    #[arg(long, default_value_t = 20.0)]
    pub seconds: f64,
    /// Seconds of load before measuring
    #[arg(long, default_value_t = 5.0)]
    pub warmup: f64,
    /// Seconds that the followers get to hold everything when the load has ended
    #[arg(long, default_value_t = 60, value_parser = whole(0_u64, 3600))]
    pub settle: u64,
    /// When an append is acknowledged: local, leader or quorum [default: quorum in a set, leader in
    /// a mesh]
    #[arg(long)]
    pub level: Option<String>,
    /// Bytes of a record's value, at least 96 of json, 16 of the others
    #[arg(long, default_value_t = 100, value_parser = whole(0, MAX_BUFFER_BYTES))]
    pub record_bytes: usize,
    /// Records in a batch
    #[arg(long, default_value_t = 100, value_parser = whole(0, u32::MAX))]
    pub batch_records: u32,
    /// What the values look like
    #[arg(long, value_enum, default_value_t)]
    pub payload: Payload,
    /// How the generator packs a batch's body; the nodes never do
    #[arg(long, value_enum, default_value_t)]
    pub codec: CodecName,
    /// Give every record one of so many keys, on the shard crc32(key) % shards [default: no keys]
    #[arg(long, value_parser = whole(0, u32::MAX))]
    pub key_count: Option<u32>,
    /// Which of its shard's keys a record gets
    #[arg(long, value_enum, default_value_t)]
    pub key_choice: KeyChoice,
    /// Connections, spread over the logs [default: 16, or the number of logs if it is larger]
    #[arg(long, value_parser = whole(0, u32::MAX))]
    pub connections: Option<u32>,
    /// Batches that one connection may have unanswered
    #[arg(long, default_value_t = 8, value_parser = whole(0, usize::MAX))]
    pub in_flight: usize,
    /// Records a second over all connections (open loop), or max (closed loop)
    #[arg(long, default_value = "max")]
    pub rate: Rate,
    /// Shards to write to, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_parser = whole(0, u16::MAX))]
    pub shards: Vec<u16>,
    /// After how long a node answers that an append's outcome is unknown, milliseconds
    #[arg(long, default_value_t = 10_000, value_parser = whole(0, u32::MAX))]
    pub timeout_ms: u32,
    /// Where to write what became of every batch
    #[arg(long)]
    pub ledger: PathBuf,
    /// Where to write the report
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Where to write ten times a second what was acked so far: a line of the time (milliseconds
    /// since 1970) and the records of each log written to, by origin and shard
    #[arg(long)]
    pub acks: Option<PathBuf>,
    /// Seed of the payloads' texts
    #[arg(long, default_value_t = 1, value_parser = whole(0, u64::MAX))]
    pub seed: u64,
    /// A directory on the nodes' disk: end early, as if the time were over, before it is full
    #[arg(long)]
    pub disk: Option<PathBuf>,
    /// CPU to pin the executor to
    #[arg(long, value_parser = whole(0, usize::MAX))]
    pub cpu: Option<usize>,
    /// Processes of the nodes, id=pid separated by commas, for CPU time, memory and bytes written
    #[arg(long, value_delimiter = ',', value_parser = parse_pid)]
    pub pids: Vec<(u64, u32)>,
}

/// A codec by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CodecName {
    /// Not packed
    #[default]
    None,
    /// zstd; a body that it does not make smaller is sent as it is
    Zstd,
}

impl CodecName {
    fn codec(self) -> Codec {
        match self {
            CodecName::None => Codec::None,
            CodecName::Zstd => Codec::Zstd,
        }
    }

    fn name(self) -> &'static str {
        match self {
            CodecName::None => "none",
            CodecName::Zstd => "zstd",
        }
    }
}

fn parse_pid(text: &str) -> Result<(u64, u32), String> {
    let pair = text.split_once('=');
    let pair = pair.and_then(|(id, pid)| Some((id.parse().ok()?, pid.parse().ok()?)));
    pair.ok_or_else(|| "not id=pid".to_owned())
}

/// Runs the load; returns whether there is a rate, so whether it got as far as it was to measure.
pub fn run(args: &RunArgs) -> Result<bool, Failure> {
    let metadata = exchange::any_metadata(&args.nodes)
        .map_err(|error| Failure::Failed(format!("no node answers: {error}")))?;
    let plan = plan(args, &metadata)?;
    // Before the load: a place that cannot be written is a bad flag, not a lost run.
    for path in [Some(&args.ledger), args.acks.as_ref()]
        .into_iter()
        .flatten()
    {
        std::fs::File::create(path)
            .map_err(|error| Failure::BadInput(format!("{}: {error}", path.display())))?;
    }
    let before = processes(args)?;
    let addresses: Vec<String> = metadata
        .nodes
        .iter()
        .map(|node| node.address.clone())
        .collect();
    let earlier = statuses(&addresses);
    if args.payload == Payload::Constant {
        let text = "--payload constant: figures of compression mean nothing with it";
        let _ = writeln!(io::stderr(), "loadgen: {text}");
    }
    catch_signals();
    let outcome = driver::drive(plan.clone()).map_err(Failure::failed)?;
    let mut report = describe(args, &plan);
    report.count(&outcome.stats, &plan.logs);
    report.lag_us = slowest(&statuses(&addresses));
    let interrupted = INTERRUPTED.load(Ordering::Relaxed);
    let settle = if interrupted { 0 } else { args.settle };
    let settle = Duration::from_secs(settle);
    report.settled = nodes::wait_until_equal(&addresses, settle);
    report.nodes = node_reports(args, &statuses(&addresses), (&before, &earlier));
    let ledger = Ledger {
        run: plan.run,
        shards: metadata.leaders.len() as u32,
        record_bytes: plan.record_bytes as u32,
        payload: plan.payload,
        key_count: args.key_count.unwrap_or(0),
        entries: outcome.entries,
    };
    let place = |error: io::Error| Failure::Failed(format!("{}: {error}", args.ledger.display()));
    ledger.write(&args.ledger).map_err(place)?;
    if let Some(path) = &args.json {
        let place = |error| Failure::Failed(format!("{}: {error}", path.display()));
        report.write(path).map_err(place)?;
    }
    let mut out = report.table();
    if !report.settled {
        let seconds = settle.as_secs();
        out.push_str(&format!(
            "behind      a follower lacked records after {seconds} s\n"
        ));
    }
    io::stdout()
        .write_all(out.as_bytes())
        .map_err(Failure::failed)?;
    Ok(report.records_per_s.is_some())
}

/// Holds the flags against each other and against what the cluster says of itself.
fn plan(args: &RunArgs, metadata: &MetadataOk) -> Result<Plan, Failure> {
    let bad = |text: String| Err(Failure::BadInput(text));
    let level = match &args.level {
        Some(name) => Level::from_name(name),
        None => Level::from_number(metadata.default_level),
    };
    let Some(level) = level else {
        let name = args.level.as_deref().unwrap_or("(of the node)");
        return bad(format!("--level {name}: name local, leader or quorum"));
    };
    let least = args.payload.min_bytes();
    if args.record_bytes < least {
        return bad(format!(
            "--record-bytes {}: a record says where it belongs, which takes {least} bytes of \
             {}; ask for more",
            args.record_bytes, args.payload
        ));
    }
    let key = if args.key_count.is_some() {
        KEY_BYTES
    } else {
        0
    };
    let record = record::HEADER + key + args.record_bytes;
    let batch = BATCH_HEADER + args.batch_records as usize * record;
    let largest = metadata.max_batch_bytes as usize;
    if args.batch_records == 0 || batch > largest {
        return bad(format!(
            "--batch-records {}: a batch of 1 to {largest} bytes is needed, this makes {batch}; \
             change it or --record-bytes",
            args.batch_records
        ));
    }
    if args.in_flight == 0 || args.in_flight > CLIENT_IN_FLIGHT {
        return bad(format!(
            "--in-flight {}: 1 to {CLIENT_IN_FLIGHT}",
            args.in_flight
        ));
    }
    times(args)?;
    let (logs, nodes): (Vec<LogId>, Vec<_>) = places(args, metadata)?.into_iter().unzip();
    let connections = args.connections.unwrap_or(16.max(logs.len() as u32));
    if (connections as usize) < logs.len() || connections > 4096 {
        return bad(format!(
            "--connections {connections}: one for each of the {} logs at least, 4096 at most",
            logs.len()
        ));
    }
    Ok(Plan {
        keys: keys(args, &logs, metadata)?,
        logs,
        nodes,
        payload: args.payload,
        codec: args.codec.codec(),
        connections,
        in_flight: args.in_flight,
        batch_records: args.batch_records,
        record_bytes: args.record_bytes,
        level,
        timeout_ms: args.timeout_ms,
        rate: args.rate,
        warmup: Duration::from_secs_f64(args.warmup),
        seconds: Duration::from_secs_f64(args.seconds),
        seed: args.seed,
        run: new_run(),
        cpu: args.cpu,
        acks: args.acks.clone(),
        disk: args.disk.clone(),
    })
}

fn times(args: &RunArgs) -> Result<(), Failure> {
    let valid = |seconds: f64| (0.0..1e6).contains(&seconds);
    if valid(args.warmup) && valid(args.seconds) && args.seconds >= SECONDS_LEAST {
        return Ok(());
    }
    Err(Failure::BadInput(format!(
        "--seconds {}, --warmup {}: both below 1,000,000 s, --seconds from {SECONDS_LEAST} s on",
        args.seconds, args.warmup
    )))
}

/// The keys of each log; none if none are asked for.
fn keys(args: &RunArgs, logs: &[LogId], metadata: &MetadataOk) -> Result<Vec<Keys>, Failure> {
    let Some(count) = args.key_count else {
        return Ok(Vec::new());
    };
    if count == 0 || count > KEYS_MAX {
        let text = format!("--key-count {count}: 1 to {KEYS_MAX}; leave it out for no keys");
        return Err(Failure::BadInput(text));
    }
    let all = metadata.leaders.len() as u32;
    let of = |LogId { shard, .. }: &LogId| {
        let keys = Keys::new(count, args.key_choice, *shard, all);
        let text = format!(
            "--key-count {count}: none of these keys belongs to shard {shard}; ask for more, or \
             name other --shards"
        );
        let some = !keys.is_empty();
        some.then_some(keys).ok_or(Failure::BadInput(text))
    };
    logs.iter().map(of).collect()
}

/// The logs to write to, each with the nodes that know its leader: the shards of a set, or those of
/// every node of a mesh that is named, because it alone takes appends to them.
fn places(args: &RunArgs, metadata: &MetadataOk) -> Result<BTreeMap<LogId, Vec<String>>, Failure> {
    let mut nodes: BTreeMap<OriginId, Vec<String>> = BTreeMap::new();
    if metadata.origins.len() == 1 {
        nodes.insert(metadata.origin, args.nodes.clone());
    } else {
        for address in &args.nodes {
            let alone = std::slice::from_ref(address);
            let answer = exchange::any_metadata(alone).map_err(|error| {
                let text = "each node of a mesh that is named takes load; start it or leave it out";
                Failure::Failed(format!("--nodes {address}: {error}; {text}"))
            })?;
            nodes
                .entry(answer.origin)
                .or_default()
                .push(address.clone());
        }
    }
    let shards = shards(args, metadata)?;
    let all = nodes.into_iter().flat_map(|(origin, nodes)| {
        let log = move |shard: &u16| LogId {
            origin,
            shard: ShardId(*shard),
        };
        let logs = shards.iter().map(log);
        logs.map(|log| (log, nodes.clone())).collect::<Vec<_>>()
    });
    Ok(all.collect())
}

/// The shards named, or all.
fn shards(args: &RunArgs, metadata: &MetadataOk) -> Result<Vec<u16>, Failure> {
    let all = metadata.leaders.len() as u16;
    let mut shards = args.shards.clone();
    if shards.is_empty() {
        shards = (0..all).collect();
    }
    shards.sort_unstable();
    shards.dedup();
    match shards.iter().find(|shard| **shard >= all) {
        None => Ok(shards),
        Some(shard) => Err(Failure::BadInput(format!(
            "--shards {shard}: the cluster has {all}, numbered from 0"
        ))),
    }
}

/// An id that no earlier run on this cluster had: from the clock and the process.
fn new_run() -> u32 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&since.as_nanos().to_le_bytes());
    hasher.update(&std::process::id().to_le_bytes());
    hasher.finalize()
}

/// From now on a signal asks for the end instead of ending the process.
pub(crate) fn catch_signals() {
    extern "C" fn interrupt(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    let handler = interrupt as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler does nothing but store to an atomic.
        unsafe { libc::signal(signal, handler) };
    }
}

fn describe(args: &RunArgs, plan: &Plan) -> Report {
    Report {
        record_bytes: plan.record_bytes as u64,
        batch_records: u64::from(plan.batch_records),
        level: plan.level.name().to_owned(),
        rate: plan.rate.to_string(),
        payload: plan.payload,
        codec: args.codec.name().to_owned(),
        key_count: u64::from(args.key_count.unwrap_or(0)),
        key_choice: args
            .key_count
            .map_or("none", |_| match args.key_choice {
                KeyChoice::Uniform => "uniform",
                KeyChoice::Zipf => "zipf",
            })
            .to_owned(),
        warmup_s: args.warmup,
        asked_s: args.seconds,
        connections: u64::from(plan.connections),
        in_flight: plan.in_flight as u64,
        run: format!("{:08x}", plan.run),
        ..Report::default()
    }
}

fn processes(args: &RunArgs) -> Result<Vec<Process>, Failure> {
    let read = |(_, pid): &(u64, u32)| {
        Process::read(*pid).map_err(|error| Failure::BadInput(format!("--pids: {error}")))
    };
    args.pids.iter().map(read).collect()
}

/// The status of each node that answers.
fn statuses(addresses: &[String]) -> Vec<NodeStatus> {
    let ask = |address: &String| match NodeStatus::ask(address) {
        Ok(status) => Some(status),
        Err(error) => {
            let _ = writeln!(io::stderr(), "no status of {address}: {error}");
            None
        }
    };
    addresses.iter().filter_map(ask).collect()
}

/// What each link of a node that leads sent since the load began.
fn link_reports(status: &NodeStatus, earlier: Option<&NodeStatus>) -> Vec<LinkReport> {
    let earlier: Vec<LinkReport> = earlier.iter().flat_map(|status| status.links()).collect();
    let since = |link: LinkReport| {
        let same = |other: &&LinkReport| (other.shard, other.peer) == (link.shard, link.peer);
        let before = earlier
            .iter()
            .find(same)
            .map_or(0, |other| other.sent_bytes);
        LinkReport {
            // A node that was started again counts from 0.
            sent_bytes: link
                .sent_bytes
                .checked_sub(before)
                .unwrap_or(link.sent_bytes),
            ..link
        }
    };
    status.links().into_iter().map(since).collect()
}

/// The lag of the link with the highest p99.
fn slowest(statuses: &[NodeStatus]) -> Lag {
    let links = statuses.iter().flat_map(NodeStatus::lags);
    links.max_by_key(|lag| lag.p99).unwrap_or_default()
}

fn node_reports(
    args: &RunArgs,
    statuses: &[NodeStatus],
    (before, earlier): (&[Process], &[NodeStatus]),
) -> Vec<NodeReport> {
    let report = |status: &NodeStatus| {
        let id = status.node();
        let index = args.pids.iter().position(|(of, _)| *of == id);
        // A node that was started again meanwhile has another process: then its bytes are its own.
        let processes =
            index.and_then(|index| Some((before[index], Process::read(args.pids[index].1).ok()?)));
        let cpu_s = |(was, is): (Process, Process)| is.cpu_s - was.cpu_s;
        let written =
            |(was, is): (Process, Process)| is.write_bytes.saturating_sub(was.write_bytes);
        NodeReport {
            id,
            cpu_s: processes.map(|both| (cpu_s(both) * 100.0).round() / 100.0),
            write_bytes: processes.map(written),
            rss_max: processes.map(|(_, is)| is.rss_max),
            records_encoded: status.counter("records_encoded"),
            crc_failures: status.counter("crc_failures"),
            links: link_reports(status, earlier.iter().find(|other| other.node() == id)),
        }
    };
    statuses.iter().map(report).collect()
}
