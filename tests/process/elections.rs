//! Leaders that die, sleep or are asked to hand over, under load: another node goes on.
//!
//! Shard 0 is led by node 1 where nothing is wrong. What the client was told counts: the ledger of
//! the load against the files of all nodes. Times are printed, and bounded generously: how long a
//! fail-over takes is shown in the simulator. Read `cluster.rs` and `load.rs` first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace::client::NewRecord;
use millrace::client::driver::ProducerConfig;
use millrace::client::driver::blocking::{Pending, Producer};
use millrace::types::Level;

use crate::cluster::Cluster;
use crate::load::{BATCH, CONNECTIONS, IN_FLIGHT, Load, Run, now_ms, verify};
use crate::node::{finish, millrace, text};

const RATE: u64 = 10_000;
/// Acks in a second that show a running load.
const ACKS: u64 = 3_000;
/// Three times the longest election timeout, and a loaded machine.
const FAIL_OVER: Duration = Duration::from_secs(20);
/// The leader was caught up for ten seconds, and a loaded machine.
const GIVEN_BACK: Duration = Duration::from_secs(60);

fn started(cluster: &Cluster) -> Load {
    // Short, so that batches sent to a node that stands still end soon.
    let load = Load::start_with(cluster, "load", RATE, &["--timeout-ms", "2000"]);
    load.wait_until_acks(ACKS, FAIL_OVER);
    load
}

/// Waits until shard 0 acks what was sent well after `since_ms`, and prints how long it did not.
fn goes_on(load: &Load, what: &str, since_ms: u64) {
    let later_ms = since_ms + 500;
    load.wait_until_resumed(later_ms, FAIL_OVER);
    let acks = load.acks();
    let first_ms = acks.first_after(0, later_ms).expect("it resumed");
    let stalled_ms = acks.longest_stall_ms(0, since_ms, first_ms);
    println!("{what}: shard 0 without an ack for {stalled_ms} ms");
}

fn all_there(mut cluster: Cluster, load: Load) -> Run {
    load.wait_until_acks(ACKS, FAIL_OVER);
    let run = load.finish();
    cluster.wait_until_equal(FAIL_OVER);
    cluster.stop_all();
    let verdict = verify(&cluster, &run);
    println!(
        "acked {}, all there; refused {}, unknown {}, of which {} are there",
        run.records("acked"),
        run.records("failed"),
        run.records("unknown"),
        verdict["nodes"][0]["unknown_present"]
    );
    run
}

/// The leader of a shard is killed and stays away: another node leads, nothing acked is lost, and
/// the first one is given the shard back once it has caught up.
///
/// S-5, Q-1
#[test]
fn another_node_leads_while_the_leader_is_dead() {
    let mut cluster = Cluster::start(3);
    let load = started(&cluster);
    let at_ms = now_ms();
    cluster.kill(1);
    goes_on(&load, "killed", at_ms);
    cluster.start_node(1);
    cluster.wait_until_leads(1, 0, GIVEN_BACK);
    all_there(cluster, load);
}

/// a leader is stopped for longer than an election takes. When it goes on, it follows.
#[test]
fn a_leader_that_slept_is_replaced() {
    let cluster = Cluster::start(3);
    let load = started(&cluster);
    let at_ms = now_ms();
    cluster.freeze(1, true);
    goes_on(&load, "stopped", at_ms);
    cluster.freeze(1, false);
    std::thread::sleep(Duration::from_millis(500));
    let roles = cluster.roles(1);
    assert_eq!(
        roles.first().map(String::as_str),
        Some("follower"),
        "{roles:?}"
    );
    all_there(cluster, load);
}

/// Sends records to shard 0 one after the other until it is told to stop, or for a minute; how many
/// were acked.
fn produce(producer: &Producer, stop: &AtomicBool) -> u64 {
    let until = Instant::now() + Duration::from_secs(60);
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) && Instant::now() < until {
        let record = NewRecord::new(format!("record {sent}")).shard(0);
        let acked = producer.send(record).and_then(Pending::wait);
        acked.unwrap_or_else(|error| panic!("record {sent} failed: {error}"));
        sent += 1;
    }
    sent
}

/// An operator hands a shard to another node: no append fails and no outcome is unknown. The load
/// sends nothing twice: all that it is refused is what came to the former leader, which names the
/// next one; a producer sends that again by itself, and notices nothing.
#[test]
fn a_shard_is_promoted_to_another_node() {
    let cluster = Cluster::start(3);
    let load = started(&cluster);
    let promote = |to: &str, at: usize| {
        let mut command = millrace();
        command.args(["promote", "0", to, "--node", cluster.address(at)]);
        finish(command)
    };
    let addresses = cluster.ids().map(|node| cluster.address(node));
    let config = ProducerConfig::new().level(Level::Quorum);
    let producer = Producer::connect(addresses, &config).expect("a node answers");
    let stop = AtomicBool::new(false);
    let produced = std::thread::scope(|scope| {
        let producing = scope.spawn(|| produce(&producer, &stop));
        std::thread::sleep(Duration::from_millis(500));
        let output = promote("2", 1);
        // Some more at the next leader, whatever the first one did.
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("node 2 leads shard 0"), "{said}");
        producing.join().expect("no append failed")
    });
    println!("{produced} records of a producer, none failed");
    assert!(produced > 0);
    producer.close();
    let refused = promote("3", 1);
    let said = text(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("does not lead shard 0"),
        "{said}"
    );
    let run = all_there(cluster, load);
    assert_eq!(run.records("unknown"), 0);
    let refusals = &run.refusals;
    let moved = |line: &String| line.starts_with("answered NotLeader");
    assert!(refusals.iter().all(moved), "{refusals:?}");
    // What each of its connections had under way, and no more.
    assert!(run.records("failed") <= CONNECTIONS * IN_FLIGHT * BATCH);
}
