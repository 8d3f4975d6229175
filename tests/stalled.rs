//! A follower that stands still, as real processes: what it lacks waits in the log on disk, not in
//! the leader's memory, and nobody else waits for it.
//!
//! The simulator shows the same with exact bounds. Here the stopped socket is the kernel's and the
//! memory that of a process. Appends are of the level `quorum`, so the other follower takes part.

mod node;

use millrace::client::NewRecord;
use millrace::client::driver::ProducerConfig;
use millrace::client::driver::blocking::Producer;
use millrace::limits;
use millrace::types::Level;
use node::{Node, PATIENCE, Place};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// `link.initial_credit_bytes`.
const CREDIT: usize = 1 << 20;
/// What the leader may hold above that: recent blocks, blocks read again for the link, and as much
/// again for whatever the process allocates besides.
const MARGIN: usize = 2 * (limits::RECENT_BYTES + limits::LINK_QUEUE_BYTES);
/// What the log grows by while the follower stands still, at least.
const GROWTH: u64 = 2 * (CREDIT + MARGIN) as u64;
/// For how long it stands still, at least: less than `rpc_timeout_ms`.
const STILL: Duration = Duration::from_secs(4);
/// Bytes of a record; each is a batch and, nearly, a block.
const RECORD: usize = 60_000;
/// Bytes of a large one, and how many of them are more than the default credit.
const LARGE: usize = 900_000;
const MANY: usize = 48;

fn config(places: &[Place], index: usize, more: &str) -> PathBuf {
    let place = &places[index];
    let id = index + 1;
    let data = place.data();
    let mut text =
        format!("[node]\nid = {id}\ndata_dir = {data:?}\n[cluster]\nid = 7\nshards = 2\n");
    for (index, other) in places.iter().enumerate() {
        let (id, address) = (index + 1, other.address());
        text.push_str(&format!(
            "[[cluster.nodes]]\nid = {id}\naddress = \"{address}\"\n"
        ));
    }
    text.push_str("[log]\nsegment_bytes = 8388608\n");
    text.push_str(more);
    let path = place.directory.path().join("node.toml");
    fs::write(&path, text).expect("the configuration is written");
    path
}

/// Stops or continues a node's process; one that is stopped is killed like any other.
fn signal(node: &Node, signal: i32) {
    // SAFETY: the child is ours and was not waited for, so its number is not another process's.
    unsafe { libc::kill(node.pid(), signal) };
}

/// Resident bytes of the node's process.
fn resident(node: &Node) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.and_then(|kib| kib.parse::<usize>().ok())
        .expect("a size")
        * 1024
}

/// Three nodes of two logs, the first of which node 1 leads, and a producer of one record a batch.
fn set(more: &str) -> (Vec<Place>, Vec<Node>, Producer) {
    let places: Vec<Place> = (0..3).map(|_| Place::new()).collect();
    let start = |index: usize| Node::start(&config(&places, index, more), &places[index].address());
    let nodes: Vec<Node> = (0..3).map(start).collect();
    wait_for("an open epoch", &nodes[0], |status| {
        status["shards"][0]["role"] == "leader"
    });
    let producer = ProducerConfig::new().level(Level::Quorum).timeout(PATIENCE);
    let producer = Producer::connect([&nodes[0].address[..]], &producer.max_batch_records(1));
    (places, nodes, producer.expect("the node answers"))
}

/// Appends so many records to a shard and waits until a majority holds each.
fn append(producer: &Producer, shard: u16, records: usize, bytes: usize) {
    let send = |_| {
        let record = NewRecord::new(vec![7; bytes]).shard(shard).timestamp_us(1);
        producer.send(record).expect("there is room")
    };
    let waiting: Vec<_> = (0..records).map(send).collect();
    for pending in waiting {
        pending.wait().expect("a majority holds it");
    }
}

