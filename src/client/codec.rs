//! The codec of a batch's body: made by the client, opened by the client, carried by everybody else.
//!
//! Only the stored body changes; the records inside are as `wire/record.rs` encoded them. A body
//! that does not shrink is stored as it is. A batch says how long its body was; nothing is set aside
//! for more than a batch may have, and a body that turns out longer or shorter is refused, so a few
//! bytes cannot become gigabytes here.

use super::event::Failure;
use crate::limits::BATCH_HEADER;
use crate::wire::batch::{self, CODEC_MASK, FLAG_ZSTD};
use crate::wire::record::BATCH_MAX;
use bytes::Bytes;

/// How the body of a batch is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// As it is.
    #[default]
    None,
    /// Compressed with zstd at this level, 1 (fast) to 19 (small).
    #[cfg(feature = "client")]
    Zstd(i32),
}

/// Stores the body of a finished batch by the codec.
pub(super) fn store(codec: Codec, batch: Vec<u8>) -> Vec<u8> {
    match codec {
        Codec::None => batch,
        #[cfg(feature = "client")]
        Codec::Zstd(level) => compress(level, batch),
    }
}

#[cfg(feature = "client")]
fn compress(level: i32, batch: Vec<u8>) -> Vec<u8> {
    let body = &batch[BATCH_HEADER..];
    // Only memory can fail here; a body as it is is right too.
    let Ok(small) = zstd::bulk::compress(body, level) else {
        return batch;
    };
    if small.len() >= body.len() {
        return batch;
    }
    let mut half = batch::client_half(&batch);
    half.stored_len = small.len() as u32;
    half.flags = half.flags & !CODEC_MASK | FLAG_ZSTD;
    let mut stored = vec![0; BATCH_HEADER];
    stored.extend_from_slice(&small);
    batch::write_client_half(&mut stored, &half);
    stored
}

/// The body of a batch that passed its CRC, as the records were encoded. `offset` is for the error.
pub(super) fn open(whole: &Bytes, header_len: usize, offset: u64) -> Result<Bytes, Failure> {
    let half = batch::client_half(whole);
    let body = whole.slice(header_len..);
    let damaged = |what| Failure::Damaged { offset, what };
    let raw_len = half.raw_len as usize;
    if raw_len > BATCH_MAX {
        return Err(damaged("it says that its body is longer than any batch"));
    }
    match half.flags & CODEC_MASK {
        0 if raw_len == body.len() => Ok(body),
        0 => Err(damaged("its body has another length than it says")),
        FLAG_ZSTD => decompress(&body, raw_len).map_err(damaged),
        _ => Err(damaged("its codec is not known here")),
    }
}

#[cfg(feature = "client")]
fn decompress(body: &[u8], raw_len: usize) -> Result<Bytes, &'static str> {
    // Never decodes past `raw_len` bytes.
    let raw = zstd::bulk::decompress(body, raw_len);
    let raw = raw.map_err(|_| "its compressed body is damaged or longer than it says")?;
    if raw.len() == raw_len {
        Ok(raw.into())
    } else {
        Err("its body has another length than it says")
    }
}

#[cfg(not(feature = "client"))]
fn decompress(_: &[u8], _: usize) -> Result<Bytes, &'static str> {
    Err("it is compressed, and this build has no zstd (feature client)")
}

#[cfg(all(test, feature = "client"))]
#[path = "codec_tests.rs"]
mod tests;
