//! The options of a run, drawn from its seed: how big, how fast, and which faults.
//!
//! A swarm: each seed leaves out some kinds of faults and turns others up, so that rare
//! combinations are reached without any one run drowning in all of them. Everything a run depends
//! on is in here; a directed scenario starts from `quiet` and changes what it needs. Read
//! `world.rs` next.

use super::disk_options::DiskOptions;
use super::network_parts::NetOptions;
use super::rng::{Chance, Rng};
use millrace::limits;
use millrace::shard::{LinkConfig, Retention};
use millrace::types::padded;

/// Kinds of faults that the run may bring about by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Two nodes, or one and all others, hear nothing of each other.
    Cut,
    /// One node does not hear another one, which hears it.
    OneWayCut,
    /// A connection is dropped.
    Reset,
    /// Frames take much longer for a while.
    Delay,
    /// Bits of frames are inverted for a while.
    Flip,
    /// A process dies, its kernel lives.
    Kill,
    /// A machine loses power.
    PowerLoss,
    /// All machines lose power at one instant.
    PowerLossOfAll,
    /// A process gets no time for a while.
    Pause,
    /// A node's clock jumps.
    ClockStep,
    /// A write fails.
    WriteError,
    /// A write is short.
    ShortWrite,
    /// There is no space for a write.
    NoSpace,
    /// A disk is slow for a while.
    SlowDisk,
    /// A machine comes back with a blank disk.
    BlankDisk,
    /// An operator pauses a link for a while.
    PauseLink,
    /// A disk has no space for another file for a while.
    FullDisk,
    /// An operator asks the leader of an electing set to hand over to another member.
    Promote,
    /// A bit of a block at rest is inverted.
    FlippedAtRest,
    /// A page of a block at rest holds what belongs elsewhere.
    Misdirected,
}

impl Fault {
    /// Every kind.
    pub const ALL: [Fault; 20] = [
        Fault::Cut,
        Fault::OneWayCut,
        Fault::Reset,
        Fault::Delay,
        Fault::Flip,
        Fault::Kill,
        Fault::PowerLoss,
        Fault::PowerLossOfAll,
        Fault::Pause,
        Fault::ClockStep,
        Fault::WriteError,
        Fault::ShortWrite,
        Fault::NoSpace,
        Fault::SlowDisk,
        Fault::BlankDisk,
        Fault::PauseLink,
        Fault::FullDisk,
        Fault::Promote,
        Fault::FlippedAtRest,
        Fault::Misdirected,
    ];
}

/// What a run is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Members of the set.
    pub members: usize,
    /// Which of them is placed as leader.
    pub leader: usize,
    /// Whether every member may lead, and that one is only the preferred one.
    pub electing: bool,
    /// What election timeouts are drawn from.
    pub election_seed: u64,
    /// Whether the log is one of a mesh, and the leader its origin.
    pub mesh: bool,
    /// Virtual length of the fault phase, microseconds.
    pub fault_phase_us: u64,
    /// Mean time between two faults, microseconds.
    pub fault_every_us: u64,
    /// Faults that happen.
    pub faults: Vec<Fault>,
    /// The network without faults.
    pub network: NetOptions,
    /// The disks without faults.
    pub disk: DiskOptions,
    /// The links.
    pub link: LinkConfig,
    /// A block closes before it would grow past this.
    pub max_block_bytes: usize,
    /// Largest batch, header included.
    pub max_batch_bytes: usize,
    /// A block closes before it would hold more records.
    pub max_block_records: u32,
    /// Writes in flight at most.
    pub write_depth: usize,
    /// The oldest append waits at most so long for its block to close, microseconds.
    pub batch_timeout_us: u64,
    /// Bytes of buffers that a node lends at a time, if not what a core of the engine does.
    pub pool: Option<usize>,
    /// What the logs keep.
    pub retention: Retention,
    /// Clients that append and read.
    pub clients: usize,
    /// How many of them number their batches and send each until it is in the log.
    pub producers: usize,
    /// Bytes a second at which disks are scrubbed; 0 for no scrub.
    pub scrub_bytes_per_s: u64,
    /// Requests that a client has unanswered at most.
    pub client_window: usize,
    /// Mean time between two requests of a client, microseconds.
    pub client_every_us: u64,
    /// Largest value of a usual record.
    pub value_bytes: usize,
    /// How often an append is as large as may be.
    pub large_append: Chance,
    /// How often a bit of an append is inverted on its way to the node.
    pub append_flip: Chance,
}

