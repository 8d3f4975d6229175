//! A producer's session: records in, outcomes out, batches in between.
//!
//! Owns the lanes of all shards and the window they share: at most so many batches and bytes
//! unanswered, at most so many bytes held in all. A batch is sealed when it is full, or has
//! lingered and could go at once; while the window is full it goes on filling. Order and retries of
//! one shard are in `lane.rs`, connections in `hub.rs`.

use super::batching::{Most, NewRecord, Open, shard_of_key};
use super::codec::Codec;
use super::event::{Action, Event, Failure, Session};
use super::hub::{Answer, Hub, News};
use super::lane::{Done, Lane};
use crate::limits::{CONNECTION_APPEND_BYTES, MAX_BATCH_BYTES, MAX_BLOCK_RECORDS};
use crate::types::{ConnectionId, Level, ShardId, Time};
use crate::wire::body::{Append, Body, MetadataOk};
use std::collections::{BTreeMap, VecDeque};

/// What a producer does by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerOptions {
    /// Names the producer to the logs; random, not 0, another one for each producer.
    pub producer_id: u64,
    /// When a batch counts as done; none: the cluster's default.
    pub level: Option<Level>,
    /// How batches are stored.
    pub codec: Codec,
    /// How long a batch that is not full waits for more records, microseconds.
    pub linger_us: u64,
    /// How long a batch may take from its first record on, microseconds. Then it has failed, or its
    /// outcome is unknown.
    pub timeout_us: u64,
    /// Records of a batch at most; the cluster's own bound holds too, and alone by default.
    pub max_batch_records: u32,
    /// Bytes of a batch at most, header included, before its codec; the cluster's own bound holds
    /// too, and alone by default.
    pub max_batch_bytes: usize,
    /// Batches unanswered at most, over all shards; of one shard never more than 5.
    pub max_in_flight_batches: usize,
    /// Bytes of batches unanswered at most; one batch may always go.
    pub max_in_flight_bytes: usize,
    /// Bytes of records held at most; then `push` says that there is no room.
    pub max_held_bytes: usize,
    /// After the first record that failed or whose outcome is unknown, nothing more is sent.
    pub stop_at_failure: bool,
}

impl ProducerOptions {
    /// The defaults: linger 1 ms, 8 batches and 16 MiB in flight, codec none (DESIGN section 12).
    pub fn new(producer_id: u64) -> ProducerOptions {
        ProducerOptions {
            producer_id,
            level: None,
            codec: Codec::None,
            linger_us: 1000,
            timeout_us: 30_000_000,
            max_batch_records: u32::MAX,
            max_batch_bytes: usize::MAX,
            max_in_flight_batches: 8,
            max_in_flight_bytes: CONNECTION_APPEND_BYTES,
            max_held_bytes: 2 * CONNECTION_APPEND_BYTES,
            stop_at_failure: false,
        }
    }
}

/// See the module. `T` is what the driver wants back with the outcome of each record.
#[derive(Debug)]
pub struct Producing<T> {
    hub: Hub,
    options: ProducerOptions,
    lanes: Vec<Lane<T>>,
    /// The shard of each append under way.
    appends: BTreeMap<u64, ShardId>,
    /// Where the next batch of records without key and shard goes.
    turn: usize,
    /// The lane that may send first, so that a full window starves none.
    first: usize,
    generation: u64,
    /// Nothing is to be sent any more, and why.
    stopped: Option<Failure>,
    done: VecDeque<Done<T>>,
    wake_at: Option<Time>,
    held: usize,
}

impl<T> Producing<T> {
    /// A session that will find the cluster through any of `seeds`, each `host:port`. Panics
    /// without any, or on a producer id of 0.
    pub fn new(seeds: Vec<String>, options: ProducerOptions) -> Producing<T> {
        assert!(!seeds.is_empty(), "no node to ask");
        assert!(options.producer_id != 0, "0 names no producer");
        Producing {
            hub: Hub::new(seeds),
            options,
            lanes: Vec::new(),
            appends: BTreeMap::new(),
            turn: 0,
            first: 0,
            generation: 0,
            stopped: None,
            done: VecDeque::new(),
            wake_at: None,
            held: 0,
        }
    }

    /// How records ended, in the order in which it became known.
    pub fn poll_done(&mut self) -> Option<Done<T>> {
        self.done.pop_front()
    }

