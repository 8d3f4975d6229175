//! A reader's session: one shard, from an offset or a time on, forward only.
//!
//! Reads at one node, or at whichever leads the shard. Names the (epoch, offset) of its last batch
//! with every question, so that a node whose log lost that batch says `Truncated` instead of giving
//! other records under old offsets; then it stands still until it is told where to go on. One
//! answer is fetched ahead while there are records. That the log has ended is said only by an
//! answer to a question that was asked after the application asked: a record acknowledged before is
//! seen.

use super::codec::{self, CodecError};
use super::event::{Action, Event, Failure, Session};
use super::hub::{Answer, Hub, News, backoff_us};
use super::routes::Refusal;
use crate::limits::MAX_BLOCK_BYTES;
use crate::types::{Epoch, NodeId, Offset, OriginId, ReadLevel, ShardId, Tick, Time};
use crate::wire::batch::{self, BatchPrefix};
use crate::wire::body::{Body, Find, MetadataOk, Read, ReadOk};
use crate::wire::code::{Code, Retry};
use crate::wire::record::{self, Record};
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::VecDeque;

/// Answers kept ahead of the application.
const AHEAD: usize = 1;

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the first record that the log keeps, whatever its offset.
    First,
    /// At this record.
    Offset(Offset),
    /// At the first record whose time is not below this one, microseconds since the Unix epoch, in
    /// the first batch up to which such a time occurred. Later records may have earlier times.
    Time(u64),
}

/// Which node a reader asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The leader of the shard, whoever it is.
    Leader,
    /// This node, whether it leads or follows.
    Node(NodeId),
    /// The node that answered first: the one that the session was pointed at.
    Seed,
}

/// What a reader does by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderOptions {
    /// The shard.
    pub shard: ShardId,
    /// Whose records of it; none: those that clients of the cluster append.
    pub origin: Option<OriginId>,
    /// Where to begin.
    pub start: Start,
    /// Which records may be returned; none: the cluster's default.
    pub level: Option<ReadLevel>,
    /// Which node to ask.
    pub at: At,
    /// Wait for more where the log ends, instead of saying so.
    pub follow: bool,
    /// Bytes of one answer at most; one batch may be larger.
    pub max_bytes: u32,
    /// How long one question waits at the end of the log when following, milliseconds.
    pub wait_ms: u32,
    /// How long the node may give no useful answer, microseconds. What a question waits at the end
    /// of the log comes on top, so a log where nothing happens is no failure.
    pub timeout_us: u64,
}

impl ReaderOptions {
    /// Records of the shard from its first one on, at its leader, to its end.
    pub fn new(shard: ShardId) -> ReaderOptions {
        ReaderOptions {
            shard,
            origin: None,
            start: Start::First,
            level: None,
            at: At::Leader,
            follow: false,
            max_bytes: MAX_BLOCK_BYTES as u32,
            wait_ms: 1000,
            timeout_us: 30_000_000,
        }
    }
}

/// Records that were appended together, checked and decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordBatch {
    /// The shard.
    pub shard: ShardId,
    /// Epoch of the leadership that accepted it.
    pub epoch: Epoch,
    /// When the leader appended it, microseconds.
    pub tick: Tick,
    base_offset: Offset,
    /// First and one past the last record to be seen.
    first: Offset,
    end: Offset,
    body: Bytes,
}

impl RecordBatch {
    /// The records with their offsets, from the first one asked for on.
    pub fn records(&self) -> impl Iterator<Item = (Offset, Record<'_>)> {
        let records = (self.base_offset.0..).zip(record::read_all(&self.body));
        let records = records.map(|(offset, record)| (Offset(offset), record));
        let wanted = records.filter(|(offset, _)| *offset >= self.first);
        wanted.map(|(offset, record)| (offset, record.expect("read when it came")))
    }

    /// Offset of the first record.
    pub fn first(&self) -> Offset {
        self.first
    }

    /// One past the offset of the last record.
    pub fn end(&self) -> Offset {
        self.end
    }
}

/// What a reader has for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Records.
    Batch(RecordBatch),
    /// The log ended here at some time after the application asked.
    End,
    /// Why it does not go on. Asking again may help, but for `Truncated` and `OutOfRange`: those
    /// stay until `seek`.
    Failed(Failure),
}