impl Options {
    /// A sound network, sound disks, no faults: the start of a directed scenario.
    pub fn quiet(members: usize) -> Options {
        Options {
            members,
            leader: 0,
            electing: false,
            election_seed: 0,
            mesh: false,
            fault_phase_us: 2_000_000,
            fault_every_us: 500_000,
            faults: Vec::new(),
            network: NetOptions {
                latency_us: (50, 200),
                bytes_per_us: 100,
                spike: Chance::NEVER,
                spike_us: 50_000,
                head_flip: Chance::NEVER,
                payload_flip: Chance::NEVER,
                socket_bytes: 128 << 10,
                dial_timeout_us: 300_000,
            },
            disk: DiskOptions::sound(256 << 10),
            link: LinkConfig {
                initial_credit: 4096,
                initial_credit_bytes: 256 << 10,
                catch_up_bytes_per_s: limits::CATCH_UP_BYTES_PER_S,
                rpc_timeout_us: 500_000,
                retry_backoff_us: 50_000,
                heartbeat_us: 30_000,
                gather_us: 300_000,
                election_timeout_us: 300_000,
                handover_us: 400_000,
            },
            max_block_bytes: 16 << 10,
            max_batch_bytes: (16 << 10) - 128,
            max_block_records: 1000,
            write_depth: 4,
            batch_timeout_us: 5_000,
            pool: None,
            retention: Retention::default(),
            clients: 3,
            producers: 2,
            scrub_bytes_per_s: 64 << 20,
            client_window: 4,
            client_every_us: 10_000,
            value_bytes: 300,
            large_append: Chance::percent(2),
            append_flip: Chance::NEVER,
        }
    }

    /// The options of a seed.
    pub fn of_seed(rng: &mut Rng) -> Options {
        let members = *rng.pick(&[1, 3, 3, 3, 3, 3, 3, 3, 5, 5]);
        Options::of_members(members, rng)
    }

    /// The options of a seed for a set of so many members.
    pub fn of_members(members: usize, rng: &mut Rng) -> Options {
        let mut options = Options::quiet(members);
        options.leader = rng.index(members);
        options.electing = members >= 3 && rng.below(3) > 0;
        options.election_seed = rng.next_u64();
        options.fault_phase_us = rng.between(1_500_000, 4_000_000);
        options.fault_every_us = *rng.pick(&[100_000, 250_000, 500_000]);
        options.faults = Fault::ALL.into_iter().filter(|_| rng.flip()).collect();
        if rng.below(12) == 0 {
            options.faults.clear();
        }
        options.draw_sizes(rng);
        options.draw_speeds(rng);
        options
    }

