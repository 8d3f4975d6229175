//! Directed runs of electing sets: leaders that die, wake, are cut off, or hand over.
//!
//! Each brings a set into one situation and asks what the swarm cannot ask: how soon somebody leads
//! again, that a leader without a majority says nothing, that nobody leads who must not. At most
//! one leader an epoch, and nothing acknowledged lost or doubled, is checked in all of them. Read
//! `scenarios.rs` first.

use super::client::{Client, ClientRequest, Waiting};
use super::disk::DiskFault;
use super::node::node_id;
use super::options::Options;
use super::report::Report;
use super::scenarios::{FIRST, LEADER, SECOND, Traced, small_blocks, world};
use super::verdict::{Checked, Name, Verdict, ensure};
use super::world::World;
use millrace::shard::Event;
use millrace::shard::status::{Role, ShardStatus};
use millrace::types::{Level, ReadLevel};
use millrace::wire::code::Code;

/// An electing set with the default timeout, whose leadership never goes back by itself.
pub fn electing(seed: u64, members: usize) -> Options {
    let mut options = small_blocks();
    options.members = members;
    options.electing = true;
    options.election_seed = seed;
    options.link.election_timeout_us = 1_000_000;
    options.link.handover_us = 3_600_000_000;
    options.client_every_us = 6_000;
    options
}

impl World {
    fn role(&mut self, node: usize) -> Result<Option<Role>, Verdict> {
        match self.nodes[node].awake() {
            true => Ok(Some(self.observe(node)?.role)),
            false => Ok(None),
        }
    }

    /// Waits at most so long until another node than `former` leads; which.
    pub fn wait_for_other(&mut self, former: usize, within_us: u64) -> Result<usize, Verdict> {
        let until_us = self.now_us + within_us;
        while self.now_us < until_us {
            for node in (0..self.nodes.len()).filter(|node| *node != former) {
                if self.role(node)? == Some(Role::Leader) {
                    return Ok(node);
                }
            }
            self.run_for(1_000)?;
        }
        ensure(false, Name::Stuck, || {
            format!("nobody but node {former} leads after {within_us} us")
        })?;
        unreachable!("just refused")
    }

    /// The end: the leadership goes back to the placed leader, and the set comes to rest.
    pub fn give_back_and_rest(mut self) -> Result<Report, Verdict> {
        self.mend()?;
        self.wait_for("the placed leader to be caught up", |world| {
            let leader = world.leader();
            let to = node_id(LEADER);
            world.deliver(leader, Event::Promote { to })?;
            Ok(world.role(LEADER)? == Some(Role::Leader))
        })?;
        self.come_to_rest()?;
        Ok(self.finish())
    }

    /// A client of its own asks the former leader for committed records about the place where it
    /// counted no more as committed; which client. The checkers look at each answer: it holds
    /// nothing but what is committed, and nothing that its node did not know to be.
    fn wants_committed(&mut self, old: &ShardStatus) -> usize {
        let reader = self.clients.len();
        let rng = self.rng.fork();
        let client = Client::new(reader as u32, rng, &self.options);
        self.clients.push(client);
        self.connect(reader, LEADER);
        let (committed, held) = (old.committed_offset.0, old.durable_offset.0);
        let places = [0, committed - 1, committed, committed + 1, held, held + 1];
        for offset in places {
            let (level, last_epoch, wait_ms) = (ReadLevel::Committed, 0, 200);
            let request = ClientRequest::Read {
                offset,
                max_bytes: 1 << 16,
                wait_ms,
                level,
                last_epoch,
            };
            let waiting = Waiting::Read {
                offset,
                level,
                last_epoch,
            };
            self.request(reader, request, waiting, wait_ms);
        }
        reader
    }

    fn quorum_acks(&self) -> u64 {
        self.checker.acked_count(Level::Quorum)
    }
}

