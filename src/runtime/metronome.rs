//! A thread that wakes a parked task of every executor, and so every executor.
//!
//! An executor can park while tasks of it are ready to run: when its preemption timer fires between
//! its look at the I/O and its look at the queues, it takes "ran nothing" for "nothing to run".
//! Only an event from outside gets it going again. So one plain thread pokes each executor once a
//! millisecond while it has work, less often when it is idle. A poke that was not taken yet is not
//! repeated at once: wakers are counted in 16 bits. But it is repeated, after longer and longer
//! times, because the executor may park with the very task that takes it among those left lying.
//! So the task is an executor's first one: before it has run, any other may be left lying for ever.
//! The same task hears of a stop, and of other cores that have put something into a lane (see
//! `handoff.rs`): they poke too, and the beat makes up for whatever poke might go astray.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

const BEAT: Duration = Duration::from_millis(1);
/// Beats after its last turn for which an executor counts as busy.
const BUSY_BEATS: u32 = 20;
/// Time between two looks while every executor is idle.
const IDLE_BEAT: Duration = Duration::from_millis(5);
/// Beats after which a poke that was not taken is repeated the first time; each time doubles it.
const FIRST_REPEAT: u32 = 8;
/// And no more than this: a core that hangs for hours still gets fewer than 32,767.
const LAST_REPEAT: u32 = 1024;

/// What the thread and one executor share.
#[derive(Debug, Default)]
pub(super) struct Metronome {
    /// A poke is on its way.
    poked: AtomicBool,
    waker: OnceLock<Waker>,
    turns: AtomicU64,
    stop: AtomicBool,
}

impl Metronome {
    /// The executor has done something.
    pub(super) fn turned(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks the executor to stop.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.poke();
    }

    /// Wakes the task that listens. Never waits.
    pub(super) fn poke(&self) {
        if self.poked.swap(true, Ordering::AcqRel) {
            return;
        }
        match self.waker.get() {
            Some(waker) => waker.wake_by_ref(),
            None => self.poked.store(false, Ordering::Release),
        }
    }

    /// One look of the thread: pokes, and pokes again if the last one was not taken for too long.
    fn beat(&self, patience: &mut Patience) {
        if patience.is_over(self.poked.load(Ordering::Acquire)) {
            self.poked.store(false, Ordering::Release);
        }
        self.poke();
    }

    /// The task that is woken: calls `hear` each time and, once a stop was asked for, `stop` until
    /// that says that it was heard. It never ends.
    pub(super) async fn listen(&self, stop: impl Fn() -> bool, hear: impl Fn()) {
        let mut told = false;
        poll_fn(|context| {
            self.waker.get_or_init(|| context.waker().clone());
            // Before anything is looked at: a poke from now on comes again.
            self.poked.swap(false, Ordering::AcqRel);
            if self.stop.load(Ordering::Acquire) && !told {
                told = stop();
            }
            hear();
            Poll::<()>::Pending
        })
        .await;
    }
}

/// How long the thread waits for a poke to be taken before it repeats it.
#[derive(Debug)]
struct Patience {
    untaken_beats: u32,
    repeat_after: u32,
}

impl Patience {
    fn new() -> Patience {
        Patience {
            untaken_beats: 0,
            repeat_after: FIRST_REPEAT,
        }
    }

    /// Whether the poke is to be repeated, at a beat that finds it untaken or not.
    fn is_over(&mut self, untaken: bool) -> bool {
        if !untaken {
            *self = Patience::new();
            return false;
        }
        self.untaken_beats += 1;
        let over = self.untaken_beats >= self.repeat_after;
        if over {
            self.untaken_beats = 0;
            self.repeat_after = (self.repeat_after * 2).min(LAST_REPEAT);
        }
        over
    }
}

/// Starts the thread.
pub(super) fn start(metronomes: Vec<Arc<Metronome>>) -> std::io::Result<()> {
    let beat = move || {
        let mut seen = vec![(0, 0_u32); metronomes.len()];
        let patient = metronomes.iter().map(|_| Patience::new());
        let mut patient: Vec<Patience> = patient.collect();
        loop {
            let busy = seen.iter().any(|(_, quiet)| *quiet < BUSY_BEATS);
            thread::sleep(if busy { BEAT } else { IDLE_BEAT });
            let all = metronomes.iter().zip(&mut seen).zip(&mut patient);
            for ((metronome, (turns, quiet)), patience) in all {
                let now = metronome.turns.load(Ordering::Relaxed);
                let idle = *turns == now;
                *quiet = if idle { quiet.saturating_add(1) } else { 0 };
                *turns = now;
                metronome.beat(patience);
            }
        }
    };
    thread::Builder::new()
        .name("metronome".to_owned())
        .spawn(beat)?;
    Ok(())
}

#[cfg(test)]
#[path = "metronome_tests.rs"]
mod tests;
