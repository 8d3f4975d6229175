//! One producer's batches for one shard: in order, each once, whatever the network does.
//!
//! A batch is named by (producer, epoch, sequence); the log knows the last five of a producer and
//! joins a repeated one to its first copy. So nothing goes that is more than four behind the oldest
//! without an outcome, a failure holds the lane until every batch under way has its answer, and
//! then they go again from the first one on, under the same names. A batch gets another name only
//! if every attempt so far was refused: one that may be in the log is never sent under a second
//! name, it ends as unknown. (A log that forgot the producer within a retry of the first batch of
//! an epoch, sequence 0, cannot know it again: that takes 1,024 other producers in between.)
//! Whether there is room to send, and over which connection, is decided in `producing.rs`.

use super::batching::Open;
use super::codec::{self, Codec};
use super::event::Failure;
use super::hub::backoff_us;
use super::routes::Refusal;
use crate::types::{ConnectionId, Offset, ShardId, Time};
use crate::wire::batch;
use crate::wire::code::{Code, Retry};
use bytes::Bytes;
use std::collections::VecDeque;

/// Batches of one producer that a log remembers, and so the most that may be unanswered.
pub(super) const UNANSWERED: usize = 5;
/// Added to a producer's id when its epochs are used up.
const NEXT_ID: u64 = 0x9E37_79B9_7F4A_7C15;

/// How the records of one batch ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// The shard that they were for.
    pub shard: ShardId,
    /// What the driver gave with each record, in order.
    pub tokens: Vec<T>,
    /// The offset of the first one, the others follow; or why not.
    pub outcome: Result<Offset, Failure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// To be sent, for the first time or again.
    Queued,
    Sent(ConnectionId, u64),
}

/// A sealed batch without an outcome.
#[derive(Debug)]
struct Batch<T> {
    bytes: Bytes,
    /// Its place among all batches of the lane.
    serial: u64,
    records: u32,
    tokens: Vec<T>,
    /// Bytes that it counts for while it waits.
    held: usize,
    deadline: Time,
    generation: u64,
    stage: Stage,
    /// Whether an attempt ended without an answer that says that it is not in the log.
    may_be_in: bool,
    /// What a node said last.
    refusal: (Option<Code>, [u64; 2]),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lane<T> {
    shard: ShardId,
    pub(super) open: Option<Open<T>>,
    batches: VecDeque<Batch<T>>,
    producer_id: u64,
    epoch: u16,
    next_sequence: u32,
    next_serial: u64,
    /// Nothing is sent before all that is under way has its answer.
    holding: bool,
    /// The queued batches need names under a new epoch: one before them will never be in the log.
    renewing: bool,
    retry_at: Time,
    tries: u32,
}

impl<T> Lane<T> {
    pub(super) fn new(shard: ShardId, producer_id: u64) -> Lane<T> {
        Lane {
            shard,
            open: None,
            batches: VecDeque::new(),
            producer_id,
            epoch: 0,
            next_sequence: 0,
            next_serial: 0,
            holding: false,
            renewing: false,
            retry_at: Time(0),
            tries: 0,
        }
    }

    /// Seals the open batch, names it, and queues it; the bytes by which its codec shrank it.
    pub(super) fn seal(&mut self, codec: Codec, timeout_us: u64) -> usize {
        let Some(mut open) = self.open.take() else {
            return 0;
        };
        let records = open.builder.record_count();
        let raw = open.builder.len();
        // A sequence that has no room is given under the next epoch.
        if self.next_sequence.checked_add(records).is_none() {
            self.renewing = true;
            self.next_sequence = 0;
        }
        open.builder
            .producer(self.producer_id, self.epoch, self.next_sequence);
        self.next_sequence += records;
        let bytes = Bytes::from(codec::pack(open.builder.finish(), codec));
        let held = bytes.len();
        let serial = self.next_serial;
        self.next_serial += 1;
        self.batches.push_back(Batch {
            bytes,
            serial,
            records,
            tokens: open.tokens,
            held,
            deadline: open.since.plus_us(timeout_us),
            generation: open.generation,
            stage: Stage::Queued,
            may_be_in: false,
            refusal: (None, [0; 2]),
        });
        raw - held
    }

    /// Batches sent and unanswered, and their bytes.
    pub(super) fn under_way(&self) -> (usize, usize) {
        let sent = self
            .batches
            .iter()
            .filter(|batch| batch.stage != Stage::Queued);
        sent.fold((0, 0), |(count, bytes), batch| {
            (count + 1, bytes + batch.held)
        })
    }

