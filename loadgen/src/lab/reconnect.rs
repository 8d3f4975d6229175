//! `loadgen reconnect`: the links of a cluster are cut a thousand times under load, and every
//! account of credit must come out exact.
//!
//! All nodes reach each other through a proxy, which cuts one data connection after the other. Once
//! the load has ended and no follower lacks anything, nothing is in flight: then the sender's and
//! the receiver's books of each link must say the same, and what may still be sent must be the
//! whole window; a record or byte that was ever lost or counted twice would stay in them. Read
//! `proxy.rs` for the proxy.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use millrace::types::whole;
use serde::Serialize;

use super::accounts::{self, Account};
use super::cluster::{Cluster, PEER_PORTS, Setup};
use super::{Load, Place, Running, prove, rest, say, space, write_json};
use crate::Failure;
use crate::proxy::Proxy;
use crate::report::{Report, grouped};
use crate::run::catch_signals;

/// The nodes dial again after this time at most: at the default of a second a link would be down
/// most of the time.
const BACKOFF: &str = "link.retry_backoff_ms=50";

/// Appends a second that are asked for, and that have to be acked.
const RATE: u64 = 6_000;
const RATE_LEAST: f64 = 5_000.0;
/// The longest time that a shard may go without an ack.
const GAP_MS: u64 = 5_000;
const WARMUP_S: u64 = 2;
/// How much longer than planned the cuts may take.
const PATIENCE: u32 = 3;

/// Flags of `reconnect`.
#[derive(Args, Clone, Debug)]
pub struct ReconnectArgs {
    #[command(flatten)]
    place: Place,
    /// Connections to cut
    #[arg(long, default_value_t = 1_000)]
    #[arg(value_parser = whole(1_u32, 100_000))]
    cuts: u32,
    /// Milliseconds from one cut to the next
    #[arg(long, default_value_t = 40, value_parser = whole(1_u64, 10_000))]
    every_ms: u64,
    /// Where to write all figures
    #[arg(long)]
    json: Option<PathBuf>,
}

/// All that was seen.
#[derive(Clone, Debug, Serialize)]
struct Seen {
    cuts: u64,
    asked: u64,
    accounts: Vec<Account>,
    /// Acked appends a second.
    rate: f64,
    /// By shard: the longest time without an ack, milliseconds.
    gaps_ms: Vec<u64>,
    settled: bool,
    proven: bool,
}

/// Runs it; whether everything holds.
pub fn reconnect(args: &ReconnectArgs) -> Result<bool, Failure> {
    let place = args.place.checked()?;
    let planned_s = u64::from(args.cuts) * args.every_ms / 1000 + 1;
    let lasts = planned_s + WARMUP_S + 2;
    // A record alone in its batch takes a few hundred bytes, and a block at least a page.
    space::check(
        &place.work,
        3,
        space::written(3, 4096, Some(RATE as f64), lasts as f64),
    )?;
    catch_signals();
    let setup = Setup {
        shards: Some(3),
        settings: vec![BACKOFF.to_owned()],
        peer_ports: PEER_PORTS,
        ..Setup::default()
    };
    let base_port = setup.free_base_port()?;
    let proxy = setup.proxy(base_port, Duration::ZERO)?;
    let cluster = Cluster::up(&place, &setup, base_port)?;
    let load = Load {
        record_bytes: 100,
        batch_records: 1,
        rate: RATE.to_string(),
        connections: 16,
        warmup_s: WARMUP_S as f64,
        seconds: (lasts - WARMUP_S) as f64,
        // So many may wait while a shard has no follower.
        more: ["--in-flight", "64"].map(str::to_owned).to_vec(),
    };
    let mut running = load.start(&cluster)?;
    rest(Duration::from_secs(WARMUP_S))?;
    let cuts = cut(args, &proxy, &mut running)?;
    say("waiting for the load to end and for the followers to hold all of it");
    let report = running.finish()?;
    let accounts = accounts::all(cluster.addresses())?;
    let seen = Seen {
        cuts,
        asked: u64::from(args.cuts),
        accounts,
        rate: report.rates()[0],
        gaps_ms: report.shards.iter().map(|shard| shard.gap_max_ms).collect(),
        settled: report.settled,
        proven: prove(&cluster, &report)?,
    };
    show(&seen, &report)?;
    if let Some(path) = &args.json {
        let failures = failures(&seen);
        let all = serde_json::json!({ "seen": seen, "report": report, "failures": failures });
        write_json(path, &all)?;
    }
    Ok(failures(&seen).is_empty())
}

