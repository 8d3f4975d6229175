//! The follower's part: promises, positions, admission, acks, credit granted.
//!
//! Owns `verified_end`: one past the last block of which a frame of the current epoch has shown
//! that this log and the leader's are the same up to there. What is acked and the high watermark
//! believed are both at most `min(durable_end, verified_end)`; a stale suffix is never acked nor
//! committed. An epoch is adopted by a `Where` alone, and answered only once its promise is saved.
//! It must never write: it says `Verdict::Write` and its owner does. Read `admit.rs` for where a
//! run belongs.

use super::admit::{self, Place, Run};
use super::credit::Receiver;
use super::output::{Promise, Refused, Verdict};
use super::pacing::Pace;
use super::pausing::Load;
use super::promises::Asked;
use super::state::State;
use super::view::LogView;
use crate::faults::{Fault, active};
use crate::types::{BlockNo, ConnectionId, Epoch, NodeId, Time};
use crate::wire::block::BlockHeader;
use crate::wire::body::{
    Body, CreditLimits, Limits, Nack, PauseReason, ReplicaMemory, Replicate, ReplicateOk,
};
use crate::wire::code::Code;
use std::collections::VecDeque;

/// A run that was written and is not yet durable.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    connection: ConnectionId,
    end: BlockNo,
    weight: CreditLimits,
    at: Time,
}

/// The run between `Verdict::Write` and `run_written`.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    run: Run,
    arrived: Arrived,
    /// The first block that was cut.
    cut: Option<BlockNo>,
    committed_end: BlockNo,
    log_start: BlockNo,
}

/// The follower's part of a replica.
#[derive(Debug)]
pub struct Follower {
    /// Data connections dialed by peers, one a peer.
    pub(super) data: Vec<(ConnectionId, NodeId)>,
    /// Control connections.
    pub(super) control: Vec<(ConnectionId, NodeId)>,
    /// The data connection whose `Where` was answered in the current epoch.
    pub(super) following: Option<ConnectionId>,
    pub(super) asked: VecDeque<Asked>,
    /// The epoch adopted.
    pub(super) epoch: Epoch,
    pub(super) verified_end: BlockNo,
    /// The leader's high watermark and log start, as far as it said in this epoch.
    pub(super) leader_committed: BlockNo,
    pub(super) leader_start: BlockNo,
    /// The newest epoch in which the leader spoke as one that has it open.
    led: Epoch,
    /// A replica that lost its memory speaks again once it was brought up to here.
    pub(super) target: Option<BlockNo>,
    pub(super) receiver: Receiver,
    /// The connection that `receiver` keeps its account of.
    pub(super) credited: Option<ConnectionId>,
    arrived: VecDeque<Arrived>,
    candidate: Option<Candidate>,
    /// The end last acknowledged on `following`.
    pub(super) acked: BlockNo,
    pub(super) paused: Option<PauseReason>,
    pub(super) load: Load,
    pub(super) pace: Pace,
    /// A run was refused because the disk is full: nothing more is granted until it is not.
    pub(super) full: bool,
    /// Why this node and its leader do not talk, if one of the two refused the other.
    pub(super) refused: Option<Refused>,
    pub(super) heard: Time,
}

impl Follower {
    pub fn new(window: CreditLimits, catch_up_bytes_per_s: u64) -> Follower {
        Follower {
            data: Vec::new(),
            control: Vec::new(),
            following: None,
            asked: VecDeque::new(),
            epoch: Epoch(0),
            verified_end: BlockNo(0),
            leader_committed: BlockNo(0),
            leader_start: BlockNo(0),
            led: Epoch(0),
            target: None,
            receiver: Receiver::new(window),
            credited: None,
            arrived: VecDeque::new(),
            candidate: None,
            acked: BlockNo(0),
            paused: None,
            load: Load::default(),
            pace: Pace::new(catch_up_bytes_per_s),
            full: false,
            refused: None,
            heard: Time(0),
        }
    }

