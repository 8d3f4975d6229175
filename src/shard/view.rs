//! The log as `replica` sees it: header facts of the WAL, and the run that waits behind a cut.
//!
//! A view shows the log as it will be once everything asked of it has happened. The WAL shows a cut
//! only when it is done, and a run that was admitted together with the cut can only be written
//! after it: so what the cut takes is left out here, and the run's headers are laid over the end.

use super::Run;
use crate::replica::LogView;
use crate::types::{BlockNo, Epoch, Offset, Tick};
use crate::wal::{Held, Log};
use crate::wire::block::BlockHeader;
use crate::wire::checkpoint::LogStart;

/// The log as it will be.
#[derive(Debug)]
pub(super) struct View<'a> {
    log: &'a Log,
    /// First block that a cut under way takes away.
    cut_from: Option<BlockNo>,
    /// Where the log begins anew with the cut, if it does.
    anew: Option<LogStart>,
    /// Headers of the run that waits behind the cut.
    stashed: &'a [BlockHeader],
}

impl<'a> View<'a> {
    pub(super) fn new(log: &'a Log, stash: &'a Option<Run>) -> View<'a> {
        let stashed = stash.as_ref().map_or(&[][..], |(_, headers)| headers);
        View {
            log,
            cut_from: log.cut_from(),
            anew: log.begins_anew(),
            stashed,
        }
    }

    fn stashed(&self, block: BlockNo) -> Option<&BlockHeader> {
        self.stashed.iter().find(|header| header.block == block)
    }

    /// Where the log ends once the cut is done.
    fn kept_end(&self, end: BlockNo) -> BlockNo {
        self.cut_from.map_or(end, |from| from.min(end))
    }

    fn is_kept(&self, block: BlockNo) -> bool {
        self.anew.is_none() && self.cut_from.is_none_or(|from| block < from)
    }

    fn start(&self) -> LogStart {
        self.anew.unwrap_or(self.log.log_start())
    }

    fn held_in_log(&self, block: BlockNo) -> Option<Held> {
        self.log.held(block).filter(|_| self.is_kept(block))
    }
}

impl LogView for View<'_> {
    fn log_start(&self) -> BlockNo {
        self.start().block
    }

    fn log_end(&self) -> BlockNo {
        let stashed = self.stashed.last().map(|header| header.block.next());
        let anew = self.anew.map(|start| start.block);
        let stays = || anew.unwrap_or_else(|| self.kept_end(self.log.log_end()));
        stashed.unwrap_or_else(stays)
    }

    fn durable_end(&self) -> BlockNo {
        // Of a log that is given up nothing counts but what is committed: the rest is not its
        // leader's, though frames have shown what comes behind it.
        match self.anew {
            Some(_) => self.log.committed_end(),
            None => self.kept_end(self.log.sound_end(self.log.committed_end())),
        }
    }

    fn damaged_from(&self) -> Option<BlockNo> {
        let stays = self.anew.is_none() && self.cut_from.is_none();
        let from = self.log.damaged_from(self.log.committed_end());
        from.filter(|_| stays)
    }

    fn is_sealed(&self) -> bool {
        self.log.open_end_offset() == self.log.end_offset()
    }

    fn is_full(&self) -> bool {
        self.log.is_full()
    }

    fn held(&self, block: BlockNo) -> Option<(Epoch, u32)> {
        if let Some(header) = self.stashed(block) {
            return Some((header.epoch, header.header_crc));
        }
        let start = self.start();
        if block.next() == start.block {
            return Some((start.prev_epoch, start.prev_crc));
        }
        if let Some(held) = self.held_in_log(block) {
            return Some((held.epoch, held.header_crc));
        }
        // The last block is known even if recovery did not read it again.
        let last = self.is_kept(block) && block.next() == self.log.log_end();
        let epoch = self.log.epoch_of(block).filter(|_| last)?;
        Some((epoch, self.log.last_crc()))
    }

    fn epoch_of(&self, block: BlockNo) -> Option<Epoch> {
        let in_log = || self.log.epoch_of(block).filter(|_| self.is_kept(block));
        let anew = self.anew.filter(|start| block.next() == start.block);
        self.stashed(block)
            .map(|header| header.epoch)
            .or(anew.map(|start| start.prev_epoch))
            .or_else(in_log)
    }

    fn first_of_epoch(&self, epoch: Epoch) -> Option<BlockNo> {
        let in_log = self
            .log
            .first_of_epoch(epoch)
            .filter(|block| self.is_kept(*block));
        let in_stash = || self.stashed.iter().find(|header| header.epoch == epoch);
        in_log.or_else(|| in_stash().map(|header| header.block))
    }

    fn end_offset_of(&self, end: BlockNo) -> Option<Offset> {
        let stashed = end.previous().and_then(|last| self.stashed(last));
        let anew = self.anew.filter(|start| start.block == end);
        let held = || self.log.end_offset_of(end);
        let stashed = stashed.map(|header| header.end_offset);
        stashed.or(anew.map(|start| start.offset)).or_else(held)
    }

    fn rest_from(&self, from: BlockNo) -> Option<(u64, Tick)> {
        // A leader asks, and its log is cut only before it leads.
        self.log.rest_from(from).filter(|_| self.cut_from.is_none())
    }
}
