//! The checkpoint: the small durable facts of a log that its blocks cannot tell.
//!
//! ```text
//! offset size field
//!      0    4 magic "MRCP"
//!      4    1 version
//!      5    1 memory          0 whole, 1 lost
//!      6    1 clean           1 after a clean stop
//!      7    1 zero
//!      8    4 header_crc      whole 4096 bytes, this field as zero
//!     12    4 origin
//!     16    2 shard
//!     18    2 member_count
//!     20    8 sequence        of this copy; the higher sound one counts
//!     28    4 promised        epoch
//!     32    4 vote            node voted for in `promised`; 0 for none
//!     36    8 config_epoch
//!     44    8 start_block     log start
//!     52    8 start_offset
//!     60    4 start_epoch     epoch of the block before the log start
//!     64    4 start_crc       header_crc of the block before the log start
//!     68    8 scan_from       recovery's scan begins at this durable block
//!     76    8 high_watermark  a hint that something existed, exclusive
//!     84   16 boot_id         of the kernel that ran when it was written
//!    100    4 faulty_count
//!    104   64 members         16 node ids
//!    168 1024 faulty          64 ranges of blocks: from, end
//!   1192 2904 zero
//! ```
//!
//! Two copies lie in one file at 0 and 4096. Both are written, one after the other, before anything
//! that they authorise is said or done, so one rotten copy never brings back an older promise.

use super::bytes::{
    all_zero, crc_with_zeroed, epoch_fits, position_fits, put, u16_at, u32_at, u64_at,
};
use crate::limits::{CHECKPOINT_COPY, MAX_NODES};
use crate::types::{BlockNo, Epoch, LogId, NodeId, Offset, OriginId, ShardId};

const MAGIC: [u8; 4] = *b"MRCP";
const VERSION: u8 = 1;
const HEADER_CRC: usize = 8;
const MEMBERS: usize = 104;
const FAULTY: usize = 168;

/// Ranges of damaged blocks that a checkpoint can hold; one more and the log needs a new disk.
pub const MAX_FAULTY: usize = 64;

/// Where a log begins, and what chains to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStart {
    /// First block kept.
    pub block: BlockNo,
    /// Offset of its first record.
    pub offset: Offset,
    /// Epoch of the block before it, 0 if there is none.
    pub prev_epoch: Epoch,
    /// `header_crc` of the block before it, 0 if there is none.
    pub prev_crc: u32,
}

/// Whether a node may speak for what it once promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// Everything it ever promised or acknowledged is here.
    #[default]
    Whole,
    /// It may have promised or held more: it neither votes, leads nor acknowledges yet.
    Lost,
}

/// The facts of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The log it belongs to.
    pub log: LogId,
    /// Number of this copy; rises by one with every write.
    pub sequence: u64,
    /// Highest epoch promised: lower ones are powerless here.
    pub promised: Epoch,
    /// Node voted for in `promised`; no node has the id 0.
    pub vote: Option<NodeId>,
    /// Number of the configuration in force.
    pub config_epoch: u64,
    /// Members of the set, ascending, fixed when the log was created.
    pub members: Vec<NodeId>,
    /// Where the log begins.
    pub log_start: LogStart,
    /// Recovery's scan begins here; everything below is durable and was verified.
    pub scan_from: BlockNo,
    /// A block that existed and was committed, exclusive.
    pub high_watermark: BlockNo,
    /// Whether the node may speak for this log.
    pub memory: Memory,
    /// Whether the node stopped cleanly after it was written.
    pub clean: bool,
    /// Boot id of the kernel that ran when it was written.
    pub boot_id: [u8; 16],
    /// Ranges of damaged blocks: first, end (exclusive), none empty.
    pub faulty: Vec<(BlockNo, BlockNo)>,
}

impl Checkpoint {
    fn is_plausible(&self) -> bool {
        let start = &self.log_start;
        let positions = [
            start.block.0,
            start.offset.0,
            self.scan_from.0,
            self.high_watermark.0,
        ];
        positions.into_iter().all(position_fits)
            && epoch_fits(self.promised)
            && epoch_fits(start.prev_epoch)
            && self.members.is_sorted_by(|before, after| before < after)
            && self
                .faulty
                .iter()
                .all(|(from, end)| from < end && position_fits(end.0))
    }
}

