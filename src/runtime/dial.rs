//! Dialing other nodes: data connections when a shard asks, control connections always.
//!
//! A peer's base port tells how many cores it listens with, and a core that does not own the log
//! names the one that does; neither outlives the connection. Backoff of control connections starts
//! short, so that a set that starts together is together soon. Read `peer.rs` for what happens on
//! an open connection.

use super::connection::{Connection, second_stream, write_all};
use super::driver::Core;
use super::peer::{self, hello, no_log};
use super::reader::{ReadError, Reader};
use super::refusals::Met;
use super::server::tune;
use super::trust::{self, Distrust};
use crate::limits;
use crate::shard::Event;
use crate::shard::status::Refused;
use crate::types::{LogId, NodeId};
use crate::wire::body::{Body, Channel, Hello, PROTOCOL, Trusted};
use crate::wire::capability::Capabilities;
use crate::wire::code::Code;
use glommio::net::TcpStream;
use glommio::timer::sleep;
use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;

const FIRST_BACKOFF: Duration = Duration::from_millis(limits::FIRST_RETRY_MS);
/// Redirections from core to core that are followed.
const REDIRECTIONS: usize = 2;

/// An open connection whose Hello was accepted.
struct Dialed {
    connection: Rc<Connection>,
    reader: Reader,
    /// Cores that the peer listens with.
    cores: usize,
}

/// Why there is none.
enum Refusal {
    Io(io::Error),
    /// The log lives on another port.
    Port(u16),
    /// The peer refuses this node.
    There(Refused),
    /// This node refuses the peer.
    Here(Refused),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::Io(error)
    }
}

impl From<Distrust> for Refusal {
    fn from(why: Distrust) -> Refusal {
        match why {
            Distrust::Ended(ReadError::Io(error)) => Refusal::Io(error),
            Distrust::Ended(other) => Refusal::Io(io::Error::other(other.to_string())),
            Distrust::There((Code::WrongCore, [port @ 1..=65_535, _])) => {
                Refusal::Port(port as u16)
            }
            Distrust::There(why) => Refusal::There(why),
            Distrust::Here(why) => Refusal::Here(why),
        }
    }
}

/// The task that opens the data connections that shards ask for: never ends.
pub(super) async fn dial_for_shards(core: Rc<Core>) {
    loop {
        let asked = std::mem::take(&mut *core.dials.queue.borrow_mut());
        for (local, node) in asked {
            glommio::spawn_local(data(core.clone(), local, node)).detach();
        }
        core.dials.signal.wait().await;
    }
}

async fn data(core: Rc<Core>, local: usize, node: NodeId) {
    let log = core.logs()[local];
    let (mut port, mut why) = (None, None);
    for _ in 0..=REDIRECTIONS {
        match dial(&core, node, Channel::Data, log, port).await {
            Ok(dialed) => {
                run(&core, dialed, node, Channel::Data, vec![local]).await;
                return;
            }
            Err(Refusal::Port(other)) => port = Some(other),
            Err(Refusal::Io(error)) => {
                tracing::debug!(%node, %log, %error, "no connection");
                break;
            }
            // The shard says it, with its link.
            Err(Refusal::There(refused) | Refusal::Here(refused)) => {
                why = Some(refused);
                break;
            }
        }
    }
    core.deliver(local, Event::DialFailed { peer: node, why });
}

/// The task that keeps one control connection to a core of a peer open: never ends.
pub(super) async fn control(
    core: Rc<Core>,
    node: NodeId,
    peer_core: usize,
    others: Rc<Cell<usize>>,
) {
    let longest = Duration::from_millis(core.node.config.link.retry_backoff_ms);
    let mut backoff = FIRST_BACKOFF.min(longest);
    let log = no_log(&core);
    loop {
        let port = base_port(&core, node).and_then(|port| port.checked_add(peer_core as u16));
        match dial(&core, node, Channel::Control, log, port).await {
            Ok(dialed) => {
                backoff = FIRST_BACKOFF.min(longest);
                core.refusals.over(Met::Dialing, node, None);
                let cores = dialed.cores.max(1);
                // One task more for each further core that may own logs of this core. A core past
                // the number of shards owns none, whatever number the peer says.
                let shards = usize::from(core.node.config.cluster.shards);
                for more in others.get()..cores.min(shards) {
                    let next = control(core.clone(), node, more, others.clone());
                    others.set(more + 1);
                    let boxed: std::pin::Pin<Box<dyn Future<Output = ()>>> = Box::pin(next);
                    glommio::spawn_local(boxed).detach();
                }
                let logs = peer::shared_logs(&core, cores, peer_core);
                run(&core, dialed, node, Channel::Control, logs).await;
            }
            Err(refusal) => {
                control_refused(&core, node, &refusal);
                if matches!(refusal, Refusal::There(_) | Refusal::Here(_)) {
                    // Only an operator mends this.
                    backoff = longest;
                }
            }
        }
        sleep(backoff).await;
        backoff = (2 * backoff).min(longest);
    }
}

