//! `loadgen bench`: the cases of `cases.rs`, each on a fresh cluster, as often as asked for.
//!
//! Right before and after each load the disk itself is measured, because a floor that the disk
//! cannot carry says nothing about the nodes. Several sides (`--side`, each a folder of programs)
//! take turns within a case, so that a machine that gets slower or faster meets all of them. Read
//! `cases.rs` for what a figure must reach.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use millrace::types::whole;
use serde::Serialize;

use super::cases::{CASES, Case, Run, Standing, verdict};
use super::cluster::{Cluster, PEER_PORTS, Setup};
use super::{Load, Place, disk_limit, go_on, median, say, space, write_json};
use crate::Failure;
use crate::report::grouped;
use crate::run::catch_signals;

/// Nodes of every case.
const NODES: u64 = 3;
/// Connections of every case.
const CONNECTIONS: u64 = 16;

/// Flags of `bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    #[command(flatten)]
    place: Place,
    /// Only the cases of these names, separated by commas
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Run every case so many times; the median counts
    #[arg(long, default_value_t = 1, value_parser = whole(1_u32, 100))]
    repeat: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Seconds of load before measuring
    #[arg(long, default_value_t = 5.0)]
    warmup: f64,
    /// Two sides whose rates are nearer to each other than this, in percent, do not differ
    #[arg(long, default_value_t = 5.0)]
    noise: f64,
    /// Run the same programs as two sides: what they seem to differ by is noise
    #[arg(long, conflicts_with = "side")]
    control: bool,
    /// Programs to be compared, NAME=FOLDER, in turns; instead of --bin
    #[arg(long, value_parser = parse_side)]
    side: Vec<(String, PathBuf)>,
    /// Where to write all figures
    #[arg(long)]
    json: Option<PathBuf>,
}

fn parse_side(text: &str) -> Result<(String, PathBuf), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let pair = pair.map(|(name, path)| (name.to_owned(), PathBuf::from(path)));
    pair.ok_or_else(|| "not NAME=FOLDER".to_owned())
}

/// One case of one side.
#[derive(Debug, Serialize)]
struct Row {
    case: &'static str,
    side: String,
    goal: String,
    standing: Standing,
    /// Medians of all runs, and the spread: highest less lowest, as a share of the median.
    records_per_s: f64,
    mb_per_s: f64,
    spread: f64,
    disk_share: f64,
    /// Each run in full.
    runs: Vec<Run>,
}

/// Two sides in one case.
#[derive(Debug, Serialize)]
struct Comparison {
    case: &'static str,
    first: String,
    second: String,
    /// Records a second of the second as a share of the first, turn by turn, and their median.
    ratios: Vec<f64>,
    median: f64,
    /// The noise floor as a share, and what the median comes to beside it.
    noise: f64,
    verdict: &'static str,
}

/// Runs the cases; whether every goal was reached.
pub fn bench(args: &BenchArgs) -> Result<bool, Failure> {
    let cases = chosen(&args.only)?;
    let valid = |seconds: f64| (0.0..=3600.0).contains(&seconds);
    if !valid(args.seconds) || !valid(args.warmup) || args.seconds < 1.0 {
        let text = "--seconds, --warmup: at most 3600; --seconds at least 1";
        return Err(Failure::BadInput(text.to_owned()));
    }
    let sides = sides(args)?;
    catch_signals();
    let lasts = args.seconds + args.warmup;
    let of = |case: &Case| space::written(NODES, case.record_bytes, case.rate, lasts);
    space::check(
        &args.place.work,
        NODES,
        cases.iter().map(of).max().unwrap_or(0),
    )?;
    if sides.len() > 1 {
        let (noise, repeat) = (args.noise, args.repeat);
        say(&format!(
            "before the first run: noise floor {noise} %, {repeat} runs of a side"
        ));
    }
    let (mut rows, mut comparisons) = (Vec::new(), Vec::new());
    for case in &cases {
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); sides.len()];
        for turn in 1..=args.repeat {
            for ((name, place), runs) in sides.iter().zip(&mut runs) {
                say(&format!(
                    "{:<9} {name:<12} {turn} of {}",
                    case.name, args.repeat
                ));
                let run = once(args, place, case)?;
                say(&format!("          {}", line(&run)));
                runs.push(run);
            }
        }
        comparisons.extend(compare(case, &sides, &runs, args.noise / 100.0));
        let named = sides.iter().zip(runs);
        rows.extend(named.map(|((name, _), runs)| row(case, name, runs)));
    }
    show(&rows, &comparisons)?;
    if let Some(path) = &args.json {
        let all = serde_json::json!({ "cases": rows, "comparisons": comparisons });
        write_json(path, &all)?;
    }
    Ok(rows.iter().all(|row| !row.standing.fails()))
}

