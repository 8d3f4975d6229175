//! The seam between the core, which decides, and the shell, which owns memory.
//!
//! Payload bytes never enter an event. The shell keeps pools of 4096-aligned buffers and names each
//! by a [`BufferId`]; the core reads and fills them through [`Buffers`] and gives each back with a
//! release action. The runtime implements this over `Rc<DmaBuffer>`, the simulator over `Vec<u8>`.
//!
//! The contract:
//! * a buffer has one *owner* at a time: it belongs to the core from `take`, or from the event that
//!   carries it, until the core's release action;
//! * an action that names a buffer (a write, a send) makes the shell hold it as well, until that
//!   operation has ended; releasing before the operation ended is allowed and usual;
//! * while a write or a send holds a buffer its bytes must not change: `bytes_mut` then panics;
//! * after its release the core never names the buffer again;
//! * a buffer taken for a read is filled by the shell; its bytes are valid once the read completed.

use crate::types::BufferId;
use core::ops::Range;

/// Access to the shell's buffers.
pub trait Buffers {
    /// Takes a buffer of at least `len` bytes (capacity a multiple of 4096, contents arbitrary), or
    /// none if the pool has no room: the core then waits for a release; nothing is lost.
    fn take(&mut self, len: usize) -> Option<BufferId>;

    /// The whole buffer.
    fn bytes(&self, id: BufferId) -> &[u8];

    /// The whole buffer, to be filled. Panics while an operation holds it.
    fn bytes_mut(&mut self, id: BufferId) -> &mut [u8];

    /// Copies `range` of one buffer to position `at` of another one.
    fn copy(&mut self, from: BufferId, range: Range<usize>, to: BufferId, at: usize);
}
