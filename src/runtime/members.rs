//! What the other nodes of the cluster can, as they said, and what the cluster is finalized with.
//!
//! Each Hello and HelloOk of a configured node is noted here, and refused if it lacks what is
//! finalized. To finalize is an order of an operator to each node by itself: the node looks whether
//! all others are connected and have everything that it has, and writes that into its `node.toml`.
//! A node that was down meanwhile stops the order at the others, and one that goes down between
//! two of them is given it again: the order may be repeated, and a node that was not given it yet
//! is able nevertheless, so nothing is lost by the time between. Never waits, but for the disk in
//! [`Members::finalize`], which the admin thread calls.

use super::identity;
use crate::config::Config;
use crate::shard::status::Refused;
use crate::types::NodeId;
use crate::wire::capability::{Capabilities, Capability};
use crate::wire::code::Code;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Beside what a node said, in the bit that is no capability's: it said something.
const HEARD: u64 = 1;

/// The other nodes.
#[derive(Debug)]
pub(super) struct Members {
    others: BTreeMap<NodeId, Member>,
    /// In `node.toml`.
    finalized: AtomicU64,
    /// What a node must have: the same, and ahead of it while it is being written.
    demanded: AtomicU64,
}

#[derive(Debug, Default)]
struct Member {
    said: AtomicU64,
    connections: AtomicUsize,
}

/// Counts one connection with a node until it is dropped.
pub(super) struct Connected<'a>(Option<&'a Member>);

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        if let Some(member) = self.0 {
            member.connections.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Member {
    fn capabilities(&self) -> Option<Capabilities> {
        let said = self.said.load(Ordering::SeqCst);
        (said & HEARD != 0).then(|| Capabilities::from_bits(said))
    }
}

impl Members {
    pub(super) fn new(config: &Config, finalized: Capabilities) -> Members {
        let nodes = config.cluster.nodes.iter().map(|node| node.id);
        let others = nodes.filter(|node| *node != config.node.id);
        Members {
            others: others.map(|node| (node, Member::default())).collect(),
            finalized: AtomicU64::new(finalized.bits()),
            demanded: AtomicU64::new(finalized.bits()),
        }
    }

    /// A configured node says what it can; refused if it lacks what is finalized.
    pub(super) fn check(&self, node: NodeId, said: Capabilities) -> Result<(), Refused> {
        // Noted before the look, as `finalize` demands before it looks: one of the two sees it.
        if let Some(member) = self.others.get(&node) {
            member.said.store(said.bits() | HEARD, Ordering::SeqCst);
        }
        let demanded = Capabilities::from_bits(self.demanded.load(Ordering::SeqCst));
        match demanded.without(said).is_empty() {
            true => Ok(()),
            false => Err((Code::LacksCapability, [demanded.bits(), said.bits()])),
        }
    }

    /// What a node said last; nothing if it said nothing yet.
    pub(super) fn said(&self, node: NodeId) -> Capabilities {
        let member = self.others.get(&node);
        member.and_then(Member::capabilities).unwrap_or_default()
    }

    /// A connection with a node is open for as long as this lives.
    pub(super) fn connected(&self, node: NodeId) -> Connected<'_> {
        let member = self.others.get(&node);
        if let Some(member) = member {
            member.connections.fetch_add(1, Ordering::SeqCst);
        }
        Connected(member)
    }

    /// What the cluster is finalized with, as far as this node was told.
    pub(super) fn finalized(&self) -> Capabilities {
        Capabilities::from_bits(self.finalized.load(Ordering::SeqCst))
    }

    /// Why a leadership cannot be handed to `to` by this protocol; none if it is able.
    pub(super) fn why_no_hand_over(&self, to: NodeId) -> Option<String> {
        let said = self.others.get(&to)?.capabilities()?;
        let needed = Capability::TakeOver;
        (!said.has(needed)).then(|| {
            let (name, since) = (needed.name(), needed.since());
            format!(
                "node {to} does not know the capability {name}, which millrace {since} has; mend: \
                 upgrade it, or stop this node: then the others elect a leader"
            )
        })
    }

    /// Finalizes the cluster, at this node, with all that it has. What came of it, or why not.
    pub(super) fn finalize(&self, config: &Config) -> Result<String, String> {
        let (node, all) = (config.node.id, Capabilities::HERE);
        let names = all.names().join(" ");
        let before = self.finalized();
        if before == all {
            return Ok(format!("node {node} was finalized with {names} before"));
        }
        self.demanded.store(all.bits(), Ordering::SeqCst);
        let written = self.all_have(all).and_then(|()| {
            let written = identity::finalize(config, all);
            written.map_err(|error| {
                let file = config.node.data_dir.join("node.toml");
                format!(
                    "{}: {error}; mend: correct its owner or its disk",
                    file.display()
                )
            })
        });
        match written {
            Ok(()) => {
                self.finalized.store(all.bits(), Ordering::SeqCst);
                tracing::info!(
                    capabilities = names,
                    "finalized: nodes without it are refused"
                );
                Ok(format!("node {node} is finalized with {names}"))
            }
            Err(why) => {
                self.demanded.store(before.bits(), Ordering::SeqCst);
                Err(format!("node {node} is not finalized: {why}"))
            }
        }
    }

    /// Whether all others are connected and have these.
    fn all_have(&self, all: Capabilities) -> Result<(), String> {
        for (node, member) in &self.others {
            let lacks = all.without(member.capabilities().unwrap_or_default());
            if member.connections.load(Ordering::SeqCst) == 0 {
                return Err(format!(
                    "it is not connected to node {node}; mend: start that node, or the network \
                     between the two, and try again"
                ));
            }
            if !lacks.is_empty() {
                return Err(format!(
                    "node {node} lacks {}; mend: upgrade that node and try again",
                    lacks.names().join(" ")
                ));
            }
        }
        Ok(())
    }

    /// Each configured node: address, whether it is connected, what it said that it can.
    pub(super) fn json(&self, config: &Config) -> Value {
        let row = |node: NodeId, address: &str| {
            let other = self.others.get(&node);
            let said = match other {
                Some(member) => member.capabilities(),
                None => Some(Capabilities::HERE),
            };
            let connected = |member: &Member| member.connections.load(Ordering::SeqCst) > 0;
            json!({
                "node": node.0,
                "address": address,
                "connected": other.is_none_or(connected),
                "capabilities": said.map(Capabilities::names),
            })
        };
        let nodes = config.cluster.nodes.iter();
        nodes.map(|node| row(node.id, &node.address)).collect()
    }
}
