//! The connections of a session: one per address, each opened by `Metadata`, watched while it owes
//! an answer.
//!
//! Owns the numbers of requests and which connection each went out on. A connection that owes an
//! answer and is silent is asked for `Metadata`; one that leaves that unanswered too is closed, so
//! a hung node costs seconds, not the whole time of a batch. Meanwhile the others are asked as
//! well: once one of them names another leader for what was asked of it, it is closed at once. What
//! an answer means for a batch or a read is decided in `lane.rs` and `reading.rs`. Nothing is sent
//! again from here.

use super::event::{Action, Failure};
use super::routes::{Refusal, Routes};
use crate::types::{ConnectionId, Epoch, LogId, NodeId, ShardId, Time};
use crate::wire::body::{Body, Error, Metadata, MetadataOk, PROTOCOL};
use crate::wire::code::{Code, Retry};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// How long a connection and its first answer may take.
const OPEN_US: u64 = 5_000_000;
/// Silence after which a connection that owes an answer is asked whether it lives.
const SILENCE_US: u64 = 2_000_000;
/// How long it may leave that unanswered.
const PROBE_US: u64 = 5_000_000;
/// Time between two attempts at one address, and the longest it grows to.
const BACKOFF_US: u64 = 50_000;
const BACKOFF_MOST_US: u64 = 1_000_000;

/// Time before attempt number `tries + 1`: doubled each time, bounded.
pub(super) fn backoff_us(tries: u32) -> u64 {
    (BACKOFF_US << tries.min(10)).min(BACKOFF_MOST_US)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Dialing,
    Asking,
    Ready,
}

#[derive(Debug)]
struct Link {
    address: String,
    state: State,
    /// Who answered.
    node: Option<NodeId>,
    /// When it must have come further: opened, or answered a probe.
    deadline: Option<Time>,
    /// When a frame last came, or when it began to owe one.
    heard: Time,
    /// Requests without an answer.
    owed: usize,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    connection: ConnectionId,
    shard: Option<ShardId>,
    /// The epoch in which the request was sent to the leader of its shard, as far as was known.
    led: Option<Epoch>,
}

/// What an event meant.
#[derive(Debug)]
pub(super) enum News {
    /// Nothing for batches or reads; routes may be better known.
    None,
    /// The answer to a request.
    Answer(u64, Answer),
    /// Requests that will get no answer.
    Lost(Vec<u64>),
}

/// An answer to a request other than `Metadata`.
#[derive(Debug)]
pub(super) enum Answer {
    /// Done.
    Ok(Body, Bytes),
    /// Refused.
    Refused(Refusal),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) routes: Routes,
    pub(super) fatal: Option<Failure>,
    pub(super) problem: String,
    seeds: Vec<String>,
    /// The seed or node that is asked for the cluster next.
    next_place: usize,
    /// When to ask for the cluster again, if something showed that it is not as known.
    refresh_at: Option<Time>,
    links: BTreeMap<ConnectionId, Link>,
    /// Addresses that failed: how often, and until when to leave them alone.
    failed: BTreeMap<String, (u32, Time)>,
    asked: BTreeMap<u64, Asked>,
    last_connection: u64,
    last_correlation: u64,
    actions: VecDeque<Action>,
}

impl Hub {
    pub(super) fn new(seeds: Vec<String>) -> Hub {
        Hub {
            routes: Routes::default(),
            fatal: None,
            problem: String::new(),
            seeds,
            next_place: 0,
            refresh_at: Some(Time(0)),
            links: BTreeMap::new(),
            failed: BTreeMap::new(),
            asked: BTreeMap::new(),
            last_connection: 0,
            last_correlation: 0,
            actions: VecDeque::new(),
        }
    }