    /// Whether a record of `bytes` would find room now.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.held == 0 || self.held + bytes <= self.options.max_held_bytes
    }

    /// Records and batches that have no outcome yet, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// Bytes of a batch at most, and who says so.
    fn most_bytes(&self) -> Most {
        let known = self.hub.routes.cluster();
        let cluster = known.map_or(MAX_BATCH_BYTES, |known| known.max_batch_bytes as usize);
        let own = self.options.max_batch_bytes;
        Most {
            bytes: own.min(cluster),
            is_own: own < cluster,
        }
    }

    fn most_records(&self) -> u32 {
        let known = self.hub.routes.cluster();
        let cluster = known.map_or(MAX_BLOCK_RECORDS, |known| known.max_batch_records);
        self.options.max_batch_records.min(cluster).max(1)
    }

    /// Takes a record; its outcome comes with the token. Refused if it fits no batch, names no
    /// shard of the cluster, or nothing is sent any more. Call it once the cluster is known and
    /// while there is room.
    pub fn push(&mut self, now: Time, record: &NewRecord, token: T) -> Result<(), Failure> {
        if let Some(failure) = &self.stopped {
            return Err(failure.clone());
        }
        let most = self.most_bytes();
        record.check(most)?;
        let most = most.bytes;
        let shards = self.lanes.len();
        let place = match record.shard {
            Some(ShardId(shard)) if usize::from(shard) >= shards => {
                return Err(Failure::NoSuchShard { shard, shards });
            }
            Some(shard) => usize::from(shard.0),
            None if shards == 0 => return Err(Failure::NoSuchShard { shard: 0, shards }),
            None if record.key.is_empty() => self.turn,
            None => usize::from(shard_of_key(&record.key, shards).0),
        };
        let records = self.most_records();
        let fits = |open: &Open<T>| open.fits(record, records, most);
        let mut sealed = self.lanes[place]
            .open
            .as_ref()
            .is_some_and(|open| !fits(open));
        if sealed {
            self.seal(place);
        }
        let lane = &mut self.lanes[place];
        let before = lane.open.as_ref().map_or(0, |open| open.builder.len());
        let open = lane
            .open
            .get_or_insert_with(|| Open::new(now, self.generation));
        open.push(now, record, token);
        let full = open.builder.record_count() >= records;
        self.held += open.builder.len() - before;
        let lingers_until = open.since.plus_us(self.options.linger_us);
        if full {
            self.seal(place);
            sealed = true;
        }
        if sealed || lingers_until <= now {
            self.pump(now);
        } else {
            self.wake_at = Some(
                self.wake_at
                    .map_or(lingers_until, |at| at.min(lingers_until)),
            );
        }
        Ok(())
    }

    fn seal(&mut self, place: usize) {
        let lane = &mut self.lanes[place];
        self.held -= lane.seal(self.options.codec, self.options.timeout_us);
        if place == self.turn {
            self.turn = (place + 1) % self.lanes.len();
        }
    }

    /// Sends what there is without lingering; the number to ask `is_flushed` for.
    pub fn flush(&mut self, now: Time) -> u64 {
        for place in 0..self.lanes.len() {
            if self.lanes[place].open.is_some() {
                self.seal(place);
            }
        }
        self.generation += 1;
        self.pump(now);
        self.generation
    }

    /// Whether everything given before that flush has its outcome.
    pub fn is_flushed(&self, flush: u64) -> bool {
        let oldest = self.lanes.iter().filter_map(Lane::oldest_generation).min();
        oldest.is_none_or(|oldest| oldest >= flush)
    }

    fn stop(&mut self, failure: Failure) {
        for lane in &mut self.lanes {
            self.done.extend(lane.give_up(&failure));
        }
        self.stopped = Some(failure);
        self.count_held();
    }

    fn count_held(&mut self) {
        self.held = self.lanes.iter().map(Lane::held).sum();
    }

    fn lose(&mut self, correlations: Vec<u64>) {
        for number in correlations {
            if let Some(shard) = self.appends.remove(&number) {
                self.lanes[usize::from(shard.0)].lost(number);
            }
        }
    }

    fn answer(&mut self, now: Time, number: u64, answer: Answer) {
        let Some(shard) = self.appends.remove(&number) else {
            return;
        };
        let lane = &mut self.lanes[usize::from(shard.0)];
        let done = match answer {
            Answer::Ok(Body::AppendOk(ok), _) => lane.acked(number, ok.base_offset),
            // Not an answer to this question; whether it is in the log is not known.
            Answer::Ok(..) => {
                lane.lost(number);
                None
            }
            Answer::Refused(refusal) => lane.refused(now, number, &refusal),
        };
        self.done.extend(done);
    }

    /// Ends, seals and sends what is due.
    fn pump(&mut self, now: Time) {
        for lane in &mut self.lanes {
            self.done.extend(lane.expire(now, &self.hub.problem));
        }
        self.stop_if_failed();
        self.send_all(now);
        self.count_held();
        self.wake_at = self.next_wake(now);
    }

    /// With `stop_at_failure` the first failure ends what was not sent; from then on what comes
    /// back is not sent again.
    fn stop_if_failed(&mut self) {
        let stops = self.options.stop_at_failure;
        match self.stopped.clone() {
            Some(failure) => self.stop(failure),
            None if stops && self.done.iter().any(|done| done.outcome.is_err()) => {
                self.stop(Failure::Stopped);
            }
            None => {}
        }
    }

    fn send_all(&mut self, now: Time) {
        let count = self.lanes.len();
        for step in 0..count {
            let place = (self.first + step) % count;
            while self.send_one(now, place) {}
        }
        if count > 0 {
            self.first = (self.first + 1) % count;
        }
    }

    /// Sends the next batch of a lane, if it may go.
    fn send_one(&mut self, now: Time, place: usize) -> bool {
        let (batches, bytes) = self.under_way();
        if batches >= self.options.max_in_flight_batches.max(1) || self.stopped.is_some() {
            return false;
        }
        let lane = &mut self.lanes[place];
        let lingered = |open: &Open<T>| now >= open.since.plus_us(self.options.linger_us);
        if !lane.may_send(now) {
            return false;
        }
        if !lane.has_queued() && lane.open.as_ref().is_some_and(lingered) {
            self.seal(place);
        }
        let lane = &mut self.lanes[place];
        let mut ended = Vec::new();
        let next = lane.next(now, &mut ended);
        self.done.extend(ended);
        let Some((len, over)) = next else {
            return false;
        };
        // Below the bound, not at it: a node reads no further at its own, which is the default.
        if batches > 0 && bytes + len >= self.options.max_in_flight_bytes {
            return false;
        }
        let shard = ShardId(place as u16);
        let Some(connection) = self.way(now, shard) else {
            return false;
        };
        // Over another connection it could overtake those before it.
        if over.is_some_and(|over| over != connection) {
            return false;
        }
        let (payload, left_us) = self.lanes[place].payload(now);
        let body = Append {
            level: self.level(),
            timeout_ms: u32::try_from(left_us / 1000).unwrap_or(u32::MAX).max(1),
        };
        let log = self.hub.routes.log(shard);
        let number = self.hub.ask(now, connection, log, body.into(), payload);
        self.lanes[place].sent(connection, number);
        self.appends.insert(number, shard);
        true
    }

    fn way(&mut self, now: Time, shard: ShardId) -> Option<ConnectionId> {
        match self.hub.routes.leader(shard) {
            Some(leader) => self.hub.connection(now, leader, shard),
            None => {
                self.hub.refresh(now);
                None
            }
        }
    }

    fn level(&self) -> u8 {
        let known = self.hub.routes.cluster();
        let default = known.map_or(0, |known| known.default_level);
        self.options.level.map_or(default, Level::number)
    }

    fn under_way(&self) -> (usize, usize) {
        let lanes = self.lanes.iter().map(Lane::under_way);
        lanes.fold((0, 0), |sum, lane| (sum.0 + lane.0, sum.1 + lane.1))
    }

    fn next_wake(&self, now: Time) -> Option<Time> {
        let lanes = self.lanes.iter();
        let ends = lanes.clone().filter_map(Lane::deadline);
        let retries = lanes.clone().filter_map(Lane::retry_at);
        let lingers = lanes.filter(|lane| !lane.has_queued());
        let lingers = lingers.filter_map(|lane| lane.open.as_ref());
        let lingers = lingers.map(|open| open.since.plus_us(self.options.linger_us));
        // What could have gone by now waits for an answer or a connection, which wake it.
        let ahead = retries.chain(lingers).filter(|at| *at > now);
        ends.chain(ahead).chain(self.hub.retry_at(now)).min()
    }
}

