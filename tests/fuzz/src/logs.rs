//! One real log over a simulated disk, driven until nothing is left to do.

use super::sim::buffers::SimBuffers;
use super::sim::disk::Disk;
use millrace::buffers::Buffers as _;
use millrace::limits::BATCH_HEADER;
use millrace::types::{BlockNo, Epoch, LogId, NodeId, OriginId, ShardId, Time};
use millrace::wal::{
    Config, From, Load, Loaded, Log, Output, ReadError, Recovered, RecoveredMemory, Refusal,
};
use millrace::wire::batch::{self, ClientHalf};
use millrace::wire::block::{self, BlockHeader};
use millrace::wire::checkpoint::Memory;

pub const LOG: LogId = LogId {
    origin: OriginId(7),
    shard: ShardId(3),
};
pub const SEGMENT_BYTES: u64 = 64 << 10;

/// Bytes of buffers that a log gets; far more than it needs.
const BUDGET: usize = 128 << 20;
/// More operations than any recovery of so small a log takes.
const STEPS: u32 = 20_000;

pub fn members() -> Vec<NodeId> {
    vec![NodeId(1), NodeId(2), NodeId(3)]
}

pub fn config() -> Config {
    Config {
        segment_bytes: SEGMENT_BYTES,
        max_block_bytes: 16 << 10,
        max_batch_bytes: (16 << 10) - 128,
        max_block_records: 64,
        batch_timeout_us: 1000,
        boot_id: [9; 16],
        ..Config::with_defaults(LOG, members())
    }
}

/// A log and all that it said.
#[derive(Debug)]
pub struct Rig {
    pub log: Log,
    pub disk: Disk,
    pub buffers: SimBuffers,
    pub recovered: Option<Recovered>,
    pub refused: Option<Refusal>,
    pub failed: Option<String>,
    pub loaded: Option<Result<Loaded, ReadError>>,
    now: Time,
}

impl Rig {
    /// A log on what is there, when its recovery is over.
    pub fn start(disk: Disk) -> Rig {
        let now = Time(1_000_000);
        let mut rig = Rig {
            log: Log::new(config(), &disk.files(), now),
            disk,
            buffers: SimBuffers::new(BUDGET),
            recovered: None,
            refused: None,
            failed: None,
            loaded: None,
            now,
        };
        rig.settle();
        let said = [
            rig.recovered.is_some(),
            rig.refused.is_some(),
            rig.failed.is_some(),
        ];
        assert!(said.contains(&true), "it opens or says why not");
        rig
    }

    /// Everything that can happen without time passing.
    pub fn settle(&mut self) {
        for _ in 0..STEPS {
            if let Some(op) = self.log.poll_op(&mut self.buffers) {
                self.disk.submit(op, &mut self.buffers);
                continue;
            }
            if let Some(output) = self.log.poll_output() {
                self.take(output);
                continue;
            }
            let oldest = self.disk.in_flight().next().map(|op| op.ticket());
            let Some(ticket) = oldest else {
                return;
            };
            let (ticket, result) = self.disk.complete(ticket, &mut self.buffers);
            self.now = self.now.plus_us(30);
            let log = &mut self.log;
            log.on_disk(self.now, ticket, result, &mut self.buffers);
        }
        panic!("it comes to no end: {:?}", self.log.state());
    }

    fn take(&mut self, output: Output) {
        match output {
            Output::Recovered(found) => self.recovered = Some(found),
            Output::Refused(refusal) => {
                assert!(!refusal.rule.is_empty() && !refusal.mend.is_empty());
                self.refused = Some(refusal);
            }
            Output::Failed(why) => self.failed = Some(why),
            Output::Loaded { result, .. } => self.loaded = Some(result),
            Output::Release(buffer) => self.buffers.release(buffer),
            Output::Sealed(..)
            | Output::Durable { .. }
            | Output::Space { .. }
            | Output::Health(_)
            | Output::Saved(_)
            | Output::CutDone(_)
            | Output::Found { .. }
            | Output::Stopped => {}
        }
    }

    /// Founds the log if there is none.
    pub fn create(&mut self) {
        let found = self.recovered.as_ref().expect("it opened");
        if found.memory == RecoveredMemory::Blank {
            self.log.create(Memory::Whole);
            self.settle();
        }
    }

    /// Appends a batch of a producer and lets it become durable in a block of its own.
    pub fn append(&mut self, epoch: Epoch, half: &ClientHalf) {
        let mut bytes = vec![0x5a; BATCH_HEADER + half.stored_len as usize];
        batch::write_client_half(&mut bytes, half);
        let buffer = self.buffers.put(&bytes).expect("the budget is large");
        let len = bytes.len();
        let taken = self
            .log
            .append(self.now, epoch, buffer, len, half, &mut self.buffers);
        assert!(taken.is_ok(), "{taken:?}");
        self.buffers.release(buffer);
        self.now = self.now.plus_us(2000);
        self.log.seal_if_due(self.now, &mut self.buffers);
        self.settle();
    }

    /// The block with this number, served from here: header, and bytes as padded.
    pub fn load(&mut self, block: BlockNo) -> Option<(BlockHeader, Vec<u8>)> {
        let end = self.log.log_end();
        let (loaded, mine) = match self.log.load(1, From::Block(block), end, 1) {
            Load::Now(loaded) => (loaded, false),
            Load::NotHeld => return None,
            Load::Later => {
                self.settle();
                let answer = self.loaded.take().expect("a load is answered");
                (answer.ok()?, true)
            }
        };
        let (header, at) = loaded.blocks[0];
        let bytes = self.buffers.bytes(loaded.buffer)[at..at + header.used_len as usize].to_vec();
        if mine {
            self.buffers.release(loaded.buffer);
        }
        Some((header, bytes))
    }

    /// Asks for a clean stop and waits for it; whatever is left of the disk.
    pub fn stop(mut self) -> Disk {
        self.log.stop(self.now, &mut self.buffers);
        self.settle();
        self.buffers.assert_all_back();
        self.disk
    }
}

/// A block that is served has passed every check.
pub fn assert_sound(header: &BlockHeader, bytes: &[u8]) {
    assert_eq!(block::read_header(bytes).as_ref(), Ok(header));
    assert_eq!(block::check_batches(bytes, header), Ok(()), "{header:?}");
    assert_eq!(header.log, LOG);
}
