//! Tests of the window of unanswered batches.

use millrace::types::LogId;

use super::*;

fn pending(first: u32) -> Pending {
    Pending {
        entry: Entry {
            producer: 1,
            first,
            count: 1,
            log: LogId::default(),
            state: State::Unknown(0),
        },
        due_ns: 0,
        sent_ns: 0,
    }
}

#[test]
fn answers_may_come_in_any_order_and_only_once() {
    let mut window = Window::default();
    let correlations: Vec<u64> = (0..5).map(|first| window.push(pending(first))).collect();
    let take = |window: &mut Window, index: usize| {
        let pending = window.take(correlations[index]);
        pending.map(|pending| pending.entry.first)
    };
    assert_eq!(take(&mut window, 2), Some(2));
    assert_eq!(take(&mut window, 2), None);
    assert_eq!(take(&mut window, 0), Some(0));
    assert_eq!((window.open, window.places.len()), (3, 4));
    assert_eq!(take(&mut window, 1), Some(1));
    assert_eq!((window.open, window.places.len()), (2, 2));
    assert_eq!(take(&mut window, 0), None);
    let next = window.push(pending(5));
    assert_eq!(next, 5);
    assert_eq!(window.take(99).map(|pending| pending.entry.first), None);
    for index in [4, 3] {
        assert_eq!(take(&mut window, index), Some(index as u32));
    }
    assert_eq!(
        window.take(next).map(|pending| pending.entry.first),
        Some(5)
    );
    assert_eq!((window.open, window.places.len()), (0, 0));
}
