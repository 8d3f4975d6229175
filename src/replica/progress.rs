//! What a leader knows of one follower, and the state of the link to it.
//!
//! `next` (to send) and `matched` (acked in this epoch) are separate (D-S1); acks never move
//! anything back. After a refusal, or on a new connection, the link *probes*: one frame in flight
//! until it is acked; then it streams. Frames sent before the last step back are stale: their
//! refusals free the frame and change nothing else. Owns the sender's credit, the frames in flight
//! and the public status; it decides nothing about epochs or commits: see `leader.rs`.

use super::admit::{self, Hints};
use super::backoff::Backoff;
use super::credit::{Sender, plus, weight};
use super::lag::Histogram;
use super::output::LinkStatus;
use super::view::LogView;
use crate::faults::{Fault, active};
use crate::types::{BlockNo, ConnectionId, Epoch, Lent, NodeId, Time};
use crate::wire::block::BlockHeader;
use crate::wire::body::{CreditLimits, Nack, PauseReason, Position, ReplicaMemory};
use crate::wire::capability::Capabilities;
use crate::wire::code::Code;
use std::collections::VecDeque;

/// How far a link has come on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No data connection.
    Down,
    /// Connected; `Where{0}` is to be sent.
    Connected,
    /// `Where{0}` was sent.
    Asking,
    /// Its position is known; no promise was asked for.
    Known,
    /// `Where{epoch}` was sent.
    Promising,
    /// It promised the epoch.
    Promised,
    /// The epoch is open; one frame in flight at a time.
    Probing,
    /// Frames flow as credit allows.
    Streaming,
}

/// Why a link has its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nothing is wrong.
    None,
    /// There was no connection yet, or a position is awaited.
    Connecting,
    /// The connection was lost or could not be opened.
    Lost,
    /// Nothing came from the follower for `rpc_timeout`.
    Timeout,
    /// The follower refused with this code and the numbers that belong to it.
    Refused(Code, [u64; 2]),
    /// It lost its memory and waits until the rest of the set confirms this leader.
    Unconfirmed,
    /// It lost its memory and is sent what it lacks; it counts for no majority until then.
    Rebuilding,
    /// The next block does not fit its credit.
    Credit,
    /// The follower's disk is full: it grants nothing.
    PeerFull,
    /// The follower asked for a pause.
    Peer(PauseReason),
    /// An operator asked for a pause.
    Operator,
    /// From this block on, at the latest, its committed log is another one.
    Diverged(BlockNo),
    /// The next block is damaged in the own log.
    Damaged,
}

impl Cause {
    /// Whether something went wrong, rather than being slow or asked for.
    pub fn is_error(&self) -> bool {
        matches!(
            self,
            Cause::Lost | Cause::Timeout | Cause::Refused(..) | Cause::Diverged(_) | Cause::Damaged
        )
    }

    /// In a few words.
    pub fn text(&self) -> String {
        let text = match self {
            Cause::None => "",
            Cause::Connecting => "connecting",
            Cause::Lost => "connection lost",
            Cause::Timeout => "no answer within rpc_timeout",
            Cause::Refused(code, details) => {
                return format!("refused: {}", code.explain(*details));
            }
            Cause::Unconfirmed => "lost its memory; waiting for a majority of the others",
            Cause::Rebuilding => "lost its memory; is sent what it lacks",
            Cause::Credit => "credit exhausted",
            Cause::PeerFull => "the follower's disk is full",
            Cause::Peer(PauseReason::SlowDisk) => "follower: slow_disk",
            Cause::Peer(PauseReason::HighLoad) => "follower: high_load",
            Cause::Peer(PauseReason::Manual) => "follower: manual",
            Cause::Operator => "manual",
            Cause::Damaged => "the next block is damaged here and being fetched from another node",
            Cause::Diverged(at) => return format!("diverged: the logs differ at block {at}"),
        };
        text.to_owned()
    }
}

/// A frame in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    first: BlockNo,
    end: BlockNo,
    round: u32,
}

