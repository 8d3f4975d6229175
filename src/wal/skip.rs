//! Recovery of a log that other nodes hold too passes damage by instead of refusing the log.
//!
//! Damage in a segment behind which another one comes is a hole: the header of that one knows the
//! CRC of the last block before it, so what is sound behind the damage is told from what only looks
//! like a block, and the scan goes on. In the last segment nothing proves what lies behind damage:
//! the log ends before it and its memory is lost, so this node neither votes, leads nor
//! acknowledges
//! before a leader has brought it to where that one is. Nothing is erased: what comes overwrites
//! it.
//! A segment's header that is damaged is made from its first block and the block before that. A
//! file that is missing or was cut off is refused as ever. Read `scan.rs` first.

use super::index::Tail;
use super::inspect::first_anchored;
use super::open::buffer_len;
use super::output::{Damage, RecoveredMemory, Refusal};
use super::producers::Producers;
use super::recovery::{Ready, Sight};
use super::scan::{At, Phase, Scan, refuse};
use super::search::{Mark, Search};
use crate::limits::{DISK_ALIGNMENT, SEGMENT_HEADER};
use crate::types::BlockNo;
use crate::wire::checkpoint::Memory;

impl Scan {
    /// A trusted segment has no sound block where `tail.next` should be; `marks` lie behind.
    pub(super) fn skip_trusted(
        &mut self,
        (at, position): At,
        (tail, is_blank): (Tail, bool),
        marks: &[Mark],
    ) -> Result<(), Refusal> {
        let (found, _) = self.layout.chain[at];
        let (behind, next) = self.layout.chain[at + 1];
        let (from, begins) = (tail.next, (tail.next, tail.end_offset));
        let cut_off = position + DISK_ALIGNMENT as u64 > found.entry.len;
        let lost = is_blank && !self.has_room((at, position), from, next.base_block);
        if !self.config.repairs || cut_off || lost {
            return Err(self.gap((at, position), (from, is_blank)));
        }
        let end = (next.base_block, next.prev_crc);
        let mark = first_anchored(marks, (from, position), end);
        let first = mark.map_or(next.base_block, |mark| mark.header.block);
        self.note((at, position), from, first);
        self.phase = match mark {
            Some(mark) => {
                let behind = mark.header.epoch;
                self.layout.index.note_blind(begins, first, behind);
                let tail = Tail {
                    next: first,
                    end_offset: mark.header.base_offset,
                    crc: mark.header.prev_header_crc,
                    ..tail
                };
                Phase::Trust(at, Some((mark.position, tail)))
            }
            None if behind.is_rebuilt && next.prev_epoch != tail.epoch => {
                let rule = "its header is damaged and so are the blocks before it";
                return Err(refuse(&behind, 0, next.base_block, rule));
            }
            None => {
                let behind = next.prev_epoch;
                self.layout.index.note_blind(begins, first, behind);
                Phase::Trust(at + 1, None)
            }
        };
        Ok(())
    }

    /// A block that is verified is damaged.
    pub(super) fn skip(
        &mut self,
        sight: &Sight,
        search: &Search,
    ) -> Result<Option<Box<Ready>>, Refusal> {
        let from = self.layout.index.tail.next;
        let Some(((at, position), _)) = self.bad.last().copied() else {
            if self.layout.past.memory != RecoveredMemory::Lost {
                return Err(self.faulty(sight, search));
            }
            // Given up at an earlier start; nothing came back yet.
            self.skipped.missing = Some((from, self.layout.known_end));
            return Ok(Some(self.ready(Vec::new(), None, search)));
        };
        let behind = self.layout.chain.get(at + 1).copied();
        let (found, _) = self.layout.chain[at];
        let cut_off = position + DISK_ALIGNMENT as u64 > found.entry.len;
        let later =
            behind.filter(|(_, next)| next.base_block > from && next.log == self.config.log);
        if let Some((next_found, next)) = later {
            let is_blank = search
                .dirty
                .is_none_or(|(file, end)| file != found.file || end <= position)
                && search.marks.iter().all(|mark| mark.file != found.file);
            let lost = is_blank && !self.has_room((at, position), from, next.base_block);
            let before = self.layout.index.tail;
            let unknown = next_found.is_rebuilt && next.prev_epoch != before.epoch;
            if cut_off || lost || unknown {
                return Err(self.faulty(sight, search));
            }
            self.note((at, position), from, next.base_block);
            let tail = Tail::before(&next);
            self.layout.index.skip_damage(from, tail);
            // The next segment begins with a snapshot of the producers, if there are any.
            self.producers = Producers::new(buffer_len(&self.config));
            self.kept = at + 1;
            self.bad.clear();
            self.phase = Phase::Walk((at + 1, SEGMENT_HEADER as u64));
            return Ok(None);
        }
        let last = search
            .marks
            .iter()
            .map(|mark| mark.header.block.next())
            .max();
        let end = self.layout.known_end.max(last.unwrap_or_default());
        self.skipped.missing = Some((from, end.max(from.next())));
        self.skipped.damage.push(Damage {
            file: found.name(),
            position,
            from,
            end: end.max(from.next()),
        });
        self.layout.past.memory = RecoveredMemory::Lost;
        self.layout.checkpoint.memory = Memory::Lost;
        Ok(Some(self.ready(Vec::new(), None, search)))
    }

    /// Whether the blocks of a range may all lie behind a place of a segment: if not, the file that
    /// held them is gone.
    fn has_room(&self, (at, position): At, from: BlockNo, end: BlockNo) -> bool {
        let len = self.layout.chain[at].0.entry.len;
        let least = (end.0 - from.0).saturating_mul(DISK_ALIGNMENT as u64);
        position.saturating_add(least) <= len
    }

    fn note(&mut self, (at, position): At, from: BlockNo, end: BlockNo) {
        self.skipped.faulty.push((from, end));
        self.skipped.damage.push(Damage {
            file: self.layout.chain[at].0.name(),
            position,
            from,
            end,
        });
    }

    /// What comes before a segment is known: completes its header if that was made of its first
    /// block.
    pub(super) fn complete_header(&mut self, at: usize, tail: &Tail) -> Result<(), Refusal> {
        let (found, header) = &mut self.layout.chain[at];
        if !found.is_rebuilt {
            return Ok(());
        }
        if (header.base_offset, header.prev_crc) != (tail.end_offset, tail.crc) {
            let rule =
                "its header is damaged and its first block does not continue the file before";
            return Err(refuse(found, 0, header.base_block, rule));
        }
        header.prev_epoch = tail.epoch;
        Ok(())
    }
}
