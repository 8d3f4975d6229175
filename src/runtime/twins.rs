//! Two processes that claim one node id: to the others each is the newer one, and their connections
//! take each other's place without end.
//!
//! A data connection that comes while the one before it is alive takes its place: once after a
//! restart or a broken network. When it happens again and again within a short while, a line says
//! so, once in a while. Only configured nodes and logs of this core are counted.

use super::connection::Kind;
use super::driver::Core;
use crate::types::{LogId, NodeId, Time};
use crate::wire::body::Channel;
use crate::wire::message::Message;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// So many within so long are no restart.
const REPLACED: u32 = 4;
const WITHIN_US: u64 = 30_000_000;

/// What was counted of one link.
#[derive(Clone, Copy, Debug)]
struct Count {
    since: Time,
    replaced: u32,
}

/// Connections that took the place of another one.
#[derive(Debug, Default)]
pub(super) struct Twins {
    counts: RefCell<BTreeMap<(NodeId, LogId), Count>>,
}

impl Twins {
    /// Another one; whether it is to be told.
    fn note(&self, node: NodeId, log: LogId, now: Time) -> bool {
        let mut counts = self.counts.borrow_mut();
        let fresh = Count {
            since: now,
            replaced: 0,
        };
        let count = counts.entry((node, log)).or_insert(fresh);
        if now.since_us(count.since) > WITHIN_US {
            *count = fresh;
        }
        count.replaced += 1;
        count.replaced == REPLACED
    }
}

impl Core {
    /// A data connection of a node for a log was accepted.
    pub(super) fn watch_for_twins(&self, node: NodeId, log: LogId, newer: SocketAddr) {
        let Some(local) = self.local(log) else {
            return;
        };
        let is_same = |kind| match kind {
            Kind::Peer {
                node: other,
                channel: Channel::Data,
                dialed: false,
            } => other == node,
            _ => false,
        };
        let older = {
            let connections = self.connections.borrow();
            let mut open = connections.values().filter(|one| !one.is_ending());
            let older =
                open.find(|one| is_same(one.kind.get()) && one.known_to.borrow().contains(&local));
            older.map(|one| one.address)
        };
        let Some(older) = older else {
            return;
        };
        if self.twins.note(node, log, self.clock.now()) && self.may_complain() {
            let message = Message::TwoOfOneId;
            let (id, mend) = (message.name(), message.mend());
            tracing::error!(
                id,
                %log,
                %older,
                %newer,
                "two processes seem to be node {node}: {}; mend: {mend}",
                message.meaning()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_is_no_twin() {
        let twins = Twins::default();
        let (node, log) = (NodeId(2), LogId::default());
        let note = |us| twins.note(node, log, Time(us));
        for restart in 0..10 {
            assert!(!note(restart * WITHIN_US));
        }
        let start = 20 * WITHIN_US;
        let told = (0..60).filter(|second| note(start + second * 1_000_000));
        assert_eq!(told.count(), 2, "once in a while");
    }
}
