//! One log over the simulated disk, with the model watching.
//!
//! The rig does what a shell and a shard do: it carries operations to the disk, completes them in
//! an order that its seed draws, hands outputs on, and gives buffers back. Every output goes
//! through the model first, so a wrong word of the log ends the run at once. Read `model.rs` for
//! what is checked, `workload.rs` and `images.rs` for who drives it.

use crate::maker;
use crate::model::{Model, Promise};
use crate::sim::buffers::SimBuffers;
use crate::sim::disk::Disk;
use crate::sim::rng::Rng;
use crate::verdict::verdict;
use millrace::buffers::Buffers;
use millrace::limits::SEGMENT_HEADER;
use millrace::types::{BlockNo, Epoch, NodeId, Offset, Tick, Ticket, Time};
use millrace::wal::op::DiskResult;
use millrace::wal::{
    AppendRefusal, Config, From, Load, Loaded, Log, Output, ReadError, Recovered, RecoveredMemory,
    Refusal, SaveId, State,
};
use millrace::wire::checkpoint::Memory;

/// Bytes of buffers that a log gets; far more than it needs.
const BUDGET: usize = 64 << 20;

/// More completions than any recovery of these tests needs.
const RECOVERY_STEPS: u32 = 100_000;

/// A log, its disk and its model.
#[derive(Debug)]
pub struct Rig {
    /// Its settings.
    pub config: Config,
    /// The log.
    pub log: Log,
    /// Its disk.
    pub disk: Disk,
    /// Its buffers.
    pub buffers: SimBuffers,
    /// What it must hold.
    pub model: Model,
    /// The time.
    pub now: Time,
    /// Chance.
    pub rng: Rng,
    /// What recovery said.
    pub recovered: Option<Recovered>,
    /// Why recovery refused.
    pub refused: Option<Refusal>,
    /// What made the log fail.
    pub failed: Option<String>,
    /// Whether the clean stop is complete.
    pub stopped: bool,
    /// The last save that was reported durable.
    pub last_saved: Option<SaveId>,
    /// Past the last block of the last load from disk that ended.
    pub loaded_end: Option<u64>,
    next_request: u64,
}

impl Rig {
    /// Starts a log on what is on `disk`.
    pub fn start(config: &Config, disk: Disk, mut model: Model, now: Time, seed: u64) -> Rig {
        model.new_process();
        let mut rig = Rig {
            log: Log::new(config.clone(), &disk.files(), now),
            config: config.clone(),
            disk,
            buffers: SimBuffers::new(BUDGET),
            model,
            now,
            rng: Rng::new(seed),
            recovered: None,
            refused: None,
            failed: None,
            stopped: false,
            last_saved: None,
            loaded_end: None,
            next_request: 1,
        };
        rig.pump();
        rig
    }

    /// The settings of the tests: small blocks and segments, so that much happens in few bytes.
    pub fn small_config(segment_bytes: u64) -> Config {
        let members = vec![NodeId(1), NodeId(2), NodeId(3)];
        Config {
            segment_bytes,
            max_block_bytes: 16 << 10,
            max_batch_bytes: (16 << 10) - 128,
            max_block_records: 64,
            batch_timeout_us: 1000,
            boot_id: [9; 16],
            ..Config::with_defaults(maker::LOG, members)
        }
    }

    /// Carries operations and outputs until there are none.
    pub fn pump(&mut self) {
        loop {
            if let Some(op) = self.log.poll_op(&mut self.buffers) {
                self.disk.submit(op, &mut self.buffers);
                continue;
            }
            let Some(output) = self.log.poll_output() else {
                return;
            };
            self.take(output);
        }
    }

    fn take(&mut self, output: Output) {
        match output {
            Output::Recovered(found) => {
                self.model.recovered(&found, &self.disk);
                self.recovered = Some(found);
            }
            Output::Refused(refusal) => self.refused = Some(refusal),
            Output::Sealed(header, buffer) => {
                self.model.push(header, self.buffers.bytes(buffer));
            }
            Output::Durable { end, offset } => {
                if let Some(failure) = &self.failed {
                    verdict!(acked_lost, "durable end {end} after the failure: {failure}");
                }
                self.model.durable(end.0, offset.0, &self.disk);
            }
            // Recovery's own save: nobody asked for it.
            Output::Saved(_) if self.recovered.is_none() => {}
            Output::Saved(id) => {
                self.model.saved(id, &self.disk);
                self.last_saved = Some(id);
            }
            Output::CutDone(done) => self.model.cut_done(done, &self.disk),
            Output::Loaded { result, .. } => {
                self.check_load_end(result);
            }
            Output::Found { .. } => panic!("nobody searches here"),
            Output::Space { .. } => panic!("every file finds its space here"),
            Output::Health(_) => panic!("nothing rots here"),
            Output::Failed(what) => self.failed = Some(what),
            Output::Release(buffer) => self.buffers.release(buffer),
            Output::Stopped => self.stopped = true,
        }
    }

