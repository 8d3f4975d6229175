//! The clients of a run: connections, requests, and what each answer means to the checkers.
//!
//! An answer is checked when the node gives it, also if it never arrives: the node has said it.
//! What is in flight when a connection ends stays unknown. Read `client.rs` and `checker.rs`
//! beside it.

use super::checker::{Holders, ReadAnswer, SentAppend, done_in_time};
use super::client::{Client, ClientRequest, Session, Waiting};
use super::facts::{Ack, BatchFacts, BatchId, batch_facts};
use super::node::Arrival;
use super::producer::ProducerSide;
use super::verdict::{Checked, Name, Verdict, ensure};
use super::world::{Task, World};
use millrace::shard::{Event, Request};
use millrace::types::{ConnectionId, Epoch, Level, Offset, ReadLevel};
use millrace::wire::batch;
use millrace::wire::body::Body;
use millrace::wire::code::Code;

/// How much later than promised an answer may come before it counts as missing.
const GRACE_US: u64 = 3_000_000;

impl World {
    /// A client looks for something to do.
    pub fn client_step(&mut self, client: usize) -> Checked {
        let every = self.options.client_every_us;
        let next = self.clients[client].rng.between(1, 2 * every);
        self.after(next, Task::Client(client));
        self.none_overdue(client)?;
        let session = self.clients[client].session;
        if session.is_some_and(|session| !self.runs(session.node, session.run)) {
            self.forget_session(client);
        }
        let at = &self.clients[client];
        let done = at.producer.as_ref().is_none_or(ProducerSide::is_done);
        if !self.clients_active && done {
            return Ok(());
        }
        let misled = at.producer.as_ref().is_some_and(|side| side.misled);
        let leader = self.leader();
        let strays = session.is_some_and(|session| session.node != leader);
        let stays = if strays && self.options.electing {
            8
        } else {
            50
        };
        let leaves = self.clients[client].rng.below(stays) == 0 && self.clients_active;
        if leaves || misled {
            self.hang_up(client)?;
        }
        let at_leader = self.clients[client].rng.below(100) < 85 || !self.clients_active;
        let any = self.clients[client].rng.index(self.nodes.len());
        if !self.connect(client, if at_leader { leader } else { any }) {
            return Ok(());
        }
        let room = self.retry(client);
        if self.clients_active && self.clients[client].waiting.len() < self.options.client_window {
            match self.clients[client].rng.below(10) {
                0..=6 if room => {
                    let level = self.clients[client].level();
                    self.append(client, level, false);
                }
                7 => self.read_on(client),
                _ if self.clients[client].rng.below(5) == 0 => self.find(client),
                _ => self.read(client),
            }
        }
        Ok(())
    }

    /// Whether the client has a connection with a live process, or now has one with `node`.
    pub fn connect(&mut self, client: usize, node: usize) -> bool {
        if self.clients[client].session.is_some() {
            return true;
        }
        if self.nodes[node].process.is_none() {
            return false;
        }
        let connection = self.net.fresh_id();
        self.clients[client].session = Some(Session {
            connection,
            node,
            run: self.nodes[node].run,
            last_arrival_us: self.now_us,
            last_answer_us: self.now_us,
        });
        true
    }

    /// The client closes its connection; its node hears of it.
    pub fn hang_up(&mut self, client: usize) -> Checked {
        let Some(session) = self.clients[client].session else {
            return Ok(());
        };
        self.forget_session(client);
        if !self.runs(session.node, session.run) {
            return Ok(());
        }
        let gone = Arrival::Event(Event::ClientGone {
            connection: session.connection,
        });
        let delay = session.last_arrival_us.max(self.now_us) - self.now_us;
        let (node, run, arrival) = (session.node, session.run, gone);
        self.after(delay, Task::Request { node, run, arrival });
        Ok(())
    }

    fn forget_session(&mut self, client: usize) {
        let at = &mut self.clients[client];
        at.producer.iter_mut().for_each(ProducerSide::disconnected);
        if let Some(session) = at.session.take() {
            for correlation in at.waiting.keys() {
                self.open_requests
                    .remove(&(session.connection, *correlation));
            }
        }
        at.waiting.clear();
    }

