//! Directed runs about what the settings of a link do. Read `scenarios.rs` first.

use super::disk_options::DiskOptions;
use super::options::Options;
use super::report::Report;
use super::scenarios::{FIRST, LEADER, SECOND, Traced, world};
use super::verdict::{Name, Verdict, ensure};
use super::world::World;
use millrace::config::presets;
use millrace::limits::{BATCH_TIMEOUT_MS, INITIAL_CREDIT, MAX_BLOCK_RECORDS, WRITE_DEPTH};
use millrace::shard::Event;

/// Blocks whose lag must have been seen on each link.
const BLOCKS: u64 = 100;

/// The replication lags of each link of the leader, as its histogram tells them (p50, p95), after
/// the same clients have appended for a while: a few records a disk write, so blocks wait.
fn lags(seed: u64, options: Options, trace: Traced) -> Result<(Vec<[u64; 2]>, Report), Verdict> {
    let mut world = world(seed, options, trace)?;
    world.wait_for_leader()?;
    world.run_for(6_000_000)?;
    let links = world.observe(LEADER)?.links;
    for link in &links {
        ensure(link.lag_blocks > BLOCKS, Name::Stuck, || {
            format!("{} blocks on the link to {}", link.lag_blocks, link.peer)
        })?;
    }
    world.come_to_rest()?;
    let lags = links.iter().map(|link| {
        let [p50, p95, _] = link.lag_percentiles_us;
        [p50, p95]
    });
    Ok((lags.collect(), world.finish()))
}

/// The same workload with the default settings and with those of the preset `latency`: on every
/// link the lag is lower. Blocks that find the disk idle wait for nothing either way; the slowest
/// ones come sooner by more than half of the difference between the two waits.
pub fn latency_preset(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut default = Options::quiet(3);
    default.batch_timeout_us = BATCH_TIMEOUT_MS * 1000;
    default.max_block_records = MAX_BLOCK_RECORDS;
    default.write_depth = WRITE_DEPTH;
    default.link.initial_credit = INITIAL_CREDIT;
    default.client_every_us = 30_000;
    // Reads of the scrub would stand in the way of single writes on so slow a disk.
    default.scrub_bytes_per_s = 0;
    default.disk = DiskOptions {
        latency_us: (15_000, 25_000),
        ..default.disk
    };
    let mut latency = default.clone();
    let preset = presets::find("latency").expect("it is one of the presets");
    for (key, value) in preset.values {
        match *key {
            "link.max_batch_size" => latency.max_block_records = *value as u32,
            "log.batch_timeout_ms" => latency.batch_timeout_us = *value as u64 * 1000,
            _ => panic!("the preset sets {key}, which this run knows nothing of"),
        }
    }
    let waits_less = default.batch_timeout_us - latency.batch_timeout_us;
    let (before, mut sum) = lags(seed, default, trace.clone())?;
    let (after, report) = lags(seed, latency, trace)?;
    sum.add(&report);
    for (before, after) in before.iter().zip(&after) {
        let lower = after[0] < before[0] && after[1] + waits_less / 2 <= before[1];
        ensure(lower, Name::Stuck, || {
            format!("p50 and p95 of the lag: {before:?} us by default, {after:?} with `latency`")
        })?;
    }
    Ok(sum)
}

/// Bytes a second at which the follower of [`paced_catch_up`] lets itself be brought up.
const PACE: u64 = 256 << 10;

/// A follower that stood still is brought up at the pace that it sets, and what the leader commits
/// meanwhile on top; when an operator lifts the bound it is there at once.
pub fn paced_catch_up(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = Options::quiet(3);
    options.client_every_us = 2_000;
    options.client_window = 8;
    options.value_bytes = 3_000;
    options.link.catch_up_bytes_per_s = PACE;
    let window = options.link.initial_credit_bytes;
    let mut world = world(seed, options, trace)?;
    world.wait_for_leader()?;
    world.pause_for(SECOND, 6_000_000);
    world.run_for(7_500_000)?;
    let begun = world.observe(SECOND)?;
    ensure(begun.catches_up, Name::Stuck, || {
        "a follower that lacks seconds of appends does not catch up at its pace".to_owned()
    })?;
    let live = |world: &mut World| -> Result<u64, Verdict> {
        Ok(world.observe(FIRST)?.granted.used.bytes)
    };
    let (own, others) = (begun.granted.used.bytes, live(&mut world)?);
    world.run_for(2_000_000)?;
    let now = world.observe(SECOND)?;
    let came = now.granted.used.bytes - own;
    let others = live(&mut world)? - others;
    let most = 2 * PACE.max(others) + window;
    ensure(
        now.catches_up && came <= most && came > others,
        Name::Stuck,
        || format!("{came} bytes came in 2 s, {others} to the other follower, at a pace of {PACE}"),
    )?;
    world.deliver(SECOND, Event::CatchUp { bytes_per_s: 0 })?;
    world.wait_for("a follower without a bound", |world| {
        let committed = world.observe(LEADER)?.high_watermark.0;
        Ok(committed < world.observe(SECOND)?.log_end.0 + 8)
    })?;
    world.come_to_rest()?;
    Ok(world.finish())
}
