//! `loadgen chaos`: real nodes, real faults, and a checker that knows neither.
//!
//! Nodes run in network namespaces that `scripts/chaos` made, on small disks of their own. Clients
//! append and read while `faults.rs` disturbs one or two nodes at a time, never more than a
//! minority. Then all is healed, every log is read back from every node, the nodes are stopped and
//! their files compared. `checker.rs` judges what clients were told; here are the judgements that
//! need times: how long a shard was without an ack, and whether the cluster came to rest. Read
//! `history.rs` next.

pub mod checker;
mod faults;
mod fleet;
pub mod history;
mod load;
mod net;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use millrace::types::{ReadLevel, whole};

use super::accounts::{self, Account};
use super::{Place, rest, say};
use crate::Failure;
use crate::ledger::Ledger;
use crate::nodes;
use crate::run::catch_signals;
use crate::verify::{self, reader::Progress};
use checker::Verdict;
use faults::{Event, Faults};
use fleet::Fleet;
use history::{Cut, History, Readback};
use load::{Clients, Setting};
use net::Net;

/// Producers, and the appends a second that they make together.
const PRODUCERS: u32 = 6;
const RATE: u64 = 3_000;
const RATE_OF_CHANGES: u64 = 6_000;
/// Load before the first disturbance, and after the last.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(3);
/// How long the cluster may take to be led, and to come to rest once all is healed.
const LED: Duration = Duration::from_secs(30);
const REST: Duration = Duration::from_secs(60);
/// How long a shard may go without an ack when its leader is killed, and at any time of a run with
/// nothing but changes of leader.
const GAP_MS: u64 = 3_000;
const CHANGES_GAP_MS: u64 = 5_000;
/// Of all appends so many percent have to be acked.
const ACKED_PERCENT: u64 = 60;

/// Flags of `chaos`.
#[derive(Args, Clone, Debug)]
pub struct ChaosArgs {
    #[command(flatten)]
    place: Place,
    /// What the names of the network namespaces begin with, as scripts/chaos made them
    #[arg(long)]
    net: String,
    /// The program millrace built with the feature faults, for clocks that are wrong [default: none
    /// is]
    #[arg(long)]
    faulty: Option<PathBuf>,
    /// Seconds of disturbance
    #[arg(long, default_value_t = 60, value_parser = whole(5_u64, 86_400))]
    seconds: u64,
    /// Nodes: 3 or 5
    #[arg(long, default_value_t = 3, value_parser = whole(3_u16, 5))]
    nodes: u16,
    /// Seed of targets, times and values [default: from the clock]
    #[arg(long, value_parser = whole(0_u64, u64::MAX))]
    seed: Option<u64>,
    /// Appends a second [default: 3,000; with --leader-changes 6,000]
    #[arg(long, value_parser = whole(100_u64, 100_000))]
    rate: Option<u64>,
    /// How long a shard may go without an ack when its leader is killed, with --leader-changes at
    /// any time, milliseconds: more than the default only where the machine stands still at times
    /// [default: 3,000; with --leader-changes 5,000]
    #[arg(long, value_parser = whole(1_u64, 600_000))]
    gap_ms: Option<u64>,
    /// Nothing but so many changes of leader, every tenth by a kill, instead of --seconds
    #[arg(long, value_parser = whole(1_u32, 10_000))]
    leader_changes: Option<u32>,
}

