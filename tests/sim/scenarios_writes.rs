//! Directed runs that count what a node asks of its disk.
//!
//! A follower's writes follow from the blocks it is sent, not from how often it is asked, how its
//! blocks are acknowledged or how long it waits. Read `scenarios.rs` first, `disk_options.rs` for
//! the counters.

use super::disk_options::DiskCounts;
use super::report::Report;
use super::scenarios::{FIRST, LEADER, Traced, small_blocks, world};
use super::verdict::{Checked, Name, Verdict, ensure};
use super::world::World;
use millrace::types::Level;
use millrace::wire::body::Channel;

/// What a follower was sent and what it asked of its disk, from one moment to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spent {
    blocks: u64,
    disk: DiskCounts,
}

impl World {
    /// Since the start of its process.
    fn spent(&mut self, node: usize) -> Result<Spent, Verdict> {
        Ok(Spent {
            blocks: self.observe(node)?.counters.blocks_admitted,
            disk: self.nodes[node].disk.counts(),
        })
    }

    fn settle(&mut self) -> Checked {
        self.clients_active = false;
        self.wait_for("the clients to finish", |world| {
            Ok(world.clients.iter().all(|client| client.waiting.is_empty()))
        })?;
        self.wait_for("all lags to reach 0", World::at_rest)
    }

    /// Appends one at a time, each of them a block of its own.
    fn append_blocks(&mut self, level: Level, count: u64) -> Checked {
        self.hang_up(0)?;
        for _ in 0..count {
            self.connect(0, LEADER);
            self.append(0, level, true);
            self.settle()?;
        }
        Ok(())
    }
}

/// one write for each block that comes alone, whatever its level; no barrier of its own for
/// any of them; nothing at all for reads, heartbeats, pauses and new connections.
pub fn follower_writes(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    const BLOCKS: u64 = 40;
    let mut options = small_blocks();
    options.producers = 0;
    let mut world = world(seed, options, trace)?;
    world.wait_for_leader()?;
    world.run_for(300_000)?;
    world.settle()?;
    for level in Level::ALL {
        let before = world.spent(FIRST)?;
        world.append_blocks(level, BLOCKS)?;
        let after = world.spent(FIRST)?;
        let blocks = after.blocks - before.blocks;
        let (one, other) = (before.disk, after.disk);
        let files = other.provide - one.provide;
        let writes = other.write - one.write;
        ensure(blocks >= BLOCKS, Name::Stuck, || {
            format!("{BLOCKS} appends made {blocks} blocks")
        })?;
        // A file that comes in is given a header.
        let right = writes == blocks + files && other.sync == one.sync;
        ensure(right, Name::Stuck, || {
            format!(
                "{blocks} blocks at {level:?}, {files} files: {writes} writes, {} barriers",
                other.sync - one.sync
            )
        })?;
    }
    let before = world.spent(FIRST)?;
    for round in 0..200 {
        world.hang_up(1)?;
        world.connect(1, if round % 2 == 0 { FIRST } else { LEADER });
        world.read_on(1);
        if round % 20 == 0 {
            world.pause_link(LEADER, FIRST, round % 40 == 0)?;
        }
        if round % 50 == 10 {
            let data = world.net.dialed_id(LEADER, FIRST, Channel::Data);
            data.into_iter()
                .for_each(|id| world.net.reset(world.now_us, id));
        }
        world.run_for(20_000)?;
    }
    let after = world.spent(FIRST)?;
    let (one, other) = (before.disk, after.disk);
    let writes = other.write - one.write;
    let blocks = after.blocks - before.blocks;
    let right = writes <= blocks && other.sync == one.sync;
    ensure(right && blocks < 20, Name::Stuck, || {
        format!("{blocks} blocks without an append: {before:?}, then {after:?}")
    })?;
    world.pause_link(LEADER, FIRST, false)?;
    world.come_to_rest()?;
    Ok(world.finish())
}
