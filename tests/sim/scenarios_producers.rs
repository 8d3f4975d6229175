//! Directed runs about batches with sequences and readers of what is not committed.
//!
//! Each brings about by force what the swarm meets by chance: retries over restarts of the leader,
//! a cut of batches that producers send again, an open block that is read and then lost. They end
//! with the checks of every run. Read `scenarios.rs` first.

use super::report::Report;
use super::scenarios::{LEADER, SECOND, Traced, leave_stale_blocks, small_blocks, world};
use super::verdict::{Name, Verdict, ensure};
use super::world::World;
use millrace::types::Level;

/// Producers send on while the leader dies again and again, with its power or without.
pub fn retries_over_restarts(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = small_blocks();
    options.producers = 3;
    options.disk.latency_us = (200, 5_000);
    let mut world = world(seed, options, trace)?;
    for round in 0..8 {
        world.wait_for_leader()?;
        let moment = world.rng.between(20_000, 150_000);
        world.run_for(moment)?;
        world.crash_node(LEADER, round % 2 == 1);
        world.run_for(5_000)?;
        world.start_node(LEADER)?;
    }
    world.come_to_rest()?;
    Ok(world.finish())
}

/// A follower holds batches that the leader lost and cuts them: then it knows of their producers
/// what it knew before. They are sent again, and nothing else is.
pub fn cut_producers(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = small_blocks();
    options.producers = 3;
    let mut world = world(seed, options, trace)?;
    leave_stale_blocks(&mut world, 0)?;
    world.cut_off(SECOND, false);
    world.run_for(500_000)?;
    world.come_to_rest()?;
    Ok(world.finish())
}

/// A reader is given what stands in the open block as soon as it was acknowledged; the leader loses
/// it with its power, and the reader hears of it before it is given anything else.
pub fn lost_open_block(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = small_blocks();
    options.clients = 1;
    options.producers = 0;
    options.batch_timeout_us = 60_000_000;
    let mut world = world(seed, options, trace)?;
    world.wait_for_leader()?;
    world.run_for(100_000)?;
    world.clients_active = false;
    world.wait_for("the client to finish", |world| {
        Ok(world.clients[0].waiting.is_empty())
    })?;
    world.wait_for("all lags to reach 0", World::at_rest)?;
    world.slow_disk(LEADER, 3_000_000);
    world.hang_up(0)?;
    world.connect(0, LEADER);
    for _ in 0..3 {
        world.append(0, Level::Local, true);
        world.run_for(2_000)?;
    }
    for _ in 0..300 {
        world.read_on(0);
        world.run_for(1_000)?;
    }
    let (read, durable) = (
        world.clients[0].copy.end(),
        world.observe(LEADER)?.durable_offset.0,
    );
    let end = world.checker.acked_end();
    ensure(durable < end && read == end, Name::ReadWrong, || {
        format!("{durable} records are durable, {end} acknowledged, {read} were read")
    })?;
    world.cut_off(LEADER, true);
    world.crash_node(LEADER, true);
    world.sound_disk(LEADER);
    world.cut_off(LEADER, false);
    world.start_node(LEADER)?;
    world.come_to_rest()?;
    Ok(world.finish())
}
