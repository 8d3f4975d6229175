//! Whether a node is well, and if not, why: one line for each reason.
//!
//! A node is well when every core reports and every one of its logs is open. What another node
//! lacks, and a link that waits, is not this node's illness: see the status and the metrics.

use crate::snapshot::{Role, Snapshot};
use std::time::{Duration, Instant};

/// A core reports ten times a second; after so long without it hangs.
const SILENCE: Duration = Duration::from_secs(2);

/// Every reason why the node is not well at `now`.
pub(super) fn reasons(snapshot: &Snapshot, now: Instant) -> Vec<String> {
    let mut reasons = Vec::new();
    for (core, report) in snapshot.cores.iter().enumerate() {
        match report.at.map(|at| now.saturating_duration_since(at)) {
            None => reasons.push(format!("core {core} has not reported yet")),
            Some(age) if age > SILENCE => {
                let seconds = age.as_secs_f64();
                reasons.push(format!("core {core} has not reported for {seconds:.1} s"));
            }
            Some(_) if report.stopping => reasons.push(format!("core {core} is stopping")),
            Some(_) => {}
        }
    }
    for shard in &snapshot.shards {
        let log = shard.log;
        match shard.role {
            Role::Failed => reasons.push(format!("log {log} is closed: {}", shard.failed)),
            Role::Recovering => reasons.push(format!("log {log} is recovering")),
            Role::Opening if shard.waits_for.is_empty() => {
                reasons.push(format!("log {log} has no open epoch yet"));
            }
            Role::Opening => reasons.push(format!("log {log} {}", shard.waits_for)),
            Role::Leader | Role::Follower => {}
        }
    }
    reasons
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
