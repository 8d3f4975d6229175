//! What goes to whom, as far as credit and the connection's queue allow, and how a link looks.
//!
//! A link is served from its own `next` on, whatever other links do: one slow follower costs one
//! bounded queue. At most one run is being loaded for a link at a time. Owns the send decision and
//! the public status that follows from it; acks and refusals are `progress.rs`'s business.

use super::leader::Leader;
use super::output::{LinkStatus, LinkView, Output, SendRun};
use super::progress::{Cause, Link, Stage};
use super::state::State;
use super::view::LogView;
use crate::limits::LINK_QUEUE_BYTES;
use crate::types::{BlockNo, ConnectionId, Tick, Time};
use crate::wire::block::BlockHeader;
use crate::wire::body::{CreditLimits, Replicate};
use crate::wire::message::Message;

impl Leader {
    /// The weight of a block, if it was sealed here and is remembered.
    fn weight(&self, block: BlockNo) -> Option<CreditLimits> {
        let index = block.0.checked_sub(self.sealed_first.0)?;
        self.sealed.get(index as usize).map(|sealed| sealed.weight)
    }

    fn fits(&self, link: &Link) -> bool {
        match self.weight(link.next) {
            Some(weight) => link.sender.allows(weight, link.in_flight() == 0),
            None => link.sender.room().bytes > 0 && !link.blocked,
        }
    }

    /// Blocks at or past it are not sent yet. In a mesh a leader sends what is durable here: else
    /// a crash could leave a follower ahead, and its log would part from the leader's for good.
    fn send_end(state: &State, view: &dyn LogView) -> BlockNo {
        if state.config.mesh {
            view.durable_end()
        } else {
            view.log_end()
        }
    }

    /// Asks for the next run of one link, if it may go.
    pub(super) fn send(&mut self, now: Time, index: usize, state: &mut State, view: &dyn LogView) {
        let link = &self.links[index];
        // One that forgot what it refused, because it was restarted, will say nothing.
        let retry_us = state.config.rpc_timeout_us;
        let full = link.peer_full.is_some_and(|at| now.since_us(at) < retry_us);
        let quiet = link.stage < Stage::Probing
            || !self.is_open()
            || link.stopped.is_some()
            || link.operator_pause
            || link.peer_pause.is_some()
            || full
            || link.loading.is_some()
            || link.blocked
            || link.damaged
            || link.probe_is_out();
        let Some(connection) = link.data.filter(|_| !quiet) else {
            return;
        };
        if link.next < view.log_start() {
            // What it lacks was trimmed: it begins anew where this log does.
            self.links[index].probe(view.log_start());
        }
        let link = &self.links[index];
        let (next, round) = (link.next, link.round());
        let head = self.head(next, state, view);
        let end = Leader::send_end(state, view);
        if next >= end {
            if link.stage == Stage::Probing {
                self.links[index].sent(now, (next, round), (&[], 0));
                state.send(connection, head);
            }
            return;
        }
        let queued = !link.queued.is_empty();
        let room = LINK_QUEUE_BYTES.saturating_sub(link.queued.bytes()) as u64;
        let weight = self.weight(next).map_or(1, |weight| weight.bytes);
        if !self.fits(link) || (queued && weight > room) {
            return;
        }
        let first_max_bytes = if queued { room } else { u64::MAX };
        let run = SendRun {
            connection,
            peer: link.peer,
            from: next,
            end,
            credit: link.sender.room(),
            max_bytes: state.config.run_bytes.min(room),
            first_max_bytes,
            oversized: link.in_flight() == 0 && link.sender.allows_oversized(),
            head,
        };
        self.links[index].loading = Some((next, round));
        state.out.push_back(Output::SendRun(run));
    }

    pub(super) fn head(&self, first: BlockNo, state: &State, view: &dyn LogView) -> Replicate {
        let previous = first.previous();
        let held = previous.and_then(|block| view.held(block));
        let epoch = previous.and_then(|block| view.epoch_of(block));
        Replicate {
            epoch: self.epoch,
            first,
            prev_epoch: epoch.unwrap_or_default(),
            prev_crc: held.map(|(_, crc)| crc).unwrap_or_default(),
            committed_end: state.high_watermark,
            log_start: view.log_start(),
            count: 0,
            records: 0,
            padded_len: 0,
        }
    }

