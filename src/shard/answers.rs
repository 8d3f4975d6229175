//! Payloads of answers that clients have not taken yet: what a log lends to its readers.
//!
//! An answer to a read holds the buffer of its block until the last byte has left for the client's
//! socket. A client that asks and does not take its answers would so hold memory that the log needs
//! for its writes, so a log makes further answers only while what is out is below
//! `READ_ANSWER_BYTES`, and for one connection below a share of it. Reads that find no room wait
//! like those that find no records. Counted in bytes of buffers, not of payloads; an answer to an
//! otherwise idle connection always fits. Read `clients.rs` for who asks.

use crate::limits::{READ_ANSWER_BYTES, READ_ANSWER_SHARE};
use crate::types::{ConnectionId, Lent};
use std::collections::BTreeMap;

/// What is out, by connection.
#[derive(Debug, Default)]
pub(super) struct Answers {
    connections: BTreeMap<ConnectionId, Lent>,
    bytes: usize,
    /// A read found no room.
    wanted: bool,
}

impl Answers {
    /// Whether an answer of at most `most` bytes may be made to a connection, `loading` bytes being
    /// on their way from the disk for all and `own` of them for this one. If not, this is noted.
    pub(super) fn have_room(
        &mut self,
        connection: ConnectionId,
        most: usize,
        (loading, own): (usize, usize),
    ) -> bool {
        let own = own + self.connections.get(&connection).map_or(0, Lent::bytes);
        let all = self.bytes + loading;
        let fits = (own == 0 || own + most <= READ_ANSWER_SHARE)
            && (all == 0 || all + most <= READ_ANSWER_BYTES);
        self.wanted |= !fits;
        fits
    }

    /// An answer with so many bytes of payload in a buffer of `buffer` bytes is on its way.
    pub(super) fn made(&mut self, connection: ConnectionId, payload: usize, buffer: usize) {
        self.bytes += buffer;
        let out = self.connections.entry(connection).or_default();
        out.lend(payload, buffer);
    }

    /// So many bytes of payload have left a connection, in the order of its answers.
    pub(super) fn left(&mut self, connection: ConnectionId, payload: usize) {
        let Some(out) = self.connections.get_mut(&connection) else {
            return;
        };
        let before = out.bytes();
        out.left(payload);
        self.bytes -= before - out.bytes();
        if out.is_empty() {
            self.connections.remove(&connection);
        }
    }

    /// A connection is gone, with all that was on its way.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        let out = self.connections.remove(&connection);
        self.bytes -= out.map_or(0, |out| out.bytes());
    }

    /// Whether reads that found no room should look again; takes that back.
    pub(super) fn take_wanted(&mut self) -> bool {
        std::mem::take(&mut self.wanted)
    }
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
