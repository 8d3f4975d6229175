//! Gives foreign bytes the lengths and CRCs that let them through to what lies behind.
//!
//! Everything else stays as the input has it. Positions are those of the layouts in `src/wire`,
//! whose golden bytes hold them. [`sums`] goes further and makes a block's header say what its
//! batches are, so that whole blocks are taken.

use millrace::limits::{
    BATCH_HEADER, BLOCK_HEADER, CHECKPOINT_COPY, FRAME_BODY, FRAME_HEADER, SEGMENT_HEADER,
};
use millrace::types::LogId;
use millrace::wire::block::BatchesCrc;
use millrace::wire::{batch, crc_with_zeroed, frame};

/// Where batches, blocks, segments and checkpoints have their own CRC.
const OWN_CRC: usize = 8;

pub fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn own_crc(bytes: &mut [u8]) {
    let crc = crc_with_zeroed(bytes, OWN_CRC);
    put(bytes, OWN_CRC, &crc.to_le_bytes());
}

/// A frame whose body is all that follows the header, as far as it may be one.
pub fn frame(bytes: &[u8]) -> Vec<u8> {
    let len = bytes.len().clamp(FRAME_HEADER, FRAME_HEADER + FRAME_BODY);
    let mut bytes = bytes[..bytes.len().min(len)].to_vec();
    bytes.resize(len, 0);
    let (kind, correlation) = (bytes[4], u64_at(&bytes, 12));
    let mut log = LogId::default();
    log.origin.0 = u32_at(&bytes, 20);
    log.shard.0 = u32_at(&bytes, 24) as u16;
    let payload = u32_at(&bytes, 0) as usize % millrace::limits::FRAME_PAYLOAD;
    frame::write_header(&mut bytes, kind, correlation, log, payload);
    bytes
}

/// The client's half of a batch that is all of the bytes.
pub fn client_batch(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = at_least(bytes, BATCH_HEADER);
    let stored = (bytes.len() - BATCH_HEADER) as u32;
    put(&mut bytes, 68, &stored.to_le_bytes());
    bytes[108..BATCH_HEADER].fill(0);
    let crc = crc32fast::hash(&bytes[batch::CLIENT_HALF..]);
    put(&mut bytes, 12, &crc.to_le_bytes());
    bytes
}

fn at_least(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(len), 0);
    bytes
}

/// A block of all the bytes: magics, versions where they are 0, lengths and CRCs of the header and
/// of each batch. The batches lie where their own lengths put them; the last one takes the rest.
pub fn block(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = at_least(bytes, BLOCK_HEADER + BATCH_HEADER);
    let used = bytes.len();
    let mut crc = BatchesCrc::default();
    let mut at = BLOCK_HEADER;
    let mut batches = 0_u32;
    while at < used {
        let len = batch(&mut bytes[at..]);
        crc.add(u32_at(&bytes[at..], OWN_CRC));
        at += len;
        batches += 1;
    }
    put(&mut bytes, 0, b"MRBK");
    bytes[4] = 1;
    bytes[5] &= 1;
    put(&mut bytes, 6, &(BLOCK_HEADER as u16).to_le_bytes());
    put(&mut bytes, 12, &crc.finish().to_le_bytes());
    put(&mut bytes, 20, &(used as u32).to_le_bytes());
    put(&mut bytes, 24, &batches.to_le_bytes());
    bytes[90..BLOCK_HEADER].fill(0);
    own_crc(&mut bytes[..BLOCK_HEADER]);
    bytes
}

/// Mends the batch at the start of the bytes; how many of them it takes.
fn batch(bytes: &mut [u8]) -> usize {
    put(bytes, 0, b"MRB1");
    if bytes[4] < 2 {
        bytes[4] = 1;
        put(bytes, 6, &(BATCH_HEADER as u16).to_le_bytes());
    }
    let named = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
    let header = named.clamp(BATCH_HEADER, bytes.len());
    put(bytes, 6, &(header as u16).to_le_bytes());
    let most = bytes.len() - header;
    let stored = (u32_at(bytes, 68) as usize).min(most);
    // What would be too short for another batch belongs to this one.
    let stored = if most - stored < BATCH_HEADER {
        most
    } else {
        stored
    };
    put(bytes, 68, &(stored as u32).to_le_bytes());
    let len = header + stored;
    let crc = crc32fast::hash(&bytes[batch::CLIENT_HALF..len]);
    put(bytes, 12, &crc.to_le_bytes());
    own_crc(&mut bytes[..header]);
    len
}

