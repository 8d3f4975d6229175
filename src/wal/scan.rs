//! Walks the arranged segments to the end of the log, and looks behind it.
//!
//! First the trusted segments: where each begins and, if it holds a change of epoch, where. Then
//! block by block with every check there is. Where the chain ends it goes on in the next segment if
//! that one continues it, else it searches everything behind and lets the table in `recovery.rs`
//! judge. It reads and never writes.

use super::arrange::{DAMAGE_MEND, Found, Layout};
use super::config::Config;
use super::cut::Sweep;
use super::index::{Spot, Tail};
use super::op::FileName;
use super::open::buffer_len;
use super::output::{Refusal, Torn};
use super::producers::Producers;
use super::reader::Reader;
use super::recovery::{Head, Later, Ready, Sight, Skipped, Verdict, judge, refuse_version};
use super::search::{Place, Search, sound_header};
use super::segments::Segment;
use crate::buffers::Buffers;
use crate::limits::{DISK_ALIGNMENT, SEGMENT_HEADER, WRITE_WINDOW};
use crate::types::{BlockNo, FileId, Tick};
use crate::wire::block::{self, BlockHeader};
use crate::wire::segment::SegmentHeader;

/// A place in the chain: which segment, which position.
pub(super) type At = (usize, u64);

/// What stands where a block should be.
#[derive(Clone, Copy, Debug)]
enum Look {
    Wait,
    Good(BlockHeader),
    Bad { head: Head, chains: bool },
}

#[derive(Debug)]
pub(super) enum Phase {
    /// A trusted segment, and how far its headers were walked.
    Trust(usize, Option<(u64, Tail)>),
    Walk(At),
    Search(Box<Search>),
    /// What lies in a trusted segment behind the place where a block should be and nothing is.
    Gap(At, Tail, Box<Search>),
}

/// The scan of one log.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) config: Config,
    pub(super) layout: Layout,
    pub(super) producers: Producers,
    pub(super) phase: Phase,
    /// Where the block that is not good should be, and what is there.
    pub(super) bad: Vec<(At, Head)>,
    chains: bool,
    /// Position behind the last good block, and how many segments hold good or trusted blocks.
    end: u64,
    pub(super) kept: usize,
    pub(super) skipped: Skipped,
}

impl Scan {
    pub(super) fn new(config: &Config, layout: Layout) -> Scan {
        Scan {
            config: config.clone(),
            producers: Producers::new(buffer_len(config)),
            kept: layout.scan_at,
            layout,
            phase: Phase::Trust(0, None),
            bad: Vec::new(),
            chains: false,
            end: 0,
            skipped: Skipped::default(),
        }
    }

    /// Goes on as far as the reader has bytes. `Some` at the end.
    pub(super) fn run(
        &mut self,
        reader: &mut Reader,
        buffers: &dyn Buffers,
    ) -> Result<Option<Box<Ready>>, Refusal> {
        loop {
            let goes_on = match &mut self.phase {
                Phase::Trust(at, walked) => {
                    let (at, walked) = (*at, *walked);
                    self.trust(at, walked, reader, buffers)?
                }
                Phase::Walk(at) => {
                    let at = *at;
                    self.walk(at, reader, buffers)?
                }
                Phase::Search(search) => {
                    let over = search.run(reader, buffers);
                    if over && let Some(ready) = self.decide()? {
                        return Ok(Some(ready));
                    }
                    over
                }
                Phase::Gap(at, tail, search) => {
                    let over = search.run(reader, buffers);
                    if over {
                        let what = (*tail, search.found_nothing());
                        let (at, marks) = (*at, core::mem::take(&mut search.marks));
                        self.skip_trusted(at, what, &marks)?;
                    }
                    over
                }
            };
            if !goes_on {
                return Ok(None);
            }
        }
    }

