//! Directed runs: histories that the swarm reaches too seldom, each with what it is about.
//!
//! A script brings a set into a certain state by cutting, pausing, slowing and crashing, with
//! chance left only where the state does not depend on it; then the set must come to rest like any
//! other. Runs end with the same checks as the swarm. The tests in `simulation.rs` run each with
//! several seeds.

use super::checker::memory_held;
use super::disk_options::DiskOptions;
use super::options::{Fault, Options};
use super::report::Report;
use super::rng::{Chance, Rng};
use super::trace::Trace;
use super::verdict::{Checked, Name, Verdict, ensure};
use super::world::World;
use millrace::limits::{INITIAL_CREDIT, INITIAL_CREDIT_BYTES, LINK_QUEUE_BYTES, RECENT_BYTES};
use millrace::shard::status::Role;
use millrace::types::Level;
use millrace::wire::body::Channel;
use std::cell::RefCell;
use std::rc::Rc;

/// The trace of a run.
pub type Traced = Rc<RefCell<Trace>>;

/// The placed leader.
pub const LEADER: usize = 0;
/// A follower.
pub const FIRST: usize = 1;
/// The other one.
pub const SECOND: usize = 2;

/// A started world with these options.
pub fn world(seed: u64, options: Options, trace: Traced) -> Result<World, Verdict> {
    trace
        .borrow_mut()
        .note(0, format_args!("seed {seed}: {options:?}"));
    let mut world = World::new(options, Rng::new(seed), trace);
    world.start()?;
    Ok(world)
}

impl World {
    /// Lets so much time pass.
    pub fn run_for(&mut self, us: u64) -> Checked {
        self.run_until(self.now_us + us)
    }

    /// Waits until the leader's epoch is open.
    pub fn wait_for_leader(&mut self) -> Checked {
        self.wait_for("an open epoch", |world| {
            let leader = world.options.leader;
            Ok(world.nodes[leader].awake() && world.observe(leader)?.role == Role::Leader)
        })
    }

    /// Lets nothing, or everything again, go between a node and all others.
    pub fn cut_off(&mut self, node: usize, blocked: bool) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.block_both(node, other, blocked);
        }
    }

    /// The same between two nodes.
    pub fn block_both(&mut self, one: usize, other: usize, blocked: bool) {
        self.net.set_blocked(self.now_us, one, other, blocked);
        self.net.set_blocked(self.now_us, other, one, blocked);
    }

    /// Every operation of this disk takes so long from now on.
    pub fn slow_disk(&mut self, node: usize, us: u64) {
        let options = self.nodes[node].disk.options_mut();
        options.slow = Chance::percent(100);
        options.slow_us = us;
    }

    /// Bytes of blocks on the leader's disk.
    fn log_bytes(&self) -> usize {
        let image = &self.nodes[self.options.leader].image;
        let blocks = image.below(image.end());
        blocks.iter().map(|block| block.padded_len).sum()
    }

    /// Most bytes of buffers that a node's process ever held.
    fn most_bytes(&self, node: usize) -> usize {
        let process = self.nodes[node].process.as_ref();
        process.map_or(0, |process| process.buffers.most_bytes())
    }

    /// As it was configured again.
    pub fn sound_disk(&mut self, node: usize) {
        *self.nodes[node].disk.options_mut() = self.options.disk.clone();
    }
}

/// Brings the second follower into possession of blocks that the leader lost with its power, and
/// lets the leader open its next epoch with the first follower. `second_write_us` is how long the
/// second follower's writes take. Clients send nothing new from then on.
pub fn leave_stale_blocks(world: &mut World, second_write_us: u64) -> Checked {
    world.wait_for_leader()?;
    world.run_for(100_000)?;
    world.cut_off(FIRST, true);
    world.slow_disk(LEADER, 2_000_000);
    if second_write_us > 0 {
        world.slow_disk(SECOND, second_write_us);
    }
    world.run_for(60_000)?;
    world.clients_active = false;
    world.cut_off(SECOND, true);
    world.crash_node(LEADER, true);
    world.sound_disk(LEADER);
    world.block_both(LEADER, FIRST, false);
    world.start_node(LEADER)?;
    world.wait_for_leader()
}

