//! Directed runs of damage in the end of a log that only its leader held.
//!
//! A leader that is cut off goes on at level `leader` until its lease is over, and all nodes die.
//! What it alone held is damaged when they come back: it may lead once it is certain that nobody
//! else holds those blocks, and gives up no sound one before. Read `scenarios.rs` first.

use super::report::Report;
use super::scenarios::{FIRST, LEADER, SECOND, Traced, world};
use super::scenarios_election::electing;
use super::verdict::{Checked, Name, Verdict, ensure};
use super::world::World;
use millrace::shard::status::Role;

/// Blocks that the leader alone holds: the first one, and the first one of its newest segment.
struct Alone {
    from: u64,
    newest: u64,
}

/// Runs the set until its leader alone holds blocks in several segments, then ends all processes.
fn leader_goes_on_alone(world: &mut World) -> Result<Alone, Verdict> {
    world.wait_for_leader()?;
    world.run_for(300_000)?;
    world.cut_off(LEADER, true);
    world.run_for(100_000)?;
    let held = |world: &World, node: usize| world.nodes[node].image.end();
    let from = held(world, FIRST).max(held(world, SECOND));
    let base_of = |world: &World, block: u64| {
        let place = world.nodes[LEADER].image.place_of(block);
        place.map(|(base, _)| base)
    };
    world.run_for(700_000)?;
    world.clients_active = false;
    let last = held(world, LEADER) - 1;
    let newest = base_of(world, last).expect("it is held");
    ensure(newest > from + 8, Name::Stuck, || {
        format!("{from} to {last} are all that the leader holds alone")
    })?;
    for node in 0..3 {
        world.crash_node(node, false);
    }
    world.cut_off(LEADER, false);
    world.checker.leader_lost_memory();
    Ok(Alone { from, newest })
}

/// Starts the former leader, which wins, and lets it find what is damaged.
fn start_leader(world: &mut World) -> Checked {
    world.start_node(LEADER)?;
    world.start_node(FIRST)?;
    world.wait_for("the damage to be found", |world| {
        let known = !world.observe(LEADER)?.damage.ranges.is_empty();
        Ok(known && matches!(world.observe(LEADER)?.role, Role::Opening | Role::Leader))
    })?;
    world.run_for(3_000_000)
}

/// While a leader that was elected gives up a damaged end, another one is elected and sends blocks
/// for the same places: they wait for the cut.
pub fn a_run_comes_while_a_damaged_end_is_cut(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, electing(seed, 3), trace)?;
    let alone = leader_goes_on_alone(&mut world)?;
    world.flip_in_block(LEADER, alone.newest - 2);
    start_leader(&mut world)?;
    let cut = world.observe(LEADER)?.counters.blocks_cut;
    ensure(cut == 0, Name::AckedLost, || {
        format!("{cut} blocks went though the second follower may hold them")
    })?;
    world.start_node(SECOND)?;
    while world.observe(LEADER)?.counters.blocks_cut == 0 {
        world.run_for(100)?;
        ensure(world.now_us < 60_000_000, Name::Stuck, || {
            "a damaged end that nobody else can hold is kept".to_owned()
        })?;
    }
    let role = world.observe(LEADER)?.role;
    ensure(role == Role::Opening, Name::Stuck, || {
        format!("a cut of a {role:?}, not of one that opens an epoch")
    })?;
    world.slow_disk(LEADER, 4_000_000);
    world.cut_off(LEADER, true);
    world.wait_for_other(LEADER, 20_000_000)?;
    world.clients_active = true;
    world.run_for(200_000)?;
    world.cut_off(LEADER, false);
    world.run_for(3_000_000)?;
    let end = world.nodes[LEADER].image.end();
    ensure(end > alone.newest, Name::Stuck, || {
        format!("the cut was over before anything came: block {end} is the next one")
    })?;
    world.sound_disk(LEADER);
    world.give_back_and_rest()
}

/// A committed block is damaged in the segment in which the others' logs end: the range that seems
/// to be damaged reaches over blocks of which nothing is wrong, and none of them is given up.
pub fn sound_blocks_behind_damage_stay(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, electing(seed, 3), trace)?;
    let alone = leader_goes_on_alone(&mut world)?;
    let end = world.nodes[LEADER].image.end();
    world.flip_in_block(LEADER, alone.from - 1);
    for node in [SECOND, FIRST, LEADER] {
        world.start_node(node)?;
    }
    world.wait_for_leader()?;
    let held = world.nodes[LEADER].image.end();
    let cut = world.observe(LEADER)?.counters.blocks_cut;
    ensure((cut, held >= end) == (0, true), Name::AckedLost, || {
        format!("{cut} sound blocks were given up: {held} are left of {end}")
    })?;
    world.give_back_and_rest()
}
