//! A network of a few replicas, for the unit tests of this module.
//!
//! Everything is in one thread and in a fixed order: frames of all connections in the order in
//! which they were sent, saves and disk writes at once unless a test holds them back. No payload
//! exists.

pub use super::test_log::{LOG, TestLog};
use super::{
    Config, LinkView, LogView, Output, Promise, Refused, Replica, Role, SendRun, Verdict, with_run,
};
use crate::limits::MAX_BLOCK_BYTES;
use crate::types::{BlockNo, ConnectionId, Epoch, NodeId};
use crate::types::{Tick, Time};
use crate::wire::block::BlockHeader;
use crate::wire::body::{Body, Channel, CreditLimits, ReplicaMemory};
use crate::wire::capability::Capabilities;
use crate::wire::code::Code;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One node: its replica, its log, and what its disk holds.
pub struct Node {
    pub config: Config,
    pub replica: Replica,
    pub log: TestLog,
    pub promise: Promise,
    pub hold_saves: bool,
    pub hold_durable: bool,
    pub saves: VecDeque<(super::SaveToken, Promise)>,
    pub notices: Vec<String>,
    pub fenced: Vec<Epoch>,
    pub suspects: Vec<BlockNo>,
    pub runs: Vec<SendRun>,
    pub alive: bool,
    /// A batch of the next run that is written turns out to be damaged.
    pub damage_next: bool,
    /// Its disk is full: no run is written.
    pub full: bool,
}

impl Node {
    pub fn blank(config: Config) -> Node {
        Node {
            replica: Replica::new(config.clone()),
            config,
            log: TestLog::default(),
            promise: Promise {
                epoch: Epoch(0),
                leader: None,
                memory: ReplicaMemory::Blank,
            },
            hold_saves: false,
            hold_durable: false,
            saves: VecDeque::new(),
            notices: Vec::new(),
            fenced: Vec::new(),
            suspects: Vec::new(),
            runs: Vec::new(),
            alive: true,
            damage_next: false,
            full: false,
        }
    }
}

/// A frame under way.
#[derive(Clone, Debug)]
pub struct Frame {
    pub from: NodeId,
    pub to: NodeId,
    pub connection: ConnectionId,
    pub body: Body,
    pub headers: Vec<BlockHeader>,
    pub damaged: bool,
}

/// A few replicas and what is under way between them.
pub struct Net {
    pub now: Time,
    pub nodes: BTreeMap<NodeId, Node>,
    pub wire: VecDeque<Frame>,
    /// Every frame ever sent.
    pub sent: Vec<Frame>,
    pub closed: Vec<(NodeId, Code)>,
    /// Ordered pairs that cannot connect or send.
    pub cut: BTreeSet<(NodeId, NodeId)>,
    /// Ordered pairs of which the second refuses the first one's connections.
    pub refused: BTreeMap<(NodeId, NodeId), Refused>,
    /// Connections that died without a word: nothing comes through.
    pub dead: BTreeSet<ConnectionId>,
    connections: BTreeMap<ConnectionId, (NodeId, NodeId, Channel)>,
    next_connection: u64,
    pub hold_wire: bool,
    /// Payloads to these nodes never leave the sender.
    pub stuck: BTreeSet<NodeId>,
    /// Size of the buffer that a sent run lies in, if the run is not larger.
    pub buffer_bytes: usize,
    /// The node that is placed as leader.
    pub placed: u32,
}

pub fn config(node: u32, members: u32) -> Config {
    let all = (1..=members).map(NodeId).collect();
    Config::with_defaults(LOG, NodeId(node), NodeId(1), all)
}

impl Net {
    /// So many blank nodes, 1 the placed leader, none started.
    pub fn new(members: u32) -> Net {
        let nodes = (1..=members).map(|node| (NodeId(node), Node::blank(config(node, members))));
        Net {
            now: Time(1_000_000),
            nodes: nodes.collect(),
            wire: VecDeque::new(),
            sent: Vec::new(),
            closed: Vec::new(),
            cut: BTreeSet::new(),
            refused: BTreeMap::new(),
            dead: BTreeSet::new(),
            connections: BTreeMap::new(),
            next_connection: 1,
            hold_wire: false,
            stuck: BTreeSet::new(),
            buffer_bytes: 0,
            placed: 1,
        }
    }

    /// Blank nodes, started, connected, the first epoch open.
    pub fn founded(members: u32) -> Net {
        let mut net = Net::new(members);
        net.start_all();
        assert_eq!(net.node(1).replica.role(), Role::Leader);
        net
    }

