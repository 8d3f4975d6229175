//! A set of real nodes against rot: one flipped bit in every part of the files, on the leader and
//! on a follower, while they run and while they are down.
//!
//! Every flip must be found, named, repaired to the byte from the other nodes, and the next pass of
//! the scrub must find nothing; no record that was acknowledged may be missing. The table is
//! printed. There is no row for an index: it is in memory alone and made of the headers of blocks.

mod node;

use millrace::wire::block::{self, BlockHeader};
use millrace::wire::checkpoint;
use node::{Node, PATIENCE, Place, finish, millrace, text};
use serde_json::Value;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

const SEGMENT_HEADER: usize = 4096;
const NODES: usize = 3;
/// Bytes of one of the two copies of a checkpoint.
const COPY: usize = 4096;

/// A part of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    BlockHeader,
    BatchHeader,
    Body,
    Padding,
    SegmentHeader,
    CheckpointCopy,
}

const PARTS: [Part; 6] = [
    Part::BlockHeader,
    Part::BatchHeader,
    Part::Body,
    Part::Padding,
    Part::SegmentHeader,
    Part::CheckpointCopy,
];

/// Which byte of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Byte {
    First,
    Last,
    Random(u64),
}

struct Set {
    places: Vec<Place>,
    admin: Vec<u16>,
    nodes: Vec<Option<Node>>,
}

impl Set {
    fn start() -> Set {
        let mut set = Set {
            places: (0..NODES).map(|_| Place::new()).collect(),
            admin: (0..NODES).map(|_| node::ports::reserve(1)).collect(),
            nodes: (0..NODES).map(|_| None).collect(),
        };
        for node in 0..NODES {
            set.start_node(node);
        }
        set
    }

