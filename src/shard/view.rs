//! The log as `replica` sees it: header facts of the WAL, and the run that waits behind a cut.
//!
//! A view shows the log as it will be once everything asked of it has happened. The WAL shows a cut
//! at once; a run that was admitted together with the cut can only be written after it, so until
//! then its headers are laid over the log's end here.

use crate::replica::LogView;
use crate::types::{BlockNo, Epoch, Offset};
use crate::wal::Log;
use crate::wire::block::BlockHeader;

/// The log, and the headers of the run that waits behind a cut.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) log: &'a Log,
    pub(super) stashed: &'a [BlockHeader],
}

impl View<'_> {
    fn stashed(&self, block: BlockNo) -> Option<&BlockHeader> {
        self.stashed.iter().find(|header| header.block == block)
    }
}

impl LogView for View<'_> {
    fn log_start(&self) -> BlockNo {
        self.log.log_start().block
    }

    fn log_end(&self) -> BlockNo {
        self.stashed
            .last()
            .map_or(self.log.log_end(), |header| header.block.next())
    }

    fn durable_end(&self) -> BlockNo {
        self.log.durable_end()
    }

    fn held(&self, block: BlockNo) -> Option<(Epoch, u32)> {
        if let Some(header) = self.stashed(block) {
            return Some((header.epoch, header.header_crc));
        }
        let start = self.log.log_start();
        if block.next() == start.block {
            return Some((start.prev_epoch, start.prev_crc));
        }
        self.log
            .held(block)
            .map(|held| (held.epoch, held.header_crc))
    }

    fn epoch_of(&self, block: BlockNo) -> Option<Epoch> {
        self.stashed(block)
            .map(|header| header.epoch)
            .or_else(|| self.log.epoch_of(block))
    }

    fn first_of_epoch(&self, epoch: Epoch) -> Option<BlockNo> {
        let stashed = self.stashed.iter().find(|header| header.epoch == epoch);
        self.log
            .first_of_epoch(epoch)
            .or(stashed.map(|header| header.block))
    }

    fn end_offset_of(&self, end: BlockNo) -> Offset {
        let stashed = end.previous().and_then(|last| self.stashed(last));
        let held = || self.log.end_offset_of(end).unwrap_or_default();
        stashed.map_or_else(held, |header| header.end_offset)
    }
}
