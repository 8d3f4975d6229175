//! What may be on a disk after a crash, and whether the log comes back from it.
//!
//! At a point of a run, [`Examiner::freeze`] makes images of the disk as a loss of power or the
//! death of the process could leave it, and examines each: recover (sometimes crashing inside the
//! recovery too), compare, append more, crash again, recover again, compare. All are made from the
//! seed. Read `model.rs` for the comparisons, `workload.rs` for the runs.

use crate::kinds::{FEW_SECTORS, Kind, Kinds};
use crate::model::Model;
use crate::rig::Rig;
use crate::sim::disk::Disk;
use crate::sim::disk_crash::Outcome;
use crate::sim::rng::Rng;
use crate::verdict::{self, verdict};
use millrace::limits::{CHECKPOINT_COPY, SECTOR};
use millrace::types::NodeId;
use millrace::wal::op::{CHECKPOINT_FILE, DiskOp, FileName};

/// With so many operations in flight or fewer, every subset of them is examined.
const ALL_SUBSETS_UP_TO: usize = 3;

/// What was examined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Points of runs at which images were made.
    pub points: u64,
    /// Most operations in flight at a point.
    pub most_in_flight: usize,
    /// Images after a loss of power: operations wholly there or not at all.
    pub subsets: u64,
    /// Images after a loss of power: writes torn at sectors.
    pub torn: u64,
    /// Images after the death of the process.
    pub killed: u64,
    /// Images with one copy of the checkpoint rotten.
    pub rotten: u64,
    /// Recoveries that were themselves cut off by a crash.
    pub nested: u64,
    /// Recoveries that reported a torn tail.
    pub tails: u64,
    /// What was in flight, and torn.
    pub kinds: Kinds,
}

impl Tally {
    /// Images in all.
    pub fn images(&self) -> u64 {
        self.subsets + self.torn + self.killed + self.rotten
    }

    /// Adds what another run examined.
    pub fn add(&mut self, other: &Tally) {
        self.points += other.points;
        self.most_in_flight = self.most_in_flight.max(other.most_in_flight);
        self.subsets += other.subsets;
        self.torn += other.torn;
        self.killed += other.killed;
        self.rotten += other.rotten;
        self.nested += other.nested;
        self.tails += other.tails;
        self.kinds.add(&other.kinds);
    }
}

/// Makes images and examines them.
#[derive(Debug)]
pub struct Examiner {
    /// What was examined so far.
    pub tally: Tally,
    /// Images with torn writes at each point that has writes in flight.
    pub torn_per_point: u64,
    /// Name of the run, for verdicts.
    pub run: String,
}

/// How an image came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Image {
    Subset,
    Torn,
    Killed,
    Rotten,
}

impl Examiner {
    /// Examines the images of one point.
    pub fn freeze(&mut self, rig: &mut Rig) {
        self.tally.points += 1;
        let ops: Vec<DiskOp> = rig.disk.in_flight().copied().collect();
        self.tally.most_in_flight = self.tally.most_in_flight.max(ops.len());
        let mut rng = rig.rng.fork();
        let kinds = ops.iter().map(|op| Kind::of(&rig.disk, op));
        let kinds: Vec<Option<Kind>> = kinds.collect();
        let changing = kinds.iter().flatten();
        changing.for_each(|kind| self.tally.kinds.in_flight(*kind));
        for outcomes in subsets(&ops, &mut rng) {
            let disk = rig.disk.crash_with(&outcomes, &mut rng);
            self.examine(rig, disk, Image::Subset, &mut rng);
        }
        if ops.iter().any(|op| matches!(op, DiskOp::Write { .. })) {
            for _ in 0..self.torn_per_point {
                let outcomes = any_outcomes(&ops, &mut rng);
                self.examine_torn(rig, &kinds, &outcomes, &mut rng);
            }
        }
        for (index, op) in ops.iter().enumerate() {
            self.tear_everywhere(rig, (&ops, &kinds), (index, op), &mut rng);
        }
        if rng.below(2) == 0 {
            let disk = rig.disk.kill(&mut rng);
            self.examine(rig, disk, Image::Killed, &mut rng);
        }
        let saving = ops
            .iter()
            .any(|op| matches!(op, DiskOp::Write { file, .. } if *file == CHECKPOINT_FILE));
        if rig.model.created && !saving && rng.below(4) == 0 {
            let mut disk = rig.disk.crash(&mut rng);
            rot_one_checkpoint_copy(&mut disk, &mut rng);
            self.examine(rig, disk, Image::Rotten, &mut rng);
        }
    }

