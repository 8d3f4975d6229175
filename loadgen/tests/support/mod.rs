//! Writes the files of a stopped cluster of three, and the ledger of the run that filled it.
//!
//! Two shards, several producers, several segments, blocks of uneven size; one batch whose outcome
//! is unknown is there, one is not. Everything goes through the wire formats, nothing through the
//! engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use loadgen::keys;
use loadgen::ledger::{Entry, Ledger, State};
use loadgen::payload::{Payload, PayloadMaker, Texts};
use millrace::client::codec::{self, Codec};
use millrace::limits::{BLOCK_HEADER, CHECKPOINT_COPY, SEGMENT_HEADER};
use millrace::types::{BlockNo, Epoch, LogId, Offset, OriginId, ShardId, Tick, padded};
use millrace::wire::batch::{self, Kind, LeaderHalf};
use millrace::wire::block::{self, BatchesCrc, BlockHeader};
use millrace::wire::checkpoint::{self, Checkpoint, LogStart};
use millrace::wire::record::{BatchBuilder, Record};
use millrace::wire::segment::{self, SegmentHeader};

/// Records in a batch.
pub const BATCH_RECORDS: u32 = 10;

const RUN: u32 = 0xabcd_1234;
const ORIGIN: OriginId = OriginId(9);
const RECORD_BYTES: usize = 120;
const BATCHES: u32 = 40;
const BLOCKS_PER_SEGMENT: u64 = 6;
const SEGMENT_BYTES: usize = 256 << 10;

/// A batch to be written, and where it says it belongs.
#[derive(Clone)]
pub struct Batch {
    pub producer: u32,
    pub first: u32,
    pub bytes: Vec<u8>,
}

/// Three nodes' directories and a ledger.
pub struct Cluster {
    folder: tempfile::TempDir,
    pub ledger: Ledger,
}

/// What the records of a cluster look like.
#[derive(Clone, Copy)]
pub struct Look {
    pub records: u32,
    pub payload: Payload,
    pub key_count: u32,
    pub stray_key: bool,
    pub codec: Codec,
}

impl Default for Look {
    fn default() -> Look {
        Look {
            records: BATCH_RECORDS,
            payload: Payload::Json,
            key_count: 0,
            stray_key: false,
            codec: Codec::None,
        }
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub text: String,
}

/// Where `tamper` says it was.
pub struct Said {
    pub block: u64,
    pub producer: u32,
    pub sequence: u32,
}

impl Said {
    pub fn record(&self) -> String {
        format!("producer {} sequence {}", self.producer, self.sequence)
    }

    pub fn block(&self) -> String {
        format!("block {} ", self.block)
    }
}

impl Cluster {
    pub fn new() -> Cluster {
        Cluster::with(|_| {})
    }

    pub fn of_single_records() -> Cluster {
        let look = Look {
            records: 1,
            ..Look::default()
        };
        Cluster::make(look, |_| {})
    }

    pub fn of(look: Look) -> Cluster {
        Cluster::make(look, |_| {})
    }

    /// `change` may change what is written of each shard, on all nodes alike.
    pub fn with(change: impl Fn(&mut Vec<Batch>)) -> Cluster {
        Cluster::make(Look::default(), change)
    }

    fn make(look: Look, change: impl Fn(&mut Vec<Batch>)) -> Cluster {
        let mut cluster = Cluster {
            folder: tempfile::tempdir().expect("a folder"),
            ledger: Ledger {
                run: RUN,
                shards: 2,
                record_bytes: RECORD_BYTES as u32,
                payload: look.payload,
                key_count: look.key_count,
                entries: Vec::new(),
            },
        };
        for shard in 0..2 {
            let mut batches = made(u32::from(shard), look);
            cluster.enter(shard, &batches, look.records);
            if shard == 0 {
                change(&mut batches);
            }
            for node in 1..=3 {
                write_log(&cluster.log(node, shard), shard, &batches);
            }
        }
        cluster
            .ledger
            .write(&cluster.ledger_path())
            .expect("written");
        cluster
    }

    /// Enters the batches of a shard as acked; the last as unknown, and one more that is nowhere.
    fn enter(&mut self, shard: u16, batches: &[Batch], records: u32) {
        for (index, batch) in batches.iter().enumerate() {
            let offset = Offset(index as u64 * u64::from(records));
            let unknown = shard == 0 && index + 1 == batches.len();
            self.ledger.entries.push(Entry {
                producer: batch.producer,
                first: batch.first,
                count: records,
                log: log_of(shard),
                state: if unknown {
                    State::Unknown(0)
                } else {
                    State::Acked(offset)
                },
            });
        }
        self.ledger.entries.push(Entry {
            producer: 900 + u32::from(shard),
            first: 0,
            count: records,
            log: log_of(shard),
            state: State::Unknown(20),
        });
    }

    pub fn acked_records(&self) -> u64 {
        self.ledger
            .records(|state| matches!(state, State::Acked(_)))
    }

    pub fn ledger_path(&self) -> PathBuf {
        self.folder.path().join("run.ledger")
    }

    fn data(&self, node: u32) -> PathBuf {
        self.folder.path().join(format!("node-{node}"))
    }

