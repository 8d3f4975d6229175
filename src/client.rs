//! The client: producers and readers as pure sessions, and drivers that lend them sockets and time.
//!
//! A [`Session`] is told what happened and says what to do; it never repeats a batch under a second
//! name, so a record is in the log once or not at all. [`Producing`] appends, [`Reading`] reads one
//! shard, [`merge`] folds the records of several origins into one state. `client/driver` holds the
//! shells: `tokio.rs` for applications, `blocking.rs` for tools. Follow a record: `producing.rs`,
//! `batching.rs`, `lane.rs`, `hub.rs`.

mod batching;
pub mod codec;
pub mod driver;
mod event;
mod hub;
mod lane;
pub mod merge;
mod producing;
mod reading;
mod routes;

pub use batching::{NewRecord, shard_of_key};
pub use codec::Codec;
pub use event::{Action, Event, Failure, Session};
pub use lane::Done;
pub use producing::{ProducerOptions, Producing};
pub use reading::{At, Ends, Next, ReaderOptions, Reading, RecordBatch, Start};
pub use routes::{Refusal, Route, Routes};

#[cfg(test)]
#[path = "client/test_kit.rs"]
mod test_kit;
