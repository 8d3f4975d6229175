//! The blocking driver: threads and the sockets of std. For tools.
//!
//! Every connection has a thread that reads and one that writes, every session one that keeps time;
//! all of them lend themselves to the session under one lock, which nobody holds while waiting. A
//! [`Producer`] and a [`Reader`] are shells over it. [`Client`] asks one node what it is and how it
//! is.

use super::frames::{Frames, READ_BYTES};
use super::setup::{Clock, messages, seeds};
use super::{Ack, ClientError, Message, ProducerConfig, ReaderConfig, in_time};
use crate::client::{
    Action, Ends, Event, Failure, NewRecord, Next, Producing, Reading, RecordBatch, Session, Start,
};
use crate::types::{ConnectionId, LogId, Offset, Time};
use crate::wire::body::{Body, Metadata, MetadataOk, PROTOCOL, Status};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A session that may have something for the application after each event.
trait Machine: Session + Send + 'static {
    fn settle(&mut self);
}

impl Machine for Reading {
    fn settle(&mut self) {}
}

impl Machine for Producing<Arc<Slot>> {
    fn settle(&mut self) {
        while let Some(done) = self.poll_done() {
            for (token, number) in done.tokens.into_iter().zip(0..) {
                token.set(done.outcome.clone().map(|batch| Ack {
                    shard: done.shard,
                    offset: Offset(batch.0 + number),
                    batch,
                }));
            }
        }
    }
}

type Outgoing = (Vec<u8>, Bytes);

struct Core<S> {
    session: S,
    /// What the writer of each connection is fed by.
    links: BTreeMap<ConnectionId, Link>,
    /// What the timer waits for.
    timer_at: Option<Time>,
    closed: bool,
}

struct Link {
    out: Sender<Outgoing>,
    /// To end both threads; none while connecting.
    stream: Option<TcpStream>,
}

struct Engine<S> {
    core: Mutex<Core<S>>,
    /// An event was taken in.
    changed: Condvar,
    /// The time to wake at came nearer, or all is over.
    timer: Condvar,
    clock: Clock,
}

impl<S: Machine> Engine<S> {
    /// Starts the session and waits until it knows the cluster.
    fn start(session: S, seeds: &str, timeout: Duration) -> Result<Arc<Engine<S>>, ClientError> {
        let core = Core {
            session,
            links: BTreeMap::new(),
            timer_at: None,
            closed: false,
        };
        let engine = Arc::new(Engine {
            core: Mutex::new(core),
            changed: Condvar::new(),
            timer: Condvar::new(),
            clock: Clock::new(),
        });
        engine.event(Event::Tick);
        let timer = Arc::clone(&engine);
        thread::spawn(move || timer.keep_time());
        let until = Instant::now() + timeout;
        let mut core = engine.lock();
        loop {
            if let Some(failure) = core.session.fatal() {
                let failure = failure.clone();
                engine.shut(core);
                return Err(failure.into());
            }
            if core.session.cluster().is_some() {
                drop(core);
                return Ok(engine);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let problem = core.session.problem().to_owned();
                engine.shut(core);
                return Err(ClientError::NoNode {
                    seeds: seeds.to_owned(),
                    waited_ms: timeout.as_millis(),
                    problem,
                });
            }
            core = engine.wait(core, Some(left));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core<S>> {
        self.core.lock().expect("nobody panics under the lock")
    }

    fn wait<'a>(
        &self,
        core: MutexGuard<'a, Core<S>>,
        most: Option<Duration>,
    ) -> MutexGuard<'a, Core<S>> {
        let poisoned = "nobody panics under the lock";
        match most {
            Some(most) => self.changed.wait_timeout(core, most).expect(poisoned).0,
            None => self.changed.wait(core).expect(poisoned),
        }
    }

    fn event(self: &Arc<Self>, event: Event) {
        let mut core = self.lock();
        if core.closed {
            return;
        }
        core.session.handle(self.clock.now(), event);
        self.act(&mut core);
        self.changed.notify_all();
    }

