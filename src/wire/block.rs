//! The block: one durable write and one entry of the replica protocol.
//!
//! ```text
//! offset size field
//!      0    4 magic "MRBK"
//!      4    1 version
//!      5    1 flags            bit 0: first in segment
//!      6    2 header_len
//!      8    4 header_crc       whole header, this field as zero
//!     12    4 batches_crc      CRC over the batches' header_crcs in order
//!     16    4 prev_header_crc  header_crc of the block before; 0 for block 0
//!     20    4 used_len         header and batches, without padding
//!     24    4 batch_count
//!     28    4 record_count
//!     32    4 epoch            leadership that wrote the block
//!     36    8 block
//!     44    8 base_offset
//!     52    8 end_offset
//!     60    8 committed_end    blocks known committed when it was sealed
//!     68    4 origin
//!     72    2 shard
//!     74    8 max_timestamp    largest record time in the block, microseconds
//!     82    8 last_tick        tick of its last batch
//!     90   38 zero
//! ```
//!
//! A block takes at most `WRITE_WINDOW` bytes, so `used_len` bounds what a reader sets aside for
//! it. Unknown flags and reserved bytes that are not zero are refused: they are another version's.
//!
//! Batches follow the header without gaps; zeros fill up to a multiple of 4096. A client CRC covers
//! each body, a batch header CRC covers that CRC, `batches_crc` covers the header CRCs and the
//! block's own CRC covers `batches_crc`: so the chain of `prev_header_crc` commits to every byte of
//! the log.

use super::batch::{self, BatchError, BatchPrefix};
use super::bytes::{
    all_zero, crc_with_zeroed, epoch_fits, position_fits, put, u16_at, u32_at, u64_at,
};
use crate::limits::{BATCH_HEADER, BLOCK_HEADER, WRITE_WINDOW};
use crate::types::{BlockNo, Epoch, LogId, Offset, OriginId, ShardId, Tick, padded};

const MAGIC: [u8; 4] = *b"MRBK";
const VERSION: u8 = 1;
const HEADER_CRC: usize = 8;
const FIRST_IN_SEGMENT: u8 = 1;
const ZEROS: usize = 90;

/// The facts of a block's header. All that the replica protocol ever sees of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockHeader {
    /// The log it belongs to.
    pub log: LogId,
    /// Leadership that wrote it.
    pub epoch: Epoch,
    /// Its dense number in the log.
    pub block: BlockNo,
    /// CRC of this header: the block's identity together with epoch and number.
    pub header_crc: u32,
    /// CRC of the header of the block before it.
    pub prev_header_crc: u32,
    /// CRC over the header CRCs of its batches.
    pub batches_crc: u32,
    /// Bytes of header and batches.
    pub used_len: u32,
    /// Batches in it.
    pub batch_count: u32,
    /// Records in it; may be 0.
    pub record_count: u32,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// One past the offset of its last record.
    pub end_offset: Offset,
    /// Blocks known to be committed when it was sealed.
    pub committed_end: BlockNo,
    /// Largest record time in it, microseconds.
    pub max_timestamp: u64,
    /// Tick of its last batch.
    pub last_tick: Tick,
    /// Whether the block opens a new segment file.
    pub first_in_segment: bool,
}

impl BlockHeader {
    /// Bytes it takes on the disk.
    pub fn padded_len(&self) -> usize {
        padded(self.used_len as usize)
    }

    /// Whether the numbers can be those of a block at all, whatever its batches are.
    fn is_plausible(&self) -> bool {
        let least = BLOCK_HEADER as u64 + BATCH_HEADER as u64 * u64::from(self.batch_count);
        let records = self.end_offset.0.checked_sub(self.base_offset.0);
        self.batch_count > 0
            && u64::from(self.used_len) >= least
            && u64::from(self.used_len) <= WRITE_WINDOW
            && records == Some(u64::from(self.record_count))
            && self.committed_end <= self.block
            && self.epoch > Epoch(0)
            && epoch_fits(self.epoch)
            && position_fits(self.block.0)
            && position_fits(self.end_offset.0)
            && position_fits(self.last_tick.0)
    }
}

/// Why bytes are not the block they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockError {
    /// Fewer bytes than the header, or than the header says.
    Short,
    /// Not a block header: magic, version or header length is another.
    NotABlock,
    /// `header_crc` does not fit, or a number in the header cannot be.
    Header,
    /// A batch does not fit its CRC or the fixed prefix.
    Batch(BatchError),
    /// A batch is sound and contradicts the block's header: log, offsets, sums or `batches_crc`.
    Sums,
    /// A byte of the padding is not zero.
    Padding,
}

