//! Directed runs in which disks are lost: one within the budget, and two at once beyond it.
//!
//! With one disk lost nothing that was acknowledged may be gone. With a majority of the disks lost
//! and an operator who says that the blank ones are new members, the set cannot know what it held;
//! it must then refuse: the node that still holds the old log keeps every committed block and is
//! never counted as holding the new one. Read `scenarios.rs` first.

use super::checker::Checker;
use super::disk::DiskFault;
use super::facts::BlockFacts;
use super::report::Report;
use super::scenarios::{FIRST, LEADER, SECOND, Traced, small_blocks, world};
use super::verdict::{Checked, Name, Verdict, ensure};
use super::world::World;
use millrace::shard::status::{LinkStatus, Role};
use millrace::types::Level;
use std::rc::Rc;

/// A node whose disk was replaced does not help to open an epoch: the third one must be asked.
pub fn blank_disk_does_not_vote(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, small_blocks(), trace)?;
    world.wait_for_leader()?;
    world.run_for(300_000)?;
    world.crash_node(SECOND, true);
    world.replace_disk(FIRST)?;
    world.crash_node(LEADER, true);
    world.start_node(LEADER)?;
    for _ in 0..200 {
        world.run_for(10_000)?;
        let role = world.observe(LEADER)?.role;
        ensure(role != Role::Leader, Name::AckedBeforeDurable, || {
            "an epoch was opened with the promise of a node that lost its memory".to_owned()
        })?;
    }
    world.start_node(SECOND)?;
    world.come_to_rest()?;
    Ok(world.finish())
}

/// The leader's own disk is replaced: it copies what the others hold before it leads again.
pub fn blank_leader_copies_first(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, small_blocks(), trace)?;
    world.wait_for_leader()?;
    world.run_for(300_000)?;
    let before = world.checker.committed_end();
    world.replace_disk(LEADER)?;
    world.checker.leader_lost_memory();
    world.wait_for_leader()?;
    let end = world.nodes[LEADER].image.end();
    ensure(end >= before && before > 0, Name::AckedLost, || {
        format!("a leader without memory leads with blocks up to {end} of {before}")
    })?;
    world.come_to_rest()?;
    Ok(world.finish())
}

impl World {
    /// Loses power at a node and starts it again on a blank disk.
    fn replace_disk(&mut self, node: usize) -> Checked {
        self.crash_node(node, true);
        self.blank_disk(node);
        self.start_node(node)
    }
}

/// Two of three disks are lost, and somebody calls them new. What the third one had committed.
struct Old {
    end: u64,
    blocks: Vec<Rc<BlockFacts>>,
}

/// Runs a set through so many epochs, then loses the disks of the leader and the first follower and
/// cuts the second one off. From here on a new set of facts counts.
fn lose_two_of_three(world: &mut World, epochs: u32) -> Result<Old, Verdict> {
    world.wait_for_leader()?;
    for _ in 1..epochs {
        world.run_for(50_000)?;
        world.crash_node(LEADER, true);
        world.start_node(LEADER)?;
        world.wait_for_leader()?;
    }
    world.run_for(500_000)?;
    world.clients_active = false;
    world.run_for(200_000)?;
    let end = world.observe(SECOND)?.high_watermark.0;
    let blocks = world.nodes[SECOND].image.below(end);
    ensure(end > 20, Name::Stuck, || format!("{end} blocks committed"))?;
    world.cut_off(SECOND, true);
    for client in 0..world.clients.len() {
        world.hang_up(client)?;
    }
    world.checker = Checker::new(3);
    for node in [LEADER, FIRST] {
        world.nodes[node].new_member = true;
        world.replace_disk(node)?;
    }
    Ok(Old { end, blocks })
}

