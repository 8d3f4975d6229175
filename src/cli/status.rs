//! `millrace status`: one node as a table for people, or as JSON for scripts.

use super::{Failure, node_address, say};
use clap::Args;
use millrace::client::driver::blocking::Client;
use serde_json::Value;
use std::io;
use std::process::ExitCode;

/// Arguments of `status`.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The node.
    #[arg(long, value_name = "HOST:PORT", value_parser = node_address)]
    node: String,
    /// Print the JSON as the node sends it.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let json = Client::connect(&arguments.node)?.status()?;
    if arguments.json {
        say(format_args!("{json}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let status: Value = serde_json::from_str(&json)
        .map_err(|error| Failure::Failed(format!("the node's status is no JSON: {error}")))?;
    print(&status)?;
    Ok(ExitCode::SUCCESS)
}

/// Who the node is, and its version with what that can.
fn print_node(status: &Value) -> io::Result<()> {
    say(format_args!(
        "node {} of cluster {} ({}), millrace {}, up {} s",
        cell(&status["node"]),
        cell(&status["cluster"]),
        cell(&status["kind"]),
        cell(&status["version"]),
        status["uptime_s"].as_f64().unwrap_or(0.0).round()
    ))?;
    let names = |key: &str| {
        let names = status[key].as_array().into_iter().flatten();
        let names: Vec<&str> = names.filter_map(Value::as_str).collect();
        match names.is_empty() {
            true => "nothing".to_owned(),
            false => names.join(" "),
        }
    };
    say(format_args!(
        "protocol {}, knows {}, finalized with {}",
        cell(&status["protocol"]),
        names("capabilities"),
        names("finalized")
    ))
}

fn print(status: &Value) -> io::Result<()> {
    print_node(status)?;
    let shards = [
        ("origin", &["origin"][..]),
        ("shard", &["shard"]),
        ("role", &["role"]),
        ("leader", &["leader"]),
        ("epoch", &["epoch"]),
        ("start block", &["log_start"]),
        ("committed block", &["high_watermark"]),
        ("durable block", &["durable_end"]),
        ("end block", &["log_end"]),
        ("committed offset", &["committed_offset"]),
        ("from leader", &["following", "status"]),
        ("cause", &["following", "cause"]),
    ];
    say(format_args!(""))?;
    table(&shards, &status["shards"])?;
    for shard in status["shards"].as_array().into_iter().flatten() {
        if let Some(why) = shard["failed"].as_str().filter(|why| !why.is_empty()) {
            let (origin, shard) = (cell(&shard["origin"]), cell(&shard["shard"]));
            say(format_args!("log {origin}-{shard} is closed: {why}"))?;
        }
        if let Some(why) = shard["waits_for"].as_str().filter(|why| !why.is_empty()) {
            let (origin, shard) = (cell(&shard["origin"]), cell(&shard["shard"]));
            say(format_args!("log {origin}-{shard} {why}"))?;
        }
    }
    let links = [
        ("origin", &["origin"][..]),
        ("shard", &["shard"]),
        ("peer", &["peer"]),
        ("status", &["status"]),
        ("cause", &["cause"]),
        ("since", &["since_ms"]),
        ("lag records", &["lag", "records"]),
        ("lag bytes", &["lag", "bytes"]),
        ("lag s", &["lag", "seconds"]),
        ("credit records", &["credit", "records"]),
        ("credit bytes", &["credit", "bytes"]),
        ("sent", &["sent"]),
        ("matched", &["matched"]),
    ];
    if status["links"]
        .as_array()
        .is_some_and(|links| !links.is_empty())
    {
        say(format_args!(""))?;
        table(&links, &status["links"])?;
    }
    refusals(status)?;
    say(format_args!(""))?;
    if let Some(counters) = status["counters"].as_object() {
        for (name, value) in counters {
            say(format_args!(
                "{:<26}{}",
                name.replace('_', " "),
                cell(value)
            ))?;
        }
    }
    Ok(())
}

/// Causes that the tables name only, in full: what was refused, and what mends it.
fn refusals(status: &Value) -> io::Result<()> {
    let rows = |key: &str| status[key].as_array().into_iter().flatten();
    let of = |row: &Value| format!("log {}-{}", cell(&row["origin"]), cell(&row["shard"]));
    let links = rows("links").map(|link| {
        let whose = format!("{}, link to node {}", of(link), cell(&link["peer"]));
        (whose, &link["cause"])
    });
    let following = rows("shards").map(|shard| {
        let whose = format!("{}, from its leader", of(shard));
        (whose, &shard["following"]["cause"])
    });
    for (whose, cause) in following.chain(links) {
        if let Some(cause) = cause.as_str().filter(|cause| short(cause) != *cause) {
            say(format_args!("{whose}: {cause}"))?;
        }
    }
    Ok(())
}

/// A refusal by its name alone.
fn short(cause: &str) -> &str {
    let rest = cause.strip_prefix("refused: ");
    let end = rest.and_then(|rest| rest.find(": "));
    end.map_or(cause, |end| &cause[.."refused: ".len() + end])
}

pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// How long something has been so, in the two largest units.
fn age(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86400, seconds / 3600 % 24),
    }
}

pub(super) fn table(columns: &[(&str, &[&str])], rows: &Value) -> io::Result<()> {
    let mut lines = vec![
        columns
            .iter()
            .map(|(title, _)| (*title).to_owned())
            .collect::<Vec<_>>(),
    ];
    for row in rows.as_array().into_iter().flatten() {
        let found = |path: &[&str]| path.iter().fold(row, |value, key| &value[*key]).clone();
        let shown = |path: &[&str]| match path {
            ["since_ms"] => age(found(path).as_u64().unwrap_or(0)),
            [.., "cause"] => short(&cell(&found(path))).to_owned(),
            _ => cell(&found(path)),
        };
        lines.push(columns.iter().map(|(_, path)| shown(path)).collect());
    }
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].len())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for line in &lines {
        let cells = line.iter().zip(&widths);
        let text: String = cells
            .map(|(cell, width)| format!("{cell:<width$}  "))
            .collect();
        say(format_args!("{}", text.trim_end()))?;
    }
    Ok(())
}