/// Where a log ended when a node last said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Offset behind the last record that may be read at the reader's level.
    pub readable: Offset,
    /// Offset behind the last record that the node holds.
    pub held: Offset,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    number: u64,
    /// Whether it was asked after the application asked.
    for_want: bool,
    /// Whether it asks where a time is, not for records.
    is_find: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Reading {
    hub: Hub,
    options: ReaderOptions,
    node: Option<NodeId>,
    /// The next record to ask for; none while its time is being looked up.
    position: Option<Offset>,
    /// Epoch of the batch that ends at the position; 0 if none was read.
    last_epoch: Epoch,
    /// Records before this time are left out until one is not.
    not_before: Option<u64>,
    /// It is to begin where the log does, and has not begun: the position gives way.
    at_first: bool,
    question: Option<Question>,
    ready: VecDeque<RecordBatch>,
    /// The application waits; when it has waited too long for a useful answer.
    wanted: Option<Time>,
    /// What the application gets if there is no batch.
    outcome: Option<Next>,
    /// Where the log ended when there was nothing more, if the node said so.
    ends: Option<Ends>,
    /// Stays until `seek`.
    stuck: Option<Failure>,
    /// The last answer had records, so the next one is fetched ahead.
    flowing: bool,
    tries: u32,
    retry_at: Time,
    refusal: (Option<Code>, [u64; 2]),
    wake_at: Option<Time>,
}

impl Reading {
    /// A session that will find the cluster through any of `seeds`, each `host:port`. Panics
    /// without any.
    pub fn new(seeds: Vec<String>, options: ReaderOptions) -> Reading {
        assert!(!seeds.is_empty(), "no node to ask");
        let mut reading = Reading {
            hub: Hub::new(seeds),
            options,
            node: None,
            position: None,
            last_epoch: Epoch(0),
            not_before: None,
            at_first: false,
            question: None,
            ready: VecDeque::new(),
            wanted: None,
            outcome: None,
            ends: None,
            stuck: None,
            flowing: false,
            tries: 0,
            retry_at: Time(0),
            refusal: (None, [0; 2]),
            wake_at: None,
        };
        reading.seek(reading.options.start);
        reading
    }

    /// Goes on from another place. What was fetched is dropped.
    pub fn seek(&mut self, start: Start) {
        self.options.start = start;
        (self.position, self.not_before) = match start {
            Start::First => (Some(Offset(0)), None),
            Start::Offset(offset) => (Some(offset), None),
            Start::Time(time) => (None, Some(time)),
        };
        self.at_first = start == Start::First;
        self.last_epoch = Epoch(0);
        self.question = None;
        self.ready.clear();
        self.outcome = None;
        self.stuck = None;
        self.flowing = false;
    }

    /// The offset behind the last record fetched; none while a time is being looked up.
    pub fn position(&self) -> Option<Offset> {
        self.position
    }

    /// Where the log ended when there was last nothing more to read. None before that, and of a
    /// node that does not say.
    pub fn ends(&self) -> Option<Ends> {
        self.ends
    }

    /// The application wants the next batch.
    pub fn want(&mut self, now: Time) {
        let deadline = self.deadline(now);
        self.wanted.get_or_insert(deadline);
        if let Some(failure) = &self.stuck {
            self.outcome = Some(Next::Failed(failure.clone()));
        }
        self.pump(now);
    }

    /// What there is for the application, once it wants something.
    pub fn take(&mut self, now: Time) -> Option<Next> {
        let next = self.ready.pop_front().map(Next::Batch);
        let next = next.or_else(|| self.outcome.take())?;
        self.wanted = None;
        self.pump(now);
        Some(next)
    }

    /// How long a question waits at the end of the log, milliseconds.
    fn wait_ms(&self) -> u32 {
        if self.options.follow {
            self.options.wait_ms
        } else {
            0
        }
    }

    /// When a useful answer to what is asked now must be here.
    fn deadline(&self, now: Time) -> Time {
        let wait_us = 1000 * u64::from(self.wait_ms());
        now.plus_us(self.options.timeout_us.saturating_add(wait_us))
    }

    fn ask(&mut self, now: Time) {
        let node = match self.options.at {
            At::Leader => self.hub.routes.leader(self.options.shard),
            At::Node(node) => Some(node),
            At::Seed => self.node,
        };
        let shard = self.options.shard;
        let Some(node) = node else {
            self.hub.refresh(now);
            return;
        };
        let Some(connection) = self.hub.connection(now, node, shard) else {
            return;
        };
        let is_find = self.position.is_none() && self.not_before.is_some();
        let body: Body = match (self.position, self.not_before) {
            (None, Some(timestamp)) => Find { timestamp }.into(),
            (offset, _) => Read {
                offset: offset.unwrap_or_default(),
                max_bytes: self.options.max_bytes,
                wait_ms: self.wait_ms(),
                level: self.level(),
                last_epoch: self.last_epoch,
            }
            .into(),
        };
        let mut log = self.hub.routes.log(shard);
        log.origin = self.options.origin.unwrap_or(log.origin);
        let number = self.hub.ask(now, connection, log, body, Bytes::new());
        self.question = Some(Question {
            number,
            for_want: self.wanted.is_some(),
            is_find,
        });
    }

