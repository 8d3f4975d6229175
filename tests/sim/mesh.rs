//! Runs of a mesh: every node leads a log of its own origin and follows all others'.
//!
//! The logs of a node share nothing but what happens to the node: no event of one log ever reaches
//! the shard of another one. So a mesh of N nodes is N worlds, one for each origin, with the same
//! faults at the same moments at the same nodes; each world is checked as any other, and must end
//! with every record of its origin, once and in order, on every node. Read `world.rs` first.

use super::options::{Fault, Options};
use super::report::Report;
use super::rng::Rng;
use super::scenarios::Traced;
use super::verdict::{Checked, Name, Verdict, ensure};
use super::world::{Task, World};
use millrace::types::Level;

/// A fault of the whole mesh.
#[derive(Clone, Copy, Debug)]
struct Planned {
    at_us: u64,
    fault: Fault,
    node: usize,
    /// How it goes on, for every log alike.
    chance: u64,
}

fn plan(options: &Options, rng: &mut Rng) -> Vec<Planned> {
    let mut faults = Vec::new();
    let mut at_us = options.fault_every_us;
    while at_us < options.fault_phase_us && !options.faults.is_empty() {
        faults.push(Planned {
            at_us,
            fault: *rng.pick(&options.faults),
            node: rng.index(options.members),
            chance: rng.next_u64(),
        });
        at_us += rng.between(1, 2 * options.fault_every_us);
    }
    faults
}

/// One world for each origin, one after the other; the sum of their reports.
fn each_origin(
    options: &Options,
    rng: &mut Rng,
    trace: &Traced,
    run: impl Fn(&mut World) -> Checked,
) -> Result<Report, Verdict> {
    let mut sum = Report::default();
    for origin in 0..options.members {
        let mut options = options.clone();
        options.leader = origin;
        trace
            .borrow_mut()
            .note(0, format_args!("log of n{origin}: {options:?}"));
        let mut world = World::new(options, rng.fork(), trace.clone());
        world.start()?;
        run(&mut world)?;
        world.come_to_rest()?;
        sum.add(&world.finish());
    }
    Ok(sum)
}

/// The run of a seed: two or three nodes, faults, then rest.
pub fn swarm(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut rng = Rng::new(seed);
    let mut options = Options::of_seed(&mut rng);
    options.members = 2 + rng.index(2);
    options.mesh = true;
    options.electing = false;
    let faults = plan(&options, &mut rng);
    each_origin(&options, &mut rng, &trace, |world| {
        for planned in &faults {
            world.run_until(planned.at_us)?;
            world.refresh_blank();
            world.chaos.reseed(planned.chance);
            world.bring_about(planned.fault, planned.node)?;
        }
        world.run_until(world.options.fault_phase_us)
    })
}

/// Nobody reaches anybody: every node goes on to take appends at `leader` and `local`, also after
/// it lost its power and came back alone; none at `quorum`. Then all end up equal.
pub fn partition(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut rng = Rng::new(seed);
    let mut options = Options::quiet(2 + (seed % 2) as usize);
    options.mesh = true;
    options.electing = false;
    options.client_every_us = 3_000;
    each_origin(&options, &mut rng, &trace, |world| {
        world.wait_for_leader()?;
        world.run_for(200_000)?;
        let leader = world.options.leader;
        for node in 0..world.nodes.len() {
            world.cut_off(node, true);
        }
        acks_alone(world)?;
        world.crash_node(leader, true);
        world.after(50_000, Task::Restart { node: leader });
        world.run_for(100_000)?;
        world.wait_for_leader()?;
        acks_alone(world)?;
        for node in 0..world.nodes.len() {
            world.cut_off(node, false);
        }
        world.run_for(200_000)
    })
}

fn acks_alone(world: &mut World) -> Checked {
    // Acks of before the cut may still be under way.
    world.run_for(50_000)?;
    let before = Level::ALL.map(|level| world.checker.acked_count(level));
    world.run_for(1_500_000)?;
    let after = Level::ALL.map(|level| world.checker.acked_count(level));
    let [local, leader, quorum] = [0, 1, 2].map(|level| after[level] - before[level]);
    ensure(local > 0 && leader > 10, Name::Stuck, || {
        format!("alone: {local} appends at local, {leader} at leader")
    })?;
    ensure(quorum == 0, Name::AckedBeforeDurable, || {
        format!("alone: {quorum} appends at quorum")
    })
}

/// The disk of the leader is lost after the others went on without each other: it copies back what
/// any of them holds before it leads again.
pub fn lost_disk(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut rng = Rng::new(seed);
    let mut options = Options::quiet(2 + (seed % 2) as usize);
    options.mesh = true;
    options.electing = false;
    each_origin(&options, &mut rng, &trace, |world| {
        world.wait_for_leader()?;
        world.run_for(300_000)?;
        let (leader, last) = (world.options.leader, world.nodes.len() - 1);
        let away = if last == leader { 0 } else { last };
        if world.nodes.len() > 2 {
            world.cut_off(away, true);
            world.run_for(300_000)?;
        }
        let committed = world.checker.committed_end();
        world.crash_node(leader, true);
        world.blank_disk(leader);
        world.checker.leader_lost_memory();
        world.start_node(leader)?;
        world.run_for(1_500_000)?;
        if world.nodes.len() > 2 {
            let role = world.observe(leader)?.role;
            ensure(
                role == millrace::shard::status::Role::Opening,
                Name::AckedLost,
                || format!("{role:?} while a node that may hold more is away"),
            )?;
            world.cut_off(away, false);
        }
        world.wait_for_leader()?;
        let end = world.nodes[leader].image.end();
        ensure(end >= committed, Name::AckedLost, || {
            format!("it leads with {end} of {committed} committed blocks")
        })
    })
}
