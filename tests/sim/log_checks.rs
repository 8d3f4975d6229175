//! Checks of whole logs, when a run is at rest: every copy against what was acknowledged.
//!
//! The same rules as in `checker.rs`: facts in, a verdict out. A log is given as the blocks of one
//! node's disk up to its last committed one, files as their bytes up to the end of that block. Read
//! `checker.rs` first.

use super::checker::Checker;
use super::facts::{BatchId, BlockFacts};
use super::verdict::{Checked, Name, ensure};
use millrace::types::Level;
use std::collections::BTreeMap;
use std::rc::Rc;

/// One node's copy of the log.
#[derive(Clone, Debug)]
pub struct NodeLog {
    /// The node.
    pub node: usize,
    /// Its blocks from its log start up to the last committed one.
    pub blocks: Vec<Rc<BlockFacts>>,
    /// Its segment files: name, and the digest of its bytes up to the last committed block.
    pub files: Vec<(String, u64)>,
}

/// What was found in the end, for the run's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Appends acknowledged at `leader` that a leader without memory has cut.
    pub leader_acked_cut: u64,
    /// Appends acknowledged at `local` that are not there.
    pub local_acked_gone: u64,
    /// Batches in the log.
    pub batches: u64,
    /// Records in the log.
    pub records: u64,
}

impl Checker {
    /// The set is at rest: all copies agree, and hold what was acknowledged.
    pub fn at_rest(&self, logs: &[NodeLog]) -> Result<Outcome, super::verdict::Verdict> {
        for log in logs {
            self.same_as_committed(log)?;
        }
        for pair in logs.windows(2) {
            same_files(&pair[0], &pair[1])?;
        }
        let found = self.each_once()?;
        self.nothing_refused(&found)?;
        self.in_order(&found)?;
        self.acked_are_there(&found)
    }

    fn same_as_committed(&self, log: &NodeLog) -> Checked {
        let node = log.node;
        let end = log.blocks.last().map_or(0, |last| last.block + 1);
        ensure(end == self.committed_end(), Name::AckedLost, || {
            format!(
                "node {node} holds blocks up to {end} of {} committed ones",
                self.committed_end()
            )
        })?;
        for (mine, known) in log.blocks.iter().rev().zip(self.committed.iter().rev()) {
            ensure(
                mine.header_crc == known.header_crc,
                Name::CommittedChanged,
                || {
                    format!(
                        "node {node}: block {} is {mine:?}, committed was {known:?}",
                        known.block
                    )
                },
            )?;
            ensure(mine == known, Name::BytesDiffer, || {
                format!(
                    "node {node}: block {} has other bytes than were committed",
                    known.block
                )
            })?;
        }
        Ok(())
    }

    /// Every batch of the committed log: once, and with the bytes that were sent.
    fn each_once(&self) -> Result<BTreeMap<BatchId, (u64, u64)>, super::verdict::Verdict> {
        let mut found = BTreeMap::new();
        for block in &self.committed {
            for batch in block.batches.iter().filter(|batch| batch.record_count > 0) {
                let id = self.sent_as(batch);
                ensure(id.is_some(), Name::BytesDiffer, || {
                    format!("block {}: {batch:?} is not what a client sent", block.block)
                })?;
                let id = id.expect("just ensured");
                let before = found.insert(id, (block.block, batch.base_offset));
                ensure(before.is_none(), Name::AckedTwice, || {
                    format!("{id:?} at {before:?} and in block {}", block.block)
                })?;
            }
        }
        Ok(found)
    }

    fn nothing_refused(&self, found: &BTreeMap<BatchId, (u64, u64)>) -> Checked {
        for id in &self.refused {
            ensure(!found.contains_key(id), Name::RefusedAppended, || {
                format!("{id:?} was refused for good and is at {:?}", found[id])
            })?;
        }
        Ok(())
    }

    fn in_order(&self, found: &BTreeMap<BatchId, (u64, u64)>) -> Checked {
        let mut last: BTreeMap<(u32, u64), (BatchId, u64)> = BTreeMap::new();
        for (id, (_, offset)) in found {
            let session = (id.client, self.sent[id].session);
            let before = last.insert(session, (*id, *offset));
            let rises = before.is_none_or(|(_, earlier)| earlier < *offset);
            ensure(rises, Name::Reordered, || {
                format!("{id:?} stands at offset {offset}, {before:?} was sent before it")
            })?;
        }
        Ok(())
    }

    fn acked_are_there(
        &self,
        found: &BTreeMap<BatchId, (u64, u64)>,
    ) -> Result<Outcome, super::verdict::Verdict> {
        let mut outcome = Outcome {
            batches: found.len() as u64,
            records: self.committed_offset(),
            ..Outcome::default()
        };
        for (id, (ack, losses_before)) in &self.acked {
            let there = found.get(id) == Some(&(ack.block, ack.base_offset));
            let may_be_cut = self.memory_losses > *losses_before;
            match ack.level {
                _ if there => {}
                Level::Local => outcome.local_acked_gone += 1,
                Level::Leader if may_be_cut => outcome.leader_acked_cut += 1,
                Level::Leader | Level::Quorum => {
                    return Err(super::verdict::Verdict {
                        name: Name::AckedLost,
                        details: format!("{id:?} {ack:?} is at {:?} in the log", found.get(id)),
                    });
                }
            }
        }
        Ok(outcome)
    }
}

fn same_files(one: &NodeLog, other: &NodeLog) -> Checked {
    let first_name = match (one.files.first(), other.files.first()) {
        (Some((one, _)), Some((other, _))) => one.max(other).clone(),
        _ => return Ok(()),
    };
    let from = |log: &NodeLog| -> Vec<(String, u64)> {
        let kept = log.files.iter().filter(|(name, _)| *name >= first_name);
        kept.cloned().collect()
    };
    let (mine, theirs) = (from(one), from(other));
    ensure(mine == theirs, Name::BytesDiffer, || {
        format!(
            "segment files of nodes {} and {}: {mine:x?} and {theirs:x?}",
            one.node, other.node
        )
    })
}
