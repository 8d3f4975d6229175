//! A reader's copy of the log: what it was given by `local` reads, one behind the other.
//!
//! `local` reads see what may yet go away, so a reader names the epoch of its last batch with each
//! read. Told that this batch is gone, it drops what it must and goes on from there. If it is never
//! given other records under offsets it knows already, its copy is the committed log in the end.
//! Pure.

use super::facts::BatchFacts;

/// The copy, without a gap.
#[derive(Debug, Default)]
pub struct Copy {
    batches: Vec<BatchFacts>,
    begin: u64,
    /// Whether it could go on, or wait, since it was last asked to show that.
    pub confirmed: bool,
    /// How often it had to drop something.
    pub dropped: u64,
}

impl Copy {
    /// Offset behind the last record.
    pub fn end(&self) -> u64 {
        self.batches
            .last()
            .map_or(self.begin, BatchFacts::end_offset)
    }

    /// Epoch of the last batch, 0 if there is none.
    pub fn last_epoch(&self) -> u32 {
        self.batches.last().map_or(0, |last| last.epoch)
    }

    /// Whether a read of this offset, with this epoch, goes on from here.
    pub fn goes_on(&self, asked: u64, last_epoch: u32) -> bool {
        (self.end(), self.last_epoch()) == (asked, last_epoch)
    }

    /// Takes in what such a read brought.
    pub fn take_in(&mut self, batches: &[BatchFacts]) {
        let records = batches.iter().filter(|batch| batch.record_count > 0);
        self.batches.extend(records.cloned());
        self.confirmed = true;
    }

    /// Told that the log begins at `start`, behind the copy's end.
    pub fn begin_at(&mut self, start: u64) {
        self.batches.clear();
        self.begin = start;
    }

    /// Told that the log and the copy part at `common`.
    pub fn truncate(&mut self, common: u64) {
        let keep = self
            .batches
            .partition_point(|batch| batch.end_offset() <= common);
        self.batches.truncate(keep);
        self.dropped += 1;
    }

    /// Its batches.
    pub fn batches(&self) -> &[BatchFacts] {
        &self.batches
    }
}
