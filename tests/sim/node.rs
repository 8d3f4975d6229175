//! A simulated node: a disk that outlives its processes, and the process that runs now.
//!
//! The process is the shell around one `millrace::shard::Shard`: its pool of buffers, the names of
//! its open files, the connections it knows, and what waits for it while it gets no time. All of
//! it is gone after a crash; the disk stays, in one of the states a crash may leave. Read
//! `world.rs` next.

use super::buffers::SimBuffers;
use super::disk::Disk;
use super::disk_crash::Outcome;
use super::facts::BlockFacts;
use super::image::Image;
use super::options::Options;
use super::rng::Rng;
use super::rot::Rot;
use millrace::limits::CHECKPOINT_COPY;
use millrace::shard::{Event, Shard, ShardConfig};
use millrace::types::{ConnectionId, FileId, LogId, NodeId, OriginId, ShardId, Time};
use millrace::wal::op::{DiskOp, FileName};
use millrace::wire::checkpoint::{self, Checkpoint, Memory};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The log of every run.
pub const LOG: LogId = LogId {
    origin: OriginId(7),
    shard: ShardId(0),
};

/// The wall clock when virtual time is 0, microseconds.
const WALL_START_US: u64 = 1_700_000_000_000_000;

/// The id of the node with this index.
pub fn node_id(index: usize) -> NodeId {
    NodeId(index as u32 + 1)
}

/// The index of the node with this id.
pub fn node_index(id: NodeId) -> usize {
    id.0 as usize - 1
}

/// Something that arrived while it could not be given to the process.
#[derive(Debug)]
pub enum Arrival {
    /// An event, ready.
    Event(Event),
    /// A frame from a peer.
    Frame {
        /// On which connection.
        connection: ConnectionId,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A client's request.
    Request {
        /// Which client.
        client: usize,
        /// Its connection.
        connection: ConnectionId,
        /// The number of the request.
        correlation: u64,
        /// What it wants.
        request: super::client::ClientRequest,
    },
}

/// One running process.
#[derive(Debug)]
pub struct Process {
    /// The system under test.
    pub shard: Shard,
    /// Its memory.
    pub buffers: SimBuffers,
    /// Open files by id.
    pub files: BTreeMap<FileId, FileName>,
    /// What each disk operation in flight is, for its completion.
    pub operations: BTreeMap<u64, DiskOp>,
    /// Connections with peers that it was told of and that are not over.
    pub connections: BTreeSet<ConnectionId>,
    /// Arrived during a pause, in order.
    pub inbox: VecDeque<Arrival>,
    /// Arrived when no buffer was free, in order.
    pub starved: VecDeque<Arrival>,
    /// Until when it gets no time.
    pub paused_until_us: Option<u64>,
    /// Whether it said that it stopped cleanly.
    pub stopped: bool,
    /// Times it was woken by its timer at this virtual moment, to find one that spins.
    pub timer_spins: (u64, u32),
    /// Committed blocks that the checkers were told of.
    pub told_committed: u64,
}

/// What a loss of power did to the writes in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WritesCut {
    /// Nothing of them is there.
    pub lost: u64,
    /// Some of their sectors are there.
    pub torn: u64,
    /// Something of them is there, though one that was submitted before them is not whole.
    pub reordered: u64,
}

impl WritesCut {
    /// The next write in flight, in the order of submission.
    fn take_in(&mut self, outcome: &Outcome) {
        let (some, all) = match outcome {
            Outcome::Not => (false, false),
            Outcome::Whole => (true, true),
            Outcome::Sectors(which) => (which.contains(&true), !which.contains(&false)),
        };
        self.reordered += u64::from(some && self.lost + self.torn > 0);
        self.lost += u64::from(!some);
        self.torn += u64::from(some && !all);
    }
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Its index.
    pub index: usize,
    /// Its disk.
    pub disk: Disk,
    /// What the disk durably holds.
    pub image: Image,
    /// What of it is damaged.
    pub rot: Rot,
    /// It gave up a file with damage in it at its start, which its leader may not have heard of.
    pub gave_up: bool,
    /// What runs.
    pub process: Option<Process>,
    /// Number of its process, or of the last one.
    pub run: u64,
    /// How far its wall clock is from the true one, microseconds.
    pub clock_ahead_us: u64,
    /// Whether it has a blank disk that was not brought up again.
    pub blank: bool,
    /// What its disk held before it was replaced, until its leader was told that it is gone: what
    /// was acknowledged until then may count for a majority.
    pub before_loss: Option<Image>,
    /// Whether its log was closed by a disk error, and when it will be restarted.
    pub failed_since_us: Option<u64>,
    /// Number of the kernel's boot.
    pub boot: u8,
    /// Whether the operator says that a blank disk here is a new member.
    pub new_member: bool,
    /// How long its processes got no time, in all.
    pub paused_us: u64,
}

impl Node {
    /// A node with an empty disk that does not run.
    pub fn new(index: usize, options: &Options, rng: &mut Rng) -> Node {
        let disk = Disk::new(options.disk.clone(), rng.next_u64());
        Node {
            index,
            image: Image::scan(&disk, &Rot::default()),
            disk,
            rot: Rot::default(),
            gave_up: false,
            process: None,
            run: 0,
            clock_ahead_us: rng.below(10_000_000),
            blank: false,
            before_loss: None,
            failed_since_us: None,
            boot: 1,
            new_member: false,
            paused_us: 0,
        }
    }

