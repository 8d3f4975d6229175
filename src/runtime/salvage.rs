//! What an operator does to a log whose node is stopped: looks what is sound, and gives up the rest
//! by a decision of his own, when nobody can repair it (damage without peers, logs that differ
//! below what is committed).
//!
//! Nothing is deleted: what a log gives up lies afterwards in `data_dir/salvaged/<log>-<n>/`, with
//! a copy of the checkpoint. The order makes it safe to be interrupted and run again: copies first,
//! then a checkpoint that says what is being done, then files behind the cut, the last one first,
//! then the rest of the file that is cut, and the checkpoint of what is left last. Between the two
//! a log without peers does not start, and the next look finds the same end; a member of a set has
//! lost its memory, whatever its files look like. Ordinary buffered reads and writes; the caller
//! holds the directory's lock.

use super::files::{create_directory, rename_new, sync_directory};
use crate::limits::{CHECKPOINT_COPY, DISK_ALIGNMENT, SEGMENT_HEADER, WRITE_WINDOW};
use crate::types::{BlockNo, LogId, Offset};
use crate::wire::block::{self, BlockHeader};
use crate::wire::checkpoint::{self, Checkpoint, LogStart, Memory};
use crate::wire::segment::{self, base_of, file_name};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const STEP: u64 = DISK_ALIGNMENT as u64;
/// Bytes zeroed at once.
const CHUNK: u64 = 1 << 20;

/// The first place of a log that is not what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file; it may be missing.
    pub file: PathBuf,
    /// Position in it, bytes.
    pub position: u64,
    /// The block that should stand there.
    pub block: BlockNo,
    /// What is wrong.
    pub rule: &'static str,
}

/// Sound blocks behind a damaged place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// How many.
    pub blocks: u64,
    /// Records in them.
    pub records: u64,
    /// One past the highest.
    pub end: BlockNo,
}

/// What a log's files hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// First block kept.
    pub log_start: BlockNo,
    /// Blocks below it are sound, one behind the other.
    pub sound_end: BlockNo,
    /// Offset behind their last record.
    pub sound_offset: Offset,
    /// What ends them, if blocks behind are known to have existed: else it is a torn tail, or
    /// nothing, and the next start deals with it.
    pub damage: Option<Damage>,
    /// What lies behind the damage.
    pub behind: Behind,
}

/// What a log gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Where it lies now.
    pub aside: PathBuf,
    /// The log ends here.
    pub end: BlockNo,
}

/// A file of the log that may hold blocks.
#[derive(Debug)]
struct Segment {
    path: PathBuf,
    file: File,
    len: u64,
    /// None if its header is not sound.
    base: Option<BlockNo>,
    named: BlockNo,
    prev_crc: u32,
}

/// A walk along the chain of a log.
struct Walk {
    log: LogId,
    next: BlockNo,
    offset: Offset,
    crc: u32,
    bytes: Vec<u8>,
}

/// Where a walk ended.
struct Stop {
    /// Which segment; one past the last if there is none.
    at: usize,
    position: u64,
    rule: &'static str,
}

/// Looks at every block of a log.
pub fn survey(directory: &Path, log: LogId) -> io::Result<Survey> {
    let known = read_checkpoint(directory)?;
    let segments = segments(directory, log)?;
    let start = log_start(known.as_ref(), &segments, log)?;
    let (walk, stop) = walk(&segments, &start, log, None, &mut |_| {})?;
    let behind = behind(&segments, &stop, walk.next, log)?;
    let known_end = known.map_or(BlockNo(0), |known| {
        known.scan_from.max(known.high_watermark)
    });
    let is_damage = walk.next < known_end || behind.1 > WRITE_WINDOW;
    let damage = is_damage.then(|| Damage {
        file: segments.get(stop.at).map_or_else(
            || directory.join(file_name(walk.next)),
            |one| one.path.clone(),
        ),
        position: stop.position,
        block: walk.next,
        rule: stop.rule,
    });
    Ok(Survey {
        log_start: start.block,
        sound_end: walk.next,
        sound_offset: walk.offset,
        damage,
        behind: behind.0,
    })
}