    /// Takes up what recovery found.
    pub fn started(&mut self, now: Time, state: &State) {
        self.heard = now;
        self.epoch = state.promise.epoch;
        self.verified_end = state.high_watermark;
    }

    pub fn verified_end(&self) -> BlockNo {
        self.verified_end
    }

    /// What the leader said it has trimmed, never past the own high watermark.
    pub fn leader_start(&self, state: &State) -> BlockNo {
        self.leader_start.min(state.high_watermark)
    }

    /// The epoch that the leader has open, if it was heard of lately.
    pub fn epoch_known_open(&self, now: Time, state: &State) -> Option<Epoch> {
        let lately = now.since_us(self.heard) < state.config.rpc_timeout_us;
        let open = self.led == self.epoch && self.epoch.0 > 0;
        (lately && open).then_some(self.epoch)
    }

    /// When the leader was last heard of.
    pub fn heard(&self) -> Time {
        self.heard
    }

    /// When silence of the leader ends its connection.
    pub fn silent_at(&self, state: &State) -> Option<Time> {
        let connected = self.is_connected(state);
        connected.then(|| self.heard.plus_us(state.config.rpc_timeout_us))
    }

    /// Since when the oldest run received waits for the disk.
    pub(super) fn oldest_waiting(&self) -> Option<Time> {
        self.arrived.front().map(|arrived| arrived.at)
    }

    /// Whether a connection is one of its own.
    pub fn knows(&self, connection: ConnectionId) -> bool {
        self.peer_of(connection).is_some()
    }

    pub(super) fn peer_of(&self, connection: ConnectionId) -> Option<NodeId> {
        let known = self.data.iter().chain(&self.control);
        known
            .copied()
            .find(|(id, _)| *id == connection)
            .map(|(_, peer)| peer)
    }

    /// A peer dialed a data connection.
    pub fn data_up(
        &mut self,
        now: Time,
        peer: NodeId,
        connection: ConnectionId,
        state: &mut State,
    ) {
        if let Some((older, _)) = self.data.iter().find(|(_, known)| *known == peer).copied() {
            state.close(older, Code::Replaced);
            self.down(older);
        }
        self.data.push((connection, peer));
        if state.may_lead(peer) && !state.config.electing {
            self.heard = now;
            self.refused = None;
            self.receiver.connect();
            self.credited = Some(connection);
            self.watch_load(now, state);
        }
    }

    /// A control connection with a peer is there.
    pub fn control_up(&mut self, peer: NodeId, connection: ConnectionId) {
        self.control.retain(|(_, known)| *known != peer);
        self.control.push((connection, peer));
    }

    /// A connection is gone.
    pub fn down(&mut self, connection: ConnectionId) {
        self.data.retain(|(id, _)| *id != connection);
        self.control.retain(|(id, _)| *id != connection);
        self.asked.retain(|asked| asked.connection != connection);
        if self.following == Some(connection) {
            self.following = None;
        }
        if self.credited == Some(connection) {
            self.credited = None;
            self.load.look_at = None;
            self.pace.stop();
            self.receiver.disconnect();
        }
    }

    /// Frames without payload. True if the frame was one for a follower.
    pub fn on_body(
        &mut self,
        now: Time,
        connection: ConnectionId,
        body: &Body,
        state: &mut State,
        view: &dyn LogView,
    ) -> bool {
        let Some(peer) = self.peer_of(connection) else {
            return false;
        };
        if state.may_lead(peer) && !state.config.electing {
            self.heard = now;
        }
        match body {
            Body::Where(body) => self.on_where(connection, peer, body, state, view),
            Body::Fetch(body) => self.on_fetch(connection, peer, body, state, view),
            Body::Ping(body) => self.on_ping(connection, peer, body, state, view),
            Body::Sealed(body) if body.epoch == self.epoch && state.may_lead(peer) => {
                self.pace.hear(now, body);
            }
            Body::Sealed(_) => {}
            _ => return false,
        }
        true
    }

