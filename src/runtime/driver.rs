//! The core of one executor: hands events to its shards and carries out what they decide.
//!
//! Every task of the executor reaches the shards through [`Core::deliver`]; what they decide is
//! collected and carried out by one task, once per turn of ready events, so that disk operations
//! and frames go out together. Owns the shards, the buffers, the disk and the table of connections;
//! decides nothing. Nothing is borrowed across an await. Follow an append: `client.rs`, here,
//! `shard.rs`.

use super::buffers::Pool;
use super::connection::{Connection, Kind, Teller};
use super::disk::{Disk, Outcome};
use super::handoff::{self, Handoffs};
use super::local::{Clock, Signal};
use super::node::Node;
use super::refusals::Refusals;
use super::twins::Twins;
use crate::limits;
use crate::shard::{Action, Event, Notice, Part, Request, Shard, ShardStatus};
use crate::snapshot::ShardUsage;
use crate::types::{ConnectionId, Epoch, LogId, NodeId, Time};
use crate::wire::body::Body;
use crate::wire::message::Severity;
use glommio::timer::Timer;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// A shard whose time has come again at once still lets others run.
const SHORTEST_WAIT: Duration = Duration::from_micros(50);

/// Lines a second about what others did wrong.
const COMPLAINTS: u32 = 5;
/// A connection's id begins with the core that it belongs to: no two of a node are equal.
const HOME_SHIFT: u32 = 48;

/// What the tasks of one executor share.
pub(super) struct Core {
    /// Index of this core among the node's.
    pub(super) index: usize,
    pub(super) node: Arc<Node>,
    pub(super) clock: Clock,
    pub(super) pool: RefCell<Pool>,
    pub(super) disk: RefCell<Disk>,
    shards: RefCell<Vec<Local>>,
    logs: Vec<LogId>,
    pub(super) connections: RefCell<BTreeMap<ConnectionId, Rc<Connection>>>,
    next_connection: Cell<u64>,
    /// Given when there may be something to collect.
    work: Signal,
    deadline: Cell<Option<Time>>,
    deadline_moved: Signal,
    pub(super) stopping: Cell<bool>,
    pub(super) stopped: Signal,
    /// Data connections that shards asked for.
    pub(super) dials: Dials,
    /// The second of the last line about somebody else's mistake, and lines in it.
    complaints: Cell<(u64, u32)>,
    /// Refusals between nodes that were told already.
    pub(super) refusals: Refusals,
    /// Nodes that seem to be two.
    pub(super) twins: Twins,
    /// When a line last told that clients are turned away, and how many were since.
    pub(super) full_told: Cell<(Time, u64)>,
    /// The same of connections that the system did not let it take.
    pub(super) not_accepted_told: Cell<(Time, u64)>,
    /// Bytes outside buffers that wait for sockets, of all connections.
    pub(super) queued_bytes: Rc<Cell<usize>>,
    /// What each shard took so far, in the order of `logs`.
    pub(super) usage: RefCell<Vec<ShardUsage>>,
    /// Lanes to other cores.
    pub(super) handoffs: Handoffs,
}

/// Asked-for data connections, in order.
#[derive(Debug, Default)]
pub(super) struct Dials {
    pub(super) queue: RefCell<Vec<(usize, NodeId)>>,
    pub(super) signal: Signal,
}

struct Local {
    shard: Shard,
    ready: bool,
    stopped: bool,
}

impl Core {
    pub(super) fn new(
        index: usize,
        node: Arc<Node>,
        (pool, disk, handoffs): (Pool, Disk, Handoffs),
        shards: Vec<(LogId, Shard)>,
        clock: Clock,
    ) -> Core {
        let logs: Vec<LogId> = shards.iter().map(|(log, _)| *log).collect();
        let local = |(_, shard)| Local {
            shard,
            ready: true,
            stopped: false,
        };
        let core = Core {
            index,
            node,
            clock,
            pool: RefCell::new(pool),
            disk: RefCell::new(disk),
            shards: RefCell::new(shards.into_iter().map(local).collect()),
            connections: RefCell::default(),
            next_connection: Cell::new(1),
            work: Signal::default(),
            deadline: Cell::new(None),
            deadline_moved: Signal::default(),
            stopping: Cell::new(false),
            stopped: Signal::default(),
            dials: Dials::default(),
            complaints: Cell::default(),
            refusals: Refusals::default(),
            twins: Twins::default(),
            full_told: Cell::new((Time(0), 0)),
            not_accepted_told: Cell::new((Time(0), 0)),
            queued_bytes: Rc::default(),
            usage: RefCell::new(vec![ShardUsage::default(); logs.len()]),
            logs,
            handoffs,
        };
        core.work.notify();
        core
    }

