//! Reads files piece by piece on demand, for walks over many blocks.
//!
//! It owns one buffer and knows which piece of which file it holds. A walk asks whether a span is
//! there; if not, the reader notes the wish, the walk waits, and comes back to the same question
//! after the read. Bytes that a file does not have read as zeros, which no check accepts. It judges
//! nothing: see `search.rs` and `recovery.rs`.

use super::ids::Ids;
use super::op::DiskOp;
use crate::buffers::Buffers;
use crate::types::{BufferId, FileId, padded};

/// Bytes read at a time at least, unless the file ends before.
const PIECE: usize = 1 << 20;

/// A window on one file at a time.
#[derive(Debug, Default)]
pub(super) struct Reader {
    buffer: Option<(BufferId, usize)>,
    file: FileId,
    start: u64,
    len: usize,
    wish: Option<(FileId, u64, usize)>,
    in_flight: bool,
    /// A buffer that was too small, to be given back.
    outgrown: Option<BufferId>,
}

impl Reader {
    /// Whether `len` bytes at `position` of `file` are here; if not, the next operation reads them
    /// and what follows. `position` is a multiple of 4096 and the span lies within `file_len`.
    pub(super) fn covers(
        &mut self,
        file: FileId,
        position: u64,
        len: usize,
        file_len: u64,
    ) -> bool {
        let rest = usize::try_from(file_len - position).unwrap_or(usize::MAX);
        self.wants(file, position, len, len.max(PIECE.min(rest)))
    }

    /// The same, but nothing beyond the span is read.
    pub(super) fn covers_just(&mut self, file: FileId, position: u64, len: usize) -> bool {
        self.wants(file, position, len, len)
    }

    fn wants(&mut self, file: FileId, position: u64, len: usize, piece: usize) -> bool {
        let held = self.file == file
            && position >= self.start
            && position + len as u64 <= self.start + self.len as u64;
        if !held {
            self.wish = Some((file, position, padded(piece)));
        }
        held
    }

    /// The bytes from `position` to the end of the piece that is here.
    pub(super) fn bytes<'a>(&self, position: u64, buffers: &'a dyn Buffers) -> &'a [u8] {
        let (buffer, _) = self.buffer.expect("covered before");
        let at = (position - self.start) as usize;
        &buffers.bytes(buffer)[at..self.len]
    }

    /// The read that was wished for; none while the pool has no buffer.
    pub(super) fn poll(&mut self, ids: &mut Ids, buffers: &mut dyn Buffers) -> Option<DiskOp> {
        let (file, position, len) = self.wish.filter(|_| !self.in_flight)?;
        if let Some((buffer, capacity)) = self.buffer
            && capacity < len
        {
            assert!(self.outgrown.is_none(), "one buffer at a time");
            self.outgrown = Some(buffer);
            self.buffer = None;
            self.len = 0;
        }
        if self.buffer.is_none() {
            let buffer = buffers.take(len)?;
            self.buffer = Some((buffer, buffers.bytes(buffer).len()));
        }
        let (buffer, _) = self.buffer.expect("just taken");
        self.wish = None;
        self.in_flight = true;
        (self.file, self.start, self.len) = (file, position, len);
        Some(DiskOp::Read {
            ticket: ids.ticket(),
            file,
            position,
            buffer,
            len,
        })
    }

    /// The read ended with so many bytes.
    pub(super) fn on_read(&mut self, count: usize, buffers: &mut dyn Buffers) {
        self.in_flight = false;
        let (buffer, _) = self.buffer.expect("held while it was read");
        if count < self.len {
            buffers.bytes_mut(buffer)[count..self.len].fill(0);
        }
    }

    /// What was read is read again when it is wanted next.
    pub(super) fn forget(&mut self) {
        self.len = 0;
        self.wish = None;
    }

    /// Whether a read is under way or waits for a buffer.
    pub(super) fn is_waiting(&self) -> bool {
        self.in_flight || self.wish.is_some()
    }

    /// A buffer that is not needed any more, though the walk goes on.
    pub(super) fn outgrown(&mut self) -> Option<BufferId> {
        self.outgrown.take()
    }

    /// The buffer, once the walk is over.
    pub(super) fn release(&mut self) -> Option<BufferId> {
        self.len = 0;
        self.outgrown
            .take()
            .or_else(|| self.buffer.take().map(|(buffer, _)| buffer))
    }
}
