//! The verifier is tested as it is used: on files, by its exit code and by what it prints.
//!
//! A small generator writes three nodes' segment files through the wire formats, and the ledger
//! that a run would have written. Each kind of damage must then be found and named (`Q-27`). Read
//! `support/mod.rs` for the generator.

mod support;

use std::fs;
use std::path::Path;

use loadgen::payload::Payload;
use millrace::client::codec::Codec;
use support::{Cluster, Look, Outcome};

fn expect(outcome: &Outcome, code: i32, words: &[&str]) {
    assert_eq!(outcome.code, code, "{outcome:?}");
    for word in words {
        assert!(
            outcome.text.contains(word),
            "no `{word}` in: {}",
            outcome.text
        );
    }
}

/// The verdict's counts of what this file is about.
fn counts(cluster: &Cluster) -> [u64; 4] {
    let json = cluster.json();
    ["missing", "duplicated", "reordered", "corrupt"]
        .map(|key| json[key].as_u64().expect("a number"))
}

#[test]
fn clean_files_hold() {
    let cluster = Cluster::new();
    expect(
        &cluster.verify(),
        0,
        &["verdict     holds", "replicas identical"],
    );
    let json = cluster.json();
    assert_eq!(json["checked"], cluster.acked_records());
    assert_eq!(json["replicas_identical"], true);
    for node in json["nodes"].as_array().expect("nodes") {
        assert_eq!(node["checked"], cluster.acked_records());
        assert!(
            node["compared_bytes"].as_u64().expect("a number") > 100_000,
            "{node}"
        );
        assert_eq!(node["unknown_present"], support::BATCH_RECORDS);
    }
}

///
#[test]
fn a_flipped_byte_is_corrupt_and_named() {
    let cluster = Cluster::new();
    let said = cluster.tamper(2, "--flip");
    let words = [
        "corrupt: ",
        "differing: ",
        &said.record(),
        &said.block(),
        "node-2",
    ];
    expect(&cluster.verify(), 1, &words);
    assert_eq!(counts(&cluster), [0, 0, 0, 1]);
    let json = cluster.json();
    assert_eq!(json["unreadable"], support::BATCH_RECORDS);
    assert_eq!(json["replicas_identical"], false);
}

///
#[test]
fn a_removed_record_is_missing_and_named() {
    let cluster = Cluster::new();
    let said = cluster.tamper(1, "--remove");
    let words = ["missing: ", "displaced: ", "differing: ", &said.record()];
    expect(&cluster.verify(), 1, &words);
    // All CRCs and chains are sound: only the content tells.
    assert_eq!(counts(&cluster), [1, 0, 0, 0]);
}

///
#[test]
fn swapped_records_are_reordered_and_named() {
    let cluster = Cluster::new();
    let said = cluster.tamper(3, "--swap");
    // The later one stands first now, so the earlier one is behind it.
    let record = format!("producer {} sequence {}", said.producer, said.sequence - 1);
    expect(
        &cluster.verify(),
        1,
        &["reordered: ", "differing: ", &record, "node-3"],
    );
    assert_eq!(counts(&cluster), [0, 0, 1, 0]);
}

///
#[test]
fn the_same_change_on_every_replica_is_found_by_the_ledger_alone() {
    for (change, kind) in [("--remove", "missing"), ("--swap", "reordered")] {
        let cluster = Cluster::new();
        for node in 1..=3 {
            cluster.tamper(node, change);
        }
        expect(&cluster.verify(), 1, &[kind, "replicas identical"]);
        assert_eq!(cluster.json()[kind], 3);
    }
}

///
#[test]
fn a_batch_that_is_there_twice_is_duplicated() {
    let cluster = Cluster::with(|batches| {
        let again = batches[20].clone();
        batches.push(again);
    });
    let words = ["duplicated: ", "is there already", "replicas identical"];
    expect(&cluster.verify(), 1, &words);
    assert_eq!(cluster.json()["duplicated"], 3 * support::BATCH_RECORDS);
}

///
#[test]
fn batches_of_a_producer_in_another_order_are_reordered() {
    let cluster = Cluster::with(|batches| batches.swap(20, 23));
    expect(
        &cluster.verify(),
        1,
        &["reordered: ", "stands behind record"],
    );
    assert_eq!(cluster.json()["reordered"], 3 * support::BATCH_RECORDS);
}

