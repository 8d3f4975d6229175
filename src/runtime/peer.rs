//! Connections between nodes: the Hello in both directions, then frames to the shards.
//!
//! A data connection belongs to one log and is dialed when its shard asks. A control connection
//! belongs to one core here and one core there and carries every log that both own; of two nodes
//! the one with the lower id dials it, and dials again with backoff. A Hello that names another
//! protocol, cluster, node or other cluster facts is refused with both values; where the cluster
//! has a secret, both sides prove that they know it before anything else is taken (`trust.rs`).
//! Then
//! a node that lacks what the cluster is finalized with is refused by whichever side sees it first
//! (`members.rs`).
//! Read `dial.rs` for the dialing side.

use super::client::port_of;
use super::connection::{Connection, Kind};
use super::driver::Core;
use super::reader::{Incoming, ReadError, Reader};
use super::refusals::Met;
use super::trust::{self, Distrust};
use crate::limits;
use crate::shard::Event;
use crate::types::{BufferId, LogId, NodeId, ShardId};
use crate::wire::body::{Body, Channel, Error, Hello, HelloOk, PROTOCOL};
use crate::wire::capability::Capabilities;
use crate::wire::code::Code;
use crate::wire::frame::FrameHeader;
use crate::wire::trust::HAS_SECRET;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The frames of an accepted connection whose first one was a Hello.
pub(super) async fn serve_accepted(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    reader: &mut Reader,
    hello: &Hello,
    log: LogId,
) -> Result<(), ReadError> {
    let about = Some(log).filter(|_| hello.channel == Channel::Data);
    if let Err(why) = greet(core, connection, reader, hello, log).await {
        return turn_away(core, connection, hello.node, (log, about), why);
    }
    connection.is_unheard.set(false);
    core.refusals.over(Met::Accepting, hello.node, about);
    if let Some(log) = about {
        core.watch_for_twins(hello.node, log, connection.address);
    }
    let logs = match hello.channel {
        Channel::Data => vec![core.local(log).expect("checked above")],
        Channel::Control => shared_logs(core, hello.cores.into(), hello.core.into()),
    };
    let (node, channel) = (hello.node, hello.channel);
    serve(core, connection, reader, (node, channel, false), logs).await
}

/// Answers a Hello and lets a member in: from then on its frames count.
async fn greet(
    core: &Core,
    connection: &Connection,
    reader: &mut Reader,
    hello: &Hello,
    log: LogId,
) -> Result<(), Distrust> {
    check(core, hello, log).map_err(Distrust::Here)?;
    trust::demand(core, connection, reader, (hello, log)).await?;
    let said = Capabilities::from_bits(hello.capabilities);
    let members = &core.node.members;
    members.check(hello.node, said).map_err(Distrust::Here)?;
    let config = &core.node.config;
    let answer = HelloOk {
        protocol: PROTOCOL,
        node: config.node.id,
        cores: config.cores.count as u16,
        capabilities: Capabilities::HERE.bits(),
    };
    connection.send_body(answer, 0, log);
    trust::trusted(core, reader).await
}

/// A node that dialed stays outside: it, the shards and the operator hear why.
fn turn_away(
    core: &Core,
    connection: &Connection,
    node: NodeId,
    (log, about): (LogId, Option<LogId>),
    why: Distrust,
) -> Result<(), ReadError> {
    let ((code, details), said) = match why {
        Distrust::Ended(error) => return Err(error),
        Distrust::Here(why) => {
            let refused = &core.node.counters.refused_peers;
            refused.fetch_add(1, Ordering::Relaxed);
            connection.refuse(why.0, why.1, 0, log);
            connection.close_after_queue(core.close_by());
            (why, "peer refused")
        }
        Distrust::There(why) => (why, "the peer refuses this node"),
    };
    if code != Code::WrongCore {
        core.tell_refused(node, (code, details));
        if core.is_refusal_news(Met::Accepting, node, about, code) {
            let address = connection.address;
            tracing::warn!(%address, %node, "{said}: {}", code.explain(details));
        }
    }
    Ok(())
}

/// Why a Hello is refused, with this side's value and the other's.
fn check(core: &Core, hello: &Hello, log: LogId) -> Result<(), (Code, [u64; 2])> {
    let config = &core.node.config;
    let (here, there) = (config.cluster.id.0, hello.cluster.0);
    if hello.protocol != PROTOCOL {
        let versions = [u64::from(PROTOCOL), u64::from(hello.protocol)];
        return Err((Code::WrongVersion, versions));
    }
    if here != there {
        return Err((Code::WrongCluster, [u64::from(here), u64::from(there)]));
    }
    let known = config.cluster.address(hello.node).is_some();
    if hello.target != config.node.id || hello.node == config.node.id || !known {
        let nodes = [u64::from(config.node.id.0), u64::from(hello.target.0)];
        return Err((Code::WrongNode, nodes));
    }
    if hello.fingerprint != core.node.fingerprint {
        let prints = [
            u64::from(core.node.fingerprint),
            u64::from(hello.fingerprint),
        ];
        return Err((Code::WrongFingerprint, prints));
    }
    trust::agree(core, hello)?;
    if hello.channel == Channel::Data && core.local(log).is_none() {
        return Err(match core.owner(log) {
            Some(owner) => (Code::WrongCore, [u64::from(port_of(config, owner)), 0]),
            None => (Code::UnknownLog, [0, 0]),
        });
    }
    Ok(())
}

