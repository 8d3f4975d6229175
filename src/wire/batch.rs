//! The batch: records appended together, encoded once by the client and never again.
//!
//! ```text
//! offset size field            made by
//!      0    4 magic "MRB1"      leader
//!      4    1 version           leader
//!      5    1 kind              leader
//!      6    2 header_len        leader
//!      8    4 header_crc        leader   whole header, this field as zero
//!     12    4 client_crc        client   bytes 64.. of the header and the stored body
//!     16    8 base_offset       leader
//!     24    8 tick              leader   append time, microseconds
//!     32    8 txn_id            leader
//!     40    4 origin_epoch      leader
//!     44    4 origin            leader
//!     48    2 shard             leader
//!     50   14 zero
//!     64    4 record_count      client
//!     68    4 stored_len        client   bytes of the body that follow the header
//!     72    4 raw_len           client   bytes of the body before its codec
//!     76    8 base_timestamp    client   record time, microseconds
//!     84    8 max_timestamp     client
//!     92    8 producer_id       client
//!    100    2 producer_epoch    client
//!    102    2 flags             client
//!    104    4 base_sequence     client
//!    108   20 zero              client
//! ```
//!
//! Everything up to and with `stored_len` is a prefix that no version may change, so a node can
//! carry a batch whose version, codec or flags it does not know (H-23). A later version may put
//! fields behind the prefix and make the header longer: `header_len` says where the body begins.
//! Version 1 has exactly 128 bytes. Kinds are part of the prefix: a node acts on them, so an
//! unknown one is refused. Zeros are demanded where a client's batch comes in, and nowhere else: a
//! CRC covers them, and a replica carries what it does not know.
//!
//! The body is opaque here: `record.rs` knows it, for clients. `client_crc` covers one contiguous
//! range, is made by the client and never again; the leader fills in its half and `header_crc`
//! without touching a byte of the client's.

use super::bytes::{all_zero, crc_with_zeroed, position_fits, put, u16_at, u32_at, u64_at};
use crate::limits::BATCH_HEADER;
use crate::types::{Epoch, LogId, Offset, OriginId, ShardId, Tick};

const MAGIC: [u8; 4] = *b"MRB1";
/// Version of the batches made here; others are carried by their prefix.
pub const VERSION: u8 = 1;
const HEADER_CRC: usize = 8;
const CLIENT_CRC: usize = 12;
/// Where the client's half of the header begins.
pub const CLIENT_HALF: usize = 64;
const CLIENT_ZEROS: usize = 108;

/// Flag: the body is compressed with zstd. The low two bits name the codec; 0 is none.
pub const FLAG_ZSTD: u16 = 1;
/// Flag: records carry keys.
pub const FLAG_KEYED: u16 = 1 << 2;
/// Flag: records carry labels.
pub const FLAG_LABELS: u16 = 1 << 3;
/// Flag: records update labels of earlier records.
pub const FLAG_UPDATE: u16 = 1 << 4;
/// Bits of `flags` that name the codec.
pub const CODEC_MASK: u16 = 3;

/// What a batch is for. Numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Records of one append.
    Data,
    /// Start of a transaction.
    TxnBegin,
    /// Records of a transaction.
    TxnBody,
    /// End of a transaction.
    TxnCommit,
    /// Made by a node for itself (epoch start, idle tick): no records, never mirrored.
    Local,
    /// A change of the cluster's configuration: no records.
    Config,
}

impl Kind {
    /// The kind's number in the header.
    pub fn number(self) -> u8 {
        match self {
            Kind::Data => 0,
            Kind::TxnBegin => 1,
            Kind::TxnBody => 2,
            Kind::TxnCommit => 3,
            Kind::Local => 5,
            Kind::Config => 6,
        }
    }
}

/// What the leader writes into a batch when it accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderHalf {
    /// What the batch is for.
    pub kind: Kind,
    /// The log it belongs to.
    pub log: LogId,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Append time.
    pub tick: Tick,
    /// Transaction, or 0.
    pub txn_id: u64,
    /// Epoch of the origin's leadership that accepted it.
    pub origin_epoch: Epoch,
}

/// What the client writes into a batch when it makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientHalf {
    /// Records in the body.
    pub record_count: u32,
    /// Bytes of the body as stored.
    pub stored_len: u32,
    /// Bytes of the body before its codec.
    pub raw_len: u32,
    /// Record time of the first record, microseconds.
    pub base_timestamp: u64,
    /// Largest record time in the batch, microseconds.
    pub max_timestamp: u64,
    /// Who made it; 0 for none.
    pub producer_id: u64,
    /// Incarnation of the producer.
    pub producer_epoch: u16,
    /// Codec and shape of the body.
    pub flags: u16,
    /// Number of its first record in the producer's own count.
    pub base_sequence: u32,
}

