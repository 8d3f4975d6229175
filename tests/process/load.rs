//! The load generator as a process: a run that goes on until it is ended, and its verifier.
//!
//! The client's side of the truth: which acks it got and when comes from the file that a run writes
//! along ([`Acks`]), what became of every batch from its ledger. Nothing here asks a node. Read
//! `kills.rs` for what is done with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::cluster::{Cluster, die_with_us, end, signal, tail, wait_for, wait_until};
use crate::node::loadgen::loadgen;
use crate::node::{finish, text};

/// Batches that one connection may have unanswered.
pub const IN_FLIGHT: u64 = 8;
/// Connections to the leader of each shard.
pub const CONNECTIONS: u64 = 2;
/// Records of a batch.
pub const BATCH: u64 = 100;

/// A run in progress: an open loop at level `quorum`, in all shards.
pub struct Load {
    child: Child,
    stem: PathBuf,
}

/// A run that has ended.
pub struct Run {
    /// Where its ledger is.
    pub ledger: PathBuf,
    /// Its report, as `loadgen run --json` wrote it.
    pub report: Value,
    /// The refusals it met, one line for each kind.
    pub refusals: Vec<String>,
}

impl Load {
    /// Starts a run of `rate` records a second; its files are named `name`.
    pub fn start(cluster: &Cluster, name: &str, rate: u64) -> Load {
        Load::start_with(cluster, name, rate, &[])
    }

    /// The same with further flags.
    pub fn start_with(cluster: &Cluster, name: &str, rate: u64, more: &[&str]) -> Load {
        let stem = cluster.file(name);
        let log = File::create(stem.with_extension("log")).expect("the load's log opens");
        let connections = CONNECTIONS * cluster.ids().count() as u64;
        let mut command = loadgen();
        command
            .args(["run", "--level", "quorum", "--record-bytes", "100"])
            .args(["--warmup", "0", "--seconds", "600"])
            .args(["--rate", &rate.to_string()])
            .args(["--batch-records", &BATCH.to_string()])
            .args(["--connections", &connections.to_string()])
            .args(["--in-flight", &IN_FLIGHT.to_string()])
            .args(["--nodes", &cluster.addresses()]);
        for (flag, extension) in [
            ("--ledger", "ledger"),
            ("--json", "json"),
            ("--acks", "acks"),
        ] {
            command.arg(flag).arg(stem.with_extension(extension));
        }
        command.args(more).stdin(Stdio::null()).stderr(log);
        command.stdout(Stdio::null());
        die_with_us(&mut command);
        let child = command.spawn().expect("the load generator starts");
        Load { child, stem }
    }

    /// What was acked so far.
    pub fn acks(&self) -> Acks {
        Acks::read(&self.stem.with_extension("acks"))
    }

    /// Waits until in the last second at least so many records were acked, of every shard some.
    pub fn wait_until_acks(&self, per_second: u64, limit: Duration) {
        wait_until("acks come at their rate", limit, || {
            let (acks, now_ms) = (self.acks(), now_ms());
            let shards = acks.shards();
            let all =
                shards > 0 && (0..shards).all(|shard| acks.of(shard, now_ms - 300, now_ms) > 0);
            all && acks.in_the_second_before(now_ms) >= per_second
        });
    }

    /// Waits until every shard has acks again that are later than `since_ms`.
    pub fn wait_until_resumed(&self, since_ms: u64, limit: Duration) {
        wait_until("every shard acks again", limit, || {
            let acks = self.acks();
            let resumed = |shard| acks.first_after(shard, since_ms).is_some();
            acks.shards() > 0 && (0..acks.shards()).all(resumed)
        });
    }

