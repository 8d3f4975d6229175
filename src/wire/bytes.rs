//! Little-endian reads and writes at fixed positions, and the header CRC.
//!
//! Positions are constants of the layouts, so an access outside the slice is a bug and panics; the
//! length of foreign input is checked by the caller before its first access.

use crate::limits::{EPOCH_MAX, POSITION_MAX};
use crate::types::Epoch;

const _: () = assert!(
    usize::BITS >= 64,
    "sums of 32-bit lengths are taken in usize"
);

/// Reads a `u16` at `at`.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Reads a `u32` at `at`.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Reads a `u64` at `at`.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Writes `value` at `at`.
pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Whether `number`, a foreign block number, offset or tick, leaves room for sums.
pub(super) fn position_fits(number: u64) -> bool {
    number <= POSITION_MAX
}

/// Whether `epoch`, a foreign one, leaves room for a higher one.
pub(super) fn epoch_fits(epoch: Epoch) -> bool {
    epoch.0 <= EPOCH_MAX
}

/// Whether all `bytes` are zero, as reserved ones and padding must be.
pub(super) fn all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// CRC-32 of `bytes` with the four bytes at `field` taken as zero: how every header is protected.
pub fn crc_with_zeroed(bytes: &[u8], field: usize) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..field]);
    hasher.update(&[0; 4]);
    hasher.update(&bytes[field + 4..]);
    hasher.finalize()
}