/// S-5, Q-1: a leader dies under load. Within 3 s another one takes appends, and everything that
/// was acknowledged at `quorum` is there.
pub fn leader_killed(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let members = if seed.is_multiple_of(2) { 3 } else { 5 };
    let mut world = world(seed, electing(seed, members), trace)?;
    world.wait_for_leader()?;
    world.run_for(500_000)?;
    let end = world.checker.committed_end();
    world.crash_node(LEADER, seed % 4 < 2);
    let next = world.wait_for_other(LEADER, 3_000_000)?;
    let held = world.nodes[next].image.end();
    ensure(held >= end && end > 0, Name::AckedLost, || {
        format!("node {next} leads with blocks up to {held}, {end} were committed")
    })?;
    let before = world.quorum_acks();
    world.run_for(1_000_000)?;
    let acked = world.quorum_acks() - before;
    ensure(acked > 20, Name::Stuck, || {
        format!("{acked} appends acknowledged in 1 s by the next leader")
    })?;
    world.give_back_and_rest()
}

/// a write of the leader fails. Its log is closed, and another member leads well before an
/// election timeout is over; nothing acknowledged is lost, and the set of two goes on.
pub fn leader_disk_fails(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, electing(seed, 3), trace)?;
    world.wait_for_leader()?;
    world.run_for(500_000)?;
    world.nodes[LEADER].disk.inject(0, DiskFault::Error);
    world.wait_for("a closed log", |world| {
        Ok(world.observe(LEADER)?.role == Role::Failed)
    })?;
    let shortest_us = world.options.link.election_timeout_us;
    world.wait_for_other(LEADER, shortest_us / 2)?;
    let before = world.quorum_acks();
    world.run_for(500_000)?;
    let acked = world.quorum_acks() - before;
    ensure(acked > 10, Name::Stuck, || {
        format!("{acked} appends acknowledged in 0.5 s by the next leader")
    })?;
    world.give_back_and_rest()
}

/// a leader gets no time for longer than an election takes. When it goes on it leads no more:
/// it acknowledges nothing, and what it calls committed is. Every other seed leaves it with records
/// that nobody else has.
pub fn old_leader_wakes(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, electing(seed, 3), trace)?;
    world.wait_for_leader()?;
    world.run_for(300_000)?;
    let parted = seed % 2 == 1;
    world.cut_off(LEADER, parted);
    world.run_for(50_000)?;
    world.pause_for(LEADER, 4_000_000);
    let old = world.observe(LEADER)?;
    ensure(
        !parted || old.durable_offset > old.committed_offset,
        Name::Stuck,
        || format!("nothing but what is committed is held: {old:?}"),
    )?;
    // These come before all that a later leader sends it.
    let early = world.wants_committed(&old);
    world.run_for(1_000)?;
    world.wait_for_other(LEADER, 3_000_000)?;
    world.cut_off(LEADER, false);
    let before = world.acks_by[LEADER];
    // What waits in its sockets, and what clients send it, finds no leader.
    for client in 0..early {
        world.hang_up(client)?;
        world.connect(client, LEADER);
        for level in Level::ALL {
            world.append(client, level, true);
        }
    }
    let late = world.wants_committed(&old);
    let run = world.nodes[LEADER].run;
    world.run_for(100_000)?;
    world.unpause(LEADER, run)?;
    world.run_for(500_000)?;
    let role = world.observe(LEADER)?.role;
    let acked = world.acks_by[LEADER] - before;
    ensure(
        acked == 0 && role == Role::Follower,
        Name::TwoLeaders,
        || format!("the former leader woke as {role:?} and acknowledged {acked} appends"),
    )?;
    for reader in [late, early] {
        let at = &world.clients[reader];
        let (unanswered, read_to) = (at.waiting.len(), at.read_at.0);
        ensure(
            unanswered == 0 && read_to >= old.committed_offset.0,
            Name::Stuck,
            || format!("{unanswered} reads of a woken node are open, it gave all to {read_to}"),
        )?;
        world.hang_up(reader)?;
        world.clients.pop();
    }
    world.give_back_and_rest()
}

