//! The simulated network between the nodes: connections, what is in flight on them, what goes
//! wrong.
//!
//! A connection is a pair of byte streams that keep their order, as TCP does. A cut stalls what is
//! in flight until it heals; a reset drops it and tells both ends; the loss of an end is told to
//! the other one only when a packet can travel. A socket takes so many bytes, later frames wait at
//! the sender and their buffers stay held: `Sent` comes when the socket took them. What arrives
//! comes out of `pop`, for the world to carry to the node. Read `framing.rs` and `world.rs` next.

use super::network_parts::{Flight, Item, Pair};
pub use super::network_parts::{NetCounts, NetEvent, NetOptions, Outgoing};
use super::rng::Rng;
use millrace::limits::FRAME_HEADER;
use millrace::types::ConnectionId;
use millrace::wire::body::Channel;
use std::collections::BTreeMap;

/// All connections between the nodes.
#[derive(Debug)]
pub struct Network {
    rng: Rng,
    /// How it behaves; may be changed at any time.
    pub options: NetOptions,
    /// What it did so far.
    pub counts: NetCounts,
    agenda: BTreeMap<(u64, u64), Task>,
    agenda_next: u64,
    pairs: BTreeMap<u64, Pair>,
    ends: BTreeMap<ConnectionId, (u64, usize)>,
    next_pair: u64,
    next_connection: u64,
    /// `blocked[from][to]`: nothing travels.
    blocked: Vec<Vec<bool>>,
    up: Vec<bool>,
    paused: Vec<bool>,
    /// The next frame sent on this connection gets a bit of its typed body inverted.
    flip_once: Option<ConnectionId>,
}

#[derive(Debug)]
enum Task {
    Arrive {
        pair: u64,
        from_side: usize,
    },
    Dialing {
        from: usize,
        to: usize,
        channel: Channel,
        until_us: u64,
    },
    /// The dialer has waited long enough for the listener's word.
    GreetingTimeout {
        pair: u64,
    },
    Tell(NetEvent),
}

impl Network {
    /// A network without connections between so many nodes, all of them down.
    pub fn new(nodes: usize, options: NetOptions, rng: Rng) -> Network {
        Network {
            rng,
            options,
            counts: NetCounts::default(),
            agenda: BTreeMap::new(),
            agenda_next: 0,
            pairs: BTreeMap::new(),
            ends: BTreeMap::new(),
            next_pair: 0,
            next_connection: 1,
            blocked: vec![vec![false; nodes]; nodes],
            up: vec![false; nodes],
            paused: vec![false; nodes],
            flip_once: None,
        }
    }

    /// The next frame sent on this connection gets a bit of its typed body inverted.
    pub fn flip_next(&mut self, connection: ConnectionId) {
        self.flip_once = Some(connection);
    }

    /// The id at the end of `from` of an open connection that it dialed to `to`.
    pub fn dialed_id(&self, from: usize, to: usize, channel: Channel) -> Option<ConnectionId> {
        let open = self.pairs.values().find(|pair| {
            pair.nodes == [from, to] && pair.channel == channel && pair.open == [true, true]
        });
        open.map(|pair| pair.ids[0])
    }

    /// A connection id that nobody has.
    pub fn fresh_id(&mut self) -> ConnectionId {
        self.next_connection += 1;
        ConnectionId(self.next_connection)
    }

    /// When something happens next.
    pub fn next_at(&self) -> Option<u64> {
        self.agenda.keys().next().map(|(at, _)| *at)
    }

    /// The next thing that a node must be told, at `now_us` or before.
    pub fn pop(&mut self, now_us: u64) -> Option<NetEvent> {
        while self.next_at().is_some_and(|at| at <= now_us) {
            let (_, task) = self.agenda.pop_first().expect("just seen");
            let told = match task {
                Task::Tell(event) => Some(event),
                Task::Arrive { pair, from_side } => self.arrive(now_us, pair, from_side),
                Task::GreetingTimeout { pair } => self.greeting_timeout(now_us, pair),
                Task::Dialing {
                    from,
                    to,
                    channel,
                    until_us,
                } => self.dialing(now_us, from, to, channel, until_us),
            };
            if told.is_some() {
                return told;
            }
        }
        None
    }

    /// Whether the dialing end believes in a connection of this channel, or is dialing.
    pub fn dialed(&self, from: usize, to: usize, channel: Channel) -> bool {
        let open = self.pairs.values().any(|pair| {
            pair.nodes == [from, to] && pair.channel == channel && (pair.open[0] || pair.greeting)
        });
        open || self.agenda.values().any(|task| {
            matches!(task, Task::Dialing { from: f, to: t, channel: c, .. }
                if (*f, *t, *c) == (from, to, channel))
        })
    }

