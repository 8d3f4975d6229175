//! What a core tells of itself and the orders that it takes: its side of `snapshot.rs`.
//!
//! Also the accounts behind it: time and bytes per shard and per link, kept where frames and events
//! pass, with two looks at the clock for each. Nothing here waits for the admin thread.

use super::connection::{Connection, Kind};
use super::driver::Core;
use crate::limits::FRAME_HEADER;
use crate::shard::Event;
use crate::snapshot::{CoreReport, LinkUsage, Order, ShardUsage, Wish};
use crate::types::NodeId;
use crate::wire::body::Channel;
use crate::wire::frame::FrameHeader;
use std::time::Instant;

impl Core {
    /// Publishes what this core and its shards are.
    pub(super) fn publish(&self) {
        let statuses = self.statuses();
        self.node.published[self.index].put(statuses);
        let usage = self.usage.borrow();
        let disk = self.disk.borrow();
        let of = |log: usize| ShardUsage {
            disk_writes: disk.writes(log),
            ..usage[log].clone()
        };
        let logs = self.logs().iter().enumerate();
        let report = CoreReport {
            at: Some(Instant::now()),
            stopping: self.stopping.get(),
            cpu_ns: thread_cpu_ns(),
            connections_open: self.connections.borrow().len(),
            buffer_bytes: self.pool.borrow().allocated(),
            usage: logs.map(|(index, log)| (*log, of(index))).collect(),
        };
        self.node.reports[self.index].put(report);
    }

    /// Carries out what operators have ordered.
    pub(super) fn take_orders(&self) {
        while let Some(order) = self.node.mailboxes[self.index].take() {
            let Order { wish, answer } = order;
            let mut done = Vec::new();
            for (index, log) in self.logs().iter().enumerate() {
                let (changes, event) = match wish {
                    Wish::Pause { peer, pause } => {
                        let paused = self.is_link_paused(index, peer);
                        let changes = paused.map(|paused| paused != pause);
                        (changes, Event::PauseLink { peer, pause })
                    }
                    Wish::Promote { shard, .. } if log.shard != shard => continue,
                    Wish::Promote { to, .. } => {
                        (self.can_hand_over(index, to), Event::Promote { to })
                    }
                    Wish::CatchUp { bytes_per_s } => {
                        let bytes_per_s = self.node.share_of_pace(bytes_per_s);
                        (Some(true), Event::CatchUp { bytes_per_s })
                    }
                    Wish::Scrub { read } => {
                        let can = self.can_scrub(index).then_some(true);
                        (can, Event::Scrub { read })
                    }
                };
                let Some(changes) = changes else {
                    continue;
                };
                done.push((*log, changes));
                if changes {
                    tracing::info!(%log, ?wish, "an operator's order");
                    self.deliver(index, event);
                }
            }
            // Whoever asked may have gone.
            let _ = answer.send(done);
        }
    }

    /// A frame of a peer was read and handled since `began`.
    pub(super) fn note_received(
        &self,
        log: usize,
        node: NodeId,
        frame: &FrameHeader,
        began: Instant,
    ) {
        let bytes = FRAME_HEADER + frame.body_len + frame.payload_len;
        self.note_link(log, node, |link| {
            link.received_bytes += bytes as u64;
            link.cpu_ns += elapsed_ns(began);
        });
    }

    /// A frame of `bytes` was made for a connection since `began`.
    pub(super) fn note_sent(
        &self,
        log: usize,
        connection: &Connection,
        bytes: usize,
        began: Instant,
    ) {
        if let Kind::Peer { node, .. } = connection.kind.get() {
            self.note_link(log, node, |link| {
                link.sent_bytes += bytes as u64;
                link.cpu_ns += elapsed_ns(began);
            });
        }
    }

    /// Bytes of a connection were handed to its socket since `began`.
    pub(super) fn note_handed_over(&self, connection: &Connection, began: Instant) {
        let Kind::Peer { node, channel, .. } = connection.kind.get() else {
            return;
        };
        // A control connection carries many logs, and next to nothing.
        let log = connection.known_to.borrow().first().copied();
        if let Some(log) = log.filter(|_| channel == Channel::Data) {
            self.note_link(log, node, |link| link.cpu_ns += elapsed_ns(began));
        }
    }

    fn note_link(&self, log: usize, node: NodeId, note: impl FnOnce(&mut LinkUsage)) {
        note(self.usage.borrow_mut()[log].links.entry(node).or_default());
    }

    /// A shard was at work since `began`.
    pub(super) fn note_shard(&self, log: usize, began: Instant) {
        self.usage.borrow_mut()[log].cpu_ns += elapsed_ns(began);
    }
}

fn elapsed_ns(began: Instant) -> u64 {
    began.elapsed().as_nanos() as u64
}

/// CPU time of the calling thread.
fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call fills in the struct that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