/// What a `Nack` to a frame means for its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing: the frame was sent before the last step back, or there was none.
    Stale,
    /// Another position is tried.
    SteppedBack,
    /// The same blocks are sent again; this side's copy is suspect.
    Suspect(BlockNo),
    /// The same blocks are sent again once the follower has space.
    Full,
    /// The link stops until an operator acts.
    Stopped,
    /// The connection is of no use.
    Hopeless,
}

/// Consecutive CRC refusals after which a connection is given up.
const CRC_REFUSALS: u32 = 3;

/// One link.
#[derive(Debug)]
pub struct Link {
    pub peer: NodeId,
    pub data: Option<ConnectionId>,
    pub control: Option<ConnectionId>,
    /// What it said at its last connection that it can.
    pub capabilities: Capabilities,
    pub stage: Stage,
    pub dialing: bool,
    pub retry_at: Option<Time>,
    /// Attempts that led to no ack.
    pub backoff: Backoff,
    /// Any frame of the peer, on either channel.
    pub heard: Time,
    /// Any frame of the peer on the data connection.
    pub data_heard: Time,
    /// Something is unanswered since.
    pub waiting_since: Option<Time>,
    /// What it said last, and when.
    pub position: Option<Position>,
    pub known_at: Time,
    /// The last heartbeat of this epoch that it answered with this epoch's promise, by send time.
    pub confirmed_at: Time,
    /// Epoch that it promised to this leader.
    pub promised: Epoch,
    /// Epoch for which it refused its vote.
    pub refused: Epoch,
    pub memory: ReplicaMemory,
    pub next: BlockNo,
    pub matched: BlockNo,
    pub sender: Sender,
    /// A run is being loaded: its first block and round.
    pub loading: Option<(BlockNo, u32)>,
    /// The composition could not send the next run; cleared when anything changes.
    pub blocked: bool,
    /// The next block is damaged here: nothing goes before it is repaired.
    pub damaged: bool,
    /// Buffers of what was handed to the connection and not yet to its socket.
    pub queued: Lent,
    pub peer_pause: Option<PauseReason>,
    /// When the follower last refused a run because its disk is full, if it granted nothing since.
    pub peer_full: Option<Time>,
    /// When it was told to take over and had no space to lead.
    pub declined: Option<Time>,
    pub operator_pause: bool,
    pub stopped: Option<Cause>,
    pub status: LinkStatus,
    pub cause: Cause,
    pub since: Time,
    /// The last cause that was an error, whatever came after it.
    pub last_error: Cause,
    /// What operators were told last, and when of a lack of credit last.
    pub told: (LinkStatus, Cause),
    pub credit_told_at: Option<Time>,
    pub lag: Histogram,
    /// Data connections that ever were open, and bytes of blocks handed to them, unpadded.
    pub connections: u64,
    pub sent_bytes: u64,
    flights: VecDeque<Flight>,
    round: u32,
    crc_refusals: u32,
}

impl Link {
    pub fn new(peer: NodeId) -> Link {
        Link {
            peer,
            data: None,
            control: None,
            capabilities: Capabilities::NONE,
            stage: Stage::Down,
            dialing: false,
            retry_at: Some(Time(0)),
            backoff: Backoff::default(),
            heard: Time(0),
            data_heard: Time(0),
            waiting_since: None,
            position: None,
            known_at: Time(0),
            confirmed_at: Time(0),
            promised: Epoch(0),
            refused: Epoch(0),
            memory: ReplicaMemory::Blank,
            next: BlockNo(0),
            matched: BlockNo(0),
            sender: Sender::default(),
            loading: None,
            blocked: false,
            damaged: false,
            queued: Lent::default(),
            peer_pause: None,
            peer_full: None,
            declined: None,
            operator_pause: false,
            stopped: None,
            status: LinkStatus::Disconnected,
            cause: Cause::Connecting,
            since: Time(0),
            last_error: Cause::None,
            told: (LinkStatus::Disconnected, Cause::Connecting),
            credit_told_at: None,
            lag: Histogram::default(),
            connections: 0,
            sent_bytes: 0,
            flights: VecDeque::new(),
            round: 0,
            crc_refusals: 0,
        }
    }

    /// A data connection is open: everything that belongs to a connection starts anew.
    pub fn up(&mut self, now: Time, connection: ConnectionId) {
        self.data = Some(connection);
        self.connections += 1;
        self.stage = Stage::Connected;
        self.dialing = false;
        self.retry_at = None;
        self.heard = now;
        self.data_heard = now;
        self.forget_connection();
    }

