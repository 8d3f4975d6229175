//! The pool of buffers of one simulated node.
//!
//! It is `millrace::buffers::Buffers` over plain memory and holds its users to the contract written
//! there: an id that was given back is never named again, bytes do not change while an operation
//! holds them, every buffer is released exactly once. Breaking the contract is a bug of the core
//! and panics. Ids are never used twice. Methods of the trait are the core's side; `hold`,
//! `unhold`, `fill`, `held_bytes`, `put` and `release` are the shell's. Read `disk.rs` next.

use core::ops::Range;
use millrace::buffers::Buffers;
use millrace::types::{BufferId, padded};
use std::collections::BTreeMap;

/// What a fresh buffer is full of: the core may not count on zeros.
const GARBAGE: u8 = 0xA5;

/// Buffers of a node, at most so many bytes of them at a time.
#[derive(Debug)]
pub struct SimBuffers {
    slots: BTreeMap<BufferId, Slot>,
    next: u32,
    budget_bytes: usize,
    used_bytes: usize,
    most_bytes: usize,
    refused: u64,
}

#[derive(Debug)]
struct Slot {
    bytes: Vec<u8>,
    /// Operations (writes, sends) that need the bytes as they are.
    readers: u32,
    /// Operations (reads) that will change the bytes.
    fillers: u32,
    /// Whether the core has given it back.
    released: bool,
}

impl SimBuffers {
    /// A pool that lends at most `budget_bytes` at a time.
    pub fn new(budget_bytes: usize) -> SimBuffers {
        SimBuffers {
            slots: BTreeMap::new(),
            next: 1,
            budget_bytes,
            used_bytes: 0,
            most_bytes: 0,
            refused: 0,
        }
    }

    /// Changes the bound from now on; what is lent stays lent.
    pub fn set_budget(&mut self, budget_bytes: usize) {
        self.budget_bytes = budget_bytes;
    }

    /// Bytes lent now.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Most bytes ever lent at a time.
    pub fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    /// How many times `take` had no room.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Buffers that are not back yet, oldest first: after a clean stop there are none.
    pub fn outstanding(&self) -> Vec<BufferId> {
        self.slots.keys().copied().collect()
    }

    /// Panics, naming them, if buffers are missing.
    pub fn assert_all_back(&self) {
        let missing = self.outstanding();
        assert!(missing.is_empty(), "buffers never given back: {missing:?}");
    }

    /// A buffer for an event: `bytes` at its start, zeros behind them up to its end. None if the
    /// pool has no room. It belongs to the core that gets the event.
    pub fn put(&mut self, bytes: &[u8]) -> Option<BufferId> {
        let id = self.take(bytes.len())?;
        let whole = self.bytes_mut(id);
        whole[..bytes.len()].copy_from_slice(bytes);
        whole[bytes.len()..].fill(0);
        Some(id)
    }

    /// The core gives the buffer back. It is free once no operation holds it.
    pub fn release(&mut self, id: BufferId) {
        let slot = self.owned_mut(id);
        slot.released = true;
        self.free_if_done(id);
    }

    /// An operation that needs the bytes as they are begins.
    pub fn hold(&mut self, id: BufferId) {
        let slot = self.owned_mut(id);
        assert!(
            slot.fillers == 0,
            "{id:?} is being filled, its bytes are not valid"
        );
        slot.readers += 1;
    }

    /// Such an operation ended.
    pub fn unhold(&mut self, id: BufferId) {
        let slot = self.slots.get_mut(&id).expect("a held buffer is kept");
        slot.readers = slot.readers.checked_sub(1).expect("held before");
        self.free_if_done(id);
    }

    /// The bytes for an operation that holds them, whether or not the core has given them back.
    pub fn held_bytes(&self, id: BufferId) -> &[u8] {
        let slot = self.slots.get(&id).expect("a held buffer is kept");
        assert!(slot.readers > 0, "{id:?} is held by nobody");
        &slot.bytes
    }

    /// An operation that will fill the buffer begins.
    pub fn hold_to_fill(&mut self, id: BufferId) {
        let slot = self.owned_mut(id);
        assert!(
            slot.readers == 0 && slot.fillers == 0,
            "{id:?} is held by another operation and cannot be filled"
        );
        slot.fillers += 1;
    }

    /// Such an operation ended and brought `bytes` for the buffer's start.
    pub fn fill(&mut self, id: BufferId, bytes: &[u8]) {
        let slot = self.slots.get_mut(&id).expect("a held buffer is kept");
        slot.fillers = slot.fillers.checked_sub(1).expect("held before");
        slot.bytes[..bytes.len()].copy_from_slice(bytes);
        self.free_if_done(id);
    }

    fn owned(&self, id: BufferId) -> &Slot {
        let slot = self.slots.get(&id);
        let slot = slot.unwrap_or_else(|| panic!("{id:?} is no buffer (any more)"));
        assert!(!slot.released, "{id:?} was given back and is named again");
        slot
    }

    fn owned_mut(&mut self, id: BufferId) -> &mut Slot {
        self.owned(id);
        self.slots.get_mut(&id).expect("just seen")
    }

    fn free_if_done(&mut self, id: BufferId) {
        let slot = &self.slots[&id];
        if slot.released && slot.readers == 0 && slot.fillers == 0 {
            self.used_bytes -= slot.bytes.len();
            self.slots.remove(&id);
        }
    }
}

impl Buffers for SimBuffers {
    fn take(&mut self, len: usize) -> Option<BufferId> {
        let capacity = padded(len.max(1));
        if self.used_bytes + capacity > self.budget_bytes {
            self.refused += 1;
            return None;
        }
        let id = BufferId(self.next);
        self.next += 1;
        self.used_bytes += capacity;
        self.most_bytes = self.most_bytes.max(self.used_bytes);
        self.slots.insert(
            id,
            Slot {
                bytes: vec![GARBAGE; capacity],
                readers: 0,
                fillers: 0,
                released: false,
            },
        );
        Some(id)
    }

    fn bytes(&self, id: BufferId) -> &[u8] {
        let slot = self.owned(id);
        assert!(
            slot.fillers == 0,
            "{id:?} is being filled, its bytes are not valid"
        );
        &slot.bytes
    }

    fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        let slot = self.owned_mut(id);
        assert!(
            slot.readers == 0 && slot.fillers == 0,
            "{id:?} is held by an operation, its bytes must not change"
        );
        &mut slot.bytes
    }

    fn copy(&mut self, from: BufferId, range: Range<usize>, to: BufferId, at: usize) {
        assert!(from != to, "a copy goes from one buffer to another one");
        let part = self.bytes(from)[range].to_vec();
        self.bytes_mut(to)[at..at + part.len()].copy_from_slice(&part);
    }
}
