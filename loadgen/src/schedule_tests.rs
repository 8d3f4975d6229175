//! Tests of the timetable: rate, turns, no drift, what was left unsent.

use super::*;

#[test]
fn a_closed_loop_has_no_timetable() {
    let schedule = Schedule::new(Rate::Max, 100, 16, 3);
    assert_eq!(schedule.due_ns(), None);
    assert_eq!(schedule.unsent(u64::MAX), 0);
}

#[test]
fn connections_share_the_rate_and_take_turns() {
    let mut due = Vec::new();
    for index in 0..4 {
        let mut schedule = Schedule::new(Rate::Records(4_000.0), 10, 4, index);
        for _ in 0..100 {
            due.extend(schedule.due_ns());
            schedule.advance();
        }
    }
    due.sort_unstable();
    // 4,000 records a second in batches of 10: one batch every 2.5 ms.
    let expected: Vec<u64> = (0..400).map(|batch| batch * 2_500_000).collect();
    assert_eq!(due, expected);
}

#[test]
fn it_does_not_drift() {
    let mut schedule = Schedule::new(Rate::Records(3.0), 1, 1, 0);
    for _ in 0..3_000_000 {
        schedule.advance();
    }
    assert_eq!(schedule.due_ns(), Some(1_000_000_000_000_000));
}

#[test]
fn what_was_due_and_not_sent_is_known() {
    let mut schedule = Schedule::new(Rate::Records(1_000.0), 1, 1, 0);
    assert_eq!(schedule.unsent(10_000_000), 10);
    for _ in 0..7 {
        schedule.advance();
    }
    assert_eq!(schedule.unsent(10_000_000), 3);
    assert_eq!(schedule.unsent(0), 0);
}

#[test]
fn a_rate_is_max_or_a_positive_number() {
    assert_eq!("max".parse(), Ok(Rate::Max));
    assert_eq!("50000".parse(), Ok(Rate::Records(50_000.0)));
    for bad in ["0", "-1", "nan", "inf", "fast", ""] {
        assert!(bad.parse::<Rate>().is_err(), "{bad}");
    }
}
