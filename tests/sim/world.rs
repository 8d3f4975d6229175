//! The world of a run: nodes, network, clients and faults on one virtual clock, in one thread.
//!
//! `step` takes the earliest thing on any agenda, gives it to whom it concerns, and carries out
//! every action that follows; it is the shell of every node. What it sees it tells the checkers,
//! what it does it notes in the trace. All chance comes from the run's seed, so a run is a
//! function of its options and its seed. `world_node.rs` carries out actions, `world_client.rs`
//! the clients, `chaos.rs` the faults, `rest.rs` the end of a run.

use super::chaos::Chaos;
use super::checker::Checker;
use super::client::{Client, ClientRequest, Waiting};
use super::network::{NetEvent, Network};
use super::node::{Arrival, Node, node_id};
use super::options::Options;
use super::report::Report;
use super::rng::Rng;
use super::trace::Trace;
use super::verdict::{Checked, Name, Verdict, ensure};
use millrace::shard::Event;
use millrace::types::{ConnectionId, Ticket};
use millrace::wire::body::{Body, Channel};
use millrace::wire::capability::Capabilities;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Time between two looks at the control connections.
const CONTROL_EVERY_US: u64 = 10_000;
/// A timer that wants to be woken so often at one moment spins.
const TIMER_SPINS: u32 = 200;

/// Everything of one run.
#[derive(Debug)]
pub struct World {
    /// Virtual time.
    pub now_us: u64,
    /// What the run is like.
    pub options: Options,
    /// The run's chance.
    pub rng: Rng,
    /// What happened.
    pub trace: Rc<RefCell<Trace>>,
    /// The network between the nodes.
    pub net: Network,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The clients.
    pub clients: Vec<Client>,
    /// Unanswered requests of live connections.
    pub open_requests: BTreeMap<(ConnectionId, u64), (usize, Waiting)>,
    /// Whether clients send by themselves.
    pub clients_active: bool,
    /// The checkers.
    pub checker: Checker,
    /// The faults.
    pub chaos: Chaos,
    /// Counts.
    pub report: Report,
    /// Appends that each node acknowledged.
    pub acks_by: Vec<u64>,
    /// Refusals of appends, by the number of their code.
    pub refusals: BTreeMap<u16, u64>,
    agenda: BTreeMap<(u64, u64), Task>,
    agenda_next: u64,
}

/// Something that will happen.
#[derive(Debug)]
pub enum Task {
    /// A disk operation ends.
    DiskDone {
        /// Whose.
        node: usize,
        /// Of which process.
        run: u64,
        /// Which.
        ticket: Ticket,
    },
    /// A pause ends.
    Unpause {
        /// Whose.
        node: usize,
        /// Of which process.
        run: u64,
    },
    /// What had no buffer tries again.
    Starved {
        /// Whose.
        node: usize,
        /// Of which process.
        run: u64,
    },
    /// A node starts again.
    Restart {
        /// Which.
        node: usize,
    },
    /// A client does something.
    Client(usize),
    /// A client's request arrives.
    Request {
        /// Where.
        node: usize,
        /// At which process.
        run: u64,
        /// The request.
        arrival: Arrival,
    },
    /// An answer arrives at a client.
    Answer {
        /// Which client.
        client: usize,
        /// On which connection.
        connection: ConnectionId,
        /// To which request.
        correlation: u64,
        /// What it says.
        body: Body,
    },
    /// The world looks after the control connections.
    Control,
    /// A fault begins or ends.
    Chaos(super::chaos::Step),
}