    /// Every subset of the sectors of a small write, once for each kind of write in a run; the
    /// other operations in flight end in any way.
    fn tear_everywhere(
        &mut self,
        rig: &Rig,
        (ops, kinds): (&[DiskOp], &[Option<Kind>]),
        (index, op): (usize, &DiskOp),
        rng: &mut Rng,
    ) {
        let sectors = match *op {
            DiskOp::Write { len, .. } => len / SECTOR,
            _ => return,
        };
        let kind = kinds[index].expect("a write changes the disk");
        if sectors > FEW_SECTORS || self.tally.kinds.counts(kind)[2] > 0 {
            return;
        }
        self.tally.kinds.all_subsets(kind);
        for mask in 0..1_u32 << sectors {
            let mut outcomes = any_outcomes(ops, rng);
            let kept = (0..sectors).map(|sector| mask >> sector & 1 == 1);
            outcomes[index] = Outcome::Sectors(kept.collect());
            self.examine_torn(rig, kinds, &outcomes, rng);
        }
    }

    fn examine_torn(
        &mut self,
        rig: &Rig,
        kinds: &[Option<Kind>],
        outcomes: &[Outcome],
        rng: &mut Rng,
    ) {
        for (kind, outcome) in kinds.iter().zip(outcomes) {
            let torn = match outcome {
                Outcome::Sectors(which) => which.contains(&true) && which.contains(&false),
                Outcome::Not | Outcome::Whole => false,
            };
            if let Some(kind) = kind.filter(|_| torn) {
                self.tally.kinds.torn(kind);
            }
        }
        let disk = rig.disk.crash_with(outcomes, rng);
        self.examine(rig, disk, Image::Torn, rng);
    }

    /// Says where the run is, for verdicts to come.
    pub fn place(&self, what: &str) {
        verdict::place(format!("{}, point {}, {what}", self.run, self.tally.points));
    }

    /// Recovers from `disk`, compares, appends, crashes again, recovers, compares.
    fn examine(&mut self, at: &Rig, disk: Disk, kind: Image, rng: &mut Rng) {
        verdict::count_image();
        let counter = match kind {
            Image::Subset => &mut self.tally.subsets,
            Image::Torn => &mut self.tally.torn,
            Image::Killed => &mut self.tally.killed,
            Image::Rotten => &mut self.tally.rotten,
        };
        *counter += 1;
        let point = self.tally.points;
        verdict::place(format!(
            "{}, point {point}, {kind:?}, {:?}",
            self.run,
            at.log.state()
        ));
        let mut rig = self.boot(at, disk, at.model.clone(), rng);
        let reads = rng.below(8) == 0;
        if reads {
            read_all(&mut rig);
        }
        append_more(&mut rig);
        let disk = match rng.below(3) {
            0 => {
                rig.stop();
                rig.disk.kill(rng)
            }
            1 => rig.disk.kill(rng),
            _ => rig.disk.crash(rng),
        };
        let model = rig.model.clone();
        let mut again = Rig::start(&rig.config, disk, model, rig.now, rng.next_u64());
        again.boot();
        let torn = again.recovered.as_ref().expect("it booted").torn;
        if let Some(torn) = torn {
            verdict!(torn_reported_twice, "{torn:?} after everything was durable");
        }
        if reads {
            read_all(&mut again);
        }
    }

