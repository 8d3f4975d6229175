//! `millrace append`: lines of standard input to records, in order, each once.
//!
//! A batch closes when it is full or when no further line has come for the linger time. The order
//! of lines is the order of offsets, and a later line never stands where an earlier one is missing:
//! after the first that failed or is unknown nothing more is sent. What is left of the input is
//! counted as failed. A signal ends the reading, not what is in flight: that gets a moment, then
//! all is counted. Batches, retries and connections are the client's, see `client/producing.rs`;
//! lines are read by `lines.rs`.

use super::lines::{Line, Lines, Next};
use super::{Failure, MS_MOST, node_address};
use clap::{Args, ValueEnum};
use millrace::client::driver::blocking::{Pending, Producer};
use millrace::client::driver::{Ack, ClientError, ProducerConfig};
use millrace::client::{Codec, Failure as Refused, NewRecord};
use millrace::types::{Level, whole};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often outcomes are looked at while no line comes.
const LOOK: Duration = Duration::from_millis(5);
/// How often a signal is looked for while nothing is in flight.
const IDLE: Duration = Duration::from_millis(50);
/// How long what is in flight gets after a signal.
const GRACE: Duration = Duration::from_secs(2);
/// What a command that was interrupted ends with, as shells have it.
const INTERRUPTED_CODE: u8 = 130;
/// How long the rest of the input is waited for, once it can only be counted.
const REST: Duration = Duration::from_secs(1);

/// Arguments of `append`.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Any node of the cluster.
    #[arg(long, value_name = "HOST:PORT", value_parser = node_address)]
    node: String,
    /// The shard.
    #[arg(long, default_value_t = 0, value_parser = whole(0, u16::MAX))]
    shard: u16,
    /// The key of all records; it says which shard they go to.
    #[arg(long, conflicts_with = "shard")]
    key: Option<String>,
    /// When a batch counts as done: local, leader or quorum; default: as the node says.
    #[arg(long)]
    level: Option<String>,
    /// How long one batch may take, milliseconds.
    #[arg(long, default_value_t = 10_000, value_parser = whole(1_u32, u32::MAX))]
    timeout_ms: u32,
    /// How batches are stored.
    #[arg(long, value_enum, default_value_t = Stored::None)]
    codec: Stored,
    /// Records of a batch at most.
    #[arg(long, default_value_t = 1000, value_parser = whole(1_u32, u32::MAX))]
    batch_records: u32,
    /// How long a batch waits for further lines, milliseconds.
    #[arg(long, default_value_t = 1, value_parser = whole(0, MS_MOST))]
    linger_ms: u64,
    /// Batches in flight at most; never more than 5 of one shard.
    #[arg(long, default_value_t = 8, value_parser = whole(1_u32, 64))]
    in_flight: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Stored {
    /// As they are.
    None,
    /// Compressed.
    Zstd,
}

/// What came of all records.
#[derive(Debug, Default)]
struct Counts {
    records: u64,
    failed: u64,
    unknown: u64,
    why: Option<String>,
}

impl Counts {
    fn take(&mut self, outcome: Result<Ack, ClientError>) {
        match outcome {
            Ok(ack) => {
                self.records += 1;
                if ack.offset == ack.batch {
                    self.print(&ack);
                }
            }
            Err(error) => {
                let count = if error.is_unknown() {
                    &mut self.unknown
                } else {
                    &mut self.failed
                };
                *count += 1;
                // That a record was not sent says less than why the one before it failed.
                let behind = matches!(error, ClientError::Failed(Refused::Stopped));
                if !behind {
                    self.why.get_or_insert(error.to_string());
                }
            }
        }
    }

    fn print(&mut self, ack: &Ack) {
        match writeln!(io::stdout(), "{} {}", ack.shard, ack.offset) {
            Ok(()) => {}
            // Whoever reads the offsets does not have all of them.
            Err(error) => {
                self.why.get_or_insert(format!("standard output: {error}"));
            }
        }
    }

    fn any_bad(&self) -> bool {
        self.failed + self.unknown > 0 || self.why.is_some()
    }