    /// Ends one operation, whichever; false if none is in flight.
    pub fn complete_one(&mut self) -> bool {
        let ended = self.disk.complete_any(&mut self.rng, &mut self.buffers);
        let Some((ticket, result)) = ended else {
            return false;
        };
        self.ended(ticket, result);
        true
    }

    /// Ends the operation with this ticket.
    pub fn complete(&mut self, ticket: Ticket) {
        let (ticket, result) = self.disk.complete(ticket, &mut self.buffers);
        self.ended(ticket, result);
    }

    fn ended(&mut self, ticket: Ticket, result: DiskResult) {
        self.now = self.now.plus_us(30);
        self.log
            .on_disk(self.now, ticket, result, &mut self.buffers);
        self.pump();
    }

    /// Seals what is due, then lets time pass to the log's next wish if there is one.
    pub fn tick(&mut self) {
        self.log.seal_if_due(self.now, &mut self.buffers);
        self.pump();
        if let Some(due) = self.log.poll_timeout() {
            self.now = self.now.max(due);
            self.log.on_time(self.now, &mut self.buffers);
            self.pump();
        }
    }

    /// Completes whatever is in flight until nothing is.
    pub fn drain(&mut self) {
        while self.complete_one() {}
    }

    /// Seals and completes until all that was appended is durable, or the log failed.
    pub fn settle(&mut self) {
        for _ in 0..RECOVERY_STEPS {
            let open = self.log.open_end_offset() > self.log.durable_offset();
            let waits = self.model.durable_end < self.model.end() || open;
            if !self.complete_one() {
                if !waits || self.failed.is_some() {
                    return;
                }
                self.tick();
            }
        }
        let (durable, sealed) = (self.model.durable_end, self.model.end());
        verdict!(
            acked_lost,
            "never durable: durable end {durable}, sealed {sealed}"
        );
    }

    /// Lets recovery come to its end, or until `steps` operations have completed. True if it ended.
    pub fn recover(&mut self, steps: u32) -> bool {
        for _ in 0..steps.min(RECOVERY_STEPS) {
            let ended = self.recovered.is_some() || self.refused.is_some() || self.failed.is_some();
            if ended {
                return true;
            }
            if !self.complete_one() {
                verdict!(
                    boot_failed,
                    "recovery waits for nothing: {:?}",
                    self.log.state()
                );
            }
        }
        if steps >= RECOVERY_STEPS {
            verdict!(boot_failed, "recovery does not end");
        }
        self.recovered.is_some() || self.refused.is_some() || self.failed.is_some()
    }

    /// Recovery must succeed.
    pub fn boot(&mut self) {
        self.recover(RECOVERY_STEPS);
        if let Some(refusal) = &self.refused {
            verdict!(boot_failed, "{refusal}");
        }
        if let Some(failure) = &self.failed {
            verdict!(boot_failed, "{failure}");
        }
    }

    /// Writes the first checkpoint if the log is blank.
    pub fn create_if_blank(&mut self) {
        let blank = |found: &Recovered| found.memory == RecoveredMemory::Blank;
        if self.recovered.as_ref().is_some_and(blank) && !self.model.created {
            let id = self.log.create(Memory::Whole);
            self.model.asked(id, Promise::of(self.log.checkpoint()));
            self.pump();
        }
    }

    /// Asks for a promise of `epoch` with a vote to be saved.
    pub fn promise(&mut self, epoch: Epoch, vote: NodeId) -> SaveId {
        let id = self.log.save(|checkpoint| {
            checkpoint.promised = epoch;
            checkpoint.vote = Some(vote);
        });
        self.model.asked(id, Promise::of(self.log.checkpoint()));
        self.pump();
        id
    }

    /// An epoch above all that this log knows.
    pub fn new_epoch(&self) -> Epoch {
        let known = self.log.checkpoint().promised.max(self.log.last_epoch());
        Epoch(known.0 + 1)
    }

    /// As leader: appends one batch of so many bytes. False if it was not taken.
    pub fn append(&mut self, epoch: Epoch, body_len: usize) -> bool {
        let (bytes, half) = maker::client_batch(&mut self.rng, body_len);
        let buffer = self.buffers.put(&bytes).expect("the budget is large");
        let offset = self.log.open_end_offset();
        let taken = self.log.append(
            self.now,
            epoch,
            buffer,
            bytes.len(),
            &half,
            &mut self.buffers,
        );
        self.buffers.release(buffer);
        self.pump();
        match taken {
            Ok(appended) => {
                if appended.base_offset != offset {
                    verdict!(bytes_differ, "{appended:?} appended at {offset}");
                }
                true
            }
            Err(AppendRefusal::Full) => false,
            Err(refusal) => {
                assert!(
                    self.failed.is_some(),
                    "{refusal:?} of a log that is {:?}, cutting {}",
                    self.log.state(),
                    self.log.is_cutting()
                );
                false
            }
        }
    }