    /// What keeps the session from a node: the last thing that went wrong, else what it waits for.
    pub(super) fn problem(&self) -> &str {
        let any = |state| self.links.values().any(|link| link.state == state);
        if !self.problem.is_empty() {
            &self.problem
        } else if any(State::Asking) {
            "it is connected, but does not answer"
        } else if any(State::Dialing) {
            "there is no connection yet"
        } else {
            ""
        }
    }

    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The connection over which a node is asked about a shard, if it is there; else it is opened.
    pub(super) fn connection(
        &mut self,
        now: Time,
        node: NodeId,
        shard: ShardId,
    ) -> Option<ConnectionId> {
        let Some(route) = self.routes.route_to(node, shard) else {
            self.ask_for_cores(now, node);
            return None;
        };
        match self.find(&route.address) {
            Some((id, State::Ready)) => Some(id),
            Some(_) => None,
            None => {
                self.dial(now, &route.address);
                None
            }
        }
    }

    /// Asks a node at its base port how many cores it has; what a new connection begins with too.
    fn ask_for_cores(&mut self, now: Time, node: NodeId) {
        let Some(base) = self.routes.base_of(node).map(str::to_owned) else {
            self.refresh(now);
            return;
        };
        match self.find(&base) {
            Some((id, State::Ready)) if self.links[&id].node != Some(node) => {
                self.problem = format!("{base}: another node answers there than node {node}");
                self.refresh(now);
            }
            Some((id, State::Ready)) => {
                let asks = |asked: &Asked| asked.connection == id && asked.shard.is_none();
                if !self.asked.values().any(asks) {
                    self.ask_metadata(now, id);
                }
            }
            Some(_) => {}
            None => self.dial(now, &base),
        }
    }

    fn find(&self, address: &str) -> Option<(ConnectionId, State)> {
        let found = self.links.iter().find(|(_, link)| link.address == address);
        found.map(|(id, link)| (*id, link.state))
    }

    fn dial(&mut self, now: Time, address: &str) {
        let waits = self
            .failed
            .get(address)
            .is_some_and(|(_, until)| *until > now);
        if waits || self.fatal.is_some() {
            return;
        }
        self.last_connection += 1;
        let connection = ConnectionId(self.last_connection);
        self.links.insert(
            connection,
            Link {
                address: address.to_owned(),
                state: State::Dialing,
                node: None,
                deadline: Some(now.plus_us(OPEN_US)),
                heard: now,
                owed: 0,
            },
        );
        let address = address.to_owned();
        self.actions.push_back(Action::Connect {
            connection,
            address,
        });
    }

    /// Asks for the cluster again, soon.
    pub(super) fn refresh(&mut self, now: Time) {
        let soon = now.plus_us(BACKOFF_US);
        self.refresh_at.get_or_insert(soon);
    }

    /// Asks the next seed or node for the cluster.
    fn ask_for_cluster(&mut self, now: Time) {
        let nodes = self.routes.cluster().map_or(&[][..], |known| &known.nodes);
        let places = self.seeds.iter();
        let places: Vec<&String> = places.chain(nodes.iter().map(|n| &n.address)).collect();
        let place = places[self.next_place % places.len()].clone();
        self.next_place = (self.next_place + 1) % places.len();
        match self.find(&place) {
            Some((id, State::Ready)) => self.ask_metadata(now, id),
            Some(_) => {}
            None => self.dial(now, &place),
        }
    }

    fn ask_metadata(&mut self, now: Time, connection: ConnectionId) {
        let protocol = PROTOCOL;
        let log = LogId::default();
        let body = Metadata { protocol };
        let correlation = self.send(now, connection, body.into(), log, Bytes::new());
        self.asked.insert(
            correlation,
            Asked {
                connection,
                shard: None,
                led: None,
            },
        );
    }

    /// Sends a request about a log; its number.
    pub(super) fn ask(
        &mut self,
        now: Time,
        connection: ConnectionId,
        log: LogId,
        body: Body,
        payload: Bytes,
    ) -> u64 {
        let correlation = self.send(now, connection, body, log, payload);
        let node = self.links[&connection].node;
        let asked = Asked {
            connection,
            shard: Some(log.shard),
            led: (self.routes.leader(log.shard) == node).then(|| self.routes.epoch(log.shard)),
        };
        self.asked.insert(correlation, asked);
        correlation
    }

