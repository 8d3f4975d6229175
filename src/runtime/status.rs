//! The node's status as JSON: every shard of every core, every link, the counters of the process.
//!
//! Made of what the cores last published, at most a tenth of a second ago; the core that is asked
//! publishes itself before it answers. Keys are part of what scripts rely on: they are added, never
//! renamed.

use super::node::Node;
use crate::shard::ShardStatus;
use crate::shard::status::{Account, DamageView, LinkStatus, LinkView, Role, ScrubView};
use crate::snapshot::{CoreReport, ShardUsage, Slot, Snapshot};
use crate::types::{BlockNo, LogId};
use crate::wire::body::{CreditLimits, PROTOCOL};
use crate::wire::capability::Capabilities;
use crate::wire::record;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The node as its cores last published themselves.
pub(super) fn snapshot(node: &Node) -> Snapshot {
    let cores: Vec<_> = node.reports.iter().map(Slot::read).collect();
    let published = node.published.iter().map(Slot::read);
    let mut shards: Vec<ShardStatus> = published.flat_map(|shards| shards.to_vec()).collect();
    shards.sort_by_key(|status| status.log);
    Snapshot {
        status: json(node, &shards, &cores),
        shards,
        cores,
    }
}

fn json(node: &Node, statuses: &[ShardStatus], cores: &[Arc<CoreReport>]) -> Value {
    let config = &node.config;
    let usage = |log: LogId| cores.iter().find_map(|core| core.usage.get(&log));
    let crc_failures: u64 = statuses
        .iter()
        .map(|status| status.counters.crc_failures)
        .sum();
    let links = statuses.iter().flat_map(|status| {
        let links = status.links.iter();
        links.map(|view| link(status, view, usage(status.log)))
    });
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    json!({
        "node": node.config.node.id.0,
        "cluster": node.config.cluster.id.0,
        "kind": node.config.cluster.kind.name(),
        "version": env!("CARGO_PKG_VERSION"),
        "protocol": PROTOCOL,
        "capabilities": Capabilities::HERE.names(),
        "finalized": node.members.finalized().names(),
        "members": node.members.json(config),
        "uptime_s": node.started.elapsed().as_secs_f64(),
        "cores": node.config.cores.count,
        "core_handoffs": node.handoffs.iter().map(count).collect::<Vec<_>>(),
        "stopping": cores.iter().any(|core| core.stopping),
        "admin": config.node.admin.as_ref().map(|address| json!({
            "address": address,
            "control": config.node.admin_control,
        })),
        "shards": statuses.iter().map(|status| shard(status, usage(status.log)))
            .collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
        "counters": {
            "records_encoded": record::records_encoded(),
            "crc_failures": crc_failures,
            "bad_frames": count(&node.counters.bad_frames),
            "unknown_frames": count(&node.counters.unknown_frames),
            "refused_peers": count(&node.counters.refused_peers),
            "connections_accepted": count(&node.counters.accepted),
            "connections_refused": count(&node.counters.refused),
            "handoffs": node.handoffs.iter().map(count).sum::<u64>(),
            "connections_open": cores.iter().map(|core| core.connections_open).sum::<usize>(),
            "buffer_bytes": cores.iter().map(|core| core.buffer_bytes).sum::<usize>(),
            "segments_ready": node.spares.ready(),
            "disk_nearly_full": node.spares.short.load(Ordering::Relaxed),
            "segments_provided_ready": count(&node.spares.provided_ready),
            "segments_provided_cold": count(&node.spares.provided_cold),
        },
    })
}

