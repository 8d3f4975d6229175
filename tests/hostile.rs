//! Hostile input against real nodes: whatever strangers, clients and members of the set send, each
//! frame gets what it is owed, everybody else's work goes on, and no log changes but by what was
//! acknowledged.
//!
//! The table of attacks with the count of each outcome is printed (`--nocapture`). Read
//! `hostile/frames.rs` for what each frame is owed, `hostile/clients.rs` and `hostile/members.rs`
//! for the attacks, `hostile/nodes.rs` for what must not suffer.

mod node;

#[path = "hostile/admin.rs"]
mod admin;
#[path = "hostile/clients.rs"]
mod clients;
#[path = "hostile/dialed.rs"]
mod dialed;
#[path = "hostile/frames.rs"]
mod frames;
#[path = "hostile/led.rs"]
mod led;
#[path = "hostile/members.rs"]
mod members;
#[path = "hostile/nodes.rs"]
mod nodes;
#[path = "hostile/settings.rs"]
mod settings;
#[path = "hostile/tally.rs"]
mod tally;
#[path = "hostile/unproven.rs"]
mod unproven;
#[path = "hostile/wire.rs"]
mod wire;

use clients::Attack;
use dialed::Listening;
use members::{Dialing, FOLLOWED};
use nodes::{Held, Nodes, Witness, log};
use tally::Tally;
use unproven::Unproven;

/// Lines that a node may say of others' mistakes: a few a second on each core.
fn assert_quiet(nodes: &Nodes, node: usize, seconds: u64) {
    let said = nodes.said(node);
    let errors: Vec<_> = said
        .iter()
        .filter(|line| line.contains(" ERROR "))
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    let most = (seconds + 2) * 5 * u64::from(nodes::CORES) + 50;
    assert!(
        (said.len() as u64) < most,
        "{} lines in {seconds} s",
        said.len()
    );
}

/// One port of one node, attacked by a client.
fn attack_port(nodes: &Nodes, node: usize, core: u16, shard: u16) -> (Tally, u64, u64) {
    let mut witness = Witness::new(nodes, shard);
    let led = nodes.leader(shard).0 == node;
    let mut attack = Attack {
        address: nodes.ports_of(node)[usize::from(core)].clone(),
        log: log(shard),
        led,
        witness: &mut witness,
        tally: Tally::default(),
        acked: 0,
        unknown: 0,
    };
    attack.run();
    attack.requests();
    attack.lengths();
    if led {
        attack.batches();
        attack.manners();
    }
    let (tally, acked, unknown) = (attack.tally, attack.acked, attack.unknown);
    (tally, acked + witness.appended, unknown)
}

/// Every frame of every type on every port of a node that is a cluster by itself.
///
/// S-42, S-43, D-S5, S-180
#[test]
fn clients_of_a_single_node() {
    let start = std::time::Instant::now();
    let nodes = Nodes::start(1, 1, 2);
    let mut tally = Tally::default();
    for shard in 0..2 {
        nodes.wait_until_led(shard);
    }
    let held = Held::of(&nodes.data(0));
    for core in 0..nodes::CORES {
        let before = nodes.end_offset(core);
        let (found, acked, unknown) = attack_port(&nodes, 0, core, core);
        tally.add(found);
        let grown = nodes.end_offset(core) - before;
        assert!(
            acked <= grown && grown <= acked + unknown,
            "{grown}: {acked} and {unknown}"
        );
    }
    held.assert_kept();
    println!("a node by itself, {:?}\n{tally}", start.elapsed());
    assert_quiet(&nodes, 0, start.elapsed().as_secs());
    nodes.stop();
}

/// Every frame of every type on every port of the nodes of a set: leaders and others.
///
/// S-42, S-43
#[test]
fn clients_of_a_set() {
    let start = std::time::Instant::now();
    let nodes = Nodes::start(3, 3, 3);
    let mut tally = Tally::default();
    for shard in 0..3 {
        nodes.wait_until_led(shard);
    }
    let held: Vec<Held> = (0..3).map(|node| Held::of(&nodes.data(node))).collect();
    for node in 0..3 {
        for core in 0..nodes::CORES {
            // Node 2 leads shard 1: so there is a leader and a follower, and a wrong port.
            let (before, known) = (nodes.end_offset(1), nodes.retries(1));
            let (found, acked, unknown) = attack_port(&nodes, node, core, 1);
            tally.add(found);
            let grown = nodes.end_offset(1) - before;
            // What was said to another port already is known, if it names a producer.
            let known = nodes.retries(1) - known;
            assert!(
                acked <= grown + known && grown + known <= acked + unknown,
                "{grown} and {known} known: {acked} and {unknown}"
            );
        }
    }
    held.iter().for_each(Held::assert_kept);
    println!("a set of three, {:?}\n{tally}", start.elapsed());
    for node in 0..3 {
        assert_quiet(&nodes, node, start.elapsed().as_secs());
    }
    nodes.stop();
}