    /// Sends an append.
    pub fn append(&mut self, client: usize, level: Level, sound: bool) {
        let at = &mut self.clients[client];
        let (id, batch) = at.batch(self.now_us, &self.options);
        let session = at.session.expect("connected");
        let record_count = batch::client_half(&batch).record_count;
        let mut order = session.connection.0;
        if let Some(producer) = &mut at.producer {
            order = producer.session();
            producer.made(id, &batch, level, record_count);
            let made = producer.unacked.back_mut().expect("just made");
            made.on = Some(session.connection);
        }
        let sent = SentAppend {
            session: order,
            digest: Client::digest_of(&batch),
            record_count,
            retried: at.producer.is_some(),
        };
        self.checker.append_sent(id, sent);
        self.send_append(client, id, batch, level, sound);
    }

    /// Sends a batch, for the first time or again.
    pub fn send_append(
        &mut self,
        client: usize,
        id: BatchId,
        mut batch: Vec<u8>,
        level: Level,
        sound: bool,
    ) {
        let at = &mut self.clients[client];
        let flipped = !sound && at.rng.happens(self.options.append_flip);
        if flipped {
            at.flip(&mut batch);
        }
        let timeout_ms = if sound {
            10_000
        } else {
            *at.rng.pick(&[20, 200, 2_000])
        };
        if flipped {
            self.report.count("append_flip", 1);
        }
        let request = ClientRequest::Append {
            batch,
            level,
            timeout_ms,
        };
        let waiting = Waiting::Append { id, level, flipped };
        self.request(client, request, waiting, timeout_ms);
    }

    fn read(&mut self, client: usize) {
        let end = self.checker.committed_offset();
        let request = self.clients[client].read(end);
        let ClientRequest::Read {
            offset,
            wait_ms,
            level,
            last_epoch,
            ..
        } = request
        else {
            unreachable!("a read is a read");
        };
        let waiting = Waiting::Read {
            offset,
            level,
            last_epoch,
        };
        self.request(client, request, waiting, wait_ms);
    }

    /// Searches for a moment of the past, or of the future.
    fn find(&mut self, client: usize) {
        let at = &mut self.clients[client];
        let latest = self.now_us + 300_000;
        let timestamp = latest.saturating_sub(at.rng.below(4_000_000));
        let waiting = Waiting::Find {
            timestamp,
            committed: 0,
        };
        self.request(client, ClientRequest::Find { timestamp }, waiting, 0);
    }

    /// Sends a request whose answer is waited for.
    pub fn request(
        &mut self,
        client: usize,
        request: ClientRequest,
        waiting: Waiting,
        wait_ms: u32,
    ) {
        let overdue_us = self.now_us + u64::from(wait_ms) * 1000 + GRACE_US;
        let at = &mut self.clients[client];
        let correlation = at.correlation();
        let connection = at.session.expect("connected").connection;
        at.waiting.insert(correlation, (waiting, overdue_us));
        let key = (connection, correlation);
        self.open_requests.insert(key, (client, waiting));
        self.send_request(client, correlation, request);
    }

    /// No answer is missing, unless the node had no time to give it.
    fn none_overdue(&self, client: usize) -> Checked {
        let at = &self.clients[client];
        let Some(session) = at.session else {
            return Ok(());
        };
        let node = &self.nodes[session.node];
        if !self.runs(session.node, session.run) || !node.awake() {
            return Ok(());
        }
        let now_us = self.now_us.saturating_sub(node.paused_us);
        let overdue = at.waiting.values().find(|(_, until)| *until < now_us);
        done_in_time(overdue.is_none(), || {
            format!("client {client} waits for an answer to {overdue:?} at {now_us}")
        })
    }

