//! Two and three nodes of a mesh as real processes: each takes appends alone, all end up equal.
//!
//! The nodes reach each other through proxies that the test can cut. The deep checks of a mesh run
//! in the simulator; here it is shown that wire, configuration, files and command line carry it.

mod node;
#[path = "mesh/proxy.rs"]
mod proxy;

use node::{Node, PATIENCE, Place, finish, millrace, refuses, text};
use proxy::Proxy;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

struct Mesh {
    places: Vec<Place>,
    /// The way from one node to another one, by their indices.
    ways: BTreeMap<(usize, usize), Proxy>,
}

impl Mesh {
    fn new(nodes: usize) -> Mesh {
        let places: Vec<Place> = (0..nodes).map(|_| Place::new()).collect();
        let mut ways = BTreeMap::new();
        for from in 0..nodes {
            for to in (0..nodes).filter(|to| *to != from) {
                ways.insert((from, to), Proxy::to(&places[to].address()));
            }
        }
        Mesh { places, ways }
    }

    /// Writes the configuration of a node that knows the first `nodes` of the mesh.
    fn config_of(&self, node: usize, nodes: usize) -> PathBuf {
        let place = &self.places[node];
        let mut config = format!(
            "[node]\nid = {}\ndata_dir = {:?}\naddress = \"{}\"\n\
             [cluster]\nid = 7\nkind = \"mesh\"\n",
            node + 1,
            place.data(),
            place.address()
        );
        for other in 0..nodes {
            let way = self.ways.get(&(node, other)).map(Proxy::address);
            let address = way.unwrap_or_else(|| place.address());
            let id = other + 1;
            config.push_str(&format!(
                "[[cluster.nodes]]\nid = {id}\naddress = \"{address}\"\n"
            ));
        }
        config.push_str("[log]\nsegment_bytes = 2097152\nmax_block_bytes = 65536\n");
        config.push_str("[link]\nretry_backoff_ms = 200\n");
        let path = place.directory.path().join("node.toml");
        fs::write(&path, config).unwrap();
        path
    }

    fn start(&self, node: usize) -> Node {
        let config = self.config_of(node, self.places.len());
        Node::start(&config, &self.places[node].address())
    }

    fn start_all(&self) -> Vec<Node> {
        (0..self.places.len())
            .map(|node| self.start(node))
            .collect()
    }

    fn cut(&self, cut: bool) {
        self.ways.values().for_each(|way| way.cut(cut));
    }
}

fn append_command(node: &Node, more: &[&str]) -> Command {
    let mut command = millrace();
    command.args(["append", "--node", &node.address, "--timeout-ms", "20000"]);
    command.args(more);
    command
}