fn shard(status: &ShardStatus, usage: Option<&ShardUsage>) -> Value {
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
        "open": status.open_epoch.is_some(),
        "log_start": status.log_start.0,
        "log_start_offset": status.log_start_offset.0,
        "high_watermark": status.high_watermark.0,
        "durable_end": status.durable_end.0,
        "log_end": status.log_end.0,
        "durable_offset": status.durable_offset.0,
        "committed_offset": status.committed_offset.0,
        "disk_full": status.is_full,
        "verified_end": status.verified_end.0,
        "following": status.following.as_ref().map(|link| json!({
            "leader": status.leader.map(|leader| leader.0),
            "status": word(link.status),
            "cause": link.cause,
        })),
        "leader_silence_us": status.following.as_ref().and_then(|link| link.silence_us),
        "failed": status.failed,
        "waits_for": status.waits_for,
        "catch_up": {
            "bytes_per_s": status.catch_up_bytes_per_s,
            "active": status.catches_up,
        },
        "damage": damage(&status.damage),
        "granted": granted(&status.granted),
        "cpu_s": usage.map_or(0, |usage| usage.cpu_ns) as f64 / 1e9,
        "counters": {
            "appends": status.counters.appends,
            "retries": status.counters.retries,
            "blocks_sealed": status.counters.blocks_sealed,
            "blocks_admitted": status.counters.blocks_admitted,
            "crc_failures": status.counters.crc_failures,
            "blocks_cut": status.counters.blocks_cut,
            "resets": status.counters.resets,
            "bytes_written": status.counters.bytes_written,
            "damage_found": status.counters.damage_found,
            "blocks_repaired": status.counters.blocks_repaired,
            "rewritten": status.counters.rewritten,
            "scrubs": status.counters.scrubs,
            "scrub_bytes": status.counters.scrub_bytes,
        },
    })
}

/// What is damaged, and what the scrub does.
fn damage(view: &DamageView) -> Value {
    let range = |(from, end, since_us): &(BlockNo, BlockNo, u64)| {
        let (from, end) = (from.0, end.0);
        json!({ "from": from, "end": end, "since_us": since_us })
    };
    let pass = |view: Option<ScrubView>| {
        view.map(|view| {
            json!({
                "since_us": view.since_us,
                "lasted_us": view.lasted_us,
                "bytes": view.bytes,
                "found": view.found,
            })
        })
    };
    json!({
        "faulty": view.ranges.iter().map(range).collect::<Vec<_>>(),
        "waits_for": view.waits_for,
        "scrubbed": view.is_scrubbed,
        "running": pass(view.running),
        "last": pass(view.last),
        "bytes": view.bytes,
    })
}

/// A status as operators know it (S-34, S-35).
fn word(status: LinkStatus) -> &'static str {
    match status {
        LinkStatus::Replicating => "replicating",
        LinkStatus::WaitingForCredit => "waiting_for_credit",
        LinkStatus::Paused => "paused",
        LinkStatus::Disconnected => "disconnected",
    }
}

fn link(status: &ShardStatus, view: &LinkView, usage: Option<&ShardUsage>) -> Value {
    let usage = usage.and_then(|usage| usage.links.get(&view.peer));
    let usage = usage.copied().unwrap_or_default();
    let [p50, p95, p99] = view.lag_percentiles_us;
    json!({
        "kind": "replica",
        "origin": status.log.origin.0,
        "shard": status.log.shard.0,
        "peer": view.peer.0,
        "status": word(view.status),
        "cause": view.cause,
        "diverged_at": view.diverged_at.map(|block| block.0),
        "since_ms": view.since_us / 1000,
        "last_error": view.last_error,
        "lag": {
            "records": view.lag_records,
            "bytes": view.lag_bytes,
            "seconds": view.lag_us.map(|us| us as f64 / 1e6),
        },
        "credit": {
            "records": view.credit_records,
            "bytes": view.credit_bytes,
            "used": units(view.account.used),
            "limit": units(view.account.limit),
        },
        "sent": view.sent.0,
        "matched": view.matched.0,
        "cpu_s": usage.cpu_ns as f64 / 1e9,
        "network": { "sent_bytes": usage.sent_bytes, "received_bytes": usage.received_bytes },
        "lag_percentiles_us": { "p50": p50, "p95": p95, "p99": p99, "count": view.lag_blocks },
        "connections": view.connections,
        "sent_bytes": view.sent_bytes,
        "queued_bytes": view.queued_bytes,
    })
}

fn granted(account: &Account) -> Value {
    json!({
        "used": units(account.used),
        "limit": units(account.limit),
        "held": units(account.held),
    })
}

fn units(credit: CreditLimits) -> Value {
    json!({ "records": credit.records, "bytes": credit.bytes })
}
