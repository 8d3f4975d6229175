//! The load is tested against a made-up node: what is counted, what is kept, what is never retried.
//!
//! The node speaks the client's half of the protocol over real sockets, remembers every batch it
//! saw and misbehaves as told: it refuses, breaks connections, or falls silent. The binary runs as
//! a user runs it. Read `fake/mod.rs` for the node.

mod fake;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fake::{FakeNode, Manner};
use loadgen::ledger::{Ledger, State};
use loadgen::report::Report;

struct Run {
    code: i32,
    text: String,
    report: Option<Report>,
    ledger: Option<Ledger>,
}

fn run(nodes: &[&FakeNode], flags: &[&str]) -> Run {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| -> PathBuf { folder.path().join(name) };
    let (ledger, json) = (file("run.ledger"), file("run.json"));
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let addresses: Vec<String> = nodes.iter().map(|node| node.address.clone()).collect();
    let output = Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .args(["run", "--nodes", &addresses.join(",")])
        .args(["--ledger", &text(&ledger), "--json", &text(&json)])
        .args(["--warmup", "0.2", "--timeout-ms", "500"])
        .args(
            ["--seconds", "0.8"]
                .iter()
                .filter(|_| !flags.contains(&"--seconds")),
        )
        .args(flags)
        .output()
        .expect("it runs");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Run {
        code: output.status.code().unwrap_or(-1),
        text,
        report: Report::read(&json).ok(),
        ledger: Ledger::read(&ledger).ok(),
    }
}

/// What the ledger says must be what the node saw, batch for batch.
fn holds(run: &Run, nodes: &[&FakeNode]) -> (Report, Ledger) {
    let (report, ledger) = (run.report.clone(), run.ledger.clone());
    let report = report.unwrap_or_else(|| panic!("no report: {}", run.text));
    let ledger = ledger.unwrap_or_else(|| panic!("no ledger: {}", run.text));
    let acked = ledger.records(|state| matches!(state, State::Acked(_)));
    let failed = ledger.records(|state| matches!(state, State::Failed(_)));
    let unknown = ledger.records(|state| matches!(state, State::Unknown(_)));
    assert_eq!(
        (report.acked, report.failed, report.unknown),
        (acked, failed, unknown)
    );
    assert_eq!(report.appended, acked + failed + unknown);
    let mut seen: Vec<_> = nodes.iter().flat_map(|node| node.seen()).collect();
    seen.sort_unstable();
    let all = seen.len();
    seen.dedup();
    assert_eq!(seen.len(), all, "a batch was sent twice");
    for batch in &seen {
        assert_eq!(batch.run, ledger.run);
        let entry = ledger
            .find(batch.producer, batch.first)
            .map(|index| ledger.entries[index]);
        let entry = entry.unwrap_or_else(|| panic!("not in the ledger: {batch:?}"));
        assert_eq!((entry.count, entry.log.shard.0), (batch.count, batch.shard));
        if let (State::Acked(offset), Some(given)) = (entry.state, batch.offset) {
            assert_eq!(offset.0, given, "{batch:?}");
        }
    }
    let acked_seen = seen.iter().filter(|batch| batch.offset.is_some()).count();
    let acked_entries = ledger
        .entries
        .iter()
        .filter(|entry| entry.is_acked())
        .count();
    assert!(
        acked_entries <= acked_seen,
        "{acked_entries} acked, {acked_seen} seen"
    );
    (report, ledger)
}

#[test]
fn a_closed_loop_counts_every_record_once() {
    let node = FakeNode::start(2, Manner::Good);
    let outcome = run(&[&node], &["--batch-records", "7", "--connections", "5"]);
    assert_eq!(outcome.code, 0, "{}", outcome.text);
    let (report, _) = holds(&outcome, &[&node]);
    assert_eq!((report.failed, report.unknown), (0, 0));
    assert!(report.measured.acked > 1_000, "{}", outcome.text);
    assert!(
        report.acked > report.measured.acked,
        "the warm-up is in the ledger"
    );
    assert!(
        report.shards.iter().all(|shard| shard.acked > 0),
        "{:?}",
        report.shards
    );
    assert!(report.settled);
    assert_eq!(report.lag_us.p99, 9);
}

#[test]
fn keys_payloads_and_codec_are_as_asked_for() {
    let node = FakeNode::start(3, Manner::Good);
    for (payload, codec) in [("random", "none"), ("constant", "zstd"), ("json", "zstd")] {
        let flags = ["--payload", payload, "--codec", codec, "--key-count", "50"];
        let outcome = run(&[&node], &[&flags[..], &["--record-bytes", "200"]].concat());
        assert_eq!(outcome.code, 0, "{}", outcome.text);
        let report = outcome.report.expect("a report");
        let ledger = outcome.ledger.expect("a ledger");
        assert_eq!(report.payload.to_string(), payload);
        assert_eq!((report.codec.as_str(), report.key_count), (codec, 50));
        assert_eq!(
            (report.key_choice.as_str(), ledger.key_count),
            ("uniform", 50)
        );
        let warned = outcome.text.contains("figures of compression mean nothing");
        assert_eq!(warned, payload == "constant", "{}", outcome.text);
        let packed = report.raw_bytes > 2 * report.stored_bytes;
        assert_eq!(packed, codec == "zstd", "{}", outcome.text);
        assert!(report.shards.iter().all(|shard| shard.acked > 0));
    }
    let batches = node.bodies();
    assert!(!batches.is_empty());
    for (shard, body) in batches {
        for record in millrace::wire::record::read_all(&body) {
            let key = record.expect("sound").key;
            assert!(loadgen::keys::number(key).is_some_and(|number| number < 50));
            assert_eq!(loadgen::keys::shard_of(key, 3).0, shard);
        }
    }
}

