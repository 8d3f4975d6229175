//! The ledger: what became of every batch that a run sent.
//!
//! Owns the file that `run` writes once, durably, at its end, and that `verify` holds against the
//! nodes' segments. It must never guess: a batch whose answer did not come is `Unknown`. Which
//! codes say that a batch is nowhere is decided here, in one place ([`State::of_code`]). Read
//! `verify/mod.rs` next.
//!
//! ```text
//! header, 112 bytes: magic "MRLG" · version u32 · crc u32 (this field as zero) · run u32
//!                    · origin_count u32 · shards u32 · record_bytes u32 · payload u8
//!                    · zero [u8; 3] · entries u64 · key_count u32 · zero u32
//!                    · origins [u32; 16], ascending, zero behind the last
//! entry, 32 bytes:   producer u32 · first u32 · count u32 · shard u16 · state u8
//!                    · origin u8 (its place among the origins) · code u16 · zero u16
//!                    · crc u32 (this field as zero) · offset u64
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use millrace::limits::MAX_NODES;
use millrace::types::{LogId, Offset, OriginId, ShardId};
use millrace::wire::code::{Code, Retry};
use millrace::wire::crc_with_zeroed;

use crate::payload::Payload;

const MAGIC: &[u8; 4] = b"MRLG";
const VERSION: u32 = 3;
const HEADER: usize = ORIGINS + 4 * MAX_NODES;
const ORIGINS: usize = 48;
const HEADER_CRC: usize = 8;
const ENTRY: usize = 32;
const ENTRY_CRC: usize = 20;

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Acknowledged at its level, with the offset of its first record.
    Acked(Offset),
    /// Refused with this code: it is in no log.
    Failed(u16),
    /// No answer, or one that leaves it open: it is in the log once or not at all. The code is 0 if
    /// no answer came.
    Unknown(u16),
}

impl State {
    /// What an error answer says. `LogFailed` and `Stopping` may reach an append that is already in
    /// the log, and a number that is not known here may mean anything: such a batch is unknown.
    pub fn of_code(number: u16) -> State {
        match Code::from_number(number) {
            None | Some(Code::LogFailed | Code::Stopping) => State::Unknown(number),
            Some(code) if code.retry() == Retry::UnknownOutcome => State::Unknown(number),
            Some(_) => State::Failed(number),
        }
    }

    fn parts(self) -> (u8, u16, u64) {
        match self {
            State::Acked(offset) => (1, 0, offset.0),
            State::Failed(code) => (2, code, 0),
            State::Unknown(code) => (3, code, 0),
        }
    }

    fn from_parts(state: u8, code: u16, offset: u64) -> Option<State> {
        match state {
            1 => Some(State::Acked(Offset(offset))),
            2 => Some(State::Failed(code)),
            3 => Some(State::Unknown(code)),
            _ => None,
        }
    }
}

/// One batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Producer in the run; the batch header's producer id is `run << 32 | producer`.
    pub producer: u32,
    /// Number of its first record in the producer's own count.
    pub first: u32,
    /// Records in it.
    pub count: u32,
    /// The log that it was sent to.
    pub log: LogId,
    /// What became of it.
    pub state: State,
}

impl Entry {
    /// Whether it was acknowledged.
    pub fn is_acked(&self) -> bool {
        matches!(self.state, State::Acked(_))
    }
}

/// All batches of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// The run's id, as in every payload.
    pub run: u32,
    /// Shards of the cluster.
    pub shards: u32,
    /// Bytes of every record's value.
    pub record_bytes: u32,
    /// What the values look like.
    pub payload: Payload,
    /// Records carry keys below this; none if it is 0.
    pub key_count: u32,
    /// The batches; in the order of their ends as written, by producer and sequence as read.
    pub entries: Vec<Entry>,
}

