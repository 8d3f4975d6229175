//! `millrace scrub`: what is damaged on a node's disk, and what was done about it.
//!
//! A node reads its logs again by itself, at a pace, and repairs what it finds from the other nodes
//! that hold them. This shows that, or gives the order to begin at the node's HTTP port and follows
//! it to its end.

use super::link::{admin_port, order};
use super::{Failure, node_address, say};
use clap::Args;
use millrace::client::driver::blocking::Client;
use serde_json::Value;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// Between two lines about progress.
const TELL: Duration = Duration::from_secs(2);
/// How long repairs may take once everything was read, or asked for again.
const REPAIR: Duration = Duration::from_secs(30);

/// Show what is damaged on a node's disk: for each log the last pass of the scrub, the one under
/// way, and the ranges of blocks that are damaged and not repaired yet.
///
/// A node scrubs by itself (log.scrub_bytes_per_s, log.scrub_interval_s) and repairs what any read
/// finds damaged at once, from the other nodes that hold the log. --now only makes the next pass
/// begin now; --repair only makes a repair that waits for a node be tried again now.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Read every log of the node again now, and follow it to its end; exit code 1 if damage stays.
    #[arg(long)]
    now: bool,
    /// Ask the other nodes at once for what is damaged and not repaired yet, and wait for it; exit
    /// code 1 if damage stays.
    #[arg(long)]
    repair: bool,
    /// The node, at its port for clients (node.address). For --now and --repair it needs node.admin
    /// and node.admin_control.
    #[arg(long, value_name = "HOST:PORT", value_parser = node_address)]
    node: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { now, repair, node } = arguments;
    if !now && !repair {
        for shard in &shards(node)? {
            say(format_args!("{}", line(shard)))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let address = admin_port(node)?;
    if *now {
        let before: Vec<u64> = shards(node)?.iter().map(passes).collect();
        order(&address, "/scrub/now")?;
        follow(node, &before)?;
    }
    if *repair {
        order(&address, "/scrub/repair")?;
    }
    let until = Instant::now() + REPAIR;
    loop {
        let shards = shards(node)?;
        let open = shards.iter().any(is_damaged);
        if !open || Instant::now() > until {
            for shard in &shards {
                say(format_args!("{}", line(shard)))?;
            }
            return Ok(ExitCode::from(u8::from(open)));
        }
        std::thread::sleep(LOOK);
    }
}

/// Waits until every log that is scrubbed has ended one more pass than before.
fn follow(node: &str, before: &[u64]) -> Result<(), Failure> {
    let mut told = Instant::now();
    loop {
        std::thread::sleep(LOOK);
        let shards = shards(node)?;
        let scrubbed = |shard: &&Value| shard["damage"]["scrubbed"] == true;
        let mut all = shards
            .iter()
            .zip(before)
            .filter(|(shard, _)| scrubbed(shard));
        if all.all(|(shard, before)| passes(shard) > *before) {
            return Ok(());
        }
        if told.elapsed() >= TELL {
            told = Instant::now();
            let running = shards
                .iter()
                .filter(|one| !one["damage"]["running"].is_null());
            for shard in running {
                say(format_args!("{}", line(shard)))?;
            }
        }
    }
}

fn shards(node: &str) -> Result<Vec<Value>, Failure> {
    let status = Client::connect(node)?.status()?;
    let mut status: Value = serde_json::from_str(&status)
        .map_err(|error| Failure::Failed(format!("the node's status is no JSON: {error}")))?;
    match status["shards"].take() {
        Value::Array(shards) => Ok(shards),
        _ => Ok(Vec::new()),
    }
}

fn passes(shard: &Value) -> u64 {
    shard["counters"]["scrubs"].as_u64().unwrap_or_default()
}

fn is_damaged(shard: &Value) -> bool {
    let ranges = shard["damage"]["faulty"].as_array();
    ranges.is_some_and(|ranges| !ranges.is_empty())
}

/// One log on one line.
fn line(shard: &Value) -> String {
    let damage = &shard["damage"];
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let seconds = |value: &Value| number(value) as f64 / 1e6;
    let mut parts = Vec::new();
    let failed = shard["failed"].as_str().unwrap_or_default();
    if !failed.is_empty() {
        parts.push(format!("closed: {failed}"));
    } else if damage["scrubbed"] != true {
        parts.push("not scrubbed: no other node holds it".to_owned());
    }
    if let Some(pass) = damage["running"].as_object() {
        let (read, all) = (number(&pass["bytes"]), number(&damage["bytes"]));
        let percent = (read * 100).checked_div(all).unwrap_or(100).min(100);
        parts.push(format!("reading: {read} of {all} bytes ({percent} %)"));
    }
    match damage["last"].as_object() {
        Some(pass) => parts.push(format!(
            "last read {:.0} s ago: {} bytes in {:.1} s, {} damaged",
            seconds(&pass["since_us"]),
            number(&pass["bytes"]),
            seconds(&pass["lasted_us"]),
            number(&pass["found"]),
        )),
        None if damage["scrubbed"] == true => parts.push("not read since the start".to_owned()),
        None => {}
    }
    let counters = &shard["counters"];
    parts.push(format!(
        "since the start: {} found, {} blocks repaired, {} rewritten",
        number(&counters["damage_found"]),
        number(&counters["blocks_repaired"]),
        number(&counters["rewritten"]),
    ));
    for range in damage["faulty"].as_array().into_iter().flatten() {
        let waits_for = damage["waits_for"].as_str().unwrap_or_default();
        let why = if waits_for.is_empty() {
            "being looked into"
        } else {
            waits_for
        };
        parts.push(format!(
            "DAMAGED: blocks {} up to {} for {:.0} s ({why})",
            number(&range["from"]),
            number(&range["end"]),
            seconds(&range["since_us"]),
        ));
    }
    format!(
        "log {}-{}: {}",
        shard["origin"],
        shard["shard"],
        parts.join("; ")
    )
}
