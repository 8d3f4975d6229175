//! A client's frames: to the shard that they are for, or answered here.
//!
//! Reads no further while the client has too much unanswered, in bytes of appends, in requests or
//! in answers that it does not take off its socket. Checks what must hold before a payload gets a
//! buffer; what a batch must be is the shard's to say. A frame for another core's shard is handed
//! to that core (see `handoff.rs`). Follow an append: here, `driver.rs`, `shard.rs`.

use super::connection::{Connection, Kind};
use super::driver::Core;
use super::handoff;
use super::reader::{Incoming, ReadError, Reader};
use super::status;
use crate::config::{self, Config};
use crate::limits;
use crate::shard::{Event, Request};
use crate::types::{Level, LogId, NodeId, ReadLevel, ShardId};
use crate::wire::body::{Append, Body, Find, MetadataOk, NodeAddress, PROTOCOL, Read, StatusOk};
use crate::wire::code::Code;
use std::collections::btree_map::Entry;
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
        || connection.must_take_answers()
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
            connection.send_body(metadata(core), correlation, log);
        }
        Some(Ok(Body::Status(_))) => {
            core.publish();
            let json = status::snapshot(&core.node).status.to_string();
            let mut head = Body::from(StatusOk {}).encode(correlation, log, json.len());
            head.extend_from_slice(json.as_bytes());
            connection.send(head);
        }
        Some(Ok(Body::Read(body))) => {
            return Ok(read(core, connection, &body, correlation, log).await);
        }
        Some(Ok(Body::Find(body))) => {
            return Ok(find(core, connection, &body, correlation, log).await);
        }
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

/// Where a log is.
#[derive(Clone, Copy)]
enum Home {
    /// Its place among this core's.
    Here(usize),
    /// The core that owns it.
    Core(usize),
}

/// Where the log is; if this node does not have it, the client is told.
fn find_log(core: &Core, connection: &Connection, correlation: u64, log: LogId) -> Option<Home> {
    if let Some(local) = core.local(log) {
        return Some(Home::Here(local));
    }
    let owner = core.owner(log);
    if owner.is_none() {
        connection.refuse(Code::UnknownLog, [0, 0], correlation, log);
    }
    owner.map(Home::Core)
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
fn note(core: &Core, connection: &Connection, log: LogId, correlation: u64, bytes: usize) -> bool {
    // What is noted of the first request stays as it is: its answer takes that away again.
    let fresh = match connection.unanswered.borrow_mut().entry(correlation) {
        Entry::Vacant(free) => {
            free.insert(bytes);
            true
        }
        Entry::Occupied(_) => false,
    };
    if !fresh {
        connection.refuse(Code::BadFrame, [correlation, 0], correlation, log);
        connection.close_after_queue(core.close_by());
        return false;
    }
    connection
        .unanswered_bytes
        .set(connection.unanswered_bytes.get() + bytes);
    true
}

/// Tells a log of this core, or the core that has the log; false if the connection ended before.
async fn ask(
    core: &Core,
    connection: &Connection,
    (home, log): (Home, LogId),
    event: Event,
) -> bool {
    match home {
        Home::Here(local) => {
            connection.known_to.borrow_mut().insert(local);
            core.deliver(local, event);
            true
        }
        Home::Core(owner) => handoff::hand_over(core, connection, (owner, log), event).await,
    }
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
    let home = match level {
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
    let (Some(home), Some(level)) = (home, level) else {
        reader.skip(payload).await?;
        return Ok(true);
    };
    let Some(buffer) = reader.append_buffer(payload).await else {
        return Ok(false);
    };
    // Who says that a batch comes holds memory that others wait for.
    connection.due_by.set(Some(core.payload_by()));
    if let Err(error) = reader.read_to(buffer, 0..payload).await {
        core.pool.borrow_mut().release(buffer);
        return Err(error);
    }
    if !connection.is_ending() {
        connection.due_by.set(None);
    }
    if !note(core, connection, log, correlation, payload) {
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
    Ok(ask(core, connection, (home, log), event).await)
}

/// Handles a read; false if the connection ends.
async fn read(
    core: &Core,
    connection: &Connection,
    body: &Read,
    correlation: u64,
    log: LogId,
) -> bool {
    let Some(level) = ReadLevel::from_number(body.level) else {
        let level = u64::from(body.level);
        connection.refuse(Code::UnknownLevel, [level, 0], correlation, log);
        return true;
    };
    let Some(home) = find_log(core, connection, correlation, log) else {
        return true;
    };
    if !note(core, connection, log, correlation, 0) {
        return false;
    }
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
    ask(core, connection, (home, log), event).await
}

/// Handles a search; false if the connection ends.
async fn find(
    core: &Core,
    connection: &Connection,
    body: &Find,
    correlation: u64,
    log: LogId,
) -> bool {
    let Some(home) = find_log(core, connection, correlation, log) else {
        return true;
    };
    if !note(core, connection, log, correlation, 0) {
        return false;
    }
    let request = Request {
        connection: connection.id,
        correlation,
    };
    let timestamp = body.timestamp;
    let event = Event::Find { request, timestamp };
    ask(core, connection, (home, log), event).await
}

/// Who is here, who leads what, and which of these take appends as far as this node knows.
fn metadata(core: &Core) -> MetadataOk {
    let Config {
        node,
        cluster,
        cores,
        log,
        ..
    } = &core.node.config;
    let address = |entry: &crate::config::NodeEntry| NodeAddress {
        node: entry.id,
        address: entry.address.clone(),
        // What another node has is asked of that node.
        cores: if entry.id == node.id {
            cores.count as u16
        } else {
            0
        },
    };
    let origin = cluster.origin_of(node.id);
    let shards = (0..cluster.shards).map(ShardId);
    let logs: Vec<LogId> = shards.map(|shard| LogId { origin, shard }).collect();
    let open = core.open_epochs();
    let epoch = |log: &LogId| open.get(log).copied().unwrap_or_default();
    let known = core.leaders();
    let placed = |log: &LogId| match cluster.election {
        true => NodeId(0),
        false => cluster.leader(*log),
    };
    let leader = |log: &LogId| known.get(log).copied().unwrap_or(placed(log));
    let (default_level, default_read_level) = match cluster.kind {
        config::Kind::Set => (Level::Quorum, ReadLevel::Committed),
        config::Kind::Mesh => (Level::Leader, ReadLevel::Local),
    };
    MetadataOk {
        protocol: PROTOCOL,
        node: node.id,
        cluster: cluster.id,
        default_level: default_level.number(),
        max_batch_bytes: log.max_batch_bytes as u32,
        max_batch_records: log.max_block_records,
        nodes: cluster.nodes.iter().map(address).collect(),
        leaders: logs.iter().map(leader).collect(),
        epochs: logs.iter().map(epoch).collect(),
        origin,
        origins: cluster.origins(),
        default_read_level: default_read_level.number(),
    }
}
