//! Tests of what is read from `/proc` and from a status.

use serde_json::json;

use super::*;

#[test]
fn cpu_time_is_read_past_any_name() {
    let stat = "71 (a ) b) S 1 71 71 0 -1 4194560 100 0 0 0 250 50 7 7 20 0 4 0 100 0 0";
    assert_eq!(cpu_ticks(stat), 300);
}

#[test]
fn this_process_can_be_read() {
    let process = Process::read(std::process::id()).expect("read");
    assert!(process.rss_max > 100_000, "{process:?}");
    let error = Process::read(u32::MAX).expect_err("no such process");
    assert!(error.to_string().contains("/proc/4294967295/"), "{error}");
}

#[test]
fn a_status_is_read_by_key() {
    let status = NodeStatus(json!({
        "node": 2,
        "counters": {"crc_failures": 5},
        "shards": [
            {"origin": 7, "shard": 0, "role": "leader", "counters": {"crc_failures": 2}},
            {"origin": 7, "shard": 1, "role": "follower", "counters": {"crc_failures": 3},
              "granted": {"used": {"records": 1, "bytes": 2}, "limit": {"records": 3, "bytes": 4},
                "held": {"records": 5, "bytes": 6}}},
        ],
        "links": [
            {"shard": 0, "peer": 1, "lag": {"records": 4}, "status": "replicating",
              "sent_bytes": 77, "connections": 2,
                "credit": {"records": 8, "bytes": 9, "used": {"records": 2, "bytes": 3},
                "limit": {"records": 10, "bytes": 12}},
              "lag_percentiles_us": {"p50": 1, "p95": 2, "p99": 3, "count": 12}},
            {"shard": 0, "peer": 3, "lag": {"records": 5},
              "lag_percentiles_us": {"p50": 4, "p95": 5, "p99": 6}},
        ],
    }));
    assert_eq!(status.node(), 2);
    assert_eq!(status.leads(), [(7, 0)]);
    assert_eq!(
        (status.counter("crc_failures"), status.counter("absent")),
        (5, 0)
    );
    assert_eq!(status.records_behind(), 9);
    let lag = |p50, p95, p99, blocks| Lag {
        p50,
        p95,
        p99,
        blocks,
    };
    assert_eq!(status.lags(), [lag(1, 2, 3, 12), lag(4, 5, 6, 0)]);
    let links = status.links();
    let expected = LinkReport {
        shard: 0,
        peer: 1,
        status: "replicating".to_owned(),
        sent_bytes: 77,
        connections: 2,
        credit_records: 8,
        credit_bytes: 9,
        lag_records: 4,
    };
    assert_eq!(links[0], expected);
    assert_eq!((links[1].peer, links[1].sent_bytes), (3, 0));
    let books = |used, limit| Books { used, limit };
    assert_eq!(status.sender(0, 1), Some(books([2, 3], [10, 12])));
    assert_eq!(status.sender(0, 3), None);
    assert_eq!(status.receiver(1), Some((books([1, 2], [3, 4]), [5, 6])));
    assert_eq!(status.receiver(0), None);
}