/// Why a file is not a ledger.
#[derive(Debug)]
pub enum LedgerError {
    /// It could not be read.
    Io(io::Error),
    /// Not a ledger, of another version, cut short, or a CRC does not fit.
    Damaged(&'static str),
}

impl std::fmt::Display for LedgerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LedgerError::Io(error) => error.fmt(f),
            LedgerError::Damaged(what) => f.write_str(what),
        }
    }
}

impl Ledger {
    /// The id that batch headers carry for this producer.
    pub fn producer_id(run: u32, producer: u32) -> u64 {
        u64::from(run) << 32 | u64::from(producer)
    }

    /// Records in all batches of which `which` holds.
    pub fn records(&self, which: impl Fn(&State) -> bool) -> u64 {
        let chosen = self.entries.iter().filter(|entry| which(&entry.state));
        chosen.map(|entry| u64::from(entry.count)).sum()
    }

    /// Writes the file: beside its place first, then renamed, durable when this returns.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".part");
        let mut out = BufWriter::new(File::create(&beside)?);
        let origins = self.origins();
        out.write_all(&self.header(&origins))?;
        for entry in &self.entries {
            out.write_all(&encode(entry, &origins))?;
        }
        out.into_inner()?.sync_all()?;
        fs::rename(&beside, path)?;
        let folder = path.parent().filter(|folder| folder != &Path::new(""));
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// Reads a file and sorts its batches by producer and sequence.
    pub fn read(path: &Path) -> Result<Ledger, LedgerError> {
        Ledger::read_until(path, u64::MAX)
    }

    /// The same as it was known when so many records had been acknowledged: what became of the
    /// batches behind them is unknown.
    pub fn read_until(path: &Path, acked: u64) -> Result<Ledger, LedgerError> {
        let mut file = File::open(path).map_err(LedgerError::Io)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(LedgerError::Io)?;
        let (mut ledger, origins, count) = parse_header(&bytes)?;
        let entries = &bytes[HEADER..];
        if entries.len() as u64 != count * ENTRY as u64 {
            return Err(LedgerError::Damaged("its length does not fit its header"));
        }
        ledger.entries.reserve_exact(count as usize);
        let mut left = acked;
        for entry in entries.chunks_exact(ENTRY) {
            let mut entry = decode(entry, &origins)?;
            let taken = if entry.is_acked() {
                u64::from(entry.count)
            } else {
                0
            };
            match left.checked_sub(taken) {
                Some(rest) if left > 0 => left = rest,
                _ => (left, entry.state) = (0, State::Unknown(0)),
            }
            ledger.entries.push(entry);
        }
        ledger
            .entries
            .sort_by_key(|entry| (entry.producer, entry.first));
        let overlap = |pair: &[Entry]| {
            pair[0].producer == pair[1].producer
                && u64::from(pair[0].first) + u64::from(pair[0].count) > u64::from(pair[1].first)
        };
        if ledger.entries.windows(2).any(overlap) {
            return Err(LedgerError::Damaged("two of its batches overlap"));
        }
        Ok(ledger)
    }

    /// The batch of `producer` that begins with record `first`, as an index into the sorted
    /// entries.
    pub fn find(&self, producer: u32, first: u32) -> Option<usize> {
        self.entries
            .binary_search_by_key(&(producer, first), |entry| (entry.producer, entry.first))
            .ok()
    }

    /// The origins of the logs written to, ascending: those of the cluster's nodes at most.
    fn origins(&self) -> Vec<OriginId> {
        let origins: BTreeSet<OriginId> =
            self.entries.iter().map(|entry| entry.log.origin).collect();
        origins.into_iter().collect()
    }

