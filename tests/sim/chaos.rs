//! The faults of a run: which one happens when, to whom, and when it ends.
//!
//! Faults of storage stay within a budget: a disk is damaged (blank, rotten, or its log closed by
//! an error) only while, with it, at most a minority of the set is damaged or down; in a mesh, only
//! while no other node is. Crashes, losses of power (of all nodes at once too), cuts and pauses
//! know no budget: they must never cost more than time. Each fault that needs an end puts it on the
//! world's agenda. Read `options.rs` for the kinds, `rest.rs` for how the phase ends.

use super::disk::DiskFault;
use super::image::Image;
use super::network::NetOptions;
use super::node::{Process, node_id};
use super::options::Fault;
use super::rng::{Chance, Rng};
use super::rot::Rot;
use super::verdict::Checked;
use super::world::{Task, World};
use millrace::shard::Event;
use millrace::wal::op::DiskOp;

/// How often a machine that is to lose its power is looked at until it writes.
const LOOKS: u32 = 200;
/// Time between two looks, microseconds.
const LOOK_EVERY_US: u64 = 100;

/// The faults' own chance, and whether they go on.
#[derive(Debug)]
pub struct Chaos {
    pub rng: Rng,
    /// Whether new faults come by themselves.
    pub active: bool,
    /// Hand-overs that were asked for and begun: of which epoch, to whom.
    pub promoted: Vec<(u32, usize)>,
}

/// Something on the agenda of the faults.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The next fault.
    Next,
    /// What went wrong between two nodes is over.
    Heal {
        /// From.
        from: usize,
        /// To.
        to: usize,
    },
    /// The network is as before.
    NetworkSound,
    /// A disk is as before.
    DiskSound {
        /// Whose.
        node: usize,
    },
    /// An operator lets a link go on.
    ResumeLink {
        /// At which node.
        node: usize,
        /// With whom.
        peer: usize,
    },
    /// A machine loses its power if it is writing, else a little later.
    PowerLoss {
        /// Which.
        node: usize,
        /// How often more it is looked at before it loses it anyway.
        looks: u32,
    },
    /// Somebody restarts a node whose log is closed.
    RestartFailed {
        /// Which.
        node: usize,
        /// The process that closed it.
        run: u64,
    },
}

impl Chaos {
    /// No faults yet.
    pub fn new(rng: Rng) -> Chaos {
        Chaos {
            rng,
            active: false,
            promoted: Vec::new(),
        }
    }

    /// What comes next follows from this alone.
    pub fn reseed(&mut self, seed: u64) {
        self.rng = Rng::new(seed);
    }
}

impl World {
    /// Begins the fault phase.
    pub fn begin_faults(&mut self) {
        self.chaos.active = true;
        self.after(self.options.fault_every_us, Task::Chaos(Step::Next));
    }

    /// A step of the faults.
    pub fn chaos_step(&mut self, step: Step) -> Checked {
        match step {
            Step::Next if self.chaos.active && !self.options.faults.is_empty() => {
                let next = self.chaos.rng.between(1, 2 * self.options.fault_every_us);
                self.after(next, Task::Chaos(Step::Next));
                self.refresh_blank();
                let fault = *self.chaos.rng.pick(&self.options.faults);
                let node = self.chaos.rng.index(self.nodes.len());
                return self.bring_about(fault, node);
            }
            Step::Next => {}
            Step::Heal { from, to } => self.net.set_blocked(self.now_us, from, to, false),
            Step::NetworkSound => self.net.options = self.options.network.clone(),
            Step::DiskSound { node } => {
                *self.nodes[node].disk.options_mut() = self.options.disk.clone();
            }
            Step::ResumeLink { node, peer } => return self.pause_link(node, peer, false),
            Step::PowerLoss { node, looks } if self.chaos.active => self.lose_power(node, looks),
            Step::PowerLoss { .. } => {}
            Step::RestartFailed { node, run } if self.runs(node, run) => {
                self.crash_node(node, false);
                return self.start_node(node);
            }
            Step::RestartFailed { .. } => {}
        }
        Ok(())
    }

