//! One follower and a leader that the test plays: runs that are admitted by what memory still knows
//! and turn out not to continue the log.
//!
//! A real shard over a simulated disk. The blocks are made here, byte by byte, so that they can say
//! whatever a leader gone wrong would say.

use millrace::limits::BLOCK_HEADER;
use millrace::shard::{Action, Event, Role, Shard, ShardConfig};
use millrace::types::{
    BlockNo, BufferId, ConnectionId, Epoch, LogId, NodeId, Offset, OriginId, ShardId, Tick, Time,
    padded,
};
use millrace::wire::batch::{self, ClientHalf, Kind, LeaderHalf};
use millrace::wire::block::{self, BatchesCrc, BlockHeader};
use millrace::wire::body::{Body, Channel, Position, Replicate, Where};
use millrace::wire::capability::Capabilities;
use millrace::wire::code::Code;

use super::sim::buffers::SimBuffers;
use super::sim::disk::{Disk, DiskFault, DiskOptions};
use super::sim::rng::Rng;

const LOG: LogId = LogId {
    origin: OriginId(7),
    shard: ShardId(0),
};
const LEADER: NodeId = NodeId(1);
const SEGMENT_BYTES: u64 = 2 << 20;

struct Lone {
    shard: Shard,
    disk: Disk,
    buffers: SimBuffers,
    now: Time,
    connections: u64,
    said: Vec<Body>,
    closed: Vec<Code>,
    told: Vec<String>,
    stopped: bool,
}

fn config() -> ShardConfig {
    let mut config = ShardConfig::with_defaults(NodeId(2), LEADER, LOG, vec![LEADER, NodeId(2)]);
    config.new_member = true;
    config.wal.segment_bytes = SEGMENT_BYTES;
    config
}

impl Lone {
    fn on(disk: Disk) -> Lone {
        let now = Time(1_000_000);
        let mut lone = Lone {
            shard: Shard::new(config(), disk.files(), now),
            disk,
            buffers: SimBuffers::new(256 << 20),
            now,
            connections: 0,
            said: Vec::new(),
            closed: Vec::new(),
            told: Vec::new(),
            stopped: false,
        };
        lone.settle();
        lone
    }

    fn tell(&mut self, event: Event) {
        self.shard.handle(self.now, event, &mut self.buffers);
        self.settle();
    }

    /// Everything that can happen without time passing.
    fn settle(&mut self) {
        loop {
            while let Some(action) = self.shard.poll_action(self.now, &mut self.buffers) {
                self.carry_out(action);
            }
            let Some(ticket) = self.disk.in_flight().next().map(|op| op.ticket()) else {
                return;
            };
            let (ticket, result) = self.disk.complete(ticket, &mut self.buffers);
            let event = Event::Disk { ticket, result };
            self.shard.handle(self.now, event, &mut self.buffers);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Disk(op) => {
                self.disk.submit(op, &mut self.buffers);
            }
            Action::Send { body, .. } => self.said.push(body),
            Action::Close { code, .. } => self.closed.push(code),
            Action::Release(buffer) => self.buffers.release(buffer),
            Action::Stopped => self.stopped = true,
            Action::Log(notice) => self.told.push(notice.text),
            Action::Reply { .. } | Action::Dial { .. } => {}
        }
    }

    /// A connection of the leader on which this epoch is promised; what the follower says it holds.
    fn follow(&mut self, epoch: u32) -> Position {
        self.connections += 1;
        self.tell(Event::PeerUp {
            peer: LEADER,
            connection: ConnectionId(self.connections),
            channel: Channel::Data,
            dialed: false,
            capabilities: Capabilities::HERE,
        });
        let body = Where {
            epoch: Epoch(epoch),
            log_end: BlockNo(0),
            founding: 1,
            last_epoch: Epoch(0),
            won: 0,
        };
        self.say(body.into(), None);
        match self.said.pop() {
            Some(Body::Position(position)) => position,
            other => panic!("no position: {other:?}"),
        }
    }

    fn say(&mut self, body: Body, payload: Option<(BufferId, usize)>) {
        let connection = ConnectionId(self.connections);
        self.tell(Event::Frame {
            connection,
            body,
            payload,
        });
    }

    /// Sends one block behind a block of `prev_epoch`; what the follower says.
    fn push(&mut self, block: &BlockHeader, prev_epoch: u32) -> Option<Body> {
        let (bytes, header) = seal(block);
        self.push_bytes(&bytes, &header, prev_epoch)
    }

    /// The same with bytes that may not be what the header says.
    fn push_bytes(&mut self, bytes: &[u8], header: &BlockHeader, prev_epoch: u32) -> Option<Body> {
        let buffer = self.buffers.put(bytes).expect("room");
        let body = Replicate {
            epoch: header.epoch,
            first: header.block,
            prev_epoch: Epoch(prev_epoch),
            prev_crc: 0,
            committed_end: BlockNo(0),
            log_start: BlockNo(0),
            count: 1,
            records: 0,
            padded_len: bytes.len() as u32,
        };
        self.said.clear();
        self.say(body.into(), Some((buffer, bytes.len())));
        self.said.pop()
    }

    fn restart(mut self) -> Lone {
        self.tell(Event::Stop);
        assert!(self.stopped);
        self.buffers.assert_all_back();
        Lone::on(self.disk.kill(&mut Rng::new(1)))
    }
}

