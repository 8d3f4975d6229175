//! Follows a shard from an application on tokio: what is there, then what comes.
//!
//! ```text
//! cargo run --release --example consume_tokio -- 127.0.0.1:7200
//! ```

use millrace::client::driver::tokio::Reader;
use millrace::client::driver::{ClientError, Message, ReaderConfig};
use millrace::client::{Failure, Start};
use millrace::types::Offset;

/// Hands committed records of a shard to `each`, from its first one on, until that says stop.
pub async fn consume(
    address: &str,
    shard: u16,
    mut each: impl FnMut(Message) -> bool,
) -> Result<(), ClientError> {
    let config = ReaderConfig::new(shard).from_offset(0).follow();
    let mut reader = Reader::connect([address], &config).await?;
    loop {
        match reader.next_record().await {
            // Keep the offset with what you make of the record: it is where to go on from.
            Ok(Some(message)) => {
                if !each(message) {
                    return Ok(());
                }
            }
            // Only a reader that does not follow comes to an end.
            Ok(None) => return Ok(()),
            // Retention has passed the reader by: go on where the log begins now.
            Err(ClientError::Failed(Failure::OutOfRange { offset, start, .. }))
                if offset < start =>
            {
                reader.seek(Start::Offset(Offset(start)));
            }
            Err(error) => return Err(error),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or("127.0.0.1:7200".to_owned());
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_all()
        .build()?
        .block_on(consume(&address, 0, |message| {
            let value = String::from_utf8_lossy(&message.value);
            println!("{} {value}", message.offset);
            true
        }))?;
    Ok(())
}