///
#[test]
fn an_invented_ack_is_missing() {
    let cluster = Cluster::new();
    let mut ledger = cluster.ledger.clone();
    let mut entry = *ledger.entries.last().expect("some");
    entry.first += 1_000 * entry.count;
    entry.state = loadgen::ledger::State::Acked(millrace::types::Offset(5));
    ledger.entries.push(entry);
    ledger.write(&cluster.ledger_path()).expect("written");
    let (producer, sequence) = (entry.producer, entry.first);
    let record = format!("offset 5 producer {producer} sequence {sequence}");
    expect(
        &cluster.verify(),
        1,
        &["missing: ", &record, "nowhere in the log"],
    );
    assert_eq!(cluster.json()["missing"], 3 * support::BATCH_RECORDS);
}

///
#[test]
fn a_batch_that_was_refused_and_is_there_is_unexpected() {
    let mut cluster = Cluster::new();
    let code = millrace::wire::code::Code::Overloaded;
    cluster.ledger.entries[7].state = loadgen::ledger::State::Failed(code.number());
    cluster
        .ledger
        .write(&cluster.ledger_path())
        .expect("written");
    expect(
        &cluster.verify(),
        1,
        &["unexpected: ", "refused with Overloaded"],
    );
}

///
#[test]
fn a_replica_that_differs_under_sound_crcs_is_named() {
    let cluster = Cluster::new();
    // Behind the last record of the run, so that the ledger cannot tell.
    cluster.append_empty_blocks(&[(1, 70), (2, 71), (3, 70)]);
    let outcome = cluster.verify();
    expect(&outcome, 1, &["differing: ", "node-2", "replicas DIFFER"]);
    assert_eq!(counts(&cluster), [0; 4]);
    assert_eq!(
        cluster.json()["nodes"][2]["identical"],
        true,
        "{}",
        outcome.text
    );
}

///
#[test]
fn a_replica_that_ends_early_is_missing_what_it_lacks() {
    let cluster = Cluster::new();
    let last = cluster.segments(3, 0).pop().expect("some");
    fs::remove_file(last).expect("removed");
    let words = [
        "missing: ",
        "the log ends at",
        "differing: ",
        "are committed",
    ];
    expect(&cluster.verify(), 1, &words);
}

///
#[test]
fn a_damaged_header_is_corrupt_wherever_it_is() {
    for (at, word) in [
        (20, "segment's header block is damaged"),
        (4096 + 36, "no sound block here"),
        (4096 + 128 + 17, "batch's header is damaged"),
    ] {
        let cluster = Cluster::new();
        flip(&cluster.segments(1, 1)[1], at);
        let outcome = cluster.verify();
        expect(&outcome, 1, &["corrupt: ", word, "differing: "]);
        assert_eq!(cluster.json()["missing"], 0, "{}", outcome.text);
    }
}

/// Q-27, D-H5
#[test]
fn the_last_blocks_header_and_a_byte_of_padding_are_seen() {
    let cluster = Cluster::new();
    let (path, position, used) = cluster.last_block(1, 0);
    flip(&path, position + 60);
    expect(
        &cluster.verify(),
        1,
        &["corrupt: ", "should stand here is damaged"],
    );
    flip(&path, position + 60);
    flip(&path, position + used);
    expect(&cluster.verify(), 1, &["corrupt: ", "padding"]);
    flip(&path, position + used);
    expect(&cluster.verify(), 0, &["holds"]);
}

///
#[test]
fn first_segments_that_are_gone_from_every_node_are_missing() {
    // With a checkpoint that says that nothing was trimmed, and with none that can be read.
    for whole in [true, false] {
        let cluster = Cluster::new();
        for node in 1..=3 {
            let segments = cluster.segments(node, 0);
            cluster.write_checkpoint(node, 0, &segments[0], whole);
            segments[..2]
                .iter()
                .for_each(|path| fs::remove_file(path).expect("removed"));
        }
        let words = [
            "missing: ",
            "no retention removed",
            "from block 0 and offset 0 on",
            "replicas identical",
        ];
        expect(&cluster.verify(), 1, &words);
        let json = cluster.json();
        let lost = cluster.acked_records() - json["checked"].as_u64().expect("a number");
        assert!(lost > 0);
        assert_eq!(
            (&json["missing"], &json["trimmed"]),
            (&(3 * lost).into(), &0.into())
        );
    }
}