    /// A request arrives; it comes back if there is no buffer for it.
    pub fn take_in_request(
        &mut self,
        node: usize,
        arrival: Arrival,
    ) -> Result<Option<Arrival>, Verdict> {
        let Arrival::Request {
            connection,
            correlation,
            request,
            ..
        } = &arrival
        else {
            unreachable!("only requests come here");
        };
        let to = Request {
            connection: *connection,
            correlation: *correlation,
        };
        let event = match request {
            ClientRequest::Find { timestamp } => {
                let key = (to.connection, to.correlation);
                let ends = self.observe(node)?.committed_offset.0;
                if let Some((_, Waiting::Find { committed, .. })) = self.open_requests.get_mut(&key)
                {
                    *committed = ends;
                }
                Event::Find {
                    request: to,
                    timestamp: *timestamp,
                }
            }
            ClientRequest::Append {
                batch,
                level,
                timeout_ms,
            } => {
                let process = self.nodes[node].process.as_mut().expect("it runs");
                let Some(buffer) = process.buffers.put(batch) else {
                    let bytes = batch.len();
                    self.deliver(node, Event::MemoryShort { bytes })?;
                    return Ok(Some(arrival));
                };
                Event::Append {
                    request: to,
                    level: *level,
                    timeout_ms: *timeout_ms,
                    buffer,
                    len: batch.len(),
                }
            }
            ClientRequest::Read {
                offset,
                max_bytes,
                wait_ms,
                level,
                last_epoch,
            } => Event::Read {
                request: to,
                offset: Offset(*offset),
                max_bytes: *max_bytes,
                wait_ms: *wait_ms,
                level: *level,
                last_epoch: Epoch(*last_epoch),
            },
        };
        self.deliver(node, event)?;
        Ok(None)
    }

    /// A node answers a client.
    pub fn reply(&mut self, node: usize, request: Request, body: Body, payload: &[u8]) -> Checked {
        let key = (request.connection, request.correlation);
        let Some((client, waiting)) = self.open_requests.remove(&key) else {
            let sessions = self.clients.iter().filter_map(|client| client.session);
            let live = sessions.filter(|session| session.connection == request.connection);
            return ensure(live.count() == 0, Name::AckedTwice, || {
                format!("node {node} answers {request:?} again: {body:?}")
            });
        };
        match waiting {
            Waiting::Append { id, level, flipped } => {
                self.append_answered(node, id, level, flipped, &body)?;
            }
            Waiting::Find {
                timestamp,
                committed,
            } => self.found(node, timestamp, committed, &body)?,
            Waiting::Read {
                offset,
                level,
                last_epoch,
            } => {
                self.read_answered(node, offset, level, &body, payload)?;
                let batches = batches_of(payload).unwrap_or_default();
                self.followed((node, client), (offset, last_epoch), &body, &batches)?;
            }
        }
        let latency = self.rng.between(20, 200);
        if let Some(session) = &mut self.clients[client].session {
            let at = (self.now_us + latency).max(session.last_answer_us);
            session.last_answer_us = at;
            self.after(
                at - self.now_us,
                Task::Answer {
                    client,
                    connection: request.connection,
                    correlation: request.correlation,
                    body,
                },
            );
        }
        Ok(())
    }

    fn append_answered(
        &mut self,
        node: usize,
        id: BatchId,
        level: Level,
        flipped: bool,
        body: &Body,
    ) -> Checked {
        match body {
            Body::AppendOk(ok) => {
                ensure(!flipped, Name::BytesDiffer, || {
                    format!("node {node} accepted {id:?}, whose bytes were changed on the way")
                })?;
                let ack = Ack {
                    level,
                    base_offset: ok.base_offset.0,
                    block: ok.block.0,
                };
                let holders = self.holders_of(node, id, &ack);
                self.checker.append_acked(id, ack, holders)?;
                self.report.acked[usize::from(level.number()) - 1] += 1;
                self.acks_by[node] += 1;
                Ok(())
            }
            Body::Error(error) => {
                let code = Code::from_number(error.code);
                ensure(code.is_some(), Name::Stuck, || {
                    format!("node {node} answers {id:?} with {error:?}, which is no code")
                })?;
                let refusals = self.refusals.entry(error.code);
                *refusals.or_default() += 1;
                if code == Some(Code::NoSpace) {
                    self.report.count("append_without_space", 1);
                }
                ensure(
                    code != Some(Code::SequenceReused),
                    Name::ProducersDiffer,
                    || format!("node {node}: {id:?} is told that another batch has its sequence"),
                )?;
                let retried = self.checker.is_retried(id);
                if code.is_some_and(refuses) && !retried {
                    self.checker.append_refused(id);
                }
                Ok(())
            }
            _ => ensure(false, Name::Stuck, || {
                format!("node {node} answers an append with {body:?}")
            }),
        }
    }

