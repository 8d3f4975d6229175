//! Which files are the log's, in which order, and where the scan begins: decided from the
//! checkpoint and the files' header blocks alone.
//!
//! Pure. It refuses what cannot be: a file of another log, a file under another name, a missing or
//! unreadable file whose blocks are known to have existed. Read `scan.rs` next, which walks what
//! was arranged here.

use super::config::Config;
use super::index::Index;
use super::op::{FileEntry, FileName};
use super::open::buffer_len;
use super::output::{RecoveredMemory, Refusal};
use super::producers::Producers;
use super::recovery::{Past, Ready, Skipped};
use crate::types::{BlockNo, Epoch, FileId};
use crate::wire::block::BlockHeader;
use crate::wire::checkpoint::{Checkpoint, LogStart, Memory};
use crate::wire::segment::{SegmentHeader, file_name};
use std::collections::VecDeque;

/// What mends damage. A member that gave up its log counts for no majority until the others have
/// brought it up, so one more failure meanwhile may take what only the two of them held.
pub const DAMAGE_MEND: &str = "restore the file from a copy; or, while every other member of the \
    log is up and sound, move the log's directory away and restart the node, which is then brought \
    up by the others (if another member has failed too, acknowledged records would be lost by it); \
    or stop the node and see what `millrace salvage --config FILE --log ORIGIN-SHARD` can keep";

/// A file of the log's directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) entry: FileEntry,
    pub(super) file: FileId,
    pub(super) header: Option<SegmentHeader>,
    /// The header of its first block, if there is a sound one.
    pub(super) first: Option<BlockHeader>,
    /// Its own header is damaged, and made of what else is known.
    pub(super) is_rebuilt: bool,
}

impl Found {
    pub(super) fn new(entry: FileEntry) -> Found {
        Found {
            entry,
            file: FileId(0),
            header: None,
            first: None,
            is_rebuilt: false,
        }
    }

    pub(super) fn name(&self) -> String {
        match self.entry.name {
            FileName::Checkpoint => "checkpoint".to_owned(),
            FileName::Next => "next.seg".to_owned(),
            FileName::Segment(base) => file_name(base),
        }
    }

    fn refuse(&self, block: BlockNo, position: u64, rule: String) -> Refusal {
        Refusal {
            file: self.name(),
            position,
            block,
            rule,
            mend: DAMAGE_MEND,
        }
    }
}

/// What is to be scanned.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) past: Past,
    pub(super) checkpoint: Checkpoint,
    /// Segments with sound headers, ascending; the last one may be `next.seg`.
    pub(super) chain: Vec<(Found, SegmentHeader)>,
    /// The first one that is verified block by block.
    pub(super) scan_at: usize,
    /// Blocks below it are known to have existed.
    pub(super) known_end: BlockNo,
    /// A last file whose header is not sound: nothing in it may be a block.
    pub(super) suspect: Option<Found>,
    /// Files below the log start, and a `next.seg` that is none of the chain.
    pub(super) frees: Vec<FileId>,
    pub(super) index: Index,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum Plan {
    /// A blank log.
    Ready(Box<Ready>),
    Scan(Box<Layout>),
}

/// Arranges the files, which are sorted by name with `next.seg` at the end.
pub(super) fn arrange(config: &Config, past: Past, found: Vec<Found>) -> Result<Plan, Refusal> {
    let (next, named): (Vec<Found>, Vec<Found>) = found
        .into_iter()
        .partition(|one| one.entry.name == FileName::Next);
    if past.memory == RecoveredMemory::Blank {
        return Ok(Plan::Ready(Box::new(blank(config, &next))));
    }
    let known_end = known_end(config, &past);
    let start = past.checkpoint.as_ref().map(|known| known.log_start);
    let (mut chain, suspect) = sound_segments(config, &named, (known_end, start))?;
    let checkpoint = checkpoint_for(config, &past, &chain);
    let start = checkpoint.log_start;
    let mut frees = trimmed(&mut chain, start.block);
    // A damaged end that was given up, its file with it, is missed and not missing.
    let given_up = config.repairs && past.memory == RecoveredMemory::Lost && chain.is_empty();
    let files_end = match &past.checkpoint {
        Some(known) if given_up => known.scan_from.max(known.high_watermark),
        _ => known_end,
    };
    check_first(&chain, &start, files_end)?;
    for next in next {
        let continues = suspect.is_none()
            && next.header.is_some_and(|header| {
                header.log == config.log
                    && chain
                        .last()
                        .map_or(start.block, |last| last.1.base_block.next())
                        <= header.base_block
            });
        match next.header.filter(|_| continues) {
            Some(header) => chain.push((next, header)),
            None => frees.push(next.file),
        }
    }
    let scan_from = if past.unsafe_loss {
        start.block
    } else {
        checkpoint.scan_from
    };
    let named = chain
        .iter()
        .filter(|(one, _)| one.entry.name != FileName::Next);
    let below = named.filter(|(_, header)| header.base_block < scan_from);
    let scan_at = below.count().saturating_sub(1);
    Ok(Plan::Scan(Box::new(Layout {
        index: Index::new(start),
        past,
        checkpoint,
        chain,
        scan_at,
        known_end,
        suspect,
        frees,
    })))
}

