//! The metronome: one plain thread that wakes the executor about once a millisecond.
//!
//! glommio 0.9 can park while it has runnable tasks: when its preemption timer fires between two
//! looks at its rings, "ran nothing" is taken for "nothing to run". A wake from another thread
//! gets it going again. A wake that was not consumed yet is never repeated: wakers are counted in
//! an `i16`. Only the executor's thread clones or drops the waker. Read `mod.rs` for who starts
//! it.

use std::future::{Future, poll_fn};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

const BEAT: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Shared {
    waker: Mutex<Option<Waker>>,
    /// A wake is on its way.
    pending: AtomicBool,
}

/// The executor's end of it.
pub(super) struct Metronome(Arc<Shared>);

impl Metronome {
    /// Starts the thread, which beats for the life of the process.
    pub(super) fn start() -> io::Result<Metronome> {
        let shared = Arc::new(Shared::default());
        let beats = shared.clone();
        thread::Builder::new()
            .name("metronome".to_owned())
            .spawn(move || beat(&beats))?;
        Ok(Metronome(shared))
    }

    /// A task for the executor: it takes the beats and never ends.
    pub(super) fn listen(self) -> impl Future<Output = ()> + 'static {
        poll_fn(move |context| {
            let mut waker = self.0.waker.lock().expect("nothing panics under the lock");
            if !waker
                .as_ref()
                .is_some_and(|old| old.will_wake(context.waker()))
            {
                *waker = Some(context.waker().clone());
            }
            self.0.pending.store(false, Ordering::Release);
            Poll::Pending
        })
    }
}

fn beat(shared: &Shared) {
    loop {
        thread::sleep(BEAT);
        let waker = shared.waker.lock().expect("nothing panics under the lock");
        if let Some(waker) = &*waker
            && !shared.pending.swap(true, Ordering::AcqRel)
        {
            waker.wake_by_ref();
        }
    }
}