/// The logs of this core that a control connection to one core of a node with `cores` carries.
pub(super) fn shared_logs(core: &Core, cores: usize, peer_core: usize) -> Vec<usize> {
    let owned = |log: &LogId| usize::from(log.shard.0) % cores.max(1) == peer_core;
    let logs = core.logs().iter().enumerate();
    logs.filter(|(_, log)| owned(log))
        .map(|(index, _)| index)
        .collect()
}

/// Tells the shards of an open connection and hands them its frames until it ends. A node that
/// asks and does not take the answers is read no further; the side that dialed always reads, so
/// the two never wait for each other.
pub(super) async fn serve(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    reader: &mut Reader,
    (node, channel, dialed): (NodeId, Channel, bool),
    logs: Vec<usize>,
) -> Result<(), ReadError> {
    connection.due_by.set(None);
    connection.kind.set(Kind::Peer {
        node,
        channel,
        dialed,
    });
    let _connected = core.node.members.connected(node);
    for local in logs {
        introduce(core, connection, local);
    }
    loop {
        glommio::yield_if_needed().await;
        if !dialed && !reader.wait_while(Connection::must_take_answers).await {
            return Ok(());
        }
        let incoming = reader.frame().await?;
        if connection.is_ending() || !handle(core, connection, reader, incoming).await? {
            return Ok(());
        }
    }
}

/// Tells a shard of the connection, once.
fn introduce(core: &Core, connection: &Connection, local: usize) {
    let Kind::Peer {
        node,
        channel,
        dialed,
    } = connection.kind.get()
    else {
        return;
    };
    if connection.known_to.borrow_mut().insert(local) {
        let event = Event::PeerUp {
            peer: node,
            connection: connection.id,
            channel,
            dialed,
            capabilities: core.node.members.said(node),
        };
        core.deliver(local, event);
    }
}

/// Handles one frame; false if it ends the connection.
async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    reader: &mut Reader,
    incoming: Incoming,
) -> Result<bool, ReadError> {
    let (header, log) = (incoming.header, incoming.header.log);
    let body = match incoming.body {
        Some(Ok(body)) => body,
        Some(Err(_)) => {
            core.node
                .counters
                .bad_frames
                .fetch_add(1, Ordering::Relaxed);
            connection.refuse(Code::BadFrame, [0, 0], header.correlation, log);
            connection.close_after_queue(core.close_by());
            return Ok(false);
        }
        None => {
            let unknown = &core.node.counters.unknown_frames;
            unknown.fetch_add(1, Ordering::Relaxed);
            reader.skip(header.payload_len).await?;
            connection.refuse(Code::Unsupported, [0, 0], header.correlation, log);
            return Ok(true);
        }
    };
    if let Body::Error(error) = &body {
        note_error(core, connection, error, log);
        reader.skip(header.payload_len).await?;
        return Ok(true);
    }
    if !may_send(connection, &body) {
        if core.may_complain() {
            let frame = body.name();
            tracing::warn!(frame, peer = %connection.address, "wrong direction");
        }
        connection.refuse(Code::WrongDirection, [0, 0], header.correlation, log);
        connection.close_after_queue(core.close_by());
        return Ok(false);
    }
    note_progress(core, connection, &body, log);
    let Some(local) = core.local(log) else {
        reader.skip(header.payload_len).await?;
        connection.refuse(Code::UnknownLog, [0, 0], header.correlation, log);
        return Ok(true);
    };
    let payload = match run_of(&body) {
        Some((count, room)) => {
            match read_run(core, connection, reader, (count, room), header.payload_len).await? {
                Some(payload) => Some(payload),
                None => return Ok(false),
            }
        }
        None => {
            reader.skip(header.payload_len).await?;
            None
        }
    };
    if connection.is_ending() {
        drop_payload(core, payload);
        return Ok(false);
    }
    if !connection.known_to.borrow().contains(&local) {
        // Not one of the logs that this connection carries.
        drop_payload(core, payload);
        connection.refuse(Code::UnknownLog, [0, 0], header.correlation, log);
        return Ok(true);
    }
    deliver(core, connection, local, &header, (body, payload));
    Ok(true)
}