    fn level(&self) -> u8 {
        let known = self.hub.routes.cluster();
        let default = known.map_or(0, |known| known.default_read_level);
        self.options.level.map_or(default, ReadLevel::number)
    }

    fn answer(&mut self, now: Time, number: u64, answer: Answer) {
        let Some(asked) = self.question.filter(|asked| asked.number == number) else {
            return;
        };
        self.question = None;
        match answer {
            Answer::Ok(Body::FindOk(ok), _) if asked.is_find => {
                self.position = Some(ok.offset);
                self.answered(now);
            }
            Answer::Ok(Body::ReadOk(ok), payload) if !asked.is_find => {
                if payload.is_empty() {
                    return self.ended(now, asked);
                }
                self.answered(now);
                if let Err(failure) = self.take_in(&ok, &payload) {
                    self.fail(failure);
                }
            }
            Answer::Ok(..) => {
                let offset = self.position.unwrap_or_default().0;
                let what = "the node answered another question";
                self.fail(Failure::Damaged { offset, what });
            }
            Answer::Refused(refusal) if refusal.code == Some(Code::Timeout) => {
                let [readable, held] = refusal.details.map(Offset);
                // A log holds what may be read of it: less is no answer about ends.
                let said = held.0 > 0 && readable <= held;
                self.ends = said.then_some(Ends { readable, held });
                self.ended(now, asked);
            }
            Answer::Refused(refusal) => self.refused(now, &refusal),
        }
    }

    /// The node did what was asked.
    fn answered(&mut self, now: Time) {
        (self.tries, self.refusal) = (0, (None, [0; 2]));
        if self.wanted.is_some() {
            self.wanted = Some(self.deadline(now));
        }
    }

    /// There was nothing more.
    fn ended(&mut self, now: Time, asked: Question) {
        self.answered(now);
        self.flowing = false;
        if asked.for_want && !self.options.follow && self.wanted.is_some() {
            self.outcome = Some(Next::End);
        }
    }

    fn refused(&mut self, now: Time, refusal: &Refusal) {
        let [one, two] = refusal.details;
        self.refusal = (refusal.code, refusal.details);
        let offset = self.position.unwrap_or_default().0;
        match (refusal.code, refusal.retry) {
            (Some(Code::Truncated), _) => {
                let last_common = one;
                self.stick(Failure::Truncated { last_common });
            }
            // Where the log begins is known now; it may have moved on before the next question.
            (Some(Code::OutOfRange), _) if self.at_first && offset < one => {
                self.position = Some(Offset(one));
            }
            (Some(Code::OutOfRange), _) => {
                let (start, end) = (one, two);
                self.stick(Failure::OutOfRange { offset, start, end });
            }
            (_, Retry::Elsewhere) if self.tries == 0 => self.tries = 1,
            (_, Retry::Later | Retry::Elsewhere | Retry::UnknownOutcome) => self.back_off(now),
            (code, Retry::Final) => self.fail(Failure::Refused {
                code,
                details: refusal.details,
            }),
        }
    }

    fn back_off(&mut self, now: Time) {
        self.retry_at = now.plus_us(backoff_us(self.tries));
        self.tries = self.tries.saturating_add(1);
    }

    fn stick(&mut self, failure: Failure) {
        self.stuck = Some(failure.clone());
        self.fail(failure);
    }

    /// The application gets the failure behind what was fetched before it. Without an application
    /// that waits, the next one that does finds it out again.
    fn fail(&mut self, failure: Failure) {
        self.flowing = false;
        if self.wanted.is_some() {
            self.outcome = Some(Next::Failed(failure));
        }
    }

    /// Checks and decodes whole batches.
    fn take_in(&mut self, ok: &ReadOk, payload: &Bytes) -> Result<(), Failure> {
        let offset = self.position.unwrap_or_default();
        // Only whole answers move the reader, the time that it waits for included.
        let mut not_before = self.not_before;
        let (batches, end) = self.decode(offset, payload, &mut not_before)?;
        if end <= offset || end != ok.next {
            let (offset, what) = (offset.0, "the batches are not the ones asked for");
            return Err(Failure::Damaged { offset, what });
        }
        self.ready.extend(batches);
        self.not_before = not_before;
        self.position = Some(end);
        self.at_first = false;
        self.last_epoch = ok.last_epoch;
        self.flowing = true;
        Ok(())
    }