    fn trust(
        &mut self,
        at: usize,
        walked: Option<(u64, Tail)>,
        reader: &mut Reader,
        buffers: &dyn Buffers,
    ) -> Result<bool, Refusal> {
        if at == self.layout.scan_at {
            if let Some((_, header)) = self.layout.chain.get(at).filter(|_| at > 0) {
                self.layout.index.skip_to(Tail::before(header));
            }
            self.phase = Phase::Walk((at, SEGMENT_HEADER as u64));
            return Ok(true);
        }
        let (found, segment) = self.layout.chain[at];
        let next = self.layout.chain[at + 1].1;
        let (position, tail) = walked.unwrap_or((SEGMENT_HEADER as u64, Tail::before(&segment)));
        if tail.next == next.base_block {
            self.complete_header(at + 1, &tail)?;
            self.phase = Phase::Trust(at + 1, None);
            return Ok(true);
        }
        let header = if tail.next == segment.base_block {
            found.first
        } else if position + DISK_ALIGNMENT as u64 > found.entry.len {
            None
        } else if reader.covers(found.file, position, DISK_ALIGNMENT, found.entry.len) {
            sound_header(reader.bytes(position, buffers), self.config.log)
        } else {
            return Ok(false);
        };
        let header = header.filter(|header| tail.continued_by(header));
        let end = |header: &BlockHeader| position + header.padded_len() as u64;
        let Some(header) = header.filter(|header| end(header) <= found.entry.len) else {
            let place = Place {
                file: found.file,
                len: found.entry.len,
            };
            let places = [place].into_iter().collect();
            let search = Search::new(self.config.log, tail.next, places, position);
            self.phase = Phase::Gap((at, position), tail, Box::new(search));
            return Ok(true);
        };
        self.note_trusted(&header, segment.base_block, position);
        let known = !self.layout.chain[at + 1].0.is_rebuilt;
        self.phase = if header.epoch == next.prev_epoch && known && !self.lacks_blocks(at) {
            Phase::Trust(at + 1, None)
        } else {
            Phase::Trust(at, Some((end(&header), Tail::behind(&header))))
        };
        Ok(true)
    }

    /// Whether a trusted file looks as if it did not hold all blocks up to the next one, so that
    /// its headers are walked to the last one. It is shorter than a file beside it: files are set
    /// aside at one length, so something may have cut it off; where `log.segment_bytes` was raised
    /// the last one before looks so too. Or it cannot hold as many, or would hold many more than
    /// the files beside it (where none is, who knows): a file behind it may be missing.
    fn lacks_blocks(&self, at: usize) -> bool {
        let chain = &self.layout.chain;
        let len = chain[at].0.entry.len;
        let blocks = |at: usize| Some(chain.get(at + 1)?.1.base_block.0 - chain[at].1.base_block.0);
        let own = blocks(at).expect("another one follows");
        let least = (own + 1).saturating_mul(DISK_ALIGNMENT as u64);
        let before = at.checked_sub(1).and_then(blocks);
        let usual = before.max(blocks(at + 1)).unwrap_or_default();
        let many = own.saturating_mul(2) >= usual.saturating_mul(3);
        len < least || many || self.is_short(at)
    }

    /// Whether a file beside this one is longer.
    fn is_short(&self, at: usize) -> bool {
        let chain = &self.layout.chain;
        let mut beside = chain[at.saturating_sub(1)..=at + 1].iter();
        beside.any(|(one, _)| one.entry.len > chain[at].0.entry.len)
    }

    /// A trusted segment has no sound block where `tail.next` should be. If something lies behind
    /// it, or not even the file is whole, it is damaged; else the file that begins with it is gone.
    pub(super) fn gap(&self, (at, position): At, (block, is_last): (BlockNo, bool)) -> Refusal {
        let found = &self.layout.chain[at].0;
        let next = self.layout.chain[at + 1].1.base_block;
        let len = found.entry.len;
        if self.is_short(at) && position + DISK_ALIGNMENT as u64 > len {
            let rule = format!(
                "the file has {len} bytes and ends before blocks that existed, up to block {}",
                next.0 - 1
            );
            return refuse(found, position, block, &rule);
        }
        if is_last && position > SEGMENT_HEADER as u64 {
            return missing(found, position, block, next);
        }
        let rule = "a block below scan_from is damaged or missing";
        refuse(found, position, block, rule)
    }

