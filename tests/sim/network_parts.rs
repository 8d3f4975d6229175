//! The parts of the simulated network: a pair of ends, the two ways between them, what is in
//! flight.
//!
//! Plain data and the arithmetic of a socket's buffer; who may talk to whom and when is decided in
//! `network.rs`, which is the file to read next.

use super::rng::Chance;
use millrace::types::{BufferId, ConnectionId};
use millrace::wire::body::Channel;
use std::collections::VecDeque;

/// How the network behaves.
#[derive(Clone, Debug)]
pub struct NetOptions {
    /// Shortest and longest time of a packet, microseconds.
    pub latency_us: (u64, u64),
    /// Bytes that travel in a microsecond.
    pub bytes_per_us: u64,
    /// How often a frame takes `spike_us` longer.
    pub spike: Chance,
    /// How much longer.
    pub spike_us: u64,
    /// How often a bit of a frame's header or typed body is inverted on the way.
    pub head_flip: Chance,
    /// How often a bit of a payload is.
    pub payload_flip: Chance,
    /// Bytes that a socket takes before the sender has to wait.
    pub socket_bytes: usize,
    /// After so long without an answer a dial has failed.
    pub dial_timeout_us: u64,
}

/// What the network did.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetCounts {
    /// Frames that took much longer.
    pub delays: u64,
    /// Bits inverted in a frame's header or typed body.
    pub head_flips: u64,
    /// Bits inverted in a payload.
    pub payload_flips: u64,
}

/// A frame that a node sends.
#[derive(Debug)]
pub struct Outgoing {
    /// The frame.
    pub bytes: Vec<u8>,
    /// Bytes of its header and typed body.
    pub head_len: usize,
    /// Bytes of its parts.
    pub parts_len: usize,
    /// Buffers held until the socket took it.
    pub holds: Vec<BufferId>,
    /// Which process of the node sends it.
    pub node: usize,
    /// The number of that process.
    pub run: u64,
}

impl Outgoing {
    /// What its sender is told once it left.
    pub fn sent(self, connection: ConnectionId) -> NetEvent {
        NetEvent::Sent {
            node: self.node,
            run: self.run,
            connection,
            bytes: self.parts_len,
            holds: self.holds,
        }
    }
}

/// What a node must be told.
#[derive(Debug)]
pub enum NetEvent {
    /// A connection is open.
    Up {
        /// Whom to tell.
        node: usize,
        /// Who is at the other end.
        peer: usize,
        /// Its id at this end.
        connection: ConnectionId,
        /// What it carries.
        channel: Channel,
        /// Whether this end dialed.
        dialed: bool,
    },
    /// A connection is gone.
    Down {
        /// Whom to tell.
        node: usize,
        /// Which.
        connection: ConnectionId,
    },
    /// A dial was in vain.
    DialFailed {
        /// Whom to tell.
        node: usize,
        /// Who did not answer.
        peer: usize,
    },
    /// A frame arrived.
    Frame {
        /// Whom to tell.
        node: usize,
        /// On which connection.
        connection: ConnectionId,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A frame with parts left for the socket, or was dropped.
    Sent {
        /// Whom to tell.
        node: usize,
        /// Which process of it sent the frame.
        run: u64,
        /// On which connection.
        connection: ConnectionId,
        /// Bytes of the parts.
        bytes: usize,
        /// Buffers that it held.
        holds: Vec<BufferId>,
    },
}

/// What travels.
#[derive(Debug)]
pub enum Item {
    /// The listener accepts.
    HelloOk,
    /// A frame.
    Frame(Vec<u8>),
    /// The sender closed.
    Fin,
}

impl Item {
    /// Bytes that it takes in a socket.
    pub fn len(&self) -> usize {
        match self {
            Item::HelloOk | Item::Fin => 0,
            Item::Frame(bytes) => bytes.len(),
        }
    }
}

/// Something on its way.
#[derive(Debug)]
pub struct Flight {
    /// What.
    pub item: Item,
    /// When it is there, if nothing stops it.
    pub arrive_at: u64,
    /// The sender's side of it, until the socket took it.
    pub outgoing: Option<Outgoing>,
    /// Whether the socket took it.
    pub in_socket: bool,
}

/// One way of a pair.
#[derive(Debug, Default)]
pub struct Direction {
    /// In order.
    pub queue: VecDeque<Flight>,
    /// When the last one arrives.
    pub last_arrival_us: u64,
    /// Whether the front waits for the way to open.
    pub parked: bool,
    /// Whether a wake for the front is on the agenda.
    pub scheduled: bool,
}

impl Direction {
    /// Lets frames into a socket of `room` bytes, in order; at least one. Returns what left.
    pub fn fill(&mut self, room: usize) -> Vec<Outgoing> {
        let mut taken = 0;
        let mut left = Vec::new();
        for flight in &mut self.queue {
            taken += flight.item.len();
            if taken > room && taken > flight.item.len() {
                break;
            }
            if !flight.in_socket {
                flight.in_socket = true;
                left.extend(flight.outgoing.take());
            }
        }
        left
    }

    /// Drops what the socket had not taken. Returns it, and empties the way.
    pub fn clear(&mut self) -> Vec<Outgoing> {
        let flights = self.queue.drain(..);
        flights.filter_map(|flight| flight.outgoing).collect()
    }
}

/// A connection: side 0 dialed, side 1 listened.
#[derive(Debug)]
pub struct Pair {
    /// The nodes at its ends.
    pub nodes: [usize; 2],
    /// The connection's id at each end.
    pub ids: [ConnectionId; 2],
    /// What it carries.
    pub channel: Channel,
    /// Whether each end believes in it.
    pub open: [bool; 2],
    /// Whether the dialer still waits for the listener's word.
    pub greeting: bool,
    /// What goes from each end to the other one.
    pub ways: [Direction; 2],
}

impl Pair {
    /// A connection that the listener has just accepted.
    pub fn new(nodes: [usize; 2], ids: [ConnectionId; 2], channel: Channel) -> Pair {
        Pair {
            nodes,
            ids,
            channel,
            open: [false, true],
            greeting: true,
            ways: [Direction::default(), Direction::default()],
        }
    }

    /// Whether anybody may still hear of it.
    pub fn alive(&self) -> bool {
        self.greeting || self.open != [false, false]
    }
}
