//! What the disk of one node durably holds: its blocks by number, and where their chain ends.
//!
//! Kept beside the disk by reading what each completed write left there, with the parser of
//! `facts.rs`, never by asking the code under test. A block counts once its bytes and the name of
//! its file are durable. After a crash, and after a sync, everything is read again. Read `disk.rs`
//! next.

use super::content::Pages;
use super::disk::Disk;
use super::facts::{BlockFacts, block_facts, digest};
use super::rot::Rot;
use millrace::limits::{CHECKPOINT_COPY, DISK_ALIGNMENT};
use millrace::types::BlockNo;
use millrace::wal::op::FileName;
use millrace::wire::{checkpoint, segment};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The durable blocks of one node.
#[derive(Debug, Default)]
pub struct Image {
    blocks: BTreeMap<u64, Placed>,
    /// (first block of the file, position in it) -> block.
    places: BTreeMap<(u64, u64), u64>,
    /// End of the chain from the lowest block on.
    end: u64,
    /// Where the log begins, as the checkpoint says: what is left below counts no more.
    floor: u64,
}

#[derive(Debug)]
struct Placed {
    place: (u64, u64),
    facts: Rc<BlockFacts>,
}

/// What a write left in a file.
#[derive(Debug)]
pub enum Written {
    /// A block.
    Block(Rc<BlockFacts>),
    /// Bytes that are neither a block, nor zeros, nor a file's header.
    Foreign {
        /// Where.
        position: u64,
    },
}

impl Image {
    /// Reads a disk.
    pub fn scan(disk: &Disk, rot: &Rot) -> Image {
        let mut image = Image::default();
        image.read_start(disk);
        let bases: Vec<BlockNo> = disk.segments().map(|(base, _)| base).collect();
        for base in bases {
            if let Some(pages) = rot.sound(disk, FileName::Segment(base)) {
                image.take_in(base.0, &pages, 0, pages.len());
            }
        }
        image
    }

    /// The checkpoint was written: reads where the log begins now.
    pub fn read_start(&mut self, disk: &Disk) {
        let pages = disk.durable_content(FileName::Checkpoint);
        let bytes = pages.expect("always there").read(0, 2 * CHECKPOINT_COPY);
        let (one, two) = bytes.split_at(CHECKPOINT_COPY);
        let sound = [checkpoint::read(one), checkpoint::read(two)];
        let newest = sound.into_iter().flatten().max_by_key(|copy| copy.sequence);
        self.floor = newest.map_or(0, |copy| copy.log_start.block.0);
        if self.end < self.floor {
            self.end = self.floor;
            self.advance();
        }
    }

    /// First block held.
    pub fn start(&self) -> u64 {
        let first = self.blocks.range(self.floor..).next();
        first.map_or(self.floor, |(block, _)| *block)
    }

    /// End of the chain of sound blocks.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The block with this number, if the chain holds it.
    pub fn chained(&self, block: u64) -> Option<&Rc<BlockFacts>> {
        let placed = self.blocks.get(&block)?;
        (block >= self.floor && block < self.end).then_some(&placed.facts)
    }

    /// First block of its file, and position there, of a block that is held.
    pub fn place_of(&self, block: u64) -> Option<(u64, u64)> {
        self.blocks.get(&block).map(|placed| placed.place)
    }

    /// Whether the chain holds this very block, and so all before it. What was trimmed was held.
    pub fn holds(&self, facts: &BlockFacts) -> bool {
        let mine = self.chained(facts.block);
        facts.block < self.floor || mine.is_some_and(|mine| mine.header_crc == facts.header_crc)
    }

    /// A write of `len` bytes at `position` of the file whose first block is `base` is durable:
    /// `pages` are the file's. Returns the blocks found.
    pub fn take_in(
        &mut self,
        base: u64,
        pages: &Pages,
        mut position: u64,
        end: u64,
    ) -> Vec<Written> {
        let mut found = Vec::new();
        let bytes = pages.read(position, (end - position) as usize);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            self.forget(base, position);
            let mut step = DISK_ALIGNMENT;
            if let Some(facts) = block_facts(rest) {
                step = facts.padded_len;
                let facts = Rc::new(facts);
                self.put(base, position, &facts);
                found.push(Written::Block(facts));
            } else if position == 0 && segment::read(rest).is_some() {
                // The file's own header.
            } else if rest[..DISK_ALIGNMENT].iter().any(|byte| *byte != 0) {
                found.push(Written::Foreign { position });
            }
            rest = &rest[step..];
            position += step as u64;
        }
        found
    }

    /// The file whose first block is `base` is gone.
    pub fn freed(&mut self, base: u64) {
        let gone: Vec<u64> = self
            .places
            .range((base, 0)..=(base, u64::MAX))
            .map(|((_, position), _)| *position)
            .collect();
        for position in gone {
            self.forget(base, position);
        }
    }

    fn forget(&mut self, base: u64, position: u64) {
        let Some(block) = self.places.remove(&(base, position)) else {
            return;
        };
        if self.blocks.get(&block).map(|placed| placed.place) == Some((base, position)) {
            self.blocks.remove(&block);
            if block >= self.floor {
                self.end = self.end.min(block);
            }
        }
    }

    fn put(&mut self, base: u64, position: u64, facts: &Rc<BlockFacts>) {
        let place = (base, position);
        self.places.insert(place, facts.block);
        let facts = Rc::clone(facts);
        let block = facts.block;
        self.blocks.insert(block, Placed { place, facts });
        self.end = self.end.min(block).max(self.start());
        self.advance();
    }

    fn advance(&mut self) {
        while let Some(next) = self.blocks.get(&self.end).filter(|next| next.facts.sound) {
            let before = self.end.checked_sub(1).filter(|at| *at >= self.floor);
            let before = before.and_then(|at| self.blocks.get(&at));
            let follows = match before {
                Some(before) => {
                    before.facts.header_crc == next.facts.prev_header_crc
                        && before.facts.end_offset == next.facts.base_offset
                }
                None => self.end == self.start(),
            };
            if !follows {
                break;
            }
            self.end += 1;
        }
    }

    /// The blocks below `end`, in order.
    pub fn below(&self, end: u64) -> Vec<Rc<BlockFacts>> {
        let start = self.start();
        let held = self.blocks.range(start..end.min(self.end).max(start));
        held.map(|(_, placed)| Rc::clone(&placed.facts)).collect()
    }

    /// Name and digest of each segment file up to the end of its last block below `end`.
    pub fn files_below(&self, end: u64, disk: &Disk) -> Vec<(String, u64)> {
        let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
        let start = self.start();
        for placed in self
            .blocks
            .range(start..end.max(start))
            .map(|(_, placed)| placed)
        {
            let (base, position) = placed.place;
            let after = position + placed.facts.padded_len as u64;
            let end = ends.entry(base).or_default();
            *end = after.max(*end);
        }
        let mut files = Vec::new();
        for (base, end) in ends {
            let name = FileName::Segment(BlockNo(base));
            let pages = disk.durable_content(name).expect("its blocks are durable");
            let bytes = pages.read(0, end as usize);
            files.push((segment::file_name(BlockNo(base)), digest(&bytes)));
        }
        files
    }
}