    /// `from` opens a connection to `to`.
    pub fn dial(&mut self, now_us: u64, from: usize, to: usize, channel: Channel) {
        let at = now_us + self.latency(0);
        let until_us = now_us + self.options.dial_timeout_us;
        self.at(
            at,
            Task::Dialing {
                from,
                to,
                channel,
                until_us,
            },
        );
    }

    fn dialing(
        &mut self,
        now_us: u64,
        from: usize,
        to: usize,
        channel: Channel,
        until_us: u64,
    ) -> Option<NetEvent> {
        if !self.up[from] {
            return None;
        }
        let silent = self.blocked[from][to] || self.blocked[to][from] || self.paused[to];
        if silent && now_us < until_us {
            let at = (now_us + 20_000).min(until_us);
            self.at(
                at,
                Task::Dialing {
                    from,
                    to,
                    channel,
                    until_us,
                },
            );
            return None;
        }
        if silent || !self.up[to] {
            return (channel == Channel::Data).then_some(NetEvent::DialFailed {
                node: from,
                peer: to,
            });
        }
        let ids = [self.fresh_id(), self.fresh_id()];
        let key = self.next_pair;
        self.next_pair += 1;
        self.pairs.insert(key, Pair::new([from, to], ids, channel));
        self.ends.insert(ids[0], (key, 0));
        self.ends.insert(ids[1], (key, 1));
        self.push(now_us, key, 1, Item::HelloOk, None);
        self.at(until_us, Task::GreetingTimeout { pair: key });
        Some(NetEvent::Up {
            node: to,
            peer: from,
            connection: ids[1],
            channel,
            dialed: false,
        })
    }

    fn greeting_timeout(&mut self, now_us: u64, key: u64) -> Option<NetEvent> {
        let greeting = self.pairs.get(&key).is_some_and(|pair| pair.greeting);
        greeting.then(|| self.lose_end(now_us, key, 0)).flatten()
    }

    /// The node's end of a connection, if it still believes in it: its peer and channel.
    pub fn end(&self, connection: ConnectionId) -> Option<(usize, usize, Channel)> {
        let (key, side) = self.ends.get(&connection)?;
        let pair = self.pairs.get(key)?;
        let nodes = (pair.nodes[*side], pair.nodes[1 - *side], pair.channel);
        pair.open[*side].then_some(nodes)
    }

    /// A node sends a frame. The bytes may be changed on the way.
    pub fn send(&mut self, now_us: u64, connection: ConnectionId, outgoing: Outgoing) {
        let Some((key, side)) = self.ends.get(&connection).copied() else {
            return self.dropped(now_us, connection, outgoing);
        };
        if self.end(connection).is_none() {
            return self.dropped(now_us, connection, outgoing);
        }
        let mut outgoing = outgoing;
        let (head, total) = (outgoing.head_len, outgoing.bytes.len());
        if self.flip_once == Some(connection) && head > FRAME_HEADER {
            self.flip_once = None;
            self.counts.head_flips += 1;
            self.flip(&mut outgoing.bytes[FRAME_HEADER..head]);
        }
        if self.rng.happens(self.options.head_flip) {
            self.counts.head_flips += 1;
            self.flip(&mut outgoing.bytes[..head]);
        }
        if total > head && self.rng.happens(self.options.payload_flip) {
            self.counts.payload_flips += 1;
            self.flip(&mut outgoing.bytes[head..]);
        }
        let bytes = std::mem::take(&mut outgoing.bytes);
        self.push(now_us, key, side, Item::Frame(bytes), Some(outgoing));
    }

    fn flip(&mut self, bytes: &mut [u8]) {
        let at = self.rng.index(bytes.len());
        bytes[at] ^= 1 << self.rng.below(8);
    }

    fn dropped(&mut self, now_us: u64, connection: ConnectionId, outgoing: Outgoing) {
        if outgoing.parts_len > 0 {
            let event = outgoing.sent(connection);
            self.at(now_us, Task::Tell(event));
        }
    }

    fn push(&mut self, now_us: u64, key: u64, side: usize, item: Item, outgoing: Option<Outgoing>) {
        let len = item.len();
        let latency = self.latency(len);
        let pair = self.pairs.get_mut(&key).expect("an open pair");
        let way = &mut pair.ways[side];
        let arrive_at = (now_us + latency).max(way.last_arrival_us);
        way.last_arrival_us = arrive_at;
        way.queue.push_back(Flight {
            item,
            arrive_at,
            outgoing,
            in_socket: false,
        });
        self.schedule(now_us, key, side);
        self.fill_socket(now_us, key, side);
    }

