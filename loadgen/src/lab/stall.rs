//! `loadgen stall`: a follower is stopped under load, and what that costs everybody else is shown.
//!
//! One shard, so that the stopped node leads nothing. The leader's memory may grow by no more than
//! the link's credit and some room, the link must say within seconds that it does not replicate,
//! the other follower must carry the load, and once the stopped one goes on it must catch up to the
//! same bytes. The stopped process is started again however the experiment ends. Read
//! `reconnect.rs` next.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use millrace::limits::INITIAL_CREDIT_BYTES;
use millrace::types::whole;
use serde::Serialize;

use super::cluster::{Cluster, Setup};
use super::{Load, Place, prove, rest, say, space, write_json};
use crate::Failure;
use crate::nodes::{NodeStatus, Process};
use crate::report::{Report, grouped};
use crate::run::catch_signals;

/// The node that leads the only shard, and the follower that is stopped.
const LEADER: u64 = 1;
const STOPPED: u64 = 3;

/// What the leader's memory may grow by besides the credit of the link.
const MORE_BYTES: u64 = 16 << 20;
/// How long the link may still say that it replicates.
const TOLD_WITHIN_S: u64 = 10;
/// Share of the rate before that is to be acked while the follower is stopped.
const RATE_SHARE: f64 = 0.8;
/// Seconds of load before the stop that count, and after the follower goes on.
const BEFORE_S: u64 = 10;
const AFTER_S: u64 = 10;
const WARMUP_S: u64 = 3;

