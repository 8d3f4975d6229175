//! The command line: flags in, exit code out.
//!
//! Exit codes are those of the engine's own tools: 0 it holds, 1 it does not, 2 bad input, told in
//! one line that names the flag and the mend. No logic here: each command is a module. Read
//! `run.rs` next.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use millrace::types::whole;

use crate::Failure;
use crate::lab;
use crate::lab::bench::{self, BenchArgs};
use crate::lab::catchup::{self, CatchupArgs};
use crate::lab::chaos::{self, ChaosArgs};
use crate::lab::reconnect::{self, ReconnectArgs};
use crate::lab::stall::{self, StallArgs};
use crate::lab::sweep::{self, SweepArgs};
use crate::ledger::Ledger;
use crate::nodes;
use crate::proxy::{Proxy, Route, Trouble};
use crate::report::Report;
use crate::run::{self, RunArgs};
use crate::summary;
use crate::tamper::{self, Change, TamperError};
use crate::verify::{self, reader::Progress};
use crate::writelog::WriteLog;

/// How long the lock of a data directory may outlive its node.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Load generator and verifier for millrace.
#[derive(Parser, Debug)]
#[command(name = "loadgen", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Write to a cluster, measure, and keep a ledger of every batch
    Run(Box<RunArgs>),
    /// Prove from the files of stopped nodes that a ledger's acked records are there
    Verify(VerifyArgs),
    /// Damage a copy of a node's directory, to see that verify notices
    Tamper(TamperArgs),
    /// Wait until every shard has a leader that takes appends
    Wait(WaitArgs),
    /// Run the cases that have a floor, each on a fresh cluster of three nodes
    Bench(Box<BenchArgs>),
    /// Try every combination of some settings, each on a fresh cluster
    Sweep(Box<SweepArgs>),
    /// Stop a follower of a fresh cluster under load and judge what that costs
    Stall(StallArgs),
    /// Cut the links of a fresh cluster under load and hold every account of credit against it
    Reconnect(ReconnectArgs),
    /// Empty a follower's disk again and again and judge what its catch-up costs live appends
    Catchup(CatchupArgs),
    /// Disturb nodes in network namespaces under load and judge what clients were told
    Chaos(ChaosArgs),
    /// Stand between nodes: delay their connections, or cut them
    Proxy(ProxyArgs),
    /// Make the disk that a loss of power leaves, from the log of what was written to it
    Cut(CutArgs),
    /// Put a run and its verification together; exit 0 only if everything holds
    Summary(SummaryArgs),
}

#[derive(Args, Debug)]
struct VerifyArgs {
    /// The ledger that run wrote
    #[arg(long)]
    ledger: PathBuf,
    /// Data directories of the stopped nodes, separated by commas
    #[arg(long, required = true, value_delimiter = ',')]
    data: Vec<PathBuf>,
    /// Only the first so many acked records count as acked, the outcome of the others as unknown
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true,
        value_parser = whole(0, u64::MAX))]
    acked: u64,
    /// Where to write the verdict
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("change").required(true))]
struct TamperArgs {
    /// A copy of a node's data directory
    #[arg(long)]
    data: PathBuf,
    /// Flip one bit of a record
    #[arg(long, group = "change")]
    flip: bool,
    /// Take a record out; every CRC and chain behind it is made sound again
    #[arg(long, group = "change")]
    remove: bool,
    /// Exchange two records; every CRC and chain behind them is made sound again
    #[arg(long, group = "change")]
    swap: bool,
    /// In the log of this shard [default: the first that has such a record]
    #[arg(long, value_parser = whole(0, u16::MAX))]
    shard: Option<u16>,
}

#[derive(Args, Debug)]
struct CutArgs {
    /// What QEMU's blklogwrites, or Linux's dm-log-writes, wrote
    #[arg(long)]
    log: PathBuf,
    /// The disk before the first write; without it the entries and the ends of flushes are told
    #[arg(long, requires = "image", requires = "at")]
    base: Option<PathBuf>,
    /// The disk to make
    #[arg(long, requires = "base")]
    image: Option<PathBuf>,
    /// The power is lost at this byte of the log
    #[arg(long, requires = "base", value_parser = whole(0, u64::MAX))]
    at: Option<u64>,
    /// Let chance drop or tear what no flush covers
    #[arg(long, requires = "base", value_parser = whole(0, u64::MAX))]
    seed: Option<u64>,
}

