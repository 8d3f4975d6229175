//! Requests of clients that came to the port of another core, and their answers.
//!
//! The core that read a request hands it to the core that owns the log and gets the answer back;
//! the client notices nothing but the time. Each pair of cores has two lanes in each direction (see
//! `lane.rs`), bounded in entries and bytes; a payload is copied into a lane and out of it, because
//! a buffer never leaves its core. A request that finds its lane full stays with the connection
//! that brought it, which reads no further until there is room; an answer stays in the owner's
//! outbox, and while that is long the owner takes no further requests. Answers are always taken, so
//! nothing ever waits in a circle. One connection's requests stay in order for each shard, because
//! one task hands them over. When a connection has ended, its owners are told last.

use super::connection::{Connection, Teller};
use super::driver::Core;
use super::lane::{Receiver, Sender, lane};
use super::local::{Line, Signal};
use crate::buffers::Buffers;
use crate::limits;
use crate::shard::{Event, Part, Request};
use crate::types::{ConnectionId, LogId};
use crate::wire::body::Body;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::Poll;

/// What goes to the core that owns a log.
#[derive(Debug)]
pub(super) enum Ask {
    /// A client asks. The batch of an append is here; its event names no buffer yet.
    Event {
        log: LogId,
        event: Event,
        batch: Vec<u8>,
    },
    /// Payloads of answers have left for the client's socket.
    Left {
        connection: ConnectionId,
        log: LogId,
        bytes: usize,
    },
    /// The client is gone; nothing of it follows.
    Gone { connection: ConnectionId },
}

/// What comes back.
#[derive(Debug)]
pub(super) struct Answer {
    request: Request,
    log: LogId,
    body: Body,
    payload: Vec<u8>,
}

/// The ends of one core's lanes, one set for each other core.
pub(super) type Ends = Vec<Option<LaneEnds>>;

/// The lanes between this core and another one.
#[derive(Debug)]
pub(super) struct LaneEnds {
    asks_out: Sender<Ask>,
    asks_in: Receiver<Ask>,
    answers_out: Sender<Answer>,
    answers_in: Receiver<Answer>,
}

/// Lanes between all pairs of cores: the ends of each core.
pub(super) fn connect(cores: usize) -> Vec<Ends> {
    let mut ends: Vec<Ends> = (0..cores)
        .map(|_| (0..cores).map(|_| None).collect())
        .collect();
    let others = |one| (one + 1..cores).map(move |other| (one, other));
    for (one, other) in (0..cores).flat_map(others) {
        let (asks_out, others_asks_in) = lane();
        let (others_asks_out, asks_in) = lane();
        let (answers_out, others_answers_in) = lane();
        let (others_answers_out, answers_in) = lane();
        ends[one][other] = Some(LaneEnds {
            asks_out,
            asks_in,
            answers_out,
            answers_in,
        });
        ends[other][one] = Some(LaneEnds {
            asks_out: others_asks_out,
            asks_in: others_asks_in,
            answers_out: others_answers_out,
            answers_in: others_answers_in,
        });
    }
    ends
}

/// This core's side of all its lanes.
#[derive(Debug)]
pub(super) struct Handoffs {
    neighbours: Vec<Option<Neighbour>>,
}

/// Another core, as this one sees it.
#[derive(Debug)]
struct Neighbour {
    lanes: LaneEnds,
    /// Connections that wait for room among the requests.
    room: Line,
    /// The task that takes requests, when there may be one.
    asked: Signal,
    /// The task that sends answers, when it may send one.
    outgoing: Signal,
    /// The task that takes answers, when there may be one.
    answered: Signal,
    /// Answers that wait for room. Their buffers are held.
    outbox: RefCell<VecDeque<Waiting>>,
    /// What the owner of a log has yet to hear of payloads that have left: at most one entry for
    /// each live connection and log.
    owed: RefCell<BTreeMap<(ConnectionId, LogId), usize>>,
    /// Logs here that know of a connection there.
    known: RefCell<BTreeMap<ConnectionId, BTreeSet<usize>>>,
}