/// Bytes that the node has handed to its disk for the log.
fn written(status: &Value) -> u64 {
    let written = &status["shards"][0]["counters"]["bytes_written"];
    written.as_u64().expect("a number")
}

/// The leader's link to this node.
fn link(status: &Value, peer: u64) -> &Value {
    let links = status["links"].as_array().expect("a list of links");
    let found = links.iter().find(|link| link["peer"] == peer);
    found.expect("the leader has the link")
}

fn wait_for(what: &str, leader: &Node, is: impl Fn(&Value) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let status = leader.status();
        if is(&status) {
            return;
        }
        assert!(Instant::now() < until, "not in time: {what}: {status:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Both followers have everything, and their links are as they should be.
fn is_level(status: &Value) -> bool {
    [2, 3].iter().all(|peer| {
        let link = link(status, *peer);
        link["status"] == "replicating"
            && link["lag"]["records"] == 0
            && link["matched"] == status["shards"][0]["log_end"]
    })
}

/// Nor does it hold up the other log.
///
/// S-83, S-99, Q-15, H-13, H-18
#[test]
fn a_stopped_process_costs_its_leader_no_memory_and_nobody_time() {
    let small = format!("max_block_bytes = 65536\n[link]\ninitial_credit_bytes = {CREDIT}\n");
    let (_places, nodes, producer) = set(&small);
    let [leader, stopped] = [&nodes[0], &nodes[2]];
    // What the process uses under load anyway is in its memory from here on.
    for _ in 0..6 {
        append(&producer, 0, 64, RECORD);
    }
    wait_for("all to hold the same", leader, is_level);

    signal(stopped, libc::SIGSTOP);
    let since = Instant::now();
    let (before, from) = (resident(leader), written(&leader.status()));
    let (mut most, mut grown) = (before, 0);
    while grown < GROWTH || since.elapsed() < STILL {
        assert!(since.elapsed() < PATIENCE, "only {grown} bytes appended");
        append(&producer, 0, if grown < GROWTH { 64 } else { 1 }, RECORD);
        most = most.max(resident(leader));
        let status = leader.status();
        grown = written(&status) - from;
        // Whatever a majority holds now, the other follower has acknowledged.
        assert_eq!(link(&status, 2)["status"], "replicating", "{status:#}");
        let halted = link(&status, 3)["status"].as_str().expect("a status");
        let known = ["waiting_for_credit", "disconnected"].contains(&halted);
        assert!(grown < 4 * CREDIT as u64 || known, "{status:#}");
    }
    let above = most - before;
    println!("held {above} bytes more at most, the log grew by {grown}");
    assert!(above <= CREDIT + MARGIN, "{above} bytes above {before}");

    append(&producer, 1, 64, RECORD);
    assert_eq!(link(&leader.status(), 2)["status"], "replicating");

    signal(stopped, libc::SIGCONT);
    wait_for("the follower to have caught up", leader, is_level);
    drop(producer);
    for node in nodes {
        assert!(node.stop().success());
    }
}

/// Batches of nearly a megabyte, more of them than the credit of the stopped follower: the other
/// one and the leader commit them all.
///
/// H-56
#[test]
fn large_batches_to_a_stopped_process_hold_up_nobody() {
    let (_places, nodes, producer) = set("");
    let [leader, stopped] = [&nodes[0], &nodes[2]];
    append(&producer, 0, 1, LARGE);
    wait_for("all to hold the same", leader, is_level);
    signal(stopped, libc::SIGSTOP);
    append(&producer, 0, MANY, LARGE);
    let status = leader.status();
    assert_eq!(link(&status, 2)["status"], "replicating", "{status:#}");
    let lacks = &link(&status, 3)["lag"]["records"];
    assert!(lacks.as_u64() >= Some(1), "{status:#}");
    signal(stopped, libc::SIGCONT);
    wait_for("the follower to have caught up", leader, is_level);
    drop(producer);
    for node in nodes {
        assert!(node.stop().success());
    }
}
