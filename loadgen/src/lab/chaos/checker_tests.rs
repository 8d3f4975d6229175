//! Tests of the checker: a sound history holds, and each lie is found by its kind.

use super::super::history::{Producer, Reads};
use super::*;

/// Three records of producer 1 and one of producer 2 in shard 0, at two nodes.
fn sound() -> History {
    let appends = |number: u32, ends: &[End]| Producer {
        number,
        appends: ends
            .iter()
            .zip(0..)
            .map(|(end, sequence)| Append {
                shard: 0,
                sequence,
                digest: u64::from(number) * 100 + u64::from(sequence),
                level: Level::Quorum,
                invoked_us: 10,
                ended_us: 20,
                end: *end,
            })
            .collect(),
    };
    let records: Vec<(u64, Content)> = [(1, 0), (2, 0), (1, 1), (1, 2)]
        .into_iter()
        .zip(0..)
        .map(|((producer, sequence), offset)| (offset, content(producer, sequence)))
        .collect();
    let readback = |node, level| Readback {
        node,
        shard: 0,
        level,
        records: records.clone(),
    };
    History {
        producers: vec![
            appends(
                1,
                &[End::Acked(0), End::Acked(2), End::Unknown, End::Unknown],
            ),
            appends(2, &[End::Acked(1), End::Failed]),
        ],
        reads: vec![Reads {
            shard: 0,
            place: "node 2".to_owned(),
            records: records[..2].to_vec(),
            refusals: Vec::new(),
        }],
        readbacks: vec![
            readback(1, "committed"),
            readback(1, "local"),
            readback(2, "local"),
        ],
        cuts: Vec::new(),
    }
}

fn content(producer: u32, sequence: u32) -> Content {
    Content {
        producer,
        sequence,
        digest: u64::from(producer) * 100 + u64::from(sequence),
    }
}

/// The same at every node.
fn everywhere(history: &mut History, change: impl Fn(&mut Vec<(u64, Content)>)) {
    for readback in &mut history.readbacks {
        change(&mut readback.records);
    }
}

/// Exactly this is wrong, so many times.
fn finds(change: impl FnOnce(&mut History), kind: Kind, count: u64) -> Verdict {
    let mut history = sound();
    change(&mut history);
    let verdict = check(&history);
    assert_eq!(verdict.count(kind), count, "{verdict}");
    assert_eq!(verdict.counts.len(), usize::from(count > 0), "{verdict}");
    verdict
}

#[test]
fn a_sound_history_holds() {
    let verdict = check(&sound());
    assert!(verdict.holds(), "{verdict}");
    assert_eq!((verdict.proven, verdict.unknown_there), (3, 1));
    assert_eq!(verdict.records, 4);
}

#[test]
fn an_acked_record_that_is_nowhere_is_missing() {
    let lost = |history: &mut History| {
        // The last record was acknowledged, and is cut everywhere.
        history.producers[0].appends[2].end = End::Acked(3);
        everywhere(history, |records| records.truncate(3));
    };
    let verdict = finds(lost, Kind::Missing, 1);
    assert!(verdict.to_string().contains("offset 3 of shard 0"));
}

#[test]
fn what_the_leader_alone_acked_may_be_cut_if_a_node_says_so() {
    let cut = |shard, offsets| {
        move |history: &mut History| {
            let append = &mut history.producers[0].appends[2];
            (append.end, append.level) = (End::Acked(3), Level::Leader);
            everywhere(history, |records| records.truncate(3));
            history.cuts.push(Cut { shard, offsets });
        }
    };
    assert_eq!(finds(cut(0, 2..4), Kind::Missing, 0).cut, 1);
    finds(cut(0, 4..9), Kind::Missing, 1);
    finds(cut(1, 2..4), Kind::Missing, 1);
}

#[test]
fn a_record_that_is_there_twice_is_doubled() {
    let twice = |history: &mut History| {
        everywhere(history, |records| records.push((4, content(1, 2))));
    };
    finds(twice, Kind::Doubled, 1);
}

#[test]
fn an_ack_with_another_offset_is_displaced() {
    let wrong = |history: &mut History| history.producers[1].appends[0].end = End::Acked(3);
    finds(wrong, Kind::Displaced, 1);
}

#[test]
fn records_of_a_producer_that_changed_places_are_reordered() {
    let swapped = |history: &mut History| {
        history.producers[0].appends[1].end = End::Unknown;
        everywhere(history, |records| {
            let (one, other) = (records[2].1, records[3].1);
            (records[2].1, records[3].1) = (other, one);
        });
    };
    finds(swapped, Kind::Reordered, 1);
}

#[test]
fn a_refused_record_that_is_there_is_found() {
    let there = |history: &mut History| {
        everywhere(history, |records| records.push((4, content(2, 1))));
    };
    finds(there, Kind::Refused, 1);
}

#[test]
fn other_bytes_and_records_of_nobody_are_strange() {
    let changed = |history: &mut History| {
        everywhere(history, |records| records[3].1.digest ^= 1);
    };
    finds(changed, Kind::Stranger, 1);
    let unsent = |history: &mut History| {
        everywhere(history, |records| records.push((4, content(0, 0))));
    };
    finds(unsent, Kind::Stranger, 1);
}

#[test]
fn a_committed_read_that_is_taken_back_is_contradicted() {
    let other = |history: &mut History| history.reads[0].records[1].1 = content(1, 2);
    finds(other, Kind::Contradicted, 1);
    let behind = |history: &mut History| history.reads[0].records.push((9, content(1, 2)));
    finds(behind, Kind::Contradicted, 1);
    let told = |history: &mut History| history.reads[0].refusals.push("cut".to_owned());
    finds(told, Kind::Contradicted, 1);
}

#[test]
fn nodes_and_levels_that_differ_are_found() {
    let short = |history: &mut History| history.readbacks[2].records.truncate(3);
    finds(short, Kind::Differing, 1);
    let other = |history: &mut History| history.readbacks[1].records[3].1.digest ^= 1;
    finds(other, Kind::Differing, 1);
    let gap = |history: &mut History| history.readbacks[2].records[3].0 = 5;
    finds(gap, Kind::Differing, 1);
}

/// the checker is tested on the history that it judges.
#[test]
fn lies_about_a_history_are_found_out() {
    assert!(red(&sound()).iter().all(|(_, is_found)| *is_found));
    // Nothing was acknowledged, so nothing can be taken away: that must not count as found.
    let empty = History::default();
    assert_eq!(red(&empty).map(|(_, is_found)| is_found), [false, false]);
}
