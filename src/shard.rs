//! The composition of one log: its WAL, its part in replication, its clients.
//!
//! Production and the simulator run this very code up to the last system call. The shell calls
//! [`Shard::handle`] with what happened, then [`Shard::poll_action`] until it returns none, and calls
//! again with [`Event::Timer`] when [`Shard::poll_timeout`] is due. No callbacks, no clock, no I/O: time
//! is a parameter, payload bytes stay in the shell's buffers (see `buffers.rs`). Every decision belongs
//! to a leaf: how bytes become durable to `wal`, who may lead and what may be admitted to `replica`.

pub mod event;
