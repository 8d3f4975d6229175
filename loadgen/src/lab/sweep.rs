//! `loadgen sweep`: a grid of settings, a fresh cluster and a short load for each point of it.
//!
//! Every combination of the values named is tried in turn; what the nodes refuse is a row that says
//! so. The answer is the fastest point whose p99 latency is within the bound. The whole is bounded
//! in time: a grid that cannot be done in it is refused before anything starts. Read `bench.rs` for
//! figures that are meant to be compared between machines.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use millrace::types::whole;
use serde::Serialize;

use super::cluster::{Cluster, Setup};
use super::{Load, Place, say, space, write_json};
use crate::Failure;
use crate::report::{Report, grouped};
use crate::run::catch_signals;

/// Seconds that a point takes besides its load: start, leaders, settling, stop.
const AROUND_S: f64 = 8.0;

/// Flags of `sweep`. Lists are separated by commas; what is not named stays as it is.
#[derive(Args, Clone, Debug)]
pub struct SweepArgs {
    #[command(flatten)]
    place: Place,
    /// Cores of each node (cores.count)
    #[arg(long, value_delimiter = ',', value_parser = whole(0, u16::MAX))]
    cores: Vec<u16>,
    /// Records in a client's batch
    #[arg(long, value_delimiter = ',', value_parser = whole(0, u64::MAX))]
    batch_records: Vec<u64>,
    /// Bytes at which a block closes (log.max_block_bytes)
    #[arg(long, value_delimiter = ',', value_parser = whole(0, u64::MAX))]
    batch_bytes: Vec<u64>,
    /// Longest wait in the open block, milliseconds (log.batch_timeout_ms)
    #[arg(long, value_delimiter = ',', value_parser = whole(0, u64::MAX))]
    batch_timeout: Vec<u64>,
    /// Writes of one log in flight (log.write_depth)
    #[arg(long, value_delimiter = ',', value_parser = whole(0, u64::MAX))]
    write_depth: Vec<u64>,
    /// Nodes of each cluster
    #[arg(long, default_value_t = 3, value_parser = whole(1_u16, 9))]
    nodes: u16,
    /// Shards of each cluster [default: the number of nodes]
    #[arg(long, value_parser = whole(0, u16::MAX))]
    shards: Option<u16>,
    /// Bytes of a record's value
    #[arg(long, default_value_t = 100, value_parser = whole(0, u64::MAX))]
    record_bytes: u64,
    /// Records a second (open loop), or max (closed loop)
    #[arg(long, default_value = "max")]
    rate: crate::schedule::Rate,
    /// Connections
    #[arg(long, default_value_t = 16, value_parser = whole(0, u64::MAX))]
    connections: u64,
    /// Seconds to measure each point
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds of load before measuring
    #[arg(long, default_value_t = 2.0)]
    warmup: f64,
    /// Further settings of every point, section.key=value
    #[arg(long)]
    set: Vec<String>,
    /// The fastest point is looked for among those with at most this p99 latency, milliseconds
    #[arg(long, default_value_t = 50.0)]
    p99_ms: f64,
    /// Seconds that the whole may take
    #[arg(long, default_value_t = 900, value_parser = whole(0, u64::MAX))]
    limit_s: u64,
    /// Where to write all figures
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One point of the grid; none where the default stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Point {
    cores: Option<u64>,
    batch_records: Option<u64>,
    batch_bytes: Option<u64>,
    batch_timeout_ms: Option<u64>,
    write_depth: Option<u64>,
}

/// What came of a point.
#[derive(Clone, Debug, Serialize)]
struct Row {
    point: Point,
    /// The load's report; none if the nodes or the load refused the point.
    report: Option<Report>,
    /// Why there is none.
    refused: String,
}

impl Row {
    fn p99_ms(&self) -> Option<f64> {
        let report = self.report.as_ref()?;
        Some(report.latency_ms(|latency| latency.p99))
    }
}

/// Runs the grid; whether a point within the bound was found.
pub fn sweep(args: &SweepArgs) -> Result<bool, Failure> {
    let grid = grid(args);
    let lasts = args.seconds + args.warmup;
    let valid = |seconds: f64| (0.0..=3600.0).contains(&seconds);
    if !valid(args.seconds) || !valid(args.warmup) || args.seconds <= 0.0 {
        let text = "--seconds, --warmup: at most 3600; --seconds above 0";
        return Err(Failure::BadInput(text.to_owned()));
    }
    let whole = grid.len() as f64 * (lasts + AROUND_S);
    if whole > args.limit_s as f64 {
        return Err(Failure::BadInput(format!(
            "--limit-s {}: {} points take about {whole:.0} s; raise it, or name fewer values",
            args.limit_s,
            grid.len()
        )));
    }
    let place = args.place.checked()?;
    let rate = match args.rate {
        crate::schedule::Rate::Max => None,
        crate::schedule::Rate::Records(rate) => Some(rate),
    };
    let nodes = u64::from(args.nodes);
    let written = space::written(nodes, args.record_bytes, rate, lasts);
    space::check(&place.work, nodes, written)?;
    catch_signals();
    let until = Instant::now() + Duration::from_secs(args.limit_s);
    let mut rows = Vec::new();
    for (index, point) in grid.iter().enumerate() {
        if Instant::now() >= until {
            say(&format!(
                "{} s are over: the rest is left out",
                args.limit_s
            ));
            break;
        }
        say(&format!(
            "{} of {}: {}",
            index + 1,
            grid.len(),
            point.text()
        ));
        let row = measure(args, &place, *point)?;
        say(&format!("  {}", row.text()));
        rows.push(row);
    }
    let best = fastest(&rows, args.p99_ms);
    show(&rows, best, args)?;
    if let Some(path) = &args.json {
        let all = serde_json::json!({
            "rows": rows,
            "p99_bound_ms": args.p99_ms,
            "fastest": best.map(|index| &rows[index]),
        });
        write_json(path, &all)?;
    }
    Ok(best.is_some())
}

/// Every combination of the values named.
fn grid(args: &SweepArgs) -> Vec<Point> {
    let mut grid = vec![Point::default()];
    let cores: Vec<u64> = args.cores.iter().map(|cores| u64::from(*cores)).collect();
    let mut cross = |values: &[u64], set: fn(&mut Point, u64)| {
        if values.is_empty() {
            return;
        }
        let with = |point: &Point| {
            let point = *point;
            values.iter().map(move |value| {
                let mut point = point;
                set(&mut point, *value);
                point
            })
        };
        grid = grid.iter().flat_map(with).collect();
    };
    cross(&cores, |point, value| point.cores = Some(value));
    cross(&args.batch_records, |point, value| {
        point.batch_records = Some(value)
    });
    cross(&args.batch_bytes, |point, value| {
        point.batch_bytes = Some(value)
    });
    cross(&args.batch_timeout, |point, value| {
        point.batch_timeout_ms = Some(value)
    });
    cross(&args.write_depth, |point, value| {
        point.write_depth = Some(value)
    });
    grid
}

/// One point on a cluster of its own.
fn measure(args: &SweepArgs, place: &Place, point: Point) -> Result<Row, Failure> {
    let keys = [
        ("log.max_block_bytes", point.batch_bytes),
        ("log.batch_timeout_ms", point.batch_timeout_ms),
        ("log.write_depth", point.write_depth),
    ];
    let named = keys
        .iter()
        .filter_map(|(key, value)| Some(format!("{key}={}", (*value)?)));
    let setup = Setup {
        nodes: args.nodes,
        shards: args.shards,
        cores: point.cores.unwrap_or(1) as u16,
        settings: named.chain(args.set.iter().cloned()).collect(),
        peer_ports: 0,
    };
    let load = Load {
        record_bytes: args.record_bytes,
        batch_records: point.batch_records.unwrap_or(100),
        rate: args.rate.to_string(),
        connections: args.connections,
        warmup_s: args.warmup,
        seconds: args.seconds,
        more: Vec::new(),
    };
    let run = || {
        let cluster = Cluster::up(place, &setup, setup.free_base_port()?)?;
        let report = load.run(&cluster)?;
        cluster.stop()?;
        Ok(report)
    };
    let (report, refused) = match run() {
        Ok(report) => (Some(report), String::new()),
        // A combination that contradicts itself is a result; anything else ends the sweep.
        Err(Failure::BadInput(text)) => (None, text),
        Err(failure) => return Err(failure),
    };
    Ok(Row {
        point,
        report,
        refused,
    })
}

/// The row with the most records a second among those within the bound.
fn fastest(rows: &[Row], p99_ms: f64) -> Option<usize> {
    let within = |row: &Row| row.p99_ms().is_some_and(|p99| p99 <= p99_ms);
    let rate = |row: &Row| row.report.as_ref().map_or(0.0, |report| report.rates()[0]);
    let rows = rows.iter().enumerate().filter(|(_, row)| within(row));
    let best = rows.max_by(|(_, one), (_, two)| rate(one).total_cmp(&rate(two)));
    best.map(|(index, _)| index)
}

impl Point {
    fn fields(&self) -> [(&'static str, Option<u64>); 5] {
        [
            ("cores", self.cores),
            ("batch-records", self.batch_records),
            ("batch-bytes", self.batch_bytes),
            ("batch-timeout", self.batch_timeout_ms),
            ("write-depth", self.write_depth),
        ]
    }

    fn text(&self) -> String {
        let fields = self.fields().into_iter();
        let named = fields.filter_map(|(name, value)| Some(format!("{name} {}", value?)));
        let text = named.collect::<Vec<_>>().join(", ");
        if text.is_empty() {
            "defaults".to_owned()
        } else {
            text
        }
    }
}

impl Row {
    fn text(&self) -> String {
        let Some(report) = &self.report else {
            return format!("refused: {}", self.refused);
        };
        let [records_per_s, mb_per_s] = report.rates();
        format!(
            "{} records/s  {mb_per_s:.1} MB/s  p50 {:.1} ms  p99 {:.1} ms",
            grouped(records_per_s.round() as u64),
            report.latency_ms(|latency| latency.p50),
            report.latency_ms(|latency| latency.p99)
        )
    }
}

fn show(rows: &[Row], best: Option<usize>, args: &SweepArgs) -> Result<(), Failure> {
    let mut out = String::new();
    for (name, _) in Point::default().fields() {
        let _ = write!(out, "{name:>14}");
    }
    out.push_str("  result\n");
    for (index, row) in rows.iter().enumerate() {
        for (_, value) in row.point.fields() {
            let value = value.map_or("-".to_owned(), |value| value.to_string());
            let _ = write!(out, "{value:>14}");
        }
        let mark = if best == Some(index) {
            "  <- fastest"
        } else {
            ""
        };
        let _ = writeln!(out, "  {}{mark}", row.text());
    }
    let bound = args.p99_ms;
    let _ = match best {
        Some(index) => writeln!(
            out,
            "fastest within a p99 of {bound} ms: {}: {}",
            rows[index].point.text(),
            rows[index].text()
        ),
        None => writeln!(out, "no point keeps a p99 of {bound} ms"),
    };
    io::stdout()
        .write_all(out.as_bytes())
        .map_err(Failure::failed)
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