#[derive(Args, Debug)]
struct WaitArgs {
    /// Base addresses of all nodes, host:port, separated by commas
    #[arg(long, required = true, value_delimiter = ',')]
    nodes: Vec<String>,
    /// Give up after so many seconds
    #[arg(long, default_value_t = 30, value_parser = whole(0, u64::MAX))]
    seconds: u64,
}

#[derive(Args, Debug)]
struct ProxyArgs {
    /// Where to listen and whom to reach there, ADDRESS=ADDRESS, separated by commas
    #[arg(long, required = true, value_delimiter = ',', value_parser = parse_route)]
    route: Vec<Route>,
    /// How late each direction of a connection between nodes is, milliseconds
    #[arg(long, default_value_t = 0, value_parser = whole(0, 3_600_000))]
    delay_ms: u64,
    /// Cut the oldest data connection between nodes every so many milliseconds
    #[arg(long, value_parser = whole(1, 3_600_000))]
    cut_every_ms: Option<u64>,
}

fn parse_route(text: &str) -> Result<Route, String> {
    let pair = text.split_once('=');
    let route = pair.and_then(|(listen, target)| {
        Some(Route {
            listen: listen.parse().ok()?,
            target: target.parse().ok()?,
        })
    });
    route.ok_or_else(|| "not ADDRESS=ADDRESS, for example 127.0.0.1:7250=127.0.0.1:7200".to_owned())
}

#[derive(Args, Debug)]
struct SummaryArgs {
    /// The report that run wrote
    #[arg(long)]
    run: PathBuf,
    /// The verdict that verify wrote
    #[arg(long)]
    verify: PathBuf,
    /// Where to write the report with the verdict in it
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Runs the command that the process was called with.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Verify(args) => verify(&args),
        Command::Tamper(args) => tamper(&args),
        Command::Wait(args) => wait(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Sweep(args) => sweep::sweep(&args),
        Command::Chaos(args) => chaos::chaos(&args),
        Command::Stall(args) => stall::stall(&args),
        Command::Reconnect(args) => reconnect::reconnect(&args),
        Command::Catchup(args) => catchup::catchup(&args),
        Command::Proxy(args) => proxy(&args),
        Command::Cut(args) => cut(&args),
        Command::Summary(args) => summary(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            let (code, text) = match failure {
                Failure::Failed(text) => (1, text),
                Failure::BadInput(text) => (2, text),
            };
            let _ = writeln!(io::stderr(), "loadgen: {text}");
            ExitCode::from(code)
        }
    }
}

fn verify(args: &VerifyArgs) -> Result<bool, Failure> {
    args.data.iter().try_for_each(|data| refuse_running(data))?;
    let ledger = Ledger::read_until(&args.ledger, args.acked);
    let ledger =
        ledger.map_err(|error| Failure::BadInput(format!("{}: {error}", args.ledger.display())))?;
    refuse_bad_data(&args.data)?;
    let verdict = verify::verify(&ledger, &args.data, &Progress::default());
    let verdict = verdict.map_err(Failure::failed)?;
    if let Some(path) = &args.json {
        summary::write_verdict(path, &verdict)
            .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
    }
    print(&verdict.text())?;
    Ok(verdict.holds())
}