#[test]
fn an_open_loop_keeps_its_rate() {
    let node = FakeNode::start(1, Manner::Good);
    let flags = [
        "--rate",
        "5000",
        "--batch-records",
        "10",
        "--connections",
        "4",
    ];
    let outcome = run(&[&node], &flags);
    assert_eq!(outcome.code, 0, "{}", outcome.text);
    let (report, _) = holds(&outcome, &[&node]);
    // 0.8 s at 5,000 a second, the last batches due just before the end.
    assert!(
        report.measured.acked.abs_diff(4_000) <= 40,
        "{:?}",
        report.measured
    );
    assert_eq!(report.unsent, 0);
    assert_eq!(report.early_end(), None);
}

#[test]
fn a_stall_is_charged_to_every_batch_that_it_delays() {
    let node = FakeNode::start(1, Manner::StallsOnce);
    let flags = [
        "--rate",
        "2000",
        "--batch-records",
        "1",
        "--connections",
        "1",
    ];
    let outcome = run(&[&node], &[&flags[..], &["--in-flight", "1"]].concat());
    let (report, _) = holds(&outcome, &[&node]);
    // The node sleeps 300 ms on one batch: 600 of 1,600 batches were due meanwhile.
    let p90 = report.latency_us.map(|latency| latency.p90);
    assert!(p90 > Some(100_000), "{p90:?}");
}

#[test]
fn refusals_count_as_failed_and_are_not_retried() {
    let node = FakeNode::start(1, Manner::RefusesSome);
    let outcome = run(&[&node], &["--batch-records", "3", "--connections", "2"]);
    assert_eq!(outcome.code, 0, "{}", outcome.text);
    let (report, ledger) = holds(&outcome, &[&node]);
    assert!(
        report.failed > 0 && report.acked > report.failed,
        "{}",
        outcome.text
    );
    assert_eq!(report.unknown, 0);
    assert!(
        outcome.text.contains("answered Overloaded"),
        "{}",
        outcome.text
    );
    // A producer ends with its first batch that is not acknowledged.
    for pair in ledger.entries.windows(2) {
        if pair[0].producer == pair[1].producer {
            assert_eq!(pair[0].first + pair[0].count, pair[1].first, "{pair:?}");
        }
    }
}

#[test]
fn a_broken_connection_makes_what_is_open_unknown_and_is_replaced() {
    let node = FakeNode::start(2, Manner::BreaksConnections);
    let outcome = run(&[&node], &["--batch-records", "3", "--connections", "4"]);
    assert_eq!(outcome.code, 0, "{}", outcome.text);
    let (report, _) = holds(&outcome, &[&node]);
    assert!(
        report.unknown > 0 && report.acked > report.unknown,
        "{}",
        outcome.text
    );
    assert_eq!(report.failed, 0);
}

#[test]
fn the_leader_is_found_from_any_node() {
    let (one, two) = FakeNode::pair(3);
    let outcome = run(&[&two], &["--connections", "3"]);
    assert_eq!(outcome.code, 0, "{}", outcome.text);
    let (report, _) = holds(&outcome, &[&one, &two]);
    assert!(report.acked > 0);
    assert!(
        !one.seen().is_empty() && !two.seen().is_empty(),
        "both lead something"
    );
}

#[test]
fn a_node_that_never_answers_ends_in_unknown() {
    let node = FakeNode::start(1, Manner::Silent);
    let outcome = run(&[&node], &["--connections", "2", "--in-flight", "3"]);
    assert_eq!(outcome.code, 1, "{}", outcome.text);
    let (report, _) = holds(&outcome, &[&node]);
    assert_eq!((report.acked, report.failed), (0, 0));
    assert_eq!(report.unknown, 2 * 3 * 100);
}

#[test]
fn a_load_that_is_interrupted_in_its_warm_up_has_no_rate() {
    let node = FakeNode::start(1, Manner::Good);
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = folder.path().join("run.ledger");
    let child = Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .args([
            "run",
            "--nodes",
            &node.address,
            "--warmup",
            "60",
            "--timeout-ms",
            "500",
        ])
        .arg("--ledger")
        .arg(&ledger)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let start = Instant::now();
    while node.seen().is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "nothing was sent"
        );
        thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: signals a child that was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("before the end of the warm-up of 60 s"),
        "{text}"
    );
    assert!(
        text.contains("no rate") && !text.contains("throughput"),
        "{text}"
    );
    assert!(Ledger::read(&ledger).is_ok_and(|ledger| !ledger.entries.is_empty()));
}

#[test]
fn bad_flags_are_refused_by_name() {
    let node = FakeNode::start(2, Manner::Good);
    for (flag, value) in [
        ("--level", "all"),
        ("--record-bytes", "95"),
        ("--batch-records", "0"),
        ("--batch-records", "1000000"),
        ("--in-flight", "65"),
        ("--connections", "1"),
        ("--shards", "2"),
        ("--rate", "0"),
        ("--seconds", "0.05"),
        ("--key-count", "0"),
        ("--key-count", "1"),
        ("--payload", "text"),
        ("--codec", "lz4"),
        ("--pids", "1=4294967295"),
    ] {
        let outcome = run(&[&node], &[flag, value]);
        assert_eq!(outcome.code, 2, "{flag} {value}: {}", outcome.text);
        assert!(
            outcome.text.contains(flag),
            "{flag} {value}: {}",
            outcome.text
        );
    }
}