    /// The logs of this core.
    pub(super) fn logs(&self) -> &[LogId] {
        &self.logs
    }

    /// The place of a log among this core's, if it is one of them.
    pub(super) fn local(&self, log: LogId) -> Option<usize> {
        self.logs.iter().position(|known| *known == log)
    }

    /// The core that owns a log of this cluster; none if the cluster has no such log.
    pub(super) fn owner(&self, log: LogId) -> Option<usize> {
        let config = &self.node.config;
        let known = config.cluster.has(log);
        known.then(|| usize::from(log.shard.0) % config.cores.count)
    }

    pub(super) fn new_connection_id(&self) -> ConnectionId {
        let id = self.next_connection.get();
        self.next_connection.set(id + 1);
        ConnectionId((self.index as u64) << HOME_SHIFT | id)
    }

    /// Tells a shard what happened. What it decides is collected later in this turn.
    pub(super) fn deliver(&self, log: usize, event: Event) {
        let began = Instant::now();
        let now = self.clock.now();
        let local = &mut self.shards.borrow_mut()[log];
        local.shard.handle(now, event, &mut *self.pool.borrow_mut());
        local.ready = true;
        self.note_shard(log, began);
        self.work.notify();
    }

    /// Whether a log could be handed over to `to` now; none if it is not led here.
    pub(super) fn can_hand_over(&self, log: usize, to: NodeId) -> Option<bool> {
        self.shards.borrow()[log].shard.can_promote(to)
    }

    /// Whether a log is read again to find damage.
    pub(super) fn can_scrub(&self, log: usize) -> bool {
        self.shards.borrow()[log].shard.can_scrub()
    }

    /// Whether an operator has paused the link of a log with `peer`; none if there is none.
    pub(super) fn is_link_paused(&self, log: usize, peer: NodeId) -> Option<bool> {
        self.shards.borrow()[log].shard.is_link_paused(peer)
    }

    /// What the shards of this core say of themselves.
    pub(super) fn statuses(&self) -> Vec<ShardStatus> {
        let now = self.clock.now();
        let shards = self.shards.borrow();
        shards.iter().map(|local| local.shard.status(now)).collect()
    }

    /// Logs whose leader has an open epoch as far as this node knows: those of this core as they
    /// are, those of other cores as they last published themselves.
    pub(super) fn open_epochs(&self) -> BTreeMap<LogId, Epoch> {
        let now = self.clock.now();
        let mut open = BTreeMap::new();
        for (log, local) in self.logs.iter().zip(self.shards.borrow().iter()) {
            open.extend(local.shard.epoch_known_open(now).map(|epoch| (*log, epoch)));
        }
        for (index, published) in self.node.published.iter().enumerate() {
            if index != self.index {
                let published = published.read();
                let epochs = published.iter();
                open.extend(epochs.filter_map(|status| Some((status.log, status.open_epoch?))));
            }
        }
        open
    }

    /// Who leads each log, as far as this node knows: from the same sources.
    pub(super) fn leaders(&self) -> BTreeMap<LogId, NodeId> {
        let mut leaders = BTreeMap::new();
        for (log, local) in self.logs.iter().zip(self.shards.borrow().iter()) {
            leaders.extend(local.shard.leader().map(|leader| (*log, leader)));
        }
        for (index, published) in self.node.published.iter().enumerate() {
            if index != self.index {
                let published = published.read();
                let known = published.iter();
                leaders.extend(known.filter_map(|status| Some((status.log, status.leader?))));
            }
        }
        leaders
    }

    /// A buffer may have been let go of by somebody other than a shard.
    pub(super) fn memory_may_have_come_back(&self) {
        if self.pool.borrow_mut().core_may_go_on() {
            for log in 0..self.logs.len() {
                self.deliver(log, Event::Timer);
            }
        }
    }

    /// Somebody found no buffer: the logs give back what they only keep.
    fn relieve(&self) {
        let bytes = self.pool.borrow_mut().take_shortage();
        if bytes > 0 {
            for log in 0..self.logs.len() {
                self.deliver(log, Event::MemoryShort { bytes });
            }
        }
    }

    /// A connection found no buffer.
    pub(super) fn memory_is_short(&self) {
        self.work.notify();
    }

    /// Starts a clean stop of every shard.
    pub(super) fn stop(&self) {
        if !self.stopping.replace(true) {
            for log in 0..self.logs.len() {
                self.deliver(log, Event::Stop);
            }
            self.work.notify();
        }
    }

