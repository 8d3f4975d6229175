//! Three nodes as real processes: every record on every node, byte for byte, through a kill and a
//! restart.
//!
//! The deep checks of replication run in the simulator; here it is shown that sockets, rings and
//! files carry it. Small segments, so that the logs roll.

mod node;

use node::{Node, PATIENCE, Place, finish, millrace, text};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const LINES: usize = 60_000;

struct Set {
    places: Vec<Place>,
}

impl Set {
    fn new() -> Set {
        Set {
            places: (0..3).map(|_| Place::new()).collect(),
        }
    }

    fn config(&self, node: usize) -> PathBuf {
        let place = &self.places[node];
        let mut text = format!(
            "[node]\nid = {}\ndata_dir = {:?}\n[cluster]\nid = 7\nelection_timeout_ms = 60000\n",
            node + 1,
            place.data()
        );
        for (index, other) in self.places.iter().enumerate() {
            let entry = format!(
                "[[cluster.nodes]]\nid = {}\naddress = \"{}\"\n",
                index + 1,
                other.address()
            );
            text.push_str(&entry);
        }
        text.push_str("[log]\nsegment_bytes = 2097152\nmax_block_bytes = 65536\n");
        let path = place.directory.path().join("node.toml");
        fs::write(&path, text).unwrap();
        path
    }

    fn start(&self, node: usize) -> Node {
        Node::start(&self.config(node), &self.places[node].address())
    }
}

