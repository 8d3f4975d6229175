//! Formats: everything that is ever written to a file or a socket, down to the byte.
//!
//! Little-endian, fixed layouts, no I/O, no clock. Unchecked input is a byte slice; a value of one
//! of these types has passed its checks. Every header carries a CRC over the whole header with the
//! CRC field as zero. Start with `block.rs`, the unit of durability and of replication.

pub mod batch;
pub mod block;
pub mod body;
pub mod capability;
pub mod checkpoint;
pub mod code;
pub mod frame;
pub mod message;
pub mod producers;
pub mod record;
pub mod segment;
#[cfg(feature = "node")]
pub mod trust;

mod bytes;
mod field;
#[cfg(test)]
mod golden;

pub use bytes::crc_with_zeroed;
