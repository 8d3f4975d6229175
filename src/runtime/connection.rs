//! One TCP connection: what waits to be sent on it, and the task that sends it.
//!
//! A connection has two tasks, one that reads and one that writes, each with its own descriptor of
//! the socket. The writer gathers headers and payload parts straight from the buffers into one
//! `sendmsg`, so no payload is copied on its way out; a buffer is held until its bytes have left.
//! When a connection dies the socket is shut down, which ends both tasks; nobody waits for a dead
//! one. Read `reader.rs` for the other half.

use super::buffers::Pool;
use super::driver::Core;
use super::local::Signal;
use crate::buffers::Buffers;
use crate::limits;
use crate::shard::Part;
use crate::types::{ConnectionId, LogId, NodeId, Time};
use crate::wire::body::{Body, Channel, Error};
use crate::wire::code::Code;
use futures_lite::AsyncWrite;
use glommio::net::TcpStream;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

/// Pieces of memory given to one `sendmsg`.
const PIECES: usize = 64;
/// Bytes given to one `sendmsg`: more would not fit a socket's buffer anyway.
const GATHER_BYTES: usize = 1 << 20;

/// How long the other side may take to close after this side has said why it does.
const LINGER_US: u64 = 1_000_000;

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nobody said anything yet.
    New,
    /// A client.
    Client,
    /// A node.
    Peer {
        node: NodeId,
        channel: Channel,
        dialed: bool,
    },
}

/// A connection of this core.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) address: SocketAddr,
    fd: RawFd,
    pub(super) kind: Cell<Kind>,
    /// What is awaited (the first frame, the answer to ours, a payload that has begun, the other
    /// side's end) must be here by then.
    pub(super) due_by: Cell<Option<Time>>,
    /// It was accepted and has not yet sent a frame, or is to become that of a node and has not yet
    /// proved it: it goes first when a place is needed.
    pub(super) is_unheard: Cell<bool>,
    queue: RefCell<VecDeque<Frame>>,
    /// Memory of what waits for the socket: a buffer counts whole, once for each frame.
    held_bytes: Cell<usize>,
    /// Bytes outside buffers that wait for sockets, of all connections of the core.
    core_queued_bytes: Rc<Cell<usize>>,
    writable: Signal,
    /// Given when an answer left or was made: the reader may go on.
    pub(super) progress: Signal,
    closing: Cell<bool>,
    dead: Cell<bool>,
    /// Bytes of append of each request that waits for its answer.
    pub(super) unanswered: RefCell<BTreeMap<u64, usize>>,
    pub(super) unanswered_bytes: Cell<usize>,
    /// Logs that know of this connection.
    pub(super) known_to: RefCell<BTreeSet<usize>>,
    /// Other cores that were handed requests of this connection.
    pub(super) asked_cores: RefCell<BTreeSet<usize>>,
}

/// Who hears when a payload has left: a log of this core, or one that another core owns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Teller {
    /// By its place among this core's logs.
    Log(usize),
    /// By its owner and name.
    Owner(usize, LogId),
}

/// A frame on its way out: header and body, then its payload, copied or in buffers.
#[derive(Debug)]
struct Frame {
    head: Vec<u8>,
    copied: Vec<u8>,
    parts: Vec<Part>,
    sent: usize,
    total: usize,
    /// Bytes of memory that it keeps until it has left whole.
    held: usize,
    tell: Option<Teller>,
}

