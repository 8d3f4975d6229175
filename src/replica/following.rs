//! How a follower's side of its link looks to operators: a status, and why.
//!
//! The cause is empty only while blocks may flow: whoever sees a follower that is not brought up
//! finds the reason here or in its role. Decides nothing: see `follower.rs`.

use super::follower::Follower;
use super::output::{LinkStatus, Refused};
use super::state::State;
use crate::types::NodeId;
use crate::wire::body::{PauseReason, ReplicaMemory};

impl Follower {
    /// One of the two nodes refused the other's connection.
    pub fn peer_refused(&mut self, peer: NodeId, why: Refused, state: &State) {
        if state.may_lead(peer) && !self.is_connected(state) {
            self.refused = Some(why);
        }
    }

    pub(super) fn is_connected(&self, state: &State) -> bool {
        match state.config.electing {
            true => self.credited.is_some(),
            false => self.data.iter().any(|(_, peer)| state.may_lead(*peer)),
        }
    }

    /// The status of the link, and why it is that.
    pub fn status(&self, state: &State) -> (LinkStatus, String) {
        let status = match (self.following, self.paused) {
            (None, _) => LinkStatus::Disconnected,
            _ if !self.is_connected(state) => LinkStatus::Disconnected,
            (Some(_), Some(_)) => LinkStatus::Paused,
            (Some(_), None) => LinkStatus::Replicating,
        };
        (status, self.cause(state))
    }

    fn cause(&self, state: &State) -> String {
        // The role says that it recovers, or is closed.
        if !state.started || state.failed {
            return String::new();
        }
        if !self.is_connected(state) {
            return match self.refused {
                Some((code, details)) => format!("refused: {}", code.explain(details)),
                None => "no connection from the leader".to_owned(),
            };
        }
        let text = match (self.paused, state.promise.memory, self.following) {
            (Some(PauseReason::SlowDisk), ..) => "slow_disk",
            (Some(PauseReason::HighLoad), ..) => "high_load",
            (Some(PauseReason::Manual), ..) => "manual",
            (_, ReplicaMemory::Lost | ReplicaMemory::Blank, Some(_)) => {
                return self.target.map_or_else(String::new, |end| {
                    format!("lost its memory; whole again once it holds the blocks below {end}")
                });
            }
            (_, ReplicaMemory::Lost, None) => "lost its memory; waits until its leader asks",
            (_, ReplicaMemory::Blank, None) => "holds nothing; waits until its leader asks",
            (_, ReplicaMemory::Whole, None) => "waits until its leader asks for a promise",
            (_, ReplicaMemory::Whole, Some(_)) if self.full => "its disk is full",
            (_, ReplicaMemory::Whole, Some(_)) => "",
        };
        text.to_owned()
    }
}
