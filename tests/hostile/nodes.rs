//! Nodes under attack: their configuration, their logs on disk, and somebody who goes on working.
//!
//! A [`Witness`] is another client: it appends at `quorum` and reads its record back on connections
//! of its own, all through the attack. [`Held`] remembers every byte of every log, so that what was
//! there before can be shown to be there afterwards, with nothing behind it but what was
//! acknowledged.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use millrace::types::{Epoch, Level, LogId, Offset, OriginId, ReadLevel, ShardId};
use millrace::wire::body::{Append, Body, Status};
use millrace::wire::code::Code;

use crate::frames;
use crate::node::{Node, PATIENCE, millrace};
use crate::wire::{Answer, Wire};

pub const CLUSTER: u32 = 7;
pub const CORES: u16 = 2;

pub fn log(shard: u16) -> LogId {
    LogId {
        origin: OriginId(CLUSTER),
        shard: ShardId(shard),
    }
}

/// A few nodes of one cluster in one directory. Node `i` of `addresses` has the id `i + 1`.
pub struct Nodes {
    directory: tempfile::TempDir,
    pub ports: Vec<u16>,
    pub shards: u16,
    /// Lines of `[cluster]` besides.
    more: String,
    pub running: Vec<Node>,
}

impl Nodes {
    /// A cluster of so many members of which the first `real` are started.
    pub fn start(members: usize, real: usize, shards: u16) -> Nodes {
        let mut nodes = Nodes::place(members, shards);
        nodes.start_first(real);
        nodes
    }

    /// The same of a cluster with this secret.
    pub fn start_with_secret(members: usize, real: usize, shards: u16, secret: &[u8]) -> Nodes {
        let mut nodes = Nodes::place(members, shards);
        let path = nodes.directory.path().join("secret");
        fs::write(&path, secret).expect("the secret is written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        nodes.more = format!("secret_file = {path:?}\n");
        nodes.start_first(real);
        nodes
    }

    fn place(members: usize, shards: u16) -> Nodes {
        let below = Path::new(env!("CARGO_TARGET_TMPDIR"));
        Nodes {
            directory: tempfile::tempdir_in(below).expect("a temporary directory"),
            ports: (0..members)
                .map(|_| crate::node::ports::reserve(CORES))
                .collect::<Vec<u16>>(),
            shards,
            more: String::new(),
            running: Vec::new(),
        }
    }

    fn start_first(&mut self, real: usize) {
        for node in 0..real {
            let started = self.spawn(node);
            self.running.push(started);
        }
    }

    pub fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.ports[node])
    }

    /// Every port of a node: one a core.
    pub fn ports_of(&self, node: usize) -> Vec<String> {
        let port = |core| format!("127.0.0.1:{}", self.ports[node] + core);
        (0..CORES).map(port).collect()
    }

    fn spawn(&self, node: usize) -> Node {
        let mut text = format!(
            "[node]\nid = {}\ndata_dir = {:?}\n[cores]\ncount = {CORES}\n\
             [cluster]\nid = {CLUSTER}\nshards = {}\nelection = false\n{}\
             [link]\nretry_backoff_ms = 5\n[log]\nsegment_bytes = 4194304\n",
            node + 1,
            self.data(node),
            self.shards,
            self.more,
        );
        for other in 0..self.ports.len() {
            let (id, address) = (other + 1, self.address(other));
            text += &format!("[[cluster.nodes]]\nid = {id}\naddress = \"{address}\"\n");
        }
        let config = self.directory.path().join(format!("{node}.toml"));
        fs::write(&config, text).expect("the configuration is written");
        let mut command = millrace();
        command
            .args(["serve", "--new-member", "--config"])
            .arg(config);
        let said = File::create(self.said_path(node)).expect("a file for what it says");
        command
            .stdout(said.try_clone().expect("a file"))
            .stderr(said);
        Node::spawn(command, &self.address(node))
    }

    fn said_path(&self, node: usize) -> PathBuf {
        self.directory.path().join(format!("{node}.log"))
    }

    /// What a node said so far, line by line.
    pub fn said(&self, node: usize) -> Vec<String> {
        let text = fs::read_to_string(self.said_path(node)).expect("what it says");
        text.lines().map(str::to_owned).collect()
    }

    pub fn data(&self, node: usize) -> PathBuf {
        self.directory.path().join(format!("data-{node}"))
    }

    /// The node that leads a shard, and the port of the core that owns it there.
    pub fn leader(&self, shard: u16) -> (usize, String) {
        let node = usize::from(shard) % self.ports.len();
        let port = self.ports[node] + shard % CORES;
        (node, format!("127.0.0.1:{port}"))
    }

    /// Waits until `shard` takes appends.
    pub fn wait_until_led(&self, shard: u16) {
        let until = Instant::now() + PATIENCE;
        while !Witness::new(self, shard).try_append() {
            assert!(Instant::now() < until, "shard {shard} is never led");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The offset behind the last durable record of a shard, from the core that leads it: others
    /// know it a little later.
    pub fn end_offset(&self, shard: u16) -> u64 {
        // What was acknowledged at `local` is on its way to the disk: the end that stands still.
        let (mut last, mut stood) = (self.durable_offset(shard), 0);
        while stood < 5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let now = self.durable_offset(shard);
            stood = if now == last { stood + 1 } else { 0 };
            last = now;
        }
        last
    }

    /// Appends of a shard that its leader knew already: acknowledged, and no more in the log.
    pub fn retries(&self, shard: u16) -> u64 {
        let retries = self.shard_status(shard)["counters"]["retries"].as_u64();
        retries.expect("a number")
    }

    fn durable_offset(&self, shard: u16) -> u64 {
        let end = self.shard_status(shard)["durable_offset"].as_u64();
        end.expect("a number")
    }

    fn shard_status(&self, shard: u16) -> serde_json::Value {
        let mut wire = Wire::open(&self.leader(shard).1);
        wire.send_body(Status {}, 1, log(shard));
        let answer = wire.next().expect("a status");
        let status: serde_json::Value = serde_json::from_slice(&answer.payload).expect("JSON");
        let shards = status["shards"].as_array().expect("a list");
        let found = shards.iter().find(|one| one["shard"] == shard);
        found.expect("the shard").clone()
    }

    /// Every process lives; ends them cleanly. Nothing was said that belongs to a crash.
    pub fn stop(mut self) {
        for (index, node) in self.running.drain(..).enumerate().collect::<Vec<_>>() {
            assert!(node.stop().success(), "node {} stops cleanly", index + 1);
            let said = self.said(index);
            let panicked = said.iter().find(|line| line.contains("panicked"));
            assert_eq!(panicked, None);
        }
    }
}

