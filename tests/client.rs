//! The client's drivers against real nodes: what is acked is read, restarts repeat and lose
//! nothing, compressed batches stay compressed until a client opens them.
//!
//! How a session decides is tested with it, in `src/client`; here it is shown that sockets and
//! threads carry it.

mod node;

use millrace::client::driver::blocking::{Client, Producer, Reader};
use millrace::client::driver::tokio as on_tokio;
use millrace::client::driver::{ClientError, Message, ProducerConfig, ReaderConfig};
use millrace::client::{Codec, Failure, NewRecord};
use millrace::types::{Level, ReadLevel};
use node::{Node, PATIENCE, Place};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

struct One {
    _place: Place,
    config: PathBuf,
    node: Option<Node>,
    address: String,
}

impl One {
    fn start() -> One {
        One::with("")
    }

    /// With more settings of the section `[log]`.
    fn with(more: &str) -> One {
        let place = Place::new();
        let config = place.write_config(1, more);
        let address = place.address();
        let node = Some(Node::start(&config, &address));
        One {
            _place: place,
            config,
            node,
            address,
        }
    }

    fn restart(&mut self) {
        let node = self.node.take().expect("it runs");
        node.stop();
        self.node = Some(Node::start(&self.config, &self.address));
    }

    fn producer(&self, config: &ProducerConfig) -> Producer {
        Producer::connect([&self.address[..]], config).expect("the node answers")
    }

    fn reader(&self, config: ReaderConfig) -> Reader {
        Reader::connect([&self.address[..]], &config.at_seed()).expect("the node answers")
    }
}

fn all(reader: &mut Reader) -> Vec<Message> {
    std::iter::from_fn(|| reader.next_record().expect("the node serves reads")).collect()
}

fn values(messages: &[Message]) -> Vec<String> {
    let values = messages.iter();
    values
        .map(|message| String::from_utf8(message.value.clone()).unwrap())
        .collect()
}

/// Whatever the level, a record that a node acked is in what that node gives to the next local
/// read.
///
/// S-146
#[test]
fn a_record_acked_on_a_node_is_read_there() {
    let one = One::start();
    let mut expected = Vec::new();
    let mut kept = one.reader(ReaderConfig::new(0).level(ReadLevel::Local));
    for round in 0..20 {
        for level in Level::ALL {
            let producer = one.producer(&ProducerConfig::new().level(level));
            let value = format!("{} {round}", level.name());
            let ack = producer
                .send(NewRecord::new(value.clone()).shard(0))
                .unwrap()
                .wait();
            let ack = ack.expect("it is acked");
            expected.push(value.clone());
            // By a new reader from there, and by one that stood at the end.
            let from = ReaderConfig::new(0)
                .level(ReadLevel::Local)
                .from_offset(ack.offset.0);
            assert_eq!(values(&all(&mut one.reader(from))), [&value[..]]);
            assert_eq!(values(&all(&mut kept)), [&value[..]]);
            if level == Level::Quorum {
                let committed = ReaderConfig::new(0).from_offset(ack.offset.0);
                assert_eq!(values(&all(&mut one.reader(committed))), [&value[..]]);
            }
        }
    }
    let mut whole = one.reader(ReaderConfig::new(0).level(ReadLevel::Local));
    assert_eq!(values(&all(&mut whole)), expected);
}

/// One reader and one producer live through restarts of their node: each record once, forward.
///
/// S-147
#[test]
fn a_reader_never_goes_back_over_a_restart() {
    let mut one = One::start();
    let producer = one.producer(&ProducerConfig::new());
    let mut reader = one.reader(ReaderConfig::new(0));
    let mut seen = Vec::new();
    for round in 0..3 {
        for number in 0..50 {
            let record = NewRecord::new(format!("{round} {number}")).shard(0);
            producer.send(record).expect("there is room");
        }
        producer.flush();
        seen.extend(all(&mut reader));
        one.restart();
        seen.extend(all(&mut reader));
    }
    let offsets: Vec<u64> = seen.iter().map(|message| message.offset.0).collect();
    assert_eq!(offsets, (0..150).collect::<Vec<u64>>());
    let mut again = one.reader(ReaderConfig::new(0));
    assert_eq!(all(&mut again), seen);
}

#[test]
fn a_reader_begins_at_a_time() {
    let one = One::start();
    let producer = one.producer(&ProducerConfig::new().max_batch_records(3));
    for number in 0..20_u64 {
        let record = NewRecord::new(number.to_string()).timestamp_us(1000 * number);
        producer.send(record.shard(0)).unwrap();
    }
    producer.close();
    let mut reader = one.reader(ReaderConfig::new(0).from_time_us(7001));
    let expected: Vec<String> = (8..20).map(|number| number.to_string()).collect();
    assert_eq!(values(&all(&mut reader)), expected);
}

