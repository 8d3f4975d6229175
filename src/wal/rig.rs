//! For tests: one log over a disk and a pool in memory.
//!
//! Operations wait until a test completes them, in any order, or crashes: then each that is in
//! flight has happened, not happened or, a write, reached any subset of its 512-byte sectors. The
//! pool checks the contract of buffers: released once, unchanged while a write holds them.

use super::op::{CHECKPOINT_FILE, DiskError, DiskOp, DiskResult, FileEntry, FileName};
use super::{AppendRefusal, Appended, Config, From, Load, Log, Output, Recovered, State};
use crate::buffers::Buffers;
use crate::limits::SECTOR;
use crate::types::{BlockNo, BufferId, Epoch, FileId, LogId, NodeId, OriginId, ShardId, Time};
use crate::wire::batch;
use crate::wire::block::{self, BlockHeader};
use crate::wire::checkpoint::Memory;
use crate::wire::record::{BatchBuilder, Record};
use core::ops::Range;
use std::collections::BTreeMap;

pub(super) const EPOCH: Epoch = Epoch(1);

/// Random numbers for tests: the same for the same seed.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

#[derive(Debug, Default)]
pub(super) struct Pool {
    buffers: BTreeMap<BufferId, Vec<u8>>,
    held: BTreeMap<BufferId, usize>,
    last: u32,
    /// Buffers that may be out at once.
    pub(super) limit: Option<usize>,
}

impl Pool {
    pub(super) fn out(&self) -> usize {
        self.buffers.len()
    }

    fn release(&mut self, id: BufferId) {
        assert!(self.buffers.contains_key(&id), "released once only");
        if self.held.get(&id).is_none_or(|held| *held == 0) {
            self.buffers.remove(&id);
        } else {
            // The bytes stay until the last operation that holds them has ended.
            *self.held.get_mut(&id).expect("held") |= RELEASED;
        }
    }

    fn hold(&mut self, id: BufferId) {
        *self.held.entry(id).or_default() += 1;
    }

    fn unhold(&mut self, id: BufferId) {
        let held = self.held.get_mut(&id).expect("it is held");
        *held -= 1;
        if *held == RELEASED {
            self.buffers.remove(&id);
        }
        if *held & !RELEASED == 0 {
            self.held.remove(&id);
        }
    }
}

const RELEASED: usize = 1 << 32;

impl Buffers for Pool {
    fn take(&mut self, len: usize) -> Option<BufferId> {
        if self.limit.is_some_and(|limit| self.buffers.len() >= limit) {
            return None;
        }
        self.last += 1;
        let id = BufferId(self.last);
        self.buffers
            .insert(id, vec![0xAA; crate::types::padded(len)]);
        Some(id)
    }

    fn bytes(&self, id: BufferId) -> &[u8] {
        &self.buffers[&id]
    }

    fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        assert!(
            !self.held.contains_key(&id),
            "a held buffer must not change"
        );
        self.buffers.get_mut(&id).expect("taken")
    }

    fn copy(&mut self, from: BufferId, range: Range<usize>, to: BufferId, at: usize) {
        let bytes = self.bytes(from)[range].to_vec();
        self.bytes_mut(to)[at..at + bytes.len()].copy_from_slice(&bytes);
    }
}

/// What survives a crash.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) files: BTreeMap<u64, Vec<u8>>,
    pub(super) names: BTreeMap<FileName, u64>,
    last: u64,
    segment_bytes: u64,
}

impl Disk {
    pub(super) fn new(segment_bytes: u64) -> Disk {
        let mut disk = Disk {
            segment_bytes,
            ..Disk::default()
        };
        disk.create(FileName::Checkpoint, 8192);
        disk
    }

    fn create(&mut self, name: FileName, len: u64) -> u64 {
        self.last += 1;
        self.files.insert(self.last, vec![0; len as usize]);
        let before = self.names.insert(name, self.last);
        assert!(before.is_none(), "{name:?} replaces nothing");
        self.last
    }

    pub(super) fn entries(&self) -> Vec<FileEntry> {
        let entry = |(name, id): (&FileName, &u64)| FileEntry {
            name: *name,
            len: self.files[id].len() as u64,
        };
        self.names.iter().map(entry).collect()
    }

    pub(super) fn file(&mut self, name: FileName) -> &mut Vec<u8> {
        let id = self.names[&name];
        self.files.get_mut(&id).expect("named files are there")
    }

