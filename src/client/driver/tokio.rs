//! The driver for applications on tokio: tasks and the sockets of tokio.
//!
//! Every connection has a task that reads and one that writes, every session one that keeps time.
//! The session is under a lock that nobody holds across an await. Must be used within a runtime
//! whose I/O and time drivers are on. A [`Producer`] and a [`Reader`] are shells over the session;
//! what decides is in `producing.rs` and `reading.rs`.

use super::frames::{Frames, READ_BYTES};
use super::setup::{Clock, messages, seeds};
use super::{Ack, ClientError, Message, ProducerConfig, ReaderConfig};
use crate::client::{
    Action, Ends, Event, Failure, NewRecord, Next, Producing, Reading, RecordBatch, Session, Start,
};
use crate::types::{ConnectionId, Offset, Time};
use crate::wire::body::MetadataOk;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;

type Token = oneshot::Sender<Result<Ack, Failure>>;
type Outgoing = (Vec<u8>, Bytes);

/// A session that may have something for the application after each event.
trait Machine: Session + Send + 'static {
    fn settle(&mut self);
    /// Whether records wait for their outcome.
    fn is_idle(&self) -> bool;
}

impl Machine for Reading {
    fn settle(&mut self) {}

    fn is_idle(&self) -> bool {
        true
    }
}

impl Machine for Producing<Token> {
    fn settle(&mut self) {
        while let Some(done) = self.poll_done() {
            for (token, number) in done.tokens.into_iter().zip(0..) {
                // Whoever dropped the receiver does not want to know.
                let _ = token.send(done.outcome.clone().map(|batch| Ack {
                    shard: done.shard,
                    offset: Offset(batch.0 + number),
                    batch,
                }));
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.held_bytes() == 0
    }
}

struct Link {
    out: mpsc::UnboundedSender<Outgoing>,
    tasks: Vec<AbortHandle>,
}

struct Core<S> {
    session: S,
    links: BTreeMap<ConnectionId, Link>,
    /// What the timer waits for.
    timer_at: Option<Time>,
    /// The application has let go of it: it ends once nothing waits for an outcome.
    dropped: bool,
    closed: bool,
}

struct Engine<S> {
    core: Mutex<Core<S>>,
    /// An event was taken in.
    changed: Notify,
    /// What to wake at may have come nearer, or all is over.
    timer: Notify,
    clock: Clock,
}

impl<S: Machine> Engine<S> {
    /// Starts the session and waits until it knows the cluster.
    async fn start(
        session: S,
        seeds: &str,
        timeout: Duration,
    ) -> Result<Arc<Engine<S>>, ClientError> {
        let core = Core {
            session,
            links: BTreeMap::new(),
            timer_at: None,
            dropped: false,
            closed: false,
        };
        let engine = Arc::new(Engine {
            core: Mutex::new(core),
            changed: Notify::new(),
            timer: Notify::new(),
            clock: Clock::new(),
        });
        engine.event(Event::Tick);
        tokio::spawn(Arc::clone(&engine).keep_time());
        let known = engine.until(|core| {
            if let Some(failure) = core.session.fatal() {
                return Some(Err(ClientError::Failed(failure.clone())));
            }
            core.session.cluster().map(|_| Ok(()))
        });
        let known = tokio::time::timeout(timeout, known).await;
        let known = known.unwrap_or_else(|_| {
            Err(ClientError::NoNode {
                seeds: seeds.to_owned(),
                waited_ms: timeout.as_millis(),
                problem: engine.lock().session.problem().to_owned(),
            })
        });
        if let Err(error) = known {
            engine.shut(&mut engine.lock());
            return Err(error);
        }
        Ok(engine)
    }

    fn lock(&self) -> MutexGuard<'_, Core<S>> {
        self.core.lock().expect("nobody panics under the lock")
    }

    /// Waits until `there` finds something; it is asked after every event.
    async fn until<V>(&self, mut there: impl FnMut(&mut Core<S>) -> Option<V>) -> V {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no event is missed.
            changed.as_mut().enable();
            if let Some(value) = there(&mut self.lock()) {
                return value;
            }
            changed.await;
        }
    }

    fn event(self: &Arc<Self>, event: Event) {
        let mut core = self.lock();
        if !core.closed {
            core.session.handle(self.clock.now(), event);
            self.act(&mut core);
        }
    }