    /// As leader: appends the epoch's own block.
    pub fn open_epoch(&mut self, epoch: Epoch) -> bool {
        let opened = self.log.append_local(self.now, epoch, &mut self.buffers);
        self.pump();
        opened.is_ok()
    }

    /// As follower: gets a run of blocks and writes it.
    pub fn write_run(&mut self, epoch: Epoch, body_lens: &[usize]) {
        let mut run = Vec::new();
        let mut headers = Vec::new();
        for body_len in body_lens {
            let last = self.model.blocks.last();
            let link = maker::Link {
                block: BlockNo(self.model.end()),
                offset: last.map_or(Offset(0), |block| block.header.end_offset),
                prev_crc: self.model.last_crc(),
                tick: last.map_or(Tick(0), |block| block.header.last_tick),
            };
            let padded = millrace::types::padded(body_len + 256) as u64;
            let end = last.map_or(u64::MAX, |block| block.position + block.bytes.len() as u64);
            let rolls = end.saturating_add(padded) > self.config.segment_bytes;
            let committed = BlockNo(self.model.committed.min(link.block.0));
            let rng = &mut self.rng;
            let (bytes, header) = maker::block_of(rng, link, epoch, committed, *body_len, rolls);
            assert!(padded + SEGMENT_HEADER as u64 <= self.config.segment_bytes);
            self.model.push(header, &bytes);
            run.extend_from_slice(&bytes);
            headers.push(header);
        }
        let buffer = self.buffers.put(&run).expect("the budget is large");
        self.log.write_run(buffer, &headers, &self.buffers);
        self.pump();
    }

    /// Takes away every block from `from` on.
    pub fn cut(&mut self, from: u64) {
        self.model.cutting = Some(from);
        self.log.cut(BlockNo(from));
        self.pump();
    }

    /// Says that blocks below `end` are committed.
    pub fn commit(&mut self, end: u64) {
        self.model.committed = self.model.committed.max(end);
        self.log.note_committed(BlockNo(end));
        self.pump();
    }

    /// Takes away whole segments below `to`.
    pub fn trim(&mut self, to: u64) {
        self.model.trim_to = self.model.trim_to.max(to);
        self.log.trim(BlockNo(to));
        self.pump();
    }

    /// Asks for a clean stop and waits for it.
    pub fn stop(&mut self) {
        self.log.stop(self.now, &mut self.buffers);
        self.pump();
        self.drain();
        if self.failed.is_none() {
            assert!(
                self.stopped,
                "a clean stop does not end: {:?}",
                self.log.state()
            );
            self.buffers.assert_all_back();
        }
    }

    /// Reads some blocks from `from` on and compares them. Returns the number of blocks that came
    /// at once.
    pub fn load(&mut self, from: u64, end: u64, max_bytes: usize) -> Option<u64> {
        let request = self.next_request;
        self.next_request += 1;
        match self
            .log
            .load(request, From::Block(BlockNo(from)), BlockNo(end), max_bytes)
        {
            Load::Now(loaded) => {
                let blocks = loaded.blocks.len() as u64;
                self.check_loaded(&loaded, from);
                self.pump();
                Some(blocks)
            }
            Load::Later => {
                self.loaded_end = None;
                self.pump();
                None
            }
            Load::NotHeld => {
                let start = self.log.log_start().block.0;
                let state = self.log.state();
                if state == State::Open && (start..end).contains(&from) {
                    verdict!(acked_lost, "block {from} of {start}..{end} is not held");
                }
                self.pump();
                Some(0)
            }
        }
    }

    fn check_load_end(&mut self, result: Result<Loaded, ReadError>) {
        match result {
            Ok(loaded) => {
                let from = loaded.blocks.first().expect("at least one block").0.block.0;
                self.check_loaded(&loaded, from);
                self.loaded_end = Some(from + loaded.blocks.len() as u64);
                self.buffers.release(loaded.buffer);
            }
            // Trimmed, cut or failed meanwhile.
            Err(ReadError::NotHeld | ReadError::Disk(_)) => {}
            Err(error @ (ReadError::Corrupt { .. } | ReadError::Damaged(_))) => {
                verdict!(bytes_differ, "load: {error:?}")
            }
        }
    }

    fn check_loaded(&self, loaded: &Loaded, from: u64) {
        let bytes = self.buffers.bytes(loaded.buffer);
        for (index, (header, at)) in loaded.blocks.iter().enumerate() {
            let number = from + index as u64;
            let Some(block) = self.model.blocks.get(number as usize) else {
                verdict!(stale_block_read, "load: block {number} is not in the log");
            };
            let used = block.header.used_len as usize;
            if *header != block.header || bytes[*at..*at + used] != block.bytes[..used] {
                verdict!(bytes_differ, "load: block {number} is {header:?}");
            }
        }
    }
}