    fn note_trusted(&mut self, header: &BlockHeader, segment: BlockNo, position: u64) {
        let index = &mut self.layout.index;
        index.note_epoch(header);
        index.note_spot(Spot {
            block: header.block,
            segment,
            position,
            base_offset: header.base_offset,
        });
    }

    fn walk(
        &mut self,
        (at, position): At,
        reader: &mut Reader,
        buffers: &dyn Buffers,
    ) -> Result<bool, Refusal> {
        let Some((found, segment)) = self.layout.chain.get(at).copied() else {
            self.search(0, SEGMENT_HEADER as u64);
            return Ok(true);
        };
        match self.look(&found, position, reader, buffers)? {
            Look::Wait => return Ok(false),
            Look::Good(header) => {
                self.layout
                    .index
                    .push(&header, segment.base_block, position);
                self.producers
                    .take_in(reader.bytes(position, buffers), &header);
                self.end = position + header.padded_len() as u64;
                self.kept = at + 1;
                self.bad.clear();
                self.phase = Phase::Walk((at, self.end));
            }
            Look::Bad { head, chains } => {
                self.bad.push(((at, position), head));
                self.chains = chains;
                let tail = self.layout.index.tail;
                let next = self.layout.chain.get(at + 1);
                if next.is_some_and(|(found, next)| continues(found, next, &tail)) {
                    self.complete_header(at + 1, &tail)?;
                    self.phase = Phase::Walk((at + 1, SEGMENT_HEADER as u64));
                } else {
                    let (at, position) = self.bad[0].0;
                    self.search(at, position);
                }
            }
        }
        Ok(true)
    }

    fn look(
        &self,
        found: &Found,
        position: u64,
        reader: &mut Reader,
        buffers: &dyn Buffers,
    ) -> Result<Look, Refusal> {
        let bad = |head, chains| Ok(Look::Bad { head, chains });
        let len = found.entry.len;
        if position + DISK_ALIGNMENT as u64 > len {
            return bad(Head::Zero, false);
        }
        if !reader.covers(found.file, position, DISK_ALIGNMENT, len) {
            return Ok(Look::Wait);
        }
        let bytes = &reader.bytes(position, buffers)[..DISK_ALIGNMENT];
        let tail = &self.layout.index.tail;
        refuse_version(bytes, b"MRBK", &found.name(), position, tail.next)?;
        let Some(header) = sound_header(bytes, self.config.log) else {
            let zero = bytes.iter().all(|byte| *byte == 0);
            return bad(if zero { Head::Zero } else { Head::Unsound }, false);
        };
        let padded = header.padded_len();
        if !tail.continued_by(&header) || position + padded as u64 > len {
            return bad(Head::Sound, false);
        }
        if !reader.covers(found.file, position, padded, len) {
            return Ok(Look::Wait);
        }
        let bytes = reader.bytes(position, buffers);
        let checks = block::check_batches(bytes, &header);
        if checks
            .and_then(|()| block::check_padding(bytes, &header))
            .is_err()
        {
            return bad(Head::Sound, true);
        }
        Ok(Look::Good(header))
    }

    /// Searches from a place on through everything that may hold blocks of the log: a `next.seg`
    /// that holds no good block never had one that counted.
    fn search(&mut self, at: usize, position: u64) {
        let chain = self.layout.chain.iter().enumerate().skip(at);
        let searched = chain
            .filter(|(index, (one, _))| *index < self.kept || one.entry.name != FileName::Next)
            .map(|(_, (one, _))| one);
        let places = searched.chain(&self.layout.suspect).map(|one| Place {
            file: one.file,
            len: one.entry.len,
        });
        let from = self.layout.index.tail.next;
        let search = Search::new(self.config.log, from, places.collect(), position);
        self.phase = Phase::Search(Box::new(search));
    }

