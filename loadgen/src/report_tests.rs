//! Tests of the report: the keys that scripts rest on, the rates, the table.

use millrace::types::Offset;

use super::*;
use crate::ledger::State;

fn report() -> Report {
    let mut stats = Stats::new(1_000_000_000, 1);
    stats.sent(1_000, 0);
    stats.ended(State::Acked(Offset(0)), 0, 1_000, 0, 500_000_000);
    stats.sent(5_000, 1_000_000_000);
    stats.ended(
        State::Acked(Offset(1_000)),
        0,
        4_000,
        1_000_000_000,
        3_000_000_000,
    );
    stats.ended(State::Unknown(0), 0, 1_000, 1_000_000_000, 3_000_000_000);
    let mut report = Report {
        record_bytes: 100,
        nodes: vec![NodeReport::default()],
        ..Report::default()
    };
    report.count(&stats, &[LogId::default()]);
    report
}

#[test]
fn the_json_has_the_keys_that_scripts_rest_on() {
    let json = serde_json::to_value(report()).expect("JSON");
    let has = |value: &serde_json::Value, keys: &str| {
        for key in keys.split(' ') {
            assert!(value.get(key).is_some(), "no key {key} in {value}");
        }
    };
    has(
        &json,
        "records_per_s mb_per_s appended acked failed unknown seconds record_bytes batch_records \
         level rate latency_us lag_us nodes",
    );
    has(&json["latency_us"], "p50 p90 p99 p999 p9999 max");
    has(&json["lag_us"], "p50 p95 p99");
    let keys = "id cpu_s write_bytes rss_max records_encoded crc_failures";
    has(&json["nodes"][0], keys);
}

#[test]
fn rates_are_of_the_measured_time_and_counts_of_the_whole_run() {
    let report = report();
    assert_eq!(report.seconds, 2.0);
    assert_eq!(report.records_per_s, Some(2_000.0));
    assert_eq!(report.mb_per_s, Some(0.2));
    assert_eq!(
        (report.appended, report.acked, report.unknown),
        (6_000, 5_000, 1_000)
    );
    assert_eq!(report.measured.acked, 4_000);
}

/// A report of a load that was to measure 20 s after a second of warm-up.
fn ended_after(load_s: u64, acks_s: &[u64]) -> Report {
    let mut stats = Stats::new(1_000_000_000, 1);
    for ack_s in acks_s {
        let at = ack_s * 1_000_000_000;
        stats.sent(10, at);
        stats.ended(State::Acked(Offset(0)), 0, 10, at, at);
    }
    stats.close(load_s * 1_000_000_000, 30_000_000_000);
    let mut report = Report {
        warmup_s: 1.0,
        asked_s: 20.0,
        nodes: vec![NodeReport::default()],
        ..Report::default()
    };
    report.count(&stats, &[LogId::default()]);
    report
}

#[test]
fn what_was_not_measured_is_said_to_be_so() {
    for (load_s, acks_s, words) in [
        (
            0,
            &[0][..],
            "before the end of the warm-up of 1 s, so there is no rate",
        ),
        (
            2,
            &[0],
            "1.00 s after the warm-up, with acks over 0.00 s, so there is no rate",
        ),
        (
            21,
            &[0, 1],
            "in time, with acks over 0.00 s of 20 s to measure, so there is no rate",
        ),
    ] {
        let report = ended_after(load_s, acks_s);
        let table = report.table();
        assert!(table.contains(words), "{table}");
        assert!(!table.contains("throughput"), "{table}");
        assert!(!table.contains("latency  "), "{table}");
        assert!(table.contains("lag         not measured"), "{table}");
        assert!(
            table.contains("CPU, disk and memory not measured"),
            "{table}"
        );
        let json = serde_json::to_value(&report).expect("JSON");
        for key in ["records_per_s", "mb_per_s", "latency_us"] {
            assert!(json[key].is_null(), "{json}");
        }
        for key in ["cpu_s", "write_bytes", "rss_max"] {
            assert!(json["nodes"][0][key].is_null(), "{json}");
        }
        let read: Report = serde_json::from_value(json).expect("a report");
        assert_eq!(read, report);
    }
}

#[test]
fn a_load_that_ends_early_gives_the_rate_of_what_it_measured() {
    let table = ended_after(4, &[0, 1, 3]).table();
    assert!(
        table.contains("early, after 3.0 of 20 s to measure"),
        "{table}"
    );
    assert!(table.contains("throughput  10 records/s"), "{table}");
    let table = ended_after(21, &[1, 21]).table();
    assert!(!table.contains("ended   "), "{table}");
}

#[test]
fn the_table_names_the_numbers() {
    let table = report().table();
    assert!(table.contains("2,000 records/s  0.20 MB/s"), "{table}");
    assert!(table.contains("appended 6,000  acked 5,000"), "{table}");
    assert!(table.contains("p99.99"), "{table}");
}

#[test]
fn numbers_are_grouped_by_threes() {
    for (number, text) in [
        (0, "0"),
        (999, "999"),
        (1_000, "1,000"),
        (12_345_678, "12,345,678"),
    ] {
        assert_eq!(grouped(number), text);
    }
}