/// Cuts the oldest data connection at a steady pace; how many there were.
fn cut(args: &ReconnectArgs, proxy: &Proxy, running: &mut Running) -> Result<u64, Failure> {
    let step = Duration::from_millis(args.every_ms);
    let until = Instant::now() + step * args.cuts * PATIENCE;
    let mut cuts = 0;
    while cuts < u64::from(args.cuts) && Instant::now() < until && !running.has_ended()? {
        rest(step)?;
        // The oldest in use: so every link has its turn.
        let oldest = proxy.links().first().map(|link| link.id);
        if oldest.is_some_and(|id| proxy.cut(id)) {
            cuts += 1;
            if cuts % 100 == 0 {
                say(&format!("{cuts} of {} connections cut", args.cuts));
            }
        }
    }
    Ok(cuts)
}

/// What does not hold, in sentences; empty if everything does.
fn failures(seen: &Seen) -> Vec<String> {
    let mut failures: Vec<String> = seen.accounts.iter().filter_map(Account::failure).collect();
    if seen.cuts < seen.asked {
        failures.push(format!(
            "{} of {} connections were cut",
            seen.cuts, seen.asked
        ));
    }
    let connections: u64 = seen
        .accounts
        .iter()
        .map(|account| account.connections)
        .sum();
    let expected = seen.cuts + seen.accounts.len() as u64;
    if connections < expected || seen.accounts.is_empty() {
        let links = seen.accounts.len();
        failures.push(format!(
            "{connections} connections of {links} links, {expected} are needed for every cut to \
             have been followed by a new one"
        ));
    }
    if seen.rate < RATE_LEAST {
        failures.push(format!(
            "{} appends/s were acked, {RATE_LEAST} are needed",
            seen.rate
        ));
    }
    for (shard, gap) in seen.gaps_ms.iter().enumerate() {
        if *gap >= GAP_MS {
            failures.push(format!("shard {shard} was without an ack for {gap} ms"));
        }
    }
    if !seen.settled {
        failures.push("a follower still lacked records a minute after the load".to_owned());
    }
    if !seen.proven {
        failures.push("the files of the nodes do not hold what was acked, see above".to_owned());
    }
    failures
}

fn show(seen: &Seen, report: &Report) -> Result<(), Failure> {
    let mut out = accounts::table(&seen.accounts);
    let gaps: Vec<_> = seen.gaps_ms.iter().map(|gap| format!("{gap} ms")).collect();
    let _ = writeln!(
        out,
        "{} connections cut; {} appends/s acked; longest time without an ack by shard: {}; unknown \
         {}, failed {}; p99 {:.1} ms",
        grouped(seen.cuts),
        grouped(seen.rate as u64),
        gaps.join(", "),
        report.unknown,
        report.failed,
        report.latency_ms(|latency| latency.p99)
    );
    let failures = failures(seen);
    for failure in &failures {
        let _ = writeln!(out, "FAILED      {failure}");
    }
    if failures.is_empty() {
        out.push_str("ok          every account is exact and every acked record is there\n");
    }
    io::stdout()
        .write_all(out.as_bytes())
        .map_err(Failure::failed)
}

#[cfg(test)]
#[path = "reconnect_tests.rs"]
mod tests;