/// Writes one copy to the first 4096 bytes of `bytes`. Panics on facts that every reader refuses,
/// and on a vote for node 0: it would read as no vote, and a second one could be given.
pub fn write(bytes: &mut [u8], checkpoint: &Checkpoint) {
    assert!(
        checkpoint.members.len() <= MAX_NODES,
        "members are bounded by configuration"
    );
    assert!(
        checkpoint.faulty.len() <= MAX_FAULTY,
        "faulty ranges are bounded by recovery"
    );
    assert!(
        checkpoint.is_plausible() && checkpoint.vote != Some(NodeId(0)),
        "no reader takes {checkpoint:?}"
    );
    let bytes = &mut bytes[..CHECKPOINT_COPY];
    bytes.fill(0);
    put(bytes, 0, &MAGIC);
    bytes[4] = VERSION;
    bytes[5] = u8::from(checkpoint.memory == Memory::Lost);
    bytes[6] = u8::from(checkpoint.clean);
    put(bytes, 12, &checkpoint.log.origin.0.to_le_bytes());
    put(bytes, 16, &checkpoint.log.shard.0.to_le_bytes());
    put(bytes, 18, &(checkpoint.members.len() as u16).to_le_bytes());
    put(bytes, 20, &checkpoint.sequence.to_le_bytes());
    put(bytes, 28, &checkpoint.promised.0.to_le_bytes());
    put(
        bytes,
        32,
        &checkpoint.vote.unwrap_or_default().0.to_le_bytes(),
    );
    put(bytes, 36, &checkpoint.config_epoch.to_le_bytes());
    put(bytes, 44, &checkpoint.log_start.block.0.to_le_bytes());
    put(bytes, 52, &checkpoint.log_start.offset.0.to_le_bytes());
    put(bytes, 60, &checkpoint.log_start.prev_epoch.0.to_le_bytes());
    put(bytes, 64, &checkpoint.log_start.prev_crc.to_le_bytes());
    put(bytes, 68, &checkpoint.scan_from.0.to_le_bytes());
    put(bytes, 76, &checkpoint.high_watermark.0.to_le_bytes());
    put(bytes, 84, &checkpoint.boot_id);
    put(bytes, 100, &(checkpoint.faulty.len() as u32).to_le_bytes());
    for (index, member) in checkpoint.members.iter().enumerate() {
        put(bytes, MEMBERS + 4 * index, &member.0.to_le_bytes());
    }
    for (index, (from, end)) in checkpoint.faulty.iter().enumerate() {
        put(bytes, FAULTY + 16 * index, &from.0.to_le_bytes());
        put(bytes, FAULTY + 16 * index + 8, &end.0.to_le_bytes());
    }
    let crc = crc_with_zeroed(bytes, HEADER_CRC);
    put(bytes, HEADER_CRC, &crc.to_le_bytes());
}

/// Reads one copy; none if the bytes are not a sound one of a version known here.
pub fn read(bytes: &[u8]) -> Option<Checkpoint> {
    let bytes = bytes.get(..CHECKPOINT_COPY)?;
    if bytes[..4] != MAGIC || bytes[4] != VERSION {
        return None;
    }
    if crc_with_zeroed(bytes, HEADER_CRC) != u32_at(bytes, HEADER_CRC) {
        return None;
    }
    let member_count = usize::from(u16_at(bytes, 18));
    let faulty_count = u32_at(bytes, 100) as usize;
    if member_count > MAX_NODES || faulty_count > MAX_FAULTY || bytes[5] > 1 || bytes[6] > 1 {
        return None;
    }
    let zeros = all_zero(&bytes[7..8])
        && all_zero(&bytes[MEMBERS + 4 * member_count..FAULTY])
        && all_zero(&bytes[FAULTY + 16 * faulty_count..]);
    if !zeros {
        return None;
    }
    let vote = u32_at(bytes, 32);
    let checkpoint = Checkpoint {
        log: LogId {
            origin: OriginId(u32_at(bytes, 12)),
            shard: ShardId(u16_at(bytes, 16)),
        },
        sequence: u64_at(bytes, 20),
        promised: Epoch(u32_at(bytes, 28)),
        vote: (vote != 0).then_some(NodeId(vote)),
        config_epoch: u64_at(bytes, 36),
        members: (0..member_count)
            .map(|i| NodeId(u32_at(bytes, MEMBERS + 4 * i)))
            .collect(),
        log_start: LogStart {
            block: BlockNo(u64_at(bytes, 44)),
            offset: Offset(u64_at(bytes, 52)),
            prev_epoch: Epoch(u32_at(bytes, 60)),
            prev_crc: u32_at(bytes, 64),
        },
        scan_from: BlockNo(u64_at(bytes, 68)),
        high_watermark: BlockNo(u64_at(bytes, 76)),
        memory: if bytes[5] == 1 {
            Memory::Lost
        } else {
            Memory::Whole
        },
        clean: bytes[6] == 1,
        boot_id: bytes[84..100].try_into().expect("sixteen bytes"),
        faulty: (0..faulty_count)
            .map(|i| {
                let at = FAULTY + 16 * i;
                (BlockNo(u64_at(bytes, at)), BlockNo(u64_at(bytes, at + 8)))
            })
            .collect(),
    };
    checkpoint.is_plausible().then_some(checkpoint)
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
