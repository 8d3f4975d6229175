//! Whether a node is well, and if not, why: one line for each reason.
//!
//! A node is well when every core reports, every one of its logs is open and has space, and, in a
//! set, what it leads can be committed and what it follows is heard of. The nodes of a mesh take
//! appends without each other: there the links are nobody's illness. What another node lacks, and a
//! link that waits, is not this node's illness either: see the status and the metrics.

use crate::snapshot::{LinkStatus, LinkView, Role, ShardStatus, Snapshot};
use std::time::{Duration, Instant};

/// A core reports ten times a second; after so long without it hangs.
const SILENCE: Duration = Duration::from_secs(2);

/// How long a link or a leader may be gone before it is an illness: restarts are shorter.
const GONE_US: u64 = 3_000_000;

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
    let in_set = snapshot.status["kind"] == "set";
    for shard in &snapshot.shards {
        let log = shard.log;
        match shard.role {
            Role::Failed => reasons.push(format!("log {log} is closed: {}", shard.failed)),
            Role::Recovering => reasons.push(format!("log {log} is recovering")),
            Role::Opening if shard.waits_for.is_empty() => {
                reasons.push(format!("log {log} has no open epoch yet"));
            }
            Role::Opening => {
                reasons.push(format!("log {log} has no open epoch: {}", shard.waits_for));
            }
            Role::Leader if in_set => reasons.extend(cannot_commit(shard)),
            Role::Follower if in_set => reasons.extend(leader_is_gone(shard)),
            Role::Leader | Role::Follower => {}
        }
        if !shard.damage.ranges.is_empty() {
            let (ranges, waits_for) = (&shard.damage.ranges, &shard.damage.waits_for);
            let blocks: u64 = ranges.iter().map(|(from, end, _)| end.0 - from.0).sum();
            let since_us = ranges.iter().map(|(.., since_us)| *since_us).max();
            let seconds = since_us.unwrap_or_default() / 1_000_000;
            let why = match waits_for.is_empty() {
                true => String::new(),
                false => format!(": {waits_for}"),
            };
            reasons.push(format!(
                "log {log} has {blocks} damaged blocks, first block {}, for {seconds} s{why}",
                ranges[0].0
            ));
        }
        for (link, block) in shard.links.iter().filter_map(|l| Some((l, l.diverged_at?))) {
            reasons.push(format!(
                "log {log}: node {} holds other blocks at {block} or before; see millrace diverge",
                link.peer
            ));
        }
        if shard.is_full {
            reasons.push(format!("log {log} has no space: its disk is full"));
        }
    }
    reasons
}

/// Too few followers take what this node appends.
fn cannot_commit(shard: &ShardStatus) -> Option<String> {
    let gone = |link: &&LinkView| {
        let takes_nothing = matches!(link.status, LinkStatus::Disconnected | LinkStatus::Paused);
        takes_nothing && link.since_us >= GONE_US
    };
    let (log, nodes) = (shard.log, shard.links.len() + 1);
    let there = nodes - shard.links.iter().filter(gone).count();
    let needed = nodes / 2 + 1;
    (there < needed).then(|| {
        format!("log {log} cannot commit: {there} of {nodes} nodes take blocks, it needs {needed}")
    })
}

/// The leader was not heard for a while.
fn leader_is_gone(shard: &ShardStatus) -> Option<String> {
    let following = shard.following.as_ref()?;
    let silence_us = following.silence_us?;
    let paused = following.status == LinkStatus::Paused;
    (silence_us >= GONE_US && !paused).then(|| {
        let (log, seconds) = (shard.log, silence_us / 1_000_000);
        match shard.leader {
            Some(leader) => {
                format!("log {log} follows node {leader}, which has not been heard for {seconds} s")
            }
            None => format!("log {log} has no leader: none was heard for {seconds} s"),
        }
    })
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
