//! Drives the load: one executor, one lane a connection, one watch.
//!
//! Owns the only use of glommio in this program. Sockets are handed in by `exchange.rs`, connected
//! and greeted, because connecting may block. Everything here runs on one thread and shares a
//! `Run`; nothing here may block it. A batch ends exactly once: acknowledged, refused or unknown,
//! and is never sent a second time. Read `lane.rs` next, then `session.rs`.

mod lane;
mod metronome;
mod session;
mod watch;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};
use millrace::client::codec::Codec;
use millrace::types::{Level, LogId};

use crate::keys::Keys;
use crate::ledger::{Entry, State};
use crate::payload::{Payload, Texts};
use crate::schedule::Rate;
use crate::stats::Stats;
use metronome::Metronome;
use session::Session;

/// Set by a signal: stop sending, keep what is known, write the ledger.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Logs to write to; connections take them in turn.
    pub logs: Vec<LogId>,
    /// For each of `logs`, in their order: base addresses of nodes that know its leader.
    pub nodes: Vec<Vec<String>>,
    /// Connections.
    pub connections: u32,
    /// Batches that one connection may have unanswered.
    pub in_flight: usize,
    /// Records in a batch.
    pub batch_records: u32,
    /// Bytes of a record's value.
    pub record_bytes: usize,
    /// What the values look like.
    pub payload: Payload,
    /// The keys of each of `logs`, in their order; empty if records get none.
    pub keys: Vec<Keys>,
    /// How bodies are packed.
    pub codec: Codec,
    /// When an append is acknowledged.
    pub level: Level,
    /// When the node gives up on an append.
    pub timeout_ms: u32,
    /// How fast to send.
    pub rate: Rate,
    /// Before measuring.
    pub warmup: Duration,
    /// Of measuring.
    pub seconds: Duration,
    /// Of the texts.
    pub seed: u64,
    /// Id of this run.
    pub run: u32,
    /// Where to pin the executor.
    pub cpu: Option<usize>,
    /// The file that acks so far are entered into.
    pub acks: Option<PathBuf>,
    /// A directory on the nodes' disk: the load ends early when it is nearly full.
    pub disk: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// The counts.
    pub stats: Stats,
    /// Every batch, in the order of their ends.
    pub entries: Vec<Entry>,
}

/// Carries out the plan; returns once every batch has an end.
pub fn drive(plan: Plan) -> io::Result<Outcome> {
    let metronome = Metronome::start()?;
    let placement = plan.cpu.map_or(Placement::Unbound, Placement::Fixed);
    let executor = LocalExecutorBuilder::new(placement)
        .name("load")
        // The memory is locked three times over and shared with the nodes' limit; no buffer of it
        // is used here.
        .io_memory(64 << 10)
        .preempt_timer(Duration::from_millis(2))
        .blocking_thread_pool_placement(PoolPlacement::Unbound(4))
        .spawn(move || supervise(plan, metronome))
        .map_err(|error| io::Error::other(format!("the executor does not start: {error}")))?;
    match executor.join() {
        Ok(outcome) => Ok(outcome),
        Err(error) => Err(io::Error::other(format!("the executor failed: {error}"))),
    }
}

/// What all lanes share.
pub(crate) struct Run {
    plan: Plan,
    texts: Texts,
    start: Instant,
    end_ns: u64,
    stats: RefCell<Stats>,
    entries: RefCell<Vec<Entry>>,
    /// Where each log stands in the plan.
    places: BTreeMap<LogId, usize>,
    producers: Cell<u32>,
    sessions: RefCell<BTreeMap<u32, Rc<Session>>>,
    complaints: RefCell<Complaints>,
    done: Cell<bool>,
    /// When it was first found that nothing more is to be sent.
    over_ns: Cell<Option<u64>>,
    /// The nodes' disk is nearly full.
    full: Cell<bool>,
}

impl Run {
    fn new(plan: Plan) -> Run {
        let from_ns = plan.warmup.as_nanos() as u64;
        let places = plan.logs.iter().copied().zip(0..).collect();
        Run {
            texts: Texts::new(plan.seed, plan.record_bytes),
            start: Instant::now(),
            end_ns: from_ns + plan.seconds.as_nanos() as u64,
            stats: RefCell::new(Stats::new(from_ns, plan.logs.len())),
            entries: RefCell::default(),
            places,
            producers: Cell::new(0),
            sessions: RefCell::default(),
            complaints: RefCell::default(),
            done: Cell::new(false),
            over_ns: Cell::new(None),
            full: Cell::new(false),
            plan,
        }
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Whether nothing more is to be sent.
    fn over(&self) -> bool {
        let now_ns = self.now_ns();
        let over = now_ns >= self.end_ns || self.full.get() || INTERRUPTED.load(Ordering::Relaxed);
        if over && self.over_ns.get().is_none() {
            self.over_ns.set(Some(now_ns));
        }
        over
    }

    /// A producer number that was never used in this run.
    fn new_producer(&self) -> u32 {
        self.producers.set(self.producers.get() + 1);
        self.producers.get()
    }

    /// Enters the end of a batch.
    fn ended(&self, entry: Entry, due_ns: u64) {
        let log = self.places[&entry.log];
        let now_ns = self.now_ns();
        let mut stats = self.stats.borrow_mut();
        stats.ended(entry.state, log, entry.count, due_ns, now_ns);
        self.entries.borrow_mut().push(entry);
        if let State::Failed(code) | State::Unknown(code) = entry.state {
            self.complaints.borrow_mut().code(code);
        }
    }
}

/// Prints each kind of trouble once, so that a thousand reconnects are one line.
#[derive(Default)]
struct Complaints {
    codes: BTreeMap<u16, ()>,
    last: Option<Instant>,
}

impl Complaints {
    fn code(&mut self, number: u16) {
        if number == 0 || self.codes.insert(number, ()).is_some() {
            return;
        }
        match millrace::wire::code::Code::from_number(number) {
            Some(code) => say(&format!(
                "answered {}: {}; mend: {}",
                code.name(),
                code.text(),
                code.mend()
            )),
            None => say(&format!("answered code {number}, which is not known here")),
        }
    }

    /// At most one line a second.
    fn connection(&mut self, log: LogId, error: &io::Error) {
        if self
            .last
            .is_none_or(|last| last.elapsed() >= Duration::from_secs(1))
        {
            self.last = Some(Instant::now());
            say(&format!("no connection for log {log}: {error}"));
        }
    }
}

/// A line for people; a closed stderr is no reason to stop.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

async fn supervise(plan: Plan, metronome: Metronome) -> Outcome {
    glommio::spawn_local(metronome.listen()).detach();
    let run = Rc::new(Run::new(plan));
    let lanes: Vec<_> = (0..run.plan.connections)
        .map(|index| glommio::spawn_local(lane::run(run.clone(), index)).detach())
        .collect();
    let watch = glommio::spawn_local(watch::run(run.clone())).detach();
    for lane in lanes {
        lane.await.expect("a lane is never cancelled");
    }
    run.done.set(true);
    let now_ns = run.now_ns();
    // Nobody saw an end: every lane came to that of its timetable.
    let over_ns = run.over_ns.get().unwrap_or(run.end_ns);
    let close = |stats: &mut Stats| stats.close(over_ns, run.end_ns.min(now_ns));
    close(&mut run.stats.borrow_mut());
    watch.await.expect("the watch is never cancelled");
    let run = Rc::into_inner(run).expect("every task has ended");
    Outcome {
        stats: run.stats.into_inner(),
        entries: run.entries.into_inner(),
    }
}