impl World {
    /// A world at rest with all nodes down.
    pub fn new(options: Options, mut rng: Rng, trace: Rc<RefCell<Trace>>) -> World {
        let members = options.members;
        let net = Network::new(members, options.network.clone(), rng.fork());
        let nodes = (0..members).map(|index| Node::new(index, &options, &mut rng));
        let nodes = nodes.collect();
        let clients = (0..options.clients).map(|id| Client::new(id as u32, rng.fork(), &options));
        let clients = clients.collect();
        World {
            now_us: 0,
            net,
            nodes,
            clients,
            open_requests: BTreeMap::new(),
            clients_active: true,
            checker: Checker::new(members),
            chaos: Chaos::new(rng.fork()),
            report: Report::default(),
            acks_by: vec![0; members],
            refusals: BTreeMap::new(),
            agenda: BTreeMap::new(),
            agenda_next: 0,
            options,
            rng,
            trace,
        }
    }

    /// Starts all nodes and clients.
    pub fn start(&mut self) -> Checked {
        for node in 0..self.nodes.len() {
            self.start_node(node)?;
        }
        for client in 0..self.clients.len() {
            self.after(1000, Task::Client(client));
        }
        self.after(0, Task::Control);
        Ok(())
    }

    /// The node that leads, as far as was seen; the placed one before any did.
    pub fn leader(&self) -> usize {
        match self.options.electing {
            true => self.checker.newest_leader().unwrap_or(self.options.leader),
            false => self.options.leader,
        }
    }

    /// Starts a node's process.
    pub fn start_node(&mut self, node: usize) -> Checked {
        if self.nodes[node].process.is_some() {
            return Ok(());
        }
        self.note(format_args!("n{node} starts"));
        self.nodes[node].start(self.now_us, &self.options);
        if !self.nodes[node].rot.is_empty() && node == self.leader() {
            // The end of its log may be damaged: what only it held from there on is gone.
            self.checker.leader_lost_memory();
        }
        self.net.started(self.now_us, node);
        self.pump(node)
    }

    /// Notes in the trace what happens.
    pub fn note(&self, what: core::fmt::Arguments<'_>) {
        self.trace.borrow_mut().note(self.now_us, what);
    }

    /// Puts something on the agenda.
    pub fn after(&mut self, delay_us: u64, task: Task) {
        self.agenda_next += 1;
        let at = (self.now_us + delay_us, self.agenda_next);
        self.agenda.insert(at, task);
    }

    /// Lets everything happen up to this virtual time.
    pub fn run_until(&mut self, until_us: u64) -> Checked {
        while self.step(until_us)? {}
        Ok(())
    }

    /// The next thing, if it is due by `until_us`; else the clock is put there.
    pub fn step(&mut self, until_us: u64) -> Result<bool, Verdict> {
        let task_at = self.agenda.keys().next().map(|(at, _)| *at);
        let net_at = self.net.next_at();
        let timer = self.next_timer();
        let timer_at = timer.map(|(at, _)| at);
        let due = [task_at, net_at, timer_at].into_iter().flatten().min();
        let Some(due) = due.filter(|due| *due <= until_us) else {
            self.now_us = self.now_us.max(until_us);
            return Ok(false);
        };
        self.now_us = self.now_us.max(due);
        if task_at == Some(due) {
            let (_, task) = self.agenda.pop_first().expect("just seen");
            self.carry_out(task)?;
        } else if net_at == Some(due) {
            if let Some(event) = self.net.pop(self.now_us) {
                self.told(event)?;
            }
        } else if let Some((_, node)) = timer {
            self.fire_timer(node)?;
        }
        Ok(true)
    }

    fn next_timer(&self) -> Option<(u64, usize)> {
        let timers = self.nodes.iter().filter(|node| node.awake());
        let timers = timers.filter_map(|node| {
            let at = node.process.as_ref()?.shard.poll_timeout()?;
            Some((node.virtual_us(at).max(self.now_us), node.index))
        });
        timers.min()
    }

    fn fire_timer(&mut self, node: usize) -> Checked {
        let now_us = self.now_us;
        let process = self.nodes[node].process.as_mut().expect("it was awake");
        let spins = match process.timer_spins {
            (at, spins) if at == now_us => spins + 1,
            _ => 0,
        };
        process.timer_spins = (now_us, spins);
        ensure(spins < TIMER_SPINS, Name::Stuck, || {
            format!("node {node} asks to be woken again and again at {now_us}")
        })?;
        self.deliver(node, Event::Timer)
    }

