//! Frames of peers whose numbers lie near those of a log, and what a shell lets through.

use super::input::Input;
use super::mend::{self, Place};
use super::sim::framing;
use millrace::limits::{DISK_ALIGNMENT, FRAME_HEADER};
use millrace::shard::ShardStatus;
use millrace::types::{BlockNo, Epoch, Offset, padded};
use millrace::wire::block::{self, BlockHeader};
use millrace::wire::body::*;

/// Bytes of a run of blocks at most.
const RUN_BYTES: usize = 256 << 10;

/// What `runtime/peer.rs` lets through to a shard: see the table in `body.rs`.
pub fn may_come(data: bool, dialed: bool, body: &Body) -> bool {
    match body {
        Body::Ping(_) | Body::Pong(_) | Body::Sealed(_) => true,
        Body::Fetch(_) | Body::FetchOk(_) | Body::Nack(_) => data,
        Body::Where(_) | Body::Replicate(_) | Body::TakeOver(_) => data && !dialed,
        Body::Position(_)
        | Body::ReplicateOk(_)
        | Body::Limits(_)
        | Body::Pause(_)
        | Body::Resume(_) => data && dialed,
        _ => false,
    }
}

/// The payload as a shell lays it out; an error if it ends the connection.
pub fn lay_out(body: &Body, payload: &[u8]) -> Result<Option<Vec<u8>>, ()> {
    let (count, room) = match body {
        Body::Replicate(run) => (run.count, run.padded_len as usize),
        Body::FetchOk(run) => (run.count, run.padded_len as usize),
        _ => return Ok(None),
    };
    if count == 0 {
        return Ok(None);
    }
    if room == 0 || !room.is_multiple_of(DISK_ALIGNMENT) || room > RUN_BYTES {
        return Err(());
    }
    let frame = framing::encode(body, Default::default(), payload);
    assert!(frame.len() > FRAME_HEADER);
    let decoded = framing::decode(&frame, Default::default()).ok_or(())?;
    Ok(decoded.payload)
}

/// A number a little above or below another one.
fn near(input: &mut Input<'_>, base: u64) -> u64 {
    let by = input.u8() as i8;
    base.saturating_add_signed(i64::from(by)).min(1 << 62)
}

fn block_near(input: &mut Input<'_>, base: BlockNo) -> BlockNo {
    BlockNo(near(input, base.0))
}

fn epoch_near(input: &mut Input<'_>, base: Epoch) -> Epoch {
    Epoch(near(input, u64::from(base.0)).min(1 << 31) as u32)
}

fn memory(input: &mut Input<'_>) -> ReplicaMemory {
    match input.u8() % 8 {
        6 => ReplicaMemory::Lost,
        7 => ReplicaMemory::Blank,
        _ => ReplicaMemory::Whole,
    }
}

fn limits(input: &mut Input<'_>) -> CreditLimits {
    CreditLimits {
        records: u64::from(input.u16()) << 4,
        bytes: u64::from(input.u16()) << 12,
    }
}

fn position(input: &mut Input<'_>, status: &ShardStatus, tail: &BlockHeader) -> Position {
    let (epoch, end) = (status.epoch, status.log_end);
    Position {
        promised: epoch_near(input, epoch),
        last_epoch: epoch_near(input, tail.epoch),
        last_crc: tail.header_crc ^ u32::from(input.u8() > 200),
        next: block_near(input, end),
        durable_end: block_near(input, end),
        committed_end: block_near(input, status.high_watermark),
        log_start: block_near(input, status.log_start),
        memory: memory(input),
        hears_leader: input.u8() & 1,
        limits: limits(input),
    }
}