    /// Boots a log from `disk`. One time in four a crash comes first, somewhere in the recovery.
    fn boot(&mut self, at: &Rig, disk: Disk, model: Model, rng: &mut Rng) -> Rig {
        let mut disk = disk;
        while rng.below(4) == 0 {
            let seed = rng.next_u64();
            let mut rig = Rig::start(&at.config, disk, model.clone(), at.now, seed);
            let steps = rng.below(24) as u32;
            if rig.recover(steps) {
                rig.boot();
                return self.count_tail(rig);
            }
            self.tally.nested += 1;
            disk = if rng.flip() {
                rig.disk.crash(rng)
            } else {
                rig.disk.kill(rng)
            };
        }
        let mut rig = Rig::start(&at.config, disk, model, at.now, rng.next_u64());
        rig.boot();
        self.count_tail(rig)
    }

    fn count_tail(&mut self, rig: Rig) -> Rig {
        let torn = rig
            .recovered
            .as_ref()
            .is_some_and(|found| found.torn.is_some());
        self.tally.tails += u64::from(torn);
        rig
    }
}

/// Outcomes of the operations in flight: each wholly there or not at all. All subsets if they are
/// few, else none, all, and some.
fn subsets(ops: &[DiskOp], rng: &mut Rng) -> Vec<Vec<Outcome>> {
    let outcome = |there: bool| if there { Outcome::Whole } else { Outcome::Not };
    if ops.len() <= ALL_SUBSETS_UP_TO {
        let subset = |mask: u32| {
            (0..ops.len())
                .map(|bit| outcome(mask >> bit & 1 == 1))
                .collect()
        };
        return (0..1 << ops.len()).map(subset).collect();
    }
    let mut found = vec![
        vec![Outcome::Not; ops.len()],
        vec![Outcome::Whole; ops.len()],
    ];
    for _ in 0..6 {
        found.push(ops.iter().map(|_| outcome(rng.flip())).collect());
    }
    found
}

fn any_outcomes(ops: &[DiskOp], rng: &mut Rng) -> Vec<Outcome> {
    ops.iter().map(|op| Outcome::any(op, rng)).collect()
}

fn rot_one_checkpoint_copy(disk: &mut Disk, rng: &mut Rng) {
    let copy = rng.below(2) * CHECKPOINT_COPY as u64;
    match rng.below(3) {
        0 => {
            let position = copy + rng.below(200);
            disk.flip_bit(FileName::Checkpoint, position, rng.below(8) as u8);
        }
        1 => disk.overwrite(FileName::Checkpoint, copy, &[0xFF; CHECKPOINT_COPY]),
        _ => disk.overwrite(FileName::Checkpoint, copy, &[0; CHECKPOINT_COPY]),
    }
}

/// Leads a new epoch for a few appends and waits until they are durable.
pub fn append_more(rig: &mut Rig) {
    rig.create_if_blank();
    let epoch = rig.new_epoch();
    rig.promise(epoch, NodeId(2));
    rig.drain();
    if !rig.open_epoch(epoch) {
        verdict!(
            boot_failed,
            "no append after recovery: {:?}",
            rig.log.state()
        );
    }
    for _ in 0..rig.rng.between(1, 4) {
        let body_len = rig.rng.between(1, 6000) as usize;
        rig.append(epoch, body_len);
    }
    rig.settle();
    if let Some(failure) = &rig.failed {
        verdict!(boot_failed, "no append after recovery: {failure}");
    }
}

/// Reads the whole log through its own index and compares.
pub fn read_all(rig: &mut Rig) {
    let (mut from, end) = (rig.log.log_start().block.0, rig.log.log_end().0);
    while from < end {
        match rig.load(from, end, 64 << 10) {
            Some(blocks) => from += blocks.max(1),
            None => {
                rig.drain();
                match rig.loaded_end {
                    Some(loaded_end) if loaded_end > from => from = loaded_end,
                    _ => verdict!(acked_lost, "block {from} of {end} cannot be read"),
                }
            }
        }
    }
}
