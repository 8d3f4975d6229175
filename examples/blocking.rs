//! Appends and reads without an async runtime: for tools and tests.
//!
//! ```text
//! cargo run --release --example blocking -- 127.0.0.1:7200
//! ```

use millrace::client::driver::blocking::{Producer, Reader};
use millrace::client::driver::{ClientError, ProducerConfig, ReaderConfig};
use millrace::client::{Codec, NewRecord};
use millrace::types::Level;

/// Appends compressed records to shard 0 and reads them back; their values.
pub fn round_trip(address: &str, count: u32) -> Result<Vec<Vec<u8>>, ClientError> {
    // Nodes store the batch as it is sent; only clients compress and decompress.
    let config = ProducerConfig::new()
        .codec(Codec::Zstd)
        .level(Level::Quorum);
    let producer = Producer::connect([address], &config)?;
    let mut outcomes = Vec::new();
    for number in 0..count {
        let record = NewRecord::new(format!("line {number}"))
            .shard(0)
            .label("source", "example");
        outcomes.push(producer.send(record)?);
    }
    let mut first = None;
    for outcome in outcomes {
        let ack = outcome.wait()?;
        first.get_or_insert(ack.offset);
    }
    producer.close();

    // Committed records of shard 0, from the first one that was appended above to the end.
    let from = first.map_or(0, |offset| offset.0);
    let mut reader = Reader::connect([address], &ReaderConfig::new(0).from_offset(from))?;
    let mut values = Vec::new();
    while let Some(message) = reader.next_record()? {
        values.push(message.value);
    }
    Ok(values)
}

fn main() -> Result<(), ClientError> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or("127.0.0.1:7200".to_owned());
    for value in round_trip(&address, 10)? {
        println!("{}", String::from_utf8_lossy(&value));
    }
    Ok(())
}