    fn start_node(&mut self, node: usize) {
        let place = &self.places[node];
        let mut text = format!(
            "[node]\nid = {}\ndata_dir = {:?}\nadmin = \"127.0.0.1:{}\"\nadmin_control = true\n\
             [cluster]\nid = 7\nshards = 1\nelection_timeout_ms = 2000\n",
            node + 1,
            place.data(),
            self.admin[node],
        );
        for (index, other) in self.places.iter().enumerate() {
            let address = other.address();
            let entry = format!(
                "[[cluster.nodes]]\nid = {}\naddress = \"{address}\"\n",
                index + 1
            );
            text.push_str(&entry);
        }
        text.push_str("[log]\nsegment_bytes = 1048576\nmax_block_bytes = 65536\n");
        text.push_str("scrub_bytes_per_s = 1073741824\n");
        let path = place.directory.path().join("node.toml");
        fs::write(&path, text).expect("the configuration is written");
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.said_path(node))
            .expect("the node's log opens");
        let mut command = millrace();
        command.args(["serve", "--config"]).arg(&path).stderr(log);
        self.nodes[node] = Some(Node::spawn(command, &place.address()));
    }

    fn said_path(&self, node: usize) -> PathBuf {
        self.places[node].directory.path().join("stderr")
    }

    /// What a node wrote to its log so far.
    fn said(&self, node: usize) -> String {
        fs::read_to_string(self.said_path(node)).expect("the node's log is there")
    }

    fn node(&self, node: usize) -> &Node {
        self.nodes[node].as_ref().expect("it runs")
    }

    fn log(&self, node: usize) -> Value {
        self.node(node).status()["shards"][0].clone()
    }

    /// The node that leads, once one does: a restart and a preferred leader that gets its shard
    /// back leave moments without.
    fn leader(&self) -> usize {
        let leading = |set: &Set| {
            let running = (0..NODES).filter(|node| set.nodes[*node].is_some());
            let mut leaders = running.filter(|node| set.log(*node)["role"] == "leader");
            leaders.next()
        };
        let found = Cell::new(None);
        self.wait("a leader", |set| {
            found.set(leading(set));
            found.get().is_some()
        });
        found.get().expect("waited for")
    }

    fn wait(&self, what: &str, done: impl Fn(&Set) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            if Instant::now() > until {
                let states: Vec<Value> = (0..NODES).map(|node| self.log(node)).collect();
                panic!("{what}: not in time: {states:#?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// All nodes hold and have committed the same blocks.
    fn wait_until_equal(&self) {
        self.wait("equal logs", |set| {
            let ends = |node: usize| {
                let log = set.log(node);
                ["high_watermark", "durable_end", "log_end"].map(|key| log[key].as_u64())
            };
            let first = ends(0);
            first[0] == first[2] && (0..NODES).all(|node| ends(node) == first)
        });
    }

    fn append(&self, lines: std::ops::Range<usize>) {
        let leader = self.leader();
        let mut child = millrace()
            .args(["append", "--node", &self.node(leader).address])
            .args(["--shard", "0", "--level", "quorum", "--timeout-ms", "20000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command runs");
        let mut stdin = child.stdin.take().expect("piped");
        let input = lines_of(lines);
        let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output().expect("the command ends");
        assert!(output.status.success(), "{}", text(&output.stderr));
        writer.join().expect("it writes").expect("it takes all");
    }

    /// Every record of a node is there.
    fn check_records(&self, node: usize, lines: usize) {
        let mut command = millrace();
        command.args(["read", "--node", &self.node(node).address, "--shard", "0"]);
        let output = finish(command);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout) == lines_of(0..lines), "records differ");
    }

    fn log_path(&self, node: usize) -> PathBuf {
        self.places[node].data().join("7-0")
    }

    /// The segment files of a node, by name.
    fn segments(&self, node: usize) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.log_path(node)).expect("the log is there");
        let mut found = BTreeMap::new();
        for entry in entries {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            if name.ends_with(".seg") && name != "next.seg" {
                let bytes = fs::read(&path).expect("readable");
                found.insert(name.into_owned(), bytes);
            }
        }
        found
    }

    fn flip(&self, node: usize, file: &str, position: usize) {
        let path = self.log_path(node).join(file);
        let file = fs::File::options().read(true).write(true).open(&path);
        let file = file.expect("it is there");
        let mut byte = [0];
        file.read_exact_at(&mut byte, position as u64)
            .expect("long enough");
        file.write_all_at(&[byte[0] ^ 8], position as u64)
            .expect("writable");
        file.sync_all().expect("it can be synced");
    }

    /// Reads everything again; what the command said, and its exit code.
    fn scrub(&self, node: usize) -> (String, Option<i32>) {
        let mut command = millrace();
        command.args(["scrub", "--now", "--node", &self.node(node).address]);
        let output = finish(command);
        let said = text(&output.stdout) + &text(&output.stderr);
        (said, output.status.code())
    }

    fn counter(&self, node: usize, name: &str) -> u64 {
        self.log(node)["counters"][name].as_u64().expect("a number")
    }

    /// Places found damaged, and what was written anew by itself: both count a rewrite.
    fn found(&self, node: usize) -> u64 {
        self.counter(node, "damage_found") + self.counter(node, "rewritten")
    }

    /// Whether both copies of a node's checkpoint are sound.
    fn has_both_copies(&self, node: usize) -> bool {
        let bytes = fs::read(self.log_path(node).join("checkpoint")).expect("readable");
        let (first, second) = bytes.split_at(COPY);
        [first, &second[..COPY]]
            .map(checkpoint::read)
            .iter()
            .all(Option::is_some)
    }

    /// The copy of a node is that of another one, up to the last block.
    fn check_files(&self, node: usize, before: &BTreeMap<String, Vec<u8>>) {
        let now = self.segments(node);
        for (name, bytes) in before {
            let end = end_of(bytes);
            assert!(
                now[name][..end] == bytes[..end],
                "{name} differs on node {node}"
            );
        }
    }
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn lines_of(range: std::ops::Range<usize>) -> String {
    let line = |number: usize| format!("record {number} {}\n", "x".repeat(200 + number % 97));
    range.map(line).collect()
}