    /// What an `Output::SendRun` handed to its connection, and the size of the buffer it lies in.
    pub(super) fn run_sent(
        &mut self,
        now: Time,
        connection: ConnectionId,
        (headers, buffer_bytes): (&[BlockHeader], usize),
    ) {
        let found = self
            .links
            .iter_mut()
            .find(|link| link.data == Some(connection));
        let Some((link, (from, round))) = found.and_then(|link| {
            let loading = link.loading.take()?;
            Some((link, loading))
        }) else {
            return;
        };
        match headers.first() {
            Some(first) => {
                assert_eq!(first.block, from, "a run begins where it was asked for");
                link.sent(now, (from, round), (headers, buffer_bytes));
            }
            None => link.blocked = round == link.round(),
        }
    }

    pub(super) fn payload_left(&mut self, connection: ConnectionId, bytes: usize) {
        let found = self
            .links
            .iter_mut()
            .find(|link| link.data == Some(connection));
        if let Some(link) = found {
            link.queued.left(bytes);
        }
    }

    pub(super) fn note_status(
        &mut self,
        now: Time,
        index: usize,
        state: &mut State,
        view: &dyn LogView,
    ) {
        let link = &self.links[index];
        let waits = link.next < Leader::send_end(state, view) && !self.fits(link);
        let (status, cause) = link.current_status(waits);
        let link = &mut self.links[index];
        link.cause = cause;
        if cause.is_error() {
            link.last_error = cause;
        }
        if status != link.status {
            link.status = status;
            link.since = now;
        }
        let (told, why) = link.told;
        // Of one that cannot be reached it is news only that it can, and refuses.
        let refuses = matches!(cause, Cause::Refused(..)) && cause != why;
        let is_news = status != told || refuses;
        // A busy link may lack credit at every ack: that is worth a line once in a while, and if it
        // lasts. The last line always tells of the status there is, this pause later at most.
        let pause = state.config.retry_backoff_us;
        let told_lately = |at: Time| now.since_us(at) < pause;
        let too_soon =
            status == LinkStatus::WaitingForCredit && link.credit_told_at.is_some_and(told_lately);
        if !is_news || too_soon {
            return;
        }
        link.told = (status, cause);
        let (log, peer, why) = (state.config.log, link.peer, cause.text());
        let (message, text) = match status {
            LinkStatus::Replicating => (Message::LinkReplicating, "replicating".to_owned()),
            LinkStatus::WaitingForCredit => {
                link.credit_told_at = Some(now);
                // S-113: the source's words.
                let text = format!("replication paused: {why}");
                (Message::LinkWaitsForCredit, text)
            }
            LinkStatus::Paused if link.stopped.is_some() => {
                (Message::LinkStopped, format!("paused ({why})"))
            }
            LinkStatus::Paused => (Message::LinkPaused, format!("paused ({why})")),
            LinkStatus::Disconnected => {
                (Message::LinkDisconnected, format!("disconnected ({why})"))
            }
        };
        state.notice(message, format!("{log}: link to node {peer}: {text}"));
    }

    /// The links as operators see them.
    pub(super) fn views(&self, now: Time, view: &dyn LogView) -> Vec<LinkView> {
        let records = |from: BlockNo| {
            let from = from.clamp(view.log_start(), view.log_end());
            let end = view.end_offset_of(view.log_end()).unwrap_or_default();
            // For an old position the lag is told as if the follower held nothing.
            let reached = view.end_offset_of(from);
            let reached = reached.or_else(|| view.end_offset_of(view.log_start()));
            end.0.saturating_sub(reached.unwrap_or_default().0)
        };
        let of = |link: &Link| {
            let from = link.matched.clamp(view.log_start(), view.log_end());
            let rest = view.rest_from(from);
            let age_us = |tick: Tick| match from == view.log_end() {
                true => 0,
                false => now.0.saturating_sub(tick.0),
            };
            let room = link.sender.room();
            // Before recovery has ended nothing has a time yet.
            let since = if link.since == Time(0) {
                now
            } else {
                link.since
            };
            LinkView {
                peer: link.peer,
                status: link.status,
                cause: link.cause.text(),
                diverged_at: match link.stopped {
                    Some(Cause::Diverged(at)) => Some(at),
                    _ => None,
                },
                since_us: now.since_us(since),
                last_error: link.last_error.text(),
                lag_records: records(link.matched),
                lag_bytes: rest.map(|(bytes, _)| bytes),
                lag_us: rest.map(|(_, tick)| age_us(tick)),
                credit_records: room.records,
                credit_bytes: room.bytes,
                account: link.sender.account(),
                sent: link.next,
                matched: link.matched,
                lag_percentiles_us: [50, 95, 99].map(|p| link.lag.percentile(p)),
                lag_buckets: link.lag.buckets(),
                lag_blocks: link.lag.total(),
                connections: link.connections,
                sent_bytes: link.sent_bytes,
                queued_bytes: link.queued.bytes(),
            }
        };
        self.links.iter().map(of).collect()
    }
}
