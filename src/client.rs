//! A client's side of the protocol, without sockets: where a shard is, what is unanswered, what an
//! answer means.
//!
//! A [`Session`] learns the cluster from `Metadata`, numbers requests and turns each answer into an
//! [`Outcome`]: done, ask elsewhere, ask later, refused for good, or unknown. It never repeats a
//! request by itself: whether a batch whose outcome is unknown may be sent again is the caller's to
//! say. Drivers own sockets and time; `client/driver/blocking.rs` is the one for tools.

#[cfg(feature = "client")]
pub mod codec;
pub mod driver;

use crate::types::{Epoch, LogId, NodeId, Offset, OriginId, ReadLevel, ShardId};
use crate::wire::body::{Append, Body, Error, Find, Metadata, MetadataOk, PROTOCOL, Read, Status};
use crate::wire::code::{Code, Retry};
use std::collections::BTreeMap;

/// What a client knows of a cluster, and its unanswered requests.
#[derive(Clone, Debug, Default)]
pub struct Session {
    cluster: Option<MetadataOk>,
    /// Ports that nodes named for shards of another core, and leaders named for shards.
    ports: BTreeMap<(NodeId, ShardId), u16>,
    leaders: BTreeMap<ShardId, NodeId>,
    last_correlation: u64,
    in_flight: BTreeMap<u64, InFlight>,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    node: Option<NodeId>,
    shard: ShardId,
}

/// A request as bytes: header and body; its payload follows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The request's number.
    pub correlation: u64,
    /// Header and body of the frame.
    pub head: Vec<u8>,
}

/// Where a shard is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The node that leads it.
    pub node: NodeId,
    /// Host and port.
    pub address: String,
}

/// What an answer means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The answer itself.
    Done(Body),
    /// The same request may succeed at the shard's route, which is another one now.
    Elsewhere(Code),
    /// The same request may succeed at the same place later.
    Later(Code),
    /// It will never succeed; the numbers belong to the code.
    Refused(Code, [u64; 2]),
    /// It may have taken effect.
    Unknown(Code),
    /// Nobody asked for this.
    Stray,
}

impl Session {
    /// A session that knows nothing yet.
    pub fn new() -> Session {
        Session::default()
    }

    /// What the cluster said of itself, once it did.
    pub fn cluster(&self) -> Option<&MetadataOk> {
        self.cluster.as_ref()
    }

    /// Requests without an answer.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The question that comes first on every connection.
    pub fn metadata(&mut self) -> Outgoing {
        let protocol = PROTOCOL;
        self.ask(None, LogId::default(), Metadata { protocol }, 0)
    }

    /// The node's status.
    pub fn status(&mut self) -> Outgoing {
        self.ask(None, LogId::default(), Status {}, 0)
    }

    /// An append of a batch of `len` bytes, sent to the shard's route.
    pub fn append(&mut self, shard: ShardId, body: Append, len: usize) -> Outgoing {
        let node = self.route(shard).map(|route| route.node);
        self.ask(node, self.log(shard), body, len)
    }

    /// A read that asks `node`, which need not lead the log.
    pub fn read(&mut self, node: NodeId, log: LogId, body: Read) -> Outgoing {
        self.ask(Some(node), log, body, 0)
    }

    /// A search by record time that asks `node`.
    pub fn find(&mut self, node: NodeId, log: LogId, timestamp: u64) -> Outgoing {
        self.ask(Some(node), log, Find { timestamp }, 0)
    }

    fn ask(
        &mut self,
        node: Option<NodeId>,
        log: LogId,
        body: impl Into<Body>,
        payload: usize,
    ) -> Outgoing {
        self.last_correlation += 1;
        let correlation = self.last_correlation;
        let shard = log.shard;
        self.in_flight.insert(correlation, InFlight { node, shard });
        Outgoing {
            correlation,
            head: body.into().encode(correlation, log, payload),
        }
    }

    /// The log of a shard to which the node that was asked for `Metadata` takes appends: in a mesh
    /// the one of its own origin.
    pub fn log(&self, shard: ShardId) -> LogId {
        let known = self.cluster.as_ref();
        let origin = known.map_or(OriginId(0), |known| known.origin);
        LogId { origin, shard }
    }

