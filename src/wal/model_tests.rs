//! Random calls, crashes and restarts against a list: whatever happens, the log is that list.

use super::op::DiskOp;
use super::rig::{Disk, Random, Rig, config};
use super::{Output, RecoveredMemory, State};
use crate::types::{BlockNo, Epoch};
use crate::wire::checkpoint::Memory;

/// A rig and what its log must hold.
struct Model {
    rig: Rig,
    random: Random,
    seed: u64,
    /// Every record that may be in the log, from offset 0 on.
    values: Vec<Vec<u8>>,
    /// A cut under way: blocks and records that stay for sure.
    cutting: Option<usize>,
    made: usize,
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut random = Random(seed);
        let mut config = config();
        config.segment_bytes = [6, 9, 16][random.below(3)] * 4096;
        config.write_depth = 1 + random.below(8);
        let disk = Disk::new(config.segment_bytes);
        let mut model = Model {
            rig: Rig::start(config, disk),
            random,
            seed,
            values: Vec::new(),
            cutting: None,
            made: 0,
        };
        model.settle();
        model
    }

    /// Ends recovery, and checks what it found.
    fn settle(&mut self) {
        let durable = self.cutting.take();
        self.rig.run_shuffled(&mut self.random);
        let rig = &mut self.rig;
        assert_eq!(
            rig.log.state(),
            State::Open,
            "seed {}: {:?}",
            self.seed,
            rig.outputs
        );
        if rig.report().memory == RecoveredMemory::Blank {
            rig.log.create(Memory::Whole);
            rig.run();
        }
        if let Some(durable) = durable {
            assert!(
                rig.log.end_offset().0 as usize >= durable,
                "seed {}",
                self.seed
            );
        }
        self.values.truncate(rig.log.end_offset().0 as usize);
        self.check();
    }

    fn check(&mut self) {
        let start = self.rig.log.log_start().offset.0 as usize;
        let values = self.rig.values();
        let end = start + values.len();
        assert!(values == self.values[start..end], "seed {}", self.seed);
        assert_eq!(
            end as u64,
            self.rig.log.end_offset().0,
            "seed {}",
            self.seed
        );
    }

    fn complete(&mut self, most: usize) {
        for _ in 0..self.random.below(most) {
            if !self.rig.pending.is_empty() {
                let at = self.random.below(self.rig.pending.len());
                self.rig.complete(at);
            }
        }
        self.note_outputs();
    }

    fn note_outputs(&mut self) {
        let outputs = core::mem::take(&mut self.rig.outputs);
        for output in outputs {
            if let Output::CutDone(done) = output {
                self.cutting = None;
                self.values.truncate(done.end_offset.0 as usize);
            }
        }
    }

    fn append(&mut self) {
        let mut value = self.made.to_le_bytes().to_vec();
        value.resize(8 + self.random.below(9_000), self.made as u8);
        if self.rig.append(&value).is_ok() {
            self.made += 1;
            self.values.push(value);
        }
    }

    fn cut(&mut self) {
        let log = &mut self.rig.log;
        let lowest = log
            .checkpoint()
            .high_watermark
            .0
            .max(log.log_start().block.0);
        let choices = log.log_end().0 - lowest + 1;
        let from = BlockNo(lowest + self.random.below(choices as usize) as u64);
        let Some(stays) = log.end_offset_of(from) else {
            return;
        };
        let stays = stays.min(log.durable_offset());
        self.cutting = Some(stays.0 as usize);
        log.cut(from);
        self.rig.drain();
        self.note_outputs();
    }

    fn committed_and_trimmed(&mut self) {
        let log = &mut self.rig.log;
        let end = self.random.below(log.durable_end().0 as usize + 1) as u64;
        log.note_committed(BlockNo(end));
        if self.random.below(2) == 0 {
            log.trim(BlockNo(end));
        }
        // What is committed here is below every cut only once the checkpoint says so.
        self.rig.now = self.rig.now.plus_us(2_000_000);
        self.rig.log.on_time(self.rig.now, &mut self.rig.pool);
        self.rig.drain();
    }

    fn crash(&mut self) {
        let durable = self.rig.log.durable_offset().0 as usize;
        self.cutting = Some(self.cutting.map_or(durable, |stays| stays.min(durable)));
        let config = self.rig.config.clone();
        let rig = core::mem::replace(&mut self.rig, Rig::start(config.clone(), Disk::new(0)));
        self.rig = rig.crash(&mut self.random);
        for _ in 0..self.random.below(3) {
            self.rig.drain();
            for _ in 0..self.random.below(60) {
                if !self.rig.pending.is_empty() {
                    self.rig.complete(0);
                }
            }
            let rig = core::mem::replace(&mut self.rig, Rig::start(config.clone(), Disk::new(0)));
            self.rig = rig.crash(&mut self.random);
        }
        self.settle();
    }

    fn step(&mut self) {
        let cutting = self.rig.log.is_cutting();
        match self.random.below(100) {
            0..60 if !cutting => self.append(),
            60..63 if !cutting => self.cut(),
            63..66 if !cutting => {
                let epoch = Epoch(self.rig.log.last_epoch().0.max(1) + 1);
                let (now, pool) = (self.rig.now, &mut self.rig.pool);
                let _ = self.rig.log.append_local(now, epoch, pool);
                self.rig.drain();
            }
            66..70 if !cutting => self.committed_and_trimmed(),
            70..72 => self.crash(),
            72 if !cutting => {
                self.rig.log.stop(self.rig.now, &mut self.rig.pool);
                self.rig.run_shuffled(&mut self.random);
                assert_eq!(self.rig.log.state(), State::Stopped, "seed {}", self.seed);
                assert_eq!(self.rig.pool.out(), 0, "seed {}", self.seed);
                let disk = self.rig.disk.clone();
                self.cutting = Some(self.values.len());
                self.rig = Rig::start(self.rig.config.clone(), disk);
                self.settle();
            }
            _ => self.complete(6),
        }
    }
}

///
#[test]
fn the_log_is_the_list() {
    for seed in 0..150 {
        let mut model = Model::new(seed);
        for _ in 0..200 {
            model.step();
        }
        model.crash();
        model.append();
        model.rig.run();
        model.rig.seal();
        model.rig.run();
        model.check();
        let named = |pending: &super::rig::Pending| matches!(pending.op, DiskOp::Name { .. });
        assert!(!model.rig.pending.iter().any(named));
    }
}
