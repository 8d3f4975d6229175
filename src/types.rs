//! Domain numbers and small closed sets that every layer shares.
//!
//! Each number is a newtype so that two of them cannot be swapped in a call. Nothing here knows a
//! format, a clock or a device. Units: times are microseconds since the Unix epoch, sizes are
//! bytes, every `_end` is exclusive. Read `limits.rs` next.

mod buckets;
mod lent;
mod whole;

pub use buckets::Buckets;
use core::fmt;
pub use lent::Lent;
pub use whole::whole;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(
    /// One process of a cluster.
    NodeId, u32
);
number!(
    /// Who first accepts a write: the cluster's id in a set, the node's id in a mesh.
    OriginId, u32
);
number!(
    /// Index of a shard, `0..shards`, fixed for the life of a cluster.
    ShardId, u16
);
number!(
    /// Number of a leadership of one log. 0 means "none yet"; the first leadership is 1.
    Epoch, u32
);
number!(
    /// Dense number of a block in its log; the first block is 0.
    BlockNo, u64
);
number!(
    /// Dense number of a record in its log; the first record is 0.
    Offset, u64
);
number!(
    /// Append time at the leader in microseconds, strictly increasing in a log.
    Tick, u64
);
number!(
    /// Wall clock at start carried on by the monotonic clock, microseconds since the Unix epoch.
    Time, u64
);
number!(
    /// Names one disk operation of one log; never reused within a process.
    Ticket, u64
);
number!(
    /// Names one aligned buffer of the shell's pool.
    BufferId, u32
);
number!(
    /// Names one connection of a core; never reused within a process.
    ConnectionId, u64
);
number!(
    /// Names one open file of one log; chosen by the core, never reused within a process.
    FileId, u64
);

impl BlockNo {
    /// The block after this one.
    pub fn next(self) -> BlockNo {
        BlockNo(self.0 + 1)
    }

    /// The block before this one, if there is one.
    pub fn previous(self) -> Option<BlockNo> {
        self.0.checked_sub(1).map(BlockNo)
    }
}

impl Time {
    /// This time moved on by so many microseconds.
    pub fn plus_us(self, us: u64) -> Time {
        Time(self.0.saturating_add(us))
    }

    /// Microseconds from `earlier` to this time; 0 if it is not earlier.
    pub fn since_us(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Identity of a log: the ordered records of one origin in one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId {
    /// Who first accepts the log's writes.
    pub origin: OriginId,
    /// The shard that holds it.
    pub shard: ShardId,
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.origin, self.shard)
    }
}

/// When an append is acknowledged. Mandatory on the wire; may differ per append on one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Accepted in order into the open block of this node's log; not durable.
    Local,
    /// Durable on the leader.
    Leader,
    /// Durable on a majority of the set, the leader among them.
    Quorum,
}

impl Level {
    /// Every level, weakest first.
    pub const ALL: [Level; 3] = [Level::Local, Level::Leader, Level::Quorum];

    /// The level's number on the wire.
    pub fn number(self) -> u8 {
        match self {
            Level::Local => 1,
            Level::Leader => 2,
            Level::Quorum => 3,
        }
    }

    /// The level with this number on the wire; an unknown number is nobody's level (S-18).
    pub fn from_number(number: u8) -> Option<Level> {
        Level::ALL
            .into_iter()
            .find(|level| level.number() == number)
    }

    /// The level's name in flags, configuration and output.
    pub fn name(self) -> &'static str {
        match self {
            Level::Local => "local",
            Level::Leader => "leader",
            Level::Quorum => "quorum",
        }
    }

    /// The level with this name.
    pub fn from_name(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// Which records a read may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadLevel {
    /// Below the high watermark: no failure that the set survives takes them back.
    Committed,
    /// All that this node holds durably or in its open block.
    Local,
}

impl ReadLevel {
    /// The level's number on the wire.
    pub fn number(self) -> u8 {
        match self {
            ReadLevel::Committed => 1,
            ReadLevel::Local => 2,
        }
    }

    /// The read level with this number on the wire.
    pub fn from_number(number: u8) -> Option<ReadLevel> {
        match number {
            1 => Some(ReadLevel::Committed),
            2 => Some(ReadLevel::Local),
            _ => None,
        }
    }
}

/// Rounds `bytes` up to a whole number of `DISK_ALIGNMENT` (4096-byte) units.
pub fn padded(bytes: usize) -> usize {
    bytes.div_ceil(crate::limits::DISK_ALIGNMENT) * crate::limits::DISK_ALIGNMENT
}
