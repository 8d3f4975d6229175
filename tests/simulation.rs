//! Simulation of whole sets: the real shards, a simulated network, simulated disks, virtual time.
//!
//! Each seed draws its own sizes, speeds and faults, runs a fault phase and must then come to rest; the
//! checkers of `sim/checker.rs` watch every step. `SEED=k` plays one seed again and prints the end of its
//! trace, `SEEDS=n` runs so many. A seed that ever failed becomes a scenario here or in
//! `sim/scenarios.rs`. Read `sim/world.rs` next.

mod sim;

#[path = "sim/checker_red.rs"]
mod checker_red;

use sim::report::Report;
use sim::runs::{complain, run, swarm};
use sim::verdict::Verdict;

/// Seeds of a default run.
const SEEDS: u64 = 300;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

fn run_seed(seed: u64, after: u64) -> Report {
    let (result, _) = run(swarm, seed, false);
    result.unwrap_or_else(|verdict: Verdict| {
        complain(swarm, "swarm", seed, after, &verdict);
        panic!("seed {seed} failed");
    })
}

#[test]
fn swarm_of_seeds() {
    if let Some(seed) = number("SEED") {
        let (result, trace) = run(swarm, seed, true);
        for line in trace.borrow().tail() {
            println!("{line}");
        }
        match result {
            Ok(report) => println!("{report}\ntrace hash {:016x}", report.trace_hash),
            Err(verdict) => panic!("{verdict}"),
        }
        return;
    }
    let seeds = number("SEEDS").unwrap_or(SEEDS);
    let mut sum = Report::default();
    for seed in 0..seeds {
        sum.add(&run_seed(seed, seed));
    }
    println!("{seeds} seeds\n{sum}");
    if seeds >= SEEDS {
        let missing = sum.missing();
        assert!(
            missing.is_empty(),
            "faults that never happened: {missing:?}"
        );
    }
}
