//! The codec of a batch's body: applied once by the client that makes the batch, undone by whoever
//! reads records.
//!
//! A node never comes here: it stores and ships the body as it is, whatever its codec. A body that
//! the codec does not make smaller is left as it is, so a batch only ever gets smaller. What comes
//! from a log is not trusted: the length that the header names bounds what is unpacked, and has to
//! fit exactly. Read `wire/record.rs` for what is inside a body.

use std::borrow::Cow;
use std::fmt;

#[cfg(feature = "client")]
use crate::limits::BATCH_HEADER;
use crate::wire::batch::{self, ClientHalf};
use crate::wire::record::BATCH_MAX;

/// Effort of zstd: the fastest of its usual range, since a core that compresses does not send.
#[cfg(feature = "client")]
const ZSTD_LEVEL: i32 = 1;

/// How a body is packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// Not at all.
    #[default]
    None,
    /// zstd.
    #[cfg(feature = "client")]
    Zstd,
}

/// Why a body cannot be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// This program does not know the codec of that number.
    Unknown(u16),
    /// The header names more bytes than any batch may have.
    TooLarge(u32),
    /// The bytes do not unpack to what the header says.
    Damaged,
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodecError::Unknown(number) => write!(f, "codec {number} is not known here"),
            CodecError::TooLarge(bytes) => {
                write!(f, "{bytes} bytes unpacked, at most {BATCH_MAX} are allowed")
            }
            CodecError::Damaged => f.write_str("the body does not unpack to what its header says"),
        }
    }
}

impl std::error::Error for CodecError {}

/// Packs the body of a finished batch, as `BatchBuilder::finish` returns it, and makes its header
/// fit; the batch as it was if that makes it no smaller.
pub fn pack(batch: Vec<u8>, codec: Codec) -> Vec<u8> {
    match codec {
        Codec::None => batch,
        #[cfg(feature = "client")]
        Codec::Zstd => zstd_packed(batch),
    }
}

#[cfg(feature = "client")]
fn zstd_packed(batch: Vec<u8>) -> Vec<u8> {
    let mut half = batch::client_half(&batch);
    if half.flags & batch::CODEC_MASK != 0 {
        return batch;
    }
    let body = &batch[BATCH_HEADER..];
    let mut packed = vec![0; batch.len()];
    // No room for more than it was: that ends in an error, and the batch goes as it is.
    let stored = zstd::bulk::compress_to_buffer(body, &mut packed[BATCH_HEADER..], ZSTD_LEVEL);
    let Some(stored) = stored.ok().filter(|stored| *stored < body.len()) else {
        return batch;
    };
    packed.truncate(BATCH_HEADER + stored);
    half.stored_len = stored as u32;
    half.flags |= batch::FLAG_ZSTD;
    batch::write_client_half(&mut packed, &half);
    packed
}

/// The records' bytes of a stored body, with the client's half of its batch's header.
pub fn unpack<'a>(half: &ClientHalf, stored: &'a [u8]) -> Result<Cow<'a, [u8]>, CodecError> {
    match half.flags & batch::CODEC_MASK {
        0 => Ok(Cow::Borrowed(stored)),
        #[cfg(feature = "client")]
        batch::FLAG_ZSTD => {
            if half.raw_len as usize > BATCH_MAX {
                return Err(CodecError::TooLarge(half.raw_len));
            }
            let raw = zstd::bulk::decompress(stored, half.raw_len as usize);
            let raw = raw.map_err(|_| CodecError::Damaged)?;
            let whole = raw.len() == half.raw_len as usize;
            whole.then_some(Cow::Owned(raw)).ok_or(CodecError::Damaged)
        }
        number => Err(CodecError::Unknown(number)),
    }
}

#[cfg(all(test, feature = "client"))]
#[path = "codec_tests.rs"]
mod tests;
