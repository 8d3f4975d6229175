//! Nodes of two versions in one set, an upgrade from one to the other, and what holds after it was
//! finalized.
//!
//! The older node is a real one, seen through `older.rs`. What a node does with a capability that
//! its peer lacks is shown step by step in `src/replica/election_tests.rs`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace::limits;
use millrace::wire::message::Message;
use serde_json::{Value, json};

use crate::cluster::{Cluster, wait_until};
use crate::node::{PATIENCE, finish, millrace, refuses, text};
use crate::older::Older;
use crate::{append, assert_appended, digests, lines};

/// The number of the frame `TakeOver`.
const TAKE_OVER: u8 = 0x30;
/// The number of the frame `Sealed`.
const SEALED: u8 = 0x0f;
/// What this version can.
const ALL: [&str; 2] = ["take_over", "sealed_bytes"];
/// A node that was caught up for ten seconds is given its shard back.
const NOT_GIVEN_BACK: Duration = Duration::from_secs(14);
const GIVEN_BACK: Duration = Duration::from_secs(60);

/// Three nodes; the third one is reached, and reaches others, through ways that may hide what it
/// can.
fn start(is_older: bool) -> (Cluster, Arc<Older>) {
    let mut cluster = Cluster::place(3);
    let older = Arc::new(Older::default());
    older.set(is_older);
    let to = older.way_to(cluster.address(3));
    for node in cluster.ids() {
        cluster.write_config(node, "");
        let path = cluster.file(&format!("node-{node}.toml"));
        let mut config = fs::read_to_string(&path).expect("just written");
        let mut replace = |address: &str, way: &str| {
            config = config.replace(&format!("{address:?}"), &format!("{way:?}"));
        };
        match node {
            3 => [1, 2].iter().for_each(|other| {
                let address = cluster.address(*other);
                replace(address, &older.way_from(address));
            }),
            _ => replace(cluster.address(3), &to),
        }
        fs::write(&path, config).expect("written");
    }
    cluster.ids().for_each(|node| cluster.start_node(node));
    cluster.wait_until_led(PATIENCE);
    (cluster, older)
}

fn command(arguments: &[&str]) -> Output {
    let mut command = millrace();
    command.args(arguments);
    finish(command)
}

fn finalize(cluster: &Cluster, more: &[&str]) -> Output {
    command(&[&["finalize", "--node", cluster.address(1)], more].concat())
}

