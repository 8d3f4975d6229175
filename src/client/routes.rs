//! Where a shard is asked for: nodes, leaders and the ports of their cores, as learned.
//!
//! Every node says of itself how many cores it has, and shard `s` lives at `port + s % cores`. That
//! map is forgotten with a connection to the node: a restarted one may have other cores. Without it
//! there is no way to the node: its base port would take every request, and hand most of them from
//! core to core for as long as the connection lasts. Leaders
//! come from `Metadata` and from `NotLeader`; what was heard last counts. See `hub.rs` for the
//! connections.

use crate::types::{Epoch, LogId, NodeId, OriginId, ShardId};
use crate::wire::body::{Error, MetadataOk};
use crate::wire::code::{Code, Retry};
use std::collections::BTreeMap;

/// Where a shard is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The node that leads it.
    pub node: NodeId,
    /// Host and port.
    pub address: String,
}

/// What a refusal means for the request that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The code; none if this version does not know its number.
    pub code: Option<Code>,
    /// What may be done.
    pub retry: Retry,
    /// The numbers that belong to the code.
    pub details: [u64; 2],
}

/// What a client knows of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    cluster: Option<MetadataOk>,
    /// Cores, as each node said of itself.
    cores: BTreeMap<NodeId, u16>,
    /// Ports that nodes named for single shards.
    ports: BTreeMap<(NodeId, ShardId), u16>,
    leaders: BTreeMap<ShardId, NodeId>,
    /// The highest epoch of a shard that a node named.
    epochs: BTreeMap<ShardId, Epoch>,
}

impl Routes {
    /// What a node said of the cluster, once one did.
    pub fn cluster(&self) -> Option<&MetadataOk> {
        self.cluster.as_ref()
    }

    /// Shards of the cluster; 0 before it is known.
    pub fn shards(&self) -> usize {
        self.cluster.as_ref().map_or(0, |known| known.leaders.len())
    }

    /// The log of a shard that clients append to: in a mesh the one of the node that was found
    /// first.
    pub fn log(&self, shard: ShardId) -> LogId {
        let known = self.cluster.as_ref();
        let origin = known.map_or(OriginId(0), |known| known.origin);
        LogId { origin, shard }
    }

    /// The leader of a shard, if one is known.
    pub fn leader(&self, shard: ShardId) -> Option<NodeId> {
        self.leaders.get(&shard).copied()
    }

    /// The highest epoch of a shard that a node named; 0 if none did.
    pub fn epoch(&self, shard: ShardId) -> Epoch {
        self.epochs.get(&shard).copied().unwrap_or_default()
    }

    /// The leader of a shard and where it listens for it, if its cores are known.
    pub fn route(&self, shard: ShardId) -> Option<Route> {
        self.route_to(self.leader(shard)?, shard)
    }

    /// Where a node is asked for its cores.
    pub fn base_of(&self, node: NodeId) -> Option<&str> {
        let cluster = self.cluster.as_ref()?;
        let entry = cluster.nodes.iter().find(|entry| entry.node == node)?;
        Some(&entry.address)
    }

    /// Where a node listens for a shard; none while its cores are not known.
    pub fn route_to(&self, node: NodeId, shard: ShardId) -> Option<Route> {
        let (host, base) = self.base_of(node)?.rsplit_once(':')?;
        let base: u16 = base.parse().ok()?;
        let named = self.ports.get(&(node, shard)).copied();
        let port = match named {
            Some(port) => port,
            None => base.checked_add(shard.0 % self.cores.get(&node)?)?,
        };
        let address = format!("{host}:{port}");
        Some(Route { node, address })
    }

    /// Takes in what a node says. False if it belongs to another cluster than the one known.
    pub fn learn(&mut self, known: &MetadataOk) -> bool {
        let same = |before: &MetadataOk| before.cluster == known.cluster;
        if !self.cluster.as_ref().is_none_or(same) {
            return false;
        }
        let own = known.nodes.iter().find(|entry| entry.node == known.node);
        let cores = own.map_or(1, |entry| entry.cores.max(1));
        self.cores.insert(known.node, cores);
        // Each node of a mesh takes appends to logs of its own, and a retry must not go to another.
        let other_logs = |before: &MetadataOk| before.origin != known.origin;
        if self.cluster.as_ref().is_some_and(other_logs) {
            return true;
        }
        for (shard, leader) in (0..).map(ShardId).zip(&known.leaders) {
            if leader.0 > 0 {
                self.leaders.insert(shard, *leader);
            }
        }
        for (shard, epoch) in (0..).map(ShardId).zip(&known.epochs) {
            let highest = self.epochs.entry(shard).or_default();
            *highest = (*highest).max(*epoch);
        }
        self.cluster = Some(known.clone());
        true
    }

    /// A connection to a node is gone: what it said of its ports may not hold any more.
    pub fn forget_ports(&mut self, node: NodeId) {
        self.cores.remove(&node);
        self.ports.retain(|(of, _), _| *of != node);
    }

    /// Takes in a refusal by `node` of a request about `shard`.
    pub fn heed(&mut self, node: Option<NodeId>, shard: ShardId, error: &Error) -> Refusal {
        let code = Code::from_number(error.code);
        match code {
            Some(Code::NotLeader) if error.detail > 0 => {
                if let Ok(leader) = u32::try_from(error.detail) {
                    self.leaders.insert(shard, NodeId(leader));
                }
            }
            Some(Code::WrongCore) => {
                if let (Some(node), Ok(port)) = (node, u16::try_from(error.detail)) {
                    self.ports.insert((node, shard), port);
                }
            }
            _ => {}
        }
        Refusal {
            code,
            retry: code.map_or(Retry::Final, Code::retry),
            details: [error.detail, error.detail_two],
        }
    }
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