///
#[test]
fn what_lies_below_the_log_start_is_trimmed_and_no_more_than_that() {
    let cluster = Cluster::new();
    for node in 1..=3 {
        let segments = cluster.segments(node, 0);
        cluster.write_checkpoint(node, 0, &segments[1], true);
        fs::remove_file(&segments[0]).expect("removed");
    }
    expect(
        &cluster.verify(),
        0,
        &["verdict     holds", "trimmed by retention"],
    );
    let trimmed = cluster.json()["trimmed"].as_u64().expect("a number");
    assert!(trimmed > 0);
    // One file more than the log says.
    for node in 1..=3 {
        let first = cluster.segments(node, 0).remove(0);
        fs::remove_file(first).expect("removed");
    }
    expect(&cluster.verify(), 1, &["missing: ", "no retention removed"]);
    assert_eq!(cluster.json()["trimmed"], trimmed);
    assert!(cluster.json()["missing"].as_u64() > Some(0));
}

#[test]
fn a_directory_that_is_named_twice_is_refused() {
    let cluster = Cluster::new();
    let data = cluster.segments(1, 0)[0]
        .ancestors()
        .nth(3)
        .map(Path::to_owned);
    let data = data.expect("a data directory");
    let dotted = data.join("../node-1/.");
    for again in [&data, &dotted, &data.join("data")] {
        let words = ["--data", "the same directory as", "node-1"];
        expect(&cluster.verify_in(&[&data, again]), 2, &words);
    }
}

#[test]
fn the_file_brought_in_ahead_counts_once_it_continues_the_log() {
    let cluster = Cluster::new();
    for node in 1..=3 {
        let last = cluster.segments(node, 0).pop().expect("some");
        fs::rename(&last, last.with_file_name("next.seg")).expect("renamed");
        // One that does not continue anything is left alone.
        let blank = cluster.segments(node, 1)[0].with_file_name("next.seg");
        fs::write(blank, vec![0; 65_536]).expect("written");
    }
    expect(&cluster.verify(), 0, &["holds"]);
}

#[test]
fn single_records_can_be_removed_and_swapped_too() {
    for (change, kind) in [("--remove", "missing"), ("--swap", "reordered")] {
        let cluster = Cluster::of_single_records();
        cluster.tamper(1, change);
        expect(&cluster.verify(), 1, &[kind, "differing: "]);
        assert_eq!(cluster.json()["corrupt"], 0);
    }
}

#[test]
fn bad_input_is_told_from_findings() {
    let cluster = Cluster::new();
    let none = Path::new("no-such-directory");
    expect(&cluster.verify_in(&[none]), 2, &["no-such-directory"]);
    flip(&cluster.ledger_path(), 50);
    expect(&cluster.verify(), 2, &["run.ledger", "CRC"]);
}

fn flip(path: &Path, at: u64) {
    let mut bytes = fs::read(path).expect("read");
    bytes[at as usize] ^= 4;
    fs::write(path, bytes).expect("written");
}

#[test]
fn every_payload_key_and_codec_is_verified() {
    for payload in Payload::ALL {
        for codec in [Codec::None, Codec::Zstd] {
            for key_count in [0, 100] {
                let cluster = Cluster::of(Look {
                    payload,
                    key_count,
                    codec,
                    ..Look::default()
                });
                expect(&cluster.verify(), 0, &["verdict     holds"]);
                assert_eq!(cluster.json()["checked"], cluster.acked_records());
            }
        }
    }
}

///
#[test]
fn a_record_under_a_key_of_another_shard_is_displaced() {
    for codec in [Codec::None, Codec::Zstd] {
        let cluster = Cluster::of(Look {
            key_count: 100,
            stray_key: true,
            codec,
            ..Look::default()
        });
        let words = ["displaced: ", "does not belong here", "replicas identical"];
        expect(&cluster.verify(), 1, &words);
        assert_eq!(cluster.json()["displaced"], 3);
    }
}

///
#[test]
fn packed_batches_with_other_values_than_the_ledger_says_are_corrupt() {
    let mut cluster = Cluster::of(Look {
        codec: Codec::Zstd,
        ..Look::default()
    });
    cluster.ledger.payload = Payload::Random;
    cluster
        .ledger
        .write(&cluster.ledger_path())
        .expect("written");
    expect(&cluster.verify(), 1, &["corrupt: ", "under sound CRCs"]);
}