fn append(address: &str, shard: usize, range: std::ops::Range<usize>) {
    let mut child = millrace()
        .args(["append", "--node", address, "--shard", &shard.to_string()])
        .args(["--level", "quorum", "--timeout-ms", "20000"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = expected(range);
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    writer.join().unwrap().unwrap();
}

fn expected(range: std::ops::Range<usize>) -> Vec<u8> {
    let mut lines = Vec::new();
    for number in range {
        writeln!(
            lines,
            "record {number} of a line that is long enough to fill blocks"
        )
        .unwrap();
    }
    lines
}

fn read(address: &str, shard: usize) -> Vec<u8> {
    let mut command = millrace();
    command.args(["read", "--node", address, "--shard", &shard.to_string()]);
    let output = finish(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    output.stdout
}

/// Waits until all nodes hold and have committed the same blocks.
fn wait_until_equal(nodes: &[&Node]) {
    let until = Instant::now() + PATIENCE;
    loop {
        let ends = |node: &&Node| {
            let status = node.status();
            let shards = status["shards"].as_array().unwrap().clone();
            let end = |shard: &serde_json::Value| {
                ["high_watermark", "durable_end", "log_end"].map(|key| shard[key].as_u64())
            };
            shards.iter().map(end).collect::<Vec<_>>()
        };
        let all: Vec<_> = nodes.iter().map(ends).collect();
        let level = all[0]
            .iter()
            .all(|[one, two, three]| one == two && two == three);
        if level && all.iter().all(|ends| *ends == all[0]) {
            return;
        }
        assert!(Instant::now() < until, "the nodes stay different: {all:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The bytes of a log's segments, in order, without the zeros behind the last block.
fn segments(data: &Path, shard: usize) -> Vec<(String, Vec<u8>)> {
    let directory = data.join(format!("7-{shard}"));
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".seg") && name != "next.seg" {
            let mut bytes = fs::read(data.join(format!("7-{shard}")).join(&name)).unwrap();
            let used = bytes
                .iter()
                .rposition(|byte| *byte != 0)
                .map_or(0, |last| last + 1);
            bytes.truncate(used);
            found.push((name, bytes));
        }
    }
    found.sort();
    found
}

/// S-86 S-87 H-20 H-66 D-H5
#[test]
fn every_record_is_on_every_node_through_a_kill_and_a_restart() {
    let set = Set::new();
    let [one, two, three] = [set.start(0), set.start(1), set.start(2)];
    for shard in 0..3 {
        append(&one.address, shard, 0..LINES);
    }
    wait_until_equal(&[&one, &two, &three]);

    // Node 3 misses a part of the logs of the others.
    three.kill();
    append(&two.address, 0, LINES..2 * LINES);
    append(&two.address, 1, LINES..2 * LINES);
    let three = set.start(2);
    append(&one.address, 2, LINES..2 * LINES);
    wait_until_equal(&[&one, &two, &three]);
    let whole = expected(0..2 * LINES);
    for node in [&one, &two, &three] {
        for shard in 0..3 {
            assert!(
                read(&node.address, shard) == whole,
                "{} {shard}",
                node.address
            );
        }
        let status = node.status();
        assert_eq!(status["counters"]["records_encoded"], 0);
        assert_eq!(status["counters"]["crc_failures"], 0);
    }
    for node in [one, two, three] {
        assert!(node.stop().success());
    }
    for shard in 0..3 {
        let first = segments(&set.places[0].data(), shard);
        assert!(first.len() > 2, "the log has rolled");
        for place in &set.places[1..] {
            assert!(
                segments(&place.data(), shard) == first,
                "shard {shard} differs"
            );
        }
    }
}

/// What a node wrote to a file, and how many of the lines say this.
fn said(log: &Path, words: &str) -> usize {
    let lines = fs::read_to_string(log).expect("the log is there");
    lines.lines().filter(|line| line.contains(words)).count()
}

/// A member with other limits is refused. Both sides say why, in their status and in one line for
/// each connection that they would have; what it lacks meanwhile is told in records and bytes.
#[test]
fn a_member_of_another_configuration_is_named_by_both_sides() {
    let set = Set::new();
    let log = |node: usize| set.places[node].directory.path().join("stderr");
    let spawn = |node: usize, more: &[(&str, &str)]| {
        let mut command = millrace();
        command.args(["serve", "--config"]).arg(set.config(node));
        // A placed leader tries for ever, and says so of each of its links.
        command.env("MILLRACE_CLUSTER_ELECTION", "false");
        command.envs(more.iter().copied());
        command.stderr(fs::File::create(log(node)).unwrap());
        Node::spawn(command, &set.places[node].address())
    };
    let (one, two, three) = (spawn(0, &[]), spawn(1, &[]), spawn(2, &[]));
    append(&one.address, 0, 0..2000);
    wait_until_equal(&[&one, &two, &three]);
    assert!(two.stop().success());
    append(&one.address, 0, 2000..4000);
    assert!(one.stop().success());
    let one = spawn(0, &[]);
    let two = spawn(1, &[("MILLRACE_LOG_MAX_BLOCK_RECORDS", "1000")]);
    let words = "WrongFingerprint: shards, limits or node list differ";
    let until = Instant::now() + PATIENCE;
    let has_all = || {
        let (of_one, of_two) = (one.status(), two.status());
        let links = [of_one["links"].as_array(), of_two["links"].as_array()];
        let links: Vec<_> = links.into_iter().flatten().flatten().collect();
        // Of node 1 the link to node 2, of node 2 both; and node 2 follows nobody.
        let between = |link: &&serde_json::Value| link["shard"] == 1 || link["peer"] == 2;
        let mut causes: Vec<_> = links.into_iter().filter(between).cloned().collect();
        let lag = causes[0]["lag"].clone();
        causes.extend([0, 2].map(|shard| of_two["shards"][shard]["following"].clone()));
        causes.push(of_one["shards"][1]["following"].clone());
        let refused = |link: &serde_json::Value| {
            let cause = link["cause"].as_str().unwrap();
            link["status"] == "disconnected" && cause.contains(words) && cause.contains("; mend: ")
        };
        assert_eq!(causes.len(), 6);
        let lacks = lag["records"].as_u64() >= Some(4000) && lag["bytes"].as_u64() > Some(100_000);
        (causes.iter().all(refused) && lacks, causes)
    };
    loop {
        let (all, causes) = has_all();
        if all {
            break;
        }
        assert!(
            Instant::now() < until,
            "not everybody says why: {causes:#?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut command = millrace();
    command.args(["status", "--node", &one.address]);
    let table = text(&finish(command).stdout);
    let in_full = format!("log 7-0, link to node 2: refused: {words}");
    assert!(table.contains(&in_full), "{table}");
    // Each of the connections between the two may come to its first attempt late; a second one of
    // each within these seconds would be news a dozen times over.
    std::thread::sleep(Duration::from_secs(4));
    let lines = [said(&log(0), words), said(&log(1), words)];
    assert!(
        lines.iter().all(|lines| (1..=6).contains(lines)),
        "no attempt after the first one is news: {lines:?}"
    );
    drop((one, two, three));
}

/// A follower that has not heard its leader yet knows a lower committed end than its log's: it says
/// so instead of printing nothing, and tells the end that there is.
#[test]
fn a_follower_without_its_leader_says_what_it_cannot_show() {
    let set = Set::new();
    let nodes: Vec<Node> = (0..3).map(|node| set.start(node)).collect();
    append(&nodes[0].address, 0, 0..2000);
    wait_until_equal(&nodes.iter().collect::<Vec<_>>());
    let end = nodes[1].status()["shards"][0]["committed_offset"].clone();
    assert_eq!(end, 2000);
    nodes.into_iter().for_each(Node::kill);

    let follower = set.start(1);
    let known = || {
        let status = follower.status();
        let shard = &status["shards"][0];
        (shard["role"] == "follower").then(|| shard["committed_offset"].as_u64().unwrap())
    };
    let until = Instant::now() + PATIENCE;
    let known = loop {
        match known() {
            Some(known) => break known,
            None => assert!(Instant::now() < until, "it does not follow"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(known < 2000, "nothing is left to be committed");
    let ask = |more: &[&str]| {
        let mut command = millrace();
        command
            .args(["read", "--node", &follower.address])
            .args(more);
        let output = finish(command);
        (output.status.code(), text(&output.stderr), output.stdout)
    };
    let end = format!("the committed end known here is {known} while the log ends at 2000");
    let (code, said, lines) = ask(&[]);
    assert_eq!((code, lines), (Some(0), expected(0..known as usize)));
    assert!(
        said.contains(&end) && said.contains("--level local"),
        "{said}"
    );
    let (code, said, _) = ask(&["--from", "1999", "--to", "2000"]);
    assert_eq!(code, Some(1), "{said}");
    let real = format!("end at {known}, before --to 2000: {end}");
    assert!(said.contains(&real), "{said}");
    let (code, said, lines) = ask(&["--level", "local"]);
    assert_eq!(
        (code, said.as_str(), lines),
        (Some(0), "", expected(0..2000))
    );
}
