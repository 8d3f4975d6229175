//! A client's frames: to the shard that they are for, or answered here.
//!
//! Reads no further while the client has too much unanswered, in bytes of appends, in requests or
//! in answers that it does not take off its socket. Checks what must hold before a payload gets a
//! buffer; what a batch must be is the shard's to say. A frame for a shard of another core is
//! answered with that core's port. Follow an append: here, `driver.rs`, `shard.rs`.

use super::connection::{Connection, Kind};
use super::driver::Core;
use super::reader::{Incoming, ReadError, Reader};
use super::status;
use crate::config::Config;
use crate::limits;
use crate::shard::{Event, Request};
use crate::types::{Level, LogId, ReadLevel, ShardId};
use crate::wire::body::{Append, Body, Find, MetadataOk, NodeAddress, PROTOCOL, Read, StatusOk};
use crate::wire::code::Code;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// The frames of one client, from the first one on.
pub(super) async fn serve(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    reader: &mut Reader,
    first: Incoming,
) -> Result<(), ReadError> {
    connection.kind.set(Kind::Client);
    let mut incoming = first;
    loop {
        if !handle(core, connection, reader, incoming).await? {
            return Ok(());
        }
        if !reader.wait_while(has_enough).await {
            return Ok(());
        }
        glommio::yield_if_needed().await;
        incoming = reader.frame().await?;
    }
}

/// Whether the client must take answers before it may ask for more.
fn has_enough(connection: &Connection) -> bool {
    connection.unanswered_bytes.get() >= limits::CONNECTION_APPEND_BYTES
        || connection.unanswered.borrow().len() >= limits::CONNECTION_REQUESTS
        || connection.queued_bytes() >= limits::CONNECTION_ANSWER_BYTES
}

/// Handles one frame; false if it ends the connection.
async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    reader: &mut Reader,
    incoming: Incoming,
) -> Result<bool, ReadError> {
    let header = incoming.header;
    let (correlation, log) = (header.correlation, header.log);
    if let Some(Ok(Body::Append(body))) = &incoming.body {
        return append(core, connection, reader, body, incoming_request(&incoming)).await;
    }
    reader.skip(header.payload_len).await?;
    let refuse = |code| connection.refuse(code, [0, 0], correlation, log);
    match incoming.body {
        None => {
            core.node
                .counters
                .unknown_frames
                .fetch_add(1, Ordering::Relaxed);
            refuse(Code::Unsupported);
        }
        Some(Err(_)) => {
            core.node
                .counters
                .bad_frames
                .fetch_add(1, Ordering::Relaxed);
            refuse(Code::BadFrame);
            connection.close_after_queue(core.close_by());
            return Ok(false);
        }
        Some(Ok(Body::Metadata(body))) if body.protocol != PROTOCOL => {
            let versions = [u64::from(PROTOCOL), u64::from(body.protocol)];
            connection.refuse(Code::WrongVersion, versions, correlation, log);
        }
        Some(Ok(Body::Metadata(_))) => {
            connection.send_body(metadata(&core.node.config), correlation, log);
        }
        Some(Ok(Body::Status(_))) => {
            let json = status::json(core);
            let mut head = Body::from(StatusOk {}).encode(correlation, log, json.len());
            head.extend_from_slice(json.as_bytes());
            connection.send(head);
        }
        Some(Ok(Body::Read(body))) => read(core, connection, &body, correlation, log),
        Some(Ok(Body::Find(body))) => find(core, connection, &body, correlation, log),
        Some(Ok(Body::Error(_))) => {}
        Some(Ok(other)) => {
            tracing::debug!(frame = other.name(), peer = %connection.address, "wrong direction");
            refuse(Code::WrongDirection);
            connection.close_after_queue(core.close_by());
            return Ok(false);
        }
    }
    Ok(true)
}

/// What is left of a frame whose body was taken.
struct FrameOf {
    correlation: u64,
    log: LogId,
    payload: usize,
}

fn incoming_request(incoming: &Incoming) -> FrameOf {
    FrameOf {
        correlation: incoming.header.correlation,
        log: incoming.header.log,
        payload: incoming.header.payload_len,
    }
}

/// The place of the log among this core's; if it is not here, the client is told where.
fn find_log(core: &Core, connection: &Connection, correlation: u64, log: LogId) -> Option<usize> {
    if let Some(local) = core.local(log) {
        return Some(local);
    }
    let owner = core.owner(log.shard);
    let owner = owner.filter(|_| log.origin == core.node.config.cluster.id);
    let (code, detail) = match owner {
        Some(owner) => (
            Code::WrongCore,
            u64::from(port_of(&core.node.config, owner)),
        ),
        None => (Code::UnknownLog, 0),
    };
    connection.refuse(code, [detail, 0], correlation, log);
    None
}

