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
            {"origin": 7, "shard": 1, "role": "follower", "counters": {"crc_failures": 3}},
        ],
        "links": [
            {"shard": 0, "peer": 1, "lag": {"records": 4},
              "lag_percentiles_us": {"p50": 1, "p95": 2, "p99": 3}},
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
    assert_eq!(status.lags_us(), [[1, 2, 3], [4, 5, 6]]);
}