/// The first block that goes if no record from `offset` on may stay: right behind the last records
/// before it.
pub fn block_at(directory: &Path, log: LogId, offset: Offset) -> io::Result<BlockNo> {
    let known = read_checkpoint(directory)?;
    let segments = segments(directory, log)?;
    let start = log_start(known.as_ref(), &segments, log)?;
    let mut from = start.block;
    walk(&segments, &start, log, None, &mut |header| {
        if header.record_count > 0 && header.end_offset <= offset {
            from = header.block.next();
        }
    })?;
    Ok(from)
}

/// Ends a log at `from`: what lies behind goes aside, and with `lost` the node counts as one that
/// lost its memory, so that the other members bring it up. Blocks below `from` must be sound.
pub fn give_up(directory: &Path, log: LogId, from: BlockNo, lost: bool) -> io::Result<GivenUp> {
    let known = read_checkpoint(directory)?;
    let segments = segments(directory, log)?;
    let start = log_start(known.as_ref(), &segments, log)?;
    let (walk, stop) = walk(&segments, &start, log, Some(from), &mut |_| {})?;
    if walk.next != from {
        let (end, from) = (walk.next, from.0);
        let text = format!("blocks are sound below {end} only; block {from} cannot be the end");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let aside = new_aside(directory, log)?;
    let cut = segments
        .get(stop.at)
        .filter(|one| stop.position > SEGMENT_HEADER as u64 && one.named < from);
    fs::copy(directory.join("checkpoint"), aside.join("checkpoint"))?;
    if let Some(cut) = cut {
        fs::copy(
            &cut.path,
            aside.join(cut.path.file_name().unwrap_or_default()),
        )?;
    }
    for copied in fs::read_dir(&aside)? {
        File::open(copied?.path())?.sync_all()?;
    }
    sync_directory(&aside)?;
    if let Some(known) = &known {
        write_checkpoint(directory, &begun(known, from, lost))?;
    }
    let moved = segments.iter().rev().filter(|one| one.named >= from);
    for one in moved {
        rename_new(
            &one.path,
            &aside.join(one.path.file_name().unwrap_or_default()),
        )?;
        sync_directory(directory)?;
    }
    sync_directory(&aside)?;
    if let Some(cut) = cut {
        zero_from(&cut.path, stop.position, cut.len)?;
    }
    if let Some(known) = known {
        write_checkpoint(directory, &ended(known, from, lost))?;
    }
    Ok(GivenUp { aside, end: from })
}

/// The checkpoint of a log that will end at `from`: that of a member of a set says that its memory
/// is lost; that of a log without peers, that there was more.
fn begun(known: &Checkpoint, from: BlockNo, lost: bool) -> Checkpoint {
    let known = known.clone();
    let high_watermark = match lost {
        true => known.high_watermark,
        false => known.high_watermark.max(from.next()),
    };
    Checkpoint {
        sequence: known.sequence + 1,
        high_watermark,
        memory: if lost { Memory::Lost } else { known.memory },
        clean: false,
        ..known
    }
}

/// The checkpoint of a log that ends at `from` now.
fn ended(known: Checkpoint, from: BlockNo, lost: bool) -> Checkpoint {
    let memory = if lost { Memory::Lost } else { known.memory };
    let mut faulty = known.faulty.clone();
    faulty.retain(|(_, end)| *end <= from);
    Checkpoint {
        // That of `begun` came between.
        sequence: known.sequence + 2,
        scan_from: known.scan_from.min(from),
        high_watermark: known.high_watermark.min(from),
        memory,
        clean: false,
        faulty,
        ..known
    }
}

fn read_checkpoint(directory: &Path) -> io::Result<Option<Checkpoint>> {
    let bytes = fs::read(directory.join("checkpoint"))?;
    let copies = bytes.chunks(CHECKPOINT_COPY).take(2);
    let sound = copies.filter_map(checkpoint::read);
    Ok(sound.max_by_key(|known| known.sequence))
}

fn write_checkpoint(directory: &Path, known: &Checkpoint) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .open(directory.join("checkpoint"))?;
    let mut bytes = vec![0; CHECKPOINT_COPY];
    checkpoint::write(&mut bytes, known);
    for copy in [0, CHECKPOINT_COPY as u64] {
        file.write_all_at(&bytes, copy)?;
        file.sync_all()?;
    }
    Ok(())
}

