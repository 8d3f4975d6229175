//! One connection in use: what is unanswered on it, and the task that reads its answers.
//!
//! The lane writes, the reader settles; both share a [`Session`] and wake each other. The end of
//! the connection, however it comes, makes every unanswered batch unknown: it may have arrived.
//! The socket is written and read through short borrows, never held across an await. Read
//! `lane.rs` next.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_lite::io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use millrace::limits::FRAME_HEADER;
use millrace::wire::body::Body;
use millrace::wire::code::{Code, Retry};
use millrace::wire::frame::{self, FrameHeader};

use super::Run;
use crate::ledger::{Entry, State};

/// Answers are small: room for a thousand of them.
const READ_BYTES: usize = 64 << 10;

/// A batch on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) entry: Entry,
    pub(super) due_ns: u64,
    pub(super) sent_ns: u64,
}

/// Unanswered batches, the oldest first; an answered one in the middle is an empty place.
#[derive(Debug, Default)]
struct Window {
    places: VecDeque<Option<Pending>>,
    /// Correlation of the first place.
    first: u64,
    open: usize,
}

impl Window {
    fn push(&mut self, pending: Pending) -> u64 {
        self.places.push_back(Some(pending));
        self.open += 1;
        self.first + self.places.len() as u64 - 1
    }

    fn take(&mut self, correlation: u64) -> Option<Pending> {
        let index = correlation.checked_sub(self.first)?;
        let pending = self.places.get_mut(usize::try_from(index).ok()?)?.take()?;
        self.open -= 1;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        Some(pending)
    }
}

/// One connection in use.
pub(super) struct Session {
    stream: RefCell<TcpStream>,
    window: RefCell<Window>,
    /// The connection has ended; nothing is open on it any more.
    broken: Cell<bool>,
    /// A refusal said that this is the wrong place.
    elsewhere: Cell<bool>,
    /// A refusal said that later may be better.
    later: Cell<bool>,
    /// A batch ended other than acknowledged: its producer's count has a gap.
    gap: Cell<bool>,
    /// At least one batch was acknowledged here.
    worked: Cell<bool>,
    /// A batch was acknowledged since the lane last asked.
    acked: Cell<bool>,
    lane: RefCell<Option<Waker>>,
}

impl Session {
    /// Takes over a connected, greeted socket. Only on the executor's thread.
    pub(super) fn new(stream: std::net::TcpStream) -> Session {
        // SAFETY: the descriptor is open and owned by nobody else: `into_raw_fd` gave it up.
        let stream = unsafe { TcpStream::from_raw_fd(stream.into_raw_fd()) };
        Session {
            stream: RefCell::new(stream),
            window: RefCell::default(),
            broken: Cell::new(false),
            elsewhere: Cell::new(false),
            later: Cell::new(false),
            gap: Cell::new(false),
            worked: Cell::new(false),
            acked: Cell::new(false),
            lane: RefCell::new(None),
        }
    }

    /// Whether the lane may go on sending here.
    pub(super) fn usable(&self) -> bool {
        !self.broken.get() && !self.elsewhere.get()
    }

    /// Whether a batch was acknowledged here.
    pub(super) fn worked(&self) -> bool {
        self.worked.get()
    }

    /// Whether a batch was acknowledged since the last call.
    pub(super) fn take_acked(&self) -> bool {
        self.acked.take()
    }

    /// Whether a `Later` refusal came since the last call.
    pub(super) fn take_later(&self) -> bool {
        self.later.take()
    }

    /// Whether a batch was not acknowledged since the last call.
    pub(super) fn take_gap(&self) -> bool {
        self.gap.take()
    }

    /// Batches unanswered.
    pub(super) fn open(&self) -> usize {
        self.window.borrow().open
    }

    /// When the oldest unanswered batch was sent.
    pub(super) fn oldest_sent_ns(&self) -> Option<u64> {
        let window = self.window.borrow();
        window
            .places
            .front()
            .copied()
            .flatten()
            .map(|pending| pending.sent_ns)
    }

    /// Enters a batch about to be sent; returns its correlation.
    pub(super) fn push(&self, pending: Pending) -> u64 {
        self.window.borrow_mut().push(pending)
    }