#[derive(Debug)]
struct Waiting {
    request: Request,
    log: LogId,
    body: Body,
    part: Option<Part>,
}

impl Waiting {
    fn bytes(&self) -> usize {
        size_of::<Answer>() + self.part.map_or(0, |part| part.len)
    }
}

impl Handoffs {
    pub(super) fn new(ends: Ends) -> Handoffs {
        let neighbour = |lanes| Neighbour {
            lanes,
            room: Line::default(),
            asked: Signal::default(),
            outgoing: Signal::default(),
            answered: Signal::default(),
            outbox: RefCell::default(),
            owed: RefCell::default(),
            known: RefCell::default(),
        };
        let neighbours = ends.into_iter().map(|lanes| lanes.map(neighbour));
        Handoffs {
            neighbours: neighbours.collect(),
        }
    }

    fn with(&self, core: usize) -> &Neighbour {
        let neighbour = self.neighbours[core].as_ref();
        neighbour.expect("a core hands nothing to itself")
    }

    fn neighbours(&self) -> impl Iterator<Item = (usize, &Neighbour)> {
        let all = self.neighbours.iter().enumerate();
        all.filter_map(|(index, neighbour)| Some((index, neighbour.as_ref()?)))
    }

    /// Whether anything is on its way to this core or from it.
    pub(super) fn are_busy(&self) -> bool {
        self.neighbours().any(|(_, neighbour)| {
            let lanes = &neighbour.lanes;
            let empty = lanes.asks_in.is_empty() && lanes.answers_in.is_empty();
            !empty || !neighbour.outbox.borrow().is_empty()
        })
    }
}

/// Somebody rang: wakes the tasks that may go on now. Cheap when nothing is there.
pub(super) fn hear(core: &Core) {
    for (index, neighbour) in core.handoffs.neighbours() {
        pay(core, index, neighbour);
        if !neighbour.lanes.asks_in.is_empty() {
            neighbour.asked.notify();
        }
        if !neighbour.lanes.answers_in.is_empty() {
            neighbour.answered.notify();
        }
        if !neighbour.outbox.borrow().is_empty() {
            neighbour.outgoing.notify();
        }
        neighbour.room.wake_first();
    }
}

/// Starts the tasks of this core's lanes.
pub(super) fn start(core: &Rc<Core>) {
    for (index, _) in core.handoffs.neighbours() {
        glommio::spawn_local(take_asks(core.clone(), index)).detach();
        glommio::spawn_local(send_answers(core.clone(), index)).detach();
        glommio::spawn_local(take_answers(core.clone(), index)).detach();
    }
}

/// Hands a request to the owner of its log once there is room; false if the connection ended
/// before. The batch is copied when there is room, not before.
pub(super) async fn hand_over(
    core: &Core,
    connection: &Connection,
    (owner, log): (usize, LogId),
    event: Event,
) -> bool {
    let bytes = size_of::<Ask>() + append_len(&event);
    connection.asked_cores.borrow_mut().insert(owner);
    let room = wait_for_room(core, owner, bytes, Some(connection)).await;
    let buffer = match &event {
        Event::Append { buffer, len, .. } => Some((*buffer, *len)),
        _ => None,
    };
    if room {
        let copy = |(buffer, len)| core.pool.borrow().bytes(buffer)[..len].to_vec();
        let batch = buffer.map(copy).unwrap_or_default();
        let ask = Ask::Event { log, event, batch };
        send_ask(core, owner, ask, bytes);
        core.node.handoffs[core.index].fetch_add(1, Ordering::Relaxed);
    }
    if let Some((buffer, _)) = buffer {
        core.pool.borrow_mut().release(buffer);
        core.memory_may_have_come_back();
    }
    room
}

fn append_len(event: &Event) -> usize {
    match event {
        Event::Append { len, .. } => *len,
        _ => 0,
    }
}