    fn send(&mut self, now: Time, to: ConnectionId, body: Body, log: LogId, payload: Bytes) -> u64 {
        self.last_correlation += 1;
        let link = self
            .links
            .get_mut(&to)
            .expect("requests go to connections that are there");
        if link.owed == 0 {
            link.heard = now;
        }
        link.owed += 1;
        self.actions.push_back(Action::Send {
            connection: to,
            head: body.encode(self.last_correlation, log, payload.len()),
            payload,
        });
        self.last_correlation
    }

    pub(super) fn connected(&mut self, now: Time, connection: ConnectionId) {
        let Some(link) = self.links.get_mut(&connection) else {
            return;
        };
        link.state = State::Asking;
        self.ask_metadata(now, connection);
    }

    /// A connection is gone: the requests that it leaves without an answer.
    pub(super) fn lost(&mut self, now: Time, connection: ConnectionId, why: &str) -> Vec<u64> {
        let Some(link) = self.links.remove(&connection) else {
            return Vec::new();
        };
        self.problem = format!("{}: {why}", link.address);
        let (tries, _) = self.failed.get(&link.address).copied().unwrap_or_default();
        let until = now.plus_us(backoff_us(tries));
        self.failed
            .insert(link.address, (tries.saturating_add(1), until));
        if let Some(node) = link.node {
            self.routes.forget_ports(node);
        }
        self.refresh(now);
        let gone = |(_, asked): &(&u64, &Asked)| asked.connection == connection;
        let gone = self.asked.iter().filter(gone);
        let all: Vec<(u64, bool)> = gone.map(|(n, asked)| (*n, asked.shard.is_some())).collect();
        for (number, _) in &all {
            self.asked.remove(number);
        }
        all.into_iter()
            .filter(|(_, about)| *about)
            .map(|(number, _)| number)
            .collect()
    }

    fn close(&mut self, now: Time, connection: ConnectionId, why: &str) -> Vec<u64> {
        if self.links.contains_key(&connection) {
            self.actions.push_back(Action::Close(connection));
        }
        self.lost(now, connection, why)
    }

    /// Takes in a frame.
    pub(super) fn frame(
        &mut self,
        now: Time,
        connection: ConnectionId,
        correlation: u64,
        body: Body,
        payload: Bytes,
    ) -> News {
        let Some(link) = self.links.get_mut(&connection) else {
            return News::None;
        };
        link.heard = now;
        if link.state == State::Ready {
            link.deadline = None;
        }
        let known = self.asked.get(&correlation).copied();
        let Some(asked) = known.filter(|asked| asked.connection == connection) else {
            // An error about no request is about the connection; a second answer is dropped.
            return match body {
                Body::Error(error) if correlation == 0 => {
                    let why = self.refuse(connection, None, &error);
                    News::Lost(self.close(now, connection, &why))
                }
                _ => News::None,
            };
        };
        self.asked.remove(&correlation);
        link.owed -= 1;
        match (asked.shard, body) {
            (None, Body::MetadataOk(known)) => self.learn(now, connection, &known),
            (None, Body::Error(error)) => {
                let why = self.refuse(connection, None, &error);
                News::Lost(self.close(now, connection, &why))
            }
            (None, _) => News::Lost(self.close(now, connection, "no answer to Metadata")),
            (Some(shard), Body::Error(error)) => {
                let node = link.node;
                let refusal = self.routes.heed(node, shard, &error);
                // Who is not ready may be one that led and does not any more.
                let elsewhere = refusal.retry == Retry::Elsewhere && error.detail == 0;
                if elsewhere || refusal.code == Some(Code::NotReady) {
                    self.refresh(now);
                }
                News::Answer(correlation, Answer::Refused(refusal))
            }
            (Some(_), body) => News::Answer(correlation, Answer::Ok(body, payload)),
        }
    }

    /// A refusal of the connection itself: a few words, and the end of everything if it is final.
    fn refuse(&mut self, connection: ConnectionId, node: Option<NodeId>, error: &Error) -> String {
        let refusal = self.routes.heed(node, ShardId(0), error);
        let failure = Failure::Refused {
            code: refusal.code,
            details: refusal.details,
        };
        let why = failure.to_string();
        let opening = |link: &Link| link.state != State::Ready;
        let unknown = self.routes.cluster().is_none();
        let opening = self.links.get(&connection).is_some_and(opening);
        if unknown && opening && refusal.retry == Retry::Final {
            self.fatal = Some(failure);
        }
        why
    }

