//! Frames from a socket: headers and bodies through a small buffer, payloads straight to theirs.
//!
//! Knows the layout of frames and of runs of blocks, nothing of what they mean. Small pieces come
//! many to a `recv` through the read buffer; a large payload is received where it will stay. A run
//! of blocks is laid out at multiples of 4096 with zeroed padding while it arrives. Read
//! `client.rs` and `peer.rs` for what happens to a frame.

use super::connection::Connection;
use super::driver::Core;
use crate::buffers::Buffers;
use crate::limits::{BLOCK_HEADER, FRAME_HEADER, READ_BUFFER_BYTES};
use crate::types::{BufferId, padded};
use crate::wire::block;
use crate::wire::body::{Body, BodyError};
use crate::wire::frame::{self, FrameError, FrameHeader};
use futures_lite::AsyncRead;
use glommio::net::TcpStream;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// A payload piece of so many bytes is received directly; smaller ones share a `recv`.
const DIRECT_BYTES: usize = READ_BUFFER_BYTES / 4;

/// The reading side of a connection.
pub(super) struct Reader {
    core: Rc<Core>,
    connection: Rc<Connection>,
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: Range<usize>,
}

/// A frame whose payload is still to be read.
pub(super) struct Incoming {
    pub(super) header: FrameHeader,
    /// None: no frame has this number.
    pub(super) body: Option<Result<Body, BodyError>>,
}

/// Why there is no further frame.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The other side has closed between two frames, or this side has.
    Ended,
    /// The socket failed, or ended within a frame.
    Io(io::Error),
    /// Bytes that are no frame.
    Frame(FrameError),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Io(error)
    }
}

impl Reader {
    pub(super) fn new(core: Rc<Core>, connection: Rc<Connection>, stream: TcpStream) -> Reader {
        Reader {
            core,
            connection,
            stream,
            buffer: vec![0; READ_BUFFER_BYTES],
            filled: 0..0,
        }
    }

