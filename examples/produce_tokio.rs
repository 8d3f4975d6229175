//! Appends records from an application on tokio, and waits for each outcome.
//!
//! ```text
//! cargo run --release --example produce_tokio -- 127.0.0.1:7200
//! ```

use millrace::client::NewRecord;
use millrace::client::driver::tokio::Producer;
use millrace::client::driver::{ClientError, ProducerConfig};
use std::time::Duration;

/// Appends `count` records, those of one sensor in order; how many were acknowledged.
pub async fn produce(address: &str, count: u32) -> Result<u32, ClientError> {
    // Any node of the cluster will do: it names the others. The level is the cluster's default.
    let config = ProducerConfig::new().timeout(Duration::from_secs(10));
    let producer = Producer::connect([address], &config).await?;

    // `send` waits only while there is no room; what it returns tells how the record ended.
    let mut outcomes = Vec::new();
    for number in 0..count {
        let record =
            NewRecord::new(format!("reading {number}")).key(format!("sensor {}", number % 3));
        outcomes.push(producer.send(record).await?);
    }

    let mut acked = 0;
    for outcome in outcomes {
        match outcome.await {
            Ok(ack) => {
                acked += 1;
                println!("shard {} offset {}", ack.shard, ack.offset);
            }
            // It may be in the log, once; the client has tried for the whole time-out.
            Err(error) if error.is_unknown() => eprintln!("unknown: {error}"),
            Err(error) => eprintln!("not appended: {error}"),
        }
    }
    producer.close().await;
    Ok(acked)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or("127.0.0.1:7200".to_owned());
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let acked = runtime
        .enable_all()
        .build()?
        .block_on(produce(&address, 100))?;
    println!("{acked} records acknowledged");
    Ok(())
}