    pub(super) fn leader_said(&mut self, committed_end: BlockNo, log_start: BlockNo) {
        self.leader_committed = self.leader_committed.max(committed_end);
        self.leader_start = self.leader_start.max(log_start);
        self.led = self.epoch;
    }

    /// What may be acknowledged.
    pub(super) fn bound(&self, view: &dyn LogView) -> BlockNo {
        if active(Fault::AckUnbounded) {
            return view.durable_end();
        }
        view.durable_end().min(self.verified_end)
    }

    /// Believes the leader's high watermark as far as this log is known to be the leader's.
    pub(super) fn commit(&mut self, state: &mut State, view: &dyn LogView) {
        let bound = if active(Fault::CommitUnbounded) {
            view.durable_end()
        } else {
            view.durable_end().min(self.verified_end)
        };
        state.commit(self.leader_committed.min(bound));
    }

    /// A run came. Everything up to the batches' CRCs is checked here, in the fixed order.
    pub fn on_run(
        &mut self,
        now: Time,
        connection: ConnectionId,
        body: &Body,
        headers: Option<&[BlockHeader]>,
        state: &mut State,
        view: &dyn LogView,
    ) -> Verdict {
        let (Some(peer), Some(run)) = (self.peer_of(connection), Run::of(body)) else {
            return Verdict::Ignore;
        };
        let Body::Replicate(said) = body else {
            return Verdict::Ignore;
        };
        assert!(
            self.candidate.is_none(),
            "a run is judged before the next one"
        );
        let leader = state.may_lead(peer) && self.credited == Some(connection);
        let within_credit = !leader || self.receiver.arrive(run.weight(), run.count);
        if leader && !state.config.electing {
            self.heard = now;
        } else if leader && run.epoch == state.promise.epoch {
            self.hear_leader(peer, run.epoch, state);
        }
        if let Err(code) = self.check_link(connection, leader, within_credit, &run, state) {
            let about = view.log_end();
            self.refuse(code, connection, &run, about, state, view);
            if code == Code::OverCredit {
                state.close(connection, code);
                self.down(connection);
            }
            return Verdict::Refuse(code);
        }
        let headers = admit::agree(&run, headers, state.config.log);
        let (hwm, may_truncate) = (state.high_watermark, !state.config.mesh);
        let place = admit::place_from(said.log_start, &run, headers, view, (hwm, may_truncate));
        let (code, about) = match place {
            Place::Next | Place::Cut(_) | Place::Anew(_) => {
                match admit::check_place(place, &run, headers, view) {
                    Ok(()) if run.count > 0 => {
                        return self.accept((now, connection), run, place, said, view);
                    }
                    Ok(()) => return self.again(connection, &run, said, state, view),
                    Err(Code::Diverged) => {
                        (Code::Diverged, run.first.previous().unwrap_or_default())
                    }
                    Err(code) => (code, view.log_end()),
                }
            }
            Place::Held => return self.again(connection, &run, said, state, view),
            Place::Diverged(at) => (Code::Diverged, at),
            Place::OutOfSync(hints) => (Code::OutOfSync, hints.next),
            Place::Refuse(code) => (code, view.log_end()),
        };
        self.refuse(code, connection, &run, about, state, view);
        Verdict::Refuse(code)
    }

    /// Latch, link, fence.
    fn check_link(
        &self,
        connection: ConnectionId,
        leader: bool,
        within_credit: bool,
        run: &Run,
        state: &State,
    ) -> Result<(), Code> {
        if state.failed {
            return Err(Code::LogFailed);
        }
        if !leader {
            return Err(Code::WrongNode);
        }
        if !within_credit {
            return Err(Code::OverCredit);
        }
        if run.epoch < state.promise.epoch {
            let forget = active(Fault::ForgetFence);
            return if forget {
                Ok(())
            } else {
                Err(Code::StaleEpoch)
            };
        }
        // An epoch is adopted by a Where alone: without one on this connection nothing goes on.
        if run.epoch != self.epoch || self.following != Some(connection) {
            return Err(Code::NotReady);
        }
        Ok(())
    }

