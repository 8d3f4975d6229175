//! The pace of a catch-up: the cap on the limit, the step, the estimate of what is live.

use super::super::credit::Receiver;
use super::super::test_kit::credit;
use super::{Pace, STEP_US, TOGETHER_US, WORDS};
use crate::types::{Epoch, Time};
use crate::wire::body::Sealed;

const WINDOW: u64 = 1 << 20;
const STEP_BYTES: u64 = 4096;

/// While it is capped the byte limit rises by steps alone, whatever is disposed of; then at once.
///
///
#[test]
fn a_capped_limit_rises_by_steps() {
    let mut receiver = Receiver::new(credit(1 << 20, WINDOW));
    receiver.connect();
    assert_eq!(receiver.limit().bytes, WINDOW);
    receiver.cap();
    let all = credit(10, WINDOW);
    assert!(receiver.arrive(all, 4));
    receiver.dispose(all);
    assert_eq!(receiver.limit().bytes, WINDOW, "disposing raises nothing");
    assert!(receiver.raise_cap(STEP_BYTES, WINDOW));
    assert_eq!(receiver.limit().bytes, WINDOW + STEP_BYTES);
    receiver.uncap();
    assert_eq!(receiver.limit().bytes, 2 * WINDOW);
}

/// What is not used is not saved up: the cap stays within `ahead` of what came.
#[test]
fn a_cap_does_not_run_ahead() {
    let mut receiver = Receiver::new(credit(1 << 20, WINDOW));
    receiver.connect();
    let all = credit(10, WINDOW);
    assert!(receiver.arrive(all, 4));
    receiver.cap();
    receiver.dispose(all);
    for _ in 0..10 {
        receiver.raise_cap(STEP_BYTES, 2 * STEP_BYTES);
    }
    assert_eq!(receiver.limit().bytes, WINDOW + 2 * STEP_BYTES);
    assert!(
        !receiver.raise_cap(STEP_BYTES, 2 * STEP_BYTES),
        "nothing came"
    );
}

/// A limit that was granted is never taken back by a cap, and a new connection has none.
#[test]
fn a_cap_takes_nothing_back_and_ends_with_its_connection() {
    let mut receiver = Receiver::new(credit(1 << 20, WINDOW));
    receiver.connect();
    receiver.cap();
    assert!(!receiver.raise_cap(0, 0));
    assert_eq!(receiver.limit().bytes, WINDOW);
    let block = credit(1, STEP_BYTES);
    assert!(receiver.arrive(block, 1));
    receiver.dispose(block);
    receiver.connect();
    assert!(receiver.arrive(block, 1));
    receiver.dispose(block);
    assert_eq!(receiver.limit().bytes, WINDOW + STEP_BYTES);
}

const HEARTBEAT_US: u64 = 100_000;

fn said(epoch: u64, bytes: u64) -> Sealed {
    Sealed {
        epoch: Epoch(epoch as u32),
        bytes,
    }
}

/// The set rate counts as long as it is above 5/4 of what the leader seals, however large the
/// blocks of its backlog are.
///
///
#[test]
fn what_is_live_counts() {
    let bytes_per_s = 1_000_000;
    let mut pace = Pace::new(bytes_per_s);
    let set = bytes_per_s * STEP_US / 1_000_000;
    assert_eq!(pace.step(STEP_US), set);
    let (mut now, mut bytes) = (0, 7 << 40);
    let mut run = |pace: &mut Pace, per_heartbeat: u64| {
        for _ in 0..20 * WORDS {
            now += HEARTBEAT_US;
            bytes += per_heartbeat;
            pace.hear(Time(now), &said(3, bytes));
        }
    };
    // 800,000 bytes a second: what is set is enough.
    run(&mut pace, 80_000);
    assert_eq!(pace.step(STEP_US), set, "the first word is no rate");
    // 2,000,000 bytes a second.
    run(&mut pace, 200_000);
    let (live, step) = (2_000_000 * STEP_US / 1_000_000, pace.step(STEP_US));
    assert!(
        step > live && step <= live + live / 4,
        "{step} of {live} bytes a step"
    );
    run(&mut pace, 0);
    assert_eq!(pace.step(STEP_US), set, "nothing is live any more");
}

/// Another epoch counts from another start, a smaller number is none, and words that come at once
/// make one.
#[test]
fn what_cannot_be_compared_is_no_rate() {
    let mut pace = Pace::new(1);
    pace.hear(Time(0), &said(3, 0));
    pace.hear(Time(HEARTBEAT_US), &said(4, u64::MAX));
    pace.hear(Time(2 * HEARTBEAT_US), &said(4, 5));
    assert_eq!(pace.rate(), 1);
    pace.hear(Time(2 * HEARTBEAT_US + 1), &said(4, 1_000_005));
    assert_eq!(pace.rate(), 1);
    pace.hear(Time(3 * HEARTBEAT_US), &said(4, 1_000_005));
    assert_eq!(pace.rate(), 1, "it came with the word before, not since");
    pace.hear(Time(4 * HEARTBEAT_US), &said(4, 2_000_005));
    let live = 10_000_000 / WORDS;
    assert_eq!(pace.rate(), live + live / 4);
}

/// A core that handles its words two at a time counts every byte: the second one of a pair says
/// what both cover.
#[test]
fn words_in_pairs_are_no_lower_rate() {
    let mut pace = Pace::new(1);
    let (mut now, mut bytes) = (0, 0);
    for _ in 0..20 * WORDS {
        now += 2 * HEARTBEAT_US;
        for late_us in [0, 1_000] {
            bytes += 100_000;
            pace.hear(Time(now + late_us), &said(3, bytes));
        }
    }
    let live = 200_000 * 1_000_000 / (2 * HEARTBEAT_US);
    let rate = pace.rate();
    assert!(rate >= live && rate <= live * 3 / 2, "{rate} of {live}");
}

/// A follower whose leader says absurd numbers computes no overflow.
#[test]
fn absurd_numbers_end_at_the_bounds() {
    let mut pace = Pace::new(u64::MAX);
    pace.hear(Time(0), &said(1, 0));
    pace.hear(Time(TOGETHER_US), &said(1, u64::MAX));
    assert_eq!(pace.step(1_000_000), u64::MAX);
    assert_eq!(pace.step(u64::MAX), u64::MAX);
    let mut pace = Pace::new(1);
    for word in 0..4 * WORDS {
        let bytes = u64::MAX / (4 * WORDS) * word;
        pace.hear(Time(word * TOGETHER_US), &said(1, bytes));
    }
    assert!(pace.step(1_000_000) > 1);
}
