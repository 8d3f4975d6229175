//! A small cluster for the tests of sessions: nodes that know of a log what the engine's do, over
//! connections that lose, repeat and hold up frames.
//!
//! All nodes share the logs, so whatever was appended stays; who leads a shard changes. A node
//! knows the last five batches of a producer. A closed connection's frames may still arrive.

use super::{Action, Event, Session};
use crate::limits::BATCH_HEADER;
use crate::types::{BlockNo, ConnectionId, Epoch, LogId, NodeId, Offset, OriginId, ShardId, Time};
use crate::wire::batch::{self, ClientHalf, Kind, LeaderHalf};
use crate::wire::body::{
    AppendOk, Body, Error, FindOk, MetadataOk, NodeAddress, PROTOCOL, Read, ReadOk,
};
use crate::wire::code::Code;
use crate::wire::frame;
use crate::wire::record;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Choices, the same for the same seed.
#[derive(Clone, Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    pub(super) fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// One log, as every node has it.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Whole batches with the leader's half.
    pub(super) batches: Vec<Bytes>,
    /// First offset that is kept.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) committed: u64,
    producers: BTreeMap<u64, (u16, VecDeque<(ClientHalf, u64)>)>,
}

impl Log {
    /// The values of all records, in order.
    pub(super) fn values(&self) -> Vec<Vec<u8>> {
        let bodies = self.batches.iter().map(|batch| &batch[BATCH_HEADER..]);
        let records = bodies.flat_map(record::read_all);
        records
            .map(|record| record.unwrap().value.to_vec())
            .collect()
    }

    /// Forgets every producer.
    pub(super) fn forget_all(&mut self) {
        self.producers.clear();
    }

    /// Forgets producers whose first batch was answered: of that one, sent again, a log that forgot
    /// cannot know that it was there.
    fn forget(&mut self) {
        let begun = |last: &VecDeque<(ClientHalf, u64)>| {
            let first = last.front();
            first.is_some_and(|(half, _)| half.base_sequence > 0)
        };
        self.producers.retain(|_, (_, last)| !begun(last));
    }

    fn append(&mut self, shard: ShardId, payload: &Bytes) -> Result<u64, (Code, u64)> {
        let half = batch::check_from_client(payload).expect("sessions make sound batches");
        let known = self.producers.get(&half.producer_id);
        let base = half.base_sequence;
        match known {
            None if base > 0 => return Err((Code::UnknownProducer, 0)),
            Some((epoch, _)) if half.producer_epoch < *epoch => {
                return Err((Code::ProducerFenced, u64::from(*epoch)));
            }
            Some((epoch, _)) if half.producer_epoch > *epoch && base > 0 => {
                return Err((Code::SequenceGap, 0));
            }
            Some((epoch, last)) if half.producer_epoch == *epoch => {
                let (end, _) = last.back().expect("a producer is known by a batch");
                let expected = end.base_sequence + end.record_count;
                if base > expected {
                    return Err((Code::SequenceGap, u64::from(expected)));
                }
                if base < expected {
                    let same = last.iter().find(|(known, _)| *known == half);
                    return same.map(|(_, at)| *at).ok_or((Code::SequenceReused, 0));
                }
            }
            _ => {}
        }
        let at = self.push(shard, payload);
        let entry = self.producers.entry(half.producer_id).or_default();
        if entry.0 != half.producer_epoch {
            *entry = (half.producer_epoch, VecDeque::new());
        }
        entry.1.push_back((half, at));
        if entry.1.len() > 5 {
            entry.1.pop_front();
        }
        Ok(at)
    }

    /// Takes in a batch, whatever it is.
    pub(super) fn push(&mut self, shard: ShardId, payload: &Bytes) -> u64 {
        self.push_of_epoch(shard, payload, Epoch(1))
    }

    /// Takes in a batch that a later leadership accepted.
    pub(super) fn push_of_epoch(&mut self, shard: ShardId, payload: &Bytes, epoch: Epoch) -> u64 {
        let at = self.end;
        let half = batch::client_half(payload);
        let mut bytes = payload.to_vec();
        let leader = LeaderHalf {
            kind: Kind::Data,
            log: LogId {
                origin: OriginId(9),
                shard,
            },
            base_offset: Offset(at),
            tick: crate::types::Tick(at + 1),
            txn_id: 0,
            origin_epoch: epoch,
        };
        batch::write_leader_half(&mut bytes, &leader);
        self.end += u64::from(half.record_count);
        self.batches.push(bytes.into());
        at
    }
}