    fn sight(&self, search: &Search) -> Sight {
        let from = self.layout.index.tail.next;
        let unsafe_loss = self.layout.past.unsafe_loss;
        let later = search.marks.iter().filter(|mark| mark.header.block > from);
        let beyond = |distance: u64| distance > WRITE_WINDOW && !unsafe_loss;
        let later = match later.map(|mark| mark.distance).max() {
            None => Later::None,
            Some(distance) if beyond(distance) => Later::Beyond,
            Some(_) => Later::Within,
        };
        let alone = self.config.members.len() == 1 && !unsafe_loss;
        let mut committed = search.marks.iter().map(|mark| mark.header.committed_end);
        let heads = [Head::Sound, Head::Unsound];
        let head = heads
            .into_iter()
            .find(|head| self.bad.iter().any(|(_, found)| found == head));
        Sight {
            head: head.unwrap_or(Head::Zero),
            // The block is not good: if it chains, its batches are what is wrong.
            batches: !self.chains,
            chains: self.chains,
            later,
            existed: from < self.layout.known_end || alone && committed.any(|end| end > from),
        }
    }

    /// What stands where the chain ends. None: it was damage, and the scan goes on behind it.
    fn decide(&mut self) -> Result<Option<Box<Ready>>, Refusal> {
        let Phase::Search(search) = core::mem::replace(&mut self.phase, Phase::Trust(0, None))
        else {
            unreachable!("only a search decides");
        };
        let sight = self.sight(&search);
        let from = self.layout.index.tail.next;
        let file = self.layout.suspect.map(|suspect| suspect.file);
        if let Some(mark) = search.marks.iter().find(|mark| Some(mark.file) == file) {
            let suspect = self.layout.suspect.expect("a mark is in it");
            let rule = "the segment's header is damaged and blocks lie behind it";
            return Err(refuse(&suspect, 0, mark.header.block, rule));
        }
        let mut marks: Vec<(FileId, u64)> = self.remnants();
        match judge(&sight) {
            Verdict::Good => unreachable!("a good block goes on with the walk"),
            Verdict::Faulty if self.config.repairs => return self.skip(&sight, &search),
            Verdict::Faulty => return Err(self.faulty(&sight, &search)),
            Verdict::End => {}
            Verdict::Torn => {
                let found = search.marks.iter();
                marks.extend(found.map(|mark| (mark.file, mark.position)));
                marks.sort_by_key(|mark| (self.order(mark.0), mark.1));
                marks.dedup();
            }
        }
        let torn = (!marks.is_empty()).then_some(Torn {
            from,
            blocks: marks.len() as u64,
        });
        Ok(Some(self.ready(marks, torn, &search)))
    }

    fn order(&self, file: FileId) -> usize {
        let mut files = self.layout.chain.iter().map(|(one, _)| one.file);
        files.position(|one| one == file).unwrap_or(usize::MAX)
    }

    /// Where something stands that is not zero and not the block; in a `next.seg` that goes it may
    /// stay.
    fn remnants(&self) -> Vec<(FileId, u64)> {
        let bad = self.bad.iter().filter(|((at, _), head)| {
            let name = self.layout.chain[*at].0.entry.name;
            *head != Head::Zero && (*at < self.kept || name != FileName::Next)
        });
        let places = bad.map(|((at, position), _)| (self.layout.chain[*at].0.file, *position));
        places.collect()
    }

