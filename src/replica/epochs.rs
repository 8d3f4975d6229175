//! Where each leadership of a log begins: the epoch of any block, however old, in little memory.
//!
//! A list of (epoch, first block), rebuilt from block headers at start and kept in step with the
//! log by whoever owns it: blocks appended, a suffix cut, a prefix trimmed. It answers `epoch_of`
//! and `first_of_epoch` for a `LogView`. It is derived from the log and never stored.

use crate::types::{BlockNo, Epoch};

/// The epochs of the blocks of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epochs {
    /// First block of each epoch, both rising.
    starts: Vec<(Epoch, BlockNo)>,
    /// Epoch of the block before the log start.
    before: Epoch,
    log_start: BlockNo,
    log_end: BlockNo,
}

impl Epochs {
    /// An empty log that begins at `log_start`, behind a block of epoch `before` (0 if none).
    pub fn new(log_start: BlockNo, before: Epoch) -> Epochs {
        Epochs {
            starts: Vec::new(),
            before,
            log_start,
            log_end: log_start,
        }
    }

    /// The next block of the log is of this epoch.
    ///
    /// # Panics
    /// If epochs would fall along the log.
    pub fn append(&mut self, epoch: Epoch) {
        let last = self.starts.last().map_or(self.before, |(last, _)| *last);
        assert!(epoch >= last, "epochs never fall along a log");
        if self.starts.last().is_none_or(|(last, _)| *last != epoch) {
            self.starts.push((epoch, self.log_end));
        }
        self.log_end = self.log_end.next();
    }

    /// Everything from `from` on is cut off.
    pub fn cut(&mut self, from: BlockNo) {
        assert!(
            from >= self.log_start,
            "a cut never reaches below the log start"
        );
        self.log_end = self.log_end.min(from);
        while self.starts.last().is_some_and(|(_, first)| *first >= from) {
            self.starts.pop();
        }
    }

    /// Everything below `log_start` is trimmed.
    pub fn trim(&mut self, log_start: BlockNo) {
        assert!(
            log_start <= self.log_end,
            "a trim never reaches past the log end"
        );
        let before = log_start.previous().and_then(|block| self.epoch_of(block));
        self.before = before.unwrap_or(self.before);
        let gone = self.starts.partition_point(|(_, first)| *first < log_start);
        let kept = self
            .starts
            .get(gone)
            .map_or(self.log_end, |(_, first)| *first);
        // The epoch in which the new log start lies begins there now.
        let straddles = gone > 0 && log_start < kept;
        self.starts.drain(..gone - usize::from(straddles));
        if straddles {
            self.starts[0].1 = log_start;
        }
        self.log_start = log_start;
    }

    /// Epoch of a block held, or of the block before the log start.
    pub fn epoch_of(&self, block: BlockNo) -> Option<Epoch> {
        if block.next() == self.log_start {
            return Some(self.before);
        }
        if block < self.log_start || block >= self.log_end {
            return None;
        }
        let behind = self.starts.partition_point(|(_, first)| *first <= block);
        Some(self.starts[behind - 1].0)
    }

    /// First block kept of `epoch`.
    pub fn first_of_epoch(&self, epoch: Epoch) -> Option<BlockNo> {
        let index = self
            .starts
            .binary_search_by_key(&epoch, |(epoch, _)| *epoch);
        index.ok().map(|index| self.starts[index].1)
    }

    /// One past the last block.
    pub fn log_end(&self) -> BlockNo {
        self.log_end
    }
}

#[cfg(test)]
#[path = "epochs_tests.rs"]
mod tests;
