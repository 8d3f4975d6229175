//! Damage at rest: bits that flip and pages that were written to the wrong place, in blocks that a
//! node is known to hold.
//!
//! What was there is remembered until somebody writes the place anew: so the checkers go on to see
//! what the node durably wrote, and at rest nothing may be left. Only blocks below what the node's
//! checkpoint knows to have existed are hit: of the newest ones nobody can tell, after a crash,
//! whether they were written at all. Read `chaos.rs` for when it happens.

use super::content::Pages;
use super::disk::Disk;
use super::image::Image;
use super::options::Fault;
use super::rest::REST_WITHIN_US;
use super::verdict::{Checked, Name, ensure};
use super::world::World;
use millrace::limits::{DISK_ALIGNMENT, SECTOR};
use millrace::shard::Event;
use millrace::types::BlockNo;
use millrace::wal::op::FileName;
use std::collections::BTreeMap;

const PAGE: u64 = DISK_ALIGNMENT as u64;

/// The damaged pages of one node, as they were written.
#[derive(Clone, Debug, Default)]
pub struct Rot(BTreeMap<(FileName, u64), Vec<u8>>);

impl Rot {
    /// Whether all is as it was written.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn note(&mut self, disk: &Disk, name: FileName, page: u64) {
        let pages = disk.durable_content(name).expect("the file is there");
        let bytes = pages.read(page * PAGE, DISK_ALIGNMENT);
        self.0.entry((name, page)).or_insert(bytes);
    }

    /// These bytes were written anew.
    pub fn written(&mut self, name: FileName, position: u64, len: usize) {
        let pages = position / PAGE..(position + len as u64).div_ceil(PAGE);
        self.0
            .retain(|(file, page), _| *file != name || !pages.contains(page));
    }

    /// The file is gone; whether there was damage in it.
    pub fn freed(&mut self, name: FileName) -> bool {
        let before = self.0.len();
        self.0.retain(|(file, _), _| *file != name);
        self.0.len() < before
    }

    /// What the node durably wrote into a file.
    pub fn sound(&self, disk: &Disk, name: FileName) -> Option<Pages> {
        let mut pages = disk.durable_content(name)?.clone();
        for ((_, page), bytes) in self.0.iter().filter(|((file, _), _)| *file == name) {
            for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                pages.set_sector(page * (PAGE / SECTOR as u64) + index as u64, sector);
            }
        }
        Some(pages)
    }
}

impl World {
    /// Damages a block of a node that it is known to hold.
    pub fn rot(&mut self, fault: Fault, node: usize) {
        let known = self.nodes[node].known_end();
        let told = self.nodes[node].process.as_ref();
        let told = told.map_or(known, |process| process.told_committed);
        let end = self.checker.committed_end().min(known).min(told);
        let at = &mut self.nodes[node];
        let blocks = at.image.below(end);
        if blocks.is_empty() || self.options.members == 1 {
            return;
        }
        let mut pick = || {
            let facts = &blocks[self.chaos.rng.index(blocks.len())];
            let (base, position) = at.image.place_of(facts.block).expect("it is held");
            let within = self.chaos.rng.below(facts.padded_len as u64);
            (FileName::Segment(BlockNo(base)), position + within)
        };
        let (name, position) = pick();
        let page = position / PAGE;
        match fault {
            Fault::Misdirected => {
                let (from, source) = pick();
                let pages = at.disk.durable_content(from).expect("it is held");
                let bytes = pages.read(source / PAGE * PAGE, DISK_ALIGNMENT);
                let there = at.disk.durable_content(name).expect("it is held");
                if there.read(page * PAGE, DISK_ALIGNMENT) == bytes {
                    return;
                }
                at.rot.note(&at.disk, name, page);
                at.disk.overwrite(name, page * PAGE, &bytes);
                self.report.count("misdirected", 1);
            }
            _ => {
                at.rot.note(&at.disk, name, page);
                let bit = self.chaos.rng.below(8) as u8;
                assert!(at.disk.flip_bit(name, position, bit), "it is held");
                self.report.count("flipped_at_rest", 1);
            }
        }
        if node == self.leader() {
            self.checker.leader_lost_memory();
        }
    }

    /// Flips a bit of the header of a block that a node's disk holds.
    pub fn flip_in_block(&mut self, node: usize, block: u64) {
        let at = &mut self.nodes[node];
        let (base, position) = at.image.place_of(block).expect("it is held");
        let name = FileName::Segment(BlockNo(base));
        at.rot.note(&at.disk, name, position / PAGE);
        assert!(at.disk.flip_bit(name, position + 8, 1), "it is held");
        self.report.count("flipped_at_rest", 1);
    }

    /// Every log is read from end to end: what is damaged is repaired, and then nothing is.
    pub fn scrub_all(&mut self) -> Checked {
        if self.options.members == 1 {
            return Ok(());
        }
        for pass in 0..2 {
            let before = self.scrubs()?;
            for node in 0..self.nodes.len() {
                self.deliver(node, Event::Scrub { read: true })?;
            }
            self.wait_for(
                "the scrub to end and all damage to be repaired",
                move |world| {
                    let passes = world.scrubs()?;
                    let ended = passes.iter().zip(&before).all(|(now, then)| now.0 > then.0);
                    Ok(ended && passes.iter().all(|(_, open, _)| *open == 0))
                },
            )?;
            for (node, (_, _, found)) in self.scrubs()?.into_iter().enumerate() {
                ensure(pass == 0 || found == 0, Name::BytesDiffer, || {
                    format!("node {node}: the pass after the repairs finds {found}")
                })?;
                // What a leader that lost its end never got back lies behind its log.
                let committed = self.checker.committed_end();
                let at = &mut self.nodes[node];
                let end = Image::scan(&at.disk, &Rot::default()).end();
                ensure(end >= committed, Name::BytesDiffer, || {
                    format!("node {node}: sound up to {end} of {committed} after {REST_WITHIN_US}")
                })?;
                at.rot = Rot::default();
            }
        }
        Ok(())
    }

    /// Of each node: passes of the scrub, ranges that are damaged, places that the last pass found.
    fn scrubs(&mut self) -> Result<Vec<(u64, usize, u64)>, super::verdict::Verdict> {
        let nodes = 0..self.nodes.len();
        let status = nodes.map(|node| {
            let status = self.observe(node)?;
            let found = status.damage.last.map_or(0, |pass| pass.found);
            Ok((status.counters.scrubs, status.damage.ranges.len(), found))
        });
        status.collect()
    }
}
