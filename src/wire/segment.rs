//! The segment file's header block: which log, which block comes first, what came before it.
//!
//! ```text
//! offset size field
//!      0    4 magic "MRSG"
//!      4    1 version
//!      5    3 zero
//!      8    4 header_crc    whole 4096 bytes, this field as zero
//!     12    4 origin
//!     16    2 shard
//!     18    2 zero
//!     20    8 base_block    first block of the file
//!     28    8 base_offset   offset of its first record
//!     36    4 prev_epoch    epoch of the block before it; 0 if there is none
//!     40    4 prev_crc      header_crc of the block before it; 0 if there is none
//!     44 4052 zero
//! ```
//!
//! Blocks follow at 4096-aligned positions. Nothing in it depends on the node, so the files of a
//! set are equal byte for byte. The file's name is a help for people: recovery goes by this header.

use super::bytes::{
    all_zero, crc_with_zeroed, epoch_fits, position_fits, put, u16_at, u32_at, u64_at,
};
use crate::limits::SEGMENT_HEADER;
use crate::types::{BlockNo, Epoch, LogId, Offset, OriginId, ShardId};

const MAGIC: [u8; 4] = *b"MRSG";
const VERSION: u8 = 1;
const HEADER_CRC: usize = 8;
const ZEROS: usize = 44;

/// The facts of a segment's header block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The log it belongs to.
    pub log: LogId,
    /// First block of the file.
    pub base_block: BlockNo,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Epoch of the block before it, 0 if there is none.
    pub prev_epoch: Epoch,
    /// `header_crc` of the block before it, 0 if there is none.
    pub prev_crc: u32,
}

impl SegmentHeader {
    fn is_plausible(&self) -> bool {
        position_fits(self.base_block.0)
            && position_fits(self.base_offset.0)
            && epoch_fits(self.prev_epoch)
    }
}

/// Writes the header block to the first 4096 bytes of `bytes`. Panics on numbers that every reader
/// refuses.
pub fn write(bytes: &mut [u8], header: &SegmentHeader) {
    assert!(header.is_plausible(), "no reader takes {header:?}");
    let bytes = &mut bytes[..SEGMENT_HEADER];
    bytes.fill(0);
    put(bytes, 0, &MAGIC);
    bytes[4] = VERSION;
    put(bytes, 12, &header.log.origin.0.to_le_bytes());
    put(bytes, 16, &header.log.shard.0.to_le_bytes());
    put(bytes, 20, &header.base_block.0.to_le_bytes());
    put(bytes, 28, &header.base_offset.0.to_le_bytes());
    put(bytes, 36, &header.prev_epoch.0.to_le_bytes());
    put(bytes, 40, &header.prev_crc.to_le_bytes());
    let crc = crc_with_zeroed(bytes, HEADER_CRC);
    put(bytes, HEADER_CRC, &crc.to_le_bytes());
}

/// Reads the header block; none if the bytes are not a sound one of a version known here.
pub fn read(bytes: &[u8]) -> Option<SegmentHeader> {
    let bytes = bytes.get(..SEGMENT_HEADER)?;
    if bytes[..4] != MAGIC || bytes[4] != VERSION {
        return None;
    }
    if crc_with_zeroed(bytes, HEADER_CRC) != u32_at(bytes, HEADER_CRC) {
        return None;
    }
    let zeros = all_zero(&bytes[5..8]) && all_zero(&bytes[18..20]) && all_zero(&bytes[ZEROS..]);
    if !zeros {
        return None;
    }
    let header = SegmentHeader {
        log: LogId {
            origin: OriginId(u32_at(bytes, 12)),
            shard: ShardId(u16_at(bytes, 16)),
        },
        base_block: BlockNo(u64_at(bytes, 20)),
        base_offset: Offset(u64_at(bytes, 28)),
        prev_epoch: Epoch(u32_at(bytes, 36)),
        prev_crc: u32_at(bytes, 40),
    };
    header.is_plausible().then_some(header)
}

/// The name of the segment file whose first block is `base`: 20 digits, so names sort by block.
pub fn file_name(base: BlockNo) -> String {
    format!("{:020}.seg", base.0)
}

/// The first block of the segment file with this name, if it is such a name.
pub fn base_of(name: &str) -> Option<BlockNo> {
    let digits = name.strip_suffix(".seg")?;
    let all_digits = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| digits.parse().ok().map(BlockNo))?
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
