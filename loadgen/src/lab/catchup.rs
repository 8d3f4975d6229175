//! `loadgen catchup`: what a full catch-up costs those who append meanwhile.
//!
//! One shard under an even load at a share of what it could take. In turn, a window with all nodes
//! up, and one in which a follower whose disk was emptied is brought up; a pair's ratio of p99s is
//! told, and the median of all pairs judged. A window counts only if the follower still lacked
//! something at its end. The log is bounded, so that every catch-up is of about the same length.
//! Read `stall.rs` for the other experiment with a follower.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use millrace::types::whole;
use serde::Serialize;

use super::cluster::{Cluster, Setup};
use super::{Load, Place, go_on, median, say, space, write_json};
use crate::Failure;
use crate::nodes::NodeStatus;
use crate::report::grouped;
use crate::run::catch_signals;

/// The node that leads the only shard, and the one that is emptied.
const LEADER: u64 = 1;
const EMPTIED: u64 = 3;
/// What a catch-up may do to the p99 of appends.
const MOST_RATIO: f64 = 2.0;
/// Bytes of the log that are kept: more than a window's worth at any pace worth setting.
const KEPT_BYTES: u64 = 3 << 30;
/// How long the load fills the log, and shows what it can take.
const FILL_S: f64 = 15.0;
/// How long a catch-up may take.
const LONGEST: Duration = Duration::from_secs(300);

