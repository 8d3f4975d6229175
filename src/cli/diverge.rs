//! `millrace diverge show` and `resolve`: logs of two nodes that differ below what is committed.
//!
//! That takes a lost or damaged majority, or an operator's mistake; the link between the two stands
//! still, `paused` with the cause `diverged`, until an operator decides whose blocks stay. `show`
//! asks running nodes. `resolve` runs beside a stopped node whose blocks go: they are kept in
//! `data_dir/salvaged/`, and the node counts as one that lost its memory until the others have
//! brought it up.

use super::salvage::{Stopped, log_id};
use super::{ConfigArguments, Failure, node_address, say};
use clap::{Args, Subcommand};
use millrace::client::Start;
use millrace::client::driver::ReaderConfig;
use millrace::client::driver::blocking::{Client, Reader};
use millrace::types::{Epoch, LogId, Offset, ReadLevel, Tick};
use serde_json::Value;
use std::process::ExitCode;

/// Arguments of `diverge`.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the logs that differ, and what each of the nodes holds of them.
    Show(Show),
    /// Give up this stopped node's blocks of a log from one on, so that another node's stay.
    Resolve(Resolve),
}

#[derive(Args, Debug)]
struct Show {
    /// A node, at its port for clients; once for each side.
    #[arg(long, required = true, value_name = "HOST:PORT", value_parser = node_address)]
    node: Vec<String>,
}

#[derive(Args, Debug)]
struct Resolve {
    #[command(flatten)]
    config: ConfigArguments,
    /// The log.
    #[arg(long, value_name = "ORIGIN-SHARD", value_parser = log_id)]
    log: LogId,
    /// The first record that goes, as `show` tells it.
    #[arg(long, value_name = "OFFSET")]
    from: u64,
    /// The id of the node whose blocks stay.
    #[arg(long, value_name = "NODE")]
    keep: u32,
    /// Do it. Without it nothing is changed.
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.action {
        Action::Show(show) => run_show(show),
        Action::Resolve(resolve) => run_resolve(resolve),
    }
}

/// A link whose logs differ, as its leader tells it.
struct Differing {
    origin: u64,
    shard: u64,
    leader: u64,
    peer: u64,
    /// The block from which on they differ at the latest.
    block: u64,
}