    /// The task that collects decisions: never ends.
    pub(super) async fn collect_for_ever(self: Rc<Core>) {
        loop {
            self.work.wait().await;
            self.collect();
            self.node.metronomes[self.index].turned();
            glommio::yield_if_needed().await;
        }
    }

    /// Takes in what the disk has done, then carries out all that the shards want.
    fn collect(&self) {
        self.take_completions();
        self.relieve();
        loop {
            self.memory_may_have_come_back();
            let mut idle = true;
            for log in 0..self.logs.len() {
                idle &= !self.collect_from(log);
            }
            if idle {
                break;
            }
        }
        self.disk.borrow_mut().submit();
        if self.disk.borrow_mut().must_ask_again() {
            self.work.notify();
        }
        self.note_deadline();
        let done = self.stopping.get() && self.shards.borrow().iter().all(|local| local.stopped);
        if done {
            self.stopped.notify();
        }
    }

    fn collect_from(&self, log: usize) -> bool {
        if !std::mem::take(&mut self.shards.borrow_mut()[log].ready) {
            return false;
        }
        let began = Instant::now();
        let now = self.clock.now();
        loop {
            let action = {
                let shard = &mut self.shards.borrow_mut()[log].shard;
                shard.poll_action(now, &mut *self.pool.borrow_mut())
            };
            match action {
                Some(action) => self.carry_out(log, action),
                None => break,
            }
        }
        self.note_shard(log, began);
        true
    }

    fn carry_out(&self, log: usize, action: Action) {
        match action {
            Action::Disk(operation) => {
                let mut pool = self.pool.borrow_mut();
                self.disk.borrow_mut().start(log, operation, &mut pool);
            }
            Action::Send {
                connection,
                body,
                parts,
            } => self.send(log, connection, &body, parts),
            Action::Reply {
                request,
                body,
                part,
            } => self.reply(log, request, body, part),
            Action::Dial { peer } => {
                self.dials.queue.borrow_mut().push((log, peer));
                self.dials.signal.notify();
            }
            Action::Close { connection, code } => {
                if let Some(connection) = self.connection(connection) {
                    // The shard has forgotten it: no event of it may reach the shard any more.
                    connection.known_to.borrow_mut().remove(&log);
                    connection.refuse(code, [0, 0], 0, self.logs[log]);
                    connection.close_after_queue(self.close_by());
                }
            }
            Action::Release(buffer) => self.pool.borrow_mut().release(buffer),
            Action::Log(notice) => say(&notice),
            Action::Stopped => self.shards.borrow_mut()[log].stopped = true,
        }
    }

    fn connection(&self, id: ConnectionId) -> Option<Rc<Connection>> {
        self.connections.borrow().get(&id).cloned()
    }

    fn send(&self, log: usize, connection: ConnectionId, body: &Body, parts: Vec<Part>) {
        if let Some(connection) = self.connection(connection) {
            let began = Instant::now();
            let payload: usize = parts.iter().map(|part| part.len).sum();
            let head = body.encode(0, self.logs[log], payload);
            let bytes = head.len() + payload;
            let pool = &mut self.pool.borrow_mut();
            connection.send_parts(head, parts, Some(Teller::Log(log)), pool);
            self.note_sent(log, &connection, bytes, began);
        }
    }

    fn reply(&self, log: usize, request: Request, body: Body, part: Option<Part>) {
        let home = (request.connection.0 >> HOME_SHIFT) as usize;
        if home != self.index {
            return handoff::answer(self, home, log, (request, body, part));
        }
        if let Some(connection) = self.answered(request) {
            let payload = part.map_or(0, |part| part.len);
            let head = body.encode(request.correlation, self.logs[log], payload);
            let parts = part.into_iter().collect();
            let tell = Some(Teller::Log(log));
            connection.send_parts(head, parts, tell, &mut self.pool.borrow_mut());
        }
    }

    /// A request has its answer: the connection that it goes to, if that is still there.
    pub(super) fn answered(&self, request: Request) -> Option<Rc<Connection>> {
        let connection = self.connection(request.connection)?;
        let waiting = connection
            .unanswered
            .borrow_mut()
            .remove(&request.correlation);
        let bytes = connection.unanswered_bytes.get();
        connection
            .unanswered_bytes
            .set(bytes - waiting.unwrap_or(0));
        connection.progress.notify();
        Some(connection)
    }

    /// A payload has left a connection for its socket.
    pub(super) fn payload_left(&self, connection: ConnectionId, teller: Teller, bytes: usize) {
        match teller {
            Teller::Log(log) => self.deliver(log, Event::Sent { connection, bytes }),
            Teller::Owner(owner, log) => handoff::owe(self, connection, (owner, log), bytes),
        }
    }

