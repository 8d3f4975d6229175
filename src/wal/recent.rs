//! Recent blocks in memory: the buffers they were written from.
//!
//! It owns the buffers of blocks from the moment they enter the log until they are both durable and
//! beyond `RECENT_BYTES`, counted as buffer capacity; each is given back exactly once. So a block
//! that is not durable yet is always here, and a link or a reader that keeps up never touches the
//! disk. It never holds a block that is not in the log. Read `load.rs` for what is not here any
//! more.

use super::output::Loaded;
use crate::limits::RECENT_BYTES;
use crate::types::{BlockNo, BufferId};
use crate::wire::block::BlockHeader;
use std::collections::VecDeque;

#[derive(Debug)]
struct Unit {
    buffer: BufferId,
    capacity: usize,
    blocks: Vec<(BlockHeader, usize)>,
}

impl Unit {
    fn end(&self) -> BlockNo {
        self.blocks.last().expect("never empty").0.block.next()
    }
}

/// The recent blocks of one log.
#[derive(Debug, Default)]
pub(super) struct Recent {
    units: VecDeque<Unit>,
    capacity: usize,
}

impl Recent {
    /// Takes in the next blocks, which lie in one buffer.
    pub(super) fn push(
        &mut self,
        buffer: BufferId,
        capacity: usize,
        blocks: Vec<(BlockHeader, usize)>,
    ) {
        assert!(!blocks.is_empty(), "a unit holds a block");
        self.capacity += capacity;
        self.units.push_back(Unit {
            buffer,
            capacity,
            blocks,
        });
    }

    /// The oldest buffer, if there is too much and its blocks are durable.
    pub(super) fn evict(&mut self, durable_end: BlockNo) -> Option<BufferId> {
        let oldest = self.units.front()?;
        if self.capacity <= RECENT_BYTES || oldest.end() > durable_end {
            return None;
        }
        self.pop_front()
    }

    /// The oldest buffers whose blocks are durable, until they make up so many bytes.
    pub(super) fn relieve(&mut self, durable_end: BlockNo, bytes: usize) -> Vec<BufferId> {
        let mut given = Vec::new();
        let least = self.capacity.saturating_sub(bytes);
        while self.capacity > least
            && self
                .units
                .front()
                .is_some_and(|unit| unit.end() <= durable_end)
        {
            given.extend(self.pop_front());
        }
        given
    }

    fn pop_front(&mut self) -> Option<BufferId> {
        let unit = self.units.pop_front()?;
        self.capacity -= unit.capacity;
        Some(unit.buffer)
    }

    /// Blocks from `from` on out of one buffer, below `end`, of at most `max_bytes` padded but at
    /// least one.
    pub(super) fn load(&self, from: BlockNo, end: BlockNo, max_bytes: usize) -> Option<Loaded> {
        let at = self.units.partition_point(|unit| unit.end() <= from);
        let unit = self.units.get(at)?;
        let skip = from.0.checked_sub(unit.blocks[0].0.block.0)?;
        let mut bytes = 0;
        let blocks: Vec<_> = unit.blocks[skip as usize..]
            .iter()
            .take_while(|(header, _)| {
                let first = bytes == 0;
                bytes += header.padded_len();
                header.block < end && (first || bytes <= max_bytes)
            })
            .copied()
            .collect();
        let buffer = unit.buffer;
        (!blocks.is_empty()).then_some(Loaded { buffer, blocks })
    }

    /// Forgets blocks from `from` on; returns the buffers that hold none any more.
    pub(super) fn cut(&mut self, from: BlockNo) -> Vec<BufferId> {
        let mut released = Vec::new();
        while let Some(unit) = self.units.back_mut() {
            unit.blocks.retain(|(header, _)| header.block < from);
            if !unit.blocks.is_empty() {
                break;
            }
            released.push(unit.buffer);
            self.capacity -= unit.capacity;
            self.units.pop_back();
        }
        released
    }

    /// Forgets buffers with blocks at or behind `block` that are durable whole.
    pub(super) fn forget(&mut self, block: BlockNo, durable_end: BlockNo) -> Vec<BufferId> {
        let (gone, kept) = core::mem::take(&mut self.units)
            .into_iter()
            .partition(|unit| unit.end() > block && unit.end() <= durable_end);
        self.units = kept;
        let gone: VecDeque<Unit> = gone;
        self.capacity -= gone.iter().map(|unit| unit.capacity).sum::<usize>();
        gone.into_iter().map(|unit| unit.buffer).collect()
    }

    /// Every buffer, for a log that closes.
    pub(super) fn release(&mut self) -> Option<BufferId> {
        self.pop_front()
    }
}
