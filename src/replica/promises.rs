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
use crate::wire::body::{Fetch, FetchOk, Pause, Ping, Pong, Position, ReplicaMemory, Where};
use crate::wire::code::Code;

/// A `Where` that waits for a save.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) connection: ConnectionId,
    pub(super) peer: NodeId,
    pub(super) epoch: Epoch,
    pub(super) log_end: BlockNo,
    pub(super) founding: bool,
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
        if let Err(code) = self.check_where(peer, body.epoch, state) {
            let nack = state.nack(code, BlockNo(0), view.log_end(), self.receiver.limit());
            return state.send(connection, nack);
        }
        self.asked.retain(|asked| asked.connection != connection);
        self.asked.push_back(Asked {
            connection,
            peer,
            epoch: body.epoch,
            log_end: body.log_end,
            founding: body.founding != 0,
        });
        self.answer_asked(state, view);
    }

    fn check_where(&self, peer: NodeId, epoch: Epoch, state: &State) -> Result<(), Code> {
        if state.failed {
            return Err(Code::LogFailed);
        }
        if !state.may_lead(peer) {
            return Err(Code::WrongNode);
        }
        let promised = state.promise;
        let taken = epoch == promised.epoch && promised.leader.is_some_and(|node| node != peer);
        let stale = epoch.0 > 0 && (epoch < promised.epoch || taken);
        if state.started && stale && !active(Fault::ForgetFence) {
            return Err(Code::StaleEpoch);
        }
        Ok(())
    }

    /// Answers what was asked, in order, as far as no save is needed first.
    pub(super) fn answer_asked(&mut self, state: &mut State, view: &dyn LogView) {
        while state.started && state.saving.is_none() {
            let Some(asked) = self.asked.front().copied() else {
                return;
            };
            if let Err(code) = self.check_where(asked.peer, asked.epoch, state) {
                self.asked.pop_front();
                let nack = state.nack(code, BlockNo(0), view.log_end(), self.receiver.limit());
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
            let position = self.position(state, view);
            state.send(asked.connection, position);
            if let Some(reason) = self.paused {
                state.send(asked.connection, Pause { reason });
            }
        }
    }

    /// The promise for this epoch is on the disk: from here on its leader alone is followed.
    fn adopt(&mut self, asked: &Asked, state: &State) {
        if self.epoch != asked.epoch {
            self.epoch = asked.epoch;
            self.leader_committed = state.high_watermark;
            self.verified_end = state.high_watermark;
        }
        self.following = Some(asked.connection);
        self.acked = BlockNo(0);
        self.target = (!state.is_whole()).then_some(asked.log_end);
    }

    fn position(&self, state: &State, view: &dyn LogView) -> Position {
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
            limits: self.receiver.limit(),
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
            let nack = self.nack_with_hints(code, body.first, about, state, view);
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
        if body.epoch == self.epoch && self.epoch.0 > 0 && !state.failed {
            self.leader_said(body.committed_end, body.log_start);
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