    /// Brings a fault about, if the budget has room for it.
    pub fn bring_about(&mut self, fault: Fault, node: usize) -> Checked {
        self.note(format_args!("fault {fault:?} at n{node}"));
        let peer = (node + 1 + self.chaos.rng.index(2)) % self.nodes.len();
        match fault {
            Fault::Cut => self.cut(node, peer),
            Fault::OneWayCut if node != peer => {
                let lasting = self.chaos.rng.between(10_000, 1_000_000);
                self.block(node, peer, lasting);
                self.report.count("one_way_cut", 1);
            }
            Fault::OneWayCut => {}
            Fault::Reset => {
                let times = u64::from(self.net.reset_any(self.now_us));
                self.report.count("reset", times);
            }
            Fault::Delay => self.network_for_a_while(|options| {
                options.spike = Chance::percent(10);
                options.spike_us = 100_000;
            }),
            Fault::Flip => {
                let flip = Chance(*self.chaos.rng.pick(&[5_000, 50_000, 200_000]));
                let which = self.chaos.rng.below(3);
                self.network_for_a_while(|options| {
                    options.head_flip = if which == 0 { Chance::NEVER } else { flip };
                    options.payload_flip = if which == 1 { Chance::NEVER } else { flip };
                });
            }
            Fault::Kill => self.crash_for_a_while(node, false),
            Fault::PowerLoss => {
                // The logs of a mesh lose their power at one moment.
                let waits = !self.options.mesh && self.chaos.rng.flip();
                self.lose_power(node, if waits { LOOKS } else { 0 });
            }
            Fault::PowerLossOfAll => {
                self.report.count("power_loss_of_all", 1);
                for node in 0..self.nodes.len() {
                    self.crash_for_a_while(node, true);
                }
            }
            Fault::Pause => self.pause(node),
            Fault::ClockStep => self.step_clock(node),
            Fault::PauseLink if node != peer => {
                self.report.count("paused_link", 1);
                let lasting = self.chaos.rng.between(1_000, 800_000);
                self.after(lasting, Task::Chaos(Step::ResumeLink { node, peer }));
                return self.pause_link(node, peer, true);
            }
            Fault::PauseLink => {}
            Fault::FullDisk => {
                // The disks of a set fill at one pace.
                let all = self.chaos.rng.flip();
                for node in (0..self.nodes.len()).filter(|other| all || *other == node) {
                    self.nodes[node].disk.options_mut().full = true;
                    self.disk_sound_later(node, 1_500_000);
                }
            }
            Fault::Promote => return self.promote(if node == self.leader() { peer } else { node }),
            Fault::SlowDisk => {
                let options = self.nodes[node].disk.options_mut();
                options.slow = Chance::percent(30);
                options.slow_us = 60_000;
                self.disk_sound_later(node, 500_000);
            }
            // What harms a disk.
            _ if self.budget_allows(node) => self.damage(fault, node),
            _ => {}
        }
        Ok(())
    }

    /// Whether `node` may be damaged: with it no more than a minority of the set, or one node of a
    /// mesh, is damaged or down.
    fn budget_allows(&self, node: usize) -> bool {
        let others = self.nodes.iter().filter(|other| other.index != node);
        let harmed = others.filter(|other| {
            other.has_lost_blocks() || other.failed_since_us.is_some() || other.process.is_none()
        });
        let most = match self.options.mesh {
            true => 1,
            false => ((self.nodes.len() - 1) / 2).max(1),
        };
        harmed.count() < most && !self.nodes[node].blank
    }

    /// Counts that two disks of a set of five lack at one moment what they held.
    fn count_two_harmed(&mut self, node: usize) {
        let harmed = self.nodes.iter().filter(|other| other.has_lost_blocks());
        let two = self.nodes.len() == 5 && self.nodes[node].has_lost_blocks();
        self.report
            .count("two_harmed_at_once", u64::from(two && harmed.count() == 2));
    }

    fn damage(&mut self, fault: Fault, node: usize) {
        let writes = self.chaos.rng.below(4);
        let wide = self.chaos.rng.flip();
        let disk = &mut self.nodes[node].disk;
        match fault {
            Fault::FlippedAtRest | Fault::Misdirected => self.rot(fault, node),
            Fault::ShortWrite => disk.inject(writes, DiskFault::Short),
            Fault::WriteError if !wide => disk.inject(writes, DiskFault::Error),
            Fault::WriteError => {
                disk.options_mut().write_error = Chance::percent(30);
                self.disk_sound_later(node, 20_000);
            }
            Fault::NoSpace if !wide => disk.inject(writes, DiskFault::NoSpace),
            Fault::NoSpace => {
                disk.options_mut().no_space = Chance::percent(100);
                self.disk_sound_later(node, 20_000);
            }
            // In a set a majority of the others must remember; in a mesh any one of them helps.
            _ if self.nodes.len() >= if self.options.mesh { 2 } else { 3 } => self.lose_disk(node),
            _ => {}
        }
        self.count_two_harmed(node);
    }

    /// The machine's disk is replaced by a blank one while it is down.
    pub fn lose_disk(&mut self, node: usize) {
        self.report.count("blank_disk", 1);
        self.crash_for_a_while(node, true);
        self.blank_disk(node);
        if node == self.leader() {
            self.checker.leader_lost_memory();
        }
    }

    /// A machine that is down gets a blank disk.
    pub fn blank_disk(&mut self, node: usize) {
        let at = &mut self.nodes[node];
        at.disk.lose_everything();
        at.rot = Rot::default();
        at.before_loss = Some(std::mem::take(&mut at.image));
        at.blank = true;
        self.checker.memory_lost(node);
        if self.options.mesh {
            // An epoch that nobody else has heard of is gone with the disk, and may be led again.
            let others = self.nodes.iter().filter(|other| other.index != node);
            let images: Vec<_> = others.map(|other| &other.image).collect();
            self.checker.forget_written(|epoch, block| {
                let held = |image: &&Image| {
                    let facts = image.chained(block);
                    facts.is_some_and(|facts| facts.epoch == epoch)
                };
                images.iter().copied().any(|image| held(&image))
            });
        }
    }