    /// The data connection is gone, or could not be opened: the next attempt follows after a pause.
    pub fn failed(&mut self, now: Time, longest_us: u64, cause: Cause) {
        let pause_us = self.backoff.failed(longest_us);
        self.down(now.plus_us(pause_us), cause);
    }

    /// The data connection is gone; the next attempt is due at `retry_at`.
    pub fn down(&mut self, retry_at: Time, cause: Cause) {
        self.data = None;
        self.stage = Stage::Down;
        self.dialing = false;
        self.retry_at = Some(retry_at);
        self.cause = cause;
        self.forget_connection();
    }

    fn forget_connection(&mut self) {
        self.sender = Sender::default();
        self.flights.clear();
        self.round += 1;
        self.loading = None;
        self.blocked = false;
        self.damaged = false;
        self.queued = Lent::default();
        self.waiting_since = None;
        self.peer_pause = None;
        self.peer_full = None;
        self.position = None;
        self.crc_refusals = 0;
    }

    /// Its position is asked for again.
    pub fn asks_again(&mut self) {
        if self.stage == Stage::Known {
            self.stage = Stage::Connected;
        }
    }

    /// Whether its acks count for a majority in `epoch`.
    pub fn counts(&self, epoch: Epoch) -> bool {
        self.memory == ReplicaMemory::Whole && self.promised == epoch
    }

    /// A grant came.
    pub fn raise(&mut self, limits: CreditLimits) {
        self.sender.raise(limits);
        self.blocked = false;
    }

    /// Whether nothing but heartbeats would be missed on its data connection: they go over it too.
    pub fn needs_heartbeats(&self) -> bool {
        self.in_flight() == 0 || self.peer_pause.is_some()
    }

    /// Frames that are sent and not answered.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Begins to send from where both logs can agree. None, or why the link stops.
    pub fn start(&mut self, view: &dyn LogView) -> Option<Cause> {
        let position = self.position.as_ref()?;
        self.stage = Stage::Probing;
        if position.committed_end > view.log_end() {
            // What was committed there is not in this log, whose leader has all that ever was.
            self.matched = BlockNo(0);
            return Some(Cause::Diverged(view.log_end()));
        }
        let hints = Hints {
            next: position.next,
            epoch: position.last_epoch,
            first: BlockNo(u64::MAX),
        };
        self.next = admit::step_back(view, hints);
        let last = position.next.previous();
        let own = last.and_then(|last| view.epoch_of(last));
        self.matched = BlockNo(0);
        if last.is_some() && position.next <= view.log_end() && own == Some(position.last_epoch) {
            let crc = last.and_then(|last| view.held(last)).map(|(_, crc)| crc);
            let said = Some(position.last_crc).filter(|crc| *crc != 0);
            let comparable = said.is_some() && crc.is_some() && !active(Fault::CompareEpochsOnly);
            if comparable && crc != said {
                return Some(Cause::Diverged(last.unwrap_or_default()));
            }
            self.matched = position.durable_end.min(position.next);
        }
        None
    }

    /// A frame of `headers`, whose blocks lie in a buffer of so many bytes, went; an empty one asks
    /// whether its place continues the follower's log.
    pub fn sent(
        &mut self,
        now: Time,
        (first, round): (BlockNo, u32),
        (headers, buffer_bytes): (&[BlockHeader], usize),
    ) {
        let end = BlockNo(first.0 + headers.len() as u64);
        let cost = headers
            .iter()
            .map(weight)
            .fold(CreditLimits::default(), plus);
        self.sender.spend(cost);
        let used: usize = headers.iter().map(|h| h.used_len as usize).sum();
        self.queued.lend(used, buffer_bytes);
        self.sent_bytes += used as u64;
        self.flights.push_back(Flight { first, end, round });
        self.waiting_since.get_or_insert(now);
        if round == self.round {
            self.next = self.next.max(end);
        }
    }