    fn carry_out(&mut self, task: Task) -> Checked {
        match task {
            Task::DiskDone { node, run, ticket } => self.disk_done(node, run, ticket),
            Task::Unpause { node, run } => self.unpause(node, run),
            Task::Starved { node, run } if self.runs(node, run) => self.feed_starved(node),
            Task::Request { node, run, arrival } if self.runs(node, run) => {
                self.arrive(node, arrival)
            }
            Task::Starved { .. } | Task::Request { .. } => Ok(()),
            Task::Restart { node } => self.start_node(node),
            Task::Client(client) => self.client_step(client),
            Task::Answer {
                client,
                connection,
                correlation,
                body,
            } => {
                self.answer_arrived(client, connection, correlation, &body);
                Ok(())
            }
            Task::Control => {
                self.keep_control();
                self.after(CONTROL_EVERY_US, Task::Control);
                Ok(())
            }
            Task::Chaos(step) => self.chaos_step(step),
        }
    }

    /// Whether that process of the node is still there.
    pub fn runs(&self, node: usize, run: u64) -> bool {
        self.nodes[node].process.is_some() && self.nodes[node].run == run
    }

    fn keep_control(&mut self) {
        for from in 0..self.nodes.len() {
            for to in from + 1..self.nodes.len() {
                let up = self.nodes[from].process.is_some() && self.nodes[to].process.is_some();
                if up && !self.net.dialed(from, to, Channel::Control) {
                    self.net.dial(self.now_us, from, to, Channel::Control);
                }
            }
        }
    }

    /// The network has something for a node.
    fn told(&mut self, event: NetEvent) -> Checked {
        match event {
            NetEvent::Up {
                node,
                peer,
                connection,
                channel,
                dialed,
            } => {
                let Some(process) = &mut self.nodes[node].process else {
                    return Ok(());
                };
                process.connections.insert(connection);
                self.deliver(
                    node,
                    Event::PeerUp {
                        peer: node_id(peer),
                        connection,
                        channel,
                        dialed,
                        capabilities: Capabilities::HERE,
                    },
                )
            }
            NetEvent::Down { node, connection } => self.peer_down(node, connection),
            NetEvent::DialFailed { node, peer } => self.deliver(
                node,
                Event::DialFailed {
                    peer: node_id(peer),
                    why: None,
                },
            ),
            NetEvent::Frame {
                node,
                connection,
                bytes,
            } => self.arrive(node, Arrival::Frame { connection, bytes }),
            NetEvent::Sent {
                node,
                run,
                connection,
                bytes,
                holds,
            } => self.sent(node, run, connection, bytes, &holds),
        }
    }

    /// A node is told that a connection is gone, if it did not end it itself.
    pub fn peer_down(&mut self, node: usize, connection: ConnectionId) -> Checked {
        let process = self.nodes[node].process.as_mut();
        if process.is_some_and(|process| process.connections.remove(&connection)) {
            return self.deliver(node, Event::PeerDown { connection });
        }
        Ok(())
    }

    /// A client's request to a node, after the time it takes.
    pub fn send_request(&mut self, client: usize, correlation: u64, request: ClientRequest) {
        let latency = self.rng.between(20, 200);
        let session = self.clients[client].session.as_mut();
        let session = session.expect("a client sends on a connection");
        let at = (self.now_us + latency).max(session.last_arrival_us);
        session.last_arrival_us = at;
        let (node, run, connection) = (session.node, session.run, session.connection);
        let arrival = Arrival::Request {
            client,
            connection,
            correlation,
            request,
        };
        self.after(at - self.now_us, Task::Request { node, run, arrival });
    }
}