/// The same, and clients go on.
fn leave_stale_suffix(world: &mut World, second_write_us: u64) -> Checked {
    leave_stale_blocks(world, second_write_us)?;
    world.clients_active = true;
    world.run_for(50_000)
}

/// A follower holds a suffix that the leader of the next epoch does not have: it is cut, never
/// acknowledged, never committed.
pub fn stale_suffix(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, small_blocks(), trace)?;
    leave_stale_suffix(&mut world, 0)?;
    world.cut_off(SECOND, false);
    world.run_for(500_000)?;
    world.come_to_rest()?;
    Ok(world.finish())
}

/// The stale suffix becomes durable after the follower has adopted the next epoch, and before it
/// hears anything more of that epoch's leader.
pub fn stale_suffix_becomes_durable(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = small_blocks();
    options.link.rpc_timeout_us = 3_000_000;
    let mut world = world(seed, options, trace)?;
    leave_stale_suffix(&mut world, 1_200_000)?;
    world.sound_disk(SECOND);
    world.cut_off(FIRST, true);
    world.block_both(LEADER, SECOND, false);
    let epoch = world.observe(LEADER)?.epoch;
    let until_us = world.now_us + 400_000;
    while world.now_us < until_us && world.observe(SECOND)?.epoch != epoch {
        world.run_for(5)?;
    }
    world.net.set_blocked(world.now_us, LEADER, SECOND, true);
    world.run_for(2_000_000)?;
    world.come_to_rest()?;
    Ok(world.finish())
}

/// The cut comes while the stale blocks are still in flight to the disk.
pub fn cut_with_writes_in_flight(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, small_blocks(), trace)?;
    leave_stale_suffix(&mut world, 900_000)?;
    world.cut_off(SECOND, false);
    world.run_for(2_000_000)?;
    world.come_to_rest()?;
    Ok(world.finish())
}

/// Power is lost while the stale suffix is cut, or soon after it.
pub fn power_loss_in_a_cut(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, small_blocks(), trace)?;
    leave_stale_suffix(&mut world, 0)?;
    world.slow_disk(SECOND, 3_000);
    world.cut_off(SECOND, false);
    let moment = world.rng.below(120_000);
    world.run_for(moment)?;
    world.crash_node(SECOND, true);
    world.sound_disk(SECOND);
    world.start_node(SECOND)?;
    world.run_for(200_000)?;
    world.come_to_rest()?;
    Ok(world.finish())
}

/// Blocks of few records, files that roll often, busy clients.
pub fn small_blocks() -> Options {
    let mut options = Options::quiet(3);
    options.max_block_records = 6;
    options.client_every_us = 3_000;
    options.disk.segment_bytes = 64 << 10;
    options
}

/// Power of all nodes is lost again and again, at any instant, with files small enough to roll
/// often.
pub fn power_of_all_lost(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = small_blocks();
    options.max_block_bytes = 8 << 10;
    options.max_batch_bytes = (8 << 10) - 128;
    options.disk.segment_bytes = 32 << 10;
    options.disk.latency_us = (100, 3_000);
    options.faults = vec![Fault::PowerLossOfAll];
    options.fault_every_us = 400_000;
    options.fault_phase_us = 4_000_000;
    run_faults(seed, options, trace)
}

fn run_faults(seed: u64, options: Options, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, options, trace)?;
    world.begin_faults();
    world.run_until(world.options.fault_phase_us)?;
    world.come_to_rest()?;
    Ok(world.finish())
}

/// Payloads are damaged on the way, connections live on: each refusal gives its credit back.
pub fn damaged_payloads(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = small_blocks();
    options.network.payload_flip = Chance::percent(15);
    // Room enough that leaks show as leaks, not as a link that stands still.
    options.link.initial_credit_bytes = 16 << 20;
    options.link.initial_credit = 1 << 20;
    let mut world = world(seed, options, trace)?;
    world.run_until(1_500_000)?;
    world.options.network.payload_flip = Chance::NEVER;
    world.come_to_rest()?;
    Ok(world.finish())
}