/// The new set's log grows, by appends of this level, until it is the longer one: that a shorter
/// one differs shows in its length alone.
fn outgrow(world: &mut World, old: &Old, level: Level) -> Checked {
    world.wait_for("the new log to be the longer one", |world| {
        for client in 0..world.clients.len() {
            let idle = world.clients[client].waiting.is_empty();
            if idle && world.connect(client, LEADER) {
                world.append(client, level, true);
            }
        }
        Ok(world.observe(LEADER)?.log_end.0 > old.end)
    })
}

/// Heals, lets the new set take some appends, and looks whether the old log was left alone.
fn refuses(world: &mut World, old: &Old) -> Checked {
    world.wait_for_leader()?;
    world.run_for(100_000)?;
    world.cut_off(SECOND, false);
    world.run_for(600_000)?;
    for client in 0..world.clients.len() {
        world.connect(client, LEADER);
        world.append(client, Level::Quorum, true);
    }
    world.run_for(1_000_000)?;
    let kept = world.nodes[SECOND].image.below(old.end);
    ensure(kept == old.blocks, Name::CommittedChanged, || {
        format!(
            "node {SECOND} had {} blocks committed, {} of them are left",
            old.blocks.len(),
            kept.len()
        )
    })?;
    let status = world.observe(SECOND)?;
    ensure(
        status.high_watermark.0 >= old.end,
        Name::WatermarkWentBack,
        || format!("node {SECOND}: {status:?}, {} was committed", old.end),
    )?;
    let status = world.observe(LEADER)?;
    let second = &status.links[1];
    let stopped = matches!(second.status, LinkStatus::Paused | LinkStatus::Disconnected);
    ensure(stopped, Name::BytesDiffer, || {
        format!("the link to a node with another log: {second:?}")
    })
}

/// Same epoch, other bytes: the logs have diverged, whatever their lengths. What the old log holds
/// counts for nothing of the new one, which is longer and held by its leader alone.
pub fn same_epoch_other_bytes(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, small_blocks(), trace)?;
    let old = lose_two_of_three(&mut world, 1)?;
    world.wait_for_leader()?;
    if seed.is_multiple_of(2) {
        world.cut_off(FIRST, true);
        outgrow(&mut world, &old, Level::Leader)?;
        let committed = world.observe(LEADER)?.high_watermark;
        world.block_both(LEADER, SECOND, false);
        world.run_for(600_000)?;
        let now = world.observe(LEADER)?.high_watermark;
        ensure(now == committed, Name::AckedBeforeDurable, || {
            format!("blocks {committed} to {now} are committed, the leader alone holds them")
        })?;
        world.block_both(LEADER, FIRST, false);
    }
    refuses(&mut world, &old)?;
    Ok(world.finish())
}

/// The node that remembers higher epochs refuses the lower ones of the new set.
pub fn lower_epochs_are_refused(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, small_blocks(), trace)?;
    let old = lose_two_of_three(&mut world, 3)?;
    refuses(&mut world, &old)?;
    Ok(world.finish())
}

/// The new set's blocks are of a higher epoch than the old ones: those are committed all the same,
/// and never cut.
pub fn committed_blocks_are_not_cut(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, small_blocks(), trace)?;
    let old = lose_two_of_three(&mut world, 1)?;
    for node in [LEADER, FIRST] {
        world.nodes[node].disk.inject(0, DiskFault::NoSpace);
    }
    world.wait_for("the first write to fail", |world| {
        Ok(world.observe(LEADER)?.role == Role::Failed)
    })?;
    for node in [LEADER, FIRST] {
        world.crash_node(node, true);
        world.nodes[node].disk.forget_injected();
    }
    for node in [LEADER, FIRST] {
        world.start_node(node)?;
    }
    world.wait_for_leader()?;
    let status = world.observe(LEADER)?;
    ensure(status.epoch.0 == 2, Name::Stuck, || {
        format!("the new set is in epoch {}", status.epoch)
    })?;
    if seed.is_multiple_of(2) {
        outgrow(&mut world, &old, Level::Quorum)?;
    }
    refuses(&mut world, &old)?;
    Ok(world.finish())
}
