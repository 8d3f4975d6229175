//! What the drivers end with.

use crate::client::Failure;
use std::io;
use std::time::Duration;
use thiserror::Error;

/// Why a client could not do what it was asked.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The cluster, or this side of the protocol, says why not.
    #[error("{0}")]
    Failed(Failure),
    /// No node answered while connecting.
    #[error(
        "no node of {seeds} answered within {waited_ms} ms: {problem}; mend: look whether the \
         nodes run and the addresses are right"
    )]
    NoNode {
        /// The addresses tried.
        seeds: String,
        /// How long, milliseconds.
        waited_ms: u128,
        /// What went wrong last.
        problem: String,
    },
    /// No connection, or it broke.
    #[error("{0}: {1}; mend: look whether the node runs and can be reached")]
    Io(String, #[source] io::Error),
    /// The other side does not speak this protocol.
    #[error("{0} is no place for clients of millrace: {1}; mend: correct the address")]
    Protocol(String, &'static str),
    /// A setting that no session can work with.
    #[error("{0}: {1}; mend: {2}")]
    Setting(&'static str, &'static str, &'static str),
}

/// An error of a socket that waits so long at most: that nothing came in time has words of its own.
pub fn in_time(error: io::Error, most: Duration) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let text = format!("no answer within {} ms", most.as_millis());
            io::Error::new(io::ErrorKind::TimedOut, text)
        }
        _ => error,
    }
}

impl From<Failure> for ClientError {
    fn from(failure: Failure) -> ClientError {
        ClientError::Failed(failure)
    }
}

impl ClientError {
    /// Whether what was asked for may have taken effect all the same.
    pub fn is_unknown(&self) -> bool {
        matches!(self, ClientError::Failed(failure) if failure.is_unknown())
    }
}
