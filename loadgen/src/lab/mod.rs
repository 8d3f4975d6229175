//! Experiments on clusters of real processes on this machine: `bench` and `sweep` measure, `stall`,
//! `reconnect` and `catchup` disturb and judge.
//!
//! Owns what they share: where the programs are, a cluster that goes away however the experiment
//! ends, one load, the space that it needs, the limit of the disk. Nothing here measures anything
//! itself: nodes and load are processes of their own, started through `scripts/cluster` and `run`,
//! so that a figure is what a user would see. Read `cluster.rs` next.

pub mod accounts;
pub mod bench;
pub mod cases;
pub mod catchup;
pub mod chaos;
pub mod child;
pub mod cluster;
pub mod reconnect;
pub mod space;
pub mod stall;
pub mod sweep;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;

use crate::Failure;
use crate::driver::INTERRUPTED;
use crate::ledger::Ledger;
use crate::report::Report;
use crate::summary;
use crate::verify::{self, reader::Progress};
use child::Child;
use cluster::Cluster;

/// How long a load may take beyond its own time: connecting, settling, writing the ledger.
const LOAD_GRACE: Duration = Duration::from_secs(120);

/// Seconds of one measurement of the disk.
const DISK_SECONDS: u64 = 3;

/// Where an experiment finds its programs and puts its files.
#[derive(Args, Clone, Debug)]
pub struct Place {
    /// The script that starts and stops clusters
    #[arg(long, default_value = "scripts/cluster")]
    pub cluster: PathBuf,
    /// The folder with the programs millrace and loadgen
    #[arg(long, default_value = "target/release")]
    pub bin: PathBuf,
    /// An existing folder on the disk to be used; what is made in it is removed
    #[arg(long)]
    pub work: PathBuf,
}

impl Place {
    /// With whole paths; refused if something is not there.
    pub fn checked(&self) -> Result<Place, Failure> {
        let whole = |flag: &str, path: &Path| {
            let found = std::fs::canonicalize(path);
            found.map_err(|error| Failure::BadInput(format!("{flag} {}: {error}", path.display())))
        };
        for program in ["millrace", "loadgen"] {
            whole("--bin", &self.bin.join(program))?;
        }
        Ok(Place {
            cluster: whole("--cluster", &self.cluster)?,
            bin: whole("--bin", &self.bin)?,
            work: whole("--work", &self.work)?,
        })
    }

    /// The same with other programs.
    pub fn with_bin(&self, bin: &Path) -> Place {
        Place {
            bin: bin.to_owned(),
            ..self.clone()
        }
    }
}

/// One load as `run` takes it.
#[derive(Clone, Debug)]
pub struct Load {
    /// Bytes of a record's value.
    pub record_bytes: u64,
    /// Records in a batch.
    pub batch_records: u64,
    /// `max`, or records a second.
    pub rate: String,
    /// Connections.
    pub connections: u64,
    /// Before measuring.
    pub warmup_s: f64,
    /// Of measuring.
    pub seconds: f64,
    /// Further flags of `run`.
    pub more: Vec<String>,
}

/// A load on its way.
pub struct Running {
    child: Child,
    json: PathBuf,
}

impl Load {
    /// Starts it against a cluster.
    pub fn start(&self, cluster: &Cluster) -> Result<Running, Failure> {
        let json = cluster.dir().join("run.json");
        let mut command = Command::new(cluster.place().bin.join("loadgen"));
        command
            .args(["run", "--nodes", &cluster.addresses().join(",")])
            .args(["--pids", &cluster.pids()?])
            .args(["--record-bytes", &self.record_bytes.to_string()])
            .args(["--batch-records", &self.batch_records.to_string()])
            .args(["--rate", &self.rate])
            .args(["--connections", &self.connections.to_string()])
            .args(["--warmup", &self.warmup_s.to_string()])
            .args(["--seconds", &self.seconds.to_string()])
            .arg("--ledger")
            .arg(cluster.ledger())
            .arg("--json")
            .arg(&json)
            .arg("--disk")
            .arg(cluster.dir())
            .args(&self.more);
        let limit = Duration::from_secs_f64(self.warmup_s + self.seconds) + LOAD_GRACE;
        let child = Child::start(&mut command, cluster.dir(), "load", limit)?;
        Ok(Running { child, json })
    }

    /// Runs it to its end.
    pub fn run(&self, cluster: &Cluster) -> Result<Report, Failure> {
        self.start(cluster)?.finish()
    }
}

impl Running {
    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> Result<bool, Failure> {
        self.child.has_ended()
    }

    /// Waits for its end; the report, or what it said instead.
    pub fn finish(self) -> Result<Report, Failure> {
        let ended = self.child.wait()?;
        match ended.code {
            0 => Report::read(&self.json).map_err(Failure::failed),
            2 => Err(Failure::BadInput(ended.last_line())),
            _ => Err(Failure::Failed(ended.tail(5))),
        }
    }
}

/// What three writers reach together on the disk of `work`, bytes a second.
pub fn disk_limit(place: &Place) -> Result<f64, Failure> {
    let mut command = Command::new(place.bin.join("millrace"));
    command
        .args(["check", "--disk", "--json"])
        .args(["--seconds", &DISK_SECONDS.to_string()])
        .arg("--data-dir")
        .arg(&place.work);
    let limit = Duration::from_secs(DISK_SECONDS + 60);
    let ended = Child::start(&mut command, &place.work, "disk", limit)?.wait()?;
    let said: Option<Value> = serde_json::from_str(&ended.stdout).ok();
    let total = said.and_then(|said| said["disk"]["total_bytes_per_s"].as_f64());
    total.ok_or_else(|| Failure::Failed(format!("millrace check --disk: {}", ended.tail(5))))
}

/// Stops the nodes and holds their files against the ledger of the load; what is wrong is printed.
pub fn prove(cluster: &Cluster, report: &Report) -> Result<bool, Failure> {
    cluster.stop()?;
    let ledger = Ledger::read(&cluster.ledger()).map_err(Failure::failed)?;
    let verdict = verify::verify(&ledger, &cluster.data(), &Progress::default());
    let verdict = verdict.map_err(Failure::failed)?;
    let failures = summary::failures(report, &verdict);
    say(verdict.text().trim_end());
    failures.iter().for_each(|failure| say(failure));
    Ok(failures.is_empty())
}

/// Writes the figures of an experiment.
pub fn write_json(path: &Path, all: &Value) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(all).map_err(Failure::failed)? + "\n";
    let place = |error| Failure::Failed(format!("{}: {error}", path.display()));
    std::fs::write(path, text).map_err(place)
}

/// A line of progress; a closed stderr is no reason to stop.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Sleeps in steps; ends early with an error when a signal came.
pub fn rest(time: Duration) -> Result<(), Failure> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        go_on()?;
        let left = until.saturating_duration_since(Instant::now());
        thread::sleep(left.min(Duration::from_millis(50)));
    }
    go_on()
}

/// Fails once a signal asked for the end.
pub fn go_on() -> Result<(), Failure> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        return Err(Failure::Failed("interrupted".to_owned()));
    }
    Ok(())
}

/// The middle of the numbers, or the mean of the middle two; 0 of none.
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
#[path = "../lab_tests.rs"]
mod tests;