#[derive(Debug)]
struct Link {
    node: usize,
    core: u16,
    open: bool,
    to_node: VecDeque<(u64, LogId, Body, Bytes)>,
    to_client: VecDeque<(u64, Body, Bytes)>,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// Connections break, frames come twice, nodes refuse for a while.
    pub(super) network: bool,
    /// Frames of closed connections may still arrive.
    pub(super) stale: bool,
    /// Nodes forget producers.
    pub(super) forget: bool,
    /// Who leads changes.
    pub(super) leaders: bool,
}

/// The cluster and the network around one session.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Time,
    pub(super) dice: Dice,
    pub(super) faults: Faults,
    pub(super) logs: Vec<Log>,
    pub(super) leaders: Vec<usize>,
    /// What all nodes say the epoch is.
    pub(super) epoch: u32,
    /// Cores of each node.
    pub(super) cores: u16,
    /// Requests about a shard that came to another core than its own.
    pub(super) handoffs: usize,
    /// Connections opened, by address.
    pub(super) dialed: BTreeMap<String, usize>,
    /// Nodes that answer nothing.
    pub(super) hung: Vec<usize>,
    /// What the next append is refused with.
    pub(super) refuse_next: Option<Code>,
    links: BTreeMap<ConnectionId, Link>,
    events: VecDeque<Event>,
}

const NODES: usize = 3;

impl World {
    pub(super) fn new(shards: usize, seed: u64) -> World {
        World {
            now: Time(1_000_000),
            dice: Dice(seed),
            faults: Faults::default(),
            logs: (0..shards).map(|_| Log::default()).collect(),
            leaders: (0..shards).map(|shard| shard % NODES).collect(),
            epoch: 1,
            cores: 1,
            handoffs: 0,
            dialed: BTreeMap::new(),
            hung: Vec::new(),
            refuse_next: None,
            links: BTreeMap::new(),
            events: VecDeque::new(),
        }
    }

    fn metadata(&self, node: usize) -> MetadataOk {
        let entry = |other: usize| NodeAddress {
            node: NodeId(other as u32 + 1),
            address: format!("host:{}", 100 * (other + 1)),
            cores: if other == node { self.cores } else { 0 },
        };
        let leaders = self.leaders.iter().map(|leader| NodeId(*leader as u32 + 1));
        MetadataOk {
            protocol: PROTOCOL,
            node: NodeId(node as u32 + 1),
            cluster: OriginId(9),
            default_level: 3,
            max_batch_bytes: 1 << 20,
            max_batch_records: 1 << 18,
            nodes: (0..NODES).map(entry).collect(),
            leaders: leaders.collect(),
            epochs: vec![Epoch(self.epoch); self.leaders.len()],
            origin: OriginId(9),
            origins: vec![OriginId(9)],
            default_read_level: 1,
        }
    }

    /// Does what the session wants done.
    pub(super) fn act(&mut self, session: &mut impl Session) {
        while let Some(action) = session.poll_action() {
            match action {
                Action::Connect {
                    connection,
                    address,
                } => self.connect(connection, address),
                Action::Send {
                    connection,
                    head,
                    payload,
                } => {
                    let header = frame::read_header(head.first_chunk().unwrap()).unwrap();
                    let body = &head[crate::limits::FRAME_HEADER..];
                    let body = Body::decode(header.kind, body).unwrap().unwrap();
                    if let Some(link) = self.links.get_mut(&connection).filter(|link| link.open) {
                        let frame = (header.correlation, header.log, body, payload);
                        link.to_node.push_back(frame);
                    }
                }
                Action::Close(connection) => self.close(connection),
            }
        }
    }

