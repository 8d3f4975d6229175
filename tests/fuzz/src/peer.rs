//! A real shard among peers of which nothing can be trusted: as follower, leader and candidate.
//!
//! An input is a list of events: connections, frames of any body, frames whose numbers lie near
//! those of the log, runs of blocks made of the input, clients, time, a disk that lags, restarts.
//! Whatever peers say, the shard keeps its order of positions, keeps every block that it called
//! committed, and gives its buffers back. Read `peer_frames.rs` for the frames.

use super::input::Input;
use super::logs::{self, LOG, SEGMENT_BYTES};
use super::mend;
use super::peer_frames;
use super::sim::buffers::SimBuffers;
use super::sim::disk::{Disk, DiskOptions};
use super::sim::rng::Rng;
use millrace::limits::DISK_ALIGNMENT;
use millrace::shard::{Action, Event, Part, Request, Role, Shard, ShardConfig, ShardStatus};
use millrace::types::{ConnectionId, Epoch, Level, NodeId, Offset, OriginId, ReadLevel, Time};
use millrace::wire::block::{self, BlockHeader};
use millrace::wire::body::{Body, Channel};
use millrace::wire::capability::Capabilities;
use std::collections::{BTreeMap, BTreeSet};

const SELF: NodeId = NodeId(2);
/// Bytes of buffers; a run that finds no room is not read.
const BUDGET: usize = 256 << 20;
/// Events of an input at most.
const EVENTS: usize = 200;
/// More actions than any event of so small a log brings about.
const STEPS: u32 = 50_000;

/// A life of a shard.
pub fn play(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut life = Life::new(input.u8());
    for _ in 0..EVENTS {
        if input.is_empty() || life.stopped {
            break;
        }
        life.event(&mut input);
        life.check();
    }
    life.end();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    node: NodeId,
    channel: Channel,
    dialed: bool,
}

struct Life {
    config: ShardConfig,
    shard: Shard,
    disk: Disk,
    buffers: SimBuffers,
    now: Time,
    last_connection: u64,
    peers: BTreeMap<ConnectionId, Peer>,
    /// Peers that the shard wants to be connected with.
    dials: BTreeSet<NodeId>,
    /// Payloads that the sockets have not taken.
    sends: Vec<(ConnectionId, Vec<Part>)>,
    /// Whether the disk and the sockets lag.
    lags: bool,
    high_watermark: u64,
    /// `header_crc` of every block that was committed and is kept.
    committed: BTreeMap<u64, u32>,
    requests: u64,
    stopped: bool,
}

fn config(kind: u8) -> ShardConfig {
    let leader = if kind & 1 == 0 { NodeId(1) } else { SELF };
    let mesh = kind & 4 != 0;
    let mut wal = logs::config();
    if mesh {
        wal.log.origin = OriginId(leader.0);
    }
    let mut config = ShardConfig::with_defaults(SELF, leader, wal.log, wal.members.clone());
    config.wal = wal;
    config.electing = kind & 2 != 0 && !mesh;
    config.mesh = mesh;
    config.new_member = kind & 8 == 0;
    if kind & 16 != 0 {
        config.link.initial_credit = 100;
        config.link.initial_credit_bytes = 64 << 10;
    }
    config
}

impl Life {
    fn new(kind: u8) -> Life {
        let config = config(kind);
        let disk = Disk::new(DiskOptions::sound(SEGMENT_BYTES), 1);
        let now = Time(1_000_000);
        let mut life = Life {
            shard: Shard::new(config.clone(), disk.files(), now),
            config,
            disk,
            buffers: SimBuffers::new(BUDGET),
            now,
            last_connection: 0,
            peers: BTreeMap::new(),
            dials: BTreeSet::new(),
            sends: Vec::new(),
            lags: false,
            high_watermark: 0,
            committed: BTreeMap::new(),
            requests: 0,
            stopped: false,
        };
        life.settle();
        life
    }

