//! The blocking driver: sockets of std, one request at a time or many in flight. For tools.
//!
//! [`Client`] asks one thing at a time, follows redirections and waits until a leader is there,
//! within a time given per call. A [`Connection`] alone carries many requests in flight: one thread
//! sends, another one receives. Nothing here repeats a batch whose outcome is unknown.

use crate::client::{Outcome, Outgoing, Session, read_body};
use crate::limits::FRAME_HEADER;
use crate::types::{Level, LogId, NodeId, Offset, ReadLevel, ShardId};
use crate::wire::body::{Append, AppendOk, Body, ReadOk};
use crate::wire::code::Code;
use crate::wire::frame;
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What an answer may take beyond the time that the node was given.
const SLACK: Duration = Duration::from_secs(2);
const BACKOFF: Duration = Duration::from_millis(50);

/// Why a request did not succeed.
#[derive(Debug)]
pub enum ClientError {
    /// No connection, or it broke. The outcome of an append is unknown.
    Io(String, io::Error),
    /// Refused; the numbers belong to the code.
    Refused(Code, [u64; 2]),
    /// The node kept answering that it cannot yet, until the time was over.
    NotYet(Code),
    /// The outcome is not known.
    Unknown(Code),
    /// The other side does not speak this protocol.
    Protocol(&'static str),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Io(address, error) => write!(f, "{address}: {error}"),
            ClientError::Refused(code, [0, 0]) => {
                write!(f, "{}; mend: {}", code.text(), code.mend())
            }
            ClientError::Refused(code, [one, two]) => {
                write!(f, "{} ({one}, {two}); mend: {}", code.text(), code.mend())
            }
            ClientError::NotYet(code) => {
                write!(f, "still: {}; mend: {}", code.text(), code.mend())
            }
            ClientError::Unknown(code) => write!(f, "{}; mend: {}", code.text(), code.mend()),
            ClientError::Protocol(what) => write!(f, "not a millrace node: {what}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// One connection: frames out, frames in.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    address: String,
}

impl Connection {
    /// Connects.
    pub fn open(address: &str) -> Result<Connection, ClientError> {
        let fail = |error| ClientError::Io(address.to_owned(), error);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for found in address.to_socket_addrs().map_err(fail)? {
            match TcpStream::connect_timeout(&found, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(fail)?;
                    let address = address.to_owned();
                    return Ok(Connection { stream, address });
                }
                Err(error) => last = error,
            }
        }
        Err(fail(last))
    }

    /// The same connection for another thread.
    pub fn second(&self) -> Result<Connection, ClientError> {
        let stream = self.stream.try_clone();
        let stream = stream.map_err(|error| ClientError::Io(self.address.clone(), error))?;
        let address = self.address.clone();
        Ok(Connection { stream, address })
    }

    /// Sends a request and its payload.
    pub fn send(&mut self, request: &Outgoing, payload: &[u8]) -> Result<(), ClientError> {
        let sent = self.stream.write_all(&request.head);
        let sent = sent.and_then(|()| self.stream.write_all(payload));
        sent.map_err(|error| ClientError::Io(self.address.clone(), error))
    }

    /// The next frame, within `timeout` (none: for ever): correlation, body, payload.
    pub fn receive(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<(u64, Body, Vec<u8>), ClientError> {
        let address = self.address.clone();
        let fail = move |error| ClientError::Io(address.clone(), error);
        self.stream.set_read_timeout(timeout).map_err(&fail)?;
        let mut head = [0; FRAME_HEADER];
        self.stream.read_exact(&mut head).map_err(&fail)?;
        let broken = |_| ClientError::Protocol("a frame that is none");
        let header = frame::read_header(&head).map_err(broken)?;
        let mut body = vec![0; header.body_len];
        self.stream.read_exact(&mut body).map_err(&fail)?;
        frame::check(&header, &head, &body).map_err(broken)?;
        let mut payload = vec![0; header.payload_len];
        self.stream.read_exact(&mut payload).map_err(&fail)?;
        match Body::decode(header.kind, &body) {
            Some(Ok(body)) => Ok((header.correlation, body, payload)),
            _ => Err(ClientError::Protocol("a frame of an unknown type")),
        }
    }
}

/// A client that asks one thing at a time.
#[derive(Debug)]
pub struct Client {
    session: Session,
    seed: String,
    /// The connection in use, and where it leads.
    open: Option<(String, Connection)>,
}

/// What a read returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadBatches {
    /// Where the log stands.
    pub ok: ReadOk,
    /// Whole batches.
    pub payload: Vec<u8>,
}

impl Client {
    /// Connects to a node, any node of the cluster, and learns the cluster.
    pub fn connect(seed: &str) -> Result<Client, ClientError> {
        let mut client = Client {
            session: Session::new(),
            seed: seed.to_owned(),
            open: None,
        };
        let question = client.session.metadata();
        match client.ask(seed, &question, &[], CONNECT_TIMEOUT)? {
            (Outcome::Done(Body::MetadataOk(_)), _) => Ok(client),
            (Outcome::Refused(code, details), _) => Err(ClientError::Refused(code, details)),
            _ => Err(ClientError::Protocol("no answer to Metadata")),
        }
    }

    /// What the client knows.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The node that the client was pointed at.
    pub fn seed_node(&self) -> NodeId {
        let cluster = self.session.cluster();
        cluster.expect("a connected client knows its cluster").node
    }

