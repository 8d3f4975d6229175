//! What a follower promises, and what it says of itself: `Where`, `Fetch` and `Ping`.
//!
//! An epoch is adopted by a `Where` alone. Its promise names the leader it was given to, is on the
//! disk before the `Position` that tells of it, and makes every lower epoch powerless here. A log
//! without a memory promises nothing that counts: it says so in its `Position`, and speaks again
//! once its leader has brought it up (`Follower::remember`). Nothing here admits a block: see
//! `follower.rs`.

use super::follower::Follower;
use super::output::{Output, Promise, ServeFetch};
use super::state::State;
use super::view::LogView;
use crate::faults::{Fault, active};
use crate::types::{BlockNo, ConnectionId, Epoch, NodeId};
use crate::wire::body::{
    CreditLimits, Fetch, FetchOk, Pause, Ping, Pong, Position, ReplicaMemory, Where,
};
use crate::wire::code::Code;

/// A `Where` that waits for a save.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) connection: ConnectionId,
    pub(super) peer: NodeId,
    pub(super) epoch: Epoch,
    pub(super) log_end: BlockNo,
    pub(super) founding: bool,
    pub(super) last_epoch: Epoch,
    pub(super) won: bool,
}

impl Follower {
    pub(super) fn on_where(
        &mut self,
        connection: ConnectionId,
        peer: NodeId,
        body: &Where,
        state: &mut State,
        view: &dyn LogView,
    ) {
        let asked = Asked {
            connection,
            peer,
            epoch: body.epoch,
            log_end: body.log_end,
            founding: body.founding != 0,
            last_epoch: body.last_epoch,
            won: body.won != 0 && state.config.electing,
        };
        if let Err(code) = check_where(&asked, state, view) {
            let limits = self.limits_of(connection, state);
            let nack = state.nack(code, BlockNo(0), view.log_end(), limits);
            return state.send(connection, nack);
        }
        self.asked.retain(|asked| asked.connection != connection);
        self.asked.push_back(asked);
        self.answer_asked(state, view);
    }

    /// Answers what was asked, in order, as far as no save is needed first.
    pub(super) fn answer_asked(&mut self, state: &mut State, view: &dyn LogView) {
        while state.started && state.saving.is_none() {
            let Some(asked) = self.asked.front().copied() else {
                return;
            };
            if let Err(code) = check_where(&asked, state, view) {
                self.asked.pop_front();
                let limits = self.limits_of(asked.connection, state);
                let nack = state.nack(code, BlockNo(0), view.log_end(), limits);
                state.send(asked.connection, nack);
                continue;
            }
            if let Some(promise) = promise_needed(&asked, state, view) {
                return state.save(promise);
            }
            self.asked.pop_front();
            if asked.epoch.0 > 0 {
                self.adopt(&asked, state);
            }
            let position = self.position(&asked, state, view);
            state.send(asked.connection, position);
            // A candidate that only asks would not hear of the end of a pause.
            let told = !state.config.electing || self.credited == Some(asked.connection);
            if let Some(reason) = self.paused.filter(|_| told) {
                state.send(asked.connection, Pause { reason });
            }
        }
    }

    /// The promise for this epoch is on the disk: from here on its leader alone is followed.
    fn adopt(&mut self, asked: &Asked, state: &mut State) {
        if state.config.electing {
            self.turn_to(asked, state);
        }
        if self.epoch != asked.epoch {
            self.epoch = asked.epoch;
            self.leader_committed = state.high_watermark;
            self.verified_end = state.high_watermark;
        }
        self.following = Some(asked.connection);
        self.acked = BlockNo(0);
        self.target = (!state.is_whole()).then_some(asked.log_end);
    }

    /// In an electing set the account of credit goes to the leader that is promised an epoch: a
    /// former one has nothing more to say, and its connection ends.
    fn turn_to(&mut self, asked: &Asked, state: &mut State) {
        self.hear_leader(asked.peer, asked.epoch, state);
        if self.credited == Some(asked.connection) {
            return;
        }
        self.let_go(state);
        self.receiver.connect();
        self.credited = Some(asked.connection);
        self.watch_load(state.clock, state);
    }

    /// Ends the connection of the leader that was followed.
    pub(super) fn let_go(&mut self, state: &mut State) {
        if let Some(former) = self.credited {
            state.close(former, Code::NotLeader);
            self.down(former);
        }
    }

    /// The leader of `epoch`, or the candidate for it that has this node's promise, was heard.
    pub(super) fn hear_leader(&mut self, peer: NodeId, epoch: Epoch, state: &mut State) {
        if state.config.electing {
            self.heard = state.clock;
            state.hear(peer, epoch);
        }
    }

    /// What may be sent on a connection: nothing on one that is not the followed leader's.
    pub(super) fn limits_of(&self, connection: ConnectionId, state: &State) -> CreditLimits {
        match state.config.electing && self.credited != Some(connection) {
            true => CreditLimits::default(),
            false => self.receiver.limit(),
        }
    }

