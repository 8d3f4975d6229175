//! The leader's part: its links, what to send to whom, what is committed.
//!
//! Exists on every node that may lead: the placed one, or all of an electing set. `opening.rs`
//! brings it from a start to an open epoch; this file runs the links in every phase and moves the
//! high watermark in the last one: by a majority that counts the leader's own durable end, only
//! over blocks of its own epoch (Raft section 5.4.2). A higher promise heard from anybody ends the
//! leadership at once. It must never take an append, load a block or touch a socket: it says which
//! run of blocks is due. Read `progress.rs` first.

use super::backoff::Backoff;
use super::credit;
use super::handover::Handing;
use super::heartbeat::silent_at;
use super::opening::Phase;
use super::output::{Output, Refused};
use super::progress::{Cause, Link, Refusal, Stage};
use super::state::State;
use super::view::LogView;
use crate::faults::{Fault, active};
use crate::limits::HELD_BLOCKS;
use crate::types::{BlockNo, ConnectionId, Epoch, NodeId, Tick, Time};
use crate::wire::block::BlockHeader;
use crate::wire::body::{Body, CreditLimits, Error, Nack, Position, ReplicateOk, Resume, Where};
use crate::wire::code::Code;
use crate::wire::message::Message;
use std::collections::VecDeque;

/// A block that this leadership sealed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed {
    pub(super) weight: CreditLimits,
    pub(super) tick: Tick,
}

/// The leader's part of a replica.
#[derive(Debug)]
pub struct Leader {
    pub(super) links: Vec<Link>,
    pub(super) phase: Phase,
    /// The epoch that is being opened or is open.
    pub(super) epoch: Epoch,
    /// First block of the epoch, once it is open.
    pub(super) epoch_block: BlockNo,
    /// The newest blocks sealed here, one behind the other from `sealed_first` on.
    pub(super) sealed: VecDeque<Sealed>,
    pub(super) sealed_first: BlockNo,
    /// Bytes of all blocks that were sealed here since the start, as padded.
    pub(super) sealed_bytes: u64,
    pub(super) ping_at: Time,
    /// Attempts to open an epoch that led to none.
    pub(super) backoff: Backoff,
    /// When everything due was last done.
    pub(super) clock: Time,
    /// When the votes of the majority that elected this leader were asked for.
    pub(super) won_at: Time,
    /// The leader before this one told it to stand, whoever hears that one.
    pub(super) forced: bool,
    /// When a candidate asks for positions again.
    pub(super) ask_again_at: Time,
    pub(super) handing: Option<Handing>,
    /// Since when the preferred member could lead.
    pub(super) caught_up_since: Option<Time>,
}

impl Leader {
    pub fn new(peers: impl Iterator<Item = NodeId>) -> Leader {
        Leader {
            links: peers.map(Link::new).collect(),
            phase: Phase::Waiting,
            epoch: Epoch(0),
            epoch_block: BlockNo(0),
            sealed: VecDeque::new(),
            sealed_first: BlockNo(0),
            sealed_bytes: 0,
            ping_at: Time(0),
            backoff: Backoff::default(),
            clock: Time(0),
            won_at: Time(0),
            forced: false,
            ask_again_at: Time(0),
            handing: None,
            caught_up_since: None,
        }
    }