    fn take_completions(&self) {
        loop {
            let done = {
                let mut pool = self.pool.borrow_mut();
                self.disk.borrow_mut().completed(&mut pool)
            };
            let Some(done) = done else { return };
            let (ticket, result) = (done.ticket, done.result);
            self.deliver(done.log, Event::Disk { ticket, result });
        }
    }

    /// Transfers may have ended.
    pub(super) fn disk_is_ready(&self) {
        self.work.notify();
    }

    /// A blocking thread has carried out a request.
    pub(super) fn disk_finished(&self, outcome: Outcome) {
        let done = self.disk.borrow_mut().finished(outcome);
        let (ticket, result) = (done.ticket, done.result);
        self.deliver(done.log, Event::Disk { ticket, result });
    }

    /// Whether there may be a line about what somebody else did wrong. A few a second: strangers
    /// can make as many mistakes as they like, and the counters tell of all.
    pub(super) fn may_complain(&self) -> bool {
        let second = self.clock.now().0 / 1_000_000;
        let (last, lines) = self.complaints.get();
        let lines = if last == second { lines + 1 } else { 1 };
        self.complaints.set((second, lines.min(COMPLAINTS + 1)));
        lines <= COMPLAINTS
    }

    /// When a payload whose buffer was just taken must be here.
    pub(super) fn payload_by(&self) -> Time {
        self.clock.now().plus_us(limits::PAYLOAD_MS * 1000)
    }

    /// When a connection that begins to close now must be closed.
    pub(super) fn close_by(&self) -> Time {
        self.clock.now().plus_us(limits::HANDSHAKE_MS * 1000)
    }

    /// A connection takes no more frames: tells every shard that knows it.
    pub(super) fn connection_ends(&self, connection: &Connection) {
        let known_to = std::mem::take(&mut *connection.known_to.borrow_mut());
        let (id, kind) = (connection.id, connection.kind.get());
        for log in known_to {
            let connection = id;
            let event = match kind {
                Kind::Peer { .. } => Event::PeerDown { connection },
                Kind::New | Kind::Client => Event::ClientGone { connection },
            };
            self.deliver(log, event);
        }
    }

    /// A connection is gone.
    pub(super) fn connection_down(&self, connection: &Connection) {
        connection.kill();
        self.connections.borrow_mut().remove(&connection.id);
        let dropped = connection.drop_queue(&mut self.pool.borrow_mut());
        self.memory_may_have_come_back();
        for (teller, bytes) in dropped {
            // The owner of a log elsewhere was told that all is gone.
            if let Teller::Log(log) = teller
                && connection.known_to.borrow().contains(&log)
            {
                self.payload_left(connection.id, teller, bytes);
            }
        }
        self.connection_ends(connection);
    }

    /// Looks up when a shard wants to see the clock again.
    fn note_deadline(&self) {
        let shards = self.shards.borrow();
        let next = shards.iter().filter_map(|local| local.shard.poll_timeout());
        let next = next.min();
        let before = self.deadline.replace(next);
        // A later one than before is looked up when the earlier one has passed.
        if next.is_some_and(|next| before.is_none_or(|before| next < before)) {
            self.deadline_moved.notify();
        }
    }

    /// The task that tells shards that their time has come: never ends.
    pub(super) async fn keep_time(self: Rc<Core>) {
        let mut timer = Timer::new(Duration::ZERO);
        let mut armed = None;
        loop {
            poll_fn(|context| {
                self.deadline_moved.take();
                self.deadline_moved.register(context.waker());
                let Some(deadline) = self.deadline.get() else {
                    return Poll::Pending;
                };
                if armed.is_none_or(|armed| deadline < armed) {
                    timer = Timer::new(self.clock.until(deadline).max(SHORTEST_WAIT));
                    armed = Some(deadline);
                }
                Pin::new(&mut timer).poll(context)
            })
            .await;
            armed = None;
            let now = self.clock.now();
            for log in 0..self.logs.len() {
                let due = self.shards.borrow()[log].shard.poll_timeout();
                if due.is_some_and(|due| due <= now) {
                    self.deliver(log, Event::Timer);
                }
            }
            // Nothing was due: the deadline has moved on since the timer was armed.
            self.note_deadline();
            glommio::yield_if_needed().await;
        }
    }
}

/// Writes a line for operators.
fn say(notice: &Notice) {
    let Notice { message, log, text } = notice;
    let id = message.name();
    match message.severity() {
        Severity::Info => tracing::info!(id, %log, "{text}"),
        Severity::Warn => tracing::warn!(id, %log, "{text}"),
        Severity::Error => tracing::error!(id, %log, "{text}"),
    }
}