/// A log of which nothing is there yet; what was prepared for it goes back.
fn blank(config: &Config, next: &[Found]) -> Ready {
    Ready {
        checkpoint: Checkpoint::default(),
        first_copy: 0,
        memory: RecoveredMemory::Blank,
        index: Index::default(),
        producers: Producers::new(buffer_len(config)),
        segments: VecDeque::new(),
        torn: None,
        marks: Vec::new(),
        frees: next.iter().map(|one| one.file).collect(),
        sweep: None,
        name: None,
        syncs: Vec::new(),
        skipped: Skipped::default(),
    }
}

/// One past the last block that is known to have existed.
fn known_end(config: &Config, past: &Past) -> BlockNo {
    let known = past.checkpoint.as_ref().filter(|_| !past.unsafe_loss);
    known.map_or(BlockNo(0), |known| {
        let faulty = known.faulty.iter().map(|(_, end)| *end);
        let faulty = faulty.max().filter(|_| config.repairs);
        let end = known.scan_from.max(known.high_watermark);
        end.max(faulty.unwrap_or_default())
    })
}

type Chain = Vec<(Found, SegmentHeader)>;

fn sound_segments(
    config: &Config,
    named: &[Found],
    (known_end, start): (BlockNo, Option<LogStart>),
) -> Result<(Chain, Option<Found>), Refusal> {
    let mut chain = Vec::with_capacity(named.len());
    for (at, one) in named.iter().enumerate() {
        let FileName::Segment(base) = one.entry.name else {
            unreachable!("only segments are named");
        };
        let sound = one
            .header
            .filter(|header| header.log == config.log && header.base_block == base);
        let existed = base < known_end || one.first.is_some_and(|first| first.block == base);
        if config.repairs && sound.is_none() && existed {
            let rebuilt = rebuilt(config, one, base, start);
            let rule = "the segment's header and its first block are damaged";
            let header = rebuilt.ok_or_else(|| one.refuse(base, 0, rule.to_owned()))?;
            let one = Found {
                is_rebuilt: true,
                ..*one
            };
            chain.push((one, header));
            continue;
        }
        let Some(header) = one.header else {
            let is_last = at + 1 == named.len();
            if is_last && base >= known_end {
                return Ok((chain, Some(*one)));
            }
            let rule = "the segment's header is damaged and its blocks existed";
            return Err(one.refuse(base, 0, rule.to_owned()));
        };
        if header.log != config.log {
            let rule = format!("a segment of log {}, not {}", header.log, config.log);
            return Err(one.refuse(base, 0, rule));
        }
        if header.base_block != base {
            let rule = format!("its header says first block {}", header.base_block);
            return Err(one.refuse(base, 0, rule));
        }
        chain.push((*one, header));
    }
    Ok((chain, None))
}

/// The header of a segment that lost its own: from the log's start, or from its first block; the
/// epoch before that is known once the segment before was walked.
fn rebuilt(
    config: &Config,
    one: &Found,
    base: BlockNo,
    start: Option<LogStart>,
) -> Option<SegmentHeader> {
    let header = |offset, prev_epoch, prev_crc| SegmentHeader {
        log: config.log,
        base_block: base,
        base_offset: offset,
        prev_epoch,
        prev_crc,
    };
    if let Some(start) = start.filter(|start| start.block == base) {
        return Some(header(start.offset, start.prev_epoch, start.prev_crc));
    }
    let first = one.first.filter(|first| first.block == base)?;
    let none_before = base == BlockNo(0);
    let epoch = if none_before { Epoch(0) } else { first.epoch };
    Some(header(first.base_offset, epoch, first.prev_header_crc))
}

/// The checkpoint to go on with: the one that was read, or one made from the segments.
fn checkpoint_for(config: &Config, past: &Past, chain: &Chain) -> Checkpoint {
    let mut checkpoint = past.checkpoint.clone().unwrap_or_else(|| {
        let start = chain
            .first()
            .map_or(LogStart::default(), |(_, first)| LogStart {
                block: first.base_block,
                offset: first.base_offset,
                prev_epoch: first.prev_epoch,
                prev_crc: first.prev_crc,
            });
        Checkpoint {
            log: config.log,
            members: config.members.clone(),
            log_start: start,
            scan_from: start.block,
            ..Checkpoint::default()
        }
    });
    if past.memory == RecoveredMemory::Lost {
        checkpoint.memory = Memory::Lost;
    }
    checkpoint
}

/// Takes the segments that a trim left behind out of the chain: a log always begins with a segment.
fn trimmed(chain: &mut Chain, start: BlockNo) -> Vec<FileId> {
    let below = chain.partition_point(|(_, header)| header.base_block < start);
    let gone = chain.drain(..below);
    gone.map(|(one, _)| one.file).collect()
}

fn check_first(chain: &Chain, start: &LogStart, known_end: BlockNo) -> Result<(), Refusal> {
    let refuse = |rule: &str| Refusal {
        file: file_name(start.block),
        position: 0,
        block: start.block,
        rule: rule.to_owned(),
        mend: DAMAGE_MEND,
    };
    let Some((_, first)) = chain.first() else {
        if known_end > start.block {
            return Err(refuse("the log's first segment file is missing"));
        }
        return Ok(());
    };
    if first.base_block != start.block {
        return Err(refuse("the log's first segment file is missing"));
    }
    if first.prev_crc != start.prev_crc || first.base_offset != start.offset {
        return Err(refuse(
            "the segment does not begin where the checkpoint says",
        ));
    }
    Ok(())
}
