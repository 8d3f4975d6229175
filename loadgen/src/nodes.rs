//! What the nodes say of themselves, and what the kernel says of their processes.
//!
//! Status comes as JSON over the client's protocol and is read by key: what is absent counts as 0,
//! so that a node of another version can still be loaded. Processes are read from `/proc` and only
//! where a pid was given. Nothing here changes a node. Read `report.rs` next.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use crate::exchange;
use crate::report::{Lag, LinkReport};

/// Time between two looks while waiting.
const LOOK: Duration = Duration::from_millis(100);

/// A process as `/proc` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// CPU time used so far, user and system, seconds.
    pub cpu_s: f64,
    /// Bytes handed to the block devices so far.
    pub write_bytes: u64,
    /// Resident memory now, bytes.
    pub rss: u64,
    /// Largest resident memory so far, bytes.
    pub rss_max: u64,
}

impl Process {
    /// Reads the process; an error names the file.
    pub fn read(pid: u32) -> io::Result<Process> {
        let file = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            fs::read_to_string(&path).map_err(|error| io::Error::other(format!("{path}: {error}")))
        };
        let (stat, io, status) = (file("stat")?, file("io")?, file("status")?);
        // SAFETY: sysconf reads a constant of the system.
        let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1);
        Ok(Process {
            cpu_s: cpu_ticks(&stat) as f64 / ticks_per_s as f64,
            write_bytes: number_after(&io, "write_bytes:"),
            rss: number_after(&status, "VmRSS:") * 1024,
            rss_max: number_after(&status, "VmHWM:") * 1024,
        })
    }
}

/// User and system time in a `stat` line. The command's name may hold blanks and brackets, so the
/// fields are counted from the last bracket on.
fn cpu_ticks(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_whitespace().skip(11);
    let mut ticks = || fields.next().and_then(|field| field.parse::<u64>().ok());
    ticks().unwrap_or(0) + ticks().unwrap_or(0)
}

fn number_after(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// One side's account of a link's credit on its present connection: records, then bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Books {
    /// Sent, or arrived.
    pub used: [u64; 2],
    /// Granted so far.
    pub limit: [u64; 2],
}

/// One node's status.
#[derive(Clone, Debug)]
pub struct NodeStatus(Value);

impl NodeStatus {
    /// Asks the node at this address.
    pub fn ask(address: &str) -> io::Result<NodeStatus> {
        exchange::status(address).map(NodeStatus)
    }

    /// The node's id.
    pub fn node(&self) -> u64 {
        self.0["node"].as_u64().unwrap_or(0)
    }

    /// Origin and shard of the logs that this node leads with an open epoch.
    pub fn leads(&self) -> Vec<(u64, u64)> {
        let shards = self.0["shards"].as_array().into_iter().flatten();
        let led = shards.filter(|shard| {
            let role = shard["role"].as_str().unwrap_or("");
            role.eq_ignore_ascii_case("leader")
        });
        let log = |shard: &Value| Some((shard["origin"].as_u64()?, shard["shard"].as_u64()?));
        led.filter_map(log).collect()
    }

    /// Bytes of blocks that came on the connections of its leaders, of all logs.
    pub fn granted_used_bytes(&self) -> u64 {
        let shards = self.0["shards"].as_array().into_iter().flatten();
        let used = shards.filter_map(|shard| shard["granted"]["used"]["bytes"].as_u64());
        used.sum()
    }

    /// One of the process's own counters.
    pub fn counter(&self, key: &str) -> u64 {
        self.0["counters"][key].as_u64().unwrap_or(0)
    }

    /// Replication lag of each link that this node leads, since its process started.
    pub fn lags(&self) -> Vec<Lag> {
        let lag = |link: &Value| {
            let of = |key| link["lag_percentiles_us"][key].as_u64().unwrap_or(0);
            let [p50, p95, p99, blocks] = ["p50", "p95", "p99", "count"].map(of);
            Lag {
                p50,
                p95,
                p99,
                blocks,
            }
        };
        self.raw_links().map(lag).collect()
    }