/// Hands a frame to its shard.
fn deliver(
    core: &Core,
    connection: &Connection,
    local: usize,
    header: &FrameHeader,
    (body, payload): (Body, Option<(BufferId, usize)>),
) {
    let began = Instant::now();
    let event = Event::Frame {
        connection: connection.id,
        body,
        payload,
    };
    core.deliver(local, event);
    if let Kind::Peer { node, .. } = connection.kind.get() {
        core.note_received(local, node, header, began);
    }
}

/// A peer says that something of the log is wrong: a line, if it did not say so before.
fn note_error(core: &Core, connection: &Connection, error: &Error, log: LogId) {
    let Kind::Peer { node, .. } = connection.kind.get() else {
        return;
    };
    let code = Code::from_number(error.code).unwrap_or(Code::Unsupported);
    if core.is_refusal_news(Met::Open, node, Some(log), code) {
        let why = code.explain([error.detail, error.detail_two]);
        tracing::warn!(%log, %node, "the peer refuses: {why}");
    }
}

/// Blocks or acks come on the link of a log again.
fn note_progress(core: &Core, connection: &Connection, body: &Body, log: LogId) {
    if let (Body::Replicate(_) | Body::ReplicateOk(_), Kind::Peer { node, .. }) =
        (body, connection.kind.get())
    {
        core.refusals.over(Met::Open, node, Some(log));
    }
}

fn drop_payload(core: &Core, payload: Option<(BufferId, usize)>) {
    if let Some((buffer, _)) = payload {
        core.pool.borrow_mut().release(buffer);
    }
}

/// Count and padded bytes of the run of blocks that a frame carries.
fn run_of(body: &Body) -> Option<(u32, usize)> {
    match body {
        Body::Replicate(body) if body.count > 0 => Some((body.count, body.padded_len as usize)),
        Body::FetchOk(body) if body.count > 0 => Some((body.count, body.padded_len as usize)),
        _ => None,
    }
}

async fn read_run(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    reader: &mut Reader,
    (count, room): (u32, usize),
    payload: usize,
) -> Result<Option<(BufferId, usize)>, ReadError> {
    let whole = room > 0 && room.is_multiple_of(limits::DISK_ALIGNMENT);
    if !whole || room > limits::MAX_BUFFER_BYTES || count == 0 {
        core.node
            .counters
            .bad_frames
            .fetch_add(1, Ordering::Relaxed);
        connection.refuse(Code::BadFrame, [room as u64, 0], 0, LogId::default());
        connection.close_after_queue(core.close_by());
        return Ok(None);
    }
    let Some(buffer) = reader.run_buffer(room).await else {
        return Ok(None);
    };
    connection.due_by.set(Some(core.payload_by()));
    match reader.read_run(buffer, count, payload, room).await {
        Ok(()) => {
            if !connection.is_ending() {
                connection.due_by.set(None);
            }
            Ok(Some((buffer, room)))
        }
        Err(error) => {
            core.pool.borrow_mut().release(buffer);
            Err(error)
        }
    }
}

/// Whether the other side may send such a frame on this connection: see the table in `body.rs`.
fn may_send(connection: &Connection, body: &Body) -> bool {
    let Kind::Peer {
        channel, dialed, ..
    } = connection.kind.get()
    else {
        return false;
    };
    match (channel, body) {
        // Both sides of a control connection may lead logs. Without one, heartbeats take the data
        // connection.
        (_, Body::Ping(_) | Body::Pong(_) | Body::Sealed(_)) => true,
        // Either side may ask the other one for blocks that are damaged in its own log.
        (Channel::Data, Body::Fetch(_) | Body::FetchOk(_) | Body::Nack(_)) => true,
        (Channel::Data, Body::Where(_) | Body::Replicate(_) | Body::TakeOver(_)) => !dialed,
        (
            Channel::Data,
            Body::Position(_)
            | Body::ReplicateOk(_)
            | Body::Limits(_)
            | Body::Pause(_)
            | Body::Resume(_),
        ) => dialed,
        _ => false,
    }
}

/// The Hello of this core.
pub(super) fn hello(core: &Core, target: NodeId, channel: Channel) -> Hello {
    let config = &core.node.config;
    Hello {
        protocol: PROTOCOL,
        cluster: config.cluster.id,
        node: config.node.id,
        target,
        channel,
        cores: config.cores.count as u16,
        core: core.index as u16,
        fingerprint: core.node.fingerprint,
        capabilities: Capabilities::HERE.bits()
            | match core.node.secrets {
                Some(_) => HAS_SECRET,
                None => 0,
            },
    }
}

/// The log named in the header of a control connection's Hello: none in particular.
pub(super) fn no_log(core: &Core) -> LogId {
    LogId {
        origin: core.node.config.cluster.id,
        shard: ShardId(0),
    }
}
