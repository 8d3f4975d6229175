//! The log that a lying member leads: its blocks, made byte by byte, and what its follower says.

use millrace::limits::{BATCH_HEADER, BLOCK_HEADER};
use millrace::types::{BlockNo, Epoch, Offset, Tick, padded};
use millrace::wire::batch::{self, Kind, LeaderHalf};
use millrace::wire::block::{self, BatchesCrc, BlockHeader};
use millrace::wire::body::{Body, Channel, Fetch, Position, Replicate, Where};
use millrace::wire::crc_with_zeroed;

use crate::frames::{self, Sample};
use crate::members::{Dialing, LED, outcome, sealed};
use crate::nodes::log;
use crate::wire::{Answer, Wire};

/// The type of the frame with a run of blocks.
const REPLICATE: u8 = 5;

/// The log that this member leads, as its follower says it is.
pub struct Led {
    wire: Wire,
    position: Position,
}

impl Led {
    pub fn adopt(dialing: &Dialing<'_>) -> Led {
        let mut wire = dialing.open(Channel::Data, log(LED));
        let position = adopt(&mut wire).expect("a promise");
        Led { wire, position }
    }

    /// Sends bytes; what came of them. The follower is adopted anew if it has closed.
    pub fn say(&mut self, dialing: &Dialing<'_>, bytes: &[u8]) -> String {
        self.wire.send(bytes);
        let mut answers = Vec::new();
        if bytes[4] == REPLICATE {
            // An answer to this comes behind the answer to the run.
            self.wire.send_body(asks(Epoch(0)), 0, log(LED));
        }
        let closed = loop {
            let Some(answer) = self.wire.next() else {
                break true;
            };
            let is_last = match &answer.body {
                Body::Position(_) => true,
                Body::Nack(_) | Body::FetchOk(_) => bytes[4] != REPLICATE,
                _ => false,
            };
            answers.push(answer);
            if is_last {
                break false;
            }
        };
        let outcome = self.judge(&answers, closed, bytes[4]);
        let position = if closed { None } else { adopt(&mut self.wire) };
        match position {
            Some(position) => self.position = position,
            None => *self = Led::adopt(dialing),
        }
        outcome
    }

    /// A run is taken if the log has grown. Acks of earlier runs may come at any time.
    fn judge(&self, answers: &[Answer], closed: bool, kind: u8) -> String {
        let nack = answers.iter().find(|a| matches!(a.body, Body::Nack(_)));
        if let (REPLICATE, false, None) = (kind, closed, nack) {
            let Some(Body::Position(after)) = answers.last().map(|answer| &answer.body) else {
                panic!("the position comes last: {answers:?}");
            };
            let grown = after.next > self.position.next;
            return if grown { "ReplicateOk" } else { "nothing new" }.to_owned();
        }
        let answers = nack.map_or(answers, std::slice::from_ref);
        outcome(answers, !closed)
    }

    /// Sends the next block, spoilt by `spoil`.
    pub fn push(&mut self, dialing: &Dialing<'_>, spoil: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut block = self.block();
        spoil(&mut block);
        let sample = sealed(self.head(block.len()), log(LED), &block);
        self.say(dialing, &sample.bytes)
    }

    pub fn frame(&self, which: usize) -> Sample {
        let epoch = self.position.promised;
        match which {
            0 => {
                let block = self.block();
                sealed(self.head(block.len()), log(LED), &block)
            }
            1 => sealed(asks(epoch), log(LED), &[]),
            _ => {
                let fetch = Fetch {
                    epoch,
                    first: BlockNo(0),
                    prev_epoch: Epoch(0),
                    max_bytes: 4096,
                };
                sealed(fetch, log(LED), &[])
            }
        }
    }

    fn head(&self, used: usize) -> Replicate {
        Replicate {
            epoch: self.position.promised,
            first: self.position.next,
            prev_epoch: self.position.last_epoch,
            prev_crc: self.position.last_crc,
            committed_end: BlockNo(0),
            log_start: BlockNo(0),
            count: 1,
            records: 1,
            padded_len: padded(used) as u32,
        }
    }

    /// The next block: one batch of one record, so that offsets count as blocks do.
    fn block(&self) -> Vec<u8> {
        let next = self.position.next;
        let tick = Tick(1_000_000 + next.0);
        let mut bytes = vec![0; BLOCK_HEADER];
        bytes.extend(frames::batch(1));
        let half = LeaderHalf {
            kind: Kind::Data,
            log: log(LED),
            base_offset: Offset(next.0),
            tick,
            txn_id: 0,
            origin_epoch: self.position.promised,
        };
        let mut crc = BatchesCrc::default();
        crc.add(batch::write_leader_half(&mut bytes[BLOCK_HEADER..], &half));
        let header = BlockHeader {
            log: log(LED),
            epoch: self.position.promised,
            block: next,
            header_crc: 0,
            prev_header_crc: self.position.last_crc,
            batches_crc: crc.finish(),
            used_len: bytes.len() as u32,
            batch_count: 1,
            record_count: 1,
            base_offset: Offset(next.0),
            end_offset: Offset(next.0 + 1),
            committed_end: BlockNo(0),
            max_timestamp: batch::client_half(&bytes[BLOCK_HEADER..]).max_timestamp,
            last_tick: tick,
            first_in_segment: next == BlockNo(0),
        };
        block::write_header(&mut bytes, &header);
        bytes
    }
}

fn asks(epoch: Epoch) -> Where {
    Where {
        epoch,
        log_end: BlockNo(0),
        founding: 0,
        last_epoch: Epoch(0),
        won: 0,
    }
}

/// Asks for the position, then for the promise of the epoch that it names. None if that is refused
/// or the connection has ended.
fn adopt(wire: &mut Wire) -> Option<Position> {
    let first = ask(wire, Epoch(0))?;
    ask(wire, Epoch(first.promised.0.max(1)))
}

fn ask(wire: &mut Wire, epoch: Epoch) -> Option<Position> {
    wire.send_body(asks(epoch), 0, log(LED));
    loop {
        match wire.next()?.body {
            Body::Position(position) => return Some(position),
            Body::Nack(_) => return None,
            _ => {}
        }
    }
}

/// Makes every CRC fit after a change at `at` of the batch's header.
pub fn seal_batch(block: &mut [u8], at: usize) {
    let batch = &mut block[BLOCK_HEADER..];
    let put = |bytes: &mut [u8], at: usize, crc: u32| {
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    };
    if !(12..16).contains(&at) {
        let crc = crc32fast::hash(&batch[64..]);
        put(batch, 12, crc);
    }
    if !(8..12).contains(&at) {
        let crc = crc_with_zeroed(&batch[..BATCH_HEADER], 8);
        put(batch, 8, crc);
    }
    let mut crc = BatchesCrc::default();
    crc.add(u32::from_le_bytes(
        batch[8..12].try_into().expect("four bytes"),
    ));
    put(block, 12, crc.finish());
    seal_block(block);
}

pub fn seal_block(block: &mut [u8]) {
    let crc = crc_with_zeroed(&block[..BLOCK_HEADER], 8);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
}
