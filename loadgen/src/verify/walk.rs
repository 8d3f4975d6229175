//! Walks a log's segment files block by block, as recovery would, without changing a byte.
//!
//! It judges what stands outside the batches: segment headers, block headers, their chain, numbers
//! and offsets. Each sound block goes to a [`Visitor`]; each place that is not what it should be
//! is a [`Damage`], with the offsets that cannot be read because of it. Behind the last block a
//! file may hold anything that is no block: space that was prepared, or the rest of a torn write
//! that recovery wrote over. So an unreadable header is damage if a later block stands behind it,
//! or if it looks like the header that belongs there. Read `content.rs` next.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use millrace::limits::{
    BATCH_HEADER, BLOCK_HEADER, CHECKPOINT_COPY, DISK_ALIGNMENT, SEGMENT_HEADER, WRITE_WINDOW,
};
use millrace::types::{BlockNo, Epoch, LogId, Offset, OriginId, ShardId};
use millrace::wire::block::{self, BlockHeader};
use millrace::wire::checkpoint::{self, LogStart};
use millrace::wire::segment::{self, SegmentHeader};

use super::reader::{Progress, Reader};

const STEP: u64 = DISK_ALIGNMENT as u64;

/// A place that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Where in it.
    pub position: u64,
    /// The block that should stand there.
    pub block: BlockNo,
    /// Offsets that cannot be read because of it; empty if all can.
    pub lost: Range<u64>,
    /// What is wrong.
    pub text: String,
}

/// Takes what a walk finds.
pub trait Visitor {
    /// A block whose header is sound and in its place. `bytes` are all its bytes, padding included.
    fn block(&mut self, file: &Path, position: u64, header: &BlockHeader, bytes: &[u8]);
    /// Something is wrong.
    fn damage(&mut self, damage: Damage);
}

/// One segment file as walked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The file.
    pub path: PathBuf,
    /// Its first block.
    pub base: BlockNo,
    /// Position behind its last block.
    pub end_position: u64,
}

/// A log as walked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Where the log begins by its own word: what lies below was removed by its retention, and
    /// nothing else was. A checkpoint that says so is durable before the first file is freed.
    pub log_start: LogStart,
    /// First block held.
    pub first_block: BlockNo,
    /// One past the last block held.
    pub end_block: BlockNo,
    /// First offset held.
    pub first_offset: Offset,
    /// One past the last offset held.
    pub end_offset: Offset,
    /// The highest that any block says of committed blocks.
    pub committed_end: BlockNo,
    /// Blocks that were sound.
    pub blocks: u64,
    /// Its files that hold blocks, in order.
    pub segments: Vec<Segment>,
}

/// The logs of a data directory (`<origin>-<shard>`, in it or in its `data`), with their folders.
pub fn logs(data: &Path) -> io::Result<BTreeMap<LogId, PathBuf>> {
    let mut logs = BTreeMap::new();
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", data.display()));
    let inner = data.join("data");
    let mut folders = vec![data];
    if inner.is_dir() {
        folders.push(&inner);
    }
    for folder in folders {
        for entry in fs::read_dir(folder).map_err(named)? {
            let entry = entry.map_err(named)?;
            let log = entry.file_name().to_str().and_then(log_of);
            if let Some(log) = log.filter(|_| entry.path().is_dir()) {
                logs.insert(log, entry.path());
            }
        }
    }
    Ok(logs)
}

fn log_of(name: &str) -> Option<LogId> {
    let (origin, shard) = name.split_once('-')?;
    Some(LogId {
        origin: OriginId(origin.parse().ok()?),
        shard: ShardId(shard.parse().ok()?),
    })
}

/// Walks the log in `folder`.
pub fn walk(
    folder: &Path,
    log: LogId,
    progress: &Progress,
    visitor: &mut dyn Visitor,
) -> io::Result<Shape> {
    let mut walk = Walk {
        log,
        progress,
        visitor,
        shape: Shape {
            log_start: log_start(folder, log)?,
            ..Shape::default()
        },
        started: false,
        previous: None,
        epoch: Epoch(0),
    };
    for file in files(folder)? {
        walk.file(&file)?;
    }
    Ok(walk.shape)
}

