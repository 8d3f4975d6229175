//! The pace of a catch-up: the cap on the limit, the step, the estimate of what is live.

use super::super::credit::Receiver;
use super::super::test_kit::credit;
use super::{Pace, STEP_US, STEPS};
use crate::types::BlockNo;

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

/// The set rate counts as long as it is above 5/4 of what the leader commits.
#[test]
fn what_is_live_counts_on_top() {
    let bytes_per_s = 1_000_000;
    let mut pace = Pace::new(bytes_per_s);
    pace.came(8 * 4096, 8);
    assert_eq!(
        pace.step(STEP_US, BlockNo(0)),
        bytes_per_s * STEP_US / 1_000_000
    );
    // Ten blocks a step: 2,048,000 bytes a second.
    let mut committed = 0;
    let mut step = 0;
    for _ in 0..20 * STEPS {
        committed += 10;
        step = pace.step(STEP_US, BlockNo(committed));
    }
    let live = 10 * 4096;
    assert!(
        step > live && step <= live + live / 4,
        "{step} of {live} bytes a step"
    );
}

/// A follower that is far behind a leader of absurd numbers computes no overflow.
#[test]
fn absurd_numbers_end_at_the_bounds() {
    let mut pace = Pace::new(u64::MAX);
    pace.came(u64::MAX, 1);
    assert_eq!(pace.step(1_000_000, BlockNo(u64::MAX)), u64::MAX);
    assert_eq!(pace.step(u64::MAX, BlockNo(0)), u64::MAX);
}
