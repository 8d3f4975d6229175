//! A run of a log's life: create, append, roll, save, follow, cut, trim, read, stop, crash, start.
//!
//! What happens is drawn from the seed. Before every completion of a disk operation the run stands
//! still and the images of that point are examined. At the end of each life one of the states that
//! a crash may leave becomes the disk of the next life. Read `images.rs` for the images, `rig.rs`
//! for the log under test.

use crate::images::{Examiner, Tally};
use crate::model::Model;
use crate::rig::Rig;
use crate::sim::disk::{Disk, DiskCounts, DiskFault, DiskOptions};
use crate::sim::rng::Rng;
use millrace::types::{Epoch, NodeId, Time};

/// Bytes of the segments of these runs.
const SEGMENT_BYTES: u64 = 96 << 10;

/// Committed blocks that a run keeps when it trims.
const KEPT_BLOCKS: u64 = 40;

/// How long a run is.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// Lives, each from a start to a stop or crash.
    pub lives: u64,
    /// Steps of a life.
    pub steps: u64,
    /// Images with torn writes at each point.
    pub torn_per_point: u64,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Disk operations of the run itself, those of the images not counted.
    pub disk: DiskCounts,
    /// What was examined.
    pub tally: Tally,
    /// Cuts of suffixes that were asked for.
    pub cuts: u64,
    /// Lives that ended in a failure of the disk.
    pub failures: u64,
}

impl Done {
    /// Adds what another run did.
    pub fn add(&mut self, other: &Done) {
        self.disk.add(&other.disk);
        self.tally.add(&other.tally);
        self.cuts += other.cuts;
        self.failures += other.failures;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Leader(Epoch),
    Follower(Epoch),
}

struct Run {
    rig: Rig,
    rng: Rng,
    examiner: Examiner,
    cuts: u64,
}

/// Runs a workload and examines every point of it.
pub fn run(seed: u64, length: Length) -> Done {
    let mut rng = Rng::new(seed);
    let config = Rig::small_config(SEGMENT_BYTES);
    let mut disk = Disk::new(DiskOptions::sound(SEGMENT_BYTES), rng.next_u64());
    let mut model = Model::default();
    let mut now = Time(1_700_000_000_000_000);
    let mut done = Done::default();
    let mut examiner = Examiner {
        tally: Tally::default(),
        torn_per_point: length.torn_per_point,
        run: format!("seed {seed}"),
    };
    for life in 0..length.lives {
        // The first lives are long and sound, later ones may meet a failing disk.
        if life > 0 && rng.below(3) == 0 {
            let kinds = [DiskFault::Short, DiskFault::Error, DiskFault::NoSpace];
            disk.inject(rng.below(60), *rng.pick(&kinds));
        }
        let rig = Rig::start(&config, disk, model, now, rng.next_u64());
        let mut life_of = Run {
            rig,
            rng: rng.fork(),
            examiner,
            cuts: 0,
        };
        life_of.live(length.steps);
        done.cuts += life_of.cuts;
        let rig = life_of.rig;
        examiner = life_of.examiner;
        done.failures += u64::from(rig.failed.is_some());
        disk = if rng.flip() {
            rig.disk.crash(&mut rng)
        } else {
            rig.disk.kill(&mut rng)
        };
        model = rig.model;
        now = rig.now.plus_us(1_000_000);
    }
    done.disk = disk.counts();
    done.tally = examiner.tally;
    done
}

impl Run {
    fn live(&mut self, steps: u64) {
        while !self.rig.recover(0) {
            if !self.io() {
                self.rig.recover(1);
            }
        }
        if self.rig.failed.is_some() {
            return self.check_silence();
        }
        self.rig.boot();
        self.rig.create_if_blank();
        let mut role = self.take_role();
        for step in 0..steps {
            if self.rig.failed.is_some() {
                return self.check_silence();
            }
            match role {
                Role::Leader(epoch) => self.lead(epoch),
                Role::Follower(epoch) => self.follow(epoch),
            }
            self.aside();
            if step % 16 == 15 && self.rng.below(2) == 0 {
                role = self.take_role();
            }
            let completions = self.rng.below(6);
            for _ in 0..completions {
                self.io();
            }
        }
        if self.rng.below(3) == 0 && self.rig.failed.is_none() {
            self.rig.log.stop(self.rig.now, &mut self.rig.buffers);
            self.rig.pump();
            while self.io() {}
        }
    }