/// Flags of `catchup`.
#[derive(Args, Clone, Debug)]
pub struct CatchupArgs {
    #[command(flatten)]
    place: Place,
    /// Pairs of windows
    #[arg(long, default_value_t = 5, value_parser = whole(1_u64, 50))]
    pairs: u64,
    /// Seconds of a window
    #[arg(long, default_value_t = 10, value_parser = whole(3_u64, 600))]
    seconds: u64,
    /// Percent of the highest rate that the load runs at
    #[arg(long, default_value_t = 20, value_parser = whole(1_u64, 90))]
    percent: u64,
    /// Pace of the follower, bytes a second (link.catch_up_bytes_per_s); default: the node's
    #[arg(long)]
    pace: Option<u64>,
    /// Where to write all figures
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One pair of windows.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pair {
    /// p99 of appends with all nodes up, milliseconds.
    alone_ms: f64,
    /// The same beside a catch-up.
    beside_ms: f64,
    /// Bytes a second that the follower took in during the window.
    caught_bytes_per_s: f64,
    /// How long the whole catch-up took, seconds.
    took_s: f64,
}

/// Runs it; whether the median of the ratios is within the bound.
pub fn catchup(args: &CatchupArgs) -> Result<bool, Failure> {
    let place = args.place.checked()?;
    // The files of three nodes, and those that a follower had before.
    space::check(&place.work, 3, 4 * KEPT_BYTES)?;
    catch_signals();
    let mut settings = vec![
        "log.retention=\"fifo\"".to_owned(),
        format!("log.retention_bytes={KEPT_BYTES}"),
    ];
    settings.extend(
        args.pace
            .map(|pace| format!("link.catch_up_bytes_per_s={pace}")),
    );
    let setup = Setup {
        shards: Some(1),
        settings,
        ..Setup::default()
    };
    let cluster = Cluster::up(&place, &setup, setup.free_base_port()?)?;
    say("filling the log, as fast as it goes");
    let mut most = f64::INFINITY;
    while log_bytes(&cluster)? < KEPT_BYTES * 9 / 10 {
        let report = load("max".to_owned(), FILL_S, 60).run(&cluster)?;
        most = most.min(report.records_per_s.unwrap_or_default());
    }
    let rate = (most * args.percent as f64 / 100.0).max(100.0);
    let rate = format!("{rate:.0}");
    say(&format!(
        "{most:.0} records of 1 KiB a second at most; load: {rate}"
    ));
    let mut pairs = Vec::new();
    for number in 1..=args.pairs {
        let pair = pair(args, &cluster, &rate)?;
        say(&line(number, &pair));
        pairs.push(pair);
    }
    let ratios: Vec<f64> = pairs.iter().map(Pair::ratio).collect();
    let holds = median(&ratios) <= MOST_RATIO;
    show(args, &rate, &pairs, median(&ratios), holds)?;
    if let Some(path) = &args.json {
        let all = serde_json::json!({ "rate": rate, "pairs": pairs, "median": median(&ratios) });
        write_json(path, &all)?;
    }
    Ok(holds)
}

fn load(rate: String, seconds: f64, settle_s: u64) -> Load {
    Load {
        record_bytes: 1024,
        batch_records: 100,
        rate,
        connections: 16,
        warmup_s: 2.0,
        seconds,
        more: vec!["--settle".to_owned(), settle_s.to_string()],
    }
}

fn pair(args: &CatchupArgs, cluster: &Cluster, rate: &str) -> Result<Pair, Failure> {
    let window = |settle_s| load(rate.to_owned(), args.seconds as f64, settle_s);
    let alone = window(60).run(cluster)?;
    let aside = cluster.restart_emptied(EMPTIED)?;
    let began = Instant::now();
    while lacks(cluster)?.is_none_or(|records| records == 0) {
        patient(began, "the emptied follower is not brought up")?;
    }
    let before = held(cluster)?;
    let window_began = Instant::now();
    let beside = window(0).run(cluster)?;
    let (caught, lasted) = (held(cluster)? - before, window_began.elapsed());
    fs::remove_dir_all(&aside).map_err(Failure::failed)?;
    if lacks(cluster)? == Some(0) {
        let text = "the catch-up was over before the window: set a lower --pace or fewer --seconds";
        return Err(Failure::failed(text));
    }
    while lacks(cluster)? != Some(0) {
        patient(began, "the catch-up does not end")?;
    }
    Ok(Pair {
        alone_ms: alone.latency_ms(|latency| latency.p99),
        beside_ms: beside.latency_ms(|latency| latency.p99),
        caught_bytes_per_s: caught as f64 / lasted.as_secs_f64(),
        took_s: began.elapsed().as_secs_f64(),
    })
}

fn patient(began: Instant, what: &str) -> Result<(), Failure> {
    go_on()?;
    if began.elapsed() > LONGEST {
        return Err(Failure::failed(format!("{what} within {LONGEST:?}")));
    }
    thread::sleep(Duration::from_millis(200));
    Ok(())
}

/// Records that the emptied follower lacks, as the leader sees it; none while there is no link.
fn lacks(cluster: &Cluster) -> Result<Option<u64>, Failure> {
    let status = ask(cluster, LEADER)?;
    let links = status.links();
    let link = links.iter().find(|link| link.peer == EMPTIED);
    let connected = link.filter(|link| link.status != "disconnected");
    Ok(connected.map(|link| link.lag_records))
}

/// Bytes of blocks that the emptied follower took in on its connection.
fn held(cluster: &Cluster) -> Result<u64, Failure> {
    Ok(ask(cluster, EMPTIED)?.granted_used_bytes())
}

fn ask(cluster: &Cluster, node: u64) -> Result<NodeStatus, Failure> {
    NodeStatus::ask(&cluster.addresses()[node as usize - 1]).map_err(Failure::failed)
}

/// Bytes of the leader's segment files.
fn log_bytes(cluster: &Cluster) -> Result<u64, Failure> {
    let mut bytes = 0;
    let logs = fs::read_dir(&cluster.data()[LEADER as usize - 1]).map_err(Failure::failed)?;
    for log in logs {
        let path = log.map_err(Failure::failed)?.path();
        let is_log = path.join("checkpoint").is_file();
        for file in fs::read_dir(&path).into_iter().flatten().filter(|_| is_log) {
            // A file may be trimmed meanwhile.
            bytes += file
                .and_then(|file| file.metadata())
                .map_or(0, |found| found.len());
        }
    }
    Ok(bytes)
}

impl Pair {
    fn ratio(&self) -> f64 {
        self.beside_ms / self.alone_ms.max(0.001)
    }
}

fn line(number: u64, pair: &Pair) -> String {
    format!(
        "{number:>4} {:>10.1} {:>10.1} {:>7.2} {:>12.1} {:>8.1}",
        pair.alone_ms,
        pair.beside_ms,
        pair.ratio(),
        pair.caught_bytes_per_s / 1e6,
        pair.took_s
    )
}

fn show(
    args: &CatchupArgs,
    rate: &str,
    pairs: &[Pair],
    median: f64,
    holds: bool,
) -> Result<(), Failure> {
    let mut out = format!(
        "{:>4} {:>10} {:>10} {:>7} {:>12} {:>8}\n",
        "pair", "p99 ms", "beside ms", "ratio", "caught MB/s", "took s"
    );
    for (number, pair) in (1..).zip(pairs) {
        let _ = writeln!(out, "{}", line(number, pair));
    }
    let rate = rate.parse().unwrap_or_default();
    let _ = writeln!(
        out,
        "{} records of 1 KiB a second ({} percent of the most), windows of {} s: the median ratio \
         of {} pairs is {median:.2} (at most {MOST_RATIO})",
        grouped(rate),
        args.percent,
        args.seconds,
        pairs.len()
    );
    out.push_str(match holds {
        true => "ok          a catch-up leaves live appends within twice their p99\n",
        false => "FAILED      a catch-up slows live appends too much: set a lower pace\n",
    });
    let done = io::stdout().write_all(out.as_bytes());
    done.map_err(Failure::failed)
}
