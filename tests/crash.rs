//! Crash states of the write-ahead log, enumerated: the real `wal::Log` over a simulated disk.
//!
//! A run stands still at every disk operation; the states that a crash at that instant may leave
//! are made, and from each the log must come back with all that it ever called durable and nothing
//! that was never written. Everything is drawn from seeds: a verdict names what replays it. The
//! checker is itself checked by `scripts/mutants`. Read `crash/images.rs` for the method,
//! `crash/model.rs` for what is compared, `sim/disk.rs` for the disk.

mod sim;

#[path = "crash/disk_tests.rs"]
mod disk_tests;
#[path = "crash/images.rs"]
mod images;
#[path = "crash/maker.rs"]
mod maker;
#[path = "crash/model.rs"]
mod model;
#[path = "crash/model_red.rs"]
mod model_red;
#[path = "crash/rig.rs"]
mod rig;
#[path = "crash/scenarios.rs"]
mod scenarios;
#[path = "crash/verdict.rs"]
mod verdict;
#[path = "crash/workload.rs"]
mod workload;

use workload::{Done, Length};

/// Prints what a run did and holds it to the least that it must do.
fn summary(name: &str, done: &Done) {
    let (disk, tally) = (&done.disk, &done.tally);
    println!(
        "{name}: {} changing I/Os ({} block writes, {} checkpoint writes, {} files in, {} named, \
         {} out, {} reads, {} faults), {} cuts, {} failures; {} points, {} images ({} subsets, \
         {} torn, {} killed, {} rotten), {} nested, {} tails, at most {} in flight",
        disk.changes(),
        disk.write,
        disk.checkpoint,
        disk.provide,
        disk.name,
        disk.free,
        disk.read,
        disk.faults,
        done.cuts,
        done.failures,
        tally.points,
        tally.images(),
        tally.subsets,
        tally.torn,
        tally.killed,
        tally.rotten,
        tally.nested,
        tally.tails,
        tally.most_in_flight,
    );
}

/// The runs of every day; `SEED=7` or `SEED=100..200` asks for others.
fn seeds() -> std::ops::Range<u64> {
    let Ok(asked) = std::env::var("SEED") else {
        return 1..5;
    };
    let number = |text: &str| {
        text.parse()
            .expect("SEED is a number, or two as in 100..200")
    };
    match asked.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&asked)..number(&asked) + 1,
    }
}

///
#[test]
fn every_crash_of_a_run_loses_nothing_durable() {
    let length = Length {
        lives: 6,
        steps: 40,
        torn_per_point: 6,
    };
    let mut done = Done::default();
    for seed in seeds() {
        let run = workload::run(seed, length);
        summary(&format!("run {seed}"), &run);
        done.tally.add(&run.tally);
        done.cuts += run.cuts;
        done.failures += run.failures;
    }
    println!("images: {:?}", done.tally);
}