    fn connect(&mut self, connection: ConnectionId, address: String) {
        let (_, port) = address.rsplit_once(':').unwrap();
        let port: u16 = port.parse().unwrap();
        let (node, core) = (usize::from(port / 100 - 1), port % 100);
        *self.dialed.entry(address).or_default() += 1;
        if self.faults.network && self.dice.one_in(4) {
            self.events
                .push_back(Event::Lost(connection, "refused".to_owned()));
            return;
        }
        let link = Link {
            node,
            core,
            open: true,
            to_node: VecDeque::new(),
            to_client: VecDeque::new(),
        };
        self.links.insert(connection, link);
        self.events.push_back(Event::Connected(connection));
    }

    fn close(&mut self, connection: ConnectionId) {
        let (stale, some) = (self.faults.stale, self.dice.one_in(2));
        if let Some(link) = self.links.get_mut(&connection) {
            link.open = false;
            link.to_client.clear();
            if !stale || some {
                link.to_node.clear();
            }
        }
    }

    /// Lets something happen; false if nothing can but the passing of time.
    pub(super) fn step(&mut self, session: &mut impl Session) -> bool {
        self.act(session);
        if let Some(event) = self.events.pop_front() {
            session.handle(self.now, event);
            self.act(session);
            return true;
        }
        if self.faults.leaders && self.dice.one_in(40) {
            let shard = self.dice.below(self.leaders.len());
            self.leaders[shard] = self.dice.below(NODES);
        }
        if self.faults.forget && self.dice.one_in(60) {
            let shard = self.dice.below(self.logs.len());
            self.logs[shard].forget();
        }
        if self.faults.network && self.dice.one_in(30) {
            return self.break_one(session);
        }
        let hung = |link: &Link| self.hung.contains(&link.node);
        let busy = self.links.iter().filter(|(_, link)| {
            !link.to_client.is_empty() || !link.to_node.is_empty() && !hung(link)
        });
        let busy: Vec<ConnectionId> = busy.map(|(id, _)| *id).collect();
        if busy.is_empty() {
            return false;
        }
        let connection = busy[self.dice.below(busy.len())];
        self.move_frame(connection, session);
        self.act(session);
        true
    }

    /// Every connection breaks.
    pub(super) fn links_break(&mut self, session: &mut impl Session) {
        let open = self.links.iter().filter(|(_, link)| link.open);
        let open: Vec<ConnectionId> = open.map(|(id, _)| *id).collect();
        for connection in open {
            self.close(connection);
            session.handle(self.now, Event::Lost(connection, "broken".to_owned()));
        }
    }

    /// The connections to one core of a node break.
    pub(super) fn core_breaks(&mut self, session: &mut impl Session, node: usize, core: u16) {
        let of_it = |link: &Link| link.open && (link.node, link.core) == (node, core);
        let open = self.links.iter().filter(|(_, link)| of_it(link));
        let open: Vec<ConnectionId> = open.map(|(id, _)| *id).collect();
        assert!(!open.is_empty(), "nothing to break");
        for connection in open {
            self.close(connection);
            session.handle(self.now, Event::Lost(connection, "broken".to_owned()));
        }
    }

    fn break_one(&mut self, session: &mut impl Session) -> bool {
        let open = self.links.iter().filter(|(_, link)| link.open);
        let open: Vec<ConnectionId> = open.map(|(id, _)| *id).collect();
        if open.is_empty() {
            return false;
        }
        let connection = open[self.dice.below(open.len())];
        self.close(connection);
        session.handle(self.now, Event::Lost(connection, "broken".to_owned()));
        self.act(session);
        true
    }

    fn move_frame(&mut self, connection: ConnectionId, session: &mut impl Session) {
        let hung = self.hung.contains(&self.links[&connection].node);
        let link = self.links.get_mut(&connection).unwrap();
        let answer_first = link.to_node.is_empty() || hung || self.dice.one_in(2);
        if answer_first && let Some(answer) = link.to_client.pop_front() {
            let twice = self.faults.network && self.dice.one_in(20);
            for _ in 0..=usize::from(twice) {
                let (correlation, body, payload) = answer.clone();
                let event = Event::Frame {
                    connection,
                    correlation,
                    body,
                    payload,
                };
                session.handle(self.now, event);
            }
            return;
        }
        let node = link.node;
        let Some((correlation, log, body, payload)) = link.to_node.pop_front() else {
            return;
        };
        if !matches!(body, Body::Metadata(_)) && link.core != log.shard.0 % self.cores {
            self.handoffs += 1;
        }
        let (body, payload) = self.serve(node, log, &body, &payload);
        let link = self.links.get_mut(&connection).unwrap();
        if link.open {
            link.to_client.push_back((correlation, body, payload));
        }
    }

