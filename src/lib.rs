//! millrace: a replicated log for Linux bare metal.
pub mod buffers;
pub mod faults;
pub mod limits;
pub mod replica;
pub mod shard;
pub mod types;
pub mod wal;
pub mod wire;
