//! What the shell tells a shard and what it is told to do.
//!
//! Contract of the seam. `handle` never fails and never blocks. Events of one connection arrive in
//! the order of the socket; completions of disk operations in any order. After a `PeerDown` or a
//! `Close` the connection's id is dead: late sends to it are dropped by the shell without a word.
//! Buffers named in events belong to the core from then on (see `buffers.rs`).

use crate::replica::Refused;
use crate::types::{
    BufferId, ConnectionId, Epoch, Level, LogId, NodeId, Offset, ReadLevel, Ticket,
};
use crate::wal::op::{DiskOp, DiskResult};
use crate::wire::body::{Body, Channel};
use crate::wire::capability::Capabilities;
use crate::wire::code::Code;
use crate::wire::message::Message;

/// A client's request: where its answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's connection.
    pub connection: ConnectionId,
    /// The request's number on it.
    pub correlation: u64,
}

/// Something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client appends the batch in the first `len` bytes of `buffer`. Nothing was checked but the
    /// frame.
    Append {
        /// Where the answer goes.
        request: Request,
        /// When to answer.
        level: Level,
        /// Answer `Unknown` after so long.
        timeout_ms: u32,
        /// Where the batch is.
        buffer: BufferId,
        /// Its length in bytes.
        len: usize,
    },
    /// A client reads whole batches from the one that holds `offset` on.
    Read {
        /// Where the answer goes.
        request: Request,
        /// First record wanted.
        offset: Offset,
        /// Largest payload; one batch may be larger.
        max_bytes: u32,
        /// How long to wait if there is nothing yet.
        wait_ms: u32,
        /// How far to read.
        level: ReadLevel,
        /// Epoch of the reader's last batch, which ends at `offset`; 0 if it names none.
        last_epoch: Epoch,
    },
    /// A client looks for a record time.
    Find {
        /// Where the answer goes.
        request: Request,
        /// Microseconds since the Unix epoch.
        timestamp: u64,
    },
    /// A client's connection is gone: nothing more is sent to it.
    ClientGone {
        /// Which.
        connection: ConnectionId,
    },
    /// A disk operation ended.
    Disk {
        /// Which.
        ticket: Ticket,
        /// How.
        result: DiskResult,
    },
    /// A connection with a peer is open and its Hello exchanged. A data connection is dialed by the
    /// leader of the log; a newer one of the same peer and channel replaces the older one.
    PeerUp {
        /// The peer.
        peer: NodeId,
        /// The connection.
        connection: ConnectionId,
        /// What it carries.
        channel: Channel,
        /// Whether this node dialed it.
        dialed: bool,
        /// What the peer said that it can.
        capabilities: Capabilities,
    },
    /// A peer connection is gone.
    PeerDown {
        /// Which.
        connection: ConnectionId,
    },
    /// A data connection asked for with [`Action::Dial`] could not be opened.
    DialFailed {
        /// The peer.
        peer: NodeId,
        /// What the other side said, if it refused the connection.
        why: Option<Refused>,
    },
    /// A peer's connection was refused here, or the peer refused one of this node.
    PeerRefused {
        /// The peer.
        peer: NodeId,
        /// Why.
        why: Refused,
    },
    /// A frame from a peer. For a run of blocks, `payload` names the buffer in which each block
    /// lies at a multiple of 4096 with zeroed padding, one behind the other, and the bytes they
    /// take.
    Frame {
        /// On which connection.
        connection: ConnectionId,
        /// Its typed body.
        body: Body,
        /// Its payload.
        payload: Option<(BufferId, usize)>,
    },
    /// A payload of a [`Action::Send`] or a [`Action::Reply`] has left for the socket (or was
    /// dropped with its connection).
    Sent {
        /// On which connection.
        connection: ConnectionId,
        /// Bytes of its parts.
        bytes: usize,
    },
    /// The time of `poll_timeout` has come, or the shell just wants the shard to look at the clock.
    Timer,
    /// An operator pauses (`true`) or resumes the link to `peer`.
    PauseLink {
        /// The peer.
        peer: NodeId,
        /// Whether to pause.
        pause: bool,
    },
    /// An operator wants the log read from end to end now (`read`), or just what is damaged asked
    /// for at once.
    Scrub {
        /// Whether to read.
        read: bool,
    },
    /// An operator wants `to` to lead the log, by a hand-over that no append fails by.
    Promote {
        /// Which member.
        to: NodeId,
    },
    /// An operator sets the pace at which this node lets itself be brought up.
    CatchUp {
        /// Bytes a second; 0 for no bound.
        bytes_per_s: u64,
    },
    /// A buffer of so many bytes was refused to somebody outside of the core, for example to a
    /// connection that wants to receive a run: gives back what is only kept.
    MemoryShort {
        /// Bytes wanted.
        bytes: usize,
    },
    /// Stop cleanly: take no appends, end the writes in flight, write the checkpoint, then
    /// [`Action::Stopped`].
    Stop,
}

/// A part of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it is.
    pub buffer: BufferId,
    /// First byte.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

/// Something to be done by the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Carry out a disk operation; answer with [`Event::Disk`].
    Disk(DiskOp),
    /// Send a frame to a peer: the parts, one behind the other, are its payload. The shell holds
    /// their buffers until they have left; answer with [`Event::Sent`] if there are parts.
    Send {
        /// On which connection.
        connection: ConnectionId,
        /// Typed body.
        body: Body,
        /// Payload.
        parts: Vec<Part>,
    },
    /// Answer a client. The shell holds the part's buffer until it has left; answer with
    /// [`Event::Sent`] if there is one.
    Reply {
        /// The request.
        request: Request,
        /// Typed body.
        body: Body,
        /// Payload.
        part: Option<Part>,
    },
    /// Open a data connection to `peer` for this log; answer with `PeerUp` or `DialFailed`.
    Dial {
        /// The peer.
        peer: NodeId,
    },
    /// Say `code` on a peer connection and close it. No `PeerDown` follows.
    Close {
        /// Which.
        connection: ConnectionId,
        /// Why.
        code: Code,
    },
    /// Give a buffer back once no operation holds it.
    Release(BufferId),
    /// Tell operators: one line per state change.
    Log(Notice),
    /// The log has stopped cleanly.
    Stopped,
}

/// A state change worth a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Which entry of the catalogue.
    pub message: Message,
    /// The log that it is about.
    pub log: LogId,
    /// What changed, with names and numbers.
    pub text: String,
}