    /// Stands still, then completes one operation; false if there is none.
    fn io(&mut self) -> bool {
        if self.rig.disk.in_flight().len() == 0 {
            return false;
        }
        self.examiner.freeze(&mut self.rig);
        self.examiner.place("the run itself");
        self.rig.complete_one()
    }

    /// Becomes leader or follower of a new epoch. A follower takes its log back to a common block.
    fn take_role(&mut self) -> Role {
        let epoch = self.rig.new_epoch();
        let wanted = self
            .rig
            .promise(epoch, NodeId(self.rng.between(1, 3) as u32));
        while self.rig.last_saved.is_none_or(|saved| saved < wanted) && self.io() {}
        if self.rng.flip() {
            while !self.rig.open_epoch(epoch) && self.io() {}
            return Role::Leader(epoch);
        }
        self.rig.log.discard_open();
        self.rig.pump();
        self.cut();
        Role::Follower(epoch)
    }

    fn cut(&mut self) {
        let end = self.rig.log.log_end().0;
        let least = self
            .rig
            .model
            .committed
            .max(self.rig.log.log_start().block.0);
        if self.rig.failed.is_some() || least >= end {
            return;
        }
        self.cuts += 1;
        let from = self.rng.between(least, end);
        self.rig.cut(from);
        while self.rig.model.cutting.is_some() && self.io() {}
        if self.rig.failed.is_none() {
            assert!(
                self.rig.model.cutting.is_none(),
                "a cut at {from} of {end} does not end"
            );
        }
    }

    fn lead(&mut self, epoch: Epoch) {
        for _ in 0..self.rng.below(12) {
            let body_len = match self.rng.below(8) {
                0 => self.rng.between(8000, 16_000),
                1..=3 => self.rng.between(1000, 4000),
                _ => self.rng.between(1, 600),
            };
            if !self.rig.append(epoch, body_len as usize) {
                break;
            }
        }
        self.rig.now = self.rig.now.plus_us(self.rng.below(400));
        self.rig
            .log
            .seal_if_due(self.rig.now, &mut self.rig.buffers);
        self.rig.pump();
    }

    fn follow(&mut self, epoch: Epoch) {
        for _ in 0..self.rng.below(4) {
            let blocks = self.rng.between(1, 4);
            let len = |_| self.rng.between(1, 9000) as usize;
            let body_lens: Vec<usize> = (0..blocks).map(len).collect();
            self.rig.write_run(epoch, &body_lens);
        }
        if self.rng.below(12) == 0 {
            self.cut();
        }
    }

    /// What happens beside appends: commits, saves, trims, reads, the clock.
    fn aside(&mut self) {
        if self.rig.failed.is_some() {
            return;
        }
        let durable = self.rig.model.durable_end;
        let committed = self.rig.model.committed;
        if self.rng.below(3) == 0 && durable > committed {
            self.rig.commit(self.rng.between(committed, durable));
        }
        match self.rng.below(12) {
            0 => {
                let epoch = self.rig.log.checkpoint().promised;
                self.rig
                    .promise(epoch, NodeId(self.rng.between(1, 3) as u32));
            }
            1 if committed > KEPT_BLOCKS => self.rig.trim(committed - KEPT_BLOCKS),
            2 | 3 => {
                let (start, end) = (self.rig.log.log_start().block.0, durable);
                if start < end {
                    self.rig
                        .load(self.rng.between(start, end - 1), end, 32 << 10);
                }
            }
            4 => {
                self.rig.now = self.rig.now.plus_us(self.rng.below(1_500_000));
                self.rig.tick();
            }
            _ => {}
        }
    }

    /// A log that failed asks nothing of the disk any more and acknowledges nothing (the rig sees
    /// to the latter).
    fn check_silence(&mut self) {
        let before = self.rig.disk.counts().changes();
        while self.io() {}
        let epoch = self.rig.new_epoch();
        for _ in 0..4 {
            assert!(!self.rig.append(epoch, 100), "an append to a failed log");
            self.rig.tick();
            while self.io() {}
        }
        let after = self.rig.disk.counts().changes();
        assert_eq!(before, after, "a failed log touches its disk");
    }
}