/// A node whose blocks hold fewer records than the default says so, and batches are made to fit.
#[test]
fn batches_keep_to_the_clusters_number_of_records() {
    let one = One::with("max_block_records = 50\n");
    let producer = one.producer(&ProducerConfig::new().linger(Duration::from_secs(5)));
    assert_eq!(producer.cluster().max_batch_records, 50);
    let record = |number: u32| NewRecord::new(number.to_string()).shard(0);
    let sent: Vec<_> = (0..120)
        .map(|number| producer.send(record(number)).unwrap())
        .collect();
    producer.flush();
    let batches: BTreeSet<u64> = sent
        .into_iter()
        .map(|one| one.wait().unwrap().batch.0)
        .collect();
    assert_eq!(batches, BTreeSet::from([0, 50, 100]));
}

/// A producer that is let go with records on their way, and without waiting for one of them.
#[test]
fn a_dropped_producer_loses_nothing() {
    let one = One::start();
    let slow = ProducerConfig::new().linger(Duration::from_secs(1));
    let producer = one.producer(&slow);
    for number in 0..100 {
        producer
            .send(NewRecord::new(number.to_string()).shard(0))
            .unwrap();
    }
    drop(producer);
    let expected: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    assert_eq!(
        values(&all(&mut one.reader(ReaderConfig::new(0)))),
        expected[..100]
    );

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let producer = on_tokio::Producer::connect([&one.address[..]], &slow)
            .await
            .unwrap();
        for number in 100..200 {
            let record = NewRecord::new(number.to_string()).shard(0);
            producer.send(record).await.unwrap();
        }
        drop(producer);
        let config = ReaderConfig::new(0).follow();
        let mut reader = on_tokio::Reader::connect([&one.address[..]], &config)
            .await
            .unwrap();
        let mut seen = Vec::new();
        while seen.len() < 200 {
            let next = tokio::time::timeout(PATIENCE, reader.next_record()).await;
            seen.extend(next.expect("it comes").unwrap());
        }
        assert_eq!(values(&seen), expected);
    });
}

#[test]
fn what_does_not_work_says_why_and_what_mends_it() {
    let one = One::start();
    let fails = |error: ClientError, words: &[&str]| {
        let text = error.to_string();
        for word in words.iter().chain(&["mend: "]) {
            assert!(text.contains(word), "no {word:?} in {text:?}");
        }
    };
    let soon = ProducerConfig::new().connect_timeout(Duration::from_millis(300));
    let nobody = format!("127.0.0.1:{}", node::ports::reserve(1));
    let error = Producer::connect([&nobody[..]], &soon)
        .err()
        .expect("nobody is there");
    fails(error, &[&nobody, "refused"]);
    fails(Client::connect(&nobody).unwrap_err(), &[&nobody, "refused"]);
    let producer = one.producer(&ProducerConfig::new());
    let error = producer.send(NewRecord::new("x").shard(9)).unwrap_err();
    fails(error, &["shard 9"]);
    let error = producer.send(NewRecord::new(vec![0; 2 << 20])).unwrap_err();
    fails(error, &["2097"]);
    let mut reader = one.reader(ReaderConfig::new(0).from_offset(5));
    fails(reader.next_batch().unwrap_err(), &["offset 5", "0 to 0"]);
    let none = ProducerConfig::new().max_batch_records(0);
    fails(
        Producer::connect([&one.address[..]], &none).err().unwrap(),
        &["max_batch_records"],
    );
    // A node that has gone away while the batch is on its way: nobody knows.
    let short = ProducerConfig::new().timeout(Duration::from_millis(500));
    let producer = one.producer(&short);
    drop(one);
    let error = producer
        .send(NewRecord::new("x").shard(0))
        .unwrap()
        .wait()
        .unwrap_err();
    let not_taken = matches!(error, ClientError::Failed(Failure::NotTaken { .. }));
    assert!(error.is_unknown() || not_taken, "{error}");
    fails(error, &[]);
}

/// Three nodes of one set.
struct Set {
    places: Vec<Place>,
    nodes: Vec<Node>,
}