    /// Whether a sealed batch waits to be sent.
    pub(super) fn has_queued(&self) -> bool {
        self.batches
            .iter()
            .any(|batch| batch.stage == Stage::Queued)
    }

    /// The oldest flush that something here was given before.
    pub(super) fn oldest_generation(&self) -> Option<u64> {
        let open = self.open.iter().map(|open| open.generation);
        let sealed = self.batches.iter().map(|batch| batch.generation);
        sealed.chain(open).min()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.batches.iter().map(|batch| batch.deadline).min()
    }

    /// When the lane may go on after a failure, if something waits for it.
    pub(super) fn retry_at(&self) -> Option<Time> {
        let something = self.has_queued() || self.open.is_some();
        (something && !self.waits()).then_some(self.retry_at)
    }

    /// Whether a batch could go, if there is one.
    pub(super) fn may_send(&self, now: Time) -> bool {
        !self.waits() && now >= self.retry_at && self.under_way().0 < UNANSWERED
    }

    fn waits(&self) -> bool {
        (self.holding || self.renewing) && self.under_way().0 > 0
    }

    /// Readies the lane for its next batch to be sent: the bytes of that batch and the connection
    /// that it must go over, none if any will do. None if nothing may be sent now.
    pub(super) fn next(
        &mut self,
        now: Time,
        done: &mut Vec<Done<T>>,
    ) -> Option<(usize, Option<ConnectionId>)> {
        if !self.may_send(now) || !self.has_queued() {
            return None;
        }
        self.holding = false;
        if self.renewing {
            self.renew(done);
        }
        let over = self.batches.iter().find_map(|batch| match batch.stage {
            Stage::Sent(connection, _) => Some(connection),
            Stage::Queued => None,
        });
        let next = self
            .batches
            .iter()
            .find(|batch| batch.stage == Stage::Queued)?;
        // Counted from the oldest without an outcome on, answered ones in between included: the log
        // must know that one still when it comes again.
        let oldest = self.batches.front()?.serial;
        (next.serial - oldest < UNANSWERED as u64).then_some((next.held, over))
    }

    /// The bytes of the batch that `next` spoke of and how long it may take, microseconds.
    pub(super) fn payload(&self, now: Time) -> (Bytes, u64) {
        let mut queued = self
            .batches
            .iter()
            .filter(|batch| batch.stage == Stage::Queued);
        let next = queued.next().expect("next said so");
        (next.bytes.clone(), next.deadline.since_us(now))
    }

    /// That batch went out.
    pub(super) fn sent(&mut self, connection: ConnectionId, correlation: u64) {
        let mut queued = self
            .batches
            .iter_mut()
            .filter(|batch| batch.stage == Stage::Queued);
        let next = queued.next().expect("next said so");
        next.stage = Stage::Sent(connection, correlation);
    }

    /// Gives all queued batches names under a new epoch. One that may be in the log under its old
    /// name is not sent again.
    fn renew(&mut self, done: &mut Vec<Done<T>>) {
        self.renewing = false;
        match self.epoch.checked_add(1) {
            Some(epoch) => self.epoch = epoch,
            None => (self.producer_id, self.epoch) = (self.producer_id.wrapping_add(NEXT_ID), 0),
        }
        self.next_sequence = 0;
        for mut batch in std::mem::take(&mut self.batches) {
            if batch.may_be_in {
                done.push(batch.end(self.shard, Err(Failure::Unknown)));
                continue;
            }
            batch.rename(self.producer_id, self.epoch, self.next_sequence);
            self.next_sequence = self.next_sequence.saturating_add(batch.records);
            self.batches.push_back(batch);
        }
    }

    fn place(&self, correlation: u64) -> Option<usize> {
        let mut batches = self.batches.iter();
        batches.position(|b| matches!(b.stage, Stage::Sent(_, number) if number == correlation))
    }

    fn end(&mut self, place: usize, outcome: Result<Offset, Failure>) -> Option<Done<T>> {
        let batch = self.batches.remove(place)?;
        Some(batch.end(self.shard, outcome))
    }

    /// The batch is in the log and its level is reached.
    pub(super) fn acked(&mut self, correlation: u64, offset: Offset) -> Option<Done<T>> {
        self.tries = 0;
        let place = self.place(correlation)?;
        self.end(place, Ok(offset))
    }