/// A member that dials: Hellos that do not fit, frames that are none, blocks that lie.
///
/// S-42, S-45, S-64, S-180, S-187, H-53
#[test]
fn a_member_that_dials() {
    let start = std::time::Instant::now();
    let nodes = Nodes::start(3, 2, 4);
    let mut tally = Tally::default();
    for shard in 0..2 {
        nodes.wait_until_led(shard);
    }
    let held: Vec<Held> = (0..2).map(|node| Held::of(&nodes.data(node))).collect();
    for node in 0..2 {
        let mut witness = Witness::new(&nodes, node as u16);
        let mut dialing = Dialing::new(&nodes, node, &mut witness);
        dialing.capabilities();
        dialing.hellos();
        let unknown = || nodes.running[node].status()["counters"]["unknown_frames"].as_u64();
        let before = unknown();
        let sent = dialing.unknown();
        assert_eq!(unknown(), before.map(|before| before + sent));
        dialing.frames();
        dialing.leads();
        tally.add(dialing.tally);
    }
    held.iter().for_each(Held::assert_kept);
    println!("a member that dials, {:?}\n{tally}", start.elapsed());
    nodes.stop();
}

/// A member that is dialed: answers that are none, and answers that lie.
///
/// S-42
#[test]
fn a_member_that_is_dialed() {
    let start = std::time::Instant::now();
    let nodes = Nodes::start(3, 2, 4);
    let mut tally = Tally::default();
    let listening = Listening::start(&nodes);
    for shard in 0..2 {
        nodes.wait_until_led(shard);
    }
    let held: Vec<Held> = (0..2).map(|node| Held::of(&nodes.data(node))).collect();
    let mut witness = Witness::new(&nodes, 0);
    listening.run(&mut witness, &mut tally);
    // The shard whose follower lied is led, and works, as soon as it is let alone.
    nodes.wait_until_led(FOLLOWED);
    held.iter().for_each(Held::assert_kept);
    println!("a member that is dialed, {:?}\n{tally}", start.elapsed());
    nodes.stop();
}

/// Somebody who knows all of the cluster but its secret, as a member that dials and as one that is
/// dialed: no frame counts before the last proof, whoever waits is closed in time, and clients, who
/// have nothing to prove, are served all the while.
///
/// S-172, S-173, S-174
#[test]
fn a_member_that_does_not_know_the_secret() {
    let start = std::time::Instant::now();
    let nodes = Nodes::start_with_secret(3, 2, 4, unproven::SECRET);
    let mut tally = Tally::default();
    for shard in 0..2 {
        nodes.wait_until_led(shard);
    }
    let held: Vec<Held> = (0..2).map(|node| Held::of(&nodes.data(node))).collect();
    for node in 0..2 {
        let mut witness = Witness::new(&nodes, node as u16);
        let mut unproven = Unproven(Dialing::new(&nodes, node, &mut witness));
        unproven.frames();
        unproven.proofs();
        unproven.waits();
        tally.add(unproven.0.tally);
    }
    unproven::dialed(&nodes, &mut tally);
    held.iter().for_each(Held::assert_kept);
    println!("without the secret, {:?}\n{tally}", start.elapsed());
    for node in 0..2 {
        assert_quiet(&nodes, node, start.elapsed().as_secs());
        let secret = std::str::from_utf8(unproven::SECRET).expect("a text");
        let said = nodes.said(node);
        assert!(!said.iter().any(|line| line.contains(secret)));
    }
    nodes.stop();
}

/// Clients that take what others need: memory for batches, places for reads, answers in flight.
#[test]
fn clients_that_hoard() {
    let nodes = Nodes::start(1, 1, 1);
    nodes.wait_until_led(0);
    let mut witness = Witness::new(&nodes, 0);
    clients::hoard(&nodes, &mut witness);
    assert_quiet(&nodes, 0, 60);
    nodes.stop();
}

/// More clients than a core takes: each of those above it is told so, the log has a line, and a
/// member of the cluster is let in all the same.
#[test]
fn clients_by_the_thousand() {
    let nodes = Nodes::start(3, 2, 4);
    for shard in 0..2 {
        nodes.wait_until_led(shard);
    }
    let mut witness = Witness::new(&nodes, 0);
    let mut dialing = Dialing::new(&nodes, 0, &mut witness);
    let crowd = clients::crowd(&dialing.address);
    dialing.is_welcome();
    let lines = nodes.said(0);
    let told = lines.iter().filter(|line| line.contains("ConnectionsFull"));
    assert_eq!(told.count(), 1, "one line for all of them");
    drop(crowd);
    witness.works();
    nodes.stop();
}

/// Settings against each other, and the HTTP port.
#[test]
fn operators_and_those_who_play_them() {
    let mut tally = Tally::default();
    settings::contradict(&mut tally);
    let served = admin::Served::start();
    served.requests(&mut tally);
    served.orders(&mut tally);
    served.waiters(&mut tally);
    served.stop();
    println!("settings and the HTTP port\n{tally}");
}