    /// Ends the run: nothing more is sent, what is open gets its end, the ledger is written.
    pub fn finish(mut self) -> Run {
        signal(&self.child, libc::SIGINT);
        let status = wait_for(&mut self.child, Duration::from_secs(40));
        assert!(status.success(), "the load ends with {status}");
        let json = fs::read(self.stem.with_extension("json")).expect("a report");
        let log = fs::read_to_string(self.stem.with_extension("log")).expect("a log");
        let refusals = log.lines().filter(|line| line.starts_with("answered"));
        Run {
            refusals: refusals.map(str::to_owned).collect(),
            ledger: self.stem.with_extension("ledger"),
            report: serde_json::from_slice(&json).expect("the report is JSON"),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        end(&mut self.child);
        if std::thread::panicking() {
            let log = self.stem.with_extension("log");
            eprintln!("-- end of the load's log\n{}", tail(&log));
        }
    }
}

impl Run {
    /// Records by outcome: `appended`, `acked`, `failed` or `unknown`.
    pub fn records(&self, outcome: &str) -> u64 {
        self.report[outcome].as_u64().expect("a count")
    }
}

/// Acked records of every shard over time, as the client saw them.
pub struct Acks(Vec<(u64, Vec<u64>)>);

impl Acks {
    fn read(path: &Path) -> Acks {
        let text = fs::read_to_string(path).unwrap_or_default();
        // The last line may be under way.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let number = |word: &str| word.parse::<u64>().expect("a number");
        let line = |line: &str| {
            let mut numbers = line.split(' ').map(number);
            (numbers.next().expect("a time"), numbers.collect())
        };
        Acks(whole.lines().map(line).collect())
    }

    fn shards(&self) -> usize {
        self.0.first().map_or(0, |(_, shards)| shards.len())
    }

    fn at(&self, shard: usize, ms: u64) -> u64 {
        let behind = self.0.partition_point(|(at_ms, _)| *at_ms <= ms);
        let last = behind.checked_sub(1).map(|index| &self.0[index]);
        last.map_or(0, |(_, shards)| shards[shard])
    }

    fn of(&self, shard: usize, from_ms: u64, to_ms: u64) -> u64 {
        self.at(shard, to_ms) - self.at(shard, from_ms)
    }

    /// Records of all shards that were acked in the second before `ms`.
    pub fn in_the_second_before(&self, ms: u64) -> u64 {
        let shards = 0..self.shards();
        shards.map(|shard| self.of(shard, ms - 1000, ms)).sum()
    }

    /// When the first ack of a shard was seen that surely came after `ms`: the first line behind
    /// that time may still hold acks from before it.
    pub fn first_after(&self, shard: usize, ms: u64) -> Option<u64> {
        let mut later = self.0.iter().filter(|(at_ms, _)| *at_ms >= ms);
        let before = later.next()?.1[shard];
        later
            .find(|(_, shards)| shards[shard] > before)
            .map(|(at_ms, _)| *at_ms)
    }

    /// The longest time without an ack of a shard between two times.
    pub fn longest_stall_ms(&self, shard: usize, from_ms: u64, to_ms: u64) -> u64 {
        let (mut acked, mut grew_ms, mut longest_ms) = (self.at(shard, from_ms), from_ms, 0);
        let within = self
            .0
            .iter()
            .filter(|(at_ms, _)| (from_ms..=to_ms).contains(at_ms));
        for (at_ms, shards) in within {
            longest_ms = longest_ms.max(at_ms - grew_ms);
            if shards[shard] > acked {
                (acked, grew_ms) = (shards[shard], *at_ms);
            }
        }
        longest_ms
    }
}

/// The clock that a run writes its acks with, milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("a time after 1970").as_millis() as u64
}

/// Holds the run's ledger against the files of the stopped nodes; the verdict, which must hold.
pub fn verify(cluster: &Cluster, run: &Run) -> Value {
    let data: Vec<String> = cluster
        .ids()
        .map(|node| cluster.data(node).display().to_string())
        .collect();
    let json = run.ledger.with_extension("verdict");
    let mut command = loadgen();
    command.arg("verify").args(["--data", &data.join(",")]);
    command
        .arg("--ledger")
        .arg(&run.ledger)
        .arg("--json")
        .arg(&json);
    let output = finish(command);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let verdict: Value = serde_json::from_slice(&fs::read(json).expect("a verdict")).expect("JSON");
    for count in [
        "missing",
        "duplicated",
        "reordered",
        "displaced",
        "unexpected",
        "corrupt",
        "unreadable",
        "trimmed",
    ] {
        assert_eq!(verdict[count], 0, "{said}");
    }
    assert_eq!(verdict["replicas_identical"], true, "{said}");
    assert_eq!(verdict["checked"], run.report["acked"], "{said}");
    for node in verdict["nodes"].as_array().expect("a list") {
        assert!(node["compared_bytes"].as_u64() > Some(0), "{said}");
    }
    verdict
}
