//! The cases of `bench`: what is run, and what it must reach.
//!
//! Three nodes with their defaults on one machine, level `quorum`, JSON values, no codec but for
//! the case `1k-zstd`, which is `1k` with batches that the client packs. A floor is a rate of a
//! closed loop. Where the disk is slower than the floor needs, the floor counts as met if the nodes
//! use at least half of what the disk can do: every byte is written three times. A goal is the
//! replication lag of an open loop (S-156; over an emulated WAN of 30 ms there and back S-157).
//! Pure: numbers in, judgement out. Read `bench.rs` for who runs them.

use serde::{Deserialize, Serialize};

use crate::report::{Report, grouped};

/// Share of the disk's limit from which on a missed floor counts as met.
const DISK_SHARE: f64 = 0.5;

/// How far an open loop's achieved rate may be off.
const RATE_SHARE: f64 = 0.01;

/// How much of the measured time a load must have lasted: less, and it met a full disk.
const TIME_SHARE: f64 = 0.9;

/// What a case must reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Nothing: it is only shown.
    Shown,
    /// Acked records a second.
    Records(f64),
    /// Acked bytes / 10^6 a second.
    Megabytes(f64),
    /// The rate asked for, with a replication lag of at most p50, p95 and p99 milliseconds.
    Lag([f64; 3]),
}

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name for `--only`.
    pub name: &'static str,
    /// Bytes of a value.
    pub record_bytes: u64,
    /// Records in a batch.
    pub batch_records: u64,
    /// Records a second; a closed loop if none.
    pub rate: Option<f64>,
    /// What the client packs its batches with, if it does.
    pub codec: Option<&'static str>,
    /// Settings that are not the nodes' defaults.
    pub settings: &'static [&'static str],
    /// How late each direction between two nodes is; 0: as on loopback.
    pub delay_ms: u64,
    /// What it must reach.
    pub goal: Goal,
}

const fn closed(name: &'static str, record_bytes: u64, batch_records: u64, goal: Goal) -> Case {
    Case {
        name,
        record_bytes,
        batch_records,
        rate: None,
        codec: None,
        settings: &[],
        delay_ms: 0,
        goal,
    }
}

const fn open(name: &'static str, settings: &'static [&'static str], goal: Goal) -> Case {
    Case {
        name,
        record_bytes: 100,
        batch_records: 100,
        rate: Some(50_000.0),
        codec: None,
        settings,
        delay_ms: 0,
        goal,
    }
}

/// Every case, in the order in which they run.
pub const CASES: [Case; 8] = [
    closed("100b", 100, 100, Goal::Records(400_000.0)),
    closed("1k", 1024, 100, Goal::Records(120_000.0)),
    Case {
        codec: Some("zstd"),
        ..closed("1k-zstd", 1024, 100, Goal::Shown)
    },
    closed("16k", 16_384, 8, Goal::Megabytes(200.0)),
    closed("single", 100, 1, Goal::Shown),
    open("open", &[], Goal::Lag([5.0, 15.0, 30.0])),
    open("shanghai", &["link.preset=shanghai"], Goal::Shown),
    Case {
        rate: Some(5_000.0),
        delay_ms: 15,
        ..open("wan", &["link.preset=wan"], Goal::Lag([50.0, 150.0, 300.0]))
    },
];

/// What came of a case once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Of the load.
    pub report: Report,
    /// What the disk could do before and after, bytes a second.
    pub disk_bytes_per_s: [f64; 2],
    /// Acked bytes x 3 as a share of the mean of the two.
    pub disk_share: f64,
    /// Seconds asked for.
    pub seconds: f64,
}

/// What the rates of two sides come to: `median` is the second's as a share of the first's. Within
/// the noise floor, a share written down before the run, there is no difference.
pub fn verdict(median: f64, noise: f64) -> &'static str {
    if (median - 1.0).abs() <= noise {
        "no difference"
    } else if median > 1.0 {
        "faster"
    } else {
        "slower"
    }
}

/// How a run stands to its goal, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// No goal.
    Shown,
    /// Reached.
    Met,
    /// Not reached, but half of the disk's limit is.
    MetByDisk,
    /// Not reached.
    Missed,
    /// The load did not last: the disk was full, or it was ended.
    Cut,
}

impl Standing {
    /// Whether the case counts as failed.
    pub fn fails(self) -> bool {
        matches!(self, Standing::Missed | Standing::Cut)
    }

    /// In the table.
    pub fn text(self) -> &'static str {
        match self {
            Standing::Shown => "shown",
            Standing::Met => "met",
            Standing::MetByDisk => "met: half of the disk's limit is used",
            Standing::Missed => "MISSED",
            Standing::Cut => "CUT SHORT: does not count",
        }
    }
}

impl Run {
    /// A load between two measurements of the disk.
    pub fn new(report: Report, disk_bytes_per_s: [f64; 2], nodes: u64, seconds: f64) -> Run {
        let limit = f64::midpoint(disk_bytes_per_s[0], disk_bytes_per_s[1]);
        let written = report.rates()[1] * 1e6 * nodes as f64;
        Run {
            disk_share: if limit > 0.0 { written / limit } else { 0.0 },
            report,
            disk_bytes_per_s,
            seconds,
        }
    }

    /// How it stands to the goal of its case.
    pub fn standing(&self, case: &Case) -> Standing {
        if self.report.seconds < TIME_SHARE * self.seconds {
            return Standing::Cut;
        }
        let lag = self.report.lag_us;
        let [records_per_s, mb_per_s] = self.report.rates();
        let off = |rate: f64| (records_per_s - rate).abs() / rate;
        let (reached, by_disk) = match case.goal {
            Goal::Shown => return Standing::Shown,
            Goal::Records(floor) => (records_per_s >= floor, true),
            Goal::Megabytes(floor) => (mb_per_s >= floor, true),
            Goal::Lag(goals_ms) => {
                let seen = [lag.p50, lag.p95, lag.p99].map(|us| us as f64 / 1000.0);
                let within = seen.iter().zip(goals_ms).all(|(seen, goal)| *seen <= goal);
                let kept = case.rate.is_none_or(|rate| off(rate) <= RATE_SHARE);
                (within && kept && lag.blocks > 0, false)
            }
        };
        match (reached, by_disk && self.disk_share >= DISK_SHARE) {
            (true, _) => Standing::Met,
            (false, true) => Standing::MetByDisk,
            (false, false) => Standing::Missed,
        }
    }
}

impl Goal {
    /// In the table.
    pub fn text(self) -> String {
        match self {
            Goal::Shown => "-".to_owned(),
            Goal::Records(floor) => format!(">= {} records/s", grouped(floor as u64)),
            Goal::Megabytes(floor) => format!(">= {floor} MB/s"),
            Goal::Lag([p50, p95, p99]) => format!("lag <= {p50}/{p95}/{p99} ms"),
        }
    }
}

#[cfg(test)]
#[path = "cases_tests.rs"]
mod tests;
