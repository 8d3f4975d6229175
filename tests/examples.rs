//! The examples, run as they are written against a real node.

mod node;

#[allow(dead_code)]
#[path = "../examples/blocking.rs"]
mod blocking;
#[allow(dead_code)]
#[path = "../examples/consume_tokio.rs"]
mod consume_tokio;
#[allow(dead_code)]
#[path = "../examples/produce_tokio.rs"]
mod produce_tokio;

use node::{Node, Place};
use std::time::Duration;

fn start() -> (Place, Node) {
    let place = Place::new();
    let config = place.write_config(1, "");
    let node = Node::start(&config, &place.address());
    (place, node)
}

fn on_tokio<T>(task: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let within = async { tokio::time::timeout(Duration::from_secs(60), task).await };
    runtime.block_on(within).expect("the example ends")
}

#[test]
fn what_one_example_produces_another_one_consumes() {
    let (_place, node) = start();
    let acked = on_tokio(produce_tokio::produce(&node.address, 100)).unwrap();
    assert_eq!(acked, 100);
    let mut seen = Vec::new();
    let consumed = on_tokio(consume_tokio::consume(&node.address, 0, |message| {
        seen.push(message);
        seen.len() < 100
    }));
    consumed.unwrap();
    for (number, message) in seen.iter().enumerate() {
        assert_eq!(message.offset.0, number as u64);
        assert_eq!(message.value, format!("reading {number}").into_bytes());
        assert_eq!(message.key, format!("sensor {}", number % 3).into_bytes());
    }
}

#[test]
fn the_blocking_example_reads_what_it_wrote() {
    let (_place, node) = start();
    for _ in 0..2 {
        let values = blocking::round_trip(&node.address, 10).unwrap();
        let expected = (0..10).map(|number| format!("line {number}").into_bytes());
        assert_eq!(values, expected.collect::<Vec<_>>());
    }
}