    /// Wakes the front of a way when it is there. One wake at a time.
    fn schedule(&mut self, now_us: u64, key: u64, from_side: usize) {
        let Some(pair) = self.pairs.get_mut(&key) else {
            return;
        };
        let way = &mut pair.ways[from_side];
        if way.parked || way.scheduled {
            return;
        }
        let Some(front) = way.queue.front() else {
            return;
        };
        let at = front.arrive_at.max(now_us);
        way.scheduled = true;
        self.at(
            at,
            Task::Arrive {
                pair: key,
                from_side,
            },
        );
    }

    /// Lets waiting frames into the socket as far as it has room, and says so.
    fn fill_socket(&mut self, now_us: u64, key: u64, side: usize) {
        let room = self.options.socket_bytes;
        let Some(pair) = self.pairs.get_mut(&key) else {
            return;
        };
        let connection = pair.ids[side];
        let taken = pair.ways[side].fill(room);
        for outgoing in taken.into_iter().filter(|outgoing| outgoing.parts_len > 0) {
            let at = now_us + self.rng.between(1, 20);
            self.at(at, Task::Tell(outgoing.sent(connection)));
        }
    }

    fn arrive(&mut self, now_us: u64, key: u64, from_side: usize) -> Option<NetEvent> {
        let pair = self.pairs.get_mut(&key)?;
        let (from, to) = (pair.nodes[from_side], pair.nodes[1 - from_side]);
        let way = &mut pair.ways[from_side];
        way.scheduled = false;
        let front = way.queue.front()?;
        if self.blocked[from][to] || self.paused[to] || !self.up[to] {
            way.parked = true;
            return None;
        }
        if front.arrive_at > now_us {
            self.schedule(now_us, key, from_side);
            return None;
        }
        let flight = way.queue.pop_front().expect("just seen");
        self.schedule(now_us, key, from_side);
        self.fill_socket(now_us, key, from_side);
        self.take_in(now_us, key, 1 - from_side, flight.item)
    }

    /// The end `side` of a pair gets what arrived.
    fn take_in(&mut self, now_us: u64, key: u64, side: usize, item: Item) -> Option<NetEvent> {
        let pair = self.pairs.get_mut(&key)?;
        let (node, connection) = (pair.nodes[side], pair.ids[side]);
        match item {
            Item::HelloOk if pair.greeting => {
                pair.greeting = false;
                pair.open[side] = true;
                Some(NetEvent::Up {
                    node,
                    peer: pair.nodes[1 - side],
                    connection,
                    channel: pair.channel,
                    dialed: true,
                })
            }
            Item::Frame(bytes) if pair.open[side] => Some(NetEvent::Frame {
                node,
                connection,
                bytes,
            }),
            Item::Fin => self.lose_end(now_us, key, side),
            Item::HelloOk | Item::Frame(_) => {
                // Nobody is there any more: the other end is told.
                let at = now_us + self.latency(0);
                if let Some(told) = self.lose_end(now_us, key, 1 - side) {
                    self.at(at, Task::Tell(told));
                }
                None
            }
        }
    }

    /// One end of a pair learns that the connection is gone.
    fn lose_end(&mut self, now_us: u64, key: u64, side: usize) -> Option<NetEvent> {
        let pair = self.pairs.get_mut(&key)?;
        let (node, connection) = (pair.nodes[side], pair.ids[side]);
        let greeting = std::mem::take(&mut pair.greeting) && side == 0;
        let was_open = std::mem::take(&mut pair.open[side]);
        let left = pair.ways[side].clear();
        let failed = greeting && pair.channel == Channel::Data;
        let peer = pair.nodes[1 - side];
        self.drop_left(now_us, connection, left);
        self.bury_dead(now_us);
        if failed {
            return Some(NetEvent::DialFailed { node, peer });
        }
        was_open.then_some(NetEvent::Down { node, connection })
    }

    /// What was never sent: the sender gets its buffers back, before or after it hears of the loss.
    fn drop_left(&mut self, now_us: u64, connection: ConnectionId, left: Vec<Outgoing>) {
        for outgoing in left.into_iter().filter(|outgoing| outgoing.parts_len > 0) {
            let at = now_us + self.rng.below(2) * 50;
            self.at(at, Task::Tell(outgoing.sent(connection)));
        }
    }

    /// A node closes its end after saying `last`, if anything.
    pub fn close(&mut self, now_us: u64, connection: ConnectionId, last: Option<Vec<u8>>) {
        let Some((key, side)) = self.ends.get(&connection).copied() else {
            return;
        };
        if self.end(connection).is_none() {
            return;
        }
        if let Some(bytes) = last {
            self.push(now_us, key, side, Item::Frame(bytes), None);
        }
        self.push(now_us, key, side, Item::Fin, None);
        if let Some(pair) = self.pairs.get_mut(&key) {
            pair.open[side] = false;
        }
        self.bury_dead(now_us);
    }

