//! The states of a simulated disk after a crash.
//!
//! What completed is durable. What was in flight happened wholly, not at all, or, for a write, in
//! any subset of its sectors of 512 bytes. A loss of power also takes any subset of what reached
//! the device and was never made durable. The caller chooses with an [`Outcome`] per operation in
//! flight, or leaves it to chance. Injected faults are forgotten. All files are closed afterwards
//! but for the checkpoint, which is always open.

use super::content::sectors;
use super::disk::{Disk, InFlight};
use super::rng::Rng;
use millrace::limits::SECTOR;
use millrace::types::Ticket;
use millrace::wal::op::{CHECKPOINT_FILE, DiskOp, FileName};
use std::collections::BTreeMap;

/// What became of an operation in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It never happened.
    Not,
    /// It happened as if it had completed.
    Whole,
    /// These sectors of a write happened, counted from its start. As `Whole` for anything else.
    Sectors(Vec<bool>),
}

impl Outcome {
    /// Any outcome that is possible for this operation.
    pub fn any(op: &DiskOp, rng: &mut Rng) -> Outcome {
        let DiskOp::Write { len, .. } = *op else {
            return if rng.flip() {
                Outcome::Whole
            } else {
                Outcome::Not
            };
        };
        match rng.below(4) {
            0 => Outcome::Not,
            1 => Outcome::Whole,
            // Devices tear at one place more often than at many.
            2 => {
                let cut = rng.index(len / SECTOR + 1);
                let first_part = rng.flip();
                let kept = |sector| (sector < cut) == first_part;
                Outcome::Sectors((0..len / SECTOR).map(kept).collect())
            }
            _ => Outcome::Sectors((0..len / SECTOR).map(|_| rng.flip()).collect()),
        }
    }
}

impl Disk {
    /// The bytes of a write in flight; none of anything else.
    pub fn bytes_in_flight(&self, ticket: Ticket) -> &[u8] {
        let mut writes = self.in_flight.iter();
        let write = writes.find(|entry| entry.op.ticket() == ticket);
        write.map_or(&[], |entry| &entry.bytes)
    }

    /// The disk after a loss of power now. `rng` chooses among the legal states.
    pub fn crash(&self, rng: &mut Rng) -> Disk {
        let outcomes: Vec<Outcome> = self.in_flight().map(|op| Outcome::any(op, rng)).collect();
        self.crash_with(&outcomes, rng)
    }

    /// The disk after a loss of power now, with this outcome for each operation in flight, in
    /// order; `rng` decides over what reached the device before and was never made durable.
    pub fn crash_with(&self, outcomes: &[Outcome], rng: &mut Rng) -> Disk {
        let mut after = self.clone();
        after.rng = rng.fork();
        let in_flight = after.stop(outcomes);
        for change in std::mem::take(&mut after.late_names) {
            if rng.flip() {
                change.apply(&mut after.durable_names);
            }
        }
        for content in after.nodes.values_mut() {
            content.lose_power(|| rng.flip());
        }
        for (entry, outcome) in in_flight.iter().zip(outcomes) {
            match after.name_change(entry) {
                Some(change) if *outcome != Outcome::Not => change.apply(&mut after.durable_names),
                _ => after.happen(entry, outcome),
            }
        }
        for content in after.nodes.values_mut() {
            content.lose_power(|| true);
        }
        after.names = after.durable_names.clone();
        after.sync_names();
        after
    }

    /// The disk after the death of the process now: what was in flight may be seen, and a later
    /// loss of power may still take it. `rng` chooses among the legal states.
    pub fn kill(&self, rng: &mut Rng) -> Disk {
        let outcomes: Vec<Outcome> = self.in_flight().map(|op| Outcome::any(op, rng)).collect();
        let mut after = self.clone();
        after.rng = rng.fork();
        for (entry, outcome) in after.stop(&outcomes).iter().zip(&outcomes) {
            match after.name_change(entry) {
                Some(change) if *outcome != Outcome::Not => {
                    change.apply(&mut after.names);
                    after.late_names.push(change);
                }
                _ => after.happen(entry, outcome),
            }
        }
        after
    }

    /// Takes what is in flight and closes all files.
    fn stop(&mut self, outcomes: &[Outcome]) -> Vec<InFlight> {
        let in_flight = std::mem::take(&mut self.in_flight);
        self.injected.clear();
        assert!(
            outcomes.len() == in_flight.len(),
            "one outcome for each operation in flight"
        );
        let checkpoint = self.names[&FileName::Checkpoint];
        self.open = BTreeMap::from([(CHECKPOINT_FILE, checkpoint)]);
        in_flight
    }

    /// What reached the device of a write.
    fn happen(&mut self, entry: &InFlight, outcome: &Outcome) {
        let DiskOp::Write { position, .. } = entry.op else {
            return;
        };
        let content = self
            .nodes
            .get_mut(&entry.node)
            .expect("open files are kept");
        for (index, (sector, bytes)) in sectors(position, &entry.bytes).enumerate() {
            let happened = match outcome {
                Outcome::Not => false,
                Outcome::Whole => true,
                Outcome::Sectors(which) => which[index],
            };
            if happened {
                content.write_dirty(sector, bytes);
            }
        }
    }
}