/// What a block is to be chained to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    pub log: LogId,
    pub epoch: u32,
    pub block: u64,
    pub prev_crc: u32,
    pub base_offset: u64,
    pub last_tick: u64,
}

/// A block as [`block`] makes it whose header tells the truth of its batches, at this place.
pub fn sums(bytes: &[u8], place: &Place) -> Vec<u8> {
    let mut bytes = block(bytes);
    let used = bytes.len();
    let (mut at, mut offset, mut tick) = (BLOCK_HEADER, place.base_offset, place.last_tick);
    let mut latest = 0;
    while at < used {
        let part = &mut bytes[at..];
        let kind = [0, 2, 5, 6, 3, 0, 0, 5][usize::from(part[5] % 8)];
        let records = match kind {
            0 | 2 => (u32_at(part, 64) % 1000).max(1),
            _ => 0,
        };
        tick += 1;
        part[5] = kind;
        put(part, 16, &offset.to_le_bytes());
        put(part, 24, &tick.to_le_bytes());
        put(part, 44, &place.log.origin.0.to_le_bytes());
        put(part, 48, &place.log.shard.0.to_le_bytes());
        put(part, 64, &records.to_le_bytes());
        if part[4] == batch::VERSION {
            latest = latest.max(u64_at(part, 84));
        }
        offset += u64::from(records);
        let header = usize::from(u16::from_le_bytes([part[6], part[7]]));
        at += header + u32_at(part, 68) as usize;
    }
    let records = (offset - place.base_offset) as u32;
    put(&mut bytes, 16, &place.prev_crc.to_le_bytes());
    put(&mut bytes, 28, &records.to_le_bytes());
    put(&mut bytes, 32, &place.epoch.to_le_bytes());
    put(&mut bytes, 36, &place.block.to_le_bytes());
    put(&mut bytes, 44, &place.base_offset.to_le_bytes());
    put(&mut bytes, 52, &offset.to_le_bytes());
    let committed = u64_at(&bytes, 60).min(place.block);
    put(&mut bytes, 60, &committed.to_le_bytes());
    put(&mut bytes, 68, &place.log.origin.0.to_le_bytes());
    put(&mut bytes, 72, &place.log.shard.0.to_le_bytes());
    put(&mut bytes, 74, &latest.to_le_bytes());
    put(&mut bytes, 82, &tick.to_le_bytes());
    block(&bytes)
}

/// A segment's header block: magic, version, zeros and CRC.
pub fn segment(bytes: &[u8]) -> Vec<u8> {
    header_block(
        bytes,
        SEGMENT_HEADER,
        b"MRSG",
        &[5..8, 18..20, 44..SEGMENT_HEADER],
    )
}

/// A copy of a checkpoint: magic, version, zeros and CRC, with counts that fit.
pub fn checkpoint(bytes: &[u8]) -> Vec<u8> {
    let mut copy = at_least(bytes, CHECKPOINT_COPY);
    let members = usize::from(copy[18] % 17);
    let faulty = usize::from(copy[100] % 65);
    put(&mut copy, 18, &(members as u16).to_le_bytes());
    put(&mut copy, 100, &(faulty as u32).to_le_bytes());
    copy[5] &= 1;
    copy[6] &= 1;
    let zeros = [
        7..8,
        104 + 4 * members..168,
        168 + 16 * faulty..CHECKPOINT_COPY,
    ];
    header_block(&copy, CHECKPOINT_COPY, b"MRCP", &zeros)
}

fn header_block(
    bytes: &[u8],
    len: usize,
    magic: &[u8],
    zeros: &[core::ops::Range<usize>],
) -> Vec<u8> {
    let mut bytes = at_least(bytes, len);
    bytes.truncate(len);
    put(&mut bytes, 0, magic);
    bytes[4] = 1;
    for range in zeros {
        bytes[range.clone()].fill(0);
    }
    own_crc(&mut bytes);
    bytes
}
