//! Batches are encoded once, by the client, and everybody behind it carries them as they are: three
//! real nodes.
//!
//! One run appends batches that the test makes itself, byte by byte: plain, packed at two levels,
//! and of a codec and a flag that nobody knows. They reach the followers live; after the leader
//! changed and everybody was restarted, from the disk; and from a later base, on a blank disk while
//! the log's beginning is gone. What then lies in every node's files and what every node gives to a
//! client is held against what was made, and the nodes' files against one another.
//!
//! That it can fail: with the feature `faults` and `MILLRACE_FAULT=re_encode` or
//! `re_encode_on_catch_up` the nodes' files differ, and the run says so in a line `verdict: `.

mod node;

use millrace::limits::{BATCH_HEADER, SEGMENT_HEADER};
use millrace::types::{Epoch, Level, LogId, Offset, OriginId, ReadLevel, ShardId};
use millrace::wire::batch::{self, CLIENT_HALF, ClientHalf};
use millrace::wire::body::{Append, Body, Read};
use millrace::wire::code::{Code, Retry};
use millrace::wire::record::{BatchBuilder, Record, records_encoded};
use millrace::wire::{block, frame, segment};
use node::{Node, PATIENCE, Place, finish, millrace, ports, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

const LOG: LogId = LogId {
    origin: OriginId(7),
    shard: ShardId(0),
};
/// Records of a batch: a few to a block.
const RECORDS: usize = 100;
/// A flag of no version so far, and the codec that no number stands for.
const STRANGE: u16 = 1 << 15 | batch::CODEC_MASK;

/// What was made, by the offset of the first record.
type Made = BTreeMap<u64, Vec<u8>>;
/// Segment files by name.
type Files = BTreeMap<String, Vec<u8>>;

/// A batch of a form of its own, as its number says.
fn make(number: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    for record in 0..RECORDS {
        let at = (number * RECORDS + record) as u64;
        let value = format!(
            "{{\"meter\": {record}, \"reading\": {}, \"unit\": \"kWh\"}}",
            at * 7919
        );
        builder.push(&Record::new(at, value.repeat(3).as_bytes()));
    }
    let plain = builder.finish();
    let (mut half, body) = (batch::client_half(&plain), &plain[BATCH_HEADER..]);
    let packed = |level| zstd::bulk::compress(body, level).expect("it packs");
    let stored = match number % 4 {
        0 => return plain,
        1 => packed(1),
        2 => packed(15),
        _ => body.iter().map(|byte| byte ^ 0x5A).collect(),
    };
    half.flags |= if number % 4 == 3 {
        STRANGE
    } else {
        batch::FLAG_ZSTD
    };
    sealed(half, &stored)
}

fn sealed(mut half: ClientHalf, stored: &[u8]) -> Vec<u8> {
    half.stored_len = stored.len() as u32;
    let mut bytes = [&[0; BATCH_HEADER][..], stored].concat();
    batch::write_client_half(&mut bytes, &half);
    bytes
}

/// Whether a batch is the one that was made, the leader's half of the header apart.
fn is_as_made(found: &[u8], made: &[u8]) -> bool {
    found[CLIENT_HALF..] == made[CLIENT_HALF..]
        && batch::client_crc(found) == batch::client_crc(made)
}

/// Asks a node something; the answer with its payload.
fn ask(address: &str, body: impl Into<Body>, payload: &[u8]) -> (Body, Vec<u8>) {
    let mut stream = TcpStream::connect(address).expect("the node's port is open");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("an open socket");
    let head = body.into().encode(1, LOG, payload.len());
    stream.write_all(&[&head, payload].concat()).expect("sent");
    let mut read = |len: usize| {
        let mut bytes = vec![0; len];
        stream.read_exact(&mut bytes).expect("the node answers");
        bytes
    };
    let head = read(32);
    let header = frame::read_header(head[..].try_into().expect("32 bytes")).expect("a frame");
    let body = read(header.body_len);
    let payload = read(header.payload_len);
    let body = Body::decode(header.kind, &body).expect("a known frame");
    (body.expect("a sound body"), payload)
}

/// Everything that a node gives to a client from `from` on.
fn read_all(address: &str, from: u64, end: u64) -> Made {
    let (mut found, mut offset) = (Made::new(), Offset(from));
    while offset.0 < end {
        let wanted = Read {
            offset,
            max_bytes: 1 << 20,
            wait_ms: 1000,
            level: ReadLevel::Committed.number(),
            last_epoch: Epoch(0),
        };
        let (answer, payload) = ask(address, wanted, &[]);
        let Body::ReadOk(ok) = answer else {
            panic!("{answer:?}");
        };
        let mut rest = &payload[..];
        while !rest.is_empty() {
            let prefix = batch::read_prefix(rest).expect("a batch");
            let (one, more) = rest.split_at(prefix.total_len());
            if prefix.record_count > 0 {
                found.insert(prefix.base_offset.0, one.to_vec());
            }
            rest = more;
        }
        offset = ok.next;
    }
    found
}

/// Three nodes of one set with one log.
struct Set {
    places: Vec<Place>,
    admins: Vec<u16>,
    nodes: [Option<Node>; 3],
    /// Where the last append was taken.
    led_at: usize,
}

impl Set {
    fn start() -> Set {
        let mut set = Set {
            places: (0..3).map(|_| Place::new()).collect(),
            admins: (0..3).map(|_| ports::reserve(1)).collect(),
            nodes: [None, None, None],
            led_at: 0,
        };
        (0..3).for_each(|node| set.start_node(node, ""));
        set
    }

    fn start_node(&mut self, node: usize, more: &str) {
        let place = &self.places[node];
        let (data, admin) = (place.data(), self.admins[node]);
        let mut config = format!(
            "[node]\nid = {}\ndata_dir = {data:?}\nadmin = \"127.0.0.1:{admin}\"\n\
             admin_control = true\n[cluster]\nid = 7\nshards = 1\n",
            node + 1
        );
        for (other, id) in self.places.iter().zip(1..) {
            let address = other.address();
            config += &format!("[[cluster.nodes]]\nid = {id}\naddress = \"{address}\"\n");
        }
        config += &format!("[log]\nsegment_bytes = 2097152\nmax_block_bytes = 65536\n{more}");
        let path = place.directory.path().join("node.toml");
        fs::write(&path, config).expect("the configuration is written");
        let mut command = millrace();
        command.arg("serve").arg("--config").arg(path);
        if let Some(fault) = std::env::var_os("MILLRACE_FAULT") {
            command.env("MILLRACE_FAULT", fault);
        }
        self.nodes[node] = Some(Node::spawn(command, &place.address()));
    }

    fn stop(&mut self, node: usize) {
        let node = self.nodes[node].take().expect("it runs");
        assert!(node.stop().success());
    }

    fn status(&self, node: usize) -> Value {
        self.nodes[node].as_ref().expect("it runs").status()
    }

    /// Appends so many batches more, each acknowledged by a majority.
    fn append(&mut self, made: &mut Made, batches: usize) {
        for _ in 0..batches {
            let bytes = make(made.len());
            let offset = self.append_one(&bytes);
            assert!(
                made.insert(offset, bytes).is_none(),
                "an offset is given once"
            );
        }
    }

    fn append_one(&mut self, bytes: &[u8]) -> u64 {
        let until = Instant::now() + PATIENCE;
        let append = Append {
            level: Level::Quorum.number(),
            timeout_ms: PATIENCE.as_millis() as u32,
        };
        loop {
            if self.nodes[self.led_at].is_some() {
                let address = self.places[self.led_at].address();
                match ask(&address, append.clone(), bytes).0 {
                    Body::AppendOk(ok) => return ok.base_offset.0,
                    Body::Error(error) => {
                        let code = Code::from_number(error.code).expect("a known code");
                        let again = [Retry::Later, Retry::Elsewhere].contains(&code.retry());
                        assert!(again && Instant::now() < until, "{code:?}");
                    }
                    other => panic!("{other:?}"),
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            self.led_at = (self.led_at + 1) % 3;
        }
    }

    /// Hands the log to the other one of the first two nodes.
    fn promote(&self) {
        let (from, to) = (self.led_at, 1 - self.led_at);
        let mut command = millrace();
        command.args(["promote", "0", &(to + 1).to_string()]);
        command.args(["--node", &self.places[from].address()]);
        let output = finish(command);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// Waits until all nodes hold, durably, and have committed the same; the end of the log.
    fn wait_until_equal(&self) -> u64 {
        let until = Instant::now() + 2 * PATIENCE;
        loop {
            let shards = [0, 1, 2].map(|node| self.status(node)["shards"][0].clone());
            let ends = shards.each_ref().map(|shard| {
                ["high_watermark", "durable_end", "log_end"].map(|key| shard[key].as_u64())
            });
            if ends.iter().flatten().all(|end| *end == ends[0][0]) {
                return shards[2]["committed_offset"].as_u64().expect("an offset");
            }
            assert!(Instant::now() < until, "the nodes stay different: {ends:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn log_start(&self, node: usize) -> u64 {
        let start = &self.status(node)["shards"][0]["log_start_offset"];
        start.as_u64().unwrap_or(0)
    }
}

/// The segment files of a node's log.
fn files(data: &Path) -> Files {
    let folder = data.join(LOG.to_string());
    let entries = fs::read_dir(folder).expect("the log's folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("a name"));
    let segments = names.filter(|name| segment::base_of(name).is_some());
    segments
        .map(|name| {
            let bytes = fs::read(data.join(LOG.to_string()).join(&name)).expect("readable");
            (name, bytes)
        })
        .collect()
}

/// The segments that are not equal on all nodes, of those from the highest log start on. What
/// is behind the last block are zeros and does not count; the padding of blocks does.
fn differing(nodes: &[Files; 3]) -> Vec<String> {
    let used = |bytes: &[u8]| {
        bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |at| at + 1)
    };
    let start = nodes.iter().filter_map(|files| files.keys().next()).max();
    let start = start.expect("every node has files").clone();
    let mut names: Vec<&String> = nodes.iter().flat_map(BTreeMap::keys).collect();
    names.sort_unstable();
    names.dedup();
    let equal = |name: &str| {
        let of = |files: &Files| files.get(name).map(|bytes| bytes[..used(bytes)].to_vec());
        let first = of(&nodes[0]);
        nodes[1..].iter().all(|files| of(files) == first)
    };
    let wanted = names.into_iter().filter(|name| **name >= start);
    wanted.filter(|name| !equal(name)).cloned().collect()
}

/// The batches with records in a node's files, by offset.
fn batches_in(files: &Files) -> Made {
    let mut found = Made::new();
    for bytes in files.values() {
        let mut rest = &bytes[SEGMENT_HEADER..];
        while let Ok(header) = block::read_header(rest) {
            for (start, prefix) in block::batches(rest, &header) {
                let batch = &rest[start..start + prefix.total_len()];
                if prefix.record_count > 0 {
                    found.insert(prefix.base_offset.0, batch.to_vec());
                }
            }
            rest = &rest[header.padded_len()..];
            if rest.is_empty() {
                break;
            }
        }
    }
    found
}

/// What came of the run.
struct Outcome {
    made: Made,
    /// What each node gave to a client before the beginning was trimmed.
    given: [Made; 3],
    /// What was made by then.
    given_of: usize,
    /// Each node's files at the end.
    files: [Files; 3],
    /// Records encoded by this process and by each node.
    encoded: (u64, [Value; 3]),
    /// Where the log begins on the node that came with a blank disk.
    begins_at: u64,
}

static RUN: LazyLock<Outcome> = LazyLock::new(|| {
    let before = records_encoded();
    let (mut set, mut made) = (Set::start(), Made::new());
    set.append(&mut made, 40);
    set.wait_until_equal();

    // One is away while the leader changes. Then all have forgotten what they sent: what it lacks
    // comes from the disk.
    set.stop(2);
    set.append(&mut made, 40);
    set.promote();
    set.append(&mut made, 40);
    for node in [0, 1] {
        set.stop(node);
    }
    for node in [0, 1, 2] {
        set.start_node(node, "");
    }
    set.append(&mut made, 4);
    let end = set.wait_until_equal();
    assert_eq!(end, (made.len() * RECORDS) as u64);
    let given = [0, 1, 2].map(|node| read_all(&set.places[node].address(), 0, end));
    let given_of = made.len();

    // One comes with a blank disk when the beginning of the log is gone.
    for node in [0, 1, 2] {
        set.stop(node);
    }
    fs::remove_dir_all(set.places[2].data()).expect("it is ours");
    let bound = "retention = \"fifo\"\nretention_bytes = 4194304\n";
    for node in [0, 1] {
        set.start_node(node, bound);
    }
    while set.log_start(0) == 0 || set.log_start(1) == 0 {
        set.append(&mut made, 20);
        assert!(made.len() < 2000, "nothing is trimmed");
    }
    set.start_node(2, bound);
    set.wait_until_equal();
    let begins_at = set.log_start(2);
    let counted = |node| set.status(node)["counters"]["records_encoded"].clone();
    let encoded = (records_encoded() - before, [0, 1, 2].map(counted));
    for node in [0, 1, 2] {
        set.stop(node);
    }
    let files = [0, 1, 2].map(|node| files(&set.places[node].data()));
    Outcome {
        made,
        given,
        given_of,
        files,
        encoded,
        begins_at,
    }
});

/// Push, catch-up from the disk and a copy from a later base leave the same files, padding
/// included; a byte more or less would be seen.
///
/// H-20, H-31, H-48, H-66, H-72, D-H5
#[test]
fn all_ways_of_copying_leave_the_same_files() {
    let run = &*RUN;
    let differ = differing(&run.files);
    if !differ.is_empty() {
        println!("verdict: bytes_differ {differ:?}");
    }
    assert!(differ.is_empty(), "segments differ: {differ:?}");
    assert!(run.begins_at > 0 && run.files[2].len() > 1, "a later base");

    let mut changed = run.files.clone();
    let (name, bytes) = changed[2].iter_mut().next().expect("a file");
    let header = block::read_header(&bytes[SEGMENT_HEADER..]).expect("a block");
    let padding = SEGMENT_HEADER + header.used_len as usize;
    assert!(padding < SEGMENT_HEADER + header.padded_len());
    bytes[padding] ^= 1;
    let name = name.clone();
    assert_eq!(differing(&changed), [name]);
}

/// What lies on every disk and what every node gives to a client are the client's own bytes, of
/// codecs and flags that no node knows too; nobody has opened, packed or framed them again.
///
/// H-4, H-23, H-25, H-37, H-39, H-40
#[test]
fn every_node_holds_and_gives_what_the_client_made() {
    let run = &*RUN;
    let strange = |bytes: &Vec<u8>| batch::client_half(bytes).flags & STRANGE == STRANGE;
    assert!(run.made.values().filter(|bytes| strange(bytes)).count() >= 30);
    for (node, given) in run.given.iter().enumerate() {
        assert_eq!(given.len(), run.given_of, "node {} gives all", node + 1);
        for (offset, found) in given {
            assert!(is_as_made(found, &run.made[offset]), "{offset}");
        }
    }
    for (node, files) in run.files.iter().enumerate() {
        let held = batches_in(files);
        let first = *held.keys().next().expect("a batch");
        let wanted = run.made.range(first..).count();
        assert_eq!(held.len(), wanted, "node {} holds all", node + 1);
        assert!(wanted > 40, "not much is left: {wanted}");
        for (offset, found) in &held {
            batch::check(found).expect("sound");
            assert!(is_as_made(found, &run.made[offset]), "{offset}");
        }
    }
}

/// Each record was encoded once in the whole cluster, here.
///
/// H-2, H-3
#[test]
fn only_the_client_encodes() {
    let run = &*RUN;
    let (here, nodes) = &run.encoded;
    assert_eq!(*here, (run.made.len() * RECORDS) as u64);
    assert!(nodes.iter().all(|count| *count == 0), "{nodes:?}");
}
