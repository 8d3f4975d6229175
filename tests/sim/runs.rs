//! Runs by seed: one run from start to rest, a failing one played again with its trace.
//!
//! A run ends with a report or a verdict; an assertion of the code under test that fails is caught
//! and named, it is no verdict of a checker. Whoever runs many prints what failed with `complain`,
//! in the form that scripts look for. Read `world.rs` for what happens in a run.

use super::options::Options;
use super::report::Report;
use super::rng::Rng;
use super::trace::Trace;
use super::verdict::{Name, Verdict};
use super::world::World;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// How a run is made.
pub type Script = fn(u64, Rc<RefCell<Trace>>) -> Result<Report, Verdict>;

/// Runs a script with a seed and keeps so many of the last lines of the trace.
pub fn run(
    script: Script,
    seed: u64,
    keep: usize,
) -> (Result<Report, Verdict>, Rc<RefCell<Trace>>) {
    let trace = Rc::new(RefCell::new(Trace::new(keep)));
    let inside = Rc::clone(&trace);
    let result = catch_unwind(AssertUnwindSafe(|| script(seed, inside)));
    let result = result.unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Verdict {
            name: Name::Panic,
            details: text.unwrap_or_else(|| "without words".to_owned()),
        })
    });
    (result, trace)
}

/// The run of a seed of the swarm: faults, then rest.
pub fn swarm(seed: u64, trace: Rc<RefCell<Trace>>) -> Result<Report, Verdict> {
    let mut rng = Rng::new(seed);
    let options = Options::of_seed(&mut rng);
    trace
        .borrow_mut()
        .note(0, format_args!("seed {seed}: {options:?}"));
    let mut world = World::new(options, rng, trace);
    world.start()?;
    world.begin_faults();
    world.run_until(world.options.fault_phase_us)?;
    world.come_to_rest()?;
    Ok(world.finish())
}

impl World {
    /// The run's report.
    pub fn finish(mut self) -> Report {
        let counts = self.net.counts;
        self.report.elections = self.checker.elections();
        let promoted = self.chaos.promoted.iter();
        let promoted = promoted.filter(|(epoch, to)| self.checker.led_next(*epoch, *to));
        let promoted = promoted.count() as u64;
        self.report.count("promoted_leader", promoted);
        let elected = self.report.elections[1].saturating_sub(promoted);
        self.report.count("elected_leader", elected);
        self.report.count("delay", counts.delays);
        self.report.count("head_flip", counts.head_flips);
        self.report.count("payload_flip", counts.payload_flips);
        self.report.virtual_us = self.now_us;
        let freed = self.nodes.iter().map(|node| node.disk.counts().free);
        self.report.freed = freed.sum();
        let trace = self.trace.borrow();
        self.report.events = trace.events();
        self.report.trace_hash = trace.hash();
        drop(trace);
        self.report
    }
}

/// Plays a failing seed again with the last lines of its trace and says what went wrong. `after`
/// runs were sound before it.
pub fn complain(
    script: Script,
    name: &str,
    (seed, after): (u64, u64),
    lines: usize,
    verdict: &Verdict,
) {
    let (again, trace) = run(script, seed, lines);
    for line in trace.borrow().tail() {
        println!("{line}");
    }
    let what = verdict.name.text();
    match verdict.name {
        Name::Panic => println!("panic after {after} seeds: {}", verdict.details),
        _ => println!("verdict: {what} after {after} seeds {}", verdict.details),
    }
    println!("{name}: again with SEED={seed}");
    if again.err().as_ref() != Some(verdict) {
        println!(
            "{name}: the second time it went another way: the run is not a function of its seed"
        );
    }
}