/// Fields of the fixed prefix: all that a node needs to carry a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPrefix {
    /// Version of the layout behind the prefix; not 0, maybe unknown here.
    pub version: u8,
    /// Bytes of the header; 128 in version 1, no less in any.
    pub header_len: u16,
    /// Number of the kind (0..=6).
    pub kind: u8,
    /// CRC of the header, as found in it.
    pub header_crc: u32,
    /// The log it belongs to.
    pub log: LogId,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Append time.
    pub tick: Tick,
    /// Epoch of the origin's leadership that accepted it.
    pub origin_epoch: Epoch,
    /// Records in the body.
    pub record_count: u32,
    /// Bytes of the body as stored.
    pub stored_len: u32,
}

impl BatchPrefix {
    /// Bytes of the whole batch: header and stored body.
    pub fn total_len(&self) -> usize {
        usize::from(self.header_len) + self.stored_len as usize
    }

    /// One past the offset of its last record.
    pub fn end_offset(&self) -> Offset {
        Offset(self.base_offset.0 + u64::from(self.record_count))
    }
}

/// Why bytes are not a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// Fewer bytes than the header, or than the header says.
    Short,
    /// Not a batch header: magic or header length is another, or a client's reserved bytes are set.
    NotABatch,
    /// `header_crc` does not fit.
    HeaderCrc,
    /// `client_crc` does not fit.
    ClientCrc,
    /// A data batch without records, a node's own batch with some (D-S5), or an offset or tick
    /// above `POSITION_MAX`.
    RecordCount,
    /// A kind that no version has.
    Kind,
}

/// Writes the client's half and `client_crc` into `bytes`: a header with its body behind it. The
/// leader's half is zeroed. Panics if `bytes` is shorter than header and body.
pub fn write_client_half(bytes: &mut [u8], half: &ClientHalf) {
    let total = BATCH_HEADER + half.stored_len as usize;
    bytes[..BATCH_HEADER].fill(0);
    put(bytes, 64, &half.record_count.to_le_bytes());
    put(bytes, 68, &half.stored_len.to_le_bytes());
    put(bytes, 72, &half.raw_len.to_le_bytes());
    put(bytes, 76, &half.base_timestamp.to_le_bytes());
    put(bytes, 84, &half.max_timestamp.to_le_bytes());
    put(bytes, 92, &half.producer_id.to_le_bytes());
    put(bytes, 100, &half.producer_epoch.to_le_bytes());
    put(bytes, 102, &half.flags.to_le_bytes());
    put(bytes, 104, &half.base_sequence.to_le_bytes());
    let crc = crc32fast::hash(&bytes[CLIENT_HALF..total]);
    put(bytes, CLIENT_CRC, &crc.to_le_bytes());
}

/// Reads the client's half of a header. The bytes are at least a header long.
pub fn client_half(bytes: &[u8]) -> ClientHalf {
    ClientHalf {
        record_count: u32_at(bytes, 64),
        stored_len: u32_at(bytes, 68),
        raw_len: u32_at(bytes, 72),
        base_timestamp: u64_at(bytes, 76),
        max_timestamp: u64_at(bytes, 84),
        producer_id: u64_at(bytes, 92),
        producer_epoch: u16_at(bytes, 100),
        flags: u16_at(bytes, 102),
        base_sequence: u32_at(bytes, 104),
    }
}

/// The CRC that the client made over its half and the body, as found in the header.
pub fn client_crc(bytes: &[u8]) -> u32 {
    u32_at(bytes, CLIENT_CRC)
}

/// What a leader checks before it accepts a client's batch: the length, and the client's CRC over
/// its half and the body. Zero records are refused (D-S5). What stands in the leader's half does
/// not matter: the leader writes all of it. Flags may be unknown ones: they are the readers'
/// matter.
pub fn check_from_client(bytes: &[u8]) -> Result<ClientHalf, BatchError> {
    if bytes.len() < BATCH_HEADER {
        return Err(BatchError::Short);
    }
    let half = client_half(bytes);
    if bytes.len() != BATCH_HEADER + half.stored_len as usize {
        return Err(BatchError::Short);
    }
    if crc32fast::hash(&bytes[CLIENT_HALF..]) != u32_at(bytes, CLIENT_CRC) {
        return Err(BatchError::ClientCrc);
    }
    if !all_zero(&bytes[CLIENT_ZEROS..BATCH_HEADER]) {
        return Err(BatchError::NotABatch);
    }
    if half.record_count == 0 {
        return Err(BatchError::RecordCount);
    }
    Ok(half)
}