/// Flags of `stall`.
#[derive(Args, Clone, Debug)]
pub struct StallArgs {
    #[command(flatten)]
    place: Place,
    /// Seconds that the follower is stopped
    #[arg(long, default_value_t = 60, value_parser = whole(12_u64, 3600))]
    seconds: u64,
    /// Records of 1 KiB a second
    #[arg(long, default_value_t = 50_000)]
    #[arg(value_parser = whole(100_u64, 1_000_000))]
    rate: u64,
    /// Bytes of the log that each node keeps, its oldest segments going first [default: all]
    #[arg(long, value_parser = whole(256_u64 << 20, u64::MAX))]
    retention: Option<u64>,
    /// Where to write all figures
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One second of the stop.
#[derive(Clone, Debug, Serialize)]
struct Second {
    /// Since the stop.
    second: u64,
    /// Resident memory of the leader, bytes.
    rss: u64,
    /// Status of the link to the stopped follower.
    status: String,
    /// Records that it lacks.
    lag_records: u64,
}

/// All that was seen.
#[derive(Clone, Debug, Serialize)]
struct Seen {
    /// Resident memory of the leader at the stop, bytes.
    rss_at_stop: u64,
    seconds: Vec<Second>,
    /// Acked records a second before the stop, and during it.
    rates: [f64; 2],
    /// Whether no follower lacked anything at the end.
    settled: bool,
    /// What the files of all nodes say.
    proven: bool,
}

/// Runs it; whether everything holds.
pub fn stall(args: &StallArgs) -> Result<bool, Failure> {
    let place = args.place.checked()?;
    let lasts = WARMUP_S + BEFORE_S + args.seconds + AFTER_S;
    let written = space::written(3, 1024, Some(args.rate as f64), lasts as f64);
    let kept = args
        .retention
        .map_or(written, |bytes| written.min(3 * bytes));
    space::check(&place.work, 3, kept)?;
    catch_signals();
    let retention = args.retention.map(|bytes| {
        let bytes = format!("log.retention_bytes={bytes}");
        vec!["log.retention=fifo".to_owned(), bytes]
    });
    let setup = Setup {
        shards: Some(1),
        settings: retention.unwrap_or_default(),
        ..Setup::default()
    };
    let cluster = Cluster::up(&place, &setup, setup.free_base_port()?)?;
    let acks = cluster.dir().join("run.acks");
    let load = Load {
        record_bytes: 1024,
        batch_records: 100,
        rate: args.rate.to_string(),
        connections: 16,
        warmup_s: WARMUP_S as f64,
        seconds: (lasts - WARMUP_S) as f64,
        more: vec!["--acks".to_owned(), acks.display().to_string()],
    };
    let running = load.start(&cluster)?;
    let began_ms = wall_ms() + WARMUP_S * 1000;
    rest(Duration::from_secs(WARMUP_S + BEFORE_S))?;
    let (stopped_ms, rss_at_stop, seconds) = watch_stopped(&cluster, args.seconds)?;
    let resumed_ms = wall_ms();
    say("follower goes on; waiting for the load to end and for the followers to hold all of it");
    let report = running.finish()?;
    let text = fs::read_to_string(&acks).map_err(Failure::failed)?;
    let rate = |from, to| rate_between(&text, from, to);
    let seen = Seen {
        rss_at_stop,
        seconds,
        rates: [rate(began_ms, stopped_ms), rate(stopped_ms, resumed_ms)],
        settled: report.settled,
        proven: prove(&cluster, &report)?,
    };
    show(args, &seen, &report)?;
    if let Some(path) = &args.json {
        let failures = failures(&seen);
        let all = serde_json::json!({ "seen": seen, "report": report, "failures": failures });
        write_json(path, &all)?;
    }
    Ok(failures(&seen).is_empty())
}

/// A process that stands still, until the value is dropped.
struct Stopped(u32);

impl Stopped {
    fn stop(pid: u32) -> Result<Stopped, Failure> {
        signal(pid, libc::SIGSTOP)?;
        Ok(Stopped(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // An error means that it is gone.
        let _ = signal(self.0, libc::SIGCONT);
    }
}

fn signal(pid: u32, number: libc::c_int) -> Result<(), Failure> {
    // SAFETY: the pid is that of a node started for this experiment.
    let result = unsafe { libc::kill(pid as libc::pid_t, number) };
    if result == 0 {
        return Ok(());
    }
    Err(Failure::failed(io::Error::last_os_error()))
}

/// Stops the follower for so many seconds; when that was, the leader's memory then, every second.
fn watch_stopped(cluster: &Cluster, seconds: u64) -> Result<(u64, u64, Vec<Second>), Failure> {
    let (leader, follower) = (cluster.pid(LEADER)?, cluster.pid(STOPPED)?);
    let rss_at_stop = rss(leader)?;
    let stopped = Stopped::stop(follower)?;
    let (stopped_ms, start) = (wall_ms(), Instant::now());
    say(&format!(
        "follower {STOPPED}, pid {follower}, is stopped for {seconds} s"
    ));
    let mut all = Vec::new();
    for second in 1..=seconds {
        let due = start + Duration::from_secs(second);
        rest(due.saturating_duration_since(Instant::now()))?;
        let row = look(&cluster.addresses()[LEADER as usize - 1], leader, second)?;
        say(&line(&row, rss_at_stop));
        all.push(row);
    }
    drop(stopped);
    Ok((stopped_ms, rss_at_stop, all))
}

fn look(address: &str, leader: u32, second: u64) -> Result<Second, Failure> {
    let status = NodeStatus::ask(address).map_err(Failure::failed)?;
    let links = status.links();
    let link = links.iter().find(|link| link.peer == STOPPED);
    let link = link.ok_or_else(|| Failure::failed("the leader shows no link to the follower"))?;
    Ok(Second {
        second,
        rss: rss(leader)?,
        status: link.status.clone(),
        lag_records: link.lag_records,
    })
}

fn rss(pid: u32) -> Result<u64, Failure> {
    let process = Process::read(pid).map_err(Failure::failed)?;
    Ok(process.rss)
}

/// What does not hold, in sentences; empty if everything does.
fn failures(seen: &Seen) -> Vec<String> {
    let mut failures = Vec::new();
    let most = seen.rss_at_stop + INITIAL_CREDIT_BYTES + MORE_BYTES;
    if let Some(row) = seen.seconds.iter().find(|row| row.rss > most) {
        failures.push(format!(
            "after {} s the leader's memory is {} bytes, above {} (at the stop) + {} (credit) + {}",
            row.second,
            grouped(row.rss),
            grouped(seen.rss_at_stop),
            grouped(INITIAL_CREDIT_BYTES),
            grouped(MORE_BYTES)
        ));
    }
    let told = |row: &Second| matches!(row.status.as_str(), "waiting_for_credit" | "disconnected");
    match seen.seconds.iter().find(|row| told(row)) {
        Some(row) if row.second <= TOLD_WITHIN_S => {}
        found => {
            let when = found.map_or("never".to_owned(), |row| format!("after {} s", row.second));
            let text = "the link says waiting_for_credit or disconnected";
            failures.push(format!("{text} {when}, not within {TOLD_WITHIN_S} s"));
        }
    }
    let [before, during] = seen.rates;
    if during < RATE_SHARE * before || before <= 0.0 {
        failures.push(format!(
            "{} records/s were acked during the stop, {} before: below {RATE_SHARE}",
            grouped(during as u64),
            grouped(before as u64)
        ));
    }
    if !seen.settled {
        failures.push("a follower still lacked records a minute after the load".to_owned());
    }
    if !seen.proven {
        failures.push("the files of the nodes do not hold what was acked, see above".to_owned());
    }
    failures
}

fn line(row: &Second, rss_at_stop: u64) -> String {
    format!(
        "{:>6} {:>12.1} {:>+12.1}  {:<20} {:>14}",
        row.second,
        row.rss as f64 / 1e6,
        row.rss as f64 / 1e6 - rss_at_stop as f64 / 1e6,
        row.status,
        grouped(row.lag_records)
    )
}

fn show(args: &StallArgs, seen: &Seen, report: &Report) -> Result<(), Failure> {
    let mut out = format!(
        "{:>6} {:>12} {:>12}  {:<20} {:>14}\n",
        "s", "leader MB", "since stop", "link", "lag records"
    );
    for row in &seen.seconds {
        let _ = writeln!(out, "{}", line(row, seen.rss_at_stop));
    }
    let grown = seen
        .seconds
        .iter()
        .map(|row| row.rss.saturating_sub(seen.rss_at_stop));
    let [before, during] = seen.rates;
    let _ = writeln!(
        out,
        "{} s stopped at {} records of 1 KiB a second: the leader grew by {:.1} MB at most \
         (allowed: {:.1}); acked {} records/s before, {} meanwhile ({:.0} percent); p99 {:.1} ms; \
         {}",
        args.seconds,
        grouped(args.rate),
        grown.max().unwrap_or(0) as f64 / 1e6,
        (INITIAL_CREDIT_BYTES + MORE_BYTES) as f64 / 1e6,
        grouped(before as u64),
        grouped(during as u64),
        100.0 * during / before.max(1.0),
        report.latency_ms(|latency| latency.p99),
        if seen.settled {
            "lag 0 at the end"
        } else {
            "LAG AT THE END"
        }
    );
    let failures = failures(seen);
    for failure in &failures {
        let _ = writeln!(out, "FAILED      {failure}");
    }
    if failures.is_empty() {
        out.push_str("ok          a stopped follower costs its credit and nothing else\n");
    }
    io::stdout()
        .write_all(out.as_bytes())
        .map_err(Failure::failed)
}

/// Acked records a second between two times, from the lines of `--acks`.
fn rate_between(text: &str, from_ms: u64, to_ms: u64) -> f64 {
    let line = |line: &str| {
        let mut numbers = line.split(' ').map(|number| number.parse::<u64>().ok());
        let at = numbers.next()??;
        Some((at, numbers.flatten().sum::<u64>()))
    };
    let within = text.lines().filter_map(line);
    let mut within = within.filter(|(at, _)| (from_ms..=to_ms).contains(at));
    let Some(first) = within.next() else {
        return 0.0;
    };
    let last = within.next_back().unwrap_or(first);
    let seconds = (last.0 - first.0) as f64 / 1000.0;
    if seconds > 0.0 {
        (last.1 - first.1) as f64 / seconds
    } else {
        0.0
    }
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
#[path = "stall_tests.rs"]
mod tests;
