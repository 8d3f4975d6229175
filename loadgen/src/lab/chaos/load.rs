//! The clients of a chaos run: producers and readers of the client library, all of it recorded.
//!
//! A producer is a thread with a timetable; it gives records to all shards in turn and enters how
//! each one ended. A reader is a thread that goes through a log, at the leader or at one node, and
//! keeps what it was given as committed. None of them knows what is being disturbed: they go on
//! whatever happens, as an application would. Read `history.rs` for what they hand in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millrace::client::driver::blocking::{self, Pending};
use millrace::client::driver::{ClientError, ProducerConfig, ReaderConfig};
use millrace::client::{Failure as Refusal, NewRecord, Start};
use millrace::types::{Level, Offset, ReadLevel};

use super::history::{Append, Content, End, Producer, Readback, Reads};
use crate::Failure;
use crate::lab::go_on;
use crate::payload::{Payload, PayloadMaker, Texts};
use crate::random::Random;

/// Between two looks at the timetable and at what has ended.
const STEP: Duration = Duration::from_millis(4);
/// Records that a producer gives at once at most when it is late.
const BURST: u64 = 256;
/// Lengths of values.
const LEAST_BYTES: u64 = 64;
const MOST_BYTES: u64 = 400;
/// How long a reader waits for a node, and between two tries.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
/// How long the last reads of all may take to get an answer.
const LAST_PATIENCE: Duration = Duration::from_secs(20);

/// What all clients share.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Addresses of all nodes.
    pub addresses: Vec<String>,
    /// Shards.
    pub shards: u16,
    /// In every value.
    pub run: u32,
    /// Of the values, and of who does what.
    pub seed: u64,
    /// When the load began.
    pub start: Instant,
    /// Set when it is to end.
    pub over: Arc<AtomicBool>,
}

impl Setting {
    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Clients at work.
pub struct Clients {
    producers: Vec<JoinHandle<Producer>>,
    readers: Vec<JoinHandle<Reads>>,
}

impl Clients {
    /// Starts so many producers that append so many records a second together, and readers of every
    /// shard: one at its leader, one at a node. Every fourth producer asks for `leader`, the others
    /// for `quorum`.
    pub fn start(setting: &Setting, producers: u32, rate: u64) -> Result<Clients, Failure> {
        let mut clients = Clients {
            producers: Vec::new(),
            readers: Vec::new(),
        };
        for number in 1..=producers {
            let level = if number % 4 == 0 {
                Level::Leader
            } else {
                Level::Quorum
            };
            // Some give up early: they leave appends with an unknown end.
            let timeout = [30, 2, 8][number as usize % 3];
            let config = ProducerConfig::new()
                .level(level)
                .timeout(Duration::from_secs(timeout));
            let client = blocking::Producer::connect(setting.addresses.clone(), &config);
            let maker = Maker {
                client: client.map_err(Failure::failed)?,
                setting: setting.clone(),
                number,
                level,
                interval_ns: 1_000_000_000 * u64::from(producers) / rate,
                random: Random::new(setting.seed ^ u64::from(number)),
                appends: Vec::new(),
                waiting: (0..setting.shards).map(|_| VecDeque::new()).collect(),
            };
            clients.producers.push(thread::spawn(move || maker.work()));
        }
        for shard in 0..setting.shards {
            let nodes = setting.addresses.len() as u16;
            for node in [None, Some((shard + 1) % nodes + 1)] {
                let setting = setting.clone();
                let reader = thread::spawn(move || follow(&setting, shard, node));
                clients.readers.push(reader);
            }
        }
        Ok(clients)
    }

    /// Waits for all of them; they have been told that it is over.
    pub fn finish(self) -> (Vec<Producer>, Vec<Reads>) {
        let panicked = "a panic ends the process";
        let producers = self.producers.into_iter();
        let producers = producers
            .map(|thread| thread.join().expect(panicked))
            .collect();
        let readers = self.readers.into_iter();
        (
            producers,
            readers
                .map(|thread| thread.join().expect(panicked))
                .collect(),
        )
    }
}

/// A producer at work.
struct Maker {
    client: blocking::Producer,
    setting: Setting,
    number: u32,
    level: Level,
    interval_ns: u64,
    random: Random,
    appends: Vec<Append>,
    /// By shard: appends without an end, in order.
    waiting: Vec<VecDeque<(usize, Pending)>>,
}

impl Maker {
    fn work(mut self) -> Producer {
        let texts = Texts::new(self.setting.seed, 0);
        let made = MOST_BYTES as usize;
        let (run, seed) = (self.setting.run, self.random.number());
        let makers = [LEAST_BYTES as usize, made / 2, made];
        let mut makers =
            makers.map(|bytes| PayloadMaker::new(Payload::Random, texts.clone(), seed, run, bytes));
        for maker in &mut makers {
            maker.producer(self.number);
        }
        let start = Instant::now();
        while !self.setting.is_over() {
            let due = start.elapsed().as_nanos() as u64 / self.interval_ns;
            for _ in 0..due.saturating_sub(self.appends.len() as u64).min(BURST) {
                let length = self.random.below(3) as usize;
                self.append(&mut makers[length]);
            }
            self.collect();
            thread::sleep(STEP);
        }
        self.client.flush();
        self.collect();
        Producer {
            number: self.number,
            appends: self.appends,
        }
    }