fn said(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

/// What a node wrote so far.
fn said_by(cluster: &Cluster, node: usize) -> String {
    fs::read_to_string(cluster.file(&format!("node-{node}.log"))).expect("a log")
}

/// What a node knows of another one.
fn member(cluster: &Cluster, node: usize, other: usize) -> Value {
    let status = cluster.status(node).unwrap_or_default();
    status["members"][other - 1].clone()
}

/// Waits until each node is connected with each other one and knows what node 3 can.
fn wait_until_known(cluster: &Cluster, capabilities: &Value) {
    wait_until("all know one another", PATIENCE, || {
        let pairs = cluster
            .ids()
            .flat_map(|node| [1, 2, 3].map(|other| (node, other)));
        pairs.into_iter().all(|(node, other)| {
            let member = member(cluster, node, other);
            let as_said = node == 3 || other != 3 || member["capabilities"] == *capabilities;
            member["connected"] == true && as_said
        })
    });
}

/// One order or look at a node's HTTP port: code and page.
fn http(cluster: &Cluster, node: usize, request: &str) -> String {
    let status = cluster.status(node).expect("it answers");
    let address = status["admin"]["address"].as_str().expect("an HTTP port");
    let mut stream = TcpStream::connect(address).expect("open");
    stream.set_read_timeout(Some(PATIENCE)).expect("open");
    let request = format!("{request} HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn promote(cluster: &Cluster, shard: &str, to: &str, at: usize) -> Output {
    command(&["promote", shard, to, "--node", cluster.address(at)])
}

fn append_everywhere(cluster: &mut Cluster) {
    let quorum = ["--level", "quorum", "--timeout-ms", "20000"];
    for shard in 0..3 {
        let input = lines(shard, 500);
        assert_appended(&append(cluster.address(1), shard, input, &quorum));
    }
    cluster.wait_until_equal(PATIENCE);
}

/// Neither the command nor node 1 itself finalizes the cluster, and both say why.
fn assert_not_finalized(cluster: &Cluster, command_says: &[&str], node_says: &str) {
    let refused = finalize(cluster, &["--yes"]);
    let why = said(&refused);
    assert_eq!(refused.status.code(), Some(1), "{why}");
    assert!(
        command_says.iter().all(|words| why.contains(words)),
        "{why}"
    );
    let page = http(cluster, 1, "POST /finalize");
    assert!(page.contains(" 409 ") && page.contains(node_says), "{page}");
    let status = cluster.status(1).expect("it answers");
    assert_eq!(status["finalized"], json!([]));
}

/// An older node is a member like another: it follows, leads and acknowledges, but it is never sent
/// the frame that it does not know, neither by an order nor when its shard would be given back. The
/// cluster is not finalized before it is upgraded, and not while a node is away.
///
/// H-32, H-73, H-74, Q-25
#[test]
fn an_older_node_is_served_in_the_old_form_until_it_is_upgraded() {
    let (mut cluster, older) = start(true);
    wait_until_known(&cluster, &json!([]));
    append_everywhere(&mut cluster);
    // Its shard goes to another node.
    cluster.stop(3);
    cluster.wait_until_led(PATIENCE);
    cluster.start_node(3);
    wait_until_known(&cluster, &json!([]));
    append_everywhere(&mut cluster);
    let refused = promote(&cluster, "0", "3", 1);
    let why = said(&refused);
    assert_eq!(refused.status.code(), Some(1), "{why}");
    assert!(
        why.contains("node 3 does not know the capability take_over"),
        "{why}"
    );
    assert!(why.contains("mend: upgrade it"), "{why}");
    let done = promote(&cluster, "0", "2", 1);
    assert!(done.status.success(), "{}", said(&done));
    std::thread::sleep(NOT_GIVEN_BACK);
    assert_eq!((older.sent(TAKE_OVER), older.sent(SEALED)), (0, 0));
    assert_eq!(
        cluster.roles(3).get(2).map(String::as_str),
        Some("follower")
    );

    let shown = finalize(&cluster, &[]);
    let words = "cannot be finalized now: node 3 lacks sealed_bytes take_over; mend: upgrade";
    assert!(
        shown.status.success() && said(&shown).contains(words),
        "{}",
        said(&shown)
    );
    assert_not_finalized(
        &cluster,
        &["node 3 lacks sealed_bytes take_over"],
        "node 3 lacks take_over sealed_bytes",
    );

    // The upgrade of node 3: from here on it says what it can, and gets its shard back.
    cluster.stop(3);
    older.set(false);
    cluster.start_node(3);
    wait_until_known(&cluster, &json!(ALL));
    cluster.wait_until_leads(3, 2, GIVEN_BACK);
    assert!(older.sent(TAKE_OVER) > 0 && older.sent(SEALED) > 0);
    append_everywhere(&mut cluster);

    cluster.stop(2);
    let words = ["node 2 (", "cannot be reached"];
    assert_not_finalized(&cluster, &words, "not connected to node 2");
    cluster.start_node(2);
    wait_until_known(&cluster, &json!(ALL));
    let done = finalize(&cluster, &["--yes"]);
    assert!(done.status.success(), "{}", said(&done));
    let again = finalize(&cluster, &["--yes"]);
    assert!(
        said(&again).contains("nothing is left to do"),
        "{}",
        said(&again)
    );
    cluster.stop_all();
}

/// Digests of the segments that node 3 holds.
fn segments(cluster: &Cluster) -> Vec<(PathBuf, u32)> {
    let files = digests(&cluster.data(3)).into_iter();
    let files = files.map(|(path, (_, _, digest))| (path, digest));
    let named = |path: &PathBuf| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        name.ends_with(".seg") && name.starts_with(|first: char| first.is_ascii_digit())
    };
    let in_logs =
        files.filter(|(path, _)| named(path) && !path.starts_with(cluster.data(3).join("spare")));
    in_logs.collect()
}

/// After it was finalized, a node that lacks what it was finalized with is refused, as both sides
/// say, and a version that does not know the word does not start with the data. Neither changes
/// anything; with the right version the node goes on.
///
/// H-74, Q-25
#[test]
fn a_finalized_cluster_refuses_a_downgraded_node() {
    let (mut cluster, older) = start(false);
    wait_until_known(&cluster, &json!(ALL));
    let done = finalize(&cluster, &["--yes"]);
    let told = said(&done);
    assert!(done.status.success(), "{told}");
    for node in cluster.ids() {
        let words = format!("node {node} is finalized with take_over sealed_bytes");
        assert!(told.contains(&words), "{told}");
        cluster.stop(node);
        cluster.start_node(node);
    }
    cluster.wait_until_led(PATIENCE);
    for node in cluster.ids() {
        let status = cluster.status(node).expect("it answers");
        assert_eq!(status["finalized"], json!(ALL), "after a restart");
    }
    let page = http(&cluster, 2, "GET /metrics");
    let row = "millrace_capability_finalized{capability=\"take_over\"} 1";
    assert!(page.contains(row), "{page}");
    append_everywhere(&mut cluster);

    cluster.stop(3);
    older.set(true);
    let before = segments(&cluster);
    assert!(before.len() >= 3, "{before:?}");
    cluster.start_node(3);
    let log = |node: usize| said_by(&cluster, node);
    wait_until("all say that node 3 is refused", PATIENCE, || {
        cluster
            .ids()
            .all(|node| log(node).contains("LacksCapability"))
    });
    let words = "(finalized: take_over sealed_bytes, the refused side has: none); mend: start";
    for node in cluster.ids() {
        assert!(log(node).contains(words), "node {node}: {}", log(node));
    }
    let quorum = ["--level", "quorum", "--timeout-ms", "20000"];
    assert_appended(&append(cluster.address(1), 0, lines(0, 500), &quorum));
    let held = |cluster: &Cluster, node| cluster.shards(node)[0]["log_end"].as_u64();
    assert!(held(&cluster, 3) < held(&cluster, 1), "nothing came to it");
    cluster.stop(3);
    assert_eq!(segments(&cluster), before);

    // As if a later version had finalized the cluster.
    let identity = cluster.data(3).join("node.toml");
    let sound = fs::read_to_string(&identity).expect("written");
    let later = sound.replace("\"take_over\"", "\"warp\", \"take_over\"");
    assert_ne!(later, sound);
    fs::write(&identity, later).expect("written");
    let before = digests(&cluster.data(3));
    let mut serve = millrace();
    serve
        .args(["serve", "--config"])
        .arg(cluster.file("node-3.toml"));
    refuses(
        serve,
        &[
            "finalized with warp",
            "does not know this",
            "nothing was changed",
        ],
    );
    assert_eq!(digests(&cluster.data(3)), before);
    fs::write(&identity, sound).expect("written");

    older.set(false);
    cluster.start_node(3);
    cluster.wait_until_led(PATIENCE);
    append_everywhere(&mut cluster);
    cluster.stop_all();
}

/// Runs of blocks that take longer than a follower waits for its leader hold nothing up but
/// themselves: heartbeats have a connection of their own, so nobody asks for votes, and the rest of
/// the set acknowledges meanwhile.
///
/// H-15
#[test]
fn slow_blocks_delay_no_heartbeat() {
    let (mut cluster, way) = start(false);
    append_everywhere(&mut cluster);
    let elections = |cluster: &Cluster| {
        said_by(cluster, 3)
            .matches(Message::ElectionBegins.name())
            .count()
    };
    let (before, since) = (elections(&cluster), Instant::now());
    let waits = Duration::from_millis(2 * limits::ELECTION_TIMEOUT_MS);
    way.hold_runs(waits + waits / 4);
    while since.elapsed() < 5 * waits {
        for shard in 0..2 {
            let input = lines(shard, 20);
            let quorum = ["--level", "quorum", "--timeout-ms", "20000"];
            assert_appended(&append(cluster.address(1), shard, input, &quorum));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = cluster.status(1).expect("it answers");
    let mut links = status["links"].as_array().expect("all links").iter();
    let behind = |link: &Value| link["peer"] == 3 && link["lag"]["records"].as_u64() > Some(0);
    assert!(links.any(behind), "{status}");
    assert_eq!(elections(&cluster), before, "node 3 heard no leader");
    way.hold_runs(Duration::ZERO);
    cluster.wait_until_equal(PATIENCE);
}