    fn log(&self, node: u32, shard: u16) -> PathBuf {
        // One node as a data directory is, the others as its inner folder: both are understood.
        let data = self.data(node);
        let data = if node == 1 { data.join("data") } else { data };
        data.join(format!("{ORIGIN}-{shard}"))
    }

    pub fn segments(&self, node: u32, shard: u16) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.log(node, shard)).expect("a folder");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("read").path()).collect();
        paths.retain(|path| path.extension().is_some());
        paths.sort();
        paths
    }

    /// Writes the checkpoint of a log that begins with this segment; one that cannot be read if it
    /// is not to be `whole`.
    pub fn write_checkpoint(&self, node: u32, shard: u16, first: &Path, whole: bool) {
        let bytes = fs::read(first).expect("read");
        let header = segment::read(&bytes[..SEGMENT_HEADER]).expect("a segment");
        let mut bytes = vec![0; 2 * CHECKPOINT_COPY];
        let mut facts = Checkpoint {
            log: header.log,
            sequence: 7,
            ..Checkpoint::default()
        };
        // The older copy is of before the trim.
        checkpoint::write(&mut bytes, &facts);
        facts.sequence += 1;
        facts.log_start = LogStart {
            block: header.base_block,
            offset: header.base_offset,
            prev_epoch: header.prev_epoch,
            prev_crc: header.prev_crc,
        };
        checkpoint::write(&mut bytes[CHECKPOINT_COPY..], &facts);
        if !whole {
            bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        }
        fs::write(self.log(node, shard).join("checkpoint"), bytes).expect("written");
    }

    /// File, position and used bytes of the last block of a log.
    pub fn last_block(&self, node: u32, shard: u16) -> (PathBuf, u64, u64) {
        let path = self.segments(node, shard).pop().expect("some");
        let bytes = fs::read(&path).expect("read");
        let (mut at, mut last) = (SEGMENT_HEADER, None);
        while let Ok(header) = block::read_header(&bytes[at..]) {
            last = Some((at as u64, u64::from(header.used_len)));
            at += header.padded_len();
        }
        let (position, used) = last.expect("a block");
        (path, position, used)
    }

    /// Appends an empty block to shard 0 of each node, with this tick.
    pub fn append_empty_blocks(&self, ticks: &[(u32, u64)]) {
        for (node, tick) in ticks {
            let (path, position, _) = self.last_block(*node, 0);
            let mut bytes = fs::read(&path).expect("read");
            let last = block::read_header(&bytes[position as usize..]).expect("a block");
            let mut writer = Writer::after(&last);
            let block = writer.block(&[], Tick(last.last_tick.0 + tick), false);
            let at = position as usize + last.padded_len();
            bytes[at..at + block.len()].copy_from_slice(&block);
            fs::write(&path, bytes).expect("written");
        }
    }

    pub fn tamper(&self, node: u32, change: &str) -> Said {
        let data = self.data(node);
        let outcome = loadgen(&["tamper", change, "--data", data.to_str().expect("UTF-8")]);
        assert_eq!(outcome.code, 0, "{outcome:?}");
        let number = |name: &str| {
            let after = outcome.text.split(&format!(" {name} ")).nth(1).expect(name);
            after
                .split_whitespace()
                .next()
                .and_then(|word| word.parse().ok())
                .expect(name)
        };
        Said {
            block: number("block"),
            producer: number("producer") as u32,
            sequence: number("sequence") as u32,
        }
    }

    pub fn verify(&self) -> Outcome {
        let data: Vec<PathBuf> = (1..=3).map(|node| self.data(node)).collect();
        let data: Vec<&Path> = data.iter().map(PathBuf::as_path).collect();
        self.verify_in(&data)
    }

    pub fn verify_in(&self, data: &[&Path]) -> Outcome {
        let data: Vec<&str> = data
            .iter()
            .map(|data| data.to_str().expect("UTF-8"))
            .collect();
        let (ledger, json) = (self.ledger_path(), self.folder.path().join("verify.json"));
        loadgen(&[
            "verify",
            "--ledger",
            ledger.to_str().expect("UTF-8"),
            "--data",
            &data.join(","),
            "--json",
            json.to_str().expect("UTF-8"),
        ])
    }

    pub fn json(&self) -> serde_json::Value {
        let text = fs::read(self.folder.path().join("verify.json")).expect("read");
        serde_json::from_slice(&text).expect("JSON")
    }
}

fn log_of(shard: u16) -> LogId {
    LogId {
        origin: ORIGIN,
        shard: ShardId(shard),
    }
}

fn loadgen(args: &[&str]) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .args(args)
        .output();
    let output = output.expect("it runs");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Outcome {
        code: output.status.code().unwrap_or(-1),
        text,
    }
}