    /// The leader of a shard and where it listens for it; none before the cluster is known, or for
    /// a shard that it does not have.
    pub fn route(&self, shard: ShardId) -> Option<Route> {
        let cluster = self.cluster.as_ref()?;
        let placed = *cluster.leaders.get(usize::from(shard.0))?;
        let node = self.leaders.get(&shard).copied().unwrap_or(placed);
        self.route_to(node, shard)
    }

    /// Where a node listens for a shard.
    pub fn route_to(&self, node: NodeId, shard: ShardId) -> Option<Route> {
        let cluster = self.cluster.as_ref()?;
        let entry = cluster.nodes.iter().find(|entry| entry.node == node)?;
        let (host, base) = entry.address.rsplit_once(':')?;
        let base: u16 = base.parse().ok()?;
        let named = self.ports.get(&(node, shard)).copied();
        let port = named.unwrap_or_else(|| base + shard.0 % entry.cores.max(1));
        let address = format!("{host}:{port}");
        Some(Route { node, address })
    }

    /// Takes in an answer.
    pub fn answer(&mut self, correlation: u64, body: Body) -> Outcome {
        let Some(asked) = self.in_flight.remove(&correlation) else {
            return Outcome::Stray;
        };
        match body {
            Body::Error(error) => self.refusal(asked, &error),
            Body::MetadataOk(known) => {
                self.learn(&known);
                Outcome::Done(Body::MetadataOk(known))
            }
            body => Outcome::Done(body),
        }
    }

    fn learn(&mut self, known: &MetadataOk) {
        let mut known = known.clone();
        // A node knows how many cores it has, not how many the others have.
        for entry in self.cluster.iter().flat_map(|before| &before.nodes) {
            let same = |other: &&mut _| is_same_node(entry, other);
            if let Some(other) = known.nodes.iter_mut().find(same) {
                other.cores = entry.cores;
            }
        }
        self.cluster = Some(known);
    }

    fn refusal(&mut self, asked: InFlight, error: &Error) -> Outcome {
        let Some(code) = Code::from_number(error.code) else {
            return Outcome::Refused(Code::Unsupported, [u64::from(error.code), 0]);
        };
        match code {
            Code::NotLeader if error.detail > 0 => {
                self.leaders
                    .insert(asked.shard, NodeId(error.detail as u32));
            }
            Code::WrongCore => {
                if let (Some(node), Ok(port)) = (asked.node, u16::try_from(error.detail)) {
                    self.ports.insert((node, asked.shard), port);
                }
            }
            _ => {}
        }
        match code.retry() {
            Retry::Elsewhere => Outcome::Elsewhere(code),
            Retry::Later => Outcome::Later(code),
            Retry::Final => Outcome::Refused(code, [error.detail, error.detail_two]),
            Retry::UnknownOutcome => Outcome::Unknown(code),
        }
    }

    /// The connection to a node is gone (none: any): the numbers of the requests that it leaves
    /// without an answer. Their outcome is unknown.
    pub fn disconnected(&mut self, node: Option<NodeId>) -> Vec<u64> {
        let lost = |asked: &InFlight| node.is_none() || asked.node == node;
        let all = self.in_flight.iter().filter(|(_, asked)| lost(asked));
        let numbers: Vec<u64> = all.map(|(number, _)| *number).collect();
        numbers.iter().for_each(|number| {
            self.in_flight.remove(number);
        });
        numbers
    }
}

fn is_same_node(
    known: &crate::wire::body::NodeAddress,
    other: &crate::wire::body::NodeAddress,
) -> bool {
    known.node == other.node && other.cores == 0
}

/// A read of whole batches from `offset` on.
pub fn read_body(offset: Offset, max_bytes: u32, wait_ms: u32, level: ReadLevel) -> Read {
    Read {
        offset,
        max_bytes,
        wait_ms,
        level: level.number(),
        last_epoch: Epoch(0),
    }
}

#[cfg(test)]
#[path = "client/session_tests.rs"]
mod tests;
