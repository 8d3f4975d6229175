//! Drivers: sockets and time for a [`super::Session`].

#[cfg(feature = "client")]
pub mod blocking;
