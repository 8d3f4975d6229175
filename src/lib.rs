//! millrace: a replicated log for Linux bare metal.
pub mod buffers;
pub mod client;
#[cfg(feature = "node")]
pub mod config;
pub mod faults;
pub mod limits;
#[cfg(feature = "node")]
pub mod runtime;
pub mod shard;
pub mod types;
pub mod wal;
pub mod wire;