/// A hundred connections are lost under load: none takes credit with it.
pub fn hundred_resets(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = small_blocks();
    options.link.retry_backoff_us = 2_000;
    let mut world = world(seed, options, trace)?;
    world.wait_for_leader()?;
    let mut resets = 0;
    while resets < 100 {
        resets += u64::from(world.net.reset_any(world.now_us));
        let pause = world.rng.between(1_000, 20_000);
        world.run_for(pause)?;
    }
    world.report.count("reset", resets);
    world.come_to_rest()?;
    Ok(world.finish())
}

/// A thousand data connections are lost under load: after each, once nothing is in flight, the
/// books of both ends say the same, and the whole window is there.
pub fn thousand_resets(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = small_blocks();
    options.link.retry_backoff_us = 2_000;
    options.client_every_us = 1_000;
    let mut world = world(seed, options, trace)?;
    world.wait_for_leader()?;
    for round in 0..1000 {
        let follower = if round % 2 == 0 { FIRST } else { SECOND };
        world.clients_active = true;
        let under_load = world.rng.between(500, 8_000);
        world.run_for(under_load)?;
        let data = world.net.dialed_id(LEADER, follower, Channel::Data);
        ensure(data.is_some(), Name::Stuck, || {
            format!("round {round}: no data connection to node {follower}")
        })?;
        world.net.reset(world.now_us, data.expect("just ensured"));
        world.report.count("reset", 1);
        world.clients_active = false;
        world.wait_for("all lags to reach 0", World::at_rest)?;
        world.check_credit()?;
        world.check_books()?;
    }
    world.come_to_rest()?;
    Ok(world.finish())
}

/// A follower stands still under load for a long time; the others go on, the leader holds no more
/// than its bound for that link, far less than it took in, and the follower catches up. Blocks fill
/// little of what a block may take, and credit allows more than the bound.
pub fn stopped_follower(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    const BLOCK: usize = 1 << 20;
    let mut options = busy();
    options.fault_phase_us = 8_000_000;
    options.max_block_bytes = BLOCK;
    options.disk = DiskOptions::sound(8 * BLOCK as u64);
    options.link.initial_credit = INITIAL_CREDIT;
    options.link.initial_credit_bytes = INITIAL_CREDIT_BYTES;
    let mut world = world(seed, options, trace)?;
    world.wait_for_leader()?;
    world.pause_for(SECOND, 8_000_000);
    world.run_for(1_000_000)?;
    let (before, from) = (world.checker.acked_count(Level::Quorum), world.log_bytes());
    world.run_for(6_500_000)?;
    let acked = world.checker.acked_count(Level::Quorum) - before;
    ensure(acked > 1000, Name::Stuck, || {
        format!("{acked} quorum appends while one follower stood still")
    })?;
    let taken = world.log_bytes() - from;
    let most = world.most_bytes(LEADER);
    // The open block, one read again for the link, one beyond its queue, appends under way, one
    // that the scrub looks at.
    let bound = RECENT_BYTES + LINK_QUEUE_BYTES + 5 * BLOCK;
    ensure(taken > 2 * bound, Name::Stuck, || {
        format!("only {taken} bytes were appended")
    })?;
    memory_held(LEADER, most, bound, "at most, while a follower stood still")?;
    world.come_to_rest()?;
    Ok(world.finish())
}

/// A follower's disk takes a tenth of what the leader takes in: nobody waits for it.
pub fn slow_follower(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, busy(), trace)?;
    world.wait_for_leader()?;
    world.run_for(200_000)?;
    world.slow_disk(SECOND, 400_000);
    let before = [LEADER, FIRST, SECOND].map(|node| world.nodes[node].image.end());
    world.run_for(4_000_000)?;
    let [leader, first, second] =
        [LEADER, FIRST, SECOND].map(|node| world.nodes[node].image.end() - before[node]);
    let apart = leader >= 10 * second.max(1) && first * 10 >= leader * 9;
    ensure(apart, Name::Stuck, || {
        format!("blocks written in 4 s: {leader}, {first}, and {second} by the slow one")
    })?;
    world.sound_disk(SECOND);
    world.come_to_rest()?;
    Ok(world.finish())
}