    /// The round of frames sent now.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Everything below `end` is durable there and verified in this epoch. The blocks newly acked.
    pub fn acked(&mut self, now: Time, end: BlockNo) -> core::ops::Range<BlockNo> {
        let before = self.matched;
        self.matched = self.matched.max(end);
        let round = self.round;
        let current = |flight: &Flight| flight.round == round && flight.end <= end;
        let probed = self.flights.iter().any(current);
        self.flights.retain(|flight| flight.end > end);
        if probed {
            self.backoff.succeeded();
            self.crc_refusals = 0;
            if self.stage == Stage::Probing {
                self.stage = Stage::Streaming;
            }
        }
        self.next = self.next.max(self.matched);
        self.blocked = false;
        if self.matched > before {
            self.peer_full = None;
        }
        self.waiting_since = (!self.flights.is_empty()).then_some(now);
        before..self.matched
    }

    /// A frame was refused.
    pub fn refused(&mut self, now: Time, nack: &Nack, code: Code, view: &dyn LogView) -> Refusal {
        let found = self.flights.iter().position(|f| f.first == nack.first);
        let flight = found.and_then(|index| self.flights.remove(index));
        self.blocked = false;
        self.waiting_since = (!self.flights.is_empty()).then_some(now);
        match flight {
            Some(flight) if flight.round == self.round => {}
            _ if [Code::OutOfSync, Code::BadCrc, Code::NoSpace].contains(&code) => {
                return Refusal::Stale;
            }
            // Logs are compared by frames of blocks alone: without one there is nothing to differ.
            None if code == Code::Diverged => return Refusal::Stale,
            _ => {}
        }
        match code {
            Code::OutOfSync => {
                let hints = Hints {
                    next: nack.next,
                    epoch: nack.hint_epoch,
                    first: nack.hint_first,
                };
                self.probe(admit::step_back(view, hints));
                Refusal::SteppedBack
            }
            Code::BadCrc => {
                self.crc_refusals += 1;
                self.probe(nack.first);
                if self.crc_refusals < CRC_REFUSALS {
                    Refusal::Suspect(nack.first)
                } else {
                    Refusal::Hopeless
                }
            }
            Code::NoSpace => {
                self.probe(nack.first);
                self.peer_full = Some(now);
                Refusal::Full
            }
            Code::Diverged => {
                self.probe(nack.first);
                self.stopped = Some(Cause::Diverged(nack.next));
                Refusal::Stopped
            }
            _ => Refusal::Hopeless,
        }
    }

    /// One frame from `next` on, then wait for its ack. Frames in flight become stale.
    pub fn probe(&mut self, next: BlockNo) {
        self.next = next;
        self.round += 1;
        if self.stage == Stage::Streaming {
            self.stage = Stage::Probing;
        }
    }

    /// Whether a frame of the current round is in flight or being loaded.
    pub fn probe_is_out(&self) -> bool {
        self.stage == Stage::Probing
            && (self.loading.is_some() || self.flights.iter().any(|f| f.round == self.round))
    }

    /// The status that follows from everything else, with its cause.
    pub fn current_status(&self, waits_for_credit: bool) -> (LinkStatus, Cause) {
        if self.stage < Stage::Probing {
            let cause = match self.cause {
                Cause::None
                | Cause::Credit
                | Cause::PeerFull
                | Cause::Rebuilding
                | Cause::Operator
                | Cause::Peer(_) => Cause::Connecting,
                other => other,
            };
            return (LinkStatus::Disconnected, cause);
        }
        if let Some(cause) = self.stopped {
            return (LinkStatus::Paused, cause);
        }
        if self.operator_pause {
            return (LinkStatus::Paused, Cause::Operator);
        }
        if let Some(reason) = self.peer_pause {
            return (LinkStatus::Paused, Cause::Peer(reason));
        }
        if self.damaged {
            return (LinkStatus::Paused, Cause::Damaged);
        }
        if self.peer_full.is_some() {
            return (LinkStatus::WaitingForCredit, Cause::PeerFull);
        }
        if waits_for_credit {
            return (LinkStatus::WaitingForCredit, Cause::Credit);
        }
        let cause = match self.memory {
            ReplicaMemory::Whole => Cause::None,
            ReplicaMemory::Lost | ReplicaMemory::Blank => Cause::Rebuilding,
        };
        (LinkStatus::Replicating, cause)
    }
}