    /// All of it in one line; `rest` says what is to be said of lines not counted.
    fn told(&self, rest: &str) -> String {
        let Counts {
            records,
            failed,
            unknown,
            why,
        } = self;
        let why = why.as_deref().unwrap_or("see above");
        format!("{records} records appended, {failed} failed{rest}, {unknown} unknown: {why}")
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let producer = Producer::connect([&arguments.node[..]], &config(arguments)?)?;
    let shards = producer.cluster().leaders.len();
    if usize::from(arguments.shard) >= shards {
        let shard = arguments.shard;
        let text = format!("--shard {shard}: must be below {shards}; mend: choose another one");
        return Err(Failure::Input(text));
    }
    // A batch holds its records and more.
    let most = producer.cluster().max_batch_bytes as usize;
    catch_signals();
    let lines = Lines::of_standard_input(most);
    let mut counts = Counts::default();
    let waiting = send_lines(arguments, &producer, &lines, &mut counts);
    // Ends the wait of all that are left.
    let closing = thread::spawn(move || producer.close());
    wait_for_rest(waiting, &mut counts);
    if is_interrupted() {
        counts.why.get_or_insert("interrupted".to_owned());
        let rest = " (what the input still had was not sent)";
        eprintln!("millrace: {}", counts.told(rest));
        return Ok(ExitCode::from(INTERRUPTED_CODE));
    }
    let mut rest = "";
    // Also if every batch was appended: a line was left out, or an offset could not be said.
    if counts.any_bad() && !count_rest(&lines, &mut counts) {
        rest = " (and what the input still brings)";
    }
    if counts.any_bad() {
        return Err(Failure::Failed(counts.told(rest)));
    }
    // Every outcome is there: this ends the connections.
    let _ = closing.join();
    Ok(ExitCode::SUCCESS)
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// From now on the first SIGINT or SIGTERM asks for the end; a second one ends the process.
fn catch_signals() {
    extern "C" fn interrupt(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the struct is integers and a set of bits; the handler does nothing but store to
        // an atomic.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = interrupt as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Takes the outcomes that are still to come: after a signal, those of a moment only.
fn wait_for_rest(mut waiting: VecDeque<Pending>, counts: &mut Counts) {
    let mut until = None;
    while let Some(pending) = waiting.front() {
        if let Some(outcome) = pending.poll() {
            waiting.pop_front();
            counts.take(outcome);
            continue;
        }
        if is_interrupted() && *until.get_or_insert(Instant::now() + GRACE) <= Instant::now() {
            counts.unknown += waiting.len() as u64;
            return;
        }
        thread::sleep(LOOK);
    }
}

fn config(arguments: &Arguments) -> Result<ProducerConfig, Failure> {
    let timeout = Duration::from_millis(arguments.timeout_ms.into());
    let config = ProducerConfig::new()
        .timeout(timeout)
        .connect_timeout(timeout)
        .linger(Duration::from_millis(arguments.linger_ms))
        .max_batch_records(arguments.batch_records)
        .max_in_flight(arguments.in_flight as usize)
        .codec(match arguments.codec {
            Stored::None => Codec::None,
            Stored::Zstd => Codec::Zstd,
        })
        .stop_at_failure();
    let Some(name) = arguments.level.as_deref() else {
        return Ok(config);
    };
    match Level::from_name(name) {
        Some(level) => Ok(config.level(level)),
        None => Err(Failure::Input(format!(
            "--level {name}: must be local, leader or quorum; mend: name one"
        ))),
    }
}

/// Sends lines until the input ends or something fails; what has no outcome yet.
fn send_lines(
    arguments: &Arguments,
    producer: &Producer,
    lines: &Lines,
    counts: &mut Counts,
) -> VecDeque<Pending> {
    let mut waiting: VecDeque<Pending> = VecDeque::new();
    let mut number = 0_u64;
    loop {
        // In the order of the lines, which is the order of the outcomes of one shard.
        while let Some(outcome) = waiting.front().and_then(Pending::poll) {
            waiting.pop_front();
            counts.take(outcome);
        }
        if counts.any_bad() || is_interrupted() {
            return waiting;
        }
        let line = match lines.next(if waiting.is_empty() { IDLE } else { LOOK }) {
            Next::Line(Line::Whole(line)) => line,
            Next::Line(Line::TooLong { most }) => {
                counts.failed += 1;
                counts.why.get_or_insert(format!(
                    "line {} has more than {most} bytes, which no batch here holds; \
                     mend: make it smaller or raise link.max_batch_bytes on all nodes",
                    number + 1
                ));
                return waiting;
            }
            Next::Line(Line::Failed(error)) => {
                counts.why.get_or_insert(format!("standard input: {error}"));
                return waiting;
            }
            Next::Waiting => continue,
            Next::End => return waiting,
        };
        number += 1;
        let len = line.len();
        let record = match &arguments.key {
            Some(key) => NewRecord::new(line).key(key.as_bytes()),
            None => NewRecord::new(line).shard(arguments.shard),
        };
        match producer.send(record) {
            Ok(pending) => waiting.push_back(pending),
            Err(error @ ClientError::Failed(Refused::TooLarge { .. })) => {
                counts.failed += 1;
                let why = format!("line {number} has {len} bytes: {error}");
                counts.why.get_or_insert(why);
            }
            Err(error) => counts.take(Err(error)),
        }
    }
}

/// Counts the lines that were not sent; false if the input has not ended by then.
fn count_rest(lines: &Lines, counts: &mut Counts) -> bool {
    let mut until = Instant::now() + REST;
    loop {
        match lines.next(until.saturating_duration_since(Instant::now())) {
            Next::Line(line) => {
                counts.failed += u64::from(!matches!(line, Line::Failed(_)));
                until = Instant::now() + REST;
            }
            Next::End => return true,
            Next::Waiting if is_interrupted() || Instant::now() >= until => return false,
            Next::Waiting => {}
        }
    }
}