    pub(super) fn faulty(&self, sight: &Sight, search: &Search) -> Refusal {
        let from = self.layout.index.tail.next;
        if let [((at, position), _)] = self.bad[..]
            && position > SEGMENT_HEADER as u64
            && let Some((_, next)) = self.layout.chain.get(at + 1)
        {
            let found = &self.layout.chain[at].0;
            let mut marks = search.marks.iter();
            let is_dirty = search.dirty != Some((found.file, position));
            if !is_dirty && marks.all(|mark| mark.file != found.file) {
                return missing(found, position, from, next.base_block);
            }
        }
        let rule = if sight.existed {
            "a block that existed is damaged or missing"
        } else {
            "a block is damaged and blocks far behind it are sound"
        };
        match self.bad.last() {
            Some(((at, position), _)) => refuse(&self.layout.chain[*at].0, *position, from, rule),
            None => Refusal {
                file: crate::wire::segment::file_name(from),
                position: 0,
                block: from,
                rule: rule.to_owned(),
                mend: DAMAGE_MEND,
            },
        }
    }

    pub(super) fn ready(
        &mut self,
        marks: Vec<(FileId, u64)>,
        torn: Option<Torn>,
        search: &Search,
    ) -> Box<Ready> {
        let layout = &mut self.layout;
        let (kept, gone) = layout.chain.split_at(self.kept);
        let mut frees = core::mem::take(&mut layout.frees);
        frees.extend(gone.iter().map(|(one, _)| one.file));
        frees.extend(layout.suspect.map(|suspect| suspect.file));
        // What is damaged stays until the right bytes come.
        let is_damaged = self.skipped.missing.is_some();
        let sweep = Sweep::behind(self.end, search, &frees).filter(|_| !is_damaged);
        let rebuilt = kept.iter().filter(|(one, _)| one.is_rebuilt);
        let headers = rebuilt.map(|(one, header)| (one.file, *header));
        self.skipped.headers = headers.collect();
        self.skipped.copy = layout.past.rotten_copy;
        let scanned = kept.get(layout.scan_at..).unwrap_or_default();
        let name = kept
            .iter()
            .find(|(one, _)| one.entry.name == FileName::Next)
            .map(|(one, header)| (one.file, header.base_block));
        let mut segments: std::collections::VecDeque<Segment> = kept
            .iter()
            .map(|(one, header)| Segment {
                header: *header,
                file: Some(one.file),
                end: one.entry.len,
                len: one.entry.len,
                named: true,
                first_tick: one.first.map_or(Tick(0), |first| first.last_tick),
                begun: None,
                rolled: false,
            })
            .collect();
        if let Some(last) = segments.back_mut() {
            last.end = self.end;
        }
        Box::new(Ready {
            checkpoint: core::mem::take(&mut layout.checkpoint),
            first_copy: layout.past.first_copy,
            memory: layout.past.memory,
            index: core::mem::take(&mut layout.index),
            producers: self.producers.clone(),
            segments,
            torn,
            marks,
            frees,
            sweep,
            name,
            syncs: scanned.iter().map(|(one, _)| one.file).collect(),
            skipped: core::mem::take(&mut self.skipped),
        })
    }
}

/// Whether a segment begins behind `tail`, by all that its header says: a later start trusts it. Of
/// a rebuilt one the epoch before is not known yet.
fn continues(found: &Found, segment: &SegmentHeader, tail: &Tail) -> bool {
    let before = Tail::before(segment);
    let epoch = found.is_rebuilt || before.epoch == tail.epoch;
    epoch
        && before.next == tail.next
        && before.crc == tail.crc
        && before.end_offset == tail.end_offset
}

/// The file that begins with `block` is gone: `found` is whole and ends before it.
pub(super) fn missing(found: &Found, position: u64, block: BlockNo, next: BlockNo) -> Refusal {
    let rule = format!(
        "the file is missing: {} ends before this block, at {position}, and the next file begins \
         with block {next}",
        found.name()
    );
    Refusal {
        file: crate::wire::segment::file_name(block),
        position: 0,
        block,
        rule,
        mend: DAMAGE_MEND,
    }
}

pub(super) fn refuse(found: &Found, position: u64, block: BlockNo, rule: &str) -> Refusal {
    Refusal {
        file: found.name(),
        position,
        block,
        rule: rule.to_owned(),
        mend: DAMAGE_MEND,
    }
}