    fn append(&mut self, maker: &mut PayloadMaker) {
        let index = self.appends.len();
        let sequence = index as u32;
        let shard = self.random.below(u64::from(self.setting.shards)) as u16;
        let value = maker.make(sequence, &[]);
        let digest = Content::of(self.setting.run, value).digest;
        let record = NewRecord::new(value).shard(shard);
        let invoked_us = self.setting.now_us();
        let sent = self.client.send(record);
        self.appends.push(Append {
            shard,
            sequence,
            digest,
            level: self.level,
            invoked_us,
            ended_us: 0,
            end: End::Unknown,
        });
        match sent {
            Ok(pending) => self.waiting[usize::from(shard)].push_back((index, pending)),
            Err(error) => self.ended(index, Err(error)),
        }
    }

    /// Enters what has ended; within a shard ends come in order, or nearly so.
    fn collect(&mut self) {
        for shard in 0..self.waiting.len() {
            while let Some((index, pending)) = self.waiting[shard].pop_front() {
                let Some(outcome) = pending.poll() else {
                    self.waiting[shard].push_front((index, pending));
                    break;
                };
                self.ended(index, outcome.map(|ack| ack.offset));
            }
        }
    }

    fn ended(&mut self, index: usize, outcome: Result<Offset, ClientError>) {
        let append = &mut self.appends[index];
        append.ended_us = self.setting.now_us();
        append.end = match outcome {
            Ok(offset) => End::Acked(offset.0),
            Err(error) if error.is_unknown() => End::Unknown,
            Err(_) => End::Failed,
        };
    }
}

/// Reads a log as it grows, what is committed of it.
fn follow(setting: &Setting, shard: u16, node: Option<u16>) -> Reads {
    let mut reads = Reads {
        shard,
        place: node.map_or("the leader".to_owned(), |node| format!("node {node}")),
        ..Reads::default()
    };
    let mut config = ReaderConfig::new(shard)
        .level(ReadLevel::Committed)
        .timeout(PATIENCE)
        .connect_timeout(PATIENCE);
    if let Some(node) = node {
        config = config.at_node(u32::from(node));
    }
    while !setting.is_over() {
        let from = reads.records.last().map_or(0, |(offset, _)| offset + 1);
        let config = config.clone().from_offset(from);
        let Ok(mut reader) = blocking::Reader::connect(setting.addresses.clone(), &config) else {
            continue;
        };
        while !setting.is_over() {
            match reader.next_batch() {
                Ok(Some(batch)) => {
                    let records = batch.records();
                    let seen = records
                        .map(|(offset, record)| (offset.0, Content::of(setting.run, record.value)));
                    reads.records.extend(seen);
                }
                Ok(None) => thread::sleep(PAUSE),
                Err(error) => {
                    let next = reads.records.last().map_or(0, |(offset, _)| offset + 1);
                    refused(&mut reads, &error);
                    // Goes on all the same: what comes then is held against the log too.
                    reader.seek(Start::Offset(Offset(next)));
                    thread::sleep(PAUSE);
                }
            }
        }
    }
    reads
}

/// A committed record that is cut, or behind the end, contradicts what was read before.
fn refused(reads: &mut Reads, error: &ClientError) {
    let cut = matches!(
        error,
        ClientError::Failed(Refusal::Truncated { .. } | Refusal::OutOfRange { .. })
    );
    if cut {
        reads.refusals.push(error.to_string());
    }
}

/// All records of one log at one node, at one level.
pub fn read_back(
    setting: &Setting,
    node: u16,
    shard: u16,
    level: ReadLevel,
) -> Result<Readback, Failure> {
    let config = ReaderConfig::new(shard)
        .from_offset(0)
        .level(level)
        .timeout(LAST_PATIENCE)
        .at_node(u32::from(node));
    let named = |error: ClientError| {
        Failure::Failed(format!(
            "reading shard {shard} back at node {node}: {error}"
        ))
    };
    let reader = blocking::Reader::connect(setting.addresses.clone(), &config);
    let mut reader = reader.map_err(named)?;
    let mut records = Vec::new();
    while let Some(batch) = reader.next_batch().map_err(named)? {
        go_on()?;
        let seen = batch
            .records()
            .map(|(offset, record)| (offset.0, Content::of(setting.run, record.value)));
        records.extend(seen);
    }
    Ok(Readback {
        node,
        shard,
        level: match level {
            ReadLevel::Committed => "committed",
            ReadLevel::Local => "local",
        },
        records,
    })
}
