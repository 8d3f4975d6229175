//! What a second core is worth: two executors against one, with the same shards in all.
//!
//! Run with `cargo bench --bench cores`. One process. Each executor is pinned to a CPU of its own
//! and runs whole shards, logs of a set of one node, over a disk in memory: a write ends at the
//! next turn and costs the CPU what a direct write does, nothing. Eight appends of 16 KiB are in
//! flight to each shard, copied into buffers as a socket's would be, at level `quorum`. Four
//! shards on one executor are measured against two on each of two, and against themselves as a
//! control, in turns. Printed are medians over the rounds of the ratio of acknowledged records per
//! second, which other work on the machine spoils, and of records per second of CPU time that the
//! executors had: what the ratio comes to when they have their CPUs to themselves.
//!
//! An executor does not yield while it is measured: nothing here comes through its reactor, and
//! one that yields can park with work to do (see `runtime/metronome.rs`). So sockets, rings and
//! wake-ups are not part of the figure. The second figure is a sum over executors: it shows what
//! they lose to each other in caches and memory, not whether the machine gave each its CPU.

use glommio::{LocalExecutorBuilder, Placement};
use millrace::buffers::Buffers;
use millrace::limits::CHECKPOINT_COPY;
use millrace::shard::{
    Action, CHECKPOINT_FILE, DiskOp, Event, FileEntry, FileName, Request, Shard, ShardConfig,
};
use millrace::types::{BufferId, ConnectionId, Level, LogId, NodeId, OriginId, ShardId, Time};
use millrace::wire::body::Body;
use millrace::wire::message::Severity;
use millrace::wire::record::{BatchBuilder, Record};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

const SHARDS: usize = 4;
const IN_FLIGHT: usize = 8;
const RECORDS: u64 = 16;
const RECORD_BYTES: usize = 1 << 10;
const ROUNDS: usize = 15;
const WARM_UP: Duration = Duration::from_millis(100);
const MEASURED: Duration = Duration::from_millis(400);

/// Buffers by powers of two.
#[derive(Default)]
struct Pool {
    slots: Vec<Vec<u8>>,
    unused: Vec<u32>,
    free: BTreeMap<usize, Vec<Vec<u8>>>,
}

impl Pool {
    fn release(&mut self, id: BufferId) {
        let buffer = std::mem::take(&mut self.slots[id.0 as usize]);
        self.free.entry(buffer.len()).or_default().push(buffer);
        self.unused.push(id.0);
    }
}

impl Buffers for Pool {
    fn take(&mut self, len: usize) -> Option<BufferId> {
        let size = len.max(4096).next_power_of_two();
        let free = self.free.entry(size).or_default().pop();
        let buffer = free.unwrap_or_else(|| vec![0; size]);
        let id = self.unused.pop().unwrap_or(self.slots.len() as u32);
        if id as usize == self.slots.len() {
            self.slots.push(buffer);
        } else {
            self.slots[id as usize] = buffer;
        }
        Some(BufferId(id))
    }

    fn bytes(&self, id: BufferId) -> &[u8] {
        &self.slots[id.0 as usize]
    }

    fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        &mut self.slots[id.0 as usize]
    }

    fn copy(&mut self, from: BufferId, range: Range<usize>, to: BufferId, at: usize) {
        let mut target = std::mem::take(&mut self.slots[to.0 as usize]);
        let source = &self.bytes(from)[range];
        target[at..at + source.len()].copy_from_slice(source);
        self.slots[to.0 as usize] = target;
    }
}

/// One shard with its disk and its clients.
struct Bench {
    shard: Shard,
    checkpoint: Vec<u8>,
    ended: VecDeque<Event>,
    in_flight: usize,
    last: u64,
    records: u64,
    open: bool,
}

impl Bench {
    fn new(shard: u16, now: Time) -> Bench {
        let (origin, shard) = (OriginId(1), ShardId(shard));
        let log = LogId { origin, shard };
        let node = NodeId(1);
        let mut config = ShardConfig::with_defaults(node, node, log, vec![node]);
        config.new_member = true;
        let checkpoint = FileEntry {
            name: FileName::Checkpoint,
            len: 2 * CHECKPOINT_COPY as u64,
        };
        Bench {
            shard: Shard::new(config, vec![checkpoint], now),
            checkpoint: vec![0; 2 * CHECKPOINT_COPY],
            ended: VecDeque::new(),
            in_flight: 0,
            last: 0,
            records: 0,
            open: false,
        }
    }

    /// Everything that is ready: what the disk has done, appends of clients, what the shard wants.
    fn turn(&mut self, now: Time, batch: &[u8], pool: &mut Pool) {
        for event in std::mem::take(&mut self.ended) {
            self.shard.handle(now, event, pool);
        }
        if self.shard.poll_timeout().is_some_and(|due| due <= now) {
            self.shard.handle(now, Event::Timer, pool);
        }
        // One at a time until the log is open.
        let most = if self.open { IN_FLIGHT } else { 1 };
        while self.in_flight < most {
            let buffer = pool.take(batch.len()).expect("the pool has no bound");
            pool.bytes_mut(buffer)[..batch.len()].copy_from_slice(batch);
            self.last += 1;
            self.in_flight += 1;
            let request = Request {
                connection: ConnectionId(1),
                correlation: self.last,
            };
            let event = Event::Append {
                request,
                level: Level::Quorum,
                timeout_ms: 60_000,
                buffer,
                len: batch.len(),
            };
            self.shard.handle(now, event, pool);
        }
        while let Some(action) = self.shard.poll_action(now, pool) {
            self.carry_out(action, pool);
        }
    }