/// The files of a log that may hold blocks, ascending; `next.seg` is one if its header is sound.
fn segments(directory: &Path, log: LogId) -> io::Result<Vec<Segment>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_next = name == "next.seg";
        let named = base_of(&name);
        if named.is_none() && !is_next {
            continue;
        }
        let file = File::open(&path)?;
        let mut bytes = vec![0; SEGMENT_HEADER];
        let read = file.read_exact_at(&mut bytes, 0);
        let header = read.ok().and_then(|()| segment::read(&bytes));
        let header = header.filter(|header| header.log == log);
        let Some(named) = named.or(header.map(|header| header.base_block)) else {
            continue;
        };
        found.push(Segment {
            len: file.metadata()?.len(),
            base: header.map(|header| header.base_block),
            prev_crc: header.map_or(0, |header| header.prev_crc),
            path: path.clone(),
            file,
            named,
        });
    }
    found.sort_by_key(|one| one.named);
    Ok(found)
}

/// Where the log begins: as the checkpoint says, else where its first sound file does.
fn log_start(known: Option<&Checkpoint>, segments: &[Segment], log: LogId) -> io::Result<LogStart> {
    if let Some(known) = known {
        if known.log != log {
            let text = format!("the directory holds log {}, not {log}", known.log);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        return Ok(known.log_start);
    }
    let first = segments.first().filter(|first| first.base.is_some());
    let first = first.ok_or_else(|| {
        let text = "neither its checkpoint nor its first file says where the log begins";
        io::Error::new(io::ErrorKind::InvalidData, text)
    })?;
    let mut bytes = vec![0; SEGMENT_HEADER];
    first.file.read_exact_at(&mut bytes, 0)?;
    let header = segment::read(&bytes).expect("it was sound a moment ago");
    Ok(LogStart {
        block: header.base_block,
        offset: header.base_offset,
        prev_epoch: header.prev_epoch,
        prev_crc: header.prev_crc,
    })
}

/// Walks from the log's start as far as the chain goes, or to `until`.
fn walk(
    segments: &[Segment],
    start: &LogStart,
    log: LogId,
    until: Option<BlockNo>,
    seen: &mut dyn FnMut(&BlockHeader),
) -> io::Result<(Walk, Stop)> {
    let mut walk = Walk {
        log,
        next: start.block,
        offset: start.offset,
        crc: start.prev_crc,
        bytes: Vec::new(),
    };
    let mut at = segments.partition_point(|one| one.named < start.block);
    let mut position = 0;
    loop {
        let Some(one) = segments.get(at).filter(|one| one.named <= walk.next) else {
            let rule = "the segment file that begins with this block is missing";
            return Ok((
                walk,
                Stop {
                    at: segments.len().min(at),
                    position: 0,
                    rule,
                },
            ));
        };
        if position == 0 {
            if one.base != Some(walk.next) || one.prev_crc != walk.crc {
                let rule = "the segment's header is damaged, or another one's";
                return Ok((walk, Stop { at, position, rule }));
            }
            position = SEGMENT_HEADER as u64;
        }
        if until == Some(walk.next) {
            return Ok((
                walk,
                Stop {
                    at,
                    position,
                    rule: "",
                },
            ));
        }
        match walk.block(one, position)? {
            Ok(header) => {
                seen(&header);
                position += header.padded_len() as u64;
                walk.next = header.block.next();
                walk.offset = header.end_offset;
                walk.crc = header.header_crc;
            }
            Err(rule) => {
                let rolls = segments
                    .get(at + 1)
                    .is_some_and(|next| next.named == walk.next);
                if !rolls {
                    return Ok((walk, Stop { at, position, rule }));
                }
                at += 1;
                position = 0;
            }
        }
    }
}

impl Walk {
    /// The block that should stand at `position`, or what is wrong there.
    fn block(
        &mut self,
        one: &Segment,
        position: u64,
    ) -> io::Result<Result<BlockHeader, &'static str>> {
        let Some(header) = head(one, position, self.log)? else {
            return Ok(Err("no sound block header stands there"));
        };
        if header.block != self.next {
            return Ok(Err("another block stands there"));
        }
        if header.prev_header_crc != self.crc {
            return Ok(Err("the block does not chain to the one before it"));
        }
        self.bytes.resize(header.padded_len(), 0);
        if one.file.read_exact_at(&mut self.bytes, position).is_err() {
            return Ok(Err("the file ends within the block"));
        }
        if block::check_batches(&self.bytes, &header).is_err() {
            return Ok(Err("a batch of the block is damaged"));
        }
        if block::check_padding(&self.bytes, &header).is_err() {
            return Ok(Err("what stands behind the block's batches is not zero"));
        }
        Ok(Ok(header))
    }
}

