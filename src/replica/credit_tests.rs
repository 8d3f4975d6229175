//! Both accounts of a link, alone and against each other.

use super::super::test_kit::credit;
use super::{NOTHING, Receiver, Sender};
use crate::wire::body::CreditLimits;

const BLOCK: CreditLimits = CreditLimits {
    records: 10,
    bytes: 4096,
};

fn pair(records: u64, bytes: u64) -> (Receiver, Sender) {
    let mut receiver = Receiver::new(credit(records, bytes));
    receiver.connect();
    let mut sender = Sender::default();
    sender.raise(receiver.limit());
    (receiver, sender)
}

/// The source's worked example: 100 credits, 10 records sent, 90 left, the ack gives 10 back; and
/// again for the next ten.
///
/// S-68 S-72 S-74 S-85 S-101 S-102
#[test]
fn worked_example_reads_100_90_100() {
    let (mut receiver, mut sender) = pair(100, 1 << 20);
    for _ in 0..2 {
        assert_eq!(sender.room().records, 100);
        assert!(sender.allows(BLOCK, true));
        sender.spend(BLOCK);
        assert_eq!(sender.room().records, 90);
        assert!(receiver.arrive(BLOCK, 1));
        receiver.dispose(BLOCK);
        sender.raise(receiver.limit());
    }
    assert_eq!(sender.room().records, 100);
}

/// S-71 S-77 S-103
#[test]
fn zero_grant_sends_nothing() {
    let sender = Sender::default();
    assert!(!sender.allows(BLOCK, true));
    let mut receiver = Receiver::new(credit(100, 0));
    receiver.connect();
    let mut sender = Sender::default();
    sender.raise(receiver.limit());
    assert!(!sender.allows(BLOCK, true), "no bytes are no credit");
    receiver.hold_back(true);
    receiver.connect();
    assert_eq!(receiver.limit(), NOTHING);
}

/// One block of any size may go with nothing in flight and any credit in both units; not beside
/// another one.
///
/// S-51
#[test]
fn a_block_above_the_window_goes_alone() {
    let large = credit(1000, 1 << 20);
    let (mut receiver, mut sender) = pair(100, 8192);
    assert!(!sender.allows(large, false));
    assert!(sender.allows(large, true));
    sender.spend(large);
    assert_eq!(sender.room(), NOTHING, "never below zero");
    assert!(receiver.arrive(large, 1));
    assert!(!sender.allows(BLOCK, false));
    receiver.dispose(large);
    sender.raise(receiver.limit());
    assert_eq!(sender.room(), credit(100, 8192));
    sender.spend(BLOCK);
    assert!(receiver.arrive(BLOCK, 1));
    assert!(
        !receiver.arrive(large, 1),
        "beside another one it is too much"
    );
}

/// D-S7 S-95
#[test]
fn doubled_and_old_grants_change_nothing() {
    let (mut receiver, mut sender) = pair(100, 1 << 20);
    let old = receiver.limit();
    sender.spend(BLOCK);
    receiver.arrive(BLOCK, 1);
    assert_eq!(receiver.account().held, BLOCK);
    receiver.dispose(BLOCK);
    assert_ne!(
        sender.account(),
        receiver.account(),
        "the grant is on its way"
    );
    for _ in 0..5 {
        sender.raise(receiver.limit());
        sender.raise(old);
    }
    assert_eq!(sender.room().records, 100);
    assert_eq!(sender.account(), receiver.account());
}

/// D-S8 S-122 D-S14
#[test]
fn reconnects_do_not_multiply_windows() {
    let (mut receiver, _) = pair(100, 10 * 4096);
    for _ in 0..100 {
        while receiver.held().bytes < 10 * 4096 {
            assert!(receiver.arrive(BLOCK, 1));
        }
        receiver.connect();
        assert_eq!(
            receiver.limit(),
            NOTHING,
            "the older connection holds it all"
        );
        assert_eq!(receiver.held(), credit(100, 10 * 4096));
        receiver.dispose_older(BLOCK);
        assert_eq!(receiver.limit(), BLOCK);
    }
    for _ in 0..10 {
        let held = receiver.held().bytes;
        if held > 0 {
            receiver.dispose_older(BLOCK);
        }
    }
    receiver.connect();
    assert_eq!(
        receiver.limit(),
        credit(100, 10 * 4096),
        "and all of it comes back"
    );
}

#[test]
fn a_limit_is_never_lowered_on_a_connection() {
    let (mut receiver, _) = pair(100, 1 << 20);
    receiver.arrive(BLOCK, 1);
    receiver.dispose(BLOCK);
    let before = receiver.limit();
    receiver.hold_back(true);
    receiver.arrive(BLOCK, 1);
    receiver.dispose(BLOCK);
    assert_eq!(receiver.limit(), before);
    receiver.hold_back(false);
    assert_eq!(receiver.limit().records, 120);
}