    /// The node's clock.
    pub fn time(&self, now_us: u64) -> Time {
        Time(WALL_START_US + now_us + self.clock_ahead_us)
    }

    /// Virtual time when the node's clock shows `time`.
    pub fn virtual_us(&self, time: Time) -> u64 {
        time.0.saturating_sub(WALL_START_US + self.clock_ahead_us)
    }

    /// Whether its process is there and gets time.
    pub fn awake(&self) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| process.paused_until_us.is_none())
    }

    /// Whether its disk holds this very block and all before it, or held it when it said so.
    pub fn holds(&self, facts: &BlockFacts) -> bool {
        let before = self.before_loss.as_ref();
        self.image.holds(facts) || before.is_some_and(|image| image.holds(facts))
    }

    /// Whether its disk holds a checkpoint that says that nothing was forgotten.
    pub fn remembers(&self) -> bool {
        let newest = self.checkpoint();
        newest.is_some_and(|copy| copy.memory == Memory::Whole)
    }

    /// Whether its disk lacks some of what it held, or forgot.
    pub fn has_lost_blocks(&self) -> bool {
        self.blank || !self.remembers() || !self.rot.is_empty()
    }

    /// The epoch that it has promised, and to whom, as its disk says.
    pub fn promise(&self) -> Option<(u32, Option<NodeId>)> {
        let newest = self.checkpoint();
        newest.map(|copy| (copy.promised.0, copy.vote))
    }

    /// Blocks below it are known to have existed, whatever a start finds of them.
    pub fn known_end(&self) -> u64 {
        let newest = self.checkpoint();
        newest.map_or(0, |copy| copy.scan_from.max(copy.high_watermark).0)
    }

    /// Whether its checkpoint names damaged blocks.
    pub fn knows_damage(&self) -> bool {
        self.checkpoint()
            .is_some_and(|copy| !copy.faulty.is_empty())
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        let pages = self.disk.durable_content(FileName::Checkpoint);
        let bytes = pages.expect("always there").read(0, 2 * CHECKPOINT_COPY);
        let (one, two) = bytes.split_at(CHECKPOINT_COPY);
        let sound = [checkpoint::read(one), checkpoint::read(two)];
        sound.into_iter().flatten().max_by_key(|copy| copy.sequence)
    }

    /// Starts a process on what the disk holds.
    pub fn start(&mut self, now_us: u64, options: &Options) {
        assert!(self.process.is_none(), "one process a node");
        self.run += 1;
        self.failed_since_us = None;
        self.image = Image::scan(&self.disk, &self.rot);
        let config = self.config(options);
        let shard = Shard::new(config, self.disk.files(), self.time(now_us));
        self.process = Some(Process {
            shard,
            buffers: SimBuffers::new(options.pool_bytes()),
            files: BTreeMap::new(),
            operations: BTreeMap::new(),
            connections: BTreeSet::new(),
            inbox: VecDeque::new(),
            starved: VecDeque::new(),
            paused_until_us: None,
            stopped: false,
            timer_spins: (0, 0),
            told_committed: 0,
        });
    }

    fn config(&self, options: &Options) -> ShardConfig {
        let members = (0..options.members).map(node_id).collect();
        let (me, leader) = (node_id(self.index), node_id(options.leader));
        let mut config = ShardConfig::with_defaults(me, leader, LOG, members);
        config.link = options.link;
        config.electing = options.electing;
        config.seed = options.election_seed.wrapping_add(self.run << 8);
        config.mesh = options.mesh;
        config.new_member = self.new_member;
        config.wal.segment_bytes = options.disk.segment_bytes;
        config.wal.max_block_bytes = options.max_block_bytes;
        config.wal.max_batch_bytes = options.max_batch_bytes;
        config.wal.max_block_records = options.max_block_records;
        config.wal.write_depth = options.write_depth;
        config.wal.batch_timeout_us = options.batch_timeout_us;
        config.wal.boot_id = [self.boot; 16];
        config.wal.retention = options.retention;
        config.wal.scrub_bytes_per_s = options.scrub_bytes_per_s;
        config.wal.scrub_interval_us = 700_000;
        config
    }

    /// The process is gone, with what its disk had in flight in a state that chance chooses.
    /// Returns what became of its writes.
    pub fn crash(&mut self, power_lost: bool, rng: &mut Rng) -> WritesCut {
        self.process = None;
        let mut counts = WritesCut::default();
        if power_lost {
            let outcomes: Vec<Outcome> = self
                .disk
                .in_flight()
                .map(|op| Outcome::any(op, rng))
                .collect();
            for (op, outcome) in self.disk.in_flight().zip(&outcomes) {
                if matches!(op, DiskOp::Write { .. }) {
                    counts.take_in(outcome);
                }
            }
            self.disk = self.disk.crash_with(&outcomes, rng);
            self.boot = self.boot.wrapping_add(1);
        } else {
            self.disk = self.disk.kill(rng);
        }
        self.image = Image::scan(&self.disk, &self.rot);
        counts
    }
}