fn chosen(only: &[String]) -> Result<Vec<Case>, Failure> {
    let names = || CASES.map(|case| case.name).join(", ");
    if let Some(other) = only
        .iter()
        .find(|name| CASES.iter().all(|case| case.name != *name))
    {
        let text = format!("--only {other}: no such case; there are {}", names());
        return Err(Failure::BadInput(text));
    }
    let wanted = |case: &Case| only.is_empty() || only.iter().any(|name| name == case.name);
    Ok(CASES.into_iter().filter(wanted).collect())
}

fn sides(args: &BenchArgs) -> Result<Vec<(String, Place)>, Failure> {
    if args.control {
        let same = |name: &str| Ok((name.to_owned(), args.place.checked()?));
        return ["A", "A-again"].into_iter().map(same).collect();
    }
    if args.side.is_empty() {
        return Ok(vec![("here".to_owned(), args.place.checked()?)]);
    }
    let side =
        |(name, bin): &(String, PathBuf)| Ok((name.clone(), args.place.with_bin(bin).checked()?));
    args.side.iter().map(side).collect()
}

/// One run of one case: the disk, a fresh cluster and its load, the disk again.
fn once(args: &BenchArgs, place: &Place, case: &Case) -> Result<Run, Failure> {
    let before = disk_limit(place)?;
    let setup = Setup {
        nodes: NODES as u16,
        shards: Some(NODES as u16),
        settings: case
            .settings
            .iter()
            .map(|text| (*text).to_owned())
            .collect(),
        peer_ports: if case.delay_ms > 0 { PEER_PORTS } else { 0 },
        ..Setup::default()
    };
    // JSON values, no codec and `quorum` are the defaults: naming them would shut out older
    // programs that know only these.
    let load = Load {
        record_bytes: case.record_bytes,
        batch_records: case.batch_records,
        rate: case.rate.map_or("max".to_owned(), |rate| rate.to_string()),
        connections: CONNECTIONS,
        warmup_s: args.warmup,
        seconds: args.seconds,
        more: match case.codec {
            Some(codec) => vec!["--codec".to_owned(), codec.to_owned()],
            None => Vec::new(),
        },
    };
    let base_port = setup.free_base_port()?;
    let delay = Duration::from_millis(case.delay_ms);
    let proxy = (case.delay_ms > 0).then(|| setup.proxy(base_port, delay));
    let proxy = proxy.transpose()?;
    let cluster = Cluster::up(place, &setup, base_port)?;
    let report = load.run(&cluster)?;
    cluster.stop()?;
    drop((cluster, proxy));
    go_on()?;
    let after = disk_limit(place)?;
    Ok(Run::new(report, [before, after], NODES, args.seconds))
}

fn row(case: &Case, side: &str, runs: Vec<Run>) -> Row {
    let all = |of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    let rates = all(|run| run.report.rates()[0]);
    let middle = median(&rates);
    let [lowest, highest] = [f64::min, f64::max].map(|pick| rates.iter().copied().reduce(pick));
    let spread = highest.unwrap_or(0.0) - lowest.unwrap_or(0.0);
    Row {
        case: case.name,
        side: side.to_owned(),
        goal: case.goal.text(),
        standing: overall(case, &runs),
        records_per_s: middle,
        mb_per_s: median(&all(|run| run.report.rates()[1])),
        spread: if middle > 0.0 { spread / middle } else { 0.0 },
        disk_share: median(&all(|run| run.disk_share)),
        runs,
    }
}