/// A leader that the others do not hear, or that does not hear them: it steps down about when they
/// elect another one, and from then on acknowledges nothing.
pub fn one_way(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, electing(seed, 3), trace)?;
    world.wait_for_leader()?;
    world.run_for(300_000)?;
    for other in [FIRST, SECOND] {
        let (from, to) = match seed % 2 {
            0 => (LEADER, other),
            _ => (other, LEADER),
        };
        world.net.set_blocked(world.now_us, from, to, true);
    }
    world.run_for(2_200_000)?;
    steps_down(&mut world)?;
    if seed.is_multiple_of(2) {
        world.wait_for_other(LEADER, 1_500_000)?;
    }
    world.give_back_and_rest()
}

/// A leader that is cut off from everybody acknowledges nothing at `quorum`, and steps down.
pub fn minority_leader(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let members = if seed.is_multiple_of(2) { 3 } else { 5 };
    let mut world = world(seed, electing(seed, members), trace)?;
    world.wait_for_leader()?;
    world.run_for(300_000)?;
    for other in 1..=members / 2 + members % 2 {
        world.block_both(LEADER, other.min(members - 1), true);
        if members == 5 {
            world.block_both(4, other.min(3), true);
        }
    }
    world.run_for(2_200_000)?;
    steps_down(&mut world)?;
    world.wait_for_other(LEADER, 3_000_000)?;
    world.give_back_and_rest()
}

/// The placed leader leads no more and acknowledges nothing.
fn steps_down(world: &mut World) -> Checked {
    let role = world.observe(LEADER)?.role;
    let before = world.acks_by[LEADER];
    for client in 0..world.clients.len() {
        world.hang_up(client)?;
        world.connect(client, LEADER);
        for level in Level::ALL {
            world.append(client, level, true);
        }
    }
    world.run_for(200_000)?;
    let acked = world.acks_by[LEADER] - before;
    ensure(role != Role::Leader && acked == 0, Name::TwoLeaders, || {
        format!("a leader without a majority is {role:?} and acknowledged {acked} appends")
    })
}

/// All followers find at one instant that their leader is gone, so votes split; somebody leads all
/// the same, and never two in one epoch.
pub fn split_vote(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, electing(seed, 5), trace)?;
    world.wait_for_leader()?;
    world.run_for(300_000)?;
    for round in 0..6 {
        let leader = world.leader();
        world.crash_node(leader, round & 1 == 0);
        let others: Vec<usize> = (0..5).filter(|node| *node != leader).collect();
        for node in others.clone() {
            world.pause_for(node, 2_500_000);
        }
        world.run_for(2_400_000)?;
        // Two of them do not hear that the other one stands as well.
        world.block_both(others[0], others[1], true);
        for node in others.clone() {
            let run = world.nodes[node].run;
            world.unpause(node, run)?;
        }
        world.wait_for_other(leader, 6_000_000)?;
        world.run_for(50_000)?;
        world.block_both(others[0], others[1], false);
        world.start_node(leader)?;
        world.run_for(300_000)?;
    }
    world.give_back_and_rest()
}

/// A member that lacks what was acknowledged is not elected, however early it stands.
pub fn candidate_behind(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, electing(seed, 3), trace)?;
    world.wait_for_leader()?;
    world.run_for(200_000)?;
    world.cut_off(SECOND, true);
    world.run_for(2_500_000)?;
    // It has been standing all the time; the other one hears a leader until now.
    world.crash_node(LEADER, true);
    world.block_both(SECOND, FIRST, false);
    let next = world.wait_for_other(LEADER, 3_000_000)?;
    ensure(next == FIRST, Name::AckedLost, || {
        format!("node {next} leads and lacks what was acknowledged while it was cut off")
    })?;
    world.give_back_and_rest()
}

