//! Appends that were accepted and wait for their level.
//!
//! Owns who waits, for which block, until when. Each append is answered exactly once: its level is
//! reached, or the outcome is not known (deadline, fence), or the log failed. It never decides
//! whether a batch is in the log. A retry of a batch waits here on its own, at its own level, for
//! the block of the first copy. Read `leader.rs` for who moves the two ends.

use crate::limits::PENDING_APPENDS;
use crate::types::{BlockNo, ConnectionId, Level, Time};
use crate::wire::code::Code;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Accepted appends that wait for their level; `T` says where the answer goes.
#[derive(Debug)]
pub struct Pending<T> {
    waiting: BTreeMap<u64, Waiting<T>>,
    durable: BTreeSet<(BlockNo, u64)>,
    committed: BTreeSet<(BlockNo, u64)>,
    deadlines: BTreeSet<(Time, u64)>,
    durable_end: BlockNo,
    committed_end: BlockNo,
    next_id: u64,
    answers: VecDeque<(T, Result<(), Code>)>,
}

#[derive(Debug)]
struct Waiting<T> {
    token: T,
    connection: ConnectionId,
    block: BlockNo,
    level: Level,
    deadline: Time,
}

impl<T> Default for Pending<T> {
    fn default() -> Pending<T> {
        Pending::new()
    }
}

impl<T> Pending<T> {
    /// Nobody waits.
    pub fn new() -> Pending<T> {
        Pending {
            waiting: BTreeMap::new(),
            durable: BTreeSet::new(),
            committed: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            durable_end: BlockNo(0),
            committed_end: BlockNo(0),
            next_id: 0,
            answers: VecDeque::new(),
        }
    }

    /// Whether another append may be accepted; if not it is answered `Overloaded`.
    pub fn has_room(&self) -> bool {
        self.waiting.len() < PENDING_APPENDS
    }

    /// Appends that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// An append went into `block` (or is there already, if it is a retry). It is answered once the
    /// block reaches `level` on this leader, or `Unknown` at `deadline`.
    ///
    /// # Panics
    /// If there is no room: ask [`Pending::has_room`] before a batch is accepted.
    pub fn accept(
        &mut self,
        token: T,
        connection: ConnectionId,
        block: BlockNo,
        level: Level,
        deadline: Time,
    ) {
        assert!(
            self.has_room(),
            "pending appends are bounded by their caller"
        );
        let reached = match level {
            Level::Local => true,
            Level::Leader => block < self.durable_end,
            Level::Quorum => block < self.committed_end,
        };
        if reached {
            self.answers.push_back((token, Ok(())));
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.by_level(level).insert((block, id));
        self.deadlines.insert((deadline, id));
        let waiting = Waiting {
            token,
            connection,
            block,
            level,
            deadline,
        };
        self.waiting.insert(id, waiting);
    }

    /// Blocks below `end` are durable on this leader.
    pub fn durable(&mut self, end: BlockNo) {
        self.durable_end = end;
        while let Some((_, id)) = self.durable.first().filter(|(b, _)| *b < end).copied() {
            self.answer(id, Ok(()));
        }
    }

    /// Blocks below `end` are committed.
    pub fn committed(&mut self, end: BlockNo) {
        self.committed_end = end;
        while let Some((_, id)) = self.committed.first().filter(|(b, _)| *b < end).copied() {
            self.answer(id, Ok(()));
        }
    }

    /// Answers `Unknown` to everybody whose deadline has come.
    pub fn on_time(&mut self, now: Time) {
        while let Some((_, id)) = self.deadlines.first().filter(|(at, _)| *at <= now).copied() {
            self.answer(id, Err(Code::Unknown));
        }
    }

    /// Answers everybody with `code`: `Unknown` at a fence, `LogFailed` at a disk error.
    pub fn end_all(&mut self, code: Code) {
        while let Some((id, _)) = self.waiting.first_key_value() {
            let id = *id;
            self.answer(id, Err(code));
        }
    }

    /// Forgets who waits on a connection that is gone.
    pub fn drop_connection(&mut self, connection: ConnectionId) {
        let gone: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.connection == connection)
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.remove(id);
        }
    }

    /// The next answer.
    pub fn poll(&mut self) -> Option<(T, Result<(), Code>)> {
        self.answers.pop_front()
    }

    /// When the next deadline is.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    fn by_level(&mut self, level: Level) -> &mut BTreeSet<(BlockNo, u64)> {
        match level {
            Level::Local | Level::Leader => &mut self.durable,
            Level::Quorum => &mut self.committed,
        }
    }

    fn remove(&mut self, id: u64) -> T {
        let waiting = self.waiting.remove(&id).expect("an id in a set waits");
        self.by_level(waiting.level).remove(&(waiting.block, id));
        self.deadlines.remove(&(waiting.deadline, id));
        waiting.token
    }

    fn answer(&mut self, id: u64, result: Result<(), Code>) {
        let token = self.remove(id);
        self.answers.push_back((token, result));
    }
}

#[cfg(test)]
#[path = "pending_tests.rs"]
mod tests;
