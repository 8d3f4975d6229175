//! Memory that a log gives back when its pool is short of it.
//!
//! Recent blocks are kept for links and readers, but only while nobody needs the memory more: when
//! a buffer is refused, to this log or to its shell, the oldest durable ones go. They are read from
//! the disk again if somebody wants them. So a pool smaller than all that may be kept slows readers
//! down and stops nobody. Read `recent.rs` for what is kept.

use super::log::Log;
use super::output::Output;
use crate::buffers::Buffers;
use crate::types::BufferId;
use core::ops::Range;

/// Buffers that remember what they had to refuse.
pub(super) struct Watched<'a> {
    pub(super) inner: &'a mut dyn Buffers,
    /// Bytes of the largest buffer refused.
    pub(super) refused: usize,
}

impl Buffers for Watched<'_> {
    fn take(&mut self, len: usize) -> Option<BufferId> {
        let taken = self.inner.take(len);
        if taken.is_none() {
            self.refused = self.refused.max(len);
        }
        taken
    }

    fn bytes(&self, id: BufferId) -> &[u8] {
        self.inner.bytes(id)
    }

    fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        self.inner.bytes_mut(id)
    }

    fn copy(&mut self, from: BufferId, range: Range<usize>, to: BufferId, at: usize) {
        self.inner.copy(from, range, to, at);
    }
}

impl Log {
    /// The pool had no buffer of so many bytes: gives back recent blocks that are durable, the
    /// oldest first, until as much is free.
    pub fn relieve(&mut self, bytes: usize) {
        let given = self.recent.relieve(self.writer.durable_end, bytes);
        self.outputs.extend(given.into_iter().map(Output::Release));
    }
}