    fn tell(&mut self, event: Event) {
        self.shard.handle(self.now, event, &mut self.buffers);
        self.settle();
    }

    /// Everything that can happen without time passing.
    fn settle(&mut self) {
        for _ in 0..STEPS {
            if let Some(action) = self.shard.poll_action(self.now, &mut self.buffers) {
                self.carry_out(action);
            } else if self.lags || !self.end_one() {
                return;
            }
        }
        panic!("it comes to no rest");
    }

    /// The oldest operation of the disk ends, or else the oldest payload leaves.
    fn end_one(&mut self) -> bool {
        let oldest = self.disk.in_flight().next().map(|op| op.ticket());
        let event = if let Some(ticket) = oldest {
            let (ticket, result) = self.disk.complete(ticket, &mut self.buffers);
            Event::Disk { ticket, result }
        } else if !self.sends.is_empty() {
            let (connection, parts) = self.sends.remove(0);
            self.left(connection, &parts)
        } else {
            return false;
        };
        self.shard.handle(self.now, event, &mut self.buffers);
        true
    }

    fn left(&mut self, connection: ConnectionId, parts: &[Part]) -> Event {
        for part in parts {
            self.buffers.unhold(part.buffer);
        }
        let bytes = parts.iter().map(|part| part.len).sum();
        Event::Sent { connection, bytes }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Disk(op) => {
                self.disk.submit(op, &mut self.buffers);
            }
            Action::Send {
                connection,
                body,
                parts,
            } => {
                // It is sent as it is: it must fit a frame.
                let len = parts.iter().map(|part| part.len).sum();
                let frame = body.encode(0, self.config.wal.log, len);
                assert!(!frame.is_empty());
                self.send(connection, parts);
            }
            Action::Reply { request, part, .. } => {
                self.send(request.connection, part.into_iter().collect());
            }
            Action::Close { connection, .. } => {
                self.peers.remove(&connection);
            }
            Action::Dial { peer } => {
                assert!(self.dials.insert(peer), "{peer} is being dialed already");
            }
            Action::Release(buffer) => self.buffers.release(buffer),
            Action::Stopped => self.stopped = true,
            Action::Log(notice) => assert!(!notice.text.contains('\n'), "{notice:?}"),
        }
    }

    fn send(&mut self, connection: ConnectionId, parts: Vec<Part>) {
        if !parts.is_empty() {
            for part in &parts {
                self.buffers.hold(part.buffer);
            }
            self.sends.push((connection, parts));
        }
    }

    fn event(&mut self, input: &mut Input<'_>) {
        match input.u8() % 20 {
            0 => self.connect(input),
            1 => {
                if let Some(connection) = self.pick(input) {
                    self.peers.remove(&connection);
                    self.tell(Event::PeerDown { connection });
                }
            }
            2..=4 => self.any_frame(input),
            5..=10 => self.near_frame(input),
            11 => self.pass(u64::from(input.u8())),
            12 => self.pass(20 * u64::from(input.u8())),
            13 => self.dial(input),
            14 => self.append(input),
            15 => self.read(input),
            16 => self.operate(input),
            17 => {
                self.lags = !self.lags;
                self.settle();
            }
            18 => {
                self.end_one();
                self.settle();
            }
            _ => self.restart(input.u8()),
        }
    }

    /// Milliseconds pass, in steps as the shard wants them.
    fn pass(&mut self, ms: u64) {
        let end = self.now.plus_us(1000 * ms);
        for _ in 0..64 {
            let due = self.shard.poll_timeout().unwrap_or(end);
            self.now = due.clamp(self.now, end);
            self.tell(Event::Timer);
            if self.now == end {
                return;
            }
        }
        self.now = end;
        self.tell(Event::Timer);
    }

    fn pick(&self, input: &mut Input<'_>) -> Option<ConnectionId> {
        let chosen = usize::from(input.u8());
        let len = self.peers.len();
        (len > 0).then(|| {
            *self
                .peers
                .keys()
                .nth(chosen % len)
                .expect("below its length")
        })
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let choice = input.u8();
        let node = if choice & 1 == 0 {
            NodeId(1)
        } else {
            NodeId(3)
        };
        let control = choice & 2 != 0;
        let channel = if control {
            Channel::Control
        } else {
            Channel::Data
        };
        // A data connection that this node did not ask for was dialed by the other one.
        self.up(Peer {
            node,
            channel,
            dialed: control && choice & 4 != 0,
        });
    }

    fn up(&mut self, peer: Peer) {
        self.last_connection += 1;
        let connection = ConnectionId(self.last_connection);
        self.peers.insert(connection, peer);
        self.tell(Event::PeerUp {
            peer: peer.node,
            connection,
            channel: peer.channel,
            dialed: peer.dialed,
            capabilities: Capabilities::HERE,
        });
    }

    /// What the shard dials is reached, or not.
    fn dial(&mut self, input: &mut Input<'_>) {
        let choice = input.u8();
        let Some(node) = self.dials.pop_first() else {
            return;
        };
        if choice & 1 != 0 {
            self.tell(Event::DialFailed {
                peer: node,
                why: None,
            });
            return;
        }
        self.up(Peer {
            node,
            channel: Channel::Data,
            dialed: true,
        });
    }

    /// A frame of a body as the input has it.
    fn any_frame(&mut self, input: &mut Input<'_>) {
        let connection = self.pick(input);
        let kind = input.u8();
        let body = Body::decode(kind, input.run());
        let payload = input.run().to_vec();
        if let (Some(connection), Some(Ok(body))) = (connection, body) {
            self.frame(connection, body, &payload);
        }
    }

    /// A frame whose numbers are near those of the log.
    fn near_frame(&mut self, input: &mut Input<'_>) {
        let connection = self.pick(input);
        let status = self.shard.status(self.now);
        let tail = self.tail(&status);
        let (body, payload) = peer_frames::near_with_blocks(input, &status, &tail);
        if let Some(connection) = connection {
            self.frame(connection, body, &payload);
        }
    }

    fn frame(&mut self, connection: ConnectionId, body: Body, payload: &[u8]) {
        let peer = self.peers[&connection];
        let is_data = peer.channel == Channel::Data;
        if !peer_frames::may_come(is_data, peer.dialed, &body) {
            return;
        }
        let Ok(laid_out) = peer_frames::lay_out(&body, payload) else {
            return;
        };
        let payload = laid_out.map(|bytes| {
            let buffer = self.buffers.put(&bytes).expect("the budget is large");
            (buffer, bytes.len())
        });
        self.tell(Event::Frame {
            connection,
            body,
            payload,
        });
    }

    fn request(&mut self) -> Request {
        self.requests += 1;
        Request {
            connection: ConnectionId(1 << 40),
            correlation: self.requests,
        }
    }

    fn append(&mut self, input: &mut Input<'_>) {
        let choice = input.u8();
        let timeout_ms = u32::from(input.u16());
        let bytes = input.run();
        let bytes = match choice & 4 {
            0 => mend::client_batch(bytes),
            _ => bytes.to_vec(),
        };
        let request = self.request();
        let levels = [Level::Local, Level::Leader, Level::Quorum];
        let buffer = self.buffers.put(&bytes).expect("the budget is large");
        self.tell(Event::Append {
            request,
            level: levels[usize::from(choice % 3)],
            timeout_ms,
            buffer,
            len: bytes.len(),
        });
    }

    fn read(&mut self, input: &mut Input<'_>) {
        let request = self.request();
        let choice = input.u8();
        let event = match choice % 3 {
            0 => Event::Find {
                request,
                timestamp: input.u64(),
            },
            1 => Event::ClientGone {
                connection: request.connection,
            },
            _ => Event::Read {
                request,
                offset: Offset(u64::from(input.u16())),
                max_bytes: u32::from(input.u16()),
                wait_ms: u32::from(input.u8()),
                level: [ReadLevel::Local, ReadLevel::Committed][usize::from(choice / 3 % 2)],
                last_epoch: Epoch(u32::from(input.u8())),
            },
        };
        self.tell(event);
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        let peer = NodeId(1 + u32::from(input.u8() % 3));
        let event = match input.u8() % 4 {
            0 => Event::PauseLink { peer, pause: true },
            1 => Event::PauseLink { peer, pause: false },
            2 => Event::Promote { to: peer },
            _ => Event::MemoryShort { bytes: 1 << 20 },
        };
        self.tell(event);
    }

    /// The process dies, or stops cleanly, and starts again.
    fn restart(&mut self, choice: u8) {
        if choice & 1 != 0 {
            self.stop();
        }
        let disk = self.disk.kill(&mut Rng::new(u64::from(choice)));
        let committed = std::mem::take(&mut self.committed);
        let mut next = Life {
            config: self.config.clone(),
            shard: Shard::new(self.config.clone(), disk.files(), self.now),
            disk,
            committed,
            buffers: SimBuffers::new(BUDGET),
            last_connection: self.last_connection,
            peers: BTreeMap::new(),
            dials: BTreeSet::new(),
            sends: Vec::new(),
            ..*self
        };
        next.lags = false;
        next.stopped = false;
        // What is committed is known anew, up to what the checkpoint and the peers say.
        next.high_watermark = 0;
        next.settle();
        *self = next;
    }

    fn stop(&mut self) {
        self.lags = false;
        self.tell(Event::Stop);
        if self.shard.role() != Role::Failed {
            assert!(self.stopped, "a clean stop ends");
            self.buffers.assert_all_back();
        }
    }

    /// Positions are in order, and what was committed is on the disk as it was.
    fn check(&mut self) {
        let status = self.shard.status(self.now);
        if matches!(status.role, Role::Failed | Role::Recovering) || self.stopped {
            return;
        }
        let ends = [
            status.log_start,
            status.high_watermark,
            status.durable_end,
            status.log_end,
        ];
        assert!(ends.is_sorted(), "{status:?}");
        let end = status.high_watermark.0;
        assert!(end >= self.high_watermark, "it went back: {status:?}");
        self.high_watermark = end;
        let start = status.log_start.0;
        self.committed = self.committed.split_off(&start);
        let held = self.held();
        for (block, crc) in &self.committed {
            let there = held.get(block).is_some_and(|found| {
                let mut crcs = found.iter().map(|header| header.header_crc);
                crcs.any(|found| found == *crc)
            });
            assert!(there, "committed block {block} is another one or gone");
        }
        for block in start..end {
            if let Some([header]) = held.get(&block).map(Vec::as_slice) {
                self.committed.insert(block, header.header_crc);
            }
        }
    }

    /// The blocks of the disk, by number.
    fn held(&self) -> BTreeMap<u64, Vec<BlockHeader>> {
        let mut held: BTreeMap<u64, Vec<BlockHeader>> = BTreeMap::new();
        for (_, pages) in self.disk.segments() {
            for index in 1..pages.len() as usize / DISK_ALIGNMENT {
                if let Ok(header) = block::read_header(pages.page(index)) {
                    held.entry(header.block.0).or_default().push(header);
                }
            }
        }
        held
    }

    /// The last block of the log, if the disk shows it.
    fn tail(&self, status: &ShardStatus) -> BlockHeader {
        let last = status.log_end.previous();
        let found = last.and_then(|last| self.held().remove(&last.0)?.pop());
        found.unwrap_or(BlockHeader {
            log: self.config.wal.log,
            ..BlockHeader::default()
        })
    }

    fn end(mut self) {
        self.lags = false;
        self.settle();
        self.check();
        if !self.stopped {
            self.restart(1);
        }
        self.check();
        self.stop();
        assert!(LOG.shard == self.config.wal.log.shard);
    }
}