/// The batches of a shard, of three producers in turn.
fn made(shard: u32, look: Look) -> Vec<Batch> {
    let (records, texts) = (look.records, Texts::new(5, RECORD_BYTES));
    let mut maker = PayloadMaker::new(look.payload, texts, 6, RUN, RECORD_BYTES);
    let own = |key: &u32| keys::shard_of(&keys::name(*key), 2) == ShardId(shard as u16);
    let own: Vec<u32> = (0..look.key_count).filter(own).collect();
    // One record of shard 0 lies under a key of shard 1, if that is asked for.
    let foreign = (0..look.key_count).find(|key| !own.contains(key));
    let batch = |index: u32| {
        let (producer, first) = (10 * (shard + 1) + index % 3, index / 3 * records);
        maker.producer(producer);
        let mut builder = BatchBuilder::new();
        builder.producer(Ledger::producer_id(RUN, producer), 0, first);
        for sequence in first..first + records {
            let time = 1_000 + u64::from(index);
            let stray = look.stray_key && (shard, index, sequence) == (0, 20, first);
            let chosen = own.get((index + sequence) as usize % own.len().max(1));
            let chosen = if stray { foreign } else { chosen.copied() };
            let key = chosen
                .map(|key| keys::name(key).to_vec())
                .unwrap_or_default();
            let value = maker.make(sequence, &key);
            builder.push(&Record::new(time, value).with_key(&key));
        }
        Batch {
            producer,
            first,
            bytes: codec::pack(builder.finish(), look.codec),
        }
    };
    (0..BATCHES).map(batch).collect()
}

/// Writes the segments of a log: blocks of one to four batches, an empty block first.
fn write_log(folder: &Path, shard: u16, batches: &[Batch]) {
    fs::create_dir_all(folder).expect("created");
    let log = log_of(shard);
    let mut writer = Writer::new(log);
    let mut rest = batches;
    while !rest.is_empty() {
        let header = SegmentHeader {
            log,
            base_block: writer.next,
            base_offset: writer.offset,
            prev_epoch: Epoch(u32::from(writer.next.0 > 0)),
            prev_crc: writer.previous,
        };
        let path = folder.join(segment::file_name(writer.next));
        let mut bytes = vec![0; SEGMENT_HEADER];
        segment::write(&mut bytes, &header);
        for index in 0..BLOCKS_PER_SEGMENT {
            let count = if writer.next.0 == 0 {
                0
            } else {
                1 + writer.next.0 as usize % 4
            };
            let (now, later) = rest.split_at(count.min(rest.len()));
            rest = later;
            bytes.extend(writer.block(now, Tick(writer.tick + 10), index == 0));
        }
        assert!(bytes.len() <= SEGMENT_BYTES, "{} bytes", bytes.len());
        bytes.resize(SEGMENT_BYTES, 0);
        fs::write(path, bytes).expect("written");
    }
}

/// The end of a log being written.
struct Writer {
    log: LogId,
    next: BlockNo,
    offset: Offset,
    previous: u32,
    tick: u64,
}

impl Writer {
    fn new(log: LogId) -> Writer {
        Writer {
            log,
            next: BlockNo(0),
            offset: Offset(0),
            previous: 0,
            tick: 1_000_000,
        }
    }

    fn after(last: &BlockHeader) -> Writer {
        Writer {
            log: last.log,
            next: last.block.next(),
            offset: last.end_offset,
            previous: last.header_crc,
            tick: last.last_tick.0,
        }
    }

    /// A whole block; without batches, an empty one.
    fn block(&mut self, batches: &[Batch], tick: Tick, first: bool) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_HEADER];
        let mut crc = BatchesCrc::default();
        let base = self.offset;
        let mut all: Vec<(Kind, Vec<u8>)> = batches
            .iter()
            .map(|batch| (Kind::Data, batch.bytes.clone()))
            .collect();
        if all.is_empty() {
            let mut empty = vec![0; millrace::limits::BATCH_HEADER];
            batch::write_client_half(&mut empty, &Default::default());
            all.push((Kind::Local, empty));
        }
        let mut latest = 0;
        for (kind, mut batch) in all.iter().cloned() {
            self.tick = (self.tick + 1).max(tick.0);
            let half = LeaderHalf {
                kind,
                log: self.log,
                base_offset: self.offset,
                tick: Tick(self.tick),
                txn_id: 0,
                origin_epoch: Epoch(1),
            };
            batch::write_leader_half(&mut batch, &half);
            let prefix = batch::check(&batch).expect("a sound batch");
            self.offset = prefix.end_offset();
            crc.add(prefix.header_crc);
            latest = batch::client_half(&batch).max_timestamp.max(latest);
            bytes.extend(batch);
        }
        let header = BlockHeader {
            log: self.log,
            epoch: Epoch(1),
            block: self.next,
            header_crc: 0,
            prev_header_crc: self.previous,
            batches_crc: crc.finish(),
            used_len: bytes.len() as u32,
            batch_count: all.len() as u32,
            record_count: (self.offset.0 - base.0) as u32,
            base_offset: base,
            end_offset: self.offset,
            committed_end: self.next,
            max_timestamp: latest,
            last_tick: Tick(self.tick),
            first_in_segment: first,
        };
        self.previous = block::write_header(&mut bytes, &header);
        block::check_batches(&bytes, &header).expect("a sound block");
        self.next = self.next.next();
        bytes.resize(padded(bytes.len()), 0);
        bytes
    }
}