    /// The status of the node that the client was pointed at, as JSON.
    pub fn status(&mut self) -> Result<String, ClientError> {
        let question = self.session.status();
        let seed = self.seed.clone();
        let (outcome, payload) = self.ask(&seed, &question, &[], CONNECT_TIMEOUT)?;
        match outcome {
            Outcome::Done(Body::StatusOk(_)) => {
                String::from_utf8(payload).map_err(|_| ClientError::Protocol("status is no text"))
            }
            Outcome::Refused(code, details) => Err(ClientError::Refused(code, details)),
            _ => Err(ClientError::Protocol("no answer to Status")),
        }
    }

    /// Appends one batch to a shard at its leader, trying for `timeout` while no leader can take
    /// it.
    pub fn append(
        &mut self,
        shard: ShardId,
        level: Level,
        timeout: Duration,
        batch: &[u8],
    ) -> Result<AppendOk, ClientError> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let route = self.session.route(shard);
            let route = route.ok_or(ClientError::Refused(Code::UnknownLog, [0, 0]))?;
            let body = Append {
                level: level.number(),
                timeout_ms: left.as_millis().clamp(1, u128::from(u32::MAX)) as u32,
            };
            let request = self.session.append(shard, body, batch.len());
            let (outcome, _) = self.ask(&route.address, &request, batch, left + SLACK)?;
            let code = match outcome {
                Outcome::Done(Body::AppendOk(ok)) => return Ok(ok),
                Outcome::Elsewhere(code) | Outcome::Later(code) => code,
                Outcome::Refused(code, details) => {
                    return Err(ClientError::Refused(code, details));
                }
                Outcome::Unknown(code) => return Err(ClientError::Unknown(code)),
                Outcome::Done(_) | Outcome::Stray => {
                    return Err(ClientError::Protocol("another answer to Append"));
                }
            };
            self.pause(code, until)?;
        }
    }

    /// As [`Client::read_log`], of the log to which the node that the client was pointed at takes
    /// appends.
    pub fn read(
        &mut self,
        (node, shard): (NodeId, ShardId),
        offset: Offset,
        level: ReadLevel,
        max_bytes: u32,
        times: (Duration, Duration),
    ) -> Result<Option<ReadBatches>, ClientError> {
        let log = self.session.log(shard);
        self.read_log((node, log), offset, level, max_bytes, times)
    }

    /// Reads whole batches at `node` from the one that holds `offset` on; an empty payload if there
    /// is nothing within `wait`. Tries for `patience` while the node is not ready.
    pub fn read_log(
        &mut self,
        (node, log): (NodeId, LogId),
        offset: Offset,
        level: ReadLevel,
        max_bytes: u32,
        (wait, patience): (Duration, Duration),
    ) -> Result<Option<ReadBatches>, ClientError> {
        let until = Instant::now() + patience;
        let wait_ms = wait.as_millis().min(u128::from(u32::MAX)) as u32;
        loop {
            let route = self.session.route_to(node, log.shard);
            let route = route.ok_or(ClientError::Refused(Code::UnknownLog, [0, 0]))?;
            let body = read_body(offset, max_bytes, wait_ms, level);
            let request = self.session.read(node, log, body);
            let (outcome, payload) = self.ask(&route.address, &request, &[], wait + SLACK)?;
            let code = match outcome {
                Outcome::Done(Body::ReadOk(ok)) => return Ok(Some(ReadBatches { ok, payload })),
                Outcome::Later(Code::Timeout) => return Ok(None),
                Outcome::Elsewhere(code) | Outcome::Later(code) => code,
                Outcome::Refused(code, details) => {
                    return Err(ClientError::Refused(code, details));
                }
                Outcome::Unknown(code) => return Err(ClientError::Unknown(code)),
                Outcome::Done(_) | Outcome::Stray => {
                    return Err(ClientError::Protocol("another answer to Read"));
                }
            };
            self.pause(code, until)?;
        }
    }

    fn pause(&self, code: Code, until: Instant) -> Result<(), ClientError> {
        if Instant::now() + BACKOFF >= until {
            return Err(ClientError::NotYet(code));
        }
        // A core that lives on another port is there at once.
        if code != Code::WrongCore {
            std::thread::sleep(BACKOFF);
        }
        Ok(())
    }

    /// Sends a request to an address and waits for its answer.
    fn ask(
        &mut self,
        address: &str,
        request: &Outgoing,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<(Outcome, Vec<u8>), ClientError> {
        let answered = self.exchange(address, request, payload, timeout);
        if answered.is_err() {
            self.open = None;
            self.session.disconnected(None);
        }
        answered
    }

    fn exchange(
        &mut self,
        address: &str,
        request: &Outgoing,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<(Outcome, Vec<u8>), ClientError> {
        if self.open.as_ref().is_none_or(|(at, _)| at != address) {
            self.open = Some((address.to_owned(), Connection::open(address)?));
        }
        let (_, connection) = self.open.as_mut().expect("opened above");
        connection.send(request, payload)?;
        loop {
            let (correlation, body, payload) = connection.receive(Some(timeout))?;
            // An error about no request is about the connection.
            let number = if correlation == 0 {
                request.correlation
            } else {
                correlation
            };
            match self.session.answer(number, body) {
                Outcome::Stray => {}
                outcome => return Ok((outcome, payload)),
            }
        }
    }
}