    fn carry_out(&mut self, action: Action, pool: &mut Pool) {
        match action {
            Action::Disk(operation) => self.disk(&operation, pool),
            Action::Reply { body, .. } => {
                self.in_flight -= 1;
                match body {
                    Body::AppendOk(_) => {
                        self.records += RECORDS;
                        self.open = true;
                    }
                    refused => assert!(!self.open, "refused: {refused:?}"),
                }
            }
            Action::Release(buffer) => pool.release(buffer),
            Action::Log(notice) => {
                let calm = notice.message.severity() == Severity::Info;
                assert!(calm || !self.open, "{}", notice.text);
            }
            other => panic!("a log of one node: {other:?}"),
        }
    }

    fn disk(&mut self, operation: &DiskOp, pool: &mut Pool) {
        let count = match *operation {
            DiskOp::Write {
                file,
                position,
                buffer,
                start,
                len,
                ..
            } => {
                if file == CHECKPOINT_FILE {
                    let at = position as usize;
                    let bytes = &pool.bytes(buffer)[start..start + len];
                    self.checkpoint[at..at + len].copy_from_slice(bytes);
                }
                len
            }
            DiskOp::Read {
                file,
                position,
                buffer,
                len,
                ..
            } => {
                assert!(file == CHECKPOINT_FILE, "what is written is not read back");
                let at = position as usize;
                pool.bytes_mut(buffer)[..len].copy_from_slice(&self.checkpoint[at..at + len]);
                len
            }
            _ => 0,
        };
        let (ticket, result) = (operation.ticket(), Ok(count));
        self.ended.push_back(Event::Disk { ticket, result });
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock exists and the time lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What an executor came to: records, seconds, seconds of CPU.
type Score = (f64, f64, f64);

async fn run(shards: Range<usize>) -> Score {
    let value = vec![7; RECORD_BYTES];
    let mut builder = BatchBuilder::new();
    (0..RECORDS).for_each(|time| builder.push(&Record::new(time, &value)));
    let batch = builder.finish();
    let start = Instant::now();
    let now = || Time(1_000_000 + start.elapsed().as_micros() as u64);
    let mut benches: Vec<Bench> = shards
        .map(|shard| Bench::new(shard as u16, now()))
        .collect();
    let mut pool = Pool::default();
    let mut begun: Option<(Instant, Duration, u64)> = None;
    loop {
        for bench in &mut benches {
            bench.turn(now(), &batch, &mut pool);
        }
        let records = || benches.iter().map(|bench| bench.records).sum::<u64>();
        match begun {
            None if start.elapsed() >= WARM_UP && benches.iter().all(|bench| bench.open) => {
                begun = Some((Instant::now(), cpu_time(), records()));
            }
            Some((at, cpu, before)) if at.elapsed() >= MEASURED => {
                let spent = (cpu_time() - cpu).as_secs_f64();
                return (
                    (records() - before) as f64,
                    at.elapsed().as_secs_f64(),
                    spent,
                );
            }
            _ => {}
        }
    }
}

/// Records per second, and records per second of CPU time added up over the executors.
type Rates = (f64, f64);
/// One executor, two, one again.
type Round = (Rates, Rates, Rates);

/// Runs all shards on these CPUs, an executor on each.
fn measure(cpus: &[usize]) -> Rates {
    let share = SHARDS / cpus.len();
    let start = |(index, cpu): (usize, &usize)| {
        let shards = index * share..(index + 1) * share;
        let builder = LocalExecutorBuilder::new(Placement::Fixed(*cpu))
            .io_memory(64 << 10)
            .preempt_timer(Duration::from_millis(2));
        let spawned = builder.spawn(move || run(shards));
        spawned.expect("an executor starts on each CPU")
    };
    let running: Vec<_> = cpus.iter().enumerate().map(start).collect();
    let scores = running.into_iter().map(|executor| executor.join());
    scores.fold((0.0, 0.0), |(wall, cpu), score| {
        let (records, seconds, spent) = score.expect("an executor ends");
        (wall + records / seconds, cpu + records / spent)
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let cpus: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .iter()
        .map(|cpu| cpu.id)
        .collect();
    let [one, two, ..] = cpus[..] else {
        println!("not run: {} CPU, two needed", cpus.len());
        return;
    };
    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        let alone = measure(&[one]);
        let both = measure(&[one, two]);
        let control = measure(&[one]);
        println!(
            "round {round}: one executor {:.0} records/s, two {:.0}, one again {:.0}",
            alone.0, both.0, control.0
        );
        rounds.push((alone, both, control));
    }
    let ratio = |of: fn(&Round) -> f64| median(rounds.iter().map(of).collect());
    println!(
        "{SHARDS} shards, batches of {RECORDS} records of {RECORD_BYTES} B, {IN_FLIGHT} in flight \
         to each shard; medians of {ROUNDS} rounds"
    );
    println!(
        "records per second:            two against one {:.2} x, control {:.2} x (target 1.8)",
        ratio(|(one, two, _)| two.0 / one.0),
        ratio(|(one, _, control)| control.0 / one.0)
    );
    println!(
        "records per second of CPU:     two against one {:.2} x, control {:.2} x",
        ratio(|(one, two, _)| two.1 / one.1),
        ratio(|(one, _, control)| control.1 / one.1)
    );
}
