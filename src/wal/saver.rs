//! Writes the checkpoint: both copies, one after the other.
//!
//! It owns the two copies in the checkpoint file. A save is done when both are durable; changes
//! made while a write is under way share the next one. The copy that is older or unsound is written
//! first, so at every moment at least one sound copy holds everything that was ever reported as
//! saved. It never decides what a checkpoint says. The format is in `wire/checkpoint.rs`.

use super::ids::Ids;
use super::op::{CHECKPOINT_FILE, DiskOp};
use super::output::SaveId;
use crate::buffers::Buffers;
use crate::faults::{self, Fault};
use crate::limits::CHECKPOINT_COPY;
use crate::types::BufferId;
use crate::wire::checkpoint::{self, Checkpoint};

/// The saver of one log.
#[derive(Debug, Default)]
pub(super) struct Saver {
    /// What the next save will write.
    pub(super) checkpoint: Checkpoint,
    wanted: SaveId,
    saved: SaveId,
    /// Which copy is written first: the one worth less.
    first_copy: u64,
    writing: Option<Writing>,
}

#[derive(Debug)]
struct Writing {
    id: SaveId,
    buffer: BufferId,
    copies_done: u64,
    in_flight: bool,
}

impl Saver {
    pub(super) fn new(checkpoint: Checkpoint, first_copy: u64) -> Saver {
        Saver {
            checkpoint,
            first_copy,
            ..Saver::default()
        }
    }

    /// Asks for the checkpoint as it is now to be saved.
    pub(super) fn want(&mut self) -> SaveId {
        self.wanted.0 += 1;
        self.wanted
    }

    /// The last save asked for.
    pub(super) fn last_wanted(&self) -> SaveId {
        self.wanted
    }

    /// Whether nothing is to be saved or is being saved.
    pub(super) fn is_at_rest(&self) -> bool {
        self.writing.is_none() && self.wanted == self.saved
    }

    pub(super) fn is_saved(&self, id: SaveId) -> bool {
        self.saved >= id
    }

    pub(super) fn poll(&mut self, ids: &mut Ids, buffers: &mut dyn Buffers) -> Option<DiskOp> {
        if self.writing.is_none() && self.wanted > self.saved {
            let buffer = buffers.take(CHECKPOINT_COPY)?;
            self.checkpoint.sequence += 1;
            checkpoint::write(buffers.bytes_mut(buffer), &self.checkpoint);
            self.writing = Some(Writing {
                id: self.wanted,
                buffer,
                copies_done: 0,
                in_flight: false,
            });
        }
        let writing = self.writing.as_mut().filter(|writing| !writing.in_flight)?;
        writing.in_flight = true;
        let copy = (self.first_copy + writing.copies_done) % 2;
        Some(DiskOp::Write {
            ticket: ids.ticket(),
            file: CHECKPOINT_FILE,
            position: copy * CHECKPOINT_COPY as u64,
            buffer: writing.buffer,
            start: 0,
            len: CHECKPOINT_COPY,
        })
    }

    /// A copy is durable. Returns the save that is complete with it, and the buffer to release.
    pub(super) fn on_written(&mut self) -> Option<(SaveId, BufferId)> {
        let writing = self.writing.as_mut().expect("a copy was being written");
        writing.in_flight = false;
        writing.copies_done += 1;
        if writing.copies_done < 2 && !faults::active(Fault::OneCheckpointCopy) {
            return None;
        }
        self.saved = writing.id;
        let done = (writing.id, writing.buffer);
        self.writing = None;
        Some(done)
    }

    /// The buffer it holds, for a log that closes.
    pub(super) fn release(&mut self) -> Option<BufferId> {
        self.writing.take().map(|writing| writing.buffer)
    }
}

/// Reads both copies from the checkpoint file's first 8192 bytes: the newer sound one, and which
/// copy is to be written first. `Err` if neither is sound; then whether a first creation never
/// completed, which is so while the second copy is all zero.
pub(super) fn read_copies(bytes: &[u8]) -> Result<(Checkpoint, u64), bool> {
    let (first, second) = bytes[..2 * CHECKPOINT_COPY].split_at(CHECKPOINT_COPY);
    match (checkpoint::read(first), checkpoint::read(second)) {
        (Some(one), Some(other)) if other.sequence > one.sequence => Ok((other, 0)),
        (Some(one), Some(other)) if other.sequence < one.sequence => Ok((one, 1)),
        (Some(one), Some(_)) => Ok((one, 0)),
        (Some(one), None) => Ok((one, 1)),
        (None, Some(other)) => Ok((other, 0)),
        (None, None) => Err(second.iter().all(|byte| *byte == 0)),
    }
}