    fn draw_sizes(&mut self, rng: &mut Rng) {
        self.max_block_bytes = *rng.pick(&[4 << 10, 8 << 10, 16 << 10, 64 << 10]);
        // A batch that needs a block of its own larger than others must fit as well.
        let largest = padded(self.max_block_bytes * *rng.pick(&[1, 1, 2]));
        self.max_batch_bytes = largest - 128;
        self.disk.segment_bytes =
            (*rng.pick(&[48 << 10, 128 << 10, 512 << 10])).max(4096 + 2 * largest as u64);
        // Some logs keep a few files, or for a moment: followers that lag must begin anew.
        let segments = *rng.pick(&[0, 0, 1, 2, 4]);
        self.retention.trim_bytes = (segments > 0).then_some(segments * self.disk.segment_bytes);
        self.retention.age_us = (rng.below(4) == 0).then_some(*rng.pick(&[50_000, 500_000]));
        self.max_block_records = *rng.pick(&[6, 10, 1000]);
        let blocks = *rng.pick(&[1, 2, 4, 32]);
        self.link.initial_credit_bytes = (largest * blocks) as u64;
        self.link.initial_credit = *rng.pick(&[100, 1000, 100_000]);
        self.network.socket_bytes = *rng.pick(&[16 << 10, 128 << 10, 1 << 20]);
        self.write_depth = *rng.pick(&[1, 2, 8]);
        self.value_bytes = *rng.pick(&[16, 200, 2000]);
        self.large_append = Chance::percent(*rng.pick(&[0, 2, 10]));
        self.append_flip = Chance::percent(*rng.pick(&[0, 0, 2]));
    }

    fn draw_speeds(&mut self, rng: &mut Rng) {
        self.network.latency_us = *rng.pick(&[(20, 60), (50, 300), (500, 5_000)]);
        self.network.spike = Chance(*rng.pick(&[0, 1_000, 20_000]));
        self.network.spike_us = *rng.pick(&[5_000, 50_000, 400_000]);
        self.disk.latency_us = *rng.pick(&[(20, 80), (50, 500), (200, 5_000)]);
        self.disk.slow = Chance(*rng.pick(&[0, 5_000, 50_000]));
        self.disk.slow_us = *rng.pick(&[10_000, 100_000]);
        self.batch_timeout_us = *rng.pick(&[500, 5_000, 20_000]);
        self.producers = *rng.pick(&[0, 1, 2, 3]);
        self.client_window = *rng.pick(&[1, 4, 16]);
        self.client_every_us = *rng.pick(&[3_000, 10_000, 30_000]);
        // A read of an old block is many small ones: a slow disk answers few of them in time.
        let late_us = u64::from(self.disk.slow.0) * self.disk.slow_us / 1_000_000;
        if late_us + self.disk.latency_us.1 / 2 >= 2_500 {
            self.client_every_us = self.client_every_us.max(30_000);
        }
        self.link.heartbeat_us = *rng.pick(&[20_000, 50_000]);
        self.link.election_timeout_us = *rng.pick(&[150_000, 300_000, 1_000_000]);
        self.link.handover_us = *rng.pick(&[50_000, 400_000, 2_000_000]);
        self.link.catch_up_bytes_per_s = *rng.pick(&[0, 1 << 20, 128 << 20]);
    }

    /// Whether this kind of fault happens in the run.
    pub fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Bytes of the buffer that any block fits into.
    fn largest_block(&self) -> usize {
        padded(self.max_block_bytes.max(self.max_batch_bytes + 128))
    }

    /// Bytes of buffers that a node lends at a time: as a core of the engine does.
    pub fn pool_bytes(&self) -> usize {
        let needs = limits::BufferNeeds {
            logs: 1,
            nodes: self.members,
            block_bytes: self.largest_block(),
            write_depth: self.write_depth,
            credit_bytes: self.link.initial_credit_bytes as usize,
        };
        self.pool
            .unwrap_or_else(|| limits::core_buffer_bytes(&needs))
    }

    /// Bytes of buffers that one node's settings add up to, at most.
    pub fn memory_bound(&self) -> usize {
        let largest = self.largest_block();
        // Recent blocks kept for the links, and what is handed to each connection.
        let links = limits::RECENT_BYTES + self.members * limits::LINK_QUEUE_BYTES;
        // Blocks in flight to the disk, the open one, one being made, the checkpoint.
        let writing = (self.write_depth + 3) * largest;
        // What a follower was granted, with one block more.
        let granted = self.link.initial_credit_bytes as usize + largest;
        // Appends that clients have unanswered, and a read for each.
        let clients = 2 * self.clients * self.client_window * largest;
        links + writing + granted + clients
    }
}