/// The bytes of all logs of a node, by file, without what follows the last block.
pub struct Held(BTreeMap<PathBuf, Vec<u8>>);

impl Held {
    pub fn of(data: &Path) -> Held {
        let mut files = BTreeMap::new();
        for log in fs::read_dir(data).expect("the data directory").flatten() {
            let name = log.file_name().into_string().expect("a name");
            if !name.contains('-') {
                continue;
            }
            for file in fs::read_dir(log.path()).expect("a log").flatten() {
                let path = file.path();
                let is_segment = path.extension().is_some_and(|kind| kind == "seg");
                if is_segment && !path.ends_with("next.seg") {
                    let mut bytes = fs::read(&path).expect("a segment");
                    let last = bytes.iter().rposition(|byte| *byte != 0);
                    bytes.truncate(last.map_or(0, |last| last + 1));
                    files.insert(path, bytes);
                }
            }
        }
        Held(files)
    }

    /// Whatever came later, all of this is still where it was.
    pub fn assert_kept(&self) {
        assert!(!self.0.is_empty(), "there are logs");
        for (path, before) in &self.0 {
            let now = fs::read(path).expect("the segment is still there");
            let kept = now.get(..before.len()) == Some(&before[..]);
            assert!(kept, "{} has changed", path.display());
        }
    }
}

/// Another client, that appends to a shard and reads back.
pub struct Witness {
    wire: Wire,
    shard: u16,
    number: u64,
    /// Records it has appended.
    pub appended: u64,
}

impl Witness {
    pub fn new(nodes: &Nodes, shard: u16) -> Witness {
        Witness {
            wire: Wire::open(&nodes.leader(shard).1),
            shard,
            number: 0,
            appended: 0,
        }
    }

    fn ask(&mut self, body: impl Into<Body>, payload: &[u8]) -> Answer {
        self.number += 1;
        let mut bytes = body
            .into()
            .encode(self.number, log(self.shard), payload.len());
        bytes.extend_from_slice(payload);
        assert!(
            self.wire.send(&bytes),
            "another client's connection is closed"
        );
        let answer = self.wire.next();
        let answer = answer.expect("another client's connection is closed");
        assert_eq!(answer.correlation, self.number);
        answer
    }

    fn append(&mut self) -> Answer {
        let body = Append {
            level: Level::Quorum.number(),
            timeout_ms: 20_000,
        };
        self.ask(body, &frames::batch(1))
    }

    fn try_append(&mut self) -> bool {
        let answer = self.append();
        matches!(answer.body, Body::AppendOk(_))
    }

    /// Appends a record at `quorum` and reads it back.
    pub fn works(&mut self) {
        let answer = self.append();
        self.is_there(&answer);
    }

    /// The same, where a member's lie may have ended an epoch: until the next one is open a client
    /// has to ask again.
    pub fn works_soon(&mut self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = self.append();
            match answer.refusal() {
                Some((Code::NotReady | Code::Unknown, _)) if Instant::now() < until => {}
                _ => return self.is_there(&answer),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn is_there(&mut self, answer: &Answer) {
        let Body::AppendOk(ok) = &answer.body else {
            panic!("another client's append got {answer:?}");
        };
        self.appended += 1;
        self.reads(ok.base_offset);
    }

    fn reads(&mut self, offset: Offset) {
        let answer = self.ask(read(offset, ReadLevel::Committed), &[]);
        assert!(matches!(answer.body, Body::ReadOk(_)), "{answer:?}");
        let same = answer.payload.ends_with(b"what a client wants to keep");
        assert!(same, "the record that was appended");
    }
}

/// A read of one batch. Made from its golden frame, whatever fields it has besides these.
pub fn read(offset: Offset, level: ReadLevel) -> Body {
    let mut body = frames::golden("Read");
    let Body::Read(read) = &mut body else {
        panic!("the body of a Read");
    };
    read.offset = offset;
    read.max_bytes = 1;
    read.wait_ms = 20_000;
    read.level = level.number();
    read.last_epoch = Epoch(0);
    body
}