    fn serve(&mut self, node: usize, log: LogId, body: &Body, payload: &Bytes) -> (Body, Bytes) {
        let refuse = |code: Code, one: u64, two: u64| {
            let error = Error {
                code: code.number(),
                detail: one,
                detail_two: two,
            };
            (error.into(), Bytes::new())
        };
        if let Body::Metadata(_) = body {
            return (self.metadata(node).into(), Bytes::new());
        }
        let shard = usize::from(log.shard.0);
        if self.faults.network && self.dice.one_in(15) {
            return refuse([Code::NotReady, Code::Overloaded][self.dice.below(2)], 0, 0);
        }
        if matches!(body, Body::Append(_))
            && let Some(code) = self.refuse_next.take()
        {
            return refuse(code, 0, 0);
        }
        match body {
            Body::Append(_) if self.leaders[shard] != node => {
                refuse(Code::NotLeader, self.leaders[shard] as u64 + 1, 0)
            }
            Body::Append(_) => match self.logs[shard].append(log.shard, payload) {
                // The leader may not know whether it will be committed.
                Ok(_) if self.faults.network && self.dice.one_in(15) => refuse(Code::Unknown, 0, 0),
                Ok(at) => {
                    let ok = AppendOk {
                        base_offset: Offset(at),
                        block: BlockNo(at),
                        epoch: Epoch(1),
                    };
                    (ok.into(), Bytes::new())
                }
                Err((code, detail)) => refuse(code, detail, 0),
            },
            Body::Read(read) => match self.logs[shard].read(read) {
                Ok((ok, payload)) => (ok.into(), payload),
                Err((code, one, two)) => refuse(code, one, two),
            },
            Body::Find(find) => {
                let offset = self.logs[shard].find(find.timestamp);
                (FindOk { offset }.into(), Bytes::new())
            }
            other => panic!("no session sends {other:?}"),
        }
    }
}

impl Log {
    fn prefixes(&self) -> impl Iterator<Item = (batch::BatchPrefix, &Bytes)> {
        let batches = self.batches.iter();
        batches.map(|bytes| (batch::read_prefix(bytes).unwrap(), bytes))
    }

    fn read(&self, read: &Read) -> Result<(ReadOk, Bytes), (Code, u64, u64)> {
        if read.offset.0 < self.start || read.offset.0 > self.end {
            return Err((Code::OutOfRange, self.start, self.end));
        }
        let bound = if read.level == 1 {
            self.committed
        } else {
            self.end
        };
        let behind = self
            .prefixes()
            .find(|(prefix, _)| prefix.end_offset() == read.offset);
        let lost = behind.is_some_and(|(prefix, _)| prefix.origin_epoch != read.last_epoch);
        if read.last_epoch.0 > 0 && lost {
            return Err((Code::Truncated, read.offset.0 - 1, 0));
        }
        let (mut payload, mut next, mut last_epoch) = (Vec::new(), read.offset, Epoch(0));
        for (prefix, bytes) in self.prefixes() {
            let wanted = prefix.end_offset() > read.offset && prefix.end_offset().0 <= bound;
            let fits = payload.is_empty() || payload.len() + bytes.len() <= read.max_bytes as usize;
            if wanted && !fits {
                break;
            }
            if wanted {
                payload.extend_from_slice(bytes);
                (next, last_epoch) = (prefix.end_offset(), prefix.origin_epoch);
            }
        }
        if payload.is_empty() {
            return Err((Code::Timeout, bound, self.end));
        }
        let ok = ReadOk {
            next,
            high_watermark: Offset(self.committed),
            log_start: Offset(self.start),
            last_epoch,
        };
        Ok((ok, payload.into()))
    }

    fn find(&self, timestamp: u64) -> Offset {
        let mut highest = 0;
        for (prefix, bytes) in self.prefixes() {
            highest = highest.max(batch::client_half(bytes).max_timestamp);
            if highest >= timestamp {
                return prefix.base_offset;
            }
        }
        Offset(self.end)
    }
}