    fn header(&self, origins: &[OriginId]) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.run.to_le_bytes());
        bytes[16..20].copy_from_slice(&(origins.len() as u32).to_le_bytes());
        bytes[20..24].copy_from_slice(&self.shards.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.record_bytes.to_le_bytes());
        bytes[28] = self.payload as u8;
        bytes[32..40].copy_from_slice(&(self.entries.len() as u64).to_le_bytes());
        bytes[40..44].copy_from_slice(&self.key_count.to_le_bytes());
        for (place, origin) in bytes[ORIGINS..].chunks_exact_mut(4).zip(origins) {
            place.copy_from_slice(&origin.0.to_le_bytes());
        }
        let crc = crc_with_zeroed(&bytes, HEADER_CRC);
        bytes[HEADER_CRC..HEADER_CRC + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

fn parse_header(bytes: &[u8]) -> Result<(Ledger, Vec<OriginId>, u64), LedgerError> {
    let damaged = LedgerError::Damaged;
    if bytes.is_empty() {
        return Err(damaged(
            "it is empty: its run did not end, so what was acked is not known; mend: run again and \
             let it end, or stop it by SIGINT or SIGTERM, after which it writes its ledger",
        ));
    }
    let header = bytes
        .get(..HEADER)
        .ok_or(damaged("too short for a ledger"))?;
    if &header[..4] != MAGIC {
        return Err(damaged("not a ledger"));
    }
    if crc_with_zeroed(header, HEADER_CRC) != u32_at(header, HEADER_CRC) {
        return Err(damaged("its header's CRC does not fit"));
    }
    if u32_at(header, 4) != VERSION {
        return Err(damaged("a ledger of another version"));
    }
    let payload = Payload::ALL.get(usize::from(header[28]));
    let ledger = Ledger {
        run: u32_at(header, 12),
        shards: u32_at(header, 20),
        record_bytes: u32_at(header, 24),
        payload: *payload.ok_or(damaged("its payload is of no known kind"))?,
        key_count: u32_at(header, 40),
        entries: Vec::new(),
    };
    let origins = header[ORIGINS..].chunks_exact(4);
    let origins = origins.map(|origin| OriginId(u32_at(origin, 0)));
    let origins = origins.take(u32_at(header, 16) as usize).collect();
    Ok((ledger, origins, u64_at(header, 32)))
}

fn encode(entry: &Entry, origins: &[OriginId]) -> [u8; ENTRY] {
    let (state, code, offset) = entry.state.parts();
    let origin = origins.binary_search(&entry.log.origin);
    let origin = origin.expect("the origins are those of the entries");
    let mut bytes = [0; ENTRY];
    bytes[..4].copy_from_slice(&entry.producer.to_le_bytes());
    bytes[4..8].copy_from_slice(&entry.first.to_le_bytes());
    bytes[8..12].copy_from_slice(&entry.count.to_le_bytes());
    bytes[12..14].copy_from_slice(&entry.log.shard.0.to_le_bytes());
    bytes[14] = state;
    bytes[15] = origin as u8;
    bytes[16..18].copy_from_slice(&code.to_le_bytes());
    bytes[24..32].copy_from_slice(&offset.to_le_bytes());
    let crc = crc_with_zeroed(&bytes, ENTRY_CRC);
    bytes[ENTRY_CRC..ENTRY_CRC + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8], origins: &[OriginId]) -> Result<Entry, LedgerError> {
    if crc_with_zeroed(bytes, ENTRY_CRC) != u32_at(bytes, ENTRY_CRC) {
        return Err(LedgerError::Damaged(
            "the CRC of one of its batches does not fit",
        ));
    }
    let code = u16::from_le_bytes([bytes[16], bytes[17]]);
    let state = State::from_parts(bytes[14], code, u64_at(bytes, 24));
    let origin = origins.get(usize::from(bytes[15])).copied();
    Ok(Entry {
        producer: u32_at(bytes, 0),
        first: u32_at(bytes, 4),
        count: u32_at(bytes, 8),
        log: LogId {
            origin: origin.ok_or(LedgerError::Damaged(
                "one of its batches has no known origin",
            ))?,
            shard: ShardId(u16::from_le_bytes([bytes[12], bytes[13]])),
        },
        state: state.ok_or(LedgerError::Damaged(
            "one of its batches has no known state",
        ))?,
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
