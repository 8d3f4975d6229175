//! The bytes of one simulated file, twice: as a reader sees them and as a loss of power leaves
//! them.
//!
//! Pages of 4096 bytes are shared between copies and a page of zeros takes no memory, so a disk can
//! be copied thousands of times. Sectors of 512 bytes in which the two sides may differ are
//! *dirty*: written, and not yet durable. Nothing here knows operations or names. Read `disk.rs`
//! next.

use millrace::limits::{DISK_ALIGNMENT, SECTOR};
use std::collections::BTreeSet;
use std::rc::Rc;

type Page = Rc<[u8; DISK_ALIGNMENT]>;

/// Sectors in a page.
const SECTORS: usize = DISK_ALIGNMENT / SECTOR;

/// Bytes of a fixed length, a multiple of 4096, zeros at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages(Vec<Option<Page>>);

impl Pages {
    /// `len` zeros.
    pub fn zeros(len: u64) -> Pages {
        assert!(
            len.is_multiple_of(DISK_ALIGNMENT as u64),
            "files are made of whole pages"
        );
        Pages(vec![None; len as usize / DISK_ALIGNMENT])
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        (self.0.len() * DISK_ALIGNMENT) as u64
    }

    /// The page at this index.
    pub fn page(&self, index: usize) -> &[u8; DISK_ALIGNMENT] {
        static ZEROS: [u8; DISK_ALIGNMENT] = [0; DISK_ALIGNMENT];
        self.0[index].as_deref().unwrap_or(&ZEROS)
    }

    /// The bytes of a range of whole pages, fewer if the end comes first.
    pub fn read(&self, position: u64, len: usize) -> Vec<u8> {
        let first = (position as usize / DISK_ALIGNMENT).min(self.0.len());
        let last = (first + len / DISK_ALIGNMENT).min(self.0.len());
        let mut bytes = Vec::with_capacity((last - first) * DISK_ALIGNMENT);
        for index in first..last {
            bytes.extend_from_slice(self.page(index));
        }
        bytes
    }

    /// Makes it longer, with zeros, if it is shorter than `len`.
    fn grow(&mut self, len: u64) {
        let pages = (len as usize).div_ceil(DISK_ALIGNMENT);
        self.0.resize(pages.max(self.0.len()), None);
    }

    /// Overwrites the sector with this number.
    pub fn set_sector(&mut self, sector: u64, bytes: &[u8]) {
        let slot = &mut self.0[sector as usize / SECTORS];
        if slot.is_none() && bytes.iter().all(|byte| *byte == 0) {
            return;
        }
        let page = slot.get_or_insert_with(|| Rc::new([0; DISK_ALIGNMENT]));
        let at = sector as usize % SECTORS * SECTOR;
        Rc::make_mut(page)[at..at + SECTOR].copy_from_slice(bytes);
    }

    fn set_pages(&mut self, position: u64, bytes: &[u8]) {
        let first = position as usize / DISK_ALIGNMENT;
        for (index, page) in bytes.chunks_exact(DISK_ALIGNMENT).enumerate() {
            let zero = page.iter().all(|byte| *byte == 0);
            let page: [u8; DISK_ALIGNMENT] = page.try_into().expect("a whole page");
            self.0[first + index] = (!zero).then(|| Rc::new(page));
        }
    }

    fn sector(&self, sector: u64) -> &[u8] {
        let at = sector as usize % SECTORS * SECTOR;
        &self.page(sector as usize / SECTORS)[at..at + SECTOR]
    }
}

/// A file: what a reader sees, and what a loss of power leaves.
#[derive(Clone, Debug)]
pub struct Content {
    current: Pages,
    durable: Pages,
    /// Sectors whose two sides may differ.
    dirty: BTreeSet<u64>,
}

impl Content {
    /// A file of zeros, durable.
    pub fn zeros(len: u64) -> Content {
        Content {
            current: Pages::zeros(len),
            durable: Pages::zeros(len),
            dirty: BTreeSet::new(),
        }
    }

    /// What a reader sees.
    pub fn current(&self) -> &Pages {
        &self.current
    }

    /// What a loss of power surely leaves.
    pub fn durable(&self) -> &Pages {
        &self.durable
    }

    /// Sectors that were written and are not yet durable.
    pub fn dirty(&self) -> &BTreeSet<u64> {
        &self.dirty
    }

    /// A durable write of whole sectors, completed. It makes the file longer if it ends behind it.
    pub fn write_durably(&mut self, position: u64, bytes: &[u8]) {
        self.grow(position + bytes.len() as u64);
        let whole = position.is_multiple_of(DISK_ALIGNMENT as u64)
            && bytes.len().is_multiple_of(DISK_ALIGNMENT);
        if whole && self.dirty.is_empty() {
            self.current.set_pages(position, bytes);
            self.durable.set_pages(position, bytes);
            return;
        }
        for (sector, part) in sectors(position, bytes) {
            self.current.set_sector(sector, part);
            self.durable.set_sector(sector, part);
            self.dirty.remove(&sector);
        }
    }

    /// A sector that reached the device; nobody said that it is durable.
    pub fn write_dirty(&mut self, sector: u64, bytes: &[u8]) {
        self.grow((sector + 1) * SECTOR as u64);
        self.current.set_sector(sector, bytes);
        self.dirty.insert(sector);
    }

    /// The length counts as durable at once: a longer file of zeros is a legal state anyway.
    fn grow(&mut self, len: u64) {
        self.current.grow(len);
        self.durable.grow(len);
    }

    /// Makes these sectors durable as they are.
    pub fn make_durable(&mut self, which: &BTreeSet<u64>) {
        for sector in which {
            if self.dirty.remove(sector) {
                let bytes = self.current.sector(*sector).to_vec();
                self.durable.set_sector(*sector, &bytes);
            }
        }
    }

    /// A loss of power: each dirty sector stays if `stays` says so; the two sides are then one.
    pub fn lose_power(&mut self, mut stays: impl FnMut() -> bool) {
        for sector in std::mem::take(&mut self.dirty) {
            if stays() {
                let bytes = self.current.sector(sector).to_vec();
                self.durable.set_sector(sector, &bytes);
            }
        }
        self.current = self.durable.clone();
    }

    /// Inverts one bit on both sides: the medium rots.
    pub fn flip_bit(&mut self, position: u64, bit: u8) {
        let sector = position / SECTOR as u64;
        for side in [&mut self.current, &mut self.durable] {
            let mut bytes = side.sector(sector).to_vec();
            bytes[position as usize % SECTOR] ^= 1 << bit;
            side.set_sector(sector, &bytes);
        }
    }
}

/// The sectors of a write: number and bytes of each.
pub fn sectors(position: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let first = position / SECTOR as u64;
    let parts = bytes.chunks_exact(SECTOR).enumerate();
    parts.map(move |(index, part)| (first + index as u64, part))
}
