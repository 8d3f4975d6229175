//! A full disk, with real processes on a small file system of their own: no crash, nothing
//! acknowledged is lost, everything comes back by itself.
//!
//! Needs root and a loop device: an ext4 image of 256 MiB is mounted below the build directory and
//! taken away at the end, also after a failure. Where that cannot be done the test says so and
//! counts as skipped; under `CI=true` root is expected to be able to. Every record is a batch of
//! its own with a number in it, so that each answer can be compared with what is read later.

mod node;

use node::mount::{self, Mount};
use node::{Node, PATIENCE, Place, finish, millrace, text};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const IMAGE_BYTES: u64 = 256 << 20;
const FILLER_BYTES: u64 = 48 << 20;
const RECORD_BYTES: usize = 900_000;

/// Takes space; removing the file gives it back.
fn fill(path: &Path, bytes: u64) {
    let mut file = File::create(path).expect("there is space");
    let piece = vec![0xA5; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&piece).expect("there is space");
    }
    file.sync_all().expect("there is space");
}

/// Three nodes with their data on one file system.
struct Set {
    places: Vec<Place>,
    mounted: PathBuf,
}

impl Set {
    fn data(&self, node: usize) -> PathBuf {
        self.mounted.join(format!("node-{}", node + 1))
    }

    fn start(&self, node: usize, more: &str) -> Node {
        let mut config = format!(
            "[node]\nid = {}\ndata_dir = {:?}\n[cluster]\nid = 7\nshards = 1\n",
            node + 1,
            self.data(node)
        );
        for (index, place) in self.places.iter().enumerate() {
            let (id, address) = (index + 1, place.address());
            config += &format!("[[cluster.nodes]]\nid = {id}\naddress = \"{address}\"\n");
        }
        config += &format!("[log]\nsegment_bytes = 4194304\n{more}");
        let place = &self.places[node];
        let path = place.directory.path().join("node.toml");
        fs::write(&path, config).expect("the configuration is written");
        Node::start(&path, &place.address())
    }

    /// The bytes of a node's segments from `first` on, without the zeros behind the last block.
    fn segments(&self, node: usize, first: &str) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(self.data(node).join("7-0")).expect("the log's directory") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            if name.ends_with(".seg") && name != "next.seg" && *name >= *first {
                let mut bytes = fs::read(&path).expect("the file can be read");
                let used = bytes.iter().rposition(|byte| *byte != 0);
                bytes.truncate(used.map_or(0, |last| last + 1));
                found.insert(name, bytes);
            }
        }
        found
    }
}

/// What was acknowledged: number of the record by offset.
#[derive(Default)]
struct Acked {
    by_offset: BTreeMap<u64, usize>,
    next: usize,
}

fn record(number: usize) -> Vec<u8> {
    let mut line = format!("{number} ").into_bytes();
    line.resize(RECORD_BYTES, b'a' + (number % 26) as u8);
    line.push(b'\n');
    line
}

