//! Tests of the counts: what is warm-up, what is measured, what has a latency.

use millrace::types::Offset;

use super::*;

const SECOND: u64 = 1_000_000_000;

#[test]
fn the_longest_gap_between_two_acks_is_kept_for_each_log() {
    let mut stats = Stats::new(0, 3);
    let mut end = |state, shard, at| stats.ended(state, shard, 1, 0, at);
    for (shard, at) in [(0, 5), (1, 6), (0, 7), (0, 10), (0, 11), (1, 20)] {
        end(State::Acked(Offset(0)), shard, at * SECOND);
    }
    end(State::Unknown(0), 0, 12 * SECOND);
    stats.close(21 * SECOND, 22 * SECOND);
    // Shard 0 was silent from 11 to 22, shard 1 from 6 to 20, shard 2 never spoke.
    assert_eq!(stats.gap_ns_by_log, [11 * SECOND, 14 * SECOND, 0]);
    assert_eq!(stats.load_s(), 21.0);
}

#[test]
fn the_warm_up_is_counted_and_not_measured() {
    let mut stats = Stats::new(5 * SECOND, 2);
    stats.sent(10, 4 * SECOND);
    stats.ended(State::Acked(Offset(0)), 0, 10, 4 * SECOND, 6 * SECOND);
    assert_eq!((stats.total.acked, stats.measured.acked), (10, 0));
    assert_eq!((stats.latency_us.len(), stats.second_us.len()), (0, 1));
    assert_eq!(stats.acked_by_log, [10, 0]);
    assert_eq!(stats.measured_s(), 0.0);
}

#[test]
fn latency_counts_from_when_a_batch_was_due() {
    let mut stats = Stats::new(0, 1);
    stats.sent(3, SECOND);
    stats.ended(State::Acked(Offset(0)), 0, 3, SECOND, 3 * SECOND);
    assert_eq!(stats.latency_us.len(), 1);
    let latency = stats.latency_us.max();
    assert!(latency.abs_diff(2_000_000) < 2_000, "{latency} us");
    assert_eq!(stats.measured_s(), 3.0);
}

#[test]
fn refused_and_unknown_batches_have_no_latency() {
    let mut stats = Stats::new(0, 1);
    stats.sent(5, 0);
    stats.ended(State::Failed(17), 0, 2, 0, 9);
    stats.ended(State::Unknown(0), 0, 3, 0, 9);
    let expected = Counts {
        appended: 5,
        acked: 0,
        failed: 2,
        unknown: 3,
    };
    assert_eq!(stats.measured, expected);
    assert_eq!(stats.latency_us.len(), 0);
}