impl Set {
    fn start() -> Set {
        let places: Vec<Place> = (0..3).map(|_| Place::new()).collect();
        let mut entries = String::new();
        for (place, id) in places.iter().zip(1..) {
            let address = place.address();
            write!(
                entries,
                "[[cluster.nodes]]\nid = {id}\naddress = \"{address}\"\n"
            )
            .unwrap();
        }
        let nodes = places.iter().zip(1..).map(|(place, id)| {
            let config = place.directory.path().join("node.toml");
            let data = place.data();
            let text = format!(
                "[node]\nid = {id}\ndata_dir = {data:?}\n[cluster]\nid = 7\n{entries}\
                 [log]\nsegment_bytes = 4194304\n"
            );
            fs::write(&config, text).unwrap();
            Node::start(&config, &place.address())
        });
        let nodes = nodes.collect();
        Set { places, nodes }
    }

    fn seeds(&self) -> Vec<String> {
        self.places.iter().map(Place::address).collect()
    }

    /// Bytes of blocks of shard 0 that its leader, the first node, sent over each of its links,
    /// once all nodes have the same.
    fn sent_bytes(&self) -> Vec<u64> {
        let until = Instant::now() + PATIENCE;
        loop {
            let statuses: Vec<_> = self.nodes.iter().map(Node::status).collect();
            let shards = statuses.iter().map(|status| &status["shards"][0]);
            let shards: Vec<_> = shards.collect();
            let end = &shards[0]["durable_offset"];
            if shards.iter().all(|shard| shard["committed_offset"] == *end) {
                let links = statuses[0]["links"].as_array().expect("a list of links");
                let links = links.iter().filter(|link| link["shard"] == 0);
                return links
                    .map(|link| link["sent_bytes"].as_u64().unwrap())
                    .collect();
            }
            assert!(Instant::now() < until, "the nodes differ: {shards:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn json(number: usize) -> String {
    let (a, b) = (number * 7919 % 10_007, number * 104_729 % 999_983);
    format!(
        "{{\"sensor\": \"temperature-{}\", \"unit\": \"celsius\", \"reading\": {a}, \
         \"check\": {b}, \"site\": \"north hall\", \"quality\": \"good\"}}",
        number % 50
    )
}

/// The same records plain and compressed: the bytes on the links to the followers fall by the
/// payload's ratio, no node encodes a record, and every node gives back the same content.
///
/// H-2
#[test]
fn compressed_batches_cross_the_set_as_they_are() {
    const RECORDS: usize = 20_000;
    const BATCH: usize = 4000;
    let set = Set::start();
    let bodies: Vec<String> = (0..RECORDS).map(json).collect();
    let raw: usize = bodies.iter().map(|body| body.len() + 20).sum();
    let packed: usize = bodies
        .chunks(BATCH)
        .map(|batch| {
            zstd::bulk::compress(batch.concat().as_bytes(), 3)
                .unwrap()
                .len()
        })
        .sum();
    let ratio = raw as f64 / packed as f64;
    let mut before = set.sent_bytes();
    // The links are there once the node that is asked leads.
    while before.len() < 2 {
        std::thread::sleep(Duration::from_millis(20));
        before = set.sent_bytes();
    }
    let mut grown = Vec::new();
    for codec in [Codec::None, Codec::Zstd] {
        let config = ProducerConfig::new()
            .codec(codec)
            .linger(Duration::from_secs(1))
            .max_batch_records(BATCH as u32);
        let producer = Producer::connect(set.seeds(), &config).unwrap();
        let sent = bodies
            .iter()
            .map(|body| producer.send(NewRecord::new(&body[..]).shard(0)));
        for pending in sent.collect::<Result<Vec<_>, _>>().unwrap() {
            pending.wait().expect("it is acked by a majority");
        }
        producer.close();
        let after = set.sent_bytes();
        grown.push([after[0] - before[0], after[1] - before[1]]);
        before = after;
    }
    for (plain, small) in grown[0].iter().zip(&grown[1]) {
        let fell = *plain as f64 / *small as f64;
        println!("payload {raw} -> {packed} ({ratio:.1} x), link {plain} -> {small} ({fell:.1} x)");
        assert!(
            ratio > 3.0 && fell > 0.7 * ratio && fell < 1.5 * ratio,
            "{fell} of {ratio}"
        );
    }
    let expected: Vec<String> = [&bodies[..], &bodies[..]].concat();
    for node in &set.nodes {
        assert_eq!(node.status()["counters"]["records_encoded"], 0);
        let config = ReaderConfig::new(0).at_seed();
        let mut reader = Reader::connect([&node.address[..]], &config).unwrap();
        assert_eq!(values(&all(&mut reader)), expected);
    }
}