/// The log start that the later sound copy of a log's checkpoint names. Without one nothing says
/// that anything was trimmed, so the log should begin with its first block.
fn log_start(folder: &Path, log: LogId) -> io::Result<LogStart> {
    let bytes = match fs::read(folder.join("checkpoint")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let copies = bytes.chunks(CHECKPOINT_COPY).filter_map(checkpoint::read);
    let own = copies.filter(|copy| copy.log == log);
    let latest = own.max_by_key(|copy| copy.sequence);
    Ok(latest.map_or(LogStart::default(), |copy| copy.log_start))
}

/// A segment file before it is walked.
struct SegmentFile {
    path: PathBuf,
    /// As its name says; none for `next.seg`.
    named: Option<BlockNo>,
    header: Option<SegmentHeader>,
}

/// The segment files of a folder, in the order of their first blocks; `next.seg` goes last.
fn files(folder: &Path) -> io::Result<Vec<SegmentFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or("");
        let named = segment::base_of(name);
        if named.is_none() && name != "next.seg" {
            continue;
        }
        let progress = Progress::default();
        let mut reader = Reader::open(&path, &progress)?;
        let header = segment::read(reader.view(0, SEGMENT_HEADER as u64)?);
        files.push(SegmentFile {
            path,
            named,
            header,
        });
    }
    files.sort_by_key(|file| (file.named.is_none(), file.named, file.path.clone()));
    Ok(files)
}

struct Walk<'a> {
    log: LogId,
    progress: &'a Progress,
    visitor: &'a mut dyn Visitor,
    shape: Shape,
    started: bool,
    /// `header_crc` of the block before the next one, where it is known.
    previous: Option<u32>,
    epoch: Epoch,
}

/// What stands where the next block should.
enum Found {
    Block(BlockHeader),
    /// Nothing that continues the log.
    End,
    /// A later block, at this position, behind something unreadable.
    Later(u64, BlockHeader),
}

