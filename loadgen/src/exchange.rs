//! One request, one answer, over a blocking socket: who leads what, and how a node is.
//!
//! For all that is not the load itself: it may wait, so it must never run on the executor's own
//! thread. Every wait is bounded. A stream that it hands out has exchanged its Metadata and goes on
//! in `driver/session.rs`, which is to be read next.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use millrace::limits::FRAME_HEADER;
use millrace::types::{LogId, NodeId, ShardId};
use millrace::wire::body::{Body, Metadata, MetadataOk, PROTOCOL, Status};
use millrace::wire::code::Code;
use millrace::wire::frame;

/// How long a connect and any answer may take.
const WAIT: Duration = Duration::from_secs(2);

/// Connects to `address` (`host:port`), `ports` above its port.
pub fn connect(address: &str, ports: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(
        io::ErrorKind::NotFound,
        format!("{address}: the name has no address"),
    );
    for mut address in address.to_socket_addrs()? {
        let Some(port) = address.port().checked_add(ports) else {
            return Err(io::Error::other(format!("{address}: no such port")));
        };
        address.set_port(port);
        match open(&address) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
        }
    }
    Err(last)
}

fn open(address: &SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, WAIT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(WAIT))?;
    stream.set_write_timeout(Some(WAIT))?;
    Ok(stream)
}

/// Sends `body` and returns the answer with its payload.
pub fn request(stream: &mut TcpStream, body: &Body) -> io::Result<(Body, Vec<u8>)> {
    stream.write_all(&body.encode(0, LogId::default(), 0))?;
    let mut head = [0; FRAME_HEADER];
    stream.read_exact(&mut head)?;
    if head.starts_with(b"HTTP/") {
        return Err(io::Error::other(frame::IS_HTTP));
    }
    let header = frame::read_header(&head).map_err(broken)?;
    let mut rest = vec![0; header.body_len + header.payload_len];
    stream.read_exact(&mut rest)?;
    let payload = rest.split_off(header.body_len);
    frame::check(&header, &head, &rest).map_err(broken)?;
    match Body::decode(header.kind, &rest) {
        Some(Ok(Body::Error(error))) => {
            let code = Code::from_number(error.code);
            let text = code.map_or("a code unknown here", Code::text);
            Err(io::Error::other(format!(
                "refused: {text} ({})",
                error.code
            )))
        }
        Some(Ok(body)) => Ok((body, payload)),
        _ => Err(broken("a frame unknown here")),
    }
}

fn broken(what: impl std::fmt::Debug) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("bad answer: {what:?}"))
}

/// Asks who is here and who leads what.
pub fn metadata(stream: &mut TcpStream) -> io::Result<MetadataOk> {
    let ask = Body::Metadata(Metadata { protocol: PROTOCOL });
    match request(stream, &ask)?.0 {
        Body::MetadataOk(answer) if answer.protocol == PROTOCOL => Ok(answer),
        Body::MetadataOk(answer) => Err(io::Error::other(format!(
            "the node speaks protocol {}, this program {PROTOCOL}",
            answer.protocol
        ))),
        other => Err(broken(other.name())),
    }
}

/// Asks the nodes in turn who is here; the last one's error if none answers.
pub fn any_metadata(nodes: &[String]) -> io::Result<MetadataOk> {
    let mut last = io::Error::other("no node is named");
    for address in nodes {
        match connect(address, 0).and_then(|mut stream| metadata(&mut stream)) {
            Ok(answer) => return Ok(answer),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A node's status, as the JSON that it sends.
pub fn status(address: &str) -> io::Result<serde_json::Value> {
    let mut stream = connect(address, 0)?;
    metadata(&mut stream)?;
    let (_, payload) = request(&mut stream, &Body::Status(Status {}))?;
    serde_json::from_slice(&payload).map_err(io::Error::other)
}

/// A connection to the leader of `log`, at the port of the core that owns it, Metadata exchanged.
pub fn to_leader(nodes: &[String], log: LogId) -> io::Result<TcpStream> {
    let mut last = io::Error::other("no node is named");
    for address in nodes {
        match to_leader_by(address, log) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn to_leader_by(address: &str, log: LogId) -> io::Result<TcpStream> {
    let mut stream = connect(address, 0)?;
    let answer = metadata(&mut stream)?;
    let leader = leader_of(&answer, log)
        .ok_or_else(|| io::Error::other(format!("{address} knows no leader of log {log}")))?;
    if leader != answer.node {
        let address = answer.nodes.iter().find(|node| node.node == leader);
        let address = address.ok_or_else(|| broken("a leader that is no node"))?;
        return at_its_core(connect(&address.address, 0)?, &address.address, log);
    }
    at_core(stream, answer, address, log.shard)
}

fn at_its_core(mut stream: TcpStream, address: &str, log: LogId) -> io::Result<TcpStream> {
    let answer = metadata(&mut stream)?;
    if leader_of(&answer, log) != Some(answer.node) {
        let text = format!("{address} does not lead log {log} yet");
        return Err(io::Error::other(text));
    }
    at_core(stream, answer, address, log.shard)
}

/// The leader itself says how many cores it listens with: the map outlives no connection.
fn at_core(
    stream: TcpStream,
    answer: MetadataOk,
    address: &str,
    shard: ShardId,
) -> io::Result<TcpStream> {
    let own = answer.nodes.iter().find(|node| node.node == answer.node);
    let cores = own.map_or(1, |node| node.cores.max(1));
    let core = shard.0 % cores;
    if core == 0 {
        return Ok(stream);
    }
    let mut stream = connect(address, core)?;
    metadata(&mut stream)?;
    Ok(stream)
}

/// A node names the leaders of the logs that its own clients append to: in a mesh its own.
fn leader_of(answer: &MetadataOk, log: LogId) -> Option<NodeId> {
    let leader = answer.leaders.get(usize::from(log.shard.0)).copied();
    leader.filter(|leader| *leader != NodeId(0) && answer.origin == log.origin)
}