    pub(super) fn segment(&mut self, base: u64) -> &mut Vec<u8> {
        self.file(FileName::Segment(BlockNo(base)))
    }

    pub(super) fn segments(&self) -> Vec<u64> {
        let base = |name: &FileName| match name {
            FileName::Segment(base) => Some(base.0),
            FileName::Checkpoint | FileName::Next => None,
        };
        self.names.keys().filter_map(base).collect()
    }

    fn rename(&mut self, id: u64, base: BlockNo) {
        self.names.retain(|_, named| *named != id);
        let before = self.names.insert(FileName::Segment(base), id);
        assert!(before.is_none(), "a segment is named once");
    }
}

/// An operation in flight, with what a write writes.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) op: DiskOp,
    bytes: Vec<u8>,
}

/// A log and its surroundings.
pub(super) struct Rig {
    pub(super) config: Config,
    pub(super) disk: Disk,
    pub(super) pool: Pool,
    pub(super) log: Log,
    pub(super) now: Time,
    pub(super) pending: Vec<Pending>,
    pub(super) outputs: Vec<Output>,
    /// Writes that were ever asked for: file, position, length.
    pub(super) writes: Vec<(FileId, u64, usize)>,
    /// Bytes that were ever asked to be read.
    pub(super) read_bytes: usize,
    open: BTreeMap<FileId, u64>,
}

/// A config with small bounds: blocks of 16 KiB, segments of 64 KiB.
pub(super) fn config() -> Config {
    let log = LogId {
        origin: OriginId(7),
        shard: ShardId(2),
    };
    let members = vec![NodeId(1), NodeId(2), NodeId(3)];
    Config {
        segment_bytes: 16 * 4096,
        max_block_bytes: 4 * 4096,
        max_batch_bytes: 4 * 4096 - 128,
        boot_id: [1; 16],
        ..Config::with_defaults(log, members)
    }
}

/// A client's batch with one record of this value.
pub(super) fn batch_of(value: &[u8], timestamp: u64) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.push(&Record::new(timestamp, value));
    builder.finish()
}

impl Rig {
    /// A log at work on what is on the disk, its recovery not yet begun.
    pub(super) fn start(config: Config, disk: Disk) -> Rig {
        Rig::start_at(config, disk, Time(1_000))
    }

    /// The same, when the clock shows `now`.
    pub(super) fn start_at(config: Config, disk: Disk, now: Time) -> Rig {
        let log = Log::new(config.clone(), &disk.entries(), now);
        let checkpoint = disk.names[&FileName::Checkpoint];
        Rig {
            config,
            disk,
            pool: Pool::default(),
            log,
            now,
            pending: Vec::new(),
            outputs: Vec::new(),
            writes: Vec::new(),
            read_bytes: 0,
            open: BTreeMap::from([(CHECKPOINT_FILE, checkpoint)]),
        }
    }

    /// A new log, created and open.
    pub(super) fn created(config: Config) -> Rig {
        let disk = Disk::new(config.segment_bytes);
        let mut rig = Rig::start(config, disk);
        rig.run();
        rig.log.create(Memory::Whole);
        rig.run();
        assert_eq!(rig.log.state(), State::Open);
        rig.outputs.clear();
        rig
    }

    /// Recovery of what is on the disk, to its end.
    pub(super) fn recovered(config: Config, disk: Disk) -> Rig {
        let mut rig = Rig::start(config, disk);
        rig.run();
        rig
    }

    /// Restarts as after a crash with everything in flight lost.
    pub(super) fn restart(self) -> Rig {
        Rig::recovered(self.config, self.disk)
    }

    /// What recovery said.
    pub(super) fn report(&self) -> Recovered {
        let mut all = self.outputs.iter().filter_map(|output| match output {
            Output::Recovered(recovered) => Some(recovered.clone()),
            _ => None,
        });
        let found = all.next();
        found.unwrap_or_else(|| panic!("not recovered: {:?}", self.outputs))
    }

    /// Takes operations and outputs until there are none.
    pub(super) fn drain(&mut self) {
        loop {
            let mut idle = true;
            while let Some(output) = self.log.poll_output() {
                idle = false;
                match output {
                    Output::Release(buffer) => self.pool.release(buffer),
                    other => self.outputs.push(other),
                }
            }
            while let Some(op) = self.log.poll_op(&mut self.pool) {
                idle = false;
                self.note(op);
            }
            if idle && !self.log.has_output() {
                return;
            }
        }
    }