/// Writes `header` (its `header_crc` is ignored) to the start of `bytes` and returns the CRC.
/// Panics on a header that every reader refuses: a block must never be acknowledged and then
/// unreadable.
pub fn write_header(bytes: &mut [u8], header: &BlockHeader) -> u32 {
    assert!(header.is_plausible(), "no reader takes {header:?}");
    bytes[..BLOCK_HEADER].fill(0);
    put(bytes, 0, &MAGIC);
    bytes[4] = VERSION;
    bytes[5] = if header.first_in_segment {
        FIRST_IN_SEGMENT
    } else {
        0
    };
    put(bytes, 6, &(BLOCK_HEADER as u16).to_le_bytes());
    put(bytes, 12, &header.batches_crc.to_le_bytes());
    put(bytes, 16, &header.prev_header_crc.to_le_bytes());
    put(bytes, 20, &header.used_len.to_le_bytes());
    put(bytes, 24, &header.batch_count.to_le_bytes());
    put(bytes, 28, &header.record_count.to_le_bytes());
    put(bytes, 32, &header.epoch.0.to_le_bytes());
    put(bytes, 36, &header.block.0.to_le_bytes());
    put(bytes, 44, &header.base_offset.0.to_le_bytes());
    put(bytes, 52, &header.end_offset.0.to_le_bytes());
    put(bytes, 60, &header.committed_end.0.to_le_bytes());
    put(bytes, 68, &header.log.origin.0.to_le_bytes());
    put(bytes, 72, &header.log.shard.0.to_le_bytes());
    put(bytes, 74, &header.max_timestamp.to_le_bytes());
    put(bytes, 82, &header.last_tick.0.to_le_bytes());
    let crc = crc_with_zeroed(&bytes[..BLOCK_HEADER], HEADER_CRC);
    put(bytes, HEADER_CRC, &crc.to_le_bytes());
    crc
}

/// Reads and checks the block header at the start of `bytes` (not what follows it).
pub fn read_header(bytes: &[u8]) -> Result<BlockHeader, BlockError> {
    if bytes.len() < BLOCK_HEADER {
        return Err(BlockError::Short);
    }
    let len = usize::from(u16_at(bytes, 6));
    if bytes[..4] != MAGIC || bytes[4] != VERSION || len != BLOCK_HEADER {
        return Err(BlockError::NotABlock);
    }
    let header_crc = u32_at(bytes, HEADER_CRC);
    let sound = crc_with_zeroed(&bytes[..BLOCK_HEADER], HEADER_CRC) == header_crc;
    let unknown = bytes[5] & !FIRST_IN_SEGMENT != 0 || !all_zero(&bytes[ZEROS..BLOCK_HEADER]);
    if !sound || unknown {
        return Err(BlockError::Header);
    }
    let header = BlockHeader {
        log: LogId {
            origin: OriginId(u32_at(bytes, 68)),
            shard: ShardId(u16_at(bytes, 72)),
        },
        epoch: Epoch(u32_at(bytes, 32)),
        block: BlockNo(u64_at(bytes, 36)),
        header_crc,
        prev_header_crc: u32_at(bytes, 16),
        batches_crc: u32_at(bytes, 12),
        used_len: u32_at(bytes, 20),
        batch_count: u32_at(bytes, 24),
        record_count: u32_at(bytes, 28),
        base_offset: Offset(u64_at(bytes, 44)),
        end_offset: Offset(u64_at(bytes, 52)),
        committed_end: BlockNo(u64_at(bytes, 60)),
        max_timestamp: u64_at(bytes, 74),
        last_tick: Tick(u64_at(bytes, 82)),
        first_in_segment: bytes[5] & FIRST_IN_SEGMENT != 0,
    };
    if header.is_plausible() {
        Ok(header)
    } else {
        Err(BlockError::Header)
    }
}

/// Checks every batch behind `header`: CRCs, contiguous offsets, sums equal to the header (H-26).
/// `bytes` begins with the block header and holds at least `used_len` bytes. One pass: each body is
/// under one CRC and is read once.
///
/// The prefix of a batch does not hold its `max_timestamp`. So in a block with batches of a version
/// unknown here the header's is checked from below only: by the known ones.
pub fn check_batches(bytes: &[u8], header: &BlockHeader) -> Result<(), BlockError> {
    let used = header.used_len as usize;
    if bytes.len() < used {
        return Err(BlockError::Short);
    }
    let mut walk = Walk::new(&bytes[..used], header);
    while let Some(item) = walk.next_checked() {
        item?;
    }
    walk.sums_match()
}