    fn decode(
        &self,
        from: Offset,
        payload: &Bytes,
        not_before: &mut Option<u64>,
    ) -> Result<(Vec<RecordBatch>, Offset), Failure> {
        let mut batches = Vec::new();
        let (mut rest, mut end) = (payload.clone(), None);
        while !rest.is_empty() {
            let offset = end.unwrap_or(from).0;
            let damaged = |what| Failure::Damaged { offset, what };
            let prefix = batch::check(&rest).map_err(|_| damaged("its CRC does not fit"))?;
            let whole = rest.split_to(prefix.total_len());
            // Batches without records take no offsets.
            let follows = match end {
                None => prefix.base_offset <= from,
                Some(end) => prefix.base_offset == end,
            };
            if !follows {
                return Err(damaged("it does not follow the one before it"));
            }
            end = Some(prefix.end_offset());
            if prefix.record_count > 0 && prefix.end_offset() > from {
                batches.extend(self.decode_batch((from, not_before), &prefix, &whole)?);
            }
        }
        Ok((batches, end.unwrap_or(from)))
    }

    /// The records of a batch that the application is to see, if it is to see any.
    fn decode_batch(
        &self,
        (from, not_before): (Offset, &mut Option<u64>),
        prefix: &BatchPrefix,
        whole: &Bytes,
    ) -> Result<Option<RecordBatch>, Failure> {
        let offset = prefix.base_offset.0;
        let damaged = |what| Failure::Damaged { offset, what };
        if prefix.version != batch::VERSION {
            return Err(damaged("its version is not known here"));
        }
        let body = whole.slice(usize::from(prefix.header_len)..);
        let body = match codec::unpack(&batch::client_half(whole), &body) {
            Ok(Cow::Borrowed(_)) => body,
            Ok(Cow::Owned(raw)) => raw.into(),
            Err(CodecError::Unknown(_)) => return Err(damaged("its codec is not known here")),
            Err(CodecError::TooLarge(_)) => {
                return Err(damaged("unpacked it would be longer than any batch"));
            }
            Err(CodecError::Damaged) => return Err(damaged("its body does not unpack")),
        };
        let (mut count, mut first) = (0, None);
        for record in record::read_all(&body) {
            let record = record.map_err(|_| damaged("a record in it is none"))?;
            let here = Offset(offset + count);
            let late = not_before.is_none_or(|time| record.timestamp >= time);
            if here >= from && late && first.is_none() {
                first = Some(here);
            }
            count += 1;
        }
        if count != u64::from(prefix.record_count) {
            return Err(damaged("it has another number of records than it says"));
        }
        let Some(first) = first else {
            return Ok(None);
        };
        *not_before = None;
        Ok(Some(RecordBatch {
            shard: self.options.shard,
            epoch: prefix.origin_epoch,
            tick: prefix.tick,
            base_offset: prefix.base_offset,
            first,
            end: prefix.end_offset(),
            body,
        }))
    }

    fn pump(&mut self, now: Time) {
        if self.hub.routes.cluster().is_some() {
            let known = self.hub.routes.cluster().map(|known| known.node);
            self.node = self.node.or(known);
            self.ask_if_due(now);
        }
        if self.wanted.is_some_and(|deadline| deadline <= now) && self.outcome.is_none() {
            let (code, details) = self.refusal;
            let problem = self.hub.problem.clone();
            self.outcome = Some(Next::Failed(Failure::NotTaken {
                code,
                details,
                problem,
            }));
        }
        let retry = Some(self.retry_at).filter(|at| *at > now);
        let wanted = self.wanted.filter(|_| self.outcome.is_none());
        let times = [retry, wanted, self.hub.retry_at(now)];
        self.wake_at = times.into_iter().flatten().min();
    }

    fn ask_if_due(&mut self, now: Time) {
        let room = self.ready.len() <= AHEAD && self.outcome.is_none() && self.stuck.is_none();
        let due = self.wanted.is_some() && self.ready.is_empty() || self.flowing;
        if room && due && self.question.is_none() && now >= self.retry_at {
            self.ask(now);
        }
    }
}

impl Session for Reading {
    fn handle(&mut self, now: Time, event: Event) {
        let mut lost = Vec::new();
        match event {
            Event::Connected(connection) => self.hub.connected(now, connection),
            Event::Lost(connection, why) => lost = self.hub.lost(now, connection, &why),
            Event::Frame {
                connection,
                correlation,
                body,
                payload,
            } => match self.hub.frame(now, connection, correlation, body, payload) {
                News::None => {}
                News::Answer(number, answer) => self.answer(now, number, answer),
                News::Lost(numbers) => lost = numbers,
            },
            Event::Tick => {}
        }
        lost.extend(self.hub.tick(now));
        if self
            .question
            .is_some_and(|asked| lost.contains(&asked.number))
        {
            self.question = None;
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
#[path = "reading_tests.rs"]
mod tests;