    /// Waits until fewer than `limit` batches are unanswered or the session is not usable.
    pub(super) async fn room(&self, limit: usize) {
        self.until(|| self.open() < limit || !self.usable()).await;
    }

    /// Waits until every batch has an end.
    pub(super) async fn settled(&self) {
        self.until(|| self.open() == 0).await;
    }

    async fn until(&self, holds: impl Fn() -> bool) {
        poll_fn(|context| {
            if holds() {
                return Poll::Ready(());
            }
            *self.lane.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn wake_lane(&self) {
        if let Some(waker) = self.lane.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Writes all of `bytes`. An error means that the connection is gone.
    pub(super) async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            let part = &bytes[at..];
            let poll = |context: &mut Context<'_>| {
                Pin::new(&mut *self.stream.borrow_mut()).poll_write(context, part)
            };
            match poll_fn(poll).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => at += written,
            }
        }
        Ok(())
    }

    async fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| Pin::new(&mut *self.stream.borrow_mut()).poll_read(context, into)).await
    }

    /// Ends the connection for both sides; the reader sees it and settles what is open.
    pub(super) fn shut(&self) {
        let fd = self.stream.borrow().as_raw_fd();
        // SAFETY: the stream owns the descriptor and lives as long as this borrow.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // An error means that it has ended already.
        let _ = socket2::SockRef::from(&fd).shutdown(Shutdown::Both);
    }

    /// Closes the socket. Call once the reader has ended.
    pub(super) async fn close(&self) {
        poll_fn(|context| Pin::new(&mut *self.stream.borrow_mut()).poll_close(context))
            .await
            .unwrap_or_default();
    }

    fn settle(&self, run: &Run, correlation: u64, state: State) {
        let Some(pending) = self.window.borrow_mut().take(correlation) else {
            return;
        };
        match state {
            State::Acked(_) => {
                self.worked.set(true);
                self.acked.set(true);
            }
            State::Failed(_) | State::Unknown(_) => self.gap.set(true),
        }
        let entry = Entry {
            state,
            ..pending.entry
        };
        run.ended(entry, pending.due_ns);
    }

    fn answer(&self, run: &Run, header: &FrameHeader, body: &[u8]) -> io::Result<()> {
        match Body::decode(header.kind, body) {
            Some(Ok(Body::AppendOk(ok))) => {
                self.settle(run, header.correlation, State::Acked(ok.base_offset));
            }
            Some(Ok(Body::Error(error))) => {
                match Code::from_number(error.code).map(Code::retry) {
                    Some(Retry::Elsewhere) => self.elsewhere.set(true),
                    Some(Retry::Later) => self.later.set(true),
                    _ => {}
                }
                self.settle(run, header.correlation, State::of_code(error.code));
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(())
    }

    /// Settles the whole frames at the start of `bytes`; returns how many bytes they took.
    fn answers(&self, run: &Run, bytes: &[u8]) -> io::Result<usize> {
        let bad = |_| io::Error::from(io::ErrorKind::InvalidData);
        let mut at = 0;
        while let Some(head) = bytes[at..].first_chunk::<FRAME_HEADER>() {
            let header = frame::read_header(head).map_err(bad)?;
            let end = at + FRAME_HEADER + header.body_len + header.payload_len;
            if end - at > READ_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if bytes.len() < end {
                break;
            }
            let body = &bytes[at + FRAME_HEADER..][..header.body_len];
            frame::check(&header, head, body).map_err(bad)?;
            self.answer(run, &header, body)?;
            at = end;
        }
        Ok(at)
    }
}

/// The reader's task: settles answers until the connection ends, then everything that is left.
pub(super) async fn read_answers(run: Rc<Run>, session: Rc<Session>) {
    let mut bytes = vec![0; READ_BYTES];
    let mut filled = 0;
    while let Ok(count @ 1..) = session.read(&mut bytes[filled..]).await {
        filled += count;
        let Ok(used) = session.answers(&run, &bytes[..filled]) else {
            break;
        };
        bytes.copy_within(used..filled, 0);
        filled -= used;
        session.wake_lane();
        glommio::yield_if_needed().await;
    }
    session.broken.set(true);
    session.shut();
    loop {
        let first = session.window.borrow().first;
        if session.open() == 0 {
            break;
        }
        session.settle(&run, first, State::Unknown(0));
    }
    session.wake_lane();
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