    pub fn node(&mut self, node: u32) -> &mut Node {
        self.nodes.get_mut(&NodeId(node)).expect("a node")
    }

    /// Gives a node a history: blocks of these epochs, all durable, `promised`, memory whole.
    pub fn holds(&mut self, node: u32, epochs: &[u32], promised: u32) {
        let node = self.node(node);
        node.log = TestLog::of(epochs);
        node.promise = Promise {
            epoch: Epoch(promised),
            leader: Some(NodeId(1)),
            memory: ReplicaMemory::Whole,
        };
    }

    pub fn start(&mut self, node: u32, high_watermark: u64) {
        let now = self.now;
        let it = self.node(node);
        it.alive = true;
        let hwm = BlockNo(high_watermark);
        it.replica.started(now, it.promise, hwm, &it.log);
        let id = NodeId(node);
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|n| *n != id).collect();
        for other in others {
            if self.nodes[&other].alive && self.nodes[&other].replica.role() != Role::Starting {
                self.connect(id, other, Channel::Control);
            }
        }
    }

    pub fn start_all(&mut self) {
        let all: Vec<u32> = self.nodes.keys().map(|node| node.0).collect();
        for node in all {
            self.start(node, 0);
        }
        self.run();
    }

    /// Power loss and restart: what was not durable is gone.
    pub fn restart(&mut self, node: u32) {
        self.kill(node);
        let it = self.node(node);
        it.replica = Replica::new(it.config.clone());
        it.saves.clear();
        let hwm = 0;
        self.start(node, hwm);
    }

    /// Starts a node anew with another node placed as leader, by its own configuration.
    pub fn restart_with_leader(&mut self, node: u32, leader: u32) {
        self.kill(node);
        self.node(node).config.leader = NodeId(leader);
        self.restart(node);
    }

    pub fn kill(&mut self, node: u32) {
        let it = self.node(node);
        it.alive = false;
        let end = it.log.durable_end;
        it.log.cut(end);
        self.disconnect(node, None);
    }

    /// Drops all connections of a node, or those of one channel.
    pub fn disconnect(&mut self, node: u32, channel: Option<Channel>) {
        let node = NodeId(node);
        let gone: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, (a, b, c))| {
                (*a == node || *b == node) && channel.is_none_or(|it| it == *c)
            })
            .map(|(id, _)| *id)
            .collect();
        for connection in gone {
            self.drop_connection(connection, None);
        }
    }

    fn drop_connection(&mut self, connection: ConnectionId, by: Option<NodeId>) {
        let Some((a, b, _)) = self.connections.remove(&connection) else {
            return;
        };
        self.wire.retain(|frame| frame.connection != connection);
        let now = self.now;
        for end in [a, b].into_iter().filter(|end| by != Some(*end)) {
            let it = self.nodes.get_mut(&end).expect("a node");
            if it.alive {
                it.replica.peer_down(now, connection);
            }
        }
    }

    /// Opens a connection as a shell would.
    pub fn connect(&mut self, from: NodeId, to: NodeId, channel: Channel) -> ConnectionId {
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        self.connections.insert(id, (from, to, channel));
        let now = self.now;
        for (end, peer, dialed) in [(from, to, true), (to, from, false)] {
            let it = self.nodes.get_mut(&end).expect("a node");
            it.replica.peer_can(peer, Capabilities::HERE);
            it.replica.peer_up(now, peer, id, channel, dialed);
        }
        id
    }

    fn dial(&mut self, from: NodeId, to: NodeId) {
        let started = self.nodes[&to].replica.role() != Role::Starting;
        let why = self.refused.get(&(from, to)).copied();
        let cut = self.cut.contains(&(from, to)) || why.is_some();
        let can = self.nodes[&to].alive && started && !cut;
        if can {
            self.connect(from, to, Channel::Data);
        } else {
            let now = self.now;
            let it = self.nodes.get_mut(&from).expect("a node");
            it.replica.dial_failed(now, to, why);
        }
    }

    /// Takes up changed settings: none of the nodes has started.
    pub fn rebuild(&mut self) {
        for it in self.nodes.values_mut() {
            it.replica = Replica::new(it.config.clone());
        }
    }

    /// Delivers so many frames, even if the wire is held.
    pub fn deliver_some(&mut self, frames: usize) {
        for _ in 0..frames {
            self.act();
            if let Some(frame) = self.wire.pop_front() {
                self.deliver(frame);
            }
        }
    }

    /// Everything that can happen without time passing.
    pub fn run(&mut self) {
        for _ in 0..100_000 {
            let mut moved = self.act();
            if !self.hold_wire
                && let Some(frame) = self.wire.pop_front()
            {
                self.deliver(frame);
                moved = true;
            }
            if !moved {
                return;
            }
        }
        panic!("the net never comes to rest");
    }

    /// Lets time pass in steps, so that every timeout is met.
    pub fn advance(&mut self, us: u64) {
        let until = self.now.plus_us(us);
        while self.now < until {
            self.now = self.now.plus_us(10_000).min(until);
            let now = self.now;
            for it in self.nodes.values_mut().filter(|it| it.alive) {
                if it.replica.poll_timeout().is_some_and(|at| at <= now) {
                    it.replica.on_time(now, &it.log);
                }
            }
            self.run();
        }
    }

    /// The leader seals blocks of so many records each.
    pub fn append(&mut self, node: u32, blocks: &[u32]) {
        let now = self.now;
        let it = self.node(node);
        for records in blocks {
            let epoch = it.replica.epoch();
            let header = it.log.seal(epoch, *records, 0, Tick(now.0));
            it.replica.sealed(now, &header, &it.log);
        }
        self.settle(node);
    }

    /// Makes a node's log durable, unless the test holds that back.
    fn settle(&mut self, node: u32) {
        let now = self.now;
        let it = self.node(node);
        if !it.hold_durable && it.log.durable_end < it.log.log_end() {
            it.log.durable_end = it.log.log_end();
            it.replica.durable(now, &it.log);
        }
    }

    pub fn make_durable(&mut self, node: u32, end: u64) {
        let now = self.now;
        let it = self.node(node);
        it.log.durable_end = BlockNo(end);
        it.replica.durable(now, &it.log);
    }

    pub fn sound(&mut self, node: u32) {
        let now = self.now;
        let it = self.node(node);
        it.replica.sound(now, &it.log);
    }

    pub fn release_saves(&mut self, node: u32) {
        let now = self.now;
        let it = self.node(node);
        it.hold_saves = false;
        while let Some((token, promise)) = it.saves.pop_front() {
            it.promise = promise;
            it.replica.saved(now, token, &it.log);
        }
    }

    /// Carries out all outputs of all nodes. Whether there were any.
    fn act(&mut self) -> bool {
        let mut moved = false;
        let all: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in all {
            loop {
                let now = self.now;
                let it = self.nodes.get_mut(&id).expect("a node");
                let output = it.alive.then(|| it.replica.poll(now, &it.log)).flatten();
                let Some(output) = output else {
                    break;
                };
                moved = true;
                self.carry_out(id, output);
            }
        }
        moved
    }

    fn carry_out(&mut self, id: NodeId, output: Output) {
        let now = self.now;
        let it = self.nodes.get_mut(&id).expect("a node");
        match output {
            Output::Send { connection, body } => self.send(id, connection, body, Vec::new()),
            Output::SendRun(run) => {
                let mut taken: Vec<BlockHeader> = Vec::new();
                let from = run.from.0 as usize;
                for header in it.log.blocks.iter().skip(from) {
                    if !run.takes(&taken, header) {
                        break;
                    }
                    taken.push(*header);
                }
                let used = taken.iter().map(|header| header.used_len as usize).sum();
                let held = self.buffer_bytes.max(used);
                it.replica.run_sent(now, run.connection, (&taken, held));
                if !self.stuck.contains(&run.peer) {
                    it.replica.payload_left(run.connection, used);
                }
                it.runs.push(run.clone());
                if !taken.is_empty() {
                    let body = Body::Replicate(with_run(run.head, &taken));
                    self.send(id, run.connection, body, taken);
                }
            }
            Output::ServeFetch(fetch) => {
                let mut head = fetch.head;
                let most = (MAX_BLOCK_BYTES / 4096).min(3);
                let blocks = it.log.blocks.iter().skip(fetch.from.0 as usize).take(most);
                let taken: Vec<BlockHeader> = blocks.copied().collect();
                head.count = taken.len() as u32;
                head.padded_len = taken.iter().map(|header| header.padded_len() as u32).sum();
                self.send(id, fetch.connection, Body::FetchOk(head), taken);
            }
            Output::Save { token, promise } => {
                it.saves.push_back((token, promise));
                if !it.hold_saves {
                    self.release_saves(id.0);
                }
            }
            Output::AppendEpoch { epoch } => {
                let header = it.log.seal(epoch, 0, 0, Tick(now.0));
                it.replica.sealed(now, &header, &it.log);
                self.settle(id.0);
            }
            Output::CutTail { from } => {
                if from < it.log.log_end() {
                    it.log.cut(from);
                    it.replica.tail_cut(now, &it.log);
                }
            }
            Output::Committed { end } => assert!(end <= it.replica.high_watermark()),
            Output::Dial { peer } => self.dial(id, peer),
            Output::Close { connection, code } => {
                self.closed.push((id, code));
                self.drop_connection(connection, Some(id));
            }
            Output::Fenced { epoch } => it.fenced.push(epoch),
            Output::Suspect { block } => it.suspects.push(block),
            Output::Notice { text, .. } => it.notices.push(text),
        }
    }

    fn send(&mut self, from: NodeId, connection: ConnectionId, body: Body, run: Vec<BlockHeader>) {
        let Some((a, b, _)) = self.connections.get(&connection).copied() else {
            return;
        };
        let to = if a == from { b } else { a };
        let frame = Frame {
            from,
            to,
            connection,
            body,
            headers: run,
            damaged: false,
        };
        self.sent.push(frame.clone());
        if !self.cut.contains(&(from, to)) && !self.dead.contains(&connection) {
            self.wire.push_back(frame);
        }
    }

    /// Hands a frame to its receiver, as its composition would.
    pub fn deliver(&mut self, frame: Frame) -> Option<Verdict> {
        let now = self.now;
        let it = self.nodes.get_mut(&frame.to).expect("a node");
        if !it.alive {
            return None;
        }
        if !matches!(frame.body, Body::Replicate(_) | Body::FetchOk(_)) {
            it.replica
                .on_body(now, frame.connection, &frame.body, &it.log);
            return None;
        }
        let headers = Some(&frame.headers[..]).filter(|_| !frame.damaged);
        let (body, connection) = (&frame.body, frame.connection);
        let verdict = it.replica.on_run(now, connection, body, headers, &it.log);
        if let Verdict::Write { cut } = verdict {
            let damaged = core::mem::take(&mut it.damage_next);
            if damaged || it.full {
                let code = if damaged { Code::BadCrc } else { Code::NoSpace };
                it.replica.run_refused(now, code, &it.log);
                return Some(verdict);
            }
            if let Some(from) = cut {
                it.log.cut(from);
            }
            for header in &frame.headers {
                it.log.push(header);
            }
            it.replica.run_written(now, &it.log);
            self.settle(frame.to.0);
        }
        Some(verdict)
    }

    /// The data connection from the leader to a node.
    pub fn data_to(&self, node: u32) -> ConnectionId {
        let wanted = (NodeId(self.placed), NodeId(node), Channel::Data);
        let found = self.connections.iter().filter(|(_, ends)| **ends == wanted);
        *found
            .map(|(id, _)| id)
            .next_back()
            .expect("a data connection")
    }

    /// The placed leader's link to a node.
    pub fn link(&self, node: u32) -> LinkView {
        let leader = &self.nodes[&NodeId(self.placed)];
        let links = leader.replica.links(self.now, &leader.log);
        let found = links.into_iter().find(|link| link.peer == NodeId(node));
        found.expect("a link")
    }

    /// Frames sent to a node so far that carry blocks: first block and count.
    pub fn runs_to(&self, node: u32) -> Vec<(u64, u32)> {
        let to = self.sent.iter().filter(|frame| frame.to == NodeId(node));
        to.filter_map(|frame| match &frame.body {
            Body::Replicate(body) if body.count > 0 => Some((body.first.0, body.count)),
            _ => None,
        })
        .collect()
    }

    /// Codes of the refusals that a node sent so far.
    pub fn nacks_of(&self, node: u32) -> Vec<Code> {
        let from = self.sent.iter().filter(|frame| frame.from == NodeId(node));
        from.filter_map(|frame| match &frame.body {
            Body::Nack(body) => Code::from_number(body.code),
            _ => None,
        })
        .collect()
    }

    /// Everybody that lives holds the same log, all of it committed everywhere.
    pub fn assert_converged(&mut self) {
        self.advance(500_000);
        let leader = self.nodes[&NodeId(self.placed)].log.blocks.clone();
        for (id, it) in self.nodes.iter().filter(|(_, it)| it.alive) {
            assert_eq!(it.log.blocks, leader, "log of node {id}");
            assert_eq!(
                it.replica.high_watermark(),
                it.log.log_end(),
                "commit of {id}"
            );
        }
    }
}

/// The same credit in both units.
pub fn credit(records: u64, bytes: u64) -> CreditLimits {
    CreditLimits { records, bytes }
}