    /// Each link that this node leads.
    pub fn links(&self) -> Vec<LinkReport> {
        let report = |link: &Value| {
            let number = |value: &Value| value.as_u64().unwrap_or(0);
            LinkReport {
                shard: number(&link["shard"]),
                peer: number(&link["peer"]),
                status: link["status"].as_str().unwrap_or("").to_owned(),
                sent_bytes: number(&link["sent_bytes"]),
                connections: number(&link["connections"]),
                credit_records: number(&link["credit"]["records"]),
                credit_bytes: number(&link["credit"]["bytes"]),
                lag_records: number(&link["lag"]["records"]),
            }
        };
        self.raw_links().map(report).collect()
    }

    /// The sender's account of a link that this node leads; none if the node shows none.
    pub fn sender(&self, shard: u64, peer: u64) -> Option<Books> {
        let same = |link: &&Value| link["shard"] == shard && link["peer"] == peer;
        books(&self.raw_links().find(same)?["credit"])
    }

    /// The receiver's account of the link that brings this node a shard, and what it holds of it.
    pub fn receiver(&self, shard: u64) -> Option<(Books, [u64; 2])> {
        let shards = self.0["shards"].as_array()?;
        let granted = &shards.iter().find(|other| other["shard"] == shard)?["granted"];
        Some((books(granted)?, units(&granted["held"])?))
    }

    /// Records that this node's followers lack, over all links.
    pub fn records_behind(&self) -> u64 {
        let behind = |link: &Value| link["lag"]["records"].as_u64().unwrap_or(0);
        self.raw_links().map(behind).sum()
    }

    fn raw_links(&self) -> impl Iterator<Item = &Value> {
        self.0["links"].as_array().into_iter().flatten()
    }
}

fn books(account: &Value) -> Option<Books> {
    Some(Books {
        used: units(&account["used"])?,
        limit: units(&account["limit"])?,
    })
}

fn units(credit: &Value) -> Option<[u64; 2]> {
    Some([credit["records"].as_u64()?, credit["bytes"].as_u64()?])
}

/// Waits until every follower holds what its leader holds; says whether that came within `limit`.
pub fn wait_until_equal(nodes: &[String], limit: Duration) -> bool {
    let behind = || -> io::Result<u64> {
        let statuses = nodes.iter().map(|address| NodeStatus::ask(address));
        statuses
            .map(|status| status.map(|status| status.records_behind()))
            .sum()
    };
    wait(limit, || matches!(behind(), Ok(0)))
}

/// Waits until every log has a leader with an open epoch; says what is missing if it has not.
pub fn wait_until_led(nodes: &[String], limit: Duration) -> Result<(), String> {
    let mut missing = String::new();
    let led = wait(limit, || match unled(nodes) {
        Ok(shards) if shards.is_empty() => true,
        Ok(shards) => {
            missing = format!("logs without a leader (origin, shard): {shards:?}");
            false
        }
        Err(error) => {
            missing = error.to_string();
            false
        }
    });
    if led { Ok(()) } else { Err(missing) }
}

fn unled(nodes: &[String]) -> io::Result<Vec<(u64, u64)>> {
    let metadata = exchange::any_metadata(nodes)?;
    let origins = metadata.origins.iter().map(|origin| u64::from(origin.0));
    let shards = metadata.leaders.len() as u64;
    let logs = origins.flat_map(|origin| (0..shards).map(move |shard| (origin, shard)));
    let mut led = Vec::new();
    for address in nodes {
        let status = NodeStatus::ask(address);
        let status = status.map_err(|error| io::Error::other(format!("{address}: {error}")))?;
        led.extend(status.leads());
    }
    Ok(logs.filter(|log| !led.contains(log)).collect())
}

fn wait(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if holds() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
