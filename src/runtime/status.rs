//! The node's status as JSON: every shard of every core, every link, the counters of the process.
//!
//! Shards of this core are asked now, those of other cores are as they last published themselves
//! (at most a tenth of a second ago). Keys are part of what scripts rely on: they are added, never
//! renamed.

use super::driver::Core;
use crate::shard::ShardStatus;
use crate::shard::status::{LinkStatus, LinkView, Role};
use crate::wire::record;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

/// The whole status.
pub(super) fn json(core: &Core) -> String {
    let node = &core.node;
    let mut statuses = core.statuses();
    for (index, published) in node.published.iter().enumerate() {
        if index != core.index {
            let published = published.lock().expect("the lock is not poisoned");
            statuses.extend(published.iter().cloned());
        }
    }
    statuses.sort_by_key(|status| status.log);
    let crc_failures: u64 = statuses
        .iter()
        .map(|status| status.counters.crc_failures)
        .sum();
    let links = statuses.iter().flat_map(|status| {
        let links = status.links.iter();
        links.map(|view| link(status, view))
    });
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let whole = json!({
        "node": node.config.node.id.0,
        "cluster": node.config.cluster.id.0,
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": core.clock.uptime().as_secs_f64(),
        "cores": node.config.cores.count,
        "core_handoffs": node.handoffs.iter().map(count).collect::<Vec<_>>(),
        "stopping": core.stopping.get(),
        "shards": statuses.iter().map(shard).collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
        "counters": {
            "records_encoded": record::records_encoded(),
            "crc_failures": crc_failures,
            "bad_frames": count(&node.counters.bad_frames),
            "unknown_frames": count(&node.counters.unknown_frames),
            "refused_peers": count(&node.counters.refused_peers),
            "connections_accepted": count(&node.counters.accepted),
            "handoffs": node.handoffs.iter().map(count).sum::<u64>(),
            "connections_open": core.connections.borrow().len(),
            "buffer_bytes": core.pool.borrow().allocated(),
            "segments_ready": node.spares.ready(),
            "segments_provided_ready": count(&node.spares.provided_ready),
            "segments_provided_cold": count(&node.spares.provided_cold),
        },
    });
    whole.to_string()
}

fn shard(status: &ShardStatus) -> Value {
    let role = match status.role {
        Role::Recovering => "recovering",
        Role::Opening => "opening",
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Failed => "failed",
    };
    json!({
        "origin": status.log.origin.0,
        "shard": status.log.shard.0,
        "role": role,
        "leader": status.leader.map(|leader| leader.0),
        "epoch": status.epoch.0,
        "log_start": status.log_start.0,
        "high_watermark": status.high_watermark.0,
        "durable_end": status.durable_end.0,
        "log_end": status.log_end.0,
        "durable_offset": status.durable_offset.0,
        "committed_offset": status.committed_offset.0,
        "failed": status.failed,
        "counters": {
            "appends": status.counters.appends,
            "blocks_sealed": status.counters.blocks_sealed,
            "blocks_admitted": status.counters.blocks_admitted,
            "crc_failures": status.counters.crc_failures,
            "blocks_cut": status.counters.blocks_cut,
            "bytes_written": status.counters.bytes_written,
        },
    })
}

fn link(status: &ShardStatus, view: &LinkView) -> Value {
    let state = match view.status {
        LinkStatus::Replicating => "replicating",
        LinkStatus::WaitingForCredit => "waiting_for_credit",
        LinkStatus::Paused => "paused",
        LinkStatus::Disconnected => "disconnected",
    };
    let [p50, p95, p99] = view.lag_percentiles_us;
    json!({
        "kind": "replica",
        "origin": status.log.origin.0,
        "shard": status.log.shard.0,
        "peer": view.peer.0,
        "status": state,
        "cause": view.cause,
        "since_ms": view.since_us / 1000,
        "lag": {
            "records": view.lag_records,
            "bytes": view.lag_bytes,
            "seconds": view.lag_us as f64 / 1e6,
        },
        "credit": { "records": view.credit_records, "bytes": view.credit_bytes },
        "sent": view.sent.0,
        "matched": view.matched.0,
        "lag_percentiles_us": { "p50": p50, "p95": p95, "p99": p99, "count": view.lag_blocks },
        "connections": view.connections,
        "sent_bytes": view.sent_bytes,
    })
}