fn run_show(show: &Show) -> Result<ExitCode, Failure> {
    let mut statuses = Vec::new();
    for node in &show.node {
        let text = Client::connect(node)?.status()?;
        let status: Value = serde_json::from_str(&text)
            .map_err(|error| Failure::Failed(format!("{node}: its status is no JSON: {error}")))?;
        statuses.push(status);
    }
    let differing: Vec<Differing> = statuses.iter().flat_map(differing).collect();
    for one in &differing {
        say(format_args!(
            "log {}-{}: node {} (leader) and node {} differ at block {} or before",
            one.origin, one.shard, one.leader, one.peer, one.block
        ))?;
        for node in [one.leader, one.peer] {
            say(format_args!("  {}", side(&statuses, one, node)))?;
        }
        let address = |node: u64| {
            let at = statuses.iter().position(|status| status["node"] == node);
            at.map(|at| show.node[at].as_str())
        };
        let (Some(leader), Some(peer)) = (address(one.leader), address(one.peer)) else {
            say(format_args!(
                "  name both with --node to see from which record on"
            ))?;
            continue;
        };
        let from = first_different(one, leader, peer)?;
        say(format_args!("  they differ from offset {from} on"))?;
        say(format_args!(
            "  to keep node {}'s: stop node {}, and beside it `millrace diverge resolve --config \
             FILE --log {}-{} --from {from} --keep {}`; or the other way round, on every node \
             that holds what node {} does (if those are most of the members, see `EpochWaits` in \
             README)",
            one.leader, one.peer, one.origin, one.shard, one.leader, one.leader
        ))?;
    }
    if differing.is_empty() {
        say(format_args!(
            "no log of these nodes differs from a peer's, as far as they know: only a log's leader \
             compares, so name that one too"
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(1))
}

fn differing(status: &Value) -> Vec<Differing> {
    let links = status["links"].as_array();
    let links = links.map(Vec::as_slice).unwrap_or_default();
    let found = links.iter().filter_map(|link| {
        Some(Differing {
            block: link["diverged_at"].as_u64()?,
            origin: link["origin"].as_u64()?,
            shard: link["shard"].as_u64()?,
            peer: link["peer"].as_u64()?,
            leader: status["node"].as_u64()?,
        })
    });
    found.collect()
}

/// What one node holds of the log.
fn side(statuses: &[Value], one: &Differing, node: u64) -> String {
    let status = statuses.iter().find(|status| status["node"] == node);
    let shards = status.and_then(|status| status["shards"].as_array());
    let shard = shards.and_then(|all| {
        let this = |shard: &&Value| shard["origin"] == one.origin && shard["shard"] == one.shard;
        all.iter().find(this)
    });
    let Some(shard) = shard else {
        return format!("node {node}: not asked (--node with its address shows its side)");
    };
    format!(
        "node {node}: {} of epoch {}, blocks {} to {}, committed below {}, offsets end at {}",
        shard["role"].as_str().unwrap_or("unknown"),
        shard["epoch"],
        shard["log_start"],
        shard["log_end"],
        shard["high_watermark"],
        shard["durable_offset"],
    )
}

/// The first offset whose record the two nodes do not both hold as one and the same: up to there
/// one leader made both, so a search by halves finds it.
fn first_different(one: &Differing, leader: &str, peer: &str) -> Result<u64, Failure> {
    let (mut leader, mut peer) = (Side::open(one, leader)?, Side::open(one, peer)?);
    let (mut same, mut other) = (leader.start.max(peer.start), leader.end.min(peer.end));
    while same < other {
        let middle = same + (other - same) / 2;
        match leader.batch(middle)? {
            Some(found) if peer.batch(middle)? == Some(found) => same = middle + 1,
            _ => other = middle,
        }
    }
    Ok(same)
}

/// One node's copy of a log.
struct Side {
    reader: Reader,
    start: u64,
    end: u64,
}

impl Side {
    fn open(one: &Differing, address: &str) -> Result<Side, Failure> {
        let shard = u16::try_from(one.shard).map_err(|_| no_such(one))?;
        let origin = u32::try_from(one.origin).map_err(|_| no_such(one))?;
        let text = Client::connect(address)?.status()?;
        let status: Value = serde_json::from_str(&text).map_err(|_| no_such(one))?;
        let shards = status["shards"].as_array().cloned().unwrap_or_default();
        let this = |held: &&Value| held["origin"] == one.origin && held["shard"] == one.shard;
        let held = shards.iter().find(this).ok_or_else(|| no_such(one))?;
        let config = ReaderConfig::new(shard)
            .at_seed()
            .origin(origin)
            .level(ReadLevel::Local);
        Ok(Side {
            reader: Reader::connect([address], &config)?,
            start: held["log_start_offset"].as_u64().unwrap_or_default(),
            end: held["durable_offset"].as_u64().unwrap_or_default(),
        })
    }

    /// What tells the batch with this record from every other one.
    fn batch(&mut self, offset: u64) -> Result<Option<(Epoch, Tick, Offset)>, Failure> {
        self.reader.seek(Start::Offset(Offset(offset)));
        let batch = self.reader.next_batch()?;
        Ok(batch.map(|batch| (batch.epoch, batch.tick, batch.end())))
    }
}

fn no_such(one: &Differing) -> Failure {
    Failure::Failed(format!(
        "a node does not show log {}-{}",
        one.origin, one.shard
    ))
}

fn run_resolve(resolve: &Resolve) -> Result<ExitCode, Failure> {
    let stopped = Stopped::open(&resolve.config, resolve.log)?;
    let cluster = &stopped.config.cluster;
    let own = stopped.config.node.id;
    if !cluster.nodes.iter().any(|node| node.id.0 == resolve.keep) {
        let text = format!("--keep {}: no node of this cluster", resolve.keep);
        return Err(Failure::Input(text));
    }
    if own.0 == resolve.keep {
        let text = format!(
            "node {own}'s blocks are to stay, and this is its data directory; mend: run the \
             command beside each node whose blocks go"
        );
        return Err(Failure::Input(text));
    }
    let survey = stopped.survey()?;
    if resolve.from > survey.sound_offset.0 {
        let text = format!(
            "--from {}: this node holds the blocks {} to {} of log {}, offsets end at {}",
            resolve.from, survey.log_start, survey.sound_end, stopped.log, survey.sound_offset
        );
        return Err(Failure::Input(text));
    }
    let from = stopped.block_at(Offset(resolve.from))?;
    let gone = survey.sound_end.0 - from.0;
    let log = stopped.log;
    if !resolve.yes {
        say(format_args!(
            "node {own} would give up {gone} blocks of log {log}, from block {from} on, and be \
             brought up by the others with node {}'s; nothing was changed: pass --yes to do it",
            resolve.keep
        ))?;
        return Ok(ExitCode::from(1));
    }
    let done = stopped.give_up(from, true)?;
    say(format_args!(
        "node {own} gave up {gone} blocks of log {log}, from block {from} on; they are in {}; \
         start it, and the others bring it up",
        done.aside.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}
