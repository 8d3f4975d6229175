//! A bounded lane of messages from one core to another: the only way by which data crosses cores.
//!
//! Bounded in entries and in bytes, one sending and one receiving executor. Neither side ever
//! waits in here: a message that has no room is the sender's to keep, and a flag asks the receiver
//! to ring once there is room again. An empty lane takes one message of any size, so that none is
//! too large for ever. Ringing is the metronome's; who waits and for what is `handoff.rs`.

use crate::limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, SyncSender};

/// What both ends count. The sender alone adds, the receiver alone takes away.
#[derive(Debug, Default)]
struct Load {
    entries: AtomicUsize,
    bytes: AtomicUsize,
    /// The sender waits for room.
    wanted: AtomicBool,
}

/// The sending end.
#[derive(Debug)]
pub(super) struct Sender<T> {
    load: Arc<Load>,
    channel: SyncSender<(T, usize)>,
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct Receiver<T> {
    load: Arc<Load>,
    channel: mpsc::Receiver<(T, usize)>,
}

/// A lane of at most `HANDOFF_ENTRIES` messages and `HANDOFF_BYTES` bytes.
pub(super) fn lane<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::sync_channel(limits::HANDOFF_ENTRIES);
    let load = Arc::new(Load::default());
    let sender = Sender {
        load: load.clone(),
        channel: sender,
    };
    let channel = receiver;
    (sender, Receiver { load, channel })
}

impl<T> Sender<T> {
    /// Whether a message of so many bytes may be sent now. If not, the receiver will ring.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        if self.load.has_room(bytes) {
            return true;
        }
        // Said first and looked at again: the receiver takes a message away and then looks whether
        // room is wanted, so one of the two sees the other.
        self.load.wanted.store(true, Ordering::SeqCst);
        self.load.has_room(bytes)
    }

    /// Sends a message for which `has_room` just said that there is room.
    pub(super) fn send(&self, message: T, bytes: usize) {
        assert!(self.load.has_room(bytes), "a message is sent into room");
        self.load.entries.fetch_add(1, Ordering::SeqCst);
        self.load.bytes.fetch_add(bytes, Ordering::SeqCst);
        let sent = self.channel.try_send((message, bytes));
        // Full never happens: entries count what is in the channel. A receiver that is gone has
        // ended with its executor, and with the process.
        drop(sent);
    }
}

impl<T> Receiver<T> {
    /// The next message, and whether the sender wants to hear of the room that it leaves.
    pub(super) fn take(&self) -> Option<(T, bool)> {
        let (message, bytes) = self.channel.try_recv().ok()?;
        self.load.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.load.entries.fetch_sub(1, Ordering::SeqCst);
        Some((message, self.load.wanted.swap(false, Ordering::SeqCst)))
    }

    /// Whether nothing is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.load.entries.load(Ordering::SeqCst) == 0
    }
}

impl Load {
    fn has_room(&self, bytes: usize) -> bool {
        let entries = self.entries.load(Ordering::SeqCst);
        let held = self.bytes.load(Ordering::SeqCst);
        entries == 0 || (entries < limits::HANDOFF_ENTRIES && held + bytes <= limits::HANDOFF_BYTES)
    }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