/// A frame about a log whose last block is `tail`, and its payload.
pub fn near_frame(input: &mut Input<'_>, status: &ShardStatus, tail: &BlockHeader) -> Body {
    let (epoch, end) = (status.epoch, status.log_end);
    match input.u8() % 13 {
        0 | 1 => Where {
            epoch: epoch_near(input, epoch),
            log_end: block_near(input, end),
            founding: input.u8() & 1,
            last_epoch: epoch_near(input, tail.epoch),
            won: input.u8() & 1,
        }
        .into(),
        2 | 3 => position(input, status, tail).into(),
        4 | 5 => ReplicateOk {
            epoch: epoch_near(input, epoch),
            durable_end: block_near(input, end),
            durable_offset: Offset(near(input, tail.end_offset.0)),
            memory: memory(input),
            limits: limits(input),
        }
        .into(),
        6 => Nack {
            code: u16::from(input.u8()),
            first: block_near(input, end),
            next: block_near(input, end),
            promised: epoch_near(input, epoch),
            hint_epoch: epoch_near(input, tail.epoch),
            hint_first: block_near(input, end),
            limits: limits(input),
        }
        .into(),
        7 => Fetch {
            epoch: epoch_near(input, epoch),
            first: block_near(input, status.log_start),
            prev_epoch: epoch_near(input, tail.epoch),
            max_bytes: u32::from(input.u16()) << 4,
        }
        .into(),
        8 => Ping {
            epoch: epoch_near(input, epoch),
            committed_end: block_near(input, status.high_watermark),
            log_start: block_near(input, status.log_start),
            log_end: block_near(input, end),
            sent_at_us: input.u64(),
        }
        .into(),
        9 => Pong {
            promised: epoch_near(input, epoch),
            durable_end: block_near(input, end),
            sent_at_us: input.u64(),
        }
        .into(),
        10 => Resume {
            next: block_near(input, end),
        }
        .into(),
        11 => Sealed {
            epoch: epoch_near(input, epoch),
            bytes: input.u64(),
        }
        .into(),
        _ => TakeOver {
            epoch: epoch_near(input, epoch),
        }
        .into(),
    }
}

/// A run of blocks made of the input, chained to the tail of the log, to its place or to nothing.
fn run(input: &mut Input<'_>, status: &ShardStatus, tail: &BlockHeader) -> Run {
    let choice = input.u8();
    let mut place = Place {
        log: status.log,
        epoch: epoch_near(input, status.epoch).0,
        block: status.log_end.0,
        prev_crc: tail.header_crc,
        base_offset: tail.end_offset.0,
        last_tick: tail.last_tick.0,
    };
    if choice & 0x10 != 0 {
        place.block = near(input, place.block);
    }
    if choice & 0x20 != 0 {
        place.base_offset = near(input, place.base_offset);
    }
    if choice & 0x40 != 0 {
        place.prev_crc = input.u32();
    }
    let mut run = Run {
        first: BlockNo(place.block),
        prev_crc: place.prev_crc,
        ..Run::default()
    };
    for _ in 0..1 + choice % 4 {
        let mut bytes = mend::sums(input.run(), &place);
        let header = block::read_header(&bytes);
        if choice & 0x80 != 0 {
            let at = usize::from(input.u8()) % bytes.len();
            bytes[at] ^= input.u8();
        }
        run.padded_len += padded(bytes.len()) as u32;
        run.count += 1;
        run.bytes.extend_from_slice(&bytes);
        let Ok(header) = header else {
            break;
        };
        run.records += header.record_count;
        place.block += 1;
        place.prev_crc = header.header_crc;
        place.base_offset = header.end_offset.0;
        place.last_tick = header.last_tick.0;
    }
    run
}

#[derive(Clone, Debug, Default)]
struct Run {
    first: BlockNo,
    prev_crc: u32,
    count: u32,
    records: u32,
    padded_len: u32,
    bytes: Vec<u8>,
}

/// A frame near a log, with or without blocks.
pub fn near_with_blocks(
    input: &mut Input<'_>,
    status: &ShardStatus,
    tail: &BlockHeader,
) -> (Body, Vec<u8>) {
    let kind = input.u8();
    if kind.is_multiple_of(2) {
        return (near_frame(input, status, tail), Vec::new());
    }
    let epoch = epoch_near(input, status.epoch);
    let prev_epoch = epoch_near(input, tail.epoch);
    let committed_end = block_near(input, status.log_end);
    let run = run(input, status, tail);
    let body = if kind & 2 == 0 {
        Replicate {
            epoch,
            first: run.first,
            prev_epoch,
            prev_crc: run.prev_crc,
            committed_end,
            log_start: block_near(input, status.log_start),
            count: run.count,
            records: run.records,
            padded_len: run.padded_len,
        }
        .into()
    } else {
        FetchOk {
            epoch,
            first: run.first,
            prev_epoch,
            committed_end,
            count: run.count,
            padded_len: run.padded_len,
        }
        .into()
    };
    (body, run.bytes)
}
