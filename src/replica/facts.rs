//! What a replica tells of itself: plain answers from the states of its parts.
//!
//! Nothing here changes anything. Read `replica.rs` for the inputs.

use super::{Account, Following, LinkView, LogView, Promise, Replica, Role};
use crate::types::{BlockNo, NodeId, Time};
use crate::wire::body::PauseReason;

impl Replica {
    /// What the checkpoint holds for the protocol.
    pub fn promise(&self) -> Promise {
        self.state.promise
    }

    /// Blocks below it are committed.
    pub fn high_watermark(&self) -> BlockNo {
        self.state.high_watermark
    }

    /// A follower's log is known to be that of its leader below this block.
    pub fn verified_end(&self) -> BlockNo {
        self.follower.verified_end()
    }

    /// A follower may trim what lies below: its leader has, and it is committed.
    pub fn leader_start(&self) -> BlockNo {
        self.follower.leader_start(&self.state)
    }

    /// Microseconds since this follower heard of its leader.
    pub fn silence_us(&self, now: Time) -> u64 {
        now.since_us(self.follower.heard())
    }

    /// What this node granted as a follower, and what it holds of it.
    pub fn granted(&self) -> Account {
        self.follower.receiver.account()
    }

    /// What this node waits for before it can lead; empty if it does not wait.
    pub fn waits_for(&self) -> &str {
        match self.role() {
            Role::Opening => &self.state.waits_for,
            _ => "",
        }
    }

    /// The link by which this node follows, if it does not lead the log.
    pub fn following(&self, now: Time) -> Option<Following> {
        if self.leads() {
            return None;
        }
        let (status, cause) = self.follower.status(&self.state);
        let silence_us = self.state.started.then(|| self.silence_us(now));
        Some(Following {
            status,
            cause,
            silence_us,
        })
    }

    /// Whether an operator has paused the link with `peer`; none if there is no such link.
    pub fn is_paused(&self, peer: NodeId) -> Option<bool> {
        match &self.leader {
            Some(leader) if self.leads() => leader.is_paused(peer),
            _ if Some(peer) == self.leader() => {
                Some(self.follower.paused == Some(PauseReason::Manual))
            }
            _ => None,
        }
    }

    /// The links that this node leads.
    pub fn links(&self, now: Time, view: &dyn LogView) -> Vec<LinkView> {
        let leader = self.leader.as_ref().filter(|_| self.leads());
        leader.map_or_else(Vec::new, |leader| leader.views(now, view))
    }
}