    fn learn(&mut self, now: Time, connection: ConnectionId, known: &MetadataOk) -> News {
        if !self.routes.learn(known) {
            let before = self.routes.cluster().map_or(0, |known| known.cluster.0);
            let failure = Failure::OtherCluster {
                known: before,
                found: known.cluster.0,
            };
            return News::Lost(self.close(now, connection, &failure.to_string()));
        }
        let link = self
            .links
            .get_mut(&connection)
            .expect("it brought the answer");
        link.state = State::Ready;
        link.deadline = None;
        link.node = Some(known.node);
        self.failed.remove(&link.address);
        self.refresh_at = None;
        self.leave_deposed(now)
    }

    /// Closes connections that are asked whether they live, if what was asked of them as leaders is
    /// led by others in a later epoch; while there are more of them, the others are asked again.
    fn leave_deposed(&mut self, now: Time) -> News {
        let probed = |link: &Link| link.state == State::Ready && link.deadline.is_some();
        let probed = self.links.iter().filter(|(_, link)| probed(link));
        let probed: Vec<ConnectionId> = probed.map(|(id, _)| *id).collect();
        let mut lost = Vec::new();
        for connection in probed {
            let mut asked = self.asked.values().filter(|it| it.connection == connection);
            let node = self.links[&connection].node;
            let deposed = asked.any(|it| {
                let (Some(led), Some(shard)) = (it.led, it.shard) else {
                    return false;
                };
                self.routes.epoch(shard) > led && self.routes.leader(shard) != node
            });
            if deposed {
                lost.extend(self.close(now, connection, "it answers no more, and another leads"));
            } else {
                self.refresh_at = Some(now.plus_us(BACKOFF_MOST_US / 2));
            }
        }
        match lost.is_empty() {
            true => News::None,
            false => News::Lost(lost),
        }
    }

    /// Does what is due; the requests that thereby get no answer.
    pub(super) fn tick(&mut self, now: Time) -> Vec<u64> {
        let mut lost = Vec::new();
        let late = |link: &Link| link.deadline.is_some_and(|deadline| deadline <= now);
        let late: Vec<(ConnectionId, State)> = self
            .links
            .iter()
            .filter(|(_, link)| late(link))
            .map(|(id, link)| (*id, link.state))
            .collect();
        for (connection, state) in late {
            let why = match state {
                State::Dialing => "no connection in time",
                State::Asking => "connected, but no answer in time",
                State::Ready => "it answers no more",
            };
            lost.extend(self.close(now, connection, why));
        }
        let silent = |link: &&mut Link| link.probe_at().is_some_and(|at| at <= now);
        let probed: Vec<ConnectionId> = self
            .links
            .iter_mut()
            .filter(|(_, link)| silent(link))
            .map(|(id, link)| {
                link.deadline = Some(now.plus_us(PROBE_US));
                *id
            })
            .collect();
        for connection in probed {
            self.ask_metadata(now, connection);
            self.refresh(now);
        }
        if self.refresh_at.is_some_and(|at| at <= now) && self.fatal.is_none() {
            self.refresh_at = Some(now.plus_us(backoff_us(2)));
            self.ask_for_cluster(now);
        }
        lost
    }

    /// When `tick` has something to do.
    pub(super) fn deadline(&self) -> Option<Time> {
        let refresh = self.refresh_at.filter(|_| self.fatal.is_none());
        let links = self.links.values();
        let links = links
            .flat_map(|link| [link.deadline, link.probe_at()])
            .flatten();
        links.chain(refresh).min()
    }

    /// When an address that failed may be tried again, if that lies ahead.
    pub(super) fn retry_at(&self, now: Time) -> Option<Time> {
        let times = self.failed.values().map(|(_, until)| *until);
        times.filter(|until| *until > now).min()
    }
}

impl Link {
    fn probe_at(&self) -> Option<Time> {
        let owes = self.state == State::Ready && self.owed > 0 && self.deadline.is_none();
        owes.then(|| self.heard.plus_us(SILENCE_US))
    }
}