fn blocks_of(bytes: &[u8]) -> Vec<(usize, BlockHeader)> {
    let mut blocks = Vec::new();
    let mut at = SEGMENT_HEADER;
    while let Some(rest) = bytes.get(at..) {
        let Ok(header) = block::read_header(rest) else {
            break;
        };
        blocks.push((at, header));
        at += header.padded_len();
    }
    blocks
}

fn end_of(bytes: &[u8]) -> usize {
    let last = blocks_of(bytes).pop();
    last.map_or(SEGMENT_HEADER, |(at, header)| at + header.padded_len())
}

/// File and position of the byte to flip, and where its block or copy begins; `turn` chooses
/// another block each time.
fn place_of(
    part: Part,
    byte: Byte,
    segments: &BTreeMap<String, Vec<u8>>,
    turn: usize,
) -> (String, usize, usize) {
    let pick = |range: std::ops::Range<usize>| match byte {
        Byte::First => range.start,
        Byte::Last => range.end - 1,
        Byte::Random(seed) => range.start + seed as usize % range.len(),
    };
    if part == Part::CheckpointCopy {
        let copy = turn % 2 * COPY;
        return ("checkpoint".to_owned(), pick(copy..copy + COPY), copy);
    }
    let names: Vec<&String> = segments.keys().collect();
    let name = names[turn % names.len()];
    if part == Part::SegmentHeader {
        return (name.clone(), pick(0..SEGMENT_HEADER), 0);
    }
    // Blocks of a leader's own have no body.
    let has_all = |(_, header): &(usize, BlockHeader)| {
        let used = header.used_len as usize;
        used > 256 && header.padded_len() > used
    };
    let all = blocks_of(&segments[name]);
    let all: Vec<_> = all.into_iter().filter(has_all).collect();
    let (at, header) = all[turn % all.len()];
    let used = header.used_len as usize;
    let range = match part {
        Part::BlockHeader => 0..128,
        Part::BatchHeader => 128..256,
        Part::Body => 256..used,
        _ => used..header.padded_len(),
    };
    (name.clone(), at + pick(range), at)
}

/// H-21, H-49, H-50, H-78, Q-4, Q-8.
#[test]
fn a_flipped_bit_in_any_part_is_repaired() {
    let mut set = Set::start();
    let mut lines = 0;
    while set.segments(set.leader()).len() < 4 {
        set.append(lines..lines + 1500);
        lines += 1500;
    }
    set.wait_until_equal();
    let mut table: Vec<String> = Vec::new();
    let bytes = [Byte::First, Byte::Last, Byte::Random(104_729)];
    let mut turn = 0;
    for stopped in [false, true] {
        for leads in [true, false] {
            for byte in bytes {
                for part in PARTS {
                    turn += 1;
                    let row = cell(&mut set, (stopped, leads), (part, byte), turn);
                    println!("{row}");
                    table.push(row);
                }
                let leader = set.leader();
                set.append(lines..lines + 10);
                lines += 10;
                set.wait_until_equal();
                set.check_records(leader, lines);
            }
        }
    }
    for node in 0..NODES {
        set.check_records(node, lines);
    }
    println!("{} cells: found, repaired, second pass clean", table.len());
    // No index lies on the disk: every file of a log is one of these.
    for node in 0..NODES {
        for entry in fs::read_dir(set.log_path(node)).expect("readable") {
            let name = entry.expect("an entry").file_name();
            let name = name.to_string_lossy();
            assert!(name.ends_with(".seg") || name == "checkpoint", "{name}");
        }
    }
    for node in set.nodes.into_iter().flatten() {
        assert!(node.stop().success());
    }
}

