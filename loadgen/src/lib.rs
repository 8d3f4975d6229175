//! Load generator and verifier for millrace.
//!
//! `run` writes to a cluster and keeps a ledger of what became of every batch; `verify` holds that
//! ledger against the segment files of the stopped nodes; `tamper` damages a copy of them, to see
//! the verifier notice; `summary` judges. `bench`, `sweep`, `stall` and `reconnect` do all of it on
//! clusters that they start themselves; `proxy` stands between nodes; `cut` makes the disk that a
//! loss of power leaves. Of the engine it knows the
//! formats and nothing else, so that what it proves does not rest on the code that it tests. Read
//! `cli.rs` next.

pub mod cli;
pub mod driver;
pub mod exchange;
pub mod keys;
pub mod lab;
pub mod ledger;
pub mod nodes;
pub mod payload;
pub mod proxy;
pub mod random;
pub mod report;
pub mod run;
pub mod schedule;
pub mod stats;
pub mod summary;
pub mod tamper;
pub mod verify;
pub mod writelog;

/// Why a command ends without a verdict.
#[derive(Debug)]
pub enum Failure {
    /// The input is wrong: exit code 2.
    BadInput(String),
    /// It went wrong: exit code 1.
    Failed(String),
}

impl Failure {
    fn failed(error: impl std::fmt::Display) -> Failure {
        Failure::Failed(error.to_string())
    }
}
