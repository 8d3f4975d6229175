//! A node of two cores: a client on any port reaches every shard, and one that knows its way is
//! never handed from core to core.
//!
//! Real processes, raw frames. Each core listens on its own port; shard `s` lives on core
//! `s mod cores`. A machine with one CPU cannot pin two cores, so there is nothing to see there.

mod node;

use millrace::client::NewRecord;
use millrace::client::driver::blocking::{Producer, Reader};
use millrace::client::driver::{ProducerConfig, ReaderConfig};
use millrace::types::{Epoch, Level, LogId, Offset, OriginId, ReadLevel, ShardId};
use millrace::wire::batch;
use millrace::wire::body::{Append, AppendOk, Body, Find, Metadata, PROTOCOL, Read, ReadOk};
use millrace::wire::code::Code;
use millrace::wire::frame;
use millrace::wire::record::{BatchBuilder, Record};
use node::{Node, PATIENCE, Place};
use std::fs;
use std::io::{Read as _, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const CORES: u16 = 2;
const SHARDS: u16 = 4;
/// Batches of one record that `append_to_all` sends to each shard.
const BATCHES: usize = 50;

/// Whether two executors can be pinned here.
fn has_two_cpus() -> bool {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < usize::from(CORES) {
        println!("not run: {cpus} CPU, {CORES} needed");
    }
    cpus >= usize::from(CORES)
}

fn place() -> Place {
    Place {
        port: node::ports::reserve(2),
        ..Place::new()
    }
}

/// The configuration of the `index`-th of these nodes.
fn config(places: &[Place], index: usize, log: &str) -> PathBuf {
    let own = &places[index];
    let mut text = format!(
        "[node]\nid = {}\ndata_dir = {:?}\n[cores]\ncount = {CORES}\n\
         [cluster]\nid = 7\nshards = {SHARDS}\n",
        index + 1,
        own.data(),
    );
    for (index, place) in places.iter().enumerate() {
        let (id, address) = (index + 1, place.address());
        text += &format!("[[cluster.nodes]]\nid = {id}\naddress = \"{address}\"\n");
    }
    text += &format!("[log]\nsegment_bytes = 4194304\n{log}");
    let path = own.directory.path().join("node.toml");
    fs::write(&path, text).expect("the configuration is written");
    path
}

/// One connection to one core.
struct Wire {
    stream: TcpStream,
    last: u64,
}

impl Wire {
    fn open(place: &Place, core: u16) -> Wire {
        let stream =
            TcpStream::connect(("127.0.0.1", place.port + core)).expect("the core listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Wire { stream, last: 0 }
    }

    fn send(&mut self, shard: u16, body: impl Into<Body>, payload: &[u8]) -> u64 {
        self.last += 1;
        let head = body.into().encode(self.last, log(shard), payload.len());
        let sent = self.stream.write_all(&[&head, payload].concat());
        sent.expect("the node reads");
        self.last
    }

    fn receive(&mut self) -> (u64, Body, Vec<u8>) {
        let mut head = [0; 32];
        self.stream.read_exact(&mut head).expect("an answer");
        let header = frame::read_header(&head).expect("a frame");
        let mut body = vec![0; header.body_len];
        self.stream.read_exact(&mut body).expect("its body");
        frame::check(&header, &head, &body).expect("a sound frame");
        let mut payload = vec![0; header.payload_len];
        self.stream.read_exact(&mut payload).expect("its payload");
        assert!(header.correlation > 0 && header.correlation <= self.last);
        let body = Body::decode(header.kind, &body).expect("a known frame");
        (header.correlation, body.expect("a sound body"), payload)
    }

    fn append(&mut self, shard: u16, level: Level, values: &[String]) -> u64 {
        let timeout_ms = PATIENCE.as_millis() as u32;
        let level = level.number();
        self.send(shard, Append { level, timeout_ms }, &batch_of(values))
    }

    fn appended(&mut self) -> (u64, AppendOk) {
        match self.receive() {
            (correlation, Body::AppendOk(ok), _) => (correlation, ok),
            (_, other, _) => panic!("not appended: {other:?}"),
        }
    }

    fn read(&mut self, shard: u16, offset: u64, wait: Duration) -> u64 {
        let body = Read {
            offset: Offset(offset),
            max_bytes: 1 << 20,
            wait_ms: wait.as_millis() as u32,
            level: ReadLevel::Committed.number(),
            last_epoch: Epoch(0),
        };
        self.send(shard, body, &[])
    }

    fn has_read(&mut self) -> (u64, ReadOk, Vec<String>) {
        match self.receive() {
            (correlation, Body::ReadOk(ok), payload) => (correlation, ok, values_of(&payload)),
            (_, other, _) => panic!("not read: {other:?}"),
        }
    }

    /// Waits until a node has committed the record at `offset`.
    fn wait_for(&mut self, shard: u16, offset: u64) {
        let until = Instant::now() + PATIENCE;
        loop {
            self.read(shard, offset, PATIENCE);
            match self.receive().1 {
                Body::ReadOk(_) => return,
                // A follower that does not hold it yet.
                refused => assert_eq!(code_of(&refused), Code::OutOfRange),
            }
            assert!(Instant::now() < until, "{shard} stays short of {offset}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Every record of a shard.
    fn read_all(&mut self, shard: u16, end: u64) -> Vec<String> {
        let mut all = Vec::new();
        while (all.len() as u64) < end {
            self.read(shard, all.len() as u64, Duration::ZERO);
            all.extend(self.has_read().2);
        }
        all
    }
}

fn log(shard: u16) -> LogId {
    let (origin, shard) = (OriginId(7), ShardId(shard));
    LogId { origin, shard }
}

/// The record time of the `n`-th value of a batch is 1000 times `n`.
fn batch_of(values: &[String]) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    for (number, value) in values.iter().enumerate() {
        builder.push(&Record::new(1000 * number as u64, value.as_bytes()));
    }
    builder.finish()
}

fn values_of(mut payload: &[u8]) -> Vec<String> {
    let mut values = Vec::new();
    while !payload.is_empty() {
        let prefix = batch::read_prefix(payload).expect("whole batches");
        let body = &payload[128..prefix.total_len()];
        for record in millrace::wire::record::read_all(body) {
            values.push(node::text(record.expect("a sound record").value));
        }
        payload = &payload[prefix.total_len()..];
    }
    values
}

fn values(shard: u16, range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("{n} of shard {shard}")).collect()
}

fn handoffs(node: &Node) -> u64 {
    let status = node.status();
    let sum = status["counters"]["handoffs"].as_u64().expect("a counter");
    let cores = status["core_handoffs"]
        .as_array()
        .expect("one for each core");
    assert_eq!(cores.len(), usize::from(CORES));
    assert_eq!(
        cores.iter().filter_map(|core| core.as_u64()).sum::<u64>(),
        sum
    );
    sum
}

/// Waits until the first node leads all that it should: its first append is taken.
fn wait_until_open(address: &str, shards: impl IntoIterator<Item = u16>) {
    let config = ProducerConfig::new().level(Level::Quorum).timeout(PATIENCE);
    let producer = Producer::connect([address], &config).expect("the node answers");
    for shard in shards {
        let record = NewRecord::default().shard(shard).timestamp_us(0);
        let appended = producer.send(record).expect("there is room").wait();
        appended.expect("the log opens");
    }
}

/// The drivers and the load generator route by what each node says of its own ports.
#[test]
fn a_client_that_knows_its_way_is_never_handed_over() {
    if !has_two_cpus() {
        return;
    }
    let places = [place(), place(), place()];
    let start = |index| Node::start(&config(&places, index, ""), &places[index].address());
    let mut nodes = [start(0), start(1), start(2)];
    for (turn, seed) in (1..).zip(&places) {
        for level in [Level::Local, Level::Leader, Level::Quorum] {
            let config = ProducerConfig::new().level(level).timeout(PATIENCE);
            let producer = Producer::connect([seed.address()], &config);
            append_ten_to_each(&producer.expect("the node answers"));
        }
        for shard in 0..SHARDS {
            let config = ReaderConfig::new(shard).level(ReadLevel::Local);
            assert_eq!(count(&places[0], &config), 30 * turn, "at the leader");
            count(seed, &config.at_seed());
        }
    }
    // A producer that outlives a node finds its cores again.
    let config = ProducerConfig::new().level(Level::Quorum).timeout(PATIENCE);
    let producer = Producer::connect([places[0].address()], &config);
    let producer = producer.expect("the node answers");
    append_ten_to_each(&producer);
    let [one, two, three] = nodes;
    two.kill();
    nodes = [one, start(1), three];
    append_ten_to_each(&producer);
    producer.close();
    let mut load = node::loadgen::loadgen();
    let addresses: Vec<String> = places.iter().map(Place::address).collect();
    load.args(["run", "--seconds", "0.5", "--warmup", "0", "--rate", "2000"])
        .args(["--nodes", &addresses.join(",")])
        .arg("--ledger")
        .arg(places[0].directory.path().join("run.ledger"));
    let output = node::finish(load);
    assert!(output.status.success(), "{}", node::text(&output.stderr));
    for node in nodes {
        assert_eq!(handoffs(&node), 0, "{}", node.address);
        assert!(node.stop().success());
    }
}

fn append_ten_to_each(producer: &Producer) {
    for shard in 0..SHARDS {
        for value in values(shard, 0..10) {
            let record = NewRecord::new(value).shard(shard);
            producer.send(record).expect("there is room");
        }
    }
    producer.flush();
}

/// Records that a reader finds through a node.
fn count(seed: &Place, config: &ReaderConfig) -> usize {
    let mut reader = Reader::connect([seed.address()], config).expect("the node answers");
    std::iter::from_fn(|| reader.next_record().expect("the log is read")).count()
}

#[test]
fn a_client_on_any_port_appends_reads_waits_and_finds() {
    if !has_two_cpus() {
        return;
    }
    let places = [place()];
    let node = Node::start(&config(&places, 0, ""), &places[0].address());
    wait_until_open(&node.address, 0..SHARDS);
    assert_eq!(handoffs(&node), 0);
    let mut expected_handoffs = 0;
    for core in 0..CORES {
        let mut wire = Wire::open(&places[0], core);
        wire.send(0, Metadata { protocol: PROTOCOL }, &[]);
        let Body::MetadataOk(known) = wire.receive().1 else {
            panic!("metadata is answered");
        };
        assert_eq!(known.nodes[0].cores, CORES, "where each shard is asked for");
        expected_handoffs += append_to_all(&mut wire, core);
    }
    assert_eq!(handoffs(&node), expected_handoffs);
    for core in 0..CORES {
        let mut wire = Wire::open(&places[0], core);
        for shard in 0..SHARDS {
            let end = 1 + BATCHES as u64 * u64::from(CORES);
            let before = handoffs(&node);
            let all = wire.read_all(shard, end);
            assert!(all.len() as u64 >= end);
            assert_eq!(all[1], "0 through core 0");
            assert_eq!(all[BATCHES + 1], "0 through core 1");
            let elsewhere = shard % CORES != core;
            assert_eq!(handoffs(&node) > before, elsewhere);

            // A read at the end waits for a record that comes through the other port.
            let end_now = end + 10 * u64::from(core);
            let waiting = wire.read(shard, end_now, PATIENCE);
            // Past the end is answered meanwhile.
            wire.read(shard, end_now + 1, Duration::ZERO);
            let (_, refusal, _) = wire.receive();
            assert_eq!(code_of(&refusal), Code::OutOfRange);
            let mut other = Wire::open(&places[0], 1 - core);
            other.append(shard, Level::Leader, &values(shard, 0..10));
            let (_, appended) = other.appended();
            assert_eq!(appended.base_offset.0, end_now);
            let (correlation, _, read) = wire.has_read();
            assert_eq!(correlation, waiting);
            assert_eq!(read, values(shard, 0..10));

            wire.send(shard, Find { timestamp: 5_000 }, &[]);
            match wire.receive().1 {
                Body::FindOk(found) => assert_eq!(found.offset.0, end),
                other => panic!("not found: {other:?}"),
            }
            // Waiting for nothing ends in time.
            wire.read(shard, end_now + 10, Duration::from_millis(50));
            let (_, nothing, _) = wire.receive();
            assert_eq!(code_of(&nothing), Code::Timeout);
        }
    }
    assert!(node.stop().success());
}

/// Appends to all shards at once: what comes back for a shard comes in the order of asking. Returns
/// how many of the requests were for another core.
fn append_to_all(wire: &mut Wire, core: u16) -> u64 {
    let mut elsewhere = 0;
    let mut asked = vec![Vec::new(); usize::from(SHARDS)];
    for number in 0..BATCHES {
        for shard in 0..SHARDS {
            let value = format!("{number} through core {core}");
            let correlation = wire.append(shard, Level::Quorum, &[value]);
            asked[usize::from(shard)].push(correlation);
            elsewhere += u64::from(shard % CORES != core);
        }
    }
    let mut answers = vec![Vec::new(); usize::from(SHARDS)];
    for _ in 0..BATCHES * usize::from(SHARDS) {
        let (correlation, ok) = wire.appended();
        let shard = asked.iter().position(|asked| asked.contains(&correlation));
        answers[shard.expect("asked")].push((correlation, ok.base_offset.0));
    }
    let first = 1 + u64::from(core) * BATCHES as u64;
    for (asked, answers) in asked.iter().zip(&answers) {
        let offsets = first..first + BATCHES as u64;
        let expected: Vec<_> = asked.iter().copied().zip(offsets).collect();
        assert_eq!(*answers, expected, "in order");
    }
    elsewhere
}

fn code_of(body: &Body) -> Code {
    match body {
        Body::Error(error) => Code::from_number(error.code).expect("a known code"),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_client_that_leaves_while_its_requests_are_elsewhere_costs_nothing() {
    if !has_two_cpus() {
        return;
    }
    let places = [place()];
    let node = Node::start(&config(&places, 0, ""), &places[0].address());
    wait_until_open(&node.address, 0..SHARDS);
    for round in 0..50 {
        let mut wire = Wire::open(&places[0], 0);
        for number in 0..20 {
            wire.append(1, Level::Quorum, &[format!("{round} {number}")]);
            wire.read(1, 1, PATIENCE);
            wire.read(3, 1, PATIENCE);
        }
        if round % 2 == 0 {
            wire.receive();
        }
    }
    // The reads that waited are gone with their clients: others are not refused.
    let mut wire = Wire::open(&places[0], 0);
    wire.append(3, Level::Quorum, &values(3, 0..1));
    assert_eq!(wire.appended().1.base_offset.0, 1);
    let until = Instant::now() + PATIENCE;
    // This question's own connection is the only one left, beside ours.
    while node.status()["counters"]["connections_open"] != 2 {
        assert!(Instant::now() < until, "connections stay open");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(node.stop().success());
}

#[test]
fn a_node_that_stops_answers_what_is_with_another_core() {
    if !has_two_cpus() {
        return;
    }
    let places = [place()];
    let path = config(&places, 0, "");
    let node = Node::start(&path, &places[0].address());
    wait_until_open(&node.address, 0..SHARDS);
    let mut wires = [0, 1].map(|core| Wire::open(&places[0], core));
    let mut acked = vec![1; usize::from(SHARDS)];
    for wire in &mut wires {
        for shard in 0..SHARDS {
            wire.append(shard, Level::Quorum, &values(shard, 0..3));
            wire.appended();
            acked[usize::from(shard)] += 3;
        }
    }
    for wire in &mut wires {
        for (shard, end) in (0..SHARDS).zip(&acked) {
            wire.read(shard, *end as u64, PATIENCE);
        }
    }
    assert!(node.stop().success(), "a clean stop");
    for wire in &mut wires {
        for _ in 0..SHARDS {
            assert_eq!(code_of(&wire.receive().1), Code::Stopping);
        }
        assert_eq!(wire.stream.read(&mut [0]).ok(), Some(0), "and then the end");
    }
    let node = Node::start(&path, &places[0].address());
    wait_until_open(&node.address, 0..SHARDS);
    for core in 0..CORES {
        let mut wire = Wire::open(&places[0], core);
        for shard in 0..SHARDS {
            let end = acked[usize::from(shard)];
            let all = wire.read_all(shard, end as u64);
            let expected = [
                vec![String::new()],
                values(shard, 0..3),
                values(shard, 0..3),
            ];
            assert_eq!(all[..end], expected.concat());
        }
    }
    assert!(node.stop().success());
}

#[test]
fn three_nodes_of_two_cores_replicate_and_carry_on_after_restarts() {
    if !has_two_cpus() {
        return;
    }
    let places = [place(), place(), place()];
    let start = |index| Node::start(&config(&places, index, ""), &places[index].address());
    let nodes = [start(0), start(1), start(2)];
    let leads = |node: u16| (0..SHARDS).filter(move |shard| shard % 3 == node);
    let mut expected = vec![vec![String::new()]; usize::from(SHARDS)];
    for (index, node) in (0..3).zip(&nodes) {
        wait_until_open(&node.address, leads(index));
    }
    append_through_both_ports(&places, &mut expected);
    let [one, two, three] = nodes;
    [&one, &two].into_iter().for_each(wait_until_replicating);
    // One node is killed and comes back; another one stops and comes back.
    three.kill();
    let three = start(2);
    wait_until_open(&three.address, leads(2));
    leads(2).for_each(|shard| expected[usize::from(shard)].push(String::new()));
    assert!(two.stop().success());
    let two = start(1);
    wait_until_open(&two.address, leads(1));
    leads(1).for_each(|shard| expected[usize::from(shard)].push(String::new()));
    append_through_both_ports(&places, &mut expected);
    for (place, node) in places.iter().zip([&one, &two, &three]) {
        for (shard, expected) in (0..SHARDS).zip(&expected) {
            for core in 0..CORES {
                let mut wire = Wire::open(place, core);
                wire.wait_for(shard, expected.len() as u64 - 1);
                assert_eq!(wire.read_all(shard, expected.len() as u64), *expected);
            }
        }
        assert_eq!(node.status()["counters"]["crc_failures"], 0);
    }
    for node in [one, two, three] {
        assert!(node.stop().success());
    }
}

/// Waits until every link says so: another core's are told a moment later.
fn wait_until_replicating(node: &Node) {
    let until = Instant::now() + PATIENCE;
    loop {
        let links = node.status()["links"].clone();
        let mut links = links.as_array().expect("links").iter();
        let Some(link) = links.find(|link| link["status"] != "replicating") else {
            return;
        };
        assert!(Instant::now() < until, "{link}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Appends to every shard at its leader, through the right port and the wrong one.
fn append_through_both_ports(places: &[Place], expected: &mut [Vec<String>]) {
    for (shard, expected) in (0..SHARDS).zip(expected) {
        for core in 0..CORES {
            let mut wire = Wire::open(&places[usize::from(shard % 3)], core);
            for number in 0..20 {
                let value = format!("{} {number} {core}", expected.len());
                wire.append(shard, Level::Quorum, std::slice::from_ref(&value));
                expected.push(value);
            }
            for _ in 0..20 {
                wire.appended();
            }
        }
    }
}
