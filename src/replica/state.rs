//! What the follower's and the leader's part of a replica share: the promise, the high watermark,
//! the queue of outputs.
//!
//! Owns the rule that a promise counts only once it is saved: `promise` is what the disk holds, and
//! one save is out at a time. Neither part may move the high watermark back. Read `follower.rs`
//! next.

use super::Config;
use super::election::Election;
use super::output::{Output, Promise, SaveToken};
use crate::types::{BlockNo, ConnectionId, Epoch, NodeId, Time};
use crate::wire::body::{Body, CreditLimits, Nack, ReplicaMemory};
use crate::wire::code::Code;
use crate::wire::message::Message;
use std::collections::VecDeque;

/// State of both parts.
#[derive(Debug)]
pub struct State {
    pub config: Config,
    /// What the checkpoint holds.
    pub promise: Promise,
    /// The save that is out.
    pub saving: Option<(SaveToken, Promise)>,
    pub high_watermark: BlockNo,
    pub started: bool,
    pub failed: bool,
    /// What an epoch that cannot be opened waits for; empty if it does not wait.
    pub waits_for: String,
    /// The latest time that any input named.
    pub clock: Time,
    pub election: Election,
    pub out: VecDeque<Output>,
    next_token: u64,
}

impl State {
    pub fn new(config: Config) -> State {
        let promise = Promise {
            epoch: Epoch(0),
            leader: None,
            memory: ReplicaMemory::Blank,
        };
        let election = Election::new(&config);
        State {
            config,
            promise,
            saving: None,
            high_watermark: BlockNo(0),
            started: false,
            failed: false,
            waits_for: String::new(),
            clock: Time(0),
            election,
            out: VecDeque::new(),
            next_token: 0,
        }
    }

    /// Members that make a majority of the set.
    pub fn majority(&self) -> usize {
        self.config.members.len() / 2 + 1
    }

    /// Members with a whole memory that must speak for the set while one that lost its memory is
    /// left out: enough to meet every majority of the past in a member other than that one.
    pub fn majority_of_others(&self) -> usize {
        self.config.members.len() + 1 - self.majority()
    }

    /// Whether this node is the only member and its memory is gone: nobody can give it back.
    pub fn is_alone_and_lost(&self) -> bool {
        self.config.members.len() == 1 && self.promise.memory == ReplicaMemory::Lost
    }

    /// Whether `peer` may open epochs of this log.
    pub fn may_lead(&self, peer: NodeId) -> bool {
        match self.config.electing {
            true => peer != self.config.node && self.config.members.contains(&peer),
            false => peer == self.config.leader,
        }
    }

    pub fn is_whole(&self) -> bool {
        self.promise.memory == ReplicaMemory::Whole
    }

    /// Saves `promise`; counts once `saved` comes with the token. No other save may be out.
    pub fn save(&mut self, promise: Promise) {
        assert!(self.saving.is_none(), "one save at a time");
        let token = SaveToken(self.next_token);
        self.next_token += 1;
        self.saving = Some((token, promise));
        self.out.push_back(Output::Save { token, promise });
    }

    /// The save with this token is on the disk. False if it is not the one that is out.
    pub fn saved(&mut self, token: SaveToken) -> bool {
        match self.saving {
            Some((out, promise)) if out == token => {
                self.promise = promise;
                self.saving = None;
                true
            }
            _ => false,
        }
    }

    /// Raises the high watermark.
    pub fn commit(&mut self, end: BlockNo) {
        if end > self.high_watermark {
            self.high_watermark = end;
            self.out.push_back(Output::Committed { end });
        }
    }

    pub fn send(&mut self, connection: ConnectionId, body: impl Into<Body>) {
        let body = body.into();
        self.out.push_back(Output::Send { connection, body });
    }

    pub fn close(&mut self, connection: ConnectionId, code: Code) {
        self.out.push_back(Output::Close { connection, code });
    }

    /// Tells what an epoch that cannot be opened waits for.
    pub fn told_to_wait(&mut self, message: Message, text: String) {
        self.notice(message, format!("{}: {text}", self.config.log));
        self.waits_for = text;
    }

    pub fn notice(&mut self, message: Message, text: String) {
        self.out.push_back(Output::Notice { message, text });
    }

    /// A refusal that says no more than its code and the promise.
    pub fn nack(&self, code: Code, first: BlockNo, next: BlockNo, limits: CreditLimits) -> Nack {
        Nack {
            code: code.number(),
            first,
            next,
            promised: self.promise.epoch,
            hint_epoch: Epoch(0),
            hint_first: BlockNo(0),
            limits,
        }
    }
}