/// Clients that append several MiB in a second.
fn busy() -> Options {
    let mut options = Options::quiet(3);
    options.client_every_us = 1_000;
    options.client_window = 16;
    options.value_bytes = 3_000;
    options
}

/// A bit of a frame's typed body is inverted: that connection ends, a new one goes on.
pub fn typed_body_flip(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, Options::quiet(3), trace)?;
    world.wait_for_leader()?;
    world.run_for(100_000)?;
    let data = world.net.dialed_id(LEADER, FIRST, Channel::Data);
    ensure(data.is_some(), Name::Stuck, || {
        "no data connection".to_owned()
    })?;
    let data = data.expect("just ensured");
    world.net.flip_next(data);
    world.run_for(200_000)?;
    ensure(world.net.end(data).is_none(), Name::BytesDiffer, || {
        "a connection lived on after a flipped bit in a typed body".to_owned()
    })?;
    ensure(world.net.counts.head_flips == 1, Name::Stuck, || {
        "no frame was flipped".to_owned()
    })?;
    world.come_to_rest()?;
    Ok(world.finish())
}

/// A follower loses power while nothing is sent to it and comes back (with its disk, or a blank
/// one): the leader finds out without an append.
pub fn idle_follower_restarts(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, small_blocks(), trace)?;
    world.wait_for_leader()?;
    world.run_for(200_000)?;
    world.clients_active = false;
    world.wait_for("all lags to reach 0", World::at_rest)?;
    world.crash_node(FIRST, true);
    if seed % 2 == 1 {
        world.blank_disk(FIRST);
    }
    world.run_for(1_000)?;
    world.start_node(FIRST)?;
    world.wait_for("the follower to be taken up again", World::at_rest)?;
    world.come_to_rest()?;
    Ok(world.finish())
}

/// The pool is smaller than the recent blocks that a log would keep: nobody stands still for it.
pub fn small_pool(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = busy();
    options.pool = Some(3 << 20);
    let mut world = world(seed, options, trace)?;
    world.wait_for_leader()?;
    world.run_for(1_000_000)?;
    let before = world.checker.acked_count(Level::Quorum);
    world.run_for(3_000_000)?;
    let acked = world.checker.acked_count(Level::Quorum) - before;
    ensure(acked > 500, Name::Stuck, || {
        format!("{acked} quorum appends with a small pool")
    })?;
    let taken = world.log_bytes();
    ensure(taken > RECENT_BYTES, Name::Stuck, || {
        format!("only {taken} bytes were appended")
    })?;
    world.come_to_rest()?;
    Ok(world.finish())
}

/// A follower is away while the log moves on by several times what it keeps, then comes back; and
/// so does one with a blank disk.
pub fn behind_log_start(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = small_blocks();
    options.retention.trim_bytes = Some(2 * options.disk.segment_bytes);
    let mut world = world(seed, options, trace)?;
    world.wait_for_leader()?;
    world.run_for(300_000)?;
    world.crash_node(SECOND, true);
    if seed % 2 == 1 {
        world.blank_disk(SECOND);
    }
    let start = world.observe(LEADER)?.log_start.0;
    let end = world.nodes[SECOND].image.end();
    world.wait_for("the log to move on", |world| {
        let log_start = world.observe(LEADER)?.log_start.0;
        Ok(log_start > end + 10 && log_start > start + 10)
    })?;
    world.start_node(SECOND)?;
    world.run_for(1_000_000)?;
    let resets = world.observe(SECOND)?.counters.resets;
    ensure(resets >= 1, Name::Stuck, || {
        format!("the follower that was away began anew {resets} times")
    })?;
    world.come_to_rest()?;
    Ok(world.finish())
}