/// Hands the frames of an open connection to its shards until it ends.
async fn run(core: &Rc<Core>, dialed: Dialed, node: NodeId, channel: Channel, logs: Vec<usize>) {
    let Dialed {
        connection,
        mut reader,
        ..
    } = dialed;
    let ended = peer::serve(core, &connection, &mut reader, (node, channel, true), logs).await;
    super::server::end(core, &connection, &mut reader, ended).await;
}

async fn dial(
    core: &Rc<Core>,
    node: NodeId,
    channel: Channel,
    log: LogId,
    port: Option<u16>,
) -> Result<Dialed, Refusal> {
    let mut address = resolve(core, node).await?;
    if let Some(port) = port {
        address.set_port(port);
    }
    let longest = Duration::from_millis(limits::HANDSHAKE_MS);
    let stream = TcpStream::connect_timeout(address, longest).await;
    let stream = stream.map_err(|error| io::Error::other(error.to_string()))?;
    tune(&stream);
    let (connection, mut reader) = open(core, stream, address)?;
    let hello = hello(core, node, channel);
    match greet(core, &connection, &mut reader, (hello, log)).await {
        Ok(cores) => Ok(Dialed {
            connection,
            reader,
            cores,
        }),
        Err(why) => {
            if let Distrust::Here((code, details)) = why {
                connection.refuse(code, details, 0, log);
                connection.close_after_queue(core.close_by());
            }
            super::server::end(core, &connection, &mut reader, Ok(())).await;
            Err(why.into())
        }
    }
}

/// Registers a connection and starts its writing task. Every connection, dialed or accepted, passes
/// here before its first byte: what is to wrap the stream (TLS) belongs here, under the frames and
/// so under the exchange of proofs.
pub(super) fn open(
    core: &Rc<Core>,
    stream: TcpStream,
    address: SocketAddr,
) -> io::Result<(Rc<Connection>, Reader)> {
    let by = core.clock.now().plus_us(limits::HANDSHAKE_MS * 1000);
    let writing = second_stream(&stream)?;
    let id = core.new_connection_id();
    let connection = Rc::new(Connection::new(
        id,
        address,
        &stream,
        (by, core.queued_bytes.clone()),
    ));
    core.connections.borrow_mut().insert(id, connection.clone());
    glommio::spawn_local(write_all(core.clone(), connection.clone(), writing)).detach();
    let reader = Reader::new(core.clone(), connection.clone(), stream);
    Ok((connection, reader))
}

/// Says Hello and proves what is asked for; the cores of the node that let this one in.
async fn greet(
    core: &Core,
    connection: &Connection,
    reader: &mut Reader,
    (hello, log): (Hello, LogId),
) -> Result<usize, Distrust> {
    connection.send_body(hello.clone(), 0, log);
    let node = hello.target;
    let first = trust::next(reader).await?;
    let Body::HelloOk(ok) = trust::prove(core, connection, reader, (hello, log), first).await?
    else {
        return Err(Code::WrongDirection.into());
    };
    if ok.protocol != PROTOCOL {
        let versions = [u64::from(PROTOCOL), u64::from(ok.protocol)];
        return Err(Distrust::Here((Code::WrongVersion, versions)));
    }
    if ok.node != node {
        let nodes = [u64::from(ok.node.0), u64::from(node.0)];
        return Err(Distrust::Here((Code::WrongNode, nodes)));
    }
    let said = Capabilities::from_bits(ok.capabilities);
    let members = &core.node.members;
    members.check(node, said).map_err(Distrust::Here)?;
    if core.node.secrets.is_some() {
        connection.send_body(Trusted {}, 0, log);
    }
    Ok(usize::from(ok.cores))
}

/// A control connection could not be opened.
fn control_refused(core: &Core, node: NodeId, refusal: &Refusal) {
    match refusal {
        Refusal::Io(error) => {
            core.refusals.over(Met::Dialing, node, None);
            tracing::debug!(%node, %error, "no control connection");
        }
        Refusal::Port(port) if core.may_complain() => {
            tracing::warn!(%node, port, "sent from core to core");
        }
        Refusal::Port(_) => {}
        Refusal::There(why) | Refusal::Here(why) => {
            core.tell_refused(node, *why);
            let said = match refusal {
                Refusal::Here(_) => "peer refused",
                _ => "the peer refuses this node",
            };
            let (code, details) = *why;
            if core.is_refusal_news(Met::Dialing, node, None, code) {
                tracing::warn!(%node, "{said}: {}", code.explain(details));
            }
        }
    }
}

fn base_port(core: &Core, node: NodeId) -> Option<u16> {
    let address = core.node.config.cluster.address(node)?;
    address.rsplit_once(':')?.1.parse().ok()
}

/// The address of a node now: names are looked up at every dial, on a blocking thread.
async fn resolve(core: &Core, node: NodeId) -> io::Result<SocketAddr> {
    let address = core.node.config.cluster.address(node);
    let address = address.expect("a dialed node is configured").to_owned();
    if let Ok(numeric) = address.parse() {
        return Ok(numeric);
    }
    let found = glommio::executor()
        .spawn_blocking(move || address.to_socket_addrs().map(|mut all| all.next()))
        .await?;
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}