/// A block of no records, numbered and chained as told.
fn header(epoch: u32, block: u64, prev_header_crc: u32) -> BlockHeader {
    BlockHeader {
        log: LOG,
        epoch: Epoch(epoch),
        block: BlockNo(block),
        prev_header_crc,
        batch_count: 1,
        last_tick: Tick(1000 + block),
        first_in_segment: block.is_multiple_of(2),
        ..BlockHeader::default()
    }
}

/// The block as padded bytes, and its header with every CRC.
fn seal(header: &BlockHeader) -> (Vec<u8>, BlockHeader) {
    let mut bytes = vec![0; padded(2 * BLOCK_HEADER)];
    let batch = &mut bytes[BLOCK_HEADER..];
    batch::write_client_half(batch, &ClientHalf::default());
    let half = LeaderHalf {
        kind: Kind::Local,
        log: LOG,
        base_offset: Offset(0),
        tick: header.last_tick,
        txn_id: 0,
        origin_epoch: header.epoch,
    };
    let mut crc = BatchesCrc::default();
    crc.add(batch::write_leader_half(batch, &half));
    let mut header = BlockHeader {
        batches_crc: crc.finish(),
        used_len: 2 * BLOCK_HEADER as u32,
        ..*header
    };
    header.header_crc = block::write_header(&mut bytes, &header);
    (bytes, header)
}

/// After a restart a follower knows no CRC of the blocks below where its recovery began. A leader
/// of a later epoch replaces one of them by a block that chains to nothing: the cut is done, the
/// block is not taken, and the leader may begin again.
#[test]
fn a_run_that_does_not_chain_behind_its_cut_is_dropped() {
    let mut lone = Lone::on(Disk::new(DiskOptions::sound(SEGMENT_BYTES), 1));
    lone.follow(1);
    let mut crcs = vec![0];
    for block in 0..4 {
        let next = header(1, block, crcs[block as usize]);
        let answer = lone.push(&next, u32::from(block > 0));
        assert!(matches!(answer, Some(Body::ReplicateOk(_))), "{answer:?}");
        crcs.push(seal(&next).1.header_crc);
    }

    let mut lone = lone.restart();
    let position = lone.follow(2);
    assert_eq!(position.next, BlockNo(4), "nothing was lost");
    let answer = lone.push(&header(2, 1, 0xdead_beef), 1);
    assert!(
        matches!(&answer, Some(Body::Nack(nack)) if nack.code == Code::Diverged.number()),
        "{answer:?}"
    );
    let role = lone.shard.role();
    assert_eq!(role, Role::Follower, "the log is still in service");
    let cut = "cut blocks 1 to 4, records up to 0: epoch 2 has others there";
    let told = lone.told.iter().filter(|text| *text == cut);
    assert_eq!(told.count(), 1, "a cut is told once: {:?}", lone.told);

    let position = lone.follow(2);
    assert_eq!((position.next, position.last_crc), (BlockNo(1), crcs[1]));
    assert_eq!(position.durable_end, BlockNo(1));
    let answer = lone.push(&header(2, 1, crcs[1]), 1);
    let Some(Body::ReplicateOk(ok)) = answer else {
        panic!("a block that chains is taken: {answer:?}");
    };
    assert_eq!(ok.durable_end, BlockNo(2));
    lone.restart();
}

/// Blocks 0 and 1 of epoch 1 are there, and none is known to be committed.
fn holding_two() -> (Lone, BlockHeader) {
    let mut lone = Lone::on(Disk::new(DiskOptions::sound(SEGMENT_BYTES), 1));
    lone.follow(1);
    let mut crc = 0;
    for block in 0..2 {
        let next = header(1, block, crc);
        let answer = lone.push(&next, u32::from(block > 0));
        assert!(matches!(answer, Some(Body::ReplicateOk(_))), "{answer:?}");
        crc = seal(&next).1.header_crc;
    }
    (lone, header(1, 2, crc))
}

/// A damaged block header is a CRC failure like a damaged batch: counted, refused, and the sound
/// block is taken behind it.
#[test]
fn a_damaged_block_header_counts_as_a_crc_failure() {
    let (mut lone, next) = holding_two();
    assert_eq!(lone.shard.status(lone.now).counters.crc_failures, 0);
    let (mut bytes, sealed) = seal(&next);
    bytes[BLOCK_HEADER / 2] ^= 1;
    let answer = lone.push_bytes(&bytes, &sealed, 1);
    assert!(
        matches!(&answer, Some(Body::Nack(nack)) if nack.code == Code::BadCrc.number()),
        "{answer:?}"
    );
    assert_eq!(lone.shard.status(lone.now).counters.crc_failures, 1);
    let answer = lone.push(&next, 1);
    assert!(matches!(answer, Some(Body::ReplicateOk(_))), "{answer:?}");
    assert_eq!(lone.shard.status(lone.now).counters.crc_failures, 1);
}

/// What a closed log holds above its high watermark it stands for no more.
#[test]
fn a_closed_log_shows_nothing_durable_above_its_high_watermark() {
    let (mut lone, next) = holding_two();
    let status = lone.shard.status(lone.now);
    assert!(status.high_watermark < status.durable_end, "{status:?}");
    lone.disk.inject(0, DiskFault::Error);
    lone.push(&next, 1);
    let status = lone.shard.status(lone.now);
    assert_eq!(status.role, Role::Failed);
    assert!(status.durable_end <= status.high_watermark, "{status:?}");
}