    /// Does what the session wants done. Call it after every call of the session.
    fn act(self: &Arc<Self>, core: &mut Core<S>) {
        while let Some(action) = core.session.poll_action() {
            match action {
                Action::Connect {
                    connection,
                    address,
                } => {
                    let (out, queue) = mpsc::channel();
                    core.links.insert(connection, Link { out, stream: None });
                    let engine = Arc::clone(self);
                    thread::spawn(move || engine.carry(connection, &address, &queue));
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
        let at = core.session.poll_timeout();
        let nearer = at.is_some_and(|at| core.timer_at.is_none_or(|before| at < before));
        if nearer {
            core.timer_at = at;
            self.timer.notify_one();
        }
    }

    /// Ends everything; the threads end by themselves.
    fn shut(&self, mut core: MutexGuard<'_, Core<S>>) {
        core.closed = true;
        let all: Vec<ConnectionId> = core.links.keys().copied().collect();
        all.into_iter()
            .for_each(|connection| core.close(connection));
        drop(core);
        self.timer.notify_all();
        self.changed.notify_all();
    }

    fn keep_time(self: Arc<Self>) {
        let poisoned = "nobody panics under the lock";
        let mut core = self.lock();
        while !core.closed {
            let now = self.clock.now();
            if core.session.poll_timeout().is_some_and(|at| at <= now) {
                core.session.handle(now, Event::Tick);
                self.act(&mut core);
                self.changed.notify_all();
            }
            let at = core.session.poll_timeout();
            core.timer_at = at;
            core = match at {
                None => self.timer.wait(core).expect(poisoned),
                Some(at) => {
                    let left = self
                        .clock
                        .instant(at)
                        .saturating_duration_since(Instant::now());
                    self.timer.wait_timeout(core, left).expect(poisoned).0
                }
            };
        }
    }

    /// The writer of a connection, from its beginning.
    fn carry(self: Arc<Self>, connection: ConnectionId, address: &str, queue: &Receiver<Outgoing>) {
        let mut stream = match connect(address) {
            Ok(stream) => stream,
            Err(error) => return self.event(Event::Lost(connection, error.to_string())),
        };
        {
            let mut core = self.lock();
            let (Some(link), Ok(other)) = (core.links.get_mut(&connection), stream.try_clone())
            else {
                return;
            };
            link.stream = Some(other);
        }
        let (engine, other) = (Arc::clone(&self), stream.try_clone());
        if let Ok(other) = other {
            thread::spawn(move || engine.listen(connection, other));
        }
        self.event(Event::Connected(connection));
        while let Ok((head, payload)) = queue.recv() {
            let sent = stream
                .write_all(&head)
                .and_then(|()| stream.write_all(&payload));
            if let Err(error) = sent {
                return self.end(connection, &error.to_string());
            }
        }
    }

    fn listen(self: Arc<Self>, connection: ConnectionId, mut stream: TcpStream) {
        let (mut frames, mut bytes) = (Frames::default(), vec![0; READ_BYTES]);
        let why = loop {
            match stream.read(&mut bytes) {
                Ok(0) => break "the other side closed it".to_owned(),
                Ok(count) => frames.feed(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => break error.to_string(),
            }
            if let Err(what) = frames.deliver(connection, |event| self.event(event)) {
                break what.to_owned();
            }
        };
        self.end(connection, &why);
    }

    fn end(self: &Arc<Self>, connection: ConnectionId, why: &str) {
        self.lock().close(connection);
        self.event(Event::Lost(connection, why.to_owned()));
    }
}

impl<S> Core<S> {
    fn close(&mut self, connection: ConnectionId) {
        let stream = self.links.remove(&connection).and_then(|link| link.stream);
        if let Some(stream) = stream {
            // An error means that it has ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for found in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&found, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Where the outcome of one record is put.
#[derive(Debug, Default)]
struct Slot {
    outcome: Mutex<Option<Result<Ack, Failure>>>,
    there: Condvar,
}

impl Slot {
    fn set(&self, outcome: Result<Ack, Failure>) {
        *self.outcome.lock().expect("nobody panics under the lock") = Some(outcome);
        self.there.notify_all();
    }
}

/// The outcome of one record, to come. May be dropped; the record is appended all the same.
#[derive(Debug)]
pub struct Pending(Arc<Slot>);

impl Pending {
    /// Waits for the outcome, at most for the producer's time-out.
    pub fn wait(self) -> Result<Ack, ClientError> {
        let poisoned = "nobody panics under the lock";
        let mut outcome = self.0.outcome.lock().expect(poisoned);
        loop {
            match outcome.take() {
                Some(outcome) => return outcome.map_err(ClientError::Failed),
                None => outcome = self.0.there.wait(outcome).expect(poisoned),
            }
        }
    }

    /// The outcome, if it is there; it is given once.
    pub fn poll(&self) -> Option<Result<Ack, ClientError>> {
        let outcome = self
            .0
            .outcome
            .lock()
            .expect("nobody panics under the lock")
            .take();
        outcome.map(|outcome| outcome.map_err(ClientError::Failed))
    }
}

/// Appends records. Those of one shard are in the log in the order of `send`, each once. Dropping
/// it waits, as `close` does, until every record has its outcome.
pub struct Producer {
    engine: Arc<Engine<Producing<Arc<Slot>>>>,
}

impl Producer {
    /// Connects to a cluster through any of the addresses, each `host:port`.
    pub fn connect<A: Into<String>>(
        addresses: impl IntoIterator<Item = A>,
        config: &ProducerConfig,
    ) -> Result<Producer, ClientError> {
        let seeds = seeds(addresses)?;
        let names = seeds.join(", ");
        let session = Producing::new(seeds, config.options()?);
        let engine = Engine::start(session, &names, config.connect_timeout)?;
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
    /// taken at all.
    pub fn send(&self, record: NewRecord) -> Result<Pending, ClientError> {
        let bytes = record.encoded_len();
        let mut core = self.engine.lock();
        while !core.session.has_room(bytes) {
            core = self.engine.wait(core, None);
        }
        let slot = Arc::new(Slot::default());
        let now = self.engine.clock.now();
        let taken = core.session.push(now, &record, Arc::clone(&slot));
        self.engine.act(&mut core);
        taken?;
        Ok(Pending(slot))
    }

    /// Sends what there is without lingering, and waits until every record given so far has its
    /// outcome, good or bad: at most for the time-out.
    pub fn flush(&self) {
        let mut core = self.engine.lock();
        let flush = core.session.flush(self.engine.clock.now());
        self.engine.act(&mut core);
        while !core.session.is_flushed(flush) {
            core = self.engine.wait(core, None);
        }
    }

    /// Flushes and ends the connections.
    pub fn close(self) {}
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.flush();
        self.engine.shut(self.engine.lock());
    }
}

/// Reads one shard, forward only.
pub struct Reader {
    engine: Arc<Engine<Reading>>,
    messages: VecDeque<Message>,
}

impl Reader {
    /// Connects to a cluster through any of the addresses, each `host:port`.
    pub fn connect<A: Into<String>>(
        addresses: impl IntoIterator<Item = A>,
        config: &ReaderConfig,
    ) -> Result<Reader, ClientError> {
        let seeds = seeds(addresses)?;
        let names = seeds.join(", ");
        let session = Reading::new(seeds, config.options.clone());
        let engine = Engine::start(session, &names, config.connect_timeout)?;
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
    /// follows. Asking again goes on from there. Do not mix with `next_record`: what that one took
    /// apart is not seen here.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, ClientError> {
        let mut core = self.engine.lock();
        core.session.want(self.engine.clock.now());
        loop {
            self.engine.act(&mut core);
            let next = core.session.take(self.engine.clock.now());
            if let Some(next) = next {
                self.engine.act(&mut core);
                return match next {
                    Next::Batch(batch) => Ok(Some(batch)),
                    Next::End => Ok(None),
                    Next::Failed(failure) => Err(failure.into()),
                };
            }
            core = self.engine.wait(core, None);
        }
    }

    /// The next record; none if the log ends here, unless the reader follows.
    pub fn next_record(&mut self) -> Result<Option<Message>, ClientError> {
        while self.messages.is_empty() {
            match self.next_batch()? {
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
        self.engine.shut(self.engine.lock());
    }
}

/// One node, asked for what it is and how it is.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    address: String,
    cluster: MetadataOk,
    asked: u64,
}

impl Client {
    /// Connects to a node.
    pub fn connect(address: &str) -> Result<Client, ClientError> {
        let fail = |error| ClientError::Io(address.to_owned(), in_time(error, CONNECT_TIMEOUT));
        let mut stream = connect(address).map_err(fail)?;
        stream
            .set_read_timeout(Some(CONNECT_TIMEOUT))
            .map_err(fail)?;
        stream
            .set_write_timeout(Some(CONNECT_TIMEOUT))
            .map_err(fail)?;
        let protocol = PROTOCOL;
        let (body, _) = ask(&mut stream, address, 1, &Metadata { protocol }.into())?;
        let Body::MetadataOk(cluster) = body else {
            let what = "no answer to Metadata";
            return Err(ClientError::Protocol(address.to_owned(), what));
        };
        Ok(Client {
            stream,
            address: address.to_owned(),
            cluster,
            asked: 1,
        })
    }

    /// What the node said of its cluster.
    pub fn cluster(&self) -> &MetadataOk {
        &self.cluster
    }

    /// The status of the node, as JSON.
    pub fn status(&mut self) -> Result<String, ClientError> {
        self.asked += 1;
        let question = Body::from(Status {});
        let bad = |what| ClientError::Protocol(self.address.clone(), what);
        match ask(&mut self.stream, &self.address, self.asked, &question)? {
            (Body::StatusOk(_), payload) => {
                String::from_utf8(payload.into()).map_err(|_| bad("status is no text"))
            }
            _ => Err(bad("no answer to Status")),
        }
    }
}

/// Asks and waits for the answer; a refusal is an error.
fn ask(
    stream: &mut TcpStream,
    address: &str,
    number: u64,
    question: &Body,
) -> Result<(Body, Bytes), ClientError> {
    let fail = |error| ClientError::Io(address.to_owned(), in_time(error, CONNECT_TIMEOUT));
    let head = question.encode(number, LogId::default(), 0);
    stream.write_all(&head).map_err(fail)?;
    let (mut frames, mut bytes) = (Frames::default(), vec![0; READ_BYTES]);
    loop {
        let bad = |what| ClientError::Protocol(address.to_owned(), what);
        if let Some((_, body, payload)) = frames.next().map_err(bad)? {
            return match body {
                Body::Error(error) => Err(ClientError::Failed(Failure::Refused {
                    code: crate::wire::code::Code::from_number(error.code),
                    details: [error.detail, error.detail_two],
                })),
                body => Ok((body, payload)),
            };
        }
        match stream.read(&mut bytes).map_err(fail)? {
            0 => return Err(fail(io::ErrorKind::UnexpectedEof.into())),
            count => frames.feed(&bytes[..count]),
        }
    }
}
