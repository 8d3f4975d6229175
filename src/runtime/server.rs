//! The accepting side of one core: its port, its connections from first frame to last.
//!
//! Accepts in one task that is never cancelled. The first frame of a connection decides: a Hello
//! makes it a peer's, anything else a client's. Bytes that are no frame are answered with an error,
//! if that can still be sent, and the connection closes. A watch ends connections that never say
//! anything. Read `client.rs` and `peer.rs`.

use super::connection::{Connection, Kind};
use super::dial::open;
use super::driver::Core;
use super::reader::{ReadError, Reader};
use super::{client, handoff, peer};
use crate::limits;
use crate::types::{LogId, Time};
use crate::wire::body::Body;
use crate::wire::code::Code;
use crate::wire::message::Message;
use glommio::net::{TcpListener, TcpStream};
use glommio::timer::sleep;
use socket2::{SockRef, TcpKeepalive};
use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const WATCH: Duration = Duration::from_millis(100);
/// Time between two lines about connections that are turned away, microseconds.
const FULL_TOLD_US: u64 = 10_000_000;
/// How long, and how often, a place that is being given up is waited for.
const WAIT_FOR_PLACE: Duration = Duration::from_millis(1);
const WAITS_FOR_PLACE: usize = 100;
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);
/// Unacknowledged bytes for so long end a connection: the other side's machine is gone.
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// The accepting task: ends with the process.
pub(super) async fn accept(core: Rc<Core>, listener: TcpListener) {
    loop {
        match listener.shared_accept().await {
            Ok(accepted) => {
                let stream = accepted.bind_to_executor();
                core.node.counters.accepted.fetch_add(1, Ordering::Relaxed);
                if core.stopping.get() {
                    continue;
                }
                if !make_place(&core).await {
                    note_full(&core);
                    continue;
                }
                tune(&stream);
                if let Ok(address) = stream.peer_addr() {
                    match open(&core, stream, address) {
                        Ok((connection, reader)) => {
                            connection.is_unheard.set(true);
                            glommio::spawn_local(serve(core.clone(), connection, reader)).detach();
                        }
                        Err(error) => note_not_accepted(&core, &error.to_string()),
                    }
                }
            }
            Err(error) => {
                note_not_accepted(&core, &error.to_string());
                sleep(PAUSE_AFTER_ERROR).await;
            }
        }
        glommio::yield_if_needed().await;
    }
}

/// Whether there is a place for one more connection. If all are taken, the one that has said
/// nothing for longest goes, else one that was told why it is refused: so whoever comes next is at
/// least told that he is. Those that go keep their places for a moment, which is waited for.
async fn make_place(core: &Core) -> bool {
    let most = core.node.connections.all;
    let open = || core.connections.borrow().len();
    for _ in 0..WAITS_FOR_PLACE {
        if open() < most + limits::CORE_CONNECTIONS_ENDING {
            break;
        }
        sleep(WAIT_FOR_PLACE).await;
    }
    if open() < most {
        return true;
    }
    let goes = {
        let connections = core.connections.borrow();
        let mut alive = connections.values().filter(|one| !one.is_dead());
        let silent = alive.find(|one| one.is_unheard.get()).cloned();
        let mut alive = connections.values().filter(|one| !one.is_dead());
        silent.or_else(|| alive.find(|one| one.has_said_why()).cloned())
    };
    let goes = goes.filter(|_| open() < most + limits::CORE_CONNECTIONS_ENDING);
    goes.inspect(|connection| connection.kill()).is_some()
}

/// Whether a line about those that are turned away is due, and how many there were since the last.
fn turned_away(core: &Core, told: &Cell<(Time, u64)>) -> Option<u64> {
    core.node.counters.refused.fetch_add(1, Ordering::Relaxed);
    let (at, since) = told.get();
    let now = core.clock.now();
    if at.0 > 0 && now.since_us(at) < FULL_TOLD_US {
        told.set((at, since + 1));
        return None;
    }
    told.set((now, 0));
    Some(since + 1)
}

/// The system has nothing left for one more connection, most often no descriptor.
fn note_not_accepted(core: &Core, error: &str) {
    let Some(refused) = turned_away(core, &core.not_accepted_told) else {
        return;
    };
    let message = Message::NotAccepted;
    let (id, mend, core) = (message.name(), message.mend(), core.index);
    tracing::warn!(
        id,
        core,
        error,
        refused,
        "{}; mend: {mend}",
        message.meaning()
    );
}