/// Checks that everything behind `used_len` up to the next multiple of 4096 is zero.
pub fn check_padding(bytes: &[u8], header: &BlockHeader) -> Result<(), BlockError> {
    let used = header.used_len as usize;
    let end = padded(used);
    if bytes.len() < end {
        return Err(BlockError::Short);
    }
    if all_zero(&bytes[used..end]) {
        Ok(())
    } else {
        Err(BlockError::Padding)
    }
}

/// The batches of a block whose checks have passed before, in order: position in the block and
/// prefix. Ends early at bytes that are no batch header.
pub fn batches(bytes: &[u8], header: &BlockHeader) -> Vec<(usize, BatchPrefix)> {
    let bytes = &bytes[..bytes.len().min(header.used_len as usize)];
    let mut at = BLOCK_HEADER;
    let most = bytes.len() / BATCH_HEADER;
    let mut found = Vec::with_capacity(most.min(header.batch_count as usize));
    while let Some(rest) = bytes.get(at..) {
        let Ok(prefix) = batch::read_prefix(rest) else {
            break;
        };
        found.push((at, prefix));
        at += prefix.total_len();
    }
    found
}

/// The batches of a block whose checks have passed before, in order: the bytes of each, and its
/// prefix. No CRC is looked at; it ends early at bytes that cannot be a whole batch.
pub fn walk<'a>(
    bytes: &'a [u8],
    header: &BlockHeader,
) -> impl Iterator<Item = (&'a [u8], BatchPrefix)> {
    let used = bytes.len().min(header.used_len as usize);
    let mut rest = bytes.get(BLOCK_HEADER..used).unwrap_or_default();
    core::iter::from_fn(move || {
        let prefix = (rest.len() >= BATCH_HEADER).then(|| batch::prefix_of(rest))?;
        let fits = usize::from(prefix.header_len) >= BATCH_HEADER;
        let (batch, behind) = rest.split_at_checked(prefix.total_len()).filter(|_| fits)?;
        rest = behind;
        Some((batch, prefix))
    })
}

/// CRC over the header CRCs of a block's batches, given in order.
#[derive(Clone, Debug, Default)]
pub struct BatchesCrc(crc32fast::Hasher);

impl BatchesCrc {
    /// Adds the next batch's `header_crc`.
    pub fn add(&mut self, header_crc: u32) {
        self.0.update(&header_crc.to_le_bytes());
    }

    /// The CRC of all that was added.
    pub fn finish(&self) -> u32 {
        self.0.clone().finalize()
    }
}

struct Walk<'a> {
    bytes: &'a [u8],
    header: &'a BlockHeader,
    at: usize,
    next_offset: Offset,
    batches: u32,
    last_tick: Tick,
    max_timestamp: u64,
    all_known: bool,
    crc: BatchesCrc,
}

impl<'a> Walk<'a> {
    fn new(bytes: &'a [u8], header: &'a BlockHeader) -> Walk<'a> {
        Walk {
            bytes,
            header,
            at: BLOCK_HEADER,
            next_offset: header.base_offset,
            batches: 0,
            last_tick: Tick(0),
            max_timestamp: 0,
            all_known: true,
            crc: BatchesCrc::default(),
        }
    }

    fn next_checked(&mut self) -> Option<Result<(), BlockError>> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let rest = &self.bytes[self.at..];
        let prefix = match batch::check(rest) {
            Ok(prefix) => prefix,
            Err(error) => return Some(Err(BlockError::Batch(error))),
        };
        if prefix.log != self.header.log || prefix.base_offset != self.next_offset {
            return Some(Err(BlockError::Sums));
        }
        if prefix.version == batch::VERSION {
            let latest = batch::client_half(rest).max_timestamp;
            self.max_timestamp = self.max_timestamp.max(latest);
        } else {
            self.all_known = false;
        }
        self.next_offset = prefix.end_offset();
        self.at += prefix.total_len();
        self.batches += 1;
        self.last_tick = prefix.tick;
        self.crc.add(prefix.header_crc);
        Some(Ok(()))
    }

    fn sums_match(&self) -> Result<(), BlockError> {
        let timestamps = if self.all_known {
            self.header.max_timestamp == self.max_timestamp
        } else {
            self.header.max_timestamp >= self.max_timestamp
        };
        let same = timestamps
            && self.batches == self.header.batch_count
            && self.next_offset == self.header.end_offset
            && self.last_tick == self.header.last_tick
            && self.crc.finish() == self.header.batches_crc;
        if same { Ok(()) } else { Err(BlockError::Sums) }
    }
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