    /// The next frame's header and body. The payload of the one before must have been read.
    pub(super) async fn frame(&mut self) -> Result<Incoming, ReadError> {
        if !self.fill(FRAME_HEADER).await? {
            return Err(ReadError::Ended);
        }
        let bytes = &self.buffer[self.filled.clone()];
        let head: [u8; FRAME_HEADER] = bytes[..FRAME_HEADER].try_into().expect("the length fits");
        let header = frame::read_header(&head).map_err(ReadError::Frame)?;
        let whole = FRAME_HEADER + header.body_len;
        if !self.fill(whole).await? {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let body = &self.buffer[self.filled.start + FRAME_HEADER..self.filled.start + whole];
        frame::check(&header, &head, body).map_err(ReadError::Frame)?;
        let body = Body::decode(header.kind, body);
        self.filled.start += whole;
        Ok(Incoming { header, body })
    }

    /// Has `count` bytes in the read buffer; false if the stream ended before the first of them.
    async fn fill(&mut self, count: usize) -> Result<bool, ReadError> {
        if self.filled.len() >= count {
            return Ok(true);
        }
        if self.filled.start + count > self.buffer.len() || self.filled.is_empty() {
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        while self.filled.len() < count {
            let end = self.filled.end;
            let stream = &mut self.stream;
            let space = &mut self.buffer[end..];
            let received =
                poll_fn(|context| Pin::new(&mut *stream).poll_read(context, space)).await?;
            if received == 0 {
                let between = self.filled.is_empty();
                return if between || self.connection.is_dead() {
                    Ok(false)
                } else {
                    Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
                };
            }
            self.filled.end += received;
        }
        Ok(true)
    }

    /// Reads payload to `range` of a buffer.
    pub(super) async fn read_to(
        &mut self,
        buffer: BufferId,
        mut range: Range<usize>,
    ) -> Result<(), ReadError> {
        while !range.is_empty() {
            if self.filled.is_empty() && range.len() >= DIRECT_BYTES {
                range.start += self.receive(buffer, range.clone()).await?;
                continue;
            }
            if self.filled.is_empty() && !self.fill(1).await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let count = self.filled.len().min(range.len());
            let source = &self.buffer[self.filled.start..self.filled.start + count];
            let mut pool = self.core.pool.borrow_mut();
            let target = &mut pool.bytes_mut(buffer)[range.start..range.start + count];
            target.copy_from_slice(source);
            self.filled.start += count;
            range.start += count;
        }
        Ok(())
    }

    async fn receive(&mut self, buffer: BufferId, range: Range<usize>) -> io::Result<usize> {
        let (core, stream) = (&self.core, &mut self.stream);
        let received = poll_fn(|context| {
            let mut pool = core.pool.borrow_mut();
            let target = &mut pool.bytes_mut(buffer)[range.clone()];
            Pin::new(&mut *stream).poll_read(context, target)
        })
        .await?;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(received)
    }

    /// Reads past `count` bytes of payload.
    pub(super) async fn skip(&mut self, mut count: usize) -> Result<(), ReadError> {
        while count > 0 {
            if self.filled.is_empty() && !self.fill(1).await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let step = self.filled.len().min(count);
            self.filled.start += step;
            count -= step;
        }
        Ok(())
    }

    /// Reads and drops everything until the other side closes or the connection dies.
    pub(super) async fn drain(&mut self) {
        self.filled = 0..0;
        while matches!(self.fill(1).await, Ok(true)) {
            self.filled = 0..0;
            glommio::yield_if_needed().await;
        }
    }

    /// Reads a run of `count` blocks, `payload` bytes in all, into a buffer of which it may use the
    /// first `room` bytes. A block that cannot be found, because a header before it is broken or
    /// says more than there is, leaves zeros in its place: whoever checks the run refuses it there.
    pub(super) async fn read_run(
        &mut self,
        buffer: BufferId,
        count: u32,
        payload: usize,
        room: usize,
    ) -> Result<(), ReadError> {
        let (mut left, mut at) = (payload, 0);
        for _ in 0..count {
            if left < BLOCK_HEADER || room - at < BLOCK_HEADER {
                break;
            }
            self.read_to(buffer, at..at + BLOCK_HEADER).await?;
            left -= BLOCK_HEADER;
            let header = block::read_header(&self.core.pool.borrow().bytes(buffer)[at..]);
            let Some(used) = header.ok().map(|header| header.used_len as usize) else {
                break;
            };
            // A sound header is never below its own length.
            let rest = used - BLOCK_HEADER;
            if rest > left || padded(used) > room - at {
                break;
            }
            self.read_to(buffer, at + BLOCK_HEADER..at + used).await?;
            left -= rest;
            self.zero(buffer, at + used..at + padded(used));
            at += padded(used);
            glommio::yield_if_needed().await;
        }
        if at < room {
            self.zero(buffer, at..room);
        }
        self.skip(left).await
    }

    fn zero(&self, buffer: BufferId, range: Range<usize>) {
        self.core.pool.borrow_mut().bytes_mut(buffer)[range].fill(0);
    }

    /// Waits until this core has a buffer for a client's append; none once the connection is dead.
    pub(super) async fn append_buffer(&self, len: usize) -> Option<BufferId> {
        self.wait_for(|| self.core.pool.borrow_mut().take_for_append(len))
            .await
    }

    /// Waits until this core has a buffer for a peer's blocks; none once the connection is dead.
    pub(super) async fn run_buffer(&self, len: usize) -> Option<BufferId> {
        self.wait_for(|| self.core.pool.borrow_mut().take_any(len))
            .await
    }

    async fn wait_for(&self, take: impl Fn() -> Option<BufferId>) -> Option<BufferId> {
        poll_fn(|context| {
            if self.connection.is_dead() {
                return Poll::Ready(None);
            }
            if let Some(buffer) = take() {
                return Poll::Ready(Some(buffer));
            }
            self.core.memory_is_short();
            self.core.pool.borrow_mut().wait(context.waker());
            self.connection.progress.register(context.waker());
            Poll::Pending
        })
        .await
    }

    /// Waits while `hold` says so; false once the connection is dead.
    pub(super) async fn wait_while(&self, hold: impl Fn(&Connection) -> bool) -> bool {
        poll_fn(|context| {
            if self.connection.is_ending() {
                return Poll::Ready(false);
            }
            if !hold(&self.connection) {
                return Poll::Ready(true);
            }
            self.connection.progress.register(context.waker());
            Poll::Pending
        })
        .await
    }
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReadError::Ended => f.write_str("closed"),
            ReadError::Io(error) => error.fmt(f),
            ReadError::Frame(FrameError::TooLong) => f.write_str("a frame that is too long"),
            ReadError::Frame(FrameError::Crc) => f.write_str("a frame whose CRC does not fit"),
        }
    }
}