/// A node that runs changes its files under the eyes of the verifier; it holds the lock there. The
/// kernel lets go of it a little after a node's end, once its ring is gone.
fn refuse_running(data: &Path) -> Result<(), Failure> {
    let Ok(lock) = File::open(data.join("lock")) else {
        return Ok(());
    };
    let began = Instant::now();
    while let Err(TryLockError::WouldBlock) = lock.try_lock() {
        if began.elapsed() > LOCK_PATIENCE {
            return Err(Failure::BadInput(format!(
                "{}: a node runs on this directory; mend: stop it first",
                data.display()
            )));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Directories that are there, each once: a node held against itself proves nothing.
fn refuse_bad_data(all: &[PathBuf]) -> Result<(), Failure> {
    let mut places: Vec<(PathBuf, &PathBuf)> = Vec::new();
    for data in all {
        let name = data.display();
        let bad = |text: String| Err(Failure::BadInput(format!("--data {name}: {text}")));
        let Some(place) = data.canonicalize().ok().filter(|place| place.is_dir()) else {
            return bad("no such directory".to_owned());
        };
        // A data directory and the `data` in it are one node.
        let inner = place.join("data");
        let place = if inner.is_dir() { inner } else { place };
        if let Some((_, other)) = places.iter().find(|(known, _)| *known == place) {
            let other = other.display();
            return bad(format!(
                "the same directory as {other}; name each node's once"
            ));
        }
        places.push((place, data));
    }
    Ok(())
}

fn tamper(args: &TamperArgs) -> Result<bool, Failure> {
    let (change, what) = match (args.flip, args.remove) {
        (true, _) => (Change::Flip, "flipped a bit of"),
        (_, true) => (Change::Remove, "removed"),
        _ => (Change::Swap, "exchanged with the one before it"),
    };
    match tamper::tamper(&args.data, change, args.shard) {
        Ok(place) => {
            let optional = |number: Option<u64>| number.unwrap_or(0);
            print(&format!(
                "{what} the record at {} position {} block {} offset {} producer {} sequence {}\n",
                place.file,
                optional(place.position),
                optional(place.block),
                optional(place.offset),
                place.producer.unwrap_or(0),
                place.sequence.unwrap_or(0)
            ))?;
            Ok(true)
        }
        Err(TamperError::Nothing) => {
            let text = "--data: no log has such a record in a batch without a codec; write more to \
                        it before";
            Err(Failure::BadInput(text.to_owned()))
        }
        Err(TamperError::Io(error)) => Err(Failure::failed(error)),
    }
}

fn cut(args: &CutArgs) -> Result<bool, Failure> {
    let bad = |error| Failure::BadInput(format!("{}: {error}", args.log.display()));
    let log = WriteLog::open(&args.log).map_err(bad)?;
    let (Some(base), Some(image), Some(at)) = (&args.base, &args.image, args.at) else {
        let flushes = log.flushes().map(|end| format!("flush {end}\n"));
        let end = log.entries.last().map_or(0, |last| last.end);
        let text: String = flushes.collect();
        print(&format!("{text}entries {} end {end}\n", log.entries.len()))?;
        return Ok(true);
    };
    let cut = log.cut(base, image, at, args.seed);
    let cut = cut.map_err(|error| Failure::Failed(format!("{}: {error}", image.display())))?;
    print(&format!(
        "durable {} kept {} torn {} dropped {}\n",
        cut.durable, cut.kept, cut.torn, cut.dropped
    ))?;
    Ok(true)
}

fn wait(args: &WaitArgs) -> Result<bool, Failure> {
    let led = nodes::wait_until_led(&args.nodes, Duration::from_secs(args.seconds));
    let late = |missing| Failure::Failed(format!("after {} s: {missing}", args.seconds));
    led.map(|()| true).map_err(late)
}

/// Stands between the nodes until a signal comes.
fn proxy(args: &ProxyArgs) -> Result<bool, Failure> {
    crate::run::catch_signals();
    let trouble = Trouble {
        delay: Duration::from_millis(args.delay_ms),
        ..Trouble::default()
    };
    let proxy = Proxy::start(&args.route, trouble);
    let proxy = proxy.map_err(|error| Failure::BadInput(format!("--route {error}")))?;
    let mut cuts = 0_u64;
    let step = Duration::from_millis(args.cut_every_ms.unwrap_or(100));
    while lab::rest(step).is_ok() {
        let oldest = proxy.links().first().map(|link| link.id);
        if args.cut_every_ms.is_some() && oldest.is_some_and(|id| proxy.cut(id)) {
            cuts += 1;
        }
    }
    print(&format!(
        "{} bytes passed on, {cuts} connections cut\n",
        proxy.bytes()
    ))?;
    Ok(true)
}

fn summary(args: &SummaryArgs) -> Result<bool, Failure> {
    let bad = |path: &PathBuf, error| Failure::BadInput(format!("{}: {error}", path.display()));
    let mut report = Report::read(&args.run).map_err(|error| bad(&args.run, error))?;
    let verdict = summary::read_verdict(&args.verify).map_err(|error| bad(&args.verify, error))?;
    print(&summary::text(&report, &verdict))?;
    let holds = summary::failures(&report, &verdict).is_empty();
    report.verify = Some(verdict);
    if let Some(path) = &args.json {
        report
            .write(path)
            .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
    }
    Ok(holds)
}

fn print(text: &str) -> Result<(), Failure> {
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(Failure::failed)
}