    /// Does what the session wants done. Call it after every call of the session.
    fn act(self: &Arc<Self>, core: &mut Core<S>) {
        while let Some(action) = core.session.poll_action() {
            match action {
                Action::Connect {
                    connection,
                    address,
                } => {
                    let (out, queue) = mpsc::unbounded_channel();
                    let carry = Arc::clone(self).carry(connection, address, queue);
                    let tasks = vec![tokio::spawn(carry).abort_handle()];
                    core.links.insert(connection, Link { out, tasks });
                }
                Action::Send {
                    connection,
                    head,
                    payload,
                } => {
                    if let Some(link) = core.links.get(&connection) {
                        // A writer that has ended tells so by itself.
                        let _ = link.out.send((head, payload));
                    }
                }
                Action::Close(connection) => core.close(connection),
            }
        }
        core.session.settle();
        if core.dropped && core.session.is_idle() {
            self.shut(core);
        }
        self.changed.notify_waiters();
        let at = core.session.poll_timeout();
        if at.is_some_and(|at| core.timer_at.is_none_or(|before| at < before)) {
            core.timer_at = at;
            self.timer.notify_one();
        }
    }

    fn shut(&self, core: &mut Core<S>) {
        core.closed = true;
        let all: Vec<ConnectionId> = core.links.keys().copied().collect();
        all.into_iter()
            .for_each(|connection| core.close(connection));
        self.timer.notify_one();
    }

    async fn keep_time(self: Arc<Self>) {
        loop {
            let at = {
                let mut core = self.lock();
                let now = self.clock.now();
                if !core.closed && core.session.poll_timeout().is_some_and(|at| at <= now) {
                    core.session.handle(now, Event::Tick);
                    self.act(&mut core);
                }
                if core.closed {
                    return;
                }
                core.timer_at = core.session.poll_timeout();
                core.timer_at
            };
            let nearer = self.timer.notified();
            match at.map(|at| self.clock.instant(at)) {
                None => nearer.await,
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    // Either way the time is looked at again.
                    let _ = tokio::time::timeout(left, nearer).await;
                }
            }
        }
    }

    /// The writer of a connection, from its beginning.
    async fn carry(
        self: Arc<Self>,
        connection: ConnectionId,
        address: String,
        mut queue: mpsc::UnboundedReceiver<Outgoing>,
    ) {
        let stream = TcpStream::connect(&address).await;
        let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        let (reading, writing) = match stream {
            Ok(stream) => stream.into_split(),
            Err(error) => return self.event(Event::Lost(connection, error.to_string())),
        };
        {
            let mut core = self.lock();
            let Some(link) = core.links.get_mut(&connection) else {
                return;
            };
            let listen = Arc::clone(&self).listen(connection, reading);
            link.tasks.push(tokio::spawn(listen).abort_handle());
        }
        self.event(Event::Connected(connection));
        while let Some((head, payload)) = queue.recv().await {
            let mut sent = write_all(&writing, &head).await;
            if sent.is_ok() {
                sent = write_all(&writing, &payload).await;
            }
            if let Err(error) = sent {
                return self.end(connection, &error.to_string());
            }
        }
    }

    async fn listen(self: Arc<Self>, connection: ConnectionId, stream: OwnedReadHalf) {
        let (mut frames, mut bytes) = (Frames::default(), vec![0; READ_BYTES]);
        let why = loop {
            match read(&stream, &mut bytes).await {
                Ok(0) => break "the other side closed it".to_owned(),
                Ok(count) => frames.feed(&bytes[..count]),
                Err(error) => break error.to_string(),
            }
            if let Err(what) = frames.deliver(connection, |event| self.event(event)) {
                break what.to_owned();
            }
        };
        self.end(connection, &why);
    }

    fn end(self: &Arc<Self>, connection: ConnectionId, why: &str) {
        self.event(Event::Lost(connection, why.to_owned()));
        self.lock().close(connection);
    }
}

impl<S> Core<S> {
    fn close(&mut self, connection: ConnectionId) {
        if let Some(link) = self.links.remove(&connection) {
            link.tasks.iter().for_each(AbortHandle::abort);
        }
    }
}

