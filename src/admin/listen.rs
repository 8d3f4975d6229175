//! The connections of the HTTP port: bounded in number and in time.
//!
//! They share the process's descriptors with the connections that carry records, so whoever opens
//! them by the thousand, or sends a request byte by byte, must not keep more than a few. Each has a
//! fixed time from its first byte to its last; past the bound the oldest gives way to the newest,
//! so that those who wait on purpose shut nobody out. Read `http.rs` for what is answered.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

/// Connections at one time. Tools hold one each, for a moment.
const CONNECTIONS: usize = 64;
/// How long one may live: twice what an order may take.
const LIFE: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted: the descriptors are used up.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

/// The port.
pub(super) struct Listener {
    inner: TcpListener,
    /// The newest connections, oldest first: one ends when its entry goes.
    newest: VecDeque<oneshot::Sender<()>>,
}

impl Listener {
    pub(super) fn new(inner: TcpListener) -> Listener {
        Listener {
            inner,
            newest: VecDeque::with_capacity(CONNECTIONS),
        }
    }
}

impl axum::serve::Listener for Listener {
    type Io = Bounded;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Bounded, SocketAddr) {
        loop {
            match self.inner.accept().await {
                Ok((stream, address)) => {
                    let (sender, gives_way) = oneshot::channel();
                    if self.newest.len() == CONNECTIONS {
                        self.newest.pop_front();
                    }
                    self.newest.push_back(sender);
                    let life = Box::pin(sleep(LIFE));
                    let bounded = Bounded {
                        stream,
                        life,
                        gives_way,
                    };
                    return (bounded, address);
                }
                Err(error) => {
                    tracing::debug!(%error, "no connection could be accepted on the HTTP port");
                    sleep(PAUSE_AFTER_ERROR).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// A connection that ends by itself.
pub(super) struct Bounded {
    stream: TcpStream,
    life: Pin<Box<Sleep>>,
    gives_way: oneshot::Receiver<()>,
}

impl Bounded {
    /// An error once its time is over or a newer one needs its place.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let over = self.life.as_mut().poll(context).is_ready()
            || Pin::new(&mut self.gives_way).poll(context).is_ready();
        match over {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