    pub fn started(&mut self, now: Time, state: &State) {
        for link in &mut self.links {
            link.since = now;
        }
        if !state.config.electing {
            self.gather(now, now, state.promise.epoch);
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether a connection is one of its links'.
    pub fn knows(&self, connection: ConnectionId) -> bool {
        self.links.iter().any(|link| link.data == Some(connection))
    }

    pub fn data_up(
        &mut self,
        now: Time,
        peer: NodeId,
        connection: ConnectionId,
        state: &mut State,
    ) {
        let Some(link) = self.links.iter_mut().find(|link| link.peer == peer) else {
            return state.close(connection, Code::WrongNode);
        };
        if let Some(older) = link.data.take() {
            state.close(older, Code::Replaced);
        }
        link.up(now, connection);
        self.lost_source(now, peer, state);
    }

    pub fn control_up(
        &mut self,
        now: Time,
        peer: NodeId,
        connection: ConnectionId,
        state: &mut State,
    ) {
        let Some(index) = self.links.iter().position(|link| link.peer == peer) else {
            return;
        };
        let link = &mut self.links[index];
        link.control = Some(connection);
        link.heard = now;
        // So that the peer hears of this leader at once.
        self.ping_at = now;
        if link.peer_pause.is_some() && link.data.is_some() {
            // It may have been restarted, and know nothing of the pause nor of the connection on
            // which nothing may be sent: a new one tells.
            self.drop_link(now, index, Code::Replaced, Cause::Lost, state);
        }
    }

    pub fn connection_down(&mut self, now: Time, connection: ConnectionId, state: &State) {
        let longest_us = state.config.retry_backoff_us;
        let mut lost = None;
        for link in &mut self.links {
            if link.control == Some(connection) {
                link.control = None;
            }
            if link.data == Some(connection) {
                link.failed(now, longest_us, Cause::Lost);
                lost = Some(link.peer);
            }
        }
        if let Some(peer) = lost {
            self.lost_source(now, peer, state);
        }
    }

    pub fn dial_failed(&mut self, now: Time, peer: NodeId, why: Option<Refused>, state: &State) {
        let longest_us = state.config.retry_backoff_us;
        let cause = why.map_or(Cause::Lost, |(code, details)| Cause::Refused(code, details));
        let found = self.links.iter_mut().find(|link| link.peer == peer);
        if let Some(link) = found.filter(|link| link.data.is_none()) {
            link.failed(now, longest_us, cause);
        }
    }

    /// Ends the connection of a link; it is dialed again after the backoff.
    pub(super) fn drop_link(
        &mut self,
        now: Time,
        index: usize,
        code: Code,
        cause: Cause,
        state: &mut State,
    ) {
        let link = &mut self.links[index];
        if let Some(connection) = link.data {
            state.close(connection, code);
        }
        link.failed(now, state.config.retry_backoff_us, cause);
        let peer = link.peer;
        self.lost_source(now, peer, state);
    }

    /// A frame without payload. True if it was one for a leader.
    pub fn on_body(
        &mut self,
        now: Time,
        connection: ConnectionId,
        body: &Body,
        state: &mut State,
        view: &dyn LogView,
    ) -> bool {
        let of = |link: &Link| link.data == Some(connection) || link.control == Some(connection);
        let Some(index) = self.links.iter().position(of) else {
            return false;
        };
        let link = &mut self.links[index];
        link.heard = now;
        if link.data == Some(connection) {
            link.data_heard = now;
        }
        match body {
            Body::Position(body) if !is_plausible(body) => {
                let cause = Cause::Refused(Code::BadFrame, [0; 2]);
                self.drop_link(now, index, Code::BadFrame, cause, state);
            }
            Body::Position(body) => self.on_position(now, index, body, state),
            Body::ReplicateOk(body) => self.on_ack(now, index, body, state, view),
            Body::Nack(body) => self.on_nack(now, index, body, state, view),
            Body::Limits(body) => {
                self.links[index].raise(body.limits);
                self.links[index].peer_full = None;
            }
            Body::Pause(body) => self.links[index].peer_pause = Some(body.reason),
            Body::Resume(body) => self.on_resume(index, body, state, view),
            Body::Pong(body) => self.on_pong(now, index, body, state),
            Body::Fetch(body) => self.on_fetch(index, body, state, view),
            _ => return false,
        }
        true
    }

    fn on_position(&mut self, now: Time, index: usize, body: &Position, state: &mut State) {
        let link = &mut self.links[index];
        link.raise(body.limits);
        link.memory = body.memory;
        link.position = Some(body.clone());
        link.waiting_since = None;
        match link.stage {
            Stage::Asking => {
                link.stage = Stage::Known;
                link.known_at = now;
            }
            Stage::Promising if body.promised == self.epoch => {
                link.stage = Stage::Promised;
                link.promised = self.epoch;
            }
            Stage::Promising => link.stage = Stage::Known,
            _ => {}
        }
        self.heard_epoch(now, body.promised, state);
    }

    fn on_ack(
        &mut self,
        now: Time,
        index: usize,
        body: &ReplicateOk,
        state: &mut State,
        view: &dyn LogView,
    ) {
        self.links[index].raise(body.limits);
        if body.epoch > self.epoch {
            return self.heard_epoch(now, body.epoch, state);
        }
        let link = &mut self.links[index];
        if body.epoch < self.epoch || link.stage < Stage::Probing {
            return;
        }
        if link.stopped.is_some() {
            return;
        }
        if body.durable_end > view.log_end() {
            let text = format!(
                "{}: node {} acks block {} of a log that ends at {}",
                state.config.log,
                link.peer,
                body.durable_end,
                view.log_end()
            );
            state.notice(Message::AckPastEnd, text);
            let cause = Cause::Refused(Code::BadFrame, [0; 2]);
            return self.drop_link(now, index, Code::BadFrame, cause, state);
        }
        if link.memory != body.memory {
            link.memory = body.memory;
            let text = format!(
                "{}: the memory of node {} is {:?}",
                state.config.log, link.peer, body.memory
            );
            state.notice(Message::MemoryChanged, text);
        }
        let acked = link.acked(now, body.durable_end);
        let (from, end) = (acked.start.max(self.sealed_first), acked.end);
        let skip = from.0.saturating_sub(self.sealed_first.0) as usize;
        let take = end.0.saturating_sub(from.0) as usize;
        for sealed in self.sealed.iter().skip(skip).take(take) {
            let lag_us = now.0.saturating_sub(sealed.tick.0);
            self.links[index].lag.record(lag_us);
        }
        self.commit(state, view);
    }

    fn on_nack(
        &mut self,
        now: Time,
        index: usize,
        body: &Nack,
        state: &mut State,
        view: &dyn LogView,
    ) {
        self.links[index].raise(body.limits);
        let code = Code::from_number(body.code).unwrap_or(Code::Unsupported);
        let vote = [Code::StaleEpoch, Code::LogBehind].contains(&code);
        let candidate = matches!(self.phase, Phase::Promising { .. });
        if vote && candidate && state.config.electing && body.promised <= self.epoch {
            self.links[index].stage = self.links[index].stage.min(Stage::Known);
            return self.vote_refused(now, index, state);
        }
        if code == Code::StaleEpoch && (!state.config.electing || body.promised > self.epoch) {
            return self.heard_refusal(now, body.promised, state);
        }
        self.heard_epoch(now, body.promised, state);
        if self.links[index].data.is_none() {
            return;
        }
        if self.on_fetch_refused(now, index, body, code, state, view)
            || self.take_over_refused(now, index, code, state)
        {
            return;
        }
        let link = &mut self.links[index];
        match link.refused(now, body, code, view) {
            Refusal::Stale | Refusal::SteppedBack | Refusal::Full => {}
            Refusal::Suspect(block) => state.out.push_back(Output::Suspect { block }),
            Refusal::Stopped => {
                let text = format!(
                    "{}: node {} holds other committed blocks at block {}; nothing is deleted",
                    state.config.log, link.peer, body.next
                );
                state.notice(Message::LogsDiverged, text);
            }
            Refusal::Hopeless => {
                let cause = Cause::Refused(code, [0; 2]);
                self.drop_link(now, index, code, cause, state);
            }
        }
    }

    fn on_resume(&mut self, index: usize, body: &Resume, state: &mut State, view: &dyn LogView) {
        let link = &mut self.links[index];
        link.peer_pause = None;
        if body.next < view.log_start() || body.next > view.log_end() {
            // S-62: a clear answer, never a silent skip.
            if let Some(connection) = link.data {
                let error = Error {
                    code: Code::OutOfRange.number(),
                    detail: view.log_start().0,
                    detail_two: view.log_end().0,
                };
                state.send(connection, error);
            }
            return;
        }
        if link.stage >= Stage::Probing && link.in_flight() == 0 && link.next != body.next {
            link.probe(body.next);
        }
    }

    /// This leader sealed a block.
    pub fn sealed(&mut self, header: &BlockHeader, state: &mut State, view: &dyn LogView) {
        let expected = BlockNo(self.sealed_first.0 + self.sealed.len() as u64);
        if header.block != expected {
            self.sealed.clear();
            self.sealed_first = header.block;
        }
        if self.sealed.len() == HELD_BLOCKS {
            self.sealed.pop_front();
            self.sealed_first = self.sealed_first.next();
        }
        let weight = credit::weight(header);
        self.sealed_bytes += weight.bytes;
        self.sealed.push_back(Sealed {
            weight,
            tick: header.last_tick,
        });
        if self.phase == Phase::Appending && header.epoch == self.epoch {
            self.epoch_block = header.block;
            self.phase = Phase::Open;
            self.backoff.succeeded();
            let text = format!("{}: leads epoch {}", state.config.log, self.epoch);
            state.notice(Message::EpochOpened, text);
        }
        self.commit(state, view);
    }

    /// Moves the high watermark as far as a majority holds it.
    pub fn commit(&mut self, state: &mut State, view: &dyn LogView) {
        if !self.is_open() || state.failed {
            return;
        }
        let own = view.durable_end();
        let mut ends: Vec<BlockNo> = self
            .links
            .iter()
            .filter(|link| link.counts(self.epoch))
            .map(|link| match link.stage {
                Stage::Down if active(Fault::StaleMajority) => own,
                _ => link.matched,
            })
            .chain([own])
            .collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let Some(by_majority) = ends.get(state.majority() - 1) else {
            return;
        };
        let end = (*by_majority).min(own);
        // Blocks of earlier epochs are committed by the first block of the own one, never alone.
        if end > self.epoch_block {
            state.commit(end);
        }
    }

    /// Everything that is due now.
    pub fn pump(&mut self, now: Time, state: &mut State, view: &dyn LogView) {
        self.clock = now;
        if !state.started || state.failed || self.is_idle(state) {
            return;
        }
        self.open(now, state, view);
        for index in 0..self.links.len() {
            self.dial(now, index, state);
            self.ask(now, index, state, view);
            self.send(now, index, state, view);
            self.note_status(now, index, state, view);
        }
        if now >= self.ping_at {
            self.ping_at = now.plus_us(state.config.heartbeat_us);
            self.ping(now, state, view);
        }
        self.hand_over(now, state, view);
    }

    /// Whether this member of an electing set neither leads nor stands.
    pub(super) fn is_idle(&self, state: &State) -> bool {
        state.config.electing && self.phase == Phase::Waiting
    }

    /// Whether it is, for others, a follower: a member that only asks whether it may stand is one.
    pub(super) fn is_following(&self, state: &State) -> bool {
        state.config.electing && matches!(self.phase, Phase::Waiting | Phase::Gather { .. })
    }

    fn dial(&mut self, now: Time, index: usize, state: &mut State) {
        let link = &mut self.links[index];
        let due = link.retry_at.is_some_and(|at| at <= now);
        if link.data.is_none() && !link.dialing && due {
            link.dialing = true;
            let peer = link.peer;
            state.out.push_back(Output::Dial { peer });
        }
    }

    /// Asks for a position, then for a promise, then begins.
    fn ask(&mut self, now: Time, index: usize, state: &mut State, view: &dyn LogView) {
        let Some(connection) = self.links[index].data else {
            return;
        };
        let may_promise = self.may_promise(index, state);
        let founding = self.is_founding();
        let (open, won) = (self.is_open(), self.has_won());
        let epoch = self.epoch;
        let link = &mut self.links[index];
        let (epoch, stage) = match link.stage {
            Stage::Connected => (Epoch(0), Stage::Asking),
            Stage::Known if may_promise => (epoch, Stage::Promising),
            Stage::Known if open => {
                link.cause = Cause::Unconfirmed;
                return;
            }
            Stage::Promised if open => return self.begin(index, state, view),
            _ => return,
        };
        link.stage = stage;
        link.waiting_since = Some(now);
        let body = Where {
            epoch,
            log_end: view.log_end(),
            founding: u8::from(founding && epoch.0 > 0),
            last_epoch: view.last_epoch(),
            won: u8::from(state.config.electing && won),
        };
        state.send(connection, body);
    }

    fn begin(&mut self, index: usize, state: &mut State, view: &dyn LogView) {
        let link = &mut self.links[index];
        let acked_before = link.matched;
        link.stopped = link.start(view);
        let lost = link.matched < acked_before && link.stopped.is_none();
        if lost {
            let text = format!(
                "{}: node {} acked up to block {acked_before} and now holds {}: lost state",
                state.config.log, link.peer, link.matched
            );
            state.notice(Message::StateLost, text);
        }
        self.commit(state, view);
    }

    /// When something is due without any input.
    pub fn poll_timeout(&self, state: &State) -> Option<Time> {
        if !state.started || state.failed || self.is_idle(state) {
            return None;
        }
        let silence = self.links.iter().filter(|link| link.data.is_some());
        let silence = silence.map(|link| silent_at(link, state));
        let retries = self
            .links
            .iter()
            .filter(|link| link.data.is_none() && !link.dialing);
        let retries = retries.filter_map(|link| link.retry_at);
        let opening = self.opening_due(state);
        silence
            .chain(retries)
            .chain(opening)
            .chain([self.ping_at])
            .min()
    }

    /// An operator pauses or resumes a link. A resumed link forgets why it had stopped.
    pub fn pause_link(&mut self, peer: NodeId, pause: bool) {
        if let Some(link) = self.links.iter_mut().find(|link| link.peer == peer) {
            link.operator_pause = pause;
            if !pause {
                link.stopped = None;
            }
        }
    }

    /// Whether an operator has paused the link to `peer`; none if there is no such link.
    pub fn is_paused(&self, peer: NodeId) -> Option<bool> {
        let link = self.links.iter().find(|link| link.peer == peer);
        link.map(|link| link.operator_pause)
    }

    /// The log met a disk error: this node leads nothing any more.
    pub fn latched(&mut self, now: Time, state: &mut State) {
        self.hand_over_failed(state);
        self.phase = Phase::Waiting;
        for index in 0..self.links.len() {
            if self.links[index].data.is_some() {
                let cause = Cause::Refused(Code::LogFailed, [0; 2]);
                self.drop_link(now, index, Code::LogFailed, cause, state);
            }
        }
    }
}

/// Whether a position can be one at all: who holds no block has none of any epoch, and nothing is
/// durable, committed or trimmed past the log end.
fn is_plausible(said: &Position) -> bool {
    let within = said.log_start.max(said.committed_end).max(said.durable_end) <= said.next;
    within && (said.next > BlockNo(0) || (said.last_epoch, said.last_crc) == (Epoch(0), 0))
}
