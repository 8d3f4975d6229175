//! Proves from the files of stopped nodes that a run's acknowledged records are what they should
//! be.
//!
//! Two passes: each node's logs against the ledger (`walk.rs`, `content.rs`), then all nodes
//! against each other (`compare.rs`). It opens files for reading only, holds one byte of memory
//! for each batch of the ledger, and says a record is proven only when it has seen it: there once,
//! whole, in order, at the offset of its ack. What is not there counts as trimmed only below the
//! log start that the log's checkpoint names. Read `walk.rs` next.

mod compare;
mod content;
pub mod finding;
pub mod reader;
mod records;
pub mod walk;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use millrace::types::LogId;
use serde::{Deserialize, Serialize};

use crate::ledger::{Ledger, State};
use crate::report::grouped;
use compare::{Compared, Walked};
use content::Content;
use finding::{Finding, Findings, Kind};
use reader::Progress;
use walk::Shape;

/// Counts of records, of one node or of all (`checked` of all: the least of any node; the others:
/// sums).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Acked records proven: there once, whole, in order, at their offset.
    pub checked: u64,
    /// Acked records that are nowhere.
    pub missing: u64,
    /// Records that are there more than once.
    pub duplicated: u64,
    /// Records out of their producer's order.
    pub reordered: u64,
    /// Records that are there at another offset than acknowledged.
    pub displaced: u64,
    /// Records that were refused or never sent.
    pub unexpected: u64,
    /// Acked records in damaged bytes.
    pub unreadable: u64,
    /// Acked records that retention has removed.
    pub trimmed: u64,
    /// Places with bytes that do not fit a CRC, a chain or a format.
    pub corrupt: u64,
    /// Bytes held against the other nodes' files.
    pub compared_bytes: u64,
}

/// What was found of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeVerdict {
    /// Its data directory.
    pub data: String,
    /// Its counts.
    #[serde(flatten)]
    pub totals: Totals,
    /// Whether its files equal those of the other nodes.
    pub identical: bool,
    /// Logs walked.
    pub logs: u64,
    /// Blocks walked.
    pub blocks: u64,
    /// Batches with records.
    pub batches: u64,
    /// Records of all producers.
    pub records: u64,
    /// Records of other runs.
    pub foreign: u64,
    /// Records of unknown batches that are there.
    pub unknown_present: u64,
    /// Bytes of segment files up to the end of their last blocks.
    pub log_bytes: u64,
}

/// What was found in all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Acked records of the ledger.
    pub acked: u64,
    /// Counts of all nodes together.
    #[serde(flatten)]
    pub totals: Totals,
    /// Whether all nodes hold the same bytes; true of a single node.
    pub replicas_identical: bool,
    /// Node by node, in the order given.
    pub nodes: Vec<NodeVerdict>,
    /// The first findings of each kind and node.
    pub findings: Vec<Finding>,
    /// Findings that are only counted.
    pub unlisted: u64,
}

impl Verdict {
    /// Whether nothing is wrong and every acked record was proven on every node.
    pub fn holds(&self) -> bool {
        self.findings.is_empty()
            && self.replicas_identical
            && self.totals.unreadable == 0
            && self.totals.checked + self.totals.trimmed == self.acked
    }

    /// The findings and the verdict for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for finding in &self.findings {
            out.push_str(&format!("{finding}\n"));
        }
        if self.unlisted > 0 {
            out.push_str(&format!("and {} findings more\n", grouped(self.unlisted)));
        }
        for node in &self.nodes {
            out.push_str(&format!(
                "{}: {} acked records checked, {} blocks in {} logs, {} bytes compared, {}\n",
                node.data,
                grouped(node.totals.checked),
                grouped(node.blocks),
                node.logs,
                grouped(node.totals.compared_bytes),
                if node.identical {
                    "identical"
                } else {
                    "DIFFERS"
                },
            ));
        }
        let totals = &self.totals;
        let trimmed = match totals.trimmed {
            0 => String::new(),
            count => format!("trimmed by retention {}  ", grouped(count)),
        };
        out.push_str(&format!(
            "verdict     {}: acked {}  checked {}  {trimmed}missing {}  duplicated {}  \
             reordered {}  corrupt {}  replicas {}\n",
            if self.holds() {
                "holds"
            } else {
                "DOES NOT HOLD"
            },
            grouped(self.acked),
            grouped(totals.checked),
            totals.missing,
            totals.duplicated,
            totals.reordered,
            totals.corrupt,
            if self.replicas_identical {
                "identical"
            } else {
                "DIFFER"
            },
        ));
        out
    }
}