/// Tells every core that knows of it that a connection has ended.
pub(super) async fn leave(core: &Core, connection: &Connection) {
    let owners = std::mem::take(&mut *connection.asked_cores.borrow_mut());
    for owner in owners {
        wait_for_room(core, owner, size_of::<Ask>(), None).await;
        let neighbour = core.handoffs.with(owner);
        let mut owed = neighbour.owed.borrow_mut();
        owed.retain(|(id, _), _| *id != connection.id);
        drop(owed);
        let connection = connection.id;
        send_ask(core, owner, Ask::Gone { connection }, size_of::<Ask>());
    }
}

fn send_ask(core: &Core, owner: usize, ask: Ask, bytes: usize) {
    core.handoffs.with(owner).lanes.asks_out.send(ask, bytes);
    core.node.metronomes[owner].poke();
}

/// Waits for room among the requests; false once the connection, if one is named, is dead.
async fn wait_for_room(
    core: &Core,
    owner: usize,
    bytes: usize,
    connection: Option<&Connection>,
) -> bool {
    let neighbour = core.handoffs.with(owner);
    let (line, lane) = (&neighbour.room, &neighbour.lanes.asks_out);
    let mut ticket = None;
    poll_fn(|context| {
        if connection.is_some_and(Connection::is_dead) {
            line.leave(&mut ticket);
            return Poll::Ready(false);
        }
        if line.may_go(&mut ticket, context.waker(), || lane.has_room(bytes)) {
            return Poll::Ready(true);
        }
        if let Some(connection) = connection {
            connection.progress.register(context.waker());
        }
        Poll::Pending
    })
    .await
}

/// The owner of a log is to hear that a payload has left, when there is room to say so.
pub(super) fn owe(core: &Core, connection: ConnectionId, (owner, log): (usize, LogId), n: usize) {
    let neighbour = core.handoffs.with(owner);
    *neighbour
        .owed
        .borrow_mut()
        .entry((connection, log))
        .or_default() += n;
    pay(core, owner, neighbour);
}

fn pay(core: &Core, owner: usize, neighbour: &Neighbour) {
    let mut owed = neighbour.owed.borrow_mut();
    while !owed.is_empty() && neighbour.lanes.asks_out.has_room(size_of::<Ask>()) {
        let ((connection, log), bytes) = owed.pop_first().expect("it is not empty");
        let left = Ask::Left {
            connection,
            log,
            bytes,
        };
        send_ask(core, owner, left, size_of::<Ask>());
    }
}

/// The task that takes requests of another core's clients: never ends.
async fn take_asks(core: Rc<Core>, from: usize) {
    let neighbour = core.handoffs.with(from);
    loop {
        let (ask, wanted) = poll_fn(|context| {
            let full = neighbour.outbox.borrow().len() >= limits::HANDOFF_ENTRIES;
            let taken = (!full).then(|| neighbour.lanes.asks_in.take()).flatten();
            if let Some(taken) = taken {
                return Poll::Ready(taken);
            }
            neighbour.asked.register(context.waker());
            Poll::Pending
        })
        .await;
        if wanted {
            core.node.metronomes[from].poke();
        }
        take_in(&core, from, ask).await;
        glommio::yield_if_needed().await;
    }
}

async fn take_in(core: &Core, from: usize, ask: Ask) {
    let neighbour = core.handoffs.with(from);
    match ask {
        Ask::Event { log, event, batch } => {
            let local = core.local(log).expect("the sender looked up the owner");
            let event = with_buffer(core, event, batch).await;
            let connection = request_of(&event).connection;
            let mut known = neighbour.known.borrow_mut();
            known.entry(connection).or_default().insert(local);
            drop(known);
            core.deliver(local, event);
        }
        Ask::Left {
            connection,
            log,
            bytes,
        } => {
            let local = core.local(log).expect("the log has answered");
            core.deliver(local, Event::Sent { connection, bytes });
        }
        Ask::Gone { connection } => {
            let known = neighbour.known.borrow_mut().remove(&connection);
            for local in known.into_iter().flatten() {
                core.deliver(local, Event::ClientGone { connection });
            }
        }
    }
}