/// The port on which a core of this node listens.
pub(super) fn port_of(config: &Config, core: usize) -> u16 {
    let port = config
        .node
        .address
        .rsplit_once(':')
        .map(|(_, port)| port.parse::<u16>());
    let port = port
        .and_then(Result::ok)
        .expect("the configuration was checked");
    port + core as u16
}

/// Notes a request as unanswered; false, and the connection ends, if its number is in use.
fn note(
    core: &Core,
    connection: &Connection,
    local: usize,
    correlation: u64,
    bytes: usize,
) -> bool {
    let before = connection
        .unanswered
        .borrow_mut()
        .insert(correlation, bytes);
    if before.is_some() {
        let log = core.logs()[local];
        connection.refuse(Code::BadFrame, [correlation, 0], correlation, log);
        connection.close_after_queue(core.close_by());
        return false;
    }
    connection
        .unanswered_bytes
        .set(connection.unanswered_bytes.get() + bytes);
    connection.known_to.borrow_mut().insert(local);
    true
}

async fn append(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    reader: &mut Reader,
    body: &Append,
    frame: FrameOf,
) -> Result<bool, ReadError> {
    let FrameOf {
        correlation,
        log,
        payload,
    } = frame;
    let refuse = |code, details| connection.refuse(code, details, correlation, log);
    let most = core.node.config.log.max_batch_bytes;
    let level = Level::from_number(body.level);
    let local = match level {
        None => {
            refuse(Code::UnknownLevel, [u64::from(body.level), 0]);
            None
        }
        Some(_) if payload > most => {
            refuse(Code::TooLarge, [payload as u64, most as u64]);
            None
        }
        Some(_) if payload == 0 => {
            refuse(Code::BadBatch, [0, 0]);
            None
        }
        Some(_) if core.stopping.get() => {
            refuse(Code::Stopping, [0, 0]);
            None
        }
        Some(_) => find_log(core, connection, correlation, log),
    };
    let (Some(local), Some(level)) = (local, level) else {
        reader.skip(payload).await?;
        return Ok(true);
    };
    let Some(buffer) = reader.append_buffer(payload).await else {
        return Ok(false);
    };
    if let Err(error) = reader.read_to(buffer, 0..payload).await {
        core.pool.borrow_mut().release(buffer);
        return Err(error);
    }
    if !note(core, connection, local, correlation, payload) {
        core.pool.borrow_mut().release(buffer);
        return Ok(false);
    }
    let request = Request {
        connection: connection.id,
        correlation,
    };
    let event = Event::Append {
        request,
        level,
        timeout_ms: body.timeout_ms,
        buffer,
        len: payload,
    };
    core.deliver(local, event);
    Ok(true)
}

fn read(core: &Core, connection: &Connection, body: &Read, correlation: u64, log: LogId) {
    let Some(level) = ReadLevel::from_number(body.level) else {
        let level = u64::from(body.level);
        connection.refuse(Code::UnknownLevel, [level, 0], correlation, log);
        return;
    };
    let Some(local) = find_log(core, connection, correlation, log) else {
        return;
    };
    if note(core, connection, local, correlation, 0) {
        let request = Request {
            connection: connection.id,
            correlation,
        };
        let event = Event::Read {
            request,
            offset: body.offset,
            max_bytes: body.max_bytes.min(limits::MAX_BUFFER_BYTES as u32),
            wait_ms: body.wait_ms,
            level,
            last_epoch: body.last_epoch,
        };
        core.deliver(local, event);
    }
}

fn find(core: &Core, connection: &Connection, body: &Find, correlation: u64, log: LogId) {
    let Some(local) = find_log(core, connection, correlation, log) else {
        return;
    };
    if note(core, connection, local, correlation, 0) {
        let request = Request {
            connection: connection.id,
            correlation,
        };
        let timestamp = body.timestamp;
        core.deliver(local, Event::Find { request, timestamp });
    }
}

fn metadata(config: &Config) -> MetadataOk {
    let address = |entry: &crate::config::NodeEntry| NodeAddress {
        node: entry.id,
        address: entry.address.clone(),
        // What another node has is asked of that node.
        cores: if entry.id == config.node.id {
            config.cores.count as u16
        } else {
            0
        },
    };
    let shards = (0..config.cluster.shards).map(ShardId);
    MetadataOk {
        protocol: PROTOCOL,
        node: config.node.id,
        cluster: config.cluster.id,
        default_level: Level::Quorum.number(),
        max_batch_bytes: config.log.max_batch_bytes as u32,
        nodes: config.cluster.nodes.iter().map(address).collect(),
        leaders: shards.map(|shard| config.cluster.leader(shard)).collect(),
    }
}