    fn accept(
        &mut self,
        (at, connection): (Time, ConnectionId),
        run: Run,
        place: Place,
        said: &Replicate,
        view: &dyn LogView,
    ) -> Verdict {
        let cut = match place {
            Place::Cut(from) => Some(from),
            Place::Anew(start) => Some(start.block.min(view.log_end())),
            _ => None,
        };
        self.candidate = Some(Candidate {
            run,
            arrived: Arrived {
                connection,
                end: run.end(),
                weight: run.weight(),
                at,
            },
            cut,
            committed_end: said.committed_end,
            log_start: said.log_start,
        });
        match place {
            Place::Anew(start) => Verdict::Reset { start },
            _ => Verdict::Write { cut },
        }
    }

    /// All of the run is held, or it has no blocks: `verified_end` rises, and the ack says again
    /// what is durable.
    fn again(
        &mut self,
        connection: ConnectionId,
        run: &Run,
        said: &Replicate,
        state: &mut State,
        view: &dyn LogView,
    ) -> Verdict {
        self.dispose(connection, run.weight());
        self.verified_end = self.verified_end.max(run.end());
        self.leader_said(said.committed_end, said.log_start);
        self.mind_pace(state, view);
        self.commit(state, view);
        self.remember(state, view);
        self.ack(state, view);
        Verdict::AckAgain
    }

    fn refuse(
        &mut self,
        code: Code,
        connection: ConnectionId,
        run: &Run,
        about: BlockNo,
        state: &mut State,
        view: &dyn LogView,
    ) {
        let credited = self.credited == Some(connection);
        if credited && !active(Fault::LeakCreditOnNack) {
            self.dispose(connection, run.weight());
        }
        let nack = self.nack_with_hints(code, connection, (run.first, about), state, view);
        state.send(connection, nack);
    }

    pub(super) fn nack_with_hints(
        &self,
        code: Code,
        connection: ConnectionId,
        (first, about): (BlockNo, BlockNo),
        state: &State,
        view: &dyn LogView,
    ) -> Nack {
        let hints = admit::hints_at(view, about);
        Nack {
            hint_epoch: hints.epoch,
            hint_first: hints.first,
            ..state.nack(code, first, about, self.limits_of(connection, state))
        }
    }

    /// The run of the last `Verdict::Write` is in the log.
    pub fn run_written(&mut self, state: &mut State, view: &dyn LogView) {
        let Some(candidate) = self.candidate.take() else {
            return;
        };
        if let Some(from) = candidate.cut {
            self.forget_arrived(from);
        }
        self.arrived.push_back(candidate.arrived);
        self.verified_end = self.verified_end.max(candidate.run.end());
        self.leader_said(candidate.committed_end, candidate.log_start);
        self.mind_pace(state, view);
        self.durable(state, view);
    }

    /// The run of the last `Verdict::Write` was not written: a batch of it is not sound
    /// (`BadCrc`), or the disk is full (`NoSpace`). In the second case nothing more is granted.
    pub fn run_refused(&mut self, code: Code, state: &mut State, view: &dyn LogView) {
        if let Some(candidate) = self.candidate.take() {
            if code == Code::NoSpace {
                self.full = true;
                self.receiver.hold_back(true);
            }
            let (connection, run) = (candidate.arrived.connection, candidate.run);
            let about = view.log_end();
            self.refuse(code, connection, &run, about, state, view);
        }
    }

    /// A run that waited for its cut is not in the log after all: the block before it differs from
    /// the leader's, under the same epoch.
    pub fn run_dropped(&mut self, first: BlockNo, state: &mut State, view: &dyn LogView) {
        self.forget_arrived(view.log_end());
        self.verified_end = self.verified_end.min(state.high_watermark);
        if let Some(connection) = self.following {
            let about = first.previous().unwrap_or_default();
            let code = Code::Diverged;
            let nack = self.nack_with_hints(code, connection, (first, about), state, view);
            state.send(connection, nack);
        }
    }