impl Acked {
    /// Appends one record; whether it was acknowledged, and what was said if not.
    fn append(&mut self, node: &Node, timeout_ms: u64) -> Result<(), String> {
        let number = self.next;
        self.next += 1;
        let mut command = millrace();
        command.args(["append", "--node", &node.address, "--shard", "0"]);
        command.args(["--level", "quorum", "--timeout-ms", &timeout_ms.to_string()]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command runs");
        let mut stdin = child.stdin.take().expect("piped");
        let writer = std::thread::spawn(move || stdin.write_all(&record(number)));
        let output = child.wait_with_output().expect("the command ends");
        // A command that ends early closes its input.
        let _ = writer.join().expect("the thread writes");
        if !output.status.success() {
            return Err(text(&output.stderr));
        }
        let said = text(&output.stdout);
        let offset = said
            .trim()
            .split_once(' ')
            .and_then(|(_, offset)| offset.parse().ok());
        let before = self
            .by_offset
            .insert(offset.expect("shard and offset"), number);
        assert_eq!(before, None, "an offset is given once");
        Ok(())
    }

    /// Appends until the disk is full; how many were acknowledged.
    fn until_full(&mut self, node: &Node) -> usize {
        let before = self.by_offset.len();
        let until = Instant::now() + 4 * PATIENCE;
        while self.by_offset.len() < before + 400 {
            // On a busy machine an append may also just take too long.
            if let Err(said) = self.append(node, 3_000) {
                let full = node.status()["shards"][0]["disk_full"] == true;
                if full || said.contains("the disk is full") {
                    return self.by_offset.len() - before;
                }
                assert!(Instant::now() < until, "neither full nor appending: {said}");
            }
        }
        panic!("400 records of {RECORD_BYTES} bytes on {IMAGE_BYTES}, three times");
    }

    /// Appends go on by themselves, within the patience of a test.
    fn goes_on(&mut self, node: &Node) {
        let until = Instant::now() + PATIENCE;
        while let Err(said) = self.append(node, 3_000) {
            assert!(Instant::now() < until, "appends do not go on: {said}");
        }
    }

    /// The disk is still full.
    fn goes_nowhere(&mut self, node: &Node) {
        let said = self.append(node, 500).expect_err("the disk is full");
        assert!(!said.is_empty());
    }

    /// Every record that was acknowledged and is not trimmed reads as it was written.
    fn are_there(&self, node: &Node) {
        let status = node.status();
        let mut read = millrace();
        read.args(["read", "--node", &node.address, "--shard", "0"]);
        read.args([
            "--level",
            "committed",
            "--from",
            &start_of(&status).to_string(),
        ]);
        let output = finish(read);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines: Vec<&[u8]> = output
            .stdout
            .split_inclusive(|byte| *byte == b'\n')
            .collect();
        for (offset, number) in self.by_offset.range(start_of(&status)..) {
            let line = lines.get((offset - start_of(&status)) as usize);
            assert!(
                line == Some(&&record(*number)[..]),
                "record {number} at offset {offset}"
            );
        }
    }
}

/// First offset that a node keeps.
fn start_of(status: &serde_json::Value) -> u64 {
    status["shards"][0]["log_start_offset"]
        .as_u64()
        .unwrap_or(0)
}

fn wait_until_equal(nodes: &[Node; 3]) {
    let until = Instant::now() + PATIENCE;
    loop {
        let ends = nodes.each_ref().map(|node| {
            let status = node.status();
            ["high_watermark", "durable_end", "log_end", "log_start"]
                .map(|key| status["shards"][0][key].as_u64())
        });
        if ends.iter().all(|one| *one == ends[0] && one[0] == one[2]) {
            return;
        }
        assert!(Instant::now() < until, "the nodes stay different: {ends:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

///
#[test]
fn a_file_system_that_is_filled_twice_loses_nothing_and_comes_back() {
    let Some(mount) = mount::or_skip(Mount::ext4(IMAGE_BYTES)) else {
        return;
    };
    let set = Set {
        places: (0..3).map(|_| Place::new()).collect(),
        mounted: mount.directory.clone(),
    };
    let fillers = [1, 2].map(|number| mount.directory.join(format!("filler-{number}")));
    fillers.iter().for_each(|path| fill(path, FILLER_BYTES));
    let [one, two, three] = [0, 1, 2].map(|node| set.start(node, ""));
    let mut acked = Acked::default();
    assert!(acked.until_full(&one) > 0, "there is space at first");
    acked.are_there(&one);

    // A full disk keeps no node from starting, nor from answering reads.
    two.kill();
    let two = set.start(1, "");
    acked.are_there(&two);
    fs::remove_file(&fillers[0]).expect("ours");
    acked.goes_on(&one);
    assert!(acked.until_full(&one) > 0, "the space is used");
    assert!(
        three.stop().success(),
        "a node on a full disk stops cleanly"
    );
    let three = set.start(2, "");
    acked.goes_nowhere(&one);

    // With a bound, the logs make the space themselves.
    let bound = "retention = \"fifo\"\nretention_bytes = 16777216\n";
    for node in [one, two, three] {
        assert!(node.stop().success(), "a node on a full disk stops cleanly");
    }
    let [one, two, three] = [0, 1, 2].map(|node| set.start(node, bound));
    acked.goes_on(&one);
    acked.goes_on(&one);
    assert!(start_of(&one.status()) > 0, "the oldest segments are gone");
    fs::remove_file(&fillers[1]).expect("ours");
    for _ in 0..10 {
        acked.goes_on(&one);
    }

    let nodes = [one, two, three];
    wait_until_equal(&nodes);
    nodes.iter().for_each(|node| acked.are_there(node));
    for node in nodes {
        assert_eq!(node.status()["shards"][0]["failed"], "");
        assert!(node.stop().success());
    }
    let first = set.segments(0, "");
    assert!(first.len() > 2, "the log has rolled");
    assert!(
        set.segments(1, "") == first && set.segments(2, "") == first,
        "replicas differ"
    );
    println!("{} records acknowledged", acked.by_offset.len());
}