    fn position(&self, asked: &Asked, state: &State, view: &dyn LogView) -> Position {
        let last = view.log_end().previous().and_then(|last| view.held(last));
        Position {
            promised: state.promise.epoch,
            last_epoch: view.last_epoch(),
            last_crc: last.map(|(_, crc)| crc).unwrap_or_default(),
            next: view.log_end(),
            durable_end: view.durable_end(),
            committed_end: state.high_watermark,
            log_start: view.log_start(),
            memory: state.promise.memory,
            hears_leader: u8::from(state.hears_other_than(asked.peer)),
            limits: self.limits_of(asked.connection, state),
        }
    }

    pub(super) fn on_fetch(
        &mut self,
        connection: ConnectionId,
        peer: NodeId,
        body: &Fetch,
        state: &mut State,
        view: &dyn LogView,
    ) {
        let previous = body.first.previous();
        let epoch = previous.map_or(Some(Epoch(0)), |block| view.epoch_of(block));
        let here = body.first >= view.log_start() && body.first <= view.log_end();
        // A leader whose log ends below the start of this one asks for it without what was before.
        let begins = body.first == view.log_start() && body.prev_epoch.0 == 0;
        let code = if state.failed {
            Some(Code::LogFailed)
        } else if !state.may_lead(peer) {
            Some(Code::WrongNode)
        } else if body.epoch < state.promise.epoch {
            Some(Code::StaleEpoch)
        } else if body.epoch != self.epoch || self.following != Some(connection) {
            Some(Code::NotReady)
        } else if !here || epoch != Some(body.prev_epoch) && !begins {
            Some(Code::OutOfSync)
        } else {
            None
        };
        if let Some(code) = code {
            let about = body.first.min(view.log_end());
            let nack = self.nack_with_hints(code, connection, (body.first, about), state, view);
            return state.send(connection, nack);
        }
        let head = FetchOk {
            epoch: body.epoch,
            first: body.first,
            prev_epoch: epoch.unwrap_or(body.prev_epoch),
            committed_end: state.high_watermark,
            count: 0,
            padded_len: 0,
        };
        if body.first == view.log_end() {
            return state.send(connection, head);
        }
        state.out.push_back(Output::ServeFetch(ServeFetch {
            connection,
            from: body.first,
            end: view.log_end(),
            max_bytes: u64::from(body.max_bytes),
            head,
        }));
    }

    pub(super) fn on_ping(
        &mut self,
        connection: ConnectionId,
        peer: NodeId,
        body: &Ping,
        state: &mut State,
        view: &dyn LogView,
    ) {
        if !state.may_lead(peer) || !state.started {
            return;
        }
        let promised = state.promise;
        // A leader that is still opening its epoch names none.
        let opening = body.epoch.0 == 0 && promised.leader == Some(peer);
        if opening && promised.epoch.0 > 0 || body.epoch.0 > 0 && body.epoch >= promised.epoch {
            self.hear_leader(peer, body.epoch.max(promised.epoch), state);
        }
        if body.epoch == self.epoch && self.epoch.0 > 0 && !state.failed {
            self.leader_said(body.committed_end, body.log_start);
            self.mind_pace(state, view);
            self.commit(state, view);
        }
        let pong = Pong {
            promised: state.promise.epoch,
            // A log that was closed in the middle of a cut vouches for nothing above it.
            durable_end: match state.failed {
                true => state.high_watermark,
                false => self.bound(view),
            },
            sent_at_us: body.sent_at_us,
        };
        state.send(connection, pong);
    }
}

/// Latch, right to lead, fence, and in an election the vote: one for each epoch, to a log that is
/// at least as up to date as the one here.
fn check_where(asked: &Asked, state: &State, view: &dyn LogView) -> Result<(), Code> {
    if state.failed {
        return Err(Code::LogFailed);
    }
    if !state.may_lead(asked.peer) {
        return Err(Code::WrongNode);
    }
    let (promised, epoch) = (state.promise, asked.epoch);
    if !state.started || epoch.0 == 0 {
        return Ok(());
    }
    let other = promised.leader.is_some_and(|node| node != asked.peer);
    let taken = epoch == promised.epoch && other && !asked.won;
    if taken && active(Fault::GrantTwoVotes) {
        return Ok(());
    }
    if (epoch < promised.epoch || taken) && !active(Fault::ForgetFence) {
        return Err(Code::StaleEpoch);
    }
    let voted = asked.won || epoch == promised.epoch;
    let theirs = (asked.last_epoch, asked.log_end);
    if state.config.electing && !voted && theirs < (view.last_epoch(), view.log_end()) {
        return Err(Code::LogBehind);
    }
    Ok(())
}

/// The save that must come before `asked` may be answered.
fn promise_needed(asked: &Asked, state: &State, view: &dyn LogView) -> Option<Promise> {
    if asked.epoch.0 == 0 || asked.epoch < state.promise.epoch {
        return None;
    }
    let memory = match state.promise.memory {
        ReplicaMemory::Whole => ReplicaMemory::Whole,
        // A new log has nothing to remember; but blocks or an older promise are not a new log.
        ReplicaMemory::Blank if asked.founding && view.log_end() == BlockNo(0) => {
            ReplicaMemory::Whole
        }
        ReplicaMemory::Blank | ReplicaMemory::Lost => ReplicaMemory::Lost,
    };
    let promise = Promise {
        epoch: asked.epoch,
        leader: Some(asked.peer),
        memory,
    };
    (promise != state.promise).then_some(promise)
}
