//! What a run did: how often each kind of fault happened, and how much was acknowledged.
//!
//! Sums over many runs show that the swarm reached every kind of fault: a kind that never happened
//! proves nothing. Plain counters; who counts is `world.rs` and its siblings.

use super::log_checks::Outcome;
use core::fmt;
use std::collections::BTreeMap;

/// Counts of one run, or of many.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Fault kind -> how often.
    pub faults: BTreeMap<&'static str, u64>,
    /// Acknowledged at `local`, `leader`, `quorum`.
    pub acked: [u64; 3],
    /// Batches acknowledged at `quorum` while the faults went on.
    pub under_faults: u64,
    /// Reads answered with records.
    pub reads: u64,
    /// Batches that producers sent again.
    pub retries: u64,
    /// Readers that were told that what they had read is gone.
    pub truncated_reads: u64,
    /// Searches by time answered with an offset.
    pub finds: u64,
    /// Reads below a log start, answered with where it is.
    pub below_start: u64,
    /// Files that logs gave back.
    pub freed: u64,
    /// Times that a log was begun anew.
    pub resets: u64,
    /// Things noted in the traces.
    pub events: u64,
    /// Virtual time, microseconds.
    pub virtual_us: u64,
    /// What was found at rest.
    pub outcome: Outcome,
    /// Blocks that nodes said they cut.
    pub blocks_cut: u64,
    /// Epochs that a leader opened in electing sets, and how often it was another node than before.
    pub elections: [u64; 2],
    /// Hash of the trace; of many runs, of the last one.
    pub trace_hash: u64,
}

/// Every kind of fault that a full run must have reached.
pub const KINDS: [&str; 27] = [
    "delay",
    "cut",
    "one_way_cut",
    "reset",
    "head_flip",
    "payload_flip",
    "append_flip",
    "kill",
    "power_loss",
    "power_loss_of_all",
    "pause",
    "clock_step",
    "lost_write",
    "torn_write",
    "reordered_write",
    "write_error",
    "short_write",
    "no_space",
    "blank_disk",
    "paused_link",
    "full_disk",
    "append_without_space",
    "promoted_leader",
    "elected_leader",
    "flipped_at_rest",
    "misdirected",
    OF_FIVE,
];

/// The one that needs a set of five.
const OF_FIVE: &str = "two_harmed_at_once";

/// Those that need a set that elects its leaders, or a large one: a mesh has none of them.
const OF_SETS: [&str; 3] = ["promoted_leader", "elected_leader", OF_FIVE];

impl Report {
    /// Counts a fault.
    pub fn count(&mut self, kind: &'static str, times: u64) {
        assert!(KINDS.contains(&kind), "{kind} has no row in the table");
        *self.faults.entry(kind).or_default() += times;
    }

    /// Adds another run.
    pub fn add(&mut self, other: &Report) {
        for (kind, times) in &other.faults {
            *self.faults.entry(kind).or_default() += times;
        }
        for (sum, more) in self.acked.iter_mut().zip(other.acked) {
            *sum += more;
        }
        self.under_faults += other.under_faults;
        self.reads += other.reads;
        self.retries += other.retries;
        self.truncated_reads += other.truncated_reads;
        self.finds += other.finds;
        self.below_start += other.below_start;
        self.freed += other.freed;
        self.resets += other.resets;
        self.events += other.events;
        self.virtual_us += other.virtual_us;
        self.outcome.leader_acked_cut += other.outcome.leader_acked_cut;
        self.outcome.local_acked_gone += other.outcome.local_acked_gone;
        self.outcome.batches += other.outcome.batches;
        self.outcome.records += other.outcome.records;
        self.blocks_cut += other.blocks_cut;
        self.elections[0] += other.elections[0];
        self.elections[1] += other.elections[1];
        self.trace_hash = other.trace_hash;
    }

    /// Kinds of faults that never happened.
    pub fn missing(&self) -> Vec<&'static str> {
        let count = |kind: &&'static str| self.faults.get(kind).copied().unwrap_or(0);
        KINDS.into_iter().filter(|kind| count(kind) == 0).collect()
    }

    /// Kinds of faults that never happened and that do happen in a set of three.
    pub fn missing_of_three(&self) -> Vec<&'static str> {
        let missing = self.missing().into_iter();
        missing.filter(|kind| *kind != OF_FIVE).collect()
    }

    /// Kinds of faults that never happened and that do happen in a mesh.
    pub fn missing_in_mesh(&self) -> Vec<&'static str> {
        let missing = self.missing().into_iter();
        missing.filter(|kind| !OF_SETS.contains(kind)).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<20} {:>10}", "fault", "times")?;
        for kind in KINDS {
            let times = self.faults.get(kind).copied().unwrap_or(0);
            writeln!(f, "{kind:<20} {times:>10}")?;
        }
        let [local, leader, quorum] = self.acked;
        writeln!(
            f,
            "acked appends: quorum {quorum}, leader {leader}, local {local}"
        )?;
        writeln!(
            f,
            "leader-acked cut after lost memory: {}, local-acked gone: {}, blocks cut: {}",
            self.outcome.leader_acked_cut, self.outcome.local_acked_gone, self.blocks_cut
        )?;
        writeln!(
            f,
            "files given back: {}, logs begun anew: {}, reads below a log start: {}, searches: {}",
            self.freed, self.resets, self.below_start, self.finds
        )?;
        let [epochs, changes] = self.elections;
        writeln!(
            f,
            "epochs by election: {epochs}, changes of the leader: {changes}"
        )?;
        write!(
            f,
            "in the logs: {} batches, {} records; reads answered: {}; events: {}; \
             virtual time: {} s",
            self.outcome.batches,
            self.outcome.records,
            self.reads,
            self.events,
            self.virtual_us / 1_000_000
        )
    }
}