/// Appends lines; what `append` prints.
fn append(node: &Node, input: &[u8], more: &[&str]) -> String {
    let mut child = append_command(node, more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    writer.join().unwrap().unwrap();
    text(&output.stdout)
}

/// All that a node holds of an origin, one record a line.
fn read(node: &Node, origin: usize) -> String {
    let mut command = millrace();
    command.args(["read", "--node", &node.address, "--origin"]);
    command.arg(origin.to_string());
    let output = finish(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn lines(who: usize, range: std::ops::Range<usize>) -> String {
    let line = |number| format!("record {number} of node {who}, long enough to fill blocks soon\n");
    range.map(line).collect()
}

/// Waits until every node holds all of every origin, committed by all.
fn wait_until_equal(nodes: &[&Node]) {
    let until = Instant::now() + PATIENCE;
    loop {
        let ends = |node: &&Node| {
            let status = node.status();
            let logs = status["shards"].as_array().unwrap().clone();
            let key = |log: &serde_json::Value| (log["origin"].as_u64(), log["shard"].as_u64());
            let end = |log: &serde_json::Value| {
                ["high_watermark", "durable_end", "log_end"].map(|key| log[key].as_u64())
            };
            let logs = logs.iter().map(|log| (key(log), end(log)));
            logs.collect::<Vec<_>>()
        };
        let all: Vec<_> = nodes.iter().map(ends).collect();
        // A log without a block has no open epoch yet.
        let level = |(_, [one, two, three]): &(_, [Option<u64>; 3])| {
            one == two && two == three && *one > Some(0)
        };
        if all[0].iter().all(level) && all.iter().all(|ends| *ends == all[0]) {
            return;
        }
        assert!(Instant::now() < until, "the nodes stay different: {all:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What the bank says: 100 at first, then every deposit and withdrawal of every origin.
fn balance(node: &Node, origins: usize) -> i64 {
    let records: String = (1..=origins).map(|origin| read(node, origin)).collect();
    let amounts = records.lines().map(|line| line.parse::<i64>().unwrap());
    100 + amounts.sum::<i64>()
}

/// S-1, S-4, S-19, S-138, S-149, S-150: node 1 takes a deposit of 50, node 2 a withdrawal of 30
/// while they cannot reach each other. Both records have the same offset, both are kept, and both
/// nodes come to 120.
#[test]
fn the_bank_converges_to_120() {
    let mesh = Mesh::new(2);
    let nodes = mesh.start_all();
    let [one, two] = [&nodes[0], &nodes[1]];
    wait_until_equal(&[one, two]);
    mesh.cut(true);
    let deposit = append(one, b"50\n", &[]);
    let withdrawal = append(two, b"-30\n", &["--level", "local"]);
    assert_eq!(deposit, "0 0\n");
    assert_eq!(withdrawal, deposit, "identity is (origin, offset)");
    assert_eq!((balance(one, 2), balance(two, 2)), (150, 70));
    mesh.cut(false);
    wait_until_equal(&[one, two]);
    assert_eq!((balance(one, 2), balance(two, 2)), (120, 120));
    // S-18: a quorum on the same log, now that there is one.
    append(one, b"7\n", &["--level", "quorum"]);
    assert_eq!(balance(two, 2), 127);
    for node in nodes {
        assert!(node.stop().success());
    }
}

/// The bytes of a log's segments, in order, without the zeros behind the last block.
fn segments(data: &Path, origin: usize) -> Vec<(String, Vec<u8>)> {
    let directory = data.join(format!("{origin}-0"));
    let mut found = Vec::new();
    for entry in fs::read_dir(&directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".seg") && name != "next.seg" {
            let mut bytes = fs::read(directory.join(&name)).unwrap();
            let used = bytes.iter().rposition(|byte| *byte != 0);
            bytes.truncate(used.map_or(0, |last| last + 1));
            found.push((name, bytes));
        }
    }
    found.sort();
    found
}

/// S-3, S-22, S-36, S-143, D-S12, D-S17: three nodes write at once, then through
/// a partition, one of them is killed and comes back first and alone; in the end every node holds
/// every origin's records in that origin's order, in the very bytes.
#[test]
fn three_nodes_write_through_a_partition_and_a_kill() {
    let mesh = Mesh::new(3);
    let mut nodes = mesh.start_all();
    let write = |nodes: &[Node], range: std::ops::Range<usize>| {
        std::thread::scope(|scope| {
            for (index, node) in nodes.iter().enumerate() {
                let input = lines(index + 1, range.clone());
                scope.spawn(move || append(node, input.as_bytes(), &[]));
            }
        });
    };
    write(&nodes, 0..10_000);
    mesh.cut(true);
    write(&nodes, 10_000..20_000);
    let last = nodes.pop().unwrap();
    last.kill();
    let last = mesh.start(2);
    // Nobody answers it, and it takes appends again.
    append(&last, lines(3, 20_000..30_000).as_bytes(), &[]);
    nodes.push(last);
    mesh.cut(false);
    write(&nodes[..2], 20_000..30_000);
    wait_until_equal(&[&nodes[0], &nodes[1], &nodes[2]]);
    for origin in 1..=3 {
        let wanted = lines(origin, 0..30_000);
        for node in &nodes {
            let held = read(node, origin);
            assert!(held == wanted, "origin {origin} at {}", node.address);
        }
    }
    for node in &nodes {
        let status = node.status();
        assert_eq!(status["counters"]["records_encoded"], 0);
        assert_eq!(status["links"].as_array().unwrap().len(), 2);
    }
    for node in nodes {
        assert!(node.stop().success());
    }
    for origin in 1..=3 {
        let first = segments(&mesh.places[0].data(), origin);
        assert!(first.len() > 1, "the log has rolled");
        for place in &mesh.places[1..] {
            assert!(segments(&place.data(), origin) == first, "origin {origin}");
        }
    }
}

/// Gives the first segment of an origin's log a format of the future, on a node that does not run:
/// nobody may touch it then, and no repair does.
fn from_the_future(place: &Place, origin: usize) {
    const HEADER: usize = 4096;
    let path = place.data().join(format!("{origin}-0/{:020}.seg", 0));
    let mut bytes = fs::read(&path).expect("the segment is there");
    bytes[4] += 1;
    bytes[8..12].fill(0);
    let crc = crc32fast::hash(&bytes[..HEADER]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, bytes).expect("writable");
}

/// The one of a status's logs or links with this origin, and this other node if one is named.
fn of_origin<'a>(status: &'a Value, list: &str, origin: u64, peer: Option<u64>) -> &'a Value {
    let list = status[list].as_array().expect("a list");
    let is = |one: &&Value| one["origin"] == origin && peer.is_none_or(|peer| one["peer"] == peer);
    list.iter().find(is).expect("it is one of them")
}

fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// S-30: on node 2 the log of origin 1 cannot be opened: it stays closed, and the link by which it
/// follows fails for good. Node 2 goes on to lead its own log and to follow origin 3, and origin 1
/// goes on with node 3.
#[test]
fn a_failing_link_of_a_follower_stops_neither_its_other_links_nor_its_log() {
    let mesh = Mesh::new(3);
    let mut nodes = mesh.start_all();
    for (index, node) in nodes.iter().enumerate() {
        append(node, lines(index + 1, 0..10).as_bytes(), &[]);
    }
    wait_until_equal(&[&nodes[0], &nodes[1], &nodes[2]]);
    assert!(nodes.remove(1).stop().success());
    from_the_future(&mesh.places[1], 1);
    nodes.insert(1, mesh.start(1));

    wait_for("node 1 to hear that its log is closed there", || {
        let status = nodes[0].status();
        let link = of_origin(&status, "links", 1, Some(2));
        let cause = link["last_error"].as_str().expect("a text");
        link["status"] == "disconnected" && cause.contains("LogFailed")
    });
    for (index, node) in nodes.iter().enumerate() {
        let more = lines(index + 1, 10..20);
        append(node, more.as_bytes(), &["--level", "quorum"]);
    }
    wait_for("all other links to have carried everything", || {
        let level = |origin: u64, peer: u64| {
            let status = nodes[origin as usize - 1].status();
            let link = of_origin(&status, "links", origin, Some(peer));
            let end = &of_origin(&status, "shards", origin, None)["log_end"];
            link["status"] == "replicating" && link["matched"] == *end
        };
        [(1, 3), (2, 1), (2, 3), (3, 1), (3, 2)]
            .into_iter()
            .all(|(origin, peer)| level(origin, peer))
    });
    let status = nodes[1].status();
    let role = |origin| of_origin(&status, "shards", origin, None)["role"].clone();
    assert_eq!(
        [role(1), role(2), role(3)],
        ["failed", "leader", "follower"]
    );
    for (reader, origin) in [(2, 2), (2, 3), (3, 1), (1, 2), (1, 3), (3, 2)] {
        assert_eq!(read(&nodes[reader - 1], origin), lines(origin, 0..20));
    }
    for node in nodes {
        assert!(node.stop().success());
    }
}

/// A mesh is full: a node that knows other nodes than the rest is refused by them, a directory of a
/// set is no directory of a mesh, and a record of another origin is nobody's to append here.
#[test]
fn what_is_no_full_mesh_is_refused() {
    let mesh = Mesh::new(2);
    let one = mesh.start(0);
    let config = mesh.config_of(1, 2);
    let alone = fs::read_to_string(&config).unwrap();
    let third = alone.replace(
        "[log]",
        "[[cluster.nodes]]\nid = 3\naddress = \"127.0.0.1:9\"\n[log]",
    );
    fs::write(&config, third).unwrap();
    let two = Node::start(&config, &mesh.places[1].address());
    let until = Instant::now() + PATIENCE;
    let refused = |node: &Node| node.status()["counters"]["refused_peers"].as_u64().unwrap();
    while refused(&one) + refused(&two) == 0 {
        assert!(Instant::now() < until, "nobody was refused");
        std::thread::sleep(Duration::from_millis(20));
    }
    let roles = |node: &Node| node.status()["shards"][0]["role"].clone();
    assert_eq!(roles(&one), "opening", "without its peer it is no new mesh");
    drop(two);
    let set = fs::read_to_string(mesh.config_of(0, 2)).unwrap();
    drop(one);
    let path = mesh.places[0].directory.path().join("set.toml");
    fs::write(&path, set.replace("\"mesh\"", "\"set\"")).unwrap();
    let mut command = millrace();
    command.arg("serve").arg("--config").arg(&path);
    refuses(command, &["its kind is mesh", "cluster.kind is set"]);
    let mut command = millrace();
    command.arg("config").arg("--config").arg(&path);
    command.args(["--set", "cluster.kind=ring"]);
    refuses(command, &["cluster.kind", "ring", "\"mesh\""]);
}