/// One flip, to its end: the row of the table.
fn cell(
    set: &mut Set,
    (stopped, leads): (bool, bool),
    (part, byte): (Part, Byte),
    turn: usize,
) -> String {
    let leader = set.leader();
    let node = if leads { leader } else { (leader + 1) % NODES };
    let before = set.segments(node);
    let (file, position, start) = place_of(part, byte, &before, turn);
    let found = if stopped { 0 } else { set.found(node) };
    let said_before = set.said(node).len();
    let what = format!("{part:?} {byte:?} {file} at {position}, node {node}");
    if stopped {
        let running = set.nodes[node].take().expect("it runs");
        assert!(running.stop().success());
        set.flip(node, &file, position);
        set.start_node(node);
    } else {
        set.flip(node, &file, position);
    }
    set.wait("the node to be back", |set| {
        let log = set.log(node);
        log["role"] == "leader" || log["role"] == "follower"
    });
    let (said, code) = set.scrub(node);
    assert_eq!(code, Some(0), "{what}: {said}");
    set.wait("the damage to be repaired", |set| {
        let log = set.log(node);
        let faulty = log["damage"]["faulty"].as_array();
        faulty.is_some_and(Vec::is_empty) && set.found(node) > found
    });
    let is_block = !matches!(part, Part::SegmentHeader | Part::CheckpointCopy);
    if is_block && !stopped {
        let named = format!("{file} at {start}, blocks ");
        set.wait("the damage to be named", |set| {
            set.said(node)[said_before..].contains(&named)
        });
    }
    set.wait("both copies of the checkpoint", |set| {
        set.has_both_copies(node)
    });
    let rewritten = set.counter(node, "rewritten");
    let repaired = set.counter(node, "blocks_repaired");
    set.wait_until_equal();
    set.check_files(node, &before);
    let (said, code) = set.scrub(node);
    assert_eq!(code, Some(0), "{what}: {said}");
    let last = set.log(node)["damage"]["last"]["found"].clone();
    assert_eq!(last, 0, "{what}: the second pass finds something: {said}");
    format!(
        "{:<14} {:<15} {:<8} {:<7} found, repaired (blocks {repaired}, rewritten {rewritten}), \
         second pass clean",
        format!("{part:?}"),
        format!("{byte:?}"),
        if leads { "leader" } else { "follower" },
        if stopped { "stopped" } else { "running" },
    )
}

/// An operator asks again for blocks that wait for a node: they are there once it is back, and the
/// order ends with that.
#[test]
fn an_order_to_repair_is_followed_to_its_end() {
    const LINES: usize = 3000;
    let mut set = Set::start();
    set.append(0..LINES);
    set.wait_until_equal();
    let node = (set.leader() + 1) % NODES;
    let others: Vec<usize> = (0..NODES).filter(|other| *other != node).collect();
    for other in &others {
        let running = set.nodes[*other].take().expect("it runs");
        assert!(running.stop().success());
    }
    let before = set.segments(node);
    let (file, position, _) = place_of(Part::Body, Byte::First, &before, 1);
    set.flip(node, &file, position);
    let address = set.node(node).address.clone();
    let order = |option: &str| {
        let mut command = millrace();
        command.args(["scrub", option, "--node", &address]);
        std::thread::spawn(move || finish(command))
    };
    // With nobody to ask, what is found stays, and is said to wait.
    let reading = order("--now");
    wait_for("the damage to wait for a node", || {
        let damage = set.log(node)["damage"].clone();
        let waits_for = damage["waits_for"].as_str().unwrap_or_default();
        damage["faulty"][0].is_object() && waits_for.starts_with("waits for")
    });
    let repairing = order("--repair");
    let heard = |wish: &str| {
        let said = set.said(node);
        let mut orders = said
            .lines()
            .filter(|line| line.contains("operator's order"));
        orders.any(|line| line.contains(wish))
    };
    wait_for("the order in the node's log", || heard("read: false"));
    assert!(!repairing.is_finished(), "nobody can have repaired it");
    assert_eq!(set.counter(node, "blocks_repaired"), 0);
    for other in others {
        set.start_node(other);
    }
    for order in [reading, repairing] {
        let output = order.join().expect("the command ends");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(!last.contains("DAMAGED"), "{said}");
    }
    assert!(set.counter(node, "blocks_repaired") > 0);
    set.wait_until_equal();
    set.check_files(node, &before);
    set.check_records(node, LINES);
    for node in set.nodes.into_iter().flatten() {
        assert!(node.stop().success());
    }
}
