//! The swarm for minutes or hours: seed after seed on every core, until the time is up.
//!
//! The runs of `runs.rs`, of sets of three and five members, each with a fault phase that lasts
//! until enough was acknowledged at `quorum` in the middle of it. A seed that fails ends the whole
//! and is played again with its trace. `scripts/simulate` asks through the environment and prints
//! what stands on the standard output here. Read `runs.rs` first.

use super::options::Options;
use super::report::Report;
use super::rng::{Chance, Rng};
use super::runs::{Script, complain, run as run_one};
use super::scenarios::Traced;
use super::verdict::{Name, Verdict, ensure};
use super::world::World;
use millrace::types::Level;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Batches that a run must see acknowledged at `quorum` before its faults end.
const LEAST_ACKED: u64 = 200;
/// Virtual time in which they must be, microseconds.
const ACKED_WITHIN_US: u64 = 60_000_000;
/// A fault phase that was too short goes on by so much at a time, microseconds. Each time faults,
/// requests and late frames are a quarter rarer: some seeds draw so many faults that nothing ever
/// comes about, more requests than their network can carry before clients have given them up, or
/// frames that come later than an election waits.
const LONGER_BY_US: u64 = 250_000;
/// Mean time between two faults, at most, microseconds.
const FAULT_EVERY_US: u64 = 2_000_000;
/// Mean time between two requests of a client, at most, microseconds.
const CLIENT_EVERY_US: u64 = 30_000;
/// Time between two lines of progress.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// With so many seeds every kind of fault must have happened.
const EVERY_KIND_FROM: usize = 300;
/// Lines of the trace of a seed that fails.
const LINES: usize = 300;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Asked {
    /// For how long new seeds are begun; without end if none.
    pub time: Option<Duration>,
    /// Seeds, the last one not included.
    pub seeds: std::ops::Range<u64>,
    /// `3`, `5` or `both`.
    pub nodes: String,
}

impl Asked {
    /// What `scripts/simulate` asks for: `SIMULATE_SECONDS`, `SIMULATE_SEEDS` as `A..B`,
    /// `SIMULATE_NODES`.
    pub fn of_environment() -> Asked {
        let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let number = |text: &str| -> u64 {
            let number = text.trim().parse();
            number.unwrap_or_else(|_| panic!("{text} is no number of seconds and no seed"))
        };
        let seeds = text("SIMULATE_SEEDS").map(|text| {
            let (first, end) = text.split_once("..").expect("SIMULATE_SEEDS is A..B");
            number(first)..number(end)
        });
        let seconds = text("SIMULATE_SECONDS").map(|text| number(&text));
        let seconds = seconds.or_else(|| seeds.is_none().then_some(10));
        Asked {
            time: seconds.map(Duration::from_secs),
            seeds: seeds.unwrap_or(0..u64::MAX),
            nodes: text("SIMULATE_NODES").unwrap_or_else(|| "both".to_owned()),
        }
    }

    fn script(&self) -> Script {
        match self.nodes.as_str() {
            "3" => seed_of::<3>,
            "5" => seed_of::<5>,
            "both" => seed_of::<0>,
            other => panic!("SIMULATE_NODES={other} is not 3, 5 or both"),
        }
    }
}

/// One seed with a set of so many members; drawn if that is 0.
fn seed_of<const MEMBERS: usize>(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut rng = Rng::new(seed);
    let members = match MEMBERS {
        0 => *rng.pick(&[3, 3, 5]),
        members => members,
    };
    let options = Options::of_members(members, &mut rng);
    trace
        .borrow_mut()
        .note(0, format_args!("seed {seed}: {options:?}"));
    let mut world = World::new(options, rng, trace);
    world.start()?;
    world.begin_faults();
    world.run_until(world.options.fault_phase_us)?;
    while world.checker.acked_count(Level::Quorum) < LEAST_ACKED {
        ensure(world.now_us < ACKED_WITHIN_US, Name::Stuck, || {
            let acked = world.checker.acked_count(Level::Quorum);
            format!("{acked} batches acknowledged at quorum after {ACKED_WITHIN_US} us")
        })?;
        world.run_until(world.now_us + LONGER_BY_US)?;
        let options = &mut world.options;
        let rarer = |every_us: u64, longest_us: u64| (every_us + every_us / 4).min(longest_us);
        options.fault_every_us = rarer(options.fault_every_us, FAULT_EVERY_US);
        options.client_every_us = rarer(options.client_every_us, CLIENT_EVERY_US);
        let late = options.network.spike;
        options.network.spike = Chance(late.0 - late.0 / 4);
        if world.net.options.spike == late {
            world.net.options.spike = options.network.spike;
        }
    }
    world.report.under_faults = world.checker.acked_count(Level::Quorum);
    world.come_to_rest()?;
    Ok(world.finish())
}