impl Connection {
    pub(super) fn new(
        id: ConnectionId,
        address: SocketAddr,
        stream: &TcpStream,
        (due_by, core_queued_bytes): (Time, Rc<Cell<usize>>),
    ) -> Connection {
        Connection {
            id,
            address,
            fd: stream.as_raw_fd(),
            kind: Cell::new(Kind::New),
            due_by: Cell::new(Some(due_by)),
            is_unheard: Cell::new(false),
            queue: RefCell::default(),
            held_bytes: Cell::new(0),
            core_queued_bytes,
            writable: Signal::default(),
            progress: Signal::default(),
            closing: Cell::new(false),
            dead: Cell::new(false),
            unanswered: RefCell::default(),
            unanswered_bytes: Cell::new(0),
            known_to: RefCell::default(),
            asked_cores: RefCell::default(),
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.get()
    }

    /// Whether the connection takes no more work: it is dead or will close once its queue has left.
    pub(super) fn is_ending(&self) -> bool {
        self.dead.get() || self.closing.get()
    }

    /// Whether it only waits for the other side to close: all that it had to say has left.
    pub(super) fn has_said_why(&self) -> bool {
        self.closing.get() && !self.has_queue()
    }

    /// Whether something waits for the socket.
    fn has_queue(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// Whether something is queued, or will be: answers of other cores are on their way.
    pub(super) fn has_words_to_say(&self) -> bool {
        let asks_others = !self.asked_cores.borrow().is_empty();
        self.has_queue() || (asks_others && !self.unanswered.borrow().is_empty())
    }

    /// Queues a frame without payload, or with one that stands behind its body in `head`.
    pub(super) fn send(&self, head: Vec<u8>) {
        if self.takes_more() {
            self.enqueue(head, Vec::new(), (Vec::new(), 0), None);
        }
    }

    /// Queues a frame whose payload is a copy. `tell` names the log that hears of it.
    pub(super) fn send_bytes(&self, head: Vec<u8>, payload: Vec<u8>, tell: Teller) {
        if self.takes_more() {
            self.enqueue(head, payload, (Vec::new(), 0), Some(tell));
        }
    }

    /// Queues a body without payload.
    pub(super) fn send_body(&self, body: impl Into<Body>, correlation: u64, log: LogId) {
        self.send(body.into().encode(correlation, log, 0));
    }

    /// Queues a refusal.
    pub(super) fn refuse(&self, code: Code, details: [u64; 2], correlation: u64, log: LogId) {
        let body = Error {
            code: code.number(),
            detail: details[0],
            detail_two: details[1],
        };
        self.send_body(body, correlation, log);
    }

    /// Queues a frame whose payload lies in buffers, which are held until it has left. `tell` names
    /// the log that hears of it.
    pub(super) fn send_parts(
        &self,
        head: Vec<u8>,
        parts: Vec<Part>,
        tell: Option<Teller>,
        pool: &mut Pool,
    ) {
        if !self.takes_more() {
            return;
        }
        parts.iter().for_each(|part| pool.hold(part.buffer));
        let buffers = parts.chunk_by(|one, next| one.buffer == next.buffer);
        let buffer_bytes = buffers.map(|same| pool.bytes(same[0].buffer).len()).sum();
        self.enqueue(head, Vec::new(), (parts, buffer_bytes), tell);
    }

    /// Whether another frame may be queued. A client's requests are not read while too many answers
    /// wait; a peer that does not take what it is sent is cut off.
    fn takes_more(&self) -> bool {
        let is_peer = matches!(self.kind.get(), Kind::Peer { .. });
        if is_peer && !self.is_ending() && self.held_bytes.get() > limits::PEER_QUEUE_BYTES {
            let (peer, bytes) = (self.address, self.held_bytes.get());
            tracing::warn!(%peer, bytes, "a peer takes nothing off its connection: closed");
            self.kill();
        }
        !self.is_ending()
    }

    fn enqueue(
        &self,
        head: Vec<u8>,
        copied: Vec<u8>,
        (parts, buffer_bytes): (Vec<Part>, usize),
        tell: Option<Teller>,
    ) {
        let payload: usize = parts.iter().map(|part| part.len).sum();
        let own = head.len() + copied.len();
        let (total, held) = (own + payload, own + buffer_bytes);
        self.held_bytes.set(self.held_bytes.get() + held);
        let all = &self.core_queued_bytes;
        all.set(all.get() + own);
        self.queue.borrow_mut().push_back(Frame {
            head,
            copied,
            parts,
            sent: 0,
            total,
            held,
            tell,
        });
        self.writable.notify();
    }

    /// Closes once everything queued has left, or by `by`.
    pub(super) fn close_after_queue(&self, by: Time) {
        self.closing.set(true);
        self.due_by.set(Some(by));
        self.writable.notify();
    }

    /// Everything has left: the other side sees the end of the stream. What it still sends is read
    /// and dropped for a while, because a close with unread bytes would take back what was just
    /// sent.
    fn end_sending(&self, now: Time) {
        // SAFETY: as in `kill`; a dead connection does not come here.
        unsafe { libc::shutdown(self.fd, libc::SHUT_WR) };
        self.due_by.set(Some(now.plus_us(LINGER_US)));
    }

    /// Ends the connection now: both its tasks wake up to find it dead.
    pub(super) fn kill(&self) {
        if self.dead.replace(true) {
            return;
        }
        // SAFETY: the descriptor is open: the reading task owns it and removes this connection from
        // the core, after which nobody calls this, before it closes it.
        unsafe { libc::shutdown(self.fd, libc::SHUT_RDWR) };
        self.writable.notify();
        self.progress.notify();
    }

    /// A frame is done or dropped.
    fn count_off(&self, frame: &Frame) {
        self.held_bytes.set(self.held_bytes.get() - frame.held);
        let all = &self.core_queued_bytes;
        all.set(all.get() - frame.head.len() - frame.copied.len());
    }

    /// Whether the other side must take answers before more of it is read: it has much to take, or
    /// something while this core has much for all.
    pub(super) fn must_take_answers(&self) -> bool {
        let all = self.core_queued_bytes.get();
        self.held_bytes.get() >= limits::CONNECTION_ANSWER_BYTES
            || (self.has_queue() && all >= limits::CORE_ANSWER_BYTES)
    }

    /// What was queued and never left, with the log that wants to hear of it.
    pub(super) fn drop_queue(&self, pool: &mut Pool) -> Vec<(Teller, usize)> {
        let frames = std::mem::take(&mut *self.queue.borrow_mut());
        let mut dropped = Vec::new();
        for frame in frames {
            self.count_off(&frame);
            dropped.extend(finish(&frame, pool));
        }
        dropped
    }
}

/// Lets go of a frame's buffers; the log and the bytes to tell it of.
fn finish(frame: &Frame, pool: &mut Pool) -> Option<(Teller, usize)> {
    frame.parts.iter().for_each(|part| pool.unhold(part.buffer));
    let bytes = frame.total - frame.head.len();
    frame
        .tell
        .filter(|_| bytes > 0)
        .map(|teller| (teller, bytes))
}

impl Frame {
    /// What is left of the frame, piece by piece.
    fn rest<'a>(&'a self, pool: &'a Pool) -> impl Iterator<Item = &'a [u8]> {
        let head = [&self.head[..], &self.copied[..]].into_iter();
        let parts = self.parts.iter().map(|part| {
            let bytes = pool.bytes(part.buffer);
            &bytes[part.start..part.start + part.len]
        });
        let mut skip = self.sent;
        head.chain(parts).filter_map(move |piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            Some(&piece[skipped..]).filter(|rest| !rest.is_empty())
        })
    }
}

/// The writing task of a connection.
pub(super) async fn write_all(core: Rc<Core>, connection: Rc<Connection>, mut stream: TcpStream) {
    loop {
        wait_for_work(&connection).await;
        if connection.is_dead() {
            break;
        }
        if connection.queue.borrow().is_empty() {
            connection.end_sending(core.clock.now());
            break;
        }
        let began = Instant::now();
        let gathered = gather(&core, &connection);
        core.note_handed_over(&connection, began);
        let count = match gathered {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_for_room(&core, &connection, &mut stream).await
            }
            done => done,
        };
        match count {
            Ok(count) => advance(&core, &connection, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::debug!(%error, peer = %connection.address, "connection lost");
                connection.kill();
                break;
            }
        }
        glommio::yield_if_needed().await;
    }
}