/// Lays the batch of an append into a buffer of this core, waiting for one.
async fn with_buffer(core: &Core, mut event: Event, batch: Vec<u8>) -> Event {
    if let Event::Append { buffer, .. } = &mut event {
        *buffer = poll_fn(|context| {
            let mut pool = core.pool.borrow_mut();
            if let Some(buffer) = pool.take_for_append(batch.len()) {
                return Poll::Ready(buffer);
            }
            pool.wait(context.waker());
            Poll::Pending
        })
        .await;
        let mut pool = core.pool.borrow_mut();
        pool.bytes_mut(*buffer)[..batch.len()].copy_from_slice(&batch);
    }
    event
}

/// Who asked.
fn request_of(event: &Event) -> Request {
    match event {
        Event::Append { request, .. }
        | Event::Read { request, .. }
        | Event::Find { request, .. } => *request,
        _ => panic!("only a client's requests are handed over"),
    }
}

/// A log of this core answers a client of core `home`: the answer goes there in its turn.
pub(super) fn answer(
    core: &Core,
    home: usize,
    log: usize,
    (request, body, part): (Request, Body, Option<Part>),
) {
    let neighbour = core.handoffs.with(home);
    if !neighbour.known.borrow().contains_key(&request.connection) {
        return;
    }
    if let Some(part) = part {
        core.pool.borrow_mut().hold(part.buffer);
    }
    let log = core.logs()[log];
    neighbour.outbox.borrow_mut().push_back(Waiting {
        request,
        log,
        body,
        part,
    });
    neighbour.outgoing.notify();
}

/// The task that sends answers to another core's clients: never ends.
async fn send_answers(core: Rc<Core>, to: usize) {
    let neighbour = core.handoffs.with(to);
    loop {
        let waiting = poll_fn(|context| {
            let mut outbox = neighbour.outbox.borrow_mut();
            let bytes = outbox.front().map(Waiting::bytes);
            if bytes.is_some_and(|bytes| neighbour.lanes.answers_out.has_room(bytes)) {
                return Poll::Ready(outbox.pop_front().expect("it has a first one"));
            }
            neighbour.outgoing.register(context.waker());
            Poll::Pending
        })
        .await;
        let bytes = waiting.bytes();
        let mut payload = Vec::new();
        if let Some(part) = waiting.part {
            let mut pool = core.pool.borrow_mut();
            let whole = pool.bytes(part.buffer);
            payload.extend_from_slice(&whole[part.start..part.start + part.len]);
            pool.unhold(part.buffer);
        }
        let answer = Answer {
            request: waiting.request,
            log: waiting.log,
            body: waiting.body,
            payload,
        };
        neighbour.lanes.answers_out.send(answer, bytes);
        core.node.metronomes[to].poke();
        core.memory_may_have_come_back();
        neighbour.asked.notify();
        glommio::yield_if_needed().await;
    }
}

/// The task that takes answers for this core's clients: never ends, never waits for a client.
async fn take_answers(core: Rc<Core>, from: usize) {
    let neighbour = core.handoffs.with(from);
    loop {
        let (answer, wanted) = poll_fn(|context| {
            if let Some(taken) = neighbour.lanes.answers_in.take() {
                return Poll::Ready(taken);
            }
            neighbour.answered.register(context.waker());
            Poll::Pending
        })
        .await;
        if wanted {
            core.node.metronomes[from].poke();
        }
        let Answer {
            request,
            log,
            body,
            payload,
        } = answer;
        if let Some(connection) = core.answered(request) {
            let head = body.encode(request.correlation, log, payload.len());
            connection.send_bytes(head, payload, Teller::Owner(from, log));
        }
        glommio::yield_if_needed().await;
    }
}