/// All that was seen.
struct Seen {
    seed: u64,
    /// Of logs.
    shards: u16,
    /// Whether clocks could be set wrong.
    has_clocks: bool,
    /// So many times each kind of fault has to come about.
    least_of_a_kind: usize,
    /// Changes of leader that were asked for, if nothing else was.
    leader_changes: Option<u32>,
    /// How long a shard may go without an ack.
    gap_ms: u64,
    /// Appends a second that were asked for.
    rate: u64,
    /// How long there was load, microseconds.
    lasted_us: u64,
    history: History,
    events: Vec<Event>,
    flips: u64,
    /// What the checker says.
    verdict: Verdict,
    /// Whether it finds out what was changed on purpose.
    red: [(&'static str, bool); 2],
    /// What is wrong with the files of the stopped nodes, or with the end of the run.
    failures: Vec<String>,
    /// Bytes of segment files held against each other.
    compared_bytes: u64,
    /// Of credit, at the end.
    accounts: Vec<Account>,
}

/// Runs it; whether everything holds.
pub fn chaos(args: &ChaosArgs) -> Result<bool, Failure> {
    let place = args.place.checked()?;
    catch_signals();
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let clock = since.unwrap_or_default().as_micros() as u64;
    let seed = args.seed.unwrap_or(clock % 1_000_000);
    say(&format!(
        "seed {seed}, {} nodes, {} s",
        args.nodes, args.seconds
    ));
    let net = Net::new(&args.net);
    let mut fleet = Fleet::new(&place, &net, args.faulty.as_deref(), args.nodes)?;
    for node in fleet.ids() {
        fleet.start(node, None)?;
    }
    let result = disturbed(args, &place, &net, &mut fleet, seed, clock as u32);
    let seen = result.inspect_err(|_| keep_logs(&fleet))?;
    report::show(&seen)?;
    if !report::failures(&seen).is_empty() {
        keep_logs(&fleet);
    }
    Ok(report::failures(&seen).is_empty())
}

/// Appends a second, and the longest time without an ack.
fn rate_and_gap(args: &ChaosArgs) -> (u64, u64) {
    let (rate, gap_ms) = match args.leader_changes {
        None => (RATE, GAP_MS),
        Some(_) => (RATE_OF_CHANGES, CHANGES_GAP_MS),
    };
    (args.rate.unwrap_or(rate), args.gap_ms.unwrap_or(gap_ms))
}

/// In five minutes each kind of fault has its turn seven times or so.
fn least_of_a_kind(args: &ChaosArgs) -> usize {
    match args.leader_changes {
        None => (args.seconds / 60) as usize,
        Some(_) => 0,
    }
}

/// What the nodes said, for whoever looks for the reason.
fn keep_logs(fleet: &Fleet) {
    let folder = std::env::temp_dir().join(format!("chaos-logs-{}", std::process::id()));
    let copied = std::fs::create_dir_all(&folder).and_then(|()| {
        let name = |node| folder.join(format!("node-{node}.log"));
        let mut ids = fleet.ids();
        ids.try_for_each(|node| std::fs::copy(fleet.log(node), name(node)).map(drop))
    });
    match copied {
        Ok(()) => say(&format!("what the nodes said is in {}", folder.display())),
        Err(error) => say(&format!("what the nodes said is lost: {error}")),
    }
}

fn disturbed(
    args: &ChaosArgs,
    place: &Place,
    net: &Net,
    fleet: &mut Fleet,
    seed: u64,
    run: u32,
) -> Result<Seen, Failure> {
    let addresses = fleet.addresses();
    led(&addresses)?;
    let over = Arc::new(AtomicBool::new(false));
    let setting = Setting {
        addresses,
        shards: args.nodes,
        run,
        seed,
        start: Instant::now(),
        over: over.clone(),
    };
    let (rate, gap_ms) = rate_and_gap(args);
    let clients = Clients::start(&setting, PRODUCERS, rate)?;
    rest(BEFORE)?;
    let mut faults = Faults::new(fleet, net, place, seed, setting.start);
    let disturbed = match args.leader_changes {
        Some(count) => faults.change_leaders(count),
        None => faults.run(Duration::from_secs(args.seconds)),
    };
    let healed = faults.heal();
    let (events, flips) = (std::mem::take(&mut faults.events), faults.flips);
    disturbed.and(healed)?;
    rest(AFTER)?;
    over.store(true, Ordering::Relaxed);
    let lasted_us = setting.start.elapsed().as_micros() as u64;
    say("all is healed; waiting for the last answers");
    let (producers, reads) = clients.finish();
    let mut failures = Vec::new();
    if let Err(failure) = come_to_rest(fleet) {
        failures.push(failure);
    }
    let accounts = accounts::all(&setting.addresses)?;
    failures.extend(accounts.iter().filter_map(Account::failure));
    let readbacks = read_back(&setting, fleet)?;
    let history = History {
        producers,
        reads,
        readbacks,
        cuts: cuts(fleet)?,
    };
    fleet.fallen()?;
    fleet.stop()?;
    let files = verify::verify(&Ledger::default(), &fleet.data(), &Progress::default());
    let files = files.map_err(Failure::failed)?;
    failures.extend(files.findings.iter().map(ToString::to_string));
    if !files.replicas_identical {
        failures.push("the segments of the nodes differ".to_owned());
    }
    say("checking");
    Ok(Seen {
        seed,
        shards: args.nodes,
        has_clocks: fleet.has_clocks(),
        least_of_a_kind: least_of_a_kind(args),
        leader_changes: args.leader_changes,
        gap_ms,
        rate,
        lasted_us,
        accounts,
        verdict: checker::check(&history),
        red: checker::red(&history),
        history,
        events,
        flips,
        failures,
        compared_bytes: files.totals.compared_bytes,
    })
}

/// Every log from every node, at both levels; all at the same time, for small blocks are read one
/// by one.
fn read_back(setting: &Setting, fleet: &Fleet) -> Result<Vec<Readback>, Failure> {
    say("reading every log back from every node");
    let levels = [ReadLevel::Committed, ReadLevel::Local];
    let nodes = fleet
        .ids()
        .flat_map(|node| levels.map(|level| (node, level)));
    let all = (0..setting.shards).flat_map(|shard| nodes.clone().map(move |one| (shard, one)));
    thread::scope(|scope| {
        let read = |(shard, (node, level))| {
            scope.spawn(move || load::read_back(setting, node, shard, level))
        };
        let threads: Vec<_> = all.map(read).collect();
        let threads = threads.into_iter();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().expect("a panic ends the process")
        };
        threads.map(join).collect()
    })
}

/// What the nodes say that they cut.
fn cuts(fleet: &Fleet) -> Result<Vec<Cut>, Failure> {
    let mut cuts = Vec::new();
    for node in fleet.ids() {
        let said = std::fs::read_to_string(fleet.log(node)).map_err(Failure::failed)?;
        cuts.extend(said.lines().filter_map(Cut::of));
    }
    Ok(cuts)
}

fn led(addresses: &[String]) -> Result<(), Failure> {
    let late = |missing| Failure::Failed(format!("after {} s: {missing}", LED.as_secs()));
    nodes::wait_until_led(addresses, LED).map_err(late)
}

/// Every log is led, no follower lacks anything, every link replicates.
fn come_to_rest(fleet: &Fleet) -> Result<(), String> {
    let until = Instant::now() + REST;
    loop {
        let problem = unrest(fleet);
        match problem {
            None => return Ok(()),
            Some(problem) if Instant::now() >= until => {
                return Err(format!(
                    "{} s after all was healed: {problem}",
                    REST.as_secs()
                ));
            }
            Some(_) => rest(Duration::from_millis(200)).map_err(|_| "interrupted".to_owned())?,
        }
    }
}

/// What is not at rest; an account of credit that is not whole says that something is in flight.
fn unrest(fleet: &Fleet) -> Option<String> {
    let shards = fleet.ids().count();
    let mut led = 0;
    let mut links = 0;
    for node in fleet.ids() {
        let status = match fleet.status(node) {
            Ok(status) => status,
            Err(Failure::BadInput(text) | Failure::Failed(text)) => return Some(text),
        };
        led += status.leads().len();
        for link in status.links() {
            links += 1;
            if link.status != "replicating" || link.lag_records > 0 {
                return Some(format!(
                    "shard {} of node {node} to node {}: {}, {} records behind",
                    link.shard, link.peer, link.status, link.lag_records
                ));
            }
        }
    }
    let expected = shards * (shards - 1);
    let accounts = accounts::all(&fleet.addresses()).unwrap_or_default();
    if let Some(failure) = accounts.iter().find_map(Account::failure) {
        return Some(failure);
    }
    (led != shards || links != expected)
        .then(|| format!("{led} of {shards} logs are led, with {links} of {expected} links"))
}
