//! Small things for tasks of one executor: a signal with one waiter, and the clock.
//!
//! Nothing here is shared between threads. A signal that is given while nobody waits is kept; many
//! given at once count as one.

use crate::types::Time;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Wakes one waiting task, or the next one that waits. Several tasks may wait: each signal wakes
/// one.
#[derive(Debug, Default)]
pub(super) struct Signal {
    given: Cell<bool>,
    waiters: RefCell<Vec<Waker>>,
}

impl Signal {
    pub(super) fn notify(&self) {
        self.given.set(true);
        let waiter = self.waiters.borrow_mut().pop();
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    pub(super) async fn wait(&self) {
        poll_fn(|context| {
            if self.given.replace(false) {
                return Poll::Ready(());
            }
            self.register(context.waker());
            Poll::Pending
        })
        .await;
    }

    /// Whether it was given since it was last waited for; takes it back.
    pub(super) fn take(&self) -> bool {
        self.given.replace(false)
    }

    /// Wakes this task at the next signal.
    pub(super) fn register(&self, waker: &Waker) {
        let mut waiters = self.waiters.borrow_mut();
        if !waiters.iter().any(|known| known.will_wake(waker)) {
            waiters.push(waker.clone());
        }
    }
}

/// Wall clock at start, carried on by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
    start_us: u64,
}

impl Clock {
    pub(super) fn new() -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Clock {
            start: Instant::now(),
            // A machine whose clock stands before 1970 gets a log that begins in 1970.
            start_us: wall.map_or(0, |wall| wall.as_micros() as u64),
        }
    }

    pub(super) fn now(&self) -> Time {
        Time(self.start_us).plus_us(self.start.elapsed().as_micros() as u64)
    }

    /// How long until `time`; nothing if it has passed.
    pub(super) fn until(&self, time: Time) -> Duration {
        Duration::from_micros(time.since_us(self.now()))
    }
}