/// The leadership goes round under load: no append ends as failed or unknown.
pub fn hand_over(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = electing(seed, 3);
    options.producers = 0;
    let mut world = world(seed, options, trace)?;
    world.clients_active = false;
    world.wait_for_leader()?;
    world.run_for(100_000)?;
    let mut sent = 0;
    for round in 0..12 {
        let leader = world.leader();
        let to = node_id((leader + 1) % 3);
        let until_us = world.now_us + 400_000;
        let mut asked = 0;
        while world.now_us < until_us && world.leader() == leader {
            sent += append_everywhere(&mut world, leader)?;
            world.run_for(2_000)?;
            asked += 1;
            if asked % 10 == 5 {
                world.deliver(leader, Event::Promote { to })?;
            }
        }
        let next = world.leader();
        ensure(node_id(next) == to, Name::Stuck, || {
            format!("round {round}: node {to} was to lead, node {next} does")
        })?;
        world.run_for(50_000)?;
    }
    world.run_for(500_000)?;
    let bad = [Code::Unknown, Code::LogFailed, Code::Timeout];
    let failed: u64 = bad
        .iter()
        .filter_map(|code| world.refusals.get(&code.number()))
        .sum();
    let acked: u64 = world.acks_by.iter().sum();
    ensure(failed == 0 && acked > 100, Name::Stuck, || {
        format!(
            "{sent} appends: {acked} acknowledged, refusals {:?}",
            world.refusals
        )
    })?;
    world.give_back_and_rest()
}

/// Each client that has none unanswered sends an append to the leader.
fn append_everywhere(world: &mut World, leader: usize) -> Result<u64, Verdict> {
    let mut sent = 0;
    for client in 0..world.clients.len() {
        let idle = world.clients[client].waiting.is_empty();
        let session = world.clients[client].session;
        if idle && session.is_some_and(|session| session.node != leader) {
            world.hang_up(client)?;
        }
        if idle && world.connect(client, leader) {
            world.append(client, Level::Quorum, true);
            sent += 1;
        }
    }
    Ok(sent)
}

/// A member comes and goes: nobody deposes the leader that the others hear.
pub fn flapping(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut world = world(seed, electing(seed, 3), trace)?;
    world.wait_for_leader()?;
    world.run_for(300_000)?;
    let epoch = world.observe(LEADER)?.epoch;
    for round in 0..6 {
        let away = world.rng.between(200_000, 3_000_000);
        match (round + seed) % 3 {
            0 => world.cut_off(SECOND, true),
            1 => world.net.set_blocked(world.now_us, LEADER, SECOND, true),
            _ => world.pause_for(SECOND, away),
        }
        world.run_for(away)?;
        world.cut_off(SECOND, false);
        let back = world.rng.between(50_000, 1_000_000);
        world.run_for(back)?;
    }
    let status = world.observe(LEADER)?;
    ensure(
        status.epoch == epoch && status.role == Role::Leader,
        Name::Stuck,
        || format!("the leader of epoch {epoch} was deposed: {status:?}"),
    )?;
    world.give_back_and_rest()
}

/// The placed leader was away: once it is caught up it is given the leadership back.
pub fn given_back(seed: u64, trace: Traced) -> Result<Report, Verdict> {
    let mut options = electing(seed, 3);
    options.link.handover_us = 2_000_000;
    let mut world = world(seed, options, trace)?;
    world.wait_for_leader()?;
    world.run_for(200_000)?;
    world.crash_node(LEADER, true);
    world.wait_for_other(LEADER, 3_000_000)?;
    world.run_for(500_000)?;
    world.start_node(LEADER)?;
    world.run_for(1_500_000)?;
    let early = world.observe(LEADER)?.role;
    ensure(early == Role::Follower, Name::Stuck, || {
        format!("the placed leader is {early:?} before it was caught up for a while")
    })?;
    world.run_for(2_000_000)?;
    let role = world.observe(LEADER)?.role;
    ensure(role == Role::Leader, Name::Stuck, || {
        format!("the placed leader is {role:?} after it was caught up for a while")
    })?;
    world.come_to_rest()?;
    Ok(world.finish())
}