    /// Who holds an acknowledged batch now, at the place the answer names.
    fn holders_of(&self, node: usize, id: BatchId, ack: &Ack) -> Holders {
        let facts = self.nodes[node].image.chained(ack.block);
        let at_its_place =
            |batch: &BatchFacts| batch.id == Some(id) && batch.base_offset == ack.base_offset;
        let facts = facts.filter(|facts| facts.batches.iter().any(at_its_place));
        let process = self.nodes[node].process.as_ref().expect("it answered");
        let status = process.shard.status(self.nodes[node].time(self.now_us));
        let start = status.log_start.0;
        let overtaken = self.checker.is_overtaken(status.epoch.0);
        let committed = self.checker.committed_block(ack.block);
        if committed.is_some_and(|it| it.batches.iter().any(at_its_place)) {
            // Committed before, by enough nodes; some may have trimmed it since: a retry.
            return Holders {
                leader: facts.is_some() || ack.block < start,
                nodes: self.nodes.len(),
                overtaken,
            };
        }
        Holders {
            leader: facts.is_some(),
            nodes: facts.map_or(0, |facts| self.holders(facts)),
            overtaken,
        }
    }

    fn found(&mut self, node: usize, timestamp: u64, committed: u64, body: &Body) -> Checked {
        let start = self.observe(node)?.log_start_offset.0;
        match body {
            Body::FindOk(ok) => {
                self.report.finds += 1;
                self.checker
                    .found(timestamp, ok.offset.0, (start, committed))
            }
            Body::Error(_) => Ok(()),
            _ => ensure(false, Name::ReadWrong, || {
                format!("node {node} answers a search with {body:?}")
            }),
        }
    }

    fn read_answered(
        &mut self,
        node: usize,
        asked: u64,
        level: ReadLevel,
        body: &Body,
        payload: &[u8],
    ) -> Checked {
        let status = self.observe(node)?;
        let node_committed = status.committed_offset.0;
        match body {
            Body::ReadOk(ok) => {
                self.report.reads += u64::from(!payload.is_empty());
                let answer = ReadAnswer {
                    node,
                    level,
                    asked,
                    batches: batches_of(payload),
                    next: ok.next.0,
                    high_watermark: ok.high_watermark.0,
                };
                self.checker.read_answered(&answer, node_committed)
            }
            Body::Error(error) => {
                let out = error.code == Code::OutOfRange.number();
                let start = status.log_start_offset.0;
                let there = asked < node_committed && asked >= start;
                let named = error.detail == start;
                ensure(!out || (!there && named), Name::ReadWrong, || {
                    format!(
                        "node {node} says that offset {asked} is out of range: {error:?}; it holds \
                         {start} to {node_committed}"
                    )
                })?;
                self.report.below_start += u64::from(out && asked < start);
                Ok(())
            }
            _ => ensure(false, Name::ReadWrong, || {
                format!("node {node} answers a read with {body:?}")
            }),
        }
    }

    /// A client hears an answer.
    pub fn answer_arrived(
        &mut self,
        client: usize,
        connection: ConnectionId,
        correlation: u64,
        body: &Body,
    ) {
        let at = &mut self.clients[client];
        if at.session.map(|session| session.connection) != Some(connection) {
            return;
        }
        let Some((waiting, _)) = at.waiting.remove(&correlation) else {
            return;
        };
        match (waiting, body) {
            (
                Waiting::Read {
                    level: ReadLevel::Committed,
                    ..
                },
                Body::ReadOk(ok),
            ) => {
                at.read_at = at.read_at.max((ok.next.0, ok.last_epoch.0));
            }
            (Waiting::Append { id, .. }, body) => {
                let producer = at.producer.as_mut();
                producer.into_iter().for_each(|side| side.heard(id, body));
            }
            _ => {}
        }
    }
}

/// Whether a code says that the batch is not in the log and never will be.
fn refuses(code: Code) -> bool {
    matches!(
        code,
        Code::NotLeader
            | Code::UnknownLevel
            | Code::BadBatch
            | Code::BadCrc
            | Code::EmptyBatch
            | Code::TooLarge
            | Code::NotReady
            | Code::Overloaded
            | Code::NoSpace
    )
}

/// The batches of a read's payload; none if it is anything else.
fn batches_of(mut payload: &[u8]) -> Option<Vec<BatchFacts>> {
    let mut batches = Vec::new();
    while !payload.is_empty() {
        let prefix = batch::check(payload).ok()?;
        let (bytes, rest) = payload.split_at(prefix.total_len());
        batches.push(batch_facts(bytes)?);
        payload = rest;
    }
    Some(batches)
}
