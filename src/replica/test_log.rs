//! A log of headers, for the unit tests of this module.

use super::LogView;
use crate::types::{BlockNo, Epoch, LogId, Offset, OriginId, ShardId, Tick};
use crate::wire::block::BlockHeader;

pub const LOG: LogId = LogId {
    origin: OriginId(7),
    shard: ShardId(0),
};

/// A log of headers.
#[derive(Clone, Debug, Default)]
pub struct TestLog {
    pub blocks: Vec<BlockHeader>,
    pub durable_end: BlockNo,
    /// Its disk has no room.
    pub full: bool,
    /// The first damaged block above what is committed.
    pub damaged_from: Option<BlockNo>,
    /// Blocks of which nothing is known, because of damage: first, end.
    pub hidden: Option<(u64, u64)>,
}

impl TestLog {
    /// A durable log with one block of one record for each epoch given.
    pub fn of(epochs: &[u32]) -> TestLog {
        let mut log = TestLog::default();
        for epoch in epochs {
            log.seal(Epoch(*epoch), 1, 0, Tick(0));
        }
        log.durable_end = log.log_end();
        log
    }

    /// The header of the next block; `salt` stands for its bytes.
    pub fn next_header(&self, epoch: Epoch, records: u32, salt: u32, tick: Tick) -> BlockHeader {
        let last = self.blocks.last();
        let base = last.map_or(Offset(0), |last| last.end_offset);
        let prev = last.map_or(0, |last| last.header_crc);
        let block = self.log_end();
        let mut facts = Vec::new();
        for fact in [prev, epoch.0, block.0 as u32, records, salt] {
            facts.extend_from_slice(&fact.to_le_bytes());
        }
        BlockHeader {
            log: LOG,
            epoch,
            block,
            header_crc: crc32fast::hash(&facts),
            prev_header_crc: prev,
            used_len: 256 + records,
            batch_count: 1,
            record_count: records,
            base_offset: base,
            end_offset: Offset(base.0 + u64::from(records)),
            last_tick: tick,
            ..BlockHeader::default()
        }
    }

    pub fn seal(&mut self, epoch: Epoch, records: u32, salt: u32, tick: Tick) -> BlockHeader {
        let header = self.next_header(epoch, records, salt, tick);
        self.push(&header);
        header
    }

    pub fn push(&mut self, header: &BlockHeader) {
        assert_eq!(header.block, self.log_end());
        self.blocks.push(*header);
    }

    pub fn cut(&mut self, from: BlockNo) {
        self.blocks.truncate(from.0 as usize);
        self.durable_end = self.durable_end.min(from);
        self.damaged_from = self.damaged_from.filter(|damaged| *damaged < from);
    }

    pub fn range(&self, from: u64, end: u64) -> &[BlockHeader] {
        &self.blocks[from as usize..end as usize]
    }

    pub fn list(&self) -> Vec<u32> {
        self.blocks.iter().map(|header| header.epoch.0).collect()
    }
}

impl LogView for TestLog {
    fn log_start(&self) -> BlockNo {
        BlockNo(0)
    }
    fn log_end(&self) -> BlockNo {
        BlockNo(self.blocks.len() as u64)
    }
    fn durable_end(&self) -> BlockNo {
        self.damaged_from
            .map_or(self.durable_end, |from| from.min(self.durable_end))
    }
    fn damaged_from(&self) -> Option<BlockNo> {
        self.damaged_from
    }
    fn is_full(&self) -> bool {
        self.full
    }
    fn held(&self, block: BlockNo) -> Option<(Epoch, u32)> {
        let hides = |(from, end): (u64, u64)| from <= block.0 && block.0 < end;
        if self.hidden.is_some_and(hides) {
            return None;
        }
        let header = self.blocks.get(usize::try_from(block.0).ok()?)?;
        Some((header.epoch, header.header_crc))
    }
    fn epoch_of(&self, block: BlockNo) -> Option<Epoch> {
        self.held(block).map(|(epoch, _)| epoch)
    }
    fn first_of_epoch(&self, epoch: Epoch) -> Option<BlockNo> {
        let first = self.blocks.iter().find(|header| header.epoch == epoch);
        first.map(|header| header.block)
    }
    fn end_offset_of(&self, end: BlockNo) -> Option<Offset> {
        let last = end.previous().map(|last| &self.blocks[last.0 as usize]);
        Some(last.map_or(Offset(0), |last| last.end_offset))
    }
    fn rest_from(&self, from: BlockNo) -> Option<(u64, Tick)> {
        let rest = &self.blocks[from.0 as usize..];
        let bytes = rest.iter().map(|header| header.padded_len() as u64).sum();
        Some((bytes, rest.first().map_or(Tick(0), |first| first.last_tick)))
    }
}
