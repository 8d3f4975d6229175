//! The write log of a disk, and the disks that a loss of power leaves.
//!
//! QEMU's `blklogwrites` keeps every write, flush and discard of a guest's disk in the format of
//! Linux's `dm-log-writes`. [`WriteLog::cut`] lays those before a point of the log over the disk as
//! it was: everything that a flush covers, and of what came behind the last flush either all, or
//! what chance lets through, in whole or in sectors. Nothing here knows what is on the disk. Read
//! `scripts/powerloss` for who uses it.
//!
//! ```text
//! superblock, one sector:  magic u64 · version u64 (1) · entries u64 · sector bytes u32
//! entry, one sector:       sector u64 · sectors u64 · flags u64 · data_len u64
//!                          then its sectors, unless it is a discard
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::random::Random;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

/// Bytes that a disk writes or loses as one.
const TORN: usize = 512;

/// What was done to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where on the disk, bytes.
    pub position: u64,
    /// How much, bytes; 0 of a flush alone.
    pub len: u64,
    /// Bits: 1 what was written before is durable, 2 this is durable, 4 discards.
    pub flags: u64,
    /// Where its data is in the log, bytes.
    pub data: u64,
    /// Where it ends in the log, bytes.
    pub end: u64,
}

/// A log, its entries read.
#[derive(Debug)]
pub struct WriteLog {
    file: File,
    /// In the order in which they were begun.
    pub entries: Vec<Entry>,
}

/// What came of a cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Writes and discards that a flush covers, or that were durable by themselves.
    pub durable: u64,
    /// Others that are there in whole.
    pub kept: u64,
    /// Others of which some sectors are there.
    pub torn: u64,
    /// Others that are not there.
    pub dropped: u64,
}

fn not_a_log(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl WriteLog {
    /// Reads the entries of a log that was closed cleanly.
    pub fn open(path: &Path) -> io::Result<WriteLog> {
        let file = File::open(path)?;
        let number = |at: u64| -> io::Result<u64> {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at)?;
            Ok(u64::from_le_bytes(bytes))
        };
        if number(0)? != MAGIC || number(8)? != VERSION {
            return Err(not_a_log("it is no write log of version 1"));
        }
        let count = number(16)?;
        let sector = number(24)? & u64::from(u32::MAX);
        if !sector.is_power_of_two() || !(512..=1 << 23).contains(&sector) {
            return Err(not_a_log(format!("its sectors are of {sector} bytes")));
        }
        let size = file.metadata()?.len();
        let (mut at, mut entries) = (sector, Vec::new());
        for place in 0..count {
            let (begin, sectors, flags) = (number(at)?, number(at + 8)?, number(at + 16)?);
            let data = at + sector;
            let len = sectors.checked_mul(sector).filter(|len| *len <= 1 << 40);
            let position = begin.checked_mul(sector);
            let (Some(len), Some(position)) = (len, position) else {
                return Err(not_a_log(format!("entry {place} is out of any range")));
            };
            let stored = if flags & DISCARD == 0 { len } else { 0 };
            if data + stored > size {
                return Err(not_a_log(format!("entry {place} of {count} is cut short")));
            }
            at = data + stored;
            entries.push(Entry {
                position,
                len,
                flags,
                data,
                end: at,
            });
        }
        Ok(WriteLog { file, entries })
    }

    /// The ends of entries that are flushes: points at which all before them is durable.
    pub fn flushes(&self) -> impl Iterator<Item = u64> {
        let flushes = self.entries.iter();
        flushes
            .filter(|entry| entry.flags & FLUSH != 0)
            .map(|entry| entry.end)
    }

    /// Makes `image` what the disk `base` holds once the power was lost at byte `at` of the log:
    /// with everything that was begun before, or, with a seed, without some of what no flush
    /// covers.
    pub fn cut(&self, base: &Path, image: &Path, at: u64, seed: Option<u64>) -> io::Result<Cut> {
        fs::copy(base, image)?;
        let disk = File::options().write(true).open(image)?;
        let before = self.entries.partition_point(|entry| entry.end <= at);
        let before = &self.entries[..before];
        let flushed = before.iter().rposition(|entry| entry.flags & FLUSH != 0);
        let mut chance = seed.map(Random::new);
        let mut cut = Cut::default();
        for (place, entry) in before.iter().enumerate().filter(|(_, entry)| entry.len > 0) {
            let durable = flushed.is_some_and(|last| place < last) || entry.flags & FUA != 0;
            let mut draw = |bound| chance.as_mut().map_or(0, |chance| chance.below(bound));
            let (count, sectors) = match draw(3) {
                _ if durable => (&mut cut.durable, None),
                0 => (&mut cut.kept, None),
                1 => (&mut cut.dropped, Some(BTreeSet::new())),
                _ => {
                    let all = 0..entry.len / TORN as u64;
                    let some = all.filter(|_| draw(2) == 0);
                    (&mut cut.torn, Some(some.collect()))
                }
            };
            *count += 1;
            self.lay(&disk, entry, sectors.as_ref())?;
        }
        disk.sync_all()?;
        Ok(cut)
    }

    /// Lays an entry over a disk, all of it or these of its sectors.
    fn lay(&self, disk: &File, entry: &Entry, sectors: Option<&BTreeSet<u64>>) -> io::Result<()> {
        let mut bytes = vec![0; usize::try_from(entry.len).map_err(io::Error::other)?];
        if entry.flags & DISCARD == 0 {
            self.file.read_exact_at(&mut bytes, entry.data)?;
        }
        let Some(sectors) = sectors else {
            return disk.write_all_at(&bytes, entry.position);
        };
        for sector in sectors {
            let at = *sector as usize * TORN;
            disk.write_all_at(&bytes[at..at + TORN], entry.position + at as u64)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "writelog_tests.rs"]
mod tests;
