//! Small things for tasks of one executor: a signal with one waiter, and the clock.
//!
//! Nothing here is shared between threads. A signal that is given while nobody waits is kept; many
//! given at once count as one.

use crate::types::Time;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
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

/// Tasks that wait for something of which there is never enough: the first to come is the first to
/// go, so that none waits for ever.
#[derive(Debug, Default)]
pub(super) struct Line {
    next: Cell<u64>,
    waiting: RefCell<VecDeque<(u64, Waker)>>,
}

/// A place in a line, once taken.
pub(super) type Ticket = Option<u64>;

impl Line {
    /// Whether this task may go on, which is when those before it have and `room` says so. Takes a
    /// place in the line if not.
    pub(super) fn may_go(
        &self,
        ticket: &mut Ticket,
        waker: &Waker,
        room: impl FnOnce() -> bool,
    ) -> bool {
        let first = self.waiting.borrow().front().map(|(number, _)| *number);
        let turn = first.is_none() || first == *ticket;
        if turn && room() {
            self.leave(ticket);
            return true;
        }
        let mut waiting = self.waiting.borrow_mut();
        let own = ticket.and_then(|number| waiting.iter_mut().find(|(other, _)| *other == number));
        if let Some((_, known)) = own {
            known.clone_from(waker);
        } else {
            let number = self.next.get();
            self.next.set(number + 1);
            *ticket = Some(number);
            waiting.push_back((number, waker.clone()));
        }
        false
    }

    /// Gives up the place, if one was taken; the next one may look.
    pub(super) fn leave(&self, ticket: &mut Ticket) {
        if let Some(number) = ticket.take() {
            self.waiting
                .borrow_mut()
                .retain(|(other, _)| *other != number);
            self.wake_first();
        }
    }

    /// There may be room.
    pub(super) fn wake_first(&self) {
        if let Some((_, waker)) = self.waiting.borrow().front() {
            waker.wake_by_ref();
        }
    }
}

/// The wall clock as it is.
#[cfg(not(feature = "faults"))]
fn off(us: u64) -> u64 {
    us
}

/// The wall clock, off by what `MILLRACE_CLOCK_OFFSET_MS` says: for tests, which never touch the
/// machine's own.
#[cfg(feature = "faults")]
fn off(us: u64) -> u64 {
    let Ok(offset) = std::env::var("MILLRACE_CLOCK_OFFSET_MS") else {
        return us;
    };
    let offset: i64 = offset
        .parse()
        .unwrap_or_else(|_| panic!("MILLRACE_CLOCK_OFFSET_MS={offset} is no whole number"));
    us.saturating_add_signed(offset.saturating_mul(1000))
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
            start_us: off(wall.map_or(0, |wall| wall.as_micros() as u64)),
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
