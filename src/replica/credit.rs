//! Credit: the receiver's account and the sender's account of one link.
//!
//! The receiver owns credit. It grants absolute, cumulative limits on a connection, in records and
//! in bytes as blocks occupy memory. `limit = disposed of on this connection + window - what older
//! connections of the link still hold`, never lowered on a connection, so a doubled or lost grant
//! changes nothing (D-S7, D-S8). The sender may send while `sent + block <= limit` in both; with
//! nothing in flight and both above zero, one larger block may go alone, so that no block can be
//! too large for a link. A receiver slows its sender by not raising the limit. Neither account ever
//! looks at positions: see `progress.rs` and `follower.rs` for what is sent and when it is disposed
//! of.

use crate::wire::block::BlockHeader;
use crate::wire::body::CreditLimits;

/// Nothing in both units.
pub const NOTHING: CreditLimits = CreditLimits {
    records: 0,
    bytes: 0,
};

/// What a block costs.
pub fn weight(header: &BlockHeader) -> CreditLimits {
    CreditLimits {
        records: u64::from(header.record_count),
        bytes: header.padded_len() as u64,
    }
}

/// The sum in both units.
pub fn plus(a: CreditLimits, b: CreditLimits) -> CreditLimits {
    CreditLimits {
        records: a.records.saturating_add(b.records),
        bytes: a.bytes.saturating_add(b.bytes),
    }
}

/// The difference in both units, not below zero.
pub fn minus(a: CreditLimits, b: CreditLimits) -> CreditLimits {
    CreditLimits {
        records: a.records.saturating_sub(b.records),
        bytes: a.bytes.saturating_sub(b.bytes),
    }
}

/// Whether `a` is at most `b` in both units.
pub fn within(a: CreditLimits, b: CreditLimits) -> bool {
    a.records <= b.records && a.bytes <= b.bytes
}

fn highest(a: CreditLimits, b: CreditLimits) -> CreditLimits {
    CreditLimits {
        records: a.records.max(b.records),
        bytes: a.bytes.max(b.bytes),
    }
}

/// One side's account of a link, on the connection that it has now. With nothing in flight both
/// sides say the same, and `limit - used` is the whole window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Sent, or arrived, on this connection.
    pub used: CreditLimits,
    /// Granted on it so far.
    pub limit: CreditLimits,
    /// Arrived on any connection and not yet disposed of; nothing at the sender.
    pub held: CreditLimits,
}

/// The account of the side that grants.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    window: CreditLimits,
    /// Arrived on older connections of the link and not yet disposed of.
    older: CreditLimits,
    arrived: CreditLimits,
    disposed: CreditLimits,
    limit: CreditLimits,
    held_back: bool,
    /// Byte limit that is not passed while the sender is slowed.
    cap: Option<u64>,
    connected: bool,
}

impl Receiver {
    /// An account that may hold so much at any time; nothing is granted before a connection.
    pub fn new(window: CreditLimits) -> Receiver {
        Receiver {
            window,
            older: NOTHING,
            arrived: NOTHING,
            disposed: NOTHING,
            limit: NOTHING,
            held_back: false,
            cap: None,
            connected: false,
        }
    }

    /// A new connection of the link: all accounts of the connection start at zero.
    pub fn connect(&mut self) {
        self.disconnect();
        self.connected = true;
        self.raise();
    }

    /// The connection is gone; what came on it and is still held counts against the next one.
    pub fn disconnect(&mut self) {
        self.older = plus(self.older, minus(self.arrived, self.disposed));
        self.arrived = NOTHING;
        self.disposed = NOTHING;
        self.limit = NOTHING;
        self.cap = None;
        self.connected = false;
    }

