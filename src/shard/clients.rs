//! What clients wait for at a shard, and how they are answered.
//!
//! The queues of appends without room and of reads without records, both bounded, with what ends
//! them besides success: a deadline, a connection that is gone. See `appends.rs` and `reads.rs` for
//! the two ways from an event to an answer.

use super::appends::WaitingAppend;
use super::reads::WaitingRead;
use super::{Action, Part, Request, Shard};
use crate::limits::READ_ROOM_MS;
use crate::types::{BufferId, ConnectionId, ReadLevel, Time};
use crate::wire::body::{Body, Error};
use crate::wire::code::Code;
use std::collections::VecDeque;

/// Appends and reads that wait for something.
#[derive(Debug, Default)]
pub(super) struct Clients {
    pub(super) appends: VecDeque<WaitingAppend>,
    pub(super) reads: Vec<WaitingRead>,
}

impl Shard {
    pub(super) fn reply_error(&mut self, request: Request, code: Code, detail: [u64; 2]) {
        let body = Error {
            code: code.number(),
            detail: detail[0],
            detail_two: detail[1],
        };
        self.reply(request, body.into(), None);
    }

    pub(super) fn reply(&mut self, request: Request, body: Body, part: Option<Part>) {
        self.actions.push_back(Action::Reply {
            request,
            body,
            part,
        });
    }

    pub(super) fn release(&mut self, buffer: BufferId) {
        self.actions.push_back(Action::Release(buffer));
    }

    /// Answers what has waited too long.
    pub(super) fn expire_clients(&mut self, now: Time) {
        let expired = |deadline: Time| deadline <= now;
        for _ in 0..self.clients.appends.len() {
            let Some(append) = self.clients.appends.pop_front() else {
                break;
            };
            if expired(append.deadline) {
                self.reply_error(append.request, Code::Overloaded, [0; 2]);
                self.release(append.buffer);
            } else {
                self.clients.appends.push_back(append);
            }
        }
        for mut read in std::mem::take(&mut self.clients.reads) {
            let bound = match read.read.level {
                ReadLevel::Committed => self.committed_offset,
                ReadLevel::Local => self.log.open_end_offset(),
            };
            if !expired(read.deadline) {
                self.clients.reads.push(read);
            } else if read.read.offset >= bound {
                let ends = [bound.0, self.log.open_end_offset().0];
                self.reply_error(read.request, Code::Timeout, ends);
            } else if read.patient {
                self.reply_error(read.request, Code::Overloaded, [0; 2]);
            } else {
                // There is something to return and only room for it is missing.
                read.patient = true;
                read.deadline = now.plus_us(READ_ROOM_MS * 1000);
                self.clients.reads.push(read);
            }
        }
    }

    pub(super) fn forget_client(&mut self, connection: ConnectionId) {
        self.clients
            .reads
            .retain(|read| read.request.connection != connection);
        let gone = |append: &WaitingAppend| append.request.connection == connection;
        let buffers: Vec<BufferId> = self
            .clients
            .appends
            .iter()
            .filter(|a| gone(a))
            .map(|a| a.buffer)
            .collect();
        self.clients.appends.retain(|append| !gone(append));
        buffers.into_iter().for_each(|buffer| self.release(buffer));
    }

    pub(super) fn clients_deadline(&self) -> Option<Time> {
        let appends = self.clients.appends.iter().map(|append| append.deadline);
        appends
            .chain(self.clients.reads.iter().map(|read| read.deadline))
            .min()
    }
}
