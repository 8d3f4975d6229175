//! What a run shows: one JSON object for machines, one table for people, from the same numbers.
//!
//! `appended`, `acked`, `failed` and `unknown` count records of the whole run, the warm-up
//! included, as the ledger does; `measured` has the same four without the warm-up. Rates and
//! latencies are of the measured time, which ends with its last ack. What was not measured is null
//! in the JSON and said to be so in the table, never 0. Keys are never renamed: scripts rest on
//! them. Read `summary.rs` next.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use millrace::types::LogId;
use serde::{Deserialize, Serialize};

use crate::payload::Payload;
use crate::stats::{Counts, Stats};
use crate::verify::Verdict;

/// Measured seconds below which a rate says nothing.
pub const SECONDS_LEAST: f64 = 0.1;

/// Latency in microseconds, from when a batch was due to its ack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub p9999: u64,
    pub max: u64,
}

/// Replication lag in microseconds, of the slowest link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Lag {
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
    /// Blocks that the link's figures are of.
    #[serde(default)]
    pub blocks: u64,
}

/// A link as the node that leads it sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Shard whose log it carries.
    pub shard: u64,
    /// The follower.
    pub peer: u64,
    /// How it was at the end.
    pub status: String,
    /// Bytes of blocks sent over it, resends included.
    pub sent_bytes: u64,
    /// Connections since the node started.
    pub connections: u64,
    /// Records and bytes that the follower still allowed.
    pub credit_records: u64,
    #[allow(missing_docs)]
    pub credit_bytes: u64,
    /// Records that the follower lacked.
    pub lag_records: u64,
}

/// One node over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its id.
    pub id: u64,
    /// CPU time that it used, seconds; this and the next two only if its process was named.
    pub cpu_s: Option<f64>,
    /// Bytes that it handed to its disk.
    pub write_bytes: Option<u64>,
    /// Its largest resident memory, bytes.
    pub rss_max: Option<u64>,
    /// Records that it encoded since its start: stays 0.
    pub records_encoded: u64,
    /// Blocks or batches that it refused for a CRC.
    pub crc_failures: u64,
    /// The links that it leads.
    #[serde(default)]
    pub links: Vec<LinkReport>,
}

/// Records by outcome, without the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Measured {
    pub appended: u64,
    pub acked: u64,
    pub failed: u64,
    pub unknown: u64,
}

/// Acked records of one log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ShardReport {
    /// In a mesh the node whose log it is, in a set the cluster.
    #[serde(default)]
    pub origin: u64,
    pub shard: usize,
    pub acked: u64,
    /// The longest time between two of its acks, milliseconds.
    #[serde(default)]
    pub gap_max_ms: u64,
}

/// The report of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Acked records a second; none, as the next one and the latency, if too little was measured.
    pub records_per_s: Option<f64>,
    /// Acked value bytes / 10^6 a second.
    pub mb_per_s: Option<f64>,
    /// Records sent, warm-up included.
    pub appended: u64,
    /// Records acknowledged, warm-up included.
    pub acked: u64,
    /// Records refused, warm-up included.
    pub failed: u64,
    /// Records without a sure outcome, warm-up included.
    pub unknown: u64,
    /// From the end of the warm-up to the last ack.
    pub seconds: f64,
    /// Seconds to measure, as asked for.
    #[serde(default)]
    pub asked_s: f64,
    /// Seconds from the start until nothing more was sent, warm-up included.
    #[serde(default)]
    pub load_s: f64,
    /// Of one record's value.
    pub record_bytes: u64,
    /// Records in a batch.
    pub batch_records: u64,
    /// What the values look like.
    #[serde(default)]
    pub payload: Payload,
    /// How bodies were packed.
    #[serde(default)]
    pub codec: String,
    /// Keys that records carry; 0: none.
    #[serde(default)]
    pub key_count: u64,
    /// `uniform` or `zipf`; `none` without keys.
    #[serde(default)]
    pub key_choice: String,
    /// Bytes of all batches sent, before their codec.
    #[serde(default)]
    pub raw_bytes: u64,
    /// The same, as sent.
    #[serde(default)]
    pub stored_bytes: u64,
    /// Level asked for.
    pub level: String,
    /// `max`, or records a second asked for.
    pub rate: String,
    /// Latency of the measured batches.
    pub latency_us: Option<Latency>,
    /// Lag as the leaders saw it since their start.
    pub lag_us: Lag,
    /// Node by node.
    pub nodes: Vec<NodeReport>,
    /// Without the warm-up.
    pub measured: Measured,
    /// Log by log, warm-up included: the shards of a set, or those of each node of a mesh.
    pub shards: Vec<ShardReport>,
    /// Records that were due by the timetable and never sent.
    pub unsent: u64,
    /// Of the warm-up.
    pub warmup_s: f64,
    /// Connections used.
    pub connections: u64,
    /// Batches that each may have unanswered.
    pub in_flight: u64,
    /// The run's id, as in every payload.
    pub run: String,
    /// Whether every follower held all records when the run ended.
    pub settled: bool,
    /// Filled in by `summary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verdict>,
}

