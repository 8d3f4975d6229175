//! Each illness has its reason, and a healthy node has none.

use super::*;
use crate::snapshot::{CoreReport, Counters, Following};
use crate::types::{BlockNo, Buckets, Epoch, LogId, NodeId, Offset, OriginId, ShardId};
use std::sync::Arc;

fn node(report: CoreReport) -> Snapshot {
    Snapshot {
        status: serde_json::Value::Null,
        shards: Vec::new(),
        cores: vec![Arc::new(report)],
    }
}

#[test]
fn a_core_is_well_as_long_as_it_reports() {
    let start = Instant::now();
    let silent = CoreReport::default();
    assert_eq!(
        reasons(&node(silent), start),
        ["core 0 has not reported yet"]
    );
    let report = CoreReport {
        at: Some(start),
        ..CoreReport::default()
    };
    let later = |ms| start + Duration::from_millis(ms);
    assert!(reasons(&node(report.clone()), later(1900)).is_empty());
    let reason = &reasons(&node(report.clone()), later(3200))[0];
    assert_eq!(reason, "core 0 has not reported for 3.2 s");
    let stopping = CoreReport {
        stopping: true,
        ..report
    };
    assert_eq!(reasons(&node(stopping), start), ["core 0 is stopping"]);
}

fn shard(role: Role) -> ShardStatus {
    ShardStatus {
        log: LogId {
            origin: OriginId(7),
            shard: ShardId(0),
        },
        role,
        leader: Some(NodeId(1)),
        epoch: Epoch(1),
        open_epoch: Some(Epoch(1)),
        log_start: BlockNo(0),
        log_start_offset: Offset(0),
        high_watermark: BlockNo(1),
        durable_end: BlockNo(1),
        log_end: BlockNo(1),
        durable_offset: Offset(1),
        committed_offset: Offset(1),
        is_full: false,
        verified_end: BlockNo(1),
        following: None,
        append_latency: Buckets::default(),
        waits_for: String::new(),
        failed: String::new(),
        damage: Default::default(),
        counters: Counters::default(),
        catch_up_bytes_per_s: 0,
        catches_up: false,
        granted: Default::default(),
        links: Vec::new(),
    }
}

fn link(peer: u32, status: LinkStatus, since_us: u64) -> LinkView {
    LinkView {
        peer: NodeId(peer),
        status,
        cause: String::new(),
        diverged_at: None,
        since_us,
        last_error: String::new(),
        lag_records: 0,
        lag_bytes: None,
        lag_us: None,
        credit_records: 0,
        credit_bytes: 0,
        account: Default::default(),
        sent: BlockNo(1),
        matched: BlockNo(1),
        lag_percentiles_us: [0; 3],
        lag_buckets: Buckets::default(),
        lag_blocks: 0,
        connections: 1,
        sent_bytes: 0,
        queued_bytes: 0,
    }
}

/// What is said of a node with this one log.
fn said(kind: &str, shard: ShardStatus) -> Vec<String> {
    let now = Instant::now();
    let mut node = node(CoreReport {
        at: Some(now),
        ..CoreReport::default()
    });
    node.status = serde_json::json!({ "kind": kind });
    node.shards.push(shard);
    reasons(&node, now)
}

#[test]
fn a_leader_needs_a_majority_after_a_while() {
    use LinkStatus::{Disconnected, Paused, Replicating, WaitingForCredit};
    let led = |links: &[(LinkStatus, u64)]| ShardStatus {
        links: links
            .iter()
            .map(|(status, us)| link(2, *status, *us))
            .collect(),
        ..shard(Role::Leader)
    };
    let ill = ["log 7-0 cannot commit: 1 of 3 nodes take blocks, it needs 2"];
    let gone = led(&[(Disconnected, GONE_US), (Paused, 2 * GONE_US)]);
    assert_eq!(said("set", gone.clone()), ill);
    assert!(said("mesh", gone).is_empty(), "there it goes on alone");
    for other in [
        (Disconnected, GONE_US - 1),
        (Replicating, 2 * GONE_US),
        (WaitingForCredit, 2 * GONE_US),
    ] {
        let links = [(Disconnected, 2 * GONE_US), other];
        assert!(said("set", led(&links)).is_empty(), "{other:?}");
    }
    assert!(said("set", led(&[])).is_empty(), "a cluster by itself");
}

#[test]
fn a_follower_needs_its_leader_and_a_log_its_space() {
    let follows = |status, silence_us| ShardStatus {
        following: Some(Following {
            status,
            cause: String::new(),
            silence_us,
        }),
        ..shard(Role::Follower)
    };
    let gone = follows(LinkStatus::Disconnected, Some(4_500_000));
    let ill = ["log 7-0 follows node 1, which has not been heard for 4 s"];
    assert_eq!(said("set", gone.clone()), ill);
    assert!(said("mesh", gone.clone()).is_empty(), "its own logs go on");
    let leaderless = ShardStatus {
        leader: None,
        ..gone
    };
    let ill = ["log 7-0 has no leader: none was heard for 4 s"];
    assert_eq!(said("set", leaderless), ill);
    let heard = follows(LinkStatus::Replicating, Some(100_000));
    assert!(said("set", heard).is_empty());
    let paused = follows(LinkStatus::Paused, Some(9_000_000));
    assert!(said("set", paused).is_empty(), "somebody ordered it");
    let full = ShardStatus {
        is_full: true,
        ..shard(Role::Leader)
    };
    assert_eq!(
        said("mesh", full),
        ["log 7-0 has no space: its disk is full"]
    );
}
