//! How a simulated disk behaves, which faults it has, and what it counts.
//!
//! All chances are zero in [`DiskOptions::sound`]; a run draws its own and may change them at any
//! time. Nothing here acts. Read `disk.rs` next.

use super::rng::Chance;

/// How a disk behaves.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Bytes of the files that `Provide` brings.
    pub segment_bytes: u64,
    /// Shortest and longest time an operation takes, microseconds.
    pub latency_us: (u64, u64),
    /// How often an operation takes `slow_us` instead.
    pub slow: Chance,
    /// Time of a slow operation, microseconds.
    pub slow_us: u64,
    /// How often a write is short.
    pub short_write: Chance,
    /// How often a write or a sync fails with EIO.
    pub write_error: Chance,
    /// How often a read fails with EIO.
    pub read_error: Chance,
    /// How often `Provide` or a write finds no space.
    pub no_space: Chance,
    /// Whether there is no space for another segment file.
    pub full: bool,
}

impl DiskOptions {
    /// A disk without faults that takes 50 to 200 microseconds.
    pub fn sound(segment_bytes: u64) -> DiskOptions {
        DiskOptions {
            segment_bytes,
            latency_us: (50, 200),
            slow: Chance::NEVER,
            slow_us: 100_000,
            short_write: Chance::NEVER,
            write_error: Chance::NEVER,
            read_error: Chance::NEVER,
            no_space: Chance::NEVER,
            full: false,
        }
    }
}

/// A fault of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// A write ends after some of its sectors and says so.
    Short,
    /// EIO: a write may have reached any of its sectors, a read none.
    Error,
    /// No space: nothing happened.
    NoSpace,
}

/// Operations submitted so far, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Files opened.
    pub open: u64,
    /// Files brought in as `next.seg`.
    pub provide: u64,
    /// Files given their name.
    pub name: u64,
    /// Files taken out.
    pub free: u64,
    /// Writes to segments.
    pub write: u64,
    /// Writes to the checkpoint.
    pub checkpoint: u64,
    /// Reads.
    pub read: u64,
    /// Files and directories synced.
    pub sync: u64,
    /// Faults that operations got.
    pub faults: u64,
}

impl DiskCounts {
    /// Adds those of another disk.
    pub fn add(&mut self, other: &DiskCounts) {
        self.open += other.open;
        self.provide += other.provide;
        self.name += other.name;
        self.free += other.free;
        self.write += other.write;
        self.checkpoint += other.checkpoint;
        self.read += other.read;
        self.sync += other.sync;
        self.faults += other.faults;
    }

    /// Operations that may change what is on the disk.
    pub fn changes(&self) -> u64 {
        self.provide + self.name + self.free + self.write + self.checkpoint
    }
}