async fn wait_for_work(connection: &Connection) {
    poll_fn(|context| {
        let ready = connection.is_ending() || !connection.queue.borrow().is_empty();
        if ready {
            return Poll::Ready(());
        }
        connection.writable.register(context.waker());
        Poll::Pending
    })
    .await;
}

/// Sends as much of the queue as the socket takes.
fn gather(core: &Core, connection: &Connection) -> io::Result<usize> {
    let pool = core.pool.borrow();
    let queue = connection.queue.borrow();
    let mut pieces: Vec<libc::iovec> = Vec::with_capacity(PIECES);
    let mut bytes = 0;
    'frames: for frame in queue.iter() {
        for piece in frame.rest(&pool) {
            if pieces.len() == PIECES || bytes >= GATHER_BYTES {
                break 'frames;
            }
            bytes += piece.len();
            pieces.push(libc::iovec {
                iov_base: piece.as_ptr() as *mut libc::c_void,
                iov_len: piece.len(),
            });
        }
    }
    // SAFETY: a msghdr is integers and pointers; all zeros is a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the pieces are borrowed from `queue` and `pool` until the end of this function, and
    // sendmsg only reads them.
    let sent = unsafe { libc::sendmsg(connection.fd, &message, flags) };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(sent as usize)
    }
}

/// Waits until the socket takes the first piece of the queue, in whole or in part.
async fn wait_for_room(
    core: &Core,
    connection: &Connection,
    stream: &mut TcpStream,
) -> io::Result<usize> {
    poll_fn(|context| {
        if connection.is_dead() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let pool = core.pool.borrow();
        let queue = connection.queue.borrow();
        let front = queue.front().expect("only this task removes frames");
        let piece = front.rest(&pool).next().expect("a queued frame has a rest");
        Pin::new(&mut *stream).poll_write(context, piece)
    })
    .await
}

/// So many bytes have left: frames that are done let go of their buffers.
fn advance(core: &Core, connection: &Connection, count: usize) {
    let mut left = count;
    let mut told = Vec::new();
    {
        let mut pool = core.pool.borrow_mut();
        let mut queue = connection.queue.borrow_mut();
        while left > 0 {
            let front = queue.front_mut().expect("no more leaves than was queued");
            let step = left.min(front.total - front.sent);
            front.sent += step;
            left -= step;
            if front.sent == front.total {
                connection.count_off(front);
                told.extend(finish(front, &mut pool));
                queue.pop_front();
            }
        }
    }
    connection.progress.notify();
    core.memory_may_have_come_back();
    for (teller, bytes) in told {
        core.payload_left(connection.id, teller, bytes);
    }
}

/// A second descriptor of a stream's socket, for the other task.
pub(super) fn second_stream(stream: &TcpStream) -> io::Result<TcpStream> {
    // SAFETY: the descriptor is open for the length of the call.
    let fd = unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the new descriptor belongs to nobody else.
    Ok(unsafe { TcpStream::from_raw_fd(fd) })
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
