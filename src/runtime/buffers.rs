//! The buffers of one core: aligned memory in powers of two, counted against one budget.
//!
//! Owns every byte that a payload ever lies in. A buffer is *owned* by whoever took it until its
//! release, and *held* by each operation (a write, a read, a send) that uses its memory; its memory
//! goes back to the free list when neither is left. While it is held its bytes do not change:
//! `bytes_mut` panics. Clients' appends are counted apart, so that they can never take what the
//! logs need to get rid of them. Free memory that nobody wanted for a while goes back to the
//! system. Read `driver.rs` next.

use crate::buffers::Buffers;
use crate::limits;
use crate::types::BufferId;
use glommio::io::DmaBuffer;
use std::collections::VecDeque;
use std::ops::Range;
use std::task::Waker;

const LEAST: usize = limits::DISK_ALIGNMENT;
const CLASSES: usize = (2 * limits::MAX_BUFFER_BYTES / LEAST).ilog2() as usize + 1;

/// The pool of one core.
#[derive(Debug)]
pub(super) struct Pool {
    slots: Vec<Slot>,
    unused: Vec<u32>,
    free: [Free; CLASSES],
    budget: usize,
    allocated: usize,
    append_bytes: usize,
    waiters: VecDeque<Waker>,
    core_waits: bool,
    freed: bool,
    /// Bytes of the largest buffer refused since that was asked last.
    short: usize,
}

/// Free buffers of one size. The one that was used last is used next, so the first ones are those
/// that nobody wants.
#[derive(Debug, Default)]
struct Free {
    buffers: Vec<DmaBuffer>,
    /// How many there were at least since the last trim.
    least: usize,
}

impl Free {
    fn pop(&mut self) -> Option<DmaBuffer> {
        let buffer = self.buffers.pop();
        self.least = self.least.min(self.buffers.len());
        buffer
    }
}

#[derive(Debug, Default)]
struct Slot {
    buffer: Option<DmaBuffer>,
    holds: u32,
    released: bool,
    append: bool,
}

impl Pool {
    /// A pool that never allocates more than `budget` bytes.
    pub(super) fn new(budget: usize) -> Pool {
        Pool {
            slots: Vec::new(),
            unused: Vec::new(),
            free: Default::default(),
            budget,
            allocated: 0,
            append_bytes: 0,
            waiters: VecDeque::new(),
            core_waits: false,
            freed: false,
            short: 0,
        }
    }

    /// Bytes of the largest buffer refused since the last call; 0 if none was.
    pub(super) fn take_shortage(&mut self) -> usize {
        std::mem::take(&mut self.short)
    }

    /// Takes a buffer for a client's append, within the appends' own bound.
    pub(super) fn take_for_append(&mut self, len: usize) -> Option<BufferId> {
        let size = LEAST << class_of(len);
        if self.append_bytes + size > limits::CORE_APPEND_BYTES {
            return None;
        }
        let id = self.take_any(len)?;
        self.append_bytes += size;
        self.slot_mut(id).append = true;
        Some(id)
    }

    /// Takes a buffer, if the budget has room.
    pub(super) fn take_any(&mut self, len: usize) -> Option<BufferId> {
        let class = class_of(len);
        let buffer = self.free[class].pop().or_else(|| self.allocate(class));
        let Some(buffer) = buffer else {
            self.short = self.short.max(len);
            return None;
        };
        let slot = Slot {
            buffer: Some(buffer),
            ..Slot::default()
        };
        let id = self.unused.pop().unwrap_or(self.slots.len() as u32);
        if id as usize == self.slots.len() {
            self.slots.push(slot);
        } else {
            self.slots[id as usize] = slot;
        }
        Some(BufferId(id))
    }

    fn allocate(&mut self, class: usize) -> Option<DmaBuffer> {
        let size = LEAST << class;
        // Free memory of other sizes makes room, the largest first.
        for other in (0..CLASSES).rev() {
            while self.allocated + size > self.budget
                && let Some(buffer) = self.free[other].pop()
            {
                self.allocated -= LEAST << other;
                give_back(buffer);
            }
        }
        if self.allocated + size > self.budget {
            return None;
        }
        self.allocated += size;
        let mut buffer = glommio::allocate_dma_buffer_global(size);
        // Once, so that no byte of it is ever undefined; also brings its pages in.
        buffer.as_bytes_mut().fill(0);
        Some(buffer)
    }

    /// Gives back to the system what was free ever since the last call.
    pub(super) fn trim(&mut self) {
        for (class, free) in self.free.iter_mut().enumerate() {
            self.allocated -= free.least * (LEAST << class);
            free.buffers.drain(..free.least).for_each(give_back);
            free.least = free.buffers.len();
        }
    }

