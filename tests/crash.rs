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
#[path = "crash/kinds.rs"]
mod kinds;
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

use kinds::Kind;
use workload::{Done, Length};

/// Fewest I/Os that change the disk, in each run.
const LEAST_IOS: u64 = 300;
/// Fewest images, all runs together.
const LEAST_IMAGES: u64 = 20_000;

/// Prints what a run did.
fn summary(name: &str, done: &Done) {
    let (disk, tally) = (&done.disk, &done.tally);
    println!(
        "{name}: {} changing I/Os ({} block writes, {} checkpoint writes, {} files in, {} named, \
         {} out, {} reads, {} faults), {} cuts, {} failures; {} points, at most {} in flight",
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
        tally.most_in_flight,
    );
    println!(
        "{name}: {} images ({} subsets, {} torn, {} killed, {} rotten), {} crashes in recovery, {} \
         torn tails",
        tally.images(),
        tally.subsets,
        tally.torn,
        tally.killed,
        tally.rotten,
        tally.nested,
        tally.tails,
    );
    println!("{name}: {}", tally.kinds);
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

/// H-43
#[test]
fn every_crash_of_a_run_loses_nothing_durable() {
    let length = Length {
        lives: 6,
        steps: 40,
        torn_per_point: 6,
    };
    let mut all = Done::default();
    for seed in seeds() {
        let run = workload::run(seed, length);
        summary(&format!("seed {seed}"), &run);
        assert!(run.disk.changes() >= LEAST_IOS, "a run of {LEAST_IOS} I/Os");
        all.add(&run);
    }
    summary("all runs", &all);
    if std::env::var("SEED").is_ok() {
        return;
    }
    let (disk, tally) = (&all.disk, &all.tally);
    assert!(tally.images() >= LEAST_IMAGES, "{LEAST_IMAGES} images");
    assert!(tally.most_in_flight >= 8, "eight operations in flight");
    for (count, what) in [
        (disk.name, "rolls"),
        (disk.free, "files freed"),
        (all.cuts, "cuts"),
        (all.failures, "failed disks"),
        (tally.killed, "killed processes"),
        (tally.rotten, "rotten copies of a checkpoint"),
        (tally.nested, "crashes in recovery"),
        (tally.tails, "torn tails"),
    ] {
        assert!(count > 0, "the runs hold no {what}");
    }
    for kind in Kind::ALL {
        let [points, torn, all] = tally.kinds.counts(kind);
        assert!(points > 0, "no crash met a {kind:?}");
        assert!(torn > 0 || !kind.tears(), "no crash tore a {kind:?}");
        let small = kind.tears() && kind != Kind::Append;
        assert!(all > 0 || !small, "not every subset of a {kind:?} was seen");
    }
}
