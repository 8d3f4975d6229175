//! `millrace promote SHARD NODE`: hands the leadership of a shard to another node.
//!
//! Gives the order at the HTTP port of the node that leads the shard now, then waits until that
//! node says that the other one leads. The leader holds appends back meanwhile: none fails by it.
//! Where leaders are elected the preferred one is given the leadership back after a while.

use super::link::{admin_port, order};
use super::{Failure, node_address, say};
use clap::Args;
use millrace::client::driver::blocking::Client;
use serde_json::Value;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long the other node may take: longer than any hand-over that succeeds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// Arguments of `promote`.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The shard.
    shard: u16,
    /// The id of the node that is to lead it.
    to: u32,
    /// The node that leads it now; it needs node.admin and node.admin_control.
    #[arg(long, value_name = "HOST:PORT", value_parser = node_address)]
    node: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { shard, to, node } = arguments;
    let address = admin_port(node)?;
    order(&address, &format!("/shards/{shard}/promote/{to}"))?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if leader(node, *shard)? == Some(u64::from(*to)) {
            say(format_args!(
                "node {to} leads shard {shard}; where leaders are elected, the shard's preferred \
                 node gets it back once it has been caught up for 10 s"
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(LOOK);
    }
    let text = format!(
        "node {to} did not take shard {shard} over; see the logs of both nodes, and try again"
    );
    Err(Failure::Failed(text))
}

/// Who leads the shard, as the node says.
fn leader(node: &str, shard: u16) -> Result<Option<u64>, Failure> {
    let status = Client::connect(node)?.status()?;
    let status: Value = serde_json::from_str(&status)
        .map_err(|error| Failure::Failed(format!("the node's status is no JSON: {error}")))?;
    let shards = status["shards"].as_array();
    let found = shards.and_then(|all| all.iter().find(|one| one["shard"] == shard));
    Ok(found.and_then(|one| one["leader"].as_u64()))
}