/// A client is turned away: a line once in a while, with how many there were since the last one.
fn note_full(core: &Core) {
    let Some(refused) = turned_away(core, &core.full_told) else {
        return;
    };
    let message = Message::ConnectionsFull;
    let (id, most) = (message.name(), core.node.connections.clients);
    let mend = message.mend();
    let core = core.index;
    tracing::warn!(
        id,
        core,
        most,
        refused,
        "{}; mend: {mend}",
        message.meaning()
    );
}

/// Sets what every connection wants.
pub(super) fn tune(stream: &TcpStream) {
    // SAFETY: the descriptor is open for as long as `stream` is borrowed.
    let fd = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
    let socket = SockRef::from(&fd);
    let keepalive = TcpKeepalive::new()
        .with_time(USER_TIMEOUT)
        .with_interval(USER_TIMEOUT / 4);
    let set = socket
        .set_tcp_nodelay(true)
        .and_then(|()| socket.set_tcp_user_timeout(Some(USER_TIMEOUT)))
        .and_then(|()| socket.set_tcp_keepalive(&keepalive));
    if let Err(error) = set {
        tracing::debug!(%error, "an option of a connection could not be set");
    }
}

/// One accepted connection.
async fn serve(core: Rc<Core>, connection: Rc<Connection>, mut reader: Reader) {
    let ended = first_frame(&core, &connection, &mut reader).await;
    end(&core, &connection, &mut reader, ended).await;
}

async fn first_frame(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    reader: &mut Reader,
) -> Result<(), ReadError> {
    let first = reader.frame().await?;
    if let Some(Ok(Body::Hello(hello))) = &first.body {
        let (hello, log) = (hello.clone(), first.header.log);
        reader.skip(first.header.payload_len).await?;
        return peer::serve_accepted(core, connection, reader, &hello, log).await;
    }
    connection.is_unheard.set(false);
    connection.due_by.set(None);
    if core.connections.borrow().len() > core.node.connections.clients {
        note_full(core);
        let most = [core.node.connections.clients as u64, 0];
        let header = first.header;
        reader.skip(header.payload_len).await?;
        let code = Code::TooManyConnections;
        connection.refuse(code, most, header.correlation, header.log);
        connection.close_after_queue(core.close_by());
        return Ok(());
    }
    client::serve(core, connection, reader, first).await
}

/// The last thing on a connection: says why if it can, waits for the other side, tells the shards.
pub(super) async fn end(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    reader: &mut Reader,
    ended: Result<(), ReadError>,
) {
    if let Err(error) = &ended {
        let peer = connection.address;
        match error {
            ReadError::Frame(why) => {
                core.node
                    .counters
                    .bad_frames
                    .fetch_add(1, Ordering::Relaxed);
                if core.may_complain() {
                    tracing::warn!(%peer, "{error}");
                }
                let detail = match why {
                    crate::wire::frame::FrameError::TooLong => limits::FRAME_PAYLOAD as u64,
                    crate::wire::frame::FrameError::Crc => 0,
                };
                connection.refuse(Code::BadFrame, [detail, 0], 0, LogId::default());
                connection.close_after_queue(core.close_by());
            }
            ReadError::Ended => {}
            ReadError::Io(error) => tracing::debug!(%peer, %error, "connection lost"),
        }
    }
    let says_why = connection.is_ending() && !connection.is_dead();
    if says_why {
        // The shards hear of the end first: a client that lingers keeps nothing of theirs.
        core.connection_ends(connection);
        reader.drain().await;
    }
    // It counts until other cores know: so what they are yet to hear is bounded too.
    connection.kill();
    handoff::leave(core, connection).await;
    core.connection_down(connection);
    let peer = matches!(connection.kind.get(), Kind::Peer { .. });
    if peer {
        tracing::debug!(peer = %connection.address, "connection to a node closed");
    }
}

/// The task that ends connections whose first frame, or whose end, is overdue: never ends. Also
/// takes operators' orders, publishes what this core says of itself and gives back memory that
/// nobody wanted.
pub(super) async fn watch(core: Rc<Core>) {
    let mut trim_at = core.clock.now();
    loop {
        sleep(WATCH).await;
        let now = core.clock.now();
        let overdue: Vec<Rc<Connection>> = {
            let connections = core.connections.borrow();
            let late =
                |connection: &&Rc<Connection>| connection.due_by.get().is_some_and(|by| by < now);
            connections.values().filter(late).cloned().collect()
        };
        overdue.iter().for_each(|connection| connection.kill());
        if now >= trim_at {
            core.pool.borrow_mut().trim();
            trim_at = now.plus_us(limits::FREE_BUFFER_MS * 1000);
        }
        core.take_orders();
        core.publish();
    }
}