    /// This attempt was refused.
    pub(super) fn refused(
        &mut self,
        now: Time,
        correlation: u64,
        refusal: &Refusal,
    ) -> Option<Done<T>> {
        let place = self.place(correlation)?;
        let batch = &mut self.batches[place];
        batch.stage = Stage::Queued;
        batch.refusal = (refusal.code, refusal.details);
        // Of several that fail together the first one counts.
        let is_first = !std::mem::replace(&mut self.holding, true);
        match (refusal.code, refusal.retry) {
            // What its name did not follow, another one has or has left the log's memory. While an
            // earlier one has no outcome, that is the reason, and it goes first.
            (Some(Code::SequenceGap | Code::SequenceReused | Code::UnknownProducer), _) => {
                if place > 0 {
                    return None;
                }
                if self.batches[place].may_be_in {
                    return self.end(place, Err(Failure::Unknown));
                }
                self.renewing = true;
                None
            }
            // Elsewhere it may work at once; if not, one waits.
            (_, Retry::Elsewhere) if is_first && self.tries == 0 => {
                self.tries = 1;
                None
            }
            (_, Retry::Later | Retry::Elsewhere) => {
                self.back_off(now, is_first);
                None
            }
            (_, Retry::UnknownOutcome) => {
                batch.may_be_in = true;
                self.back_off(now, is_first);
                None
            }
            (code, Retry::Final) => {
                self.renewing = true;
                let failure = Failure::Refused {
                    code,
                    details: refusal.details,
                };
                let unknown = batch.may_be_in;
                self.end(place, Err(if unknown { Failure::Unknown } else { failure }))
            }
        }
    }

    fn back_off(&mut self, now: Time, is_first: bool) {
        if is_first {
            self.retry_at = now.plus_us(backoff_us(self.tries));
            self.tries = self.tries.saturating_add(1);
        }
    }

    /// This attempt will get no answer.
    pub(super) fn lost(&mut self, correlation: u64) {
        if let Some(place) = self.place(correlation) {
            let batch = &mut self.batches[place];
            batch.stage = Stage::Queued;
            batch.may_be_in = true;
            self.holding = true;
        }
    }

    /// Ends what is out of time.
    pub(super) fn expire(&mut self, now: Time, problem: &str) -> Vec<Done<T>> {
        let mut done = Vec::new();
        while let Some(first) = self.batches.front().filter(|batch| batch.deadline <= now) {
            let failure = if first.may_be_in || first.stage != Stage::Queued {
                Failure::Unknown
            } else {
                // Its sequence stays free, so those behind it need other names.
                (self.holding, self.renewing) = (true, true);
                let (code, details) = first.refusal;
                Failure::NotTaken {
                    code,
                    details,
                    problem: problem.to_owned(),
                }
            };
            done.extend(self.end(0, Err(failure)));
        }
        done
    }

    /// Ends all that is not under way.
    pub(super) fn give_up(&mut self, failure: &Failure) -> Vec<Done<T>> {
        let mut done = Vec::new();
        for batch in std::mem::take(&mut self.batches) {
            if batch.stage == Stage::Queued {
                let unknown = batch.may_be_in;
                let failure = if unknown {
                    Failure::Unknown
                } else {
                    failure.clone()
                };
                done.push(batch.end(self.shard, Err(failure)));
            } else {
                self.batches.push_back(batch);
            }
        }
        if let Some(open) = self.open.take() {
            done.push(Done {
                shard: self.shard,
                tokens: open.tokens,
                outcome: Err(failure.clone()),
            });
        }
        done
    }

    /// Bytes that wait here, open batch included.
    pub(super) fn held(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |open| open.builder.len());
        open + self.batches.iter().map(|batch| batch.held).sum::<usize>()
    }
}

impl<T> Batch<T> {
    fn end(self, shard: ShardId, outcome: Result<Offset, Failure>) -> Done<T> {
        let tokens = self.tokens;
        Done {
            shard,
            tokens,
            outcome,
        }
    }

    fn rename(&mut self, producer_id: u64, epoch: u16, base_sequence: u32) {
        let mut bytes = self.bytes.to_vec();
        let mut half = batch::client_half(&bytes);
        half.producer_id = producer_id;
        half.producer_epoch = epoch;
        half.base_sequence = base_sequence;
        batch::write_client_half(&mut bytes, &half);
        self.bytes = bytes.into();
    }
}