    fn note(&mut self, op: DiskOp) {
        let mut bytes = Vec::new();
        match op {
            DiskOp::Write {
                file,
                position,
                buffer,
                start,
                len,
                ..
            } => {
                self.pool.hold(buffer);
                bytes = self.pool.bytes(buffer)[start..start + len].to_vec();
                self.writes.push((file, position, len));
            }
            DiskOp::Read { len, .. } => self.read_bytes += len,
            DiskOp::Open { file, name, .. } => {
                self.open.insert(file, self.disk.names[&name]);
            }
            _ => {}
        }
        self.pending.push(Pending { op, bytes });
    }

    /// Completes everything in order until nothing is left.
    pub(super) fn run(&mut self) {
        self.drain();
        while !self.pending.is_empty() {
            self.complete(0);
        }
    }

    /// Completes everything in a random order.
    pub(super) fn run_shuffled(&mut self, random: &mut Random) {
        self.drain();
        while !self.pending.is_empty() {
            self.complete(random.below(self.pending.len()));
        }
    }

    /// Carries out one operation and says so.
    pub(super) fn complete(&mut self, at: usize) {
        let pending = self.pending.remove(at);
        let count = self.apply(&pending);
        self.answer(&pending, Ok(count));
    }

    /// Answers one operation with an error or a short count, without carrying it out.
    pub(super) fn complete_with(&mut self, at: usize, result: DiskResult) {
        let pending = self.pending.remove(at);
        self.answer(&pending, result);
    }

    fn answer(&mut self, pending: &Pending, result: Result<usize, DiskError>) {
        if let DiskOp::Write { buffer, .. } = pending.op {
            self.pool.unhold(buffer);
        }
        let ticket = pending.op.ticket();
        self.log.on_disk(self.now, ticket, result, &mut self.pool);
        self.drain();
    }

    fn apply(&mut self, pending: &Pending) -> usize {
        match pending.op {
            DiskOp::Provide { file, .. } => {
                let len = self.disk.segment_bytes;
                let id = self.disk.create(FileName::Next, len);
                self.open.insert(file, id);
                0
            }
            DiskOp::Name { file, base, .. } => {
                self.disk.rename(self.open[&file], base);
                0
            }
            DiskOp::Free { file, .. } => {
                let id = self.open.remove(&file).expect("a file is freed once");
                self.disk.names.retain(|_, named| *named != id);
                0
            }
            DiskOp::Write { file, position, .. } => {
                self.put(file, position, &pending.bytes, |_| true);
                pending.bytes.len()
            }
            DiskOp::Read {
                file,
                position,
                buffer,
                len,
                ..
            } => {
                let bytes = &self.disk.files[&self.open[&file]];
                let start = bytes.len().min(position as usize);
                let bytes = bytes[start..bytes.len().min(start + len)].to_vec();
                if let Some(into) = self.pool.buffers.get_mut(&buffer) {
                    into[..bytes.len()].copy_from_slice(&bytes);
                }
                bytes.len()
            }
            DiskOp::Open { .. } | DiskOp::Sync { .. } | DiskOp::SyncDirectory { .. } => 0,
        }
    }

    fn put(&mut self, file: FileId, position: u64, bytes: &[u8], keep: impl FnMut(usize) -> bool) {
        let mut keep = keep;
        let into = self.disk.files.get_mut(&self.open[&file]).expect("open");
        let end = position as usize + bytes.len();
        if into.len() < end {
            into.resize(end, 0);
        }
        for (index, sector) in bytes.chunks(SECTOR).enumerate() {
            if keep(index) {
                let at = position as usize + index * SECTOR;
                into[at..at + sector.len()].copy_from_slice(sector);
            }
        }
    }

    /// Power is lost: of what is in flight anything may have happened. Starts recovery over the
    /// result.
    pub(super) fn crash(mut self, random: &mut Random) -> Rig {
        let pending = core::mem::take(&mut self.pending);
        for pending in pending {
            match (random.below(4), pending.op) {
                (0, _) => {}
                (1, DiskOp::Write { file, position, .. }) => {
                    let mut sectors = random.clone();
                    random.below(2);
                    self.put(file, position, &pending.bytes, |_| sectors.below(2) == 0);
                }
                (_, DiskOp::Read { .. }) => {}
                _ => {
                    self.apply(&pending);
                }
            }
        }
        Rig::start(self.config, self.disk)
    }

    /// Appends a batch with one record, as leader.
    pub(super) fn append(&mut self, value: &[u8]) -> Result<Appended, AppendRefusal> {
        self.append_at(value, 0)
    }