    /// The owner gives the buffer back; its memory is free once no operation holds it.
    pub(super) fn release(&mut self, id: BufferId) {
        let slot = self.slot_mut(id);
        assert!(!slot.released, "buffer {id} released twice");
        slot.released = true;
        self.recycle(id);
    }

    /// An operation uses the buffer's memory from now on.
    pub(super) fn hold(&mut self, id: BufferId) {
        let slot = self.slot_mut(id);
        assert!(!slot.released, "buffer {id} used after its release");
        slot.holds += 1;
    }

    /// An operation has ended.
    pub(super) fn unhold(&mut self, id: BufferId) {
        let slot = self.slot_mut(id);
        slot.holds = slot.holds.checked_sub(1).expect("every hold ends once");
        self.recycle(id);
    }

    fn recycle(&mut self, id: BufferId) {
        let slot = self.slot_mut(id);
        if !slot.released || slot.holds > 0 {
            return;
        }
        let append = slot.append;
        let buffer = slot.buffer.take().expect("a buffer is freed once");
        let class = class_of(buffer.len());
        if append {
            self.append_bytes -= LEAST << class;
        }
        self.free[class].buffers.push(buffer);
        self.unused.push(id.0);
        self.freed = true;
        self.waiters.drain(..).for_each(Waker::wake);
    }

    /// Wakes this task when memory comes back.
    pub(super) fn wait(&mut self, waker: &Waker) {
        if !self.waiters.iter().any(|known| known.will_wake(waker)) {
            self.waiters.push_back(waker.clone());
        }
    }

    /// Whether the core once found no room and memory has come back since.
    pub(super) fn core_may_go_on(&mut self) -> bool {
        let may = self.core_waits && self.freed;
        if may {
            self.core_waits = false;
        }
        may
    }

    /// Bytes allocated, free ones included.
    pub(super) fn allocated(&self) -> usize {
        self.allocated
    }

    /// Address of a byte range of a buffer, for the kernel. The caller holds the buffer.
    pub(super) fn address(&self, id: BufferId, range: Range<usize>) -> *const u8 {
        let slot = self.slot(id);
        assert!(slot.holds > 0, "only a held buffer has an address");
        self.bytes(id)[range].as_ptr()
    }

    fn slot(&self, id: BufferId) -> &Slot {
        &self.slots[id.0 as usize]
    }

    fn slot_mut(&mut self, id: BufferId) -> &mut Slot {
        &mut self.slots[id.0 as usize]
    }

    fn buffer(&self, id: BufferId) -> &DmaBuffer {
        let buffer = self.slot(id).buffer.as_ref();
        buffer.unwrap_or_else(|| panic!("buffer {id} is not taken"))
    }
}

impl Buffers for Pool {
    fn take(&mut self, len: usize) -> Option<BufferId> {
        let taken = self.take_any(len);
        if taken.is_none() {
            self.core_waits = true;
            self.freed = false;
        }
        taken
    }

    fn bytes(&self, id: BufferId) -> &[u8] {
        self.buffer(id).as_bytes()
    }

    fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        let slot = self.slot_mut(id);
        assert!(slot.holds == 0, "buffer {id} changed while in use");
        let buffer = slot.buffer.as_mut();
        let buffer = buffer.unwrap_or_else(|| panic!("buffer {id} is not taken"));
        buffer.as_bytes_mut()
    }

    fn copy(&mut self, from: BufferId, range: Range<usize>, to: BufferId, at: usize) {
        assert!(from != to, "a copy is between two buffers");
        let target = self.slot_mut(to);
        assert!(target.holds == 0, "buffer {to} changed while in use");
        // Out of its slot for the length of the copy, so that both can be borrowed.
        let mut buffer = target.buffer.take().expect("the target is taken");
        let source = &self.bytes(from)[range];
        buffer.as_bytes_mut()[at..at + source.len()].copy_from_slice(source);
        self.slot_mut(to).buffer = Some(buffer);
    }
}

/// Frees a buffer's memory. The allocator may keep the addresses for itself; it does not keep the
/// pages.
fn give_back(mut buffer: DmaBuffer) {
    let bytes = buffer.as_bytes_mut();
    // SAFETY: the range is whole pages of memory that belongs to this buffer alone, and nobody
    // reads it again before it is dropped. Zeros in their place are as good as what was there.
    let result =
        unsafe { libc::madvise(bytes.as_mut_ptr().cast(), bytes.len(), libc::MADV_DONTNEED) };
    debug_assert_eq!(result, 0, "pages of our own can be given back");
}

fn class_of(len: usize) -> usize {
    assert!(
        len <= 2 * limits::MAX_BUFFER_BYTES,
        "no buffer of {len} bytes"
    );
    let size = len.max(LEAST).next_power_of_two();
    (size / LEAST).ilog2() as usize
}

#[cfg(test)]
#[path = "buffers_tests.rs"]
mod tests;
