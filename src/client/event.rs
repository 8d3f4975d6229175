//! The seam of a session: what drivers tell it, what it asks of them, and how things end.
//!
//! A driver owns sockets and time and nothing else. It performs every [`Action`], tells every
//! [`Event`], and calls again at the time that the session names. Times are microseconds since the
//! Unix epoch: the wall clock at start carried on by the monotonic clock.

use crate::types::{ConnectionId, Time};
use crate::wire::body::{Body, MetadataOk};
use crate::wire::code::Code;
use bytes::Bytes;
use core::fmt;

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A connection that was asked for is there.
    Connected(ConnectionId),
    /// A connection is gone or never came, and why, in a few words.
    Lost(ConnectionId, String),
    /// A whole frame arrived.
    Frame {
        /// On which connection.
        connection: ConnectionId,
        /// The request that it answers.
        correlation: u64,
        /// Its typed body.
        body: Body,
        /// What followed the body.
        payload: Bytes,
    },
    /// The time that the session named has come.
    Tick,
}

/// What a driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a connection; tell `Connected` or `Lost`.
    Connect {
        /// Its number, never used again.
        connection: ConnectionId,
        /// Host and port.
        address: String,
    },
    /// Send a frame; frames of one connection in the order of the actions.
    Send {
        /// On which connection.
        connection: ConnectionId,
        /// Header and typed body.
        head: Vec<u8>,
        /// What follows them.
        payload: Bytes,
    },
    /// Close a connection. Nothing more needs to be told of it.
    Close(ConnectionId),
}

/// A client's side of the protocol without sockets and clock: events in, actions out.
pub trait Session {
    /// Takes in an event.
    fn handle(&mut self, now: Time, event: Event);

    /// The next thing to do.
    fn poll_action(&mut self) -> Option<Action>;

    /// When to call again with `Tick`, if nothing happens before.
    fn poll_timeout(&self) -> Option<Time>;

    /// What the cluster said of itself, once it did.
    fn cluster(&self) -> Option<&MetadataOk>;

    /// Why nothing will ever work: a node refused to talk at all.
    fn fatal(&self) -> Option<&Failure>;

    /// The last thing that kept the session from a node, for messages; may be empty.
    fn problem(&self) -> &str;
}

/// Why something that was asked for did not come about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Refused for good; it is not in the log.
    Refused {
        /// The code; none if this version does not know its number.
        code: Option<Code>,
        /// The numbers that belong to the code.
        details: [u64; 2],
    },
    /// The time was over before a node took it; it is not in the log.
    NotTaken {
        /// What a node said last, if one said anything.
        code: Option<Code>,
        /// The numbers that belong to the code.
        details: [u64; 2],
        /// What kept the session from a node, if that was it.
        problem: String,
    },
    /// The time was over without an answer, or the node itself cannot tell: it is in the log once,
    /// or not at all.
    Unknown,
    /// A record that no batch can hold.
    TooLarge {
        /// Bytes of the record as encoded.
        bytes: usize,
        /// Bytes that a record may have.
        most: usize,
        /// Whether the producer's own setting says so, and not the cluster.
        is_own: bool,
    },
    /// A key, a label or the number of labels is above 65,535.
    FieldTooLong,
    /// A shard that the cluster does not have.
    NoSuchShard {
        /// The shard.
        shard: u16,
        /// How many there are.
        shards: usize,
    },
    /// Not sent, because something before it failed and the producer was told to stop then.
    Stopped,
    /// A node of another cluster answered.
    OtherCluster {
        /// The cluster known.
        known: u32,
        /// The cluster of the node that answered.
        found: u32,
    },
    /// The record that the reader stands behind is not in the log any more.
    Truncated {
        /// The first offset that the reader has not seen as it is now.
        last_common: u64,
    },
    /// What was asked for lies outside the log.
    OutOfRange {
        /// The offset asked for.
        offset: u64,
        /// First offset kept.
        start: u64,
        /// Offset behind the last record.
        end: u64,
    },
    /// The node sent a batch that cannot be read.
    Damaged {
        /// Where the batch was expected.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl Failure {
    /// Whether what was asked for may have taken effect all the same.
    pub fn is_unknown(&self) -> bool {
        *self == Failure::Unknown
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused {
                code: Some(code),
                details,
            } => f.write_str(&code.explain(*details)),
            Failure::Refused { code: None, .. } => f.write_str(
                "refused with a code that this version does not know; \
                 mend: use a client of the node's version",
            ),
            Failure::NotTaken {
                code: Some(code),
                details,
                ..
            } => write!(f, "the time is over and still {}", code.explain(*details)),
            Failure::NotTaken { problem, .. } => write!(
                f,
                "the time is over and no node took it: {}; mend: look whether the nodes run and \
                 can be reached",
                if problem.is_empty() {
                    "no leader is known"
                } else {
                    problem
                }
            ),
            Failure::Unknown => f.write_str(&Code::Unknown.explain([0; 2])),
            other => other.fmt_local(f),
        }
    }
}

impl Failure {
    /// What this side found out by itself.
    fn fmt_local(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::TooLarge {
                bytes,
                most,
                is_own,
            } => write!(
                f,
                "the record takes {bytes} bytes, at most {most} fit a batch here; \
                 mend: make it smaller or raise {}",
                match is_own {
                    true => "max_batch_bytes of the producer",
                    false => "link.max_batch_bytes on all nodes",
                }
            ),
            Failure::FieldTooLong => f.write_str(
                "a key, a label or the number of labels is above 65,535; mend: put it in the value",
            ),
            Failure::NoSuchShard { shard, shards } => write!(
                f,
                "shard {shard} is not below {shards}, the cluster's number of shards; \
                 mend: choose another one"
            ),
            Failure::Stopped => {
                f.write_str("not sent, because something before it failed; mend: mend that first")
            }
            Failure::OtherCluster { known, found } => write!(
                f,
                "a node of cluster {found} answered, not of cluster {known}; \
                 mend: correct the addresses"
            ),
            Failure::Truncated { last_common } => write!(
                f,
                "records already read were cut from this node's log, which differs from \
                 {last_common} on; mend: take back what came from there on, then seek to it"
            ),
            Failure::OutOfRange { offset, start, end } => write!(
                f,
                "offset {offset} is not in the log, which holds {start} to {end}; \
                 mend: seek to one in between"
            ),
            Failure::Damaged { offset, what } => write!(
                f,
                "the batch at offset {offset} cannot be read: {what}; \
                 mend: read it at another node, or with a newer client"
            ),
            _ => unreachable!("the others are written by fmt"),
        }
    }
}