    pub(super) fn append_at(&mut self, value: &[u8], time: u64) -> Result<Appended, AppendRefusal> {
        self.append_bytes(&batch_of(value, time))
    }

    pub(super) fn append_bytes(&mut self, bytes: &[u8]) -> Result<Appended, AppendRefusal> {
        let limit = self.pool.limit.take();
        let buffer = self.pool.take(bytes.len()).expect("no limit");
        self.pool.limit = limit.map(|limit| limit + 1);
        self.pool.bytes_mut(buffer)[..bytes.len()].copy_from_slice(bytes);
        let half = batch::check_from_client(bytes).expect("just made");
        let pool = &mut self.pool;
        let epoch = self.log.last_epoch().max(EPOCH);
        let result = self
            .log
            .append(self.now, epoch, buffer, bytes.len(), &half, pool);
        self.pool.release(buffer);
        self.pool.limit = limit;
        self.seal();
        result
    }

    /// Hands in consecutive blocks as one run, as follower.
    pub(super) fn write_run(&mut self, blocks: &[(BlockHeader, Vec<u8>)]) {
        let bytes: Vec<u8> = blocks.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        let headers: Vec<BlockHeader> = blocks.iter().map(|(header, _)| *header).collect();
        let buffer = self.pool.take(bytes.len()).expect("no limit");
        self.pool.bytes_mut(buffer)[..bytes.len()].copy_from_slice(&bytes);
        self.log.write_run(buffer, &headers, &self.pool);
        self.drain();
    }

    pub(super) fn seal(&mut self) {
        self.log.seal_if_due(self.now, &mut self.pool);
        self.drain();
    }

    /// Appends a batch and waits for it to be durable.
    pub(super) fn append_durably(&mut self, value: &[u8]) {
        self.append(value).expect("there is room");
        self.run();
        assert_eq!(self.log.durable_end(), self.log.log_end());
    }

    /// Stops cleanly.
    pub(super) fn stop(&mut self) {
        self.log.stop(self.now, &mut self.pool);
        self.run();
        assert_eq!(self.log.state(), State::Stopped);
    }

    /// Loads blocks; from disk if they are not in memory.
    pub(super) fn load(
        &mut self,
        from: From,
        max_bytes: usize,
    ) -> Option<Vec<(BlockHeader, Vec<u8>)>> {
        let end = self.log.log_end();
        let (loaded, ours) = match self.log.load(77, from, end, max_bytes) {
            Load::Now(loaded) => (loaded, false),
            Load::NotHeld => return None,
            Load::Later => {
                self.run();
                let at = self
                    .outputs
                    .iter()
                    .position(|output| matches!(output, Output::Loaded { request: 77, .. }));
                let Output::Loaded { result, .. } = self.outputs.remove(at.expect("it ended"))
                else {
                    unreachable!("just matched");
                };
                (result.expect("the blocks are sound"), true)
            }
        };
        let bytes = self.pool.bytes(loaded.buffer).to_vec();
        let blocks = loaded.blocks.iter().map(|(header, at)| {
            let bytes = bytes[*at..*at + header.padded_len()].to_vec();
            assert_eq!(block::read_header(&bytes).as_ref(), Ok(header));
            block::check_batches(&bytes, header).expect("sound");
            (*header, bytes)
        });
        let blocks = blocks.collect();
        if ours {
            self.pool.release(loaded.buffer);
        }
        Some(blocks)
    }

    /// The values of all records of the log, read block by block.
    pub(super) fn values(&mut self) -> Vec<Vec<u8>> {
        let mut values = Vec::new();
        let mut next = self.log.log_start().block;
        while next < self.log.log_end() {
            let blocks = self.load(From::Block(next), 20_000).expect("held");
            for (header, bytes) in blocks {
                assert_eq!(header.block, next);
                next = next.next();
                values.extend(values_of(&header, &bytes));
            }
        }
        values
    }

    /// The file of a segment, as written so far.
    pub(super) fn segment(&mut self, base: u64) -> &mut Vec<u8> {
        self.disk.segment(base)
    }
}

/// The values of the records of a block.
pub(super) fn values_of(header: &BlockHeader, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut values = Vec::new();
    for (at, prefix) in block::batches(bytes, header) {
        let body = &bytes[at + 128..at + prefix.total_len()];
        for record in crate::wire::record::read_all(body) {
            values.push(record.expect("well formed").value.to_vec());
        }
    }
    values
}
