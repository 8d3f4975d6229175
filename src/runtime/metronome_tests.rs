//! The metronome: pokes that are lost come again, and never too often.

use super::*;
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Wake};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The task was woken and its executor parked without running it: nobody takes the poke. It must
/// come again, else the executor sleeps until a packet arrives; and never so often that the 16 bits
/// of an executor that hangs overflow.
#[test]
fn a_poke_that_is_never_taken_comes_again_but_seldom() {
    let metronome = Metronome::default();
    let woken = Arc::new(Count::default());
    let waker = Waker::from(woken.clone());
    let mut task = pin!(metronome.listen(|| true, || {}));
    assert!(
        task.as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    let mut patience = Patience::new();
    let mut count_at = Vec::new();
    for _ in 0..3_600_000 {
        metronome.beat(&mut patience);
        count_at.push(woken.0.load(Ordering::Relaxed));
    }
    assert_eq!(count_at[0], 1, "the first beat pokes");
    assert_eq!(count_at[1], 1, "the second one leaves it time");
    assert!(count_at[20] >= 2, "20 ms later it was repeated");
    assert!(count_at[3_599_999] < 4_000, "an hour of silence");
    // Taken at last: from now on each beat pokes again.
    let before = count_at[3_599_999];
    for round in 1..=5 {
        assert!(
            task.as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        metronome.beat(&mut patience);
        assert_eq!(woken.0.load(Ordering::Relaxed), before + round);
    }
}

#[test]
fn a_poke_while_one_is_on_its_way_is_not_sent() {
    let metronome = Metronome::default();
    let woken = Arc::new(Count::default());
    let waker = Waker::from(woken.clone());
    let mut task = pin!(metronome.listen(|| true, || {}));
    assert!(
        task.as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    metronome.poke();
    metronome.poke();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
}