impl Walk<'_> {
    fn file(&mut self, file: &SegmentFile) -> io::Result<()> {
        let base = match (file.header, file.named) {
            (Some(header), Some(named)) => self.enter(file, &header, named),
            (Some(header), None) => {
                let continues = self.started
                    && header.log == self.log
                    && header.base_block == self.shape.end_block
                    && self.previous == Some(header.prev_crc);
                if !continues {
                    return Ok(());
                }
                header.base_block
            }
            (None, Some(named)) => {
                self.damage(file, 0, "the segment's header block is damaged", 0);
                self.start(named, self.shape.end_offset);
                named
            }
            (None, None) => return Ok(()),
        };
        let mut reader = Reader::open(&file.path, self.progress)?;
        let mut position = SEGMENT_HEADER as u64;
        let before = self.shape.blocks;
        while let Some(next) = self.step(file, &mut reader, position)? {
            position = next;
        }
        if self.shape.blocks > before {
            self.shape.segments.push(Segment {
                path: file.path.clone(),
                base,
                end_position: position,
            });
        }
        Ok(())
    }

    /// Holds a segment's header against its name and against what came before.
    fn enter(&mut self, file: &SegmentFile, header: &SegmentHeader, named: BlockNo) -> BlockNo {
        if header.log != self.log {
            let text = format!("the segment belongs to log {}", header.log);
            self.damage(file, 0, &text, 0);
        }
        if header.base_block != named {
            let text = format!("the segment's header says block {}", header.base_block);
            self.damage(file, 0, &text, 0);
        }
        if !self.started {
            self.start(header.base_block, header.base_offset);
            self.previous = Some(header.prev_crc);
            self.epoch = header.prev_epoch;
            return header.base_block;
        }
        let expected = (self.shape.end_block, self.shape.end_offset);
        if (header.base_block, header.base_offset) != expected {
            let text = format!(
                "the segment begins with block {} at offset {}, after block {} and offset {} of \
                 the one before it",
                header.base_block, header.base_offset, expected.0, expected.1
            );
            let lost = header.base_offset.0.saturating_sub(expected.1.0);
            self.damage(file, 0, &text, lost);
            self.shape.end_block = header.base_block;
            self.shape.end_offset = header.base_offset;
            self.previous = Some(header.prev_crc);
        }
        if self.previous.is_some_and(|crc| crc != header.prev_crc) {
            self.damage(
                file,
                0,
                "the segment's header does not continue the chain",
                0,
            );
        }
        header.base_block
    }

    fn start(&mut self, block: BlockNo, offset: Offset) {
        if !self.started {
            self.started = true;
            self.shape.first_block = block;
            self.shape.first_offset = offset;
        }
        self.shape.end_block = block;
        self.shape.end_offset = offset;
    }

    /// Walks what stands at `position`; returns the position behind it, none at the end.
    fn step(
        &mut self,
        file: &SegmentFile,
        reader: &mut Reader<'_>,
        position: u64,
    ) -> io::Result<Option<u64>> {
        let (position, header) = match self.find(file, reader, position)? {
            Found::End => return Ok(None),
            Found::Block(header) => (position, header),
            Found::Later(at, header) => {
                let text = format!("no sound block here, and block {} behind it", header.block);
                let lost = header.base_offset.0.saturating_sub(self.shape.end_offset.0);
                self.damage(file, position, &text, lost);
                self.shape.end_block = header.block;
                self.shape.end_offset = header.base_offset;
                self.previous = None;
                (at, header)
            }
        };
        self.judge(file, position, &header);
        let bytes = reader.view(position, header.padded_len() as u64)?;
        if bytes.len() < header.padded_len() {
            let lost = u64::from(header.record_count);
            self.damage(
                file,
                position,
                "the block runs past the end of the file",
                lost,
            );
            return Ok(None);
        }
        self.visitor.block(&file.path, position, &header, bytes);
        self.shape.blocks += 1;
        self.shape.end_block = header.block.next();
        self.shape.end_offset = header.end_offset;
        self.shape.committed_end = self.shape.committed_end.max(header.committed_end);
        self.previous = Some(header.header_crc);
        self.epoch = header.epoch;
        Ok(Some(position + header.padded_len() as u64))
    }

    /// Holds a sound header against its place in the log.
    fn judge(&mut self, file: &SegmentFile, position: u64, header: &BlockHeader) {
        if self
            .previous
            .is_some_and(|crc| crc != header.prev_header_crc)
        {
            self.damage(file, position, "the block does not continue the chain", 0);
        }
        if header.base_offset != self.shape.end_offset {
            let text = format!(
                "the block begins at offset {}, the log goes on at {}",
                header.base_offset, self.shape.end_offset
            );
            self.damage(file, position, &text, 0);
        }
        if header.first_in_segment != (position == SEGMENT_HEADER as u64) {
            let text = "the block's mark of a segment's first block does not fit its position";
            self.damage(file, position, text, 0);
        }
        if header.epoch < self.epoch {
            self.damage(
                file,
                position,
                "the block's epoch is below the one before it",
                0,
            );
        }
    }

    fn find(
        &mut self,
        file: &SegmentFile,
        reader: &mut Reader<'_>,
        position: u64,
    ) -> io::Result<Found> {
        let expected = self.shape.end_block;
        let head = reader.view(position, STEP)?;
        if let Some(header) = self.sound(head)
            && header.block == expected
        {
            return Ok(Found::Block(header));
        }
        let similar = self.similar(head);
        let limit = reader.len().min(position + WRITE_WINDOW + STEP);
        let mut at = position;
        while at < limit {
            if let Some(header) = self.sound(reader.view(at, STEP)?)
                && header.block > expected
            {
                return Ok(Found::Later(at, header));
            }
            at += STEP;
        }
        if similar {
            let text = "the header of the block that should stand here is damaged";
            self.damage(file, position, text, u64::MAX - self.shape.end_offset.0);
        }
        Ok(Found::End)
    }

    fn sound(&self, head: &[u8]) -> Option<BlockHeader> {
        let header = block::read_header(head).ok()?;
        (header.log == self.log).then_some(header)
    }

    /// Whether bytes that are no sound header were the next block's header once: two of its magic,
    /// its number, its log and its chain are still there.
    fn similar(&self, head: &[u8]) -> bool {
        if head.len() < BLOCK_HEADER {
            return false;
        }
        let expected = BlockHeader {
            log: self.log,
            block: self.shape.end_block,
            prev_header_crc: self.previous.unwrap_or(0),
            epoch: Epoch(1),
            used_len: (BLOCK_HEADER + BATCH_HEADER) as u32,
            batch_count: 1,
            ..BlockHeader::default()
        };
        let mut model = [0; BLOCK_HEADER];
        block::write_header(&mut model, &expected);
        // Magic, chain, number, origin and shard, as `wire/block.rs` lays them out.
        let fields = [0..4, 16..20, 36..44, 68..74];
        let equal = fields.into_iter().filter(|field| {
            let there = &head[field.clone()];
            there == &model[field.clone()] && there.iter().any(|byte| *byte != 0)
        });
        equal.count() >= 2
    }

    fn damage(&mut self, file: &SegmentFile, position: u64, text: &str, lost_records: u64) {
        let from = self.shape.end_offset.0;
        self.visitor.damage(Damage {
            file: file.path.clone(),
            position,
            block: self.shape.end_block,
            lost: from..from + lost_records,
            text: text.to_owned(),
        });
    }
}