/// The header of a block of this log at `position`.
fn head(one: &Segment, position: u64, log: LogId) -> io::Result<Option<BlockHeader>> {
    if position + STEP > one.len {
        return Ok(None);
    }
    let mut bytes = [0; DISK_ALIGNMENT];
    one.file.read_exact_at(&mut bytes, position)?;
    let header = block::read_header(&bytes).ok();
    Ok(header.filter(|header| header.log == log && header.padded_len() as u64 <= WRITE_WINDOW))
}

/// Sound blocks above `next` from where a walk stopped on, and how many bytes behind it the last
/// one ends.
fn behind(
    segments: &[Segment],
    stop: &Stop,
    next: BlockNo,
    log: LogId,
) -> io::Result<(Behind, u64)> {
    let mut found = Behind::default();
    let (mut distance, mut passed) = (0, 0);
    let mut bytes = Vec::new();
    for (at, one) in segments.iter().enumerate().skip(stop.at) {
        let first = SEGMENT_HEADER as u64;
        let began = if at == stop.at {
            stop.position.max(first)
        } else {
            first
        };
        let mut position = began;
        while position + STEP <= one.len {
            let Some(header) = head(one, position, log)?.filter(|header| header.block > next)
            else {
                position += STEP;
                continue;
            };
            let len = header.padded_len();
            bytes.resize(len, 0);
            let whole = one.file.read_exact_at(&mut bytes, position).is_ok();
            if !whole || block::check_batches(&bytes, &header).is_err() {
                position += STEP;
                continue;
            }
            position += len as u64;
            found.blocks += 1;
            found.records += u64::from(header.record_count);
            found.end = found.end.max(header.block.next());
            distance = passed + position - began;
        }
        passed += one.len.saturating_sub(began);
    }
    Ok((found, distance))
}

/// A directory that does not exist yet, for what the log gives up.
fn new_aside(directory: &Path, log: LogId) -> io::Result<PathBuf> {
    let data = directory.parent().unwrap_or(Path::new("."));
    let salvaged = data.join("salvaged");
    create_directory(&salvaged)?;
    let name = |number: u32| salvaged.join(format!("{log}-{number}"));
    let unused = (1..).map(name).find(|path| !path.exists());
    let aside = unused.expect("numbers do not end");
    create_directory(&aside)?;
    sync_directory(&salvaged)?;
    Ok(aside)
}

/// Zeroes a file from `from` on, the last bytes first, so that no sound block stands behind an
/// erased one.
fn zero_from(path: &Path, from: u64, len: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let zeros = vec![0; CHUNK as usize];
    let mut end = len;
    while end > from {
        let begin = end.saturating_sub(CHUNK).max(from);
        file.write_all_at(&zeros[..(end - begin) as usize], begin)?;
        file.sync_all()?;
        end = begin;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After the first of its two checkpoints and before the second, a member of a set has lost its
    /// memory, and a log without peers ends before what it says that it had.
    #[test]
    fn an_interrupted_cut_is_known_by_its_checkpoint() {
        let known = Checkpoint {
            sequence: 7,
            scan_from: BlockNo(3),
            high_watermark: BlockNo(3),
            memory: Memory::Whole,
            clean: true,
            ..Checkpoint::default()
        };
        let from = BlockNo(20);
        let member = begun(&known, from, true);
        assert_eq!((member.memory, member.clean), (Memory::Lost, false));
        assert_eq!(member.high_watermark, BlockNo(3), "nothing is claimed");
        let alone = begun(&known, from, false);
        assert_eq!((alone.memory, alone.clean), (Memory::Whole, false));
        assert!(alone.high_watermark > from, "the log does not start");
        for (begun, lost) in [(member, true), (alone, false)] {
            let ended = ended(begun.clone(), from, lost);
            assert!(ended.high_watermark <= from && ended.scan_from <= from);
            assert!(ended.sequence > begun.sequence);
        }
    }
}