impl From<Counts> for Measured {
    fn from(counts: Counts) -> Measured {
        Measured {
            appended: counts.appended,
            acked: counts.acked,
            failed: counts.failed,
            unknown: counts.unknown,
        }
    }
}

impl Report {
    /// Enters what the run counted. `record_bytes` is to be set before.
    pub fn count(&mut self, stats: &Stats, logs: &[LogId]) {
        let seconds = stats.measured_s();
        let acked = stats.measured.acked as f64;
        let per_s = (seconds >= SECONDS_LEAST).then_some(acked / seconds);
        self.records_per_s = per_s.map(tenths);
        let mb = |per_s: f64| (per_s * self.record_bytes as f64 / 1e4).round() / 100.0;
        self.mb_per_s = per_s.map(mb);
        self.seconds = (seconds * 1e6).round() / 1e6;
        self.load_s = stats.load_s();
        Counts {
            appended: self.appended,
            acked: self.acked,
            failed: self.failed,
            unknown: self.unknown,
        } = stats.total;
        self.measured = stats.measured.into();
        self.unsent = stats.unsent;
        [self.raw_bytes, self.stored_bytes] = stats.batch_bytes;
        let quantile = |quantile: f64| stats.latency_us.value_at_quantile(quantile);
        self.latency_us = per_s.map(|_| Latency {
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            p9999: quantile(0.9999),
            max: stats.latency_us.max(),
        });
        let report = |(index, log): (usize, &LogId)| ShardReport {
            origin: u64::from(log.origin.0),
            shard: usize::from(log.shard.0),
            acked: stats.acked_by_log[index],
            gap_max_ms: stats.gap_ns_by_log[index] / 1_000_000,
        };
        self.shards = logs.iter().enumerate().map(report).collect();
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{} bytes of {} a record, {} records a batch, codec {}, level {}, rate {}, {} \
             connections x {} in flight, {:.1} s after {:.0} s of warm-up",
            self.record_bytes,
            self.payload,
            self.batch_records,
            self.codec,
            self.level,
            self.rate,
            self.connections,
            self.in_flight,
            self.seconds,
            self.warmup_s
        );
        if let Some(end) = self.early_end() {
            let _ = writeln!(out, "ended       {end}");
        }
        if let (Some(records), Some(mb)) = (self.records_per_s, self.mb_per_s) {
            let records = grouped(records.round() as u64);
            let _ = writeln!(out, "throughput  {records} records/s  {mb:.2} MB/s");
        }
        let _ = writeln!(
            out,
            "records     appended {}  acked {}  failed {}  unknown {}  (warm-up included)",
            grouped(self.appended),
            grouped(self.acked),
            grouped(self.failed),
            grouped(self.unknown)
        );
        self.describe_records(&mut out);
        if self.unsent > 0 {
            let unsent = grouped(self.unsent);
            let _ = writeln!(out, "behind      {unsent} records were due and never sent");
        }
        self.describe_times(&mut out);
        self.describe_nodes(&mut out);
        out
    }

    /// Records and MB a second, 0 where nothing was measured: that reaches no floor.
    pub fn rates(&self) -> [f64; 2] {
        [self.records_per_s, self.mb_per_s].map(|rate| rate.unwrap_or(0.0))
    }

    /// A latency in milliseconds; NaN where nothing was measured: that is within no bound.
    pub fn latency_ms(&self, which: fn(&Latency) -> u64) -> f64 {
        let latency = self.latency_us.as_ref();
        latency.map_or(f64::NAN, |latency| which(latency) as f64 / 1000.0)
    }

    /// How the load ended, if that was before its time, and why there is no rate, if there is none.
    pub fn early_end(&self) -> Option<String> {
        let measured = self.load_s - self.warmup_s;
        let early = measured < self.asked_s;
        let no_rate = "so there is no rate and no latency";
        match (early, self.records_per_s) {
            (true, None) if measured <= 0.0 => Some(format!(
                "after {:.1} s, before the end of the warm-up of {} s, {no_rate}",
                self.load_s, self.warmup_s
            )),
            (true, None) => Some(format!(
                "{measured:.2} s after the warm-up, with acks over {:.2} s, {no_rate}",
                self.seconds
            )),
            (true, Some(_)) => Some(format!(
                "early, after {measured:.1} of {} s to measure",
                self.asked_s
            )),
            (false, None) => Some(format!(
                "in time, with acks over {:.2} s of {} s to measure, {no_rate}",
                self.seconds, self.asked_s
            )),
            (false, Some(_)) => None,
        }
    }

    fn describe_times(&self, out: &mut String) {
        let ms = |us: u64| us as f64 / 1000.0;
        if let Some(latency) = self.latency_us {
            for (name, us) in [
                ("p50", latency.p50),
                ("p90", latency.p90),
                ("p99", latency.p99),
                ("p99.9", latency.p999),
                ("p99.99", latency.p9999),
                ("max", latency.max),
            ] {
                let _ = writeln!(out, "latency     {name:<7} {:>10.3} ms", ms(us));
            }
        }
        let lag = self.lag_us;
        if lag.blocks == 0 {
            out.push_str("lag         not measured: no link carried a block\n");
            return;
        }
        let (p50, p95, p99) = (ms(lag.p50), ms(lag.p95), ms(lag.p99));
        let _ = writeln!(
            out,
            "lag         p50 {p50:.3} ms  p95 {p95:.3} ms  p99 {p99:.3} ms  (slowest link, {} \
             blocks)",
            grouped(lag.blocks)
        );
    }

    /// Every link with the node that leads it.
    pub fn links(&self) -> impl Iterator<Item = (u64, &LinkReport)> {
        let of = |node: &NodeReport| node.id;
        self.nodes
            .iter()
            .flat_map(move |node| node.links.iter().map(move |link| (of(node), link)))
    }

    fn describe_nodes(&self, out: &mut String) {
        for node in &self.nodes {
            let process = match (node.cpu_s, node.write_bytes, node.rss_max) {
                (Some(cpu_s), Some(written), Some(rss_max)) => format!(
                    "CPU {cpu_s:.1} s  wrote {:.1} MB  memory {:.1} MB at most",
                    written as f64 / 1e6,
                    rss_max as f64 / 1e6
                ),
                _ => "CPU, disk and memory not measured (--pids)".to_owned(),
            };
            let _ = writeln!(
                out,
                "node {:<6} {process}  encoded {}  CRC failures {}",
                node.id, node.records_encoded, node.crc_failures
            );
        }
        for (node, link) in self.links() {
            let _ = writeln!(
                out,
                "link        shard {} of node {} to node {}: {:.1} MB sent, {}",
                link.shard,
                node,
                link.peer,
                link.sent_bytes as f64 / 1e6,
                link.status
            );
        }
    }

    /// Keys and what the codec did, as far as there are any.
    fn describe_records(&self, out: &mut String) {
        if self.key_count > 0 {
            let (count, choice) = (grouped(self.key_count), &self.key_choice);
            let _ = writeln!(
                out,
                "keys        {count}, drawn {choice}, by crc32(key) % shards"
            );
        }
        if self.codec == "zstd" && self.stored_bytes > 0 {
            let (raw, stored) = (self.raw_bytes, self.stored_bytes);
            let note = match self.payload {
                Payload::Constant => "; means nothing with constant values",
                Payload::Json | Payload::Random => "",
            };
            let _ = writeln!(
                out,
                "codec       {:.1} MB packed to {:.1} MB: {:.2} x{note}",
                raw as f64 / 1e6,
                stored as f64 / 1e6,
                raw as f64 / stored as f64
            );
        }
    }

    /// Writes the JSON.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        text.push('\n');
        fs::write(path, text)
    }

    /// Reads the JSON.
    pub fn read(path: &Path) -> io::Result<Report> {
        serde_json::from_slice(&fs::read(path)?).map_err(io::Error::other)
    }
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// The number with a comma between each three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