async fn write_all(stream: &OwnedWriteHalf, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn read(stream: &OwnedReadHalf, into: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

/// The outcome of one record, to come, at most after the producer's time-out. May be dropped; the
/// record is appended all the same.
#[derive(Debug)]
pub struct Pending(oneshot::Receiver<Result<Ack, Failure>>);

impl Future for Pending {
    type Output = Result<Ack, ClientError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Without a sender the runtime has ended in between: nobody knows.
        let outcome = Pin::new(&mut self.0).poll(context);
        outcome.map(|outcome| outcome.unwrap_or(Err(Failure::Unknown)).map_err(Into::into))
    }
}

/// Appends records. Those of one shard are in the log in the order of `send`, each once. A dropped
/// producer goes on in the background until every record has its outcome, as long as the runtime
/// lives; `close` waits for that.
pub struct Producer {
    engine: Arc<Engine<Producing<Token>>>,
}

impl Producer {
    /// Connects to a cluster through any of the addresses, each `host:port`.
    pub async fn connect<A: Into<String>>(
        addresses: impl IntoIterator<Item = A>,
        config: &ProducerConfig,
    ) -> Result<Producer, ClientError> {
        let seeds = seeds(addresses)?;
        let names = seeds.join(", ");
        let session = Producing::new(seeds, config.options()?);
        let engine = Engine::start(session, &names, config.connect_timeout).await?;
        Ok(Producer { engine })
    }

    /// What the cluster said of itself.
    pub fn cluster(&self) -> MetadataOk {
        let core = self.engine.lock();
        core.session
            .cluster()
            .expect("connect waits for it")
            .clone()
    }

    /// Gives a record to its batch; waits while there is no room. An error means that it was not
    /// taken at all. What is returned tells how the record ended.
    pub async fn send(&self, record: NewRecord) -> Result<Pending, ClientError> {
        let bytes = record.encoded_len();
        let (token, outcome) = oneshot::channel();
        let mut token = Some(token);
        let engine = &self.engine;
        let taken = engine.until(|core| {
            if !core.session.has_room(bytes) {
                return None;
            }
            let token = token.take()?;
            let taken = core.session.push(engine.clock.now(), &record, token);
            engine.act(core);
            Some(taken)
        });
        taken.await?;
        Ok(Pending(outcome))
    }

    /// Sends what there is without lingering, and waits until every record given so far has its
    /// outcome, good or bad: at most for the time-out.
    pub async fn flush(&self) {
        let flush = {
            let mut core = self.engine.lock();
            let flush = core.session.flush(self.engine.clock.now());
            self.engine.act(&mut core);
            flush
        };
        let flushed =
            |core: &mut Core<Producing<Token>>| core.session.is_flushed(flush).then_some(());
        self.engine.until(flushed).await;
    }

    /// Flushes and ends the connections.
    pub async fn close(self) {
        self.flush().await;
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let mut core = self.engine.lock();
        core.dropped = true;
        if core.session.is_idle() {
            self.engine.shut(&mut core);
        } else if tokio::runtime::Handle::try_current().is_ok() {
            core.session.flush(self.engine.clock.now());
            self.engine.act(&mut core);
        }
    }
}

/// Reads one shard, forward only.
pub struct Reader {
    engine: Arc<Engine<Reading>>,
    messages: VecDeque<Message>,
}

impl Reader {
    /// Connects to a cluster through any of the addresses, each `host:port`.
    pub async fn connect<A: Into<String>>(
        addresses: impl IntoIterator<Item = A>,
        config: &ReaderConfig,
    ) -> Result<Reader, ClientError> {
        let seeds = seeds(addresses)?;
        let names = seeds.join(", ");
        let session = Reading::new(seeds, config.options.clone());
        let engine = Engine::start(session, &names, config.connect_timeout).await?;
        Ok(Reader {
            engine,
            messages: VecDeque::new(),
        })
    }

    /// What the cluster said of itself.
    pub fn cluster(&self) -> MetadataOk {
        let core = self.engine.lock();
        core.session
            .cluster()
            .expect("connect waits for it")
            .clone()
    }

    /// The next records that were appended together; none if the log ends here, unless the reader
    /// follows. Asking again goes on from there; so does a call after one that was given up. Do not
    /// mix with `next_record`: what that one took apart is not seen here.
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>, ClientError> {
        let engine = &self.engine;
        {
            let mut core = engine.lock();
            core.session.want(engine.clock.now());
            engine.act(&mut core);
        }
        let next = engine.until(|core| {
            let next = core.session.take(engine.clock.now());
            if next.is_some() {
                engine.act(core);
            }
            next
        });
        match next.await {
            Next::Batch(batch) => Ok(Some(batch)),
            Next::End => Ok(None),
            Next::Failed(failure) => Err(failure.into()),
        }
    }

    /// The next record; none if the log ends here, unless the reader follows.
    pub async fn next_record(&mut self) -> Result<Option<Message>, ClientError> {
        while self.messages.is_empty() {
            match self.next_batch().await? {
                Some(batch) => self.messages.extend(messages(&batch)),
                None => return Ok(None),
            }
        }
        Ok(self.messages.pop_front())
    }

    /// Where the log ended when there was last nothing more to read. None before that, and of a
    /// node that does not say.
    pub fn ends(&self) -> Option<Ends> {
        self.engine.lock().session.ends()
    }

    /// Goes on from another place; the way on after `Truncated` and `OutOfRange`.
    pub fn seek(&mut self, start: Start) {
        self.messages.clear();
        self.engine.lock().session.seek(start);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.engine.shut(&mut self.engine.lock());
    }
}