    /// Finds out, from their disks, which blank nodes were brought up again.
    pub fn refresh_blank(&mut self) {
        let committed = self.checker.committed_end();
        for node in &mut self.nodes {
            let whole = node.remembers() && node.image.end() >= committed;
            node.blank = node.blank && !whole;
        }
    }

    fn cut(&mut self, node: usize, peer: usize) {
        let lasting = self.chaos.rng.between(10_000, 1_500_000);
        let alone = self.chaos.rng.flip();
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            if alone || other == peer {
                self.block(node, other, lasting);
                self.block(other, node, lasting);
                self.report.count("cut", 1);
            }
        }
    }

    /// Nothing goes from one node to another for a while.
    pub fn block(&mut self, from: usize, to: usize, lasting_us: u64) {
        self.net.set_blocked(self.now_us, from, to, true);
        self.after(lasting_us, Task::Chaos(Step::Heal { from, to }));
    }

    fn network_for_a_while(&mut self, change: impl FnOnce(&mut NetOptions)) {
        change(&mut self.net.options);
        let lasting = self.chaos.rng.between(20_000, 500_000);
        self.after(lasting, Task::Chaos(Step::NetworkSound));
    }

    fn disk_sound_later(&mut self, node: usize, most_us: u64) {
        let lasting = self.chaos.rng.between(1_000, most_us);
        self.after(lasting, Task::Chaos(Step::DiskSound { node }));
    }

    /// A machine loses its power: at a moment with writes in flight, if one comes soon.
    fn lose_power(&mut self, node: usize, looks: u32) {
        let in_flight = self.nodes[node].disk.in_flight();
        let writes = in_flight.filter(|op| matches!(op, DiskOp::Write { .. }));
        let busy = writes.count() >= 2;
        if looks > 0 && !busy {
            let looks = looks - 1;
            let step = Step::PowerLoss { node, looks };
            return self.after(LOOK_EVERY_US, Task::Chaos(step));
        }
        self.crash_for_a_while(node, true);
    }

    fn crash_for_a_while(&mut self, node: usize, power_lost: bool) {
        if self.nodes[node].process.is_none() {
            return;
        }
        self.crash_node(node, power_lost);
        self.report
            .count(if power_lost { "power_loss" } else { "kill" }, 1);
        let lasting = *self.chaos.rng.pick(&[1_000, 50_000, 1_000_000]);
        let lasting = self.chaos.rng.between(500, lasting);
        self.after(lasting, Task::Restart { node });
    }

    /// A node's process ends now.
    pub fn crash_node(&mut self, node: usize, power_lost: bool) {
        self.note(format_args!("n{node} crashes, power lost: {power_lost}"));
        let cut = self.nodes[node].crash(power_lost, &mut self.chaos.rng);
        self.report.count("lost_write", cut.lost);
        self.report.count("torn_write", cut.torn);
        self.report.count("reordered_write", cut.reordered);
        self.net.stopped(self.now_us, node, power_lost);
        if self.options.has(Fault::ClockStep) && self.chaos.rng.flip() {
            self.nodes[node].clock_ahead_us = self.chaos.rng.below(20_000_000);
        }
    }

    fn pause(&mut self, node: usize) {
        let lasting = self.chaos.rng.between(1_000, 1_200_000);
        self.pause_for(node, lasting);
    }

    /// A node's process gets no time for a while.
    pub fn pause_for(&mut self, node: usize, lasting_us: u64) {
        if !self.nodes[node].awake() {
            return;
        }
        let until_us = self.now_us + lasting_us;
        let process = self.nodes[node].process.as_mut().expect("it is awake");
        process.paused_until_us = Some(until_us);
        self.nodes[node].paused_us += lasting_us;
        self.net.set_paused(self.now_us, node, true);
        let run = self.nodes[node].run;
        self.after(lasting_us, Task::Unpause { node, run });
        self.report.count("pause", 1);
    }

    /// An operator pauses a link or lets it go on, at one of its ends.
    pub fn pause_link(&mut self, node: usize, peer: usize, pause: bool) -> Checked {
        let peer = node_id(peer);
        self.deliver(node, Event::PauseLink { peer, pause })
    }

    /// An operator asks the leader to hand over to `node`.
    fn promote(&mut self, node: usize) -> Checked {
        let leader = self.leader();
        let to = node_id(node);
        let awake = self.nodes[leader].awake();
        let able = |process: &Process| process.shard.can_promote(to) == Some(true);
        if awake && self.nodes[leader].process.as_ref().is_some_and(able) {
            let epoch = self.checker.epoch_of(leader);
            self.chaos.promoted.push((epoch, node));
            self.deliver(leader, Event::Promote { to })?;
        }
        Ok(())
    }

    fn step_clock(&mut self, node: usize) {
        let most = *self.chaos.rng.pick(&[10_000, 2_000_000, 86_400_000_000]);
        self.nodes[node].clock_ahead_us += self.chaos.rng.between(1, most);
        self.report.count("clock_step", 1);
    }
}