/// The middle of the runs' standings, best first; of an even number the worse one.
fn overall(case: &Case, runs: &[Run]) -> Standing {
    let mut standings: Vec<Standing> = runs.iter().map(|run| run.standing(case)).collect();
    standings.sort_unstable();
    standings
        .get(standings.len() / 2)
        .copied()
        .unwrap_or(Standing::Cut)
}

/// The first two sides against each other.
fn compare(
    case: &Case,
    sides: &[(String, Place)],
    runs: &[Vec<Run>],
    noise: f64,
) -> Option<Comparison> {
    let ([first, second, ..], [one, two, ..]) = (sides, runs) else {
        return None;
    };
    let rate = |run: &Run| run.report.rates()[0];
    let ratio = |(one, two): (&Run, &Run)| rate(two) / rate(one).max(1e-9);
    let ratios: Vec<f64> = one.iter().zip(two).map(ratio).collect();
    let median = median(&ratios);
    Some(Comparison {
        case: case.name,
        first: first.0.clone(),
        second: second.0.clone(),
        median,
        noise,
        verdict: verdict(median, noise),
        ratios,
    })
}

/// One run in a line.
fn line(run: &Run) -> String {
    let (report, lag) = (&run.report, run.report.lag_us);
    let ms = |us: u64| us as f64 / 1000.0;
    let [records_per_s, mb_per_s] = report.rates();
    let [before, after] = run.disk_bytes_per_s.map(|bytes| bytes / 1e6);
    format!(
        "{} records/s  {:.1} MB/s  p99 {:.1} ms  lag {:.1}/{:.1}/{:.1} ms of {} blocks  disk \
         {before:.0} and {after:.0} MB/s  x 3 / limit {:.2}",
        grouped(records_per_s.round() as u64),
        mb_per_s,
        report.latency_ms(|latency| latency.p99),
        ms(lag.p50),
        ms(lag.p95),
        ms(lag.p99),
        grouped(lag.blocks),
        run.disk_share
    )
}

/// Who used how much CPU time, and what went over which link.
pub fn links(run: &Run) -> String {
    let mut out = String::new();
    for node in &run.report.nodes {
        let cpu_s = node.cpu_s.unwrap_or(f64::NAN);
        let _ = write!(out, "  node {} CPU {cpu_s:.1} s", node.id);
        for link in &node.links {
            let mb = link.sent_bytes as f64 / 1e6;
            let (shard, peer) = (link.shard, link.peer);
            let _ = write!(out, "  shard {shard} to node {peer} {mb:.1} MB");
        }
        out.push('\n');
    }
    out
}

fn show(rows: &[Row], comparisons: &[Comparison]) -> Result<(), Failure> {
    let mut out = format!(
        "{:<9} {:<12} {:>12} {:>9} {:>7} {:>11}  {:<21} {}\n",
        "case", "side", "records/s", "MB/s", "spread", "x3 / disk", "goal", "standing"
    );
    for row in rows {
        let _ = writeln!(
            out,
            "{:<9} {:<12} {:>12} {:>9.1} {:>6.1}% {:>11.2}  {:<21} {}",
            row.case,
            row.side,
            grouped(row.records_per_s.round() as u64),
            row.mb_per_s,
            100.0 * row.spread,
            row.disk_share,
            row.goal,
            row.standing.text()
        );
    }
    for row in rows {
        // Of the last run: who used which core, and what went over which link.
        let Some(run) = row.runs.last() else { continue };
        let _ = writeln!(out, "\n{} {}: {}", row.case, row.side, line(run));
        out.push_str(&links(run));
    }
    if !comparisons.is_empty() {
        out.push('\n');
    }
    for row in comparisons {
        let turns: Vec<_> = row
            .ratios
            .iter()
            .map(|ratio| format!("{ratio:.3}"))
            .collect();
        let _ = writeln!(
            out,
            "{:<9} {} / {}: {:.3} in the median of {}: {}",
            row.case,
            row.second,
            row.first,
            row.median,
            turns.join(" "),
            row.verdict
        );
    }
    io::stdout()
        .write_all(out.as_bytes())
        .map_err(Failure::failed)
}