/// What the threads share.
#[derive(Debug)]
struct Shared {
    next: AtomicU64,
    over: AtomicBool,
    done: Mutex<Done>,
}

/// What the seeds so far did.
#[derive(Debug, Default)]
struct Done {
    sum: Report,
    /// Batches acknowledged at `quorum`, of each seed.
    acked: Vec<u64>,
    /// The lowest seed that failed.
    failed: Option<(u64, Verdict)>,
}

impl Done {
    fn least_and_median(&self) -> (u64, u64) {
        let mut acked = self.acked.clone();
        acked.sort_unstable();
        let least = acked.first().copied().unwrap_or(0);
        (least, acked.get(acked.len() / 2).copied().unwrap_or(0))
    }
}

/// Runs what was asked for and prints what came of it; an error says what is wrong.
pub fn run(asked: &Asked) -> Result<(), String> {
    let script = asked.script();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let shared = Shared {
        next: AtomicU64::new(asked.seeds.start),
        over: AtomicBool::new(false),
        done: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores)
            .map(|_| scope.spawn(|| work(script, asked.seeds.end, &shared)))
            .collect();
        let mut told = began;
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(50));
            let timed_out = asked.time.is_some_and(|time| began.elapsed() >= time);
            shared.over.fetch_or(timed_out, Ordering::Relaxed);
            if told.elapsed() >= TOLD_EVERY {
                told = Instant::now();
                tell_progress(&shared, began);
            }
        }
    });
    let done = shared.done.into_inner().expect("no thread panicked");
    if let Some((seed, verdict)) = &done.failed {
        let after = done.acked.len() as u64;
        complain(script, "long_swarm", (*seed, after), LINES, verdict);
        let (end, nodes) = (seed + 1, &asked.nodes);
        println!("replay: scripts/simulate --seeds {seed}..{end} --nodes {nodes}");
        return Err(format!("seed {seed}: {verdict}"));
    }
    judge(asked, script, &done, (cores, began.elapsed()))
}

/// One thread: seed after seed.
fn work(script: Script, end: u64, shared: &Shared) {
    while !shared.over.load(Ordering::Relaxed) {
        let seed = shared.next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return;
        }
        let (result, _) = run_one(script, seed, 0);
        let mut done = shared.done.lock().expect("no thread panicked");
        match result {
            Ok(report) => {
                done.sum.add(&report);
                done.acked.push(report.under_faults);
            }
            Err(verdict) => {
                if done.failed.as_ref().is_none_or(|(first, _)| seed < *first) {
                    done.failed = Some((seed, verdict));
                }
                shared.over.store(true, Ordering::Relaxed);
            }
        }
    }
}

fn tell_progress(shared: &Shared, began: Instant) {
    let done = shared.done.lock().expect("no thread panicked");
    let (seeds, seconds) = (done.acked.len(), began.elapsed().as_secs_f64());
    let (least, median) = done.least_and_median();
    let rate = seeds as f64 / seconds;
    println!(
        "{seconds:5.0} s: {seeds} seeds, {rate:.1} a second; quorum-acked appends a seed: least \
         {least}, median {median}"
    );
}

/// Prints the sum of sound runs, and says what they did not reach.
fn judge(
    asked: &Asked,
    script: Script,
    done: &Done,
    (cores, took): (usize, Duration),
) -> Result<(), String> {
    let (seeds, first) = (done.acked.len(), asked.seeds.start);
    let rate = seeds as f64 / took.as_secs_f64();
    let (least, median) = done.least_and_median();
    println!(
        "seeds: {seeds} from {first} on, sets of {} members, {cores} cores, {:.0} s, {rate:.1} \
         seeds a second",
        asked.nodes.replace("both", "3 and 5"),
        took.as_secs_f64(),
    );
    println!("quorum-acked appends a seed, faults going on: least {least}, median {median}");
    println!("{}", done.sum);
    let hash = |seed| {
        let (result, trace) = run_one(script, seed, 0);
        result.map(|_| trace.borrow().hash())
    };
    let hashes = [first, first, first + 1].map(hash);
    let [Ok(one), Ok(again), Ok(other)] = hashes else {
        return Err(format!(
            "seeds {first} and {} are not sound again",
            first + 1
        ));
    };
    println!("trace of seed {first}: {one:016x}, once more: {again:016x}");
    println!("trace of seed {}: {other:016x}", first + 1);
    if one != again || one == other {
        return Err("the traces are no function of the seed".to_owned());
    }
    if seeds == 0 {
        return Err("no seed was run; give it more time".to_owned());
    }
    let missing = match asked.nodes.as_str() {
        "3" => done.sum.missing_of_three(),
        _ => done.sum.missing(),
    };
    if seeds >= EVERY_KIND_FROM && !missing.is_empty() {
        return Err(format!("never happened: {missing:?}"));
    }
    println!("no violation in {seeds} seeds");
    Ok(())
}