/// Verifies the data directories of the nodes that took part in the ledger's run.
pub fn verify(ledger: &Ledger, data: &[PathBuf], progress: &Progress) -> io::Result<Verdict> {
    let mut verdict = Verdict {
        acked: ledger.records(|state| matches!(state, State::Acked(_))),
        ..Verdict::default()
    };
    let mut shapes = Vec::new();
    let mut findings = Vec::new();
    progress.begin("walked");
    for walked in walk_all(ledger, data, progress) {
        let (node, shape, found) = walked?;
        verdict.nodes.push(node);
        shapes.push(shape);
        findings.push(found);
    }
    progress.begin("compared");
    let walked: Vec<Walked<'_>> = data
        .iter()
        .zip(&shapes)
        .map(|(data, shapes)| Walked { data, shapes })
        .collect();
    let compared = compare::compare(&walked, progress)?;
    for ((node, found), compared) in verdict.nodes.iter_mut().zip(findings).zip(compared) {
        verdict.unlisted += found.unlisted() + compared.findings.unlisted();
        enter(node, &found, &compared);
        verdict.findings.extend(found.list);
        verdict.findings.extend(compared.findings.list);
    }
    verdict.replicas_identical = verdict.nodes.iter().all(|node| node.identical);
    verdict.totals = sum(&verdict.nodes);
    Ok(verdict)
}

type Shapes = BTreeMap<LogId, Shape>;
type OneNode = (NodeVerdict, Shapes, Findings);

/// Walks every node in a thread of its own: it is the disk that takes the time.
fn walk_all<'a>(
    ledger: &'a Ledger,
    data: &'a [PathBuf],
    progress: &'a Progress,
) -> Vec<io::Result<OneNode>> {
    thread::scope(|scope| {
        let walk = |data: &'a PathBuf| scope.spawn(move || one_node(ledger, data, progress));
        let threads: Vec<_> = data.iter().map(walk).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, io::Result<OneNode>>| {
            thread.join().expect("a panic ends the process")
        };
        threads.into_iter().map(join).collect()
    })
}

fn one_node(ledger: &Ledger, data: &Path, progress: &Progress) -> io::Result<OneNode> {
    let mut content = Content::new(ledger);
    let mut shapes = Shapes::new();
    let logs = walk::logs(data)?;
    for (log, folder) in &logs {
        content.begin(*log);
        let shape = walk::walk(folder, *log, progress, &mut content)?;
        shapes.insert(*log, shape);
    }
    content.finish(data, &shapes);
    let segments = shapes.values().flat_map(|shape| &shape.segments);
    let node = NodeVerdict {
        data: data.display().to_string(),
        totals: Totals {
            checked: content.checked,
            unreadable: content.unreadable,
            trimmed: content.trimmed,
            ..Totals::default()
        },
        identical: true,
        logs: logs.len() as u64,
        blocks: shapes.values().map(|shape| shape.blocks).sum(),
        batches: content.batches,
        records: content.records,
        foreign: content.foreign,
        unknown_present: content.unknown_present,
        log_bytes: segments.map(|segment| segment.end_position).sum(),
    };
    Ok((node, shapes, content.findings))
}

fn enter(node: &mut NodeVerdict, found: &Findings, compared: &Compared) {
    node.totals = Totals {
        missing: found.count(Kind::Missing),
        duplicated: found.count(Kind::Duplicated),
        reordered: found.count(Kind::Reordered),
        displaced: found.count(Kind::Displaced),
        unexpected: found.count(Kind::Unexpected),
        corrupt: found.count(Kind::Corrupt),
        compared_bytes: compared.bytes,
        ..node.totals
    };
    node.identical = compared.findings.is_empty();
}

fn sum(nodes: &[NodeVerdict]) -> Totals {
    let of = |field: fn(&Totals) -> u64| nodes.iter().map(move |node| field(&node.totals));
    Totals {
        checked: of(|totals| totals.checked).min().unwrap_or(0),
        missing: of(|totals| totals.missing).sum(),
        duplicated: of(|totals| totals.duplicated).sum(),
        reordered: of(|totals| totals.reordered).sum(),
        displaced: of(|totals| totals.displaced).sum(),
        unexpected: of(|totals| totals.unexpected).sum(),
        unreadable: of(|totals| totals.unreadable).sum(),
        trimmed: of(|totals| totals.trimmed).max().unwrap_or(0),
        corrupt: of(|totals| totals.corrupt).sum(),
        compared_bytes: of(|totals| totals.compared_bytes).sum(),
    }
}
