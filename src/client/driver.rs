//! Drivers: sockets and time for the sessions of `client.rs`, and nothing that decides.
//!
//! [`blocking`] uses threads and the sockets of std, [`tokio`] tasks and the sockets of tokio. Both
//! take the same configuration (`setup.rs`), end with the same errors (`error.rs`) and cut bytes
//! into frames by the same code (`frames.rs`).

#[cfg(feature = "client")]
pub mod blocking;
#[cfg(feature = "client")]
mod error;
#[cfg(feature = "client")]
mod frames;
#[cfg(feature = "client")]
mod setup;
#[cfg(feature = "client-tokio")]
pub mod tokio;

#[cfg(feature = "client")]
pub use error::{ClientError, in_time};
#[cfg(feature = "client")]
pub use setup::{Ack, Message, ProducerConfig, ReaderConfig};
