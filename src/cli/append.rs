//! `millrace append`: lines of standard input to records, in order, each once.
//!
//! A batch closes when it is full or when no further line has come for the linger time. The order
//! of lines is the order of offsets, and a later line never stands where an earlier one is missing:
//! after the first that failed or is unknown nothing more is sent. What is left of the input is
//! counted as failed. Batches, retries and connections are the client's, see `client/producing.rs`.

use super::{Failure, MS_MOST, node_address};
use clap::{Args, ValueEnum};
use millrace::client::driver::blocking::{Pending, Producer};
use millrace::client::driver::{Ack, ClientError, ProducerConfig};
use millrace::client::{Codec, Failure as Refused, NewRecord};
use millrace::types::{Level, whole};
use std::collections::VecDeque;
use std::io::{self, BufRead, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that wait for a batch.
const LINES: usize = 4096;
/// How often outcomes are looked at while no line comes.
const LOOK: Duration = Duration::from_millis(5);
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
            // A reader that has gone away wants no more offsets; the records still count.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) => {
                self.why.get_or_insert(format!("standard output: {error}"));
            }
        }
    }

    fn any_bad(&self) -> bool {
        self.failed + self.unknown > 0 || self.why.is_some()
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
    let (sender, lines) = sync_channel(LINES);
    thread::spawn(move || read_lines(&sender));
    let mut counts = Counts::default();
    let mut rest_is_known = true;
    let waiting = send_lines(arguments, &producer, &lines, &mut counts);
    // Ends the wait of all that are left.
    producer.close();
    for pending in waiting {
        counts.take(pending.wait());
    }
    // Also if every batch was appended: a line was left out, or an offset could not be said.
    if counts.any_bad() {
        rest_is_known = count_rest(&lines, &mut counts);
    }
    if !counts.any_bad() {
        return Ok(ExitCode::SUCCESS);
    }
    let Counts {
        records,
        failed,
        unknown,
        ref why,
    } = counts;
    let why = why.as_deref().unwrap_or("see above");
    let rest = if rest_is_known {
        ""
    } else {
        " (and what the input still brings)"
    };
    let text =
        format!("{records} records appended, {failed} failed{rest}, {unknown} unknown: {why}");
    Err(Failure::Failed(text))
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

type Line = io::Result<Vec<u8>>;

/// Sends lines until the input ends or something fails; what has no outcome yet.
fn send_lines(
    arguments: &Arguments,
    producer: &Producer,
    lines: &Receiver<Line>,
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
        if counts.any_bad() {
            return waiting;
        }
        let line = if waiting.is_empty() {
            lines.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            lines.recv_timeout(LOOK)
        };
        let line = match line {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => {
                counts.why.get_or_insert(format!("standard input: {error}"));
                return waiting;
            }
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return waiting,
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
fn count_rest(lines: &Receiver<Line>, counts: &mut Counts) -> bool {
    let mut until = Instant::now() + REST;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(line) => {
                counts.failed += u64::from(line.is_ok());
                until = Instant::now() + REST;
            }
            Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => return false,
        }
    }
}

fn read_lines(lines: &SyncSender<Line>) {
    let mut input = io::stdin().lock();
    loop {
        let mut line = Vec::new();
        let read = match input.read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => Ok(line),
            Err(error) => Err(error),
        };
        let over = read.is_err();
        let without_end = |mut line: Vec<u8>| {
            line.pop_if(|last| *last == b'\n');
            line
        };
        if lines.send(read.map(without_end)).is_err() || over {
            return;
        }
    }
}