/// Writes the leader's half and `header_crc` over a header whose client's half is there; returns
/// the CRC. Panics if what it wrote is a batch that every reader refuses: a record count that its
/// kind forbids, an offset or a tick that is too high.
pub fn write_leader_half(header: &mut [u8], half: &LeaderHalf) -> u32 {
    put(header, 0, &MAGIC);
    header[4] = VERSION;
    header[5] = half.kind.number();
    put(header, 6, &(BATCH_HEADER as u16).to_le_bytes());
    put(header, 16, &half.base_offset.0.to_le_bytes());
    put(header, 24, &half.tick.0.to_le_bytes());
    put(header, 32, &half.txn_id.to_le_bytes());
    put(header, 40, &half.origin_epoch.0.to_le_bytes());
    put(header, 44, &half.log.origin.0.to_le_bytes());
    put(header, 48, &half.log.shard.0.to_le_bytes());
    header[50..CLIENT_HALF].fill(0);
    let crc = crc_with_zeroed(&header[..BATCH_HEADER], HEADER_CRC);
    put(header, HEADER_CRC, &crc.to_le_bytes());
    let plausible = check_prefix(&prefix_of(header));
    assert_eq!(plausible, Ok(()), "a batch that no reader takes");
    crc
}

/// Reads the prefix of the batch at the start of `bytes` and checks its header (not its body), of
/// whatever version it is.
pub fn read_prefix(bytes: &[u8]) -> Result<BatchPrefix, BatchError> {
    if bytes.len() < BATCH_HEADER {
        return Err(BatchError::Short);
    }
    let (version, header_len) = (bytes[4], usize::from(u16_at(bytes, 6)));
    let is_header = match version {
        0 => false,
        VERSION => header_len == BATCH_HEADER,
        _ => header_len >= BATCH_HEADER,
    };
    if bytes[..4] != MAGIC || !is_header {
        return Err(BatchError::NotABatch);
    }
    let header = bytes.get(..header_len).ok_or(BatchError::Short)?;
    if crc_with_zeroed(header, HEADER_CRC) != u32_at(header, HEADER_CRC) {
        return Err(BatchError::HeaderCrc);
    }
    let prefix = prefix_of(header);
    check_prefix(&prefix)?;
    Ok(prefix)
}

/// The prefix of a batch whose checks have passed before. At least a header of bytes.
pub(super) fn prefix_of(header: &[u8]) -> BatchPrefix {
    BatchPrefix {
        version: header[4],
        header_len: u16_at(header, 6),
        kind: header[5],
        header_crc: u32_at(header, HEADER_CRC),
        log: LogId {
            origin: OriginId(u32_at(header, 44)),
            shard: ShardId(u16_at(header, 48)),
        },
        base_offset: Offset(u64_at(header, 16)),
        tick: Tick(u64_at(header, 24)),
        origin_epoch: Epoch(u32_at(header, 40)),
        record_count: u32_at(header, 64),
        stored_len: u32_at(header, 68),
    }
}

fn check_prefix(prefix: &BatchPrefix) -> Result<(), BatchError> {
    let has_records = prefix.record_count > 0;
    let counts = match prefix.kind {
        0 | 2 => has_records,
        5 | 6 => !has_records,
        1 | 3 | 4 => true,
        _ => return Err(BatchError::Kind),
    };
    // Both are tested, so that the sum of the two cannot overflow.
    let offsets = position_fits(prefix.base_offset.0) && position_fits(prefix.end_offset().0);
    if counts && offsets && position_fits(prefix.tick.0) {
        Ok(())
    } else {
        Err(BatchError::RecordCount)
    }
}

/// Checks the whole batch at the start of `bytes`: header and body.
pub fn check(bytes: &[u8]) -> Result<BatchPrefix, BatchError> {
    let prefix = read_prefix(bytes)?;
    let total = prefix.total_len();
    if bytes.len() < total {
        return Err(BatchError::Short);
    }
    if crc32fast::hash(&bytes[CLIENT_HALF..total]) != u32_at(bytes, CLIENT_CRC) {
        return Err(BatchError::ClientCrc);
    }
    Ok(prefix)
}

#[cfg(test)]
#[path = "batch_tests.rs"]
pub(super) mod tests;