impl<T> Session for Producing<T> {
    fn handle(&mut self, now: Time, event: Event) {
        let news = match event {
            Event::Connected(connection) => {
                self.hub.connected(now, connection);
                News::None
            }
            Event::Lost(connection, why) => News::Lost(self.hub.lost(now, connection, &why)),
            Event::Frame {
                connection,
                correlation,
                body,
                payload,
            } => self.hub.frame(now, connection, correlation, body, payload),
            Event::Tick => News::None,
        };
        match news {
            News::None => {}
            News::Answer(number, answer) => self.answer(now, number, answer),
            News::Lost(numbers) => self.lose(numbers),
        }
        let late = self.hub.tick(now);
        self.lose(late);
        let id = self.options.producer_id;
        for shard in self.lanes.len()..self.hub.routes.shards() {
            self.lanes.push(Lane::new(ShardId(shard as u16), id));
        }
        self.pump(now);
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.hub.poll_action()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.wake_at.into_iter().chain(self.hub.deadline()).min()
    }

    fn cluster(&self) -> Option<&MetadataOk> {
        self.hub.routes.cluster()
    }

    fn fatal(&self) -> Option<&Failure> {
        self.hub.fatal.as_ref()
    }

    fn problem(&self) -> &str {
        self.hub.problem()
    }
}

#[cfg(test)]
#[path = "producing_tests.rs"]
mod tests;