    /// So much came in one frame of `blocks` blocks. Whether the sender was allowed to send it.
    pub fn arrive(&mut self, run: CreditLimits, blocks: u32) -> bool {
        let room = minus(self.limit, self.arrived);
        let alone = blocks == 1 && self.arrived == self.disposed;
        let allowed = within(plus(self.arrived, run), self.limit)
            || (alone && room.records > 0 && room.bytes > 0);
        self.arrived = plus(self.arrived, run);
        allowed
    }

    /// So much of what came on this connection is durable, a duplicate, or refused.
    pub fn dispose(&mut self, run: CreditLimits) {
        self.disposed = plus(self.disposed, run);
        assert!(
            within(self.disposed, self.arrived),
            "disposed of more than ever arrived"
        );
        self.raise();
    }

    /// So much of what came on an older connection is disposed of.
    pub fn dispose_older(&mut self, run: CreditLimits) {
        assert!(
            within(run, self.older),
            "disposed of more than older connections held"
        );
        self.older = minus(self.older, run);
        self.raise();
    }

    /// Stops (`true`) or goes on with raising the limit: a pause is a grant of nothing more.
    pub fn hold_back(&mut self, held_back: bool) {
        self.held_back = held_back;
        self.raise();
    }

    /// From now on the byte limit rises by [`Receiver::raise_cap`] alone.
    pub fn cap(&mut self) {
        self.cap = Some(self.limit.bytes);
    }

    /// The byte limit may rise by `more` bytes, but not to more than `ahead` above what came and
    /// what was granted before. Whether it rose.
    pub fn raise_cap(&mut self, more: u64, ahead: u64) -> bool {
        let before = self.limit;
        if let Some(cap) = &mut self.cap {
            let most = self.arrived.bytes.saturating_add(ahead).max(before.bytes);
            *cap = cap.saturating_add(more).min(most);
            self.raise();
        }
        self.limit != before
    }

    /// The byte limit is free again.
    pub fn uncap(&mut self) {
        self.cap = None;
        self.raise();
    }

    /// What is granted on this connection so far.
    pub fn limit(&self) -> CreditLimits {
        self.limit
    }

    /// The account as operators see it.
    pub fn account(&self) -> Account {
        Account {
            used: self.arrived,
            limit: self.limit,
            held: self.held(),
        }
    }

    /// What arrived on any connection and is not disposed of.
    pub fn held(&self) -> CreditLimits {
        plus(self.older, minus(self.arrived, self.disposed))
    }

    fn raise(&mut self) {
        if self.connected && !self.held_back {
            let free = minus(self.window, self.older);
            let mut limit = plus(self.disposed, free);
            limit.bytes = self.cap.map_or(limit.bytes, |cap| limit.bytes.min(cap));
            self.limit = highest(self.limit, limit);
        }
    }
}

/// The account of the side that sends, for one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sender {
    sent: CreditLimits,
    limit: CreditLimits,
}

impl Sender {
    /// A grant came; one that is lower than an earlier one says nothing new.
    pub fn raise(&mut self, limit: CreditLimits) {
        self.limit = highest(self.limit, limit);
    }

    /// The account as operators see it.
    pub fn account(&self) -> Account {
        Account {
            used: self.sent,
            limit: self.limit,
            held: NOTHING,
        }
    }

    /// The credit as operators see it: what may still be sent.
    pub fn room(&self) -> CreditLimits {
        minus(self.limit, self.sent)
    }

    /// Whether a block of this weight may go.
    pub fn allows(&self, weight: CreditLimits, nothing_in_flight: bool) -> bool {
        within(plus(self.sent, weight), self.limit)
            || (nothing_in_flight && self.allows_oversized())
    }

    /// Whether, with nothing in flight, a block of any size may go alone.
    pub fn allows_oversized(&self) -> bool {
        let room = self.room();
        room.records > 0 && room.bytes > 0
    }

    /// So much was handed to the connection.
    pub fn spend(&mut self, weight: CreditLimits) {
        self.sent = plus(self.sent, weight);
    }
}

#[cfg(test)]
#[path = "credit_tests.rs"]
mod tests;
