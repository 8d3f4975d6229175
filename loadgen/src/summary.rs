//! Brings a run and its verification together: one JSON, one summary, one judgement.
//!
//! `scripts/demo` ends with it. It holds only if everything does: every acknowledged record proven
//! on every node, or trimmed by the log's retention; something acknowledged on every shard,
//! something compared on every node. It reads two JSON files and measures nothing itself. Read
//! `report.rs` for the keys.

use std::fs;
use std::io;
use std::path::Path;

use crate::report::{Report, grouped};
use crate::verify::Verdict;

/// Reads a verdict's JSON.
pub fn read_verdict(path: &Path) -> io::Result<Verdict> {
    serde_json::from_slice(&fs::read(path)?).map_err(io::Error::other)
}

/// Writes a verdict's JSON.
pub fn write_verdict(path: &Path, verdict: &Verdict) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(verdict).map_err(io::Error::other)?;
    text.push('\n');
    fs::write(path, text)
}

/// What does not hold, in sentences; empty if everything does.
pub fn failures(report: &Report, verdict: &Verdict) -> Vec<String> {
    let mut failures = Vec::new();
    if !verdict.holds() {
        failures.push(format!("{} findings, see above", verdict.findings.len()));
    }
    if report.acked == 0 {
        failures.push("nothing was acknowledged".to_owned());
    }
    // What retention took away was proven to be below the log's start.
    let (checked, trimmed) = (verdict.totals.checked, verdict.totals.trimmed);
    if checked + trimmed != report.acked || verdict.acked != report.acked {
        failures.push(format!(
            "{} records were acknowledged, {} stand in the ledger, {checked} were proven and \
             {trimmed} trimmed",
            report.acked, verdict.acked
        ));
    }
    for shard in report.shards.iter().filter(|shard| shard.acked == 0) {
        failures.push(format!(
            "nothing was acknowledged on shard {} of origin {}",
            shard.shard, shard.origin
        ));
    }
    if verdict.nodes.len() > 1 {
        for node in verdict
            .nodes
            .iter()
            .filter(|node| node.totals.compared_bytes == 0)
        {
            failures.push(format!("{}: nothing was compared", node.data));
        }
    }
    failures
}

/// The summary for people.
pub fn text(report: &Report, verdict: &Verdict) -> String {
    let mut out = report.table();
    for node in &verdict.nodes {
        out.push_str(&format!(
            "disk        {}: {} bytes of log, {:.2} x the acked values\n",
            node.data,
            grouped(node.log_bytes),
            node.log_bytes as f64 / (report.acked * report.record_bytes).max(1) as f64
        ));
    }
    out.push_str(&verdict.text());
    let failures = failures(report, verdict);
    for failure in &failures {
        out.push_str(&format!("FAILED      {failure}\n"));
    }
    if failures.is_empty() {
        out.push_str("ok          every acknowledged record is there once and in order\n");
    }
    out
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