    /// Whether the leader of this epoch, which is open, is at the other end of a connection.
    pub(super) fn is_led_by(&self, connection: ConnectionId) -> bool {
        let open = self.led == self.epoch && self.epoch.0 > 0;
        open && self.following == Some(connection)
    }

    /// Everything from `end` on goes, and no run waits for that.
    pub(super) fn gave_way(&mut self, end: BlockNo) {
        self.forget_arrived(end);
        self.verified_end = self.verified_end.min(end);
    }

    /// What arrived past `end` will never become durable; its buffers are free with the writes.
    fn forget_arrived(&mut self, end: BlockNo) {
        let gone: Vec<Arrived> = self
            .arrived
            .iter()
            .filter(|arrived| arrived.end > end)
            .copied()
            .collect();
        self.arrived.retain(|arrived| arrived.end <= end);
        for arrived in gone {
            self.dispose(arrived.connection, arrived.weight);
        }
    }

    /// The disk has space again: the leader may go on.
    pub fn has_space(&mut self, state: &mut State) {
        if core::mem::take(&mut self.full) {
            self.receiver.hold_back(self.paused.is_some());
            self.grant(state);
        }
    }

    /// Says to the leader, also to one that only asked for the position, what it may send.
    pub(super) fn grant(&mut self, state: &mut State) -> Option<ConnectionId> {
        let placed =
            |(_, peer): &&(ConnectionId, NodeId)| state.may_lead(*peer) && !state.config.electing;
        let asking = self.data.iter().find(placed);
        let asking = asking.map(|(connection, _)| *connection);
        let connection = self.following.or(asking)?;
        let limits = self.receiver.limit();
        state.send(connection, Limits { limits });
        Some(connection)
    }

    /// `durable_end` moved: dispose of what is durable, commit, ack.
    pub fn durable(&mut self, state: &mut State, view: &dyn LogView) {
        let before = self.receiver.limit();
        while let Some(arrived) = self.arrived.front().copied() {
            if arrived.end > view.durable_end() {
                break;
            }
            self.arrived.pop_front();
            self.dispose(arrived.connection, arrived.weight);
        }
        self.commit(state, view);
        self.remember(state, view);
        if self.bound(view) > self.acked || self.receiver.limit() != before {
            self.ack(state, view);
        }
    }

    /// A replica that lost its memory and was brought up to its leader may speak again.
    pub(super) fn remember(&mut self, state: &mut State, view: &dyn LogView) {
        let reached = self
            .target
            .is_some_and(|target| view.durable_end().min(self.verified_end) >= target);
        if reached && !state.is_whole() && state.saving.is_none() && !state.failed {
            self.target = None;
            state.save(Promise {
                memory: ReplicaMemory::Whole,
                ..state.promise
            });
        }
    }

    /// A save of either part has ended.
    pub fn saved(&mut self, became_whole: bool, state: &mut State, view: &dyn LogView) {
        self.answer_asked(state, view);
        self.remember(state, view);
        if became_whole {
            self.ack(state, view);
        }
    }

    fn ack(&mut self, state: &mut State, view: &dyn LogView) {
        let Some(connection) = self.following else {
            return;
        };
        if state.failed {
            return;
        }
        let durable_end = self.bound(view);
        self.acked = self.acked.max(durable_end);
        let ack = ReplicateOk {
            epoch: self.epoch,
            durable_end,
            durable_offset: view.end_offset_of(durable_end).unwrap_or_default(),
            memory: state.promise.memory,
            limits: self.receiver.limit(),
        };
        state.send(connection, ack);
    }

    fn dispose(&mut self, connection: ConnectionId, weight: CreditLimits) {
        if self.credited == Some(connection) {
            self.receiver.dispose(weight);
        } else {
            self.receiver.dispose_older(weight);
        }
    }
}