    /// Drops a connection: both ends hear of it soon. Says whether there was one.
    pub fn reset_any(&mut self, now_us: u64) -> bool {
        let open: Vec<u64> = self
            .pairs
            .iter()
            .filter(|(_, pair)| pair.open == [true, true])
            .map(|(key, _)| *key)
            .collect();
        if open.is_empty() {
            return false;
        }
        let key = *self.rng.pick(&open);
        self.reset_pair(now_us, key);
        true
    }

    /// Drops this connection in the same way.
    pub fn reset(&mut self, now_us: u64, connection: ConnectionId) {
        if let Some((key, _)) = self.ends.get(&connection).copied() {
            self.reset_pair(now_us, key);
        }
    }

    fn reset_pair(&mut self, now_us: u64, key: u64) {
        for side in [0, 1] {
            if let Some(told) = self.lose_end(now_us, key, side) {
                let at = now_us + self.latency(0);
                self.at(at, Task::Tell(told));
            }
        }
    }

    /// Stops or lets through what goes from one node to another.
    pub fn set_blocked(&mut self, now_us: u64, from: usize, to: usize, blocked: bool) {
        self.blocked[from][to] = blocked;
        if !blocked {
            self.unpark(now_us);
        }
    }

    /// Everything may travel again.
    pub fn heal(&mut self, now_us: u64) {
        self.blocked.iter_mut().for_each(|to| to.fill(false));
        self.unpark(now_us);
    }

    /// A node reads nothing for a while, or reads again.
    pub fn set_paused(&mut self, now_us: u64, node: usize, paused: bool) {
        self.paused[node] = paused;
        if !paused {
            self.unpark(now_us);
        }
    }

    /// A node's process is there.
    pub fn started(&mut self, now_us: u64, node: usize) {
        self.up[node] = true;
        self.unpark(now_us);
    }

    /// A node's process is gone. After a loss of power nobody says goodbye.
    pub fn stopped(&mut self, now_us: u64, node: usize, power_lost: bool) {
        self.up[node] = false;
        self.paused[node] = false;
        self.agenda
            .retain(|_, task| !matches!(task, Task::Dialing { from, .. } if *from == node));
        let keys: Vec<u64> = self.pairs.keys().copied().collect();
        for key in keys {
            for side in [0, 1] {
                let pair = self.pairs.get_mut(&key).expect("keys were just read");
                let live = pair.open[side] || (pair.greeting && side == 0);
                if pair.nodes[side] != node || !live {
                    continue;
                }
                pair.open[side] = false;
                pair.greeting = pair.greeting && side != 0;
                let way = &mut pair.ways[side];
                if power_lost {
                    way.queue.clear();
                } else {
                    way.queue.retain(|flight| flight.in_socket);
                    self.push(now_us, key, side, Item::Fin, None);
                }
            }
        }
    }

    fn unpark(&mut self, now_us: u64) {
        let parked: Vec<(u64, usize)> = self
            .pairs
            .iter()
            .flat_map(|(key, pair)| [(*key, 0), (*key, 1)].map(|at| (at, &pair.ways[at.1])))
            .filter(|(_, way)| way.parked)
            .map(|(at, _)| at)
            .collect();
        for (pair, from_side) in parked {
            self.pairs.get_mut(&pair).expect("listed").ways[from_side].parked = false;
            self.schedule(now_us, pair, from_side);
        }
        self.bury_dead(now_us);
    }

    /// Forgets connections that nobody believes in; what they still held comes back.
    fn bury_dead(&mut self, now_us: u64) {
        let dead = self.pairs.iter().filter(|(_, pair)| !pair.alive());
        let dead: Vec<u64> = dead.map(|(key, _)| *key).collect();
        for key in dead {
            let mut pair = self.pairs.remove(&key).expect("listed");
            for side in [0, 1] {
                let connection = pair.ids[side];
                let left = pair.ways[side].clear();
                self.drop_left(now_us, connection, left);
                self.ends.remove(&connection);
            }
        }
    }

    fn latency(&mut self, bytes: usize) -> u64 {
        let (shortest, longest) = self.options.latency_us;
        let transfer = bytes as u64 / self.options.bytes_per_us.max(1);
        let mut latency = self.rng.between(shortest, longest) + transfer;
        if self.rng.happens(self.options.spike) {
            self.counts.delays += 1;
            latency += self.options.spike_us;
        }
        latency
    }

    fn at(&mut self, at_us: u64, task: Task) {
        self.agenda_next += 1;
        self.agenda.insert((at_us, self.agenda_next), task);
    }
}
