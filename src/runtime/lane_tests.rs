//! Tests of a lane: bounds in bytes and in entries, and room that is always told of.

use super::*;
use std::thread;

///
#[test]
fn a_lane_is_bounded_in_bytes() {
    let (sender, receiver) = lane();
    let quarter = limits::HANDOFF_BYTES / 4;
    for number in 0..4 {
        assert!(sender.has_room(quarter), "{number} quarters are in it");
        sender.send(number, quarter);
    }
    assert!(!sender.has_room(1), "not one byte more than the bound");
    let (first, wanted) = receiver.take().expect("four are on their way");
    assert_eq!((first, wanted), (0, true), "in order, and the sender waits");
    assert!(sender.has_room(quarter));
    assert!(!sender.has_room(quarter + 1));
    let (second, wanted) = receiver.take().expect("three are on their way");
    assert_eq!((second, wanted), (1, true), "asked for again");
    let (_, wanted) = receiver.take().expect("two are on their way");
    assert!(!wanted, "nobody waits");
}

#[test]
fn an_empty_lane_takes_one_message_of_any_size() {
    let (sender, receiver) = lane();
    let large = 3 * limits::HANDOFF_BYTES;
    assert!(sender.has_room(large));
    sender.send((), large);
    assert!(
        !sender.has_room(0) && !sender.has_room(large),
        "and no other with it"
    );
    assert!(receiver.take().is_some());
    assert!(receiver.is_empty() && sender.has_room(large));
}

#[test]
fn a_lane_is_bounded_in_entries() {
    let (sender, receiver) = lane();
    for number in 0..limits::HANDOFF_ENTRIES {
        assert!(sender.has_room(0));
        sender.send(number, 0);
    }
    assert!(!sender.has_room(0));
    assert_eq!(receiver.take(), Some((0, true)));
    assert!(sender.has_room(0));
}

/// Two threads, a lane that is full most of the time, and a sender that sleeps until it is rung:
/// no room is left untold, no message is lost, and the bound holds whenever one looks.
#[test]
fn a_waiting_sender_is_always_rung() {
    const MESSAGES: usize = 200_000;
    let (sender, receiver) = lane::<usize>();
    let (bell, rung) = mpsc::channel::<()>();
    let bytes = limits::HANDOFF_BYTES / 3;
    let sending = thread::spawn(move || {
        for number in 0..MESSAGES {
            while !sender.has_room(bytes) {
                rung.recv().expect("the receiver rings while one waits");
            }
            sender.send(number, bytes);
        }
    });
    let mut expected = 0;
    while expected < MESSAGES {
        assert!(receiver.load.bytes.load(Ordering::SeqCst) <= limits::HANDOFF_BYTES);
        let Some((number, wanted)) = receiver.take() else {
            thread::yield_now();
            continue;
        };
        assert_eq!(number, expected, "in order");
        expected += 1;
        if wanted {
            bell.send(()).expect("the sender lives");
        }
    }
    sending.join().expect("the sender ends");
}
