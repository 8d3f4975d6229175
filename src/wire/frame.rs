//! The frame: header, typed body, payload. All that travels on any connection.
//!
//! ```text
//! offset size field
//!      0    4 len           bytes behind this header: typed body and payload
//!      4    1 type          see the table in body.rs
//!      5    1 version
//!      6    2 flags         zero
//!      8    4 header_crc    over the header, this field as zero, and the typed body
//!     12    8 correlation   of a request; its answer repeats it
//!     20    4 origin
//!     24    2 shard
//!     26    2 body_len      bytes of the typed body; the payload is the rest
//!     28    4 zero
//! ```
//!
//! The payload is not under this CRC: blocks and batches carry their own. An unknown type is
//! skipped by its length, counted and answered `Unsupported`; a bad CRC or an over-long frame ends
//! the connection. The layout of this header is the same in every version; a frame of another
//! version, or with a flag or reserved byte set, reads as one of unknown type.

use super::bytes::{all_zero, put, u16_at, u32_at, u64_at};
use crate::limits::{FRAME_BODY, FRAME_HEADER, FRAME_PAYLOAD};
use crate::types::{LogId, OriginId, ShardId};

/// Version of the frame layout.
pub const VERSION: u8 = 1;
/// The kind of a frame that a later version made: no type has this number.
pub const UNKNOWN_KIND: u8 = 0;
const HEADER_CRC: usize = 8;

/// What is wrong with an answer that begins with `HTTP/`, which no frame does: it would be longer
/// than any.
pub const IS_HTTP: &str = "it answers in HTTP, as a node does at node.admin; its port for clients \
                           is that of node.address";

/// The facts of a frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Number of the frame's type; [`UNKNOWN_KIND`] if version, flags or reserved bytes are not
    /// those of this version, so that nothing reads its body as what it may not be.
    pub kind: u8,
    /// Version of the frame, as found in it.
    pub version: u8,
    /// Ties an answer to its request.
    pub correlation: u64,
    /// The log it is about; zero where it is about none.
    pub log: LogId,
    /// Bytes of the typed body.
    pub body_len: usize,
    /// Bytes of the payload.
    pub payload_len: usize,
    crc: u32,
}

/// Why a frame ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Longer than any frame may be, or a body longer than the frame.
    TooLong,
    /// The CRC over header and typed body does not fit.
    Crc,
}

/// Writes the header of a frame whose typed body stands right behind it in `bytes`. `payload` bytes
/// will follow. Panics on a body or payload above its limit.
pub fn write_header(bytes: &mut [u8], kind: u8, correlation: u64, log: LogId, payload: usize) {
    let body_len = bytes.len() - FRAME_HEADER;
    assert!(
        body_len <= FRAME_BODY,
        "typed bodies are bounded by their tables"
    );
    assert!(
        payload <= FRAME_PAYLOAD,
        "payloads are bounded by blocks and batches"
    );
    bytes[..FRAME_HEADER].fill(0);
    put(bytes, 0, &((body_len + payload) as u32).to_le_bytes());
    bytes[4] = kind;
    bytes[5] = VERSION;
    put(bytes, 12, &correlation.to_le_bytes());
    put(bytes, 20, &log.origin.0.to_le_bytes());
    put(bytes, 24, &log.shard.0.to_le_bytes());
    put(bytes, 26, &(body_len as u16).to_le_bytes());
    let crc = crc32fast::hash(bytes);
    put(bytes, HEADER_CRC, &crc.to_le_bytes());
}

/// Reads a header and checks its lengths. Its CRC needs the body: see [`check`]; until then only
/// the body, which is small, may be read, and nothing set aside for the payload.
pub fn read_header(bytes: &[u8; FRAME_HEADER]) -> Result<FrameHeader, FrameError> {
    let len = u32_at(bytes, 0) as usize;
    let body_len = usize::from(u16_at(bytes, 26));
    if body_len > len || body_len > FRAME_BODY || len - body_len > FRAME_PAYLOAD {
        return Err(FrameError::TooLong);
    }
    let known = bytes[5] == VERSION && all_zero(&bytes[6..8]) && all_zero(&bytes[28..]);
    Ok(FrameHeader {
        kind: if known { bytes[4] } else { UNKNOWN_KIND },
        version: bytes[5],
        correlation: u64_at(bytes, 12),
        log: LogId {
            origin: OriginId(u32_at(bytes, 20)),
            shard: ShardId(u16_at(bytes, 24)),
        },
        body_len,
        payload_len: len - body_len,
        crc: u32_at(bytes, HEADER_CRC),
    })
}

/// Checks the CRC of `header` over its own bytes and the typed body, `body_len` bytes.
pub fn check(
    header: &FrameHeader,
    bytes: &[u8; FRAME_HEADER],
    body: &[u8],
) -> Result<(), FrameError> {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..HEADER_CRC]);
    hasher.update(&[0; 4]);
    hasher.update(&bytes[HEADER_CRC + 4..]);
    hasher.update(body);
    if hasher.finalize() == header.crc {
        Ok(())
    } else {
        Err(FrameError::Crc)
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
